//! Names in the MOS's object directory and in vdev ZAPs (include/sys/dmu.h `DMU_POOL_*`,
//! include/sys/fs/zfs.h `VDEV_TOP_ZAP_*`).

pub(crate) use space::names::{CHECKPOINT_SPACE_MAP, MS_UNFLUSHED_PHYS_TXGS, OBSOLETE_SPACE_MAP};

pub(crate) const CONFIG: &str = "config";
pub(crate) const HISTORY: &str = "history";
pub(crate) const POOL_PROPS: &str = "pool_props";
pub(crate) const SYNC_BPLIST: &str = "sync_bplist";
pub(crate) const CREATION_VERSION: &str = "creation_version";
pub(crate) const DEFLATE: &str = "deflate";
pub(crate) const CHECKSUM_SALT: &str = "org.illumos:checksum_salt";
pub(crate) const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";
pub(crate) const SCAN: &str = "scan";
/// State of the last scrub of the error log.
pub(crate) const ERROR_SCRUB: &str = "error_scrub";
pub(crate) const ERRLOG_LAST: &str = "errlog_last";
pub(crate) const ERRLOG_SCRUB: &str = "errlog_scrub";
/// The checkpoint's uberblock, as integers.
pub(crate) const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
pub(crate) const SPARES: &str = "spares";
pub(crate) const L2CACHE: &str = "l2cache";
/// In a top-level vdev's ZAP: what it is for (`log`, `special`, `dedup`).
pub(crate) const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";
/// Sums over dedup tables; the tables' own names begin alike.
pub(crate) const DDT_STATISTICS: &str = "DDT-statistics";
/// With a top-level vdev's number behind it: its counts of cloned blocks.
pub(crate) const BRT_VDEV_PREFIX: &str = "com.fudosecurity:brt:vdev:";
/// In a top-level vdev's ZAP: the last sequential rebuild of its devices.
pub(crate) const VDEV_REBUILD: &str = "org.openzfs:vdev_rebuild";
/// In a RAID-Z vdev's ZAP: state of its last expansion (1 under way, 2 done).
pub(crate) const RAIDZ_EXPAND_STATE: &str = "org.openzfs:raidz_expand_state";
pub(crate) const RAIDZ_EXPAND_START: &str = "org.openzfs:raidz_expand_start_time";
pub(crate) const RAIDZ_EXPAND_END: &str = "org.openzfs:raidz_expand_end_time";
pub(crate) const RAIDZ_EXPAND_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";
/// In a leaf's ZAP: state of the last `zpool initialize`, when it became that, and how far it came.
pub(crate) const INITIALIZE: [&str; 3] = [
    "com.delphix:vdev_initialize_state",
    "com.delphix:vdev_initialize_action_time",
    "com.delphix:next_offset_to_initialize",
];
/// The same of `zpool trim`.
pub(crate) const TRIM: [&str; 3] = [
    "org.zfsonlinux:vdev_trim_state",
    "org.zfsonlinux:vdev_trim_action_time",
    "org.zfsonlinux:next_offset_to_trim",
];
/// In a leaf's ZAP: what `zpool initialize` writes.
pub(crate) const INITIALIZE_VALUE: &str = "org.openzfs:vdev_initialize_value";
/// In a leaf's ZAP: how much a second `zpool trim` discards, at most.
pub(crate) const TRIM_RATE: &str = "org.zfsonlinux:vdev_trim_rate";
/// In a leaf's ZAP: whether `zpool trim` leaves out what was never written.
pub(crate) const TRIM_PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
/// In a leaf's ZAP: whether `zpool trim` erases for good.
pub(crate) const TRIM_SECURE: &str = "org.zfsonlinux:vdev_trim_secure";
/// Up to which txg the last scrub came that was finished.
pub(crate) const LAST_SCRUBBED_TXG: &str = "last_scrubbed_txg";
/// State of a mapping that is being made smaller.
pub(crate) const CONDENSING: &str = "com.delphix:condensing_indirect";
/// Places on removed vdevs that are to become obsolete.
pub(crate) const OBSOLETE_LIST: &str = "com.delphix:obsolete_bpobj";
/// State of the removal of a vdev.
pub(crate) const REMOVING: &str = "com.delphix:removing";
