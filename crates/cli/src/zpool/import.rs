//! `zpool import`: what can be imported, and importing it.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use api::{
    FoundPoolReport, Guid, ImportedPool, Settings, VdevClass, VdevReport, ZpoolImport,
    ZpoolImportReply,
};
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
    /// Only the pools that a cache file names, of OpenZFS or of property cachefile; their devices
    /// are looked for where it names them, then in the same directories
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
    #[arg(short = 'T', value_parser = txg)]
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

/// A transaction group's number.
fn txg(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| "invalid txg value".to_owned())
}

impl Import {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        if (self.dry_run || self.extreme) && !self.rewind {
            bail_usage!("-n or -X only meaningful with -F");
        }
        if self._scan && self.cache_file.is_some() {
            bail_usage!("-c is incompatible with -s");
        }
        let importing = self.all || self.pool.is_some();
        if self.load_keys && !importing {
            bail_usage!("-l is only meaningful during an import");
        }
        let (properties, mount_options) = settings_and_options(&self.properties)?;
        let cached = self.cache_file.as_deref().map(Cached::read).transpose()?;
        let mut search = self
            .search
            .iter()
            .map(|path| absolute(path))
            .collect::<anyhow::Result<Vec<_>>>()?;
        if search.is_empty()
            && cached.is_none()
            && let Ok(paths) = std::env::var("ZPOOL_IMPORT_PATH")
        {
            search = usual_places(&paths)?;
        }
        let call = ZpoolImport {
            search,
            guids: Vec::new(),
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
        let readonly = call
            .properties
            .get("readonly")
            .map_or("off", String::as_str);
        if let Some(pool) = &self.pool
            && !["on", "off"].contains(&readonly)
        {
            bail!("cannot import pool '{pool}': 'readonly' must be one of 'on | off'");
        }
        let reply = match &cached {
            Some(cached) => cached.import(client, call, importing)?,
            None => client
                .call(&call)
                .map_err(|error| in_their_words(error, &call))?,
        };
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
            if reply.imported.is_empty() {
                eprintln!("no pools available to import");
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

/// What the daemon says of names and properties, as OpenZFS says it of an import (`do_import`,
/// cmd/zpool/zpool_main.c; `zpool_import_props`, lib/libzfs/libzfs_pool.c).
fn in_their_words(error: anyhow::Error, call: &ZpoolImport) -> anyhow::Error {
    let text = format!("{error:#}");
    let pool = call.pool.as_deref().unwrap_or_default();
    if let Some(new) = &call.new_name {
        let of_name = text.strip_prefix(&format!("cannot import '{pool}' as '{new}': "));
        let begins = ["invalid character ", "name "];
        if let Some(why) = of_name.filter(|why| begins.iter().any(|begin| why.starts_with(begin))) {
            return anyhow!("cannot import '{new}': {why}");
        }
    }
    if text.starts_with("invalid alternate root ") {
        let root = call.altroot.as_deref().unwrap_or_default();
        return anyhow!("cannot import pool '{pool}': bad alternate root '{root}'\n{text}");
    }
    let of_property = text.strip_prefix("cannot import '");
    match of_property.filter(|_| text.ends_with("see zpoolprops(7)")) {
        Some(rest) => anyhow!("cannot import pool '{rest}"),
        None => error,
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

/// What a cache file says of the pools in it.
///
/// Source: module/zfs/spa_config.c (`spa_write_cachefile`): a packed nvlist, pools by name.
#[derive(Default)]
struct Cached {
    guids: Vec<Guid>,
    /// Paths of their devices that are there.
    devices: Vec<String>,
    /// The directories that have or had their devices.
    directories: Vec<String>,
}

impl Cached {
    fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(file)
            .map_err(|error| anyhow!("failed to open cache file: {error}\n{}", file.display()))?;
        let pools = NvList::decode(&text)
            .with_context(|| format!("'{}' is no cache file of pools", file.display()))?;
        let mut cached = Self::default();
        for (_, config) in pools.iter() {
            if let NvValue::List(config) = config
                && let (Some(guid), Some(tree)) =
                    (config.u64("pool_guid"), config.list("vdev_tree"))
            {
                cached.guids.push(Guid(guid));
                cached.add(tree);
            }
        }
        cached.devices.retain(|path| Path::new(path).exists());
        cached.directories.retain(|path| Path::new(path).is_dir());
        if cached.directories.is_empty() {
            bail!("no pools available to import");
        }
        Ok(cached)
    }

    fn add(&mut self, vdev: &NvList) {
        if let Some(path) = vdev.string("path") {
            self.devices.push(path.to_owned());
            let directory = Path::new(path).parent().map(Path::to_string_lossy);
            let directory = directory.unwrap_or_default().into_owned();
            if !self.directories.contains(&directory) {
                self.directories.push(directory);
            }
        }
        for list in ["children", "spares", "l2cache"] {
            let below = vdev.lists(list).unwrap_or_default();
            below.iter().for_each(|child| self.add(child));
        }
    }

    /// Looks at the devices, and when these do not give all pools, at what else is in their
    /// directories: they may have other names (`zpool_do_import`, cmd/zpool/zpool_main.c;
    /// `discover_cached_paths`, lib/libzutil/zutil_import.c).
    fn import(
        &self,
        client: &Client,
        mut call: ZpoolImport,
        importing: bool,
    ) -> anyhow::Result<ZpoolImportReply> {
        call.guids.clone_from(&self.guids);
        let wanted = match call.all || !importing {
            true => self.guids.len(),
            false => 1,
        };
        let mut first = ZpoolImportReply::default();
        if !self.devices.is_empty() {
            call.search.clone_from(&self.devices);
            if let Ok(reply) = client.call(&call) {
                let there = reply.imported.len() + reply.found.len();
                if reply.failures.is_empty() && there >= wanted {
                    return Ok(reply);
                }
                first = reply;
            }
        }
        call.search.clone_from(&self.directories);
        let reply = client.call(&call)?;
        Ok(merged(first, reply, call.dry_run))
    }
}

/// What two looks have given, of which the second one saw more.
fn merged(
    first: ZpoolImportReply,
    mut second: ZpoolImportReply,
    dry_run: bool,
) -> ZpoolImportReply {
    // What was not really imported was found again.
    if !dry_run {
        let mut imported = first.imported;
        imported.append(&mut second.imported);
        second.imported = imported;
    }
    for pool in first.found {
        if !second.found.iter().any(|other| other.guid == pool.guid) {
            second.found.push(pool);
        }
    }
    second
}

/// Directories and devices between colons, those that are there (`zpool_do_import`,
/// cmd/zpool/zpool_main.c; `zpool_find_import_scan`, lib/libzutil/zutil_import.c).
fn usual_places(paths: &str) -> anyhow::Result<Vec<String>> {
    let paths = paths.split(':').filter(|path| !path.is_empty());
    let there = paths.filter(|path| Path::new(path).exists());
    let there = there.map(absolute).collect::<anyhow::Result<Vec<_>>>()?;
    if there.is_empty() {
        bail!("no pools available to import");
    }
    Ok(there)
}

fn absolute(path: &str) -> anyhow::Result<String> {
    let path = std::path::absolute(path)
        .with_context(|| format!("'{path}' cannot be made an absolute path"))?;
    Ok(path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use api::{VdevKind, VdevState};

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
    fn what_two_looks_have_imported_is_told_once() {
        let imported = |name: &str| ZpoolImportReply {
            imported: vec![ImportedPool {
                name: name.to_owned(),
                ..ImportedPool::default()
            }],
            ..ZpoolImportReply::default()
        };
        for (second, dry_run, expected) in [("two", false, "one two "), ("one", true, "one ")] {
            let both = merged(imported("one"), imported(second), dry_run);
            let names = both.imported.iter().map(|pool| format!("{} ", pool.name));
            assert_eq!(names.collect::<String>(), expected);
        }
    }

    #[test]
    fn places_of_the_environment_are_those_that_are_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let here = directory.path().to_string_lossy();
        let places = usual_places(&format!("{here}/none::{here}")).expect("one");
        assert_eq!(places, [&*here]);
        assert!(usual_places(&format!("{here}/none")).is_err());
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
