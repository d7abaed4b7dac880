//! The intent log (ZIL): what makes synchronous writes durable before their txg is.

use bytes::Bytes;
use device::BoxFuture;
use format::{Endian, ObjectId, Txg};
use pool::Tx;

use crate::DatasetError;

/// A record for the intent log.
#[derive(Debug, Clone)]
pub struct LogRecord {
    /// Kind (`TX_*`, include/sys/zil.h), with [`LogRecord::CASE_INSENSITIVE`] where asked.
    pub kind: u64,
    /// The object that it is about: what [`Zil::commit`] selects by.
    pub object: ObjectId,
    /// Must be in the log with the next commit of any object (all changes to names are). Otherwise
    /// only commits of its object or of everything write it.
    pub sync: bool,
    /// What it says.
    pub body: LogBody,
}

/// What a log record says.
#[derive(Debug, Clone)]
pub enum LogBody {
    /// The record as it is stored, after its common header (`lr_t`, 32 bytes), little-endian.
    Encoded(Bytes),
    /// A write (`TX_WRITE`): the data is read from the object when the record is written to the log.
    Write {
        /// First byte.
        offset_bytes: u64,
        /// Length.
        length_bytes: u64,
    },
}

impl LogRecord {
    /// Bit of `kind`: names were compared without regard to case (`TX_CI`).
    pub const CASE_INSENSITIVE: u64 = 1 << 63;

    /// A change of names or of anything that must keep its order: in the log with the next commit.
    pub fn named(kind: u64, object: ObjectId, body: impl Into<Bytes>) -> Self {
        LogRecord {
            kind,
            object,
            sync: true,
            body: LogBody::Encoded(body.into()),
        }
    }

    /// A change of one object only.
    pub fn of_object(kind: u64, object: ObjectId, sync: bool, body: impl Into<Bytes>) -> Self {
        LogRecord {
            kind,
            object,
            sync,
            body: LogBody::Encoded(body.into()),
        }
    }

    /// A write of data.
    pub fn write(object: ObjectId, sync: bool, offset_bytes: u64, length_bytes: u64) -> Self {
        LogRecord {
            kind: 9,
            object,
            sync,
            body: LogBody::Write {
                offset_bytes,
                length_bytes,
            },
        }
    }
}

/// A record to be replayed.
#[derive(Debug, Clone)]
pub struct ReplayRecord {
    /// Kind, without [`LogRecord::CASE_INSENSITIVE`].
    pub kind: u64,
    /// Whether names are compared without regard to case.
    pub case_insensitive: bool,
    /// Txg of the change.
    pub txg: Txg,
    /// Number of the record.
    pub sequence: u64,
    /// Byte order of `body`.
    pub endian: Endian,
    /// The record after its common header.
    pub body: Bytes,
    /// The data of a `TX_WRITE` that is elsewhere on disk (`lr_blkptr`).
    pub data: Option<Bytes>,
}

/// Error of a [`ReplayTarget`].
pub type ReplayError = Box<dyn std::error::Error + Send + Sync>;

/// Does again what a log record says: a filesystem or a volume. It works as for a user's request,
/// up to calling [`Zil::record`] in its transaction, which then notes what was replayed instead of
/// logging it.
pub trait ReplayTarget: Send + Sync {
    /// Does what the record says.
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>>;
}

/// The intent log of one open dataset.
pub struct Zil {}

impl Zil {
    /// Writes the log's head with the dataset, in the first pass of a txg.
    pub(crate) fn sync(&self, ctx: &object::SyncContext) {
        let _ = ctx;
    }
    /// Forgets records of txgs that are on disk.
    pub(crate) fn clean(&self, txg: Txg) {
        let _ = txg;
    }
    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        true
    }
    /// Adds a record about a change made in `tx`.
    pub fn record(&self, tx: &Tx, record: LogRecord) {
        let _ = (tx, record);
        todo!()
    }
    /// Makes the records of `object` (zero: of all) durable, and everything recorded before them
    /// that is not bound to another object.
    pub async fn commit(&self, object: ObjectId) -> Result<(), DatasetError> {
        let _ = object;
        todo!()
    }
    /// Whether a log from before a crash waits to be replayed.
    pub fn needs_replay(&self) -> bool {
        todo!()
    }
    /// Replays such a log and lets go of it. Returns how many records were replayed.
    pub async fn replay(&self, target: &dyn ReplayTarget) -> Result<u64, DatasetError> {
        let _ = target;
        todo!()
    }
}
