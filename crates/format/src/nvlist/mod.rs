//! Name-value lists (`nvlist_t`, include/sys/nvpair.h): labels, the pool's configuration, history,
//! and the arguments of administrative commands.
//!
//! A packed list starts with four bytes: encoding (0 native, 1 XDR), byte order of the writer
//! (1 little-endian), two zeros. Labels, the MOS configuration and history are XDR; a pool cache
//! file may be either. The two encodings are described in `xdr.rs` and `native.rs`.
//!
//! Order is kept, so that a decoded list encodes to the same bytes.

mod native;
mod xdr;

use std::fmt;

use crate::bytes::Endian;
use crate::error::{FormatError, Result, bad, does_not_fit};

const NVLIST: &str = "nvlist_t";
/// Lists may be nested this deep (OpenZFS's kernel: `nvpair_max_recursion` is 100).
const MAX_DEPTH: u32 = 64;
/// In-memory size of `nvpair_t` before its name, which packed pairs still tell.
const PAIR_BYTES: usize = 16;
/// In-memory size of `nvlist_t`.
const LIST_BYTES: usize = 24;

/// How a list is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NvEncoding {
    /// The in-memory form of a 64-bit machine (`NV_ENCODE_NATIVE`).
    Native,
    /// XDR, RFC 4506: big-endian and in units of four bytes (`NV_ENCODE_XDR`).
    Xdr,
}

/// A value (`data_type_t`).
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each variant is named after what it holds")]
pub enum NvValue {
    /// No value: the name's presence says it (`DATA_TYPE_BOOLEAN`).
    Boolean,
    /// True or false (`DATA_TYPE_BOOLEAN_VALUE`).
    BooleanValue(bool),
    Byte(u8),
    Int8(i8),
    UInt8(u8),
    Int16(i16),
    UInt16(u16),
    Int32(i32),
    UInt32(u32),
    Int64(i64),
    UInt64(u64),
    /// Nanoseconds (`DATA_TYPE_HRTIME`).
    HrTime(i64),
    Double(f64),
    String(String),
    /// A string that is not UTF-8; kept as it is. It holds no zero byte.
    RawString(Vec<u8>),
    List(NvList),
    BooleanArray(Vec<bool>),
    ByteArray(Vec<u8>),
    Int8Array(Vec<i8>),
    UInt8Array(Vec<u8>),
    Int16Array(Vec<i16>),
    UInt16Array(Vec<u16>),
    Int32Array(Vec<i32>),
    UInt32Array(Vec<u32>),
    Int64Array(Vec<i64>),
    UInt64Array(Vec<u64>),
    StringArray(Vec<String>),
    ListArray(Vec<NvList>),
}

impl NvValue {
    /// The stored code of the type.
    pub const fn type_code(&self) -> i32 {
        match self {
            Self::Boolean => 1,
            Self::Byte(_) => 2,
            Self::Int16(_) => 3,
            Self::UInt16(_) => 4,
            Self::Int32(_) => 5,
            Self::UInt32(_) => 6,
            Self::Int64(_) => 7,
            Self::UInt64(_) => 8,
            Self::String(_) | Self::RawString(_) => 9,
            Self::ByteArray(_) => 10,
            Self::Int16Array(_) => 11,
            Self::UInt16Array(_) => 12,
            Self::Int32Array(_) => 13,
            Self::UInt32Array(_) => 14,
            Self::Int64Array(_) => 15,
            Self::UInt64Array(_) => 16,
            Self::StringArray(_) => 17,
            Self::HrTime(_) => 18,
            Self::List(_) => 19,
            Self::ListArray(_) => 20,
            Self::BooleanValue(_) => 21,
            Self::Int8(_) => 22,
            Self::UInt8(_) => 23,
            Self::BooleanArray(_) => 24,
            Self::Int8Array(_) => 25,
            Self::UInt8Array(_) => 26,
            Self::Double(_) => 27,
        }
    }

    /// Number of elements as stored: zero for [`Self::Boolean`], one for scalars.
    fn element_count(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::BooleanArray(v) => v.len(),
            Self::ByteArray(v) | Self::UInt8Array(v) => v.len(),
            Self::Int8Array(v) => v.len(),
            Self::Int16Array(v) => v.len(),
            Self::UInt16Array(v) => v.len(),
            Self::Int32Array(v) => v.len(),
            Self::UInt32Array(v) => v.len(),
            Self::Int64Array(v) => v.len(),
            Self::UInt64Array(v) => v.len(),
            Self::StringArray(v) => v.len(),
            Self::ListArray(v) => v.len(),
            _ => 1,
        }
    }

    /// Size of the value in the native in-memory form (`i_get_value_size`, module/nvpair/nvpair.c).
    fn native_bytes(&self) -> usize {
        let count = self.element_count();
        match self {
            Self::Boolean => 0,
            Self::Byte(_) | Self::Int8(_) | Self::UInt8(_) => 1,
            Self::Int16(_) | Self::UInt16(_) => 2,
            Self::BooleanValue(_) | Self::Int32(_) | Self::UInt32(_) => 4,
            Self::Int64(_) | Self::UInt64(_) | Self::HrTime(_) | Self::Double(_) => 8,
            Self::String(s) => s.len() + 1,
            Self::RawString(s) => s.len() + 1,
            Self::List(_) => LIST_BYTES,
            Self::ByteArray(_) | Self::Int8Array(_) | Self::UInt8Array(_) => count,
            Self::Int16Array(_) | Self::UInt16Array(_) => count * 2,
            Self::BooleanArray(_) | Self::Int32Array(_) | Self::UInt32Array(_) => count * 4,
            Self::Int64Array(_) | Self::UInt64Array(_) => count * 8,
            Self::StringArray(v) => count * 8 + v.iter().map(|s| s.len() + 1).sum::<usize>(),
            Self::ListArray(_) => count * (8 + LIST_BYTES),
        }
    }

    /// Refuses strings that cannot be stored: those with a zero byte in them.
    fn check_text(&self) -> Result<()> {
        let fits = match self {
            Self::String(s) => !s.contains('\0'),
            Self::RawString(s) => !s.contains(&0),
            Self::StringArray(v) => v.iter().all(|s| !s.contains('\0')),
            _ => true,
        };
        if fits {
            Ok(())
        } else {
            Err(FormatError::BadText {
                structure: NVLIST,
                field: "value",
            })
        }
    }
}

macro_rules! from_value {
    ($($type:ty => $variant:ident),* $(,)?) => {
        $(impl From<$type> for NvValue {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*
    };
}

from_value! {
    bool => BooleanValue,
    i32 => Int32,
    u32 => UInt32,
    i64 => Int64,
    u64 => UInt64,
    String => String,
    NvList => List,
    Vec<u64> => UInt64Array,
    Vec<String> => StringArray,
    Vec<NvList> => ListArray,
}

impl From<&str> for NvValue {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

/// A pair's name: bytes without a zero. Nearly all are text; names of extended attributes may be
/// anything.
#[derive(Debug, Clone, PartialEq)]
enum Name {
    Text(String),
    /// Bytes that are no UTF-8.
    Raw(Vec<u8>),
}

impl Name {
    fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Raw(bytes.to_vec()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Raw(bytes) => bytes,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Raw(_) => None,
        }
    }

    fn is(&self, other: &str) -> bool {
        self.bytes() == other.as_bytes()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes().escape_ascii())
    }
}

/// A list of names and values, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct NvList {
    flags: u32,
    pairs: Vec<(Name, NvValue)>,
}

impl Default for NvList {
    fn default() -> Self {
        Self::new()
    }
}

impl NvList {
    /// Names are unique (`NV_UNIQUE_NAME`).
    pub const UNIQUE_NAME: u32 = 1;
    /// Names are unique per type (`NV_UNIQUE_NAME_TYPE`).
    pub const UNIQUE_NAME_TYPE: u32 = 2;

    /// An empty list with unique names.
    pub const fn new() -> Self {
        Self::with_flags(Self::UNIQUE_NAME)
    }

    /// An empty list with the given flags.
    pub const fn with_flags(flags: u32) -> Self {
        Self {
            flags,
            pairs: Vec::new(),
        }
    }

    /// The stored flags.
    pub const fn flags(&self) -> u32 {
        self.flags
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// All pairs in order, but those whose names are no UTF-8 ([`Self::iter_bytes`] has them).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &NvValue)> {
        self.pairs
            .iter()
            .filter_map(|(name, value)| Some((name.text()?, value)))
    }

    /// All pairs in order, with their names as they are stored.
    pub fn iter_bytes(&self) -> impl ExactSizeIterator<Item = (&[u8], &NvValue)> {
        self.pairs.iter().map(|(name, value)| (name.bytes(), value))
    }

    /// Sets a value: replaces one of the same name in its place, or appends. Takes time linear in
    /// the list's length; to build long lists of names known to differ, use [`Self::push`].
    pub fn set(&mut self, name: &str, value: impl Into<NvValue>) -> &mut Self {
        let value = value.into();
        match self.pairs.iter_mut().find(|(other, _)| other.is(name)) {
            Some(pair) => pair.1 = value,
            None => self.pairs.push((Name::Text(name.to_owned()), value)),
        }
        self
    }

    /// Appends a pair without looking for another of its name.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<NvValue>) -> &mut Self {
        self.pairs.push((Name::Text(name.into()), value.into()));
        self
    }

    /// The same, of a name that need not be UTF-8.
    pub fn push_bytes(&mut self, name: &[u8], value: impl Into<NvValue>) -> &mut Self {
        self.pairs.push((Name::of(name), value.into()));
        self
    }

    /// Removes a pair and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<NvValue> {
        let at = self.pairs.iter().position(|(other, _)| other.is(name))?;
        Some(self.pairs.remove(at).1)
    }

    /// A value of any type.
    pub fn get(&self, name: &str) -> Option<&NvValue> {
        self.pairs
            .iter()
            .find(|(other, _)| other.is(name))
            .map(|(_, value)| value)
    }

    /// A value of any type, to change.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut NvValue> {
        self.pairs
            .iter_mut()
            .find(|(other, _)| other.is(name))
            .map(|(_, value)| value)
    }

    /// Whether there is a pair of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A `uint64` value.
    pub fn u64(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            NvValue::UInt64(value) => Some(*value),
            _ => None,
        }
    }

    /// A string that is UTF-8.
    pub fn string(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            NvValue::String(value) => Some(value),
            _ => None,
        }
    }

    /// A string's bytes.
    pub fn string_bytes(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            NvValue::String(value) => Some(value.as_bytes()),
            NvValue::RawString(value) => Some(value),
            _ => None,
        }
    }

    /// A nested list.
    pub fn list(&self, name: &str) -> Option<&NvList> {
        match self.get(name)? {
            NvValue::List(value) => Some(value),
            _ => None,
        }
    }

    /// A nested list, to change.
    pub fn list_mut(&mut self, name: &str) -> Option<&mut NvList> {
        match self.get_mut(name)? {
            NvValue::List(value) => Some(value),
            _ => None,
        }
    }

    /// An array of nested lists.
    pub fn lists(&self, name: &str) -> Option<&[NvList]> {
        match self.get(name)? {
            NvValue::ListArray(value) => Some(value),
            _ => None,
        }
    }

    /// An array of `uint64`.
    pub fn u64s(&self, name: &str) -> Option<&[u64]> {
        match self.get(name)? {
            NvValue::UInt64Array(value) => Some(value),
            _ => None,
        }
    }

    /// A `uint64` value that must be there.
    ///
    /// # Errors
    /// [`FormatError::Missing`].
    pub fn require_u64(&self, name: &str) -> Result<u64> {
        self.u64(name).ok_or_else(|| missing(name, "uint64"))
    }

    /// A string that must be there.
    ///
    /// # Errors
    /// [`FormatError::Missing`].
    pub fn require_string(&self, name: &str) -> Result<&str> {
        self.string(name).ok_or_else(|| missing(name, "string"))
    }

    /// A nested list that must be there.
    ///
    /// # Errors
    /// [`FormatError::Missing`].
    pub fn require_list(&self, name: &str) -> Result<&NvList> {
        self.list(name).ok_or_else(|| missing(name, "nvlist"))
    }

    /// Unpacks a list; bytes after its end are left out.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are no packed list.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Self::decode_prefix(bytes).map(|(list, _)| list)
    }

    /// Unpacks a list and says how many bytes it took.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are no packed list.
    pub fn decode_prefix(bytes: &[u8]) -> Result<(Self, usize)> {
        Self::decode_within(bytes, &mut |_| true)
    }

    /// The same of a list that may be hostile: a list can take many times the memory that its bytes
    /// do. `take` is asked for room, in bytes, before memory is taken.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are no packed list; [`FormatError::NoRoom`] when `take` says
    /// no.
    pub fn decode_within(
        bytes: &[u8],
        take: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(Self, usize)> {
        let room = &mut Room(take);
        let [encoding, order, _, _] = *bytes.first_chunk().ok_or(FormatError::TooShort {
            structure: NVLIST,
            needed_bytes: 4,
            found_bytes: bytes.len() as u64,
        })?;
        let endian = match order {
            0 => Endian::Big,
            1 => Endian::Little,
            other => return Err(bad(NVLIST, "nvh_endian", other.into(), "0 or 1")),
        };
        let (list, length) = match encoding {
            0 => native::decode(&bytes[4..], endian, room)?,
            1 => xdr::decode(&bytes[4..], room)?,
            other => return Err(bad(NVLIST, "nvh_encoding", other.into(), "0 or 1")),
        };
        Ok((list, length + 4))
    }

    /// Packs the list, as a little-endian machine would.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when a pair is too big for the format or a list is nested too
    /// deep, [`FormatError::BadText`] when a string holds a zero byte.
    pub fn encode(&self, encoding: NvEncoding) -> Result<Vec<u8>> {
        let mut out = vec![u8::from(encoding == NvEncoding::Xdr), 1, 0, 0];
        match encoding {
            NvEncoding::Native => native::encode(self, &mut out)?,
            NvEncoding::Xdr => xdr::encode(self, &mut out)?,
        }
        Ok(out)
    }
}

impl fmt::Display for NvList {
    /// One line per value, nested lists indented, as zdb prints a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print(f, 0)
    }
}

impl NvList {
    fn print(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        for (name, value) in &self.pairs {
            match value {
                NvValue::List(list) => {
                    writeln!(f, "{:indent$}{name}:", "")?;
                    list.print(f, indent + 4)?;
                }
                NvValue::ListArray(lists) => {
                    for (index, list) in lists.iter().enumerate() {
                        writeln!(f, "{:indent$}{name}[{index}]:", "")?;
                        list.print(f, indent + 4)?;
                    }
                }
                NvValue::Boolean => writeln!(f, "{:indent$}{name}", "")?,
                NvValue::BooleanValue(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
                NvValue::UInt64(v) => writeln!(f, "{:indent$}{name}: {v}", "")?,
                NvValue::String(v) => writeln!(f, "{:indent$}{name}: '{v}'", "")?,
                other => writeln!(f, "{:indent$}{name}: {other:?}", "")?,
            }
        }
        Ok(())
    }
}

fn missing(name: &str, expected: &'static str) -> FormatError {
    FormatError::Missing {
        structure: NVLIST,
        name: name.to_owned(),
        expected,
    }
}

/// Size of a pair in the native in-memory form (`NVP_SIZE_CALC`): what both encodings record.
fn pair_bytes(name: &[u8], value: &NvValue) -> Result<i32> {
    if name.len() + 1 > i16::MAX as usize || name.contains(&0) {
        let found = name.len() as u64;
        return Err(does_not_fit(
            NVLIST,
            "nvp_name",
            found,
            "32766 bytes and no zero among them",
        ));
    }
    value.check_text()?;
    let bytes = align8(PAIR_BYTES + name.len() + 1) + align8(value.native_bytes());
    i32::try_from(bytes)
        .map_err(|_| does_not_fit(NVLIST, "nvp_size", bytes as u64, "less than 2 GiB"))
}

const fn align8(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Asks for memory before it is taken.
struct Room<'a>(&'a mut dyn FnMut(usize) -> bool);

impl Room<'_> {
    fn take(&mut self, bytes: usize) -> Result<()> {
        match (self.0)(bytes) {
            true => Ok(()),
            false => Err(FormatError::NoRoom { structure: NVLIST }),
        }
    }

    /// For a pair that comes behind those of a list. A vector doubles as it grows, and begins with
    /// room for four.
    fn pair(&mut self, list: &NvList, name: &[u8]) -> Result<()> {
        const PAIR: usize = size_of::<(Name, NvValue)>();
        let pairs = if list.is_empty() { 4 } else { 2 };
        self.take(pairs * PAIR + allocated(name.len()))
    }

    /// For the elements of an array of which `rest` bytes are there at most. An element takes at
    /// least a byte of them.
    fn value(&mut self, kind: u32, count: u32, rest: usize) -> Result<()> {
        let element = match kind {
            10 | 24..=26 => 1,
            11 | 12 => 2,
            13 | 14 => 4,
            15 | 16 => 8,
            17 => size_of::<String>(),
            // While they are decoded their heads stand beside them.
            20 => 2 * size_of::<NvList>(),
            _ => return Ok(()),
        };
        let count = (count as usize).min(rest);
        self.take(allocated(count.saturating_mul(2 * element)))
    }

    fn utf8(&mut self, bytes: &[u8], field: &'static str) -> Result<String> {
        self.take(allocated(bytes.len()))?;
        String::from_utf8(bytes.to_vec()).map_err(|_| FormatError::BadText {
            structure: NVLIST,
            field,
        })
    }
}

/// What an allocation takes, in bytes: the allocator's own word and rounding among it.
const fn allocated(bytes: usize) -> usize {
    bytes.saturating_add(24)
}

fn text(bytes: &[u8], room: &mut Room<'_>) -> Result<NvValue> {
    room.take(allocated(bytes.len()))?;
    Ok(match std::str::from_utf8(bytes) {
        Ok(text) => NvValue::String(text.to_owned()),
        Err(_) => NvValue::RawString(bytes.to_vec()),
    })
}

/// The name of a pair, as both encodings allow it: no zero byte, at most 32766 bytes.
fn pair_name(bytes: &[u8]) -> Result<Name> {
    if bytes.len() >= i16::MAX as usize || bytes.contains(&0) {
        return Err(FormatError::BadText {
            structure: NVLIST,
            field: "nvp_name",
        });
    }
    Ok(Name::of(bytes))
}

#[cfg(test)]
mod tests;
