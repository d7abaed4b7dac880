//! The lines of `zpool status` about a scrub or resilver, in OpenZFS's words
//! (`print_scan_scrub_resilver_status`, cmd/zpool/zpool_main.c).

use api::{ErrorScrubReport, ScanFunction, ScanReport, ScanState};
use serde_json::{Map, Value, json};

use super::words;
use crate::numbers::{duration, local_ctime, local_second, nice_bytes};

/// Below this rate, in bytes a second, no time to go is estimated.
const RATE_MIN: u64 = 10 << 20;

/// What stands after `scan:`, line by line.
pub fn lines(scan: &ScanReport) -> Vec<String> {
    let is_scrub = scan.function == ScanFunction::Scrub;
    let mut lines = match scan.state {
        ScanState::Finished => {
            let done = if is_scrub {
                "scrub repaired"
            } else {
                "resilvered"
            };
            vec![format!(
                "{done} {} in {} with {} errors on {}",
                nice_bytes(scan.repaired_bytes),
                duration(scan.end_time_s.saturating_sub(scan.start_time_s)),
                scan.errors,
                local_second(scan.end_time_s)
            )]
        }
        ScanState::Canceled => vec![format!(
            "{} canceled on {}",
            words::scan(scan.function),
            local_second(scan.end_time_s)
        )],
        ScanState::Scanning => progress(scan, is_scrub),
    };
    if scan.verify_only {
        lines.push("(verify only: the pool is imported read-only, so nothing is repaired)".into());
    }
    lines
}

fn progress(scan: &ScanReport, is_scrub: bool) -> Vec<String> {
    let is_paused = scan.pause_time_s != 0;
    let mut lines = Vec::new();
    if is_paused {
        lines.push(format!(
            "scrub paused since {}",
            local_second(scan.pause_time_s)
        ));
        lines.push(format!(
            "scrub started on {}",
            local_second(scan.start_time_s)
        ));
    } else {
        lines.push(format!(
            "{} in progress since {}",
            words::scan(scan.function),
            local_second(scan.start_time_s)
        ));
    }
    let elapsed_s = scan.elapsed_s.max(1);
    let rate = |bytes: u64| {
        let rate = bytes / elapsed_s;
        if is_paused || rate == 0 {
            String::new()
        } else {
            format!(" at {}/s", nice_bytes(rate))
        }
    };
    let total = nice_bytes(scan.to_examine_bytes);
    lines.push(format!(
        "{} / {total} scanned{}, {} / {total} issued{}",
        nice_bytes(scan.examined_bytes),
        rate(scan.pass_examined_bytes),
        nice_bytes(scan.issued_bytes),
        rate(scan.pass_issued_bytes),
    ));
    let percent = 100.0 * scan.issued_bytes as f64 / scan.to_examine_bytes.max(1) as f64;
    let word = if is_scrub { "repaired" } else { "resilvered" };
    let issue_rate = scan.pass_issued_bytes / elapsed_s;
    let started = if is_scrub {
        scan.issued_bytes > 0
    } else {
        scan.repaired_bytes > 0
    };
    let to_go = if is_paused {
        String::new()
    } else if started && issue_rate >= RATE_MIN && scan.to_examine_bytes >= scan.issued_bytes {
        let left = (scan.to_examine_bytes - scan.issued_bytes) / issue_rate;
        format!(", {} to go", duration(left))
    } else {
        ", no estimated completion time".into()
    };
    lines.push(format!(
        "{} {word}, {percent:.2}% done{to_go}",
        nice_bytes(scan.repaired_bytes)
    ));
    lines
}

/// What stands after ` scrub:` of a scrub of the error log (`print_err_scrub_status`).
pub fn error_lines(scrub: &ErrorScrubReport) -> Vec<String> {
    let examined = scrub.examined;
    match scrub.state {
        ScanState::Finished => {
            let seconds = scrub.end_time_s.saturating_sub(scrub.start_time_s);
            let (days, rest) = (seconds / 86_400, duration(seconds % 86_400));
            let end = local_ctime(scrub.end_time_s);
            return vec![format!(
                "scrubbed {examined} error blocks in {days} days {rest} on {end}"
            )];
        }
        ScanState::Canceled => {
            let end = local_ctime(scrub.end_time_s);
            return vec![format!("error scrub canceled on {end}")];
        }
        ScanState::Scanning => {}
    }
    let start = local_ctime(scrub.start_time_s);
    let mut lines = match scrub.pause_time_s {
        0 => vec![format!("error scrub in progress since {start}")],
        pause => vec![
            format!("error scrub paused since {}", local_ctime(pause)),
            format!("error scrub started on {start}"),
        ],
    };
    let all = examined.saturating_add(scrub.to_examine).max(1);
    let percent = 100.0 * examined as f64 / all as f64;
    lines.push(format!(
        "{percent:.2}% done, issued I/O for {examined} error blocks"
    ));
    lines
}

/// The same for `-j`, added to OpenZFS's `scan_stats`.
pub fn add_errors(
    out: &mut Map<String, Value>,
    scrub: &ErrorScrubReport,
    exact: bool,
    number: &dyn Fn(u64) -> Value,
) {
    let time = |seconds: u64| match seconds {
        0 => json!("-"),
        seconds if exact => number(seconds),
        seconds => json!(local_second(seconds)),
    };
    let state = match scrub.state {
        ScanState::Scanning => "ERRORSCRUBBING",
        state => words::scan_state(state),
    };
    out.insert("err_scrub_func".into(), json!("ERRORSCRUB"));
    out.insert("err_scrub_state".into(), json!(state));
    out.insert("err_scrub_start_time".into(), time(scrub.start_time_s));
    out.insert("err_scrub_end_time".into(), time(scrub.end_time_s));
    out.insert("err_scrub_examined".into(), number(scrub.examined));
    out.insert("err_scrub_to_examine".into(), number(scrub.to_examine));
    out.insert("err_scrub_pause".into(), number(scrub.pause_time_s));
}

/// The same for `-j`, as OpenZFS's `scan_stats`.
pub fn json(scan: &ScanReport, exact: bool, number: &dyn Fn(u64) -> Value) -> Map<String, Value> {
    let bytes = |value: u64| {
        if exact {
            number(value)
        } else {
            json!(nice_bytes(value))
        }
    };
    let time = |seconds: u64| match seconds {
        0 => json!("-"),
        seconds if exact => number(seconds),
        seconds => json!(local_second(seconds)),
    };
    let mut out = Map::new();
    out.insert(
        "function".into(),
        json!(words::scan(scan.function).to_uppercase()),
    );
    out.insert("state".into(), json!(words::scan_state(scan.state)));
    out.insert("start_time".into(), time(scan.start_time_s));
    out.insert("end_time".into(), time(scan.end_time_s));
    out.insert("to_examine".into(), bytes(scan.to_examine_bytes));
    out.insert("examined".into(), bytes(scan.examined_bytes));
    out.insert("skipped".into(), bytes(0));
    out.insert("processed".into(), bytes(scan.repaired_bytes));
    out.insert("errors".into(), number(scan.errors));
    out.insert("bytes_per_scan".into(), bytes(scan.pass_examined_bytes));
    out.insert("pass_start".into(), time(scan.start_time_s));
    out.insert("scrub_pause".into(), time(scan.pause_time_s));
    out.insert(
        "issued_bytes_per_scan".into(),
        bytes(scan.pass_issued_bytes),
    );
    out.insert("issued".into(), bytes(scan.issued_bytes));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> ScanReport {
        ScanReport {
            function: ScanFunction::Scrub,
            state: ScanState::Scanning,
            start_time_s: 1_700_000_000,
            elapsed_s: 10,
            to_examine_bytes: 10 << 30,
            examined_bytes: 5 << 30,
            issued_bytes: 2 << 30,
            pass_examined_bytes: 5 << 30,
            pass_issued_bytes: 2 << 30,
            ..ScanReport::default()
        }
    }

    #[test]
    fn a_running_scrub_tells_rates_and_time_to_go() {
        let lines = lines(&running());
        assert!(
            lines[0].starts_with("scrub in progress since "),
            "{lines:?}"
        );
        assert_eq!(
            lines[1],
            "5G / 10G scanned at 512M/s, 2G / 10G issued at 205M/s"
        );
        assert_eq!(lines[2], "0B repaired, 20.00% done, 00:00:40 to go");
    }

    #[test]
    fn a_paused_scrub_tells_neither() {
        let paused = ScanReport {
            pause_time_s: 1_700_000_060,
            ..running()
        };
        let lines = lines(&paused);
        assert!(lines[0].starts_with("scrub paused since "), "{lines:?}");
        assert!(lines[1].starts_with("scrub started on "), "{lines:?}");
        assert_eq!(lines[2], "5G / 10G scanned, 2G / 10G issued");
        assert_eq!(lines[3], "0B repaired, 20.00% done");
    }

    #[test]
    fn a_finished_scrub_tells_errors() {
        let finished = ScanReport {
            state: ScanState::Finished,
            end_time_s: 1_700_090_061,
            errors: 3,
            verify_only: true,
            ..running()
        };
        let lines = lines(&finished);
        assert!(
            lines[0].starts_with("scrub repaired 0B in 1 days 01:01:01 with 3 errors on "),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("(verify only"), "{lines:?}");
    }
}
