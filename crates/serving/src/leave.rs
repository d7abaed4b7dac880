//! Leaving pools: what is served of them is unshared, unmounted and closed, and they are exported,
//! without waiting for a pool that stands still.

use std::sync::Arc;
use std::time::Duration;

use access::{Exclusion, Leaving};
use api::{Failure, FailureKind};
use device::BoxFuture;
use futures::future::join_all;
use serve_fuse::UnmountMode;
use service::error::{from_access, from_pool};
use service::pools::OpenPool;

use crate::Serving;
use crate::mounts::remove_directories;

/// How long a pool's export may take when the server leaves. Long enough for all that may be dirty
/// to reach slow disks: what is left behind is lost like in a crash.
const LAST_EXPORT: Duration = Duration::from_secs(300);

impl Serving {
    /// Exports pools, remembering what to import; at last also those that stand still, with what
    /// they have in memory. Those that could not be exported stay.
    pub async fn leave(&self, pools: &[Arc<OpenPool>], is_last: bool) {
        let leaving = pools.iter().map(|open| {
            let left: BoxFuture<'_, ()> = Box::pin(self.leave_pool(open, is_last));
            (open.pool.name(), left)
        });
        for name in side_by_side(leaving.collect(), LAST_EXPORT).await {
            let message = format!(
                "pool '{name}' could not be exported in {} seconds and is {}: see whether its \
                 devices answer",
                LAST_EXPORT.as_secs(),
                match is_last {
                    true => "left as after a crash",
                    false => "tried again",
                }
            );
            tracing::error!("{message}");
            eprintln!("{message}");
        }
    }

    /// Unshares, unmounts and exports a pool, by force if need be; one that stands still only where
    /// it is the last thing that is done, or it was frozen.
    async fn leave_pool(&self, open: &OpenPool, is_last: bool) {
        let name = open.pool.name();
        let doing = format!("cannot export '{name}'");
        let work = async {
            let _admin = open.admin.lock().await;
            let released = match self.release_pool(open, UnmountMode::Clean).await {
                Err(failure) => {
                    tracing::warn!("{failure}; cutting off whoever uses it");
                    self.release_pool(open, UnmountMode::AtAnyCost).await
                }
                released => released,
            };
            let _nobody = released.inspect_err(|failure| tracing::error!("{failure}"));
            let exported = open.pool.export(true).await;
            exported.map_err(|error| from_pool(&doing, &error))
        };
        let force = is_last || pool::is_frozen(&open.pool);
        match open.leaving(&doing, force, work).await {
            Ok(()) => self.pools.leave(open),
            Err(failure) => {
                tracing::error!("{failure}");
                eprintln!("{failure}");
            }
        }
    }

    /// Unmounts a pool's filesystems and closes its volumes; nobody opens anything of it as long as
    /// what this gives is kept. When one is in use, all are as they were.
    pub async fn release_pool(
        &self,
        open: &OpenPool,
        mode: UnmountMode,
    ) -> Result<Leaving, Failure> {
        let name = open.pool.name();
        if mode == UnmountMode::Clean && open.is_receiving() {
            let message = format!("'{name}' is busy: a stream is being received into it");
            return Err(Failure::new(FailureKind::Busy, message));
        }
        open.receives.break_off().await;
        self.end_nfs_of_pool(open).await;
        let mounted = self.mounts.last_first(&name);
        let directories = self.mounts.own_directories(&mounted);
        let released = async {
            self.volumes.close_volumes(&name, mode).await?;
            let taken = self.take_away(open, mounted, mode).await?;
            match open.access.leave(exclusion(mode)).await {
                Ok(leaving) => Ok(leaving),
                Err(error) => {
                    if let Err(failure) = self.bring_back(open, taken).await {
                        tracing::warn!("{failure}");
                    }
                    Err(from_access(&format!("cannot leave '{name}'"), &error))
                }
            }
        };
        let leaving = match released.await {
            Ok(leaving) => leaving,
            Err(failure) => {
                for warning in self.volumes.open_volumes(open).await {
                    tracing::warn!("{warning}");
                }
                for warning in self.follow_nfs(open, &name).await {
                    tracing::warn!("{warning}");
                }
                return Err(failure);
            }
        };
        remove_directories(directories).await;
        Ok(leaving)
    }
}

/// Whether who uses a dataset keeps it from being taken away.
pub fn exclusion(mode: UnmountMode) -> Exclusion {
    match mode {
        UnmountMode::Clean => Exclusion::Refused,
        UnmountMode::Force | UnmountMode::AtAnyCost | UnmountMode::Lazy => Exclusion::Forced,
    }
}

/// Does all of these at the same time, each for no longer than `limit`; gives the names of those
/// that were not done.
async fn side_by_side(all: Vec<(String, BoxFuture<'_, ()>)>, limit: Duration) -> Vec<String> {
    let limited = all.into_iter().map(|(name, work)| async move {
        let done = tokio::time::timeout(limit, work).await;
        done.is_err().then_some(name)
    });
    join_all(limited).await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// A pool whose export hangs keeps no other from being exported, and is named.
    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_holds_up_nobody() {
        let done = Mutex::new(Vec::new());
        let work = |name: &'static str, hangs: bool| {
            let done = &done;
            let work: BoxFuture<'_, ()> = Box::pin(async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(LAST_EXPORT * 3 / 4).await;
                done.lock().push(name);
            });
            (name.to_owned(), work)
        };
        let all = vec![work("a", false), work("stalled", true), work("b", false)];
        assert_eq!(side_by_side(all, LAST_EXPORT).await, ["stalled"]);
        assert_eq!(*done.lock(), ["a", "b"]);
    }
}
