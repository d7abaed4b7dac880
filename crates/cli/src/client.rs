//! Speaking to the daemon: one HTTP request over its Unix socket; where no daemon answers, one is
//! started in the background, or as the service that it is, so that a first `zpool create` just
//! works. After one that somebody stopped none is started but by `millpond start`, `up` or `daemon`
//! (`daemon::is_stopped`). What takes longer than a moment is a job, which is followed by its
//! events until it has ended.
//!
//! An ordinary user without `MILLPOND_STATE` may have pools of their own, in the state directory of
//! their own, and those of the machine, which root's server has. Who has a server, or pools that it
//! would bring back, is with that one; who has not sees those of the machine, and is told by its
//! server what they may not change. Only what brings a pool in (`zpool create`, `zpool import`,
//! `zpool labelclear`) starts a server of their own.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use api::{
    Call, EVENTS_PATH, Event, EventKind, Failure, FailureKind, Job, JobCancel, JobGet, JobKind,
    JobList, JobResult, JobState, STREAM_JOB_HEADER, STREAM_PROTOCOL, ServerStop,
};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use crate::{refusals, state};

/// How long one that is on its way out may still take connections.
const LEAVING: Duration = Duration::from_secs(10);
/// How long a daemon that was just started may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// What of a stream is copied at once, in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// What of a stream may be on its way to the daemon, in bytes.
const SOCKET_BYTES: usize = 1 << 20;

/// Where the service's unit is, if it is installed.
const UNITS: [&str; 3] = [
    "/etc/systemd/system/millpond.service",
    "/usr/lib/systemd/system/millpond.service",
    "/lib/systemd/system/millpond.service",
];

/// Copies a stream. Into a pipe the kernel moves it, without a copy here.
fn copy(from: &mut std::os::unix::net::UnixStream, to: &mut std::fs::File) -> std::io::Result<u64> {
    if to.metadata()?.file_type().is_fifo() {
        return std::io::copy(from, to);
    }
    let mut piece = vec![0; PIECE_BYTES];
    let mut copied = 0;
    loop {
        let length = match from.read(&mut piece) {
            Ok(0) => return Ok(copied),
            Ok(length) => length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&piece[..length])?;
        copied += length as u64;
    }
}

/// A way to the daemon of one state directory.
pub struct Client {
    state: PathBuf,
    /// The state directory of root's server, for a user who did not choose one.
    of_root: Option<PathBuf>,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// A client for the daemon of `state`, or else for that of `of_root`.
    pub fn new(state: PathBuf, of_root: Option<PathBuf>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            state,
            of_root,
            runtime,
        })
    }

    /// Sends a request, starting the daemon if there is none.
    pub fn call<C: Call>(&self, call: &C) -> anyhow::Result<C::Reply> {
        self.runtime.block_on(self.ask(call))
    }

    /// Like [`Self::call`], of a job that can be canceled: an interrupt (Ctrl-C) cancels it, which
    /// is then what it says.
    pub fn call_until_interrupted<C: Call>(&self, call: &C) -> anyhow::Result<C::Reply> {
        self.runtime.block_on(async {
            // The first moments are the daemon's to tell which job it is.
            let mut interrupt = signal(SignalKind::interrupt())?;
            let sender = self.reach::<C>().await?;
            let job = match exchange(sender, call).await? {
                Answer::Reply(reply) => {
                    return tokio::select! {
                        biased;
                        _ = interrupt.recv() => Err(anyhow!("interrupted")),
                        () = std::future::ready(()) => Ok(reply),
                    };
                }
                Answer::Job(job) => job,
            };
            let is_ended = |job: &Job| job.state.is_ended();
            let following = self.follow(&job, is_ended);
            tokio::pin!(following);
            tokio::select! {
                followed = &mut following => followed?,
                _ = interrupt.recv() => {
                    // It may have ended by itself.
                    let _ = self.ask_at_once(&JobCancel { id: job.id }).await;
                    following.await?;
                }
            }
            let reply = self.ask_at_once(&JobResult { id: job.id }).await?;
            serde_json::from_value(reply).context(NOT_UNDERSTOOD)
        })
    }

    /// Sends a request and standard input behind it, until that ends or the daemon has what it
    /// wants. Bytes go from descriptor to descriptor, without a copy here where the kernel can.
    pub fn send_stream<C: Call>(&self, call: &C) -> anyhow::Result<C::Reply> {
        self.runtime.block_on(async {
            let (job, _, mut connection) = self.switch(call).await?;
            let mut input = std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
            // As much as the system lets it, so that neither end waits for the other each moment.
            let _ = set_socket_send_buffer_size(&connection, SOCKET_BYTES);
            // It may wait for input that never comes, which is nobody's business once the daemon
            // has answered.
            std::thread::spawn(move || {
                // The daemon says why it does not want more.
                let _ = std::io::copy(&mut input, &mut connection);
                let _ = connection.shutdown(std::net::Shutdown::Write);
            });
            self.outcome::<C>(job).await
        })
    }

    /// Sends a request and writes what comes behind the answer to standard output; tells `follow`
    /// how far it is each second. Who reads may go away: then it breaks off.
    pub fn receive_stream<C: Call>(
        &self,
        call: &C,
        mut follow: impl FnMut(&Job),
    ) -> anyhow::Result<C::Reply> {
        self.runtime.block_on(async {
            let (id, first, mut connection) = self.switch(call).await?;
            let mut output = std::fs::File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
            let mut copying = tokio::task::spawn_blocking(move || {
                output.write_all(&first)?;
                copy(&mut connection, &mut output)
            });
            let mut seconds = tokio::time::interval(Duration::from_secs(1));
            seconds.tick().await;
            let copied = loop {
                tokio::select! {
                    copied = &mut copying => break copied?,
                    _ = seconds.tick() => follow(&self.ask_at_once(&JobGet { id }).await?),
                }
            };
            let outcome = self.outcome::<C>(id).await;
            match copied {
                Err(error) => Err(error).context("the stream could not be written"),
                Ok(_) => outcome,
            }
        })
    }

    /// Has a connection become a stream, of that job; with what came of it already.
    async fn switch<C: Call>(
        &self,
        call: &C,
    ) -> anyhow::Result<(u64, Bytes, std::os::unix::net::UnixStream)> {
        let mut sender = self.reach::<C>().await?;
        let request = Request::post(C::PATH)
            .header("host", "millpond")
            .header("content-type", "application/json")
            .header("connection", "upgrade")
            .header("upgrade", STREAM_PROTOCOL)
            .body(Full::new(Bytes::from(serde_json::to_vec(call)?)))?;
        let response = sender.send_request(request).await.context(GONE)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let body = response.into_body().collect().await?.to_bytes();
            return Err(failure(&body));
        }
        let job = response.headers().get(STREAM_JOB_HEADER);
        let job = job.and_then(|job| job.to_str().ok()?.parse().ok());
        let job: u64 = job.context(NOT_UNDERSTOOD)?;
        let upgraded = hyper::upgrade::on(response).await.context(GONE)?;
        let parts = upgraded
            .downcast::<TokioIo<UnixStream>>()
            .map_err(|_| anyhow!(NOT_UNDERSTOOD))?;
        let connection = parts.io.into_inner().into_std()?;
        connection.set_nonblocking(false)?;
        Ok((job, parts.read_buf, connection))
    }

    /// Waits for what a job comes to.
    async fn outcome<C: Call>(&self, id: u64) -> anyhow::Result<C::Reply> {
        let job = self.ask_at_once(&JobGet { id }).await?;
        if !job.state.is_ended() {
            self.follow(&job, |job| job.state.is_ended()).await?;
        }
        let reply = self.ask_at_once(&JobResult { id }).await?;
        serde_json::from_value(reply).context(NOT_UNDERSTOOD)
    }

    /// Follows a pool's jobs of these kinds until none is running that was begun before this was
    /// called, in the order in which they began. Who follows jobs that are to be waited for while
    /// they stand still, too, has them in `also_paused`.
    pub fn wait_for_jobs(
        &self,
        pool: &str,
        kinds: &[JobKind],
        also_paused: &[JobKind],
    ) -> anyhow::Result<()> {
        let pool = Some(pool.to_owned());
        let is_over = |job: &Job| match job.state {
            JobState::Running => false,
            JobState::Paused => !also_paused.contains(&job.kind),
            _ => true,
        };
        let jobs = self.call(&JobList { pool })?.jobs.into_iter();
        for job in jobs.filter(|job| kinds.contains(&job.kind)) {
            if !is_over(&job) {
                let following = self.follow(&job, is_over);
                self.runtime.block_on(following)?;
            }
        }
        Ok(())
    }

    /// Waits until jobs have ended.
    pub fn wait_for(&self, jobs: &[u64]) -> anyhow::Result<()> {
        let is_over = |job: &Job| job.state.is_ended();
        for id in jobs {
            let job = self.call(&JobGet { id: *id })?;
            if !is_over(&job) {
                self.runtime.block_on(self.follow(&job, is_over))?;
            }
        }
        Ok(())
    }

    /// Follows a job to its end, and gives what it came to; tells `follow` how far it is.
    pub fn result_of(
        &self,
        job: &Job,
        mut follow: impl FnMut(&Job),
    ) -> anyhow::Result<serde_json::Value> {
        self.runtime.block_on(async {
            let is_over = |job: &Job| {
                follow(job);
                job.state.is_ended()
            };
            self.follow(job, is_over).await?;
            self.ask_at_once(&JobResult { id: job.id }).await
        })
    }

    /// Reads events until they say that a job is over.
    async fn follow(&self, job: &Job, mut is_over: impl FnMut(&Job) -> bool) -> anyhow::Result<()> {
        let mut events = self.events(job.sequence, "&kind=own").await?;
        loop {
            let event = events.next().await?;
            let now = match event.kind {
                EventKind::JobProgress { job: now } | EventKind::JobFinished { job: now }
                    if now.id == job.id =>
                {
                    now
                }
                // What is missing may have been its end.
                EventKind::Lagged { .. } => self.ask_at_once(&JobGet { id: job.id }).await?,
                _ => continue,
            };
            if is_over(&now) {
                return Ok(());
            }
        }
    }

    /// Reads the events of OpenZFS's kind after `after`, until the daemon goes away.
    pub fn follow_zfs_events(
        &self,
        after: u64,
        mut take: impl FnMut(&Event),
    ) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            let mut events = self.events(after, "&kind=zfs").await?;
            loop {
                take(&events.next().await?);
            }
        })
    }

    /// The events after `after`; `more` is the rest of the query.
    async fn events(&self, after: u64, more: &str) -> anyhow::Result<EventStream> {
        let mut sender = self.reach::<JobGet>().await?;
        let request = Request::get(format!("{EVENTS_PATH}?after={after}{more}"))
            .header("host", "millpond")
            .body(Full::new(Bytes::new()))?;
        let response = sender.send_request(request).await.context(GONE)?;
        Ok(EventStream {
            _sender: sender,
            body: response.into_body(),
            text: Vec::new(),
        })
    }

    /// A connection to a daemon that answers.
    async fn reach<C: Call>(&self) -> anyhow::Result<Sender> {
        let begin = Instant::now();
        loop {
            let stream = match self.connect::<C>().await? {
                Some(stream) => stream,
                None => self.start(Start::Implied).await?,
            };
            match greet(stream).await {
                Ok(sender) => return Ok(sender),
                // A daemon that was killed takes connections until it is gone. Nothing was asked of
                // it.
                Err(_) if begin.elapsed() < LEAVING => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts a daemon, also where somebody stopped it, and waits until it answers.
    pub fn start_server(&self) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            let begin = Instant::now();
            loop {
                let stream = match UnixStream::connect(self.socket()).await {
                    Ok(stream) => stream,
                    Err(_) => self.start(Start::Asked).await?,
                };
                let greeted = greet(stream).await;
                // One that is on its way out may still answer.
                let is_leaving = daemon::is_stopped(&self.state);
                match greeted {
                    Ok(_) if !is_leaving => return Ok(()),
                    _ if begin.elapsed() < LEAVING => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Ok(_) => return Err(anyhow!("the server still stops; try again when it has")),
                    Err(error) => return Err(error),
                }
            }
        })
    }

    /// Has no command start a daemon by itself, where none runs.
    pub fn stay_stopped(&self) -> anyhow::Result<()> {
        daemon::stay_stopped(&self.state).with_context(|| {
            format!(
                "no server runs, but the next command may start one, as nothing can be noted in {}",
                self.state.display()
            )
        })
    }

    /// Asks a daemon, and waits for what it answers as a job.
    async fn ask<C: Call>(&self, call: &C) -> anyhow::Result<C::Reply> {
        let sender = self.reach::<C>().await?;
        let job = match exchange(sender, call).await? {
            Answer::Reply(reply) => return Ok(reply),
            Answer::Job(job) => job,
        };
        self.follow(&job, |job| job.state.is_ended()).await?;
        let reply = self.ask_at_once(&JobResult { id: job.id }).await?;
        serde_json::from_value(reply).context(NOT_UNDERSTOOD)
    }

    /// Asks a daemon for what is no job.
    async fn ask_at_once<C: Call>(&self, call: &C) -> anyhow::Result<C::Reply> {
        match exchange(self.reach::<C>().await?, call).await? {
            Answer::Reply(reply) => Ok(reply),
            Answer::Job(_) => Err(anyhow!(NOT_UNDERSTOOD)),
        }
    }

    /// Sends a request if a daemon runs; none otherwise.
    pub fn call_if_running<C: Call>(&self, call: &C) -> anyhow::Result<Option<C::Reply>> {
        self.runtime.block_on(async {
            let Some(stream) = self.connect::<C>().await? else {
                return Ok(None);
            };
            match greet(stream).await {
                Ok(sender) => match exchange(sender, call).await? {
                    Answer::Reply(reply) => Ok(Some(reply)),
                    Answer::Job(_) => Err(anyhow!(NOT_UNDERSTOOD)),
                },
                Err(_) => Ok(None),
            }
        })
    }

    /// Whether a daemon runs that does not answer yet, as it imports its pools.
    pub fn is_starting(&self) -> bool {
        self.is_locked() && !self.is_stopped()
    }

    /// Stops the daemon, once it answers; tells whether one did. `waits` is called when one runs
    /// that does not yet.
    pub fn stop_server(&self, waits: impl FnOnce()) -> anyhow::Result<bool> {
        let begin = Instant::now();
        let mut waits = Some(waits);
        loop {
            if self.call_if_running(&ServerStop {})?.is_some() {
                return Ok(true);
            }
            if !self.is_starting() {
                return Ok(false);
            }
            if let Some(waits) = waits.take() {
                waits();
            }
            if begin.elapsed() > START_TIMEOUT {
                let lock = self.state.join("millpond.lock");
                let process = std::fs::read_to_string(lock).unwrap_or_default();
                let process = process.trim();
                return Err(anyhow!(
                    "the server (process {process}) still imports its pools and cannot be stopped \
                     before it has; try again, or see {}. 'kill {process}' ends it as a crash \
                     would: what was synced is there at the next start",
                    self.state.join("daemon.log").display()
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A connection to the daemon that is to be asked, if it runs.
    async fn connect<C: Call>(&self) -> anyhow::Result<Option<UnixStream>> {
        // A service manager would start one for who connects, and what leaves takes nobody any
        // more.
        let connected = match self.is_stopped() {
            true if self.is_locked() && self.is_service() => {
                return Err(anyhow!("the server is being stopped"));
            }
            true if !self.is_locked() => Err(std::io::ErrorKind::ConnectionRefused.into()),
            _ => UnixStream::connect(self.socket()).await,
        };
        match connected {
            Ok(stream) => return Ok(Some(stream)),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(anyhow!(
                    "the server with the state directory {} is another user's: permission denied",
                    self.state.display()
                ));
            }
            Err(_) => {}
        }
        match &self.of_root {
            Some(of_root) if !C::BRINGS_POOLS && !self.has_pools() => {
                if daemon::is_stopped(of_root) {
                    return Err(was_stopped(of_root));
                }
                Ok(UnixStream::connect(socket_in(of_root)).await.ok())
            }
            _ => Ok(None),
        }
    }

    /// Whether a daemon of this state directory would bring pools back. One that does not know
    /// which says so.
    fn has_pools(&self) -> bool {
        match std::fs::read(self.state.join("pools.json")) {
            Ok(list) => {
                let pools = serde_json::from_slice::<Vec<serde_json::Value>>(&list);
                pools.map_or(true, |pools| !pools.is_empty())
            }
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }

    /// Whether somebody stopped the daemon. It may still be on its way out.
    fn is_stopped(&self) -> bool {
        daemon::is_stopped(&self.state)
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    fn socket(&self) -> PathBuf {
        socket_in(&self.state)
    }

    /// Refuses to start a daemon in a directory of somebody else, who alone may start it there.
    fn check_own(&self) -> anyhow::Result<()> {
        let own = rustix::process::geteuid();
        let existing = self.state.ancestors().find_map(|path| path.metadata().ok());
        let owner = existing.map_or(own.as_raw(), |found| found.uid());
        if own.is_root() || owner == own.as_raw() {
            return Ok(());
        }
        let who = match owner {
            0 => "root".to_owned(),
            owner => format!("user {owner}"),
        };
        Err(anyhow!(
            "no server runs with the state directory {}, and only {who} can start one there; \
             ask {who} to, or set MILLPOND_STATE to a directory of yours",
            self.state.display()
        ))
    }

    /// Whether root's server is a service of systemd here, and so systemd's to start.
    fn is_service(&self) -> bool {
        rustix::process::geteuid().is_root()
            && self.state == Path::new(state::OF_ROOT)
            && Path::new("/run/systemd/system").is_dir()
            && UNITS.iter().any(|unit| Path::new(unit).exists())
    }

    /// Has systemd listen for the service, which starts it.
    async fn start_service(&self) -> anyhow::Result<UnixStream> {
        let started = Command::new("systemctl")
            .args(["--quiet", "start", "millpond.socket"])
            .stdin(Stdio::null())
            .status()
            .context("systemctl does not run")?;
        if !started.success() {
            return Err(anyhow!(
                "the service does not start; see 'systemctl status millpond.socket millpond'"
            ));
        }
        let socket = self.socket();
        let connected = UnixStream::connect(&socket).await;
        connected.with_context(|| {
            format!(
                "millpond.socket listens, but not at {}; see 'systemctl cat millpond.socket'",
                socket.display()
            )
        })
    }

    /// Starts `millpond daemon` detached from this terminal and waits until it answers.
    async fn start(&self, start: Start) -> anyhow::Result<UnixStream> {
        self.check_own()?;
        let is_refused = || start == Start::Implied && self.is_stopped();
        if is_refused() && !self.is_locked() {
            return Err(was_stopped(&self.state));
        }
        if self.is_service() {
            return self.start_service().await;
        }
        let made = match self.state.parent() {
            Some(above) => std::fs::create_dir_all(above),
            None => Ok(()),
        };
        // Others may not look in before the daemon sees to it.
        let made =
            made.and_then(
                |()| match std::fs::DirBuilder::new().mode(0o700).create(&self.state) {
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                    made => made,
                },
            );
        made.with_context(|| {
            format!(
                "the state directory {} cannot be made; set MILLPOND_STATE to a directory of yours",
                self.state.display()
            )
        })?;
        let log_path = self.state.join("daemon.log");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log_path)
            .with_context(|| format!("{} cannot be written", log_path.display()))?;
        let program = std::env::current_exe().context("finding the program's own path")?;
        let mut child: Option<std::process::Child> = None;
        let begin = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(self.socket()).await {
                let server = stream.peer_cred().ok().and_then(|server| server.pid());
                if let (Some(child), Some(server)) = (&mut child, server)
                    && child.id() != server.cast_unsigned()
                {
                    // Somebody else's was faster. Ours waits for the lock, and would have the pools
                    // again as soon as 'millpond down' has stopped that one.
                    child.kill()?;
                    child.wait()?;
                }
                return Ok(stream);
            }
            // One that runs answers when its pools are imported, which takes its time after a
            // crash.
            let runs = self.is_locked();
            let is_late = begin.elapsed() > START_TIMEOUT;
            match &mut child {
                _ if runs && is_late => {
                    return Err(anyhow!(
                        "the server still imports its pools; try again, or see {}",
                        log_path.display()
                    ));
                }
                _ if runs => {}
                None if is_refused() => return Err(was_stopped(&self.state)),
                None => child = Some(detached(&program, &self.state, log.try_clone()?)?),
                // Two commands may start a daemon at once: the second daemon leaves, the first one
                // answers.
                Some(child) => {
                    let gone = child.try_wait()?.is_some();
                    if is_late || gone && begin.elapsed() > Duration::from_secs(5) {
                        return Err(anyhow!(
                            "the daemon did not start; see {}",
                            log_path.display()
                        ));
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether a daemon has the state directory.
    fn is_locked(&self) -> bool {
        let lock = std::fs::File::open(self.state.join("millpond.lock"));
        lock.is_ok_and(|lock| {
            flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
        })
    }
}

/// Why a daemon is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// A command has something to ask.
    Implied,
    /// Somebody wants it.
    Asked,
}

fn was_stopped(state: &Path) -> anyhow::Error {
    anyhow!(
        "no server runs with the state directory {}: it was stopped; 'millpond start' starts it, \
         and it imports its pools then",
        state.display()
    )
}

fn socket_in(state: &Path) -> PathBuf {
    state.join("millpond.sock")
}

fn detached(
    program: &Path,
    state: &Path,
    log: std::fs::File,
) -> anyhow::Result<std::process::Child> {
    use std::os::unix::process::CommandExt;
    Command::new(program)
        .arg0("millpond")
        .arg("daemon")
        .env("MILLPOND_STATE", state)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("{} could not be started", program.display()))
}

/// Where requests go to.
type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

/// Makes sure that the daemon answers, before anything is asked of it that it might do and not
/// answer: any answer will do.
async fn greet(stream: UnixStream) -> anyhow::Result<Sender> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    let request = Request::get("/")
        .header("host", "millpond")
        .body(Full::new(Bytes::new()))?;
    let answer = sender.send_request(request).await;
    let answer = answer.context("the daemon does not answer; see its log")?;
    answer.into_body().collect().await?;
    sender.ready().await?;
    Ok(sender)
}

/// What a request is answered.
enum Answer<R> {
    Reply(R),
    /// It takes longer, and is followed as a job.
    Job(Job),
}

const GONE: &str = "the daemon went away during the request; see its log";
const NOT_UNDERSTOOD: &str = "the daemon's answer was not understood; is it of another version?";

async fn exchange<C: Call>(mut sender: Sender, call: &C) -> anyhow::Result<Answer<C::Reply>> {
    let mut request = Request::post(C::PATH)
        .header("host", "millpond")
        .header("content-type", "application/json");
    if C::JOB.is_some() {
        // What is done soon is answered at once.
        request = request.header("prefer", "respond-async, wait=1");
    }
    let request = request.body(Full::new(Bytes::from(serde_json::to_vec(call)?)))?;
    let response = sender.send_request(request).await.context(GONE)?;
    let status = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .context("the daemon's answer broke off")?
        .to_bytes();
    match status {
        StatusCode::OK => {
            let reply = serde_json::from_slice(&body).context(NOT_UNDERSTOOD)?;
            return Ok(Answer::Reply(reply));
        }
        StatusCode::ACCEPTED => {
            let job = serde_json::from_slice(&body).context(NOT_UNDERSTOOD)?;
            return Ok(Answer::Job(job));
        }
        _ => {}
    }
    Err(failure(&body))
}

/// What a daemon says that refuses.
fn failure(body: &[u8]) -> anyhow::Error {
    let mut failure = serde_json::from_slice::<Failure>(body).unwrap_or_else(|_| {
        Failure::new(
            FailureKind::Other,
            String::from_utf8_lossy(body).trim().to_owned(),
        )
    });
    failure.message = refusals::words(&failure);
    failure.into()
}

/// The stream of server-sent events.
struct EventStream {
    /// It ends with this.
    _sender: Sender,
    body: hyper::body::Incoming,
    /// What has come and is no whole event yet.
    text: Vec<u8>,
}

impl EventStream {
    /// Waits for the next event.
    async fn next(&mut self) -> anyhow::Result<Event> {
        loop {
            if let Some(end) = self.text.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..end + 2).collect();
                let block = String::from_utf8_lossy(&block);
                let data = block.lines().find_map(|line| line.strip_prefix("data:"));
                // A comment keeps the connection alive.
                let Some(data) = data else { continue };
                match serde_json::from_str(data.trim()) {
                    Ok(event) => return Ok(event),
                    // A later daemon may tell of more.
                    Err(_) => continue,
                }
            }
            let frame = self.body.frame().await;
            let frame = frame.context(GONE)?.context(GONE)?;
            if let Some(data) = frame.data_ref() {
                self.text.extend_from_slice(data);
            }
        }
    }
}
