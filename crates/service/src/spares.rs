//! Spares that several pools have, and devices that come back.
//!
//! A pool knows of others by the labels of its spares alone, which it reads when it has a reason
//! to. Here it is known which pools have the same spare: their lists are looked at again before
//! they are shown, and what one of them keeps for good the others lose (`spa_vdev_detach`,
//! module/zfs/spa.c).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pool::Pool;

use crate::pools::{OpenPool, Pools};

/// How long who asks for a pool's status waits for a look at its spares: a device may not answer.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How often it is looked for devices that are not there.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The spares of a pool.
pub fn guids(pool: &Pool) -> BTreeSet<format::Guid> {
    let spares = pool.status().spares.into_iter();
    spares.map(|spare| spare.guid).collect()
}

fn others(pools: &Pools, open: &OpenPool) -> Vec<Arc<OpenPool>> {
    let mut others = pools.all();
    others.retain(|other| other.pool.guid() != open.pool.guid());
    others
}

/// Brings the list of a pool's spares up to date where another pool has one of them.
pub async fn refresh(pools: &Pools, open: &OpenPool) {
    let own = guids(&open.pool);
    let is_shared = |other: &Arc<OpenPool>| !guids(&other.pool).is_disjoint(&own);
    if !own.is_empty() && others(pools, open).iter().any(is_shared) {
        let _ = tokio::time::timeout(LOOK_MAX, open.pool.look_at_spares()).await;
    }
}

/// Takes the spares that a pool has lost since `before` from the lists of others: they are devices
/// like any other now.
pub async fn remove_from_others(pools: &Pools, open: &OpenPool, before: &BTreeSet<format::Guid>) {
    let now = guids(&open.pool);
    for guid in before.difference(&now) {
        for other in others(pools, open) {
            if guids(&other.pool).contains(guid)
                && let Err(error) = other.pool.remove(&guid.to_string()).await
            {
                let pool = other.pool.name();
                tracing::warn!(pool, spare = %guid, %error, "a spare stays in a pool's list");
            }
        }
    }
}

/// Whether a spare stands in in this pool that others have in their lists
/// (`spa_has_active_shared_spare`, module/zfs/spa.c).
pub fn has_shared_in_use(pools: &Pools, open: &OpenPool) -> bool {
    let status = open.pool.status();
    let used = status
        .spares
        .iter()
        .filter(|spare| spare.aux == pool::VdevAux::Spared && spare.used_by.is_none());
    let used: BTreeSet<format::Guid> = used.map(|spare| spare.guid).collect();
    let mut others = others(pools, open).into_iter();
    !used.is_empty() && others.any(|other| !guids(&other.pool).is_disjoint(&used))
}

/// Looks for devices that are not there, until the pool is closed.
pub async fn watch(open: Arc<OpenPool>) {
    loop {
        tokio::select! {
            () = open.background.until_closed() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        // Who is changing the pool, or leaving it, comes first.
        let Ok(_admin) = open.admin.try_lock() else {
            continue;
        };
        if open.pool.is_read_only() || open.pool.suspended().is_some() {
            continue;
        }
        match open.pool.look_for_devices().await {
            Ok(0) => {}
            Ok(count) => {
                let pool = open.pool.name();
                tracing::info!(pool, count, "devices came back, or are being replaced");
                open.background.poke(&open.pool);
            }
            Err(error) => tracing::debug!(%error, "it was not looked for devices"),
        }
    }
}
