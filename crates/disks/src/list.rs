//! The host's disks, for who makes a pool of them: what the kernel tells of each below
//! `/sys/block`, and what it is used for.
//!
//! A disk counts as free only where `zpool create` would take it without force, and where neither
//! the kernel nor a pool here uses it or a partition of it. One that hangs is told as such, and
//! holds up nobody.
//!
//! Source: proc_pid_mountinfo(5).

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use api::{DiskListReply, DiskReport, DiskUse, Failure};
use device::{PathKind, World};
use drives::{Disk, Sysfs};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use pool::DeviceUse;
use rustix::fs::{major, minor};
use tokio::task::JoinHandle;

use service::reports;
use serving::Serving;
use verbs::zpool::place_of;

/// So many disks are looked at at the same time.
const LOOKS: usize = 8;

/// How long a disk may take: one that has to be woken takes some seconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);

/// A disk as the kernel has it.
struct Found {
    report: DiskReport,
    /// Numbers of the disk and its partitions: `8:0`.
    numbers: Vec<String>,
}

/// The disks of the host.
pub async fn disk_list(
    serving: &Serving,
    sysfs: &Sysfs,
    looks: &Looks,
) -> Result<DiskListReply, Failure> {
    let users = pool_devices(serving).await;
    let sysfs = sysfs.clone();
    let look = move || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        let (dev, disks) = (Path::new("/dev"), sysfs.disks().into_iter());
        let stable = stable_paths(dev);
        let mut found: Vec<Found> = disks.map(|disk| report(disk, dev, &stable)).collect();
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
                report.in_use = content(&serving.world, looks, &report.path).await;
            }
            report
        })
        .buffered(LOOKS)
        .collect()
        .await;
    Ok(DiskListReply { disks })
}

/// What is on a disk that nobody uses at the moment, if it answers.
async fn content(world: &World, looks: &Looks, path: &str) -> Option<DiskUse> {
    let (world, device) = (world.clone(), path.to_owned());
    let look = async move { found_on(&world, &device).await };
    looks.look(path, look).await
}

async fn found_on(world: &World, path: &str) -> Option<DiskUse> {
    match pool::device_use(world, path).await {
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

/// Numbers of the block devices that pools here use, spares and cache devices among them. One that
/// does not answer is left out.
async fn pool_devices(serving: &Serving) -> HashMap<String, String> {
    let mut looks = Vec::new();
    let mut names = HashMap::new();
    for open in serving.pools.all() {
        for path in reports::device_paths(&open.pool.status()) {
            names.insert(path.clone(), open.pool.name());
            looks.push(place_of(serving.world.clone(), path));
        }
    }
    let places: Vec<_> = stream::iter(looks).buffered(LOOKS).collect().await;
    let found = places.into_iter().filter_map(|(path, place)| {
        let place = place.filter(|place| place.kind == PathKind::BlockDevice)?;
        let number = format!("{}:{}", major(place.device), minor(place.device));
        Some((number, names.remove(&path)?))
    });
    found.collect()
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

/// What the kernel tells of a disk; `stable` has its paths that stay.
fn report(disk: Disk, dev: &Path, stable: &BTreeMap<String, String>) -> Found {
    let path = stable.get(&disk.name).cloned();
    let in_use = disk.holders.into_iter().next();
    let report = DiskReport {
        path: path.unwrap_or_else(|| dev.join(&disk.name).display().to_string()),
        name: disk.name,
        size_bytes: disk.size_bytes,
        model: disk.model,
        serial: disk.serial,
        is_rotational: disk.is_rotational,
        in_use: in_use.map(|by| DiskUse::Holder { by }),
    };
    Found {
        report,
        numbers: disk.numbers,
    }
}

/// Disks that somebody has begun to look at and that did not answer, by their paths, with who still
/// waits for them.
#[derive(Default)]
pub struct Looks {
    waiting: Mutex<HashMap<String, JoinHandle<Option<DiskUse>>>>,
}

fn no_answer() -> Option<DiskUse> {
    let seconds = ANSWERS_WITHIN.as_secs();
    Some(DiskUse::Unreadable {
        why: format!("it does not answer within {seconds} seconds; look at its cables and power"),
    })
}

impl Looks {
    /// Looks at a disk for as long as one that works may take. One that does not answer is left to
    /// who waits for it, and looked at again only when that has come back.
    async fn look(
        &self,
        path: &str,
        look: impl Future<Output = Option<DiskUse>> + Send + 'static,
    ) -> Option<DiskUse> {
        let is_waited_for = {
            let mut waiting = self.waiting.lock();
            waiting.retain(|_, look| !look.is_finished());
            waiting.contains_key(path)
        };
        if is_waited_for {
            return no_answer();
        }
        let mut looking = tokio::spawn(look);
        match tokio::time::timeout(ANSWERS_WITHIN, &mut looking).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Some(DiskUse::Unreadable {
                why: error.to_string(),
            }),
            Err(_) => {
                self.waiting.lock().insert(path.to_owned(), looking);
                no_answer()
            }
        }
    }
}

/// By name of a disk, its path below `/dev/disk/by-id`: one with its model and serial number
/// rather than one that is only a number.
pub fn stable_paths(dev: &Path) -> BTreeMap<String, String> {
    let directory = dev.join("disk/by-id");
    let mut out: BTreeMap<String, String> = BTreeMap::new();
    let is_number = |name: &str| name.starts_with("wwn-") || name.starts_with("nvme-eui.");
    let entries = std::fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .flatten();
    let mut links: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
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

    /// Goal: paths that stay are preferred. Method: links as udev makes them.
    #[test]
    fn disks_are_told_with_the_path_that_stays() {
        let directory = tempfile::tempdir().unwrap();
        let dev = directory.path();
        let by_id = dev.join("disk/by-id");
        std::fs::create_dir_all(&by_id).unwrap();
        for link in ["wwn-0x5000", "ata-ST4000VN008-2DR1_ZGY0"] {
            std::os::unix::fs::symlink("../../sda", by_id.join(link)).unwrap();
        }
        let stable = stable_paths(dev);
        let told = |name: &str, holders: &[&str]| {
            let disk = Disk {
                name: name.into(),
                numbers: vec!["8:0".into()],
                holders: holders.iter().map(|&by| by.to_owned()).collect(),
                ..Disk::default()
            };
            report(disk, dev, &stable).report
        };
        let first = told("sda", &["dm-0"]);
        let path = by_id.join("ata-ST4000VN008-2DR1_ZGY0");
        assert_eq!(first.path, path.display().to_string());
        assert_eq!(first.in_use, Some(DiskUse::Holder { by: "dm-0".into() }));
        let second = told("sdz", &[]);
        assert_eq!(second.path, dev.join("sdz").display().to_string());
        assert_eq!(second.in_use, None);
    }

    /// Goal: a disk that hangs is told of, holds up nobody, and is not waited for by more and more
    /// tasks. Method: looks that never end, and time that passes by itself.
    #[tokio::test(start_paused = true)]
    async fn a_disk_that_does_not_answer_holds_up_nobody() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};

        let (looks, begun) = (Looks::default(), Arc::new(AtomicUsize::new(0)));
        let answer = Arc::new(tokio::sync::Notify::new());
        let look = || {
            let (begun, answer) = (Arc::clone(&begun), Arc::clone(&answer));
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                answer.notified().await;
                Some(DiskUse::Swap)
            }
        };
        for _ in 0..3 {
            let told = looks.look("/dev/sda", look()).await;
            assert!(matches!(told, Some(DiskUse::Unreadable { .. })), "{told:?}");
        }
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        assert_eq!(looks.look("/dev/sdb", async { None }).await, None);
        // It comes back.
        answer.notify_one();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let answers = Arc::clone(&answer);
        tokio::spawn(async move { answers.notify_one() });
        assert_eq!(looks.look("/dev/sda", look()).await, Some(DiskUse::Swap));
        assert_eq!(begun.load(Ordering::Relaxed), 2);
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
