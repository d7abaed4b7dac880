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
//! Faults that were asked for ([`crate::inject`]) come here, between the watch and the device: one
//! that takes time keeps an operation waiting like a device that does.
//!
//! Lock: `state`, for a few instructions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use device::{BoxFuture, Device, DeviceError};
use format::{
    Bookmark, Guid, LABEL_BYTES, LABEL_COUNT, LABEL_END_BYTES, LABEL_START_BYTES, label_offset,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::inject::{After, Asked, Before, FaultIo, Injector};
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
    /// What it is made to do wrong.
    faults: Option<Arc<Injector>>,
    /// The guid of the leaf that has it; zero before.
    leaf: AtomicU64,
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
        Self::with_faults(device, None)
    }

    /// The device of a leaf, which does wrong what somebody asks for.
    pub(super) fn with_faults(device: Arc<dyn Device>, faults: Option<Arc<Injector>>) -> Arc<Self> {
        Arc::new(Watched {
            device,
            state: Mutex::default(),
            given_up: AtomicBool::new(false),
            on_given_up: Notify::new(),
            lags: AtomicBool::new(false),
            on_lag: Notify::new(),
            faults,
            leaf: AtomicU64::new(0),
        })
    }

    /// Says whose device it is.
    pub(super) fn set_leaf(&self, leaf: Guid) {
        self.leaf.store(leaf.get(), Ordering::Relaxed);
    }

    /// The error of a probe that is made to fail, if it is.
    pub(super) fn probe_fault(&self) -> Option<DeviceError> {
        // Where OpenZFS probes: the second padding of a label (`vdev_probe`, module/zfs/vdev.c).
        const PAD2: u64 = 8 << 10;
        let faults = self.faults()?;
        let fails = faults.after(&self.asked(FaultIo::Probe, PAD2)) == After::Fail;
        fails.then(|| self.injected(FaultIo::Probe, PAD2, PAD2))
    }

    /// What the device is made to do wrong, if anything is.
    fn faults(&self) -> Option<&Injector> {
        self.faults.as_deref().filter(|faults| faults.is_on())
    }

    fn asked(&self, io: FaultIo, offset: u64) -> Asked {
        let size = self.device.size_bytes() & !(LABEL_BYTES - 1);
        let mut labels = (0..LABEL_COUNT).filter_map(|label| label_offset(size, label));
        Asked {
            leaf: Guid::new(self.leaf.load(Ordering::Relaxed)),
            io,
            in_labels: offset < LABEL_START_BYTES || offset >= size.saturating_sub(LABEL_END_BYTES),
            label_offset: labels.find_map(|start| {
                let within = offset.checked_sub(start);
                within.filter(|within| *within < LABEL_BYTES)
            }),
        }
    }

    fn injected(&self, io: FaultIo, offset_bytes: u64, length_bytes: u64) -> DeviceError {
        const EIO: i32 = 5;
        DeviceError::Io {
            path: self.device.path().to_owned(),
            op: match io {
                FaultIo::Write => "write",
                FaultIo::Flush => "flush",
                FaultIo::Trim => "discard",
                FaultIo::Probe => "probe",
                _ => "read",
            },
            offset_bytes,
            length_bytes,
            source: std::io::Error::from_raw_os_error(EIO),
        }
    }

    /// Does an operation as it was asked for that it goes wrong. `lost` is what one gives that is
    /// not done, `spoil` flips a bit of what was read.
    async fn inject<'a, T: Send>(
        &'a self,
        faults: &'a Injector,
        (io, offset, length): (FaultIo, u64, u64),
        lost: impl FnOnce() -> T + Send,
        spoil: fn(T, u64) -> T,
        work: impl FnOnce() -> BoxFuture<'a, Result<T, DeviceError>> + Send,
    ) -> Result<T, DeviceError> {
        let asked = self.asked(io, offset);
        let until_ns = faults.delayed_until_ns(&asked);
        let failed = || Err(self.injected(io, offset, length));
        let result = match faults.before(&asked) {
            Before::Lose => Ok(lost()),
            Before::Refuse => failed(),
            Before::Go => match work().await {
                Ok(done) => match faults.after(&asked) {
                    After::Leave => Ok(done),
                    After::Fail => failed(),
                    After::Spoil(bit) => Ok(spoil(done, bit)),
                },
                Err(error) => Err(error),
            },
        };
        if let Some(until_ns) = until_ns {
            faults.wait_until(until_ns).await;
        }
        result
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

/// What was read, with one bit flipped: in a copy, as others may have it too.
fn with_bit_flipped(data: Bytes, drawn: u64) -> Bytes {
    let bits = data.len() as u64 * 8;
    if bits == 0 {
        return data;
    }
    let mut spoilt = data.to_vec();
    let bit = drawn % bits;
    spoilt[(bit / 8) as usize] ^= 1 << (bit % 8);
    Bytes::from(spoilt)
}

/// Nothing was read.
fn as_it_is((): (), _: u64) {}

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
        if let Some(faults) = self.faults() {
            let place = (FaultIo::Read, offset_bytes, length_bytes as u64);
            let lost = move || Bytes::from(vec![0; length_bytes]);
            let work = move || self.device.read(offset_bytes, length_bytes);
            let work = self.inject(faults, place, lost, with_bit_flipped, work);
            return Box::pin(self.watch(what, work));
        }
        let work = self.device.read(offset_bytes, length_bytes);
        Box::pin(self.watch(what, work))
    }

    fn write(&self, offset_bytes: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
        let length = data.len() as u64;
        let what = (Some(Operation::Write), offset_bytes, length);
        if let Some(faults) = self.faults() {
            let place = (FaultIo::Write, offset_bytes, length);
            let work = move || self.device.write(offset_bytes, data);
            let work = self.inject(faults, place, || (), as_it_is, work);
            return Box::pin(self.watch(what, work));
        }
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
        if let Some(faults) = self.faults() {
            let place = (FaultIo::Write, offset_bytes, length as u64);
            let work = move || self.device.write_vectored(offset_bytes, parts);
            let work = self.inject(faults, place, || (), as_it_is, work);
            return Box::pin(self.watch(what, work));
        }
        let work = self.device.write_vectored(offset_bytes, parts);
        Box::pin(self.watch(what, work))
    }

    fn outstanding(&self) -> usize {
        self.device.outstanding()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        let what = (Some(Operation::Flush), 0, 0);
        if let Some(faults) = self.faults() {
            let place = (FaultIo::Flush, 0, 0);
            let work = move || self.device.flush();
            let work = self.inject(faults, place, || (), as_it_is, work);
            return Box::pin(self.watch(what, work));
        }
        Box::pin(self.watch(what, self.device.flush()))
    }

    fn write_durable(
        &self,
        offset_bytes: u64,
        data: Bytes,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        let length = data.len() as u64;
        let what = (Some(Operation::Write), offset_bytes, length);
        if let Some(faults) = self.faults() {
            let place = (FaultIo::Write, offset_bytes, length);
            let work = move || self.device.write_durable(offset_bytes, data);
            let flushed = || {
                let done = std::future::ready(Ok(()));
                Box::pin(done) as BoxFuture<'_, Result<(), DeviceError>>
            };
            // A write and a flush.
            let work = async move {
                self.inject(faults, place, || (), as_it_is, work).await?;
                let place = (FaultIo::Flush, 0, 0);
                self.inject(faults, place, || (), as_it_is, flushed).await
            };
            return Box::pin(self.watch(what, work));
        }
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
        if let Some(faults) = self.faults() {
            let place = (FaultIo::Trim, offset_bytes, length_bytes);
            let work = move || self.device.discard(offset_bytes, length_bytes);
            let work = self.inject(faults, place, || (), as_it_is, work);
            return Box::pin(self.watch(what, work));
        }
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

    /// Goal: faults change what is answered, and never what is on the disk but where a write is to
    /// be lost. Method: a disk with each fault, looked into behind the watch.
    #[tokio::test(start_paused = true)]
    async fn faults_spoil_answers_and_not_the_disk() {
        use crate::inject::{FaultError, FaultKind};

        const AT: u64 = 5 << 20;
        let sim = SimWorld::new(3);
        let disk = sim.add_disk("d", 16 << 20);
        let world = sim.world();
        let opened = world.opener.open("d", false).await.unwrap();
        let faults = Injector::new(world.clock.clone());
        let watched = Watched::with_faults(opened, Some(faults.clone()));
        let leaf = Guid::new(5);
        watched.set_leaf(leaf);
        watched.write(AT, vec![1; 4096].into()).await.unwrap();
        let fault = |error, io| FaultKind::Device { leaf, error, io };

        faults.add(1, fault(FaultError::Corrupt, FaultIo::Read), None);
        let read = watched.read(AT, 4096).await.unwrap();
        let wrong = read.iter().filter(|byte| **byte != 1).count();
        assert_eq!(wrong, 1);
        faults.cancel(1);
        assert_eq!(watched.read(AT, 4096).await.unwrap(), vec![1; 4096]);

        faults.add(2, fault(FaultError::Io, FaultIo::All), None);
        assert!(watched.read(AT, 4096).await.is_err());
        assert!(watched.write(AT, vec![2; 4096].into()).await.is_err());
        assert_eq!(disk.peek(AT, 1)[0], 2, "it is done and fails");
        assert!(watched.flush().await.is_err());
        assert!(
            watched
                .write_durable(AT, vec![2; 512].into())
                .await
                .is_err()
        );
        // Labels are left alone.
        watched.write(0, vec![3; 512].into()).await.unwrap();
        assert!(watched.probe_fault().is_none());
        faults.cancel(2);

        faults.add(3, fault(FaultError::Noop, FaultIo::Write), None);
        watched.write(AT, vec![4; 512].into()).await.unwrap();
        watched
            .write_durable(AT, vec![4; 512].into())
            .await
            .unwrap();
        assert_eq!(disk.peek(AT, 1)[0], 2, "it is lost");
        faults.cancel(3);

        faults.add(4, fault(FaultError::IoPrefail, FaultIo::Write), None);
        assert!(watched.write(AT, vec![5; 512].into()).await.is_err());
        assert_eq!(disk.peek(AT, 1)[0], 2);
        faults.cancel(4);

        faults.add(5, fault(FaultError::Nxio, FaultIo::Probe), None);
        assert!(watched.probe_fault().is_some());
        watched.write(AT, vec![6; 512].into()).await.unwrap();
        faults.cancel(5);

        let delay = FaultKind::Delay {
            leaf,
            delay_ns: 3_000_000_000,
            lanes: 1,
            io: FaultIo::Read,
        };
        faults.add(6, delay, None);
        let begun_ns = world.clock.monotonic_ns();
        watched.read(AT, 512).await.unwrap();
        assert!(world.clock.monotonic_ns() - begun_ns >= 3_000_000_000);
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
