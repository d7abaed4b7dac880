//! Names on disk: of features, of entries in the MOS's object directory, and of entries in
//! top-level vdevs' ZAPs (include/zfeature_common.h; include/sys/dmu.h `DMU_POOL_*`;
//! include/sys/fs/zfs.h `VDEV_TOP_ZAP_*`).

/// Feature: changes of all metaslabs are logged together.
pub const LOG_SPACEMAP: &str = "com.delphix:log_spacemap";
/// Feature: space maps have histograms; refcount: space maps.
pub const SPACEMAP_HISTOGRAM: &str = "com.delphix:spacemap_histogram";
/// Feature: space maps may have entries of two words.
pub const SPACEMAP_V2: &str = "com.delphix:spacemap_v2";
/// Feature: space that nothing refers to on removed vdevs is recorded; refcount: objects for that.
pub const OBSOLETE_COUNTS: &str = "com.delphix:obsolete_counts";

/// In the object directory: the ZAP that lists the log space maps by their txg.
pub const LOG_SPACEMAP_ZAP: &str = "com.delphix:log_spacemap_zap";

/// Pair of a top-level vdev's configuration: the object number of its ZAP.
pub const TOP_ZAP: &str = "com.delphix:vdev_zap_top";
/// In a top-level vdev's ZAP: the array of the metaslabs' flush txgs.
pub const MS_UNFLUSHED_PHYS_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
/// In a top-level vdev's ZAP: space map of what only the checkpoint uses.
pub const CHECKPOINT_SPACE_MAP: &str = "com.delphix:pool_checkpoint_sm";
/// In a removed vdev's ZAP: space map of what nothing refers to any more.
pub const OBSOLETE_SPACE_MAP: &str = "com.delphix:indirect_obsolete_sm";
