//! The table of objects in memory: sharded, bounded by dropping idle clean ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::dnode::Dnode;

const SHARDS: usize = 16;

#[derive(Default)]
struct Shard {
    dnodes: HashMap<u64, Arc<Dnode>>,
    /// Size at which idle ones are looked for next.
    sweep_at: usize,
}

pub(crate) struct ObjectTable {
    shards: [Mutex<Shard>; SHARDS],
    shard_limit: usize,
}

impl ObjectTable {
    pub(crate) fn new(limit: usize) -> Self {
        let shard_limit = (limit / SHARDS).max(8);
        ObjectTable {
            shards: std::array::from_fn(|_| {
                Mutex::new(Shard {
                    dnodes: HashMap::new(),
                    sweep_at: shard_limit,
                })
            }),
            shard_limit,
        }
    }

    fn shard(&self, id: u64) -> &Mutex<Shard> {
        let mix = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.shards[mix as usize % SHARDS]
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<Dnode>> {
        self.shard(id).lock().dnodes.get(&id).cloned()
    }

    /// Inserts unless the number is there already (then that one is returned), and only if
    /// `current` holds: `None` when it does not.
    pub(crate) fn insert_if(
        &self,
        id: u64,
        dnode: Arc<Dnode>,
        current: impl FnOnce() -> bool,
    ) -> Option<Arc<Dnode>> {
        let mut shard = self.shard(id).lock();
        if let Some(there) = shard.dnodes.get(&id) {
            return Some(there.clone());
        }
        if !current() {
            return None;
        }
        shard.dnodes.insert(id, dnode.clone());
        self.sweep(&mut shard);
        Some(dnode)
    }

    /// Inserts, replacing what may be there.
    pub(crate) fn replace(&self, id: u64, dnode: Arc<Dnode>) {
        let mut shard = self.shard(id).lock();
        shard.dnodes.insert(id, dnode);
        self.sweep(&mut shard);
    }

    /// Removes this very object.
    pub(crate) fn remove(&self, dnode: &Arc<Dnode>) {
        let mut shard = self.shard(dnode.id.get()).lock();
        let same = shard
            .dnodes
            .get(&dnode.id.get())
            .is_some_and(|there| Arc::ptr_eq(there, dnode));
        if same {
            shard.dnodes.remove(&dnode.id.get());
        }
    }

    /// Drops idle clean objects, those not used since the last look first.
    fn sweep(&self, shard: &mut Shard) {
        if shard.dnodes.len() <= shard.sweep_at {
            return;
        }
        for round in 0..2 {
            shard.dnodes.retain(|_, dnode| {
                let idle = Arc::strong_count(dnode) == 1 && !dnode.lock().is_dirty();
                let used = dnode.used.swap(false, Ordering::Relaxed);
                !idle || (used && round == 0)
            });
            if shard.dnodes.len() <= self.shard_limit / 4 * 3 {
                break;
            }
        }
        // When most are in use or dirty, the next look is worth it only after some growth.
        shard.sweep_at = self.shard_limit.max(shard.dnodes.len() / 4 * 5);
    }

    pub(crate) fn trim(&self) {
        for shard in &self.shards {
            shard
                .lock()
                .dnodes
                .retain(|_, dnode| Arc::strong_count(dnode) > 1 || dnode.lock().is_dirty());
        }
    }
}
