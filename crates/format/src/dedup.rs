//! Dedup tables (include/sys/ddt.h, ddt_impl.h) and the table of cloned blocks
//! (include/sys/brt_impl.h).
//!
//! # Dedup entries
//!
//! A dedup table is a ZAP with keys of five words ([`DdtKey`]): the block's checksum, and in the
//! fifth its logical size (bits 0..16) and physical size (16..32) in sectors less one, compression
//! (32..39) and whether it is encrypted (39). The value is bytes: the first says how the rest is
//! compressed (bits 0..7, a [`Compression`] code: zle or off) and in which byte order it is (bit 7
//! set: little-endian); the rest is [`DdtPhys`]: traditional four times eight words (three DVAs,
//! references, physical birth) indexed by number of copies, or flat once nine words (the same, and
//! when the entry became unique, in seconds).
//!
//! # Dedup log
//!
//! An object of records; the bonus is [`DdtLogHeader`]. A record starts with a word: type in bits
//! 0..8 (0 ends the block, 1 is an entry), length with this word in 8..24, kind of storage in
//! 48..56, class in 56..64; key and uncompressed value follow. Records do not cross blocks.

use crate::blkptr::SECTOR_SHIFT;
use crate::bytes::{Endian, Put, Reader, bits, with_bits};
use crate::dva::Dva;
use crate::error::{Result, bad, does_not_fit};
use crate::ids::{ObjectId, Txg};
use crate::kinds::Compression;
use crate::words::{Field, disk_struct};

/// Key of a dedup entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DdtKey {
    words: [u64; 5],
}

impl DdtKey {
    /// Size in bytes.
    pub const BYTES: usize = 40;

    /// The key of a block.
    ///
    /// # Errors
    /// [`crate::FormatError::DoesNotFit`] when a size is none that blocks have.
    pub fn new(
        checksum: [u64; 4],
        lsize_bytes: u64,
        psize_bytes: u64,
        compression: Compression,
        encrypted: bool,
    ) -> Result<Self> {
        let size = |field, bytes: u64| {
            let sectors = bytes >> SECTOR_SHIFT;
            if !bytes.is_multiple_of(1 << SECTOR_SHIFT) || sectors == 0 || sectors > 1 << 16 {
                return Err(does_not_fit(
                    "ddt_key_t",
                    field,
                    bytes,
                    "512 bytes to 32 MiB",
                ));
            }
            Ok(sectors - 1)
        };
        let prop = with_bits(
            size("lsize", lsize_bytes)?,
            16,
            16,
            size("psize", psize_bytes)?,
        );
        let prop = with_bits(prop, 32, 7, compression.code().into());
        let prop = with_bits(prop, 39, 1, encrypted.into());
        let [a, b, c, d] = checksum;
        Ok(Self {
            words: [a, b, c, d, prop],
        })
    }

    /// From a ZAP's key.
    pub const fn from_words(words: [u64; 5]) -> Self {
        Self { words }
    }

    /// The ZAP's key.
    pub const fn words(&self) -> &[u64; 5] {
        &self.words
    }

    /// The block's checksum.
    pub const fn checksum(&self) -> [u64; 4] {
        let [a, b, c, d, _] = self.words;
        [a, b, c, d]
    }

    /// The block's logical size.
    pub const fn lsize_bytes(&self) -> u64 {
        (bits(self.words[4], 0, 16) + 1) << SECTOR_SHIFT
    }

    /// The block's physical size.
    pub const fn psize_bytes(&self) -> u64 {
        (bits(self.words[4], 16, 16) + 1) << SECTOR_SHIFT
    }

    /// How the block is compressed.
    pub const fn compression(&self) -> Compression {
        Compression::from_code(bits(self.words[4], 32, 7) as u8)
    }

    /// Whether the block is encrypted.
    pub const fn is_encrypted(&self) -> bool {
        bits(self.words[4], 39, 1) != 0
    }
}

impl Field for DdtKey {
    const BYTES: usize = 40;

    fn read(reader: &mut Reader<'_>, _: Endian) -> Result<Self> {
        Ok(Self {
            words: reader.words()?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_words(&self.words);
    }
}

/// Which of a table's ZAPs an entry is in (`ddt_class_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DdtClass {
    /// Entries with extra copies, of old releases.
    Ditto,
    /// Entries with several references.
    Duplicate,
    /// Entries with one reference.
    Unique,
}

impl DdtClass {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Ditto, Self::Duplicate, Self::Unique];

    /// Its number.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// As it is in the ZAP's name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ditto => "ditto",
            Self::Duplicate => "duplicate",
            Self::Unique => "unique",
        }
    }

    /// Where an entry with so many references belongs (`ddt_sync_flush_entry`).
    pub const fn of_references(references: u64) -> Self {
        if references > 1 {
            Self::Duplicate
        } else {
            Self::Unique
        }
    }
}

/// Where a deduplicated block is, and how often it is referred to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DdtPlace {
    /// The copies' words as in a pointer: the third of an encrypted block is its salt and part of
    /// its IV.
    pub words: [[u64; 2]; 3],
    /// References.
    pub references: u64,
    /// Txg in which the block was written; zero when there is none.
    pub physical_birth: Txg,
}

impl DdtPlace {
    /// One copy's place; `None` beyond the copies there are.
    pub fn dva(&self, index: usize, encrypted: bool) -> Option<Dva> {
        if index == 2 && encrypted {
            return None;
        }
        self.words.get(index).copied().and_then(Dva::from_words)
    }

    /// All copies' places, in order.
    pub fn dvas(&self, encrypted: bool) -> impl Iterator<Item = Dva> + use<> {
        let place = *self;
        (0..3).filter_map(move |index| place.dva(index, encrypted))
    }

    /// Whether a block is there.
    pub fn is_used(&self) -> bool {
        !self.physical_birth.is_zero()
    }
}

/// Value of a dedup entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DdtPhys {
    /// As before the feature `fast_dedup`: index 0 is obsolete extra copies, 1 to 3 are blocks
    /// of that many copies.
    Traditional(Box<[DdtPlace; 4]>),
    /// With the feature `fast_dedup`.
    Flat {
        /// The block.
        place: DdtPlace,
        /// When the entry got its class, in seconds since 1970.
        class_start_seconds: u64,
    },
}

impl DdtPhys {
    /// A value without any block.
    pub fn empty(flat: bool) -> Self {
        if flat {
            Self::Flat {
                place: DdtPlace::default(),
                class_start_seconds: 0,
            }
        } else {
            Self::Traditional(Box::default())
        }
    }

    /// The blocks, by number of copies in the traditional form.
    pub fn places(&self) -> &[DdtPlace] {
        match self {
            Self::Traditional(places) => &places[..],
            Self::Flat { place, .. } => std::slice::from_ref(place),
        }
    }

    /// The same, to be changed.
    pub fn places_mut(&mut self) -> &mut [DdtPlace] {
        match self {
            Self::Traditional(places) => &mut places[..],
            Self::Flat { place, .. } => std::slice::from_mut(place),
        }
    }

    /// Size in bytes of the traditional form (`DDT_TRAD_PHYS_SIZE`).
    pub const TRADITIONAL_BYTES: usize = 256;
    /// Size in bytes of the flat form (`DDT_FLAT_PHYS_SIZE`).
    pub const FLAT_BYTES: usize = 72;

    /// Decodes an uncompressed value, whose length tells its form.
    ///
    /// # Errors
    /// [`crate::FormatError`] when the length is neither form's.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self> {
        let mut r = Reader::new("ddt_univ_phys_t", bytes, endian);
        match bytes.len() {
            Self::TRADITIONAL_BYTES => {
                let mut places = [DdtPlace::default(); 4];
                for place in &mut places {
                    *place = read_place(&mut r)?;
                }
                Ok(Self::Traditional(Box::new(places)))
            }
            Self::FLAT_BYTES => {
                let place = read_place(&mut r)?;
                Ok(Self::Flat {
                    place,
                    class_start_seconds: r.u64()?,
                })
            }
            other => Err(bad(
                "ddt_univ_phys_t",
                "length",
                other as u64,
                "256 or 72 bytes",
            )),
        }
    }

    /// The uncompressed value, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::TRADITIONAL_BYTES);
        match self {
            Self::Traditional(places) => places.iter().for_each(|place| put_place(&mut out, place)),
            Self::Flat {
                place,
                class_start_seconds,
            } => {
                put_place(&mut out, place);
                out.put_u64(*class_start_seconds);
            }
        }
        out
    }
}

fn read_place(r: &mut Reader<'_>) -> Result<DdtPlace> {
    let [a0, a1, b0, b1, c0, c1, references, birth] = r.words()?;
    Ok(DdtPlace {
        words: [[a0, a1], [b0, b1], [c0, c1]],
        references,
        physical_birth: birth.into(),
    })
}

fn put_place(out: &mut Vec<u8>, place: &DdtPlace) {
    for words in place.words {
        out.put_words(&words);
    }
    out.put_words(&[place.references, place.physical_birth.get()]);
}

/// First byte of a dedup entry's value in its ZAP: how the rest is stored.
pub const fn decode_ddt_value_head(byte: u8) -> (Compression, Endian) {
    let endian = if byte & 0x80 != 0 {
        Endian::Little
    } else {
        Endian::Big
    };
    (Compression::from_code(byte & 0x7f), endian)
}

/// First byte of a value that we write.
pub const fn encode_ddt_value_head(compression: Compression) -> u8 {
    compression.code() & 0x7f | 0x80
}

disk_struct! {
    /// Sums over a dedup table or a part of it (`ddt_stat_t`); 64 of them, by power of two of the
    /// references, are the histogram of a table.
    DdtStat, "ddt_stat_t", 64 {
        /// Blocks.
        blocks: u64,
        /// Their logical size.
        lsize_bytes: u64,
        /// Their physical size.
        psize_bytes: u64,
        /// Their allocated size, less parity.
        dsize_bytes: u64,
        /// References.
        referenced_blocks: u64,
        /// Logical size times references.
        referenced_lsize_bytes: u64,
        /// Physical size times references.
        referenced_psize_bytes: u64,
        /// Allocated size times references.
        referenced_dsize_bytes: u64,
    }
}

impl DdtStat {
    /// Field by field; `change` gets each sum and what is to be added to it or taken away.
    fn each(&mut self, other: &Self, change: impl Fn(u64, u64) -> u64) {
        let apply = |to: &mut u64, by: u64| *to = change(*to, by);
        apply(&mut self.blocks, other.blocks);
        apply(&mut self.lsize_bytes, other.lsize_bytes);
        apply(&mut self.psize_bytes, other.psize_bytes);
        apply(&mut self.dsize_bytes, other.dsize_bytes);
        apply(&mut self.referenced_blocks, other.referenced_blocks);
        apply(
            &mut self.referenced_lsize_bytes,
            other.referenced_lsize_bytes,
        );
        apply(
            &mut self.referenced_psize_bytes,
            other.referenced_psize_bytes,
        );
        apply(
            &mut self.referenced_dsize_bytes,
            other.referenced_dsize_bytes,
        );
    }

    /// Adds, saturating.
    pub fn add(&mut self, other: &Self) {
        self.each(other, u64::saturating_add);
    }

    /// Takes away, saturating.
    pub fn subtract(&mut self, other: &Self) {
        self.each(other, u64::saturating_sub);
    }
}

disk_struct! {
    /// Head of a dedup log (`ddt_log_header_t`): the bonus of its object.
    DdtLogHeader, "ddt_log_header_t", 64 {
        /// Bits 0..8 version (1), 8..16 flags (1 is being flushed, 2 has a checkpoint).
        info: u64,
        /// Length of the log in bytes.
        length_bytes: u64,
        /// Txg of its first record.
        first_txg: Txg,
        /// Key up to which it was flushed.
        checkpoint: DdtKey,
    }
}

/// A record of a dedup log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DdtLogRecord {
    /// Kind of storage; zero is ZAP.
    pub storage: u8,
    /// Class: 0 obsolete, 1 duplicate, 2 unique.
    pub class: u8,
    /// Key.
    pub key: DdtKey,
    /// Value.
    pub value: DdtPhys,
}

impl DdtLogRecord {
    /// Decodes the record at the start of `bytes` and says how long it is; `None` at the block's
    /// end.
    ///
    /// # Errors
    /// [`crate::FormatError`] when it is damaged.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Option<(Self, usize)>> {
        const STRUCTURE: &str = "ddt_log_record_t";
        if bytes.len() < 8 {
            return Ok(None);
        }
        let mut r = Reader::new(STRUCTURE, bytes, endian);
        let info = r.u64()?;
        match bits(info, 0, 8) {
            0 => return Ok(None),
            1 => {}
            other => return Err(bad(STRUCTURE, "type", other, "0 or 1")),
        }
        let length = bits(info, 8, 16) as usize;
        let key = DdtKey::read(&mut r, endian)?;
        let value_bytes = match length.checked_sub(8 + DdtKey::BYTES) {
            Some(left) if left >= DdtPhys::TRADITIONAL_BYTES => DdtPhys::TRADITIONAL_BYTES,
            Some(left) if left >= DdtPhys::FLAT_BYTES => DdtPhys::FLAT_BYTES,
            _ => {
                return Err(bad(
                    STRUCTURE,
                    "length",
                    length as u64,
                    "room for key and value",
                ));
            }
        };
        let value = DdtPhys::decode(r.take(value_bytes)?, endian)?;
        if length > bytes.len() {
            return Err(bad(
                STRUCTURE,
                "length",
                length as u64,
                "a record within its block",
            ));
        }
        let storage = bits(info, 48, 8) as u8;
        let class = bits(info, 56, 8) as u8;
        Ok(Some((
            Self {
                storage,
                class,
                key,
                value,
            },
            length,
        )))
    }

    /// The record, little-endian; its length is a multiple of eight.
    pub fn encode(&self) -> Vec<u8> {
        let value = self.value.encode();
        let length = (8 + DdtKey::BYTES + value.len()) as u64;
        let info = with_bits(1, 8, 16, length);
        let info = with_bits(info, 48, 8, self.storage.into());
        let info = with_bits(info, 56, 8, self.class.into());
        let mut out = Vec::with_capacity(length as usize);
        out.put_u64(info);
        self.key.write(&mut out);
        out.extend_from_slice(&value);
        out
    }
}

disk_struct! {
    /// Head of a vdev's table of cloned blocks (`brt_vdev_phys_t`): the bonus of an array of 16-bit
    /// counts, one per range of [`Self::RANGE_BYTES`]. The blocks themselves are in a ZAP whose
    /// keys are one word, the offset in bytes, and whose values are eight bytes in the pool's
    /// order (with the feature `block_cloning_endian` one word).
    BrtVdevPhys, "brt_vdev_phys_t", 56 {
        /// The ZAP of cloned blocks.
        entries: ObjectId,
        /// Number of counts.
        size: u64,
        /// Byte order of the counts: 0 little-endian, 1 big-endian.
        byte_order: u64,
        /// Number of cloned blocks.
        total_count: u64,
        /// Size of a range.
        range_bytes: u64,
        /// Space of cloned blocks.
        used_bytes: u64,
        /// Space saved by cloning.
        saved_bytes: u64,
    }
}

impl BrtVdevPhys {
    /// Size of a range (`BRT_RANGESIZE`).
    pub const RANGE_BYTES: u64 = 16 << 20;
    /// Block size of the array of counts (`BRT_BLOCKSIZE`).
    pub const BLOCK_BYTES: u64 = 32 << 10;
}
