//! LZJB (module/zfs/lzjb.c): items of one literal byte, or of a match of 3 to 66 bytes at most 1023
//! bytes back in two bytes (6 bits of length less 3, 10 bits of distance, big-endian). A byte of
//! eight flags, lowest bit first, stands before each eight items; a set bit is a match.

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const DISTANCE_MAX: usize = 1023;
const TABLE_SIZE: usize = 1024;

/// Compresses, or gives up where the output would be longer than `output_bytes_max`.
pub(super) fn compress(data: &[u8], output_bytes_max: usize) -> Option<Vec<u8>> {
    let mut out: Vec<u8> = Vec::with_capacity(output_bytes_max.min(data.len()));
    // Where a hash of three bytes was seen last, plus one.
    let mut seen = [0usize; TABLE_SIZE];
    let mut flags_at = 0;
    let mut items = 0u32;
    let mut at = 0;
    while at < data.len() {
        let bit = items % 8;
        if bit == 0 {
            if out.len() > output_bytes_max {
                return None;
            }
            flags_at = out.len();
            out.push(0);
        }
        items += 1;
        let found = data[at..].first_chunk::<MATCH_MIN>().and_then(|next| {
            let key = u32::from_be_bytes([0, next[0], next[1], next[2]]);
            let slot = &mut seen[(key.wrapping_mul(0x9e37_79b1) >> 22) as usize];
            let earlier = slot.checked_sub(1);
            *slot = at + 1;
            earlier.filter(|earlier| {
                at - earlier <= DISTANCE_MAX && data[*earlier..].starts_with(next)
            })
        });
        if let Some(earlier) = found {
            let length = data[at..]
                .iter()
                .zip(&data[earlier..])
                .take(MATCH_MAX)
                .take_while(|(here, there)| here == there)
                .count();
            out[flags_at] |= 1 << bit;
            let item = ((length - MATCH_MIN) << 10 | (at - earlier)) as u16;
            out.extend_from_slice(&item.to_be_bytes());
            at += length;
        } else {
            out.push(data[at]);
            at += 1;
        }
    }
    Some(out)
}

/// Decompresses to exactly `output_bytes` bytes; what follows is padding.
pub(super) fn decompress(data: &[u8], output_bytes: usize) -> Option<Vec<u8>> {
    let mut out: Vec<u8> = Vec::with_capacity(output_bytes);
    let mut input = data.iter().copied();
    while out.len() < output_bytes {
        let flags = input.next()?;
        for bit in 0..8 {
            if out.len() == output_bytes {
                break;
            }
            if flags & (1 << bit) == 0 {
                out.push(input.next()?);
                continue;
            }
            let item = usize::from(u16::from_be_bytes([input.next()?, input.next()?]));
            let distance = item & DISTANCE_MAX;
            let start = out.len().checked_sub(distance)?;
            if distance == 0 {
                return None;
            }
            // The last match may say more than is left; it may also overlap what it makes.
            let length = ((item >> 10) + MATCH_MIN).min(output_bytes - out.len());
            for from in start..start + length {
                out.push(out[from]);
            }
        }
    }
    Some(out)
}
