//! A session in full feature phase, without its socket (RFC 7143 sections 4, 7 and 11).
//!
//! A session and all its connections are one state machine, [`Session`], driven by one task.
//! Frames go in ([`Session::receive`]); what is to be sent gathers in a queue for each
//! connection; what needs waiting is asked of the driver as an [`Action`] and answered by
//! [`Session::complete`]. Commands that need no waiting, a cached read among them, are answered
//! inside `receive`.
//!
//! Commands are taken in the order of their CmdSN, whichever connection they come by; data and
//! answers of a command go by the connection that it came by (`connection allegiance`). A
//! connection that is lost ends the session, as ErrorRecoveryLevel 0 wants it; one that logs out,
//! or that is logged in anew with the same CID, ends alone, once none of its commands runs any
//! more; what it sent that waits for older requests of other connections is not begun.
//!
//! Life of a command:
//!
//! ```text
//!             admitted, F=0                  all data here
//!  (arrives) ───────────────▶ Unsolicited ───────┬────────▶ Ordered? ──▶ Running ──▶ (answered)
//!      │                          │ final        │              ▲
//!      │                          ▼              │              │ older commands done
//!      │                    WaitsForMemory ──▶ Solicited        │
//!      └──────────────────────────────────────────────────── (no data)
//! ```
//!
//! A running command is never dropped: an abort marks it, and whoever asked for the abort is
//! answered when it has ended. So nothing that was aborted can still change the medium after the
//! initiator has been told so.
//!
//! A long read waits for memory too, after its order and before it runs. Memory of a session is
//! bounded by its share of a budget (`memory`) and the limits below, whatever the initiator sends.

mod aborts;
mod counters;
mod flow;
mod line;
mod manage;
mod memory;
mod tasks;
#[cfg(test)]
mod tests;
mod transfer;

pub(crate) use crate::login::Parameters;
pub(crate) use aborts::Ticket;
pub(crate) use line::LineId;
pub(crate) use memory::{OUTPUT_FREE_BYTES, base_bytes};
pub(crate) use tasks::TaskId;

use crate::budget::Share;
use crate::pdu::{Frame, Header, Opcode, RejectReason, TAG_NONE, flag, serial_less, target_opcode};
use crate::scsi::{
    CHUNK_BYTES_MAX, Command, CopyStop, Done, NexusId, Outcome, SENSE_BYTES_MAX, Sense,
    TRANSFER_BYTES_MAX, Unit, decode_lun, status,
};
use crate::target::Nexus;
use aborts::Aborts;
use access::TrafficKind;
use bytes::{Bytes, BytesMut};
use counters::Counters;
use line::Lines;
use memory::{COMMANDS_MAX, Held, Memory};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tasks::{Attribute, Expected, Phase, Task, Tasks};
use transfer::{DataOut, Progress, Transfer};

/// Most commands in flight when immediate ones come on top of those within the window.
const TASKS_MAX: usize = COMMANDS_MAX as usize + 32;
/// Most requests held because one before them is missing.
const HELD_REQUESTS_MAX: usize = 32;
/// Longest text request continued over PDUs, in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;

/// The initiator broke the protocol in a way that ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("data digest error")]
    DataDigest,
    #[error("more than {HELD_REQUESTS_MAX} requests came ahead of a missing one")]
    MissingRequest,
    #[error("more than {TASKS_MAX} commands in flight")]
    TooManyTasks,
    #[error("login request in full feature phase")]
    LoginAgain,
}

/// What the driver is asked to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Run a command, then call [`Session::complete`].
    Run {
        task: TaskId,
        unit: Arc<Unit>,
        command: Command,
        data: Bytes,
        stop: CopyStop,
    },
    /// Have other sessions abort their commands on a unit (all units if `None`), see to it that
    /// copies to `fenced` units have ended ([`Unit::fence`]), then call
    /// [`Session::elsewhere_done`].
    AbortElsewhere {
        ticket: Ticket,
        nexuses: Vec<NexusId>,
        lun: Option<u16>,
        fenced: Vec<Arc<Unit>>,
    },
    /// The commands that [`Session::abort_for`] was about have ended.
    Aborted { ticket: Ticket },
}

/// Says what targets there are (SendTargets): names, each with its addresses.
type TargetList = Box<dyn Fn() -> Vec<(String, Vec<String>)> + Send + Sync>;

/// A session in full feature phase.
pub(crate) struct Session {
    nexus: Option<Arc<Nexus>>,
    parameters: Parameters,
    lines: Lines,
    counters: Counters,
    target_list: TargetList,
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
    actions: VecDeque<Action>,
    tasks: Tasks,
    next_transfer_tag: u32,
    memory: Memory,
    /// Requests that came ahead of a missing one, by their CmdSN.
    held: BTreeMap<u32, (LineId, Frame)>,
    aborts: Aborts,
    is_closing: bool,
}

impl Session {
    /// A session that has just logged in, with [`base_bytes`] of memory. Without a nexus it is a
    /// discovery session; `target_list` gives names and addresses for SendTargets.
    pub(crate) fn new(
        nexus: Option<Arc<Nexus>>,
        share: Share,
        parameters: Parameters,
        connection_id: u16,
        cmd_sn: u32,
        stat_sn: u32,
        target_list: TargetList,
    ) -> Self {
        let memory = Memory::new(share, &parameters);
        let mut lines = Lines::default();
        lines.add(&parameters, connection_id, stat_sn);
        Self {
            nexus,
            parameters,
            lines,
            counters: Counters::default(),
            target_list,
            exp_cmd_sn: cmd_sn,
            max_cmd_sn: cmd_sn.wrapping_add(memory.free_slots()).wrapping_sub(1),
            actions: VecDeque::new(),
            tasks: Tasks::default(),
            next_transfer_tag: 1,
            memory,
            held: BTreeMap::new(),
            aborts: Aborts::default(),
            is_closing: false,
        }
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Nothing more is to be received: send what is queued, then close.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// The connections.
    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// The commands in flight.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Takes a frame that came by a connection.
    pub(crate) fn receive(&mut self, line: LineId, frame: Frame) -> Result<(), ProtocolError> {
        if self.is_closing || self.lines.is_closing(line) {
            return Ok(());
        }
        if !frame.is_data_intact {
            self.reject(line, &frame.header, RejectReason::DataDigestError);
            return Err(ProtocolError::DataDigest);
        }
        let has_sequence_number = match frame.header.opcode() {
            Opcode::ScsiCommand | Opcode::TaskManagement | Opcode::Text | Opcode::Logout => true,
            // An answer to a ping is no request.
            Opcode::NopOut => frame.header.initiator_task_tag() != TAG_NONE,
            Opcode::DataOut | Opcode::Snack | Opcode::Login | Opcode::Unknown(_) => false,
        };
        if !has_sequence_number || frame.header.is_immediate() {
            return self.dispatch(line, frame);
        }
        let cmd_sn = frame.header.cmd_sn();
        if cmd_sn == self.exp_cmd_sn {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
            self.memory.window_is(self.granted());
            self.dispatch(line, frame)?;
            while let Some((line, frame)) = self.held.remove(&self.exp_cmd_sn) {
                self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
                self.dispatch(line, frame)?;
            }
            return Ok(());
        }
        // Out of the window: ignored in silence (RFC 7143 section 4.2.2.1).
        if serial_less(cmd_sn, self.exp_cmd_sn) || serial_less(self.max_cmd_sn, cmd_sn) {
            return Ok(());
        }
        // It has a slot, and no more than that.
        let has_room = frame.data.len() as u64 <= self.memory.slot_bytes();
        // What is missing may be on its way by another connection.
        let held_max = match self.lines.len() {
            1 => HELD_REQUESTS_MAX,
            _ => COMMANDS_MAX as usize,
        };
        if self.held.len() >= held_max || !has_room {
            return Err(ProtocolError::MissingRequest);
        }
        // One whose connection has ended is sent again by another.
        let present = self.held.get(&cmd_sn);
        if present.is_none_or(|(before, _)| self.lines.is_closing(*before)) {
            self.held.insert(cmd_sn, (line, frame));
        }
        Ok(())
    }

    fn dispatch(&mut self, line: LineId, frame: Frame) -> Result<(), ProtocolError> {
        // It has had its number, and is aborted with its connection.
        if self.lines.is_closing(line)
            || (self.aborts.is_logging_out(line) && frame.header.opcode() != Opcode::NopOut)
        {
            return Ok(());
        }
        match frame.header.opcode() {
            Opcode::ScsiCommand => self.command(line, frame)?,
            Opcode::DataOut => self.data_out(line, frame),
            Opcode::NopOut => self.nop_out(line, frame),
            Opcode::TaskManagement => self.task_management(line, &frame.header),
            Opcode::Text => self.text(line, frame),
            Opcode::Logout => self.logout(line, &frame.header),
            Opcode::Login => return Err(ProtocolError::LoginAgain),
            // There is no recovery within a connection (ErrorRecoveryLevel 0).
            Opcode::Snack => self.reject(line, &frame.header, RejectReason::ProtocolError),
            Opcode::Unknown(_) => {
                self.reject(line, &frame.header, RejectReason::CommandNotSupported);
            }
        }
        Ok(())
    }

    // ---- sending ----------------------------------------------------------------------------

    fn reject(&mut self, line: LineId, bad: &Header, reason: RejectReason) {
        let mut header = Header::new(target_opcode::REJECT);
        header.0[2] = reason as u8;
        header.set_initiator_task_tag(TAG_NONE);
        self.set_status_numbers(line, &mut header);
        self.lines
            .push_with(line, header, Bytes::copy_from_slice(&bad.0));
    }

    /// Sends data and status of a command, which is out of the books and had `held`.
    fn answer(&mut self, tag: u32, expected: Expected, outcome: Outcome, held: Held) {
        let data_bytes: u64 = outcome.data.iter().map(|piece| piece.len() as u64).sum();
        let moved = if outcome.status == status::GOOD || outcome.sense.is_none() {
            expected.data_out.unwrap_or(0).max(data_bytes)
        } else {
            // What failed before it moved anything has moved nothing.
            expected.data_out.unwrap_or(0)
        };
        // Data goes to initiators that read only.
        let allowed = if expected.is_read {
            expected.bytes.into()
        } else {
            0
        };
        let sent = data_bytes.min(allowed);
        let line = expected.line;
        if let Some(nexus) = &self.nexus {
            let bytes = sent.max(expected.data_out.unwrap_or(0));
            let portal = self.lines.portal(line);
            let status = outcome.status;
            self.counters.count(nexus, portal, &expected, status, bytes);
        }
        match sent {
            0 => self.memory.give_back(held),
            sent => {
                let output_bytes = self.lines.output_bytes() as u64 + sent;
                self.memory.answered(held, output_bytes);
            }
        }
        let bytes = u64::from(expected.bytes);
        let is_mismatch = data_bytes > 0 && !expected.is_read;
        let (residual_flag, residual) = if is_mismatch {
            (flag::OVERFLOW, data_bytes)
        } else if moved > bytes {
            (flag::OVERFLOW, moved - bytes)
        } else if moved < bytes {
            (flag::UNDERFLOW, bytes - moved)
        } else {
            (0, 0)
        };
        let residual = u32::try_from(residual).unwrap_or(u32::MAX);
        let ends_with_data = sent > 0 && outcome.status == status::GOOD;
        let mut data_pdus = 0;
        if sent > 0 {
            let status = ends_with_data.then_some((residual_flag, residual));
            data_pdus = self.data_in(line, tag, outcome.data, sent, status);
        }
        if ends_with_data {
            return;
        }
        let mut header = Header::new(target_opcode::SCSI_RESPONSE);
        header.0[1] |= residual_flag;
        header.0[3] = outcome.status;
        header.set_initiator_task_tag(tag);
        self.set_status_numbers(line, &mut header);
        header.set_u32(36, data_pdus);
        header.set_u32(44, residual);
        match outcome.sense {
            None => self.lines.push_header(line, header),
            Some(sense) => {
                let (bytes, length) = sense.encode(outcome.is_descriptor_sense);
                let mut segment = BytesMut::with_capacity(2 + SENSE_BYTES_MAX);
                segment.extend_from_slice(&(length as u16).to_be_bytes());
                segment.extend_from_slice(&bytes[..length]);
                self.lines.push_with(line, header, segment.freeze());
            }
        }
    }

    /// Sends the first `total` bytes of `data` as Data-In PDUs; returns how many. With `status`
    /// (residual flag and count) the last one says that the command ended well.
    fn data_in(
        &mut self,
        line: LineId,
        tag: u32,
        data: Vec<Bytes>,
        total: u64,
        status: Option<(u8, u32)>,
    ) -> u32 {
        let pdu_max = u64::from(self.send_data_bytes_max(line));
        let burst_max = u64::from(self.parameters.burst_bytes_max);
        let mut pieces = data;
        let (mut piece, mut piece_at) = (0, 0);
        let (mut offset, mut burst, mut data_sn) = (0, 0, 0);
        while offset < total {
            let length = pdu_max.min(burst_max - burst).min(total - offset);
            let is_last = offset + length == total;
            burst += length;
            let mut header = Header::new(target_opcode::DATA_IN);
            header.0[1] = 0;
            if is_last || burst == burst_max {
                header.0[1] |= flag::FINAL;
                burst = 0;
            }
            header.set_initiator_task_tag(tag);
            header.set_target_tag(TAG_NONE);
            match status {
                Some((residual_flag, residual)) if is_last => {
                    header.0[1] |= flag::STATUS | residual_flag;
                    self.set_status_numbers(line, &mut header);
                    header.set_u32(44, residual);
                }
                _ => self.set_window(&mut header),
            }
            header.set_u32(36, data_sn);
            // A 64-bit transfer cannot be: the expected length has 32 bits.
            header.set_u32(40, offset as u32);
            offset += length;
            data_sn += 1;
            if piece_at == 0 && pieces.get(piece).is_some_and(|p| p.len() as u64 == length) {
                // The common case: a PDU is a piece.
                let whole = std::mem::take(&mut pieces[piece]);
                piece += 1;
                self.lines.push_with(line, header, whole);
                continue;
            }
            let mut left = length as usize;
            let mut slices = Vec::new();
            while left > 0 {
                let rest = &pieces[piece][piece_at..];
                let take = rest.len().min(left);
                slices.push(pieces[piece].slice(piece_at..piece_at + take));
                left -= take;
                piece_at += take;
                if piece_at == pieces[piece].len() {
                    piece += 1;
                    piece_at = 0;
                }
            }
            self.lines.push(line, header, slices.into_iter());
        }
        data_sn
    }

    // ---- commands ---------------------------------------------------------------------------

    fn command(&mut self, line: LineId, frame: Frame) -> Result<(), ProtocolError> {
        let header = &frame.header;
        let tag = header.initiator_task_tag();
        if self.nexus.is_none() {
            self.reject(line, header, RejectReason::ProtocolError);
            return Ok(());
        }
        if tag == TAG_NONE {
            self.reject(line, header, RejectReason::InvalidField);
            return Ok(());
        }
        if self.tasks.has_tag(tag) {
            self.reject(line, header, RejectReason::TaskInProgress);
            return Ok(());
        }
        let is_immediate = header.is_immediate();
        if self.tasks.len() >= TASKS_MAX && !is_immediate {
            return Err(ProtocolError::TooManyTasks);
        }
        let held = match self.memory.admit(is_immediate) {
            Some(held) if self.tasks.len() < TASKS_MAX => held,
            held => {
                self.memory.give_back(held.unwrap_or_default());
                self.reject(line, header, RejectReason::TooManyImmediateCommands);
                return Ok(());
            }
        };
        let Some(nexus) = &self.nexus else {
            return Ok(());
        };
        let flags = header.flags();
        let is_write = flags & flag::WRITE != 0;
        let attribute = match flags & 7 {
            2 => Attribute::Ordered,
            3 => Attribute::HeadOfQueue,
            _ => Attribute::Simple,
        };
        let lun = header.lun();
        let announced = header.u32_at(20);
        let mut expected = Expected {
            line,
            kind: None,
            arrived: Instant::now(),
            bytes: announced,
            is_read: flags & flag::READ != 0,
            data_out: None,
        };
        let mut cdb = [0; 16];
        cdb.copy_from_slice(&header.0[32..48]);

        let expects_unsolicited = is_write && flags & flag::FINAL == 0;
        let immediate = if is_write { frame.data } else { Bytes::new() };
        let first_burst = self.parameters.first_burst_bytes_max.min(announced) as usize;
        let is_bad_unsolicited = (!immediate.is_empty()
            && (!self.parameters.immediate_data || immediate.len() > first_burst))
            || (expects_unsolicited && self.parameters.initial_r2t);

        let admitted = if is_bad_unsolicited {
            Err(Sense::UNEXPECTED_UNSOLICITED_DATA.into())
        } else {
            nexus.admit(lun, &cdb)
        };
        let announced_out = if is_write { announced } else { 0 };
        let mut wanted = 0;
        let admitted = admitted.and_then(|(unit, command)| {
            let data_out = command.data_out_bytes(unit.block_bytes());
            let kind = match command {
                Command::Read { .. } => TrafficKind::Read,
                _ if command.changes_medium() => TrafficKind::Write,
                _ => TrafficKind::Other,
            };
            expected.kind = decode_lun(lun).map(|lun| (kind, lun));
            expected.data_out = Some(data_out);
            let announced_out = u64::from(announced_out);
            if data_out > announced_out && !command.may_be_cut() {
                return Err(Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT.into());
            }
            if data_out < announced_out && command.needs_exact_data_out() {
                return Err(Sense::INVALID_FIELD_IN_CDB.into());
            }
            // At most what was announced, which has 32 bits.
            let data_out = data_out.min(announced_out);
            wanted = data_out as u32;
            Ok((unit, command))
        });
        let serial = self.tasks.next_serial();

        let (unit, command) = match admitted {
            Ok(admitted) => admitted,
            Err(outcome) if !expects_unsolicited => {
                self.answer(tag, expected, outcome, held);
                return Ok(());
            }
            Err(outcome) => {
                // The initiator is still sending: answered when that is over.
                let transfer = Transfer::new(0, announced_out, immediate, true, &self.parameters);
                let task = Task {
                    serial,
                    lun,
                    attribute,
                    phase: Phase::Unsolicited,
                    job: None,
                    transfer: Some(transfer),
                    early: Some(outcome),
                    expected,
                    held,
                    needs_bytes: 0,
                    is_aborted: false,
                    stop: None,
                };
                self.insert(tag, task);
                return Ok(());
            }
        };
        let needs_data = wanted > 0 || expects_unsolicited;
        let is_free = !self.tasks.has_ordered() && attribute != Attribute::Ordered;
        let length_bytes = |count: u32| u64::from(count) * u64::from(unit.block_bytes());
        let read_bytes = match command {
            Command::Read { blocks, .. } => length_bytes(blocks.count),
            // They read what they compare with piece by piece.
            Command::Verify { blocks, .. }
            | Command::WriteVerify { blocks, .. }
            | Command::OrWrite { blocks, .. } => {
                length_bytes(blocks.count).min(CHUNK_BYTES_MAX.into())
            }
            // What is read, and that in one piece.
            Command::ExtendedCopy { .. } => 2 * u64::from(CHUNK_BYTES_MAX),
            _ => 0,
        };
        let mut held = held;
        // No more than the longest command: the budget has that in any case.
        let data_bytes = (u64::from(wanted) + read_bytes).min(TRANSFER_BYTES_MAX.into());
        let mut needs_bytes = self.memory.needs(data_bytes);
        if !needs_data
            && (is_free || self.tasks.is_empty())
            && let Some(paid_bytes) = self.memory.pay(needs_bytes)
        {
            // The fast path: nothing in flight that order could matter to.
            needs_bytes = 0;
            held.extra_bytes += paid_bytes;
            if self.try_now(tag, expected, &unit, &command, &[], held) {
                return Ok(());
            }
        }
        let transfer = needs_data.then(|| {
            Transfer::new(
                wanted,
                announced_out,
                immediate,
                expects_unsolicited,
                &self.parameters,
            )
        });
        let task = Task {
            serial,
            lun,
            attribute,
            phase: Phase::Unsolicited,
            job: Some((unit, command)),
            transfer,
            early: None,
            expected,
            held,
            needs_bytes,
            is_aborted: false,
            stop: None,
        };
        self.insert(tag, task);
        if !expects_unsolicited {
            self.after_unsolicited(TaskId { tag, serial });
        }
        Ok(())
    }

    fn insert(&mut self, tag: u32, task: Task) {
        self.memory.begin(task.held);
        self.tasks.insert(tag, task);
    }

    /// Carries a command out at once and answers it, if that is possible. It is not in the books.
    fn try_now(
        &mut self,
        tag: u32,
        expected: Expected,
        unit: &Arc<Unit>,
        command: &Command,
        data: &[u8],
        held: Held,
    ) -> bool {
        let Some(nexus) = &self.nexus else {
            return false;
        };
        let Some(outcome) = nexus.execute_now(unit, command, data) else {
            return false;
        };
        self.answer(tag, expected, outcome, held);
        true
    }

    /// Unsolicited data is over (or there was none).
    fn after_unsolicited(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(id.tag) else {
            return;
        };
        if let Some(outcome) = task.early.take() {
            let expected = task.expected;
            self.finish(id.tag);
            self.answer(id.tag, expected, outcome, Held::default());
            return;
        }
        match &task.transfer {
            Some(transfer) if !transfer.is_complete() => self.stand_in_line(id),
            _ => self.start(id),
        }
    }

    /// Sends as many R2Ts as a command may have.
    fn solicit(&mut self, tag: u32) {
        loop {
            let Some(task) = self.tasks.get_mut(tag) else {
                return;
            };
            let (line, lun) = (task.expected.line, task.lun);
            let Some(transfer) = &mut task.transfer else {
                return;
            };
            let Some(wanted) = transfer.solicit(&self.parameters, &mut self.next_transfer_tag)
            else {
                return;
            };
            let mut header = Header::new(target_opcode::READY_TO_TRANSFER);
            header.set_lun(lun);
            header.set_initiator_task_tag(tag);
            header.set_target_tag(wanted.transfer_tag);
            self.set_window(&mut header);
            // The next StatSN, which an R2T does not use up.
            header.set_u32(24, self.lines.next_stat_sn(line));
            header.set_u32(36, wanted.sequence_number);
            header.set_u32(40, wanted.offset);
            header.set_u32(44, wanted.length);
            self.lines.push_header(line, header);
        }
    }

    fn data_out(&mut self, line: LineId, frame: Frame) {
        let header = &frame.header;
        let tag = header.initiator_task_tag();
        if let Some(line) = self.lines.get_mut(line) {
            line.data_out_count += 1;
        }
        // Data of a command that has ended is on its way still: dropped. So is what comes by
        // another connection than its command.
        let task = self.tasks.get_mut(tag);
        let Some(task) = task.filter(|task| task.expected.line == line) else {
            return;
        };
        let Some(transfer) = &mut task.transfer else {
            return;
        };
        let serial = task.serial;
        let progress = transfer.data_out(DataOut {
            transfer_tag: match header.target_tag() {
                TAG_NONE => None,
                transfer_tag => Some(transfer_tag),
            },
            data_sn: header.u32_at(36),
            offset: header.u32_at(40),
            is_final: header.is_final(),
            data: frame.data,
        });
        let id = TaskId { tag, serial };
        match (progress, &task.phase) {
            (Progress::More, _) => {}
            (Progress::SequenceDone, Phase::Unsolicited) => self.after_unsolicited(id),
            (Progress::SequenceDone, _) => {
                if transfer.is_complete() {
                    self.start(id);
                } else {
                    self.solicit(tag);
                }
            }
            (Progress::OutOfOrder | Progress::WrongAmount, _) => {
                let sense = match progress {
                    Progress::OutOfOrder => Sense::PROTOCOL_SERVICE_CRC_ERROR,
                    _ => Sense::NOT_ENOUGH_UNSOLICITED_DATA,
                };
                let expected = task.expected;
                self.finish(tag);
                self.answer(tag, expected, sense.into(), Held::default());
            }
        }
    }

    /// All that a command needs is here: runs it, unless an older one must end first.
    fn start(&mut self, id: TaskId) {
        let must_wait = self.tasks.must_wait(id);
        let task = self.tasks.get_mut(id.tag);
        let Some(task) = task.filter(|task| task.serial == id.serial) else {
            return;
        };
        if task.phase == Phase::Running {
            return;
        }
        if must_wait {
            self.tasks.set_phase(id.tag, Phase::Waits);
            return;
        }
        if task.needs_bytes > 0 {
            self.stand_in_line(id);
            return;
        }
        let Some(task) = self.tasks.set_phase(id.tag, Phase::Running) else {
            return;
        };
        let Some((unit, command)) = task.job.take() else {
            return;
        };
        let data = match task.transfer.take() {
            Some(transfer) => transfer.into_data(),
            None => Bytes::new(),
        };
        let (expected, held) = (task.expected, task.held);
        // The answer is composed with the command out of the way, so that the window it
        // reports has the command's place free again.
        let taken = self.take(id.tag);
        if self.try_now(id.tag, expected, &unit, &command, &data, held) {
            self.after_end();
            return;
        }
        let stop = CopyStop::default();
        if let Some(mut task) = taken {
            task.stop = Some(stop.clone());
            self.insert(id.tag, task);
        }
        self.actions.push_back(Action::Run {
            task: id,
            unit,
            command,
            data,
            stop,
        });
    }

    /// A command that the driver ran has ended.
    pub(crate) fn complete(&mut self, id: TaskId, done: impl Into<Done>) {
        let Done { outcome, abort } = done.into();
        let task = self.tasks.get_mut(id.tag);
        let Some(task) = task.filter(|task| task.serial == id.serial) else {
            return;
        };
        if !abort.is_empty() {
            // PREEMPT AND ABORT: answered when the others' commands have ended.
            let lun = task.lun;
            task.early = Some(outcome);
            self.abort_elsewhere_for_task(id, abort, lun);
            return;
        }
        let Some(task) = self.take(id.tag) else {
            return;
        };
        if task.is_aborted || self.is_closing {
            self.memory.give_back(task.held);
        } else {
            self.answer(id.tag, task.expected, outcome, task.held);
        }
        self.after_end();
        if task.is_aborted {
            self.open_window();
        }
    }

    /// Takes a command out of the books. What it has goes on to its answer, or is given back.
    fn take(&mut self, tag: u32) -> Option<Task> {
        let task = self.tasks.remove(tag)?;
        self.memory.end(task.held);
        Some(task)
    }

    /// Forgets a command that is not running, unanswered.
    fn forget(&mut self, tag: u32) {
        if let Some(task) = self.take(tag) {
            self.memory.give_back(task.held);
        }
    }

    /// The same; others may go on.
    fn finish(&mut self, tag: u32) {
        self.forget(tag);
        self.after_end();
    }

    /// A command has ended: others may go on.
    fn after_end(&mut self) {
        if !self.memory.waiting.is_empty() {
            self.hand_out_memory();
        }
        for id in self.tasks.waiting() {
            self.start(id);
        }
        if !self.aborts.is_empty() {
            self.settle_aborts();
        }
    }
}
