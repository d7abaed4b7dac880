//! Feature flags (module/zcommon/zfeature_common.c): what a pool may have that others cannot read.
//!
//! A feature is disabled, enabled (it may be used) or active (it is used). The MOS has two ZAPs
//! from feature to count: `features_for_read` holds those without which the pool cannot even be
//! read, `features_for_write` those that only writers must know. A count of zero is "enabled", a
//! missing entry "disabled".

/// A feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureInfo {
    /// Which one.
    pub feature: Feature,
    /// Its name in the MOS.
    pub guid: &'static str,
    /// Its name in the property `feature@NAME`.
    pub name: &'static str,
    /// What it is for.
    pub description: &'static str,
    /// Who lacks it may still read the pool (`ZFEATURE_FLAG_READONLY_COMPAT`).
    pub read_only_compatible: bool,
    /// Needed to read the MOS, and so also in the label (`ZFEATURE_FLAG_MOS`).
    pub in_label: bool,
    /// Active once enabled (`ZFEATURE_FLAG_ACTIVATE_ON_ENABLE`).
    pub activate_on_enable: bool,
    /// Each dataset that uses it says so (`ZFEATURE_FLAG_PER_DATASET`).
    pub per_dataset: bool,
    /// Not enabled by `zpool upgrade` (`ZFEATURE_FLAG_NO_UPGRADE`).
    pub no_upgrade: bool,
    /// Known to OpenZFS 2.3, and so enabled on pools that we make.
    pub in_2_3: bool,
    /// Features that must be enabled too.
    pub depends: &'static [Feature],
}

macro_rules! features {
    ($($feature:ident $guid:literal $name:literal $description:literal
        [$($flag:ident)*] [$($dependency:ident)*];)*) => {
        /// The features, in the order in which OpenZFS lists them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Feature {
            $(#[doc = concat!("`", $guid, "`: ", $name, ".")] $feature,)*
        }

        /// All features.
        pub const FEATURES: &[FeatureInfo] = &[$({
            let plain = FeatureInfo {
                feature: Feature::$feature,
                guid: $guid,
                name: $name,
                description: $description,
                read_only_compatible: false,
                in_label: false,
                activate_on_enable: false,
                per_dataset: false,
                no_upgrade: false,
                in_2_3: true,
                depends: &[$(Feature::$dependency),*],
            };
            $(let plain = features!(@$flag plain);)*
            plain
        }),*];
    };
    (@ro $info:ident) => { FeatureInfo { read_only_compatible: true, ..$info } };
    (@label $info:ident) => { FeatureInfo { in_label: true, ..$info } };
    (@on_enable $info:ident) => { FeatureInfo { activate_on_enable: true, ..$info } };
    (@dataset $info:ident) => { FeatureInfo { per_dataset: true, ..$info } };
    (@no_upgrade $info:ident) => { FeatureInfo { no_upgrade: true, ..$info } };
    (@newer $info:ident) => { FeatureInfo { in_2_3: false, ..$info } };
}

features! {
    AsyncDestroy "com.delphix:async_destroy" "async_destroy"
        "Destroy filesystems asynchronously." [ro] [];
    EmptyBpobj "com.delphix:empty_bpobj" "empty_bpobj"
        "Snapshots use less space." [ro] [];
    Lz4Compress "org.illumos:lz4_compress" "lz4_compress"
        "LZ4 compression algorithm support." [on_enable] [];
    MultiVdevCrashDump "com.joyent:multi_vdev_crash_dump" "multi_vdev_crash_dump"
        "Crash dumps to multiple vdev pools." [] [];
    SpacemapHistogram "com.delphix:spacemap_histogram" "spacemap_histogram"
        "Spacemaps maintain space histograms." [ro] [];
    EnabledTxg "com.delphix:enabled_txg" "enabled_txg"
        "Record txg at which a feature is enabled" [ro] [];
    HoleBirth "com.delphix:hole_birth" "hole_birth"
        "Retain hole birth txg for more precise zfs send" [label on_enable] [EnabledTxg];
    PoolCheckpoint "com.delphix:zpool_checkpoint" "zpool_checkpoint"
        "Pool state can be checkpointed, allowing rewind later." [ro] [];
    SpacemapV2 "com.delphix:spacemap_v2" "spacemap_v2"
        "Space maps representing large segments are more efficient." [ro on_enable] [];
    ExtensibleDataset "com.delphix:extensible_dataset" "extensible_dataset"
        "Enhanced dataset functionality, used by other features." [] [];
    Bookmarks "com.delphix:bookmarks" "bookmarks"
        "\"zfs bookmark\" command" [ro] [ExtensibleDataset];
    FilesystemLimits "com.joyent:filesystem_limits" "filesystem_limits"
        "Filesystem and snapshot limits." [ro] [ExtensibleDataset];
    EmbeddedData "com.delphix:embedded_data" "embedded_data"
        "Blocks which compress very well use even less space." [label on_enable] [];
    Livelist "com.delphix:livelist" "livelist"
        "Improved clone deletion performance." [ro] [ExtensibleDataset];
    LogSpacemap "com.delphix:log_spacemap" "log_spacemap"
        "Log metaslab changes on a single spacemap and flush them periodically."
        [ro] [SpacemapV2];
    LargeBlocks "org.open-zfs:large_blocks" "large_blocks"
        "Support for blocks larger than 128KB." [dataset] [ExtensibleDataset];
    LargeDnode "org.zfsonlinux:large_dnode" "large_dnode"
        "Variable on-disk size of dnodes." [dataset] [ExtensibleDataset];
    Sha512 "org.illumos:sha512" "sha512"
        "SHA-512/256 hash algorithm." [dataset] [ExtensibleDataset];
    Skein "org.illumos:skein" "skein"
        "Skein hash algorithm." [dataset] [ExtensibleDataset];
    EdonR "org.illumos:edonr" "edonr"
        "Edon-R hash algorithm." [dataset] [ExtensibleDataset];
    RedactionBookmarks "com.delphix:redaction_bookmarks" "redaction_bookmarks"
        "Support for bookmarks which store redaction lists for zfs redacted send/recv."
        [] [BookmarkV2 ExtensibleDataset Bookmarks];
    RedactedDatasets "com.delphix:redacted_datasets" "redacted_datasets"
        "Support for redacted datasets, produced by receiving a redacted zfs send stream."
        [dataset] [ExtensibleDataset];
    BookmarkWritten "com.delphix:bookmark_written" "bookmark_written"
        "Additional accounting, enabling the written#<bookmark> property (space written since a \
         bookmark), and estimates of send stream sizes for incrementals from bookmarks."
        [] [BookmarkV2 ExtensibleDataset Bookmarks];
    DeviceRemoval "com.delphix:device_removal" "device_removal"
        "Top-level vdevs can be removed, reducing logical pool size." [label] [];
    ObsoleteCounts "com.delphix:obsolete_counts" "obsolete_counts"
        "Reduce memory used by removed devices when their blocks are freed or remapped."
        [ro] [ExtensibleDataset DeviceRemoval];
    UserObjectAccounting "org.zfsonlinux:userobj_accounting" "userobj_accounting"
        "User/Group object accounting." [ro dataset] [ExtensibleDataset];
    BookmarkV2 "com.datto:bookmark_v2" "bookmark_v2"
        "Support for larger bookmarks" [] [ExtensibleDataset Bookmarks];
    Encryption "com.datto:encryption" "encryption"
        "Support for dataset level encryption" [dataset] [ExtensibleDataset BookmarkV2];
    ProjectQuota "org.zfsonlinux:project_quota" "project_quota"
        "space/object accounting based on project ID." [ro dataset] [ExtensibleDataset];
    AllocationClasses "org.zfsonlinux:allocation_classes" "allocation_classes"
        "Support for separate allocation classes." [ro] [];
    ResilverDefer "com.datto:resilver_defer" "resilver_defer"
        "Support for deferring new resilvers when one is already running." [ro] [];
    DeviceRebuild "org.openzfs:device_rebuild" "device_rebuild"
        "Support for sequential mirror/dRAID device rebuilds" [ro] [];
    ZstdCompress "org.freebsd:zstd_compress" "zstd_compress"
        "zstd compression algorithm support." [dataset] [ExtensibleDataset];
    Draid "org.openzfs:draid" "draid"
        "Support for distributed spare RAID" [label] [];
    DraidFailureDomains "com.seagate:draid_failure_domains" "draid_failure_domains"
        "Support for failure domains in dRAID" [label newer] [Draid];
    ZilSaXattr "org.openzfs:zilsaxattr" "zilsaxattr"
        "Support for xattr=sa extended attribute logging in ZIL." [ro dataset] [ExtensibleDataset];
    HeadErrlog "com.delphix:head_errlog" "head_errlog"
        "Support for per-dataset on-disk error logs." [on_enable] [];
    Blake3 "org.openzfs:blake3" "blake3"
        "BLAKE3 hash algorithm." [dataset] [ExtensibleDataset];
    BlockCloning "com.fudosecurity:block_cloning" "block_cloning"
        "Support for block cloning via Block Reference Table." [ro] [];
    BlockCloningEndian "com.truenas:block_cloning_endian" "block_cloning_endian"
        "Fixes BRT ZAP endianness on new pools." [ro newer] [];
    VdevZapsV2 "com.klarasystems:vdev_zaps_v2" "vdev_zaps_v2"
        "Support for root vdev ZAP." [label] [];
    RedactionListSpill "com.delphix:redaction_list_spill" "redaction_list_spill"
        "Support for increased number of redaction_snapshot arguments in zfs redact."
        [] [RedactionBookmarks];
    RaidzExpansion "org.openzfs:raidz_expansion" "raidz_expansion"
        "Support for raidz expansion" [label] [];
    FastDedup "com.klarasystems:fast_dedup" "fast_dedup"
        "Support for advanced deduplication" [ro] [];
    LongName "org.zfsonlinux:longname" "longname"
        "support filename up to 1024 bytes" [dataset] [ExtensibleDataset];
    LargeMicrozap "com.klarasystems:large_microzap" "large_microzap"
        "Support for microzaps larger than 128KB." [ro dataset] [ExtensibleDataset LargeBlocks];
    DynamicGangHeader "com.klarasystems:dynamic_gang_header" "dynamic_gang_header"
        "Support for dynamically sized gang headers" [label no_upgrade newer] [];
    PhysicalRewrite "com.truenas:physical_rewrite" "physical_rewrite"
        "Support for preserving logical birth time during rewrite."
        [ro dataset newer] [ExtensibleDataset];
}

impl Feature {
    /// All there is to know of it.
    pub fn info(self) -> &'static FeatureInfo {
        &FEATURES[self as usize]
    }

    /// Its name in the MOS.
    pub fn guid(self) -> &'static str {
        self.info().guid
    }

    /// By its name in the MOS.
    pub fn from_guid(guid: &str) -> Option<Self> {
        FEATURES
            .iter()
            .find(|info| info.guid == guid)
            .map(|info| info.feature)
    }

    /// By its name in properties.
    pub fn from_name(name: &str) -> Option<Self> {
        FEATURES
            .iter()
            .find(|info| info.name == name)
            .map(|info| info.feature)
    }
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.guid())
    }
}
