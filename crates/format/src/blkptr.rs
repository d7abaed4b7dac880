//! Block pointers (`blkptr_t`, include/sys/spa.h): 128 bytes that say where a block is, how big,
//! how compressed and checksummed it is, and when it was born.
//!
//! # Layout (sixteen 64-bit words in the byte order of the block that holds the pointer)
//!
//! | word | bits | holds |
//! |---|---|---|
//! | 0, 2, 4 | 0..24 | DVA: allocated size in 512-byte sectors |
//! | | 32..56 | DVA: top-level vdev |
//! | 1, 3, 5 | 0..63 | DVA: offset in 512-byte sectors, after the front labels (4 MiB) |
//! | | 63 | DVA: gang block |
//! | 6 | 0..16 | logical size in sectors, less one |
//! | | 16..32 | physical size in sectors, less one |
//! | | 32..39 | compression |
//! | | 39 | embedded |
//! | | 40..48 | checksum (embedded: kind of payload) |
//! | | 48..56 | object type |
//! | | 56..61 | level |
//! | | 61 | uses encryption |
//! | | 62 | dedup |
//! | | 63 | byte order of the block pointed to: 1 is little-endian |
//! | 7 | 63 | rewritten at the physical birth (2.4) |
//! | 8 | | zero |
//! | 9 | | physical birth, zero when the same as the logical birth |
//! | 10 | | logical birth |
//! | 11 | | fill: non-empty blocks below (encrypted: low 32 bits; the high 32 are the IV's tail) |
//! | 12..16 | | checksum (encrypted: two words of checksum, two of MAC) |
//!
//! An *embedded* pointer holds up to 112 bytes of payload in all words but 6 and 10, each word's
//! first byte in its low bits; in word 6 the low 25 bits are the logical size and the next 7 the
//! physical size, both in bytes less one. An *encrypted* pointer (level 0, encrypted type) keeps
//! its salt and IV in words 4 and 5 in place of a third DVA. A *hole* has an empty first DVA.
//!
//! [`BlockPointer`] keeps the sixteen words as they are, so that what we do not understand (and
//! what older writers left in unused bits) survives a rewrite bit for bit; accessors decode.

use std::fmt;

use crate::bytes::{Endian, bits, exact, with_bits};
use crate::dva::Dva;
use crate::error::{FormatError, Result, bad, does_not_fit};
use crate::ids::Txg;
use crate::kinds::{Checksum, Compression, ObjectType};

/// Size of a block pointer in bytes.
pub const BLOCK_POINTER_BYTES: usize = 128;
/// log2 of [`BLOCK_POINTER_BYTES`] (`SPA_BLKPTRSHIFT`).
pub const BLOCK_POINTER_SHIFT: u32 = 7;
/// Copies of a block that one pointer can name (`SPA_DVAS_PER_BP`).
pub const DVAS_PER_POINTER: usize = 3;
/// On-disk sizes count sectors of this many bytes (`SPA_MINBLOCKSIZE`).
pub const SECTOR_BYTES: u64 = 512;
/// log2 of [`SECTOR_BYTES`] (`SPA_MINBLOCKSHIFT`).
pub const SECTOR_SHIFT: u32 = 9;
/// Largest block (`SPA_MAXBLOCKSIZE`, 16 MiB).
pub const MAX_BLOCK_BYTES: u64 = 1 << 24;
/// Largest block without the feature `large_blocks` (`SPA_OLD_MAXBLOCKSIZE`, 128 KiB).
pub const OLD_MAX_BLOCK_BYTES: u64 = 1 << 17;
/// Most bytes that an embedded pointer holds (`BPE_PAYLOAD_SIZE`).
pub const EMBEDDED_PAYLOAD_BYTES: usize = 112;

const BLKPTR: &str = "blkptr_t";
const PROP: usize = 6;
const PROP2: usize = 7;
const PHYSICAL_BIRTH: usize = 9;
const LOGICAL_BIRTH: usize = 10;
const FILL: usize = 11;
const CHECKSUM: usize = 12;
/// Words that hold payload in an embedded pointer.
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

/// What an embedded pointer's payload is (`bp_embedded_type_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EmbeddedKind {
    /// The block's data.
    Data,
    /// Reserved; never used.
    Reserved,
    /// The block was left out of a redacted stream; there is no payload.
    Redacted,
    /// A code that this release does not know.
    Unknown(u8),
}

impl EmbeddedKind {
    /// From the stored code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Data,
            1 => Self::Reserved,
            2 => Self::Redacted,
            other => Self::Unknown(other),
        }
    }

    /// The stored code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Reserved => 1,
            Self::Redacted => 2,
            Self::Unknown(code) => code,
        }
    }
}

/// A block that is all zeros: nothing is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HolePointer {
    /// When it became a hole; zero when it always was one (or before `hole_birth`).
    pub birth: Txg,
    /// Type of the object.
    pub object_type: ObjectType,
    /// Level in the object's tree.
    pub level: u8,
    /// Logical size in bytes; 512 when never filled.
    pub lsize_bytes: u64,
}

/// A block whose data is in the pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EmbeddedPointer {
    /// What the payload is.
    pub kind: EmbeddedKind,
    /// When it was written.
    pub birth: Txg,
    /// Type of the object.
    pub object_type: ObjectType,
    /// Level in the object's tree.
    pub level: u8,
    /// Compression of the payload.
    pub compression: Compression,
    /// Size of the data in bytes.
    pub lsize_bytes: u64,
    /// Size of the payload in bytes; at most [`EMBEDDED_PAYLOAD_BYTES`].
    pub psize_bytes: u64,
    /// Byte order of the data.
    pub endian: Endian,
    payload: [u8; EMBEDDED_PAYLOAD_BYTES],
}

impl EmbeddedPointer {
    /// The payload: `psize_bytes` of (perhaps compressed) data.
    pub fn payload(&self) -> &[u8] {
        &self.payload[..(self.psize_bytes as usize).min(EMBEDDED_PAYLOAD_BYTES)]
    }
}

/// A block that is stored on one to three places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegularPointer {
    /// The copies. An encrypted block has at most two.
    pub dvas: [Option<Dva>; DVAS_PER_POINTER],
    /// Size of the data in bytes.
    pub lsize_bytes: u64,
    /// Size of the stored (compressed) data in bytes, without parity.
    pub psize_bytes: u64,
    /// How it is compressed.
    pub compression: Compression,
    /// How it is checksummed.
    pub checksum_kind: Checksum,
    /// Type of the object.
    pub object_type: ObjectType,
    /// Level in the object's tree: zero is data.
    pub level: u8,
    /// Whether the block is in a dedup table.
    pub dedup: bool,
    /// Whether it is encrypted, authenticated, or sums up MACs of the level below.
    pub uses_crypt: bool,
    /// Whether the physical birth says when it was rewritten (2.4).
    pub rewritten: bool,
    /// Byte order of the block.
    pub endian: Endian,
    /// Non-empty blocks below (1 for a level-0 block, allocated dnodes for dnode blocks).
    pub fill: u64,
    /// Txg in which the data was written.
    pub logical_birth: Txg,
    /// Txg in which this place was written; the same as `logical_birth` for most blocks.
    pub physical_birth: Txg,
    /// The checksum. When encrypted, the last two words are the MAC.
    pub checksum: [u64; 4],
    /// Salt and IV when the block is encrypted.
    pub crypt: Option<CryptParams>,
}

/// What decrypting a block needs besides its key; the MAC is in the checksum's last two words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CryptParams {
    /// Word 4: salt for the key's derivation.
    pub salt: u64,
    /// Word 5: first 64 bits of the IV.
    pub iv1: u64,
    /// High half of the fill word: last 32 bits of the IV.
    pub iv2: u32,
}

impl CryptParams {
    /// From salt and IV as bytes, for a little-endian block (`zio_crypt_encode_params_bp`).
    pub fn from_bytes(salt: [u8; 8], iv: [u8; 12]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = iv;
        Self {
            salt: Endian::Little.u64(salt),
            iv1: Endian::Little.u64([a, b, c, d, e, f, g, h]),
            iv2: Endian::Little.u32([i, j, k, l]),
        }
    }

    /// Salt and IV as bytes; `endian` is that of the block (`zio_crypt_decode_params_bp`).
    pub fn to_bytes(self, endian: Endian) -> ([u8; 8], [u8; 12]) {
        let mut iv = [0; 12];
        iv[..8].copy_from_slice(&endian.u64_bytes(self.iv1));
        // The low half of a word is at its end that comes first.
        let tail = match endian {
            Endian::Little => u64::from(self.iv2),
            Endian::Big => u64::from(self.iv2) << 32,
        };
        iv[8..].copy_from_slice(&endian.u64_bytes(tail)[..4]);
        (endian.u64_bytes(self.salt), iv)
    }
}

/// A decoded pointer, for matching. See [`BlockPointer::decoded`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointer {
    /// Nothing is stored: zeros.
    Hole(HolePointer),
    /// The data is in the pointer.
    Embedded(EmbeddedPointer),
    /// The data is on disk.
    Regular(RegularPointer),
}

/// A block pointer. See the module's head for the layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockPointer {
    words: [u64; 16],
}

impl Default for BlockPointer {
    fn default() -> Self {
        Self::HOLE
    }
}

impl BlockPointer {
    /// A pointer that was never set: sixteen zero words.
    pub const HOLE: Self = Self { words: [0; 16] };

    /// Decodes 128 bytes in the byte order of the block that holds them. Every value decodes;
    /// use [`Self::validate`] before trusting a pointer from an unchecked source.
    pub fn decode(bytes: &[u8; BLOCK_POINTER_BYTES], endian: Endian) -> Self {
        let mut words = [0; 16];
        for (word, value) in words.iter_mut().zip(endian.words(bytes)) {
            *word = value;
        }
        Self { words }
    }

    /// Decodes from the start of a slice.
    ///
    /// # Errors
    /// [`FormatError::TooShort`] when fewer than 128 bytes are there.
    pub fn decode_slice(bytes: &[u8], endian: Endian) -> Result<Self> {
        let bytes = bytes.first_chunk().ok_or(FormatError::TooShort {
            structure: BLKPTR,
            needed_bytes: BLOCK_POINTER_BYTES as u64,
            found_bytes: bytes.len() as u64,
        })?;
        Ok(Self::decode(bytes, endian))
    }

    /// Decodes all whole pointers of an indirect block.
    pub fn decode_all(bytes: &[u8], endian: Endian) -> impl ExactSizeIterator<Item = Self> + '_ {
        bytes
            .as_chunks::<BLOCK_POINTER_BYTES>()
            .0
            .iter()
            .map(move |pointer| Self::decode(pointer, endian))
    }

    /// The 128 bytes, little-endian. The exact inverse of [`Self::decode`].
    pub fn encode(&self) -> [u8; BLOCK_POINTER_BYTES] {
        self.encode_as(Endian::Little)
    }

    /// The 128 bytes in a stated order.
    pub fn encode_as(&self, endian: Endian) -> [u8; BLOCK_POINTER_BYTES] {
        let mut out = [0; BLOCK_POINTER_BYTES];
        for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(self.words) {
            *bytes = endian.u64_bytes(word);
        }
        out
    }

    /// From the sixteen words.
    pub const fn from_words(words: [u64; 16]) -> Self {
        Self { words }
    }

    /// The sixteen words.
    pub const fn words(&self) -> &[u64; 16] {
        &self.words
    }

    /// A hole that remembers when it was made (feature `hole_birth`). With a zero birth it is
    /// [`Self::HOLE`], as OpenZFS writes it (`zio_write_compress`, module/zfs/zio.c).
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the size or the level does not fit.
    pub fn hole(hole: &HolePointer) -> Result<Self> {
        if hole.birth.is_zero() {
            return Ok(Self::HOLE);
        }
        let mut out = Self::HOLE;
        out.set_lsize(hole.lsize_bytes)?;
        out.set_type_and_level(hole.object_type, hole.level)?;
        out.words[LOGICAL_BIRTH] = hole.birth.get();
        Ok(out)
    }

    /// A pointer that holds its (perhaps compressed) data, little-endian.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when the payload or a number does not fit.
    pub fn embedded(
        payload: &[u8],
        lsize_bytes: u64,
        compression: Compression,
        object_type: ObjectType,
        level: u8,
        birth: Txg,
    ) -> Result<Self> {
        let psize_bytes = payload.len() as u64;
        if payload.is_empty() || payload.len() > EMBEDDED_PAYLOAD_BYTES {
            return Err(does_not_fit(
                BLKPTR,
                "payload",
                psize_bytes,
                "1 to 112 bytes",
            ));
        }
        if lsize_bytes == 0 || lsize_bytes > 1 << 25 {
            return Err(does_not_fit(
                BLKPTR,
                "lsize",
                lsize_bytes,
                "1 byte to 32 MiB",
            ));
        }
        let mut out = Self::HOLE;
        for (bytes, at) in payload.chunks(8).zip(PAYLOAD_WORDS) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            out.words[at] = u64::from_le_bytes(word);
        }
        let prop = with_bits(lsize_bytes - 1, 25, 7, psize_bytes - 1);
        let prop = with_bits(prop, 32, 7, compression.code().into());
        let prop = with_bits(prop, 39, 1, 1);
        out.words[PROP] = with_bits(prop, 63, 1, 1);
        out.set_type_and_level(object_type, level)?;
        out.words[LOGICAL_BIRTH] = birth.get();
        Ok(out)
    }

    /// A block on disk.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when a number does not fit, when there is no first DVA, or when
    /// an encrypted block has a third one.
    pub fn regular(block: &RegularPointer) -> Result<Self> {
        let mut out = Self::HOLE;
        if block.dvas[0].is_none() {
            return Err(does_not_fit(
                BLKPTR,
                "dva[0]",
                0,
                "a place: only holes have none",
            ));
        }
        for (index, dva) in block.dvas.iter().enumerate() {
            out.set_dva(index, *dva);
        }
        out.set_lsize(block.lsize_bytes)?;
        let psectors = sectors("psize", block.psize_bytes)?;
        let prop = with_bits(out.words[PROP], 16, 16, psectors - 1);
        let prop = with_bits(prop, 32, 7, block.compression.code().into());
        let prop = with_bits(prop, 40, 8, block.checksum_kind.code().into());
        let prop = with_bits(prop, 61, 1, block.uses_crypt.into());
        let prop = with_bits(prop, 62, 1, block.dedup.into());
        out.words[PROP] = with_bits(prop, 63, 1, (block.endian == Endian::Little).into());
        out.set_type_and_level(block.object_type, block.level)?;
        out.words[PROP2] = with_bits(0, 63, 1, block.rewritten.into());
        out.set_birth(block.logical_birth, block.physical_birth);
        out.words[FILL] = block.fill;
        out.words[CHECKSUM..].copy_from_slice(&block.checksum);
        if let Some(crypt) = block.crypt {
            if block.dvas[2].is_some() {
                return Err(does_not_fit(
                    BLKPTR,
                    "dva[2]",
                    3,
                    "two copies when encrypted",
                ));
            }
            if !out.is_encrypted() {
                return Err(does_not_fit(
                    BLKPTR,
                    "salt",
                    crypt.salt,
                    "a level-0 block of an encrypted type",
                ));
            }
            out.set_crypt(crypt);
            out.set_fill(block.fill);
        }
        Ok(out)
    }

    /// The pointer as a value to match on.
    pub fn decoded(&self) -> Pointer {
        if self.is_embedded() {
            Pointer::Embedded(EmbeddedPointer {
                kind: self.embedded_kind_unchecked(),
                birth: self.logical_birth(),
                object_type: self.object_type(),
                level: self.level(),
                compression: self.compression(),
                lsize_bytes: bits(self.words[PROP], 0, 25) + 1,
                psize_bytes: bits(self.words[PROP], 25, 7) + 1,
                endian: self.endian(),
                payload: self.payload(),
            })
        } else if self.is_hole() {
            Pointer::Hole(HolePointer {
                birth: self.logical_birth(),
                object_type: self.object_type(),
                level: self.level(),
                lsize_bytes: self.lsize_bytes(),
            })
        } else {
            Pointer::Regular(RegularPointer {
                dvas: [self.dva(0), self.dva(1), self.dva(2)],
                lsize_bytes: self.lsize_bytes(),
                psize_bytes: self.psize_bytes(),
                compression: self.compression(),
                checksum_kind: self.checksum_kind(),
                object_type: self.object_type(),
                level: self.level(),
                dedup: self.is_dedup(),
                uses_crypt: self.uses_crypt(),
                rewritten: self.is_rewritten(),
                endian: self.endian(),
                fill: self.fill(),
                logical_birth: self.logical_birth(),
                physical_birth: self.physical_birth(),
                checksum: self.checksum(),
                crypt: self.crypt(),
            })
        }
    }

    /// Whether nothing is stored (`BP_IS_HOLE`).
    pub const fn is_hole(&self) -> bool {
        !self.is_embedded() && self.words[0] == 0 && self.words[1] == 0
    }

    /// Whether the pointer holds its data (`BP_IS_EMBEDDED`); also true of redacted blocks.
    pub const fn is_embedded(&self) -> bool {
        bits(self.words[PROP], 39, 1) != 0
    }

    /// What an embedded pointer holds; `None` for other pointers.
    pub fn embedded_kind(&self) -> Option<EmbeddedKind> {
        self.is_embedded().then(|| self.embedded_kind_unchecked())
    }

    const fn embedded_kind_unchecked(&self) -> EmbeddedKind {
        EmbeddedKind::from_code(bits(self.words[PROP], 40, 8) as u8)
    }

    /// Whether the block was left out of a redacted stream (`BP_IS_REDACTED`).
    pub fn is_redacted(&self) -> bool {
        self.embedded_kind() == Some(EmbeddedKind::Redacted)
    }

    /// Whether the first copy is a gang header (`BP_IS_GANG`).
    pub const fn is_gang(&self) -> bool {
        !self.is_embedded() && bits(self.words[1], 63, 1) != 0
    }

    fn payload(&self) -> [u8; EMBEDDED_PAYLOAD_BYTES] {
        let mut out = [0; EMBEDDED_PAYLOAD_BYTES];
        for (bytes, at) in out.as_chunks_mut::<8>().0.iter_mut().zip(PAYLOAD_WORDS) {
            *bytes = self.words[at].to_le_bytes();
        }
        out
    }

    /// One copy's place; `None` beyond the copies there are, for embedded pointers, and for
    /// the third of an encrypted block.
    pub fn dva(&self, index: usize) -> Option<Dva> {
        if index >= DVAS_PER_POINTER || self.is_embedded() || (index == 2 && self.is_encrypted()) {
            return None;
        }
        Dva::from_words([self.words[index * 2], self.words[index * 2 + 1]])
    }

    /// All copies' places, in order.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + use<> {
        [self.dva(0), self.dva(1), self.dva(2)]
            .into_iter()
            .flatten()
    }

    /// Copies that there are (`BP_GET_NDVAS`).
    pub fn copies(&self) -> usize {
        self.dvas().count()
    }

    /// Bytes allocated for all copies (`BP_GET_ASIZE`). Saturates.
    pub fn asize_bytes(&self) -> u64 {
        self.dvas()
            .fold(0, |sum, dva| sum.saturating_add(dva.asize_bytes()))
    }

    /// Size of the data in bytes (`BP_GET_LSIZE`); zero for redacted blocks.
    pub fn lsize_bytes(&self) -> u64 {
        match self.embedded_kind() {
            Some(EmbeddedKind::Data) => bits(self.words[PROP], 0, 25) + 1,
            Some(_) => 0,
            None => (bits(self.words[PROP], 0, 16) + 1) << SECTOR_SHIFT,
        }
    }

    /// Size of the stored data in bytes (`BP_GET_PSIZE`); zero for embedded pointers.
    pub const fn psize_bytes(&self) -> u64 {
        if self.is_embedded() {
            0
        } else {
            (bits(self.words[PROP], 16, 16) + 1) << SECTOR_SHIFT
        }
    }

    /// How the data is compressed.
    pub const fn compression(&self) -> Compression {
        Compression::from_code(bits(self.words[PROP], 32, 7) as u8)
    }

    /// How the block is checksummed; [`Checksum::Off`] for embedded pointers.
    pub const fn checksum_kind(&self) -> Checksum {
        if self.is_embedded() {
            Checksum::Off
        } else {
            Checksum::from_code(bits(self.words[PROP], 40, 8) as u8)
        }
    }

    /// The checksum's four words. Meaningless for holes and embedded pointers.
    pub const fn checksum(&self) -> [u64; 4] {
        [
            self.words[12],
            self.words[13],
            self.words[14],
            self.words[15],
        ]
    }

    /// Type of the object that the block belongs to.
    pub const fn object_type(&self) -> ObjectType {
        ObjectType::from_code(bits(self.words[PROP], 48, 8) as u8)
    }

    /// Level in the object's tree: zero is data.
    pub const fn level(&self) -> u8 {
        bits(self.words[PROP], 56, 5) as u8
    }

    /// Whether the block is metadata (`BP_IS_METADATA`).
    pub fn is_metadata(&self) -> bool {
        self.level() > 0 || self.object_type().is_metadata()
    }

    /// Whether the block is in a dedup table.
    pub const fn is_dedup(&self) -> bool {
        !self.is_embedded() && bits(self.words[PROP], 62, 1) != 0
    }

    /// Whether the block is encrypted, authenticated or sums up MACs (`BP_USES_CRYPT`).
    pub const fn uses_crypt(&self) -> bool {
        bits(self.words[PROP], 61, 1) != 0
    }

    /// Whether the block's data is encrypted (`BP_IS_ENCRYPTED`).
    pub fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && self.object_type().is_encrypted()
    }

    /// Whether the block is in the clear but has a MAC (`BP_IS_AUTHENTICATED`).
    pub fn is_authenticated(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && !self.object_type().is_encrypted()
    }

    /// Salt and IV of an encrypted block.
    pub fn crypt(&self) -> Option<CryptParams> {
        (self.is_encrypted() && !self.is_embedded()).then(|| CryptParams {
            salt: self.words[4],
            iv1: self.words[5],
            iv2: bits(self.words[FILL], 32, 32) as u32,
        })
    }

    /// Whether it points to an indirect block and sums up the MACs below
    /// (`BP_HAS_INDIRECT_MAC_CKSUM`).
    pub const fn has_mac_of_macs(&self) -> bool {
        self.uses_crypt() && self.level() > 0
    }

    /// The MAC of an encrypted or authenticated block, or the sum of the MACs below: the last two
    /// words of the checksum as bytes in the block's own order; zeros for object sets' roots, whose
    /// MACs are in the block (`zio_crypt_decode_mac_bp`).
    pub fn mac(&self) -> [u8; 16] {
        let mut mac = [0; 16];
        if self.object_type() != ObjectType::OBJSET {
            for (bytes, word) in mac
                .as_chunks_mut::<8>()
                .0
                .iter_mut()
                .zip(&self.words[CHECKSUM + 2..])
            {
                *bytes = self.endian().u64_bytes(*word);
            }
        }
        mac
    }

    /// The word of properties (`blk_prop`).
    pub const fn prop(&self) -> u64 {
        self.words[PROP]
    }

    /// Byte order of the block that is pointed to.
    pub const fn endian(&self) -> Endian {
        if bits(self.words[PROP], 63, 1) != 0 {
            Endian::Little
        } else {
            Endian::Big
        }
    }

    /// Whether the physical birth says when the block was rewritten (`BP_GET_REWRITE`).
    pub const fn is_rewritten(&self) -> bool {
        !self.is_embedded() && bits(self.words[PROP2], 63, 1) != 0
    }

    /// Non-empty blocks below (`BP_GET_FILL`); 1 for embedded pointers.
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_encrypted() {
            bits(self.words[FILL], 0, 32)
        } else {
            self.words[FILL]
        }
    }

    /// Txg in which the data was written (or the hole was made).
    pub const fn logical_birth(&self) -> Txg {
        Txg::new(self.words[LOGICAL_BIRTH])
    }

    /// Txg in which the stored bytes were written (`BP_GET_PHYSICAL_BIRTH`); zero when embedded.
    pub const fn physical_birth(&self) -> Txg {
        if self.is_embedded() {
            Txg::ZERO
        } else if self.words[PHYSICAL_BIRTH] != 0 {
            Txg::new(self.words[PHYSICAL_BIRTH])
        } else {
            Txg::new(self.words[LOGICAL_BIRTH])
        }
    }

    /// Txg in which the space was allocated for this dataset (`BP_GET_BIRTH`): decides which
    /// snapshot a freed block belongs to.
    pub const fn birth(&self) -> Txg {
        if self.is_rewritten() {
            self.physical_birth()
        } else {
            self.logical_birth()
        }
    }

    /// Whether both point to the same stored block (`BP_EQUAL`).
    pub fn same_block(&self, other: &Self) -> bool {
        self.words[..6] == other.words[..6]
            && self.logical_birth() == other.logical_birth()
            && self.physical_birth() == other.physical_birth()
    }

    /// Sets one copy's place; `None` clears it.
    ///
    /// # Panics
    /// When `index` is not below three: that is a bug in the caller.
    pub fn set_dva(&mut self, index: usize, dva: Option<Dva>) {
        assert!(
            index < DVAS_PER_POINTER,
            "a block pointer has three DVAs, not {}",
            index + 1
        );
        let words = dva.map_or([0; 2], Dva::to_words);
        self.words[index * 2..index * 2 + 2].copy_from_slice(&words);
    }

    /// Sets the checksum's words.
    pub fn set_checksum(&mut self, checksum: [u64; 4]) {
        self.words[CHECKSUM..].copy_from_slice(&checksum);
    }

    /// Sets the checksum's kind.
    pub fn set_checksum_kind(&mut self, kind: Checksum) {
        self.words[PROP] = with_bits(self.words[PROP], 40, 8, kind.code().into());
    }

    /// Sets the MAC (of any but an object set's root), as [`Self::mac`] reads it.
    pub fn set_mac(&mut self, mac: [u8; 16]) {
        let endian = self.endian();
        for (word, bytes) in self.words[CHECKSUM + 2..]
            .iter_mut()
            .zip(mac.as_chunks::<8>().0)
        {
            *word = endian.u64(*bytes);
        }
    }

    /// Sets the fill count (of an encrypted block: its low 32 bits, keeping the IV).
    pub fn set_fill(&mut self, fill: u64) {
        if self.is_encrypted() {
            self.words[FILL] = with_bits(self.words[FILL], 0, 32, fill);
        } else {
            self.words[FILL] = fill;
        }
    }

    /// Sets both births (`BP_SET_BIRTH`): equal births store a zero physical birth.
    pub fn set_birth(&mut self, logical: Txg, physical: Txg) {
        self.words[LOGICAL_BIRTH] = logical.get();
        self.words[PHYSICAL_BIRTH] = if logical == physical {
            0
        } else {
            physical.get()
        };
    }

    /// Sets whether the physical birth says when the block was rewritten (`BP_SET_REWRITE`).
    pub fn set_rewritten(&mut self, rewritten: bool) {
        self.words[PROP2] = with_bits(self.words[PROP2], 63, 1, rewritten.into());
    }

    /// Sets the dedup bit.
    pub fn set_dedup(&mut self, dedup: bool) {
        self.words[PROP] = with_bits(self.words[PROP], 62, 1, dedup.into());
    }

    /// Sets the bit that marks encrypted, authenticated and MAC-summing blocks.
    pub fn set_uses_crypt(&mut self, uses_crypt: bool) {
        self.words[PROP] = with_bits(self.words[PROP], 61, 1, uses_crypt.into());
    }

    /// Sets the bit of deadlists: whether the entry says "freed" rather than "allocated"
    /// (`BP_SET_FREE`; low bit of the fill word, in livelists only).
    pub fn set_livelist_free(&mut self, freed: bool) {
        self.words[FILL] = with_bits(self.words[FILL], 0, 1, freed.into());
    }

    /// Whether a livelist's entry says "freed" (`BP_GET_FREE`).
    pub const fn livelist_free(&self) -> bool {
        bits(self.words[FILL], 0, 1) != 0
    }

    fn set_crypt(&mut self, crypt: CryptParams) {
        self.words[4] = crypt.salt;
        self.words[5] = crypt.iv1;
        self.words[FILL] = with_bits(self.words[FILL], 32, 32, crypt.iv2.into());
    }

    fn set_lsize(&mut self, lsize_bytes: u64) -> Result<()> {
        let sectors = sectors("lsize", lsize_bytes)?;
        self.words[PROP] = with_bits(self.words[PROP], 0, 16, sectors - 1);
        Ok(())
    }

    fn set_type_and_level(&mut self, object_type: ObjectType, level: u8) -> Result<()> {
        if level >= 1 << 5 {
            return Err(does_not_fit(
                BLKPTR,
                "level",
                level.into(),
                "levels below 32",
            ));
        }
        let prop = with_bits(self.words[PROP], 48, 8, object_type.code().into());
        self.words[PROP] = with_bits(prop, 56, 5, level.into());
        Ok(())
    }

    /// Checks what must hold of any pointer that was read from a pool, before a block is read
    /// through it (facts of `zfs_blkptr_verify`, module/zfs/zio.c). Whether a DVA lies on its vdev
    /// is for who knows the vdevs.
    ///
    /// # Errors
    /// [`FormatError::BadField`] naming the first field that cannot be.
    pub fn validate(&self) -> Result<()> {
        if !self.object_type().is_valid() {
            let found = self.object_type().code().into();
            return Err(bad(BLKPTR, "type", found, "a known object type"));
        }
        if self.is_embedded() {
            let psize = bits(self.words[PROP], 25, 7) + 1;
            if psize > EMBEDDED_PAYLOAD_BYTES as u64 && !self.is_redacted() {
                return Err(bad(
                    BLKPTR,
                    "psize",
                    psize,
                    "at most 112 bytes when embedded",
                ));
            }
            if let EmbeddedKind::Unknown(code) = self.embedded_kind_unchecked() {
                return Err(bad(BLKPTR, "etype", code.into(), "a known kind of payload"));
            }
        }
        if self.lsize_bytes() > MAX_BLOCK_BYTES {
            return Err(bad(BLKPTR, "lsize", self.lsize_bytes(), "at most 16 MiB"));
        }
        if self.is_hole() {
            return Ok(());
        }
        match self.compression() {
            Compression::Unknown(code) => {
                return Err(bad(BLKPTR, "comp", code.into(), "a known compression"));
            }
            kind @ (Compression::Inherit | Compression::On) => {
                return Err(bad(
                    BLKPTR,
                    "comp",
                    kind.code().into(),
                    "a stored compression",
                ));
            }
            _ => {}
        }
        if self.is_embedded() {
            return Ok(());
        }
        match self.checksum_kind() {
            Checksum::Unknown(code) => {
                return Err(bad(BLKPTR, "cksum", code.into(), "a known checksum"));
            }
            kind @ (Checksum::Inherit | Checksum::On) => {
                return Err(bad(
                    BLKPTR,
                    "cksum",
                    kind.code().into(),
                    "a stored checksum",
                ));
            }
            _ => {}
        }
        if self.psize_bytes() > MAX_BLOCK_BYTES {
            return Err(bad(BLKPTR, "psize", self.psize_bytes(), "at most 16 MiB"));
        }
        let last = if self.is_encrypted() { 2 } else { 3 };
        for pair in self.words[..last * 2].as_chunks::<2>().0 {
            if *pair == [0, 0] {
                continue;
            }
            let Some(dva) = Dva::from_words(*pair) else {
                return Err(bad(BLKPTR, "dva.offset", pair[1], "below 2^64 bytes"));
            };
            if dva.offset_bytes().checked_add(dva.asize_bytes()).is_none() {
                return Err(bad(
                    BLKPTR,
                    "dva.asize",
                    dva.asize_bytes(),
                    "an end below 2^64",
                ));
            }
        }
        Ok(())
    }
}

fn sectors(field: &'static str, bytes: u64) -> Result<u64> {
    let sectors = bytes >> SECTOR_SHIFT;
    if !bytes.is_multiple_of(SECTOR_BYTES) || sectors == 0 || sectors > 1 << 16 {
        return Err(does_not_fit(
            BLKPTR,
            field,
            bytes,
            "whole 512-byte sectors, 512 to 32 MiB",
        ));
    }
    Ok(sectors)
}

impl fmt::Debug for BlockPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockPointer({self})")
    }
}

impl fmt::Display for BlockPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, kind) = (self.level(), self.object_type());
        let (lsize, birth) = (self.lsize_bytes(), self.logical_birth());
        match self.decoded() {
            Pointer::Hole(_) => {
                write!(f, "HOLE [L{level} {kind}] size={lsize:x}L birth={birth}L")
            }
            Pointer::Embedded(e) => write!(
                f,
                "EMBEDDED [L{level} {kind}] et={} {} size={:x}L/{:x}P birth={birth}L",
                e.kind.code(),
                e.compression,
                e.lsize_bytes,
                e.psize_bytes,
            ),
            Pointer::Regular(r) => {
                for (index, dva) in self.dvas().enumerate() {
                    write!(f, "DVA[{index}]={dva} ")?;
                }
                write!(
                    f,
                    "[L{level} {kind}] {} {} {} {} {} size={lsize:x}L/{:x}P \
                     birth={birth}L/{}P fill={} cksum={:016x}:{:016x}:{:016x}:{:016x}",
                    r.checksum_kind,
                    r.compression,
                    if r.uses_crypt {
                        "encrypted"
                    } else {
                        "unencrypted"
                    },
                    if r.endian == Endian::Little {
                        "LE"
                    } else {
                        "BE"
                    },
                    if self.is_gang() { "gang" } else { "contiguous" },
                    r.psize_bytes,
                    r.physical_birth,
                    r.fill,
                    r.checksum[0],
                    r.checksum[1],
                    r.checksum[2],
                    r.checksum[3],
                )
            }
        }
    }
}

/// Reads a pointer at a reader's position.
pub(crate) fn read_pointer(
    reader: &mut crate::bytes::Reader<'_>,
    endian: Endian,
) -> Result<BlockPointer> {
    Ok(BlockPointer::decode(
        &exact(reader.take(BLOCK_POINTER_BYTES)?),
        endian,
    ))
}
