//! Records of send streams (`dmu_replay_record_t`, include/sys/zfs_ioctl.h).
//!
//! A stream is a sequence of records of [`RECORD_BYTES`], some with a payload behind them, in the
//! byte order of the machine that sent it; the magic number of the first one tells which. All but
//! the first end in a fletcher4 checksum of everything before it, from the beginning of the stream.
//!
//! # Layout
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 4 | kind |
//! | 4 | 4 | length of the payload in bytes |
//! | 8 | 304 | by kind, below |
//! | 280 | 32 | checksum of all before (not of BEGIN, whose name reaches there); zero for none |
//!
//! Offsets within the part by kind; numbers of eight bytes unless said otherwise:
//!
//! | kind | fields |
//! |---|---|
//! | 0 BEGIN | 0 magic, 8 version and features, 16 creation in seconds, 24 kind of object set (4), 28 flags (4), 32 guid, 40 guid of what it is the difference to, 48 name (256 bytes, ends in zero) |
//! | 1 OBJECT | 0 object, 8 type (4), 12 bonus type (4), 16 block size (4), 20 bonus size (4), 24 checksum (1), 25 compression (1), 26 slots (1), 27 flags (1), 28 raw bonus size (4), 32 guid, 40 indirect shift (1), 41 levels (1), 42 pointers (1), 48 last block |
//! | 2 FREEOBJECTS | 0 first, 8 count, 16 guid |
//! | 3 WRITE | 0 object, 8 type (4), 16 offset, 24 logical size, 32 guid, 40 checksum (1), 41 flags (1), 42 compression (1), 48 dedup key (40), 88 compressed size, 96 salt (8), 104 IV (12), 116 MAC (16) |
//! | 4 FREE | 0 object, 8 offset, 16 length, 24 guid |
//! | 5 END | 0 checksum (32), 32 guid |
//! | 6 WRITE_BYREF | 0 object, 8 offset, 16 length, 24 guid, 32 guid, 40 object, 48 offset referred to |
//! | 7 SPILL | 0 object, 8 length, 16 guid, 24 flags (1), 25 compression (1), 32 compressed size, 40 salt (8), 48 IV (12), 60 MAC (16), 76 type (4) |
//! | 8 WRITE_EMBEDDED | 0 object, 8 offset, 16 length, 24 guid, 32 compression (1), 33 kind (1), 40 logical size (4), 44 physical size (4) |
//! | 9 OBJECT_RANGE | 0 first, 8 slots, 16 guid, 24 salt (8), 32 IV (12), 44 MAC (16), 60 flags (1) |
//! | 10 REDACT | as FREE |
//!
//! # Compound streams
//! What `zfs send -R`, `-p` and the like write is a BEGIN of header type 2 with a packed nvlist as
//! its payload, an END, the streams one after the other, and one more END of zeros.

#[cfg(test)]
mod tests;

use crate::bytes::{Endian, Reader, bits};
use crate::error::{FormatError, Result, bad};
use crate::kinds::ObjectType;
use crate::{CryptParams, Guid, MAX_BLOCK_BYTES, ObjectId, ObjsetKind};

/// Size of a record in bytes.
pub const RECORD_BYTES: usize = 312;
/// Where the checksum of what came before is in a record.
pub const RECORD_CHECKSUM_OFFSET: usize = 280;
/// The first field of BEGIN (`DMU_BACKUP_MAGIC`).
pub const STREAM_MAGIC: u64 = 0x2_F5ba_cbac;
/// Longest name in BEGIN, its ending zero included.
const NAME_BYTES: usize = 256;
/// Longest payload of BEGIN that is taken: a packed nvlist about everything in the stream.
pub const BEGIN_PAYLOAD_BYTES_MAX: u32 = 256 << 20;

const RECORD: &str = "dmu_replay_record_t";

/// What a stream needs of who receives it (`DMU_BACKUP_FEATURE_*`), as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StreamFeatures(pub u64);

impl StreamFeatures {
    /// Blocks that occur twice are sent once (WRITE_BYREF).
    pub const DEDUP: Self = Self(1 << 0);
    /// Dedup keys are filled in.
    pub const DEDUP_PROPERTIES: Self = Self(1 << 1);
    /// Spill blocks of system attributes.
    pub const SA_SPILL: Self = Self(1 << 2);
    /// Blocks that are in their pointers (`-e`).
    pub const EMBED_DATA: Self = Self(1 << 16);
    /// LZ4 is used in it.
    pub const LZ4: Self = Self(1 << 17);
    /// Blocks of more than 128 KiB (`-L`).
    pub const LARGE_BLOCKS: Self = Self(1 << 19);
    /// It goes on where another one was cut.
    pub const RESUMING: Self = Self(1 << 20);
    /// Blocks are left out.
    pub const REDACTED: Self = Self(1 << 21);
    /// Blocks are compressed as they were stored (`-c`).
    pub const COMPRESSED: Self = Self(1 << 22);
    /// Dnodes of more than one slot.
    pub const LARGE_DNODE: Self = Self(1 << 23);
    /// Blocks are encrypted as they were stored (`-w`).
    pub const RAW: Self = Self(1 << 24);
    /// Zstandard is used in it.
    pub const ZSTD: Self = Self(1 << 25);
    /// User holds are in its description (`-h`).
    pub const HOLDS: Self = Self(1 << 26);
    /// A stream with large blocks may follow one without.
    pub const SWITCH_TO_LARGE_BLOCKS: Self = Self(1 << 27);
    /// Names of more than 255 bytes.
    pub const LONG_NAME: Self = Self(1 << 28);
    /// Micro ZAPs of more than 128 KiB.
    pub const LARGE_MICROZAP: Self = Self(1 << 29);

    /// All that this release understands.
    pub const KNOWN: Self = Self(
        Self::SA_SPILL.0
            | Self::EMBED_DATA.0
            | Self::LZ4.0
            | Self::LARGE_BLOCKS.0
            | Self::RESUMING.0
            | Self::REDACTED.0
            | Self::COMPRESSED.0
            | Self::LARGE_DNODE.0
            | Self::RAW.0
            | Self::ZSTD.0
            | Self::HOLDS.0
            | Self::SWITCH_TO_LARGE_BLOCKS.0
            | Self::LONG_NAME.0
            | Self::LARGE_MICROZAP.0,
    );

    /// Whether all of `other` are in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// With those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Whether BEGIN begins one snapshot or describes several streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeaderKind {
    /// One snapshot (`DMU_SUBSTREAM`).
    Snapshot,
    /// A description of several (`DMU_COMPOUNDSTREAM`).
    Compound,
    /// A code that this release does not know.
    Unknown(u8),
}

impl HeaderKind {
    const fn code(self) -> u64 {
        match self {
            Self::Snapshot => 1,
            Self::Compound => 2,
            Self::Unknown(code) => code as u64,
        }
    }

    const fn from_code(code: u64) -> Self {
        match code {
            1 => Self::Snapshot,
            2 => Self::Compound,
            other => Self::Unknown(other as u8),
        }
    }
}

/// BEGIN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// What follows.
    pub header: HeaderKind,
    /// What the receiver must understand.
    pub features: StreamFeatures,
    /// When the snapshot was taken, in seconds since 1970.
    pub creation_time_seconds: u64,
    /// Code of the kind of object set ([`ObjsetKind`]).
    pub objset_kind: u32,
    /// Bits `FLAG_*`.
    pub flags: u32,
    /// The snapshot.
    pub to_guid: Guid,
    /// What the receiver must have; zero for nothing.
    pub from_guid: Guid,
    /// Full name of the snapshot where it was sent.
    pub to_name: String,
    /// Length of the payload, a packed nvlist, in bytes.
    pub payload_bytes: u32,
}

impl Begin {
    /// The stream makes a clone (`DRR_FLAG_CLONE`).
    pub const FLAG_CLONE: u32 = 1 << 0;
    /// Names are not sensitive to case (`DRR_FLAG_CI_DATA`).
    pub const FLAG_CASE_INSENSITIVE: u32 = 1 << 1;
    /// Everything free is told (`DRR_FLAG_FREERECORDS`).
    pub const FLAG_FREE_RECORDS: u32 = 1 << 2;
    /// OBJECT tells whether there is a spill block (`DRR_FLAG_SPILL_BLOCK`).
    pub const FLAG_SPILL_BLOCK: u32 = 1 << 3;

    /// Kind of object set.
    pub fn kind(&self) -> Option<ObjsetKind> {
        [ObjsetKind::Filesystem, ObjsetKind::Volume]
            .into_iter()
            .find(|kind| kind.code() == u64::from(self.objset_kind))
    }
}

/// Salt, IV and MAC of an encrypted block, as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StreamCrypt {
    /// Salt for the key's derivation.
    pub salt: [u8; 8],
    /// Initialization vector.
    pub iv: [u8; 12],
    /// Message authentication code.
    pub mac: [u8; 16],
}

impl StreamCrypt {
    /// As a pointer of a block of this byte order has them: salt and IV.
    pub fn params(&self, endian: Endian) -> CryptParams {
        let little = CryptParams::from_bytes(self.salt, self.iv);
        match endian {
            Endian::Little => little,
            Endian::Big => CryptParams {
                salt: little.salt.swap_bytes(),
                iv1: little.iv1.swap_bytes(),
                iv2: little.iv2.swap_bytes(),
            },
        }
    }
}

/// Bit of flags of raw records: the block is in the other byte order than the stream
/// (`DRR_RAW_BYTESWAP`).
pub const FLAG_RAW_BYTESWAP: u8 = 1 << 1;
/// Bit of flags of WRITE: the dedup key is good (`DRR_CHECKSUM_DEDUP`).
pub const FLAG_CHECKSUM_DEDUP: u8 = 1 << 0;

/// OBJECT: an object as it is from now on. Its bonus is the payload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Object {
    /// Its number.
    pub object: u64,
    /// Code of its type.
    pub object_type: u32,
    /// Code of its bonus's type.
    pub bonus_type: u32,
    /// Size of its blocks in bytes.
    pub block_bytes: u32,
    /// Size of its bonus in bytes.
    pub bonus_bytes: u32,
    /// Code of its own checksum.
    pub checksum: u8,
    /// Code of its own compression.
    pub compression: u8,
    /// 512-byte slots of its dnode; zero for one.
    pub slots: u8,
    /// Bits `FLAG_*`.
    pub flags: u8,
    /// Size of the bonus as stored, in bytes; zero unless raw.
    pub raw_bonus_bytes: u32,
    /// The snapshot.
    pub to_guid: u64,
    /// log2 of the size of its indirect blocks; zero unless raw.
    pub indirect_shift: u8,
    /// Levels of its tree; zero unless raw.
    pub levels: u8,
    /// Block pointers in its dnode; zero unless raw.
    pub pointers: u8,
    /// Number of its last block; zero unless raw.
    pub last_block: u64,
}

impl Object {
    /// It has a spill block (`DRR_OBJECT_SPILL`).
    pub const FLAG_SPILL: u8 = 1 << 2;
}

/// WRITE: a block, or a part of one. Its data is the payload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Write {
    /// The object.
    pub object: u64,
    /// Code of the object's type.
    pub object_type: u32,
    /// Where, in bytes.
    pub offset_bytes: u64,
    /// How much, in bytes.
    pub logical_bytes: u64,
    /// The snapshot.
    pub to_guid: u64,
    /// Code of the checksum in the dedup key.
    pub checksum: u8,
    /// Bits `FLAG_*`.
    pub flags: u8,
    /// Code of the payload's compression; zero for none.
    pub compression: u8,
    /// The dedup key: checksum and properties.
    pub key: [u64; 5],
    /// Length of the compressed payload; zero unless compressed.
    pub compressed_bytes: u64,
    /// Of raw streams.
    pub crypt: StreamCrypt,
}

/// SPILL: a spill block. Its data is the payload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spill {
    /// The object.
    pub object: u64,
    /// Its size in bytes.
    pub length_bytes: u64,
    /// The snapshot.
    pub to_guid: u64,
    /// Bits `FLAG_*`.
    pub flags: u8,
    /// Code of the payload's compression; zero for none.
    pub compression: u8,
    /// Length of the compressed payload; zero unless raw.
    pub compressed_bytes: u64,
    /// Of raw streams.
    pub crypt: StreamCrypt,
    /// Code of the type; zero unless raw.
    pub object_type: u32,
}

impl Spill {
    /// The receiver has it already (`DRR_SPILL_UNMODIFIED`).
    pub const FLAG_UNMODIFIED: u8 = 1 << 2;
}

/// WRITE_EMBEDDED: a block that is in its pointer. The payload is the pointer's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteEmbedded {
    /// The object.
    pub object: u64,
    /// Where, in bytes.
    pub offset_bytes: u64,
    /// Size of the block in bytes.
    pub length_bytes: u64,
    /// The snapshot.
    pub to_guid: u64,
    /// Code of the compression.
    pub compression: u8,
    /// Code of the kind of pointer ([`crate::EmbeddedKind`]).
    pub kind: u8,
    /// Size of the data in bytes.
    pub logical_bytes: u32,
    /// Size of the payload in bytes, before it is rounded up to eight.
    pub physical_bytes: u32,
}

/// OBJECT_RANGE: a block of dnodes of a raw stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectRange {
    /// First object.
    pub first: u64,
    /// How many slots.
    pub slots: u64,
    /// The snapshot.
    pub to_guid: u64,
    /// Salt, IV and MAC of the block.
    pub crypt: StreamCrypt,
    /// Bits `FLAG_*`.
    pub flags: u8,
}

/// FREE and REDACT: a range of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// The object.
    pub object: u64,
    /// Where, in bytes.
    pub offset_bytes: u64,
    /// How much in bytes; all ones to the end.
    pub length_bytes: u64,
    /// The snapshot.
    pub to_guid: u64,
}

/// A record without its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The first record.
    Begin(Box<Begin>),
    /// An object.
    Object(Object),
    /// Objects that do not exist.
    FreeObjects {
        /// First one.
        first: u64,
        /// How many numbers.
        count: u64,
        /// The snapshot.
        to_guid: u64,
    },
    /// Data.
    Write(Box<Write>),
    /// A range without data.
    Free(Range),
    /// The last record.
    End {
        /// Of everything before it.
        checksum: [u64; 4],
        /// The snapshot.
        to_guid: u64,
    },
    /// Data that came before (`zfs send -D` of old releases).
    WriteByRef,
    /// A spill block.
    Spill(Box<Spill>),
    /// Data in a pointer.
    WriteEmbedded(WriteEmbedded),
    /// A block of dnodes.
    ObjectRange(ObjectRange),
    /// A range that was left out.
    Redact(Range),
}

/// Tells the byte order of a stream by its first record.
///
/// # Errors
/// [`FormatError::BadField`] where it is no stream.
pub fn stream_endian(record: &[u8; RECORD_BYTES]) -> Result<Endian> {
    let mut magic = [0; 8];
    magic.copy_from_slice(&record[8..16]);
    let kind = [record[0], record[1], record[2], record[3]];
    for endian in [Endian::Little, Endian::Big] {
        if endian.u64(magic) == STREAM_MAGIC && endian.u32(kind) == 0 {
            return Ok(endian);
        }
    }
    Err(bad(
        "drr_begin",
        "drr_magic",
        Endian::Little.u64(magic),
        "that of a send stream",
    ))
}

/// Fields of a record, one after the other.
struct Fields {
    out: Vec<u8>,
    endian: Endian,
}

impl Fields {
    fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn put_u32(&mut self, value: u32) {
        let bytes = match self.endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        self.put(&bytes);
    }

    fn put_u64(&mut self, value: u64) {
        let bytes = self.endian.u64_bytes(value);
        self.put(&bytes);
    }

    fn put_words(&mut self, words: &[u64]) {
        for word in words {
            self.put_u64(*word);
        }
    }

    fn put_zeros(&mut self, count: usize) {
        self.out.resize(self.out.len() + count, 0);
    }
}

fn crypt(reader: &mut Reader<'_>) -> Result<StreamCrypt> {
    Ok(StreamCrypt {
        salt: reader.array()?,
        iv: reader.array()?,
        mac: reader.array()?,
    })
}

fn range(reader: &mut Reader<'_>) -> Result<Range> {
    Ok(Range {
        object: reader.u64()?,
        offset_bytes: reader.u64()?,
        length_bytes: reader.u64()?,
        to_guid: reader.u64()?,
    })
}

impl Record {
    /// Decodes a record.
    ///
    /// # Errors
    /// [`FormatError::BadField`] of what cannot be; [`FormatError::BadText`] of a name that is no
    /// text.
    pub fn decode(bytes: &[u8; RECORD_BYTES], endian: Endian) -> Result<Self> {
        let mut reader = Reader::new(RECORD, bytes, endian);
        let kind = reader.u32()?;
        let payload_bytes = reader.u32()?;
        let at = &mut reader;
        Ok(match kind {
            0 => Self::Begin(Box::new(decode_begin(at, payload_bytes)?)),
            1 => Self::Object(decode_object(at)?),
            2 => Self::FreeObjects {
                first: at.u64()?,
                count: at.u64()?,
                to_guid: at.u64()?,
            },
            3 => Self::Write(Box::new(decode_write(at)?)),
            4 => Self::Free(range(at)?),
            5 => Self::End {
                checksum: at.words()?,
                to_guid: at.u64()?,
            },
            6 => Self::WriteByRef,
            7 => Self::Spill(Box::new(decode_spill(at)?)),
            8 => Self::WriteEmbedded(decode_embedded(at)?),
            9 => {
                let (first, slots, to_guid) = (at.u64()?, at.u64()?, at.u64()?);
                let crypt = crypt(at)?;
                let flags = at.u8()?;
                Self::ObjectRange(ObjectRange {
                    first,
                    slots,
                    to_guid,
                    crypt,
                    flags,
                })
            }
            10 => Self::Redact(range(at)?),
            other => {
                return Err(bad(
                    RECORD,
                    "drr_type",
                    other.into(),
                    "one of the eleven kinds of records",
                ));
            }
        })
    }

    /// The checksum that a record (other than BEGIN) carries; `None` where it is zero.
    pub fn checksum(bytes: &[u8; RECORD_BYTES], endian: Endian) -> Option<[u64; 4]> {
        let mut words = [0; 4];
        let stored = &bytes[RECORD_CHECKSUM_OFFSET..];
        for (word, value) in words.iter_mut().zip(endian.words(stored)) {
            *word = value;
        }
        (words != [0; 4]).then_some(words)
    }

    /// Length of the payload behind it in bytes.
    ///
    /// # Errors
    /// [`FormatError::BadField`] where it is longer than any block.
    pub fn payload_bytes(&self) -> Result<usize> {
        let block = |bytes: u64, field| {
            if bytes > MAX_BLOCK_BYTES {
                return Err(bad(RECORD, field, bytes, "at most 16 MiB"));
            }
            Ok(bytes as usize)
        };
        match self {
            Self::Begin(begin) => Ok(begin.payload_bytes as usize),
            Self::Object(object) => {
                let bytes = match object.raw_bonus_bytes {
                    0 => u64::from(object.bonus_bytes).next_multiple_of(8),
                    raw => raw.into(),
                };
                if bytes > crate::DNODE_BLOCK_BYTES as u64 {
                    return Err(bad("drr_object", "drr_bonuslen", bytes, "at most 16 KiB"));
                }
                Ok(bytes as usize)
            }
            Self::Write(write) => match write.compression {
                0 => block(write.logical_bytes, "drr_logical_size"),
                _ => block(write.compressed_bytes, "drr_compressed_size"),
            },
            Self::Spill(spill) => match spill.compressed_bytes {
                0 => block(spill.length_bytes, "drr_length"),
                bytes => block(bytes, "drr_compressed_size"),
            },
            Self::WriteEmbedded(write) => {
                if write.physical_bytes as usize > crate::EMBEDDED_PAYLOAD_BYTES {
                    let found = write.physical_bytes.into();
                    return Err(bad("drr_write_embedded", "drr_psize", found, "at most 112"));
                }
                Ok((write.physical_bytes as usize).next_multiple_of(8))
            }
            _ => Ok(0),
        }
    }

    /// Encodes a record, little-endian, with a checksum of zeros.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        self.encode_as(Endian::Little)
    }

    /// Encodes a record in a stated order, with a checksum of zeros.
    pub fn encode_as(&self, endian: Endian) -> [u8; RECORD_BYTES] {
        let mut out = Fields {
            out: Vec::with_capacity(RECORD_BYTES),
            endian,
        };
        let payload = self.payload_bytes().unwrap_or(0) as u32;
        let (kind, payload) = match self {
            Self::Begin(begin) => (0, begin.payload_bytes),
            Self::Object(_) => (1, payload),
            Self::FreeObjects { .. } => (2, 0),
            Self::Write(_) => (3, payload),
            Self::Free(_) => (4, 0),
            Self::End { .. } => (5, 0),
            Self::WriteByRef => (6, 0),
            Self::Spill(_) => (7, payload),
            Self::WriteEmbedded(_) => (8, payload),
            Self::ObjectRange(_) => (9, 0),
            Self::Redact(_) => (10, 0),
        };
        out.put_u32(kind);
        out.put_u32(payload);
        self.encode_fields(&mut out);
        out.out.resize(RECORD_BYTES, 0);
        crate::bytes::exact(&out.out)
    }

    fn encode_fields(&self, out: &mut Fields) {
        let put_crypt = |out: &mut Fields, crypt: &StreamCrypt| {
            out.put(&crypt.salt);
            out.put(&crypt.iv);
            out.put(&crypt.mac);
        };
        match self {
            Self::Begin(begin) => encode_begin(begin, out),
            Self::Object(object) => {
                out.put_u64(object.object);
                out.put_u32(object.object_type);
                out.put_u32(object.bonus_type);
                out.put_u32(object.block_bytes);
                out.put_u32(object.bonus_bytes);
                out.put(&[
                    object.checksum,
                    object.compression,
                    object.slots,
                    object.flags,
                ]);
                out.put_u32(object.raw_bonus_bytes);
                out.put_u64(object.to_guid);
                out.put(&[object.indirect_shift, object.levels, object.pointers]);
                out.put_zeros(5);
                out.put_u64(object.last_block);
            }
            Self::FreeObjects {
                first,
                count,
                to_guid,
            } => out.put_words(&[*first, *count, *to_guid]),
            Self::Write(write) => {
                out.put_u64(write.object);
                out.put_u32(write.object_type);
                out.put_u32(0);
                out.put_words(&[write.offset_bytes, write.logical_bytes, write.to_guid]);
                out.put(&[write.checksum, write.flags, write.compression]);
                out.put_zeros(5);
                out.put_words(&write.key);
                out.put_u64(write.compressed_bytes);
                put_crypt(out, &write.crypt);
            }
            Self::Free(range) | Self::Redact(range) => out.put_words(&[
                range.object,
                range.offset_bytes,
                range.length_bytes,
                range.to_guid,
            ]),
            Self::End { checksum, to_guid } => {
                out.put_words(checksum);
                out.put_u64(*to_guid);
            }
            Self::WriteByRef => {}
            Self::Spill(spill) => {
                out.put_words(&[spill.object, spill.length_bytes, spill.to_guid]);
                out.put(&[spill.flags, spill.compression]);
                out.put_zeros(6);
                out.put_u64(spill.compressed_bytes);
                put_crypt(out, &spill.crypt);
                out.put_u32(spill.object_type);
            }
            Self::WriteEmbedded(write) => {
                out.put_words(&[
                    write.object,
                    write.offset_bytes,
                    write.length_bytes,
                    write.to_guid,
                ]);
                out.put(&[write.compression, write.kind]);
                out.put_zeros(6);
                out.put_u32(write.logical_bytes);
                out.put_u32(write.physical_bytes);
            }
            Self::ObjectRange(range) => {
                out.put_words(&[range.first, range.slots, range.to_guid]);
                put_crypt(out, &range.crypt);
                out.put(&[range.flags]);
            }
        }
    }

    /// The object that it is about, if it is about one.
    pub fn object(&self) -> Option<ObjectId> {
        match self {
            Self::Object(object) => Some(object.object),
            Self::Write(write) => Some(write.object),
            Self::Free(range) | Self::Redact(range) => Some(range.object),
            Self::Spill(spill) => Some(spill.object),
            Self::WriteEmbedded(write) => Some(write.object),
            _ => None,
        }
        .map(ObjectId::new)
    }
}

/// The type of a code in a record.
///
/// # Errors
/// [`FormatError::BadField`] of codes that no object has.
pub fn object_type(code: u32) -> Result<ObjectType> {
    match u8::try_from(code) {
        Ok(code) => Ok(ObjectType::from_code(code)),
        Err(_) => Err(bad(RECORD, "drr_type", code.into(), "a type of objects")),
    }
}

fn decode_begin(reader: &mut Reader<'_>, payload_bytes: u32) -> Result<Begin> {
    let magic = reader.u64()?;
    if magic != STREAM_MAGIC {
        return Err(bad(
            "drr_begin",
            "drr_magic",
            magic,
            "that of a send stream",
        ));
    }
    let version = reader.u64()?;
    let creation_time_seconds = reader.u64()?;
    let objset_kind = reader.u32()?;
    let flags = reader.u32()?;
    let to_guid = Guid::new(reader.u64()?);
    let from_guid = Guid::new(reader.u64()?);
    let name = reader.take(NAME_BYTES)?;
    let end = name.iter().position(|byte| *byte == 0);
    let text = end.and_then(|end| std::str::from_utf8(&name[..end]).ok());
    let Some(to_name) = text else {
        return Err(FormatError::BadText {
            structure: "drr_begin",
            field: "drr_toname",
        });
    };
    if payload_bytes > BEGIN_PAYLOAD_BYTES_MAX {
        return Err(bad(
            RECORD,
            "drr_payloadlen",
            payload_bytes.into(),
            "at most 256 MiB",
        ));
    }
    Ok(Begin {
        header: HeaderKind::from_code(bits(version, 0, 2)),
        features: StreamFeatures(bits(version, 2, 56)),
        creation_time_seconds,
        objset_kind,
        flags,
        to_guid,
        from_guid,
        to_name: to_name.to_owned(),
        payload_bytes,
    })
}

fn encode_begin(begin: &Begin, out: &mut Fields) {
    out.put_u64(STREAM_MAGIC);
    out.put_u64(begin.header.code() & 3 | begin.features.0 << 2);
    out.put_u64(begin.creation_time_seconds);
    out.put_u32(begin.objset_kind);
    out.put_u32(begin.flags);
    out.put_words(&[begin.to_guid.get(), begin.from_guid.get()]);
    let name = begin.to_name.as_bytes();
    let name = &name[..name.len().min(NAME_BYTES - 1)];
    out.put(name);
    out.put_zeros(NAME_BYTES - name.len());
}

fn decode_object(reader: &mut Reader<'_>) -> Result<Object> {
    let mut object = Object {
        object: reader.u64()?,
        object_type: reader.u32()?,
        bonus_type: reader.u32()?,
        block_bytes: reader.u32()?,
        bonus_bytes: reader.u32()?,
        checksum: reader.u8()?,
        compression: reader.u8()?,
        slots: reader.u8()?,
        flags: reader.u8()?,
        raw_bonus_bytes: reader.u32()?,
        to_guid: reader.u64()?,
        indirect_shift: reader.u8()?,
        levels: reader.u8()?,
        pointers: reader.u8()?,
        last_block: 0,
    };
    reader.skip(5)?;
    object.last_block = reader.u64()?;
    Ok(object)
}

fn decode_write(reader: &mut Reader<'_>) -> Result<Write> {
    let object = reader.u64()?;
    let object_type = reader.u32()?;
    reader.skip(4)?;
    let (offset_bytes, logical_bytes, to_guid) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (checksum, flags, compression) = (reader.u8()?, reader.u8()?, reader.u8()?);
    reader.skip(5)?;
    Ok(Write {
        object,
        object_type,
        offset_bytes,
        logical_bytes,
        to_guid,
        checksum,
        flags,
        compression,
        key: reader.words()?,
        compressed_bytes: reader.u64()?,
        crypt: crypt(reader)?,
    })
}

fn decode_spill(reader: &mut Reader<'_>) -> Result<Spill> {
    let (object, length_bytes, to_guid) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (flags, compression) = (reader.u8()?, reader.u8()?);
    reader.skip(6)?;
    Ok(Spill {
        object,
        length_bytes,
        to_guid,
        flags,
        compression,
        compressed_bytes: reader.u64()?,
        crypt: crypt(reader)?,
        object_type: reader.u32()?,
    })
}

fn decode_embedded(reader: &mut Reader<'_>) -> Result<WriteEmbedded> {
    let range = range(reader)?;
    let (compression, kind) = (reader.u8()?, reader.u8()?);
    reader.skip(6)?;
    Ok(WriteEmbedded {
        object: range.object,
        offset_bytes: range.offset_bytes,
        length_bytes: range.length_bytes,
        to_guid: range.to_guid,
        compression,
        kind,
        logical_bytes: reader.u32()?,
        physical_bytes: reader.u32()?,
    })
}
