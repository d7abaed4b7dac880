//! ZAP blocks (include/sys/zap_impl.h, zap_leaf.h): ZFS's maps from names to values, block by
//! block.
//!
//! A ZAP is one object. As a *micro ZAP* ([`MicroZap`]) it is a single block of fixed entries; once
//! a name or value does not fit that, it becomes a *fat ZAP*: block 0 is the header
//! ([`FatZapHeader`]), the others are leaves ([`ZapLeaf`]) and, when it no longer fits into the
//! header's second half, blocks of the pointer table. Which block holds a key is told by the high
//! bits of its hash: the pointer table maps them to a leaf, and each leaf knows the prefix that all
//! of its keys' hashes share. Which blocks are read, split and written, and in what order, is up
//! to the layer above; here is what is in one block.
//!
//! The first word of a block tells what it is: bit 63 and 0 for a leaf, 1 for a header, 3 for a
//! micro ZAP; any other value is a block of the pointer table (64-bit block numbers).
//!
//! # Header (`zap_phys_t`; 64-bit words)
//!
//! | word | holds |
//! |---|---|
//! | 0, 1 | type, magic |
//! | 2 | first block of the pointer table; 0 when it is in this block |
//! | 3 | its blocks |
//! | 4 | log2 of its entries |
//! | 5, 6 | first block of a larger table that is being filled, blocks copied to it |
//! | 7 | next block that was never used |
//! | 8, 9 | leaves, entries |
//! | 10 | salt of the hash |
//! | 11 | normalization of names |
//! | 12 | flags ([`ZapFlags`]) |
//! | second half | pointer table, while it fits |

mod fill;
mod leaf;
mod leaf_write;
mod micro;

pub use fill::{ZapFill, fill_fat_zap};
pub use leaf::{LeafEntry, LeafInsert, ZapLeaf};
pub use micro::{MicroEntry, MicroInsert, MicroZap};

use crate::bytes::{Endian, Put, Reader};
use crate::error::{FormatError, Result, bad, does_not_fit};

const ZAP: &str = "zap_phys_t";
const BLOCK_TYPE_LEAF: u64 = 1 << 63;
const BLOCK_TYPE_HEADER: u64 = (1 << 63) + 1;
const BLOCK_TYPE_MICRO: u64 = (1 << 63) + 3;
const MAGIC: u64 = 0x2_f52a_b2ab;

/// Longest name in bytes without its zero byte, without the feature `longname` (`ZAP_MAXNAMELEN`).
pub const ZAP_MAX_NAME_BYTES: usize = 255;
/// Longest name in bytes without its zero byte, with the feature `longname` (`ZAP_MAXNAMELEN_NEW`).
pub const ZAP_MAX_LONG_NAME_BYTES: usize = 1023;
/// Longest value in bytes (`ZAP_MAXVALUELEN`).
pub const ZAP_MAX_VALUE_BYTES: usize = 8192;
/// log2 of the block size of new fat ZAPs (`fzap_default_block_shift`).
pub const FAT_ZAP_BLOCK_SHIFT: u32 = 14;

/// What a ZAP's block is, as its first word tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZapBlockKind {
    /// The only block of a micro ZAP.
    Micro,
    /// Block 0 of a fat ZAP.
    Header,
    /// A leaf.
    Leaf,
    /// Pointers.
    PointerTable,
}

impl ZapBlockKind {
    /// Looks at a block's first word.
    ///
    /// # Errors
    /// [`FormatError::TooShort`] when there is none.
    pub fn of(block: &[u8], endian: Endian) -> Result<Self> {
        Ok(match Reader::new(ZAP, block, endian).u64()? {
            BLOCK_TYPE_LEAF => Self::Leaf,
            BLOCK_TYPE_HEADER => Self::Header,
            BLOCK_TYPE_MICRO => Self::Micro,
            _ => Self::PointerTable,
        })
    }
}

/// Flags of a fat ZAP (`zap_flags_t`, include/sys/zap.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ZapFlags(u64);

impl ZapFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// 48 bits of hash in place of 28 (`ZAP_FLAG_HASH64`).
    pub const HASH64: Self = Self(1);
    /// Keys are arrays of 64-bit words (`ZAP_FLAG_UINT64_KEY`).
    pub const UINT64_KEY: Self = Self(2);
    /// The key's first word is its hash (`ZAP_FLAG_PRE_HASHED_KEY`).
    pub const PRE_HASHED_KEY: Self = Self(4);

    /// From the stored bits; unknown bits are kept.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The stored bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// With the flags of `other` set.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// How keys are stored.
    pub const fn key_kind(self) -> ZapKeyKind {
        if self.contains(Self::UINT64_KEY) {
            ZapKeyKind::Words
        } else {
            ZapKeyKind::Name
        }
    }
}

/// How a fat ZAP's keys are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZapKeyKind {
    /// Names: bytes up to a zero byte.
    Name,
    /// Arrays of 64-bit words.
    Words,
}

impl ZapKeyKind {
    const fn unit_bytes(self) -> usize {
        match self {
            Self::Name => 1,
            Self::Words => 8,
        }
    }
}

/// A key to look up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZapKey<'a> {
    /// A name, without its zero byte.
    Name(&'a [u8]),
    /// An array of words.
    Words(&'a [u64]),
}

impl ZapKey<'_> {
    /// As it is stored in a leaf: a name with its zero byte, or words big-endian.
    fn stored(&self) -> Vec<u8> {
        match self {
            Self::Name(name) => {
                let mut out = Vec::with_capacity(name.len() + 1);
                out.extend_from_slice(name);
                out.push(0);
                out
            }
            Self::Words(words) => words.iter().flat_map(|word| word.to_be_bytes()).collect(),
        }
    }

    /// Which kind it is.
    pub const fn kind(&self) -> ZapKeyKind {
        match self {
            Self::Name(_) => ZapKeyKind::Name,
            Self::Words(_) => ZapKeyKind::Words,
        }
    }
}

/// A key that was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ZapKeyBuf {
    /// A name, without its zero byte.
    Name(Vec<u8>),
    /// An array of words.
    Words(Vec<u64>),
}

impl ZapKeyBuf {
    /// The key to look it up with.
    pub fn as_key(&self) -> ZapKey<'_> {
        match self {
            Self::Name(name) => ZapKey::Name(name),
            Self::Words(words) => ZapKey::Words(words),
        }
    }
}

/// A value: an array of integers of one size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ZapValue {
    /// Bytes; also text with its zero byte.
    Bytes(Vec<u8>),
    /// 16-bit integers.
    U16(Vec<u16>),
    /// 32-bit integers.
    U32(Vec<u32>),
    /// 64-bit integers.
    U64(Vec<u64>),
}

impl ZapValue {
    /// One 64-bit integer, as most values are.
    pub fn one(value: u64) -> Self {
        Self::U64(vec![value])
    }

    /// Size of each integer in bytes.
    pub const fn integer_bytes(&self) -> u8 {
        match self {
            Self::Bytes(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
            Self::U64(_) => 8,
        }
    }

    /// Number of integers.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::U64(v) => v.len(),
        }
    }

    /// Whether there are no integers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value when it is a single integer, of whatever size.
    pub fn single(&self) -> Option<u64> {
        match self {
            Self::Bytes(v) if v.len() == 1 => Some(v[0].into()),
            Self::U16(v) if v.len() == 1 => Some(v[0].into()),
            Self::U32(v) if v.len() == 1 => Some(v[0].into()),
            Self::U64(v) if v.len() == 1 => Some(v[0]),
            _ => None,
        }
    }

    /// The words when the integers have 64 bits.
    pub fn words(&self) -> Option<&[u64]> {
        match self {
            Self::U64(v) => Some(v),
            _ => None,
        }
    }

    /// The bytes when the integers have 8 bits.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(v) => Some(v),
            _ => None,
        }
    }

    /// As stored in a leaf: big-endian.
    fn stored(&self) -> Vec<u8> {
        match self {
            Self::Bytes(v) => v.clone(),
            Self::U16(v) => v.iter().flat_map(|v| v.to_be_bytes()).collect(),
            Self::U32(v) => v.iter().flat_map(|v| v.to_be_bytes()).collect(),
            Self::U64(v) => v.iter().flat_map(|v| v.to_be_bytes()).collect(),
        }
    }

    fn from_stored(integer_bytes: u8, stored: Vec<u8>) -> Result<Self> {
        let big = Endian::Big;
        Ok(match integer_bytes {
            1 => Self::Bytes(stored),
            2 => Self::U16(stored.as_chunks().0.iter().map(|v| big.u16(*v)).collect()),
            4 => Self::U32(stored.as_chunks().0.iter().map(|v| big.u32(*v)).collect()),
            8 => Self::U64(stored.as_chunks().0.iter().map(|v| big.u64(*v)).collect()),
            other => {
                return Err(bad(
                    "zap_leaf_entry",
                    "le_value_intlen",
                    other.into(),
                    "1, 2, 4 or 8",
                ));
            }
        })
    }
}

const CRC64_TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ ((crc & 1) * 0xc96c_5795_d787_0f42);
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc64(start: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(start, |crc, byte| {
        (crc >> 8) ^ CRC64_TABLE[usize::from((crc as u8) ^ byte)]
    })
}

/// How a ZAP hashes its keys (`zap_hash`, module/zfs/zap_impl.c): CRC-64 from the salt on, of which
/// the high 28 bits (48 with [`ZapFlags::HASH64`]) are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapHasher {
    salt: u64,
    flags: ZapFlags,
}

impl ZapHasher {
    /// The hash of a ZAP with this salt and these flags.
    pub const fn new(salt: u64, flags: ZapFlags) -> Self {
        Self { salt, flags }
    }

    /// High bits of the hash that are used (`zap_hashbits`).
    pub const fn bits(&self) -> u32 {
        if self.flags.contains(ZapFlags::HASH64) {
            48
        } else {
            28
        }
    }

    /// Hash of a name (without its zero byte). In a ZAP that normalizes names, give the
    /// normalized form.
    pub fn name(&self, name: &[u8]) -> u64 {
        self.mask(crc64(self.salt, name.iter().copied()))
    }

    /// Hash of a key of words.
    pub fn words(&self, words: &[u64]) -> u64 {
        if self.flags.contains(ZapFlags::PRE_HASHED_KEY) {
            return self.mask(words.first().copied().unwrap_or(0));
        }
        self.mask(crc64(
            self.salt,
            words.iter().flat_map(|word| word.to_le_bytes()),
        ))
    }

    /// Hash of a key; names as by [`Self::name`].
    pub fn key(&self, key: ZapKey<'_>) -> u64 {
        match key {
            ZapKey::Name(name) => self.name(name),
            ZapKey::Words(words) => self.words(words),
        }
    }

    const fn mask(&self, hash: u64) -> u64 {
        hash & !(u64::MAX >> self.bits())
    }
}

/// The high `bits` bits of a hash: an index into a pointer table, or a leaf's prefix
/// (`ZAP_HASH_IDX`).
pub const fn zap_hash_index(hash: u64, bits: u32) -> u64 {
    if bits == 0 {
        0
    } else if bits >= 64 {
        hash
    } else {
        hash >> (64 - bits)
    }
}

/// Where a fat ZAP's pointer table is (`zap_table_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ZapTable {
    /// First block; zero while the table is in the header's second half.
    pub first_block: u64,
    /// Number of blocks; zero while it is in the header.
    pub blocks: u64,
    /// log2 of the number of entries.
    pub shift: u32,
    /// First block of a table twice as large that is being filled; zero when there is none.
    pub next_first_block: u64,
    /// Blocks of this table that were copied to the larger one.
    pub blocks_copied: u64,
}

/// Header of a fat ZAP. The pointer table in its block's second half is reached with
/// [`Self::embedded_pointer`] and [`Self::set_embedded_pointer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FatZapHeader {
    /// The pointer table.
    pub table: ZapTable,
    /// Next block that was never used.
    pub free_block: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of entries.
    pub entries: u64,
    /// Salt of the hash; never zero.
    pub salt: u64,
    /// How names are normalized (`U8_TEXTPREP_*` bits); zero is not at all.
    pub normalization: u64,
    /// Flags.
    pub flags: ZapFlags,
}

impl FatZapHeader {
    /// Size in bytes without the rest of the block.
    pub const BYTES: usize = 104;

    /// Header of a new ZAP with one empty leaf in block 1 (`fzap_upgrade`, module/zfs/zap_fat.c).
    pub const fn new(block_shift: u32, salt: u64, normalization: u64, flags: ZapFlags) -> Self {
        Self {
            table: ZapTable {
                first_block: 0,
                blocks: 0,
                shift: embedded_table_shift(block_shift),
                next_first_block: 0,
                blocks_copied: 0,
            },
            free_block: 2,
            leaves: 1,
            entries: 0,
            salt,
            normalization,
            flags,
        }
    }

    /// How its keys are hashed.
    pub const fn hasher(&self) -> ZapHasher {
        ZapHasher::new(self.salt, self.flags)
    }

    /// Whether the pointer table is in the header's block.
    pub const fn has_embedded_table(&self) -> bool {
        self.table.blocks == 0
    }

    /// Decodes block 0.
    ///
    /// # Errors
    /// [`FormatError`] when it is no header or its table cannot be.
    pub fn decode(block: &[u8], endian: Endian) -> Result<Self> {
        let block_shift = block_shift(block.len())?;
        let mut r = Reader::new(ZAP, block, endian);
        let [
            kind,
            magic,
            first_block,
            blocks,
            shift,
            next_first_block,
            blocks_copied,
        ] = r.words()?;
        if kind != BLOCK_TYPE_HEADER {
            return Err(bad(ZAP, "zap_block_type", kind, "0x8000000000000001"));
        }
        if magic != MAGIC {
            return Err(bad(ZAP, "zap_magic", magic, "0x2f52ab2ab"));
        }
        let [free_block, leaves, entries, salt, normalization, flags] = r.words()?;
        let flags = ZapFlags::from_bits(flags);
        if shift > 48 {
            return Err(bad(ZAP, "zt_shift", shift, "at most 48"));
        }
        let per_block_shift = u64::from(block_shift) - 3;
        if blocks == 0 && shift != u64::from(embedded_table_shift(block_shift)) {
            return Err(bad(
                ZAP,
                "zt_shift",
                shift,
                "that of a table of half a block",
            ));
        }
        if blocks != 0 && blocks.checked_shl(per_block_shift as u32) != Some(1 << shift) {
            return Err(bad(ZAP, "zt_numblks", blocks, "as many as zt_shift needs"));
        }
        Ok(Self {
            table: ZapTable {
                first_block,
                blocks,
                shift: shift as u32,
                next_first_block,
                blocks_copied,
            },
            free_block,
            leaves,
            entries,
            salt,
            normalization,
            flags,
        })
    }

    /// Writes the header's fields into block 0 (little-endian), leaving its second half as it is.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the block is too small.
    pub fn encode_into(&self, block: &mut [u8]) -> Result<()> {
        let found = block.len() as u64;
        let half = block.len() / 2;
        let head = block
            .get_mut(..half)
            .filter(|head| head.len() >= Self::BYTES)
            .ok_or_else(|| does_not_fit(ZAP, "block", found, "at least 512 bytes"))?;
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_words(&[
            BLOCK_TYPE_HEADER,
            MAGIC,
            self.table.first_block,
            self.table.blocks,
            self.table.shift.into(),
            self.table.next_first_block,
            self.table.blocks_copied,
            self.free_block,
            self.leaves,
            self.entries,
            self.salt,
            self.normalization,
            self.flags.bits(),
        ]);
        head[..Self::BYTES].copy_from_slice(&out);
        head[Self::BYTES..].fill(0);
        Ok(())
    }

    /// Block 0 of a new ZAP: this header, and a pointer table that names leaf 1 throughout.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the block size is none that ZAPs have.
    pub fn encode_new_block(&self, block_shift: u32) -> Result<Vec<u8>> {
        check_shift(block_shift)?;
        let mut block = vec![0; 1 << block_shift];
        self.encode_into(&mut block)?;
        let half = block.len() / 2;
        for pointer in block[half..].as_chunks_mut::<8>().0 {
            *pointer = 1u64.to_le_bytes();
        }
        Ok(block)
    }

    /// An entry of the pointer table in block 0 (`ZAP_EMBEDDED_PTRTBL_ENT`).
    pub fn embedded_pointer(block: &[u8], endian: Endian, index: u64) -> Option<u64> {
        let table = &block[block.len() / 2..];
        let word = table.as_chunks::<8>().0.get(usize::try_from(index).ok()?)?;
        Some(endian.u64(*word))
    }

    /// Sets an entry of the pointer table in block 0 (little-endian); false when there is no such
    /// entry.
    pub fn set_embedded_pointer(block: &mut [u8], index: u64, leaf_block: u64) -> bool {
        let half = block.len() / 2;
        let words = block[half..].as_chunks_mut::<8>().0;
        let Some(word) = usize::try_from(index)
            .ok()
            .and_then(|index| words.get_mut(index))
        else {
            return false;
        };
        *word = leaf_block.to_le_bytes();
        true
    }
}

/// Each entry of a pointer table twice: the start of a table of double size
/// (`zap_ptrtbl_transfer`, module/zfs/zap_fat.c).
pub fn double_pointers(pointers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut out = Vec::new();
    for pointer in pointers {
        out.put_words(&[pointer, pointer]);
    }
    out
}

const fn embedded_table_shift(block_shift: u32) -> u32 {
    block_shift - 4
}

fn check_shift(shift: u32) -> Result<()> {
    // Chunk numbers have 16 bits: a leaf of 2 MiB would need more.
    if (9..=20).contains(&shift) {
        Ok(())
    } else {
        Err(does_not_fit(
            ZAP,
            "block",
            shift.into(),
            "a power of two, 512 bytes to 1 MiB",
        ))
    }
}

fn block_shift(block_bytes: usize) -> Result<u32> {
    let shift = block_bytes.trailing_zeros();
    if !block_bytes.is_power_of_two() || check_shift(shift).is_err() {
        let found = block_bytes as u64;
        return Err(bad(
            ZAP,
            "block",
            found,
            "a power of two, 512 bytes to 1 MiB",
        ));
    }
    Ok(shift)
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.contains(&0) || name.len() > ZAP_MAX_LONG_NAME_BYTES {
        let found = name.len() as u64;
        return Err(does_not_fit(
            "zap",
            "name",
            found,
            "1 to 1023 bytes and no zero among them",
        ));
    }
    Ok(())
}

fn short(structure: &'static str, needed: usize, found: usize) -> FormatError {
    FormatError::TooShort {
        structure,
        needed_bytes: needed as u64,
        found_bytes: found as u64,
    }
}

#[cfg(test)]
mod tests;
