//! What all of `millpond bench` has in common.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Options of all that runs fio.
#[derive(Debug, Args)]
pub(super) struct Common {
    /// Overwrite what is on a disk, volume or unit; without it they are only read
    #[arg(long)]
    pub(super) destroy: bool,
    /// Print the job files, and do nothing
    #[arg(long)]
    pub(super) show: bool,
    /// The program
    #[arg(long, default_value = "fio", value_name = "PROGRAM")]
    pub(super) fio: PathBuf,
    /// Print JSON, with exact numbers
    #[arg(short, long)]
    pub(super) json: bool,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    pub(super) csv: bool,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// Tells somebody who may not listen any more.
pub(super) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A runtime that does one thing, with what says when all has to end: interrupts and the like.
pub(super) fn run_until_stopped<T, Done>(
    work: impl FnOnce(watch::Receiver<bool>) -> Done,
) -> anyhow::Result<T>
where
    Done: Future<Output = anyhow::Result<T>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (stop, stopped) = watch::channel(false);
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        for kind in kinds {
            let mut signals = signal(kind)?;
            let stop = stop.clone();
            tokio::spawn(async move {
                signals.recv().await;
                // Nobody listens when all is done.
                let _ = stop.send(true);
            });
        }
        work(stopped).await
    })
}

/// Writes a file.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}
