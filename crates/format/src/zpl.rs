//! What filesystems store in their objects: attributes, old znodes, directory entries, ACLs.
//!
//! # Directory entry
//!
//! A ZAP's value of one word: object number in bits 0..48, type (mode bits 12..16) in 60..64.
//!
//! # Access control entry
//!
//! Type (2 bytes), flags (2), mask (4), then for a user or a group its FUID (8), and for an object
//! entry two GUIDs (16 each). Owner, owning group and everyone have no FUID.

use crate::bytes::{Endian, Put, Reader, bits, with_bits};
use crate::error::{Result, bad};
use crate::ids::{ObjectId, Txg};
use crate::sa::SaByteswap;
use crate::words::disk_struct;

/// An attribute of files: index into [`ZPL_ATTRIBUTES`] (`zpl_attr_t`, include/sys/zfs_sa.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum ZplAttribute {
    /// When it was read: seconds and nanoseconds.
    AccessTime = 0,
    /// When its data was changed.
    ModifyTime = 1,
    /// When its attributes were changed.
    ChangeTime = 2,
    /// When it was created.
    CreateTime = 3,
    /// Generation: the txg of its creation.
    Generation = 4,
    /// Type and permissions.
    Mode = 5,
    /// Size in bytes; of a directory, entries.
    Size = 6,
    /// The directory that it is in.
    Parent = 7,
    /// Links.
    Links = 8,
    /// Directory of extended attributes.
    XattrDirectory = 9,
    /// Device number.
    Rdev = 10,
    /// Flags [`crate::file_flags`].
    Flags = 11,
    /// Owner.
    Uid = 12,
    /// Group.
    Gid = 13,
    /// Unused.
    Pad = 14,
    /// ACL of old znodes.
    ZnodeAcl = 15,
    /// Number of entries in the ACL.
    AclCount = 16,
    /// Target of a symbolic link.
    Symlink = 17,
    /// Stamp of a virus scanner.
    ScanStamp = 18,
    /// Entries of the ACL.
    AclEntries = 19,
    /// Extended attributes: a packed list (XDR) of byte arrays.
    Xattrs = 20,
    /// Project.
    ProjectId = 21,
    /// Number of changes (after 2.3).
    Sequence = 22,
}

/// What is registered of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZplAttributeInfo {
    /// Which one.
    pub attribute: ZplAttribute,
    /// Its name in the registry.
    pub name: &'static str,
    /// Its length in bytes; zero is variable.
    pub length_bytes: u16,
    /// How it is to be swapped.
    pub byteswap: SaByteswap,
}

macro_rules! attributes {
    ($($attribute:ident $name:literal $length:literal $swap:ident;)*) => {
        /// All attributes in order (`zfs_attr_table`, module/zfs/zfs_sa.c). In a filesystem
        /// that we make, an attribute's number is its index here; in others the registry says it.
        pub const ZPL_ATTRIBUTES: &[ZplAttributeInfo] = &[$(ZplAttributeInfo {
            attribute: ZplAttribute::$attribute,
            name: $name,
            length_bytes: $length,
            byteswap: SaByteswap::$swap,
        }),*];
    };
}

attributes! {
    AccessTime "ZPL_ATIME" 16 Uint64;
    ModifyTime "ZPL_MTIME" 16 Uint64;
    ChangeTime "ZPL_CTIME" 16 Uint64;
    CreateTime "ZPL_CRTIME" 16 Uint64;
    Generation "ZPL_GEN" 8 Uint64;
    Mode "ZPL_MODE" 8 Uint64;
    Size "ZPL_SIZE" 8 Uint64;
    Parent "ZPL_PARENT" 8 Uint64;
    Links "ZPL_LINKS" 8 Uint64;
    XattrDirectory "ZPL_XATTR" 8 Uint64;
    Rdev "ZPL_RDEV" 8 Uint64;
    Flags "ZPL_FLAGS" 8 Uint64;
    Uid "ZPL_UID" 8 Uint64;
    Gid "ZPL_GID" 8 Uint64;
    Pad "ZPL_PAD" 32 Uint64;
    ZnodeAcl "ZPL_ZNODE_ACL" 88 Uint8;
    AclCount "ZPL_DACL_COUNT" 8 Uint64;
    Symlink "ZPL_SYMLINK" 0 Uint8;
    ScanStamp "ZPL_SCANSTAMP" 32 Uint8;
    AclEntries "ZPL_DACL_ACES" 0 Acl;
    Xattrs "ZPL_DXATTR" 0 Uint8;
    ProjectId "ZPL_PROJID" 8 Uint64;
    Sequence "ZPL_SEQ" 8 Uint64;
}

/// Attributes that OpenZFS 2.3 knows and registers: all but the last.
pub const ZPL_ATTRIBUTES_2_3: usize = 22;

impl ZplAttribute {
    /// What is registered of it.
    pub fn info(self) -> &'static ZplAttributeInfo {
        &ZPL_ATTRIBUTES[self as usize]
    }

    /// By the registry's name.
    pub fn from_name(name: &str) -> Option<Self> {
        ZPL_ATTRIBUTES
            .iter()
            .find(|info| info.name == name)
            .map(|info| info.attribute)
    }
}

/// Version of filesystems that we make (`ZPL_VERSION`): 5 has system attributes.
pub const ZPL_VERSION: u64 = 5;

/// Value of a directory's entry: which object, and the type bits of its mode shifted down
/// (`S_IFMT >> 12`; zero in filesystems before version 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DirectoryEntry {
    /// The object.
    pub object: ObjectId,
    /// Its type: four bits.
    pub type_code: u8,
}

impl DirectoryEntry {
    /// From the ZAP's value.
    pub const fn decode(word: u64) -> Self {
        Self {
            object: ObjectId::new(bits(word, 0, 48)),
            type_code: bits(word, 60, 4) as u8,
        }
    }

    /// The ZAP's value.
    pub const fn encode(self) -> u64 {
        with_bits(bits(self.object.get(), 0, 48), 60, 4, self.type_code as u64)
    }
}

disk_struct! {
    /// A file's metadata before version 5 (`znode_phys_t`, include/sys/zfs_znode.h): the bonus of
    /// its object. A symbolic link's target, when short, follows.
    ZnodePhys, "znode_phys_t", 264 {
        /// When it was read: seconds and nanoseconds.
        access_time: [u64; 2],
        /// When its data was changed.
        modify_time: [u64; 2],
        /// When its attributes were changed.
        change_time: [u64; 2],
        /// When it was created.
        create_time: [u64; 2],
        /// The txg of its creation.
        generation: Txg,
        /// Type and permissions.
        mode: u64,
        /// Size in bytes.
        size_bytes: u64,
        /// The directory that it is in.
        parent: ObjectId,
        /// Links.
        links: u64,
        /// Directory of extended attributes.
        xattr_directory: ObjectId,
        /// Device number.
        rdev: u64,
        /// Flags [`crate::file_flags`].
        flags: u64,
        /// Owner.
        uid: u64,
        /// Group.
        gid: u64,
        /// Unused.
        extra_attributes: u64,
        /// Unused.
        pad: [u64; 3],
    }
}

impl ZnodePhys {
    /// Where the ACL is in the bonus; see [`ZnodeAcl`].
    pub const ACL_OFFSET: usize = 176;
}

/// ACL in an old znode (`zfs_acl_phys_t`): object of an ACL kept apart (8 bytes), size of the ACL
/// (4), version (2), entries (2), entries that fit (72).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZnodeAcl {
    /// Object that holds the entries; zero when they are in the znode.
    pub object: ObjectId,
    /// Size of the entries in bytes (in version 0 their number).
    pub size: u32,
    /// Version: 0 has entries of a fixed size.
    pub version: u16,
    /// Number of entries.
    pub count: u16,
    /// Entries in the znode, in its byte order.
    pub entries: [u8; 72],
}

impl ZnodeAcl {
    /// Size in bytes.
    pub const BYTES: usize = 88;

    /// Decodes 88 bytes.
    ///
    /// # Errors
    /// [`crate::FormatError::TooShort`].
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self> {
        let mut r = Reader::new("zfs_acl_phys_t", bytes, endian);
        Ok(Self {
            object: r.u64()?.into(),
            size: r.u32()?,
            version: r.u16()?,
            count: r.u16()?,
            entries: r.array()?,
        })
    }

    /// The 88 bytes, little-endian (entries as they are).
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_u64(self.object.get());
        out.put_u32(self.size);
        out.put_u16(self.version);
        out.put_u16(self.count);
        out.extend_from_slice(&self.entries);
        crate::bytes::exact(&out)
    }
}

/// Who an access control entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AceWho {
    /// The owner.
    Owner,
    /// The owning group.
    OwningGroup,
    /// Everyone.
    Everyone,
    /// A user or a group (as the flags say), by FUID.
    Id(u64),
}

/// An access control entry (`zfs_ace_t` and its relatives, include/sys/zfs_acl.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ace {
    /// 0 allow, 1 deny, 2 audit, 3 alarm; 5 to 8 the same for objects.
    pub kind: u16,
    /// Flags, without those that say who it is about.
    pub flags: u16,
    /// What is allowed or denied.
    pub mask: u32,
    /// Who it is about.
    pub who: AceWho,
    /// Types of object and of inheriting object.
    pub object_types: Option<[[u8; 16]; 2]>,
}

impl Ace {
    /// Flag: about the owner.
    pub const FLAG_OWNER: u16 = 0x1000;
    /// Flag: about the owning group.
    pub const FLAG_GROUP: u16 = 0x2000;
    /// Flag: about everyone.
    pub const FLAG_EVERYONE: u16 = 0x4000;
    /// Flag: the FUID is a group's.
    pub const FLAG_IDENTIFIER_GROUP: u16 = 0x0040;
    const WHO_FLAGS: u16 =
        Self::FLAG_OWNER | Self::FLAG_GROUP | Self::FLAG_EVERYONE | Self::FLAG_IDENTIFIER_GROUP;
    const OWNING_GROUP: u16 = Self::FLAG_GROUP | Self::FLAG_IDENTIFIER_GROUP;

    const fn is_object(kind: u16) -> bool {
        matches!(kind, 5..=8)
    }

    /// Decodes `count` entries.
    ///
    /// # Errors
    /// [`crate::FormatError`] when there are fewer bytes than entries need.
    pub fn decode_all(bytes: &[u8], count: u64, endian: Endian) -> Result<Vec<Self>> {
        if count > bytes.len() as u64 / 8 {
            return Err(bad(
                "zfs_ace_t",
                "count",
                count,
                "as many as there are bytes for",
            ));
        }
        let mut r = Reader::new("zfs_ace_t", bytes, endian);
        (0..count).map(|_| Self::read(&mut r)).collect()
    }

    fn read(r: &mut Reader<'_>) -> Result<Self> {
        let kind = r.u16()?;
        let flags = r.u16()?;
        let mask = r.u32()?;
        let is_object = Self::is_object(kind);
        let who = match flags & Self::WHO_FLAGS {
            Self::FLAG_OWNER if !is_object => AceWho::Owner,
            Self::OWNING_GROUP if !is_object => AceWho::OwningGroup,
            Self::FLAG_EVERYONE if !is_object => AceWho::Everyone,
            _ => AceWho::Id(r.u64()?),
        };
        let object_types = if is_object {
            Some([r.array()?, r.array()?])
        } else {
            None
        };
        let flags = match who {
            AceWho::Id(_) => flags,
            _ => flags & !Self::WHO_FLAGS,
        };
        Ok(Self {
            kind,
            flags,
            mask,
            who,
            object_types,
        })
    }

    /// The entries' bytes, little-endian.
    pub fn encode_all(entries: &[Self]) -> Vec<u8> {
        let mut out = Vec::new();
        for entry in entries {
            let who = match entry.who {
                AceWho::Owner => Self::FLAG_OWNER,
                AceWho::OwningGroup => Self::OWNING_GROUP,
                AceWho::Everyone => Self::FLAG_EVERYONE,
                AceWho::Id(_) => 0,
            };
            out.put_u16(entry.kind);
            out.put_u16(entry.flags | who);
            out.put_u32(entry.mask);
            if let AceWho::Id(id) = entry.who {
                out.put_u64(id);
            }
            for guid in entry.object_types.iter().flatten() {
                out.extend_from_slice(guid);
            }
        }
        out
    }
}
