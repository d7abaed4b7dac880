//! A server of our own for each test, and the oracles.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub use oracles::{Peer, PeerOptions, need};
use serde_json::Value;
use tempfile::TempDir;

/// The binary under test.
pub const MILLPOND: &str = env!("CARGO_BIN_EXE_millpond");

/// zdb; the script has it end sooner.
pub const ZDB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/zdb");

/// How long the kernel may take to end a server that was killed.
const KILLED: Duration = Duration::from_secs(5);

/// How long anything may take on a machine that others use too; what takes longer never ends.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whether the long versions of tests run.
pub fn is_long() -> bool {
    std::env::var_os("MILLPOND_LONG").is_some_and(|value| value == "1")
}

/// Whether filesystems can be mounted here.
pub fn can_mount() -> bool {
    need(
        "root with /dev/fuse",
        rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists(),
    )
}

pub fn finds(program: &str) -> bool {
    Command::new("sh")
        .args([
            "-c",
            &format!("PATH=$PATH:/sbin:/usr/sbin command -v {program}"),
        ])
        .output()
        .is_ok_and(|out| out.status.success())
}

/// Runs a program, checks that it worked, and gives its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .env(
            "PATH",
            format!(
                "{}:/usr/sbin:/sbin",
                std::env::var("PATH").unwrap_or_default()
            ),
        )
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = text_of(&output);
    assert!(
        output.status.success(),
        "{program} {arguments:?} failed ({}):\n{text}",
        output.status
    );
    text
}

/// Both outputs of a program, one after the other.
pub fn text_of(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A directory with a state directory, room for disks, and a server.
pub struct Server {
    pub directory: TempDir,
    child: Option<Child>,
    loops: Vec<String>,
    pub iscsi_port: u16,
    pub nfs_port: u16,
    /// Where iSCSI listens.
    pub iscsi_host: &'static str,
    /// Where NFS listens.
    pub nfs_host: &'static str,
    /// What the server is told of the console: nothing listens for it unless a test wants that.
    pub https: Option<&'static str>,
    /// Who the server says its host is (`ZFS_HOSTID`).
    pub hostid: Option<&'static str>,
    /// What else is in its environment.
    pub environment: Vec<(&'static str, String)>,
    /// A program that runs the server with the words that it is given, instead of the server.
    pub launcher: Option<PathBuf>,
}

impl Server {
    /// Prepares the directory; nothing runs yet.
    pub fn prepare() -> Self {
        // Not below /tmp where that is in memory: pools are big.
        let base =
            std::env::var_os("MILLPOND_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let directory =
            TempDir::with_prefix_in("millpond-", base).expect("a directory for the test");
        let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0"));
        let [port, nfs_port] = listeners.map(|listener| {
            let address = listener.and_then(|listener| listener.local_addr());
            address.expect("a free port").port()
        });
        Self {
            directory,
            child: None,
            loops: Vec::new(),
            iscsi_port: port,
            nfs_port,
            iscsi_host: "127.0.0.1",
            nfs_host: "127.0.0.1",
            https: Some("--https=off"),
            hostid: None,
            environment: Vec::new(),
            launcher: None,
        }
    }

    /// Gives the server an `/etc` of its own, which is the host's at each start, and loses what is
    /// changed in it: for who makes users of the host. What it mounts is seen by it alone.
    pub fn keep_etc(&mut self) {
        let (etc, launcher) = (self.text("etc"), self.path("launcher"));
        std::fs::create_dir_all(&etc).expect("a directory");
        let script = format!(
            "#!/bin/sh\nexec unshare --mount --propagation private sh -euc '\n\
             mount -t tmpfs none {etc}; cp -a /etc/. {etc}; mount --bind {etc} /etc\n\
             exec \"$0\" \"$@\"' {MILLPOND} \"$@\"\n"
        );
        std::fs::write(&launcher, script).expect("a script");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&launcher, mode).expect("a mode");
        self.launcher = Some(launcher);
    }

    /// Prepares a directory and starts `millpond daemon`.
    pub fn start() -> Self {
        let mut server = Self::prepare();
        server.launch(&["daemon"]);
        server
    }

    /// Starts the server with these words and waits until it answers.
    pub fn launch(&mut self, words: &[&str]) {
        assert!(self.child.is_none(), "it runs already");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("server.log"))
            .expect("a log");
        let program = self.launcher.as_deref().unwrap_or(Path::new(MILLPOND));
        let child = Command::new(program)
            .args(words)
            .arg(format!("--iscsi={}:{}", self.iscsi_host, self.iscsi_port))
            .arg(format!("--nfs={}:{}", self.nfs_host, self.nfs_port))
            .args(self.https)
            .env("MILLPOND_STATE", self.state())
            .envs(self.hostid.map(|hostid| ("ZFS_HOSTID", hostid)))
            .envs(self.environment.clone())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the server starts");
        self.child = Some(child);
        self.wait_until("the server answers", || {
            Command::new(MILLPOND)
                .arg("info")
                .env("MILLPOND_STATE", self.state())
                .output()
                .is_ok_and(|output| {
                    String::from_utf8_lossy(&output.stdout).contains("runs as process")
                })
        });
    }

    /// Waits for something for [`PATIENCE`], or fails showing the server's log.
    pub fn wait_until(&self, what: &str, mut test: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !test() {
            assert!(
                begin.elapsed() < PATIENCE,
                "{what}: not within {PATIENCE:?}; the server's log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the server printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("server.log")).unwrap_or_default()
    }

    /// Begins a command, and does not wait for its end.
    pub fn begin(&self, words: &[&str]) -> Child {
        Command::new(MILLPOND)
            .args(words)
            .env("MILLPOND_STATE", self.state())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts")
    }

    /// Kills the server at once, as `kill -9` does, and takes its dead mounts away.
    pub fn kill(&mut self) {
        self.kill_only();
        self.clear_mounts();
    }

    /// Kills the server at once, as `kill -9` does; its mounts stay, dead.
    pub fn kill_only(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let _ = child.kill();
        let begin = Instant::now();
        while begin.elapsed() < KILLED {
            if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // A thread of it tells the kernel of a name that has changed, and waits in there for the
        // directory's lock, which somebody has who waits for an answer: neither can be killed, nor
        // is the connection ended, before somebody does it by force.
        eprintln!("the kernel keeps a server that was killed; its mounts are ended by force");
        self.unmount_all("-fl");
        let _ = child.wait();
    }

    /// Begins to kill the server, and does not wait until it is gone.
    pub fn begin_to_kill(&mut self) -> Child {
        let mut child = self.child.take().expect("a server");
        child.kill().expect("killed");
        child
    }

    /// Stops the server as Ctrl-C does and waits for its end.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT)
                .expect("the server is there");
            let begin = Instant::now();
            loop {
                if let Some(status) = child.try_wait().expect("the server's end") {
                    assert!(
                        status.success(),
                        "the server ended with {status}:\n{}",
                        self.log()
                    );
                    break;
                }
                assert!(
                    begin.elapsed() < PATIENCE,
                    "the server does not stop:\n{}",
                    self.log()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Takes away what a dead server has mounted.
    pub fn clear_mounts(&self) {
        self.unmount_all("-l");
    }

    fn unmount_all(&self, how: &str) {
        let below = self.directory.path().to_string_lossy().into_owned();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for point in mounts
            .lines()
            .rev()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|point| point.starts_with(&below))
        {
            let _ = Command::new("umount").args([how, point]).output();
        }
    }

    /// A path in the test's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The same as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Makes sparse files to build a pool of, in a directory of their own; answers their paths.
    pub fn disks(&self, count: usize, bytes: u64) -> Vec<String> {
        let directory = self.path("disks");
        std::fs::create_dir_all(&directory).expect("a directory");
        (0..count)
            .map(|index| {
                let path = directory.join(format!("d{index}"));
                File::create(&path)
                    .and_then(|file| file.set_len(bytes))
                    .expect("a sparse file");
                path.to_string_lossy().into_owned()
            })
            .collect()
    }

    /// Makes block devices of files, so that their vdevs are of type `disk`: the real OpenZFS takes
    /// a vdev of type `file` only where it finds a file again.
    pub fn attach(&mut self, disks: &[String]) -> Vec<String> {
        let devices: Vec<String> = disks
            .iter()
            .map(|disk| run("losetup", &["-f", "--show", disk]).trim().to_owned())
            .collect();
        self.loops.extend(devices.iter().cloned());
        devices
    }

    /// The same; answers the options with which `zpool import` looks for pools there.
    pub fn attach_to_import(&mut self, disks: &[String]) -> String {
        let options = self.attach(disks).into_iter();
        options.map(|device| format!("-d {device} ")).collect()
    }

    /// Takes the block devices away again, so that somebody else may write to their files.
    pub fn detach(&mut self) {
        for device in self.loops.drain(..) {
            let _ = Command::new("losetup").args(["-d", &device]).output();
        }
    }

    /// Runs `millpond` with these words.
    pub fn command(&self, words: &[&str]) -> Output {
        Command::new(MILLPOND)
            .args(words)
            .env("MILLPOND_STATE", self.state())
            .env_remove("ZPOOL_SCRIPTS_AS_ROOT")
            .stdin(Stdio::null())
            .output()
            .expect("millpond runs")
    }

    /// One request of the API, answered at once where it becomes a job.
    pub fn ask(&self, path: &str, body: &Value) -> Value {
        let socket = self.state().join("millpond.sock");
        let mut stream = UnixStream::connect(socket).expect("the API");
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nprefer: respond-async\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).expect("JSON")
    }

    /// Waits until no job runs.
    pub fn wait_until_idle(&self) {
        self.wait_until("no job runs", || {
            let told = self.ask("/v1/jobs/list", &serde_json::json!({}));
            let mut jobs = told["jobs"].as_array().expect("a list").iter();
            jobs.all(|job| job["state"] != "running")
        });
    }

    /// Runs `millpond` with words given as one text, demands that it works, and gives its output.
    pub fn ok(&self, words: &str) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        let output = self.command(&words);
        assert!(
            output.status.success(),
            "millpond {words:?} failed:\n{}\nthe server's log:\n{}",
            text_of(&output),
            self.log()
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs `millpond` with words given as one text, demands that it fails, and gives what it says.
    pub fn fails(&self, words: &str) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        let output = self.command(&words);
        assert!(
            !output.status.success(),
            "millpond {words:?} should have failed:\n{}",
            text_of(&output)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
        self.kill();
        self.detach();
    }
}

/// Demands that zdb finds every checksum right and no block leaked or lost in an exported pool
/// whose devices are in `directory`.
pub fn zdb_finds_no_leaks(directory: &Path, pool: &str) {
    if !need("zdb", finds("zdb")) {
        return;
    }
    let text = run(
        ZDB,
        &["-e", "-p", &directory.to_string_lossy(), "-bcc", pool],
    );
    assert!(
        text.contains("No leaks (block sum matches space maps exactly)"),
        "zdb has something to say:\n{text}"
    );
    for bad in ["ERROR", "leaked space", "error:"] {
        assert!(!text.contains(bad), "zdb has something to say:\n{text}");
    }
}

/// The same, and that objects of the MOS and counts of features are those that datasets need.
pub fn zdb_is_clean(directory: &Path, pool: &str) {
    zdb_finds_no_leaks(directory, pool);
    if !finds("zdb") {
        return;
    }
    let text = run(ZDB, &["-e", "-p", &directory.to_string_lossy(), "-d", pool]);
    for bad in ["ERROR", "leaked", "not match", "mismatch"] {
        assert!(!text.contains(bad), "zdb has something to say:\n{text}");
    }
}
