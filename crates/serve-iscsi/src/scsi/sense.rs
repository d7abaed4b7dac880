//! Status codes and sense data (SAM-5 section 5.3, SPC-5 section 4.4), and the one map from a
//! logical unit's failures to what an initiator is told.

use crate::lun::LunError;

/// SCSI status codes.
pub(crate) mod status {
    pub(crate) const GOOD: u8 = 0x00;
    pub(crate) const CHECK_CONDITION: u8 = 0x02;
    pub(crate) const BUSY: u8 = 0x08;
    pub(crate) const RESERVATION_CONFLICT: u8 = 0x18;
}

/// Sense keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SenseKey {
    NoSense = 0x0,
    NotReady = 0x2,
    MediumError = 0x3,
    HardwareError = 0x4,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    CopyAborted = 0xa,
    AbortedCommand = 0xb,
    Miscompare = 0xe,
}

/// Longest sense data that is made, in bytes.
pub(crate) const SENSE_BYTES_MAX: usize = 28;

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sense {
    pub(crate) key: SenseKey,
    /// Additional sense code and its qualifier.
    pub(crate) code: (u8, u8),
    /// INFORMATION: a logical block address, or an offset (MISCOMPARE).
    pub(crate) information: Option<u64>,
    /// The byte of the CDB that is at fault.
    pub(crate) cdb_byte: Option<u8>,
}

macro_rules! senses {
    ($($name:ident = $key:ident $asc:literal $ascq:literal;)*) => {
        impl Sense {
            $(pub(crate) const $name: Sense = Sense::new(SenseKey::$key, $asc, $ascq);)*
        }
    };
}

senses! {
    NONE = NoSense 0x00 0x00;
    OPERATION_IN_PROGRESS = IllegalRequest 0x00 0x16;
    BECOMING_READY = NotReady 0x04 0x01;
    NOT_READY_MANUAL_INTERVENTION = NotReady 0x04 0x03;
    WRITE_ERROR = MediumError 0x0c 0x00;
    UNRECOVERED_READ_ERROR = MediumError 0x11 0x00;
    INTERNAL_TARGET_FAILURE = HardwareError 0x44 0x00;
    PARAMETER_LIST_LENGTH_ERROR = IllegalRequest 0x1a 0x00;
    INVALID_OPERATION_CODE = IllegalRequest 0x20 0x00;
    LBA_OUT_OF_RANGE = IllegalRequest 0x21 0x00;
    INVALID_FIELD_IN_CDB = IllegalRequest 0x24 0x00;
    LUN_NOT_SUPPORTED = IllegalRequest 0x25 0x00;
    INVALID_FIELD_IN_PARAMETER_LIST = IllegalRequest 0x26 0x00;
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = IllegalRequest 0x26 0x04;
    TOO_MANY_TARGET_DESCRIPTORS = IllegalRequest 0x26 0x06;
    UNSUPPORTED_TARGET_DESCRIPTOR = IllegalRequest 0x26 0x07;
    TOO_MANY_SEGMENT_DESCRIPTORS = IllegalRequest 0x26 0x08;
    UNSUPPORTED_SEGMENT_DESCRIPTOR = IllegalRequest 0x26 0x09;
    INLINE_DATA_LENGTH_EXCEEDED = IllegalRequest 0x26 0x0b;
    SAVING_PARAMETERS_NOT_SUPPORTED = IllegalRequest 0x39 0x00;
    INSUFFICIENT_REGISTRATION_RESOURCES = IllegalRequest 0x55 0x04;
    INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT = IllegalRequest 0x0e 0x03;
    // The general code: `iscsi-ls` knows no other for a new session, and libiscsi's test suite none
    // for a reset.
    POWER_ON_OR_RESET = UnitAttention 0x29 0x00;
    MODE_PARAMETERS_CHANGED = UnitAttention 0x2a 0x01;
    RESERVATIONS_PREEMPTED = UnitAttention 0x2a 0x03;
    RESERVATIONS_RELEASED = UnitAttention 0x2a 0x04;
    REGISTRATIONS_PREEMPTED = UnitAttention 0x2a 0x05;
    CAPACITY_CHANGED = UnitAttention 0x2a 0x09;
    COMMANDS_CLEARED_BY_ANOTHER_INITIATOR = UnitAttention 0x2f 0x00;
    REPORTED_LUNS_CHANGED = UnitAttention 0x3f 0x0e;
    WRITE_PROTECTED = DataProtect 0x27 0x00;
    SPACE_ALLOCATION_FAILED = DataProtect 0x27 0x07;
    COPY_RANGE = CopyAborted 0x00 0x00;
    UNREACHABLE_COPY_TARGET = CopyAborted 0x08 0x04;
    COPY_THIRD_PARTY_FAILURE = CopyAborted 0x0d 0x01;
    COPY_TARGET_NOT_REACHABLE = CopyAborted 0x0d 0x02;
    INEXACT_SEGMENT = CopyAborted 0x26 0x0a;
    UNEXPECTED_UNSOLICITED_DATA = AbortedCommand 0x0c 0x0c;
    NOT_ENOUGH_UNSOLICITED_DATA = AbortedCommand 0x0c 0x0d;
    PROTOCOL_SERVICE_CRC_ERROR = AbortedCommand 0x47 0x05;
    MISCOMPARE_DURING_VERIFY = Miscompare 0x1d 0x00;
}

impl Sense {
    const fn new(key: SenseKey, asc: u8, ascq: u8) -> Self {
        Self {
            key,
            code: (asc, ascq),
            information: None,
            cdb_byte: None,
        }
    }

    /// INVALID FIELD IN CDB, with the byte that is at fault.
    pub(crate) const fn cdb_field(byte: u8) -> Self {
        Self {
            cdb_byte: Some(byte),
            ..Self::INVALID_FIELD_IN_CDB
        }
    }

    /// The same with INFORMATION.
    pub(crate) const fn with_information(self, information: u64) -> Self {
        Self {
            information: Some(information),
            ..self
        }
    }

    /// Sense data in fixed (SPC-5 section 4.4.3) or descriptor format (section 4.4.2); the length
    /// is that of what is filled.
    pub(crate) fn encode(&self, is_descriptor: bool) -> ([u8; SENSE_BYTES_MAX], usize) {
        let mut bytes = [0; SENSE_BYTES_MAX];
        // SENSE KEY SPECIFIC: a field pointer into the CDB.
        let pointer = self.cdb_byte.map(|byte| [0xc0, 0, byte]);
        if !is_descriptor {
            bytes[0] = 0x70;
            bytes[2] = self.key as u8;
            bytes[7] = 10;
            // Fixed format has four bytes only; a longer value is not said at all.
            if let Some(Ok(information)) = self.information.map(u32::try_from) {
                bytes[0] |= 0x80;
                bytes[3..7].copy_from_slice(&information.to_be_bytes());
            }
            bytes[12] = self.code.0;
            bytes[13] = self.code.1;
            if let Some(pointer) = pointer {
                bytes[15..18].copy_from_slice(&pointer);
            }
            return (bytes, 18);
        }
        bytes[0] = 0x72;
        bytes[1] = self.key as u8;
        bytes[2] = self.code.0;
        bytes[3] = self.code.1;
        let mut length = 8;
        if let Some(information) = self.information {
            bytes[length..length + 4].copy_from_slice(&[0x00, 0x0a, 0x80, 0]);
            bytes[length + 4..length + 12].copy_from_slice(&information.to_be_bytes());
            length += 12;
        }
        if let Some(pointer) = pointer {
            bytes[length..length + 4].copy_from_slice(&[0x02, 0x06, 0, 0]);
            bytes[length + 4..length + 7].copy_from_slice(&pointer);
            length += 8;
        }
        bytes[7] = (length - 8) as u8;
        (bytes, length)
    }
}

/// How a failure is told: sense data, or a status of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Check(Sense),
    Busy,
}

/// The one map from a logical unit's failures to what the initiator is told.
///
/// The choice decides what initiators do: MEDIUM ERROR fails the request, NOT READY is tried again
/// or fails over, DATA PROTECT / SPACE ALLOCATION FAILED is what Linux and VMware know as "thin
/// volume full", BUSY is tried again by itself.
pub(crate) fn failure_of(error: &LunError, block_bytes: u32) -> Failure {
    let lba = |offset_bytes: u64| offset_bytes / u64::from(block_bytes);
    Failure::Check(match error {
        LunError::OutOfRange { offset_bytes, .. } => {
            Sense::LBA_OUT_OF_RANGE.with_information(lba(*offset_bytes))
        }
        LunError::ReadOnly => Sense::WRITE_PROTECTED,
        LunError::NoSpace { .. } => Sense::SPACE_ALLOCATION_FAILED,
        LunError::UnrecoveredRead { offset_bytes } => {
            Sense::UNRECOVERED_READ_ERROR.with_information(lba(*offset_bytes))
        }
        LunError::WriteFailed { offset_bytes } => {
            Sense::WRITE_ERROR.with_information(lba(*offset_bytes))
        }
        LunError::Suspended => Sense::NOT_READY_MANUAL_INTERVENTION,
        LunError::BecomingReady => Sense::BECOMING_READY,
        LunError::Gone => Sense::LUN_NOT_SUPPORTED,
        LunError::Busy => return Failure::Busy,
        LunError::Unsupported { .. } => Sense::INVALID_OPERATION_CODE,
        LunError::Internal { .. } => Sense::INTERNAL_TARGET_FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind of failure, and key, code and information the initiator gets.
    #[test]
    fn failures_map_as_the_table_says() {
        let table = [
            (
                LunError::OutOfRange {
                    offset_bytes: 8192,
                    length_bytes: 1,
                },
                Some((0x5, 0x21, 0x00, Some(16))),
            ),
            (LunError::ReadOnly, Some((0x7, 0x27, 0x00, None))),
            (
                LunError::NoSpace {
                    offset_bytes: 0,
                    length_bytes: 1,
                },
                Some((0x7, 0x27, 0x07, None)),
            ),
            (
                LunError::UnrecoveredRead { offset_bytes: 1024 },
                Some((0x3, 0x11, 0x00, Some(2))),
            ),
            (
                LunError::WriteFailed { offset_bytes: 512 },
                Some((0x3, 0x0c, 0x00, Some(1))),
            ),
            (LunError::Suspended, Some((0x2, 0x04, 0x03, None))),
            (LunError::BecomingReady, Some((0x2, 0x04, 0x01, None))),
            (LunError::Gone, Some((0x5, 0x25, 0x00, None))),
            (LunError::Busy, None),
            (
                LunError::Unsupported { operation: "x" },
                Some((0x5, 0x20, 0x00, None)),
            ),
            (
                LunError::Internal { reason: "x".into() },
                Some((0x4, 0x44, 0x00, None)),
            ),
        ];
        for (error, expected) in table {
            let found = match failure_of(&error, 512) {
                Failure::Busy => None,
                Failure::Check(s) => Some((s.key as u8, s.code.0, s.code.1, s.information)),
            };
            assert_eq!(found, expected, "{error:?}");
        }
    }

    #[test]
    fn both_formats_carry_information_and_field_pointer() {
        let sense = Sense::cdb_field(9).with_information(0x1234);
        let (fixed, length) = sense.encode(false);
        assert_eq!(length, 18);
        assert_eq!(fixed[..4], [0xf0, 0, 5, 0]);
        assert_eq!(fixed[4..8], [0, 0x12, 0x34, 10]);
        assert_eq!(fixed[12..18], [0x24, 0, 0, 0xc0, 0, 9]);
        let (descriptor, length) = sense.encode(true);
        assert_eq!(length, 28);
        assert_eq!(descriptor[..8], [0x72, 5, 0x24, 0, 0, 0, 0, 20]);
        assert_eq!(
            descriptor[8..20],
            [0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34]
        );
        assert_eq!(descriptor[20..28], [2, 6, 0, 0, 0xc0, 0, 9, 0]);
        // A long address does not fit into fixed format: the valid bit stays off.
        let (fixed, _) = Sense::LBA_OUT_OF_RANGE
            .with_information(1 << 32)
            .encode(false);
        assert_eq!(fixed[..7], [0x70, 0, 5, 0, 0, 0, 0]);
    }
}
