//! I/O of mirrors, and of vdevs that are like them while a device is replaced or a spare stands in.
//!
//! **Reads** (`vdev_mirror_child_select`, module/zfs/vdev_mirror.c) go to the readable child with
//! the fewest reads in flight that does not miss the block's transaction group; among equals, areas
//! of 2 MiB take turns. What nobody waits for yet, and what a resilver reads, goes by areas alone,
//! as long as no child falls far behind: neighbours read by one disk are one operation, read by two
//! they are many. What fails, by the device or by checksum, is read from the others, and then
//! repaired with what was good. Scrubs read every child that does not miss the block, all at the
//! same time: so each device is asked for neighbours together (`vdev_mirror_io_start`). Resilvers
//! read as few as will do. Both write the block to those that miss it, which is no error of theirs
//! (`vdev_mirror_io_done`).
//!
//! A child that misses the block has something else in its place, unless it was given the block
//! meanwhile. Only a checksum tells. Where none is verified here (parts of a block, as below
//! RAID-Z, and blocks without a checksum) such a child does not answer for one that has the block
//! and failed, as errors may pass, and nothing is repaired with what it says.
//!
//! A distributed spare of dRAID is asked before the device that it stands in for. That one may be
//! back, and told to lack nothing, and yet not have what another spare got on it meanwhile: we note
//! that down (`owe_the_same` of crate `scan`), others may not have.
//!
//! **Writes** go to every child that can be written and are good when one is; the others miss the
//! transaction group from then on.

use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use format::Txg;
use futures::future::join_all;

use crate::io::{IoContext, ReadFailure, Verify, WriteFailure};
use crate::kind::{MirrorVdev, VdevKind};
use crate::node::Vdev;
use crate::report::{Priority, ScanRead};
use crate::state::Counters;

/// So many reads in flight count as none to who does not wait for them.
const CROWD: usize = 128;
/// The same to a resilver, which has more of them under way.
const RESILVER_CROWD: usize = 512;

/// What reading a child gave.
type Read = Result<Bytes, ReadFailure>;

/// Gives a block that a resilver read to those devices of a child that lack it, and to no others
/// (`zio_vdev_io_start`, module/zfs/zio.c, leaves out repairs of vdevs that lack nothing of the
/// transaction group): a device that is being replaced need not be written again.
fn supply<'a>(
    child: &'a Arc<Vdev>,
    offset: u64,
    good: Bytes,
    context: &'a IoContext,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let VdevKind::Mirror(mirror) = child.kind() else {
            return child.repair(offset, good, context).await;
        };
        let lacking = mirror.lacking(offset, context.birth, None);
        mirror
            .repair(Vec::new(), lacking, offset, &good, context)
            .await;
    })
}

impl MirrorVdev {
    /// Children in the order in which to try them.
    fn candidates(&self, offset: u64, birth: Txg, priority: Priority) -> Vec<usize> {
        let count = self.children.len();
        let crowd = match priority {
            Priority::Sync => 1,
            Priority::Async => CROWD,
            Priority::Scrub => RESILVER_CROWD,
        };
        let preferred = (offset >> 21) as usize % count.max(1);
        let mut order: Vec<usize> = (0..count)
            .filter(|index| self.children[*index].is_readable())
            .collect();
        order.sort_by_key(|index| {
            let child = &self.children[*index];
            (
                child.is_missing(offset, birth),
                child.kind.draid_spare().is_none(),
                child.reads_in_flight() / crowd,
                (index + count - preferred) % count,
            )
        });
        order
    }

    /// Children but `except` that lack the block, or whose own children may.
    fn lacking(&self, offset: u64, birth: Txg, except: Option<usize>) -> Vec<usize> {
        let others = self.children.iter().enumerate();
        let lacks = |(index, child): &(usize, &Arc<Vdev>)| {
            Some(*index) != except && child.is_readable() && child.needs_resilver(offset, 0, birth)
        };
        others.filter(lacks).map(|(index, _)| index).collect()
    }

    async fn read_child(
        &self,
        index: usize,
        offset: u64,
        length: usize,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Read {
        let child = &self.children[index];
        // A device and its successor, or its spare, have whole blocks as well: which of them is
        // right their own mirror finds.
        match child.children().is_empty() {
            true => child.read_part(offset, length, context).await,
            false => child.read_verified(offset, length, context, verify).await,
        }
    }

    /// Reads those of some children that have the block, at the same time.
    fn read_all<'a>(
        &'a self,
        indices: &'a [usize],
        offset: u64,
        length: usize,
        context: &'a IoContext,
        verify: &'a dyn Verify,
    ) -> BoxFuture<'a, Vec<Option<Read>>> {
        Box::pin(async move {
            let reads = indices.iter().map(|index| async move {
                match self.children[*index].is_missing(offset, context.birth) {
                    true => None,
                    false => {
                        let read = self.read_child(*index, offset, length, context, verify);
                        Some(read.await)
                    }
                }
            });
            join_all(reads).await
        })
    }

    /// Writes what was read to children that gave something else or nothing, and to `lacking` ones
    /// as far as they lack it.
    fn repair<'a>(
        &'a self,
        wrong: Vec<usize>,
        lacking: Vec<usize>,
        offset: u64,
        good: &'a Bytes,
        context: &'a IoContext,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let repairs = wrong.into_iter().map(|index| {
                let child = &self.children[index];
                child.repair(offset, good.clone(), context)
            });
            let supplies = lacking.into_iter().map(|index| {
                let child = &self.children[index];
                supply(child, offset, good.clone(), context)
            });
            futures::join!(join_all(repairs), join_all(supplies));
        })
    }

    pub(crate) async fn read(
        &self,
        vdev: &Vdev,
        offset: u64,
        length: usize,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        let mut failure = ReadFailure {
            checksum: false,
            device: false,
            slow: false,
            cause: format!("{}: no device is there", vdev.display_name()),
        };
        let can_tell = verify.can_tell();
        let mut good: Option<Bytes> = None;
        // `good` is from a child that misses the block, and was not verified.
        let mut is_guess = false;
        // A child that has the block did not give it.
        let mut has_failed = false;
        let mut bad = Vec::new();
        let mut lacking = Vec::new();
        let order = self.candidates(offset, context.birth, context.priority);
        let mut at_once = match context.scan.reads_all() {
            true => self.read_all(&order, offset, length, context, verify).await,
            false => Vec::new(),
        }
        .into_iter();
        for index in order {
            let known = at_once.next().flatten();
            let child = &self.children[index];
            let is_missing = child.is_missing(offset, context.birth);
            if good.is_some() && is_missing {
                // Those that lack the block come last; it is written without being read.
                bad.push(index);
                continue;
            }
            // One that has the block lags or failed. What others have in its place would be taken
            // for right, and nobody would know that there is more to wait for, or to try again.
            if is_missing && !can_tell && has_failed {
                continue;
            }
            let is_mirror = !child.children().is_empty();
            let read = match known {
                Some(read) => read,
                None => {
                    let read = self.read_child(index, offset, length, context, verify);
                    read.await
                }
            };
            match read {
                Ok(data) => {
                    // A scrub compares with what was verified. What differs may do so where the
                    // block does not reach (the rest of its last sector).
                    let is_known = is_mirror || good.as_ref() == Some(&data);
                    let right = is_known || verify.verify(&data).await;
                    if right {
                        is_guess = is_missing && !can_tell;
                        good.get_or_insert(data);
                        if !context.scan.is_scan() {
                            break;
                        }
                        if context.scan == ScanRead::Resilver {
                            lacking = self.lacking(offset, context.birth, Some(index));
                            // What failed gets it in any case.
                            lacking.retain(|index| !bad.contains(index));
                            break;
                        }
                    } else {
                        bad.push(index);
                        child.note_checksum_error(offset, length, context);
                        failure.checksum = true;
                        failure.cause = format!("{}: wrong checksum", child.display_name());
                    }
                }
                Err(error) => {
                    has_failed |= !is_missing;
                    // What lags may be right, and would let the reader wait for a repair as well.
                    if !error.slow {
                        bad.push(index);
                    }
                    failure.slow |= error.slow;
                    failure.checksum |= error.checksum;
                    failure.device |= error.device;
                    failure.cause = error.cause;
                }
            }
        }
        let Some(good) = good else {
            if failure.checksum && !failure.slow && !context.speculative {
                Counters::add(&vdev.counters.checksum_errors, 1);
            }
            return Err(failure);
        };
        if is_guess {
            return Ok(good);
        }
        if !bad.is_empty() || !lacking.is_empty() {
            self.repair(bad, lacking, offset, &good, context).await;
        }
        Ok(good)
    }

    /// Writes whole sectors to every child.
    pub(crate) async fn write(
        &self,
        vdev: &Vdev,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        let results = join_all(
            self.children
                .iter()
                .map(|child| child.write_part(offset, data.clone(), context)),
        )
        .await;
        let mut last = WriteFailure::new(format!("{}: no device is there", vdev.display_name()));
        let mut written = false;
        for result in results {
            match result {
                Ok(()) => written = true,
                Err(error) => {
                    last = WriteFailure {
                        halted: error.halted || last.halted,
                        ..error
                    }
                }
            }
        }
        if written {
            Ok(())
        } else {
            vdev.note_write_failure(&last);
            Err(last)
        }
    }
}
