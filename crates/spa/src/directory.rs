//! Names in the MOS's object directory and in vdev ZAPs (include/sys/dmu.h `DMU_POOL_*`,
//! include/sys/fs/zfs.h `VDEV_TOP_ZAP_*`).

pub use space::names::{CHECKPOINT_SPACE_MAP, MS_UNFLUSHED_PHYS_TXGS, OBSOLETE_SPACE_MAP};

/// The packed configuration.
pub const CONFIG: &str = "config";
/// The command history.
pub const HISTORY: &str = "history";
/// The pool's properties.
pub const POOL_PROPS: &str = "pool_props";
/// Frees that were put off to the next transaction group.
pub const SYNC_BPLIST: &str = "sync_bplist";
/// Version of the format in which the pool was made.
pub const CREATION_VERSION: &str = "creation_version";
/// Whether sizes are counted without the overhead of RAID-Z.
pub const DEFLATE: &str = "deflate";
/// The salt of checksums that have one.
pub const CHECKSUM_SALT: &str = "org.illumos:checksum_salt";
/// The list of all vdevs' ZAPs.
pub const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";
/// State of the last scrub or resilver.
pub const SCAN: &str = "scan";
/// There while a scan of before version 25 is under way (`DMU_POOL_SCRUB_FUNC` then).
pub const OLD_SCAN: &str = "scrub_func";
/// State of the last scrub of the error log.
pub const ERROR_SCRUB: &str = "error_scrub";
/// Damaged blocks known before the scrub under way.
pub const ERRLOG_LAST: &str = "errlog_last";
/// Damaged blocks that the scrub under way found.
pub const ERRLOG_SCRUB: &str = "errlog_scrub";
/// The checkpoint's uberblock, as integers.
pub const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
/// The list of spares.
pub const SPARES: &str = "spares";
/// The list of second-level cache devices.
pub const L2CACHE: &str = "l2cache";
/// In a top-level vdev's ZAP: what it is for (`log`, `special`, `dedup`).
pub const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";
/// Sums over dedup tables; the tables' own names begin alike.
pub const DDT_STATISTICS: &str = "DDT-statistics";
/// With a top-level vdev's number behind it: its counts of cloned blocks.
pub const BRT_VDEV_PREFIX: &str = "com.fudosecurity:brt:vdev:";
/// In a top-level vdev's ZAP: the last sequential rebuild of its devices.
pub const VDEV_REBUILD: &str = "org.openzfs:vdev_rebuild";
/// In a RAID-Z vdev's ZAP: state of its last expansion (1 under way, 2 done).
pub const RAIDZ_EXPAND_STATE: &str = "org.openzfs:raidz_expand_state";
/// In a RAID-Z vdev's ZAP: when the expansion began, in seconds since the epoch.
pub const RAIDZ_EXPAND_START: &str = "org.openzfs:raidz_expand_start_time";
/// In a RAID-Z vdev's ZAP: when the expansion ended, in seconds since the epoch.
pub const RAIDZ_EXPAND_END: &str = "org.openzfs:raidz_expand_end_time";
/// In a RAID-Z vdev's ZAP: what the expansion has copied, in bytes.
pub const RAIDZ_EXPAND_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";
/// In a leaf's ZAP: state of the last `zpool initialize`, when it became that, and how far it came.
pub const INITIALIZE: [&str; 3] = [
    "com.delphix:vdev_initialize_state",
    "com.delphix:vdev_initialize_action_time",
    "com.delphix:next_offset_to_initialize",
];
/// The same of `zpool trim`.
pub const TRIM: [&str; 3] = [
    "org.zfsonlinux:vdev_trim_state",
    "org.zfsonlinux:vdev_trim_action_time",
    "org.zfsonlinux:next_offset_to_trim",
];
/// In a leaf's ZAP: what `zpool initialize` writes.
pub const INITIALIZE_VALUE: &str = "org.openzfs:vdev_initialize_value";
/// In a leaf's ZAP: how much a second `zpool trim` discards, at most.
pub const TRIM_RATE: &str = "org.zfsonlinux:vdev_trim_rate";
/// In a leaf's ZAP: whether `zpool trim` leaves out what was never written.
pub const TRIM_PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
/// In a leaf's ZAP: whether `zpool trim` erases for good.
pub const TRIM_SECURE: &str = "org.zfsonlinux:vdev_trim_secure";
/// Up to which txg the last scrub came that was finished.
pub const LAST_SCRUBBED_TXG: &str = "last_scrubbed_txg";
/// When transaction groups were written: by minutes, days and months.
pub const TXG_TIMES: [&str; 3] = [
    "com.klarasystems:txg_log_time:minutes",
    "com.klarasystems:txg_log_time:days",
    "com.klarasystems:txg_log_time:months",
];
/// State of a mapping that is being made smaller.
pub const CONDENSING: &str = "com.delphix:condensing_indirect";
/// Places on removed vdevs that are to become obsolete.
pub const OBSOLETE_LIST: &str = "com.delphix:obsolete_bpobj";
/// State of the removal of a vdev.
pub const REMOVING: &str = "com.delphix:removing";
