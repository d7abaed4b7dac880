//! A volume as a logical unit: the one place where the volume's errors become the target's.
//!
//! The unit has a lease on the open volume, which others may share (its file, other targets). While
//! the volume is rolled back its commands wait; what comes after is what the snapshot has.

use access::Lease;
use bytes::Bytes;
use futures::future::BoxFuture;
use std::sync::Arc;
use volume::{Volume, VolumeError};

use crate::lun::{Extent, LogicalUnit, LunError, LunIdentity, ReservationStore};

/// Logical block size where no other is asked for: every initiator takes it.
const BLOCK_BYTES: u32 = 512;

/// A volume as a logical unit.
pub struct VolumeUnit {
    volume: Lease<Volume>,
    identity: LunIdentity,
    block_bytes: u32,
    reservations: Option<Arc<dyn ReservationStore>>,
}

impl VolumeUnit {
    /// The unit of a volume, which says that it is this.
    pub fn new(volume: Lease<Volume>, identity: LunIdentity) -> Self {
        Self {
            volume,
            identity,
            block_bytes: BLOCK_BYTES,
            reservations: None,
        }
    }

    /// The unit with logical blocks of so many bytes, 512 or 4096.
    pub fn with_block_bytes(self, block_bytes: u32) -> Self {
        Self {
            block_bytes,
            ..self
        }
    }

    /// The unit with a place where its persistent reservations outlive the process.
    pub fn with_reservation_store(self, store: Arc<dyn ReservationStore>) -> Self {
        Self {
            reservations: Some(store),
            ..self
        }
    }
}

fn unit_error(error: VolumeError, offset_bytes: u64, length_bytes: u64, writing: bool) -> LunError {
    match error {
        VolumeError::OutOfRange { .. } => LunError::OutOfRange {
            offset_bytes,
            length_bytes,
        },
        VolumeError::ReadOnly { .. } => LunError::ReadOnly,
        VolumeError::NoSpace { .. } => LunError::NoSpace {
            offset_bytes,
            length_bytes,
        },
        VolumeError::Closed { .. } => LunError::Gone,
        other => {
            tracing::error!("{other}");
            if writing {
                LunError::WriteFailed { offset_bytes }
            } else {
                LunError::UnrecoveredRead { offset_bytes }
            }
        }
    }
}

impl LogicalUnit for VolumeUnit {
    fn capacity_bytes(&self) -> u64 {
        self.volume.get().size_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn physical_block_bytes(&self) -> u32 {
        self.volume.get().block_bytes().max(self.block_bytes)
    }

    fn is_read_only(&self) -> bool {
        self.volume.get().is_read_only()
    }

    fn identity(&self) -> LunIdentity {
        self.identity.clone()
    }

    fn try_read(&self, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        self.volume.try_read(offset_bytes, length_bytes)
    }

    fn read(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, LunError>> {
        Box::pin(async move {
            self.volume
                .read(offset_bytes, length_bytes)
                .await
                .map_err(|error| unit_error(error, offset_bytes, length_bytes as u64, false))
        })
    }

    fn write(
        &self,
        offset_bytes: u64,
        data: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        let length_bytes = data.len() as u64;
        Box::pin(async move {
            self.volume
                .write(offset_bytes, data, durable)
                .await
                .map_err(|error| unit_error(error, offset_bytes, length_bytes, true))
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), LunError>> {
        Box::pin(async {
            self.volume
                .flush()
                .await
                .map_err(|error| unit_error(error, 0, 0, true))
        })
    }

    fn unmap(&self, offset_bytes: u64, length_bytes: u64) -> BoxFuture<'_, Result<(), LunError>> {
        Box::pin(async move {
            self.volume
                .unmap(offset_bytes, length_bytes)
                .await
                .map_err(|error| unit_error(error, offset_bytes, length_bytes, true))
        })
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        Box::pin(async move {
            self.volume
                .write_zeroes(offset_bytes, length_bytes, durable)
                .await
                .map_err(|error| unit_error(error, offset_bytes, length_bytes, true))
        })
    }

    fn clone_range<'a>(
        &'a self,
        source: &'a dyn LogicalUnit,
        source_bytes: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'a, Result<u64, LunError>> {
        Box::pin(async move {
            let Some(source) = source.volume() else {
                return Ok(0);
            };
            self.volume
                .clone_range(source, source_bytes, offset_bytes, length_bytes)
                .await
                .map_err(|error| unit_error(error, offset_bytes, length_bytes, true))
        })
    }

    fn volume(&self) -> Option<&Lease<Volume>> {
        Some(&self.volume)
    }

    fn reservation_store(&self) -> Option<&dyn ReservationStore> {
        self.reservations.as_deref()
    }

    fn extent_at(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'_, Result<Extent, LunError>> {
        Box::pin(async move {
            let extent = self
                .volume
                .extent_at(offset_bytes, length_bytes)
                .await
                .map_err(|error| unit_error(error, offset_bytes, length_bytes, false))?;
            Ok(Extent {
                length_bytes: extent.length_bytes,
                is_mapped: extent.is_mapped,
            })
        })
    }
}
