//! Space maps (include/sys/space_map.h): logs of what was allocated and freed in a range of a vdev.
//!
//! # Entries: 64-bit words in the byte order of the block
//!
//! | kind | bits | holds |
//! |---|---|---|
//! | debug (top bits 10) | 60..62 | allocate 0, free 1 |
//! | | 50..60 | sync pass |
//! | | 0..50 | txg; 0 in a word that only fills up a block |
//! | one word (top bit 0) | 16..63 | offset in units, from the map's start |
//! | | 15 | allocate 0, free 1 |
//! | | 0..15 | units, less one |
//! | two words (top bits 11) | 24..60 | units, less one |
//! | | 0..24 | vdev |
//! | second word | 63 | allocate 0, free 1 |
//! | | 0..63 | offset in units, from the map's start |
//!
//! A two-word entry does not cross a block's end: a debug word of zeros fills the last word then.
//! Metaslabs' maps have one-word entries as long as they fit; the log space maps, which speak of
//! all vdevs at once, have two-word entries only.
//!
//! # Head (`space_map_phys_t`, in the object's bonus): words
//!
//! Object (unused), length in bytes, bytes allocated (signed), then with the feature
//! `spacemap_histogram` five zeros and 32 counts of free ranges by size: the count at `i` is of
//! ranges of `1 << (i + shift)` bytes up to twice that.

use crate::blkptr::SECTOR_SHIFT;
use crate::bytes::{Endian, Put, Reader, bits, with_bits};
use crate::error::{FormatError, Result, bad, does_not_fit};
use crate::ids::{Txg, VdevId};

const SPACE_MAP: &str = "space_map_t";
/// Buckets of the histogram (`SPACE_MAP_HISTOGRAM_SIZE`).
pub const SPACE_MAP_BUCKETS: usize = 32;
const RUN_MAX: u64 = 1 << 15;
const OFFSET_LIMIT: u64 = 1 << 47;
const RUN_MAX_V2: u64 = 1 << 36;
const OFFSET_LIMIT_V2: u64 = 1 << 63;
const DEBUG: u64 = 2 << 62;

/// Head of a space map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpaceMapPhys {
    /// Length of the log in bytes.
    pub length_bytes: u64,
    /// Bytes allocated less bytes freed.
    pub allocated_bytes: i64,
    /// Free ranges by size; `None` without the feature `spacemap_histogram`.
    pub histogram: Option<Box<[u64; SPACE_MAP_BUCKETS]>>,
    object: u64,
}

impl SpaceMapPhys {
    /// Size in bytes with the histogram.
    pub const BYTES: usize = 320;
    /// Size in bytes without it (`SPACE_MAP_SIZE_V0`).
    pub const OLD_BYTES: usize = 24;

    /// An empty map.
    pub fn new(with_histogram: bool) -> Self {
        Self {
            histogram: with_histogram.then(|| Box::new([0; SPACE_MAP_BUCKETS])),
            ..Self::default()
        }
    }

    /// Decodes a bonus, whose length tells whether there is a histogram.
    ///
    /// # Errors
    /// [`FormatError`] when it is too short, or the length is not of whole words.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self> {
        let mut r = Reader::new("space_map_phys_t", bonus, endian);
        let [object, length_bytes, allocated] = r.words()?;
        if !length_bytes.is_multiple_of(8) {
            return Err(bad(
                "space_map_phys_t",
                "smp_length",
                length_bytes,
                "whole words",
            ));
        }
        let histogram = if bonus.len() >= Self::BYTES {
            r.skip(40)?;
            Some(Box::new(r.words()?))
        } else {
            None
        };
        Ok(Self {
            length_bytes,
            allocated_bytes: allocated as i64,
            histogram,
            object,
        })
    }

    /// The bonus, little-endian: 320 bytes with a histogram, else 24.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_words(&[self.object, self.length_bytes, self.allocated_bytes as u64]);
        if let Some(histogram) = &self.histogram {
            out.put_zeros(40);
            out.put_words(histogram.as_slice());
        }
        out
    }

    /// Which bucket counts free ranges of this size, for a map of this shift; sizes beyond the last
    /// bucket are counted there.
    pub const fn bucket(size_bytes: u64, shift: u32) -> usize {
        if size_bytes == 0 {
            return 0;
        }
        let log = 63 - size_bytes.leading_zeros();
        let bucket = log.saturating_sub(shift) as usize;
        if bucket < SPACE_MAP_BUCKETS {
            bucket
        } else {
            SPACE_MAP_BUCKETS - 1
        }
    }
}

/// Whether a range was allocated or freed (`maptype_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpaceMapKind {
    /// Allocated (`SM_ALLOC`).
    Allocate,
    /// Freed (`SM_FREE`).
    Free,
}

impl SpaceMapKind {
    const fn from_bit(bit: u64) -> Self {
        if bit == 0 { Self::Allocate } else { Self::Free }
    }

    const fn bit(self) -> u64 {
        match self {
            Self::Allocate => 0,
            Self::Free => 1,
        }
    }
}

/// An entry of a space map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceMapEntry {
    /// What was done.
    pub kind: SpaceMapKind,
    /// Top-level vdev, in two-word entries. In a metaslab's map its own vdev goes without saying;
    /// there a two-word entry has the value 2^24 cut to zero.
    pub vdev: Option<VdevId>,
    /// Where the range starts.
    pub offset_bytes: u64,
    /// Its size.
    pub run_bytes: u64,
    /// Txg of the last debug entry before this one; zero when there was none.
    pub txg: Txg,
    /// Sync pass of that debug entry.
    pub sync_pass: u16,
}

/// The range that a space map speaks of, and its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceMapRange {
    /// Start in bytes.
    pub start_bytes: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// log2 of the unit in bytes: the vdev's ashift, or 9 in log space maps.
    pub shift: u32,
}

impl SpaceMapRange {
    /// That of log space maps: all there is, in sectors.
    pub const LOG: Self = Self {
        start_bytes: 0,
        size_bytes: u64::MAX - 1,
        shift: SECTOR_SHIFT,
    };
}

/// Reads a space map block by block, in order; it remembers the last debug entry.
#[derive(Debug, Clone)]
pub struct SpaceMapReader {
    range: SpaceMapRange,
    txg: Txg,
    sync_pass: u16,
}

impl SpaceMapReader {
    /// Before the first block.
    pub const fn new(range: SpaceMapRange) -> Self {
        Self {
            range,
            txg: Txg::ZERO,
            sync_pass: 0,
        }
    }

    /// Reads a block (of the last one, only up to the map's length), giving each entry to `visit`,
    /// which may stop with an error of its own kind.
    ///
    /// # Errors
    /// [`FormatError`] when an entry reaches beyond the map's range or is cut off.
    pub fn read_block<E: From<FormatError>>(
        &mut self,
        block: &[u8],
        endian: Endian,
        mut visit: impl FnMut(SpaceMapEntry) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut words = endian.words(block);
        while let Some(word) = words.next() {
            let (kind, vdev, offset, run);
            match word >> 62 {
                2 => {
                    let txg = bits(word, 0, 50);
                    if txg != 0 {
                        self.txg = txg.into();
                        self.sync_pass = bits(word, 50, 10) as u16;
                    }
                    continue;
                }
                3 => {
                    let Some(second) = words.next() else {
                        let cut = bad(SPACE_MAP, "entry", word, "a second word in the same block");
                        return Err(cut.into());
                    };
                    run = bits(word, 24, 36) + 1;
                    vdev = Some(VdevId::new(bits(word, 0, 24) as u32));
                    kind = SpaceMapKind::from_bit(bits(second, 63, 1));
                    offset = bits(second, 0, 63);
                }
                _ => {
                    run = bits(word, 0, 15) + 1;
                    vdev = None;
                    kind = SpaceMapKind::from_bit(bits(word, 15, 1));
                    offset = bits(word, 16, 47);
                }
            }
            let (offset_bytes, run_bytes) = self.place(offset, run)?;
            visit(SpaceMapEntry {
                kind,
                vdev,
                offset_bytes,
                run_bytes,
                txg: self.txg,
                sync_pass: self.sync_pass,
            })?;
        }
        Ok(())
    }

    /// The last entries of a block, at most `max` of them, and the bytes of the block that are
    /// before them: for taking a map apart from its end (`space_map_incremental_destroy`,
    /// module/zfs/space_map.c).
    ///
    /// # Errors
    /// As [`Self::read_block`].
    pub fn last_entries(
        range: SpaceMapRange,
        block: &[u8],
        endian: Endian,
        max: usize,
    ) -> Result<(Vec<SpaceMapEntry>, usize)> {
        let mut found: Vec<(usize, SpaceMapEntry)> = Vec::new();
        let mut reader = Self::new(range);
        let words: Vec<u64> = endian.words(block).collect();
        let mut at = 0;
        while at < words.len() {
            let length = if words[at] >> 62 == 3 { 2 } else { 1 };
            let end = (at + length).min(words.len());
            reader.read_block(&block[at * 8..end * 8], endian, |entry| {
                found.push((at * 8, entry));
                Ok::<_, FormatError>(())
            })?;
            at = end;
        }
        let taken = found.split_off(found.len().saturating_sub(max));
        let left = match taken.first() {
            Some((first, _)) if !found.is_empty() => *first,
            // Only debug entries are before these.
            _ => 0,
        };
        Ok((taken.into_iter().map(|(_, entry)| entry).collect(), left))
    }

    fn place(&self, offset: u64, run: u64) -> Result<(u64, u64)> {
        let wide = |units: u64| u128::from(units) << self.range.shift.min(63);
        let end = wide(offset) + wide(run);
        if end > u128::from(self.range.size_bytes)
            || end + u128::from(self.range.start_bytes) > u128::from(u64::MAX)
        {
            return Err(bad(
                SPACE_MAP,
                "offset",
                offset,
                "a range within the space map's own",
            ));
        }
        Ok((
            wide(offset) as u64 + self.range.start_bytes,
            wide(run) as u64,
        ))
    }
}

/// Appends to a space map: collects the bytes that go to its end.
#[derive(Debug, Clone)]
pub struct SpaceMapWriter {
    range: SpaceMapRange,
    two_words: bool,
    block_words: u64,
    at_words: u64,
    out: Vec<u8>,
}

impl SpaceMapWriter {
    /// At the end of a map that has `length_bytes` so far, in blocks of `block_bytes`. `two_words`
    /// says whether the feature `spacemap_v2` is active.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when blocks or length are not of whole words.
    pub fn new(
        range: SpaceMapRange,
        block_bytes: u64,
        length_bytes: u64,
        two_words: bool,
    ) -> Result<Self> {
        if block_bytes < 16 || !block_bytes.is_multiple_of(8) {
            return Err(does_not_fit(
                SPACE_MAP,
                "block",
                block_bytes,
                "at least two whole words",
            ));
        }
        if !length_bytes.is_multiple_of(8) {
            return Err(does_not_fit(
                SPACE_MAP,
                "smp_length",
                length_bytes,
                "whole words",
            ));
        }
        Ok(Self {
            range,
            two_words,
            block_words: block_bytes / 8,
            at_words: length_bytes / 8,
            out: Vec::new(),
        })
    }

    fn word(&mut self, word: u64) {
        self.out.put_u64(word);
        self.at_words += 1;
    }

    /// Says what the entries that follow are (`space_map_write_intro_debug`): goes before each
    /// run of entries of a kind in a txg.
    pub fn debug(&mut self, kind: SpaceMapKind, txg: Txg, sync_pass: u16) {
        let word = with_bits(DEBUG, 60, 2, kind.bit());
        let word = with_bits(word, 50, 10, sync_pass.into());
        self.word(with_bits(word, 0, 50, txg.get()));
    }

    /// Adds a range, in as many entries as it takes (`space_map_write_seg`). `vdev` is for log
    /// space maps only.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the range is not of whole units, not within the map's, or
    /// needs two words without the feature.
    pub fn range(
        &mut self,
        kind: SpaceMapKind,
        vdev: Option<VdevId>,
        offset_bytes: u64,
        run_bytes: u64,
    ) -> Result<()> {
        let unit_mask = (1u64 << self.range.shift.min(63)) - 1;
        let start = offset_bytes.checked_sub(self.range.start_bytes);
        let start = start
            .filter(|start| {
                start & unit_mask == 0
                    && start
                        .checked_add(run_bytes)
                        .is_some_and(|end| end <= self.range.size_bytes)
            })
            .ok_or_else(|| {
                does_not_fit(
                    SPACE_MAP,
                    "offset",
                    offset_bytes,
                    "whole units within the map",
                )
            })?;
        if run_bytes & unit_mask != 0 {
            return Err(does_not_fit(SPACE_MAP, "run", run_bytes, "whole units"));
        }
        let mut start = start >> self.range.shift;
        let mut left = run_bytes >> self.range.shift;
        let wants_two = vdev.is_some() || left > RUN_MAX || start >= OFFSET_LIMIT;
        if wants_two && self.two_words {
            // "No vdev" is 2^24, of which 24 bits are stored.
            let vdev = u64::from(vdev.unwrap_or_default().get());
            if vdev >= 1 << 24 || start + left > OFFSET_LIMIT_V2 {
                return Err(does_not_fit(
                    SPACE_MAP,
                    "vdev",
                    vdev,
                    "24 bits, and 63 of offset",
                ));
            }
            while left > 0 {
                if self.at_words % self.block_words == self.block_words - 1 {
                    self.word(DEBUG);
                }
                let run = left.min(RUN_MAX_V2);
                self.word(with_bits(3 << 62, 24, 36, run - 1) | vdev);
                self.word(with_bits(start, 63, 1, kind.bit()));
                start += run;
                left -= run;
            }
            return Ok(());
        }
        if vdev.is_some() || start + left > OFFSET_LIMIT {
            let expected = "an offset of 47 bits without the feature spacemap_v2";
            return Err(does_not_fit(SPACE_MAP, "offset", offset_bytes, expected));
        }
        while left > 0 {
            let run = left.min(RUN_MAX);
            let word = with_bits(run - 1, 15, 1, kind.bit());
            self.word(with_bits(word, 16, 47, start));
            start += run;
            left -= run;
        }
        Ok(())
    }

    /// Length of the map with what was added.
    pub const fn length_bytes(&self) -> u64 {
        self.at_words * 8
    }

    /// The bytes to write at the map's old end.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }
}
