//! One logical unit as all nexuses share it.
//!
//! Order of checks before a command is let in (SAM-5 section 5.3.3 leaves some of it open):
//! unknown operation code; unit attention; reservation; fields of the CDB; write protection;
//! address range; transfer length. A unit that nobody has reserved and that has no attention
//! pending, which is nearly always, is checked without taking a lock: `is_quiet` says so.

use super::cdb::{ByteCheck, Command};
use super::copy::{self, CopyResults, Designator};
use super::inquiry::{self, Shape};
use super::mode::{self, ModeParameters};
use super::opcodes::{self, Access};
use super::reservation::{InitiatorPort, OutParameters, Refusal};
use super::sense::{Failure, Sense, failure_of, status};
use super::state::{Held, NexusId, NexusState, State, UnitState};
use super::{Outcome, TRANSFER_BYTES_MAX, WRITE_SAME_BLOCKS_MAX};
use crate::error::TargetError;
use crate::lun::{LogicalUnit, LunError};
use crate::traffic::Ended;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A logical unit with everything that SCSI adds to its storage.
pub(crate) struct Unit {
    storage: Arc<dyn LogicalUnit>,
    shape: Shape,
    block_shift: u32,
    /// The target is read-only, whatever the unit is.
    target_is_read_only: Arc<AtomicBool>,
    /// The capacity that initiators know of, in bytes.
    capacity_bytes_seen: AtomicU64,
    /// What initiators have set; it may outlive this unit.
    held: Held,
    /// Copies whose results may be asked for.
    copies: Mutex<CopyResults>,
    /// How often it was reset.
    resets: AtomicU64,
    /// What sessions that have ended have done.
    pub(crate) ended_traffic: Ended,
    /// See the head of [`super`].
    pub(super) atomic: tokio::sync::RwLock<()>,
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unit")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl Unit {
    /// Checks a storage's shape and makes a unit of it, on which initiators have set `state`.
    pub(crate) fn new(
        storage: Arc<dyn LogicalUnit>,
        state: Arc<UnitState>,
        iqn: &str,
        lun: u16,
        portal_group_tag: u16,
        target_is_read_only: Arc<AtomicBool>,
    ) -> Result<Self, TargetError> {
        let shape = Shape {
            identity: storage.identity(),
            target_iqn: iqn.into(),
            block_bytes: storage.block_bytes(),
            physical_block_bytes: storage.physical_block_bytes(),
            unmap_granularity_bytes: storage.unmap_granularity_bytes(),
            portal_group_tag,
        };
        let capacity_bytes = storage.capacity_bytes();
        let block_bytes = shape.block_bytes;
        let problem = if !matches!(block_bytes, 512 | 4096) {
            Some("its blocks are neither 512 nor 4096 bytes")
        } else if !shape.physical_block_bytes.is_power_of_two()
            || shape.physical_block_bytes < block_bytes
        {
            Some("its physical blocks are no power-of-two multiple of its blocks")
        } else if !capacity_bytes.is_multiple_of(block_bytes.into()) || capacity_bytes == 0 {
            Some("its size is not a number of blocks above zero")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(TargetError::BadLun {
                iqn: iqn.into(),
                lun,
                problem,
            });
        }
        let held = Held::take(state, storage.reservation_store());
        let held = held.map_err(|problem| TargetError::BadLun {
            iqn: iqn.into(),
            lun,
            problem,
        })?;
        Ok(Self {
            block_shift: block_bytes.ilog2(),
            shape,
            target_is_read_only,
            capacity_bytes_seen: AtomicU64::new(capacity_bytes),
            held,
            copies: Mutex::default(),
            resets: AtomicU64::new(0),
            ended_traffic: Ended::default(),
            atomic: tokio::sync::RwLock::default(),
            storage,
        })
    }

    pub(crate) fn storage(&self) -> &dyn LogicalUnit {
        &*self.storage
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        self.shape.block_bytes
    }

    pub(super) fn offset_bytes(&self, lba: u64) -> u64 {
        lba << self.block_shift
    }

    pub(super) fn block_count(&self) -> u64 {
        self.storage.capacity_bytes() >> self.block_shift
    }

    fn is_read_only(&self) -> bool {
        self.target_is_read_only.load(Ordering::Relaxed) || self.storage.is_read_only()
    }

    /// Whether writes must be stable before they complete, though they do not ask for it.
    pub(super) fn is_write_through(&self) -> bool {
        !self.held.is_quiet() && !self.held.state().modes.write_cache
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        self.held.change(change)
    }

    /// A session begins; its first command meets a unit attention.
    pub(crate) fn attach(&self, nexus: NexusId, port: InitiatorPort, attention: Sense) {
        self.change(|state| {
            let nexus_state = NexusState {
                port,
                attentions: vec![attention],
            };
            state.nexuses.insert(nexus, nexus_state);
        });
    }

    /// A session has ended: its RESERVE is over, its registration stays.
    pub(crate) fn detach(&self, nexus: NexusId) {
        self.change(|state| {
            state.nexuses.remove(&nexus);
            self.copies.lock().forget(nexus);
            if state.reserved_by == Some(nexus) {
                state.reserved_by = None;
            }
        });
    }

    /// Establishes a unit attention for all nexuses, or all but one.
    pub(crate) fn establish(&self, but: Option<NexusId>, sense: Sense) {
        self.change(|state| state.establish_for_others(but, sense));
    }

    /// LOGICAL UNIT RESET (SAM-5 section 6.3.3): modes and RESERVE fall back, persistent
    /// reservations stay. Commands are the sessions' business, but for copies that others sent to
    /// other units: these end at the next [`fence`](Self::fence).
    pub(crate) fn reset(&self) {
        self.resets.fetch_add(1, Ordering::AcqRel);
        self.change(|state| {
            state.reserved_by = None;
            state.modes = ModeParameters::default();
            // The nexus that asked knows, but SAM has it told as well.
            state.establish_for_others(None, Sense::POWER_ON_OR_RESET);
        });
    }

    pub(super) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Acquire)
    }

    /// Waits for all that is being written now, by whomever. What is written later has seen what
    /// this unit lets whom do as it was when this was called, or later.
    pub(crate) async fn fence(&self) {
        drop(self.atomic.write().await);
    }

    /// Lets a command in, or ends it.
    pub(crate) fn admit(&self, nexus: NexusId, cdb: &[u8; 16]) -> Result<Command, Outcome> {
        let decoded = Command::decode(cdb);
        if decoded == Err(Sense::INVALID_OPERATION_CODE) {
            return Err(self.check(Sense::INVALID_OPERATION_CODE));
        }
        let access = match &decoded {
            Ok(command) => command.access(),
            Err(_) => opcodes::find(cdb[0], super::cdb::service_action(cdb))
                .map_or(Access::Information, |entry| entry.access),
        };
        let capacity_bytes = self.storage.capacity_bytes();
        if capacity_bytes != self.capacity_bytes_seen.load(Ordering::Relaxed)
            && capacity_bytes
                != self
                    .capacity_bytes_seen
                    .swap(capacity_bytes, Ordering::Relaxed)
        {
            self.establish(None, Sense::CAPACITY_CHANGED);
        }
        let mut is_protected = self.is_read_only();
        if !self.held.is_quiet() {
            let mut state = self.held.state();
            self.admit_slowly(&mut state, nexus, access)?;
            is_protected |= state.modes.write_protect;
        }
        let command = decoded.map_err(|sense| self.check(sense))?;
        if is_protected && command.changes_medium() {
            return Err(self.check(Sense::WRITE_PROTECTED));
        }
        if let Some(blocks) = command.blocks() {
            let block_count = capacity_bytes >> self.block_shift;
            let end = blocks.lba.checked_add(blocks.count.into());
            if blocks.lba > block_count || end.is_none_or(|end| end > block_count) {
                let sense = Sense::LBA_OUT_OF_RANGE.with_information(blocks.lba);
                return Err(self.check(sense));
            }
            let transfer_blocks_max = TRANSFER_BYTES_MAX >> self.block_shift;
            let is_too_long = match command {
                Command::Read { .. }
                | Command::Write { .. }
                | Command::WriteVerify { .. }
                | Command::OrWrite { .. }
                | Command::Verify {
                    check: ByteCheck::Each,
                    ..
                } => blocks.count > transfer_blocks_max,
                Command::WriteSame { .. } => {
                    blocks.count == 0 || blocks.count > WRITE_SAME_BLOCKS_MAX
                }
                _ => false,
            };
            if is_too_long {
                return Err(self.check(Sense::INVALID_FIELD_IN_CDB));
            }
        }
        // Their length fields have 32 bits.
        let has_fitting_list = match command {
            Command::PersistentReserveOut {
                action, list_bytes, ..
            } => OutParameters::may_have_length(action, list_bytes as usize),
            Command::ExtendedCopy { list_bytes, .. } => list_bytes <= copy::LIST_BYTES_MAX,
            _ => true,
        };
        if !has_fitting_list {
            return Err(self.check(Sense::PARAMETER_LIST_LENGTH_ERROR));
        }
        assert!(
            command.data_out_bytes(self.block_bytes()) <= TRANSFER_BYTES_MAX.into(),
            "the checks above bound what is taken from an initiator"
        );
        Ok(command)
    }

    fn admit_slowly(
        &self,
        state: &mut State,
        nexus: NexusId,
        access: Access,
    ) -> Result<(), Outcome> {
        if access == Access::Always {
            return Ok(());
        }
        let is_descriptor_sense = state.modes.descriptor_sense;
        let Some(nexus_state) = state.nexuses.get_mut(&nexus) else {
            return Ok(());
        };
        if !nexus_state.attentions.is_empty() {
            let attention = nexus_state.attentions.remove(0);
            self.held.settle(state);
            return Err(Outcome {
                is_descriptor_sense,
                ..Outcome::check(attention)
            });
        }
        let port = &nexus_state.port;
        let is_reserved_by_other = state.reserved_by.is_some_and(|holder| holder != nexus);
        let is_allowed = match access {
            Access::Always | Access::Release => true,
            Access::Information | Access::PersistentReserveOut => !is_reserved_by_other,
            Access::Read => !is_reserved_by_other && state.reservations.allows(port, false),
            Access::Write => !is_reserved_by_other && state.reservations.allows(port, true),
            // SPC-2 reservations and registrations do not mix (SPC-5 section 5.14.3).
            Access::Reserve => !is_reserved_by_other && !state.reservations.is_reserved(),
        };
        if is_allowed {
            Ok(())
        } else {
            Err(Outcome::status(status::RESERVATION_CONFLICT))
        }
    }

    /// An outcome with sense data in the format that the control page asks for.
    pub(super) fn check(&self, sense: Sense) -> Outcome {
        let is_descriptor_sense = !self.held.is_quiet() && self.held.state().modes.descriptor_sense;
        Outcome {
            is_descriptor_sense,
            ..Outcome::check(sense)
        }
    }

    /// The outcome of a command that the storage failed.
    pub(super) fn failure(&self, error: &LunError) -> Outcome {
        tracing::warn!(
            target_name = %self.shape.target_iqn,
            serial = %self.shape.identity.serial,
            %error,
            "a command on a logical unit failed"
        );
        match failure_of(error, self.shape.block_bytes) {
            Failure::Check(sense) => self.check(sense),
            Failure::Busy => Outcome::status(status::BUSY),
        }
    }

    /// REQUEST SENSE: the oldest unit attention of the nexus, if there is one.
    pub(super) fn request_sense(&self, nexus: NexusId) -> Sense {
        self.change(|state| match state.nexuses.get_mut(&nexus) {
            Some(nexus) if !nexus.attentions.is_empty() => nexus.attentions.remove(0),
            _ => Sense::NONE,
        })
    }

    /// Standard data or a page; `None` if there is no such page.
    pub(super) fn inquiry(&self, page: Option<u8>) -> Option<Vec<u8>> {
        match page {
            None => Some(inquiry::standard(&self.shape)),
            Some(page) => inquiry::page(&self.shape, page),
        }
    }

    pub(super) fn capacity10(&self) -> Vec<u8> {
        inquiry::capacity10(&self.shape, self.block_count())
    }

    pub(super) fn capacity16(&self) -> Vec<u8> {
        inquiry::capacity16(&self.shape, self.block_count())
    }

    pub(super) fn mode_sense(&self, query: mode::Query) -> Result<Vec<u8>, Sense> {
        let modes = self.held.state().modes;
        let is_read_only = self.is_read_only() || modes.write_protect;
        let (count, bytes) = (self.block_count(), self.shape.block_bytes);
        mode::sense(query, modes, is_read_only, count, bytes)
    }

    /// Whether a MODE SELECT turns the write cache off.
    pub(super) fn ends_write_cache(&self, list: &[u8], is_long: bool) -> bool {
        let modes = self.held.state().modes;
        let selected = mode::select(list, is_long, modes, self.shape.block_bytes);
        modes.write_cache && selected.is_ok_and(|modes| !modes.write_cache)
    }

    pub(super) fn mode_select(
        &self,
        nexus: NexusId,
        list: &[u8],
        is_long: bool,
    ) -> Result<(), Sense> {
        self.change(|state| {
            let modes = mode::select(list, is_long, state.modes, self.shape.block_bytes)?;
            if modes != state.modes {
                state.modes = modes;
                state.establish_for_others(Some(nexus), Sense::MODE_PARAMETERS_CHANGED);
            }
            Ok(())
        })
    }

    /// RESERVE: the checks at admission and this are not one step, so it looks again.
    pub(super) fn reserve(&self, nexus: NexusId) -> bool {
        self.change(|state| {
            let is_free = state.reserved_by.is_none_or(|holder| holder == nexus);
            let is_allowed = is_free && !state.reservations.has_registrants();
            if is_allowed {
                state.reserved_by = Some(nexus);
            }
            is_allowed
        })
    }

    /// RELEASE: does nothing unless the nexus is the holder.
    pub(super) fn release(&self, nexus: NexusId) {
        self.change(|state| {
            if state.reserved_by == Some(nexus) {
                state.reserved_by = None;
            }
        });
    }

    pub(super) fn persistent_reserve_in(&self, action: u8) -> Vec<u8> {
        self.held.state().reservations.report(action)
    }

    /// Whether PERSISTENT RESERVE OUT may have to wait for storage.
    pub(super) fn keeps_reservations(&self) -> bool {
        self.storage.reservation_store().is_some()
    }

    /// PERSISTENT RESERVE OUT other than PREEMPT AND ABORT, where nothing is kept.
    pub(super) fn persistent_reserve_out(
        &self,
        nexus: NexusId,
        action: u8,
        scope_and_type: u8,
        list: &[u8],
    ) -> Result<(), Outcome> {
        let parameters = OutParameters::decode(action, list).map_err(|sense| self.check(sense))?;
        let result = self.change(|state| {
            let (changed, effects) = state.perform(nexus, action, scope_and_type, parameters)?;
            state.put_in_force(changed, effects);
            Ok(())
        });
        result.map_err(|refusal| self.refused(refusal))
    }

    /// PERSISTENT RESERVE OUT; returns the nexuses whose commands are to be aborted. Where
    /// reservations outlive the process, what is to be kept is on stable storage before anybody is
    /// told, or sees it: a crash in between leaves what the initiator asked for and was not told
    /// of.
    pub(super) async fn persistent_reserve_out_kept(
        &self,
        nexus: NexusId,
        action: u8,
        scope_and_type: u8,
        list: &[u8],
    ) -> Result<Vec<NexusId>, Outcome> {
        let parameters = OutParameters::decode(action, list).map_err(|sense| self.check(sense))?;
        // Nobody else changes reservations meanwhile.
        let mut kept = self.held.kept().await;
        let performed = {
            let state = self.held.state();
            state.perform(nexus, action, scope_and_type, parameters)
        };
        let (changed, effects) = performed.map_err(|refusal| self.refused(refusal))?;
        if let Some(store) = self.storage.reservation_store()
            && let text = changed.stored()
            && text != *kept
        {
            let stored = store.store(text.clone()).await;
            stored.map_err(|error| self.failure(&error))?;
            *kept = text;
        }
        let preempts = !effects.abort.is_empty();
        let nexuses = self.change(|state| state.put_in_force(changed, effects));
        drop(kept);
        if preempts {
            // A victim may be copying to this unit by a command that it sent to another one, with
            // no session here.
            self.fence().await;
        }
        Ok(nexuses)
    }

    fn refused(&self, refusal: Refusal) -> Outcome {
        match refusal {
            Refusal::Conflict => Outcome::status(status::RESERVATION_CONFLICT),
            Refusal::Check(sense) => self.check(sense),
        }
    }

    /// Whether reservations let a copy of a nexus read this unit, or write it. It need have no
    /// session with it.
    pub(super) fn allows_copy(
        &self,
        nexus: NexusId,
        port: &InitiatorPort,
        is_write: bool,
    ) -> Result<(), Sense> {
        let state = self.held.state();
        let is_reserved_by_other = state.reserved_by.is_some_and(|holder| holder != nexus);
        if is_reserved_by_other || !state.reservations.allows(port, is_write) {
            return Err(Sense::COPY_TARGET_NOT_REACHABLE);
        }
        if is_write && (self.is_read_only() || state.modes.write_protect) {
            return Err(Sense::WRITE_PROTECTED);
        }
        Ok(())
    }

    /// The port of a nexus that has a session.
    pub(super) fn port_of(&self, nexus: NexusId) -> Option<InitiatorPort> {
        let state = self.held.state();
        state.nexuses.get(&nexus).map(|nexus| nexus.port.clone())
    }

    pub(super) fn copies(&self) -> parking_lot::MutexGuard<'_, CopyResults> {
        self.copies.lock()
    }

    /// Whether a designator is this unit's.
    pub(crate) fn is_named(&self, designator: &Designator) -> bool {
        designator.names(&self.shape)
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Nexuses that the unit knows, but one.
    pub(crate) fn other_nexuses(&self, but: NexusId) -> Vec<NexusId> {
        let state = self.held.state();
        let all = state.nexuses.keys().copied();
        all.filter(|nexus| *nexus != but).collect()
    }
}
