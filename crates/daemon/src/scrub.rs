//! `zpool scrub` and `zpool wait`.

use std::time::Duration;

use api::{Empty, Failure, FailureKind, ScrubAction, ZpoolScrub, ZpoolWait};
use engine::ScrubCommand;

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
        for open in &pools {
            open.pool
                .scrub(command)
                .await
                .map_err(|error| from_engine("", &error))?;
        }
        if call.wait {
            for open in &pools {
                open.pool.wait_for_scrub(false).await;
            }
        }
        Ok(Empty {})
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
        if wanted("free") && !open.pool.is_read_only() {
            // Ends with the pool, too.
            while open.pool.numbers().freeing_bytes > 0 && self.pool(&call.name).is_ok() {
                self.world.clock.sleep(POLL).await;
            }
        }
        Ok(Empty {})
    }
}
