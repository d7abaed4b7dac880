//! How long the I/O of a leaf takes, how large it is, and how much of it waits: what `zpool iostat
//! -l -q -r -w` shows.
//!
//! Counted as in `vdev_stat_update` (module/zfs/vdev.c; `vdev_stat_ex_t`, include/sys/fs/zfs.h):
//! I/O that succeeded, in histograms whose bucket *n* holds values from 2^n to 2^(n+1)-1, of
//! nanoseconds or bytes.
//!
//! **Classes.** There is no queue per class here, so I/O is sorted by what is known of it: reads by
//! their [`Priority`], those of a scrub or resilver apart; writes that go straight to the device
//! (intent log, labels, repairs of what a program read) are synchronous, queued ones (transaction
//! groups) and a scrub's repairs asynchronous. Discards have their sizes and their number under
//! way, but no queue to wait in. Sequential rebuilds count as scrubs: their own class stays at
//! zero. Queued writes are put together, a scrub's reads, and small ones ahead of who will ask;
//! other reads never are. Flushes, heartbeats, and what opens, labels and probes read are not
//! counted.
//!
//! **Times.** What a request waits for is a place (or its turn in the queue of writes), then the
//! device. Queue and total time are those of each request, the device's time that of each
//! operation, of which several queued writes may make one.
//!
//! Cost: two readings of the clock at most for an I/O, and no lock. For that, an I/O that had to
//! wait for its place is taken to have begun when the leaf's last one ended, and a writer's next
//! operation when its previous one ended: the time until a task runs counts as the device's.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::{BoxFuture, Clock};
use tokio::sync::SemaphorePermit;

use crate::io::IoContext;
use crate::report::Priority;

/// Buckets of latencies (`VDEV_L_HISTO_BUCKETS`); the last one also holds what takes longer.
pub const LATENCY_BUCKETS: usize = 37;
/// Buckets of sizes (`VDEV_RQ_HISTO_BUCKETS`); the last one also holds what is larger.
pub const SIZE_BUCKETS: usize = 25;
/// Classes of I/O, in this order: synchronous reads and writes, asynchronous reads and writes,
/// scrub, trim, rebuild.
pub const IO_CLASSES: usize = 7;

/// What takes the device longer is a slow I/O (`zio_slow_io_ms`, module/zfs/zio.c), in nanoseconds.
const SLOW_NS: u64 = 30_000_000_000;

/// When a device was at an operation, by the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) begun_ns: u64,
    pub(super) ended_ns: u64,
}

impl Span {
    pub(super) fn took_ns(self) -> u64 {
        self.ended_ns.saturating_sub(self.begun_ns)
    }

    pub(super) fn is_slow(self) -> bool {
        self.took_ns() >= SLOW_NS
    }
}

/// A class of I/O (`zio_priority_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IoClass {
    SyncRead,
    SyncWrite,
    AsyncRead,
    AsyncWrite,
    Scrub,
    Trim,
}

impl IoClass {
    pub(super) fn of_read(context: &IoContext) -> Self {
        match context.priority {
            _ if context.scan.is_scan() => IoClass::Scrub,
            Priority::Sync => IoClass::SyncRead,
            Priority::Async => IoClass::AsyncRead,
            Priority::Scrub => IoClass::Scrub,
        }
    }

    /// Of a write that goes straight to the device.
    pub(super) fn of_write(context: &IoContext) -> Self {
        match context.scan.is_scan() {
            true => IoClass::AsyncWrite,
            false => IoClass::SyncWrite,
        }
    }

    /// Whether somebody waits for it, or will soon.
    const fn is_foreground(self) -> bool {
        matches!(self, Self::SyncRead | Self::SyncWrite | Self::AsyncRead)
    }

    const fn index(self) -> usize {
        self as usize
    }

    /// Zero for what reads, one for what writes.
    const fn way(self) -> usize {
        match self {
            IoClass::SyncRead | IoClass::AsyncRead | IoClass::Scrub => 0,
            IoClass::SyncWrite | IoClass::AsyncWrite | IoClass::Trim => 1,
        }
    }
}

/// What is known of a vdev's I/O at one moment, since the pool was imported. Arrays of
/// [`IO_CLASSES`] are in that constant's order, those of two are reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoStats {
    /// Requests that wait for their turn.
    pub pending: [u64; IO_CLASSES],
    /// Operations that the device is at.
    pub active: [u64; IO_CLASSES],
    /// Operations of one request each, by bytes.
    pub individual: [[u64; SIZE_BUCKETS]; IO_CLASSES],
    /// Operations put together from several requests, by bytes.
    pub aggregated: [[u64; SIZE_BUCKETS]; IO_CLASSES],
    /// Requests by their time in all, in nanoseconds.
    pub total: [[u64; LATENCY_BUCKETS]; 2],
    /// Operations by the device's time, in nanoseconds.
    pub disk: [[u64; LATENCY_BUCKETS]; 2],
    /// Requests by the time that they waited, in nanoseconds.
    pub queued: [[u64; LATENCY_BUCKETS]; IO_CLASSES],
}

impl Default for IoStats {
    fn default() -> Self {
        IoStats {
            pending: [0; IO_CLASSES],
            active: [0; IO_CLASSES],
            individual: [[0; SIZE_BUCKETS]; IO_CLASSES],
            aggregated: [[0; SIZE_BUCKETS]; IO_CLASSES],
            total: [[0; LATENCY_BUCKETS]; 2],
            disk: [[0; LATENCY_BUCKETS]; 2],
            queued: [[0; LATENCY_BUCKETS]; IO_CLASSES],
        }
    }
}

impl IoStats {
    /// Adds those of another vdev.
    pub fn add(&mut self, other: &IoStats) {
        fn sum<const N: usize>(own: &mut [u64; N], other: &[u64; N]) {
            own.iter_mut()
                .zip(other)
                .for_each(|(own, other)| *own += other);
        }
        fn sums<const N: usize, const M: usize>(own: &mut [[u64; N]; M], other: &[[u64; N]; M]) {
            own.iter_mut()
                .zip(other)
                .for_each(|(own, other)| sum(own, other));
        }
        sum(&mut self.pending, &other.pending);
        sum(&mut self.active, &other.active);
        sums(&mut self.individual, &other.individual);
        sums(&mut self.aggregated, &other.aggregated);
        sums(&mut self.total, &other.total);
        sums(&mut self.disk, &other.disk);
        sums(&mut self.queued, &other.queued);
    }
}

#[derive(Debug)]
struct Histogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Histogram(array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Histogram<N> {
    fn count(&self, value: u64) {
        let bucket = value.checked_ilog2().unwrap_or(0) as usize;
        self.0[bucket.min(N - 1)].fetch_add(1, Ordering::Relaxed);
    }

    fn values(&self) -> [u64; N] {
        array::from_fn(|bucket| self.0[bucket].load(Ordering::Relaxed))
    }
}

/// Counts one more of something while it lives.
#[derive(Debug)]
pub(super) struct Held<'a>(&'a AtomicU64);

impl<'a> Held<'a> {
    fn new(gauge: &'a AtomicU64) -> Self {
        gauge.fetch_add(1, Ordering::Relaxed);
        Held(gauge)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters of one leaf.
pub(super) struct Meter {
    clock: Arc<dyn Clock>,
    pending: [AtomicU64; IO_CLASSES],
    active: [AtomicU64; IO_CLASSES],
    individual: [Histogram<SIZE_BUCKETS>; IO_CLASSES],
    aggregated: [Histogram<SIZE_BUCKETS>; IO_CLASSES],
    total: [Histogram<LATENCY_BUCKETS>; 2],
    disk: [Histogram<LATENCY_BUCKETS>; 2],
    queued: [Histogram<LATENCY_BUCKETS>; IO_CLASSES],
    /// When the last I/O ended.
    ended_ns: AtomicU64,
    /// When the last one ended that somebody waited for.
    foreground_ns: AtomicU64,
    /// Operations that took longer than [`SLOW_NS`], since the last 'zpool clear'.
    slow: AtomicU64,
}

impl Meter {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Meter {
            clock,
            pending: Default::default(),
            active: Default::default(),
            individual: Default::default(),
            aggregated: Default::default(),
            total: Default::default(),
            disk: Default::default(),
            queued: Default::default(),
            ended_ns: AtomicU64::new(0),
            foreground_ns: AtomicU64::new(0),
            slow: AtomicU64::new(0),
        }
    }

    /// Slow operations.
    pub(super) fn slow(&self) -> u64 {
        self.slow.load(Ordering::Relaxed)
    }

    /// Counts operations that take long, and are not waited for.
    pub(super) fn count_slow(&self, count: u64) {
        self.slow.fetch_add(count, Ordering::Relaxed);
    }

    /// Forgets the slow ones.
    pub(super) fn clear_slow(&self) {
        self.slow.store(0, Ordering::Relaxed);
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Completes after as many nanoseconds.
    pub(super) fn sleep_ns(&self, ns: u64) -> BoxFuture<'static, ()> {
        self.clock.sleep(Duration::from_nanos(ns))
    }

    /// When the last I/O ended.
    pub(super) fn ended_ns(&self) -> u64 {
        self.ended_ns.load(Ordering::Relaxed)
    }

    /// Whether somebody waits for I/O, or did less than `recently_ns` ago.
    pub(super) fn has_foreground(&self, recently_ns: u64) -> bool {
        let active = |class: IoClass| self.active[class.index()].load(Ordering::Relaxed) > 0;
        let classes = [IoClass::SyncRead, IoClass::SyncWrite, IoClass::AsyncRead];
        if classes.into_iter().any(active) {
            return true;
        }
        let last_ns = self.foreground_ns.load(Ordering::Relaxed);
        last_ns > 0 && self.now_ns().saturating_sub(last_ns) < recently_ns
    }

    /// A request waits, as long as the answer lives.
    pub(super) fn wait(&self, class: IoClass) -> Held<'_> {
        Held::new(&self.pending[class.index()])
    }

    /// A request waits until [`Self::take`].
    pub(super) fn put(&self, class: IoClass) {
        self.pending[class.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// So many requests do not wait any more.
    pub(super) fn take(&self, class: IoClass, count: u64) {
        self.pending[class.index()].fetch_sub(count, Ordering::Relaxed);
    }

    /// The device is at an operation, as long as the answer lives.
    pub(super) fn work(&self, class: IoClass) -> Held<'_> {
        Held::new(&self.active[class.index()])
    }

    /// The device has done an operation of so many bytes.
    pub(super) fn count_size(&self, class: IoClass, bytes: u64, is_aggregate: bool) {
        let histograms = match is_aggregate {
            true => &self.aggregated,
            false => &self.individual,
        };
        histograms[class.index()].count(bytes);
    }

    /// The device has just done an operation that began at `begun_ns`.
    pub(super) fn end(&self, class: IoClass, begun_ns: u64) -> Span {
        let ended_ns = self.now_ns();
        self.ended_ns.fetch_max(ended_ns, Ordering::Relaxed);
        if class.is_foreground() {
            self.foreground_ns.fetch_max(ended_ns, Ordering::Relaxed);
        }
        let span = Span { begun_ns, ended_ns };
        self.disk[class.way()].count(span.took_ns());
        if span.is_slow() {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
        span
    }

    /// A request was part of such an operation.
    pub(super) fn count_request(
        &self,
        class: IoClass,
        arrived_ns: u64,
        begun_ns: u64,
        ended_ns: u64,
    ) {
        self.total[class.way()].count(ended_ns.saturating_sub(arrived_ns));
        self.queued[class.index()].count(begun_ns.saturating_sub(arrived_ns));
    }

    pub(super) fn values(&self) -> IoStats {
        let load = |gauges: &[AtomicU64; IO_CLASSES]| {
            array::from_fn(|class| gauges[class].load(Ordering::Relaxed))
        };
        IoStats {
            pending: load(&self.pending),
            active: load(&self.active),
            individual: self.individual.each_ref().map(Histogram::values),
            aggregated: self.aggregated.each_ref().map(Histogram::values),
            total: self.total.each_ref().map(Histogram::values),
            disk: self.disk.each_ref().map(Histogram::values),
            queued: self.queued.each_ref().map(Histogram::values),
        }
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Meter")
            .field("pending", &self.pending)
            .field("active", &self.active)
            .finish_non_exhaustive()
    }
}

/// The place of an I/O that goes straight to the device. Dropped, it counts as failed.
pub(super) struct Place<'a> {
    pub(super) meter: &'a Meter,
    pub(super) class: IoClass,
    pub(super) arrived_ns: u64,
    pub(super) begun_ns: u64,
    /// Given back before the place in the queue is.
    pub(super) _active: Held<'a>,
    pub(super) _permit: SemaphorePermit<'a>,
}

impl Place<'_> {
    /// The device has done it; tells when.
    pub(super) fn done(self, bytes: u64) -> Span {
        let span = self.meter.end(self.class, self.begun_ns);
        self.meter.count_size(self.class, bytes, false);
        self.meter
            .count_request(self.class, self.arrived_ns, span.begun_ns, span.ended_ns);
        span
    }
}
