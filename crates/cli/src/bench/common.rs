//! What all of `millpond bench` has in common.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
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

/// Whether a file could be written at the end: told before hours are spent. What is there stays.
pub(super) fn check_writable(path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let told = || format!("{} cannot be written", path.display());
    match std::fs::metadata(path) {
        // Devices and pipes may do something when they are opened.
        Ok(metadata) if metadata.is_file() => {
            let opened = std::fs::OpenOptions::new().append(true).open(path);
            opened.map(drop).with_context(told)
        }
        Ok(metadata) if metadata.is_dir() => bail!("{}: it is a directory", told()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            tempfile::tempfile_in(directory_of(path))
                .map(drop)
                .with_context(told)
        }
        Err(error) => Err(error).with_context(told),
    }
}

/// The directory that a file is in.
pub(super) fn directory_of(path: &Path) -> &Path {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Writes a file.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        std::fs::write(at("there"), "kept").unwrap();
        for fine in ["there", "new"] {
            check_writable(Some(&at(fine))).unwrap();
        }
        assert_eq!(std::fs::read(at("there")).unwrap(), b"kept");
        assert!(!at("new").exists());
        check_writable(None).unwrap();
        check_writable(Some(Path::new("/dev/null"))).unwrap();
        for wrong in [at("none/new"), at("there/new"), room.path().to_owned()] {
            let told = check_writable(Some(&wrong)).unwrap_err().to_string();
            assert!(told.contains("cannot be written"), "{told}");
        }
        assert_eq!(directory_of(Path::new("a.json")), Path::new("."));
    }
}
