//! What a stream or package says of itself in its first record, and the memory that this may take.
//!
//! The list of a single stream is short: a key, snapshots of redactions, where it goes on. That of
//! a package has a few hundred bytes for each dataset and snapshot, and is in memory while the
//! package is received; in a hostile one tiny pairs take several times what they are in the stream.
//! So all packages that are read at the same time, whoever sends them, share
//! [`PACKAGES_BYTES_MAX`].

use std::ops::Deref;

use format::NvList;
use format::stream::HeaderKind;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::StreamError;

/// What the list of a single stream may take, in bytes. The lists of redaction snapshots are the
/// longest: two, each of which fits a block of 128 KiB where it is stored.
const STREAM_BYTES_MAX: usize = 4 << 20;
/// What the lists of all packages that are read may take, in bytes: as they come, and decoded.
/// Enough for some 700,000 snapshots.
const PACKAGES_BYTES_MAX: usize = 512 << 20;
/// Room is taken in steps of this, in bytes.
const STEP_BYTES: usize = 256 << 10;

static PACKAGES: Semaphore = Semaphore::const_new(PACKAGES_BYTES_MAX);

/// The memory that a description takes; given back when this goes.
#[derive(Debug)]
pub struct Room {
    /// What may be taken yet, in bytes.
    left: usize,
    /// Of a package: its part of what all share. It grows.
    shared: Option<SemaphorePermit<'static>>,
}

impl Room {
    /// For what begins with a header of this kind.
    pub(crate) fn of(kind: HeaderKind) -> Self {
        match kind {
            HeaderKind::Compound => Self {
                left: 0,
                shared: PACKAGES.try_acquire_many(0).ok(),
            },
            _ => Self {
                left: STREAM_BYTES_MAX,
                shared: None,
            },
        }
    }

    /// Takes some for a part of the list as it comes.
    pub(crate) fn payload(&mut self, bytes: usize) -> Result<(), StreamError> {
        match self.take(bytes) {
            true => Ok(()),
            false => Err(self.refusal()),
        }
    }

    /// Takes some. Nobody waits: two that wait for each other's would for good.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        if self.left < bytes {
            let Some(shared) = &mut self.shared else {
                return false;
            };
            let step = (bytes - self.left).next_multiple_of(STEP_BYTES);
            let Some(more) =
                (u32::try_from(step).ok()).and_then(|step| PACKAGES.try_acquire_many(step).ok())
            else {
                return false;
            };
            shared.merge(more);
            self.left += step;
        }
        self.left -= bytes;
        true
    }

    /// Why there is no more.
    pub(crate) fn refusal(&self) -> StreamError {
        match self.shared {
            Some(_) => StreamError::Unsupported {
                what: "a package of so many snapshots, beside others that are received,",
                advice: "receive fewer packages at a time, or send fewer snapshots in one",
            },
            None => StreamError::bad("a description that is too long"),
        }
    }
}

/// The list in the first record of a stream or package.
#[derive(Debug)]
pub struct Description {
    list: NvList,
    room: Room,
}

impl Description {
    pub(crate) fn new(list: NvList, room: Room) -> Self {
        Self { list, room }
    }

    /// The memory that it takes. It is to be held as long as what was made of the list.
    pub fn into_room(self) -> Room {
        self.room
    }
}

impl Deref for Description {
    type Target = NvList;
    fn deref(&self) -> &NvList {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One after the other, as they share what all packages have.
    #[test]
    fn packages_share_what_they_may_take() {
        const HALF: usize = PACKAGES_BYTES_MAX / 2;
        let mut one = Room::of(HeaderKind::Compound);
        let mut other = Room::of(HeaderKind::Compound);
        assert!(one.take(1) && one.take(HALF - 1) && other.take(HALF));
        assert!(!one.take(1) && !other.take(1));
        // Single streams are counted for themselves.
        let mut single = Room::of(HeaderKind::Snapshot);
        assert!(single.take(STREAM_BYTES_MAX) && !single.take(1));
        drop(other);
        assert!(one.take(HALF));
        assert!(matches!(one.refusal(), StreamError::Unsupported { .. }));
        let description = Description::new(NvList::new(), one);
        let room = description.into_room();
        assert!(!Room::of(HeaderKind::Compound).take(1));
        drop(room);
        assert!(Room::of(HeaderKind::Compound).take(PACKAGES_BYTES_MAX));
    }
}
