//! Slots of the mounted filesystem's files, but slot 0: which of them are taken, and until when.
//!
//! When another state of the filesystem takes the place of one, files that the kernel knows and
//! that are not in it leave: their nodes are stale, and what has or gets one of their object
//! numbers is in another slot from then on, one in which the kernel knows nothing by that number.
//! Files with different numbers share a slot: there are as many as the kernel has stale nodes of
//! one number, not as many as there were rollbacks.
//!
//! A stale node that meant another file would give the kernel the wrong content. So its references
//! to stale nodes are counted, and a slot is free once no stale node is in it and no object is
//! moved to it. What the kernel knows goes by [`filesystem::Filesystem::retain`], which another
//! mount of the same filesystem counts in as well: a slot may stay taken longer than needed, never
//! shorter.

use std::collections::{BTreeMap, HashMap, HashSet};

/// The last slot, which is given to nobody but [`LiveSlots::leave`] in need.
pub(crate) const LAST: u64 = (1 << 14) - 1;
/// As many as the mounted filesystem may have: the rest is for snapshots.
const LIVE_MAX: usize = 1024;
/// As many as there are for snapshots, beside one that the mounted filesystem may take next.
pub(crate) const SNAPSHOTS_MAX: usize = LAST as usize - LIVE_MAX - 2;
/// As many as listings fill: whoever looks one of very many up is to find room.
pub(crate) const LISTED_MAX: usize = SNAPSHOTS_MAX - 1024;

/// Slots of files of the mounted filesystem that are not in slot 0, by object.
pub(crate) type Moved = HashMap<u64, u64>;

/// All slots but 0 and [`LAST`], beginning after one of them.
pub(crate) fn after(last: u64) -> impl Iterator<Item = u64> {
    (last + 1..LAST).chain(1..=last)
}

/// Slots of the mounted filesystem.
#[derive(Debug, Default)]
pub(crate) struct LiveSlots {
    /// How many stale nodes, and how many moved objects, are in each slot.
    taken: BTreeMap<u64, u64>,
    /// References of the kernel to stale nodes, by slot and object.
    stale: HashMap<(u64, u64), u64>,
}

impl LiveSlots {
    pub(crate) fn contains(&self, slot: u64) -> bool {
        self.taken.contains_key(&slot)
    }

    /// Whether files that the kernel knows can leave: there are slots for what gets their numbers.
    pub(crate) fn have_room(&self, moved: &Moved, known: &[(u64, u64)]) -> bool {
        let fits = |ino: u64| self.place(ino, slot_of(moved, ino)).is_some();
        self.taken.len() < LIVE_MAX || known.iter().all(|(ino, _)| fits(*ino))
    }

    /// Objects that are moved, which the kernel neither knows now nor has a stale node of, go back
    /// to slot 0. To be called while nobody has a node of what was moved.
    pub(crate) fn settle(&mut self, moved: &mut Moved, known: &[(u64, u64)]) {
        let stale = self.stale.keys().map(|(_, ino)| *ino);
        let remembered: HashSet<u64> = stale.chain(known.iter().map(|(ino, _)| *ino)).collect();
        moved.retain(|ino, slot| {
            let stays = remembered.contains(ino);
            if !stays {
                self.give_back(*slot);
            }
            stays
        });
    }

    /// A file leaves that the kernel knows by so many references. Its number moves to a slot in
    /// which the kernel does not know it: to `fresh`, which is free, if to no other.
    pub(crate) fn leave(&mut self, moved: &mut Moved, file: (u64, u64), fresh: u64) {
        let (ino, references) = file;
        let from = slot_of(moved, ino);
        let to = self.place(ino, from).unwrap_or(fresh);
        // Before anything is given back: a slot that is not empty stays taken.
        if !self.stale.contains_key(&(from, ino)) {
            self.take(from);
        }
        *self.stale.entry((from, ino)).or_default() += references;
        if moved.remove(&ino).is_some() {
            self.give_back(from);
        }
        if to != 0 {
            moved.insert(ino, to);
            self.take(to);
        }
    }

    /// The kernel forgot so many references to a stale node.
    pub(crate) fn forget(&mut self, slot: u64, ino: u64, references: u64) {
        let Some(left) = self.stale.get_mut(&(slot, ino)) else {
            return;
        };
        *left = left.saturating_sub(references);
        if *left == 0 {
            self.stale.remove(&(slot, ino));
            self.give_back(slot);
        }
    }

    /// A slot other than `from`, 0 or one that is taken, in which the kernel does not know the
    /// object.
    fn place(&self, ino: u64, from: u64) -> Option<u64> {
        let mut all = std::iter::once(0).chain(self.taken.keys().copied());
        all.find(|slot| *slot != from && !self.stale.contains_key(&(*slot, ino)))
    }

    fn take(&mut self, slot: u64) {
        if slot != 0 {
            *self.taken.entry(slot).or_default() += 1;
        }
    }

    fn give_back(&mut self, slot: u64) {
        if let Some(users) = self.taken.get_mut(&slot) {
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.taken.remove(&slot);
            }
        }
    }
}

fn slot_of(moved: &Moved, ino: u64) -> u64 {
    moved.get(&ino).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Mount {
        slots: LiveSlots,
        moved: Moved,
        last: u64,
    }

    impl Mount {
        /// A rollback that takes these files away; the slot of the first one's number.
        fn roll_back(&mut self, gone: &[(u64, u64)]) -> u64 {
            self.slots.settle(&mut self.moved, gone);
            assert!(self.slots.have_room(&self.moved, gone));
            let mut free = after(self.last).filter(|slot| !self.slots.contains(*slot));
            let fresh = free.next().expect("a slot");
            for file in gone {
                self.slots.leave(&mut self.moved, *file, fresh);
            }
            self.last = fresh;
            slot_of(&self.moved, gone[0].0)
        }
    }

    /// Goal: as many rollbacks under use as anybody likes, where the kernel forgets what is stale.
    #[test]
    fn slots_are_free_when_the_kernel_has_forgotten_them() {
        let mut mount = Mount::default();
        for round in 0..40_000 {
            let ino = 10 + round % 3;
            let before = slot_of(&mount.moved, ino);
            assert_ne!(mount.roll_back(&[(ino, 2)]), before);
            mount.slots.forget(before, ino, 1);
            assert!(mount.slots.stale.contains_key(&(before, ino)));
            mount.slots.forget(before, ino, 1);
        }
        mount.slots.settle(&mut mount.moved, &[]);
        assert!(mount.moved.is_empty());
        assert!(mount.slots.taken.is_empty() && mount.slots.stale.is_empty());
    }

    /// Goal: a node that the kernel still has never means another file.
    #[test]
    fn what_the_kernel_remembers_keeps_its_slot() {
        let mut mount = Mount::default();
        let first = mount.roll_back(&[(10, 1)]);
        // The kernel was told of what has the number now, which goes as well.
        let second = mount.roll_back(&[(10, 3)]);
        assert!(first != 0 && second != 0 && first != second);
        mount.slots.settle(&mut mount.moved, &[]);
        assert_eq!(mount.moved[&10], second);
        assert!(mount.slots.contains(first) && mount.slots.contains(second));
        mount.slots.forget(first, 10, 3);
        assert!(!mount.slots.contains(first));
        // Its node in slot 0 is still known.
        mount.slots.settle(&mut mount.moved, &[]);
        assert_eq!(mount.moved[&10], second);
        mount.slots.forget(0, 10, 1);
        mount.slots.settle(&mut mount.moved, &[(10, 1)]);
        assert_eq!(mount.moved[&10], second);
        mount.slots.settle(&mut mount.moved, &[]);
        assert!(mount.moved.is_empty() && !mount.slots.contains(second));
    }

    /// Goal: rollbacks that take different files away need no slot each.
    #[test]
    fn different_files_share_a_slot() {
        let mut mount = Mount::default();
        for ino in 10..1_000 {
            mount.roll_back(&[(ino, 1)]);
        }
        assert_eq!(mount.slots.taken.len(), 1);
    }

    /// Goal: where the kernel never forgets, there is an end, other files go on, and what it
    /// forgets after all makes room again.
    #[test]
    fn a_kernel_that_forgets_nothing_is_refused() {
        let mut mount = Mount::default();
        let mut nodes = vec![0];
        let known = [(10, 1)];
        while mount.slots.have_room(&mount.moved, &known) {
            let slot = mount.roll_back(&known);
            assert!(!nodes.contains(&slot));
            nodes.push(slot);
        }
        assert_eq!(mount.slots.taken.len(), LIVE_MAX);
        mount.roll_back(&[(11, 1)]);
        assert_eq!(mount.slots.taken.len(), LIVE_MAX);
        mount.slots.forget(nodes[7], 10, 1);
        assert!(mount.slots.have_room(&mount.moved, &known));
        mount.roll_back(&known);
        assert!(mount.slots.taken.len() <= LIVE_MAX);
    }
}
