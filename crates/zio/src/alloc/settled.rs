//! What is allocated and stays as it is for a while: what a sequential rebuild may copy, and what
//! is copied from a vdev that is being removed. And what may be allocated at all, which a RAID-Z
//! expansion moves.
//!
//! **In the first pass of a txg**, before its changes are recorded, everything that earlier txgs
//! allocated was written, and is written no more but for blocks of intent logs. What is freed from
//! now on can be allocated again when this txg is on disk, at the earliest. Blocks of this and of
//! later txgs may be just being written, and are left out; so is what was freed and waits, which no
//! state has from now on that an import may choose and that says that the range was copied.

use std::pin::pin;
use std::sync::atomic::Ordering;

use format::{Txg, VdevId};
use vdev::RangeSet;

use super::Allocator;
use super::metaslab::{Loaded, Metaslab};

/// What [`Allocator::settled`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// What is allocated of the metaslab for good, as offsets on the vdev.
    Ranges(RangeSet),
    /// The space map cannot be read: nobody knows.
    Unknown,
    /// The vdev has no such metaslab.
    End,
}

/// The same without what this txg frees: what a vdev that is being removed leaves to copy. Of
/// such a vdev nothing is freed in advance, for later txgs ([`crate::pipeline::Dvas`]).
pub async fn remaining(allocator: &Allocator, txg: Txg, vdev: VdevId, metaslab: u64) -> Settled {
    look_at(allocator, txg, (vdev, metaslab), Metaslab::remaining).await
}

/// Lets a metaslab's free ranges go from memory if many are there: nobody asks for them soon.
pub fn unload(allocator: &Allocator, vdev: VdevId, metaslab: u64) {
    if let (Some(entry), Ok(index)) = (allocator.entry(vdev), usize::try_from(metaslab)) {
        entry.top.lock().unload(index);
    }
}

/// How often something was allocated from a vdev: while that is the same, nothing was.
pub fn taken(allocator: &Allocator, vdev: VdevId) -> u64 {
    allocator
        .entry(vdev)
        .map_or(0, |entry| entry.top.lock().taken)
}

/// Bytes of a vdev that are allocated, without what this txg frees, in syncing context, in its
/// first pass; on a vdev from which nothing is allocated any more.
pub fn remaining_bytes(allocator: &Allocator, vdev: VdevId) -> u64 {
    allocator
        .entry(vdev)
        .map_or(0, |entry| entry.top.lock().remaining_bytes())
}

/// Has nothing of a vdev's space offered to datasets, or offered again
/// ([`vdev::TopSpec::is_withheld`]).
pub fn set_withheld(allocator: &Allocator, vdev: VdevId, is_withheld: bool) {
    if let Some(entry) = allocator.entry(vdev) {
        entry.top.lock().spec.is_withheld = is_withheld;
    }
    *allocator.totals.lock() = None;
}

/// Whether a vdev's space is not offered to datasets.
pub fn is_withheld(allocator: &Allocator, vdev: VdevId) -> bool {
    allocator
        .entry(vdev)
        .is_some_and(|entry| entry.top.lock().spec.is_withheld)
}

/// Nothing is allocated from a vdev until [`release`], whoever says meanwhile that it may
/// be ([`Allocator::set_allocatable`], which states of devices lead to).
pub fn hold(allocator: &Allocator, vdev: VdevId) {
    if let Some(entry) = allocator.entry(vdev) {
        entry.holds.fetch_add(1, Ordering::AcqRel);
    }
}

/// Ends a [`hold`].
pub fn release(allocator: &Allocator, vdev: VdevId) {
    if let Some(entry) = allocator.entry(vdev) {
        // One that is not held stays so.
        let less = |holds: u32| holds.checked_sub(1);
        let _ = entry
            .holds
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

async fn look_at(
    allocator: &Allocator,
    txg: Txg,
    (vdev, metaslab): (VdevId, u64),
    look: impl Fn(&Metaslab) -> Option<RangeSet>,
) -> Settled {
    let Some(entry) = allocator.entry(vdev) else {
        return Settled::End;
    };
    let Ok(index) = usize::try_from(metaslab) else {
        return Settled::End;
    };
    loop {
        let mut loads = pin!(allocator.loads.notified());
        loads.as_mut().enable();
        let is_to_load = {
            let mut top = entry.top.lock();
            let Some(metaslab) = top.metaslab_mut(index) else {
                return Settled::End;
            };
            match metaslab.loaded {
                Loaded::Yes(_) => {
                    let settled = look(metaslab);
                    return settled.map_or(Settled::Unknown, Settled::Ranges);
                }
                Loaded::Broken => return Settled::Unknown,
                Loaded::Loading => false,
                Loaded::No => {
                    metaslab.loaded = Loaded::Loading;
                    true
                }
            }
        };
        match is_to_load {
            true => allocator.load(txg, &entry, index, false).await,
            false => loads.await,
        }
    }
}

impl Allocator {
    /// What of a metaslab is not free for whoever allocates next: what is allocated in any state
    /// that an import may choose or that is being written, what waits, and what trimming holds.
    /// `None` while its space map is not in memory ([`Self::settled`] loads it).
    pub fn occupied(&self, vdev: VdevId, metaslab: u64) -> Option<RangeSet> {
        let entry = self.entry(vdev)?;
        let top = entry.top.lock();
        top.metaslab(usize::try_from(metaslab).ok()?)?.occupied()
    }

    /// What of a metaslab is allocated, in syncing context of `txg`, in its first pass: until that
    /// txg is on disk, none of it is allocated again.
    pub async fn settled(&self, txg: Txg, vdev: VdevId, metaslab: u64) -> Settled {
        look_at(self, txg, (vdev, metaslab), Metaslab::settled).await
    }
}
