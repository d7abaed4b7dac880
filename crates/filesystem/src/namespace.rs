//! Names: looking up, making, linking, removing, renaming.
//!
//! Every operation is one transaction. A crash leaves it done or not done; what the intent log has
//! of it is done again. A file that loses its last name is put into the delete queue in the same
//! transaction and freed later (see `unlinked`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use dataset::DirtyEstimate;
use format::{ObjectId, ObjectType};
use object::{NewObject, Object, Sa, Zap, ZapOptions};
use pool::Tx;

use crate::acl::Acl;
use crate::error::{FsError, Result};
use crate::filesystem::{Filesystem, join};
use crate::log::{self, kind};
use crate::node::{Locked, Node};
use crate::types::{Attributes, Caller, FileKind, RenameMode, Time};
use crate::znode::{
    self, Attribute, OldAcl, Znode, attr, dirent, encode_rdev, parse_dirent, pflags,
};

/// Most links that a file can have (`ZFS_LINK_MAX`, module/os/linux/zfs/zfs_vnops_os.c).
const LINKS_MAX: u64 = u64::MAX >> 1;
/// Longest target of a symbolic link (`MAXPATHLEN`).
const TARGET_BYTES_MAX: usize = 4095;

/// What replaying a log says about the object to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replayed {
    pub(crate) ino: u64,
    pub(crate) slots: u8,
    pub(crate) generation: u64,
    pub(crate) time: Time,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
}

/// What to make.
pub(crate) struct Make<'a> {
    pub(crate) kind: FileKind,
    /// Permissions and set-id bits.
    pub(crate) mode: u32,
    pub(crate) rdev: u64,
    pub(crate) target: Option<&'a [u8]>,
    pub(crate) caller: Caller,
    pub(crate) replayed: Option<Replayed>,
    /// A list of access given in a log record, in place of the one that follows from the mode.
    pub(crate) acl: Option<Acl>,
    /// Flags of the upper half given in a log record.
    pub(crate) flags: u64,
}

impl Make<'_> {
    pub(crate) fn new(kind: FileKind, mode: u32, caller: Caller) -> Self {
        Self {
            kind,
            mode: mode & 0o7777,
            rdev: 0,
            target: None,
            caller,
            replayed: None,
            acl: None,
            flags: 0,
        }
    }
}

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
    async fn find_existing(&self, directory: &Node, name: &[u8]) -> Result<(u64, Bytes)> {
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
    async fn entry_node(&self, directory: &Node, ino: u64) -> Result<Arc<Node>> {
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

    pub(crate) async fn make(
        &self,
        parent: u64,
        name: &[u8],
        make: Make<'_>,
    ) -> Result<Attributes> {
        let _entered = self.enter_to_change().await?;
        let directory = self.node(parent).await?;
        directory.entries()?;
        self.rules.check(parent, name, self.settings().longname)?;
        let (mode, access, default) = self
            .inherited_lists(&directory, make.kind, make.mode, make.caller.umask)
            .await?;
        let node = self
            .make_in(&directory, name, &Make { mode, ..make })
            .await?;
        self.give_lists(&node, access, default).await?;
        self.finish(node.ino).await?;
        Ok(self.attributes_of(&node))
    }

    /// Makes a file in a directory.
    pub(crate) async fn make_in(
        &self,
        directory: &Arc<Node>,
        name: &[u8],
        make: &Make<'_>,
    ) -> Result<Arc<Node>> {
        let directory = directory.lock().await?;
        may_change_entries(&directory)?;
        if self.find(&directory, name).await?.is_some() {
            return Err(FsError::Exists { ino: directory.ino });
        }
        self.make_entry(&directory, name, make).await
    }

    /// The attributes that a new file in `directory` gets, and its list of access.
    async fn new_znode(&self, directory: &Node, make: &Make<'_>, txg: u64) -> Result<(Znode, Acl)> {
        let parent = directory.znode();
        let is_directory = make.kind == FileKind::Directory;
        let mut uid = u64::from(make.caller.uid);
        let mut gid = u64::from(make.caller.gid);
        let mut mode = make.mode;
        if let Some(replayed) = &make.replayed {
            (uid, gid) = (replayed.uid, replayed.gid);
        } else if parent.mode & 0o2000 != 0 {
            // Entries of a set-group-id directory are of its group, and subdirectories pass it on.
            gid = parent.gid;
            if is_directory {
                mode |= 0o2000;
            }
        }
        let time = make
            .replayed
            .map_or_else(|| self.now(), |replayed| replayed.time);
        let mut flags = make.flags;
        if self.uses_fuids() {
            flags |= pflags::ARCHIVE | pflags::AV_MODIFIED;
        }
        let project = self.has_projects().then(|| inherited_project(&parent));
        if project.is_some() {
            flags |= pflags::PROJID;
        }
        if parent.flags & pflags::PROJINHERIT != 0
            && matches!(make.kind, FileKind::Regular | FileKind::Directory)
        {
            flags |= pflags::PROJINHERIT;
        }
        flags |= parent.flags & pflags::XATTR;
        let acl = match &make.acl {
            Some(acl) => {
                if acl.is_trivial() {
                    flags |= pflags::ACL_TRIVIAL;
                }
                if acl.has_inheritable() {
                    flags |= pflags::INHERIT_ACE;
                }
                acl.clone()
            }
            None => {
                if is_directory {
                    flags |= pflags::ACL_AUTO_INHERIT;
                }
                let inherits =
                    parent.flags & pflags::INHERIT_ACE != 0 && parent.flags & pflags::XATTR == 0;
                let list = if inherits {
                    self.read_acl(directory).await?
                } else {
                    None
                };
                match list {
                    Some(list) if make.kind != FileKind::Symlink => {
                        let acl = list.inherited(mode, is_directory);
                        if acl.is_trivial() {
                            flags |= pflags::ACL_TRIVIAL;
                        }
                        if acl.has_inheritable() {
                            flags |= pflags::INHERIT_ACE;
                        }
                        acl
                    }
                    _ => {
                        flags |= pflags::ACL_TRIVIAL;
                        Acl::trivial(mode, is_directory)
                    }
                }
            }
        };
        if acl.execution_is_free() {
            flags |= pflags::NO_EXECS_DENIED;
        }
        let znode = Znode {
            mode: make.kind.mode_bits() | mode,
            size: match make.kind {
                FileKind::Directory => 2,
                FileKind::Symlink => make.target.map_or(0, |target| target.len() as u64),
                _ => 0,
            },
            generation: make.replayed.map_or(txg, |replayed| replayed.generation),
            uid,
            gid,
            parent: directory.ino,
            flags,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            links: if is_directory { 2 } else { 1 },
            rdev: make.rdev,
            xattr: 0,
            project,
            is_old: self.version < znode::ZPL_VERSION_SA,
        };
        Ok((znode, acl))
    }

    /// Allocates an object with these attributes. Returns it with its entries, if a directory.
    pub(crate) async fn new_object(
        &self,
        tx: &Tx,
        make: &Make<'_>,
        znode: &Znode,
        acl: &Acl,
    ) -> Result<(Object, Option<Zap>)> {
        let slots = match &make.replayed {
            Some(replayed) => replayed.slots,
            None => dnode_slots(self.settings().dnodesize),
        };
        let claim = make.replayed.map(|replayed| ObjectId::new(replayed.ino));
        let (bonus_type, bonus) = if znode.is_old {
            (
                ObjectType::ZNODE,
                Bytes::from_static(&[0; znode::OLD_ZNODE_BYTES]),
            )
        } else {
            (ObjectType::SA, Bytes::new())
        };
        let (object, zap) = if znode.is_directory() {
            let mut options = ZapOptions::new(ObjectType::DIRECTORY_CONTENTS);
            options.bonus_type = bonus_type;
            options.bonus = bonus;
            options.slots = slots;
            options.normalization = self.rules.norm_flags;
            options.claim = claim;
            let zap = self.with_rules(Zap::create(&self.objset, tx, options).await?);
            (zap.object().clone(), Some(zap))
        } else {
            let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS)
                .with_bonus(bonus_type, bonus)
                .with_slots(slots);
            let object = match claim {
                Some(id) => self.objset.claim(tx, id, new).await?,
                None => self.objset.allocate(tx, new).await?,
            };
            (object, None)
        };
        let mut template = znode.template(acl, self.version);
        if let Some(target) = make.target {
            if znode.is_old {
                // After the znode if it fits into the bonus, else as the file's data
                // (`zfs_sa_symlink`); see `read_link`.
                let bonus: Vec<u8> = template
                    .iter()
                    .flat_map(|(_, bytes)| bytes.to_vec())
                    .collect();
                if bonus.len() + target.len() <= format::OLD_MAX_BONUS_BYTES {
                    object.set_bonus(tx, [&bonus[..], target].concat())?;
                } else {
                    object.set_bonus(tx, bonus)?;
                    let block_bytes = (target.len() as u32).div_ceil(512) * 512;
                    object.set_block_size(tx, block_bytes, 0).await?;
                    object.write(tx, 0, Bytes::copy_from_slice(target)).await?;
                }
                return Ok((object, zap));
            }
            template.push((attr::SYMLINK, Bytes::copy_from_slice(target)));
        }
        if znode.is_old {
            let bonus: Vec<u8> = template
                .iter()
                .flat_map(|(_, bytes)| bytes.to_vec())
                .collect();
            object.set_bonus(tx, bonus)?;
        } else {
            self.sa.replace_all(&object, tx, &template).await?;
        }
        Ok((object, zap))
    }

    /// Makes a file and its entry, in one transaction.
    async fn make_entry(
        &self,
        directory: &Locked,
        name: &[u8],
        make: &Make<'_>,
    ) -> Result<Arc<Node>> {
        if directory.znode().links >= LINKS_MAX && make.kind == FileKind::Directory {
            return Err(FsError::TooManyLinks { ino: directory.ino });
        }
        let parent = directory.znode();
        let project = if self.has_projects() {
            inherited_project(&parent)
        } else {
            0
        };
        let gid = if parent.mode & 0o2000 != 0 {
            parent.gid
        } else {
            u64::from(make.caller.gid)
        };
        self.quotas
            .check_objects(self, u64::from(make.caller.uid), gid, project)
            .await?;
        // What may wait for the disk is done before the txg is held.
        let (mut znode, acl) = self.new_znode(directory, make, 0).await?;
        let tx = self.assign(DirtyEstimate::metadata()).await?;
        if make.replayed.is_none() {
            znode.generation = tx.txg().get();
        }
        let (object, zap) = self.new_object(&tx, make, &znode, &acl).await?;
        let ino = object.id().get();
        let value = dirent(ino, make.kind, self.version);
        if let Err(error) = directory.entries()?.add_u64(&tx, name, value).await {
            // Nothing refers to the object yet.
            self.objset.free(&tx, object.id()).await?;
            return Err(error.into());
        }
        let mut changed = parent_changed(directory.znode(), self.now(), self.uses_fuids());
        changed.size += 1;
        changed.links += u64::from(make.kind == FileKind::Directory);
        self.store(&tx, directory, changed, &PARENT_ATTRIBUTES, [])
            .await?;
        let record_kind = match make.kind {
            FileKind::Directory => kind::MKDIR,
            FileKind::Symlink => kind::SYMLINK,
            _ => kind::CREATE,
        };
        let slots = object.info().slots;
        let record = log::created(
            record_kind,
            directory.ino,
            ino,
            slots,
            &znode,
            name,
            make.target,
        );
        let node = Node::new(ino, object, zap, znode);
        self.nodes.insert_new(Arc::clone(&node));
        self.record(&tx, record);
        Ok(node)
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
                    Acl::decode_v0(&bytes, count)
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
        link_target(&self.sa, &node.object, &znode).await
    }

    /// Gives a file another name.
    pub async fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attributes> {
        let _entered = self.enter_to_change().await?;
        let directory = self.node(parent).await?;
        directory.entries()?;
        self.rules.check(parent, name, self.settings().longname)?;
        let node = self.node(ino).await?;
        if node.zap.is_some() {
            return Err(FsError::NotPermitted {
                ino,
                what: "directories have one name; use another kind of link",
            });
        }
        {
            let directory = directory.lock().await?;
            may_change_entries(&directory)?;
            let node = node.lock().await?;
            may_change(&node)?;
            let before = node.znode();
            if before.links == 0 {
                return Err(FsError::NotFound { ino });
            }
            if before.links >= LINKS_MAX {
                return Err(FsError::TooManyLinks { ino });
            }
            same_project(&directory.znode(), &before)?;
            if self.find(&directory, name).await?.is_some() {
                return Err(FsError::Exists { ino: parent });
            }
            let tx = self.assign(DirtyEstimate::metadata()).await?;
            let value = dirent(ino, before.kind(), self.version);
            directory.entries()?.add_u64(&tx, name, value).await?;
            let mut changed = touched(before, self.now(), self.uses_fuids());
            changed.links += 1;
            changed.parent = parent;
            let list = [attr::LINKS, attr::PARENT, attr::FLAGS, attr::CTIME];
            self.store(&tx, &node, changed, &list, []).await?;
            let mut changed = parent_changed(directory.znode(), self.now(), self.uses_fuids());
            changed.size += 1;
            self.store(&tx, &directory, changed, &PARENT_ATTRIBUTES, [])
                .await?;
            self.record(&tx, log::linked(parent, ino, name));
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
            may_remove_entries(&directory)?;
            let (ino, stored) = self.find_existing(&directory, name).await?;
            let node = self.entry_node(&directory, ino).await?.lock().await?;
            check_removable(&node, is_directory).await?;
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
            let record_kind = if is_directory {
                kind::RMDIR
            } else {
                kind::REMOVE
            };
            self.record(&tx, log::removed(record_kind, directory.ino, ino, &stored));
            (ino, last)
        };
        if last && !self.nodes.is_retained(ino) {
            self.spawn_reap(ino);
        }
        Ok(ino)
    }

    /// Takes one link from a file; without any left it goes into the delete queue, whose lock must
    /// be held then.
    async fn drop_link(&self, tx: &Tx, node: &Locked) -> Result<()> {
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

    /// Renames.
    pub async fn rename(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let _entered = self.enter_to_change().await?;
        let source = self.node(parent).await?;
        let target = self.node(new_parent).await?;
        source.entries()?;
        target.entries()?;
        if matches!(name, b"." | b"..") || matches!(new_name, b"." | b"..") {
            return Err(FsError::Invalid {
                what: "'.' and '..' cannot be renamed",
            });
        }
        self.rules
            .check(new_parent, new_name, self.settings().longname)?;
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
        let source_above = cross && self.is_within(&target, parent).await?;
        let target_above = cross && !source_above && self.is_within(&source, new_parent).await?;
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
        let outcome = self
            .rename_locked(
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
            && !self.nodes.is_retained(removed)
        {
            self.spawn_reap(removed);
        }
        self.finish(ino).await
    }

    /// Whether `directory` is `ancestor` or below it. Stable while `renames` is locked.
    async fn is_within(&self, directory: &Arc<Node>, ancestor: u64) -> Result<bool> {
        /// Deeper than any path; ends loops in damaged trees.
        const DEPTH_MAX: u32 = 1 << 20;
        let mut node = Arc::clone(directory);
        for _ in 0..DEPTH_MAX {
            if node.ino == ancestor {
                return Ok(true);
            }
            let parent = node.znode().parent;
            if node.ino == self.root || parent == node.ino {
                return Ok(false);
            }
            node = self.node(parent).await?;
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
        &self,
        source: &mut Locked,
        name: &[u8],
        target: Option<&mut Locked>,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Option<(u64, Option<u64>)>> {
        let target: Option<&Locked> = target.map(|locked| &*locked);
        let source: &Locked = source;
        let into: &Locked = target.unwrap_or(source);
        may_remove_entries(source)?;
        may_change_entries(into)?;
        let (ino, stored) = self.find_existing(source, name).await?;
        let existing = self.find(into, new_name).await?;
        if existing.is_some() && mode == RenameMode::NoReplace {
            return Err(FsError::Exists { ino: into.ino });
        }
        if existing.is_none() && mode == RenameMode::Exchange {
            return Err(FsError::NotFound { ino: into.ino });
        }
        let node = self.entry_node(source, ino).await?;
        let victim = match &existing {
            Some((victim, _)) => Some(self.entry_node(into, *victim).await?),
            None => None,
        };
        if let Some(victim) = &victim
            && victim.ino == ino
        {
            // Two names of one file: nothing happens (POSIX), except that a change of case does.
            let same_entry = source.ino == into.ino
                && existing.as_ref().is_some_and(|(_, other)| *other == stored);
            let rewrites = same_entry && !self.rules.is_plain() && stored != new_name;
            if !rewrites {
                return Ok(None);
            }
        }
        let victim = victim.filter(|victim| victim.ino != ino);
        let is_directory = node.zap.is_some();
        if target.is_some() {
            if is_directory && self.is_within(&into.node, ino).await? {
                return Err(FsError::Invalid {
                    what: "a directory cannot become its own child",
                });
            }
            if let Some(victim) = &victim
                && victim.zap.is_some()
                && self.is_within(&source.node, victim.ino).await?
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
        may_unlink(&node)?;
        same_project(&into.znode(), &node.znode())?;
        if let Some(victim) = &victim {
            may_unlink(victim)?;
            if mode == RenameMode::Exchange {
                same_project(&source.znode(), &victim.znode())?;
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
        let loses_last = !exchange
            && victim
                .as_ref()
                .is_some_and(|victim| victim.zap.is_some() || victim.znode().links <= 1);
        let queue = if loses_last {
            Some(self.unlinked_lock.lock().await)
        } else {
            None
        };
        let estimate = if loses_last {
            DirtyEstimate::free()
        } else {
            DirtyEstimate::metadata()
        };
        let tx = self.assign(estimate).await?;
        let value = dirent(ino, node.znode().kind(), self.version);
        if exchange && let (Some(victim), Some((_, other))) = (&victim, &existing) {
            let other: &[u8] = if other.is_empty() { new_name } else { other };
            let back = dirent(victim.ino, victim.znode().kind(), self.version);
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
        // The files: where they are now, and when that changed.
        let now = self.now();
        let moved = [attr::PARENT, attr::FLAGS, attr::CTIME];
        let mut changed = touched(node.znode(), now, self.uses_fuids());
        changed.parent = into.ino;
        self.store(&tx, &node, changed, &moved, []).await?;
        if let Some(victim) = &victim {
            if exchange {
                let mut changed = touched(victim.znode(), now, self.uses_fuids());
                changed.parent = source.ino;
                self.store(&tx, victim, changed, &moved, []).await?;
            } else {
                self.drop_link(&tx, victim).await?;
            }
        }
        // The directories: entries and subdirectories.
        let victim_directory = u64::from(victim.as_ref().is_some_and(|v| v.zap.is_some()));
        let moved_directory = u64::from(is_directory);
        let mut here = parent_changed(source.znode(), now, self.uses_fuids());
        if target.is_some() {
            let mut there = parent_changed(into.znode(), now, self.uses_fuids());
            if exchange {
                here.links = (here.links + victim_directory).saturating_sub(moved_directory);
                there.links = (there.links + moved_directory).saturating_sub(victim_directory);
            } else {
                here.size = here.size.saturating_sub(1);
                here.links = here.links.saturating_sub(moved_directory);
                there.size += u64::from(existing.is_none());
                there.links = (there.links + moved_directory).saturating_sub(victim_directory);
            }
            self.store(&tx, into, there, &PARENT_ATTRIBUTES, []).await?;
        } else if !exchange && victim.is_some() {
            here.size = here.size.saturating_sub(1);
            here.links = here.links.saturating_sub(victim_directory);
        }
        self.store(&tx, source, here, &PARENT_ATTRIBUTES, [])
            .await?;
        self.record(
            &tx,
            log::renamed(exchange, source.ino, &stored, into.ino, new_name, ino),
        );
        drop(queue);
        Ok(Some((
            ino,
            loses_last.then(|| victim.map(|v| v.ino)).flatten(),
        )))
    }

    /// Makes a file that has no name yet: a directory of extended attributes. The caller links it.
    pub(crate) async fn new_xattr_directory(
        &self,
        tx: &Tx,
        owner: &Locked,
        replayed: Option<Replayed>,
    ) -> Result<Arc<Node>> {
        let of = owner.znode();
        let mut make = Make::new(FileKind::Directory, 0o1777, Caller::ROOT);
        make.replayed = replayed;
        make.flags = pflags::XATTR;
        let (mut znode, acl) = self.new_znode(owner, &make, tx.txg().get()).await?;
        if replayed.is_none() {
            (znode.uid, znode.gid) = (of.uid, of.gid);
        }
        let (object, zap) = self.new_object(tx, &make, &znode, &acl).await?;
        let node = Node::new(object.id().get(), object, zap, znode);
        self.nodes.insert_new(Arc::clone(&node));
        Ok(node)
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

fn inherited_project(parent: &Znode) -> u64 {
    if parent.flags & pflags::PROJINHERIT != 0 {
        parent.project.unwrap_or(0)
    } else {
        0
    }
}

/// Entries of a directory that passes on its project are of that project (`zfs_rename`,
/// `zfs_link`).
fn same_project(directory: &Znode, file: &Znode) -> Result<()> {
    if directory.flags & pflags::PROJINHERIT != 0
        && directory.project.unwrap_or(0) != file.project.unwrap_or(0)
    {
        return Err(FsError::CrossDevice);
    }
    Ok(())
}

fn may_change(node: &Node) -> Result<()> {
    if node.znode().flags & (pflags::IMMUTABLE | pflags::APPENDONLY) != 0 {
        return Err(FsError::NotPermitted {
            ino: node.ino,
            what: "it is immutable or append-only; change that with chattr",
        });
    }
    Ok(())
}

fn may_change_entries(directory: &Node) -> Result<()> {
    let znode = directory.znode();
    if znode.links == 0 {
        return Err(FsError::NotFound { ino: directory.ino });
    }
    if znode.flags & pflags::IMMUTABLE != 0 {
        return Err(FsError::NotPermitted {
            ino: directory.ino,
            what: "the directory is immutable; change that with chattr",
        });
    }
    Ok(())
}

fn may_remove_entries(directory: &Node) -> Result<()> {
    may_change_entries(directory)?;
    may_change(directory)
}

fn may_unlink(node: &Node) -> Result<()> {
    may_change(node)?;
    if node.znode().flags & pflags::NOUNLINK != 0 {
        return Err(FsError::NotPermitted {
            ino: node.ino,
            what: "it cannot be unlinked; change that with chattr",
        });
    }
    Ok(())
}

async fn check_removable(node: &Locked, is_directory: bool) -> Result<()> {
    may_unlink(node)?;
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

/// Slots of 512 bytes that property `dnodesize` asks for (`dmu_objset_dnodesize`): legacy is one,
/// auto 1 KiB.
fn dnode_slots(dnodesize: u64) -> u8 {
    match dnodesize {
        0 => 1,
        1 => 2,
        bytes => u8::try_from(bytes.clamp(512, 16384) / 512).unwrap_or(1),
    }
}

/// Attributes that hold a list of access, as this file stores them.
pub(crate) fn acl_to_store(znode: &Znode, acl: &Acl, version: u64) -> Vec<Attribute> {
    if znode.is_old {
        vec![(attr::ZNODE_ACL, znode::old_acl(acl, version))]
    } else {
        znode::acl_attributes(acl).to_vec()
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
