//! Names: looking up, linking, removing (making: `create`, renaming: `rename`).
//!
//! Every operation is one transaction. A crash leaves it done or not done; what the intent log has
//! of it is done again. A file that loses its last name is put into the delete queue in the same
//! transaction and freed later (see `unlinked`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use dataset::DirtyEstimate;
use format::{Endian, ObjectId};
use object::{Object, Sa};
use zio::Tx;

use crate::acl::Acl;
use crate::data::is_of_xattr;
use crate::error::{FsError, Result};
use crate::filesystem::{Filesystem, join};
use crate::log;
use crate::names::NameRules;
use crate::node::{Locked, Node};
use crate::types::{Attributes, FileKind, Time};
use crate::znode::{self, OldAcl, Znode, attr, dirent, parse_dirent, pflags};

/// Most links that a file can have (`ZFS_LINK_MAX`, module/os/linux/zfs/zfs_vnops_os.c).
pub(crate) const LINKS_MAX: u64 = u64::MAX >> 1;
/// Longest target of a symbolic link (`MAXPATHLEN`).
pub(crate) const TARGET_BYTES_MAX: usize = 4095;

impl Filesystem {
    /// An entry's object and kind. The stored name may differ where names are normalised.
    pub(crate) async fn find(&self, directory: &Node, name: &[u8]) -> Result<Option<(u64, Bytes)>> {
        let zap = directory.entries()?;
        if self.rules.is_plain() {
            let value = zap.lookup_u64(name).await?;
            return Ok(value.map(|value| (parse_dirent(value).0, Bytes::new())));
        }
        let rules = self.rules;
        let found = zap
            .lookup_normalized(name, &move |name| rules.compared_form(name))
            .await?;
        let Some(entry) = found else { return Ok(None) };
        let value = entry.value.as_u64().ok_or(FsError::Corrupt {
            ino: directory.ino,
            what: "an entry is no number",
        })?;
        Ok(Some((parse_dirent(value).0, entry.name)))
    }

    /// Like [`Self::find`], where the entry must be there. Returns the name as it is stored.
    pub(crate) async fn find_existing(
        &self,
        directory: &Node,
        name: &[u8],
    ) -> Result<(u64, Bytes)> {
        let (ino, stored) = self
            .find(directory, name)
            .await?
            .ok_or(FsError::NotFound { ino: directory.ino })?;
        let stored = if stored.is_empty() {
            Bytes::copy_from_slice(name)
        } else {
            stored
        };
        Ok((ino, stored))
    }

    /// The file an entry points to.
    pub(crate) async fn entry_node(&self, directory: &Node, ino: u64) -> Result<Arc<Node>> {
        match self.node(ino).await {
            Err(FsError::Stale { .. }) => Err(FsError::Corrupt {
                ino: directory.ino,
                what: "an entry points to an object that is no file",
            }),
            other => other,
        }
    }

    /// The entry called `name`; `.` and `..` are understood.
    pub async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attributes> {
        let _entered = self.enter().await?;
        let directory = self.node(parent).await?;
        directory.entries()?;
        if name.len() > crate::names::LONG_NAME_BYTES_MAX {
            return Err(self.too_long(name));
        }
        let node = match name {
            b"." => directory,
            b".." => self.node(directory.znode().parent).await?,
            _ => {
                let found = self.find(&directory, name).await?;
                let Some((ino, _)) = found else {
                    // A long name from before `longname` was switched off is still found.
                    return Err(if name.len() > self.name_bytes_max() {
                        self.too_long(name)
                    } else {
                        FsError::NotFound { ino: parent }
                    });
                };
                self.entry_node(&directory, ino).await?
            }
        };
        Ok(self.attributes_of(&node))
    }

    fn too_long(&self, name: &[u8]) -> FsError {
        FsError::NameTooLong {
            length_bytes: name.len(),
            limit_bytes: self.name_bytes_max(),
        }
    }

    /// A file's list of access, if it has one that can be read.
    pub(crate) async fn read_acl(&self, node: &Node) -> Result<Option<Acl>> {
        let corrupt = || FsError::Corrupt {
            ino: node.ino,
            what: "its list of access is damaged",
        };
        let wanted = [attr::DACL_COUNT, attr::DACL_ACES, attr::ZNODE_ACL];
        let found = self.sa.get_many(&node.object, &wanted).await?;
        let [count, aces, old] = <[_; 3]>::try_from(found).map_err(|_| corrupt())?;
        if let Some(aces) = aces {
            let count = count.and_then(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?)));
            return Acl::decode(&aces, count.unwrap_or(u64::MAX))
                .map(Some)
                .ok_or_else(corrupt);
        }
        let Some(old) = old else { return Ok(None) };
        match znode::parse_old_acl(&old).ok_or_else(corrupt)? {
            OldAcl::Embedded(acl) => Ok(Some(acl)),
            OldAcl::External {
                object,
                size_bytes,
                count,
                is_v0,
            } => {
                const EXTERNAL_BYTES_MAX: u64 = 128 << 10;
                if size_bytes > EXTERNAL_BYTES_MAX {
                    return Err(corrupt());
                }
                let object = self.objset.hold(ObjectId::new(object)).await?;
                let bytes = object.read_bytes(0, size_bytes as usize).await?;
                let acl = if is_v0 {
                    Acl::decode_v0(&bytes, count, Endian::Little)
                } else {
                    Acl::decode(&bytes, count)
                };
                acl.map(Some).ok_or_else(corrupt)
            }
        }
    }

    /// Where a symbolic link points.
    pub async fn read_link(&self, ino: u64) -> Result<Bytes> {
        let _entered = self.enter().await?;
        let node = self.node(ino).await?;
        let znode = node.znode();
        if znode.kind() != FileKind::Symlink {
            return Err(FsError::Invalid {
                what: "only symbolic links have a target",
            });
        }
        let target = link_target(&self.sa, &node.object, &znode).await?;
        self.accessed(&node);
        Ok(target)
    }

    /// Gives a file another name.
    pub async fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attributes> {
        let _entered = self.enter_to_change().await?;
        let directory = self.node(parent).await?;
        directory.entries()?;
        self.check_new_name(parent, name)?;
        let node = self.node(ino).await?;
        if node.zap.is_some() {
            return Err(FsError::NotPermitted {
                ino,
                what: "directories have one name; use another kind of link",
            });
        }
        {
            let directory = directory.lock().await?;
            self.may_change_entries(&directory)?;
            let node = node.lock().await?;
            self.may_change(&node)?;
            let before = node.znode();
            if before.links == 0 {
                return Err(FsError::NotFound { ino });
            }
            if before.links >= LINKS_MAX {
                return Err(FsError::TooManyLinks { ino });
            }
            self.same_project(&directory.znode(), &before)?;
            if self.find(&directory, name).await?.is_some() {
                return Err(FsError::Exists { ino: parent });
            }
            let outlives = self.outlives_crash(&directory).await?;
            let tx = self.assign(DirtyEstimate::metadata()).await?;
            let value = dirent(ino, before.kind(), self.version);
            directory.entries()?.add_u64(&tx, name, value).await?;
            let mut changed = touched(before, self.now(), self.uses_fuids());
            changed.links += 1;
            changed.parent = parent;
            let list = [attr::LINKS, attr::PARENT, attr::FLAGS, attr::CTIME];
            self.store(&tx, &node, changed, &list, []).await?;
            let mut changed = parent_changed(directory.znode(), self.now(), self.uses_fuids());
            changed.size = changed.size.saturating_add(1);
            self.store(&tx, &directory, changed, &PARENT_ATTRIBUTES, [])
                .await?;
            if outlives {
                self.record(&tx, log::linked(parent, ino, name));
            }
        }
        self.finish(ino).await?;
        Ok(self.attributes_of(&node))
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
        let _entered = self.enter_to_change().await?;
        let directory = self.node(parent).await?;
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
        let ino = self.remove_in(&directory, name, is_directory).await?;
        self.finish(ino).await
    }

    /// Removes an entry of a directory. Returns the object that it was.
    pub(crate) async fn remove_in(
        &self,
        directory: &Arc<Node>,
        name: &[u8],
        is_directory: bool,
    ) -> Result<u64> {
        let (ino, last) = {
            let directory = directory.lock().await?;
            self.may_remove_entries(&directory)?;
            let (ino, stored) = self.find_existing(&directory, name).await?;
            let node = self.entry_node(&directory, ino).await?.lock().await?;
            self.check_removable(&node, is_directory).await?;
            let outlives = self.outlives_crash(&directory).await?;
            let last = node.znode().links <= 1 || is_directory;
            let _queue = if last {
                Some(self.unlinked_lock.lock().await)
            } else {
                None
            };
            let tx = self.assign(DirtyEstimate::free()).await?;
            directory.entries()?.remove(&tx, &stored).await?;
            self.drop_link(&tx, &node).await?;
            let mut changed = parent_changed(directory.znode(), self.now(), self.uses_fuids());
            changed.size = changed.size.saturating_sub(1);
            changed.links = changed.links.saturating_sub(u64::from(is_directory));
            self.store(&tx, &directory, changed, &PARENT_ATTRIBUTES, [])
                .await?;
            if outlives {
                self.record(&tx, log::removed(is_directory, directory.ino, ino, &stored));
            }
            (ino, last)
        };
        if last && !self.nodes.is_retained(ino) {
            self.spawn_reap(ino);
        }
        Ok(ino)
    }

    /// Takes one link from a file; without any left it goes into the delete queue, whose lock must
    /// be held then.
    pub(crate) async fn drop_link(&self, tx: &Tx, node: &Locked) -> Result<()> {
        let before = node.znode();
        let last = before.is_directory() || before.links <= 1;
        if last {
            let changed = Znode { links: 0, ..before };
            self.store(tx, node, changed, &[attr::LINKS], []).await?;
            return self.enqueue(tx, node.ino).await;
        }
        let mut changed = touched(before, self.now(), self.uses_fuids());
        changed.links -= 1;
        self.store(
            tx,
            node,
            changed,
            &[attr::LINKS, attr::CTIME, attr::FLAGS],
            [],
        )
        .await
    }

    /// Whether the log is being replayed.
    pub(crate) fn replaying(&self) -> bool {
        self.is_replaying.load(Ordering::Acquire)
    }
}

/// What is stored of a directory whose entries changed.
pub(crate) const PARENT_ATTRIBUTES: [object::SaAttribute; 5] = [
    attr::SIZE,
    attr::LINKS,
    attr::MTIME,
    attr::CTIME,
    attr::FLAGS,
];

/// A directory after its entries changed.
pub(crate) fn parent_changed(znode: Znode, now: Time, archive: bool) -> Znode {
    let flags = if archive {
        pflags::ARCHIVE | pflags::AV_MODIFIED
    } else {
        0
    };
    Znode {
        mtime: now,
        ctime: now,
        flags: znode.flags | flags,
        ..znode
    }
}

/// A file after its attributes changed.
pub(crate) fn touched(znode: Znode, now: Time, archive: bool) -> Znode {
    let flags = if archive { pflags::ARCHIVE } else { 0 };
    Znode {
        ctime: now,
        flags: znode.flags | flags,
        ..znode
    }
}

/// What a change of names asks. A replay asks only what the tree needs: the rest was permitted when
/// it was done, and flags may be on disk that were taken away by then, since records about other
/// objects come later or not at all (`zfsvfs->z_replay`, module/os/linux/zfs/zfs_acl.c).
impl Filesystem {
    /// Whether a file with one of these flags is not to be changed.
    pub(crate) fn is_kept_by(&self, node: &Node, flags: u64) -> bool {
        node.znode().flags & flags != 0 && !self.replaying()
    }

    /// Whether a new entry may have this name. What the log of a crash says was permitted, if only
    /// by properties that say otherwise by now.
    pub(crate) fn check_new_name(&self, parent: u64, name: &[u8]) -> Result<()> {
        if self.replaying() {
            let rules = NameRules {
                utf8_only: false,
                ..self.rules
            };
            return rules.check(parent, name, true);
        }
        self.rules.check(parent, name, self.settings().longname)
    }

    /// Entries of a directory that passes on its project are of that project (`zfs_rename`,
    /// `zfs_link`).
    pub(crate) fn same_project(&self, directory: &Znode, file: &Znode) -> Result<()> {
        if directory.flags & pflags::PROJINHERIT != 0
            && directory.project.unwrap_or(0) != file.project.unwrap_or(0)
            && !self.replaying()
        {
            return Err(FsError::CrossDevice);
        }
        Ok(())
    }

    fn may_change(&self, node: &Node) -> Result<()> {
        if self.is_kept_by(node, pflags::IMMUTABLE | pflags::APPENDONLY) {
            return Err(FsError::NotPermitted {
                ino: node.ino,
                what: "it is immutable or append-only; change that with chattr",
            });
        }
        Ok(())
    }

    pub(crate) fn may_change_entries(&self, directory: &Node) -> Result<()> {
        if directory.znode().links == 0 {
            return Err(FsError::NotFound { ino: directory.ino });
        }
        if self.is_kept_by(directory, pflags::IMMUTABLE) {
            return Err(FsError::NotPermitted {
                ino: directory.ino,
                what: "the directory is immutable; change that with chattr",
            });
        }
        Ok(())
    }

    pub(crate) fn may_remove_entries(&self, directory: &Node) -> Result<()> {
        self.may_change_entries(directory)?;
        self.may_change(directory)
    }

    pub(crate) fn may_unlink(&self, node: &Node) -> Result<()> {
        self.may_change(node)?;
        if self.is_kept_by(node, pflags::NOUNLINK) {
            return Err(FsError::NotPermitted {
                ino: node.ino,
                what: "it cannot be unlinked; change that with chattr",
            });
        }
        Ok(())
    }

    async fn check_removable(&self, node: &Locked, is_directory: bool) -> Result<()> {
        self.may_unlink(node)?;
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

    /// Whether a file is there after a crash now: one that has no name is not, nor are the extended
    /// attributes of one. What is done to it is not logged, since a replay would not find it
    /// (`zfs_xattr_owner_unlinked`, module/zfs/zfs_log.c). Ask before the transaction.
    pub(crate) async fn outlives_crash(&self, node: &Node) -> Result<bool> {
        let mut znode = node.znode();
        // A file of attributes, their directory, whose they are.
        for _ in 0..2 {
            if znode.links == 0 || !is_of_xattr(&znode) {
                break;
            }
            znode = match self.node(znode.parent).await {
                Ok(above) => above.znode(),
                Err(FsError::Stale { .. }) => return Ok(false),
                Err(error) => return Err(error),
            };
        }
        Ok(znode.links > 0)
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
