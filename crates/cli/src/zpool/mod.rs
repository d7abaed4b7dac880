//! The `zpool` command line (zpool(8)).

mod activity;
mod administer;
mod condition;
mod create;
mod events;
mod get;
mod import;
mod iostat;
mod list;
pub mod progress;
mod rebuild;
mod repeat;
mod scan;
mod scrub;
mod split;
mod status;
mod topology;
mod vdevs;
pub mod words;

pub use get::source_text;

use api::{
    Prefetched, ZpoolClear, ZpoolDestroy, ZpoolExport, ZpoolHistory, ZpoolPrefetch, ZpoolSet,
    ZpoolStatus, ZpoolSync,
};
use clap::{Args, Parser, Subcommand};

use crate::client::Client;
use crate::{numbers, refusals};

/// Configure storage pools.
#[derive(Debug, Parser)]
#[command(name = "zpool", version, args_override_self = true)]
pub struct Zpool {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a pool of the given devices
    Create(create::Create),
    /// Give a pool more vdevs, spares or cache devices
    Add(administer::Add),
    /// Take log vdevs, spares and cache devices out of a pool
    Remove(administer::Remove),
    /// Mirror a device with a new one
    Attach(topology::Attach),
    /// Replace a device by a new one
    Replace(topology::Replace),
    /// Take a device out of its mirror
    Detach(topology::Detach),
    /// Take devices out of use
    Offline(topology::Offline),
    /// Use devices again
    Online(topology::Online),
    /// Make a new pool of one device of each mirror
    Split(split::Split),
    /// Look at all devices of pools again
    Reopen(topology::Reopen),
    /// Begin the resilver that devices wait for
    Resilver(topology::Resilver),
    /// Give a pool another GUID
    Reguid(administer::Reguid),
    /// Remove ZFS labels from a device
    #[command(name = "labelclear")]
    LabelClear(administer::LabelClear),
    /// Show which features pools lack, or enable them
    Upgrade(administer::Upgrade),
    /// Destroy a pool
    Destroy(Destroy),
    /// List pools that can be imported, or import them
    Import(import::Import),
    /// Export pools, so that another system can import them
    Export(Export),
    /// List pools with their sizes and health
    #[command(disable_help_flag = false)]
    List(list::List),
    /// Tell how much pools and their devices read and write
    Iostat(iostat::Iostat),
    /// Tell the condition of pools and their devices
    Status(status::Status),
    /// Print properties of pools
    Get(get::Get),
    /// Set a property of a pool, or of one of its vdevs
    Set(Set),
    /// Print the commands that were run on pools
    History(History),
    /// Write everything that is pending
    Sync(Sync),
    /// Read tables of deduplicated and of cloned blocks into memory
    Prefetch(Prefetch),
    /// Clear device errors, resume a suspended pool
    Clear(Clear),
    /// Print what pools told of, and what they tell
    Events(events::Events),
    /// Print the version
    Version(crate::version::Version),
    /// Verify all copies of all data, and write anew what is wrong
    Scrub(scrub::Scrub),
    /// Write over the free space of devices
    Initialize(activity::Initialize),
    /// Tell devices of free space
    Trim(activity::Trim),
    /// Keep the pool's present state to go back to, or discard what is kept
    Checkpoint(scrub::Checkpoint),
    /// Wait until activities of a pool have ended
    Wait(scrub::Wait),
}

#[derive(Debug, Args)]
struct Destroy {
    /// Unmount even what is in use
    #[arg(short)]
    force: bool,
    pool: String,
}

#[derive(Debug, Args)]
struct Export {
    /// Every pool
    #[arg(short)]
    all: bool,
    /// Unmount even what is in use
    #[arg(short)]
    force: bool,
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pools: Vec<String>,
}

#[derive(Debug, Args)]
struct Set {
    /// PROPERTY=VALUE
    assignment: String,
    pool: String,
    /// The vdev: a name, path or GUID, or root-0
    vdev: Option<String>,
}

#[derive(Debug, Args)]
struct History {
    /// Internal events too
    #[arg(short)]
    internal: bool,
    /// Who, and on which host
    #[arg(short)]
    long: bool,
    pools: Vec<String>,
}

#[derive(Debug, Args)]
struct Sync {
    /// Write the configuration and a new uberblock even where nothing changed
    #[arg(short)]
    force: bool,
    pools: Vec<String>,
}

#[derive(Debug, Args)]
struct Prefetch {
    /// ddt (dedup tables) or brt (tables of cloned blocks); both without it
    #[arg(short = 't', value_name = "TYPE", value_parser = prefetched)]
    what: Option<Prefetched>,
    pool: String,
}

fn prefetched(text: &str) -> Result<Prefetched, String> {
    match text {
        "ddt" => Ok(Prefetched::Ddt),
        "brt" => Ok(Prefetched::Brt),
        _ => Err("it is ddt or brt".into()),
    }
}

#[derive(Debug, Args)]
struct Clear {
    /// Go back to an older state where the newest cannot be read: a pool that is imported can be,
    /// so nothing is lost
    #[arg(short = 'F')]
    rewind: bool,
    /// With -F, only say whether it would work: nothing is cleared
    #[arg(short = 'n')]
    dry_run: bool,
    pool: String,
    device: Option<String>,
}

/// Runs a parsed `zpool` command. `typed` is the command line for the pool's history.
pub fn run(zpool: Zpool, client: &Client, typed: String) -> anyhow::Result<()> {
    match zpool.command {
        Command::Create(create) => create.run(client, typed),
        Command::Add(add) => add.run(client, typed),
        Command::Remove(remove) => remove.run(client, typed),
        Command::Attach(attach) => attach.run(client, typed),
        Command::Replace(replace) => replace.run(client, typed),
        Command::Detach(detach) => detach.run(client, typed),
        Command::Offline(offline) => offline.run(client, &typed),
        Command::Online(online) => online.run(client, &typed),
        Command::Split(split) => split.run(client, typed),
        Command::Reopen(reopen) => reopen.run(client, typed),
        Command::Resilver(resilver) => resilver.run(client, typed),
        Command::Reguid(reguid) => reguid.run(client, typed),
        Command::LabelClear(clear) => clear.run(client),
        Command::Upgrade(upgrade) => upgrade.run(client, typed),
        Command::Destroy(destroy) => {
            client.call(&ZpoolDestroy {
                name: destroy.pool,
                force: destroy.force,
                command: typed,
            })?;
            Ok(())
        }
        Command::Import(import) => import.run(client, typed),
        Command::Export(export) => {
            client.call(&ZpoolExport {
                names: export.pools,
                all: export.all,
                force: export.force,
                command: typed,
            })?;
            Ok(())
        }
        Command::List(list) => list.run(client),
        Command::Iostat(iostat) => iostat.run(client),
        Command::Status(status) => status.run(client),
        Command::Get(get) => get.run(client),
        Command::Set(set) => {
            let Some((property, value)) = set.assignment.split_once('=') else {
                bail_usage!(
                    "missing value in property=value argument '{}'",
                    set.assignment
                );
            };
            let (property, value) = (property.to_owned(), value.to_owned());
            let vdev = match set.vdev {
                Some(vdev) => Some(get::find_vdev(client, &set.pool, &vdev)?),
                None => None,
            };
            client.call(&ZpoolSet {
                name: set.pool,
                vdev,
                property,
                value,
                command: typed,
            })?;
            Ok(())
        }
        Command::Scrub(scrub) => scrub.run(client, typed),
        Command::Initialize(initialize) => initialize.run(client, &typed),
        Command::Trim(trim) => trim.run(client, &typed),
        Command::Checkpoint(checkpoint) => checkpoint.run(client, typed),
        Command::Wait(wait) => wait.run(client),
        Command::Events(events) => events.run(client),
        Command::History(history) => print_history(&history, client),
        Command::Version(version) => version.run("zpool"),
        Command::Sync(sync) => {
            client.call(&ZpoolSync {
                names: sync.pools,
                force: sync.force,
            })?;
            Ok(())
        }
        Command::Prefetch(prefetch) => {
            client.call(&ZpoolPrefetch {
                name: prefetch.pool,
                what: prefetch.what,
            })?;
            Ok(())
        }
        Command::Clear(clear) => {
            if clear.dry_run && !clear.rewind {
                bail_usage!("-n only meaningful with -F");
            }
            if clear.dry_run {
                let names = vec![clear.pool];
                client.call(&ZpoolStatus {
                    names,
                    verbose: false,
                })?;
                return Ok(());
            }
            client.call(&ZpoolClear {
                name: clear.pool,
                vdev: clear.device,
                command: typed,
            })?;
            Ok(())
        }
    }
}

fn print_history(history: &History, client: &Client) -> anyhow::Result<()> {
    let reply = client.call(&ZpoolHistory {
        names: history.pools.clone(),
    })?;
    let users = numbers::Users::load();
    for pool in reply.pools {
        println!("History for '{}':", pool.name);
        for record in pool.records {
            let text = match (&record.command, &record.internal) {
                (Some(command), _) => command.clone(),
                (None, Some(event)) if history.internal => event.clone(),
                _ => continue,
            };
            let mut line = format!("{} {text}", numbers::local_history(record.time_s));
            if history.long {
                line.push_str(" [");
                if let Some(user) = record.user {
                    line.push_str(&format!("user {user} "));
                    if let Some(name) = users.name(user) {
                        line.push_str(&format!("({name}) "));
                    }
                }
                if let Some(host) = &record.host {
                    line.push_str(&format!("on {host}"));
                }
                if let Some(zone) = &record.zone {
                    line.push_str(&format!(":{zone}"));
                }
                line.push(']');
            }
            println!("{line}");
        }
        println!();
    }
    refusals::all_found(&refusals::tell_absent(&history.pools, reply.absent))
}
