//! The order in which a traversal meets the blocks of an object set (`zbookmark_compare`,
//! `zbookmark_subtree_completed` and `zbookmark_subtree_tbd`, module/zfs/zio.c).
//!
//! A block comes after all that is before it in its object's data, and objects follow their
//! numbers. A block of dnodes counts as the first object in it: what leads to an object comes
//! before the object's own blocks. Since a block that leads to others covers a range, two questions
//! are asked about one and a place to go on from: whether all that it covers is before the place,
//! and whether all of it is after.

use std::cmp::Ordering;

use format::{Bookmark, ObjectId};

/// log2 of a block pointer's size (`SPA_BLKPTRSHIFT`).
const POINTER_SHIFT: u32 = 7;
/// Dnodes in a block of a meta-dnode (`DNODES_PER_BLOCK`).
const DNODES_PER_BLOCK: u128 = 32;
/// What blocks that lead to objects have their level raised by (`COMPARE_META_LEVEL`).
const META_LEVEL: i64 = 0x8000_0000;

/// What the order needs to know of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Size of its data blocks in sectors.
    pub(super) block_sectors: u32,
    /// log2 of the size of its indirect blocks.
    pub(super) indirect_shift: u8,
}

/// (object, first block of level 0, level)
fn canonical(shape: Shape, bookmark: &Bookmark, add: u128) -> (u128, u128, i64) {
    let level = u32::try_from(bookmark.level).unwrap_or(0);
    let pointers_shift = u32::from(shape.indirect_shift).saturating_sub(POINTER_SHIFT);
    let number = u128::from(bookmark.block_id) + add;
    let shift = pointers_shift.saturating_mul(level);
    // Beyond any block that there can be, all are alike.
    let first = match number.checked_shl(shift) {
        Some(first) if first >> shift == number => first,
        _ => u128::MAX,
    };
    if bookmark.object.is_zero() {
        let object = first.saturating_mul(u128::from(shape.block_sectors));
        (object, 0, bookmark.level.saturating_add(META_LEVEL))
    } else {
        (u128::from(bookmark.object.get()), first, bookmark.level)
    }
}

fn compare(a: (u128, u128, i64), b: (u128, u128, i64)) -> Ordering {
    (a.0, a.1, std::cmp::Reverse(a.2)).cmp(&(b.0, b.1, std::cmp::Reverse(b.2)))
}

/// A place is always of level 0, of an object or of the meta-dnode.
fn place(at: &Bookmark) -> (u128, u128, i64) {
    let shape = Shape {
        block_sectors: DNODES_PER_BLOCK as u32,
        indirect_shift: 0,
    };
    canonical(shape, at, 0)
}

/// Whether all that a block covers comes before `at`.
pub(super) fn is_before(shape: Shape, block: &Bookmark, at: &Bookmark) -> bool {
    compare(canonical(shape, block, 1), place(at)).is_le()
}

/// Whether a block, and so all that it covers, is `at` or comes after it.
pub(super) fn is_from(shape: Shape, block: &Bookmark, at: &Bookmark) -> bool {
    compare(canonical(shape, block, 0), place(at)).is_ge()
}

/// Objects of space accounting: no traversal ends or goes on in them.
pub(super) fn is_accounting(object: ObjectId) -> bool {
    (object.get() as i64) < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::ObjsetId;

    const FILE: Shape = Shape {
        block_sectors: 256,
        indirect_shift: 17,
    };
    const META: Shape = Shape {
        block_sectors: 32,
        indirect_shift: 17,
    };

    fn at(object: u64, level: i64, block: u64) -> Bookmark {
        Bookmark::new(ObjsetId::new(21), ObjectId::new(object), level, block)
    }

    /// Goal: what covers a place is neither before it nor after it; the rest is one or the other.
    #[test]
    fn blocks_that_cover_a_place_are_entered() {
        let place = at(40, 0, 5000);
        // Level 1 of the file has 1024 blocks each.
        for (block, before, from) in [
            (at(40, 1, 3), true, false),
            (at(40, 1, 4), false, false),
            (at(40, 1, 5), false, true),
            (at(40, 2, 0), false, false),
            (at(40, 0, 4999), true, false),
            (at(40, 0, 5000), false, true),
            (at(39, 3, 0), true, false),
            (at(41, 3, 0), false, true),
            (at(40, 0, Bookmark::SPILL_BLOCK_ID), false, true),
        ] {
            assert_eq!(
                (
                    is_before(FILE, &block, &place),
                    is_from(FILE, &block, &place)
                ),
                (before, from),
                "{block}"
            );
        }
        // Objects 32 to 63 are in the second block of dnodes.
        for (block, before, from) in [
            (at(0, 0, 0), true, false),
            (at(0, 0, 1), false, false),
            (at(0, 0, 2), false, true),
            (at(0, 1, 0), false, false),
            (at(0, 1, 1), false, true),
        ] {
            assert_eq!(
                (
                    is_before(META, &block, &place),
                    is_from(META, &block, &place)
                ),
                (before, from),
                "{block}"
            );
        }
        // To go on at a block of dnodes is to go on at its first object.
        let dnodes = at(0, 0, 2);
        assert!(is_before(META, &at(0, 0, 1), &dnodes));
        assert!(is_from(META, &at(0, 0, 2), &dnodes));
        assert!(is_before(FILE, &at(63, 0, 9), &dnodes));
        assert!(is_from(FILE, &at(64, 1, 0), &dnodes));
        // Numbers from a damaged pool overflow nothing.
        assert!(is_from(FILE, &at(40, 5, u64::MAX), &place));
    }
}
