//! `zpool list` and `zpool get`.

use anyhow::bail;
use api::{PoolReport, Source, VdevReport, ZpoolList};
use clap::Args;
use serde_json::{Map, Value, json};

use super::status::{Naming, class_heading, leaf_name, name_width};
use crate::client::Client;
use crate::columns::{Column, render};
use crate::{json, numbers};

const DEFAULT_COLUMNS: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

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
    /// Full paths of devices
    #[arg(short = 'P')]
    full_paths: bool,
    /// GUIDs of devices instead of names
    #[arg(short = 'g')]
    guids: bool,
    /// Real paths (paths are shown as given already)
    #[arg(short = 'L')]
    real_paths: bool,
    /// Properties, comma-separated
    #[arg(short = 'o', default_value = DEFAULT_COLUMNS)]
    columns: String,
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long)]
    json_int: bool,
    /// With -j, pools by GUID
    #[arg(long)]
    json_pool_key_guid: bool,
    pools: Vec<String>,
}

/// Print properties of pools.
#[derive(Debug, Args)]
pub struct Get {
    /// No headings, tabs between fields
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    parseable: bool,
    /// Fields, comma-separated, of name, property, value, source
    #[arg(short = 'o', default_value = "name,property,value,source")]
    fields: String,
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long)]
    json_int: bool,
    /// With -j, pools by GUID
    #[arg(long)]
    json_pool_key_guid: bool,
    /// all, or properties, comma-separated
    properties: String,
    pools: Vec<String>,
}

/// Full names of abbreviations (zpool_prop.c, column names).
fn full_name(property: &str) -> &str {
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
    )
}

/// A pool property for people (or as it is, with `-p`).
fn shown(property: &str, value: &str, parseable: bool) -> String {
    if value.is_empty() {
        return "-".into();
    }
    if parseable {
        return value.into();
    }
    match property {
        "size" | "allocated" | "free" | "checkpoint" | "expandsize" | "freeing" | "leaked"
        | "bcloneused" | "bclonesaved" | "dedupused" | "dedupsaved" | "dedup_table_size" => {
            value.parse().map_or_else(
                |_| value.to_owned(),
                |bytes| {
                    if bytes == 0 && matches!(property, "checkpoint" | "expandsize") {
                        "-".into()
                    } else if bytes == 0
                        && matches!(
                            property,
                            "freeing"
                                | "leaked"
                                | "bcloneused"
                                | "bclonesaved"
                                | "dedup_table_size"
                        )
                    {
                        "0".into()
                    } else {
                        numbers::nice_bytes(bytes)
                    }
                },
            )
        }
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
        let pools = client
            .call(&ZpoolList {
                names: self.pools.clone(),
            })?
            .pools;
        let names: Vec<&str> = self.columns.split(',').map(full_name).collect();
        if let (Some(pool), Some(unknown)) = (
            pools.first(),
            names.iter().find(|name| !known(&pools, name)),
        ) && !pool.properties.is_empty()
        {
            bail!("bad property list: invalid property '{unknown}'");
        }
        if self.json {
            return print_json(
                &pools,
                "zpool list",
                self.json_int,
                self.json_pool_key_guid,
                |pool| {
                    names
                        .iter()
                        .filter(|name| **name != "name")
                        .map(|name| (*name).to_owned())
                        .filter(|name| pool.properties.contains_key(name))
                        .collect()
                },
                self.parseable,
            );
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
                if is_number(name) {
                    Column::right(heading(name))
                } else {
                    Column::left(heading(name))
                }
            })
            .collect();
        let mut rows = Vec::new();
        for pool in &pools {
            rows.push(
                names
                    .iter()
                    .map(|name| cell(pool, name, self.parseable))
                    .collect(),
            );
            if self.verbose {
                let of_class = |class: &str| {
                    let class = class.to_owned();
                    pool.tree
                        .children
                        .iter()
                        .filter(move |child| child.class == class)
                };
                for child in of_class("") {
                    self.vdev_rows(child, 1, &names, &mut rows);
                }
                for class in ["dedup", "special", "log", "cache", "spare"] {
                    if of_class(class).next().is_some() {
                        rows.push(self.class_row(class, pool, &names));
                    }
                    for child in of_class(class) {
                        self.vdev_rows(child, 1, &names, &mut rows);
                    }
                }
            }
        }
        print!("{}", render(&columns, &rows, self.scripted));
        Ok(())
    }

    /// The line above the vdevs of a class. With `-H` OpenZFS pads it all the same
    /// (`print_one_column` is not used for it, cmd/zpool/zpool_main.c `print_list_stats`).
    fn class_row(&self, class: &str, pool: &PoolReport, names: &[&str]) -> Vec<String> {
        let heading = match class {
            "spare" => "spare",
            class => class_heading(class),
        };
        if self.scripted {
            let naming = Naming {
                full_paths: self.full_paths,
                guids: self.guids,
            };
            let width = name_width(&pool.tree, naming);
            return vec![format!(
                "{heading:<width$}      -      -      -        -         -      -      -      -         -"
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
        let naming = Naming {
            full_paths: self.full_paths,
            guids: self.guids,
        };
        let size = |bytes: u64| match bytes {
            0 => "-".to_owned(),
            bytes if self.parseable => bytes.to_string(),
            bytes => numbers::nice_bytes(bytes),
        };
        let percent = |value: u64| {
            if self.parseable {
                value.to_string()
            } else {
                format!("{value}%")
            }
        };
        let top = vdev.size_bytes > 0 && depth == 1;
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
                    "size" if vdev.physical_bytes > 0 => size(vdev.physical_bytes),
                    "size" => size(vdev.size_bytes),
                    "allocated" if top => numbers_or_exact(vdev.allocated_bytes, self.parseable),
                    "free" if top => numbers_or_exact(
                        vdev.size_bytes - vdev.allocated_bytes.min(vdev.size_bytes),
                        self.parseable,
                    ),
                    "fragmentation" if top => vdev
                        .fragmentation_percent
                        .map_or_else(|| "-".into(), percent),
                    "capacity" if top => {
                        percent(vdev.allocated_bytes.saturating_mul(100) / vdev.size_bytes)
                    }
                    "checkpoint" if vdev.checkpoint_bytes > 0 => size(vdev.checkpoint_bytes),
                    "health" => vdev.state.clone(),
                    _ => "-".into(),
                })
                .collect(),
        );
        for child in &vdev.children {
            self.vdev_rows(child, depth + 1, names, rows);
        }
    }
}

fn numbers_or_exact(bytes: u64, parseable: bool) -> String {
    if parseable {
        bytes.to_string()
    } else {
        numbers::nice_bytes(bytes)
    }
}

fn known(pools: &[PoolReport], name: &str) -> bool {
    name == "name"
        || pools.iter().any(|pool| pool.properties.contains_key(name))
        || DEFAULT_COLUMNS.split(',').any(|column| column == name)
}

fn cell(pool: &PoolReport, property: &str, parseable: bool) -> String {
    if property == "name" {
        return pool.name.clone();
    }
    pool.properties.get(property).map_or_else(
        || "-".into(),
        |value| shown(property, &value.value, parseable),
    )
}

fn print_json(
    pools: &[PoolReport],
    command: &str,
    json_int: bool,
    by_guid: bool,
    properties_of: impl Fn(&PoolReport) -> Vec<String>,
    parseable: bool,
) -> anyhow::Result<()> {
    let mut by_key = Map::new();
    for pool in pools {
        let properties: Map<String, Value> = properties_of(pool)
            .into_iter()
            .filter_map(|name| {
                let property = pool.properties.get(&name)?;
                let text = shown(&name, &property.value, parseable || json_int);
                Some((name, json!({"value": json::value(&text, json_int), "source": json::source(&property.source)})))
            })
            .collect();
        let mut entry = Map::new();
        entry.insert("name".into(), json!(pool.name));
        entry.insert("type".into(), json!("POOL"));
        entry.insert("state".into(), json!(pool.tree.state));
        entry.insert(
            "pool_guid".into(),
            json::value(&pool.guid.to_string(), json_int),
        );
        entry.insert("txg".into(), json::value(&pool.txg.to_string(), json_int));
        entry.insert("spa_version".into(), json::value("5000", json_int));
        entry.insert("zpl_version".into(), json::value("5", json_int));
        entry.insert("properties".into(), Value::Object(properties));
        by_key.insert(
            if by_guid {
                pool.guid.to_string()
            } else {
                pool.name.clone()
            },
            Value::Object(entry),
        );
    }
    let mut document = json::document(command);
    document.insert("pools".into(), Value::Object(by_key));
    json::print(document)
}

impl Get {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let pools = client
            .call(&ZpoolList {
                names: self.pools.clone(),
            })?
            .pools;
        let wanted: Option<Vec<&str>> =
            (self.properties != "all").then(|| self.properties.split(',').map(full_name).collect());
        let properties_of = |pool: &PoolReport| -> Vec<String> {
            match &wanted {
                Some(names) => names.iter().map(|name| (*name).to_owned()).collect(),
                None => pool.properties.keys().cloned().collect(),
            }
        };
        for pool in &pools {
            for name in properties_of(pool) {
                if name != "name" && !name.contains(':') && !pool.properties.contains_key(&name) {
                    bail!("bad property list: invalid property '{name}'");
                }
            }
        }
        if self.json {
            return print_json(
                &pools,
                "zpool get",
                self.json_int,
                self.json_pool_key_guid,
                properties_of,
                self.parseable,
            );
        }
        let fields: Vec<&str> = self.fields.split(',').collect();
        let mut rows = Vec::new();
        for pool in &pools {
            for name in properties_of(pool) {
                let property = pool.properties.get(&name);
                let mut row = Vec::new();
                for field in &fields {
                    row.push(match *field {
                        "name" => pool.name.clone(),
                        "property" => name.clone(),
                        "value" => cell(pool, &name, self.parseable),
                        "source" => property.map_or_else(|| "-".into(), |property| source_text(&property.source)),
                        other => bail!("invalid column name '{other}'; columns are name, property, value, source"),
                    });
                }
                rows.push(row);
            }
        }
        let columns: Vec<Column> = fields
            .iter()
            .map(|field| Column::left(field.to_uppercase()))
            .collect();
        print!("{}", render(&columns, &rows, self.scripted));
        Ok(())
    }
}

/// A source as the SOURCE column has it.
pub fn source_text(source: &Source) -> String {
    match source {
        Source::None => "-".into(),
        Source::Default => "default".into(),
        Source::Local => "local".into(),
        Source::Temporary => "temporary".into(),
        Source::Received => "received".into(),
        Source::Inherited(from) => format!("inherited from {from}"),
    }
}
