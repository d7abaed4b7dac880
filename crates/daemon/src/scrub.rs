//! `zpool scrub`, `zpool checkpoint` and `zpool wait`.

use std::time::Duration;

use api::{Empty, Failure, FailureKind, ScrubAction, ZpoolCheckpoint, ZpoolScrub, ZpoolWait};
use pool::ScrubCommand;

use crate::error::from_engine;
use crate::service::Service;

/// How often background frees are looked at.
const POLL: Duration = Duration::from_millis(200);
/// Activities that can be waited for (`zpool_wait_activity_t`, include/sys/fs/zfs.h).
const ACTIVITIES: [&str; 9] = [
    "discard",
    "free",
    "initialize",
    "replace",
    "remove",
    "resilver",
    "scrub",
    "trim",
    "raidz_expand",
];

impl Service {
    /// `zpool scrub`.
    pub(crate) async fn zpool_scrub(&self, call: &ZpoolScrub) -> Result<Empty, Failure> {
        let pools = if call.all {
            self.pools()
        } else {
            self.pools_named(&call.names)?
        };
        let command = match call.action {
            ScrubAction::Start => ScrubCommand::Start,
            ScrubAction::Pause => ScrubCommand::Pause,
            ScrubAction::Stop => ScrubCommand::Stop,
        };
        let doing = match call.action {
            ScrubAction::Start => "cannot scrub",
            ScrubAction::Pause => "cannot pause scrubbing",
            ScrubAction::Stop => "cannot cancel scrubbing",
        };
        for open in &pools {
            let doing = format!("{doing} '{}'", open.pool.name());
            open.pool
                .scrub(command)
                .await
                .map_err(|error| from_engine(&doing, &error))?;
        }
        if call.wait {
            for open in &pools {
                open.pool.wait_for_scrub(false).await;
            }
        }
        Ok(Empty {})
    }

    /// `zpool checkpoint`.
    pub(crate) async fn zpool_checkpoint(&self, call: &ZpoolCheckpoint) -> Result<Empty, Failure> {
        let open = self.pool(&call.name)?;
        {
            let _admin = open.admin.lock().await;
            let (doing, done) = match call.discard {
                true => (
                    format!("cannot discard checkpoint in '{}'", call.name),
                    open.pool.discard_checkpoint().await,
                ),
                false => (
                    format!("cannot checkpoint '{}'", call.name),
                    open.pool.checkpoint().await,
                ),
            };
            done.map_err(|error| from_engine(&doing, &error))?;
            self.log_command(&open.pool, &call.command).await;
        }
        if call.wait {
            self.wait_for_discard(&call.name).await;
        }
        Ok(Empty {})
    }

    /// Waits until no checkpoint is being discarded, or the pool is gone or suspended.
    async fn wait_for_discard(&self, name: &str) {
        while let Ok(open) = self.pool(name)
            && open.pool.is_discarding()
            && !open.pool.is_read_only()
            && open.pool.suspended().is_none()
        {
            self.world.clock.sleep(POLL).await;
        }
    }

    /// `zpool wait`. What Millpond does not do in the background is never under way.
    pub(crate) async fn zpool_wait(&self, call: &ZpoolWait) -> Result<Empty, Failure> {
        let open = self.pool(&call.name)?;
        for activity in &call.activities {
            if !ACTIVITIES.contains(&activity.as_str()) {
                return Err(Failure::new(
                    FailureKind::Invalid,
                    format!(
                        "invalid activity '{activity}'; known are {}",
                        ACTIVITIES.join(", ")
                    ),
                ));
            }
        }
        let wanted = |name: &str| {
            call.activities.is_empty() || call.activities.iter().any(|activity| activity == name)
        };
        if wanted("scrub") {
            open.pool.wait_for_scrub(false).await;
        }
        if wanted("discard") {
            self.wait_for_discard(&call.name).await;
        }
        if wanted("free") && !open.pool.is_read_only() {
            // Ends with the pool, too.
            while open.pool.numbers().freeing_bytes > 0 && self.pool(&call.name).is_ok() {
                self.world.clock.sleep(POLL).await;
            }
        }
        Ok(Empty {})
    }
}
