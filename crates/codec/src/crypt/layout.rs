//! Which parts of dnode blocks and intent log blocks are encrypted, and what is authenticated of
//! the rest (`zio_crypt_init_uios_dnode`, `zio_crypt_init_uios_zil`;
//! module/os/linux/zfs/zio_crypt.c).

use std::ops::Range;

use format::{
    BLOCK_POINTER_BYTES, BlockPointer, DNODE_CORE_BYTES, DNODE_SLOT_BYTES, DnodeFlags, Endian,
    LogCloneBody, LogHeader, LogKind, LogWriteBody, ObjectType, ZilLink,
};

use super::CryptError;

/// A part of a block. Encrypted parts follow each other in the cipher's stream, the others in what
/// is authenticated.
pub(super) enum Part {
    /// Encrypted.
    Secret(Range<usize>),
    /// Authenticated as it is.
    Clear(Range<usize>),
    /// Authenticated in place of what is in the block.
    Instead(Vec<u8>),
}

/// Offset and length of `dn_used`, which raw sends do not keep.
const USED: Range<usize> = 24..32;
/// Offset of `dn_flags`.
const FLAGS: usize = 7;

/// Fields of a dnode in its block.
pub(super) struct DnodeFields<'a> {
    bytes: &'a [u8],
    /// Slots behind the first.
    pub extra_slots: usize,
    pointers: usize,
    has_spill: bool,
}

impl<'a> DnodeFields<'a> {
    /// `bytes` starts with the dnode; what is behind it does not matter.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let core = bytes.first_chunk::<DNODE_CORE_BYTES>()?;
        let fields = DnodeFields {
            bytes,
            extra_slots: usize::from(core[12]),
            pointers: usize::from(core[3]),
            has_spill: DnodeFlags::from_bits(core[FLAGS]).contains(DnodeFlags::SPILL_POINTER),
        };
        let fits = bytes.len() >= fields.length() && fields.bonus_start() <= fields.bonus_end();
        fits.then_some(fields)
    }

    pub fn object_type(&self) -> ObjectType {
        ObjectType::from_code(self.bytes[0])
    }

    fn length(&self) -> usize {
        (self.extra_slots + 1) * DNODE_SLOT_BYTES
    }

    fn bonus_start(&self) -> usize {
        DNODE_CORE_BYTES + self.pointers * BLOCK_POINTER_BYTES
    }

    fn bonus_end(&self) -> usize {
        let spill = if self.has_spill {
            BLOCK_POINTER_BYTES
        } else {
            0
        };
        self.length() - spill
    }

    fn has_secret_bonus(&self) -> bool {
        self.object_type() != ObjectType::NONE
            && ObjectType::from_code(self.bytes[4]).is_encrypted()
            && self.bytes[10..12] != [0, 0]
    }

    /// The core without what a raw send does not keep, its words in the order of the block, or
    /// little-endian if that is asked for.
    pub fn portable_core(&self, swap: bool) -> Vec<u8> {
        let mut core = self.bytes[..DNODE_CORE_BYTES].to_vec();
        core[FLAGS] &= DnodeFlags::SPILL_POINTER.bits();
        core[USED].fill(0);
        if swap {
            core[8..10].reverse();
            core[10..12].reverse();
            core[16..24].reverse();
        }
        core
    }

    /// The block pointers, that of the spill block last.
    pub fn block_pointers(&self, endian: Endian) -> impl Iterator<Item = BlockPointer> {
        let plain = &self.bytes[DNODE_CORE_BYTES..self.bonus_start()];
        let spill = if self.has_spill {
            &self.bytes[self.bonus_end()..self.length()]
        } else {
            &[]
        };
        BlockPointer::decode_all(plain, endian).chain(BlockPointer::decode_all(spill, endian))
    }
}

/// What is authenticated of a pointer (`blkptr_auth_buf_t`): portable properties (8 bytes,
/// little-endian), MAC (16), and with version 1 zeros (8).
pub(super) fn pointer_identity(pointer: &BlockPointer, version: u64) -> Vec<u8> {
    /// Bits of `blk_prop`: dedup, kind of checksum.
    const LOCAL: u64 = 1 << 62 | 0xff << 40;
    /// Physical size.
    const PSIZE: u64 = 0xffff << 16;
    /// Byte order, compression.
    const STORED: u64 = 1 << 63 | 0x7f << 32;
    let prop = pointer.prop();
    // The size that stands for "none" is one sector, which is stored as zero.
    let portable = match version {
        0 => prop & !(LOCAL | PSIZE),
        _ if pointer.is_hole() => 0,
        _ if pointer.level() > 0 => prop & !(LOCAL | PSIZE | STORED),
        _ => prop & !LOCAL,
    };
    let mut out = Vec::with_capacity(32);
    out.extend_from_slice(&Endian::Little.u64_bytes(portable));
    out.extend_from_slice(&pointer.mac());
    if version != 0 {
        out.extend_from_slice(&[0; 8]);
    }
    out
}

/// The parts of a block of dnodes.
pub(super) fn dnode_parts(
    block: &[u8],
    endian: Endian,
    version: u64,
) -> Result<Vec<Part>, CryptError> {
    let bad = CryptError::Layout {
        what: "block of dnodes",
        length_bytes: block.len(),
    };
    if !block.len().is_multiple_of(DNODE_SLOT_BYTES) {
        return Err(bad);
    }
    let mut parts = Vec::new();
    let mut at = 0;
    while at < block.len() {
        let dnode = DnodeFields::new(&block[at..]).ok_or(bad)?;
        parts.push(Part::Instead(dnode.portable_core(false)));
        for pointer in dnode.block_pointers(endian) {
            parts.push(Part::Instead(pointer_identity(&pointer, version)));
        }
        let bonus = at + dnode.bonus_start()..at + dnode.bonus_end();
        parts.push(if dnode.has_secret_bonus() {
            Part::Secret(bonus)
        } else {
            Part::Clear(bonus)
        });
        at += dnode.length();
    }
    Ok(parts)
}

/// The parts of an intent log block (with the chain's link first, as [`format::Checksum::Zilog2`]
/// has it).
pub(super) fn log_parts(block: &[u8], endian: Endian) -> Result<Vec<Part>, CryptError> {
    let bad = CryptError::Layout {
        what: "intent log block",
        length_bytes: block.len(),
    };
    let word = |at: usize| {
        let raw = block.get(at..)?.first_chunk::<8>()?;
        Some(endian.u64(*raw))
    };
    let used = word(ZilLink::ECK_OFFSET - 8)
        .and_then(|used| usize::try_from(used).ok())
        .filter(|used| (ZilLink::BYTES..=block.len()).contains(used))
        .ok_or(bad)?;
    let mut parts = vec![Part::Clear(0..ZilLink::ECK_OFFSET)];
    let mut at = ZilLink::BYTES;
    while at < used {
        let header = LogHeader::decode(&block[at..used], endian).map_err(|_| bad)?;
        let end = at + header.length_bytes;
        let body = at + LogHeader::BYTES;
        parts.push(Part::Clear(at..body));
        // OpenZFS compares the kind with the flag of names without regard to case, which neither a
        // write nor a clone has.
        let kind = (!header.case_insensitive).then_some(header.kind);
        if kind == Some(LogKind::Write) {
            let pointer = body + LogWriteBody::POINTER..body + LogWriteBody::BYTES;
            if pointer.end > end {
                return Err(bad);
            }
            parts.push(Part::Secret(body..pointer.start));
            let data = pointer.end..end;
            parts.push(Part::Clear(pointer));
            parts.push(Part::Secret(data));
        } else if kind == Some(LogKind::CloneRange) {
            let pointers = body + LogCloneBody::COUNT;
            if pointers > end {
                return Err(bad);
            }
            parts.push(Part::Secret(body..pointers));
            parts.push(Part::Clear(pointers..end));
        } else {
            parts.push(Part::Secret(body..end));
        }
        at = end;
    }
    Ok(parts)
}
