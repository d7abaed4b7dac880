//! Blocks of encrypted datasets: finding the key, and applying it to what is stored.
//!
//! The pipeline knows the key of each object set that is in use ([`Pipeline::map_key`]); a block's
//! [`Bookmark`](super::Bookmark) says whose it is. Keys come and go with the dataset layer's key store. Read:
//! checksum, then MAC and decryption, then decompression. Write: the same backwards. A block whose
//! MAC does not fit is an error, never data; other copies are the same bytes (the checksum says so), so they are not tried.
//!
//! Which blocks are encrypted and which only authenticated is told in [`codec::crypt`].
//!
//! # IVs
//! Random for every block that is written (OpenZFS: `zio_crypt_generate_iv`), also when it is written again in
//! the same place. The salt is random per loaded key and changes after [`SALT_USES_MAX`] blocks, so that two of 96 random bits
//! are hardly ever the same under one session key. Of blocks that are deduplicated both follow from the data, so that the same data
//! is stored the same way. Intent log blocks get theirs when they are allocated, and are written once.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use codec::crypt::{
    BlockCrypt, CryptError, DataKey, IV_BYTES, ObjsetMacs, SALT_BYTES, mac_of_macs,
    mac_of_macs_holds,
};
use device::Random;
use format::{BlockPointer, CryptParams, Endian, ObjectType, ObjsetId, ZilLink, ZilSequence};
use parking_lot::{Mutex, RwLock};

use super::suspend::name_of;
use super::write::bug;
use super::{Pipeline, ReadContext, WritePolicy};
use crate::error::ZioError;

/// Blocks that are written with one salt (`ZFS_KEY_MAX_SALT_USES_DEFAULT`, zio_crypt.c).
const SALT_USES_MAX: u64 = 400_000_000;
/// Offset of the MAC in an intent log block: the last two words of its chain's checksum.
const LOG_MAC_OFFSET: usize = ZilLink::ECK_OFFSET + 8 + 16;
/// Bytes that are encrypted or decrypted on the task itself; more are left to a CPU worker.
pub(super) const CRYPT_ON_TASK_BYTES: usize = 16 << 10;

struct CurrentSalt {
    salt: [u8; SALT_BYTES],
    uses: u64,
}

/// A loaded key, with the salt that is written with now.
pub struct BlockKey {
    data: DataKey,
    current: Mutex<CurrentSalt>,
}

impl std::fmt::Debug for BlockKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "BlockKey({:?})", self.data)
    }
}

impl BlockKey {
    /// A key with a new random salt.
    pub fn new(data: DataKey, random: &dyn Random) -> Arc<Self> {
        let mut salt = [0; SALT_BYTES];
        random.fill(&mut salt);
        Arc::new(BlockKey {
            data,
            current: Mutex::new(CurrentSalt { salt, uses: 0 }),
        })
    }

    /// The key itself.
    pub fn data(&self) -> &DataKey {
        &self.data
    }

    /// Salt and IV for a block to be written.
    fn fresh(&self, random: &dyn Random) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
        let mut iv = [0; IV_BYTES];
        random.fill(&mut iv);
        let mut current = self.current.lock();
        if current.uses >= SALT_USES_MAX {
            random.fill(&mut current.salt);
            current.uses = 0;
        }
        current.uses += 1;
        (current.salt, iv)
    }
}

/// The keys of the object sets in use.
#[derive(Default)]
pub(super) struct Keys(RwLock<HashMap<ObjsetId, Arc<BlockKey>>>);

/// What is to be done with a block that was read.
pub(super) enum Unlock {
    /// Nothing: it is not protected, or it is to be read as it is.
    AsIs,
    /// Its sum of MACs is to be checked; no key is needed.
    SumOfMacs,
    /// With this key.
    With(Arc<BlockKey>),
}

impl Pipeline {
    /// From now on blocks of this object set (a dataset's or snapshot's object number) are read and written
    /// with `key`.
    pub fn map_key(&self, objset: ObjsetId, key: Arc<BlockKey>) {
        self.keys.0.write().insert(objset, key);
    }

    /// Forgets the key of every object set for which `gone` says so, and all data that was read.
    pub fn unmap_keys(&self, gone: impl Fn(ObjsetId, &BlockKey) -> bool) {
        self.keys
            .0
            .write()
            .retain(|objset, key| !gone(*objset, key));
        self.cache.clear();
    }

    /// The key of an object set, if it is loaded.
    pub fn key_of(&self, objset: ObjsetId) -> Option<Arc<BlockKey>> {
        self.keys.0.read().get(&objset).cloned()
    }

    fn key_for(
        &self,
        objset: ObjsetId,
        block: impl Fn() -> String,
    ) -> Result<Arc<BlockKey>, ZioError> {
        self.key_of(objset).ok_or_else(|| ZioError::KeyNotLoaded {
            block: block(),
            objset,
        })
    }

    /// Whether the block is protected by a key that this reader does without.
    pub(super) fn is_read_locked(bp: &BlockPointer, context: &ReadContext) -> bool {
        context.without_key && bp.uses_crypt() && bp.level() == 0
    }

    /// What reading a block takes.
    pub(super) fn unlock(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Unlock, ZioError> {
        if !bp.uses_crypt() {
            return Ok(Unlock::AsIs);
        }
        if bp.has_mac_of_macs() {
            return Ok(Unlock::SumOfMacs);
        }
        let readable = bp.is_authenticated() || bp.object_type() == ObjectType::DNODE;
        if context.without_key && readable {
            return Ok(Unlock::AsIs);
        }
        self.key_for(context.bookmark.objset, || name_of(bp))
            .map(Unlock::With)
    }

    /// Decrypts a block of an intent log, given as it is stored; one that is not encrypted is given back.
    ///
    /// # Errors
    /// [`ZioError::KeyNotLoaded`], [`ZioError::Authentication`].
    pub fn open_log_block(&self, bp: &BlockPointer, stored: Bytes) -> Result<Bytes, ZioError> {
        let Some(params) = bp.crypt() else {
            return Ok(stored);
        };
        let objset = ZilSequence::from_checksum(bp.checksum()).objset;
        let key = self.key_for(objset, || name_of(bp))?;
        let mut block = stored.to_vec();
        let short = || ZioError::Authentication { block: name_of(bp) };
        let mac = *block
            .get(LOG_MAC_OFFSET..)
            .and_then(|rest| rest.first_chunk::<16>())
            .ok_or_else(short)?;
        // The log's pointer keeps the byte order of who wrote it, as the block does.
        let (salt, iv) = params.to_bytes(bp.endian());
        let crypt = BlockCrypt { salt, iv, mac };
        key.data
            .decrypt(bp.object_type(), bp.endian(), &crypt, &mut block)
            .map_err(|_| short())?;
        Ok(block.into())
    }

    /// Gives the pointer of a new intent log block its salt and IV when the dataset is encrypted (`zio_alloc_zil`).
    pub(super) fn prepare_log_pointer(&self, objset: ObjsetId) -> Option<CryptParams> {
        let key = self.key_of(objset)?;
        let (salt, iv) = key.fresh(&*self.world.random);
        Some(CryptParams::from_bytes(salt, iv))
    }

    /// Encrypts an intent log block that is about to be written: everything but its checksum is set.
    pub(super) fn lock_log_block(
        &self,
        bp: &BlockPointer,
        block: &mut [u8],
    ) -> Result<(), ZioError> {
        let Some(params) = bp.crypt() else {
            return Ok(());
        };
        let objset = ZilSequence::from_checksum(bp.checksum()).objset;
        let key = self.key_for(objset, || name_of(bp))?;
        let (salt, iv) = params.to_bytes(Endian::Little);
        let mac = key
            .data
            .encrypt(bp.object_type(), Endian::Little, &salt, &iv, block)
            .map_err(bug)?;
        block[LOG_MAC_OFFSET..LOG_MAC_OFFSET + mac.len()].copy_from_slice(&mac);
        Ok(())
    }

    /// The key to write a block with, if its dataset is encrypted, and salt and IV for it.
    pub(super) fn lock_for(&self, policy: &WritePolicy) -> Result<Option<Lock>, ZioError> {
        if !policy.encrypted {
            return Ok(None);
        }
        let objset = policy.bookmark.objset;
        let key = self.key_for(objset, || "a block that is being written".to_owned())?;
        let (salt, iv) = key.fresh(&*self.world.random);
        Ok(Some(Lock { key, salt, iv }))
    }
}

/// Checks and decrypts what was read. `stored` is the block as stored.
pub(super) fn open_stored(
    unlock: &Unlock,
    bp: &BlockPointer,
    stored: Bytes,
) -> Result<Bytes, CryptError> {
    let Unlock::With(key) = unlock else {
        return Ok(stored);
    };
    let key = &key.data;
    if bp.object_type() == ObjectType::OBJSET {
        let found = key.objset_macs(&stored, bp.endian())?;
        let accepted = ObjsetMacs::stored(&stored).is_some_and(|stored| found.accept(&stored));
        return accepted.then_some(stored).ok_or(CryptError::Authentication);
    }
    let Some(params) = bp.crypt() else {
        return if key.mac_holds(&stored, &bp.mac()) {
            Ok(stored)
        } else {
            Err(CryptError::Authentication)
        };
    };
    let (salt, iv) = params.to_bytes(bp.endian());
    let mac = bp.mac();
    let mut block = Vec::from(stored);
    key.decrypt(
        bp.object_type(),
        bp.endian(),
        &BlockCrypt { salt, iv, mac },
        &mut block,
    )?;
    Ok(block.into())
}

/// Checks the sum of MACs of an indirect block, decompressed.
pub(super) fn check_opened(
    unlock: &Unlock,
    bp: &BlockPointer,
    data: &[u8],
) -> Result<(), CryptError> {
    match unlock {
        Unlock::SumOfMacs if !mac_of_macs_holds(data, bp.endian(), &bp.mac()) => {
            Err(CryptError::Authentication)
        }
        _ => Ok(()),
    }
}

/// What a block is written with.
#[derive(Clone)]
pub(super) struct Lock {
    key: Arc<BlockKey>,
    salt: [u8; SALT_BYTES],
    iv: [u8; IV_BYTES],
}

/// What a protected block's pointer says.
pub(super) struct Locked {
    /// What is stored.
    pub stored: Bytes,
    /// Salt and IV, of encrypted blocks.
    pub params: Option<CryptParams>,
    /// The MAC; object sets' roots have theirs within.
    pub mac: Option<[u8; 16]>,
}

impl Lock {
    /// With salt and IV of a block that is deduplicated: they follow from the data.
    pub(super) fn for_dedup(&self, stored: &[u8]) -> Self {
        let (salt, iv) = self.key.data.dedup_salt_and_iv(stored);
        Lock {
            key: self.key.clone(),
            salt,
            iv,
        }
    }

    /// Encrypts or authenticates a block. `data` is the block, `stored` the same compressed.
    pub(super) fn apply(
        &self,
        object_type: ObjectType,
        level: u8,
        data: &[u8],
        stored: Bytes,
    ) -> Result<Locked, CryptError> {
        let key = &self.key.data;
        if level > 0 {
            return Ok(Locked {
                mac: Some(mac_of_macs(data, Endian::Little)),
                params: None,
                stored,
            });
        }
        if object_type == ObjectType::OBJSET {
            let macs = key.objset_macs(&stored, Endian::Little)?;
            let mut block = Vec::from(stored);
            macs.store(&mut block);
            return Ok(Locked {
                stored: block.into(),
                params: None,
                mac: None,
            });
        }
        if !object_type.is_encrypted() {
            return Ok(Locked {
                mac: Some(key.mac(&stored)),
                params: None,
                stored,
            });
        }
        let mut block = stored.to_vec();
        let mac = key.encrypt(
            object_type,
            Endian::Little,
            &self.salt,
            &self.iv,
            &mut block,
        )?;
        Ok(Locked {
            stored: block.into(),
            params: Some(CryptParams::from_bytes(self.salt, self.iv)),
            mac: Some(mac),
        })
    }
}
