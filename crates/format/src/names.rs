//! Names that are stored: keys of configuration lists and of ZAPs. They are facts of the format,
//! each after OpenZFS's constant of the same name.

macro_rules! names {
    ($($name:ident $text:literal;)*) => {
        $(#[doc = concat!("The name `", $text, "`.")]
        pub const $name: &str = $text;)*
    };
}

/// Configuration lists in labels, in the MOS and in cache files (`ZPOOL_CONFIG_*`,
/// include/sys/fs/zfs.h).
pub mod config {
    names! {
        VERSION "version";
        POOL_NAME "name";
        POOL_STATE "state";
        POOL_TXG "txg";
        POOL_GUID "pool_guid";
        CREATE_TXG "create_txg";
        TOP_GUID "top_guid";
        VDEV_TREE "vdev_tree";
        TYPE "type";
        CHILDREN "children";
        ID "id";
        GUID "guid";
        INDIRECT_OBJECT "com.delphix:indirect_object";
        INDIRECT_BIRTHS "com.delphix:indirect_births";
        PREV_INDIRECT_VDEV "com.delphix:prev_indirect_vdev";
        PATH "path";
        DEVID "devid";
        SPARE_ID "spareid";
        METASLAB_ARRAY "metaslab_array";
        METASLAB_SHIFT "metaslab_shift";
        ASHIFT "ashift";
        ASIZE "asize";
        MIN_ALLOC "min_alloc";
        MAX_ALLOC "max_alloc";
        DTL "DTL";
        VDEV_ENC_SYSFS_PATH "vdev_enc_sysfs_path";
        WHOLE_DISK "whole_disk";
        VDEV_ROTATIONAL "rotational";
        NOT_PRESENT "not_present";
        SPARES "spares";
        IS_SPARE "is_spare";
        NPARITY "nparity";
        RAIDZ_EXPANDING "raidz_expanding";
        RAIDZ_EXPAND_TXGS "raidz_expand_txgs";
        HOSTID "hostid";
        HOSTNAME "hostname";
        UNSPARE "unspare";
        PHYS_PATH "phys_path";
        IS_LOG "is_log";
        L2CACHE "l2cache";
        HOLE_ARRAY "hole_array";
        VDEV_CHILDREN "vdev_children";
        IS_HOLE "is_hole";
        SPLIT "splitcfg";
        ORIG_GUID "orig_guid";
        SPLIT_GUID "split_guid";
        SPLIT_LIST "guid_list";
        NONALLOCATING "non_allocating";
        REMOVING "removing";
        RESILVER_TXG "resilver_txg";
        REBUILD_TXG "rebuild_txg";
        COMMENT "comment";
        FEATURES_FOR_READ "features_for_read";
        ERRATA "errata";
        VDEV_ROOT_ZAP "com.klarasystems:vdev_zap_root";
        VDEV_TOP_ZAP "com.delphix:vdev_zap_top";
        VDEV_LEAF_ZAP "com.delphix:vdev_zap_leaf";
        HAS_PER_VDEV_ZAPS "com.delphix:has_per_vdev_zaps";
        RESILVER_DEFER "com.datto:resilver_defer";
        ALLOCATION_BIAS "alloc_bias";
        COMPATIBILITY "compatibility";
        OFFLINE "offline";
        FAULTED "faulted";
        DEGRADED "degraded";
        REMOVED "removed";
        FRU "fru";
        AUX_STATE "aux_state";
        DRAID_NDATA "draid_ndata";
        DRAID_NSPARES "draid_nspares";
        DRAID_NGROUPS "draid_ngroups";
        DRAID_NCHILDREN "draid_nchildren";
    }
}

/// Types of vdevs in configuration lists (`VDEV_TYPE_*`).
pub mod vdev_type {
    names! {
        ROOT "root";
        MIRROR "mirror";
        REPLACING "replacing";
        RAIDZ "raidz";
        DRAID "draid";
        DRAID_SPARE "dspare";
        DISK "disk";
        FILE "file";
        MISSING "missing";
        HOLE "hole";
        SPARE "spare";
        LOG "log";
        L2CACHE "l2cache";
        INDIRECT "indirect";
    }
}

/// ZAPs of top-level vdevs (`VDEV_TOP_ZAP_*`).
pub mod top_vdev {
    names! {
        INDIRECT_OBSOLETE_SM "com.delphix:indirect_obsolete_sm";
        OBSOLETE_COUNTS_ARE_PRECISE "com.delphix:obsolete_counts_are_precise";
        POOL_CHECKPOINT_SM "com.delphix:pool_checkpoint_sm";
        MS_UNFLUSHED_PHYS_TXGS "com.delphix:ms_unflushed_phys_txgs";
        VDEV_REBUILD_PHYS "org.openzfs:vdev_rebuild";
        ALLOCATION_BIAS "org.zfsonlinux:allocation_bias";
        RAIDZ_EXPAND_STATE "org.openzfs:raidz_expand_state";
        RAIDZ_EXPAND_START_TIME "org.openzfs:raidz_expand_start_time";
        RAIDZ_EXPAND_END_TIME "org.openzfs:raidz_expand_end_time";
        RAIDZ_EXPAND_BYTES_COPIED "org.openzfs:raidz_expand_bytes_copied";
    }
}

/// ZAPs of leaf vdevs (`VDEV_LEAF_ZAP_*`).
pub mod leaf_vdev {
    names! {
        INITIALIZE_LAST_OFFSET "com.delphix:next_offset_to_initialize";
        INITIALIZE_STATE "com.delphix:vdev_initialize_state";
        INITIALIZE_ACTION_TIME "com.delphix:vdev_initialize_action_time";
        INITIALIZE_VALUE "org.openzfs:vdev_initialize_value";
        TRIM_LAST_OFFSET "org.zfsonlinux:next_offset_to_trim";
        TRIM_STATE "org.zfsonlinux:vdev_trim_state";
        TRIM_ACTION_TIME "org.zfsonlinux:vdev_trim_action_time";
        TRIM_RATE "org.zfsonlinux:vdev_trim_rate";
        TRIM_PARTIAL "org.zfsonlinux:vdev_trim_partial";
        TRIM_SECURE "org.zfsonlinux:vdev_trim_secure";
    }
}

/// The MOS's object directory (`DMU_POOL_*`, include/sys/dmu.h).
pub mod pool {
    names! {
        CONFIG "config";
        FEATURES_FOR_WRITE "features_for_write";
        FEATURES_FOR_READ "features_for_read";
        FEATURE_DESCRIPTIONS "feature_descriptions";
        FEATURE_ENABLED_TXG "feature_enabled_txg";
        ROOT_DATASET "root_dataset";
        SYNC_BPOBJ "sync_bplist";
        ERRLOG_SCRUB "errlog_scrub";
        ERRLOG_LAST "errlog_last";
        SPARES "spares";
        DEFLATE "deflate";
        HISTORY "history";
        PROPS "pool_props";
        L2CACHE "l2cache";
        TMP_USERREFS "tmp_userrefs";
        DDT_STATS "DDT-statistics";
        CREATION_VERSION "creation_version";
        SCAN "scan";
        ERRORSCRUB "error_scrub";
        LAST_SCRUBBED_TXG "last_scrubbed_txg";
        FREE_BPOBJ "free_bpobj";
        BPTREE_OBJ "bptree_obj";
        EMPTY_BPOBJ "empty_bpobj";
        CHECKSUM_SALT "org.illumos:checksum_salt";
        VDEV_ZAP_MAP "com.delphix:vdev_zap_map";
        REMOVING "com.delphix:removing";
        OBSOLETE_BPOBJ "com.delphix:obsolete_bpobj";
        CONDENSING_INDIRECT "com.delphix:condensing_indirect";
        ZPOOL_CHECKPOINT "com.delphix:zpool_checkpoint";
        LOG_SPACEMAP_ZAP "com.delphix:log_spacemap_zap";
        DELETED_CLONES "com.delphix:deleted_clones";
        TXG_LOG_TIME_MINUTES "com.klarasystems:txg_log_time:minutes";
        TXG_LOG_TIME_DAYS "com.klarasystems:txg_log_time:days";
        TXG_LOG_TIME_MONTHS "com.klarasystems:txg_log_time:months";
    }
}

/// ZAPs that extend datasets' objects (`DS_FIELD_*`, include/sys/dsl_dataset.h).
pub mod dataset {
    names! {
        BOOKMARK_NAMES "com.delphix:bookmarks";
        LARGE_DNODE "org.zfsonlinux:large_dnode";
        RESUME_FROMGUID "com.delphix:resume_fromguid";
        RESUME_TONAME "com.delphix:resume_toname";
        RESUME_TOGUID "com.delphix:resume_toguid";
        RESUME_OBJECT "com.delphix:resume_object";
        RESUME_OFFSET "com.delphix:resume_offset";
        RESUME_BYTES "com.delphix:resume_bytes";
        RESUME_LARGEBLOCK "com.delphix:resume_largeblockok";
        RESUME_EMBEDOK "com.delphix:resume_embedok";
        RESUME_COMPRESSOK "com.delphix:resume_compressok";
        RESUME_RAWOK "com.datto:resume_rawok";
        REMAP_DEADLIST "com.delphix:remap_deadlist";
        RESUME_REDACT_BOOKMARK_SNAPS "com.delphix:resume_redact_book_snaps";
        IVSET_GUID "com.datto:ivset_guid";
        RAW_RECEIVED "org.openzfs:raw_received";
    }
}

/// ZAPs that extend directories' objects (`DD_FIELD_*`, include/sys/dsl_dir.h).
pub mod directory {
    names! {
        FILESYSTEM_COUNT "com.joyent:filesystem_count";
        SNAPSHOT_COUNT "com.joyent:snapshot_count";
        CRYPTO_KEY_OBJ "com.datto:crypto_key_obj";
        LIVELIST "com.delphix:livelist";
        SNAPSHOTS_CHANGED "com.ixsystems:snapshots_changed";
    }
}

/// Directories below the root that hold the pool's own data (include/sys/dsl_dir.h).
pub mod hidden_directory {
    names! {
        MOS "$MOS";
        ORIGIN "$ORIGIN";
        FREE "$FREE";
        LEAK "$LEAK";
    }
}

/// Encryption keys' objects (`DSL_CRYPTO_KEY_*`, include/sys/dsl_crypt.h).
pub mod crypto_key {
    names! {
        CRYPTO_SUITE "DSL_CRYPTO_SUITE";
        GUID "DSL_CRYPTO_GUID";
        IV "DSL_CRYPTO_IV";
        MAC "DSL_CRYPTO_MAC";
        MASTER_KEY "DSL_CRYPTO_MASTER_KEY_1";
        HMAC_KEY "DSL_CRYPTO_HMAC_KEY_1";
        ROOT_DDOBJ "DSL_CRYPTO_ROOT_DDOBJ";
        REFCOUNT "DSL_CRYPTO_REFCOUNT";
        VERSION "DSL_CRYPTO_VERSION";
        // Ours, which OpenZFS passes over: the keys are wrapped as a raw stream brought them, in
        // this txg.
        RECEIVED "millpond:received";
    }
}

/// Filesystems' master nodes (include/sys/zfs_znode.h).
pub mod master_node {
    names! {
        FSID "FSID";
        UNLINKED_SET "DELETE_QUEUE";
        ROOT "ROOT";
        VERSION "VERSION";
        FUID_TABLES "FUID";
        SHARES "SHARES";
        SA_ATTRS "SA_ATTRS";
        NORMALIZATION "normalization";
        UTF8_ONLY "utf8only";
        CASE_SENSITIVITY "casesensitivity";
        USER_QUOTA "userquota@";
        GROUP_QUOTA "groupquota@";
        USER_OBJECT_QUOTA "userobjquota@";
        GROUP_OBJECT_QUOTA "groupobjquota@";
        PROJECT_QUOTA "projectquota@";
        PROJECT_OBJECT_QUOTA "projectobjquota@";
        DEFAULT_USER_QUOTA "defaultuserquota";
        DEFAULT_GROUP_QUOTA "defaultgroupquota";
        DEFAULT_PROJECT_QUOTA "defaultprojectquota";
        DEFAULT_USER_OBJECT_QUOTA "defaultuserobjquota";
        DEFAULT_GROUP_OBJECT_QUOTA "defaultgroupobjquota";
        DEFAULT_PROJECT_OBJECT_QUOTA "defaultprojectobjquota";
    }
}

/// ZAPs of system attributes (include/sys/sa_impl.h).
pub mod system_attributes {
    names! {
        LAYOUTS "LAYOUTS";
        REGISTRY "REGISTRY";
    }
}

/// Volumes' property objects (module/zfs/zvol.c).
pub mod volume {
    names! {
        SIZE "size";
    }
}

/// Dedup directories (include/sys/ddt_impl.h).
pub mod dedup {
    names! {
        VERSION "version";
        FLAGS "flags";
    }
}

/// Name of a dedup table in the MOS's directory (`DMU_POOL_DDT`): of blocks of a checksum, in a
/// class ("ditto", "duplicate" or "unique").
pub fn dedup_table(checksum: &str, class: &str) -> String {
    format!("DDT-{checksum}-zap-{class}")
}

/// Name of a dedup log (`DMU_POOL_DDT_LOG`); there are two per checksum.
pub fn dedup_log(checksum: &str, number: u32) -> String {
    format!("DDT-log-{checksum}-{number}")
}

/// Name of a dedup directory (`DMU_POOL_DDT_DIR`).
pub fn dedup_directory(checksum: &str) -> String {
    format!("DDT-{checksum}")
}

/// Name of a vdev's table of cloned blocks in the MOS's directory (`BRT_OBJECT_VDEV_PREFIX`).
pub fn cloned_blocks(vdev: crate::VdevId) -> String {
    format!("com.fudosecurity:brt:vdev:{vdev}")
}
