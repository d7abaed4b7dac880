//! What callers say about the blocks that they read and write.

use bytes::Bytes;
use codec::compress::ZstdLevel;
use format::{Bookmark, Checksum, Compression, CryptParams, ObjectType};
use vdev::{AllocClass, Priority};

use super::dedup::DedupPolicy;

/// What a read does with the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CacheUse {
    /// Looks there first and keeps the result there.
    #[default]
    Normal,
    /// Looks there first, but does not add (intent log replay, one-time scans).
    NoFill,
    /// Goes to the disks, always (scrub).
    Bypass,
}

/// Circumstances of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReadContext {
    /// Whose block it is.
    pub bookmark: Bookmark,
    /// How urgent.
    pub priority: Priority,
    /// What to do with the cache.
    pub cache: CacheUse,
    /// A failure is expected (end of an intent log) and is not reported to the [`ErrorSink`].
    pub speculative: bool,
    /// The key of an encrypted dataset is not to be used: what is in the clear is read without
    /// checking its MAC, and blocks of dnodes with their bonuses as they are stored. Such blocks do
    /// not go through the cache.
    pub without_key: bool,
    /// The second level of the cache may take it (property `secondarycache`): what somebody asked
    /// for, no streams and no walks.
    pub second: bool,
}

impl ReadContext {
    /// An ordinary read that somebody waits for.
    pub fn new(bookmark: Bookmark) -> Self {
        ReadContext {
            bookmark,
            ..ReadContext::default()
        }
    }

    /// One of many that are under way together: those that somebody waits for go first, and
    /// neighbours on a disk are read at once.
    pub fn in_background(bookmark: Bookmark) -> Self {
        ReadContext {
            priority: Priority::Async,
            ..ReadContext::new(bookmark)
        }
    }
}

/// Where a block of an intent log may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlaces {
    /// On log vdevs, which are tried first, or on special ones (`logbias`).
    pub on_log_devices: bool,
    /// Among the data: only while that leaves enough for what is still to be written.
    pub among_data: bool,
}

impl LogPlaces {
    /// On log vdevs, else among the data.
    pub const ANYWHERE: LogPlaces = LogPlaces {
        on_log_devices: true,
        among_data: true,
    };
}

/// A block of an encrypted dataset that is stored as somebody else who had the key stored it: what
/// is written is compressed, encrypted and padded already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawBlock {
    /// Its size when it is decompressed, in bytes.
    pub logical_bytes: u64,
    /// How it is compressed; a stored kind.
    pub compression: Compression,
    /// Salt and IV, of blocks of encrypted types.
    pub crypt: Option<CryptParams>,
    /// The MAC; roots of object sets have theirs within.
    pub mac: Option<[u8; 16]>,
}

/// What a block holds that is to be written, and how it was compressed where it came from, if that
/// is known: it is then stored as that (`ZIO_FLAG_RAW_COMPRESS`, module/zfs/zio.c).
#[derive(Debug, Clone)]
pub struct BlockData {
    pub(super) bytes: Bytes,
    pub(super) packed: Option<(Bytes, Compression)>,
}

impl BlockData {
    /// Data together with its compressed form. That they fit each other is the caller's to know:
    /// nobody looks before the block is read again.
    pub fn packed(bytes: Bytes, packed: Bytes, compression: Compression) -> Self {
        Self {
            bytes,
            packed: Some((packed, compression)),
        }
    }

    /// What the block holds.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Length of the compressed form, in bytes; zero without.
    pub fn packed_bytes(&self) -> u64 {
        let packed = self.packed.as_ref();
        packed.map_or(0, |(packed, _)| packed.len() as u64)
    }

    /// Whether this is of these very bytes, in the same memory. They cannot have changed then:
    /// whoever has a share in bytes keeps others from changing them in place.
    pub fn is_of(&self, bytes: &Bytes) -> bool {
        std::ptr::eq(&self.bytes[..], &bytes[..])
    }
}

impl From<Bytes> for BlockData {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            packed: None,
        }
    }
}

/// How a block is to be written (`zio_prop_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WritePolicy {
    /// Type of the object.
    pub object_type: ObjectType,
    /// Level in its tree; zero is data.
    pub level: u8,
    /// The checksum; a stored kind (not `On` or `Inherit`), not an embedded one.
    pub checksum: Checksum,
    /// The compression; a stored kind. `Off` also turns off the detection of zeros.
    pub compression: Compression,
    /// Level of zstd; other kinds ignore it.
    pub zstd_level: ZstdLevel,
    /// Copies, 1 to 3.
    pub copies: u8,
    /// Whether data that compresses to 112 bytes or less may live in the pointer (feature
    /// `embedded_data` enabled). Only used for level 0 of types without fill counts.
    pub allow_embedded: bool,
    /// Whether a new hole remembers its birth (feature `hole_birth` active, and the pointer that
    /// it replaces was not [`format::BlockPointer::HOLE`]).
    pub hole_birth: bool,
    /// Whether the dataset is encrypted: the block is encrypted or authenticated, as its type says,
    /// with the key of the object set in [`Self::bookmark`].
    pub encrypted: bool,
    /// What is written is this block as it is stored: no key is needed. [`Self::encrypted`] is set
    /// then, and [`Self::compression`] does not count.
    pub raw: Option<RawBlock>,
    /// Whether the block may share what another one stores (property `dedup`); its checksum must be
    /// one of dedup tables.
    pub dedup: Option<DedupPolicy>,
    /// Which vdevs to prefer.
    pub class: AllocClass,
    /// A block of the normal class that is stored in this many bytes or fewer prefers special vdevs
    /// (property `special_small_blocks`), while those have room to spare.
    pub special_small_bytes: u32,
    /// Fill count of the pointer (1 for level-0 blocks unless dnodes; see `dbuf_write_ready`).
    /// It may as well be set on the pointer afterwards.
    pub fill: u64,
    /// Whether somebody will read it soon: the written block is put into the cache.
    pub cache: bool,
    /// How urgent.
    pub priority: Priority,
    /// Whose block it is.
    pub bookmark: Bookmark,
}

impl WritePolicy {
    /// Metadata with the usual choices (fletcher4, lz4, two copies, embedding off).
    pub fn metadata(object_type: ObjectType, level: u8) -> Self {
        WritePolicy {
            object_type,
            level,
            checksum: Checksum::Fletcher4,
            compression: Compression::Lz4,
            zstd_level: ZstdLevel::DEFAULT,
            copies: 2,
            allow_embedded: false,
            hole_birth: false,
            encrypted: false,
            raw: None,
            dedup: None,
            class: AllocClass::Normal,
            special_small_bytes: 0,
            fill: 1,
            cache: true,
            priority: Priority::Async,
            bookmark: Bookmark::default(),
        }
    }

    /// User data with the usual choices (fletcher4, lz4, one copy, embedding off).
    pub fn data(object_type: ObjectType) -> Self {
        WritePolicy {
            copies: 1,
            ..WritePolicy::metadata(object_type, 0)
        }
    }
}

/// What to do when a write fails beyond redundancy (the pool property `failmode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FailMode {
    /// Writers wait until [`super::Suspension::resume`].
    #[default]
    Wait,
    /// New transactions are refused; what is being written waits.
    Continue,
}
