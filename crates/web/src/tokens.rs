//! Values that nobody can guess, and what is kept of them.

use device::Random;
use sha2::{Digest, Sha256};

/// What is kept of a value that is shown once.
pub(super) type Hash = [u8; 32];

/// What values are made of: 64 characters, so that each has six bits, and all of which go into
/// URLs and headers as they are (RFC 4648, section 5).
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Characters of a token: 258 bits.
const TOKEN_LENGTH: usize = 43;

/// So many random characters, each of which has six bits.
pub(super) fn characters(random: &dyn Random, count: usize) -> String {
    let mut raw = vec![0; count];
    random.fill(&mut raw);
    raw.iter()
        .map(|byte| char::from(ALPHABET[usize::from(byte & 63)]))
        .collect()
}

/// A new value.
pub(super) fn token(random: &dyn Random) -> String {
    characters(random, TOKEN_LENGTH)
}

/// What is kept of a value. Two values are compared by it, so the time that it takes tells nothing
/// of the one that is kept.
pub(super) fn hash(value: &str) -> Hash {
    Sha256::digest(value.as_bytes()).into()
}

/// SHA-256 of a certificate in DER, in hexadecimal digits.
pub fn fingerprint(certificate: &[u8]) -> String {
    hex(&Sha256::digest(certificate))
}

/// In hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}
