//! LZ4 blocks that are mostly runs: indirect blocks, dnodes and the like, which are mainly zeros.
//!
//! `lz4_flex` copies a match that overlaps itself byte by byte. That is right for text, but makes a
//! block of zeros the slowest of all to decompress: a scrub of many small files spent a quarter of
//! its time there. Here runs are filled, and longer patterns doubled. Format: lz4_Block_format.md
//! of the LZ4 project; the decoder of OpenZFS is module/zfs/lz4.c.

/// Least ratio of output to input from which on this decoder is used: matches are long then.
pub(super) const RATIO_MIN: usize = 16;

/// Decompresses into `out`, which must be zeros; the number of bytes written. `None`: the block is
/// damaged or too long for `out`.
pub(super) fn decompress(block: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut input = block;
    let mut at = 0usize;
    loop {
        let (token, rest) = input.split_first()?;
        input = rest;
        let literals = length(usize::from(token >> 4), &mut input)?;
        let (copied, rest) = input.split_at_checked(literals)?;
        let end = at.checked_add(literals)?;
        out.get_mut(at..end)?.copy_from_slice(copied);
        (input, at) = (rest, end);
        if input.is_empty() {
            // The last sequence has no match.
            return Some(at);
        }
        let (offset, rest) = input.split_first_chunk::<2>()?;
        input = rest;
        let offset = usize::from(u16::from_le_bytes(*offset));
        let count = length(usize::from(token & 15), &mut input)?.checked_add(4)?;
        if offset == 0 || offset > at {
            return None;
        }
        let end = at.checked_add(count).filter(|end| *end <= out.len())?;
        repeat(out, at, offset, end);
        at = end;
    }
}

/// A length whose first part is in the token.
fn length(nibble: usize, input: &mut &[u8]) -> Option<usize> {
    let mut length = nibble;
    if nibble == 15 {
        loop {
            let (byte, rest) = input.split_first()?;
            *input = rest;
            length = length.checked_add(usize::from(*byte))?;
            if *byte != u8::MAX {
                break;
            }
        }
    }
    Some(length)
}

/// Fills `at..end` with what begins `offset` bytes before, over and over.
fn repeat(out: &mut [u8], at: usize, offset: usize, end: usize) {
    if offset == 1 {
        let byte = out[at - 1];
        // Nothing was written there yet.
        if byte != 0 {
            out[at..end].fill(byte);
        }
        return;
    }
    let from = at - offset;
    let mut done = at;
    while done < end {
        // All that is there of the pattern by now.
        let step = (done - from).min(end - done);
        out.copy_within(from..from + step, done);
        done += step;
    }
}
