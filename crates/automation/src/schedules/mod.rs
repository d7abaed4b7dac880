//! Schedules: what the server does with pools and datasets again and again (`millpond schedule`).
//! When they run is the business of [`crate::timetable`]; [`run`] is one run.
//!
//! A schedule whose pool is away waits for it, and then runs once: that is told when it is asked
//! for, and is no failure. One that fails is tried again after a while, and is an alert for as long
//! as it does.
//!
//! Lock: `waits` is short, and taken alone.

mod hours;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{
    Alert, AlertFact, AlertRule, AlertSeverity, Empty, Failure, FailureKind, Job, JobKind,
    JobState, ScheduleHours, ScheduleListReply, ScheduleObstacle, SchedulePause, ScheduleRemove,
    ScheduleReport, ScheduleResult, ScheduleRun, ScheduleRunReply, ScheduleSet, ScheduleSetReply,
    ScheduleTask, ScheduleWhat, ScheduleWhen,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::Automation;
use crate::timetable::{Begun, Course, Entry, Kept, Recurs, Table, now_s, rule};
use host::State;
use host::table_file::FileProblem;
use hours::OwnScrub;
use run::Obstacle;

/// A schedule, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Schedule {
    what: ScheduleWhat,
    last: Option<ScheduleResult>,
    /// The scrub that it began, while that is not over.
    #[serde(default)]
    scrub: Option<OwnScrub>,
}

impl Recurs for Schedule {
    const FILE: &'static str = "schedules.json";
    const WORD: &'static str = "schedule";
    const WORDS: &'static str = "schedules";
    const LISTED_BY: &'static str = "millpond schedule list";

    fn when(&self) -> Option<ScheduleWhen> {
        Some(self.what.when)
    }
}

/// All schedules.
pub(crate) struct Schedules {
    table: Table<Schedule>,
    /// What those wait for whose time has come, by their names.
    waits: Mutex<BTreeMap<String, ScheduleObstacle>>,
    /// Somebody changed what scrubs go by.
    looked: Notify,
}

impl Schedules {
    /// Those that were kept.
    pub(crate) fn load(state: &State) -> Self {
        Self {
            table: Table::load(state),
            waits: Mutex::default(),
            looked: Notify::new(),
        }
    }

    /// What is wrong with their file.
    pub(crate) fn problem(&self) -> Option<FileProblem> {
        self.table.problem()
    }

    /// Stops all runs; they go on with the next start.
    pub(crate) async fn stop(&self, jobs: &service::jobs::Jobs) {
        tokio::join!(self.table.stop(jobs), async { self.looked.notify_one() });
    }

    fn what(&self, name: &str) -> Result<ScheduleWhat, Failure> {
        let entries = self.table.lock();
        let entry = entries
            .get(name)
            .ok_or_else(|| Table::<Schedule>::unknown(name))?;
        Ok(entry.kept.own.what.clone())
    }

    /// Notes what one waits for; whether that is new.
    fn set_waits(&self, name: &str, obstacle: Option<ScheduleObstacle>) -> bool {
        let mut waits = self.waits.lock();
        match obstacle {
            Some(obstacle) => waits.insert(name.to_owned(), obstacle) != Some(obstacle),
            None => waits.remove(name).is_some(),
        }
    }
}

/// The pool of a dataset, or itself.
fn pool_of(target: &str) -> &str {
    target.split('/').next().unwrap_or(target)
}

/// What is in the way, in words.
pub(crate) fn words(obstacle: ScheduleObstacle, pool: &str) -> String {
    match obstacle {
        ScheduleObstacle::NotImported => format!("pool '{pool}' is not imported"),
        ScheduleObstacle::Suspended => {
            format!("pool '{pool}' has stopped after an I/O failure; 'zpool status {pool}' tells")
        }
        ScheduleObstacle::Resilvering => format!("pool '{pool}' is being resilvered"),
        ScheduleObstacle::Scrubbing => format!("pool '{pool}' is being scrubbed already"),
        ScheduleObstacle::OutsideHours => format!(
            "it is outside the hours of this schedule; 'zpool scrub {pool}' begins one all the same"
        ),
        ScheduleObstacle::ScrubPaused => {
            format!("a scrub of pool '{pool}' is paused; 'zpool scrub {pool}' goes on with it")
        }
        ScheduleObstacle::Trimming => format!("pool '{pool}' is being trimmed already"),
        ScheduleObstacle::Testing => "disks test themselves already".to_owned(),
    }
}

/// Runs schedules when they are due, until the server stops.
pub(crate) async fn follow(automation: Arc<Automation>) {
    let begin = |name: &str| {
        let begun = match ready(&automation, name) {
            Ok(None) => begin(&automation, name).map(drop),
            Ok(Some(_)) => Ok(()),
            Err(failure) => Err(failure),
        };
        if let Err(failure) = begun {
            tracing::debug!("{failure}");
        }
    };
    tokio::join!(
        automation.schedules.table.follow(begin),
        hours::follow(&automation),
    );
}

/// What a schedule has to wait for, whose time has come.
fn ready(automation: &Automation, name: &str) -> Result<Option<ScheduleObstacle>, Failure> {
    let what = automation.schedules.what(name)?;
    let waits = match run::obstacle(automation, &what) {
        Some(Obstacle::Waits(obstacle)) => Some(obstacle),
        Some(Obstacle::Done(_)) | None => None,
    };
    let is_new = automation.schedules.set_waits(name, waits);
    if let Some(obstacle) = waits.filter(|_| is_new) {
        let why = words(obstacle, pool_of(&what.target));
        tracing::info!("schedule '{name}' waits: {why}");
    }
    Ok(waits)
}

/// Begins a run.
fn begin(automation: &Arc<Automation>, name: &str) -> Result<Job, Failure> {
    let begun = automation.schedules.table.begin(name, |own| {
        let pool = Some(pool_of(&own.what.target).to_owned()).filter(|pool| !pool.is_empty());
        let jobs = &automation.serving.jobs;
        Arc::new(jobs.begin(JobKind::Schedule, pool, None, true))
    })?;
    let job = begun.work.job();
    let (automation, what) = (Arc::clone(automation), begun.kept.own.what.clone());
    tokio::spawn(async move {
        let name = &begun.kept.course.name;
        let run = run::Run::new(&automation, name, &what, Arc::clone(&begun.work));
        // A run that panics has failed; the next one goes on.
        let result = tokio::spawn(run.run()).await;
        end_run(&automation, &begun, result.ok());
        begun.over();
    });
    Ok(job)
}

/// Notes what a run came to.
fn end_run(automation: &Automation, begun: &Begun<Schedule>, result: Option<ScheduleResult>) {
    let mut result = result.unwrap_or_else(|| {
        let name = &begun.kept.course.name;
        let message = format!("schedule '{name}' broke off; see the server's log");
        let failure = Failure::new(FailureKind::Other, message);
        let mut result = run::nothing_yet(begun.work.job().start_s);
        run::conclude(&mut result, Some(failure));
        result
    });
    // A pool that went away meanwhile is waited for, as one that was away before.
    let away = match run::obstacle(automation, &begun.kept.own.what) {
        Some(Obstacle::Waits(why)) if result.state == JobState::Failed => Some(why),
        _ => None,
    };
    if let Some(why) = away {
        let why = words(why, pool_of(&begun.kept.own.what.target));
        run::conclude(&mut result, Some(Failure::new(FailureKind::Canceled, why)));
    }
    let failure = result.failure.clone();
    let note = |own: &mut Schedule| own.last = Some(result.clone());
    let goes_on = away.is_some();
    automation
        .schedules
        .table
        .end(begun, failure.as_ref(), goes_on, note);
    begun.work.answer(match failure {
        Some(failure) => Err(failure),
        None => serde_json::to_value(&result)
            .map_err(|error| Failure::new(FailureKind::Other, error.to_string())),
    });
}

/// What a schedule is called that was given no name.
fn default_name(task: ScheduleTask, target: &str) -> String {
    rule::name_of(&match task {
        ScheduleTask::Scrub => format!("scrub-{target}"),
        ScheduleTask::Trim => format!("trim-{target}"),
        ScheduleTask::Snapshot => target.to_owned(),
        ScheduleTask::SmartShort if target.is_empty() => "smart-short".to_owned(),
        ScheduleTask::SmartLong if target.is_empty() => "smart-long".to_owned(),
        ScheduleTask::SmartShort => format!("smart-short-{target}"),
        ScheduleTask::SmartLong => format!("smart-long-{target}"),
    })
}

/// Why these times make no sense.
fn check_when(when: ScheduleWhen) -> Result<(), &'static str> {
    let is_time = |hour: u8, minute: u8| hour < 24 && minute < 60;
    let is_right = match when {
        ScheduleWhen::Interval { seconds } => seconds > 0,
        ScheduleWhen::Hour { minute } => is_time(0, minute),
        ScheduleWhen::Day { hour, minute } | ScheduleWhen::Week { hour, minute, .. } => {
            is_time(hour, minute)
        }
        ScheduleWhen::Month { day, hour, minute } => {
            (1..=31).contains(&day) && is_time(hour, minute)
        }
    };
    match is_right {
        true => Ok(()),
        false => Err("there are hours from 0 to 23, minutes from 0 to 59, days from 1 to 31"),
    }
}

/// Why these hours, or this share, make no sense.
fn check_hours(hours: Option<ScheduleHours>, share: Option<u8>) -> Result<(), &'static str> {
    if let Some(ScheduleHours { from, until }) = hours {
        if [from, until]
            .iter()
            .any(|at| at.hour >= 24 || at.minute >= 60)
        {
            return Err("there are hours from 0 to 23, and minutes from 0 to 59");
        }
        if from == until {
            return Err("hours end at another time than they begin");
        }
    }
    match share {
        Some(share) if !(1..=100).contains(&share) => {
            Err("a share of the disks' time is from 1 to 100 percent")
        }
        _ => Ok(()),
    }
}

/// `millpond schedule set`.
pub async fn set(automation: &Automation, call: ScheduleSet) -> Result<ScheduleSetReply, Failure> {
    let target = call.target;
    let is_of_host = target.is_empty()
        && matches!(
            call.task,
            ScheduleTask::SmartShort | ScheduleTask::SmartLong
        );
    let doing = match is_of_host {
        true => "cannot set a schedule for all disks".to_owned(),
        false => format!("cannot set a schedule for '{target}'"),
    };
    let invalid = |why: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {why}"));
    let name = call
        .name
        .unwrap_or_else(|| default_name(call.task, &target));
    if !rule::is_name(&name) {
        return Err(invalid(&format!(
            "the name of a schedule has letters, digits, '_', '-' and '.', {} at most",
            rule::NAME_MAX
        )));
    }
    if !is_of_host {
        dataset::name::check_name(&target)
            .map_err(|error| service::error::from_dataset(&doing, &error))?;
    }
    check_when(call.when).map_err(invalid)?;
    if call.task != ScheduleTask::Scrub && (call.hours.is_some() || call.share.is_some()) {
        return Err(invalid("hours and a share are for scrubs alone"));
    }
    check_hours(call.hours, call.share).map_err(invalid)?;
    match call.task {
        ScheduleTask::Scrub
        | ScheduleTask::Trim
        | ScheduleTask::SmartShort
        | ScheduleTask::SmartLong => {
            if target.contains(['/', '@']) {
                return Err(invalid("it is no pool; name a pool"));
            }
            if call.recursive || call.keep.is_some() {
                return Err(invalid(
                    "'recursive' and what is kept are for snapshots alone",
                ));
            }
            if !is_of_host {
                automation.serving.pools.get(&target)?;
            }
        }
        ScheduleTask::Snapshot => {
            if target.contains('@') {
                return Err(invalid("it is a snapshot; name a filesystem or volume"));
            }
            let open = automation.serving.pools.of_dataset(&target)?;
            let found = open.pool.dsl().directories().lookup(&target).await;
            found.map_err(|error| service::error::from_dataset(&doing, &error))?;
        }
    }
    let what = ScheduleWhat {
        task: call.task,
        target,
        recursive: call.recursive,
        when: call.when,
        keep: call.keep,
        hours: call.hours,
        share: call.share,
    };
    hours::check_can_go(automation, &name, Some(&what))?;
    let (next_s, left) = put(automation, &name, what, &doing)?;
    automation.schedules.set_waits(&name, None);
    if let Some((target, scrub)) = left {
        hours::let_go(automation, &target, scrub).await;
    }
    automation.schedules.looked.notify_one();
    Ok(ScheduleSetReply { name, next_s })
}

/// A pool, and the scrub that a schedule began there.
type Left = Option<(String, Option<OwnScrub>)>;

/// Puts a schedule there, new or in the place of the one of that name; when it runs next, and what
/// is left of a scrub of another pool that it began.
fn put(
    automation: &Automation,
    name: &str,
    what: ScheduleWhat,
    doing: &str,
) -> Result<(Option<u64>, Left), Failure> {
    let now_s = now_s();
    let table = &automation.schedules.table;
    let mut entries = table.lock();
    let mut left = None;
    let (course, last, scrub) = match entries.get(name) {
        Some(entry) => {
            entry.check_stays()?;
            let before = &entry.kept;
            let course = Course {
                // What it was before makes nothing of it due.
                created_s: now_s,
                failures: 0,
                ..before.course.clone()
            };
            let own = &before.own;
            let goes_on = own.what.task == what.task && own.what.target == what.target;
            if !goes_on {
                left = Some((own.what.target.clone(), own.scrub));
            }
            let scrub = own.scrub.filter(|_| goes_on);
            (course, own.last.clone(), scrub)
        }
        None => (Course::new(name, now_s), None, None),
    };
    let own = Schedule { what, last, scrub };
    let kept = Kept { course, own };
    let next_s = kept.next_s(now_s);
    table.put(&mut entries, kept, doing)?;
    Ok((next_s, left))
}

/// `millpond schedule run`.
pub fn run_now(
    automation: &Arc<Automation>,
    call: &ScheduleRun,
) -> Result<ScheduleRunReply, Failure> {
    let name = &call.name;
    let what = automation.schedules.what(name)?;
    if let Some(Obstacle::Waits(obstacle)) = run::obstacle(automation, &what) {
        let why = words(obstacle, pool_of(&what.target));
        let message = format!("cannot run schedule '{name}': {why}");
        return Err(Failure::new(FailureKind::Busy, message));
    }
    let job = begin(automation, name)?;
    automation.schedules.set_waits(name, None);
    Ok(ScheduleRunReply { job })
}

/// `millpond schedule remove`.
pub async fn remove(automation: &Automation, call: &ScheduleRemove) -> Result<Empty, Failure> {
    hours::check_can_go(automation, &call.name, None)?;
    let mut left = None;
    let removed = automation
        .schedules
        .table
        .remove(&automation.serving.jobs, &call.name, |kept| {
            left = Some((kept.own.what.target.clone(), kept.own.scrub));
            Ok(())
        });
    removed.await?;
    automation.schedules.set_waits(&call.name, None);
    if let Some((target, scrub)) = left {
        hours::let_go(automation, &target, scrub).await;
    }
    automation.schedules.looked.notify_one();
    Ok(Empty {})
}

/// `millpond schedule pause`, `resume`.
pub async fn pause(automation: &Automation, call: &SchedulePause) -> Result<Empty, Failure> {
    let table = &automation.schedules.table;
    let on = |kept: &mut Kept<Schedule>| {
        // What it would have done meanwhile is not made up for.
        if !call.is_paused {
            kept.course.created_s = now_s();
            kept.course.is_running = false;
        }
    };
    let paused = table.pause(&automation.serving.jobs, &call.name, call.is_paused, on);
    paused.await?;
    automation.schedules.set_waits(&call.name, None);
    Ok(Empty {})
}

/// `millpond schedule list`. Why one failed is not told to who may only look.
pub fn list(automation: &Automation, may_change: bool) -> Result<ScheduleListReply, Failure> {
    let now_s = now_s();
    let waits = automation.schedules.waits.lock().clone();
    let report = |entry: &Entry<Schedule>| {
        let Kept { course, own } = &entry.kept;
        let mut last = own.last.clone();
        if let Some(last) = last.as_mut().filter(|_| !may_change) {
            last.failure = None;
            last.left.clear();
            last.untested.clear();
        }
        ScheduleReport {
            name: course.name.clone(),
            what: own.what.clone(),
            is_paused: course.is_paused,
            job: entry.running.as_ref().map(|running| running.work.job()),
            next_s: match &entry.running {
                Some(_) => None,
                None => entry.kept.next_s(now_s),
            },
            waits: waits.get(&course.name).copied(),
            last,
            success_s: course.success_s,
            failures: course.failures,
        }
    };
    let entries = automation.schedules.table.known()?;
    Ok(ScheduleListReply {
        schedules: entries.values().map(report).collect(),
    })
}

/// What is to be told of those that fail.
pub fn failing(automation: &Automation) -> Vec<Alert> {
    let entries = automation.schedules.table.lock();
    let failing = entries.values().filter_map(|entry| {
        let Kept { course, own } = &entry.kept;
        if course.failures == 0 || course.is_paused {
            return None;
        }
        let (pool, pool_guid) = match own.what.target.as_str() {
            "" => (String::new(), api::Guid(0)),
            target => {
                let open = automation.serving.pools.get(pool_of(target)).ok()?;
                (open.pool.name(), service::reports::guid(open.pool.guid()))
            }
        };
        let failure = own.last.as_ref()?.failure.as_ref()?;
        Some(Alert {
            rule: AlertRule::Schedule,
            severity: AlertSeverity::Warning,
            pool,
            pool_guid,
            device_guid: None,
            disk: None,
            fact: AlertFact::Schedule {
                name: course.name.clone(),
                task: own.what.task,
                target: own.what.target.clone(),
                why: failure.message.clone(),
            },
        })
    });
    failing.collect()
}

/// What is told of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleFigures<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it does.
    pub task: ScheduleTask,
    /// The pool or dataset; empty for all disks.
    pub target: &'a str,
    /// When the last run that worked ended, in seconds since 1970.
    pub success_s: Option<u64>,
    /// Runs that failed one after the other, up to now.
    pub failures: u32,
    /// When it runs next, in seconds since 1970.
    pub next_s: Option<u64>,
    /// Whether it rests.
    pub is_paused: bool,
}

/// Tells the figures of all of them.
pub fn add_metrics(automation: &Automation, mut tell: impl FnMut(ScheduleFigures<'_>)) {
    let now_s = now_s();
    for Entry { kept, .. } in automation.schedules.table.lock().values() {
        tell(ScheduleFigures {
            name: &kept.course.name,
            task: kept.own.what.task,
            target: &kept.own.what.target,
            success_s: kept.course.success_s,
            failures: kept.course.failures,
            next_s: kept.next_s(now_s),
            is_paused: kept.course.is_paused,
        });
    }
}

#[cfg(test)]
mod tests {
    use api::Weekday;

    use super::*;

    #[test]
    fn names_tell_what_a_schedule_does() {
        for (task, target, wanted) in [
            (ScheduleTask::Scrub, "tank", "scrub-tank"),
            (ScheduleTask::Trim, "tank", "trim-tank"),
            (ScheduleTask::Snapshot, "tank/home/a b", "tank-home-a-b"),
            (ScheduleTask::SmartShort, "", "smart-short"),
            (ScheduleTask::SmartLong, "tank", "smart-long-tank"),
        ] {
            let name = default_name(task, target);
            assert_eq!(name, wanted);
            assert!(rule::is_name(&name));
        }
    }

    #[test]
    fn times_that_make_no_sense_are_refused() {
        use ScheduleWhen::{Day, Hour, Interval, Month, Week};
        let day = Weekday::Monday;
        for (when, is_right) in [
            (Interval { seconds: 1 }, true),
            (Interval { seconds: 0 }, false),
            (Hour { minute: 59 }, true),
            (Hour { minute: 60 }, false),
            (
                Day {
                    hour: 23,
                    minute: 0,
                },
                true,
            ),
            (
                Day {
                    hour: 24,
                    minute: 0,
                },
                false,
            ),
            (
                Week {
                    day,
                    hour: 0,
                    minute: 60,
                },
                false,
            ),
            (
                Month {
                    day: 31,
                    hour: 0,
                    minute: 0,
                },
                true,
            ),
            (
                Month {
                    day: 0,
                    hour: 0,
                    minute: 0,
                },
                false,
            ),
            (
                Month {
                    day: 32,
                    hour: 0,
                    minute: 0,
                },
                false,
            ),
        ] {
            assert_eq!(check_when(when).is_ok(), is_right, "{when:?}");
        }
    }

    /// What is kept can be read again, in each of its forms.
    #[test]
    fn what_is_kept_is_read_again() {
        use ScheduleWhen::{Day, Hour, Interval, Month, Week};
        let mut result = run::nothing_yet(7);
        run::conclude(
            &mut result,
            Some(Failure::new(FailureKind::NotFound, "gone")),
        );
        let day = Weekday::Sunday;
        for when in [
            Interval { seconds: u64::MAX },
            Hour { minute: 5 },
            Day { hour: 1, minute: 2 },
            Week {
                day,
                hour: 3,
                minute: 4,
            },
            Month {
                day: 31,
                hour: 5,
                minute: 6,
            },
        ] {
            let kept = Kept {
                course: Course::new("a", 5),
                own: Schedule {
                    what: ScheduleWhat {
                        task: ScheduleTask::Snapshot,
                        target: "tank/a".into(),
                        recursive: true,
                        when,
                        keep: Some(api::Keep::default()),
                        hours: Some(ScheduleHours {
                            from: api::TimeOfDay {
                                hour: 22,
                                minute: 30,
                            },
                            until: api::TimeOfDay { hour: 6, minute: 0 },
                        }),
                        share: Some(25),
                    },
                    last: Some(result.clone()),
                    scrub: Some(OwnScrub {
                        begin_s: 5,
                        rests: true,
                    }),
                },
            };
            let text = serde_json::to_string(&kept).unwrap();
            let again: Kept<Schedule> = serde_json::from_str(&text).unwrap();
            assert_eq!(again, kept);
            // What was kept before there were hours is read as well.
            let mut older: serde_json::Value = serde_json::from_str(&text).unwrap();
            for field in ["scrub", "hours", "share"] {
                older.as_object_mut().unwrap().remove(field);
                older["what"].as_object_mut().unwrap().remove(field);
            }
            let again: Kept<Schedule> = serde_json::from_value(older).unwrap();
            assert_eq!((again.own.scrub, again.own.what.hours), (None, None));
        }
    }

    #[test]
    fn hours_and_shares_that_make_no_sense_are_refused() {
        let at = |hour, minute| api::TimeOfDay { hour, minute };
        let hours = |from, until| Some(ScheduleHours { from, until });
        let is_right = |hours, share| check_hours(hours, share).is_ok();
        assert!(is_right(None, None));
        assert!(is_right(hours(at(22, 0), at(6, 0)), Some(1)));
        assert!(is_right(hours(at(0, 0), at(23, 59)), Some(100)));
        assert!(!is_right(hours(at(6, 0), at(6, 0)), None));
        assert!(!is_right(hours(at(24, 0), at(6, 0)), None));
        assert!(!is_right(hours(at(22, 0), at(6, 60)), None));
        assert!(!is_right(None, Some(0)));
        assert!(!is_right(None, Some(101)));
    }
}
