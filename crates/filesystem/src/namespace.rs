//! Names: looking up, making, linking, removing (renaming: `rename`).
//!
//! Every operation is one transaction. A crash leaves it done or not done; what the intent log has
//! of it is done again. A file that loses its last name is put into the delete queue in the same
//! transaction and freed later (see `unlinked`).

use bytes::Bytes;
use dataset::DirtyEstimate;
use object::{Object, Sa};

use crate::access_times::accessed;
use crate::changes::Change;
use crate::checks::{check_new_name, may_change, may_change_entries, same_project};
use crate::content::join;
use crate::create::{Make, make_in};
use crate::entries::{find, found_node};
use crate::error::{FsError, Result};
use crate::filesystem::Filesystem;
use crate::locking::lock_after;
use crate::log;
use crate::opening::Opening;
use crate::remove::remove_in;
use crate::types::{Attributes, Caller, FileKind};
use crate::znode::{
    self, LINKS_MAX, PARENT_ATTRIBUTES, Znode, attr, dirent, encode_rdev, parent_changed, pflags,
    touched,
};

/// Longest target of a symbolic link (`MAXPATHLEN`).
const TARGET_BYTES_MAX: usize = 4095;

impl Filesystem {
    /// The entry called `name`; `.` and `..` are understood.
    pub async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attributes> {
        let _entered = self.opening.enter().await?;
        let directory = self.files.node(parent).await?;
        directory.entries()?;
        if let Some(listing) = &directory.listing {
            listing.is_looked_into();
        }
        if name.len() > crate::names::LONG_NAME_BYTES_MAX {
            return Err(too_long(&self.opening, name));
        }
        let node = match name {
            b"." => directory,
            b".." => self.files.node(directory.znode().parent).await?,
            _ => {
                let found = found_node(&self.files, &directory, name).await?;
                let Some(node) = found else {
                    // A long name from before `longname` was switched off is still found.
                    return Err(if name.len() > self.opening.name_bytes_max() {
                        too_long(&self.opening, name)
                    } else {
                        FsError::NotFound { ino: parent }
                    });
                };
                node
            }
        };
        Ok(self.files.attributes_of(&node))
    }

    /// Where a symbolic link points.
    pub async fn read_link(&self, ino: u64) -> Result<Bytes> {
        let _entered = self.opening.enter().await?;
        let node = self.files.node(ino).await?;
        let znode = node.znode();
        if znode.kind() != FileKind::Symlink {
            return Err(FsError::Invalid {
                what: "only symbolic links have a target",
            });
        }
        let target = link_target(&self.files.sa, &node.object, &znode).await?;
        accessed(&self.opening, &node);
        Ok(target)
    }

    /// Makes a regular file; fails if the name exists.
    pub async fn create(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        caller: Caller,
    ) -> Result<Attributes> {
        self.make(parent, name, Make::new(FileKind::Regular, mode, caller))
            .await
    }

    /// Makes a directory.
    pub async fn make_directory(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        caller: Caller,
    ) -> Result<Attributes> {
        self.make(parent, name, Make::new(FileKind::Directory, mode, caller))
            .await
    }

    /// Makes a fifo, socket, device or regular file; `rdev` is (major, minor).
    pub async fn make_node(
        &self,
        parent: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: (u32, u32),
        caller: Caller,
    ) -> Result<Attributes> {
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid {
                what: "directories and links are made in other ways",
            });
        }
        let rdev = if kind.is_device() {
            encode_rdev(rdev)
        } else {
            0
        };
        self.make(
            parent,
            name,
            Make {
                rdev,
                ..Make::new(kind, mode, caller)
            },
        )
        .await
    }

    /// Makes a symbolic link.
    pub async fn symlink(
        &self,
        parent: u64,
        name: &[u8],
        target: &[u8],
        caller: Caller,
    ) -> Result<Attributes> {
        if target.is_empty() || target.contains(&0) {
            return Err(FsError::Invalid {
                what: "a link's target is not empty and has no NUL",
            });
        }
        if target.len() > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong {
                length_bytes: target.len(),
                limit_bytes: TARGET_BYTES_MAX,
            });
        }
        let make = Make {
            target: Some(target),
            ..Make::new(FileKind::Symlink, 0o777, caller)
        };
        self.make(parent, name, make).await
    }

    async fn make(&self, parent: u64, name: &[u8], make: Make<'_>) -> Result<Attributes> {
        let _entered = self.opening.enter_to_change().await?;
        let directory = self.files.node(parent).await?;
        directory.entries()?;
        check_new_name(&self.files, parent, name)?;
        let (mode, access, default) = self
            .xattrs
            .inherited_lists(&directory, make.kind, make.mode, make.caller.umask)
            .await?;
        let node = make_in(
            &self.files,
            &self.quotas,
            &directory,
            name,
            &Make { mode, ..make },
        )
        .await?;
        self.xattrs.give_lists(&node, access, default).await?;
        self.files.finish(node.ino).await?;
        Ok(self.files.attributes_of(&node))
    }

    /// Gives a file another name.
    pub async fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attributes> {
        let _entered = self.opening.enter_to_change().await?;
        let directory = self.files.node(parent).await?;
        directory.entries()?;
        check_new_name(&self.files, parent, name)?;
        let node = self.files.node(ino).await?;
        if node.zap.is_some() {
            return Err(FsError::NotPermitted {
                ino,
                what: "directories have one name; use another kind of link",
            });
        }
        {
            let directory = directory.lock().await?;
            may_change_entries(&self.opening, &directory)?;
            if (directory.znode().flags ^ node.znode().flags) & pflags::XATTR != 0 {
                return Err(FsError::Invalid {
                    what: "files and extended attributes do not mix",
                });
            }
            let node = lock_after(&directory, &node).await?;
            may_change(&self.opening, &node)?;
            let before = node.znode();
            if before.links == 0 {
                return Err(FsError::NotFound { ino });
            }
            if before.links >= LINKS_MAX {
                return Err(FsError::TooManyLinks { ino });
            }
            same_project(&self.opening, &directory.znode(), &before)?;
            if find(self.files.rules, &directory, name).await?.is_some() {
                return Err(FsError::Exists { ino: parent });
            }
            let outlives = self.files.outlives_crash(&directory).await?;
            let tx = self.files.assign(DirtyEstimate::metadata()).await?;
            let value = dirent(ino, before.kind(), self.files.version);
            directory.entries()?.add_u64(&tx, name, value).await?;
            self.files.tell(Change::Name {
                directory: parent,
                name,
                before: None,
            });
            let mut changed = touched(before, self.opening.now(), self.files.uses_fuids());
            changed.links += 1;
            changed.parent = parent;
            let list = [attr::LINKS, attr::PARENT, attr::FLAGS, attr::CTIME];
            self.files.store(&tx, &node, changed, &list, []).await?;
            let mut changed = parent_changed(
                directory.znode(),
                self.opening.now(),
                self.files.uses_fuids(),
            );
            changed.size = changed.size.saturating_add(1);
            self.files
                .store(&tx, &directory, changed, &PARENT_ATTRIBUTES, [])
                .await?;
            if outlives {
                self.files.record(&tx, log::linked(parent, ino, name));
            }
        }
        self.files.finish(ino).await?;
        Ok(self.files.attributes_of(&node))
    }

    /// Removes a name that is not a directory's.
    pub async fn unlink(&self, parent: u64, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false).await
    }

    /// Removes an empty directory.
    pub async fn remove_directory(&self, parent: u64, name: &[u8]) -> Result<()> {
        self.remove(parent, name, true).await
    }

    async fn remove(&self, parent: u64, name: &[u8], is_directory: bool) -> Result<()> {
        let _entered = self.opening.enter_to_change().await?;
        let directory = self.files.node(parent).await?;
        directory.entries()?;
        match name {
            b"." => {
                return Err(FsError::Invalid {
                    what: "'.' cannot be removed; remove the directory by its name",
                });
            }
            b".." => return Err(FsError::NotEmpty { ino: parent }),
            _ => {}
        }
        let ino = remove_in(&self.files, &self.unlinked, &directory, name, is_directory).await?;
        self.files.finish(ino).await
    }
}

fn too_long(opening: &Opening, name: &[u8]) -> FsError {
    FsError::NameTooLong {
        length_bytes: name.len(),
        limit_bytes: opening.name_bytes_max(),
    }
}

/// Where a symbolic link points.
pub(crate) async fn link_target(sa: &Sa, object: &Object, znode: &Znode) -> Result<Bytes> {
    let corrupt = || FsError::Corrupt {
        ino: object.id().get(),
        what: "its target is missing",
    };
    if let Some(target) = sa.get(object, attr::SYMLINK).await? {
        return Ok(target);
    }
    let length = usize::try_from(znode.size).map_err(|_| corrupt())?;
    if length > TARGET_BYTES_MAX + 1 {
        return Err(corrupt());
    }
    if znode.is_old {
        let bonus = object.bonus();
        let end = znode::OLD_ZNODE_BYTES + length;
        if bonus.len() >= end {
            return Ok(bonus.slice(znode::OLD_ZNODE_BYTES..end));
        }
    }
    Ok(join(object.read(0, length).await?))
}
