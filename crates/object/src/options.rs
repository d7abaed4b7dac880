//! What an object set and a new object are made with.

use bytes::Bytes;
use codec::compress::ZstdLevel;
use format::{
    BLOCK_POINTER_BYTES, Checksum, Compression, DNODE_BLOCK_BYTES, DNODE_SLOT_BYTES,
    MAX_BLOCK_BYTES, MAX_DNODE_POINTERS, MAX_INDIRECT_SHIFT, MIN_INDIRECT_SHIFT, ObjectId,
    ObjectType, SECTOR_BYTES, max_bonus_bytes,
};
use zio::CacheUse;

use crate::dnode::Meta;
use crate::error::{ObjectError, Result};

/// How many more copies metadata gets than data (property `redundant_metadata`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RedundantMetadata {
    /// All metadata.
    #[default]
    All,
    /// Indirect blocks of two levels and more, and the metadata of files.
    Most,
    /// Only what many files depend on.
    Some,
    /// None.
    None,
}

/// How an object set's blocks are written: the dataset's properties, resolved. May change at any
/// time; what is written later follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteProperties {
    /// Checksum of data, never `Inherit` or `On`.
    pub checksum: Checksum,
    /// Blocks of data that are the same are stored once: by which checksum, which then replaces
    /// [`Self::checksum`].
    pub dedup: Option<DedupProperty>,
    /// Compression of data, never `Inherit` or `On`.
    pub compression: Compression,
    /// Level of zstd; other kinds ignore it.
    pub zstd_level: ZstdLevel,
    /// Copies of data, 1 to 3. The MOS has 3.
    pub copies: u8,
    /// Copies of metadata.
    pub redundant_metadata: RedundantMetadata,
    /// Blocks up to this size go to the special class.
    pub special_small_blocks: u32,
    /// Default data block size for new objects that do not say, in bytes.
    pub record_bytes: u32,
    /// What is kept in the cache (`primarycache`).
    pub cached: Cached,
    /// What the second level of the cache may keep (`secondarycache`).
    pub cached_second: Cached,
    /// Of what blocks are read ahead (`prefetch`).
    pub prefetched: Cached,
}

/// Property `dedup`, when it is not off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DedupProperty {
    /// Checksum that tells blocks apart; there are tables of it.
    pub checksum: Checksum,
    /// Compare the data as well.
    pub verify: bool,
}

/// Kinds of blocks, as `primarycache` and `prefetch` tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cached {
    /// All.
    #[default]
    All,
    /// Metadata only.
    Metadata,
    /// None.
    None,
}

impl Cached {
    /// Whether a block of an object of this type at this level is meant.
    pub(crate) fn has(self, object_type: ObjectType, level: u8) -> bool {
        match self {
            Self::All => true,
            Self::Metadata => level > 0 || object_type.is_metadata(),
            Self::None => false,
        }
    }

    /// How such a block is read: what is in the cache already is used in any case.
    pub(crate) fn on_read(self, object_type: ObjectType, level: u8) -> CacheUse {
        match self.has(object_type, level) {
            true => CacheUse::Normal,
            false => CacheUse::NoFill,
        }
    }
}

impl Default for WriteProperties {
    fn default() -> Self {
        WriteProperties {
            checksum: Checksum::Fletcher4,
            dedup: None,
            compression: Compression::Lz4,
            zstd_level: ZstdLevel::DEFAULT,
            copies: 1,
            redundant_metadata: RedundantMetadata::All,
            special_small_blocks: 0,
            record_bytes: 128 << 10,
            cached: Cached::All,
            cached_second: Cached::All,
            prefetched: Cached::All,
        }
    }
}

impl WriteProperties {
    /// Those of the MOS: as many copies as there can be.
    pub fn mos() -> Self {
        WriteProperties {
            copies: 3,
            ..WriteProperties::default()
        }
    }
}

/// What an object set needs to know of the pool's enabled features, and its limits.
#[derive(Clone)]
pub struct ObjsetOptions {
    /// How blocks are written.
    pub properties: WriteProperties,
    /// Feature `hole_birth`: holes remember when they were made.
    pub hole_birth: bool,
    /// Feature `embedded_data`.
    pub embedded_data: bool,
    /// Feature `lz4_compress`: metadata is compressed with LZ4, else LZJB.
    pub lz4_metadata: bool,
    /// Nothing will be written.
    pub read_only: bool,
    /// The dataset is encrypted: what is written is encrypted or authenticated with the key that
    /// the pipeline knows for [`Self::dataset`].
    pub encrypted: bool,
    /// The key is not to be used: only what is in the clear can be read, its MACs unchecked, and
    /// nothing written but what is [`Self::raw`].
    pub without_key: bool,
    /// What is written comes from a raw stream ([`crate::RawData`]), also without the key
    /// ([`Self::without_key`] is set too). Space is not counted per user.
    pub raw: bool,
    /// Its root has room for what users, groups and projects use, as from version 15 of pools on.
    pub accounts: bool,
    /// Longest data block that can be written, in bytes: the cipher may not take the longest ones.
    pub block_bytes_max: u32,
    /// Idle clean objects that stay in memory.
    pub object_cache_limit: usize,
    /// Dataset's object number in the MOS, 0 for the MOS; for messages and bookmarks.
    pub dataset: ObjectId,
}

impl Default for ObjsetOptions {
    /// Fletcher-4, LZ4, one copy, records of 128 KiB, all features enabled.
    fn default() -> Self {
        ObjsetOptions {
            properties: WriteProperties::default(),
            hole_birth: true,
            embedded_data: true,
            lz4_metadata: true,
            read_only: false,
            encrypted: false,
            without_key: false,
            raw: false,
            accounts: true,
            block_bytes_max: MAX_BLOCK_BYTES as u32,
            object_cache_limit: 16 << 10,
            dataset: ObjectId::ZERO,
        }
    }
}

impl ObjsetOptions {
    /// Refuses what an object would have to write in blocks that cannot be encrypted. A sync that
    /// comes upon one cannot go on.
    ///
    /// # Errors
    /// [`ObjectError::BlockTooLong`].
    pub(crate) fn check_block(&self, object: ObjectId, block_bytes: u32) -> Result<()> {
        let limit_bytes = self.block_bytes_max;
        match block_bytes <= limit_bytes {
            true => Ok(()),
            false => Err(ObjectError::BlockTooLong {
                object,
                block_bytes,
                limit_bytes,
            }),
        }
    }
}

/// What a new object is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// Its type.
    pub object_type: ObjectType,
    /// Size of its data blocks in bytes; 0 for the default (one 512-byte sector, growing while
    /// single).
    pub data_block_bytes: u32,
    /// log2 of the size of its indirect blocks; 0 for the default (17).
    pub indirect_block_shift: u8,
    /// Type of its bonus; [`ObjectType::NONE`] without bonus.
    pub bonus_type: ObjectType,
    /// Content of the bonus; its length is the bonus's length.
    pub bonus: Bytes,
    /// Slots of 512 bytes the dnode takes (property `dnodesize`); 0 for one.
    pub slots: u8,
}

impl NewObject {
    /// An object of this type without bonus, everything else by default.
    pub fn new(object_type: ObjectType) -> Self {
        NewObject {
            object_type,
            data_block_bytes: 0,
            indirect_block_shift: 0,
            bonus_type: ObjectType::NONE,
            bonus: Bytes::new(),
            slots: 0,
        }
    }

    /// With a bonus.
    pub fn with_bonus(self, bonus_type: ObjectType, bonus: impl Into<Bytes>) -> Self {
        NewObject {
            bonus_type,
            bonus: bonus.into(),
            ..self
        }
    }

    /// With data blocks of this size.
    pub fn with_block_bytes(self, data_block_bytes: u32) -> Self {
        NewObject {
            data_block_bytes,
            ..self
        }
    }

    /// With a dnode of this many slots.
    pub fn with_slots(self, slots: u8) -> Self {
        NewObject { slots, ..self }
    }

    /// The dnode that this becomes (`dnode_allocate`, module/zfs/dnode.c).
    pub(crate) fn meta(&self, id: ObjectId) -> Result<Meta> {
        let slots = self.slots.max(1);
        let too_big = |what: String| ObjectError::TooBig { object: id, what };
        if usize::from(slots) * DNODE_SLOT_BYTES > DNODE_BLOCK_BYTES {
            return Err(too_big(format!("a dnode of {slots} slots")));
        }
        let room = max_bonus_bytes(slots);
        if self.bonus.len() > room {
            return Err(too_big(format!(
                "a bonus of {} bytes, where {room} fit",
                self.bonus.len()
            )));
        }
        let block_bytes = match self.data_block_bytes {
            0 => SECTOR_BYTES as u32,
            bytes if u64::from(bytes) > MAX_BLOCK_BYTES => {
                return Err(too_big(format!("a block size of {bytes} bytes")));
            }
            bytes => bytes.next_multiple_of(SECTOR_BYTES as u32),
        };
        let pointers = if self.bonus_type == ObjectType::SA {
            1
        } else {
            MAX_DNODE_POINTERS.min(1 + (room - self.bonus.len()) / BLOCK_POINTER_BYTES)
        };
        Ok(Meta {
            exists: true,
            object_type: self.object_type,
            bonus_type: self.bonus_type,
            bonus: self.bonus.clone(),
            block_bytes,
            indirect_shift: match self.indirect_block_shift {
                0 => MAX_INDIRECT_SHIFT,
                shift => shift.clamp(MIN_INDIRECT_SHIFT, MAX_INDIRECT_SHIFT),
            },
            pointers: pointers as u8,
            slots,
            ..Meta::free()
        })
    }
}
