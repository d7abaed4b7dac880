//! `zpool scrub`, `zpool checkpoint` and `zpool wait`.

use anyhow::bail;
use api::{Activity, ScrubAction, ZpoolCheckpoint, ZpoolScrub, ZpoolWait};
use clap::Args;

use crate::client::Client;

/// Verify all copies of all data of pools that are imported read-only.
#[derive(Debug, Args)]
pub struct Scrub {
    /// Stop
    #[arg(short, conflicts_with_all = ["pause", "wait"])]
    stop: bool,
    /// Pause; without options it goes on again
    #[arg(short, conflicts_with = "wait")]
    pause: bool,
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
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let action = match (self.stop, self.pause) {
            (true, _) => ScrubAction::Stop,
            (_, true) => ScrubAction::Pause,
            _ => ScrubAction::Start,
        };
        client.call(&ZpoolScrub {
            names: self.pools,
            all: self.all,
            action,
            wait: self.wait,
        })?;
        Ok(())
    }
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
                "'zpool checkpoint' doesn't work on datasets. To save the state of a dataset from a specific point in time please use 'zfs snapshot'"
            );
        }
        client.call(&ZpoolCheckpoint {
            name: self.pool,
            discard: self.discard,
            wait: self.wait,
            command: typed,
        })?;
        Ok(())
    }
}

/// Wait until activities of a pool have ended.
#[derive(Debug, Args)]
pub struct Wait {
    /// Activities, separated by commas: scrub, free, ...; all without
    #[arg(short = 't', value_delimiter = ',')]
    activities: Vec<String>,
    pool: String,
}

impl Wait {
    /// Asks the daemon.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let activities = self.activities.iter().map(|word| activity(word));
        client.call(&ZpoolWait {
            activities: activities.collect::<anyhow::Result<_>>()?,
            name: self.pool,
        })?;
        Ok(())
    }
}

/// What a pool does in the background, as `zpool wait -t` calls it.
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

fn activity(word: &str) -> anyhow::Result<Activity> {
    match ACTIVITIES.into_iter().find(|(name, _)| *name == word) {
        Some((_, activity)) => Ok(activity),
        None => bail!(
            "invalid activity '{word}'; known are {}",
            ACTIVITIES.map(|(name, _)| name).join(", ")
        ),
    }
}
