//! Block checksums (`zio_checksum_table`, module/zfs/zio_checksum.c).
//!
//! A checksum is four 64-bit words. Two kinds of storage:
//!
//! - **In the pointer** ([`compute`], [`verify`]): fletcher2, fletcher4, sha256, sha512, skein,
//!   edonr, blake3.
//! - **Embedded in the block** ([`seal`], [`verify_embedded`]): label, gang header, zilog, zilog2.
//!   The block holds a `zio_eck_t` (magic, then four words); the sum is taken with a *verifier*,
//!   which says what block this must be, in the place of the four words.
//!
//! # Byte order
//!
//! A block keeps its writer's byte order. Fletcher sums words read in that order. SHA-256's digest
//! is big-endian words whoever wrote (module/zfs/sha2_zfs.c); the digests of sha512, skein, edonr
//! and blake3 are words in the writer's order. (OpenZFS's `abd_checksum_edonr_byteswap` swaps
//! memory it never set, so it can't verify an edonr block of the other order; here it is treated
//! as its siblings.)
//!
//! # Encryption
//!
//! In a pointer to an encrypted block half of the checksum is the MAC ([`fold_for_mac`]).

mod edonr;
mod embedded;
mod fletcher2;
mod fletcher4;
mod skein;
#[cfg(test)]
mod tests;

use format::{Checksum, Endian};
use sha2::{Digest, Sha256, Sha512_256};

pub use self::embedded::{
    gang_verifier, label_verifier, seal, seal_beside_mac, verify_embedded,
    verify_embedded_beside_mac,
};
pub use self::fletcher4::{Fletcher4, implementations as fletcher4_implementations};

/// A checksum as block pointers and `zio_eck_t` hold it.
pub type ChecksumWords = [u64; 4];

/// Why a checksum could not be computed, or does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChecksumError {
    /// The data is not what the checksum was computed of.
    #[error(
        "{kind} checksum mismatch: expected {expected:016x?}, found {found:016x?}; the data is \
         damaged, read another copy or restore it"
    )]
    Mismatch {
        /// Which checksum.
        kind: Checksum,
        /// As stored.
        expected: ChecksumWords,
        /// As computed.
        found: ChecksumWords,
    },
    /// The block does not contain an embedded checksum.
    #[error(
        "the block holds no {kind} checksum (its magic is {magic:#x}); it was never written or is \
         damaged, use another copy"
    )]
    NoMagic {
        /// Which checksum was looked for.
        kind: Checksum,
        /// What stands in the magic's place.
        magic: u64,
    },
    /// The data's length suits no block of this kind.
    #[error(
        "{length_bytes} bytes cannot hold a block with {kind} checksum; the block pointer is \
         damaged, scrub the pool"
    )]
    Length {
        /// Which checksum.
        kind: Checksum,
        /// Length of the data.
        length_bytes: usize,
    },
    /// The checksum is keyed with the pool's salt, which was not given.
    #[error(
        "{kind} needs the pool's checksum salt, which has not been read; import the pool first"
    )]
    NoSalt {
        /// Which checksum.
        kind: Checksum,
    },
    /// The code names no checksum that can be computed.
    #[error(
        "{kind} is not a checksum that can be computed; upgrade Millpond, or the block pointer is \
         damaged"
    )]
    Unsupported {
        /// Which checksum.
        kind: Checksum,
    },
}

/// The pool's checksum salt (`org.illumos:checksum_salt` in the MOS), taken in by the keyed
/// checksums once rather than for every block.
#[derive(Clone)]
pub struct Salt {
    bytes: [u8; 32],
    skein: skein::Skein512,
    edonr: edonr::EdonR512,
    blake3: blake3::Hasher,
}

impl Salt {
    /// Prepares the keyed checksums.
    pub fn new(bytes: [u8; 32]) -> Self {
        Salt {
            skein: skein::Skein512::keyed(&bytes),
            edonr: edonr::EdonR512::salted(&bytes),
            blake3: blake3::Hasher::new_keyed(&bytes),
            bytes,
        }
    }

    /// The salt itself.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

impl std::fmt::Debug for Salt {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The salt is a secret of the pool.
        out.write_str("Salt")
    }
}

/// The checksum of `data`, a block written in byte order `endian`.
///
/// `Off` and `NoParity` give zeros. The embedded kinds give the sum of `data` as it is, without
/// placing a verifier: see [`seal`] for those.
///
/// # Errors
///
/// [`ChecksumError::NoSalt`], [`ChecksumError::Length`] (fletcher wants whole words),
/// [`ChecksumError::Unsupported`] for property values and unknown codes.
pub fn compute(
    kind: Checksum,
    endian: Endian,
    data: &[u8],
    salt: Option<&Salt>,
) -> Result<ChecksumWords, ChecksumError> {
    compute_parts(kind, endian, &[data], salt)
}

/// [`compute`] of the concatenation of `parts`. For fletcher every part is whole words
/// (16 bytes for fletcher2, 4 for fletcher4).
///
/// # Errors
///
/// As [`compute`].
pub fn compute_parts(
    kind: Checksum,
    endian: Endian,
    parts: &[&[u8]],
    salt: Option<&Salt>,
) -> Result<ChecksumWords, ChecksumError> {
    let salt = || salt.ok_or(ChecksumError::NoSalt { kind });
    let whole_words = |word_bytes: usize| match parts
        .iter()
        .find(|part| !part.len().is_multiple_of(word_bytes))
    {
        Some(part) => Err(ChecksumError::Length {
            kind,
            length_bytes: part.len(),
        }),
        None => Ok(()),
    };
    Ok(match kind {
        Checksum::Off | Checksum::NoParity => [0; 4],
        Checksum::Fletcher2 | Checksum::Zilog => {
            whole_words(16)?;
            let mut sum = fletcher2::Fletcher2::default();
            parts.iter().for_each(|part| sum.update(endian, part));
            sum.words()
        }
        Checksum::Fletcher4 | Checksum::Zilog2 => {
            whole_words(4)?;
            let mut sum = Fletcher4::new(endian);
            parts.iter().for_each(|part| sum.update(part));
            sum.words()
        }
        Checksum::Sha256 | Checksum::Label | Checksum::GangHeader => {
            let mut hasher = Sha256::new();
            parts.iter().for_each(|part| hasher.update(part));
            words(Endian::Big, &hasher.finalize().into())
        }
        Checksum::Sha512 => {
            let mut hasher = Sha512_256::new();
            parts.iter().for_each(|part| hasher.update(part));
            words(endian, &hasher.finalize().into())
        }
        Checksum::Skein => {
            let mut hasher = salt()?.skein.clone();
            parts.iter().for_each(|part| hasher.update(part));
            words(endian, first_half(&hasher.finish()))
        }
        Checksum::EdonR => {
            let mut hasher = salt()?.edonr.clone();
            parts.iter().for_each(|part| hasher.update(part));
            words(endian, first_half(&hasher.finish()))
        }
        Checksum::Blake3 => {
            let mut hasher = salt()?.blake3.clone();
            parts.iter().for_each(|part| {
                hasher.update(part);
            });
            words(endian, hasher.finalize().as_bytes())
        }
        Checksum::Inherit | Checksum::On | Checksum::Unknown(_) => {
            return Err(ChecksumError::Unsupported { kind });
        }
    })
}

/// Compares the checksum of `data` with the one in its block pointer.
///
/// # Errors
///
/// [`ChecksumError::Mismatch`], and those of [`compute`].
pub fn verify(
    kind: Checksum,
    endian: Endian,
    data: &[u8],
    salt: Option<&Salt>,
    expected: &ChecksumWords,
) -> Result<(), ChecksumError> {
    let found = compute(kind, endian, data, salt)?;
    if found == *expected {
        Ok(())
    } else {
        Err(ChecksumError::Mismatch {
            kind,
            expected: *expected,
            found,
        })
    }
}

/// The half of a checksum that the pointer to an encrypted block keeps beside the MAC: the first
/// two words, into which kinds too weak for dedup fold the other two
/// (`zio_checksum_handle_crypt`).
pub fn fold_for_mac(kind: Checksum, sum: &ChecksumWords) -> [u64; 2] {
    if kind.is_dedup() {
        [sum[0], sum[1]]
    } else {
        [sum[0] ^ sum[2], sum[1] ^ sum[3]]
    }
}

/// The 256 bits that ZFS keeps of a digest.
fn first_half(digest: &[u8; 64]) -> &[u8; 32] {
    digest
        .first_chunk()
        .expect("an array of 64 bytes starts with 32")
}

/// A digest's bytes as words.
fn words(endian: Endian, digest: &[u8; 32]) -> ChecksumWords {
    let mut out = [0; 4];
    for (word, bytes) in out.iter_mut().zip(digest.as_chunks::<8>().0) {
        *word = endian.u64(*bytes);
    }
    out
}
