//! Goal: nothing that was acknowledged is lost by a power cut at any write or flush, nothing is
//! corrupted, no space is leaked; commits share writes. Method: the log over a small pool on
//! simulated disks ([`bed`]); tasks that write, record and commit; cuts at the n-th operation under
//! a seed, also while recovering; replay into the object set and comparison with what the tasks
//! were told.

mod bed;
mod cuts;
mod golden;
mod missed;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Fault, FaultEffect, Latency, PowerCut, SimOp};
use format::{LogKind, ObjectId, Txg, ZilHeader};
use parking_lot::Mutex;
use zio::pipeline::{FailMode, LogPlaces};

use crate::blocks::{BLOCK_BYTES_MAX, Bursts, Packer, RECORD_BYTES_MAX, Records, block_bytes};
use crate::pending::{Entry, EntryBody, OBJECT_BYTES_MAX, Pending};
use crate::{
    LogContent, LogRecord, ReplayError, ReplayRecord, ReplayTarget, SyncMode, Zil, ZilError,
};
use bed::{Bed, Layout, Machine, open_log, simulate};

const BLOCK: u32 = 4096;

/// Keeps what is replayed.
#[derive(Default)]
struct Keep(Mutex<Vec<ReplayRecord>>);

impl ReplayTarget for Keep {
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>> {
        self.0.lock().push(record);
        Box::pin(async { Ok(()) })
    }
}

impl Keep {
    /// Names of named records, which are their bodies.
    fn names(&self) -> Vec<String> {
        let records = self.0.lock();
        let named = records
            .iter()
            .filter(|record| record.kind == LogKind::Create);
        named
            .map(|record| {
                let text = String::from_utf8_lossy(&record.body).into_owned();
                text.trim_end_matches('\0').to_owned()
            })
            .collect()
    }

    /// Writes: object, offset, data.
    fn writes(&self) -> Vec<(u64, u64, Bytes)> {
        let records = self.0.lock();
        let writes = records
            .iter()
            .filter(|record| record.kind == LogKind::Write);
        writes
            .map(|record| {
                let word = |index: usize| {
                    let raw = record.body[index * 8..].first_chunk::<8>().expect("a word");
                    u64::from_le_bytes(*raw)
                };
                let length = word(2) as usize;
                (word(0), word(1), record.body.slice(160..160 + length))
            })
            .collect()
    }
}

/// A record of names with a body that only these tests understand: the log does not look into it
/// any further than for the objects that it is about.
fn raw(kind: LogKind, object: ObjectId, body: impl Into<Bytes>) -> LogRecord {
    LogRecord {
        kind,
        content: LogContent::Encoded(body.into()),
        ..LogRecord::unlogged(object, true)
    }
}

async fn name(bed: &Bed, name: &str) {
    let tx = bed.tx().await;
    bed.set.dirty_root(&tx);
    let record = raw(LogKind::Create, ObjectId::new(1), name.as_bytes().to_vec());
    bed.zil.record(&tx, record);
}

async fn write(bed: &Bed, object: ObjectId, offset: u64, data: impl Into<Bytes>) {
    let tx = bed.tx().await;
    let data = data.into();
    let length = data.len() as u64;
    let held = bed.set.hold(object).await.expect("exists");
    held.write(&tx, offset, data).await.expect("writes");
    bed.zil
        .record(&tx, LogRecord::write(object, false, offset, length));
}

/// A pool whose log has its chain, with everything before on disk.
async fn with_chain(machine: &Machine) -> Bed {
    let bed = machine.create().await;
    name(&bed, "first").await;
    bed.zil.commit(ObjectId::ZERO).await.expect("commits");
    assert!(!bed.set.zil_header().log.is_hole(), "a chain");
    bed
}

async fn crash(machine: &Machine, how: PowerCut) -> (Bed, Keep) {
    machine.sim.crash(how).await;
    let bed = machine.recover().await;
    let kept = Keep::default();
    bed.zil.replay(&kept).await.expect("replays");
    (bed, kept)
}

#[test]
fn what_was_committed_is_replayed_in_order_and_nothing_else() {
    simulate(async {
        let machine = Machine::new(1, Layout::Single);
        let bed = with_chain(&machine).await;
        let objects = bed.objects(2, BLOCK).await;
        name(&bed, "a").await;
        write(&bed, objects[0], 100, vec![1; 50]).await;
        write(&bed, objects[1], 0, vec![2; 9000]).await;
        name(&bed, "b").await;
        bed.zil.commit(objects[0]).await.expect("commits");
        name(&bed, "c").await;
        bed.zil.commit(objects[0]).await.expect("commits");
        name(&bed, "never committed").await;
        let (bed, kept) = crash(&machine, PowerCut::LoseUnflushed).await;
        assert_eq!(kept.names(), ["a", "b", "c"]);
        // An object's own records come behind those of its txg that might have created it.
        let kinds: Vec<u64> = kept
            .0
            .lock()
            .iter()
            .map(|record| record.kind.code())
            .collect();
        assert_eq!(kinds, [1, 1, 9, 1]);
        // The other object was not asked for.
        assert_eq!(
            kept.writes(),
            [(objects[0].get(), 100, Bytes::from(vec![1; 50]))]
        );
        assert!(!bed.zil.needs_replay());
        assert_eq!(bed.set.zil_header(), ZilHeader::default());
        bed.check_space().await;
    });
}

#[test]
fn a_commit_of_everything_has_all_objects_and_renames_have_their_data() {
    simulate(async {
        let machine = Machine::new(2, Layout::Raidz);
        let bed = with_chain(&machine).await;
        let objects = bed.objects(3, BLOCK).await;
        write(&bed, objects[0], 0, vec![1; 4096]).await;
        {
            let tx = bed.tx().await;
            let record = LogRecord {
                pulls: true,
                ..raw(LogKind::Rename, objects[0], "rename")
            };
            bed.zil.record(&tx, record);
        }
        bed.zil.commit(objects[2]).await.expect("commits");
        write(&bed, objects[1], 0, vec![2; 5000]).await;
        write(&bed, objects[2], 4096, vec![3; 300_000]).await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        let (bed, kept) = crash(&machine, PowerCut::LoseUnflushed).await;
        {
            let records = kept.0.lock();
            let kinds = (records[0].kind, records[1].kind);
            assert_eq!(kinds, (LogKind::Write, LogKind::Rename));
            assert!(records.is_sorted_by_key(|record| record.sequence));
        }
        let mut content = vec![0; 300_000];
        let mut seen = 0;
        for (object, offset, data) in kept.writes() {
            assert!(data.len() <= RECORD_BYTES_MAX);
            if object == objects[2].get() {
                let at = offset as usize - 4096;
                assert_eq!(at, seen, "pieces follow one another");
                content[at..at + data.len()].copy_from_slice(&data);
                seen += data.len();
            }
        }
        assert_eq!(seen, content.len());
        assert!(content.iter().all(|byte| *byte == 3));
        bed.check_space().await;
    });
}

#[test]
fn data_is_what_the_operation_wrote_whatever_happened_since() {
    simulate(async {
        let machine = Machine::new(3, Layout::Mirror);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, BLOCK).await[0];
        write(&bed, object, 0, vec![1; 8192]).await;
        write(&bed, object, 10, vec![2; 20]).await;
        {
            // Truncated without a record: as if that came after the commit.
            let tx = bed.tx().await;
            let held = bed.set.hold(object).await.expect("exists");
            held.free_range(&tx, 0, u64::MAX).await.expect("frees");
        }
        bed.zil.commit(object).await.expect("commits");
        let (_, kept) = crash(&machine, PowerCut::LoseUnflushed).await;
        let writes = kept.writes();
        let first: Vec<u8> = writes[..writes.len() - 1]
            .iter()
            .flat_map(|(_, _, data)| data.to_vec())
            .collect();
        assert_eq!(first, vec![1; 8192]);
        assert_eq!(writes[writes.len() - 1].2, vec![2; 20]);
    });
}

#[test]
fn a_txg_makes_records_superfluous_and_frees_their_blocks() {
    simulate(async {
        let machine = Machine::new(4, Layout::Single);
        let bed = with_chain(&machine).await;
        for round in 0..20 {
            name(&bed, &round.to_string()).await;
            bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        }
        let used = machine.maps.allocated_bytes();
        bed.txgs.sync().await.expect("syncs");
        bed.zil.commit(ObjectId::ZERO).await.expect("nothing to do");
        let batches = bed.zil.stats().batches;
        name(&bed, "last").await;
        bed.txgs.sync().await.expect("syncs");
        bed.zil.commit(ObjectId::ZERO).await.expect("nothing to do");
        assert_eq!(bed.zil.stats().batches, batches, "it was on disk already");
        assert!(bed.zil.shared.pending.lock().is_empty());
        assert!(machine.maps.allocated_bytes() <= used + 64 * 1024);
        assert_eq!(bed.zil.shared.chain.lock().blocks.len(), 1);
        let (bed, kept) = crash(&machine, PowerCut::KeepAll).await;
        assert!(kept.names().is_empty());
        bed.check_space().await;
    });
}

#[test]
fn committers_share_writes() {
    async fn run(committers: usize, through: bool) -> (u64, u64) {
        let machine = Machine::new(5, Layout::Single);
        machine.set_durable_writes(through);
        let bed = with_chain(&machine).await;
        let objects = bed.objects(committers, BLOCK).await;
        machine
            .sim
            .disk("disk0")
            .expect("there")
            .set_latency(Latency {
                write: Duration::from_millis(2),
                flush: Duration::from_millis(4),
                jitter_permille: 0,
                ..Latency::NONE
            });
        let before = machine.sim.counts();
        let tasks = objects.into_iter().map(|object| {
            let bed = bed.clone();
            async move {
                for round in 0..16u8 {
                    write(&bed, object, 0, vec![round; 512]).await;
                    bed.zil.commit(object).await.expect("commits");
                }
            }
        });
        futures::future::join_all(tasks).await;
        let after = machine.sim.counts();
        (after.writes - before.writes, after.flushes - before.flushes)
    }
    // Where the disk can, a commit is one operation of it.
    assert_eq!(simulate(run(1, true)), (16, 0));
    let (alone_writes, alone_flushes) = simulate(run(1, false));
    let (writes, flushes) = simulate(run(64, false));
    assert_eq!((alone_writes, alone_flushes), (16, 16));
    // 64 times as much was committed: by about twice as many flushes, as half of the committers
    // are in one batch and half in the next.
    assert!(flushes <= 3 * alone_flushes, "{flushes} flushes");
    assert!(writes <= 12 * alone_writes, "{writes} writes");
}

#[test]
fn garbage_in_the_chain_ends_it() {
    for damage in 0..12 {
        simulate(async {
            let machine = Machine::new(6, Layout::Single);
            let bed = with_chain(&machine).await;
            for round in 0..4 {
                name(&bed, &round.to_string()).await;
                bed.zil.commit(ObjectId::ZERO).await.expect("commits");
            }
            let third = {
                let chain = bed.zil.shared.chain.lock();
                let block = chain.blocks[chain.blocks.len() - 3];
                block.pointer.dva(0).expect("a place").offset_bytes()
            };
            machine.sim.crash(PowerCut::LoseUnflushed).await;
            let disk = machine.sim.disk("disk0").expect("there");
            // Offsets on the vdev begin behind the front labels.
            let at = third + (4 << 20);
            match damage {
                0 => disk.corrupt(at, 4096),
                1 => disk.poke(at, &[0; 4096]),
                2 => disk.poke(at, &[0xff; 4096]),
                byte => disk.flip_bit(at + byte * 60, 3),
            }
            let bed = machine.recover().await;
            let kept = Keep::default();
            bed.zil.replay(&kept).await.expect("replays");
            assert_eq!(kept.names(), ["0", "1"], "damage {damage}");
            bed.check_space().await;
        });
    }
}

#[test]
fn an_unreadable_block_fails_the_claim_and_does_not_end_the_log() {
    simulate(async {
        let machine = Machine::new(7, Layout::Single);
        let bed = with_chain(&machine).await;
        for round in 0..4 {
            name(&bed, &round.to_string()).await;
            bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        }
        let mut header = bed.set.zil_header();
        let place = {
            let chain = bed.zil.shared.chain.lock();
            let block = chain.blocks[chain.blocks.len() - 3];
            block.pointer.dva(0).expect("a place").offset_bytes() + (4 << 20)
        };
        let disk = machine.sim.disk("disk0").expect("there");
        disk.inject(Fault::new(SimOp::Read, FaultEffect::Error).within(place..place + 512));
        let failed = crate::claim(
            &bed.pipeline,
            Txg::new(1 << 40),
            Txg::new(1 << 40),
            Txg::new(1 << 40),
            &mut header,
        )
        .await;
        assert!(failed.is_err(), "{failed:?}");
        assert!(header.claim_txg.is_zero());
    });
}

#[test]
fn a_log_that_cannot_be_written_makes_commits_wait_for_the_txg() {
    simulate(async {
        let machine = Machine::new(8, Layout::Single);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, BLOCK).await[0];
        for round in 0..6u8 {
            name(&bed, &round.to_string()).await;
            write(&bed, object, 0, vec![round + 1; 4096]).await;
            let disk = machine.sim.disk("disk0").expect("there");
            if round % 2 == 1 {
                // What fails once is written again.
                disk.inject(Fault::new(SimOp::Write, FaultEffect::Error).times(2));
            }
            bed.zil.commit(object).await.expect("commits");
        }
        assert!(bed.zil.stats().txg_waits > 0);
        let (bed, kept) = crash(&machine, PowerCut::LoseUnflushed).await;
        // Every second commit waited for its txg, so that only the last may have been logged.
        assert!(kept.names().len() <= 1);
        assert_eq!(bed.read(object, 0, 4096).await, vec![6; 4096]);
        bed.check_space().await;
    });
}

#[test]
fn no_room_for_log_blocks_makes_commits_wait_for_the_txg() {
    simulate(async {
        let machine = Machine::new(9, Layout::Single);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, BLOCK).await[0];
        let mut taken = Vec::new();
        {
            let tx = bed.tx().await;
            bed.set.dirty_root(&tx);
            for size in [128 << 10, 64 << 10, 16 << 10] {
                while let Ok(block) = bed
                    .pipeline
                    .log_blocks()
                    .allocate(tx.txg(), size, None, LogPlaces::ANYWHERE)
                    .await
                {
                    taken.push(block);
                }
            }
            // What is left is enough for the txg, but not for big log blocks.
        }
        write(&bed, object, 0, vec![7; 200_000]).await;
        bed.zil.commit(object).await.expect("commits");
        assert_eq!(bed.zil.stats().batches, 0);
        assert!(bed.zil.stats().txg_waits > 0);
        {
            let tx = bed.tx().await;
            bed.set.dirty_root(&tx);
            for block in &taken {
                bed.pipeline.free(tx.txg(), block);
            }
        }
        bed.txgs.sync().await.expect("syncs");
        assert_eq!(bed.read(object, 0, 200_000).await, vec![7; 200_000]);
        bed.check_space().await;
    });
}

#[test]
fn a_suspended_pool_acknowledges_nothing() {
    simulate(async {
        let machine = Machine::new(10, Layout::Single);
        let bed = with_chain(&machine).await;
        bed.fail_mode(FailMode::Continue);
        let disk = machine.sim.disk("disk0").expect("there");
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Error));
        name(&bed, "a").await;
        bed.zil
            .commit(ObjectId::ZERO)
            .await
            .expect_err("nothing can be written");
        // Not even though its record is not in memory any more.
        bed.zil.commit(ObjectId::ZERO).await.expect_err("still not");
        // Writes that failed just now are still on their way back.
        tokio::time::sleep(Duration::from_secs(1)).await;
        disk.clear_faults();
        bed.pipeline.suspension().clear().await.expect("resumes");
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        name(&bed, "b").await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        name(&bed, "c").await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        let (bed, kept) = crash(&machine, PowerCut::LoseUnflushed).await;
        assert_eq!(kept.names(), ["c"], "what came before is on disk");
        bed.check_space().await;
    });
}

#[test]
fn a_chain_that_broke_is_not_gone_on_with_however_long_it_takes() {
    simulate(async {
        let machine = Machine::new(20, Layout::Single);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, BLOCK).await[0];
        bed.fail_mode(FailMode::Continue);
        let disk = machine.sim.disk("disk0").expect("there");
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Error));
        write(&bed, object, 0, vec![1; 100]).await;
        bed.zil
            .commit(object)
            .await
            .expect_err("nothing can be written");
        tokio::time::sleep(Duration::from_secs(1)).await;
        disk.clear_faults();
        bed.pipeline.suspension().clear().await.expect("resumes");
        // All that was lost on its way to the log is on disk now; the log still ends at a bad
        // block.
        for _ in 0..3 {
            bed.txgs.sync().await.expect("syncs");
        }
        write(&bed, object, 0, vec![2; 100]).await;
        bed.zil.commit(object).await.expect("commits");
        let (bed, kept) = crash(&machine, PowerCut::LoseUnflushed).await;
        let replayed = kept.writes().iter().any(|(_, _, data)| data[0] == 2);
        assert!(replayed || bed.read(object, 0, 100).await[0] == 2);
        bed.check_space().await;
    });
}

#[test]
fn with_failmode_wait_a_commit_waits_until_the_pool_resumes() {
    simulate(async {
        let machine = Machine::new(11, Layout::Single);
        let bed = with_chain(&machine).await;
        bed.fail_mode(FailMode::Wait);
        let disk = machine.sim.disk("disk0").expect("there");
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Error));
        name(&bed, "a").await;
        let commit = bed.zil.commit(ObjectId::ZERO);
        let waited = tokio::time::timeout(Duration::from_secs(3600), commit).await;
        assert!(waited.is_err(), "an hour, and no answer");
        disk.clear_faults();
        bed.pipeline.suspension().clear().await.expect("resumes");
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        bed.check_space().await;
    });
}

#[test]
fn sync_disabled_records_nothing_and_going_back_waits_for_what_was_not() {
    simulate(async {
        let machine = Machine::new(12, Layout::Single);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, BLOCK).await[0];
        bed.owner.set_sync(SyncMode::Disabled);
        write(&bed, object, 0, vec![1; 512]).await;
        let synced = bed.txgs.synced_txg();
        bed.zil.commit(object).await.expect("returns at once");
        assert_eq!(bed.txgs.synced_txg(), synced);
        bed.owner.set_sync(SyncMode::Always);
        bed.zil.commit(object).await.expect("commits");
        assert!(bed.txgs.synced_txg() > synced, "the txg was waited for");
        let (bed, _) = crash(&machine, PowerCut::LoseUnflushed).await;
        assert_eq!(bed.read(object, 0, 512).await, vec![1; 512]);
    });
}

#[test]
fn too_much_for_the_log_waits_for_the_txg_and_takes_no_memory() {
    simulate(async {
        let machine = Machine::new(13, Layout::Single);
        let bed = with_chain(&machine).await;
        let objects = bed.objects(2, 128 << 10).await;
        let chunk = Bytes::from(vec![9; 1 << 20]);
        for round in 0..20u64 {
            write(&bed, objects[0], round << 20, chunk.clone()).await;
        }
        assert!(bed.zil.shared.pending.lock().bytes() < OBJECT_BYTES_MAX);
        // Another object's commit does not care.
        write(&bed, objects[1], 0, vec![1; 100]).await;
        let synced = bed.txgs.synced_txg();
        bed.zil.commit(objects[1]).await.expect("commits");
        assert_eq!(bed.txgs.synced_txg(), synced);
        bed.zil.commit(objects[0]).await.expect("commits");
        assert!(bed.txgs.synced_txg() > synced);
        let (bed, kept) = crash(&machine, PowerCut::LoseUnflushed).await;
        assert!(kept.writes().is_empty());
        assert_eq!(bed.read(objects[0], 19 << 20, 1 << 20).await, chunk);
        bed.check_space().await;
    });
}

#[test]
fn a_block_and_the_link_to_it_are_on_disk_together() {
    simulate(async {
        let machine = Machine::new(17, Layout::Single);
        let bed = with_chain(&machine).await;
        let disk = machine.sim.disk("disk0").expect("there");
        let slow = FaultEffect::Delay(Duration::from_secs(10));
        disk.inject(Fault::new(SimOp::Write, slow).times(1));
        name(&bed, "slow").await;
        let txg = bed.txgs.open_txg();
        let zil = bed.zil.clone();
        let commit = tokio::spawn(async move { zil.commit(ObjectId::ZERO).await });
        // The txg in which the next block was allocated, while the link to it is not written.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!commit.is_finished());
        let sync = tokio::time::timeout(Duration::from_secs(5), bed.txgs.wait_synced(txg));
        assert!(sync.await.is_err(), "the txg waits for the log's write");
        bed.txgs.wait_synced(txg).await.expect("syncs");
        commit.await.expect("no panic").expect("commits");
        let (bed, _) = crash(&machine, PowerCut::LoseUnflushed).await;
        bed.check_space().await;
    });
}

#[test]
fn blocks_with_records_of_a_later_txg_stay() {
    simulate(async {
        let machine = Machine::new(18, Layout::Single);
        let bed = with_chain(&machine).await;
        bed.pause_ms.store(1000, Ordering::Relaxed);
        name(&bed, "of the txg").await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        let txg = bed.txgs.open_txg();
        bed.txgs.kick();
        bed.txgs.wait_open(txg.next()).await.expect("opens");
        // Written before the log's part of the sync of the txg before.
        name(&bed, "later").await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        name(&bed, "latest").await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        bed.txgs.wait_synced(txg).await.expect("syncs");
        let (bed, kept) = crash(&machine, PowerCut::LoseUnflushed).await;
        assert_eq!(kept.names(), ["later", "latest"]);
        bed.check_space().await;
    });
}

#[test]
fn blocks_of_a_later_txg_stay_although_their_records_are_synced() {
    simulate(async {
        let machine = Machine::new(19, Layout::Single);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, BLOCK).await[0];
        bed.pause_ms.store(1000, Ordering::Relaxed);
        write(&bed, object, 0, vec![5; 400_000]).await;
        let txg = bed.txgs.open_txg();
        bed.txgs.kick();
        bed.txgs.wait_open(txg.next()).await.expect("opens");
        // Allocated in the next txg, for records of the one that is about to be synced.
        bed.zil.commit(object).await.expect("commits");
        assert!(bed.zil.shared.chain.lock().blocks.len() > 3);
        for _ in 0..2 {
            let sync = tokio::time::timeout(Duration::from_secs(60), bed.txgs.sync());
            sync.await.expect("not stuck").expect("syncs");
        }
        bed.check_space().await;
    });
}

#[test]
fn a_dropped_commit_changes_nothing_for_the_others() {
    simulate(async {
        let machine = Machine::new(14, Layout::Single);
        let bed = with_chain(&machine).await;
        machine
            .sim
            .disk("disk0")
            .expect("there")
            .set_latency(Latency::default());
        for round in 0..50 {
            name(&bed, &round.to_string()).await;
            if round % 3 == 0 {
                bed.zil.commit(ObjectId::ZERO).await.expect("commits");
            } else {
                let commit = bed.zil.commit(ObjectId::ZERO);
                let _ = tokio::time::timeout(Duration::from_millis(round % 5), commit).await;
            }
        }
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        let (_, kept) = crash(&machine, PowerCut::LoseUnflushed).await;
        let expected: Vec<String> = (0..50).map(|round| round.to_string()).collect();
        assert!(expected.ends_with(&kept.names()));
        assert_eq!(kept.names().last().map(String::as_str), Some("49"));
    });
}

#[test]
fn a_closed_log_leaves_nothing_and_can_begin_again() {
    simulate(async {
        let machine = Machine::new(15, Layout::WithLog);
        let bed = with_chain(&machine).await;
        for round in 0..3 {
            name(&bed, &format!("a{round}")).await;
            bed.zil.commit(ObjectId::ZERO).await.expect("commits");
            name(&bed, &format!("b{round}")).await;
            bed.zil.commit(ObjectId::ZERO).await.expect("commits");
            // Log blocks go to the log device.
            let front = bed.zil.shared.chain.lock().blocks[0];
            assert_eq!(front.pointer.dva(0).expect("a place").vdev().get(), 1);
            assert!(!bed.zil.is_idle());
            bed.check_space().await;
            assert!(bed.zil.is_idle());
        }
        let (_, kept) = crash(&machine, PowerCut::KeepAll).await;
        assert!(kept.names().is_empty());
    });
}

/// Fails at one record.
struct FailsAt(Keep, u64);

impl ReplayTarget for FailsAt {
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>> {
        if record.sequence == self.1 {
            return Box::pin(async { Err("no".into()) });
        }
        self.0.replay(record)
    }
}

#[test]
fn a_record_that_fails_leaves_the_log_for_another_try() {
    simulate(async {
        let machine = Machine::new(16, Layout::Single);
        let bed = with_chain(&machine).await;
        for round in 0..4 {
            name(&bed, &round.to_string()).await;
            bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        }
        machine.sim.crash(PowerCut::LoseUnflushed).await;
        let bed = machine.recover().await;
        let target = FailsAt(Keep::default(), 3);
        let error = bed.zil.replay(&target).await.expect_err("refused");
        assert!(error.to_string().contains("record 3 of kind 1"), "{error}");
        assert_eq!(target.0.names(), ["0", "1"]);
        assert!(bed.zil.needs_replay());
        // What is done meanwhile is made durable without touching the log.
        name(&bed, "new").await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        bed.zil.close().await.expect("closes");
        assert!(bed.zil.needs_replay());
        let kept = Keep::default();
        assert!(bed.zil.replay(&kept).await.expect("replays") > 0);
        assert_eq!(kept.names().last().map(String::as_str), Some("3"));
        bed.check_space().await;
    });
}

fn entry(kind: LogKind, txg: u64, body: EntryBody) -> Entry {
    Entry {
        kind,
        txg: Txg::new(txg),
        object: ObjectId::new(5),
        body,
    }
}

#[test]
fn records_are_packed_without_gaps_and_within_blocks() {
    let mut packer = Packer::new(4096, 10);
    let bodies = [3usize, 3000, 1000, 60_000, 70_000, RECORD_BYTES_MAX - 32, 1];
    for length in bodies {
        let body = EntryBody::Encoded(vec![7; length].into());
        assert!(packer.add(&entry(LogKind::Create, 6, body)));
    }
    let data = Bytes::from(vec![8; 500_001]);
    let write = EntryBody::Write {
        offset_bytes: 77,
        length_bytes: data.len() as u64,
        data: vec![data.slice(..200_000), data.slice(200_000..)],
    };
    assert!(packer.add(&entry(LogKind::Write, 7, write)));
    let too_long = EntryBody::Encoded(vec![0; RECORD_BYTES_MAX].into());
    assert!(!packer.add(&entry(LogKind::Create, 6, too_long)));
    let (blocks, last) = packer.finish();
    let (mut sequence, mut offset, mut seen) = (10, 77, Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let limit = if index == 0 { 4096 } else { BLOCK_BYTES_MAX };
        assert!(block.block_bytes() <= limit, "block {index}");
        let mut at = 0;
        while at < block.len() {
            let word = |index: usize| {
                let raw = block.bytes()[at + index * 8..].first_chunk::<8>();
                u64::from_le_bytes(*raw.expect("a word"))
            };
            sequence += 1;
            assert_eq!(word(3), sequence);
            assert_eq!(word(1) % 8, 0);
            if word(0) == 9 {
                assert_eq!((word(4), word(5)), (5, offset));
                assert_eq!(word(1), 192 + word(6).next_multiple_of(8));
                offset += word(6);
                seen.push(word(6));
            }
            at += word(1) as usize;
        }
    }
    assert_eq!((sequence, offset), (last, 77 + 500_001));
    assert!(seen.len() <= 5, "{seen:?}");
}

#[test]
fn block_sizes_follow_the_load() {
    let mut bursts = Bursts::default();
    assert_eq!(bursts.next_block_bytes(), 4096);
    bursts.note(100_000);
    assert_eq!(
        bursts.next_block_bytes(),
        4096,
        "one big burst is not a load"
    );
    bursts.note(90_000);
    assert_eq!(bursts.next_block_bytes(), block_bytes(90_000));
    bursts.note(10 << 20);
    bursts.note(10 << 20);
    assert_eq!(bursts.next_block_bytes(), BLOCK_BYTES_MAX);
    for _ in 0..4 {
        bursts.note(300);
    }
    assert_eq!(bursts.next_block_bytes(), 4096);
}

#[test]
fn pending_records_of_synced_txgs_are_forgotten() {
    let mut pending = Pending::default();
    for txg in 5..8 {
        pending.add(
            entry(LogKind::Create, txg, EntryBody::Encoded(Bytes::new())),
            true,
        );
        pending.add(
            entry(LogKind::Write, txg, EntryBody::Encoded(Bytes::new())),
            false,
        );
    }
    pending.clean(Txg::new(5));
    pending.select(ObjectId::new(4));
    let txgs: Vec<u64> = pending
        .take()
        .entries
        .iter()
        .map(|entry| entry.txg.get())
        .collect();
    assert_eq!(
        txgs,
        [6, 7],
        "one in order each; the object was not selected"
    );
    pending.clean(Txg::new(6));
    pending.select(ObjectId::ZERO);
    assert_eq!(pending.take().entries.len(), 1);
    pending.clean(Txg::new(7));
    assert!(pending.is_empty());
}

#[test]
fn what_is_cut_of_a_write_ends_with_a_page() {
    let data = || EntryBody::Write {
        offset_bytes: 0,
        length_bytes: 0,
        data: Vec::new(),
    };
    for offset in [0u64, 512, 4096, 5000, 65_536 + 100] {
        for first in [4096, 8192, 36 << 10, 128 << 10] {
            for before in [0usize, 40, 3000] {
                let mut packer = Packer::new(first, 0);
                assert!(packer.add(&entry(
                    LogKind::Create,
                    5,
                    EntryBody::Encoded(vec![0; before].into())
                )));
                let mut body = data();
                let length = 300_000u64;
                if let EntryBody::Write {
                    offset_bytes,
                    length_bytes,
                    data,
                } = &mut body
                {
                    (*offset_bytes, *length_bytes) = (offset, length);
                    data.push(Bytes::from(vec![1; length as usize]));
                }
                assert!(packer.add(&entry(LogKind::Write, 5, body)));
                let (blocks, _) = packer.finish();
                let mut at = offset;
                for block in &blocks {
                    let mut rest = block.bytes();
                    while !rest.is_empty() {
                        let word = |index: usize| {
                            let raw = rest[index * 8..].first_chunk::<8>().expect("a word");
                            u64::from_le_bytes(*raw)
                        };
                        if word(0) == 9 {
                            assert_eq!(word(5), at);
                            at += word(6);
                            assert!(at % 4096 == 0 || at == offset + length, "{at}");
                        }
                        let whole = word(1) as usize;
                        rest = &rest[whole..];
                    }
                }
                assert_eq!(at, offset + length);
                // No block but the first is nearly empty.
                let sizes = blocks.iter().map(Records::len);
                assert!(sizes.skip(1).take(1).all(|size| size > 100_000));
            }
        }
    }
}

#[test]
fn what_belongs_together_is_in_one_block() {
    let write = |length: usize| EntryBody::Write {
        offset_bytes: 0,
        length_bytes: length as u64,
        data: vec![Bytes::from(vec![1; length])],
    };
    let encoded = |length: usize| EntryBody::Encoded(vec![2; length].into());
    let together = |length: usize| {
        let entries = vec![
            entry(LogKind::Create, 5, encoded(100)),
            entry(LogKind::Write, 5, write(length)),
            entry(LogKind::Truncate, 5, encoded(24)),
        ];
        entry(LogKind::Create, 5, EntryBody::Together(entries))
    };
    for first in [4096, 8192, 128 << 10] {
        for length in [1, 4000, 54_921, 65_536] {
            let mut packer = Packer::new(first, 0);
            for _ in 0..20 {
                assert!(packer.add(&together(length)));
            }
            let (blocks, sequence) = packer.finish();
            assert_eq!(sequence, 60, "no write is cut");
            for block in &blocks {
                let mut kinds = Vec::new();
                let mut rest = block.bytes();
                while !rest.is_empty() {
                    let word = |index: usize| {
                        let raw = rest[index * 8..].first_chunk::<8>().expect("a word");
                        u64::from_le_bytes(*raw)
                    };
                    kinds.push(word(0));
                    let whole = word(1) as usize;
                    rest = &rest[whole..];
                }
                // `TX_CREATE`, `TX_WRITE`, `TX_TRUNCATE`.
                let whole = [1, 9, 10].repeat(kinds.len() / 3);
                assert_eq!(kinds, whole, "{first} {length}");
                assert!(block.block_bytes() <= BLOCK_BYTES_MAX);
            }
        }
    }
    assert!(!Packer::new(4096, 0).add(&together(RECORD_BYTES_MAX)));
}

/// Goal: a writer that is ended in the midst (its runtime ends) tells nobody that anything is
/// durable, wakes those who wait without a lock of the log, and who asks again waits for the
/// transaction group that has what was lost. Method: a writer that is dropped; somebody who waits
/// and looks at the log as soon as he is woken.
#[test]
fn a_writer_that_is_ended_answers_nobody() {
    /// Keeps tasks and does not run them.
    #[derive(Default)]
    struct Kept(Mutex<Vec<BoxFuture<'static, ()>>>);
    impl device::Spawn for Kept {
        fn spawn(&self, task: BoxFuture<'static, ()>) {
            self.0.lock().push(task);
        }
    }
    struct Looks(Arc<Zil>, AtomicBool);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            self.0.is_idle();
            self.1.store(true, Ordering::Relaxed);
        }
    }
    simulate(async {
        let bed = Machine::new(41, Layout::Single).create().await;
        let kept = Arc::new(Kept::default());
        let mut zil = open_log(&bed.set, &bed.txgs, &bed.owner);
        let shared = Arc::get_mut(&mut zil).and_then(|zil| Arc::get_mut(&mut zil.shared));
        shared.expect("nobody else has it").world.spawn = kept.clone();
        let tx = bed.tx().await;
        let txg = tx.txg();
        bed.set.dirty_root(&tx);
        let record = raw(LogKind::Create, ObjectId::new(1), b"name".to_vec());
        zil.record(&tx, record);
        drop(tx);
        let looks = Arc::new(Looks(zil.clone(), AtomicBool::new(false)));
        let waker = Waker::from(looks.clone());
        let mut context = Context::from_waker(&waker);
        let commit = || Box::pin(zil.commit(ObjectId::ZERO));
        // The first one's is under way, the second one waits for the next.
        let mut commits = [commit(), commit()];
        for commit in &mut commits {
            assert!(commit.as_mut().poll(&mut context).is_pending());
        }
        let tasks = std::mem::take(&mut *kept.0.lock());
        assert_eq!(tasks.len(), 1);
        drop(tasks);
        assert!(looks.1.load(Ordering::Relaxed));
        for commit in commits {
            assert!(matches!(commit.await, Err(ZilError::Closed)));
        }
        assert!(bed.txgs.synced_txg() < txg);
        let mut again = pin!(zil.commit(ObjectId::ZERO));
        assert!(again.as_mut().poll(&mut context).is_pending());
        for task in std::mem::take(&mut *kept.0.lock()) {
            tokio::spawn(task);
        }
        again.await.expect("it is on disk");
        assert!(bed.txgs.synced_txg() >= txg);
    });
}
