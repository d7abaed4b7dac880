//! A leaf: one device, its state, its counters, its queue.
//!
//! Offsets are those of the vdev's data: byte 0 is behind the front labels
//! ([`format::LABEL_START_BYTES`]), unless a function says "raw".
//!
//! Errors: a device that is gone is `Removed` at once. After any other failed write or flush, and
//! after a failed read, the device is *probed* (a small read and write in its label's padding);
//! if that fails as well it is `Faulted` and not used any more, until it is cleared or reopened
//! (`vdev_probe`, module/zfs/vdev.c). A failed flush faults the device in any case: what it had
//! acknowledged may be lost, and asking again would say that all is well. So it does to whoever
//! else is asking: no flush counts, and no durable write is answered, before all of them have ended
//! that were under way beside it (`leaf/under_way.rs`).
//!
//! What went wrong is reported ([`ErrorReport`]), by a device that is in use; a write that
//! succeeded when it was tried again did not go wrong. How many errors are too many is for others
//! to say (`VdevTree::fault`).
//!
//! Which txgs the leaf misses writes of is kept in its [`DirtyTimes`]: its content of those txgs is
//! not trusted.
//!
//! What the device has taken since its last flush may be lost when it goes away. So it is kept
//! (`kept`; the buffers are shared, and the device is flushed when they grow to
//! [`KEPT_BYTES_MAX`]). When the device is back, either others had its data meanwhile, and it
//! misses those txgs; or the pool stood still without it, and they are written again
//! (`leaf/kept.rs`). OpenZFS does not do this: there, such a pool may be resumed without them.
//!
//! A durable write ([`IoContext::durable`]) makes nothing else durable: what is kept stays so until
//! a flush. Where one fails, a flush within it may be what failed; so all that is kept is written
//! again before anything else is believed of the device.
//!
//! Nothing that changes the device is given to it while the pool is suspended (`common`), but for
//! what `zpool clear` does.
//!
//! Locks: `device` (read-mostly), `status`, those of `dirty_times`, `kept`; each for a few
//! instructions, never nested.

mod kept;
mod under_way;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use device::{Device, DeviceError, World};
use format::{BOOT_BYTES, Guid, LABEL_START_BYTES};
use parking_lot::{Mutex, RwLock};

pub(super) use self::kept::Stopped;
use self::kept::{KEPT_BYTES_MAX, Kept};
use self::under_way::UnderWay;
use super::common::Common;
use super::meter::{IoClass, IoStats, Place, Span};
use super::queue::Queue;
use super::state::{Counters, VdevAux, VdevState};
use super::sweep::Swept;
use super::watch::Watched;
use crate::dirty_times::DirtyTimes;
use crate::io::{IoContext, LeafError};
use crate::report::{DeviceIo, ErrorReport, Operation, Priority};

#[derive(Debug, Clone, Copy)]
struct Status {
    state: VdevState,
    aux: VdevAux,
    /// The last state other than closed, once there was one.
    told: Option<VdevState>,
}

/// One device of the pool.
pub struct Leaf {
    /// It takes over its parent's when it becomes a top-level vdev in its place.
    guid: AtomicU64,
    /// The one before that, which its labels have until the group is on disk; zero is none.
    former_guid: AtomicU64,
    world: World,
    common: Arc<Common>,
    device: RwLock<Option<Arc<Watched>>>,
    /// Devices that it had, and that may not have answered everything.
    pub(super) before: Mutex<Vec<Arc<Watched>>>,
    /// How often its device was given up since its errors were cleared.
    pub(super) hangs: AtomicU32,
    /// Its last device was given up, and it has had none since.
    pub(super) given_up: AtomicBool,
    status: Mutex<Status>,
    /// That it is out of use is not to outlast the import.
    temporary: AtomicBool,
    /// Same as `status.state.is_usable()`, for the fast path.
    usable: AtomicBool,
    /// The device was there at some time since the pool was opened.
    was_open: AtomicBool,
    /// How often it came into use.
    uses: AtomicU64,
    probing: AtomicBool,
    reads_in_flight: AtomicUsize,
    pub(super) counters: Arc<Counters>,
    queue: Queue,
    dirty_times: DirtyTimes,
    kept: Mutex<Kept>,
    /// Flushes under way, whose writes are kept again if they fail. Changed with `kept` locked.
    flushes: AtomicUsize,
    /// Flushes and durable writes under way. Where one failed, what is kept may be lost, whatever
    /// another one says.
    making_durable: UnderWay,
    /// Held shared by writes and flushes under way; alone from before a device is back until its
    /// writes are made again. So none overtakes a later one, and no flush takes for durable what
    /// the device has lost.
    writing: tokio::sync::RwLock<()>,
}

impl Leaf {
    pub(super) fn new(
        guid: Guid,
        world: World,
        common: Arc<Common>,
        counters: Arc<Counters>,
    ) -> Self {
        Leaf {
            guid: AtomicU64::new(guid.get()),
            former_guid: AtomicU64::new(0),
            queue: Queue::new(world.clock.clone(), common.scan_share.clone()),
            world,
            common,
            device: RwLock::new(None),
            before: Mutex::default(),
            hangs: AtomicU32::new(0),
            given_up: AtomicBool::new(false),
            status: Mutex::new(Status {
                state: VdevState::Closed,
                aux: VdevAux::None,
                told: None,
            }),
            temporary: AtomicBool::new(false),
            usable: AtomicBool::new(false),
            was_open: AtomicBool::new(false),
            uses: AtomicU64::new(0),
            probing: AtomicBool::new(false),
            reads_in_flight: AtomicUsize::new(0),
            counters,
            dirty_times: DirtyTimes::default(),
            kept: Mutex::default(),
            flushes: AtomicUsize::new(0),
            making_durable: UnderWay::default(),
            writing: tokio::sync::RwLock::new(()),
        }
    }

    /// Its guid.
    pub fn guid(&self) -> Guid {
        Guid::new(self.guid.load(Ordering::Relaxed))
    }

    /// Gives it another guid: see [`crate::topology`].
    pub(super) fn set_guid(&self, guid: Guid) {
        let former = self.guid.swap(guid.get(), Ordering::Relaxed);
        self.former_guid.store(former, Ordering::Relaxed);
        if let Some(device) = self.watched() {
            device.set_leaf(guid);
        }
    }

    /// The guid that it had before it took over its parent's.
    pub(super) fn former_guid(&self) -> Option<Guid> {
        let former = self.former_guid.load(Ordering::Relaxed);
        (former != 0).then(|| Guid::new(former))
    }

    /// The transaction groups whose writes it lacks.
    pub fn dirty_times(&self) -> &DirtyTimes {
        &self.dirty_times
    }

    /// Its state and why.
    pub fn state(&self) -> (VdevState, VdevAux) {
        let status = self.status.lock();
        (status.state, status.aux)
    }

    /// Changes the state, and reports that unless the device is closed or opened for the first time
    /// (`vdev_set_state`, module/zfs/vdev.c).
    pub(super) fn set_state(&self, state: VdevState, aux: VdevAux) {
        let before = {
            let mut status = self.status.lock();
            status.state = state;
            status.aux = aux;
            // Counted first: who finds it in use finds as well that it came. Else the end of a scan
            // in between would take it to have been there all the time.
            if state.is_usable() && !self.usable.load(Ordering::Acquire) {
                self.uses.fetch_add(1, Ordering::AcqRel);
            }
            self.usable.store(state.is_usable(), Ordering::Release);
            match state {
                VdevState::Closed => None,
                _ => status.told.replace(state),
            }
        };
        if let Some(from) = before.filter(|before| *before != state) {
            self.common.report(ErrorReport::State {
                leaf: self.guid(),
                from,
                to: state,
                aux,
            });
        }
    }

    /// How often it came into use: another number tells that it was away meanwhile.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Acquire)
    }

    /// Whether its state is not to outlast the import.
    pub(super) fn is_temporary(&self) -> bool {
        self.temporary.load(Ordering::Relaxed)
    }

    /// Says whether its state is to outlast the import.
    pub(super) fn set_temporary(&self, temporary: bool) {
        self.temporary.store(temporary, Ordering::Relaxed);
    }

    /// Attaches the open device, or takes it away.
    pub(super) fn set_device(&self, device: Option<Arc<Watched>>) {
        if let Some(device) = &device {
            device.set_leaf(self.guid());
            self.was_open.store(true, Ordering::Relaxed);
            self.given_up.store(false, Ordering::Relaxed);
            self.dirty_times.forget_failures();
        }
        let before = std::mem::replace(&mut *self.device.write(), device);
        if let Some(before) = before.filter(|before| before.outstanding() > 0) {
            self.before.lock().push(before);
        }
    }

    /// The open device, usable or not.
    pub fn device(&self) -> Option<Arc<dyn Device>> {
        Some(self.device.read().clone()?)
    }

    /// The same, as it is watched.
    pub(super) fn watched(&self) -> Option<Arc<Watched>> {
        self.device.read().clone()
    }

    /// Counts operations that take too long, and are not waited for.
    pub(super) fn count_slow(&self, count: u64) {
        self.queue.meter().count_slow(count);
    }

    /// How long its I/O takes, how large it is, and how much waits.
    pub fn io_stats(&self) -> IoStats {
        self.queue.meter().values()
    }

    /// Whether discards reach the medium; true while that is not known.
    pub fn supports_discard(&self) -> bool {
        let device = self.device.read();
        device
            .as_ref()
            .is_none_or(|device| device.supports_discard())
    }

    /// When its last I/O ended, by the monotonic clock, in nanoseconds.
    pub fn last_io_ns(&self) -> u64 {
        self.queue.meter().ended_ns()
    }

    /// I/Os that took the device longer than 30 seconds, since the last 'zpool clear'.
    pub fn slow_ios(&self) -> u64 {
        self.queue.meter().slow()
    }

    /// Forgets the slow I/Os, and that errors or they were too many for a device that works.
    pub(super) fn clear_errors(&self) {
        self.queue.meter().clear_slow();
        self.dirty_times.forget_failures();
        self.hangs.store(0, Ordering::Relaxed);
        if self.state().0 == VdevState::Degraded {
            self.set_state(VdevState::Healthy, VdevAux::None);
        }
    }

    /// Whether it can be read now.
    pub fn is_readable(&self) -> bool {
        self.usable.load(Ordering::Acquire)
    }

    /// Whether it stopped working since the pool was opened: 'zpool clear' may bring it back, with
    /// all it has.
    pub fn is_out(&self) -> bool {
        !self.is_readable() && self.was_open.load(Ordering::Relaxed)
    }

    /// Whether it can be written now.
    pub fn is_writeable(&self) -> bool {
        self.is_readable()
            && self
                .device
                .read()
                .as_ref()
                .is_some_and(|d| !d.is_read_only())
    }

    pub(super) fn reads_in_flight(&self) -> usize {
        self.reads_in_flight.load(Ordering::Relaxed)
    }

    fn usable_device(&self) -> Result<Arc<Watched>, LeafError> {
        let device = if self.is_readable() {
            self.device.read().clone()
        } else {
            None
        };
        device.ok_or_else(|| LeafError::Unavailable(self.state().0))
    }

    /// To be asked right before anything goes to the device that changes it.
    fn check_not_halted(&self) -> Result<(), LeafError> {
        match self.common.halt.is_halted() {
            true => Err(LeafError::Halted),
            false => Ok(()),
        }
    }

    /// Reads `length` bytes at `offset`.
    pub(crate) async fn read(
        self: &Arc<Self>,
        offset: u64,
        length: usize,
        context: &IoContext,
    ) -> Result<Bytes, LeafError> {
        let device = self.usable_device()?;
        if !context.hasty {
            return self.read_from(device, offset, length, context).await;
        }
        if device.lags() {
            return Err(LeafError::Slow);
        }
        let (leaf, watched, context) = (self.clone(), device.clone(), *context);
        let mut read =
            Box::pin(async move { leaf.read_from(device, offset, length, &context).await });
        tokio::select! {
            biased;
            result = &mut read => return result,
            () = watched.until_it_lags() => {}
        }
        // That it takes long, or fails, counts all the same.
        self.world.spawn.spawn(Box::pin(async move {
            let _ = read.await;
        }));
        Err(LeafError::Slow)
    }

    async fn read_from(
        self: &Arc<Self>,
        device: Arc<Watched>,
        offset: u64,
        length: usize,
        context: &IoContext,
    ) -> Result<Bytes, LeafError> {
        let device: Arc<dyn Device> = device;
        struct InFlight<'a>(&'a AtomicUsize);
        impl Drop for InFlight<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.reads_in_flight.fetch_add(1, Ordering::Relaxed);
        let in_flight = InFlight(&self.reads_in_flight);
        let raw = raw_offset(offset);
        let io = Self::io(Operation::Read, raw, length, context);
        let queue = &self.queue;
        let swept = queue.sweep(&device, raw, length, context.priority).await;
        let (result, io) = match swept {
            Some(Swept { data, span }) => {
                if let Some(span) = span.filter(|span| span.is_slow()) {
                    self.report_slow(io, span);
                }
                (Ok(data), io)
            }
            None => {
                let place = self.queue.read_place(context).await;
                let begun_ns = place.begun_ns;
                let io = DeviceIo { begun_ns, ..io };
                let result = device.read(raw, length).await;
                self.end(place, &result, io);
                (result, io)
            }
        };
        drop(in_flight);
        let result = match context.strike {
            true => result.and_then(|_| Err(struck(&*device, raw, length))),
            false => result,
        };
        match result {
            Ok(data) => {
                Counters::add(&self.counters.read_ops, 1);
                Counters::add(&self.counters.read_bytes, length as u64);
                Ok(data)
            }
            Err(error) => {
                // What may fail is not counted either (`vdev_stat_update`, module/zfs/vdev.c).
                Counters::add(&self.counters.read_errors, u64::from(!context.speculative));
                let error = Arc::new(error);
                self.failed(&error, (!context.speculative).then_some(io), true);
                Err(LeafError::Device(error))
            }
        }
    }

    /// Writes at `offset`. Writes of [`Priority::Sync`] go straight to the device, others through
    /// the queue. What fails is written once more (`zio_vdev_io_assess`, module/zfs/zio.c).
    pub(crate) async fn write(
        self: &Arc<Self>,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), LeafError> {
        let length = data.len() as u64;
        let result = self.write_or_fail(offset, data, context).await;
        if context.repair {
            if matches!(result, Err(LeafError::Halted)) && context.scan.is_scan() {
                self.dirty_times.note_scan_refused();
            }
            self.note_repair(result.is_ok(), length, context);
        }
        result
    }

    async fn write_or_fail(
        self: &Arc<Self>,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), LeafError> {
        let raw = raw_offset(offset);
        if context.durable && context.priority == Priority::Sync {
            return self.write_durable(raw, data, context).await;
        }
        let _writing = self.writing.read().await;
        let device = self.usable_device()?;
        if device.is_read_only() {
            return Err(LeafError::ReadOnly);
        }
        let kept = data.clone();
        let mut result = if context.priority == Priority::Sync {
            self.write_now(&*device, raw, data, context).await
        } else {
            let (done, start) = self.queue.push(raw, data, context.repair);
            if let Some(started_ns) = start {
                let (leaf, device) = (self.clone(), device.clone());
                self.world.spawn.spawn(Box::pin(async move {
                    let halt = &leaf.common.halt;
                    let slow = |raw, length: u64, span| {
                        let context = IoContext {
                            priority: Priority::Async,
                            ..IoContext::default()
                        };
                        let io = Self::io(Operation::Write, raw, length as usize, &context);
                        leaf.report_slow(io, span);
                    };
                    let queue = &leaf.queue;
                    queue.run_writer(&*device, halt, started_ns, &slow).await;
                }));
            }
            match done.await {
                Ok(result) => result,
                // The writer's task was ended, with the process or the simulated machine.
                Err(_) => return Err(LeafError::Unavailable(VdevState::Closed)),
            }
        };
        if let Err(LeafError::Device(error)) = &result {
            Counters::add(&self.counters.write_errors, 1);
            self.failed(error, None, true);
            if self.is_readable() {
                result = self.write_now(&*device, raw, kept.clone(), context).await;
            }
        }
        self.note_write(result, raw, kept, context).await
    }

    /// What a report tells of an operation at an offset of the device itself.
    fn io(operation: Operation, raw: u64, length: usize, context: &IoContext) -> DeviceIo {
        DeviceIo {
            operation,
            offset_bytes: raw,
            size_bytes: length as u64,
            bookmark: context.bookmark,
            priority: context.priority,
            scrub: context.scan.is_scan(),
            retried: false,
            begun_ns: 0,
            took_ns: 0,
        }
    }

    /// Gives the place of an I/O back; what failed is not measured.
    fn end<T, E>(&self, place: Place<'_>, result: &Result<T, E>, io: DeviceIo) {
        if result.is_ok() {
            let span = place.done(io.size_bytes);
            if span.is_slow() {
                self.report_slow(io, span);
            }
        }
    }

    fn report_slow(&self, io: DeviceIo, span: Span) {
        let io = DeviceIo {
            begun_ns: span.begun_ns,
            took_ns: span.took_ns(),
            ..io
        };
        if self.is_readable() {
            let leaf = self.guid();
            self.common.report(ErrorReport::Slow { leaf, io });
        }
    }

    /// Writes past the queue. `writing` is held.
    async fn write_now(
        &self,
        device: &dyn Device,
        raw: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), LeafError> {
        let io = Self::io(Operation::Write, raw, data.len(), context);
        let place = self.queue.sync_write_place(context).await;
        self.check_not_halted()?;
        let result = device.write(raw, data).await;
        self.end(place, &result, io);
        result.map_err(|error| LeafError::Device(Arc::new(error)))
    }

    /// A write that is durable when it is done, at an offset of the device itself. What is kept
    /// stays so, as only a flush covers that. What fails is written once more, and then flushed, so
    /// that it is known which of the two fails. It is not answered while a flush or another durable
    /// write is under way that was so when it was done: one that fails may take it along.
    async fn write_durable(
        self: &Arc<Self>,
        raw: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), LeafError> {
        let writing = self.writing.read().await;
        let device = self.usable_device()?;
        if device.is_read_only() {
            return Err(LeafError::ReadOnly);
        }
        let io = Self::io(Operation::Write, raw, data.len(), context);
        let place = self.queue.sync_write_place(context).await;
        self.check_not_halted()?;
        let turn = self.making_durable.begin();
        let result = device.write_durable(raw, data.clone()).await;
        // Where it failed, a flush did within it, perhaps, and the next one would say that all is
        // well.
        turn.end(result.is_ok());
        self.end(place, &result, io);
        if result.is_ok() {
            // Where a flush of somebody else fails, the device has perhaps dropped what was in its
            // cache, this one too, before the flush of this one went well. That is not known before
            // the other one has ended.
            self.making_durable.wait_for_these().await;
        }
        let Err(error) = result else {
            Counters::add(&self.counters.write_ops, 1);
            Counters::add(&self.counters.write_bytes, data.len() as u64);
            // It need not be kept, unless an older write to its place is, or may be again: that
            // would come over it when it is made again. (A rebuild copies places that are
            // allocated, whatever is there, and a log's block may come there later.) Or another one
            // failed meanwhile, or a flush did, and what failed of that may have taken this one
            // along: it is made again with the others.
            let is_sure = {
                let mut kept = self.kept.lock();
                let is_sure = !self.making_durable.is_doubted();
                let is_under = self.flushes.load(Ordering::Relaxed) > 0;
                if !is_sure || is_under || kept.overlaps(raw, data.len()) {
                    kept.push(raw, data, context.birth);
                }
                is_sure
            };
            drop(writing);
            if is_sure {
                return Ok(());
            }
            return self.flush().await.map_err(|error| match error {
                // It is kept, for when the device is back.
                LeafError::Unavailable(state) => LeafError::Unflushed(state),
                LeafError::Device(error) => LeafError::Flush(error),
                error => error,
            });
        };
        drop(writing);
        let error = Arc::new(error);
        Counters::add(&self.counters.write_errors, 1);
        self.failed(&error, None, true);
        let is_away = matches!(*error, DeviceError::Gone { .. } | DeviceError::Hung { .. });
        if is_away || !self.is_readable() || self.common.halt.is_halted() {
            return Err(LeafError::Device(error));
        }
        let stopped = self.stop_writes().await;
        let rewritten = self.rewrite_kept(&stopped, false).await;
        drop(stopped);
        match rewritten {
            Ok(()) => {}
            // It is faulted. What it may have lost is kept for when it is back, this as well.
            Err(LeafError::Flush(error) | LeafError::Device(error)) => {
                self.kept.lock().push(raw, data, context.birth);
                return Err(LeafError::Flush(error));
            }
            Err(other) => return Err(other),
        }
        let writing = self.writing.read().await;
        let device = self.usable_device()?;
        let result = self.write_now(&*device, raw, data.clone(), context).await;
        self.note_write(result, raw, data, context).await?;
        drop(writing);
        self.flush().await
    }

    async fn note_write(
        self: &Arc<Self>,
        result: Result<(), LeafError>,
        raw: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), LeafError> {
        match result {
            Ok(()) => {
                Counters::add(&self.counters.write_ops, 1);
                Counters::add(&self.counters.write_bytes, data.len() as u64);
                let is_full = {
                    let mut kept = self.kept.lock();
                    kept.push(raw, data, context.birth);
                    kept.bytes > KEPT_BYTES_MAX
                };
                // A device that is gone by now is somebody else's business: the write is kept.
                if is_full && self.is_readable() && !self.common.halt.is_halted() {
                    // Where it is doubted, the next write tries it again.
                    self.flush_kept().await?;
                }
                Ok(())
            }
            Err(LeafError::Device(error)) => {
                Counters::add(&self.counters.write_errors, 1);
                let io = DeviceIo {
                    retried: true,
                    ..Self::io(Operation::Write, raw, data.len(), context)
                };
                self.failed(&error, (!context.speculative).then_some(io), true);
                Err(LeafError::Device(error))
            }
            Err(error) => Err(error),
        }
    }

    /// A place whose content does not matter, next to others that are written.
    pub(crate) fn write_optional(&self, offset: u64, length: usize) {
        if self.is_readable() {
            self.queue
                .push_optional(offset.saturating_add(LABEL_START_BYTES), length as u64);
        }
    }

    /// Tells the device that a range holds nothing any more.
    pub(crate) async fn discard(&self, offset: u64, length: u64) -> Result<(), LeafError> {
        let device = self.usable_device()?;
        self.check_not_halted()?;
        let meter = self.queue.meter();
        let _active = meter.work(IoClass::Trim);
        let raw = offset.saturating_add(LABEL_START_BYTES);
        if let Err(error) = device.discard(raw, length).await {
            Counters::add(&self.counters.trim_errors, 1);
            return Err(LeafError::Device(Arc::new(error)));
        }
        meter.count_size(IoClass::Trim, length, false);
        Counters::add(&self.counters.trim_ops, 1);
        Counters::add(&self.counters.trim_bytes, length);
        Ok(())
    }

    /// Writes at an offset of the device itself (labels).
    pub(crate) async fn write_raw(
        self: &Arc<Self>,
        raw: u64,
        data: Bytes,
    ) -> Result<(), LeafError> {
        let _writing = self.writing.read().await;
        let device = self.usable_device()?;
        let context = IoContext::default();
        let result = self.write_now(&*device, raw, data.clone(), &context).await;
        self.note_write(result, raw, data, &context).await
    }

    /// Writes at an offset of the device itself what need not be written again when it was lost
    /// (heartbeats).
    pub(super) async fn write_unkept(
        self: &Arc<Self>,
        raw: u64,
        data: Bytes,
    ) -> Result<(), LeafError> {
        let device = self.usable_device()?;
        self.check_not_halted()?;
        let length = data.len() as u64;
        let io = Self::io(Operation::Write, raw, data.len(), &IoContext::default());
        match device.write(raw, data).await {
            Ok(()) => {
                Counters::add(&self.counters.write_ops, 1);
                Counters::add(&self.counters.write_bytes, length);
                Ok(())
            }
            Err(error) => {
                let error = Arc::new(error);
                Counters::add(&self.counters.write_errors, 1);
                self.failed(&error, Some(io), true);
                Err(LeafError::Device(error))
            }
        }
    }

    /// Counts and reports wrong data from this device. What it is known to lack is no error
    /// (`zfs_ereport_is_valid`, module/zfs/zfs_fm.c).
    pub(crate) fn note_checksum_error(&self, offset: u64, length: usize, context: &IoContext) {
        if context.speculative || self.dirty_times.is_missing(context.birth) {
            return;
        }
        Counters::add(&self.counters.checksum_errors, 1);
        let raw = raw_offset(offset);
        self.common.report(ErrorReport::Checksum {
            leaf: self.guid(),
            io: Self::io(Operation::Read, raw, length, context),
        });
    }

    /// Takes note of a write that put wrong or missing data right, or was to. One of a scan that
    /// failed leaves its txg missing when the scan ends (`DTL_SCRUB`, `vdev_stat_update`,
    /// module/zfs/vdev.c).
    fn note_repair(&self, is_written: bool, length: u64, context: &IoContext) {
        if is_written {
            Counters::add(&self.counters.repaired_bytes, length);
        }
        match (context.scan.is_scan(), is_written) {
            (true, true) => Counters::add(&self.counters.scan_repaired_bytes, length),
            (true, false) if !context.birth.is_zero() => {
                self.dirty_times.note_scan_failed(context.birth);
            }
            _ => {}
        }
    }

    /// After an error. It is reported if there is something to report, unless the device is out of
    /// use by now; that it is gone its state tells.
    fn failed(self: &Arc<Self>, error: &Arc<DeviceError>, report: Option<DeviceIo>, probe: bool) {
        tracing::debug!(leaf = %self.guid(), %error, "a device failed");
        match **error {
            DeviceError::Gone { .. } => {
                self.set_state(VdevState::Removed, VdevAux::None);
                return;
            }
            // Who gave it up says what that means; it would not answer a probe either.
            DeviceError::Hung { .. } => return,
            _ => {}
        }
        if let Some(io) = report.filter(|_| self.is_readable()) {
            self.common.report(ErrorReport::Device {
                leaf: self.guid(),
                io,
                errno: errno(error),
                message: error.to_string(),
            });
        }
        if probe && !self.probing.swap(true, Ordering::AcqRel) {
            let leaf = self.clone();
            self.world.spawn.spawn(Box::pin(async move {
                leaf.probe().await;
                leaf.probing.store(false, Ordering::Release);
            }));
        }
    }

    /// Whether the device still reads and writes: the padding of any of its labels, which holds
    /// nothing. One that has lost some of them is not lost.
    async fn probe(self: &Arc<Self>) {
        let Ok(device) = self.usable_device() else {
            return;
        };
        const PAD_BYTES: usize = 8 << 10;
        let fault = device.probe_fault();
        let aligned = device.size_bytes() & !(format::LABEL_BYTES - 1);
        let mut broken = Some("it is too small for labels".to_owned());
        let all = 0..format::LABEL_COUNT;
        for raw in all.filter_map(|label| format::label_offset(aligned, label)) {
            if let Some(fault) = &fault {
                broken = Some(fault.to_string());
                break;
            }
            let may_write = || !device.is_read_only() && !self.common.halt.is_halted();
            let result = match device.read(raw, PAD_BYTES).await {
                Ok(data) if may_write() => device.write(raw, data).await,
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            broken = result.err().map(|error| error.to_string());
            if broken.is_none() {
                return;
            }
        }
        if let Some(error) = broken
            && self.is_readable()
        {
            let path = device.path();
            tracing::error!(
                leaf = %self.guid(), path, error, "a device does not work any more: faulted"
            );
            self.common.report(ErrorReport::ProbeFailed {
                leaf: self.guid(),
                state: self.state().0,
            });
            self.set_state(VdevState::Faulted, VdevAux::ErrorsExceeded);
        }
    }
}

/// The offset on the device itself. Just below zero is the space for boot loaders, the scratch
/// space of a RAID-Z expansion.
fn raw_offset(offset: u64) -> u64 {
    match offset >= BOOT_BYTES.wrapping_neg() {
        true => offset.wrapping_add(LABEL_START_BYTES),
        false => offset.saturating_add(LABEL_START_BYTES),
    }
}

/// The error of a read that is made to fail ([`IoContext::strike`]).
fn struck(device: &dyn Device, offset_bytes: u64, length: usize) -> DeviceError {
    const EIO: i32 = 5;
    DeviceError::Io {
        path: device.path().to_owned(),
        op: "read",
        offset_bytes,
        length_bytes: length as u64,
        source: std::io::Error::from_raw_os_error(EIO),
    }
}

/// The system's number of an error: EIO where the device has none of its own.
fn errno(error: &DeviceError) -> i32 {
    const EIO: i32 = 5;
    match error {
        DeviceError::Io { source, .. } => source.raw_os_error().unwrap_or(EIO),
        _ => EIO,
    }
}

impl std::fmt::Debug for Leaf {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Leaf")
            .field("guid", &self.guid())
            .field("state", &self.state())
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}
