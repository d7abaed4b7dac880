//! Vdevs in tables and in JSON: their names, classes and states (`zpool_vdev_name`,
//! lib/libzfs/libzfs_pool.c; `print_status_config`, `fill_vdev_info`, cmd/zpool/zpool_main.c).

use api::{
    ActivityReport, ActivityState, DeviceKind, ScanFunction, VdevClass, VdevKind, VdevLayout,
    VdevReport, VdevSpec, VdevState,
};
use clap::Args;
use serde_json::{Map, Value, json};

use super::color::{self, Color, bold, paint};
use super::scripts::Told;
use super::words;
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
    /// The scrub or resilver that is under way.
    pub scanning: Option<ScanFunction>,
}

/// The classes after ordinary vdevs, in order: ours, and the key in JSON.
pub const CLASSES: [(VdevClass, &str); 5] = [
    (VdevClass::Dedup, "dedup"),
    (VdevClass::Special, "special"),
    (VdevClass::Log, "logs"),
    (VdevClass::Cache, "l2cache"),
    (VdevClass::Spare, "spares"),
];

/// Name, type, GUID, path, class and state, as JSON has them. `class` is that of the vdev above.
pub fn info(vdev: &VdevReport, name: &str, above: VdevClass, as_int: bool) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("name".into(), json!(name));
    entry.insert("vdev_type".into(), json!(words::kind(&vdev.kind)));
    entry.insert("guid".into(), json::value(&vdev.guid.to_string(), as_int));
    if let Some(path) = &vdev.path {
        entry.insert("path".into(), json!(path));
    }
    let class = match (vdev.class, above) {
        // Only the log itself says that it is one; below a special or dedup mirror all are.
        (VdevClass::Normal, _) | (VdevClass::Log, VdevClass::Log) => "normal",
        (VdevClass::Cache, _) => "l2cache",
        (class, _) => words::class(class),
    };
    entry.insert("class".into(), json!(class));
    let state = match vdev.state {
        VdevState::Unavailable => "CANT_OPEN",
        state => words::state(state),
    };
    entry.insert("state".into(), json!(state));
    entry
}

/// Whether a vdev and all below it are well (`vdev_health_check_cb`).
pub fn is_well(vdev: &VdevReport) -> bool {
    let errors = vdev.read_errors + vdev.write_errors + vdev.checksum_errors;
    let state = matches!(
        vdev.state,
        VdevState::Online | VdevState::Available | VdevState::InUse
    );
    let own = !vdev.children.is_empty() || state && errors == 0 && !vdev.is_stale;
    own && vdev.children.iter().all(is_well)
}

/// The name of a vdev as the option asks.
pub fn leaf_name(vdev: &VdevReport, naming: Naming) -> String {
    // What is not there is shown by what it is (`vdev_not_present`).
    if naming.guids && vdev.kind != VdevKind::Root || vdev.is_absent {
        return vdev.guid.to_string();
    }
    match &vdev.path {
        Some(path) => device_name(path, vdev.kind == VdevKind::File, naming),
        None => vdev.name.clone(),
    }
}

/// What a device is called. Files are always shown in full; disks by their last component unless
/// -P.
fn device_name(path: &str, is_file: bool, naming: Naming) -> String {
    let real = naming.real_paths.then(|| std::fs::canonicalize(path).ok());
    let path = match real.flatten() {
        Some(real) => real.to_string_lossy().into_owned(),
        None => path.to_owned(),
    };
    match naming.full_paths || is_file {
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
pub fn class_heading(class: VdevClass) -> &'static str {
    match class {
        VdevClass::Log => "logs",
        VdevClass::Spare => "spares",
        class => words::class(class),
    }
}

/// A pool of the vdevs that it has and those that it would get, class by class (`print_vdev_tree`,
/// `print_cache_list`, `print_spare_list`, cmd/zpool/zpool_main.c). New vdevs have no GUID yet.
pub fn planned_layout(pool: &str, old: &[VdevReport], new: &[VdevSpec], naming: Naming) -> String {
    let mut out = format!("\t{pool}\n");
    let device = |path: &str, kind| match naming.guids {
        true => "0".to_owned(),
        false => device_name(path, kind == Some(DeviceKind::File), naming),
    };
    let new_name = |vdev: &VdevSpec| match naming.guids {
        true => "0".to_owned(),
        false => words::layout(&vdev.layout, &device),
    };
    let after_data = CLASSES.map(|(class, _)| class);
    for class in [VdevClass::Normal].into_iter().chain(after_data) {
        let is_data = class == VdevClass::Normal;
        // Removed vdevs are in lists only.
        let is_there = |child: &&VdevReport| {
            child.class == class && !matches!(child.kind, VdevKind::Hole | VdevKind::Indirect)
        };
        let old: Vec<_> = old.iter().filter(is_there).collect();
        let new: Vec<_> = new.iter().filter(|vdev| vdev.class == class).collect();
        if !(is_data || old.is_empty() && new.is_empty()) {
            out.push_str(&format!("\t{}\n", class_heading(class)));
        }
        for child in old {
            let old_name = |vdev| leaf_name(vdev, naming);
            // Only groups of ordinary vdevs are numbered here.
            let name = match is_data || child.children.is_empty() || naming.guids {
                true => old_name(child),
                false => words::kind(&child.kind).to_owned(),
            };
            out.push_str(&format!("\t  {name}\n"));
            for member in &child.children {
                out.push_str(&format!("\t    {}\n", old_name(member)));
            }
        }
        for vdev in new {
            out.push_str(&format!("\t  {}\n", new_name(vdev)));
            if !matches!(vdev.layout, VdevLayout::Device(_)) {
                for member in vdev.layout.devices() {
                    out.push_str(&format!("\t    {}\n", device(&member.path, member.kind)));
                }
            }
        }
    }
    out
}

/// Prints the table of vdevs, with error counters or (for `zpool import`) without.
pub fn print_config(root: &VdevReport, naming: Naming, columns: Columns, told: &Told) {
    let width = name_width(root, naming);
    if columns.counters {
        let mut heading = format!(
            "\t{:<width$}  {:<8} {:>5} {:>5} {:>5}",
            "NAME", "STATE", "READ", "WRITE", "CKSUM"
        );
        for (on, title) in [
            (columns.slow, "SLOW"),
            (told.power.is_some(), "POWER"),
            (columns.direct, "DIO"),
        ] {
            if on {
                heading.push_str(&format!(" {title:>5}"));
            }
        }
        println!("{}{}", bold(&heading), told.heading());
    }
    let line = |vdev: &VdevReport, depth: usize| {
        println!("{}", config_line(vdev, depth, width, naming, columns, told));
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
    let is_there = |child: &&VdevReport| child.kind != VdevKind::Indirect;
    for child in root
        .children
        .iter()
        .filter(is_there)
        .filter(|child| child.class == VdevClass::Normal)
    {
        walk(child, 2, columns.unhealthy, &line);
    }
    // What stands by is part of the tree that an import shows (`print_import_config`).
    let stands_by = |class| matches!(class, VdevClass::Cache | VdevClass::Spare);
    let mut classes = CLASSES;
    if !columns.counters {
        classes.sort_by_key(|(class, _)| !stands_by(*class));
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
    told: &Told,
) -> String {
    let mut text = format!(
        "\t{:depth$}{:<rest$}",
        "",
        leaf_name(vdev, naming),
        rest = width.saturating_sub(depth)
    );
    let state = words::state(vdev.state);
    match (columns.counters, vdev.class) {
        (true, _) => {
            text.push_str(&format!("  {state:<8}"));
            text = paint(color::of_state(state), &text);
        }
        // What stands by has no state before the import.
        (false, VdevClass::Spare | VdevClass::Cache) => text.truncate(text.trim_end().len()),
        (false, _) => text.push_str(&format!("  {state}")),
    }
    let is_leaf = vdev.children.is_empty();
    if columns.counters && vdev.class != VdevClass::Spare {
        let count = |value: u64| {
            if columns.parseable {
                value.to_string()
            } else {
                numbers::nice_count(value)
            }
        };
        for errors in [vdev.read_errors, vdev.write_errors, vdev.checksum_errors] {
            let shown = format!("{:>5}", count(errors));
            text.push_str(&format!(" {}", paint(color::of_errors(errors), &shown)));
        }
        if columns.slow {
            let slow = if is_leaf || columns.parseable {
                count(vdev.slow_ios)
            } else {
                "-".to_owned()
            };
            let color = (vdev.slow_ios != 0).then_some(Color::Blue);
            text.push_str(&paint(color, &format!(" {slow:>5}")));
        }
        if let Some(power) = told.power(vdev) {
            text.push_str(&format!(" {power:>5}"));
        }
        // No write goes past the cache here in a way that its data could change meanwhile: there is
        // nothing to check.
        if columns.direct {
            text.push_str(&format!(" {:>5}", 0));
        }
    }
    if let Some(sizes) = columns.counters.then(|| block_sizes(vdev)).flatten() {
        text.push_str(&format!("  {sizes}"));
    }
    if let Some(note) = words::note(vdev) {
        let is_trouble = columns.counters && vdev.aux.is_some() && !vdev.is_absent;
        let color = is_trouble.then_some(Color::Red);
        text.push_str(&format!("  {}", paint(color, &note)));
    }
    if columns.counters && is_leaf {
        text.push_str(scan_note(vdev, columns.scanning));
    }
    text.push_str(&told.cells(vdev));
    if columns.counters && is_leaf {
        let activity = |report: &Option<ActivityReport>, shown, words| {
            activity(report.as_ref(), shown && !vdev.is_removing, shown, words)
        };
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

/// That a device has bigger sectors than its vdev is written in, of one with which nothing else is
/// wrong (`print_status_config`, with its environment variable).
fn block_sizes(vdev: &VdevReport) -> Option<String> {
    const IGNORE: &str = "ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE";
    let is_told = vdev.children.is_empty() && vdev.class != VdevClass::Spare && vdev.aux.is_none();
    let sectors = vdev.small_sectors.filter(|_| is_told)?;
    std::env::var_os(IGNORE).is_none().then(|| {
        format!(
            "block size: {}B configured, {}B native",
            sectors.configured_bytes, sectors.native_bytes
        )
    })
}

/// What a scan does about a device (`print_status_config`). Without one, OpenZFS says nothing of a
/// device that lacks something; here it is told.
fn scan_note(vdev: &VdevReport, scanning: Option<ScanFunction>) -> &'static str {
    match scanning {
        _ if vdev.state != VdevState::Online => "",
        Some(ScanFunction::Resilver) if vdev.scan_repaired_bytes > 0 => "  (resilvering)",
        Some(_) if vdev.scan_repaired_bytes > 0 => "  (repairing)",
        Some(_) if vdev.is_deferred => "  (awaiting resilver)",
        None if vdev.is_stale => "  (awaiting resilver)",
        _ => "",
    }
}

/// How far a leaf was initialized or trimmed (`print_status_initialize`, `print_status_trim`), in
/// the words for: done, not done, under way.
fn activity(
    report: Option<&ActivityReport>,
    detailed: bool,
    shown: bool,
    [done, not_done, under_way]: [&str; 3],
) -> String {
    if !shown {
        return match report.map(|report| report.state) {
            Some(ActivityState::Active) => format!("  ({under_way})"),
            _ => String::new(),
        };
    }
    let begun = report.and_then(|report| match report.state {
        ActivityState::Suspended => Some((report, "suspended, started at")),
        ActivityState::Active => Some((report, "started at")),
        ActivityState::Complete => Some((report, "completed at")),
        ActivityState::Canceled => None,
    });
    let Some((report, since)) = begun.filter(|_| detailed) else {
        return format!("  ({not_done})");
    };
    let percent = match report.state {
        ActivityState::Complete => 100,
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
    use api::DeviceSpec;

    use super::*;

    #[test]
    fn leaves_tell_how_far_they_were_initialized_and_trimmed() {
        let mut leaf = VdevReport {
            name: "/d".into(),
            ..VdevReport::default()
        };
        let columns = Columns {
            counters: true,
            initialize: true,
            trim: true,
            slow: true,
            ..Columns::default()
        };
        let told = Told::default();
        let line =
            |leaf: &VdevReport, columns| config_line(leaf, 0, 4, Naming::default(), columns, &told);
        assert_eq!(
            line(&leaf, columns),
            "\t/d    ONLINE       0     0     0     0  (uninitialized)  (untrimmed)"
        );
        leaf.cannot_trim = true;
        leaf.slow_ios = 1234;
        let report = |state| ActivityReport {
            state,
            time_s: 1_795_202_857,
            done_bytes: 99,
            total_bytes: 200,
        };
        leaf.initialize = Some(report(ActivityState::Suspended));
        let when = numbers::local_ctime(1_795_202_857);
        assert_eq!(
            line(&leaf, columns),
            format!(
                "\t/d    ONLINE       0     0     0 1.21K  (49% initialized, suspended, started \
                 at {when})  (trim unsupported)"
            )
        );
        leaf.trim = Some(report(ActivityState::Complete));
        leaf.initialize = Some(report(ActivityState::Active));
        let text = line(&leaf, columns);
        assert!(text.contains("(49% initialized, started at "), "{text}");
        assert!(text.contains("(100% trimmed, completed at "), "{text}");
        // Who does not ask is told what is under way.
        let brief = Columns {
            counters: true,
            ..Columns::default()
        };
        assert!(line(&leaf, brief).ends_with("  0  (initializing)"));
        leaf.initialize = Some(report(ActivityState::Canceled));
        assert!(line(&leaf, brief).ends_with("    0"));
        assert!(line(&leaf, columns).contains("  (uninitialized)  (100% trimmed"));
    }

    /// As OpenZFS has it: of a device with which nothing else is wrong, and in no list of what can
    /// be imported.
    #[test]
    fn devices_with_bigger_sectors_are_told() {
        let mut leaf = VdevReport {
            name: "/d".into(),
            small_sectors: Some(api::SmallSectors {
                configured_bytes: 512,
                native_bytes: 4096,
            }),
            ..VdevReport::default()
        };
        let columns = Columns {
            counters: true,
            ..Columns::default()
        };
        let told = Told::default();
        let line =
            |leaf: &VdevReport, columns| config_line(leaf, 0, 4, Naming::default(), columns, &told);
        assert_eq!(
            line(&leaf, columns),
            "\t/d    ONLINE       0     0     0  block size: 512B configured, 4096B native"
        );
        leaf.is_removing = true;
        assert!(line(&leaf, columns).ends_with("4096B native  (removing)"));
        assert_eq!(
            line(&leaf, Columns::default()),
            "\t/d    ONLINE  (removing)"
        );
        leaf.aux = Some(api::VdevAux::External);
        assert!(!line(&leaf, columns).contains("block size"));
    }

    #[test]
    fn what_is_planned_is_shown_below_its_class() {
        let mirror = VdevReport {
            name: "mirror-0".into(),
            children: [
                ("/a", VdevKind::File),
                ("/dev/disk/by-id/b", VdevKind::Disk),
            ]
            .map(|(path, kind)| VdevReport {
                name: path.into(),
                kind,
                path: Some(path.into()),
                ..VdevReport::default()
            })
            .into(),
            ..VdevReport::default()
        };
        let device = |kind, path: &str| DeviceSpec {
            path: path.into(),
            kind: Some(kind),
        };
        let vdev = |class, layout| VdevSpec { class, layout };
        let new = [
            vdev(
                VdevClass::Cache,
                VdevLayout::Device(device(DeviceKind::Disk, "/dev/sdc")),
            ),
            vdev(
                VdevClass::Log,
                VdevLayout::Device(device(DeviceKind::File, "/l")),
            ),
            vdev(
                VdevClass::Special,
                VdevLayout::Mirror {
                    devices: vec![device(DeviceKind::File, "/s")],
                },
            ),
        ];
        assert_eq!(
            planned_layout("tank", &[mirror], &new, Naming::default()),
            "\ttank\n\
             \t  mirror-0\n\
             \t    /a\n\
             \t    b\n\
             \tspecial\n\
             \t  mirror\n\
             \t    /s\n\
             \tlogs\n\
             \t  /l\n\
             \tcache\n\
             \t  sdc\n"
        );
    }
}
