//! What vdevs keep in the MOS and in their blocks: gang headers, mappings of removed vdevs, and
//! the state of removal and sequential rebuild.
//!
//! # Gang header
//!
//! Block pointers from the front (three in 512 bytes; more with the feature
//! `dynamic_gang_header`), an [`crate::Eck`] in the last 40 bytes.

use crate::blkptr::{BLOCK_POINTER_BYTES, BlockPointer, SECTOR_SHIFT};
use crate::bytes::{Endian, Put, Reader, bits};
use crate::dva::Dva;
use crate::error::{FormatError, Result, bad, does_not_fit};
use crate::ids::{ObjectId, Txg};
use crate::label::Eck;
use crate::words::disk_struct;

/// Size of a gang header without the feature `dynamic_gang_header` (`SPA_OLD_GANGBLOCKSIZE`).
pub const GANG_HEADER_BYTES: usize = 512;

/// Block pointers in a gang header of this size (`gbh_nblkptrs`).
pub const fn gang_pointers(header_bytes: usize) -> usize {
    header_bytes.saturating_sub(Eck::BYTES) / BLOCK_POINTER_BYTES
}

/// Decodes the pointers of a gang header, whose checksum was verified. Holes are left in.
///
/// # Errors
/// [`FormatError`] when it is too short or its size is not of whole pointers.
pub fn decode_gang_header(bytes: &[u8], endian: Endian) -> Result<Vec<BlockPointer>> {
    let count = gang_pointers(bytes.len());
    if count == 0 || !bytes.len().is_multiple_of(BLOCK_POINTER_BYTES) {
        return Err(FormatError::TooShort {
            structure: "zio_gbh_phys_t",
            needed_bytes: GANG_HEADER_BYTES as u64,
            found_bytes: bytes.len() as u64,
        });
    }
    Ok(BlockPointer::decode_all(bytes, endian)
        .take(count)
        .collect())
}

/// A gang header with magic and zero checksum in the tail.
///
/// # Errors
/// [`FormatError::DoesNotFit`] when there are too many pointers.
pub fn encode_gang_header(pointers: &[BlockPointer], header_bytes: usize) -> Result<Vec<u8>> {
    if pointers.len() > gang_pointers(header_bytes) {
        let found = pointers.len() as u64;
        return Err(does_not_fit(
            "zio_gbh_phys_t",
            "blkptr",
            found,
            "three in 512 bytes",
        ));
    }
    let mut out = Vec::with_capacity(header_bytes);
    for pointer in pointers {
        out.extend_from_slice(&pointer.encode());
    }
    out.put_zeros(header_bytes - out.len());
    Eck::new([0; 4]).put_tail(&mut out)?;
    Ok(out)
}

/// Head of a removed vdev's mapping (`vdev_indirect_mapping_phys_t`): the bonus of an array of
/// [`IndirectMappingEntry`], sorted by source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndirectMappingPhys {
    /// Offset up to which there are entries.
    pub max_offset_bytes: u64,
    /// Size of all entries.
    pub mapped_bytes: u64,
    /// Number of entries.
    pub entries: u64,
    /// Array of bytes no longer in use per entry, 32 bits each; `None` without the feature
    /// `obsolete_counts`.
    pub counts: Option<ObjectId>,
}

impl IndirectMappingPhys {
    /// Size in bytes.
    pub const BYTES: usize = 32;
    /// Size in bytes without `counts` (`VDEV_INDIRECT_MAPPING_SIZE_V0`).
    pub const BYTES_V0: usize = 24;

    /// Decodes a bonus of either length.
    ///
    /// # Errors
    /// [`FormatError::TooShort`].
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self> {
        let mut r = Reader::new("vdev_indirect_mapping_phys_t", bonus, endian);
        let [max_offset_bytes, mapped_bytes, entries] = r.words()?;
        let counts = if bonus.len() >= Self::BYTES {
            Some(r.u64()?.into())
        } else {
            None
        };
        Ok(Self {
            max_offset_bytes,
            mapped_bytes,
            entries,
            counts,
        })
    }

    /// The bonus, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_words(&[self.max_offset_bytes, self.mapped_bytes, self.entries]);
        if let Some(counts) = self.counts {
            out.put_u64(counts.get());
        }
        out
    }
}

/// A range of a removed vdev, and where it is now (`vdev_indirect_mapping_entry_phys_t`): three
/// words, the source's offset in sectors in the low 63 bits of the first, then a DVA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndirectMappingEntry {
    /// Where it was.
    pub source_offset_bytes: u64,
    /// Where it is; its size is that of the range.
    pub destination: Dva,
}

impl IndirectMappingEntry {
    /// Size in bytes.
    pub const BYTES: usize = 24;

    /// Decodes 24 bytes.
    ///
    /// # Errors
    /// [`FormatError`] when they are too few or the destination cannot be.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self> {
        let structure = "vdev_indirect_mapping_entry_phys_t";
        let [source, first, second] = Reader::new(structure, bytes, endian).words()?;
        let sector = bits(source, 0, 63);
        if sector > u64::MAX >> SECTOR_SHIFT {
            return Err(bad(structure, "vimep_src", source, "below 2^64 bytes"));
        }
        let destination = Dva::from_words([first, second])
            .ok_or_else(|| bad(structure, "vimep_dst", second, "a place"))?;
        Ok(Self {
            source_offset_bytes: sector << SECTOR_SHIFT,
            destination,
        })
    }

    /// The 24 bytes, little-endian.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let [first, second] = self.destination.to_words();
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_words(&[self.source_offset_bytes >> SECTOR_SHIFT, first, second]);
        crate::bytes::exact(&out)
    }
}

disk_struct! {
    /// Head of a removed vdev's births (`vdev_indirect_birth_phys_t`): the bonus of an array of
    /// [`IndirectBirthEntry`].
    IndirectBirthPhys, "vdev_indirect_birth_phys_t", 8 {
        /// Number of entries.
        entries: u64,
    }
}

disk_struct! {
    /// Up to which offset a removed vdev was copied in which txg
    /// (`vdev_indirect_birth_entry_phys_t`).
    IndirectBirthEntry, "vdev_indirect_birth_entry_phys_t", 16 {
        /// Offset in bytes.
        offset_bytes: u64,
        /// Txg.
        physical_birth: Txg,
    }
}

disk_struct! {
    /// State of the removal of a vdev (`spa_removing_phys_t`, include/sys/spa_impl.h): a value in
    /// the MOS's directory.
    RemovingPhys, "spa_removing_phys_t", 56 {
        /// State as in [`crate::ScanPhys`].
        state: u64,
        /// Vdev that is or was being removed; all ones is none.
        removing_vdev: u64,
        /// Vdev that was removed last; all ones is none.
        previous_indirect_vdev: u64,
        /// When it began, in seconds since 1970.
        start_time_seconds: u64,
        /// When it ended.
        end_time_seconds: u64,
        /// All there is to copy.
        to_copy_bytes: u64,
        /// Copied or freed so far.
        copied_bytes: u64,
    }
}

disk_struct! {
    /// State of the condensing of a removed vdev's mapping (`spa_condensing_indirect_phys_t`): a
    /// value in the MOS's directory.
    CondensingIndirectPhys, "spa_condensing_indirect_phys_t", 24 {
        /// The vdev.
        vdev: u64,
        /// Space map of what is obsolete.
        previous_obsolete_space_map: ObjectId,
        /// The mapping that is being written.
        next_mapping: ObjectId,
    }
}

disk_struct! {
    /// State of a sequential rebuild (`vdev_rebuild_phys_t`, include/sys/vdev_rebuild.h): a value
    /// in the vdev's ZAP.
    RebuildPhys, "vdev_rebuild_phys_t", 96 {
        /// None 0, active 1, canceled 2, complete 3.
        state: u64,
        /// Offset up to which it is done.
        last_offset_bytes: u64,
        /// Blocks born after this txg are missing.
        min_txg: Txg,
        /// Blocks born up to this txg are missing.
        max_txg: Txg,
        /// When it began, in seconds since 1970.
        start_time_seconds: u64,
        /// When it ended.
        end_time_seconds: u64,
        /// Time spent, over all runs.
        scan_time_ms: u64,
        /// Allocated space looked at.
        scanned_bytes: u64,
        /// Space read.
        issued_bytes: u64,
        /// Space written.
        rebuilt_bytes: u64,
        /// All there is to look at.
        estimated_bytes: u64,
        /// Errors on the way.
        errors: u64,
    }
}
