//! What a pool does about devices that do not answer (`vdev::deadman` in the crate `vdev` says
//! which that are, and does without them where the pool can).
//!
//! Once a second:
//!
//! - A device that was given up and has answered everything by now is used again, and resilvered;
//!   a spare that stands in for it goes when that is done. That is done beside the looks: it waits
//!   for a transaction group, which another device may keep waiting.
//! - When a device that the pool needs keeps an operation waiting for longer than
//!   [`vdev::DeadmanLimits::stand_still_s`], the pool is suspended: it stands still anyway, and so
//!   property `failmode` counts, and whoever waits for the pool itself is told. It goes on by
//!   itself when the device answers. OpenZFS leaves such a pool as it is.
//!
//! Source: module/zfs/spa_misc.c (`spa_deadman`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use device::World;
use format::Guid;
use vdev::VdevError;
use zio::ZioError;

use crate::PoolError;
use crate::core::Core;
use crate::topology::allow_blocks;

impl Core {
    /// Starts the task that looks for devices that do not answer.
    pub(crate) fn start_deadman(self: &Arc<Self>) {
        let looking = look_each_second(self.world.clone(), Arc::downgrade(self));
        self.pipeline.tasks().spawn("deadman", looking);
    }

    /// Whether the pool is suspended because a device does not answer.
    fn stands_still(&self) -> bool {
        let error = self.pipeline.suspension().error();
        matches!(error, Some(ZioError::Vdev(VdevError::Stalled { .. })))
    }

    /// `returns` tells whether devices are being brought back.
    async fn look_for_hung(self: &Arc<Self>, returns: &Arc<AtomicBool>) {
        let limits = self.tree.patience().limits();
        let waits = self.tree.patience().longest_wait();
        let waits_s = waits.map_or(0, |(_, seconds)| seconds);
        if self.stands_still() {
            if waits_s < limits.lag_s
                && let Err(error) = self.go_on().await
            {
                let pool = self.identity.name();
                tracing::warn!(pool, %error, "a pool whose devices answer again cannot go on");
            }
            return;
        }
        if self.suspended().is_some() {
            return;
        }
        if let Some((guid, _)) = waits.filter(|(_, seconds)| *seconds >= limits.stand_still_s) {
            let vdev = self.tree.find(guid);
            let vdev = vdev.map_or_else(|| guid.to_string(), |vdev| vdev.display_name());
            let error = VdevError::Stalled { vdev };
            self.pipeline.suspension().suspend(error.into());
            return;
        }
        let back: Vec<Guid> = {
            let leaves = self.tree.leaves();
            let is_back = |guid: &Guid| {
                let vdev = leaves.iter().find(|vdev| vdev.guid() == *guid);
                let leaf = vdev.and_then(|vdev| vdev.leaf());
                leaf.is_some_and(|leaf| leaf.is_given_up() && !leaf.is_busy())
            };
            leaves
                .iter()
                .map(|vdev| vdev.guid())
                .filter(is_back)
                .collect()
        };
        if back.is_empty() || returns.swap(true, Ordering::AcqRel) {
            return;
        }
        let (core, returns) = (self.clone(), returns.clone());
        self.pipeline.tasks().spawn("return", async move {
            core.bring_back(back).await;
            returns.store(false, Ordering::Release);
        });
    }

    /// Uses devices again that were given up.
    async fn bring_back(self: &Arc<Self>, devices: Vec<Guid>) {
        for guid in devices {
            let device = guid.to_string();
            match self.look_for(guid).await {
                Ok(true) => tracing::info!(device, "a device answers again"),
                Ok(false) => {}
                Err(error) => tracing::debug!(device, %error, "a device stays away"),
            }
        }
    }

    /// All devices of the suspended pool answer again. What they had not flushed is written again,
    /// as they may have been reset.
    async fn go_on(&self) -> Result<(), PoolError> {
        self.check_still_ours().await?;
        self.pipeline.suspension().reopen().await?;
        self.pipeline.suspension().resume()?;
        if !self.read_only {
            allow_blocks(self);
        }
        self.txgs.kick();
        Ok(())
    }
}

async fn look_each_second(world: World, weak: Weak<Core>) {
    let returns = Arc::new(AtomicBool::new(false));
    loop {
        world.clock.sleep(Duration::from_secs(1)).await;
        let Some(core) = weak.upgrade() else { return };
        if core.state.lock().closed {
            return;
        }
        core.look_for_hung(&returns).await;
    }
}
