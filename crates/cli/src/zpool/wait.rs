//! `zpool wait`: until what a pool does in the background has ended, with what is left of it told
//! each interval (`zpool_do_wait`, `print_wait_status_row`, cmd/zpool/zpool_main.c).
//!
//! Most of it are jobs, which are followed by their events. Removals and expansions are asked for
//! in the pool's status, whoever began them.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::bail;
use api::{
    ActivityReport, ActivityState, Failure, FailureKind, JobKind, JobList, JobState,
    PoolStatusReport, RebuildState, RemovalState, ScanFunction, ScanState, VdevKind, VdevReport,
    ZpoolList, ZpoolStatus,
};
use clap::Args;

use super::repeat::{Repeat, take_interval};
use crate::client::Client;
use crate::numbers;

/// How often removals and expansions are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Wait until activities of a pool have ended.
#[derive(Debug, Args)]
pub struct Wait {
    /// Activities, separated by commas: scrub, free, ...; all without
    #[arg(short = 't', value_delimiter = ',')]
    activities: Vec<String>,
    /// With an interval: no headings, tabs between fields
    #[arg(short = 'H')]
    scripted: bool,
    /// With an interval: exact numbers
    #[arg(short)]
    parseable: bool,
    /// With an interval: headings only once
    #[arg(short = 'n')]
    head_once: bool,
    #[command(flatten)]
    repeat: Repeat,
    /// POOL [INTERVAL]: with an interval of so many seconds, tell what is left to do
    #[arg(required = true, num_args = 1..)]
    words: Vec<String>,
}

/// What a pool does in the background (`zpool_wait_activity_t`, include/sys/fs/zfs.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Discard,
    Free,
    Initialize,
    Replace,
    Remove,
    Resilver,
    Scrub,
    Trim,
    RaidzExpand,
}

/// All of them in the order of their columns, as `-t` calls them.
const ACTIVITIES: [(&str, Activity); 9] = [
    ("discard", Activity::Discard),
    ("free", Activity::Free),
    ("initialize", Activity::Initialize),
    ("replace", Activity::Replace),
    ("remove", Activity::Remove),
    ("resilver", Activity::Resilver),
    ("scrub", Activity::Scrub),
    ("trim", Activity::Trim),
    ("raidz_expand", Activity::RaidzExpand),
];

impl Activity {
    /// The jobs that are this; none where the pool's status tells of it.
    fn job(self) -> Option<JobKind> {
        match self {
            Self::Discard => Some(JobKind::CheckpointDiscard),
            Self::Free => Some(JobKind::Free),
            Self::Initialize => Some(JobKind::Initialize),
            Self::Replace => Some(JobKind::Replace),
            Self::Resilver => Some(JobKind::Resilver),
            Self::Scrub => Some(JobKind::Scrub),
            Self::Trim => Some(JobKind::Trim),
            Self::Remove | Self::RaidzExpand => None,
        }
    }

    /// Whether it is one that the status tells of, and under way.
    fn is_copying(self, pool: &PoolStatusReport) -> bool {
        match self {
            Self::Remove => {
                (pool.removal.as_ref()).is_some_and(|at| at.state == RemovalState::Running)
            }
            Self::RaidzExpand => (pool.expansion.as_ref()).is_some_and(|at| at.end_s.is_none()),
            _ => false,
        }
    }

    /// What is left of it, in bytes; `freeing` is what the pool's property of that name says.
    fn left_bytes(self, pool: &PoolStatusReport, freeing: u64) -> u64 {
        let scanning = |function| {
            let scan = (pool.scan.as_ref()).filter(|scan| {
                let runs = scan.state == ScanState::Scanning && scan.pause_time_s == 0;
                runs && scan.function == function
            });
            scan.map(|scan| scan.to_examine_bytes.saturating_sub(scan.issued_bytes))
        };
        match self {
            Self::Discard => (pool.checkpoint.as_ref())
                .filter(|at| at.created_s.is_none())
                .map_or(0, |at| at.space_bytes),
            Self::Free => freeing,
            Self::Initialize => left_on_leaves(&pool.tree, &|leaf| leaf.initialize.as_ref()),
            Self::Trim => left_on_leaves(&pool.tree, &|leaf| leaf.trim.as_ref()),
            // A replacement ends with the resilver.
            Self::Replace if any_stands_in(&pool.tree) => Self::Resilver.left_bytes(pool, freeing),
            Self::Replace => 0,
            Self::Remove => (pool.removal.as_ref())
                .filter(|_| self.is_copying(pool))
                .map_or(0, |at| at.total_bytes.saturating_sub(at.copied_bytes)),
            Self::RaidzExpand => (pool.expansion.as_ref())
                .filter(|_| self.is_copying(pool))
                .map_or(0, |at| at.total_bytes.saturating_sub(at.copied_bytes)),
            Self::Scrub => scanning(ScanFunction::Scrub).unwrap_or(0),
            Self::Resilver => scanning(ScanFunction::Resilver).unwrap_or_else(|| {
                let rebuilds = pool
                    .tree
                    .children
                    .iter()
                    .filter_map(|top| top.rebuild.as_ref());
                rebuilds
                    .filter(|rebuild| rebuild.state == RebuildState::Active)
                    .map(|at| at.estimated_bytes.saturating_sub(at.scanned_bytes))
                    .sum()
            }),
        }
    }
}

/// What the leaves that are at it have left (`vdev_activity_remaining`).
fn left_on_leaves<'a>(
    vdev: &'a VdevReport,
    of: &dyn Fn(&'a VdevReport) -> Option<&'a ActivityReport>,
) -> u64 {
    let own = of(vdev).filter(|report| report.state == ActivityState::Active);
    let own = own.map_or(0, |at| at.total_bytes.saturating_sub(at.done_bytes));
    let below = vdev.children.iter().map(|child| left_on_leaves(child, of));
    own + below.sum::<u64>()
}

/// Whether a device or a spare takes another one's place (`vdev_any_spare_replacing`).
fn any_stands_in(vdev: &VdevReport) -> bool {
    matches!(vdev.kind, VdevKind::Replacing | VdevKind::Spare) && !vdev.children.is_empty()
        || vdev.children.iter().any(any_stands_in)
}

/// The pool as its status and its property `freeing` have it; none when it is gone.
fn look(client: &Client, pool: &str) -> anyhow::Result<Option<(PoolStatusReport, u64)>> {
    let names = vec![pool.to_owned()];
    let call = ZpoolStatus {
        names: names.clone(),
        verbose: false,
    };
    let Some(status) = unless_gone(client.call(&call))? else {
        return Ok(None);
    };
    let Some(listed) = unless_gone(client.call(&ZpoolList { names, io: false }))? else {
        return Ok(None);
    };
    let freeing = listed.pools.first().and_then(|pool| {
        let property = pool.properties.get("freeing")?;
        property.value.parse().ok()
    });
    let status = status.pools.into_iter().next();
    Ok(status.map(|status| (status, freeing.unwrap_or(0))))
}

/// Nothing, where the reason is that there is no such pool.
fn unless_gone<T>(asked: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match asked {
        Ok(reply) => Ok(Some(reply)),
        Err(error) => match error.downcast_ref::<Failure>() {
            Some(failure) if failure.kind == FailureKind::NotFound => Ok(None),
            _ => Err(error),
        },
    }
}

impl Wait {
    /// Asks the daemon until it is so.
    pub fn run(mut self, client: &Client) -> anyhow::Result<()> {
        let wanted = wanted(&self.activities)?;
        let interval = take_interval(&mut self.words, &|_| false)?;
        let [pool] = &self.words[..] else {
            match self.words.is_empty() {
                true => bail_usage!("missing 'pool' argument"),
                false => bail_usage!("too many arguments"),
            }
        };
        // Only an interval, no count.
        if interval.is_some_and(|(_, count)| count > 0) {
            bail_usage!("too many arguments");
        }
        // There must be such a pool.
        let names = vec![pool.clone()];
        client.call(&ZpoolList { names, io: false })?;
        let Some((interval, _)) = interval else {
            return until_idle(client, pool, &wanted);
        };
        let (is_over, over) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let telling = scope.spawn(|| self.tell(client, pool, &wanted, interval, over));
            let waited = until_idle(client, pool, &wanted);
            drop(is_over);
            let told = telling.join();
            waited?;
            match told {
                Ok(told) => told,
                Err(_) => bail!("what is left to do could not be told"),
            }
        })
    }

    /// Prints a row each interval until the other end of the channel is gone.
    fn tell(
        &self,
        client: &Client,
        pool: &str,
        wanted: &[Activity],
        interval: Duration,
        over: mpsc::Receiver<()>,
    ) -> anyhow::Result<()> {
        let page = page_rows().filter(|_| !self.head_once);
        for row in 0.. {
            let Some((status, freeing)) = look(client, pool)? else {
                return Ok(());
            };
            if let Some(time) = self.repeat.time() {
                println!("{time}");
            }
            let is_headed = row == 0 || page.is_some_and(|page| row % page == 0);
            if is_headed && !self.scripted {
                println!("{}", head(wanted));
            }
            println!("{}", self.row(wanted, &status, freeing));
            match over.recv_timeout(interval) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => break,
            }
        }
        Ok(())
    }

    fn row(&self, wanted: &[Activity], status: &PoolStatusReport, freeing: u64) -> String {
        let left = columns(wanted).map(|(name, activity)| {
            let left = activity.left_bytes(status, freeing);
            let text = match self.parseable {
                true => left.to_string(),
                false => numbers::nice_count(left),
            };
            match self.scripted {
                true => text,
                false => format!("{text:>width$}", width = width(name)),
            }
        });
        let gap = if self.scripted { "\t" } else { "" };
        left.collect::<Vec<_>>().join(gap)
    }
}

/// The columns of what is waited for, in order.
fn columns(wanted: &[Activity]) -> impl Iterator<Item = (&'static str, Activity)> {
    let all = ACTIVITIES.into_iter();
    all.filter(move |(_, activity)| wanted.contains(activity))
}

/// A number takes six characters, and two are between columns.
fn width(name: &str) -> usize {
    name.len().max(6) + 2
}

fn head(wanted: &[Activity]) -> String {
    let names = columns(wanted).map(|(name, _)| {
        let width = width(name);
        format!("{:>width$}", name.to_uppercase())
    });
    names.collect()
}

/// How many rows stand below a heading: as many as a terminal shows with it.
fn page_rows() -> Option<u64> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    u64::from(size.ws_row)
        .checked_sub(1)
        .filter(|rows| *rows > 0)
}

/// What the words of `-t` mean; all without.
fn wanted(words: &[String]) -> anyhow::Result<Vec<Activity>> {
    if words.is_empty() {
        return Ok(ACTIVITIES.map(|(_, activity)| activity).to_vec());
    }
    let one = |word: &String| match ACTIVITIES.into_iter().find(|(name, _)| name == word) {
        Some((_, activity)) => Ok(activity),
        None => bail_usage!(
            "invalid activity '{word}'\nknown are {}",
            ACTIVITIES.map(|(name, _)| name).join(", ")
        ),
    };
    words.iter().map(one).collect()
}

/// Waits until none of it is under way, also of what begins meanwhile, or the pool is gone.
fn until_idle(client: &Client, pool: &str, wanted: &[Activity]) -> anyhow::Result<()> {
    let kinds: Vec<JobKind> = wanted
        .iter()
        .filter_map(|activity| activity.job())
        .collect();
    // What a suspended pool has to free waits with it.
    let also_paused = [JobKind::Free];
    let copies = |status: &PoolStatusReport| {
        let mut wanted = wanted.iter();
        wanted.any(|activity| activity.is_copying(status))
    };
    let is_copied = wanted.iter().any(|activity| activity.job().is_none());
    loop {
        client.wait_for_jobs(pool, &kinds, &also_paused)?;
        let call = ZpoolStatus {
            names: vec![pool.to_owned()],
            verbose: false,
        };
        let is_copying = match is_copied {
            false => false,
            true => match unless_gone(client.call(&call))? {
                None => return Ok(()),
                Some(reply) => reply.pools.iter().any(copies),
            },
        };
        let jobs = client.call(&JobList {
            pool: Some(pool.to_owned()),
        })?;
        let is_busy = jobs.jobs.iter().any(|job| {
            let runs = job.state == JobState::Running
                || job.state == JobState::Paused && also_paused.contains(&job.kind);
            runs && kinds.contains(&job.kind)
        });
        match (is_busy, is_copying) {
            (true, _) => {}
            (false, true) => std::thread::sleep(LOOK_AGAIN),
            (false, false) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use api::{ExpansionReport, RemovalReport, ScanReport};
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        wait: Wait,
    }

    fn line(words: &[&str]) -> Wait {
        let words = ["wait"].iter().chain(words);
        Line::try_parse_from(words).expect("it is understood").wait
    }

    /// A pool with a scrub, a removal and an expansion under way.
    fn busy() -> PoolStatusReport {
        let scan = ScanReport {
            to_examine_bytes: 5 << 20,
            issued_bytes: 1 << 20,
            ..ScanReport::default()
        };
        let removal = RemovalReport {
            copied_bytes: 100,
            total_bytes: 300,
            ..RemovalReport::default()
        };
        let expansion = ExpansionReport {
            copied_bytes: 1,
            total_bytes: 8,
            ..ExpansionReport::default()
        };
        PoolStatusReport {
            scan: Some(scan),
            removal: Some(removal),
            expansion: Some(expansion),
            ..PoolStatusReport::default()
        }
    }

    #[test]
    fn rows_tell_what_is_left() {
        let all = wanted(&[]).expect("activities");
        let titles = "  DISCARD    FREE  INITIALIZE  REPLACE  REMOVE  RESILVER   SCRUB    TRIM";
        assert_eq!(head(&all), format!("{titles}  RAIDZ_EXPAND"));
        let row = |words: &[&str], status: &PoolStatusReport| {
            let wait = line(words);
            let wanted = wanted(&wait.activities).expect("activities");
            wait.row(&wanted, status, 7)
        };
        assert_eq!(row(&["-Hp", "tank"], &busy()), {
            let scrub = 4 << 20;
            format!("0\t7\t0\t0\t200\t0\t{scrub}\t0\t7")
        });
        assert_eq!(
            row(&["-t", "scrub,free", "tank"], &busy()),
            "       7      4M"
        );
        let mut paused = busy();
        paused.scan.as_mut().expect("a scan").pause_time_s = 1;
        assert_eq!(row(&["-Ht", "scrub", "tank"], &paused), "0");
    }

    #[test]
    fn removals_and_expansions_are_waited_for() {
        let mut pool = busy();
        assert!(Activity::Remove.is_copying(&pool) && Activity::RaidzExpand.is_copying(&pool));
        pool.removal.as_mut().expect("a removal").state = RemovalState::Finished;
        pool.expansion.as_mut().expect("an expansion").end_s = Some(1);
        assert!(!Activity::Remove.is_copying(&pool));
        assert!(!Activity::RaidzExpand.is_copying(&pool));
        assert_eq!(Activity::Remove.left_bytes(&pool, 0), 0);
    }

    #[test]
    fn unknown_activities_are_refused() {
        assert!(wanted(&["sleep".to_owned()]).is_err());
        let known = wanted(&["remove".to_owned(), "raidz_expand".to_owned()]);
        assert_eq!(
            known.expect("both"),
            [Activity::Remove, Activity::RaidzExpand]
        );
    }
}
