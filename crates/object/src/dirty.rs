//! What of an object set changed and is not on disk yet.
//!
//! A change is noted first, without any lock, so that whoever writes object sets knows of this one.
//! Then, under the object's lock, the object's slot of the txg is made dirty, and the object is put
//! on the list of the slot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::Txg;
use parking_lot::{Mutex, RwLock};
use zio::Tx;

use crate::added;
use crate::dnode::{DIRTY_DNODE_BYTES, Dnode, DnodeState, Meta, Slot, parity};

/// Is told of the first change in a txg.
pub(crate) type DirtyHook = Arc<dyn Fn(Txg) + Send + Sync>;

/// Objects that changed, and who is told that something did.
#[derive(Default)]
pub(crate) struct Dirty {
    pub(crate) hook: RwLock<Option<DirtyHook>>,
    /// Objects whose slot is dirty.
    pub(crate) objects: [Mutex<BTreeMap<u64, Arc<Dnode>>>; 2],
    /// The txg for which the hook was called last.
    noted: [AtomicU64; 2],
}

impl Dirty {
    /// Tells the hook when this is the first change in `txg`. Called before every change.
    pub(crate) fn note(&self, txg: Txg) {
        let noted = &self.noted[parity(txg)];
        if noted.load(Ordering::Relaxed) == txg.get() {
            return;
        }
        if noted.swap(txg.get(), Ordering::Relaxed) != txg.get() {
            let hook = self.hook.read().clone();
            if let Some(hook) = hook {
                hook(txg);
            }
        }
    }

    /// Lets the next change of `txg` call the hook again.
    pub(crate) fn forget_noted(&self, txg: Txg) {
        self.noted[parity(txg)].store(0, Ordering::Relaxed);
    }

    fn add(&self, dnode: &Arc<Dnode>, tx: &Tx) {
        let added = {
            let mut dirty = self.objects[parity(tx.txg())].lock();
            let added = added::by_dnode(&dirty, dnode.id.get());
            dirty.insert(dnode.id.get(), dnode.clone());
            added
        };
        tx.adds(added);
    }

    /// The slot of the txg, made dirty. [`Self::note`] comes before, without the lock.
    ///
    /// # Panics
    /// When the slot still holds another txg's changes: the sync loop then opened a txg too early.
    pub(crate) fn slot_mut<'a>(
        &self,
        dnode: &Arc<Dnode>,
        state: &'a mut DnodeState,
        tx: &Tx,
    ) -> &'a mut Slot {
        let txg = tx.txg();
        let slot = &mut state.slots[parity(txg)];
        if slot.is_none() {
            // The special objects are in the head, and synced with it.
            self.add(dnode, tx);
            tx.dirtied(DIRTY_DNODE_BYTES);
        }
        let slot = slot.get_or_insert_with(|| {
            Box::new(Slot {
                txg,
                // What the sync loop changes counts for nobody.
                dirty_bytes: if tx.is_syncing() {
                    0
                } else {
                    DIRTY_DNODE_BYTES
                },
                ..Slot::default()
            })
        });
        assert_eq!(
            slot.txg, txg,
            "object {}: a txg must be synced before the next but one is open",
            dnode.id
        );
        slot
    }

    /// The meta of the txg's slot, to be changed.
    pub(crate) fn meta_mut<'a>(
        &self,
        dnode: &Arc<Dnode>,
        state: &'a mut DnodeState,
        tx: &Tx,
    ) -> &'a mut Meta {
        let own = state.slot(tx.txg()).and_then(|slot| slot.meta.take());
        let meta = own.unwrap_or_else(|| state.meta_at(tx.txg()).clone());
        self.slot_mut(dnode, state, tx).meta.insert(meta)
    }
}
