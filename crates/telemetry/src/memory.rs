//! Who has how much of the process's memory, and what nobody accounts for.
//!
//! Figures are those of [`MemoryUses`], which each part keeps anyway. What the kernel counts as
//! resident is more: the allocator rounds sizes up, keeps what it may need again, and has pages of
//! which only a part is in use. That difference is told as what it is, unexplained.

use api::{MemoryUseReport, MemoryUser, ServerMemoryReply};
use device::MemoryUses;
use host::ResidentMemory;
use service::pools::Pools;

/// Adds the program itself to what its parts have.
pub fn with_program(mut uses: MemoryUses, resident: Option<ResidentMemory>) -> MemoryUses {
    let mapped_bytes = resident.map_or(0, |resident| resident.mapped_bytes);
    uses.add(device::MemoryUser::Program, mapped_bytes, None);
    uses
}

/// Bytes that are resident and nobody's.
pub fn unexplained_bytes(uses: &MemoryUses, resident: ResidentMemory) -> u64 {
    resident.total_bytes.saturating_sub(uses.total_bytes())
}

/// All of it, with what the kernel tells now. `uses` are those of the parts.
pub fn report(uses: MemoryUses, pools: &Pools) -> ServerMemoryReply {
    let resident = ResidentMemory::read();
    let uses = with_program(uses, resident);
    let told = uses.iter().map(|(user, has)| MemoryUseReport {
        user: named(user),
        bytes: has.bytes,
        bound_bytes: has.bound_bytes,
        counts_in_cache: user.counts_in_cache(),
    });
    ServerMemoryReply {
        resident_bytes: resident.map(|resident| resident.total_bytes),
        cache_limit_bytes: pools.cache().limit_bytes(),
        cache_limit_max_bytes: pools.cache_bytes(),
        unexplained_bytes: resident.map(|resident| unexplained_bytes(&uses, resident)),
        uses: told.collect(),
    }
}

/// By the name of the API.
fn named(user: device::MemoryUser) -> MemoryUser {
    use device::MemoryUser as Own;
    match user {
        Own::CacheBlocks => MemoryUser::CacheBlocks,
        Own::Objects => MemoryUser::Objects,
        Own::CacheDeviceIndexes => MemoryUser::CacheDeviceIndexes,
        Own::CacheTables => MemoryUser::CacheTables,
        Own::Dirty => MemoryUser::Dirty,
        Own::FreeSpace => MemoryUser::FreeSpace,
        Own::Datasets => MemoryUser::Datasets,
        Own::ScanQueues => MemoryUser::ScanQueues,
        Own::DedupChanges => MemoryUser::DedupChanges,
        Own::SpareBuffers => MemoryUser::SpareBuffers,
        Own::Iscsi => MemoryUser::Iscsi,
        Own::Nfs => MemoryUser::Nfs,
        Own::Program => MemoryUser::Program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_resident_and_nobodys_is_unexplained() {
        let mut uses = MemoryUses::default();
        uses.add(device::MemoryUser::CacheBlocks, 500, Some(1000));
        uses.add(device::MemoryUser::Dirty, 100, None);
        let resident = |total_bytes| ResidentMemory {
            total_bytes,
            mapped_bytes: 50,
        };
        let with = with_program(uses.clone(), Some(resident(1000)));
        assert_eq!(with.of(device::MemoryUser::Program), 50);
        assert_eq!(with.beside_cache_bytes(), 150);
        assert_eq!(unexplained_bytes(&with, resident(1000)), 350);
        // What is swapped out, or shared by several, is accounted for and not resident.
        assert_eq!(unexplained_bytes(&with, resident(600)), 0);
        assert_eq!(with_program(uses, None).total_bytes(), 600);
    }
}
