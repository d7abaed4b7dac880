//! Records as filesystems and volumes hand them in.

use bytes::Bytes;
use format::{LogBody, LogKind, ObjectId};

/// A record for the intent log.
#[derive(Debug, Clone)]
pub struct LogRecord {
    /// What kind of change it is about.
    pub kind: LogKind,
    /// The object that it is about: what [`Zil::commit`](crate::Zil::commit) selects by.
    pub object: ObjectId,
    /// Must be in the log with the next commit of any object (all changes of names are). Otherwise
    /// only commits of its object or of everything write it.
    pub sync: bool,
    /// With `sync`: what is recorded of its object so far goes into the log before it, as a renamed
    /// file's data goes before its name (`zil_itx_assign`).
    pub pulls: bool,
    /// What it says.
    pub content: LogContent,
}

/// What a log record says.
#[derive(Debug, Clone)]
pub enum LogContent {
    /// The record as it is stored, after its common header ([`format::LogHeader`]), little-endian:
    /// what [`LogBody::encode`] gives.
    Encoded(Bytes),
    /// A write ([`LogKind::Write`]): [`Zil::record`](crate::Zil::record) takes the data from the
    /// object, so record it after the object was written, in the same transaction, with the range
    /// still locked.
    Write {
        /// First byte.
        offset_bytes: u64,
        /// Length.
        length_bytes: u64,
    },
    /// Something that no record can say: commits that would write it wait for its transaction
    /// group instead.
    Unlogged,
}

impl LogRecord {
    /// A change of names or of anything that must keep its order: in the log with the next commit.
    /// What no record can say is [`Self::unlogged`].
    pub fn named(object: ObjectId, body: &LogBody<'_>) -> Self {
        Self::of_object(object, true, body)
    }

    /// The same, after all that is recorded of its object so far.
    pub fn pulling(object: ObjectId, body: &LogBody<'_>) -> Self {
        LogRecord {
            pulls: true,
            ..Self::named(object, body)
        }
    }

    /// A change of an object that cannot be logged.
    pub fn unlogged(object: ObjectId, sync: bool) -> Self {
        LogRecord {
            kind: LogKind::Commit,
            object,
            sync,
            pulls: false,
            content: LogContent::Unlogged,
        }
    }

    /// A change of one object only. What no record can say is [`Self::unlogged`].
    pub fn of_object(object: ObjectId, sync: bool, body: &LogBody<'_>) -> Self {
        let Ok(encoded) = body.encode() else {
            return Self::unlogged(object, sync);
        };
        LogRecord {
            kind: body.kind(),
            content: LogContent::Encoded(encoded.into()),
            ..Self::unlogged(object, sync)
        }
    }

    /// A write of data.
    pub fn write(object: ObjectId, sync: bool, offset_bytes: u64, length_bytes: u64) -> Self {
        LogRecord {
            kind: LogKind::Write,
            content: LogContent::Write {
                offset_bytes,
                length_bytes,
            },
            ..Self::unlogged(object, sync)
        }
    }
}
