//! What there is to say of a disk, from what it tells of itself.

use api::{
    Alert, AlertDisk, AlertFact, AlertRule, AlertSettings, AlertSeverity, DiskState, Guid,
    SelfTest, SelfTestKind, SmartState,
};

/// Degrees Celsius that a disk may have which does not say how many, and turns; and one that does
/// not.
const HOT_C: (i64, i64) = (60, 70);

/// How much cooler than at the limit a disk has to be before it counts as cooler, in degrees.
const SLACK_C: i64 = 3;

/// From where on wear is told, in percent, and more loudly.
const WORN_PERCENT: (u64, u64) = (90, 100);

/// From how many degrees Celsius on a disk is too warm.
pub fn temperature_limit_c(disk: &DiskState, settings: &AlertSettings) -> i64 {
    let own = disk.smart.as_ref();
    let own = own.and_then(|report| report.temperature_limit_c);
    let usual = match disk.is_rotational {
        true => HOT_C.0,
        false => HOT_C.1,
    };
    settings.disk_temperature_c.or(own).unwrap_or(usual)
}

/// The test that found something and was not made up for: no later one of its kind, and no later
/// long one, came to an end without. `tests` has the newest first.
fn failed_test(tests: &[SelfTest]) -> Option<(SelfTestKind, &SelfTest)> {
    let mut passed_short = false;
    for test in tests {
        let Some(kind) = SelfTestKind::of(&test.kind) else {
            continue;
        };
        match (test.passed, kind) {
            (Some(true), SelfTestKind::Long) => return None,
            (Some(true), SelfTestKind::Short) => passed_short = true,
            (Some(false), SelfTestKind::Short) if passed_short => {}
            (Some(false), kind) => return Some((kind, test)),
            (None, _) => {}
        }
    }
    None
}

/// The alerts that a disk gives reason for. `stood` says whether an alert stood before, which
/// counts for those with a limit.
pub fn found_in_disk(
    disk: &DiskState,
    settings: &AlertSettings,
    stood: impl Fn(&Alert) -> bool,
) -> Vec<Alert> {
    let Some(report) = &disk.smart else {
        return Vec::new();
    };
    let of_disk = |rule, severity, fact| Alert {
        rule,
        severity,
        pool: disk
            .members
            .first()
            .map_or_else(String::new, |member| member.pool.clone()),
        pool_guid: Guid(0),
        disk: Some(AlertDisk {
            id: disk.id.clone(),
            path: disk.path.clone(),
            model: disk.model.clone(),
            serial: disk.serial.clone(),
            bay: disk.bay.clone(),
        }),
        device_guid: None,
        fact,
    };
    let mut out = Vec::new();
    if report.passed == Some(false) {
        let fact = AlertFact::DiskFailing;
        out.push(of_disk(
            AlertRule::DiskHealth,
            AlertSeverity::Critical,
            fact,
        ));
    }
    if disk.new_bad_sectors > 0 {
        let counts = [
            report.reallocated_sectors,
            report.pending_sectors,
            report.uncorrectable_sectors,
        ];
        let fact = AlertFact::DiskSectors {
            count: counts.into_iter().flatten().fold(0, u64::saturating_add),
            new: disk.new_bad_sectors,
        };
        out.push(of_disk(
            AlertRule::DiskSectors,
            AlertSeverity::Warning,
            fact,
        ));
    }
    // How warm one was that does not answer any more says nothing.
    if let Some(celsius) = report
        .temperature_c
        .filter(|_| disk.smart_state == SmartState::Known)
    {
        let limit_celsius = temperature_limit_c(disk, settings);
        let fact = AlertFact::DiskTemperature {
            celsius,
            limit_celsius,
        };
        let alert = of_disk(AlertRule::DiskTemperature, AlertSeverity::Warning, fact);
        if celsius >= limit_celsius || celsius + SLACK_C > limit_celsius && stood(&alert) {
            out.push(alert);
        }
    }
    if let Some(percent) = report
        .wear_percent
        .filter(|percent| *percent >= WORN_PERCENT.0)
    {
        let severity = match percent >= WORN_PERCENT.1 {
            true => AlertSeverity::Critical,
            false => AlertSeverity::Warning,
        };
        let fact = AlertFact::DiskWear { percent };
        out.push(of_disk(AlertRule::DiskWear, severity, fact));
    }
    if let Some((kind, test)) = failed_test(&report.tests) {
        let fact = AlertFact::DiskTest {
            kind,
            result: test.result.clone(),
            at_hours: test.at_hours,
        };
        out.push(of_disk(AlertRule::DiskTest, AlertSeverity::Warning, fact));
    }
    out.retain(|alert| !settings.off.contains(&alert.rule));
    out
}

#[cfg(test)]
mod tests {
    use api::SmartReport;

    use super::*;

    fn disk(report: SmartReport) -> DiskState {
        DiskState {
            id: "Z1".into(),
            path: "/dev/sda".into(),
            is_rotational: true,
            smart_state: SmartState::Known,
            smart: Some(report),
            ..DiskState::default()
        }
    }

    fn rules(disk: &DiskState, settings: &AlertSettings, stood: bool) -> Vec<AlertRule> {
        let found = found_in_disk(disk, settings, |_| stood);
        found.iter().map(|alert| alert.rule).collect()
    }

    #[test]
    fn a_disk_that_is_well_is_no_alert() {
        let settings = AlertSettings::default();
        let well = SmartReport {
            passed: Some(true),
            temperature_c: Some(40),
            wear_percent: Some(89),
            reallocated_sectors: Some(8),
            ..SmartReport::default()
        };
        assert_eq!(rules(&disk(well), &settings, false), []);
        assert_eq!(rules(&DiskState::default(), &settings, false), []);
    }

    #[test]
    fn each_reason_is_one_alert() {
        let mut settings = AlertSettings::default();
        let mut bad = disk(SmartReport {
            passed: Some(false),
            temperature_c: Some(60),
            wear_percent: Some(90),
            reallocated_sectors: Some(8),
            pending_sectors: Some(1),
            ..SmartReport::default()
        });
        bad.new_bad_sectors = 3;
        let all = [
            AlertRule::DiskHealth,
            AlertRule::DiskSectors,
            AlertRule::DiskTemperature,
            AlertRule::DiskWear,
        ];
        assert_eq!(rules(&bad, &settings, false), all);
        let found = found_in_disk(&bad, &settings, |_| false);
        assert_eq!(found[1].fact, AlertFact::DiskSectors { count: 9, new: 3 });
        settings.off.insert(AlertRule::DiskHealth);
        assert_eq!(rules(&bad, &settings, false), all[1..]);
        // What it said once that it was failing stays so; how warm it was does not.
        bad.smart_state = SmartState::NoAnswer;
        assert_eq!(rules(&bad, &settings, false), [all[1], all[3]]);
    }

    /// A failed test stands until one that looks at as much finds nothing.
    #[test]
    fn a_failed_test_is_made_up_for_by_one_of_its_kind_or_a_longer_one() {
        let settings = AlertSettings::default();
        let found = |newest_first: &[(&str, Option<bool>)]| {
            let tests = newest_first.iter().enumerate();
            let tests = tests.map(|(index, (kind, passed))| SelfTest {
                kind: (*kind).into(),
                result: format!("result {index}"),
                passed: *passed,
                at_hours: None,
            });
            let report = SmartReport {
                tests: tests.collect(),
                ..SmartReport::default()
            };
            let found = found_in_disk(&disk(report), &settings, |_| false);
            let facts = found.into_iter().map(|alert| match alert.fact {
                AlertFact::DiskTest { kind, result, .. } => (kind, result),
                other => panic!("{other:?}"),
            });
            facts.collect::<Vec<_>>()
        };
        let (short, long) = ("Short offline", "Extended offline");
        let (good, bad) = (Some(true), Some(false));
        let of = |kind, index: u32| vec![(kind, format!("result {index}"))];
        assert_eq!(found(&[(short, good), (long, good)]), []);
        assert_eq!(found(&[(short, bad)]), of(SelfTestKind::Short, 0));
        assert_eq!(found(&[(short, good), (short, bad)]), []);
        assert_eq!(
            found(&[(long, None), (short, bad)]),
            of(SelfTestKind::Short, 1)
        );
        assert_eq!(found(&[("Background long", good), (short, bad)]), []);
        assert_eq!(
            found(&[(short, good), (long, bad)]),
            of(SelfTestKind::Long, 1)
        );
        assert_eq!(found(&[(long, good), (long, bad)]), []);
        assert_eq!(found(&[("Vendor (0x50)", bad)]), []);
    }

    #[test]
    fn heat_goes_by_the_setting_then_the_disk_then_its_kind() {
        let warm = |celsius, own| {
            disk(SmartReport {
                temperature_c: Some(celsius),
                temperature_limit_c: own,
                ..SmartReport::default()
            })
        };
        let mut settings = AlertSettings::default();
        let heat = [AlertRule::DiskTemperature];
        assert_eq!(rules(&warm(59, None), &settings, false), []);
        assert_eq!(rules(&warm(60, None), &settings, false), heat);
        assert_eq!(rules(&warm(60, Some(65)), &settings, false), []);
        assert_eq!(rules(&warm(65, Some(65)), &settings, false), heat);
        // One that is told of is not told of again and again.
        assert_eq!(rules(&warm(63, Some(65)), &settings, true), heat);
        assert_eq!(rules(&warm(62, Some(65)), &settings, true), []);
        settings.disk_temperature_c = Some(50);
        assert_eq!(rules(&warm(50, Some(65)), &settings, false), heat);
        settings.disk_temperature_c = None;
        let mut solid = warm(69, None);
        solid.is_rotational = false;
        assert_eq!(rules(&solid, &settings, false), []);
        solid = warm(70, None);
        solid.is_rotational = false;
        assert_eq!(rules(&solid, &settings, false), heat);
    }
}
