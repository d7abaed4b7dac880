//! Conditions of pools, in the order in which OpenZFS looks for them (`check_status`,
//! lib/libzfs/libzfs_status.c). What to say of each is the reader's business.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is to be said of an imported pool: the first that applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "condition", rename_all = "kebab-case")]
pub enum PoolCondition {
    /// Stopped after an I/O failure.
    Suspended {
        /// What failed.
        why: String,
        /// Property `failmode`.
        failmode: Failmode,
    },
    /// Blocks are lost.
    DataErrors,
    /// Devices are faulted; others have their data.
    FaultedDevices,
    /// Devices could not be opened; others have their data.
    MissingDevices,
    /// Devices have no label, or a wrong one; others have their data.
    BadLabels,
    /// Devices are given, or are about to be given, what they lack.
    Resilvering,
    /// Devices were rebuilt sequentially, and nothing was scrubbed since.
    RebuiltUnverified,
    /// Devices failed at times; nothing is lost.
    DeviceErrors,
    /// Devices were taken offline.
    OfflineDevices,
    /// Devices were removed from the system.
    RemovedDevices,
    /// What some release of OpenZFS left wrong (`zpool_errata_t`, include/sys/fs/zfs.h).
    Errata {
        /// Its number.
        number: u64,
    },
    /// The property `compatibility` names what cannot be read.
    CompatibilityUnreadable {
        /// Where its files are looked for.
        directories: Vec<String>,
    },
    /// Features are not enabled that could be.
    FeaturesDisabled,
    /// Features are enabled that the property `compatibility` does not name.
    FeaturesIncompatible {
        /// Where its files are looked for.
        directories: Vec<String>,
    },
    /// The pool's version is one before features.
    LegacyVersion,
}

impl PoolCondition {
    /// Nothing is wrong: the pool could be upgraded, or should not have been.
    pub fn is_healthy(&self) -> bool {
        matches!(
            self,
            Self::CompatibilityUnreadable { .. }
                | Self::FeaturesDisabled
                | Self::FeaturesIncompatible { .. }
                | Self::LegacyVersion
        )
    }
}

/// What a pool does after an I/O failure (property `failmode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Failmode {
    /// Who uses it waits.
    Wait,
    /// Who uses it gets errors.
    Continue,
    /// The same here, where OpenZFS would panic.
    Panic,
}

/// What is to be said of a pool that was found and is not imported: the first that applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "condition", rename_all = "kebab-case")]
pub enum FoundCondition {
    /// Another process of this host has it.
    InUse,
    /// A resilver was under way.
    Resilvering,
    /// Another host had it last.
    ForeignHost,
    /// Its version is not supported.
    UnsupportedVersion,
    /// It cannot be read for want of these features.
    UnsupportedFeatures {
        /// By their guids.
        features: Vec<String>,
    },
    /// It can be read, and not written for want of these features.
    ReadOnlyFeatures {
        /// By their guids.
        features: Vec<String>,
    },
    /// Whole vdevs were not found, and it is not known how many.
    MissingVdevs,
    /// Devices are faulted.
    FaultedDevices,
    /// Devices could not be opened.
    MissingDevices,
    /// Devices have no label, or a wrong one.
    BadLabels,
    /// What the devices hold makes no sense.
    CorruptMetadata,
    /// Devices were taken offline.
    OfflineDevices,
    /// What some release of OpenZFS left wrong.
    Errata {
        /// Its number.
        number: u64,
    },
    /// The pool's version is one before features.
    LegacyVersion,
    /// Features are not enabled that could be.
    FeaturesDisabled,
}
