//! Micro ZAPs (`mzap_phys_t`): one block of entries of 64 bytes, each a name of up to 49 bytes and
//! one 64-bit value.
//!
//! # Layout
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 8 | type |
//! | 8 | 8 | salt |
//! | 16 | 8 | normalization of names |
//! | 24 | 40 | zero |
//! | 64 × n | 8 | entry: value |
//! | + 8 | 4 | entry: number among names of the same hash |
//! | + 12 | 2 | entry: zero |
//! | + 14 | 50 | entry: name and zero byte; empty is a free entry |

use std::collections::BTreeMap;

use super::{BLOCK_TYPE_MICRO, short};
use crate::bytes::{Endian, exact};
use crate::error::{FormatError, Result, bad, does_not_fit};

const MZAP: &str = "mzap_phys_t";
const ENTRY_BYTES: usize = 64;
const NAME_AT: usize = 14;

/// An entry of a micro ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// Hash of the (normalized) name.
    pub hash: u64,
    /// Number among names of the same hash.
    pub cd: u32,
    /// The name, without its zero byte.
    pub name: &'a [u8],
    /// The value.
    pub value: u64,
}

/// What came of adding to a micro ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a full micro ZAP has not taken the entry"]
pub enum MicroInsert {
    /// It is in.
    Inserted,
    /// The block is full: [`MicroZap::grow`] it, or make a fat ZAP of it.
    Full,
    /// The name is too long, or too many names have its hash: make a fat ZAP of it.
    NeedsFat,
}

/// A micro ZAP: its block (little-endian), and an index by hash made when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroZap {
    block: Vec<u8>,
    /// By the hash's high 32 bits (the others are zero) and `cd`: which entry.
    index: BTreeMap<(u32, u32), u16>,
    next_free: u16,
}

impl MicroZap {
    /// Longest name in bytes, without its zero byte.
    pub const MAX_NAME_BYTES: usize = ENTRY_BYTES - NAME_AT - 1;
    /// Largest block without the feature `large_microzap` (128 KiB).
    pub const MAX_BLOCK_BYTES: usize = 128 << 10;

    /// An empty one.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the block has no room for an entry or is too large.
    pub fn new(block_bytes: usize, salt: u64, normalization: u64) -> Result<Self> {
        let mut block = vec![0; 0];
        let entries = (block_bytes / ENTRY_BYTES).saturating_sub(1);
        if !block_bytes.is_multiple_of(512) || entries == 0 || entries > usize::from(u16::MAX) {
            let found = block_bytes as u64;
            return Err(does_not_fit(
                MZAP,
                "block",
                found,
                "whole sectors up to 4 MiB",
            ));
        }
        block.resize(block_bytes, 0);
        block[..8].copy_from_slice(&BLOCK_TYPE_MICRO.to_le_bytes());
        block[8..16].copy_from_slice(&salt.to_le_bytes());
        block[16..24].copy_from_slice(&normalization.to_le_bytes());
        Ok(Self {
            block,
            index: BTreeMap::new(),
            next_free: 0,
        })
    }

    /// The salt of a block, which hashing needs ([`super::ZapHasher`]).
    ///
    /// # Errors
    /// [`FormatError`] when it is no micro ZAP.
    pub fn salt_and_normalization(block: &[u8], endian: Endian) -> Result<(u64, u64)> {
        let head: &[u8; 24] = block.first_chunk().ok_or(short(MZAP, 24, block.len()))?;
        let kind = endian.u64(exact(&head[..8]));
        if kind != BLOCK_TYPE_MICRO {
            return Err(bad(MZAP, "mz_block_type", kind, "0x8000000000000003"));
        }
        Ok((
            endian.u64(exact(&head[8..16])),
            endian.u64(exact(&head[16..])),
        ))
    }

    /// Reads a block. `hash_of` gives the hash of a stored name (normalized, if this ZAP does).
    ///
    /// # Errors
    /// [`FormatError`] when it is no micro ZAP or an entry cannot be.
    pub fn decode(
        mut block: Vec<u8>,
        endian: Endian,
        hash_of: impl Fn(&[u8]) -> u64,
    ) -> Result<Self> {
        Self::salt_and_normalization(&block, endian)?;
        let entries = (block.len() / ENTRY_BYTES).saturating_sub(1);
        if entries > usize::from(u16::MAX) {
            return Err(bad(MZAP, "block", block.len() as u64, "at most 4 MiB"));
        }
        if endian == Endian::Big {
            swap(&mut block);
        }
        let mut out = Self {
            block,
            index: BTreeMap::new(),
            next_free: 0,
        };
        for number in 0..entries as u16 {
            let entry = out.entry_bytes(number);
            if entry[NAME_AT] == 0 {
                continue;
            }
            let name = stored_name(entry).ok_or(FormatError::BadText {
                structure: MZAP,
                field: "mze_name",
            })?;
            let key = ((hash_of(name) >> 32) as u32, out.cd(number));
            if out.index.insert(key, number).is_some() {
                return Err(bad(
                    MZAP,
                    "mze_cd",
                    key.1.into(),
                    "one per name of the same hash",
                ));
            }
        }
        Ok(out)
    }

    /// The block, little-endian.
    pub fn as_bytes(&self) -> &[u8] {
        &self.block
    }

    /// The block, little-endian.
    pub fn into_bytes(self) -> Vec<u8> {
        self.block
    }

    /// Salt of the hash.
    pub fn salt(&self) -> u64 {
        u64::from_le_bytes(exact(&self.block[8..16]))
    }

    /// How names are normalized (`U8_TEXTPREP_*` bits).
    pub fn normalization(&self) -> u64 {
        u64::from_le_bytes(exact(&self.block[16..24]))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Entries that the block has room for.
    pub fn capacity(&self) -> usize {
        self.block.len() / ENTRY_BYTES - 1
    }

    fn entry_bytes(&self, number: u16) -> &[u8; ENTRY_BYTES] {
        &self.block.as_chunks().0[usize::from(number) + 1]
    }

    fn entry_bytes_mut(&mut self, number: u16) -> &mut [u8; ENTRY_BYTES] {
        &mut self.block.as_chunks_mut().0[usize::from(number) + 1]
    }

    fn cd(&self, number: u16) -> u32 {
        u32::from_le_bytes(exact(&self.entry_bytes(number)[8..12]))
    }

    fn entry(&self, hash: u32, cd: u32, number: u16) -> MicroEntry<'_> {
        let bytes = self.entry_bytes(number);
        MicroEntry {
            hash: u64::from(hash) << 32,
            cd,
            name: stored_name(bytes).unwrap_or_default(),
            value: u64::from_le_bytes(exact(&bytes[..8])),
        }
    }

    /// All entries from a place on, ordered by hash and number: the order of cursors.
    pub fn iter_from(&self, hash: u64, cd: u32) -> impl Iterator<Item = MicroEntry<'_>> {
        self.index
            .range(((hash >> 32) as u32, cd)..)
            .map(|((hash, cd), number)| self.entry(*hash, *cd, *number))
    }

    /// All entries, ordered by hash and number.
    pub fn iter(&self) -> impl Iterator<Item = MicroEntry<'_>> {
        self.iter_from(0, 0)
    }

    fn find(&self, hash: u64, matches: impl Fn(&[u8]) -> bool) -> Option<((u32, u32), u16)> {
        let hash = (hash >> 32) as u32;
        self.index
            .range((hash, 0)..=(hash, u32::MAX))
            .find(|(_, number)| matches(stored_name(self.entry_bytes(**number)).unwrap_or(b"")))
            .map(|(key, number)| (*key, *number))
    }

    /// The entry of this name.
    pub fn lookup(&self, hash: u64, name: &[u8]) -> Option<MicroEntry<'_>> {
        self.lookup_with(hash, |stored| stored == name)
    }

    /// The first entry of this hash whose name matches: for ZAPs that normalize names.
    pub fn lookup_with(
        &self,
        hash: u64,
        matches: impl Fn(&[u8]) -> bool,
    ) -> Option<MicroEntry<'_>> {
        let ((hash, cd), number) = self.find(hash, matches)?;
        Some(self.entry(hash, cd, number))
    }

    /// Where in the block the entry of this name is, in bytes.
    pub fn place(&self, hash: u64, name: &[u8]) -> Option<std::ops::Range<usize>> {
        let (_, number) = self.find(hash, |stored| stored == name)?;
        let start = (usize::from(number) + 1) * ENTRY_BYTES;
        Some(start..start + ENTRY_BYTES)
    }

    /// Adds an entry; that there is none of this name is for the caller to know.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the name is empty or holds a zero byte.
    pub fn insert(&mut self, hash: u64, name: &[u8], value: u64) -> Result<MicroInsert> {
        super::check_name(name)?;
        if name.len() > Self::MAX_NAME_BYTES {
            return Ok(MicroInsert::NeedsFat);
        }
        let high = (hash >> 32) as u32;
        let mut cd = 0;
        let mut same_hash = 0;
        for ((_, used), _) in self.index.range((high, 0)..=(high, u32::MAX)) {
            same_hash += 1;
            if *used == cd {
                cd += 1;
            }
        }
        // As a fat ZAP all names of one hash must fit into one default leaf, at up to five chunks
        // each (`mze_canfit_fzap_leaf`, module/zfs/zap_micro.c).
        const CHUNKS_PER_ENTRY: usize = 5;
        const CHUNKS_PER_LEAF: usize = 638;
        if (same_hash + 1) * CHUNKS_PER_ENTRY >= CHUNKS_PER_LEAF {
            return Ok(MicroInsert::NeedsFat);
        }
        let capacity = self.capacity() as u16;
        let Some(number) = (self.next_free..capacity)
            .chain(0..self.next_free.min(capacity))
            .find(|number| self.entry_bytes(*number)[NAME_AT] == 0)
        else {
            return Ok(MicroInsert::Full);
        };
        let entry = self.entry_bytes_mut(number);
        entry.fill(0);
        entry[..8].copy_from_slice(&value.to_le_bytes());
        entry[8..12].copy_from_slice(&cd.to_le_bytes());
        entry[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
        self.index.insert((high, cd), number);
        self.next_free = if number + 1 == capacity {
            0
        } else {
            number + 1
        };
        Ok(MicroInsert::Inserted)
    }

    /// Replaces the value of an entry; false when there is none of this name.
    pub fn update(&mut self, hash: u64, name: &[u8], value: u64) -> bool {
        let Some((_, number)) = self.find(hash, |stored| stored == name) else {
            return false;
        };
        self.entry_bytes_mut(number)[..8].copy_from_slice(&value.to_le_bytes());
        true
    }

    /// Removes an entry and returns its value; `None` when there is none of this name.
    pub fn remove(&mut self, hash: u64, name: &[u8]) -> Option<u64> {
        let (key, number) = self.find(hash, |stored| stored == name)?;
        let entry = self.entry_bytes_mut(number);
        let value = u64::from_le_bytes(exact(&entry[..8]));
        entry.fill(0);
        self.index.remove(&key);
        Some(value)
    }

    /// Makes the block larger; the new entries are free. OpenZFS grows by 512 bytes at a time.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the size is smaller than now, or none a block can have.
    pub fn grow(&mut self, block_bytes: usize) -> Result<()> {
        let entries = (block_bytes / ENTRY_BYTES).saturating_sub(1);
        if block_bytes < self.block.len()
            || !block_bytes.is_multiple_of(512)
            || entries > usize::from(u16::MAX)
        {
            let found = block_bytes as u64;
            return Err(does_not_fit(
                MZAP,
                "block",
                found,
                "whole sectors up to 4 MiB",
            ));
        }
        self.next_free = self.capacity() as u16;
        // Exactly: it stays in memory as it is, with whatever room it has.
        self.block.reserve_exact(block_bytes - self.block.len());
        self.block.resize(block_bytes, 0);
        if usize::from(self.next_free) == self.capacity() {
            self.next_free = 0;
        }
        Ok(())
    }
}

fn stored_name(entry: &[u8; ENTRY_BYTES]) -> Option<&[u8]> {
    let name = &entry[NAME_AT..];
    let length = name.iter().position(|byte| *byte == 0)?;
    Some(&name[..length])
}

fn swap(block: &mut [u8]) {
    let (chunks, _) = block.as_chunks_mut::<ENTRY_BYTES>();
    for (number, chunk) in chunks.iter_mut().enumerate() {
        if number == 0 {
            for word in chunk.as_chunks_mut::<8>().0 {
                word.reverse();
            }
        } else {
            chunk[..8].reverse();
            chunk[8..12].reverse();
        }
    }
}
