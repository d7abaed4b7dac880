//! fio as a process: found, started, stopped, never left behind.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::fio::{self, Output};
use crate::job::{JobFile, Place};
use crate::log::{self, Entry};
use crate::{BenchError, Held};

/// What has fio end with who started it (setpriv(1), "--pdeathsig").
const SETPRIV: &str = "setpriv";
/// How long the kernel may take to end a fio that was killed: its threads may wait for a disk.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most that is told of what a fio said that failed, in characters.
const TOLD_MAX: usize = 600;
/// Name of the job file.
const JOB: &str = "job.fio";
/// Name of what fio prints.
const OUTPUT: &str = "output.json";
/// Ticks of a second in which Linux counts processor time (`proc_pid_stat(5)`: USER_HZ, which is
/// 100 on x86 and Arm).
const TICKS: f64 = 100.0;

/// A fio that is there, with a directory for its job files and logs.
#[derive(Debug)]
pub struct Runner {
    program: PathBuf,
    version: String,
    engines: BTreeSet<String>,
    work: PathBuf,
    stopped: watch::Receiver<bool>,
    server: Option<u32>,
    held: Option<Held>,
    runs: u64,
}

/// A run that ended well.
#[derive(Debug)]
pub struct Ran {
    /// fio's output.
    pub output: Output,
    /// Its logs, in a directory of their own.
    pub directory: PathBuf,
    /// Seconds of a processor that the server took meanwhile, where it is known.
    pub server_cpu_seconds: Option<f64>,
}

/// A process group that ends with its owner.
struct Group(Child);

impl Group {
    fn kill(&self) {
        // It has no number any more when it has ended, and then nothing is to be killed.
        let pid = self.0.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Runner {
    /// Finds the program and asks it what it has. `work` is an empty directory, which the caller
    /// takes away; `stopped` says when all has to end; `server` is the process of a server whose
    /// processor time counts.
    ///
    /// # Errors
    /// There is no such program, or none that starts it, or it cannot be run.
    pub async fn new(
        program: &Path,
        work: &Path,
        stopped: watch::Receiver<bool>,
        server: Option<u32>,
    ) -> Result<Self, BenchError> {
        let version = said(program, "--version").await?.trim().to_owned();
        let engines = fio::engines(&said(program, "--enghelp").await?);
        find_starter(Path::new(SETPRIV)).await?;
        Ok(Runner {
            program: program.to_owned(),
            version,
            engines,
            work: work.to_owned(),
            stopped,
            server,
            held: None,
            runs: 0,
        })
    }

    /// Has loads on a file or device go over this. It is let go with the runner.
    pub fn holding(self, held: Option<Held>) -> Self {
        Runner { held, ..self }
    }

    /// `fio-3.33`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether it has an engine.
    pub fn has(&self, engine: &str) -> bool {
        self.engines.contains(engine)
    }

    /// Whether a place can be reached.
    ///
    /// # Errors
    /// [`BenchError::NoEngine`], with what can be done.
    pub fn check(&self, place: &Place) -> Result<(), BenchError> {
        let engine = place.engine(false);
        if self.has(engine) {
            return Ok(());
        }
        let (library, instead) = match place {
            Place::File { .. } => ("libaio-dev", "install another fio"),
            Place::Iscsi { .. } => (
                "libiscsi-dev",
                "log in to the target (open-iscsi) and name the disk that appears",
            ),
            Place::Nfs { .. } => ("libnfs-dev", "mount the share and name its directory"),
        };
        Err(BenchError::NoEngine {
            program: self.program.display().to_string(),
            engine,
            library,
            instead,
        })
    }

    /// Whether all has to end.
    pub fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Has fio run a job file.
    ///
    /// # Errors
    /// [`BenchError::Stopped`]; it cannot be run; it failed; [`BenchError::NotHeld`].
    pub async fn run(&mut self, job: &JobFile) -> Result<Ran, BenchError> {
        if self.is_stopped() {
            return Err(BenchError::Stopped);
        }
        let input = match (job.is_of_input, &self.held) {
            (false, _) => Stdio::null(),
            (true, Some(held)) => held.stdin().map_err(|source| self.not_run(source))?,
            (true, None) => return Err(BenchError::NotHeld),
        };
        // fio adds to logs that are there.
        self.runs += 1;
        let directory = self.work.join(format!("run{}", self.runs));
        let ours = |source| BenchError::File {
            path: directory.display().to_string(),
            source,
        };
        std::fs::create_dir(&directory).map_err(ours)?;
        std::fs::write(directory.join(JOB), job.text()).map_err(ours)?;
        let before = self.server.and_then(cpu_seconds);
        // It ends with this process, however that ends: nobody would stop it then.
        let mut command = Command::new(SETPRIV);
        command
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .args(["--output-format=json", "--output", OUTPUT])
            .args(job.is_read_only.then_some("--readonly"))
            .arg(JOB)
            .current_dir(&directory)
            .process_group(0)
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = command
            .spawn()
            .map_err(|error| not_started(SETPRIV, error))?;
        let mut group = Group(child);
        let said = self.until_ended(&mut group).await?;
        let after = self.server.and_then(cpu_seconds);
        let text = std::fs::read_to_string(directory.join(OUTPUT)).unwrap_or_default();
        if let Some(told) = said {
            // Its JSON may tell more exactly what failed.
            return Err(match Output::read(&text) {
                Err(failed @ BenchError::Failed { .. }) if told.is_empty() => failed,
                _ => BenchError::Failed { told },
            });
        }
        Ok(Ran {
            output: Output::read(&text)?,
            directory,
            server_cpu_seconds: before.zip(after).map(|(before, after)| after - before),
        })
    }

    fn not_run(&self, source: std::io::Error) -> BenchError {
        not_run(&self.program, source)
    }

    /// Waits for the end; what fio said where it failed.
    async fn until_ended(&mut self, group: &mut Group) -> Result<Option<String>, BenchError> {
        let mut stderr = group.0.stderr.take();
        let mut said = String::new();
        let program = self.program.clone();
        let ended = async {
            if let Some(stderr) = &mut stderr {
                let mut bytes = Vec::new();
                // An error leaves the message short.
                let _ = tokio::io::AsyncReadExt::read_to_end(stderr, &mut bytes).await;
                said = String::from_utf8_lossy(&bytes).into_owned();
            }
            group.0.wait().await
        };
        let mut stopped = self.stopped.clone();
        // Whoever could stop it may be gone; then it ends by itself.
        let stop = async move { stopped.wait_for(|stopped| *stopped).await.is_ok() };
        let status = tokio::select! {
            true = stop => None,
            status = ended => Some(status.map_err(|source| not_run(&program, source))?),
        };
        match status {
            Some(status) if status.success() => Ok(None),
            Some(_) => Ok(Some(shortened(&said))),
            None => {
                group.kill();
                // Its files go next, and it might still be making some.
                let _ = tokio::time::timeout(PATIENCE, group.0.wait()).await;
                Err(BenchError::Stopped)
            }
        }
    }
}

impl Ran {
    /// A log by its file's name, all threads in one; nothing where there is none.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn log(&self, name: &str) -> Result<Vec<Entry>, BenchError> {
        let path = self.directory.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => log::read(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(BenchError::File {
                path: path.display().to_string(),
                source,
            }),
        }
    }

    /// The logs of each thread of a section: `NAME_KIND.3.log`.
    ///
    /// # Errors
    /// One cannot be read, or is none.
    pub fn logs(&self, name: &str, kind: &str) -> Result<Vec<Vec<Entry>>, BenchError> {
        let begin = format!("{name}_{kind}.");
        let ours = |source| BenchError::File {
            path: self.directory.display().to_string(),
            source,
        };
        let mut out = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(ours)? {
            let name = entry.map_err(ours)?.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&begin) && name.ends_with(".log") {
                out.push(self.log(&name)?);
            }
        }
        Ok(out)
    }
}

/// Where a program is, by the directories of `PATH`; `None` where it is in none of them.
pub fn find(program: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        let metadata = std::fs::metadata(path);
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
    };
    let directories = std::env::var_os("PATH")?;
    let all = std::env::split_paths(&directories);
    all.map(|directory| directory.join(program))
        .find(is_program)
}

fn not_run(program: &Path, source: std::io::Error) -> BenchError {
    let program = program.display().to_string();
    match source.kind() {
        std::io::ErrorKind::NotFound => BenchError::NoFio { program },
        _ => BenchError::Run { program, source },
    }
}

/// Why what starts fio was not started. (It says by itself that there is no fio.)
fn not_started(starter: &str, source: std::io::Error) -> BenchError {
    match source.kind() {
        std::io::ErrorKind::NotFound => BenchError::NoSetpriv,
        _ => BenchError::Run {
            program: starter.to_owned(),
            source,
        },
    }
}

/// Whether there is what starts fio: known before anything is made for the loads.
async fn find_starter(starter: &Path) -> Result<(), BenchError> {
    let asked = asked(starter, "--version").await;
    let name = starter.display().to_string();
    asked.map_err(|error| not_started(&name, error)).map(drop)
}

async fn said(program: &Path, word: &str) -> Result<String, BenchError> {
    asked(program, word)
        .await
        .map_err(|source| not_run(program, source))
}

async fn asked(program: &Path, word: &str) -> std::io::Result<String> {
    let output = Command::new(program)
        .arg(word)
        .stdin(Stdio::null())
        .output()
        .await?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The end of what was said, on one line: there the reason is.
fn shortened(said: &str) -> String {
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let text = lines.join("; ");
    match text.char_indices().rev().nth(TOLD_MAX) {
        Some((at, _)) => format!("...{}", &text[at..]),
        None => text,
    }
}

/// Seconds that a process computed so far, by itself and in the kernel; `None` where it is gone.
fn cpu_seconds(process: u32) -> Option<f64> {
    cpu_seconds_of(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Fields 14 and 15 of `proc_pid_stat(5)`; the second, a name, may have blanks and parentheses.
fn cpu_seconds_of(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "41 (a) b (c) S 1 41 41 0 -1 4194560 9 0 0 0 250 50 3 4 20 0 1 0 5 6 7";
        assert_eq!(cpu_seconds_of(stat), Some(3.0));
        assert_eq!(cpu_seconds_of("41"), None);
        assert!(cpu_seconds(std::process::id()).is_some());
    }

    #[test]
    fn what_fio_said_is_told_from_its_end() {
        assert_eq!(shortened("  a\n\n b \n"), "a; b");
        let long = "ä".repeat(2000);
        assert!(shortened(&long).starts_with("...ä") && shortened(&long).len() < 1300);
    }

    fn runner(work: &Path, stopped: watch::Receiver<bool>, script: &str) -> Runner {
        use std::os::unix::fs::PermissionsExt;
        let program = work.join("fio");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        Runner {
            program,
            version: "fio-3.33".into(),
            engines: fio::engines("Engines:\n\tlibaio\n"),
            work: work.to_owned(),
            stopped,
            server: None,
            held: Some(Held::find(work).unwrap()),
            runs: 0,
        }
    }

    fn job() -> JobFile {
        let place = Place::File {
            path: "/tmp/data".into(),
            is_direct: true,
        };
        let area = crate::Area {
            place,
            size_bytes: 1 << 20,
            is_read_only: true,
        };
        crate::job::fill(&area).unwrap()
    }

    #[test]
    fn programs_are_found_where_the_shell_finds_them() {
        assert!(find("sh").is_some_and(|path| path.ends_with("sh")));
        assert_eq!(find("no-such-program-anywhere"), None);
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_said() {
        let work = tempfile::tempdir().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let new = Runner::new(Path::new("/nonexistent/fio"), work.path(), stopped, None);
        let error = new.await.unwrap_err().to_string();
        assert!(error.contains("apt install fio"), "{error}");
    }

    #[tokio::test]
    async fn what_starts_fio_is_named_where_it_is_missing() {
        find_starter(Path::new(SETPRIV)).await.unwrap();
        let missing = find_starter(Path::new("/nonexistent/setpriv")).await;
        let error = missing.unwrap_err().to_string();
        assert!(
            error.contains("setpriv") && error.contains("apt install util-linux"),
            "{error}"
        );
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let error = not_started(SETPRIV, denied).to_string();
        assert!(error.starts_with("cannot run setpriv"), "{error}");
    }

    /// Goal: fio reaches the file that was made for it, and nothing else, whatever its name leads
    /// to by now. Method: the name becomes a link to a file of somebody else's before the program
    /// runs, which writes to what it is told to open; then nobody holds the file.
    #[tokio::test]
    async fn a_link_in_the_place_of_the_file_is_not_followed() {
        let work = tempfile::tempdir().unwrap();
        let at = |name: &str| work.path().join(name);
        let held = Held::make(Held::find(work.path()).unwrap(), "data").unwrap();
        std::fs::rename(at("data"), at("moved")).unwrap();
        std::fs::write(at("theirs"), "theirs").unwrap();
        std::os::unix::fs::symlink(at("theirs"), at("data")).unwrap();
        let (_stop, stopped) = watch::channel(false);
        let script = "name=$(sed -n s/^filename=//p job.fio)\nprintf ours >\"$name\"\nexit 1";
        let mut runner = runner(work.path(), stopped, script).holding(Some(held));
        let failed = runner.run(&job()).await;
        assert!(matches!(failed, Err(BenchError::Failed { .. })));
        assert_eq!(std::fs::read(at("moved")).unwrap(), b"ours");
        assert_eq!(std::fs::read(at("theirs")).unwrap(), b"theirs");
        let mut runner = runner.holding(None);
        let refused = runner.run(&job()).await;
        assert!(matches!(refused, Err(BenchError::NotHeld)));
    }

    #[tokio::test]
    async fn engines_that_are_not_there_are_said_with_their_packages() {
        let work = tempfile::tempdir().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let runner = runner(work.path(), stopped, "exit 0");
        let url = String::from("iscsi://host/iqn/0");
        let error = runner.check(&Place::Iscsi { url }).unwrap_err().to_string();
        assert!(
            error.contains("libiscsi-dev") && error.contains("open-iscsi"),
            "{error}"
        );
        let place = Place::File {
            path: "/dev/sda".into(),
            is_direct: true,
        };
        assert!(runner.check(&place).is_ok());
    }

    #[tokio::test]
    async fn what_failed_is_told_and_a_reader_cannot_write() {
        let work = tempfile::tempdir().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let script = "echo \"fio: $*\" >&2\nexit 1";
        let mut runner = runner(work.path(), stopped, script);
        let error = runner.run(&job()).await.unwrap_err().to_string();
        assert!(
            error.starts_with("fio failed: fio: --output-format=json"),
            "{error}"
        );
        assert!(error.contains("--readonly job.fio"), "{error}");
    }

    /// A program that has started another one: both are gone at once when somebody stops it.
    #[tokio::test]
    async fn a_stop_ends_the_whole_group() {
        let work = tempfile::tempdir().unwrap();
        let (stop, stopped) = watch::channel(false);
        let script = "sleep 1000 &\necho $! >child.new\nmv child.new child\nwait";
        let mut runner = runner(work.path(), stopped, script);
        let child = work.path().join("run1/child");
        let running = tokio::spawn(async move { runner.run(&job()).await });
        while !child.exists() {
            tokio::task::yield_now().await;
        }
        let pid: u32 = std::fs::read_to_string(child)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        stop.send(true).unwrap();
        let ended = running.await.unwrap();
        assert!(matches!(ended, Err(BenchError::Stopped)));
        // Killed, it is at most still there to be waited for.
        let is_alive = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')')
                .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
        };
        while is_alive() {
            tokio::task::yield_now().await;
        }
    }
}
