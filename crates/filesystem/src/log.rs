//! What the intent log says about each operation: records as `zfs_log_*` writes them
//! (module/zfs/zfs_log.c; layouts in include/sys/zil.h), after their common header.

use format::{BLOCK_POINTER_BYTES, BlockPointer, LogKind, ObjectId};
use zil::LogRecord;

use crate::types::Time;
use crate::znode::Znode;

/// Which attributes a SETATTR sets (Linux's `ATTR_*`, include/linux/fs.h; `ATTR_XVATTR`).
pub(crate) mod mask {
    pub const MODE: u64 = 1;
    pub const UID: u64 = 1 << 1;
    pub const GID: u64 = 1 << 2;
    pub const SIZE: u64 = 1 << 3;
    pub const ATIME: u64 = 1 << 4;
    pub const MTIME: u64 = 1 << 5;
    pub const XVATTR: u64 = 1 << 31;
}

fn put(out: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(name);
    out.push(0);
}

fn time_words(time: Time) -> [u64; 2] {
    [time.seconds as u64, u64::from(time.nanoseconds)]
}

/// An object's number with the slots of its dnode, less one, in the top byte
/// (`LR_FOID_SET_SLOTS`).
fn with_slots(ino: u64, slots: u8) -> u64 {
    ino | u64::from(slots.max(1) - 1) << 56
}

/// A file, directory, node, symbolic link (with its target) or directory of extended attributes
/// (with an empty name) was made. Ids with a domain would need the domain's name in the record
/// (`zfs_log_fuid_domains`): where there is one, commits wait for the txg.
pub(crate) fn created(
    kind: LogKind,
    parent: u64,
    ino: u64,
    slots: u8,
    znode: &Znode,
    name: &[u8],
    target: Option<&[u8]>,
) -> LogRecord {
    if (znode.uid | znode.gid) >> 32 != 0 {
        return LogRecord::unlogged(ObjectId::new(ino), true);
    }
    let mut body = Vec::with_capacity(80 + name.len());
    let [seconds, nanoseconds] = time_words(znode.crtime);
    // A symbolic link's record has neither slots nor a device.
    let foid = if target.is_some() {
        ino
    } else {
        with_slots(ino, slots)
    };
    put(
        &mut body,
        &[
            parent,
            foid,
            u64::from(znode.mode),
            znode.uid,
            znode.gid,
            znode.generation,
            seconds,
            nanoseconds,
            znode.rdev,
        ],
    );
    put_name(&mut body, name);
    if let Some(target) = target {
        put_name(&mut body, target);
    }
    LogRecord::named(kind, ObjectId::new(ino), body)
}

/// A name was removed.
pub(crate) fn removed(kind: LogKind, parent: u64, ino: u64, name: &[u8]) -> LogRecord {
    let mut body = Vec::with_capacity(9 + name.len());
    put(&mut body, &[parent]);
    put_name(&mut body, name);
    LogRecord::named(kind, ObjectId::new(ino), body)
}

/// A file got another name.
pub(crate) fn linked(parent: u64, ino: u64, name: &[u8]) -> LogRecord {
    let mut body = Vec::with_capacity(17 + name.len());
    put(&mut body, &[parent, ino]);
    put_name(&mut body, name);
    LogRecord::named(LogKind::Link, ObjectId::new(ino), body)
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
    let mut body = Vec::with_capacity(18 + name.len() + new_name.len());
    put(&mut body, &[parent, new_parent]);
    put_name(&mut body, name);
    put_name(&mut body, new_name);
    let kind = if exchange {
        LogKind::RenameExchange
    } else {
        LogKind::Rename
    };
    LogRecord::pulling(kind, ObjectId::new(ino), body)
}

/// A range was freed; a length of 0 means to the end.
pub(crate) fn truncated(ino: u64, sync: bool, offset_bytes: u64, length_bytes: u64) -> LogRecord {
    let mut body = Vec::with_capacity(24);
    put(&mut body, &[ino, offset_bytes, length_bytes]);
    LogRecord::of_object(LogKind::Truncate, ObjectId::new(ino), sync, body)
}

/// Blocks were shared (`zfs_log_clone_range`, `lr_clone_range_t`).
pub(crate) fn cloned(
    ino: u64,
    sync: bool,
    offset_bytes: u64,
    length_bytes: u64,
    block_bytes: u64,
    pointers: &[BlockPointer],
) -> LogRecord {
    let mut body = Vec::with_capacity(40 + pointers.len() * BLOCK_POINTER_BYTES);
    let count = pointers.len() as u64;
    put(
        &mut body,
        &[ino, offset_bytes, length_bytes, block_bytes, count],
    );
    for pointer in pointers {
        body.extend_from_slice(&pointer.encode());
    }
    LogRecord::of_object(LogKind::CloneRange, ObjectId::new(ino), sync, body)
}

/// Attributes were set: those in `mask` to what `znode` says.
pub(crate) fn attributes_set(
    ino: u64,
    mask: u64,
    znode: &Znode,
    extended: Option<&[u8]>,
) -> LogRecord {
    let mut body = Vec::with_capacity(88);
    let mask = if extended.is_some() {
        mask | mask::XVATTR
    } else {
        mask
    };
    put(
        &mut body,
        &[
            ino,
            mask,
            u64::from(znode.mode),
            znode.uid,
            znode.gid,
            znode.size,
        ],
    );
    put(&mut body, &time_words(znode.atime));
    put(&mut body, &time_words(znode.mtime));
    body.extend_from_slice(extended.unwrap_or(&[]));
    LogRecord::of_object(LogKind::SetAttr, ObjectId::new(ino), false, body)
}

/// An extended attribute in the dnode was set, or removed (no value). One that `moves` from or to
/// the directory of attributes keeps its place among the changes there.
pub(crate) fn sa_xattr_set(ino: u64, name: &[u8], value: Option<&[u8]>, moves: bool) -> LogRecord {
    let value = value.unwrap_or(&[]);
    let mut body = Vec::with_capacity(17 + name.len() + value.len());
    put(&mut body, &[ino, value.len() as u64]);
    put_name(&mut body, name);
    body.extend_from_slice(value);
    let object = ObjectId::new(ino);
    match moves {
        true => LogRecord::pulling(LogKind::SetSaXattr, object, body),
        false => LogRecord::of_object(LogKind::SetSaXattr, object, false, body),
    }
}
