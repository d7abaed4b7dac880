//! Files of the state directory that only their owner reads.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// By the system.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// It holds something else.
    #[error("{path} is not understood ({error}); put it right, or remove it")]
    Content {
        /// The file.
        path: String,
        /// What is wrong.
        error: serde_json::Error,
    },
}

/// Reads a file; what `T` is by default where there is none.
pub(crate) fn read<T: DeserializeOwned + Default>(path: &Path) -> Result<T, FileError> {
    let name = path.display().to_string();
    match std::fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|error| FileError::Content { path: name, error })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(FileError::Io { path: name, error }),
    }
}

/// Replaces a file: after a crash it is the old one or the new one.
pub(crate) fn write<T: Serialize>(path: &Path, content: &T) -> Result<(), FileError> {
    let name = path.display().to_string();
    let bytes = match serde_json::to_vec_pretty(content) {
        Ok(bytes) => bytes,
        Err(error) => return Err(FileError::Content { path: name, error }),
    };
    replace(path, &bytes).map_err(|error| FileError::Io { path: name, error })
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("json.new");
    // One that is left of a crash may have another mode.
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Makes a directory that is its owner's alone, unless it is there.
pub(crate) fn make_directory(path: &Path) -> Result<(), FileError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| FileError::Io {
        path: path.display().to_string(),
        error,
    })
}
