//! `zpool attach`, `replace`, `detach`, `offline`, `online`, `reopen`, `resilver`
//! (`zpool_do_attach_or_replace` and those after it, cmd/zpool/zpool_main.c).

use std::path::Path;

use anyhow::bail;
use api::{
    DiskCondition, DiskOverview, DiskState, Failure, Guid, JobKind, ServerInfo, VdevState,
    ZpoolAttach, ZpoolDetach, ZpoolOffline, ZpoolOnline, ZpoolReopen, ZpoolResilver,
};
use clap::Args;

use super::administer::{ashift, minus_one};
use super::create::{device, is_distributed_spare};
use super::power;
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
        let new_device = match replace && is_distributed_spare(&new_device) {
            true => new_device,
            false => match self::device(&new_device) {
                Ok(device) => device.path,
                // The pool is opened before the device.
                Err(_) if !client.call(&ServerInfo {})?.pools.contains(&name) => {
                    bail!("cannot open '{name}': no such pool")
                }
                Err(error) => return Err(error),
            },
        };
        let ashift = match ashift(&self.properties) {
            // Of another property nothing is said but how the command is used.
            Err(error) if format!("{error:#}").starts_with("property ") => bail_usage!(""),
            ashift => ashift?,
        };
        let taken = client.call(&ZpoolAttach {
            name: name.clone(),
            device,
            new_device,
            replace,
            sequential: self.sequential,
            ashift,
            allow_in_use: self.force,
            command: typed,
        });
        taken.map_err(minus_one(if replace {
            "cannot replace "
        } else {
            "cannot attach "
        }))?;
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
    /// Unless given, another device under the same path, or the disk that is in the bay now
    new_device: Option<String>,
}

impl Replace {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let new = match self.new_device {
            Some(new) => new,
            None => match in_its_bay(client, &self.pool, &self.device)? {
                // What is on it would be overwritten, whatever that is.
                Some(new) if self.how.force => {
                    bail!("{new} is in the bay of {}; name it to use -f", self.device)
                }
                Some(new) => {
                    println!("replacing {} with {new}, which is in its bay", self.device);
                    new
                }
                None => self.device.clone(),
            },
        };
        let devices = (self.pool, self.device, new);
        self.how.run(client, typed, devices, true)
    }
}

/// The disk that is in the bay of a device that is gone, by its path. None where something is at
/// the device's path, or nothing is known of its bay.
fn in_its_bay(client: &Client, pool: &str, device: &str) -> anyhow::Result<Option<String>> {
    let devices = power::devices(client, pool)?;
    let Some(gone) = power::named(devices, device) else {
        return Ok(None);
    };
    if gone
        .path
        .as_ref()
        .is_none_or(|path| Path::new(path).exists())
    {
        return Ok(None);
    }
    let disks = client.call(&DiskOverview {})?.disks;
    Ok(successor(&disks, gone.guid).map(|disk| disk.path.clone()))
}

/// The one disk without anything of a pool on it where a pool's device was when it last worked.
fn successor(disks: &[DiskState], gone: Guid) -> Option<&DiskState> {
    let is_its = |disk: &&DiskState| disk.members.iter().any(|member| member.guid == gone);
    let place = disks.iter().find(is_its)?;
    place.bay.as_ref()?;
    let mut there = disks.iter().filter(|disk| {
        let is_here = disk.condition != DiskCondition::Missing && disk.id != place.id;
        is_here && disk.enclosure == place.enclosure && disk.bay == place.bay
    });
    let found = there.next().filter(|disk| disk.members.is_empty())?;
    // Several paths of a disk, or an enclosure that tells nonsense: a person has to say which.
    there.next().is_none().then_some(found)
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
        let taken = client.call(&ZpoolDetach {
            name: self.pool,
            device: self.device,
            command: typed,
        });
        taken.map(drop).map_err(minus_one("cannot detach "))
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
    /// Switch the power of their bays off
    #[arg(long, conflicts_with_all = ["fault", "temporary"])]
    power: bool,
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
            let bay = match self.power {
                true => Some(power::device(client, &self.pool, device)?),
                false => None,
            };
            if let Some(vdev) = &bay {
                power::check_switch(client, vdev)?;
            }
            client.call(&ZpoolOffline {
                name: self.pool.clone(),
                device: device.clone(),
                temporary: self.temporary,
                fault: self.fault,
                command: typed.to_owned(),
            })?;
            match &bay {
                Some(vdev) => power::switch_off(client, vdev),
                None => Ok(()),
            }
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
    /// Switch the power of their bays on, and wait until they are there
    #[arg(long)]
    power: bool,
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
        if power::is_wanted(self.power) {
            let vdev = power::device(client, &self.pool, device)?;
            power::switch_on(client, &[vdev])?;
        }
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

#[cfg(test)]
mod tests {
    use api::{DiskMember, VdevState};

    use super::*;

    #[test]
    fn a_disk_follows_another_one_in_its_bay_alone() {
        let disk = |id: &str, enclosure: &str, bay: &str, guid: Option<u64>| DiskState {
            id: id.to_owned(),
            path: format!("/dev/{id}"),
            enclosure: Some(enclosure.to_owned()),
            bay: Some(bay.to_owned()),
            members: guid
                .map(|guid| DiskMember {
                    pool: "tank".to_owned(),
                    guid: Guid(guid),
                    path: format!("/dev/{id}"),
                    vdev: "mirror-0".to_owned(),
                    state: VdevState::Unavailable,
                })
                .into_iter()
                .collect(),
            condition: match guid {
                Some(_) => DiskCondition::Missing,
                None => DiskCondition::Good,
            },
            ..DiskState::default()
        };
        let gone = disk("old", "A", "3", Some(7));
        let new = disk("new", "A", "3", None);
        let path = |disks: &[DiskState]| {
            let found = successor(disks, Guid(7));
            found.map(|disk| disk.path.clone())
        };
        let all = [
            gone.clone(),
            disk("a", "B", "3", None),
            disk("b", "A", "4", None),
        ];
        assert_eq!(path(&all), None);
        assert_eq!(
            path(&[gone.clone(), new.clone()]),
            Some("/dev/new".to_owned())
        );
        let second = disk("second", "A", "3", None);
        assert_eq!(path(&[gone.clone(), new.clone(), second]), None);
        let mut used = disk("used", "A", "3", Some(8));
        used.condition = DiskCondition::Good;
        assert_eq!(path(&[gone.clone(), used]), None);
        let mut nowhere = gone;
        nowhere.bay = None;
        assert_eq!(path(&[nowhere, new]), None);
    }
}
