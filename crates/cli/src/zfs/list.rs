//! `zfs list` and `zfs get` (`zfs_do_list`, `zfs_do_get`, cmd/zfs/zfs_main.c; `zfs_sort`,
//! `zfs_compare`, cmd/zfs/zfs_iter.c).

use std::cmp::Ordering;
use std::path::Path;

use anyhow::{Context, bail};
use api::{DatasetKind, DatasetReport, Source, ZfsList, ZfsMountList};
use clap::Args;
use dataset::props::{PROPERTIES, full_name};
use serde_json::{Map, Value, json};

use super::values::{heading, is_known, is_number, least_widths, shown};
use crate::client::Client;
use crate::columns::{Column, render};
use crate::zpool::source_text;
use crate::{json, refusals};

/// List datasets.
#[derive(Debug, Args)]
pub struct List {
    /// Children too
    #[arg(short)]
    recursive: bool,
    /// Children down to this depth
    #[arg(short = 'd', allow_negative_numbers = true)]
    depth: Option<u32>,
    /// No headings, tabs between fields
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers
    #[arg(short)]
    parseable: bool,
    /// Properties, comma-separated
    #[arg(short = 'o')]
    columns: Option<String>,
    /// Sort by a property, ascending
    #[arg(short = 's')]
    ascending: Vec<String>,
    /// Sort by a property, descending
    #[arg(short = 'S')]
    descending: Vec<String>,
    /// filesystem, volume, snapshot, bookmark, all; comma-separated
    #[arg(short = 't')]
    types: Option<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long, requires = "json")]
    json_int: bool,
    datasets: Vec<String>,
}

/// Print properties.
#[derive(Debug, Args)]
pub struct Get {
    /// Children too
    #[arg(short)]
    recursive: bool,
    /// Children down to this depth
    #[arg(short = 'd', allow_negative_numbers = true)]
    depth: Option<u32>,
    /// No headings, tabs between fields
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers
    #[arg(short)]
    parseable: bool,
    /// Fields, comma-separated, of name, property, value, received, source; or all
    #[arg(short = 'o', default_value = "name,property,value,source")]
    fields: String,
    /// Sources, comma-separated, of local, default, inherited, temporary, received, none
    #[arg(short = 's')]
    sources: Option<String>,
    /// filesystem, volume, snapshot, bookmark, all; comma-separated
    #[arg(short = 't')]
    types: Option<String>,
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long, requires = "json")]
    json_int: bool,
    /// all, or properties, comma-separated
    properties: String,
    datasets: Vec<String>,
}

fn kinds(types: Option<&str>) -> anyhow::Result<Vec<DatasetKind>> {
    let mut kinds = Vec::new();
    for name in types.into_iter().flat_map(|types| types.split(',')) {
        kinds.extend_from_slice(match name {
            "filesystem" | "fs" => &[DatasetKind::Filesystem][..],
            "volume" | "vol" => &[DatasetKind::Volume],
            "snapshot" | "snap" => &[DatasetKind::Snapshot],
            "bookmark" => &[DatasetKind::Bookmark],
            "all" => &[
                DatasetKind::Filesystem,
                DatasetKind::Volume,
                DatasetKind::Snapshot,
                DatasetKind::Bookmark,
            ],
            other => bail_usage!(
                "invalid type '{other}'\ntypes are filesystem, volume, snapshot, bookmark, all"
            ),
        });
    }
    Ok(kinds)
}

/// How far below the named datasets to go: `-d` wins, `-r` has no limit; a type given without
/// names searches everything, as `zfs list -t snapshot` does, and with the name of a filesystem or
/// volume its snapshots.
fn depth_of(
    recursive: bool,
    depth: Option<u32>,
    named: &[String],
    kinds: &[DatasetKind],
) -> Option<u32> {
    let only_below = kinds == [DatasetKind::Snapshot] || kinds == [DatasetKind::Bookmark];
    let is_alone = |name: &String| name.contains(['@', '#']);
    match (depth, recursive, named.is_empty()) {
        (Some(depth), _, _) => Some(depth),
        (None, false, false) if only_below && !named.iter().any(is_alone) => Some(1),
        (None, false, false) => Some(0),
        (None, _, _) => None,
    }
}

/// The name of a dataset; a path stands for the filesystem that it is in (`zfs_path_to_zhandle`,
/// lib/libzfs/libzfs_util.c).
pub fn dataset_of(word: &str, client: &Client) -> anyhow::Result<String> {
    if !word.starts_with('/') && !word.starts_with("./") {
        return Ok(word.to_owned());
    }
    let path = word;
    let found = serve_fuse::filesystem_of(Path::new(path));
    match found.with_context(|| format!("cannot open '{path}'"))? {
        Some((name, place)) => {
            // It may have another name by now (`zfs rename -u`).
            let mounts = client.call(&ZfsMountList {})?.mounts.into_iter();
            let mut there = mounts.filter(|mounted| Path::new(&mounted.mountpoint) == place);
            Ok(there.next().map_or(name, |mounted| mounted.name))
        }
        None => bail!("'{path}': not a ZFS filesystem"),
    }
}

fn names_of(words: &[String], client: &Client) -> anyhow::Result<Vec<String>> {
    words.iter().map(|word| dataset_of(word, client)).collect()
}

/// Whether there is such a property at all.
fn check_known(properties: &[String]) -> anyhow::Result<()> {
    match properties.iter().find(|name| !is_known(name)) {
        Some(unknown) => bail_usage!("bad property list: invalid property '{unknown}'"),
        None => Ok(()),
    }
}

/// Refuses datasets that were named but are of a kind that was not asked for. With a depth they are
/// only left out, where what is below them could be of such a kind (`zfs_for_each`,
/// cmd/zfs/zfs_iter.c).
fn check_kinds(
    datasets: &mut Vec<DatasetReport>,
    named: &[String],
    kinds: &[DatasetKind],
    goes_below: bool,
) -> anyhow::Result<()> {
    let is_wrong = |dataset: &DatasetReport| {
        named.contains(&dataset.name) && !kinds.is_empty() && !kinds.contains(&dataset.kind)
    };
    let below = |kind: &DatasetKind| matches!(kind, DatasetKind::Snapshot | DatasetKind::Bookmark);
    let may_be_left_out = |dataset: &DatasetReport| match dataset.kind {
        DatasetKind::Filesystem => goes_below,
        DatasetKind::Volume => goes_below && kinds.iter().any(below),
        _ => false,
    };
    let refused = (datasets.iter()).find(|dataset| is_wrong(dataset) && !may_be_left_out(dataset));
    if let Some(dataset) = refused {
        bail!(
            "cannot open '{}': operation not applicable to datasets of this type",
            dataset.name
        );
    }
    datasets.retain(|dataset| !is_wrong(dataset));
    Ok(())
}

impl List {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let mut kinds = kinds(self.types.as_deref())?;
        if self.columns.as_deref() == Some("space") && kinds.is_empty() {
            kinds = vec![DatasetKind::Filesystem, DatasetKind::Volume];
        }
        let named = names_of(&self.datasets, client)?;
        let depth = depth_of(self.recursive, self.depth, &named, &kinds);
        let keys = sort_keys(std::env::args(), &self.ascending, &self.descending);
        let columns_text = self
            .columns
            .clone()
            .unwrap_or_else(|| "name,used,available,referenced,mountpoint".into());
        let names = column_names(&columns_text);
        check_known(&names)?;
        let sorted_by: Vec<String> = keys.iter().map(|(name, _)| name.clone()).collect();
        if let Some(unknown) = sorted_by.iter().find(|name| !is_known(name)) {
            bail_usage!("invalid property '{unknown}'");
        }
        let call = ZfsList {
            names: named.clone(),
            depth,
            kinds: kinds.clone(),
            properties: Some([names.clone(), sorted_by].concat()),
            received: false,
        };
        let reply = client.call(&call)?;
        let mut datasets = reply.datasets;
        if depth == Some(0) {
            check_kinds(&mut datasets, &named, &kinds, self.depth.is_some())?;
        }
        sort(&mut datasets, &keys);
        self.print(&datasets, &names)?;
        refusals::all_found(&reply.failures)
    }

    fn print(&self, datasets: &[DatasetReport], names: &[String]) -> anyhow::Result<()> {
        if self.json {
            return print_json(
                datasets,
                "zfs list",
                self.json_int,
                |_| {
                    names
                        .iter()
                        .filter(|name| *name != "name")
                        .cloned()
                        .collect()
                },
                |_| true,
                self.parseable,
            );
        }
        if datasets.is_empty() {
            if !self.scripted {
                eprintln!("no datasets available");
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
        let rows: Vec<Vec<String>> = datasets
            .iter()
            .map(|dataset| {
                names
                    .iter()
                    .map(|name| cell(dataset, name, self.parseable))
                    .collect()
            })
            .collect();
        print!("{}", render(&columns, &rows, self.scripted));
        Ok(())
    }
}

/// What to sort by, most important first, and whether descending. The options may alternate, so
/// their order is that of the words of the command line, where `-s NAME` and `-S NAME` are what was
/// parsed.
fn sort_keys(
    words: impl Iterator<Item = String>,
    ascending: &[String],
    descending: &[String],
) -> Vec<(String, bool)> {
    let (mut up, mut down) = (ascending.iter().peekable(), descending.iter().peekable());
    let mut keys = Vec::new();
    let mut words = words;
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else {
            continue;
        };
        let Some((at, letter)) = letters.char_indices().find(|(_, c)| "sSodt".contains(*c)) else {
            continue;
        };
        let rest = &letters[at + 1..];
        let value = match rest.is_empty() {
            true => words.next().unwrap_or_default(),
            false => rest.trim_start_matches('=').to_owned(),
        };
        let (from, reverse) = match letter {
            's' => (&mut up, false),
            'S' => (&mut down, true),
            _ => continue,
        };
        if from.next_if(|name| **name == value).is_some() {
            keys.push((full_name(&value).to_owned(), reverse));
        }
    }
    // Whatever the words did not show.
    keys.extend(up.map(|name| (full_name(name).to_owned(), false)));
    keys.extend(down.map(|name| (full_name(name).to_owned(), true)));
    keys
}

/// Sorts by properties, then by name, snapshots after their dataset in the order of their creation.
fn sort(datasets: &mut [DatasetReport], keys: &[(String, bool)]) {
    datasets.sort_by(|left, right| {
        keys.iter()
            .map(|(name, reverse)| {
                compare(&sort_value(left, name), &sort_value(right, name), *reverse)
            })
            .find(|order| *order != Ordering::Equal)
            .unwrap_or_else(|| compare_names(left, right))
    });
}

fn sort_value(dataset: &DatasetReport, property: &str) -> Option<String> {
    match property {
        "name" => Some(dataset.name.clone()),
        "type" => Some(dataset.kind.name().to_owned()),
        _ => dataset
            .properties
            .get(property)
            .map(|property| property.value.clone()),
    }
}

/// Datasets without the property come last, whichever way it goes.
fn compare(left: &Option<String>, right: &Option<String>, reverse: bool) -> Ordering {
    let (left, right) = match (left, right) {
        (Some(left), Some(right)) => (left, right),
        (None, None) => return Ordering::Equal,
        (None, Some(_)) => return Ordering::Greater,
        (Some(_), None) => return Ordering::Less,
    };
    let order = match (left.parse::<u64>(), right.parse::<u64>()) {
        (Ok(left), Ok(right)) => left.cmp(&right),
        _ => match (left.parse::<f64>(), right.parse::<f64>()) {
            (Ok(left), Ok(right)) => left.total_cmp(&right),
            _ => left.cmp(right),
        },
    };
    if reverse { order.reverse() } else { order }
}

fn compare_names(left: &DatasetReport, right: &DatasetReport) -> Ordering {
    let split = |dataset: &DatasetReport| {
        let (head, snapshot) = match dataset.name.split_once('@') {
            Some((head, snapshot)) => (head, Some(snapshot)),
            None => (&dataset.name[..], None),
        };
        let born = snapshot.map(|_| dataset.create_txg);
        (head.to_owned(), born, snapshot.map(str::to_owned))
    };
    split(left).cmp(&split(right))
}

/// Column names in full, `space` expanded.
fn column_names(text: &str) -> Vec<String> {
    text.split(',')
        .flat_map(|name| match name {
            "all" => std::iter::once("name")
                .chain(PROPERTIES.iter().map(|property| property.name))
                .collect(),
            "space" => vec![
                "name",
                "available",
                "used",
                "usedbysnapshots",
                "usedbydataset",
                "usedbyrefreservation",
                "usedbychildren",
            ],
            name => vec![full_name(name)],
        })
        .map(str::to_owned)
        .collect()
}

fn cell(dataset: &DatasetReport, property: &str, parseable: bool) -> String {
    match property {
        "name" => dataset.name.clone(),
        "type" => dataset.kind.name().into(),
        _ => dataset.properties.get(property).map_or_else(
            || "-".into(),
            |value| shown(property, &value.value, parseable),
        ),
    }
}

fn print_json(
    datasets: &[DatasetReport],
    command: &str,
    json_int: bool,
    properties_of: impl Fn(&DatasetReport) -> Vec<String>,
    wanted: impl Fn(&Source) -> bool,
    parseable: bool,
) -> anyhow::Result<()> {
    let mut by_name = Map::new();
    for dataset in datasets {
        let mut properties = Map::new();
        for name in properties_of(dataset) {
            let source = dataset
                .properties
                .get(&name)
                .map_or(Source::None, |property| property.source.clone());
            if wanted(&source) {
                let text = cell(dataset, &name, parseable || json_int);
                properties.insert(name, json::property(&text, &source, json_int));
            }
        }
        // Where no source matches there is nothing to tell.
        if properties.is_empty() && command == "zfs get" {
            continue;
        }
        let mut entry = Map::new();
        entry.insert("name".into(), json!(dataset.name));
        let kind = dataset.kind.name().to_uppercase();
        entry.insert("type".into(), json!(kind));
        let pool = dataset.name.split(['/', '@', '#']).next();
        entry.insert("pool".into(), json!(pool));
        let txg = dataset.create_txg.to_string();
        entry.insert("createtxg".into(), json::value(&txg, json_int));
        if let Some((parent, name)) = dataset.name.split_once('@') {
            entry.insert("dataset".into(), json!(parent));
            entry.insert("snapshot_name".into(), json!(name));
        }
        entry.insert("properties".into(), Value::Object(properties));
        by_name.insert(dataset.name.clone(), Value::Object(entry));
    }
    let mut document = json::document(command);
    document.insert("datasets".into(), Value::Object(by_name));
    json::print(document)
}

impl Get {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let kinds = kinds(self.types.as_deref())?;
        let named = names_of(&self.datasets, client)?;
        let fields = self.columns();
        let asked_kinds = kinds.clone();
        let goes_below = self.recursive || self.depth.is_some() || named.is_empty();
        let kinds_wanted = if kinds.is_empty() && goes_below {
            // get shows every kind where list shows filesystems and volumes.
            vec![
                DatasetKind::Filesystem,
                DatasetKind::Volume,
                DatasetKind::Snapshot,
                DatasetKind::Bookmark,
            ]
        } else {
            kinds
        };
        let wanted: Option<Vec<String>> = (self.properties != "all").then(|| {
            self.properties
                .split(',')
                .map(|name| full_name(name).to_owned())
                .collect()
        });
        check_known(wanted.as_deref().unwrap_or_default())?;
        let depth = depth_of(self.recursive, self.depth, &named, &asked_kinds);
        let call = ZfsList {
            names: named.clone(),
            depth,
            kinds: kinds_wanted,
            properties: wanted.clone(),
            received: fields.contains(&"received"),
        };
        let reply = client.call(&call)?;
        let mut datasets = reply.datasets;
        if depth == Some(0) {
            check_kinds(&mut datasets, &named, &asked_kinds, self.depth.is_some())?;
        }
        sort(&mut datasets, &[]);
        self.print(&datasets, wanted.as_deref())?;
        refusals::all_found(&reply.failures)
    }

    /// The columns that are asked for.
    fn columns(&self) -> Vec<&str> {
        match self.fields.as_str() {
            "all" => vec!["name", "property", "value", "received", "source"],
            fields => fields.split(',').collect(),
        }
    }

    fn print(&self, datasets: &[DatasetReport], wanted: Option<&[String]>) -> anyhow::Result<()> {
        let properties_of = |dataset: &DatasetReport| -> Vec<String> {
            wanted.map(<[String]>::to_vec).unwrap_or_else(|| {
                dataset
                    .properties
                    .keys()
                    .filter(|name| *name != "name")
                    .cloned()
                    .collect()
            })
        };
        let sources: Option<Vec<&str>> = self
            .sources
            .as_deref()
            .map(|text| text.split(',').collect());
        const SOURCES: [&str; 6] = [
            "local",
            "default",
            "inherited",
            "received",
            "temporary",
            "none",
        ];
        if let Some(unknown) = sources
            .iter()
            .flatten()
            .find(|name| !SOURCES.contains(name))
        {
            bail_usage!(
                "invalid source '{unknown}'\nsources are {}",
                SOURCES.join(", ")
            );
        }
        let source_wanted = |source: &Source| {
            let name = match source {
                Source::None => "none",
                Source::Default => "default",
                Source::Local => "local",
                Source::Temporary => "temporary",
                Source::Received => "received",
                Source::Inherited(_) => "inherited",
            };
            sources
                .as_ref()
                .is_none_or(|sources| sources.contains(&name))
        };
        if self.json {
            return print_json(
                datasets,
                "zfs get",
                self.json_int,
                properties_of,
                source_wanted,
                self.parseable,
            );
        }
        let fields = self.columns();
        let mut rows = Vec::new();
        for dataset in datasets {
            for name in properties_of(dataset) {
                let source = match dataset.properties.get(&name) {
                    Some(property) => property.source.clone(),
                    None => Source::None,
                };
                if !source_wanted(&source) {
                    continue;
                }
                let mut row = Vec::new();
                for field in &fields {
                    row.push(match *field {
                        "name" => dataset.name.clone(),
                        "property" => name.clone(),
                        "value" => cell(dataset, &name, self.parseable),
                        "received" => dataset.received.get(&name).map_or_else(
                            || "-".into(),
                            |property| shown(&name, &property.value, self.parseable),
                        ),
                        "source" => source_text(&source),
                        other => bail_usage!(
                            "invalid column name '{other}'\ncolumns are name, property, value, \
                             received, source"
                        ),
                    });
                }
                rows.push(row);
            }
        }
        let all = || {
            PROPERTIES
                .iter()
                .filter(|one| one.visible)
                .map(|one| one.name)
        };
        let (names, values) = match wanted {
            Some(wanted) => least_widths(wanted.iter().map(String::as_str)),
            None => least_widths(all()),
        };
        let columns: Vec<Column> = fields
            .iter()
            .map(|field| Column {
                least_width: match *field {
                    "property" => names,
                    "value" => values,
                    _ => 0,
                },
                ..Column::left(field.to_uppercase())
            })
            .collect();
        print!("{}", render(&columns, &rows, self.scripted));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(name: &str, txg: u64, used: Option<&str>) -> DatasetReport {
        let kind = match name.contains('@') {
            true => DatasetKind::Snapshot,
            false => DatasetKind::Filesystem,
        };
        let properties = used
            .map(|used| ("used".to_owned(), api::Property::statistic(used)))
            .into_iter()
            .collect();
        DatasetReport {
            name: name.into(),
            kind,
            create_txg: txg,
            properties,
            received: api::PropertyMap::default(),
        }
    }

    fn names(datasets: &[DatasetReport]) -> Vec<&str> {
        datasets.iter().map(|dataset| &dataset.name[..]).collect()
    }

    #[test]
    fn names_sort_as_text_and_snapshots_by_age() {
        let mut all: Vec<DatasetReport> = [
            ("t/a/b", 9),
            ("t/a@new", 8),
            ("t/a@old", 3),
            ("t/a", 2),
            ("t/a-b", 7),
            ("t", 1),
        ]
        .map(|(name, txg)| dataset(name, txg, None))
        .to_vec();
        sort(&mut all, &[]);
        assert_eq!(
            names(&all),
            ["t", "t/a", "t/a@old", "t/a@new", "t/a-b", "t/a/b"]
        );
    }

    #[test]
    fn those_without_the_property_come_last_either_way() {
        let mut all = vec![
            dataset("a", 1, None),
            dataset("b", 2, Some("9")),
            dataset("c", 3, Some("10")),
        ];
        sort(&mut all, &[("used".into(), false)]);
        assert_eq!(names(&all), ["b", "c", "a"]);
        sort(&mut all, &[("used".into(), true)]);
        assert_eq!(names(&all), ["c", "b", "a"]);
    }

    #[test]
    fn keys_keep_the_order_of_the_command_line() {
        let words = "zfs list -HS used -o name -pstype -S avail";
        let up = ["type".to_owned()];
        let down = ["used".to_owned(), "avail".to_owned()];
        let keys = sort_keys(words.split(' ').map(str::to_owned), &up, &down);
        let expected = [("used", true), ("type", false), ("available", true)];
        assert_eq!(
            keys,
            expected.map(|(name, reverse)| (name.to_owned(), reverse))
        );
    }
}
