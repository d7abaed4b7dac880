//! What `zpool status` and `zpool import` say of a pool's condition: what is wrong, what to do, and
//! where to read more (`print_status_reason`, `show_import`, cmd/zpool/zpool_main.c; the pages:
//! `zfs_msgid_table`, lib/libzfs/libzfs_status.c).

use api::{Failmode, FoundCondition, FoundPoolReport, PoolCondition, VdevAux, VdevState};

use crate::refusals::lost_with_logs;

/// Sentences about a condition. Lines end where OpenZFS's do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// What is wrong.
    pub status: Option<String>,
    /// What to do.
    pub action: Option<String>,
    /// Name of the page about it.
    pub page: Option<&'static str>,
}

impl Said {
    fn new(status: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            status: Some(status.into()),
            action: Some(action.into()),
            page: None,
        }
    }

    fn with_page(mut self, id: &'static str) -> Self {
        self.page = Some(id);
        self
    }

    /// The address of the page about it.
    pub fn see(&self) -> Option<String> {
        self.page
            .map(|id| format!("https://openzfs.github.io/openzfs-docs/msg/{id}"))
    }
}

/// What is said of an imported pool.
pub fn of_pool(condition: Option<&PoolCondition>) -> Said {
    let Some(condition) = condition else {
        return Said::default();
    };
    match condition {
        // What happened is told as well, which OpenZFS leaves to its event log.
        PoolCondition::Suspended { why, failmode } => Said::new(
            format!("One or more devices are faulted in response to IO failures.\n({why})"),
            "Make sure the affected devices are connected, then run 'zpool clear'.",
        )
        .with_page(match failmode {
            Failmode::Wait => "ZFS-8000-HC",
            Failmode::Continue | Failmode::Panic => "ZFS-8000-JQ",
        }),
        PoolCondition::DataErrors => Said::new(
            "One or more devices has experienced an error resulting in data\n\
             corruption.  Applications may be affected.",
            "Restore the file in question if possible.  Otherwise restore the\n\
             entire pool from backup.",
        )
        .with_page("ZFS-8000-8A"),
        PoolCondition::FaultedDevices => Said::new(
            "One or more devices are faulted in response to persistent errors.\n\
             Sufficient replicas exist for the pool to continue functioning in a\n\
             degraded state.",
            "Replace the faulted device, or use 'zpool clear' to mark the device\n\
             repaired.",
        ),
        PoolCondition::MissingDevices => Said::new(
            "One or more devices could not be opened.  Sufficient replicas exist for\n\
             the pool to continue functioning in a degraded state.",
            "Attach the missing device and online it using 'zpool online'.",
        )
        .with_page("ZFS-8000-2Q"),
        PoolCondition::BadLabels => Said::new(
            "One or more devices could not be used because the label is missing or\n\
             invalid.  Sufficient replicas exist for the pool to continue\n\
             functioning in a degraded state.",
            "Replace the device using 'zpool replace'.",
        )
        .with_page("ZFS-8000-4J"),
        PoolCondition::Resilvering => Said::new(
            "One or more devices is currently being resilvered.  The pool will\n\
             continue to function, possibly in a degraded state.",
            "Wait for the resilver to complete.",
        ),
        PoolCondition::RebuiltUnverified => Said::new(
            "One or more devices have been sequentially resilvered, scrubbing\n\
             the pool is recommended.",
            "Use 'zpool scrub' to verify all data checksums.",
        ),
        PoolCondition::DeviceErrors => Said::new(
            "One or more devices has experienced an unrecoverable error.  An\n\
             attempt was made to correct the error.  Applications are unaffected.",
            "Determine if the device needs to be replaced, and clear the errors\n\
             using 'zpool clear' or replace the device with 'zpool replace'.",
        )
        .with_page("ZFS-8000-9P"),
        PoolCondition::OfflineDevices => Said::new(
            "One or more devices has been taken offline by the administrator.\n\
             Sufficient replicas exist for the pool to continue functioning in a\n\
             degraded state.",
            "Online the device using 'zpool online' or replace the device with\n\
             'zpool replace'.",
        ),
        PoolCondition::RemovedDevices => Said::new(
            "One or more devices have been removed.\n\
             Sufficient replicas exist for the pool to continue functioning in a\n\
             degraded state.",
            "Online the device using zpool online' or replace the device with\n\
             'zpool replace'.",
        ),
        PoolCondition::Errata { number } => {
            let (what, action) = errata(*number);
            Said::new(format!("Errata #{number} detected.\n{what}"), action)
                .with_page("ZFS-8000-ER")
        }
        PoolCondition::CompatibilityUnreadable { directories } => Said::new(
            "This pool has a compatibility list specified, but it could not be\n\
             read/parsed at this time. The pool can still be used, but this\n\
             should be investigated.",
            format!(
                "Check the value of the 'compatibility' property against the\n\
                 appropriate file in {}.",
                directories.join(" or ")
            ),
        ),
        PoolCondition::FeaturesDisabled => Said::new(
            "Some supported and requested features are not enabled on the pool.\n\
             The pool can still be used, but some features are unavailable.",
            "Enable all features using 'zpool upgrade'. Once this is done,\n\
             the pool may no longer be accessible by software that does not support\n\
             the features. See zpool-features(7) for details.",
        ),
        PoolCondition::FeaturesIncompatible { directories } => Said::new(
            "One or more features are enabled on the pool despite not being\n\
             requested by the 'compatibility' property.",
            format!(
                "Consider setting 'compatibility' to an appropriate value, or\n\
                 adding needed features to the relevant file in\n{}.",
                directories.join(" or ")
            ),
        ),
        PoolCondition::LegacyVersion => Said::new(
            "The pool is formatted using a legacy on-disk format.  The pool can\n\
             still be used, but some features are unavailable.",
            "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\
             pool will no longer be accessible on software that does not support\n\
             feature flags.",
        ),
    }
}

/// What is wrong with a pool of an errata number, and what to do (`zpool_errata_t`,
/// include/sys/fs/zfs.h).
fn errata(number: u64) -> (&'static str, &'static str) {
    match number {
        1 => (
            "A scrub or resilver left a record of a wrong size.",
            "Import the pool with OpenZFS and run 'zpool scrub'.",
        ),
        2 => (
            "A filesystem that was being destroyed left a record of another format.",
            "Import the pool with the release that made it, and let it finish.",
        ),
        3 => (
            "Existing encrypted datasets contain an on-disk incompatibility.",
            "Copy them to new encrypted datasets and destroy the old ones.  They can\n\
             be mounted with 'zfs mount -o ro'.",
        ),
        4 => (
            "Existing encrypted snapshots and bookmarks contain an on-disk\n\
             incompatibility.  It may cause on-disk corruption if they are used with\n\
             'zfs recv'.",
            "Enable the feature bookmark_v2.  No more is needed without encrypted\n\
             snapshots and bookmarks; where they have to be kept, copy them with a\n\
             send that is not raw, and destroy the old ones.",
        ),
        _ => (
            "A later release of OpenZFS found it.",
            "See what that release says.",
        ),
    }
}

/// What is said of a pool that can be imported, or not.
pub fn of_found(pool: &FoundPoolReport) -> Said {
    let mut said = status_of_found(pool);
    let in_use = pool.condition == Some(FoundCondition::InUse);
    if pool.state == VdevState::Degraded && !in_use {
        said.action = Some(
            "The pool can be imported despite missing or damaged devices.  The\n\
             fault tolerance of the pool may be compromised if imported."
                .to_owned(),
        );
    }
    said
}

fn status_of_found(pool: &FoundPoolReport) -> Said {
    let missing = "One or more devices are missing from the system.";
    let attach = "The pool cannot be imported. Attach the missing\ndevices and try again.";
    let broken = "The pool cannot be imported due to damaged devices or data.";
    let whole = "The pool can be imported using its name or numeric identifier.";
    let old = "The pool can be imported using its name or numeric identifier, though\n\
               some features will not be available without an explicit 'zpool upgrade'.";
    let can_be_imported = pool.is_importable;
    let Some(condition) = &pool.condition else {
        return Said {
            action: Some(whole.to_owned()),
            ..Said::default()
        };
    };
    // What can be done where devices fail.
    let of_devices = |otherwise| if can_be_imported { whole } else { otherwise };
    match condition {
        FoundCondition::InUse => Said::new(
            "The pool is in use by another process of this system.",
            "The pool must be exported there before it can be imported here.",
        ),
        FoundCondition::Resilvering => {
            Said::new("One or more devices were being resilvered.", whole)
        }
        FoundCondition::ForeignHost => Said::new(
            "The pool was last accessed by another system.",
            "The pool can be imported using its name or numeric identifier and\nthe '-f' flag.",
        )
        .with_page("ZFS-8000-EY"),
        FoundCondition::UnsupportedVersion => Said::new(
            "The pool is formatted using an incompatible version.",
            "The pool cannot be imported.  Access the pool on a system running newer\n\
             software, or recreate the pool from backup.",
        )
        .with_page("ZFS-8000-A5"),
        FoundCondition::UnsupportedFeatures { features } => Said::new(
            format!(
                "The pool uses the following feature(s) not supported on this system:\n{}",
                features.join("\n")
            ),
            "The pool cannot be imported. Access the pool on a system that supports\n\
             the required feature(s), or recreate the pool from backup.",
        ),
        FoundCondition::ReadOnlyFeatures { features } => Said::new(
            format!(
                "The pool can only be accessed in read-only mode on this system. It\n\
                 cannot be accessed in read-write mode because it uses the following\n\
                 feature(s) not supported on this system:\n{}",
                features.join("\n")
            ),
            "The pool cannot be imported in read-write mode. Import the pool with\n\
             '-o readonly=on', access the pool on a system that supports the\n\
             required feature(s), or recreate the pool from backup.",
        ),
        FoundCondition::MissingVdevs => Said::new(missing, attach).with_page("ZFS-8000-6X"),
        FoundCondition::FaultedDevices => {
            Said::new("One or more devices are faulted.", of_devices(broken))
        }
        FoundCondition::MissingDevices => {
            Said::new(missing, of_devices(attach)).with_page(match can_be_imported {
                true => "ZFS-8000-2Q",
                false => "ZFS-8000-3C",
            })
        }
        FoundCondition::BadLabels => Said::new(
            "One or more devices contains corrupted data.",
            of_devices(broken),
        )
        .with_page(match can_be_imported {
            true => "ZFS-8000-4J",
            false => "ZFS-8000-5E",
        }),
        FoundCondition::CorruptMetadata => Said::new(
            "The pool metadata is incomplete or corrupted.",
            "The pool cannot be imported due to missing or damaged devices.  Ensure\n\
             all devices are present and not in use by another subsystem.",
        )
        .with_page("ZFS-8000-72"),
        FoundCondition::OfflineDevices => Said::new("One or more devices are offlined.", whole),
        FoundCondition::Errata { number } => Said::new(
            format!("Errata #{number} detected.\n{}", errata(*number).0),
            whole,
        )
        .with_page("ZFS-8000-ER"),
        FoundCondition::LegacyVersion => {
            Said::new("The pool is formatted using a legacy on-disk version.", old)
        }
        FoundCondition::FeaturesDisabled => Said::new(
            "Some supported features are not enabled on the pool.\n\
             (Note that they may be intentionally disabled if the\n\
             'compatibility' property is set.)",
            old,
        ),
    }
}

/// What is said below the tree of a pool that can be imported, or not.
pub fn footer(pool: &FoundPoolReport) -> Option<String> {
    if pool.tree.aux == Some(VdevAux::BadGuidSum) {
        return Some(
            "Additional devices are known to be part of this pool, though their\n\
             exact configuration cannot be determined."
                .to_owned(),
        );
    }
    // OpenZFS tells only when the import is refused that it takes `-m`.
    let datasets = pool.lost_logs.as_ref()?;
    Some(format!(
        "Devices of the intent log are missing or damaged: attach them, or use '-m'\n\
         to import the pool without them.\n{}",
        lost_with_logs(datasets, "\n", "\n")
    ))
}
