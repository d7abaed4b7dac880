//! Places on disk (`dva_t`, include/sys/spa.h): two words within a block pointer or a mapping. The
//! layout is in the head of `blkptr.rs`.

use std::fmt;

use crate::blkptr::{SECTOR_BYTES, SECTOR_SHIFT};
use crate::bytes::{bits, with_bits};
use crate::error::{Result, does_not_fit};
use crate::ids::VdevId;

/// A place on a top-level vdev (`dva_t`): where one copy of a block is.
///
/// A value of this type always fits its on-disk fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dva {
    vdev: VdevId,
    offset_bytes: u64,
    asize_bytes: u64,
    gang: bool,
}

impl Dva {
    /// Largest allocated size that fits (24 bits of sectors).
    pub const MAX_ASIZE_BYTES: u64 = ((1 << 24) - 1) << SECTOR_SHIFT;
    /// Largest offset whose 512-byte sector number and byte number both fit.
    pub const MAX_OFFSET_BYTES: u64 = !(SECTOR_BYTES - 1);

    /// A place for `asize_bytes` at `offset_bytes` of `vdev`; both are whole 512-byte sectors.
    ///
    /// # Errors
    /// [`crate::FormatError::DoesNotFit`] when a number does not fit its field.
    pub fn new(vdev: VdevId, offset_bytes: u64, asize_bytes: u64, gang: bool) -> Result<Self> {
        if vdev.get() >= 1 << 24 {
            return Err(does_not_fit("dva_t", "vdev", vdev.get().into(), "24 bits"));
        }
        if !offset_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(does_not_fit(
                "dva_t",
                "offset",
                offset_bytes,
                "whole 512-byte sectors",
            ));
        }
        if !asize_bytes.is_multiple_of(SECTOR_BYTES) || asize_bytes > Self::MAX_ASIZE_BYTES {
            return Err(does_not_fit(
                "dva_t",
                "asize",
                asize_bytes,
                "whole 512-byte sectors below 8 GiB",
            ));
        }
        Ok(Self {
            vdev,
            offset_bytes,
            asize_bytes,
            gang,
        })
    }

    /// Decodes the two words; `None` when both are zero ("no copy") or the offset is impossible.
    pub const fn from_words(words: [u64; 2]) -> Option<Self> {
        if words[0] == 0 && words[1] == 0 {
            return None;
        }
        let sector = bits(words[1], 0, 63);
        if sector > u64::MAX >> SECTOR_SHIFT {
            return None;
        }
        Some(Self {
            vdev: VdevId::new(bits(words[0], 32, 24) as u32),
            offset_bytes: sector << SECTOR_SHIFT,
            asize_bytes: bits(words[0], 0, 24) << SECTOR_SHIFT,
            gang: bits(words[1], 63, 1) != 0,
        })
    }

    /// The two words as stored.
    pub const fn to_words(self) -> [u64; 2] {
        [
            with_bits(
                self.asize_bytes >> SECTOR_SHIFT,
                32,
                24,
                self.vdev.get() as u64,
            ),
            with_bits(self.offset_bytes >> SECTOR_SHIFT, 63, 1, self.gang as u64),
        ]
    }

    /// Top-level vdev.
    pub const fn vdev(self) -> VdevId {
        self.vdev
    }

    /// Offset on the vdev in bytes. It does not count the front labels (4 MiB).
    pub const fn offset_bytes(self) -> u64 {
        self.offset_bytes
    }

    /// Allocated size in bytes, parity included. For a gang DVA it covers the whole tree, while
    /// only a gang header is stored at this place.
    pub const fn asize_bytes(self) -> u64 {
        self.asize_bytes
    }

    /// Whether a gang header is stored here in place of data.
    pub const fn is_gang(self) -> bool {
        self.gang
    }

    /// The same place with another gang bit.
    pub const fn with_gang(self, gang: bool) -> Self {
        Self { gang, ..self }
    }
}

impl fmt::Display for Dva {
    /// As zdb prints it: vdev, then offset and allocated size in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<{}:{:x}:{:x}>",
            self.vdev, self.offset_bytes, self.asize_bytes
        )
    }
}
