//! Protocol data units: the 48-byte headers as values, framing with digests, and the queue of
//! what goes out (RFC 7143 section 11). Pure: bytes in, values out.
//!
//! All integers on the wire are big-endian; offsets in this module are from the start of the
//! basic header segment (BHS).

mod frame;
mod out;
#[cfg(test)]
mod tests;

pub(crate) use frame::{Frame, FrameError, Framing, next_frame};
pub(crate) use out::OutQueue;

/// Length of the basic header segment in bytes.
pub(crate) const BHS_BYTES: usize = 48;
/// "No tag" in initiator and target task tags.
pub(crate) const TAG_NONE: u32 = 0xffff_ffff;

/// Opcodes that initiators send (RFC 7143 section 11.2.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    NopOut,
    ScsiCommand,
    TaskManagement,
    Login,
    Text,
    DataOut,
    Logout,
    Snack,
    /// Anything else: rejected.
    Unknown(u8),
}

impl From<u8> for Opcode {
    fn from(code: u8) -> Self {
        match code {
            0x00 => Self::NopOut,
            0x01 => Self::ScsiCommand,
            0x02 => Self::TaskManagement,
            0x03 => Self::Login,
            0x04 => Self::Text,
            0x05 => Self::DataOut,
            0x06 => Self::Logout,
            0x10 => Self::Snack,
            other => Self::Unknown(other),
        }
    }
}

/// Opcodes that targets send.
pub(crate) mod target_opcode {
    pub(crate) const NOP_IN: u8 = 0x20;
    pub(crate) const SCSI_RESPONSE: u8 = 0x21;
    pub(crate) const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub(crate) const LOGIN_RESPONSE: u8 = 0x23;
    pub(crate) const TEXT_RESPONSE: u8 = 0x24;
    pub(crate) const DATA_IN: u8 = 0x25;
    pub(crate) const LOGOUT_RESPONSE: u8 = 0x26;
    pub(crate) const READY_TO_TRANSFER: u8 = 0x31;
    pub(crate) const ASYNC_MESSAGE: u8 = 0x32;
    pub(crate) const REJECT: u8 = 0x3f;
}

/// Bits of byte 1, shared by many PDUs.
pub(crate) mod flag {
    /// Last PDU of its sequence (also: transit, in login).
    pub(crate) const FINAL: u8 = 0x80;
    /// Text goes on in the next PDU (login and text).
    pub(crate) const CONTINUE: u8 = 0x40;
    /// The command reads.
    pub(crate) const READ: u8 = 0x40;
    /// The command writes.
    pub(crate) const WRITE: u8 = 0x20;
    /// There was more data than the initiator expected.
    pub(crate) const OVERFLOW: u8 = 0x04;
    /// There was less data than the initiator expected.
    pub(crate) const UNDERFLOW: u8 = 0x02;
    /// The Data-In PDU carries the status.
    pub(crate) const STATUS: u8 = 0x01;
}

/// Reasons of a Reject (RFC 7143 section 11.17.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RejectReason {
    DataDigestError = 0x02,
    ProtocolError = 0x04,
    CommandNotSupported = 0x05,
    TooManyImmediateCommands = 0x06,
    TaskInProgress = 0x07,
    InvalidField = 0x09,
}

/// A basic header segment, either way.
///
/// | offset | field |
/// |---|---|
/// | 0 | opcode, immediate bit 40h |
/// | 1 | flags |
/// | 4 | total length of additional headers, in 4-byte words |
/// | 5..8 | data segment length in bytes |
/// | 8..16 | logical unit number, or opcode-specific |
/// | 16..20 | initiator task tag |
/// | 20..48 | opcode-specific |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) [u8; BHS_BYTES]);

impl Header {
    /// An empty header with an opcode and the final bit.
    pub(crate) fn new(opcode: u8) -> Self {
        let mut bytes = [0; BHS_BYTES];
        bytes[0] = opcode;
        bytes[1] = flag::FINAL;
        Self(bytes)
    }

    pub(crate) fn u16_at(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    pub(crate) fn set_u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn opcode(&self) -> Opcode {
        Opcode::from(self.0[0] & 0x3f)
    }

    pub(crate) fn is_immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    pub(crate) fn flags(&self) -> u8 {
        self.0[1]
    }

    pub(crate) fn is_final(&self) -> bool {
        self.0[1] & flag::FINAL != 0
    }

    /// Length of the additional header segments in bytes (0 to 1020).
    pub(crate) fn ahs_bytes(&self) -> usize {
        usize::from(self.0[4]) * 4
    }

    /// Length of the data segment in bytes, without padding (0 to 2^24-1).
    pub(crate) fn data_bytes(&self) -> usize {
        (usize::from(self.0[5]) << 16) | (usize::from(self.0[6]) << 8) | usize::from(self.0[7])
    }

    pub(crate) fn set_data_bytes(&mut self, length: usize) {
        assert!(length < 1 << 24, "a data segment has a 24-bit length");
        self.0[5] = (length >> 16) as u8;
        self.0[6] = (length >> 8) as u8;
        self.0[7] = length as u8;
    }

    pub(crate) fn lun(&self) -> [u8; 8] {
        let mut lun = [0; 8];
        lun.copy_from_slice(&self.0[8..16]);
        lun
    }

    pub(crate) fn set_lun(&mut self, lun: [u8; 8]) {
        self.0[8..16].copy_from_slice(&lun);
    }

    pub(crate) fn initiator_task_tag(&self) -> u32 {
        self.u32_at(16)
    }

    pub(crate) fn set_initiator_task_tag(&mut self, tag: u32) {
        self.set_u32(16, tag);
    }

    /// Target transfer tag, or referenced task tag (Data-Out, Text, NOP-Out, task management).
    pub(crate) fn target_tag(&self) -> u32 {
        self.u32_at(20)
    }

    pub(crate) fn set_target_tag(&mut self, tag: u32) {
        self.set_u32(20, tag);
    }

    /// CmdSN of requests that have one.
    pub(crate) fn cmd_sn(&self) -> u32 {
        self.u32_at(24)
    }

    /// ExpStatSN of requests.
    pub(crate) fn exp_stat_sn(&self) -> u32 {
        self.u32_at(28)
    }
}

/// Serial number arithmetic (RFC 1982, as RFC 7143 section 4.2.2 wants it): `a < b`.
pub(crate) fn serial_less(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}
