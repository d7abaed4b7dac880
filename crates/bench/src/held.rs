//! What loads go over, held by a descriptor.
//!
//! fio opens its file anew for each load. By a name, it would follow, as root, a symbolic link that
//! somebody put there meanwhile who may write in a directory above, or receive a stream into the
//! dataset; and where the filesystem was unmounted meanwhile, it would make its file in the
//! directory below. So a file is made or found once, in a directory that is held itself, and each
//! fio is given it as its standard input, which it opens as [`NAME`]: the kernel opens what the
//! descriptor stands for (proc_pid_fd(5)), whatever its name leads to by now, or says that it is
//! gone.
//!
//! A descriptor here only stands for a place (`O_PATH`, open(2)). Nothing is open by it, so that
//! to close it asks no filesystem anything: a server that holds a file of a mount of its own this
//! way can still be killed. It does keep a filesystem mounted, unless that is unmounted lazily.
//!
//! **What a crash leaves.** The descriptor ends with the process; a file that was made stays, and
//! is for its maker to find.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{Mode, OFlags, ftruncate, open, openat};

/// The name of what a process has as its standard input.
pub const NAME: &str = "/proc/self/fd/0";

/// A file, directory or block device, whatever it is called by now.
#[derive(Debug)]
pub struct Held(File);

impl Held {
    /// What a path leads to, links and all.
    ///
    /// # Errors
    /// Nothing that this user reaches.
    pub fn find(path: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        Ok(Self(open(path.as_ref(), flags, Mode::empty())?.into()))
    }

    /// What is in a directory by this name. A symbolic link is not followed, but found itself.
    ///
    /// # Errors
    /// Nothing is.
    pub fn find_in(directory: impl AsFd, name: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(directory, name.as_ref(), flags, Mode::empty())?;
        Ok(Self(found.into()))
    }

    /// Makes an empty file in a directory, for its owner alone.
    ///
    /// # Errors
    /// Something is there already, if only a link; it cannot be made.
    pub fn make(directory: impl AsFd, name: &str) -> io::Result<Self> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = flags | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?;
        Self::find(path_of(&made))
    }

    /// Its type, owner, size and number, as of now.
    ///
    /// # Errors
    /// Its filesystem does not say.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// A path that leads to it, for the threads that have this descriptor.
    pub fn path(&self) -> String {
        path_of(&self.0)
    }

    /// Opens it.
    ///
    /// # Errors
    /// This user may not, or it is gone.
    pub fn open(&self, flags: OFlags) -> io::Result<File> {
        let opened = open(self.path(), flags | OFlags::CLOEXEC, Mode::empty())?;
        Ok(opened.into())
    }

    /// Gives a file a size, in bytes. fio makes a file anew that is shorter than its loads
    /// (`extend_file`, filesetup.c), which it cannot without a name: it has its size before.
    ///
    /// # Errors
    /// It cannot be written, or not be so big.
    pub fn set_size(&self, bytes: u64) -> io::Result<()> {
        Ok(ftruncate(self.open(OFlags::WRONLY)?, bytes)?)
    }

    /// Whether it can be read past the page cache: not every kernel lets FUSE do so.
    pub fn is_direct(&self) -> bool {
        self.open(OFlags::RDONLY | OFlags::DIRECT).is_ok()
    }

    /// Another descriptor of the same.
    ///
    /// # Errors
    /// There are too many.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// As a program's standard input.
    pub(crate) fn stdin(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }
}

/// Of a descriptor that stands for a place.
impl From<OwnedFd> for Held {
    fn from(place: OwnedFd) -> Self {
        Self(place.into())
    }
}

/// As a descriptor that stands for a place.
impl From<Held> for OwnedFd {
    fn from(held: Held) -> Self {
        held.0.into()
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// By the thread, which may have descriptors of its own, and not by the process.
fn path_of(descriptor: &impl AsRawFd) -> String {
    format!("/proc/thread-self/fd/{}", descriptor.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// Goal: a file is made only where nothing is, and what is held stays the same file whatever
    /// comes by its name.
    #[test]
    fn a_file_is_held_and_not_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let above = Held::find(directory.path()).unwrap();
        std::os::unix::fs::symlink(at("other"), at("link")).unwrap();
        let taken = Held::make(&above, "link").unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        assert!(!at("other").exists());
        let held = Held::make(&above, "data").unwrap();
        assert_eq!(held.metadata().unwrap().mode() & 0o777, 0o600);
        std::fs::rename(at("data"), at("moved")).unwrap();
        std::fs::write(at("other"), "theirs").unwrap();
        std::os::unix::fs::symlink(at("other"), at("data")).unwrap();
        held.set_size(4096).unwrap();
        assert_eq!(std::fs::read(at("other")).unwrap(), b"theirs");
        assert_eq!(std::fs::metadata(at("moved")).unwrap().len(), 4096);
        let link = Held::find_in(&above, "data").unwrap();
        assert!(link.metadata().unwrap().is_symlink());
        let same = Held::find_in(&above, "moved").unwrap();
        let number = |held: &Held| held.metadata().unwrap().ino();
        assert_eq!(number(&same), number(&held.try_clone().unwrap()));
        assert!(Held::find(at("none")).is_err());
    }
}
