//! Messages about schedules: what the server does with pools and datasets again and again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, Failure, Job, JobState, Keep, Role};

/// What a schedule does.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleTask {
    /// Begins a scrub of a pool.
    Scrub,
    /// Begins a trim of all devices of a pool.
    Trim,
    /// Takes a snapshot of a dataset, and destroys those of its own that the rule does not keep.
    Snapshot,
    /// Has disks test themselves in some minutes: those of a pool, or all of the host.
    SmartShort,
    /// Has them test all of themselves, in hours.
    SmartLong,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Weekday {
    /// Monday.
    Monday,
    /// Tuesday.
    Tuesday,
    /// Wednesday.
    Wednesday,
    /// Thursday.
    Thursday,
    /// Friday.
    Friday,
    /// Saturday.
    Saturday,
    /// Sunday.
    Sunday,
}

impl Weekday {
    /// All, in order.
    pub const ALL: [Self; 7] = [
        Self::Monday,
        Self::Tuesday,
        Self::Wednesday,
        Self::Thursday,
        Self::Friday,
        Self::Saturday,
        Self::Sunday,
    ];

    /// How many days after Monday it is.
    pub fn days_from_monday(self) -> u32 {
        self as u32
    }
}

/// How often something runs by itself. Hours and minutes are those of the place where the server
/// is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "every", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScheduleWhen {
    /// So many seconds between the beginnings of two runs; at least one.
    Interval {
        /// How many.
        seconds: u64,
    },
    /// Each hour.
    Hour {
        /// 0 to 59.
        minute: u8,
    },
    /// Each day.
    Day {
        /// 0 to 23.
        hour: u8,
        /// 0 to 59.
        minute: u8,
    },
    /// Each week.
    Week {
        /// On which day.
        day: Weekday,
        /// 0 to 23.
        hour: u8,
        /// 0 to 59.
        minute: u8,
    },
    /// Each month.
    Month {
        /// 1 to 31; the last day where a month has not so many.
        day: u8,
        /// 0 to 23.
        hour: u8,
        /// 0 to 59.
        minute: u8,
    },
}

/// A time of day, where the server is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct TimeOfDay {
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
}

/// The hours of each day in which a scrub goes on; outside of them it is paused. They may go over
/// midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleHours {
    /// From then on.
    pub from: TimeOfDay,
    /// Before then; another time than `from`.
    pub until: TimeOfDay,
}

impl ScheduleHours {
    /// Whether a time is among them.
    pub fn contains(self, time: TimeOfDay) -> bool {
        let is_in = |from: TimeOfDay, until: TimeOfDay| from <= time && time < until;
        match self.from < self.until {
            true => is_in(self.from, self.until),
            false => !is_in(self.until, self.from),
        }
    }
}

/// Makes a schedule, or changes the one of that name.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSet {
    /// Its name: letters, digits, `_`, `-` and `.`; by what it does where there is none.
    pub name: Option<String>,
    /// What it does.
    pub task: ScheduleTask,
    /// Of what: a pool; for snapshots a filesystem or volume; for tests of disks a pool, or nothing
    /// for all disks of the host.
    pub target: String,
    /// For snapshots: of all datasets below it, too, at the same moment.
    #[serde(default)]
    pub recursive: bool,
    /// How often.
    pub when: ScheduleWhen,
    /// For snapshots: which stay; none where all do.
    pub keep: Option<Keep>,
    /// For scrubs: in which hours they go on; none where in all.
    #[serde(default)]
    pub hours: Option<ScheduleHours>,
    /// For scrubs: how much of the disks' time each scrub of the pool has, in percent, 1 to 100;
    /// none where it is half beside others, else all.
    #[serde(default)]
    pub share: Option<u8>,
}

/// What became of it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleSetReply {
    /// Name of the schedule.
    pub name: String,
    /// When it runs first, in seconds since 1970; none while it is paused.
    pub next_s: Option<u64>,
}

impl Call for ScheduleSet {
    const PATH: &'static str = "/v1/schedules/set";
    const ACCESS: Access<Self> = Access::Change(|call| match call.target.as_str() {
        "" => "cannot set a schedule for all disks".to_owned(),
        target => format!("cannot set a schedule for '{target}'"),
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ScheduleSetReply;
}

/// Runs a schedule now.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRun {
    /// Which.
    pub name: String,
}

/// The run that was begun.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleRunReply {
    /// Its job, whose result is a [`ScheduleResult`].
    pub job: Job,
}

impl Call for ScheduleRun {
    const PATH: &'static str = "/v1/schedules/run";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot run schedule '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ScheduleRunReply;
}

/// Forgets a schedule, and stops its run. Its snapshots stay; a scrub that it began goes on.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRemove {
    /// Which.
    pub name: String,
}

impl Call for ScheduleRemove {
    const PATH: &'static str = "/v1/schedules/remove";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot remove schedule '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// Has a schedule run no more by itself; or go on, from its next time.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulePause {
    /// Which.
    pub name: String,
    /// Whether it rests.
    pub is_paused: bool,
}

impl Call for SchedulePause {
    const PATH: &'static str = "/v1/schedules/pause";
    const ACCESS: Access<Self> = Access::Change(|call| match call.is_paused {
        true => format!("cannot pause schedule '{}'", call.name),
        false => format!("cannot resume schedule '{}'", call.name),
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// Lists schedules. Why one failed is told to those only who may change things.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleList {}

impl Call for ScheduleList {
    const PATH: &'static str = "/v1/schedules/list";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ScheduleListReply;
}

/// Schedules.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleListReply {
    /// By name.
    pub schedules: Vec<ScheduleReport>,
}

/// What a schedule does, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleWhat {
    /// What.
    pub task: ScheduleTask,
    /// Of what, as in [`ScheduleSet`].
    pub target: String,
    /// For snapshots: of all datasets below it, too, at the same moment.
    pub recursive: bool,
    /// How often.
    pub when: ScheduleWhen,
    /// For snapshots: which stay; none where all do.
    pub keep: Option<Keep>,
    /// For scrubs: in which hours they go on; none where in all.
    #[serde(default)]
    pub hours: Option<ScheduleHours>,
    /// For scrubs: how much of the disks' time each scrub of the pool has, in percent.
    #[serde(default)]
    pub share: Option<u8>,
}

/// A schedule, and how it is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleReport {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(flatten)]
    pub what: ScheduleWhat,
    /// Whether it rests.
    pub is_paused: bool,
    /// The job of its run, while there is one.
    pub job: Option<Job>,
    /// When it runs next by itself, in seconds since 1970.
    pub next_s: Option<u64>,
    /// What it waits for, once its time has come: it runs as soon as that is over.
    pub waits: Option<ScheduleObstacle>,
    /// What its last run came to.
    pub last: Option<ScheduleResult>,
    /// When the last run that worked ended, in seconds since 1970.
    pub success_s: Option<u64>,
    /// How many runs have failed since then.
    pub failures: u32,
}

/// Why a schedule does nothing when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleObstacle {
    /// The pool is not imported.
    NotImported,
    /// The pool has stopped after an I/O failure.
    Suspended,
    /// A resilver is under way: scrubs and tests of disks come after it.
    Resilvering,
    /// A scrub is under way already.
    Scrubbing,
    /// It is outside the hours of a scrub.
    OutsideHours,
    /// A scrub was paused. Only results of long ago say so: a run goes on with such a scrub.
    ScrubPaused,
    /// All devices are being trimmed already.
    Trimming,
    /// Disks test themselves already: the next test comes after it.
    Testing,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleResult {
    /// When it began, in seconds since 1970.
    pub begin_s: u64,
    /// When it ended, likewise.
    pub end_s: u64,
    /// How.
    pub state: JobState,
    /// Why nothing had to be done.
    pub skipped: Option<ScheduleObstacle>,
    /// The snapshot that it took, after the `@`.
    pub snapshot: Option<String>,
    /// How many snapshots it destroyed.
    pub destroyed: u64,
    /// Snapshots that the rule does not keep and that could not be destroyed; ten at most.
    pub left: Vec<ScheduleLeft>,
    /// How many disks have begun to test themselves.
    #[serde(default)]
    pub tested: u64,
    /// Disks that have not; ten at most.
    #[serde(default)]
    pub untested: Vec<ScheduleUntested>,
    /// Why it failed; not for those who may only look.
    pub failure: Option<Failure>,
}

/// A snapshot that could not be destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleLeft {
    /// Full name.
    pub snapshot: String,
    /// Why.
    pub why: String,
}

/// A disk that did not begin to test itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleUntested {
    /// Its path.
    pub disk: String,
    /// Why.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_go_over_midnight() {
        let time = |hour, minute| TimeOfDay { hour, minute };
        let hours = |from, until| ScheduleHours { from, until };
        let day = hours(time(8, 30), time(17, 0));
        let night = hours(time(22, 0), time(6, 0));
        for (at, in_day, in_night) in [
            (time(0, 0), false, true),
            (time(5, 59), false, true),
            (time(6, 0), false, false),
            (time(8, 29), false, false),
            (time(8, 30), true, false),
            (time(16, 59), true, false),
            (time(17, 0), false, false),
            (time(21, 59), false, false),
            (time(22, 0), false, true),
            (time(23, 59), false, true),
        ] {
            assert_eq!(
                (day.contains(at), night.contains(at)),
                (in_day, in_night),
                "{at:?}"
            );
        }
    }
}
