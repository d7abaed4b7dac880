//! `zpool status`: the condition of pools, laid out as OpenZFS does (`status_callback` and
//! `print_status_config`, cmd/zpool/zpool_main.c).

use api::{PoolStatusReport, VdevReport, ZpoolStatus};
use clap::Args;
use serde_json::{Map, Value, json};

use super::{progress, scan};
use crate::client::Client;
use crate::{json, numbers};

/// Tell the condition of pools and their devices.
#[derive(Debug, Args)]
pub struct Status {
    /// Name damaged files
    #[arg(short)]
    verbose: bool,
    /// Dedup tables as well
    #[arg(short = 'D')]
    dedup: bool,
    /// Only pools that are not well
    #[arg(short = 'x')]
    exceptions: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    parseable: bool,
    /// Full paths of devices
    #[arg(short = 'P')]
    full_paths: bool,
    /// GUIDs of devices instead of names
    #[arg(short = 'g')]
    guids: bool,
    /// Real paths (paths are shown as given already)
    #[arg(short = 'L')]
    real_paths: bool,
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long)]
    json_int: bool,
    /// With -j, vdevs in one flat object
    #[arg(long)]
    json_flat_vdevs: bool,
    /// With -j, pools by GUID
    #[arg(long)]
    json_pool_key_guid: bool,
    pools: Vec<String>,
}

/// How leaves are named.
#[derive(Clone, Copy)]
pub struct Naming {
    /// Full paths.
    pub full_paths: bool,
    /// GUIDs.
    pub guids: bool,
}

impl Status {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let mut pools = client
            .call(&ZpoolStatus {
                names: self.pools.clone(),
                verbose: self.verbose,
            })?
            .pools;
        if self.exceptions {
            pools.retain(|pool| {
                pool.state != "ONLINE" || pool.status.is_some() || pool.error_count > 0
            });
        }
        if self.json {
            return self.print_json(&pools);
        }
        if pools.is_empty() {
            if self.exceptions && self.pools.is_empty() {
                println!("all pools are healthy");
            } else if self.exceptions {
                for name in &self.pools {
                    println!("pool '{name}' is healthy");
                }
            } else {
                println!("no pools available");
            }
            return Ok(());
        }
        for (index, pool) in pools.iter().enumerate() {
            if index > 0 {
                println!();
            }
            self.print(pool);
        }
        Ok(())
    }

    fn print(&self, pool: &PoolStatusReport) {
        println!("  pool: {}", pool.name);
        println!(" state: {}", pool.state);
        print_wrapped("status", pool.status.as_deref());
        print_wrapped("action", pool.action.as_deref());
        if let Some(see) = &pool.see {
            println!("   see: {see}");
        }
        if let Some(scan) = &pool.scan {
            println!("  scan: {}", scan::lines(scan).join("\n\t"));
        }
        if let Some(removal) = &pool.removal {
            println!("remove: {}", progress::removal(removal));
        }
        if let Some(checkpoint) = &pool.checkpoint {
            println!("checkpoint: {}", progress::checkpoint(checkpoint));
        }
        if let Some(expansion) = &pool.expansion {
            println!("expand: {}", progress::expansion(expansion));
        }
        println!("config:\n");
        print_config(
            &pool.tree,
            Naming {
                full_paths: self.full_paths,
                guids: self.guids,
            },
            true,
            self.parseable,
        );
        println!();
        match pool.error_count {
            0 => println!("errors: No known data errors"),
            count if !self.verbose => println!("errors: {count} data errors, use '-v' for a list"),
            _ => {
                println!("errors: Permanent errors have been detected in the following files:\n");
                for file in &pool.damaged {
                    println!("        {file}");
                }
            }
        }
        if self.dedup {
            print!("\n{}", progress::dedup(pool.dedup.as_ref(), self.parseable));
        }
    }

    fn print_json(&self, pools: &[PoolStatusReport]) -> anyhow::Result<()> {
        let naming = Naming {
            full_paths: true,
            guids: self.guids,
        };
        let mut by_key = Map::new();
        for pool in pools {
            let number = |value: u64| json::value(&value.to_string(), self.json_int);
            let mut report = Map::new();
            report.insert("name".into(), json!(pool.name));
            report.insert("state".into(), json!(pool.state));
            report.insert("pool_guid".into(), number(pool.guid));
            report.insert("txg".into(), number(pool.txg));
            report.insert("spa_version".into(), json::value("5000", self.json_int));
            report.insert("zpl_version".into(), json::value("5", self.json_int));
            for (key, text) in [
                ("status", &pool.status),
                ("action", &pool.action),
                ("moreinfo", &pool.see),
            ] {
                if let Some(text) = text {
                    report.insert(key.into(), json!(text));
                }
            }
            if let Some(found) = &pool.scan {
                let exact = self.json_int || self.parseable;
                report.insert("scan_stats".into(), scan::json(found, exact, &number));
            }
            let mut vdevs = Map::new();
            self.json_vdev(&pool.tree, &pool.name, naming, &mut vdevs);
            report.insert("vdevs".into(), Value::Object(vdevs));
            report.insert("error_count".into(), number(pool.error_count));
            let key = if self.json_pool_key_guid {
                pool.guid.to_string()
            } else {
                pool.name.clone()
            };
            by_key.insert(key, Value::Object(report));
        }
        let mut document = json::document("zpool status");
        document.insert("pools".into(), Value::Object(by_key));
        json::print(document)
    }

    fn json_vdev(
        &self,
        vdev: &VdevReport,
        name: &str,
        naming: Naming,
        out: &mut Map<String, Value>,
    ) {
        let number = |value: u64| json::value(&value.to_string(), self.json_int);
        let size = |value: u64| {
            if self.json_int || self.parseable {
                number(value)
            } else {
                json!(numbers::nice_bytes(value))
            }
        };
        let mut entry = Map::new();
        entry.insert("name".into(), json!(name));
        entry.insert("vdev_type".into(), json!(vdev.kind));
        entry.insert("guid".into(), number(vdev.guid));
        if let Some(path) = &vdev.path {
            entry.insert("path".into(), json!(path));
        }
        entry.insert(
            "class".into(),
            json!(if vdev.class.is_empty() {
                "normal"
            } else {
                &vdev.class
            }),
        );
        entry.insert("state".into(), json!(vdev.state));
        if vdev.size_bytes > 0 {
            entry.insert("alloc_space".into(), size(vdev.allocated_bytes));
            entry.insert("total_space".into(), size(vdev.size_bytes));
        }
        entry.insert("read_errors".into(), number(vdev.read_errors));
        entry.insert("write_errors".into(), number(vdev.write_errors));
        entry.insert("checksum_errors".into(), number(vdev.checksum_errors));
        let mut children = Map::new();
        for child in &vdev.children {
            let child_name = leaf_name(child, naming);
            let target = if self.json_flat_vdevs {
                &mut *out
            } else {
                &mut children
            };
            self.json_vdev(child, &child_name, naming, target);
        }
        if !children.is_empty() {
            entry.insert("vdevs".into(), Value::Object(children));
        }
        out.insert(name.into(), Value::Object(entry));
    }
}

/// Prints a labelled paragraph, later lines indented by a tab.
pub fn print_wrapped(label: &str, text: Option<&str>) {
    let Some(text) = text else { return };
    // Sentences that OpenZFS has as well come with OpenZFS's line breaks.
    if text.contains('\n') {
        println!("{label:>6}: {}", text.replace('\n', "\n\t"));
        return;
    }
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= 71 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    println!("{label:>6}: {}", lines.join("\n\t"));
}

/// The name of a vdev as the option asks.
pub fn leaf_name(vdev: &VdevReport, naming: Naming) -> String {
    if naming.guids {
        return vdev.guid.to_string();
    }
    match &vdev.path {
        // What is not there.
        Some(_)
            if vdev
                .note
                .as_deref()
                .is_some_and(|note| note.starts_with("was ")) =>
        {
            vdev.name.clone()
        }
        // Files are always shown in full; disks by their last component unless -P.
        Some(path) if naming.full_paths || vdev.kind == "file" => path.clone(),
        Some(path) => strip_path(path).to_owned(),
        None => vdev.name.clone(),
    }
}

/// A disk's path without the directories that disks are looked for in (`zfs_strip_path`).
fn strip_path(path: &str) -> &str {
    const DIRECTORIES: [&str; 9] = [
        "/dev/disk/by-vdev/",
        "/dev/mapper/",
        "/dev/disk/by-partlabel/",
        "/dev/disk/by-partuuid/",
        "/dev/disk/by-label/",
        "/dev/disk/by-uuid/",
        "/dev/disk/by-id/",
        "/dev/disk/by-path/",
        "/dev/",
    ];
    DIRECTORIES
        .iter()
        .find_map(|directory| path.strip_prefix(directory))
        .unwrap_or(path)
}

/// Columns that the names of all vdevs need, with two of indentation a level.
pub fn name_width(root: &VdevReport, naming: Naming) -> usize {
    fn width(vdev: &VdevReport, depth: usize, naming: Naming) -> usize {
        let own = leaf_name(vdev, naming).chars().count() + depth;
        vdev.children
            .iter()
            .map(|child| width(child, depth + 2, naming))
            .chain([own])
            .max()
            .unwrap_or(own)
    }
    width(root, 0, naming).max(10)
}

/// The heading above the vdevs of a class.
pub fn class_heading(class: &str) -> &'static str {
    match class {
        "log" => "logs",
        "special" => "special",
        "dedup" => "dedup",
        "cache" => "cache",
        "spare" => "spares",
        _ => "",
    }
}

/// Prints the table of vdevs, with error counters or (for `zpool import`) without.
pub fn print_config(root: &VdevReport, naming: Naming, counters: bool, parseable: bool) {
    let width = name_width(root, naming);
    if counters {
        println!(
            "\t{:<width$}  {:<8} {:>5} {:>5} {:>5}",
            "NAME", "STATE", "READ", "WRITE", "CKSUM"
        );
    }
    let line = |vdev: &VdevReport, depth: usize| {
        let mut text = format!(
            "\t{:depth$}{:<rest$}",
            "",
            leaf_name(vdev, naming),
            rest = width.saturating_sub(depth)
        );
        match (counters, vdev.class.as_str()) {
            (true, _) => text.push_str(&format!("  {:<8}", vdev.state)),
            // What stands by has no state before the import.
            (false, "spare" | "cache") => text.truncate(text.trim_end().len()),
            (false, _) => text.push_str(&format!("  {}", vdev.state)),
        }
        if counters && !matches!(vdev.class.as_str(), "spare") {
            let count = |value: u64| {
                if parseable {
                    value.to_string()
                } else {
                    numbers::nice_count(value)
                }
            };
            text.push_str(&format!(
                " {:>5} {:>5} {:>5}",
                count(vdev.read_errors),
                count(vdev.write_errors),
                count(vdev.checksum_errors)
            ));
        }
        if let Some(note) = &vdev.note {
            text.push_str(&format!("  {note}"));
        }
        println!("{text}");
    };
    fn walk(vdev: &VdevReport, depth: usize, line: &dyn Fn(&VdevReport, usize)) {
        line(vdev, depth);
        for child in &vdev.children {
            walk(child, depth + 2, line);
        }
    }
    line(root, 0);
    // Removed vdevs are in lists only.
    let is_there = |child: &&VdevReport| child.kind != "indirect";
    for child in root
        .children
        .iter()
        .filter(is_there)
        .filter(|child| child.class.is_empty())
    {
        walk(child, 2, &line);
    }
    for class in ["dedup", "special", "log", "cache", "spare"] {
        let mut members = root
            .children
            .iter()
            .filter(is_there)
            .filter(|child| child.class == class)
            .peekable();
        if members.peek().is_some() {
            let tab = if matches!(class, "cache" | "spare") {
                ""
            } else {
                "\t"
            };
            println!("\t{}{tab}", class_heading(class));
        }
        for child in members {
            walk(child, 2, &line);
        }
    }
}
