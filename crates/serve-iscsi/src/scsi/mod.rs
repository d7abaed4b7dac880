//! The SCSI device server: commands decoded, checked and carried out on a
//! [`LogicalUnit`](crate::LogicalUnit) (SAM-5, SPC-5, SBC-4).
//!
//! - `cdb`, `opcodes`, `sense`, `inquiry`, `mode`, `reservation`: pure encoders, decoders and
//!   state machines;
//! - `state`: what initiators have set on a unit (reservations, modes), which outlives the target;
//! - `unit`: one logical unit as all nexuses share it, and the order of checks before a command is
//!   let in;
//! - `execute`: what commands do to the storage;
//! - `copy`: copies within and between units (EXTENDED COPY).
//!
//! Lock order: a target's unit map, then a unit's state; neither is held across an await. A unit's
//! `atomic` lock (an async one) is taken by writes for reading and by COMPARE AND WRITE and
//! ORWRITE for writing, so that these are atomic towards all other writes; and for a moment by
//! whoever takes rights from others, so that writes which were let in before are done. Its `kept`
//! lock (async) is held over a change of persistent reservations that is stored or aborts commands,
//! before its state.

mod cdb;
mod copy;
mod execute;
mod inquiry;
mod mode;
mod opcodes;
mod reservation;
mod sense;
mod state;
#[cfg(test)]
mod tests;
mod unit;

pub(crate) use cdb::Command;
pub(crate) use copy::{CopyStop, Designator, decode_for_fuzzing as decode_copy_for_fuzzing};
pub(crate) use execute::Done;
pub(crate) use inquiry::{decode_lun, encode_lun, luns as report_luns, standard_without_unit};
pub(crate) use opcodes::op;
pub(crate) use reservation::{InitiatorPort, decode_for_fuzzing as decode_reservation_for_fuzzing};
pub(crate) use sense::{SENSE_BYTES_MAX, Sense, status};
pub(crate) use state::NexusId;
pub use state::UnitState;
pub(crate) use unit::Unit;

use bytes::Bytes;

/// Longest transfer of one command, in bytes (VPD page B0h).
pub(crate) const TRANSFER_BYTES_MAX: u32 = 16 << 20;
/// Most blocks of one COMPARE AND WRITE.
pub(crate) const COMPARE_BLOCKS_MAX: u8 = 255;
/// Most blocks of one WRITE SAME.
pub(crate) const WRITE_SAME_BLOCKS_MAX: u32 = 0xffff;
/// Most descriptors of one UNMAP.
pub(crate) const UNMAP_DESCRIPTORS_MAX: u32 = 256;
/// Most bytes read or written at once inside one command that needs no more.
pub(crate) const CHUNK_BYTES_MAX: u32 = 1 << 20;

/// All operation codes of the table (for tests that send any of them).
#[cfg(test)]
pub(crate) fn testing_opcodes() -> Vec<u8> {
    opcodes::TABLE.iter().map(|entry| entry.opcode).collect()
}

/// How a command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// SCSI status.
    pub(crate) status: u8,
    /// Present with CHECK CONDITION.
    pub(crate) sense: Option<Sense>,
    /// Whether sense data is to be in descriptor format.
    pub(crate) is_descriptor_sense: bool,
    /// Data for the initiator, in order.
    pub(crate) data: Vec<Bytes>,
}

impl Outcome {
    pub(crate) fn good() -> Self {
        Self::default()
    }

    pub(crate) fn status(status: u8) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub(crate) fn check(sense: Sense) -> Self {
        Self {
            status: status::CHECK_CONDITION,
            sense: Some(sense),
            ..Self::default()
        }
    }

    /// Parameter data, cut to the allocation length.
    pub(crate) fn parameters(mut data: Vec<u8>, allocation: u32) -> Self {
        data.truncate(allocation as usize);
        Self {
            data: vec![data.into()],
            ..Self::default()
        }
    }
}

impl From<Sense> for Outcome {
    fn from(sense: Sense) -> Self {
        Self::check(sense)
    }
}
