//! Locking several nodes in one operation, in the one order of all (module `rank`), and what an
//! operation has locked ([`LockedNodes`]).
//!
//! Directories come before files, files before directories of extended attributes, these before the
//! files in them; among their like nodes go by object number, wherever they are in the tree. That
//! order is total and does not change while nodes move, so no set of operations can wait in a
//! circle. Parents before children would not do beside it: a directory's child may have the lower
//! number.
//!
//! What an entry points to is known only once its directory is locked. A child that comes before
//! its directory is locked first then: everything is given back, the child joins what is locked at
//! once, and the entry is looked up again, since it may be another one by then. Each such round
//! means that somebody else has changed the entry in between, or is the last.

use std::sync::Arc;

use crate::error::{FsError, Result};
use crate::node::{Locked, Node};
use crate::rank::Rank;

/// Nodes that an operation locks at most: two directories, and two entries.
const NODES_MAX: usize = 4;

/// What an operation has locked, in order.
pub(crate) struct LockedNodes {
    nodes: [Option<Locked>; NODES_MAX],
}

impl LockedNodes {
    /// Locks nodes, each once.
    ///
    /// # Errors
    /// [`FsError::Stale`], where one was freed meanwhile.
    pub(crate) async fn lock<const N: usize>(nodes: [Option<&Arc<Node>>; N]) -> Result<Self> {
        let mut locked = Self {
            nodes: [const { None }; NODES_MAX],
        };
        locked.lock_sorted(nodes).await?;
        Ok(locked)
    }

    /// Locks more nodes, those that are not locked yet; `false`, and nothing is locked, where one
    /// of them comes before what is locked already, or what is locked is not what is needed now.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub(crate) async fn add<const N: usize>(
        &mut self,
        nodes: [Option<&Arc<Node>>; N],
    ) -> Result<bool> {
        let last = self.nodes.iter().flatten().map(|node| node.place()).max();
        let mut missing = nodes;
        for node in &mut missing {
            if node.is_some_and(|node| self.get(node.ino).is_some()) {
                *node = None;
            }
        }
        let free = self.nodes.iter().filter(|node| node.is_none()).count();
        if missing.iter().flatten().count() > free
            || missing
                .iter()
                .flatten()
                .any(|node| Some(node.place()) < last)
        {
            return Ok(false);
        }
        self.lock_sorted(missing).await?;
        Ok(true)
    }

    async fn lock_sorted<const N: usize>(
        &mut self,
        mut nodes: [Option<&Arc<Node>>; N],
    ) -> Result<()> {
        nodes.sort_by_key(|node| node.map(|node| node.place()));
        for node in nodes.into_iter().flatten() {
            if self.get(node.ino).is_some() {
                continue;
            }
            let Some(free) = self.nodes.iter_mut().find(|place| place.is_none()) else {
                return Err(FsError::Invalid {
                    what: "an operation is about four files at most",
                });
            };
            *free = Some(node.lock().await?);
        }
        Ok(())
    }

    fn get(&self, ino: u64) -> Option<&Locked> {
        self.nodes.iter().flatten().find(|node| node.ino == ino)
    }

    /// One of the nodes that are locked.
    ///
    /// # Errors
    /// [`FsError::Stale`], where it is not among them.
    pub(crate) fn of(&self, node: &Node) -> Result<&Locked> {
        self.get(node.ino).ok_or(FsError::Stale { ino: node.ino })
    }
}

/// Locks `next` while `first` is locked.
///
/// # Errors
/// [`FsError::Corrupt`], where `next` does not come after it: the pool names as a file, or as one's
/// extended attributes, what cannot be that. As [`Node::lock`].
pub(crate) async fn lock_after(first: &Locked, next: &Arc<Node>) -> Result<Locked> {
    check_after(first, next)?;
    next.lock().await
}

/// Whether `next` may be locked while `first` is.
///
/// # Errors
/// [`FsError::Corrupt`], as [`lock_after`].
pub(crate) fn check_after(first: &Node, next: &Node) -> Result<()> {
    match next.place() > first.place() {
        true => Ok(()),
        false => Err(FsError::Corrupt {
            ino: first.ino,
            what: "it names a file of the wrong kind as its own",
        }),
    }
}

/// Whether `node` may be an entry of `directory`: attributes are in directories of attributes, and
/// nothing else is. Else it might be the owner of the attributes, which is locked already.
///
/// # Errors
/// [`FsError::Corrupt`], where it is not.
pub(crate) fn check_entry(directory: &Node, node: &Node) -> Result<()> {
    let is_of_xattr = |node: &Node| node.place().0 >= Rank::XattrDirectory;
    match is_of_xattr(directory) == is_of_xattr(node) {
        true => Ok(()),
        false => Err(FsError::Corrupt {
            ino: node.ino,
            what: "it is an entry among extended attributes and is none, or the reverse",
        }),
    }
}
