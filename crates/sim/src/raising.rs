//! Pools of versions before feature flags are raised while they are worked with.

use std::sync::Arc;
use std::time::Duration;

use device::World;
use format::Uberblock;
use parking_lot::Mutex;
use pool::Pool;

use crate::rng::Rng;

/// Versions on the way: space by user; deadlists that are maps; intent logs; the last one.
const STEPS: [u64; 4] = [15, 26, 27, Uberblock::VERSION_BEFORE_FEATURES];
/// Longest pause before a step, in milliseconds.
const PAUSE_MS_MAX: u64 = 400;

/// Raises the version step by step, now and then. Answers where it says why a step failed, as one
/// does when the power goes.
pub(crate) fn spawn(world: &World, pool: &Arc<Pool>, mut rng: Rng) -> Arc<Mutex<Option<String>>> {
    let failed = Arc::new(Mutex::new(None));
    let (told, pool, clock) = (failed.clone(), Arc::downgrade(pool), world.clock.clone());
    world.spawn.spawn(Box::pin(async move {
        for to in STEPS {
            let pause = Duration::from_millis(rng.below(PAUSE_MS_MAX));
            clock.sleep(pause).await;
            let Some(pool) = pool.upgrade() else { return };
            if let Err(error) = pool.properties().raise_version(to).await {
                *told.lock() = Some(format!("to {to}: {error}"));
                return;
            }
        }
    }));
    failed
}
