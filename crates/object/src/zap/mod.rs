//! ZAP: names (or arrays of integers) to arrays of integers.

use bytes::Bytes;
use format::{ObjectId, ObjectType};
use pool::Tx;
use std::sync::Arc;

use crate::error::Result;
use crate::object::Object;
use crate::objset::ObjectSet;

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
        let _ = object_type;
        todo!()
    }
}

/// The value of an entry: integers of 1, 2, 4 or 8 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapValue {
    /// Size of one integer in bytes.
    pub integer_bytes: u8,
    /// The integers, in our byte order (little-endian).
    pub data: Bytes,
}

impl ZapValue {
    /// One 64-bit integer.
    pub fn from_u64(value: u64) -> Self {
        let _ = value;
        todo!()
    }
    /// 64-bit integers.
    pub fn from_u64s(values: &[u64]) -> Self {
        let _ = values;
        todo!()
    }
    /// Bytes (a string's must end in a zero byte to be read by OpenZFS).
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        let _ = bytes.into();
        todo!()
    }
    /// A string with its ending zero byte.
    pub fn from_str_z(text: &str) -> Self {
        let _ = text;
        todo!()
    }
    /// The first integer, when integers have eight bytes.
    pub fn as_u64(&self) -> Option<u64> {
        todo!()
    }
    /// All integers, widened.
    pub fn to_u64s(&self) -> Vec<u64> {
        todo!()
    }
    /// The text before the first zero byte, when integers are bytes.
    pub fn as_str(&self) -> Option<&str> {
        todo!()
    }
    /// How many integers.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
}

/// One entry, as met by iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZapEntry {
    /// The name without ending zero; for keys of integers their bytes, little-endian.
    pub name: Bytes,
    /// The value.
    pub value: ZapValue,
    /// Whether another entry has the same normalised name.
    pub normalization_conflict: bool,
    /// Where to go on after this entry: a stable cookie.
    pub next: ZapCursor,
}

/// A place in a ZAP's order (hash, then collision differentiator); stable across changes and
/// restarts (`zap_cursor_serialize`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct ZapCursor(u64);

impl ZapCursor {
    /// The beginning.
    pub const START: Self = Self(0);
    /// Beyond the last entry.
    pub const END: Self = Self(u64::MAX);
    /// From a cookie.
    pub const fn from_cookie(cookie: u64) -> Self {
        Self(cookie)
    }
    /// As a cookie.
    pub const fn cookie(self) -> u64 {
        self.0
    }
}

/// A ZAP. Cheap to clone; all handles on one object share its lock.
#[derive(Clone)]
pub struct Zap {}

impl Zap {
    /// Hash all 64 bits (`ZAP_FLAG_HASH64`).
    pub const FLAG_HASH64: u64 = 1;
    /// Keys are arrays of 64-bit integers (`ZAP_FLAG_UINT64_KEY`).
    pub const FLAG_UINT64_KEY: u64 = 2;
    /// The first integer of the key is its hash (`ZAP_FLAG_PRE_HASHED_KEY`).
    pub const FLAG_PRE_HASHED_KEY: u64 = 4;

    /// Opens the ZAP that `object` holds.
    pub async fn open(object: Object) -> Result<Self> {
        let _ = object;
        todo!()
    }
    /// Opens by number.
    pub async fn hold(objset: &Arc<ObjectSet>, id: ObjectId) -> Result<Self> {
        let _ = (objset, id);
        todo!()
    }
    /// Creates a new object with an empty ZAP.
    pub async fn create(objset: &Arc<ObjectSet>, tx: &Tx, options: ZapOptions) -> Result<Self> {
        let _ = (objset, tx, options);
        todo!()
    }
    /// Turns an object of type `old_type` that has no data into a ZAP of type
    /// `OTN_ZAP_METADATA`, keeping its bonus (`dmu_object_zapify`); a ZAP already is left alone.
    pub async fn zapify(objset: &Arc<ObjectSet>, tx: &Tx, id: ObjectId, old_type: ObjectType) -> Result<Self> { let _ = (objset, tx, id, old_type); todo!() }
    /// The object.
    pub fn object(&self) -> &Object {
        todo!()
    }
    /// Its number.
    pub fn id(&self) -> ObjectId {
        todo!()
    }
    /// The value of `name`.
    pub async fn lookup(&self, name: impl AsRef<[u8]>) -> Result<Option<ZapValue>> {
        let _ = name.as_ref();
        todo!()
    }
    /// The value of `name` as one 64-bit integer.
    pub async fn lookup_u64(&self, name: impl AsRef<[u8]>) -> Result<Option<u64>> {
        let _ = name.as_ref();
        todo!()
    }
    /// Like [`Self::lookup_u64`] when all blocks are in memory and no writer is active: never awaits.
    pub fn try_lookup_u64(&self, name: impl AsRef<[u8]>) -> Option<Result<Option<u64>>> {
        let _ = name.as_ref();
        todo!()
    }
    /// Like [`Self::lookup`], where names may be equal after `normalize`; returns the stored name too.
    pub async fn lookup_normalized(
        &self,
        name: impl AsRef<[u8]>,
        normalize: &(dyn Fn(&[u8]) -> Vec<u8> + Send + Sync),
    ) -> Result<Option<ZapEntry>> {
        let _ = (name.as_ref(), normalize);
        todo!()
    }
    /// Adds an entry.
    ///
    /// # Errors
    /// [`crate::ObjectError::NameExists`].
    pub async fn add(&self, tx: &Tx, name: impl AsRef<[u8]>, value: ZapValue) -> Result<()> {
        let _ = (tx, name.as_ref(), value);
        todo!()
    }
    /// Adds an entry of one 64-bit integer.
    pub async fn add_u64(&self, tx: &Tx, name: impl AsRef<[u8]>, value: u64) -> Result<()> {
        let _ = (tx, name.as_ref(), value);
        todo!()
    }
    /// Adds an entry or replaces its value.
    pub async fn update(&self, tx: &Tx, name: impl AsRef<[u8]>, value: ZapValue) -> Result<()> {
        let _ = (tx, name.as_ref(), value);
        todo!()
    }
    /// Adds or replaces with one 64-bit integer.
    pub async fn update_u64(&self, tx: &Tx, name: impl AsRef<[u8]>, value: u64) -> Result<()> {
        let _ = (tx, name.as_ref(), value);
        todo!()
    }
    /// Removes an entry.
    ///
    /// # Errors
    /// [`crate::ObjectError::NoSuchName`].
    pub async fn remove(&self, tx: &Tx, name: impl AsRef<[u8]>) -> Result<()> {
        let _ = (tx, name.as_ref());
        todo!()
    }
    /// Adds to a 64-bit value; an entry that becomes zero is removed (`zap_increment`).
    pub async fn increment(&self, tx: &Tx, name: impl AsRef<[u8]>, delta: i64) -> Result<()> {
        let _ = (tx, name.as_ref(), delta);
        todo!()
    }
    /// An entry named by the hexadecimal digits of `key` (`zap_lookup_int_key`).
    pub async fn lookup_int(&self, key: u64) -> Result<Option<u64>> {
        let _ = key;
        todo!()
    }
    /// Adds an entry named by the hexadecimal digits of `key` (`zap_add_int_key`).
    pub async fn add_int(&self, tx: &Tx, key: u64, value: u64) -> Result<()> {
        let _ = (tx, key, value);
        todo!()
    }
    /// Sets an entry named by the hexadecimal digits of `key` (`zap_update_int_key`).
    pub async fn update_int(&self, tx: &Tx, key: u64, value: u64) -> Result<()> {
        let _ = (tx, key, value);
        todo!()
    }
    /// Removes an entry named by the hexadecimal digits of `key` (`zap_remove_int`).
    pub async fn remove_int(&self, tx: &Tx, key: u64) -> Result<()> {
        let _ = (tx, key);
        todo!()
    }
    /// The value of a key of integers.
    pub async fn lookup_u64_key(&self, key: &[u64]) -> Result<Option<ZapValue>> {
        let _ = key;
        todo!()
    }
    /// Adds or replaces the value of a key of integers.
    pub async fn update_u64_key(&self, tx: &Tx, key: &[u64], value: ZapValue) -> Result<()> {
        let _ = (tx, key, value);
        todo!()
    }
    /// Removes a key of integers.
    pub async fn remove_u64_key(&self, tx: &Tx, key: &[u64]) -> Result<()> {
        let _ = (tx, key);
        todo!()
    }
    /// Number of entries.
    pub async fn count(&self) -> Result<u64> {
        todo!()
    }
    /// Up to `limit` entries from `cursor` on, in order; empty at the end.
    pub async fn entries(&self, cursor: ZapCursor, limit: usize) -> Result<Vec<ZapEntry>> {
        let _ = (cursor, limit);
        todo!()
    }
    /// All entries, in order. For ZAPs known to be small.
    pub async fn all(&self) -> Result<Vec<ZapEntry>> {
        todo!()
    }
    /// The name of the first entry whose value is `value` under `mask` (`zap_value_search`).
    pub async fn value_search(&self, value: u64, mask: u64) -> Result<Option<Bytes>> {
        let _ = (value, mask);
        todo!()
    }
    /// Whether it has grown out of the micro form.
    pub async fn is_fat(&self) -> Result<bool> {
        todo!()
    }
}
