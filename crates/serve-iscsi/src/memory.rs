//! A logical unit in memory: for tests, benchmarks and trying things out. Sparse; nothing of it
//! survives the process.

use crate::lun::{Extent, LogicalUnit, LunError, LunIdentity};
use bytes::{Bytes, BytesMut};
use futures::future::{BoxFuture, ready};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of one piece of storage.
const CHUNK_BYTES: u64 = 16 * 1024;
/// Pieces are spread over this many locks.
const SHARDS: usize = 64;

/// See the head of the module. Chunks are reference-counted buffers that reads hand out without
/// a copy, as a cache would; a write makes a new one.
#[derive(Debug)]
pub struct MemoryUnit {
    capacity_bytes: AtomicU64,
    block_bytes: u32,
    physical_block_bytes: u32,
    is_read_only: AtomicBool,
    identity: LunIdentity,
    shards: Vec<RwLock<HashMap<u64, Bytes>>>,
    zeroes: Bytes,
}

impl MemoryUnit {
    /// A unit of so many bytes that reads as zeroes.
    pub fn new(capacity_bytes: u64, block_bytes: u32, identity: LunIdentity) -> Self {
        Self {
            capacity_bytes: AtomicU64::new(capacity_bytes),
            block_bytes,
            physical_block_bytes: block_bytes.max(4096),
            is_read_only: AtomicBool::new(false),
            identity,
            shards: std::iter::repeat_with(RwLock::default)
                .take(SHARDS)
                .collect(),
            zeroes: Bytes::from(vec![0; CHUNK_BYTES as usize]),
        }
    }

    /// The unit with another physical block size (4096 bytes by itself).
    pub fn with_physical_block_bytes(self, physical_block_bytes: u32) -> Self {
        Self {
            physical_block_bytes,
            ..self
        }
    }

    /// Changes the capacity.
    pub fn set_capacity_bytes(&self, capacity_bytes: u64) {
        self.capacity_bytes.store(capacity_bytes, Ordering::Relaxed);
    }

    /// Refuses writes from now on, or takes them again.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Relaxed);
    }

    fn shard(&self, chunk: u64) -> &RwLock<HashMap<u64, Bytes>> {
        &self.shards[chunk as usize % SHARDS]
    }

    /// Calls `act` with chunk number, offset in the chunk, and length, for each chunk of a range.
    fn for_chunks(offset_bytes: u64, length_bytes: u64, mut act: impl FnMut(u64, usize, usize)) {
        let (mut at, end) = (offset_bytes, offset_bytes + length_bytes);
        while at < end {
            let within = at % CHUNK_BYTES;
            let length = (CHUNK_BYTES - within).min(end - at);
            act(at / CHUNK_BYTES, within as usize, length as usize);
            at += length;
        }
    }

    fn check(&self, offset_bytes: u64, length_bytes: u64, is_write: bool) -> Result<(), LunError> {
        if is_write && self.is_read_only.load(Ordering::Relaxed) {
            return Err(LunError::ReadOnly);
        }
        let end = offset_bytes.checked_add(length_bytes);
        if end.is_none_or(|end| end > self.capacity_bytes()) {
            return Err(LunError::OutOfRange {
                offset_bytes,
                length_bytes,
            });
        }
        Ok(())
    }

    fn read_now(&self, offset_bytes: u64, length_bytes: usize) -> Vec<Bytes> {
        let mut pieces = Vec::with_capacity(1 + length_bytes / CHUNK_BYTES as usize);
        Self::for_chunks(
            offset_bytes,
            length_bytes as u64,
            |chunk, within, length| {
                let shard = self.shard(chunk).read();
                let data = shard.get(&chunk).unwrap_or(&self.zeroes);
                pieces.push(data.slice(within..within + length));
            },
        );
        pieces
    }

    fn write_now(&self, offset_bytes: u64, data: &[u8]) {
        let mut rest = data;
        Self::for_chunks(offset_bytes, data.len() as u64, |chunk, within, length| {
            let (now, later) = rest.split_at(length);
            rest = later;
            let mut shard = self.shard(chunk).write();
            let old = shard.remove(&chunk).unwrap_or_else(|| self.zeroes.clone());
            // In place if no read holds it, else a copy.
            let mut new = old
                .try_into_mut()
                .unwrap_or_else(|old| BytesMut::from(&old[..]));
            new[within..within + length].copy_from_slice(now);
            shard.insert(chunk, new.freeze());
        });
    }

    fn clear_now(&self, offset_bytes: u64, length_bytes: u64) {
        Self::for_chunks(offset_bytes, length_bytes, |chunk, within, length| {
            let mut shard = self.shard(chunk).write();
            if length as u64 == CHUNK_BYTES {
                shard.remove(&chunk);
            } else if let Some(old) = shard.remove(&chunk) {
                let mut new = BytesMut::from(&old[..]);
                new[within..within + length].fill(0);
                shard.insert(chunk, new.freeze());
            }
        });
    }
}

impl LogicalUnit for MemoryUnit {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn physical_block_bytes(&self) -> u32 {
        self.physical_block_bytes
    }

    fn unmap_granularity_bytes(&self) -> u32 {
        CHUNK_BYTES as u32
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    fn identity(&self) -> LunIdentity {
        self.identity.clone()
    }

    fn try_read(&self, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        self.check(offset_bytes, length_bytes as u64, false).ok()?;
        Some(self.read_now(offset_bytes, length_bytes))
    }

    fn read(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, LunError>> {
        let checked = self.check(offset_bytes, length_bytes as u64, false);
        Box::pin(ready(
            checked.map(|()| self.read_now(offset_bytes, length_bytes)),
        ))
    }

    fn write(
        &self,
        offset_bytes: u64,
        data: Bytes,
        _durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        let checked = self.check(offset_bytes, data.len() as u64, true);
        Box::pin(ready(checked.map(|()| self.write_now(offset_bytes, &data))))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), LunError>> {
        Box::pin(ready(Ok(())))
    }

    fn unmap(&self, offset_bytes: u64, length_bytes: u64) -> BoxFuture<'_, Result<(), LunError>> {
        let checked = self.check(offset_bytes, length_bytes, true);
        Box::pin(ready(
            checked.map(|()| self.clear_now(offset_bytes, length_bytes)),
        ))
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        _durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        self.unmap(offset_bytes, length_bytes)
    }

    fn extent_at(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'_, Result<Extent, LunError>> {
        let (mut at, end) = (offset_bytes, offset_bytes + length_bytes);
        let is_mapped_at = |at: u64| {
            let chunk = at / CHUNK_BYTES;
            self.shard(chunk).read().contains_key(&chunk)
        };
        let is_mapped = is_mapped_at(at);
        // Far enough for anybody; a longer run is said in pieces.
        let stop = end.min(offset_bytes + (1 << 30));
        while at < stop && is_mapped_at(at) == is_mapped {
            at = (at / CHUNK_BYTES + 1) * CHUNK_BYTES;
        }
        Box::pin(ready(Ok(Extent {
            length_bytes: at.min(end) - offset_bytes,
            is_mapped,
        })))
    }
}
