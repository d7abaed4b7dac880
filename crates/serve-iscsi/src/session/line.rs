//! The connections of a session.

use crate::login::Parameters;
use crate::pdu::{Header, OutQueue};
use access::Traffic;
use bytes::Bytes;
use std::sync::{Arc, OnceLock};

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
    /// Counters of the portal that it came in by.
    portal: OnceLock<Arc<Traffic>>,
}

impl Line {
    fn new(id: LineId, parameters: &Parameters, connection_id: u16, stat_sn: u32) -> Self {
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
            portal: OnceLock::new(),
        }
    }

    /// Whether something waits to be sent.
    pub(super) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }
}

/// All connections of a session. The first is that of the leading login, for as long as it is
/// there.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    all: Vec<Line>,
    next: u32,
}

impl Lines {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds a connection with what it has agreed on for itself.
    pub(super) fn add(
        &mut self,
        parameters: &Parameters,
        connection_id: u16,
        stat_sn: u32,
    ) -> LineId {
        let id = LineId(self.next);
        self.next += 1;
        self.all
            .push(Line::new(id, parameters, connection_id, stat_sn));
        id
    }

    /// What is done by a connection counts for this portal, once and for all.
    pub(crate) fn count_for(&self, id: LineId, portal: Arc<Traffic>) {
        if let Some(line) = self.get(id) {
            let _ = line.portal.set(portal);
        }
    }

    /// Counters of the portal of a connection.
    pub(super) fn portal(&self, id: LineId) -> Option<&Traffic> {
        self.get(id)?.portal.get().map(|portal| &**portal)
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, id: LineId) -> bool {
        let before = self.all.len();
        self.all.retain(|line| line.id != id);
        self.all.len() < before
    }

    pub(super) fn get(&self, id: LineId) -> Option<&Line> {
        self.all.iter().find(|line| line.id == id)
    }

    pub(super) fn get_mut(&mut self, id: LineId) -> Option<&mut Line> {
        self.all.iter_mut().find(|line| line.id == id)
    }

    /// The connection with a CID.
    pub(crate) fn of_connection(&self, connection_id: u16) -> Option<LineId> {
        let mut lines = self.all.iter();
        let found = lines.find(|line| line.connection_id == connection_id && !line.is_closing);
        found.map(|line| line.id)
    }

    /// Connections that are not about to end.
    pub(crate) fn open(&self) -> Vec<LineId> {
        let open = self.all.iter().filter(|line| !line.is_closing);
        open.map(|line| line.id).collect()
    }

    /// Nothing more is received by a connection.
    pub(super) fn end(&mut self, id: LineId) {
        if let Some(line) = self.get_mut(id) {
            line.is_closing = true;
        }
    }

    /// What is to be sent by a connection.
    pub(crate) fn out(&self, id: LineId) -> Option<&OutQueue> {
        self.get(id).map(|line| &line.out)
    }

    /// All that waits to be sent, in bytes.
    pub(super) fn output_bytes(&self) -> usize {
        self.all.iter().map(|line| line.out.length_bytes()).sum()
    }

    /// Whether nothing more is to be received by a connection: what is queued is sent, then it is
    /// closed.
    pub(crate) fn is_closing(&self, id: LineId) -> bool {
        self.get(id).is_none_or(|line| line.is_closing)
    }

    /// The next StatSN of a connection, not used up.
    pub(super) fn next_stat_sn(&self, id: LineId) -> u32 {
        self.get(id).map_or(0, |line| line.stat_sn)
    }

    /// Queues a PDU. A connection that is gone hears nothing.
    pub(super) fn push(
        &mut self,
        id: LineId,
        header: Header,
        data: impl Iterator<Item = Bytes> + Clone,
    ) {
        if let Some(line) = self.get_mut(id) {
            line.out.push(header, data);
        }
    }

    /// Queues a PDU without data.
    pub(super) fn push_header(&mut self, id: LineId, header: Header) {
        if let Some(line) = self.get_mut(id) {
            line.out.push_header(header);
        }
    }

    /// Queues a PDU with one piece of data.
    pub(super) fn push_with(&mut self, id: LineId, header: Header, data: Bytes) {
        if let Some(line) = self.get_mut(id) {
            line.out.push_with(header, data);
        }
    }

    /// Queues the last PDU of a login, which has no digests.
    pub(super) fn push_plain(&mut self, id: LineId, header: Header, data: Bytes) {
        if let Some(line) = self.get_mut(id) {
            line.out.push_plain(header, data);
        }
    }

    /// Sets the next StatSN of a connection, which is used up.
    pub(super) fn set_stat_sn(&mut self, id: LineId, header: &mut Header) {
        if let Some(line) = self.get_mut(id) {
            header.set_u32(24, line.stat_sn);
            line.stat_sn = line.stat_sn.wrapping_add(1);
        }
    }

    /// So many bytes have been sent by a connection; returns whether that is all of its output.
    /// `None` for a connection that is gone.
    pub(super) fn sent(&mut self, id: LineId, bytes: usize) -> Option<bool> {
        let line = self.get_mut(id)?;
        line.out.consume(bytes);
        line.sent_count += 1;
        Some(!line.has_output())
    }
}
