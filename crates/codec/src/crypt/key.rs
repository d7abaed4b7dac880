//! Wrapping keys, data keys and session keys.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use format::{Endian, ObjectType};
use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::Sha512;
use zeroize::Zeroizing;

use super::cipher::{Cipher, Suite};
use super::layout::{Part, dnode_parts, log_parts};
use super::locked::{Locked, clear_stack};
use super::macs::{ObjsetMacs, objset_macs};
use super::{BlockCrypt, CryptError, IV_BYTES, MAC_BYTES, SALT_BYTES};

/// Bytes of a wrapping key, whatever the suite (`WRAPPING_KEY_LEN`).
pub const WRAPPING_KEY_BYTES: usize = 32;
/// Most bytes of a master key (`MASTER_KEY_MAX_LEN`).
const MASTER_KEY_BYTES_MAX: usize = 32;
/// Bytes of an HMAC key (`SHA512_HMAC_KEYLEN`).
const HMAC_KEY_BYTES: usize = 64;
/// Version of keys that we make (`ZIO_CRYPT_KEY_CURRENT_VERSION`).
const VERSION: u64 = 1;
/// Session keys kept ready. Each import of a pool makes one per data key.
const SESSIONS_MAX: usize = 16;

/// A key that wraps other keys, in memory that is locked, and overwritten with zeros when it is
/// dropped. To leave no copy elsewhere, begin with the default (zeros) and fill it in.
pub struct WrappingKey(Locked<[u8; WRAPPING_KEY_BYTES]>);

impl WrappingKey {
    /// The key of these bytes, of which the caller has a copy.
    pub fn new(bytes: [u8; WRAPPING_KEY_BYTES]) -> Self {
        Self(Locked::new(bytes))
    }
}

impl Default for WrappingKey {
    fn default() -> Self {
        Self::new([0; WRAPPING_KEY_BYTES])
    }
}

impl Clone for WrappingKey {
    fn clone(&self) -> Self {
        let mut key = Self::default();
        key.copy_from_slice(self.as_slice());
        key
    }
}

impl Deref for WrappingKey {
    type Target = [u8; WRAPPING_KEY_BYTES];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for WrappingKey {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl std::fmt::Debug for WrappingKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("WrappingKey")
    }
}

/// The wrapping key of a passphrase: PBKDF2 with HMAC-SHA1 (RFC 8018, section 5.2). The salt is the
/// number stored beside the key, its bytes little-endian (`derive_key`,
/// lib/libzfs/libzfs_crypto.c).
pub fn passphrase_key(passphrase: &[u8], salt: u64, iterations: u32) -> WrappingKey {
    let mut key = WrappingKey::default();
    pbkdf2::pbkdf2_hmac::<Sha1>(
        passphrase,
        &Endian::Little.u64_bytes(salt),
        iterations,
        key.as_mut_slice(),
    );
    clear_stack();
    key
}

/// A data key as it is stored (`DSL_CRYPTO_*` of a crypto key object; `zio_crypt_key_wrap`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// The cipher for the data. Wrapping takes the same mode, always with the 256 bits of the
    /// wrapping key.
    pub suite: Suite,
    /// Version of what is authenticated: 0 or 1.
    pub version: u64,
    /// The key's guid.
    pub guid: u64,
    /// IV of the wrapping.
    pub iv: [u8; IV_BYTES],
    /// MAC of the wrapping.
    pub mac: [u8; MAC_BYTES],
    /// The master key, encrypted; as many bytes as the suite's keys have, zeros behind.
    pub master: [u8; MASTER_KEY_BYTES_MAX],
    /// The HMAC key, encrypted.
    pub hmac: [u8; HMAC_KEY_BYTES],
}

impl WrappedKey {
    fn aad(suite: Suite, version: u64, guid: u64) -> Vec<u8> {
        let words = [guid, suite.code(), version];
        let count = if version == 0 { 1 } else { 3 };
        words[..count]
            .iter()
            .flat_map(|word| Endian::Little.u64_bytes(*word))
            .collect()
    }

    /// The data key inside.
    ///
    /// # Errors
    /// [`CryptError::Authentication`] when `wrapping` is not the right key.
    pub fn unwrap_key(&self, wrapping: &WrappingKey) -> Result<DataKey, CryptError> {
        let key = self.unwrap_on_stack(wrapping);
        clear_stack();
        key
    }

    #[inline(never)]
    fn unwrap_on_stack(&self, wrapping: &WrappingKey) -> Result<DataKey, CryptError> {
        let length = self.suite.key_bytes();
        let mut both = Zeroizing::new([0; MASTER_KEY_BYTES_MAX + HMAC_KEY_BYTES]);
        let both = &mut both[..length + HMAC_KEY_BYTES];
        both[..length].copy_from_slice(&self.master[..length]);
        both[length..].copy_from_slice(&self.hmac);
        let aad = Self::aad(self.suite, self.version, self.guid);
        Cipher::new(self.suite.wrapping(), wrapping.as_slice())
            .open(&self.iv, &aad, both, &self.mac)?;
        let mut key = DataKey::empty(self.suite, self.version, self.guid);
        key.keys.master[..length].copy_from_slice(&both[..length]);
        key.keys.hmac.copy_from_slice(&both[length..]);
        Ok(key)
    }
}

/// The keys of a data key.
struct Unwrapped {
    /// As many bytes as the suite's keys have, zeros behind.
    master: [u8; MASTER_KEY_BYTES_MAX],
    hmac: [u8; HMAC_KEY_BYTES],
}

struct Session {
    salt: [u8; SALT_BYTES],
    cipher: Arc<Cipher>,
}

/// The key of a dataset's blocks: of a family of clones, in fact. See the module's docs for what is
/// done with it.
pub struct DataKey {
    suite: Suite,
    version: u64,
    guid: u64,
    keys: Locked<Unwrapped>,
    sessions: Mutex<Vec<Session>>,
}

impl std::fmt::Debug for DataKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "DataKey({}, guid {})", self.suite.name(), self.guid)
    }
}

impl DataKey {
    fn empty(suite: Suite, version: u64, guid: u64) -> Self {
        DataKey {
            suite,
            version,
            guid,
            keys: Locked::new(Unwrapped {
                master: [0; MASTER_KEY_BYTES_MAX],
                hmac: [0; HMAC_KEY_BYTES],
            }),
            sessions: Mutex::default(),
        }
    }

    /// A new key, of random bytes from `fill` (`zio_crypt_key_init`).
    pub fn generate(suite: Suite, fill: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut guid = [0; 8];
        fill(&mut guid);
        let mut key = Self::empty(suite, VERSION, Endian::Little.u64(guid));
        fill(&mut key.keys.master[..suite.key_bytes()]);
        fill(key.keys.hmac.as_mut_slice());
        key
    }

    /// The key as it is to be stored. `iv` must be fresh and random.
    ///
    /// # Errors
    /// None that can happen: keys are short.
    pub fn wrap(
        &self,
        wrapping: &WrappingKey,
        iv: [u8; IV_BYTES],
    ) -> Result<WrappedKey, CryptError> {
        let wrapped = self.wrap_on_stack(wrapping, iv);
        clear_stack();
        wrapped
    }

    #[inline(never)]
    fn wrap_on_stack(
        &self,
        wrapping: &WrappingKey,
        iv: [u8; IV_BYTES],
    ) -> Result<WrappedKey, CryptError> {
        let length = self.suite.key_bytes();
        let mut both = Zeroizing::new([0; MASTER_KEY_BYTES_MAX + HMAC_KEY_BYTES]);
        let both = &mut both[..length + HMAC_KEY_BYTES];
        both[..length].copy_from_slice(&self.keys.master[..length]);
        both[length..].copy_from_slice(&self.keys.hmac);
        let aad = WrappedKey::aad(self.suite, self.version, self.guid);
        let mac = Cipher::new(self.suite.wrapping(), wrapping.as_slice()).seal(&iv, &aad, both)?;
        let mut wrapped = WrappedKey {
            suite: self.suite,
            version: self.version,
            guid: self.guid,
            iv,
            mac,
            master: [0; MASTER_KEY_BYTES_MAX],
            hmac: [0; HMAC_KEY_BYTES],
        };
        wrapped.master[..length].copy_from_slice(&both[..length]);
        wrapped.hmac.copy_from_slice(&both[length..]);
        Ok(wrapped)
    }

    /// The cipher.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The key's guid.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Version of what is authenticated: 0 (read only) or 1.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The session key of a salt: HKDF-SHA512 (RFC 5869) of the master key, without HKDF's own
    /// salt, the block's salt as "info" (`zio_do_crypt_data`).
    fn session(&self, salt: &[u8; SALT_BYTES]) -> Arc<Cipher> {
        let lock = || self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |sessions: &[Session]| {
            let found = sessions.iter().rposition(|session| session.salt == *salt);
            found.map(|index| sessions[index].cipher.clone())
        };
        if let Some(cipher) = known(&lock()) {
            return cipher;
        }
        let cipher = Arc::new(self.derive_on_stack(salt));
        clear_stack();
        let mut sessions = lock();
        if known(&sessions).is_none() {
            if sessions.len() >= SESSIONS_MAX {
                sessions.remove(0);
            }
            sessions.push(Session {
                salt: *salt,
                cipher: cipher.clone(),
            });
        }
        cipher
    }

    #[inline(never)]
    fn derive_on_stack(&self, salt: &[u8; SALT_BYTES]) -> Cipher {
        let length = self.suite.key_bytes();
        let mut key = Zeroizing::new([0; MASTER_KEY_BYTES_MAX]);
        Hkdf::<Sha512>::new(None, &self.keys.master[..length])
            .expand(salt, &mut key[..length])
            .expect("HKDF-SHA512 gives up to 16 KiB");
        Cipher::new(self.suite, key.as_slice())
    }

    /// HMAC-SHA512 of `data`.
    pub(super) fn hmac(&self, parts: &[&[u8]]) -> [u8; 64] {
        let mut mac = <Hmac<Sha512> as KeyInit>::new_from_slice(&self.keys.hmac)
            .expect("HMAC takes keys of every length");
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// The MAC of a block that is only authenticated, as stored (`zio_crypt_do_hmac`).
    pub fn mac(&self, stored: &[u8]) -> [u8; MAC_BYTES] {
        let digest = self.hmac(&[stored]);
        *digest.first_chunk().expect("64 bytes start with 16")
    }

    /// Whether `mac` is that of a block that is only authenticated. Takes the same time whatever
    /// differs.
    pub fn mac_holds(&self, stored: &[u8], mac: &[u8; MAC_BYTES]) -> bool {
        let found = self.mac(stored);
        found.iter().zip(mac).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }

    /// Both MACs of an object set's root block of byte order `endian`.
    ///
    /// # Errors
    /// [`CryptError::Layout`] when `block` is too short to be one.
    pub fn objset_macs(&self, block: &[u8], endian: Endian) -> Result<ObjsetMacs, CryptError> {
        objset_macs(self, block, endian)
    }

    /// Salt and IV of a block that is deduplicated: the same for the same data
    /// (`zio_crypt_generate_iv_salt_dedup`).
    pub fn dedup_salt_and_iv(&self, stored: &[u8]) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
        let digest = self.hmac(&[stored]);
        let (mut salt, mut iv) = ([0; SALT_BYTES], [0; IV_BYTES]);
        salt.copy_from_slice(&digest[..SALT_BYTES]);
        iv.copy_from_slice(&digest[SALT_BYTES..SALT_BYTES + IV_BYTES]);
        (salt, iv)
    }

    fn parts(
        &self,
        object_type: ObjectType,
        endian: Endian,
        block: &[u8],
    ) -> Result<Option<Vec<Part>>, CryptError> {
        match object_type {
            ObjectType::DNODE => dnode_parts(block, endian, self.version).map(Some),
            ObjectType::INTENT_LOG => log_parts(block, endian).map(Some),
            _ => Ok(None),
        }
    }

    /// Encrypts a block in place, as much of it as its type says, and gives its MAC. Never use an
    /// IV twice with one salt.
    ///
    /// # Errors
    /// [`CryptError::TooLong`], and [`CryptError::Layout`] when it is not a block of that type.
    pub fn encrypt(
        &self,
        object_type: ObjectType,
        endian: Endian,
        salt: &[u8; SALT_BYTES],
        iv: &[u8; IV_BYTES],
        block: &mut [u8],
    ) -> Result<[u8; MAC_BYTES], CryptError> {
        let cipher = self.session(salt);
        let Some(parts) = self.parts(object_type, endian, block)? else {
            return cipher.seal(iv, &[], block);
        };
        let (mut secret, aad) = gather(&parts, block);
        let mac = cipher.seal(iv, &aad, &mut secret)?;
        scatter(&parts, &secret, block);
        Ok(mac)
    }

    /// Decrypts a block in place. After an error `block` is worth nothing.
    ///
    /// # Errors
    /// [`CryptError::Authentication`], [`CryptError::Layout`].
    pub fn decrypt(
        &self,
        object_type: ObjectType,
        endian: Endian,
        crypt: &BlockCrypt,
        block: &mut [u8],
    ) -> Result<(), CryptError> {
        let cipher = self.session(&crypt.salt);
        let Some(parts) = self.parts(object_type, endian, block)? else {
            return cipher.open(&crypt.iv, &[], block, &crypt.mac);
        };
        let (mut secret, aad) = gather(&parts, block);
        cipher.open(&crypt.iv, &aad, &mut secret, &crypt.mac)?;
        scatter(&parts, &secret, block);
        Ok(())
    }
}

/// The parts to encrypt put together, and what is to be authenticated.
fn gather(parts: &[Part], block: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut secret, mut aad) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Secret(range) => secret.extend_from_slice(&block[range.clone()]),
            Part::Clear(range) => aad.extend_from_slice(&block[range.clone()]),
            Part::Instead(bytes) => aad.extend_from_slice(bytes),
        }
    }
    (secret, aad)
}

/// Puts the parts back that [`gather`] put together.
fn scatter(parts: &[Part], secret: &[u8], block: &mut [u8]) {
    let mut at = 0;
    for part in parts {
        if let Part::Secret(range) = part {
            block[range.clone()].copy_from_slice(&secret[at..at + range.len()]);
            at += range.len();
        }
    }
}
