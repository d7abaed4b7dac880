//! The table of commands: what REPORT SUPPORTED OPERATION CODES says, and how reservations see
//! each command (SPC-5 section 6.36 and tables of 5.14; SBC-4 table of section 4.17).

/// How a reservation of another nexus meets a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Never conflicts, not even with RESERVE (INQUIRY, REPORT LUNS, REQUEST SENSE).
    Always,
    /// Conflicts with another's RESERVE only.
    Information,
    /// As `Information`, but it is RELEASE: another's reservation makes it do nothing.
    Release,
    /// Reads the medium or the like: conflicts with exclusive-access types.
    Read,
    /// Changes the medium: conflicts with all types.
    Write,
    /// Conflicts with any persistent reservation, whoever holds it (RESERVE).
    Reserve,
    /// Has rules of its own (PERSISTENT RESERVE OUT); conflicts with another's RESERVE.
    PersistentReserveOut,
}

/// One command of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) opcode: u8,
    pub(crate) service_action: Option<u16>,
    pub(crate) access: Access,
    /// CDB USAGE DATA: bits that are looked at; its length is the CDB's.
    pub(crate) usage: &'static [u8],
}

const fn entry(
    opcode: u8,
    service_action: Option<u16>,
    access: Access,
    usage: &'static [u8],
) -> Entry {
    Entry {
        opcode,
        service_action,
        access,
        usage,
    }
}

pub(crate) mod op {
    pub(crate) const TEST_UNIT_READY: u8 = 0x00;
    pub(crate) const REQUEST_SENSE: u8 = 0x03;
    pub(crate) const READ_6: u8 = 0x08;
    pub(crate) const WRITE_6: u8 = 0x0a;
    pub(crate) const INQUIRY: u8 = 0x12;
    pub(crate) const MODE_SELECT_6: u8 = 0x15;
    pub(crate) const RESERVE_6: u8 = 0x16;
    pub(crate) const RELEASE_6: u8 = 0x17;
    pub(crate) const MODE_SENSE_6: u8 = 0x1a;
    pub(crate) const START_STOP_UNIT: u8 = 0x1b;
    pub(crate) const PREVENT_ALLOW: u8 = 0x1e;
    pub(crate) const READ_CAPACITY_10: u8 = 0x25;
    pub(crate) const READ_10: u8 = 0x28;
    pub(crate) const WRITE_10: u8 = 0x2a;
    pub(crate) const WRITE_VERIFY_10: u8 = 0x2e;
    pub(crate) const VERIFY_10: u8 = 0x2f;
    pub(crate) const PREFETCH_10: u8 = 0x34;
    pub(crate) const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub(crate) const READ_DEFECT_DATA_10: u8 = 0x37;
    pub(crate) const WRITE_SAME_10: u8 = 0x41;
    pub(crate) const UNMAP: u8 = 0x42;
    pub(crate) const MODE_SELECT_10: u8 = 0x55;
    pub(crate) const RESERVE_10: u8 = 0x56;
    pub(crate) const RELEASE_10: u8 = 0x57;
    pub(crate) const MODE_SENSE_10: u8 = 0x5a;
    pub(crate) const PERSISTENT_RESERVE_IN: u8 = 0x5e;
    pub(crate) const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub(crate) const EXTENDED_COPY: u8 = 0x83;
    pub(crate) const RECEIVE_COPY_RESULTS: u8 = 0x84;
    pub(crate) const READ_16: u8 = 0x88;
    pub(crate) const COMPARE_AND_WRITE: u8 = 0x89;
    pub(crate) const WRITE_16: u8 = 0x8a;
    pub(crate) const ORWRITE: u8 = 0x8b;
    pub(crate) const WRITE_VERIFY_16: u8 = 0x8e;
    pub(crate) const VERIFY_16: u8 = 0x8f;
    pub(crate) const PREFETCH_16: u8 = 0x90;
    pub(crate) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub(crate) const WRITE_SAME_16: u8 = 0x93;
    pub(crate) const SERVICE_ACTION_IN_16: u8 = 0x9e;
    pub(crate) const REPORT_LUNS: u8 = 0xa0;
    pub(crate) const MAINTENANCE_IN: u8 = 0xa3;
    pub(crate) const READ_12: u8 = 0xa8;
    pub(crate) const WRITE_12: u8 = 0xaa;
    pub(crate) const WRITE_VERIFY_12: u8 = 0xae;
    pub(crate) const VERIFY_12: u8 = 0xaf;
    pub(crate) const READ_DEFECT_DATA_12: u8 = 0xb7;
}

/// Service actions.
pub(crate) mod service {
    pub(crate) const READ_CAPACITY_16: u16 = 0x10;
    pub(crate) const GET_LBA_STATUS: u16 = 0x12;
    pub(crate) const COPY_LID1: u16 = 0x00;
    pub(crate) const COPY_LID4: u16 = 0x01;
    pub(crate) const COPY_STATUS_LID1: u16 = 0x00;
    pub(crate) const COPY_OPERATING_PARAMETERS: u16 = 0x03;
    pub(crate) const COPY_STATUS_LID4: u16 = 0x05;
    pub(crate) const REPORT_TARGET_PORT_GROUPS: u16 = 0x0a;
    pub(crate) const REPORT_SUPPORTED_OPCODES: u16 = 0x0c;
    pub(crate) const REPORT_SUPPORTED_TASK_MANAGEMENT: u16 = 0x0d;
}

/// A byte of a block address.
const LBA: u8 = 0xff;

/// All commands, by operation code and service action, each with its mask below it.
#[rustfmt::skip]
pub(crate) static TABLE: &[Entry] = {
    use Access::{Always, Information, PersistentReserveOut, Read, Release, Reserve, Write};
    &[
    entry(op::TEST_UNIT_READY, None, Information,
        &[0x00, 0, 0, 0, 0, 0x04]),
    entry(op::REQUEST_SENSE, None, Always,
        &[0x03, 0x01, 0, 0, 0xff, 0x04]),
    entry(op::READ_6, None, Read,
        &[0x08, 0x1f, LBA, LBA, 0xff, 0x04]),
    entry(op::WRITE_6, None, Write,
        &[0x0a, 0x1f, LBA, LBA, 0xff, 0x04]),
    entry(op::INQUIRY, None, Always,
        &[0x12, 0x01, 0xff, 0xff, 0xff, 0x04]),
    entry(op::MODE_SELECT_6, None, Write,
        &[0x15, 0x11, 0, 0, 0xff, 0x04]),
    entry(op::RESERVE_6, None, Reserve,
        &[0x16, 0x00, 0, 0, 0, 0x04]),
    entry(op::RELEASE_6, None, Release,
        &[0x17, 0x00, 0, 0, 0, 0x04]),
    entry(op::MODE_SENSE_6, None, Read,
        &[0x1a, 0x08, 0xff, 0xff, 0xff, 0x04]),
    entry(op::START_STOP_UNIT, None, Write,
        &[0x1b, 0x01, 0, 0x0f, 0xf7, 0x04]),
    entry(op::PREVENT_ALLOW, None, Read,
        &[0x1e, 0, 0, 0, 0x03, 0x04]),
    entry(op::READ_CAPACITY_10, None, Information,
        &[0x25, 0, LBA, LBA, LBA, LBA, 0, 0, 0x01, 0x04]),
    entry(op::READ_10, None, Read,
        &[0x28, 0xf8, LBA, LBA, LBA, LBA, 0x1f, 0xff, 0xff, 0x04]),
    entry(op::WRITE_10, None, Write,
        &[0x2a, 0xf8, LBA, LBA, LBA, LBA, 0x1f, 0xff, 0xff, 0x04]),
    entry(op::WRITE_VERIFY_10, None, Write,
        &[0x2e, 0xf6, LBA, LBA, LBA, LBA, 0x1f, 0xff, 0xff, 0x04]),
    entry(op::VERIFY_10, None, Read,
        &[0x2f, 0xf6, LBA, LBA, LBA, LBA, 0x1f, 0xff, 0xff, 0x04]),
    entry(op::PREFETCH_10, None, Read,
        &[0x34, 0x02, LBA, LBA, LBA, LBA, 0x1f, 0xff, 0xff, 0x04]),
    entry(op::SYNCHRONIZE_CACHE_10, None, Write,
        &[0x35, 0x02, LBA, LBA, LBA, LBA, 0x1f, 0xff, 0xff, 0x04]),
    entry(op::READ_DEFECT_DATA_10, None, Information,
        &[0x37, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0x04]),
    entry(op::WRITE_SAME_10, None, Write,
        &[0x41, 0xf8, LBA, LBA, LBA, LBA, 0x1f, 0xff, 0xff, 0x04]),
    entry(op::UNMAP, None, Write,
        &[0x42, 0x01, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0x04]),
    entry(op::MODE_SELECT_10, None, Write,
        &[0x55, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0x04]),
    entry(op::RESERVE_10, None, Reserve,
        &[0x56, 0x00, 0, 0, 0, 0, 0, 0xff, 0xff, 0x04]),
    entry(op::RELEASE_10, None, Release,
        &[0x57, 0x00, 0, 0, 0, 0, 0, 0xff, 0xff, 0x04]),
    entry(op::MODE_SENSE_10, None, Read,
        &[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_IN, Some(0), Information,
        &[0x5e, 0x00, 0, 0, 0, 0, 0, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_IN, Some(1), Information,
        &[0x5e, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_IN, Some(2), Information,
        &[0x5e, 0x02, 0, 0, 0, 0, 0, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_IN, Some(3), Information,
        &[0x5e, 0x03, 0, 0, 0, 0, 0, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_OUT, Some(0), PersistentReserveOut,
        &[0x5f, 0x00, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_OUT, Some(1), PersistentReserveOut,
        &[0x5f, 0x01, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_OUT, Some(2), PersistentReserveOut,
        &[0x5f, 0x02, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_OUT, Some(3), PersistentReserveOut,
        &[0x5f, 0x03, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_OUT, Some(4), PersistentReserveOut,
        &[0x5f, 0x04, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_OUT, Some(5), PersistentReserveOut,
        &[0x5f, 0x05, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_OUT, Some(6), PersistentReserveOut,
        &[0x5f, 0x06, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x04]),
    entry(op::PERSISTENT_RESERVE_OUT, Some(7), PersistentReserveOut,
        &[0x5f, 0x07, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x04]),
    entry(op::EXTENDED_COPY, Some(service::COPY_LID1), Write,
        &[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::EXTENDED_COPY, Some(service::COPY_LID4), Write,
        &[0x83, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::RECEIVE_COPY_RESULTS, Some(service::COPY_STATUS_LID1), Write,
        &[0x84, 0x00, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::RECEIVE_COPY_RESULTS, Some(service::COPY_OPERATING_PARAMETERS), Write,
        &[0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::RECEIVE_COPY_RESULTS, Some(service::COPY_STATUS_LID4), Write,
        &[0x84, 0x05, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::READ_16, None, Read,
        &[0x88, 0xf8, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::COMPARE_AND_WRITE, None, Write,
        &[0x89, 0xf8, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0, 0, 0, 0xff, 0x1f, 0x04]),
    entry(op::WRITE_16, None, Write,
        &[0x8a, 0xf8, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::ORWRITE, None, Write,
        &[0x8b, 0xf8, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::WRITE_VERIFY_16, None, Write,
        &[0x8e, 0xf6, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::VERIFY_16, None, Read,
        &[0x8f, 0xf6, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::PREFETCH_16, None, Read,
        &[0x90, 0x02, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::SYNCHRONIZE_CACHE_16, None, Write,
        &[0x91, 0x02, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::WRITE_SAME_16, None, Write,
        &[0x93, 0xf9, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::SERVICE_ACTION_IN_16, Some(service::READ_CAPACITY_16), Information,
        &[0x9e, 0x10, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x01, 0x04]),
    entry(op::SERVICE_ACTION_IN_16, Some(service::GET_LBA_STATUS), Read,
        &[0x9e, 0x12, LBA, LBA, LBA, LBA, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::REPORT_LUNS, None, Always,
        &[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::MAINTENANCE_IN, Some(service::REPORT_TARGET_PORT_GROUPS), Information,
        &[0xa3, 0xea, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::MAINTENANCE_IN, Some(service::REPORT_SUPPORTED_OPCODES), Information,
        &[0xa3, 0x0c, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::MAINTENANCE_IN, Some(service::REPORT_SUPPORTED_TASK_MANAGEMENT), Information,
        &[0xa3, 0x0d, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    entry(op::READ_12, None, Read,
        &[0xa8, 0xf8, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::WRITE_12, None, Write,
        &[0xaa, 0xf8, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::WRITE_VERIFY_12, None, Write,
        &[0xae, 0xf6, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::VERIFY_12, None, Read,
        &[0xaf, 0xf6, LBA, LBA, LBA, LBA, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x04]),
    entry(op::READ_DEFECT_DATA_12, None, Information,
        &[0xb7, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x04]),
    ]
};

/// How a service action is laid down in the CDB of an operation code, if it has any.
pub(crate) fn has_service_actions(opcode: u8) -> bool {
    matches!(
        opcode,
        op::PERSISTENT_RESERVE_IN
            | op::PERSISTENT_RESERVE_OUT
            | op::EXTENDED_COPY
            | op::RECEIVE_COPY_RESULTS
            | op::SERVICE_ACTION_IN_16
            | op::MAINTENANCE_IN
    )
}

/// Whether any command with this operation code is in the table.
pub(crate) fn is_known_opcode(opcode: u8) -> bool {
    TABLE.iter().any(|entry| entry.opcode == opcode)
}

/// Finds a command in the table.
pub(crate) fn find(opcode: u8, service_action: Option<u16>) -> Option<&'static Entry> {
    TABLE
        .iter()
        .find(|entry| entry.opcode == opcode && entry.service_action == service_action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_ordered_and_its_masks_have_the_length_of_their_group() {
        for pair in TABLE.windows(2) {
            let key = |entry: &Entry| (entry.opcode, entry.service_action);
            assert!(key(&pair[0]) < key(&pair[1]), "{pair:?}");
        }
        for entry in TABLE {
            // SAM-5: the operation code's group gives the CDB's length.
            let length = match entry.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                5 => 12,
                group => panic!("no command is in group {group}"),
            };
            assert_eq!(entry.usage.len(), length, "{entry:?}");
            assert_eq!(entry.usage[0], entry.opcode, "{entry:?}");
            assert_eq!(
                has_service_actions(entry.opcode),
                entry.service_action.is_some(),
                "{entry:?}"
            );
        }
    }
}
