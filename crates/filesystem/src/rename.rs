//! Renaming: into place, over what is there, refusing to, or in exchange.
//!
//! One transaction, whatever is moved. The directories and what is in them are locked in the one
//! order of nodes (see `locking`); `renames` is held while the tree's shape changes. What is
//! refused by the kinds of files is refused before these are locked.

use std::sync::Arc;

use bytes::Bytes;
use dataset::DirtyEstimate;
use dataset::lock_order::{self, Lock};

use crate::changes::{Change, Former};
use crate::checks::{
    check_new_name, may_change_entries, may_remove_entries, may_unlink, same_project,
};
use crate::entries::{entry_node, find, find_existing};
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::filesystem::Filesystem;
use crate::locking::{LockedNodes, check_entry};
use crate::log;
use crate::node::Node;
use crate::remove::drop_link;
use crate::types::RenameMode;
use crate::unlinked::Unlinked;
use crate::znode::{LINKS_MAX, PARENT_ATTRIBUTES, attr, dirent, parent_changed, pflags, touched};

impl Filesystem {
    /// Renames.
    pub async fn rename(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let _entered = self.opening.enter_to_change().await?;
        let source = self.files.node(parent).await?;
        let target = self.files.node(new_parent).await?;
        source.entries()?;
        target.entries()?;
        if matches!(name, b"." | b"..") || matches!(new_name, b"." | b"..") {
            return Err(FsError::Invalid {
                what: "'.' and '..' cannot be renamed",
            });
        }
        check_new_name(&self.files, new_parent, new_name)?;
        if (source.znode().flags ^ target.znode().flags) & pflags::XATTR != 0 {
            return Err(FsError::Invalid {
                what: "files and extended attributes do not mix",
            });
        }
        let cross = parent != new_parent;
        let renames = if cross {
            lock_order::about_to_wait(Lock::Renames);
            let guard = self.renames.lock().await;
            Some((guard, lock_order::holds(Lock::Renames)))
        } else {
            None
        };
        let target = cross.then_some(&target);
        let (files, unlinked) = (&*self.files, &*self.unlinked);
        let outcome = async {
            let moved = lock_entries(files, &source, name, target, new_name, mode).await?;
            match moved {
                Some(entries) => rename_locked(files, unlinked, entries, new_name, mode).await,
                None => Ok(None),
            }
        };
        let outcome = outcome.await;
        drop(renames);
        let Some((ino, removed)) = outcome? else {
            return Ok(());
        };
        if let Some(removed) = removed
            && !self.files.nodes.is_retained(removed)
        {
            self.unlinked.spawn_reap(removed);
        }
        self.files.finish(ino).await
    }
}

/// Whether `directory` is `ancestor` or below it. Stable while `renames` is locked.
async fn is_within(files: &Files, directory: &Arc<Node>, ancestor: u64) -> Result<bool> {
    /// Deeper than any path; ends loops in damaged trees.
    const DEPTH_MAX: u32 = 1 << 20;
    let mut node = Arc::clone(directory);
    for _ in 0..DEPTH_MAX {
        if node.ino == ancestor {
            return Ok(true);
        }
        let parent = node.znode().parent;
        if node.ino == files.root || parent == node.ino {
            return Ok(false);
        }
        node = files.node(parent).await?;
    }
    Err(FsError::Corrupt {
        ino: directory.ino,
        what: "its parents go in a circle",
    })
}

/// What is renamed, and what has the other name, all locked with their directories.
struct Entries {
    locked: LockedNodes,
    source: Arc<Node>,
    /// The other directory, where there are two.
    target: Option<Arc<Node>>,
    node: Arc<Node>,
    /// The name that it has, as it is stored.
    stored: Bytes,
    /// What has the new name: another file.
    victim: Option<Arc<Node>>,
    /// The entry of that name, of the same file too: its object, and the name as it is stored.
    existing: Option<(u64, Bytes)>,
}

/// Looks up and locks what a rename is about; nothing where nothing is to be done.
async fn lock_entries(
    files: &Files,
    source: &Arc<Node>,
    name: &[u8],
    target: Option<&Arc<Node>>,
    new_name: &[u8],
    mode: RenameMode,
) -> Result<Option<Entries>> {
    let into = target.unwrap_or(source);
    // What has the names, where a directory among it comes before those that it is in.
    let mut early: [Option<Arc<Node>>; 2] = [None, None];
    loop {
        let [one, other] = &early;
        let nodes = [Some(source), target, one.as_ref(), other.as_ref()];
        let mut locked = match LockedNodes::lock(nodes).await {
            // Somebody else has removed it: its name is gone, or another one's.
            Err(FsError::Stale { ino }) if ino != source.ino && ino != into.ino => {
                early = [None, None];
                continue;
            }
            other => other?,
        };
        may_remove_entries(&files.opening, source)?;
        may_change_entries(&files.opening, into)?;
        let (ino, stored) = find_existing(files.rules, source, name).await?;
        let existing = find(files.rules, into, new_name).await?;
        if existing.is_some() && mode == RenameMode::NoReplace {
            return Err(FsError::Exists { ino: into.ino });
        }
        if existing.is_none() && mode == RenameMode::Exchange {
            return Err(FsError::NotFound { ino: into.ino });
        }
        let node = entry_node(files, source, ino).await?;
        let victim = match &existing {
            Some((victim, _)) => Some(entry_node(files, into, *victim).await?),
            None => None,
        };
        if let Some(victim) = &victim
            && victim.ino == ino
        {
            // Two names of one file: nothing happens (POSIX), except that a change of case does.
            let same_entry = source.ino == into.ino
                && existing.as_ref().is_some_and(|(_, other)| *other == stored);
            let rewrites = same_entry && !files.rules.is_plain() && stored != new_name;
            if !rewrites {
                return Ok(None);
            }
        }
        let victim = victim.filter(|victim| victim.ino != ino);
        check_entry(source, &node)?;
        if let Some(victim) = &victim {
            check_entry(into, victim)?;
        }
        check_places(files, source, into, &node, victim.as_ref(), mode).await?;
        if locked.add([Some(&node), victim.as_ref()]).await? {
            return Ok(Some(Entries {
                locked,
                source: Arc::clone(source),
                target: target.cloned(),
                node,
                stored,
                victim,
                existing,
            }));
        }
        early = [Some(node), victim];
    }
}

/// Refuses what the kinds of the files, and where they are in the tree, do not allow. Their own
/// locks are not needed for that: a file's kind never changes, and `renames` is held where there
/// are two directories.
async fn check_places(
    files: &Files,
    source: &Arc<Node>,
    into: &Arc<Node>,
    node: &Arc<Node>,
    victim: Option<&Arc<Node>>,
    mode: RenameMode,
) -> Result<()> {
    let is_directory = node.zap.is_some();
    let is_exchange = mode == RenameMode::Exchange;
    if let Some(victim) = victim
        && !is_exchange
    {
        match (is_directory, victim.zap.is_some()) {
            (true, false) => return Err(FsError::NotDirectory { ino: victim.ino }),
            (false, true) => return Err(FsError::IsDirectory { ino: victim.ino }),
            _ => {}
        }
    }
    let own_child = FsError::Invalid {
        what: "a directory cannot become its own child",
    };
    if source.ino == into.ino {
        // Only in a damaged pool is a directory an entry of itself.
        return match [Some(node), victim]
            .into_iter()
            .flatten()
            .any(|entry| entry.ino == source.ino)
        {
            true => Err(own_child),
            false => Ok(()),
        };
    }
    if is_directory && is_within(files, into, node.ino).await? {
        return Err(own_child);
    }
    if let Some(victim) = victim
        && victim.zap.is_some()
        && is_within(files, source, victim.ino).await?
    {
        return Err(match is_exchange {
            true => own_child,
            false => FsError::NotEmpty { ino: victim.ino },
        });
    }
    Ok(())
}

/// The rename itself. Returns the renamed object, and the one that lost its last name, if one did.
async fn rename_locked(
    files: &Files,
    unlinked: &Unlinked,
    entries: Entries,
    new_name: &[u8],
    mode: RenameMode,
) -> Result<Option<(u64, Option<u64>)>> {
    let Entries {
        locked,
        source,
        target,
        node,
        stored,
        victim,
        existing,
    } = &entries;
    let source = locked.of(source)?;
    let target = match target {
        Some(target) => Some(locked.of(target)?),
        None => None,
    };
    let into = target.unwrap_or(source);
    let node = locked.of(node)?;
    let victim = match victim {
        Some(victim) => Some(locked.of(victim)?),
        None => None,
    };
    let (ino, is_directory) = (node.ino, node.zap.is_some());
    may_unlink(&files.opening, node)?;
    same_project(&files.opening, &into.znode(), &node.znode())?;
    if let Some(victim) = victim {
        may_unlink(&files.opening, victim)?;
        if mode == RenameMode::Exchange {
            same_project(&files.opening, &source.znode(), &victim.znode())?;
        } else if let Some(entries) = &victim.zap
            && entries.count().await? != 0
        {
            return Err(FsError::NotEmpty { ino: victim.ino });
        }
    }
    let exchange = mode == RenameMode::Exchange;
    // Subdirectories that come, and that go. What is on disk may be any number.
    let victim_directory = u64::from(victim.is_some_and(|v| v.zap.is_some()));
    let moved_directory = u64::from(is_directory);
    let links_after = |before: u64, come: u64, go: u64, ino: u64| match come > go {
        true if before >= LINKS_MAX => Err(FsError::TooManyLinks { ino }),
        _ => Ok(before.saturating_add(come).saturating_sub(go)),
    };
    let (here_links, there_links) = match target {
        Some(into) => {
            let comes = if exchange { victim_directory } else { 0 };
            (
                links_after(source.znode().links, comes, moved_directory, source.ino)?,
                links_after(
                    into.znode().links,
                    moved_directory,
                    victim_directory,
                    into.ino,
                )?,
            )
        }
        None => {
            let goes = if exchange { 0 } else { victim_directory };
            (source.znode().links.saturating_sub(goes), 0)
        }
    };
    let loses_last =
        !exchange && victim.is_some_and(|victim| victim.zap.is_some() || victim.znode().links <= 1);
    let estimate = if loses_last {
        DirtyEstimate::free()
    } else {
        DirtyEstimate::metadata()
    };
    let outlives = files.outlives_crash(into).await?;
    let tx = files.assign(estimate).await?;
    let value = dirent(ino, node.znode().kind(), files.version);
    // The entries. What of it can be seen is told, also when not all can be done.
    let moved = async {
        if exchange && let (Some(victim), Some((_, other))) = (victim, existing) {
            let other: &[u8] = if other.is_empty() { new_name } else { other };
            let back = dirent(victim.ino, victim.znode().kind(), files.version);
            into.entries()?.update_u64(&tx, other, value).await?;
            source.entries()?.update_u64(&tx, stored, back).await?;
        } else {
            match existing {
                Some((_, other)) if !other.is_empty() && *other != new_name => {
                    // The name is kept as it is given now.
                    into.entries()?.remove(&tx, other).await?;
                    into.entries()?.add_u64(&tx, new_name, value).await?;
                }
                Some(_) => into.entries()?.update_u64(&tx, new_name, value).await?,
                None => into.entries()?.add_u64(&tx, new_name, value).await?,
            }
            let replaced_itself =
                source.ino == into.ino && existing.as_ref().is_some_and(|(other, _)| *other == ino);
            if !replaced_itself {
                source.entries()?.remove(&tx, stored).await?;
            }
        }
        Ok::<(), FsError>(())
    };
    let moved = moved.await;
    let former = |file: &Node, is_removed| Former {
        ino: file.ino,
        is_directory: file.zap.is_some(),
        is_removed,
    };
    files.tell(Change::Name {
        directory: source.ino,
        name: stored,
        before: Some(former(node, false)),
    });
    files.tell(Change::Name {
        directory: into.ino,
        name: new_name,
        before: victim.map(|victim| former(victim, loses_last)),
    });
    moved?;
    // The files: where they are now, and when that changed.
    let now = files.opening.now();
    let moved = [attr::PARENT, attr::FLAGS, attr::CTIME];
    let mut changed = touched(node.znode(), now, files.uses_fuids());
    changed.parent = into.ino;
    files.store(&tx, node, changed, &moved, []).await?;
    if let Some(victim) = victim {
        if exchange {
            let mut changed = touched(victim.znode(), now, files.uses_fuids());
            changed.parent = source.ino;
            files.store(&tx, victim, changed, &moved, []).await?;
        } else {
            drop_link(files, unlinked, &tx, victim).await?;
        }
    }
    // The directories: entries and subdirectories.
    let mut here = parent_changed(source.znode(), now, files.uses_fuids());
    if target.is_some() {
        let mut there = parent_changed(into.znode(), now, files.uses_fuids());
        there.links = there_links;
        if !exchange {
            here.size = here.size.saturating_sub(1);
            there.size = there.size.saturating_add(u64::from(existing.is_none()));
        }
        files
            .store(&tx, into, there, &PARENT_ATTRIBUTES, [])
            .await?;
    } else if !exchange && victim.is_some() {
        here.size = here.size.saturating_sub(1);
    }
    here.links = here_links;
    files
        .store(&tx, source, here, &PARENT_ATTRIBUTES, [])
        .await?;
    if outlives {
        let record = log::renamed(exchange, source.ino, stored, into.ino, new_name, ino);
        files.record(&tx, record);
    }
    Ok(Some((
        ino,
        loses_last.then(|| victim.map(|v| v.ino)).flatten(),
    )))
}
