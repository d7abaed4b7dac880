//! Reading and writing integers in a stated byte order, with every access checked.

use crate::error::{FormatError, Result};

/// Byte order of a block. A ZFS block keeps the byte order of the machine that wrote it;
/// block pointers, labels and streams say which that was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Endian {
    /// Least significant byte first: x86, ARM, RISC-V, and everything that we write.
    #[default]
    Little,
    /// Most significant byte first: SPARC, s390x, older POWER.
    Big,
}

impl Endian {
    /// The order that is not this one.
    pub const fn opposite(self) -> Self {
        match self {
            Self::Little => Self::Big,
            Self::Big => Self::Little,
        }
    }

    /// A 16-bit integer from bytes in this order.
    pub const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// A 32-bit integer from bytes in this order.
    pub const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// A 64-bit integer from bytes in this order.
    pub const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    /// The bytes of a 64-bit integer in this order.
    pub const fn u64_bytes(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// All whole 64-bit words of `bytes`; a tail shorter than a word is left out.
    pub fn words(self, bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
        bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(move |word| self.u64(*word))
    }
}

/// A cursor over a structure's bytes. Every read is checked against the end.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    structure: &'static str,
    bytes: &'a [u8],
    at: usize,
    endian: Endian,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(structure: &'static str, bytes: &'a [u8], endian: Endian) -> Self {
        Self {
            structure,
            bytes,
            at: 0,
            endian,
        }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// All bytes that are left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let short = FormatError::TooShort {
            structure: self.structure,
            needed_bytes: (self.at as u64).saturating_add(length as u64),
            found_bytes: self.bytes.len() as u64,
        };
        let end = self.at.checked_add(length).ok_or(short.clone())?;
        let piece = self.bytes.get(self.at..end).ok_or(short)?;
        self.at = end;
        Ok(piece)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn skip(&mut self, length: usize) -> Result<()> {
        self.take(length).map(|_| ())
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(self.endian.u16(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(self.endian.u32(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(self.endian.u64(self.array()?))
    }

    pub(crate) fn words<const N: usize>(&mut self) -> Result<[u64; N]> {
        let mut out = [0; N];
        for word in &mut out {
            *word = self.u64()?;
        }
        Ok(out)
    }
}

/// Appends little-endian integers: the byte order of everything that we write.
pub(crate) trait Put {
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_words(&mut self, words: &[u64]);
    fn put_zeros(&mut self, length: usize);
}

impl Put for Vec<u8> {
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_words(&mut self, words: &[u64]) {
        for word in words {
            self.put_u64(*word);
        }
    }

    fn put_zeros(&mut self, length: usize) {
        self.resize(self.len() + length, 0);
    }
}

/// Copies a vector that holds exactly `N` bytes into an array.
pub(crate) fn exact<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let length = bytes.len().min(N);
    debug_assert_eq!(bytes.len(), N, "an encoder produced the wrong length");
    out[..length].copy_from_slice(&bytes[..length]);
    out
}

/// `bits` bits of `word` from bit `low` up.
pub(crate) const fn bits(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & (u64::MAX >> (64 - bits))
}

/// `word` with `bits` bits from bit `low` up replaced by the low bits of `value`.
pub(crate) const fn with_bits(word: u64, low: u32, bits: u32, value: u64) -> u64 {
    let mask = (u64::MAX >> (64 - bits)) << low;
    (word & !mask) | ((value << low) & mask)
}
