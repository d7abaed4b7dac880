//! Record marking (RFC 5531 section 11): a record is sent in fragments, each after four bytes that
//! say how long it is and whether it is the last.

use bytes::{Bytes, BytesMut};

use crate::xdr::JOINED_BYTES_MAX;

const LAST: u32 = 1 << 31;

/// The mark before a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Bytes of the fragment.
    pub length_bytes: usize,
    /// Whether it ends the record.
    pub is_last: bool,
}

impl Mark {
    /// From the four bytes.
    pub fn decode(bytes: [u8; 4]) -> Self {
        let word = u32::from_be_bytes(bytes);
        Self {
            length_bytes: (word & !LAST) as usize,
            is_last: word & LAST != 0,
        }
    }

    /// As the four bytes.
    pub fn encode(self) -> [u8; 4] {
        let last = if self.is_last { LAST } else { 0 };
        // Replies are far shorter than 2 GiB.
        (self.length_bytes as u32 | last).to_be_bytes()
    }
}

/// A record in one fragment, in pieces: its mark comes first, and is of one piece with what follows
/// if that is short.
pub fn marked(mut reply: Vec<Bytes>) -> Vec<Bytes> {
    let length_bytes = reply.iter().map(Bytes::len).sum();
    let mark = Mark {
        length_bytes,
        is_last: true,
    };
    let mark = mark.encode();
    match reply.first_mut() {
        Some(first) if first.len() <= JOINED_BYTES_MAX => {
            let mut joined = BytesMut::with_capacity(mark.len() + first.len());
            joined.extend_from_slice(&mark);
            joined.extend_from_slice(first);
            *first = joined.freeze();
        }
        _ => reply.insert(0, Bytes::copy_from_slice(&mark)),
    }
    reply
}

/// Takes the first record off bytes that lie in memory. `Ok(None)` while it is not all there.
///
/// # Errors
/// The length that it would have, where that is more than `limit_bytes`.
pub fn take_record(input: &mut Bytes, limit_bytes: usize) -> Result<Option<Bytes>, usize> {
    let mut rest = input.clone();
    let mut record = BytesMut::new();
    loop {
        let Some(mark) = rest.first_chunk::<4>() else {
            return Ok(None);
        };
        let mark = Mark::decode(*mark);
        let _ = rest.split_to(4);
        let length = record.len().saturating_add(mark.length_bytes);
        if length > limit_bytes {
            return Err(length);
        }
        if rest.len() < mark.length_bytes {
            return Ok(None);
        }
        let fragment = rest.split_to(mark.length_bytes);
        if mark.is_last {
            *input = rest;
            if record.is_empty() {
                return Ok(Some(fragment));
            }
            record.extend_from_slice(&fragment);
            return Ok(Some(record.freeze()));
        }
        // Fragments of nothing would go on for ever.
        if mark.length_bytes == 0 {
            return Err(usize::MAX);
        }
        record.extend_from_slice(&fragment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is short needs no place of its own in a system call; what is long is not copied.
    #[test]
    fn a_mark_is_of_one_piece_with_a_short_head() {
        let long = Bytes::from(vec![7; JOINED_BYTES_MAX + 1]);
        let all = marked(vec![Bytes::from_static(b"head"), long.clone()]);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0][4..], *b"head");
        assert_eq!(all[1].as_ptr(), long.as_ptr());
        let all = marked(vec![long.clone()]);
        assert_eq!((all.len(), all[0].len()), (2, 4));
        assert_eq!(all[1].as_ptr(), long.as_ptr());
        assert_eq!(marked(Vec::new()).concat(), [0x80, 0, 0, 0]);
    }

    #[test]
    fn fragments_are_put_together() {
        let mut stream = BytesMut::new();
        for (text, is_last) in [("ab", false), ("cd", true), ("e", true)] {
            let length_bytes = text.len();
            let mark = Mark {
                length_bytes,
                is_last,
            };
            assert_eq!(Mark::decode(mark.encode()), mark);
            stream.extend_from_slice(&mark.encode());
            stream.extend_from_slice(text.as_bytes());
        }
        let mut input = stream.freeze();
        assert_eq!(
            take_record(&mut input, 4),
            Ok(Some(Bytes::from_static(b"abcd")))
        );
        assert_eq!(
            take_record(&mut input, 4),
            Ok(Some(Bytes::from_static(b"e")))
        );
        assert_eq!(take_record(&mut input, 4), Ok(None));
        let mut long = Bytes::from_static(&[0x80, 0, 0, 5, 0, 0, 0, 0, 0]);
        assert_eq!(take_record(&mut long, 4), Err(5));
        let mut nothing = Bytes::from_static(&[0; 8]);
        assert_eq!(take_record(&mut nothing, 4), Err(usize::MAX));
    }
}
