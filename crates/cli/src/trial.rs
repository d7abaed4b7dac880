//! `millpond try`: a pool on simulated disks, before the disks are bought.

use std::io::Write;
use std::path::PathBuf;

use ::bench::plot::Bar;
use ::plan::Layout;
use ::trial::{CATALOG, Outcome, STORIES, Told, Trial, Trials, story};
use anyhow::Context;
use clap::Args;

/// Tries a pool on simulated disks: the engine itself, in virtual time.
#[derive(Debug, Args)]
pub struct Try {
    /// A trial's file, or the name of one that is ready
    #[arg(conflicts_with = "layout")]
    trial: Option<String>,
    /// Try this layout instead: mirror:7x2, raidz2:2x6, draid2:4d:11c:1s
    #[arg(long, requires = "disk", value_parser = crate::plan::word::<Layout>)]
    layout: Option<Layout>,
    /// Model of its disks, by the name in --list
    #[arg(long, requires = "layout")]
    disk: Option<String>,
    /// Name the trials that are ready, and the disks that there are models of
    #[arg(short, long, conflicts_with = "trial")]
    list: bool,
    /// Print the file of a trial that is ready, to be changed
    #[arg(long, requires = "trial")]
    show: bool,
    /// All sizes and rates are smaller by this factor (default: as the file says)
    #[arg(long)]
    scale: Option<u32>,
    /// Print JSON, with exact numbers
    #[arg(short, long)]
    json: bool,
    /// Also write a picture, as SVG: over time the first load that is told in stretches, else a bar
    /// for each step
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Try {
    /// Tells it.
    pub fn run(self) -> anyhow::Result<()> {
        let mut trials = match (&self.trial, self.layout, &self.disk) {
            (_, Some(layout), Some(disk)) => Trials::of_one(Trial::usual(layout, disk)?),
            (Some(name), _, _) => {
                let text = file(name)?;
                if self.show {
                    print!("{text}");
                    return Ok(());
                }
                Trials::parse(&text).with_context(|| name.clone())?
            }
            (None, _, _) => {
                print!("{}", list());
                return Ok(());
            }
        };
        if let Some(scale) = self.scale {
            trials = trials.at_scale(scale)?;
        }
        let mut progress = |line: &str| {
            // Nobody looks at it where standard error is closed.
            let _ = writeln!(std::io::stderr(), "{line}");
        };
        let told = ::trial::run_all(&trials, &mut progress, &|| false)?;
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&told)?),
            false => print!("{}", told.markdown()),
        }
        if let Some(file) = self.svg {
            let picture = told.svg().unwrap_or_else(|| bars(&told));
            std::fs::write(&file, picture)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}

/// A bar for each step with each server, one step after the other. It is as long as what was
/// published of any step is counted, else operations a second; marks are what was published, or
/// what the plan expects.
fn bars(told: &Told) -> String {
    let steps = || told.servers.iter().flat_map(|server| &server.steps);
    type Figures = fn(&Outcome) -> (Option<f64>, Option<f64>);
    let (unit, divisor, figures): (_, _, Figures) =
        if steps().any(|step| step.published_rate.is_some()) {
            let figures: Figures = |step| (step.rate, step.published_rate);
            ("MB/s; marks: published", 1e6, figures)
        } else if steps().any(|step| step.published_seconds.is_some()) {
            let figures: Figures = |step| {
                let published = step.published_seconds.map(|seconds| seconds as f64);
                (Some(step.seconds), published)
            };
            ("hours; marks: published", 3600.0, figures)
        } else {
            let figures: Figures = |step| (step.iops, step.predicted_iops);
            ("operations a second; marks: planned", 1.0, figures)
        };
    let mut names: Vec<&str> = Vec::new();
    for step in steps() {
        if !names.contains(&step.name.as_str()) {
            names.push(&step.name);
        }
    }
    let mut bars = Vec::new();
    for name in names {
        for server in &told.servers {
            let Some(step) = server.steps.iter().find(|step| step.name == name) else {
                continue;
            };
            let (Some(value), mark) = figures(step) else {
                continue;
            };
            bars.push(Bar {
                name: match server.server.as_str() {
                    "" => name.to_owned(),
                    server => format!("{name}, {server}"),
                },
                value: value / divisor,
                error: None,
                planned: mark.map(|mark| mark / divisor),
            });
        }
    }
    ::bench::plot::bars(&bars, unit)
}

/// A trial's file, or one that is ready.
fn file(name: &str) -> anyhow::Result<String> {
    match story(name) {
        Some(text) => Ok(text.to_owned()),
        None => std::fs::read_to_string(name).with_context(|| {
            format!("cannot read {name}; `millpond try --list` names the trials that are ready")
        }),
    }
}

fn list() -> String {
    let mut out = String::from("Trials that are ready:\n");
    for (name, text) in STORIES {
        let title = Trials::parse(text)
            .map(|trials| trials.title)
            .unwrap_or_default();
        out.push_str(&format!("  {name:<12} {title}\n"));
    }
    out.push_str("\nDisks that there are models of:\n");
    for known in CATALOG {
        out.push_str(&format!("  {:<18} {}\n", known.name, known.title));
    }
    out
}
