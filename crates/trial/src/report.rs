//! What trials found, as figures and as text.

use std::fmt::{self, Display, Formatter, Write};
use std::time::Duration;

use serde::Serialize;

use crate::spec::Published;

/// How it went in a stretch of a load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// The end of the stretch, since what counts began.
    pub at: Duration,
    /// Reads and writes a second in it.
    pub iops: f64,
    /// Lookups of a thousand that found their block in memory.
    pub hits_permille: u64,
}

impl Display for Point {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let at = duration(self.at.as_secs_f64());
        write!(f, "  {at:>8} {:>7.0}/s", self.iops)
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The load's name, or what was done.
    pub name: String,
    /// For how long, in virtual time.
    pub seconds: f64,
    /// Reads and writes a second; of a load.
    pub iops: Option<f64>,
    /// Bytes a second: of a load its data, else what the scan went through.
    pub rate: Option<f64>,
    /// From a request to its answer, on average, in milliseconds.
    pub mean_ms: Option<f64>,
    /// The longest such time.
    pub longest_ms: Option<f64>,
    /// Lookups of a thousand that found their block in memory.
    pub hits_permille: Option<u64>,
    /// Bytes written to cache devices, if there are any.
    pub cache_written_bytes: Option<u64>,
    /// Memory of their index for each block that they hold, in bytes.
    pub cache_index_bytes: Option<f64>,
    /// What was in use nearly all the time: `disks`, `bus`, `network`; else `requests`: the
    /// clients had too few under way.
    pub limited_by: &'static str,
    /// Bytes of a disk's read or write, on average.
    pub disk_transfer_bytes: Option<f64>,
    /// How much of the time the disks were in use on average, in percent.
    pub disks_busy_percent: f64,
    /// The same of the bus that was used most.
    pub bus_busy_percent: Option<f64>,
    /// The same of the network.
    pub network_busy_percent: Option<f64>,
    /// What the planner expects: operations a second; nothing where memory or a cache device
    /// would answer.
    pub predicted_iops: Option<f64>,
    /// Where that is another figure by more than 15 %, how far, and why.
    pub difference: Option<String>,
    /// Published: operations a second.
    pub published_iops: Option<f64>,
    /// Published: bytes a second.
    pub published_rate: Option<f64>,
    /// Published: how long it took, in seconds.
    pub published_seconds: Option<u64>,
    /// The most that log devices held, in bytes, if there are any.
    pub log_bytes: Option<u64>,
    /// Published: the same.
    pub published_log_bytes: Option<u64>,
    /// Published: operations a second at times.
    pub published: Vec<Published>,
    /// Its stretches, if there is more than one.
    pub points: Vec<Point>,
}

impl Outcome {
    /// Operations a second in the stretch that ends then, or is the first to end later.
    pub fn iops_at(&self, seconds: u64) -> Option<f64> {
        let at = Duration::from_secs(seconds);
        let point = self.points.iter().find(|point| point.at >= at)?;
        Some(point.iops)
    }

    /// When a stretch was the first with so many operations a second.
    pub fn reached(&self, iops: f64) -> Option<Duration> {
        let point = self.points.iter().find(|point| point.iops >= iops)?;
        Some(point.at)
    }
}

/// All steps with one server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The server's name; empty where the file has but one.
    pub server: String,
    /// The layout.
    pub layout: String,
    /// The disks' model.
    pub disk: String,
    /// All was smaller by this factor.
    pub scale: u32,
    /// The steps that tell something.
    pub steps: Vec<Outcome>,
}

/// What a file told, of one server or several.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Told {
    /// What it is about.
    pub title: String,
    /// In the file's order.
    pub servers: Vec<Report>,
}

/// Disks wait now and then for their turn while others of the vdev work.
pub(crate) const DISKS_LIMITING_PERCENT: f64 = 75.0;
/// Characters of the longest bar of a plot.
const BAR: f64 = 50.0;
/// Rows of a table of stretches; of more stretches only some are in it.
const ROWS: usize = 26;
/// Part of its last rate at which a load is said to be warm.
const WARM: f64 = 0.9;

pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn megabytes(rate: Option<f64>) -> String {
    rate.map(|rate| format!("{:.1}", rate / 1e6))
        .unwrap_or_default()
}

fn whole(value: Option<f64>) -> String {
    value.map(|value| format!("{value:.0}")).unwrap_or_default()
}

impl Told {
    /// Tables, and bars for loads that were told in stretches; in Markdown.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let first = self.servers.first();
        if let Some(first) = first {
            let (layout, disk, scale) = (&first.layout, &first.disk, first.scale);
            let _ = write!(out, "{}: {layout} of {disk}, at 1:{scale}.\n\n", self.title);
        }
        self.table(&mut out);
        for report in &self.servers {
            report.notes(&mut out);
        }
        match self.servers.as_slice() {
            [report] => report.bars(&mut out),
            [first, ..] => {
                for step in first.steps.iter().filter(|step| step.points.len() > 1) {
                    self.stretches(&mut out, &step.name);
                }
            }
            [] => {}
        }
        out
    }

    /// The step of this name with each server that has it.
    pub(crate) fn of_step<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Outcome)> {
        self.servers.iter().filter_map(move |report| {
            let step = report.steps.iter().find(|step| step.name == name)?;
            Some((report.server.as_str(), step))
        })
    }

    fn table(&self, out: &mut String) {
        let are_several = self.servers.len() > 1;
        let (head, rule) = match are_several {
            true => ("| server ", "|---"),
            false => ("", ""),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{head}| step | time | operations/s | planned | MB/s | mean ms | limited by | \
             published |\n{rule}|---|---|---|---|---|---|---|---|"
        );
        for report in &self.servers {
            for step in &report.steps {
                let server = match are_several {
                    true => format!("| {} ", report.server),
                    false => String::new(),
                };
                let _ = writeln!(out, "{server}{}", step.row());
            }
        }
    }

    /// A load that was told in stretches, of all servers beside each other.
    fn stretches(&self, out: &mut String, name: &str) {
        let steps: Vec<_> = self.of_step(name).collect();
        let published: Vec<Published> = (steps.iter())
            .flat_map(|(_, step)| step.published.iter().copied())
            .collect();
        let Some(longest) = steps
            .iter()
            .map(|(_, step)| &step.points)
            .max_by_key(|p| p.len())
        else {
            return;
        };
        let servers: Vec<&str> = steps.iter().map(|(server, _)| *server).collect();
        let _ = writeln!(
            out,
            "\n{name}, operations a second:\n\n| | {} | published |\n|---|{}---|",
            servers.join(" | "),
            "---|".repeat(servers.len())
        );
        let each = longest.len().div_ceil(ROWS);
        let of_time = |at: Duration| {
            let known = published.iter().find(|known| known.seconds == at.as_secs());
            known.map(|known| known.iops)
        };
        for (number, point) in longest.iter().enumerate() {
            let known = of_time(point.at);
            if (number + 1) % each != 0 && known.is_none() {
                continue;
            }
            let cells: Vec<String> = (steps.iter())
                .map(|(_, step)| whole(step.points.get(number).map(|point| point.iops)))
                .collect();
            let at = duration(point.at.as_secs_f64());
            let _ = writeln!(out, "| {at} | {} | {} |", cells.join(" | "), whole(known));
        }
    }
}

impl Outcome {
    fn row(&self) -> String {
        let published = [
            self.published_iops.map(|iops| format!("{iops:.0}/s")),
            (self.published_rate).map(|rate| format!("{:.1} MB/s", rate / 1e6)),
            (self.published_seconds).map(|seconds| duration(seconds as f64)),
            (self.published_log_bytes).map(|bytes| format!("{:.2} GB held", bytes as f64 / 1e9)),
        ];
        let published: Vec<String> = published.into_iter().flatten().collect();
        let published = published.join(", ");
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {published} |",
            self.name,
            duration(self.seconds),
            whole(self.iops),
            whole(self.predicted_iops),
            megabytes(self.rate),
            (self.mean_ms)
                .map(|ms| format!("{ms:.2}"))
                .unwrap_or_default(),
            self.limited_by,
        )
    }
}

impl Report {
    /// What the table has no room for.
    fn notes(&self, out: &mut String) {
        let server = match self.server.as_str() {
            "" => String::new(),
            server => format!("{server}, "),
        };
        for step in &self.steps {
            let mut facts: Vec<String> = step.difference.iter().cloned().collect();
            if let Some(last) = step.points.last().filter(|_| step.points.len() > 1)
                && let Some(at) = step.reached(WARM * last.iops)
            {
                let at = duration(at.as_secs_f64());
                facts.push(format!("within a tenth of its last rate after {at}"));
            }
            if let Some(bytes) = step.cache_written_bytes {
                let gigabytes = bytes as f64 / 1e9;
                facts.push(format!("{gigabytes:.1} GB written to cache devices"));
            }
            if let Some(bytes) = step.cache_index_bytes {
                facts.push(format!("{bytes:.1} bytes of memory for each block on them"));
            }
            if let Some(bytes) = step.log_bytes {
                let gigabytes = bytes as f64 / 1e9;
                facts.push(format!("log devices held {gigabytes:.2} GB at most"));
            }
            if !facts.is_empty() {
                let _ = writeln!(out, "\n{server}{}: {}.", step.name, facts.join(", "));
            }
        }
    }

    fn bars(&self, out: &mut String) {
        for step in self.steps.iter().filter(|step| step.points.len() > 1) {
            let iops = step.points.iter().map(|point| point.iops);
            let most = iops.fold(1.0, f64::max);
            let _ = write!(out, "\n{}:\n\n```text\n", step.name);
            for point in &step.points {
                let bar = "#".repeat((point.iops / most * BAR).round() as usize);
                let _ = writeln!(out, "{point} {bar}");
            }
            out.push_str("```\n");
        }
    }
}
