//! Files of the state directory that only their owner reads: secrets, users, keys.
//!
//! Such a file is replaced whole (written beside, synced, renamed, and the directory synced), so a
//! crash leaves the old one or the new one. One that others may read is made private again when it
//! is read, and the log says so; one that belongs to somebody else, or that cannot be understood,
//! is left alone.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a file; nothing where there is none. `what` is what it has, for people.
///
/// # Errors
/// Why it is not used, and what to do.
pub(crate) fn read(path: &Path, what: &str) -> Result<Option<Vec<u8>>, String> {
    let shown = path.display();
    let failed = |error: io::Error| {
        format!("the {what} in {shown} cannot be read: {error}; mend or remove the file")
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
        return Err(format!(
            "the {what} in {shown} belong to somebody else (user {}), who can read and change \
             them; they are not used: remove the file, or take it over and change the {what}",
            metadata.uid()
        ));
    }
    if metadata.mode() & 0o077 != 0 {
        let made = file.set_permissions(Permissions::from_mode(0o600));
        made.map_err(failed)?;
        tracing::warn!(
            "others could read the {what} in {shown}; now only its owner can; change them"
        );
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(failed)?;
    Ok(Some(text))
}

/// The same, of JSON.
///
/// # Errors
/// As above.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, what: &str) -> Result<Option<T>, String> {
    let Some(text) = read(path, what)? else {
        return Ok(None);
    };
    let read = serde_json::from_slice(&text);
    read.map(Some).map_err(|error| {
        let shown = path.display();
        format!("the {what} in {shown} cannot be read: {error}; mend or remove the file")
    })
}

/// Replaces a file with these bytes.
///
/// # Errors
/// Those of the filesystem; the old file is there then.
pub(crate) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
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
        .mode(0o600)
        .open(beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(beside, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// The same, of JSON.
///
/// # Errors
/// As above.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    write(path, &text)
}
