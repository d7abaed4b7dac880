//! One run of a schedule.
//!
//! Snapshots are called `auto-NAME-2026-11-25-1200`, by the time of UTC, so that they sort. Each
//! has the property `millpond:schedule` with the schedule's name and the GUID of its target, which
//! stays the same through renames and `zpool reguid`, and which no copy has. So one that came in a
//! stream, which another schedule of the same name took, is never taken for an own one; neither is
//! what a person called so.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use api::{
    ActivityAction, ActivityObstacle, Failure, FailureKind, JobState, Keep, ScheduleLeft,
    ScheduleObstacle, ScheduleResult, ScheduleTask, ScheduleWhat, ScrubAction, SelfTestKind,
    Settings, ZpoolScrub, ZpoolTrim,
};
use dataset::{DatasetError, PropertyChange, PropertySource, PropertyValue};

use super::pool_of;
use crate::Automation;
use crate::SelfTests;
use crate::replicate::names::guid_of_bookmark;
use crate::replicate::unmarked;
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
    use ScheduleObstacle::{NotImported, Resilvering, Scrubbing, Suspended, Testing};
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
    let scan = open.pool.scans().scrub_status();
    let scan = scan.filter(|scan| scan.state == pool::ScanState::Scanning);
    match scan.map(|scan| (scan.function, scan.pause_time_s)) {
        Some((pool::ScanFunction::Resilver, _)) => return Some(Obstacle::Waits(Resilvering)),
        Some((pool::ScanFunction::Scrub, 0)) => return Some(Obstacle::Done(Scrubbing)),
        // 'zpool scrub' goes on with one that is paused, whoever asks (`dsl_scan`,
        // module/zfs/dsl_scan.c): else nothing would be scrubbed for as long as it is forgotten.
        Some((pool::ScanFunction::Scrub, _)) | None => {}
    }
    if open.pool.scans().is_rebuilding() || open.pool.scans().is_resilver_due() {
        return Some(Obstacle::Waits(Resilvering));
    }
    // A scrub of the error log is over soon. In the way of one that is paused, the run fails, and
    // says so.
    let errors = open.pool.scans().error_scrub();
    let is_scrubbing =
        errors.is_some_and(|at| at.state == pool::ScanState::Scanning && at.pause_time_s == 0);
    is_scrubbing.then_some(Obstacle::Waits(Scrubbing))
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
    at_s: u64,
    is_held: bool,
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
        };
        verbs::scrub::zpool_scrub(&self.automation.serving.pools, &call)
            .await
            .map(drop)
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
        let mut properties = Settings::default();
        properties.insert(PROPERTY.to_owned(), self.marks(&open).await?.today);
        let command = self.command();
        let own = self.own_snapshots(&open).await?;
        let newest = own.values().flatten().map(|own| own.at_s).max();
        let taken = take_snapshot(
            &self.automation.serving,
            &command,
            &self.what.target,
            self.what.recursive,
            &properties,
            names(&self.name, now_s(), newest),
        );
        self.result.snapshot = Some(taken.await?);
        match self.what.keep {
            Some(keep) => self.prune(&open, &keep).await,
            None => Ok(()),
        }
    }

    /// Destroys those of our snapshots that the rule does not keep.
    async fn prune(&mut self, open: &OpenPool, keep: &Keep) -> Result<(), Failure> {
        for (dataset, all) in self.own_snapshots(open).await? {
            if self.work.is_canceled() {
                let message = "the schedule was stopped";
                return Err(Failure::new(FailureKind::Canceled, message));
            }
            let needed = self.needed(open, &dataset).await?;
            let taken = self.result.snapshot.as_deref();
            let names = doomed(&all, keep, &needed, taken);
            let (serving, command) = (&self.automation.serving, self.command());
            let left = destroy_snapshots(serving, &self.work, &command, &dataset, &names).await;
            let gone = names.len().saturating_sub(left.len());
            self.result.destroyed += gone as u64;
            let room = LEFT_MAX.saturating_sub(self.result.left.len());
            let left = left.into_iter().take(room);
            let left = left.map(|(snapshot, why)| ScheduleLeft { snapshot, why });
            self.result.left.extend(left);
        }
        Ok(())
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
    async fn needed(&self, open: &OpenPool, dataset: &str) -> Result<HashSet<u64>, Failure> {
        let bookmarks = open.pool.dsl().bookmarks().list(dataset).await;
        let bookmarks = bookmarks.map_err(|error| from_dataset(&self.doing(), &error))?;
        let guids = bookmarks.iter().filter_map(|bookmark| {
            let (_, short) = bookmark.name.split_once('#')?;
            guid_of_bookmark(short)
        });
        let unmarked = unmarked(&self.automation.replications);
        Ok(guids.chain(unmarked).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
