//! Devices that missed a part of a log, or fail to read it; records of what is gone.

use std::time::Duration;

use device::BoxFuture;
use device::sim::{Fault, FaultEffect, PowerCut, SimOp};
use format::{LogKind, ObjectId, Txg, ZilHeader};

use super::bed::{Bed, Layout, Machine, simulate};
use super::{Keep, crash, name, raw, with_chain, write};
use crate::{
    Claimed, ReplayError, ReplayRecord, ReplayTarget, ZilError, claim, free_chain, free_until,
};

/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(600);

/// Where a block of the chain is, counted from its end, on every disk.
fn place_of(bed: &Bed, from_end: usize) -> u64 {
    let chain = bed.zil.shared.chain.lock();
    let block = chain.blocks[chain.blocks.len() - from_end];
    block.pointer.dva(0).expect("a place").offset_bytes() + (4 << 20)
}

#[test]
fn a_copy_that_cannot_be_read_is_no_end_though_others_have_nothing() {
    for way in 0..2 {
        simulate(async move {
            let machine = Machine::new(31, Layout::Mirror);
            let bed = with_chain(&machine).await;
            for round in 0..4 {
                name(&bed, &round.to_string()).await;
                bed.zil.commit(ObjectId::ZERO).await.expect("commits");
            }
            let mut header = bed.set.zil_header();
            let place = place_of(&bed, 3);
            let disks =
                ["disk0", "disk1", "disk2"].map(|name| machine.sim.disk(name).expect("there"));
            disks[1].poke(place, &[0; 4096]);
            disks[2].poke(place, &[0; 4096]);
            match way {
                0 => disks[0]
                    .inject(Fault::new(SimOp::Read, FaultEffect::Error).within(place..place + 512)),
                // It stops working meanwhile.
                _ => disks[0].inject(
                    Fault::new(SimOp::Read, FaultEffect::Vanish).within(place..place + 512),
                ),
            }
            let claimed = claim(
                &bed.pipeline,
                Txg::new(1 << 40),
                Txg::new(1 << 40),
                Txg::new(1 << 40),
                &mut header,
            )
            .await;
            assert!(claimed.is_err(), "way {way}: {claimed:?}");
            assert!(header.claim_txg.is_zero());
            // Unless that is wanted.
            bed.pipeline.log_blocks().give_up_unreadable();
            claim(
                &bed.pipeline,
                Txg::new(1 << 40),
                Txg::new(1 << 40),
                Txg::new(1 << 40),
                &mut header,
            )
            .await
            .expect("ends there");
        });
    }
}

/// An import waits for the txg of the newest block that it claims: not for one that never comes.
#[test]
fn blocks_of_txgs_that_cannot_have_been_end_a_log() {
    for (before, records) in [(1 << 20, 2), (1 << 40, 0)] {
        simulate(async move {
            let mut machine = Machine::new(36, Layout::Single);
            machine.before = Txg::new(before);
            let bed = with_chain(&machine).await;
            for each in ["a", "b"] {
                name(&bed, each).await;
                bed.zil.commit(ObjectId::ZERO).await.expect("commits");
            }
            let mut header = bed.set.zil_header();
            drop(bed);
            // As an import sees it whose pool is at txg 4, in which nothing is allocated.
            machine.sim.crash(PowerCut::LoseUnflushed).await;
            machine.sim.power_on();
            machine.maps.current.lock().clear();
            let pipeline = machine.pipeline().await;
            let first = Txg::new(5);
            let claimed = claim(&pipeline, first, first, first, &mut header)
                .await
                .expect("ends");
            assert_eq!(claimed.records, records);
            assert_eq!(claimed.newest_birth.get() > before, records > 0);
        });
    }
}

/// An import could not read the root of the dataset, and went on without it. What the log has is
/// free since then.
#[test]
fn a_log_that_an_import_passed_over_is_neither_claimed_nor_freed() {
    simulate(async {
        let machine = Machine::new(37, Layout::Single);
        let bed = with_chain(&machine).await;
        for each in ["a", "b"] {
            name(&bed, each).await;
            bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        }
        let mut header = bed.set.zil_header();
        let allocated = || bed.pipeline.allocator().totals().allocated_bytes;
        let before = allocated();
        let (root, later) = (Txg::ZERO, Txg::new(1 << 40));
        free_chain(&bed.pipeline, later, root, &header).await;
        free_until(&bed.pipeline, later, later, root, &header).await;
        let claimed = claim(&bed.pipeline, later, later, root, &mut header).await;
        assert_eq!(claimed.expect("ends"), Claimed::default());
        assert_eq!(allocated(), before);
        assert_eq!(header.flags & ZilHeader::REPLAY_NEEDED, 0);
    });
}

/// What may be somebody else's by then is not freed, and the dataset can be used again.
#[test]
fn a_log_that_an_import_passed_over_is_let_go_of_when_somebody_says_so() {
    simulate(async {
        let machine = Machine::new(38, Layout::Single);
        let bed = with_chain(&machine).await;
        for each in 0..8 {
            name(&bed, &each.to_string()).await;
            bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        }
        machine.sim.crash(PowerCut::KeepAll).await;
        let bed = machine.recover_with(false).await;
        assert!(bed.zil.is_unclaimed());
        let kept = Keep::default();
        assert_eq!(bed.zil.replay(&kept).await.expect("nothing to do"), 0);
        assert!(bed.zil.forbids_changes());
        let discarded = tokio::time::timeout(PATIENCE, bed.zil.discard_unclaimed()).await;
        discarded.expect("the pool goes on").expect("discarded");
        assert!(!bed.zil.is_unclaimed() && !bed.zil.forbids_changes());
        bed.check_space().await;
        // The first one begins a chain, with a txg.
        for later in ["later", "last"] {
            name(&bed, later).await;
            bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        }
        let (_, kept) = crash(&machine, PowerCut::KeepAll).await;
        assert_eq!(kept.0.lock().len(), 1);
    });
}

#[test]
fn what_was_claimed_and_is_damaged_is_not_left_out() {
    simulate(async {
        let machine = Machine::new(33, Layout::Single);
        let bed = with_chain(&machine).await;
        for round in 0..4 {
            name(&bed, &round.to_string()).await;
            bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        }
        let place = place_of(&bed, 3);
        machine.sim.crash(PowerCut::LoseUnflushed).await;
        let bed = machine.recover().await;
        let disk = machine.sim.disk("disk0").expect("there");
        let good = disk.peek(place, 4096);
        disk.poke(place, &[0; 4096]);
        let kept = Keep::default();
        let error = bed.zil.replay(&kept).await.expect_err("records are lost");
        assert!(matches!(error, ZilError::Log { .. }), "{error}");
        disk.poke(place, &good);
        let kept = Keep::default();
        bed.zil.replay(&kept).await.expect("replays");
        assert_eq!(kept.names(), ["0", "1", "2", "3"]);
    });
}

#[test]
fn a_commit_waits_for_the_txg_when_a_device_missed_it() {
    simulate(async {
        let machine = Machine::new(34, Layout::Mirror);
        let bed = with_chain(&machine).await;
        name(&bed, "a").await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        let before = bed.zil.stats().txg_waits;
        let disk = machine.sim.disk("disk1").expect("there");
        disk.inject(
            Fault::new(SimOp::Write, FaultEffect::Error)
                .within(4 << 20..u64::MAX)
                .times(2),
        );
        name(&bed, "b").await;
        let synced = bed.txgs.synced_txg();
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        assert_eq!(bed.zil.stats().txg_waits, before + 1);
        assert!(bed.txgs.synced_txg() > synced);
    });
}

/// Finds that its object is being freed, which takes until the next txg.
struct Freeing<'a>(&'a Bed, Keep);

impl ReplayTarget for Freeing<'_> {
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>> {
        Box::pin(async move {
            if record.kind != LogKind::SetAttr {
                return self.1.replay(record).await;
            }
            let id = u64::from_le_bytes(*record.body.first_chunk().ok_or("too short")?);
            if self.0.set.hold(ObjectId::new(id)).await.is_ok() {
                let tx = self.0.tx().await;
                self.0.set.free(&tx, ObjectId::new(id)).await?;
            }
            Err("it is gone".into())
        })
    }
}

#[test]
fn an_object_may_go_away_between_two_tries_of_a_record() {
    simulate(async {
        let machine = Machine::new(35, Layout::Single);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, 4096).await[0];
        let tx = bed.tx().await;
        bed.set.dirty_root(&tx);
        let body = object.get().to_le_bytes().to_vec();
        bed.zil.record(&tx, raw(LogKind::SetAttr, object, body));
        drop(tx);
        name(&bed, "behind").await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        machine.sim.crash(PowerCut::LoseUnflushed).await;
        let bed = machine.recover().await;
        let target = Freeing(&bed, Keep::default());
        bed.zil.replay(&target).await.expect("replays");
        assert_eq!(target.1.names(), ["behind"]);
    });
}

/// Has a directory of which a block is damaged; notes what else is replayed, kind and first words.
struct Damaged(u64, parking_lot::Mutex<Vec<(LogKind, u64, u64)>>);

impl ReplayTarget for Damaged {
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>> {
        Box::pin(async move {
            let words = record.body.as_chunks::<8>().0;
            let word = |index: usize| words.get(index).map_or(0, |raw| u64::from_le_bytes(*raw));
            let (first, second) = (word(0), word(1));
            if first == self.0 || record.kind == LogKind::Rename && second == self.0 {
                let lost = zio::ZioError::Checksum {
                    block: "a block".into(),
                    device_failed: false,
                };
                return Err(object::ObjectError::Zio(lost).into());
            }
            self.1.lock().push((record.kind, first, second));
            Ok(())
        })
    }
}

#[test]
fn what_meets_damage_is_left_out_with_what_relies_on_it() {
    simulate(async {
        const BAD: u64 = 1000;
        let machine = Machine::new(37, Layout::Mirror);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, 4096).await[0].get();
        // Kind and first words, and whether it is replayed.
        let records = [
            (LogKind::Create, 1002, 1, true),
            (LogKind::Mkdir, BAD, 2000, false),
            // In a directory that was not made.
            (LogKind::Create, 2000, 2001, false),
            // It may be another file that has the name.
            (LogKind::Remove, BAD, 0, false),
            (LogKind::Rename, 1001, BAD, false),
            (LogKind::Remove, 1001, 0, false),
            // Not the old object of that number.
            (LogKind::Create, BAD, object, false),
            (LogKind::SetAttr, object, 0, false),
            (LogKind::Link, 1004, object, false),
            // The number was given again elsewhere.
            (LogKind::Create, 1002, object, true),
            (LogKind::SetAttr, object, 0, true),
            (LogKind::Link, 1005, object, true),
            // The directory that should have got a name may lack it.
            (LogKind::Remove, 1004, 0, false),
            (LogKind::Rename, 1002, 1003, true),
            (LogKind::Remove, 1003, 0, true),
        ];
        for (kind, first, second, _) in records {
            let tx = bed.tx().await;
            bed.set.dirty_root(&tx);
            let mut body = first.to_le_bytes().to_vec();
            body.extend_from_slice(&second.to_le_bytes());
            bed.zil.record(&tx, raw(kind, ObjectId::new(first), body));
        }
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        machine.sim.crash(PowerCut::LoseUnflushed).await;
        let bed = machine.recover().await;
        let target = Damaged(BAD, parking_lot::Mutex::default());
        bed.zil.replay(&target).await.expect("goes on");
        let expected: Vec<_> = records
            .into_iter()
            .filter(|record| record.3)
            .map(|(kind, first, second, _)| (kind, first, second))
            .collect();
        assert_eq!(*target.1.lock(), expected);
        assert!(!bed.zil.needs_replay());
        bed.check_space().await;
    });
}

/// Of the blocks of a batch one cannot be written, and the others are still on their way: who waits
/// is not answered before these have arrived, since their places are free then.
#[test]
fn a_failed_batch_ends_when_nothing_of_it_is_under_way() {
    simulate(async {
        let machine = Machine::new(38, Layout::WithLog);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, 128 << 10).await[0];
        // The chain's next block is on the log device.
        name(&bed, "second").await;
        bed.zil.commit(ObjectId::ZERO).await.expect("commits");
        let disk = machine.sim.disk("disk1").expect("there");
        let first = place_of(&bed, 1);
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Error).within(first..first + 512));
        let data = 4 << 20..(64 << 20) - (512 << 10);
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Stall).within(data));
        write(&bed, object, 0, vec![5; 1 << 20]).await;
        let commit = {
            let zil = bed.zil.clone();
            tokio::spawn(async move { zil.commit(object).await })
        };
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert!(!commit.is_finished(), "blocks of the batch are under way");
        disk.release();
        commit.await.expect("runs").expect("commits by the txg");
        bed.check_space().await;
    });
}
