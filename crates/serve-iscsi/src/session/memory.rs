//! What a session has of the memory of all sessions ([`crate::budget`]), and who waits for more.
//!
//! Every command that an initiator may send within its window has a slot: memory for the data that
//! comes with it unasked, or for a short answer. The window (MaxCmdSN) is never wider than there
//! are slots that no command has, so that nothing comes for which there is no room. A command that
//! needs more takes it before data is asked for (R2T) or read, or waits for it in line.
//!
//! Answers that the initiator does not take keep their memory: the connection's base covers
//! [`OUTPUT_FREE_BYTES`], beyond that what a command had stays taken until its data has been sent.

use super::tasks::TaskId;
use crate::budget::Share;
use crate::login::Parameters;
use std::collections::VecDeque;
use std::task::Waker;

/// Most commands in flight that came within the window.
pub(super) const COMMANDS_MAX: u32 = 256;
/// Slots that every session has.
const WINDOW_MIN: u32 = 4;
/// Width of the window of a session that asks for little, if there is room for it.
pub(super) const WINDOW_IDLE: u32 = 16;
/// So many slots more than the window is to be wide are given back.
const SPARE_SLOTS_MAX: u32 = 32;
/// Least bytes of a slot: a command keeps the piece of input alive that it came in.
const SLOT_BYTES_MIN: u32 = 64 << 10;
/// Bytes of answers not yet sent that a session may have besides what its commands have.
pub(crate) const OUTPUT_FREE_BYTES: usize = 512 << 10;
/// What a connection may hold besides: a PDU that comes, one that goes, and text.
const CONNECTION_BYTES: u64 = OUTPUT_FREE_BYTES as u64 + (512 << 10);

fn slot_bytes(parameters: &Parameters) -> u64 {
    parameters.first_burst_bytes_max.max(SLOT_BYTES_MIN).into()
}

/// What a new session needs in any case.
pub(crate) fn base_bytes(parameters: &Parameters) -> u64 {
    CONNECTION_BYTES + u64::from(WINDOW_MIN) * slot_bytes(parameters)
}

/// What a command has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) has_slot: bool,
    /// Bytes of the extra.
    pub(super) extra_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Memory {
    share: Share,
    slot_bytes: u64,
    /// Slots: those of commands in flight, those of answers that wait to be sent, and free ones.
    slots: u32,
    task_slots: u32,
    sending_slots: u32,
    /// How wide the window is to be: it doubles whenever the initiator uses all of it.
    window: u32,
    /// Bytes of the extra that answers have which wait to be sent.
    sending_bytes: u64,
    /// Commands that wait for an extra, in line.
    pub(super) waiting: VecDeque<TaskId>,
    /// The first of them did not get it.
    is_short: bool,
    is_handing_out: bool,
}

impl Memory {
    /// `share` has [`base_bytes`].
    pub(super) fn new(mut share: Share, parameters: &Parameters) -> Self {
        let slot_bytes = slot_bytes(parameters);
        let more = share.grow(WINDOW_IDLE - WINDOW_MIN, slot_bytes);
        Self {
            share,
            slot_bytes,
            slots: WINDOW_MIN + more,
            task_slots: 0,
            sending_slots: 0,
            window: WINDOW_IDLE,
            sending_bytes: 0,
            waiting: VecDeque::new(),
            is_short: false,
            is_handing_out: false,
        }
    }

    pub(super) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// What a command beyond its slot needs for this much data.
    pub(super) fn needs(&self, data_bytes: u64) -> u64 {
        data_bytes.saturating_sub(self.slot_bytes)
    }

    /// Slots that nothing has.
    pub(super) fn free_slots(&self) -> u32 {
        self.slots - self.task_slots - self.sending_slots
    }

    /// Memory for a command that has come; an immediate one is outside the window, so there may be
    /// none.
    pub(super) fn admit(&mut self, is_immediate: bool) -> Option<Held> {
        if !is_immediate {
            return Some(Held {
                has_slot: true,
                extra_bytes: 0,
            });
        }
        self.pay(self.slot_bytes).map(|extra_bytes| Held {
            has_slot: false,
            extra_bytes,
        })
    }

    /// Takes an extra at once, if it can be had and nobody waits in line.
    pub(super) fn pay(&mut self, bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return Some(0);
        }
        let is_paid = self.waiting.is_empty() && self.share.take(bytes);
        if !is_paid && self.waiting.is_empty() {
            // Who waits for it says so by standing in line.
            self.share.is_fed();
        }
        is_paid.then_some(bytes)
    }

    /// A command is in flight.
    pub(super) fn begin(&mut self, held: Held) {
        self.task_slots += u32::from(held.has_slot);
    }

    /// A command is out of the books; what it had goes on to its answer, or back.
    pub(super) fn end(&mut self, held: Held) {
        self.task_slots -= u32::from(held.has_slot);
    }

    pub(super) fn give_back(&mut self, held: Held) {
        self.share.give_back(held.extra_bytes);
    }

    /// A command that had this is answered with data; so much waits to be sent then.
    pub(super) fn answered(&mut self, held: Held, output_bytes: u64) {
        if output_bytes <= OUTPUT_FREE_BYTES as u64 {
            self.give_back(held);
            return;
        }
        self.sending_bytes += held.extra_bytes;
        self.sending_slots += u32::from(held.has_slot && self.free_slots() > 0);
    }

    /// Room for another connection's buffers, if it can be had.
    pub(super) fn add_connection(&mut self) -> bool {
        self.share.grow(1, CONNECTION_BYTES) == 1
    }

    /// A connection is gone. The last one's room goes with the session.
    pub(super) fn remove_connection(&mut self) {
        self.share.shrink(CONNECTION_BYTES);
    }

    /// So much waits to be sent now.
    pub(super) fn output_is(&mut self, output_bytes: usize) {
        if self.sending_bytes == 0 && self.sending_slots == 0 {
            return;
        }
        let beyond = output_bytes.saturating_sub(OUTPUT_FREE_BYTES) as u64;
        let kept = self.sending_bytes.min(beyond);
        self.share.give_back(self.sending_bytes - kept);
        self.sending_bytes = kept;
        let slots = (beyond - kept).div_ceil(self.slot_bytes);
        self.sending_slots = self.sending_slots.min(slots.try_into().unwrap_or(u32::MAX));
    }

    /// The initiator may send so many commands still.
    pub(super) fn window_is(&mut self, granted: u32) {
        if granted == 0 {
            self.window = (2 * self.window).min(COMMANDS_MAX);
        }
    }

    /// The initiator is idle.
    pub(super) fn is_idle(&mut self) {
        self.window = WINDOW_IDLE;
    }

    /// How many commands the initiator may be let send that may send `granted`, for which there are
    /// free slots.
    pub(super) fn fit_window(&mut self, granted: u32) -> u32 {
        let in_use = self.task_slots + self.sending_slots;
        let wanted = self.window.min(COMMANDS_MAX.saturating_sub(in_use));
        let wanted = wanted.max(granted);
        let free = self.free_slots();
        if free < wanted {
            self.slots += self.share.grow(wanted - free, self.slot_bytes);
        } else if free - wanted > SPARE_SLOTS_MAX {
            let spare = (free - wanted).min(self.slots - WINDOW_MIN.max(in_use));
            self.slots -= spare;
            self.share.shrink(u64::from(spare) * self.slot_bytes);
        }
        wanted.min(self.free_slots())
    }

    /// Whether the first in line did not get what it needs.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Has `waker` woken when there may be memory for the first in line. False if that may be so
    /// already.
    pub(super) fn wait(&self, waker: &Waker) -> bool {
        !self.is_short || self.share.wait(waker)
    }

    /// Begins to hand out memory to those in line; false where that is under way.
    pub(super) fn begin_handing_out(&mut self) -> bool {
        if self.is_handing_out {
            return false;
        }
        self.is_handing_out = true;
        self.is_short = false;
        true
    }

    /// Takes what the first in line needs, which is in line no more then. False if it cannot be
    /// had.
    pub(super) fn pay_first(&mut self, bytes: u64) -> bool {
        if !self.share.take(bytes) {
            self.is_short = true;
            return false;
        }
        self.waiting.pop_front();
        true
    }

    pub(super) fn end_handing_out(&mut self) {
        self.is_handing_out = false;
        if !self.is_short {
            self.share.is_fed();
        }
    }

    /// Commands in flight within the window, slots of answers, bytes of answers, extra bytes.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> (u32, u32, u64, u64) {
        let extra_bytes = self.share.held_bytes().1;
        (
            self.task_slots,
            self.sending_slots,
            self.sending_bytes,
            extra_bytes,
        )
    }
}
