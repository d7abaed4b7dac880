//! The table of objects in memory: sharded, bounded by dropping idle clean ones, when there are
//! many and when their memory is asked back ([`Holder`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use zio::{Charge, Holder};

use crate::dnode::Dnode;

const SHARDS: usize = 16;
/// Room for so many objects in a shard is kept though it has few.
const ROOM_MIN: usize = 64;

#[derive(Default)]
struct Shard {
    dnodes: HashMap<u64, Arc<Dnode>>,
    /// Size at which idle ones are looked for next.
    sweep_at: usize,
}

pub(crate) struct ObjectTable {
    shards: [Mutex<Shard>; SHARDS],
    shard_limit: usize,
    /// The shard of which memory is given back next.
    hand: AtomicUsize,
}

impl ObjectTable {
    pub(crate) fn new(limit: usize, charge: &Arc<Charge>) -> Arc<Self> {
        let shard_limit = (limit / SHARDS).max(8);
        let table = Arc::new(ObjectTable {
            shards: std::array::from_fn(|_| {
                Mutex::new(Shard {
                    dnodes: HashMap::new(),
                    sweep_at: shard_limit,
                })
            }),
            shard_limit,
            hand: AtomicUsize::new(0),
        });
        let holder: Weak<Self> = Arc::downgrade(&table);
        charge.add_holder(holder);
        table
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
            shard.drop_idle(round == 0);
            if shard.dnodes.len() <= self.shard_limit / 4 * 3 {
                break;
            }
        }
        // When most are in use or dirty, the next look is worth it only after some growth.
        shard.sweep_at = self.shard_limit.max(shard.dnodes.len() / 4 * 5);
    }
}

impl Shard {
    /// Drops idle clean objects; with `keeps_used` not those used since the last look. Nobody gets
    /// hold of one whose only reference is the table's while the shard is locked.
    fn drop_idle(&mut self, keeps_used: bool) {
        self.dnodes.retain(|_, dnode| {
            let used = dnode.used.swap(false, Ordering::Relaxed);
            let stays = |dnode: &mut Dnode| dnode.state_mut().is_dirty();
            used && keeps_used || Arc::get_mut(dnode).is_none_or(stays)
        });
    }
}

impl Holder for ObjectTable {
    fn give_back(&self, is_enough: &dyn Fn() -> bool) {
        for _ in 0..SHARDS {
            if is_enough() {
                return;
            }
            let hand = self.hand.fetch_add(1, Ordering::Relaxed);
            let mut shard = self.shards[hand % SHARDS].lock();
            shard.drop_idle(true);
            shard.sweep_at = self.shard_limit.max(shard.dnodes.len() / 4 * 5);
            if shard.dnodes.capacity() > ROOM_MIN.max(4 * shard.dnodes.len()) {
                let room = 2 * shard.dnodes.len();
                shard.dnodes.shrink_to(room);
            }
        }
    }
}
