//! A vdev that is being removed, as far as what is freed on it is concerned
//! (`free_from_removing_vdev`, module/zfs/vdev_removal.c).
//!
//! The sync loop copies the vdev from its begin to its end, in the first pass of transaction
//! groups, and its mapping grows with that. What is freed of it is free where it was; and if the
//! mapping has it by then, the copy is free as well, and the range of the mapping is obsolete. A
//! free belongs to a group, often to one that is open while an earlier one is being written, and
//! copied from. So frees are queued, and settled when their own group is written, against the
//! mapping as it is then: a copy that was made in between goes with what it is a copy of. A crash
//! takes the queue away, with the groups that the frees belong to.
//!
//! Frees that came before the removal began are settled already, the last of them for the group
//! that was open then ([`super::Dvas::begin_removal`]).
//!
//! # What is healed meanwhile
//! A block that was wrong may be written anew where it was, and its copy with it ([`Copies`]). Who
//! copies reads first and puts the copy into the mapping later, so what was healed in between is
//! remembered, and not put there: it is copied again ([`Leaving::with_copies`]).
//!
//! Lock: `state`, for a few instructions; under it the vdev tree's list, when the removal ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use format::{Txg, VdevId};
use parking_lot::Mutex;
use vdev::{Copies, CopyPlace, IndirectMap, RangeSet, VdevError};

/// No vdev is being removed.
const NONE: u64 = u64::MAX;

/// A range of a vdev: offset and length, in bytes.
pub(super) type Place = (VdevId, u64, u64);

/// What a free of a vdev that is being removed comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// It is being removed no more, or not this one: it is freed as any other.
    Elsewhere,
    /// It is freed where it was; of this many bytes there are copies, from its begin on, at these
    /// places.
    Copied { bytes: u64, places: Vec<Place> },
    /// The mapping does not have all that it should have: the copy, if there is one, is lost.
    Unmapped,
}

#[derive(Debug)]
struct Removal {
    vdev: VdevId,
    map: IndirectMap,
}

#[derive(Debug, Default)]
struct State {
    removal: Option<Removal>,
    frees: BTreeMap<Txg, Vec<Place>>,
    /// Bytes that were freed before they were copied, since somebody asked.
    uncopied_bytes: u64,
    /// What was written anew of the vdev since copying last began.
    healed: RangeSet,
    /// What was healed is wrong in a copy, or may be.
    is_spoilt: bool,
}

/// The vdev that is being removed, and what is freed of it.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Its number, or [`NONE`]: a hint for those who free.
    id: AtomicU64,
    state: Mutex<State>,
}

impl Default for Leaving {
    fn default() -> Self {
        Leaving {
            id: AtomicU64::new(NONE),
            state: Mutex::default(),
        }
    }
}

impl Leaving {
    pub(super) fn begin(&self, vdev: VdevId, map: IndirectMap) {
        {
            let mut state = self.state.lock();
            state.removal = Some(Removal { vdev, map });
            state.healed = RangeSet::new();
            state.is_spoilt = false;
        }
        self.id.store(u64::from(vdev.get()), Ordering::Release);
    }

    /// Ends it: `put` gets the mapping, and whoever frees meanwhile waits until that is done.
    pub(super) fn end<T>(&self, put: impl FnOnce(IndirectMap) -> T) -> Option<T> {
        let mut state = self.state.lock();
        let removal = state.removal.take()?;
        let out = put(removal.map);
        self.id.store(NONE, Ordering::Release);
        Some(out)
    }

    /// Whether it is this vdev that is being removed.
    pub(super) fn is(&self, vdev: VdevId) -> bool {
        self.id.load(Ordering::Acquire) == u64::from(vdev.get())
    }

    /// Reads or changes the mapping.
    pub(super) fn with_map<T>(&self, act: impl FnOnce(&mut IndirectMap) -> T) -> Option<T> {
        let mut state = self.state.lock();
        state.removal.as_mut().map(|removal| act(&mut removal.map))
    }

    /// Ranges are read from now on, and then put into the mapping by [`Self::with_copies`].
    pub(super) fn begin_copies(&self) {
        self.state.lock().healed = RangeSet::new();
    }

    /// Changes the mapping; `act` is told what was written anew since [`Self::begin_copies`].
    pub(super) fn with_copies<T>(
        &self,
        act: impl FnOnce(&mut IndirectMap, &RangeSet) -> T,
    ) -> Option<T> {
        let mut state = self.state.lock();
        let State {
            removal, healed, ..
        } = &mut *state;
        removal
            .as_mut()
            .map(|removal| act(&mut removal.map, healed))
    }

    pub(super) fn is_spoilt(&self) -> bool {
        self.state.lock().is_spoilt
    }

    /// Takes a free of `txg` in, if it is of the vdev that is being removed.
    pub(super) fn queue(&self, txg: Txg, place: Place) -> bool {
        if !self.is(place.0) {
            return false;
        }
        let mut state = self.state.lock();
        let is_it = |removal: &Removal| removal.vdev == place.0;
        if !state.removal.as_ref().is_some_and(is_it) {
            return false;
        }
        state.frees.entry(txg).or_default().push(place);
        true
    }

    /// What was freed in `txg` since the last call.
    pub(super) fn take(&self, txg: Txg) -> Vec<Place> {
        let taken = self.state.lock().frees.remove(&txg);
        taken.unwrap_or_default()
    }

    /// What a free comes to, in syncing context of its txg.
    pub(super) fn settle(&self, (vdev, offset, length): Place) -> Settled {
        let mut state = self.state.lock();
        let Some(removal) = state.removal.as_ref().filter(|at| at.vdev == vdev) else {
            return Settled::Elsewhere;
        };
        let end = removal.map.end_bytes();
        let bytes = end.saturating_sub(offset).min(length);
        if bytes == 0 {
            state.uncopied_bytes += length;
            return Settled::Copied {
                bytes,
                places: Vec::new(),
            };
        }
        match removal.map.places(offset, bytes) {
            Some(places) => {
                state.uncopied_bytes += length - bytes;
                Settled::Copied { bytes, places }
            }
            None => Settled::Unmapped,
        }
    }

    pub(super) fn take_uncopied(&self) -> u64 {
        std::mem::take(&mut self.state.lock().uncopied_bytes)
    }
}

impl Copies for Leaving {
    fn healed(&self, vdev: VdevId, offset: u64, length: u64) -> Vec<CopyPlace> {
        if !self.is(vdev) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let State {
            removal, healed, ..
        } = &mut *state;
        let Some(removal) = removal.as_ref().filter(|removal| removal.vdev == vdev) else {
            return Vec::new();
        };
        healed.add(offset, length);
        let copied = removal.map.end_bytes().saturating_sub(offset).min(length);
        // What was free when its turn came has no copy, and nobody reads it any more.
        removal.map.copies(offset, copied).unwrap_or_default()
    }

    fn spoil(&self) {
        self.state.lock().is_spoilt = true;
    }
}

/// What is said of a range that should be in the mapping.
pub(super) fn unmapped((vdev, offset, length): Place) -> VdevError {
    VdevError::BadAddress {
        place: format!("{vdev}:{offset:#x}"),
        what: format!("{length} bytes there were not copied though what is behind them was"),
    }
}

#[cfg(test)]
mod tests {
    use format::{Dva, IndirectMappingEntry};

    use super::*;

    const VDEV: VdevId = VdevId::new(1);
    const TXG: Txg = Txg::new(9);

    fn entry(source_offset_bytes: u64, offset: u64, length: u64) -> IndirectMappingEntry {
        IndirectMappingEntry {
            source_offset_bytes,
            destination: Dva::new(VdevId::new(0), offset, length, false).expect("a place"),
        }
    }

    #[test]
    fn a_free_goes_by_the_mapping_of_its_own_group() {
        let leaving = Leaving::default();
        assert!(!leaving.queue(TXG, (VDEV, 0, 4096)));
        leaving.begin(VDEV, IndirectMap::default());
        assert!(leaving.queue(TXG, (VDEV, 0, 4096)));
        assert!(leaving.queue(TXG.next(), (VDEV, 4096, 8192)));
        assert!(!leaving.queue(TXG, (VdevId::new(0), 0, 4096)));
        let [first] = leaving.take(TXG)[..] else {
            panic!("one free of this txg");
        };
        let nothing = Settled::Copied {
            bytes: 0,
            places: vec![],
        };
        assert_eq!(leaving.settle(first), nothing);
        assert_eq!(leaving.take_uncopied(), 4096);
        // Half of the other one is copied before its txg is written.
        let entries = [entry(4096, 1 << 20, 4096)];
        let extended = leaving.with_map(|map| map.extend(&entries, TXG));
        assert!(extended.is_some_and(|result| result.is_ok()));
        let [second] = leaving.take(TXG.next())[..] else {
            panic!("one free of the next txg");
        };
        let half = Settled::Copied {
            bytes: 4096,
            places: vec![(VdevId::new(0), 1 << 20, 4096)],
        };
        assert_eq!(leaving.settle(second), half);
        assert_eq!(leaving.take_uncopied(), 4096);
        assert_eq!(leaving.settle((VDEV, 0, 4096)), Settled::Unmapped);
        assert!(
            leaving
                .end(|map| assert_eq!(map.end_bytes(), 8192))
                .is_some()
        );
        assert_eq!(leaving.settle(second), Settled::Elsewhere);
        assert!(!leaving.queue(TXG, (VDEV, 0, 4096)));
    }
}
