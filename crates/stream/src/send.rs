//! Sending: a snapshot, or what differs between two, as records (`dmu_send_impl`,
//! module/zfs/dmu_send.c).
//!
//! # The pipe stays full
//! Three things go on at the same time: the object set is traversed ([`object::Changes`]) a
//! batch ahead; data of what was found is read, decompressed and summed by tasks of its own
//! ([`crate::load`]); and what has been read is written in its order, much at once
//! ([`crate::out`]). Whoever reads slowly so stops the traversal, and holds nothing but memory.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use dataset::{Dataset, DatasetError, Redactions, SendSource, features};
use format::stream::{
    Begin, FLAG_CHECKSUM_DEDUP, FLAG_RAW_BYTESWAP, HeaderKind, Object as ObjectRecord, ObjectRange,
    RECORD_BYTES, Record, Spill, StreamCrypt, StreamFeatures, Write, WriteEmbedded,
};
use format::{
    BlockPointer, Bookmark, Checksum, DNODES_PER_BLOCK, DnodePhys, Endian, Guid, NvEncoding,
    NvList, NvValue, OLD_MAX_BLOCK_BYTES, ObjectId, ObjsetId, ObjsetKind, Pointer, Txg,
};
use futures::FutureExt;
use object::{Changes, Traverse, bonus_to_native};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use zio::pipeline::Pipeline;

use crate::events::{Event, LIMITS, Rules};
use crate::load::{Loaded, Loads, is_split};
use crate::out::{Out, Payload};
use crate::overlay::Overlay;
use crate::progress::Progress;
use crate::{Package, StreamError};

/// Events that redaction lists were merged into, before they are written.
const MERGED_MAX: usize = 4096;
/// How a stream is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendOptions {
    /// Blocks of more than 128 KiB stay whole (`-L`).
    pub large_blocks: bool,
    /// Blocks that are in their pointers stay there (`-e`).
    pub embedded: bool,
    /// Blocks stay compressed as they are stored (`-c`).
    pub compressed: bool,
    /// Blocks of encrypted datasets stay encrypted (`-w`), where the source has what that takes
    /// ([`SendSource::key_data`]); the other options then are as if they were set. Others are sent
    /// as those options say.
    pub raw: bool,
    /// Goes on at this object and offset.
    pub resume_at: Option<(u64, u64)>,
}

struct Sender {
    dataset: Dataset,
    pipeline: Arc<Pipeline>,
    features: StreamFeatures,
    to_name: String,
    to_guid: u64,
    from_txg: Txg,
    /// It is not the contents that are asked for.
    only_counts: bool,
}

/// Features of a stream of a snapshot (`setup_featureflags`).
async fn features_of(
    dataset: &Dataset,
    options: &SendOptions,
    is_raw: bool,
) -> Result<StreamFeatures, StreamError> {
    let mut out = StreamFeatures::default();
    if is_raw {
        out = out.with(StreamFeatures::RAW);
    }
    let uses = |guid| dataset.uses_feature(guid);
    if dataset.objset_kind() == ObjsetKind::Filesystem {
        let version = dataset.property("version").await?;
        if version.value.number().unwrap_or(0) >= 5 {
            out = out.with(StreamFeatures::SA_SPILL);
        }
    }
    if (options.large_blocks || is_raw) && uses(features::guid::LARGE_BLOCKS) {
        out = out.with(StreamFeatures::LARGE_BLOCKS);
    }
    let is_active = |guid| dataset.dsl().features().is_active(guid);
    let is_encrypted = uses(features::guid::ENCRYPTION);
    if options.embedded && !is_encrypted && is_active(features::guid::EMBEDDED_DATA) {
        out = out.with(StreamFeatures::EMBED_DATA);
    }
    if options.compressed || is_raw {
        out = out.with(StreamFeatures::COMPRESSED);
    }
    let as_stored = StreamFeatures::EMBED_DATA.0 | StreamFeatures::COMPRESSED.0;
    if out.0 & as_stored != 0 && is_active(features::guid::LZ4_COMPRESS) {
        out = out.with(StreamFeatures::LZ4);
    }
    if (options.compressed || is_raw) && uses(features::guid::ZSTD_COMPRESS) {
        out = out.with(StreamFeatures::ZSTD);
    }
    if options.resume_at.is_some() {
        out = out.with(StreamFeatures::RESUMING);
    }
    if uses(features::guid::LARGE_DNODE) {
        out = out.with(StreamFeatures::LARGE_DNODE);
    }
    if uses(features::guid::LONGNAME) {
        out = out.with(StreamFeatures::LONG_NAME);
    }
    if uses(features::guid::LARGE_MICROZAP) {
        if !out.contains(StreamFeatures::LARGE_BLOCKS) {
            return Err(DatasetError::Unsupported {
                name: dataset.name(),
                what: "sending it without -L".into(),
            }
            .into());
        }
        out = out.with(StreamFeatures::LARGE_MICROZAP);
    }
    Ok(out)
}

/// Sends a snapshot. The output is not closed.
///
/// # Errors
/// Of reading, and of writing to `output`. What was written then is a stream that is cut short.
pub async fn send<W: AsyncWrite + Unpin + Send>(
    source: &SendSource,
    options: &SendOptions,
    output: W,
    progress: &Progress,
) -> Result<(), StreamError> {
    run(source, options, output, progress, false).await
}

/// How many bytes the stream of a snapshot has: all is looked through that [`send`] does, but no
/// contents are read (`dso_dryrun`, module/zfs/dmu_send.c).
///
/// # Errors
/// Of reading.
pub async fn size(source: &SendSource, options: &SendOptions) -> Result<u64, StreamError> {
    let progress = Progress::default();
    run(source, options, tokio::io::sink(), &progress, true).await?;
    Ok(progress.bytes())
}

async fn run<W: AsyncWrite + Unpin + Send>(
    source: &SendSource,
    options: &SendOptions,
    output: W,
    progress: &Progress,
    only_counts: bool,
) -> Result<(), StreamError> {
    let dataset = source.snapshot.clone();
    let key_data = source.key_data.as_ref().filter(|_| options.raw);
    let mut features = features_of(&dataset, options, key_data.is_some()).await?;
    if source.redactions.of_stream.is_some() {
        features = features.with(StreamFeatures::REDACTED);
    }
    let from = source.from;
    let own = || (dataset.name(), dataset.guid());
    let (to_name, to_guid) = source.sent_as.clone().unwrap_or_else(own);
    let sender = Sender {
        pipeline: dataset.objset().pipeline().clone(),
        features,
        to_name,
        to_guid: to_guid.get(),
        from_txg: from.map_or(Txg::ZERO, |from| from.txg),
        dataset,
        only_counts,
    };
    let mut out = Out::new(output, sender.to_guid, progress);
    sender.begin(&mut out, source, options, key_data).await?;
    sender
        .contents(&mut out, options, &source.redactions)
        .await?;
    out.end().await
}

impl Sender {
    async fn begin<W: AsyncWrite + Unpin + Send>(
        &self,
        out: &mut Out<'_, W>,
        source: &SendSource,
        options: &SendOptions,
        key_data: Option<&NvList>,
    ) -> Result<(), StreamError> {
        let from = source.from;
        let mut flags = Begin::FLAG_FREE_RECORDS | Begin::FLAG_SPILL_BLOCK;
        if from.is_some_and(|from| from.is_origin) {
            flags |= Begin::FLAG_CLONE;
        }
        if self.dataset.is_case_insensitive() {
            flags |= Begin::FLAG_CASE_INSENSITIVE;
        }
        let mut list = NvList::new();
        for (name, redaction) in [
            ("redact_snaps", &source.redactions.of_stream),
            ("redact_from_snaps", &source.redactions.of_receiver),
        ] {
            if let Some(redaction) = redaction {
                list.set(name, NvValue::UInt64Array(redaction.snapshots()));
            }
        }
        if let Some(guids) = &source.redactions.of_source {
            list.set("redact_from_snaps", NvValue::UInt64Array(guids.clone()));
        }
        if let Some((object, offset)) = options.resume_at {
            list.set("resume_object", object);
            list.set("resume_offset", offset);
        }
        if let Some(key_data) = key_data {
            list.set("crypt_keydata", key_data.clone());
        }
        let payload = packed(&list)?;
        let begin = Begin {
            header: HeaderKind::Snapshot,
            features: self.features,
            creation_time_seconds: self.dataset.creation_seconds(),
            objset_kind: self.dataset.objset_kind().code() as u32,
            flags,
            to_guid: Guid::new(self.to_guid),
            from_guid: from.map_or(Guid::new(0), |from| from.guid),
            to_name: self.to_name.clone(),
            payload_bytes: payload.len() as u32,
        };
        out.record(&Record::Begin(Box::new(begin)), Payload::new(payload))
            .await
    }

    async fn contents<W: AsyncWrite + Unpin + Send>(
        &self,
        out: &mut Out<'_, W>,
        options: &SendOptions,
        redactions: &Redactions,
    ) -> Result<(), StreamError> {
        let mut start = (0, 0);
        let objset = ObjsetId::new(self.dataset.object().get());
        let mut what = Traverse {
            root: self.dataset.objset().root(),
            objset,
            after: self.from_txg,
            from: None,
        };
        if let Some((object, offset)) = options.resume_at {
            let held = self.dataset.objset().hold(object.into()).await?;
            let block = offset / u64::from(held.info().data_block_bytes);
            what.from = Some(Bookmark::new(objset, ObjectId::new(object), 0, block));
            start = (object, block);
        }
        let first = options.resume_at.map_or(1, |at| at.0);
        let pipeline = self.pipeline.clone();
        let mut changes = Changes::new(pipeline, what, first, self.is_raw(), LIMITS);
        let is_plain = redactions.of_stream.is_none() && redactions.of_receiver.is_none();
        let mut overlay = Overlay::new(&self.dataset, redactions, start);
        let (loads, mut loaded) =
            Loads::new(&self.pipeline, objset, self.features, self.only_counts);
        let finding = async move {
            let mut next = self.batch(&mut changes).await?;
            while let Some(batch) = next {
                let is_last = batch.is_last;
                let following = async {
                    match is_last {
                        true => Ok(None),
                        false => self.batch(&mut changes).await,
                    }
                };
                let loading = async {
                    match is_plain {
                        true => loads.load(batch.events).await,
                        false => load_with(&loads, &mut overlay, batch).await,
                    }
                };
                let (following, begun) = tokio::join!(following, loading);
                begun?;
                next = following?;
            }
            Ok(())
        };
        let writing = async {
            loop {
                let mut next = pin!(loaded.next());
                let found = match next.as_mut().now_or_never() {
                    Some(found) => found,
                    None => {
                        // Nothing that is there waits for what is not.
                        out.flush().await?;
                        next.await
                    }
                };
                match found {
                    Some(Ok(found)) => self.put(out, found).await?,
                    Some(Err(error)) => {
                        // As much as there is may be gone on from.
                        out.flush().await?;
                        return Err(error);
                    }
                    None => return Ok(()),
                }
            }
        };
        // Once all is found, what was begun is written to its end.
        tokio::try_join!(finding, writing).map(drop)
    }

    /// Finds more to send.
    async fn batch(&self, changes: &mut Changes) -> Result<Option<Batch>, StreamError> {
        let found = changes.next().await?;
        let is_last = found.is_last;
        let rules = Rules {
            after: self.from_txg,
            is_raw: self.is_raw(),
        };
        let events = rules.events(found);
        Ok(Some(Batch { events, is_last }))
    }

    fn is_raw(&self) -> bool {
        self.features.contains(StreamFeatures::RAW)
    }

    async fn put<W: AsyncWrite + Unpin + Send>(
        &self,
        out: &mut Out<'_, W>,
        loaded: Loaded,
    ) -> Result<(), StreamError> {
        match loaded {
            Loaded::Event(Event::Object {
                object,
                dnode,
                endian,
            }) => self.object(out, object, &dnode, endian).await,
            Loaded::Event(Event::ObjectRange { first, pointer }) => {
                let range = self.object_range(first, &pointer);
                out.record(&range, Payload::default()).await
            }
            Loaded::Event(Event::FreeObjects { first, count }) => {
                out.free_objects(first, count).await
            }
            Loaded::Event(Event::Hole {
                object,
                offset_bytes,
                length_bytes,
                ..
            }) => out.free(object, offset_bytes, length_bytes).await,
            Loaded::Event(Event::Redact {
                object,
                offset_bytes,
                length_bytes,
            }) => out.redact(object, offset_bytes, length_bytes).await,
            Loaded::Event(Event::Data {
                object,
                block,
                pointer,
                block_bytes,
                ..
            }) => {
                let offset = block.saturating_mul(block_bytes);
                self.embedded(out, object, offset, block_bytes, &pointer)
                    .await
            }
            Loaded::Data {
                event:
                    Event::Data {
                        object,
                        block,
                        pointer,
                        block_bytes,
                        object_type,
                    },
                payloads,
                is_stored,
                ..
            } => {
                let write = Write {
                    object,
                    object_type: object_type.code().into(),
                    offset_bytes: block.saturating_mul(block_bytes),
                    logical_bytes: block_bytes,
                    to_guid: self.to_guid,
                    ..Write::default()
                };
                self.data(out, write, &pointer, payloads, is_stored).await
            }
            Loaded::Data {
                event:
                    Event::Spill {
                        object,
                        is_old,
                        pointer,
                        ..
                    },
                payloads,
                ..
            } => {
                let payload = payloads.into_iter().next().unwrap_or_default();
                let mut spill = Spill {
                    object,
                    length_bytes: payload.length_bytes(),
                    to_guid: self.to_guid,
                    flags: if is_old { Spill::FLAG_UNMODIFIED } else { 0 },
                    ..Spill::default()
                };
                if self.is_raw() {
                    raw_spill(&mut spill, &pointer);
                }
                out.record(&Record::Spill(Box::new(spill)), payload).await
            }
            // Spill blocks are always read, and nothing else is.
            Loaded::Event(Event::Spill { .. }) | Loaded::Data { .. } => Ok(()),
        }
    }

    async fn object<W: AsyncWrite + Unpin + Send>(
        &self,
        out: &mut Out<'_, W>,
        object: u64,
        dnode: &DnodePhys,
        endian: Endian,
    ) -> Result<(), StreamError> {
        let mut block_bytes = dnode.data_block_bytes;
        if !self.features.contains(StreamFeatures::LARGE_BLOCKS) {
            block_bytes = block_bytes.min(OLD_MAX_BLOCK_BYTES as u32);
        }
        let mut bonus = dnode.bonus.clone();
        let bonus_bytes = bonus.len() as u32;
        if !self.is_raw() {
            bonus_to_native(dnode.bonus_type, &mut bonus, endian);
            bonus.resize(bonus.len().next_multiple_of(8), 0);
        }
        let mut record = ObjectRecord {
            object,
            object_type: dnode.object_type.code().into(),
            bonus_type: dnode.bonus_type.code().into(),
            block_bytes,
            bonus_bytes,
            checksum: dnode.checksum.code(),
            compression: dnode.compression.code(),
            slots: dnode.extra_slots + 1,
            flags: match dnode.spill {
                Some(_) => ObjectRecord::FLAG_SPILL,
                None => 0,
            },
            to_guid: self.to_guid,
            ..ObjectRecord::default()
        };
        if self.is_raw() {
            bonus = raw_object(&mut record, dnode, endian);
        }
        let bonus = Payload::new(bonus.into());
        out.record(&Record::Object(record), bonus).await?;
        let end = dnode
            .max_block_id
            .saturating_add(1)
            .saturating_mul(dnode.data_block_bytes.into());
        out.free(object, end, u64::MAX).await
    }

    async fn embedded<W: AsyncWrite + Unpin + Send>(
        &self,
        out: &mut Out<'_, W>,
        object: u64,
        offset_bytes: u64,
        length_bytes: u64,
        pointer: &BlockPointer,
    ) -> Result<(), StreamError> {
        let Pointer::Embedded(embedded) = pointer.decoded() else {
            return Err(StreamError::bad("a block without its data"));
        };
        let record = WriteEmbedded {
            object,
            offset_bytes,
            length_bytes,
            to_guid: self.to_guid,
            compression: embedded.compression.code(),
            kind: embedded.kind.code(),
            logical_bytes: embedded.lsize_bytes as u32,
            physical_bytes: embedded.psize_bytes as u32,
        };
        let mut payload = embedded.payload().to_vec();
        payload.resize(payload.len().next_multiple_of(8), 0);
        let payload = Payload::new(payload.into());
        out.record(&Record::WriteEmbedded(record), payload).await
    }

    /// OBJECT_RANGE (`dump_object_range`).
    fn object_range(&self, first: u64, pointer: &BlockPointer) -> Record {
        Record::ObjectRange(ObjectRange {
            first,
            slots: DNODES_PER_BLOCK,
            to_guid: self.to_guid,
            crypt: crypt_of(pointer),
            flags: byte_order(pointer.endian()),
        })
    }

    /// WRITE (`dmu_dump_write`); of big blocks several, where the stream must not have them.
    async fn data<W: AsyncWrite + Unpin + Send>(
        &self,
        out: &mut Out<'_, W>,
        mut write: Write,
        pointer: &BlockPointer,
        payloads: Vec<Payload>,
        is_stored: bool,
    ) -> Result<(), StreamError> {
        if is_split(self.features, write.logical_bytes) {
            write.checksum = Checksum::Off.code();
            for part in payloads {
                write.logical_bytes = part.length_bytes();
                out.record(&Record::Write(Box::new(write.clone())), part)
                    .await?;
                write.offset_bytes = write.offset_bytes.saturating_add(write.logical_bytes);
            }
            return Ok(());
        }
        let payload = payloads.into_iter().next().unwrap_or_default();
        if is_stored {
            write.compression = pointer.compression().code();
            write.compressed_bytes = payload.length_bytes();
        }
        let is_raw = self.is_raw();
        if is_raw {
            write.crypt = crypt_of(pointer);
            write.flags |= byte_order(pointer.endian());
        }
        if pointer.is_embedded() || pointer.uses_crypt() && !is_raw {
            write.checksum = Checksum::Off.code();
        } else {
            let kind = pointer.checksum_kind();
            write.checksum = kind.code();
            if kind.is_dedup() {
                write.flags |= FLAG_CHECKSUM_DEDUP;
            }
            let sectors = |bytes: u64| (bytes >> 9).saturating_sub(1) & 0xffff;
            let compression = u64::from(pointer.compression().code());
            write.key[..4].copy_from_slice(&pointer.checksum());
            write.key[4] = sectors(pointer.lsize_bytes())
                | sectors(pointer.psize_bytes()) << 16
                | compression << 32
                | u64::from(is_raw) << 39;
        }
        out.record(&Record::Write(Box::new(write)), payload).await
    }
}

/// Begins to load what redaction lists make of a batch.
async fn load_with(
    loads: &Loads,
    overlay: &mut Overlay<'_>,
    batch: Batch,
) -> Result<(), StreamError> {
    let mut merged = Vec::new();
    for event in batch.events {
        let mut left = Some(event);
        while let Some(event) = left.take() {
            left = overlay.merge(event, &mut merged, MERGED_MAX).await?;
            if merged.len() >= MERGED_MAX {
                loads.load(std::mem::take(&mut merged)).await?;
            }
        }
    }
    while batch.is_last && !overlay.merge_rest(&mut merged, MERGED_MAX).await? {
        loads.load(std::mem::take(&mut merged)).await?;
    }
    loads.load(merged).await
}

/// Salt, IV and MAC of a block.
fn crypt_of(pointer: &BlockPointer) -> StreamCrypt {
    let params = pointer.crypt();
    let (salt, iv) =
        params.map_or_else(Default::default, |params| params.to_bytes(pointer.endian()));
    StreamCrypt {
        salt,
        iv,
        mac: pointer.mac(),
    }
}

/// The flag of raw records whose block is not in the byte order of the stream.
fn byte_order(endian: Endian) -> u8 {
    match endian {
        Endian::Little => 0,
        Endian::Big => FLAG_RAW_BYTESWAP,
    }
}

/// What a raw stream says of an object besides, and its payload: all of the room for the bonus, as
/// it is stored.
fn raw_object(record: &mut ObjectRecord, dnode: &DnodePhys, endian: Endian) -> Vec<u8> {
    record.flags |= byte_order(endian);
    record.last_block = dnode.max_block_id;
    record.indirect_shift = dnode.indirect_block_shift;
    record.levels = dnode.levels;
    record.pointers = dnode.pointers.len() as u8;
    if dnode.bonus.is_empty() {
        return Vec::new();
    }
    let room = dnode.bonus_room_bytes();
    record.raw_bonus_bytes = room as u32;
    let mut bonus = [&dnode.bonus[..], &dnode.bonus_tail].concat();
    bonus.resize(room, 0);
    bonus
}

/// What a raw stream says of a spill block besides.
fn raw_spill(spill: &mut Spill, pointer: &BlockPointer) {
    spill.compressed_bytes = spill.length_bytes;
    spill.length_bytes = pointer.lsize_bytes();
    spill.compression = pointer.compression().code();
    spill.crypt = crypt_of(pointer);
    spill.flags |= byte_order(pointer.endian());
}

struct Batch {
    events: Vec<Event>,
    is_last: bool,
}

/// A list as the payload of BEGIN: nothing for an empty one, else whole words
/// (`pad_packed_nvlist`).
pub(crate) fn packed(list: &NvList) -> Result<Bytes, StreamError> {
    if list.is_empty() {
        return Ok(Bytes::new());
    }
    let mut packed = list.encode(NvEncoding::Xdr)?;
    packed.resize(packed.len().next_multiple_of(8), 0);
    Ok(packed.into())
}

/// Sends what comes before the streams of a package: its description, if it has one. `name` is the
/// snapshot that was asked for.
///
/// # Errors
/// Of writing to `output`.
pub async fn send_package<W: AsyncWrite + Unpin + Send>(
    package: Option<&Package>,
    name: &str,
    features: StreamFeatures,
    output: W,
    progress: &Progress,
) -> Result<(), StreamError> {
    let payload = match package {
        Some(package) => packed(&package.encode())?,
        None => Bytes::new(),
    };
    let begin = Begin {
        header: HeaderKind::Compound,
        features,
        creation_time_seconds: 0,
        objset_kind: 0,
        flags: 0,
        to_guid: Guid::new(0),
        from_guid: Guid::new(0),
        to_name: name.to_owned(),
        payload_bytes: payload.len() as u32,
    };
    let mut out = Out::new(output, 0, progress);
    out.record(&Record::Begin(Box::new(begin)), Payload::new(payload))
        .await?;
    out.end().await
}

/// Sends what comes after the streams of a package.
///
/// # Errors
/// Of writing to `output`.
pub async fn send_package_end<W: AsyncWrite + Unpin + Send>(
    mut output: W,
    progress: &Progress,
) -> Result<(), StreamError> {
    let end = Record::End {
        checksum: [0; 4],
        to_guid: 0,
    };
    output.write_all(&end.encode()).await?;
    output.flush().await?;
    progress.add(RECORD_BYTES as u64)
}
