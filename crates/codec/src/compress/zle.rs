//! ZLE: runs of zeros only (module/zfs/zle.c, with the parameter 64 that ZFS uses).
//!
//! A byte `t` opens each run: `t < 64` says that `t + 1` literal bytes follow, `t >= 64` stands for
//! `t - 63` zeros.

/// Longest literal run.
const LITERALS_MAX: usize = 64;
/// Longest run of zeros.
const ZEROS_MAX: usize = 192;

/// Compresses, or gives up where the output would be longer than `output_bytes_max`.
pub(super) fn compress(data: &[u8], output_bytes_max: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(output_bytes_max.min(data.len()));
    let mut rest = data;
    while let Some(first) = rest.first() {
        let run = if *first == 0 {
            let run = rest
                .iter()
                .take(ZEROS_MAX)
                .take_while(|byte| **byte == 0)
                .count();
            out.push((LITERALS_MAX + run - 1) as u8);
            run
        } else {
            let window = &rest[..rest.len().min(LITERALS_MAX)];
            // One zero alone among literals is cheaper kept than stood for.
            let run = window
                .windows(2)
                .position(|pair| pair == [0, 0])
                .unwrap_or(window.len());
            // A zero at the end starts the next run.
            let run = if window[run - 1] == 0 { run - 1 } else { run };
            out.push((run - 1) as u8);
            out.extend_from_slice(&rest[..run]);
            run
        };
        if out.len() > output_bytes_max {
            return None;
        }
        rest = &rest[run..];
    }
    Some(out)
}

/// Decompresses to exactly `output_bytes` bytes; what follows is padding.
pub(super) fn decompress(data: &[u8], output_bytes: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(output_bytes);
    let mut rest = data;
    while out.len() < output_bytes {
        let (tag, after) = rest.split_first()?;
        let tag = usize::from(*tag);
        let room = output_bytes - out.len();
        if tag < LITERALS_MAX {
            let run = tag + 1;
            if run > room {
                return None;
            }
            out.extend_from_slice(after.get(..run)?);
            rest = &after[run..];
        } else {
            let run = tag + 1 - LITERALS_MAX;
            if run > room {
                return None;
            }
            out.resize(out.len() + run, 0);
            rest = after;
        }
    }
    Some(out)
}
