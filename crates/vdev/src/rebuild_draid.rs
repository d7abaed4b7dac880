//! What a sequential rebuild does with a range of a dRAID vdev: whole stripes, of which each column
//! follows from the others, whatever blocks they hold.
//!
//! There are no checksums to tell what is right. So a column is read only from devices that lack
//! nothing at all, and written only to what was attached to be rebuilt ([`is_rebuilding`]): a
//! device that missed something else keeps what it has, and is resilvered by checksums. Where some
//! device has the very column (one that is replaced while it works), that is copied; else the
//! column is computed from as many others as there is data, and one more if there is one: where
//! they contradict each other, some device lies. What was computed from a lie would make it two,
//! so nothing is written, and the resilver that follows finds out by checksums.
//!
//! **Distributed spares.** What a spare has at an offset is on another child, and where that is
//! away, perhaps on the spare that stands in for it in turn. Both reads and writes go that way: a
//! spare that lacks something does not answer for a column, and one that lacks nothing leads to who
//! is rebuilt behind it.
//!
//! **Zeros.** Stripes that a block does not fill hold zeros in their parity, so these must be on
//! the devices: writes and resilvers put them there (module `raidz`). Where a device lies about
//! them, or about anything else, the scrub that follows finds it.
//!
//! Source: module/zfs/vdev_draid.c (`vdev_draid_io_start_read`, `vdev_draid_group_degraded`).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use codec::raidz;
use futures::future::join_all;

use crate::geometry::Columns;
use crate::io::IoContext;
use crate::kind::{DraidVdev, VdevKind};
use crate::lacking::is_rebuilding;
use crate::node::Vdev;
use crate::raidz::reconstruct;
use crate::rebuild::Rebuilt;

/// Ranges from here on are computed by a CPU worker.
const ON_WORKER_BYTES: usize = 64 << 10;

/// The devices and distributed spares of a dRAID vdev that are being rebuilt and can be written.
pub(crate) fn rebuilding(top: &Arc<Vdev>) -> Vec<Arc<Vdev>> {
    let mut all = top.leaves();
    all.extend(top.draid_spares());
    all.retain(|vdev| is_target(vdev));
    all
}

/// Whether it is being rebuilt, and takes writes at all.
fn is_target(vdev: &Vdev) -> bool {
    let is_there = match &vdev.kind {
        VdevKind::Leaf(own) => own.leaf.is_writeable(),
        VdevKind::DraidSpare(spare) => spare.top.get().is_some(),
        _ => false,
    };
    is_there && is_rebuilding(vdev) && !vdev.own_missing().is_empty()
}

/// What is being rebuilt of a child at the offset of a column, down to where the devices are. What
/// is behind a spare that is rebuilt is written with it.
fn targets(vdev: &Arc<Vdev>, offset: u64, out: &mut Vec<Arc<Vdev>>) {
    if is_target(vdev) {
        if vdev.is_writeable(offset) {
            out.push(vdev.clone());
        }
        return;
    }
    match &vdev.kind {
        VdevKind::DraidSpare(spare) => {
            if let Some(child) = spare.child(offset) {
                targets(&child, offset, out);
            }
        }
        kind => {
            let children = kind.children().iter();
            children.for_each(|child| targets(child, offset, out));
        }
    }
}

/// The devices that surely have what a child has at the offset of a column.
fn sources(vdev: &Arc<Vdev>, offset: u64, out: &mut Vec<Arc<Vdev>>) {
    match &vdev.kind {
        VdevKind::Leaf(own) => {
            if own.leaf.is_readable() && own.leaf.dirty_times().missing().is_empty() {
                out.push(vdev.clone());
            }
        }
        VdevKind::DraidSpare(spare) => {
            if spare.missing().is_empty()
                && let Some(child) = spare.child(offset)
            {
                sources(&child, offset, out);
            }
        }
        kind => {
            // As with other reads (module `mirror`), distributed spares come first.
            let mut children: Vec<&Arc<Vdev>> = kind.children().iter().collect();
            children.sort_by_key(|child| child.kind.draid_spare().is_none());
            let children = children.into_iter();
            children.for_each(|child| sources(child, offset, out));
        }
    }
}

/// Columns of a range of whole stripes, as far as they were read.
struct Stripes<'a> {
    draid: &'a DraidVdev,
    map: Columns,
    data: Vec<Option<Bytes>>,
    tried: Vec<bool>,
}

impl Stripes<'_> {
    /// Reads a column from one device after the other.
    async fn read_column(&self, index: usize, context: &IoContext) -> Option<Bytes> {
        let column = self.map.columns[index];
        let child = self.draid.children.get(column.child)?;
        let mut from = Vec::new();
        sources(child, column.offset, &mut from);
        for vdev in &from {
            let read = vdev.read_part(column.offset, column.length, context).await;
            // It, or a spare on the way, may have failed to take a write just now.
            let mut still = Vec::new();
            sources(child, column.offset, &mut still);
            let has_all = still.iter().any(|other| other.guid == vdev.guid);
            match read {
                Ok(data) if has_all => return Some(data),
                Ok(_) => {}
                Err(failure) => tracing::debug!(cause = failure.cause, "not read for a rebuild"),
            }
        }
        None
    }

    /// Reads columns at the same time, each once.
    async fn read(&mut self, wanted: &[usize], context: &IoContext) {
        let wanted: Vec<usize> = (wanted.iter().copied())
            .filter(|index| !self.tried[*index])
            .collect();
        let reads = wanted.iter().map(|index| self.read_column(*index, context));
        let read = join_all(reads).await;
        for (index, data) in wanted.into_iter().zip(read) {
            self.tried[index] = true;
            self.data[index] = data;
        }
    }

    /// Reads columns until there is one more than hold data, these first; whether there are at
    /// least so many.
    async fn read_enough(&mut self, context: &IoContext) -> bool {
        let parity = self.map.parity;
        let needed = self.data.len() - parity;
        loop {
            let known = self.data.iter().flatten().count();
            let order = (parity..self.data.len()).chain(0..parity);
            let next: Vec<usize> = order
                .filter(|index| !self.tried[*index])
                .take((needed + 1).saturating_sub(known))
                .collect();
            if next.is_empty() {
                return known >= needed;
            }
            self.read(&next, context).await;
        }
    }
}

/// All columns, by those that were read; `None` where these contradict each other.
fn compute(parity: usize, read: &[Option<Bytes>], lengths: &[usize]) -> Option<Vec<Option<Bytes>>> {
    let all = reconstruct(parity, read, lengths, &[])?;
    if read.iter().flatten().count() + parity > read.len() {
        let data: Vec<&[u8]> = (all[parity..].iter())
            .map(|column| column.as_deref().unwrap_or_default())
            .collect();
        let right = raidz::generate_columns(parity, &data).ok()?;
        let mut both = read.iter().zip(&right);
        let agrees = both.all(|(read, right)| read.as_ref().is_none_or(|read| read == right));
        return agrees.then_some(all);
    }
    Some(all)
}

/// Rebuilds whole stripes of one group.
pub(crate) async fn copy(
    top: &Arc<Vdev>,
    draid: &DraidVdev,
    range: Range<u64>,
    context: &IoContext,
) -> Rebuilt {
    let Some(map) = draid.layout.stripes(top.ashift(), range) else {
        return Rebuilt::Unread;
    };
    let to: Vec<Vec<Arc<Vdev>>> = (map.columns.iter())
        .map(|column| {
            let mut out = Vec::new();
            if let Some(child) = draid.children.get(column.child) {
                targets(child, column.offset, &mut out);
            }
            out
        })
        .collect();
    let wanted: Vec<usize> = (0..to.len()).filter(|at| !to[*at].is_empty()).collect();
    if wanted.is_empty() {
        return Rebuilt::Skipped;
    }
    let mut stripes = Stripes {
        draid,
        data: vec![None; map.columns.len()],
        tried: vec![false; map.columns.len()],
        map,
    };
    stripes.read(&wanted, context).await;
    if wanted.iter().any(|index| stripes.data[*index].is_none()) {
        if !stripes.read_enough(context).await {
            return Rebuilt::Unread;
        }
        let (parity, columns) = (stripes.map.parity, stripes.data.clone());
        let lengths: Vec<usize> = (stripes.map.columns.iter())
            .map(|column| column.length)
            .collect();
        let bytes: usize = lengths.iter().sum();
        let work = move || compute(parity, &columns, &lengths);
        let computed = match bytes >= ON_WORKER_BYTES {
            true => top.world.compute(work).await,
            false => work(),
        };
        let Some(computed) = computed else {
            return Rebuilt::Unread;
        };
        stripes.data = computed;
    }
    let context = context.for_repair();
    let writes = wanted.iter().flat_map(|index| {
        let offset = stripes.map.columns[*index].offset;
        let data = stripes.data[*index].clone().unwrap_or_default();
        let context = &context;
        to[*index].iter().map(move |vdev| {
            let (length, data) = (data.len() as u64, data.clone());
            async move {
                let written = vdev.write_part(offset, data, context).await;
                if written.is_ok() { length } else { 0 }
            }
        })
    });
    let written = join_all(writes).await;
    Rebuilt::Copied {
        bytes: written.into_iter().sum(),
    }
}
