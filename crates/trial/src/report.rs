//! What a trial found, as figures and as text.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

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
    /// What was in use nearly all the time: `disks`, `bus`, `network`; else `requests`: the
    /// clients had too few under way.
    pub limited_by: &'static str,
    /// How much of the time the disks were in use on average, in percent.
    pub disks_busy_percent: f64,
    /// The same of the bus that was used most.
    pub bus_busy_percent: Option<f64>,
    /// The same of the network.
    pub network_busy_percent: Option<f64>,
    /// What the planner expects: operations a second; nothing where memory or a cache device
    /// would answer.
    pub predicted_iops: Option<f64>,
    /// Published: operations a second.
    pub published_iops: Option<f64>,
    /// Published: bytes a second.
    pub published_rate: Option<f64>,
    /// Its stretches, if there is more than one.
    pub points: Vec<Point>,
}

/// All steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What the trial is about.
    pub title: String,
    /// The layout.
    pub layout: String,
    /// The disks' model.
    pub disk: String,
    /// All was smaller by this factor.
    pub scale: u32,
    /// The steps that tell something.
    pub steps: Vec<Outcome>,
}

/// Characters of the longest bar of a plot.
const BAR: f64 = 50.0;

fn duration(seconds: f64) -> String {
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

impl Report {
    /// A table, and bars for loads that were told in stretches; in Markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!(
            "{}: {} of {}, at 1:{}.\n\n",
            self.title, self.layout, self.disk, self.scale
        );
        out.push_str(
            "| step | time | operations/s | planned | MB/s | mean ms | limited by | published |\n",
        );
        out.push_str("|---|---|---|---|---|---|---|---|\n");
        for step in &self.steps {
            let published = match (step.published_iops, step.published_rate) {
                (Some(iops), _) => format!("{iops:.0}/s"),
                (None, Some(rate)) => format!("{:.1} MB/s", rate / 1e6),
                (None, None) => String::new(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {published} |",
                step.name,
                duration(step.seconds),
                whole(step.iops),
                whole(step.predicted_iops),
                megabytes(step.rate),
                (step.mean_ms)
                    .map(|ms| format!("{ms:.2}"))
                    .unwrap_or_default(),
                step.limited_by,
            );
        }
        for step in &self.steps {
            if let Some(bytes) = step.cache_written_bytes {
                let gigabytes = bytes as f64 / 1e9;
                let _ = writeln!(
                    out,
                    "\n{}: {gigabytes:.1} GB written to cache devices.",
                    step.name
                );
            }
        }
        for step in self.steps.iter().filter(|step| step.points.len() > 1) {
            let most = step
                .points
                .iter()
                .map(|point| point.iops)
                .fold(1.0, f64::max);
            let _ = write!(out, "\n{}:\n\n```text\n", step.name);
            for point in &step.points {
                let bar = "#".repeat((point.iops / most * BAR).round() as usize);
                let at = duration(point.at.as_secs_f64());
                let _ = writeln!(out, "{at:>8} {:>7.0}/s {bar}", point.iops);
            }
            out.push_str("```\n");
        }
        out
    }
}
