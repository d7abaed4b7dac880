//! The host's side of mounting: mountpoints, what is mounted, unmounting.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::attach::Attachment;
use crate::error::{MountError, Result};
use crate::mount::UnmountMode;
use crate::mountinfo::{Anchor, HostMount, Identity, MountTable, Standing};
use crate::mountpoint::{Directory, Mountpoint, Walk};

/// Read-ahead for mounts, in KiB: some big blocks.
const READ_AHEAD_KIB: u32 = 4096;

/// Type of filesystem of what this program mounts, as the kernel lists it.
const KIND: &str = "fuse.millpond";

/// Dead mounts on top of each other that are taken away in one go.
const DEAD_MOUNTS_MAX: usize = 64;

/// How often a mount is looked for that moves while it is to be unmounted.
const TRIES: usize = 8;

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
        let place = match Directory::open(path, Walk::Follow) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(bad)?,
        };
        let asked = rustix::fs::fstatfs(place.descriptor()).map_err(io::Error::from);
        match asked {
            Err(error) if is_dead(&error) => {}
            other => return other.map(drop).map_err(bad),
        }
        let table = MountTable::read().map_err(bad)?;
        let device = place.device();
        let last = table.last_at(place.path());
        if !last.is_some_and(|mount| mount.is_fuse() && mount.device == device) {
            return Ok(());
        }
        let path = place.path();
        tracing::warn!(path = %path.display(), "taking away the mount of a server that is gone");
        unmount_only(path, &device, UnmountMode::Lazy)?;
    }
    Ok(())
}

/// Makes sure that something can be mounted at `path`: makes the directory, takes away the dead
/// mount of a server that crashed, and refuses what would hide files (unless `overlay`). Where it
/// is done for a user, the directory is to be theirs, and none is made.
pub(crate) fn prepare_mountpoint(
    path: &Path,
    overlay: bool,
    user: Option<u32>,
) -> Result<Mountpoint> {
    let bad = |source| MountError::BadMountpoint {
        path: path.to_owned(),
        source,
    };
    take_away_dead_mounts(path)?;
    let walk = if user.is_some() {
        Walk::Follow
    } else {
        Walk::Make
    };
    let place = Directory::open(path, walk).map_err(bad)?;
    if user.is_some_and(|user| place.owner() != user) {
        let path = place.path().to_owned();
        return Err(MountError::NotOwned { path });
    }
    if !overlay {
        let path = place.path().to_owned();
        if let Some((source_name, _)) = mounted_at(&path).map_err(bad)? {
            return Err(MountError::AlreadyMounted { path, source_name });
        }
        if !place.is_empty().map_err(bad)? {
            return Err(MountError::NotEmpty { path });
        }
    }
    Ok(place.mountpoint())
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

/// Unmounts a filesystem from where it is by now (what is where it was put, where it cannot be told
/// from others); whether it was anywhere: where somebody else unmounted it there is nothing to do.
///
/// # Errors
/// [`MountError::Covered`] where another mount covers it, which would go in its place;
/// [`MountError::Inside`] where another is mounted inside, which would go with it, unless lazily or
/// at any cost.
pub(crate) fn unmount_ours(anchor: &Anchor, mode: UnmountMode) -> Result<bool> {
    let Some(identity) = &anchor.identity else {
        return unmount(&anchor.path, mode).map(|()| true);
    };
    let path = &anchor.path;
    let failed = |source| MountError::Unmount {
        path: path.to_owned(),
        source,
    };
    for _ in 0..TRIES {
        let table = MountTable::read().map_err(failed)?;
        let place = match table.standing(path, identity) {
            Standing::Reached(place) => place,
            Standing::Gone => return Ok(false),
            Standing::Covered(cover) => return Err(covered(path, cover)),
        };
        if let Some(inner) = table.inside(path, identity)
            && matches!(mode, UnmountMode::Clean | UnmountMode::Force)
        {
            return Err(MountError::Inside {
                path: place,
                inner: inner.path.clone(),
                source_name: inner.source.clone(),
            });
        }
        match unmount_only(&place, &identity.device, mode)? {
            true => return Ok(true),
            // It is elsewhere by now.
            false => tracing::debug!(path = %place.display(), "a mount moved meanwhile"),
        }
    }
    Err(failed(io::ErrorKind::ResourceBusy.into()))
}

/// Takes away a mount of ours whose session has ended, if it is still where it was put. One that
/// was unmounted has left its numbers, of the mount and of the device, to the next that is mounted
/// anywhere on the host: so what is elsewhere is left alone, whatever its numbers.
///
/// # Errors
/// What stands in the way.
pub(crate) fn take_away_ended(anchor: &Anchor) -> Result<()> {
    let (path, mode) = (&anchor.path, UnmountMode::Lazy);
    let Some(identity) = &anchor.identity else {
        return unmount(path, mode);
    };
    let table = MountTable::read().map_err(|source| MountError::Unmount {
        path: path.to_owned(),
        source,
    })?;
    match table.is_last_at_its_path(path, identity) {
        true => unmount_only(path, &identity.device, mode).map(drop),
        false => Ok(()),
    }
}

/// Unmounts the filesystem of a device that is mounted at a path, and nothing else: whatever is
/// renamed meanwhile, the directory that it is in stays the same one. Whether it is there.
fn unmount_only(path: &Path, device: &str, mode: UnmountMode) -> Result<bool> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return unmount(path, mode).map(|()| true);
    };
    // Others than root may only unmount by the path, and only what is theirs.
    if !rustix::process::geteuid().is_root() {
        return unmount(path, mode).map(|()| true);
    }
    let above = match Directory::open(above, Walk::Straight) {
        Ok(above) => above,
        Err(error) if is_elsewhere(&error) => return Ok(false),
        Err(source) => {
            let path = path.to_owned();
            return Err(MountError::Unmount { path, source });
        }
    };
    let place = above.own_path().join(name);
    match above.enter(name) {
        Ok(found) if found.device() == device => {}
        _ => return Ok(false),
    }
    // A directory that something is mounted at is not renamed itself.
    unmount_at(&place, path, mode).map(|()| true)
}

/// Whether something else is at a path by now than what was there.
fn is_elsewhere(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    [NotFound, NotADirectory, PermissionDenied].contains(&error.kind())
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
    unmount_at(path, path, mode)
}

/// The same, at the place that a path of the system's own leads to; messages have the other one.
fn unmount_at(place: &Path, path: &Path, mode: UnmountMode) -> Result<()> {
    let flags = match mode {
        UnmountMode::Clean => UnmountFlags::NOFOLLOW,
        UnmountMode::Force | UnmountMode::AtAnyCost => {
            UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH
        }
        UnmountMode::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    // By force only where asking did not help: force aborts requests that are under way.
    let by_force = matches!(mode, UnmountMode::Force | UnmountMode::AtAnyCost);
    if by_force && rustix::mount::unmount(place, UnmountFlags::NOFOLLOW).is_ok() {
        return Ok(());
    }
    match rustix::mount::unmount(place, flags) {
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

/// Changes the flags of a mounted filesystem (of what is where it was put, where it cannot be told
/// from others).
///
/// # Errors
/// [`MountError::Covered`] where another mount covers it, whose flags would change;
/// [`MountError::Refused`].
pub(crate) fn remount(anchor: &Anchor, attachment: &Attachment) -> Result<()> {
    let Anchor { path, identity } = anchor;
    let refused = |source| MountError::Refused {
        path: path.to_owned(),
        source,
    };
    let mut place = path.to_owned();
    if let Some(identity) = identity
        && let Ok(table) = MountTable::read()
    {
        match table.standing(path, identity) {
            Standing::Covered(cover) => return Err(covered(path, cover)),
            Standing::Reached(now) => place = now,
            Standing::Gone => {}
        }
    }
    let found = Directory::open(&place, Walk::Straight).map_err(refused)?;
    if let Some(identity) = identity
        && found.device() != identity.device
    {
        let why = "something else came into its place meanwhile; try again";
        return Err(refused(io::Error::other(why)));
    }
    let own = found.own_path();
    let attempt = |flags: MountFlags| rustix::mount::mount_remount(&own, flags, c"");
    let flags = attachment.flags();
    let outcome = match attempt(flags) {
        // Files are open for writing: writes are refused by the filesystem itself.
        Err(Errno::BUSY) if attachment.read_only => attempt(flags - MountFlags::RDONLY),
        other => other,
    };
    outcome.map_err(|error| refused(error.into()))
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
        let made = prepare_mountpoint(&place, false, None).unwrap();
        assert_eq!(made.open().unwrap().path(), place);
        assert_eq!((mode(&place), mode(&dir.path().join("a"))), (0o755, 0o755));
        fs::write(place.join("file"), "x").unwrap();
        assert!(matches!(
            prepare_mountpoint(&place, false, None),
            Err(MountError::NotEmpty { .. })
        ));
        assert!(prepare_mountpoint(&place, true, None).is_ok());
        let file = place.join("file");
        assert!(matches!(
            prepare_mountpoint(&file, true, None),
            Err(MountError::BadMountpoint { .. })
        ));
        assert!(matches!(
            prepare_mountpoint(Path::new("/proc"), false, None),
            Err(MountError::AlreadyMounted { .. })
        ));
    }

    /// Goal: what comes into a mount point's place after it was looked at is not mounted at.
    #[test]
    fn a_mountpoint_is_the_directory_that_was_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let (place, other) = (dir.path().join("place"), dir.path().join("other"));
        let made = prepare_mountpoint(&place, false, None).unwrap();
        fs::rename(&place, dir.path().join("aside")).unwrap();
        assert!(made.open().is_err());
        fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, &place).unwrap();
        assert!(made.open().is_err());
        fs::remove_file(&place).unwrap();
        fs::rename(&other, &place).unwrap();
        assert!(made.open().is_err());
        fs::remove_dir(&place).unwrap();
        fs::rename(dir.path().join("aside"), &place).unwrap();
        assert!(made.open().is_ok());
    }
}
