//! A volume, open.
#![allow(clippy::todo, unused_variables, clippy::unused_async, missing_docs)]

use bytes::Bytes;

use crate::error::Result;

/// A run of bytes that are all backed by storage, or all not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length of the run from the place asked about, in bytes; never 0.
    pub length_bytes: u64,
    /// Whether it is backed by storage; otherwise it reads as zeroes.
    pub is_mapped: bool,
}

/// A volume, open: a run of bytes.
pub struct Volume {
    _private: (),
}

impl Volume {
    /// The dataset's name.
    pub fn name(&self) -> String {
        todo!()
    }
    /// The dataset's guid: stays the same for the volume's life.
    pub fn guid(&self) -> format::Guid {
        todo!()
    }
    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        todo!()
    }
    /// Block size in bytes (`volblocksize`).
    pub fn block_bytes(&self) -> u32 {
        todo!()
    }
    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        todo!()
    }
    /// Changes whether writes are refused (`readonly` was set).
    pub fn set_read_only(&self, read_only: bool) {
        todo!()
    }
    /// A read without waiting, if all of it is in memory.
    pub fn try_read(&self, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        todo!()
    }
    /// Reads exactly `length_bytes`, as slices of cached blocks where possible.
    pub async fn read(&self, offset_bytes: u64, length_bytes: usize) -> Result<Vec<Bytes>> {
        todo!()
    }
    /// Writes; with `durable` (or `sync=always`) it is on stable storage when this returns.
    pub async fn write(&self, offset_bytes: u64, data: Bytes, durable: bool) -> Result<()> {
        todo!()
    }
    /// Gives a range back; it reads as zeroes, also its unaligned ends.
    pub async fn unmap(&self, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        todo!()
    }
    /// Makes a range read as zeroes.
    pub async fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        durable: bool,
    ) -> Result<()> {
        todo!()
    }
    /// Puts all finished writes on stable storage.
    pub async fn flush(&self) -> Result<()> {
        todo!()
    }
    /// Changes the size (`volsize`); shrinking frees what is beyond the new end.
    pub async fn resize(&self, size_bytes: u64) -> Result<()> {
        todo!()
    }
    /// The run of equally mapped bytes at an offset, at most `length_bytes` long.
    pub async fn extent_at(&self, offset_bytes: u64, length_bytes: u64) -> Result<Extent> {
        todo!()
    }
    /// Takes no more requests, waits for those under way, and puts everything on stable storage.
    pub async fn close(&self) -> Result<()> {
        todo!()
    }
}
