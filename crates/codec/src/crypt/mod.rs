//! Encryption of blocks, as OpenZFS does it (module/os/linux/zfs/zio_crypt.c).
//!
//! # Keys
//!
//! | Key | Bytes | Comes from |
//! |---|---|---|
//! | wrapping key | 32 | the user: raw, hex, or a passphrase through [`passphrase_key`] |
//! | master key | 16, 24, 32 | random, per encrypted dataset and its clones; stored wrapped ([`WrappedKey`]) |
//! | HMAC key | 64 | the same |
//! | session key | as the master key | HKDF-SHA512 of the master key and the salt in a block's pointer |
//!
//! [`DataKey`] is master and HMAC key unwrapped, with the session keys used lately. All keys are in
//! memory that is locked, as far as the system lets us, and are overwritten with zeros when dropped
//! (module `locked`). So is what working on wrapping and master keys leaves on the stack.
//!
//! # What protects which block
//!
//! | Block | Encrypted | Authenticated |
//! |---|---|---|
//! | level 0 of an encrypted type | all of it | |
//! | dnodes | bonuses of encrypted types | cores, pointers' MACs and portable properties, other bonuses |
//! | intent log | records without their heads and block pointers | all else but the chain's checksum |
//! | level 0 of another type | | all of it: HMAC-SHA512, first 16 bytes ([`DataKey::mac`]) |
//! | indirect | | SHA-512 over the MACs below, needs no key ([`mac_of_macs`]) |
//! | root of an object set | | its dnodes' MACs, in two HMACs within it ([`DataKey::objset_macs`]) |
//!
//! AES in CCM or GCM mode, IV of 12 bytes, MAC of 16 bytes. A block is compressed before it is
//! encrypted.
//!
//! # State and locks
//! The session keys of a [`DataKey`], behind a mutex that is held for a look-up or a push, never
//! while blocks are worked on.

mod cipher;
mod key;
mod layout;
mod locked;
mod macs;
#[cfg(test)]
mod tests;

pub use cipher::Suite;
pub use key::{DataKey, WRAPPING_KEY_BYTES, WrappedKey, WrappingKey, passphrase_key};
pub use locked::is_memory_locked;
pub use macs::{ObjsetMacs, mac_of_macs, mac_of_macs_holds};

use thiserror::Error;

/// Bytes of a block's IV (`ZIO_DATA_IV_LEN`).
pub const IV_BYTES: usize = 12;
/// Bytes of a block's salt (`ZIO_DATA_SALT_LEN`).
pub const SALT_BYTES: usize = 8;
/// Bytes of a block's MAC (`ZIO_DATA_MAC_LEN`).
pub const MAC_BYTES: usize = 16;

/// Why a block or key cannot be encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CryptError {
    /// The MAC does not fit: other bytes, or another key.
    #[error(
        "authentication failed: the data or the key is not the right one; restore it from a backup \
         if the key is right"
    )]
    Authentication,
    /// The block is not laid out as its type says.
    #[error(
        "a block of {length_bytes} bytes is no {what}; scrub the pool to find out what is damaged"
    )]
    Layout {
        /// What it should be.
        what: &'static str,
        /// Its length.
        length_bytes: usize,
    },
    /// The cipher cannot take so much at once (CCM with an IV of 12 bytes: below 16 MiB).
    #[error(
        "{length_bytes} bytes are too many for {suite}; use a smaller recordsize or a GCM suite"
    )]
    TooLong {
        /// The cipher.
        suite: &'static str,
        /// What was to be encrypted.
        length_bytes: usize,
    },
}

/// Salt, IV and MAC of a block: what decrypting it needs besides the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCrypt {
    /// Chooses the session key.
    pub salt: [u8; SALT_BYTES],
    /// The IV.
    pub iv: [u8; IV_BYTES],
    /// The MAC.
    pub mac: [u8; MAC_BYTES],
}
