//! The persistent second-level cache: the header of a cache device and the log blocks that say
//! which blocks of the pool it holds (`l2arc_dev_hdr_phys_t`, `l2arc_log_blk_phys_t`;
//! include/sys/arc_impl.h).
//!
//! A cache device is a ring: copies of blocks, each as it is stored in the pool (compressed,
//! encrypted), and after each so many of them a log block that names them. Two chains of log
//! blocks alternate: the header points to the last of both, and each log block to the one before
//! the last. What the hand that writes has run over is no longer there, whatever a log block says.
//!
//! **Device header**, the first bytes behind the front labels; its size is that of a sector of the
//! device, its checksum a label's (`zio_eck_t`) in the last bytes of it:
//!
//! | Offset | Field |
//! |---|---|
//! | 0 | magic "ZFSCACHE" |
//! | 8 | version, 1 |
//! | 16, 24 | GUID of the pool, of the device |
//! | 32 | entries in a log block |
//! | 40 | evicted up to here, in bytes |
//! | 48 | flags; bit 0: the device was not filled once |
//! | 56, 64 | where the ring begins and ends, in bytes |
//! | 72, 136 | pointers to the last two log blocks |
//! | 200, 208 | bytes of all log blocks; their number |
//! | 216, 224 | when the device was trimmed as a whole, in seconds; how far that is |
//! | 472 | checksum, if the header has 512 bytes |
//!
//! **Pointer to a log block** (`l2arc_log_blkptr_t`), 64 bytes: its place; the bytes of what it
//! names, as stored; where the first of that is; properties (bits 0 to 15: logical size, 16 to 31:
//! size as stored, both in sectors less one; 32 to 38: compression; 40 to 47: checksum); four words
//! of its checksum, Fletcher 4 of what is stored.
//!
//! **Log block**, 64 KiB, compressed by LZ4 where that saves a sector:
//!
//! | Offset | Field |
//! |---|---|
//! | 0 | magic "LOGBLKHD" |
//! | 8 | pointer to the log block before the last one |
//! | 128 | 1,022 entries of 64 bytes |
//!
//! **Entry** (`l2arc_log_ent_phys_t`): the first place in the pool (16 bytes); the txg of birth;
//! properties (as above, and bit 39: prefetched; 48 to 55: 1 data, 2 metadata; 56: encrypted or
//! authenticated; 57 to 60: the state of the ARC that it left); where it is on this device; level
//! of compression; 16 bytes of nothing.
//!
//! All are words in the writer's byte order, which the magic tells.

use crate::bytes::{Put, Reader, bits, with_bits};
use crate::error::{Result, bad};
use crate::{Checksum, Compression, Dva, Endian, Guid, Txg};

const SECTOR_SHIFT: u32 = 9;
const HEADER: &str = "l2arc_dev_hdr_phys_t";
const LOG_BLOCK: &str = "l2arc_log_blk_phys_t";

/// A pointer to a log block (`l2arc_log_blkptr_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct L2LogPointer {
    /// Where the log block is on the device, in bytes.
    pub offset_bytes: u64,
    /// What it names takes so many bytes of the device.
    pub payload_bytes: u64,
    /// Where the first block that it names is, in bytes.
    pub payload_offset_bytes: u64,
    properties: u64,
    /// Fletcher 4 of the log block as it is stored.
    pub checksum: [u64; 4],
}

impl L2LogPointer {
    /// Size in bytes.
    pub const BYTES: usize = 64;

    /// A pointer to a log block that takes `stored_bytes` (whole sectors, at least one).
    pub fn new(
        offset_bytes: u64,
        payload: (u64, u64),
        stored_bytes: u64,
        compression: Compression,
        checksum: [u64; 4],
    ) -> Self {
        let sizes = sizes(L2LogBlock::BYTES as u64, stored_bytes, compression);
        Self {
            offset_bytes,
            payload_offset_bytes: payload.0,
            payload_bytes: payload.1,
            properties: with_bits(sizes, 40, 8, Checksum::Fletcher4.code().into()),
            checksum,
        }
    }

    /// Whether it points nowhere: the end of a chain.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The log block takes so many bytes of the device.
    pub const fn stored_bytes(&self) -> u64 {
        sectors(self.properties, 16)
    }

    /// How the log block is compressed.
    pub fn compression(&self) -> Compression {
        Compression::from_code(bits(self.properties, 32, 7) as u8)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            offset_bytes: reader.u64()?,
            payload_bytes: reader.u64()?,
            payload_offset_bytes: reader.u64()?,
            properties: reader.u64()?,
            checksum: reader.words()?,
        })
    }

    fn put(&self, out: &mut Vec<u8>) {
        let words = [
            self.offset_bytes,
            self.payload_bytes,
            self.payload_offset_bytes,
            self.properties,
        ];
        for word in words.into_iter().chain(self.checksum) {
            out.put_u64(word);
        }
    }
}

/// The header of a cache device (`l2arc_dev_hdr_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct L2DeviceHeader {
    /// Layout's version; 1 is known.
    pub version: u64,
    /// The pool that it is a cache of.
    pub pool: Guid,
    /// The device.
    pub device: Guid,
    /// Entries in each log block.
    pub log_entries: u64,
    /// Up to here the ring is free to be written, in bytes.
    pub evicted_bytes: u64,
    /// The ring was not filled once: only what is before the last log block was ever written.
    pub first_round: bool,
    /// Where the ring begins, in bytes.
    pub start_bytes: u64,
    /// Where it ends, in bytes.
    pub end_bytes: u64,
    /// The last log block, and the one before it.
    pub newest: [L2LogPointer; 2],
    /// All log blocks take so many bytes.
    pub log_bytes: u64,
    /// How many log blocks there are.
    pub log_blocks: u64,
    /// When the device was trimmed as a whole, in seconds of Unix time; 0 if never.
    pub trimmed_s: u64,
    /// How far that trim is (`vdev_trim_state_t`).
    pub trim_state: u64,
}

impl L2DeviceHeader {
    /// Size in bytes, with the checksum; devices with larger sectors fill them with zeros, and have
    /// the checksum at the end.
    pub const BYTES: usize = 512;
    /// The layout that is written (`L2ARC_PERSISTENT_VERSION`).
    pub const VERSION: u64 = 1;
    /// "ZFSCACHE" (`L2ARC_DEV_HDR_MAGIC`).
    pub const MAGIC: u64 = 0x5a46_5343_4143_4845;

    /// Decodes it; the magic tells the byte order. The checksum must have been verified before.
    ///
    /// # Errors
    /// [`crate::FormatError::BadField`] without the magic, [`crate::FormatError::TooShort`].
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let endian = byte_order(HEADER, "dh_magic", bytes, Self::MAGIC)?;
        let mut reader = Reader::new(HEADER, bytes, endian);
        reader.skip(8)?;
        let [version, pool, device, log_entries, evicted_bytes, flags] = reader.words()?;
        let [start_bytes, end_bytes] = reader.words()?;
        let newest = [
            L2LogPointer::read(&mut reader)?,
            L2LogPointer::read(&mut reader)?,
        ];
        let [log_bytes, log_blocks, trimmed_s, trim_state] = reader.words()?;
        Ok(Self {
            version,
            pool: Guid::new(pool),
            device: Guid::new(device),
            log_entries,
            evicted_bytes,
            first_round: bits(flags, 0, 1) != 0,
            start_bytes,
            end_bytes,
            newest,
            log_bytes,
            log_blocks,
            trimmed_s,
            trim_state,
        })
    }

    /// Encodes it for a device whose header has `bytes` (at least 512), without the checksum.
    pub fn encode(&self, bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes);
        let words = [
            Self::MAGIC,
            self.version,
            self.pool.get(),
            self.device.get(),
            self.log_entries,
            self.evicted_bytes,
            self.first_round.into(),
            self.start_bytes,
            self.end_bytes,
        ];
        for word in words {
            out.put_u64(word);
        }
        for pointer in &self.newest {
            pointer.put(&mut out);
        }
        for word in [
            self.log_bytes,
            self.log_blocks,
            self.trimmed_s,
            self.trim_state,
        ] {
            out.put_u64(word);
        }
        out.resize(bytes.max(Self::BYTES), 0);
        out
    }
}

/// A block of the pool that a cache device holds (`l2arc_log_ent_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct L2Entry {
    /// Its first copy in the pool.
    pub dva: Dva,
    /// The txg in which that copy was written.
    pub birth: Txg,
    /// Where it is on the cache device, in bytes.
    pub offset_bytes: u64,
    /// Size once decompressed, in bytes.
    pub logical_bytes: u64,
    /// Size as stored, in bytes; what is behind it up to whole sectors of the device is zero.
    pub stored_bytes: u64,
    /// How it is compressed.
    pub compression: Compression,
    /// Level of that compression, where it has levels.
    pub level: u64,
    /// Metadata rather than the content of files.
    pub metadata: bool,
    /// Encrypted or authenticated.
    pub protected: bool,
    /// Read ahead, and not asked for until it came here.
    pub prefetched: bool,
    /// The state of the ARC that it left (`arc_state_type_t`: 1 used once, 3 used often).
    pub state: u8,
}

impl L2Entry {
    /// Size in bytes.
    pub const BYTES: usize = 64;

    /// `None` where an entry names no block (one whose copy takes no space): what a short log block
    /// does not fill.
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>> {
        let [first, second, birth, properties, offset_bytes, level] = reader.words()?;
        reader.skip(16)?;
        let dva = Dva::from_words([first, second]).filter(|dva| dva.asize_bytes() != 0);
        Ok(dva.map(|dva| Self {
            dva,
            birth: Txg::new(birth),
            offset_bytes,
            logical_bytes: sectors(properties, 0),
            stored_bytes: sectors(properties, 16),
            compression: Compression::from_code(bits(properties, 32, 7) as u8),
            level,
            metadata: bits(properties, 48, 8) == 2,
            protected: bits(properties, 56, 1) != 0,
            prefetched: bits(properties, 39, 1) != 0,
            state: bits(properties, 57, 4) as u8,
        }))
    }

    fn put(&self, out: &mut Vec<u8>) {
        let mut properties = sizes(self.logical_bytes, self.stored_bytes, self.compression);
        properties = with_bits(properties, 39, 1, self.prefetched.into());
        properties = with_bits(properties, 48, 8, 1 + u64::from(self.metadata));
        properties = with_bits(properties, 56, 1, self.protected.into());
        properties = with_bits(properties, 57, 4, self.state.into());
        for word in self.dva.to_words() {
            out.put_u64(word);
        }
        for word in [self.birth.get(), properties, self.offset_bytes, self.level] {
            out.put_u64(word);
        }
        out.extend([0; 16]);
    }
}

/// A log block (`l2arc_log_blk_phys_t`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct L2LogBlock {
    /// The log block before the last one.
    pub previous: L2LogPointer,
    /// The blocks that it names, in the order in which they were written.
    pub entries: Vec<L2Entry>,
}

impl L2LogBlock {
    /// Size in bytes, before it is compressed.
    pub const BYTES: usize = 128 + Self::ENTRIES_MAX * L2Entry::BYTES;
    /// Entries at most (`L2ARC_LOG_BLK_MAX_ENTRIES`).
    pub const ENTRIES_MAX: usize = 1022;
    /// "LOGBLKHD" (`L2ARC_LOG_BLK_MAGIC`).
    pub const MAGIC: u64 = 0x4c4f_4742_4c4b_4844;

    /// Decodes a log block, decompressed; the magic tells the byte order. The checksum must have
    /// been verified before.
    ///
    /// # Errors
    /// [`crate::FormatError::BadField`] without the magic, [`crate::FormatError::TooShort`].
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let endian = byte_order(LOG_BLOCK, "lb_magic", bytes, Self::MAGIC)?;
        let mut reader = Reader::new(LOG_BLOCK, bytes, endian);
        reader.skip(8)?;
        let previous = L2LogPointer::read(&mut reader)?;
        reader.skip(56)?;
        let mut entries = Vec::with_capacity(Self::ENTRIES_MAX);
        for _ in 0..Self::ENTRIES_MAX {
            entries.extend(L2Entry::read(&mut reader)?);
        }
        Ok(Self { previous, entries })
    }

    /// Encodes it, not yet compressed; entries behind the 1,022nd are left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_u64(Self::MAGIC);
        self.previous.put(&mut out);
        out.extend([0; 56]);
        for entry in self.entries.iter().take(Self::ENTRIES_MAX) {
            entry.put(&mut out);
        }
        out.resize(Self::BYTES, 0);
        out
    }
}

fn byte_order(
    structure: &'static str,
    field: &'static str,
    bytes: &[u8],
    magic: u64,
) -> Result<Endian> {
    let found = Reader::new(structure, bytes, Endian::Little).u64()?;
    match found {
        found if found == magic => Ok(Endian::Little),
        found if found.swap_bytes() == magic => Ok(Endian::Big),
        found => Err(bad(structure, field, found, "the magic")),
    }
}

/// A size in bytes: sixteen bits of sectors, less one.
const fn sectors(properties: u64, low: u32) -> u64 {
    (bits(properties, low, 16) + 1) << SECTOR_SHIFT
}

fn sizes(logical_bytes: u64, stored_bytes: u64, compression: Compression) -> u64 {
    let less_one = |bytes: u64| (bytes.div_ceil(1 << SECTOR_SHIFT)).clamp(1, 1 << 16) - 1;
    let properties = with_bits(less_one(logical_bytes), 16, 16, less_one(stored_bytes));
    with_bits(properties, 32, 7, compression.code().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VdevId;

    fn pointer(offset_bytes: u64) -> L2LogPointer {
        let payload = (offset_bytes - 0x20_0000, 0x1f_0000);
        L2LogPointer::new(
            offset_bytes,
            payload,
            12 << 10,
            Compression::Lz4,
            [1, 2, 3, 4],
        )
    }

    fn big_endian(bytes: &[u8]) -> Vec<u8> {
        let words = bytes.chunks_exact(8);
        words.flat_map(|word| word.iter().rev().copied()).collect()
    }

    #[test]
    fn headers_come_back_in_both_byte_orders() {
        let header = L2DeviceHeader {
            version: L2DeviceHeader::VERSION,
            pool: Guid::new(0x1234_5678_9abc_def0),
            device: Guid::new(7),
            log_entries: 1022,
            evicted_bytes: 5 << 30,
            first_round: true,
            start_bytes: 0x40_1000,
            end_bytes: 160 << 30,
            newest: [pointer(9 << 20), pointer(6 << 20)],
            log_bytes: 24 << 10,
            log_blocks: 2,
            trimmed_s: 1_700_000_000,
            trim_state: 4,
        };
        let bytes = header.encode(4096);
        assert_eq!(bytes.len(), 4096);
        assert_eq!(&bytes[..8], b"EHCACSFZ");
        assert_eq!(bytes[200], 0, "24 KiB in two log blocks");
        assert_eq!(bytes[201], 0x60);
        assert_eq!(L2DeviceHeader::decode(&bytes), Ok(header));
        assert_eq!(L2DeviceHeader::decode(&big_endian(&bytes)), Ok(header));
        assert!(L2DeviceHeader::decode(&bytes[..220]).is_err());
        assert!(L2DeviceHeader::decode(&[0; 512]).is_err());
    }

    #[test]
    fn log_blocks_come_back_in_both_byte_orders() {
        let entry = |number: u64| L2Entry {
            dva: Dva::new(VdevId::new(3), number << 20, 20 << 10, false).expect("it fits"),
            birth: Txg::new(number + 4),
            offset_bytes: (5 << 20) + number * 4096,
            logical_bytes: 16 << 20,
            stored_bytes: 20 << 10,
            compression: Compression::Zstd,
            level: 3,
            metadata: number.is_multiple_of(2),
            protected: number.is_multiple_of(3),
            prefetched: number.is_multiple_of(5),
            state: 3,
        };
        for count in [0, 1, 1022] {
            let block = L2LogBlock {
                previous: pointer(4 << 20),
                entries: (1..=count).map(entry).collect(),
            };
            let bytes = block.encode();
            assert_eq!(bytes.len(), 64 << 10);
            assert_eq!(L2LogBlock::decode(&bytes).as_ref(), Ok(&block));
            assert_eq!(L2LogBlock::decode(&big_endian(&bytes)), Ok(block));
            assert!(L2LogBlock::decode(&bytes[..65_000]).is_err());
        }
    }

    #[test]
    fn a_pointer_tells_the_sizes_of_its_log_block() {
        let pointer = pointer(9 << 20);
        assert_eq!(pointer.stored_bytes(), 12 << 10);
        assert_eq!(pointer.compression(), Compression::Lz4);
        assert!(!pointer.is_none());
        // One sector more or less is one more or less than zero sectors.
        let properties = pointer.properties;
        assert_eq!(properties & 0xffff, 127, "64 KiB");
        assert_eq!(properties >> 16 & 0xffff, 23, "12 KiB");
        assert_eq!(properties >> 40 & 0xff, 7, "Fletcher 4");
        assert!(L2LogPointer::default().is_none());
    }
}
