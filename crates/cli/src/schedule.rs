//! `millpond schedule`: what the server does again and again.

use api::{
    JobState, Keep, ScheduleHours, ScheduleLeft, ScheduleList, ScheduleObstacle, SchedulePause,
    ScheduleRemove, ScheduleReport, ScheduleResult, ScheduleRun, ScheduleSet, ScheduleTask,
    ScheduleUntested, ScheduleWhen, TimeOfDay, Weekday, ZpoolScanCost,
};
use clap::{Args, Subcommand, ValueEnum};

use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::{local_minute, nice_bytes, nice_count};
use crate::periods::{self, Rule};
use crate::refusals;

/// What stays of snapshots unless something else is said.
const KEEP: Keep = Keep {
    hourly: 24,
    daily: 30,
    weekly: 8,
    monthly: 12,
};

/// What the server does again and again: scrubs, trims, snapshots, tests of disks. Lists it without
/// a command.
#[derive(Debug, Args)]
pub struct Schedule {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List schedules, what their last runs came to and when they run next
    List(List),
    /// Make a schedule, or change the one of that name
    Set(Box<Set>),
    /// Run one now, and wait for its end
    Run { name: String },
    /// Have one run no more by itself
    Pause { name: String },
    /// Have one go on that was paused, from its next time
    Resume { name: String },
    /// Forget one; its snapshots stay where they are
    Remove { name: String },
    /// Tell what the last scrub of a pool read of each dataset, up to now
    Cost(Cost),
}

#[derive(Debug, Args)]
struct Cost {
    /// As JSON
    #[arg(short, long)]
    json: bool,
    /// No header, one tab between columns, bytes as numbers
    #[arg(short = 'H')]
    scripted: bool,
    pool: String,
}

#[derive(Debug, Default, Args)]
struct List {
    /// As JSON
    #[arg(short, long)]
    json: bool,
    /// No header, and one tab between columns
    #[arg(short = 'H')]
    scripted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Task {
    /// Verify everything in a pool, by default on the first of each month at 02:00
    Scrub,
    /// Tell a pool's devices what is free, by default each Sunday at 02:00
    Trim,
    /// Take a snapshot of a dataset and destroy old ones, by default each hour
    Snapshot,
    /// Have disks test themselves in some minutes, by default each Wednesday at 02:00
    SmartShort,
    /// Have disks test all of themselves, in hours, by default on the 15th of each month at 02:00
    SmartLong,
}

#[derive(Debug, Args)]
struct Set {
    /// What it does
    task: Task,
    /// A pool; for snapshots a filesystem or volume; for tests a pool, or nothing for all disks
    #[arg(required_if_eq_any([("task", "scrub"), ("task", "trim"), ("task", "snapshot")]))]
    target: Option<String>,
    /// Snapshots of datasets below it, too, at the same moment
    #[arg(short)]
    recursive: bool,
    /// hour, day, week, month, or an interval: 15m, 6h (default: by what it does)
    #[arg(long, value_name = "PERIOD", value_parser = period)]
    every: Option<Period>,
    /// Day of the week (mon to sun) or of the month (1 to 31)
    #[arg(long, value_name = "DAY", value_parser = day)]
    on: Option<Day>,
    /// Time of day where the server is, HH:MM; of hours :MM
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Time>,
    /// Which of its snapshots stay, or 'all' (default: hourly=24,daily=30,weekly=8,monthly=12)
    #[arg(long, value_name = "RULE", value_parser = periods::rule)]
    keep: Option<Rule>,
    /// Hours of the day in which a scrub goes on, HH:MM-HH:MM where the server is; it is paused
    /// outside of them
    #[arg(long, value_name = "FROM-UNTIL", value_parser = hours)]
    hours: Option<ScheduleHours>,
    /// How much of the disks' time scrubs of the pool have, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    share: Option<u8>,
    /// What it is called (default: by what it does)
    #[arg(long)]
    name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Hour,
    Day,
    Week,
    Month,
    Interval(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Day {
    OfWeek(Weekday),
    OfMonth(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Time {
    hour: Option<u8>,
    minute: u8,
}

fn period(text: &str) -> Result<Period, String> {
    Ok(match text {
        "hour" => Period::Hour,
        "day" => Period::Day,
        "week" => Period::Week,
        "month" => Period::Month,
        other => Period::Interval(
            periods::interval(other)
                .map_err(|_| "write hour, day, week, month, or 15m, 6h, 2d".to_owned())?,
        ),
    })
}

/// The name of a day of the week.
fn weekday(day: Weekday) -> &'static str {
    match day {
        Weekday::Monday => "monday",
        Weekday::Tuesday => "tuesday",
        Weekday::Wednesday => "wednesday",
        Weekday::Thursday => "thursday",
        Weekday::Friday => "friday",
        Weekday::Saturday => "saturday",
        Weekday::Sunday => "sunday",
    }
}

fn day(text: &str) -> Result<Day, String> {
    let wrong = || "write mon to sun, or 1 to 31".to_owned();
    if let Ok(number) = text.parse::<u8>() {
        let is_there = (1..=31).contains(&number);
        return is_there.then_some(Day::OfMonth(number)).ok_or_else(wrong);
    }
    let text = text.to_lowercase();
    let mut all = Weekday::ALL.into_iter();
    let found = all.find(|day| text == weekday(*day) || text == weekday(*day)[..3]);
    found.map(Day::OfWeek).ok_or_else(wrong)
}

fn time(text: &str) -> Result<Time, String> {
    let wrong = || "write HH:MM, or :MM".to_owned();
    let (hour, minute) = text.split_once(':').ok_or_else(wrong)?;
    let number = |text: &str, below: u8| {
        let number: u8 = text.parse().map_err(|_| wrong())?;
        (number < below).then_some(number).ok_or_else(wrong)
    };
    Ok(Time {
        hour: match hour {
            "" => None,
            hour => Some(number(hour, 24)?),
        },
        minute: number(minute, 60)?,
    })
}

fn hours(text: &str) -> Result<ScheduleHours, String> {
    let wrong = || "write HH:MM-HH:MM, from when until when".to_owned();
    let (from, until) = text.split_once('-').ok_or_else(wrong)?;
    let of_day = |text: &str| {
        let Time { hour, minute } = time(text)?;
        let hour = hour.ok_or_else(wrong)?;
        Ok::<_, String>(TimeOfDay { hour, minute })
    };
    let (from, until) = (of_day(from)?, of_day(until)?);
    match from == until {
        true => Err("hours end at another time than they begin".to_owned()),
        false => Ok(ScheduleHours { from, until }),
    }
}

impl Set {
    fn when(&self) -> anyhow::Result<ScheduleWhen> {
        let period = self.every.unwrap_or(match self.task {
            Task::Scrub | Task::SmartLong => Period::Month,
            Task::Trim | Task::SmartShort => Period::Week,
            Task::Snapshot => Period::Hour,
        });
        let usual_hour = match self.task {
            Task::Scrub | Task::Trim | Task::SmartShort | Task::SmartLong => 2,
            Task::Snapshot => 0,
        };
        let (hour, minute) = match (self.at, period) {
            (None, _) => (usual_hour, 0),
            (Some(_), Period::Interval(_)) => {
                bail_usage!("an interval has no time of day; leave --at out, or say --every day")
            }
            (Some(Time { hour: None, minute }), Period::Hour) => (0, minute),
            (Some(_), Period::Hour) => {
                bail_usage!("each hour has minutes alone: --at :15")
            }
            (Some(Time { hour: None, .. }), _) => bail_usage!("write --at as HH:MM"),
            (
                Some(Time {
                    hour: Some(hour),
                    minute,
                }),
                _,
            ) => (hour, minute),
        };
        Ok(match (period, self.on) {
            (Period::Week, None) => ScheduleWhen::Week {
                day: match self.task {
                    Task::SmartShort => Weekday::Wednesday,
                    _ => Weekday::Sunday,
                },
                hour,
                minute,
            },
            (Period::Week, Some(Day::OfWeek(day))) => ScheduleWhen::Week { day, hour, minute },
            (Period::Month, None) => ScheduleWhen::Month {
                day: match self.task {
                    Task::SmartLong => 15,
                    _ => 1,
                },
                hour,
                minute,
            },
            (Period::Month, Some(Day::OfMonth(day))) => ScheduleWhen::Month { day, hour, minute },
            (Period::Week, Some(_)) => bail_usage!("a week has days from mon to sun"),
            (Period::Month, Some(_)) => bail_usage!("a month has days from 1 to 31"),
            (_, Some(_)) => bail_usage!("--on is for --every week and --every month"),
            (Period::Hour, None) => ScheduleWhen::Hour { minute },
            (Period::Day, None) => ScheduleWhen::Day { hour, minute },
            (Period::Interval(seconds), None) => ScheduleWhen::Interval { seconds },
        })
    }

    fn call(self) -> anyhow::Result<ScheduleSet> {
        let when = self.when()?;
        let is_of_snapshots = self.task == Task::Snapshot;
        if !is_of_snapshots && (self.recursive || self.keep.is_some()) {
            bail_usage!("-r and --keep are for snapshots alone");
        }
        if self.task != Task::Scrub && (self.hours.is_some() || self.share.is_some()) {
            bail_usage!("--hours and --share are for scrubs alone");
        }
        Ok(ScheduleSet {
            name: self.name,
            task: match self.task {
                Task::Scrub => ScheduleTask::Scrub,
                Task::Trim => ScheduleTask::Trim,
                Task::Snapshot => ScheduleTask::Snapshot,
                Task::SmartShort => ScheduleTask::SmartShort,
                Task::SmartLong => ScheduleTask::SmartLong,
            },
            target: self.target.unwrap_or_default(),
            recursive: self.recursive,
            when,
            keep: match is_of_snapshots {
                true => self.keep.unwrap_or(Rule(Some(KEEP))).0,
                false => None,
            },
            hours: self.hours,
            share: self.share,
        })
    }
}

impl Schedule {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        match self.command {
            None => list(client, &List::default())?,
            Some(Command::List(options)) => list(client, &options)?,
            Some(Command::Set(set)) => {
                let call = set.call()?;
                let reply = client.call(&call)?;
                let first = match reply.next_s {
                    Some(next_s) => format!("; next at {}", local_minute(next_s)),
                    None => "; it is paused".to_owned(),
                };
                let runs = every(call.when) + &limits(call.hours, call.share);
                println!("schedule '{}' runs {runs}{first}", reply.name);
            }
            Some(Command::Run { name }) => {
                let begun = client.call(&ScheduleRun { name: name.clone() })?;
                let result = client.result_of(&begun.job, |_| {})?;
                let result: ScheduleResult = serde_json::from_value(result)?;
                println!("{name}: {}", told(&result));
                tell_left(&result);
            }
            Some(Command::Pause { name }) => {
                client.call(&SchedulePause {
                    name,
                    is_paused: true,
                })?;
            }
            Some(Command::Resume { name }) => {
                client.call(&SchedulePause {
                    name,
                    is_paused: false,
                })?;
            }
            Some(Command::Remove { name }) => {
                client.call(&ScheduleRemove { name })?;
            }
            Some(Command::Cost(options)) => cost(client, &options)?,
        }
        Ok(())
    }
}

fn cost(client: &Client, options: &Cost) -> anyhow::Result<()> {
    let reply = client.call(&ZpoolScanCost {
        name: options.pool.clone(),
    })?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&reply)?);
        return Ok(());
    }
    let columns = [
        Column::left("DATASET"),
        Column::right("READ"),
        Column::right("BLOCKS"),
    ];
    let number = |number: u64, nice: fn(u64) -> String| match options.scripted {
        true => number.to_string(),
        false => nice(number),
    };
    let rows: Vec<Vec<String>> = (reply.datasets.iter())
        .map(|cost| {
            vec![
                cost.dataset.clone().unwrap_or_else(|| "-".to_owned()),
                number(cost.bytes, nice_bytes),
                number(cost.blocks, nice_count),
            ]
        })
        .collect();
    print!("{}", columns::render(&columns, &rows, options.scripted));
    if reply.is_continued && !options.scripted {
        println!("\nIt began before the pool was imported; what it read until then is not known.");
    }
    Ok(())
}

/// How often, in words.
fn every(when: ScheduleWhen) -> String {
    match when {
        ScheduleWhen::Interval { seconds } => format!("every {}", periods::every(seconds)),
        ScheduleWhen::Hour { minute } => format!("each hour at :{minute:02}"),
        ScheduleWhen::Day { hour, minute } => format!("each day at {hour:02}:{minute:02}"),
        ScheduleWhen::Week { day, hour, minute } => {
            let day = weekday(day);
            format!("each {day} at {hour:02}:{minute:02}")
        }
        ScheduleWhen::Month { day, hour, minute } => {
            format!("each month on {day} at {hour:02}:{minute:02}")
        }
    }
}

/// In which hours, and with which share, in words; empty without.
fn limits(hours: Option<ScheduleHours>, share: Option<u8>) -> String {
    let time = |at: TimeOfDay| format!("{:02}:{:02}", at.hour, at.minute);
    let hours = hours.map(|at| format!(", {}-{}", time(at.from), time(at.until)));
    let share = share.map(|percent| format!(", {percent}%"));
    format!("{}{}", hours.unwrap_or_default(), share.unwrap_or_default())
}

fn obstacle(why: ScheduleObstacle) -> &'static str {
    match why {
        ScheduleObstacle::NotImported => "the pool is not imported",
        ScheduleObstacle::Suspended => "the pool has stopped",
        ScheduleObstacle::Resilvering => "the pool is being resilvered",
        ScheduleObstacle::Scrubbing => "the pool is being scrubbed",
        ScheduleObstacle::OutsideHours => "it is outside its hours",
        ScheduleObstacle::ScrubPaused => "a scrub is paused",
        ScheduleObstacle::Trimming => "the pool is being trimmed",
        ScheduleObstacle::Testing => "disks test themselves",
    }
}

/// What a run came to, in words.
fn told(result: &ScheduleResult) -> String {
    if let Some(why) = result.skipped {
        return format!("nothing to do, {}", obstacle(why));
    }
    match (result.state, &result.snapshot) {
        (JobState::Failed, _) => "failed".to_owned(),
        (JobState::Canceled, _) => "stopped".to_owned(),
        (_, Some(snapshot)) => match result.destroyed {
            0 => format!("{snapshot} taken"),
            1 => format!("{snapshot} taken, an old one destroyed"),
            many => format!("{snapshot} taken, {many} old ones destroyed"),
        },
        (_, None) => match result.tested {
            0 => "begun".to_owned(),
            1 => "begun by one disk".to_owned(),
            many => format!("begun by {many} disks"),
        },
    }
}

fn tell_left(result: &ScheduleResult) {
    for ScheduleLeft { snapshot, why } in &result.left {
        eprintln!("snapshot '{snapshot}' stays: {why}");
    }
    for ScheduleUntested { disk, why } in &result.untested {
        eprintln!("disk '{disk}' does not test itself: {why}");
    }
}

fn list(client: &Client, options: &List) -> anyhow::Result<()> {
    let reply = client.call(&ScheduleList {})?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&reply)?);
        return Ok(());
    }
    let columns = [
        "NAME", "DOES", "OF", "EVERY", "KEEPS", "STATE", "LAST", "NEXT",
    ];
    let columns = columns.map(Column::left);
    let rows: Vec<Vec<String>> = reply.schedules.iter().map(row).collect();
    print!("{}", columns::render(&columns, &rows, options.scripted));
    if options.scripted {
        return Ok(());
    }
    for schedule in &reply.schedules {
        if let Some(why) = schedule.waits {
            println!("\n{}: waits, as {}", schedule.name, obstacle(why));
        }
        let Some(last) = &schedule.last else { continue };
        if let Some(failure) = &last.failure {
            println!("\n{}: {}", schedule.name, refusals::words(failure));
        }
        if last.skipped.is_some() {
            println!("\n{}: {}", schedule.name, told(last));
        }
        tell_left(last);
    }
    Ok(())
}

fn row(schedule: &ScheduleReport) -> Vec<String> {
    let what = &schedule.what;
    let task = match what.task {
        ScheduleTask::Scrub => "scrub",
        ScheduleTask::Trim => "trim",
        ScheduleTask::Snapshot => "snapshot",
        ScheduleTask::SmartShort => "smart-short",
        ScheduleTask::SmartLong => "smart-long",
    };
    let last = schedule.last.as_ref();
    let state = match last.map(|last| (last.state, last.skipped)) {
        _ if schedule.job.is_some() => "running",
        _ if schedule.is_paused => "paused",
        _ if schedule.waits.is_some() => "waits",
        Some((JobState::Failed, _)) => "failed",
        Some((JobState::Canceled, _)) => "stopped",
        Some((_, Some(_))) => "skipped",
        Some(_) => "done",
        None => "new",
    };
    let dash = || "-".to_owned();
    vec![
        schedule.name.clone(),
        task.to_owned(),
        match (what.target.as_str(), what.recursive) {
            ("", _) => "all disks".to_owned(),
            (target, true) => format!("{target} -r"),
            (target, false) => target.to_owned(),
        },
        every(what.when) + &limits(what.hours, what.share),
        match what.task {
            ScheduleTask::Snapshot => periods::shown_rule(what.keep.as_ref()),
            _ => dash(),
        },
        state.to_owned(),
        last.map_or_else(dash, |last| local_minute(last.end_s)),
        schedule.next_s.map_or_else(dash, local_minute),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        set: Set,
    }

    fn call(line: &str) -> anyhow::Result<ScheduleSet> {
        let words = std::iter::once("set").chain(line.split_whitespace());
        Line::try_parse_from(words)?.set.call()
    }

    #[test]
    fn what_is_not_said_is_as_usual() {
        let when = |line: &str| every(call(line).unwrap().when);
        assert_eq!(when("scrub tank"), "each month on 1 at 02:00");
        assert_eq!(when("trim tank"), "each sunday at 02:00");
        assert_eq!(when("snapshot tank"), "each hour at :00");
        assert_eq!(when("snapshot tank --every day"), "each day at 00:00");
        assert_eq!(when("snapshot tank --every 15m"), "every 15m");
        assert_eq!(when("snapshot tank --at :15"), "each hour at :15");
        let line = "scrub tank --every week --on Wed --at 23:45";
        assert_eq!(when(line), "each wednesday at 23:45");
        assert_eq!(when("smart-short"), "each wednesday at 02:00");
        assert_eq!(when("smart-long tank"), "each month on 15 at 02:00");
        let of = |line: &str| call(line).unwrap().target;
        assert_eq!([of("smart-short"), of("smart-long tank")], ["", "tank"]);
        assert_eq!(when("scrub tank --on 31"), "each month on 31 at 02:00");
        assert_eq!(call("snapshot tank").unwrap().keep, Some(KEEP));
        assert_eq!(call("snapshot tank --keep all").unwrap().keep, None);
        assert_eq!(call("scrub tank").unwrap().keep, None);
        let limited = |line: &str| {
            let call = call(line).unwrap();
            limits(call.hours, call.share)
        };
        assert_eq!(limited("scrub tank"), "");
        let line = "scrub tank --hours 22:00-6:30 --share 25";
        assert_eq!(limited(line), ", 22:00-06:30, 25%");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "scrub tank -r",
            "trim tank --keep all",
            "scrub tank --on mon",
            "scrub tank --every week --on 3",
            "scrub tank --every day --on 3",
            "scrub tank --every 6h --at 02:00",
            "scrub tank --at :15",
            "snapshot tank --at 02:15",
            "scrub tank --at 24:00",
            "scrub tank --at 2:60",
            "scrub tank --hours 22:00",
            "scrub tank --hours 22:00-24:00",
            "scrub tank --hours :30-06:00",
            "scrub tank --hours 06:00-06:00",
            "scrub tank --share 0",
            "scrub tank --share 101",
            "trim tank --share 50",
            "snapshot tank --hours 22:00-06:00",
            "scrub tank --on 0",
            "scrub tank --on 32",
            "scrub tank --every year",
            "smart tank",
            "smart-long tank -r",
            "smart-short --keep all",
            "scrub",
            "snapshot",
        ] {
            assert!(call(line).is_err(), "{line}");
        }
    }
}
