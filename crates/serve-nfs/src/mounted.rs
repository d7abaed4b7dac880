//! Names that stay where they are, since something else is mounted there or below.
//!
//! A user of the host cannot remove, rename or replace what is a mount point: Linux refuses before
//! it asks the filesystem (`vfs_rmdir`, `vfs_unlink`, `vfs_rename` with `is_local_mountpoint`,
//! fs/namei.c). What a client of NFS does comes to the filesystem past the kernel, whose mount
//! would then be taken away, or be at a directory that is elsewhere: the next who writes to that
//! path on the host writes into what the client put there. So it is refused here.
//!
//! Directories above a mount stay as well. Linux lets them be renamed, as the mount moves along
//! with what its kernel knows of them; behind the kernel's back nothing moves along.
//!
//! Roots of other shares count as mount points, also where nothing is mounted: their paths lead
//! there by version 4.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use filesystem::{Attributes, Changes, FileKind, Filesystem};

use crate::object::{Error, File, Result};
use crate::share::{Entered, Shares};

/// Fails where an entry of a directory, found by this name, has something mounted on it or below.
pub(crate) async fn check_not_mounted(
    shares: &Shares,
    entered: &Entered,
    directory: &File,
    (name, found): (&[u8], &Attributes),
) -> Result<()> {
    let is_directory = found.kind == FileKind::Directory;
    let filesystem = &directory.filesystem;
    let mut places = match Changes::of(filesystem) {
        Some(changes) => changes.mounted_inside(is_directory).await,
        None => Vec::new(),
    };
    if is_directory {
        places.extend(shares.places_within(&entered.share.names().path));
    }
    if filesystem.compares_names_exactly() {
        let has_name = |place: &PathBuf| place.iter().any(|part| part.as_bytes() == name);
        places.retain(has_name);
    }
    let entry = (directory.ino(), found.ino);
    for place in places {
        if leads_through(filesystem, &place, entry).await {
            return Err(Error::MountedOn);
        }
    }
    Ok(())
}

/// Whether a path leads through an entry of a directory, or ends there.
async fn leads_through(filesystem: &Filesystem, place: &Path, entry: (u64, u64)) -> bool {
    let mut at = filesystem.root();
    for part in place {
        let Ok(found) = filesystem.lookup(at, part.as_bytes()).await else {
            return false;
        };
        if (at, found.ino) == entry {
            return true;
        }
        at = found.ino;
    }
    false
}
