//! Runs groups of tests: setup, tests, cleanup, each with a limit of time, and between them
//! everything that a test left is taken away.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::list::{Selected, Test};
use super::runfiles::Group;
use super::sandbox::{Sandbox, Spares, USER};

/// How many seconds a script may take on a machine that others use too; what takes longer hangs.
/// The variable says otherwise.
const LIMIT_S: u64 = 300;
const LIMIT_VARIABLE: &str = "MILLPOND_ZTS_LIMIT";

/// How long a command of ours may take while the sandbox is cleaned.
const LIMIT_CLEAN: Duration = Duration::from_secs(60);

/// How much of a log is shown of a test that failed.
const SHOWN_BYTES: usize = 16 << 10;

/// Tests that would change the machine that they run on.
const NEVER: [&str; 2] = [
    // Writes to /dev/zfs.
    "devices/devices_003_pos",
    // Moves /dev/zfs away.
    "cli_root/zfs/zfs_003_neg",
];

/// Groups of which tests start zed for what the server does itself: it has spares stand in.
const WITH_ZED: [&str; 4] = [
    "fault",
    "cli_root/zpool_add",
    "cli_root/zpool_expand",
    "cli_root/zpool_resilver",
];

/// How a script ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Pass,
    Fail,
    /// It says that something is missing here.
    Unsupported,
    /// It took longer than it may.
    Late,
    /// Its group's setup failed.
    NoSetup,
    /// It must not run here.
    Never,
}

impl Outcome {
    /// The word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Unsupported => "unsupported",
            Self::Late => "does not end",
            Self::NoSetup => "its setup fails",
            Self::Never => "left out",
        }
    }

    /// By the exit status (`STF_*`, include/default.cfg).
    fn of(code: Option<i32>) -> Self {
        match code {
            Some(0) => Self::Pass,
            Some(4 | 5) => Self::Unsupported,
            _ => Self::Fail,
        }
    }
}

/// The sandbox with the environment of tests.
pub struct Session<'a> {
    sandbox: &'a Sandbox,
    environment: BTreeMap<String, String>,
    /// What was mounted at the beginning.
    mounts: Vec<PathBuf>,
    /// How long a script may take.
    limit: Duration,
    /// How the server was started.
    spares: Cell<Spares>,
    /// Logs of scripts under which the server panicked.
    panics: RefCell<Vec<PathBuf>>,
}

impl<'a> Session<'a> {
    /// Reads the environment that the suite gives its tests (`default.cfg`).
    pub fn new(sandbox: &'a Sandbox) -> anyhow::Result<Self> {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let own = [
            ("HOME", "/root".to_owned()),
            ("PATH", text(sandbox.path())),
            ("STF_PATH", text(sandbox.path())),
            ("STF_SUITE", text(sandbox.suite.clone())),
            (
                "STF_TOOLS",
                text(sandbox.suite.with_file_name("test-runner")),
            ),
            ("DISKS", sandbox.disks.join(" ")),
            // Other disks may have pools of the same names.
            ("ZPOOL_IMPORT_PATH", import_path(&sandbox.disks)),
            ("FILEDIR", text(sandbox.files())),
            ("TMPDIR", text(sandbox.files())),
            // A pool of this name is the machine's own.
            ("KEEP", "rpool".to_owned()),
            ("__ZFS_POOL_EXCLUDE", String::new()),
            ("TESTFAIL_CALLBACKS", String::new()),
            ("MILLPOND_STATE", text(sandbox.state())),
            ("LC_ALL", "C".to_owned()),
            ("LANG", "C".to_owned()),
            ("UNAME", "Linux".to_owned()),
            ("ZDB", "zdb".to_owned()),
            ("ZFS", "zfs".to_owned()),
            ("ZPOOL", "zpool".to_owned()),
        ];
        let output = Command::new("/usr/bin/ksh")
            .args(["-c", "set -a; . $STF_SUITE/include/default.cfg; env -0"])
            .env_clear()
            .envs(own)
            .current_dir("/")
            .output()
            .context("ksh")?;
        let text_of_all = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut environment: BTreeMap<String, String> = text_of_all
            .split('\0')
            .filter_map(|pair| pair.split_once('='))
            .filter(|(name, _)| {
                name.chars()
                    .all(|char| char.is_ascii_alphanumeric() || char == '_')
            })
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        anyhow::ensure!(
            environment.contains_key("TESTPOOL"),
            "default.cfg cannot be read"
        );
        // What a loop of its leaves, which a test counts on to be unset.
        environment.remove("i");
        // Volumes are files of the state directory.
        let volumes = text(sandbox.state().join("zvol"));
        environment.insert("ZVOL_DEVDIR".into(), volumes.clone());
        environment.insert("ZVOL_RDEVDIR".into(), volumes);
        let limit_s = match std::env::var(LIMIT_VARIABLE) {
            Ok(text) => text.parse().context(LIMIT_VARIABLE)?,
            Err(_) => LIMIT_S,
        };
        Ok(Self {
            sandbox,
            environment,
            mounts: mounts(),
            limit: Duration::from_secs(limit_s),
            spares: Cell::new(Spares::Manual),
            panics: RefCell::default(),
        })
    }

    /// Runs the selected tests of a group, and tells of each how it ended and after how many
    /// seconds.
    pub fn group(
        &self,
        selected: &Selected,
        group: &Group,
        mut tell: impl FnMut(&Test, Outcome, u64),
    ) {
        let directory = self
            .sandbox
            .suite
            .join("tests/functional")
            .join(&selected.name);
        let script = |name: &str| {
            let with_ending = directory.join(format!("{name}.ksh"));
            if with_ending.is_file() {
                with_ending
            } else {
                directory.join(name)
            }
        };
        let around = |name: &Option<String>, log: &str| match name {
            Some(name) if script(name).is_file() => {
                self.script(&script(name), false, &self.log_path(&selected.name, log))
            }
            _ => Outcome::Pass,
        };
        let spares = match WITH_ZED.contains(&&*selected.name) {
            true => Spares::Auto,
            false => Spares::Manual,
        };
        if self.spares.replace(spares) != spares {
            self.end();
        }
        self.prepare();
        let mut is_ready = false;
        for (index, test) in selected.tests.iter().enumerate() {
            let begin = Instant::now();
            if NEVER.contains(&&*format!("{}/{}", selected.name, test.name)) {
                tell(test, Outcome::Never, 0);
                continue;
            }
            // What a test that failed left behind is not the next one's.
            is_ready &= !group.anew.contains(&test.name);
            if !is_ready {
                if index > 0 {
                    around(&group.cleanup, "cleanup");
                    self.prepare();
                }
                is_ready = match around(&group.setup, "setup") {
                    Outcome::Pass => true,
                    Outcome::Unsupported => {
                        tell(test, Outcome::Unsupported, begin.elapsed().as_secs());
                        continue;
                    }
                    _ => false,
                };
            }
            let outcome = match is_ready {
                true => self.script(
                    &script(&test.name),
                    group.as_user,
                    &self.log_path(&selected.name, &test.name),
                ),
                false => Outcome::NoSetup,
            };
            is_ready = outcome == Outcome::Pass;
            tell(test, outcome, begin.elapsed().as_secs());
        }
        around(&group.cleanup, "cleanup");
        self.clean();
    }

    /// Ends the server.
    pub fn end(&self) {
        self.clean();
        self.end_server();
    }

    /// The logs of scripts under which the server panicked since somebody asked for them.
    pub fn panics(&self) -> Vec<PathBuf> {
        self.panics.take()
    }

    /// The end of what a test printed, and of what its setup did if that failed.
    pub fn log_of(&self, selected: &Selected, test: &Test) -> String {
        let mut out = String::new();
        for name in ["setup", &test.name] {
            let path = self.log_path(&selected.name, name);
            let text = fs::read(&path).unwrap_or_default();
            if name == "setup" && text.windows(5).all(|word| word != b"ERROR") {
                continue;
            }
            let begin = text.len().saturating_sub(SHOWN_BYTES);
            let shown = String::from_utf8_lossy(&text[begin..]);
            out.push_str(&format!("--- {}\n{shown}\n", path.display()));
        }
        out
    }

    fn log_path(&self, group: &str, name: &str) -> PathBuf {
        self.sandbox.logs.join(group).join(format!("{name}.log"))
    }

    /// A clean sandbox with a server that runs.
    fn prepare(&self) {
        self.clean();
        self.command("zpool", &["list"]);
    }

    /// Runs a script of the suite; what it prints, and what the server logs meanwhile, goes to
    /// `log`.
    fn script(&self, script: &Path, as_user: bool, log: &Path) -> Outcome {
        let server_log = self.sandbox.state().join("daemon.log");
        let logged = fs::metadata(&server_log).map_or(0, |file| file.len());
        let mut words: Vec<String> = Vec::new();
        if as_user {
            let path = format!("PATH={}", self.sandbox.path().display());
            words.extend(
                ["/usr/bin/sudo", "-E", "-u", USER, "/usr/bin/env", &path].map(str::to_owned),
            );
        }
        if script
            .extension()
            .is_some_and(|extension| extension == "ksh")
        {
            words.push("/usr/bin/ksh".to_owned());
        }
        words.push(script.to_string_lossy().into_owned());
        let mut command = self.in_environment(&words[0]);
        command.args(&words[1..]);
        command.current_dir(script.parent().unwrap_or(Path::new("/")));
        let (code, mut text) = run(command, self.limit);
        let said = tail(&server_log, logged);
        if has_panicked(&said) {
            println!("== zts: the server panicked: {}", log.display());
            self.panics.borrow_mut().push(log.to_owned());
        }
        text.extend(said);
        let directory = log.parent().unwrap_or(Path::new("/"));
        let written = fs::create_dir_all(directory).and_then(|()| fs::write(log, text));
        if let Err(error) = written {
            println!("{}: {error}", log.display());
        }
        code.map_or(Outcome::Late, Outcome::of)
    }

    fn in_environment(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(&self.environment);
        if self.spares.get() == Spares::Auto {
            command.env("MILLPOND_ZED", "1");
        }
        command
    }

    /// Runs one of our commands; what it prints if it succeeds.
    fn command(&self, name: &str, words: &[&str]) -> Option<String> {
        let mut command = self.in_environment(&self.sandbox.path().join(name).to_string_lossy());
        command.args(words);
        match run(command, LIMIT_CLEAN) {
            (Some(Some(0)), text) => Some(String::from_utf8_lossy(&text).into_owned()),
            _ => None,
        }
    }

    /// Takes away what tests left: processes, pools, mounts, loop devices, files. A server that
    /// does not let go of a pool is killed.
    fn clean(&self) {
        for (process, is_server) in self.processes() {
            if !is_server {
                kill(process);
            }
        }
        for tunable in ["zfs_scan_suspend_progress", "zfs_removal_suspend_progress"] {
            self.command("zinject", &["--tune", &format!("{tunable}=0")]);
        }
        if !self.destroy_pools() {
            println!("== zts: the server is killed, as it kept a pool");
            self.end_server();
        }
        // Volumes are files of a mount of the server's, which lives on.
        let state = self.sandbox.state();
        let is_left = |mount: &&PathBuf| !self.mounts.contains(mount) && !mount.starts_with(&state);
        for mount in mounts().iter().rev().filter(is_left) {
            quietly(Command::new("umount").arg("-l").arg(mount));
        }
        for device in self.stray_loop_devices() {
            quietly(Command::new("losetup").arg("-d").arg(device));
        }
        for disk in &self.sandbox.disks {
            let device = format!("/dev/{disk}");
            quietly(Command::new("blkdiscard").args(["-f", &device]));
            quietly(Command::new("partx").args(["-d", &device]));
        }
        let files = fs::read_dir(self.sandbox.files())
            .into_iter()
            .flatten()
            .flatten();
        let at_root = fs::read_dir("/").into_iter().flatten().flatten();
        let at_root = at_root.filter(|entry| {
            let name = entry.file_name();
            ["testpool", "testdir"]
                .iter()
                .any(|begin| name.to_string_lossy().starts_with(begin))
        });
        for entry in files.chain(at_root) {
            let path = entry.path();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed = if is_directory {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            if let Err(error) = removed {
                println!("== zts: {} stays: {error}", path.display());
            }
        }
    }

    /// Whether no pool is left.
    fn destroy_pools(&self) -> bool {
        let list = || {
            let text = self.command("zpool", &["list", "-H", "-o", "name"])?;
            let names = text
                .lines()
                .filter(|line| !line.contains(' '))
                .map(str::to_owned);
            Some(names.collect::<Vec<_>>())
        };
        for pool in list().unwrap_or_default() {
            if self.command("zpool", &["destroy", "-f", &pool]).is_none() {
                self.command("zpool", &["export", "-f", &pool]);
            }
        }
        list().is_some_and(|left| left.is_empty())
    }

    /// Kills the server, with a state directory as new.
    fn end_server(&self) {
        for (process, _) in self.processes() {
            kill(process);
        }
        let state = self.sandbox.state();
        for mount in mounts()
            .iter()
            .rev()
            .filter(|mount| mount.starts_with(&state))
        {
            quietly(Command::new("umount").arg("-l").arg(mount));
        }
        let _ = fs::remove_dir_all(&state);
        let _ = fs::create_dir(&state);
        if let Err(error) = self.sandbox.set_options(self.spares.get()) {
            println!("== zts: the next server injects no faults: {error}");
        }
    }

    /// The sandbox's processes besides this one and the first, and which of them is the server.
    fn processes(&self) -> Vec<(u32, bool)> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|process| *process != 1 && *process != std::process::id())
            .map(|process: u32| {
                let program = fs::read_link(format!("/proc/{process}/exe"));
                let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
                let is_daemon = words.split(|byte| *byte == 0).nth(1) == Some(b"daemon");
                let is_ours = program.is_ok_and(|program| {
                    Some(program) == fs::canonicalize(&self.sandbox.binary).ok()
                });
                (process, is_ours && is_daemon)
            })
            .collect()
    }

    /// Loop devices that tests made of files in here.
    fn stray_loop_devices(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        entries
            .filter(|entry| {
                !self
                    .sandbox
                    .disks
                    .iter()
                    .any(|disk| entry.file_name() == **disk)
            })
            .filter(|entry| {
                let file = fs::read_to_string(entry.path().join("loop/backing_file"));
                file.is_ok_and(|file| Path::new(&file).starts_with(&self.sandbox.work))
            })
            .map(|entry| Path::new("/dev").join(entry.file_name()))
            .collect()
    }
}

/// Mount points, as mounted.
fn mounts() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(1));
    points
        .map(|point| PathBuf::from(point.replace("\\040", " ")))
        .collect()
}

/// What a file has behind an offset, with a heading.
fn tail(path: &Path, offset: u64) -> Vec<u8> {
    let mut text = Vec::new();
    if let Ok(mut file) = fs::File::open(path)
        && file.seek(SeekFrom::Start(offset)).is_ok()
        && file.read_to_end(&mut text).is_ok()
        && !text.is_empty()
    {
        return [b"\n--- the server's log\n", &*text].concat();
    }
    Vec::new()
}

/// Whether a server that logged this panicked.
fn has_panicked(log: &[u8]) -> bool {
    const WORDS: &[u8] = b"panicked at";
    log.windows(WORDS.len()).any(|words| words == WORDS)
}

fn quietly(command: &mut Command) {
    let _ = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

fn kill(process: u32) {
    quietly(Command::new("kill").args(["-KILL", &process.to_string()]));
}

/// Runs a command: its exit status (`None` within `Some` for one that a signal ended), or `None` if
/// it took longer than `limit` and was killed, and what it printed. That goes through a pipe, as
/// tests limit how big files may become.
fn run(mut command: Command, limit: Duration) -> (Option<Option<i32>>, Vec<u8>) {
    let began = std::io::pipe().and_then(|(reader, writer)| {
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        Ok((reader, command.process_group(0).spawn()?))
    });
    // The command has the writers of the pipe.
    let words = format!("{command:?}");
    drop(command);
    let (mut reader, mut child) = match began {
        Ok(began) => began,
        Err(error) => return (Some(None), format!("{words}: {error}\n").into_bytes()),
    };
    let (sender, chunks) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    let begin = Instant::now();
    let code = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status.code()),
            Ok(None) if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(10)),
            _ => {
                quietly(Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]));
                let _ = child.wait();
                break None;
            }
        }
    };
    // What it left running may keep the pipe open.
    let mut text = Vec::new();
    while let Ok(chunk) = chunks.recv_timeout(Duration::from_millis(500)) {
        text.extend(chunk);
    }
    (code, text)
}

/// Where pools are looked for without `-d`: on the disks and their partitions.
fn import_path(disks: &[String]) -> String {
    let parts = |disk: &String| {
        let disk = format!("/dev/{disk}");
        let parts: Vec<String> = (1..10).map(|part| format!("{disk}p{part}")).collect();
        std::iter::once(disk).chain(parts)
    };
    disks.iter().flat_map(parts).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_end_or_are_ended() {
        let shell = |script: &str, limit| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let (code, text) = run(command, limit);
            (code, String::from_utf8(text).unwrap())
        };
        let long = Duration::from_secs(100);
        assert_eq!(
            shell("echo out; echo err >&2; exit 4", long),
            (Some(Some(4)), "out\nerr\n".into())
        );
        assert_eq!(shell("kill -9 $$", long), (Some(None), String::new()));
        // One that is left running keeps nobody waiting.
        assert_eq!(
            shell("sleep 100 & echo x", long),
            (Some(Some(0)), "x\n".into())
        );
        let (code, text) = shell("echo begun; sleep 100 & sleep 100", Duration::from_secs(1));
        assert_eq!((code, &*text), (None, "begun\n"));
        assert_eq!(Outcome::of(Some(4)), Outcome::Unsupported);
        assert_eq!(Outcome::of(None), Outcome::Fail);
        assert!(has_panicked(b"thread 'main' panicked at src/x.rs:1:2:\n"));
        assert!(!has_panicked(b"") && !has_panicked(b"the pool is imported\n"));
    }
}
