//! The flags, names and projects that a change depends on.
//!
//! A replay asks only what the tree needs: the rest was permitted when it was done, and flags may
//! be on disk that were taken away by then, since records about other objects come later or not at
//! all (`zfsvfs->z_replay`, module/os/linux/zfs/zfs_acl.c).

use crate::error::{FsError, Result};
use crate::files::Files;
use crate::names::NameRules;
use crate::node::Node;
use crate::opening::Opening;
use crate::znode::{Znode, pflags};

/// Whether a file with one of these flags is not to be changed.
pub(crate) fn is_kept_by(opening: &Opening, node: &Node, flags: u64) -> bool {
    node.znode().flags & flags != 0 && !opening.replaying()
}

/// Whether a new entry may have this name. What the log of a crash says was permitted, if only
/// by properties that say otherwise by now.
pub(crate) fn check_new_name(files: &Files, parent: u64, name: &[u8]) -> Result<()> {
    if files.opening.replaying() {
        let rules = NameRules {
            utf8_only: false,
            ..files.rules
        };
        return rules.check(parent, name, true);
    }
    files
        .rules
        .check(parent, name, files.opening.settings().longname)
}

/// Entries of a directory that passes on its project are of that project (`zfs_rename`,
/// `zfs_link`).
pub(crate) fn same_project(opening: &Opening, directory: &Znode, file: &Znode) -> Result<()> {
    if directory.flags & pflags::PROJINHERIT != 0
        && directory.project.unwrap_or(0) != file.project.unwrap_or(0)
        && !opening.replaying()
    {
        return Err(FsError::CrossDevice);
    }
    Ok(())
}

pub(crate) fn may_change(opening: &Opening, node: &Node) -> Result<()> {
    if is_kept_by(opening, node, pflags::IMMUTABLE | pflags::APPENDONLY) {
        return Err(FsError::NotPermitted {
            ino: node.ino,
            what: "it is immutable or append-only; change that with chattr",
        });
    }
    Ok(())
}

pub(crate) fn may_change_entries(opening: &Opening, directory: &Node) -> Result<()> {
    if directory.znode().links == 0 {
        return Err(FsError::NotFound { ino: directory.ino });
    }
    if is_kept_by(opening, directory, pflags::IMMUTABLE) {
        return Err(FsError::NotPermitted {
            ino: directory.ino,
            what: "the directory is immutable; change that with chattr",
        });
    }
    Ok(())
}

pub(crate) fn may_remove_entries(opening: &Opening, directory: &Node) -> Result<()> {
    may_change_entries(opening, directory)?;
    may_change(opening, directory)
}

pub(crate) fn may_unlink(opening: &Opening, node: &Node) -> Result<()> {
    may_change(opening, node)?;
    if is_kept_by(opening, node, pflags::NOUNLINK) {
        return Err(FsError::NotPermitted {
            ino: node.ino,
            what: "it cannot be unlinked; change that with chattr",
        });
    }
    Ok(())
}
