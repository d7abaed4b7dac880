//! `zpool initialize` and `zpool trim` (`zpool_do_initialize`, `zpool_do_trim`,
//! cmd/zpool/zpool_main.c; `zpool_initialize_impl`, `check_trim_errs`, lib/libzfs/libzfs_pool.c).

use api::{
    ActivityAction, ActivityObstacle, ActivityRefusal, ActivityReply, ServerInfo, ZpoolInitialize,
    ZpoolTrim,
};
use clap::Args;

use crate::client::Client;
use crate::numbers;
use crate::usage::{MINUS_ONE, Status};

/// Write over the free space of devices.
#[derive(Debug, Args)]
pub struct Initialize {
    /// Every pool
    #[arg(short, long)]
    all: bool,
    /// Stop, and give up
    #[arg(short, long)]
    cancel: bool,
    /// Stop, to go on some time
    #[arg(short, long)]
    suspend: bool,
    /// Forget what was initialized
    #[arg(short, long)]
    uninit: bool,
    /// Wait until it is done
    #[arg(short, long)]
    wait: bool,
    /// Write zeros
    #[arg(short, long)]
    zero: bool,
    /// POOL [DEVICE]...
    names: Vec<String>,
}

/// Tell devices of free space.
#[derive(Debug, Args)]
pub struct Trim {
    /// Every pool
    #[arg(short, long)]
    all: bool,
    /// Stop, and give up
    #[arg(short, long)]
    cancel: bool,
    /// Erase for good: refused, as it is of devices that cannot, and of all here
    #[arg(short = 'd', long)]
    secure: bool,
    /// Bytes per second, at most
    #[arg(short, long)]
    rate: Option<String>,
    /// Stop, to go on some time
    #[arg(short, long)]
    suspend: bool,
    /// Wait until it is done
    #[arg(short, long)]
    wait: bool,
    /// POOL [DEVICE]...
    names: Vec<String>,
}

/// The pools that are meant, and the devices of the one.
fn pools(
    client: &Client,
    of: &str,
    all: bool,
    names: Vec<String>,
) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let mut names = names.into_iter();
    match (all, names.next()) {
        (true, Some(_)) => bail_usage!("-a cannot be combined with individual {of} or vdevs"),
        (true, None) => Ok((client.call(&ServerInfo {})?.pools, Vec::new())),
        (false, None) => bail_usage!("missing pool name argument"),
        (false, Some(pool)) => Ok((vec![pool], names.collect())),
    }
}

impl Initialize {
    fn action(&self) -> anyhow::Result<ActivityAction> {
        let wanted = [
            (self.cancel, "-c", ActivityAction::Cancel),
            (self.suspend, "-s", ActivityAction::Suspend),
            (self.uninit, "-u", ActivityAction::Uninit),
        ];
        let mut wanted = wanted.into_iter().filter(|(is_wanted, ..)| *is_wanted);
        let action = wanted.next().map_or(ActivityAction::Start, |first| first.2);
        if let Some((_, option, _)) = wanted.next() {
            bail_usage!("{option} cannot be combined with other options");
        }
        if action != ActivityAction::Start {
            for (is_given, option) in [(self.wait, "-w"), (self.zero, "-z")] {
                if is_given {
                    bail_usage!("{option} cannot be used with -c, -sor -u");
                }
            }
        }
        Ok(action)
    }

    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: &str) -> anyhow::Result<()> {
        let action = self.action()?;
        let (pools, devices) = pools(client, "pools", self.all, self.names)?;
        let mut said = Vec::new();
        for name in pools {
            let reply = client.call(&ZpoolInitialize {
                name,
                devices: devices.clone(),
                action,
                zero: self.zero,
                command: typed.to_owned(),
            });
            let reply = reply.map_err(unopened)?;
            said.extend(
                reply
                    .refused
                    .iter()
                    .map(|refusal| line("initialize", refusal)),
            );
            wait(client, self.wait, &reply)?;
        }
        told(said)
    }
}

impl Trim {
    fn action(&self) -> anyhow::Result<ActivityAction> {
        let action = match (self.cancel, self.suspend) {
            (true, true) => bail_usage!("-s cannot be combined with other options"),
            (true, _) => ActivityAction::Cancel,
            (_, true) => ActivityAction::Suspend,
            _ => return Ok(ActivityAction::Start),
        };
        for (is_given, option) in [(self.secure, "-d"), (self.rate.is_some(), "-r")] {
            if is_given {
                bail_usage!("{option} cannot be combined with the -c or -s options");
            }
        }
        if self.wait {
            bail_usage!("-w cannot be used with -c or -s options");
        }
        Ok(action)
    }

    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: &str) -> anyhow::Result<()> {
        let action = self.action()?;
        let rate = match &self.rate {
            None => 0,
            Some(text) => match numbers::parse_size(text) {
                Some(rate) => rate,
                None => bail_usage!("invalid value for rate: bad numeric value '{text}'"),
            },
        };
        let (pools, devices) = pools(client, "zpools", self.all, self.names)?;
        let mut said = Vec::new();
        for name in pools {
            let reply = client.call(&ZpoolTrim {
                name,
                devices: devices.clone(),
                action,
                rate,
                secure: self.secure,
                command: typed.to_owned(),
            });
            let reply = reply.map_err(unopened)?;
            said.extend(of_trim(&reply, devices.is_empty() && !self.secure));
            wait(client, self.wait, &reply)?;
        }
        told(said)
    }
}

/// How it ends where the pool cannot be opened.
fn unopened(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    match text.starts_with("cannot open ") {
        true => Status {
            code: MINUS_ONE,
            text,
        }
        .into(),
        false => error,
    }
}

/// What is said of a trim. Where a whole pool was meant, devices that cannot do it are left out,
/// unless none can.
fn of_trim(reply: &ActivityReply, is_lenient: bool) -> Vec<String> {
    let cannot = |refusal: &&ActivityRefusal| refusal.why == ActivityObstacle::TrimUnsupported;
    if is_lenient && reply.devices > 0 {
        let count = reply.refused.iter().filter(cannot).count();
        if count == reply.devices {
            return vec!["cannot trim: no devices in pool support trim operations".to_owned()];
        }
    }
    let told = reply.refused.iter();
    told.filter(|refusal| !is_lenient || !cannot(refusal))
        .map(|refusal| line("trim", refusal))
        .collect()
}

fn line(verb: &str, refusal: &ActivityRefusal) -> String {
    let why = match (refusal.why, verb) {
        (ActivityObstacle::NoSuchDevice, _) => "no such device in pool",
        (ActivityObstacle::Spare, _) => "device is reserved as a hot spare",
        (ActivityObstacle::Cache, _) => "device is in use as a cache",
        (ActivityObstacle::NotWriteable, _) => "invalid device",
        (ActivityObstacle::TrimUnsupported, _) => {
            "trim operations are not supported by this device"
        }
        (ActivityObstacle::Busy, "trim") => "currently trimming",
        (ActivityObstacle::Busy, _) => "currently initializing",
        (ActivityObstacle::NotActive, "trim") => "there is no active trim",
        (ActivityObstacle::NotActive, _) => "there is no active initialization",
        (ActivityObstacle::Expanded, _) => {
            "this is not supported yet on devices of an expanded raidz vdev"
        }
    };
    format!("cannot {verb} '{}': {why}", refusal.device)
}

fn told(said: Vec<String>) -> anyhow::Result<()> {
    match said.is_empty() {
        true => Ok(()),
        false => bail_status!(MINUS_ONE, "{}", said.join("\n")),
    }
}

fn wait(client: &Client, waits: bool, reply: &ActivityReply) -> anyhow::Result<()> {
    match waits {
        true => client.wait_for(&reply.jobs),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_pool_is_trimmed_where_it_can_be() {
        let refusal = |device: &str, why| ActivityRefusal {
            device: device.into(),
            why,
        };
        let mut reply = ActivityReply {
            refused: vec![refusal("/a", ActivityObstacle::TrimUnsupported)],
            devices: 2,
            jobs: Vec::new(),
        };
        assert!(of_trim(&reply, true).is_empty());
        assert_eq!(
            of_trim(&reply, false),
            ["cannot trim '/a': trim operations are not supported by this device"]
        );
        reply.devices = 1;
        assert_eq!(
            of_trim(&reply, true),
            ["cannot trim: no devices in pool support trim operations"]
        );
        reply.refused = vec![refusal("/a", ActivityObstacle::Busy)];
        assert_eq!(
            of_trim(&reply, true),
            ["cannot trim '/a': currently trimming"]
        );
    }
}
