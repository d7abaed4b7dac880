//! File handles: what clients know files by, across restarts of the server and renames.
//!
//! ```text
//!   0  version: u8 = 1   kind: u8   zeros: 2
//!   4  dataset: u64      what the filesystem is known by: its guid, or one of that and its pool's
//!  12  object: u64       object number, or which directory of `.zfs`, or above the shares (kind 3)
//!  20  generation: u64   the file's; zero for directories of `.zfs`
//!  28  snapshot: u64     guid of the snapshot that the file is in (kind 2 only)
//! ```
//!
//! A handle says where a file is and gives no right to it: each request is checked against the
//! share's policy and the file's permissions. Object numbers are used again, generations differ
//! then.

use bytes::Bytes;

use crate::xdr::{Reader, Result, Writer};

/// Longest handle of version 3 (`NFS3_FHSIZE`, RFC 1813 section 2.4).
pub const HANDLE_BYTES_MAX: u32 = 64;
const VERSION: u8 = 1;
const KIND_FILE: u8 = 0;
const KIND_CONTROL: u8 = 1;
const KIND_SNAPSHOT: u8 = 2;
const KIND_EXPORT: u8 = 3;

/// What a handle leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// A file of the filesystem as it is now.
    File {
        /// Object number.
        ino: u64,
        /// Its generation.
        generation: u64,
    },
    /// A directory of `.zfs`, by its number ([`access::ControlNode`]).
    Control {
        /// `.zfs` 0, `.zfs/snapshot` 1, `.zfs/shares` 2.
        node: u64,
    },
    /// A file in a snapshot.
    Snapshot {
        /// Guid of the snapshot.
        snapshot: u64,
        /// Object number.
        ino: u64,
        /// Its generation.
        generation: u64,
    },
    /// A directory above the shares, of no filesystem: only version 4 has them.
    Export {
        /// Its number, which its path gives.
        node: u64,
    },
}

/// A file handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    /// What the filesystem is known by ([`crate::ShareSpec::identity`]).
    pub dataset: u64,
    /// Where in it.
    pub place: Place,
}

impl Handle {
    /// As clients keep it.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, ino, generation) = match self.place {
            Place::File { ino, generation } => (KIND_FILE, ino, generation),
            Place::Control { node } => (KIND_CONTROL, node, 0),
            Place::Export { node } => (KIND_EXPORT, node, 0),
            Place::Snapshot {
                ino, generation, ..
            } => (KIND_SNAPSHOT, ino, generation),
        };
        let mut bytes = Vec::with_capacity(36);
        bytes.extend([VERSION, kind, 0, 0]);
        for word in [self.dataset, ino, generation] {
            bytes.extend(word.to_be_bytes());
        }
        if let Place::Snapshot { snapshot, .. } = self.place {
            bytes.extend(snapshot.to_be_bytes());
        }
        bytes
    }

    /// `None` if this is no handle of ours.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[version, kind, 0, 0], mut rest) = bytes.split_first_chunk::<4>()? else {
            return None;
        };
        if version != VERSION {
            return None;
        }
        let mut word = || {
            let (word, after) = rest.split_first_chunk::<8>()?;
            rest = after;
            Some(u64::from_be_bytes(*word))
        };
        let (dataset, ino, generation) = (word()?, word()?, word()?);
        let place = match kind {
            KIND_FILE => Place::File { ino, generation },
            KIND_CONTROL if ino <= 2 && generation == 0 => Place::Control { node: ino },
            KIND_EXPORT if dataset == 0 && generation == 0 => Place::Export { node: ino },
            KIND_SNAPSHOT => Place::Snapshot {
                snapshot: word()?,
                ino,
                generation,
            },
            _ => return None,
        };
        rest.is_empty().then_some(Self { dataset, place })
    }

    /// Takes a handle off a request; `Ok(None)` if it is none of ours.
    pub fn read(reader: &mut Reader) -> Result<Option<Self>> {
        let bytes: Bytes = reader.opaque(HANDLE_BYTES_MAX)?;
        Ok(Self::decode(&bytes))
    }

    /// Writes it into a reply.
    pub fn write(&self, writer: &mut Writer) {
        writer.opaque(&self.encode());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_come_back_as_they_went() {
        let places = [
            Place::File {
                ino: 34,
                generation: 1 << 40,
            },
            Place::Control { node: 2 },
            Place::Snapshot {
                snapshot: u64::MAX,
                ino: 3,
                generation: 4,
            },
        ];
        for place in places {
            let handle = Handle {
                dataset: 0x0123_4567_89ab_cdef,
                place,
            };
            let bytes = handle.encode();
            assert!(bytes.len() <= HANDLE_BYTES_MAX as usize);
            assert_eq!(Handle::decode(&bytes), Some(handle));
            for length in 0..bytes.len() {
                assert_eq!(Handle::decode(&bytes[..length]), None);
            }
            assert_eq!(Handle::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }
}
