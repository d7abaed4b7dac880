//! The events that become records of a stream, in the order in which they are written: made of an
//! object set's changes ([`object::Changes`]; `send_cb`, module/zfs/dmu_send.c).

use format::{BlockPointer, Bookmark, DnodePhys, Endian, ObjectType, Txg};
use object::{Change, ChangeBatch, ChangeLimits, ChangesError, Geometry};

use crate::StreamError;

/// When a batch of changes is full.
pub(crate) const LIMITS: ChangeLimits = ChangeLimits {
    changes: 8192,
    block_bytes: 32 << 20,
};

/// Something to write.
pub(crate) enum Event {
    Object {
        object: u64,
        dnode: Box<DnodePhys>,
        endian: Endian,
    },
    /// The block of dnodes of the objects that follow: a raw stream has how it is encrypted.
    ObjectRange {
        first: u64,
        pointer: BlockPointer,
    },
    FreeObjects {
        first: u64,
        count: u64,
    },
    Data {
        object: u64,
        block: u64,
        pointer: BlockPointer,
        block_bytes: u64,
        object_type: ObjectType,
    },
    Spill {
        object: u64,
        pointer: BlockPointer,
        bonus_type: ObjectType,
        /// The receiver has it.
        is_old: bool,
    },
    Hole {
        object: u64,
        offset_bytes: u64,
        length_bytes: u64,
        block_bytes: u64,
    },
    /// Blocks that are left out.
    Redact {
        object: u64,
        offset_bytes: u64,
        length_bytes: u64,
    },
}

/// Which events changes become.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// The stream has what changed after this.
    pub(crate) after: Txg,
    /// The stream has blocks of dnodes as they are stored.
    pub(crate) is_raw: bool,
}

impl Rules {
    /// The events of some changes.
    pub(crate) fn events(self, batch: ChangeBatch) -> Vec<Event> {
        let mut out = Vec::with_capacity(batch.changes.len());
        for change in batch.changes {
            match change {
                Change::Dnodes { first, pointer } => {
                    if self.is_raw {
                        out.push(Event::ObjectRange { first, pointer });
                    }
                }
                Change::Object {
                    object,
                    dnode,
                    endian,
                } => self.object(object, dnode, endian, &mut out),
                Change::Free { first, count } => {
                    // Numbers beyond the last block of dnodes are free anyway.
                    let end = first.saturating_add(count).min(batch.objects_end);
                    let count = end.saturating_sub(first);
                    if count > 0 {
                        out.push(Event::FreeObjects { first, count });
                    }
                }
                Change::Block {
                    object,
                    block,
                    pointer,
                    geometry,
                } => out.push(match block {
                    Bookmark::SPILL_BLOCK_ID => Event::Spill {
                        object,
                        pointer,
                        bonus_type: geometry.bonus_type,
                        is_old: false,
                    },
                    block => Event::Data {
                        object,
                        block,
                        pointer,
                        block_bytes: geometry.block_bytes.into(),
                        object_type: geometry.object_type,
                    },
                }),
                Change::Hole {
                    object,
                    first,
                    blocks,
                    geometry,
                } => out.extend(hole(object, first, blocks, geometry)),
            }
        }
        out
    }

    fn object(self, object: u64, dnode: Box<DnodePhys>, endian: Endian, out: &mut Vec<Event>) {
        let after = self.after;
        let old_spill = dnode
            .spill
            .filter(|spill| !after.is_zero() && !spill.is_hole() && spill.logical_birth() <= after);
        let bonus_type = dnode.bonus_type;
        out.push(Event::Object {
            object,
            dnode,
            endian,
        });
        // Old receivers took one that was not sent for removed (piggyback_unmodified_spill).
        if let Some(pointer) = old_spill {
            out.push(Event::Spill {
                object,
                pointer,
                bonus_type,
                is_old: true,
            });
        }
    }
}

/// A hole, unless it begins behind the last block: what is there is freed with the object's record.
fn hole(object: u64, first: u64, blocks: u64, geometry: Geometry) -> Option<Event> {
    if first > geometry.last_block && !geometry.object_type.is_metadata() {
        return None;
    }
    let block_bytes = u64::from(geometry.block_bytes);
    let offset_bytes = first.checked_mul(block_bytes)?;
    let length_bytes = blocks.checked_mul(block_bytes);
    Some(Event::Hole {
        object,
        offset_bytes,
        length_bytes: length_bytes.unwrap_or(u64::MAX - offset_bytes),
        block_bytes,
    })
}

impl From<ChangesError> for StreamError {
    fn from(error: ChangesError) -> Self {
        match error {
            ChangesError::Zio(error) => error.into(),
            ChangesError::Damaged { bookmark, why } => Self::Damaged {
                what: format!("{bookmark}: {why}"),
            },
        }
    }
}
