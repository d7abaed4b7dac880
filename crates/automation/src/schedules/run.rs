//! One run of a schedule.
//!
//! Snapshots are called `auto-NAME-2026-11-25-1200`, by the time of UTC, so that they sort. Each
//! has the property `millpond:schedule` with the schedule's name and the GUID of its target, which
//! stays the same through renames and `zpool reguid`, and which no copy has. So one that came in a
//! stream, which another schedule of the same name took, is never taken for an own one; neither is
//! what a person called so.
//!
//! # What goes, and when
//! Once a snapshot is taken, own ones go that the rule does not keep ([`doomed`]). Where it cannot
//! be taken for want of room (the pool is full, a reservation or a limit is in the way), own ones
//! go before it, and it is tried again: else a full pool would stay full for ever. Those are the
//! ones that would go right after it, and no others ([`doomed_before`]). So:
//!
//! - The newest of each dataset stays, by the time in its name and by the order of the pool (a
//!   clock may have been wrong): one copy at least, whether or not the new one comes to be.
//! - A run that fails again and again, each at a later time, takes one of each class of the rule in
//!   all, and no more: classes count snapshots that are there, not time that has passed.
//! - What is held, has a clone or is in use stays, as always. So does what a replication needs: the
//!   last snapshot that both sides have and those under way, by their bookmarks, or by the note
//!   that there can be none (in a full pool there may be no room for a bookmark). Of a dataset that
//!   a replication has sent and of which there is neither, nobody knows what is needed: nothing
//!   goes before the new one is taken.
//! - Where nobody can read which replications there are, or what removed ones have left, nothing
//!   goes at all, and the result says so.
//! - Datasets of other schedules, and what people took, are not touched, though they fill the pool.
//!
//! A crash in between leaves less of what would go anyway.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::{
    ActivityAction, ActivityObstacle, Failure, FailureKind, JobState, Keep, ScheduleLeft,
    ScheduleObstacle, ScheduleResult, ScheduleTask, ScheduleWhat, ScrubAction, SelfTestKind,
    Settings, ZpoolScrub, ZpoolTrim,
};
use dataset::{DatasetError, PropertyChange, PropertySource, PropertyValue};

use super::{hours, pool_of};
use crate::Automation;
use crate::SelfTests;
use crate::replicate::names::guid_of_bookmark;
use crate::replicate::{all_stay, may_need_any, unmarked};
use crate::timetable::rule::{self, moment, of_moment};
use crate::timetable::{destroy_snapshots, now_s, take_snapshot};
use service::error::from_dataset;
use service::jobs::Work;
use service::pools::OpenPool;

/// What names of snapshots begin with.
const PREFIX: &str = "auto-";
/// The moment in them, and how it is told where another snapshot of the same minute is there.
const MINUTE: &str = "%Y-%m-%d-%H%M";
const SECOND: &str = "%Y-%m-%d-%H%M%S";
/// How many snapshots with a mark of once get one of today in a run: each takes a moment.
const MARKED_ANEW_MAX: usize = 100;
/// The property of snapshots that says which schedule took them.
const PROPERTY: &str = "millpond:schedule";
/// How long it may take, in seconds, until what was destroyed has come free.
const FREED_WITHIN_S: u64 = 30;
/// How many names are tried for a snapshot.
const NAMES_MAX: u64 = 20;
/// Of how many snapshots it is told that they could not be destroyed, and of how many disks that
/// they did not begin a test.
const LEFT_MAX: usize = 10;

/// What is in the way of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It comes after this.
    Waits(ScheduleObstacle),
    /// What it is to do is under way, or somebody else's business.
    Done(ScheduleObstacle),
}

/// What is in the way of a run now.
pub(super) fn obstacle(automation: &Automation, what: &ScheduleWhat) -> Option<Obstacle> {
    use ScheduleObstacle::{NotImported, OutsideHours, Resilvering, Suspended, Testing};
    let is_test = match what.task {
        ScheduleTask::SmartShort | ScheduleTask::SmartLong => true,
        ScheduleTask::Scrub | ScheduleTask::Trim | ScheduleTask::Snapshot => false,
    };
    if is_test && automation.disks.is_testing(&what.target) {
        return Some(Obstacle::Waits(Testing));
    }
    if is_test && what.target.is_empty() {
        return None;
    }
    let Ok(open) = automation.serving.pools.get(pool_of(&what.target)) else {
        return Some(Obstacle::Waits(NotImported));
    };
    if open.pool.suspended().is_some() {
        return Some(Obstacle::Waits(Suspended));
    }
    if what.task == ScheduleTask::Scrub && !hours::are_open(what.hours) {
        return Some(Obstacle::Waits(OutsideHours));
    }
    if is_test {
        let is_resilvering = open.pool.scans().is_rebuilding()
            || open.pool.scans().is_resilver_due()
            || open.pool.scans().scrub_status().is_some_and(|scan| {
                scan.state == pool::ScanState::Scanning
                    && scan.function == pool::ScanFunction::Resilver
            });
        return is_resilvering.then_some(Obstacle::Waits(Resilvering));
    }
    if what.task != ScheduleTask::Scrub {
        return None;
    }
    let scans = open.pool.scans();
    let scan = scans.scrub_status();
    let scan = scan.filter(|scan| scan.state == pool::ScanState::Scanning);
    let errors = scans.error_scrub();
    let errors = errors.filter(|at| at.state == pool::ScanState::Scanning);
    in_the_way_of_a_scrub(
        scan.map(|scan| (scan.function, scan.pause_time_s)),
        scans.is_rebuilding() || scans.is_resilver_due(),
        errors.map(|at| at.pause_time_s),
    )
}

/// What is in the way of a scrub: `scan` is what is under way, and when it was paused (0: it is
/// not); `errors` is that of a scrub of the error log.
fn in_the_way_of_a_scrub(
    scan: Option<(pool::ScanFunction, u64)>,
    resilvers: bool,
    errors: Option<u64>,
) -> Option<Obstacle> {
    use ScheduleObstacle::{Resilvering, Scrubbing};
    match scan {
        Some((pool::ScanFunction::Resilver, _)) => return Some(Obstacle::Waits(Resilvering)),
        Some((pool::ScanFunction::Scrub, 0)) => return Some(Obstacle::Done(Scrubbing)),
        // 'zpool scrub' goes on with one that is paused, whoever asks (`dsl_scan`,
        // module/zfs/dsl_scan.c): else nothing would be scrubbed for as long as it is forgotten.
        Some((pool::ScanFunction::Scrub, _)) | None => {}
    }
    if resilvers {
        return Some(Obstacle::Waits(Resilvering));
    }
    // A scrub of the error log is over soon. In the way of one that is paused, the run fails, and
    // says so.
    (errors == Some(0)).then_some(Obstacle::Waits(Scrubbing))
}

/// Names for a snapshot of this moment: the minute, then seconds. It comes after `newest`, as it
/// would otherwise be taken for an older one and might be destroyed at once: so there is no minute
/// where that is of the same, and seconds begin after it. One that is of a time to come by more
/// than a minute was taken by a clock that was wrong, and counts for nothing.
fn names(schedule: &str, at_s: u64, newest: Option<u64>) -> impl Iterator<Item = String> {
    let name = move |form: &str, at_s: u64| format!("{PREFIX}{schedule}-{}", moment(form, at_s));
    let newest = newest.filter(|newest| *newest < at_s + 60);
    let minute_s = at_s - at_s % 60;
    let minute = newest.is_none_or(|newest| newest < minute_s);
    let minute = minute.then(|| name(MINUTE, at_s));
    let from_s = newest.map_or(at_s, |newest| at_s.max(newest + 1));
    let seconds = (0..NAMES_MAX).map(move |later| name(SECOND, from_s + later));
    minute.into_iter().chain(seconds)
}

/// When a schedule took a snapshot, by its name after the `@`; nothing where it is called
/// otherwise.
fn taken_at(schedule: &str, snapshot: &str) -> Option<u64> {
    let rest = snapshot.strip_prefix(PREFIX)?.strip_prefix(schedule)?;
    let rest = rest.strip_prefix('-')?;
    of_moment(MINUTE, rest).or_else(|| of_moment(SECOND, rest))
}

/// What a schedule's snapshots are marked with.
struct Marks {
    /// The schedule's name and the GUID of its target.
    today: String,
    /// The schedule's name, the GUID of its pool and the target's number there: what was taken
    /// before the other was.
    once: String,
}

/// A snapshot that the schedule took.
#[derive(Clone, Debug)]
struct Own {
    /// After the `@`.
    name: String,
    guid: u64,
    txg: u64,
    at_s: u64,
    is_held: bool,
}

/// What replications need of a dataset's snapshots.
struct Needed {
    /// Those that it is known of, by their GUIDs.
    guids: HashSet<u64>,
    /// Whether there is a replication of which nothing is known.
    may_be_any: bool,
}

/// Those that go: what the rule does not keep, but for what is held, what a replication needs, and
/// the one that was taken just now: by a clock that was ahead, an older one may look newer.
fn doomed(all: &[Own], keep: &Keep, needed: &HashSet<u64>, taken: Option<&str>) -> Vec<String> {
    let times: BTreeSet<u64> = all.iter().map(|own| own.at_s).collect();
    let kept = rule::kept(&times, keep);
    let go = all.iter().filter(|own| {
        let stays = own.is_held || needed.contains(&own.guid) || taken == Some(&*own.name);
        !stays && !kept.contains(&own.at_s)
    });
    go.map(|own| own.name.clone()).collect()
}

/// Those that go to make room for one that is to be taken now: what [`doomed`] would name after it,
/// but for the newest.
fn doomed_before(all: &[Own], keep: &Keep, needed: &HashSet<u64>, now_s: u64) -> Vec<String> {
    let times: BTreeSet<u64> = all.iter().map(|own| own.at_s).collect();
    let goes = rule::goes_before(&times, keep, now_s);
    let newest = all.iter().map(|own| own.txg).max();
    let go = all.iter().filter(|own| {
        let stays = own.is_held || needed.contains(&own.guid) || newest == Some(own.txg);
        !stays && goes.contains(&own.at_s)
    });
    go.map(|own| own.name.clone()).collect()
}

/// What a run has come to that has only begun.
pub(super) fn nothing_yet(begin_s: u64) -> ScheduleResult {
    ScheduleResult {
        begin_s,
        end_s: 0,
        state: JobState::Running,
        skipped: None,
        snapshot: None,
        destroyed: 0,
        left: Vec::new(),
        tested: 0,
        untested: Vec::new(),
        failure: None,
    }
}

/// The run is over.
pub(super) fn conclude(result: &mut ScheduleResult, failure: Option<Failure>) {
    result.end_s = now_s();
    result.state = match &failure {
        None => JobState::Finished,
        Some(failure) if failure.kind == FailureKind::Canceled => JobState::Canceled,
        Some(_) => JobState::Failed,
    };
    result.failure = failure;
}

/// A run.
pub(super) struct Run {
    automation: Arc<Automation>,
    name: String,
    what: ScheduleWhat,
    work: Arc<Work>,
    result: ScheduleResult,
}

impl Run {
    pub(super) fn new(
        automation: &Arc<Automation>,
        name: &str,
        what: &ScheduleWhat,
        work: Arc<Work>,
    ) -> Self {
        Self {
            automation: Arc::clone(automation),
            name: name.to_owned(),
            what: what.clone(),
            work,
            result: nothing_yet(now_s()),
        }
    }

    /// Runs to its end.
    pub(super) async fn run(mut self) -> ScheduleResult {
        let outcome = match self.what.task {
            ScheduleTask::Scrub => self.scrub().await,
            ScheduleTask::Trim => self.trim().await,
            ScheduleTask::Snapshot => self.snapshot().await,
            ScheduleTask::SmartShort => self.test(SelfTestKind::Short).await,
            ScheduleTask::SmartLong => self.test(SelfTestKind::Long).await,
        };
        conclude(&mut self.result, outcome.err());
        self.result
    }

    /// The command that the history of pools tells.
    fn command(&self) -> String {
        format!("millpond schedule run {}", self.name)
    }

    async fn scrub(&mut self) -> Result<(), Failure> {
        if let Some(Obstacle::Done(why)) = obstacle(&self.automation, &self.what) {
            self.result.skipped = Some(why);
            return Ok(());
        }
        let call = ZpoolScrub {
            names: vec![self.what.target.clone()],
            all: false,
            action: ScrubAction::Start,
            command: self.command(),
            ..ZpoolScrub::default()
        };
        let automation = &self.automation;
        verbs::scrub::zpool_scrub(&automation.serving.pools, &call).await?;
        hours::begun(automation, &self.name, &self.what.target);
        Ok(())
    }

    async fn trim(&mut self) -> Result<(), Failure> {
        let pool = &self.what.target;
        let call = ZpoolTrim {
            name: pool.clone(),
            devices: Vec::new(),
            action: ActivityAction::Start,
            rate: 0,
            secure: false,
            command: self.command(),
        };
        let reply = verbs::activity::zpool_trim(&self.automation.serving, call).await?;
        if !reply.jobs.is_empty() {
            return Ok(());
        }
        let is_under_way = reply
            .refused
            .iter()
            .any(|refused| refused.why == ActivityObstacle::Busy);
        if is_under_way {
            self.result.skipped = Some(ScheduleObstacle::Trimming);
            return Ok(());
        }
        let message = format!(
            "cannot trim '{pool}': none of its devices takes discards; remove the schedule \
             ('millpond schedule remove {}')",
            self.name
        );
        Err(Failure::new(FailureKind::Unsupported, message))
    }

    /// Has disks test themselves. Those that do not are told of; where none does, the run has
    /// failed.
    async fn test(&mut self, kind: SelfTestKind) -> Result<(), Failure> {
        let SelfTests {
            begun,
            are_testing,
            mut refused,
            unable,
        } = self
            .automation
            .disks
            .begin_tests(&self.what.target, kind)
            .await?;
        let count = refused.len();
        self.result.tested = begun;
        refused.truncate(LEFT_MAX);
        self.result.untested = refused;
        if begun > 0 {
            return Ok(());
        }
        let of = match self.what.target.as_str() {
            "" => "the host".to_owned(),
            pool => format!("pool '{pool}'"),
        };
        let (kind, message) = match self.result.untested.first() {
            // What is at an earlier test is waited for.
            _ if are_testing > 0 => {
                let message = format!("the disks of {of} test themselves already");
                (FailureKind::Busy, message)
            }
            Some(first) => {
                let message = format!(
                    "none of {count} disks of {of} began to test itself; {}: {}",
                    first.disk, first.why
                );
                (FailureKind::Io, message)
            }
            None => {
                let why = match unable {
                    0 => "has no disks",
                    _ => "has no disks that can test themselves",
                };
                let message = format!(
                    "{of} {why}; remove the schedule ('millpond schedule remove {}')",
                    self.name
                );
                (FailureKind::Unsupported, message)
            }
        };
        Err(Failure::new(kind, message))
    }

    fn doing(&self) -> String {
        format!("cannot take a snapshot of '{}'", self.what.target)
    }

    async fn snapshot(&mut self) -> Result<(), Failure> {
        let open = self
            .automation
            .serving
            .pools
            .of_dataset(&self.what.target)?;
        let taken = match (self.take(&open).await, self.what.keep) {
            (Err(full), Some(keep)) if full.kind == FailureKind::NoSpace => {
                self.make_room(&open, &keep).await?;
                self.take_once_there_is_room(&open, full).await?
            }
            (taken, _) => taken?,
        };
        self.result.snapshot = Some(taken);
        match self.what.keep {
            Some(keep) => self.prune(&open, &keep).await,
            None => Ok(()),
        }
    }

    async fn take(&self, open: &OpenPool) -> Result<String, Failure> {
        let mut properties = Settings::default();
        properties.insert(PROPERTY.to_owned(), self.marks(open).await?.today);
        let command = self.command();
        let own = self.own_snapshots(open).await?;
        let newest = own.values().flatten().map(|own| own.at_s).max();
        let taken = take_snapshot(
            &self.automation.serving,
            &command,
            &self.what.target,
            self.what.recursive,
            &properties,
            names(&self.name, now_s(), newest),
        );
        taken.await
    }

    /// Takes the snapshot for which there was no room. What was destroyed comes free in the
    /// background.
    async fn take_once_there_is_room(
        &self,
        open: &OpenPool,
        mut full: Failure,
    ) -> Result<String, Failure> {
        if self.result.destroyed == 0 {
            return Err(full);
        }
        for _ in 0..FREED_WITHIN_S {
            match self.take(open).await {
                Err(failure) if failure.kind == FailureKind::NoSpace => full = failure,
                taken => return taken,
            }
            self.check_goes_on()?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Err(full)
    }

    fn check_goes_on(&self) -> Result<(), Failure> {
        match self.work.is_canceled() {
            true => Err(Failure::new(
                FailureKind::Canceled,
                "the schedule was stopped",
            )),
            false => Ok(()),
        }
    }

    /// Destroys those of our snapshots that the rule does not keep.
    async fn prune(&mut self, open: &OpenPool, keep: &Keep) -> Result<(), Failure> {
        for (dataset, all) in self.own_snapshots(open).await? {
            self.check_goes_on()?;
            let needed = self.needed(open, &dataset).await?;
            let taken = self.result.snapshot.as_deref();
            let names = doomed(&all, keep, &needed.guids, taken);
            self.destroy(&dataset, &names).await;
        }
        Ok(())
    }

    /// Destroys those that will not be kept once the snapshot is taken for which there is no room
    /// now.
    async fn make_room(&mut self, open: &OpenPool, keep: &Keep) -> Result<(), Failure> {
        for (dataset, all) in self.own_snapshots(open).await? {
            self.check_goes_on()?;
            let needed = self.needed(open, &dataset).await?;
            if needed.may_be_any {
                continue;
            }
            let names = doomed_before(&all, keep, &needed.guids, now_s());
            self.destroy(&dataset, &names).await;
        }
        Ok(())
    }

    async fn destroy(&mut self, dataset: &str, names: &[String]) {
        let (serving, command) = (&self.automation.serving, self.command());
        let (replications, notes) = (&self.automation.replications, &self.automation.left);
        let left = match all_stay(replications, notes, dataset, names) {
            Some(left) => left,
            None => destroy_snapshots(serving, &self.work, &command, dataset, names).await,
        };
        let gone = names.len().saturating_sub(left.len());
        self.result.destroyed += gone as u64;
        let room = LEFT_MAX.saturating_sub(self.result.left.len());
        let left = left.into_iter().take(room);
        let left = left.map(|(snapshot, why)| ScheduleLeft { snapshot, why });
        self.result.left.extend(left);
    }

    /// What snapshots of this schedule are marked with. Copies that a stream brought keep their
    /// marks as if they had been set here (`store_received` of crate `dataset`), and are not this
    /// schedule's to destroy.
    async fn marks(&self, open: &OpenPool) -> Result<Marks, Failure> {
        let target = &self.what.target;
        let found = open.pool.dsl().directories().lookup(target).await;
        let found = found.map_err(|error| from_dataset(&self.doing(), &error))?;
        let (pool, number) = (open.pool.guid().get(), found.object.get());
        Ok(Marks {
            today: format!("{}@{:016x}", self.name, found.guid.get()),
            once: format!("{}@{pool:016x}:{number}", self.name),
        })
    }

    /// Marks snapshots that have the mark of once with that of today, so that they are known when
    /// the pool gets another GUID.
    async fn mark_anew(&self, open: &OpenPool, names: &[String], mark: &str) {
        let change = [(PROPERTY.to_owned(), PropertyChange::Set(mark.to_owned()))];
        for name in names.iter().take(MARKED_ANEW_MAX) {
            let set = open.pool.dsl().properties().set(name, &change).await;
            if let Err(error) = set {
                // It is known by its mark of once until the next run.
                return tracing::debug!(%error, "a snapshot keeps its mark");
            }
        }
    }

    /// The snapshots that this schedule took, by dataset.
    async fn own_snapshots(&self, open: &OpenPool) -> Result<BTreeMap<String, Vec<Own>>, Failure> {
        let failed = |error: DatasetError| from_dataset(&self.doing(), &error);
        let (dsl, target) = (open.pool.dsl(), &self.what.target);
        let depth = match self.what.recursive {
            true => None,
            false => Some(1),
        };
        let options = verbs::zfs::everything(depth);
        let listed = dsl.directories().list(target, &options).await;
        let property = [PROPERTY.to_owned()];
        let marks = self.marks(open).await?;
        let mut of_once = Vec::new();
        let mut out: BTreeMap<String, Vec<Own>> = BTreeMap::new();
        for info in listed.map_err(failed)? {
            let Some((head, short)) = info.name.split_once('@') else {
                continue;
            };
            let Some(at_s) = taken_at(&self.name, short) else {
                continue;
            };
            if !self.what.recursive && head != target {
                continue;
            }
            // One that somebody destroys meanwhile is none.
            let settings = dsl.properties().named(&info.name, &property).await;
            let settings = settings.unwrap_or_default();
            let mut local = settings
                .iter()
                .filter(|it| it.source == PropertySource::Local);
            match local.next().map(|setting| &setting.value) {
                Some(PropertyValue::Text(mark)) if *mark == marks.today => {}
                Some(PropertyValue::Text(mark)) if *mark == marks.once => {
                    of_once.push(info.name.clone());
                }
                _ => continue,
            }
            let holds = dsl.holds().list(&info.name).await;
            let own = Own {
                name: short.to_owned(),
                guid: info.guid.get(),
                txg: info.createtxg.get(),
                at_s,
                is_held: holds.map_or(true, |holds| !holds.is_empty()),
            };
            out.entry(head.to_owned()).or_default().push(own);
        }
        self.mark_anew(open, &of_once, &marks.today).await;
        Ok(out)
    }

    /// Snapshots of a dataset that replications need, by their GUIDs: the last that both sides
    /// have, and those that are under way. There is a bookmark of each, or a note that there is
    /// none.
    async fn needed(&self, open: &OpenPool, dataset: &str) -> Result<Needed, Failure> {
        let bookmarks = open.pool.dsl().bookmarks().list(dataset).await;
        let bookmarks = bookmarks.map_err(|error| from_dataset(&self.doing(), &error))?;
        let named = bookmarks
            .iter()
            .filter_map(|bookmark| bookmark.name.split_once('#'));
        let short: Vec<&str> = named.map(|(_, short)| short).collect();
        let (replications, left) = (&self.automation.replications, &self.automation.left);
        let guids = short.iter().filter_map(|short| guid_of_bookmark(short));
        Ok(Needed {
            guids: guids
                .chain(unmarked(replications))
                .chain(left.guids())
                .collect(),
            may_be_any: may_need_any(replications, dataset, &short),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Goal: a scrub that somebody paused and forgot does not end all scrubs of its pool.
    #[test]
    fn a_paused_scrub_is_in_nobodys_way() {
        use ScheduleObstacle::{Resilvering, Scrubbing};
        use pool::ScanFunction::{Resilver, Scrub};
        for (scan, resilvers, errors, expected) in [
            (None, false, None, None),
            (Some((Scrub, 77)), false, None, None),
            (Some((Scrub, 77)), false, Some(78), None),
            (
                Some((Scrub, 0)),
                false,
                None,
                Some(Obstacle::Done(Scrubbing)),
            ),
            (
                Some((Scrub, 77)),
                true,
                None,
                Some(Obstacle::Waits(Resilvering)),
            ),
            (
                Some((Resilver, 0)),
                true,
                None,
                Some(Obstacle::Waits(Resilvering)),
            ),
            (None, true, None, Some(Obstacle::Waits(Resilvering))),
            (None, false, Some(0), Some(Obstacle::Waits(Scrubbing))),
            // The run fails, and says so.
            (None, false, Some(78), None),
        ] {
            let found = in_the_way_of_a_scrub(scan, resilvers, errors);
            assert_eq!(found, expected, "{scan:?} {resilvers} {errors:?}");
        }
    }

    #[test]
    fn names_say_which_schedule_took_a_snapshot_and_when() {
        let at_s = 1_795_608_030;
        let all: Vec<String> = names("home", at_s, None).take(3).collect();
        let wanted = [
            "auto-home-2026-11-25-1200",
            "auto-home-2026-11-25-120030",
            "auto-home-2026-11-25-120031",
        ];
        assert_eq!(all, wanted);
        let taken = all.iter().map(|name| taken_at("home", name));
        let taken: Vec<Option<u64>> = taken.collect();
        assert_eq!(taken, [Some(at_s - 30), Some(at_s), Some(at_s + 1)]);
        for (schedule, other) in [
            ("hom", "auto-home-2026-11-25-1200"),
            ("home", "auto-home-x-2026-11-25-1200"),
            ("home-x", "auto-home-2026-11-25-1200"),
            ("home", "auto-home-2026-11-25-1261"),
            ("home", "auto-home-2026-11-25-12"),
            ("home", "auto-home-20261125-1200"),
            ("home", "auto-home-"),
            ("home", "millpond-home-20240229T235959Z"),
        ] {
            assert_eq!(taken_at(schedule, other), None, "{other}");
        }
    }

    /// After a clock that was ahead was set right, what is taken is not destroyed at once.
    #[test]
    fn what_was_just_taken_stays() {
        let own = |at_s: u64| Own {
            name: at_s.to_string(),
            guid: at_s,
            txg: at_s,
            at_s,
            is_held: false,
        };
        let keep = Keep {
            hourly: 1,
            daily: 0,
            weekly: 0,
            monthly: 0,
        };
        let all = [own(10), own(4000), own(9_000_000)];
        let gone = doomed(&all, &keep, &HashSet::new(), Some("4000"));
        assert_eq!(gone, ["10"]);
    }

    /// To make room, what would go anyway goes, and never the newest: by its name or by its age.
    #[test]
    fn what_makes_room_is_none_of_the_newest() {
        let own = |txg: u64, at_s: u64| Own {
            name: at_s.to_string(),
            guid: at_s,
            txg,
            at_s,
            is_held: false,
        };
        let hourly = |hourly| Keep {
            hourly,
            daily: 0,
            weekly: 0,
            monthly: 0,
        };
        let all = [own(1, 10), own(2, 4000), own(3, 8000)];
        let none = HashSet::new();
        let gone = |all: &[Own], keep, now_s| doomed_before(all, &hourly(keep), &none, now_s);
        assert_eq!(gone(&all, 3, 9000), Vec::<String>::new());
        assert_eq!(gone(&all, 3, 12_000), ["10"]);
        // Not twice, however late it is by then.
        assert_eq!(gone(&all[1..], 3, 99_000), Vec::<String>::new());
        assert_eq!(gone(&all, 1, 12_000), ["10", "4000"]);
        assert_eq!(gone(&all[2..], 0, 12_000), Vec::<String>::new());
        let needed = HashSet::from([4000]);
        assert_eq!(doomed_before(&all, &hourly(1), &needed, 12_000), ["10"]);
        // The last that was taken has an older time: a clock was ahead.
        let odd = [own(1, 10), own(2, 90_000), own(3, 8000)];
        assert_eq!(gone(&odd, 1, 12_000), ["10"]);
    }

    /// Runs that come close after each other are in their order, whatever was destroyed between.
    #[test]
    fn a_name_comes_after_those_before() {
        let at_s = 1_795_608_030;
        let next = |newest| names("home", at_s, newest).next().unwrap();
        let time = |name: &str| taken_at("home", name).unwrap();
        assert_eq!(next(Some(at_s - 31)), "auto-home-2026-11-25-1200");
        for newest in [at_s - 30, at_s - 1, at_s, at_s + 29] {
            assert!(time(&next(Some(newest))) > newest, "{newest}");
            assert!(time(&next(Some(newest))) >= at_s, "{newest}");
        }
        assert_eq!(next(Some(at_s + 1000)), "auto-home-2026-11-25-1200");
    }

    proptest! {
        /// Names in the order of the alphabet are names in the order of time.
        #[test]
        fn names_are_in_order(one in 0..200_000_000u64, other in 0..200_000_000u64) {
            let name = |at_s: u64| names("a", at_s, None).next().unwrap();
            prop_assert_eq!((one / 60).cmp(&(other / 60)), name(one).cmp(&name(other)));
            let with_seconds: Vec<String> = names("a", one, None).collect();
            prop_assert!(with_seconds.is_sorted());
            for (at, name) in with_seconds.iter().enumerate().skip(1) {
                prop_assert_eq!(taken_at("a", name), Some(one + at as u64 - 1));
            }
        }

        /// Whatever the rule, what is held or needed stays, and so does the newest.
        #[test]
        fn what_is_held_or_needed_stays(
            all in prop::collection::btree_map(0..50_000_000u64, any::<(bool, bool)>(), 1..60),
            counts in prop::array::uniform4(0..5u32),
        ) {
            let keep = Keep {
                hourly: counts[0],
                daily: counts[1],
                weekly: counts[2],
                monthly: counts[3],
            };
            let own: Vec<Own> = all
                .iter()
                .map(|(at_s, (is_held, _))| Own {
                    name: at_s.to_string(),
                    guid: at_s + 7,
                    txg: *at_s,
                    at_s: *at_s,
                    is_held: *is_held,
                })
                .collect();
            let needed = all.iter().filter(|(_, (_, is_needed))| *is_needed);
            let needed: HashSet<u64> = needed.map(|(at_s, _)| at_s + 7).collect();
            let gone = doomed(&own, &keep, &needed, None);
            for name in &gone {
                let at_s: u64 = name.parse().unwrap();
                prop_assert_eq!(all[&at_s], (false, false));
                prop_assert!(Some(&at_s) != all.keys().last());
            }
            let taken: BTreeSet<u64> = all.keys().copied().collect();
            let may_go = taken.difference(&rule::kept(&taken, &keep)).filter(|at_s| {
                all[*at_s] == (false, false)
            }).count();
            prop_assert_eq!(gone.len(), may_go);
        }
    }
}
