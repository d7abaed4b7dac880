//! System attributes: attributes packed into bonus and spill block.

use std::sync::Arc;

use bytes::Bytes;
use format::ObjectId;
use pool::Tx;

use crate::error::Result;
use crate::object::Object;
use crate::objset::ObjectSet;

/// Number of an attribute in its object set's registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributeId(pub u16);

/// An attribute that the user of [`Sa`] knows: index into the table given to [`Sa::setup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaAttribute(pub u16);

/// What an attribute is (`sa_attr_reg_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SaRegistration {
    /// Its name in the registry, such as `ZPL_MODE`.
    pub name: &'static str,
    /// Its length in bytes; 0 when variable.
    pub length_bytes: u16,
    /// How its bytes are swapped (`sa_bswap_type_t`): 0 u64 array, 1 u32, 2 u16, 3 u8, 4 ACL.
    pub byteswap: u8,
}

/// The attributes of one object set: registry and layouts. Cheap to clone via `Arc`.
pub struct Sa {}

impl Sa {
    /// Opens the registry and layouts under the SA master object (0: the object set has none, all bonuses are old znodes),
    /// for a user who knows `table`. Attributes missing from the registry are added when first written.
    pub async fn setup(
        objset: &Arc<ObjectSet>,
        master: ObjectId,
        table: &'static [SaRegistration],
    ) -> Result<Arc<Self>> {
        let _ = (objset, master, table);
        todo!()
    }
    /// Creates the SA master object of a new filesystem (type SA_MASTER_NODE), empty.
    pub async fn create_master(objset: &Arc<ObjectSet>, tx: &Tx) -> Result<ObjectId> {
        let _ = (objset, tx);
        todo!()
    }
    /// One attribute's bytes (in our byte order), `None` when the object does not have it.
    pub async fn get(&self, object: &Object, attribute: SaAttribute) -> Result<Option<Bytes>> {
        let _ = (object, attribute);
        todo!()
    }
    /// Like [`Self::get`] when the attribute is in the bonus; outer `None` when the spill block must be read.
    pub fn try_get(
        &self,
        object: &Object,
        attribute: SaAttribute,
    ) -> Option<Result<Option<Bytes>>> {
        let _ = (object, attribute);
        todo!()
    }
    /// Several attributes at once.
    pub async fn get_many(
        &self,
        object: &Object,
        attributes: &[SaAttribute],
    ) -> Result<Vec<Option<Bytes>>> {
        let _ = (object, attributes);
        todo!()
    }
    /// All attributes of an object that the table knows.
    pub async fn get_all(&self, object: &Object) -> Result<Vec<(SaAttribute, Bytes)>> {
        let _ = object;
        todo!()
    }
    /// Sets attributes: in place where present with the same length, else by a new layout.
    pub async fn set(
        &self,
        object: &Object,
        tx: &Tx,
        attributes: &[(SaAttribute, Bytes)],
    ) -> Result<()> {
        let _ = (object, tx, attributes);
        todo!()
    }
    /// Replaces all attributes, in this order (`sa_replace_all_by_template`): for new objects.
    pub async fn replace_all(
        &self,
        object: &Object,
        tx: &Tx,
        attributes: &[(SaAttribute, Bytes)],
    ) -> Result<()> {
        let _ = (object, tx, attributes);
        todo!()
    }
    /// Removes an attribute.
    pub async fn remove(&self, object: &Object, tx: &Tx, attribute: SaAttribute) -> Result<()> {
        let _ = (object, tx, attribute);
        todo!()
    }
    /// The attribute's number in this object set, if registered.
    pub fn attribute_id(&self, attribute: SaAttribute) -> Option<AttributeId> {
        let _ = attribute;
        todo!()
    }
}
