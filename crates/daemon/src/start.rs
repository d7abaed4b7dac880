//! Importing what was imported when the daemon last ran, or before the power failed.
//!
//! Pools are opened side by side, each with its own error, so that one with slow devices, or with
//! much to claim, holds up no other's import. They are taken in one after the other then, by name:
//! where filesystems of several pools are mounted within each other, that decides which one covers
//! which, and it is to be the same each time. One whose devices were not there is tried again after
//! others have come, as they may be what these hold.

use std::sync::Arc;

use api::{Failure, FailureKind};
use device::BoxFuture;
use futures::future::join_all;
use pool::{ImportSpec, MissingLogs, Pool, ScanSpec};

use crate::error::from_pool;
use crate::names::Claim;
use crate::pool_list::CachedPool;
use crate::service::Service;

/// What is to be imported.
trait Imports: Sync {
    /// What is known of one.
    type Listed: Send + Sync;
    /// One that is open, and not taken in yet.
    type Opened: Send;

    fn open<'a>(&'a self, one: &'a Self::Listed) -> BoxFuture<'a, Result<Self::Opened, Failure>>;

    fn take_in(&self, opened: Self::Opened) -> BoxFuture<'_, ()>;
}

/// Has all of them opened side by side, and takes in those that could be, in their order; again for
/// those that were not found, as long as others were. Gives those that could not be opened, and why.
async fn in_rounds<I: Imports>(imports: &I, mut all: Vec<I::Listed>) -> Vec<(I::Listed, Failure)> {
    let mut failed = Vec::new();
    loop {
        let opened = join_all(all.iter().map(|one| imports.open(one))).await;
        let mut not_found = Vec::new();
        let mut has_come = false;
        for (one, opened) in all.into_iter().zip(opened) {
            match opened {
                Ok(opened) => {
                    imports.take_in(opened).await;
                    has_come = true;
                }
                Err(failure) if failure.kind == FailureKind::NotFound => {
                    not_found.push((one, failure));
                }
                Err(failure) => failed.push((one, failure)),
            }
        }
        if !has_come || not_found.is_empty() {
            failed.extend(not_found);
            return failed;
        }
        all = not_found.into_iter().map(|(one, _)| one).collect();
    }
}

/// The pools of a service's last run.
struct LastRun<'s>(&'s Service);

impl<'s> Imports for LastRun<'s> {
    type Listed = CachedPool;
    type Opened = (Arc<Pool>, Claim<'s>);

    fn open<'a>(&'a self, one: &'a CachedPool) -> BoxFuture<'a, Result<Self::Opened, Failure>> {
        Box::pin(self.0.open_cached(one))
    }

    fn take_in(&self, (pool, claim): Self::Opened) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for warning in self.0.adopt(pool, true).await {
                tracing::warn!("{warning}");
                eprintln!("{warning}");
            }
            drop(claim);
        })
    }
}

impl Service {
    /// Imports what was imported when the daemon last ran. What cannot be is reported, and tried
    /// again at the next start: a disk that came too late must not cost a pool its place.
    pub(crate) async fn import_cached(&self) {
        let failed = in_rounds(&LastRun(self), self.pools.expect_cached()).await;
        for (cached, failure) in failed {
            tracing::error!("pool '{}' of the last run: {failure}", cached.name);
            for told in self.pools.could_not_be_imported(cached.guid, &failure) {
                eprintln!("{told}");
            }
        }
    }

    /// Opens a pool of the last run, which nobody else takes in meanwhile.
    async fn open_cached<'s>(
        &'s self,
        cached: &CachedPool,
    ) -> Result<(Arc<Pool>, Claim<'s>), Failure> {
        let doing = format!("cannot import '{}'", cached.name);
        let spec = ScanSpec {
            paths: cached.devices.clone(),
            guid: None,
            name: None,
        };
        let found = pool::scan(&self.world, &spec)
            .await
            .map_err(|error| from_pool(&doing, &error))?;
        let mut found = found.into_iter();
        let Some(found) = found.find(|found| cached.is(found.guid.get())) else {
            let message = format!(
                "{doing}: none of its devices is there ({}); bring them back and run 'zpool \
                 import -d DIR {}'",
                cached.devices.join(", "),
                cached.name
            );
            return Err(Failure::new(FailureKind::NotFound, message));
        };
        let (pools, guid) = (&self.pools, found.guid);
        let claim = pools.claim(&doing, &found.name, Some(guid)).await?;
        // While there is no power somebody may have imported it, or another one of its name.
        if pools.get(&found.name).is_ok() || pools.all().iter().any(|open| open.pool.guid() == guid)
        {
            let message = format!("{doing}: it, or a pool of its name, was imported meanwhile");
            return Err(Failure::new(FailureKind::Exists, message));
        }
        let mut import = ImportSpec::new(found, self.host.clone());
        import.read_only = cached.read_only;
        import.events = Some(self.events.clone());
        import.missing_logs = MissingLogs::AcceptedIfUnused;
        let pool = Pool::import(&self.world, import)
            .await
            .map_err(|error| from_pool(&doing, &error))?;
        Ok((pool, claim))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use tokio::sync::Barrier;

    use super::*;

    /// Three that are open only when all of them are being opened, and some that are in others.
    struct Fake {
        together: Barrier,
        here: Mutex<Vec<&'static str>>,
    }

    impl Imports for Fake {
        type Listed = &'static str;
        type Opened = &'static str;

        fn open<'a>(
            &'a self,
            name: &'a &'static str,
        ) -> BoxFuture<'a, Result<&'static str, Failure>> {
            Box::pin(async move {
                if ["a", "b", "c"].contains(name) {
                    self.together.wait().await;
                }
                let is_here = |other| self.here.lock().contains(&other);
                let is_found = match *name {
                    "a" => {
                        tokio::time::sleep(Duration::from_secs(60)).await;
                        true
                    }
                    "b" => return Err(Failure::new(FailureKind::Io, "damaged")),
                    "d" => is_here("e"),
                    "e" => is_here("c"),
                    "f" => false,
                    _ => true,
                };
                match is_found {
                    true => Ok(*name),
                    false => Err(Failure::new(FailureKind::NotFound, "no devices")),
                }
            })
        }

        fn take_in(&self, name: &'static str) -> BoxFuture<'_, ()> {
            Box::pin(async move { self.here.lock().push(name) })
        }
    }

    /// Goal: one that takes its time holds up no other, and its error is its own; what is there only
    /// with another one is found; all are taken in by their order.
    #[tokio::test(start_paused = true)]
    async fn all_are_opened_side_by_side_and_taken_in_by_their_order() {
        let fake = Fake {
            together: Barrier::new(3),
            here: Mutex::default(),
        };
        let importing = in_rounds(&fake, vec!["a", "b", "c", "d", "e", "f"]);
        let failed = tokio::time::timeout(Duration::from_secs(600), importing).await;
        let failed = failed.expect("none waits for another one's end");
        let failed: Vec<_> = failed.iter().map(|(name, why)| (*name, why.kind)).collect();
        assert_eq!(
            failed,
            [("b", FailureKind::Io), ("f", FailureKind::NotFound)]
        );
        assert_eq!(*fake.here.lock(), ["a", "c", "e", "d"]);
    }
}
