//! What is to be said of a pool, imported or found: which condition it is, for the reader to put
//! into words. The order is that of OpenZFS (`check_status`, lib/libzfs/libzfs_status.c).

use api::{Failmode, FoundCondition, PoolCondition, VdevAux, VdevClass, VdevReport, VdevState};
use format::Uberblock;
use pool::{FeatureState, FeatureStatus, FoundPool, Pool, PoolStatus, Probe, Unusable};

use crate::compatibility::{self, Compatibility};
use crate::reports;

/// Whether one of these vdevs is so. Spares that are not there are no problem of the pool
/// (`find_vdev_problem`).
fn any(vdev: &VdevReport, test: &impl Fn(&VdevReport) -> bool) -> bool {
    let mut counted = vdev
        .children
        .iter()
        .filter(|child| child.class != VdevClass::Spare);
    test(vdev) || counted.any(|child| any(child, test))
}

/// The same of leaves only.
fn any_leaf(vdev: &VdevReport, test: &impl Fn(&VdevReport) -> bool) -> bool {
    any(vdev, &|vdev| vdev.children.is_empty() && test(vdev))
}

fn could_not_be_opened(leaf: &VdevReport) -> bool {
    leaf.state == VdevState::Unavailable && leaf.aux == Some(VdevAux::OpenFailed)
}

/// What is to be said of an imported pool.
pub fn of_pool(pool: &Pool, status: &PoolStatus, tree: &VdevReport) -> Option<PoolCondition> {
    let value = |name| {
        pool.properties()
            .get(name)
            .map_or_else(String::new, |prop| prop.value)
    };
    let in_state = |state: VdevState| any_leaf(tree, &|leaf| leaf.state == state);
    let has_errors = |vdev: &VdevReport| {
        let errors = vdev.read_errors + vdev.write_errors + vdev.checksum_errors;
        errors > 0 || vdev.children.is_empty() && vdev.state == VdevState::Degraded
    };
    let is_resilvering = status
        .scan
        .as_ref()
        .is_some_and(pool::ScanStatus::is_resilvering)
        || pool.scans().is_rebuilding()
        || pool.scans().is_resilver_due();
    if let Some(why) = &status.suspended_why {
        return Some(PoolCondition::Suspended {
            why: why.clone(),
            failmode: match value("failmode").as_str() {
                "wait" => Failmode::Wait,
                "panic" => Failmode::Panic,
                _ => Failmode::Continue,
            },
        });
    }
    Some(if is_resilvering {
        PoolCondition::Resilvering
    } else if is_rebuilt_unverified(status) {
        PoolCondition::RebuiltUnverified
    } else if status.data_errors > 0 {
        PoolCondition::DataErrors
    } else if in_state(VdevState::Faulted) {
        PoolCondition::FaultedDevices
    } else if any_leaf(tree, &could_not_be_opened) {
        PoolCondition::MissingDevices
    } else if in_state(VdevState::Unavailable) {
        PoolCondition::BadLabels
    } else if any(tree, &has_errors) {
        PoolCondition::DeviceErrors
    } else if in_state(VdevState::Offline) {
        PoolCondition::OfflineDevices
    } else if in_state(VdevState::Removed) {
        PoolCondition::RemovedDevices
    } else if status.errata != 0 {
        PoolCondition::Errata {
            number: status.errata,
        }
    } else if status.version >= Uberblock::VERSION_FEATURES {
        return of_features(pool, &value("compatibility"));
    } else if value("compatibility") == "legacy" {
        return None;
    } else {
        PoolCondition::LegacyVersion
    })
}

/// Whether devices were rebuilt after the last scrub ended, and none is under way.
fn is_rebuilt_unverified(status: &PoolStatus) -> bool {
    let tops = status.root.children.iter();
    let rebuilds = tops.filter_map(|top| top.rebuild);
    let complete = rebuilds.filter(|rebuild| rebuild.state == pool::RebuildState::Complete);
    let last_s = complete.map(|rebuild| rebuild.end_time_s).max();
    last_s.is_some_and(|last_s| match &status.scan {
        None => true,
        Some(scan) => {
            let is_scrub = scan.function == pool::ScanFunction::Scrub;
            is_scrub && scan.state == pool::ScanState::Finished && last_s > scan.end_time_s
        }
    })
}

/// What is to be said of the features of a pool, with that value of the property `compatibility`.
fn of_features(pool: &Pool, compatibility: &str) -> Option<PoolCondition> {
    let directories = || compatibility::DIRECTORIES.map(str::to_owned).to_vec();
    let Ok(requested) = Compatibility::load(compatibility) else {
        return Some(PoolCondition::CompatibilityUnreadable {
            directories: directories(),
        });
    };
    let disabled = pool.properties().disabled_features();
    if disabled.iter().any(|feature| requested.asks_for(feature)) {
        return Some(PoolCondition::FeaturesDisabled);
    }
    let is_superfluous = |feature: &FeatureStatus| {
        feature.supported
            && feature.state != FeatureState::Disabled
            && !requested.allows(&feature.name)
    };
    if pool.properties().features().iter().any(is_superfluous) {
        return Some(PoolCondition::FeaturesIncompatible {
            directories: directories(),
        });
    }
    None
}

/// What is to be said of a pool that was found; `is_foreign` when another host had it last.
pub fn of_found(probe: &Probe, tree: &VdevReport, is_foreign: bool) -> Option<FoundCondition> {
    let in_state = |state: VdevState| any_leaf(tree, &|leaf| leaf.state == state);
    // What devices have to do with it.
    let of_devices = || {
        if in_state(VdevState::Faulted) {
            Some(FoundCondition::FaultedDevices)
        } else if any_leaf(tree, &could_not_be_opened) {
            Some(FoundCondition::MissingDevices)
        } else if in_state(VdevState::Unavailable) {
            Some(FoundCondition::BadLabels)
        } else {
            None
        }
    };
    if probe.is_in_use {
        return Some(FoundCondition::InUse);
    }
    if probe.is_resilvering && probe.unusable.is_none() {
        return Some(FoundCondition::Resilvering);
    }
    if is_foreign {
        return Some(FoundCondition::ForeignHost);
    }
    match &probe.unusable {
        Some(Unusable::Version) => Some(FoundCondition::UnsupportedVersion),
        Some(Unusable::FeaturesForRead(features)) => Some(FoundCondition::UnsupportedFeatures {
            features: features.clone(),
        }),
        Some(Unusable::FeaturesForWrite(features)) => Some(FoundCondition::ReadOnlyFeatures {
            features: features.clone(),
        }),
        Some(Unusable::MissingTops) => Some(FoundCondition::MissingVdevs),
        Some(_) => of_devices().or(Some(FoundCondition::CorruptMetadata)),
        None => of_devices().or_else(|| {
            Some(if in_state(VdevState::Offline) {
                FoundCondition::OfflineDevices
            } else if probe.errata != 0 {
                FoundCondition::Errata {
                    number: probe.errata,
                }
            } else if probe.old_version {
                FoundCondition::LegacyVersion
            } else if probe.features_disabled {
                FoundCondition::FeaturesDisabled
            } else {
                return None;
            })
        }),
    }
}

/// The tree of a pool that was found.
pub fn found_tree(found: &FoundPool, probe: &Probe) -> VdevReport {
    let aux = probe.unusable.as_ref().map(|unusable| match unusable {
        Unusable::MissingTops => VdevAux::BadGuidSum,
        Unusable::NoReplicas => VdevAux::NoReplicas,
        Unusable::Version => VdevAux::VersionNewer,
        Unusable::FeaturesForRead(_) | Unusable::FeaturesForWrite(_) => VdevAux::UnsupportedFeature,
        _ => VdevAux::CorruptData,
    });
    let has_place = |vdev: &VdevReport| {
        use api::VdevKind::{Hole, Indirect, Missing};
        !matches!(vdev.kind, Hole | Missing | Indirect)
    };
    let vdevs = probe
        .tops
        .iter()
        .chain(&probe.caches)
        .chain(&probe.spares)
        .map(reports::vdev);
    VdevReport {
        name: found.name.clone(),
        kind: api::VdevKind::Root,
        // `zpool_state_to_name`: what cannot be opened for its data counts as faulted.
        state: match aux {
            Some(VdevAux::CorruptData) => VdevState::Faulted,
            _ => reports::state(probe.state),
        },
        aux,
        children: vdevs.filter(has_place).collect(),
        ..VdevReport::default()
    }
}
