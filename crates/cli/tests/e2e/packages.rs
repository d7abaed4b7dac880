//! The Debian package, made of the binary under test: installed into a fresh Debian, run as a
//! service manager and as a container's engine would, upgraded, removed, purged.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{MILLPOND, can_mount, finds, need, text_of};

/// The root of the workspace.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the service manager waits for between two signs of life, in microseconds.
const WATCHDOG_US: &str = "1500000";

const PATHS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program in another Debian, with nothing of this environment but what the profile of the tests
/// needs.
fn clean(mut command: Command) -> Command {
    command.env_clear().env("PATH", PATHS).env("LC_ALL", "C");
    if let Some(stack) = std::env::var_os("RUST_MIN_STACK") {
        command.env("RUST_MIN_STACK", stack);
    }
    command.stdin(Stdio::null());
    command
}

/// Has the machine's devices, processes and so on in the root that `$1` names, then runs the rest.
/// What others have mounted is left to them: held here, it could not be unmounted there. With one
/// goes what is mounted below it.
const WITH_MACHINE: &str = "awk '$3 ~ /^fuse/ { print $2 }' /proc/self/mounts | \
     while read -r at; do umount -l \"$at\" 2>/dev/null || true; done; \
     mount --rbind /dev \"$1/dev\" && mount -t proc proc \"$1/proc\" && \
     mount --rbind /sys \"$1/sys\" && shift && exec \"$@\"";

/// Another Debian, with mounts of its own, which go with it.
struct Root {
    path: PathBuf,
    /// Keeps its mounts.
    holder: Child,
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Root {
    fn open(path: &Path) -> Self {
        let holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", WITH_MACHINE, "sh"])
            .arg(path)
            .args(["sleep", "infinity"])
            .spawn()
            .expect("unshare runs");
        let root = Self {
            path: path.to_owned(),
            holder,
        };
        wait_until("the root is ready", || {
            root.command("test -e /proc/self && test -e /dev/null && test -d /sys/kernel")
                .status()
                .expect("nsenter runs")
                .success()
        });
        root
    }

    /// A line of shell inside.
    fn command(&self, line: &str) -> Command {
        inside(self.holder.id(), &["--mount"], &self.path, line)
    }

    fn try_run(&self, line: &str) -> Output {
        self.command(line).output().expect("nsenter runs")
    }

    fn run(&self, line: &str) -> String {
        let output = self.try_run(line);
        let text = text_of(&output);
        assert!(output.status.success(), "'{line}' failed:\n{text}");
        text
    }

    /// Starts the server as a service manager does: with this socket, telling what it does there.
    fn serve(&self, socket: &UnixListener) -> Child {
        // Whose identity `LISTEN_PID` is becomes the server.
        let line = format!(
            "exec 3<&0 </dev/null; . /etc/default/millpond; export LISTEN_FDS=1 LISTEN_PID=$$ \
             NOTIFY_SOCKET=/run/notify WATCHDOG_USEC={WATCHDOG_US} WATCHDOG_PID=$$; \
             exec /usr/bin/millpond daemon $MILLPOND_OPTIONS"
        );
        let socket = socket.try_clone().expect("the socket once more");
        self.command(&line)
            .stdin(OwnedFd::from(socket))
            .spawn()
            .expect("the server starts")
    }
}

/// A line of shell in a root and in namespaces of a process.
fn inside(process: u32, namespaces: &[&str], root: &Path, line: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--target={process}")).args(namespaces);
    command.arg("chroot").arg(root).args(["sh", "-c", line]);
    clean(command)
}

fn wait_until(what: &str, mut test: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !test() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits for the end of a server that was told to stop, which must be a good one.
fn ended(mut server: Child) {
    wait_until("the server has stopped", || {
        server.try_wait().expect("its state").is_some()
    });
    assert!(server.wait().expect("its end").success());
}

fn terminate(process: u32) {
    let process = Pid::from_raw(process.cast_signed()).expect("a process");
    kill_process(process, Signal::TERM).expect("a signal");
}

/// Waits until the service manager is told this.
fn told(manager: &UnixDatagram, what: &str) {
    let begin = Instant::now();
    let mut heard = String::new();
    while !heard.lines().any(|line| line == what) {
        assert!(begin.elapsed() < PATIENCE, "not '{what}' but:\n{heard}");
        let mut message = [0; 4096];
        if let Ok(length) = manager.recv(&mut message) {
            heard.push_str(&String::from_utf8_lossy(&message[..length]));
        }
    }
}

/// Makes the package of the binary under test.
fn package(version: &str, directory: &Path) -> PathBuf {
    let output = Command::new(format!("{SOURCES}/packaging/deb"))
        .args([MILLPOND.as_ref(), directory.as_os_str()])
        .env("MILLPOND_DEB_VERSION", version)
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .output()
        .expect("packaging/deb runs");
    assert!(output.status.success(), "{}", text_of(&output));
    let path = String::from_utf8_lossy(&output.stdout);
    PathBuf::from(path.lines().last().expect("a path"))
}

fn tell(program: &str, words: &[&std::ffi::OsStr]) -> String {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", text_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// By which debuggers find the symbols of a program.
fn build_id(program: &Path) -> String {
    let notes = tell("readelf", &["-n".as_ref(), program.as_ref()]);
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.unwrap_or_else(|| panic!("no build ID: {notes}"))
        .to_owned()
}

/// The files of the package of symbols that was made with a package.
fn symbols(package: &Path) -> String {
    let name = package.file_name().expect("a name").to_string_lossy();
    let symbols = package.with_file_name(name.replacen("millpond_", "millpond-dbgsym_", 1));
    tell("dpkg-deb", &["--contents".as_ref(), symbols.as_ref()])
}

/// The words of an instruction of the container's recipe: a list of strings, or else a line.
fn recipe(instruction: &str) -> Vec<String> {
    let path = format!("{SOURCES}/packaging/container/Containerfile");
    let text = std::fs::read_to_string(path).expect("the recipe");
    let line = text.lines().find_map(|line| line.strip_prefix(instruction));
    let line = line.unwrap_or_else(|| panic!("no {instruction} in the recipe"));
    match line.split_once("CMD ") {
        Some((_, command)) => vec![command.to_owned()],
        None => serde_json::from_str(line).expect("a list"),
    }
}

/// The completions that bash has for a line.
fn completions(root: &Root, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let (program, last) = (words[0], words[words.len() - 1]);
    let script = format!(
        "source /usr/share/bash-completion/completions/{program}; COMP_WORDS=({line}); \
         [ -n '{last}' ] || COMP_WORDS+=(''); COMP_CWORD={}; \
         _clap_complete_{program} {program} '{last}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.len() - 1
    );
    root.run(&format!("bash -c '{}'", script.replace('\'', "'\\''")))
}

/// Goal: what is made for Debian installs, serves under a service manager and in a container, is
/// upgraded and goes away again, and no pool is lost with it.
/// Method: `packaging/container/rootfs` installs it with what it depends on into a fresh Debian;
/// the test is the service manager (socket, notifications, watchdog) and the container's engine.
#[test]
fn a_package_is_installed_served_upgraded_and_purged() {
    if !can_mount()
        || !need("mmdebstrap", finds("mmdebstrap"))
        || !need("dpkg-shlibdeps", finds("dpkg-shlibdeps"))
    {
        return;
    }
    let directory = tempfile::TempDir::with_prefix("millpond-").expect("a directory");
    let first = package("0.1.0~test1", directory.path());
    let path = directory.path().join("root");
    let made = Command::new(format!("{SOURCES}/packaging/container/rootfs"))
        .args([&first, &path])
        .stdin(Stdio::null())
        .output()
        .expect("packaging/container/rootfs runs");
    assert!(made.status.success(), "{}", text_of(&made));
    let root = Root::open(&path);

    // It is whole, what it depends on is there, and it is found by the names of OpenZFS.
    assert!(
        root.run("dpkg --status millpond")
            .contains("install ok installed")
    );
    assert_eq!(root.run("dpkg --verify millpond; dpkg --audit"), "");
    assert!(root.run("command -v fusermount3").contains("/fusermount3"));
    let id = build_id(&path.join("usr/bin/millpond"));
    let symbols = symbols(&first);
    let place = format!("./usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    assert!(symbols.contains(&place), "{place}: {symbols}");
    assert_eq!(
        root.run("readlink -f /usr/sbin/zpool /usr/sbin/zfs /usr/sbin/zstream"),
        "/usr/bin/millpond\n".repeat(3)
    );
    assert!(root.run("millpond --version").starts_with("millpond 0.1.0"));
    for file in [
        "/lib/systemd/system/millpond.service",
        "/lib/systemd/system/millpond.socket",
        "/usr/share/zsh/vendor-completions/_zfs",
        "/usr/share/fish/vendor_completions.d/zpool.fish",
        "/usr/share/doc/millpond/copyright",
        "/usr/share/doc/millpond/install.md.gz",
    ] {
        root.run(&format!("test -s {file}"));
    }
    let page = root.run("zcat /usr/share/man/man8/millpond-zpool-create.8.gz");
    assert!(page.contains(".SH OPTIONS"), "{page}");
    root.run("zcat /usr/share/man/man8/zpool-create.8.gz /usr/share/man/man8/millpond.8.gz");
    root.run("zcat /usr/share/man/man7/zfsprops.7.gz /usr/share/man/man7/zpool-features.7.gz");
    let enabled = "/etc/systemd/system/multi-user.target.wants/millpond.service \
                   /etc/systemd/system/sockets.target.wants/millpond.socket";
    root.run(&format!("ls {enabled}"));
    assert_eq!(completions(&root, "zpool stat"), "status\n");

    // As a service. The socket stays the manager's: a command that comes while no server runs waits
    // for the next one.
    let manager = UnixDatagram::bind(path.join("run/notify")).expect("a socket");
    let limit = manager.set_read_timeout(Some(Duration::from_secs(1)));
    limit.expect("a limit");
    let state = path.join("var/lib/millpond");
    std::fs::create_dir_all(state.join("disks")).expect("a directory");
    let socket = UnixListener::bind(state.join("millpond.sock")).expect("a socket");
    let server = root.serve(&socket);
    told(&manager, "STATUS=importing pools");
    told(&manager, "READY=1");
    for _ in 0..3 {
        told(&manager, "WATCHDOG=1");
    }
    let info = root.run("millpond info");
    assert!(info.contains(&format!("process {}", server.id())), "{info}");
    root.run("truncate -s 256M /var/lib/millpond/disks/disk && mkdir /srv/tank");
    root.run("zpool create -m /srv/tank tank /var/lib/millpond/disks/disk");
    root.run("zfs create tank/home && echo words > /srv/tank/home/file");
    assert_eq!(completions(&root, "zfs list tank/h"), "tank/home\n");

    // A new version, over settings of somebody's own.
    root.run("echo '# mine' >> /etc/default/millpond");
    let second = package("0.1.0~test2", directory.path());
    std::fs::copy(&second, path.join("root/second.deb")).expect("a copy");
    root.run("dpkg --install /root/second.deb");
    assert!(
        root.run("dpkg --status millpond")
            .contains("Version: 0.1.0~test2")
    );
    assert!(root.run("cat /etc/default/millpond").ends_with("# mine\n"));
    terminate(server.id());
    told(&manager, "STOPPING=1");
    ended(server);
    assert!(state.join("millpond.sock").exists());
    let waiting = root
        .command("zpool list -H -o name,health")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a command");
    let server = root.serve(&socket);
    told(&manager, "READY=1");
    let answer = waiting.wait_with_output().expect("its answer");
    assert_eq!(text_of(&answer), "tank\tONLINE\n");
    assert_eq!(root.run("cat /srv/tank/home/file"), "words\n");
    terminate(server.id());
    ended(server);
    drop(socket);
    std::fs::remove_file(state.join("millpond.sock")).expect("the manager's own");

    in_a_container(&path);

    // Removing stops the server; purging keeps the pool.
    let socket = UnixListener::bind(state.join("millpond.sock")).expect("a socket");
    let server = root.serve(&socket);
    told(&manager, "READY=1");
    root.run("cat /srv/tank/home/file");
    root.run("dpkg --remove millpond");
    ended(server);
    drop(socket);
    assert!(!path.join("usr/bin/millpond").exists());
    assert!(state.join("pools.json").exists());
    assert!(path.join("etc/default/millpond").exists());
    let purged = root.run("dpkg --purge millpond");
    assert!(purged.contains("is kept, with the disks"), "{purged}");
    assert!(state.join("disks/disk").exists() && state.join("pools.json").exists());
    assert!(!path.join("etc/default/millpond").exists());
    assert!(!root.try_run(&format!("ls {enabled}")).status.success());
    // Without disks of pools there is nothing to keep. The pool itself is as good as ever.
    let disks = directory.path().join("disks");
    std::fs::create_dir(&disks).expect("a directory");
    std::fs::rename(state.join("disks/disk"), disks.join("disk")).expect("the disk");
    std::fs::remove_dir(state.join("disks")).expect("a directory");
    root.run("dpkg --install /root/second.deb && dpkg --purge millpond");
    assert!(!state.exists());
    crate::harness::zdb_is_clean(&disks, "tank");
}

/// Runs the root as the container that the recipe describes: the server is process 1, in a network
/// of its own.
fn in_a_container(path: &Path) {
    let mut words = recipe("ENTRYPOINT ");
    words.extend(recipe("CMD "));
    let health = recipe("HEALTHCHECK ").remove(0);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--net", "--fork", "--kill-child"])
        .args(["sh", "-c", WITH_MACHINE, "sh"])
        .arg(path)
        .arg("chroot")
        .arg(path)
        .args(words);
    let container = clean(command).spawn().expect("unshare runs");
    let children = format!("/proc/{0}/task/{0}/children", container.id());
    let mut first = None;
    wait_until("the container has a process", || {
        let children = std::fs::read_to_string(&children).unwrap_or_default();
        first = children
            .split_whitespace()
            .next()
            .and_then(|id| id.parse().ok());
        first.is_some()
    });
    let first = first.expect("a process");
    let run = |line: &str| {
        let namespaces = ["--mount", "--pid", "--net"];
        inside(first, &namespaces, path, line)
            .output()
            .expect("nsenter runs")
    };
    wait_until("the container is healthy", || run(&health).status.success());
    let info = text_of(&run("millpond info"));
    assert!(
        info.contains("runs as process 1\n") && info.contains("pools: tank"),
        "{info}"
    );
    assert_eq!(text_of(&run("cat /srv/tank/home/file")), "words\n");
    terminate(first);
    ended(container);
}
