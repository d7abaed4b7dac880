//! Loading what is to be sent: each block by a task of its own, so that whoever writes the stream
//! does not keep reads, checksums and decompression waiting; handed out in order. The stream's own
//! checksum of a block is computed there as well.
//!
//! [`BLOCKS_MAX`] and [`BYTES_MAX`] bound what is under way or waits to be written.

use std::sync::Arc;

use device::Tasks;
use format::stream::StreamFeatures;
use format::{
    BlockPointer, Bookmark, Compression, EmbeddedKind, Endian, OLD_MAX_BLOCK_BYTES, ObjectId,
    ObjectType, ObjsetId,
};
use object::to_native;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use zio::ReadContext;
use zio::pipeline::{CacheUse, Pipeline};

use crate::StreamError;
use crate::events::Event;
use crate::out::Payload;

/// Blocks, and what else is sent in between, that are loaded or wait to be written. Small blocks
/// must be many, lest a disk has too little to read at once.
const BLOCKS_MAX: usize = 1024;
/// The same, in bytes of blocks. More than the biggest block.
const BYTES_MAX: usize = 64 << 20;

/// Something to write that was loaded.
pub(crate) enum Loaded {
    Event(Event),
    /// Data as it is, or compressed as it was stored.
    Data {
        event: Event,
        /// One; of a block that is sent in parts ([`is_split`]) each of them, in order.
        payloads: Vec<Payload>,
        is_stored: bool,
        _room: OwnedSemaphorePermit,
    },
}

enum Place {
    There(Event),
    Coming(oneshot::Receiver<Result<Loaded, StreamError>>),
}

/// Begins to load.
pub(crate) struct Loads {
    loader: Loader,
    tasks: Arc<Tasks>,
    room: Arc<Semaphore>,
    queue: mpsc::Sender<Place>,
}

/// Hands out what was loaded. When it goes, so does what is under way.
pub(crate) struct Queue {
    places: mpsc::Receiver<Place>,
    tasks: Arc<Tasks>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[derive(Clone)]
struct Loader {
    pipeline: Arc<Pipeline>,
    objset: ObjsetId,
    features: StreamFeatures,
    only_counts: bool,
}

/// Whether a block is sent in parts: one of more than 128 KiB, where the stream has no large ones.
/// Parts are of data as it is, never of what is compressed, embedded or encrypted as a whole.
pub(crate) fn is_split(features: StreamFeatures, logical_bytes: u64) -> bool {
    logical_bytes > OLD_MAX_BLOCK_BYTES && !features.contains(StreamFeatures::LARGE_BLOCKS)
}

/// A block that is to be read.
struct Block {
    object: u64,
    number: u64,
    pointer: BlockPointer,
    kind: ObjectType,
}

impl Loads {
    /// Of a snapshot that is sent with these features. `only_counts`: what is in blocks does not
    /// matter, only how much that is.
    pub(crate) fn new(
        pipeline: &Arc<Pipeline>,
        objset: ObjsetId,
        features: StreamFeatures,
        only_counts: bool,
    ) -> (Self, Queue) {
        let (queue, places) = mpsc::channel(BLOCKS_MAX);
        let tasks = Arc::new(pipeline.tasks().group());
        let loads = Self {
            loader: Loader {
                pipeline: pipeline.clone(),
                objset,
                features,
                only_counts,
            },
            tasks: tasks.clone(),
            room: Arc::new(Semaphore::new(BYTES_MAX)),
            queue,
        };
        (loads, Queue { places, tasks })
    }

    /// Begins to load these, as soon as there is room for them.
    pub(crate) async fn load(&self, events: Vec<Event>) -> Result<(), StreamError> {
        let gone = |_| StreamError::Interrupted;
        for event in events {
            let Some(block) = self.loader.block(&event) else {
                let sent = self.queue.send(Place::There(event)).await;
                sent.map_err(|_| StreamError::Interrupted)?;
                continue;
            };
            let bytes = block.pointer.lsize_bytes().min(BYTES_MAX as u64) as u32;
            let room = self.room.clone().acquire_many_owned(bytes).await;
            let room = room.map_err(gone)?;
            let (done, coming) = oneshot::channel();
            let sent = self.queue.send(Place::Coming(coming)).await;
            sent.map_err(|_| StreamError::Interrupted)?;
            let loader = self.loader.clone();
            self.tasks.spawn("block of a stream", async move {
                let loaded = loader.load(block).await;
                let loaded = loaded.map(|(payloads, is_stored)| Loaded::Data {
                    event,
                    payloads,
                    is_stored,
                    _room: room,
                });
                // Nobody waits for it any more.
                let _ = done.send(loaded);
            });
        }
        Ok(())
    }
}

impl Queue {
    /// The next one in order; `None` when whoever begins to load has gone.
    pub(crate) async fn next(&mut self) -> Option<Result<Loaded, StreamError>> {
        Some(match self.places.recv().await? {
            Place::There(event) => Ok(Loaded::Event(event)),
            Place::Coming(coming) => coming.await.unwrap_or(Err(StreamError::Interrupted)),
        })
    }
}

impl Loader {
    /// The block whose contents are to be sent, if there is one.
    fn block(&self, event: &Event) -> Option<Block> {
        match event {
            Event::Data {
                object,
                block,
                pointer,
                ..
            } if !self.sends_embedded(pointer) => Some(Block {
                object: *object,
                number: *block,
                pointer: *pointer,
                kind: pointer.object_type(),
            }),
            Event::Spill {
                object,
                pointer,
                bonus_type,
                ..
            } => Some(Block {
                object: *object,
                number: Bookmark::SPILL_BLOCK_ID,
                pointer: *pointer,
                kind: *bonus_type,
            }),
            _ => None,
        }
    }

    fn is_raw(&self) -> bool {
        self.features.contains(StreamFeatures::RAW)
    }

    /// Whether an embedded block is sent as one (`send_do_embed`).
    fn sends_embedded(&self, pointer: &BlockPointer) -> bool {
        let kind = pointer.compression();
        let is_new = matches!(kind, Compression::Lz4 | Compression::Zstd);
        pointer.embedded_kind() == Some(EmbeddedKind::Data)
            && !is_split(self.features, pointer.lsize_bytes())
            && self.features.contains(StreamFeatures::EMBED_DATA)
            && (!is_new || self.features.contains(StreamFeatures::LZ4))
            && (kind != Compression::Zstd || self.features.contains(StreamFeatures::ZSTD))
    }

    /// Whether a block is sent as it is stored.
    fn sends_stored(&self, pointer: &BlockPointer) -> bool {
        self.features.contains(StreamFeatures::COMPRESSED)
            && !is_split(self.features, pointer.lsize_bytes())
            && !pointer.is_embedded()
            && !pointer.uses_crypt()
            && pointer.compression() != Compression::Off
            && pointer.endian() == Endian::Little
            && !pointer.object_type().is_metadata()
    }

    /// What a block holds, and whether that is as it was stored.
    async fn load(&self, block: Block) -> Result<(Vec<Payload>, bool), StreamError> {
        let Block {
            object,
            number,
            pointer,
            kind,
        } = block;
        // Without its key a block can be sent whole only, and a pointer has no room for what
        // decrypts it.
        let is_split = is_split(self.features, pointer.lsize_bytes());
        if self.is_raw() && (is_split || pointer.is_embedded()) {
            return Err(StreamError::Damaged {
                what: format!("block {number} of object {object} cannot be sent encrypted"),
            });
        }
        let bookmark = Bookmark::new(self.objset, ObjectId::new(object), 0, number);
        let context = ReadContext {
            cache: CacheUse::NoFill,
            without_key: self.is_raw(),
            // As in `issue_data_read` (module/zfs/dmu_send.c).
            ..ReadContext::in_background(bookmark)
        };
        let is_spill = number == Bookmark::SPILL_BLOCK_ID;
        let is_stored = self.is_raw() || !is_spill && self.sends_stored(&pointer);
        if self.only_counts {
            let whole = match is_stored {
                true => pointer.psize_bytes(),
                false => pointer.lsize_bytes(),
            };
            return Ok((counted(whole, is_split && !is_spill), is_stored));
        }
        let payload = match is_stored {
            true => self.pipeline.reader().read_raw(&pointer, &context).await?,
            false => {
                let data = self.pipeline.read(&pointer, &context).await?;
                to_native(kind, data, pointer.endian())?
            }
        };
        let part_bytes = match is_split && !is_spill {
            true => OLD_MAX_BLOCK_BYTES as usize,
            false => payload.len().max(1),
        };
        let starts = (0..payload.len()).step_by(part_bytes);
        let parts = starts.map(|start| {
            let end = payload.len().min(start + part_bytes);
            Payload::new(payload.slice(start..end))
        });
        Ok((parts.collect(), is_stored))
    }
}

/// What stands for a block that is not read.
fn counted(bytes: u64, is_split: bool) -> Vec<Payload> {
    let part = match is_split {
        true => OLD_MAX_BLOCK_BYTES,
        false => bytes.max(1),
    };
    let starts = (0..bytes).step_by(part as usize);
    let parts = starts.map(|start| Payload::of_length(part.min(bytes - start) as usize));
    parts.collect()
}
