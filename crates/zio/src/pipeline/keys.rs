//! Encrypted datasets: finding the key of a block, and applying it to what is stored.
//!
//! [`Keys`] has the key of each object set that is in use; a block's [`format::Bookmark`] says
//! which object set it belongs to. Keys come and go with the dataset layer's key store, and with
//! the dataset: object numbers are used again. Whether a block is encrypted never follows from
//! what is here, but from its pointer or from the object set that it is written for. Reading
//! checks the checksum, then the MAC, decrypts, then decompresses; writing does the same backwards.
//! A block whose MAC does not fit is an error, never data. Other copies have the same bytes (the
//! checksum says so), so they are not tried. The cache holds blocks decrypted.
//!
//! [`codec::crypt`] tells which blocks are encrypted and which only authenticated.
//!
//! # IVs
//! Random for every block that is written (`zio_crypt_generate_iv`), also when it is written again
//! in the same place. The salt is random per loaded key and changes after [`SALT_USES_MAX`] blocks,
//! so that the same 96 random bits hardly ever occur twice under one session key. For deduplicated
//! blocks both follow from the data, so that the same data is stored the same way. Intent log
//! blocks get theirs when they are allocated, and are written once.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use codec::crypt::{
    BlockCrypt, CryptError, DataKey, IV_BYTES, ObjsetMacs, SALT_BYTES, mac_of_macs,
    mac_of_macs_holds,
};
use device::Random;
use format::{BlockPointer, CryptParams, Endian, ObjectType, ObjsetId};
use parking_lot::{Mutex, RwLock};

use super::{ReadContext, WritePolicy};
use crate::cache::Cache;
use crate::error::{ZioError, name_of};

/// Blocks that are written with one salt (`ZFS_KEY_MAX_SALT_USES_DEFAULT`, zio_crypt.c).
const SALT_USES_MAX: u64 = 400_000_000;
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
    pub(super) fn fresh(&self, random: &dyn Random) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
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
pub struct Keys {
    random: Arc<dyn Random>,
    cache: Arc<Cache>,
    by_objset: RwLock<HashMap<ObjsetId, Arc<BlockKey>>>,
}

/// What is to be done with a block that was read.
pub(super) enum Unlock {
    /// Nothing: it is not protected, or it is to be read as it is.
    AsIs,
    /// Its sum of MACs is to be checked; no key is needed.
    SumOfMacs,
    /// With this key.
    With(Arc<BlockKey>),
}

/// Whether the block is protected by a key that this reader does without.
pub(super) fn is_read_locked(bp: &BlockPointer, context: &ReadContext) -> bool {
    context.without_key && bp.uses_crypt() && bp.level() == 0
}

impl Keys {
    pub(super) fn new(random: Arc<dyn Random>, cache: Arc<Cache>) -> Arc<Self> {
        Arc::new(Keys {
            random,
            cache,
            by_objset: RwLock::default(),
        })
    }

    /// From now on blocks of this object set (a dataset's or snapshot's object number) are read
    /// and written with `key`.
    pub fn map(&self, objset: ObjsetId, key: Arc<BlockKey>) {
        self.by_objset.write().insert(objset, key);
    }

    /// Forgets the key of every object set for which `gone` says so, and all data that was read.
    pub fn unmap(&self, gone: impl Fn(ObjsetId, &BlockKey) -> bool) {
        self.by_objset
            .write()
            .retain(|objset, key| !gone(*objset, key));
        self.cache.clear();
    }

    /// Forgets the key of an object set that is destroyed. What was read of it stays in the cache:
    /// that goes by the places of blocks, and its key may still be in use elsewhere.
    pub fn forget(&self, objset: ObjsetId) {
        self.by_objset.write().remove(&objset);
    }

    /// The key of an object set, if it is loaded.
    pub fn get(&self, objset: ObjsetId) -> Option<Arc<BlockKey>> {
        self.by_objset.read().get(&objset).cloned()
    }

    /// The key of an object set, or an error that names the block that needs it.
    pub(super) fn require(
        &self,
        objset: ObjsetId,
        block: impl Fn() -> String,
    ) -> Result<Arc<BlockKey>, ZioError> {
        self.get(objset).ok_or_else(|| ZioError::KeyNotLoaded {
            block: block(),
            objset,
        })
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
        self.require(context.bookmark.objset, || name_of(bp))
            .map(Unlock::With)
    }

    /// What a block is written with, if its dataset is encrypted: the key, and salt and IV for it.
    /// Indirect blocks need no key.
    pub(super) fn lock_for(&self, policy: &WritePolicy) -> Result<Option<Lock>, ZioError> {
        if !policy.encrypted {
            return Ok(None);
        }
        if policy.level > 0 {
            return Ok(Some(Lock::SumOfMacs));
        }
        let objset = policy.bookmark.objset;
        let key = self.require(objset, || "a block that is being written".to_owned())?;
        let (salt, iv) = key.fresh(&*self.random);
        Ok(Some(Lock::With { key, salt, iv }))
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
pub(super) enum Lock {
    /// With the sum of the MACs in it.
    SumOfMacs,
    /// With a key.
    With {
        key: Arc<BlockKey>,
        salt: [u8; SALT_BYTES],
        iv: [u8; IV_BYTES],
    },
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
        let Lock::With { key, .. } = self else {
            return Lock::SumOfMacs;
        };
        let (salt, iv) = key.data.dedup_salt_and_iv(stored);
        Lock::With {
            key: key.clone(),
            salt,
            iv,
        }
    }

    /// Encrypts or authenticates a block. `data` is the block, `stored` the same compressed.
    pub(super) fn apply(
        &self,
        object_type: ObjectType,
        data: &[u8],
        stored: Bytes,
    ) -> Result<Locked, CryptError> {
        let Lock::With { key, salt, iv } = self else {
            return Ok(Locked {
                mac: Some(mac_of_macs(data, Endian::Little)),
                params: None,
                stored,
            });
        };
        let key = &key.data;
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
        let mac = key.encrypt(object_type, Endian::Little, salt, iv, &mut block)?;
        Ok(Locked {
            stored: block.into(),
            params: Some(CryptParams::from_bytes(*salt, *iv)),
            mac: Some(mac),
        })
    }
}
