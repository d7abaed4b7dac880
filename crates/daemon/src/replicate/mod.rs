//! Replications: datasets whose snapshots are sent elsewhere, again and again (`millpond
//! replicate`).
//!
//! | Module | What it is |
//! |---|---|
//! | [`rule`] | when they run, how their snapshots are called, which of these stay; pure |
//! | [`plan`] | what is to be sent next of a dataset; pure |
//! | [`run`] | one run |
//! | [`ssh`] | another host as the target |
//! | [`limit`] | bytes in a second |
//!
//! `replications.json` in the state directory has all of them, with what their last runs came to.
//! It is replaced whole, as `pools.json` is. A run is on record there as begun before it does
//! anything, so that one which the server's end cut off goes on with the next start. What is there
//! and cannot be read is never overwritten.
//!
//! Locks: `table` is short, and never held across an await.

mod limit;
mod plan;
mod rule;
mod run;
mod ssh;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::{
    Empty, Failure, FailureKind, Job, JobKind, JobState, ReplicationChange, ReplicationCreate,
    ReplicationListReply, ReplicationPause, ReplicationRemove, ReplicationReport,
    ReplicationResult, ReplicationRun, ReplicationRunReply, ReplicationTarget, ReplicationWhat,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use crate::jobs::Work;
use crate::mounts::is_at_or_below;
use crate::service::Service;
use crate::state::State;
use rule::Schedule;

const FILE: &str = "replications.json";
/// How long nobody looks at the clock at most: it may jump.
const LOOK_S: u64 = 30;
/// How long runs may take to end when the server leaves.
const LAST_RUNS: Duration = Duration::from_secs(20);

fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A replication, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    name: String,
    /// What tells it from those of other servers by the same name; nothing in those of old.
    #[serde(default)]
    id: String,
    what: ReplicationWhat,
    is_paused: bool,
    created_s: u64,
    /// When its last run began, and ended.
    begun_s: u64,
    ended_s: u64,
    /// Runs that failed one after the other, up to now.
    failures: u32,
    /// A run has begun and not come to an end.
    is_running: bool,
    /// A snapshot that was taken and is not at the target.
    pending: Option<String>,
    last: Option<ReplicationResult>,
}

impl Kept {
    /// What the names of its snapshots and bookmarks say of it.
    fn tag(&self) -> String {
        rule::tag(&self.name, &self.id)
    }

    /// When it runs next by itself.
    fn next_s(&self, now_s: u64) -> Option<u64> {
        if self.is_paused {
            return None;
        }
        if self.is_running {
            return Some(now_s);
        }
        let every_s = self.what.every_s?;
        let schedule = Schedule {
            every_s,
            first_s: self.created_s,
            begun_s: self.begun_s,
            ended_s: self.ended_s,
            failures: self.failures,
        };
        Some(schedule.next_s(now_s))
    }
}

struct Running {
    work: Arc<Work>,
    ended: watch::Receiver<bool>,
}

struct Entry {
    kept: Kept,
    running: Option<Running>,
    /// It goes as soon as its run has ended.
    is_removed: bool,
}

impl Entry {
    fn new(kept: Kept) -> Self {
        Self {
            kept,
            running: None,
            is_removed: false,
        }
    }

    /// Refuses to do something with one that is going.
    fn check_stays(&self) -> Result<(), Failure> {
        if !self.is_removed {
            return Ok(());
        }
        let message = format!("replication '{}' is being removed", self.kept.name);
        Err(Failure::new(FailureKind::Busy, message))
    }
}

/// All replications.
pub(crate) struct Replications {
    state: Arc<State>,
    table: Mutex<BTreeMap<String, Entry>>,
    changed: Notify,
    is_stopping: AtomicBool,
    /// What was kept could not be read, and is not to be overwritten.
    is_unread: bool,
}

fn unknown(name: &str) -> Failure {
    let message =
        format!("there is no replication '{name}'; 'millpond replicate --list' lists them");
    Failure::new(FailureKind::NotFound, message)
}

impl Replications {
    /// Those that were kept.
    pub(crate) fn load(state: &Arc<State>) -> Self {
        let (kept, is_unread) = match load(state.directory()) {
            Ok(kept) => (kept, false),
            Err(error) => {
                tracing::error!(
                    "{FILE} could not be read: {error}; no replication runs, and none is kept, \
                     until the server starts anew and can read it"
                );
                (Vec::new(), true)
            }
        };
        let entries = kept
            .into_iter()
            .map(|kept| (kept.name.clone(), Entry::new(kept)));
        Self {
            state: Arc::clone(state),
            table: Mutex::new(entries.collect()),
            changed: Notify::new(),
            is_stopping: AtomicBool::new(false),
            is_unread,
        }
    }

    /// Keeps all of them as they are now.
    fn save(&self, table: &BTreeMap<String, Entry>) -> std::io::Result<()> {
        if self.is_unread {
            return Err(std::io::Error::other(
                "what is there could not be read as the server started, and stays",
            ));
        }
        let kept: Vec<&Kept> = table.values().map(|entry| &entry.kept).collect();
        self.state.replace(FILE, &kept)
    }

    fn save_or_warn(&self, table: &BTreeMap<String, Entry>) {
        if let Err(error) = self.save(table) {
            tracing::error!("{FILE} could not be written: {error}; see to the state directory");
        }
    }

    /// Has one do otherwise than until now, which its next run does.
    fn change(&self, call: &ReplicationChange) -> Result<(), Failure> {
        let doing = format!("cannot change replication '{}'", call.name);
        check_numbers(&doing, call.every_s, call.limit_bytes)?;
        let mut table = self.table.lock();
        let entry = table
            .get_mut(&call.name)
            .ok_or_else(|| unknown(&call.name))?;
        entry.check_stays()?;
        let before = entry.kept.what.clone();
        let what = &mut entry.kept.what;
        what.recursive = call.recursive;
        what.every_s = call.every_s;
        what.keep = call.keep;
        what.limit_bytes = call.limit_bytes;
        self.save(&table).map_err(|error| {
            if let Some(entry) = table.get_mut(&call.name) {
                entry.kept.what = before;
            }
            let message = format!("{doing}: {FILE} could not be written: {error}");
            Failure::new(FailureKind::Io, message)
        })
    }

    /// Stops all runs; they go on with the next start.
    pub(crate) async fn stop(&self, jobs: &crate::jobs::Jobs) {
        self.is_stopping.store(true, Ordering::Release);
        self.changed.notify_one();
        let running: Vec<_> = {
            let table = self.table.lock();
            let running = table.values().filter_map(|entry| entry.running.as_ref());
            running
                .map(|running| (running.work.id(), running.ended.clone()))
                .collect()
        };
        let all = async {
            for (id, _) in &running {
                // It may have ended by itself.
                let _ = jobs.cancel(*id);
            }
            for (_, mut ended) in running {
                let _ = ended.wait_for(|ended| *ended).await;
            }
        };
        if tokio::time::timeout(LAST_RUNS, all).await.is_err() {
            tracing::warn!("replications are still under way; leaving");
        }
    }

    /// Those that are due, and when to look again.
    fn due(&self, now_s: u64) -> (Vec<String>, u64) {
        let mut table = self.table.lock();
        let (mut due, mut again_s) = (Vec::new(), now_s + LOOK_S);
        let waiting = table.values_mut().filter(|entry| entry.running.is_none());
        for entry in waiting {
            // After a clock that was ahead was set right, time counts from when that is noticed:
            // from a moment to come nothing would ever be due.
            let kept = &mut entry.kept;
            kept.begun_s = kept.begun_s.min(now_s);
            kept.ended_s = kept.ended_s.min(now_s);
            match entry.kept.next_s(now_s) {
                Some(next_s) if next_s <= now_s => due.push(entry.kept.name.clone()),
                Some(next_s) => again_s = again_s.min(next_s),
                None => {}
            }
        }
        (due, again_s)
    }
}

/// Reads what was kept. A file that makes no sense is put aside.
fn load(directory: &std::path::Path) -> std::io::Result<Vec<Kept>> {
    let path = directory.join(FILE);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    match serde_json::from_slice(&text) {
        Ok(kept) => Ok(kept),
        Err(error) => {
            let aside = directory.join(format!("{FILE}.damaged"));
            let moved = std::fs::rename(&path, &aside);
            tracing::error!(
                "{} is damaged ({error}) and was renamed to {} ({moved:?}); make the replications \
                 anew",
                path.display(),
                aside.display()
            );
            moved.map(|()| Vec::new())
        }
    }
}

/// Runs replications when they are due, until the server stops.
pub(crate) async fn schedule(service: Arc<Service>) {
    let replications = &service.replications;
    while !replications.is_stopping.load(Ordering::Acquire) {
        let now_s = now_s();
        let (due, again_s) = replications.due(now_s);
        for name in &due {
            if let Err(failure) = begin(&service, name, false) {
                tracing::debug!("{failure}");
            }
        }
        let pause = Duration::from_secs(again_s.saturating_sub(now_s).max(1));
        tokio::select! {
            () = replications.changed.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Begins a run. One that was asked for takes a new snapshot in any case.
fn begin(service: &Arc<Service>, name: &str, is_asked_for: bool) -> Result<Job, Failure> {
    let replications = &service.replications;
    let mut table = replications.table.lock();
    if replications.is_stopping.load(Ordering::Acquire) {
        let message = format!("cannot run replication '{name}': the server is stopping");
        return Err(Failure::new(FailureKind::Busy, message));
    }
    let entry = table.get_mut(name).ok_or_else(|| unknown(name))?;
    entry.check_stays()?;
    if entry.running.is_some() {
        let message = format!("replication '{name}' runs already; wait for its end");
        return Err(Failure::new(FailureKind::Busy, message));
    }
    let now_s = now_s();
    let (what, tag) = (entry.kept.what.clone(), entry.kept.tag());
    // One that failed is tried again with the snapshot that it took, for as long as no other would
    // have been taken.
    let taken_s = entry.kept.pending.as_deref();
    let taken_s = taken_s.and_then(|pending| rule::taken_at(&tag, pending));
    let is_fresh = taken_s.is_some_and(|taken_s| {
        let every_s = what.every_s.unwrap_or(u64::MAX);
        taken_s <= now_s && now_s - taken_s < every_s
    });
    let pending = entry.kept.pending.clone();
    let pending = pending.filter(|_| is_fresh && !is_asked_for);
    let pool = what.source.split('/').next().map(str::to_owned);
    let work = service.jobs.begin(JobKind::Replicate, pool, None, true);
    let work = Arc::new(work);
    let job = work.job();
    let (end, ended) = watch::channel(false);
    entry.kept.is_running = true;
    entry.kept.begun_s = now_s;
    entry.running = Some(Running {
        work: Arc::clone(&work),
        ended,
    });
    replications.save_or_warn(&table);
    drop(table);
    let (service, name) = (Arc::clone(service), name.to_owned());
    tokio::spawn(async move {
        let run = run::Run::new(&service, &name, &tag, &what, Arc::clone(&work));
        // A run that panics has failed; the next one goes on.
        let result = tokio::spawn(run.run(pending)).await;
        end_run(&service, &name, &work, result.ok());
        end.send_replace(true);
    });
    Ok(job)
}

/// Notes what a run came to.
fn end_run(service: &Service, name: &str, work: &Work, result: Option<ReplicationResult>) {
    let replications = &service.replications;
    let failure = match &result {
        Some(result) => result.failure.clone(),
        None => {
            let message = format!("replication '{name}' broke off; see the server's log");
            Some(Failure::new(FailureKind::Other, message))
        }
    };
    if let Some(failure) = &failure {
        tracing::warn!("replication '{name}': {failure}");
    }
    {
        let mut table = replications.table.lock();
        if let Some(entry) = table.get_mut(name) {
            entry.running = None;
            let kept = &mut entry.kept;
            let is_canceled = result
                .as_ref()
                .is_some_and(|result| result.state == JobState::Canceled);
            // What the end of the server cuts off goes on when it comes back; so does what rests.
            let is_stopping = replications.is_stopping.load(Ordering::Acquire);
            kept.is_running = is_canceled && (is_stopping || kept.is_paused);
            kept.ended_s = now_s();
            kept.failures = match &failure {
                Some(_) if !is_canceled => kept.failures.saturating_add(1),
                _ => 0,
            };
            kept.pending = match (&failure, &result) {
                (Some(_), Some(result)) => result.snapshot.clone().or(kept.pending.take()),
                (Some(_), None) => kept.pending.take(),
                (None, _) => None,
            };
            if result.is_some() {
                kept.last = result.clone();
            }
            replications.save_or_warn(&table);
        }
    }
    replications.changed.notify_one();
    work.answer(match failure {
        Some(failure) => Err(failure),
        None => serde_json::to_value(&result)
            .map_err(|error| Failure::new(FailureKind::Other, error.to_string())),
    });
}

fn check_numbers(
    doing: &str,
    every_s: Option<u64>,
    limit_bytes: Option<u64>,
) -> Result<(), Failure> {
    if every_s != Some(0) && limit_bytes != Some(0) {
        return Ok(());
    }
    let message = format!("{doing}: an interval or limit of nothing makes no sense");
    Err(Failure::new(FailureKind::Invalid, message))
}

/// `millpond replicate --change`.
pub(crate) fn change(service: &Service, call: &ReplicationChange) -> Result<Empty, Failure> {
    service.replications.change(call)?;
    service.replications.changed.notify_one();
    Ok(Empty {})
}

/// `millpond replicate SOURCE TARGET`.
pub(crate) async fn create(
    service: &Arc<Service>,
    call: ReplicationCreate,
) -> Result<ReplicationRunReply, Failure> {
    let spec = call.spec;
    let doing = format!("cannot replicate '{}'", spec.source);
    let invalid = |why: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {why}"));
    let name = match &spec.name {
        Some(name) => name.clone(),
        None => rule::name_of(&spec.source),
    };
    if !rule::is_name(&name) {
        return Err(invalid(&format!(
            "the name of a replication has letters, digits, '_', '-' and '.', {} at most",
            rule::NAME_MAX
        )));
    }
    let dataset = spec.target.dataset();
    for one in [spec.source.as_str(), dataset] {
        dataset::name::check_name(one)
            .map_err(|error| crate::error::from_dataset(&doing, &error))?;
        if one.contains('@') {
            return Err(invalid(&format!(
                "'{one}' is a snapshot; name a filesystem or volume"
            )));
        }
    }
    check_numbers(&doing, spec.every_s, spec.limit_bytes)?;
    let open = service.pools.of_dataset(&spec.source)?;
    let failed = |error| crate::error::from_dataset(&doing, &error);
    let dsl = open.pool.dsl();
    let found = dsl.directories().lookup(&spec.source).await;
    found.map_err(failed)?;
    // One that was forgotten goes on with its snapshots.
    let bookmarks = dsl.bookmarks().list(&spec.source).await.map_err(failed)?;
    let ids = bookmarks.iter().filter_map(|bookmark| {
        let (_, short) = bookmark.name.split_once('#')?;
        let id = rule::id_of_bookmark(&name, short)?;
        Some((bookmark.phys.creation_txg.get(), id))
    });
    let id = ids.max().map(|(_, id)| id);
    let random = || RandomState::new().hash_one(&name);
    let id = id.unwrap_or_else(|| rule::new_id(random()));
    match &spec.target {
        ReplicationTarget::Local { dataset } => {
            service.pools.of_dataset(dataset)?;
            if is_at_or_below(dataset, &spec.source) || is_at_or_below(&spec.source, dataset) {
                return Err(invalid(&format!(
                    "'{dataset}' and it are one below the other; name a target beside it"
                )));
            }
        }
        ReplicationTarget::Ssh { host, command, .. } => {
            if !ssh::is_host(host) {
                return Err(invalid(&format!("'{host}' is no USER@HOST")));
            }
            if command.trim().is_empty() {
                return Err(invalid("the command for the other side is empty"));
            }
        }
    }
    let replications = &service.replications;
    {
        let mut table = replications.table.lock();
        if table.contains_key(&name) {
            let message = format!(
                "{doing}: there is a replication '{name}'; 'millpond replicate --run {name}' runs \
                 it, '--remove {name}' forgets it, and --name gives this one another name"
            );
            return Err(Failure::new(FailureKind::Exists, message));
        }
        let mut others = table.values();
        let same = others.find(|other| other.kept.what.target == spec.target);
        if let Some(same) = same {
            return Err(invalid(&format!(
                "its target is that of replication '{}'",
                same.kept.name
            )));
        }
        let kept = Kept {
            name: name.clone(),
            id,
            what: ReplicationWhat {
                source: spec.source,
                target: spec.target,
                recursive: spec.recursive,
                every_s: spec.every_s,
                keep: spec.keep,
                limit_bytes: spec.limit_bytes,
            },
            is_paused: false,
            created_s: now_s(),
            begun_s: 0,
            ended_s: 0,
            failures: 0,
            is_running: false,
            pending: None,
            last: None,
        };
        table.insert(name.clone(), Entry::new(kept));
        if let Err(error) = replications.save(&table) {
            table.remove(&name);
            let message = format!("{doing}: {FILE} could not be written: {error}");
            return Err(Failure::new(FailureKind::Io, message));
        }
    }
    let job = begin(service, &name, true)?;
    Ok(ReplicationRunReply { name, job })
}

/// `millpond replicate --run`.
pub(crate) fn run_now(
    service: &Arc<Service>,
    call: &ReplicationRun,
) -> Result<ReplicationRunReply, Failure> {
    let job = begin(service, &call.name, true)?;
    Ok(ReplicationRunReply {
        name: call.name.clone(),
        job,
    })
}

/// Stops a run, and waits for its end.
async fn stop_run(service: &Service, running: Option<Running>) {
    let Some(mut running) = running else { return };
    // It may have ended by itself.
    let _ = service.jobs.cancel(running.work.id());
    let _ = running.ended.wait_for(|ended| *ended).await;
}

/// `millpond replicate --remove`.
pub(crate) async fn remove(service: &Service, call: &ReplicationRemove) -> Result<Empty, Failure> {
    let name = &call.name;
    let replications = &service.replications;
    let running = {
        let mut table = replications.table.lock();
        let entry = table.get_mut(name).ok_or_else(|| unknown(name))?;
        // Nothing begins it anew.
        entry.kept.is_paused = true;
        entry.is_removed = true;
        entry.running.as_ref().map(|running| Running {
            work: Arc::clone(&running.work),
            ended: running.ended.clone(),
        })
    };
    stop_run(service, running).await;
    let mut table = replications.table.lock();
    // Somebody else may have removed it in the meantime, and another one has its name.
    if table.get(name).is_some_and(|entry| entry.is_removed) {
        table.remove(name);
    }
    replications.save(&table).map_err(|error| {
        let message = format!(
            "{FILE} could not be written: {error}; it comes back at the next \
             start"
        );
        Failure::new(FailureKind::Io, message)
    })?;
    Ok(Empty {})
}

/// `millpond replicate --pause`, `--resume`.
pub(crate) async fn pause(service: &Service, call: &ReplicationPause) -> Result<Empty, Failure> {
    let replications = &service.replications;
    let running = {
        let mut table = replications.table.lock();
        let entry = table
            .get_mut(&call.name)
            .ok_or_else(|| unknown(&call.name))?;
        entry.check_stays()?;
        entry.kept.is_paused = call.is_paused;
        let running = entry.running.as_ref().filter(|_| call.is_paused);
        let running = running.map(|running| Running {
            work: Arc::clone(&running.work),
            ended: running.ended.clone(),
        });
        replications.save_or_warn(&table);
        running
    };
    stop_run(service, running).await;
    replications.changed.notify_one();
    Ok(Empty {})
}

/// `millpond replicate --list`.
pub(crate) fn list(service: &Service) -> ReplicationListReply {
    let now_s = now_s();
    let table = service.replications.table.lock();
    let report = |entry: &Entry| ReplicationReport {
        name: entry.kept.name.clone(),
        what: entry.kept.what.clone(),
        is_paused: entry.kept.is_paused,
        job: entry.running.as_ref().map(|running| running.work.job()),
        next_s: match &entry.running {
            Some(_) => None,
            None => entry.kept.next_s(now_s),
        },
        last: entry.kept.last.clone(),
    };
    ReplicationListReply {
        replications: table.values().map(report).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        Kept {
            name: "a".into(),
            id: "0123abcd".into(),
            what: ReplicationWhat {
                source: "tank/a".into(),
                target: ReplicationTarget::Ssh {
                    host: "root@backup".into(),
                    dataset: "pool/a".into(),
                    command: "zfs".into(),
                },
                recursive: true,
                every_s: Some(900),
                keep: Some(api::Keep::default()),
                limit_bytes: None,
            },
            is_paused: false,
            created_s: 1000,
            begun_s: 1000,
            ended_s: 1010,
            failures: 0,
            is_running: false,
            pending: None,
            last: None,
        }
    }

    #[test]
    fn they_outlive_the_server_and_damage_is_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let state = Arc::new(State::open(directory.path()).unwrap());
        let replications = Replications::load(&state);
        let insert = |kept| {
            replications
                .table
                .lock()
                .insert("a".into(), Entry::new(kept))
        };
        insert(kept());
        replications.save(&replications.table.lock()).unwrap();
        assert_eq!(load(directory.path()).unwrap(), [kept()]);
        let text = std::fs::read_to_string(directory.path().join(FILE)).unwrap();
        std::fs::write(directory.path().join(FILE), &text[..text.len() / 2]).unwrap();
        assert_eq!(load(directory.path()).unwrap(), []);
        let aside = directory.path().join(format!("{FILE}.damaged"));
        assert_eq!(
            std::fs::read_to_string(aside).unwrap(),
            text[..text.len() / 2]
        );
    }

    #[test]
    fn what_cannot_be_read_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let state = Arc::new(State::open(directory.path()).unwrap());
        let path = directory.path().join(FILE);
        std::fs::create_dir(&path).unwrap();
        let replications = Replications::load(&state);
        // It can be read again.
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "[]").unwrap();
        let refused = replications.save(&replications.table.lock()).unwrap_err();
        assert!(refused.to_string().contains("stays"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[]");
    }

    #[test]
    fn those_of_old_have_no_id() {
        let mut old = serde_json::to_value(kept()).unwrap();
        old.as_object_mut().unwrap().remove("id");
        let old: Kept = serde_json::from_value(old).unwrap();
        assert_eq!((old.tag(), kept().tag()), ("a".into(), "a-0123abcd".into()));
    }

    /// Goal: once a clock that was ahead is set right, runs are as far apart as ever.
    #[test]
    fn a_clock_that_was_ahead_holds_nothing_up() {
        let directory = tempfile::tempdir().unwrap();
        let state = Arc::new(State::open(directory.path()).unwrap());
        for failures in [0, 3] {
            let replications = Replications::load(&state);
            let ahead = Kept {
                begun_s: 9_000_000,
                ended_s: 9_000_010,
                failures,
                ..kept()
            };
            replications
                .table
                .lock()
                .insert("a".into(), Entry::new(ahead));
            assert_eq!(replications.due(1500).0, [""; 0]);
            let (due, _) = (1501..=1500 + 900)
                .map(|now_s| replications.due(now_s))
                .find(|(due, _)| !due.is_empty())
                .expect("it is due");
            assert_eq!(due, ["a"]);
        }
    }

    /// Goal: a change is kept, and what makes no sense changes nothing.
    #[test]
    fn one_is_changed_and_stays_so() {
        let directory = tempfile::tempdir().unwrap();
        let state = Arc::new(State::open(directory.path()).unwrap());
        let replications = Replications::load(&state);
        let entry = Entry::new(kept());
        replications.table.lock().insert("a".into(), entry);
        let mut call = ReplicationChange {
            name: "a".into(),
            recursive: false,
            every_s: Some(60),
            keep: None,
            limit_bytes: Some(1 << 20),
        };
        replications.change(&call).unwrap();
        let there = load(directory.path()).unwrap().remove(0);
        let expected = ReplicationWhat {
            recursive: false,
            every_s: Some(60),
            keep: None,
            limit_bytes: Some(1 << 20),
            ..kept().what
        };
        assert_eq!(there.what, expected);
        assert_eq!((there.id, there.begun_s), (kept().id, kept().begun_s));
        call.every_s = Some(0);
        let refused = replications.change(&call).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Invalid);
        call.name = "b".into();
        call.every_s = None;
        let refused = replications.change(&call).unwrap_err();
        assert_eq!(refused.kind, FailureKind::NotFound);
        assert_eq!(load(directory.path()).unwrap()[0].what, expected);
    }

    #[test]
    fn what_is_being_removed_is_left_alone() {
        let mut entry = Entry::new(kept());
        assert!(entry.check_stays().is_ok());
        entry.is_removed = true;
        let refused = entry.check_stays().unwrap_err();
        assert_eq!(refused.kind, FailureKind::Busy);
    }

    #[test]
    fn what_was_cut_off_is_due_and_what_rests_is_not() {
        let whole = kept();
        assert_eq!(whole.next_s(1500), Some(1900));
        let cut_off = Kept {
            is_running: true,
            ..kept()
        };
        assert_eq!(cut_off.next_s(1500), Some(1500));
        let rests = Kept {
            is_paused: true,
            ..cut_off
        };
        assert_eq!(rests.next_s(1500), None);
        let mut asked_for = kept();
        asked_for.what.every_s = None;
        asked_for.failures = 3;
        assert_eq!(asked_for.next_s(1_000_000), None);
    }
}
