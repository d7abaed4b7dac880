//! Feature flags as the engine uses them: names, which ones we support, and the check at import.
//!
//! Refcounts and their storage are in `dataset::features`; here is what `zpool` shows and what an
//! import decides. Table order is that of `zpool get all` (`spa_feature_t`, include/zfeature_common.h).

use std::sync::Arc;

use dataset::Features;
use format::ObjectId;
use object::{ObjectSet, Zap};
use vdev::VdevTree;

use crate::{
    FeatureState, FeatureStatus, PoolError, VdevClass, VdevLayout, VdevSpec, directory, removed,
};

/// New dedup tables have flat entries and logs; refcount: such tables.
pub(crate) const FAST_DEDUP: &str = "com.klarasystems:fast_dedup";
/// Changes of all metaslabs are logged together.
pub(crate) const LOG_SPACEMAP: &str = "com.delphix:log_spacemap";
/// Space maps have histograms; refcount: space maps.
pub(crate) const SPACEMAP_HISTOGRAM: &str = "com.delphix:spacemap_histogram";
/// Space maps may have entries of two words.
pub(crate) const SPACEMAP_V2: &str = "com.delphix:spacemap_v2";
/// The root vdev has a ZAP too.
pub(crate) const VDEV_ZAPS_V2: &str = "com.klarasystems:vdev_zaps_v2";
/// There are special or dedup vdevs; refcount: how many.
pub(crate) const ALLOCATION_CLASSES: &str = "org.zfsonlinux:allocation_classes";
/// What nothing refers to on removed vdevs is recorded; refcount: objects for that.
pub(crate) const OBSOLETE_COUNTS: &str = "com.delphix:obsolete_counts";
/// There are dRAID vdevs; refcount: how many.
pub(crate) const DRAID: &str = "org.openzfs:draid";
/// Error logs are per dataset.
pub(crate) const HEAD_ERRLOG: &str = "com.delphix:head_errlog";

/// There is a checkpoint, or something left of one.
pub(crate) const ZPOOL_CHECKPOINT: &str = "com.delphix:zpool_checkpoint";

/// Blocks may be shared by several files; refcount: tables of such blocks.
pub(crate) const BLOCK_CLONING: &str = "com.fudosecurity:block_cloning";
/// What is said of a pool whose tables of cloned blocks are of the other byte order.
pub(crate) const FOREIGN_CLONES: &str =
    "block_cloning (its tables were made by a big-endian system)";

/// Datasets are encrypted.
const ENCRYPTION: &str = "com.datto:encryption";
/// Bookmarks may be of encrypted datasets.
const BOOKMARK_V2: &str = "com.datto:bookmark_v2";

/// Snapshots and bookmarks of encrypted datasets lack what raw streams compare
/// (`ZPOOL_ERRATA_ZOL_8308_ENCRYPTION`, include/sys/fs/zfs.h).
pub(crate) const ERRATA_ENCRYPTION: u64 = 4;

/// The number of what is known to be wrong with a pool that has these features
/// (`spa_ld_check_features`, module/zfs/spa.c), given the one in its configuration.
pub(crate) fn errata(features: &Features, stored: u64) -> u64 {
    let lacks_bookmarks = features.is_enabled(ENCRYPTION) && !features.is_enabled(BOOKMARK_V2);
    match (stored, lacks_bookmarks) {
        (0 | ERRATA_ENCRYPTION, true) => ERRATA_ENCRYPTION,
        (0 | ERRATA_ENCRYPTION, false) => 0,
        (other, _) => other,
    }
}

/// What we can do with a pool in which the feature is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Support {
    /// Everything.
    Full,
    /// Read. New pools have it enabled all the same, for OpenZFS to use; while it is active we only read.
    Read,
    /// Nothing.
    None,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    guid: &'static str,
    name: &'static str,
    /// A release without it may import the pool read-only.
    read_only_compatible: bool,
    support: Support,
}

const fn row(guid: &'static str, name: &'static str, ro: bool, support: Support) -> Row {
    Row {
        guid,
        name,
        read_only_compatible: ro,
        support,
    }
}

use Support::{Full, None as No, Read};

const TABLE: &[Row] = &[
    row("com.delphix:async_destroy", "async_destroy", true, Full),
    row("com.delphix:empty_bpobj", "empty_bpobj", true, Full),
    row("org.illumos:lz4_compress", "lz4_compress", false, Full),
    // Only dump volumes of illumos ever use it, and their blocks read like any other.
    row(
        "com.joyent:multi_vdev_crash_dump",
        "multi_vdev_crash_dump",
        false,
        Full,
    ),
    row(SPACEMAP_HISTOGRAM, "spacemap_histogram", true, Full),
    row("com.delphix:enabled_txg", "enabled_txg", true, Full),
    row("com.delphix:hole_birth", "hole_birth", false, Full),
    row(
        "com.delphix:extensible_dataset",
        "extensible_dataset",
        false,
        Full,
    ),
    row("com.delphix:embedded_data", "embedded_data", false, Full),
    row("com.delphix:bookmarks", "bookmarks", true, Full),
    row(
        "com.joyent:filesystem_limits",
        "filesystem_limits",
        true,
        Full,
    ),
    row("org.open-zfs:large_blocks", "large_blocks", false, Full),
    row("org.zfsonlinux:large_dnode", "large_dnode", false, Full),
    row("org.illumos:sha512", "sha512", false, Full),
    row("org.illumos:skein", "skein", false, Full),
    row("org.illumos:edonr", "edonr", false, Full),
    row(
        "org.zfsonlinux:userobj_accounting",
        "userobj_accounting",
        true,
        Full,
    ),
    row("com.datto:encryption", "encryption", false, Full),
    row("org.zfsonlinux:project_quota", "project_quota", true, Full),
    row("com.delphix:device_removal", "device_removal", false, Full),
    row(OBSOLETE_COUNTS, "obsolete_counts", true, Full),
    row(ZPOOL_CHECKPOINT, "zpool_checkpoint", true, Full),
    row(SPACEMAP_V2, "spacemap_v2", true, Full),
    row(ALLOCATION_CLASSES, "allocation_classes", true, Full),
    row("com.datto:resilver_defer", "resilver_defer", true, Read),
    row("com.datto:bookmark_v2", "bookmark_v2", false, Full),
    row(
        "com.delphix:redaction_bookmarks",
        "redaction_bookmarks",
        false,
        Read,
    ),
    row(
        "com.delphix:redacted_datasets",
        "redacted_datasets",
        false,
        Read,
    ),
    row(
        "com.delphix:bookmark_written",
        "bookmark_written",
        false,
        Full,
    ),
    row(LOG_SPACEMAP, "log_spacemap", true, Full),
    // We keep no such lists: a clone that has one loses it when it changes.
    row("com.delphix:livelist", "livelist", true, Full),
    row("org.openzfs:device_rebuild", "device_rebuild", true, Read),
    row("org.freebsd:zstd_compress", "zstd_compress", false, Full),
    row(DRAID, "draid", false, Full),
    row("org.openzfs:zilsaxattr", "zilsaxattr", true, Full),
    row(HEAD_ERRLOG, "head_errlog", false, Full),
    row("org.openzfs:blake3", "blake3", false, Full),
    row(BLOCK_CLONING, "block_cloning", true, Full),
    row(VDEV_ZAPS_V2, "vdev_zaps_v2", false, Full),
    row(
        "com.delphix:redaction_list_spill",
        "redaction_list_spill",
        false,
        Read,
    ),
    row(
        "org.openzfs:raidz_expansion",
        "raidz_expansion",
        false,
        Full,
    ),
    row(FAST_DEDUP, "fast_dedup", true, Full),
    row("org.zfsonlinux:longname", "longname", false, Full),
    row(
        "com.klarasystems:large_microzap",
        "large_microzap",
        true,
        Full,
    ),
];

/// Features named in labels while active, since the MOS cannot be read without them
/// (`ZFEATURE_FLAG_MOS`).
const IN_LABEL: &[&str] = &[
    "com.delphix:hole_birth",
    "com.delphix:embedded_data",
    "com.delphix:device_removal",
    DRAID,
    VDEV_ZAPS_V2,
    "org.openzfs:raidz_expansion",
    "com.klarasystems:dynamic_gang_header",
    "com.seagate:draid_failure_domains",
];

fn find(guid: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.guid == guid)
}

/// Guid of the feature with this short name, if new pools may have it.
pub(crate) fn guid_to_enable(name: &str) -> Result<&'static str, PoolError> {
    let bad = |why: &str| PoolError::BadFeature {
        feature: name.to_owned(),
        why: why.to_owned(),
    };
    let row = TABLE
        .iter()
        .find(|row| row.name == name || row.guid == name)
        .ok_or_else(|| bad("there is no such feature"))?;
    match row.support {
        Full | Read => Ok(row.guid),
        No => Err(bad("this release does not support it")),
    }
}

/// Refuses vdevs for which a feature would be needed that is not enabled.
pub(crate) fn check_classes(
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

/// Guids of the features that a new pool gets.
pub(crate) fn defaults() -> Vec<String> {
    TABLE
        .iter()
        .filter(|row| row.support != No)
        .map(|row| row.guid.to_owned())
        .collect()
}

/// Every feature that pools of this release may have: name, and whether releases without it can read such a pool.
pub fn supported_features() -> Vec<(&'static str, bool)> {
    TABLE
        .iter()
        .filter(|row| row.support != No)
        .map(|row| (row.name, row.read_only_compatible))
        .collect()
}

/// Features to be named in labels.
pub(crate) fn in_label(features: &Features) -> Vec<String> {
    IN_LABEL
        .iter()
        .filter(|guid| features.is_active(guid))
        .map(|guid| (*guid).to_owned())
        .collect()
}

/// Which of these active features (guid, refcount, needed to read) keep a pool from being read,
/// and which only from being written.
pub(crate) fn blocked(features: &[(String, u64, bool)]) -> (Vec<String>, Vec<String>) {
    let mut unreadable = Vec::new();
    let mut unwriteable = Vec::new();
    for (guid, refcount, for_read) in features {
        if *refcount == 0 {
            continue;
        }
        match find(guid).map(|row| row.support) {
            Some(Full) => {}
            Some(Read) => unwriteable.push(short(guid)),
            Some(No) | None if *for_read => unreadable.push(short(guid)),
            Some(No) | None => unwriteable.push(short(guid)),
        }
    }
    (unreadable, unwriteable)
}

/// Changes of layout that are under way in this pool, which nobody here carries on: it is not written until OpenZFS
/// is done with them.
pub(crate) async fn under_way(
    mos: &Arc<ObjectSet>,
    tree: &VdevTree,
) -> Result<Vec<String>, PoolError> {
    let mut out: Vec<String> = tree
        .tops()
        .iter()
        .filter(|top| top.is_expanding())
        .map(|top| format!("raidz_expansion ({} is being expanded)", top.display_name()))
        .collect();
    if removed::is_under_way(mos).await? {
        out.push("device_removal (a vdev is being removed)".to_owned());
    }
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    for name in [directory::CONDENSING, directory::OBSOLETE_LIST] {
        if directory.lookup(name).await?.is_some() {
            out.push(
                "device_removal (the mapping of a removed vdev is being condensed)".to_owned(),
            );
            break;
        }
    }
    Ok(out)
}

/// Decides whether a pool with these features (guid, refcount, needed to read) can be imported.
pub(crate) fn check(
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
    find(guid).map_or_else(|| guid.to_owned(), |row| format!("{} ({guid})", row.name))
}

/// All features for `zpool get`, with unknown ones that are in the pool at the end.
pub(crate) fn status(features: &Features) -> Vec<FeatureStatus> {
    let state = |refcount: Option<u64>| match refcount {
        None => FeatureState::Disabled,
        Some(0) => FeatureState::Enabled,
        Some(_) => FeatureState::Active,
    };
    let mut out: Vec<FeatureStatus> = TABLE
        .iter()
        .map(|row| {
            let refcount = features.refcount(row.guid);
            FeatureStatus {
                guid: row.guid.to_owned(),
                name: row.name.to_owned(),
                state: state(refcount),
                refcount: refcount.unwrap_or(0),
                supported: row.support != No,
                read_only_compatible: row.read_only_compatible,
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
    fn the_table_has_the_features_of_2_3() {
        assert_eq!(TABLE.len(), 44);
        assert_eq!(
            TABLE.iter().filter(|row| row.read_only_compatible).count(),
            20
        );
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
        let error = check("p", &pool, false).unwrap_err();
        assert!(matches!(error, PoolError::UnsupportedForWrite { .. }));
        assert!(
            error.to_string().contains("redaction_list_spill"),
            "{error}"
        );
    }
}
