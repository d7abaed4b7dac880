//! A volume, open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dataset::range_lock::{RangeGuard, RangeLock};
use dataset::{Dataset, DatasetError, DatasetSettings, DirtyEstimate};
use device::World;
use format::{Guid, LogBody, ObjsetKind};
use object::{Object, ObjectError, ObjectSet, Zap};
use parking_lot::RwLock;
use tokio::sync::{RwLockReadGuard, watch};
use zil::{LogRecord, SyncMode, Zil};
use zio::{Tx, ZioError};

use crate::error::{Result, VolumeError};
use crate::init::{DATA, PROPERTIES, SIZE};

/// Most bytes written in one transaction.
const WRITE_BYTES_MAX: u64 = 4 << 20;

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
    /// The hold on the dataset; gone when closed.
    hold: RwLock<Option<Dataset>>,
    name: String,
    guid: Guid,
    settings: watch::Receiver<DatasetSettings>,
    log: Option<Arc<Zil>>,
    data: Object,
    properties: Zap,
    block_bytes: u32,
    size_bytes: AtomicU64,
    ranges: RangeLock,
    /// Held shared by every operation, exclusively to close.
    open: tokio::sync::RwLock<bool>,
}

impl Volume {
    /// Opens a volume, or a snapshot of one. After a crash its log is replayed. The dataset is held
    /// until [`Volume::close`].
    ///
    /// # Errors
    /// [`VolumeError::CannotOpen`] where the dataset is no volume, and errors of reading.
    pub async fn open(dataset: Dataset, _world: World) -> Result<Arc<Self>> {
        let name = dataset.name();
        let objset = Arc::clone(dataset.objset());
        let cannot = |what: &str| VolumeError::CannotOpen {
            name: name.clone(),
            what: what.to_owned(),
        };
        if objset.kind() != ObjsetKind::Volume {
            return Err(cannot("it is not a volume; open volumes only"));
        }
        let data = objset
            .hold(DATA)
            .await
            .map_err(|error| of_object(&name, error))?;
        let properties = Zap::hold(&objset, PROPERTIES)
            .await
            .map_err(|error| of_object(&name, error))?;
        let size_bytes = properties
            .lookup_u64(SIZE)
            .await
            .map_err(|error| of_object(&name, error))?
            .ok_or_else(|| cannot("its size is missing; scrub the pool"))?;
        let block_bytes = data.info().data_block_bytes;
        let volume = Arc::new(Self {
            settings: dataset.watch_settings(),
            guid: dataset.guid(),
            log: dataset.log().cloned(),
            hold: RwLock::new(Some(dataset)),
            name,
            data,
            properties,
            block_bytes,
            size_bytes: AtomicU64::new(size_bytes),
            ranges: RangeLock::default(),
            open: tokio::sync::RwLock::new(true),
        });
        // Also where `readonly` is on: what the log has was promised, and must not come over what
        // is written when the property is off again.
        if let Some(log) = volume.log.clone()
            && log.needs_replay()
        {
            let count = log
                .replay(&*volume)
                .await
                .map_err(|error| volume.of_dataset(error.into()))?;
            tracing::info!(volume = %volume.name, records = count, "replayed the intent log");
        }
        Ok(volume)
    }

    /// The dataset's name.
    pub fn name(&self) -> String {
        self.hold
            .read()
            .as_ref()
            .map_or_else(|| self.name.clone(), Dataset::name)
    }

    /// The dataset's guid: stays the same for the volume's life.
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// Whether it has not been closed.
    pub fn is_open(&self) -> bool {
        self.hold.read().is_some()
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Block size in bytes (`volblocksize`).
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.settings.borrow().read_only
    }

    pub(crate) fn objset(&self) -> &Arc<ObjectSet> {
        self.data.objset()
    }

    pub(crate) fn data(&self) -> &Object {
        &self.data
    }

    pub(crate) fn ranges(&self) -> &RangeLock {
        &self.ranges
    }

    pub(crate) fn log(&self) -> Option<&Arc<Zil>> {
        self.log.as_ref()
    }

    pub(crate) fn dataset(&self) -> Result<Dataset> {
        self.hold.read().clone().ok_or_else(|| VolumeError::Closed {
            name: self.name.clone(),
        })
    }

    pub(crate) fn of_object(&self, error: ObjectError) -> VolumeError {
        of_object(&self.name, error)
    }

    /// What reading for a request at this offset failed with.
    pub(crate) fn damaged_at(&self, offset_bytes: u64, error: ObjectError) -> VolumeError {
        match error {
            ObjectError::Zio(
                source @ (ZioError::Checksum { .. } | ZioError::Unreadable { .. }),
            ) => VolumeError::Damaged {
                name: self.name(),
                offset_bytes,
                source,
            },
            error => self.of_object(error),
        }
    }

    fn of_dataset(&self, error: DatasetError) -> VolumeError {
        let name = self.name.clone();
        match error {
            DatasetError::NoSpace { .. } | DatasetError::QuotaExceeded { .. } => {
                VolumeError::NoSpace { name }
            }
            DatasetError::ReadOnly { .. } => VolumeError::ReadOnly { name },
            DatasetError::Closed => VolumeError::Closed { name },
            DatasetError::Zio(error) => of_pool(&name, error),
            DatasetError::Object(error) => of_object(&name, error),
            other => VolumeError::Object {
                name,
                source: Box::new(other),
            },
        }
    }

    pub(crate) async fn enter(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let entered = self.open.read().await;
        if *entered {
            Ok(entered)
        } else {
            Err(VolumeError::Closed {
                name: self.name.clone(),
            })
        }
    }

    pub(crate) async fn enter_to_change(&self) -> Result<RwLockReadGuard<'_, bool>> {
        if self.is_read_only() {
            return Err(VolumeError::ReadOnly { name: self.name() });
        }
        self.enter().await
    }

    pub(crate) fn check_range(&self, offset_bytes: u64, length_bytes: u64) -> Result<u64> {
        let size_bytes = self.size_bytes();
        offset_bytes
            .checked_add(length_bytes)
            .filter(|end| *end <= size_bytes)
            .ok_or_else(|| VolumeError::OutOfRange {
                name: self.name(),
                offset_bytes,
                length_bytes,
                size_bytes,
            })
    }

    /// Locks a range. It may have waited for a resize, so that the range is checked once more when
    /// it is locked: nothing is ever written beyond the end, where growing would show it.
    async fn lock_range(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        exclusive: bool,
    ) -> Result<RangeGuard> {
        let end = self.check_range(offset_bytes, length_bytes)?;
        let range = self.ranges.lock(offset_bytes, end, exclusive).await;
        self.check_range(offset_bytes, length_bytes)?;
        Ok(range)
    }

    /// Joins the open txg.
    pub(crate) async fn assign(&self, estimate: DirtyEstimate) -> Result<Tx> {
        self.dataset()?
            .assign(estimate)
            .await
            .map_err(|error| self.of_dataset(error))
    }

    /// A read without waiting, if all of it is in memory.
    pub fn try_read(&self, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        let entered = self.open.try_read().ok()?;
        if !*entered {
            return None;
        }
        let end = self.check_range(offset_bytes, length_bytes as u64).ok()?;
        let _range = self.ranges.try_lock(offset_bytes, end, false)?;
        self.check_range(offset_bytes, length_bytes as u64).ok()?;
        self.data.try_read(offset_bytes, length_bytes)
    }

    /// Reads exactly `length_bytes`, as slices of cached blocks where possible.
    pub async fn read(&self, offset_bytes: u64, length_bytes: usize) -> Result<Vec<Bytes>> {
        let _entered = self.enter().await?;
        let _range = self
            .lock_range(offset_bytes, length_bytes as u64, false)
            .await?;
        self.data
            .read(offset_bytes, length_bytes)
            .await
            .map_err(|error| self.damaged_at(offset_bytes, error))
    }

    /// Writes; with `durable` (or `sync=always`) it is on stable storage when this returns.
    pub async fn write(&self, offset_bytes: u64, data: Bytes, durable: bool) -> Result<()> {
        let _entered = self.enter_to_change().await?;
        let range = self
            .lock_range(offset_bytes, data.len() as u64, true)
            .await?;
        self.write_locked(offset_bytes, data).await?;
        drop(range);
        self.finish(durable).await
    }

    /// Waits for the log where the caller or `sync=always` asks for it.
    pub(crate) async fn finish(&self, durable: bool) -> Result<()> {
        if durable || self.settings.borrow().sync == SyncMode::Always {
            self.commit().await?;
        }
        Ok(())
    }

    async fn commit(&self) -> Result<()> {
        self.dataset()?
            .commit(DATA)
            .await
            .map_err(|error| self.of_dataset(error))
    }

    /// Writes into a range that the caller has locked, or with nobody else there.
    pub(crate) async fn write_locked(&self, offset_bytes: u64, data: Bytes) -> Result<()> {
        let mut offset = offset_bytes;
        let mut rest = data;
        while !rest.is_empty() {
            // Chunks end at multiples of the biggest block, so at block boundaries.
            let room = WRITE_BYTES_MAX.max(u64::from(self.block_bytes));
            let limit = room - offset % room;
            let chunk = rest.split_to((rest.len() as u64).min(limit) as usize);
            let length = chunk.len() as u64;
            self.fetch_edges(offset, offset + length).await?;
            self.data
                .prepare_write(offset, length)
                .await
                .map_err(|error| self.damaged_at(offset, error))?;
            let tx = self
                .assign(DirtyEstimate::write(length).in_blocks_of(self.block_bytes))
                .await?;
            self.data
                .write(&tx, offset, chunk)
                .await
                .map_err(|error| self.of_object(error))?;
            if let Some(log) = &self.log {
                log.record(&tx, LogRecord::write(DATA, false, offset, length));
            }
            drop(tx);
            offset += length;
        }
        Ok(())
    }

    /// Brings blocks that will be changed in part into memory, so that the txg is not held up by
    /// the disk.
    async fn fetch_edges(&self, start: u64, end: u64) -> Result<()> {
        let block = u64::from(self.block_bytes);
        for edge in [start, end] {
            if edge % block == 0 {
                continue;
            }
            let first = edge - edge % block;
            self.data
                .read(first, block as usize)
                .await
                .map_err(|error| self.damaged_at(first, error))?;
        }
        Ok(())
    }

    /// Gives a range back; it reads as zeroes, also its unaligned ends.
    pub async fn unmap(&self, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        let _entered = self.enter_to_change().await?;
        let range = self.lock_range(offset_bytes, length_bytes, true).await?;
        self.free_locked(offset_bytes, length_bytes).await?;
        drop(range);
        self.finish(false).await
    }

    /// Makes a range read as zeroes.
    pub async fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        durable: bool,
    ) -> Result<()> {
        let _entered = self.enter_to_change().await?;
        let range = self.lock_range(offset_bytes, length_bytes, true).await?;
        self.free_locked(offset_bytes, length_bytes).await?;
        drop(range);
        self.finish(durable).await
    }

    /// As [`Self::write_locked`], for a range that is given back.
    pub(crate) async fn free_locked(&self, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        let end = offset_bytes + length_bytes;
        let mut start = offset_bytes;
        while start < end {
            let part_end = self
                .data
                .first_part(start, end)
                .await
                .map_err(|error| self.of_object(error))?;
            self.fetch_edges(start, part_end).await?;
            self.data
                .prepare_free(start, part_end - start)
                .await
                .map_err(|error| self.damaged_at(start, error))?;
            let tx = self.assign(DirtyEstimate::free()).await?;
            self.data
                .free_range(&tx, start, part_end - start)
                .await
                .map_err(|error| self.of_object(error))?;
            if let Some(log) = &self.log {
                let body = LogBody::Truncate {
                    object: DATA,
                    offset: start,
                    length: part_end - start,
                };
                log.record(&tx, LogRecord::of_object(DATA, false, &body));
            }
            drop(tx);
            start = part_end;
        }
        Ok(())
    }

    /// Puts all finished writes on stable storage; also of a volume that is read-only by now.
    pub async fn flush(&self) -> Result<()> {
        let _entered = self.enter().await?;
        self.commit().await
    }

    /// Whether the volume may have this size.
    ///
    /// # Errors
    /// [`VolumeError::BadSize`].
    pub fn check_size(&self, size_bytes: u64) -> Result<()> {
        let block_bytes = u64::from(self.block_bytes);
        if size_bytes == 0
            || !size_bytes.is_multiple_of(block_bytes)
            || i64::try_from(size_bytes).is_err()
        {
            return Err(VolumeError::BadSize {
                name: self.name(),
                size_bytes,
                block_bytes,
            });
        }
        Ok(())
    }

    /// Changes the size (`volsize`); shrinking frees what is beyond the new end
    /// (`zvol_update_volsize`).
    pub async fn resize(&self, size_bytes: u64) -> Result<()> {
        let _entered = self.enter_to_change().await?;
        self.check_size(size_bytes)?;
        let _range = self.ranges.lock(0, u64::MAX, true).await;
        let old = self.size_bytes();
        {
            let tx = self.assign(DirtyEstimate::free()).await?;
            self.properties
                .update_u64(&tx, SIZE, size_bytes)
                .await
                .map_err(|error| self.of_object(error))?;
            // In this order nothing beyond the end is ever readable.
            self.size_bytes.store(size_bytes, Ordering::Release);
            drop(tx);
        }
        let mut end = old;
        while end > size_bytes {
            let start = self
                .data
                .last_part(size_bytes, end)
                .await
                .map_err(|error| self.of_object(error))?;
            self.data
                .prepare_free(start, u64::MAX)
                .await
                .map_err(|error| self.damaged_at(start, error))?;
            let tx = self.assign(DirtyEstimate::free()).await?;
            self.data
                .free_range(&tx, start, u64::MAX)
                .await
                .map_err(|error| self.of_object(error))?;
            end = start;
        }
        Ok(())
    }

    /// The run of equally mapped bytes at an offset, at most `length_bytes` long.
    pub async fn extent_at(&self, offset_bytes: u64, length_bytes: u64) -> Result<Extent> {
        let _entered = self.enter().await?;
        let _range = self
            .lock_range(offset_bytes, length_bytes.max(1), false)
            .await?;
        let end = offset_bytes + length_bytes.max(1);
        let data = self
            .data
            .next_data(offset_bytes)
            .await
            .map_err(|error| self.of_object(error))?;
        let (until, is_mapped) = match data {
            Some(data) if data <= offset_bytes => {
                let hole = self
                    .data
                    .next_hole(offset_bytes)
                    .await
                    .map_err(|e| self.of_object(e))?;
                (hole, true)
            }
            Some(data) => (data, false),
            None => (end, false),
        };
        let until = until.clamp(offset_bytes + 1, end);
        Ok(Extent {
            length_bytes: until - offset_bytes,
            is_mapped,
        })
    }

    /// Takes no more requests, waits for those under way, puts everything on stable storage, and
    /// lets go of the dataset (also when that fails).
    pub async fn close(&self) -> Result<()> {
        {
            let mut open = self.open.write().await;
            if !std::mem::replace(&mut *open, false) {
                return Ok(());
            }
        }
        // Also of a volume that is read-only by now: what was written before may not be on disk.
        let outcome = self.commit().await;
        self.hold.write().take();
        outcome
    }
}

fn of_object(name: &str, error: ObjectError) -> VolumeError {
    match error {
        ObjectError::Zio(error) => of_pool(name, error),
        other => VolumeError::Object {
            name: name.to_owned(),
            source: Box::new(other),
        },
    }
}

fn of_pool(name: &str, error: ZioError) -> VolumeError {
    let name = name.to_owned();
    match error {
        ZioError::NoSpace { .. } => VolumeError::NoSpace { name },
        ZioError::Suspended { .. } | ZioError::TaskPanicked { .. } => {
            VolumeError::Suspended { name }
        }
        ZioError::Closing => VolumeError::Closed { name },
        ZioError::ReadOnly => VolumeError::ReadOnly { name },
        other => VolumeError::Object {
            name,
            source: Box::new(other),
        },
    }
}
