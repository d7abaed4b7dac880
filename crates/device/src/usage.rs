//! Who has how much memory: a list to which each layer adds what it has.
//!
//! Nobody registers and nothing is counted twice over: whoever keeps much memory knows how much it
//! is, and says so when asked ([`MemoryUses::add`]). Parts of the same user (pools, tables) are
//! added up. Figures are what is accounted for, not what the allocator makes of it; the difference
//! to what the kernel tells of the process is what nobody explains.
//!
//! Memory has one owner here, though several may refer to it: a dirty block that waits for the
//! intent log as well is dirty data and nothing else.

use std::collections::BTreeMap;

/// Who has memory. Those that count in the cache's limit come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryUser {
    /// Blocks in the cache, of all pools, with a part of their bookkeeping.
    CacheBlocks,
    /// Objects and files in memory, and indirect blocks that object sets keep.
    Objects,
    /// Indexes of what cache devices hold.
    CacheDeviceIndexes,
    /// What the cache's tables and remembered keys take beyond what its blocks are counted with.
    CacheTables,
    /// Written and not on disk yet.
    Dirty,
    /// Ranges of free space, of the parts of vdevs that are allocated from.
    FreeSpace,
    /// Directories, datasets and snapshots that were looked at, and their lists of dead blocks.
    Datasets,
    /// Blocks that scrubs and resilvers have found and are about to read.
    ScanQueues,
    /// Changes of dedup tables: in the transaction group under way, and in the tables' logs.
    DedupChanges,
    /// Buffers of devices that are kept for reuse.
    SpareBuffers,
    /// What iSCSI's sessions have under way.
    Iscsi,
    /// What NFS's clients have under way.
    Nfs,
    /// The program itself, and files that are mapped.
    Program,
}

impl MemoryUser {
    /// Whether what it has counts in the limit of the cache, which then keeps so much less.
    pub const fn counts_in_cache(self) -> bool {
        matches!(
            self,
            Self::CacheBlocks | Self::Objects | Self::CacheDeviceIndexes
        )
    }
}

/// How much somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes now.
    pub bytes: u64,
    /// Bytes at most, where there is a bound.
    pub bound_bytes: Option<u64>,
}

/// Who has how much.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUses {
    by_user: BTreeMap<MemoryUser, MemoryUse>,
}

impl MemoryUses {
    /// Adds a part of what `user` has. Its bound is the sum of those of its parts, and none where
    /// one of them has none.
    pub fn add(&mut self, user: MemoryUser, bytes: u64, bound_bytes: Option<u64>) {
        let part = MemoryUse { bytes, bound_bytes };
        let add = |sum: &mut MemoryUse| {
            sum.bytes = sum.bytes.saturating_add(part.bytes);
            let bounds = sum.bound_bytes.zip(part.bound_bytes);
            sum.bound_bytes = bounds.map(|(one, other)| one.saturating_add(other));
        };
        self.by_user.entry(user).and_modify(add).or_insert(part);
    }

    /// Everybody who was added, those first that count in the cache's limit.
    pub fn iter(&self) -> impl Iterator<Item = (MemoryUser, MemoryUse)> + '_ {
        self.by_user.iter().map(|(user, has)| (*user, *has))
    }

    /// What one of them has; nothing where it was not added.
    pub fn of(&self, user: MemoryUser) -> u64 {
        self.by_user.get(&user).map_or(0, |has| has.bytes)
    }

    /// Bytes of all.
    pub fn total_bytes(&self) -> u64 {
        self.sum(|_| true)
    }

    /// Bytes of all that do not count in the cache's limit.
    pub fn beside_cache_bytes(&self) -> u64 {
        self.sum(|user| !user.counts_in_cache())
    }

    fn sum(&self, is_wanted: impl Fn(MemoryUser) -> bool) -> u64 {
        let wanted = self.iter().filter(|(user, _)| is_wanted(*user));
        wanted.fold(0, |sum: u64, (_, has)| sum.saturating_add(has.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_user_are_added_up_and_have_a_bound_together_where_each_has_one() {
        let mut uses = MemoryUses::default();
        uses.add(MemoryUser::Dirty, 10, Some(100));
        uses.add(MemoryUser::Dirty, 20, Some(200));
        uses.add(MemoryUser::Objects, 5, Some(6));
        uses.add(MemoryUser::Datasets, 1, Some(1));
        uses.add(MemoryUser::Datasets, 2, None);
        uses.add(MemoryUser::Datasets, 4, Some(1));
        let told = |bytes, bound_bytes| MemoryUse { bytes, bound_bytes };
        let all: Vec<_> = uses.iter().collect();
        assert_eq!(
            all,
            [
                (MemoryUser::Objects, told(5, Some(6))),
                (MemoryUser::Dirty, told(30, Some(300))),
                (MemoryUser::Datasets, told(7, None)),
            ]
        );
        assert_eq!(uses.total_bytes(), 42);
        assert_eq!(uses.beside_cache_bytes(), 37);
        assert_eq!(uses.of(MemoryUser::Dirty), 30);
        assert_eq!(uses.of(MemoryUser::Nfs), 0);
    }
}
