//! What the intent log says about each operation: records as `zfs_log_*` writes them
//! (module/zfs/zfs_log.c), encoded by `format`.

use format::{
    Log64Time, LogAttributes, LogBody, LogCreate, LogCreateKind, LogObject, LogRename,
    LogSetAttributes, ObjectId, RenameKind,
};
use zil::LogRecord;

use crate::types::Time;
use crate::znode::Znode;

fn log_time(time: Time) -> Log64Time {
    [time.seconds as u64, u64::from(time.nanoseconds)]
}

/// A file, directory, node, symbolic link (with its target) or directory of extended attributes
/// (with an empty name) was made. Ids with a domain would need the domain's name in the record
/// (`zfs_log_fuid_domains`): where there is one, commits wait for the txg.
pub(crate) fn created(
    kind: LogCreateKind,
    parent: u64,
    ino: u64,
    slots: u8,
    znode: &Znode,
    name: &[u8],
    target: &[u8],
) -> LogRecord {
    let object = ObjectId::new(ino);
    if (znode.uid | znode.gid) >> 32 != 0 {
        return LogRecord::unlogged(object, true);
    }
    // A symbolic link's record has neither slots nor a device.
    let dnode_slots = match kind {
        LogCreateKind::Symlink => 1,
        _ => u16::from(slots.max(1)),
    };
    let body = LogCreate {
        kind,
        directory: parent.into(),
        object: LogObject {
            object,
            dnode_slots,
        },
        mode: u64::from(znode.mode),
        uid: znode.uid,
        gid: znode.gid,
        generation: znode.generation,
        create_time: log_time(znode.crtime),
        rdev: znode.rdev,
        attributes: None,
        acl: None,
        domains: Vec::new(),
        name,
        target,
    };
    LogRecord::named(object, &LogBody::Create(Box::new(body)))
}

/// A name was removed.
pub(crate) fn removed(is_directory: bool, parent: u64, ino: u64, name: &[u8]) -> LogRecord {
    let body = LogBody::Remove {
        directory: parent.into(),
        name,
        is_directory,
    };
    LogRecord::named(ObjectId::new(ino), &body)
}

/// A file got another name.
pub(crate) fn linked(parent: u64, ino: u64, name: &[u8]) -> LogRecord {
    let object = ObjectId::new(ino);
    let body = LogBody::Link {
        directory: parent.into(),
        object,
        name,
    };
    LogRecord::named(object, &body)
}

/// A file was renamed, or (with `exchange`) two were swapped.
pub(crate) fn renamed(
    exchange: bool,
    parent: u64,
    name: &[u8],
    new_parent: u64,
    new_name: &[u8],
    ino: u64,
) -> LogRecord {
    let body = LogBody::Rename(LogRename {
        kind: match exchange {
            true => RenameKind::Exchange,
            false => RenameKind::Plain,
        },
        source_directory: parent.into(),
        target_directory: new_parent.into(),
        source: name,
        target: new_name,
    });
    LogRecord::pulling(ObjectId::new(ino), &body)
}

/// A range was freed; a length of 0 means to the end.
pub(crate) fn truncated(ino: u64, sync: bool, offset_bytes: u64, length_bytes: u64) -> LogRecord {
    let object = ObjectId::new(ino);
    let body = LogBody::Truncate {
        object,
        offset: offset_bytes,
        length: length_bytes,
    };
    LogRecord::of_object(object, sync, &body)
}

/// Attributes were set: those in `mask` to what `znode` says. An owner or group with a domain that
/// is not set is left out: OpenZFS would look for the domain's name.
pub(crate) fn attributes_set(
    ino: u64,
    mask: u64,
    znode: &Znode,
    attributes: Option<LogAttributes>,
) -> LogRecord {
    let object = ObjectId::new(ino);
    let of_mask = |bit: u64, id: u64| if mask & bit == 0 { 0 } else { id };
    let body = LogBody::SetAttributes(Box::new(LogSetAttributes {
        object,
        mask,
        mode: u64::from(znode.mode),
        uid: of_mask(LogSetAttributes::UID, znode.uid),
        gid: of_mask(LogSetAttributes::GID, znode.gid),
        size: znode.size,
        access_time: log_time(znode.atime),
        modify_time: log_time(znode.mtime),
        attributes,
        domains: Vec::new(),
    }));
    LogRecord::of_object(object, false, &body)
}

/// An extended attribute in the dnode was set, or removed (no value). One that `moves` from or to
/// the directory of attributes keeps its place among the changes there.
pub(crate) fn sa_xattr_set(ino: u64, name: &[u8], value: Option<&[u8]>, moves: bool) -> LogRecord {
    let object = ObjectId::new(ino);
    let body = LogBody::SetXattr {
        object,
        name,
        value: value.unwrap_or_default(),
    };
    match moves {
        true => LogRecord::pulling(object, &body),
        false => LogRecord::of_object(object, false, &body),
    }
}
