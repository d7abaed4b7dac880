//! ZAPs: names (or arrays of integers) to arrays of integers.
//!
//! A ZAP starts as a *micro* ZAP: one block of names up to 49 bytes with 64-bit values. It becomes
//! a *fat* ZAP ([`fat`]) when a name is longer, a value is of another shape, or the block would
//! exceed 128 KiB.
//!
//! # Locks and consistency
//! All handles on one object share one reader/writer lock, which may be held across awaits. Readers
//! run together and see no half-done change; a writer runs alone. A micro ZAP's block is mirrored
//! under that lock, with an index by hash; a fat ZAP's blocks are only in the object.
//!
//! # Names that are equal after normalisation
//! A ZAP made with normalisation flags hashes normalised names. ASCII is normalised here;
//! for other names give the filesystem's function ([`Zap::with_normalizer`]).

mod fat;
mod filled;
mod keys;
mod shared;
mod value;

use device::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use format::{
    ByteswapKind, MicroInsert, MicroZap, ObjectId, ObjectType, ZapBlockKind, ZapFlags, ZapHasher,
    ZapKey,
};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};
use zio::Tx;

pub use value::{ZapCursor, ZapEntry, ZapValue};

use crate::error::{ObjectError, OfObject, Result, damaged};
use crate::object::Object;
use crate::objset::ObjectSet;
use crate::options::NewObject;
use fat::{Fat, Matches, SameName};
use shared::Form;
pub(crate) use shared::ZapShared;

/// Bit of `zap_normflags` that makes names equal whatever their case (`U8_TEXTPREP_TOUPPER`).
pub const NORMALIZE_UPPERCASE: u64 = 0x2;

/// Makes names comparable, by the normalisation flags (`U8_TEXTPREP_*`) of the ZAPs it is given to.
pub type Normalizer = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// What a new ZAP is to be.
#[derive(Debug, Clone)]
pub struct ZapOptions {
    /// Type of the object.
    pub object_type: ObjectType,
    /// Type of the bonus.
    pub bonus_type: ObjectType,
    /// Content of the bonus.
    pub bonus: Bytes,
    /// Slots of the dnode; 0 for one.
    pub slots: u8,
    /// Bits `ZAP_FLAG_*` ([`Zap::FLAG_HASH64`], ...): any makes it a fat ZAP.
    pub flags: u64,
    /// Normalisation of names (`zap_normflags`); 0 for none.
    pub normalization: u64,
    /// log2 of the blocks' size of a fat ZAP; 0 for the default.
    pub block_shift: u8,
    /// log2 of the indirect blocks' size; 0 for the default.
    pub indirect_block_shift: u8,
    /// The object number to claim; `None` for any free one.
    pub claim: Option<ObjectId>,
}

impl ZapOptions {
    /// A ZAP of this type, everything else by default.
    pub fn new(object_type: ObjectType) -> Self {
        ZapOptions {
            object_type,
            bonus_type: ObjectType::NONE,
            bonus: Bytes::new(),
            slots: 0,
            flags: 0,
            normalization: 0,
            block_shift: 0,
            indirect_block_shift: 0,
            claim: None,
        }
    }

    /// With a bonus.
    pub fn with_bonus(self, bonus_type: ObjectType, bonus: impl Into<Bytes>) -> Self {
        ZapOptions {
            bonus_type,
            bonus: bonus.into(),
            ..self
        }
    }
}

/// A ZAP. Cheap to clone; all handles on one object share its lock.
#[derive(Clone)]
pub struct Zap {
    object: Object,
    shared: Arc<ZapShared>,
    normalizer: Option<Normalizer>,
}

impl std::fmt::Debug for Zap {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Zap({:?})", self.object)
    }
}

/// Lets go of what is kept in memory of a ZAP beside its blocks; whoever asks for an entry next
/// reads that anew. What is dirty is in its block, and stays.
pub async fn forget_zap_content(zap: &Zap) {
    let mut form = zap.shared.form.write().await;
    *form = Form::Unknown;
    // With the lock: what is read anew is charged under it.
    zap.shared.holds_nothing();
}

impl Zap {
    /// Hash 48 bits of names (`ZAP_FLAG_HASH64`).
    pub const FLAG_HASH64: u64 = 1;
    /// Keys are arrays of 64-bit integers (`ZAP_FLAG_UINT64_KEY`).
    pub const FLAG_UINT64_KEY: u64 = 2;
    /// The first integer of the key is its hash (`ZAP_FLAG_PRE_HASHED_KEY`).
    pub const FLAG_PRE_HASHED_KEY: u64 = 4;

    /// Opens the ZAP that `object` holds.
    ///
    /// # Errors
    /// [`ObjectError::WrongType`] when it is none; errors of reading.
    pub async fn open(object: Object) -> Result<Self> {
        let zap = Self::handle(object)?;
        drop(zap.read().await?);
        Ok(zap)
    }

    /// Opens the ZAP that `object` holds, of a kind that hashes names by `normalizer`. The first
    /// handle on such a ZAP must be opened so: it is what fills the index in memory.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with_normalizer(object: Object, normalizer: Normalizer) -> Result<Self> {
        let zap = Self::handle(object)?.with_normalizer(normalizer);
        drop(zap.read().await?);
        Ok(zap)
    }

    fn handle(object: Object) -> Result<Self> {
        let found = object.info().object_type;
        if found.byteswap() != ByteswapKind::Zap {
            return Err(ObjectError::WrongType {
                object: object.id(),
                found,
                expected: "a ZAP",
            });
        }
        let shared = object.dnode.zap.get_or_init(Arc::default).clone();
        Ok(Zap {
            object,
            shared,
            normalizer: None,
        })
    }

    /// Opens by number.
    ///
    /// # Errors
    /// As [`Self::open`]; [`ObjectError::NoSuchObject`].
    pub async fn hold(objset: &Arc<ObjectSet>, id: ObjectId) -> Result<Self> {
        Self::open(objset.hold(id).await?).await
    }

    /// Creates a new object with an empty ZAP.
    ///
    /// # Errors
    /// As [`ObjectSet::allocate`] and [`ObjectSet::claim`].
    pub fn create<'a>(
        objset: &'a Arc<ObjectSet>,
        tx: &'a Tx,
        options: ZapOptions,
    ) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let fat = options.flags != 0;
            let shift = match options.block_shift {
                0 => Fat::DEFAULT_SHIFT,
                shift => shift.into(),
            };
            let new = NewObject {
                object_type: options.object_type,
                data_block_bytes: if fat { 1 << shift.min(24) } else { 0 },
                indirect_block_shift: options.indirect_block_shift,
                bonus_type: options.bonus_type,
                bonus: options.bonus,
                slots: options.slots,
            };
            let object = match options.claim {
                Some(id) => objset.claim(tx, id, new).await?,
                None => objset.allocate(tx, new).await?,
            };
            let zap = Self::handle(object)?;
            let mut form = zap.shared.form.write().await;
            let salt = objset.world().random.next_u64() | 1;
            *form = if fat {
                let flags = ZapFlags::from_bits(options.flags);
                zap.fat()
                    .format(tx, salt, options.normalization, flags)
                    .await?;
                Form::Fat
            } else {
                zap.new_micro(tx, salt, options.normalization).await?
            };
            drop(form);
            Ok(zap)
        })
    }

    async fn new_micro(&self, tx: &Tx, salt: u64, normalization: u64) -> Result<Form> {
        let size = self.object.dnode.block_bytes() as usize;
        let micro = MicroZap::new(size, salt, normalization).of(self.id())?;
        self.put_micro(tx, &micro).await?;
        self.shared.holds(size, self.object.objset().charge());
        Ok(Form::Micro(micro))
    }

    /// Turns an object of type `old_type` that has no data into a ZAP of type
    /// `OTN_ZAP_METADATA`, keeping its bonus (`dmu_object_zapify`); a ZAP already is left alone.
    ///
    /// # Errors
    /// [`ObjectError::WrongType`] when it is of neither type.
    pub async fn zapify(
        objset: &Arc<ObjectSet>,
        tx: &Tx,
        id: ObjectId,
        old_type: ObjectType,
    ) -> Result<Self> {
        let object = objset.hold(id).await?;
        let found = object.info().object_type;
        if found == ObjectType::OTN_ZAP_METADATA {
            return Self::open(object).await;
        }
        if found != old_type {
            return Err(ObjectError::WrongType {
                object: id,
                found,
                expected: "of the type that is to become a ZAP",
            });
        }
        object.set_object_type(tx, ObjectType::OTN_ZAP_METADATA)?;
        let zap = Self::handle(object)?;
        let salt = objset.world().random.next_u64() | 1;
        let mut form = zap.shared.form.write().await;
        *form = zap.new_micro(tx, salt, 0).await?;
        drop(form);
        Ok(zap)
    }

    /// With the function that normalises names which are not ASCII.
    pub fn with_normalizer(self, normalizer: Normalizer) -> Self {
        Zap {
            normalizer: Some(normalizer),
            ..self
        }
    }

    /// The object.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Its number.
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }

    fn fat(&self) -> Fat<'_> {
        Fat {
            object: &self.object,
        }
    }

    /// The lock for reading, with the form known.
    async fn read(&self) -> Result<RwLockReadGuard<'_, Form>> {
        loop {
            let form = self.shared.form.read().await;
            if !matches!(*form, Form::Unknown) {
                return Ok(form);
            }
            drop(form);
            drop(self.write().await?);
        }
    }

    /// The lock for writing, with the form known.
    async fn write(&self) -> Result<RwLockWriteGuard<'_, Form>> {
        let mut form = self.shared.form.write().await;
        if matches!(*form, Form::Unknown) {
            *form = self.load().await?;
        }
        Ok(form)
    }

    async fn load(&self) -> Result<Form> {
        let id = self.id();
        let endian = format::Endian::Little;
        let block = self
            .object
            .block(0)
            .await?
            .ok_or_else(|| damaged(id, "zap_phys_t", "block 0 is a hole"))?;
        match ZapBlockKind::of(&block, endian).of(id)? {
            ZapBlockKind::Header => Ok(Form::Fat),
            ZapBlockKind::Micro => {
                let (salt, flags) = MicroZap::salt_and_normalization(&block, endian).of(id)?;
                let hasher = ZapHasher::new(salt, ZapFlags::NONE);
                let hash_of = |name: &[u8]| match self.normalize(name, flags) {
                    Ok(name) => hasher.name(&name),
                    Err(_) => hasher.name(name),
                };
                let micro = MicroZap::decode(block.to_vec(), endian, hash_of).of(id)?;
                self.shared
                    .holds(block.len(), self.object.objset().charge());
                Ok(Form::Micro(micro))
            }
            kind => Err(damaged(id, "zap_phys_t", format!("block 0 is {kind:?}"))),
        }
    }

    /// A name as it is hashed.
    fn normalize(&self, name: &[u8], flags: u64) -> Result<Vec<u8>> {
        if flags == 0 {
            return Ok(name.to_vec());
        }
        if let Some(normalizer) = &self.normalizer {
            return Ok(normalizer(name));
        }
        if !name.is_ascii() {
            return Err(ObjectError::Unsupported {
                object: self.id(),
                what: "a name outside ASCII in a directory that normalises names",
            });
        }
        Ok(if flags & NORMALIZE_UPPERCASE != 0 {
            name.to_ascii_uppercase()
        } else {
            name.to_vec()
        })
    }

    fn hash(&self, hasher: ZapHasher, name: &[u8], flags: u64) -> Result<u64> {
        if flags == 0 {
            return Ok(hasher.name(name));
        }
        Ok(hasher.name(&self.normalize(name, flags)?))
    }

    fn micro_hash(&self, micro: &MicroZap, name: &[u8]) -> Result<u64> {
        let hasher = ZapHasher::new(micro.salt(), ZapFlags::NONE);
        self.hash(hasher, name, micro.normalization())
    }

    async fn put_micro(&self, tx: &Tx, micro: &MicroZap) -> Result<()> {
        let block = Bytes::copy_from_slice(micro.as_bytes());
        self.object.write(tx, 0, block).await
    }

    /// [`Self::put_micro`] where only the entry at `place` (in bytes) has changed since: usually
    /// the block is dirty in this txg, and need not be copied.
    async fn put_micro_entry(
        &self,
        tx: &Tx,
        micro: &MicroZap,
        place: Option<std::ops::Range<usize>>,
    ) -> Result<()> {
        let block = micro.as_bytes();
        if let Some(place) = place
            && self
                .object
                .dnode
                .change_dirty_block(tx, 0, block.len(), |there| {
                    there[place.clone()].copy_from_slice(&block[place]);
                })
        {
            return Ok(());
        }
        self.put_micro(tx, micro).await
    }

    fn shape_error(&self) -> ObjectError {
        damaged(self.id(), "zap value", "it is not one 64-bit integer")
    }

    fn missing(&self, name: &[u8]) -> ObjectError {
        ObjectError::NoSuchName {
            object: self.id(),
            name: String::from_utf8_lossy(name).into_owned(),
        }
    }

    fn exists(&self, name: &[u8]) -> ObjectError {
        ObjectError::NameExists {
            object: self.id(),
            name: String::from_utf8_lossy(name).into_owned(),
        }
    }

    /// The value of `name`.
    ///
    /// # Errors
    /// Errors of reading; damage.
    pub async fn lookup(&self, name: impl AsRef<[u8]>) -> Result<Option<ZapValue>> {
        let name = name.as_ref();
        let form = self.read().await?;
        self.lookup_in(&form, name).await
    }

    fn lookup_in<'a>(
        &'a self,
        form: &'a Form,
        name: &'a [u8],
    ) -> BoxFuture<'a, Result<Option<ZapValue>>> {
        Box::pin(async move {
            if let Form::Micro(micro) = form {
                let hash = self.micro_hash(micro, name)?;
                let found = micro.lookup(hash, name);
                return Ok(found.map(|entry| ZapValue::from_u64(entry.value)));
            }
            let fat = self.fat();
            let header = fat.header().await?;
            let hash = self.hash(header.hasher(), name, header.normalization)?;
            self.fat_value(hash, ZapKey::Name(name), &Matches::Exactly)
                .await
        })
    }

    async fn fat_value(
        &self,
        hash: u64,
        key: ZapKey<'_>,
        matches: &Matches<'_>,
    ) -> Result<Option<ZapValue>> {
        let fat = self.fat();
        let found = fat.find(hash).await?;
        let Some(entry) = fat.entry(&found, hash, key, matches)? else {
            return Ok(None);
        };
        let value = found.leaf.value(&entry).of(self.id())?;
        Ok(Some(ZapValue::from_format(&value)))
    }

    /// The value of `name` as one 64-bit integer.
    ///
    /// # Errors
    /// As [`Self::lookup`]; when the value is of another shape.
    pub async fn lookup_u64(&self, name: impl AsRef<[u8]>) -> Result<Option<u64>> {
        let name = name.as_ref();
        if let Some(found) = self.try_lookup_u64(name) {
            return found;
        }
        match self.lookup(name).await? {
            None => Ok(None),
            Some(value) => value
                .single_u64()
                .map(Some)
                .ok_or_else(|| self.shape_error()),
        }
    }

    /// Like [`Self::lookup_u64`] when all blocks are in memory and no writer is active: never
    /// awaits.
    pub fn try_lookup_u64(&self, name: impl AsRef<[u8]>) -> Option<Result<Option<u64>>> {
        let name = name.as_ref();
        let form = self.shared.form.try_read().ok()?;
        match &*form {
            Form::Unknown => None,
            Form::Micro(micro) => Some(
                self.micro_hash(micro, name)
                    .map(|hash| micro.lookup(hash, name).map(|entry| entry.value)),
            ),
            Form::Fat => {
                let fat = self.fat();
                let header = match fat.try_header()? {
                    Ok(header) => header,
                    Err(error) => return Some(Err(error)),
                };
                let hash = match self.hash(header.hasher(), name, header.normalization) {
                    Ok(hash) => hash,
                    Err(error) => return Some(Err(error)),
                };
                let found = fat.try_find(hash)?;
                Some(found.and_then(|found| {
                    let key = ZapKey::Name(name);
                    let entry = fat.entry(&found, hash, key, &Matches::Exactly)?;
                    let Some(entry) = entry else {
                        return Ok(None);
                    };
                    let value = found.leaf.value_u64(&entry).of(self.id())?;
                    value.map(Some).ok_or_else(|| self.shape_error())
                }))
            }
        }
    }

    /// Like [`Self::lookup`], where names may be equal after `normalize`; returns the stored name
    /// too. An entry that equals exactly comes first.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub async fn lookup_normalized(
        &self,
        name: impl AsRef<[u8]>,
        normalize: &(dyn Fn(&[u8]) -> Vec<u8> + Send + Sync),
    ) -> Result<Option<ZapEntry>> {
        let name = name.as_ref();
        let wanted = normalize(name);
        let matches = |stored: &[u8]| normalize(stored) == wanted;
        // Names may be hashed by a coarser form than they are compared by (`MT_MATCH_CASE`).
        let hashed = match &self.normalizer {
            Some(normalizer) => normalizer(name),
            None => wanted.clone(),
        };
        let entry = |name: &[u8], value, next| ZapEntry {
            name: Bytes::copy_from_slice(name),
            value,
            normalization_conflict: false,
            next,
        };
        let form = self.read().await?;
        if let Form::Micro(micro) = &*form {
            let hasher = ZapHasher::new(micro.salt(), ZapFlags::NONE);
            let hash = hasher.name(&hashed);
            let found = micro
                .lookup(hash, name)
                .or_else(|| micro.lookup_with(hash, matches));
            return Ok(found.map(|found| {
                let next = ZapCursor::at(found.hash, found.cd.saturating_add(1), hasher.bits());
                entry(found.name, ZapValue::from_u64(found.value), next)
            }));
        }
        let fat = self.fat();
        let hasher = fat.header().await?.hasher();
        let hash = hasher.name(&hashed);
        let found = fat.find(hash).await?;
        let key = ZapKey::Name(name);
        let exact = fat.entry(&found, hash, key, &Matches::Exactly)?;
        let best = match exact {
            Some(entry) => Some(entry),
            None => fat.entry(&found, hash, key, &Matches::By(&matches))?,
        };
        let Some(best) = best else {
            return Ok(None);
        };
        let stored = match found.leaf.key(&best).of(self.id())? {
            format::ZapKeyBuf::Name(name) => name,
            format::ZapKeyBuf::Words(_) => return Ok(None),
        };
        let value = ZapValue::from_format(&found.leaf.value(&best).of(self.id())?);
        let next = ZapCursor::at(hash, best.cd.saturating_add(1), hasher.bits());
        Ok(Some(entry(&stored, value, next)))
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`ObjectError::NameExists`]; [`ObjectError::Format`] when name or value are too long.
    pub async fn add(&self, tx: &Tx, name: impl AsRef<[u8]>, value: ZapValue) -> Result<()> {
        let name = name.as_ref();
        let mut form = self.write().await?;
        if self.lookup_in(&form, name).await?.is_some() {
            return Err(self.exists(name));
        }
        self.insert(&mut form, tx, name, &value).await
    }

    /// Adds an entry that is known not to be there.
    fn insert<'a>(
        &'a self,
        form: &'a mut Form,
        tx: &'a Tx,
        name: &'a [u8],
        value: &'a ZapValue,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            note_length(self.object.objset(), name);
            if let Form::Micro(micro) = form {
                let hash = self.micro_hash(micro, name)?;
                let inserted = match value.single_u64() {
                    None => false,
                    Some(value) => self.insert_micro(tx, micro, hash, name, value).await?,
                };
                if inserted {
                    return Ok(());
                }
                self.upgrade(form, tx).await?;
            }
            let fat = self.fat();
            let header = fat.header().await?;
            let hash = self.hash(header.hasher(), name, header.normalization)?;
            let value = self.checked(value)?;
            fat.insert(tx, hash, ZapKey::Name(name), &value, None).await
        })
    }

    fn checked(&self, value: &ZapValue) -> Result<format::ZapValue> {
        value.to_format().ok_or_else(|| ObjectError::TooBig {
            object: self.id(),
            what: format!(
                "a value of {} bytes in integers of {}",
                value.data.len(),
                value.integer_bytes
            ),
        })
    }

    /// False when the ZAP must become fat for it.
    async fn insert_micro(
        &self,
        tx: &Tx,
        micro: &mut MicroZap,
        hash: u64,
        name: &[u8],
        value: u64,
    ) -> Result<bool> {
        loop {
            match micro.insert(hash, name, value).of(self.id())? {
                MicroInsert::Inserted => {
                    let place = micro.place(hash, name);
                    self.put_micro_entry(tx, micro, place).await?;
                    return Ok(true);
                }
                MicroInsert::NeedsFat => return Ok(false),
                MicroInsert::Full => {
                    let size = micro.as_bytes().len() + 512;
                    // One that OpenZFS made bigger (feature `large_microzap`) is filled, not grown.
                    if size > MicroZap::MAX_BLOCK_BYTES {
                        return Ok(false);
                    }
                    self.object.set_block_size(tx, size as u32, 0).await?;
                    micro.grow(size).of(self.id())?;
                    self.shared.holds(size, self.object.objset().charge());
                }
            }
        }
    }

    /// Makes a fat ZAP of a micro ZAP; hashes and differentiators stay, and so do cursors.
    fn upgrade<'a>(&'a self, form: &'a mut Form, tx: &'a Tx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Form::Micro(micro) = std::mem::take(form) else {
                return Err(damaged(self.id(), "zap", "only a micro ZAP can become fat"));
            };
            let size = 1u32 << Fat::DEFAULT_SHIFT;
            self.object.set_block_size(tx, size, 0).await?;
            let fat = self.fat();
            fat.format(tx, micro.salt(), micro.normalization(), ZapFlags::NONE)
                .await?;
            for entry in micro.iter() {
                let (key, value) = (ZapKey::Name(entry.name), format::ZapValue::one(entry.value));
                fat.insert(tx, entry.hash, key, &value, Some(entry.cd))
                    .await?;
            }
            *form = Form::Fat;
            self.shared.holds_nothing();
            Ok(())
        })
    }

    /// Adds an entry of one 64-bit integer.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub async fn add_u64(&self, tx: &Tx, name: impl AsRef<[u8]>, value: u64) -> Result<()> {
        let name = name.as_ref();
        let mut form = self.write().await?;
        if let Form::Micro(micro) = &mut *form {
            let hash = self.micro_hash(micro, name)?;
            if micro.lookup(hash, name).is_some() {
                return Err(self.exists(name));
            }
            if self.insert_micro(tx, micro, hash, name, value).await? {
                return Ok(());
            }
            self.upgrade(&mut form, tx).await?;
        }
        note_length(self.object.objset(), name);
        // Much bigger than the rest, and not for small directories.
        let is_new = Box::pin(async {
            let fat = self.fat();
            let header = fat.header().await?;
            let hash = self.hash(header.hasher(), name, header.normalization)?;
            let value = format::ZapValue::one(value);
            fat.add(tx, hash, ZapKey::Name(name), &value).await
        });
        match is_new.await? {
            true => Ok(()),
            false => Err(self.exists(name)),
        }
    }

    /// Adds an entry or replaces its value.
    ///
    /// # Errors
    /// As [`Self::add`], but for existing names.
    pub async fn update(&self, tx: &Tx, name: impl AsRef<[u8]>, value: ZapValue) -> Result<()> {
        let name = name.as_ref();
        let mut form = self.write().await?;
        self.update_in(&mut form, tx, name, &value).await
    }

    fn update_in<'a>(
        &'a self,
        form: &'a mut Form,
        tx: &'a Tx,
        name: &'a [u8],
        value: &'a ZapValue,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if let Form::Micro(micro) = form {
                let hash = self.micro_hash(micro, name)?;
                match (value.single_u64(), micro.lookup(hash, name).is_some()) {
                    (Some(value), true) => {
                        micro.update(hash, name, value);
                        let place = micro.place(hash, name);
                        return self.put_micro_entry(tx, micro, place).await;
                    }
                    (_, false) => return self.insert(form, tx, name, value).await,
                    (None, true) => self.upgrade(form, tx).await?,
                }
            }
            let fat = self.fat();
            let header = fat.header().await?;
            let hash = self.hash(header.hasher(), name, header.normalization)?;
            let (key, value) = (ZapKey::Name(name), self.checked(value)?);
            if !fat.update(tx, hash, key, &value).await? {
                fat.insert(tx, hash, key, &value, None).await?;
            }
            Ok(())
        })
    }

    /// Adds or replaces with one 64-bit integer.
    ///
    /// # Errors
    /// As [`Self::update`].
    pub async fn update_u64(&self, tx: &Tx, name: impl AsRef<[u8]>, value: u64) -> Result<()> {
        self.update(tx, name, ZapValue::from_u64(value)).await
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchName`].
    pub async fn remove(&self, tx: &Tx, name: impl AsRef<[u8]>) -> Result<()> {
        let name = name.as_ref();
        let mut form = self.write().await?;
        let is_removed = match &mut *form {
            Form::Micro(micro) => remove_micro(self, tx, micro, name).await?,
            _ => self.remove_in(&mut form, tx, name).await?,
        };
        match is_removed {
            true => Ok(()),
            false => Err(self.missing(name)),
        }
    }

    fn remove_in<'a>(
        &'a self,
        form: &'a mut Form,
        tx: &'a Tx,
        name: &'a [u8],
    ) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            if let Form::Micro(micro) = form {
                return remove_micro(self, tx, micro, name).await;
            }
            let fat = self.fat();
            let header = fat.header().await?;
            let hash = self.hash(header.hasher(), name, header.normalization)?;
            fat.remove(tx, hash, ZapKey::Name(name)).await
        })
    }

    /// Adds to a 64-bit value; an entry that becomes zero is removed (`zap_increment`).
    ///
    /// # Errors
    /// When the value is of another shape; as [`Self::update`].
    pub async fn increment(&self, tx: &Tx, name: impl AsRef<[u8]>, delta: i64) -> Result<()> {
        let name = name.as_ref();
        if delta == 0 {
            return Ok(());
        }
        let mut form = self.write().await?;
        let before = match self.lookup_in(&form, name).await? {
            None => 0,
            Some(value) => value.single_u64().ok_or_else(|| self.shape_error())?,
        };
        let after = before.wrapping_add_signed(delta);
        if after == 0 {
            self.remove_in(&mut form, tx, name).await?;
            return Ok(());
        }
        self.update_in(&mut form, tx, name, &ZapValue::from_u64(after))
            .await
    }

    /// Number of entries.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn count(&self) -> Result<u64> {
        match &*self.read().await? {
            Form::Micro(micro) => Ok(micro.len() as u64),
            _ => Ok(self.fat().header().await?.entries),
        }
    }

    /// Normalisation flags it was made with.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn normalization(&self) -> Result<u64> {
        match &*self.read().await? {
            Form::Micro(micro) => Ok(micro.normalization()),
            _ => Ok(self.fat().header().await?.normalization),
        }
    }

    /// Bits `ZAP_FLAG_*`; a micro ZAP has none.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn flags(&self) -> Result<u64> {
        match &*self.read().await? {
            Form::Fat => Ok(self.fat().header().await?.flags.bits()),
            _ => Ok(0),
        }
    }

    /// Up to `limit` entries from `cursor` on, in order; empty at the end.
    ///
    /// # Errors
    /// Errors of reading; damage.
    pub fn entries<'a>(
        &'a self,
        cursor: ZapCursor,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ZapEntry>>> {
        Box::pin(async move {
            let form = self.read().await?;
            if let Form::Micro(micro) = &*form {
                let bits = ZapHasher::new(micro.salt(), ZapFlags::NONE).bits();
                let Some((hash, cd)) = cursor.place(bits) else {
                    return Ok(Vec::new());
                };
                let flags = micro.normalization();
                let conflicts = |entry: &format::MicroEntry<'_>| {
                    flags != 0
                        && micro
                            .iter_from(entry.hash, 0)
                            .take_while(|other| other.hash == entry.hash)
                            .any(|other| {
                                other.cd != entry.cd
                                    && self.same_name(entry.name, other.name, flags)
                            })
                };
                return Ok(micro
                    .iter_from(hash, cd)
                    .take(limit)
                    .map(|entry| ZapEntry {
                        name: Bytes::copy_from_slice(entry.name),
                        value: ZapValue::from_u64(entry.value),
                        normalization_conflict: conflicts(&entry),
                        next: ZapCursor::at(entry.hash, entry.cd.saturating_add(1), bits),
                    })
                    .collect());
            }
            let fat = self.fat();
            let flags = fat.header().await?.normalization;
            let same_name = |a: &[u8], b: &[u8]| self.same_name(a, b, flags);
            let same_name: &SameName<'_> = &same_name;
            fat.entries(cursor, limit, (flags != 0).then_some(same_name))
                .await
        })
    }

    fn same_name(&self, a: &[u8], b: &[u8], flags: u64) -> bool {
        match (self.normalize(a, flags), self.normalize(b, flags)) {
            (Ok(a), Ok(b)) => a == b,
            _ => a == b,
        }
    }

    /// All entries, in order. For ZAPs known to be small.
    ///
    /// # Errors
    /// As [`Self::entries`].
    pub async fn all(&self) -> Result<Vec<ZapEntry>> {
        self.entries(ZapCursor::START, usize::MAX).await
    }

    /// The name of the first entry whose value is `value` under `mask` (`zap_value_search`).
    ///
    /// # Errors
    /// As [`Self::entries`].
    pub async fn value_search(&self, value: u64, mask: u64) -> Result<Option<Bytes>> {
        const BATCH: usize = 256;
        let mut cursor = ZapCursor::START;
        loop {
            let entries = self.entries(cursor, BATCH).await?;
            let Some(last) = entries.last() else {
                return Ok(None);
            };
            cursor = last.next;
            let found = entries.into_iter().find(|entry| {
                let found = entry.value.as_u64();
                found.is_some_and(|found| found & mask == value & mask)
            });
            if let Some(entry) = found {
                return Ok(Some(entry.name));
            }
        }
    }

    /// Whether it has grown out of the micro form.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn is_fat(&self) -> Result<bool> {
        Ok(matches!(*self.read().await?, Form::Fat))
    }
}

/// Notes that a name is long which is about to be added: before it is there, as the txg that writes
/// it writes the feature's marker as well.
fn note_length(set: &ObjectSet, name: &[u8]) {
    if name.len() > format::ZAP_MAX_NAME_BYTES {
        set.long_names.store(true, Ordering::Relaxed);
    }
}

/// Removes an entry of a micro ZAP, whose lock is held; false where there is none of this name.
async fn remove_micro(zap: &Zap, tx: &Tx, micro: &mut MicroZap, name: &[u8]) -> Result<bool> {
    let hash = zap.micro_hash(micro, name)?;
    let place = micro.place(hash, name);
    if micro.remove(hash, name).is_none() {
        return Ok(false);
    }
    zap.put_micro_entry(tx, micro, place).await?;
    Ok(true)
}
