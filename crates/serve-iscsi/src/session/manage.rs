//! What is not a SCSI command: task management, pings, text, logout, messages of our own.

use super::aborts::{Elsewhere, Ticket, Waiter};
use super::line::LineId;
use super::tasks::{Phase, TaskId};
use super::{Action, Session, TEXT_BYTES_MAX, TargetList};
use crate::pdu::{Frame, Header, RejectReason, TAG_NONE, flag, target_opcode};
use crate::scsi::{NexusId, decode_lun};
use crate::text;
use bytes::Bytes;

/// Functions (RFC 7143 section 11.5.1).
mod function {
    pub(super) const ABORT_TASK: u8 = 1;
    pub(super) const ABORT_TASK_SET: u8 = 2;
    pub(super) const CLEAR_TASK_SET: u8 = 4;
    pub(super) const LOGICAL_UNIT_RESET: u8 = 5;
    pub(super) const TARGET_WARM_RESET: u8 = 6;
    pub(super) const TASK_REASSIGN: u8 = 8;
}

/// Responses (RFC 7143 section 11.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Response {
    Complete = 0,
    NoSuchTask = 1,
    NoSuchUnit = 2,
    ReassignNotSupported = 4,
    NotSupported = 5,
    Rejected = 255,
}

/// Events of asynchronous messages (RFC 7143 section 11.9.1).
const ASYNC_EVENT_LOGOUT_REQUEST: u8 = 1;
const ASYNC_EVENT_CONNECTION_DROP: u8 = 2;

impl Session {
    // ---- task management --------------------------------------------------------------------

    pub(super) fn task_management(&mut self, line: LineId, header: &Header) {
        let tag = header.initiator_task_tag();
        let Some(nexus) = self.nexus.clone() else {
            self.reject(line, header, RejectReason::ProtocolError);
            return;
        };
        if self.aborts.is_full() {
            self.answer_task_management(line, tag, Response::Rejected);
            return;
        }
        let function = header.flags() & 0x7f;
        let lun = decode_lun(header.lun());
        let unit = lun.and_then(|lun| nexus.unit(lun));
        let is_of_unit = matches!(
            function,
            function::ABORT_TASK_SET | function::CLEAR_TASK_SET | function::LOGICAL_UNIT_RESET
        );
        if is_of_unit && unit.is_none() {
            self.answer_task_management(line, tag, Response::NoSuchUnit);
            return;
        }
        match function {
            function::ABORT_TASK => {
                let referenced = header.target_tag();
                let found = self.tasks.get(referenced);
                match found.filter(|task| task.lun == header.lun()) {
                    None => self.answer_task_management(line, tag, Response::NoSuchTask),
                    Some(task) => {
                        let id = TaskId {
                            tag: referenced,
                            serial: task.serial,
                        };
                        let running = self.abort_tasks(vec![id]);
                        self.add_abort(Waiter::Request(line, tag), running, Elsewhere::default());
                    }
                }
            }
            function::ABORT_TASK_SET => {
                let running = self.abort_all(lun);
                self.add_abort(Waiter::Request(line, tag), running, Elsewhere::default());
            }
            function::CLEAR_TASK_SET => {
                let running = self.abort_all(lun);
                let elsewhere = Elsewhere {
                    nexuses: nexus.clear_task_set(lun),
                    lun,
                    fenced: Vec::new(),
                };
                self.add_abort(Waiter::Request(line, tag), running, elsewhere);
            }
            function::LOGICAL_UNIT_RESET => {
                let running = self.abort_all(lun);
                let elsewhere = Elsewhere {
                    nexuses: nexus.reset(lun),
                    lun,
                    fenced: nexus.units_of(lun),
                };
                self.add_abort(Waiter::Request(line, tag), running, elsewhere);
            }
            function::TARGET_WARM_RESET => {
                let running = self.abort_all(None);
                let elsewhere = Elsewhere {
                    nexuses: nexus.reset(None),
                    lun: None,
                    fenced: nexus.units_of(None),
                };
                self.add_abort(Waiter::Request(line, tag), running, elsewhere);
            }
            function::TASK_REASSIGN => {
                self.answer_task_management(line, tag, Response::ReassignNotSupported);
            }
            // TARGET COLD RESET too, which is optional: it would end other initiators' sessions.
            _ => self.answer_task_management(line, tag, Response::NotSupported),
        }
    }

    fn answer_task_management(&mut self, line: LineId, tag: u32, response: Response) {
        let mut header = Header::new(target_opcode::TASK_MANAGEMENT_RESPONSE);
        header.0[2] = response as u8;
        header.set_initiator_task_tag(tag);
        self.set_status_numbers(line, &mut header);
        self.lines.push_header(line, header);
    }

    /// Aborts own commands on a unit, or on all; returns those that still run.
    fn abort_all(&mut self, lun: Option<u16>) -> Vec<TaskId> {
        let ids = self.tasks.of_unit(lun);
        self.abort_tasks(ids)
    }

    pub(super) fn abort_tasks(&mut self, ids: Vec<TaskId>) -> Vec<TaskId> {
        let mut running = Vec::new();
        let mut ended = Vec::new();
        for id in ids {
            let Some(task) = self.tasks.get_mut(id.tag) else {
                continue;
            };
            if matches!(task.phase, Phase::Running) {
                task.is_aborted = true;
                if let Some(stop) = &task.stop {
                    stop.stop();
                }
                running.push(id);
            } else {
                ended.push(id.tag);
            }
        }
        // All are out before others may go on.
        for tag in ended {
            self.forget(tag);
        }
        self.after_end();
        running
    }

    fn add_abort(&mut self, waiter: Waiter, running: Vec<TaskId>, elsewhere: Elsewhere) {
        let Elsewhere {
            nexuses,
            lun,
            fenced,
        } = elsewhere;
        let is_elsewhere = !nexuses.is_empty() || !fenced.is_empty();
        let elsewhere = is_elsewhere.then(|| {
            let ticket = self.aborts.next_ticket();
            self.actions.push_back(Action::AbortElsewhere {
                ticket,
                nexuses,
                lun,
                fenced,
            });
            ticket
        });
        self.aborts.add(waiter, running, elsewhere);
        self.settle_aborts();
    }

    /// PREEMPT AND ABORT has taken place: its answer waits for the others' commands.
    pub(super) fn abort_elsewhere_for_task(
        &mut self,
        id: TaskId,
        nexuses: Vec<NexusId>,
        lun: [u8; 8],
    ) {
        let elsewhere = Elsewhere {
            nexuses,
            lun: decode_lun(lun),
            fenced: Vec::new(),
        };
        self.add_abort(Waiter::Task(id), Vec::new(), elsewhere);
    }

    /// Another session wants commands aborted; [`Action::Aborted`] tells when they have ended.
    pub(crate) fn abort_for(&mut self, ticket: Ticket, lun: Option<u16>) {
        let running = self.abort_all(lun);
        self.add_abort(Waiter::Session(ticket), running, Elsewhere::default());
    }

    /// Other sessions have aborted what they were asked to.
    pub(crate) fn elsewhere_done(&mut self, ticket: Ticket) {
        self.aborts.elsewhere_done(ticket);
        self.settle_aborts();
    }

    /// Answers those whose aborts are complete.
    pub(super) fn settle_aborts(&mut self) {
        for waiter in self.aborts.take_done(&self.tasks) {
            match waiter {
                Waiter::Request(line, tag) => {
                    self.answer_task_management(line, tag, Response::Complete);
                }
                Waiter::Logout {
                    asked_by,
                    tag,
                    line,
                } => {
                    self.answer_logout(asked_by, tag, 0);
                    self.lines.end(line);
                }
                Waiter::Session(ticket) => self.actions.push_back(Action::Aborted { ticket }),
                Waiter::Task(id) => {
                    let task = self.tasks.get_mut(id.tag);
                    if let Some(outcome) = task.and_then(|task| task.early.take()) {
                        self.complete(id, outcome);
                    }
                }
            }
        }
    }

    // ---- pings ------------------------------------------------------------------------------

    pub(super) fn nop_out(&mut self, line: LineId, frame: Frame) {
        let tag = frame.header.initiator_task_tag();
        if tag == TAG_NONE {
            // The answer to a ping of ours: that it came is all there is to it.
            return;
        }
        let mut header = Header::new(target_opcode::NOP_IN);
        header.set_lun(frame.header.lun());
        header.set_initiator_task_tag(tag);
        header.set_target_tag(TAG_NONE);
        self.set_status_numbers(line, &mut header);
        let length = frame.data.len();
        let length = length.min(self.send_data_bytes_max(line) as usize);
        self.lines
            .push_with(line, header, frame.data.slice(..length));
    }

    /// Asks the initiator, from which nothing comes by a connection, for a sign of life.
    pub(crate) fn ping(&mut self, line: LineId) {
        if self.lines.len() == 1 {
            self.memory.is_idle();
        }
        let mut header = Header::new(target_opcode::NOP_IN);
        header.set_initiator_task_tag(TAG_NONE);
        header.set_target_tag(self.next_transfer_tag);
        self.next_transfer_tag = match self.next_transfer_tag.wrapping_add(1) {
            TAG_NONE => 0,
            tag => tag,
        };
        self.set_window(&mut header);
        header.set_u32(24, self.lines.next_stat_sn(line));
        self.lines.push_header(line, header);
    }

    // ---- text -------------------------------------------------------------------------------

    pub(super) fn text(&mut self, line: LineId, frame: Frame) {
        let header = &frame.header;
        let Some(state) = self.lines.get_mut(line) else {
            return;
        };
        let (mut text_in, text_out) = (std::mem::take(&mut state.text_in), state.text_out.take());
        let tag = header.initiator_task_tag();
        let is_continued = header.flags() & flag::CONTINUE != 0;
        let is_follow_up = header.target_tag() != TAG_NONE;
        if let Some((transfer_tag, rest)) = text_out
            && is_follow_up
        {
            if header.target_tag() == transfer_tag && frame.data.is_empty() {
                self.send_text(line, header, tag, rest);
            } else {
                self.reject(line, header, RejectReason::ProtocolError);
            }
            return;
        }
        if !is_follow_up {
            text_in.clear();
        }
        if (is_continued && header.is_final()) || text_in.len() + frame.data.len() > TEXT_BYTES_MAX
        {
            self.reject(line, header, RejectReason::ProtocolError);
            return;
        }
        text_in.extend_from_slice(&frame.data);
        if is_continued {
            if let Some(state) = self.lines.get_mut(line) {
                state.text_in = text_in;
            }
            // An empty answer asks for the rest.
            let mut reply = Header::new(target_opcode::TEXT_RESPONSE);
            reply.0[1] = 0;
            reply.set_lun(header.lun());
            reply.set_initiator_task_tag(tag);
            reply.set_target_tag(self.next_transfer_tag);
            self.set_status_numbers(line, &mut reply);
            self.lines.push_header(line, reply);
            return;
        }
        let Ok(pairs) = text::parse(&text_in) else {
            self.reject(line, header, RejectReason::ProtocolError);
            return;
        };
        let mut reply = Vec::new();
        for (key, value) in pairs {
            match key.as_str() {
                "SendTargets" => {
                    let own = self.nexus.as_ref().map(|nexus| nexus.iqn());
                    send_targets(own, &self.target_list, &value, &mut reply);
                }
                // The only key that may be declared anew (RFC 7143 section 13.12).
                "MaxRecvDataSegmentLength" => match text::number(&value) {
                    Some(length @ 512..=0xff_ffff) => {
                        if let Some(state) = self.lines.get_mut(line) {
                            state.send_data_bytes_max = length;
                        }
                    }
                    _ => text::append(&mut reply, &key, "Reject"),
                },
                _ => text::append(&mut reply, &key, "NotUnderstood"),
            }
        }
        self.send_text(line, header, tag, reply);
    }

    /// Sends a text as far as it fits, and keeps the rest for when it is asked for.
    fn send_text(&mut self, line: LineId, request: &Header, tag: u32, mut text: Vec<u8>) {
        let length_max = self.send_data_bytes_max(line) as usize;
        let mut header = Header::new(target_opcode::TEXT_RESPONSE);
        header.set_lun(request.lun());
        header.set_initiator_task_tag(tag);
        header.set_target_tag(TAG_NONE);
        self.set_status_numbers(line, &mut header);
        if text.len() > length_max {
            let rest = text.split_off(length_max);
            header.0[1] = flag::CONTINUE;
            let transfer_tag = self.next_transfer_tag;
            self.next_transfer_tag = match transfer_tag.wrapping_add(1) {
                TAG_NONE => 0,
                tag => tag,
            };
            header.set_target_tag(transfer_tag);
            if let Some(state) = self.lines.get_mut(line) {
                state.text_out = Some((transfer_tag, rest));
            }
        }
        self.lines.push_with(line, header, Bytes::from(text));
    }

    // ---- the end ----------------------------------------------------------------------------

    pub(super) fn logout(&mut self, line: LineId, header: &Header) {
        const CLOSE_SESSION: u8 = 0;
        const CLOSE_CONNECTION: u8 = 1;
        const RECOVERY: u8 = 2;
        const NO_SUCH_CONNECTION: u8 = 1;
        const RECOVERY_NOT_SUPPORTED: u8 = 2;
        let tag = header.initiator_task_tag();
        match header.flags() & 0x7f {
            RECOVERY => self.answer_logout(line, tag, RECOVERY_NOT_SUPPORTED),
            CLOSE_SESSION => {
                self.answer_logout(line, tag, 0);
                self.close();
            }
            CLOSE_CONNECTION => match self.lines.of_connection(header.u16_at(20)) {
                None => self.answer_logout(line, tag, NO_SUCH_CONNECTION),
                Some(_) if self.lines.open().len() == 1 => {
                    self.answer_logout(line, tag, 0);
                    self.close();
                }
                // Answered when none of its commands runs any more: the initiator may send them
                // again by another connection then.
                Some(ends) => {
                    let running = self.abort_tasks(self.tasks.of_line(ends));
                    let waiter = Waiter::Logout {
                        asked_by: line,
                        tag,
                        line: ends,
                    };
                    self.add_abort(waiter, running, Elsewhere::default());
                }
            },
            _ => self.reject(line, header, RejectReason::InvalidField),
        }
    }

    fn answer_logout(&mut self, line: LineId, tag: u32, response: u8) {
        let mut reply = Header::new(target_opcode::LOGOUT_RESPONSE);
        reply.0[2] = response;
        reply.set_initiator_task_tag(tag);
        self.set_status_numbers(line, &mut reply);
        self.lines.push_header(line, reply);
    }

    /// No more requests are taken; commands that run go on, unanswered.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        self.abort_all(None);
    }

    fn async_message(&mut self, line: LineId, event: u8, parameters: [u16; 3]) {
        let mut header = Header::new(target_opcode::ASYNC_MESSAGE);
        header.set_initiator_task_tag(TAG_NONE);
        self.set_status_numbers(line, &mut header);
        header.0[36] = event;
        for (at, parameter) in [38, 40, 42].into_iter().zip(parameters) {
            header.set_u16(at, parameter);
        }
        self.lines.push_header(line, header);
    }

    /// Asks the initiator to log out all connections within some seconds.
    pub(crate) fn request_logout(&mut self, seconds: u16) {
        for line in self.lines.open() {
            self.async_message(line, ASYNC_EVENT_LOGOUT_REQUEST, [0, 0, seconds]);
        }
    }

    /// Says that the connections are about to be closed.
    pub(crate) fn announce_drop(&mut self) {
        for line in self.lines.open() {
            let connection = self
                .lines
                .get_mut(line)
                .map_or(0, |line| line.connection_id);
            self.async_message(line, ASYNC_EVENT_CONNECTION_DROP, [connection, 2, 0]);
        }
    }
}

/// Answers SendTargets (RFC 7143 appendix C) in a session with the target `own`, if it has one.
fn send_targets(own: Option<&str>, all: &TargetList, value: &str, reply: &mut Vec<u8>) {
    // In a normal session "All" is not allowed and nothing means the session's own target.
    if value == "All" && own.is_some() {
        text::append(reply, "SendTargets", "Reject");
        return;
    }
    for (name, addresses) in all() {
        let is_wanted = match (value, own) {
            ("All", None) => true,
            ("", Some(own)) => name == own,
            (wanted, _) => name.eq_ignore_ascii_case(wanted),
        };
        if is_wanted {
            text::append(reply, "TargetName", &name);
            for address in addresses {
                text::append(reply, "TargetAddress", &address);
            }
        }
    }
}
