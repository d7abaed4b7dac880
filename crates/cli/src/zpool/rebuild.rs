//! The lines of `zpool status` about sequential rebuilds, and which of the last scan and rebuilds
//! is told of (`print_rebuild_status`, `print_scan_status`, cmd/zpool/zpool_main.c).

use api::{PoolStatusReport, RebuildReport, RebuildState, ScanFunction, ScanState, VdevReport};
use serde_json::{Map, Value, json};

use super::{scan, vdevs};
use crate::numbers::{duration, local_ctime, local_second, nice_bytes, nice_count, nice_time};

/// Below this rate, in bytes a second, no time to go is estimated.
const RATE_MIN: u64 = 10 << 20;

fn rebuilt(pool: &PoolStatusReport) -> impl Iterator<Item = (&VdevReport, &RebuildReport)> {
    let tops = pool.tree.children.iter();
    tops.filter_map(|top| Some((top, top.rebuild.as_ref()?)))
}

/// Whether a rebuild is under way.
pub fn is_active(pool: &PoolStatusReport) -> bool {
    rebuilt(pool).any(|(_, rebuild)| rebuild.state == RebuildState::Active)
}

/// Whether the last scrub was one of the error log.
pub fn is_of_errors(pool: &PoolStatusReport) -> bool {
    let errors_s = pool.error_scrub.map(|scrub| scrub.start_time_s);
    let scan_s = pool.scan.as_ref().map_or(0, |scan| scan.start_time_s);
    errors_s.is_some_and(|errors_s| errors_s >= scan_s)
}

/// What stands after each `scan:`, line by line.
pub fn scans(pool: &PoolStatusReport) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    let lines = |function| {
        let scan = pool.scan.as_ref();
        scan.filter(|scan| scan.function == function)
            .map(scan::lines)
    };
    if !is_of_errors(pool) {
        out.extend(lines(ScanFunction::Scrub));
    }
    let is_rebuilding = is_active(pool);
    let rebuild_end_s = match is_rebuilding {
        true => 0,
        false => rebuilt(pool)
            .map(|(_, at)| at.end_time_s)
            .max()
            .unwrap_or(0),
    };
    let resilver = pool.scan.as_ref();
    let resilver = resilver.filter(|scan| scan.function == ScanFunction::Resilver);
    let is_resilvering = resilver.is_some_and(|scan| scan.state == ScanState::Scanning);
    let resilver_end_s = resilver.map_or(0, |scan| scan.end_time_s);
    if is_resilvering || !is_rebuilding && resilver_end_s > rebuild_end_s {
        out.extend(lines(ScanFunction::Resilver));
    } else if is_rebuilding || rebuild_end_s > resilver_end_s {
        out.extend(rebuilt(pool).map(|(top, rebuild)| self::lines(&top.name, rebuild)));
    }
    out
}

fn lines(vdev: &str, rebuild: &RebuildReport) -> Vec<String> {
    match rebuild.state {
        RebuildState::Complete => vec![format!(
            "resilvered ({vdev}) {} in {} with {} errors on {}",
            nice_bytes(rebuild.rebuilt_bytes),
            duration(rebuild.scan_time_ms / 1000),
            rebuild.errors,
            local_ctime(rebuild.end_time_s)
        )],
        RebuildState::Canceled => vec![format!(
            "resilver ({vdev}) canceled on {}",
            local_ctime(rebuild.end_time_s)
        )],
        RebuildState::Active => progress(vdev, rebuild),
    }
}

fn progress(vdev: &str, rebuild: &RebuildReport) -> Vec<String> {
    let rate = |bytes: u64| bytes / (rebuild.pass_time_ms + 1) * 1000;
    let told = |rate: u64| match rate {
        0 => String::new(),
        rate => format!(" at {}/s", nice_bytes(rate)),
    };
    let to_scan = rebuild.estimated_bytes;
    let to_issue = to_scan.saturating_sub(rebuild.pass_skipped_bytes);
    let scan_rate = rate(rebuild.pass_scanned_bytes);
    let percent = 100.0 * rebuild.scanned_bytes as f64 / (to_scan + 1) as f64;
    let left = to_scan.checked_sub(rebuild.scanned_bytes);
    let to_go = match left.filter(|_| scan_rate >= RATE_MIN) {
        Some(left) => format!("{} to go", duration(left / scan_rate)),
        None => "no estimated completion time".to_owned(),
    };
    vec![
        format!(
            "resilver ({vdev}) in progress since {}",
            local_ctime(rebuild.start_time_s)
        ),
        format!(
            "{} / {} scanned{}, {} / {} issued{}",
            nice_bytes(rebuild.scanned_bytes),
            nice_bytes(to_scan),
            told(scan_rate),
            nice_bytes(rebuild.issued_bytes),
            nice_bytes(to_issue),
            told(rate(rebuild.pass_issued_bytes)),
        ),
        format!(
            "{} resilvered, {:.2}% done, {to_go}",
            nice_bytes(rebuild.rebuilt_bytes),
            percent.min(100.0)
        ),
    ]
}

/// The same for `-j`, by vdev, as OpenZFS's `rebuild_stats`; `None` without any.
pub fn json(
    pool: &PoolStatusReport,
    exact: bool,
    as_int: bool,
    number: &dyn Fn(u64) -> Value,
) -> Option<Value> {
    let mut out = Map::new();
    for (top, rebuild) in rebuilt(pool) {
        let mut entry = vdevs::info(top, &top.name, top.class, as_int);
        let state = match rebuild.state {
            RebuildState::Active => "ACTIVE",
            RebuildState::Canceled => "CANCELED",
            RebuildState::Complete => "COMPLETE",
        };
        entry.insert("state".into(), json!(state));
        type Words = fn(u64) -> String;
        let time: Words = |seconds| match seconds {
            0 => "-".to_owned(),
            seconds => local_second(seconds),
        };
        let (ns, bytes, count): (Words, Words, Words) = (nice_time, nice_bytes, nice_count);
        for (key, value, words) in [
            ("start_time", rebuild.start_time_s, time),
            ("end_time", rebuild.end_time_s, time),
            (
                "scan_time",
                rebuild.scan_time_ms.saturating_mul(1_000_000),
                ns,
            ),
            ("scanned", rebuild.scanned_bytes, bytes),
            ("issued", rebuild.issued_bytes, bytes),
            ("rebuilt", rebuild.rebuilt_bytes, bytes),
            ("to_scan", rebuild.estimated_bytes, bytes),
            ("errors", rebuild.errors, count),
            (
                "pass_time",
                rebuild.pass_time_ms.saturating_mul(1_000_000),
                ns,
            ),
            ("pass_scanned", rebuild.pass_scanned_bytes, bytes),
            ("pass_issued", rebuild.pass_issued_bytes, bytes),
            ("pass_skipped", rebuild.pass_skipped_bytes, bytes),
        ] {
            let value = match exact {
                true => number(value),
                false => json!(words(value)),
            };
            entry.insert(key.into(), value);
        }
        out.insert(top.name.clone(), Value::Object(entry));
    }
    (!out.is_empty()).then_some(Value::Object(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ScanReport;

    fn pool(state: RebuildState, scan: Option<ScanReport>) -> PoolStatusReport {
        let rebuild = RebuildReport {
            state,
            start_time_s: 1_700_000_000,
            end_time_s: match state {
                RebuildState::Active => 0,
                _ => 1_700_000_100,
            },
            scan_time_ms: 61_500,
            scanned_bytes: 2 << 30,
            issued_bytes: 1 << 30,
            rebuilt_bytes: 1 << 30,
            estimated_bytes: 4 << 30,
            errors: 0,
            pass_time_ms: 9_999,
            pass_scanned_bytes: 2 << 30,
            pass_issued_bytes: 1 << 30,
            pass_skipped_bytes: 1 << 30,
        };
        let top = VdevReport {
            name: "mirror-0".to_owned(),
            rebuild: Some(rebuild),
            ..VdevReport::default()
        };
        PoolStatusReport {
            scan,
            tree: VdevReport {
                children: vec![top],
                ..VdevReport::default()
            },
            ..PoolStatusReport::default()
        }
    }

    #[test]
    fn a_running_rebuild_tells_rates_and_time_to_go() {
        let scans = scans(&pool(RebuildState::Active, None));
        let [lines] = scans.as_slice() else {
            panic!("{scans:?}");
        };
        let start = "resilver (mirror-0) in progress since ";
        assert!(lines[0].starts_with(start), "{lines:?}");
        assert_eq!(
            lines[1],
            "2G / 4G scanned at 205M/s, 1G / 3G issued at 102M/s"
        );
        assert_eq!(lines[2], "1G resilvered, 50.00% done, 00:00:10 to go");
    }

    #[test]
    fn the_scrub_that_follows_is_told_of_first() {
        let scrub = ScanReport {
            function: ScanFunction::Scrub,
            state: ScanState::Finished,
            end_time_s: 1_700_000_200,
            ..ScanReport::default()
        };
        let told = scans(&pool(RebuildState::Complete, Some(scrub.clone())));
        assert!(told[0][0].starts_with("scrub repaired 0B"), "{told:?}");
        let done = "resilvered (mirror-0) 1G in 00:01:01 with 0 errors on ";
        assert!(told[1][0].starts_with(done), "{told:?}");
        // A later resilver is told of instead.
        let resilver = ScanReport {
            function: ScanFunction::Resilver,
            ..scrub
        };
        let told = scans(&pool(RebuildState::Canceled, Some(resilver)));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0][0].starts_with("resilvered 0B in "), "{told:?}");
    }
}
