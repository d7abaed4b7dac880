//! `millpond bench log`: whether a device may hold an intent log.

use std::time::{SystemTime, UNIX_EPOCH};

use ::bench::limits::{SECONDS_MAX, TOTAL_SECONDS_MAX};
use ::bench::log_device::{self, KIND, LogReport, Step, Verdict};
use ::bench::progress::Progress;
use ::bench::run::Runner;
use ::bench::{Area, csv, html};
use ::plan::amount::{show_bytes, show_seconds};
use anyhow::{Context, bail};
use clap::Args;
use tokio::sync::watch;

use super::common::{self, Common, run_until_stopped, tell, write};
use super::tables;
use super::target::Target;

/// Bytes that are written to by default: what a log device of a busy server holds.
const SIZE_BYTES: u64 = 1 << 30;

/// Tells whether a device may hold an intent log: flushes, synchronous writes, honesty.
#[derive(Debug, Args)]
pub(super) struct Log {
    /// The device; or a directory, to test the device below it
    target: String,
    /// Seconds of each step
    #[arg(long, default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
    /// Minutes of synchronous writes without a pause
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Bytes that are written to
    #[arg(long, value_parser = crate::plan::size)]
    size: Option<u64>,
    #[command(flatten)]
    common: Common,
}

impl Log {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let is_fine = self.minutes > 0.0 && self.minutes * 60.0 <= TOTAL_SECONDS_MAX as f64;
        if !is_fine {
            bail!("--minutes is more than 0, and 2,880 at most");
        }
        common::check_writable(self.common.html.as_deref())?;
        run_until_stopped(|stopped| async move {
            match self.tested(stopped).await? {
                Some(report) => self.told(&report),
                None => Ok(()),
            }
        })
    }

    fn steps(&self) -> Vec<Step> {
        let long_seconds = (self.minutes * 60.0).round().max(1.0) as u64;
        log_device::steps(self.seconds, long_seconds)
    }

    /// Tests it; nothing when only job files are to be shown.
    async fn tested(&self, stopped: watch::Receiver<bool>) -> anyhow::Result<Option<LogReport>> {
        let work = tempfile::Builder::new()
            .prefix("millpond-bench-")
            .tempdir()
            .context("a directory for job files")?;
        let runner = Runner::new(&self.common.fio, work.path(), stopped, None).await?;
        if self.target.contains("://") {
            bail!("a log device is a device of this host, or a directory on one");
        }
        let target = Target::open(&self.target, self.common.destroy, &runner).await?;
        if target.is_read_only() && !self.common.show {
            bail!(
                "{} is overwritten by this test, which only --destroy allows; name a directory to \
                 test the device below it without loss",
                target.name()
            );
        }
        let size_bytes = match target.is_read_only() {
            true => self.size.unwrap_or(SIZE_BYTES),
            false => target.size_bytes(self.size, SIZE_BYTES)?,
        };
        let area = Area {
            place: target.place().clone(),
            size_bytes,
            is_read_only: false,
        };
        let steps = self.steps();
        if self.common.show {
            for step in &steps {
                println!("{}", step.job(&area)?.text());
            }
            return Ok(None);
        }
        target.set_size(size_bytes)?;
        // After the target, so that it lets go of what it holds before that ends.
        let mut runner = runner.holding(target.held()?);
        let seconds: u64 = steps.iter().map(|step| step.seconds).sum();
        tell(&format!(
            "{}. About {}. Others who use it will notice. Ctrl-C stops at once.",
            target.announced(&show_bytes(size_bytes)),
            show_seconds(seconds as f64)
        ));
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let report = LogReport {
            kind: KIND.to_owned(),
            fio: runner.version().to_owned(),
            began: since.map_or(0, |since| since.as_secs()),
            target: target.name().to_owned(),
            facts: target.facts(),
            steps: Vec::new(),
            findings: Vec::new(),
            verdict: Verdict::Unknown,
            jobs: Vec::new(),
        };
        let mut told = |progress: Progress<'_>| tables::progress(progress);
        let done = log_device::measure(report, &area, &steps, &mut runner, &mut told).await;
        Ok(Some(done?))
    }

    fn told(&self, report: &LogReport) -> anyhow::Result<()> {
        if let Some(path) = &self.common.html {
            write(path, &html::of_log(report))?;
        }
        match (self.common.json, self.common.csv) {
            (true, _) => println!("{}", serde_json::to_string_pretty(report)?),
            (_, true) => print!("{}", csv::of_log(report)),
            _ => print!("{}", tables::log(report)),
        }
        Ok(())
    }
}
