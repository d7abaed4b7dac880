//! Replications: datasets whose snapshots are sent elsewhere, again and again (`millpond
//! replicate`). When they run is the business of [`crate::timetable`].
//!
//! | Module | What it is |
//! |---|---|
//! | [`kept`] | what is kept of each, and what it needs of snapshots |
//! | [`left`] | what those that were removed leave for the next one |
//! | [`names`] | how their snapshots and bookmarks are called; pure |
//! | [`plan`] | what is to be sent next of a dataset; pure |
//! | [`run`] | one run |
//! | [`ssh`] | another host as the target |
//! | [`tls`] | another Millpond as the target, by its API |
//! | [`limit`] | bytes in a second |

mod kept;
mod left;
mod limit;
pub(crate) mod names;
mod plan;
mod run;
mod ssh;
mod tls;

use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use api::{
    Alert, AlertFact, AlertRule, AlertSeverity, Empty, Failure, FailureKind, Job, JobKind,
    ReplicationChange, ReplicationCreate, ReplicationListReply, ReplicationPause,
    ReplicationRemove, ReplicationReport, ReplicationResult, ReplicationRun, ReplicationRunReply,
    ReplicationTarget, ReplicationWhat, Secret,
};

pub(crate) use kept::{Replication, Replications, all_stay, may_need_any, unmarked};
pub(crate) use left::LeftNotes;

use crate::Automation;
use crate::timetable::{Begun, Course, Entries, Entry, Kept, now_s, rule};
use service::jobs::Work;
use serving::mounts::is_at_or_below;

/// How much longer than its interval a replication may be without a run that worked, as a part of
/// it and within these bounds, before it is late: a run takes its time, and one that fails is tried
/// again.
const SLACK_PART: u64 = 2;
const SLACK_S: RangeInclusive<u64> = 3600..=24 * 3600;
/// How long after its start the server has to make up for what was missed, in seconds.
const MAKES_UP_WITHIN_S: u64 = 3600;

/// Runs replications when they are due, until the server stops.
pub(crate) async fn follow(automation: Arc<Automation>) {
    let begin = |name: &str| {
        if let Err(failure) = begin(&automation, name, false) {
            tracing::debug!("{failure}");
        }
    };
    automation.replications.follow(begin).await;
}

/// A snapshot of an earlier run that a run sends instead of a new one. One that failed is tried
/// again with the snapshot that it took, for as long as no other would have been taken.
fn pending_of(kept: &Kept<Replication>, tag: &str, now_s: u64) -> Option<String> {
    let taken = kept.own.pending.as_deref()?;
    let taken_s = names::taken_at(tag, taken)?;
    let every_s = kept.own.what.every_s.unwrap_or(u64::MAX);
    let is_fresh = taken_s <= now_s && now_s - taken_s < every_s;
    is_fresh.then(|| taken.to_owned())
}

/// Begins a run. One that was asked for takes a new snapshot in any case.
fn begin(automation: &Arc<Automation>, name: &str, is_asked_for: bool) -> Result<Job, Failure> {
    begin_as(automation, name, is_asked_for, |own| {
        let work = new_work(automation, &own.what.source);
        Arc::new(work)
    })
}

/// A job of a replication of that source.
fn new_work(automation: &Automation, source: &str) -> Work {
    let pool = source.split('/').next().map(str::to_owned);
    let jobs = &automation.serving.jobs;
    jobs.begin(JobKind::Replicate, pool, None, true)
}

/// [`begin`], as the job that `work` gives.
fn begin_as(
    automation: &Arc<Automation>,
    name: &str,
    is_asked_for: bool,
    work: impl FnOnce(&Replication) -> Arc<Work>,
) -> Result<Job, Failure> {
    let begun = automation.replications.begin(name, work)?;
    let job = begun.work.job();
    let tag = names::tag(name, &begun.kept.own.id);
    let pending = match is_asked_for {
        true => None,
        false => pending_of(&begun.kept, &tag, now_s()),
    };
    let automation = Arc::clone(automation);
    tokio::spawn(async move {
        let (name, own) = (&begun.kept.course.name, &begun.kept.own);
        let does = (&own.what, own.key.as_ref());
        let result = match run::Run::new(&automation, name, &tag, does, Arc::clone(&begun.work)) {
            // A run that panics has failed; the next one goes on.
            Ok(run) => tokio::spawn(run.run(pending)).await.ok(),
            Err(failure) => Some(run::refused(failure)),
        };
        end_run(&automation, &begun, result);
        begun.over();
    });
    Ok(job)
}

/// Notes what a run came to.
fn end_run(automation: &Automation, begun: &Begun<Replication>, result: Option<ReplicationResult>) {
    let failure = match &result {
        Some(result) => result.failure.clone(),
        None => {
            let name = &begun.kept.course.name;
            let message = format!("replication '{name}' broke off; see the server's log");
            Some(Failure::new(FailureKind::Other, message))
        }
    };
    let note = |own: &mut Replication| {
        own.pending = match (&failure, &result) {
            (Some(_), Some(result)) => result.snapshot.clone().or(own.pending.take()),
            (Some(_), None) => own.pending.take(),
            (None, _) => None,
        };
        if result.is_some() {
            own.last.clone_from(&result);
        }
    };
    automation
        .replications
        .end(begun, failure.as_ref(), false, note);
    begun.work.answer(match failure {
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

/// `millpond replicate --change`: its next run does otherwise.
pub fn change(automation: &Automation, call: &ReplicationChange) -> Result<Empty, Failure> {
    change_in(&automation.replications, call).map(|()| Empty {})
}

fn change_in(replications: &Replications, call: &ReplicationChange) -> Result<(), Failure> {
    let doing = format!("cannot change replication '{}'", call.name);
    check_numbers(&doing, call.every_s, call.limit_bytes)?;
    let mut entries = replications.lock();
    let entry = entries
        .get(&call.name)
        .ok_or_else(|| Replications::unknown(&call.name))?;
    entry.check_stays()?;
    let mut kept = entry.kept.clone();
    let what = &mut kept.own.what;
    what.recursive = call.recursive;
    what.every_s = call.every_s;
    what.keep = call.keep;
    what.limit_bytes = call.limit_bytes;
    if call.key.is_some() || call.fingerprint.is_some() {
        let ReplicationTarget::Tls {
            host, fingerprint, ..
        } = &mut what.target
        else {
            let message = format!("{doing}: its target takes no key, and has no certificate");
            return Err(Failure::new(FailureKind::Invalid, message));
        };
        if let Some(given) = &call.fingerprint {
            *fingerprint = Some(given.clone());
        }
        let host = host.clone();
        let key = call.key.clone().or(kept.own.key.take());
        check_tls(&doing, &host, fingerprint, key.as_ref())?;
        kept.own.key = key;
    }
    replications.put(&mut entries, kept, &doing)
}

/// Whether a target by TLS can be one; puts the fingerprint into the form that is compared.
fn check_tls(
    doing: &str,
    host: &str,
    fingerprint: &mut Option<String>,
    key: Option<&Secret>,
) -> Result<(), Failure> {
    let invalid = |why: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {why}"));
    if let Some(given) = fingerprint {
        let understood = tls::as_fingerprint(given);
        *given = understood.ok_or_else(|| {
            invalid(&format!(
                "'{given}' is no fingerprint: 64 hexadecimal digits, as 'millpond console' tells \
                 on the other side"
            ))
        })?;
    }
    let made = tls::Tls::new(host, fingerprint.as_deref(), key);
    made.map(drop).map_err(|failure| invalid(&failure.message))
}

/// `millpond replicate SOURCE TARGET`.
pub async fn create(
    automation: &Arc<Automation>,
    call: ReplicationCreate,
) -> Result<ReplicationRunReply, Failure> {
    let mut spec = call.spec;
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
            .map_err(|error| service::error::from_dataset(&doing, &error))?;
        if one.contains('@') {
            return Err(invalid(&format!(
                "'{one}' is a snapshot; name a filesystem or volume"
            )));
        }
    }
    check_numbers(&doing, spec.every_s, spec.limit_bytes)?;
    let open = automation.serving.pools.of_dataset(&spec.source)?;
    let failed = |error| service::error::from_dataset(&doing, &error);
    let dsl = open.pool.dsl();
    let found = dsl.directories().lookup(&spec.source).await;
    found.map_err(failed)?;
    // One that was forgotten goes on with its snapshots.
    let left = automation.left.of(&name, &spec.source);
    let bookmarks = dsl.bookmarks().list(&spec.source).await.map_err(failed)?;
    let ids = bookmarks.iter().filter_map(|bookmark| {
        let (_, short) = bookmark.name.split_once('#')?;
        let id = names::id_of_bookmark(&name, short)?;
        Some((bookmark.phys.creation_txg.get(), id))
    });
    let id = ids.max().map(|(_, id)| id);
    let id = id.or_else(|| left.as_ref().map(|left| left.id.clone()));
    let random = || RandomState::new().hash_one(&name);
    let id = id.unwrap_or_else(|| names::new_id(random()));
    if spec.key.is_some() && !matches!(spec.target, ReplicationTarget::Tls { .. }) {
        return Err(invalid("only a target by TLS takes a key"));
    }
    match &mut spec.target {
        ReplicationTarget::Local { dataset } => {
            automation.serving.pools.of_dataset(dataset)?;
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
        ReplicationTarget::Tls {
            host, fingerprint, ..
        } => check_tls(&doing, host, fingerprint, spec.key.as_ref())?,
    }
    let replications = &automation.replications;
    check_is_new(&replications.lock(), &doing, &name, &spec.target)?;
    let own = Replication {
        id,
        what: ReplicationWhat {
            source: spec.source,
            target: spec.target,
            recursive: spec.recursive,
            every_s: spec.every_s,
            keep: spec.keep,
            limit_bytes: spec.limit_bytes,
        },
        pending: None,
        last: None,
        unmarked: left.map(|left| left.unmarked).unwrap_or_default(),
        key: spec.key,
    };
    // Nothing is kept of one that cannot be: who asked mends what is wrong, and asks again.
    let work = Arc::new(new_work(automation, &own.what.source));
    let tag = names::tag(&name, &own.id);
    let does = (&own.what, own.key.as_ref());
    let checked = match run::Run::new(automation, &name, &tag, does, Arc::clone(&work)) {
        Ok(run) => run.check_target(&open).await,
        Err(failure) => Err(failure),
    };
    let kept = checked.and_then(|()| {
        let mut entries = replications.lock();
        check_is_new(&entries, &doing, &name, &own.what.target)?;
        let course = Course::new(&name, now_s());
        let source = own.what.source.clone();
        replications.put(&mut entries, Kept { course, own }, &doing)?;
        automation.left.taken_over(&name, &source);
        Ok(())
    });
    if let Err(failure) = kept {
        work.answer(Err(failure.clone()));
        return Err(failure);
    }
    let job = begin_as(automation, &name, true, |_| work)?;
    Ok(ReplicationRunReply { name, job })
}

/// Refuses a new replication where there is one by its name, or to its target.
fn check_is_new(
    entries: &Entries<Replication>,
    doing: &str,
    name: &str,
    target: &ReplicationTarget,
) -> Result<(), Failure> {
    if entries.contains_key(name) {
        let message = format!(
            "{doing}: there is a replication '{name}'; 'millpond replicate --run {name}' runs it, \
             '--remove {name}' forgets it, and --name gives this one another name"
        );
        return Err(Failure::new(FailureKind::Exists, message));
    }
    let mut others = entries.values();
    match others.find(|other| other.kept.own.what.target == *target) {
        None => Ok(()),
        Some(same) => {
            let name = &same.kept.course.name;
            let message = format!("{doing}: its target is that of replication '{name}'");
            Err(Failure::new(FailureKind::Invalid, message))
        }
    }
}

/// `millpond replicate --run`.
pub fn run_now(
    automation: &Arc<Automation>,
    call: &ReplicationRun,
) -> Result<ReplicationRunReply, Failure> {
    let job = begin(automation, &call.name, true)?;
    Ok(ReplicationRunReply {
        name: call.name.clone(),
        job,
    })
}

/// `millpond replicate --remove`.
pub async fn remove(automation: &Automation, call: &ReplicationRemove) -> Result<Empty, Failure> {
    let leave = |kept: &Kept<Replication>| automation.left.keep(kept);
    let removed = automation
        .replications
        .remove(&automation.serving.jobs, &call.name, leave);
    removed.await.map(|()| Empty {})
}

/// `millpond replicate --pause`, `--resume`.
pub async fn pause(automation: &Automation, call: &ReplicationPause) -> Result<Empty, Failure> {
    let (replications, jobs) = (&automation.replications, &automation.serving.jobs);
    let paused = replications.pause(jobs, &call.name, call.is_paused, |_| {});
    paused.await.map(|()| Empty {})
}

/// `millpond replicate --list`.
pub fn list(automation: &Automation) -> Result<ReplicationListReply, Failure> {
    let now_s = now_s();
    let report = |entry: &Entry<Replication>| {
        let Kept { course, own } = &entry.kept;
        ReplicationReport {
            name: course.name.clone(),
            what: own.what.clone(),
            is_paused: course.is_paused,
            job: entry.running.as_ref().map(|running| running.work.job()),
            next_s: match &entry.running {
                Some(_) => None,
                None => entry.kept.next_s(now_s),
            },
            last: own.last.clone(),
        }
    };
    let entries = automation.replications.known()?;
    Ok(ReplicationListReply {
        replications: entries.values().map(report).collect(),
    })
}

/// Whether a run that worked is overdue. What is sent for the first time takes as long as it takes,
/// as long as it does not fail.
fn is_overdue(kept: &Kept<Replication>, is_running: bool, now_s: u64) -> bool {
    let Kept { course, own } = kept;
    let Some(every_s) = own.what.every_s.filter(|_| !course.is_paused) else {
        return false;
    };
    if course.success_s.is_none() && is_running && course.failures == 0 {
        return false;
    }
    let slack_s = (every_s / SLACK_PART).clamp(*SLACK_S.start(), *SLACK_S.end());
    let since_s = course.success_s.unwrap_or(course.created_s);
    // After a clock that was ahead was set right, nobody knows.
    since_s.saturating_add(every_s).saturating_add(slack_s) < now_s
}

/// What is to be told of those that are late. `up` is for how long the server runs, by a clock that
/// nobody sets; `is_told` says whether it was told of one already.
pub fn late(automation: &Automation, up: Duration, is_told: impl Fn(&str) -> bool) -> Vec<Alert> {
    late_in(&automation.replications, now_s(), up.as_secs(), is_told)
}

fn late_in(
    replications: &Replications,
    now_s: u64,
    up_s: u64,
    is_told: impl Fn(&str) -> bool,
) -> Vec<Alert> {
    let is_up_for_long = up_s >= MAKES_UP_WITHIN_S;
    let entries = replications.lock();
    let late = entries.values().filter_map(|entry| {
        let Kept { course, own } = &entry.kept;
        let is_running = entry.running.is_some();
        let is_late = is_overdue(&entry.kept, is_running, now_s);
        if !is_late || !is_up_for_long && !is_told(&course.name) {
            return None;
        }
        let failure = own.last.as_ref().and_then(|last| last.failure.as_ref());
        let source = own.what.source.clone();
        Some(Alert {
            rule: AlertRule::Replication,
            severity: AlertSeverity::Warning,
            pool: source.split('/').next().unwrap_or_default().to_owned(),
            // Its pool may be away, and it is late all the same.
            pool_guid: api::Guid(0),
            device_guid: None,
            disk: None,
            fact: AlertFact::ReplicationLate {
                name: course.name.clone(),
                source,
                every_s: own.what.every_s.unwrap_or_default(),
                success_s: course.success_s,
                is_running,
                why: failure
                    .filter(|_| course.failures > 0)
                    .map(|failure| failure.message.clone()),
            },
        })
    });
    late.collect()
}

/// What is told of a replication.
#[derive(Clone, Copy, Debug)]
pub struct ReplicationFigures<'a> {
    /// Its name.
    pub name: &'a str,
    /// The dataset that is sent.
    pub source: &'a str,
    /// When the last run that worked ended, in seconds since 1970.
    pub success_s: Option<u64>,
    /// Runs that failed one after the other, up to now.
    pub failures: u32,
    /// Whether a run is under way.
    pub is_running: bool,
    /// Whether it rests.
    pub is_paused: bool,
    /// What the last run sent, in bytes.
    pub last_bytes: Option<u64>,
}

/// Tells the figures of all of them.
pub fn add_metrics(automation: &Automation, mut tell: impl FnMut(ReplicationFigures<'_>)) {
    for Entry { kept, running, .. } in automation.replications.lock().values() {
        tell(ReplicationFigures {
            name: &kept.course.name,
            source: &kept.own.what.source,
            success_s: kept.course.success_s,
            failures: kept.course.failures,
            is_running: running.is_some(),
            is_paused: kept.course.is_paused,
            last_bytes: kept.own.last.as_ref().map(|last| last.bytes),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn kept() -> Kept<Replication> {
        Kept {
            course: Course {
                begun_s: 1000,
                ended_s: 1010,
                ..Course::new("a", 1000)
            },
            own: Replication {
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
                pending: None,
                last: None,
                unmarked: BTreeMap::from([("tank/a".into(), BTreeSet::from([7]))]),
                key: None,
            },
        }
    }

    /// What earlier servers kept is understood: without IDs, and without what came later.
    #[test]
    fn those_of_old_are_understood() {
        let text = r#"[{"name": "a", "what": {"source": "tank/a", "target": {"local": {"dataset":
            "b/a"}}, "recursive": false, "every_s": 60, "keep": null, "limit_bytes": null},
            "is_paused": false, "created_s": 5, "begun_s": 18446744073709551615, "ended_s": 7,
            "failures": 2, "is_running": true, "pending": null, "last": null}]"#;
        let old: Vec<Kept<Replication>> = serde_json::from_str(text).unwrap();
        let old = &old[0];
        assert_eq!(names::tag(&old.course.name, &old.own.id), "a");
        assert_eq!((old.course.begun_s, old.course.failures), (u64::MAX, 2));
        assert!(old.course.is_running && old.course.success_s.is_none());
        let again = serde_json::to_string(&kept()).unwrap();
        let again: Kept<Replication> = serde_json::from_str(&again).unwrap();
        assert_eq!(again, kept());
    }

    /// Goal: what is noted of snapshots outlives its replication, over restarts, until one of the
    /// same name and source takes it over; and it is kept before the replication is forgotten.
    #[tokio::test]
    async fn what_one_noted_is_there_for_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let state = Arc::new(host::State::open(directory.path()).unwrap());
        let (replications, jobs) = (
            Replications::load(&state),
            service::jobs::Jobs::new(Arc::default()),
        );
        let left = LeftNotes::load(&state);
        let put = || {
            let mut entries = replications.lock();
            replications.put(&mut entries, kept(), "cannot keep it")
        };
        put().unwrap();
        let remove = async |left: &LeftNotes| {
            let leave = |kept: &Kept<Replication>| left.keep(kept);
            replications.remove(&jobs, "a", leave).await
        };
        remove(&left).await.unwrap();
        assert!(replications.lock().is_empty());
        let left = LeftNotes::load(&state);
        assert_eq!(left.guids(), [7]);
        assert_eq!(left.of("a", "tank/b"), None);
        assert_eq!(left.of("b", "tank/a"), None);
        let found = left.of("a", "tank/a").unwrap();
        assert_eq!(
            (found.id, found.unmarked),
            ("0123abcd".into(), kept().own.unmarked)
        );
        left.taken_over("a", "tank/a");
        assert_eq!(left.guids(), [0; 0]);
        assert_eq!(LeftNotes::load(&state).of("a", "tank/a"), None);
        // What is in the file is not understood.
        let path = directory.path().join("replications-removed.json");
        std::fs::write(&path, "[1,").unwrap();
        put().unwrap();
        let unread = LeftNotes::load(&state);
        assert!(unread.are_unknown() && unread.problem().is_some());
        // Any snapshot may be needed: none goes.
        let stay = |replications: &Replications, left: &LeftNotes| {
            let stay = all_stay(replications, left, "tank/a", &["s".to_owned()]);
            stay.map(|stay| stay.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(stay(&replications, &left), None);
        assert_eq!(stay(&replications, &unread), Some(vec!["tank/a@s".into()]));
        let other = tempfile::tempdir().unwrap();
        std::fs::write(other.path().join("replications.json"), "[1,").unwrap();
        let other = Arc::new(host::State::open(other.path()).unwrap());
        let lost = Replications::load(&other);
        assert_eq!(stay(&lost, &left), Some(vec!["tank/a@s".into()]));
        assert_eq!(remove(&unread).await.unwrap_err().kind, FailureKind::Io);
        let entries = replications.lock();
        assert!(entries["a"].check_stays().is_ok() && entries["a"].kept.course.is_paused);
        // It is still paused after the next start.
        let again = Replications::load(&state);
        assert!(again.lock()["a"].kept.course.is_paused);
    }

    #[test]
    fn a_snapshot_that_was_not_sent_is_sent_for_as_long_as_it_is_fresh() {
        let mut kept = kept();
        assert_eq!(pending_of(&kept, "a-0123abcd", 5000), None);
        let taken = names::snapshot_name("a-0123abcd", 5000);
        kept.own.pending = Some(taken.clone());
        let pending = |now_s| pending_of(&kept, "a-0123abcd", now_s);
        assert_eq!(pending(5000), Some(taken.clone()));
        assert_eq!(pending(5899), Some(taken));
        assert_eq!((pending(5900), pending(4999)), (None, None));
    }

    /// Goal: one that fails, or does nothing, is late after its interval and some slack; one that
    /// sends for the first time is not, nor one that rests or that runs on request. After a start
    /// there is time to make up for what was missed, unless it was told before.
    #[test]
    fn what_does_not_arrive_is_late() {
        let directory = tempfile::tempdir().unwrap();
        let state = Arc::new(host::State::open(directory.path()).unwrap());
        let replications = Replications::load(&state);
        let late = |change: &dyn Fn(&mut Kept<Replication>), now_s, up_s, is_told| {
            let mut kept = kept();
            kept.own.what.every_s = Some(8 * 3600);
            change(&mut kept);
            let mut entries = replications.lock();
            replications
                .put(&mut entries, kept, "cannot keep it")
                .unwrap();
            drop(entries);
            late_in(&replications, now_s, up_s, |name| name == "a" && is_told)
        };
        // Eight hours, and four of slack.
        let (hour, sent_s) = (3600, 100_000);
        let end_s = sent_s + 12 * hour;
        let sent = |kept: &mut Kept<Replication>| kept.course.success_s = Some(sent_s);
        assert_eq!(late(&sent, end_s, hour, false), []);
        let found = late(&sent, end_s + 1, hour, false);
        let [
            Alert {
                rule, fact, pool, ..
            },
        ] = &found[..]
        else {
            panic!("{found:?}");
        };
        assert_eq!((*rule, pool.as_str()), (AlertRule::Replication, "tank"));
        let wanted = AlertFact::ReplicationLate {
            name: "a".into(),
            source: "tank/a".into(),
            every_s: 8 * hour,
            success_s: Some(sent_s),
            is_running: false,
            why: None,
        };
        assert_eq!(*fact, wanted);
        let paused = |kept: &mut Kept<Replication>| kept.course.is_paused = true;
        assert_eq!(late(&paused, end_s * 2, hour, false), []);
        let on_request = |kept: &mut Kept<Replication>| kept.own.what.every_s = None;
        assert_eq!(late(&on_request, end_s * 2, hour, false), []);
        // Never sent: since it was made.
        let never = |_: &mut Kept<Replication>| ();
        assert_eq!(late(&never, 1000 + 12 * hour, hour, false), []);
        assert_eq!(late(&never, 1001 + 12 * hour, hour, false).len(), 1);
        // The server has just started.
        assert_eq!(late(&sent, end_s + hour, hour - 1, false), []);
        assert_eq!(late(&sent, end_s + hour, hour - 1, true).len(), 1);
        assert_eq!(late(&sent, end_s + hour, hour, false).len(), 1);

        let mut kept = kept();
        kept.own.what.every_s = Some(60);
        assert!(
            !is_overdue(&kept, true, 1_000_000),
            "the first one takes long"
        );
        kept.course.failures = 1;
        assert!(is_overdue(&kept, true, 1_000_000));
        kept.course.success_s = Some(1_000_000);
        assert!(!is_overdue(&kept, false, 1_003_660));
        assert!(is_overdue(&kept, false, 1_003_661));
        assert!(!is_overdue(&kept, false, 5000), "a clock that was set back");
        kept.own.what.every_s = Some(30 * 24 * hour);
        assert!(is_overdue(&kept, false, 1_000_001 + 31 * 24 * hour));
    }

    /// Goal: a change is kept, and what makes no sense changes nothing.
    #[test]
    fn one_is_changed_and_stays_so() {
        let directory = tempfile::tempdir().unwrap();
        let state = Arc::new(host::State::open(directory.path()).unwrap());
        let replications = Replications::load(&state);
        replications
            .put(&mut replications.lock(), kept(), "cannot keep it")
            .unwrap();
        let mut call = ReplicationChange {
            name: "a".into(),
            recursive: false,
            every_s: Some(60),
            keep: None,
            limit_bytes: Some(1 << 20),
            key: None,
            fingerprint: None,
        };
        change_in(&replications, &call).unwrap();
        let load = || {
            let again = Replications::load(&state);
            let entries = again.lock();
            entries["a"].kept.clone()
        };
        let mut expected = kept();
        expected.own.what = ReplicationWhat {
            recursive: false,
            every_s: Some(60),
            keep: None,
            limit_bytes: Some(1 << 20),
            ..kept().own.what
        };
        assert_eq!(load(), expected);
        call.every_s = Some(0);
        let refused = change_in(&replications, &call).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Invalid);
        call.every_s = Some(60);
        // It goes by ssh, which has its own keys.
        call.key = Some(Secret("mpk_a".into()));
        let refused = change_in(&replications, &call).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Invalid);
        call.key = None;
        call.name = "b".into();
        call.every_s = None;
        let refused = change_in(&replications, &call).unwrap_err();
        assert_eq!(refused.kind, FailureKind::NotFound);
        assert_eq!(load(), expected);
    }
}
