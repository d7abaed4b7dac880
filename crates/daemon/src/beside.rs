//! What the cache leaves of its limit to what the process has in memory beside it.
//!
//! The limit that somebody set is meant for the process, and the cache is the one part that can do
//! with less. So it has what is left of that limit and a small allowance on top, once everything
//! else has what it takes: dirty data, what servers have under way, free space, the program, what
//! the allocator keeps. It stays at least half of the limit, however much the others take: they
//! have bounds of their own, and memory that is short has rules of its own ([`crate::pressure`]).
//!
//! What is beside the cache comes and goes within seconds, as transaction groups do. To follow each
//! of them would evict blocks for nothing: what was most within half a minute counts. Small changes
//! are left alone, and steps are bounded.
//!
//! Not all of what the kernel counts beside the cache is believed. Memory of evicted blocks may
//! stay with the allocator for a while; if the cache shrank for that as well, it would shrink again
//! and again. What nobody accounts for therefore counts up to a quarter of the limit.

use std::collections::VecDeque;

use device::MemoryUses;
use host::ResidentMemory;

/// What is beside the cache and takes nothing from it: this part of the limit.
const ALLOWANCE_PARTS: u64 = 10;
/// But so much at least: the program and its threads, with nothing to do.
const ALLOWANCE_BYTES_MIN: u64 = 200 << 20;
/// The cache gives up this part of the limit at most.
const GIVEN_PARTS: u64 = 2;
/// This part of the limit counts at most of what nobody accounts for.
const UNEXPLAINED_PARTS: u64 = 4;
/// Looks whose most counts.
const LOOKS: usize = 30;
/// In a look, what is left falls by this part of the limit at most.
const FALL_PARTS: u64 = 16;
/// And rises by this part.
const RISE_PARTS: u64 = 128;
/// What differs by less than this part of the limit is left as it is.
const STILL_PARTS: u64 = 64;

/// What is left of the limit of the cache, over time.
pub(crate) struct Beside {
    max_bytes: u64,
    left_bytes: u64,
    /// What was beside the cache at the last looks.
    seen: VecDeque<u64>,
}

impl Beside {
    /// All of a limit of `max_bytes` is left at first.
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            left_bytes: max_bytes,
            seen: VecDeque::new(),
        }
    }

    /// What is left from now on, where `beside_bytes` are beside the cache.
    pub(crate) fn next(&mut self, beside_bytes: u64) -> u64 {
        if self.seen.len() == LOOKS {
            self.seen.pop_front();
        }
        self.seen.push_back(beside_bytes);
        let most_bytes = self.seen.iter().copied().max().unwrap_or(0);
        let max_bytes = self.max_bytes;
        let allowed_bytes = (max_bytes / ALLOWANCE_PARTS).max(ALLOWANCE_BYTES_MIN);
        let given_bytes = most_bytes.saturating_sub(allowed_bytes);
        let wanted_bytes = max_bytes - given_bytes.min(max_bytes / GIVEN_PARTS);
        let is_far = wanted_bytes.abs_diff(self.left_bytes) >= max_bytes / STILL_PARTS;
        if wanted_bytes < self.left_bytes && is_far {
            let fallen = self.left_bytes.saturating_sub(max_bytes / FALL_PARTS);
            self.left_bytes = fallen.max(wanted_bytes);
        } else if wanted_bytes > self.left_bytes && (is_far || wanted_bytes == max_bytes) {
            let risen = self.left_bytes + (max_bytes / RISE_PARTS).max(1);
            self.left_bytes = risen.min(wanted_bytes);
        }
        self.left_bytes
    }
}

/// Bytes that are beside the cache, of which a limit of `max_bytes` is to be believed: what the
/// kernel counts, where that is less than what is accounted for (not all of a budget that is taken
/// is touched), and where it is more, a part of that.
pub(crate) fn beside_bytes(
    uses: &MemoryUses,
    resident: Option<ResidentMemory>,
    max_bytes: u64,
) -> u64 {
    let known_bytes = uses.beside_cache_bytes();
    let Some(resident) = resident else {
        return known_bytes;
    };
    let in_cache_bytes = uses.total_bytes() - known_bytes;
    let beside_bytes = resident.total_bytes.saturating_sub(in_cache_bytes);
    beside_bytes.min(known_bytes.saturating_add(max_bytes / UNEXPLAINED_PARTS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::MemoryUser;

    const MAX_BYTES: u64 = 8 << 30;
    const ALLOWED_BYTES: u64 = MAX_BYTES / ALLOWANCE_PARTS;
    const FAR_BYTES: u64 = MAX_BYTES / STILL_PARTS;

    fn pass(beside: &mut Beside, looks: usize, beside_bytes: u64) -> u64 {
        for _ in 0..looks {
            beside.next(beside_bytes);
        }
        beside.left_bytes
    }

    #[test]
    fn the_cache_and_what_is_beside_it_stay_within_the_limit_and_the_allowance() {
        let mut beside = Beside::new(MAX_BYTES);
        assert_eq!(pass(&mut beside, 100, ALLOWED_BYTES), MAX_BYTES);
        for taken in [1, 2, 3, 4] {
            let taken_bytes = ALLOWED_BYTES + taken * (1 << 30);
            let left = pass(&mut beside, 100, taken_bytes);
            assert_eq!(left + taken_bytes, MAX_BYTES + ALLOWED_BYTES);
            assert!(left + taken_bytes <= MAX_BYTES / 100 * 115);
        }
        // When it is gone, the cache has all of its limit again.
        assert_eq!(pass(&mut beside, 200, 0), MAX_BYTES);
    }

    #[test]
    fn half_of_the_limit_stays_and_a_small_one_has_room_for_the_program() {
        let mut beside = Beside::new(MAX_BYTES);
        assert_eq!(pass(&mut beside, 100, u64::MAX), MAX_BYTES / 2);
        let mut small = Beside::new(64 << 20);
        assert_eq!(pass(&mut small, 100, ALLOWANCE_BYTES_MIN), 64 << 20);
        assert_eq!(pass(&mut Beside::new(0), 100, u64::MAX), 0);
    }

    #[test]
    fn what_comes_and_goes_moves_the_limit_once_and_in_bounded_steps() {
        let mut beside = Beside::new(MAX_BYTES);
        let much = ALLOWED_BYTES + (2 << 30);
        assert_eq!(beside.next(much), MAX_BYTES - MAX_BYTES / FALL_PARTS);
        let settled = pass(&mut beside, 10, much);
        assert_eq!(settled, MAX_BYTES - (2 << 30));
        // Transaction groups: much for two seconds in five.
        for second in 0..100 {
            let now_bytes = if second % 5 < 2 { much } else { 0 };
            assert_eq!(beside.next(now_bytes), settled);
        }
        // A little more or less.
        for second in 0..100 {
            let more_bytes = (second % 2) * (FAR_BYTES - 1);
            assert_eq!(beside.next(much + more_bytes), settled);
        }
        assert_eq!(beside.next(much - FAR_BYTES), settled);
        pass(&mut beside, LOOKS, 0);
        assert_eq!(beside.next(0), beside.left_bytes);
        assert!(beside.left_bytes > settled);
        assert!(beside.left_bytes <= settled + 3 * (MAX_BYTES / RISE_PARTS));
    }

    #[test]
    fn what_nobody_accounts_for_counts_in_part() {
        let mut uses = MemoryUses::default();
        uses.add(MemoryUser::CacheBlocks, 6 << 30, None);
        uses.add(MemoryUser::Dirty, 1 << 30, None);
        let beside = |total_bytes| {
            let resident = ResidentMemory {
                total_bytes,
                mapped_bytes: 0,
            };
            beside_bytes(&uses, Some(resident), MAX_BYTES)
        };
        assert_eq!(beside_bytes(&uses, None, MAX_BYTES), 1 << 30);
        assert_eq!(beside(7 << 30), 1 << 30);
        assert_eq!(beside(8 << 30), 2 << 30);
        assert_eq!(beside(20 << 30), 3 << 30);
        // Not all that was taken is touched, nor all that is cached.
        assert_eq!(beside((6 << 30) + 5), 5);
        assert_eq!(beside(5), 0);
    }
}
