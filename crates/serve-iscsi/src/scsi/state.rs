//! What initiators have set on a logical unit: persistent reservations, mode pages, RESERVE, and
//! the unit attentions that nexuses have not met yet.
//!
//! It belongs to the storage, not to the target that offers it: a volume that is offered anew, by
//! another name or with other options, is still reserved by whom it was reserved by. Otherwise a
//! host that was fenced off could write again. What belongs to a nexus ends with its session.

use super::mode::ModeParameters;
use super::reservation::{Effects, InitiatorPort, OutParameters, Refusal, Reservations};
use super::sense::Sense;
use crate::lun::ReservationStore;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One session's view of a target (an I_T nexus). Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NexusId(pub(crate) u64);

/// What a unit knows of one nexus.
#[derive(Debug)]
pub(super) struct NexusState {
    pub(super) port: InitiatorPort,
    /// Unit attentions, oldest first; each at most once, so that the list is short.
    pub(super) attentions: Vec<Sense>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) nexuses: BTreeMap<NexusId, NexusState>,
    /// Holder of a RESERVE.
    pub(super) reserved_by: Option<NexusId>,
    pub(super) reservations: Reservations,
    pub(super) modes: ModeParameters,
}

impl State {
    fn establish(&mut self, nexus: NexusId, sense: Sense) {
        if let Some(nexus) = self.nexuses.get_mut(&nexus)
            && !nexus.attentions.contains(&sense)
        {
            nexus.attentions.push(sense);
        }
    }

    pub(super) fn establish_for_others(&mut self, but: Option<NexusId>, sense: Sense) {
        let others: Vec<NexusId> = self.nexuses.keys().copied().collect();
        for nexus in others {
            if Some(nexus) != but {
                self.establish(nexus, sense);
            }
        }
    }

    /// What a PERSISTENT RESERVE OUT comes to.
    pub(super) fn perform(
        &self,
        nexus: NexusId,
        action: u8,
        scope_and_type: u8,
        parameters: OutParameters,
    ) -> Result<(Reservations, Effects), Refusal> {
        if self.reserved_by.is_some() {
            return Err(Refusal::Conflict);
        }
        let Some(NexusState { port, .. }) = self.nexuses.get(&nexus) else {
            return Err(Refusal::Conflict);
        };
        let mut changed = self.reservations.clone();
        let known = self.nexuses.values().map(|nexus| &nexus.port);
        let effects = changed.perform(port, action, scope_and_type, parameters, known)?;
        Ok((changed, effects))
    }

    /// Has it take effect; answers the nexuses whose commands are to be aborted.
    pub(super) fn put_in_force(&mut self, changed: Reservations, effects: Effects) -> Vec<NexusId> {
        self.reservations = changed;
        for (port, sense) in effects.attentions {
            self.establish_for_port(&port, sense);
        }
        let nexuses = self.nexuses.iter();
        nexuses
            .filter(|(_, nexus)| effects.abort.contains(&nexus.port))
            .map(|(id, _)| *id)
            .collect()
    }

    fn establish_for_port(&mut self, port: &InitiatorPort, sense: Sense) {
        let of_port: Vec<NexusId> = self
            .nexuses
            .iter()
            .filter(|(_, nexus)| nexus.port == *port)
            .map(|(id, _)| *id)
            .collect();
        for nexus in of_port {
            self.establish(nexus, sense);
        }
    }
}

/// What initiators have set on a logical unit, kept by whoever knows the storage: as long as it is
/// the same one, it goes on where the storage is offered again ([`crate::TargetSet::add_known`]).
/// One target at a time has it.
#[derive(Default)]
pub struct UnitState {
    state: Mutex<State>,
    /// No attention is pending, nothing is reserved, no mode differs from its default.
    is_quiet: AtomicBool,
    /// What is stored of reservations; held over a change that is to be stored.
    kept: tokio::sync::Mutex<Option<String>>,
    /// A target has it.
    is_held: AtomicBool,
}

impl std::fmt::Debug for UnitState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnitState").finish_non_exhaustive()
    }
}

impl UnitState {
    /// Whether nothing is set: nobody is registered, and all modes are as they come.
    pub fn is_default(&self) -> bool {
        let state = self.state.lock();
        state.reserved_by.is_none()
            && !state.reservations.has_registrants()
            && state.modes == ModeParameters::default()
    }
}

/// A state that a unit has, to itself.
pub(super) struct Held(Arc<UnitState>);

impl Held {
    /// Takes a state. Reservations are read from `store` where that does not have what was last
    /// stored of this state: this is the first time, or somebody changed it by hand.
    pub(super) fn take(
        state: Arc<UnitState>,
        store: Option<&dyn ReservationStore>,
    ) -> Result<Self, &'static str> {
        if state.is_held.swap(true, Ordering::AcqRel) {
            return Err("another target offers it");
        }
        let held = Self(state);
        let stored = store.and_then(|store| store.load());
        // Only who holds the state takes this lock.
        let Ok(mut kept) = held.0.kept.try_lock() else {
            return Err("its reservations are being changed");
        };
        let is_known = *kept == stored;
        let restored = match &stored {
            _ if is_known => None,
            // Who offers it without them may let two write that must not.
            Some(text) => Some(
                Reservations::restore(text)
                    .ok_or("the persistent reservations that are stored with it cannot be read")?,
            ),
            None => Some(Reservations::default()),
        };
        held.change(|state| {
            if let Some(restored) = restored {
                state.reservations = restored;
            }
            state.reservations.set_can_persist(store.is_some());
        });
        *kept = stored;
        drop(kept);
        Ok(held)
    }

    /// Whether a command may be let in without a look at the state.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.is_quiet.load(Ordering::Acquire)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    pub(super) fn kept(
        &self,
    ) -> impl Future<Output = tokio::sync::MutexGuard<'_, Option<String>>> + Send {
        self.0.kept.lock()
    }

    pub(super) fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.0.state.lock();
        let result = change(&mut state);
        self.settle(&state);
        result
    }

    /// Recomputes `is_quiet`; to be called with every change of the state.
    pub(super) fn settle(&self, state: &State) {
        let is_quiet = state.reserved_by.is_none()
            && !state.reservations.is_reserved()
            && state.modes == ModeParameters::default()
            && state
                .nexuses
                .values()
                .all(|nexus| nexus.attentions.is_empty());
        self.0.is_quiet.store(is_quiet, Ordering::Release);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The loss of all nexuses.
        self.change(|state| {
            state.nexuses.clear();
            state.reserved_by = None;
        });
        self.0.is_held.store(false, Ordering::Release);
    }
}
