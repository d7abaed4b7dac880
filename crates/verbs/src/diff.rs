//! `zfs diff`: which files differ between two states of a filesystem (lib/libzfs/libzfs_diff.c).
//!
//! Objects whose block of dnodes was written since are looked at in both states. What is there now
//! is compared as a snapshot, which is destroyed afterwards; a hold that ends with the import sees
//! to that after a crash.

use access::Lease;
use api::{DiffFile, DiffKind, DiffReport, Failure, FailureKind, ZfsDiff, ZfsDiffReply};
use dataset::DatasetInfo;
use device::BoxFuture;
use filesystem::{Attributes, FileKind, Filesystem, FsError};

use crate::temporary::{Temporary, temporary};
use service::error::{from_access, from_dataset};
use service::opened::{Takes, check_name, opened};
use service::pools::OpenPool;
use serving::Serving;
use serving::mounts::Mounts;

/// The hold on the snapshot of what is there now.
const TAG: &str = ".millpond-diff";

/// `zfs diff`.
pub fn zfs_diff<'a>(
    serving: &'a Serving,
    call: &'a ZfsDiff,
) -> BoxFuture<'a, Result<ZfsDiffReply, Failure>> {
    Box::pin(async move {
        let head = call.to.split('@').next().unwrap_or(&call.to);
        check_name(head, Takes::Filesystem)?;
        let open = serving.pools.of_dataset(head)?;
        let of = call.from.split('@').next().unwrap_or(&call.from);
        opened(&open, of, Takes::Filesystem).await?;
        let from_head = call.from.split('@').next().unwrap_or(&call.from);
        if from_head != head {
            is_ancestor(&open, head, &call.from).await?;
            self::mountpoint(&serving.mounts, from_head)?;
        }
        let mountpoint = mountpoint(&serving.mounts, head)?;
        let older = look_up(&open, &call.from).await?;
        if call.to.contains('@') {
            let newer = look_up(&open, &call.to).await?;
            if newer.createtxg <= older.createtxg {
                return Err(not_earlier());
            }
            return compare(&open, &older, &newer, &mountpoint).await;
        }
        let name = temporary(Temporary::Diff, older.object.get());
        let name = format!("{head}@{name}");
        let doing = format!("Cannot create just-in-time snapshot of '{head}'");
        let failed = |error| from_dataset(&doing, &error);
        let dsl = open.pool.dsl();
        let names = [name.clone()];
        dsl.holds().check_possible(&name).map_err(failed)?;
        dsl.snapshots().take(&names, &[]).await.map_err(failed)?;
        let held = dsl.holds().hold_for_now(&name, TAG).await;
        // Deferred: it goes with the hold.
        let destroyed = dsl.destroyer().destroy_snapshots(&names, true).await;
        held.and(destroyed).map_err(failed)?;
        let compared = async {
            let newer = look_up(&open, &name).await?;
            compare(&open, &older, &newer, &mountpoint).await
        };
        let compared = compared.await;
        dsl.holds().release(&names, TAG).await.map_err(failed)?;
        compared
    })
}

fn not_earlier() -> Failure {
    let message = "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs";
    Failure::new(FailureKind::Invalid, message)
}

async fn look_up(open: &OpenPool, name: &str) -> Result<DatasetInfo, Failure> {
    let found = open.pool.dsl().directories().lookup(name).await;
    found.map_err(|error| match error {
        dataset::DatasetError::NotFound { .. } => {
            let message = format!("Unable to obtain diffs: '{name}' does not exist");
            Failure::new(FailureKind::NotFound, message)
        }
        error => from_dataset("Unable to obtain diffs", &error),
    })
}

/// Where a filesystem is mounted, as paths begin.
fn mountpoint(mounts: &Mounts, head: &str) -> Result<Vec<u8>, Failure> {
    use std::os::unix::ffi::OsStrExt;

    let Some(path) = mounts.mountpoint(head) else {
        let message = "Cannot diff an unmounted snapshot: operation not applicable to datasets of \
                       this type";
        return Err(Failure::new(FailureKind::Invalid, message));
    };
    let path = path.as_os_str().as_bytes();
    Ok(match path {
        b"/" => Vec::new(),
        path => path.to_vec(),
    })
}

/// Whether `head` is a clone of what `from` is an earlier state of.
async fn is_ancestor(open: &OpenPool, head: &str, from: &str) -> Result<(), Failure> {
    let of = from.split('@').next().unwrap_or(from);
    let from = look_up(open, from).await?;
    let mut at = head.to_owned();
    loop {
        let info = look_up(open, &at).await?;
        let Some(origin) = info.origin else {
            let message = "Not an earlier snapshot from the same fs: invalid name";
            return Err(Failure::new(FailureKind::Invalid, message));
        };
        let above = origin.split('@').next().unwrap_or(&origin).to_owned();
        if above == of {
            let origin = look_up(open, &origin).await?;
            return match from.createtxg <= origin.createtxg {
                true => Ok(()),
                false => Err(not_earlier()),
            };
        }
        at = above;
    }
}

/// A file in one of both states; nothing where the object is no file there.
struct There {
    attributes: Attributes,
    path: Vec<u8>,
}

struct Side {
    lease: Lease<Filesystem>,
    shares: Option<u64>,
}

impl Side {
    async fn new(lease: Lease<Filesystem>, info: &DatasetInfo) -> Result<Self, Failure> {
        let doing = "Unable to obtain diffs";
        let shares = lease.get().shares_directory().await;
        let shares = shares.map_err(|error| {
            Failure::new(FailureKind::Io, format!("{doing}: {}: {error}", info.name))
        })?;
        Ok(Side { lease, shares })
    }

    /// The file that an object is.
    async fn file(&self, ino: u64) -> Result<Option<There>, FsError> {
        if self.shares == Some(ino) {
            return Ok(None);
        }
        let filesystem = self.lease.get();
        let attributes = match filesystem.attributes(ino).await {
            Ok(attributes) => attributes,
            Err(error) if is_no_file(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let path = match filesystem.path_of(ino).await {
            Ok(path) => path,
            Err(_) if attributes.nlink == 0 => b"(on_delete_queue)".to_vec(),
            Err(error) if is_no_file(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(There { attributes, path }))
    }
}

fn is_no_file(error: &FsError) -> bool {
    matches!(
        error,
        FsError::Stale { .. } | FsError::NotFound { .. } | FsError::Unsupported { .. }
    )
}

async fn compare(
    open: &OpenPool,
    older: &DatasetInfo,
    newer: &DatasetInfo,
    mountpoint: &[u8],
) -> Result<ZfsDiffReply, Failure> {
    let doing = "Unable to obtain diffs";
    let names = [older.name.as_str(), newer.name.as_str()];
    let [from, to] = crate::owners::borrow_all(open, names, doing, "diff").await?;
    let from = Side::new(from, older).await?;
    let to = Side::new(to, newer).await?;
    let compared = sides(&from, &to, older, mountpoint).await;
    for lease in [from.lease, to.lease] {
        let closed = lease.close().await;
        closed.map_err(|error| from_access(doing, &error))?;
    }
    compared
}

async fn sides(
    from: &Side,
    to: &Side,
    older: &DatasetInfo,
    mountpoint: &[u8],
) -> Result<ZfsDiffReply, Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::new(FailureKind::Io, format!("Unable to obtain diffs: {why}"))
    };
    let newer = to.lease.get();
    let changed = newer
        .changed_since(&from.lease.get(), older.createtxg)
        .await;
    let mut reply = ZfsDiffReply::default();
    for range in changed.map_err(|error| failed(&error))? {
        for ino in range {
            match (from.file(ino).await, to.file(ino).await) {
                (Ok(before), Ok(now)) => tell(&mut reply.changes, mountpoint, before, now),
                (Err(error), _) | (_, Err(error)) => {
                    let what = format!("Unable to determine path or stats for object {ino}");
                    let message = format!("{what}: {error}");
                    reply.failures.push(Failure::new(FailureKind::Io, message));
                }
            }
        }
    }
    Ok(reply)
}

/// Tells what became of an object (`write_inuse_diffs_one`).
fn tell(
    changes: &mut Vec<DiffReport>,
    mountpoint: &[u8],
    before: Option<There>,
    now: Option<There>,
) {
    let report = |change, of: &There, path: &[u8]| DiffReport {
        change,
        file: kind(of.attributes.kind),
        path: mangled(mountpoint, path),
        new_path: None,
        links: None,
        changed: (of.attributes.ctime.seconds, of.attributes.ctime.nanoseconds),
    };
    match (before, now) {
        (None, None) => {}
        (None, Some(now)) => changes.push(report(DiffKind::Added, &now, &now.path)),
        (Some(before), None) => {
            // What had no name before was not there.
            if before.attributes.nlink > 0 {
                changes.push(report(DiffKind::Removed, &before, &before.path));
            }
        }
        (Some(before), Some(now)) => {
            let (old, new) = (&before.attributes, &now.attributes);
            if old.generation != new.generation || old.kind != new.kind {
                changes.push(report(DiffKind::Removed, &before, &before.path));
                changes.push(report(DiffKind::Added, &now, &now.path));
                return;
            }
            if old.ctime == new.ctime {
                return;
            }
            let counts = new.kind != FileKind::Directory && old.nlink > 0 && new.nlink > 0;
            let links = match counts {
                true => i64::from(new.nlink) - i64::from(old.nlink),
                false => 0,
            };
            if links != 0 {
                let path = if links > 0 { &before.path } else { &now.path };
                changes.push(DiffReport {
                    links: Some(links),
                    ..report(DiffKind::Modified, &now, path)
                });
            } else if before.path == now.path {
                changes.push(report(DiffKind::Modified, &now, &now.path));
            } else {
                changes.push(DiffReport {
                    new_path: Some(mangled(mountpoint, &now.path)),
                    ..report(DiffKind::Renamed, &now, &before.path)
                });
            }
        }
    }
}

fn kind(kind: FileKind) -> DiffFile {
    match kind {
        FileKind::BlockDevice => DiffFile::BlockDevice,
        FileKind::CharDevice => DiffFile::CharDevice,
        FileKind::Directory => DiffFile::Directory,
        FileKind::Fifo => DiffFile::Fifo,
        FileKind::Regular => DiffFile::Regular,
        FileKind::Socket => DiffFile::Socket,
        FileKind::Symlink => DiffFile::Symlink,
    }
}

/// A path as `zfs diff` prints it (`stream_bytes`).
fn mangled(mountpoint: &[u8], path: &[u8]) -> String {
    let mut text = String::with_capacity(mountpoint.len() + path.len());
    for &byte in mountpoint.iter().chain(path) {
        match byte {
            b'!'..=b'~' if byte != b'\\' => text.push(char::from(byte)),
            byte => text.push_str(&format!("\\{byte:04o}")),
        }
    }
    text
}
