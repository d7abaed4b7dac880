//! Doing again what the intent log of a crash says (`zvol_replay_vector`, module/zfs/zvol.c).

use bytes::Bytes;
use device::BoxFuture;
use format::{BlockPointer, Bookmark, FormatError, LogBody, LogKind, LogWrite};
use zil::{ReplayError, ReplayRecord, ReplayTarget};
use zio::ReadContext;

use crate::init::DATA;
use crate::volume::Volume;

/// Largest block of a volume that a record may speak of.
const BLOCK_BYTES_MAX: u64 = 16 << 20;

/// A record that cannot be what OpenZFS or we wrote.
#[derive(Debug, thiserror::Error)]
enum BadRecord {
    /// It is damaged.
    #[error(
        "a record of kind {kind} in the volume's intent log is damaged ({source}); scrub the \
         pool, then roll back to a snapshot if data is missing"
    )]
    Damaged { kind: LogKind, source: FormatError },
    /// A write of nothing.
    #[error(
        "a write in the volume's intent log has no data; scrub the pool, then roll back to a \
         snapshot if data is missing"
    )]
    NoData,
    /// It speaks of blocks that no volume has.
    #[error(
        "a record in the volume's intent log clones blocks of {block_bytes} bytes; scrub the \
         pool, then roll back to a snapshot if data is missing"
    )]
    BlockSize { block_bytes: u64 },
    /// It is not one for volumes.
    #[error(
        "a record of kind {kind} in the volume's intent log is not one for volumes; use a newer \
         release"
    )]
    Unknown { kind: LogKind },
}

impl Volume {
    async fn replay_record(&self, record: ReplayRecord) -> Result<(), ReplayError> {
        let kind = record.kind;
        let damaged = |source| BadRecord::Damaged { kind, source };
        match record.decoded().map_err(damaged)? {
            LogBody::Write(write) => self.replay_write(&record, &write).await,
            LogBody::Truncate { offset, length, .. } => {
                let room = self.size_bytes().saturating_sub(offset);
                let length = if length == 0 { room } else { length.min(room) };
                Ok(self.free_locked(offset, length).await?)
            }
            // The data was part of a block that is on disk already.
            LogBody::WriteSize(_) => Ok(()),
            LogBody::CloneRange {
                offset,
                length,
                block_bytes,
                blocks,
                ..
            } => {
                if block_bytes == 0 || block_bytes > BLOCK_BYTES_MAX {
                    return Err(BadRecord::BlockSize { block_bytes }.into());
                }
                self.replay_clone(offset, length, block_bytes, &blocks)
                    .await
            }
            _ => Err(BadRecord::Unknown { kind }.into()),
        }
    }

    async fn replay_write(
        &self,
        record: &ReplayRecord,
        write: &LogWrite<'_>,
    ) -> Result<(), ReplayError> {
        let mut offset = write.offset;
        let data = match (&record.data, write.data) {
            (Some(block), _) => {
                // A whole block, written where it belongs.
                if write.length < block.len() as u64 {
                    offset -= offset % block.len() as u64;
                }
                block.clone()
            }
            (None, Some(data)) => record.body.slice_ref(data),
            (None, None) => return Err(BadRecord::NoData.into()),
        };
        // A volume may have shrunk since.
        let room = self
            .size_bytes()
            .saturating_sub(offset)
            .min(data.len() as u64);
        Ok(self
            .write_locked(offset, data.slice(..room as usize))
            .await?)
    }

    async fn replay_clone(
        &self,
        offset: u64,
        length: u64,
        block_bytes: u64,
        blocks: &[BlockPointer],
    ) -> Result<(), ReplayError> {
        let pipeline = self.objset().pipeline();
        let mut done = 0;
        for pointer in blocks {
            let data = if pointer.is_hole() {
                Bytes::from(vec![0; block_bytes as usize])
            } else {
                let bookmark = Bookmark {
                    objset: self.objset().options().dataset.get().into(),
                    object: DATA,
                    ..Bookmark::default()
                };
                pipeline.read(pointer, &ReadContext::new(bookmark)).await?
            };
            let at = offset.saturating_add(done);
            let room = self.size_bytes().saturating_sub(at);
            let part = length.saturating_sub(done).min(data.len() as u64).min(room);
            if part == 0 {
                break;
            }
            self.write_locked(at, data.slice(..part as usize)).await?;
            done += part;
        }
        Ok(())
    }
}

impl ReplayTarget for Volume {
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>> {
        Box::pin(self.replay_record(record))
    }
}
