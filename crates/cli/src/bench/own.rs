//! A directory of ours in one of theirs, with the file that loads go over.
//!
//! Who owns the directory above may rename ours, and put something else there. So all three are
//! held: nothing is made, written or removed by a path that was looked up before, and what is
//! removed is what was made, whatever it is called by then.
//!
//! **What a crash leaves.** The directory with its file, called `millpond-bench-…`; nothing else
//! looks for it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ::bench::Held;
use anyhow::{Context, bail};
use rustix::fs::{AtFlags, Mode, mkdirat, unlinkat};
use rustix::io::Errno;

use super::common;

/// What directories of ours are called, before the number of the process.
pub(super) const PREFIX: &str = "millpond-bench-";
/// The file in them.
const DATA: &str = "data";
/// Names that are tried for a directory: those of processes before may be there.
const NAMES_MAX: u32 = 100;
/// What others may do.
const OF_OTHERS: u32 = 0o077;

/// The directory, which is taken away with this unless it is to stay.
#[derive(Debug)]
pub(super) struct Own {
    directory: Held,
    data: Held,
    path: PathBuf,
    stays: bool,
}

impl Own {
    /// Makes one, with an empty file.
    ///
    /// # Errors
    /// The directory above cannot be written.
    pub(super) fn make(above: &Held) -> io::Result<Self> {
        let mut number = 0;
        let name = loop {
            let name = format!("{PREFIX}{}-{number}", std::process::id());
            match mkdirat(above, &name, Mode::RWXU) {
                Ok(()) => break name,
                Err(Errno::EXIST) if number < NAMES_MAX => number += 1,
                Err(error) => return Err(error.into()),
            }
        };
        // A link that came in its place is none, and in what else came nothing is replaced.
        let made = Held::find_in(above, &name).and_then(|directory| {
            let data = Held::make(&directory, DATA)?;
            let path = std::fs::read_link(directory.path())?;
            Ok(Own {
                directory,
                data,
                path,
                stays: false,
            })
        });
        if made.is_err() {
            // It may be somebody else's by now; if it is not empty, it stays.
            let _ = unlinkat(above, &name, AtFlags::REMOVEDIR);
        }
        made
    }

    /// Finds one that a call before left in a directory, with a file of so many bytes. That it was
    /// there says a file that others may have written: it is believed only where nothing speaks
    /// against it, since it is removed when all is done.
    ///
    /// # Errors
    /// It is not there, or not as it was left.
    pub(super) fn find(above: &Held, path: &Path, size_bytes: u64) -> anyhow::Result<Self> {
        let told = path.display();
        let directory = std::fs::read_link(above.path())?;
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.filter(|name| name.starts_with(PREFIX));
        let (Some(name), true) = (name, path.parent() == Some(&*directory)) else {
            bail!(
                "{told} is no set of a warm-up in {}; begin with another file",
                directory.display()
            );
        };
        let gone = || format!("the set of the warm-up is gone: {told}; begin with another file");
        let directory = Held::find_in(above, name).with_context(gone)?;
        let data = Held::find_in(&directory, DATA).with_context(gone)?;
        let (around, inside) = (directory.metadata()?, data.metadata()?);
        let is_private = around.is_dir()
            && inside.is_file()
            && (around.mode() | inside.mode()) & OF_OTHERS == 0
            && around.uid() == inside.uid()
            && inside.nlink() == 1;
        if !is_private || inside.len() != size_bytes {
            bail!("{told} is not as the warm-up left it; look at it, and begin with another file");
        }
        Ok(Own {
            directory,
            data,
            path: path.to_owned(),
            stays: true,
        })
    }

    /// What loads go over.
    pub(super) fn data(&self) -> &Held {
        &self.data
    }

    /// Where it was made.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it stays after this call.
    pub(super) fn stays(&self) -> bool {
        self.stays
    }

    /// Has it stay, or not.
    pub(super) fn set_stays(&mut self, stays: bool) {
        self.stays = stays;
    }

    fn remove(&self) -> io::Result<()> {
        // Nobody gets at it, but under whatever name it may still be: it takes no space.
        let _ = self.data.set_size(0);
        let removed = remove_in(&self.directory, Path::new(DATA), &self.data);
        removed.or_else(|_| remove(&self.data))?;
        remove(&self.directory)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Err(error) = self.remove() {
            common::tell(&format!("{} stays: {error}", self.path.display()));
        }
    }
}

/// Removes a file or an empty directory, whatever it is called by now.
fn remove(place: &Held) -> io::Result<()> {
    let metadata = place.metadata()?;
    // As the kernel followed it from name to name (proc_pid_fd(5)).
    let path = std::fs::read_link(place.path())?;
    let name = path.file_name().map(Path::new);
    let (Some(above), Some(name)) = (path.parent(), name) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let above = match metadata.is_dir() {
        // Also where its filesystem was unmounted lazily, so that no path leads to it.
        true => Held::find_in(place, "..")?,
        false => Held::find(above)?,
    };
    remove_in(&above, name, place)
}

/// Removes what is in a directory by this name, if it is that.
fn remove_in(above: &Held, name: &Path, place: &Held) -> io::Result<()> {
    let wanted = place.metadata()?;
    if wanted.nlink() == 0 {
        // Somebody else did.
        return Ok(());
    }
    let found = Held::find_in(above, name)?.metadata()?;
    if (found.dev(), found.ino()) != (wanted.dev(), wanted.ino()) {
        return Err(io::Error::other("something else is called so now"));
    }
    let flags = match wanted.is_dir() {
        true => AtFlags::REMOVEDIR,
        false => AtFlags::empty(),
    };
    Ok(unlinkat(above, name, flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const SIZE: u64 = 1 << 20;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Goal: what was made is removed, whatever it is called by then, and nothing else. Method: it
    /// is renamed and moved, and links to a directory of somebody else come in its place.
    #[test]
    fn what_was_made_is_removed_under_another_name() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        for name in ["above", "theirs", "elsewhere"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("theirs/data"), "theirs").unwrap();
        let above = Held::find(at("above")).unwrap();
        let own = Own::make(&above).unwrap();
        own.data().set_size(SIZE).unwrap();
        std::fs::rename(own.path(), at("elsewhere/moved")).unwrap();
        symlink(at("theirs"), own.path()).unwrap();
        std::fs::rename(at("elsewhere/moved/data"), at("elsewhere/moved-data")).unwrap();
        symlink(at("theirs/data"), at("elsewhere/moved/data")).unwrap();
        let name = own.path().file_name().unwrap().to_owned();
        assert!(own.remove().is_err(), "something of theirs is in it");
        std::fs::remove_file(at("elsewhere/moved/data")).unwrap();
        drop(own);
        assert_eq!(names(&at("elsewhere")), Vec::<String>::new());
        assert_eq!(names(&at("above")), [name.into_string().unwrap()]);
        assert_eq!(std::fs::read(at("theirs/data")).unwrap(), b"theirs");
    }

    /// Goal: a set is believed to be one only as it was left. Method: what a report could name, in
    /// turn: another directory, a link, a file of another size, of others, of two names.
    #[test]
    fn a_set_that_was_kept_is_looked_at() {
        let room = tempfile::tempdir().unwrap();
        let above = Held::find(room.path()).unwrap();
        let mut own = Own::make(&above).unwrap();
        own.data().set_size(SIZE).unwrap();
        own.set_stays(true);
        let path = own.path().to_owned();
        drop(own);
        let find = |path: &Path, size| {
            let found = Own::find(&above, path, size);
            found.map_err(|error| error.to_string())
        };
        assert!(find(&path, SIZE).unwrap().stays());
        let told = find(&path, SIZE + 1).unwrap_err();
        assert!(told.contains("not as the warm-up left it"), "{told}");
        let no_set = Path::new("/etc").join(path.file_name().unwrap());
        for other in [no_set.as_path(), room.path(), Path::new("/")] {
            let told = find(other, SIZE).unwrap_err();
            assert!(told.contains("is no set of a warm-up"), "{told}");
        }
        let link = room.path().join(format!("{PREFIX}link"));
        symlink(&path, &link).unwrap();
        assert!(find(&link, SIZE).is_err());
        let data = path.join(DATA);
        std::fs::hard_link(&data, room.path().join("second")).unwrap();
        assert!(find(&path, SIZE).is_err());
        std::fs::remove_file(room.path().join("second")).unwrap();
        std::fs::set_permissions(&data, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(find(&path, SIZE).is_err());
        std::fs::remove_dir_all(&path).unwrap();
        assert!(find(&path, SIZE).unwrap_err().contains("is gone"));
    }
}
