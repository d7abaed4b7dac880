//! A volume as a logical unit: the one place where the volume's errors become the target's.
//!
//! The unit has a lease on the open volume, which others may share (its file, other targets). While
//! the volume is rolled back its commands wait; what comes after is what the snapshot has.

use access::Lease;
use bytes::Bytes;
use futures::future::BoxFuture;
use volume::{Volume, VolumeError};

use crate::lun::{Extent, LogicalUnit, LunError, LunIdentity};

/// Logical block size that is offered: every initiator takes it.
const BLOCK_BYTES: u32 = 512;

/// A volume as a logical unit.
pub struct VolumeUnit {
    volume: Lease<Volume>,
    identity: LunIdentity,
}

impl VolumeUnit {
    /// The unit of a volume; its serial number is the dataset's guid, which outlives renames.
    pub fn new(volume: Lease<Volume>) -> Self {
        let guid = volume.get().guid().get();
        let identity = LunIdentity::new(format!("{guid:016x}"), naa(guid));
        Self { volume, identity }
    }
}

/// Eight bytes that are ours, then the guid: unique and stable, as a designator must be.
fn naa(guid: u64) -> [u8; 16] {
    let mut naa = *b"\x60MILLPND\0\0\0\0\0\0\0\0";
    naa[8..].copy_from_slice(&guid.to_be_bytes());
    naa
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
        BLOCK_BYTES
    }

    fn physical_block_bytes(&self) -> u32 {
        self.volume.get().block_bytes().max(BLOCK_BYTES)
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
