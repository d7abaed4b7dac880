//! `-c` of `zpool status` and `zpool iostat`: scripts that tell more of each device, a column each
//! (`all_pools_for_each_vdev_run`, cmd/zpool/zpool_iter.c; `zpool_print_cmd`,
//! cmd/zpool/zpool_main.c; `zpool_vdev_script_alloc_env`, lib/libzfs/libzfs_util.c).
//!
//! Scripts are run by the command, as the user who typed it, and never by the server. They are
//! found by their names alone, in `~/.zpool.d`, then in `/etc/zfs/zpool.d`, unless
//! `ZPOOL_SCRIPTS_PATH` names other directories. Root runs them only with `ZPOOL_SCRIPTS_AS_ROOT`,
//! and `ZPOOL_SCRIPTS_ENABLED=0` forbids them. A script prints lines `column=value`; a line without
//! a column is its last, and stands behind all columns. What fails has told nothing.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::bail;
use api::{Guid, VdevReport};
use clap::Args;
use rustix::fs::Access;

/// Where the scripts of the host are.
const OF_HOST: &str = "/etc/zfs/zpool.d";
/// So many devices are told of at the same time.
const AT_ONCE: usize = 16;

/// Options of commands that run scripts.
#[derive(Debug, Args)]
pub struct Scripts {
    /// Columns that these scripts tell; without names, which scripts there are
    #[arg(
        short = 'c',
        value_name = "SCRIPT1[,SCRIPT2]...",
        num_args = 0..=1,
        default_missing_value = "",
        action = clap::ArgAction::Append
    )]
    names: Vec<String>,
}

/// What scripts told of one device.
#[derive(Debug, Default, PartialEq, Eq)]
struct OfDevice {
    columns: Vec<(String, String)>,
    /// What stands behind the columns.
    more: Vec<String>,
}

/// What scripts told, by device.
#[derive(Debug, Default)]
pub struct Told {
    /// Names of the columns in order, and how wide they are.
    columns: Vec<(String, usize)>,
    devices: BTreeMap<Guid, OfDevice>,
    /// Which devices have power, if that is asked for (`--power`).
    pub power: Option<BTreeMap<Guid, bool>>,
}

/// Where a device is.
struct Device {
    pool: String,
    guid: Guid,
    path: String,
}

impl Scripts {
    /// Whether scripts are to be run.
    pub fn are_asked_for(&self) -> bool {
        !self.names.is_empty()
    }

    /// Refuses what may not be run. True where only the list of scripts is wanted, which is printed
    /// then; `command` is the word after `zpool`.
    pub fn check(&self, command: &str) -> anyhow::Result<bool> {
        if self.names.len() > 1 {
            bail!("Can't set -c flag twice");
        }
        let Some(names) = self.names.first() else {
            return Ok(false);
        };
        if std::env::var_os("ZPOOL_SCRIPTS_ENABLED").is_some() && !is_on("ZPOOL_SCRIPTS_ENABLED") {
            bail!("Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.");
        }
        let is_root = rustix::process::getuid().is_root() || rustix::process::geteuid().is_root();
        if is_root && !is_on("ZPOOL_SCRIPTS_AS_ROOT") {
            bail!("Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.");
        }
        if !names.is_empty() {
            return Ok(false);
        }
        println!("Available 'zpool {command} -c' commands:");
        for directory in directories() {
            print_scripts(&directory);
        }
        Ok(true)
    }

    /// Runs the scripts for the devices of pools (names and trees) that `is_wanted`.
    pub fn run<'a>(
        &self,
        pools: impl Iterator<Item = (&'a str, &'a VdevReport)>,
        is_wanted: &dyn Fn(&VdevReport) -> bool,
    ) -> Told {
        let mut devices: Vec<Device> = Vec::new();
        for (pool, tree) in pools.filter(|_| self.are_asked_for()) {
            add_devices(pool, tree, is_wanted, &mut devices);
        }
        let names = self.names.first().map_or("", String::as_str);
        let scripts: Vec<PathBuf> = names.split(',').filter_map(find).collect();
        let mut told = Told::default();
        for some in devices.chunks(AT_ONCE) {
            let outputs: Vec<OfDevice> = std::thread::scope(|scope| {
                let scripts = &scripts;
                let runs = some
                    .iter()
                    .map(|device| scope.spawn(move || run_all(scripts, device)));
                let runs: Vec<_> = runs.collect();
                let joined = runs.into_iter().map(|run| run.join().unwrap_or_default());
                joined.collect()
            });
            for (device, output) in some.iter().zip(outputs) {
                told.add(device.guid, output);
            }
        }
        told
    }
}

/// Whether an environment variable says yes (`libzfs_envvar_is_set`, lib/libzfs/libzfs_util.c).
pub fn is_on(variable: &str) -> bool {
    let value = std::env::var(variable).unwrap_or_default();
    let is_number = value.parse::<u64>().is_ok_and(|number| number > 0);
    is_number || value.eq_ignore_ascii_case("yes") || value.eq_ignore_ascii_case("on")
}

/// Where scripts are looked for (`zpool_get_cmd_search_path`).
fn directories() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("ZPOOL_SCRIPTS_PATH") {
        let directories = std::env::split_paths(&path);
        // An empty word would mean the directory that one happens to be in.
        return directories.filter(|one| one.is_absolute()).collect();
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let home = home.filter(|home| home.is_absolute());
    let own = home.map(|home| home.join(".zpool.d"));
    own.into_iter().chain([PathBuf::from(OF_HOST)]).collect()
}

/// The script of this name that may be run; none for what is a path.
fn find(name: &str) -> Option<PathBuf> {
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let paths = directories()
        .into_iter()
        .map(|directory| directory.join(name));
    let mut paths = paths.filter(|path| path.is_file());
    paths.find(|path| rustix::fs::access(path, Access::EXEC_OK).is_ok())
}

/// Names the scripts of a directory, with what they say of themselves.
fn print_scripts(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let is_script = path
            .metadata()
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o100 != 0);
        if !is_script {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for line in lines(&path, &["-h"], &[]) {
            if !line.trim().is_empty() {
                println!("  {name:<14}  {line}");
            }
        }
    }
}

/// What a script prints with these variables and no others; nothing where it fails.
fn lines(script: &Path, arguments: &[&str], variables: &[(&str, &OsStr)]) -> Vec<String> {
    let output = Command::new(script)
        .args(arguments)
        .env_clear()
        .env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&output.stdout);
    // Devices may have a say in it, and it may be shown on a terminal.
    let clean = |line: &str| line.chars().filter(|c| !c.is_control()).collect();
    text.lines().map(clean).collect()
}

/// The devices of a tree, each once: spares that are in use are there twice.
fn add_devices(
    pool: &str,
    vdev: &VdevReport,
    is_wanted: &dyn Fn(&VdevReport) -> bool,
    out: &mut Vec<Device>,
) {
    if let Some(path) = &vdev.path
        && is_wanted(vdev)
        && !out.iter().any(|known| known.guid == vdev.guid)
    {
        out.push(Device {
            pool: pool.to_owned(),
            guid: vdev.guid,
            path: path.clone(),
        });
    }
    for child in &vdev.children {
        add_devices(pool, child, is_wanted, out);
    }
}

fn run_all(scripts: &[PathBuf], device: &Device) -> OfDevice {
    let below = underlying(&device.path);
    let enclosure = enclosure(&below).unwrap_or_default();
    let variables = [
        ("POOL_NAME", OsStr::new(&device.pool)),
        ("VDEV_PATH", OsStr::new(&device.path)),
        ("VDEV_UPATH", below.as_os_str()),
        ("VDEV_ENC_SYSFS_PATH", enclosure.as_os_str()),
    ];
    let mut told = OfDevice::default();
    for script in scripts {
        told.take(&lines(script, &[], &variables));
    }
    told
}

/// The block device that a path leads to; of one that the device mapper made, the first below it.
fn underlying(path: &str) -> PathBuf {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    let name = real.file_name().unwrap_or_default();
    if !name.to_string_lossy().starts_with("dm-") {
        return real;
    }
    let below = std::fs::read_dir(Path::new("/sys/block").join(name).join("slaves"));
    let first = below.ok().and_then(|mut entries| entries.next()?.ok());
    first.map_or(real, |first| Path::new("/dev").join(first.file_name()))
}

/// The place in an enclosure, in `/sys`, of a disk or the partition of one
/// (`zfs_get_enclosure_sysfs_path`, lib/libzutil/os/linux/zutil_device_path_os.c).
fn enclosure(device: &Path) -> Option<PathBuf> {
    let of = std::fs::canonicalize(Path::new("/sys/class/block").join(device.file_name()?)).ok()?;
    let disks = [of.join("device"), of.parent()?.join("device")];
    let entries = disks.iter().filter_map(|disk| std::fs::read_dir(disk).ok());
    let mut entries = entries.flatten().flatten();
    let bay = entries.find(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("enclosure_device")
    });
    std::fs::canonicalize(bay?.path()).ok()
}

impl OfDevice {
    /// Takes what one script printed (`vdev_process_cmd_output`).
    fn take(&mut self, lines: &[String]) {
        for line in lines {
            let Some((column, value)) = line.split_once('=') else {
                self.more.push(line.clone());
                return;
            };
            // The first one counts.
            if !self.columns.iter().any(|(known, _)| known == column) {
                self.columns.push((column.to_owned(), value.to_owned()));
            }
        }
    }

    /// What stands in a column; a dash where nothing does, so that fields can be counted.
    fn value(&self, column: &str) -> &str {
        let mut columns = self.columns.iter();
        let found = columns.find(|(known, _)| known == column);
        let value = found.map_or("", |(_, value)| value.as_str());
        match value.trim().is_empty() {
            true => "-",
            false => value,
        }
    }
}

impl Told {
    fn add(&mut self, device: Guid, output: OfDevice) {
        for (column, value) in &output.columns {
            let width = value.chars().count();
            match self.columns.iter_mut().find(|(known, _)| known == column) {
                Some((_, widest)) => *widest = width.max(*widest),
                None => {
                    let width = width.max(column.chars().count());
                    self.columns.push((column.clone(), width));
                }
            }
        }
        self.devices.insert(device, output);
    }

    /// What is told of the power of a vdev's bay, if that is asked for.
    pub fn power(&self, vdev: &VdevReport) -> Option<&'static str> {
        let power = self.power.as_ref()?;
        Some(
            match power.get(&vdev.guid).filter(|_| vdev.children.is_empty()) {
                Some(true) => "on",
                Some(false) => "off",
                None => "-",
            },
        )
    }

    /// The end of a line of headings.
    pub fn heading(&self) -> String {
        let mut out = String::new();
        for (column, width) in &self.columns {
            let _ = write!(out, "  {column:>width$}");
        }
        out
    }

    /// The end of a line that separates.
    pub fn dashes(&self) -> String {
        let mut out = String::new();
        for (_, width) in &self.columns {
            let _ = write!(out, "  {:-<width$}", "");
        }
        out
    }

    /// The end of a vdev's line; nothing of what is no device.
    pub fn cells(&self, vdev: &VdevReport) -> String {
        let mut out = String::new();
        let Some(device) = self.devices.get(&vdev.guid) else {
            return out;
        };
        for (column, width) in &self.columns {
            let _ = write!(out, "  {:>width$}", device.value(column));
        }
        for more in &device.more {
            let _ = write!(out, "  {more}");
        }
        out
    }

    /// The same in JSON, by name.
    pub fn json(&self, vdev: &VdevReport) -> Vec<(String, String)> {
        let Some(device) = self.devices.get(&vdev.guid) else {
            return Vec::new();
        };
        let columns = self.columns.iter();
        let columns = columns.map(|(column, _)| (column.clone(), device.value(column).to_owned()));
        let more = device.more.iter().zip(1..);
        let more = more.map(|(text, number)| (format!("extra_{number}"), text.clone()));
        columns.chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let leaf = |guid| VdevReport {
            guid: Guid(guid),
            path: Some(format!("/dev/{guid}")),
            ..VdevReport::default()
        };
        let mut told = Told::default();
        let mut first = OfDevice::default();
        first.take(&lines_of("vendor=ACME\nvendor=other\nsize=1T"));
        first.take(&lines_of("well\nnever=read"));
        told.add(Guid(1), first);
        let mut second = OfDevice::default();
        second.take(&lines_of("size= \nbay=12"));
        told.add(Guid(2), second);
        assert_eq!(told.heading(), "  vendor  size  bay");
        assert_eq!(told.dashes(), "  ------  ----  ---");
        assert_eq!(told.cells(&leaf(1)), "    ACME    1T    -  well");
        assert_eq!(told.cells(&leaf(2)), "       -     -   12");
        assert_eq!(told.cells(&leaf(3)), "");
        assert_eq!(told.power(&leaf(1)), None);
        told.power = Some([(Guid(1), true), (Guid(2), false)].into());
        assert_eq!(
            [1, 2, 3].map(|guid| told.power(&leaf(guid))),
            [Some("on"), Some("off"), Some("-")]
        );
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            told.json(&leaf(1)),
            [
                pair("vendor", "ACME"),
                pair("size", "1T"),
                pair("bay", "-"),
                pair("extra_1", "well")
            ]
        );
    }

    #[test]
    fn scripts_have_their_device_in_the_environment() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("it runs");
            path
        };
        let scripts = [
            script(
                "where",
                "echo at=$VDEV_PATH\necho of=$POOL_NAME\necho home=$HOME",
            ),
            script("fails", "echo at=lost\nexit 1"),
        ];
        let device = Device {
            pool: "tank".to_owned(),
            guid: Guid(7),
            path: "/nowhere/d".to_owned(),
        };
        let told = run_all(&scripts, &device);
        assert_eq!(told.value("at"), "/nowhere/d");
        assert_eq!(told.value("of"), "tank");
        assert_eq!(told.value("home"), "-");
        assert!(find("/bin/sh").is_none() && find("").is_none());
    }
}
