//! Results as CSV (RFC 4180), for spreadsheets.

use crate::log_device::LogReport;
use crate::report::{Measured, Report, Way};

/// A field: in quotes where it has to be (RFC 4180, section 2).
fn field(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn line(fields: impl IntoIterator<Item = String>) -> String {
    let fields: Vec<String> = fields.into_iter().map(|text| field(&text)).collect();
    format!("{}\r\n", fields.join(","))
}

fn number(value: Option<f64>) -> String {
    value.map(|value| format!("{value:.3}")).unwrap_or_default()
}

fn times(way: Option<Way>) -> [String; 4] {
    let times = way.map(|way| way.times);
    [
        number(times.map(|times| times.mean_ms)),
        number(times.and_then(|times| times.p99_ms)),
        number(times.and_then(|times| times.p999_ms)),
        number(times.map(|times| times.max_ms)),
    ]
}

const HEAD: [&str; 24] = [
    "test",
    "random_percent",
    "reads_percent",
    "block_bytes",
    "depth",
    "workers",
    "seconds",
    "warm_up_seconds",
    "steady",
    "iops",
    "iops_error",
    "bytes_per_second",
    "read_mean_ms",
    "read_p99_ms",
    "read_p999_ms",
    "read_max_ms",
    "write_mean_ms",
    "write_p99_ms",
    "write_p999_ms",
    "write_max_ms",
    "client_cpu_s_per_gb",
    "server_cpu_s_per_gb",
    "planned_iops",
    "target",
];

fn row(measured: &Measured, target: &str) -> String {
    let test = &measured.test;
    let steady = measured
        .is_steady
        .map(|steady| if steady { "yes" } else { "no" });
    let first = [
        test.name.clone(),
        test.random_percent.to_string(),
        test.reads_percent.to_string(),
        test.block_bytes.to_string(),
        test.depth.to_string(),
        test.workers.to_string(),
        number(Some(measured.seconds)),
        number(Some(measured.warm_up_seconds)),
        steady.unwrap_or_default().to_owned(),
        number(Some(measured.iops)),
        number(measured.iops_error),
        number(Some(measured.rate)),
    ];
    let last = [
        number(measured.client_cpu_per_gb),
        number(measured.server_cpu_per_gb),
        number(measured.planned_iops),
        target.to_owned(),
    ];
    let times = times(measured.reads)
        .into_iter()
        .chain(times(measured.writes));
    line(first.into_iter().chain(times).chain(last))
}

/// A line for each load, for each number of streams, or for each part of a warm-up.
pub fn of_report(report: &Report) -> String {
    let head = |names: &[&str]| line(names.iter().map(|name| (*name).to_owned()));
    if let Some(streams) = &report.streams {
        let mut out = head(&[
            "streams",
            "recording_lag_s",
            "playback_lag_s",
            "bytes_per_second",
            "gap",
        ]);
        for one in &streams.tries {
            out.push_str(&line([
                one.count.to_string(),
                number(one.recording_lag_seconds),
                number(one.playback_lag_seconds),
                number(Some(one.rate)),
                if one.has_gap { "yes" } else { "no" }.to_owned(),
            ]));
        }
        return out;
    }
    if let Some(warm_up) = &report.warm_up {
        let mut out = head(&["seconds", "iops", "mean_ms"]);
        for part in &warm_up.parts {
            let fields = [part.at_seconds, part.iops, part.mean_ms];
            out.push_str(&line(fields.map(|value| number(Some(value)))));
        }
        return out;
    }
    let mut out = head(&HEAD);
    for measured in &report.tests {
        out.push_str(&row(measured, &report.target));
    }
    out
}

/// A line for each step.
pub fn of_log(report: &LogReport) -> String {
    let names = [
        "step",
        "iops",
        "iops_error",
        "bytes_per_second",
        "write_mean_ms",
        "flush_p50_ms",
        "flush_p99_ms",
        "flush_max_ms",
    ];
    let mut out = line(names.map(str::to_owned));
    for one in &report.steps {
        out.push_str(&line([
            one.step.name(),
            number(Some(one.iops)),
            number(one.iops_error),
            number(Some(one.rate)),
            number(one.writes.map(|times| times.mean_ms)),
            number(one.flushed.and_then(|times| times.p50_ms)),
            number(one.flushed.and_then(|times| times.p99_ms)),
            number(one.flushed.map(|times| times.max_ms)),
        ]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_as_many_fields_as_the_first() {
        let mut report = crate::report::tests::report();
        report.target = "/tank/data".into();
        let text = of_report(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].split(',').count(), HEAD.len());
        // A name has commas, and is in quotes.
        assert!(lines[1].starts_with("\"max throughput, all reads\",0,100,32768,64,1,"));
        assert_eq!(lines[1].split(',').count(), HEAD.len() + 1);
        // Only reads: four fields are empty.
        assert!(lines[1].contains(",,,,"), "{}", lines[1]);
        assert!(lines[2].ends_with(",25000.000,/tank/data"), "{}", lines[2]);
        assert!(text.ends_with("\r\n"));
    }

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(field("a \"b\", c"), "\"a \"\"b\"\", c\"");
        assert_eq!(field("a b"), "a b");
    }

    #[test]
    fn steps_of_a_log_device_are_lines() {
        let text = of_log(&crate::log_device::tests::report());
        assert_eq!(text.lines().count(), 6);
        assert!(
            text.contains("\"writes of 4K, without flushes\",20000.000,"),
            "{text}"
        );
    }
}
