//! The `zpool` command line (zpool(8)).

mod activity;
mod administer;
mod color;
mod condition;
mod create;
mod events;
mod get;
mod import;
mod iostat;
mod list;
mod power;
pub mod progress;
mod rebuild;
mod repeat;
mod scan;
mod scripts;
mod scrub;
mod split;
mod status;
mod topology;
mod vdevs;
mod wait;
pub mod words;

pub use get::source_text;

use anyhow::anyhow;
use api::{
    DdtPruned, HistoryRecord, PoolHistory, Prefetched, ServerInfo, ZpoolClear, ZpoolDdtPrune,
    ZpoolDestroy, ZpoolExport, ZpoolFreeze, ZpoolHistory, ZpoolPrefetch, ZpoolSet, ZpoolStatus,
    ZpoolSync,
};
use clap::{Args, Parser, Subcommand};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::usage::Status;
use crate::{json, numbers, refusals};

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
    /// Have a pool write no more transaction groups: for tests
    #[command(hide = true)]
    Freeze(Freeze),
    /// Read tables of deduplicated and of cloned blocks into memory
    Prefetch(Prefetch),
    /// Remove the oldest entries with one reference from dedup tables
    Ddtprune(DdtPrune),
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
    Wait(wait::Wait),
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
    /// JSON (not in OpenZFS)
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long, requires = "json")]
    json_int: bool,
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
struct Freeze {
    pool: String,
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
        _ => Err("unsupported prefetch type\nit is ddt or brt".into()),
    }
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("amount").required(true))]
struct DdtPrune {
    /// Entries that have not changed for so many days
    #[arg(short, group = "amount", value_parser = days)]
    days: Option<u32>,
    /// So many hundredths of the entries with one reference
    #[arg(short, group = "amount", value_parser = percent)]
    percent: Option<u8>,
    pool: String,
}

fn days(word: &str) -> Result<u32, String> {
    let days = word.parse().ok().filter(|days| *days > 0);
    days.ok_or_else(|| "invalid days value".to_owned())
}

fn percent(word: &str) -> Result<u8, String> {
    let percent = word
        .parse()
        .ok()
        .filter(|percent| (1..=100).contains(percent));
    percent.ok_or_else(|| "invalid percentage value".to_owned())
}

impl DdtPrune {
    fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let what = match (self.days, self.percent) {
            (Some(days), _) => DdtPruned::Days(days),
            (None, percent) => DdtPruned::Percent(percent.unwrap_or_default()),
        };
        let pruned = client.call(&ZpoolDdtPrune {
            name: self.pool,
            what,
            command: typed,
        });
        pruned
            .map(drop)
            .map_err(administer::minus_one("cannot open "))
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
    /// With -F, as far back as it takes: nothing is lost either
    #[arg(short = 'X')]
    extreme: bool,
    /// Switch on the power of the device's bay, or of all, first
    #[arg(long)]
    power: bool,
    pool: String,
    device: Option<String>,
}

/// The error's number that OpenZFS's `zpool set` ends with where it is given no pool, or no vdev of
/// it (`zpool_do_set`, cmd/zpool/zpool_main.c).
const EINVAL: u8 = 22;

/// What the daemon says of a property of a pool that is not set, as OpenZFS says it
/// (`zpool_valid_proplist`, lib/libzfs/libzfs_pool.c; `zpool_do_set`, cmd/zpool/zpool_main.c).
fn set_words(error: anyhow::Error, name: &str, property: &str, value: &str) -> anyhow::Error {
    let text = format!("{error:#}");
    let feature = property.strip_prefix("feature@").unwrap_or_default();
    let why = if text.contains("compatibility: there is no file") {
        return anyhow!("Error: could not read/parse feature file(s): {value} \n{text}");
    } else if text.starts_with("cannot enable feature ") {
        format!("feature '{feature}' unsupported by kernel")
    } else if text.contains("it is an invalid name") {
        format!("'{value}' is an invalid name")
    } else if text.contains("there is no such dataset") {
        "no such pool or dataset".to_owned()
    } else if property == "cachefile" && !value.starts_with('/') {
        "property 'cachefile' must be empty, an absolute path, or 'none'".to_owned()
    } else if property == "name" {
        "'name' is readonly".to_owned()
    } else {
        return error;
    };
    anyhow!("cannot set property for '{name}': {why}\n{text}")
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
                    "missing value in property=value argument\n'{}' has none",
                    set.assignment
                );
            };
            let (property, value) = (property.to_owned(), value.to_owned());
            let name = set.pool;
            if !client.call(&ServerInfo {})?.pools.contains(&name) {
                bail_status!(EINVAL, "cannot open '{name}': is not a pool");
            }
            let vdev = match set.vdev {
                Some(vdev) => {
                    let found = get::find_vdev(client, &name, &vdev);
                    Some(found.map_err(|error| {
                        let text = format!("{error:#}");
                        match text.starts_with("cannot find ") {
                            true => Status { code: EINVAL, text }.into(),
                            false => error,
                        }
                    })?)
                }
                None => None,
            };
            let changed = client.call(&ZpoolSet {
                name: name.clone(),
                vdev,
                property: property.clone(),
                value: value.clone(),
                command: typed,
            });
            match changed {
                Ok(_) => Ok(()),
                Err(error) => Err(set_words(error, &name, &property, &value)),
            }
        }
        Command::Scrub(scrub) => scrub.run(client, typed),
        Command::Initialize(initialize) => initialize.run(client, &typed),
        Command::Trim(trim) => trim.run(client, &typed),
        Command::Checkpoint(checkpoint) => checkpoint.run(client, typed),
        Command::Wait(wait) => wait.run(client),
        Command::Events(events) => events.run(client),
        Command::History(history) => print_history(&history, client),
        Command::Version(version) => version.run("zpool"),
        Command::Freeze(freeze) => {
            client.call(&ZpoolFreeze { name: freeze.pool })?;
            Ok(())
        }
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
        Command::Ddtprune(prune) => prune.run(client, typed),
        Command::Clear(clear) => {
            if (clear.dry_run || clear.extreme) && !clear.rewind {
                bail_usage!("-n or -X only meaningful with -F");
            }
            if clear.dry_run {
                let names = vec![clear.pool];
                client.call(&ZpoolStatus {
                    names,
                    verbose: false,
                })?;
                return Ok(());
            }
            if power::is_wanted(clear.power) {
                let devices = match &clear.device {
                    Some(word) => vec![power::device(client, &clear.pool, word)?],
                    None => power::devices(client, &clear.pool)?,
                };
                // What is there is cleared all the same.
                if let Err(error) = power::switch_on(client, &devices) {
                    eprintln!("{error:#}");
                }
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
    if history.json {
        json::print(history_document(history, &reply.pools))?;
        return refusals::all_found(&refusals::tell_absent(&history.pools, reply.absent));
    }
    for pool in reply.pools {
        println!("History for '{}':", pool.name);
        for record in pool.records {
            let Some(text) = history.text(&record) else {
                continue;
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

impl History {
    /// What a record says; nothing where it is not asked for.
    fn text<'a>(&self, record: &'a HistoryRecord) -> Option<&'a String> {
        let internal = record.internal.as_ref().filter(|_| self.internal);
        record.command.as_ref().or(internal)
    }
}

/// What histories say, pool by pool.
fn history_document(history: &History, pools: &[PoolHistory]) -> Map<String, Value> {
    let entry = |record: &HistoryRecord| {
        history.text(record)?;
        let mut entry = Map::new();
        let mut tell = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                entry.insert(key.to_owned(), value);
            }
        };
        let number = |number: u64| json::value(&number.to_string(), history.json_int);
        tell("time", Some(number(record.time_s)));
        tell("command", record.command.clone().map(Value::from));
        let internal = record.internal.clone().filter(|_| history.internal);
        tell("internal", internal.map(Value::from));
        if history.long {
            tell("user", record.user.map(number));
            tell("host", record.host.clone().map(Value::from));
            tell("zone", record.zone.clone().map(Value::from));
        }
        Some(Value::Object(entry))
    };
    let by_name = pools.iter().map(|pool| {
        let records: Vec<Value> = pool.records.iter().filter_map(entry).collect();
        (pool.name.clone(), Value::Array(records))
    });
    let mut document = json::document("zpool history");
    document.insert("pools".into(), Value::Object(by_name.collect()));
    document
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn histories_in_json_hold_what_is_asked_for() {
        let history = |internal, long| History {
            internal,
            long,
            json: true,
            json_int: true,
            pools: Vec::new(),
        };
        let typed = HistoryRecord {
            time_s: 5,
            command: Some("zpool create tank sda".to_owned()),
            user: Some(0),
            host: Some("here".to_owned()),
            ..HistoryRecord::default()
        };
        let noted = HistoryRecord {
            time_s: 6,
            internal: Some("create pool".to_owned()),
            ..HistoryRecord::default()
        };
        let pools = [PoolHistory {
            name: "tank".to_owned(),
            records: vec![typed, noted],
        }];
        let few = history_document(&history(false, false), &pools);
        let create = "zpool create tank sda";
        assert_eq!(
            few["pools"]["tank"],
            json!([{"time": 5, "command": create}])
        );
        let all = history_document(&history(true, true), &pools);
        let expected = json!([
            {"time": 5, "command": create, "user": 0, "host": "here"},
            {"time": 6, "internal": "create pool"},
        ]);
        assert_eq!(all["pools"]["tank"], expected);
    }
}
