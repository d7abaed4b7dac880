//! Commands in flight, and the order in which their attributes let them run.

use super::line::LineId;
use super::memory::Held;
use super::transfer::Transfer;
use crate::scsi::{Command, CopyStop, Outcome, Unit, decode_lun};
use access::TrafficKind;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Names a command for as long as it is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TaskId {
    pub(super) tag: u32,
    pub(super) serial: u64,
}

/// Task attributes (RFC 7143 section 11.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attribute {
    Simple,
    Ordered,
    HeadOfQueue,
}

/// See the diagram at the head of [`super`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the end of unsolicited data.
    Unsolicited,
    WaitsForMemory,
    Solicited,
    /// All is here, but an older command must end first.
    Waits,
    Running,
}

/// A command in flight.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) serial: u64,
    pub(super) lun: [u8; 8],
    pub(super) attribute: Attribute,
    /// Changed by [`Tasks::set_phase`] alone.
    pub(super) phase: Phase,
    /// What it is and where; `None` once it is decided that it fails.
    pub(super) job: Option<(Arc<Unit>, Command)>,
    pub(super) transfer: Option<Transfer>,
    /// How it ends, if that is known before its data is in.
    pub(super) early: Option<Outcome>,
    pub(super) expected: Expected,
    pub(super) held: Held,
    /// Bytes that it has to get before it goes on.
    pub(super) needs_bytes: u64,
    /// It runs, but nobody waits for its answer any more.
    pub(super) is_aborted: bool,
    /// Ends it early, where it is a copy that runs.
    pub(super) stop: Option<CopyStop>,
}

/// What the initiator expects to be transferred.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// Where the answer goes.
    pub(super) line: LineId,
    /// What it counts as, once known, and for which unit.
    pub(super) kind: Option<(TrafficKind, u16)>,
    pub(super) arrived: Instant,
    /// Expected Data Transfer Length.
    pub(super) bytes: u32,
    pub(super) is_read: bool,
    /// Bytes that the command takes from the initiator, once known.
    pub(super) data_out: Option<u64>,
}

/// All commands in flight of a session, by their initiator task tags.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    by_tag: HashMap<u32, Task>,
    next_serial: u64,
    /// How many of them are ORDERED.
    ordered_count: usize,
    /// How many of them are in phase `Waits`.
    waiting_count: usize,
}

impl Tasks {
    pub(super) fn len(&self) -> usize {
        self.by_tag.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_tag.is_empty()
    }

    pub(super) fn has_tag(&self, tag: u32) -> bool {
        self.by_tag.contains_key(&tag)
    }

    pub(super) fn has_ordered(&self) -> bool {
        self.ordered_count > 0
    }

    /// Whether a command is still in flight.
    pub(super) fn has(&self, id: TaskId) -> bool {
        let task = self.by_tag.get(&id.tag);
        task.is_some_and(|task| task.serial == id.serial)
    }

    pub(super) fn get(&self, tag: u32) -> Option<&Task> {
        self.by_tag.get(&tag)
    }

    pub(super) fn get_mut(&mut self, tag: u32) -> Option<&mut Task> {
        self.by_tag.get_mut(&tag)
    }

    /// The serial of a command that has come.
    pub(super) fn next_serial(&mut self) -> u64 {
        let serial = self.next_serial;
        self.next_serial += 1;
        serial
    }

    pub(super) fn insert(&mut self, tag: u32, task: Task) {
        self.ordered_count += usize::from(task.attribute == Attribute::Ordered);
        self.waiting_count += usize::from(task.phase == Phase::Waits);
        self.by_tag.insert(tag, task);
    }

    pub(super) fn remove(&mut self, tag: u32) -> Option<Task> {
        let task = self.by_tag.remove(&tag)?;
        self.ordered_count -= usize::from(task.attribute == Attribute::Ordered);
        self.waiting_count -= usize::from(task.phase == Phase::Waits);
        Some(task)
    }

    /// Returns the command, which is in this phase now.
    pub(super) fn set_phase(&mut self, tag: u32, phase: Phase) -> Option<&mut Task> {
        let task = self.by_tag.get_mut(&tag)?;
        self.waiting_count -= usize::from(task.phase == Phase::Waits);
        self.waiting_count += usize::from(phase == Phase::Waits);
        task.phase = phase;
        Some(task)
    }

    /// Whether task attributes (SAM-5 section 8.6) hold a command back.
    pub(super) fn must_wait(&self, id: TaskId) -> bool {
        let Some(task) = self.by_tag.get(&id.tag) else {
            return false;
        };
        if self.ordered_count == 0 || task.attribute == Attribute::HeadOfQueue {
            return false;
        }
        let is_ordered = task.attribute == Attribute::Ordered;
        self.by_tag.values().any(|other| {
            other.serial < task.serial
                && other.lun == task.lun
                && other.early.is_none()
                && (is_ordered || other.attribute == Attribute::Ordered)
        })
    }

    /// Commands that an older one holds back, the oldest first.
    pub(super) fn waiting(&self) -> Vec<TaskId> {
        if self.waiting_count == 0 {
            return Vec::new();
        }
        let mut waiting = self.which(|task| task.phase == Phase::Waits);
        waiting.sort_by_key(|id| id.serial);
        waiting
    }

    /// Commands that came by a connection.
    pub(super) fn of_line(&self, line: LineId) -> Vec<TaskId> {
        self.which(|task| task.expected.line == line)
    }

    /// Commands on a unit, or all.
    pub(super) fn of_unit(&self, lun: Option<u16>) -> Vec<TaskId> {
        self.which(|task| lun.is_none() || decode_lun(task.lun) == lun)
    }

    fn which(&self, is_wanted: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        let found = self.by_tag.iter().filter(|(_, task)| is_wanted(task));
        let ids = found.map(|(tag, task)| TaskId {
            tag: *tag,
            serial: task.serial,
        });
        ids.collect()
    }

    /// Whether commands that came by a connection still run.
    pub(crate) fn run_for_line(&self, line: LineId) -> bool {
        let mut tasks = self.by_tag.values();
        tasks.any(|task| task.expected.line == line && task.phase == Phase::Running)
    }

    /// Whether commands wait for data that is to come by a connection.
    pub(super) fn await_data_by(&self, line: LineId) -> bool {
        let mut tasks = self.by_tag.values();
        tasks.any(|task| {
            task.expected.line == line
                && matches!(task.phase, Phase::Unsolicited | Phase::Solicited)
        })
    }

    /// How many are ORDERED, how many are in phase `Waits`, and how many there are of these.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let waiting = self.which(|task| task.phase == Phase::Waits);
        (self.ordered_count, self.waiting_count, waiting.len())
    }
}
