//! `zpool import`: what can be imported, and importing it.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use api::{FoundPoolReport, ImportedPool, Settings, VdevClass, VdevReport, ZpoolImport};
use clap::Args;
use format::{NvList, NvValue};
use serde_json::{Map, Value, json};

use super::condition;
use super::scripts::Told;
use super::vdevs::{self, Columns, Naming, leaf_name, print_config};
use super::words;
use crate::client::Client;
use crate::settings::assignments;
use crate::{json, numbers, refusals};

/// List pools that can be imported, or import them.
#[derive(Debug, Args)]
pub struct Import {
    /// Import every pool found
    #[arg(short)]
    all: bool,
    /// Directory or device to look at (default: /dev/disk/by-id and /dev; pools on files are found
    /// only so)
    #[arg(short = 'd')]
    search: Vec<String>,
    /// Look only at the devices that a cache file of OpenZFS names
    #[arg(short = 'c', conflicts_with = "search")]
    cache_file: Option<PathBuf>,
    /// Show or import destroyed pools
    #[arg(short = 'D')]
    destroyed: bool,
    /// Import what seems to be in use elsewhere
    #[arg(short)]
    force: bool,
    /// Load keys of encrypted datasets, and mount these too
    #[arg(short = 'l', conflicts_with = "no_mount")]
    load_keys: bool,
    /// Mount nothing
    #[arg(short = 'N')]
    no_mount: bool,
    /// Property of the pool, PROPERTY=VALUE, or mount options, comma-separated; 'ro' imports the
    /// pool itself for reading only
    #[arg(short = 'o')]
    properties: Vec<String>,
    /// Import without the devices of the intent log
    #[arg(short = 'm')]
    missing_log: bool,
    /// Import without vdevs that hold data, to rescue the rest; only with -o readonly=on
    #[arg(long)]
    missing_data: bool,
    /// The new name holds only until export
    #[arg(short = 't')]
    temporary_name: bool,
    /// Go back to an older state when the newest cannot be read
    #[arg(short = 'F')]
    rewind: bool,
    /// With -F, only say whether it would work and what would be lost
    #[arg(short = 'n')]
    dry_run: bool,
    /// With -F, as far back as it takes
    #[arg(short = 'X')]
    extreme: bool,
    /// Go back to this transaction group
    #[arg(short = 'T')]
    txg: Option<u64>,
    /// Go back to the checkpoint
    #[arg(long)]
    rewind_to_checkpoint: bool,
    /// Look at labels instead of a cache file (always done)
    #[arg(short = 's')]
    _scan: bool,
    /// Directory below which everything is mounted
    #[arg(short = 'R')]
    altroot: Option<String>,
    /// JSON of what can be imported, by GUID (not in OpenZFS)
    #[arg(short = 'j', long = "json", conflicts_with_all = ["all", "pool"])]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long, requires = "json")]
    json_int: bool,
    /// Name or GUID
    #[arg(conflicts_with = "all")]
    pool: Option<String>,
    /// New name
    new_name: Option<String>,
}

impl Import {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        if (self.dry_run || self.extreme) && !self.rewind {
            bail_usage!("-n or -X only meaningful with -F");
        }
        let importing = self.all || self.pool.is_some();
        let (properties, mount_options) = settings_and_options(&self.properties)?;
        let search = match &self.cache_file {
            Some(file) => devices_of_cache(file)?,
            None => self
                .search
                .iter()
                .map(|path| absolute(path))
                .collect::<anyhow::Result<_>>()?,
        };
        let call = ZpoolImport {
            search,
            pool: self.pool.clone(),
            all: self.all,
            new_name: self.new_name.clone(),
            destroyed: self.destroyed,
            force: self.force,
            no_mount: self.no_mount,
            missing_log: self.missing_log,
            missing_data: self.missing_data,
            temporary_name: self.temporary_name,
            rewind: self.rewind,
            extreme: self.extreme,
            dry_run: self.dry_run,
            txg: self.txg,
            checkpoint: self.rewind_to_checkpoint,
            altroot: self.altroot,
            properties,
            mount_options,
            command: typed,
        };
        let reply = client.call(&call)?;
        for pool in &reply.imported {
            print_imported(pool, self.dry_run);
        }
        for warning in reply.imported.iter().flat_map(|pool| &pool.warnings) {
            eprintln!("{warning}");
        }
        if importing {
            if self.load_keys && !self.dry_run {
                // One that was named by its GUID is not told from the others by its name.
                let named = |name: &String| name.parse::<u64>().is_err();
                let pool = self.new_name.or(self.pool).filter(named);
                crate::zfs::keys::load_all(client, pool, true)?;
            }
            if !reply.failures.is_empty() {
                bail!(refusals::all_words(&reply.failures));
            }
            return Ok(());
        }
        if self.json {
            return json::print(document(&reply.found, self.json_int));
        }
        if reply.found.is_empty() {
            eprintln!("no pools available to import");
        }
        for (index, pool) in reply.found.iter().enumerate() {
            if index > 0 {
                println!();
            }
            print_found(pool);
        }
        Ok(())
    }
}

/// Properties of a pool and options of mounts among the words of `-o`: options stand without a
/// value. What is to be read alone is so as a whole: OpenZFS would write to the pool all the same.
pub fn settings_and_options(words: &[String]) -> anyhow::Result<(Settings, Vec<String>)> {
    let (mut settings, mut options) = (Vec::new(), Vec::new());
    for word in words {
        if word.contains('=') {
            settings.push(word.clone());
            continue;
        }
        for option in word.split(',').filter(|option| !option.is_empty()) {
            match option {
                "ro" => settings.push("readonly=on".to_owned()),
                option => options.push(option.to_owned()),
            }
        }
    }
    Ok((assignments(&settings)?, options))
}

/// What an import found out: an older state that it went back to (`zpool_rewind_exclaim`,
/// lib/libzfs/libzfs_pool.c), and what it left undone.
fn print_imported(pool: &ImportedPool, dry_run: bool) {
    let name = &pool.name;
    if let Some(rewound) = pool.rewound {
        let when = numbers::local_ctime(rewound.timestamp_s);
        let verb = match dry_run {
            true => {
                println!("Would be able to return {name} to its state as of {when}.");
                "Would discard"
            }
            false => {
                println!("Pool {name} returned to its state as of {when}.");
                "Discarded"
            }
        };
        match rewound.lost_s {
            0 => {}
            lost @ 1..=120 => println!("{verb} approximately {lost} seconds of transactions."),
            lost => println!(
                "{verb} approximately {} minutes of transactions.",
                (lost + 30) / 60
            ),
        }
    }
    if !pool.missing_data.is_empty() {
        println!(
            "Pool {name} was imported read-only without devices that hold data: {}.\n\
             What is on these alone cannot be read: programs get an error where a file or a\n\
             directory has a part there. Names and small files mostly have copies elsewhere.\n\
             Copy what can be read to another pool; this one can only be written again with\n\
             these devices.",
            pool.missing_data.join(", ")
        );
    }
    if !pool.awaiting_replay.is_empty() {
        println!(
            "The intent logs of {} were not replayed: what was written just before the pool was \
             lost does not show.\n\
             Import the pool without '-o readonly=on' to have it.",
            pool.awaiting_replay.join(", ")
        );
    }
}

/// What can be imported, by GUID: names may be there twice.
fn document(found: &[FoundPoolReport], as_int: bool) -> Map<String, Value> {
    let by_guid = found.iter().map(|pool| {
        let mut entry = Map::new();
        entry.insert("name".into(), json!(pool.name));
        let guid = pool.guid.to_string();
        entry.insert("pool_guid".into(), json::value(&guid, as_int));
        entry.insert("state".into(), json!(words::state(pool.state)));
        entry.insert("destroyed".into(), json!(pool.is_destroyed));
        entry.insert("importable".into(), json!(pool.is_importable));
        let said = condition::of_found(pool);
        for (key, text) in [
            ("status", &said.status),
            ("action", &said.action),
            ("comment", &pool.comment),
            ("moreinfo", &said.see()),
            ("footer", &condition::footer(pool)),
        ] {
            if let Some(text) = text {
                entry.insert(key.into(), json!(text));
            }
        }
        if let Some(page) = said.page {
            entry.insert("msgid".into(), json!(page));
        }
        let mut vdevs = Map::new();
        add_vdev(&pool.tree, VdevClass::Normal, as_int, &mut vdevs);
        entry.insert("vdevs".into(), Value::Object(vdevs));
        (guid, Value::Object(entry))
    });
    let mut document = json::document("zpool import");
    document.insert("pools".into(), Value::Object(by_guid.collect()));
    document
}

/// Adds a vdev with those below it.
fn add_vdev(vdev: &VdevReport, above: VdevClass, as_int: bool, out: &mut Map<String, Value>) {
    let name = leaf_name(vdev, Naming::default());
    let mut entry = vdevs::info(vdev, &name, above, as_int);
    if let Some(aux) = vdev.aux {
        entry.insert("aux".into(), json!(words::aux(aux)));
    }
    let mut below = Map::new();
    for child in &vdev.children {
        add_vdev(child, vdev.class, as_int, &mut below);
    }
    if !below.is_empty() {
        entry.insert("vdevs".into(), Value::Object(below));
    }
    out.insert(name, Value::Object(entry));
}

/// As `show_import` lays it out: everything moves one column to the right below a comment.
fn print_found(pool: &FoundPoolReport) {
    let indent = if pool.comment.is_some() { " " } else { "" };
    let lines = |text: &str| text.replace('\n', &format!("\n\t{indent}"));
    println!("{indent}  pool: {}", pool.name);
    println!("{indent}    id: {}", pool.guid);
    let destroyed = if pool.is_destroyed {
        " (DESTROYED)"
    } else {
        ""
    };
    println!("{indent} state: {}{destroyed}", words::state(pool.state));
    let said = condition::of_found(pool);
    for (label, text) in [("status", &said.status), ("action", &said.action)] {
        if let Some(text) = text {
            println!("{indent}{label}: {}", lines(text));
        }
    }
    if let Some(comment) = &pool.comment {
        println!("comment: {comment}");
    }
    if let Some(see) = said.see() {
        println!("{indent}   see: {see}");
    }
    println!("{indent}config:\n");
    print_config(
        &pool.tree,
        Naming::default(),
        Columns::default(),
        &Told::default(),
    );
    if let Some(footer) = condition::footer(pool) {
        println!("\n\t{indent}{}", lines(&footer));
    }
}

/// Paths of the devices of all pools in a cache file that are there.
///
/// Source: module/os/linux/zfs/spa_config.c (`spa_write_cachefile`): an XDR nvlist, pools by name.
fn devices_of_cache(file: &Path) -> anyhow::Result<Vec<String>> {
    fn walk(vdev: &NvList, out: &mut Vec<String>) {
        if let Some(path) = vdev.string("path") {
            out.push(path.to_owned());
        }
        for list in ["children", "spares", "l2cache"] {
            let below = vdev.lists(list).unwrap_or_default();
            below.iter().for_each(|child| walk(child, out));
        }
    }
    let text = std::fs::read(file).with_context(|| format!("cannot open '{}'", file.display()))?;
    let pools = NvList::decode(&text)
        .with_context(|| format!("'{}' is no cache file of pools", file.display()))?;
    let mut paths = Vec::new();
    for (_, config) in pools.iter() {
        if let NvValue::List(config) = config
            && let Some(tree) = config.list("vdev_tree")
        {
            walk(tree, &mut paths);
        }
    }
    paths.retain(|path| Path::new(path).exists());
    if paths.is_empty() {
        bail!("no pools available to import");
    }
    Ok(paths)
}

fn absolute(path: &str) -> anyhow::Result<String> {
    let path = std::path::absolute(path)
        .with_context(|| format!("'{path}' cannot be made an absolute path"))?;
    Ok(path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use api::{Guid, VdevKind, VdevState};

    use super::*;

    #[test]
    fn options_of_mounts_are_told_from_properties() {
        let words = ["cachefile=none", "noexec,ro", "nosuid"].map(str::to_owned);
        let (settings, options) = settings_and_options(&words).expect("both");
        assert_eq!(options, ["noexec", "nosuid"]);
        let settings: Vec<_> = settings.into_iter().collect();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            settings,
            [pair("cachefile", "none"), pair("readonly", "on")]
        );
        let twice = ["ro", "readonly=off"].map(str::to_owned);
        assert!(settings_and_options(&twice).is_err());
    }

    #[test]
    fn pools_of_one_name_are_told_apart_in_json() {
        let found = |guid| FoundPoolReport {
            name: "tank".to_owned(),
            guid: Guid(guid),
            state: VdevState::Online,
            is_destroyed: false,
            is_importable: true,
            condition: None,
            lost_logs: None,
            comment: Some("left".to_owned()),
            tree: VdevReport {
                name: "tank".to_owned(),
                kind: VdevKind::Root,
                children: vec![VdevReport {
                    path: Some("/dev/sda".to_owned()),
                    ..VdevReport::default()
                }],
                ..VdevReport::default()
            },
        };
        let document = document(&[found(5), found(6)], false);
        for guid in ["5", "6"] {
            let pool = &document["pools"][guid];
            assert_eq!(pool["pool_guid"], guid);
            assert_eq!(
                (&pool["name"], &pool["comment"]),
                (&json!("tank"), &json!("left"))
            );
            assert_eq!(pool["vdevs"]["tank"]["vdevs"]["sda"]["path"], "/dev/sda");
            assert!(pool["action"].is_string(), "{pool}");
        }
    }
}
