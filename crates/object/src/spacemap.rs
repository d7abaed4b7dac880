//! Space map objects: logs of allocated and freed ranges (module/zfs/space_map.c).
//!
//! The head is in the bonus: length of the log, bytes allocated, histogram of free ranges. They live in
//! the MOS and are changed in syncing context only, by one task.

use std::sync::Arc;

use bytes::Bytes;
use format::{
    Endian, ObjectId, ObjectType, SPACE_MAP_BUCKETS, SpaceMapPhys, SpaceMapRange, SpaceMapReader,
    SpaceMapWriter, VdevId,
};
use zio::Tx;

use crate::error::{ObjectError, OfObject, Result, damaged};
use crate::object::Object;
use crate::objset::ObjectSet;
use crate::options::NewObject;

/// Default block size (`zfs_metaslab_sm_blksz_with_log`).
const BLOCK_BYTES: u32 = 128 << 10;
/// log2 of the size of indirect blocks (`space_map_ibs`).
const INDIRECT_SHIFT: u8 = 14;
/// Largest run of a one-word entry, in units.
const RUN_MAX: u64 = 1 << 15;
/// No log has so many zeros in a block, in bytes.
const HOLE_BYTES_MIN: u64 = 64;

/// Whether a range was allocated or freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpaceMapKind {
    /// Allocated.
    Allocate,
    /// Freed.
    Free,
}

impl SpaceMapKind {
    fn to_format(self) -> format::SpaceMapKind {
        match self {
            SpaceMapKind::Allocate => format::SpaceMapKind::Allocate,
            SpaceMapKind::Free => format::SpaceMapKind::Free,
        }
    }
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpaceMapEntry {
    /// What happened.
    pub kind: SpaceMapKind,
    /// Top-level vdev, in log space maps; meaningless where the map belongs to one vdev.
    pub vdev: Option<VdevId>,
    /// First byte; the map's start is added.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
}

/// A space map in an object of the MOS.
#[derive(Clone, Debug)]
pub struct SpaceMapObject {
    object: Object,
    range: SpaceMapRange,
    two_words: bool,
}

impl SpaceMapObject {
    /// Creates an empty map with a histogram; `block_bytes` 0 for the default (128 KiB).
    ///
    /// # Errors
    /// As [`ObjectSet::allocate`].
    pub async fn create(objset: &Arc<ObjectSet>, tx: &Tx, block_bytes: u32) -> Result<ObjectId> {
        Self::create_with(objset, tx, block_bytes, true).await
    }

    /// The same, with a histogram only if the pool has the feature `spacemap_histogram`.
    ///
    /// # Errors
    /// As [`ObjectSet::allocate`].
    pub async fn create_with(
        objset: &Arc<ObjectSet>,
        tx: &Tx,
        block_bytes: u32,
        histogram: bool,
    ) -> Result<ObjectId> {
        let size = match block_bytes {
            0 => BLOCK_BYTES,
            bytes => bytes,
        };
        let mut new = NewObject::new(ObjectType::SPACE_MAP)
            .with_block_bytes(size)
            .with_bonus(
                ObjectType::SPACE_MAP_HEADER,
                SpaceMapPhys::new(histogram).encode(),
            );
        new.indirect_block_shift = INDIRECT_SHIFT;
        Ok(objset.allocate(tx, new).await?.id())
    }

    /// Opens a map that covers `start_bytes..start_bytes+size_bytes`, in units of `1 << shift`.
    ///
    /// # Errors
    /// [`ObjectError::WrongType`], [`ObjectError::Format`]; errors of reading.
    pub async fn open(
        objset: &Arc<ObjectSet>,
        id: ObjectId,
        start_bytes: u64,
        size_bytes: u64,
        shift: u8,
    ) -> Result<Self> {
        let object = objset.hold(id).await?;
        let found = object.info().object_type;
        if found != ObjectType::SPACE_MAP {
            return Err(ObjectError::WrongType {
                object: id,
                found,
                expected: "a space map",
            });
        }
        SpaceMapPhys::decode(&object.bonus(), Endian::Little).of(id)?;
        Ok(SpaceMapObject {
            object,
            range: SpaceMapRange {
                start_bytes,
                size_bytes,
                shift: shift.into(),
            },
            two_words: true,
        })
    }

    /// Whether entries of two words may be written (feature `spacemap_v2`; yes unless said otherwise).
    pub fn with_two_words(self, two_words: bool) -> Self {
        SpaceMapObject { two_words, ..self }
    }

    /// Its number.
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }

    /// The object.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Its head. That it decodes was checked when it was opened.
    fn phys(&self) -> SpaceMapPhys {
        SpaceMapPhys::decode(&self.object.bonus(), Endian::Little).unwrap_or_default()
    }

    /// Length of the log in bytes (`smp_length`).
    pub fn length_bytes(&self) -> u64 {
        self.phys().length_bytes
    }

    /// Allocated less freed, in bytes (`smp_alloc`).
    pub fn allocated_bytes(&self) -> i64 {
        self.phys().allocated_bytes
    }

    /// The histogram of free ranges: bucket i counts ranges of 2^(i+shift) bytes. Empty when the
    /// map has none.
    pub fn histogram(&self) -> Vec<u64> {
        let histogram = self.phys().histogram;
        histogram.map_or_else(Vec::new, |histogram| histogram.to_vec())
    }

    /// Appends ranges (offset, length in bytes; ascending). `vdev` for log space maps.
    ///
    /// # Errors
    /// [`ObjectError::Format`] when a range is not within the map or not of whole units; errors of
    /// reading the last block.
    pub async fn append(
        &self,
        tx: &Tx,
        kind: SpaceMapKind,
        vdev: Option<VdevId>,
        ranges: &[(u64, u64)],
    ) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let mut phys = self.phys();
        let block_bytes = u64::from(self.object.info().data_block_bytes);
        let id = self.id();
        let mut writer =
            SpaceMapWriter::new(self.range, block_bytes, phys.length_bytes, self.two_words)
                .of(id)?;
        writer.debug(kind.to_format(), tx.txg(), 1);
        let mut sum = 0i64;
        for (offset, length) in ranges {
            writer
                .range(kind.to_format(), vdev, *offset, *length)
                .of(id)?;
            sum = sum.saturating_add_unsigned(*length);
        }
        let (start, end) = (phys.length_bytes, writer.length_bytes());
        self.object
            .write(tx, start, Bytes::from(writer.into_bytes()))
            .await?;
        phys.length_bytes = end;
        phys.allocated_bytes = match kind {
            SpaceMapKind::Allocate => phys.allocated_bytes.saturating_add(sum),
            SpaceMapKind::Free => phys.allocated_bytes.saturating_sub(sum),
        };
        self.object.set_bonus(tx, phys.encode())
    }

    /// Calls `visit` with every entry, oldest first, within the first `length_bytes` of the log.
    ///
    /// # Errors
    /// Errors of reading, [`ObjectError::Format`], and what `visit` returns.
    pub async fn for_each(
        &self,
        length_bytes: u64,
        visit: &mut (dyn FnMut(SpaceMapEntry) -> Result<()> + Send),
    ) -> Result<()> {
        let block_bytes = u64::from(self.object.info().data_block_bytes);
        let end = length_bytes.min(self.length_bytes());
        let id = self.id();
        let mut reader = SpaceMapReader::new(self.range);
        let mut at = 0;
        while at < end {
            let length = (end - at).min(block_bytes);
            let bytes = self.object.read_bytes(at, length as usize).await?;
            // Zeros would be the same sector again and again, as often as the length says.
            if length >= HOLE_BYTES_MIN && bytes.iter().all(|byte| *byte == 0) {
                return Err(damaged(
                    id,
                    "space_map_phys_t",
                    "a part of the log is missing",
                ));
            }
            let mut failed = None;
            let read = reader.read_block(&bytes, Endian::Little, |entry| {
                let kind = match entry.kind {
                    format::SpaceMapKind::Allocate => SpaceMapKind::Allocate,
                    format::SpaceMapKind::Free => SpaceMapKind::Free,
                };
                let entry = SpaceMapEntry {
                    kind,
                    vdev: entry.vdev,
                    offset_bytes: entry.offset_bytes,
                    length_bytes: entry.run_bytes,
                };
                visit(entry).map_err(|error| {
                    failed = Some(error);
                    format::FormatError::BadField {
                        structure: "space_map_t",
                        field: "entry",
                        found: entry.offset_bytes,
                        expected: "an entry that its reader accepts",
                    }
                })
            });
            match (failed, read) {
                (Some(error), _) => return Err(error),
                (None, read) => read.of(id)?,
            }
            at += length;
        }
        Ok(())
    }

    /// Takes the last entries off the log, at most `max` of them and those of one block (more may be before them
    /// unless the log is empty then), and gives them, oldest first. A log that ends in the middle of a block is not
    /// to be appended to any more: this is for maps that are taken apart (`space_map_incremental_destroy`).
    ///
    /// # Errors
    /// Errors of reading; [`ObjectError::Format`].
    pub async fn pop(&self, tx: &Tx, max: usize) -> Result<Vec<SpaceMapEntry>> {
        let mut phys = self.phys();
        let block_bytes = u64::from(self.object.info().data_block_bytes).max(8);
        let Some(last) = phys.length_bytes.checked_sub(1) else {
            return Ok(Vec::new());
        };
        let id = self.id();
        let start = last - last % block_bytes;
        let length = phys.length_bytes - start;
        let bytes = self.object.read_bytes(start, length as usize).await?;
        if bytes.len() as u64 != length {
            return Err(damaged(
                id,
                "space_map_phys_t",
                "a part of the log is missing",
            ));
        }
        let (entries, left) =
            SpaceMapReader::last_entries(self.range, &bytes, Endian::Little, max).of(id)?;
        phys.length_bytes = start + left as u64;
        let mut out = Vec::with_capacity(entries.len());
        for entry in entries {
            let kind = match entry.kind {
                format::SpaceMapKind::Allocate => SpaceMapKind::Allocate,
                format::SpaceMapKind::Free => SpaceMapKind::Free,
            };
            phys.allocated_bytes = match kind {
                SpaceMapKind::Allocate => phys
                    .allocated_bytes
                    .saturating_sub_unsigned(entry.run_bytes),
                SpaceMapKind::Free => phys
                    .allocated_bytes
                    .saturating_add_unsigned(entry.run_bytes),
            };
            out.push(SpaceMapEntry {
                kind,
                vdev: entry.vdev,
                offset_bytes: entry.offset_bytes,
                length_bytes: entry.run_bytes,
            });
        }
        self.object.set_bonus(tx, phys.encode())?;
        Ok(out)
    }

    /// Empties the log (before writing it anew, condensed). A `block_bytes` other than 0 changes the
    /// size of its blocks when the object allows that.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn truncate(&self, tx: &Tx, block_bytes: u32) -> Result<()> {
        self.object.free_range(tx, 0, u64::MAX).await?;
        if block_bytes != 0 && block_bytes != self.object.info().data_block_bytes {
            match self.object.set_block_size(tx, block_bytes, 0).await {
                // Blocks that are freed in this very txg keep their size.
                Ok(()) | Err(ObjectError::BlockSizeFixed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let mut phys = self.phys();
        phys.length_bytes = 0;
        phys.allocated_bytes = 0;
        if let Some(histogram) = &mut phys.histogram {
            histogram.fill(0);
        }
        self.object.set_bonus(tx, phys.encode())
    }

    /// Replaces the histogram (32 buckets; more are added to the last one). A map without one gets one.
    ///
    /// # Errors
    /// [`ObjectError::TooBig`] when the dnode has no room for it.
    pub async fn set_histogram(&self, tx: &Tx, histogram: &[u64]) -> Result<()> {
        let mut buckets = [0u64; SPACE_MAP_BUCKETS];
        for (index, count) in histogram.iter().enumerate() {
            let bucket = &mut buckets[index.min(SPACE_MAP_BUCKETS - 1)];
            *bucket = bucket.saturating_add(*count);
        }
        let mut phys = self.phys();
        phys.histogram = Some(Box::new(buckets));
        self.object.set_bonus(tx, phys.encode())
    }

    /// Frees the object.
    ///
    /// # Errors
    /// As [`ObjectSet::free`].
    pub async fn free(self, tx: &Tx) -> Result<()> {
        self.object.objset().free(tx, self.id()).await
    }

    /// Upper bound of the bytes that `ranges` take when appended
    /// (`space_map_estimate_optimal_size`).
    pub fn estimate_bytes(ranges: &[(u64, u64)], shift: u8, vdev: Option<VdevId>) -> u64 {
        let words: u64 = ranges
            .iter()
            .map(|(_, length)| {
                let units = length.checked_shr(shift.into()).unwrap_or(0);
                if vdev.is_some() || units > RUN_MAX {
                    2 * units.div_ceil(1 << 36).max(1)
                } else {
                    1
                }
            })
            .sum();
        // Padding at the ends of blocks, and the debug entry.
        (words + words * 8 / u64::from(BLOCK_BYTES) + 2) * 8
    }
}
