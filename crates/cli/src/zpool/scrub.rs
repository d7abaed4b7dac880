//! `zpool scrub` and `zpool checkpoint`.

use api::{JobKind, ScrubAction, ServerInfo, ZpoolCheckpoint, ZpoolScrub};
use chrono::{Local, NaiveDate, NaiveDateTime, TimeDelta, TimeZone};
use clap::Args;

use crate::client::Client;

/// Verify all copies of all data, and write anew what is wrong.
#[derive(Debug, Args)]
pub struct Scrub {
    /// Stop
    #[arg(short, conflicts_with_all = ["pause", "wait", "since_last", "errors", "from", "until"])]
    stop: bool,
    /// Pause; without options it goes on again
    #[arg(short, conflicts_with_all = ["wait", "since_last", "errors", "from", "until"])]
    pause: bool,
    /// Only the blocks that the error log names
    #[arg(short, conflicts_with_all = ["since_last", "from", "until"])]
    errors: bool,
    /// Only what was written since the last scrub
    #[arg(short = 'C', conflicts_with_all = ["from", "until"])]
    since_last: bool,
    /// Only what was written since then: `YYYY-MM-DD` or `YYYY-MM-DD HH:MM`, local time
    #[arg(short = 'S', value_name = "DATE", value_parser = first_second)]
    from: Option<u64>,
    /// Only what was written until then, that day or minute included
    #[arg(short = 'E', value_name = "DATE", value_parser = last_second)]
    until: Option<u64>,
    /// Wait until it has ended
    #[arg(short)]
    wait: bool,
    /// Every pool
    #[arg(short)]
    all: bool,
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pools: Vec<String>,
}

impl Scrub {
    /// Asks the daemon.
    pub fn run(self, client: &Client, command: String) -> anyhow::Result<()> {
        let action = match (self.stop, self.pause) {
            (true, _) => ScrubAction::Stop,
            (_, true) => ScrubAction::Pause,
            _ if self.errors => ScrubAction::Errors,
            _ if self.since_last => ScrubAction::Continue,
            _ => ScrubAction::Start,
        };
        client.call(&ZpoolScrub {
            names: self.pools.clone(),
            all: self.all,
            action,
            from_s: self.from,
            until_s: self.until,
            command,
        })?;
        if !self.wait {
            return Ok(());
        }
        let names = match self.all {
            true => client.call(&ServerInfo {})?.pools,
            false => self.pools,
        };
        for name in names {
            client.wait_for_jobs(&name, &[JobKind::Scrub], &[])?;
        }
        Ok(())
    }
}

/// A date as `-S` and `-E` take it, and how long it lasts (`date_string_to_sec`,
/// cmd/zpool/zpool_main.c).
fn date(text: &str) -> Result<(NaiveDateTime, TimeDelta), String> {
    if let Ok(minute) = NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M") {
        return Ok((minute, TimeDelta::minutes(1)));
    }
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok();
    let begin = day.and_then(|day| day.and_hms_opt(0, 0, 0));
    begin
        .map(|begin| (begin, TimeDelta::days(1)))
        .ok_or_else(|| {
            "Failed to parse the date.\na date is YYYY-MM-DD, or 'YYYY-MM-DD HH:MM'".to_owned()
        })
}

/// Seconds since 1970 of a time of `zone`: the earlier one where a clock that is put back has it
/// twice, or the later one. One that it leaves out is an hour away.
fn seconds<Z: TimeZone>(zone: &Z, time: NaiveDateTime, is_end: bool) -> Result<u64, String> {
    let hour = match is_end {
        true => TimeDelta::hours(1),
        false => TimeDelta::hours(-1),
    };
    let found = [Some(time), time.checked_add_signed(hour)]
        .into_iter()
        .flatten()
        .find_map(|time| {
            let found = zone.from_local_datetime(&time);
            match is_end {
                true => found.latest(),
                false => found.earliest(),
            }
        });
    found
        .and_then(|time| u64::try_from(time.timestamp()).ok())
        .ok_or_else(|| "there is no such time".to_owned())
}

fn first_second(text: &str) -> Result<u64, String> {
    let (begin, _) = date(text)?;
    seconds(&Local, begin, false)
}

fn last_second(text: &str) -> Result<u64, String> {
    let (begin, span) = date(text)?;
    let end = begin.checked_add_signed(span);
    seconds(&Local, end.ok_or("there is no such time")?, true)
}

/// Keep the pool's present state to go back to, or discard what is kept.
#[derive(Debug, Args)]
pub struct Checkpoint {
    /// Discard the checkpoint
    #[arg(short, long)]
    discard: bool,
    /// Wait until what it kept is free
    #[arg(short, long, requires = "discard")]
    wait: bool,
    pool: String,
}

impl Checkpoint {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        if self.pool.contains('/') {
            anyhow::bail!(
                "'zpool checkpoint' doesn't work on datasets. To save the state of a dataset from \
                 a specific point in time please use 'zfs snapshot'"
            );
        }
        client.call(&ZpoolCheckpoint {
            name: self.pool.clone(),
            discard: self.discard,
            command: typed,
        })?;
        match self.wait {
            true => client.wait_for_jobs(&self.pool, &[JobKind::CheckpointDiscard], &[]),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::Utc;

    #[test]
    fn dates_are_those_of_openzfs() {
        let at = |text: &str| date(text).map(|(begin, span)| (begin.to_string(), span));
        let day = ("2026-11-30 00:00:00".to_owned(), TimeDelta::days(1));
        assert_eq!(at("2026-11-30"), Ok(day));
        let minute = ("2026-11-30 14:05:00".to_owned(), TimeDelta::minutes(1));
        assert_eq!(at("2026-11-30 14:05"), Ok(minute));
        for wrong in [
            "",
            "2026-11",
            "2026-11-31",
            "30.11.2026",
            "2026-11-30 24:05",
            "now",
        ] {
            assert!(date(wrong).is_err(), "{wrong}");
        }
        let (begin, span) = date("2026-11-30").unwrap();
        assert_eq!(seconds(&Utc, begin, false), Ok(1_795_996_800));
        assert_eq!(seconds(&Utc, begin + span, true), Ok(1_796_083_200));
    }
}
