//! What was measured, for a terminal.

use ::bench::Profile;
use ::bench::compare::Comparison;
use ::bench::log_device::LogReport;
use ::bench::progress::Progress;
use ::bench::report::{Measured, Note, Report};
use ::plan::amount::{show_bytes, show_seconds};

use super::common;
use crate::columns::{self, Column};

/// The profiles, and what they do.
pub(super) fn profiles() -> String {
    let mut out = String::from("Loads, as in `millpond bench iometer /tank/data`:\n");
    for profile in Profile::ALL {
        out.push_str(&format!("  {:<8} {}\n", profile.name(), profile.title()));
    }
    out
}

fn rate(bytes: f64) -> String {
    format!("{}/s", show_bytes(bytes.max(0.0) as u64))
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |ms| format!("{ms:.2}"))
}

fn whole(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.0}"))
}

/// A time of a moment or of hours, in milliseconds or more.
fn lag(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".into(),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1000.0),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

/// A report, with its notes below.
pub(super) fn report(report: &Report) -> String {
    let mut out = if let Some(streams) = &report.streams {
        streams_of(streams)
    } else if let Some(warm_up) = &report.warm_up {
        warm_up_of(warm_up)
    } else {
        tests(&report.tests)
    };
    for note in report.notes.iter().map(Note::sentence) {
        out.push_str(&format!("\n{note}"));
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    out
}

fn tests(tests: &[Measured]) -> String {
    let has_plan = tests.iter().any(|one| one.planned_iops.is_some());
    let has_server = tests.iter().any(|one| one.server_cpu_per_gb.is_some());
    let mut columns = vec![
        Column::left("LOAD"),
        Column::right("OPS/S"),
        Column::right("±"),
        Column::right("RATE"),
        Column::right("MEAN MS"),
        Column::right("99% MS"),
        Column::right("WARM-UP"),
        Column::right("CPU S/GB"),
    ];
    columns.extend(has_server.then(|| Column::right("SERVER")));
    columns.extend(has_plan.then(|| Column::right("PLANNED")));
    let row = |one: &Measured| {
        let mut row = vec![
            one.test.to_string(),
            whole(Some(one.iops)),
            whole(one.iops_error),
            rate(one.rate),
            ms(Some(one.mean_ms())),
            ms(one.p99_ms()),
            match one.is_steady {
                None => "-".into(),
                Some(true) => show_seconds(one.warm_up_seconds),
                Some(false) => format!("over {}", show_seconds(one.warm_up_seconds)),
            },
            ms(one.client_cpu_per_gb),
        ];
        row.extend(has_server.then(|| ms(one.server_cpu_per_gb)));
        row.extend(has_plan.then(|| whole(one.planned_iops)));
        row
    };
    let rows: Vec<Vec<String>> = tests.iter().map(row).collect();
    columns::render(&columns, &rows, false)
}

fn streams_of(streams: &::bench::streams::StreamsFound) -> String {
    let columns = [
        Column::right("NUMBER"),
        Column::right("RECORDINGS BEHIND"),
        Column::right("PLAYBACKS BEHIND"),
        Column::right("RATE"),
        Column::left("GAP"),
    ];
    let mut tries = streams.tries.clone();
    tries.sort_by_key(|one| one.count);
    let row = |one: &::bench::streams::Try| {
        vec![
            one.count.to_string(),
            lag(one.recording_lag_seconds),
            lag(one.playback_lag_seconds),
            rate(one.rate),
            if one.has_gap { "yes" } else { "no" }.into(),
        ]
    };
    let rows: Vec<Vec<String>> = tries.iter().map(row).collect();
    let table = columns::render(&columns, &rows, false);
    format!("{table}\n{}\n", streams.sentence())
}

fn warm_up_of(warm_up: &::bench::warm_up::WarmUp) -> String {
    let columns = [
        Column::right("AFTER"),
        Column::right("READS/S"),
        Column::right("MEAN MS"),
    ];
    let row = |part: &::bench::warm_up::Part| {
        vec![
            show_seconds(part.at_seconds),
            whole(Some(part.iops)),
            ms(Some(part.mean_ms)),
        ]
    };
    let rows: Vec<Vec<String>> = warm_up.parts.iter().map(row).collect();
    columns::render(&columns, &rows, false)
}

/// Two reports side by side.
pub(super) fn comparison(told: &Comparison) -> String {
    let columns = [
        Column::left("LOAD"),
        Column::right("BEFORE"),
        Column::right("AFTER"),
        Column::right("RATIO"),
        Column::right("BEFORE MS"),
        Column::right("AFTER MS"),
        Column::left("SURE"),
    ];
    let rows: Vec<Vec<String>> = (told.tests.iter())
        .map(|one| {
            vec![
                one.test.to_string(),
                whole(Some(one.before)),
                whole(Some(one.after)),
                format!("{:.2}", one.ratio),
                ms(Some(one.before_ms)),
                ms(Some(one.after_ms)),
                match one.is_sure {
                    None => "-",
                    Some(true) => "yes",
                    Some(false) => "no",
                }
                .into(),
            ]
        })
        .collect();
    let mut out = format!("Before: {}. After: {}.\n\n", told.before, told.after);
    out.push_str(&columns::render(&columns, &rows, false));
    if let Some((before, after)) = told.streams {
        out.push_str(&format!(
            "\nStreams without a gap: {before} before, {after} after.\n"
        ));
    }
    if !told.alone.is_empty() {
        out.push_str(&format!(
            "\nIn one of them alone: {}.\n",
            told.alone.join("; ")
        ));
    }
    out
}

/// A log device's test: the verdict, what it follows from, the figures.
pub(super) fn log(report: &LogReport) -> String {
    let columns = [
        Column::left("STEP"),
        Column::right("WRITES/S"),
        Column::right("±"),
        Column::right("RATE"),
        Column::right("WRITE MS"),
        Column::right("FLUSH MS"),
        Column::right("99% MS"),
        Column::right("LONGEST MS"),
    ];
    let rows: Vec<Vec<String>> = (report.steps.iter())
        .map(|one| {
            vec![
                one.step.name(),
                whole(Some(one.iops)),
                whole(one.iops_error),
                rate(one.rate),
                ms(one.writes.map(|times| times.mean_ms)),
                ms(one.flushed.and_then(|times| times.p50_ms)),
                ms(one.flushed.and_then(|times| times.p99_ms)),
                ms(one.flushed.map(|times| times.max_ms)),
            ]
        })
        .collect();
    let mut out = columns::render(&columns, &rows, false);
    let facts = report.facts.as_ref();
    if let Some(model) = facts.and_then(|facts| facts.model.as_ref()) {
        out.push_str(&format!("\nModel: {model}."));
    }
    for finding in &report.findings {
        out.push_str(&format!("\n{}", finding.sentence()));
    }
    out.push_str(&format!("\n{}\n", report.verdict.sentence()));
    out
}

/// Tells what is being done.
pub(super) fn progress(progress: Progress<'_>) {
    let line = match progress {
        Progress::Filling { bytes } => format!("writing {} first ...", show_bytes(bytes)),
        Progress::Begun {
            test,
            number,
            count,
        } => format!("{number} of {count}: {test} ..."),
        Progress::Measured(one) => format!("  {:.0}/s, {}", one.iops, rate(one.rate)),
        Progress::Streams { count } => format!("{count} of each stream ..."),
        Progress::StreamsRan(one) => match one.has_gap {
            true => "  a gap".into(),
            false => "  no gap".into(),
        },
        Progress::Warmed(part) => {
            format!(
                "after {}: {:.0}/s",
                show_seconds(part.at_seconds),
                part.iops
            )
        }
        Progress::Log { step, seconds } => {
            format!("{step}, {} ...", show_seconds(seconds as f64))
        }
    };
    common::tell(&line);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::bench::compare::Compared;

    #[test]
    fn profiles_are_listed() {
        let told = profiles();
        assert_eq!(told.lines().count(), 1 + Profile::ALL.len());
        assert!(told.contains("\n  warm-up  random reads"), "{told}");
    }

    #[test]
    fn lags_are_told_in_their_units() {
        assert_eq!(lag(Some(0.0123)), "12 ms");
        assert_eq!(lag(Some(2.5)), "2.5 s");
        assert_eq!(lag(None), "-");
    }

    #[test]
    fn comparisons_say_what_is_sure() {
        let test = Profile::Sio.tests(&[])[0].clone();
        let told = comparison(&Comparison {
            before: "/a".into(),
            after: "/b".into(),
            tests: vec![Compared {
                test,
                before: 100.0,
                after: 150.0,
                ratio: 1.5,
                is_sure: Some(true),
                before_ms: 1.0,
                after_ms: 0.5,
            }],
            alone: vec!["another".into()],
            streams: Some((3, 4)),
        });
        assert!(told.starts_with("Before: /a. After: /b.\n"), "{told}");
        assert!(told.contains("1.50") && told.contains("yes"), "{told}");
        assert!(
            told.contains("3 before, 4 after") && told.contains("alone: another."),
            "{told}"
        );
    }
}
