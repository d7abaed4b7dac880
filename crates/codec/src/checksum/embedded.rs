//! Checksums that live in the block they protect (`zio_eck_t`, include/sys/zio.h; computed and
//! checked as `zio_checksum_compute` and `zio_checksum_error_impl` do, module/zfs/zio_checksum.c).
//!
//! | Kind | Sum | Where the `zio_eck_t` is | Verifier |
//! |---|---|---|---|
//! | label | SHA-256 | last 40 bytes | [`label_verifier`]: the label piece's offset on the device |
//! | gang header | SHA-256 | last 40 bytes | [`gang_verifier`]: first DVA and physical birth |
//! | zilog | fletcher2 | last 40 bytes | the log block pointer's checksum words |
//! | zilog2 | fletcher4 | bytes 144 to 183 of the used part | the log block pointer's checksum words |
//!
//! `zio_eck_t`: `zec_magic` (8 bytes), `zec_cksum` (4 words of 8 bytes). Zilog2 covers only the
//! used part of the block: `zc_nused` (at byte 136 of `zil_chain_t`) rounded up to 4096 bytes.

use format::{Checksum, Endian};

use super::{ChecksumError, ChecksumWords, compute_parts, fold_for_mac};

/// `ZEC_MAGIC`.
const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Size of a `zio_eck_t`.
const ECK_BYTES: usize = 40;
/// Where the words start in a `zio_eck_t`.
const ECK_WORDS_OFFSET: usize = 8;
/// `offsetof(zil_chain_t, zc_nused)`: a word of padding and a block pointer come before.
const CHAIN_USED_OFFSET: usize = 136;
/// `offsetof(zil_chain_t, zc_eck)`.
const CHAIN_ECK_OFFSET: usize = 144;
/// Size of a `zil_chain_t`.
const CHAIN_BYTES: usize = CHAIN_ECK_OFFSET + ECK_BYTES;
/// `ZIL_MIN_BLKSZ`.
const LOG_BLOCK_BYTES_MIN: u64 = 4096;

/// What proves that a label piece is the one of its place: its offset on the device in bytes.
pub fn label_verifier(offset_bytes: u64) -> ChecksumWords {
    [offset_bytes, 0, 0, 0]
}

/// What proves that a gang header is the one pointed to: the vdev and offset (in bytes, as
/// `DVA_GET_OFFSET` gives it) of the pointer's first DVA, and its physical birth txg.
pub fn gang_verifier(vdev: u64, offset_bytes: u64, physical_birth_txg: u64) -> ChecksumWords {
    [vdev, offset_bytes, physical_birth_txg, 0]
}

fn length_error(kind: Checksum, data: &[u8]) -> ChecksumError {
    ChecksumError::Length {
        kind,
        length_bytes: data.len(),
    }
}

fn word_at(endian: Endian, data: &[u8], offset: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&data[offset..offset + 8]);
    endian.u64(raw)
}

/// Offset of the `zio_eck_t` in `data`.
fn eck_offset(kind: Checksum, data: &[u8]) -> Result<usize, ChecksumError> {
    match kind {
        Checksum::Zilog2 if data.len() >= CHAIN_BYTES => Ok(CHAIN_ECK_OFFSET),
        Checksum::Label | Checksum::GangHeader | Checksum::Zilog if data.len() >= ECK_BYTES => {
            Ok(data.len() - ECK_BYTES)
        }
        _ if kind.is_embedded() => Err(length_error(kind, data)),
        _ => Err(ChecksumError::Unsupported { kind }),
    }
}

/// How many bytes of `data` the checksum covers.
fn covered_bytes(kind: Checksum, endian: Endian, data: &[u8]) -> Result<usize, ChecksumError> {
    if kind != Checksum::Zilog2 {
        return Ok(data.len());
    }
    let used = word_at(endian, data, CHAIN_USED_OFFSET);
    used.checked_next_multiple_of(LOG_BLOCK_BYTES_MIN)
        .and_then(|covered| usize::try_from(covered).ok())
        // A block too short to hold its own chain header covers nothing that could be trusted.
        .filter(|covered| (CHAIN_BYTES..=data.len()).contains(covered))
        .ok_or_else(|| length_error(kind, data))
}

/// The sum of the covered part of `data` with `verifier` in the place of the words.
fn sum(
    kind: Checksum,
    endian: Endian,
    verifier: &ChecksumWords,
    data: &[u8],
    words_offset: usize,
) -> Result<ChecksumWords, ChecksumError> {
    let mut raw = [0; 32];
    for (bytes, word) in raw.as_chunks_mut::<8>().0.iter_mut().zip(verifier) {
        *bytes = endian.u64_bytes(*word);
    }
    let parts = [&data[..words_offset], &raw, &data[words_offset + 32..]];
    compute_parts(kind, endian, &parts, None)
}

/// Stores magic and checksum into `data`, in byte order `endian` (ours is little-endian).
///
/// For zilog2 the caller has set the chain header, whose used length says what is covered. The log
/// kinds take as `verifier` the checksum words of the block pointer that leads to the block.
///
/// # Errors
///
/// [`ChecksumError::Length`] when `data` is too short, [`ChecksumError::Unsupported`] when `kind`
/// is not an embedded one.
pub fn seal(
    kind: Checksum,
    endian: Endian,
    verifier: &ChecksumWords,
    data: &mut [u8],
) -> Result<(), ChecksumError> {
    let eck = eck_offset(kind, data)?;
    let covered = covered_bytes(kind, endian, data)?;
    data[eck..eck + 8].copy_from_slice(&endian.u64_bytes(MAGIC));
    let words_offset = eck + ECK_WORDS_OFFSET;
    let sum = sum(kind, endian, verifier, &data[..covered], words_offset)?;
    for (bytes, word) in data[words_offset..words_offset + 32]
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(sum)
    {
        *bytes = endian.u64_bytes(word);
    }
    Ok(())
}

/// The same for a block of an encrypted intent log: the last two words stay as they are, its MAC,
/// and the sum is folded into the first two (`zio_checksum_handle_crypt`).
///
/// # Errors
///
/// As [`seal`].
pub fn seal_beside_mac(
    kind: Checksum,
    endian: Endian,
    verifier: &ChecksumWords,
    data: &mut [u8],
) -> Result<(), ChecksumError> {
    let words_offset = eck_offset(kind, data)? + ECK_WORDS_OFFSET;
    let mut mac = [0; 16];
    mac.copy_from_slice(&data[words_offset + 16..words_offset + 32]);
    seal(kind, endian, verifier, data)?;
    let mut sum = [0; 4];
    for (index, word) in sum.iter_mut().enumerate() {
        *word = word_at(endian, data, words_offset + 8 * index);
    }
    let folded = fold_for_mac(kind, &sum);
    for (index, word) in folded.iter().enumerate() {
        let at = words_offset + 8 * index;
        data[at..at + 8].copy_from_slice(&endian.u64_bytes(*word));
    }
    data[words_offset + 16..words_offset + 32].copy_from_slice(&mac);
    Ok(())
}

/// Checks the checksum within `data` and says in which byte order the block was written.
///
/// # Errors
///
/// [`ChecksumError::NoMagic`] when the block holds no checksum, [`ChecksumError::Mismatch`],
/// [`ChecksumError::Length`], [`ChecksumError::Unsupported`].
pub fn verify_embedded(
    kind: Checksum,
    verifier: &ChecksumWords,
    data: &[u8],
) -> Result<Endian, ChecksumError> {
    let (endian, expected, found) = embedded_sums(kind, verifier, data)?;
    if found == expected {
        Ok(endian)
    } else {
        Err(ChecksumError::Mismatch {
            kind,
            expected,
            found,
        })
    }
}

/// The same for a block of an encrypted intent log, as it is stored: the last two words are its
/// MAC, and only the first two are checked (`zio_checksum_error_impl`).
///
/// # Errors
///
/// As [`verify_embedded`].
pub fn verify_embedded_beside_mac(
    kind: Checksum,
    verifier: &ChecksumWords,
    data: &[u8],
) -> Result<Endian, ChecksumError> {
    let (endian, expected, found) = embedded_sums(kind, verifier, data)?;
    if fold_for_mac(kind, &found) == [expected[0], expected[1]] {
        Ok(endian)
    } else {
        Err(ChecksumError::Mismatch {
            kind,
            expected,
            found,
        })
    }
}

/// The byte order, the words within `data`, and those computed.
fn embedded_sums(
    kind: Checksum,
    verifier: &ChecksumWords,
    data: &[u8],
) -> Result<(Endian, ChecksumWords, ChecksumWords), ChecksumError> {
    let eck = eck_offset(kind, data)?;
    let magic = word_at(Endian::Little, data, eck);
    let endian = match magic {
        MAGIC => Endian::Little,
        swapped if swapped == MAGIC.swap_bytes() => Endian::Big,
        _ => return Err(ChecksumError::NoMagic { kind, magic }),
    };
    let covered = covered_bytes(kind, endian, data)?;
    let words_offset = eck + ECK_WORDS_OFFSET;
    let found = sum(kind, endian, verifier, &data[..covered], words_offset)?;
    let mut expected = [0; 4];
    for (index, word) in expected.iter_mut().enumerate() {
        *word = word_at(endian, data, words_offset + 8 * index);
    }
    // SHA-256's words are big-endian readings of the digest whoever wrote, and are stored in the
    // writer's order like any word.
    Ok((endian, expected, found))
}
