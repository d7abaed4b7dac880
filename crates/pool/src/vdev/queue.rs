//! The queue of one leaf: bounds what is in flight, and puts adjacent writes together.
//!
//! **Reads** go straight to the device; a semaphore per [`Priority`] bounds them, so that a scrub
//! or read-ahead never takes the places of those who wait.
//!
//! **Writes** that somebody waits for (intent log, labels) go straight to the device too. Those of a
//! txg are mostly sequential, from many tasks at once: they are queued by offset and taken
//! from there in rising order (an elevator that starts again at the front), runs of adjacent ones as one operation of up
//! to 1 MiB. RAID-Z's skip sectors are *optional* entries: zeros are written there
//! when that joins what is before and behind, else they are dropped
//! (`vdev_queue_aggregate`, module/zfs/vdev_queue.c). Between 2 and 10 operations are in flight,
//! depending on how much is queued. Each is driven by a task of its own, so that a caller who goes away does not
//! leave a write half done.
//!
//! When an aggregate fails, its parts are tried one by one: each caller learns of its own part.
//!
//! Lock: `pending`, held for map operations only. A crash leaves any part of what was queued
//! written: nothing that a synced txg refers to is ever queued.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use device::{Device, DeviceError};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::pipeline::Priority;

/// Bytes of one operation made of several writes (`zfs_vdev_aggregation_limit`).
const AGGREGATE_BYTES_MAX: u64 = 1 << 20;
/// Parts of one operation (well below IOV_MAX).
const AGGREGATE_PARTS_MAX: usize = 256;
/// Queued writes in flight (`zfs_vdev_async_write_min_active`, `..._max_active`).
const WRITERS_MIN: usize = 2;
const WRITERS_MAX: usize = 10;
/// Direct operations in flight.
const SYNC_READS_MAX: usize = 64;
const ASYNC_READS_MAX: usize = 32;
const SCRUB_READS_MAX: usize = 16;
const SYNC_WRITES_MAX: usize = 32;

pub(super) type WriteResult = Result<(), Arc<DeviceError>>;

#[derive(Debug)]
struct Entry {
    length: u64,
    /// `None`: optional, zeros.
    data: Option<Bytes>,
    done: Option<oneshot::Sender<WriteResult>>,
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
    scrub_reads: Semaphore,
    sync_writes: Semaphore,
    pending: Mutex<Pending>,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            sync_reads: Semaphore::new(SYNC_READS_MAX),
            async_reads: Semaphore::new(ASYNC_READS_MAX),
            scrub_reads: Semaphore::new(SCRUB_READS_MAX),
            sync_writes: Semaphore::new(SYNC_WRITES_MAX),
            pending: Mutex::new(Pending::default()),
        }
    }
}

impl Queue {
    /// A place for a read.
    pub(super) async fn read_place(&self, priority: Priority) -> SemaphorePermit<'_> {
        let places = match priority {
            Priority::Sync => &self.sync_reads,
            Priority::Async => &self.async_reads,
            Priority::Scrub => &self.scrub_reads,
        };
        places
            .acquire()
            .await
            .expect("the queue's semaphores are never closed")
    }

    /// A place for a write that goes straight to the device.
    pub(super) async fn sync_write_place(&self) -> SemaphorePermit<'_> {
        self.sync_writes
            .acquire()
            .await
            .expect("the queue's semaphores are never closed")
    }

    /// Queues a write. `true`: the caller must start another writer ([`Self::run_writer`]).
    pub(super) fn push(&self, offset: u64, data: Bytes) -> (oneshot::Receiver<WriteResult>, bool) {
        let (send, receive) = oneshot::channel();
        let mut pending = self.pending.lock();
        pending.drop_optional(offset, offset + data.len() as u64);
        pending.insert(
            offset,
            Entry {
                length: data.len() as u64,
                data: Some(data),
                done: Some(send),
            },
        );
        pending.mandatory += 1;
        let wanted = ((pending.bytes / AGGREGATE_BYTES_MAX) as usize)
            .max(pending.mandatory / 8)
            .clamp(WRITERS_MIN, WRITERS_MAX);
        let start = pending.writers < wanted;
        if start {
            pending.writers += 1;
        }
        (receive, start)
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
            },
        );
    }

    /// Drops optional entries that are left. Called at every flush: so none outlives the txg that
    /// allocated its place.
    pub(super) fn clear_optional(&self) {
        self.pending.lock().drop_optional(0, u64::MAX);
    }

    /// Writes until nothing is queued.
    pub(super) async fn run_writer(&self, device: &dyn Device) {
        while let Some(batch) = self.next_batch() {
            write_batch(device, batch).await;
        }
    }

    fn next_batch(&self) -> Option<Batch> {
        let mut pending = self.pending.lock();
        let batch = pending.next_batch();
        if batch.is_none() {
            pending.writers -= 1;
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

async fn write_batch(device: &dyn Device, batch: Batch) {
    let mut parts = batch.parts;
    if let [single] = parts.as_mut_slice() {
        let data = single.data.take().unwrap_or_default();
        finish(
            single,
            device.write(batch.offset, data).await.map_err(Arc::new),
        );
        return;
    }
    let buffers = parts
        .iter()
        .map(|part| match &part.data {
            Some(data) => data.clone(),
            None => zeros(part.length as usize),
        })
        .collect();
    match device.write_vectored(batch.offset, buffers).await {
        Ok(()) => parts.iter_mut().for_each(|part| finish(part, Ok(()))),
        Err(error) => {
            tracing::debug!(%error, parts = parts.len(), "an aggregated write failed; trying its parts");
            let mut offset = batch.offset;
            for mut part in parts {
                let length = part.length;
                if let Some(data) = part.data.take() {
                    let result = device.write(offset, data).await.map_err(Arc::new);
                    finish(&mut part, result);
                }
                offset += length;
            }
        }
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
