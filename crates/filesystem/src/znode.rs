//! A file's attributes: how they are stored, and as values.
//!
//! A filesystem of ZPL version 5 keeps them as *system attributes* in the bonus (and spill) of the
//! file's dnode; older ones as a fixed `znode_phys_t` of 264 bytes that `object::Sa` shows as
//! attributes too. The table is `zfs_attr_table` (module/zfs/zfs_sa.c) as of OpenZFS 2.3; the order
//! for new files is `zfs_mknode`'s (module/os/linux/zfs/zfs_znode_os.c). Owner, group, flags and
//! project have fixed places in the bonus, which all implementations
//! rely on for quotas: so PROJID must come right after LINKS.

use bytes::Bytes;
use format::{Endian, ObjectId, ObjectType};
use object::{SaAttribute, SaFixed, SaRegistration};

use crate::acl::Acl;
use crate::error::{FsError, Result};
use crate::types::{Caller, FileKind, Time};

/// Bits of a file's flags (`z_pflags`, include/sys/zfs_znode.h).
pub mod pflags {
    /// The object is, or is in, a directory of extended attributes.
    pub const XATTR: u64 = 0x1;
    /// The list of access has entries that are inherited.
    pub const INHERIT_ACE: u64 = 0x2;
    /// The list of access says no more than the mode.
    pub const ACL_TRIVIAL: u64 = 0x4;
    /// The list has entries of object types.
    pub const ACL_OBJ_ACE: u64 = 0x8;
    /// The list is protected from inheritance.
    pub const ACL_PROTECTED: u64 = 0x10;
    /// The list was made by default.
    pub const ACL_DEFAULTED: u64 = 0x20;
    /// The list was inherited automatically.
    pub const ACL_AUTO_INHERIT: u64 = 0x40;
    /// An anti-virus stamp is in the bonus.
    pub const BONUS_SCANSTAMP: u64 = 0x80;
    /// Everybody may execute (search).
    pub const NO_EXECS_DENIED: u64 = 0x100;
    /// Read-only (DOS).
    pub const READONLY: u64 = 0x1_0000_0000;
    /// Hidden (DOS).
    pub const HIDDEN: u64 = 0x2_0000_0000;
    /// System (DOS).
    pub const SYSTEM: u64 = 0x4_0000_0000;
    /// Changed since the last archive (DOS).
    pub const ARCHIVE: u64 = 0x8_0000_0000;
    /// Cannot be changed, renamed or removed.
    pub const IMMUTABLE: u64 = 0x10_0000_0000;
    /// Cannot be removed.
    pub const NOUNLINK: u64 = 0x20_0000_0000;
    /// Can only be written at its end.
    pub const APPENDONLY: u64 = 0x40_0000_0000;
    /// Not to be dumped.
    pub const NODUMP: u64 = 0x80_0000_0000;
    /// Opaque to unions.
    pub const OPAQUE: u64 = 0x100_0000_0000;
    /// Quarantined by anti-virus software.
    pub const AV_QUARANTINED: u64 = 0x200_0000_0000;
    /// Changed since the last scan.
    pub const AV_MODIFIED: u64 = 0x400_0000_0000;
    /// A reparse point.
    pub const REPARSE: u64 = 0x800_0000_0000;
    /// Offline.
    pub const OFFLINE: u64 = 0x1000_0000_0000;
    /// Sparse.
    pub const SPARSE: u64 = 0x2000_0000_0000;
    /// New entries of this directory are of its project.
    pub const PROJINHERIT: u64 = 0x4000_0000_0000;
    /// The file has a project.
    pub const PROJID: u64 = 0x8000_0000_0000;
}

/// Bytes of `znode_phys_t` (`ZFS_OLD_ZNODE_PHYS_SIZE`).
pub(crate) const OLD_ZNODE_BYTES: usize = 264;

const fn register(name: &'static str, length_bytes: u16, byteswap: u8) -> SaRegistration {
    SaRegistration {
        name,
        length_bytes,
        byteswap,
    }
}

/// `zfs_attr_table` as of OpenZFS 2.3.
pub(crate) static TABLE: [SaRegistration; 22] = [
    register("ZPL_ATIME", 16, 0),
    register("ZPL_MTIME", 16, 0),
    register("ZPL_CTIME", 16, 0),
    register("ZPL_CRTIME", 16, 0),
    register("ZPL_GEN", 8, 0),
    register("ZPL_MODE", 8, 0),
    register("ZPL_SIZE", 8, 0),
    register("ZPL_PARENT", 8, 0),
    register("ZPL_LINKS", 8, 0),
    register("ZPL_XATTR", 8, 0),
    register("ZPL_RDEV", 8, 0),
    register("ZPL_FLAGS", 8, 0),
    register("ZPL_UID", 8, 0),
    register("ZPL_GID", 8, 0),
    register("ZPL_PAD", 32, 0),
    register("ZPL_ZNODE_ACL", 88, 3),
    register("ZPL_DACL_COUNT", 8, 0),
    register("ZPL_SYMLINK", 0, 3),
    register("ZPL_SCANSTAMP", 32, 3),
    register("ZPL_DACL_ACES", 0, 4),
    register("ZPL_DXATTR", 0, 3),
    register("ZPL_PROJID", 8, 0),
];

/// Places in [`TABLE`].
pub(crate) mod attr {
    use object::SaAttribute;
    pub const ATIME: SaAttribute = SaAttribute(0);
    pub const MTIME: SaAttribute = SaAttribute(1);
    pub const CTIME: SaAttribute = SaAttribute(2);
    pub const CRTIME: SaAttribute = SaAttribute(3);
    pub const GEN: SaAttribute = SaAttribute(4);
    pub const MODE: SaAttribute = SaAttribute(5);
    pub const SIZE: SaAttribute = SaAttribute(6);
    pub const PARENT: SaAttribute = SaAttribute(7);
    pub const LINKS: SaAttribute = SaAttribute(8);
    pub const XATTR: SaAttribute = SaAttribute(9);
    pub const RDEV: SaAttribute = SaAttribute(10);
    pub const FLAGS: SaAttribute = SaAttribute(11);
    pub const UID: SaAttribute = SaAttribute(12);
    pub const GID: SaAttribute = SaAttribute(13);
    pub const PAD: SaAttribute = SaAttribute(14);
    pub const ZNODE_ACL: SaAttribute = SaAttribute(15);
    pub const DACL_COUNT: SaAttribute = SaAttribute(16);
    pub const SYMLINK: SaAttribute = SaAttribute(17);
    pub const DACL_ACES: SaAttribute = SaAttribute(19);
    pub const DXATTR: SaAttribute = SaAttribute(20);
    pub const PROJID: SaAttribute = SaAttribute(21);
}

/// A file's attributes of fixed length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Znode {
    /// Full mode, kind included.
    pub mode: u32,
    pub size: u64,
    pub generation: u64,
    pub uid: u64,
    pub gid: u64,
    pub parent: u64,
    pub flags: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub crtime: Time,
    pub links: u64,
    /// As stored: Linux's device number, major above 20 bits of minor.
    pub rdev: u64,
    /// Directory of extended attributes; 0 for none.
    pub xattr: u64,
    pub project: Option<u64>,
    /// Stored as a `znode_phys_t`.
    pub is_old: bool,
}

/// One attribute to write.
pub(crate) type Attribute = (SaAttribute, Bytes);

/// The value of an attribute of a new file.
pub(crate) enum NewValue {
    /// Numbers.
    Fixed(SaFixed),
    /// Any bytes.
    Bytes(Bytes),
}

impl AsRef<[u8]> for NewValue {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Fixed(value) => value.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Values one after the other, as a `znode_phys_t` has them.
pub(crate) fn joined(template: &[(SaAttribute, NewValue)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(OLD_ZNODE_BYTES);
    for (_, value) in template {
        bytes.extend_from_slice(value.as_ref());
    }
    bytes
}

/// An attribute of one number.
pub(crate) fn number(attribute: SaAttribute, value: u64) -> Attribute {
    (attribute, Bytes::copy_from_slice(&value.to_le_bytes()))
}

/// A time as an attribute's value.
fn time(value: Time) -> SaFixed {
    SaFixed::pair(value.seconds as u64, u64::from(value.nanoseconds))
}

fn parse_number(ino: u64, bytes: &[u8]) -> Result<u64> {
    let bytes = bytes.first_chunk().ok_or(FsError::Corrupt {
        ino,
        what: "an attribute is cut short",
    })?;
    Ok(u64::from_le_bytes(*bytes))
}

fn parse_time(ino: u64, bytes: &[u8]) -> Result<Time> {
    let seconds = parse_number(ino, bytes)?;
    let nanoseconds = parse_number(ino, bytes.get(8..).unwrap_or(&[]))?;
    Ok(Time {
        seconds: seconds as i64,
        nanoseconds: (nanoseconds % 1_000_000_000) as u32,
    })
}

impl Znode {
    /// From all attributes of an object.
    pub(crate) fn parse<V: AsRef<[u8]>>(
        ino: u64,
        bonus_type: ObjectType,
        attributes: &[(SaAttribute, V)],
    ) -> Result<Self> {
        let mut znode = Self {
            mode: 0,
            size: 0,
            generation: 0,
            uid: 0,
            gid: 0,
            parent: 0,
            flags: 0,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            crtime: Time::default(),
            links: 0,
            rdev: 0,
            xattr: 0,
            project: None,
            is_old: bonus_type == ObjectType::ZNODE,
        };
        for (attribute, bytes) in attributes {
            let bytes = bytes.as_ref();
            match *attribute {
                attr::ATIME => znode.atime = parse_time(ino, bytes)?,
                attr::MTIME => znode.mtime = parse_time(ino, bytes)?,
                attr::CTIME => znode.ctime = parse_time(ino, bytes)?,
                attr::CRTIME => znode.crtime = parse_time(ino, bytes)?,
                attr::GEN => znode.generation = parse_number(ino, bytes)?,
                attr::MODE => znode.mode = parse_number(ino, bytes)? as u32,
                attr::SIZE => znode.size = parse_number(ino, bytes)?,
                attr::PARENT => znode.parent = parse_number(ino, bytes)?,
                attr::LINKS => znode.links = parse_number(ino, bytes)?,
                attr::XATTR => znode.xattr = parse_number(ino, bytes)?,
                attr::RDEV => znode.rdev = parse_number(ino, bytes)?,
                attr::FLAGS => znode.flags = parse_number(ino, bytes)?,
                attr::UID => znode.uid = parse_number(ino, bytes)?,
                attr::GID => znode.gid = parse_number(ino, bytes)?,
                attr::PROJID => znode.project = Some(parse_number(ino, bytes)?),
                _ => {}
            }
        }
        if FileKind::from_mode(znode.mode).is_none() {
            return Err(FsError::Corrupt {
                ino,
                what: "its mode names no kind of file",
            });
        }
        Ok(znode)
    }

    /// The kind; a parsed or made znode always has one.
    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// An attribute's present value, to be written.
    pub(crate) fn get(&self, attribute: SaAttribute) -> Attribute {
        let value = self.fixed(attribute);
        (attribute, Bytes::copy_from_slice(value.as_bytes()))
    }

    /// The same, as a value.
    pub(crate) fn fixed(&self, attribute: SaAttribute) -> SaFixed {
        match attribute {
            attr::ATIME => time(self.atime),
            attr::MTIME => time(self.mtime),
            attr::CTIME => time(self.ctime),
            attr::CRTIME => time(self.crtime),
            attr::GEN => SaFixed::number(self.generation),
            attr::MODE => SaFixed::number(u64::from(self.mode)),
            attr::SIZE => SaFixed::number(self.size),
            attr::PARENT => SaFixed::number(self.parent),
            attr::LINKS => SaFixed::number(self.links),
            attr::XATTR => SaFixed::number(self.xattr),
            attr::RDEV => SaFixed::number(self.rdev),
            attr::FLAGS => SaFixed::number(self.flags),
            attr::UID => SaFixed::number(self.uid),
            attr::GID => SaFixed::number(self.gid),
            attr::PROJID => SaFixed::number(self.project.unwrap_or(0)),
            _ => unreachable!("only attributes of fixed length are asked for"),
        }
    }

    /// All attributes of a new file, in `zfs_mknode`'s order. For an old znode the list of access
    /// is put into `ZNODE_ACL` ([`old_acl`]); a long one is in the object `external`.
    pub(crate) fn template(
        &self,
        acl: &Acl,
        version: u64,
        external: Option<ObjectId>,
    ) -> Vec<(SaAttribute, NewValue)> {
        use attr::*;
        let mut list = Vec::with_capacity(NEW_ATTRIBUTES_MAX);
        let own = |attribute| (attribute, NewValue::Fixed(self.fixed(attribute)));
        if self.is_old {
            let fixed = [
                ATIME, MTIME, CTIME, CRTIME, GEN, MODE, SIZE, PARENT, LINKS, XATTR, RDEV, FLAGS,
                UID, GID,
            ];
            list.extend(fixed.map(own));
            list.push((PAD, NewValue::Bytes(Bytes::from_static(&[0; 32]))));
            let acl = old_acl(acl, version, external);
            list.push((ZNODE_ACL, NewValue::Bytes(acl)));
            return list;
        }
        let fixed = [
            MODE, SIZE, GEN, UID, GID, PARENT, FLAGS, ATIME, MTIME, CTIME, CRTIME, LINKS,
        ];
        list.extend(fixed.map(own));
        if self.project.is_some() {
            list.push(own(PROJID));
        }
        if self.kind().is_device() {
            list.push(own(RDEV));
        }
        let count = SaFixed::number(acl.entries.len() as u64);
        list.push((DACL_COUNT, NewValue::Fixed(count)));
        list.push((DACL_ACES, NewValue::Bytes(Bytes::from(acl.encode()))));
        list
    }
}

/// Attributes that a new file has at most.
const NEW_ATTRIBUTES_MAX: usize = 17;

/// The two attributes that hold a list of access.
pub(crate) fn acl_attributes(acl: &Acl) -> [Attribute; 2] {
    [
        number(attr::DACL_COUNT, acl.entries.len() as u64),
        (attr::DACL_ACES, Bytes::from(acl.encode())),
    ]
}

/// Room for entries in a `ZNODE_ACL`, in bytes (`ZFS_ACE_SPACE`).
const ACE_SPACE_BYTES: usize = 72;

/// The entries of a list as old znodes have them, where they are too long for the znode itself.
pub(crate) fn long_aces(acl: &Acl, version: u64) -> Option<Vec<u8>> {
    let aces = old_aces(acl, version);
    (aces.len() > ACE_SPACE_BYTES).then_some(aces)
}

fn old_aces(acl: &Acl, version: u64) -> Vec<u8> {
    match version >= ZPL_VERSION_FUID {
        true => acl.encode(),
        false => acl.encode_v0(),
    }
}

/// A list of access as `zfs_acl_phys_t` (version 1) or `zfs_acl_phys_v0_t`. The entries are in it,
/// or ([`long_aces`]) in the object `external`. A trivial list always fits.
pub(crate) fn old_acl(acl: &Acl, version: u64, external: Option<ObjectId>) -> Bytes {
    let aces = old_aces(acl, version);
    let mut bytes = vec![0; 88];
    let count = acl.entries.len();
    if version >= ZPL_VERSION_FUID {
        bytes[8..12].copy_from_slice(&(aces.len() as u32).to_le_bytes());
        bytes[12..14].copy_from_slice(&1u16.to_le_bytes());
        bytes[14..16].copy_from_slice(&(count as u16).to_le_bytes());
    } else {
        bytes[8..12].copy_from_slice(&(count as u32).to_le_bytes());
    }
    match external {
        Some(object) => bytes[..8].copy_from_slice(&object.get().to_le_bytes()),
        None => bytes[16..16 + aces.len()].copy_from_slice(&aces),
    }
    Bytes::from(bytes)
}

/// The object that a `ZNODE_ACL` names for its entries; whether they can be read or not.
pub(crate) fn external_acl(bytes: &[u8]) -> Option<ObjectId> {
    let object = u64::from_le_bytes(*bytes.first_chunk()?);
    (1..ObjectId::LIMIT)
        .contains(&object)
        .then(|| ObjectId::new(object))
}

/// What is in a `ZNODE_ACL`: the list if it is embedded, else the object that holds it with its
/// size in bytes and count.
pub(crate) enum OldAcl {
    /// Here it is.
    Embedded(Acl),
    /// In another object.
    External {
        object: u64,
        size_bytes: u64,
        count: u64,
        is_v0: bool,
    },
}

/// Reads a `ZNODE_ACL`.
pub(crate) fn parse_old_acl(bytes: &[u8]) -> Option<OldAcl> {
    let object = u64::from_le_bytes(*bytes.first_chunk()?);
    let word = u32::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    let version = u16::from_le_bytes(*bytes.get(12..)?.first_chunk()?);
    let count16 = u16::from_le_bytes(*bytes.get(14..)?.first_chunk()?);
    let (size_bytes, count) = if version == 0 {
        (u64::from(word) * 12, u64::from(word))
    } else {
        (u64::from(word), u64::from(count16))
    };
    if object != 0 {
        return Some(OldAcl::External {
            object,
            size_bytes,
            count,
            is_v0: version == 0,
        });
    }
    let data = bytes.get(16..16 + usize::try_from(size_bytes).ok()?)?;
    let acl = if version == 0 {
        Acl::decode_v0(data, count, Endian::Little)
    } else {
        Acl::decode(data, count)
    };
    acl.map(OldAcl::Embedded)
}

/// ZPL versions (include/sys/zfs_znode.h, zfs.h).
pub(crate) const ZPL_VERSION_DIRENT_TYPE: u64 = 2;
/// Ids with domains; lists of access of version 1.
pub(crate) const ZPL_VERSION_FUID: u64 = 3;
/// Space by user and group, and quotas.
pub(crate) const ZPL_VERSION_USERSPACE: u64 = 4;
/// System attributes.
pub(crate) const ZPL_VERSION_SA: u64 = 5;
/// The newest that is known.
pub(crate) const ZPL_VERSION: u64 = 5;

/// A directory entry's value: object number below, kind in the top four bits
/// (`ZFS_DIRENT_TYPE`, `ZFS_DIRENT_OBJ`).
pub(crate) fn dirent(ino: u64, kind: FileKind, version: u64) -> u64 {
    if version >= ZPL_VERSION_DIRENT_TYPE {
        ino | (kind as u64) << 60
    } else {
        ino
    }
}

/// Object number and kind (if told) of a directory entry.
pub(crate) fn parse_dirent(value: u64) -> (u64, Option<FileKind>) {
    (
        value & ((1 << 48) - 1),
        FileKind::from_number((value >> 60) as u8),
    )
}

/// Linux's device number in 32 bits (`MKDEV`: 12 bits major, 20 bits minor).
pub(crate) fn encode_rdev((major, minor): (u32, u32)) -> u64 {
    u64::from(major) << 20 | u64::from(minor & 0xf_ffff)
}

/// Major and minor of a stored device number.
pub(crate) fn decode_rdev(rdev: u64) -> (u32, u32) {
    ((rdev >> 20) as u32, (rdev & 0xf_ffff) as u32)
}

/// Most links that a file can have (`ZFS_LINK_MAX`, module/os/linux/zfs/zfs_vnops_os.c).
pub(crate) const LINKS_MAX: u64 = u64::MAX >> 1;

/// What is stored of a directory whose entries changed.
pub(crate) const PARENT_ATTRIBUTES: [SaAttribute; 5] = [
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

/// Whether the object holds an extended attribute. What is logged of it goes into the log with the
/// next commit of any object: who syncs a file means its attributes too.
pub(crate) fn is_of_xattr(znode: &Znode) -> bool {
    znode.flags & pflags::XATTR != 0
}

/// The mode without its set-id bits, as Linux takes them away (`setattr_should_drop_sgid`,
/// fs/attr.c): set-group-id stays where the group may not execute, unless the caller is a stranger
/// to the group.
pub(crate) fn without_set_id(znode: &Znode, caller: Caller) -> u32 {
    let group_id = match znode.mode & 0o2010 {
        0o2010 => 0o2000,
        0o2000 if !caller.may_keep_set_group_id(znode.gid) => 0o2000,
        _ => 0,
    };
    znode.mode & !(0o4000 | group_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Znode {
        Znode {
            mode: 0o100_644,
            size: 9,
            generation: 11,
            uid: 1000,
            gid: 1001,
            parent: 34,
            flags: pflags::PROJID | pflags::ARCHIVE,
            atime: Time {
                seconds: -5,
                nanoseconds: 999_999_999,
            },
            mtime: Time {
                seconds: 2,
                nanoseconds: 3,
            },
            ctime: Time {
                seconds: 4,
                nanoseconds: 5,
            },
            crtime: Time {
                seconds: 6,
                nanoseconds: 7,
            },
            links: 1,
            rdev: 0,
            xattr: 0,
            project: Some(77),
            is_old: false,
        }
    }

    #[test]
    fn attributes_survive_and_ids_lie_where_quotas_look() {
        let znode = sample();
        let list = znode.template(&Acl::trivial(0o644, false), ZPL_VERSION, None);
        assert_eq!(Znode::parse(5, ObjectType::SA, &list).unwrap(), znode);
        // Where `zpl_get_file_info` looks (SA_*_OFFSET, include/sys/zfs_sa.h).
        let bytes = joined(&list);
        for (offset, value) in [(24, 1000), (32, 1001), (48, znode.flags), (128, 77u64)] {
            assert_eq!(bytes[offset..offset + 8], value.to_le_bytes(), "{offset}");
        }
        assert_eq!(
            bytes.len() + 8,
            176,
            "as in the pool 'plain', with the header of 8 bytes"
        );
    }

    #[test]
    fn an_old_znode_has_the_fixed_layout() {
        let znode = Znode {
            is_old: true,
            project: None,
            ..sample()
        };
        let list = znode.template(&Acl::trivial(0o644, false), 3, None);
        let bytes = joined(&list);
        assert_eq!(bytes.len(), OLD_ZNODE_BYTES);
        assert_eq!(bytes[128..136], 1000u64.to_le_bytes());
        assert_eq!(bytes[136..144], 1001u64.to_le_bytes());
        let Some(OldAcl::Embedded(acl)) = parse_old_acl(&bytes[176..]) else {
            panic!()
        };
        assert_eq!(acl, Acl::trivial(0o644, false));
        let Some(OldAcl::Embedded(acl)) = parse_old_acl(&old_acl(&acl, 1, None)) else {
            panic!()
        };
        assert_eq!(acl, Acl::trivial(0o644, false));
    }

    #[test]
    fn entries_and_device_numbers() {
        assert_eq!(
            parse_dirent(dirent(34, FileKind::Directory, 5)),
            (34, Some(FileKind::Directory))
        );
        assert_eq!(parse_dirent(dirent(34, FileKind::Directory, 1)), (34, None));
        assert_eq!(decode_rdev(encode_rdev((8, 17))), (8, 17));
        assert_eq!(
            decode_rdev(encode_rdev((4095, 1_048_575))),
            (4095, 1_048_575)
        );
    }

    #[test]
    fn damaged_attributes_are_errors() {
        assert!(
            Znode::parse(
                5,
                ObjectType::SA,
                &[(attr::MODE, Bytes::from_static(b"xy"))]
            )
            .is_err()
        );
        let none: [Attribute; 0] = [];
        assert!(Znode::parse(5, ObjectType::SA, &none).is_err());
    }
}
