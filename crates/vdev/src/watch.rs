//! A device whose operations are watched: how long they wait for an answer.
//!
//! Devices fail in a way of their own when they do not answer at all. Nothing tells; only time
//! does. So a look at all operations that wait, once a second (`crate::deadman`), counts for each
//! how often it was seen waiting. Counted looks, not a clock: a process that was stopped for an
//! hour has not been waiting for its devices.
//!
//! A device that keeps an operation waiting *lags*: reads that can be answered elsewhere go there
//! ([`crate::io::IoContext::hasty`]). One that lags for long is *given up*: whoever waits for it
//! gets [`DeviceError::Hung`], and nothing more is given to it. What it had taken, it may still
//! carry out at any time; so it is not opened again before it has answered everything
//! ([`Device::outstanding`]).
//!
//! Discards may take a device minutes. They wait like others, but do not age.
//!
//! Lock: `state`, for a few instructions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use device::{BoxFuture, Device, DeviceError};
use format::Bookmark;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::report::{DeviceIo, Operation, Priority};

/// An operation that waits for its answer.
#[derive(Debug)]
struct Entry {
    /// `None` is a discard.
    operation: Option<Operation>,
    offset_bytes: u64,
    size_bytes: u64,
    /// At how many looks it waited.
    looks: u32,
    /// When it was seen first; zero before.
    seen_ns: u64,
    /// Nobody waits for the answer any more.
    is_left: bool,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    next: u64,
    left: usize,
    /// That it does not answer was told.
    is_told: bool,
}

/// What a look found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Waiting {
    /// At how many looks the oldest operation waited.
    pub(super) looks: u32,
    /// How many operations wait as long as was asked about.
    pub(super) overdue: u64,
    /// The oldest one, when it waits as long as that and nobody was told.
    pub(super) news: Option<DeviceIo>,
}

/// A device, watched.
pub(super) struct Watched {
    device: Arc<dyn Device>,
    state: Mutex<State>,
    given_up: AtomicBool,
    on_given_up: Notify,
    lags: AtomicBool,
    on_lag: Notify,
}

/// What is asked of a device, from which byte on and for how many bytes. `None` is a discard.
/// Everything counts that [`Device::outstanding`] may count.
type What = (Option<Operation>, u64, u64);

/// A question about the device as a whole.
const LOOK: What = (Some(Operation::Read), 0, 0);

/// Takes an operation off the list when it is answered. Dropped before that, nobody waits for it.
struct Watching<'a> {
    watched: &'a Watched,
    number: Option<u64>,
}

impl Watching<'_> {
    fn answered(mut self) {
        if let Some(number) = self.number.take() {
            self.watched.state.lock().entries.remove(&number);
        }
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.watched.state.lock();
        let state = &mut *state;
        if let Some(entry) = state.entries.get_mut(&number) {
            entry.is_left = true;
            state.left += 1;
        }
    }
}

impl Watched {
    pub(super) fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Watched {
            device,
            state: Mutex::default(),
            given_up: AtomicBool::new(false),
            on_given_up: Notify::new(),
            lags: AtomicBool::new(false),
            on_lag: Notify::new(),
        })
    }

    /// Looks once: see the module's head. `lag` and `overdue` are numbers of looks.
    pub(super) fn look(&self, now_ns: u64, lag: u32, overdue: u32) -> Waiting {
        let mut found = Waiting::default();
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            // Which of those that were left are answered is not known, but when all are.
            let waited_for = state.entries.len() - state.left;
            if state.left > 0 && self.device.outstanding() <= waited_for {
                state.entries.retain(|_, entry| !entry.is_left);
                state.left = 0;
            }
            let mut oldest: Option<&Entry> = None;
            for entry in state.entries.values_mut() {
                if entry.operation.is_none() {
                    continue;
                }
                entry.looks = entry.looks.saturating_add(1);
                if entry.seen_ns == 0 {
                    entry.seen_ns = now_ns;
                }
                found.overdue += u64::from(entry.looks >= overdue);
                if oldest.is_none_or(|oldest| oldest.looks < entry.looks) {
                    oldest = Some(entry);
                }
            }
            found.looks = oldest.map_or(0, |entry| entry.looks);
            if found.looks < overdue {
                state.is_told = false;
            } else if !std::mem::replace(&mut state.is_told, true) {
                found.news = oldest.and_then(|entry| {
                    Some(DeviceIo {
                        operation: entry.operation?,
                        offset_bytes: entry.offset_bytes,
                        size_bytes: entry.size_bytes,
                        bookmark: Bookmark::default(),
                        priority: Priority::Sync,
                        scrub: false,
                        retried: false,
                        begun_ns: entry.seen_ns,
                        took_ns: now_ns.saturating_sub(entry.seen_ns),
                    })
                });
            }
        }
        self.lags.store(found.looks >= lag, Ordering::Release);
        if found.looks >= lag {
            self.on_lag.notify_waiters();
        }
        found
    }

    /// Whether it keeps an operation waiting.
    pub(super) fn lags(&self) -> bool {
        self.lags.load(Ordering::Acquire)
    }

    /// Waits until it keeps an operation waiting.
    pub(super) async fn until_it_lags(&self) {
        loop {
            let lagging = self.on_lag.notified();
            if self.lags() {
                return;
            }
            lagging.await;
        }
    }

    /// Nobody waits for it any more, and nothing more is given to it.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.on_given_up.notify_waiters();
    }

    fn hung(&self) -> DeviceError {
        DeviceError::Hung {
            path: self.device.path().to_owned(),
        }
    }

    fn begin(&self, (operation, offset_bytes, size_bytes): What) -> Watching<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let entry = Entry {
            operation,
            offset_bytes,
            size_bytes,
            looks: 0,
            seen_ns: 0,
            is_left: false,
        };
        state.entries.insert(number, entry);
        Watching {
            watched: self,
            number: Some(number),
        }
    }

    /// Waits for an operation, unless the device is given up.
    async fn watch<T>(
        &self,
        what: What,
        work: impl Future<Output = Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        // Before it is asked whether it was: so that it cannot be missed.
        let given_up = self.on_given_up.notified();
        if self.given_up.load(Ordering::Acquire) {
            return Err(self.hung());
        }
        let watching = self.begin(what);
        tokio::select! {
            biased;
            result = work => {
                watching.answered();
                result
            }
            () = given_up => Err(self.hung()),
        }
    }
}

impl Device for Watched {
    fn path(&self) -> &str {
        self.device.path()
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn sector_bytes(&self) -> u32 {
        self.device.sector_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn keep_writers_out(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.watch(LOOK, self.device.keep_writers_out()))
    }

    fn look_again(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.watch(LOOK, self.device.look_again()))
    }

    fn read(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> BoxFuture<'_, Result<Bytes, DeviceError>> {
        let what = (Some(Operation::Read), offset_bytes, length_bytes as u64);
        let work = self.device.read(offset_bytes, length_bytes);
        Box::pin(self.watch(what, work))
    }

    fn write(&self, offset_bytes: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
        let what = (Some(Operation::Write), offset_bytes, data.len() as u64);
        let work = self.device.write(offset_bytes, data);
        Box::pin(self.watch(what, work))
    }

    fn write_vectored(
        &self,
        offset_bytes: u64,
        parts: Vec<Bytes>,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        let length: usize = parts.iter().map(Bytes::len).sum();
        let what = (Some(Operation::Write), offset_bytes, length as u64);
        let work = self.device.write_vectored(offset_bytes, parts);
        Box::pin(self.watch(what, work))
    }

    fn outstanding(&self) -> usize {
        self.device.outstanding()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        let what = (Some(Operation::Flush), 0, 0);
        Box::pin(self.watch(what, self.device.flush()))
    }

    fn write_durable(
        &self,
        offset_bytes: u64,
        data: Bytes,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        let what = (Some(Operation::Write), offset_bytes, data.len() as u64);
        let work = self.device.write_durable(offset_bytes, data);
        Box::pin(self.watch(what, work))
    }

    fn supports_discard(&self) -> bool {
        self.device.supports_discard()
    }

    fn discard(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        let what = (None, offset_bytes, length_bytes);
        let work = self.device.discard(offset_bytes, length_bytes);
        Box::pin(self.watch(what, work))
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.device.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use device::sim::{Fault, FaultEffect, SimOp, SimWorld};

    use super::*;

    const LAG: u32 = 2;
    const OVERDUE: u32 = 4;

    /// Goal: an operation counts until the device has answered it, whoever waits; one that was
    /// given up fails at once, as does all that comes later. Method: looks by hand at a disk that
    /// stalls.
    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_counts_until_it_is_answered() {
        let sim = SimWorld::new(1);
        let disk = sim.add_disk("d", 1 << 20);
        let opened = sim.world().opener.open("d", false).await.unwrap();
        let watched = Watched::new(opened);
        let look = || watched.look(1_000_000_000, LAG, OVERDUE);
        watched.write(0, vec![1; 512].into()).await.unwrap();
        assert_eq!(look().looks, 0, "what is answered does not wait");

        disk.inject(Fault::new(SimOp::Read, FaultEffect::Stall).times(1));
        let short = Duration::from_secs(1);
        let read = tokio::time::timeout(short, watched.read(0, 512)).await;
        assert!(read.is_err());
        assert_eq!((look().looks, watched.lags()), (1, false));
        // Others are answered meanwhile.
        watched.read(512, 512).await.unwrap();
        assert_eq!((look().looks, watched.lags()), (2, true));
        assert!(
            tokio::time::timeout(short, watched.until_it_lags())
                .await
                .is_ok()
        );
        assert_eq!(look().looks, 3);
        let news = look().news.expect("it is overdue");
        assert_eq!((news.operation, news.size_bytes), (Operation::Read, 512));
        assert!(look().news.is_none(), "it is told once");
        disk.release();
        assert_eq!((look().looks, watched.lags()), (0, false));

        disk.inject(Fault::new(SimOp::Write, FaultEffect::Stall));
        let waiting = {
            let watched = watched.clone();
            tokio::spawn(async move { watched.write_durable(4096, vec![2; 512].into()).await })
        };
        tokio::time::sleep(short).await;
        watched.give_up();
        let given_up = waiting.await.unwrap();
        assert!(matches!(given_up, Err(DeviceError::Hung { .. })));
        let later = watched.read(0, 512).await;
        assert!(matches!(later, Err(DeviceError::Hung { .. })));
        assert_eq!((disk.peek(4096, 1)[0], watched.outstanding()), (0, 1));
        disk.release();
        assert_eq!((disk.peek(4096, 1)[0], watched.outstanding()), (2, 0));
    }
    /// Goal: a discard does not age, nor does it make what was answered seem to wait. Method: one
    /// that takes a minute, while a read that nobody waited for is answered.
    #[tokio::test(start_paused = true)]
    async fn a_discard_under_way_makes_nothing_else_wait() {
        let sim = SimWorld::new(2);
        let disk = sim.add_disk("d", 1 << 20);
        let opened = sim.world().opener.open("d", false).await.unwrap();
        let watched = Watched::new(opened);
        let look = || watched.look(1_000_000_000, LAG, OVERDUE);
        disk.inject(Fault::new(SimOp::Read, FaultEffect::Stall).times(1));
        let slow = FaultEffect::Delay(Duration::from_secs(60));
        disk.inject(Fault::new(SimOp::Discard, slow).times(1));
        let short = Duration::from_secs(1);
        let read = tokio::time::timeout(short, watched.read(0, 512)).await;
        assert!(read.is_err());
        let discarding = {
            let watched = watched.clone();
            tokio::spawn(async move { watched.discard(0, 4096).await })
        };
        tokio::time::sleep(short).await;
        assert_eq!(look().looks, 1);
        disk.release();
        for _ in 0..2 * OVERDUE {
            assert_eq!((look().looks, watched.outstanding()), (0, 1));
        }
        assert!(!watched.lags());
        // One that was left counts as well.
        discarding.abort();
        let _ = discarding.await;
        assert_eq!((look().looks, look().overdue), (0, 0));
        watched.read(0, 512).await.unwrap();
    }

    /// A device of which nobody can tell what became of it.
    #[derive(Debug)]
    struct Deaf;

    impl Device for Deaf {
        fn path(&self) -> &str {
            "deaf"
        }

        fn size_bytes(&self) -> u64 {
            1 << 20
        }

        fn sector_bytes(&self) -> u32 {
            512
        }

        fn is_read_only(&self) -> bool {
            false
        }

        fn keep_writers_out(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
            Box::pin(std::future::pending())
        }

        fn look_again(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
            Box::pin(std::future::pending())
        }

        fn read(&self, _: u64, _: usize) -> BoxFuture<'_, Result<Bytes, DeviceError>> {
            Box::pin(std::future::pending())
        }

        fn write(&self, _: u64, _: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
            Box::pin(std::future::pending())
        }

        fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
            Box::pin(std::future::pending())
        }

        fn discard(&self, _: u64, _: u64) -> BoxFuture<'_, Result<(), DeviceError>> {
            Box::pin(std::future::pending())
        }
    }

    /// Whoever looks at a device again waits for its answer like others: it counts.
    #[tokio::test]
    async fn a_look_at_a_device_ages_like_a_read() {
        let watched = Watched::new(Arc::new(Deaf));
        let looking = tokio::spawn({
            let watched = watched.clone();
            async move { tokio::join!(watched.look_again(), watched.keep_writers_out()) }
        });
        tokio::task::yield_now().await;
        for count in 1..=OVERDUE {
            assert_eq!(watched.look(1, LAG, OVERDUE).looks, count);
        }
        assert_eq!(watched.look(1, LAG, OVERDUE).overdue, 2);
        watched.give_up();
        let (again, out) = looking.await.unwrap();
        assert!(matches!(again, Err(DeviceError::Hung { .. })));
        assert!(matches!(out, Err(DeviceError::Hung { .. })));
    }
}
