//! Feature flags as the engine uses them: names, which ones we support, and the check at import.
//!
//! Refcounts and their storage are in `dataset::features`; here is what `zpool` shows and what an
//! import decides. Table order is that of `zpool get all` (`spa_feature_t`,
//! include/zfeature_common.h).

use dataset::Features;
use format::{Feature, FeatureInfo};

use crate::{PoolError, VdevClass, VdevLayout, VdevSpec};

/// New dedup tables have flat entries and logs; refcount: such tables.
pub const FAST_DEDUP: &str = "com.klarasystems:fast_dedup";
/// The root vdev has a ZAP too.
pub const VDEV_ZAPS_V2: &str = "com.klarasystems:vdev_zaps_v2";
/// There are special or dedup vdevs; refcount: how many.
pub const ALLOCATION_CLASSES: &str = "org.zfsonlinux:allocation_classes";
/// There are dRAID vdevs; refcount: how many.
pub const DRAID: &str = "org.openzfs:draid";
/// Error logs are per dataset.
pub const HEAD_ERRLOG: &str = "com.delphix:head_errlog";

/// There is a checkpoint, or something left of one.
pub const ZPOOL_CHECKPOINT: &str = "com.delphix:zpool_checkpoint";

/// Blocks may be shared by several files; refcount: tables of such blocks.
pub const BLOCK_CLONING: &str = "com.fudosecurity:block_cloning";
/// Gang headers may be longer than 512 bytes.
pub const DYNAMIC_GANG_HEADER: &str = "com.klarasystems:dynamic_gang_header";
/// Those tables count in an order of bytes that is the same everywhere; refcount: as
/// [`BLOCK_CLONING`].
pub const BLOCK_CLONING_ENDIAN: &str = "com.truenas:block_cloning_endian";
/// What is said of a pool whose tables of cloned blocks are of the other byte order.
pub const FOREIGN_CLONES: &str = "block_cloning (its tables were made by a big-endian system)";

/// RAID-Z vdevs are or were made wider; refcount: how often.
pub const RAIDZ_EXPANSION: &str = "org.openzfs:raidz_expansion";

/// What is said of a pool that counts space with parity (`spa_deflate`, module/zfs/spa.c).
pub const RAW_SPACE: &str =
    "space counted with parity (the pool was made by version 1 or 2, on RAID-Z)";

/// What is said of a pool with a scan of the form from before version 25 (`DMU_POOL_SCAN`,
/// include/sys/dmu.h).
pub const OLD_SCAN: &str = "a scrub or resilver that old software began (let it end there, or \
     import the pool with OpenZFS once)";

/// Datasets are encrypted.
const ENCRYPTION: &str = "com.datto:encryption";
/// Bookmarks may be of encrypted datasets.
const BOOKMARK_V2: &str = "com.datto:bookmark_v2";

/// Snapshots and bookmarks of encrypted datasets lack what raw streams compare
/// (`ZPOOL_ERRATA_ZOL_8308_ENCRYPTION`, include/sys/fs/zfs.h).
pub const ERRATA_ENCRYPTION: u64 = 4;

/// The number of what is known to be wrong with a pool that has these features
/// (`spa_ld_check_features`, module/zfs/spa.c), given the one in its configuration.
pub fn errata(features: &Features, stored: u64) -> u64 {
    let lacks_bookmarks = features.is_enabled(ENCRYPTION) && !features.is_enabled(BOOKMARK_V2);
    match (stored, lacks_bookmarks) {
        (0 | ERRATA_ENCRYPTION, true) => ERRATA_ENCRYPTION,
        (0 | ERRATA_ENCRYPTION, false) => 0,
        (other, _) => other,
    }
}

/// The features of OpenZFS 2.4 in the order of `zpool get all`; what is missing cannot be had.
const TABLE: &[Feature] = &[
    Feature::AsyncDestroy,
    Feature::EmptyBpobj,
    Feature::Lz4Compress,
    // Only dump volumes of illumos ever use it, and their blocks read like any other.
    Feature::MultiVdevCrashDump,
    Feature::SpacemapHistogram,
    Feature::EnabledTxg,
    Feature::HoleBirth,
    Feature::ExtensibleDataset,
    Feature::EmbeddedData,
    Feature::Bookmarks,
    Feature::FilesystemLimits,
    Feature::LargeBlocks,
    Feature::LargeDnode,
    Feature::Sha512,
    Feature::Skein,
    Feature::EdonR,
    Feature::UserObjectAccounting,
    Feature::Encryption,
    Feature::ProjectQuota,
    Feature::DeviceRemoval,
    Feature::ObsoleteCounts,
    Feature::PoolCheckpoint,
    Feature::SpacemapV2,
    Feature::AllocationClasses,
    Feature::ResilverDefer,
    Feature::BookmarkV2,
    Feature::RedactionBookmarks,
    Feature::RedactedDatasets,
    Feature::BookmarkWritten,
    Feature::LogSpacemap,
    // We keep no such lists: a clone that has one loses it when it changes.
    Feature::Livelist,
    Feature::DeviceRebuild,
    Feature::ZstdCompress,
    Feature::Draid,
    Feature::ZilSaXattr,
    Feature::HeadErrlog,
    Feature::Blake3,
    Feature::BlockCloning,
    Feature::VdevZapsV2,
    Feature::RedactionListSpill,
    Feature::RaidzExpansion,
    Feature::FastDedup,
    Feature::LongName,
    Feature::LargeMicrozap,
    Feature::DynamicGangHeader,
    Feature::BlockCloningEndian,
    Feature::PhysicalRewrite,
];

fn find(guid: &str) -> Option<&'static FeatureInfo> {
    supported().find(|info| info.guid == guid)
}

fn supported() -> impl Iterator<Item = &'static FeatureInfo> {
    TABLE.iter().map(|feature| feature.info())
}

/// Guid of the feature with this short name, if new pools may have it.
pub fn guid_to_enable(name: &str) -> Result<&'static str, PoolError> {
    let bad = |why: &str| PoolError::BadFeature {
        feature: name.to_owned(),
        why: why.to_owned(),
    };
    supported()
        .find(|info| info.name == name || info.guid == name)
        .map(|info| info.guid)
        .ok_or_else(|| match Feature::from_name(name) {
            None => bad("there is no such feature"),
            Some(_) => bad("this release does not support it"),
        })
}

/// Refuses vdevs for which a feature would be needed that is not enabled.
pub fn check_classes(
    vdevs: &[VdevSpec],
    is_enabled: impl Fn(&str) -> bool,
) -> Result<(), PoolError> {
    let needs = |vdev: &VdevSpec| matches!(vdev.class, VdevClass::Special | VdevClass::Dedup);
    if vdevs.iter().any(needs) && !is_enabled(ALLOCATION_CLASSES) {
        return Err(PoolError::BadVdevs {
            why: "special and dedup devices need feature@allocation_classes, which is disabled"
                .into(),
        });
    }
    let is_draid = |vdev: &VdevSpec| matches!(vdev.layout, VdevLayout::Draid { .. });
    if vdevs.iter().any(is_draid) && !is_enabled(DRAID) {
        return Err(PoolError::BadVdevs {
            why: "draid needs feature@draid, which is disabled".into(),
        });
    }
    Ok(())
}

/// Refuses vdevs that came with a later version than the pool's (`SPA_VERSION_RAIDZ3`,
/// include/sys/fs/zfs.h).
///
/// # Errors
/// [`PoolError::BadVdevs`].
pub fn check_parity(vdevs: &[VdevSpec], version: u64) -> Result<(), PoolError> {
    let is_triple = |vdev: &VdevSpec| matches!(vdev.layout, VdevLayout::Raidz { parity: 3.., .. });
    if version < 17 && vdevs.iter().any(is_triple) {
        return Err(PoolError::BadVdevs {
            why: format!("raidz3 needs a pool of version 17, and this one is of {version}"),
        });
    }
    Ok(())
}

/// Guids of the features that a new pool gets: those of 2.3, so that it goes to 2.3 and 2.4 alike.
pub fn defaults() -> Vec<String> {
    supported()
        .filter(|info| info.in_2_3)
        .map(|info| info.guid.to_owned())
        .collect()
}

/// Whether a pool is asked to have the feature of this name where it says nothing of features
/// itself: those that new pools get.
pub fn is_default_feature(name: &str) -> bool {
    supported().any(|info| info.name == name && info.in_2_3)
}

/// Whether an upgrade of a pool leaves the feature of this name alone, and only who names it gets
/// it (`ZFEATURE_FLAG_NO_UPGRADE`).
pub fn is_left_out_of_upgrades(name: &str) -> bool {
    supported().any(|info| info.name == name && info.no_upgrade)
}

/// State of one feature flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeatureState {
    /// The pool knows nothing of it.
    Disabled,
    /// It may be used.
    Enabled,
    /// It is used.
    Active,
}

impl FeatureState {
    /// The word that `zpool get feature@...` prints.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Enabled => "enabled",
            Self::Active => "active",
        }
    }
}

/// One feature flag of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureStatus {
    /// Name on disk: `org.illumos:lz4_compress`.
    pub guid: String,
    /// Name in properties: `lz4_compress`.
    pub name: String,
    /// State.
    pub state: FeatureState,
    /// Reference count as stored.
    pub refcount: u64,
    /// Whether this release supports it.
    pub supported: bool,
    /// Whether a release without it may import the pool read-only.
    pub read_only_compatible: bool,
}

/// A feature that pools of this release may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupportedFeature {
    /// Its short name.
    pub name: &'static str,
    /// Whether releases without it can read a pool in which it is active.
    pub read_only_compatible: bool,
    /// Whether `zpool upgrade` leaves it out.
    pub no_upgrade: bool,
}

/// Every feature that pools of this release may have, in the order of `zpool get all`.
pub fn supported_features() -> Vec<SupportedFeature> {
    supported()
        .map(|info| SupportedFeature {
            name: info.name,
            read_only_compatible: info.read_only_compatible,
            no_upgrade: info.no_upgrade,
        })
        .collect()
}

/// Which of these active features (guid, refcount, needed to read) keep a pool from being read,
/// and which only from being written.
pub fn blocked(features: &[(String, u64, bool)]) -> (Vec<String>, Vec<String>) {
    let mut unreadable = Vec::new();
    let mut unwriteable = Vec::new();
    for (guid, refcount, for_read) in features {
        if *refcount == 0 {
            continue;
        }
        match find(guid) {
            Some(_) => {}
            None if *for_read => unreadable.push(short(guid)),
            None => unwriteable.push(short(guid)),
        }
    }
    (unreadable, unwriteable)
}

/// Decides whether a pool with these features (guid, refcount, needed to read) can be imported.
pub fn check(
    pool: &str,
    features: &[(String, u64, bool)],
    read_only: bool,
) -> Result<(), PoolError> {
    let (unreadable, unwriteable) = blocked(features);
    if !unreadable.is_empty() {
        return Err(PoolError::UnsupportedFeatures {
            pool: pool.to_owned(),
            features: unreadable,
        });
    }
    if !read_only && !unwriteable.is_empty() {
        return Err(PoolError::UnsupportedForWrite {
            pool: pool.to_owned(),
            features: unwriteable,
        });
    }
    Ok(())
}

fn short(guid: &str) -> String {
    Feature::from_guid(guid).map_or_else(
        || guid.to_owned(),
        |feature| format!("{} ({guid})", feature.info().name),
    )
}

/// All features for `zpool get`, with unknown ones that are in the pool at the end.
pub fn status(features: &Features) -> Vec<FeatureStatus> {
    let state = |refcount: Option<u64>| match refcount {
        None => FeatureState::Disabled,
        Some(0) => FeatureState::Enabled,
        Some(_) => FeatureState::Active,
    };
    let mut out: Vec<FeatureStatus> = supported()
        .map(|info| {
            let refcount = features.refcount(info.guid);
            FeatureStatus {
                guid: info.guid.to_owned(),
                name: info.name.to_owned(),
                state: state(refcount),
                refcount: refcount.unwrap_or(0),
                supported: true,
                read_only_compatible: info.read_only_compatible,
            }
        })
        .collect();
    for (guid, refcount, for_read) in features.all() {
        if find(&guid).is_none() {
            out.push(FeatureStatus {
                name: guid.rsplit(':').next().unwrap_or(&guid).to_owned(),
                guid,
                state: state(Some(refcount)),
                refcount,
                supported: false,
                read_only_compatible: !for_read,
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(guid: &str, refcount: u64, for_read: bool) -> (String, u64, bool) {
        (guid.to_owned(), refcount, for_read)
    }

    #[test]
    fn the_table_has_the_features_of_2_4_and_new_pools_those_of_2_3() {
        assert_eq!(TABLE.len(), 47);
        assert_eq!(defaults().len(), 44);
        let read_only = supported().filter(|info| info.read_only_compatible);
        assert_eq!(read_only.count(), 22);
    }

    #[test]
    fn failure_domains_are_refused_by_name() {
        let pool = [feature("com.seagate:draid_failure_domains", 1, true)];
        let error = check("p", &pool, true).unwrap_err();
        assert!(
            error.to_string().contains("draid_failure_domains"),
            "{error}"
        );
        let error = guid_to_enable("draid_failure_domains").unwrap_err();
        assert!(error.to_string().contains("does not support"), "{error}");
    }

    #[test]
    fn enabled_features_do_not_matter_and_active_ones_are_named() {
        let enabled = [
            feature("com.datto:encryption", 0, true),
            feature("org.future:x", 0, true),
        ];
        check("p", &enabled, false).unwrap();
        let error = check("p", &[feature("org.future:x", 1, true)], true).unwrap_err();
        assert!(error.to_string().contains("org.future:x"), "{error}");
    }

    #[test]
    fn what_is_compatible_for_reading_can_be_read() {
        let pool = [
            feature("com.delphix:redaction_list_spill", 1, false),
            feature("org.future:y", 1, false),
        ];
        check("p", &pool, true).unwrap();
        check("p", &pool[..1], false).unwrap();
        let error = check("p", &pool, false).unwrap_err();
        assert!(matches!(error, PoolError::UnsupportedForWrite { .. }));
        assert!(error.to_string().contains("org.future:y"), "{error}");
    }
}
