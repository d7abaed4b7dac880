//! Files in filesystems and snapshots, for who looks for one in the console: listing directories
//! ([`list`]), what a file holds ([`download`]), restoring ([`restore`]), and whose a directory is
//! ([`mod@access`]).
//!
//! Everything goes through `access`, so a snapshot need not be mounted, and paths are looked up
//! name by name in the filesystem itself: no path of the host is ever made of them, and no link is
//! followed. Who asks is an operator, an admin, or root, for whom no file is closed.

mod access;
mod download;
mod held;
mod names;
mod restore;

use device::BoxFuture;
use std::sync::Arc;

use ::access::User;
use api::{
    FILE_ENTRIES_MAX, Failure, FailureKind, FileEntry, FileList, FileListReply, FileReport,
    FileType,
};
use filesystem::{Attributes, FileKind, Filesystem, FsError};
use futures::StreamExt;

use service::error::from_access;
use service::pools::Pools;

pub use self::access::{access, set_access};
pub use download::Download;
pub use restore::restore;

/// Entries that are told where nobody says how many.
const ENTRIES: u32 = 200;
/// Dnodes read at the same time.
const TOGETHER: usize = 32;

/// An error of files as the answer to a request.
fn failed(doing: &str, error: &FsError) -> Failure {
    let kind = match error {
        FsError::NotFound { .. } | FsError::Stale { .. } => FailureKind::NotFound,
        FsError::Exists { .. } => FailureKind::Exists,
        FsError::Busy { .. } | FsError::Closed => FailureKind::Busy,
        FsError::NotDirectory { .. }
        | FsError::IsDirectory { .. }
        | FsError::NameTooLong { .. }
        | FsError::BadName
        | FsError::Invalid { .. } => FailureKind::Invalid,
        FsError::ReadOnly | FsError::NotPermitted { .. } => FailureKind::Denied,
        FsError::NoSpace | FsError::QuotaExceeded => FailureKind::NoSpace,
        FsError::Unsupported { .. } => FailureKind::Unsupported,
        _ => FailureKind::Io,
    };
    Failure::new(kind, format!("{doing}: {error}"))
}

/// What is at a path.
///
/// # Errors
/// In words about the names, which people know, instead of object numbers.
async fn find(
    filesystem: &Filesystem,
    doing: &str,
    path: &[Vec<u8>],
) -> Result<Attributes, Failure> {
    let root = filesystem.attributes(filesystem.root()).await;
    let mut at = root.map_err(|error| failed(doing, &error))?;
    for (index, name) in path.iter().enumerate() {
        at = match filesystem.lookup(at.ino, name).await {
            Ok(found) => found,
            Err(FsError::NotFound { .. }) => {
                let there = names::path_of(path[..=index].iter().map(Vec::as_slice));
                let message = format!("{doing}: there is no '{there}'; look at what is there");
                return Err(Failure::new(FailureKind::NotFound, message));
            }
            Err(FsError::NotDirectory { .. }) => {
                let there = names::path_of(path[..index].iter().map(Vec::as_slice));
                let message = format!(
                    "{doing}: '{there}' is no directory (links are not followed); name the file \
                     by its own path"
                );
                return Err(Failure::new(FailureKind::Invalid, message));
            }
            Err(error) => return Err(failed(doing, &error)),
        };
    }
    Ok(at)
}

fn type_of(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::File,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Link,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

async fn report(filesystem: &Filesystem, ino: u64) -> Result<FileReport, FsError> {
    let at = filesystem.attributes(ino).await?;
    let target = match at.kind {
        FileKind::Symlink => Some(names::written(&filesystem.read_link(ino).await?)),
        _ => None,
    };
    Ok(FileReport {
        kind: type_of(at.kind),
        size_bytes: at.size_bytes,
        mode: at.mode,
        uid: at.uid,
        gid: at.gid,
        modified_s: at.mtime.seconds,
        target,
    })
}

/// What is in a directory.
pub fn list<'a>(
    pools: &'a Pools,
    call: &'a FileList,
) -> BoxFuture<'a, Result<FileListReply, Failure>> {
    Box::pin(async move {
        let doing = format!("cannot list files of '{}'", call.dataset);
        let path = names::path(&doing, &call.path)?;
        let cookie: u64 = match &call.after {
            None => 0,
            Some(after) => after.parse().map_err(|_| {
                let message = format!("{doing}: 'after' makes no sense; begin anew without it");
                Failure::new(FailureKind::Invalid, message)
            })?,
        };
        let limit = call.limit.unwrap_or(ENTRIES).clamp(1, FILE_ENTRIES_MAX);
        let open = pools.of_dataset(&call.dataset)?;
        let user = User::Command { name: "list" };
        let lease = open.access.filesystem_to_read(&call.dataset, user).await;
        let lease = lease.map_err(|error| from_access(&doing, &error))?;
        let filesystem = lease.get();
        let at = find(&filesystem, &doing, &path).await?;
        if at.kind != FileKind::Directory {
            let message = format!("{doing}: '{}' is no directory", call.path);
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        // `.` and `..` come first.
        let count = limit as usize + if cookie == 0 { 2 } else { 0 };
        let found = filesystem.peek_directory(at.ino, cookie, count).await;
        let found = found.map_err(|error| failed(&doing, &error))?;
        let next = found.last().map(|last| last.next_cookie.to_string());
        let is_all = found.len() < count;
        let entries = futures::stream::iter(found)
            .filter(|entry| std::future::ready(!matches!(&entry.name[..], b"." | b"..")))
            .map(|entry| {
                let filesystem = Arc::clone(&filesystem);
                async move {
                    FileEntry {
                        name: names::written(&entry.name),
                        file: report(&filesystem, entry.ino).await.ok(),
                    }
                }
            })
            .buffered(TOGETHER);
        Ok(FileListReply {
            entries: entries.collect().await,
            next: next.filter(|_| !is_all),
        })
    })
}
