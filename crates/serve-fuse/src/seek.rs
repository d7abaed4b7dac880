//! Where a file has data, and where holes (lseek(2)).
//!
//! What is written through a mapping stays in the kernel's pages for a while, and the kernel asks
//! for data and holes without writing it first (`fuse_lseek`, fs/fuse/file.c of Linux). So before
//! anything is called a hole, the kernel is made to drop its pages of it, which writes those that
//! are dirty (`fuse_reverse_inval_inode`, fs/fuse/inode.c). A file without holes is not bothered.

use std::ops::Range;

use filesystem::{FsError, SeekTo};
use fuser::{Errno, INodeNo, Notifier};

use crate::convert::errno;
use crate::nodes::{File, Nodes};

/// The next data or hole of a node from `offset` on.
pub(crate) async fn seek(
    nodes: &Nodes,
    notifier: Option<&Notifier>,
    node: u64,
    offset: u64,
    to: SeekTo,
) -> Result<u64, Errno> {
    let mut written = 0..0;
    loop {
        // The file is let go before the kernel writes: another state of the filesystem may be about
        // to take its place.
        let (found, hole) = look(&nodes.file(node).await?, offset, to).await;
        let is_sure = hole.is_empty() || written.start <= hole.start && hole.end <= written.end;
        let Some(notifier) = notifier.filter(|_| !is_sure) else {
            return found.map_err(|error| errno(&error));
        };
        let (notifier, range) = (notifier.clone(), hole.clone());
        let drop_pages = move || {
            let (start, length) = (range.start as i64, (range.end - range.start) as i64);
            notifier.inval_inode(INodeNo(node), start, length)
        };
        // The kernel calls back with what it writes: not on a thread of the runtime.
        if let Ok(Err(error)) = tokio::task::spawn_blocking(drop_pages).await {
            // It does not know the file any more.
            tracing::debug!(%error, "pages of a file could not be dropped");
        }
        written = hole;
    }
}

/// What the file says, and the hole on which that rests.
async fn look(file: &File, offset: u64, to: SeekTo) -> (Result<u64, FsError>, Range<u64>) {
    let (filesystem, ino) = (&file.filesystem, file.ino);
    let found = filesystem.seek(ino, offset, to).await;
    // Nobody writes to a snapshot.
    if !file.is_live {
        return (found, 0..0);
    }
    let size = match filesystem.attributes(ino).await {
        Ok(attributes) => attributes.size_bytes,
        Err(error) => return (Err(error), 0..0),
    };
    let hole = match (to, &found) {
        (SeekTo::Data, Ok(data)) => offset..*data,
        (SeekTo::Data, Err(FsError::NoSuchPlace { .. })) => offset..size,
        (SeekTo::Hole, Ok(hole)) if *hole < size => {
            let data = filesystem.seek(ino, *hole, SeekTo::Data).await;
            *hole..data.unwrap_or(size)
        }
        _ => 0..0,
    };
    (found, hole)
}
