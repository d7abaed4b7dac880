//! Command descriptor blocks, decoded (SPC-5 section 6, SBC-4 section 5). Pure.

use super::opcodes::{Access, has_service_actions, is_known_opcode, op, service};
use super::sense::Sense;

/// A run of logical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) lba: u64,
    pub(crate) count: u32,
}

/// What VERIFY and WRITE AND VERIFY compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteCheck {
    /// Nothing: the medium only.
    Medium,
    /// Each block with its own of the data sent.
    Each,
    /// Each block with the one block sent.
    One,
}

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    TestUnitReady,
    RequestSense {
        is_descriptor: bool,
        allocation: u32,
    },
    /// `page` is `None` for standard data.
    Inquiry {
        page: Option<u8>,
        allocation: u32,
    },
    ReportLuns {
        select: u8,
        allocation: u32,
    },
    ReadCapacity10,
    ReadCapacity16 {
        allocation: u32,
    },
    GetLbaStatus {
        lba: u64,
        allocation: u32,
    },
    Read {
        blocks: Blocks,
        force_unit_access: bool,
    },
    Write {
        blocks: Blocks,
        force_unit_access: bool,
    },
    WriteVerify {
        blocks: Blocks,
        check: ByteCheck,
    },
    Verify {
        blocks: Blocks,
        check: ByteCheck,
    },
    CompareAndWrite {
        blocks: Blocks,
        force_unit_access: bool,
    },
    OrWrite {
        blocks: Blocks,
        force_unit_access: bool,
    },
    WriteSame {
        blocks: Blocks,
        unmap: bool,
        /// There is no data: write zeroes (NDOB).
        no_data: bool,
    },
    Unmap {
        list_bytes: u32,
    },
    Prefetch {
        blocks: Blocks,
    },
    SynchronizeCache {
        blocks: Blocks,
    },
    ModeSense {
        is_long: bool,
        no_block_descriptor: bool,
        long_lba: bool,
        control: u8,
        page: u8,
        subpage: u8,
        allocation: u32,
    },
    ModeSelect {
        is_long: bool,
        list_bytes: u32,
    },
    StartStopUnit {
        start: bool,
    },
    PreventAllow,
    Reserve,
    Release,
    PersistentReserveIn {
        action: u8,
        allocation: u32,
    },
    PersistentReserveOut {
        action: u8,
        scope_and_type: u8,
        list_bytes: u32,
    },
    ReportTargetPortGroups {
        is_extended: bool,
        allocation: u32,
    },
    ReportSupportedOpcodes {
        with_timeouts: bool,
        options: u8,
        opcode: u8,
        service_action: u16,
        allocation: u32,
    },
    ReportSupportedTaskManagement {
        is_extended: bool,
        allocation: u32,
    },
    /// `is_long` for the one with list identifiers of four bytes (LID4).
    ExtendedCopy {
        is_long: bool,
        list_bytes: u32,
    },
    ReceiveCopyResults {
        action: u8,
        list_id: u32,
        allocation: u32,
    },
    ReadDefectData10 {
        format: u8,
        allocation: u32,
    },
    ReadDefectData12 {
        format: u8,
        allocation: u32,
    },
}

fn be16(cdb: &[u8; 16], at: usize) -> u32 {
    u32::from(u16::from_be_bytes([cdb[at], cdb[at + 1]]))
}

fn be32(cdb: &[u8; 16], at: usize) -> u32 {
    u32::from_be_bytes([cdb[at], cdb[at + 1], cdb[at + 2], cdb[at + 3]])
}

fn be64(cdb: &[u8; 16], at: usize) -> u64 {
    (u64::from(be32(cdb, at)) << 32) | u64::from(be32(cdb, at + 4))
}

/// Blocks of a 10-, 12- or 16-byte CDB, by the operation code's group.
fn blocks(cdb: &[u8; 16]) -> Blocks {
    match cdb[0] >> 5 {
        4 => Blocks {
            lba: be64(cdb, 2),
            count: be32(cdb, 10),
        },
        5 => Blocks {
            lba: be32(cdb, 2).into(),
            count: be32(cdb, 6),
        },
        _ => Blocks {
            lba: be32(cdb, 2).into(),
            count: be16(cdb, 7),
        },
    }
}

/// Blocks of a 6-byte CDB; a count of 0 means 256.
fn blocks6(cdb: &[u8; 16]) -> Blocks {
    Blocks {
        lba: u64::from(be32(cdb, 0) & 0x1f_ffff),
        count: match cdb[4] {
            0 => 256,
            count => count.into(),
        },
    }
}

fn byte_check(cdb: &[u8; 16]) -> Result<ByteCheck, Sense> {
    match (cdb[1] >> 1) & 3 {
        0 => Ok(ByteCheck::Medium),
        1 => Ok(ByteCheck::Each),
        3 => Ok(ByteCheck::One),
        _ => Err(Sense::cdb_field(1)),
    }
}

/// RDPROTECT, WRPROTECT, VRPROTECT: there is no protection information here.
fn no_protection(cdb: &[u8; 16]) -> Result<(), Sense> {
    if cdb[1] >> 5 == 0 {
        Ok(())
    } else {
        Err(Sense::cdb_field(1))
    }
}

const FORCE_UNIT_ACCESS: u8 = 0x08;
const WRITE_SAME_ANCHOR: u8 = 0x10;
const WRITE_SAME_UNMAP: u8 = 0x08;
const WRITE_SAME_NO_DATA: u8 = 0x01;

impl Command {
    /// Decodes a CDB. INVALID COMMAND OPERATION CODE for what is not in the table of
    /// [`super::opcodes`], INVALID FIELD IN CDB for what is but cannot be done.
    pub(crate) fn decode(cdb: &[u8; 16]) -> Result<Self, Sense> {
        let opcode = cdb[0];
        // NACA: contingent allegiance is not supported (NORMACA is 0).
        let control = match opcode >> 5 {
            0 => cdb[5],
            1 | 2 => cdb[9],
            5 => cdb[11],
            _ => cdb[15],
        };
        if control & 0x04 != 0 && is_known_opcode(opcode) {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        let force_unit_access = cdb[1] & FORCE_UNIT_ACCESS != 0;
        Ok(match opcode {
            op::TEST_UNIT_READY => Self::TestUnitReady,
            op::REQUEST_SENSE => Self::RequestSense {
                is_descriptor: cdb[1] & 1 != 0,
                allocation: cdb[4].into(),
            },
            op::INQUIRY => {
                let is_page = cdb[1] & 1 != 0;
                if !is_page && cdb[2] != 0 {
                    return Err(Sense::cdb_field(2));
                }
                // CMDDT, obsolete.
                if cdb[1] & 2 != 0 {
                    return Err(Sense::cdb_field(1));
                }
                Self::Inquiry {
                    page: is_page.then_some(cdb[2]),
                    allocation: be16(cdb, 3),
                }
            }
            op::REPORT_LUNS => Self::ReportLuns {
                select: cdb[2],
                allocation: be32(cdb, 6),
            },
            op::READ_CAPACITY_10 => {
                // PMI, obsolete: an address without it is an error.
                if cdb[8] & 1 == 0 && be32(cdb, 2) != 0 {
                    return Err(Sense::cdb_field(2));
                }
                Self::ReadCapacity10
            }
            op::SERVICE_ACTION_IN_16 => match u16::from(cdb[1] & 0x1f) {
                service::READ_CAPACITY_16 => {
                    if cdb[14] & 1 == 0 && be64(cdb, 2) != 0 {
                        return Err(Sense::cdb_field(2));
                    }
                    Self::ReadCapacity16 {
                        allocation: be32(cdb, 10),
                    }
                }
                service::GET_LBA_STATUS => Self::GetLbaStatus {
                    lba: be64(cdb, 2),
                    allocation: be32(cdb, 10),
                },
                _ => return Err(Sense::cdb_field(1)),
            },
            op::READ_6 => Self::Read {
                blocks: blocks6(cdb),
                force_unit_access: false,
            },
            op::WRITE_6 => Self::Write {
                blocks: blocks6(cdb),
                force_unit_access: false,
            },
            op::READ_10 | op::READ_12 | op::READ_16 => {
                no_protection(cdb)?;
                Self::Read {
                    blocks: blocks(cdb),
                    force_unit_access,
                }
            }
            op::WRITE_10 | op::WRITE_12 | op::WRITE_16 => {
                no_protection(cdb)?;
                Self::Write {
                    blocks: blocks(cdb),
                    force_unit_access,
                }
            }
            op::WRITE_VERIFY_10 | op::WRITE_VERIFY_12 | op::WRITE_VERIFY_16 => {
                no_protection(cdb)?;
                let check = byte_check(cdb)?;
                if check == ByteCheck::One {
                    return Err(Sense::cdb_field(1));
                }
                Self::WriteVerify {
                    blocks: blocks(cdb),
                    check,
                }
            }
            op::VERIFY_10 | op::VERIFY_12 | op::VERIFY_16 => {
                no_protection(cdb)?;
                Self::Verify {
                    blocks: blocks(cdb),
                    check: byte_check(cdb)?,
                }
            }
            op::COMPARE_AND_WRITE => {
                no_protection(cdb)?;
                Self::CompareAndWrite {
                    blocks: Blocks {
                        lba: be64(cdb, 2),
                        count: cdb[13].into(),
                    },
                    force_unit_access,
                }
            }
            op::ORWRITE => {
                no_protection(cdb)?;
                Self::OrWrite {
                    blocks: blocks(cdb),
                    force_unit_access,
                }
            }
            op::WRITE_SAME_10 | op::WRITE_SAME_16 => {
                no_protection(cdb)?;
                // Blocks are never anchored here (ANC_SUP is 0).
                if cdb[1] & WRITE_SAME_ANCHOR != 0 {
                    return Err(Sense::cdb_field(1));
                }
                let no_data = cdb[1] & WRITE_SAME_NO_DATA != 0;
                if no_data && opcode == op::WRITE_SAME_10 {
                    return Err(Sense::cdb_field(1));
                }
                Self::WriteSame {
                    blocks: blocks(cdb),
                    unmap: cdb[1] & WRITE_SAME_UNMAP != 0,
                    no_data,
                }
            }
            op::UNMAP => {
                if cdb[1] & 1 != 0 {
                    return Err(Sense::cdb_field(1));
                }
                Self::Unmap {
                    list_bytes: be16(cdb, 7),
                }
            }
            op::PREFETCH_10 | op::PREFETCH_16 => Self::Prefetch {
                blocks: blocks(cdb),
            },
            op::SYNCHRONIZE_CACHE_10 | op::SYNCHRONIZE_CACHE_16 => Self::SynchronizeCache {
                blocks: blocks(cdb),
            },
            op::MODE_SENSE_6 | op::MODE_SENSE_10 => {
                let is_long = opcode == op::MODE_SENSE_10;
                Self::ModeSense {
                    is_long,
                    no_block_descriptor: cdb[1] & 0x08 != 0,
                    long_lba: is_long && cdb[1] & 0x10 != 0,
                    control: cdb[2] >> 6,
                    page: cdb[2] & 0x3f,
                    subpage: cdb[3],
                    allocation: if is_long { be16(cdb, 7) } else { cdb[4].into() },
                }
            }
            op::MODE_SELECT_6 | op::MODE_SELECT_10 => {
                // SP: nothing can be saved.
                if cdb[1] & 1 != 0 {
                    return Err(Sense::cdb_field(1));
                }
                let is_long = opcode == op::MODE_SELECT_10;
                Self::ModeSelect {
                    is_long,
                    list_bytes: if is_long { be16(cdb, 7) } else { cdb[4].into() },
                }
            }
            op::START_STOP_UNIT => Self::StartStopUnit {
                start: cdb[4] & 1 != 0 || cdb[4] >> 4 != 0,
            },
            op::PREVENT_ALLOW => Self::PreventAllow,
            op::RESERVE_6 | op::RESERVE_10 | op::RELEASE_6 | op::RELEASE_10 => {
                // Extents and third parties, obsolete.
                if cdb[1] & 0x1f != 0 {
                    return Err(Sense::cdb_field(1));
                }
                match opcode {
                    op::RESERVE_6 | op::RESERVE_10 => Self::Reserve,
                    _ => Self::Release,
                }
            }
            op::PERSISTENT_RESERVE_IN => {
                let action = cdb[1] & 0x1f;
                if action > 3 {
                    return Err(Sense::cdb_field(1));
                }
                Self::PersistentReserveIn {
                    action,
                    allocation: be16(cdb, 7),
                }
            }
            op::PERSISTENT_RESERVE_OUT => {
                let action = cdb[1] & 0x1f;
                if action > 7 {
                    return Err(Sense::cdb_field(1));
                }
                Self::PersistentReserveOut {
                    action,
                    scope_and_type: cdb[2],
                    list_bytes: be32(cdb, 5),
                }
            }
            op::MAINTENANCE_IN => match u16::from(cdb[1] & 0x1f) {
                service::REPORT_TARGET_PORT_GROUPS => Self::ReportTargetPortGroups {
                    is_extended: match cdb[1] >> 5 {
                        0 => false,
                        1 => true,
                        _ => return Err(Sense::cdb_field(1)),
                    },
                    allocation: be32(cdb, 6),
                },
                service::REPORT_SUPPORTED_OPCODES => Self::ReportSupportedOpcodes {
                    with_timeouts: cdb[2] & 0x80 != 0,
                    options: cdb[2] & 7,
                    opcode: cdb[3],
                    service_action: be16(cdb, 4) as u16,
                    allocation: be32(cdb, 6),
                },
                service::REPORT_SUPPORTED_TASK_MANAGEMENT => Self::ReportSupportedTaskManagement {
                    is_extended: cdb[2] & 0x80 != 0,
                    allocation: be32(cdb, 6),
                },
                _ => return Err(Sense::cdb_field(1)),
            },
            op::EXTENDED_COPY => match u16::from(cdb[1] & 0x1f) {
                action @ (service::COPY_LID1 | service::COPY_LID4) => Self::ExtendedCopy {
                    is_long: action == service::COPY_LID4,
                    list_bytes: be32(cdb, 10),
                },
                _ => return Err(Sense::cdb_field(1)),
            },
            op::RECEIVE_COPY_RESULTS => {
                let action = cdb[1] & 0x1f;
                Self::ReceiveCopyResults {
                    action,
                    list_id: match u16::from(action) {
                        service::COPY_STATUS_LID1 => cdb[2].into(),
                        service::COPY_OPERATING_PARAMETERS => 0,
                        service::COPY_STATUS_LID4 => be32(cdb, 2),
                        _ => return Err(Sense::cdb_field(1)),
                    },
                    allocation: be32(cdb, 10),
                }
            }
            op::READ_DEFECT_DATA_10 => Self::ReadDefectData10 {
                format: cdb[2] & 0x1f,
                allocation: be16(cdb, 7),
            },
            op::READ_DEFECT_DATA_12 => Self::ReadDefectData12 {
                format: cdb[1] & 0x1f,
                allocation: be32(cdb, 6),
            },
            _ => return Err(Sense::INVALID_OPERATION_CODE),
        })
    }

    /// How reservations see the command.
    pub(crate) fn access(&self) -> Access {
        match self {
            Self::Read { .. }
            | Self::Verify { .. }
            | Self::Prefetch { .. }
            | Self::GetLbaStatus { .. }
            | Self::ModeSense { .. }
            | Self::PreventAllow => Access::Read,
            Self::Write { .. }
            | Self::WriteVerify { .. }
            | Self::CompareAndWrite { .. }
            | Self::OrWrite { .. }
            | Self::WriteSame { .. }
            | Self::Unmap { .. }
            | Self::ExtendedCopy { .. }
            | Self::ReceiveCopyResults { .. }
            | Self::SynchronizeCache { .. }
            | Self::ModeSelect { .. }
            | Self::StartStopUnit { .. } => Access::Write,
            Self::RequestSense { .. } | Self::Inquiry { .. } | Self::ReportLuns { .. } => {
                Access::Always
            }
            Self::TestUnitReady
            | Self::ReadCapacity10
            | Self::ReadCapacity16 { .. }
            | Self::PersistentReserveIn { .. }
            | Self::ReportTargetPortGroups { .. }
            | Self::ReportSupportedOpcodes { .. }
            | Self::ReportSupportedTaskManagement { .. }
            | Self::ReadDefectData10 { .. }
            | Self::ReadDefectData12 { .. } => Access::Information,
            Self::Reserve => Access::Reserve,
            Self::Release => Access::Release,
            Self::PersistentReserveOut { .. } => Access::PersistentReserveOut,
        }
    }

    /// The blocks that the command is about, if it names any.
    pub(crate) fn blocks(&self) -> Option<Blocks> {
        match *self {
            Self::Read { blocks, .. }
            | Self::Write { blocks, .. }
            | Self::WriteVerify { blocks, .. }
            | Self::Verify { blocks, .. }
            | Self::CompareAndWrite { blocks, .. }
            | Self::OrWrite { blocks, .. }
            | Self::WriteSame { blocks, .. }
            | Self::Prefetch { blocks }
            | Self::SynchronizeCache { blocks } => Some(blocks),
            _ => None,
        }
    }

    /// Whether the command changes what is stored.
    pub(crate) fn changes_medium(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::WriteVerify { .. }
                | Self::CompareAndWrite { .. }
                | Self::OrWrite { .. }
                | Self::WriteSame { .. }
                | Self::Unmap { .. }
        )
    }

    /// How many bytes the command takes from the initiator.
    pub(crate) fn data_out_bytes(&self, block_bytes: u32) -> u64 {
        let of = |blocks: Blocks| u64::from(blocks.count) * u64::from(block_bytes);
        match *self {
            Self::Write { blocks, .. }
            | Self::WriteVerify { blocks, .. }
            | Self::OrWrite { blocks, .. }
            | Self::Verify {
                blocks,
                check: ByteCheck::Each,
            } => of(blocks),
            Self::CompareAndWrite { blocks, .. } => 2 * of(blocks),
            Self::Verify {
                blocks,
                check: ByteCheck::One,
            } if blocks.count > 0 => block_bytes.into(),
            Self::WriteSame { no_data: false, .. } => block_bytes.into(),
            Self::Unmap { list_bytes }
            | Self::ExtendedCopy { list_bytes, .. }
            | Self::ModeSelect { list_bytes, .. }
            | Self::PersistentReserveOut { list_bytes, .. } => list_bytes.into(),
            _ => 0,
        }
    }

    /// Whether the command writes what there is if the initiator announces less data than the CDB
    /// names, with a residual overflow (SAM-5 section 5.4.3.2 leaves it to the transport; FCP-4
    /// section 9.4.2 spells the choice out). All others are refused: cut parameters or data to
    /// compare with mean something else.
    pub(crate) fn may_be_cut(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteVerify { .. })
    }

    /// Whether more data than the CDB names is an error rather than a residual: a block to repeat
    /// or to compare with is not there more than once.
    pub(crate) fn needs_exact_data_out(&self) -> bool {
        matches!(self, Self::CompareAndWrite { .. } | Self::WriteSame { .. })
    }
}

/// Whether a CDB's operation code has service actions, and which one this is.
pub(crate) fn service_action(cdb: &[u8; 16]) -> Option<u16> {
    has_service_actions(cdb[0]).then(|| u16::from(cdb[1] & 0x1f))
}

#[cfg(test)]
mod tests {
    use super::super::opcodes::{self, TABLE};
    use super::*;

    /// Goal: the table of REPORT SUPPORTED OPERATION CODES and the decoder never drift apart.
    /// Method: every CDB of the table is known, its access is the decoder's, and no others are.
    #[test]
    fn table_and_decoder_agree() {
        for entry in TABLE {
            let mut cdb = [0; 16];
            cdb[0] = entry.opcode;
            cdb[1] = entry.service_action.unwrap_or(0) as u8;
            let command = Command::decode(&cdb);
            let command = command.unwrap_or_else(|sense| panic!("{entry:?}: {sense:?}"));
            assert_eq!(command.access(), entry.access, "{entry:?}");
            assert_eq!(service_action(&cdb), entry.service_action);
        }
        for opcode in 0..=255 {
            for action in 0..32 {
                let mut cdb = [0; 16];
                cdb[0] = opcode;
                cdb[1] = action;
                let is_unknown = Command::decode(&cdb) == Err(Sense::INVALID_OPERATION_CODE);
                assert_eq!(is_unknown, !opcodes::is_known_opcode(opcode), "{opcode:#x}");
            }
        }
    }

    #[test]
    fn fields_are_where_the_standards_put_them() {
        let mut cdb = [0; 16];
        cdb[..6].copy_from_slice(&[0x08, 0xff, 0x34, 0x56, 0, 0]);
        assert_eq!(
            Command::decode(&cdb).unwrap().blocks(),
            Some(Blocks {
                lba: 0x1f_3456,
                count: 256
            })
        );
        cdb[..10].copy_from_slice(&[0x2a, 0x08, 1, 2, 3, 4, 0, 5, 6, 0]);
        assert_eq!(
            Command::decode(&cdb),
            Ok(Command::Write {
                blocks: Blocks {
                    lba: 0x0102_0304,
                    count: 0x0506
                },
                force_unit_access: true
            })
        );
        cdb[..12].copy_from_slice(&[0xa8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
        assert_eq!(
            Command::decode(&cdb).unwrap().blocks(),
            Some(Blocks {
                lba: 0x0102_0304,
                count: 0x0506_0708
            })
        );
        cdb = [0x93, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0];
        assert_eq!(
            Command::decode(&cdb),
            Ok(Command::WriteSame {
                blocks: Blocks {
                    lba: 0x0102_0304_0506_0708,
                    count: 0x090a_0b0c
                },
                unmap: true,
                no_data: true
            })
        );
        cdb[1] = 0x18;
        assert_eq!(Command::decode(&cdb), Err(Sense::cdb_field(1)));
        cdb = [0; 16];
        cdb[0] = 0x2f;
        cdb[1] = 4;
        assert_eq!(Command::decode(&cdb), Err(Sense::cdb_field(1)));
        cdb[1] = 0x20;
        assert_eq!(Command::decode(&cdb), Err(Sense::cdb_field(1)));
        cdb[1] = 0;
        cdb[9] = 4;
        assert_eq!(Command::decode(&cdb), Err(Sense::INVALID_FIELD_IN_CDB));
    }
}
