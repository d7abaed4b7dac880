//! What a leaf's device has taken since its last flush, which may be lost when it goes away.
//!
//! When the device is back, either others had its data meanwhile, and it misses those txgs
//! ([`Leaf::forget_kept`]); or the pool stood still without it, and they are written again
//! ([`Leaf::rewrite_kept`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use device::{Device, DeviceError};
use format::Txg;

use super::Leaf;
use crate::io::{IoContext, LeafError};
use crate::report::Operation;
use crate::state::{Counters, VdevAux, VdevState};

/// Bytes of writes that are kept until the device was flushed; then it is flushed for that.
pub(super) const KEPT_BYTES_MAX: u64 = 128 << 20;

/// A write that a device took.
#[derive(Debug, Clone)]
struct KeptWrite {
    /// Later ones have higher numbers.
    number: u64,
    raw: u64,
    data: Bytes,
}

/// Writes that a device took since its last flush, in the order in which it did.
#[derive(Debug, Default)]
pub(super) struct Kept {
    writes: Vec<KeptWrite>,
    /// The number of the next one.
    next: u64,
    pub(super) bytes: u64,
    /// First and last txg of them; labels have none.
    txgs: Option<(u64, u64)>,
}

impl Kept {
    pub(super) fn push(&mut self, raw: u64, data: Bytes, birth: Txg) {
        self.bytes += data.len() as u64;
        let number = self.next;
        self.next += 1;
        self.writes.push(KeptWrite { number, raw, data });
        if !birth.is_zero() {
            self.add_txgs(Some((birth.get(), birth.get())));
        }
    }

    /// All of them. Those that come now are later.
    fn take(&mut self) -> Kept {
        let empty = Kept {
            next: self.next,
            ..Kept::default()
        };
        std::mem::replace(self, empty)
    }

    /// Whether some of them are where `length` bytes at `raw` are.
    pub(super) fn overlaps(&self, raw: u64, length: usize) -> bool {
        let end = raw.saturating_add(length as u64);
        let mut places = self
            .writes
            .iter()
            .map(|write| (write.raw, write.data.len()));
        places.any(|(at, length)| at < end && raw < at.saturating_add(length as u64))
    }

    /// Puts some back that were taken. Others that were taken later may be back already: a place
    /// that both wrote is to have what is in the later ones.
    fn put_back(&mut self, mut taken: Kept) {
        if taken.writes.is_empty() {
            return;
        }
        taken.writes.append(&mut self.writes);
        taken.writes.sort_by_key(|write| write.number);
        self.bytes += taken.bytes;
        self.writes = taken.writes;
        self.add_txgs(taken.txgs);
    }

    fn add_txgs(&mut self, more: Option<(u64, u64)>) {
        self.txgs = match (self.txgs, more) {
            (Some((first, last)), Some(more)) => Some((first.min(more.0), last.max(more.1))),
            (txgs, more) => txgs.or(more),
        };
    }
}

/// Writes whose flush is under way: kept again unless it succeeds.
struct Flushing<'a> {
    leaf: &'a Leaf,
    writes: Kept,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        let writes = std::mem::take(&mut self.writes);
        let mut kept = self.leaf.kept.lock();
        kept.put_back(writes);
        self.leaf.flushes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// While this is held a leaf takes no writes and no flushes.
pub(crate) struct Stopped<'a> {
    _writing: tokio::sync::RwLockWriteGuard<'a, ()>,
}

impl Leaf {
    /// Makes completed writes durable.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), LeafError> {
        self.queue.clear_optional();
        {
            let _writing = self.writing.read().await;
            self.check_not_halted()?;
            if self.flush_kept().await? {
                return Ok(());
            }
        }
        // This makes all durable that was written before, and nothing else is under way meanwhile:
        // a device that refuses nothing but durable writes holds up nobody for ever.
        let stopped = self.stop_writes().await;
        self.rewrite_kept(&stopped, false).await
    }

    /// [`Self::flush`]; `writing` is held. `false` where a durable write or another flush has
    /// failed, also meanwhile: the device may have lost something before this flush, which then has
    /// nothing to fail for. All is kept still, and is to be written again first.
    pub(super) async fn flush_kept(self: &Arc<Self>) -> Result<bool, LeafError> {
        let device = self.usable_device()?;
        if device.is_read_only() {
            return Ok(true);
        }
        let mut flushing = self.begin_flush();
        let turn = self.making_durable.begin();
        match device.flush().await {
            Ok(()) => {
                turn.end(true);
                // Of those under way it is not known yet.
                self.making_durable.wait_for_these().await;
                let is_sure = !self.making_durable.is_doubted();
                if is_sure {
                    flushing.writes = Kept::default();
                }
                Ok(is_sure)
            }
            Err(error) => {
                drop(flushing);
                let error = self.flush_failed(error);
                // Last: who waited for it finds the device faulted.
                turn.end(false);
                Err(LeafError::Flush(error))
            }
        }
    }

    /// Takes what a flush that begins now makes durable. A write that the device takes from now on
    /// is kept when it is done, with its txg.
    fn begin_flush(&self) -> Flushing<'_> {
        let mut kept = self.kept.lock();
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Flushing {
            leaf: self,
            writes: kept.take(),
        }
    }

    /// A flush failed, and what it was to make durable is kept again.
    fn flush_failed(self: &Arc<Self>, error: DeviceError) -> Arc<DeviceError> {
        let error = Arc::new(error);
        Counters::add(&self.counters.write_errors, 1);
        let io = Self::io(Operation::Flush, 0, 0, &IoContext::default());
        self.failed(&error, Some(io), false);
        if self.is_readable() {
            self.set_state(VdevState::Faulted, VdevAux::ErrorsExceeded);
        }
        error
    }

    /// Whether there are writes that no flush has covered yet.
    pub(crate) fn has_kept(&self) -> bool {
        !self.kept.lock().writes.is_empty()
    }

    /// The pool goes on without this device, which may have lost its last writes: it misses their
    /// txgs.
    pub(crate) fn forget_kept(&self) {
        let forgotten = self.kept.lock().take();
        if let Some((first, last)) = forgotten.txgs {
            self.dirty_times.note_unflushed(first, last);
        }
    }

    /// Waits for writes and flushes under way, and lets no others begin: before a device is opened
    /// again, or to know what it has taken and not flushed.
    pub(crate) async fn stop_writes(&self) -> Stopped<'_> {
        Stopped {
            _writing: self.writing.write().await,
        }
    }

    /// Writes again, in order, what the device may have lost, and flushes it: when it is back, and
    /// the pool stood still without it (then also if the pool is `halted`), or after an error that
    /// may have been a flush's.
    pub(crate) async fn rewrite_kept(
        self: &Arc<Self>,
        _stopped: &Stopped<'_>,
        halted: bool,
    ) -> Result<(), LeafError> {
        let writes = self.kept.lock().writes.clone();
        if writes.is_empty() {
            self.making_durable.believe();
            return Ok(());
        }
        tracing::info!(
            leaf = %self.guid(), count = writes.len(),
            "writing again what a device may have lost"
        );
        let device = self.usable_device()?;
        for write in writes {
            if !halted {
                self.check_not_halted()?;
            }
            if let Err(error) = device.write(write.raw, write.data).await {
                let error = Arc::new(error);
                Counters::add(&self.counters.write_errors, 1);
                self.failed(&error, None, false);
                if self.is_readable() {
                    self.set_state(VdevState::Faulted, VdevAux::ErrorsExceeded);
                }
                return Err(LeafError::Device(error));
            }
        }
        if !halted {
            self.check_not_halted()?;
        }
        // Nothing is written meanwhile that could have it doubted again.
        self.making_durable.believe();
        self.flush_kept().await.map(|_| ())
    }
}
