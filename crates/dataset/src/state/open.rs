//! An open dataset, as all handles on it share it.

use std::sync::Arc;

use object::ObjectSet;
use tokio::sync::watch;
use zil::{SyncMode, Zil};

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
    /// `direct`: 0 disabled, 1 standard, 2 always.
    pub direct: u64,
}

/// What all handles on an open dataset share.
pub(crate) struct OpenState {
    pub objset: Arc<ObjectSet>,
    pub log: Option<Arc<Zil>>,
    pub settings: watch::Sender<DatasetSettings>,
}

/// How far a receive came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResumePoint {
    /// The object that the next record is about.
    pub object: u64,
    /// And where in it, in bytes.
    pub offset_bytes: u64,
    /// Bytes of the stream that were received.
    pub stream_bytes: u64,
}
