//! `zpool list` (`zpool_do_list`, cmd/zpool/zpool_main.c).

use std::collections::BTreeMap;

use api::{PoolReport, Property, Source, VdevClass, VdevReport, ZpoolList};
use clap::Args;
use serde_json::{Map, Value};

use super::repeat::Repeat;
use super::vdevs::{self, CLASSES, Naming, class_heading, leaf_name, name_width};
use super::words;
use crate::client::Client;
use crate::columns::{Column, render};
use crate::{json, numbers, refusals};

const DEFAULT_COLUMNS: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,\
                               capacity,dedupratio,health,altroot";

/// What the memory for the index of cache devices is called. It is a column of this command alone,
/// no property: OpenZFS has none, and lists those of a pool in `zpool get all`.
const CACHE_INDEX: &str = "cacheindex";

/// List pools with their sizes and health.
#[derive(Debug, Args)]
pub struct List {
    /// No headings, tabs between fields
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    parseable: bool,
    /// Every vdev
    #[arg(short)]
    verbose: bool,
    #[command(flatten)]
    naming: Naming,
    #[command(flatten)]
    repeat: Repeat,
    /// Properties, comma-separated
    #[arg(short = 'o', default_value = DEFAULT_COLUMNS)]
    columns: String,
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long, requires = "json")]
    json_int: bool,
    /// With -j, pools by GUID
    #[arg(long, requires = "json")]
    json_pool_key_guid: bool,
    /// [POOL]... [INTERVAL [COUNT]]
    pools: Vec<String>,
}

/// Full names of abbreviations (zpool_prop.c, column names).
pub(super) fn full_name(property: &str) -> &str {
    match property {
        "alloc" => "allocated",
        "ckpoint" => "checkpoint",
        "expandsz" => "expandsize",
        "frag" => "fragmentation",
        "cap" => "capacity",
        "dedup" => "dedupratio",
        other => other,
    }
}

fn heading(property: &str) -> String {
    match property {
        "allocated" => "ALLOC".into(),
        "checkpoint" => "CKPOINT".into(),
        "expandsize" => "EXPANDSZ".into(),
        "fragmentation" => "FRAG".into(),
        "capacity" => "CAP".into(),
        "dedupratio" => "DEDUP".into(),
        other => other.to_uppercase(),
    }
}

fn is_number(property: &str) -> bool {
    matches!(
        property,
        "size"
            | "allocated"
            | "free"
            | "checkpoint"
            | "expandsize"
            | "fragmentation"
            | "capacity"
            | "dedupratio"
            | "freeing"
            | "leaked"
            | "bcloneused"
            | "bclonesaved"
            | "bcloneratio"
            | "dedup_table_size"
            | "dedupused"
            | "dedupsaved"
            | "guid"
            | "load_guid"
            | "ashift"
            | "version"
            | "last_scrubbed_txg"
            | CACHE_INDEX
    )
}

/// A pool property for people (or as it is, with `-p`).
pub(super) fn shown(property: &str, value: &str, parseable: bool) -> String {
    if value.is_empty() {
        return "-".into();
    }
    if parseable {
        // `zpool_get_prop`, lib/libzfs/libzfs_pool.c.
        let is_none = property == "dedup_table_quota" && value == "none";
        return if is_none { "0" } else { value }.into();
    }
    match property {
        "size" | "allocated" | "free" | "checkpoint" | "expandsize" | "freeing" | "leaked"
        | "bcloneused" | "bclonesaved" | "dedupused" | "dedupsaved" | "dedup_table_size"
        | "dedup_table_quota" | CACHE_INDEX => value.parse().map_or_else(
            |_| value.to_owned(),
            |bytes| {
                if bytes == 0 && matches!(property, "checkpoint" | "expandsize") {
                    "-".into()
                } else if bytes == 0
                    && matches!(
                        property,
                        "freeing" | "leaked" | "bcloneused" | "bclonesaved" | "dedup_table_size"
                    )
                {
                    "0".into()
                } else {
                    numbers::nice_bytes(bytes)
                }
            },
        ),
        "fragmentation" | "capacity" if value.bytes().all(|b| b.is_ascii_digit()) => {
            format!("{value}%")
        }
        "dedupratio" | "bcloneratio" => format!("{value}x"),
        _ => value.into(),
    }
}

impl List {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let mut is_first = true;
        self.repeat.run(self.pools.clone(), |names, time| {
            let headings = !self.scripted && (is_first || self.verbose);
            is_first = false;
            self.report(client, names, time, headings)
        })
    }

    fn report(
        &self,
        client: &Client,
        pools: &[String],
        time: Option<String>,
        headings: bool,
    ) -> anyhow::Result<()> {
        let call = ZpoolList {
            names: pools.to_vec(),
            io: false,
        };
        let reply = client.call(&call)?;
        // What is not here does not make it fail as long as anything is (`list_callback`).
        let named = refusals::tell_absent(pools, reply.absent);
        named
            .iter()
            .for_each(|why| eprintln!("{}", refusals::words(why)));
        let mut pools = reply.pools;
        let names: Vec<&str> = self.columns.split(',').map(full_name).collect();
        if names.contains(&CACHE_INDEX) {
            pools.iter_mut().for_each(add_cache_index);
        }
        if let (Some(pool), Some(unknown)) = (
            pools.first(),
            // One of a user is shown as "-" where it is not set.
            (names.iter()).find(|name| !name.contains(':') && !known(&pools, name)),
        ) && !pool.properties.is_empty()
        {
            bail_usage!("bad property list: invalid property '{unknown}'");
        }
        if self.json {
            let properties_of = |pool: &PoolReport| {
                let names = names.iter().filter(|name| **name != "name");
                names
                    .map(|name| (*name).to_owned())
                    .filter(|name| pool.properties.contains_key(name))
                    .collect()
            };
            let more = |pool: &PoolReport, entry: &mut Map<String, Value>| {
                if self.verbose {
                    entry.insert("vdevs".into(), Value::Object(self.json_vdevs(pool, &names)));
                }
            };
            let mut document = pools_json(
                &pools,
                "zpool list",
                self.json_int,
                self.json_pool_key_guid,
                properties_of,
                more,
                self.parseable,
            );
            if let Some(time) = time {
                document.insert("time".into(), json::value(&time, self.json_int));
            }
            return json::print(document);
        }
        if let Some(time) = time {
            println!("{time}");
        }
        if pools.is_empty() {
            if !self.scripted {
                println!("no pools available");
            }
            return Ok(());
        }
        let columns: Vec<Column> = names
            .iter()
            .map(|name| {
                match *name {
                    // A number to OpenZFS, with a width of its own (`zprop_width`,
                    // module/zcommon/zfs_prop.c).
                    "health" => Column {
                        least_width: 8,
                        ..Column::right("HEALTH")
                    },
                    name if is_number(name) => Column::right(heading(name)),
                    name => Column::left(heading(name)),
                }
            })
            .collect();
        let mut rows = Vec::new();
        // Of lines of cache devices: what is told beside the columns.
        let mut notes = BTreeMap::new();
        for pool in &pools {
            rows.push(
                names
                    .iter()
                    .map(|name| cell(pool, name, self.parseable))
                    .collect(),
            );
            if self.verbose {
                let of_class = |class| {
                    pool.tree
                        .children
                        .iter()
                        .filter(move |child| child.class == class)
                };
                for child in of_class(VdevClass::Normal) {
                    self.vdev_rows(child, 1, &names, &mut rows);
                }
                for (class, _) in CLASSES {
                    if of_class(class).next().is_some() {
                        if class == VdevClass::Cache {
                            notes.extend(cache_note(pool, &names).map(|note| (rows.len(), note)));
                        }
                        rows.push(self.class_row(class, pool, &names));
                    }
                    for child in of_class(class) {
                        self.vdev_rows(child, 1, &names, &mut rows);
                    }
                }
            }
        }
        let text = render(&columns, &rows, self.scripted);
        if self.scripted {
            print!("{text}");
            return Ok(());
        }
        // The first line is the headings.
        for (at, line) in text.lines().enumerate().skip(usize::from(!headings)) {
            match at.checked_sub(1).and_then(|row| notes.get(&row)) {
                Some(note) => println!("{line}  {note}"),
                None => println!("{line}"),
            }
        }
        Ok(())
    }

    /// The line above the vdevs of a class. With `-H` OpenZFS pads it all the same
    /// (`print_one_column` is not used for it, cmd/zpool/zpool_main.c `print_list_stats`).
    fn class_row(&self, class: VdevClass, pool: &PoolReport, names: &[&str]) -> Vec<String> {
        let heading = match class {
            VdevClass::Spare => "spare",
            class => class_heading(class),
        };
        if self.scripted {
            let width = name_width(&pool.tree, self.naming);
            return vec![format!(
                "{heading:<width$}      -      -      -        -         -      -      -      \
                 -         -"
            )];
        }
        names
            .iter()
            .map(|name| match *name {
                "name" => heading.to_owned(),
                _ => "-".to_owned(),
            })
            .collect()
    }

    fn vdev_rows(
        &self,
        vdev: &VdevReport,
        depth: usize,
        names: &[&str],
        rows: &mut Vec<Vec<String>>,
    ) {
        let naming = self.naming;
        rows.push(
            names
                .iter()
                // OpenZFS leaves it out of these lines.
                .filter(|name| !(self.scripted && **name == "altroot"))
                .map(|name| match *name {
                    "name" if self.scripted => format!("\t{}", leaf_name(vdev, naming)),
                    "name" => format!(
                        "{:indent$}{}",
                        "",
                        leaf_name(vdev, naming),
                        indent = depth * 2
                    ),
                    name => self.vdev_cell(vdev, depth == 1, name),
                })
                .collect(),
        );
        for child in &vdev.children {
            self.vdev_rows(child, depth + 1, names, rows);
        }
    }

    /// A property of a vdev (`collect_vdev_prop`); most are known of top-level vdevs only.
    fn vdev_cell(&self, vdev: &VdevReport, is_top: bool, property: &str) -> String {
        let exact = self.parseable || self.json_int;
        let size = |bytes: u64| match bytes {
            0 => "-".to_owned(),
            bytes => numbers_or_exact(bytes, exact),
        };
        let is_top = vdev.size_bytes > 0 && is_top;
        match property {
            "size" if vdev.physical_bytes > 0 => size(vdev.physical_bytes),
            "size" => size(vdev.size_bytes),
            "allocated" if is_top => numbers_or_exact(vdev.allocated_bytes, exact),
            "free" if is_top => numbers_or_exact(
                vdev.size_bytes - vdev.allocated_bytes.min(vdev.size_bytes),
                exact,
            ),
            "fragmentation" if is_top => match vdev.fragmentation_percent {
                Some(percent) if exact => percent.to_string(),
                Some(percent) => format!("{percent}%"),
                None => "-".into(),
            },
            "capacity" if is_top => {
                let part = u128::from(vdev.allocated_bytes) * 10_000 / u128::from(vdev.size_bytes);
                let percent = part as f64 / 100.0;
                match part {
                    _ if exact => (part / 100).to_string(),
                    0..1000 => format!("{percent:.2}%"),
                    1000..10_000 => format!("{percent:.1}%"),
                    _ => format!("{percent:.0}%"),
                }
            }
            "expandsize" if is_top => size(vdev.expandable_bytes),
            "checkpoint" if vdev.checkpoint_bytes > 0 => size(vdev.checkpoint_bytes),
            "health" => words::state(vdev.state).to_owned(),
            _ => "-".into(),
        }
    }

    /// The vdevs of a pool for `-j -v` (`collect_list_stats`): ordinary ones by name, then those of
    /// each class in an object of their own.
    fn json_vdevs(&self, pool: &PoolReport, names: &[&str]) -> Map<String, Value> {
        let mut vdevs = Map::new();
        for child in pool
            .tree
            .children
            .iter()
            .filter(|child| child.class == VdevClass::Normal)
        {
            self.json_vdev(child, VdevClass::Normal, true, names, &mut vdevs);
        }
        for (class, key) in CLASSES {
            let mut group = Map::new();
            for child in pool
                .tree
                .children
                .iter()
                .filter(|child| child.class == class)
            {
                self.json_vdev(child, VdevClass::Normal, true, names, &mut group);
            }
            if !group.is_empty() {
                vdevs.insert(key.into(), Value::Object(group));
            }
        }
        vdevs
    }

    fn json_vdev(
        &self,
        vdev: &VdevReport,
        above: VdevClass,
        is_top: bool,
        names: &[&str],
        out: &mut Map<String, Value>,
    ) {
        let name = leaf_name(vdev, self.naming);
        let mut entry = vdevs::info(vdev, &name, above, self.json_int);
        let columns = names.iter().filter(|name| **name != "name");
        let properties = columns
            .map(|column| {
                let text = self.vdev_cell(vdev, is_top, column);
                let property = json::property(&text, &Source::None, self.json_int);
                ((*column).to_owned(), property)
            })
            .collect();
        entry.insert("properties".into(), Value::Object(properties));
        let mut children = Map::new();
        for child in &vdev.children {
            self.json_vdev(child, vdev.class, false, names, &mut children);
        }
        if !children.is_empty() {
            entry.insert("vdevs".into(), Value::Object(children));
        }
        out.insert(name, Value::Object(entry));
    }
}

fn add_cache_index(pool: &mut PoolReport) {
    let index = Property {
        value: pool.cache.index_bytes.to_string(),
        source: Source::None,
    };
    pool.properties.insert(CACHE_INDEX.to_owned(), index);
}

/// How much memory the index of a pool's cache devices takes, for people; nothing where there is
/// none, or a column tells it.
fn cache_note(pool: &PoolReport, names: &[&str]) -> Option<String> {
    let index_bytes = pool.cache.index_bytes;
    let is_told = index_bytes > 0 && !names.contains(&CACHE_INDEX);
    is_told.then(|| {
        format!(
            "{} of memory for their index",
            numbers::nice_bytes(index_bytes)
        )
    })
}

fn numbers_or_exact(bytes: u64, parseable: bool) -> String {
    if parseable {
        bytes.to_string()
    } else {
        numbers::nice_count(bytes)
    }
}

fn known(pools: &[PoolReport], name: &str) -> bool {
    name == "name"
        || pools.iter().any(|pool| pool.properties.contains_key(name))
        || DEFAULT_COLUMNS.split(',').any(|column| column == name)
}

pub(super) fn cell(pool: &PoolReport, property: &str, parseable: bool) -> String {
    if property == "name" {
        return pool.name.clone();
    }
    pool.properties.get(property).map_or_else(
        || "-".into(),
        |value| shown(property, &value.value, parseable),
    )
}

/// Pools with their properties, by name or GUID; `more` adds what else there is to a pool.
pub(super) fn pools_json(
    pools: &[PoolReport],
    command: &str,
    as_int: bool,
    by_guid: bool,
    properties_of: impl Fn(&PoolReport) -> Vec<String>,
    more: impl Fn(&PoolReport, &mut Map<String, Value>),
    parseable: bool,
) -> Map<String, Value> {
    let mut by_key = Map::new();
    for pool in pools {
        let properties: Map<String, Value> = properties_of(pool)
            .into_iter()
            .filter_map(|name| {
                let property = pool.properties.get(&name)?;
                let text = shown(&name, &property.value, parseable || as_int);
                let property = json::property(&text, &property.source, as_int);
                Some((name, property))
            })
            .collect();
        let state = words::health(pool.health);
        let mut entry = json::pool(&pool.name, state, pool.guid, pool.txg, Some("POOL"), as_int);
        entry.insert("properties".into(), Value::Object(properties));
        more(pool, &mut entry);
        let key = if by_guid {
            pool.guid.to_string()
        } else {
            pool.name.clone()
        };
        by_key.insert(key, Value::Object(entry));
    }
    let mut document = json::document(command);
    document.insert("pools".into(), Value::Object(by_key));
    document
}
