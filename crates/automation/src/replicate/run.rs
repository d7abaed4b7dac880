//! One run of a replication: a snapshot, then dataset by dataset what its target lacks, then those
//! of our snapshots go that the rule does not keep.
//!
//! Each dataset is sent by itself, parents and origins first, so that what is in the way of one
//! keeps only that one. Nothing at the target is destroyed, rolled back or overwritten but
//! snapshots that this replication took: their names have its ID. What is gone at the source stays
//! there.
//!
//! A bookmark at the source says what the target has, so that no snapshot must be kept for it.
//! While a series is sent there is one of each of its snapshots, as it may end with any of them.
//! Where no bookmark can be made (the pool's features, no room) it is noted with the replication
//! which snapshots stay for it, before they are sent (`Replication::unmarked`).
//!
//! A crash, here or there, leaves a receive that the next run goes on with, and perhaps a snapshot
//! of ours that was not sent.

mod bookmarks;
mod prune;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::{
    Failure, FailureKind, JobState, Progress, ReceiveNaming, ReceiveObstacle, Refusal,
    ReplicationNote, ReplicationResult, ReplicationTarget, ReplicationWhat, Secret, Settings, Unit,
    ZfsReceive, ZfsReceiveAbort, ZfsSend, ZfsSendPlan,
};
use dataset::{DatasetError, DatasetKind, ListOptions};
use tokio::io::AsyncWriteExt;

use super::limit::{Limit, Limited};
use super::names;
use super::plan::{Obstacle, Point, Series, SourceSet, Step, TargetSet, check_new, next};
use super::ssh::Ssh;
use super::tls::Tls;
use crate::Automation;
use crate::timetable::{now_s, take_snapshot};
use service::error::from_dataset;
use service::jobs::Work;
use service::pools::OpenPool;
use verbs::order::behind_what_they_need;
use verbs::receive::receive_from;
use verbs::send::{send_to, zfs_send_plan};

/// What may be between who sends and who receives in the same process, in bytes.
const PIPE_BYTES: usize = 4 << 20;
/// How often it is asked whether to stop.
const LOOK: Duration = Duration::from_millis(250);
/// How long another host is waited for after that.
const STOPPED_MAX: Duration = Duration::from_secs(3);
/// How long a new replication's target may take to tell what it has.
const CHECK_MAX: Duration = Duration::from_secs(45);
/// How many names are tried for a snapshot, a second apart.
const NAMES_MAX: u64 = 20;

/// What a new dataset at the target does not get of the source's properties: it would be mounted
/// and shared where the source is. Volumes inherit what filesystems above them say of iSCSI.
const LEFT_OUT_OF_FILESYSTEMS: [&str; 3] = ["mountpoint", "sharenfs", "sharesmb"];
const LEFT_OUT_OF_ALL: [&str; 2] = ["millpond:iscsi", "millpond:iscsi.reservations"];

/// The other side.
enum Side {
    Local,
    Ssh(Ssh),
    Tls(Arc<Tls>),
}

/// A run.
pub(super) struct Run {
    automation: Arc<Automation>,
    name: String,
    /// What the names of its snapshots and bookmarks say of it.
    tag: String,
    what: ReplicationWhat,
    work: Arc<Work>,
    side: Side,
    limit: Option<Arc<Limit>>,
    /// Bytes that are to be sent in all, as far as that is known.
    total: u64,
    result: ReplicationResult,
}

/// What a run came to that has just begun.
fn begun() -> ReplicationResult {
    ReplicationResult {
        begin_s: now_s(),
        end_s: 0,
        state: JobState::Running,
        snapshot: None,
        bytes: 0,
        datasets: 0,
        is_resumed: false,
        failure: None,
        failed: 0,
        notes: Vec::new(),
    }
}

/// What a run came to that could not begin.
pub(super) fn refused(failure: Failure) -> ReplicationResult {
    ReplicationResult {
        end_s: now_s(),
        state: JobState::Failed,
        failure: Some(failure),
        ..begun()
    }
}

/// What both sides have.
struct Sides {
    sources: Vec<SourceSet>,
    /// By name.
    targets: BTreeMap<String, TargetSet>,
    /// Snapshots of all targets.
    guids: HashSet<u64>,
}

impl Run {
    /// # Errors
    /// The other side cannot be one.
    pub(super) fn new(
        automation: &Arc<Automation>,
        name: &str,
        tag: &str,
        (what, key): (&ReplicationWhat, Option<&Secret>),
        work: Arc<Work>,
    ) -> Result<Self, Failure> {
        let side = match &what.target {
            ReplicationTarget::Local { .. } => Side::Local,
            ReplicationTarget::Ssh { host, command, .. } => Side::Ssh(Ssh::new(host, command)),
            ReplicationTarget::Tls {
                host, fingerprint, ..
            } => Side::Tls(Tls::new(host, fingerprint.as_deref(), key)?),
        };
        Ok(Self {
            automation: Arc::clone(automation),
            name: name.to_owned(),
            tag: tag.to_owned(),
            what: what.clone(),
            work,
            side,
            limit: what.limit_bytes.map(Limit::new),
            total: 0,
            result: begun(),
        })
    }

    /// Runs to its end. `pending` is a snapshot of an earlier run that did not get there, to be
    /// sent instead of a new one.
    pub(super) async fn run(mut self, pending: Option<String>) -> ReplicationResult {
        let outcome = self.all(pending).await;
        if let Err(failure) = outcome {
            self.failed(failure);
        }
        self.result.end_s = now_s();
        self.result.state = match &self.result.failure {
            None => JobState::Finished,
            Some(failure) if failure.kind == FailureKind::Canceled => JobState::Canceled,
            Some(_) => JobState::Failed,
        };
        self.result
    }

    /// The first failure is told; being told to stop comes before any.
    fn failed(&mut self, failure: Failure) {
        let is_canceled = failure.kind == FailureKind::Canceled;
        if self.result.failure.is_none() || is_canceled {
            self.result.failure = Some(failure);
        }
    }

    fn canceled() -> Failure {
        Failure::new(FailureKind::Canceled, "the replication was stopped")
    }

    /// The command that the history of pools tells.
    fn command(&self) -> String {
        format!("millpond replicate --run {}", self.name)
    }

    fn doing(&self) -> String {
        format!("cannot replicate '{}'", self.what.source)
    }

    async fn all(&mut self, pending: Option<String>) -> Result<(), Failure> {
        let open = self
            .automation
            .serving
            .pools
            .of_dataset(&self.what.source)?;
        let mut taken = self.snapshot(&open, pending).await;
        if lacks_room(&taken) && self.make_room(&open).await {
            taken = self.snapshot(&open, None).await;
        }
        let to = taken?;
        self.result.snapshot = Some(to.clone());
        let sources = self.sources(&open).await?;
        let sent = self.send_all(&open, sources, &to).await;
        let (sides, sent) = match sent {
            Ok((sides, sent)) => (Some(sides), sent),
            Err(failure) => {
                self.failed(failure);
                (None, BTreeSet::new())
            }
        };
        // Also where the other side could not be reached: snapshots are taken all the same.
        if !self.work.is_canceled() {
            self.prune(&open, sides.as_ref(), &sent, &to).await;
        }
        Ok(())
    }

    /// Whether the target of a new replication can be asked, and be one.
    ///
    /// # Errors
    /// Those of a first run before it sends anything.
    pub(super) async fn check_target(&self, open: &OpenPool) -> Result<(), Failure> {
        let top = self.what.target.dataset();
        let asked = tokio::time::timeout(CHECK_MAX, self.targets(top, false)).await;
        let found = asked.unwrap_or_else(|_| {
            let (doing, seconds) = (self.doing(), CHECK_MAX.as_secs());
            let message = format!("{doing}: its target did not answer within {seconds} seconds");
            Err(Failure::new(FailureKind::Io, message))
        })?;
        let Some(target) = found.get(top) else {
            return Ok(());
        };
        let sources = self.sources(open).await?;
        let own = |source: &&SourceSet| source.name == self.what.source;
        let Some(source) = sources.iter().find(own) else {
            return Ok(());
        };
        let checked = check_new(&self.tag, source, target);
        checked.map_err(|obstacle| self.refused(source, top, &obstacle))
    }

    /// The snapshot that the run is about, after the `@`.
    async fn snapshot(&self, open: &OpenPool, pending: Option<String>) -> Result<String, Failure> {
        let (source, directories) = (&self.what.source, open.pool.dsl().directories());
        let found = directories.lookup(source).await;
        found.map_err(|error| from_dataset(&self.doing(), &error))?;
        if let Some(pending) = pending {
            let full_name = format!("{source}@{pending}");
            if directories.lookup(&full_name).await.is_ok() {
                return Ok(pending);
            }
        }
        // Of two runs in one second the later one is named after the next. The third goes behind
        // that, though the first one's name may be free again by then.
        let options = ListOptions {
            filesystems: false,
            volumes: false,
            ..listing(false)
        };
        let known = directories.list(source, &options).await;
        let known = known.map_err(|error| from_dataset(&self.doing(), &error))?;
        let own = format!("{source}@");
        let taken = known
            .iter()
            .filter_map(|info| names::taken_at(&self.tag, info.name.strip_prefix(&own)?));
        let at_s = names::next_moment(taken, now_s(), NAMES_MAX);
        let names = (0..NAMES_MAX).map(|later| names::snapshot_name(&self.tag, at_s + later));
        let (properties, recursive) = (Settings::default(), self.what.recursive);
        let command = self.command();
        take_snapshot(
            &self.automation.serving,
            &command,
            source,
            recursive,
            &properties,
            names,
        )
        .await
    }

    /// Datasets of the source, those first that others need: parents, and origins of clones.
    async fn sources(&self, open: &OpenPool) -> Result<Vec<SourceSet>, Failure> {
        let dsl = open.pool.dsl();
        let failed = |error: DatasetError| from_dataset(&self.doing(), &error);
        let top = &self.what.source;
        let options = listing(self.what.recursive);
        let listed = dsl.directories().list(top, &options).await;
        let mut sets: Vec<SourceSet> = Vec::new();
        let mut points: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        for info in listed.map_err(failed)? {
            let point = |name: &str| Point {
                name: name.to_owned(),
                guid: info.guid.get(),
                txg: info.createtxg.get(),
                is_held: false,
            };
            if let Some((head, short)) = info.name.split_once('@') {
                points
                    .entry(head.to_owned())
                    .or_default()
                    .push(point(short));
                continue;
            }
            // What is being received itself has no snapshot that could be sent.
            if info.is_inconsistent || !self.what.recursive && info.name != *top {
                continue;
            }
            let origin = match info.origin {
                None => None,
                Some(origin) => {
                    let found = dsl.directories().lookup(&origin).await.map_err(failed)?;
                    Some((origin, found.guid.get()))
                }
            };
            let bookmarks = dsl.bookmarks().list(&info.name).await.map_err(failed)?;
            let key = dsl.keys().info(&info.name).await.map_err(failed)?;
            sets.push(SourceSet {
                is_volume: info.kind == DatasetKind::Volume,
                is_encrypted: key.is_some(),
                origin,
                snapshots: Vec::new(),
                bookmarks: bookmarks
                    .iter()
                    .map(|bookmark| Point {
                        name: short(&bookmark.name).to_owned(),
                        guid: bookmark.phys.guid.get(),
                        txg: bookmark.phys.creation_txg.get(),
                        is_held: false,
                    })
                    .collect(),
                name: info.name,
            });
        }
        for set in &mut sets {
            set.snapshots = points.remove(&set.name).unwrap_or_default();
            set.snapshots.sort_by_key(|point| point.txg);
        }
        Ok(in_order(sets))
    }

    /// What there is at and below a dataset of the target, or at it alone.
    async fn targets(
        &self,
        top: &str,
        is_recursive: bool,
    ) -> Result<BTreeMap<String, TargetSet>, Failure> {
        match &self.side {
            Side::Local => {}
            Side::Ssh(ssh) => return self.or_stopped(ssh.list(top, is_recursive)).await,
            Side::Tls(tls) => return self.or_stopped(tls.list(top, is_recursive)).await,
        }
        let open = self.automation.serving.pools.of_dataset(top)?;
        let dsl = open.pool.dsl();
        let failed = |error: DatasetError| from_dataset(&self.doing(), &error);
        let listed = match dsl.directories().list(top, &listing(is_recursive)).await {
            Ok(listed) => listed,
            Err(DatasetError::NotFound { .. }) => return Ok(BTreeMap::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut out: BTreeMap<String, TargetSet> = BTreeMap::new();
        for info in listed {
            let Some((head, short)) = info.name.split_once('@') else {
                if !is_recursive && info.name != top {
                    continue;
                }
                let token = dsl
                    .properties()
                    .get(&info.name, "receive_resume_token")
                    .await;
                let token = token.ok().and_then(|token| match token.value {
                    dataset::PropertyValue::Text(text) if text.starts_with("1-") => Some(text),
                    _ => None,
                });
                out.entry(info.name).or_default().token = token;
                continue;
            };
            let holds = dsl.holds().list(&info.name).await.map_err(failed)?;
            let point = Point {
                name: short.to_owned(),
                guid: info.guid.get(),
                txg: info.createtxg.get(),
                is_held: !holds.is_empty(),
            };
            let set = out.entry(head.to_owned()).or_default();
            set.snapshots.push(point);
        }
        for set in out.values_mut() {
            set.snapshots.sort_by_key(|point| point.txg);
        }
        Ok(out)
    }

    /// The name at the target of a dataset of the source.
    fn there(&self, source: &str) -> String {
        let below = source.strip_prefix(&self.what.source).unwrap_or_default();
        format!("{}{below}", self.what.target.dataset())
    }

    /// Sends what is missing of all datasets. Gives what both sides have then, and which datasets
    /// (by their names at the source) have the snapshot at the target.
    async fn send_all(
        &mut self,
        open: &OpenPool,
        sources: Vec<SourceSet>,
        to: &str,
    ) -> Result<(Sides, BTreeSet<String>), Failure> {
        let targets = self
            .targets(self.what.target.dataset(), self.what.recursive)
            .await?;
        let guids = targets.values().flat_map(|set| &set.snapshots);
        let mut sides = Sides {
            guids: guids.map(|point| point.guid).collect(),
            targets,
            sources,
        };
        self.note_gone(&sides);
        for source in &sides.sources {
            if let Ok(step) = self.step(&sides, source, to) {
                self.total += self.estimate(source, &step).await;
            }
        }
        let mut sent = BTreeSet::new();
        for at in 0..sides.sources.len() {
            if self.work.is_canceled() {
                self.failed(Self::canceled());
                break;
            }
            let has_it = sides.sources[at].snapshots.iter().any(|own| own.name == to);
            match self.one(open, &mut sides, at, to).await {
                Ok(()) if has_it => {
                    sent.insert(sides.sources[at].name.clone());
                    self.result.datasets += 1;
                }
                Ok(()) => {}
                Err(failure) => {
                    self.result.failed += 1;
                    // The others would only wait for a host that is not there.
                    let is_lost =
                        !matches!(self.side, Side::Local) && failure.kind == FailureKind::Io;
                    self.failed(failure);
                    if is_lost {
                        break;
                    }
                }
            }
        }
        Ok((sides, sent))
    }

    fn note_gone(&mut self, sides: &Sides) {
        let known: HashSet<String> = sides
            .sources
            .iter()
            .map(|source| self.there(&source.name))
            .collect();
        let gone = sides.targets.keys().filter(|name| !known.contains(*name));
        let notes = gone.map(|target| ReplicationNote::Gone {
            target: target.clone(),
        });
        self.result.notes.extend(notes);
    }

    fn step(&self, sides: &Sides, source: &SourceSet, to: &str) -> Result<Step, Failure> {
        let there = self.there(&source.name);
        let target = sides.targets.get(&there);
        let has = |guid| sides.guids.contains(&guid);
        let step = next(&self.tag, source, target, to, has);
        step.map_err(|obstacle| self.refused(source, &there, &obstacle))
    }

    fn refused(&self, source: &SourceSet, there: &str, obstacle: &Obstacle) -> Failure {
        let name = &source.name;
        match obstacle {
            Obstacle::Occupied => {
                let message = format!(
                    "cannot replicate '{name}': '{there}' is there already and has no snapshot of \
                     it; nothing is overwritten: rename or destroy it, or name another target"
                );
                Failure::new(FailureKind::Exists, message)
            }
            Obstacle::Diverged { newest } => {
                let message = format!(
                    "cannot replicate '{name}': '{there}' has snapshots ('{newest}' is the most \
                     recent one), and none of them is one of it; name another target"
                );
                Failure::new(FailureKind::Exists, message)
            }
            Obstacle::OtherReceive => {
                let message = format!(
                    "cannot replicate '{name}': '{there}' holds the rest of a receive of \
                     something else; resume that, or give it up there with 'zfs receive -A \
                     {there}'"
                );
                Failure::new(FailureKind::Busy, message)
            }
        }
    }

    /// Sends what is missing of one dataset.
    async fn one(
        &mut self,
        open: &OpenPool,
        sides: &mut Sides,
        at: usize,
        to: &str,
    ) -> Result<(), Failure> {
        let source = sides.sources[at].clone();
        let there = self.there(&source.name);
        let (mut is_first, mut may_make_room) = (true, true);
        loop {
            let step = self.step(sides, &source, to)?;
            if !is_first {
                self.total += self.estimate(&source, &step).await;
            }
            is_first = false;
            match step {
                Step::Nothing => break,
                Step::GiveUp => {
                    self.abort(&there).await?;
                    self.look_again(sides, &there, None).await?;
                }
                Step::Resume { token, to: resumed } => {
                    tracing::info!("'{there}' goes on with {resumed}");
                    let send = ZfsSend {
                        token: Some(token.clone()),
                        ..ZfsSend::default()
                    };
                    // The receive that makes the dataset may have been cut off before they were
                    // set.
                    let target = sides.targets.get(&there);
                    let options = match target.is_none_or(|set| set.snapshots.is_empty()) {
                        true => options_of_new(&source),
                        false => Vec::new(),
                    };
                    let received = self.transfer(&send, &there, &options).await;
                    if may_make_room && self.makes_room(sides, at, to, &received).await {
                        may_make_room = false;
                        continue;
                    }
                    received?;
                    self.result.is_resumed = true;
                    self.look_again(sides, &there, Some(&token)).await?;
                }
                Step::Send(series) => {
                    let options = match series.is_new {
                        true => options_of_new(&source),
                        false => Vec::new(),
                    };
                    let send = request(&source, &series);
                    self.bookmark_ahead(open, &mut sides.sources[at], &series)
                        .await;
                    let received = self.transfer(&send, &there, &options).await;
                    if may_make_room && self.makes_room(sides, at, to, &received).await {
                        may_make_room = false;
                        continue;
                    }
                    received?;
                    let sent = source.snapshots[series.first..=series.last].iter();
                    sides.guids.extend(sent.clone().map(|point| point.guid));
                    let set = sides.targets.entry(there.clone()).or_default();
                    set.snapshots.extend(sent.cloned());
                }
            }
            self.bookmark(open, sides, at).await;
        }
        self.bookmark(open, sides, at).await;
        Ok(())
    }

    /// Looks anew at a dataset of the target, whose token must be another than it was.
    async fn look_again(
        &self,
        sides: &mut Sides,
        there: &str,
        before: Option<&str>,
    ) -> Result<(), Failure> {
        let mut found = self.targets(there, false).await?;
        let set = found.remove(there);
        let token = set.as_ref().and_then(|set| set.token.as_deref());
        if token.is_some() && (before.is_none() || token == before) {
            let message = format!("'{there}' still holds the rest of an interrupted receive");
            return Err(Failure::new(FailureKind::Busy, message));
        }
        match set {
            Some(set) => {
                sides
                    .guids
                    .extend(set.snapshots.iter().map(|point| point.guid));
                sides.targets.insert(there.to_owned(), set);
            }
            None => {
                sides.targets.remove(there);
            }
        }
        Ok(())
    }

    async fn abort(&self, there: &str) -> Result<(), Failure> {
        let call = ZfsReceiveAbort {
            name: there.to_owned(),
            command: self.command(),
        };
        match &self.side {
            Side::Ssh(ssh) => self.or_stopped(ssh.abort(there)).await,
            Side::Tls(tls) => self.or_stopped(tls.abort(&call)).await,
            Side::Local => verbs::receive::zfs_receive_abort(&self.automation.serving.pools, &call)
                .await
                .map(drop),
        }
    }

    /// About how many bytes a step sends.
    async fn estimate(&self, source: &SourceSet, step: &Step) -> u64 {
        let send = match step {
            Step::Nothing | Step::GiveUp => return 0,
            Step::Resume { token, .. } => ZfsSend {
                token: Some(token.clone()),
                ..ZfsSend::default()
            },
            Step::Send(series) => request(source, series),
        };
        // What cannot be sent says so when it is its turn.
        let plan = zfs_send_plan(&self.automation.serving.pools, &ZfsSendPlan { send }).await;
        let streams = plan.map(|plan| plan.streams).unwrap_or_default();
        streams.iter().map(|stream| stream.size_bytes).sum()
    }

    /// Sends what a request asks for and has it received.
    async fn transfer(
        &mut self,
        send: &ZfsSend,
        there: &str,
        options: &[String],
    ) -> Result<(), Failure> {
        let (work, before, total) = (Arc::clone(&self.work), self.result.bytes, self.total);
        let progress = stream::Progress::new(move |bytes| {
            let done = before + bytes;
            work.progress(Progress {
                done,
                total: total.max(done),
                unit: Unit::Bytes,
            });
            work.is_canceled()
        });
        let outcome = match &self.side {
            Side::Local => self.transfer_here(send, there, options, &progress).await,
            Side::Ssh(ssh) => match ssh.receive(there, options) {
                Ok((receiving, input)) => {
                    let sent = self.sent(send, input, &progress).await;
                    self.ended(sent, receiving.end()).await
                }
                Err(failure) => Err(failure),
            },
            Side::Tls(tls) => {
                let call = self.receive_call(there, options);
                match self.or_stopped(tls.receive(&call)).await {
                    Ok((receiving, input)) => {
                        let sent = self.sent(send, input, &progress).await;
                        self.ended(sent, receiving.end()).await
                    }
                    Err(failure) => Err(failure),
                }
            }
        };
        self.result.bytes += progress.bytes();
        outcome
    }

    async fn transfer_here(
        &self,
        send: &ZfsSend,
        there: &str,
        options: &[String],
        progress: &stream::Progress,
    ) -> Result<(), Failure> {
        let (output, input) = tokio::io::duplex(PIPE_BYTES);
        let call = self.receive_call(there, options);
        let received = receive_from(
            &self.automation.serving,
            call,
            Box::new(input),
            &self.work,
            // Whoever sends is stopped, and what came before that is kept.
            stream::Progress::default(),
        );
        let sent = self.sent(send, output, progress);
        let (sent, received) = tokio::join!(sent, received);
        judged(sent, received.map(drop))
    }

    /// What a transfer to another host came to. Who was told to stop gives it a moment only: it may
    /// not answer at all.
    async fn ended(
        &self,
        sent: (Result<(), Failure>, bool),
        receiving: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let stopped = async {
            let told = self.or_stopped::<()>(std::future::pending()).await;
            tokio::time::sleep(STOPPED_MAX).await;
            told
        };
        let received = tokio::select! {
            received = receiving => received,
            stopped = stopped => stopped,
        };
        judged(sent, received)
    }

    /// Waits for something, or until it is told to stop.
    async fn or_stopped<T>(
        &self,
        awaited: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let stopped = async {
            while !self.work.is_canceled() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            outcome = awaited => outcome,
            () = stopped => Err(Self::canceled()),
        }
    }

    /// Sends until the end, or until it is told to stop; the output is closed either way. The
    /// second is whether the output was what failed.
    async fn sent(
        &self,
        send: &ZfsSend,
        output: impl tokio::io::AsyncWrite + Unpin + Send + 'static,
        progress: &stream::Progress,
    ) -> (Result<(), Failure>, bool) {
        let mut output = Limited::new(output, self.limit.clone());
        let sent = send_to(&self.automation.serving.pools, send, &mut output, progress);
        let sent = self.or_stopped(sent).await;
        // Who reads sees the end; one who takes nothing more sees the connection go.
        let closing = async {
            let closed = output.shutdown().await;
            closed.map_err(|error| Failure::new(FailureKind::Io, error.to_string()))
        };
        let closed = self.or_stopped(closing).await;
        let is_broken = output.is_broken() || closed.is_err();
        (sent, is_broken)
    }

    fn receive_call(&self, there: &str, options: &[String]) -> ZfsReceive {
        let (mut set, mut exclude) = (Settings::default(), Vec::new());
        for words in options.chunks_exact(2) {
            match (words[0].as_str(), words[1].split_once('=')) {
                ("-o", Some((name, value))) => {
                    set.insert(name.to_owned(), value.to_owned());
                }
                _ => exclude.push(words[1].clone()),
            }
        }
        ZfsReceive {
            target: there.to_owned(),
            naming: ReceiveNaming::Exact,
            resumable: true,
            no_mount: true,
            set,
            exclude,
            command: self.command(),
            ..ZfsReceive::default()
        }
    }
}

/// Whether something failed for want of room.
fn lacks_room<T>(outcome: &Result<T, Failure>) -> bool {
    matches!(outcome, Err(failure) if failure.kind == FailureKind::NoSpace)
}

fn short(name: &str) -> &str {
    let mut parts = name.splitn(2, ['@', '#']);
    parts.nth(1).unwrap_or(name)
}

fn listing(is_recursive: bool) -> ListOptions {
    verbs::zfs::everything(match is_recursive {
        true => None,
        false => Some(1),
    })
}

/// Puts datasets behind those that they are below or clones of. A clone that its origin is below is
/// sent whole.
fn in_order(sets: Vec<SourceSet>) -> Vec<SourceSet> {
    let named = sets.iter().enumerate();
    let place: HashMap<&str, usize> = named.map(|(at, set)| (set.name.as_str(), at)).collect();
    let needs: Vec<Vec<usize>> = sets
        .iter()
        .map(|set| {
            let origin = set.origin.as_ref();
            let origin = origin.and_then(|(name, _)| name.split('@').next());
            let parent = set.name.rsplit_once('/').map(|(parent, _)| parent);
            let needed = [parent, origin].into_iter().flatten();
            needed.filter_map(|name| place.get(name).copied()).collect()
        })
        .collect();
    let order = behind_what_they_need(&needs);
    let mut taken: Vec<_> = sets.into_iter().map(Some).collect();
    order
        .into_iter()
        .filter_map(|at| taken[at].take())
        .collect()
}

/// Options of the receive that makes a dataset.
fn options_of_new(source: &SourceSet) -> Vec<String> {
    let mut out = vec!["-o", "readonly=on"];
    let left_out: &[&str] = match source.is_volume {
        true => &[],
        false => {
            out.extend(["-o", "canmount=noauto"]);
            &LEFT_OUT_OF_FILESYSTEMS
        }
    };
    for name in LEFT_OUT_OF_ALL.iter().chain(left_out) {
        out.extend(["-x", name]);
    }
    // What is in the clear here is encrypted below an encrypted target, as anything made there; a
    // clone is what its origin is.
    if !source.is_encrypted && source.origin.is_none() {
        out.extend(["-x", "encryption"]);
    }
    out.into_iter().map(str::to_owned).collect()
}

/// The request for a series of streams.
fn request(source: &SourceSet, series: &Series) -> ZfsSend {
    let name = |at: usize| format!("{}@{}", source.name, source.snapshots[at].name);
    ZfsSend {
        snapshot: name(series.last),
        from: series.from.clone(),
        all_between: series.first < series.last,
        // Once they are there, they are the target's own.
        properties: series.is_new,
        large_blocks: true,
        embedded: !source.is_encrypted,
        compressed: true,
        // Never in the clear what is encrypted here.
        raw: source.is_encrypted,
        ..ZfsSend::default()
    }
}

/// What a transfer came to, from what its ends say: `sent` with whether its output failed.
fn judged(
    (sent, is_broken): (Result<(), Failure>, bool),
    received: Result<(), Failure>,
) -> Result<(), Failure> {
    let Err(sent) = sent else { return received };
    let Err(received) = received else {
        return Err(sent);
    };
    let is_cut_short = |failure: &Failure| {
        matches!(
            failure.refusal.as_deref(),
            Some(Refusal::Receive {
                why: ReceiveObstacle::CutShort,
                ..
            })
        )
    };
    // Who reads knows why it stopped to; who is cut short knows only that.
    match is_broken && sent.kind != FailureKind::Canceled && !is_cut_short(&received) {
        true => Err(received),
        false => Err(sent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, origin: Option<&str>) -> SourceSet {
        SourceSet {
            name: name.into(),
            is_volume: false,
            is_encrypted: false,
            origin: origin.map(|origin| (origin.to_owned(), 1)),
            snapshots: Vec::new(),
            bookmarks: Vec::new(),
        }
    }

    #[test]
    fn parents_and_origins_come_first() {
        let names = |sets: Vec<SourceSet>| -> Vec<String> {
            in_order(sets).into_iter().map(|set| set.name).collect()
        };
        let all = vec![
            set("t", None),
            set("t/a", Some("t/c/d@x")),
            set("t/a/b", None),
            set("t/c", Some("elsewhere@x")),
            set("t/c/d", Some("t/z@x")),
            set("t/z", None),
        ];
        let wanted = ["t", "t/c", "t/z", "t/c/d", "t/a", "t/a/b"];
        assert_eq!(names(all), wanted);
        // Neither can be first.
        let odd = vec![set("t", Some("t/a@x")), set("t/a", None)];
        assert_eq!(names(odd), ["t", "t/a"]);
    }

    #[test]
    fn a_replica_is_not_shared_in_its_sources_place() {
        for is_volume in [false, true] {
            let mut source = set("t", None);
            source.is_volume = is_volume;
            let words = options_of_new(&source).join(" ");
            for name in LEFT_OUT_OF_ALL {
                assert!(words.contains(&format!("-x {name}")), "{words}");
            }
            assert_eq!(words.contains("-x sharenfs"), !is_volume, "{words}");
        }
    }

    #[test]
    fn the_end_that_knows_why_is_believed() {
        let failure = |kind, text: &str| Failure::new(kind, text);
        let broken = || failure(FailureKind::Io, "broken pipe");
        let theirs = || failure(FailureKind::Exists, "modified");
        let told = |outcome: Result<(), Failure>| outcome.expect_err("a failure").message;
        assert!(judged((Ok(()), false), Ok(())).is_ok());
        assert_eq!(
            told(judged((Err(broken()), true), Err(theirs()))),
            "modified"
        );
        assert_eq!(told(judged((Ok(()), false), Err(theirs()))), "modified");
        let damaged = failure(FailureKind::Io, "damaged");
        assert_eq!(
            told(judged((Err(damaged), false), Err(theirs()))),
            "damaged"
        );
        let stopped = Run::canceled();
        assert_eq!(
            told(judged((Err(stopped), true), Err(theirs()))),
            Run::canceled().message
        );
    }
}
