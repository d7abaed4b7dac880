//! Power cuts: under seeds, with workers that have a shared journal of names and an object each;
//! and at each operation in turn, with one committer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Latency, PowerCut, SimOp};
use format::{LogKind, ObjectId};
use parking_lot::Mutex;

use super::bed::{Bed, Layout, Machine, simulate};
use super::{Keep, raw, with_chain, write};
use crate::{LogRecord, ReplayError, ReplayRecord, ReplayTarget};

const OBJECT_BYTES: usize = 48 << 10;
const WORKERS: usize = 5;

/// A write: offset, data.
type Write = (usize, Vec<u8>);

/// What was done and what was acknowledged, as the outside world remembers.
#[derive(Default)]
struct Told {
    /// Names in the journal: begun, and known to be durable.
    journal: (u64, u64),
    /// Writes by object: all, and how many are known to be durable.
    objects: BTreeMap<u64, (Vec<Write>, usize)>,
}

struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % below.max(1)
    }
}

/// Appends to the journal: number `n` at place `n`.
async fn append(bed: &Bed, journal: ObjectId, number: u64) {
    let tx = bed.tx().await;
    let held = bed.set.hold(journal).await.expect("exists");
    let word = Bytes::from((number + 1).to_le_bytes().to_vec());
    held.write(&tx, number * 8, word).await.expect("writes");
    let body = number.to_le_bytes().to_vec();
    bed.zil.record(&tx, raw(LogKind::Create, journal, body));
}

async fn work(
    bed: Bed,
    told: Arc<Mutex<Told>>,
    gate: Arc<tokio::sync::Mutex<()>>,
    journal: ObjectId,
    object: ObjectId,
    seed: u64,
) {
    let mut dice = Dice(seed);
    let held = bed.set.hold(object).await.expect("exists");
    for round in 0..60u64 {
        if dice.next(3) == 0 {
            let _order = gate.lock().await;
            let number = told.lock().journal.0;
            told.lock().journal.0 += 1;
            append(&bed, journal, number).await;
        } else {
            let length = match dice.next(4) {
                0 => 4096,
                1 => 1 + dice.next(200) as usize,
                2 => 1 + dice.next(9000) as usize,
                _ => 20_000 + dice.next(20_000) as usize,
            };
            let offset = match dice.next(2) {
                0 => dice.next((OBJECT_BYTES - length) as u64 / 4096 + 1) as usize * 4096,
                _ => dice.next((OBJECT_BYTES - length) as u64) as usize,
            };
            let offset = offset.min(OBJECT_BYTES - length);
            let fill = (round * 7 + dice.next(250)) as u8;
            let data: Vec<u8> = (0..length).map(|at| fill ^ (at / 3) as u8).collect();
            let entry = (offset, data.clone());
            told.lock()
                .objects
                .get_mut(&object.get())
                .expect("known")
                .0
                .push(entry);
            let tx = bed.tx().await;
            held.write(&tx, offset as u64, data.into())
                .await
                .expect("writes");
            let record = LogRecord::write(object, false, offset as u64, length as u64);
            bed.zil.record(&tx, record);
        }
        if dice.next(3) > 0 {
            continue;
        }
        let all = dice.next(4) == 0;
        // A name that is still being appended may come later.
        let (names, writes) = {
            let _order = gate.lock().await;
            let told = told.lock();
            let writes = told.objects[&object.get()].0.len();
            (told.journal.0, writes)
        };
        let target = if all { ObjectId::ZERO } else { object };
        if bed.zil.commit(target).await.is_err() {
            return;
        }
        let mut told = told.lock();
        told.journal.1 = told.journal.1.max(names);
        let entry = told.objects.get_mut(&object.get()).expect("known");
        entry.1 = entry.1.max(writes);
    }
}

/// Replays into the object set, and finds names that are done twice or are missing.
struct Again {
    bed: Bed,
    journal: ObjectId,
}

impl ReplayTarget for Again {
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>> {
        Box::pin(async move {
            let word = |index: usize| {
                let raw = record.body[index * 8..].first_chunk::<8>().expect("a word");
                u64::from_le_bytes(*raw)
            };
            if record.kind == LogKind::Create {
                let length = names(&self.bed, self.journal).await;
                if length != word(0) {
                    return Err(format!("name {} after {length} names", word(0)).into());
                }
                append(&self.bed, self.journal, word(0)).await;
                return Ok(());
            }
            let (object, offset, length) = (ObjectId::new(word(0)), word(1), word(2));
            let data = record.body.slice(160..160 + length as usize);
            let held = self.bed.set.hold(object).await?;
            // In two transactions, as a filesystem may.
            let middle = data.len() / 2;
            for (at, part) in [(0, data.slice(..middle)), (middle, data.slice(middle..))] {
                let tx = self.bed.txgs.assign(0).await?;
                held.write(&tx, offset + at as u64, part.clone()).await?;
                let record = LogRecord::write(object, false, offset + at as u64, part.len() as u64);
                self.bed.zil.record(&tx, record);
            }
            Ok(())
        })
    }
}

async fn names(bed: &Bed, journal: ObjectId) -> u64 {
    let data = bed.read(journal, 0, 8 * 1024).await;
    let mut count = 0;
    for (index, word) in data.as_chunks::<8>().0.iter().enumerate() {
        match u64::from_le_bytes(*word) {
            0 => break,
            number => assert_eq!(number, index as u64 + 1, "the journal is in order"),
        }
        count += 1;
    }
    let rest = &data[count as usize * 8..];
    assert!(
        rest.iter().all(|byte| *byte == 0),
        "the journal has no gaps"
    );
    count
}

/// Whether `found` is what the object was after at least `known` of its writes; a write that was
/// not acknowledged may be there in part, from its beginning on.
fn is_explained(found: &[u8], writes: &[Write], known: usize) -> bool {
    let mut state = vec![0; OBJECT_BYTES];
    for (index, (offset, data)) in writes.iter().enumerate() {
        if index >= known {
            if found == state {
                return true;
            }
            let range = *offset..offset + data.len();
            let done = found[range.clone()]
                .iter()
                .zip(data)
                .take_while(|(a, b)| a == b)
                .count();
            let mut partly = state.clone();
            partly[*offset..offset + done].copy_from_slice(&data[..done]);
            if found == partly {
                return true;
            }
        }
        state[*offset..offset + data.len()].copy_from_slice(data);
    }
    found == state
}

async fn check(bed: &Bed, told: &Told, journal: ObjectId, what: &str) {
    let names = names(bed, journal).await;
    let (begun, known) = told.journal;
    assert!(
        (known..=begun).contains(&names),
        "{what}: {names} names of {begun}, {known} acknowledged"
    );
    for (object, (writes, known)) in &told.objects {
        let found = bed.read(ObjectId::new(*object), 0, OBJECT_BYTES).await;
        assert!(
            is_explained(&found, writes, *known),
            "{what}: object {object} after {known} acknowledged writes of {}",
            writes.len()
        );
    }
}

/// One run: work, cut, recover (perhaps with more cuts), compare.
fn run(seed: u64) {
    let what = format!("seed {seed}");
    simulate(async {
        let layouts = [
            Layout::Single,
            Layout::Mirror,
            Layout::Raidz,
            Layout::WithLog,
        ];
        let machine = Machine::new(seed, layouts[(seed % 4) as usize]);
        machine.set_durable_writes((seed / 4).is_multiple_of(2));
        let mut dice = Dice(seed ^ 0xabcdef);
        let bed = machine.create().await;
        let objects = bed.objects(1 + WORKERS, 4096).await;
        let (journal, objects) = (objects[0], &objects[1..]);
        let told = Arc::new(Mutex::new(Told::default()));
        for object in objects {
            told.lock().objects.insert(object.get(), Default::default());
        }
        if dice.next(2) == 0 {
            for disk in ["disk0", "disk1", "disk2"] {
                let disk = machine.sim.disk(disk).expect("there");
                disk.set_latency(Latency::default());
            }
        }
        bed.pause_ms.store(dice.next(12), Ordering::Relaxed);
        let gate = Arc::new(tokio::sync::Mutex::new(()));
        let op = if dice.next(3) == 0 {
            SimOp::Flush
        } else {
            SimOp::Write
        };
        bed.cut_at(op, 1 + dice.next(160), PowerCut::Random);
        let mut workers = Vec::new();
        for object in objects {
            let worker = work(
                bed.clone(),
                told.clone(),
                gate.clone(),
                journal,
                *object,
                dice.next(u64::MAX),
            );
            workers.push(tokio::spawn(worker));
        }
        // Txgs go on meanwhile.
        let txgs = bed.txgs.clone();
        let often = std::time::Duration::from_millis(5 + dice.next(50));
        let ticker = tokio::spawn(async move {
            loop {
                tokio::time::sleep(often).await;
                txgs.kick();
            }
        });
        tokio::select! {
            biased;
            () = machine.sim.power_lost() => {}
            _ = futures::future::join_all(workers.iter_mut()) => {
                machine.sim.power_cut(PowerCut::Random);
            }
        }
        // What was told before the power went counts, nothing after it.
        for worker in &workers {
            worker.abort();
        }
        ticker.abort();
        let told = std::mem::take(&mut *told.lock());
        drop(bed);
        let mut tries = 0;
        loop {
            machine.sim.crash(PowerCut::Random).await;
            let bed = machine.recover().await;
            tries += 1;
            let target = Again {
                bed: bed.clone(),
                journal,
            };
            if tries < 4 && dice.next(2) == 0 {
                bed.cut_at(SimOp::Write, 1 + dice.next(40), PowerCut::Random);
                let often = bed.txgs.clone();
                let interrupted = async {
                    loop {
                        tokio::task::yield_now().await;
                        often.kick();
                        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    }
                };
                tokio::select! {
                    biased;
                    () = machine.sim.power_lost() => continue,
                    () = interrupted => {}
                    done = bed.zil.replay(&target) => match done {
                        Ok(_) => machine.sim.cancel_power_cut(),
                        Err(_) if !machine.sim.is_powered() => continue,
                        Err(error) => panic!("{what}: {error}"),
                    }
                }
            } else {
                bed.zil
                    .replay(&target)
                    .await
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            if !machine.sim.is_powered() {
                continue;
            }
            check(&bed, &told, journal, &what).await;
            bed.check_space().await;
            break;
        }
    });
}

/// Rounds of [`commit_rounds`], and the place of each in the object.
const ROUNDS: u64 = 6;
const ROUND_BYTES: u64 = 160 << 10;

/// What is written in a round: in a block of the log, or in several.
fn round_data(round: u64) -> Vec<u8> {
    let length = if round % 3 == 2 { 150_000 } else { 3000 };
    vec![round as u8 + 1; length]
}

/// Writes and commits, round after round, with a txg in between that nobody waits for.
async fn commit_rounds(bed: Bed, object: ObjectId, acknowledged: Arc<AtomicU64>) {
    for round in 0..ROUNDS {
        write(&bed, object, round * ROUND_BYTES, round_data(round)).await;
        if bed.zil.commit(object).await.is_err() {
            return;
        }
        acknowledged.store(round + 1, Ordering::Relaxed);
        if round == 3 {
            bed.txgs.kick();
        }
    }
}

/// Cuts the power at one operation of a story, and looks what is there after that. Whether the
/// story was as long as that.
fn cut_at(layout: Layout, through: bool, op: SimOp, count: u64, how: PowerCut) -> bool {
    let what = format!("{layout:?}, through: {through}, {op:?} {count}, {how:?}");
    simulate(async {
        let machine = Machine::new(count, layout);
        machine.set_durable_writes(through);
        let bed = with_chain(&machine).await;
        let object = bed.objects(1, 4096).await[0];
        let acknowledged = Arc::new(AtomicU64::new(0));
        bed.cut_at(op, count, how);
        let mut story = tokio::spawn(commit_rounds(bed.clone(), object, acknowledged.clone()));
        let was_cut = tokio::select! {
            biased;
            () = machine.sim.power_lost() => true,
            _ = &mut story => false,
        };
        story.abort();
        let acknowledged = acknowledged.load(Ordering::Relaxed);
        drop(bed);
        machine.sim.crash(how).await;
        let bed = machine.recover().await;
        let kept = Keep::default();
        bed.zil.replay(&kept).await.expect("replays");
        let size = (ROUNDS * ROUND_BYTES) as usize;
        let mut found = bed.read(object, 0, size).await.to_vec();
        for (_, offset, data) in kept.writes() {
            found[offset as usize..][..data.len()].copy_from_slice(&data);
        }
        let mut is_over = false;
        for (round, found) in (0..).zip(found.chunks(ROUND_BYTES as usize)) {
            let wanted = round_data(round);
            let is_whole = found[..wanted.len()] == wanted;
            let is_nothing = found.iter().all(|byte| *byte == 0);
            assert!(is_whole || round >= acknowledged, "{what}: {round} is lost");
            assert!(is_nothing || !is_over, "{what}: {round} is there");
            is_over |= !is_whole;
        }
        assert!(was_cut || acknowledged == ROUNDS, "{what}");
        bed.check_space().await;
        was_cut
    })
}

/// Goal: a commit that was answered outlives a cut at any write or flush after it, also where disks
/// make durable only the very block that is to be; and what comes behind a gap is not taken for
/// written. Method: one committer, with batches of one block and of several and a txg in between,
/// cut at each of its operations in turn.
#[test]
fn a_cut_at_any_operation_leaves_what_was_acknowledged_and_no_gap() {
    let layouts = [
        (Layout::Single, true),
        (Layout::Mirror, true),
        (Layout::Raidz, true),
        (Layout::WithLog, true),
        (Layout::WithLog, false),
    ];
    for (layout, through) in layouts {
        for op in [SimOp::Write, SimOp::Flush] {
            for how in [PowerCut::LoseUnflushed, PowerCut::Shuffle] {
                let mut counts = 1..;
                while counts
                    .next()
                    .is_some_and(|count| cut_at(layout, through, op, count, how))
                {}
                assert!(counts.start > 2, "the story has such operations");
            }
        }
    }
}

#[test]
fn power_cuts_lose_nothing_that_was_acknowledged() {
    let (first, count) = match std::env::var("MILLPOND_SEEDS") {
        Ok(text) => {
            let (first, count) = text.split_once('+').expect("FIRST+COUNT");
            (
                first.parse().expect("a number"),
                count.parse().expect("a number"),
            )
        }
        Err(_) => (0, 60),
    };
    for seed in first..first + count {
        run(seed);
    }
}
