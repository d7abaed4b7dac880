//! Samba's server as a child process: started with the first share, told of changes, started again
//! when it ends, stopped with the last share, and where it cannot be told of a change.
//!
//! It never outlives us. Its standard input is a pipe that only we hold the other end of, and smbd
//! in the foreground stops when that closes (`smbd_stdin_handler`, source3/smbd/server.c), so that
//! it does also when we are killed; each of its own children notices when it is gone. What is left
//! all the same (a stopped process, a helper for a minute) is ended by the next start, which finds
//! it in the files of process ids.

use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use device::private;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

use super::Smb;
use super::announce::{Announced, Announcer, has_avahi};
use super::conf::{self, DIRECTORIES, Share};
use super::tools::Tools;
use host::supervisor;

/// How long it may take to listen.
const STARTING: Duration = Duration::from_secs(15);
/// How long it may take to end, before it is killed.
const ENDING: Duration = Duration::from_secs(5);
/// How long clients of a share may take to be gone.
const LETTING_GO: Duration = Duration::from_secs(5);
/// How often what is awaited is looked at.
const LOOK: Duration = Duration::from_millis(25);
/// How long until it is started again after it has ended: this long at first, twice that the next
/// time, and so on.
const DELAY_FIRST: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(60);
/// One that has run for so long has started well.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// What is to be the case.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) shares: Vec<Share>,
    /// Shares that there were, whose clients are to be gone.
    pub(super) closing: Vec<String>,
    pub(super) stop: bool,
}

impl Wanted {
    /// Names of the shares that Macs back up to.
    fn backups(&self) -> Vec<String> {
        let for_macs = |share: &&Share| share.words.time_machine.is_some() && !share.words.hide;
        let backups = self.shares.iter().filter(for_macs);
        backups.map(|share| share.name.clone()).collect()
    }
}

/// A server that runs.
struct Running {
    child: Child,
    /// What it stops without. Not left to the child, which gives it up when it is waited for.
    stdin: Option<ChildStdin>,
    pid: Pid,
    tools: Tools,
    address: SocketAddr,
    since: Instant,
}

/// The task that looks after the server.
pub(super) struct Keeper<'a> {
    smb: &'a Smb,
    running: Option<Running>,
    delay: Duration,
    /// When to try again.
    again: Option<Instant>,
    announcer: Announcer,
}

impl<'a> Keeper<'a> {
    pub(super) fn new(smb: &'a Smb) -> Self {
        Self {
            smb,
            running: None,
            delay: DELAY_FIRST,
            again: None,
            announcer: Announcer::default(),
        }
    }

    /// Looks after it until it is to stop.
    pub(super) async fn keep(mut self) {
        let mut changed = self.smb.changed();
        loop {
            let generation = *changed.borrow_and_update();
            let wanted = self.smb.wanted();
            let is_last = wanted.stop;
            let backups = wanted.backups();
            self.do_as_wanted(wanted).await;
            self.announce(backups);
            self.smb.is_done(generation);
            if is_last {
                return;
            }
            loop {
                let again = self.again;
                tokio::select! {
                    // An error means that nobody is left to change anything, and none is.
                    _ = changed.changed() => break,
                    status = ended(&mut self.running) => self.it_ended(status),
                    () = until(again) => break,
                }
            }
        }
    }

    /// Makes known what is shared.
    fn announce(&mut self, backups: Vec<String>) {
        let name = conf::netbios_name(self.smb.host());
        let running = self.running.as_ref();
        self.announcer.announce(running.map(|running| Announced {
            name,
            address: running.address,
            backups,
        }));
    }

    async fn do_as_wanted(&mut self, wanted: Wanted) {
        if wanted.stop || wanted.shares.is_empty() {
            self.again = None;
            self.stop().await;
            self.smb.does_not_run(None);
            return;
        }
        let outcome = match &mut self.running {
            Some(running) => match running.child.try_wait() {
                Ok(Some(status)) => {
                    self.it_ended(Ok(status));
                    return;
                }
                _ => match self.tell(&wanted).await {
                    Ok(()) => Ok(()),
                    // It goes on sharing as before, what is to be withdrawn among it. Clients are
                    // better off with nothing until it has been started again.
                    Err(why) => {
                        self.stop().await;
                        Err(why)
                    }
                },
            },
            None => self.start(&wanted.shares).await,
        };
        match outcome {
            Ok(()) => {
                self.again = None;
                if let Some(running) = &self.running {
                    self.smb.runs_at(running.address);
                }
            }
            Err(why) => self.try_again_later(why),
        }
    }

    /// It has ended by itself, or by somebody's hand.
    fn it_ended(&mut self, status: io::Result<ExitStatus>) {
        let ran = self.running.take().map(|running| running.since.elapsed());
        if ran.is_some_and(|ran| ran >= GOOD_RUN) {
            self.delay = DELAY_FIRST;
        }
        let how = match status {
            Ok(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => format!("by signal {signal}"),
                (None, Some(code)) => format!("with status {code}"),
                (None, None) => "somehow".to_owned(),
            },
            Err(error) => format!("somehow ({error})"),
        };
        let log = self.smb.directory().join("log/smbd.log");
        self.try_again_later(format!(
            "Samba's server ended {how}, and is started again; see {}",
            log.display()
        ));
    }

    fn try_again_later(&mut self, why: String) {
        self.again = Some(Instant::now() + self.delay);
        self.delay = (self.delay * 2).min(DELAY_MAX);
        self.smb.does_not_run(Some(why));
    }

    /// Writes the configuration and starts the server.
    async fn start(&mut self, shares: &[Share]) -> Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            return Err(
                "SMB needs root, since Samba opens files as the user who logs in; run the server \
                 as root"
                    .into(),
            );
        }
        let directory = self.smb.directory();
        let tools = Tools::find(&directory.join("smb.conf")).await?;
        prepare(directory).map_err(|error| unwritable(directory, &error))?;
        end_left_over(directory).await;
        let address = self.smb.free_address().await?;
        let write = write_configuration(self.smb, address, shares);
        write.map_err(|error| unwritable(directory, &error))?;
        let mut command = Command::new(&tools.smbd);
        supervisor::keep_from(&mut command);
        let output = log_file(directory).map_err(|error| unwritable(directory, &error))?;
        let again = output
            .try_clone()
            .map_err(|error| unwritable(directory, &error))?;
        command
            .args(["--foreground", "--no-process-group", "--configfile"])
            .arg(directory.join("smb.conf"))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(again)
            // Signals for us at the terminal are not for it.
            .process_group(0);
        let started = command.spawn();
        let mut child =
            started.map_err(|error| format!("{} does not run: {error}", tools.smbd.display()))?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid.ok_or("Samba's server ended at once")?;
        self.running = Some(Running {
            stdin: child.stdin.take(),
            child,
            pid,
            tools,
            address,
            since: Instant::now(),
        });
        match self.listens(address).await {
            Ok(()) => Ok(()),
            Err(why) => {
                self.stop().await;
                Err(why)
            }
        }
    }

    /// Waits until it takes connections.
    async fn listens(&mut self, address: SocketAddr) -> Result<(), String> {
        let at = reachable(address);
        let deadline = Instant::now() + STARTING;
        let log = self.smb.directory().join("log/smbd.log");
        let log = log.display();
        let Some(running) = &mut self.running else {
            return Err("Samba's server is gone".into());
        };
        loop {
            if let Ok(Some(status)) = running.child.try_wait() {
                self.running = None;
                return Err(format!(
                    "Samba's server does not start ({status}); see {log}"
                ));
            }
            if timeout(LOOK, tokio::net::TcpStream::connect(at))
                .await
                .is_ok_and(|it| it.is_ok())
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "Samba's server does not listen at {at} after {} seconds; see {log}",
                    STARTING.as_secs()
                ));
            }
            sleep(LOOK).await;
        }
    }

    /// Tells the server that runs what has changed.
    ///
    /// # Errors
    /// Where it may not have been told all: it is to be stopped then.
    async fn tell(&mut self, wanted: &Wanted) -> Result<(), String> {
        let Some(running) = &self.running else {
            return Ok(());
        };
        let directory = self.smb.directory();
        let write = write_configuration(self.smb, running.address, &wanted.shares);
        write.map_err(|error| unwritable(directory, &error))?;
        let told = running
            .tools
            .run("smbcontrol", &["smbd", "reload-config"], None);
        told.await
            .map_err(|why| format!("Samba's server cannot be told of changes: {why}"))?;
        for name in &wanted.closing {
            let close = ["smbd", "close-share", name.as_str()];
            let told = running.tools.run("smbcontrol", &close, None);
            told.await.map_err(|why| {
                format!("clients of the share '{name}' cannot be sent away: {why}")
            })?;
        }
        if !wanted.closing.is_empty() {
            let gone = until_gone(&running.tools, &wanted.closing);
            if timeout(LETTING_GO, gone).await.is_err() {
                tracing::warn!("clients still use shares: {}", wanted.closing.join(", "));
            }
        }
        Ok(())
    }

    /// Stops the server, if it runs, with all of its processes.
    async fn stop(&mut self) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        let _ = kill_process(running.pid, Signal::TERM);
        drop(running.stdin.take());
        if timeout(ENDING, running.child.wait()).await.is_err() {
            tracing::warn!("Samba's server does not stop, and is killed");
        }
        // Those that serve clients are in its group, and may be about to end.
        let _ = kill_process_group(running.pid, Signal::KILL);
        let _ = timeout(ENDING, running.child.wait()).await;
        let gone = async {
            while lives(running.pid) {
                sleep(LOOK).await;
            }
        };
        // Until then, files in what is shared are open.
        if timeout(ENDING, gone).await.is_err() {
            tracing::warn!("processes of Samba's server do not end; they wait for a filesystem");
        }
        end_left_over(self.smb.directory()).await;
    }
}

/// Completes at that time, if there is one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Completes when the server ends; never where none runs.
async fn ended(running: &mut Option<Running>) -> io::Result<ExitStatus> {
    match running {
        Some(running) => running.child.wait().await,
        None => std::future::pending().await,
    }
}

/// Waits until no client uses shares of these names.
async fn until_gone(tools: &Tools, names: &[String]) {
    loop {
        let used = tools
            .run("smbstatus", &["-S"], None)
            .await
            .unwrap_or_default();
        let mut used = used.lines();
        let is_used = used.any(|line| {
            let mut names = names
                .iter()
                .filter_map(|name| line.strip_prefix(name.as_str()));
            names.any(|rest| rest.starts_with(' '))
        });
        if !is_used {
            return;
        }
        sleep(LOOK).await;
    }
}

/// Where a listener is reached from this host.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()),
        false => address,
    }
}

/// Whether somebody could listen there now.
pub(super) fn is_free(address: SocketAddr) -> io::Result<()> {
    TcpListener::bind(address).map(drop)
}

fn unwritable(directory: &Path, error: &io::Error) -> String {
    format!("{} cannot be used: {error}", directory.display())
}

/// Makes the server's directories. Its processes that serve clients are the users' while they work,
/// and have to pass through to the files in `lock/msg.lock` that say which of the others live
/// (`messaging_dgm_get_unique`, source3/lib/messages_dgm.c): otherwise each takes the locks and
/// open files of the others for those of the dead, and removes them.
///
/// # Errors
/// Also where users cannot pass through a directory above.
pub(super) fn prepare(directory: &Path) -> io::Result<()> {
    let make = |path: &Path, mode: u32| {
        let made = std::fs::DirBuilder::new().mode(mode).create(path);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        std::fs::set_permissions(path, Permissions::from_mode(mode))
    };
    make(directory, 0o711)?;
    for name in DIRECTORIES {
        // Samba wants this of its own.
        let is_private = matches!(name, "private" | "log" | "bind");
        make(
            &directory.join(name),
            if is_private { 0o700 } else { 0o755 },
        )?;
    }
    for above in directory.ancestors() {
        if above.metadata()?.mode() & 0o001 == 0 {
            let why = format!(
                "users have to pass through {}, in which it is; 'chmod o+x' lets them",
                above.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(())
}

/// Where it says what it has to say before it has a log of its own.
fn log_file(directory: &Path) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    let path = directory.join("log/start.log");
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

/// Replaces the configuration: it is whole at any time.
pub(super) fn write_configuration(
    smb: &Smb,
    address: SocketAddr,
    shares: &[Share],
) -> io::Result<()> {
    let directory = smb.directory();
    let text = conf::text(directory, smb.host(), address, has_avahi(), shares.iter());
    private::write(&directory.join("smb.conf"), text.as_bytes())
}

/// Whether any process of a group lives. Those that are dead and not buried have closed their
/// files.
fn lives(group: Pid) -> bool {
    let group = group.as_raw_nonzero().to_string();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return false;
    };
    let stats = processes.filter_map(|entry| {
        let stat = entry.ok()?.path().join("stat");
        std::fs::read_to_string(stat).ok()
    });
    stats.into_iter().any(|stat| is_alive_in(&stat, &group))
}

/// Whether a line of `/proc/PID/stat` (proc(5)) is that of a process of the group that lives.
fn is_alive_in(stat: &str, group: &str) -> bool {
    // The name may have spaces and parentheses in it: state, parent and group follow it.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let mut fields = after.split_whitespace();
    let (state, process_group) = (fields.next(), fields.nth(1));
    process_group == Some(group) && !matches!(state, Some("Z" | "X"))
}

/// Ends processes of an earlier start.
async fn end_left_over(directory: &Path) {
    let conf = directory.join("smb.conf").display().to_string();
    for name in ["smbd", "samba-dcerpcd"] {
        let path = directory.join("run").join(format!("{name}.pid"));
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        let Some(pid) = written.trim().parse().ok().and_then(Pid::from_raw) else {
            continue;
        };
        for signal in [Signal::TERM, Signal::KILL] {
            let deadline = Instant::now() + ENDING;
            let mut is_told = false;
            while is_ours(pid, name, &conf) {
                if !is_told {
                    tracing::info!(
                        "process {} ({name}) of an earlier start is ended",
                        pid.as_raw_nonzero()
                    );
                    let _ = kill_process(pid, signal);
                    is_told = true;
                }
                if Instant::now() > deadline {
                    break;
                }
                sleep(LOOK).await;
            }
        }
        let _ = std::fs::remove_file(&path);
    }
}

/// Whether a process is one of the server's that runs with the configuration of a directory.
pub(super) fn is_server(pid: Pid, directory: &Path) -> bool {
    is_ours(
        pid,
        "smbd",
        &directory.join("smb.conf").display().to_string(),
    )
}

/// Whether a process is a program of Samba's with our configuration: numbers of processes come
/// again.
fn is_ours(pid: Pid, program: &str, conf: &str) -> bool {
    let words = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
    let Ok(words) = words else { return false };
    let words = String::from_utf8_lossy(&words).into_owned();
    let mut words = words.split('\0');
    let is_program = words.next().is_some_and(|first| first.ends_with(program));
    is_program && words.any(|word| word.strip_prefix("--configfile=").unwrap_or(word) == conf)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that goes on with what it was told last would share what was withdrawn.
    #[tokio::test]
    async fn a_server_that_cannot_be_told_is_stopped() {
        let nowhere = Path::new("/nowhere/that/could/be/written");
        let smb = Smb::new(nowhere, "host", super::super::SmbListen::Off, false);
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::piped()).process_group(0);
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        let mut keeper = Keeper::new(&smb);
        keeper.running = Some(Running {
            stdin: child.stdin.take(),
            child,
            pid,
            tools: Tools {
                smbd: "smbd".into(),
                conf: nowhere.join("smb.conf"),
            },
            address: "127.0.0.1:1".parse().unwrap(),
            since: Instant::now(),
        });
        let share = Share {
            name: "still".into(),
            path: "/still".into(),
            words: Default::default(),
            by_nfs: false,
        };
        let wanted = Wanted {
            shares: vec![share],
            closing: vec!["withdrawn".into()],
            stop: false,
        };
        keeper.do_as_wanted(wanted).await;
        assert!(keeper.running.is_none() && keeper.again.is_some());
        assert!(!lives(pid));
        let server = smb.inner.lock().server.clone();
        assert!(
            matches!(server, super::super::Server::Fails(_)),
            "{server:?}"
        );
    }

    #[test]
    fn processes_that_live_are_told_from_dead_ones() {
        for (stat, expected) in [
            ("12 (smbd) S 1 10 12 0 -1", true),
            ("12 (smbd) Z 1 10 12 0 -1", false),
            ("12 (smbd) S 1 11 12 0 -1", false),
            ("12 (a) b) D 10 10 12 0 -1", true),
            ("", false),
        ] {
            assert_eq!(is_alive_in(stat, "10"), expected, "{stat}");
        }
        let own = rustix::process::getpgid(None).unwrap();
        assert!(lives(own));
    }
}
