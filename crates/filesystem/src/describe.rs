//! A file's attributes as `stat` shows them.

use object::ObjectInfo;

use crate::types::{Attributes, FileKind};
use crate::znode::{self, Znode, pflags};

/// A user or group id as Linux shows it: ids with a domain (SMB's) have no number there.
fn id_of(fuid: u64) -> u32 {
    const NOBODY: u32 = 65534;
    u32::try_from(fuid).unwrap_or(NOBODY)
}

/// Bytes of an object's blocks and of its dnode's slots (`dmu_object_size_from_db`,
/// module/zfs/dmu.c). What a disk says is used can be any number.
fn allocated_bytes(used_bytes: u64, slots: u8) -> u64 {
    (used_bytes.saturating_add(256) / 512 + u64::from(slots)).saturating_mul(512)
}

/// A file's attributes as `stat` shows them. `more_links` are shown though not stored;
/// `record_bytes` is the block size of what has none.
pub(crate) fn describe(
    ino: u64,
    znode: &Znode,
    info: &ObjectInfo,
    more_links: u64,
    record_bytes: u32,
) -> Attributes {
    let links = znode.links.saturating_add(more_links);
    let block_bytes = match znode.kind() {
        FileKind::Regular if znode.size > 0 => info.data_block_bytes,
        _ => record_bytes,
    };
    Attributes {
        ino,
        generation: znode.generation,
        kind: znode.kind(),
        mode: znode.mode & 0o7777,
        uid: id_of(znode.uid),
        gid: id_of(znode.gid),
        nlink: u32::try_from(links).unwrap_or(u32::MAX),
        size_bytes: znode.size,
        allocated_bytes: allocated_bytes(info.used_bytes, info.slots),
        block_bytes,
        rdev: znode::decode_rdev(znode.rdev),
        atime: znode.atime,
        mtime: znode.mtime,
        ctime: znode.ctime,
        crtime: znode.crtime,
        flags: znode.flags,
        project: (znode.flags & pflags::PROJID != 0).then(|| znode.project.unwrap_or(0)),
        parent: znode.parent,
        is_dirty: false,
    }
}

#[cfg(test)]
mod tests {
    use super::allocated_bytes;

    #[test]
    fn space_of_a_file_is_no_more_than_can_be_told() {
        assert_eq!(allocated_bytes(1000, 1), 1536);
        for used in [u64::MAX, u64::MAX - 255, u64::MAX - 600] {
            assert_eq!(allocated_bytes(used, 32), u64::MAX);
        }
    }
}
