//! Encryption keys of datasets: as stored in the MOS, and loaded (module/zfs/dsl_crypt.c).
//!
//! # On disk
//! The directory of an encrypted dataset names a *crypto key object* (a ZAP;
//! [`names::crypto_key`]): cipher suite, master and HMAC key wrapped, and which directory is the
//! *encryption root* whose user key wraps them. Children that inherit encryption have key objects
//! of their own, wrapped with the root's key; clones share their origin's. The root's object also
//! says how the user's key is to be had: format, salt and iterations; its property `keylocation`
//! says where from.
//!
//! # Loaded
//! The [`KeyStore`](crate::state::KeyStore) holds wrapping keys by encryption root, and unwrapped
//! keys by key object. Opening a dataset or snapshot maps its object number to its key in the
//! pipeline, which encrypts and decrypts. Unloading refuses while a dataset is in use, then forgets
//! it all; keys are overwritten with zeros when the last user lets go. Loading and unloading hold
//! the lock of the namespace for writing, so no dataset is opened meanwhile. The store's own lock
//! is held for map operations only. Nothing of this is on disk: after a crash no key is loaded.
//!
//! New keys are in `new_key.rs`, changed ones in `change_key.rs`.

use device::BoxFuture;
use std::sync::Arc;

use codec::crypt::{Suite, WrappedKey, WrappingKey};
use format::{MAX_BLOCK_BYTES, ObjectId, ObjsetId, names};
use object::{SyncContext, Zap, ZapValue};
use zio::Tx;
use zio::pipeline::BlockKey;

use crate::dsl::DslPool;
use crate::features::guid;
use crate::logs::LOG_TRIES_MAX;
use crate::state::{Dir, Ds};
use crate::{DatasetError, PropertyValue};

/// Entry of a crypto key object, ours, which OpenZFS passes over: this is an encryption root since
/// a raw stream parted it from another one.
pub(crate) const PARTED: &str = "millpond:parted";

/// How a user's key is given (property `keyformat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// Text of 8 to 512 bytes, through PBKDF2.
    Passphrase,
}

impl KeyFormat {
    /// From the stored code.
    pub const fn from_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Raw),
            2 => Some(Self::Hex),
            3 => Some(Self::Passphrase),
            _ => None,
        }
    }

    /// The stored code.
    pub const fn code(self) -> u64 {
        match self {
            Self::Raw => 1,
            Self::Hex => 2,
            Self::Passphrase => 3,
        }
    }
}

/// What a user needs to know to give a key.
#[derive(Debug, Clone)]
pub struct KeyInfo {
    /// The encryption root's name.
    pub root: String,
    /// Whether the dataset asked about is the encryption root.
    pub is_root: bool,
    /// Whether the key is loaded.
    pub is_loaded: bool,
    /// How the key is given.
    pub format: KeyFormat,
    /// Property `keylocation` of the root.
    pub location: String,
    /// Salt of a passphrase.
    pub salt: u64,
    /// PBKDF2's iterations for a passphrase.
    pub iterations: u64,
}

/// A crypto key object.
#[derive(Debug, Clone)]
pub(crate) struct StoredKey {
    /// The object.
    pub object: ObjectId,
    /// Directory of the encryption root.
    pub root: ObjectId,
    /// Code of the cipher suite.
    pub suite: u64,
    /// Identity.
    pub guid: u64,
    /// `keyformat`.
    pub format: u64,
    /// `pbkdf2salt`.
    pub salt: u64,
    /// `pbkdf2iters`.
    pub iterations: u64,
    /// The txg in which it was wrapped as a raw stream brought it; none if it was wrapped here.
    pub received_in: Option<u64>,
    /// Whether it is an encryption root only because a raw stream parted it from another one.
    pub is_parted: bool,
    version: u64,
    iv: Vec<u8>,
    mac: Vec<u8>,
    master: Vec<u8>,
    hmac: Vec<u8>,
}

impl StoredKey {
    /// IV and MAC of the wrapped keys.
    pub(crate) fn iv_and_mac(&self) -> (&[u8], &[u8]) {
        (&self.iv, &self.mac)
    }

    pub(crate) fn wrapped(&self, name: &dyn Fn() -> String) -> Result<WrappedKey, DatasetError> {
        let suite = Suite::from_code(self.suite).filter(|_| self.version <= 1);
        let Some(suite) = suite else {
            return Err(DatasetError::Unsupported {
                name: name(),
                what: format!(
                    "its encryption suite (number {}, version {})",
                    self.suite, self.version
                ),
            });
        };
        let sized = || {
            Some(WrappedKey {
                suite,
                version: self.version,
                guid: self.guid,
                iv: self.iv.as_slice().try_into().ok()?,
                mac: self.mac.as_slice().try_into().ok()?,
                master: self.master.as_slice().try_into().ok()?,
                hmac: self.hmac.as_slice().try_into().ok()?,
            })
        };
        sized().ok_or_else(|| {
            DatasetError::corrupt(
                self.object,
                "the crypto key object has a part of a wrong size",
            )
        })
    }
}

/// The refusal of blocks that a cipher does not take.
pub(crate) fn too_long(property: &str) -> DatasetError {
    DatasetError::InvalidProperty {
        property: property.to_owned(),
        reason: format!(
            "'{property}' must be below 16M where encryption is aes-128-ccm, aes-192-ccm or \
             aes-256-ccm, which do not take so much at once"
        ),
    }
}

/// Keys of encrypted datasets: [`DslPool::keys`].
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Keys of encrypted datasets.
    pub fn keys(self: &Arc<Self>) -> Keys<'_> {
        Keys { dsl: self }
    }
}

impl Keys<'_> {
    /// The crypto key object of a directory; `None` when it is not encrypted.
    pub(crate) async fn object(&self, dir: &Arc<Dir>) -> Result<Option<ObjectId>, DatasetError> {
        if !dir.state().is_zapified {
            return Ok(None);
        }
        let zap = Zap::hold(self.dsl.mos(), dir.object).await?;
        let object = zap.lookup_u64(names::directory::CRYPTO_KEY_OBJ).await?;
        Ok(object.map(ObjectId::new))
    }

    /// The key of a directory as stored; `None` when it is not encrypted.
    pub(crate) async fn stored(&self, dir: &Arc<Dir>) -> Result<Option<StoredKey>, DatasetError> {
        let Some(object) = self.object(dir).await? else {
            return Ok(None);
        };
        let zap = Zap::hold(self.dsl.mos(), object).await?;
        let number = async |name: &str| -> Result<Option<u64>, DatasetError> {
            Ok(zap.lookup_u64(name).await?)
        };
        let bytes = async |name: &str| -> Result<Vec<u8>, DatasetError> {
            let value = zap.lookup(name).await?;
            Ok(value.map_or_else(Vec::new, |value: ZapValue| value.data.to_vec()))
        };
        use names::crypto_key as key;
        let missing = || DatasetError::corrupt(object, "the crypto key object is incomplete");
        Ok(Some(StoredKey {
            object,
            root: number(key::ROOT_DDOBJ).await?.ok_or_else(missing)?.into(),
            suite: number(key::CRYPTO_SUITE).await?.ok_or_else(missing)?,
            guid: number(key::GUID).await?.ok_or_else(missing)?,
            format: number("keyformat").await?.unwrap_or(0),
            salt: number("pbkdf2salt").await?.unwrap_or(0),
            iterations: number("pbkdf2iters").await?.unwrap_or(0),
            received_in: number(key::RECEIVED).await?,
            is_parted: number(PARTED).await?.is_some(),
            version: number(key::VERSION).await?.unwrap_or(0),
            iv: bytes(key::IV).await?,
            mac: bytes(key::MAC).await?,
            master: bytes(key::MASTER_KEY).await?,
            hmac: bytes(key::HMAC_KEY).await?,
        }))
    }

    /// Longest data block of a dataset, in bytes, that its cipher takes.
    pub(crate) async fn block_bytes_max(&self, dataset: &Arc<Ds>) -> Result<u32, DatasetError> {
        if !dataset.is_encrypted() {
            return Ok(MAX_BLOCK_BYTES as u32);
        }
        let stored = self.stored(&dataset.dir()).await?;
        let suite = stored.and_then(|stored| Suite::from_code(stored.suite));
        Ok(suite.map_or(MAX_BLOCK_BYTES as u32, Suite::block_bytes_max))
    }

    /// Refuses blocks that a dataset's cipher may not take, before a sync would come upon one.
    pub(crate) async fn check_block_bytes(
        &self,
        dataset: &Arc<Ds>,
        property: &str,
        bytes: u64,
    ) -> Result<(), DatasetError> {
        if property != "recordsize" || bytes <= u64::from(self.block_bytes_max(dataset).await?) {
            return Ok(());
        }
        Err(too_long(property))
    }

    /// The error of a dataset whose encryption root's key is not loaded.
    pub(crate) async fn not_loaded(
        &self,
        name: String,
        root: ObjectId,
    ) -> Result<DatasetError, DatasetError> {
        let root = self.root_name(root).await?;
        Ok(DatasetError::KeyNotLoaded { name, root })
    }

    /// Name of an encryption root.
    pub(crate) async fn root_name(&self, root: ObjectId) -> Result<String, DatasetError> {
        Ok(self
            .dsl
            .directories()
            .dir(root)
            .await?
            .full_name(&self.dsl.pool_name()))
    }

    /// A dataset's own property that has to do with its encryption; `None` when it is not
    /// encrypted.
    pub(crate) async fn property(
        &self,
        dataset: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<PropertyValue>, DatasetError> {
        let Some(key) = self.stored(&dataset.dir()).await? else {
            return Ok(None);
        };
        let number = match name {
            "encryption" => key.suite,
            "keyformat" => key.format,
            "pbkdf2iters" => key.iterations,
            "pbkdf2salt" => key.salt,
            "keyguid" => key.guid,
            "keystatus" if self.dsl.keys.is_loaded(key.root) => 2,
            "keystatus" => 1,
            "encryptionroot" => {
                return Ok(Some(PropertyValue::Text(self.root_name(key.root).await?)));
            }
            "ivsetguid" => {
                let zapified = dataset.state().is_zapified;
                if !zapified {
                    return Ok(None);
                }
                let zap = Zap::hold(self.dsl.mos(), dataset.object).await?;
                let number = zap.lookup_u64(names::dataset::IVSET_GUID).await?;
                return Ok(number.map(PropertyValue::Number));
            }
            _ => return Ok(None),
        };
        Ok(Some(PropertyValue::Number(number)))
    }

    /// Makes the key of an encrypted dataset known to the pipeline.
    ///
    /// # Errors
    /// [`DatasetError::KeyNotLoaded`].
    pub(crate) fn ensure<'a>(
        &'a self,
        dataset: &'a Arc<Ds>,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            if !dataset.is_encrypted() {
                return Ok(());
            }
            let dir = dataset.dir();
            let Some(stored) = self.stored(&dir).await? else {
                return Err(DatasetError::corrupt(
                    dir.object,
                    "the dataset is encrypted, but names no crypto key object",
                ));
            };
            let key = self.unwrapped(&stored, &dir).await?;
            let objset = ObjsetId::new(dataset.object.get());
            self.dsl.env().pipeline.keys().map(objset, key);
            Ok(())
        })
    }

    /// The key in a key object, from the store or unwrapped now.
    pub(crate) async fn unwrapped(
        &self,
        stored: &StoredKey,
        dir: &Arc<Dir>,
    ) -> Result<Arc<BlockKey>, DatasetError> {
        if let Some(key) = self.dsl.keys.key(stored.object) {
            return Ok(key);
        }
        let name = || dir.full_name(&self.dsl.pool_name());
        let Some(wrapping) = self.dsl.keys.root(stored.root) else {
            return Err(self.not_loaded(name(), stored.root).await?);
        };
        let Ok(key) = stored.wrapped(&name)?.unwrap_key(&wrapping) else {
            return Err(DatasetError::OtherKey {
                name: name(),
                root: self.root_name(stored.root).await?,
            });
        };
        let key = BlockKey::new(key, &*self.dsl.env().world.random);
        let (object, root) = (stored.object, stored.root);
        self.dsl.keys.add_key(object, root, key.clone());
        Ok(key)
    }

    /// The key that is loaded for an encryption root, if it opens what is stored there: nothing is
    /// wrapped with one that does not.
    ///
    /// # Errors
    /// [`DatasetError::KeyNotLoaded`] with the name of who needs it, [`DatasetError::OtherKey`].
    pub(crate) async fn verified(
        &self,
        root: ObjectId,
        name: String,
    ) -> Result<WrappingKey, DatasetError> {
        let Some(wrapping) = self.dsl.keys.root(root) else {
            return Err(self.not_loaded(name, root).await?);
        };
        let dir = self.dsl.directories().dir(root).await?;
        let Some(stored) = self.stored(&dir).await? else {
            return Err(DatasetError::corrupt(root, "an encryption root has no key"));
        };
        let root = dir.full_name(&self.dsl.pool_name());
        match stored.wrapped(&|| root.clone())?.unwrap_key(&wrapping) {
            Ok(_) => Ok(wrapping),
            Err(_) => Err(DatasetError::OtherKey {
                name: root.clone(),
                root,
            }),
        }
    }

    /// What is known of a dataset's key; `None` when it is not encrypted.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn info(&self, name: &str) -> Result<Option<KeyInfo>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let dataset = self.dsl.directories().resolve(name).await?;
        let dir = dataset.dir();
        let Some(stored) = self.stored(&dir).await? else {
            return Ok(None);
        };
        let Some(format) = KeyFormat::from_code(stored.format) else {
            return Err(DatasetError::Unsupported {
                name: name.to_owned(),
                what: format!("its keyformat (number {})", stored.format),
            });
        };
        let root = self.dsl.directories().dir(stored.root).await?;
        let root_head = self.dsl.directories().head(&root).await?;
        let location = self
            .dsl
            .properties()
            .effective(&root_head, "keylocation")
            .await?;
        let location = location.and_then(|(value, _)| value.text().map(str::to_owned));
        Ok(Some(KeyInfo {
            root: root.full_name(&self.dsl.pool_name()),
            is_root: stored.root == dir.object,
            is_loaded: self.dsl.keys.is_loaded(stored.root),
            format,
            location: location.unwrap_or_else(|| "none".to_owned()),
            salt: stored.salt,
            iterations: stored.iterations,
        }))
    }

    async fn root_key(&self, name: &str) -> Result<(Arc<Dir>, StoredKey), DatasetError> {
        let dataset = self.dsl.directories().resolve(name).await?;
        let wrong = |reason: String| DatasetError::WrongKind {
            name: name.to_owned(),
            reason,
        };
        if dataset.is_snapshot() {
            return Err(wrong("a snapshot has its dataset's key".into()));
        }
        let dir = dataset.dir();
        let Some(stored) = self.stored(&dir).await? else {
            return Err(wrong("it is not encrypted".into()));
        };
        if stored.root != dir.object {
            let root = self.root_name(stored.root).await?;
            return Err(wrong(format!("its encryption root is '{root}'")));
        }
        Ok((dir, stored))
    }

    /// Loads the key of an encryption root, or (`only_check`) finds out whether it is the right
    /// one. Roots that raw streams parted from this one inherit again if it opens them.
    ///
    /// # Errors
    /// [`DatasetError::WrongKey`], [`DatasetError::KeyLoaded`], [`DatasetError::WrongKind`] when it
    /// is no encryption root.
    pub async fn load(
        &self,
        name: &str,
        wrapping: WrappingKey,
        only_check: bool,
    ) -> Result<(), DatasetError> {
        let config = self.dsl.config.write().await;
        let (dir, stored) = self.root_key(name).await?;
        let wrapped = stored.wrapped(&|| name.to_owned())?;
        let key = wrapped
            .unwrap_key(&wrapping)
            .map_err(|_| DatasetError::WrongKey {
                name: name.to_owned(),
            })?;
        if only_check {
            return Ok(());
        }
        let key = || BlockKey::new(key, &*self.dsl.env().world.random);
        let keys = &self.dsl.keys;
        if !keys.load(dir.object, wrapping, stored.object, key) {
            return Err(DatasetError::KeyLoaded {
                name: name.to_owned(),
            });
        }
        drop(config);
        if let Err(error) = self.rejoin_loaded(&dir).await {
            tracing::warn!(name, %error, "encryption roots below it stay, though it opens them");
        }
        Ok(())
    }

    /// Forgets the key of an encryption root, and of all that inherits from it.
    ///
    /// # Errors
    /// [`DatasetError::Busy`] while one of these datasets is in use;
    /// [`DatasetError::KeyNotLoaded`].
    pub async fn unload(&self, name: &str) -> Result<(), DatasetError> {
        let mut tries = 0;
        loop {
            // What was let go of may still have something to write.
            if !self.dsl.env().read_only {
                self.dsl.env().txgs.sync().await?;
            }
            let config = self.dsl.config.write().await;
            let (dir, _) = self.root_key(name).await?;
            if !self.dsl.keys.has_any(dir.object) {
                return Err(DatasetError::KeyNotLoaded {
                    name: name.to_owned(),
                    root: name.to_owned(),
                });
            }
            let mut closing = Vec::new();
            for dataset in self.dsl.registry.open_datasets() {
                let stored = self.stored(&dataset.dir()).await?;
                if stored.is_none_or(|stored| stored.root != dir.object) {
                    continue;
                }
                self.dsl.syncer().close_if_idle(&dataset);
                if dataset.hold_count() > 0 {
                    return Err(DatasetError::Busy {
                        name: self.dsl.directories().full_name(&dataset).await?,
                        reason: "it is in use".into(),
                    });
                }
                if let Some(open) = &*dataset.open.lock() {
                    closing.push(open.log.clone());
                }
            }
            if closing.is_empty() {
                self.forget_keys(dir.object);
                return Ok(());
            }
            if tries == LOG_TRIES_MAX {
                return Err(DatasetError::Busy {
                    name: name.to_owned(),
                    reason: "it is being closed".into(),
                });
            }
            tries += 1;
            drop(config);
            // Whoever let go of them last has their logs closed, in the background: that may not
            // even have begun, and groups that have nothing to write do not wait for it.
            for log in closing.into_iter().flatten() {
                if let Err(error) = log.close().await {
                    tracing::debug!(name, %error, "an intent log could not be closed");
                }
            }
        }
    }

    fn forget_keys(&self, root: ObjectId) {
        let gone = self.dsl.keys.forget_root(root);
        self.dsl
            .env()
            .pipeline
            .keys()
            .unmap(|_, key| gone.iter().any(|gone| std::ptr::eq(Arc::as_ptr(gone), key)));
    }
}

/// Changes, in syncing context.
impl Keys<'_> {
    /// Notes in a directory which crypto key object is its.
    pub(crate) async fn name_key(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        object: ObjectId,
    ) -> Result<(), DatasetError> {
        let entry = names::directory::CRYPTO_KEY_OBJ;
        self.dsl
            .zapify_dir(ctx, dir)
            .await?
            .add_u64(&Tx::syncing(ctx.txg), entry, object.get())
            .await?;
        Ok(())
    }

    /// A clone has the key of its origin (`dsl_crypto_key_clone_sync`).
    pub(crate) async fn share(
        &self,
        ctx: &SyncContext,
        origin: &Arc<Dir>,
        clone: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        let Some(object) = self.object(origin).await? else {
            return Ok(());
        };
        let zap = Zap::hold(self.dsl.mos(), object).await?;
        let count = zap.lookup_u64(names::crypto_key::REFCOUNT).await?;
        let tx = Tx::syncing(ctx.txg);
        zap.update_u64(&tx, names::crypto_key::REFCOUNT, count.unwrap_or(1) + 1)
            .await?;
        self.name_key(ctx, clone, object).await
    }

    /// Lets go of the key of a directory that is being destroyed (`dsl_crypto_key_destroy_sync`).
    pub(crate) async fn release(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        // Numbers of directories are used again, as those of keys are.
        self.dsl.keys.take_root(dir.object);
        let Some(object) = self.object(dir).await? else {
            return Ok(());
        };
        let tx = Tx::syncing(ctx.txg);
        let zap = Zap::hold(self.dsl.mos(), object).await?;
        match zap.lookup_u64(names::crypto_key::REFCOUNT).await? {
            Some(count) if count > 1 => {
                zap.update_u64(&tx, names::crypto_key::REFCOUNT, count - 1)
                    .await?;
            }
            _ => {
                self.dsl.mos().free(&tx, object).await?;
                self.forget_key_object(object);
            }
        }
        Ok(())
    }

    fn forget_key_object(&self, object: ObjectId) {
        if let Some(gone) = self.dsl.keys.forget_key(object) {
            self.dsl
                .env()
                .pipeline
                .keys()
                .unmap(|_, key| std::ptr::eq(Arc::as_ptr(&gone), key));
        }
    }

    /// What a snapshot's raw streams are told apart by (`DS_FIELD_IVSET_GUID`).
    pub(crate) async fn note_iv_set(
        &self,
        ctx: &SyncContext,
        snapshot: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        if !snapshot.is_encrypted() || !self.dsl.features().is_enabled(guid::BOOKMARK_V2) {
            return Ok(());
        }
        let random = self.dsl.env().world.random.next_u64().max(1);
        Zap::hold(self.dsl.mos(), snapshot.object)
            .await?
            .add_u64(&Tx::syncing(ctx.txg), names::dataset::IVSET_GUID, random)
            .await?;
        Ok(())
    }

    /// Refuses to move a dataset away from the encryption root whose key wraps its own
    /// (`dsl_dir_rename_crypt_check`).
    pub(crate) async fn check_move_encrypted(
        &self,
        dir: &Arc<Dir>,
        new_parent: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        let Some(key) = self.stored(dir).await? else {
            return Ok(());
        };
        if key.root == dir.object {
            return Ok(());
        }
        let parent = self.stored(new_parent).await?;
        if parent.is_some_and(|parent| parent.root == key.root) {
            return Ok(());
        }
        Err(DatasetError::WrongKind {
            name: dir.full_name(&self.dsl.pool_name()),
            reason: "cannot move encrypted child outside of its encryption root".into(),
        })
    }

    /// `keylocation` belongs to encryption roots, which always have one
    /// (`dsl_crypto_can_set_keylocation`).
    pub(crate) async fn check_key_location(
        &self,
        dataset: &Arc<Ds>,
        location: Option<&str>,
    ) -> Result<(), DatasetError> {
        let dir = dataset.dir();
        let key = self.stored(&dir).await?;
        let is_encrypted = key.is_some();
        let is_root = key.is_some_and(|key| key.root == dir.object);
        let reason = match location {
            None if is_root => "keylocation must not be 'none' for encrypted datasets",
            Some("none") if is_encrypted => "keylocation must not be 'none' for encrypted datasets",
            None | Some("none") => return Ok(()),
            Some(_) if is_root => return Ok(()),
            Some(_) if is_encrypted => "keylocation may only be set on encryption roots",
            Some(_) => "keylocation must be 'none' for unencrypted datasets",
        };
        Err(DatasetError::InvalidProperty {
            property: "keylocation".into(),
            reason: reason.into(),
        })
    }
}
