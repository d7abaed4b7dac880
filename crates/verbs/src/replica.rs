//! What the key of a replication brought here, and when it may destroy that.
//!
//! Each snapshot that is received with such a key gets the time of that as a property of its own
//! ([`api::RECEIVED_PROPERTY`]): that of this host, as times in a stream are the sender's to
//! choose.
//! Whoever has taken the sender over can then neither destroy what came before, nor wait less than
//! the key says. A crash between the receive and the property leaves a snapshot that the key does
//! not destroy at all.

use api::{Failure, FailureKind, RECEIVED_PROPERTY, Replica};
use dataset::{PropertyChange, PropertySource};
use device::BoxFuture;

use service::pools::{OpenPool, Pools};

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// Notes when a snapshot came.
pub(crate) async fn note_received(open: &OpenPool, snapshot: &str) -> Result<(), Failure> {
    let change = PropertyChange::Set(now_s().to_string());
    let changes = [(RECEIVED_PROPERTY.to_owned(), change)];
    let noted = open.pool.dsl().properties().set(snapshot, &changes).await;
    let doing = format!("cannot note when '{snapshot}' was received");
    noted.map_err(|error| service::error::from_dataset(&doing, &error))
}

/// Refuses to destroy, with the key of a replication, snapshots that did not come with one, or that
/// came too lately. One that does not exist is let through: the destruction says so.
pub fn check_destroy<'a>(
    pools: &'a Pools,
    replica: &'a Replica,
    snapshots: &'a [String],
) -> BoxFuture<'a, Result<(), Failure>> {
    Box::pin(async move {
        let now_s = now_s();
        for snapshot in snapshots {
            let open = pools.of_dataset(snapshot)?;
            let dsl = open.pool.dsl();
            if dsl.directories().lookup(snapshot).await.is_err() {
                continue;
            }
            let setting = dsl.properties().get(snapshot, RECEIVED_PROPERTY).await;
            let setting = setting
                .ok()
                .filter(|found| found.source == PropertySource::Local);
            let came_s: Option<u64> = setting
                .as_ref()
                .and_then(|found| found.value.text()?.parse().ok());
            let denied = |why: String| {
                let message = format!("cannot destroy '{snapshot}': {}", replica.denied(&why));
                Err(Failure::new(FailureKind::Denied, message))
            };
            let Some(came_s) = came_s else {
                return denied("it did not come with the key of a replication".to_owned());
            };
            let since_s = now_s.saturating_sub(came_s);
            if since_s < u64::from(replica.keep_days) * DAY_S {
                let days = replica.keep_days;
                return denied(format!("what came with the key stays for {days} days"));
            }
        }
        Ok(())
    })
}

/// Seconds since 1970.
fn now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
