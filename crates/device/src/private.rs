//! Files that only their owner reads: secrets, users, keys, and whatever else the process keeps
//! for itself.
//!
//! Such a file is replaced whole: written beside (`NAME.new`), synced, renamed, and the directory
//! synced. A crash leaves the old one or the new one, and perhaps one beside it, which the next
//! write removes. One that others may read is made private again when it is read, and the log says
//! so; one that belongs to somebody else, or that cannot be understood, is left alone.
//!
//! A file has one writer at a time: who calls sees to that.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Mode of a file.
const FILE_MODE: u32 = 0o600;
/// Mode of a directory.
const DIRECTORY_MODE: u32 = 0o700;
/// What others may do.
const OF_OTHERS: u32 = 0o077;

/// Why a private file is not used, or could not be replaced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system did not let it be read.
    #[error("the {what} in {} cannot be read: {error}; mend or remove the file", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What it has, for people.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Another user owns it.
    #[error(
        "the {what} in {path} belong to somebody else (user {uid}), who can read and change them; \
         they are not used. If you trust what is in the file, run 'chown {own} {path}', and change \
         secrets that are in it; else remove it. Then start the server again",
        path = .path.display(), own = rustix::process::geteuid().as_raw()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// What it has, for people.
        what: &'static str,
        /// The number of the user whose it is.
        uid: u32,
    },
    /// It holds something else.
    #[error("the {what} in {} cannot be read: {error}; mend or remove the file", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should have, for people.
        what: &'static str,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// The system did not let it be replaced; the old one is there.
    #[error(
        "{} cannot be written: {error}; look at the space and the permissions there",
        .path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl FileError {
    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Read { path, .. }
            | Self::Owner { path, .. }
            | Self::Content { path, .. }
            | Self::Write { path, .. } => path,
        }
    }

    /// What is said of a file that [`write`] or [`write_json`] could not replace.
    pub fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Write { path, error }
    }
}

/// Reads a file; nothing where there is none. `what` is what it has, for people, in the plural.
///
/// # Errors
/// [`FileError::Read`], also where it is a symbolic link; [`FileError::Owner`].
pub fn read(path: &Path, what: &'static str) -> Result<Option<Vec<u8>>, FileError> {
    let failed = |error: io::Error| FileError::Read {
        path: path.to_owned(),
        what,
        error,
    };
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(FileError::Owner {
            path: path.to_owned(),
            what,
            uid: metadata.uid(),
        });
    }
    if metadata.mode() & OF_OTHERS != 0 {
        let made = file.set_permissions(Permissions::from_mode(FILE_MODE));
        made.map_err(failed)?;
        tracing::warn!(
            "others could read the {what} in {}; now only its owner can; change them",
            path.display()
        );
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(failed)?;
    Ok(Some(text))
}

/// The same, of JSON.
///
/// # Errors
/// As [`read`], and [`FileError::Content`].
pub fn read_json<T: DeserializeOwned>(
    path: &Path,
    what: &'static str,
) -> Result<Option<T>, FileError> {
    let Some(text) = read(path, what)? else {
        return Ok(None);
    };
    let read = serde_json::from_slice(&text);
    read.map(Some).map_err(|error| FileError::Content {
        path: path.to_owned(),
        what,
        error,
    })
}

/// Replaces a file with these bytes, or makes it.
///
/// # Errors
/// Those of the filesystem. The old file is there then, unless only the sync of the directory
/// failed: then it is not known which of the two a crash leaves.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    // One that a crash left may be anybody's to read.
    match std::fs::remove_file(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(beside, path)?;
    match path.parent() {
        Some(directory) if directory.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// The same, of JSON.
///
/// # Errors
/// As [`write`].
pub fn write_json<T: Serialize + ?Sized>(path: &Path, value: &T) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    write(path, &text)
}

/// Makes a directory that is its owner's alone, with those above it, unless it is there.
///
/// # Errors
/// Those of the filesystem.
pub fn make_directory(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(DIRECTORY_MODE).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("it").mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_whole_and_private_whatever_a_crash_left() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.json");
        assert_eq!(read(&path, "keys").expect("none"), None);
        write_json(&path, &vec![1, 2]).expect("written");
        let read_back = || read_json::<Vec<u32>>(&path, "keys").expect("read");
        assert_eq!((read_back(), mode(&path)), (Some(vec![1, 2]), 0o600));
        // What a crash left beside may be readable, or even lead elsewhere.
        let (beside, other) = (
            directory.path().join("keys.json.new"),
            directory.path().join("other"),
        );
        std::fs::write(&other, "kept").expect("written");
        std::os::unix::fs::symlink(&other, &beside).expect("a link");
        write_json(&path, &vec![3]).expect("written");
        assert_eq!((read_back(), mode(&path)), (Some(vec![3]), 0o600));
        assert!(!beside.exists());
        assert_eq!(std::fs::read(&other).expect("read"), b"kept");
    }

    #[test]
    fn one_that_is_not_good_is_not_used_and_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.json");
        write(&path, b"[1,").expect("written");
        let told = read_json::<Vec<u32>>(&path, "keys").expect_err("no JSON");
        assert!(matches!(told, FileError::Content { .. }), "{told:?}");
        assert!(told.to_string().contains("the keys in "), "{told}");
        assert_eq!(std::fs::read(&path).expect("read"), b"[1,");
        // A link may lead to what somebody else writes.
        let link = directory.path().join("link.json");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let told = read(&link, "keys").expect_err("a link");
        assert!(matches!(told, FileError::Read { .. }), "{told:?}");
    }

    #[test]
    fn what_others_could_read_is_made_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.json");
        std::fs::write(&path, "{}").expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        assert_eq!(read(&path, "keys").expect("read"), Some(b"{}".to_vec()));
        assert_eq!(mode(&path), 0o600);
        let below = directory.path().join("a/b");
        make_directory(&below).expect("made");
        make_directory(&below).expect("there");
        assert_eq!(mode(&below), 0o700);
    }

    #[test]
    fn a_directory_that_takes_nothing_keeps_the_old_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("keys.json");
        write(&path, b"old").expect("written");
        // What is in the way of the new one cannot be removed as a file.
        std::fs::create_dir(directory.path().join("keys.json.new")).expect("made");
        let error = write(&path, b"new").expect_err("in the way");
        let told = FileError::write(&path)(error).to_string();
        assert!(told.contains("keys.json cannot be written"), "{told}");
        assert_eq!(std::fs::read(&path).expect("read"), b"old");
    }
}
