//! `zpool attach`, `replace`, `detach`, `offline`, `online`, `reopen`, `resilver`
//! (`zpool_do_attach_or_replace` and those after it, cmd/zpool/zpool_main.c).

use anyhow::bail;
use api::{
    Failure, JobKind, VdevState, ZpoolAttach, ZpoolDetach, ZpoolOffline, ZpoolOnline, ZpoolReopen,
    ZpoolResilver,
};
use clap::Args;

use super::administer::ashift;
use super::create::device;
use crate::client::Client;
use crate::refusals;

/// How a new device is taken in.
#[derive(Debug, Args)]
struct How {
    /// Use a device that looks in use
    #[arg(short)]
    force: bool,
    /// ashift=VALUE
    #[arg(short = 'o')]
    properties: Vec<String>,
    /// Rebuild in the order of the disk, without checksums, and scrub then
    #[arg(short)]
    sequential: bool,
    /// Wait until it has everything
    #[arg(short)]
    wait: bool,
}

impl How {
    fn run(
        self,
        client: &Client,
        typed: String,
        (name, device, new_device): (String, String, String),
        replace: bool,
    ) -> anyhow::Result<()> {
        client.call(&ZpoolAttach {
            name: name.clone(),
            device,
            new_device: self::device(&new_device)?.path,
            replace,
            sequential: self.sequential,
            ashift: ashift(&self.properties)?,
            allow_in_use: self.force,
            command: typed,
        })?;
        let kinds: &[JobKind] = match replace {
            true => &[JobKind::Replace],
            false => &[JobKind::Resilver, JobKind::Expand],
        };
        match self.wait {
            true => client.wait_for_jobs(&name, kinds, &[]),
            false => Ok(()),
        }
    }
}

/// Mirror a device with a new one, or make a RAID-Z vdev wider.
#[derive(Debug, Args)]
pub struct Attach {
    #[command(flatten)]
    how: How,
    pool: String,
    device: String,
    new_device: String,
}

impl Attach {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let devices = (self.pool, self.device, self.new_device);
        self.how.run(client, typed, devices, false)
    }
}

/// Replace a device by a new one.
#[derive(Debug, Args)]
pub struct Replace {
    #[command(flatten)]
    how: How,
    pool: String,
    device: String,
    /// Another device under the same path unless given
    new_device: Option<String>,
}

impl Replace {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let new = self.new_device.unwrap_or_else(|| self.device.clone());
        let devices = (self.pool, self.device, new);
        self.how.run(client, typed, devices, true)
    }
}

/// Take a device out of its mirror.
#[derive(Debug, Args)]
pub struct Detach {
    pool: String,
    device: String,
}

impl Detach {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        client.call(&ZpoolDetach {
            name: self.pool,
            device: self.device,
            command: typed,
        })?;
        Ok(())
    }
}

/// Take devices out of use.
#[derive(Debug, Args)]
pub struct Offline {
    /// As devices that failed
    #[arg(short)]
    fault: bool,
    /// Only until the next import
    #[arg(short)]
    temporary: bool,
    pool: String,
    #[arg(required = true)]
    devices: Vec<String>,
}

/// Tells of each device that was refused; fails if there was one.
fn told(results: Vec<anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut errors = Vec::new();
    for error in results.into_iter().filter_map(Result::err) {
        errors.push(match error.downcast_ref::<Failure>() {
            Some(failure) => refusals::words(failure),
            None => error.to_string(),
        });
    }
    match errors.is_empty() {
        true => Ok(()),
        false => bail!(errors.join("\n")),
    }
}

impl Offline {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: &str) -> anyhow::Result<()> {
        let one = |device: &String| {
            client.call(&ZpoolOffline {
                name: self.pool.clone(),
                device: device.clone(),
                temporary: self.temporary,
                fault: self.fault,
                command: typed.to_owned(),
            })?;
            Ok(())
        };
        told(self.devices.iter().map(one).collect())
    }
}

/// Use devices again.
#[derive(Debug, Args)]
pub struct Online {
    /// Use all of devices that have become larger
    #[arg(short)]
    expand: bool,
    pool: String,
    #[arg(required = true)]
    devices: Vec<String>,
}

impl Online {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: &str) -> anyhow::Result<()> {
        let mut results = Vec::new();
        for device in &self.devices {
            results.push(self.one(client, device, typed));
        }
        told(results)
    }

    fn one(&self, client: &Client, device: &str, typed: &str) -> anyhow::Result<()> {
        let reply = client.call(&ZpoolOnline {
            name: self.pool.clone(),
            device: device.to_owned(),
            expand: self.expand,
            command: typed.to_owned(),
        })?;
        if reply.state != VdevState::Online {
            println!("warning: device '{device}' onlined, but remains in faulted state");
            match reply.state {
                VdevState::Faulted => println!("use 'zpool clear' to restore a faulted device"),
                _ => println!("use 'zpool replace' to replace devices that are no longer present"),
            }
            if self.expand && reply.was_usable {
                bail!("{device}: failed to expand usable space on unhealthy device");
            }
        }
        Ok(())
    }
}

/// Look at all devices of pools again.
#[derive(Debug, Args)]
pub struct Reopen {
    /// Let a scrub or resilver end before what came back is resilvered
    #[arg(short = 'n')]
    no_restart: bool,
    /// All unless named
    pools: Vec<String>,
}

impl Reopen {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        client.call(&ZpoolReopen {
            names: self.pools,
            no_restart: self.no_restart,
            command: typed,
        })?;
        Ok(())
    }
}

/// Begin the resilver that devices wait for, in place of one that is under way.
#[derive(Debug, Args)]
pub struct Resilver {
    #[arg(required = true)]
    pools: Vec<String>,
}

impl Resilver {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        client.call(&ZpoolResilver {
            names: self.pools,
            command: typed,
        })?;
        Ok(())
    }
}
