//! Blocks and bonuses that a machine of the other byte order wrote (`dmu_ot_byteswap`,
//! module/zfs/dmu.c): turned around when they are read, by the object's type.
//!
//! System attributes (type SA) are left as they are: only their layouts say what to swap.

use bytes::Bytes;
use format::{
    ByteswapKind, DNODE_SLOT_BYTES, DnodePhys, Endian, FormatError, ObjectType, ZapBlockKind,
    ZapKeyKind, ZapLeaf,
};

fn swap_units(bytes: &mut [u8], unit: usize) {
    for word in bytes.chunks_exact_mut(unit) {
        word.reverse();
    }
}

/// Swaps what can be swapped without knowing more than the type: bonuses, and blocks of numbers.
pub(crate) fn swap_words(object_type: ObjectType, bytes: &mut [u8]) {
    match object_type.byteswap() {
        ByteswapKind::Uint16 => swap_units(bytes, 2),
        ByteswapKind::Uint32 => swap_units(bytes, 4),
        ByteswapKind::Uint64 => swap_units(bytes, 8),
        ByteswapKind::Znode => swap_znode(bytes),
        ByteswapKind::OldAcl => swap_old_aces(bytes),
        ByteswapKind::Acl => swap_aces(bytes),
        _ => {}
    }
}

/// A bonus of this type, as a machine of byte order `endian` has it, in our byte order.
pub fn bonus_to_native(bonus_type: ObjectType, bytes: &mut [u8], endian: Endian) {
    if endian == Endian::Big {
        swap_words(bonus_type, bytes);
    }
}

/// A level-0 block of an object of this type in our byte order.
///
/// # Errors
/// [`FormatError`] of a ZAP or dnodes that are damaged.
pub fn to_native(
    object_type: ObjectType,
    data: Bytes,
    endian: Endian,
) -> Result<Bytes, FormatError> {
    if endian == Endian::Little || object_type.byteswap() == ByteswapKind::Uint8 {
        return Ok(data);
    }
    let mut bytes = data.to_vec();
    match object_type.byteswap() {
        ByteswapKind::Zap => return swap_zap(bytes).map(Bytes::from),
        ByteswapKind::Dnode => return swap_dnodes(&bytes).map(Bytes::from),
        _ => swap_words(object_type, &mut bytes),
    }
    Ok(Bytes::from(bytes))
}

fn swap_zap(mut block: Vec<u8>) -> Result<Vec<u8>, FormatError> {
    match ZapBlockKind::of(&block, Endian::Big)? {
        ZapBlockKind::Micro => {
            for (number, entry) in block.chunks_exact_mut(64).enumerate() {
                if number == 0 {
                    swap_units(entry, 8);
                } else {
                    entry[..8].reverse();
                    entry[8..12].reverse();
                }
            }
            Ok(block)
        }
        ZapBlockKind::Leaf => ZapLeaf::decode(block.clone(), Endian::Big, ZapKeyKind::Name)
            .or_else(|_| ZapLeaf::decode(block, Endian::Big, ZapKeyKind::Words))
            .map(ZapLeaf::into_bytes),
        _ => {
            swap_units(&mut block, 8);
            Ok(block)
        }
    }
}

/// A block of dnodes; the bonuses are swapped by their types.
pub(crate) fn swap_dnodes(block: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut out = vec![0; block.len()];
    let mut at = 0;
    while at + DNODE_SLOT_BYTES <= block.len() {
        let mut dnode = DnodePhys::decode(&block[at..], Endian::Big)?;
        swap_words(dnode.bonus_type, &mut dnode.bonus);
        let bytes = dnode.encode()?;
        out[at..at + bytes.len()].copy_from_slice(&bytes);
        at += bytes.len();
    }
    Ok(out)
}

/// `znode_phys_t`: words up to the ACL, which is an object number, counts and old ACEs
/// (`zfs_znode_byteswap`, module/zfs/zfs_byteswap.c).
fn swap_znode(bytes: &mut [u8]) {
    const WORDS_BYTES: usize = 0xb0;
    const ACES_AT: usize = WORDS_BYTES + 16;
    let words_end = WORDS_BYTES.min(bytes.len());
    swap_units(&mut bytes[..words_end], 8);
    if bytes.len() < ACES_AT {
        return;
    }
    bytes[WORDS_BYTES..WORDS_BYTES + 8].reverse();
    bytes[WORDS_BYTES + 8..WORDS_BYTES + 12].reverse();
    bytes[WORDS_BYTES + 12..WORDS_BYTES + 14].reverse();
    let version = u16::from_le_bytes([bytes[WORDS_BYTES + 12], bytes[WORDS_BYTES + 13]]);
    bytes[WORDS_BYTES + 14..WORDS_BYTES + 16].reverse();
    let end = bytes.len().min(ACES_AT + 6 * 12);
    if version == 0 {
        swap_old_aces(&mut bytes[ACES_AT..end]);
    } else {
        swap_aces(&mut bytes[ACES_AT..end]);
    }
}

/// Old ACEs: who (4 bytes), mask (4), flags (2), type (2).
fn swap_old_aces(bytes: &mut [u8]) {
    for ace in bytes.chunks_exact_mut(12) {
        ace[..4].reverse();
        ace[4..8].reverse();
        ace[8..10].reverse();
        ace[10..12].reverse();
    }
}

/// ACEs: type (2), flags (2), mask (4), then who (8) unless the flags say owner, group or
/// everyone, then two more guids for object ACEs (`zfs_ace_byteswap`, module/zfs/zfs_byteswap.c).
fn swap_aces(bytes: &mut [u8]) {
    let mut at = 0;
    while at + 8 <= bytes.len() {
        bytes[at..at + 2].reverse();
        bytes[at + 2..at + 4].reverse();
        bytes[at + 4..at + 8].reverse();
        let kind = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let flags = u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]);
        // ACE_OWNER, ACE_GROUP | ACE_IDENTIFIER_GROUP, ACE_EVERYONE.
        let abstract_entry = matches!(flags & 0x7040, 0x1000 | 0x2040 | 0x4000);
        let object_entry = (5..=8).contains(&kind);
        let size = match (object_entry, abstract_entry) {
            (true, _) => 48,
            (false, true) => 8,
            (false, false) => 16,
        };
        if size > 8 && at + 16 <= bytes.len() {
            bytes[at + 8..at + 16].reverse();
        }
        at += size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_turned_around_by_type() {
        let data = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 1, 2]);
        let word = |kind| to_native(kind, data.clone(), Endian::Big).expect("swaps");
        assert_eq!(
            &word(ObjectType::OBJECT_ARRAY)[..],
            [2, 1, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(word(ObjectType::PLAIN_FILE_CONTENTS), data);
        assert_eq!(
            to_native(ObjectType::OBJECT_ARRAY, data.clone(), Endian::Little).expect("as it is"),
            data
        );
    }

    #[test]
    fn a_znode_is_swapped_field_by_field() {
        let mut bytes = vec![0u8; 320];
        bytes[128..136].copy_from_slice(&501u64.to_be_bytes());
        bytes[0xb0 + 8..0xb0 + 12].copy_from_slice(&3u32.to_be_bytes());
        swap_words(ObjectType::ZNODE, &mut bytes);
        assert_eq!(bytes[128..136], 501u64.to_le_bytes());
        assert_eq!(bytes[0xb0 + 8..0xb0 + 12], 3u32.to_le_bytes());
    }
}
