//! Results as a page: one file, with its plots in it, that asks nothing of the network.

use std::collections::BTreeMap;
use std::fmt::Write;

use plan::amount::show_bytes;

use crate::log::{Point, thinned};
use crate::log_device::{LogReport, Verdict};
use crate::plot::{self, Axes, Bar, Curve, short};
use crate::report::{Measured, Note, Report};
use crate::streams::StreamsFound;
use crate::warm_up::WarmUp;

/// Points of a curve in a plot.
const POINTS: usize = 240;

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 0.85rem; width: 100%; }
th, td { text-align: right; padding: 0.25rem 0.5rem; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1rem 1rem; }
dt { color: #666; } dd { margin: 0; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } pre { background: #f5f5f5; padding: 0.8rem; overflow: auto; }
.note { border-left: 4px solid #e69f00; padding-left: 0.8rem; }
.safe { border-color: #009e73; } .unsafe { border-color: #d55e00; }
";

/// Text, as HTML writes it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A page that grows. Writing to a string cannot fail.
struct Page(String);

impl Page {
    fn new(title: &str) -> Self {
        let title = escaped(title);
        Page(format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta \
             name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
             <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        ))
    }

    fn facts(&mut self, facts: &[(&str, String)]) {
        self.0.push_str("<dl>");
        for (name, value) in facts {
            let _ = write!(
                self.0,
                "<dt>{}</dt><dd>{}</dd>",
                escaped(name),
                escaped(value)
            );
        }
        self.0.push_str("</dl>\n");
    }

    fn heading(&mut self, text: &str) {
        let _ = writeln!(self.0, "<h2>{}</h2>", escaped(text));
    }

    fn note(&mut self, class: &str, text: &str) {
        let _ = writeln!(self.0, "<p class=\"note {class}\">{}</p>", escaped(text));
    }

    fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p>{}</p>", escaped(text));
    }

    fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        self.0.push_str("<table><thead><tr>");
        for name in head {
            let _ = write!(self.0, "<th>{}</th>", escaped(name));
        }
        self.0.push_str("</tr></thead><tbody>\n");
        for row in rows {
            self.0.push_str("<tr>");
            for cell in row {
                let _ = write!(self.0, "<td>{}</td>", escaped(cell));
            }
            self.0.push_str("</tr>\n");
        }
        self.0.push_str("</tbody></table>\n");
    }

    /// A plot, which is made here and nobody else's text.
    fn plot(&mut self, svg: &str) {
        let _ = writeln!(self.0, "<figure>{svg}</figure>");
    }

    fn jobs(&mut self, jobs: &[String]) {
        self.heading("Job files");
        self.paragraph("fio ran these; it repeats them with the same area and the same options.");
        for job in jobs {
            let _ = writeln!(
                self.0,
                "<details><summary>{}</summary><pre>{}</pre></details>",
                escaped(&summary(job)),
                escaped(job)
            );
        }
    }

    fn end(mut self) -> String {
        self.0.push_str("</body></html>\n");
        self.0
    }
}

/// The load of a job file, in its own words.
fn summary(job: &str) -> String {
    let wanted = ["rw=", "bs=", "iodepth=", "numjobs=", "rate="];
    let lines = job
        .lines()
        .filter(|line| wanted.iter().any(|key| line.starts_with(key)));
    lines.collect::<Vec<_>>().join(" ")
}

/// A second since 1970 as a date.
fn date(seconds: u64) -> String {
    let date = i64::try_from(seconds)
        .ok()
        .and_then(|it| chrono::DateTime::from_timestamp(it, 0));
    let date = date.map(|date| date.format("%Y-%m-%d %H:%M UTC").to_string());
    date.unwrap_or_else(|| "not known".to_owned())
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.2}"))
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), short)
}

fn per_second(iops: f64, error: Option<f64>) -> String {
    match error {
        Some(error) => format!("{} ± {}", short(iops), short(error)),
        None => short(iops),
    }
}

fn rate(bytes: f64) -> String {
    format!("{}/s", show_bytes(bytes.max(0.0) as u64))
}

/// A profile's page.
pub fn of_report(report: &Report) -> String {
    let mut page = Page::new(&format!("{}: {}", report.profile.name(), report.target));
    page.facts(&[
        ("Loads", report.profile.title().to_owned()),
        ("Area", show_bytes(report.area.size_bytes)),
        ("Measured", format!("{} s each", report.times.seconds)),
        (
            "Steady within",
            format!("{} s", report.times.warm_up_seconds),
        ),
        ("Begun", date(report.began)),
        ("Program", report.fio.clone()),
    ]);
    for note in report.notes.iter().map(Note::sentence) {
        page.note("", &note);
    }
    if let Some(streams) = &report.streams {
        add_streams(&mut page, streams);
    } else if let Some(warm_up) = &report.warm_up {
        add_warm_up(&mut page, warm_up);
    } else {
        add_tests(&mut page, &report.tests);
    }
    page.jobs(&report.jobs);
    page.end()
}

fn add_tests(page: &mut Page, tests: &[Measured]) {
    let row = |one: &Measured| {
        vec![
            one.test.to_string(),
            per_second(one.iops, one.iops_error),
            number(one.planned_iops),
            rate(one.rate),
            ms(Some(one.mean_ms())),
            ms(one.p99_ms()),
            format!("{:.0} s", one.warm_up_seconds),
            ms(one.client_cpu_per_gb),
            ms(one.server_cpu_per_gb),
        ]
    };
    let head = [
        "Load",
        "Operations/s",
        "Planned",
        "Rate",
        "Mean ms",
        "99 % ms",
        "Warm-up",
        "CPU s/GB",
        "Server",
    ];
    page.heading("Figures");
    page.table(&head, &tests.iter().map(row).collect::<Vec<_>>());
    page.paragraph(
        "± is half of the interval that holds the true figure with 95 % confidence. 99 % ms: the \
         time that 99 of 100 reads, or writes, took at most, whichever is longer. CPU: seconds of \
         a processor for a gigabyte, of fio and of the server.",
    );
    let bar = |one: &Measured| Bar {
        name: one.test.to_string(),
        value: one.iops,
        error: one.iops_error,
        planned: one.planned_iops,
    };
    page.plot(&plot::bars(
        &tests.iter().map(bar).collect::<Vec<_>>(),
        "operations/s",
    ));
    if tests.iter().any(|one| one.planned_iops.is_some()) {
        page.paragraph("A mark is where the planner expects the bar to end.");
    }
    add_depths(page, tests);
    page.heading("Over time");
    for one in tests {
        let over = [&one.before, &one.points].map(|points| thinned(points, POINTS));
        let [before, measured] = &over;
        if measured.len() < 2 {
            continue;
        }
        let begin = before.last().map_or(0.0, |point| point.at_seconds);
        let later = measured.iter().map(|point| Point {
            at_seconds: begin + point.at_seconds,
            ..*point
        });
        let later: Vec<Point> = later.collect();
        let mut curves = vec![Curve::over_time("measured", &later)];
        if !before.is_empty() {
            curves.push(Curve::over_time("until steady", before));
        }
        page.paragraph(&one.test.to_string());
        page.plot(&plot::curves(&curves, axes("seconds", "operations/s")));
    }
}

/// Loads that were run at several depths: how many, and for how long each.
fn add_depths(page: &mut Page, tests: &[Measured]) {
    let mut by_name: BTreeMap<&str, Vec<&Measured>> = BTreeMap::new();
    for one in tests {
        by_name.entry(&one.test.name).or_default().push(one);
    }
    let swept = || by_name.iter().filter(|(_, all)| all.len() > 1);
    if swept().count() == 0 {
        return;
    }
    page.heading("By depth");
    let of = |figure: fn(&Measured) -> f64| -> Vec<Curve> {
        let curve = |(name, all): (&&str, &Vec<&Measured>)| {
            let point = |one: &&Measured| (f64::from(one.test.all_depth()), figure(one));
            let mut points: Vec<(f64, f64)> = all.iter().map(point).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            Curve {
                name: (*name).to_owned(),
                points,
            }
        };
        swept().map(curve).collect()
    };
    let by_depth = |y| Axes {
        is_log_x: true,
        ..axes("accesses under way", y)
    };
    page.plot(&plot::curves(&of(|one| one.iops), by_depth("operations/s")));
    page.plot(&plot::curves(&of(Measured::mean_ms), by_depth("mean ms")));
}

fn axes<'a>(x: &'a str, y: &'a str) -> Axes<'a> {
    Axes {
        x,
        y,
        is_log_x: false,
    }
}

fn add_streams(page: &mut Page, streams: &StreamsFound) {
    page.heading("Streams");
    page.note("", &streams.sentence());
    let yes = |gap: bool| if gap { "yes" } else { "no" }.to_owned();
    let row = |one: &crate::streams::Try| {
        vec![
            one.count.to_string(),
            ms(one.recording_lag_seconds),
            ms(one.playback_lag_seconds),
            rate(one.rate),
            yes(one.has_gap),
        ]
    };
    let mut tries = streams.tries.clone();
    tries.sort_by_key(|one| one.count);
    let head = [
        "Number",
        "Recordings behind, s",
        "Playbacks behind, s",
        "Rate",
        "Gap",
    ];
    page.table(&head, &tries.iter().map(row).collect::<Vec<_>>());
    let curve = |name: &str, lag: fn(&crate::streams::Try) -> Option<f64>| Curve {
        name: name.to_owned(),
        points: (tries.iter())
            .filter_map(|one| Some((f64::from(one.count), lag(one)?)))
            .collect(),
    };
    let curves = [
        curve("recordings", |one| one.recording_lag_seconds),
        curve("playbacks", |one| one.playback_lag_seconds),
    ];
    page.plot(&plot::curves(
        &curves,
        axes("number of streams", "seconds behind"),
    ));
}

fn add_warm_up(page: &mut Page, warm_up: &WarmUp) {
    page.heading("Warm-up");
    let hours = |figure: fn(&crate::warm_up::Part) -> f64| Curve {
        name: "reads".to_owned(),
        points: (warm_up.parts.iter())
            .map(|part| (part.at_seconds / 3600.0, figure(part)))
            .collect(),
    };
    page.plot(&plot::curves(
        &[hours(|part| part.iops)],
        axes("hours", "reads/s"),
    ));
    page.plot(&plot::curves(
        &[hours(|part| part.mean_ms)],
        axes("hours", "mean ms"),
    ));
}

/// The page of a log device's test.
pub fn of_log(report: &LogReport) -> String {
    let mut page = Page::new(&format!("Log device: {}", report.target));
    let facts = report.facts.as_ref();
    let model = facts.and_then(|facts| facts.model.clone());
    page.facts(&[
        ("Model", model.unwrap_or_else(|| "not told".to_owned())),
        ("Begun", date(report.began)),
        ("Program", report.fio.clone()),
    ]);
    let class = match report.verdict {
        Verdict::Safe => "safe",
        Verdict::Unknown => "",
        Verdict::Unsafe => "unsafe",
    };
    page.note(class, report.verdict.sentence());
    for finding in &report.findings {
        page.paragraph(&finding.sentence());
    }
    page.heading("Figures");
    let row = |one: &crate::log_device::Stepped| {
        vec![
            one.step.name(),
            per_second(one.iops, one.iops_error),
            rate(one.rate),
            ms(one.writes.map(|times| times.mean_ms)),
            ms(one.flushed.and_then(|times| times.p50_ms)),
            ms(one.flushed.and_then(|times| times.p99_ms)),
            ms(one.flushed.map(|times| times.max_ms)),
        ]
    };
    let head = [
        "Step",
        "Writes/s",
        "Rate",
        "Write ms",
        "Flush ms",
        "99 % ms",
        "Longest ms",
    ];
    page.table(&head, &report.steps.iter().map(row).collect::<Vec<_>>());
    for one in &report.steps {
        if one.points.len() > 1 {
            page.paragraph(&one.step.name());
            let curve = Curve::over_time("writes", &thinned(&one.points, POINTS));
            page.plot(&plot::curves(&[curve], axes("seconds", "writes/s")));
        }
    }
    page.jobs(&report.jobs);
    page.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No address is asked, and nobody's text becomes part of the page.
    fn is_by_itself(page: &str) {
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</body></html>\n"));
        for bad in ["<script", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(bad), "{bad}");
        }
        // The only address is the name of a language.
        let others = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!others.contains("http"), "an address");
    }

    #[test]
    fn a_report_is_a_page_by_itself() {
        let report = crate::report::tests::report();
        let page = of_report(&report);
        is_by_itself(&page);
        assert!(page.contains("vmware: /tank/&lt;data&gt;"), "{page}");
        assert!(
            page.contains("rw=&lt;randrw&gt;") && !page.contains("<randrw>"),
            "{page}"
        );
        // Bars, and a curve for each load.
        assert_eq!(page.matches("<svg role=\"img\"").count(), 3, "{page}");
        assert!(
            page.contains("27.3k ± 300") || page.contains("± 300"),
            "{page}"
        );
        assert!(page.contains("2026-11-29 15:18 UTC"), "{page}");
        assert!(!page.contains("By depth"));
    }

    #[test]
    fn a_sweep_has_curves_by_depth() {
        let mut report = crate::report::tests::report();
        let mut deeper = report.tests[1].clone();
        deeper.test.depth = 4;
        report.tests.push(deeper);
        let page = of_report(&report);
        is_by_itself(&page);
        assert!(
            page.contains("By depth") && page.contains("accesses under way"),
            "{page}"
        );
    }

    #[test]
    fn a_log_devices_page_begins_with_its_verdict() {
        let page = of_log(&crate::log_device::tests::report());
        is_by_itself(&page);
        assert!(page.contains("note safe"), "{page}");
        assert!(
            page.contains("Intel DC S3700 and S3710 has capacitors"),
            "{page}"
        );
        assert_eq!(page.matches("<svg role=\"img\"").count(), 5);
    }
}
