//! Cloned blocks: which blocks more than one file may point to, and what a txg does to their references.
//!
//! A table per top-level vdev (crate `pool`, `clones`) counts the references of a block beyond the first. It
//! is too large for memory, so what is here is one 16-bit count per range of the vdev ([`Clones::load`]): how many
//! entries the table has there. A data block that is freed where the count is zero is free; any other is kept until the
//! sync loop has asked the table ([`Clones::take`]).
//!
//! # Order within a txg
//! A clone is announced while its txg is open ([`Clones::announce`]), before anything could free the block it shares;
//! its reference is added when the pointer is written, in syncing context ([`Clones::add`]), so one that
//! never came to be written costs nothing. The sync loop applies the references added before it applies the
//! frees: the order in which the datasets were written does not matter.
//!
//! Locks: `counts`, `txgs`, each for a map operation. Nothing here is durable: a crash leaves the table of the last
//! synced txg, and pointers to match.
//!
//! Source: module/zfs/brt.c (`brt_maybe_exists`, `brt_pending_apply`, `brt_entry_decref`), zio.c (`zio_brt_free`).

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use format::{BlockPointer, Txg, VdevId};
use parking_lot::{Mutex, RwLock};

/// What a table knows a block by: where its first copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CloneKey {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Offset in bytes.
    pub offset_bytes: u64,
}

impl CloneKey {
    /// The key of a block that may be cloned: one of data, that has a place.
    pub fn of(block: &BlockPointer) -> Option<Self> {
        if block.is_hole() || block.level() > 0 || block.object_type().is_metadata() {
            return None;
        }
        let dva = block.dva(0)?;
        Some(CloneKey {
            vdev: dva.vdev(),
            offset_bytes: dva.offset_bytes(),
        })
    }
}

/// What a txg did.
#[derive(Debug, Default)]
pub struct CloneChanges {
    /// Blocks that one more pointer leads to, as often as there are such pointers.
    pub added: Vec<BlockPointer>,
    /// Blocks that one pointer less leads to.
    pub freed: Vec<BlockPointer>,
}

impl CloneChanges {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.freed.is_empty()
    }
}

/// Entries of a vdev's table per range of the vdev.
#[derive(Debug)]
struct Ranges {
    range_bytes: u64,
    counts: Vec<u16>,
}

impl Ranges {
    fn index(&self, offset_bytes: u64) -> usize {
        usize::try_from(offset_bytes / self.range_bytes).unwrap_or(usize::MAX)
    }
}

#[derive(Debug, Default)]
struct OfTxg {
    announced: HashSet<CloneKey>,
    changes: CloneChanges,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Clones {
    counts: RwLock<BTreeMap<VdevId, Ranges>>,
    txgs: Mutex<BTreeMap<Txg, OfTxg>>,
    /// Whether the two above may hold anything: pools without clones pay for this look only.
    in_use: AtomicBool,
}

impl Clones {
    /// Sets the counts of a vdev's table, at import and when it gets one.
    pub fn load(&self, vdev: VdevId, range_bytes: u64, counts: Vec<u16>) {
        let range_bytes = range_bytes.max(1);
        self.counts.write().insert(
            vdev,
            Ranges {
                range_bytes,
                counts,
            },
        );
        self.in_use.store(true, Ordering::Release);
    }

    /// Forgets a vdev's table, which has no entries left.
    pub fn forget(&self, vdev: VdevId) {
        self.counts.write().remove(&vdev);
    }

    /// How many entries the table has in the range of this block.
    pub fn entries_near(&self, key: CloneKey) -> u16 {
        let counts = self.counts.read();
        counts.get(&key.vdev).map_or(0, |ranges| {
            let count = ranges.counts.get(ranges.index(key.offset_bytes));
            count.copied().unwrap_or(0)
        })
    }

    /// Counts one entry more (`true`) or less in the range of this block. The vdev has `ranges` ranges now; it may
    /// have grown. Returns the range's number, or `None` when the count would leave its bounds or the block is
    /// outside.
    pub fn count(&self, key: CloneKey, more: bool, ranges: usize) -> Option<usize> {
        let mut counts = self.counts.write();
        let of_vdev = counts.get_mut(&key.vdev)?;
        let index = of_vdev.index(key.offset_bytes);
        if index >= of_vdev.counts.len() && index < ranges {
            of_vdev.counts.resize(ranges, 0);
        }
        let count = of_vdev.counts.get_mut(index)?;
        *count = if more {
            count.checked_add(1)?
        } else {
            count.checked_sub(1)?
        };
        Some(index)
    }

    /// How many ranges a vdev's table has.
    pub fn range_count(&self, vdev: VdevId) -> usize {
        let counts = self.counts.read();
        counts.get(&vdev).map_or(0, |ranges| ranges.counts.len())
    }

    /// The counts of these ranges as they are stored, little-endian; shorter at the end.
    pub fn stored_counts(&self, vdev: VdevId, ranges: std::ops::Range<usize>) -> Vec<u8> {
        let counts = self.counts.read();
        let Some(of_vdev) = counts.get(&vdev) else {
            return Vec::new();
        };
        let end = ranges.end.min(of_vdev.counts.len());
        of_vdev.counts[ranges.start.min(end)..end]
            .iter()
            .flat_map(|count| count.to_le_bytes())
            .collect()
    }

    /// A block is going to be cloned in `txg`, which the caller holds open: from now on nobody frees it without
    /// asking. Say so before the pointer is put anywhere, while the file it comes from cannot change.
    pub fn announce(&self, txg: Txg, block: &BlockPointer) {
        let Some(key) = CloneKey::of(block) else {
            return;
        };
        let mut txgs = self.txgs.lock();
        txgs.entry(txg).or_default().announced.insert(key);
        self.in_use.store(true, Ordering::Release);
    }

    /// One more pointer to this block is written in `txg`, in syncing context.
    pub fn add(&self, txg: Txg, block: &BlockPointer) {
        let Some(key) = CloneKey::of(block) else {
            return;
        };
        let mut txgs = self.txgs.lock();
        let of_txg = txgs.entry(txg).or_default();
        of_txg.announced.insert(key);
        of_txg.changes.added.push(*block);
        self.in_use.store(true, Ordering::Release);
    }

    /// Keeps a block that is freed in `txg` if others may point to it. `false`: nobody does, its space is free.
    pub fn keep(&self, txg: Txg, block: &BlockPointer) -> bool {
        if !self.in_use.load(Ordering::Acquire) {
            return false;
        }
        let Some(key) = CloneKey::of(block) else {
            return false;
        };
        let is_near = self.entries_near(key) > 0;
        let mut txgs = self.txgs.lock();
        if !is_near
            && !txgs
                .get(&txg)
                .is_some_and(|of_txg| of_txg.announced.contains(&key))
        {
            return false;
        }
        txgs.entry(txg).or_default().changes.freed.push(*block);
        true
    }

    /// What was done in `txg` since the last call; in syncing context.
    pub fn take(&self, txg: Txg) -> CloneChanges {
        if !self.in_use.load(Ordering::Acquire) {
            return CloneChanges::default();
        }
        let mut txgs = self.txgs.lock();
        txgs.get_mut(&txg)
            .map(|of_txg| std::mem::take(&mut of_txg.changes))
            .unwrap_or_default()
    }

    /// `txg` is on disk.
    pub fn sync_done(&self, txg: Txg) {
        if !self.in_use.load(Ordering::Acquire) {
            return;
        }
        let mut txgs = self.txgs.lock();
        if let Some(left) = txgs.remove(&txg)
            && !left.changes.is_empty()
        {
            tracing::error!(%txg, ?left, "references of cloned blocks were changed too late; their space is lost until the pool is checked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::{Checksum, Compression, Dva, Endian, ObjectType, RegularPointer};

    const TXG: Txg = Txg::new(7);

    fn block(object_type: ObjectType, level: u8, offset_bytes: u64) -> BlockPointer {
        let dva = Dva::new(VdevId::new(0), offset_bytes, 4096, false).expect("a place");
        BlockPointer::regular(&RegularPointer {
            dvas: [Some(dva), None, None],
            lsize_bytes: 4096,
            psize_bytes: 4096,
            compression: Compression::Off,
            checksum_kind: Checksum::Fletcher4,
            object_type,
            level,
            dedup: false,
            uses_crypt: false,
            rewritten: false,
            endian: Endian::Little,
            fill: 1,
            logical_birth: Txg::new(5),
            physical_birth: Txg::new(5),
            checksum: [0; 4],
            crypt: None,
        })
        .expect("a pointer")
    }

    fn data(offset_bytes: u64) -> BlockPointer {
        block(ObjectType::PLAIN_FILE_CONTENTS, 0, offset_bytes)
    }

    #[test]
    fn only_data_where_the_table_has_entries_is_kept() {
        let clones = Clones::default();
        assert!(!clones.keep(TXG, &data(0)));
        clones.load(VdevId::new(0), 1 << 20, vec![0, 3]);
        assert!(!clones.keep(TXG, &data(0)));
        assert!(clones.keep(TXG, &data(1 << 20)));
        assert!(!clones.keep(TXG, &data(2 << 20)), "beyond the table");
        let indirect = block(ObjectType::PLAIN_FILE_CONTENTS, 1, 1 << 20);
        assert!(!clones.keep(TXG, &indirect));
        assert!(!clones.keep(TXG, &block(ObjectType::DNODE, 0, 1 << 20)));
        let changes = clones.take(TXG);
        assert_eq!(changes.freed, [data(1 << 20)]);
        assert!(clones.take(TXG).is_empty());
    }

    #[test]
    fn what_is_announced_is_kept_in_its_txg_only() {
        let clones = Clones::default();
        clones.announce(TXG, &data(4096));
        assert!(clones.take(TXG).is_empty(), "nothing was written");
        assert!(clones.keep(TXG, &data(4096)));
        assert!(!clones.keep(TXG.next(), &data(4096)));
        clones.add(TXG, &data(4096));
        let changes = clones.take(TXG);
        assert_eq!((changes.added.len(), changes.freed.len()), (1, 1));
        clones.sync_done(TXG);
        assert!(!clones.keep(TXG, &data(4096)));
    }

    #[test]
    fn counts_stay_in_bounds_and_grow_with_the_vdev() {
        let clones = Clones::default();
        let vdev = VdevId::new(0);
        clones.load(vdev, 1 << 20, vec![0, u16::MAX]);
        let key = |offset_bytes| CloneKey { vdev, offset_bytes };
        assert_eq!(clones.count(key(0), false, 2), None);
        assert_eq!(clones.count(key(1 << 20), true, 2), None);
        assert_eq!(clones.count(key(0), true, 2), Some(0));
        assert_eq!(clones.count(key(3 << 20), true, 3), None, "outside");
        assert_eq!(clones.count(key(3 << 20), true, 5), Some(3));
        assert_eq!(clones.range_count(vdev), 5);
        assert_eq!(clones.stored_counts(vdev, 3..9), [1, 0, 0, 0]);
        clones.forget(vdev);
        assert_eq!(clones.entries_near(key(0)), 0);
    }
}
