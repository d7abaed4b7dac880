//! Filling a new dataset with an empty volume (`zvol_create_cb`, module/zfs/zvol.c).

use std::sync::Arc;

use dataset::{ObjsetInit, PropertyValue};
use device::BoxFuture;
use format::{ObjectId, ObjectType, ObjsetKind};
use object::{NewObject, ObjectSet, Zap, ZapOptions};
use zio::Tx;

/// The object that holds a volume's data (`ZVOL_OBJ`).
pub(crate) const DATA: ObjectId = ObjectId::VOLUME_DATA;
/// The ZAP that holds its size (`ZVOL_ZAP_OBJ`).
pub(crate) const PROPERTIES: ObjectId = ObjectId::VOLUME_PROPERTIES;
/// The entry with the size in bytes.
pub(crate) const SIZE: &str = "size";

/// Makes an empty volume in a new dataset.
#[derive(Debug, Clone, Copy)]
pub struct ZvolInit {
    size_bytes: u64,
    block_bytes: u32,
}

/// Properties that live in the object set.
const OWN_PROPERTIES: &[&str] = &["volsize", "volblocksize"];

impl ZvolInit {
    /// A volume of `size_bytes` (`volsize`, a multiple of the block size) in blocks of
    /// `block_bytes` (`volblocksize`, a power of two from 512 bytes to 16 MiB).
    pub fn new(size_bytes: u64, block_bytes: u32) -> Self {
        Self {
            size_bytes,
            block_bytes,
        }
    }

    /// Whether such a volume can be (`zvol_check_volsize`, `zvol_check_volblocksize`).
    pub fn is_valid(&self) -> bool {
        self.block_bytes.is_power_of_two()
            && (512..=16 << 20).contains(&self.block_bytes)
            && self.size_bytes > 0
            && self.size_bytes.is_multiple_of(u64::from(self.block_bytes))
            && i64::try_from(self.size_bytes).is_ok()
    }
}

impl ObjsetInit for ZvolInit {
    fn kind(&self) -> ObjsetKind {
        ObjsetKind::Volume
    }

    fn init<'a>(
        &'a self,
        objset: &'a Arc<ObjectSet>,
        _properties: &'a [(String, PropertyValue)],
        tx: &'a Tx,
    ) -> BoxFuture<'a, Result<(), Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async move {
            if !self.is_valid() {
                return Err(crate::VolumeError::BadSize {
                    name: String::new(),
                    size_bytes: self.size_bytes,
                    block_bytes: u64::from(self.block_bytes),
                }
                .into());
            }
            let data = NewObject::new(ObjectType::ZVOL).with_block_bytes(self.block_bytes);
            objset.claim(tx, DATA, data).await?;
            let mut options = ZapOptions::new(ObjectType::ZVOL_PROP);
            options.claim = Some(PROPERTIES);
            let properties = Zap::create(objset, tx, options).await?;
            properties.update_u64(tx, SIZE, self.size_bytes).await?;
            Ok(())
        })
    }

    fn own_properties(&self) -> &'static [&'static str] {
        OWN_PROPERTIES
    }
}
