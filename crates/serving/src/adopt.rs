//! Taking a pool in that was created or imported: what a crash left in its logs is replayed, then
//! it is mounted and shared as its properties say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use access::Access;
use api::EventKind;
use parking_lot::Mutex;
use pool::Pool;
use service::background::{self, Background};
use service::pools::{Arrival, OpenPool};
use service::spares;
use tokio::task::{JoinError, JoinHandle};

use crate::{Serving, identity};

impl Serving {
    /// Takes a pool in that was created or imported, while its name is claimed, mounts and shares
    /// what it holds: with the options in `mount`, for this time, or not at all without. What could
    /// not be mounted or shared is answered as warnings. A pool that stands still meanwhile is
    /// here, and goes on with this by itself once it is cleared: its caller, who may be about to
    /// bring other pools, does not wait for it.
    pub async fn adopt(
        self: &Arc<Self>,
        pool: Arc<Pool>,
        arrival: Arrival,
        mount: Option<Vec<String>>,
    ) -> Vec<String> {
        pool.dsl().tasks().refuse_while_suspended();
        let access = Access::new(Arc::clone(pool.dsl()), self.world.clone());
        let open = Arc::new(OpenPool {
            arrival,
            arrived_at: pool.synced_txg(),
            pool,
            admin: Arc::default(),
            background: Background::new(&self.jobs, &self.events),
            access: Arc::new(access),
            next_guid: Mutex::new(None),
            is_settled: AtomicBool::new(false),
            receives: Arc::default(),
        });
        let settles = Settles(Arc::clone(&open));
        // Nobody does anything to it before what a crash left in its logs is replayed.
        let admin = Arc::clone(&open.admin).lock_owned().await;
        let not_listed = self.pools.insert(&open);
        self.events.tell_of(&open.pool, EventKind::PoolImported);
        tokio::spawn(background::watch(Arc::clone(&open)));
        tokio::spawn(spares::watch(Arc::clone(&open)));
        tokio::spawn(destroy_interrupted(Arc::clone(&open)));
        let mut warnings = Vec::from_iter(not_listed);
        let service = Arc::clone(self);
        let offering = tokio::spawn(async move {
            let (_admin, settles) = (admin, settles);
            service.offer_adopted(&settles.0, mount.as_deref()).await
        });
        warnings.extend(self.offered_or_suspended(&open, offering).await);
        warnings
    }

    /// Replays the intent logs of a pool that comes, mounts and shares what it holds. Gives what
    /// could not be done.
    async fn offer_adopted(&self, open: &Arc<OpenPool>, mount: Option<&[String]>) -> Vec<String> {
        // Whatever is shared, now or ever: later nobody could tell what clients know already.
        if let Err(error) = identity::note(open).await {
            let name = open.pool.name();
            tracing::warn!(pool = name, %error, "what clients know is noted at the first share");
        }
        let unreplayed = open.replay_waiting(None).await;
        let mut warnings = Vec::new();
        if let Some(options) = mount {
            warnings.extend(self.mount_all(open, options).await);
        }
        warnings.extend(self.volumes.open_volumes(open).await);
        if mount.is_some() {
            warnings.extend(self.follow_nfs(open, &open.pool.name()).await);
        }
        self.owners.keep();
        unreplayed.add_to(&mut warnings);
        warnings
    }

    /// Waits for [`Self::offer_adopted`], unless the pool stands still: then that goes on alone,
    /// and the log has what it says in the end.
    async fn offered_or_suspended(
        &self,
        open: &OpenPool,
        mut offering: JoinHandle<Vec<String>>,
    ) -> Vec<String> {
        let name = open.pool.name();
        let broken = |error: JoinError| {
            vec![format!(
                "'{name}' is not served as it should be: {error}; export and import it"
            )]
        };
        tokio::select! {
            biased;
            told = &mut offering => return told.unwrap_or_else(broken),
            () = open.pool.until_suspended() => {}
        }
        let why = format!(
            "pool '{name}' is suspended before all that it holds is replayed, mounted and shared; \
             see 'zpool status {name}', make its devices available again and run 'zpool clear \
             {name}': then that goes on"
        );
        tokio::spawn(async move {
            match offering.await {
                Ok(warnings) => warnings.iter().for_each(|told| tracing::warn!("{told}")),
                Err(error) => tracing::error!(%error, "taking a suspended pool in has failed"),
            }
        });
        vec![why]
    }
}

/// A pool is being taken in, until this is dropped.
struct Settles(Arc<OpenPool>);

impl Drop for Settles {
    fn drop(&mut self) {
        self.0.is_settled.store(true, Ordering::Release);
    }
}

/// Destroys what receives left that a crash interrupted.
async fn destroy_interrupted(open: Arc<OpenPool>) {
    if open.pool.is_read_only() {
        return;
    }
    // One that begins now is no rest of another.
    let _admin = open.admin.lock().await;
    let destroyed = open.pool.dsl().receives().destroy_interrupted().await;
    if let Err(error) = destroyed {
        tracing::warn!(pool = open.pool.name(), %error, "interrupted receives stay");
    }
}
