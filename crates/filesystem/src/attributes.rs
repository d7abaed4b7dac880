//! Changing attributes: `chmod`, `chown`, `utimens`, `truncate`, flags, project
//! (`zfs_setattr`, module/os/linux/zfs/zfs_vnops_os.c).

use std::sync::Arc;

use dataset::DirtyEstimate;
use format::{Endian, LogAttributes, LogSetAttributes};
use object::ZapCursor;

use crate::changes::Change;
use crate::content::resize;
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::log;
use crate::node::{Locked, Node};
use crate::opening::Opening;
use crate::quota::Quotas;
use crate::stored_acl::{external_list, mode_to_store, read_acl};
use crate::types::{Caller, FileKind, SetAttributes, SetTime};
use crate::znode::{Attribute, Znode, attr, number, parse_dirent, pflags, touched, without_set_id};

/// Flags that [`SetAttributes::flags`] sets: those that Linux shows (`FS_IOC_SETFLAGS`,
/// `FS_IOC_FSSETXATTR`).
pub(crate) const SETTABLE_FLAGS: u64 =
    pflags::IMMUTABLE | pflags::APPENDONLY | pflags::NODUMP | pflags::PROJINHERIT;

/// Flags that programs see and change as attributes of DOS (`ZFS_DOS_FL_USER_VISIBLE`,
/// include/sys/fs/zfs.h).
pub const DOS_FLAGS: u64 = pflags::IMMUTABLE
    | pflags::APPENDONLY
    | pflags::NOUNLINK
    | pflags::ARCHIVE
    | pflags::NODUMP
    | pflags::SYSTEM
    | pflags::HIDDEN
    | pflags::READONLY
    | pflags::REPARSE
    | pflags::OFFLINE
    | pflags::SPARSE;

/// Bits of a record's [`LogAttributes`] (`XAT0_*`, include/sys/xvattr.h), the same in the bitmap of
/// what is set and in the values, and the flags that they stand for.
const EXTENDED_FLAGS: [(u32, u64); 15] = [
    (0x2, pflags::ARCHIVE),
    (0x4, pflags::SYSTEM),
    (0x8, pflags::READONLY),
    (0x10, pflags::HIDDEN),
    (0x20, pflags::NOUNLINK),
    (0x40, pflags::IMMUTABLE),
    (0x80, pflags::APPENDONLY),
    (0x100, pflags::NODUMP),
    (0x200, pflags::OPAQUE),
    (0x400, pflags::AV_QUARANTINED),
    (0x800, pflags::AV_MODIFIED),
    (0x2000, pflags::REPARSE),
    (0x8000, pflags::OFFLINE),
    (0x1_0000, pflags::SPARSE),
    (0x2_0000, pflags::PROJINHERIT),
];
/// `XAT0_PROJID`: the project is where the anti-virus stamp would be.
const EXTENDED_PROJECT: u32 = 0x4_0000;

/// Whether a change takes set-id bits away: one of owner always does, also root's; one of content
/// does unless it is root's (`CAP_FSETID`).
fn strips_set_id(before: &Znode, set: &SetAttributes, caller: Caller) -> bool {
    let owner = set.uid.is_some() || set.gid.is_some();
    let content = set.size_bytes.is_some() && caller.uid != 0;
    set.mode.is_none() && !before.is_directory() && (owner || content || set.without_set_id)
}

/// Fails where the file's flags or list of access forbid the change (`may_setattr`, fs/attr.c).
/// What the log of a crash says was permitted.
fn may_set(
    opening: &Opening,
    ino: u64,
    before: &Znode,
    set: &SetAttributes,
    caller: Caller,
) -> Result<()> {
    if opening.replaying() {
        return Ok(());
    }
    let forbidden = |what| Err(FsError::NotPermitted { ino, what });
    let owner_or_mode = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let flags_only = set.flags.is_some() && !owner_or_mode && set.size_bytes.is_none();
    if before.flags & pflags::IMMUTABLE != 0 && !flags_only {
        return forbidden("it is immutable; change that with chattr");
    }
    // Both times set to the present are those of a file that is used: whoever may write it may
    // do that.
    let times = (set.atime, set.mtime);
    let is_touch = times == (Some(SetTime::Now), Some(SetTime::Now));
    let times_given = times != (None, None) && !is_touch;
    if before.flags & pflags::APPENDONLY != 0
        && (owner_or_mode || times_given || set.size_bytes.is_some())
    {
        return forbidden("it is append-only; change that with chattr");
    }
    // As if nobody might write it (`zfs_zaccess_common`, module/os/linux/zfs/zfs_acl.c), which
    // root does not mind.
    if set.size_bytes.is_some()
        && before.flags & pflags::READONLY != 0
        && !before.is_directory()
        && caller.uid != 0
    {
        return forbidden("it has the attribute READONLY of DOS; take that away first");
    }
    if set.mode.is_some()
        && opening.settings().aclmode == crate::acl::ACLMODE_RESTRICTED
        && before.flags & pflags::ACL_TRIVIAL == 0
    {
        return forbidden(
            "it has a list of access, which aclmode=restricted keeps chmod from changing",
        );
    }
    Ok(())
}

/// Changes attributes; node and (for a new size) range are locked by the caller.
pub(crate) async fn set_locked(
    files: &Files,
    quotas: &Quotas,
    node: &Locked,
    set: &SetAttributes,
    caller: Caller,
) -> Result<()> {
    let before = node.znode();
    let ino = node.ino;
    may_set(&files.opening, ino, &before, set, caller)?;
    if let Some(size) = set.size_bytes {
        match before.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDirectory { ino }),
            _ => {
                return Err(FsError::Invalid {
                    what: "only regular files can be cut",
                });
            }
        }
        resize(files, node, size).await?;
    }
    let changed = |new: Option<u64>, old: u64| new.filter(|new| *new != old);
    let owners = [
        changed(set.uid.map(u64::from), before.uid),
        changed(set.gid.map(u64::from), before.gid),
        changed(set.project, before.project.unwrap_or(0)),
    ];
    quotas.check_owners(owners).await?;
    files.counting.begin();
    let inherits = |flags: u64| flags & pflags::PROJINHERIT != 0;
    let wants_projects =
        set.project.is_some() || set.flags.is_some_and(inherits) && !inherits(before.flags);
    if wants_projects && (before.is_old || !files.has_projects()) {
        return Err(FsError::Unsupported {
            what: "a project (feature project_quota)",
        });
    }
    // What OpenZFS finds in a log of such a filesystem it does not replay, nor what is behind it.
    if set.flags.is_some() && !files.uses_fuids() && !files.opening.replaying() {
        return Err(FsError::Invalid {
            what: "files of a filesystem before version 3 have no flags to set; 'zfs upgrade' it",
        });
    }
    // What must be read is read before the txg is held.
    let old_acl = if set.mode.is_some() && files.opening.settings().aclmode != 0 {
        read_acl(files, node).await?
    } else {
        None
    };
    let external_acl = match set.mode {
        Some(_) => external_list(files, node).await?,
        None => None,
    };
    let relayout = match set.project {
        Some(_) if before.project.is_none() => Some(files.sa.get_all(&node.object).await?),
        _ => None,
    };
    // The size is changed: for want of space the record of that must not be refused.
    let estimate = match set.size_bytes {
        Some(size) if size != before.size => DirtyEstimate::free(),
        _ => DirtyEstimate::metadata(),
    };
    let tx = files.assign(estimate).await?;
    let now = files.opening.now();
    let mut znode = node.znode();
    let mut list = vec![attr::CTIME, attr::FLAGS];
    let mut more: Vec<Attribute> = Vec::new();
    let mut logged = 0;
    if set.size_bytes.is_some() {
        znode.mtime = now;
        list.extend([attr::SIZE, attr::MTIME]);
        logged |= LogSetAttributes::SIZE;
        if files.uses_fuids() {
            znode.flags |= pflags::AV_MODIFIED;
        }
    }
    znode = touched(znode, now, files.uses_fuids());
    if set.uid.is_some() || set.gid.is_some() {
        znode.uid = set.uid.map_or(znode.uid, u64::from);
        znode.gid = set.gid.map_or(znode.gid, u64::from);
        list.extend([attr::UID, attr::GID]);
        logged |= if set.uid.is_some() {
            LogSetAttributes::UID
        } else {
            0
        };
        logged |= if set.gid.is_some() {
            LogSetAttributes::GID
        } else {
            0
        };
    }
    if let Some(mode) = set.mode {
        znode.mode = znode.mode & !0o7777 | mode & 0o7777;
        list.push(attr::MODE);
        let stored = mode_to_store(files, &tx, &mut znode, old_acl.as_ref(), external_acl).await?;
        more.extend(stored);
        logged |= LogSetAttributes::MODE;
    } else if strips_set_id(&before, set, caller) && !files.opening.replaying() {
        // Lists of access do not speak of these bits.
        let mode = without_set_id(&before, caller);
        if mode != before.mode {
            znode.mode = mode;
            list.push(attr::MODE);
            logged |= LogSetAttributes::MODE;
        }
    }
    let resolve = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    if let Some(time) = set.atime {
        znode.atime = resolve(time);
        list.push(attr::ATIME);
        logged |= LogSetAttributes::ATIME;
    }
    if let Some(time) = set.mtime {
        znode.mtime = resolve(time);
        list.push(attr::MTIME);
        logged |= LogSetAttributes::MTIME;
    }
    if let Some(flags) = set.flags {
        // While a log is replayed any flag may come; a user sets Linux's, or those of DOS.
        let settable = if files.opening.replaying() {
            u64::MAX
        } else {
            let among = set.flags_among.unwrap_or(SETTABLE_FLAGS);
            among & (SETTABLE_FLAGS | DOS_FLAGS)
        };
        znode.flags = znode.flags & !settable | flags & settable;
    }
    if let Some(project) = set.project {
        znode.project = Some(project);
        znode.flags |= pflags::PROJID;
    }
    list.sort_unstable();
    list.dedup();
    match relayout {
        Some(all) => {
            let attributes = with_project(&znode, all, more);
            files.sa.replace_all(&node.object, &tx, &attributes).await?;
            node.state.write().znode = znode;
            files.tell(Change::Attributes { ino: node.ino });
        }
        None => {
            if set.project.is_some() {
                more.push(number(attr::PROJID, znode.project.unwrap_or(0)));
            }
            files.store(&tx, node, znode, &list, more).await?;
        }
    }
    let extended = (set.flags.is_some() || set.project.is_some())
        .then(|| extended_record(set, &before, &znode));
    if znode.links > 0 && (logged != 0 || extended.is_some()) {
        files.record(&tx, log::attributes_set(ino, logged, &znode, extended));
    }
    Ok(())
}

/// To whom a file is given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) project: Option<u64>,
}

impl Owner {
    pub(crate) fn is_none(self) -> bool {
        self.uid.is_none() && self.gid.is_none() && self.project.is_none()
    }
}

/// Gives a directory of extended attributes, and the files in it, to whom their file was given
/// (`zfs_setattr_dir`, module/os/linux/zfs/zfs_vnops_os.c). Each is a transaction: after a
/// crash some may be as they were.
pub(crate) async fn give_entries(files: &Files, directory: &Arc<Node>, owner: Owner) -> Result<()> {
    const BATCH: usize = 64;
    give(files, directory, owner).await?;
    let mut cursor = ZapCursor::START;
    loop {
        let entries = directory.entries()?.entries(cursor, BATCH).await?;
        let Some(last) = entries.last() else {
            return Ok(());
        };
        cursor = last.next;
        for entry in entries {
            let (ino, _) = parse_dirent(entry.value.as_u64().unwrap_or(0));
            match files.node(ino).await {
                Ok(file) => give(files, &file, owner).await?,
                Err(FsError::Stale { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Gives a file to somebody, whatever quotas say and without a word in the log.
async fn give(files: &Files, node: &Arc<Node>, owner: Owner) -> Result<()> {
    let node = node.lock().await?;
    let before = node.znode();
    let relayout = match owner.project {
        Some(_) if before.project.is_none() => Some(files.sa.get_all(&node.object).await?),
        _ => None,
    };
    let tx = files.assign(DirtyEstimate::metadata()).await?;
    let mut znode = Znode {
        uid: owner.uid.unwrap_or(before.uid),
        gid: owner.gid.unwrap_or(before.gid),
        ctime: files.opening.now(),
        ..before
    };
    let mut more = Vec::new();
    if let Some(project) = owner.project {
        znode.project = Some(project);
        znode.flags |= pflags::PROJID;
        more.push(number(attr::PROJID, project));
    }
    match relayout {
        Some(all) => {
            let attributes = with_project(&znode, all, Vec::new());
            files.sa.replace_all(&node.object, &tx, &attributes).await?;
            node.state.write().znode = znode;
            files.tell(Change::Attributes { ino: node.ino });
        }
        None => {
            let list = [attr::UID, attr::GID, attr::FLAGS, attr::CTIME];
            files.store(&tx, &node, znode, &list, more).await?;
        }
    }
    Ok(())
}

/// All attributes of a file that gets a project: PROJID has its fixed place after LINKS
/// (`sa_add_projid`, module/zfs/sa.c).
fn with_project(znode: &Znode, all: Vec<Attribute>, more: Vec<Attribute>) -> Vec<Attribute> {
    use attr::*;
    let mut list: Vec<Attribute> = [
        MODE, SIZE, GEN, UID, GID, PARENT, FLAGS, ATIME, MTIME, CTIME, CRTIME, LINKS, PROJID,
    ]
    .into_iter()
    .map(|id| znode.get(id))
    .collect();
    for (id, bytes) in more.into_iter().chain(all) {
        if !list.iter().any(|(there, _)| *there == id) {
            list.push((id, bytes));
        }
    }
    list
}

/// The flags that changed, and a project, as a record says them.
fn extended_record(set: &SetAttributes, before: &Znode, after: &Znode) -> LogAttributes {
    let (mut map, mut values) = (0u32, 0u32);
    if set.flags.is_some() {
        for (bit, flag) in EXTENDED_FLAGS {
            if (before.flags ^ after.flags) & flag != 0 {
                map |= bit;
                values |= if after.flags & flag != 0 { bit } else { 0 };
            }
        }
    }
    if set.project.is_some() {
        map |= EXTENDED_PROJECT;
    }
    let mut bitmap = vec![map];
    bitmap.resize(LogAttributes::BITMAP_WORDS, 0);
    LogAttributes {
        bitmap,
        attributes: values.into(),
        create_time: [0; 2],
        scan_stamp: LogAttributes::stamp_of_project(set.project.unwrap_or(0)),
    }
}

/// What a record says of flags and a project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extended {
    /// Flags that it is about.
    pub clear: u64,
    /// Those of them that are set then.
    pub set: u64,
    pub project: Option<u64>,
}

impl Extended {
    /// Of a record in this byte order.
    pub(crate) fn of(attributes: &LogAttributes, endian: Endian) -> Self {
        let map = attributes.first_word();
        let mut out = Self {
            project: (map & EXTENDED_PROJECT != 0).then(|| attributes.project(endian)),
            ..Self::default()
        };
        for (bit, flag) in EXTENDED_FLAGS {
            if map & bit != 0 {
                out.clear |= flag;
                if attributes.attributes & u64::from(bit) != 0 {
                    out.set |= flag;
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_project_survive_a_record() {
        let list = [number(attr::MODE, 0o100_644)];
        let before = Znode::parse(2, format::ObjectType::SA, &list).unwrap();
        let after = Znode {
            flags: pflags::IMMUTABLE | pflags::PROJINHERIT,
            ..before
        };
        let before = Znode {
            flags: pflags::NODUMP,
            ..before
        };
        let set = SetAttributes {
            flags: Some(0),
            project: Some(77),
            ..Default::default()
        };
        let record = extended_record(&set, &before, &after);
        let expected = Extended {
            clear: pflags::IMMUTABLE | pflags::PROJINHERIT | pflags::NODUMP,
            set: after.flags,
            project: Some(77),
        };
        assert_eq!(Extended::of(&record, Endian::Little), expected);
        let logged = log::attributes_set(5, LogSetAttributes::MODE, &after, Some(record));
        let zil::LogContent::Encoded(body) = logged.content else {
            panic!("{logged:?}");
        };
        assert_eq!(body.len(), 80 + 72, "ZIL_XVAT_SIZE(3) behind lr_setattr_t");
    }
}
