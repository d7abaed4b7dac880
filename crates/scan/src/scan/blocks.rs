//! Meeting blocks and reading them: what scans of pools in use and of read-only imports share.
//!
//! [`Blocks`] is told of every block by a traversal. Those that lead to others it reads as a scan
//! does when they are met; the others wait in the [`Queue`] until [`Blocks::issue`] reads them, in
//! the order of the devices: as many of each top-level vdev as its [`Lanes`] has room for, each in
//! a task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use device::{BoxFuture, Tasks};
use format::{BlockPointer, Bookmark, Txg, VdevId};
use object::{Leads, Met};
use parking_lot::Mutex;
use spa::errors::ErrorLog;
use tokio::sync::OwnedSemaphorePermit;
use vdev::{Priority, RangeSet, ScanRead};
use zio::{CacheUse, Pipeline, ReadContext, ZioError};

use super::ScrubNumbers;
use super::cost::Costs;
use super::lane::Lanes;
use super::queue::{Found, Queue};
use crate::Scans;

/// Ranges in which blocks are that were looked at again, at most, about 50 bytes each.
const SEEN_RANGES_MAX: usize = 256 << 10;

/// Which blocks a scan reads, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) read: ScanRead,
    /// Blocks of txgs after this one.
    pub(super) after: Txg,
    /// Blocks of txgs before this one (`scn_max_txg`, which `dsl_scan_scrub_cb` leaves out).
    pub(super) before: Txg,
    /// Blocks of txgs up to this one: later ones come with another dataset (`scn_cur_max_txg`).
    pub(super) until: Txg,
    /// They are looked at once more: see `again`.
    pub(super) is_again: bool,
}

/// Counters; blocks and bytes by pointer.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) found_blocks: AtomicU64,
    pub(super) found_bytes: AtomicU64,
    pub(super) embedded_blocks: AtomicU64,
    pub(super) verified_blocks: AtomicU64,
    pub(super) verified_bytes: AtomicU64,
    pub(super) shared_blocks: AtomicU64,
    pub(super) shared_bytes: AtomicU64,
    pub(super) skipped_bytes: AtomicU64,
    pub(super) datasets: AtomicU64,
    pub(super) errors: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

pub(super) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Numbers {
    pub(super) fn values(&self) -> ScrubNumbers {
        ScrubNumbers {
            found_blocks: get(&self.found_blocks),
            found_bytes: get(&self.found_bytes),
            embedded_blocks: get(&self.embedded_blocks),
            verified_blocks: get(&self.verified_blocks),
            verified_bytes: get(&self.verified_bytes),
            shared_blocks: get(&self.shared_blocks),
            shared_bytes: get(&self.shared_bytes),
            datasets: get(&self.datasets),
            errors: get(&self.errors),
        }
    }
}

/// The blocks of a scan.
pub(super) struct Blocks {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) errors: Arc<ErrorLog>,
    pub(super) queue: Queue,
    /// Those of the datasets that are visited again.
    pub(super) again: Arc<Queue>,
    /// Where the blocks are that were in there.
    again_seen: Mutex<Seen>,
    pub(super) numbers: Numbers,
    /// What it reads of each object set.
    pub(super) costs: Costs,
    /// Txgs of which a block could not be read, or may not have been met.
    pub(super) lost_txgs: Mutex<RangeSet>,
    lanes: Lanes,
}

impl Blocks {
    pub(super) fn new(pipeline: Arc<Pipeline>, errors: Arc<ErrorLog>) -> Arc<Self> {
        Arc::new(Blocks {
            pipeline,
            errors,
            queue: Queue::default(),
            again: Arc::default(),
            again_seen: Mutex::default(),
            numbers: Numbers::default(),
            costs: Costs::default(),
            lost_txgs: Mutex::default(),
            lanes: Lanes::default(),
        })
    }

    fn is_suspended(&self) -> bool {
        self.pipeline.suspension().error().is_some()
    }

    /// Whether a block is to be read (`dsl_scan_scrub_cb`, `dsl_scan_need_resilver`).
    fn is_wanted(&self, pointer: &BlockPointer, wanted: &Wanted) -> bool {
        let birth = pointer.physical_birth();
        let has_late_copies = has_late_copies(pointer);
        let latest = match has_late_copies {
            true => pointer.logical_birth(),
            false => birth,
        };
        if pointer.is_embedded() || latest <= wanted.after || birth >= wanted.before {
            return false;
        }
        if wanted.read != ScanRead::Resilver || has_late_copies {
            return true;
        }
        // Members of gang blocks may be anywhere.
        pointer.is_gang()
            || pointer.dvas().any(|dva| {
                let psize = pointer.psize_bytes() as usize;
                self.pipeline
                    .tree()
                    .top(dva.vdev())
                    .is_some_and(|top| top.needs_resilver(dva.offset_bytes(), psize, birth))
            })
    }

    /// A block is met; whether to enter it.
    pub(super) fn meet(&self, met: &Met<'_>, wanted: &Wanted) -> bool {
        if met.is_again {
            return true;
        }
        let pointer = met.pointer;
        if pointer.physical_birth() > wanted.until {
            return true;
        }
        self.count(pointer);
        if met.leads == Leads::Nowhere {
            self.queue_or_skip(pointer, met.bookmark, false, wanted);
        }
        true
    }

    fn count(&self, pointer: &BlockPointer) {
        add(&self.numbers.found_blocks, 1);
        add(&self.numbers.found_bytes, pointer.asize_bytes());
        if pointer.is_embedded() {
            add(&self.numbers.embedded_blocks, 1);
        }
    }

    fn queue_or_skip(
        &self,
        pointer: &BlockPointer,
        bookmark: Bookmark,
        is_log: bool,
        wanted: &Wanted,
    ) {
        if pointer.is_embedded() {
            return;
        }
        if !self.is_wanted(pointer, wanted) {
            add(&self.numbers.skipped_bytes, pointer.asize_bytes());
            return;
        }
        if wanted.is_again && !self.again_seen.lock().add(pointer) {
            add(&self.numbers.skipped_bytes, pointer.asize_bytes());
            return;
        }
        let found = Found {
            pointer: *pointer,
            bookmark,
            is_log,
            others: Vec::new(),
        };
        let queue = match wanted.is_again {
            true => &self.again,
            false => &self.queue,
        };
        match queue.add(found) {
            true => self.costs.add(bookmark.objset, pointer),
            false => self.note_lost(&bookmark, Txg::ZERO, "a block pointer leads nowhere"),
        }
    }

    /// A block of an intent log is met.
    pub(super) fn meet_log(&self, pointer: &BlockPointer, bookmark: Bookmark, wanted: &Wanted) {
        if pointer.is_hole() || pointer.is_redacted() {
            return;
        }
        self.count(pointer);
        self.queue_or_skip(pointer, bookmark, true, wanted);
    }

    /// A block that leads to others was read when it was met.
    pub(super) fn entered(&self, met: &Met<'_>, result: Result<(), &ZioError>, wanted: &Wanted) {
        let birth = met.pointer.physical_birth();
        if let Err(error) = result {
            lose_below(&mut self.lost_txgs.lock(), birth);
            self.note_lost(&met.bookmark, birth, &error.to_string());
        }
        if met.is_again || birth > wanted.until || met.pointer.is_embedded() {
            return;
        }
        match self.is_wanted(met.pointer, wanted) || result.is_err() {
            true => {
                self.note_verified(met.pointer);
                self.costs.add(met.bookmark.objset, met.pointer);
            }
            false => add(&self.numbers.skipped_bytes, met.pointer.asize_bytes()),
        }
    }

    /// What a block holds cannot be understood.
    pub(super) fn damaged(&self, bookmark: &Bookmark, why: &str) {
        lose_below(&mut self.lost_txgs.lock(), Txg::new(u64::MAX));
        self.note_lost(bookmark, Txg::ZERO, why);
    }

    /// Notes damage; the block it is in was written in `birth`.
    pub(super) fn note_lost(&self, bookmark: &Bookmark, birth: Txg, why: &str) {
        tracing::error!(
            ?bookmark,
            why,
            "a scan found damage that cannot be repaired"
        );
        add(&self.numbers.errors, 1);
        if !birth.is_zero() {
            self.lost_txgs.lock().add(birth.get(), 1);
        }
        self.errors.add(*bookmark, birth);
    }

    fn note_verified(&self, pointer: &BlockPointer) {
        add(&self.numbers.verified_blocks, 1);
        add(&self.numbers.verified_bytes, pointer.asize_bytes());
    }

    /// Room for a block's bytes in memory.
    async fn place(&self, pointer: &BlockPointer, read: ScanRead) -> Option<OwnedSemaphorePermit> {
        let tree = self.pipeline.tree();
        let lane = self.lanes.of(tree, pointer);
        lane.place(pointer, read, vdev::scan_share(tree)).await
    }

    fn context(bookmark: Bookmark, is_log: bool) -> ReadContext {
        ReadContext {
            // What cannot be decrypted is verified by its checksum.
            without_key: true,
            priority: Priority::Scrub,
            cache: CacheUse::Bypass,
            speculative: is_log,
            ..ReadContext::new(bookmark)
        }
    }

    /// Reads a block that leads to others.
    pub(super) fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        bookmark: Bookmark,
        wanted: Wanted,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        Box::pin(async move {
            let _place = self.place(&pointer, wanted.read).await;
            let context = Self::context(bookmark, false);
            let reader = self.pipeline.reader();
            let read = match self.is_wanted(&pointer, &wanted) {
                true => wanted.read,
                false => ScanRead::No,
            };
            reader.scan_and_read(&pointer, &context, read).await
        })
    }

    /// Reads a block of the queue; false when that is to be done again.
    async fn verify(&self, found: &Found, read: ScanRead) -> bool {
        let context = Self::context(found.bookmark, found.is_log);
        let reader = self.pipeline.reader();
        let read = match has_late_copies(&found.pointer) {
            true => ScanRead::Scrub,
            false => read,
        };
        let result = reader.scan(&found.pointer, &context, read).await;
        // Also one that was read: what is to be written of it may have been refused.
        if self.is_suspended() {
            return false;
        }
        self.note_verified(&found.pointer);
        add(&self.numbers.shared_blocks, found.others.len() as u64);
        for _ in &found.others {
            self.note_verified(&found.pointer);
            add(&self.numbers.shared_bytes, found.pointer.asize_bytes());
        }
        if let Err(error) = result
            && !found.is_log
        {
            let birth = found.pointer.physical_birth();
            for bookmark in std::iter::once(&found.bookmark).chain(&found.others) {
                self.note_lost(bookmark, birth, &error.to_string());
            }
        }
        true
    }

    /// Reads what is in `queue` until it is empty or `is_over`; returns when nothing is being read.
    pub(super) async fn issue(
        self: &Arc<Self>,
        queue: &Arc<impl AsRef<Queue> + Send + Sync + 'static>,
        read: ScanRead,
        tasks: &Tasks,
        is_over: &Arc<dyn Fn() -> bool + Send + Sync>,
    ) {
        let readers = tasks.group();
        for vdev in (**queue).as_ref().lanes() {
            let (queue, is_over) = (queue.clone(), is_over.clone());
            let lane = self
                .clone()
                .issue_lane(queue, vdev, read, readers.clone(), is_over);
            readers.spawn("scan", lane);
        }
        readers.wait().await;
    }

    /// Reads what is there of one vdev, each block in a task as soon as there is room for it.
    async fn issue_lane(
        self: Arc<Self>,
        queue: Arc<impl AsRef<Queue> + Send + Sync + 'static>,
        vdev: VdevId,
        read: ScanRead,
        readers: Tasks,
        is_over: Arc<dyn Fn() -> bool + Send + Sync>,
    ) {
        // The pool was suspended, and there are blocks to be read again.
        let is_refused = Arc::new(AtomicBool::new(false));
        let ends = || is_over() || is_refused.load(Ordering::Relaxed);
        while !ends() {
            let Some(next) = (*queue).as_ref().first(vdev) else {
                break;
            };
            let place = self.place(&next, read).await;
            // It did not take a block yet: when a turn is over, no more are waited for than are
            // being read.
            if ends() {
                break;
            }
            // What was freed meanwhile leaves its room to the next one.
            let Some(found) = (*queue).as_ref().take(vdev) else {
                break;
            };
            let (own, queue, is_refused) = (self.clone(), queue.clone(), is_refused.clone());
            readers.spawn("scan", async move {
                let _place = place;
                if !own.verify(&found, read).await {
                    (*queue).as_ref().add(found);
                    is_refused.store(true, Ordering::Relaxed);
                }
            });
        }
    }

    /// A block's space was freed.
    pub(super) fn freed(&self, pointer: &BlockPointer) {
        for queue in [&self.queue, &*self.again] {
            if let Some(pointer) = queue.freed(pointer) {
                add(&self.numbers.skipped_bytes, pointer.asize_bytes());
            }
        }
    }
}

/// Whether some copies of a block may have been written after its physical birth: an entry of a
/// dedup table that gets more of them stays as old as it was (`ddt_phys_extend`,
/// module/zfs/ddt.c). What a device lacks of these no txg tells, so they are read as by a scrub.
fn has_late_copies(pointer: &BlockPointer) -> bool {
    let is_shared_later = pointer.physical_birth() < pointer.logical_birth();
    pointer.is_dedup() && pointer.copies() > 1 && is_shared_later
}

/// Where blocks are that need not be read once more. What is allocated in the place of one that was
/// freed is younger than what a scan reads.
#[derive(Debug, Default)]
struct Seen {
    by_vdev: BTreeMap<VdevId, RangeSet>,
    ranges: usize,
}

impl Seen {
    /// Adds a block; false when all of its copies are there. It is not kept where there are too
    /// many.
    fn add(&mut self, pointer: &BlockPointer) -> bool {
        let mut is_new = false;
        for dva in pointer.dvas() {
            let (start, length) = (dva.offset_bytes(), dva.asize_bytes());
            let of_vdev = self.by_vdev.entry(dva.vdev()).or_default();
            if start.checked_add(length).is_some() && of_vdev.contains(start, length) {
                continue;
            }
            is_new = true;
            if self.ranges < SEEN_RANGES_MAX && start.checked_add(length).is_some() {
                let before = of_vdev.segments();
                of_vdev.add(start, length);
                self.ranges = (self.ranges + of_vdev.segments()).saturating_sub(before);
            }
        }
        is_new
    }
}

/// Adds the txgs that what a block leads to can be of: it is not met, and is never younger. Devices
/// that lack them go on lacking them, or they would be taken to have what nobody gave them.
pub(super) fn lose_below(lost: &mut RangeSet, birth: Txg) {
    lost.add(1, birth.get().min(u64::MAX - 1));
}

impl AsRef<Queue> for Blocks {
    fn as_ref(&self) -> &Queue {
        &self.queue
    }
}

impl AsRef<Queue> for Queue {
    fn as_ref(&self) -> &Queue {
        self
    }
}

/// Bytes that scans have repaired on all devices.
pub(super) fn repaired_bytes(scans: &Scans) -> u64 {
    let leaves = scans.spa.tree.leaves();
    let repaired = leaves
        .iter()
        .map(|leaf| leaf.counters().scan_repaired_bytes);
    repaired.fold(0, u64::saturating_add)
}
