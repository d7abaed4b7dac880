//! An open dataset: the handle that filesystems and volumes work on.

use std::sync::Arc;

use format::{Guid, ObjectId};
use object::ObjectSet;
use pool::Tx;

use crate::zil::Zil;
use crate::{DatasetError, DatasetKind, DirtyEstimate, DslPool, PropertySetting};

/// Properties that change how an open dataset behaves, resolved. Numbers are those stored (see
/// [`crate::props`] for their words).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatasetSettings {
    /// `readonly`, or a snapshot, or the pool is open read-only.
    pub read_only: bool,
    /// `recordsize` in bytes.
    pub record_bytes: u32,
    /// `sync`.
    pub sync: SyncMode,
    /// `logbias=throughput`.
    pub log_throughput: bool,
    /// `atime`.
    pub atime: bool,
    /// `relatime`.
    pub relatime: bool,
    /// `xattr`: 0 off, 1 directory, 2 system attribute.
    pub xattr: u64,
    /// `acltype`: 0 off, 1 POSIX, 2 NFSv4.
    pub acltype: u64,
    /// `aclmode`.
    pub aclmode: u64,
    /// `aclinherit`.
    pub aclinherit: u64,
    /// `dnodesize`: 0 legacy, 1 auto, else bytes.
    pub dnodesize: u64,
    /// `longname`.
    pub longname: bool,
    /// `devices`.
    pub devices: bool,
    /// `exec`.
    pub exec: bool,
    /// `setuid`.
    pub setuid: bool,
    /// `snapdir`: 0 hidden, 1 visible, 2 disabled.
    pub snapdir: u64,
    /// `canmount`: 0 off, 1 on, 2 noauto.
    pub canmount: u64,
}

/// Property `sync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SyncMode {
    /// What is asked to be synchronous is.
    #[default]
    Standard,
    /// Everything is.
    Always,
    /// Nothing is.
    Disabled,
}

/// An open dataset. Each handle is a hold: a held dataset cannot be destroyed, rolled back or
/// renamed away. Cheap to clone (another hold).
pub struct Dataset {}

impl Dataset {
    /// Full name now (renames follow).
    pub fn name(&self) -> String {
        todo!()
    }
    /// Its pool's datasets.
    pub fn dsl(&self) -> &Arc<DslPool> {
        todo!()
    }
    /// Object number in the MOS.
    pub fn object(&self) -> ObjectId {
        todo!()
    }
    /// Identity.
    pub fn guid(&self) -> Guid {
        todo!()
    }
    /// Identity of the mounted filesystem: 56 bits (`ds_fsid_guid`).
    pub fn fsid_guid(&self) -> u64 {
        todo!()
    }
    /// Kind; a snapshot of a volume is a snapshot.
    pub fn kind(&self) -> DatasetKind {
        todo!()
    }
    /// Whether it is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        todo!()
    }
    /// Whether changes are refused, by its nature, its properties or the pool.
    pub fn is_read_only(&self) -> bool {
        self.settings().read_only
    }
    /// The properties that matter to whoever works on it.
    pub fn settings(&self) -> DatasetSettings {
        todo!()
    }
    /// Changes each time the settings do.
    pub fn watch_settings(&self) -> tokio::sync::watch::Receiver<DatasetSettings> {
        todo!()
    }
    /// One property.
    pub async fn property(&self, name: &str) -> Result<PropertySetting, DatasetError> {
        let _ = name;
        todo!()
    }
    /// Its objects.
    pub fn objset(&self) -> &Arc<ObjectSet> {
        todo!()
    }
    /// Its intent log; `None` for snapshots and pools open read-only.
    pub fn log(&self) -> Option<&Arc<Zil>> {
        todo!()
    }
    /// Joins the open txg to change the dataset.
    ///
    /// # Errors
    /// [`DatasetError::NoSpace`], [`DatasetError::QuotaExceeded`], [`DatasetError::ReadOnly`].
    pub async fn assign(&self, estimate: DirtyEstimate) -> Result<Tx, DatasetError> {
        let _ = estimate;
        todo!()
    }
    /// Makes everything done to `object` (zero: to anything) durable, as `sync` says.
    pub async fn commit(&self, object: ObjectId) -> Result<(), DatasetError> {
        let _ = object;
        todo!()
    }
    /// Space referenced, and space still available to it, both in bytes (statfs).
    pub fn space(&self) -> (u64, u64) {
        todo!()
    }
}

impl Clone for Dataset {
    fn clone(&self) -> Self {
        todo!()
    }
}
