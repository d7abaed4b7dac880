//! Writing what records say into the dataset that is received into (`receive_process_record`,
//! module/zfs/dmu_recv.c).
//!
//! Records come in the order of objects and offsets. An object that is not what it was (another
//! file got its number) is made anew in place where that can be; else it is freed, and claimed
//! again once that is on disk.
//!
//! # As sent
//! A block of data that comes compressed, and is a whole block here as well, is stored as it came,
//! whatever the property `compression` says here (`flush_write_batch_impl`, module/zfs/dmu_recv.c).
//! It is decompressed all the same: a stream whose data is none is refused, and whoever reads or
//! changes the block before it is on disk has its data.

mod raw;

use std::sync::Arc;

use bytes::Bytes;
use codec::compress::decompress;
use dataset::{Dataset, DirtyEstimate, Receiving, ResumePoint};
use format::stream::{
    Begin, Object as ObjectRecord, Range, Record, Spill, StreamFeatures, Write, WriteEmbedded,
    object_type,
};
use format::{
    Checksum, Compression, EmbeddedKind, Endian, MAX_BLOCK_BYTES, OLD_MAX_BLOCK_BYTES, ObjectId,
    ObjectType, SECTOR_BYTES, SaFixedPlace, SaHeader,
};
use object::{NewObject, Object, ObjectSet, bonus_to_native, to_native};
use tokio::sync::oneshot;
use zio::BlockData;

use crate::load::is_split;
use crate::{Piece, StreamError};

pub(crate) use raw::OTHER_ORDER;

/// What a block that came compressed is, as soon as a CPU worker has found out.
pub(crate) type Unpacking = oneshot::Receiver<Result<Bytes, StreamError>>;

/// Slots of the biggest dnode.
const SLOTS_MAX: u8 = 32;
/// An object of more than this is freed in parts, in bytes.
const FREE_WHOLE_BYTES: u64 = 1 << 30;

/// What is to be said of a stream that was received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Received {
    /// Embedded blocks of more than 128 KiB, in a stream that does not say that it has large
    /// blocks. They were received whole; OpenZFS refuses such a stream.
    pub long_embedded_blocks: u64,
}

pub(crate) struct Writer<'a> {
    receiving: &'a Receiving,
    dataset: Dataset,
    set: Arc<ObjectSet>,
    endian: Endian,
    features: StreamFeatures,
    /// OBJECT says whether there is a spill block.
    says_spill: bool,
    /// The stream is no difference.
    is_full: bool,
    /// Bytes of the stream that earlier attempts had.
    bytes_before: u64,
    /// Where the last data went.
    last: (u64, u64),
    object_max: u64,
    /// The object that the last record was about.
    held: Option<Object>,
    /// Blocks are stored as they come.
    is_raw: bool,
    /// First object of the block of dnodes that a raw stream is at.
    range: Option<u64>,
    received: Received,
}

/// What an object that exists is to become.
enum Change {
    /// It stays what it is; its bonus may change.
    Keep,
    /// Another one under the same number, which has its blocks or not.
    Reclaim { frees: bool },
    /// Another one, of which the dnode is of another size.
    Claim,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(receiving: &'a Receiving, endian: Endian) -> Self {
        let begin = &receiving.target().begin;
        let dataset = receiving.dataset().clone();
        Self {
            receiving,
            set: dataset.objset().clone(),
            dataset,
            endian,
            features: begin.features,
            says_spill: begin.flags & Begin::FLAG_SPILL_BLOCK != 0,
            is_full: begin.from_guid.get() == 0,
            bytes_before: receiving.resumed_at().map_or(0, |point| point.stream_bytes),
            last: (0, 0),
            object_max: 0,
            held: None,
            is_raw: begin.features.contains(StreamFeatures::RAW),
            range: None,
            received: Received::default(),
        }
    }

    /// Does what a record says; `unpacking` is its data, where that is decompressed elsewhere.
    pub(crate) async fn write(
        &mut self,
        piece: Piece,
        unpacking: Option<Unpacking>,
    ) -> Result<(), StreamError> {
        let (payload, end) = (piece.payload, piece.end_bytes);
        if let Some(object) = piece.record.object() {
            if object.is_zero() || object.get() >= ObjectId::LIMIT {
                return Err(StreamError::bad(format!("an object with number {object}")));
            }
            self.object_max = self.object_max.max(object.get());
        }
        match piece.record {
            Record::Object(record) if self.is_raw => {
                self.raw_object(&record, &payload, end).await?;
            }
            Record::Write(record) if self.is_raw => self.raw_data(&record, payload, end).await?,
            Record::Spill(record) if self.is_raw => self.raw_spill(&record, payload).await?,
            Record::ObjectRange(range) if self.is_raw => self.object_range(&range)?,
            Record::WriteEmbedded(_) if self.is_raw => {
                return Err(StreamError::bad("an embedded block in a raw stream"));
            }
            Record::Object(record) => self.object(&record, &payload, end).await?,
            Record::FreeObjects { first, count, .. } => self.free_objects(first, count).await?,
            Record::Write(record) => self.data(&record, payload, unpacking, end).await?,
            Record::Free(range) | Record::Redact(range) => self.free(&range).await?,
            Record::Spill(record) => self.spill(&record, payload).await?,
            Record::WriteEmbedded(record) => self.embedded(&record, &payload, end).await?,
            Record::End { .. } => {}
            Record::WriteByRef => {
                return Err(StreamError::Unsupported {
                    what: "a deduplicated stream (zfs send -D)",
                    advice: "make it an ordinary one with 'zstream redup'",
                });
            }
            Record::ObjectRange(_) => {
                return Err(StreamError::bad(
                    "a block of dnodes in a stream that is not raw",
                ));
            }
            Record::Begin(_) => return Err(StreamError::bad("a second beginning")),
        }
        Ok(())
    }

    /// After the last record: what a full stream does not have does not exist.
    pub(crate) async fn finish(mut self) -> Result<Received, StreamError> {
        if self.is_full && self.receiving.target().origin.is_some() {
            let first = self.object_max + 1;
            self.free_objects(first, ObjectId::LIMIT - first).await?;
        }
        Ok(self.received)
    }

    fn note(&self, tx: &zio::Tx, object: u64, offset_bytes: u64, end: u64) {
        let point = ResumePoint {
            object,
            offset_bytes,
            stream_bytes: self.bytes_before + end,
        };
        self.receiving.note(tx, point);
    }

    /// The object that a record about data is about.
    async fn hold(&mut self, object: u64) -> Result<Object, StreamError> {
        let id = ObjectId::new(object);
        match &self.held {
            Some(held) if held.id() == id && held.exists() => Ok(held.clone()),
            _ => {
                let held = self
                    .set
                    .hold(id)
                    .await
                    .map_err(|error| match error.is_not_found() {
                        true => StreamError::bad(format!("data of object {object}, which is none")),
                        false => error.into(),
                    })?;
                self.held = Some(held.clone());
                Ok(held)
            }
        }
    }

    /// Whether the pool may have blocks of these.
    fn check_features(
        &self,
        checksum: Checksum,
        compression: Compression,
    ) -> Result<(), StreamError> {
        let features = self.dataset.dsl().features();
        match features.may_write(checksum, compression) {
            true => Ok(()),
            false => Err(StreamError::bad(format!(
                "objects of checksum {checksum} and compression {compression}, whose feature is \
                 not enabled in the pool"
            ))),
        }
    }

    fn new_object(&self, record: &ObjectRecord, payload: &Bytes) -> Result<NewObject, StreamError> {
        let kind = object_type(record.object_type)?;
        let bonus_type = object_type(record.bonus_type)?;
        let slots = record.slots.max(1);
        let bytes = record.block_bytes;
        let bad = |what: &str| {
            let what = format!("object {} with {what}", record.object);
            Err(StreamError::bad(what))
        };
        // Blocks of the last three are read and written in ways of their own.
        let has_no_objects = [
            ObjectType::NONE,
            ObjectType::DNODE,
            ObjectType::OBJSET,
            ObjectType::INTENT_LOG,
        ];
        if !kind.is_valid() || has_no_objects.contains(&kind) || !bonus_type.is_valid() {
            return bad("a type that no object has");
        }
        if slots > SLOTS_MAX || slots > 1 && !self.features.contains(StreamFeatures::LARGE_DNODE) {
            return bad("a large dnode");
        }
        let has_large = self.features.contains(StreamFeatures::LARGE_BLOCKS);
        let most = if has_large {
            MAX_BLOCK_BYTES
        } else {
            OLD_MAX_BLOCK_BYTES
        };
        if u64::from(bytes) < SECTOR_BYTES
            || u64::from(bytes) > most
            || !u64::from(bytes).is_multiple_of(SECTOR_BYTES)
        {
            return bad(&format!("blocks of {bytes} bytes"));
        }
        let bonus_bytes = record.bonus_bytes as usize;
        if bonus_bytes > payload.len() || bonus_bytes > format::max_bonus_bytes(slots) {
            return bad(&format!("a bonus of {bonus_bytes} bytes"));
        }
        if bonus_type == ObjectType::NONE && bonus_bytes > 0 {
            return bad("a bonus without a type");
        }
        let mut bonus = payload[..bonus_bytes].to_vec();
        bonus_to_native(bonus_type, &mut bonus, self.endian);
        Ok(NewObject::new(kind)
            .with_block_bytes(bytes)
            .with_slots(slots)
            .with_bonus(bonus_type, bonus))
    }

    /// What is to be done with an object that exists (`receive_handle_existing_object`).
    fn change(
        &self,
        object: &Object,
        record: &ObjectRecord,
        new: &mut NewObject,
    ) -> Result<Change, StreamError> {
        let info = object.info();
        if new.slots != info.slots || !object.can_reclaim(new)? {
            return Ok(Change::Claim);
        }
        let plain = ObjectType::PLAIN_FILE_CONTENTS;
        let mut frees = false;
        if new.data_block_bytes != info.data_block_bytes {
            let can_be_same = !self.is_full
                && new.object_type == plain
                && info.object_type == plain
                && info.max_block_id > 0;
            let generation = |kind, bonus: &[u8]| generation(kind, bonus);
            let is_same = can_be_same
                && match (
                    generation(info.bonus_type, &object.bonus()),
                    generation(new.bonus_type, &new.bonus),
                ) {
                    (Some(ours), Some(theirs)) => ours == theirs,
                    _ => return Err(StreamError::bad("a file of another block size")),
                };
            if is_same {
                // The first stream with large blocks after one without: ours stay as they are.
                if new.data_block_bytes <= info.data_block_bytes {
                    let what = format!("object {} with smaller blocks", record.object);
                    return Err(StreamError::bad(what));
                }
                new.data_block_bytes = info.data_block_bytes;
            } else {
                frees = true;
            }
        }
        let is_other = new.object_type != info.object_type
            || new.data_block_bytes != info.data_block_bytes
            || new.bonus_type != info.bonus_type
            || new.bonus.len() != info.bonus_bytes;
        Ok(match is_other {
            true => Change::Reclaim { frees },
            false => Change::Keep,
        })
    }

    async fn object(
        &mut self,
        record: &ObjectRecord,
        payload: &Bytes,
        end: u64,
    ) -> Result<(), StreamError> {
        let id = ObjectId::new(record.object);
        let mut new = self.new_object(record, payload)?;
        let keeps_spill = self.says_spill && record.flags & ObjectRecord::FLAG_SPILL != 0;
        let existing = match self.set.hold(id).await {
            Ok(object) => Some(object),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        self.held = None;
        let mut waits = false;
        let mut kept = None;
        if let Some(object) = existing {
            match self.change(&object, record, &mut new)? {
                Change::Claim => {
                    self.free_object(id).await?;
                    waits = true;
                }
                change => kept = Some((object, change)),
            }
        }
        waits |= self.free_slots_behind(record.object, new.slots).await?;
        if waits {
            self.dataset.dsl().sync().await?;
        }
        let (object, tx) = match kept {
            Some((object, change)) => {
                if let Change::Reclaim { frees: true } = change {
                    self.free_data(&object, 0, u64::MAX).await?;
                }
                object.prepare_dnode().await?;
                let tx = self.dataset.assign(DirtyEstimate::metadata()).await?;
                if let Change::Keep = change {
                    if self.says_spill && !keeps_spill && object.info().has_spill {
                        object.remove_spill(&tx)?;
                    }
                    object.set_bonus_typed(&tx, new.bonus_type, new.bonus)?;
                } else {
                    object.reclaim(&tx, &new, keeps_spill).await?;
                }
                (object, tx)
            }
            None => self.claim(id, new).await?,
        };
        let info = object.info();
        let checksum = Checksum::from_code(record.checksum);
        if checksum != info.checksum {
            let is_none = matches!(checksum, Checksum::Unknown(_) | Checksum::NoParity);
            if is_none || checksum.is_embedded() {
                return Err(StreamError::bad("an object of an unknown checksum"));
            }
            self.check_features(checksum, Compression::Off)?;
            object.set_checksum(&tx, checksum)?;
        }
        let compression = Compression::from_code(record.compression);
        if compression != info.compression {
            if matches!(compression, Compression::Unknown(_)) {
                return Err(StreamError::bad("an object of an unknown compression"));
            }
            self.check_features(Checksum::Off, compression)?;
            object.set_compression(&tx, compression)?;
        }
        self.note(&tx, record.object, 0, end);
        self.held = Some(object);
        Ok(())
    }

    /// Frees objects whose slots an object's dnode takes. Whether there was any.
    async fn free_slots_behind(&self, object: u64, slots: u8) -> Result<bool, StreamError> {
        let mut did = false;
        for slot in 1..u64::from(slots.max(1)) {
            let other = ObjectId::new(object + slot);
            if self.set.hold(other).await.is_ok() {
                self.free_object(other).await?;
                did = true;
            }
        }
        Ok(did)
    }

    /// Claims an object number; one that was freed lately once that is on disk.
    async fn claim(&self, id: ObjectId, new: NewObject) -> Result<(Object, zio::Tx), StreamError> {
        let tx = self.dataset.assign(DirtyEstimate::metadata()).await?;
        match self.set.claim(&tx, id, new.clone()).await {
            Ok(object) => return Ok((object, tx)),
            Err(error) if error.is_exists() => drop(tx),
            Err(error) => return Err(error.into()),
        }
        self.dataset.dsl().sync().await?;
        let tx = self.dataset.assign(DirtyEstimate::metadata()).await?;
        match self.set.claim(&tx, id, new).await {
            Ok(object) => Ok((object, tx)),
            Err(error) if error.is_exists() => {
                Err(StreamError::bad(format!("object {id} within another one")))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn free_objects(&mut self, first: u64, count: u64) -> Result<(), StreamError> {
        self.held = None;
        let end = first.saturating_add(count).min(ObjectId::LIMIT);
        let mut at = first.checked_sub(1).filter(|at| *at > 0).map(ObjectId::new);
        while let Some(id) = self.set.next_object(at).await? {
            if id.get() >= end {
                break;
            }
            self.free_object(id).await?;
            at = Some(id);
        }
        Ok(())
    }

    async fn free_object(&self, id: ObjectId) -> Result<(), StreamError> {
        let object = self.set.hold(id).await?;
        if object.info().used_bytes > FREE_WHOLE_BYTES {
            self.free_data(&object, 0, u64::MAX).await?;
        }
        object.prepare_free(0, u64::MAX).await?;
        let tx = self.dataset.assign(DirtyEstimate::free()).await?;
        self.set.free(&tx, id).await?;
        Ok(())
    }

    async fn free(&mut self, range: &Range) -> Result<(), StreamError> {
        let object = self.hold(range.object).await?;
        if self.is_raw {
            raw::check_free(&object, range)?;
        }
        self.free_data(&object, range.offset_bytes, range.length_bytes)
            .await
    }

    /// Frees a range, in parts that a txg can take.
    async fn free_data(
        &self,
        object: &Object,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), StreamError> {
        let info = object.info();
        let block_bytes = u64::from(info.data_block_bytes);
        let object_end = info
            .max_block_id
            .saturating_add(1)
            .saturating_mul(block_bytes);
        let end = offset_bytes.saturating_add(length_bytes);
        // Beyond the last block there is nothing.
        let to_end = end >= object_end;
        let mut at = offset_bytes;
        loop {
            let part = object.first_part(at, end.min(object_end)).await?;
            let is_last = part >= end.min(object_end);
            let length = match (is_last, to_end) {
                (true, true) => u64::MAX,
                (true, false) => end.saturating_sub(at),
                _ => part - at,
            };
            object.prepare_free(at, length).await?;
            let tx = self.dataset.assign(DirtyEstimate::free()).await?;
            object.free_range(&tx, at, length).await?;
            if is_last {
                return Ok(());
            }
            at = part;
        }
    }

    async fn data(
        &mut self,
        record: &Write,
        payload: Bytes,
        unpacking: Option<Unpacking>,
        end: u64,
    ) -> Result<(), StreamError> {
        let place = (record.object, record.offset_bytes);
        if place < self.last {
            return Err(StreamError::bad("data that is not in order"));
        }
        let length = self.check_length(record.object, record.offset_bytes, record.logical_bytes)?;
        if record.compression != 0 && !self.features.contains(StreamFeatures::COMPRESSED) {
            return Err(StreamError::bad("compressed data"));
        }
        let data = match (record.compression, unpacking) {
            (0, _) => payload.clone(),
            (_, Some(unpacking)) => unpacking.await.map_err(|_| StreamError::Interrupted)??,
            (code, None) => decompressed(code, &payload, length)?,
        };
        if data.len() != length {
            return Err(StreamError::bad("data of another length than it says"));
        }
        let object = self.hold(record.object).await?;
        let data = match self.is_stored_as_sent(&object, record, &payload) {
            true => {
                let compression = Compression::from_code(record.compression);
                BlockData::packed(data, payload, compression)
            }
            false => to_native(object.info().object_type, data, self.endian)?.into(),
        };
        self.put(&object, record.offset_bytes, data, end).await?;
        self.last = place;
        Ok(())
    }

    /// Whether a block is stored as it came. Of metadata the stream would have the wrong byte
    /// order; a compression that the pool may not have yet is left to what the properties say.
    fn is_stored_as_sent(&self, object: &Object, record: &Write, payload: &Bytes) -> bool {
        let compression = Compression::from_code(record.compression);
        let is_kind = !matches!(
            compression,
            Compression::Off
                | Compression::On
                | Compression::Inherit
                | Compression::Empty
                | Compression::Unknown(_)
        );
        let info = object.info();
        let features = self.dataset.dsl().features();
        let bytes = payload.len() as u64;
        is_kind
            && self.endian == Endian::Little
            && !info.object_type.is_metadata()
            && u64::from(info.data_block_bytes) == record.logical_bytes
            && record.offset_bytes.is_multiple_of(record.logical_bytes)
            && bytes.is_multiple_of(SECTOR_BYTES)
            && (SECTOR_BYTES..record.logical_bytes).contains(&bytes)
            && features.may_write(Checksum::Off, compression)
    }

    fn check_length(&self, object: u64, offset: u64, length: u64) -> Result<usize, StreamError> {
        let is_large = length > OLD_MAX_BLOCK_BYTES;
        if !(SECTOR_BYTES..=MAX_BLOCK_BYTES).contains(&length)
            || is_large && !self.features.contains(StreamFeatures::LARGE_BLOCKS)
            || offset.checked_add(length).is_none()
        {
            let what = format!("{length} bytes at {offset} of object {object}");
            return Err(StreamError::bad(what));
        }
        Ok(length as usize)
    }

    async fn put(
        &self,
        object: &Object,
        offset_bytes: u64,
        data: BlockData,
        end: u64,
    ) -> Result<(), StreamError> {
        let length = data.bytes().len() as u64;
        object.prepare_write(offset_bytes, length).await?;
        let block_bytes = object.info().data_block_bytes;
        let estimate = DirtyEstimate::write(length).in_blocks_of(block_bytes);
        let tx = self.dataset.assign(estimate).await?;
        object.write_packed(&tx, offset_bytes, data).await?;
        self.note(&tx, object.id().get(), offset_bytes, end);
        Ok(())
    }

    async fn embedded(
        &mut self,
        record: &WriteEmbedded,
        payload: &Bytes,
        end: u64,
    ) -> Result<(), StreamError> {
        if EmbeddedKind::from_code(record.kind) != EmbeddedKind::Data
            || !self.features.contains(StreamFeatures::EMBED_DATA)
        {
            return Err(StreamError::bad("an embedded block"));
        }
        let (object, offset) = (record.object, record.offset_bytes);
        let length = match self.is_long_embedded(record) {
            true => record.length_bytes as usize,
            false => self.check_length(object, offset, record.length_bytes)?,
        };
        let logical = record.logical_bytes as usize;
        if logical > length {
            return Err(StreamError::bad("an embedded block that is too long"));
        }
        let packed = &payload[..record.physical_bytes as usize];
        let mut data = match Compression::from_code(record.compression) {
            Compression::Off | Compression::Inherit => packed.to_vec(),
            kind => decompress(kind, packed, logical)
                .map_err(|error| StreamError::bad(error.to_string()))?,
        };
        data.resize(length, 0);
        let held = self.hold(object).await?;
        let data = to_native(held.info().object_type, data.into(), self.endian)?;
        self.put(&held, offset, data.into(), end).await?;
        self.received.long_embedded_blocks += u64::from(self.is_long_embedded(record));
        Ok(())
    }

    /// Whether an embedded block is longer than the stream says that blocks are: Millpond sent such
    /// without `-L` once. All of the block is there, and its object was cut to blocks of 128 KiB as
    /// for other blocks that are sent in parts; it is written as those parts.
    fn is_long_embedded(&self, record: &WriteEmbedded) -> bool {
        let length = record.length_bytes;
        is_split(self.features, length)
            && length <= MAX_BLOCK_BYTES
            && length.is_power_of_two()
            && u64::from(record.logical_bytes) == length
            && record.offset_bytes.is_multiple_of(length)
            && record.offset_bytes.checked_add(length).is_some()
    }

    async fn spill(&mut self, record: &Spill, payload: Bytes) -> Result<(), StreamError> {
        if self.says_spill && record.flags & Spill::FLAG_UNMODIFIED != 0 {
            return Ok(());
        }
        if record.length_bytes < SECTOR_BYTES || record.length_bytes > OLD_MAX_BLOCK_BYTES {
            return Err(StreamError::bad("a spill block of a size that none has"));
        }
        let length = record.length_bytes as usize;
        let data = match record.compressed_bytes {
            0 => payload,
            _ => decompressed(record.compression, &payload, length)?,
        };
        if data.len() != length {
            return Err(StreamError::bad(
                "a spill block of another length than it says",
            ));
        }
        let object = self.hold(record.object).await?;
        let data = to_native(object.info().bonus_type, data, self.endian)?;
        object.prepare_dnode().await?;
        let estimate = DirtyEstimate::write(record.length_bytes);
        let tx = self.dataset.assign(estimate).await?;
        object.set_spill(&tx, data)?;
        Ok(())
    }
}

/// What a payload is, of which a record says how it is compressed, and how many bytes it will be.
pub(crate) fn decompressed(code: u8, payload: &Bytes, length: usize) -> Result<Bytes, StreamError> {
    match Compression::from_code(code) {
        Compression::Off => Ok(payload.clone()),
        kind => decompress(kind, payload, length)
            .map(Bytes::from)
            .map_err(|error| StreamError::bad(error.to_string())),
    }
}

/// Which of the files that had its number a file is (`zpl_get_file_info`,
/// module/zfs/zfs_quota.c).
fn generation(bonus_type: ObjectType, bonus: &[u8]) -> Option<u64> {
    if bonus_type == ObjectType::ZNODE {
        let bytes = bonus.get(64..)?.first_chunk()?;
        return Some(Endian::Little.u64(*bytes));
    }
    if bonus_type != ObjectType::SA {
        return None;
    }
    let header = SaHeader::decode(bonus).ok()?;
    header.fixed(bonus, SaFixedPlace::Generation)
}
