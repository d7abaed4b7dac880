//! The host's disks, for who makes a pool of them: what the kernel tells of each below
//! `/sys/block`, and what it is used for.
//!
//! A disk counts as free only where `zpool create` would take it without force, and where neither
//! the kernel nor a pool here uses it or a partition of it.
//!
//! Source: the kernel's Documentation/ABI/stable/sysfs-block, proc_pid_mountinfo(5).

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use api::{DiskListReply, DiskReport, DiskUse, Failure};
use futures::{StreamExt, stream};
use pool::DeviceUse;
use rustix::fs::{major, minor};

use crate::reports;
use crate::service::Service;

/// Bytes of a sector as `/sys/block/*/size` counts them, whatever the disk's are.
const SECTOR_BYTES: u64 = 512;

/// So many disks are looked at at the same time.
const LOOKS: usize = 8;

/// Disks in memory, drives for discs that are not of ours, and volumes of ZFS.
const NOT_DISKS: [&str; 6] = ["ram", "zram", "sr", "fd", "zd", "mtdblock"];

/// A disk as the kernel has it.
struct Found {
    report: DiskReport,
    /// Numbers of the disk and its partitions: `8:0`.
    numbers: Vec<String>,
}

/// The disks of the host.
pub(crate) async fn disk_list(service: &Service) -> Result<DiskListReply, Failure> {
    let users = pool_devices(service);
    let look = move || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        let mut found = find(Path::new("/sys/block"), Path::new("/dev"));
        for disk in &mut found {
            let known = used_by_pool(&users, &disk.numbers)
                .or_else(|| mounted(&mounts, &disk.numbers))
                .or_else(|| swapped(&swaps, &disk.numbers));
            // What holds it is in use itself in the cases before.
            disk.report.in_use = known.or(disk.report.in_use.take());
        }
        found
    };
    let found = serve_fuse::aside(look).await;
    let disks = stream::iter(found)
        .map(|disk| async move {
            let mut report = disk.report;
            if report.in_use.is_none() {
                report.in_use = content(service, &report.path).await;
            }
            report
        })
        .buffered(LOOKS)
        .collect()
        .await;
    Ok(DiskListReply { disks })
}

/// What is on a disk that nobody uses at the moment.
async fn content(service: &Service, path: &str) -> Option<DiskUse> {
    match pool::device_use(&service.world, path).await {
        Ok(None) => None,
        Ok(Some(DeviceUse::ActivePool { pool })) => Some(DiskUse::OtherPool {
            pool,
            is_exported: false,
        }),
        Ok(Some(DeviceUse::ExportedPool { pool })) => Some(DiskUse::OtherPool {
            pool,
            is_exported: true,
        }),
        Ok(Some(DeviceUse::Other { what })) => Some(DiskUse::Content { what }),
        Err(error) => Some(DiskUse::Unreadable {
            why: error.to_string(),
        }),
    }
}

/// Numbers of the block devices that pools here use, spares and cache devices among them.
fn pool_devices(service: &Service) -> HashMap<String, String> {
    let mut out = HashMap::new();
    for open in service.pools.all() {
        for path in reports::device_paths(&open.pool.status()) {
            let Ok(metadata) = std::fs::metadata(&path) else {
                continue;
            };
            if metadata.file_type().is_block_device() {
                let number = metadata.rdev();
                let number = format!("{}:{}", major(number), minor(number));
                out.insert(number, open.pool.name());
            }
        }
    }
    out
}

fn used_by_pool(users: &HashMap<String, String>, numbers: &[String]) -> Option<DiskUse> {
    let pool = numbers.iter().find_map(|number| users.get(number))?;
    Some(DiskUse::Pool { pool: pool.clone() })
}

/// Where one of these devices is mounted, by `/proc/self/mountinfo`.
fn mounted(mounts: &str, numbers: &[String]) -> Option<DiskUse> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        let number = words.next()?;
        let at = words.nth(1)?;
        let is_ours = numbers.iter().any(|own| own == number);
        is_ours.then(|| DiskUse::Mounted {
            at: at.replace("\\040", " "),
        })
    })
}

/// Whether the host swaps to one of these devices, by `/proc/swaps`.
fn swapped(swaps: &str, numbers: &[String]) -> Option<DiskUse> {
    let mut paths = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next());
    let is_ours = |path: &str| {
        std::fs::metadata(path).is_ok_and(|metadata| {
            let number = metadata.rdev();
            let number = format!("{}:{}", major(number), minor(number));
            metadata.file_type().is_block_device() && numbers.contains(&number)
        })
    };
    paths.any(is_ours).then_some(DiskUse::Swap)
}

/// A file of the kernel with one line, if there is something in it.
fn line(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Names in a directory, in order.
fn names(directory: &Path) -> Vec<String> {
    let mut out: Vec<String> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    out.sort();
    out
}

/// The disks below `sys`, by name; `dev` has their nodes.
fn find(sys: &Path, dev: &Path) -> Vec<Found> {
    let stable = stable_paths(dev);
    let mut out: Vec<Found> = names(sys)
        .into_iter()
        .filter_map(|name| read(&sys.join(&name), name, dev, &stable))
        .collect();
    out.sort_by_key(|disk| {
        let name = disk.report.name.clone();
        // `sdz` before `sdaa`, `loop9` before `loop10`.
        let letters = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = name[letters..].parse().unwrap_or(0);
        (name[..letters].len(), name[..letters].to_owned(), number)
    });
    out
}

/// What the kernel tells of one disk; none where it is nothing for a pool.
fn read(sys: &Path, name: String, dev: &Path, stable: &BTreeMap<String, String>) -> Option<Found> {
    let kind = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let sectors: u64 = line(&sys.join("size"))?.parse().ok()?;
    let is_read_only = line(&sys.join("ro")).as_deref() == Some("1");
    if NOT_DISKS.contains(&kind) || sectors == 0 || is_read_only {
        return None;
    }
    let mut numbers = vec![line(&sys.join("dev"))?];
    let mut holders = names(&sys.join("holders"));
    for part in names(sys) {
        let part = sys.join(part);
        if part.join("partition").exists() {
            numbers.extend(line(&part.join("dev")));
            holders.extend(names(&part.join("holders")));
        }
    }
    let path = stable.get(&name).cloned();
    let in_use = holders.into_iter().next().map(|by| DiskUse::Holder { by });
    let report = DiskReport {
        path: path.unwrap_or_else(|| dev.join(&name).display().to_string()),
        size_bytes: sectors.checked_mul(SECTOR_BYTES)?,
        model: line(&sys.join("device/model")),
        serial: line(&sys.join("device/serial")).or_else(|| line(&sys.join("serial"))),
        is_rotational: line(&sys.join("queue/rotational")).as_deref() == Some("1"),
        in_use,
        name,
    };
    Some(Found { report, numbers })
}

/// By name of a disk, its path below `/dev/disk/by-id`: one with its model and serial number
/// rather than one that is only a number.
fn stable_paths(dev: &Path) -> BTreeMap<String, String> {
    let directory = dev.join("disk/by-id");
    let mut out: BTreeMap<String, String> = BTreeMap::new();
    let is_number = |name: &str| name.starts_with("wwn-") || name.starts_with("nvme-eui.");
    let mut links = names(&directory);
    links.sort_by_key(|name| (is_number(name), name.clone()));
    for link in links {
        let path = directory.join(link);
        let Ok(target) = std::fs::read_link(&path) else {
            continue;
        };
        let Some(name) = target.file_name() else {
            continue;
        };
        let name = name.to_string_lossy().into_owned();
        out.entry(name)
            .or_insert_with(|| path.display().to_string());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Goal: the kernel's tree is understood. Method: a small one, as Linux 6.1 has it.
    #[test]
    fn disks_are_found_with_what_holds_them() {
        let directory = tempfile::tempdir().unwrap();
        let (sys, dev) = (directory.path().join("sys"), directory.path().join("dev"));
        let disk = |name: &str, number: &str, sectors: &str| {
            write(&sys.join(name).join("size"), sectors);
            write(&sys.join(name).join("dev"), number);
        };
        disk("sda", "8:0", "7814037168\n");
        write(&sys.join("sda/device/model"), "ST4000VN008-2DR1\n");
        write(&sys.join("sda/serial"), "ZGY0\n");
        write(&sys.join("sda/queue/rotational"), "1\n");
        write(&sys.join("sda/sda1/partition"), "1\n");
        write(&sys.join("sda/sda1/dev"), "8:1\n");
        write(&sys.join("sda/sda1/holders/dm-0/x"), "");
        disk("sdaa", "65:160", "2048\n");
        disk("sdz", "65:144", "2048\n");
        write(&sys.join("sdz/ro"), "0\n");
        disk("sdb", "8:16", "0\n");
        disk("sdc", "8:32", "2048\n");
        write(&sys.join("sdc/ro"), "1\n");
        disk("sr0", "11:0", "2048\n");
        disk("zram0", "253:0", "2048\n");
        let by_id = dev.join("disk/by-id");
        std::fs::create_dir_all(&by_id).unwrap();
        for link in ["wwn-0x5000", "ata-ST4000VN008-2DR1_ZGY0"] {
            std::os::unix::fs::symlink("../../sda", by_id.join(link)).unwrap();
        }

        let found = find(&sys, &dev);
        let names: Vec<_> = found.iter().map(|disk| &*disk.report.name).collect();
        assert_eq!(names, ["sda", "sdz", "sdaa"]);
        let first = &found[0];
        assert_eq!(first.numbers, ["8:0", "8:1"]);
        let path = by_id.join("ata-ST4000VN008-2DR1_ZGY0");
        let expected = DiskReport {
            path: path.display().to_string(),
            name: "sda".into(),
            size_bytes: 4_000_787_030_016,
            model: Some("ST4000VN008-2DR1".into()),
            serial: Some("ZGY0".into()),
            is_rotational: true,
            in_use: Some(DiskUse::Holder { by: "dm-0".into() }),
        };
        assert_eq!(first.report, expected);
        assert_eq!(found[1].report.in_use, None);
        assert!(found[1].report.path.ends_with("dev/sdz"));
    }

    #[test]
    fn what_is_mounted_is_found_by_its_number() {
        let mounts = "22 28 0:21 / /sys rw - sysfs sysfs rw\n\
                      28 1 8:1 / /my\\040disk rw shared:1 - ext4 /dev/root rw\n";
        let own = |numbers: &[&str]| numbers.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
        let at = "/my disk".to_owned();
        let found = mounted(mounts, &own(&["8:0", "8:1"]));
        assert_eq!(found, Some(DiskUse::Mounted { at }));
        assert_eq!(mounted(mounts, &own(&["8:16", "8:11"])), None);
    }

    #[test]
    fn what_a_pool_has_is_found_by_its_number() {
        let users = HashMap::from([("8:1".to_owned(), "tank".to_owned())]);
        let found = used_by_pool(&users, &["8:0".to_owned(), "8:1".to_owned()]);
        let pool = "tank".to_owned();
        assert_eq!(found, Some(DiskUse::Pool { pool }));
        assert_eq!(used_by_pool(&users, &["8:2".to_owned()]), None);
    }
}
