//! What is mounted inside of a mounted filesystem, for those who change it behind the kernel's
//! back: NFS. The kernel itself lets nobody remove or replace a name that something is mounted at
//! (`is_local_mountpoint`, fs/namei.c of Linux); when another changes the name, it goes, and the
//! mount with it, or stays at a directory that is elsewhere by then.
//!
//! Most often nothing is inside, and asking costs a system call. That is known until something is
//! mounted or unmounted anywhere ([`mountinfo::version`]). Where something is inside, the list of
//! mounts is read each time: its paths change with directories that are renamed. Mounts at files
//! are rare, so it is known as well whether there is one, and removing files reads no list.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use filesystem::{FileKind, Filesystem};
use parking_lot::Mutex;

use crate::mountinfo::{self, MountTable};
use crate::nodes::Nodes;

/// What was found out last.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// When that was ([`mountinfo::version`]).
    version: u64,
    is_any: bool,
    /// Something is mounted at a file that is no directory, or may be.
    is_any_file: bool,
}

/// What is mounted inside of one mount.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inside(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The device of the mount's filesystem.
    device: OnceLock<String>,
    known: Mutex<Option<Known>>,
}

impl Inside {
    /// It is mounted, and has this device; without one nothing is known.
    pub(crate) fn begin(&self, device: Option<String>) {
        if let Some(device) = device {
            let _ = self.0.device.set(device);
        }
    }

    /// Paths from the root of the live filesystem at which something is mounted: all
    /// (`of_directories`), or those at files that are no directories. None where there are none.
    pub(crate) fn places(
        self,
        nodes: &Arc<Nodes>,
        of_directories: bool,
    ) -> Option<impl Future<Output = Vec<PathBuf>> + Send + use<>> {
        let device = self.0.device.get()?.clone();
        // From before the list is read: what is mounted meanwhile is asked for once more.
        let version = mountinfo::version();
        let known = *self.0.known.lock();
        let known = known.filter(|known| Some(known.version) == version);
        let is_wanted = |known: Known| known.is_any && (of_directories || known.is_any_file);
        if known.is_some_and(|known| !is_wanted(known)) {
            return None;
        }
        let nodes = Arc::clone(nodes);
        Some(async move {
            let list = move || MountTable::now().map(|table| table.places_on(&device));
            // The kernel lists all mounts of the host for it.
            let listed = tokio::task::spawn_blocking(list).await;
            let Some(places) = listed.ok().flatten() else {
                return Vec::new();
            };
            if known.is_none()
                && let Some(version) = version
            {
                let live = nodes.live();
                let mut is_any_file = false;
                for place in &places {
                    is_any_file |= !is_directory(&live, place).await;
                }
                *self.0.known.lock() = Some(Known {
                    version,
                    is_any: !places.is_empty(),
                    is_any_file,
                });
            }
            places
        })
    }
}

/// Whether a path leads to a directory, for all that can be told.
async fn is_directory(live: &Filesystem, place: &Path) -> bool {
    let mut at = live.root();
    for part in place {
        match live.lookup(at, OsStr::as_bytes(part)).await {
            Ok(found) if found.kind == FileKind::Directory => at = found.ino,
            _ => return false,
        }
    }
    true
}
