//! The pools that are imported, by name, and those that are waited for.
//!
//! [`Pools`] owns the table of imported pools, the names that are spoken for while somebody makes a
//! pool or takes it in, the list of what to import at the next start, and how the memory of the
//! cache is divided.
//!
//! Locks: `table` and `absent` are short and never held across an await; `absent` is not taken
//! while `table` is held. Waiting for a name ([`Pools::claim`]) comes before any of them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use access::Access;
use api::{Failure, FailureKind};
use parking_lot::Mutex;
use pool::Pool;

use crate::background::Background;
use crate::error::all_done;
use crate::names::{Claim, PoolNames};
use crate::state::{CachedPool, State};

/// How much of a pool may be dirty at least, and at most.
const DIRTY_BYTES_MIN: u64 = 512 << 20;
const DIRTY_BYTES_MAX: u64 = 4 << 30;

/// An imported pool and what is known of it besides.
pub(crate) struct OpenPool {
    /// The pool.
    pub(crate) pool: Arc<Pool>,
    /// Serialises changes to its datasets, mounts and shares.
    pub(crate) admin: tokio::sync::Mutex<()>,
    /// What it does in the background.
    pub(crate) background: Background,
    /// What is open of it.
    pub(crate) access: Arc<Access>,
    /// The guid that it is being given, while it is.
    pub(crate) next_guid: Mutex<Option<u64>>,
    /// Whoever receives a stream into it has another of these.
    pub(crate) receives: Arc<()>,
}

impl OpenPool {
    /// Whether a stream is being received into it.
    pub(crate) fn is_receiving(&self) -> bool {
        Arc::strong_count(&self.receives) > 1
    }

    /// Whether it is imported again at the next start.
    fn is_cached(&self) -> bool {
        let cachefile = self.pool.prop("cachefile");
        cachefile.is_none_or(|property| property.value != "none")
    }
}

/// Intent logs that could not be replayed.
pub(crate) struct Unreplayed(Vec<String>);

impl Unreplayed {
    /// Adds those that mounting did not complain of already.
    pub(crate) fn add_to(self, failures: &mut Vec<String>) {
        for why in self.0 {
            if !failures.iter().any(|failure| failure.contains(&why)) {
                failures.push(why);
            }
        }
    }
}

impl OpenPool {
    /// Replays the intent logs that a crash left, of all datasets or of those at and below `top`,
    /// mounted or not: as far as their keys are loaded.
    pub(crate) async fn replay_waiting(&self, top: Option<&str>) -> Unreplayed {
        Unreplayed(match self.access.replay_waiting(top).await {
            Ok(failed) => {
                let told = failed.iter().map(|(_, error)| error.to_string());
                told.collect()
            }
            Err(error) => vec![format!("which intent logs wait cannot be told: {error}")],
        })
    }
}

/// A pool that was imported when the server last ran, and is not any more.
struct Absent {
    cached: CachedPool,
    /// Why it could not be imported, once that was tried.
    why: Option<String>,
}

impl Absent {
    fn new(cached: CachedPool) -> Self {
        Self { cached, why: None }
    }

    fn told(&self) -> String {
        let name = &self.cached.name;
        let why = self.why.as_deref().unwrap_or("it was not tried yet");
        format!(
            "pool '{name}' could not be imported: {why}\n\
             The next start tries again, unless 'zpool export {name}' ends that."
        )
    }
}

/// The imported pools. See the module's header for the locks.
pub(crate) struct Pools {
    table: Mutex<BTreeMap<String, Arc<OpenPool>>>,
    names: PoolNames,
    /// Pools of the last run that are not imported, or not yet: they stay on the list for the next
    /// start.
    absent: Mutex<Vec<Absent>>,
    state: Arc<State>,
    cache_bytes: u64,
}

impl Pools {
    /// None yet.
    pub(crate) fn new(state: Arc<State>, cache_bytes: u64) -> Self {
        Self {
            table: Mutex::default(),
            names: PoolNames::default(),
            absent: Mutex::default(),
            state,
            cache_bytes,
        }
    }

    /// Takes in a pool whose name is claimed.
    pub(crate) fn insert(&self, open: &Arc<OpenPool>) {
        self.table.lock().insert(open.pool.name(), Arc::clone(open));
        self.share_out_cache();
        self.save_cached();
    }

    /// Forgets a pool that was exported or destroyed; it is imported again at the next start if it
    /// is kept on that list.
    pub(crate) fn remove(&self, name: &str, keep_cached: bool) {
        let forgotten = self.table.lock().remove(name);
        if let Some(open) = forgotten {
            open.background.close(&open.pool);
        }
        self.share_out_cache();
        if !keep_cached {
            self.save_cached();
        }
    }

    /// Nobody claims a name any more; waits for those who have.
    pub(crate) async fn close_names(&self) {
        self.names.close().await;
    }

    /// What was imported when the server last ran, or before all of it was exported; what is not
    /// here is waited for from now on.
    pub(crate) fn expect_cached(&self) -> Vec<CachedPool> {
        let mut cached = self.state.cached_pools();
        let here = self.all();
        cached.retain(|cached| !here.iter().any(|open| cached.is(open.pool.guid().get())));
        *self.absent.lock() = cached.iter().cloned().map(Absent::new).collect();
        cached
    }

    /// Keeps why a pool of the last run could not be imported; returns what to tell of it.
    pub(crate) fn could_not_be_imported(&self, guid: u64, why: &Failure) -> Vec<String> {
        let mut absent = self.absent.lock();
        let listed = absent.iter_mut().filter(|one| one.cached.guid == guid);
        listed
            .map(|one| {
                one.why = Some(why.to_string());
                one.told()
            })
            .collect()
    }

    /// Name and GUID of pools of the last run that could not be imported, and why in one line.
    pub(crate) fn not_imported(&self) -> Vec<(String, u64, String)> {
        let absent = self.absent.lock();
        let known = absent.iter().filter_map(|one| {
            let why = one.why.as_ref()?.lines().next().unwrap_or_default();
            Some((one.cached.name.clone(), one.cached.guid, why.to_owned()))
        });
        known.collect()
    }

    /// Every imported pool, by name.
    pub(crate) fn all(&self) -> Vec<Arc<OpenPool>> {
        self.table.lock().values().cloned().collect()
    }

    /// The pools of these names; every pool where there are none.
    pub(crate) fn named(&self, names: &[String]) -> Result<Vec<Arc<OpenPool>>, Failure> {
        if names.is_empty() {
            return Ok(self.all());
        }
        names.iter().map(|name| self.get(name)).collect()
    }

    /// The pools of these names that are here, each once, and why others are not; fails where none
    /// is here. Every pool where there are no names.
    pub(crate) fn found(
        &self,
        names: &[String],
    ) -> Result<(Vec<Arc<OpenPool>>, Vec<Failure>), Failure> {
        if names.is_empty() {
            return Ok((self.all(), self.absent()));
        }
        let mut names: Vec<&String> = names.iter().collect();
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(*name));
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        for name in names {
            match self.get(name) {
                Ok(open) => found.push(open),
                Err(failure) => failures.push(failure),
            }
        }
        if found.is_empty() {
            all_done(&failures)?;
        }
        Ok((found, failures))
    }

    /// The pool of this name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<OpenPool>, Failure> {
        let found = self.table.lock().get(name).cloned();
        found.ok_or_else(|| {
            let absent = self.absent.lock();
            let known = absent
                .iter()
                .find(|absent| absent.cached.name == name && absent.why.is_some());
            let why = known.map_or_else(
                || "no such pool; 'zpool list' shows those that are imported".to_owned(),
                Absent::told,
            );
            Failure::new(
                FailureKind::NotFound,
                format!("cannot open '{name}': {why}"),
            )
        })
    }

    /// The pool that a dataset belongs to.
    pub(crate) fn of_dataset(&self, dataset: &str) -> Result<Arc<OpenPool>, Failure> {
        let pool = dataset.split(['/', '@', '#']).next().unwrap_or(dataset);
        let found = self.table.lock().get(pool).cloned();
        found.ok_or_else(|| {
            Failure::new(
                FailureKind::NotFound,
                format!(
                    "cannot open '{dataset}': dataset does not exist (there is no pool '{pool}')"
                ),
            )
        })
    }

    /// Has a pool of this name, and with this guid if it has one yet, for whoever makes it or takes
    /// it in; until then nobody else does.
    pub(crate) async fn claim(
        &self,
        doing: &str,
        name: &str,
        guid: Option<format::Guid>,
    ) -> Result<Claim<'_>, Failure> {
        let guid = guid.map(|guid| guid.get().to_string());
        let keys = std::iter::once(name.to_owned()).chain(guid).collect();
        self.names.claim(keys).await.ok_or_else(|| {
            let message = format!("{doing}: the server is stopping; start it again for this");
            Failure::new(FailureKind::Busy, message)
        })
    }

    /// Every pool gets the same part of the memory for caching, and may have as much dirty as
    /// OpenZFS allows where the cache has a quarter of the memory: a tenth of it, at most 4 GiB
    /// (`zfs_dirty_data_max`, `..._max_max`).
    fn share_out_cache(&self) {
        let pools = self.table.lock();
        let share = self.cache_bytes / pools.len().max(1) as u64;
        for open in pools.values() {
            open.pool.pipeline().cache().set_limit_bytes(share);
            open.pool
                .set_dirty_max_bytes((share / 5 * 2).clamp(DIRTY_BYTES_MIN, DIRTY_BYTES_MAX));
        }
    }

    /// Keeps which pools are open, with their devices, for the next start.
    pub(crate) fn save_cached(&self) {
        let pools = self.all();
        let mut absent = self.absent.lock();
        absent.retain(|absent| {
            pools
                .iter()
                .all(|open| !absent.cached.is(open.pool.guid().get()))
        });
        let mut cached: Vec<CachedPool> = pools
            .iter()
            .filter(|open| open.is_cached())
            .map(|open| CachedPool {
                name: open.pool.name(),
                guid: open.pool.guid().get(),
                next_guid: *open.next_guid.lock(),
                devices: crate::reports::device_paths(&open.pool.status()),
                read_only: open.pool.is_read_only(),
            })
            .collect();
        cached.extend(absent.iter().map(|absent| absent.cached.clone()));
        if let Err(error) = self.state.set_cached_pools(&cached) {
            tracing::warn!(
                "the list of pools could not be kept: {error}; they must be imported by hand at \
                 the next start"
            );
        }
    }

    /// Of every pool that could not be imported at the start and is still waited for, why.
    pub(crate) fn absent(&self) -> Vec<Failure> {
        let absent = self.absent.lock();
        let failed = absent.iter().filter(|absent| absent.why.is_some());
        let told = failed.map(Absent::told);
        told.map(|why| Failure::new(FailureKind::NotFound, why))
            .collect()
    }

    /// Forgets a pool that is not here, so that no start looks for it again; tells whether it was
    /// on the list.
    pub(crate) fn forget_absent(&self, name: &str) -> bool {
        let mut absent = self.absent.lock();
        let before = absent.len();
        absent.retain(|absent| absent.cached.name != name);
        let forgotten = absent.len() < before;
        drop(absent);
        if forgotten {
            self.save_cached();
        }
        forgotten
    }
}
