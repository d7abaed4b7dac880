//! `zpool get`: properties of pools and of vdevs (`zpool_do_get`, cmd/zpool/zpool_main.c;
//! `zpool_get_vdev_prop`, lib/libzfs/libzfs_pool.c), and which vdev a word means.

use anyhow::bail;
use api::{
    PoolReport, Property, PropertyMap, Source, VdevClass, VdevKind, VdevName, VdevReport, ZpoolList,
};
use clap::Args;
use serde_json::{Map, Value, json};

use super::list::{cell, full_name, pools_json, shown};
use super::vdevs::{self, Naming, leaf_name};
use super::words;
use crate::client::Client;
use crate::columns::{Column, render};
use crate::{json, numbers};

/// Print properties of pools, or of the vdevs of one.
#[derive(Debug, Args)]
pub struct Get {
    /// No headings, tabs between fields
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    parseable: bool,
    /// Fields, comma-separated, of name, property, value, source; or all
    #[arg(short = 'o', default_value = "all")]
    fields: String,
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long, requires = "json")]
    json_int: bool,
    /// With -j, pools by GUID
    #[arg(long, requires = "json")]
    json_pool_key_guid: bool,
    /// all, or properties, comma-separated
    properties: String,
    /// POOL..., or POOL all-vdevs, or POOL VDEV...
    names: Vec<String>,
}

/// The only property that vdevs of one kind have.
const RAIDZ_EXPANDING: &str = "raidz_expanding";

const FIELDS: [&str; 4] = ["name", "property", "value", "source"];

impl Get {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let fields: Vec<&str> = match self.fields.as_str() {
            "all" => FIELDS.to_vec(),
            fields => fields.split(',').collect(),
        };
        if let Some(unknown) = fields.iter().find(|field| !FIELDS.contains(field)) {
            bail_usage!(
                "invalid column name '{unknown}'\ncolumns are name, property, value, source"
            );
        }
        let pools = client.call(&ZpoolList::default())?.pools;
        let find = |name: &String| pools.iter().find(|pool| &pool.name == name);
        let wanted = match self.names.first() {
            None => pools.clone(),
            Some(_) if self.names.iter().all(|name| find(name).is_some()) => {
                self.names.iter().filter_map(find).cloned().collect()
            }
            Some(first) => match find(first) {
                Some(pool) if self.names.len() > 1 => return self.vdevs(pool, &fields),
                _ => {
                    bail!("Cannot get properties of {first}: no such pool available.")
                }
            },
        };
        self.pools(&wanted, &fields)
    }

    fn wanted(&self) -> Option<Vec<&str>> {
        (self.properties != "all").then(|| self.properties.split(',').map(full_name).collect())
    }

    fn pools(&self, pools: &[PoolReport], fields: &[&str]) -> anyhow::Result<()> {
        let wanted = self.wanted();
        let properties_of = |pool: &PoolReport| -> Vec<String> {
            match &wanted {
                Some(names) => names.iter().map(|name| (*name).to_owned()).collect(),
                None => pool.properties.keys().cloned().collect(),
            }
        };
        for pool in pools {
            for name in properties_of(pool) {
                if name != "name" && !name.contains(':') && !pool.properties.contains_key(&name) {
                    bail_usage!("bad property list: invalid property '{name}'");
                }
            }
        }
        if self.json {
            return json::print(pools_json(
                pools,
                "zpool get",
                self.json_int,
                self.json_pool_key_guid,
                properties_of,
                |_, _| {},
                self.parseable,
            ));
        }
        let mut rows = Vec::new();
        for pool in pools {
            for name in properties_of(pool) {
                let source = match pool.properties.get(&name) {
                    Some(property) => source_text(&property.source),
                    None => source_text(&unset_source(&name)),
                };
                let value = cell(pool, &name, self.parseable);
                rows.push(row(fields, &pool.name, &name, &value, &source));
            }
        }
        self.table(fields, &rows);
        Ok(())
    }

    fn table(&self, fields: &[&str], rows: &[Vec<String>]) {
        let columns: Vec<Column> = fields
            .iter()
            .map(|field| Column::left(field.to_uppercase()))
            .collect();
        print!("{}", render(&columns, rows, self.scripted));
    }

    fn vdevs(&self, pool: &PoolReport, fields: &[&str]) -> anyhow::Result<()> {
        let all = all_vdevs(pool);
        let words = &self.names[1..];
        let chosen: Vec<&(String, VdevReport, PropertyMap)> = match words {
            [word] if word == "all-vdevs" => all.iter().collect(),
            words => {
                let mut chosen = Vec::new();
                for word in words {
                    let mut vdevs = all.iter();
                    match vdevs.find(|(name, vdev, _)| is_called(word, name, vdev)) {
                        Some(vdev) => chosen.push(vdev),
                        None => bail_usage!(
                            "Expected a list of vdevs in \"{}\", but got:\n{word}",
                            pool.name
                        ),
                    }
                }
                chosen
            }
        };
        let wanted = self.wanted();
        let exact = self.parseable || self.json_int;
        let mut rows = Vec::new();
        let mut by_name = Map::new();
        for (name, vdev, properties) in chosen {
            let names: Vec<String> = match &wanted {
                Some(names) => names.iter().map(|name| (*name).to_owned()).collect(),
                None => properties.keys().cloned().collect(),
            };
            let mut shown_properties = Map::new();
            for property in names.iter().filter(|property| *property != "name") {
                let (value, source) = match properties.get(property) {
                    Some(found) => (
                        vdev_shown(property, &found.value, exact),
                        found.source.clone(),
                    ),
                    // One that this vdev does not have.
                    None if property.contains(':') || property == RAIDZ_EXPANDING => {
                        ("-".to_owned(), unset_source(property))
                    }
                    None => bail_usage!("bad property list: invalid property '{property}'"),
                };
                rows.push(row(fields, name, property, &value, &source_text(&source)));
                shown_properties.insert(
                    property.clone(),
                    json::property(&value, &source, self.json_int),
                );
            }
            let mut entry = Map::new();
            for (key, value) in vdevs::info(vdev, name, VdevClass::Normal, self.json_int) {
                let is_name = key == "name";
                entry.insert(key, value);
                if is_name {
                    entry.insert("type".into(), json!("VDEV"));
                }
            }
            entry.insert("properties".into(), Value::Object(shown_properties));
            by_name.insert(name.clone(), Value::Object(entry));
        }
        if self.json {
            let mut document = json::document("zpool get");
            document.insert("vdevs".into(), Value::Object(by_name));
            let state = words::health(pool.health);
            let entry = json::pool(&pool.name, state, pool.guid, pool.txg, None, self.json_int);
            document.insert("pool".into(), Value::Object(entry));
            return json::print(document);
        }
        self.table(fields, &rows);
        Ok(())
    }
}

/// The vdev of a pool that a person calls `word`, as for `zpool get`.
pub fn find_vdev(client: &Client, pool: &str, word: &str) -> anyhow::Result<VdevName> {
    let names = vec![pool.to_owned()];
    let pools = client.call(&ZpoolList { names, io: false })?.pools;
    let found = pools.iter().flat_map(all_vdevs);
    let mut found = found.filter(|(name, vdev, _)| is_called(word, name, vdev));
    match found.next() {
        Some((name, vdev, _)) => Ok(VdevName {
            guid: vdev.guid,
            name,
        }),
        None => bail!("cannot find '{word}' in '{pool}': device not in pool"),
    }
}

fn row(fields: &[&str], name: &str, property: &str, value: &str, source: &str) -> Vec<String> {
    fields
        .iter()
        .map(|field| match *field {
            "name" => name,
            "property" => property,
            "value" => value,
            _ => source,
        })
        .map(str::to_owned)
        .collect()
}

fn is_called(word: &str, name: &str, vdev: &VdevReport) -> bool {
    word == name
        || vdev.path.as_deref() == Some(word)
        || word.parse() == Ok(vdev.guid)
        || word == "root" && vdev.kind == VdevKind::Root
}

/// Every vdev of a pool, the root (`root-0`) first, with its properties.
fn all_vdevs(pool: &PoolReport) -> Vec<(String, VdevReport, PropertyMap)> {
    fn walk(
        vdev: &VdevReport,
        name: &str,
        parent: Option<&str>,
        out: &mut Vec<(String, VdevReport, PropertyMap)>,
    ) {
        let members: Vec<(String, &VdevReport)> = vdev
            .children
            .iter()
            // Spares and caches are not part of the tree.
            .filter(|child| !matches!(child.class, VdevClass::Spare | VdevClass::Cache))
            .map(|child| (leaf_name(child, Naming::default()), child))
            .collect();
        let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        let properties = properties_of(vdev, name, parent, &names);
        out.push((name.to_owned(), vdev.clone(), properties));
        for (child_name, child) in &members {
            walk(child, child_name, Some(name), out);
        }
    }
    let mut out = Vec::new();
    walk(&pool.tree, "root-0", None, &mut out);
    out
}

/// Properties of a vdev in the order of `vdev_prop_t` (include/sys/fs/zfs.h), then those of users.
/// Those that only OpenZFS counts (kinds of operations by class) have the value that means "none".
fn properties_of(
    vdev: &VdevReport,
    name: &str,
    parent: Option<&str>,
    members: &[&str],
) -> PropertyMap {
    let mut out = PropertyMap::new();
    let mut tell = |property: &str, value: String, source: Source| {
        out.insert(property.to_owned(), Property { value, source });
    };
    let set = |property: &str| vdev.properties.get(property).cloned();
    let settable = |property: &str, default: &str| match set(property) {
        Some(value) => (value, Source::Local),
        None => (default.to_owned(), Source::Default),
    };
    let mut read_only = |property: &str, value: String| tell(property, value, Source::None);
    let has_space = vdev.size_bytes > 0;
    let allocated = vdev.allocated_bytes;
    let percent = |part: u64| (u128::from(part) * 100).checked_div(u128::from(vdev.size_bytes));
    let of_space = |value: u64| if has_space { value } else { 0 };
    read_only("name", name.to_owned());
    read_only("capacity", percent(allocated).unwrap_or(0).to_string());
    read_only("state", words::state(vdev.state).to_owned());
    read_only("guid", vdev.guid.to_string());
    read_only("asize", vdev.asize_bytes.to_string());
    read_only("psize", vdev.physical_bytes.to_string());
    read_only("ashift", vdev.ashift.to_string());
    read_only("size", vdev.size_bytes.to_string());
    read_only(
        "free",
        of_space(vdev.size_bytes.saturating_sub(allocated)).to_string(),
    );
    read_only("allocated", allocated.to_string());
    let (comment, source) = settable("comment", "-");
    tell("comment", comment, source);
    let mut read_only = |property: &str, value: String| tell(property, value, Source::None);
    read_only("expandsize", vdev.expandable_bytes.to_string());
    let fragmentation = vdev.fragmentation_percent;
    read_only(
        "fragmentation",
        fragmentation.map_or_else(|| "-".into(), |percent| percent.to_string()),
    );
    read_only("bootsize", "0".into());
    read_only("parity", vdev.parity.to_string());
    read_only("path", vdev.path.clone().unwrap_or_else(|| "-".into()));
    for property in ["devid", "physpath", "encpath", "fru"] {
        read_only(property, "-".into());
    }
    read_only("parent", parent.unwrap_or("-").to_owned());
    let children = if members.is_empty() {
        "-".into()
    } else {
        members.join(",")
    };
    read_only("children", children);
    read_only("numchildren", members.len().to_string());
    read_only("read_errors", vdev.read_errors.to_string());
    read_only("write_errors", vdev.write_errors.to_string());
    read_only("checksum_errors", vdev.checksum_errors.to_string());
    read_only("initialize_errors", "0".into());
    for (property, value) in [
        ("null_ops", 0),
        ("read_ops", vdev.reads.count),
        ("write_ops", vdev.writes.count),
        ("free_ops", 0),
        ("claim_ops", 0),
        ("trim_ops", vdev.trims.count),
    ] {
        read_only(property, value.to_string());
    }
    for (property, value) in [
        ("null_bytes", 0),
        ("read_bytes", vdev.reads.bytes),
        ("write_bytes", vdev.writes.bytes),
        ("free_bytes", 0),
        ("claim_bytes", 0),
        ("trim_bytes", vdev.trims.bytes),
    ] {
        read_only(property, value.to_string());
    }
    read_only("removing", "off".into());
    // Only what allocates can stop to.
    let (allocating, source) = match has_space {
        true => settable("allocating", "on"),
        false => ("-".to_owned(), Source::None),
    };
    tell("allocating", allocating, source);
    let (failfast, source) = settable("failfast", "on");
    tell("failfast", failfast, source);
    for property in [
        "checksum_n",
        "checksum_t",
        "io_n",
        "io_t",
        "slow_io_n",
        "slow_io_t",
    ] {
        let (limit, source) = settable(property, "-");
        tell(property, limit, source);
    }
    let mut read_only = |property: &str, value: String| tell(property, value, Source::None);
    if vdev.kind == VdevKind::Raidz {
        let is_expanding = if vdev.is_expanding { "on" } else { "off" };
        read_only(RAIDZ_EXPANDING, is_expanding.into());
    }
    let can_trim = members.is_empty() && !vdev.cannot_trim;
    read_only("trim_support", if can_trim { "on" } else { "off" }.into());
    read_only("trim_errors", vdev.trim_errors.to_string());
    read_only("slow_ios", vdev.slow_ios.to_string());
    // What sits out, of those whose data others can make up for: nothing does here.
    let in_stripes = |name: &str| name.starts_with("raidz") || name.starts_with("draid");
    if members.is_empty() && parent.is_some_and(in_stripes) {
        read_only("sit_out", "off".into());
    }
    if matches!(vdev.kind, VdevKind::Raidz | VdevKind::Draid) {
        let (autosit, source) = settable("autosit", "off");
        tell("autosit", autosit, source);
    }
    let (tells, source) = settable("slow_io_events", "on");
    tell("slow_io_events", tells, source);
    for (property, value) in &vdev.properties {
        if property.contains(':') {
            tell(property, value.clone(), Source::Local);
        }
    }
    out
}

/// A vdev's property for people, or exact.
fn vdev_shown(property: &str, value: &str, exact: bool) -> String {
    if exact {
        return value.into();
    }
    let Ok(number) = value.parse::<u64>() else {
        return value.into();
    };
    match property {
        "expandsize" | "bootsize" if number == 0 => "-".into(),
        "asize" | "psize" | "size" | "free" | "allocated" | "expandsize" | "bootsize" => {
            numbers::nice_bytes(number)
        }
        "capacity" | "fragmentation" => shown(property, value, exact),
        _ if property.ends_with("_bytes") => numbers::nice_bytes(number),
        _ if property.ends_with("_ops") || property.ends_with("_errors") => {
            numbers::nice_count(number)
        }
        _ => value.into(),
    }
}

/// The source of a property that is not there: users' properties are as by default
/// (`zpool_get_userprop`, lib/libzfs/libzfs_pool.c).
fn unset_source(property: &str) -> Source {
    match property.contains(':') {
        true => Source::Default,
        false => Source::None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vdevs_have_the_properties_of_their_kind() {
        let has = |kind| {
            let vdev = VdevReport {
                kind,
                ..VdevReport::default()
            };
            properties_of(&vdev, "v", None, &[]).contains_key(RAIDZ_EXPANDING)
        };
        assert!(has(VdevKind::Raidz));
        assert!(!has(VdevKind::Root) && !has(VdevKind::Mirror) && !has(VdevKind::Disk));
    }

    #[test]
    fn what_users_did_not_set_is_as_by_default() {
        assert_eq!(source_text(&unset_source("cool:pool")), "default");
        assert_eq!(source_text(&unset_source("expandsize")), "-");
    }
}
