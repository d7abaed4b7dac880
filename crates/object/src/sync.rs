//! Writing a closed txg: what the sync loop hands down, and how blocks born and dead are reported.

use std::sync::Arc;

use device::World;
use format::{BlockPointer, Txg};
use pool::{Pipeline, TxgManager};

/// One pass of syncing one txg, as handed down by the sync loop.
#[derive(Clone)]
pub struct SyncContext {
    /// The txg that is written.
    pub txg: Txg,
    /// The pass, from 1 (`spa_sync_pass`). From pass 2 on, MOS blocks born in this txg are rewritten in place.
    pub pass: u32,
    /// Where blocks go.
    pub pipeline: Arc<Pipeline>,
    /// The world.
    pub world: World,
    /// Whose throttle hears of progress; `None` where there is none.
    pub txgs: Option<Arc<TxgManager>>,
}

/// Hears of every block that a sync writes or lets go. The dataset decides whether a dead block is
/// freed or goes to a deadlist. Holes and blocks without DVAs (embedded) are never reported; a block
/// rewritten in place is neither born nor dead. The object set's root block is reported like any other.
pub trait BlockAccounting: Send + Sync {
    /// `block` was written in this txg.
    fn born(&self, block: &BlockPointer);
    /// `block` is not referenced any more.
    fn dead(&self, block: &BlockPointer);
}
