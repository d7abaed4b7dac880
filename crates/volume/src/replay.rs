//! Doing again what the intent log of a crash says (`zvol_replay_vector`, module/zfs/zvol.c).

use bytes::Bytes;
use device::BoxFuture;
use format::{BLOCK_POINTER_BYTES, BlockPointer, Bookmark, Endian, LogKind};
use zil::{ReplayError, ReplayRecord, ReplayTarget};
use zio::ReadContext;

use crate::init::DATA;
use crate::volume::Volume;

/// Blocks that one record may clone.
const CLONED_BLOCKS_MAX: u64 = 1 << 20;

/// A record that cannot be what OpenZFS or we wrote.
#[derive(Debug, thiserror::Error)]
enum BadRecord {
    /// Its body is too short.
    #[error(
        "a record of kind {kind} in the volume's intent log is cut short; scrub the pool, then \
         roll back to a snapshot if data is missing"
    )]
    Short { kind: LogKind },
    /// It is not one for volumes.
    #[error(
        "a record of kind {kind} in the volume's intent log is not one for volumes; use a newer \
         release"
    )]
    Unknown { kind: LogKind },
}

fn words<const N: usize>(record: &ReplayRecord) -> Result<[u64; N], BadRecord> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        let raw = *record
            .body
            .get(index * 8..)
            .and_then(|rest| rest.first_chunk::<8>())
            .ok_or(BadRecord::Short { kind: record.kind })?;
        *word = match record.endian {
            Endian::Little => u64::from_le_bytes(raw),
            Endian::Big => u64::from_be_bytes(raw),
        };
    }
    Ok(words)
}

impl Volume {
    async fn replay_record(&self, record: ReplayRecord) -> Result<(), ReplayError> {
        let short = BadRecord::Short { kind: record.kind };
        match record.kind {
            LogKind::Write => {
                let [_object, mut offset, length, _] = words(&record)?;
                let data = match &record.data {
                    Some(block) => {
                        // A whole block, written where it belongs.
                        if length < block.len() as u64 {
                            offset -= offset % block.len() as u64;
                        }
                        block.clone()
                    }
                    None => {
                        let start = 32 + BLOCK_POINTER_BYTES;
                        let end = usize::try_from(length)
                            .ok()
                            .and_then(|length| start.checked_add(length))
                            .filter(|end| *end <= record.body.len())
                            .ok_or(short)?;
                        record.body.slice(start..end)
                    }
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
            LogKind::Truncate => {
                let [_object, offset, length] = words(&record)?;
                let room = self.size_bytes().saturating_sub(offset);
                let length = if length == 0 { room } else { length.min(room) };
                Ok(self.free_locked(offset, length).await?)
            }
            // The data was part of a block that is on disk already.
            LogKind::Write2 => Ok(()),
            LogKind::CloneRange => {
                let [_object, offset, length, block_bytes, count] = words(&record)?;
                if count > CLONED_BLOCKS_MAX || block_bytes == 0 || block_bytes > 16 << 20 {
                    return Err(short.into());
                }
                let end = 40 + count as usize * BLOCK_POINTER_BYTES;
                let pointers = record.body.get(40..end).ok_or(short)?;
                let pipeline = self.objset().pipeline();
                let mut done = 0;
                for pointer in BlockPointer::decode_all(pointers, record.endian).collect::<Vec<_>>()
                {
                    let data = if pointer.is_hole() {
                        Bytes::from(vec![0; block_bytes as usize])
                    } else {
                        let bookmark = Bookmark {
                            objset: self.objset().options().dataset.get().into(),
                            object: DATA,
                            ..Bookmark::default()
                        };
                        pipeline.read(&pointer, &ReadContext::new(bookmark)).await?
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
            kind => Err(BadRecord::Unknown { kind }.into()),
        }
    }
}

impl ReplayTarget for Volume {
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>> {
        Box::pin(self.replay_record(record))
    }
}
