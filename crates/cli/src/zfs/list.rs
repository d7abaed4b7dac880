//! `zfs list` and `zfs get`.

use std::cmp::Ordering;

use anyhow::bail;
use api::{DatasetKind, DatasetReport, Property, Source, ZfsList};
use clap::Args;
use serde_json::{Map, Value, json};

use super::values::{full_name, heading, is_number, shown};
use crate::client::Client;
use crate::columns::{Column, render};
use crate::json;
use crate::zpool::source_text;

/// List datasets.
#[derive(Debug, Args)]
pub struct List {
    /// Children too
    #[arg(short)]
    recursive: bool,
    /// Children down to this depth
    #[arg(short = 'd')]
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
    #[arg(long)]
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
    #[arg(short = 'd')]
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
    #[arg(long)]
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
            other => bail!(
                "invalid type '{other}'; types are filesystem, volume, snapshot, bookmark, all"
            ),
        });
    }
    Ok(kinds)
}

/// How far below the named datasets to go: `-d` wins, `-r` has no limit; a type given without
/// names searches everything, as `zfs list -t snapshot` does.
fn depth_of(recursive: bool, depth: Option<u32>, named: bool) -> Option<u32> {
    match (depth, recursive, named) {
        (Some(depth), _, _) => Some(depth),
        (None, false, true) => Some(0),
        (None, _, _) => None,
    }
}

impl List {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let kinds = kinds(self.types.as_deref())?;
        let snapshots_only = kinds == [DatasetKind::Snapshot];
        // `zfs list -t snapshot fs` shows the snapshots of fs itself.
        let named = !self.datasets.is_empty();
        let depth = match depth_of(self.recursive, self.depth, named) {
            Some(0)
                if self.depth.is_none()
                    && (snapshots_only || kinds.contains(&DatasetKind::Bookmark)) =>
            {
                Some(1)
            }
            depth => depth,
        };
        let call = ZfsList {
            names: self.datasets.clone(),
            depth,
            kinds,
        };
        let mut datasets = client.call(&call)?.datasets;
        self.sort(&mut datasets);
        let columns_text = self
            .columns
            .clone()
            .unwrap_or_else(|| "name,used,available,referenced,mountpoint".into());
        let names = column_names(&columns_text);
        if self.json {
            return print_json(
                &datasets,
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
                println!("no datasets available");
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

    fn sort(&self, datasets: &mut [DatasetReport]) {
        let keys: Vec<(String, bool)> = self
            .ascending
            .iter()
            .map(|name| (full_name(name).to_owned(), false))
            .chain(
                self.descending
                    .iter()
                    .map(|name| (full_name(name).to_owned(), true)),
            )
            .collect();
        if keys.is_empty() {
            return;
        }
        datasets.sort_by(|left, right| {
            keys.iter()
                .map(|(name, reverse)| {
                    let order = compare(&cell(left, name, true), &cell(right, name, true));
                    if *reverse { order.reverse() } else { order }
                })
                .find(|order| *order != Ordering::Equal)
                .unwrap_or(Ordering::Equal)
        });
    }
}

fn compare(left: &str, right: &str) -> Ordering {
    match (left.parse::<f64>(), right.parse::<f64>()) {
        (Ok(left), Ok(right)) => left.total_cmp(&right),
        // Datasets without the property come last.
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => left.cmp(right),
    }
}

/// Column names in full, `space` expanded.
fn column_names(text: &str) -> Vec<String> {
    text.split(',')
        .flat_map(|name| match name {
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
            let statistic = Property::statistic(dataset.kind.name());
            let Some(property) = (if name == "type" {
                Some(&statistic)
            } else {
                dataset.properties.get(&name)
            }) else {
                properties.insert(
                    name,
                    json!({"value": "-", "source": json::source(&Source::None)}),
                );
                continue;
            };
            if wanted(&property.source) {
                let text = shown(&name, &property.value, parseable || json_int);
                properties.insert(name, json!({"value": json::value(&text, json_int), "source": json::source(&property.source)}));
            }
        }
        let mut entry = Map::new();
        entry.insert("name".into(), json!(dataset.name));
        entry.insert("type".into(), json!(dataset.kind.name().to_uppercase()));
        entry.insert(
            "pool".into(),
            json!(dataset.name.split(['/', '@', '#']).next()),
        );
        entry.insert(
            "createtxg".into(),
            json::value(&dataset.create_txg.to_string(), json_int),
        );
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
        let named = !self.datasets.is_empty();
        let kinds_wanted = if kinds.is_empty() && (self.recursive || self.depth.is_some() || !named)
        {
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
        let call = ZfsList {
            names: self.datasets.clone(),
            depth: depth_of(self.recursive, self.depth, named),
            kinds: kinds_wanted,
        };
        let datasets = client.call(&call)?.datasets;
        let wanted: Option<Vec<String>> = (self.properties != "all").then(|| {
            self.properties
                .split(',')
                .map(|name| full_name(name).to_owned())
                .collect()
        });
        let properties_of = |dataset: &DatasetReport| -> Vec<String> {
            wanted.clone().unwrap_or_else(|| {
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
                &datasets,
                "zfs get",
                self.json_int,
                properties_of,
                source_wanted,
                self.parseable,
            );
        }
        let fields: Vec<&str> = match self.fields.as_str() {
            "all" => vec!["name", "property", "value", "received", "source"],
            fields => fields.split(',').collect(),
        };
        let mut rows = Vec::new();
        for dataset in &datasets {
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
                        "received" => "-".into(),
                        "source" => source_text(&source),
                        other => bail!("invalid column name '{other}'; columns are name, property, value, received, source"),
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
