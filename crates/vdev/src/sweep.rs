//! Reads of one leaf that are put together: a scrub's or resilver's, and small ones ahead of who
//! will ask.
//!
//! **Adjacent reads are one.** Requests wait by offset. Whoever gets a place takes the next run of
//! them, also those of others, across gaps that cost less than another operation would, and reads
//! it at once (`vdev_queue_aggregate`, module/zfs/vdev_queue.c, with `zfs_vdev_read_gap_limit`).
//! Runs are taken in rising order, starting again at the front. What fails as part of a run is read
//! alone by who asked for it, and who goes away in the middle of a read leaves the others of the
//! run to do the same. A scan's runs go across longer gaps, as those of a pool that is old are:
//! reading on for a millisecond is sooner done than another operation of a disk that turns. But no
//! more is read in vain than twice what is wanted, which is what a fast device may lose by it.
//!
//! **Few at a time.** The more operations are under way, the fewer reads are left to be one: a disk
//! that does few operations per second would be given small ones (`zfs_vdev_scrub_max_active`,
//! `zfs_vdev_async_read_max_active`). What is read ahead has more of them when a crowd waits that
//! is all over the device. A scan has one, and more while a whole run waits.
//!
//! **Scans let others go first.** While somebody waits for I/O of this leaf, or did a moment ago,
//! one of a scan's reads is under way at a time, a shorter one, and then none for as long as it
//! took (`zfs_vdev_nia_delay`, the same file: non-interactive I/O is held to its minimum while
//! there is interactive I/O). A disk that answers others is busy with a scan half of the time at
//! most. Where a scan has a share of the disks' time, it has that instead of the half, and has it
//! also where nobody else waits.
//!
//! **What stays in memory is copied** out of the run: a block that is kept would keep the whole run
//! with it. So are a scan's blocks of a run that is mostly gaps: a device that is given them keeps
//! them until it is flushed.
//!
//! Lock: `waiting`, for operations on maps only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use bytes::Bytes;
use device::Device;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use super::meter::{IoClass, Meter, Span};

/// A scan's operation under way, and how many more there are while [`RUN_BYTES_MAX`] wait.
const SCANS_MAX: usize = 1;
const SCANS_MORE: usize = 3;
/// Operations ahead of who will ask, and how many more there are while so many reads wait.
const AHEAD_MAX: usize = 3;
const AHEAD_MORE: usize = 29;
const CROWD: usize = 48;
/// Bytes of one operation made of several reads (`zfs_vdev_aggregation_limit`).
const RUN_BYTES_MAX: u64 = 1 << 20;
/// The same while others have I/O here.
const COURTEOUS_BYTES_MAX: u64 = 512 << 10;
/// What of an operation beside others' I/O counts for how long none is begun after it, at most, in
/// nanoseconds.
const REST_NS_MAX: u64 = 100_000_000;
/// The longest that none is begun, however small a share is: a turn of the sync loop waits for what
/// it has begun to read.
const SHARE_REST_NS_MAX: u64 = 1_000_000_000;
/// Percent of a device's time that a scan has beside others' I/O, unless something else is said.
const SHARE_BESIDE_OTHERS: u64 = 50;
/// Bytes between two reads that are read as well (`zfs_vdev_read_gap_limit`).
const GAP_BYTES_MAX: u64 = 32 << 10;
/// The same of a scan, whose run has at least half as much that is wanted as is not.
const SCAN_GAP_BYTES_MAX: u64 = 128 << 10;
/// For how long I/O that somebody waited for counts as still there, in nanoseconds.
const COURTESY_NS: u64 = 20_000_000;

/// What was read, and when, for one of those whose reads were one.
#[derive(Debug)]
pub(super) struct Swept {
    pub(super) data: Bytes,
    pub(super) span: Option<Span>,
}

struct Entry {
    /// The device as it was open for who asked: it may be opened again meanwhile.
    device: Arc<dyn Device>,
    length: u64,
    arrived_ns: u64,
    done: oneshot::Sender<Swept>,
}

#[derive(Default)]
struct Waiting {
    /// By (offset on the device, order of arrival).
    entries: BTreeMap<(u64, u64), Entry>,
    arrivals: u64,
    /// Sum of their lengths.
    bytes: u64,
    /// Where the last run ended.
    head: u64,
}

/// Reads that are one operation.
struct Run {
    device: Arc<dyn Device>,
    offset: u64,
    end: u64,
    /// Bytes in between that nobody asked for.
    gap_bytes: u64,
    parts: Vec<(u64, Entry)>,
}

/// How long a run may be.
#[derive(Debug, Clone, Copy)]
struct Reach {
    bytes_max: u64,
    /// The longest gap where most is wanted.
    gap_bytes_max: u64,
}

/// The reads of one kind of one leaf.
pub(super) struct Sweep {
    class: IoClass,
    /// Places for operations.
    pub(super) places: Semaphore,
    /// More of them, for a crowd.
    more: Semaphore,
    /// The one place while others have I/O here.
    courtesy: Semaphore,
    /// Until when that rests, by the meter's clock; written by who has it.
    rest_until_ns: AtomicU64,
    /// The percentage of the device's time that the scan has; zero: none is said.
    share: Arc<AtomicU8>,
    waiting: Mutex<Waiting>,
}

impl Sweep {
    /// Of scrubs and resilvers.
    pub(super) fn of_scans() -> Self {
        Self::new(IoClass::Scrub, SCANS_MAX, SCANS_MORE)
    }

    /// The same, with the share of the device's time that others say, in percent.
    pub(super) fn with_share(self, share: Arc<AtomicU8>) -> Self {
        Sweep { share, ..self }
    }

    /// Of what nobody asked for yet.
    pub(super) fn ahead() -> Self {
        Self::new(IoClass::AsyncRead, AHEAD_MAX, AHEAD_MORE)
    }

    fn new(class: IoClass, places: usize, more: usize) -> Self {
        Sweep {
            class,
            places: Semaphore::new(places),
            more: Semaphore::new(more),
            courtesy: Semaphore::new(1),
            rest_until_ns: AtomicU64::new(0),
            share: Arc::default(),
            waiting: Mutex::default(),
        }
    }
}

impl std::fmt::Debug for Sweep {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Sweep")
            .field("waiting", &self.waiting.lock().entries.len())
            .finish_non_exhaustive()
    }
}

impl Sweep {
    /// Reads `length` bytes at `offset` of the device; `None` when that is to be tried alone.
    pub(super) async fn read(
        &self,
        meter: &Meter,
        device: &Arc<dyn Device>,
        offset: u64,
        length: usize,
    ) -> Option<Swept> {
        let (done, mut answer) = oneshot::channel();
        let arrived_ns = meter.now_ns();
        let entry = Entry {
            device: device.clone(),
            length: length as u64,
            arrived_ns,
            done,
        };
        self.waiting.lock().push(offset, entry);
        let _waiting = meter.wait(self.class);
        loop {
            tokio::select! {
                biased;
                swept = &mut answer => return swept.ok(),
                place = self.place() => {
                    let _place = place;
                    let courtesy = self.give_way(meter).await;
                    let reach = Reach {
                        bytes_max: match courtesy {
                            Some(_) => COURTEOUS_BYTES_MAX,
                            None => RUN_BYTES_MAX,
                        },
                        gap_bytes_max: match self.class {
                            IoClass::Scrub => SCAN_GAP_BYTES_MAX,
                            _ => GAP_BYTES_MAX,
                        },
                    };
                    let run = self.waiting.lock().next_run(reach);
                    match run {
                        Some(run) => {
                            let begun_ns = meter.now_ns();
                            run.read(meter, self.class).await;
                            if courtesy.is_some() {
                                self.rest(begun_ns, meter.now_ns());
                            }
                        }
                        // Somebody is reading it.
                        None => return answer.await.ok(),
                    }
                }
            }
        }
    }

    /// A place for an operation.
    async fn place(&self) -> SemaphorePermit<'_> {
        let is_crowd = {
            let waiting = self.waiting.lock();
            match self.class {
                IoClass::Scrub => waiting.bytes >= RUN_BYTES_MAX,
                _ => waiting.entries.len() >= CROWD,
            }
        };
        if is_crowd && let Ok(place) = self.more.try_acquire() {
            return place;
        }
        let place = self.places.acquire().await;
        place.expect("the places are never closed")
    }

    /// The percentage of the device's time that is said, if one is.
    fn share(&self) -> Option<u64> {
        let share = self.share.load(Ordering::Relaxed);
        (share != 0).then(|| u64::from(share.min(100)))
    }

    fn is_held_back(&self, meter: &Meter) -> bool {
        meter.has_foreground(COURTESY_NS) || self.share().is_some_and(|share| share < 100)
    }

    /// While others have I/O here, or a scan has a share of the time: waits for the one place that
    /// is left.
    async fn give_way(&self, meter: &Meter) -> Option<SemaphorePermit<'_>> {
        if self.class != IoClass::Scrub || !self.is_held_back(meter) {
            return None;
        }
        let permit = self.courtesy.acquire().await.ok()?;
        let rest_ns = self.rest_until_ns.load(Ordering::Relaxed);
        let rest_ns = rest_ns.saturating_sub(meter.now_ns());
        if rest_ns > 0 {
            meter.sleep_ns(rest_ns).await;
        }
        self.is_held_back(meter).then_some(permit)
    }

    /// After an operation that was held back: as long as it took, or what leaves it its share, but
    /// for a second at most.
    fn rest(&self, begun_ns: u64, ended_ns: u64) {
        let took_ns = ended_ns.saturating_sub(begun_ns).min(REST_NS_MAX);
        let share = self.share().unwrap_or(SHARE_BESIDE_OTHERS);
        let rest_ns = (took_ns * (100 - share) / share).min(SHARE_REST_NS_MAX);
        let until_ns = ended_ns.saturating_add(rest_ns);
        self.rest_until_ns.store(until_ns, Ordering::Relaxed);
    }
}

impl Waiting {
    fn push(&mut self, offset: u64, entry: Entry) {
        self.arrivals += 1;
        self.bytes += entry.length;
        self.entries.insert((offset, self.arrivals), entry);
    }

    fn next_run(&mut self, reach: Reach) -> Option<Run> {
        let mut run: Option<Run> = None;
        loop {
            let from = run.as_ref().map_or(self.head, |run| run.offset);
            let next = match self.entries.range((from, 0)..).next() {
                Some((key, entry)) => Some((*key, entry.length, &entry.device)),
                None if run.is_none() => {
                    let first = self.entries.first_key_value();
                    first.map(|(key, entry)| (*key, entry.length, &entry.device))
                }
                None => None,
            };
            let Some((key, length, device)) = next else {
                break;
            };
            let end = key.0.saturating_add(length);
            if let Some(run) = &run {
                let fits = Arc::ptr_eq(device, &run.device)
                    && run.goes_on_to(key.0, reach)
                    && end.max(run.end) - run.offset <= reach.bytes_max;
                if !fits {
                    break;
                }
            }
            let Some(entry) = self.entries.remove(&key) else {
                break;
            };
            self.bytes -= entry.length;
            // Who asked went away.
            if entry.done.is_closed() {
                continue;
            }
            let run = run.get_or_insert_with(|| Run {
                device: entry.device.clone(),
                offset: key.0,
                end,
                gap_bytes: 0,
                parts: Vec::new(),
            });
            run.gap_bytes += key.0.saturating_sub(run.end);
            run.end = run.end.max(end);
            run.parts.push((key.0, entry));
        }
        if let Some(run) = &run {
            self.head = run.end;
        }
        run
    }
}

impl Run {
    /// Whether what lies between is worth reading.
    fn goes_on_to(&self, offset: u64, reach: Reach) -> bool {
        let gap_bytes = offset.saturating_sub(self.end);
        let wanted_bytes = self.end - self.offset - self.gap_bytes;
        gap_bytes <= GAP_BYTES_MAX
            || gap_bytes <= reach.gap_bytes_max && self.gap_bytes + gap_bytes <= 2 * wanted_bytes
    }

    /// Reads it and answers all; when that fails, none.
    async fn read(self, meter: &Meter, class: IoClass) {
        let begun_ns = meter.now_ns();
        let active = meter.work(class);
        let bytes = self.end - self.offset;
        let Ok(data) = self.device.read(self.offset, bytes as usize).await else {
            return;
        };
        drop(active);
        let span = meter.end(class, begun_ns);
        let is_aggregate = self.parts.len() > 1;
        meter.count_size(class, bytes, is_aggregate);
        let is_mostly_gaps = self.gap_bytes > bytes / 2;
        let is_copied = is_aggregate && (class != IoClass::Scrub || is_mostly_gaps);
        let mut told = Some(span);
        for (offset, part) in self.parts {
            let arrived_ns = part.arrived_ns;
            meter.count_request(class, arrived_ns, begun_ns, span.ended_ns);
            let from = (offset - self.offset) as usize;
            let of_run = data.slice(from..from + part.length as usize);
            let swept = Swept {
                data: match is_copied {
                    true => Bytes::copy_from_slice(&of_run),
                    false => of_run,
                },
                span: told.take(),
            };
            // Nobody there: the caller went away.
            let _ = part.done.send(swept);
        }
    }
}

#[cfg(test)]
mod tests {
    use device::sim::SimWorld;
    use device::{MemoryDevice, SystemClock};

    use super::*;

    fn waiting(reads: &[(u64, u64)]) -> (Waiting, Vec<oneshot::Receiver<Swept>>) {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", 0));
        let mut waiting = Waiting::default();
        let answers = reads
            .iter()
            .map(|(offset, length)| {
                let (done, answer) = oneshot::channel();
                let entry = Entry {
                    device: device.clone(),
                    length: *length,
                    arrived_ns: 0,
                    done,
                };
                waiting.push(*offset, entry);
                answer
            })
            .collect();
        (waiting, answers)
    }

    fn runs(waiting: &mut Waiting) -> Vec<(u64, u64, usize)> {
        runs_across(waiting, GAP_BYTES_MAX)
    }

    fn runs_across(waiting: &mut Waiting, gap_bytes_max: u64) -> Vec<(u64, u64, usize)> {
        let reach = Reach {
            bytes_max: RUN_BYTES_MAX,
            gap_bytes_max,
        };
        std::iter::from_fn(|| waiting.next_run(reach))
            .map(|run| (run.offset, run.end, run.parts.len()))
            .collect()
    }

    #[test]
    fn adjacent_reads_and_small_gaps_are_one_operation() {
        let k = 1 << 10;
        let reads = [
            (200 * k, 8 * k),
            (0, 16 * k),
            (16 * k, 16 * k),
            // A gap that is read, then one that is not.
            (64 * k, 8 * k),
            (64 * k, 4 * k),
            (120 * k, 8 * k),
        ];
        let (mut waiting, mut answers) = waiting(&reads);
        assert_eq!(
            runs(&mut waiting),
            [(0, 72 * k, 4), (120 * k, 128 * k, 1), (200 * k, 208 * k, 1)]
        );
        // Who went away is left out; the next run begins behind the last one.
        let (mut again, kept) = self::waiting(&[(4 * k, 4 * k), (k << 10, 4 * k), (8 * k, 4 * k)]);
        again.head = 6 * k;
        answers.extend(kept);
        drop(answers.pop());
        assert_eq!(
            runs(&mut again),
            [(k << 10, (k << 10) + 4 * k, 1), (4 * k, 8 * k, 1)]
        );
    }

    #[test]
    fn a_scan_reads_across_longer_gaps_while_enough_is_wanted() {
        let k = 1 << 10;
        // As much is wanted as is not.
        let half: Vec<_> = (0..8).map(|at| (at * 128 * k, 64 * k)).collect();
        let (mut dense, _answers) = waiting(&half);
        assert_eq!(dense.bytes, 512 * k);
        assert_eq!(
            runs_across(&mut dense, SCAN_GAP_BYTES_MAX),
            [(0, 960 * k, 8)]
        );
        assert_eq!(dense.bytes, 0);
        // Two thirds are not wanted, then more: such gaps only cost.
        let reads = [
            (0, 64 * k),
            (192 * k, 8 * k),
            (300 * k, 8 * k),
            (500 * k, 8 * k),
        ];
        let (mut sparse, _later) = waiting(&reads);
        assert_eq!(
            runs_across(&mut sparse, SCAN_GAP_BYTES_MAX),
            [
                (0, 200 * k, 2),
                (300 * k, 308 * k, 1),
                (500 * k, 508 * k, 1)
            ]
        );
        // Others' reads do not go so far.
        let (mut dense, _again) = waiting(&half);
        assert_eq!(runs(&mut dense).len(), 8);
    }

    #[test]
    fn what_was_asked_of_another_device_is_read_from_that() {
        let (mut both, _answers) = waiting(&[(0, 4096), (8192, 4096)]);
        let (mut other, _later) = waiting(&[(4096, 4096)]);
        both.entries.append(&mut other.entries);
        both.bytes += other.bytes;
        assert_eq!(
            runs(&mut both),
            [(0, 4096, 1), (4096, 8192, 1), (8192, 12288, 1)]
        );
    }

    #[test]
    fn operations_are_a_mebibyte_at_most_but_of_larger_blocks() {
        let m = 1 << 20;
        let reads: Vec<_> = (0..12).map(|at| (at * m / 8, m / 8)).collect();
        let (mut twelve, _answers) = waiting(&reads);
        assert_eq!(runs(&mut twelve), [(0, m, 8), (m, m + m / 2, 4)]);
        let (mut large, _answers) = waiting(&[(0, 16 * m), (16 * m, m)]);
        assert_eq!(runs(&mut large), [(0, 16 * m, 1), (16 * m, 17 * m, 1)]);
    }

    /// Beside others, a device is busy with a scan half of the time at most, in shorter operations.
    #[tokio::test(start_paused = true)]
    async fn a_scan_rests_as_long_as_it_reads_beside_others() {
        let sim = SimWorld::new(1);
        sim.add_disk("disk", 64 << 20);
        let device = sim.world().opener.open("disk", false).await.unwrap();
        let meter = Meter::new(sim.world().clock.clone());
        let sweep = Sweep::of_scans();
        let m = 1u64 << 20;
        let begun_ns = meter.now_ns();
        for at in 0..16 {
            device.read(at * m / 2, 1 << 19).await.unwrap();
        }
        let reading_ns = meter.now_ns() - begun_ns;
        let foreground = meter.work(IoClass::SyncRead);
        let begun_ns = meter.now_ns();
        let reads = (0..128).map(|at| sweep.read(&meter, &device, at * m / 16, 1 << 16));
        let swept = futures::future::join_all(reads).await;
        assert!(swept.iter().all(Option::is_some));
        let beside_ns = meter.now_ns() - begun_ns;
        drop(foreground);
        let sizes = meter.values().aggregated[IoClass::Scrub as usize];
        assert!(sizes[19] >= 15, "{sizes:?}");
        // One after the other without a rest would take as long as that.
        assert!(beside_ns > reading_ns * 3 / 2, "{beside_ns} {reading_ns}");
    }

    /// A scan with a share has that of a device, whether others have I/O there or not.
    #[tokio::test(start_paused = true)]
    async fn a_scan_has_its_share_of_a_devices_time() {
        let sim = SimWorld::new(2);
        sim.add_disk("disk", 64 << 20);
        let device = sim.world().opener.open("disk", false).await.unwrap();
        let meter = Meter::new(sim.world().clock.clone());
        let m = 1u64 << 20;
        let begun_ns = meter.now_ns();
        for at in 0..16 {
            device.read(at * m / 2, 1 << 19).await.unwrap();
        }
        let reading_ns = meter.now_ns() - begun_ns;
        for is_beside in [false, true] {
            let mut took_ns = Vec::new();
            for percent in [10, 25, 50, 75, 100] {
                let sweep = Sweep::of_scans().with_share(Arc::new(AtomicU8::new(percent)));
                let foreground = is_beside.then(|| meter.work(IoClass::SyncRead));
                let begun_ns = meter.now_ns();
                let reads = (0..128).map(|at| sweep.read(&meter, &device, at * m / 16, 1 << 16));
                let swept = futures::future::join_all(reads).await;
                assert!(swept.iter().all(Option::is_some));
                took_ns.push(meter.now_ns() - begun_ns);
                drop(foreground);
                // What comes after has nothing to wait for.
                tokio::time::sleep(std::time::Duration::from_secs(10)).await;
            }
            assert!(took_ns.is_sorted_by(|a, b| a > b), "{took_ns:?}");
            assert!(took_ns[0] > reading_ns * 8, "{took_ns:?} {reading_ns}");
            assert!(took_ns[1] > reading_ns * 3, "{took_ns:?} {reading_ns}");
            assert!(took_ns[1] < reading_ns * 5, "{took_ns:?} {reading_ns}");
        }
    }

    #[tokio::test]
    async fn all_get_their_own_bytes_also_beside_others() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", 1 << 20));
        let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 512) as u8).collect();
        device.write(0, content.clone().into()).await.unwrap();
        let sweep = Sweep::of_scans();
        let meter = Meter::new(Arc::new(SystemClock));
        for foreground in [false, true] {
            let held = foreground.then(|| meter.work(IoClass::SyncRead));
            let reads = (0..200u64).map(|index| {
                let (offset, length) = (index * 37 % 250 * 4096, 4096 * (index % 2 + 1));
                let (sweep, meter, device) = (&sweep, &meter, &device);
                async move {
                    let swept = sweep.read(meter, device, offset, length as usize).await;
                    (offset as usize, length as usize, swept.unwrap().data)
                }
            });
            // All wait before the first is read.
            let places = sweep.places.acquire_many(SCANS_MAX as u32).await.unwrap();
            let more = sweep.more.acquire_many(SCANS_MORE as u32).await.unwrap();
            let (reads, ()) = futures::join!(futures::future::join_all(reads), async {
                tokio::task::yield_now().await;
                drop((places, more));
            });
            for (offset, length, data) in reads {
                assert_eq!(data, content[offset..offset + length]);
            }
            drop(held);
        }
        let stats = meter.values();
        let scrub = IoClass::Scrub as usize;
        let operations: u64 = stats.aggregated[scrub].iter().sum::<u64>()
            + stats.individual[scrub].iter().sum::<u64>();
        assert!(operations <= 10, "{operations}");
        assert_eq!((stats.pending[scrub], stats.active[scrub]), (0, 0));
        // Beyond the end nobody gets anything, and all are told.
        let end = 1 << 20;
        let places = sweep.places.acquire_many(SCANS_MAX as u32).await.unwrap();
        let (one, other, ()) = futures::join!(
            sweep.read(&meter, &device, end - 4096, 4096),
            sweep.read(&meter, &device, end, 4096),
            async { drop(places) },
        );
        assert!(one.is_none() && other.is_none());
        let alone = sweep.read(&meter, &device, end - 4096, 4096).await;
        assert!(alone.is_some());
    }

    /// A scan begins one operation, and others when they would be whole ones.
    #[tokio::test]
    async fn a_scans_reads_wait_for_their_neighbours() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", 64 << 20));
        let (sweep, meter) = (Sweep::of_scans(), Meter::new(Arc::new(SystemClock)));
        let scrub = IoClass::Scrub as usize;
        let block = 32u64 << 10;
        let places = sweep.places.acquire_many(SCANS_MAX as u32).await.unwrap();
        let reads = (0..36u64).map(|at| sweep.read(&meter, &device, at * block, block as usize));
        let (read, ()) = futures::join!(futures::future::join_all(reads), async {
            // One is under way: what waits is read as soon as it is a whole run.
            let sizes = meter.values().aggregated[scrub];
            assert_eq!((sizes[20], sizes.iter().sum::<u64>()), (1, 1), "{sizes:?}");
            drop(places);
        });
        assert!(read.iter().all(Option::is_some));
        let stats = meter.values();
        let sizes = (stats.aggregated[scrub], stats.individual[scrub]);
        assert_eq!(sizes.0.iter().chain(&sizes.1).sum::<u64>(), 2, "{sizes:?}");
    }

    #[tokio::test]
    async fn what_is_read_ahead_is_one_operation_and_no_block_keeps_the_others() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", 1 << 20));
        let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 512) as u8).collect();
        device.write(0, content.clone().into()).await.unwrap();
        let (sweep, meter) = (Sweep::ahead(), Meter::new(Arc::new(SystemClock)));
        let places = sweep.places.acquire_many(AHEAD_MAX as u32).await.unwrap();
        let block = 32 << 10;
        let reads = (0..32u64).map(|at| sweep.read(&meter, &device, at * block, block as usize));
        let (blocks, ()) = futures::join!(futures::future::join_all(reads), async {
            drop(places);
        });
        let blocks: Vec<Bytes> = blocks.into_iter().map(|read| read.unwrap().data).collect();
        assert_eq!(blocks.concat(), content);
        let sizes = meter.values().aggregated[IoClass::AsyncRead as usize];
        assert_eq!((sizes[20], sizes.iter().sum::<u64>()), (1, 1));
        assert!(blocks.into_iter().all(|block| block.try_into_mut().is_ok()));
    }

    #[tokio::test]
    async fn a_crowd_all_over_the_device_has_more_operations() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", 64 << 20));
        let (sweep, meter) = (Sweep::ahead(), Meter::new(Arc::new(SystemClock)));
        let done = || {
            meter.values().individual[IoClass::AsyncRead as usize]
                .iter()
                .sum::<u64>()
        };
        let places = sweep.places.acquire_many(AHEAD_MAX as u32).await.unwrap();
        let reads = (0..2 * CROWD as u64).map(|at| sweep.read(&meter, &device, at << 18, 4096));
        let (read, ()) = futures::join!(futures::future::join_all(reads), async {
            // The places that there are always are taken, so a crowd does not come to wait.
            assert!(done() > CROWD as u64, "{}", done());
            drop(places);
        });
        assert!(read.iter().all(Option::is_some));
    }
}
