//! Dnodes (`dnode_phys_t`, include/sys/dnode.h): one object's head, 512 bytes or a multiple of it.
//!
//! # Layout (byte order of the dnode block)
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 1 | object type; zero is a free slot |
//! | 1 | 1 | log2 of an indirect block's size |
//! | 2 | 1 | levels; 1 is "pointers point to data" |
//! | 3 | 1 | block pointers, 1 to 3 |
//! | 4 | 1 | type of the bonus |
//! | 5, 6 | 2 | checksum, compression: zero is "inherit" |
//! | 7 | 1 | flags ([`DnodeFlags`]) |
//! | 8 | 2 | data block size in sectors |
//! | 10 | 2 | bonus length in bytes |
//! | 12 | 1 | slots after the first one |
//! | 13 | 3 | zero |
//! | 16 | 8 | number of the last data block |
//! | 24 | 8 | space used, in bytes (with the flag) or sectors |
//! | 32 | 32 | zero |
//! | 64 | 128 × n | block pointers |
//! | then | bonus length | bonus, in the byte order of its type |
//! | end − 128 | 128 | pointer to the spill block (with the flag) |

use crate::blkptr::{BLOCK_POINTER_BYTES, BlockPointer, SECTOR_SHIFT, read_pointer};
use crate::bytes::{Endian, Put, Reader};
use crate::error::{FormatError, Result, bad, does_not_fit};
use crate::kinds::{Checksum, Compression, ObjectType};

/// Size of one dnode slot in bytes (`DNODE_MIN_SIZE`).
pub const DNODE_SLOT_BYTES: usize = 512;
/// log2 of [`DNODE_SLOT_BYTES`] (`DNODE_SHIFT`).
pub const DNODE_SHIFT: u32 = 9;
/// Size of a block of dnodes in bytes (`DNODE_BLOCK_SIZE`).
pub const DNODE_BLOCK_BYTES: usize = 16 << 10;
/// Slots in a block of dnodes (`DNODES_PER_BLOCK`).
pub const DNODES_PER_BLOCK: u64 = 32;
/// Bytes before the block pointers (`DNODE_CORE_SIZE`).
pub const DNODE_CORE_BYTES: usize = 64;
/// Smallest indirect block, as log2 (`DN_MIN_INDBLKSHIFT`).
pub const MIN_INDIRECT_SHIFT: u8 = 12;
/// Largest indirect block, as log2 (`DN_MAX_INDBLKSHIFT`).
pub const MAX_INDIRECT_SHIFT: u8 = 17;
/// Most levels of a tree (`DN_MAX_LEVELS`).
pub const MAX_LEVELS: u8 = 12;
/// Most block pointers of a dnode (`DN_MAX_NBLKPTR`).
pub const MAX_DNODE_POINTERS: usize = 3;
/// Largest bonus of a one-slot dnode (`DN_OLD_MAX_BONUSLEN`).
pub const OLD_MAX_BONUS_BYTES: usize = 320;

const DNODE: &str = "dnode_phys_t";

/// Largest bonus of a dnode of this many slots with one block pointer (`DN_SLOTS_TO_BONUSLEN`).
pub const fn max_bonus_bytes(slots: u8) -> usize {
    let slots = if slots == 0 { 1 } else { slots as usize };
    slots * DNODE_SLOT_BYTES - DNODE_CORE_BYTES - BLOCK_POINTER_BYTES
}

/// Flags of a dnode (`DNODE_FLAG_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DnodeFlags(u8);

impl DnodeFlags {
    /// Space used is in bytes (`DNODE_FLAG_USED_BYTES`); else in sectors.
    pub const USED_BYTES: Self = Self(1);
    /// Counted in the users' and groups' space (`DNODE_FLAG_USERUSED_ACCOUNTED`).
    pub const USER_USED_ACCOUNTED: Self = Self(2);
    /// There is a spill block (`DNODE_FLAG_SPILL_BLKPTR`).
    pub const SPILL_POINTER: Self = Self(4);
    /// Counted in the users', groups' and projects' objects (`DNODE_FLAG_USEROBJUSED_ACCOUNTED`).
    pub const USER_OBJECTS_ACCOUNTED: Self = Self(8);

    /// From the stored bits; unknown bits are kept.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The stored bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// With the flags of `other` set.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// With the flags of `other` cleared.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// A dnode. Sizes are in bytes; the bonus keeps the byte order of the block that it came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DnodePhys {
    /// Type of the object; [`ObjectType::NONE`] is a free slot.
    pub object_type: ObjectType,
    /// log2 of the size of indirect blocks.
    pub indirect_block_shift: u8,
    /// Levels of the tree: 1 when the pointers point to data.
    pub levels: u8,
    /// Type of the bonus.
    pub bonus_type: ObjectType,
    /// Checksum for the object's blocks; [`Checksum::Inherit`] as the dataset says.
    pub checksum: Checksum,
    /// Compression for the object's blocks; [`Compression::Inherit`] as the dataset says.
    pub compression: Compression,
    /// Flags. [`DnodeFlags::SPILL_POINTER`] follows [`Self::spill`] when encoding.
    pub flags: DnodeFlags,
    /// Size of a data block in bytes: whole sectors.
    pub data_block_bytes: u32,
    /// Slots that this dnode takes after its first one.
    pub extra_slots: u8,
    /// Number of the last data block (`dn_maxblkid`).
    pub max_block_id: u64,
    /// Space used in bytes.
    pub used_bytes: u64,
    /// One to three pointers.
    pub pointers: Vec<BlockPointer>,
    /// The bonus.
    pub bonus: Vec<u8>,
    /// What is between the bonus and the spill pointer or the end of the dnode, unless it is zeros:
    /// where bonuses are encrypted, all of that room is (`DN_MAX_BONUS_LEN`,
    /// include/sys/dnode.h).
    pub bonus_tail: Vec<u8>,
    /// Pointer to the spill block.
    pub spill: Option<BlockPointer>,
    reserved: ([u8; 3], [u64; 4]),
}

impl Default for DnodePhys {
    fn default() -> Self {
        Self::free()
    }
}

impl DnodePhys {
    /// A free slot.
    pub fn free() -> Self {
        Self {
            object_type: ObjectType::NONE,
            indirect_block_shift: 0,
            levels: 0,
            bonus_type: ObjectType::NONE,
            checksum: Checksum::Inherit,
            compression: Compression::Inherit,
            flags: DnodeFlags::default(),
            data_block_bytes: 0,
            extra_slots: 0,
            max_block_id: 0,
            used_bytes: 0,
            pointers: Vec::new(),
            bonus: Vec::new(),
            bonus_tail: Vec::new(),
            spill: None,
            reserved: Default::default(),
        }
    }

    /// A new, empty object without bonus: one level, `pointers` holes.
    pub fn new(
        object_type: ObjectType,
        data_block_bytes: u32,
        indirect_block_shift: u8,
        pointers: usize,
    ) -> Self {
        Self {
            object_type,
            indirect_block_shift,
            levels: 1,
            flags: DnodeFlags::USED_BYTES,
            data_block_bytes,
            pointers: vec![BlockPointer::HOLE; pointers.clamp(1, MAX_DNODE_POINTERS)],
            ..Self::free()
        }
    }

    /// Whether the slot is free.
    pub fn is_free(&self) -> bool {
        self.object_type == ObjectType::NONE
    }

    /// Slots that the dnode takes.
    pub fn slots(&self) -> usize {
        usize::from(self.extra_slots) + 1
    }

    /// Size of the encoded dnode in bytes.
    pub fn encoded_bytes(&self) -> usize {
        self.slots() * DNODE_SLOT_BYTES
    }

    /// Room for the bonus with the pointers and spill pointer that there are.
    pub fn bonus_room_bytes(&self) -> usize {
        let taken = DNODE_CORE_BYTES
            + self.pointers.len() * BLOCK_POINTER_BYTES
            + if self.spill.is_some() {
                BLOCK_POINTER_BYTES
            } else {
                0
            };
        self.encoded_bytes().saturating_sub(taken)
    }

    /// Decodes the dnode at the start of `bytes`, which may go on beyond it. A free slot decodes to
    /// [`Self::free`], whatever else it holds.
    ///
    /// # Errors
    /// [`FormatError::TooShort`] or [`FormatError::BadField`].
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self> {
        let mut r = Reader::new(DNODE, bytes, endian);
        let object_type = ObjectType::from_code(r.u8()?);
        let indirect_block_shift = r.u8()?;
        let levels = r.u8()?;
        let pointer_count = r.u8()?;
        let bonus_type = ObjectType::from_code(r.u8()?);
        let checksum = Checksum::from_code(r.u8()?);
        let compression = Compression::from_code(r.u8()?);
        let flags = DnodeFlags(r.u8()?);
        let data_block_bytes = u32::from(r.u16()?) << SECTOR_SHIFT;
        let bonus_bytes = usize::from(r.u16()?);
        let extra_slots = r.u8()?;
        let pad2 = r.array()?;
        let max_block_id = r.u64()?;
        let used = r.u64()?;
        let pad3 = r.words()?;
        if object_type == ObjectType::NONE {
            return Ok(Self::free());
        }
        if levels == 0 || levels > MAX_LEVELS {
            return Err(bad(DNODE, "dn_nlevels", levels.into(), "1 to 12"));
        }
        if pointer_count == 0 || usize::from(pointer_count) > MAX_DNODE_POINTERS {
            return Err(bad(DNODE, "dn_nblkptr", pointer_count.into(), "1 to 3"));
        }
        if !(9..=24).contains(&indirect_block_shift) {
            return Err(bad(
                DNODE,
                "dn_indblkshift",
                indirect_block_shift.into(),
                "9 to 24",
            ));
        }
        if data_block_bytes == 0 {
            return Err(bad(DNODE, "dn_datablkszsec", 0, "at least one sector"));
        }
        let dnode_bytes = (usize::from(extra_slots) + 1) * DNODE_SLOT_BYTES;
        if dnode_bytes > DNODE_BLOCK_BYTES {
            return Err(bad(
                DNODE,
                "dn_extra_slots",
                extra_slots.into(),
                "at most 31",
            ));
        }
        if bytes.len() < dnode_bytes {
            return Err(FormatError::TooShort {
                structure: DNODE,
                needed_bytes: dnode_bytes as u64,
                found_bytes: bytes.len() as u64,
            });
        }
        let has_spill = flags.contains(DnodeFlags::SPILL_POINTER);
        let spill_at = dnode_bytes - if has_spill { BLOCK_POINTER_BYTES } else { 0 };
        let bonus_at = DNODE_CORE_BYTES + usize::from(pointer_count) * BLOCK_POINTER_BYTES;
        if bonus_at + bonus_bytes > spill_at {
            return Err(bad(
                DNODE,
                "dn_bonuslen",
                bonus_bytes as u64,
                "a bonus within the dnode",
            ));
        }
        let mut pointers = Vec::with_capacity(MAX_DNODE_POINTERS);
        for _ in 0..pointer_count {
            pointers.push(read_pointer(&mut r, endian)?);
        }
        let bonus = r.take(bonus_bytes)?.to_vec();
        let tail = &bytes[bonus_at + bonus_bytes..spill_at];
        let bonus_tail = match tail.iter().all(|byte| *byte == 0) {
            true => Vec::new(),
            false => tail.to_vec(),
        };
        let spill = if has_spill {
            Some(BlockPointer::decode_slice(&bytes[spill_at..], endian)?)
        } else {
            None
        };
        let used_bytes = if flags.contains(DnodeFlags::USED_BYTES) {
            used
        } else {
            used.checked_shl(SECTOR_SHIFT)
                .filter(|bytes| bytes >> SECTOR_SHIFT == used)
                .ok_or_else(|| bad(DNODE, "dn_used", used, "below 2^55 sectors"))?
        };
        Ok(Self {
            object_type,
            indirect_block_shift,
            levels,
            bonus_type,
            checksum,
            compression,
            flags,
            data_block_bytes,
            extra_slots,
            max_block_id,
            used_bytes,
            pointers,
            bonus,
            bonus_tail,
            spill,
            reserved: (pad2, pad3),
        })
    }

    /// The dnode's slots, little-endian (the bonus as it is).
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when sizes or counts are outside the format's limits.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if self.is_free() {
            return Ok(vec![0; DNODE_SLOT_BYTES]);
        }
        let block_sectors = self.data_block_bytes >> SECTOR_SHIFT;
        if !self.data_block_bytes.is_multiple_of(1 << SECTOR_SHIFT)
            || block_sectors == 0
            || block_sectors > u16::MAX.into()
        {
            let found = self.data_block_bytes.into();
            return Err(does_not_fit(
                DNODE,
                "dn_datablkszsec",
                found,
                "1 to 65535 sectors",
            ));
        }
        if self.pointers.is_empty() || self.pointers.len() > MAX_DNODE_POINTERS {
            let found = self.pointers.len() as u64;
            return Err(does_not_fit(DNODE, "dn_nblkptr", found, "1 to 3 pointers"));
        }
        if self.encoded_bytes() > DNODE_BLOCK_BYTES {
            let found = self.extra_slots.into();
            return Err(does_not_fit(DNODE, "dn_extra_slots", found, "at most 31"));
        }
        if self.bonus.len() + self.bonus_tail.len() > self.bonus_room_bytes() {
            let found = (self.bonus.len() + self.bonus_tail.len()) as u64;
            return Err(does_not_fit(
                DNODE,
                "dn_bonuslen",
                found,
                "the dnode's free tail",
            ));
        }
        let flags = if self.spill.is_some() {
            self.flags.with(DnodeFlags::SPILL_POINTER)
        } else {
            self.flags.without(DnodeFlags::SPILL_POINTER)
        };
        let used = if flags.contains(DnodeFlags::USED_BYTES) {
            self.used_bytes
        } else {
            self.used_bytes >> SECTOR_SHIFT
        };
        let mut out = Vec::with_capacity(self.encoded_bytes());
        out.extend_from_slice(&[
            self.object_type.code(),
            self.indirect_block_shift,
            self.levels,
            self.pointers.len() as u8,
            self.bonus_type.code(),
            self.checksum.code(),
            self.compression.code(),
            flags.bits(),
        ]);
        out.put_u16(block_sectors as u16);
        out.put_u16(self.bonus.len() as u16);
        out.push(self.extra_slots);
        out.extend_from_slice(&self.reserved.0);
        out.put_u64(self.max_block_id);
        out.put_u64(used);
        out.put_words(&self.reserved.1);
        for pointer in &self.pointers {
            out.extend_from_slice(&pointer.encode());
        }
        out.extend_from_slice(&self.bonus);
        out.extend_from_slice(&self.bonus_tail);
        out.resize(self.encoded_bytes(), 0);
        if let Some(spill) = &self.spill {
            let at = out.len() - BLOCK_POINTER_BYTES;
            out[at..].copy_from_slice(&spill.encode());
        }
        Ok(out)
    }
}
