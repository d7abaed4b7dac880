//! Corrective receives: what a stream says of blocks of a snapshot that is here puts those right
//! that are damaged (`receive_process_write_record`, `do_corrective_recv`;
//! module/zfs/dmu_recv.c).
//!
//! Only blocks of data that come whole are put right (WRITE): metadata and what is embedded in
//! pointers is not. Every block that comes is read from the disks. One that cannot be put right
//! does not keep others from it; it is told of at the end.

use std::sync::Arc;

use bytes::Bytes;
use dataset::{Corrective, Dataset};
use format::stream::{Record, StreamFeatures, Write};
use format::{
    BlockPointer, Bookmark, ByteswapKind, Compression, Endian, MAX_BLOCK_BYTES, ObjectId, ObjsetId,
    SECTOR_BYTES,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use object::{Object, to_native};
use tokio::io::AsyncRead;
use zio::pipeline::{CacheUse, Healing, Replacement};
use zio::{ReadContext, ZioError};

use crate::progress::Progress;
use crate::{Piece, StreamError, StreamReader};

/// Blocks that are looked at, at the same time.
const BLOCKS_MAX: usize = 32;
/// The same, in bytes of the stream: more are begun while there are fewer.
const BYTES_MAX: usize = 32 << 20;

/// What a corrective receive did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Healed {
    /// Blocks that were damaged and are right now.
    pub blocks: u64,
    /// Their length, in bytes of data.
    pub bytes: u64,
    /// Blocks that are damaged still.
    pub lost: u64,
    /// The first of these, and why.
    pub first_lost: Option<String>,
}

impl Healed {
    fn note(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Sound => {}
            Outcome::Healed(bytes) => {
                self.blocks += 1;
                self.bytes += bytes;
            }
            Outcome::Lost(what) => {
                self.lost += 1;
                self.first_lost.get_or_insert(what);
            }
        }
    }
}

enum Outcome {
    Sound,
    Healed(u64),
    Lost(String),
}

/// Reads what is left of a stream that has begun, and puts right what of it is damaged. What was
/// done is in `healed`, also after an error.
///
/// # Errors
/// Those of the stream; [`StreamError::NotHealed`]; and of a pool that cannot be written.
pub async fn heal<R: AsyncRead + Unpin + Send>(
    reader: &mut StreamReader<R>,
    corrective: &Corrective,
    progress: &Progress,
    healed: &mut Healed,
) -> Result<(), StreamError> {
    let mut healer = Healer {
        dataset: corrective.snapshot().clone(),
        is_raw: (corrective.target().begin.features).contains(StreamFeatures::RAW),
        endian: reader.endian(),
        held: None,
    };
    let mut under_way = FuturesUnordered::new();
    let mut bytes_under_way = 0;
    let mut before = 0;
    let mut ended: Result<(), StreamError> = Ok(());
    loop {
        while under_way.len() >= BLOCKS_MAX || bytes_under_way > BYTES_MAX {
            let Some((outcome, bytes)) = under_way.next().await else {
                break;
            };
            bytes_under_way -= bytes;
            match outcome {
                Ok(outcome) => healed.note(outcome),
                Err(error) => ended = ended.and(Err(error)),
            }
        }
        if ended.is_err() {
            break;
        }
        let next = progress.unless_stopped(reader.next()).await;
        let Piece {
            record,
            payload,
            end_bytes,
        } = match next {
            Ok(piece) => piece,
            Err(error) => {
                ended = Err(error);
                break;
            }
        };
        if let Err(error) = progress.add(end_bytes - before) {
            ended = Err(error);
            break;
        }
        before = end_bytes;
        match record {
            Record::End { .. } => break,
            Record::Write(write) => match healer.block(&write, payload).await {
                Ok(Some(block)) => {
                    let bytes = block.stream_bytes;
                    bytes_under_way += bytes;
                    under_way.push(async move { (block.put_right().await, bytes) });
                }
                Ok(None) => {}
                Err(Refused::Block(what)) => healed.note(Outcome::Lost(what)),
                Err(Refused::Stream(error)) => {
                    ended = Err(error);
                    break;
                }
            },
            _ => {}
        }
    }
    // Nothing that was begun is left half done.
    while let Some((outcome, _)) = under_way.next().await {
        match outcome {
            Ok(outcome) => healed.note(outcome),
            Err(error) => ended = ended.and(Err(error)),
        }
    }
    ended?;
    match &healed.first_lost {
        None => Ok(()),
        Some(first) => Err(StreamError::NotHealed {
            blocks: healed.lost,
            first: first.clone(),
        }),
    }
}

/// Why a record is of no use.
enum Refused {
    /// The block that it is about cannot be told whether it is damaged, or be put right with it.
    Block(String),
    /// No other record is of use either.
    Stream(StreamError),
}

struct Healer {
    dataset: Dataset,
    is_raw: bool,
    endian: Endian,
    /// The object that the last record was about.
    held: Option<Object>,
}

/// A block, and what a record says of it.
struct Block {
    dataset: Dataset,
    pointer: BlockPointer,
    context: ReadContext,
    replacement: Replacement,
    data_bytes: u64,
    stream_bytes: usize,
}

impl Healer {
    async fn hold(&mut self, number: u64) -> Result<Object, Refused> {
        let id = ObjectId::new(number);
        if id.is_zero() || number >= ObjectId::LIMIT {
            let what = format!("an object with number {number}");
            return Err(Refused::Stream(StreamError::bad(what)));
        }
        if let Some(held) = self.held.as_ref().filter(|held| held.id() == id) {
            return Ok(held.clone());
        }
        let held = self.dataset.objset().hold(id).await;
        let held = held.map_err(|error| Refused::Block(format!("object {number}: {error}")))?;
        Ok(self.held.insert(held).clone())
    }

    /// The block that a record is about; `None` where there is nothing that could be damaged.
    async fn block(&mut self, write: &Write, payload: Bytes) -> Result<Option<Block>, Refused> {
        let length = write.logical_bytes;
        if !(SECTOR_BYTES..=MAX_BLOCK_BYTES).contains(&length)
            || write.offset_bytes.checked_add(length).is_none()
        {
            let what = format!("{length} bytes of object {}", write.object);
            return Err(Refused::Stream(StreamError::bad(what)));
        }
        let object = self.hold(write.object).await?;
        let info = object.info();
        let block_bytes = u64::from(info.data_block_bytes);
        let number = write.offset_bytes / block_bytes;
        let name = format!("object {} at {}", write.object, write.offset_bytes);
        let lost = |why: &dyn std::fmt::Display| Refused::Block(format!("{name}: {why}"));
        let pointer = object
            .block_pointer(number)
            .await
            .map_err(|error| lost(&error))?;
        if pointer.is_hole() || pointer.is_embedded() {
            return Ok(None);
        }
        let is_whole = length == block_bytes && write.offset_bytes.is_multiple_of(block_bytes);
        let objset = ObjsetId::new(self.dataset.object().get());
        let context = ReadContext {
            cache: CacheUse::Bypass,
            ..ReadContext::new(Bookmark::new(
                objset,
                ObjectId::new(write.object),
                0,
                number,
            ))
        };
        if !is_whole || length != pointer.lsize_bytes() {
            // Parts of blocks say nothing of the others.
            let read = self.dataset.objset().pipeline().reader();
            return match read.read_raw(&pointer, &context).await {
                Ok(_) => Ok(None),
                Err(_) => Err(lost(
                    &"stream is not compatible with the data in the pool; send \
                                     with -L",
                )),
            };
        }
        let stream_bytes = payload.len().max(1);
        let compression = Compression::from_code(write.compression);
        let replacement = match compression {
            _ if self.is_raw => Replacement::Raw(payload),
            _ if write.compression == 0 => {
                let swapped = |data, endian| {
                    to_native(info.object_type, data, endian).map_err(|error| lost(&error))
                };
                let mut data = swapped(payload, self.endian)?;
                if pointer.endian() == Endian::Big
                    && info.object_type.byteswap() != ByteswapKind::Uint8
                {
                    data = swapped(data, Endian::Big)?;
                }
                Replacement::Data(data)
            }
            Compression::Off
            | Compression::On
            | Compression::Inherit
            | Compression::Empty
            | Compression::Unknown(_) => {
                let what = format!("compression {compression} of object {}", write.object);
                return Err(Refused::Stream(StreamError::bad(what)));
            }
            compression => Replacement::Compressed {
                stored: payload,
                compression,
            },
        };
        Ok(Some(Block {
            dataset: self.dataset.clone(),
            pointer,
            context,
            replacement,
            data_bytes: length,
            stream_bytes,
        }))
    }
}

impl Block {
    async fn put_right(self) -> Result<Outcome, StreamError> {
        let objset = Arc::clone(self.dataset.objset());
        let level = objset.properties().zstd_level;
        let reader = objset.pipeline().reader();
        let healed = reader
            .heal(&self.pointer, &self.context, self.replacement, level)
            .await;
        let bookmark = self.context.bookmark;
        match healed {
            Ok(Healing::Sound) => Ok(Outcome::Sound),
            Ok(Healing::Healed) => Ok(Outcome::Healed(self.data_bytes)),
            Ok(Healing::Unlike) => Ok(Outcome::Lost(format!(
                "{bookmark}: what came does not make up what was stored"
            ))),
            Err(
                error @ (ZioError::ReadOnly
                | ZioError::Closing
                | ZioError::Suspended { .. }
                | ZioError::KeyNotLoaded { .. }),
            ) => Err(error.into()),
            Err(error) => Ok(Outcome::Lost(format!("{bookmark}: {error}"))),
        }
    }
}
