//! The cache gives memory back while it is short, and takes it again afterwards.
//!
//! Each second the kernel's figures are read ([`MemoryPressure`]) and [`CacheLimit`] decides, which
//! looks at nothing else. Memory is short when tasks of the server's control group waited for
//! memory for a tenth of that second; when tasks of the machine did, and little of its memory can
//! be had (else they wait because of their own groups' limits, where nothing that is given back
//! helps); or when a group is nearly at its `memory.high`, above which the kernel would hold the
//! server up. While it is short, the limit falls by a sixteenth of what it is at most, down to a
//! quarter. When nothing has been short for half a minute, it rises again, eight times as slowly.
//!
//! Whatever there is, the cache has no more than is left of its limit beside all else that the
//! process has in memory ([`crate::beside`]).
//!
//! What tasks waited in the last second, not the kernel's average of the last ten, is what counts:
//! otherwise ten steps would be taken for each that was needed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use device::MemoryUses;
use host::{MemoryPressure, ResidentMemory};
use service::pools::Pools;
use telemetry::memory::with_program;
use tokio::time::{Instant, MissedTickBehavior};

use crate::beside::{Beside, beside_bytes};

/// How often it is looked.
const PAUSE: Duration = Duration::from_secs(1);
/// The limit falls by this part of what it is at most.
const FALL_PARTS: u64 = 16;
/// And rises by this part of it.
const RISE_PARTS: u64 = 128;
/// It stays at least this part of it.
const LEAST_PARTS: u64 = 4;
/// Looks after the last one at which memory was anything but plentiful, until the limit rises.
const CALM_LOOKS: u32 = 30;
/// Memory is short where tasks waited for more than this part of the time.
const STALLED_MAX: f64 = 0.1;
/// It is plentiful where they waited for less than this.
const STALLED_CALM: f64 = 0.01;
/// The machine's memory is short if less than this part of it can be had.
const AVAILABLE_MIN: f64 = 0.1;
/// A group's is short if more than this part of its `memory.high` is in use.
const FULLNESS_MAX: f64 = 15.0 / 16.0;
/// It is plentiful if less than this is.
const FULLNESS_CALM: f64 = 7.0 / 8.0;

/// The limit of the cache over time.
struct CacheLimit {
    max_bytes: u64,
    now_bytes: u64,
    calm_looks: u32,
    before: Option<MemoryPressure>,
}

impl CacheLimit {
    /// At most `max_bytes`, and so much at first.
    fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            now_bytes: max_bytes,
            calm_looks: 0,
            before: None,
        }
    }

    /// The limit from now on, when `elapsed` after the last look it is as `now` says.
    fn next(&mut self, now: MemoryPressure, elapsed: Duration) -> u64 {
        let before = self.before.replace(now).unwrap_or(now);
        let part = |now: Option<Duration>, before: Option<Duration>| {
            let stalled = now
                .unwrap_or_default()
                .saturating_sub(before.unwrap_or_default());
            stalled.as_secs_f64() / elapsed.as_secs_f64().max(1e-3)
        };
        let own = part(now.group_stalled, before.group_stalled);
        let others = match now.machine_available < AVAILABLE_MIN {
            true => part(now.machine_stalled, before.machine_stalled),
            false => 0.0,
        };
        let stalled = own.max(others);
        if stalled > STALLED_MAX || now.group_fullness > FULLNESS_MAX {
            self.calm_looks = 0;
            let fallen = self.now_bytes.saturating_sub(self.max_bytes / FALL_PARTS);
            self.now_bytes = fallen.max(self.max_bytes / LEAST_PARTS);
        } else if stalled > STALLED_CALM || now.group_fullness > FULLNESS_CALM {
            self.calm_looks = 0;
        } else if self.calm_looks < CALM_LOOKS {
            self.calm_looks += 1;
        } else {
            let risen = self.now_bytes + (self.max_bytes / RISE_PARTS).max(1);
            self.now_bytes = risen.min(self.max_bytes);
        }
        self.now_bytes
    }
}

/// Tells who has how much of the process's memory; nothing once the server is gone.
pub(crate) type Uses = dyn Fn() -> Option<MemoryUses> + Send + Sync;

/// Has the cache follow the memory that there is, and what is beside it, as long as there are
/// pools.
pub(crate) async fn follow(pools: Weak<Pools>, uses: Arc<Uses>) {
    let Some(max_bytes) = pools.upgrade().map(|pools| pools.cache_bytes()) else {
        return;
    };
    let (mut limit, mut beside) = (CacheLimit::new(max_bytes), Beside::new(max_bytes));
    let mut looks = tokio::time::interval(PAUSE);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        looks.tick().await;
        let Some(pools) = pools.upgrade() else { return };
        let uses = Arc::clone(&uses);
        let look = move || (MemoryPressure::read(), beside_now(uses.as_ref(), max_bytes));
        let Ok((pressure, beside_bytes)) = tokio::task::spawn_blocking(look).await else {
            continue;
        };
        let (before, now) = (limit.now_bytes, Instant::now());
        let while_short = limit.next(pressure, now - last);
        last = now;
        tell(before, while_short, max_bytes);
        let bytes = while_short.min(beside.next(beside_bytes));
        if bytes != pools.cache().limit_bytes() {
            // Giving much back takes its time.
            let _ = tokio::task::spawn_blocking(move || set(&pools, bytes)).await;
        }
    }
}

/// Bytes that are beside the cache now.
fn beside_now(uses: &Uses, max_bytes: u64) -> u64 {
    let resident = ResidentMemory::read();
    let uses = uses().map(|uses| with_program(uses, resident));
    uses.map_or(0, |uses| beside_bytes(&uses, resident, max_bytes))
}

fn set(pools: &Arc<Pools>, bytes: u64) {
    pools.cache().set_limit_bytes(bytes);
    device::FileDevice::give_back_unused_memory();
}

fn tell(before: u64, bytes: u64, max_bytes: u64) {
    if before == bytes {
        return;
    }
    if before == max_bytes {
        tracing::info!("memory is short: the cache gives some back (metrics tell how much)");
    } else if bytes == max_bytes {
        tracing::info!("the cache has all its memory again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BYTES: u64 = 1 << 30;
    const STEP_BYTES: u64 = MAX_BYTES / FALL_PARTS;

    /// A machine that tells something each second.
    struct Told {
        limit: CacheLimit,
        pressure: MemoryPressure,
    }

    impl Told {
        fn new() -> Self {
            let zero = Some(Duration::ZERO);
            let pressure = MemoryPressure {
                group_stalled: zero,
                machine_stalled: zero,
                machine_available: 0.5,
                group_fullness: 0.0,
            };
            let mut limit = CacheLimit::new(MAX_BYTES);
            assert_eq!(limit.next(pressure, PAUSE), MAX_BYTES);
            Self { limit, pressure }
        }

        /// So many seconds, in each of which tasks of the group wait this long, those of the
        /// machine that long.
        fn pass(&mut self, seconds: u32, own_ms: u64, others_ms: u64) -> u64 {
            let more = |stalled: &mut Option<Duration>, ms| {
                *stalled = stalled.map(|stalled| stalled + Duration::from_millis(ms));
            };
            for _ in 0..seconds {
                more(&mut self.pressure.group_stalled, own_ms);
                more(&mut self.pressure.machine_stalled, others_ms);
                self.limit.next(self.pressure, PAUSE);
            }
            self.limit.now_bytes
        }
    }

    #[test]
    fn the_limit_falls_while_memory_is_short_and_rises_slowly_afterwards() {
        let mut told = Told::new();
        assert_eq!(told.pass(100, 5, 900), MAX_BYTES);
        assert_eq!(told.pass(1, 200, 200), MAX_BYTES - STEP_BYTES);
        assert_eq!(told.pass(3, 200, 200), MAX_BYTES - 4 * STEP_BYTES);
        // Neither short nor plentiful, however long.
        assert_eq!(told.pass(100, 50, 50), MAX_BYTES - 4 * STEP_BYTES);
        assert_eq!(told.pass(CALM_LOOKS, 0, 0), MAX_BYTES - 4 * STEP_BYTES);
        let risen = told.pass(1, 0, 0);
        assert_eq!(risen, MAX_BYTES - 4 * STEP_BYTES + MAX_BYTES / RISE_PARTS);
        // Once more, and it waits again.
        let fallen = told.pass(1, 200, 200);
        assert_eq!(fallen, risen - STEP_BYTES);
        assert_eq!(told.pass(CALM_LOOKS, 0, 0), fallen);
        assert_eq!(told.pass(100, 0, 0), MAX_BYTES);
        assert_eq!(told.pass(1000, 0, 0), MAX_BYTES);
    }

    #[test]
    fn a_quarter_stays_whatever_happens() {
        let mut told = Told::new();
        assert_eq!(told.pass(1000, 1000, 1000), MAX_BYTES / LEAST_PARTS);
        let mut none = CacheLimit::new(0);
        assert_eq!(none.next(told.pressure, PAUSE), 0);
        told.pressure.group_fullness = 1.0;
        assert_eq!(none.next(told.pressure, PAUSE), 0);
    }

    #[test]
    fn others_count_only_where_the_machine_has_little_memory_left() {
        let mut told = Told::new();
        assert_eq!(told.pass(10, 0, 900), MAX_BYTES);
        told.pressure.machine_available = 0.05;
        assert_eq!(told.pass(2, 0, 900), MAX_BYTES - 2 * STEP_BYTES);
        // Without control groups only the machine tells.
        told.pressure.group_stalled = None;
        assert_eq!(told.pass(1, 0, 900), MAX_BYTES - 3 * STEP_BYTES);
        told.pressure.machine_stalled = None;
        assert_eq!(told.pass(1, 0, 900), MAX_BYTES - 3 * STEP_BYTES);
    }

    #[test]
    fn a_group_that_is_nearly_full_counts_before_anybody_waits() {
        let mut told = Told::new();
        told.pressure.group_fullness = 0.95;
        assert_eq!(told.pass(2, 0, 0), MAX_BYTES - 2 * STEP_BYTES);
        told.pressure.group_fullness = 0.9;
        assert_eq!(told.pass(100, 0, 0), MAX_BYTES - 2 * STEP_BYTES);
        told.pressure.group_fullness = 0.8;
        assert_eq!(told.pass(100, 0, 0), MAX_BYTES);
    }

    #[test]
    fn the_time_between_looks_counts() {
        let mut told = Told::new();
        told.pressure.group_stalled = Some(Duration::from_millis(200));
        let after = told.limit.next(told.pressure, Duration::from_secs(10));
        assert_eq!(after, MAX_BYTES);
        told.pressure.group_stalled = Some(Duration::from_millis(400));
        let after = told.limit.next(told.pressure, Duration::from_millis(500));
        assert_eq!(after, MAX_BYTES - STEP_BYTES);
    }
}
