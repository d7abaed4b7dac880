//! The words that zpool(8) has for what a pool and its vdevs are (`zpool_state_to_name`,
//! `zpool_pool_state_to_name`, lib/libzfs/libzfs_pool.c; `vdev_aux_str`, `vdev_state_str`,
//! cmd/zpool/zpool_main.c).

use api::{
    ActivityState, DeviceKind, PoolHealth, ScanFunction, ScanState, VdevAux, VdevClass, VdevKind,
    VdevLayout, VdevReport, VdevState,
};

/// A pool's state.
pub fn health(health: PoolHealth) -> &'static str {
    match health {
        PoolHealth::Online => "ONLINE",
        PoolHealth::Degraded => "DEGRADED",
        PoolHealth::Faulted => "FAULTED",
        PoolHealth::Suspended => "SUSPENDED",
    }
}

/// A vdev's state.
pub fn state(state: VdevState) -> &'static str {
    match state {
        VdevState::Online => "ONLINE",
        VdevState::Degraded => "DEGRADED",
        VdevState::Faulted => "FAULTED",
        VdevState::Offline => "OFFLINE",
        VdevState::Unavailable => "UNAVAIL",
        VdevState::Removed => "REMOVED",
        VdevState::Available => "AVAIL",
        VdevState::InUse => "INUSE",
        VdevState::Suspended => "SUSPENDED",
    }
}

/// A vdev's type.
pub fn kind(kind: &VdevKind) -> &str {
    match kind {
        VdevKind::Root => "root",
        VdevKind::Disk => "disk",
        VdevKind::File => "file",
        VdevKind::Mirror => "mirror",
        VdevKind::Raidz => "raidz",
        VdevKind::Draid => "draid",
        VdevKind::DraidSpare => "dspare",
        VdevKind::Replacing => "replacing",
        VdevKind::Spare => "spare",
        VdevKind::Hole => "hole",
        VdevKind::Indirect => "indirect",
        VdevKind::Missing => "missing",
        VdevKind::Other(name) => name,
    }
}

/// What a vdev that is asked for is called, devices by `device` (`zpool_draid_name`,
/// lib/libzfs/libzfs_pool.c).
pub fn layout(layout: &VdevLayout, device: &dyn Fn(&str, Option<DeviceKind>) -> String) -> String {
    match layout {
        VdevLayout::Device(spec) => device(&spec.path, spec.kind),
        VdevLayout::Mirror { .. } => "mirror".to_owned(),
        VdevLayout::Raidz { parity, .. } => format!("raidz{parity}"),
        VdevLayout::Draid {
            parity,
            data,
            spares,
            devices,
        } => format!("draid{parity}:{data}d:{}c:{spares}s", devices.len()),
    }
}

/// A class, as in commands; nothing for ordinary data.
pub fn class(class: VdevClass) -> &'static str {
    match class {
        VdevClass::Normal => "",
        VdevClass::Log => "log",
        VdevClass::Special => "special",
        VdevClass::Dedup => "dedup",
        VdevClass::Spare => "spare",
        VdevClass::Cache => "cache",
    }
}

/// Why a vdev is as it is, and what else is to be said of it, at the end of its line.
pub fn note(vdev: &VdevReport) -> Option<String> {
    if let Some(path) = vdev.path.as_ref().filter(|_| vdev.is_absent) {
        return Some(format!("was {path}"));
    }
    if let Some(pool) = &vdev.used_by {
        return Some(format!("in use by pool '{pool}'"));
    }
    let why = vdev.aux.map(|aux| match aux {
        VdevAux::OpenFailed => "cannot open",
        VdevAux::CorruptData => "corrupted data",
        VdevAux::NoReplicas => "insufficient replicas",
        VdevAux::BadGuidSum => "missing device",
        VdevAux::TooSmall => "device is too small",
        VdevAux::BadLabel => "invalid label",
        VdevAux::VersionNewer => "newer version",
        VdevAux::UnsupportedFeature => "unsupported feature(s)",
        VdevAux::Spared => "currently in use",
        VdevAux::ErrorsExceeded if is_only_slow(vdev) => "too many slow I/Os",
        VdevAux::ErrorsExceeded => "too many errors",
        VdevAux::External => "external device fault",
        VdevAux::SplitPool => "split into new pool",
    });
    let more = match (vdev.is_removing, vdev.is_non_allocating) {
        (true, _) => Some("(removing)"),
        (false, true) => Some("(non-allocating)"),
        (false, false) => None,
    };
    match (why, more) {
        (Some(why), Some(more)) => Some(format!("{why}  {more}")),
        (why, more) => why.or(more).map(str::to_owned),
    }
}

/// Whether a device's only errors are that it was slow (`print_status_config`).
fn is_only_slow(vdev: &VdevReport) -> bool {
    let errors = vdev.read_errors + vdev.write_errors + vdev.checksum_errors;
    errors == 0 && vdev.children.is_empty() && vdev.slow_ios > 0
}

/// The same as JSON has it.
pub fn aux(aux: VdevAux) -> &'static str {
    match aux {
        VdevAux::OpenFailed => "OPEN_FAILED",
        VdevAux::CorruptData => "CORRUPT_DATA",
        VdevAux::NoReplicas => "NO_REPLICAS",
        VdevAux::BadGuidSum => "BAD_GUID_SUM",
        VdevAux::TooSmall => "TOO_SMALL",
        VdevAux::BadLabel => "BAD_LABEL",
        VdevAux::VersionNewer => "VERSION_NEWER",
        VdevAux::UnsupportedFeature => "UNSUP_FEAT",
        VdevAux::Spared => "SPARED",
        VdevAux::ErrorsExceeded => "ERR_EXCEEDED",
        VdevAux::External => "EXTERNAL",
        VdevAux::SplitPool => "SPLIT_POOL",
    }
}

/// State of an initialization or trim.
pub fn activity(state: ActivityState) -> &'static str {
    match state {
        ActivityState::Active => "ACTIVE",
        ActivityState::Canceled => "CANCELED",
        ActivityState::Suspended => "SUSPENDED",
        ActivityState::Complete => "COMPLETE",
    }
}

/// What a scan does.
pub fn scan(function: ScanFunction) -> &'static str {
    match function {
        ScanFunction::Scrub => "scrub",
        ScanFunction::Resilver => "resilver",
    }
}

/// How far a scan is, as JSON has it.
pub fn scan_state(state: ScanState) -> &'static str {
    match state {
        ScanState::Scanning => "SCANNING",
        ScanState::Finished => "FINISHED",
        ScanState::Canceled => "CANCELED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was too much is told by the counters of the device itself.
    #[test]
    fn a_device_that_was_only_slow_is_called_so() {
        let vdev = |slow_ios, write_errors| VdevReport {
            aux: Some(VdevAux::ErrorsExceeded),
            slow_ios,
            write_errors,
            ..VdevReport::default()
        };
        for (slow_ios, write_errors, expected) in [
            (3, 0, "too many slow I/Os"),
            (3, 1, "too many errors"),
            (0, 0, "too many errors"),
        ] {
            let note = note(&vdev(slow_ios, write_errors));
            assert_eq!(note.as_deref(), Some(expected));
        }
    }
}
