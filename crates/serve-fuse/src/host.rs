//! The host's side of mounting: mountpoints, what is mounted, unmounting.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::{MountError, Result};
use crate::mount::{MountOptions, UnmountMode};

/// Read-ahead for mounts, in KiB: some big blocks.
const READ_AHEAD_KIB: u32 = 4096;

/// Undoes the octal escapes of /proc/self/mountinfo (space, tab, newline, backslash).
fn unescape(field: &str) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        if *byte == b'\\'
            && let Some(digits) = after.first_chunk::<3>()
            && digits.iter().all(|digit| (b'0'..=b'7').contains(digit))
        {
            let value = digits
                .iter()
                .fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            out.push(value as u8);
            rest = &after[3..];
        } else {
            out.push(*byte);
            rest = after;
        }
    }
    OsString::from_vec(out)
}

/// Dead mounts on top of each other that are taken away in one go.
const DEAD_MOUNTS_MAX: usize = 64;

/// The last line of a mountinfo that is about exactly `path`: source and type (proc(5)).
fn find_mount(mountinfo: &str, path: &Path) -> Option<(String, String)> {
    mountinfo.lines().rev().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mountpoint = unescape(before.split(' ').nth(4)?);
        if Path::new(&mountpoint) != path {
            return None;
        }
        let mut after = after.split(' ');
        let kind = after.next()?.to_owned();
        let source = unescape(after.next()?).to_string_lossy().into_owned();
        Some((source, kind))
    })
}

/// What is mounted exactly at `path`, if something is: its source and type of filesystem.
pub fn mounted_at(path: &Path) -> io::Result<Option<(String, String)>> {
    let mountinfo = fs::read("/proc/self/mountinfo")?;
    Ok(find_mount(&String::from_utf8_lossy(&mountinfo), path))
}

/// A path without links in it, though what is mounted there may be dead.
fn canonical(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if is_dead(&error) => match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
            _ => Err(error),
        },
        other => other,
    }
}

/// A FUSE mount whose server is gone ("Transport endpoint is not connected"), or went while it was asked.
fn is_dead(error: &io::Error) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED]
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}

/// Takes away the mounts at `path` that servers left which crashed. What the kernel remembers of a dead mount's
/// directory may still be there for a second; so the filesystem is asked, which is never answered from memory.
/// While a server is on its way out, that waits until it is gone.
///
/// # Errors
/// When what is at `path` cannot be asked, or not be taken away.
pub fn take_away_dead_mounts(path: &Path) -> Result<()> {
    let bad = |source| MountError::BadMountpoint {
        path: path.to_owned(),
        source,
    };
    // Several may lie on top of each other.
    for _ in 0..DEAD_MOUNTS_MAX {
        match rustix::fs::statfs(path).map_err(io::Error::from) {
            Err(error) if is_dead(&error) => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(bad(error)),
            _ => return Ok(()),
        }
        let place = canonical(path).map_err(bad)?;
        let is_ours = mounted_at(&place)
            .map_err(bad)?
            .is_some_and(|(_, kind)| kind == "fuse" || kind.starts_with("fuse."));
        if !is_ours {
            return Ok(());
        }
        tracing::warn!(path = %place.display(), "taking away the mount of a server that is gone");
        unmount(&place, UnmountMode::Lazy)?;
    }
    Ok(())
}

/// Makes sure that something can be mounted at `path`: makes the directory, takes away the dead
/// mount of a server that crashed, and refuses what would hide files (unless `overlay`).
pub(crate) fn prepare_mountpoint(path: &Path, overlay: bool) -> Result<PathBuf> {
    let bad = |source| MountError::BadMountpoint {
        path: path.to_owned(),
        source,
    };
    take_away_dead_mounts(path)?;
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path).map_err(bad)?;
        }
        Err(error) => return Err(bad(error)),
        Ok(_) => {}
    }
    let place = canonical(path).map_err(bad)?;
    let found = fs::metadata(&place).map_err(bad)?;
    if !found.is_dir() {
        return Err(bad(io::ErrorKind::NotADirectory.into()));
    }
    if !overlay {
        if let Some((source_name, _)) = mounted_at(&place).map_err(bad)? {
            return Err(MountError::AlreadyMounted {
                path: place,
                source_name,
            });
        }
        if fs::read_dir(&place).map_err(bad)?.next().is_some() {
            return Err(MountError::NotEmpty { path: place });
        }
    }
    Ok(place)
}

/// Fails if there is no FUSE here.
pub(crate) fn check_fuse() -> Result<()> {
    match fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
    {
        Ok(_) => Ok(()),
        // Others than root open it through fusermount3, which has its own word on it.
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && !rustix::process::geteuid().is_root() =>
        {
            Ok(())
        }
        Err(source) => Err(MountError::NoFuse { source }),
    }
}

/// Unmounts what is at `path`.
pub(crate) fn unmount(path: &Path, mode: UnmountMode) -> Result<()> {
    let flags = match mode {
        UnmountMode::Clean => UnmountFlags::NOFOLLOW,
        UnmountMode::Force => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH,
        UnmountMode::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    // By force only where asking did not help: force aborts requests that are under way.
    if mode == UnmountMode::Force && rustix::mount::unmount(path, UnmountFlags::NOFOLLOW).is_ok() {
        return Ok(());
    }
    match rustix::mount::unmount(path, flags) {
        // Not a mountpoint: somebody else unmounted it.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy {
            path: path.to_owned(),
        }),
        Err(Errno::PERM) => unmount_with_helper(path, mode),
        Err(error) => Err(MountError::Unmount {
            path: path.to_owned(),
            source: error.into(),
        }),
    }
}

/// Changes the flags of what is mounted at `path`.
pub(crate) fn remount(path: &Path, options: &MountOptions) -> Result<()> {
    let attempt = |read_only: bool| {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, read_only);
        flags.set(MountFlags::NODEV, !options.devices);
        flags.set(MountFlags::NOSUID, !options.setuid);
        flags.set(MountFlags::NOEXEC, !options.exec);
        rustix::mount::mount_remount(path, flags, c"")
    };
    let outcome = match attempt(options.read_only) {
        // Files are open for writing: writes are refused by the filesystem itself.
        Err(Errno::BUSY) if options.read_only => attempt(false),
        other => other,
    };
    outcome.map_err(|error| MountError::Refused {
        path: path.to_owned(),
        source: error.into(),
    })
}

/// As another user than root.
fn unmount_with_helper(path: &Path, mode: UnmountMode) -> Result<()> {
    let failed = |source| MountError::Unmount {
        path: path.to_owned(),
        source,
    };
    let mut helper = Command::new("fusermount3");
    helper.arg("-u");
    if mode != UnmountMode::Clean {
        helper.arg("-z");
    }
    let output = helper.arg("--").arg(path).output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("busy") {
        return Err(MountError::Busy {
            path: path.to_owned(),
        });
    }
    Err(failed(io::Error::other(message.trim().to_owned())))
}

/// Lets the kernel read further ahead than its 128 KiB for FUSE, where that is allowed.
pub(crate) async fn raise_read_ahead(mountpoint: &Path) {
    let path = mountpoint.to_owned();
    // Asks the filesystem that was just mounted, so not on a thread that may have to serve it.
    let raise = move || -> io::Result<()> {
        let device = fs::metadata(&path)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        fs::write(setting, READ_AHEAD_KIB.to_string())
    };
    if let Ok(Err(error)) = tokio::task::spawn_blocking(raise).await {
        tracing::debug!(path = %mountpoint.display(), %error, "read-ahead stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
22 28 0:20 / /sys rw - sysfs sysfs rw
30 28 0:50 / /tank/a\\040b rw,nosuid shared:1 - fuse.millpond tank/a\\040b rw
31 28 0:51 / /tank rw - fuse.millpond old rw
32 28 0:52 / /tank rw - ext4 /dev/sda1 rw
";

    #[test]
    fn the_uppermost_mount_of_a_path_is_found() {
        let found = find_mount(MOUNTINFO, Path::new("/tank/a b")).unwrap();
        assert_eq!(found, ("tank/a b".into(), "fuse.millpond".into()));
        let found = find_mount(MOUNTINFO, Path::new("/tank")).unwrap();
        assert_eq!(found, ("/dev/sda1".into(), "ext4".into()));
        assert_eq!(find_mount(MOUNTINFO, Path::new("/tank/x")), None);
        assert_eq!(unescape("a\\134b\\9"), OsString::from("a\\b\\9"));
    }

    #[test]
    fn mountpoints_are_made_and_full_ones_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a/b");
        assert!(prepare_mountpoint(&place, false).unwrap().is_dir());
        fs::write(place.join("file"), "x").unwrap();
        assert!(matches!(
            prepare_mountpoint(&place, false),
            Err(MountError::NotEmpty { .. })
        ));
        assert!(prepare_mountpoint(&place, true).is_ok());
        let file = place.join("file");
        assert!(matches!(
            prepare_mountpoint(&file, true),
            Err(MountError::BadMountpoint { .. })
        ));
        assert!(matches!(
            prepare_mountpoint(Path::new("/proc"), false),
            Err(MountError::AlreadyMounted { .. })
        ));
    }
}
