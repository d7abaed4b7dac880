//! The queue of one leaf: bounds what is in flight, and puts adjacent writes together.
//!
//! **Reads** that somebody waits for go straight to the device. Those of a scrub, and small ones
//! ahead of who will ask, are put together in queues of their own ([`super::sweep`]). A semaphore
//! per [`Priority`] bounds them, so that none takes the places of those who wait.
//!
//! **Writes** that somebody waits for (intent log, labels) go straight to the device too. Those of
//! a txg are mostly sequential, from many tasks at once: they are queued by offset and taken from
//! there in rising order (an elevator that starts again at the front), runs of adjacent ones as one
//! operation of up to 1 MiB. RAID-Z's skip sectors are *optional* entries: zeros are written there
//! when that joins what is before and behind, else they are dropped (`vdev_queue_aggregate`,
//! module/zfs/vdev_queue.c). Between 2 and 10 operations are in flight, depending on how much is
//! queued. Each is driven by a task of its own, so that a caller who goes away does not leave a
//! write half done.
//!
//! **Repairs of scrubs and resilvers** are queued likewise. They come as reads end, a long run at a
//! time, and wait for nobody: one operation is in flight while less than another full one is
//! queued, and a few at most. So the next one finds many neighbours, and a log's write does not
//! wait behind many of them.
//!
//! When an aggregate fails, its parts are tried one by one: each caller learns of its own part.
//!
//! Lock: `pending`, held for map operations only. A crash leaves any part of what was queued
//! written: nothing that a synced txg refers to is ever queued, but repairs, of what was wrong or
//! missing there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use bytes::Bytes;
use device::{Clock, Device};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use super::common::Halt;
use super::meter::{IoClass, Meter, Place, Span};
use super::sweep::{Sweep, Swept};
use crate::io::{IoContext, LeafError};
use crate::report::Priority;

/// Bytes of one operation made of several writes (`zfs_vdev_aggregation_limit`).
const AGGREGATE_BYTES_MAX: u64 = 1 << 20;
/// Parts of one operation (well below IOV_MAX).
const AGGREGATE_PARTS_MAX: usize = 256;
/// Queued writes in flight (`zfs_vdev_async_write_min_active`, `..._max_active`).
const WRITERS_MIN: usize = 2;
const WRITERS_MAX: usize = 10;
/// The same of repairs.
const REPAIR_WRITERS_MAX: usize = 4;
/// Direct operations in flight.
const SYNC_READS_MAX: usize = 64;
const ASYNC_READS_MAX: usize = 32;
const SYNC_WRITES_MAX: usize = 32;
/// Larger reads are worth an operation each, and a copy of them would cost more.
const AHEAD_BYTES_MAX: usize = 64 << 10;

pub(super) type WriteResult = Result<(), LeafError>;
/// Who hears of slow writes: offset on the device, length, when.
pub(super) type SlowWrites<'a> = dyn Fn(u64, u64, Span) + Send + Sync + 'a;

#[derive(Debug)]
struct Entry {
    length: u64,
    /// `None`: optional, zeros.
    data: Option<Bytes>,
    done: Option<oneshot::Sender<WriteResult>>,
    arrived_ns: u64,
}

#[derive(Debug, Default)]
struct Pending {
    /// By (offset on the device, order of arrival).
    entries: BTreeMap<(u64, u64), Entry>,
    mandatory: usize,
    bytes: u64,
    arrivals: u64,
    writers: usize,
    /// Where the last operation ended.
    head: u64,
}

/// A run of adjacent writes.
struct Batch {
    offset: u64,
    parts: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Queue {
    sync_reads: Semaphore,
    async_reads: Semaphore,
    scans: Sweep,
    ahead: Sweep,
    sync_writes: Semaphore,
    pending: Mutex<Pending>,
    meter: Meter,
}

impl Queue {
    /// `scan_share` is the percentage of the device's time that scans have; zero: none is said.
    pub(super) fn new(clock: Arc<dyn Clock>, scan_share: Arc<AtomicU8>) -> Self {
        Queue {
            sync_reads: Semaphore::new(SYNC_READS_MAX),
            async_reads: Semaphore::new(ASYNC_READS_MAX),
            scans: Sweep::of_scans().with_share(scan_share),
            ahead: Sweep::ahead(),
            sync_writes: Semaphore::new(SYNC_WRITES_MAX),
            pending: Mutex::new(Pending::default()),
            meter: Meter::new(clock),
        }
    }

    /// What is known of the I/O.
    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// A read that may be put together with others; `None` when it is to be tried alone.
    pub(super) async fn sweep(
        &self,
        device: &Arc<dyn Device>,
        offset: u64,
        length: usize,
        priority: Priority,
    ) -> Option<Swept> {
        let sweep = match priority {
            Priority::Scrub => &self.scans,
            Priority::Async if length <= AHEAD_BYTES_MAX => &self.ahead,
            Priority::Async | Priority::Sync => return None,
        };
        // Boxed: others' futures, which hold this one, are to stay small.
        Box::pin(sweep.read(&self.meter, device, offset, length)).await
    }

    /// A place for a read.
    pub(super) async fn read_place(&self, context: &IoContext) -> Place<'_> {
        let places = match context.priority {
            Priority::Sync => &self.sync_reads,
            Priority::Async => &self.async_reads,
            Priority::Scrub => &self.scans.places,
        };
        self.place(places, IoClass::of_read(context)).await
    }

    /// A place for a write that goes straight to the device.
    pub(super) async fn sync_write_place(&self, context: &IoContext) -> Place<'_> {
        self.place(&self.sync_writes, IoClass::of_write(context))
            .await
    }

    async fn place<'a>(&'a self, places: &'a Semaphore, class: IoClass) -> Place<'a> {
        let arrived_ns = self.meter.now_ns();
        let (permit, begun_ns) = match places.try_acquire() {
            Ok(permit) => (permit, arrived_ns),
            Err(_) => {
                let _waiting = self.meter.wait(class);
                let permit = places
                    .acquire()
                    .await
                    .expect("the queue's semaphores are never closed");
                (permit, self.meter.ended_ns().max(arrived_ns))
            }
        };
        Place {
            meter: &self.meter,
            class,
            arrived_ns,
            begun_ns,
            _active: self.meter.work(class),
            _permit: permit,
        }
    }

    /// Queues a write. With a time, the caller must start another writer ([`Self::run_writer`]).
    /// `is_repair` is what a scrub or resilver found wrong or missing.
    pub(super) fn push(
        &self,
        offset: u64,
        data: Bytes,
        is_repair: bool,
    ) -> (oneshot::Receiver<WriteResult>, Option<u64>) {
        let (send, receive) = oneshot::channel();
        let arrived_ns = self.meter.now_ns();
        let mut pending = self.pending.lock();
        pending.drop_optional(offset, offset + data.len() as u64);
        pending.insert(
            offset,
            Entry {
                length: data.len() as u64,
                data: Some(data),
                done: Some(send),
                arrived_ns,
            },
        );
        pending.mandatory += 1;
        self.meter.put(IoClass::AsyncWrite);
        let full = (pending.bytes / AGGREGATE_BYTES_MAX) as usize;
        let wanted = match is_repair {
            true => (1 + full).min(REPAIR_WRITERS_MAX),
            false => full
                .max(pending.mandatory / 8)
                .clamp(WRITERS_MIN, WRITERS_MAX),
        };
        let start = pending.writers < wanted;
        if start {
            pending.writers += 1;
        }
        (receive, start.then_some(arrived_ns))
    }

    /// Queues zeros for a place whose content does not matter, to join its neighbours.
    pub(super) fn push_optional(&self, offset: u64, length: u64) {
        let mut pending = self.pending.lock();
        pending.insert(
            offset,
            Entry {
                length,
                data: None,
                done: None,
                arrived_ns: 0,
            },
        );
    }

    /// Drops optional entries that are left. Called at every flush: so none outlives the txg that
    /// allocated its place.
    pub(super) fn clear_optional(&self) {
        self.pending.lock().drop_optional(0, u64::MAX);
    }

    /// Writes until nothing is queued; while halted, what is queued fails. `started_ns` is what
    /// [`Self::push`] gave; `slow` hears of the offset and length of what took the device long.
    pub(super) async fn run_writer(
        &self,
        device: &dyn Device,
        halt: &Halt,
        started_ns: u64,
        slow: &SlowWrites<'_>,
    ) {
        let target = Target {
            meter: &self.meter,
            device,
            halt,
            slow,
        };
        let mut free_ns = started_ns;
        while let Some(batch) = self.next_batch() {
            free_ns = target.write_batch(batch, free_ns).await;
        }
    }

    fn next_batch(&self) -> Option<Batch> {
        let mut pending = self.pending.lock();
        let batch = pending.next_batch();
        match &batch {
            Some(batch) => {
                let is_request = |part: &&Entry| part.data.is_some();
                let count = batch.parts.iter().filter(is_request).count();
                self.meter.take(IoClass::AsyncWrite, count as u64);
            }
            None => pending.writers -= 1,
        }
        batch
    }
}

impl Pending {
    fn insert(&mut self, offset: u64, entry: Entry) {
        self.arrivals += 1;
        self.bytes += entry.length;
        self.entries.insert((offset, self.arrivals), entry);
    }

    fn drop_optional(&mut self, from: u64, to: u64) {
        if self.entries.len() == self.mandatory {
            return;
        }
        let keys: Vec<_> = self
            .entries
            .range((from, 0)..(to, 0))
            .filter(|(_, entry)| entry.data.is_none())
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: (u64, u64)) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.bytes -= entry.length;
        if entry.data.is_some() {
            self.mandatory -= 1;
        }
        Some(entry)
    }

    fn next_batch(&mut self) -> Option<Batch> {
        let (offset, first) = loop {
            if self.mandatory == 0 {
                // Optional ones alone are not worth an operation.
                self.entries.clear();
                self.bytes = 0;
                return None;
            }
            let key = self
                .entries
                .range((self.head, 0)..)
                .next()
                .or_else(|| self.entries.first_key_value())
                .map(|(key, _)| *key)?;
            let entry = self.remove(key)?;
            if entry.data.is_some() {
                break (key.0, entry);
            }
        };
        let mut end = offset + first.length;
        let mut parts = vec![first];
        // How much of `parts` ends in something that must be written.
        let mut kept = (1, end);
        while parts.len() < AGGREGATE_PARTS_MAX {
            let next = self
                .entries
                .range((end, 0)..)
                .next()
                .map(|(key, entry)| (*key, entry.length));
            let Some((key, length)) = next else { break };
            if key.0 != end || end + length - offset > AGGREGATE_BYTES_MAX {
                break;
            }
            let Some(entry) = self.remove(key) else { break };
            end += length;
            let mandatory = entry.data.is_some();
            parts.push(entry);
            if mandatory {
                kept = (parts.len(), end);
            }
        }
        parts.truncate(kept.0);
        self.head = kept.1;
        Some(Batch { offset, parts })
    }
}

/// Where a writer's batches go.
struct Target<'a> {
    meter: &'a Meter,
    device: &'a dyn Device,
    halt: &'a Halt,
    slow: &'a SlowWrites<'a>,
}

impl Target<'_> {
    const CLASS: IoClass = IoClass::AsyncWrite;

    /// The device has done an operation that began at `begun_ns`; returns the time.
    fn end(&self, offset: u64, length: u64, begun_ns: u64) -> u64 {
        let span = self.meter.end(Self::CLASS, begun_ns);
        if span.is_slow() {
            (self.slow)(offset, length, span);
        }
        span.ended_ns
    }

    /// Writes a batch with a writer that is free since `free_ns`, and returns since when it is
    /// again.
    async fn write_batch(&self, batch: Batch, free_ns: u64) -> u64 {
        let meter = self.meter;
        let mut parts = batch.parts;
        let _active = meter.work(Self::CLASS);
        // It did not begin before its last part was there.
        let begun_ns = parts
            .iter()
            .map(|part| part.arrived_ns)
            .fold(free_ns, u64::max);
        if let [single] = parts.as_mut_slice() {
            let data = single.data.take().unwrap_or_default();
            return self
                .write_single(batch.offset, data, single, begun_ns)
                .await;
        }
        if self.halt.is_halted() {
            for part in &mut parts {
                finish(part, Err(LeafError::Halted));
            }
            return free_ns;
        }
        let buffers = parts
            .iter()
            .map(|part| match &part.data {
                Some(data) => data.clone(),
                None => zeros(part.length as usize),
            })
            .collect();
        match self.device.write_vectored(batch.offset, buffers).await {
            Ok(()) => {
                let bytes = parts.iter().map(|part| part.length).sum();
                let ended_ns = self.end(batch.offset, bytes, begun_ns);
                meter.count_size(Self::CLASS, bytes, true);
                for part in &mut parts {
                    if part.data.is_some() {
                        meter.count_request(Self::CLASS, part.arrived_ns, begun_ns, ended_ns);
                    }
                    finish(part, Ok(()));
                }
                ended_ns
            }
            Err(error) => {
                tracing::debug!(
                    %error, parts = parts.len(), "an aggregated write failed; trying its parts"
                );
                let mut offset = batch.offset;
                let mut free_ns = meter.now_ns();
                for mut part in parts {
                    let length = part.length;
                    if let Some(data) = part.data.take() {
                        free_ns = self.write_single(offset, data, &mut part, free_ns).await;
                    }
                    offset += length;
                }
                free_ns
            }
        }
    }

    /// Writes one part, begun at `begun_ns`, and returns the time.
    async fn write_single(&self, offset: u64, data: Bytes, part: &mut Entry, begun_ns: u64) -> u64 {
        let meter = self.meter;
        if self.halt.is_halted() {
            finish(part, Err(LeafError::Halted));
            return begun_ns;
        }
        let result = self.device.write(offset, data).await;
        let ended_ns = match result {
            Ok(()) => {
                let ended_ns = self.end(offset, part.length, begun_ns);
                meter.count_size(Self::CLASS, part.length, false);
                meter.count_request(Self::CLASS, part.arrived_ns, begun_ns, ended_ns);
                ended_ns
            }
            Err(_) => meter.now_ns(),
        };
        finish(
            part,
            result.map_err(|error| LeafError::Device(Arc::new(error))),
        );
        ended_ns
    }
}

fn finish(entry: &mut Entry, result: WriteResult) {
    if let Some(done) = entry.done.take() {
        // Nobody there: the caller went away, the write was done all the same.
        let _ = done.send(result);
    }
}

/// Zeros, without an allocation for the usual sector sizes.
pub(super) fn zeros(length: usize) -> Bytes {
    static ZEROS: [u8; 16 << 10] = [0; 16 << 10];
    match ZEROS.get(..length) {
        Some(zeros) => Bytes::from_static(zeros),
        None => Bytes::from(vec![0; length]),
    }
}
