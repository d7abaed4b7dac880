//! What a scan looks at again: datasets that gained pointers to blocks that were there before.
//!
//! The walk meets a block at one of its pointers. A clone, or a write of what a dedup table has,
//! can add one where the walk has been, before the one that it has not come to goes away: then the
//! block would be met nowhere, while it is as old as what the scan is for. So a dataset that gained
//! such a pointer is visited once more, from the txg of that pointer on. All pointers that are
//! added are born in their txg, whatever they lead to, so that little more is walked than what was
//! added. (OpenZFS looks at entries of dedup tables when they get their second reference,
//! `dsl_scan_ddt_entry`, module/zfs/dsl_scan.c, and not at clones.)
//!
//! This comes before all else in a turn, which comes after the datasets of its txg were written.
//! The blocks have a queue of their own, so that it is read at once. Each is read once in a scan,
//! however often it is cloned, or nobody could end one that somebody keeps at work.
//!
//! # What a crash leaves
//! While anything is left to look at again, what is on disk is a scan that has come nowhere, with
//! its txgs ([`Position::at_begin`]): whoever goes on with it, we or OpenZFS, meets everything.
//! OpenZFS's queue of datasets has no place for it: a dataset may be in it once only, and one from
//! a txg after the scan's last is not visited.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::Tasks;
use format::{BlockPointer, Bookmark, ObjectId, ObjsetId, Txg};
use spa::PoolError;
use vdev::ScanRead;

use super::blocks::Blocks;
use super::share::Sharing;
use super::visit::{IsOver, Visit};
use super::{Scan, State};
use crate::Scans;

/// A dataset that is visited again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dataset: ObjectId,
    /// Pointers of txgs after this one.
    pub(super) since: Txg,
    /// Where the visit goes on.
    pub(super) bookmark: Option<Bookmark>,
}

/// The datasets to visit again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Again {
    /// By dataset, from which txg on.
    waiting: BTreeMap<u64, Txg>,
    /// The visit under way.
    current: Option<Place>,
}

impl Again {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none()
    }

    /// A dataset has pointers to look at that were born after `since`.
    pub(super) fn add(&mut self, dataset: ObjectId, since: Txg) {
        let known = self.waiting.entry(dataset.get()).or_insert(since);
        *known = since.min(*known);
    }

    /// Takes the next place; what is not done there is given back ([`Self::put_back`]).
    fn take(&mut self) -> Option<Place> {
        self.current.take().or_else(|| {
            let (dataset, since) = self.waiting.pop_first()?;
            Some(Place {
                dataset: ObjectId::new(dataset),
                since,
                bookmark: None,
            })
        })
    }

    fn put_back(&mut self, place: Place) {
        self.current = Some(place);
    }

    /// The visit under way begins anew: something happens to its dataset.
    fn stop(&mut self, datasets: &[ObjectId]) {
        if let Some(place) = self.current
            && datasets.contains(&place.dataset)
        {
            self.current = None;
            self.add(place.dataset, place.since);
        }
    }

    /// A dataset is destroyed; `next` follows a snapshot, and has what it had and is still there.
    pub(super) fn destroyed(&mut self, dataset: ObjectId, next: Option<ObjectId>) {
        self.stop(&[dataset]);
        if let Some(since) = self.waiting.remove(&dataset.get())
            && let Some(next) = next
        {
            self.add(next, since);
        }
    }

    /// A snapshot was taken: it has what the live dataset had.
    pub(super) fn snapshotted(&mut self, head: ObjectId, snapshot: ObjectId) {
        self.stop(&[head]);
        if let Some(since) = self.waiting.remove(&head.get()) {
            self.add(snapshot, since);
        }
    }

    /// Two datasets exchange what they have.
    pub(super) fn swapped(&mut self, a: ObjectId, b: ObjectId) {
        self.stop(&[a, b]);
        let of_a = self.waiting.remove(&a.get());
        let of_b = self.waiting.remove(&b.get());
        if let Some(since) = of_a {
            self.add(b, since);
        }
        if let Some(since) = of_b {
            self.add(a, since);
        }
    }
}

impl State {
    /// Whether the walk is going to meet all that a dataset has by now: it waits in the queue, from
    /// a txg before the last one of the scan.
    fn is_ahead(&self, dataset: ObjsetId) -> bool {
        let since = self.current.queue.get(&dataset.get());
        since.is_some_and(|since| (1..self.current.phys.max_txg.get()).contains(since))
    }
}

impl Scan {
    /// A pointer to a block of an earlier txg is written into an object set, in syncing context.
    pub(super) fn shared(&self, objset: ObjsetId, pointer: &BlockPointer) {
        let mut state = self.state.lock();
        let phys = &state.current.phys;
        let birth = pointer.physical_birth();
        let is_of_scan = birth > phys.min_txg && birth < phys.max_txg;
        if state.current.is_running() && is_of_scan && !state.is_ahead(objset) {
            let since = pointer.logical_birth().get().saturating_sub(1);
            let dataset = ObjectId::new(objset.get());
            state.again.add(dataset, Txg::new(since));
        }
    }

    /// Whether something is left to look at again.
    pub(super) fn is_again(&self, state: &State) -> bool {
        let blocks = self.blocks.read();
        let has_blocks = blocks
            .as_ref()
            .is_some_and(|blocks| !blocks.again.is_empty());
        state.current.is_running() && (has_blocks || !state.again.is_empty())
    }

    /// Visits what is to be visited again, and reads what is found there, until the turn is over.
    pub(super) async fn look_again(
        &self,
        scans: &Scans,
        blocks: &Arc<Blocks>,
        read: ScanRead,
        tasks: &Tasks,
        (is_over, blocks_max): (&IsOver, usize),
    ) -> Result<(), PoolError> {
        loop {
            let (own, over) = (blocks.clone(), is_over.clone());
            let is_full: IsOver = Arc::new(move || over() || own.again.len() >= blocks_max);
            while !is_full() {
                let (place, phys) = {
                    let mut state = self.state.lock();
                    let Some(place) = state.again.take() else {
                        break;
                    };
                    (place, state.current.phys)
                };
                let visit = Visit {
                    blocks,
                    mos: scans.spa.dsl.mos(),
                    mos_root: scans.spa.dsl.root_bp(),
                    origin: ObjectId::ZERO,
                    tasks,
                    is_over: is_full.clone(),
                };
                if let Some(rest) = visit.again(place, &phys).await? {
                    self.state.lock().again.put_back(rest);
                }
            }
            {
                let share = self.share().filter(|_| read != ScanRead::Resilver);
                let _sharing = Sharing::new(&scans.spa.tree, share);
                blocks.issue(&blocks.again, read, tasks, is_over).await;
            }
            if is_over() || !self.is_again(&self.state.lock()) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ObjectId {
        ObjectId::new(number)
    }

    fn places(again: &Again) -> Vec<(u64, u64)> {
        let waiting = again.waiting.iter();
        waiting.map(|(at, txg)| (*at, txg.get())).collect()
    }

    /// Goal: what is to be looked at again is found, whatever happens to its dataset.
    #[test]
    fn what_waits_follows_its_datasets() {
        let mut again = Again::default();
        again.add(id(40), Txg::new(9));
        again.add(id(40), Txg::new(7));
        again.add(id(40), Txg::new(8));
        again.add(id(50), Txg::new(3));
        let mut place = again.take().expect("one waits");
        assert_eq!((place.dataset, place.since), (id(40), Txg::new(7)));
        place.bookmark = Some(Bookmark::new(ObjsetId::new(40), id(1), 0, 5));
        again.put_back(place);
        again.add(id(40), Txg::new(11));
        assert!(!again.is_empty());
        // What was visited of it is visited once more: the snapshot has it all.
        again.snapshotted(id(40), id(41));
        assert_eq!(places(&again), [(41, 7), (50, 3)]);
        again.add(id(40), Txg::new(12));
        again.destroyed(id(41), Some(id(40)));
        again.swapped(id(40), id(50));
        assert_eq!(places(&again), [(40, 3), (50, 7)]);
        again.swapped(id(60), id(50));
        again.destroyed(id(40), None);
        assert_eq!(places(&again), [(60, 7)]);
        let place = again.take().expect("one waits");
        assert!(again.is_empty());
        again.put_back(place);
        again.destroyed(id(60), None);
        assert!(again.is_empty());
    }
}
