//! `zpool scrub` and `zpool checkpoint`.

use api::{JobKind, ScrubAction, ServerInfo, ZpoolCheckpoint, ZpoolScrub};
use clap::Args;

use crate::client::Client;

/// Verify all copies of all data, and write anew what is wrong.
#[derive(Debug, Args)]
pub struct Scrub {
    /// Stop
    #[arg(short, conflicts_with_all = ["pause", "wait", "since_last", "errors"])]
    stop: bool,
    /// Pause; without options it goes on again
    #[arg(short, conflicts_with_all = ["wait", "since_last", "errors"])]
    pause: bool,
    /// Only the blocks that the error log names
    #[arg(short, conflicts_with = "since_last")]
    errors: bool,
    /// Only what was written since the last scrub
    #[arg(short = 'C')]
    since_last: bool,
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
