//! `key=value` text of login and text PDUs (RFC 7143 section 6.1).

/// Longest iSCSI name (RFC 7143 section 4.2.7.2), in bytes.
pub const ISCSI_NAME_BYTES_MAX: usize = 223;
/// Most keys taken from one request; more is a protocol error.
pub(crate) const KEYS_MAX: usize = 256;

/// Why a text could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TextError {
    #[error("text is not key=value pairs ended by NUL")]
    Malformed,
    #[error("text has too many keys")]
    TooMany,
}

/// Splits a text into its pairs. Keys are at most 63 bytes of the allowed characters; values are
/// UTF-8. An empty pair (stray NUL) is skipped, as several initiators pad with NULs.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<(String, String)>, TextError> {
    pairs_up_to(text, KEYS_MAX)
}

/// The same with so many keys at most.
pub(crate) fn pairs_up_to(
    text: &[u8],
    keys_max: usize,
) -> Result<Vec<(String, String)>, TextError> {
    let mut pairs = Vec::new();
    for pair in text.split(|byte| *byte == 0) {
        if pair.is_empty() {
            continue;
        }
        if pairs.len() == keys_max {
            return Err(TextError::TooMany);
        }
        let pair = std::str::from_utf8(pair).map_err(|_| TextError::Malformed)?;
        let (key, value) = pair.split_once('=').ok_or(TextError::Malformed)?;
        let is_key_char = |c: char| c.is_ascii_alphanumeric() || ".-+@_#".contains(c);
        if key.is_empty() || key.len() > 63 || !key.chars().all(is_key_char) {
            return Err(TextError::Malformed);
        }
        pairs.push((key.to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

/// Appends one pair.
pub(crate) fn append(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// A numerical value: decimal, or hexadecimal after `0x` (RFC 7143 section 6.1).
pub(crate) fn number(value: &str) -> Option<u32> {
    match value
        .strip_prefix("0x")
        .or_else(|| value.strip_prefix("0X"))
    {
        Some(hex) if !hex.starts_with('+') => u32::from_str_radix(hex, 16).ok(),
        None if !value.starts_with('+') => value.parse().ok(),
        _ => None,
    }
}

/// A large binary value: hexadecimal after `0x`, or base64 after `0b`; at most `bytes_max` bytes.
pub(crate) fn binary(value: &str, bytes_max: usize) -> Option<Vec<u8>> {
    // Four characters give three bytes at best, two give one at worst.
    if value.len() > 2 + bytes_max * 2 {
        return None;
    }
    let (prefix, digits) = value.split_at_checked(2)?;
    let bytes = match prefix {
        "0x" | "0X" => from_hex(digits)?,
        "0b" | "0B" => from_base64(digits)?,
        _ => return None,
    };
    (bytes.len() <= bytes_max).then_some(bytes)
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let nibble = |c: u8| (c as char).to_digit(16).map(|n| n as u8);
    let (odd, rest) = digits.split_at(digits.len() % 2);
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    if let [c] = odd {
        bytes.push(nibble(*c)?);
    }
    for pair in rest.chunks_exact(2) {
        bytes.push((nibble(pair[0])? << 4) | nibble(pair[1])?);
    }
    Some(bytes)
}

fn from_base64(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut bit_count) = (0u32, 0);
    for c in digits {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = ((bits << 6) | u32::from(six)) & 0xff_ffff;
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
        }
    }
    Some(bytes)
}

/// A binary value in hexadecimal, as it is sent.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("0x");
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_and_padding_is_skipped() {
        let pairs = parse(b"InitiatorName=iqn.x\0SessionType=Normal\0\0\0").unwrap();
        assert_eq!(
            pairs,
            [
                ("InitiatorName".into(), "iqn.x".into()),
                ("SessionType".into(), "Normal".into())
            ]
        );
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(parse(b"novalue\0"), Err(TextError::Malformed));
        assert_eq!(parse(b"=x\0"), Err(TextError::Malformed));
        assert_eq!(parse(b"k\xff=x\0"), Err(TextError::Malformed));
        assert_eq!(
            parse(&b"a=b\0".repeat(KEYS_MAX + 1)),
            Err(TextError::TooMany)
        );
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number("8192"), Some(8192));
        assert_eq!(number("0x20"), Some(32));
        assert_eq!(number(""), None);
        assert_eq!(number("-1"), None);
        assert_eq!(number("+1"), None);
        assert_eq!(number("0x+1"), None);
        assert_eq!(number("4294967296"), None);
    }

    #[test]
    fn binary_values_are_hexadecimal_or_base64() {
        assert_eq!(binary("0x00ff", 2), Some(vec![0, 255]));
        assert_eq!(binary("0xfff", 2), Some(vec![15, 255]));
        assert_eq!(binary("0bAP8=", 2), Some(vec![0, 255]));
        assert_eq!(binary("0bAP8", 2), Some(vec![0, 255]));
        assert_eq!(binary("0x00ff00", 2), None);
        assert_eq!(binary("0xzz", 2), None);
        assert_eq!(binary("00ff", 2), None);
        assert_eq!(binary("0", 2), None);
        assert_eq!(binary("é1", 2), None);
        assert_eq!(to_hex(&[0, 255]), "0x00ff");
    }
}
