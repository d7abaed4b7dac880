//! The one error type of a pool's parts.

use thiserror::Error;

/// Why a pool could not be created, found, imported, changed or exported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The name is not one a pool may have.
    #[error(
        "'{name}' cannot be a pool's name: {why}; choose a name that begins with a letter and \
         holds only letters, digits, '-', '_', '.', ':' and spaces"
    )]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The vdevs asked for do not make a pool.
    #[error("invalid vdev specification: {why}; change the list of devices")]
    BadVdevs {
        /// What is wrong with them.
        why: String,
    },
    /// A device seems to hold something that creating the pool would destroy.
    #[error("{path} {device_use}; use '-f' to overwrite it if that is really meant")]
    DeviceInUse {
        /// The device.
        path: String,
        /// What it is used for.
        device_use: DeviceUse,
    },
    /// The vdevs to add have another sector size than the pool's.
    #[error(
        "the new devices would have an ashift of {new} and those of '{pool}' have {known}; give \
         '-o ashift={known}', or use '--allow-ashift-mismatch' if that is really meant"
    )]
    AshiftMismatch {
        /// The pool.
        pool: String,
        /// log2 of the new vdev's smallest block.
        new: u64,
        /// That of the pool's vdevs.
        known: u64,
    },
    /// There is nothing to clear.
    #[error(
        "failed to read label from {path}; it has none that is valid, so nothing is to be done"
    )]
    NoLabel {
        /// The device.
        path: String,
    },
    /// A device cannot be removed.
    #[error("cannot remove {device}: {why}")]
    CannotRemove {
        /// The device, as it was called.
        device: String,
        /// Why not, with what to do.
        why: String,
    },
    /// There is nothing to stop.
    #[error(
        "cannot cancel removal: operation is not in progress; in '{pool}' no vdev is being removed"
    )]
    NoRemoval {
        /// The pool.
        pool: String,
    },
    /// What is asked would change the devices that get what is copied.
    #[error(
        "a vdev is being removed from '{pool}'; wait until that has ended, or stop it with 'zpool \
         remove -s'"
    )]
    RemovalUnderWay {
        /// The pool.
        pool: String,
    },
    /// No device of the pool goes by that name.
    #[error("{device}: no such device in pool; see 'zpool status'")]
    NotInPool {
        /// The device, as it was called.
        device: String,
    },
    /// What is asked is not for cache devices.
    #[error("{device} is in use as a cache device; use 'zpool remove'")]
    IsCache {
        /// The device, as it was called.
        device: String,
    },
    /// The vdev tree does not change like that.
    #[error(transparent)]
    Topology(#[from] vdev::TopologyError),
    /// No device of the pool goes by that name.
    #[error("cannot clear errors for {device}: no such device in pool")]
    NoSuchDevice {
        /// The device, as it was called.
        device: String,
    },
    /// Going back to the checkpoint would not be possible afterwards.
    #[error(
        "checkpoint exists; discard it first with 'zpool checkpoint -d {pool}', if the pool will \
         not have to go back to it"
    )]
    HasCheckpoint {
        /// The pool.
        pool: String,
    },
    /// What is left of the checkpoint must go first.
    #[error(
        "currently discarding checkpoint; wait until that is done with 'zpool wait -t discard \
         {pool}'"
    )]
    DiscardingCheckpoint {
        /// The pool.
        pool: String,
    },
    /// There is no checkpoint to discard.
    #[error("checkpoint does not exist; 'zpool checkpoint {pool}' makes one")]
    NoCheckpointToDiscard {
        /// The pool.
        pool: String,
    },
    /// A checkpoint cannot be made.
    #[error("cannot checkpoint '{pool}': {why}")]
    CannotCheckpoint {
        /// The pool.
        pool: String,
        /// Why not, with what to do.
        why: String,
    },
    /// Only a pool with all its devices can be given another guid.
    #[error("the devices of pool '{pool}' are not all online; repair it first")]
    NotHealthy {
        /// The pool.
        pool: String,
    },
    /// Log devices are missing, and nobody said that the pool is to be opened without them.
    #[error(
        "cannot import '{pool}': log devices are missing or damaged ({}); attach them, or import \
         the pool without them ('-m'): {}",
        devices.join(", "), lost_with_logs(datasets)
    )]
    MissingLog {
        /// The pool.
        pool: String,
        /// The log devices.
        devices: Vec<String>,
        /// What was logged on them and is not in the pool is of these.
        datasets: Vec<String>,
    },
    /// A device is smaller than a vdev must be.
    #[error(
        "{path} has {size_bytes} bytes but a vdev needs at least {needed_bytes}; use a larger \
         device"
    )]
    TooSmall {
        /// The device.
        path: String,
        /// Its size.
        size_bytes: u64,
        /// The least size (`SPA_MINDEVSIZE`).
        needed_bytes: u64,
    },
    /// A pool property does not exist, cannot be set, or cannot have that value.
    #[error("cannot set property '{property}' to '{value}': {why}; see zpoolprops(7)")]
    BadProperty {
        /// The property.
        property: String,
        /// The value asked for.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// A property of a vdev does not exist, cannot be set, or cannot have that value.
    #[error("{why}; see vdevprops(7)")]
    BadVdevProperty {
        /// The property.
        property: String,
        /// The vdev.
        vdev: String,
        /// What is wrong with it.
        why: String,
    },
    /// The pool uses features that this release cannot read.
    #[error(
        "cannot import '{pool}': it uses features that are not supported: {}; use a release that \
         supports them",
        features.join(", ")
    )]
    UnsupportedFeatures {
        /// The pool.
        pool: String,
        /// The features' names.
        features: Vec<String>,
    },
    /// The pool uses features that this release can read around but not write.
    #[error(
        "cannot import '{pool}' for writing: it uses features that are supported for reading only: \
         {}; import it with '-o readonly=on'",
        features.join(", ")
    )]
    UnsupportedForWrite {
        /// The pool.
        pool: String,
        /// The features' names.
        features: Vec<String>,
    },
    /// The pool's version is older than this release writes.
    #[error(
        "cannot import '{pool}': its version is {version}, and this release supports {supported}; \
         {advice}"
    )]
    UnsupportedVersion {
        /// The pool.
        pool: String,
        /// The version found.
        version: u64,
        /// What is supported, in words.
        supported: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The pool seems to be in use by another system.
    #[error(
        "cannot import '{pool}': it was last used by the host '{hostname}' (id {hostid:#x}) and \
         not exported; export it there, or use 'zpool import -f' if that host is gone"
    )]
    ForeignHost {
        /// The pool.
        pool: String,
        /// Name of the host that used it last.
        hostname: String,
        /// Its id.
        hostid: u64,
    },
    /// Another host uses the pool at this moment; that is seen by its heartbeats.
    #[error(
        "cannot import '{pool}': it is imported on the host '{hostname}' (id {hostid:#x}); export \
         it there first"
    )]
    RemoteActive {
        /// The pool.
        pool: String,
        /// Name of the host, as the labels tell.
        hostname: String,
        /// Its id.
        hostid: u64,
    },
    /// Another host imported the pool while it was suspended here.
    #[error(
        "pool '{pool}': another host has imported it since it was suspended here; give it up with \
         'zpool export -f {pool}'"
    )]
    TakenOver {
        /// The pool.
        pool: String,
    },
    /// The property multihost is on, and this host has no id.
    #[error(
        "cannot import '{pool}': its property multihost is on, and this host has no id; set one \
         with zgenhostid(8)"
    )]
    NoHostid {
        /// The pool.
        pool: String,
    },
    /// The pool was destroyed.
    #[error("cannot import '{pool}': it was destroyed; use 'zpool import -D' to bring it back")]
    Destroyed {
        /// The pool.
        pool: String,
    },
    /// Too many devices are missing or damaged.
    #[error("cannot open pool '{pool}': {why}; attach the missing devices and try again")]
    MissingDevices {
        /// The pool.
        pool: String,
        /// Which ones.
        why: String,
    },
    /// What the pool's own metadata says contradicts itself.
    #[error(
        "pool '{pool}': {what} is damaged: {why}; recover the pool from a copy, or import it \
         read-only to save what can be read"
    )]
    Damaged {
        /// The pool.
        pool: String,
        /// Which piece of metadata.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// None of the states asked for can be read.
    #[error(
        "cannot import '{pool}': none of {tried} states from transaction group {oldest} to \
         {newest} can be read; of the newest: {why}; try '-FX' or '-T' with '-o readonly=on', or \
         recover the pool from a copy"
    )]
    NoState {
        /// The pool.
        pool: String,
        /// How many were tried.
        tried: usize,
        /// The first of them.
        oldest: u64,
        /// The last of them.
        newest: u64,
        /// What is wrong with the newest.
        why: String,
    },
    /// There is no checkpoint to go back to.
    #[error(
        "cannot import '{pool}': the pool has no checkpoint; import it without \
         '--rewind-to-checkpoint'"
    )]
    NoCheckpoint {
        /// The pool.
        pool: String,
    },
    /// What is asked is not for a spare that stands by (`EZFS_ISSPARE`, lib/libzfs/libzfs_util.c).
    #[error("device is reserved as a hot spare; name one that is in use")]
    IsSpare {
        /// The device, as it was named.
        device: String,
    },
    /// The pool is open read-only.
    #[error("pool '{pool}' is read-only; export it and import it without 'readonly=on'")]
    ReadOnly {
        /// The pool.
        pool: String,
    },
    /// The pool is suspended after an I/O failure.
    #[error(
        "pool '{pool}' is suspended: {why}; make its devices available again and run 'zpool clear \
         {pool}'"
    )]
    Suspended {
        /// The pool.
        pool: String,
        /// The failure.
        why: String,
    },
    /// The pool was exported or destroyed meanwhile.
    #[error("pool '{pool}' is no longer open; import it again")]
    Closed {
        /// The pool.
        pool: String,
    },
    /// A feature flag is not known, or cannot be enabled by this release.
    #[error("cannot enable feature '{feature}': {why}; see zpool-features(7)")]
    BadFeature {
        /// The feature.
        feature: String,
        /// Why not.
        why: String,
    },
    /// The layer of datasets failed.
    #[error(transparent)]
    Dataset(#[from] dataset::DatasetError),
    /// The layer of objects failed.
    #[error(transparent)]
    Object(#[from] object::ObjectError),
    /// The layer of vdevs and blocks failed.
    #[error(transparent)]
    Zio(#[from] zio::ZioError),
    /// A configuration cannot be encoded or decoded.
    #[error(transparent)]
    Format(#[from] format::FormatError),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] device::DeviceError),
    /// A resilver is under way.
    #[error("cannot scrub {pool}: currently resilvering; 'zpool status' says how far it is")]
    Resilvering {
        /// The pool.
        pool: String,
    },
    /// A device cannot be attached to be rebuilt: a resilver is under way, or about to begin.
    #[error("currently resilvering")]
    ResilverUnderWay {
        /// The pool.
        pool: String,
    },
    /// A device cannot be attached to be resilvered: a sequential rebuild is under way.
    #[error("currently sequentially resilvering")]
    RebuildUnderWay {
        /// The pool.
        pool: String,
    },
    /// The vdev is none whose devices can be rebuilt sequentially.
    #[error("{vdev}: only mirror and dRAID vdevs support sequential reconstruction")]
    CannotRebuild {
        /// The top-level vdev.
        vdev: String,
    },
    /// The pool has not the feature for rebuilds.
    #[error(
        "device_rebuild feature must be enabled in order to use sequential reconstruction; enable \
         it with 'zpool set feature@device_rebuild=enabled {pool}'"
    )]
    RebuildDisabled {
        /// The pool.
        pool: String,
    },
    /// The pool has not the feature for RAID-Z expansion.
    #[error(
        "raidz_expansion feature must be enabled in order to attach a device to raidz; enable it \
         with 'zpool set feature@raidz_expansion=enabled {pool}'"
    )]
    ExpansionDisabled {
        /// The pool.
        pool: String,
    },
    /// A pool cannot be split.
    #[error("Unable to split {pool}: {why}")]
    CannotSplit {
        /// The pool.
        pool: String,
        /// Why.
        why: String,
    },
    /// Resilvers cannot be asked for.
    #[error(
        "cannot restart resilver on {pool}: feature resilver_defer is not enabled; enable it \
         with 'zpool set feature@resilver_defer=enabled {pool}'"
    )]
    NoResilverDefer {
        /// The pool.
        pool: String,
    },
    /// The pool's version is older than scans' own state.
    #[error(
        "cannot scrub {pool}: its version is older than 11; upgrade it with 'zpool upgrade', or \
         import it with '-o readonly=on' and scrub it then"
    )]
    ScrubOfOldPool {
        /// The pool.
        pool: String,
    },
    /// A scrub is under way.
    #[error("cannot scrub {pool}: currently scrubbing; use 'zpool scrub -s' to cancel scrub")]
    ScrubActive {
        /// The pool.
        pool: String,
    },
    /// The error log is to be scrubbed, and has not the form for that.
    #[error(
        "cannot scrub {pool}: feature head_errlog is not enabled; enable it with 'zpool set \
         feature@head_errlog=enabled {pool}'"
    )]
    NoHeadErrlog {
        /// The pool.
        pool: String,
    },
    /// A scrub of the error log is under way.
    #[error(
        "cannot scrub {pool}: currently error scrubbing; use 'zpool scrub -s' to cancel error \
         scrub"
    )]
    ErrorScrubActive {
        /// The pool.
        pool: String,
    },
    /// A scrub of the error log is paused.
    #[error(
        "cannot scrub {pool}: error scrub is paused; use 'zpool scrub -e' to resume error scrub"
    )]
    ErrorScrubPaused {
        /// The pool.
        pool: String,
    },
    /// A scrub is paused, and the error log is to be scrubbed.
    #[error(
        "cannot scrub {pool}: scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' \
         to \
         cancel scrub"
    )]
    ScrubPausedToCancel {
        /// The pool.
        pool: String,
    },
    /// The scrub is paused already.
    #[error("cannot pause scrubbing {pool}: scrub is paused; use 'zpool scrub' to resume scrub")]
    ScrubPaused {
        /// The pool.
        pool: String,
    },
    /// There is no scrub to pause or stop.
    #[error("there is no active scrub; start one with 'zpool scrub {pool}'")]
    NoScrub {
        /// The pool.
        pool: String,
    },
}

/// What an import without log devices loses.
fn lost_with_logs(datasets: &[String]) -> String {
    if datasets.is_empty() {
        return "no intent log is on them, so nothing is lost".to_owned();
    }
    format!(
        "what was written synchronously in the last seconds of use may be lost in {}",
        datasets.join(", ")
    )
}

/// What a device is used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceUse {
    /// It belongs to a pool that was not exported.
    ActivePool {
        /// The pool.
        pool: String,
    },
    /// It belongs to an exported pool.
    ExportedPool {
        /// The pool.
        pool: String,
    },
    /// Other software has something there.
    Other {
        /// What: "an ext4 filesystem".
        what: String,
    },
}

impl std::fmt::Display for DeviceUse {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ActivePool { pool } => {
                write!(out, "is part of potentially active pool '{pool}'")
            }
            Self::ExportedPool { pool } => write!(out, "is part of exported pool '{pool}'"),
            Self::Other { what } => write!(out, "contains {what}"),
        }
    }
}

impl PoolError {
    /// Whether the message begins with what cannot be done, and not only with why.
    pub fn says_what_failed(&self) -> bool {
        matches!(
            self,
            Self::CannotRemove { .. }
                | Self::NoRemoval { .. }
                | Self::NoSuchDevice { .. }
                | Self::CannotCheckpoint { .. }
                | Self::MissingLog { .. }
                | Self::BadProperty { .. }
                | Self::UnsupportedFeatures { .. }
                | Self::UnsupportedForWrite { .. }
                | Self::UnsupportedVersion { .. }
                | Self::ForeignHost { .. }
                | Self::RemoteActive { .. }
                | Self::NoHostid { .. }
                | Self::Destroyed { .. }
                | Self::MissingDevices { .. }
                | Self::NoState { .. }
                | Self::NoCheckpoint { .. }
                | Self::BadFeature { .. }
                | Self::Resilvering { .. }
                | Self::NoResilverDefer { .. }
                | Self::CannotSplit { .. }
                | Self::ScrubOfOldPool { .. }
                | Self::ScrubActive { .. }
                | Self::ScrubPaused { .. }
                | Self::NoHeadErrlog { .. }
                | Self::ErrorScrubActive { .. }
                | Self::ErrorScrubPaused { .. }
                | Self::ScrubPausedToCancel { .. }
        )
    }

    /// Whether the error says that what is on the devices is not as it must be, or cannot be read.
    pub fn is_damage(&self) -> bool {
        use dataset::DatasetError;
        use object::ObjectError;
        use zio::ZioError;
        let pool = match self {
            Self::Damaged { .. }
            | Self::Object(ObjectError::Format { .. } | ObjectError::Damaged { .. })
            | Self::Dataset(DatasetError::Object(
                ObjectError::Format { .. } | ObjectError::Damaged { .. },
            )) => return true,
            Self::Zio(error)
            | Self::Object(ObjectError::Zio(error))
            | Self::Dataset(
                DatasetError::Zio(error) | DatasetError::Object(ObjectError::Zio(error)),
            ) => error,
            _ => return false,
        };
        matches!(
            pool,
            ZioError::Checksum { .. }
                | ZioError::Unreadable { .. }
                | ZioError::Corrupt { .. }
                | ZioError::BadPointer { .. }
                | ZioError::Vdev(vdev::VdevError::Format(_))
        )
    }

    /// Whether the error says that the pool is suspended or was given up.
    pub fn is_suspended(&self) -> bool {
        matches!(
            self,
            Self::Suspended { .. }
                | Self::Zio(zio::ZioError::Suspended { .. } | zio::ZioError::Closing)
                | Self::Zio(zio::ZioError::TaskPanicked { .. })
                | Self::Dataset(dataset::DatasetError::Zio(
                    zio::ZioError::Suspended { .. } | zio::ZioError::TaskPanicked { .. }
                ))
        )
    }
}

impl From<vdev::VdevError> for PoolError {
    fn from(error: vdev::VdevError) -> Self {
        PoolError::Zio(error.into())
    }
}

/// That a part of the pool cannot be right.
pub fn damaged(pool: &str, what: &str, why: impl ToString) -> PoolError {
    PoolError::Damaged {
        pool: pool.to_owned(),
        what: what.to_owned(),
        why: why.to_string(),
    }
}

/// Something that the pool does without, as it cannot be read.
pub fn lost(pool: &str, what: &str, error: &dyn std::fmt::Display) {
    tracing::error!(pool, what, %error, "cannot be read; the pool does without");
}

#[cfg(test)]
mod tests {
    use object::ObjectError;
    use zio::ZioError;

    use super::*;

    #[test]
    fn what_cannot_be_understood_is_damage() {
        let text = || "a leaf".to_owned();
        let corrupt = ZioError::Corrupt {
            block: text(),
            what: text(),
        };
        let pointer = ZioError::BadPointer {
            block: text(),
            what: text(),
        };
        for error in [corrupt, pointer] {
            assert!(PoolError::Object(ObjectError::Zio(error)).is_damage());
        }
        assert!(!PoolError::Zio(ZioError::ReadOnly).is_damage());
    }
}
