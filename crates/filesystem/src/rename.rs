//! Renaming: into place, over what is there, refusing to, or in exchange.
//!
//! One transaction, whatever is moved. Directories are locked top-down (or by number where neither
//! is above the other), then the children by number; `renames` is held while the tree's shape
//! changes.

use std::sync::Arc;

use dataset::DirtyEstimate;

use crate::changes::{Change, Former};
use crate::checks::{
    check_new_name, may_change_entries, may_remove_entries, may_unlink, same_project,
};
use crate::entries::{entry_node, find, find_existing};
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::filesystem::Filesystem;
use crate::log;
use crate::node::{Locked, Node};
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
            Some(self.renames.lock().await)
        } else {
            None
        };
        // The place in the tree decides who is locked first, and who may not become whose child.
        let source_above = cross && is_within(&self.files, &target, parent).await?;
        let target_above =
            cross && !source_above && is_within(&self.files, &source, new_parent).await?;
        let mut locked_source;
        let mut locked_target = None;
        if !cross {
            locked_source = source.lock().await?;
        } else if source_above || (!target_above && parent < new_parent) {
            locked_source = source.lock().await?;
            locked_target = Some(target.lock().await?);
        } else {
            let locked = target.lock().await?;
            locked_source = source.lock().await?;
            locked_target = Some(locked);
        }
        let outcome = rename_locked(
            &self.files,
            &self.unlinked,
            &mut locked_source,
            name,
            locked_target.as_mut(),
            new_name,
            mode,
        )
        .await;
        drop((locked_source, locked_target, renames));
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

/// The rename itself. `target` is `None` where both names are in one directory. Returns the
/// renamed object, and the one that lost its last name, if one did; or nothing where nothing
/// was to be done.
async fn rename_locked(
    files: &Files,
    unlinked: &Unlinked,
    source: &mut Locked,
    name: &[u8],
    target: Option<&mut Locked>,
    new_name: &[u8],
    mode: RenameMode,
) -> Result<Option<(u64, Option<u64>)>> {
    let target: Option<&Locked> = target.map(|locked| &*locked);
    let source: &Locked = source;
    let into: &Locked = target.unwrap_or(source);
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
        let same_entry =
            source.ino == into.ino && existing.as_ref().is_some_and(|(_, other)| *other == stored);
        let rewrites = same_entry && !files.rules.is_plain() && stored != new_name;
        if !rewrites {
            return Ok(None);
        }
    }
    let victim = victim.filter(|victim| victim.ino != ino);
    let is_directory = node.zap.is_some();
    if target.is_some() {
        if is_directory && is_within(files, &into.node, ino).await? {
            return Err(FsError::Invalid {
                what: "a directory cannot become its own child",
            });
        }
        if let Some(victim) = &victim
            && victim.zap.is_some()
            && is_within(files, &source.node, victim.ino).await?
        {
            return Err(match mode {
                RenameMode::Exchange => FsError::Invalid {
                    what: "a directory cannot become its own child",
                },
                _ => FsError::NotEmpty { ino: victim.ino },
            });
        }
    }
    // The children, in order of their numbers.
    let (node, victim) = match victim {
        None => (node.lock().await?, None),
        Some(victim) if node.ino < victim.ino => {
            let node = node.lock().await?;
            (node, Some(victim.lock().await?))
        }
        Some(victim) => {
            let victim = victim.lock().await?;
            (node.lock().await?, Some(victim))
        }
    };
    may_unlink(&files.opening, &node)?;
    same_project(&files.opening, &into.znode(), &node.znode())?;
    if let Some(victim) = &victim {
        may_unlink(&files.opening, victim)?;
        if mode == RenameMode::Exchange {
            same_project(&files.opening, &source.znode(), &victim.znode())?;
        } else {
            match (is_directory, victim.zap.is_some()) {
                (true, false) => return Err(FsError::NotDirectory { ino: victim.ino }),
                (false, true) => return Err(FsError::IsDirectory { ino: victim.ino }),
                (true, true) if victim.entries()?.count().await? != 0 => {
                    return Err(FsError::NotEmpty { ino: victim.ino });
                }
                _ => {}
            }
        }
    }
    let exchange = mode == RenameMode::Exchange;
    // Subdirectories that come, and that go. What is on disk may be any number.
    let victim_directory = u64::from(victim.as_ref().is_some_and(|v| v.zap.is_some()));
    let moved_directory = u64::from(is_directory);
    let links_after = |before: u64, come: u64, go: u64, ino: u64| match come > go {
        true if before >= LINKS_MAX => Err(FsError::TooManyLinks { ino }),
        _ => Ok(before.saturating_add(come).saturating_sub(go)),
    };
    let (here_links, there_links) = match &target {
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
    let loses_last = !exchange
        && victim
            .as_ref()
            .is_some_and(|victim| victim.zap.is_some() || victim.znode().links <= 1);
    let queue = if loses_last {
        Some(unlinked.lock.lock().await)
    } else {
        None
    };
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
        if exchange && let (Some(victim), Some((_, other))) = (&victim, &existing) {
            let other: &[u8] = if other.is_empty() { new_name } else { other };
            let back = dirent(victim.ino, victim.znode().kind(), files.version);
            into.entries()?.update_u64(&tx, other, value).await?;
            source.entries()?.update_u64(&tx, &stored, back).await?;
        } else {
            match &existing {
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
                source.entries()?.remove(&tx, &stored).await?;
            }
        }
        Ok::<(), FsError>(())
    };
    let moved = moved.await;
    let former = |file: &Locked, is_removed| Former {
        ino: file.ino,
        is_directory: file.zap.is_some(),
        is_removed,
    };
    files.tell(Change::Name {
        directory: source.ino,
        name: &stored,
        before: Some(former(&node, false)),
    });
    files.tell(Change::Name {
        directory: into.ino,
        name: new_name,
        before: victim.as_ref().map(|victim| former(victim, loses_last)),
    });
    moved?;
    // The files: where they are now, and when that changed.
    let now = files.opening.now();
    let moved = [attr::PARENT, attr::FLAGS, attr::CTIME];
    let mut changed = touched(node.znode(), now, files.uses_fuids());
    changed.parent = into.ino;
    files.store(&tx, &node, changed, &moved, []).await?;
    if let Some(victim) = &victim {
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
        let record = log::renamed(exchange, source.ino, &stored, into.ino, new_name, ino);
        files.record(&tx, record);
    }
    drop(queue);
    Ok(Some((
        ino,
        loses_last.then(|| victim.map(|v| v.ino)).flatten(),
    )))
}
