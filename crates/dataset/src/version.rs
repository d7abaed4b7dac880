//! Versions of pools from before feature flags, and what of the datasets' structures came with
//! which (`SPA_VERSION_*`, include/sys/fs/zfs.h).
//!
//! A pool of a version is written with what that version has, and nothing newer, so that software
//! of its time reads it. Pools of version 5000 have everything here, and feature flags.

use std::sync::atomic::{AtomicU64, Ordering};

use format::ZPL_VERSION;

/// The first version that is written; those before are only read.
pub const OLDEST_WRITTEN: u64 = 11;

/// Snapshots have properties of their own (`SPA_VERSION_SNAP_PROPS`).
const SNAPSHOT_PROPERTIES: u64 = 12;
/// Directories tell what uses their space (`SPA_VERSION_USED_BREAKDOWN`).
const USED_BREAKDOWN: u64 = 13;
/// `aclinherit=passthrough-x` (`SPA_VERSION_PASSTHROUGH_X`).
const PASSTHROUGH_X: u64 = 14;
/// Space is counted by user and group (`SPA_VERSION_USERSPACE`).
const ACCOUNTS: u64 = 15;
/// Snapshots can be held (`SPA_VERSION_USERREFS`).
const HOLDS: u64 = 18;
/// Compression zle (`SPA_VERSION_ZLE_COMPRESSION`).
const ZLE: u64 = 20;
/// Dedup tables (`SPA_VERSION_DEDUP`).
const DEDUP: u64 = 21;
/// System attributes (`SPA_VERSION_SA`).
const SYSTEM_ATTRIBUTES: u64 = 24;
/// Deadlists are maps of lists, snapshots' blocks go to a list of the pool when they are destroyed,
/// and directories know their clones (`SPA_VERSION_DEADLISTS`, `SPA_VERSION_DIR_CLONES`).
pub(crate) const DEADLISTS: u64 = 26;
/// Snapshots are taken of filesystems that have a log (`SPA_VERSION_FAST_SNAP`).
const FAST_SNAPSHOTS: u64 = 27;
/// Feature flags (`SPA_VERSION_FEATURES`).
pub(crate) const FEATURES: u64 = 5000;

/// The version of an open pool. It rises in syncing context, with an upgrade, and never falls.
#[derive(Debug)]
pub(crate) struct PoolVersion(AtomicU64);

impl PoolVersion {
    pub(crate) fn new(version: u64) -> Self {
        Self(AtomicU64::new(version))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self, version: u64) {
        self.0.fetch_max(version, Ordering::AcqRel);
    }

    pub(crate) fn has_snapshot_properties(&self) -> bool {
        self.get() >= SNAPSHOT_PROPERTIES
    }

    pub(crate) fn has_used_breakdown(&self) -> bool {
        self.get() >= USED_BREAKDOWN
    }

    pub(crate) fn has_passthrough_x(&self) -> bool {
        self.get() >= PASSTHROUGH_X
    }

    /// Roots of object sets are longer with it.
    pub(crate) fn has_accounts(&self) -> bool {
        self.get() >= ACCOUNTS
    }

    pub(crate) fn has_holds(&self) -> bool {
        self.get() >= HOLDS
    }

    pub(crate) fn has_zle(&self) -> bool {
        self.get() >= ZLE
    }

    pub(crate) fn has_dedup_tables(&self) -> bool {
        self.get() >= DEDUP
    }

    /// Whether logs are written. Before, a snapshot must not have the head of one, and who took it
    /// suspended the log (`zil_suspend`): here what is to be durable waits for its transaction
    /// group.
    pub(crate) fn has_logs(&self) -> bool {
        self.get() >= FAST_SNAPSHOTS
    }

    pub(crate) fn has_system_attributes(&self) -> bool {
        self.get() >= SYSTEM_ATTRIBUTES
    }

    pub(crate) fn has_deadlist_maps(&self) -> bool {
        self.get() >= DEADLISTS
    }

    /// The newest version that a filesystem may have (`zfs_zpl_version_map`,
    /// module/zcommon/zfs_comutil.c).
    pub(crate) fn newest_filesystem(&self) -> u64 {
        match self.get() {
            SYSTEM_ATTRIBUTES.. => ZPL_VERSION,
            ACCOUNTS.. => 4,
            9.. => 3,
            _ => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PoolVersion;

    /// Goal: each version has what it had. Method: the first one with and the last one without.
    #[test]
    fn each_version_has_what_came_with_it() {
        type Has = fn(&PoolVersion) -> bool;
        let since: [(u64, Has); 10] = [
            (12, PoolVersion::has_snapshot_properties),
            (13, PoolVersion::has_used_breakdown),
            (14, PoolVersion::has_passthrough_x),
            (15, PoolVersion::has_accounts),
            (18, PoolVersion::has_holds),
            (20, PoolVersion::has_zle),
            (21, PoolVersion::has_dedup_tables),
            (24, PoolVersion::has_system_attributes),
            (26, PoolVersion::has_deadlist_maps),
            (27, PoolVersion::has_logs),
        ];
        for (first, has) in since {
            assert!(!has(&PoolVersion::new(first - 1)), "before {first}");
            for version in [first, 28, 5000] {
                assert!(has(&PoolVersion::new(version)), "{first} in {version}");
            }
        }
        let newest = |version| PoolVersion::new(version).newest_filesystem();
        let found = [8, 9, 14, 15, 23, 24, 28, 5000].map(newest);
        assert_eq!(found, [2, 3, 3, 4, 4, 5, 5, 5]);
    }

    #[test]
    fn a_version_never_falls() {
        let version = PoolVersion::new(25);
        version.raise(28);
        version.raise(26);
        assert_eq!(version.get(), 28);
    }
}
