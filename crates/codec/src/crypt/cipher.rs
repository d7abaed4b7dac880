//! The six cipher suites (`zio_crypt_table`, module/os/linux/zfs/zio_crypt.c).

use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use aes_gcm::aead::consts::{U12, U16};
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::aead::{AeadInOut, KeyInit};
use ccm::Ccm;

use super::locked::Locked;
use super::{CryptError, IV_BYTES, MAC_BYTES};

/// A cipher and its key length (`enum zio_encrypt`, include/sys/zio.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Suite {
    /// `aes-128-ccm`.
    Aes128Ccm,
    /// `aes-192-ccm`.
    Aes192Ccm,
    /// `aes-256-ccm`.
    Aes256Ccm,
    /// `aes-128-gcm`.
    Aes128Gcm,
    /// `aes-192-gcm`.
    Aes192Gcm,
    /// `aes-256-gcm`.
    Aes256Gcm,
}

impl Suite {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Aes128Ccm,
        Self::Aes192Ccm,
        Self::Aes256Ccm,
        Self::Aes128Gcm,
        Self::Aes192Gcm,
        Self::Aes256Gcm,
    ];

    /// From the stored code (3 to 8).
    pub const fn from_code(code: u64) -> Option<Self> {
        match code {
            3 => Some(Self::Aes128Ccm),
            4 => Some(Self::Aes192Ccm),
            5 => Some(Self::Aes256Ccm),
            6 => Some(Self::Aes128Gcm),
            7 => Some(Self::Aes192Gcm),
            8 => Some(Self::Aes256Gcm),
            _ => None,
        }
    }

    /// The stored code.
    pub const fn code(self) -> u64 {
        match self {
            Self::Aes128Ccm => 3,
            Self::Aes192Ccm => 4,
            Self::Aes256Ccm => 5,
            Self::Aes128Gcm => 6,
            Self::Aes192Gcm => 7,
            Self::Aes256Gcm => 8,
        }
    }

    /// The suite that wraps this one's keys: of the same mode, but wrapping keys have 256 bits
    /// (`WRAPPING_KEY_LEN`).
    pub(super) const fn wrapping(self) -> Self {
        match self {
            Self::Aes128Ccm | Self::Aes192Ccm | Self::Aes256Ccm => Self::Aes256Ccm,
            Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm => Self::Aes256Gcm,
        }
    }

    /// Its name as the property `encryption` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Ccm => "aes-128-ccm",
            Self::Aes192Ccm => "aes-192-ccm",
            Self::Aes256Ccm => "aes-256-ccm",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes192Gcm => "aes-192-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// Longest block, in bytes and in whole sectors, that can be encrypted without compressing it.
    /// With an IV of 12 bytes CCM counts in 24 bits, and OpenZFS counts the MAC of 16 bytes along
    /// when it decrypts (`ccm_validate_args`, module/icp/algs/modes/ccm.c): one sector less than
    /// 16 MiB. GCM takes any block.
    pub const fn block_bytes_max(self) -> u32 {
        match self {
            Self::Aes128Ccm | Self::Aes192Ccm | Self::Aes256Ccm => {
                (format::MAX_BLOCK_BYTES - format::SECTOR_BYTES) as u32
            }
            Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm => format::MAX_BLOCK_BYTES as u32,
        }
    }

    /// Bytes of its key.
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes192Ccm | Self::Aes192Gcm => 24,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }
}

type CcmOf<A> = Ccm<A, U16, U12>;
type GcmOf<A> = AesGcm<A, U12, U16>;

/// A suite with an expanded key. The crates of the ciphers overwrite their round keys on drop.
pub(super) enum Cipher {
    Aes128Ccm(Locked<CcmOf<Aes128>>),
    Aes192Ccm(Locked<CcmOf<Aes192>>),
    Aes256Ccm(Locked<CcmOf<Aes256>>),
    Aes128Gcm(Locked<GcmOf<Aes128>>),
    Aes192Gcm(Locked<GcmOf<Aes192>>),
    Aes256Gcm(Locked<GcmOf<Aes256>>),
}

fn expand<C: KeyInit>(key: &[u8]) -> Locked<C> {
    Locked::new(C::new_from_slice(key).expect("the key has the length that its suite asks for"))
}

impl Cipher {
    /// Takes the first bytes of `key`, which has at least as many as the suite needs, and leaves
    /// some of it on the stack.
    pub fn new(suite: Suite, key: &[u8]) -> Self {
        let key = &key[..suite.key_bytes()];
        match suite {
            Suite::Aes128Ccm => Self::Aes128Ccm(expand(key)),
            Suite::Aes192Ccm => Self::Aes192Ccm(expand(key)),
            Suite::Aes256Ccm => Self::Aes256Ccm(expand(key)),
            Suite::Aes128Gcm => Self::Aes128Gcm(expand(key)),
            Suite::Aes192Gcm => Self::Aes192Gcm(expand(key)),
            Suite::Aes256Gcm => Self::Aes256Gcm(expand(key)),
        }
    }

    fn suite(&self) -> Suite {
        match self {
            Self::Aes128Ccm(_) => Suite::Aes128Ccm,
            Self::Aes192Ccm(_) => Suite::Aes192Ccm,
            Self::Aes256Ccm(_) => Suite::Aes256Ccm,
            Self::Aes128Gcm(_) => Suite::Aes128Gcm,
            Self::Aes192Gcm(_) => Suite::Aes192Gcm,
            Self::Aes256Gcm(_) => Suite::Aes256Gcm,
        }
    }

    /// Encrypts `data` in place and gives the MAC over it and `aad`.
    pub fn seal(
        &self,
        iv: &[u8; IV_BYTES],
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; MAC_BYTES], CryptError> {
        let length_bytes = data.len();
        let buffer = InOutBuf::from(data);
        let iv = iv.into();
        let tag = match self {
            Self::Aes128Ccm(cipher) => cipher.encrypt_inout_detached(iv, aad, buffer),
            Self::Aes192Ccm(cipher) => cipher.encrypt_inout_detached(iv, aad, buffer),
            Self::Aes256Ccm(cipher) => cipher.encrypt_inout_detached(iv, aad, buffer),
            Self::Aes128Gcm(cipher) => cipher.encrypt_inout_detached(iv, aad, buffer),
            Self::Aes192Gcm(cipher) => cipher.encrypt_inout_detached(iv, aad, buffer),
            Self::Aes256Gcm(cipher) => cipher.encrypt_inout_detached(iv, aad, buffer),
        };
        // Lengths are all that encryption can object to.
        tag.map(Into::into).map_err(|_| CryptError::TooLong {
            suite: self.suite().name(),
            length_bytes,
        })
    }

    /// Decrypts `data` in place. After an error `data` is worth nothing.
    pub fn open(
        &self,
        iv: &[u8; IV_BYTES],
        aad: &[u8],
        data: &mut [u8],
        mac: &[u8; MAC_BYTES],
    ) -> Result<(), CryptError> {
        let buffer = InOutBuf::from(data);
        let (iv, mac) = (iv.into(), mac.into());
        match self {
            Self::Aes128Ccm(cipher) => cipher.decrypt_inout_detached(iv, aad, buffer, mac),
            Self::Aes192Ccm(cipher) => cipher.decrypt_inout_detached(iv, aad, buffer, mac),
            Self::Aes256Ccm(cipher) => cipher.decrypt_inout_detached(iv, aad, buffer, mac),
            Self::Aes128Gcm(cipher) => cipher.decrypt_inout_detached(iv, aad, buffer, mac),
            Self::Aes192Gcm(cipher) => cipher.decrypt_inout_detached(iv, aad, buffer, mac),
            Self::Aes256Gcm(cipher) => cipher.decrypt_inout_detached(iv, aad, buffer, mac),
        }
        .map_err(|_| CryptError::Authentication)
    }
}
