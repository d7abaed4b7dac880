//! The connections of a session.

use super::{Phase, Session, TaskId};
use crate::login::Parameters;
use crate::pdu::{Header, OutQueue};
use bytes::Bytes;

/// Names a connection of a session. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LineId(pub(super) u32);

impl LineId {
    /// The connection of the leading login.
    pub(crate) const FIRST: Self = Self(0);
}

/// One connection.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: LineId,
    pub(super) connection_id: u16,
    out: OutQueue,
    stat_sn: u32,
    /// Longest data segment that the initiator takes, in bytes.
    pub(super) send_data_bytes_max: u32,
    /// Data-Out PDUs that have come.
    pub(super) data_out_count: u64,
    /// How often something was sent.
    pub(super) sent_count: u64,
    /// A text request that goes on in the next PDU, and the rest of an answer.
    pub(super) text_in: Vec<u8>,
    pub(super) text_out: Option<(u32, Vec<u8>)>,
    /// Nothing more is to be received.
    is_closing: bool,
}

impl Line {
    pub(super) fn new(
        id: LineId,
        parameters: &Parameters,
        connection_id: u16,
        stat_sn: u32,
    ) -> Self {
        let mut out = OutQueue::default();
        out.set_digests(parameters.has_header_digest, parameters.has_data_digest);
        Self {
            id,
            connection_id,
            out,
            stat_sn,
            send_data_bytes_max: parameters.send_data_bytes_max,
            data_out_count: 0,
            sent_count: 0,
            text_in: Vec::new(),
            text_out: None,
            is_closing: false,
        }
    }
}

impl Session {
    fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.iter().find(|line| line.id == id)
    }

    pub(super) fn line_mut(&mut self, id: LineId) -> Option<&mut Line> {
        self.lines.iter_mut().find(|line| line.id == id)
    }

    /// The connection with a CID.
    pub(crate) fn line_of(&self, connection_id: u16) -> Option<LineId> {
        let mut lines = self.lines.iter();
        let found = lines.find(|line| line.connection_id == connection_id && !line.is_closing);
        found.map(|line| line.id)
    }

    /// Connections that are not about to end.
    pub(crate) fn open_lines(&self) -> Vec<LineId> {
        let open = self.lines.iter().filter(|line| !line.is_closing);
        open.map(|line| line.id).collect()
    }

    /// How many connections the initiator may have.
    pub(crate) fn has_room_for_line(&self) -> bool {
        self.open_lines().len() < self.parameters.connections_max as usize
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
        let id = LineId(self.next_line);
        self.next_line += 1;
        self.lines
            .push(Line::new(id, parameters, connection_id, stat_sn));
        Some(id)
    }

    /// Sends the last answer of the login of a connection that was added: its StatSN is the
    /// login's, and it has no digests yet.
    pub(crate) fn answer_login(&mut self, id: LineId, mut header: Header, text: Vec<u8>) {
        self.set_window(&mut header);
        if let Some(line) = self.line_mut(id) {
            line.out.push_plain(header, text.into());
        }
    }

    /// A connection of several takes no more requests; its commands are aborted. Answers those that
    /// still run.
    pub(super) fn abort_line(&mut self, id: LineId) -> Vec<TaskId> {
        let of_line = self.tasks.iter();
        let tasks = of_line
            .filter(|(_, task)| task.expected.line == id)
            .map(|(tag, task)| TaskId {
                tag: *tag,
                serial: task.serial,
            })
            .collect();
        self.abort_tasks(tasks)
    }

    /// The same, and nothing more is received by it.
    pub(crate) fn close_line(&mut self, id: LineId) {
        self.end_line(id);
        self.abort_line(id);
    }

    pub(super) fn end_line(&mut self, id: LineId) {
        if let Some(line) = self.line_mut(id) {
            line.is_closing = true;
        }
    }

    /// Whether commands that came by a connection still run.
    pub(crate) fn runs_for_line(&self, id: LineId) -> bool {
        let mut tasks = self.tasks.values();
        tasks.any(|task| task.expected.line == id && matches!(task.phase, Phase::Running))
    }

    /// A connection is gone.
    pub(crate) fn remove_line(&mut self, id: LineId) {
        let before = self.lines.len();
        self.lines.retain(|line| line.id != id);
        if self.lines.len() < before {
            self.memory.remove_connection();
        }
    }

    /// What is to be sent by a connection.
    pub(crate) fn out(&self, id: LineId) -> Option<&OutQueue> {
        self.line(id).map(|line| &line.out)
    }

    /// All that waits to be sent, in bytes.
    pub(super) fn output_bytes(&self) -> usize {
        self.lines.iter().map(|line| line.out.length_bytes()).sum()
    }

    /// Whether nothing more is to be received by a connection: what is queued is sent, then it is
    /// closed.
    pub(crate) fn is_line_closing(&self, id: LineId) -> bool {
        self.line(id).is_none_or(|line| line.is_closing)
    }

    /// So many bytes have been sent by a connection.
    pub(crate) fn sent(&mut self, id: LineId, bytes: usize) {
        let Some(line) = self.line_mut(id) else {
            return;
        };
        line.out.consume(bytes);
        line.sent_count += 1;
        let is_all_sent = line.out.is_empty();
        self.output_shrank(is_all_sent);
    }

    /// What commands wait for that the initiator has to do by a connection: send data, take data.
    /// Each is a number that is another one whenever it has done some of it.
    pub(crate) fn awaited(&self, id: LineId) -> [Option<u64>; 2] {
        let Some(line) = self.line(id) else {
            return [None; 2];
        };
        let mut tasks = self.tasks.values();
        let awaits_data = tasks.any(|task| {
            task.expected.line == id && matches!(task.phase, Phase::Unsolicited | Phase::Solicited)
        });
        [
            awaits_data.then_some(line.data_out_count),
            (!line.out.is_empty()).then_some(line.sent_count),
        ]
    }

    // ---- sending ----------------------------------------------------------------------------

    pub(super) fn send_data_bytes_max(&self, id: LineId) -> u32 {
        let line = self.line(id);
        line.map_or(self.parameters.send_data_bytes_max, |line| {
            line.send_data_bytes_max
        })
    }

    /// The next StatSN of a connection, not used up.
    pub(super) fn next_stat_sn(&self, id: LineId) -> u32 {
        self.line(id).map_or(0, |line| line.stat_sn)
    }

    /// Sets the window and the next StatSN of a connection.
    pub(super) fn set_status_numbers(&mut self, id: LineId, header: &mut Header) {
        self.set_window(header);
        if let Some(line) = self.line_mut(id) {
            header.set_u32(24, line.stat_sn);
            line.stat_sn = line.stat_sn.wrapping_add(1);
        }
    }

    /// Queues a PDU. A connection that is gone hears nothing.
    pub(super) fn push(
        &mut self,
        id: LineId,
        header: Header,
        data: impl Iterator<Item = Bytes> + Clone,
    ) {
        if let Some(line) = self.line_mut(id) {
            line.out.push(header, data);
        }
    }

    /// Queues a PDU without data.
    pub(super) fn push_header(&mut self, id: LineId, header: Header) {
        if let Some(line) = self.line_mut(id) {
            line.out.push_header(header);
        }
    }

    /// Queues a PDU with one piece of data.
    pub(super) fn push_with(&mut self, id: LineId, header: Header, data: Bytes) {
        if let Some(line) = self.line_mut(id) {
            line.out.push_with(header, data);
        }
    }
}
