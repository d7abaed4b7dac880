//! Finding and making the directory that something is mounted at, led astray by nobody.
//!
//! Mount points often lie in directories that others may write in: `zfs allow` lets them make
//! filesystems below their own. Whoever may write in a directory can put a symbolic link, or
//! another directory, in the place of what was there, at any moment; followed with root's rights, a
//! path would then lead to any directory of the host. So a path is walked name by name, each looked
//! up in the directory that is open already:
//!
//! - A link is followed only if nobody but root (and who runs the server) can have put it there: it
//!   is in a local filesystem, and nobody else may write in its directory or in any above. A link
//!   in what FUSE or a network serves may have come with a stream, or from another host.
//! - What is made, changed or mounted on is the opened directory and no path
//!   ([`Directory::own_path`]), so nothing that is renamed meanwhile makes a difference.
//!
//! OpenZFS follows links (`zfs_mount_at`, lib/libzfs/libzfs_mount.c): on Linux only root mounts
//! there, and delegating `mount` does nothing.
//!
//! Source: open(2) (`O_PATH`, `O_NOFOLLOW`), path_resolution(7), proc(5) (`/proc/pid/fd`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

/// Mode of directories that are made here, whatever the umask: all pass through.
const MODE: u32 = 0o755;
/// Links that are followed on one path, as many as the kernel follows (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// Types of filesystems that others than this host's kernel fill: FUSE, NFS, SMB of both kinds
/// (include/uapi/linux/magic.h).
const OF_OTHERS: [u32; 4] = [0x6573_5546, 0x6969, 0xff53_4d42, 0xfe53_4d42];

/// What a walk may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    /// Follow root's links.
    Follow,
    /// The same, and make the directories that are missing.
    Make,
    /// Follow no link: there was none when the path was walked before.
    Straight,
}

/// What one directory is told from all others by, while it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DirectoryId {
    device: (u32, u32),
    ino: u64,
}

/// A directory on the way.
#[derive(Debug)]
struct Step {
    name: OsString,
    directory: OwnedFd,
    id: DirectoryId,
    owner: u32,
    /// Whether only root may change what is in it.
    is_roots: bool,
}

/// A directory that was walked to. What is mounted at it is on top of it.
#[derive(Debug)]
pub(crate) struct Directory {
    step: Step,
    path: PathBuf,
}

impl Directory {
    /// Walks to a path.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]; [`io::ErrorKind::NotADirectory`];
    /// [`io::ErrorKind::PermissionDenied`] with a sentence about a link that is not followed; what
    /// the system answers.
    pub(crate) fn open(path: &Path, walk: Walk) -> io::Result<Self> {
        let mut left: Vec<OsString> = Vec::new();
        add_parts(&mut left, path);
        let root = rustix::fs::open(
            "/",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            no(),
        )?;
        let mut way = vec![Step::new(OsString::new(), root)?];
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == ".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let Some(at) = way.last() else { break };
            let found = match enter(at, &part) {
                Err(Errno::NOENT) if walk == Walk::Make => Some(make(at, &part)?),
                Err(Errno::NOTDIR | Errno::LOOP) => None,
                other => Some(other?),
            };
            if let Some(directory) = found {
                way.push(Step::new(part, directory)?);
                continue;
            }
            let target = target(&way, &part, walk, &path_of(&way))?;
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            if target.has_root() {
                way.truncate(1);
            }
            add_parts(&mut left, &target);
        }
        let path = path_of(&way);
        let step = way.pop().ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { step, path })
    }

    /// The path that was walked, without links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of the device of its filesystem, as /proc/pid/mountinfo writes it.
    pub(crate) fn device(&self) -> String {
        let (major, minor) = self.step.id.device;
        format!("{major}:{minor}")
    }

    /// Number of the user whose it is.
    pub(crate) fn owner(&self) -> u32 {
        self.step.owner
    }

    /// What it takes to find it again.
    pub(crate) fn mountpoint(&self) -> Mountpoint {
        Mountpoint {
            path: self.path.clone(),
            id: self.step.id,
        }
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.step.directory
    }

    /// Opens a directory in it, or what is mounted there.
    pub(crate) fn enter(&self, name: &OsStr) -> io::Result<Self> {
        let directory = enter(&self.step, name)?;
        Ok(Self {
            step: Step::new(name.to_owned(), directory)?,
            path: self.path.join(name),
        })
    }

    /// A path that leads to this directory and no other, for system calls of this thread.
    pub(crate) fn own_path(&self) -> PathBuf {
        let descriptor = self.step.directory.as_raw_fd();
        PathBuf::from(format!("/proc/thread-self/fd/{descriptor}"))
    }

    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        is_empty(&rustix::fs::openat(
            &self.step.directory,
            c".",
            flags,
            no(),
        )?)
    }
}

/// A directory that something can be mounted at, remembered without being open.
pub(crate) struct Mountpoint {
    /// Its path, without links.
    pub(crate) path: PathBuf,
    id: DirectoryId,
}

impl Mountpoint {
    /// Opens it, if it is still the one that was looked at.
    pub(crate) fn open(&self) -> io::Result<Directory> {
        let found = Directory::open(&self.path, Walk::Straight)?;
        match found.step.id == self.id {
            true => Ok(found),
            false => Err(io::Error::other(
                "another directory came into its place meanwhile; try again",
            )),
        }
    }
}

/// Removes the directory at a path, if there is nothing in it and nothing is mounted at it.
///
/// # Errors
/// Where a link is on the way that others than root may have put there; what the system answers.
pub fn remove_mountpoint(path: &Path) -> io::Result<()> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let above = Directory::open(above, Walk::Follow)?;
    rustix::fs::unlinkat(above.descriptor(), name, AtFlags::REMOVEDIR)?;
    Ok(())
}

impl Step {
    fn new(name: OsString, directory: OwnedFd) -> io::Result<Self> {
        // A filesystem that is served is not asked: its server may be gone.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&directory, c"", flags, StatxFlags::BASIC_STATS)?;
        let mode = u32::from(found.stx_mode);
        let is_roots = is_ours(found.stx_uid) && mode & 0o022 == 0;
        let id = DirectoryId {
            device: (found.stx_dev_major, found.stx_dev_minor),
            ino: found.stx_ino,
        };
        Ok(Self {
            name,
            directory,
            id,
            owner: found.stx_uid,
            is_roots,
        })
    }

    /// Whether this host's kernel alone fills its filesystem.
    fn is_local(&self) -> bool {
        let of = rustix::fs::fstatfs(&self.directory);
        // The type is a number of 32 bits, which is signed on some processors.
        of.is_ok_and(|of| !OF_OTHERS.contains(&(of.f_type as u32)))
    }
}

fn no() -> Mode {
    Mode::empty()
}

/// Whether a user is root, or who runs this server.
fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Puts the names of a path where the next one is taken from.
fn add_parts(left: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    left.extend(parts);
}

fn path_of(way: &[Step]) -> PathBuf {
    let mut path = PathBuf::from("/");
    path.extend(
        way.iter()
            .map(|step| &*step.name)
            .filter(|name| !name.is_empty()),
    );
    path
}

/// Opens the directory of a name. What an automounter serves is mounted by it.
fn enter(at: &Step, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&at.directory, name, flags, no())
}

/// Where the link of a name leads that is no directory.
fn target(way: &[Step], name: &OsStr, walk: Walk, above: &Path) -> io::Result<PathBuf> {
    let at = way.last().ok_or(io::ErrorKind::NotFound)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = rustix::fs::openat(&at.directory, name, flags, no())?;
    let stat = rustix::fs::fstat(&link)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let of_root = || way.iter().all(|step| step.is_roots && step.is_local());
    if walk == Walk::Straight || !is_ours(stat.st_uid) || !of_root() {
        let message = format!(
            "{} is a symbolic link that others than root may have put there; replace it by a \
             directory",
            above.join(name).display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    let target = rustix::fs::readlinkat(&link, c"", Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}

/// Makes a directory for all to pass through, and opens it. What somebody else made meanwhile has
/// the mode that they gave it (`zfs_mount_at`).
fn make(at: &Step, name: &OsStr) -> io::Result<OwnedFd> {
    let is_new = match rustix::fs::mkdirat(&at.directory, name, Mode::from_raw_mode(MODE)) {
        Err(Errno::EXIST) => false,
        made => made.map(|()| true)?,
    };
    if is_new {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&at.directory, name, flags, no())?;
        // Another one may have come into its place: not one of somebody else's, nor one in use.
        let stat = rustix::fs::fstat(&made)?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw() && is_empty(&made)?;
        if is_own && stat.st_mode & 0o777 != MODE {
            rustix::fs::fchmod(&made, Mode::from_raw_mode(MODE))?;
        }
    }
    Ok(enter(at, name)?)
}

fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use super::*;

    /// A directory that only root may write in, as are those above it; none for others.
    fn private() -> Option<tempfile::TempDir> {
        let made = tempfile::tempdir_in("/var/lib").ok();
        oracles::need("root", made.is_some());
        made
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn roots_own_links_are_followed() {
        let Some(directory) = private() else { return };
        let top = directory.path();
        fs::create_dir_all(top.join("real/in")).unwrap();
        symlink("real/../real", top.join("link")).unwrap();
        symlink(top.join("link"), top.join("absolute")).unwrap();
        symlink("loop", top.join("loop")).unwrap();
        for name in ["link/in", "absolute/in", "absolute/../real/in"] {
            let found = Directory::open(&top.join(name), Walk::Follow).unwrap();
            assert_eq!(found.path(), top.join("real/in"), "{name}");
        }
        let made = Directory::open(&top.join("absolute/new/new"), Walk::Make).unwrap();
        assert_eq!(made.path(), top.join("real/new/new"));
        let modes = [top.join("real/new"), top.join("real/new/new")].map(|path| mode(&path));
        assert_eq!(modes, [0o755; 2]);
        assert!(Directory::open(&top.join("loop"), Walk::Follow).is_err());
        let straight = Directory::open(&top.join("link/in"), Walk::Straight);
        assert_eq!(
            straight.unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
    }

    /// Goal: no link that others may have put there leads anywhere, whoever it belongs to.
    #[test]
    fn links_of_others_are_not_followed() {
        let Some(directory) = private() else { return };
        let top = directory.path();
        let secret = top.join("secret");
        fs::create_dir(&secret).unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o700)).unwrap();
        let theirs = top.join("theirs");
        fs::create_dir_all(theirs.join("roots")).unwrap();
        chown(&theirs, Some(1234), Some(1234)).unwrap();
        let (link, below) = (theirs.join("link"), theirs.join("roots/link"));
        symlink(&secret, &link).unwrap();
        symlink(&secret, &below).unwrap();
        let foreign = top.join("foreign");
        symlink(&secret, &foreign).unwrap();
        std::os::unix::fs::lchown(&foreign, Some(1234), Some(1234)).unwrap();
        let shared = top.join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
        symlink(&secret, shared.join("link")).unwrap();
        for path in [&link, &below, &foreign, &shared.join("link")] {
            for walk in [Walk::Follow, Walk::Make, Walk::Straight] {
                for path in [path.clone(), path.join("new")] {
                    let refused = Directory::open(&path, walk).unwrap_err();
                    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{path:?}");
                }
            }
            assert!(remove_mountpoint(&path.join("new")).is_err());
        }
        assert_eq!(
            (mode(&secret), secret.read_dir().unwrap().count()),
            (0o700, 0)
        );
        // Their own directories are no way to elsewhere.
        let made = Directory::open(&theirs.join("a/b"), Walk::Make).unwrap();
        assert_eq!(made.path(), theirs.join("a/b"));
        remove_mountpoint(&theirs.join("a/b")).unwrap();
        assert!(!theirs.join("a/b").exists());
    }
}
