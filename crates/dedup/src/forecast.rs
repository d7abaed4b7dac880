//! What dedup tables would hold if all blocks of a pool in use were deduplicated (`zdb -S`).
//!
//! Pointers alone are read, of all datasets: blocks with the same checksum, sizes and compression
//! are taken for the same, whichever checksum that is (`zdb_ddt_add_cb`, cmd/zdb/zdb.c).
//!
//! # How it goes
//! A pool in use changes while it is walked. So it is walked in turns, in syncing context, where
//! nothing that is reached from the present roots can be overwritten, as scrubs are (crate `scan`).
//! The first turn notes all datasets and snapshots, each with the snapshot before it, from which on
//! it is walked (`traverse_pool`, module/zfs/dmu_traverse.c): so each block is met once. What is
//! born after that turn does not count. What is destroyed meanwhile may or may not have counted.
//!
//! Turns come as long as somebody waits for them ([`Forecasting`]), who asks for each. Whoever
//! waits for a transaction group waits 200 ms longer at most.
//!
//! # Sampling
//! Blocks are told apart by a hash. When there are more different ones than may be remembered, only
//! those are kept whose hash begins with another zero, of which all references count (distinct
//! sampling, Gibbons, VLDB 2001): so blocks are sampled evenly, however often each is referenced,
//! and memory is bounded. References are counted whole in any case. The ratio is that of sums over
//! the sample, and its error that of a ratio estimator for a sample in which each block is with the
//! same chance (Cochran, Sampling Techniques, section 2.11).
//!
//! # State
//! In memory only: a crash, or an export, leaves nothing.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use device::{BoxFuture, Tasks};
use format::{
    BlockPointer, Bookmark, Checksum, DdtStat, DslDatasetPhys, Endian, ObjectId, ObjectType,
    ObjsetId, Txg,
};
use object::{Leads, Met, ObjectError, ObjectSet, Traverse, Traversed, Visitor, traverse};
use parking_lot::Mutex;
use spa::Pass;
use tokio::sync::watch;
use vdev::Priority;
use zio::pipeline::{CacheUse, Pipeline, may_fail};
use zio::{ReadContext, TxgManager, ZioError};

use crate::status::BUCKETS;

/// A turn ends after this while somebody waits for the transaction group, or much is dirty.
const TURN_WAITED_FOR: Duration = Duration::from_millis(200);
/// A turn ends after this once somebody has used the next transaction group.
const TURN: Duration = Duration::from_secs(1);
/// A turn ends after this in any case.
const TURN_MAX: Duration = Duration::from_secs(5);
/// So many standard errors are to each side of what 95 of 100 samples tell.
const CONFIDENCE: f64 = 1.96;

/// What a forecast has found.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecasted {
    /// Sums over all blocks, by powers of two of references; estimated where they are sampled.
    pub histogram: Vec<DdtStat>,
    /// Part of the different blocks that was looked at, 0 to 1: below 1, `histogram` is estimated.
    pub sampled: f64,
    /// How many times as much is referenced as would be allocated; 1 where there are no blocks.
    pub ratio: f64,
    /// How far off that may be: within it are 95 of 100 samples.
    pub ratio_error: f64,
    /// Blocks of pointers that could not be read, with all that they lead to.
    pub unreadable: u64,
}

/// The references to one block.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    references: u64,
    lsize_bytes: u64,
    psize_bytes: u64,
    /// Of all references together: copies of a block need not take the same.
    dsize_bytes: u64,
}

impl Block {
    fn stat(&self) -> DdtStat {
        let times = |bytes: u64| bytes.saturating_mul(self.references);
        DdtStat {
            blocks: 1,
            lsize_bytes: self.lsize_bytes,
            psize_bytes: self.psize_bytes,
            dsize_bytes: self.dsize_bytes / self.references.max(1),
            referenced_blocks: self.references,
            referenced_lsize_bytes: times(self.lsize_bytes),
            referenced_psize_bytes: times(self.psize_bytes),
            referenced_dsize_bytes: self.dsize_bytes,
        }
    }
}

/// Different blocks, as many as may be remembered.
#[derive(Debug, Default)]
struct Sample {
    /// By hash, of which the first `zeros` bits are zero.
    blocks: HashMap<u64, Block>,
    zeros: u32,
    blocks_max: usize,
    /// References to all blocks.
    references: u64,
}

impl Sample {
    fn new(blocks_max: usize) -> Self {
        Self {
            blocks_max: blocks_max.max(2),
            ..Self::default()
        }
    }

    fn meet(&mut self, hash: u64, [lsize_bytes, psize_bytes, dsize_bytes]: [u64; 3]) {
        self.references += 1;
        if hash.leading_zeros() < self.zeros {
            return;
        }
        let block = self.blocks.entry(hash).or_default();
        block.references += 1;
        (block.lsize_bytes, block.psize_bytes) = (lsize_bytes, psize_bytes);
        block.dsize_bytes = block.dsize_bytes.saturating_add(dsize_bytes);
        while self.blocks.len() > self.blocks_max {
            self.zeros += 1;
            let zeros = self.zeros;
            self.blocks.retain(|hash, _| hash.leading_zeros() >= zeros);
        }
    }

    fn result(&self, unreadable: u64) -> Forecasted {
        let stats = || self.blocks.values().map(Block::stat);
        let sum = |of: fn(&DdtStat) -> u64| stats().map(|stat| of(&stat) as f64).sum::<f64>();
        let allocated = sum(|stat| stat.dsize_bytes);
        let referenced = sum(|stat| stat.referenced_dsize_bytes);
        let ratio = match allocated > 0.0 {
            true => referenced / allocated,
            false => 1.0,
        };
        let sampled = 0.5f64.powi(self.zeros as i32);
        let off = |stat: DdtStat| {
            let off = stat.referenced_dsize_bytes as f64 - ratio * stat.dsize_bytes as f64;
            off * off
        };
        let deviation = (stats().map(off).sum::<f64>() * (1.0 - sampled)).sqrt();
        let ratio_error = match allocated > 0.0 {
            true => CONFIDENCE * deviation / allocated,
            false => 0.0,
        };
        // Of all references we know how many there are.
        let known = sum(|stat| stat.referenced_blocks);
        let scale = match known > 0.0 && self.zeros > 0 {
            true => self.references as f64 / known,
            false => 1.0,
        };
        let mut histogram = vec![DdtStat::default(); BUCKETS];
        for stat in stats() {
            histogram[stat.referenced_blocks.max(1).ilog2() as usize].add(&stat);
        }
        for stat in &mut histogram {
            *stat = scaled(stat, scale);
        }
        Forecasted {
            histogram,
            sampled,
            ratio,
            ratio_error,
            unreadable,
        }
    }
}

fn scaled(stat: &DdtStat, by: f64) -> DdtStat {
    let times = |value: u64| (value as f64 * by).round() as u64;
    DdtStat {
        blocks: times(stat.blocks),
        lsize_bytes: times(stat.lsize_bytes),
        psize_bytes: times(stat.psize_bytes),
        dsize_bytes: times(stat.dsize_bytes),
        referenced_blocks: times(stat.referenced_blocks),
        referenced_lsize_bytes: times(stat.referenced_lsize_bytes),
        referenced_psize_bytes: times(stat.referenced_psize_bytes),
        referenced_dsize_bytes: times(stat.referenced_dsize_bytes),
    }
}

/// What blocks that are the same have in common (`ddt_key_fill`, module/zfs/ddt.c).
fn hash_of(pointer: &BlockPointer) -> u64 {
    let mut hasher = DefaultHasher::new();
    let sizes = (pointer.lsize_bytes(), pointer.psize_bytes());
    let how = (pointer.compression().code(), pointer.uses_crypt());
    (pointer.checksum(), sizes, how).hash(&mut hasher);
    hasher.finish()
}

/// A dataset or snapshot that is still to be walked.
#[derive(Debug, Clone, Copy)]
struct Place {
    dataset: ObjectId,
    /// What was born until then belongs to the snapshot before it.
    after: Txg,
}

/// How far it is.
#[derive(Debug, Default)]
struct Position {
    /// `None` until the first turn.
    places: Option<VecDeque<Place>>,
    /// Where to go on in the first of them.
    bookmark: Option<Bookmark>,
    /// What was born later does not count.
    until: Txg,
}

/// What a turn left: why there will be none after it, an empty reason where all was walked.
type Ended = Option<String>;

struct Run {
    sample: Mutex<Sample>,
    position: Mutex<Position>,
    met_bytes: AtomicU64,
    unreadable: AtomicU64,
    turned: watch::Sender<Ended>,
}

/// The forecast that is under way in a pool, if one is.
#[derive(Default)]
pub struct Forecast {
    run: Mutex<Option<Arc<Run>>>,
}

/// A forecast under way, for whoever waits for it; being dropped ends it.
pub struct Forecasting {
    forecast: Arc<Forecast>,
    run: Arc<Run>,
    txgs: Arc<TxgManager>,
    turned: watch::Receiver<Ended>,
}

impl Forecast {
    /// Begins one that remembers so many different blocks, up to 100 bytes each; `None` while
    /// another one is under way.
    pub fn begin(
        self: &Arc<Self>,
        txgs: &Arc<TxgManager>,
        blocks_max: usize,
    ) -> Option<Forecasting> {
        let mut run = self.run.lock();
        if run.is_some() {
            return None;
        }
        let (turned, receiver) = watch::channel(None);
        let new = Arc::new(Run {
            sample: Mutex::new(Sample::new(blocks_max)),
            position: Mutex::default(),
            met_bytes: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            turned,
        });
        *run = Some(new.clone());
        Some(Forecasting {
            forecast: self.clone(),
            run: new,
            txgs: txgs.clone(),
            turned: receiver,
        })
    }

    /// The pool is closed: whoever waits hears so.
    pub fn closed(&self) {
        if let Some(run) = self.run.lock().clone() {
            run.turned.send_modify(|ended| {
                ended.get_or_insert_with(|| "the pool was closed; import it and try again".into());
            });
        }
    }

    /// Its turn in a transaction group. Nothing that fails here holds that up.
    pub(crate) async fn turn(&self, pass: &Pass<'_>) {
        let Some(run) = self.run.lock().clone() else {
            return;
        };
        if run.turned.borrow().is_some() {
            return;
        }
        let ended = may_fail(run.work(pass)).await;
        // Also a turn that leaves more to do is told.
        run.turned.send_replace(ended);
    }
}

impl Forecasting {
    /// Asks for the next turn and waits for its end. Whether all was walked then.
    ///
    /// # Errors
    /// The datasets could not be found, or the pool is closed: a sentence says so.
    pub async fn next(&mut self) -> Result<bool, String> {
        self.txgs.go_on();
        // Its sender is there as long as this is.
        let _ = self.turned.changed().await;
        match &*self.turned.borrow_and_update() {
            None => Ok(false),
            Some(why) if why.is_empty() => Ok(true),
            Some(why) => Err(why.clone()),
        }
    }

    /// Allocated bytes of the blocks that were met.
    pub fn met_bytes(&self) -> u64 {
        self.run.met_bytes.load(Ordering::Relaxed)
    }

    /// What was found by now.
    pub fn result(&self) -> Forecasted {
        let unreadable = self.run.unreadable.load(Ordering::Relaxed);
        self.run.sample.lock().result(unreadable)
    }
}

impl Drop for Forecasting {
    fn drop(&mut self) {
        self.forecast.run.lock().take();
    }
}

/// All datasets and snapshots, each with the snapshot before it.
async fn places(mos: &Arc<ObjectSet>) -> Result<VecDeque<Place>, ObjectError> {
    let (mut out, mut after) = (VecDeque::new(), None);
    while let Some(id) = mos.next_object(after).await? {
        after = Some(id);
        if let Some(phys) = dataset(mos, id).await? {
            out.push_back(Place {
                dataset: id,
                after: phys.previous_snapshot_txg,
            });
        }
    }
    Ok(out)
}

/// A dataset or snapshot, if this is one.
async fn dataset(
    mos: &Arc<ObjectSet>,
    id: ObjectId,
) -> Result<Option<DslDatasetPhys>, ObjectError> {
    let object = match mos.hold(id).await {
        Ok(object) => object,
        Err(ObjectError::NoSuchObject { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    if object.info().bonus_type != ObjectType::DSL_DATASET {
        return Ok(None);
    }
    Ok(DslDatasetPhys::decode(&object.bonus(), Endian::Little).ok())
}

/// Says when a turn is over.
type IsOver = Arc<dyn Fn() -> bool + Send + Sync>;

fn turn_of(pass: &Pass<'_>) -> IsOver {
    let clock = pass.spa.world.clock.clone();
    let (txgs, pipeline) = (pass.spa.txgs.clone(), pass.spa.pipeline.clone());
    let (txg, start_ns) = (pass.ctx.txg, clock.monotonic_ns());
    Arc::new(move || {
        let passed = Duration::from_nanos(clock.monotonic_ns().saturating_sub(start_ns));
        pipeline.suspension().error().is_some()
            || passed >= TURN_WAITED_FOR && (txgs.is_waited_for(txg) || txgs.is_much_dirty())
            || passed >= TURN && txgs.is_open_used()
            || passed >= TURN_MAX
    })
}

impl Run {
    /// Walks until the turn is over. Why no more turn is needed, if none is.
    async fn work(self: &Arc<Self>, pass: &Pass<'_>) -> Ended {
        let (mos, pipeline) = (pass.spa.dsl.mos(), &pass.spa.pipeline);
        if self.position.lock().places.is_none() {
            match places(mos).await {
                Ok(found) => {
                    let mut position = self.position.lock();
                    (position.places, position.until) = (Some(found), pass.ctx.txg);
                }
                Err(error) => return Some(format!("its datasets cannot be listed: {error}")),
            }
        }
        let tasks = pipeline.tasks().group();
        let is_over = turn_of(pass);
        while !is_over() && !tasks.is_cancelled() {
            let (place, from, until) = {
                let position = self.position.lock();
                let place = position.places.as_ref().and_then(VecDeque::front).copied();
                (place, position.bookmark, position.until)
            };
            let Some(place) = place else {
                return Some(String::new());
            };
            let walk = Arc::new(Walk {
                run: self.clone(),
                pipeline: pipeline.clone(),
                until,
                is_over: is_over.clone(),
            });
            let left = self.walk(mos, place, from, &walk, &tasks).await;
            let mut position = self.position.lock();
            position.bookmark = left;
            if let (None, Some(places)) = (left, &mut position.places) {
                places.pop_front();
            }
        }
        None
    }

    /// Walks a dataset; where to go on, if the turn is over first.
    async fn walk(
        &self,
        mos: &Arc<ObjectSet>,
        place: Place,
        from: Option<Bookmark>,
        walk: &Arc<Walk>,
        tasks: &Tasks,
    ) -> Option<Bookmark> {
        let phys = match dataset(mos, place.dataset).await {
            Ok(phys) => phys?,
            Err(_) => {
                self.unreadable.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        };
        let what = Traverse {
            root: phys.block,
            objset: ObjsetId::new(place.dataset.get()),
            after: place.after,
            from,
        };
        match traverse(&what, tasks, walk).await {
            Traversed::Whole => None,
            Traversed::Until(bookmark) => Some(bookmark),
        }
    }
}

/// Walks one object set.
struct Walk {
    run: Arc<Run>,
    pipeline: Arc<Pipeline>,
    until: Txg,
    is_over: IsOver,
}

/// Whether a block would be in a dedup table (`zdb_ddt_add_cb`).
fn counts(pointer: &BlockPointer) -> bool {
    !pointer.is_embedded() && !pointer.is_metadata() && pointer.checksum_kind() != Checksum::Off
}

impl Visitor for Walk {
    fn ends_before(&self, _bookmark: &Bookmark) -> bool {
        (self.is_over)()
    }

    fn meet(&self, met: &Met<'_>) -> bool {
        let pointer = met.pointer;
        if met.is_again {
            return true;
        }
        let bytes = pointer.asize_bytes();
        self.run.met_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Blocks that lead to others may be younger than these.
        if met.leads == Leads::Nowhere && pointer.logical_birth() <= self.until && counts(pointer) {
            let dsize_bytes = self.pipeline.dsize_bytes(pointer);
            let sizes = [pointer.lsize_bytes(), pointer.psize_bytes(), dsize_bytes];
            self.run.sample.lock().meet(hash_of(pointer), sizes);
        }
        true
    }

    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        Box::pin(async move {
            let context = ReadContext {
                // Pointers are not encrypted.
                without_key: true,
                priority: Priority::Scrub,
                cache: CacheUse::NoFill,
                ..ReadContext::new(bookmark)
            };
            self.pipeline.read(&pointer, &context).await
        })
    }

    fn entered(&self, _met: &Met<'_>, result: Result<(), &ZioError>) {
        if result.is_err() {
            self.run.unreadable.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn damaged(&self, _bookmark: &Bookmark, _why: &str) {
        self.run.unreadable.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u64; 3] = [128 << 10, 64 << 10, 96 << 10];

    /// Blocks 0 to `count`, of which every fourth is referenced five times, by their hashes.
    fn sample(count: u64, blocks_max: usize) -> Sample {
        let mut sample = Sample::new(blocks_max);
        for block in 0..count {
            let mut hasher = DefaultHasher::new();
            block.hash(&mut hasher);
            let references = if block % 4 == 0 { 5 } else { 1 };
            for _ in 0..references {
                sample.meet(hasher.finish(), SIZES);
            }
        }
        sample
    }

    /// All that is remembered is exact.
    #[test]
    fn few_blocks_are_counted_exactly() {
        let found = sample(1000, 1000).result(3);
        assert_eq!(
            (found.sampled, found.ratio_error, found.unreadable),
            (1.0, 0.0, 3)
        );
        // 2,000 references to 1,000 blocks.
        assert!((found.ratio - 2.0).abs() < 1e-12, "{}", found.ratio);
        let (once, often) = (&found.histogram[0], &found.histogram[2]);
        assert_eq!((once.blocks, once.referenced_blocks), (750, 750));
        assert_eq!((often.blocks, often.referenced_blocks), (250, 1250));
        assert_eq!(often.dsize_bytes, 250 * SIZES[2]);
        assert_eq!(often.referenced_lsize_bytes, 1250 * SIZES[0]);
        let others = found.histogram.iter().map(|stat| stat.blocks);
        assert_eq!(others.sum::<u64>(), 1000);
        let nothing = Sample::new(10).result(0);
        assert_eq!((nothing.ratio, nothing.ratio_error), (1.0, 0.0));
    }

    /// Goal: of more blocks than can be remembered, an even sample is kept, and what is told of
    /// them is as close to the truth as the error says. Method: 200,000 blocks of which 2,000 are
    /// remembered, beside all of them; hashes are always the same, and so is what they tell.
    #[test]
    fn many_blocks_are_sampled_evenly() {
        let sample = sample(200_000, 2000);
        assert!((1000..=2000).contains(&sample.blocks.len()));
        assert_eq!(sample.references, 400_000);
        let found = sample.result(0);
        assert!(found.sampled < 0.01 && found.ratio_error > 0.0);
        let off = (found.ratio - 2.0).abs();
        // Twice the error: one in 20 samples is beyond it, one in 10,000 beyond twice.
        assert!(off < 2.0 * found.ratio_error, "{off} {}", found.ratio_error);
        assert!(found.ratio_error < 0.25, "{}", found.ratio_error);
        let blocks: u64 = found.histogram.iter().map(|stat| stat.blocks).sum();
        assert!((160_000..240_000).contains(&blocks), "{blocks}");
        let all = found.histogram.iter().map(|stat| stat.referenced_blocks);
        assert!(all.sum::<u64>().abs_diff(400_000) < 10);
    }
}
