//! What a sequential rebuild does with a range of a mirror: copies it, whatever is in it, from a
//! device that has everything to those that lack something. What it does with a range of a dRAID
//! vdev is in module `rebuild_draid`.
//!
//! There are no checksums to tell what is right, so that only a device that lacks nothing at all is
//! read, and only devices that lack something are written. What is read wrong is found by the scrub
//! that follows.
//!
//! **Who else writes there.** The caller sees to it that a range belongs to blocks which were
//! written before and are not overwritten meanwhile. The one exception are blocks of intent logs,
//! which are allocated long before they are written: [`Fence`](crate::fence::Fence) keeps the two
//! apart. Without it, the copy could come after the log's write and take it back on the very device
//! that is to be trusted from then on.
//!
//! Source: module/zfs/vdev_rebuild.c (`vdev_rebuild_range`), module/zfs/vdev_mirror.c.

use std::sync::Arc;

use bytes::Bytes;
use format::{Txg, VdevId};
use futures::future::join_all;

use crate::error::VdevError;
use crate::fence::Side;
use crate::io::{IoContext, WriteFailure};
use crate::kind::VdevKind;
use crate::leaf::Leaf;
use crate::node::Vdev;
use crate::rebuild_draid;
use crate::report::{Priority, ScanRead};
use crate::tree::VdevTree;

/// So many reads in flight count as none where devices take turns.
const CROWD: usize = 24;

/// What became of a range ([`VdevTree::rebuild`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuilt {
    /// No device that can be written lacks anything: there was nothing to do.
    Skipped,
    /// It was read, and written to devices. Those that did not take it lack `txg` now.
    Copied {
        /// What devices took, in all.
        bytes: u64,
    },
    /// Too few devices gave it that lack nothing, or they contradict each other.
    Unread,
    /// The pool was suspended meanwhile: it may not be on the devices, and is to be copied again.
    Halted,
}

impl Vdev {
    /// Whether the devices of this top-level vdev, or of one that it becomes, can be rebuilt
    /// sequentially: all of them hold the same, or each stripe is whole. On RAID-Z a range does not
    /// tell where its blocks begin.
    pub fn can_rebuild(&self) -> bool {
        match &self.kind {
            VdevKind::Leaf(_) | VdevKind::Draid(_) => true,
            VdevKind::Mirror(mirror) => mirror.children.iter().all(|child| child.can_rebuild()),
            _ => false,
        }
    }

    /// The transaction groups that devices of this top-level vdev lack which can be written: before
    /// the first and after the last one (`vdev_resilver_needed`, module/zfs/vdev.c).
    pub fn rebuild_txgs(self: &Arc<Self>) -> Option<(Txg, Txg)> {
        let devices = match &self.kind {
            VdevKind::Draid(_) => rebuild_draid::rebuilding(self),
            _ => to_rebuild(self),
        };
        let missing: Vec<_> = devices
            .iter()
            .filter_map(|vdev| {
                let missing = vdev.own_missing();
                let (first, last) = (missing.ranges().next()?, missing.ranges().next_back()?);
                Some((first.start, last.end))
            })
            .collect();
        let first = missing.iter().map(|(first, _)| *first).min()?;
        let end = missing.iter().map(|(_, end)| *end).max()?;
        Some((Txg::new(first.saturating_sub(1)), Txg::new(end)))
    }
}

/// Where a copy on a top-level vdev ends that begins at `start`, of an allocated range that ends at
/// `end`: each device gives or takes no more than about `bytes` of it.
pub fn copy_end(top: &Vdev, start: u64, end: u64, bytes: u64) -> u64 {
    match &top.kind {
        VdevKind::Draid(draid) => draid.layout.copy_end(top.ashift(), start, end, bytes),
        _ => end.min(start.saturating_add(bytes)),
    }
}

/// The devices of a mirror that lack something and can be written.
fn to_rebuild(top: &Arc<Vdev>) -> Vec<Arc<Vdev>> {
    let lacks = |leaf: &Arc<Leaf>| leaf.is_writeable() && !leaf.dirty_times().missing().is_empty();
    let mut leaves = top.leaves();
    leaves.retain(|vdev| vdev.leaf().is_some_and(lacks));
    leaves
}

/// Copies a range from a device that lacks nothing to those that do.
async fn copy(top: &Arc<Vdev>, offset: u64, length: usize, txg: Txg) -> Rebuilt {
    let to = to_rebuild(top);
    if to.is_empty() {
        return Rebuilt::Skipped;
    }
    let Some(data) = read_whole(top, offset, length, txg).await else {
        return Rebuilt::Unread;
    };
    let context = context(txg).for_repair();
    let writes = to.iter().map(|vdev| {
        let data = data.clone();
        vdev.write_part(offset, data, &context)
    });
    let written = join_all(writes).await;
    let devices = written.iter().filter(|written| written.is_ok()).count() as u64;
    Rebuilt::Copied {
        bytes: devices * length as u64,
    }
}

/// Reads from a device that lacks nothing: areas of 2 MiB by turns, as long as none falls far
/// behind, else from others.
async fn read_whole(top: &Arc<Vdev>, offset: u64, length: usize, txg: Txg) -> Option<Bytes> {
    let has_all = |leaf: &Arc<Leaf>| leaf.is_readable() && leaf.dirty_times().missing().is_empty();
    let mut from = top.leaves();
    from.retain(|vdev| vdev.leaf().is_some_and(has_all));
    let count = from.len();
    let preferred = (offset >> 21) as usize % count.max(1);
    let mut from: Vec<_> = from.into_iter().enumerate().collect();
    from.sort_by_cached_key(|(index, vdev)| {
        let turn = (index + count - preferred) % count;
        (vdev.reads_in_flight() / CROWD, turn)
    });
    let context = context(txg);
    for (_, vdev) in &from {
        match vdev.read_part(offset, length, &context).await {
            // It may have failed to take a write just now.
            Ok(data) if vdev.leaf().is_some_and(has_all) => return Some(data),
            Ok(_) => {}
            Err(failure) => tracing::debug!(cause = failure.cause, "not read for a rebuild"),
        }
    }
    None
}

/// A rebuild's I/O. A write that fails leaves the device without `txg`, which is later than all it
/// is to get: so it keeps lacking everything.
pub(crate) fn context(txg: Txg) -> IoContext {
    IoContext {
        priority: Priority::Scrub,
        scan: ScanRead::Resilver,
        birth: txg,
        ..IoContext::default()
    }
}

impl VdevTree {
    /// Copies a range of a mirror, in whole sectors, or one of a dRAID vdev that [`copy_end`]
    /// tells, to the devices that lack something, in syncing context of `txg`. All of the range was
    /// allocated before that txg, and is not allocated again before it is on disk.
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`], [`VdevError::UnsupportedVdev`], [`VdevError::VdevUnavailable`],
    /// [`VdevError::BadAddress`]: then nothing was done.
    pub async fn rebuild(
        &self,
        id: VdevId,
        offset: u64,
        length: u64,
        txg: Txg,
    ) -> Result<Rebuilt, VdevError> {
        let top = self.topology.usable_top(id)?;
        let data_bytes = match top.kind() {
            VdevKind::Draid(draid) => draid.layout.data_bytes(length),
            _ => length,
        };
        self.topology.check_range(id, offset, data_bytes)?;
        if !top.can_rebuild() {
            return Ok(Rebuilt::Unread);
        }
        let range = offset..offset + length;
        let _fence = self.common.fence.enter(Side::Copy, id, range.clone()).await;
        let mark = self.common.halt.mark();
        let rebuilt = match top.kind() {
            VdevKind::Draid(draid) => rebuild_draid::copy(&top, draid, range, &context(txg)).await,
            _ => copy(&top, offset, length as usize, txg).await,
        };
        match self.common.halt.is_unchanged(mark) {
            true => Ok(rebuilt),
            false => Ok(Rebuilt::Halted),
        }
    }

    /// Writes a block of an intent log, which may have been allocated long before.
    ///
    /// # Errors
    /// As [`Self::write_block`].
    pub async fn write_log_block(
        &self,
        id: VdevId,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        // With its parity, which is behind it in the address space.
        let length = data.len() as u64;
        let geometry = self.top(id).and_then(|top| top.geometry());
        let length = geometry.map_or(length, |geometry| geometry.asize(length));
        let range = offset..offset.saturating_add(length);
        let _fence = self.common.fence.enter(Side::Write, id, range).await;
        self.write_block(id, offset, data, context).await
    }
}
