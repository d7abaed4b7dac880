//! Devices that are initialized and trimmed while others work.

use std::sync::{Arc, Weak};
use std::time::Duration;

use device::World;
use pool::{ActivityCommand, ActivityKind, ActivitySpec, Pool};

use crate::rng::Rng;

/// Begins, suspends and cancels passes over free space until the pool is gone.
pub(crate) fn spawn(world: &World, pool: &Arc<Pool>, rng: Rng) {
    let (own, pool) = (world.clone(), Arc::downgrade(pool));
    world.spawn.spawn(Box::pin(run(own, pool, rng)));
}

async fn run(world: World, pool: Weak<Pool>, mut rng: Rng) {
    loop {
        let pause = Duration::from_millis(20 + rng.below(1500));
        world.clock.sleep(pause).await;
        let Some(pool) = pool.upgrade() else { return };
        // What is written over makes simulated disks slow.
        let kind = match rng.percent(15) {
            true => ActivityKind::Initialize,
            false => ActivityKind::Trim,
        };
        let command = match rng.below(8) {
            0 => ActivityCommand::Suspend,
            1 => ActivityCommand::Cancel,
            2 if kind == ActivityKind::Initialize => ActivityCommand::Forget,
            _ => ActivityCommand::Start,
        };
        let spec = ActivitySpec {
            kind,
            command,
            value: None,
            rate: if rng.percent(30) { 8 << 20 } else { 0 },
            secure: false,
        };
        // It may be under way already, or not; or the pool stands still.
        let _ = pool.activity(&[], &spec).await;
    }
}
