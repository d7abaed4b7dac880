//! iSCSI target: protocol core without sockets, and a thin TCP layer.
//!
//! From the bottom up:
//!
//! | module | holds |
//! |---|---|
//! | [`LogicalUnit`] | the border to the storage below |
//! | [`VolumeUnit`], [`MemoryUnit`] | a volume as a unit, and memory |
//! | `pdu`, `text` | bytes of the protocol: headers, framing, digests, `key=value` |
//! | `scsi` | commands: decoders, encoders, reservations, and their execution on a unit |
//! | `login` | the login phase as a state machine |
//! | `budget` | memory of all sessions together |
//! | `session` | full feature phase as a state machine, with all connections of a session |
//! | `traffic` | reports of what clients read and wrote |
//! | [`TargetSet`] | targets, who may log in, sessions |
//! | [`Server`] | sockets |
//! | [`Initiator`] | the other end, as far as a look at paths needs it |
//!
//! Everything but [`Server`] and [`Initiator`] runs without sockets: bytes go in, bytes and
//! requests to run a command come out, so that it can be tested and simulated.
//!
//! Supported: RFC 7143 with several connections to a session and ErrorRecoveryLevel 0; CRC32C
//! digests; CHAP, one-way and mutual, with MD5 and SHA-256; SPC-4, SBC-3 as listed by REPORT
//! SUPPORTED OPERATION CODES; persistent reservations, which outlive the process where the unit has
//! a [`ReservationStore`]; EXTENDED COPY of blocks; implicit ALUA with one group. Not supported:
//! recovery within a connection, bidirectional commands.
//!
//! Nothing that an initiator sends panics the process or sizes memory unchecked; the limits are
//! named constants where they are applied.
#![forbid(unsafe_code)]

mod budget;
mod error;
mod initiator;
mod login;
mod lun;
mod memory;
mod pdu;
mod scsi;
mod server;
mod session;
mod target;
mod text;
mod traffic;
mod volume_unit;

pub use error::{ServerError, TargetError};
pub use initiator::{
    FoundPortal, FoundTarget, Identity, Initiator, InitiatorError, Rate, UnitFacts,
};
pub use login::{Authentication, ChapCredentials};
pub use lun::{Extent, LogicalUnit, LunError, LunIdentity, ReservationStore};
pub use memory::MemoryUnit;
pub use scsi::UnitState;
pub use server::{ISCSI_PORT, Server};
pub use target::{LUN_MAX, Limits, SessionInfo, Target, TargetOptions, TargetSet};
pub use text::ISCSI_NAME_BYTES_MAX;
pub use traffic::{ClientTraffic, UnitTraffic};
pub use volume_unit::VolumeUnit;

/// Decodes bytes as PDUs, text and commands: for fuzzers.
#[doc(hidden)]
pub fn decode_for_fuzzing(data: &[u8]) {
    let framing = pdu::Framing {
        has_header_digest: false,
        has_data_digest: false,
        data_bytes_max: 64 << 10,
    };
    let mut input = bytes::BytesMut::from(data);
    while let Ok(Ok(frame)) = pdu::next_frame(&mut input, framing) {
        let _ = (frame.header.opcode(), text::parse(&frame.data));
    }
    initiator::decode_for_fuzzing(data);
    scsi::decode_reservation_for_fuzzing(data);
    scsi::decode_copy_for_fuzzing(data);
    if let Some(cdb) = data.first_chunk::<16>() {
        let _ = scsi::Command::decode(cdb).map(|command| command.data_out_bytes(512));
    }
}
