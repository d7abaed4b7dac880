//! Memory beside the cache's blocks that counts in the cache's limit: objects and files in memory.
//!
//! Whoever keeps such memory charges it to its pool ([`Charge::take`]) for as long as it lives. The
//! cache keeps that much less, down to half of its limit; the other half is the share of what is
//! charged, by all pools together. What goes over the share is asked back of those who hold it
//! ([`Holder`]), in turn, and each begins with what has not been used for longest: a clock over all
//! filesystems of all pools, which passes over pools that are charged no more than the floor that
//! each of them has ([`super::floor_bytes`]). That is done by who charges ([`Charge::settle`]), so
//! that nobody charges faster than memory comes back, and after each txg that was synced
//! ([`Charge::settle_again`]), as what is dirty cannot be given back before. What is in use, or
//! dirty, stays over the share; dirty objects are bounded with the dirty data of the txgs.
//!
//! The indexes of second levels are charged as well, but are no more than half of the share, by all
//! pools together: what does not fit there is not taken in at all ([`l2arc::Memory`]). They are
//! asked back only where they are more than that, since the limit is lower than it was.
//!
//! Charging is two atomic additions. Locks: the list of holders, then what holders lock; nobody who
//! settles may have a lock of a holder's. The list of pools comes last.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use device::{MemoryUser, MemoryUses};
use l2arc::{Memory, SecondLevel};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Parts of the share: so much is asked back at once, and so much more than was left is charged
/// before it is tried again.
const STEPS: u64 = 64;
/// Parts of the share that the indexes of second levels may have one of.
const INDEX_PARTS: u64 = 2;
/// Parts of the share, or of what is over it if that is more: where not enough could be given back,
/// so much more is charged before it is tried again.
const OVER_STEPS: u64 = 16;
/// How often each holder is asked: what was used lately is given back the second time, what was
/// held by that the third time.
const ROUNDS: usize = 3;

/// Keeps memory that is charged and can be given back.
pub trait Holder: Send + Sync {
    /// Gives back some of what nobody uses and is not dirty, what was not used since the last time;
    /// goes on where it stopped the last time, until it has been through all or `is_enough` says
    /// so. Must not charge anything.
    fn give_back(&self, is_enough: &dyn Fn() -> bool);
}

/// Who can give memory back, and on which charge.
type Registered = (Weak<dyn Holder>, Weak<Charge>);

/// What all pools are charged.
#[derive(Default)]
pub(super) struct Charges {
    used_bytes: AtomicU64,
    share_bytes: AtomicU64,
    /// What of it indexes of second levels have.
    indexes_bytes: AtomicU64,
    /// From how many bytes on holders are asked.
    ask_at_bytes: AtomicU64,
    holders: Mutex<VecDeque<Registered>>,
    /// More may be given back than whoever asks holders now may have been told.
    is_asked_again: AtomicBool,
    pools: Mutex<Vec<Weak<Charge>>>,
}

/// What a pool is charged.
pub struct Charge {
    used_bytes: AtomicU64,
    all: Arc<Charges>,
    over: Notify,
}

/// Bytes that are charged until this is dropped.
pub struct Charged {
    charge: Arc<Charge>,
    bytes: u64,
}

impl Charged {
    /// Changes how many bytes it is.
    pub fn resize(&mut self, bytes: u64) {
        self.charge.add(bytes);
        self.charge.subtract(self.bytes);
        self.bytes = bytes;
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.charge.subtract(self.bytes);
    }
}

impl Charge {
    fn add(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.all.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Charges so many bytes.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Charged {
        self.add(bytes);
        Charged {
            charge: Arc::clone(self),
            bytes,
        }
    }

    /// Bytes that this pool is charged now.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes above which they are asked back, of all pools together.
    pub fn share_bytes(&self) -> u64 {
        self.all.share_bytes()
    }

    /// Asks it for memory from now on, as long as it lives.
    pub fn add_holder(self: &Arc<Self>, holder: Weak<dyn Holder>) {
        let mut holders = self.all.holders.lock();
        holders.retain(|(holder, _)| holder.strong_count() > 0);
        holders.push_back((holder, Arc::downgrade(self)));
    }

    /// Where more is charged than the share, asks holders for it. Called after charging, without
    /// locks.
    pub fn settle(&self) {
        self.all.settle();
    }

    /// As [`Self::settle`], where more may be given back than the last time: a txg was synced, or
    /// access times were stored. Where somebody asks holders already, it asks them once more.
    pub fn settle_again(&self) {
        self.all.settle_again();
    }

    /// Completes when more was charged than the share, not enough could be given back, and this
    /// pool has more than its floor of it.
    pub async fn is_over(&self) {
        self.over.notified().await;
    }
}

/// The limit of a pool's index of its second level.
impl Memory for Charge {
    fn left_bytes(&self) -> u64 {
        let taken_bytes = self.all.indexes_bytes.load(Ordering::Relaxed);
        (self.share_bytes() / INDEX_PARTS).saturating_sub(taken_bytes)
    }

    fn take(&self, bytes: u64) -> u64 {
        let most = self.share_bytes() / INDEX_PARTS;
        let after = |taken: u64| taken.saturating_add(bytes).min(most).max(taken);
        let indexes = &self.all.indexes_bytes;
        let before = indexes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            Some(after(taken))
        });
        // It never refuses.
        let (Ok(before) | Err(before)) = before;
        let taken_bytes = after(before) - before;
        self.add(taken_bytes);
        taken_bytes
    }

    fn give_back(&self, bytes: u64) {
        self.all.indexes_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.subtract(bytes);
    }

    fn is_over(&self) -> bool {
        let taken_bytes = self.all.indexes_bytes.load(Ordering::Relaxed);
        taken_bytes > self.share_bytes() / INDEX_PARTS
    }
}

impl Holder for SecondLevel {
    fn give_back(&self, is_enough: &dyn Fn() -> bool) {
        SecondLevel::give_back(self, is_enough);
    }
}

impl Charges {
    /// The charge of one more pool.
    pub(super) fn join(self: &Arc<Self>) -> Arc<Charge> {
        let charge = Arc::new(Charge {
            used_bytes: AtomicU64::new(0),
            all: Arc::clone(self),
            over: Notify::new(),
        });
        let mut pools = self.pools.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&charge));
        charge
    }

    /// Bytes that all pools are charged now.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Adds what is charged.
    pub(super) fn add_memory(&self, uses: &mut MemoryUses) {
        let share = self.share_bytes();
        let indexes_bytes = self.indexes_bytes.load(Ordering::Relaxed);
        // The two change one after the other.
        let objects_bytes = self.used_bytes().saturating_sub(indexes_bytes);
        uses.add(MemoryUser::Objects, objects_bytes, Some(share));
        let indexes_bound = Some(share / INDEX_PARTS);
        uses.add(MemoryUser::CacheDeviceIndexes, indexes_bytes, indexes_bound);
    }

    fn share_bytes(&self) -> u64 {
        self.share_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set_share_bytes(&self, bytes: u64) {
        self.share_bytes.store(bytes, Ordering::Relaxed);
        self.settle_again();
    }

    fn floor_bytes(&self) -> u64 {
        super::floor_bytes(self.share_bytes(), self.pools.lock().len())
    }

    fn settle(&self) {
        if self.used_bytes() > self.ask_at_bytes.load(Ordering::Relaxed) {
            self.ask();
        }
    }

    fn settle_again(&self) {
        self.ask_at_bytes
            .store(self.share_bytes(), Ordering::Relaxed);
        self.is_asked_again.store(true, Ordering::SeqCst);
        self.settle();
    }

    fn ask(&self) {
        loop {
            // One at a time: whoever else comes goes on.
            let Some(mut holders) = self.holders.try_lock() else {
                return;
            };
            self.is_asked_again.store(false, Ordering::SeqCst);
            self.ask_all(&mut holders);
            drop(holders);
            // Who came meanwhile for more to give back found the lock taken.
            let is_over = self.used_bytes() > self.share_bytes();
            if !is_over || !self.is_asked_again.load(Ordering::SeqCst) {
                break;
            }
        }
    }

    fn ask_all(&self, holders: &mut VecDeque<(Weak<dyn Holder>, Weak<Charge>)>) {
        let (share, floor) = (self.share_bytes(), self.floor_bytes());
        let step = share / STEPS;
        let is_enough = || self.used_bytes() <= share - step;
        for round in 0..ROUNDS {
            let before = self.used_bytes();
            for _ in 0..holders.len() {
                let Some((holder, charge)) = holders.pop_front() else {
                    break;
                };
                if let (Some(live), Some(pool)) = (holder.upgrade(), charge.upgrade()) {
                    let is_done = || is_enough() || pool.used_bytes() <= floor;
                    if !is_done() {
                        live.give_back(&is_done);
                    }
                    holders.push_back((holder, charge));
                }
                if is_enough() {
                    break;
                }
            }
            // The first round may find nothing but what was used lately, the others may not.
            let is_in_vain = round > 0 && self.used_bytes() >= before;
            if is_enough() || is_in_vain {
                break;
            }
        }
        let used = self.used_bytes();
        // Asking all of them is not worth it again before there is more: what cannot be given back
        // is looked at each time.
        let more = match used.checked_sub(share) {
            Some(over) if over > 0 => share.max(over) / OVER_STEPS,
            _ => step,
        };
        let next = share.max(used.saturating_add(more));
        self.ask_at_bytes.store(next, Ordering::Relaxed);
        if used > share {
            let pools = self.pools.lock();
            let over = pools.iter().filter_map(Weak::upgrade);
            for pool in over.filter(|pool| pool.used_bytes() > floor) {
                pool.over.notify_one();
            }
        }
    }
}

impl std::fmt::Debug for Charge {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "Charge({} of {} bytes, {} of all pools)",
            self.used_bytes(),
            self.share_bytes(),
            self.all.used_bytes()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shelf {
        things: Mutex<Vec<(Charged, bool)>>,
        asked: AtomicU64,
    }

    impl Shelf {
        fn new(charge: &Arc<Charge>) -> Arc<Self> {
            let shelf = Arc::new(Shelf {
                things: Mutex::default(),
                asked: AtomicU64::new(0),
            });
            let weak = Arc::downgrade(&shelf);
            charge.add_holder(weak);
            shelf
        }

        fn put(&self, charge: &Arc<Charge>, bytes: u64, is_free: bool) {
            self.things.lock().push((charge.take(bytes), is_free));
            charge.settle();
        }
    }

    impl Holder for Shelf {
        fn give_back(&self, is_enough: &dyn Fn() -> bool) {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.things
                .lock()
                .retain(|(_, is_free)| !is_free || is_enough());
        }
    }

    fn charge(share_bytes: u64) -> Arc<Charge> {
        let charges = Arc::new(Charges::default());
        charges.set_share_bytes(share_bytes);
        charges.join()
    }

    #[test]
    fn what_is_over_the_share_is_given_back_by_all() {
        let charge = charge(6400);
        let shelves = [Shelf::new(&charge), Shelf::new(&charge)];
        for number in 0..1000 {
            shelves[number % 2].put(&charge, 10, true);
            assert!(charge.used_bytes() <= 6400 + 100);
        }
        charge.all.set_share_bytes(640);
        assert!(charge.used_bytes() <= 640);
        drop(shelves);
        assert_eq!(charge.used_bytes(), 0);
    }

    #[test]
    fn holders_that_cannot_give_are_not_asked_for_every_byte() {
        let charge = charge(6400);
        let shelf = Shelf::new(&charge);
        for _ in 0..1280 {
            shelf.put(&charge, 10, false);
        }
        // Twice the share: once for each of its 16 parts. What gives nothing twice is let be.
        assert!(shelf.asked.load(Ordering::Relaxed) <= 2 * (OVER_STEPS + 1));
        assert_eq!(charge.used_bytes(), 12_800);
        // They can now.
        for thing in shelf.things.lock().iter_mut() {
            thing.1 = true;
        }
        charge.settle_again();
        assert!(charge.used_bytes() <= 6400);
    }

    /// Gives back from the third time on that it is asked, of which it tells the second time.
    struct Late {
        charge: Weak<Charge>,
        things: Mutex<Vec<Charged>>,
        asked: AtomicU64,
    }

    impl Holder for Late {
        fn give_back(&self, _: &dyn Fn() -> bool) {
            match self.asked.fetch_add(1, Ordering::Relaxed) {
                0 => {}
                1 => self.charge.upgrade().expect("asks").settle_again(),
                _ => self.things.lock().clear(),
            }
        }
    }

    #[test]
    fn who_has_more_to_give_back_is_asked_again_though_others_are_asked_already() {
        let charge = charge(6400);
        let late = Arc::new(Late {
            charge: Arc::downgrade(&charge),
            things: Mutex::new(vec![charge.take(10_000)]),
            asked: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&late);
        charge.add_holder(weak);
        charge.settle();
        assert_eq!(charge.used_bytes(), 0);
    }

    #[test]
    fn a_pool_is_asked_for_nothing_that_is_below_its_floor() {
        let one = charge(6400);
        let two = one.all.join();
        let (few, many) = (Shelf::new(&one), Shelf::new(&two));
        // The floor of two pools is a sixteenth.
        for _ in 0..40 {
            few.put(&one, 10, true);
        }
        for _ in 0..10_000 {
            many.put(&two, 10, true);
        }
        assert_eq!(one.used_bytes(), 400);
        assert!(one.used_bytes() + two.used_bytes() <= 6400 + 100);
        // Above it, what it has counts like that of the others.
        for _ in 0..1000 {
            few.put(&one, 10, true);
        }
        assert!(one.used_bytes() > 400 && two.used_bytes() < 6000);
        assert!(one.used_bytes() + two.used_bytes() <= 6400 + 100);
    }

    #[test]
    fn every_pool_hears_that_too_much_is_charged_unless_it_is_below_its_floor() {
        let charges = Arc::new(Charges::default());
        charges.set_share_bytes(6400);
        let pools = [charges.join(), charges.join(), charges.join()];
        let _charged = [pools[0].take(100), pools[1].take(8000), pools[2].take(8000)];
        charges.settle();
        let heard = pools.each_ref().map(|pool| {
            let mut heard = std::pin::pin!(pool.is_over());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            heard.as_mut().poll(&mut context).is_ready()
        });
        assert_eq!(heard, [false, true, true]);
    }

    #[test]
    fn indexes_have_half_of_the_share_and_count_in_it() {
        let one = charge(6400);
        let two = one.all.join();
        let things = Shelf::new(&two);
        assert_eq!(Memory::take(&*one, 3000), 3000);
        assert_eq!(Memory::left_bytes(&*two), 200);
        assert_eq!(Memory::take(&*two, 3000), 200);
        assert_eq!(Memory::take(&*two, 1), 0);
        // Others find so much less.
        for _ in 0..1000 {
            things.put(&two, 10, true);
        }
        assert_eq!(one.used_bytes(), 3000);
        assert!(two.used_bytes() <= 3500, "{}", two.used_bytes());
        assert!(!Memory::is_over(&*one));
        one.all.set_share_bytes(3200);
        assert!(Memory::is_over(&*one) && Memory::is_over(&*two));
        assert_eq!((Memory::left_bytes(&*one), Memory::take(&*one, 10)), (0, 0));
        Memory::give_back(&*one, 3000);
        assert!(!Memory::is_over(&*two));
        assert_eq!(one.used_bytes(), 0);
        assert_eq!(Memory::left_bytes(&*one), 1400);
    }

    #[test]
    fn a_charge_that_changes_counts_once() {
        let charge = charge(1 << 20);
        let mut one = charge.take(100);
        let two = charge.take(50);
        one.resize(300);
        assert_eq!(charge.used_bytes(), 350);
        one.resize(10);
        assert_eq!(charge.used_bytes(), 60);
        drop((one, two));
        assert_eq!(charge.used_bytes(), 0);
    }
}
