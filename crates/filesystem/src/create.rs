//! Making files, directories, links and special files: the object, its attributes, its entry.

use std::sync::Arc;

use bytes::Bytes;
use dataset::DirtyEstimate;
use format::{LogCreateKind, ObjectId, ObjectType};
use object::{NewObject, Object, Zap, ZapOptions, free_object};
use zil::LogRecord;
use zio::Tx;

use crate::acl::{ACLMODE_RESTRICTED, Acl, AclInherit};
use crate::changes::{Change, Former};
use crate::checks::may_change_entries;
use crate::content::grown_block_bytes;
use crate::entries::find;
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::locking::lock_after;
use crate::log;
use crate::node::{Locked, Node};
use crate::quota::Quotas;
use crate::remove::drop_link;
use crate::stored_acl::{read_acl, store_long};
use crate::types::{Caller, FileKind, Time};
use crate::unlinked::Unlinked;
use crate::znode::{
    self, LINKS_MAX, NewValue, PARENT_ATTRIBUTES, Znode, attr, dirent, joined, parent_changed,
    pflags,
};

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
    /// What a regular file holds from the beginning, in one transaction with its name; what a log
    /// block can say of at most.
    pub(crate) content: Bytes,
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
            content: Bytes::new(),
        }
    }
}

/// Makes a file in a directory.
pub(crate) async fn make_in(
    files: &Files,
    quotas: &Quotas,
    directory: &Arc<Node>,
    name: &[u8],
    make: &Make<'_>,
) -> Result<Arc<Node>> {
    let directory = directory.lock().await?;
    may_change_entries(&files.opening, &directory)?;
    if find(files.rules, &directory, name).await?.is_some() {
        return Err(FsError::Exists { ino: directory.ino });
    }
    make_entry(files, quotas, &directory, name, make, None).await
}

/// A file that gives its only name to a new one, and goes into the delete queue.
pub(crate) struct Replaced<'a> {
    pub(crate) unlinked: &'a Unlinked,
    pub(crate) file: &'a Arc<Node>,
}

/// Makes a file in place of another one, or of none, in one transaction, of which a crash leaves
/// all or nothing.
///
/// # Errors
/// [`FsError::Corrupt`], where the pool names as the other one what cannot be it.
pub(crate) async fn make_in_place(
    files: &Files,
    quotas: &Quotas,
    directory: &Arc<Node>,
    name: &[u8],
    make: &Make<'_>,
    replaced: Option<Replaced<'_>>,
) -> Result<Arc<Node>> {
    let directory = directory.lock().await?;
    make_entry(files, quotas, &directory, name, make, replaced).await
}

/// The attributes that a new file in `directory` gets, and its list of access.
async fn new_znode(
    files: &Files,
    directory: &Node,
    make: &Make<'_>,
    txg: u64,
) -> Result<(Znode, Acl)> {
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
        } else if mode & 0o2010 == 0o2010 && !make.caller.may_keep_set_group_id(gid) {
            // Nobody makes a program that runs as a group that is not theirs
            // (`mode_strip_sgid`, fs/inode.c of Linux, which does not do this before 6.0).
            mode &= !0o2000;
        }
    }
    let time = make
        .replayed
        .map_or_else(|| files.opening.now(), |replayed| replayed.time);
    let mut flags = make.flags;
    if files.uses_fuids() {
        flags |= pflags::ARCHIVE | pflags::AV_MODIFIED;
    }
    let project = files.has_projects().then(|| inherited_project(&parent));
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
                read_acl(files, directory).await?
            } else {
                None
            };
            match list {
                Some(list) if make.kind != FileKind::Symlink => {
                    let settings = files.opening.settings();
                    let how = AclInherit::from_stored(settings.aclinherit);
                    let keep = settings.aclmode == ACLMODE_RESTRICTED;
                    let (acl, given) = list.inherited(how, keep, mode, make.kind);
                    mode = given;
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
            _ => make.content.len() as u64,
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
        is_old: files.version < znode::ZPL_VERSION_SA,
    };
    Ok((znode, acl))
}

/// Allocates an object with these attributes. Returns it with its entries, if a directory, and the
/// object of a list of access that has one of its own.
async fn new_object(
    files: &Files,
    tx: &Tx,
    make: &Make<'_>,
    znode: &Znode,
    acl: &Acl,
) -> Result<(Object, Option<Zap>, Option<ObjectId>)> {
    let slots = match &make.replayed {
        Some(replayed) => replayed.slots,
        None => dnode_slots(files.opening.settings().dnodesize),
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
        options.normalization = files.rules.norm_flags;
        options.claim = claim;
        let zap = files.with_rules(Zap::create(&files.objset, tx, options).await?);
        (zap.object().clone(), Some(zap))
    } else {
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS)
            .with_bonus(bonus_type, bonus)
            .with_slots(slots);
        let object = match claim {
            Some(id) => files.objset.claim(tx, id, new).await?,
            None => files.objset.allocate(tx, new).await?,
        };
        (object, None)
    };
    if !make.content.is_empty() {
        let block = first_block_bytes(files, make.content.len() as u64);
        object.set_block_size(tx, block as u32, 0).await?;
        object.write(tx, 0, make.content.clone()).await?;
    }
    let external = match znode.is_old {
        true => store_long(files, tx, acl).await?,
        false => None,
    };
    let mut template = znode.template(acl, files.version, external);
    if let Some(target) = make.target {
        if znode.is_old {
            // After the znode if it fits into the bonus, else as the file's data
            // (`zfs_sa_symlink`); see `read_link`.
            let bonus = joined(&template);
            if bonus.len() + target.len() <= format::OLD_MAX_BONUS_BYTES {
                object.set_bonus(tx, [&bonus[..], target].concat())?;
            } else {
                object.set_bonus(tx, bonus)?;
                let block_bytes = (target.len() as u32).div_ceil(512) * 512;
                object.set_block_size(tx, block_bytes, 0).await?;
                object.write(tx, 0, Bytes::copy_from_slice(target)).await?;
            }
            return Ok((object, zap, external));
        }
        let target = Bytes::copy_from_slice(target);
        template.push((attr::SYMLINK, NewValue::Bytes(target)));
    }
    if znode.is_old {
        object.set_bonus(tx, joined(&template))?;
    } else {
        files.sa.replace_all(&object, tx, &template).await?;
    }
    Ok((object, zap, external))
}

/// Makes a file and its entry, in one transaction. With a file that it replaces `name` is that
/// one's, as it is stored.
async fn make_entry(
    files: &Files,
    quotas: &Quotas,
    directory: &Locked,
    name: &[u8],
    make: &Make<'_>,
    replaced: Option<Replaced<'_>>,
) -> Result<Arc<Node>> {
    if directory.znode().links >= LINKS_MAX && make.kind == FileKind::Directory {
        return Err(FsError::TooManyLinks { ino: directory.ino });
    }
    let parent = directory.znode();
    let project = if files.has_projects() {
        inherited_project(&parent)
    } else {
        0
    };
    let gid = if parent.mode & 0o2000 != 0 {
        parent.gid
    } else {
        u64::from(make.caller.gid)
    };
    quotas
        .check_objects(u64::from(make.caller.uid), gid, project)
        .await?;
    // What may wait for the disk is done before the txg is held.
    let (mut znode, acl) = new_znode(files, directory, make, 0).await?;
    let outlives = files.outlives_crash(directory).await?;
    let estimate = match make.content.len() as u64 {
        0 => DirtyEstimate::metadata(),
        length => {
            quotas.check_file(&znode).await?;
            let block = first_block_bytes(files, length);
            DirtyEstimate::write(length.next_multiple_of(block)).in_blocks_of(block as u32)
        }
    };
    let before = match &replaced {
        Some(replaced) => {
            let file = lock_after(directory, replaced.file).await?;
            Some((replaced.unlinked, file))
        }
        None => None,
    };
    let tx = files.assign(estimate).await?;
    if make.replayed.is_none() {
        znode.generation = tx.txg().get();
    }
    let (object, zap, list) = new_object(files, &tx, make, &znode, &acl).await?;
    let ino = object.id().get();
    let slots = object.info().slots;
    // Others see the name before it is logged: they wait for this lock, so that what they do
    // with the file is logged after it.
    let node = Node::new_locked(ino, object, zap, znode);
    files.nodes.insert_new(Arc::clone(&node.node));
    let value = dirent(ino, make.kind, files.version);
    let entries = directory.entries()?;
    let named = match &before {
        Some(_) => entries.update_u64(&tx, name, value).await,
        None => entries.add_u64(&tx, name, value).await,
    };
    if let Err(error) = named {
        // Nothing refers to the object yet, and nothing else to its list.
        files.nodes.remove(&node);
        free_object(&tx, &node.object)?;
        if let Some(list) = list {
            files.objset.free(&tx, list).await?;
        }
        return Err(error.into());
    }
    files.tell(Change::Name {
        directory: directory.ino,
        name,
        before: before.as_ref().map(|(_, file)| Former {
            ino: file.ino,
            is_directory: false,
            is_removed: true,
        }),
    });
    if let Some((unlinked, file)) = &before {
        drop_link(files, unlinked, &tx, file).await?;
    }
    if outlives {
        let kind = match make.kind {
            FileKind::Directory => LogCreateKind::Directory,
            FileKind::Symlink => LogCreateKind::Symlink,
            _ => LogCreateKind::File,
        };
        let (parent, target) = (directory.ino, make.target.unwrap_or_default());
        let created = log::created(kind, parent, ino, slots, &znode, name, target);
        let length = make.content.len() as u64;
        if length == 0 && before.is_none() {
            files.record(&tx, created);
        } else {
            let removed = before
                .as_ref()
                .map(|(_, file)| log::removed(false, parent, file.ino, name));
            let written = LogRecord::write(ObjectId::new(ino), true, 0, length);
            let all = removed.into_iter().chain([created, written]);
            files.record_together(&tx, all);
        }
    }
    let mut changed = parent_changed(directory.znode(), files.opening.now(), files.uses_fuids());
    changed.size = changed.size.saturating_add(u64::from(before.is_none()));
    changed.links += u64::from(make.kind == FileKind::Directory);
    files
        .store(&tx, directory, changed, &PARENT_ATTRIBUTES, [])
        .await?;
    Ok(Arc::clone(&node.node))
}

/// Makes a file that has no name yet: a directory of extended attributes. The caller links it.
pub(crate) async fn new_xattr_directory(
    files: &Files,
    tx: &Tx,
    owner: &Locked,
    replayed: Option<Replayed>,
) -> Result<Arc<Node>> {
    let of = owner.znode();
    let mut make = Make::new(FileKind::Directory, 0o1777, Caller::ROOT);
    make.replayed = replayed;
    make.flags = pflags::XATTR;
    let (mut znode, acl) = new_znode(files, owner, &make, tx.txg().get()).await?;
    if replayed.is_none() {
        (znode.uid, znode.gid) = (of.uid, of.gid);
    }
    let (object, zap, _) = new_object(files, tx, &make, &znode, &acl).await?;
    let node = Node::new(object.id().get(), object, zap, znode, true);
    files.nodes.insert_new(Arc::clone(&node));
    Ok(node)
}

/// The block size of a new file of so many bytes.
fn first_block_bytes(files: &Files, length: u64) -> u64 {
    let record_bytes = u64::from(files.opening.settings().record_bytes);
    grown_block_bytes(512, 0, length, record_bytes)
}

fn inherited_project(parent: &Znode) -> u64 {
    if parent.flags & pflags::PROJINHERIT != 0 {
        parent.project.unwrap_or(0)
    } else {
        0
    }
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
