//! Reading the copies of one block, as they are stored.
//!
//! The copies are tried in turn until one passes its checksum; bad copies are then written anew
//! from the good one. What is read is neither decompressed nor decrypted here, and a gang block is
//! no more than its header.

use std::sync::Arc;

use bytes::Bytes;
use device::{BoxFuture, World};
use format::{BlockPointer, Bookmark, Dva};
use futures::future::join_all;
use vdev::{ErrorReport, ErrorSink, IoContext, ReadFailure, VdevTree, Verify};

use super::ReadContext;
use super::check::{BlockCheck, PoolSalt};
use super::inject::Struck;
use super::suspension::{self, Suspension, Waits};
use crate::error::{ZioError, name_of};

/// What a scrub of a block found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubOutcome {
    /// Copies read.
    pub copies: usize,
    /// Copies that could not be read right, not even with their vdev's redundancy. Those were
    /// written anew from another copy if there was a good one.
    pub bad_copies: usize,
}

/// Reads the copies of blocks.
pub(super) struct Copies {
    pub(super) world: World,
    pub(super) tree: Arc<VdevTree>,
    pub(super) errors: Arc<dyn ErrorSink>,
    pub(super) salt: Arc<PoolSalt>,
    pub(super) suspension: Arc<Suspension>,
}

impl Copies {
    /// Whether a failed read of this block waits for devices that may bring it back: see
    /// [`suspension::must_succeed`].
    fn waits_for(&self, bp: &BlockPointer, device_failed: bool) -> bool {
        let waits = suspension::waits();
        !self.suspension.is_read_only()
            && waits > Waits::Never
            && (device_failed && waits == Waits::Always || self.tree.topology().may_come_back(bp))
    }

    /// Suspends the pool until it is cleared, after a failed read of the sync loop that is to be
    /// tried again then. Not below here: who else shares the read is told of the failure at once.
    pub(super) async fn wait_for_devices(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
        error: ZioError,
    ) -> Result<(), ZioError> {
        let device_failed = match &error {
            ZioError::Checksum { device_failed, .. }
            | ZioError::Unreadable { device_failed, .. } => *device_failed,
            _ => return Err(error),
        };
        if context.speculative || !self.waits_for(bp, device_failed) {
            return Err(error);
        }
        let reason = format!("devices that {} needs do not work", name_of(bp));
        tracing::warn!(%error, "the txg cannot be written without this block");
        self.suspension
            .suspend_and_wait(ZioError::Suspended { reason })
            .await
    }

    /// Reports a damaged block to the pool's error log.
    pub(super) fn report_damage(&self, bp: &BlockPointer, bookmark: Bookmark) {
        if let Some(dva) = bp.dva(0) {
            self.errors.report(ErrorReport::Data {
                bookmark,
                vdev: dva.vdev(),
                offset_bytes: dva.offset_bytes(),
                birth: bp.physical_birth(),
            });
        }
    }

    /// Reports that a damaged block can be read again, to be taken out of the pool's error log
    /// (`spa_remove_error`, module/zfs/spa_errlog.c).
    pub(super) fn report_healed(&self, bp: &BlockPointer, bookmark: Bookmark) {
        self.errors.report(ErrorReport::Healed {
            bookmark,
            birth: bp.physical_birth(),
        });
    }

    /// Writes all copies of a block anew of which none is right. `data` is checked first.
    pub(super) async fn put_right(
        &self,
        bp: &BlockPointer,
        data: Bytes,
        io: &IoContext,
    ) -> Result<(), ZioError> {
        self.suspension.check_writable()?;
        let check = BlockCheck::new(bp, &self.world, self.salt.get());
        if !check.verify(&data).await {
            return Err(ZioError::Checksum {
                block: name_of(bp),
                device_failed: false,
            });
        }
        let repair = io.for_repair();
        let mut written = Err("it has no place".to_owned());
        for dva in bp.dvas() {
            let result = self
                .tree
                .repair_block(dva.vdev(), dva.offset_bytes(), data.clone(), &repair)
                .await;
            match result {
                Ok(()) => written = Ok(()),
                Err(error) => {
                    tracing::warn!(cause = error.cause, %dva, "a bad copy could not be repaired");
                    written = written.or(Err(error.cause));
                }
            }
        }
        written.map_err(|cause| ZioError::Unreadable {
            block: name_of(bp),
            cause,
            device_failed: true,
        })
    }

    /// Reads `length` bytes of the block's copies (of a gang block: its header) until one is right;
    /// all of them for a scrub. Bad copies are written anew.
    pub(super) async fn read(
        &self,
        bp: &BlockPointer,
        length: usize,
        io: &IoContext,
    ) -> Result<(Bytes, ScrubOutcome), ZioError> {
        let io = &IoContext {
            since: Some(self.tree.repair_epoch()),
            ..*io
        };
        let mut result = self.try_copies(bp, length, io).await;
        if let Err(failure) = &result
            && failure.device
        {
            // Once more, as for every I/O (`zio_vdev_io_assess`, module/zfs/zio.c).
            tracing::debug!(cause = failure.cause, block = %bp, "a read failed; it is tried again");
            result = self.try_copies(bp, length, io).await;
        }
        let failure = match result {
            Ok(read) => return Ok(read),
            Err(failure) => failure,
        };
        // What is tried again is not damaged yet.
        if !io.speculative && !self.waits_for(bp, failure.device) {
            self.report_damage(bp, io.bookmark);
        }
        let block = name_of(bp);
        Err(if failure.checksum {
            ZioError::Checksum {
                block,
                device_failed: failure.device,
            }
        } else {
            ZioError::Unreadable {
                block,
                cause: failure.cause,
                device_failed: failure.device,
            }
        })
    }

    /// Reads one copy.
    async fn read_copy(
        &self,
        bp: &BlockPointer,
        dva: Dva,
        length: usize,
        io: &IoContext,
        check: &BlockCheck,
    ) -> Result<Bytes, ReadFailure> {
        let (tree, top, offset) = (&self.tree, dva.vdev(), dva.offset_bytes());
        let faults = vdev::injector(tree);
        if !faults.is_on() {
            return tree.read_block(top, offset, length, io, check).await;
        }
        let struck = Struck {
            check,
            faults,
            bp,
            io,
            copy: bp.dvas().position(|copy| copy == dva),
        };
        let io = struck.context();
        tree.read_block(top, offset, length, &io, &struck).await
    }

    fn try_copies<'a>(
        &'a self,
        bp: &'a BlockPointer,
        length: usize,
        io: &'a IoContext,
    ) -> BoxFuture<'a, Result<(Bytes, ScrubOutcome), ReadFailure>> {
        Box::pin(async move {
            let check = BlockCheck::new(bp, &self.world, self.salt.get());
            let mut places: Vec<_> = bp.dvas().collect();
            // Copies on vdevs that are not there come last.
            places.sort_by_key(|dva| {
                let top = self.tree.top(dva.vdev());
                !top.is_some_and(|top| top.is_readable())
            });
            let mut outcome = ScrubOutcome::default();
            let mut good: Option<Bytes> = None;
            let mut wrong = Vec::new();
            let mut failure: Option<ReadFailure> = None;
            let check = &check;
            let read = |dva: Dva| self.read_copy(bp, dva, length, io, check);
            // A scan wants all of them.
            let mut at_once = match io.scan.is_scan() && places.len() > 1 {
                true => join_all(places.iter().copied().map(read)).await,
                false => Vec::new(),
            }
            .into_iter();
            for dva in places {
                outcome.copies += 1;
                let result = match at_once.next() {
                    Some(result) => result,
                    None => read(dva).await,
                };
                match result {
                    Ok(data) => {
                        good.get_or_insert(data);
                        if !io.scan.is_scan() {
                            break;
                        }
                    }
                    Err(error) => {
                        outcome.bad_copies += 1;
                        // What a device did not give is written anew as well, as below a mirror
                        // (`vdev_mirror_io_done`, module/zfs/vdev_mirror.c).
                        let top = self.tree.top(dva.vdev());
                        let is_there = top.is_some_and(|top| top.is_readable());
                        if error.checksum || error.device && is_there && !error.slow {
                            wrong.push(dva);
                        }
                        let before = failure.take();
                        let or = |is: fn(&ReadFailure) -> bool| {
                            is(&error) || before.as_ref().is_some_and(is)
                        };
                        failure = Some(ReadFailure {
                            checksum: or(|failure| failure.checksum),
                            device: or(|failure| failure.device),
                            slow: false,
                            cause: error.cause.clone(),
                        });
                    }
                }
            }
            let Some(good) = good else {
                return Err(failure.unwrap_or(ReadFailure {
                    checksum: false,
                    device: false,
                    slow: false,
                    cause: "it has no place".to_owned(),
                }));
            };
            if !self.suspension.is_read_only() && !io.speculative {
                let repair = io.for_repair();
                for dva in wrong {
                    let result = self
                        .tree
                        .repair_block(dva.vdev(), dva.offset_bytes(), good.clone(), &repair)
                        .await;
                    if let Err(error) = result {
                        let cause = error.cause;
                        tracing::warn!(cause, %dva, "a bad copy could not be repaired");
                    }
                }
            }
            Ok((good, outcome))
        })
    }
}

pub(super) fn io_context(bp: &BlockPointer, context: &ReadContext) -> IoContext {
    IoContext {
        bookmark: context.bookmark,
        priority: context.priority,
        birth: bp.physical_birth(),
        speculative: context.speculative,
        ..IoContext::default()
    }
}
