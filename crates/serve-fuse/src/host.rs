//! The host's side of mounting: mountpoints, what is mounted, unmounting.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::attach::Attachment;
use crate::error::{MountError, Result};
use crate::mount::UnmountMode;
use crate::mountinfo::{HostMount, Identity, MountTable, Standing};

/// Read-ahead for mounts, in KiB: some big blocks.
const READ_AHEAD_KIB: u32 = 4096;

/// Type of filesystem of what this program mounts, as the kernel lists it.
const KIND: &str = "fuse.millpond";

/// Dead mounts on top of each other that are taken away in one go.
const DEAD_MOUNTS_MAX: usize = 64;

/// What is mounted exactly at `path`, if something is: its source and type of filesystem.
pub fn mounted_at(path: &Path) -> io::Result<Option<(String, String)>> {
    let table = MountTable::read()?;
    let last = table.last_at(path);
    Ok(last.map(|mount| (mount.source.clone(), mount.kind.clone())))
}

/// The dataset whose filesystem, mounted by this program, a path leads into, by the name that it
/// had when it was mounted, and where that is mounted; none where it is in another filesystem.
///
/// # Errors
/// When there is nothing at `path`, or it cannot be asked.
pub fn filesystem_of(path: &Path) -> io::Result<Option<(String, PathBuf)>> {
    let device = fs::metadata(path)?.dev();
    let device = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    let table = MountTable::read()?;
    let ours = table.of_device(&device).filter(|mount| mount.kind == KIND);
    Ok(ours.map(|mount| (mount.source.clone(), mount.path.clone())))
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

/// A FUSE mount whose server is gone ("Transport endpoint is not connected"), or went while it was
/// asked.
pub fn is_dead(error: &io::Error) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED]
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}

/// Takes away the mounts at `path` that servers left which crashed. What the kernel remembers of a
/// dead mount's directory may still be there for a second; so the filesystem is asked, which is
/// never answered from memory. While a server is on its way out, that waits until it is gone.
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
        let table = MountTable::read().map_err(bad)?;
        if !table.last_at(&place).is_some_and(HostMount::is_fuse) {
            return Ok(());
        }
        tracing::warn!(path = %place.display(), "taking away the mount of a server that is gone");
        unmount(&place, UnmountMode::Lazy)?;
    }
    Ok(())
}

/// Makes a mountpoint and what is missing above it for all to pass through, whatever the umask
/// (`zfs_mount_at`, lib/libzfs/libzfs_mount.c).
fn make_directories(path: &Path) -> io::Result<()> {
    const MODE: u32 = 0o755;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Err(error), make_directories)?;
            fs::create_dir(path)?;
        }
        // Somebody else made it meanwhile; it has the mode that they gave it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
            return Ok(());
        }
        result => result?,
    }
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))
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
            make_directories(path).map_err(bad)?;
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

/// Unmounts a filesystem from `path` (what is there, where it cannot be told from others); whether
/// it was there: where somebody else unmounted it there is nothing to do.
///
/// # Errors
/// [`MountError::Covered`] where another mount covers it, which would go in its place;
/// [`MountError::Inside`] where another is mounted inside, which would go with it, unless lazily or
/// at any cost.
pub(crate) fn unmount_ours(
    path: &Path,
    identity: Option<&Identity>,
    mode: UnmountMode,
) -> Result<bool> {
    let Some(identity) = identity else {
        return unmount(path, mode).map(|()| true);
    };
    let table = MountTable::read().map_err(|source| MountError::Unmount {
        path: path.to_owned(),
        source,
    })?;
    match table.standing(path, identity) {
        Standing::Reached => match table.inside(path, identity) {
            Some(inner) if matches!(mode, UnmountMode::Clean | UnmountMode::Force) => {
                Err(MountError::Inside {
                    path: path.to_owned(),
                    inner: inner.path.clone(),
                    source_name: inner.source.clone(),
                })
            }
            _ => unmount(path, mode).map(|()| true),
        },
        Standing::Gone => Ok(false),
        Standing::Covered(cover) => Err(covered(path, cover)),
    }
}

fn covered(path: &Path, cover: HostMount) -> MountError {
    MountError::Covered {
        path: path.to_owned(),
        is_like_it: cover.kind == KIND,
        cover: cover.path,
        source_name: cover.source,
    }
}

/// Where the kernel shows its FUSE connections, if somebody has mounted `fusectl` there (systemd
/// does, containers do not).
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends the connection of a FUSE filesystem: whoever uses it gets errors.
pub(crate) fn cut_off(identity: &Identity) {
    let device = &identity.device;
    let minor = device.split_once(':').map_or(&**device, |(_, minor)| minor);
    let cut = || fs::write(format!("{CONNECTIONS}/{minor}/abort"), "1");
    let mut outcome = cut();
    if outcome
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    {
        // The connection is there, so it is not shown: for this moment it is.
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        outcome = rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", flags, None)
            .map_err(io::Error::from)
            .and_then(|()| {
                let outcome = cut();
                rustix::mount::unmount(CONNECTIONS, UnmountFlags::DETACH)?;
                outcome
            });
    }
    if let Err(error) = outcome {
        tracing::warn!(%error, device, "a FUSE connection could not be ended; who uses it goes on");
    }
}

/// Unmounts what is at `path`.
fn unmount(path: &Path, mode: UnmountMode) -> Result<()> {
    let flags = match mode {
        UnmountMode::Clean => UnmountFlags::NOFOLLOW,
        UnmountMode::Force | UnmountMode::AtAnyCost => {
            UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH
        }
        UnmountMode::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    // By force only where asking did not help: force aborts requests that are under way.
    let by_force = matches!(mode, UnmountMode::Force | UnmountMode::AtAnyCost);
    if by_force && rustix::mount::unmount(path, UnmountFlags::NOFOLLOW).is_ok() {
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

/// Changes the flags of a filesystem (of what is there, where it cannot be told from others),
/// mounted at `path`.
///
/// # Errors
/// [`MountError::Covered`] where another mount covers it, whose flags would change;
/// [`MountError::Refused`].
pub(crate) fn remount(
    path: &Path,
    identity: Option<&Identity>,
    attachment: &Attachment,
) -> Result<()> {
    let standing = |identity| MountTable::read().map(|table| table.standing(path, identity));
    if let Some(Ok(Standing::Covered(cover))) = identity.map(standing) {
        return Err(covered(path, cover));
    }
    let attempt = |flags: MountFlags| rustix::mount::mount_remount(path, flags, c"");
    let flags = attachment.flags();
    let outcome = match attempt(flags) {
        // Files are open for writing: writes are refused by the filesystem itself.
        Err(Errno::BUSY) if attachment.read_only => attempt(flags - MountFlags::RDONLY),
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
pub(crate) fn raise_read_ahead(identity: &Identity) {
    let device = &identity.device;
    let setting = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = fs::write(setting, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(device, %error, "read-ahead stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountpoints_are_made_and_full_ones_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a/b");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert!(prepare_mountpoint(&place, false).unwrap().is_dir());
        assert_eq!((mode(&place), mode(&dir.path().join("a"))), (0o755, 0o755));
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
