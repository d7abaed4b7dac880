//! What initiators have set on volumes (persistent reservations, mode pages), for as long as their
//! pool is imported.
//!
//! It belongs to the volume, by its guid, and not to its share: one that ends and comes again, by
//! whatever way (a property, a rename, an export that is refused, a key that is unloaded), finds it
//! as it was. An export ends it like a loss of power; what is to outlive that is stored
//! (module `reservations`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use dataset::{DslPool, ListOptions};
use parking_lot::Mutex;
use serve_iscsi::UnitState;

/// A pool, by the address of what is imported of it, and the guid of a volume in it.
type Key = (usize, u64);

struct Entry {
    /// Keeps the address from being used again.
    dsl: Weak<DslPool>,
    state: Arc<UnitState>,
}

/// The states of all volumes that are or were shared since their pools came.
#[derive(Default)]
pub struct UnitStates(Mutex<BTreeMap<Key, Entry>>);

fn key(dsl: &Arc<DslPool>, guid: u64) -> Key {
    (Arc::as_ptr(dsl).addr(), guid)
}

impl UnitStates {
    /// That of a volume.
    pub fn of(&self, dsl: &Arc<DslPool>, guid: u64) -> Arc<UnitState> {
        let mut all = self.0.lock();
        all.retain(|_, entry| entry.dsl.strong_count() > 0);
        let entry = all.entry(key(dsl, guid)).or_insert_with(|| Entry {
            dsl: Arc::downgrade(dsl),
            state: Arc::default(),
        });
        Arc::clone(&entry.state)
    }

    /// A volume is not shared any more: nothing need be remembered of it if nothing was set.
    pub fn forget_default(&self, dsl: &Arc<DslPool>, guid: u64) {
        let mut all = self.0.lock();
        let key = key(dsl, guid);
        if all.get(&key).is_some_and(|entry| entry.state.is_default()) {
            all.remove(&key);
        }
    }

    /// Forgets volumes of a pool that do not exist any more.
    pub async fn forget_destroyed(&self, dsl: &Arc<DslPool>, pool: &str) {
        let address = Arc::as_ptr(dsl).addr();
        let of_pool = (address, u64::MIN)..=(address, u64::MAX);
        if self.0.lock().range(of_pool).next().is_none() {
            return;
        }
        let options = ListOptions {
            filesystems: false,
            volumes: true,
            snapshots: false,
            depth: None,
        };
        // What cannot be listed may be there.
        let Ok((listed, lost)) = dsl.directories().list_readable(pool, &options).await else {
            return;
        };
        if lost.is_empty() {
            let guids: BTreeSet<u64> = listed.iter().map(|info| info.guid.get()).collect();
            let is_there = |(of, guid): &Key| *of != address || guids.contains(guid);
            self.0.lock().retain(|key, _| is_there(key));
        }
    }
}
