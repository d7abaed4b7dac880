//! Aborts under way: each waits for commands of this session, of others, or of both to end.

use super::line::LineId;
use super::tasks::{TaskId, Tasks};
use crate::scsi::{NexusId, Unit};
use std::sync::Arc;

/// Most task management requests that wait for commands to end. What other sessions ask of this one
/// is bounded by the same: each waits for its answer.
const ABORTS_MAX: usize = 32;

/// Own tickets begin here; the driver gives those below it to what others ask.
const OWN_TICKETS: u64 = 1 << 32;

/// Names a request to abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

/// An abort under way: who waits, and for what.
#[derive(Debug)]
struct Abort {
    waiter: Waiter,
    /// Own commands that are still running.
    running: Vec<TaskId>,
    /// Other sessions are at it.
    elsewhere: Option<Ticket>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Waiter {
    /// A task management request: its connection and initiator task tag.
    Request(LineId, u32),
    /// A connection that is to end alone, which another may have asked for.
    Logout {
        asked_by: LineId,
        tag: u32,
        line: LineId,
    },
    /// Another session.
    Session(Ticket),
    /// PREEMPT AND ABORT.
    Task(TaskId),
}

/// What an abort is about besides own commands.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// Other sessions, and which commands of theirs: those on this unit, or all.
    pub(super) nexuses: Vec<NexusId>,
    pub(super) lun: Option<u16>,
    /// Units that nobody copies to any more.
    pub(super) fenced: Vec<Arc<Unit>>,
}

/// All aborts under way of a session.
#[derive(Debug, Default)]
pub(super) struct Aborts {
    all: Vec<Abort>,
    tickets: u64,
}

impl Aborts {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether no more requests of the initiator may wait for an abort.
    pub(super) fn is_full(&self) -> bool {
        let waiting = self
            .all
            .iter()
            .filter(|abort| matches!(abort.waiter, Waiter::Request(..) | Waiter::Logout { .. }));
        waiting.count() >= ABORTS_MAX
    }

    /// A ticket for what other sessions are asked.
    pub(super) fn next_ticket(&mut self) -> Ticket {
        let ticket = Ticket(OWN_TICKETS + self.tickets);
        self.tickets += 1;
        ticket
    }

    /// An abort begins: `running` are own commands that still run, `elsewhere` is set where others
    /// are asked.
    pub(super) fn add(&mut self, waiter: Waiter, running: Vec<TaskId>, elsewhere: Option<Ticket>) {
        self.all.push(Abort {
            waiter,
            running,
            elsewhere,
        });
    }

    /// Other sessions have aborted what they were asked to.
    pub(super) fn elsewhere_done(&mut self, ticket: Ticket) {
        for abort in &mut self.all {
            if abort.elsewhere == Some(ticket) {
                abort.elsewhere = None;
            }
        }
    }

    /// Takes those out that are complete; returns who waits for them.
    pub(super) fn take_done(&mut self, tasks: &Tasks) -> Vec<Waiter> {
        let mut done = Vec::new();
        self.all.retain_mut(|abort| {
            abort.running.retain(|id| tasks.has(*id));
            let is_done = abort.running.is_empty() && abort.elsewhere.is_none();
            if is_done {
                done.push(abort.waiter);
            }
            !is_done
        });
        done
    }

    /// Whether a connection of several is to end as soon as none of its commands runs any more.
    pub(super) fn is_logging_out(&self, id: LineId) -> bool {
        let mut aborts = self.all.iter();
        aborts.any(|abort| matches!(abort.waiter, Waiter::Logout { line, .. } if line == id))
    }
}
