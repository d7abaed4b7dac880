//! Codes stored in block pointers and dnodes: compression, checksum and object type.
//!
//! A code that we do not know is kept as a value: reading a pool of a newer release must be
//! able to say what it met.

use std::fmt;

/// How a block is compressed (`enum zio_compress`, include/sys/zio_compress.h). Seven bits on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Property value only: as the parent says.
    Inherit,
    /// Property value only: the default algorithm (lz4 where the feature is enabled).
    On,
    /// Stored as it is.
    Off,
    /// LZJB.
    Lzjb,
    /// All zeros; never seen on a stored block.
    Empty,
    /// gzip at level 1 to 9.
    Gzip(u8),
    /// Runs of zeros only.
    Zle,
    /// LZ4 with ZFS's four-byte big-endian length before it.
    Lz4,
    /// Zstandard with ZFS's eight-byte header before it.
    Zstd,
    /// A code that this release does not know.
    Unknown(u8),
}

impl Compression {
    /// From the stored code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Inherit,
            1 => Self::On,
            2 => Self::Off,
            3 => Self::Lzjb,
            4 => Self::Empty,
            5..=13 => Self::Gzip(code - 4),
            14 => Self::Zle,
            15 => Self::Lz4,
            16 => Self::Zstd,
            other => Self::Unknown(other),
        }
    }

    /// The stored code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Inherit => 0,
            Self::On => 1,
            Self::Off => 2,
            Self::Lzjb => 3,
            Self::Empty => 4,
            Self::Gzip(level) => {
                if level < 1 {
                    5
                } else if level > 9 {
                    13
                } else {
                    level + 4
                }
            }
            Self::Zle => 14,
            Self::Lz4 => 15,
            Self::Zstd => 16,
            Self::Unknown(code) => code,
        }
    }

    /// Whether blocks with this code are stored as they are.
    pub const fn is_off(self) -> bool {
        matches!(self, Self::Off)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inherit => f.write_str("inherit"),
            Self::On => f.write_str("on"),
            Self::Off => f.write_str("uncompressed"),
            Self::Lzjb => f.write_str("lzjb"),
            Self::Empty => f.write_str("empty"),
            Self::Gzip(level) => write!(f, "gzip-{level}"),
            Self::Zle => f.write_str("zle"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd => f.write_str("zstd"),
            Self::Unknown(code) => write!(f, "unknown compression {code}"),
        }
    }
}

/// How a block is checksummed (`enum zio_checksum`, include/sys/zio.h). Eight bits on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checksum {
    /// Property value only: as the parent says.
    Inherit,
    /// Property value only: the default (fletcher4).
    On,
    /// Not checksummed.
    Off,
    /// SHA-256, embedded in the block's tail: labels and uberblocks.
    Label,
    /// SHA-256, embedded in the block's tail: gang headers.
    GangHeader,
    /// Fletcher-2, embedded in the block's tail: intent log blocks of old pools.
    Zilog,
    /// Fletcher-2.
    Fletcher2,
    /// Fletcher-4.
    Fletcher4,
    /// SHA-256.
    Sha256,
    /// Fletcher-4, embedded in the block's head: intent log blocks.
    Zilog2,
    /// Not checksummed and without parity; never seen on a stored block.
    NoParity,
    /// SHA-512/256.
    Sha512,
    /// Skein-512/256 with the pool's salt.
    Skein,
    /// Edon-R-512 with the pool's salt.
    EdonR,
    /// BLAKE3 with the pool's salt.
    Blake3,
    /// A code that this release does not know.
    Unknown(u8),
}

impl Checksum {
    /// From the stored code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Inherit,
            1 => Self::On,
            2 => Self::Off,
            3 => Self::Label,
            4 => Self::GangHeader,
            5 => Self::Zilog,
            6 => Self::Fletcher2,
            7 => Self::Fletcher4,
            8 => Self::Sha256,
            9 => Self::Zilog2,
            10 => Self::NoParity,
            11 => Self::Sha512,
            12 => Self::Skein,
            13 => Self::EdonR,
            14 => Self::Blake3,
            other => Self::Unknown(other),
        }
    }

    /// The stored code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Inherit => 0,
            Self::On => 1,
            Self::Off => 2,
            Self::Label => 3,
            Self::GangHeader => 4,
            Self::Zilog => 5,
            Self::Fletcher2 => 6,
            Self::Fletcher4 => 7,
            Self::Sha256 => 8,
            Self::Zilog2 => 9,
            Self::NoParity => 10,
            Self::Sha512 => 11,
            Self::Skein => 12,
            Self::EdonR => 13,
            Self::Blake3 => 14,
            Self::Unknown(code) => code,
        }
    }

    /// Whether the checksum is stored in the block itself ([`crate::Eck`]) rather than in its
    /// pointer.
    pub const fn is_embedded(self) -> bool {
        matches!(
            self,
            Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2
        )
    }

    /// Whether it is strong enough for metadata (`ZCHECKSUM_FLAG_METADATA`).
    pub const fn is_strong_enough_for_metadata(self) -> bool {
        matches!(
            self,
            Self::Label
                | Self::GangHeader
                | Self::Fletcher4
                | Self::Sha256
                | Self::Sha512
                | Self::Skein
                | Self::EdonR
                | Self::Blake3
        )
    }

    /// Whether two blocks of the same checksum can be taken for the same without comparing them
    /// (`ZCHECKSUM_FLAG_NOPWRITE`).
    pub const fn tells_blocks_apart(self) -> bool {
        matches!(
            self,
            Self::Sha256 | Self::Sha512 | Self::Skein | Self::EdonR | Self::Blake3
        )
    }

    /// Whether there can be a dedup table of it (`DDT_CHECKSUM_VALID`, module/zfs/ddt.c).
    pub const fn has_dedup_table(self) -> bool {
        self.is_dedup() || matches!(self, Self::EdonR)
    }

    /// Whether dedup may rely on it without comparing data (`ZCHECKSUM_FLAG_DEDUP`).
    pub const fn is_dedup(self) -> bool {
        matches!(
            self,
            Self::Sha256 | Self::Sha512 | Self::Skein | Self::Blake3
        )
    }

    /// Whether it is keyed with the pool's salt (`ZCHECKSUM_FLAG_SALTED`).
    pub const fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::EdonR | Self::Blake3)
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inherit => "inherit",
            Self::On => "on",
            Self::Off => "off",
            Self::Label => "label",
            Self::GangHeader => "gang_header",
            Self::Zilog => "zilog",
            Self::Fletcher2 => "fletcher2",
            Self::Fletcher4 => "fletcher4",
            Self::Sha256 => "sha256",
            Self::Zilog2 => "zilog2",
            Self::NoParity => "noparity",
            Self::Sha512 => "sha512",
            Self::Skein => "skein",
            Self::EdonR => "edonr",
            Self::Blake3 => "blake3",
            Self::Unknown(code) => return write!(f, "unknown checksum {code}"),
        })
    }
}

/// What the bytes of an object are, for whoever must swap them
/// (`dmu_object_byteswap_t`, include/sys/dmu.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteswapKind {
    /// Bytes: nothing to swap.
    Uint8,
    /// 16-bit words.
    Uint16,
    /// 32-bit words.
    Uint32,
    /// 64-bit words.
    Uint64,
    /// ZAP blocks.
    Zap,
    /// An array of dnodes.
    Dnode,
    /// An `objset_phys_t`.
    Objset,
    /// A `znode_phys_t`.
    Znode,
    /// An ACL of ZPL version 0.
    OldAcl,
    /// An ACL.
    Acl,
    /// A code that this release does not know.
    Unknown(u8),
}

/// Type of an object (`dmu_object_type_t`, include/sys/dmu.h): one of the old numbered types, or a
/// newer type that spells out its own traits in its bits (0x80 set, 0x40 metadata, 0x20 encrypted,
/// and the [`ByteswapKind`] in the low five bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectType(u8);

struct TypeInfo {
    byteswap: ByteswapKind,
    metadata: bool,
    /// Kept in the cache of hot metadata (`ot_dbuf_metadata_cache`).
    hot: bool,
    encrypted: bool,
    name: &'static str,
}

macro_rules! object_types {
    ($(
        $code:literal $name:ident $swap:ident
        $metadata:literal $hot:literal $encrypted:literal $text:literal;
    )*) => {
        impl ObjectType {
            $(#[doc = concat!("\"", $text, "\" (`DMU_OT_", stringify!($name), "`).")]
            pub const $name: Self = Self($code);)*
        }

        const TYPES: &[TypeInfo] = &[$(TypeInfo {
            byteswap: ByteswapKind::$swap,
            metadata: $metadata != 0,
            hot: $hot != 0,
            encrypted: $encrypted != 0,
            name: $text,
        }),*];
    };
}

// Facts of `dmu_ot[]`, module/zfs/dmu.c. Columns: code, name, byte swap, metadata, hot, encrypted.
object_types! {
    0 NONE Uint8 1 0 0 "unallocated";
    1 OBJECT_DIRECTORY Zap 1 1 0 "object directory";
    2 OBJECT_ARRAY Uint64 1 1 0 "object array";
    3 PACKED_NVLIST Uint8 1 0 0 "packed nvlist";
    4 PACKED_NVLIST_SIZE Uint64 1 0 0 "packed nvlist size";
    5 BPOBJ Uint64 1 0 0 "bpobj";
    6 BPOBJ_HDR Uint64 1 0 0 "bpobj header";
    7 SPACE_MAP_HEADER Uint64 1 0 0 "SPA space map header";
    8 SPACE_MAP Uint64 1 0 0 "SPA space map";
    9 INTENT_LOG Uint64 1 0 1 "ZIL intent log";
    10 DNODE Dnode 1 0 1 "DMU dnode";
    11 OBJSET Objset 1 1 0 "DMU objset";
    12 DSL_DIR Uint64 1 1 0 "DSL directory";
    13 DSL_DIR_CHILD_MAP Zap 1 1 0 "DSL directory child map";
    14 DSL_DS_SNAP_MAP Zap 1 1 0 "DSL dataset snap map";
    15 DSL_PROPS Zap 1 1 0 "DSL props";
    16 DSL_DATASET Uint64 1 1 0 "DSL dataset";
    17 ZNODE Znode 1 0 0 "ZFS znode";
    18 OLDACL OldAcl 1 0 1 "ZFS V0 ACL";
    19 PLAIN_FILE_CONTENTS Uint8 0 0 1 "ZFS plain file";
    20 DIRECTORY_CONTENTS Zap 1 0 1 "ZFS directory";
    21 MASTER_NODE Zap 1 0 0 "ZFS master node";
    22 UNLINKED_SET Zap 1 0 1 "ZFS delete queue";
    23 ZVOL Uint8 0 0 1 "zvol object";
    24 ZVOL_PROP Zap 1 0 0 "zvol prop";
    25 PLAIN_OTHER Uint8 0 0 1 "other uint8[]";
    26 UINT64_OTHER Uint64 0 0 1 "other uint64[]";
    27 ZAP_OTHER Zap 1 0 0 "other ZAP";
    28 ERROR_LOG Zap 1 0 0 "persistent error log";
    29 SPA_HISTORY Uint8 1 0 0 "SPA history";
    30 SPA_HISTORY_OFFSETS Uint64 1 0 0 "SPA history offsets";
    31 POOL_PROPS Zap 1 1 0 "Pool properties";
    32 DSL_PERMS Zap 1 1 0 "DSL permissions";
    33 ACL Acl 1 0 1 "ZFS ACL";
    34 SYSACL Uint8 1 0 1 "ZFS SYSACL";
    35 FUID Uint8 1 0 1 "FUID table";
    36 FUID_SIZE Uint64 1 0 0 "FUID table size";
    37 NEXT_CLONES Zap 1 1 0 "DSL dataset next clones";
    38 SCAN_QUEUE Zap 1 0 0 "scan work queue";
    39 USERGROUP_USED Zap 1 0 1 "ZFS user/group/project used";
    40 USERGROUP_QUOTA Zap 1 0 1 "ZFS user/group/project quota";
    41 USERREFS Zap 1 1 0 "snapshot refcount tags";
    42 DDT_ZAP Zap 1 0 0 "DDT ZAP algorithm";
    43 DDT_STATS Zap 1 0 0 "DDT statistics";
    44 SA Uint8 1 0 1 "System attributes";
    45 SA_MASTER_NODE Zap 1 0 1 "SA master node";
    46 SA_ATTR_REGISTRATION Zap 1 0 1 "SA attr registration";
    47 SA_ATTR_LAYOUTS Zap 1 0 1 "SA attr layouts";
    48 SCAN_XLATE Zap 1 0 0 "scan translations";
    49 DEDUP Uint8 0 0 1 "deduplicated block";
    50 DEADLIST Zap 1 1 0 "DSL deadlist map";
    51 DEADLIST_HDR Uint64 1 1 0 "DSL deadlist map hdr";
    52 DSL_CLONES Zap 1 1 0 "DSL dir clones";
    53 BPOBJ_SUBOBJ Uint64 1 0 0 "bpobj subobj";
}

impl ObjectType {
    /// Bytes of user data (`DMU_OTN_UINT8_DATA`).
    pub const OTN_UINT8_DATA: Self = Self(0x80);
    /// Bytes of metadata (`DMU_OTN_UINT8_METADATA`).
    pub const OTN_UINT8_METADATA: Self = Self(0xc0);
    /// 16-bit words of metadata (`DMU_OTN_UINT16_METADATA`).
    pub const OTN_UINT16_METADATA: Self = Self(0xc1);
    /// 32-bit words of metadata (`DMU_OTN_UINT32_METADATA`).
    pub const OTN_UINT32_METADATA: Self = Self(0xc2);
    /// 64-bit words of user data (`DMU_OTN_UINT64_DATA`).
    pub const OTN_UINT64_DATA: Self = Self(0x83);
    /// 64-bit words of metadata (`DMU_OTN_UINT64_METADATA`).
    pub const OTN_UINT64_METADATA: Self = Self(0xc3);
    /// A ZAP of user data (`DMU_OTN_ZAP_DATA`).
    pub const OTN_ZAP_DATA: Self = Self(0x84);
    /// A ZAP of metadata (`DMU_OTN_ZAP_METADATA`).
    pub const OTN_ZAP_METADATA: Self = Self(0xc4);

    /// From the stored code; every code is a value.
    pub const fn from_code(code: u8) -> Self {
        Self(code)
    }

    /// The stored code.
    pub const fn code(self) -> u8 {
        self.0
    }

    fn info(self) -> Option<&'static TypeInfo> {
        TYPES.get(usize::from(self.0))
    }

    /// Whether it is a newer type that spells out its traits.
    pub const fn is_new_type(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// Whether the format defines this code (`DMU_OT_IS_VALID`).
    pub const fn is_valid(self) -> bool {
        if self.is_new_type() {
            self.0 & 0x1f < 10
        } else {
            (self.0 as usize) < TYPES.len()
        }
    }

    /// Whether its blocks are metadata (`DMU_OT_IS_METADATA`). Unknown types count as metadata.
    pub fn is_metadata(self) -> bool {
        if self.is_new_type() {
            self.0 & 0x40 != 0
        } else {
            self.info().is_none_or(|info| info.metadata)
        }
    }

    /// Whether its blocks belong in the cache of hot metadata (`DMU_OT_IS_METADATA_CACHED`).
    pub fn is_hot_metadata(self) -> bool {
        if self.is_new_type() {
            self.0 & 0x40 != 0
        } else {
            self.info().is_some_and(|info| info.hot)
        }
    }

    /// Whether its blocks are encrypted in an encrypted dataset (`DMU_OT_IS_ENCRYPTED`).
    pub fn is_encrypted(self) -> bool {
        if self.is_new_type() {
            self.0 & 0x20 != 0
        } else {
            self.info().is_some_and(|info| info.encrypted)
        }
    }

    /// Whether a level-0 block's pointer has a fill count other than one, and so cannot be
    /// embedded (`DMU_OT_HAS_FILL`).
    pub const fn has_fill(self) -> bool {
        matches!(self, Self::DNODE | Self::OBJSET)
    }

    /// How its bytes are to be swapped (`DMU_OT_BYTESWAP`).
    pub fn byteswap(self) -> ByteswapKind {
        if self.is_new_type() {
            match self.0 & 0x1f {
                0 => ByteswapKind::Uint8,
                1 => ByteswapKind::Uint16,
                2 => ByteswapKind::Uint32,
                3 => ByteswapKind::Uint64,
                4 => ByteswapKind::Zap,
                5 => ByteswapKind::Dnode,
                6 => ByteswapKind::Objset,
                7 => ByteswapKind::Znode,
                8 => ByteswapKind::OldAcl,
                9 => ByteswapKind::Acl,
                other => ByteswapKind::Unknown(other),
            }
        } else {
            self.info()
                .map_or(ByteswapKind::Unknown(self.0), |info| info.byteswap)
        }
    }
}

impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None if self.is_valid() => {
                let swap = match self.byteswap() {
                    ByteswapKind::Uint8 => "uint8",
                    ByteswapKind::Uint16 => "uint16",
                    ByteswapKind::Uint32 => "uint32",
                    ByteswapKind::Uint64 => "uint64",
                    ByteswapKind::Zap => "zap",
                    ByteswapKind::Dnode => "dnode",
                    ByteswapKind::Objset => "objset",
                    ByteswapKind::Znode => "znode",
                    ByteswapKind::OldAcl => "oldacl",
                    ByteswapKind::Acl => "acl",
                    ByteswapKind::Unknown(_) => "unknown",
                };
                let kind = if self.is_metadata() {
                    "metadata"
                } else {
                    "data"
                };
                let secret = if self.is_encrypted() {
                    " (encrypted)"
                } else {
                    ""
                };
                write!(f, "bswap {swap} {kind}{secret}")
            }
            None => write!(f, "unknown object type {}", self.0),
        }
    }
}
