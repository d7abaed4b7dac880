//! What lets a session go on: its connections, the window of its commands, and its memory.

use super::Session;
use super::line::LineId;
use super::tasks::{Phase, TaskId};
use crate::login::Parameters;
use crate::pdu::{Header, TAG_NONE, serial_less, target_opcode};
use std::task::Waker;

impl Session {
    // ---- connections ------------------------------------------------------------------------

    /// How many connections the initiator may have.
    pub(crate) fn has_room_for_line(&self) -> bool {
        self.lines.open().len() < self.parameters.connections_max as usize
    }

    /// Another connection has logged in; `parameters` are what it has agreed on for itself. `None`
    /// if there is no memory for it.
    pub(crate) fn add_line(
        &mut self,
        parameters: &Parameters,
        connection_id: u16,
        stat_sn: u32,
    ) -> Option<LineId> {
        if !self.memory.add_connection() {
            return None;
        }
        Some(self.lines.add(parameters, connection_id, stat_sn))
    }

    /// Sends the last answer of the login of a connection that was added: its StatSN is the
    /// login's, and it has no digests yet.
    pub(crate) fn answer_login(&mut self, id: LineId, mut header: Header, text: Vec<u8>) {
        self.set_window(&mut header);
        self.lines.push_plain(id, header, text.into());
    }

    /// A connection of several takes no more requests, and nothing more is received by it; its
    /// commands are aborted.
    pub(crate) fn close_line(&mut self, id: LineId) {
        self.lines.end(id);
        self.abort_tasks(self.tasks.of_line(id));
    }

    /// A connection is gone.
    pub(crate) fn remove_line(&mut self, id: LineId) {
        if self.lines.remove(id) {
            self.memory.remove_connection();
        }
    }

    /// So many bytes have been sent by a connection.
    pub(crate) fn sent(&mut self, id: LineId, bytes: usize) {
        if let Some(is_all_sent) = self.lines.sent(id, bytes) {
            self.output_shrank(is_all_sent);
        }
    }

    /// What commands wait for that the initiator has to do by a connection: send data, take data.
    /// Each is a number that is another one whenever it has done some of it.
    pub(crate) fn awaited(&self, id: LineId) -> [Option<u64>; 2] {
        let Some(line) = self.lines.get(id) else {
            return [None; 2];
        };
        let awaits_data = self.tasks.await_data_by(id);
        [
            awaits_data.then_some(line.data_out_count),
            line.has_output().then_some(line.sent_count),
        ]
    }

    pub(super) fn send_data_bytes_max(&self, id: LineId) -> u32 {
        let line = self.lines.get(id);
        line.map_or(self.parameters.send_data_bytes_max, |line| {
            line.send_data_bytes_max
        })
    }

    /// Sets the window and the next StatSN of a connection.
    pub(super) fn set_status_numbers(&mut self, id: LineId, header: &mut Header) {
        self.set_window(header);
        self.lines.set_stat_sn(id, header);
    }

    // ---- the window -------------------------------------------------------------------------

    /// How many commands the initiator may still send.
    pub(super) fn granted(&self) -> u32 {
        let next = self.max_cmd_sn.wrapping_add(1);
        next.wrapping_sub(self.exp_cmd_sn)
    }

    /// Sets ExpCmdSN and MaxCmdSN; the window never shrinks.
    pub(super) fn set_window(&mut self, header: &mut Header) {
        let window = self.memory.fit_window(self.granted());
        let max_cmd_sn = self.exp_cmd_sn.wrapping_add(window).wrapping_sub(1);
        if serial_less(self.max_cmd_sn, max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
        header.set_u32(28, self.exp_cmd_sn);
        header.set_u32(32, self.max_cmd_sn);
    }

    /// Tells an initiator whose window is closed that it is open again, where no answer will.
    pub(super) fn open_window(&mut self) {
        if self.granted() > 0 || self.memory.free_slots() == 0 || self.is_closing {
            return;
        }
        let Some(line) = self.lines.open().first().copied() else {
            return;
        };
        let mut header = Header::new(target_opcode::NOP_IN);
        header.set_initiator_task_tag(TAG_NONE);
        header.set_target_tag(TAG_NONE);
        self.set_window(&mut header);
        header.set_u32(24, self.lines.next_stat_sn(line));
        self.lines.push_header(line, header);
    }

    // ---- memory -----------------------------------------------------------------------------

    /// Less waits to be sent than did, or nothing by one of the connections.
    pub(super) fn output_shrank(&mut self, is_all_sent: bool) {
        self.memory.output_is(self.lines.output_bytes());
        self.memory_came_free();
        if is_all_sent {
            self.open_window();
        }
    }

    /// Others, or answers that were sent, may have given memory back.
    pub(crate) fn memory_came_free(&mut self) {
        if self.memory.is_short() {
            self.hand_out_memory();
        }
    }

    /// Has `waker` woken when a command that waits for memory may get it. False if that may be so
    /// already.
    pub(crate) fn waits_for_memory(&self, waker: &Waker) -> bool {
        self.memory.wait(waker)
    }

    /// A command waits for more memory than its slot.
    pub(super) fn stand_in_line(&mut self, id: TaskId) {
        self.tasks.set_phase(id.tag, Phase::WaitsForMemory);
        self.memory.waiting.push_back(id);
        self.hand_out_memory();
    }

    /// Lets commands that wait for memory go on, in line.
    pub(super) fn hand_out_memory(&mut self) {
        if !self.memory.begin_handing_out() {
            return;
        }
        while let Some(id) = self.memory.waiting.front().copied() {
            let task = self.tasks.get_mut(id.tag);
            let is_waiting = |task: &&mut super::Task| {
                task.serial == id.serial && task.phase == Phase::WaitsForMemory
            };
            let Some(task) = task.filter(is_waiting) else {
                self.memory.waiting.pop_front();
                continue;
            };
            if !self.memory.pay_first(task.needs_bytes) {
                break;
            }
            task.held.extra_bytes += std::mem::take(&mut task.needs_bytes);
            if task
                .transfer
                .as_ref()
                .is_some_and(|data| !data.is_complete())
            {
                self.tasks.set_phase(id.tag, Phase::Solicited);
                self.solicit(id.tag);
            } else {
                self.start(id);
            }
        }
        self.memory.end_handing_out();
    }
}
