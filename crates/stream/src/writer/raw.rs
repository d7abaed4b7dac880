//! Records of raw streams: blocks that are stored as they come, of a dataset whose key is not here
//! ([`object::RawData`] says what comes from where).

use bytes::Bytes;
use dataset::DirtyEstimate;
use format::stream::{
    FLAG_RAW_BYTESWAP, Object as ObjectRecord, ObjectRange, Range, Spill, StreamCrypt, Write,
};
use format::{
    Checksum, Compression, CryptParams, DNODES_PER_BLOCK, MAX_DNODE_POINTERS, MAX_INDIRECT_SHIFT,
    MAX_LEVELS, MIN_INDIRECT_SHIFT, OLD_MAX_BLOCK_BYTES, ObjectId, ObjectType, SECTOR_BYTES,
};
use object::{Object, ObjectError, RawData, RawObject};
use zio::RawBlock;

use super::Writer;
use crate::StreamError;

/// Refuses what was written on a machine of the other byte order: what is encrypted cannot be
/// turned round.
pub(crate) const OTHER_ORDER: StreamError = StreamError::Unsupported {
    what: "a raw stream of blocks that a big-endian machine wrote",
    advice: "load the key on the other side and send without -w",
};

/// What does not fit an object is the stream's fault.
fn fitting(done: Result<(), ObjectError>) -> Result<(), StreamError> {
    done.map_err(|error| match error {
        ObjectError::TooBig { .. } => StreamError::bad(error.to_string()),
        error => error.into(),
    })
}

fn check_order(flags: u8) -> Result<(), StreamError> {
    match flags & FLAG_RAW_BYTESWAP {
        0 => Ok(()),
        _ => Err(OTHER_ORDER),
    }
}

/// Refuses a range of parts of blocks, which nobody could free without the key.
pub(super) fn check_free(object: &Object, range: &Range) -> Result<(), StreamError> {
    let info = object.info();
    let block_bytes = u64::from(info.data_block_bytes);
    let end = range.offset_bytes.saturating_add(range.length_bytes);
    let object_end = info
        .max_block_id
        .saturating_add(1)
        .saturating_mul(block_bytes);
    if range.offset_bytes.is_multiple_of(block_bytes)
        && (end >= object_end || end.is_multiple_of(block_bytes))
    {
        return Ok(());
    }
    let what = format!("a part of a block of object {} that is freed", range.object);
    Err(StreamError::bad(what))
}

impl Writer<'_> {
    /// The block of dnodes that the objects behind this are in.
    pub(super) fn object_range(&mut self, range: &ObjectRange) -> Result<(), StreamError> {
        check_order(range.flags)?;
        let end = range.first.checked_add(range.slots);
        if range.slots != DNODES_PER_BLOCK
            || !range.first.is_multiple_of(DNODES_PER_BLOCK)
            || end.is_none_or(|end| end > ObjectId::LIMIT)
        {
            return Err(StreamError::bad("a block of dnodes where none is"));
        }
        let StreamCrypt { salt, iv, mac } = range.crypt;
        let number = range.first / DNODES_PER_BLOCK;
        self.set
            .set_raw_dnodes(number, CryptParams::from_bytes(salt, iv), mac);
        self.range = Some(range.first);
        Ok(())
    }

    fn raw_object_of(
        &self,
        record: &ObjectRecord,
        payload: &Bytes,
    ) -> Result<RawObject, StreamError> {
        check_order(record.flags)?;
        let bad = |what: &str| {
            let what = format!("object {} with {what}", record.object);
            Err(StreamError::bad(what))
        };
        let is_in_range = self.range.is_some_and(|first| {
            (first..first.saturating_add(DNODES_PER_BLOCK)).contains(&record.object)
        });
        if !is_in_range {
            return bad("no block of dnodes that it is in");
        }
        if !(1..=MAX_DNODE_POINTERS).contains(&usize::from(record.pointers)) {
            return bad(&format!("{} block pointers", record.pointers));
        }
        if !(MIN_INDIRECT_SHIFT..=MAX_INDIRECT_SHIFT).contains(&record.indirect_shift)
            || !(1..=MAX_LEVELS).contains(&record.levels)
        {
            return bad("a tree that none has");
        }
        let end = record.last_block.checked_add(1);
        if end.is_none_or(|end| end.checked_mul(record.block_bytes.into()).is_none()) {
            return bad(&format!("a last block of number {}", record.last_block));
        }
        let (checksum, compression) = (
            Checksum::from_code(record.checksum),
            Compression::from_code(record.compression),
        );
        if matches!(checksum, Checksum::Unknown(_) | Checksum::NoParity)
            || checksum.is_embedded()
            || matches!(compression, Compression::Unknown(_))
        {
            return bad("an unknown checksum or compression");
        }
        self.check_features(checksum, compression)?;
        Ok(RawObject {
            object_type: format::stream::object_type(record.object_type)?,
            bonus_type: format::stream::object_type(record.bonus_type)?,
            bonus_bytes: record.bonus_bytes as usize,
            room: payload.clone(),
            checksum,
            compression,
            block_bytes: record.block_bytes,
            indirect_shift: record.indirect_shift,
            pointers: record.pointers,
            levels: record.levels,
            max_block: record.last_block,
            has_spill: record.flags & ObjectRecord::FLAG_SPILL != 0,
        })
    }

    /// An object, in all that MACs cover as it was where it was sent (`receive_object`).
    pub(super) async fn raw_object(
        &mut self,
        record: &ObjectRecord,
        payload: &Bytes,
        end: u64,
    ) -> Result<(), StreamError> {
        let id = ObjectId::new(record.object);
        let new = self.new_object(record, payload)?;
        let raw = self.raw_object_of(record, payload)?;
        self.held = None;
        let mut waits = false;
        let mut kept = None;
        match self.set.hold(id).await {
            Ok(object) if object.can_become_raw(&raw, new.slots) => kept = Some(object),
            Ok(_) => {
                self.free_object(id).await?;
                waits = true;
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        waits |= self.free_slots_behind(record.object, new.slots).await?;
        if waits {
            self.dataset.dsl().sync().await?;
        }
        let (object, tx) = match kept {
            Some(object) => {
                // Raw streams have blocks of any size, so another size is another file's.
                let is_same = object.info().data_block_bytes == raw.block_bytes;
                let keeps = match is_same {
                    true => (raw.max_block + 1) * u64::from(raw.block_bytes),
                    false => 0,
                };
                self.free_data(&object, keeps, u64::MAX).await?;
                object.prepare_dnode().await?;
                let tx = self.dataset.assign(DirtyEstimate::metadata()).await?;
                (object, tx)
            }
            None => self.claim(id, new).await?,
        };
        fitting(object.set_raw(&tx, &raw).await)?;
        self.note(&tx, record.object, 0, end);
        self.held = Some(object);
        Ok(())
    }

    /// A block as it is to be stored.
    fn raw_block(
        &self,
        object_type: ObjectType,
        compression: u8,
        logical_bytes: u64,
        stored: Bytes,
        crypt: &StreamCrypt,
    ) -> Result<RawData, StreamError> {
        let bytes = stored.len() as u64;
        let compression = Compression::from_code(compression);
        let is_stored = !matches!(
            compression,
            Compression::Unknown(_) | Compression::Inherit | Compression::On | Compression::Empty
        );
        let fits = match compression {
            Compression::Off => bytes == logical_bytes,
            _ => bytes <= logical_bytes,
        };
        if !is_stored || !fits || bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
            let what = format!("a raw block of {bytes} bytes for {logical_bytes}");
            return Err(StreamError::bad(what));
        }
        self.check_features(Checksum::Off, compression)?;
        let params = CryptParams::from_bytes(crypt.salt, crypt.iv);
        Ok(RawData {
            stored,
            block: RawBlock {
                logical_bytes,
                compression,
                crypt: object_type.is_encrypted().then_some(params),
                mac: Some(crypt.mac),
            },
        })
    }

    pub(super) async fn raw_data(
        &mut self,
        record: &Write,
        payload: Bytes,
        end: u64,
    ) -> Result<(), StreamError> {
        check_order(record.flags)?;
        let place = (record.object, record.offset_bytes);
        if place < self.last {
            return Err(StreamError::bad("data that is not in order"));
        }
        let logical = record.logical_bytes;
        self.check_length(record.object, record.offset_bytes, logical)?;
        let object = self.hold(record.object).await?;
        let info = object.info();
        let block = record.offset_bytes / logical;
        if logical != u64::from(info.data_block_bytes)
            || !record.offset_bytes.is_multiple_of(logical)
            || block > info.max_block_id
        {
            let what = format!(
                "a block at {} of object {}",
                record.offset_bytes, record.object
            );
            return Err(StreamError::bad(what));
        }
        let data = self.raw_block(
            info.object_type,
            record.compression,
            logical,
            payload,
            &record.crypt,
        )?;
        object.prepare_write(record.offset_bytes, logical).await?;
        let estimate = DirtyEstimate::write(logical).in_blocks_of(info.data_block_bytes);
        let tx = self.dataset.assign(estimate).await?;
        object.put_raw(&tx, block, data)?;
        self.note(&tx, record.object, record.offset_bytes, end);
        self.last = place;
        Ok(())
    }

    pub(super) async fn raw_spill(
        &mut self,
        record: &Spill,
        payload: Bytes,
    ) -> Result<(), StreamError> {
        check_order(record.flags)?;
        if self.says_spill && record.flags & Spill::FLAG_UNMODIFIED != 0 {
            return Ok(());
        }
        let logical = record.length_bytes;
        if !(SECTOR_BYTES..=OLD_MAX_BLOCK_BYTES).contains(&logical)
            || !logical.is_multiple_of(SECTOR_BYTES)
        {
            return Err(StreamError::bad("a spill block of a size that none has"));
        }
        let object = self.hold(record.object).await?;
        let kind = object.info().bonus_type;
        let data = self.raw_block(kind, record.compression, logical, payload, &record.crypt)?;
        object.prepare_dnode().await?;
        let tx = self
            .dataset
            .assign(DirtyEstimate::write(record.length_bytes))
            .await?;
        fitting(object.put_raw_spill(&tx, data))
    }
}
