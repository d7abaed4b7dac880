//! What there is to say of a pool, from its status.

use api::{
    Alert, AlertFact, AlertRule, AlertSettings, AlertSeverity, PoolCondition, PoolHealth,
    PoolStatusReport, VdevAux, VdevClass, VdevKind, VdevReport, VdevState,
};

/// How much less full than at the limit a pool has to be before it counts as less full, in percent:
/// one at the limit is not told of again and again.
const SPACE_SLACK_PERCENT: u64 = 2;

/// The alerts that a pool gives reason for. `stood` says whether an alert stood before, which
/// counts for those with a limit.
pub fn found_in(
    pool: &PoolStatusReport,
    settings: &AlertSettings,
    stood: impl Fn(&Alert) -> bool,
) -> Vec<Alert> {
    let mut out = Vec::new();
    let of_pool = |rule, severity, fact| Alert {
        rule,
        severity,
        pool: pool.name.clone(),
        pool_guid: pool.guid,
        disk: None,
        device_guid: None,
        fact,
    };
    let why = match &pool.condition {
        Some(PoolCondition::Suspended { why, .. }) => Some(why.clone()),
        _ => None,
    };
    match pool.health {
        PoolHealth::Suspended => {
            let fact = AlertFact::Suspended {
                why: why.unwrap_or_default(),
            };
            out.push(of_pool(
                AlertRule::PoolSuspended,
                AlertSeverity::Critical,
                fact,
            ));
        }
        PoolHealth::Degraded => {
            let fact = AlertFact::Degraded;
            out.push(of_pool(AlertRule::PoolHealth, AlertSeverity::Warning, fact));
        }
        PoolHealth::Faulted => {
            let fact = AlertFact::Faulted;
            out.push(of_pool(
                AlertRule::PoolHealth,
                AlertSeverity::Critical,
                fact,
            ));
        }
        PoolHealth::Online => {}
    }
    if pool.error_count > 0 {
        let fact = AlertFact::DataErrors {
            count: pool.error_count,
        };
        out.push(of_pool(
            AlertRule::DataErrors,
            AlertSeverity::Critical,
            fact,
        ));
    }
    out.extend(fullness(pool, settings, &of_pool, &stood));
    let survives = match pool.health {
        PoolHealth::Online | PoolHealth::Degraded => survives(&pool.tree),
        _ => None,
    };
    devices(pool, &pool.tree, survives, settings, &mut out);
    out.retain(|alert| !settings.off.contains(&alert.rule));
    // Which device it is says more than that one is missing: one failure is one alert.
    let is_explained = out.iter().any(is_cause);
    out.retain(|alert| !(is_explained && alert.fact == AlertFact::Degraded));
    out
}

fn fullness(
    pool: &PoolStatusReport,
    settings: &AlertSettings,
    of_pool: &impl Fn(AlertRule, AlertSeverity, AlertFact) -> Alert,
    stood: &impl Fn(&Alert) -> bool,
) -> Option<Alert> {
    let size_bytes = u128::from(pool.tree.size_bytes);
    if size_bytes == 0 {
        return None;
    }
    let percent = (u128::from(pool.tree.allocated_bytes) * 100 / size_bytes) as u64;
    let (low, high) = settings.space_percent;
    let limits = [
        (high, AlertSeverity::Critical),
        (low, AlertSeverity::Warning),
    ];
    limits.into_iter().find_map(|(limit_percent, severity)| {
        let fact = AlertFact::Space {
            percent,
            limit_percent,
        };
        let alert = of_pool(AlertRule::Space, severity, fact);
        let is_so = percent >= limit_percent
            || percent + SPACE_SLACK_PERCENT > limit_percent && stood(&alert);
        is_so.then_some(alert)
    })
}

/// Whether an alert is about a device that its pool lacks.
pub(crate) fn is_cause(alert: &Alert) -> bool {
    match alert.fact {
        AlertFact::Device { aux, .. } => {
            alert.severity == AlertSeverity::Critical || aux == Some(VdevAux::External)
        }
        _ => false,
    }
}

/// Whether all of the data that belongs on a vdev is there.
fn is_whole(vdev: &VdevReport) -> bool {
    match vdev.kind {
        VdevKind::Replacing | VdevKind::Spare => vdev.children.iter().any(is_whole),
        _ => vdev.state == VdevState::Online && !vdev.is_stale,
    }
}

/// The parity of a vdev, which its name has: `raidz2-0`, `draid1:4d:8c:0s-0`.
fn parity(vdev: &VdevReport) -> u64 {
    let digit = vdev.name.chars().find(char::is_ascii_digit);
    digit
        .and_then(|digit| digit.to_digit(10))
        .map_or(1, u64::from)
}

/// How many more devices below a vdev may fail, whichever they are, before data is lost; none
/// where it is lost already, or nobody knows.
fn survives(vdev: &VdevReport) -> Option<u64> {
    let whole = || vdev.children.iter().filter(|child| is_whole(child)).count() as u64;
    match vdev.kind {
        VdevKind::Root => {
            let with_data = vdev.children.iter().filter(|child| {
                let is_gone = matches!(child.kind, VdevKind::Hole | VdevKind::Indirect);
                let is_aside = matches!(
                    child.class,
                    VdevClass::Log | VdevClass::Spare | VdevClass::Cache
                );
                !is_gone && !is_aside
            });
            let each: Option<Vec<u64>> = with_data.map(survives).collect();
            each?.into_iter().min()
        }
        VdevKind::Mirror => whole().checked_sub(1),
        VdevKind::Raidz | VdevKind::Draid => {
            let missing = vdev.children.len() as u64 - whole();
            parity(vdev).checked_sub(missing)
        }
        _ => is_whole(vdev).then_some(0),
    }
}

fn devices(
    pool: &PoolStatusReport,
    vdev: &VdevReport,
    survives: Option<u64>,
    settings: &AlertSettings,
    out: &mut Vec<Alert>,
) {
    for child in &vdev.children {
        devices(pool, child, survives, settings, out);
    }
    let is_device = vdev.children.is_empty() && vdev.path.is_some();
    if !is_device {
        return;
    }
    let device = vdev.path.clone().unwrap_or_else(|| vdev.name.clone());
    let of_device = |rule, severity, fact| Alert {
        rule,
        severity,
        pool: pool.name.clone(),
        pool_guid: pool.guid,
        disk: None,
        device_guid: Some(vdev.guid),
        fact,
    };
    // One that was taken offline is known to be so.
    let is_bad = matches!(
        vdev.state,
        VdevState::Degraded | VdevState::Faulted | VdevState::Unavailable | VdevState::Removed
    );
    // A spare that is not there fails when it is needed.
    if is_bad {
        let fact = AlertFact::Device {
            device: device.clone(),
            state: vdev.state,
            aux: vdev.aux,
            is_log: vdev.class == VdevClass::Log,
            disk: None,
            survives: match vdev.class {
                VdevClass::Log | VdevClass::Spare | VdevClass::Cache => None,
                _ => survives,
            },
        };
        let severity = match vdev.class {
            // A person had it be so (`zpool offline -f`).
            _ if vdev.aux == Some(VdevAux::External) => AlertSeverity::Warning,
            VdevClass::Spare | VdevClass::Cache => AlertSeverity::Warning,
            _ => AlertSeverity::Critical,
        };
        out.push(of_device(AlertRule::DeviceState, severity, fact));
    }
    let (read, write, checksum) = (vdev.read_errors, vdev.write_errors, vdev.checksum_errors);
    // That it is bad says more, where that is told.
    let is_told = is_bad && !settings.off.contains(&AlertRule::DeviceState);
    if !is_told && read + write + checksum > 0 {
        let fact = AlertFact::DeviceErrors {
            device,
            read,
            write,
            checksum,
            disk: None,
        };
        out.push(of_device(
            AlertRule::DeviceErrors,
            AlertSeverity::Warning,
            fact,
        ));
    }
}

#[cfg(test)]
mod tests {
    use api::Guid;

    use super::*;

    fn device(guid: u64, state: VdevState) -> VdevReport {
        VdevReport {
            name: format!("/dev/sd{guid}"),
            path: Some(format!("/dev/sd{guid}")),
            guid: Guid(guid),
            state,
            ..VdevReport::default()
        }
    }

    fn vdev(kind: VdevKind, name: &str, children: Vec<VdevReport>) -> VdevReport {
        VdevReport {
            kind,
            name: name.into(),
            children,
            ..VdevReport::default()
        }
    }

    /// What a pool survives is what its weakest vdev does, whatever logs and spares there are.
    #[test]
    fn what_is_survived_is_told() {
        use VdevState::{Faulted, Online};
        let log = VdevReport {
            class: VdevClass::Log,
            ..device(9, Faulted)
        };
        let mut stale = device(3, Online);
        stale.is_stale = true;
        let spare = vdev(
            VdevKind::Spare,
            "spare-0",
            vec![device(4, Faulted), device(5, Online)],
        );
        let two = || vec![device(1, Online), device(2, Online)];
        let raidz = |third: VdevReport| {
            let children = [two(), vec![third, device(6, Online)]].concat();
            vdev(VdevKind::Raidz, "raidz2-0", children)
        };
        let pool = |children: Vec<VdevReport>| survives(&vdev(VdevKind::Root, "tank", children));
        assert_eq!(pool(vec![raidz(device(3, Online)), log]), Some(2));
        assert_eq!(pool(vec![raidz(stale)]), Some(1));
        assert_eq!(pool(vec![raidz(spare)]), Some(2));
        let mirror = vdev(VdevKind::Mirror, "mirror-1", two());
        assert_eq!(pool(vec![raidz(device(3, Online)), mirror]), Some(1));
        let last = vec![device(1, Faulted), device(2, Online)];
        assert_eq!(
            pool(vec![vdev(VdevKind::Mirror, "mirror-0", last)]),
            Some(0)
        );
        let none = vec![device(1, Faulted), device(2, Faulted)];
        assert_eq!(pool(vec![vdev(VdevKind::Mirror, "mirror-0", none)]), None);
        assert_eq!(pool(two()), Some(0));
    }
}
