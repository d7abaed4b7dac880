//! System attributes (include/sys/sa_impl.h): how a file's metadata lies in a bonus or spill block.
//!
//! # Layout of a buffer
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 4 | magic, which tells the byte order |
//! | 4 | 2 | bits 0..10 number of the layout, 10..16 size of the header in words |
//! | 6 | 2 × n | lengths of the attributes that have no fixed length, in the layout's order |
//! | header size | | attributes in the layout's order, each at a multiple of eight |
//!
//! The layout (an array of attribute numbers) is in the ZAP `LAYOUTS`, under its number in decimal;
//! what a number means is in the ZAP `REGISTRY`: a word with the number in bits 0..16, byte swap in
//! 16..24 and length in 24..40 (zero is variable). Layouts 0 and 1 are reserved for old znodes and
//! for buffers without attributes.

use std::ops::Range;

use crate::bytes::{Endian, Put, Reader, bits, with_bits};
use crate::error::{FormatError, Result, bad, does_not_fit};

const SA: &str = "sa_hdr_phys_t";
const MAGIC: u32 = 0x2f_505a;
/// First number of a layout that can be given out.
pub const SA_FIRST_LAYOUT: u16 = 2;

/// How an attribute's bytes are to be swapped (`sa_bswap_type_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SaByteswap {
    /// 64-bit words.
    Uint64,
    /// 32-bit words.
    Uint32,
    /// 16-bit words.
    Uint16,
    /// Bytes.
    Uint8,
    /// An ACL.
    Acl,
    /// A code that this release does not know.
    Unknown(u8),
}

impl SaByteswap {
    /// From the stored code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Uint64,
            1 => Self::Uint32,
            2 => Self::Uint16,
            3 => Self::Uint8,
            4 => Self::Acl,
            other => Self::Unknown(other),
        }
    }

    /// The stored code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Uint64 => 0,
            Self::Uint32 => 1,
            Self::Uint16 => 2,
            Self::Uint8 => 3,
            Self::Acl => 4,
            Self::Unknown(code) => code,
        }
    }
}

/// What the registry says of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SaRegistration {
    /// Its number in this filesystem.
    pub number: u16,
    /// Its length in bytes; zero is variable.
    pub length_bytes: u16,
    /// How it is to be swapped.
    pub byteswap: SaByteswap,
}

impl SaRegistration {
    /// From the registry's word.
    pub const fn decode(word: u64) -> Self {
        Self {
            number: bits(word, 0, 16) as u16,
            length_bytes: bits(word, 24, 16) as u16,
            byteswap: SaByteswap::from_code(bits(word, 16, 8) as u8),
        }
    }

    /// The registry's word.
    pub const fn encode(&self) -> u64 {
        let word = with_bits(self.number as u64, 16, 8, self.byteswap.code() as u64);
        with_bits(word, 24, 16, self.length_bytes as u64)
    }
}

/// Header of a bonus or spill buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaHeader {
    /// Byte order of the buffer.
    pub endian: Endian,
    /// Number of the layout.
    pub layout: u16,
    /// Size of the header in bytes.
    pub header_bytes: u16,
}

impl SaHeader {
    /// Decodes the header at the start of a buffer; the magic tells the byte order.
    ///
    /// # Errors
    /// [`FormatError`] when there is no header.
    pub fn decode(buffer: &[u8]) -> Result<Self> {
        let magic = Reader::new(SA, buffer, Endian::Little).u32()?;
        let endian = match magic {
            MAGIC => Endian::Little,
            other if other.swap_bytes() == MAGIC => Endian::Big,
            other => return Err(bad(SA, "sa_magic", other.into(), "0x2f505a")),
        };
        let mut r = Reader::new(SA, buffer, endian);
        r.skip(4)?;
        let info = u64::from(r.u16()?);
        let header_bytes = (bits(info, 10, 6) * 8) as u16;
        if header_bytes < 8 || usize::from(header_bytes) > buffer.len() {
            return Err(bad(
                SA,
                "hdrsize",
                header_bytes.into(),
                "8 bytes up to the buffer's size",
            ));
        }
        Ok(Self {
            endian,
            layout: bits(info, 0, 10) as u16,
            header_bytes,
        })
    }

    /// Whether a buffer was never filled: there is no header then, but zeros or nothing.
    pub fn is_unfilled(buffer: &[u8]) -> bool {
        buffer
            .first_chunk::<4>()
            .is_none_or(|magic| *magic == [0; 4])
    }

    /// The value of an attribute of eight bytes that the layouts of all ZPL objects begin with.
    /// `None` when the buffer ends before it.
    pub fn fixed(&self, buffer: &[u8], attribute: SaFixedPlace) -> Option<u64> {
        let at = usize::from(self.header_bytes) + attribute as usize;
        let bytes = buffer.get(at..)?.first_chunk()?;
        Some(self.endian.u64(*bytes))
    }

    /// Where each attribute lies in the buffer. `length_of` gives the registered length of an
    /// attribute (zero is variable), or `None` when it is not registered.
    ///
    /// # Errors
    /// [`FormatError`] when an attribute is not registered or reaches beyond the buffer.
    pub fn locate(
        &self,
        buffer: &[u8],
        layout: &[u16],
        length_of: impl Fn(u16) -> Option<u16>,
    ) -> Result<Vec<(u16, Range<usize>)>> {
        let mut out = Vec::with_capacity(layout.len().min(64));
        for place in self.places(buffer, layout, length_of) {
            out.push(place?);
        }
        Ok(out)
    }

    /// As [`Self::locate`], one after the other: nothing is to be asked for after an error.
    pub fn places<'a>(
        &self,
        buffer: &'a [u8],
        layout: &'a [u16],
        length_of: impl Fn(u16) -> Option<u16> + 'a,
    ) -> impl Iterator<Item = Result<(u16, Range<usize>)>> + 'a {
        let header = buffer
            .get(6..usize::from(self.header_bytes))
            .unwrap_or_default();
        let mut lengths = Reader::new(SA, header, self.endian);
        let mut at = usize::from(self.header_bytes);
        layout.iter().map(move |attribute| -> Result<_> {
            let registered = length_of(*attribute)
                .ok_or_else(|| bad(SA, "layout", (*attribute).into(), "registered attributes"))?;
            let length = match registered {
                0 => lengths.u16()?,
                fixed => fixed,
            };
            let end = at + usize::from(length);
            if end > buffer.len() {
                return Err(FormatError::TooShort {
                    structure: SA,
                    needed_bytes: end as u64,
                    found_bytes: buffer.len() as u64,
                });
            }
            let place = (*attribute, at..end);
            at = end.next_multiple_of(8);
            Ok(place)
        })
    }
}

/// Where attributes lie that the layouts of all ZPL objects begin with, in bytes behind the header
/// (`SA_GEN_OFFSET`, ..., include/sys/zfs_sa.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaFixedPlace {
    /// The transaction group in which the object was made.
    Generation = 16,
    /// The owner.
    User = 24,
    /// The group.
    Group = 32,
    /// The ZPL's flags.
    Flags = 48,
    /// The project, of an object that has one by its flags.
    Project = 128,
}

/// Size of the header for this many attributes without fixed length.
pub const fn sa_header_bytes(variable_count: usize) -> usize {
    (6 + 2 * if variable_count == 0 {
        1
    } else {
        variable_count
    })
    .next_multiple_of(8)
}

/// Size of a buffer with attributes of these lengths: `(registered, actual)` in the layout's order.
pub fn sa_buffer_bytes(lengths: impl IntoIterator<Item = (u16, usize)>) -> usize {
    let mut variable = 0;
    let mut data: usize = 0;
    for (registered, actual) in lengths {
        variable += usize::from(registered == 0);
        data = data.next_multiple_of(8) + actual;
    }
    sa_header_bytes(variable) + data
}

/// A buffer with these attributes, little-endian: each its registered length and its bytes
/// (already little-endian), in the layout's order.
///
/// # Errors
/// [`FormatError::DoesNotFit`] when a value is not of its registered length, or too long.
pub fn encode_sa(layout: u16, attributes: &[(u16, &[u8])]) -> Result<Vec<u8>> {
    let variable = attributes
        .iter()
        .filter(|(registered, _)| *registered == 0)
        .count();
    let header_bytes = sa_header_bytes(variable);
    if layout >= 1 << 10 {
        return Err(does_not_fit(
            SA,
            "layout",
            layout.into(),
            "numbers below 1024",
        ));
    }
    if header_bytes >= 64 * 8 {
        return Err(does_not_fit(SA, "hdrsize", header_bytes as u64, "63 words"));
    }
    let lengths = attributes
        .iter()
        .map(|(registered, value)| (*registered, value.len()));
    let mut out = Vec::with_capacity(sa_buffer_bytes(lengths));
    out.put_u32(MAGIC);
    out.put_u16(with_bits(layout.into(), 10, 6, header_bytes as u64 / 8) as u16);
    for (registered, value) in attributes {
        let length = value.len();
        let fits = u16::try_from(length).ok();
        let Some(length) = fits.filter(|length| *registered == 0 || length == registered) else {
            let expected = "values of their registered length, below 64 KiB";
            return Err(does_not_fit(SA, "sa_lengths", length as u64, expected));
        };
        if *registered == 0 {
            out.put_u16(length);
        }
    }
    out.resize(header_bytes, 0);
    for (_, value) in attributes {
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend_from_slice(value);
    }
    Ok(out)
}
