//! Importing what was imported when the daemon last ran, or before the power failed.
//!
//! Pools are opened side by side, each with its own error, so that one with slow devices, or with
//! much to claim, holds up no other's import. They are taken in one after the other then, by name:
//! where filesystems of several pools are mounted within each other, that decides which one covers
//! which, and it is to be the same each time. One that lacked devices is tried again after others
//! have come, as they may be what these hold.
//!
//! Those of a round that are open keep their names until all of the round are: nothing of a round
//! may wait for the name of another one. Of two that want the same name the second is opened in
//! the next round.

use std::sync::Arc;

use api::{Failure, FailureKind};
use device::BoxFuture;
use futures::future::join_all;
use pool::{ImportSpec, MissingLogs, Pool, PoolError, ScanSpec};

use crate::Serving;
use service::error::from_pool;
use service::names::{Claim, PoolNames};
use service::pool_list::CachedPool;
use service::pools::Arrival;

/// Why one is not open.
enum NotOpened {
    /// Another one of the same round has its name, or is the same pool.
    Later,
    /// Devices are missing, which may be in one that comes yet.
    Lacking(Failure),
    /// Something else.
    Failed(Failure),
}

impl NotOpened {
    /// An error of scanning for devices, or of opening what was found.
    fn of_pool(doing: &str, error: &PoolError) -> Self {
        let failure = from_pool(doing, error);
        match error {
            PoolError::MissingDevices { .. } | PoolError::MissingLog { .. } => {
                Self::Lacking(failure)
            }
            _ if failure.kind == FailureKind::NotFound => Self::Lacking(failure),
            _ => Self::Failed(failure),
        }
    }
}

/// What is to be imported.
trait Imports: Sync {
    /// What is known of one.
    type Listed: Send + Sync;
    /// One that is open, and not taken in yet.
    type Opened: Send;

    fn open<'a>(&'a self, one: &'a Self::Listed) -> BoxFuture<'a, Result<Self::Opened, NotOpened>>;

    fn take_in(&self, opened: Self::Opened) -> BoxFuture<'_, ()>;
}

/// Has all of them opened side by side, and takes in those that could be, in their order; then
/// those that had to wait for a name, and again those that lacked devices as long as others have
/// come since. Gives those that could not be opened, and why.
async fn in_rounds<I: Imports>(imports: &I, all: Vec<I::Listed>) -> Vec<(I::Listed, Failure)> {
    let mut failed = Vec::new();
    let mut lacking = Vec::new();
    let mut all: Vec<(usize, I::Listed)> = all.into_iter().enumerate().collect();
    // Each round ends with fewer that are to be tried, or with fewer that are not here: of those
    // that want the same name one has it, and comes or fails.
    while !all.is_empty() {
        let opened = join_all(all.iter().map(|(_, one)| imports.open(one))).await;
        let mut next = Vec::new();
        let mut has_come = false;
        for ((place, one), opened) in all.into_iter().zip(opened) {
            match opened {
                Ok(opened) => {
                    imports.take_in(opened).await;
                    has_come = true;
                }
                Err(NotOpened::Later) => next.push((place, one)),
                Err(NotOpened::Lacking(failure)) => lacking.push((place, one, failure)),
                Err(NotOpened::Failed(failure)) => failed.push((one, failure)),
            }
        }
        if has_come {
            next.extend(lacking.drain(..).map(|(place, one, _)| (place, one)));
        }
        next.sort_by_key(|(place, _)| *place);
        all = next;
    }
    failed.extend(lacking.into_iter().map(|(_, one, failure)| (one, failure)));
    failed
}

/// The pools of a server's last run.
struct LastRun<'s> {
    serving: &'s Arc<Serving>,
    /// What those of this start have; those of requests are the server's.
    names: &'s PoolNames,
}

/// A pool that is open, with its names.
struct Opened<'s> {
    pool: Arc<Pool>,
    _claims: [Claim<'s>; 3],
}

impl<'s> Imports for LastRun<'s> {
    type Listed = CachedPool;
    type Opened = Opened<'s>;

    fn open<'a>(&'a self, one: &'a CachedPool) -> BoxFuture<'a, Result<Opened<'s>, NotOpened>> {
        Box::pin(self.serving.open_cached(one, self.names))
    }

    fn take_in(&self, opened: Opened<'s>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let pool = Arc::clone(&opened.pool);
            let mount = Some(Vec::new());
            for warning in self.serving.adopt(pool, Arrival::AtStart, mount).await {
                tracing::warn!("{warning}");
                eprintln!("{warning}");
            }
            drop(opened);
        })
    }
}

impl Serving {
    /// Imports what was imported when the daemon last ran. What cannot be is reported, and tried
    /// again at the next start: a disk that came too late must not cost a pool its place.
    pub async fn import_cached(self: &Arc<Self>) {
        let names = PoolNames::default();
        let last_run = LastRun {
            serving: self,
            names: &names,
        };
        let failed = in_rounds(&last_run, self.pools.expect_cached()).await;
        for (cached, failure) in failed {
            tracing::error!("pool '{}' of the last run: {failure}", cached.name);
            for told in self.pools.could_not_be_imported(cached.guid, &failure) {
                eprintln!("{told}");
            }
        }
    }

    /// Opens a pool of the last run, which nobody else takes in meanwhile. `names` are those that
    /// others of the same start have.
    async fn open_cached<'s>(
        &'s self,
        cached: &CachedPool,
        names: &'s PoolNames,
    ) -> Result<Opened<'s>, NotOpened> {
        let doing = format!("cannot import '{}'", cached.name);
        // Before anything is waited for: of two the first on the list has it, each time.
        let listed = vec![cached.name.clone()];
        let listed = names.try_claim(listed).ok_or(NotOpened::Later)?;
        let spec = ScanSpec {
            paths: cached.devices.clone(),
            guid: None,
            name: None,
        };
        let found = pool::scan(&self.world, &spec)
            .await
            .map_err(|error| NotOpened::of_pool(&doing, &error))?;
        let mut found = found.into_iter();
        let Some(found) = found.find(|found| cached.is(found.guid.get())) else {
            let message = format!(
                "{doing}: none of its devices is there ({}); bring them back and run 'zpool \
                 import -d DIR {}'",
                cached.devices.join(", "),
                cached.name
            );
            let failure = Failure::new(FailureKind::NotFound, message);
            return Err(NotOpened::Lacking(failure));
        };
        let (pools, guid) = (&self.pools, found.guid);
        // Another host may have renamed it.
        let mut own = vec![guid.get().to_string()];
        own.extend((found.name != cached.name).then(|| found.name.clone()));
        let own = names.try_claim(own).ok_or(NotOpened::Later)?;
        let claim = pools.claim(&doing, &found.name, Some(guid)).await;
        let claim = claim.map_err(NotOpened::Failed)?;
        // While there is no power somebody may have imported it, or another one of its name.
        if pools.get(&found.name).is_ok() || pools.all().iter().any(|open| open.pool.guid() == guid)
        {
            let message = format!("{doing}: it, or a pool of its name, was imported meanwhile");
            let failure = Failure::new(FailureKind::Exists, message);
            return Err(NotOpened::Failed(failure));
        }
        let mut import = ImportSpec::new(found, (self.host)());
        import.read_only = cached.read_only;
        import.events = Some(self.events.clone());
        import.cache = Some(Arc::clone(self.pools.cache()));
        import.spares_by_hand = self.pools.spares_by_hand;
        import.missing_logs = MissingLogs::AcceptedIfUnused;
        let pool = Pool::import(&self.world, import)
            .await
            .map_err(|error| NotOpened::of_pool(&doing, &error))?;
        Ok(Opened {
            pool,
            _claims: [listed, own, claim],
        })
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

    fn failure(kind: FailureKind) -> Failure {
        Failure::new(kind, "no devices")
    }

    impl Imports for Fake {
        type Listed = &'static str;
        type Opened = &'static str;

        fn open<'a>(
            &'a self,
            name: &'a &'static str,
        ) -> BoxFuture<'a, Result<&'static str, NotOpened>> {
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
                    "b" => return Err(NotOpened::Failed(failure(FailureKind::Io))),
                    "d" => is_here("e"),
                    "e" => is_here("c"),
                    "f" => false,
                    _ => true,
                };
                match is_found {
                    true => Ok(*name),
                    false => Err(NotOpened::Lacking(failure(FailureKind::NotFound))),
                }
            })
        }

        fn take_in(&self, name: &'static str) -> BoxFuture<'_, ()> {
            Box::pin(async move { self.here.lock().push(name) })
        }
    }

    /// Goal: one that takes its time holds up no other, and its error is its own; what is there
    /// only with another one is found; all are taken in by their order.
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

    /// Pools whose names are their first letters; those in capitals lack devices.
    struct Namesakes<'n> {
        names: &'n PoolNames,
        here: Mutex<Vec<&'static str>>,
    }

    impl<'n> Imports for Namesakes<'n> {
        type Listed = &'static str;
        type Opened = (&'static str, Claim<'n>);

        fn open<'a>(
            &'a self,
            one: &'a &'static str,
        ) -> BoxFuture<'a, Result<Self::Opened, NotOpened>> {
            Box::pin(async move {
                let name = one[..1].to_lowercase();
                let claim = self.names.try_claim(vec![name.clone()]);
                let claim = claim.ok_or(NotOpened::Later)?;
                tokio::task::yield_now().await;
                let mut here = self.here.lock().clone().into_iter();
                if here.any(|here| here.starts_with(&name)) {
                    return Err(NotOpened::Failed(failure(FailureKind::Exists)));
                }
                match one.starts_with(&name) {
                    true => Ok((*one, claim)),
                    false => Err(NotOpened::Lacking(failure(FailureKind::Io))),
                }
            })
        }

        fn take_in(&self, (one, _claim): Self::Opened) -> BoxFuture<'_, ()> {
            Box::pin(async move { self.here.lock().push(one) })
        }
    }

    /// Goal: two pools of one name end no start by waiting for each other. The first on the list
    /// comes; where that one cannot, the second does.
    #[tokio::test(start_paused = true)]
    async fn of_two_pools_of_one_name_one_comes() {
        let names = PoolNames::default();
        let namesakes = Namesakes {
            names: &names,
            here: Mutex::default(),
        };
        let importing = in_rounds(&namesakes, vec!["a1", "a2", "B1", "b2", "b3", "C1", "C2"]);
        let failed = tokio::time::timeout(Duration::from_secs(600), importing).await;
        let failed = failed.expect("none waits for another one's name");
        assert_eq!(*namesakes.here.lock(), ["a1", "b2"]);
        let mut failed: Vec<_> = failed.iter().map(|(one, why)| (*one, why.kind)).collect();
        failed.sort_by_key(|(one, _)| *one);
        let (exists, lacking) = (FailureKind::Exists, FailureKind::Io);
        let expected = [
            ("B1", exists),
            ("C1", lacking),
            ("C2", lacking),
            ("a2", exists),
            ("b3", exists),
        ];
        assert_eq!(failed, expected);
    }

    /// Goal: a pool of which one disk, or the log, is a file in another pool is tried again when
    /// that one has come, like one that is in it as a whole; what no pool brings is not.
    #[test]
    fn a_pool_that_lies_in_part_in_another_one_is_tried_again() {
        let pool = || "tank".to_owned();
        let lacking = [
            PoolError::MissingDevices {
                pool: pool(),
                why: "/other/disk is UNAVAIL".into(),
            },
            PoolError::MissingLog {
                pool: pool(),
                devices: vec!["/other/log".into()],
                datasets: vec![pool()],
            },
        ];
        for error in &lacking {
            let not_opened = NotOpened::of_pool("cannot import", error);
            assert!(matches!(not_opened, NotOpened::Lacking(_)), "{error}");
        }
        let read_only = PoolError::ReadOnly { pool: pool() };
        let not_opened = NotOpened::of_pool("cannot import", &read_only);
        assert!(matches!(not_opened, NotOpened::Failed(_)));
    }
}
