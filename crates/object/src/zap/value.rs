//! Values, entries and cursors of ZAPs.

use bytes::Bytes;

/// The value of an entry: integers of 1, 2, 4 or 8 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapValue {
    /// Size of one integer in bytes.
    pub integer_bytes: u8,
    /// The integers, in our byte order (little-endian).
    pub data: Bytes,
}

impl ZapValue {
    /// One 64-bit integer.
    pub fn from_u64(value: u64) -> Self {
        Self::from_u64s(&[value])
    }

    /// 64-bit integers.
    pub fn from_u64s(values: &[u64]) -> Self {
        ZapValue {
            integer_bytes: 8,
            data: values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        }
    }

    /// Bytes (a string's must end in a zero byte to be read by OpenZFS).
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        ZapValue {
            integer_bytes: 1,
            data: bytes.into(),
        }
    }

    /// A string with its ending zero byte.
    pub fn from_str_z(text: &str) -> Self {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        Self::from_bytes(bytes)
    }

    /// The first integer, when integers have eight bytes.
    pub fn as_u64(&self) -> Option<u64> {
        if self.integer_bytes != 8 {
            return None;
        }
        self.data
            .first_chunk()
            .map(|word| u64::from_le_bytes(*word))
    }

    /// All integers, widened.
    pub fn to_u64s(&self) -> Vec<u64> {
        let size = usize::from(self.integer_bytes.clamp(1, 8));
        self.data
            .chunks_exact(size)
            .map(|integer| {
                let mut word = [0; 8];
                word[..size].copy_from_slice(integer);
                u64::from_le_bytes(word)
            })
            .collect()
    }

    /// The text before the first zero byte, when integers are bytes.
    pub fn as_str(&self) -> Option<&str> {
        if self.integer_bytes != 1 {
            return None;
        }
        let end = self.data.iter().position(|byte| *byte == 0);
        std::str::from_utf8(&self.data[..end.unwrap_or(self.data.len())]).ok()
    }

    /// How many integers.
    pub fn len(&self) -> usize {
        self.data.len() / usize::from(self.integer_bytes.max(1))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The value when it is one 64-bit integer, as micro ZAPs hold.
    pub(crate) fn single_u64(&self) -> Option<u64> {
        (self.data.len() == 8).then(|| self.as_u64()).flatten()
    }

    pub(crate) fn from_format(value: &format::ZapValue) -> Self {
        let data = match value {
            format::ZapValue::Bytes(bytes) => Bytes::copy_from_slice(bytes),
            format::ZapValue::U16(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            format::ZapValue::U32(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            format::ZapValue::U64(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        ZapValue {
            integer_bytes: value.integer_bytes(),
            data,
        }
    }

    /// `None` when the size of the integers is none there is, or bytes are left over.
    pub(crate) fn to_format(&self) -> Option<format::ZapValue> {
        let data = &self.data[..];
        if !matches!(self.integer_bytes, 1 | 2 | 4 | 8)
            || !data.len().is_multiple_of(usize::from(self.integer_bytes))
        {
            return None;
        }
        Some(match self.integer_bytes {
            1 => format::ZapValue::Bytes(data.to_vec()),
            2 => format::ZapValue::U16(
                data.as_chunks()
                    .0
                    .iter()
                    .map(|v| u16::from_le_bytes(*v))
                    .collect(),
            ),
            4 => format::ZapValue::U32(
                data.as_chunks()
                    .0
                    .iter()
                    .map(|v| u32::from_le_bytes(*v))
                    .collect(),
            ),
            _ => format::ZapValue::U64(
                data.as_chunks()
                    .0
                    .iter()
                    .map(|v| u64::from_le_bytes(*v))
                    .collect(),
            ),
        })
    }
}

impl From<u64> for ZapValue {
    fn from(value: u64) -> Self {
        ZapValue::from_u64(value)
    }
}

/// One entry, as met by iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapEntry {
    /// The name without ending zero; for keys of integers their bytes, little-endian.
    pub name: Bytes,
    /// The value.
    pub value: ZapValue,
    /// Whether another entry has the same normalised name.
    pub normalization_conflict: bool,
    /// Where to go on after this entry: a stable cookie.
    pub next: ZapCursor,
}

impl ZapEntry {
    /// The name as text; lossy.
    pub fn name_str(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    /// The key's words, when keys are arrays of 64-bit integers.
    pub fn key_words(&self) -> Vec<u64> {
        self.name
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect()
    }
}

/// A place in a ZAP's order (hash, then collision differentiator); stable across changes and
/// restarts (`zap_cursor_serialize`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct ZapCursor(u64);

impl ZapCursor {
    /// The beginning.
    pub const START: Self = Self(0);
    /// Beyond the last entry.
    pub const END: Self = Self(u64::MAX);

    /// From a cookie.
    pub const fn from_cookie(cookie: u64) -> Self {
        Self(cookie)
    }

    /// As a cookie.
    pub const fn cookie(self) -> u64 {
        self.0
    }

    /// The place at or after (hash, cd), in a ZAP that uses `bits` bits of hashes.
    pub(crate) fn at(hash: u64, cd: u32, bits: u32) -> Self {
        Self((hash >> (64 - bits)) | (u64::from(cd) << bits))
    }

    /// Hash and differentiator; `None` at the end.
    pub(crate) fn place(self, bits: u32) -> Option<(u64, u32)> {
        if self == Self::END {
            return None;
        }
        let hash = self.0 << (64 - bits);
        let cd = u32::try_from(self.0 >> bits).unwrap_or(0);
        Some((hash, cd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_apart_as_they_were_put_together() {
        assert_eq!(ZapValue::from_u64(7).as_u64(), Some(7));
        assert_eq!(ZapValue::from_u64s(&[1, 2]).to_u64s(), [1, 2]);
        assert_eq!(ZapValue::from_u64s(&[1, 2]).single_u64(), None);
        assert_eq!(ZapValue::from_str_z("on").as_str(), Some("on"));
        assert_eq!(ZapValue::from_str_z("on").len(), 3);
        let odd = ZapValue {
            integer_bytes: 4,
            data: Bytes::from_static(&[1, 2, 3]),
        };
        assert!(odd.to_format().is_none());
        for value in [ZapValue::from_u64s(&[5, 6]), ZapValue::from_str_z("x")] {
            let there = value.to_format().expect("whole integers");
            assert_eq!(ZapValue::from_format(&there), value);
        }
    }

    #[test]
    fn cursors_keep_their_place() {
        for (hash, cd, bits) in [
            (0xabcd_ef10_0000_0000, 3, 28),
            (0x1234_5678_9abc_0000, 9, 48),
        ] {
            let cursor = ZapCursor::at(hash, cd, bits);
            assert_eq!(
                ZapCursor::from_cookie(cursor.cookie()).place(bits),
                Some((hash, cd))
            );
        }
        assert!(ZapCursor::at(0xffff_fff0_0000_0000, 1, 28).cookie() < 1 << 32);
        assert_eq!(ZapCursor::END.place(28), None);
        assert_eq!(ZapCursor::START.place(28), Some((0, 0)));
    }
}
