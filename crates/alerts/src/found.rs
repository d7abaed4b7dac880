//! What there is to say of a pool, from its status.

use api::{
    Alert, AlertFact, AlertRule, AlertSettings, AlertSeverity, PoolCondition, PoolHealth,
    PoolStatusReport, VdevAux, VdevClass, VdevReport, VdevState,
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
    devices(pool, &pool.tree, &mut out);
    out.retain(|alert| !settings.off.contains(&alert.rule));
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

fn devices(pool: &PoolStatusReport, vdev: &VdevReport, out: &mut Vec<Alert>) {
    for child in &vdev.children {
        devices(pool, child, out);
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
    if read + write + checksum > 0 {
        let fact = AlertFact::DeviceErrors {
            device,
            read,
            write,
            checksum,
        };
        out.push(of_device(
            AlertRule::DeviceErrors,
            AlertSeverity::Warning,
            fact,
        ));
    }
}
