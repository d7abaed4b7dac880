//! Vdevs in tables and in JSON: their names, classes and states (`zpool_vdev_name`,
//! lib/libzfs/libzfs_pool.c; `print_status_config`, `fill_vdev_info`, cmd/zpool/zpool_main.c).

use api::{ActivityReport, VdevReport, VdevSpec};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{json, numbers};

/// How vdevs are named.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Naming {
    /// Full paths of devices
    #[arg(short = 'P')]
    pub full_paths: bool,
    /// GUIDs of vdevs instead of names
    #[arg(short = 'g')]
    pub guids: bool,
    /// Paths with links resolved
    #[arg(short = 'L')]
    pub real_paths: bool,
}

/// What else is told of each vdev.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns {
    /// Error counters.
    pub counters: bool,
    /// Exact numbers.
    pub parseable: bool,
    /// Slow I/Os.
    pub slow: bool,
    /// Checks of direct I/O that failed.
    pub direct: bool,
    /// State of initializing.
    pub initialize: bool,
    /// State of trimming.
    pub trim: bool,
    /// Only what is not well.
    pub unhealthy: bool,
}

/// The classes after ordinary vdevs, in order: ours, and the key in JSON.
pub const CLASSES: [(&str, &str); 5] = [
    ("dedup", "dedup"),
    ("special", "special"),
    ("log", "logs"),
    ("cache", "l2cache"),
    ("spare", "spares"),
];

/// Name, type, GUID, path, class and state, as JSON has them. `class` is that of the vdev above.
pub fn info(vdev: &VdevReport, name: &str, above: &str, as_int: bool) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("name".into(), json!(name));
    entry.insert("vdev_type".into(), json!(vdev.kind));
    entry.insert("guid".into(), json::value(&vdev.guid.to_string(), as_int));
    if let Some(path) = &vdev.path {
        entry.insert("path".into(), json!(path));
    }
    let class = match (vdev.class.as_str(), above) {
        // Only the log itself says that it is one; below a special or dedup mirror all are.
        ("", _) | ("log", "log") => "normal",
        ("cache", _) => "l2cache",
        (class, _) => class,
    };
    entry.insert("class".into(), json!(class));
    let state = match vdev.state.as_str() {
        "UNAVAIL" => "CANT_OPEN",
        state => state,
    };
    entry.insert("state".into(), json!(state));
    entry
}

/// `vdev_aux_str` of what is printed behind a vdev.
pub fn aux(note: &str) -> &'static str {
    match note {
        "cannot open" => "OPEN_FAILED",
        "insufficient replicas" => "NO_REPLICAS",
        "missing device" => "BAD_GUID_SUM",
        "device is too small" => "TOO_SMALL",
        "invalid label" => "BAD_LABEL",
        "newer version" => "VERSION_NEWER",
        "unsupported feature(s)" => "UNSUP_FEAT",
        "currently in use" => "SPARED",
        "too many errors" => "ERR_EXCEEDED",
        "experienced I/O failures" => "IO_FAILURE",
        "bad intent log" => "BAD_LOG",
        "external device fault" => "EXTERNAL",
        "split into new pool" => "SPLIT_POOL",
        _ => "CORRUPT_DATA",
    }
}

/// Whether a vdev and all below it are well (`vdev_health_check_cb`).
pub fn is_well(vdev: &VdevReport) -> bool {
    let errors = vdev.read_errors + vdev.write_errors + vdev.checksum_errors;
    let state = matches!(vdev.state.as_str(), "ONLINE" | "AVAIL" | "INUSE");
    let own = !vdev.children.is_empty() || state && errors == 0 && !vdev.is_stale;
    own && vdev.children.iter().all(is_well)
}

/// The name of a vdev as the option asks.
pub fn leaf_name(vdev: &VdevReport, naming: Naming) -> String {
    if naming.guids && vdev.kind != "root" {
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
        Some(path) => device_name(path, &vdev.kind, naming),
        None => vdev.name.clone(),
    }
}

/// What a device is called. Files are always shown in full; disks by their last component unless -P.
fn device_name(path: &str, kind: &str, naming: Naming) -> String {
    let real = naming.real_paths.then(|| std::fs::canonicalize(path).ok());
    let path = match real.flatten() {
        Some(real) => real.to_string_lossy().into_owned(),
        None => path.to_owned(),
    };
    match naming.full_paths || kind == "file" {
        true => path,
        false => strip_path(&path).to_owned(),
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

/// A pool of the vdevs that it has and those that it would get, class by class (`print_vdev_tree`, `print_cache_list`,
/// `print_spare_list`, cmd/zpool/zpool_main.c). New vdevs have no GUID yet.
pub fn planned_layout(pool: &str, old: &[VdevReport], new: &[VdevSpec], naming: Naming) -> String {
    let mut out = format!("\t{pool}\n");
    let new_name = |vdev: &VdevSpec| match (vdev.path.as_str(), vdev.kind.as_str()) {
        _ if naming.guids => "0".to_owned(),
        ("", kind) => kind.to_owned(),
        (path, kind) => device_name(path, kind, naming),
    };
    for class in ["", "dedup", "special", "log", "cache", "spare"] {
        // Removed vdevs are in lists only.
        let is_there = |child: &&VdevReport| {
            child.class == class && !matches!(child.kind.as_str(), "hole" | "indirect")
        };
        let old: Vec<_> = old.iter().filter(is_there).collect();
        let new: Vec<_> = new.iter().filter(|vdev| vdev.class == class).collect();
        if !(class.is_empty() || old.is_empty() && new.is_empty()) {
            out.push_str(&format!("\t{}\n", class_heading(class)));
        }
        for child in old {
            let old_name = |vdev| leaf_name(vdev, naming);
            // Only groups of ordinary vdevs are numbered here.
            let name = match class.is_empty() || child.children.is_empty() || naming.guids {
                true => old_name(child),
                false => child.kind.clone(),
            };
            out.push_str(&format!("\t  {name}\n"));
            for member in &child.children {
                out.push_str(&format!("\t    {}\n", old_name(member)));
            }
        }
        for vdev in new {
            out.push_str(&format!("\t  {}\n", new_name(vdev)));
            for member in &vdev.children {
                out.push_str(&format!("\t    {}\n", new_name(member)));
            }
        }
    }
    out
}

/// Prints the table of vdevs, with error counters or (for `zpool import`) without.
pub fn print_config(root: &VdevReport, naming: Naming, columns: Columns) {
    let width = name_width(root, naming);
    if columns.counters {
        let mut heading = format!(
            "\t{:<width$}  {:<8} {:>5} {:>5} {:>5}",
            "NAME", "STATE", "READ", "WRITE", "CKSUM"
        );
        for (on, title) in [(columns.slow, "SLOW"), (columns.direct, "DIO")] {
            if on {
                heading.push_str(&format!(" {title:>5}"));
            }
        }
        println!("{heading}");
    }
    let line = |vdev: &VdevReport, depth: usize| {
        println!("{}", config_line(vdev, depth, width, naming, columns));
    };
    fn walk(vdev: &VdevReport, depth: usize, unhealthy: bool, line: &dyn Fn(&VdevReport, usize)) {
        if unhealthy && is_well(vdev) {
            return;
        }
        line(vdev, depth);
        for child in &vdev.children {
            walk(child, depth + 2, unhealthy, line);
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
        walk(child, 2, columns.unhealthy, &line);
    }
    // What stands by is part of the tree that an import shows (`print_import_config`).
    let stands_by = |class: &str| matches!(class, "cache" | "spare");
    let mut classes = CLASSES;
    if !columns.counters {
        classes.sort_by_key(|(class, _)| !stands_by(class));
    }
    for (class, _) in classes {
        let mut members = root
            .children
            .iter()
            .filter(is_there)
            .filter(|child| child.class == class)
            .peekable();
        if members.peek().is_some() {
            let tab = if stands_by(class) { "" } else { "\t" };
            println!("\t{}{tab}", class_heading(class));
        }
        for child in members {
            walk(child, 2, columns.unhealthy, &line);
        }
    }
}

fn config_line(
    vdev: &VdevReport,
    depth: usize,
    width: usize,
    naming: Naming,
    columns: Columns,
) -> String {
    let mut text = format!(
        "\t{:depth$}{:<rest$}",
        "",
        leaf_name(vdev, naming),
        rest = width.saturating_sub(depth)
    );
    match (columns.counters, vdev.class.as_str()) {
        (true, _) => text.push_str(&format!("  {:<8}", vdev.state)),
        // What stands by has no state before the import.
        (false, "spare" | "cache") => text.truncate(text.trim_end().len()),
        (false, _) => text.push_str(&format!("  {}", vdev.state)),
    }
    let is_leaf = vdev.children.is_empty();
    if columns.counters && vdev.class != "spare" {
        let count = |value: u64| {
            if columns.parseable {
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
        if columns.slow {
            let slow = if is_leaf || columns.parseable {
                count(vdev.slow_ios)
            } else {
                "-".to_owned()
            };
            text.push_str(&format!(" {slow:>5}"));
        }
        // No write goes past the cache here in a way that its data could change meanwhile: there is nothing to check.
        if columns.direct {
            text.push_str(&format!(" {:>5}", 0));
        }
    }
    if let Some(note) = &vdev.note {
        text.push_str(&format!("  {note}"));
    }
    if columns.counters && vdev.is_stale {
        text.push_str("  (awaiting resilver)");
    }
    if columns.counters && is_leaf {
        let is_removing = vdev
            .note
            .as_deref()
            .is_some_and(|note| note.ends_with("(removing)"));
        let activity = |report, shown, words| activity(report, shown && !is_removing, shown, words);
        let not_trimmed = match vdev.cannot_trim {
            true => "trim unsupported",
            false => "untrimmed",
        };
        let initialize = ["initialized", "uninitialized", "initializing"];
        text.push_str(&activity(&vdev.initialize, columns.initialize, initialize));
        let trim = ["trimmed", not_trimmed, "trimming"];
        text.push_str(&activity(&vdev.trim, columns.trim, trim));
    }
    text
}

/// How far a leaf was initialized or trimmed (`print_status_initialize`, `print_status_trim`), in the words for: done, not
/// done, under way.
fn activity(
    report: &ActivityReport,
    detailed: bool,
    shown: bool,
    [done, not_done, under_way]: [&str; 3],
) -> String {
    if !shown {
        return match report.state.as_str() {
            "ACTIVE" => format!("  ({under_way})"),
            _ => String::new(),
        };
    }
    let since = match report.state.as_str() {
        "SUSPENDED" => "suspended, started at",
        "ACTIVE" => "started at",
        "COMPLETE" => "completed at",
        _ => "",
    };
    if since.is_empty() || !detailed {
        return format!("  ({not_done})");
    }
    let percent = match report.state.as_str() {
        "COMPLETE" => 100,
        _ => {
            let total = u128::from(report.total_bytes) + 1;
            u128::from(report.done_bytes) * 100 / total
        }
    };
    let time = numbers::local_ctime(report.time_s);
    format!("  ({percent}% {done}, {since} {time})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_tell_how_far_they_were_initialized_and_trimmed() {
        let mut leaf = VdevReport {
            name: "/d".into(),
            state: "ONLINE".into(),
            ..VdevReport::default()
        };
        let columns = Columns {
            counters: true,
            initialize: true,
            trim: true,
            slow: true,
            ..Columns::default()
        };
        let line = |leaf: &VdevReport, columns| config_line(leaf, 0, 4, Naming::default(), columns);
        assert_eq!(
            line(&leaf, columns),
            "\t/d    ONLINE       0     0     0     0  (uninitialized)  (untrimmed)"
        );
        leaf.cannot_trim = true;
        leaf.slow_ios = 1234;
        leaf.initialize = ActivityReport {
            state: "SUSPENDED".into(),
            time_s: 1_795_202_857,
            done_bytes: 99,
            total_bytes: 200,
        };
        let when = numbers::local_ctime(1_795_202_857);
        assert_eq!(
            line(&leaf, columns),
            format!(
                "\t/d    ONLINE       0     0     0 1.21K  (49% initialized, suspended, started at {when})  (trim unsupported)"
            )
        );
        leaf.trim = ActivityReport {
            state: "COMPLETE".into(),
            ..leaf.initialize.clone()
        };
        leaf.initialize.state = "ACTIVE".into();
        let text = line(&leaf, columns);
        assert!(text.contains("(49% initialized, started at "), "{text}");
        assert!(text.contains("(100% trimmed, completed at "), "{text}");
        // Who does not ask is told what is under way.
        let brief = Columns {
            counters: true,
            ..Columns::default()
        };
        assert!(line(&leaf, brief).ends_with("  0  (initializing)"));
        leaf.initialize.state = "CANCELED".into();
        assert!(line(&leaf, brief).ends_with("    0"));
        assert!(line(&leaf, columns).contains("  (uninitialized)  (100% trimmed"));
    }

    #[test]
    fn what_is_planned_is_shown_below_its_class() {
        let mirror = VdevReport {
            name: "mirror-0".into(),
            children: [("/a", "file"), ("/dev/disk/by-id/b", "disk")]
                .map(|(path, kind)| VdevReport {
                    name: path.into(),
                    kind: kind.into(),
                    path: Some(path.into()),
                    ..VdevReport::default()
                })
                .into(),
            ..VdevReport::default()
        };
        let vdev = |class: &str, kind: &str, path: &str, children| VdevSpec {
            kind: kind.into(),
            class: class.into(),
            path: path.into(),
            children,
        };
        let new = [
            vdev("cache", "disk", "/dev/sdc", Vec::new()),
            vdev("log", "file", "/l", Vec::new()),
            vdev(
                "special",
                "mirror",
                "",
                vec![vdev("", "file", "/s", Vec::new())],
            ),
        ];
        assert_eq!(
            planned_layout("tank", &[mirror], &new, Naming::default()),
            "\ttank\n\t  mirror-0\n\t    /a\n\t    b\n\tspecial\n\t  mirror\n\t    /s\n\tlogs\n\t  /l\n\tcache\n\t  sdc\n"
        );
    }
}
