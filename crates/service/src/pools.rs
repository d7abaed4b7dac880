//! The pools that are imported, by name, and those that are waited for.
//!
//! [`Pools`] owns the table of imported pools, the names that are spoken for while somebody makes a
//! pool or takes it in, the list of what to import at the next start ([`PoolList`]), the cache that
//! all of them have together, and how much each may have dirty.
//!
//! Locks: `table` is short and never held across an await; the locks of the list come before it.
//! Waiting for a name ([`Pools::claim`]) comes before any of them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use access::Access;
use api::{Failure, FailureKind};
use device::MemoryUses;
use format::Txg;
use parking_lot::Mutex;
use pool::{CacheDeviceOptions, Pool};
use zio::SharedCache;

use crate::background::Background;
use crate::cache_files::CacheFiles;
use crate::error::{all_done, suspended};
use crate::injections::Injections;
use crate::names::{Claim, PoolNames};
use crate::pool_list::{CachedPool, Here, PoolList};
use crate::receives::Receives;
use host::State;
use host::table_file::{FileProblem, NotKept};

/// How much of a pool may be dirty at least, and at most.
const DIRTY_BYTES_MIN: u64 = 64 << 20;
const DIRTY_BYTES_MAX: u64 = 4 << 30;

/// How long a frozen pool that is left is waited for before all that waits for it fails.
const FROZEN_PATIENCE: Duration = Duration::from_secs(10);

/// How a pool came to be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was created here.
    Created,
    /// Somebody imported it.
    Imported,
    /// It was imported as the server started, like those of the last run.
    AtStart,
}

/// An imported pool and what is known of it besides.
pub struct OpenPool {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Serialises changes to its datasets, mounts and shares.
    pub admin: Arc<tokio::sync::Mutex<()>>,
    /// What it does in the background.
    pub background: Background,
    /// What is open of it.
    pub access: Arc<Access>,
    /// The guid that it is being given, while it is.
    pub next_guid: Mutex<Option<u64>>,
    /// Whether what is to be mounted and shared of it, as it was taken in, is.
    pub is_settled: AtomicBool,
    /// How it came.
    pub arrival: Arrival,
    /// The transaction group that was on disk as it came.
    pub arrived_at: Txg,
    /// What is being received into it.
    pub receives: Arc<Receives>,
}

impl OpenPool {
    /// Whether a stream is being received into it.
    pub fn is_receiving(&self) -> bool {
        self.receives.is_any()
    }

    /// Whether a dataset cannot be opened for want of its key.
    pub async fn is_locked(&self, name: &str) -> bool {
        let info = self.pool.dsl().keys().info(name).await;
        matches!(info, Ok(Some(info)) if !info.is_loaded)
    }

    /// Whether it is imported again at the next start.
    fn is_cached(&self) -> bool {
        let cachefile = self.pool.properties().get("cachefile");
        cachefile.is_none_or(|property| property.value == "-")
    }

    /// Runs an export, a sync or the like of a pool. When the pool is suspended, or gets so, that
    /// fails at once, or by force the pool is given up, so that nothing waits for it any more. One
    /// that was frozen is so too, by force, unless it is left within ten seconds.
    pub async fn leaving<T>(
        &self,
        doing: &str,
        force: bool,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let standstill = async {
            if force && pool::is_frozen(&self.pool) {
                tokio::select! {
                    () = self.pool.until_suspended() => {}
                    () = tokio::time::sleep(FROZEN_PATIENCE) => pool::end_freeze(&self.pool),
                }
            }
            self.pool.until_suspended().await;
            if force {
                self.pool.give_up();
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = standstill => Err(suspended(doing)),
            result = work => result,
        }
    }
}

/// Intent logs that could not be replayed.
pub struct Unreplayed(Vec<String>);

impl Unreplayed {
    /// Adds those that mounting did not complain of already.
    pub fn add_to(self, failures: &mut Vec<String>) {
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
    pub async fn replay_waiting(&self, top: Option<&str>) -> Unreplayed {
        Unreplayed(match self.access.replay_waiting(top).await {
            Ok(failed) => {
                let told = failed.iter().map(|(_, error)| error.to_string());
                told.collect()
            }
            Err(error) => vec![format!("which intent logs wait cannot be told: {error}")],
        })
    }
}

/// The imported pools. See the module's header for the locks.
pub struct Pools {
    table: Mutex<BTreeMap<String, Arc<OpenPool>>>,
    names: PoolNames,
    list: PoolList,
    cache_files: CacheFiles,
    cache: Arc<SharedCache>,
    cache_bytes: u64,
    cache_devices: CacheDeviceOptions,
    /// Hot spares wait until somebody has them stand in.
    pub spares_by_hand: bool,
    /// Faults that are asked for.
    pub injections: Injections,
}

impl Pools {
    /// None yet; all of the last run are away. They are to have a cache of at most `cache_bytes`.
    /// `spares_by_hand`: hot spares stand in only when they are told to.
    pub fn new(
        state: &State,
        cache_bytes: u64,
        cache_devices: CacheDeviceOptions,
        spares_by_hand: bool,
    ) -> Self {
        Self {
            table: Mutex::default(),
            names: PoolNames::default(),
            list: PoolList::load(state),
            cache_files: CacheFiles::default(),
            cache: SharedCache::new(cache_bytes),
            cache_bytes,
            cache_devices,
            spares_by_hand,
            injections: Injections::default(),
        }
    }

    /// The cache of all pools. Its limit is lower than [`Self::cache_bytes`] while memory is short,
    /// or much is used beside it.
    pub fn cache(&self) -> &Arc<SharedCache> {
        &self.cache
    }

    /// Adds what the cache has, and what each pool has beside it.
    pub fn add_memory(&self, uses: &mut MemoryUses) {
        self.cache.add_memory(uses);
        for open in self.all() {
            pool::add_memory(&open.pool, uses);
        }
    }

    /// What the cache may have at most, in bytes.
    pub fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    /// Takes in a pool whose name is claimed. Gives a warning where the next start will not import
    /// it.
    pub fn insert(&self, open: &Arc<OpenPool>) -> Option<String> {
        pool::set_cache_devices(&open.pool, self.cache_devices);
        if self.spares_by_hand {
            pool::leave_spares_to_people(&open.pool);
        }
        self.table.lock().insert(open.pool.name(), Arc::clone(open));
        self.cache_files.go_on();
        self.injections.tune_pool(&open.pool);
        self.share_out_dirty();
        let error = self.write_list().err().filter(|_| open.is_cached())?;
        let name = open.pool.name();
        Some(format!(
            "'{name}' is not on the list of pools for the next start, and is to be imported by \
             hand then: {error}"
        ))
    }

    /// Forgets a pool that was exported only because the server leaves or the power fails: it stays
    /// on the list for the next start, if it is on it.
    pub fn leave(&self, open: &OpenPool) {
        self.cache_files.leave();
        self.list.leave(open.pool.guid().get(), || {
            self.take(open);
        });
        open.background.close(&open.pool);
        self.share_out_dirty();
    }

    /// Forgets a pool that somebody exported or destroyed: no start imports it again.
    pub fn remove(&self, open: &OpenPool, doing: &str) -> Result<(), Failure> {
        let guid = open.pool.guid().get();
        let was_here = self.take(open);
        open.background.close(&open.pool);
        self.share_out_dirty();
        if !was_here {
            let message = format!("{doing}: the server imported it again meanwhile; try again");
            return Err(Failure::new(FailureKind::Busy, message));
        }
        self.list.forget(|cached| cached.is(guid));
        self.write_list().or_else(|error| match error {
            // A list that nobody understands imports nothing.
            NotKept::Unread(_) => Ok(()),
            NotKept::Unwritten(error) => {
                let message = format!(
                    "{doing}: that is done, but it stays on the list of pools, and the next start \
                     would import it if it is there: {error}"
                );
                Err(Failure::new(FailureKind::Io, message))
            }
        })
    }

    /// Takes a pool out of the table, unless it is there as another one by now.
    fn take(&self, open: &OpenPool) -> bool {
        let mut table = self.table.lock();
        let before = table.len();
        table.retain(|_, other| !std::ptr::eq(Arc::as_ptr(other), open));
        table.len() < before
    }

    /// Nobody claims a name any more; waits for those who have.
    pub async fn close_names(&self) {
        self.names.close().await;
    }

    /// What was imported when the server last ran, or before all of it was exported, and is not
    /// here: it is waited for from now on.
    pub fn expect_cached(&self) -> Vec<CachedPool> {
        self.list.expect()
    }

    /// Whether filesystems may still come that are not here: pools are away, or being taken in.
    pub fn is_expecting(&self) -> bool {
        let is_coming = |open: &Arc<OpenPool>| !open.is_settled.load(Ordering::Acquire);
        // In the order in which a pool comes.
        self.list.is_waited_for() || self.table.lock().values().any(is_coming)
    }

    /// Whether a pool that is not here may still come, as it is on the list.
    pub fn awaits(&self, guid: u64) -> bool {
        self.list.awaits(guid)
    }

    /// What is wrong with the list for the next start.
    pub fn list_problem(&self) -> Option<FileProblem> {
        self.list.problem()
    }

    /// Keeps why a pool of the last run could not be imported; returns what to tell of it.
    pub fn could_not_be_imported(&self, guid: u64, why: &Failure) -> Vec<String> {
        self.list.could_not_be_imported(guid, why)
    }

    /// Name and GUID of pools of the last run that could not be imported, and why in one line.
    pub fn not_imported(&self) -> Vec<(String, u64, String)> {
        self.list.not_imported()
    }

    /// Every imported pool, by name.
    pub fn all(&self) -> Vec<Arc<OpenPool>> {
        self.table.lock().values().cloned().collect()
    }

    /// The pools of these names; every pool where there are none.
    pub fn named(&self, names: &[String]) -> Result<Vec<Arc<OpenPool>>, Failure> {
        if names.is_empty() {
            return Ok(self.all());
        }
        names.iter().map(|name| self.get(name)).collect()
    }

    /// The pools of these names that are here, each once, and why others are not; fails where none
    /// is here. Every pool where there are no names.
    pub fn found(&self, names: &[String]) -> Result<(Vec<Arc<OpenPool>>, Vec<Failure>), Failure> {
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
    pub fn get(&self, name: &str) -> Result<Arc<OpenPool>, Failure> {
        let found = self.table.lock().get(name).cloned();
        found.ok_or_else(|| {
            // In the words of `zpool_name_valid` (lib/libzfs/libzfs_pool.c).
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
            if let Some(bad) = name.chars().find(|c| !is_allowed(*c)) {
                let message =
                    format!("cannot open '{name}': invalid character '{bad}' in pool name");
                return Failure::new(FailureKind::NotFound, message);
            }
            let known = self.list.told(Some(name));
            let more = match known.is_empty() {
                true => "'zpool list' shows those that are imported".to_owned(),
                false => known.join("\n"),
            };
            Failure::new(
                FailureKind::NotFound,
                format!("cannot open '{name}': no such pool\n{more}"),
            )
        })
    }

    /// The pool that a dataset belongs to.
    pub fn of_dataset(&self, dataset: &str) -> Result<Arc<OpenPool>, Failure> {
        let pool = dataset.split(['/', '@', '#']).next().unwrap_or(dataset);
        let found = self.table.lock().get(pool).cloned();
        found.ok_or_else(|| {
            let message = match crate::error::name_fault(dataset) {
                Some(reason) => format!("cannot open '{dataset}': {reason}"),
                None => format!(
                    "cannot open '{dataset}': dataset does not exist\nthere is no pool '{pool}'"
                ),
            };
            Failure::new(FailureKind::NotFound, message)
        })
    }

    /// Has a pool of this name, and with this guid if it has one yet, for whoever makes it or takes
    /// it in; until then nobody else does.
    pub async fn claim(
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

    /// Every pool may have the same part dirty of what OpenZFS allows a pool where the cache has a
    /// quarter of the memory: a tenth of it, at most 4 GiB (`zfs_dirty_data_max`, `..._max_max`).
    fn share_out_dirty(&self) {
        let pools = self.table.lock();
        let share = self.cache_bytes / pools.len().max(1) as u64;
        for open in pools.values() {
            open.pool
                .set_dirty_max_bytes((share / 5 * 2).clamp(DIRTY_BYTES_MIN, DIRTY_BYTES_MAX));
        }
    }

    /// Keeps which pools are open, with their devices, for the next start and in the files that
    /// their properties name.
    pub fn save_cached(&self) {
        if let Err(error) = self.write_list() {
            tracing::warn!("the list of pools for the next start is not kept: {error}");
        }
    }

    fn write_list(&self) -> Result<(), NotKept> {
        self.cache_files.write(|| {
            let all = self.all().into_iter();
            all.map(|open| Arc::clone(&open.pool)).collect()
        });
        self.list.write(|| {
            let here = self.all().into_iter().map(|open| Here {
                guid: open.pool.guid().get(),
                cached: open.is_cached().then(|| CachedPool {
                    name: open.pool.name(),
                    guid: open.pool.guid().get(),
                    next_guid: *open.next_guid.lock(),
                    devices: crate::reports::device_paths(&open.pool.status()),
                    read_only: open.pool.is_read_only(),
                }),
            });
            here.collect()
        })
    }

    /// Of every pool that could not be imported at the start and is still waited for, why.
    pub fn absent(&self) -> Vec<Failure> {
        let told = self.list.told(None).into_iter();
        told.map(|why| Failure::new(FailureKind::NotFound, why))
            .collect()
    }

    /// Forgets a pool that is not here, so that no start looks for it again; tells whether it was
    /// on the list.
    pub fn forget_absent(&self, name: &str) -> bool {
        let forgotten = self.list.forget(|cached| cached.name == name);
        if forgotten {
            self.save_cached();
        }
        forgotten
    }

    /// Gives leases on a dataset, `name`, back. While its pool is suspended closing it goes on in
    /// the registry (what is not written yet stays in memory until the pool is cleared or left):
    /// `None`.
    pub async fn unless_suspended<T>(
        &self,
        name: &str,
        closing: impl Future<Output = T>,
    ) -> Option<T> {
        let Ok(open) = self.of_dataset(name) else {
            return Some(closing.await);
        };
        let result = tokio::select! {
            biased;
            result = closing => Some(result),
            () = open.pool.until_suspended() => None,
        };
        match result {
            Some(result) if open.pool.suspended().is_none() => Some(result),
            _ => {
                tracing::warn!(
                    "'{name}': the pool is suspended; the last changes are not written yet"
                );
                None
            }
        }
    }
}
