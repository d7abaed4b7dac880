//! `zfs userspace`, `groupspace`, `projectspace` (`zfs_do_userspace`, cmd/zfs/zfs_main.c) and `zfs
//! holds` (`zfs_do_holds`).

use std::cmp::Ordering;

use api::{HoldReport, SpaceOwner, SpaceReport, ZfsHolds, ZfsSpace};
use clap::Args;
use serde_json::{Map, Value, json};

use super::list::dataset_of;
use crate::client::Client;
use crate::columns::{Column, render};
use crate::usage::{MINUS_ONE, Status};
use crate::{json, numbers};

/// Tell what users or groups use.
#[derive(Debug, Args)]
pub struct Space {
    /// Numbers instead of names
    #[arg(short = 'n')]
    numeric: bool,
    /// Numbers of SMB identities (there are none here)
    #[arg(short = 'i')]
    translate: bool,
    /// Kinds of owners, comma-separated, of posixuser, smbuser, posixgroup, smbgroup,
    /// project, all
    #[arg(short = 't')]
    types: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Tell what projects use.
#[derive(Debug, Args)]
pub struct ProjectSpace {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// No headings, tabs between fields
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    parseable: bool,
    /// Fields, comma-separated, of type, name, used, quota, objused, objquota
    #[arg(short = 'o', default_value = "type,name,used,quota,objused,objquota")]
    fields: String,
    /// Sort by a field, ascending
    #[arg(short = 's')]
    ascending: Vec<String>,
    /// Sort by a field, descending
    #[arg(short = 'S')]
    descending: Vec<String>,
    /// FILESYSTEM, SNAPSHOT or PATH
    dataset: String,
}

const FIELDS: [&str; 6] = ["type", "name", "used", "quota", "objused", "objquota"];

impl Space {
    /// Asks the daemon and prints. `owner` is the kind that is shown where none is chosen.
    pub fn run(self, client: &Client, owner: SpaceOwner) -> anyhow::Result<()> {
        let mut owners = Vec::new();
        match &self.types {
            None => owners.push(owner),
            Some(types) => {
                for word in types.split(',') {
                    match word {
                        "posixuser" => owners.push(SpaceOwner::User),
                        "posixgroup" => owners.push(SpaceOwner::Group),
                        "project" => owners.push(SpaceOwner::Project),
                        "all" => owners.extend([SpaceOwner::User, SpaceOwner::Group]),
                        // Nothing here has identities of that kind.
                        "smbuser" | "smbgroup" => {}
                        other => {
                            bail_status!(MINUS_ONE, "invalid type '{other}' for -t option")
                        }
                    }
                }
            }
        }
        owners.sort();
        owners.dedup();
        self.common.run(client, owners, self.numeric)
    }
}

impl ProjectSpace {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        self.common.run(client, vec![SpaceOwner::Project], true)
    }
}

impl Common {
    fn run(&self, client: &Client, owners: Vec<SpaceOwner>, numeric: bool) -> anyhow::Result<()> {
        let fields: Vec<&str> = self.fields.split(',').collect();
        if let Some(unknown) = fields.iter().find(|field| !FIELDS.contains(field)) {
            bail_status!(MINUS_ONE, "invalid type '{unknown}' for -o option");
        }
        let keys: Vec<(&str, bool)> = (self.ascending.iter().map(|field| (&field[..], false)))
            .chain(self.descending.iter().map(|field| (&field[..], true)))
            .chain([("type", false), ("name", false)])
            .collect();
        if let Some((unknown, _)) = keys.iter().find(|(field, _)| !FIELDS.contains(field)) {
            bail_usage!("invalid field '{unknown}'");
        }
        let name = dataset_of(&self.dataset, client)?;
        let reply = client.call(&ZfsSpace { name, owners }).map_err(|error| {
            let text = format!("{error:#}");
            match text.starts_with("cannot get used/quota for ") {
                true => Status {
                    code: MINUS_ONE,
                    text,
                }
                .into(),
                false => error,
            }
        });
        let mut uses = reply?.uses;
        if numeric {
            for used in &mut uses {
                used.name = None;
            }
        }
        uses.sort_by(|left, right| {
            let mut orders = keys.iter().map(|(field, reverse)| {
                let order = compare(left, right, field);
                if *reverse { order.reverse() } else { order }
            });
            let first = orders.find(|order| *order != Ordering::Equal);
            first.unwrap_or(Ordering::Equal)
        });
        let columns: Vec<Column> = fields
            .iter()
            .map(|field| match *field {
                "type" | "name" => Column::left(field.to_uppercase()),
                field => Column::right(field.to_uppercase()),
            })
            .collect();
        let rows: Vec<Vec<String>> = uses
            .iter()
            .map(|used| fields.iter().map(|field| self.cell(used, field)).collect())
            .collect();
        print!("{}", render(&columns, &rows, self.scripted));
        Ok(())
    }

    fn cell(&self, used: &SpaceReport, field: &str) -> String {
        let value = match field {
            "type" => {
                let kind = match used.owner {
                    SpaceOwner::User => "POSIX User",
                    SpaceOwner::Group => "POSIX Group",
                    SpaceOwner::Project => "Project",
                };
                return kind.into();
            }
            "name" => return used.name.clone().unwrap_or_else(|| used.id.to_string()),
            "used" => used.bytes.map(|usage| usage.used),
            "quota" => used.bytes.map(|usage| usage.quota),
            "objused" => used.objects.map(|usage| usage.used),
            _ => used.objects.map(|usage| usage.quota),
        };
        match value {
            None => "-".into(),
            Some(number) if self.parseable => number.to_string(),
            Some(0) if field.ends_with("quota") => "none".into(),
            Some(number) if field.starts_with("obj") => numbers::nice_count(number),
            Some(number) => numbers::nice_bytes(number),
        }
    }
}

fn compare(left: &SpaceReport, right: &SpaceReport, field: &str) -> Ordering {
    match field {
        "type" => left.owner.cmp(&right.owner),
        "name" => match (&left.name, &right.name) {
            (Some(left), Some(right)) => left.cmp(right),
            // Those without a name come first, by number.
            (None, None) => left.id.cmp(&right.id),
            (left, right) => left.is_some().cmp(&right.is_some()),
        },
        "used" => left
            .bytes
            .map(|usage| usage.used)
            .cmp(&right.bytes.map(|usage| usage.used)),
        "quota" => left
            .bytes
            .map(|usage| usage.quota)
            .cmp(&right.bytes.map(|usage| usage.quota)),
        "objused" => left
            .objects
            .map(|usage| usage.used)
            .cmp(&right.objects.map(|usage| usage.used)),
        _ => left
            .objects
            .map(|usage| usage.quota)
            .cmp(&right.objects.map(|usage| usage.quota)),
    }
}

/// List holds on snapshots.
#[derive(Debug, Args)]
pub struct Holds {
    /// Snapshots of the same name of children too
    #[arg(short)]
    recursive: bool,
    /// No headings, tabs between fields
    #[arg(short = 'H')]
    scripted: bool,
    /// Times in seconds since the epoch
    #[arg(short)]
    parseable: bool,
    /// JSON (not in OpenZFS)
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long, requires = "json")]
    json_int: bool,
    #[arg(required = true)]
    snapshots: Vec<String>,
}

impl Holds {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let reply = client.call(&ZfsHolds {
            names: self.snapshots.clone(),
            recursive: self.recursive,
        })?;
        if self.json {
            return json::print(self.document(&reply.holds));
        }
        let rows: Vec<Vec<String>> = reply
            .holds
            .iter()
            .map(|hold| vec![hold.name.clone(), hold.tag.clone(), self.time(hold)])
            .collect();
        let columns = ["NAME", "TAG", "TIMESTAMP"].map(Column::left);
        print!("{}", render(&columns, &rows, self.scripted));
        if rows.is_empty() && !self.scripted {
            eprintln!("no datasets available");
        }
        Ok(())
    }

    fn time(&self, hold: &HoldReport) -> String {
        match self.parseable || self.json_int {
            true => hold.time_s.to_string(),
            false => numbers::local_minute(hold.time_s),
        }
    }

    /// Snapshots with the times of their holds by tag.
    fn document(&self, holds: &[HoldReport]) -> Map<String, Value> {
        let mut by_name = Map::new();
        for hold in holds {
            let empty = || json!({"name": hold.name, "holds": {}});
            let entry = by_name.entry(hold.name.clone()).or_insert_with(empty);
            entry["holds"][&hold.tag] = json::value(&self.time(hold), self.json_int);
        }
        let mut document = json::document("zfs holds");
        document.insert("datasets".into(), Value::Object(by_name));
        document
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_in_json_are_by_snapshot() {
        let holds = Holds {
            recursive: false,
            scripted: false,
            parseable: false,
            json: true,
            json_int: true,
            snapshots: Vec::new(),
        };
        let hold = |name: &str, tag: &str, time_s| HoldReport {
            name: name.to_owned(),
            tag: tag.to_owned(),
            time_s,
        };
        let all = [
            hold("t@a", "one", 1),
            hold("t@a", "two", 2),
            hold("t@b", "one", 3),
        ];
        let document = holds.document(&all);
        let expected = json!({
            "t@a": {"name": "t@a", "holds": {"one": 1, "two": 2}},
            "t@b": {"name": "t@b", "holds": {"one": 3}},
        });
        assert_eq!(document["datasets"], expected);
    }
}
