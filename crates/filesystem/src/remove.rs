//! Removing names: the entry, and the link that it was.

use std::sync::Arc;

use bytes::Bytes;
use dataset::DirtyEstimate;
use zio::Tx;

use crate::changes::{Change, Former};
use crate::checks::{may_remove_entries, may_unlink};
use crate::entries::{entry_node, find_existing};
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::locking::{LockedNodes, check_entry};
use crate::log;
use crate::node::{Locked, Node};
use crate::opening::Opening;
use crate::unlinked::Unlinked;
use crate::znode::{PARENT_ATTRIBUTES, Znode, attr, parent_changed, touched};

/// Removes an entry of a directory. Returns the object that it was.
pub(crate) async fn remove_in(
    files: &Files,
    unlinked: &Unlinked,
    directory: &Arc<Node>,
    name: &[u8],
    is_directory: bool,
) -> Result<u64> {
    let (ino, last) = {
        let Entry {
            locked,
            node,
            stored,
        } = lock_entry(files, directory, name).await?;
        let (directory, node, ino) = (locked.of(directory)?, locked.of(&node)?, node.ino);
        check_removable(&files.opening, node, is_directory).await?;
        let outlives = files.outlives_crash(directory).await?;
        let last = node.znode().links <= 1 || is_directory;
        let tx = files.assign(DirtyEstimate::free()).await?;
        let removed = directory.entries()?.remove(&tx, &stored).await;
        files.tell(Change::Name {
            directory: directory.ino,
            name: &stored,
            before: Some(Former {
                ino,
                is_directory,
                is_removed: last,
            }),
        });
        removed?;
        drop_link(files, unlinked, &tx, node).await?;
        let mut changed =
            parent_changed(directory.znode(), files.opening.now(), files.uses_fuids());
        changed.size = changed.size.saturating_sub(1);
        changed.links = changed.links.saturating_sub(u64::from(is_directory));
        files
            .store(&tx, directory, changed, &PARENT_ATTRIBUTES, [])
            .await?;
        if outlives {
            files.record(&tx, log::removed(is_directory, directory.ino, ino, &stored));
        }
        (ino, last)
    };
    if last && !files.nodes.is_retained(ino) {
        unlinked.spawn_reap(ino);
    }
    Ok(ino)
}

/// An entry that is to be removed, whose directory and file are locked.
struct Entry {
    locked: LockedNodes,
    node: Arc<Node>,
    /// The name as it is stored.
    stored: Bytes,
}

async fn lock_entry(files: &Files, directory: &Arc<Node>, name: &[u8]) -> Result<Entry> {
    // A subdirectory that comes before its directory in the order of locks.
    let mut early: Option<Arc<Node>> = None;
    loop {
        let mut locked = match LockedNodes::lock([Some(directory), early.as_ref()]).await {
            // Somebody else has removed it: its name is gone, or another one's.
            Err(FsError::Stale { ino }) if ino != directory.ino => {
                early = None;
                continue;
            }
            other => other?,
        };
        may_remove_entries(&files.opening, directory)?;
        let (ino, stored) = find_existing(files.rules, directory, name).await?;
        let node = entry_node(files, directory, ino).await?;
        if node.ino == directory.ino {
            return Err(FsError::Corrupt {
                ino,
                what: "it is an entry of itself",
            });
        }
        check_entry(directory, &node)?;
        if locked.add([Some(&node)]).await? {
            return Ok(Entry {
                locked,
                node,
                stored,
            });
        }
        early = Some(node);
    }
}

/// Takes one link from a file; without any left it goes into the delete queue.
pub(crate) async fn drop_link(
    files: &Files,
    unlinked: &Unlinked,
    tx: &Tx,
    node: &Locked,
) -> Result<()> {
    let before = node.znode();
    let last = before.is_directory() || before.links <= 1;
    if last {
        let changed = Znode { links: 0, ..before };
        files.store(tx, node, changed, &[attr::LINKS], []).await?;
        return unlinked.enqueue(tx, node.ino).await;
    }
    let mut changed = touched(before, files.opening.now(), files.uses_fuids());
    changed.links -= 1;
    files
        .store(
            tx,
            node,
            changed,
            &[attr::LINKS, attr::CTIME, attr::FLAGS],
            [],
        )
        .await
}

async fn check_removable(opening: &Opening, node: &Locked, is_directory: bool) -> Result<()> {
    may_unlink(opening, node)?;
    match (&node.zap, is_directory) {
        (Some(_), false) => return Err(FsError::IsDirectory { ino: node.ino }),
        (None, true) => return Err(FsError::NotDirectory { ino: node.ino }),
        _ => {}
    }
    if let Some(zap) = &node.zap
        && zap.count().await? != 0
    {
        return Err(FsError::NotEmpty { ino: node.ino });
    }
    Ok(())
}
