//! Whether a disk or file may be overwritten: nobody uses it, or what lies on it.
//!
//! A disk is looked at with its partitions, as the kernel knows them (sysfs(5), and
//! `Documentation/ABI/stable/sysfs-block`): none of them may be mounted, swapped to, held by what
//! is made of it, or part of a pool that was not exported. Then it is claimed (`O_EXCL`, open(2))
//! for as long as it is measured, so that nobody mounts it meanwhile, nor a part of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ::bench::Held;
use anyhow::{Context, bail};
use device::World;
use pool::DeviceUse;
use rustix::fs::OFlags;

use super::common;

/// A disk or a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// As the kernel calls it: `sda1`.
    name: String,
    /// `MAJOR:MINOR`.
    number: String,
    /// Its directory in sysfs.
    directory: PathBuf,
}

impl Part {
    fn read(directory: PathBuf) -> io::Result<Self> {
        let number = std::fs::read_to_string(directory.join("dev"))?;
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        Ok(Part {
            // A slash in a name is written so.
            name: name.replace('!', "/"),
            number: number.trim().to_owned(),
            directory,
        })
    }

    /// What it has in `/dev`.
    fn node(&self) -> String {
        format!("/dev/{}", self.name)
    }
}

/// `MAJOR:MINOR`.
fn number(device: u64) -> String {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    format!("{major}:{minor}")
}

/// A block device by its number, and the partitions on it; `sys` is `/sys`.
fn parts(sys: &Path, device: u64) -> io::Result<Vec<Part>> {
    let link = sys.join("dev/block").join(number(device));
    let disk = Part::read(std::fs::canonicalize(link)?)?;
    let mut below = Vec::new();
    for entry in std::fs::read_dir(&disk.directory)? {
        let directory = entry?.path();
        if directory.join("partition").exists() {
            below.push(Part::read(directory)?);
        }
    }
    below.sort_by(|one, other| one.name.cmp(&other.name));
    Ok([vec![disk], below].concat())
}

/// Who uses a part, in words; `mounts` is `/proc/self/mountinfo`, and `swaps` `/proc/swaps`
/// (proc_pid_mountinfo(5), swapon(2)).
fn user(part: &Part, mounts: &str, swaps: &str) -> io::Result<Option<String>> {
    let node = part.node();
    for line in mounts.lines() {
        let (of_mount, of_filesystem) = line.split_once(" - ").unwrap_or((line, ""));
        let fields: Vec<&str> = of_mount.split(' ').collect();
        // Filesystems of several devices have a number of their own, and name one of them.
        let source = of_filesystem.split(' ').nth(1);
        if fields.get(2).copied() == Some(part.number.as_str()) || source == Some(node.as_str()) {
            let place = fields.get(4).copied().unwrap_or_default();
            return Ok(Some(format!("is mounted at {place}")));
        }
    }
    let is_swap = |line: &str| line.split_whitespace().next() == Some(node.as_str());
    if swaps.lines().any(is_swap) {
        return Ok(Some("is swapped to".to_owned()));
    }
    let mut holders = match std::fs::read_dir(part.directory.join("holders")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        holders => holders?,
    };
    let Some(holder) = holders.next().transpose()? else {
        return Ok(None);
    };
    let holder = holder.file_name().to_string_lossy().replace('!', "/");
    Ok(Some(format!("is part of {holder}")))
}

/// Refuses what somebody uses, by itself or in part; says of the rest what is lost. A disk is
/// nobody else's as long as there is what is given back.
///
/// # Errors
/// It is used, or that cannot be found out.
pub(super) async fn claim(word: &str, held: &Held) -> anyhow::Result<Option<File>> {
    let metadata = held.metadata()?;
    if !metadata.file_type().is_block_device() {
        look(word, &std::fs::read_link(held.path())?, held).await?;
        return Ok(None);
    }
    let unknown = || format!("who uses {word} cannot be found out, and it is not overwritten");
    let parts = parts(Path::new("/sys"), metadata.rdev()).with_context(unknown)?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").with_context(unknown)?;
    // A kernel may have no swaps at all.
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    for part in &parts {
        if let Some(user) = user(part, &mounts, &swaps).with_context(unknown)? {
            bail!("{} {user}, and {word} is not overwritten", part.node());
        }
    }
    let claimed = held.open(OFlags::RDONLY | OFlags::EXCL);
    let claimed = claimed.with_context(|| {
        format!("{word} is mounted or held by another program, and is not overwritten")
    })?;
    look(word, &std::fs::read_link(held.path())?, held).await?;
    for part in &parts[1..] {
        let node = part.node();
        let partition = Held::find(&node).with_context(unknown)?;
        let metadata = partition.metadata().with_context(unknown)?;
        if !metadata.file_type().is_block_device() || number(metadata.rdev()) != part.number {
            bail!("{node} is not the partition {}: {}", part.number, unknown());
        }
        look(&node, Path::new(&node), &partition).await?;
    }
    Ok(Some(claimed))
}

/// Refuses what is part of a pool that was not exported; says of the rest what is lost.
async fn look(word: &str, path: &Path, held: &Held) -> anyhow::Result<()> {
    let text = path.to_str();
    let text = text.with_context(|| format!("{word}: names are in UTF-8"))?;
    let world = World::system(1);
    let found = pool::device_use(&world, text).await;
    let found = found.with_context(|| format!("what is on {word} cannot be found out"))?;
    // It was looked at by its name.
    let (now, wanted) = (std::fs::metadata(path)?, held.metadata()?);
    if (now.dev(), now.ino()) != (wanted.dev(), wanted.ino()) {
        bail!("{word} was replaced while it was looked at");
    }
    match found {
        None => {}
        Some(DeviceUse::ActivePool { pool }) => bail!(
            "{word} is part of the pool '{pool}', which was not exported, and is not overwritten; \
             destroy the pool, or `zpool labelclear -f {word}`"
        ),
        Some(other) => common::tell(&format!("{word} {other}; that is lost")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(sys: &Path, path: &str, text: &str) {
        let path = sys.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A disk `sda` with two partitions, and a loop device without.
    fn sys() -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("block/sda/dev", "8:0\n"),
            ("block/sda/size", "100\n"),
            ("block/sda/queue/rotational", "1\n"),
            ("block/sda/sda2/dev", "8:2\n"),
            ("block/sda/sda2/partition", "2\n"),
            ("block/sda/sda1/dev", "8:1\n"),
            ("block/sda/sda1/partition", "1\n"),
            ("block/loop0/dev", "7:0\n"),
        ] {
            put(sys.path(), path, text);
        }
        std::fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        for (number, to) in [("8:0", "sda"), ("8:2", "sda/sda2"), ("7:0", "loop0")] {
            let link = sys.path().join("dev/block").join(number);
            std::os::unix::fs::symlink(format!("../../block/{to}"), link).unwrap();
        }
        sys
    }

    fn names(sys: &Path, major: u32, minor: u32) -> Vec<String> {
        let all = parts(sys, rustix::fs::makedev(major, minor)).unwrap();
        all.into_iter().map(|part| part.name).collect()
    }

    #[test]
    fn a_disk_has_its_partitions() {
        let sys = sys();
        assert_eq!(names(sys.path(), 8, 0), ["sda", "sda1", "sda2"]);
        assert_eq!(names(sys.path(), 8, 2), ["sda2"]);
        assert_eq!(names(sys.path(), 7, 0), ["loop0"]);
        assert!(parts(sys.path(), rustix::fs::makedev(9, 9)).is_err());
    }

    /// Goal: whoever uses a disk or a part of it is found and named.
    #[test]
    fn users_of_parts_are_named() {
        let sys = sys();
        let all = parts(sys.path(), rustix::fs::makedev(8, 0)).unwrap();
        let told = |mounts: &str, swaps: &str| -> Vec<Option<String>> {
            let of = |part| user(part, mounts, swaps).unwrap();
            all.iter().map(of).collect()
        };
        let swaps = "Filename Type Size Used Priority\n/dev/sda10 partition 8 0 -2\n";
        assert_eq!(told("", swaps), [None, None, None]);
        let mounts = "30 1 8:2 / /home rw,relatime shared:1 - ext4 /dev/sda2 rw\n\
                      31 1 0:40 / /data rw - btrfs /dev/sda1 rw\n\
                      32 1 0:41 / /proc rw - proc proc rw\n";
        let found = told(mounts, "");
        let at = |place: &str| Some(format!("is mounted at {place}"));
        assert_eq!(found, [None, at("/data"), at("/home")]);
        let found = told("", "/dev/sda1 partition 8 0 -2\n");
        assert_eq!(found[1].as_deref(), Some("is swapped to"));
        put(sys.path(), "block/sda/sda2/holders/dm-0", "");
        assert_eq!(told("", "")[2].as_deref(), Some("is part of dm-0"));
    }
}
