//! `millpond rescue`: what is left of a pool that will not open, listed, checked or copied out.
//!
//! It reads the devices itself and needs no daemon; it never writes to them. What is lost is left
//! out and told in a report. The exit status is 0 when everything that was asked for came out
//! whole, 2 when something is lost or could not be stored, 1 when nothing could be done, 130 when
//! it was stopped.

mod archive;
mod directory;
mod progress;
mod report;
mod sink;
mod walk;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use clap::Args;
use device::World;
use filesystem::Time;
use format::{Guid, Txg};
use pool::{FoundPool, Salvage, SalvageSpec, SalvagedDataset, ScanSpec};

use self::archive::Archive;
use self::directory::Directory;
use self::progress::Progress;
use self::report::{DatasetReport, Report};
use self::sink::Sink;
use crate::columns::{Column, render};
use crate::numbers::nice_bytes;

/// Exit status when something is lost.
const SOMETHING_LOST: u8 = 2;
/// Exit status when it was stopped.
const STOPPED: u8 = 130;

/// Save the files of a pool that will not open.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --check, --to or --tar the datasets are listed. Exit status: 0 all is \
                  whole, 2 something is lost, 1 failed, 130 stopped."
)]
pub struct Rescue {
    /// Device, file or directory to look at (default: /dev/disk/by-id and /dev)
    #[arg(short = 'd', value_name = "DIR|FILE")]
    search: Vec<String>,
    /// Read everything and tell what is lost, without copying
    #[arg(long, conflicts_with_all = ["to", "tar"])]
    check: bool,
    /// Copy into this directory; a second run goes on where the first stopped
    #[arg(long, value_name = "DIR", conflicts_with = "tar")]
    to: Option<PathBuf>,
    /// Write a tar archive; '-' is standard output
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// Only this dataset or snapshot (may be given several times)
    #[arg(long = "dataset", value_name = "NAME")]
    datasets: Vec<String>,
    /// With --dataset: what is below it too
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Snapshots too
    #[arg(long)]
    snapshots: bool,
    /// Use no state newer than this transaction group
    #[arg(long, value_name = "TXG")]
    txg: Option<u64>,
    /// Do not look for lost datasets in older states
    #[arg(long)]
    no_older: bool,
    /// Leave out files of which parts are lost
    #[arg(long)]
    omit_damaged: bool,
    /// Report in JSON
    #[arg(short = 'j', long)]
    json: bool,
    /// Write the report to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The pool's name or guid
    pool: String,
}

impl Rescue {
    /// Does what was asked for.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        runtime.spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if flag.swap(true, Ordering::Relaxed) {
                    std::process::exit(STOPPED.into());
                }
                eprintln!("\nstopping after this file; press Ctrl-C again to stop at once");
            }
        });
        runtime.block_on(self.rescue(Progress::new(stop)))
    }

    async fn rescue(self, progress: Progress) -> anyhow::Result<ExitCode> {
        let cores = std::thread::available_parallelism().map_or(2, |count| count.get());
        let world = World::system(cores);
        let found = self.find(&world).await?;
        let spec = SalvageSpec {
            found,
            txg_max: self.txg.map(Txg::new),
            older: !self.no_older,
        };
        let salvage = Salvage::open(&world, &spec).await?;
        let chosen = self.choose(&salvage)?;
        let is_listing = !self.check && self.to.is_none() && self.tar.is_none();
        let mut report = Report::new(&salvage, self.txg.is_some());
        if is_listing {
            report.datasets = chosen.iter().map(DatasetReport::new).collect();
            salvage.close();
            return self.list(&report);
        }
        let time = Time {
            seconds: i64::try_from(report.timestamp).unwrap_or(0),
            nanoseconds: 0,
        };
        let mut sink = self.sink(&chosen, time)?;
        let mut failure = None;
        for dataset in &chosen {
            if progress.is_stopped() {
                break;
            }
            match walk::dataset(&salvage, dataset, &mut sink, &progress).await {
                Ok(done) => report.datasets.push(done),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        progress.end();
        salvage.close();
        report.interrupted = progress.is_stopped();
        let notes = sink.finish()?;
        for note in notes {
            eprintln!("{note}");
        }
        if let Some(error) = failure {
            return Err(error);
        }
        self.tell(&report)?;
        Ok(if report.interrupted {
            ExitCode::from(STOPPED)
        } else if report.is_whole() && report.is_stored() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(SOMETHING_LOST)
        })
    }

    async fn find(&self, world: &World) -> anyhow::Result<FoundPool> {
        let paths = if self.search.is_empty() {
            vec!["/dev/disk/by-id".to_owned(), "/dev".to_owned()]
        } else {
            self.search.clone()
        };
        let spec = ScanSpec {
            paths,
            ..ScanSpec::default()
        };
        let guid = self.pool.parse::<u64>().ok().map(Guid::new);
        let mut found = pool::scan(world, &spec).await?;
        found.retain(|pool| pool.name == self.pool || Some(pool.guid) == guid);
        match found.len() {
            0 => bail!(
                "no label of a pool '{}' was found; name its devices with '-d', and look at them \
                 with 'millpond labels'",
                self.pool
            ),
            1 => Ok(found.remove(0)),
            _ => bail!(
                "several pools are called '{}'; give the guid of one: {}",
                self.pool,
                found
                    .iter()
                    .map(|pool| pool.guid.to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        }
    }

    fn choose(&self, salvage: &Salvage) -> anyhow::Result<Vec<SalvagedDataset>> {
        let all = salvage.datasets();
        for name in &self.datasets {
            if !all.iter().any(|dataset| dataset.name == *name) {
                bail!(
                    "there is no dataset '{name}' in what is left of the pool; list it without \
                     '--dataset'"
                );
            }
        }
        let is_listing = !self.check && self.to.is_none() && self.tar.is_none();
        let snapshots = self.snapshots || is_listing;
        let is_chosen = |dataset: &SalvagedDataset| {
            if self.datasets.is_empty() {
                return snapshots || !dataset.is_snapshot;
            }
            self.datasets.iter().any(|name| {
                let rest = dataset.name.strip_prefix(name.as_str());
                match rest {
                    Some("") => true,
                    Some(rest) if rest.starts_with('@') => snapshots,
                    Some(rest) if rest.starts_with('/') && self.recursive => {
                        snapshots || !dataset.is_snapshot
                    }
                    _ => false,
                }
            })
        };
        Ok(all.iter().filter(|one| is_chosen(one)).cloned().collect())
    }

    fn sink(&self, chosen: &[SalvagedDataset], time: Time) -> anyhow::Result<Sink> {
        if let Some(base) = &self.to {
            let names = chosen.iter().map(|dataset| dataset.name.as_str());
            let to = Directory::new(base, self.omit_damaged, time, names)?;
            return Ok(Sink::Directory(to));
        }
        let Some(path) = &self.tar else {
            return Ok(Sink::Check);
        };
        let out: Box<dyn Write + Send> = if path.as_os_str() == "-" {
            Box::new(std::io::stdout())
        } else {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .with_context(|| format!("{} cannot be made; choose a new name", path.display()))?;
            Box::new(file)
        };
        let out = Box::new(std::io::BufWriter::with_capacity(1 << 20, out));
        Ok(Sink::Archive(Archive::new(out, self.omit_damaged, time)))
    }

    fn list(&self, report: &Report) -> anyhow::Result<ExitCode> {
        if self.json || self.report.is_some() {
            self.tell(report)?;
        } else {
            print!("{}", table(report));
        }
        Ok(if report.is_whole() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(SOMETHING_LOST)
        })
    }

    /// The report, where it was asked for.
    fn tell(&self, report: &Report) -> anyhow::Result<()> {
        let text = if self.json {
            serde_json::to_string_pretty(report)? + "\n"
        } else {
            report.text()
        };
        if let Some(path) = &self.report {
            std::fs::write(path, &text)
                .with_context(|| format!("{} cannot be written", path.display()))?;
        } else if self
            .tar
            .as_ref()
            .is_some_and(|path| path.as_os_str() == "-")
        {
            eprint!("{text}");
        } else {
            print!("{text}");
        }
        Ok(())
    }
}

fn table(report: &Report) -> String {
    let columns = [
        Column::left("NAME"),
        Column::left("KIND"),
        Column::right("REFER"),
        Column::right("TXG"),
        Column::left("STATE"),
    ];
    let rows: Vec<Vec<String>> = report
        .datasets
        .iter()
        .map(|dataset| {
            let state = match &dataset.problem {
                Some(problem) => format!("LOST: {problem}"),
                None if dataset.notes.is_empty() => "can be read".to_owned(),
                None => format!("can be read; {}", dataset.notes.join("; ")),
            };
            vec![
                dataset.name.clone(),
                dataset.kind.to_owned(),
                nice_bytes(dataset.referenced),
                dataset.txg.to_string(),
                state,
            ]
        })
        .collect();
    let mut head = Report {
        datasets: Vec::new(),
        missing_vdevs: report.missing_vdevs.clone(),
        pool_problems: report.pool_problems.clone(),
        pool: report.pool.clone(),
        ..*report
    }
    .text();
    // The last line sums up datasets, which come here.
    if let Some(end) = head.trim_end().rfind('\n') {
        head.truncate(end + 1);
    }
    head + &render(&columns, &rows, false)
}
