//! Trees to be freed in the background (bptree, feature `async_destroy`).

use std::sync::Arc;

use format::{BlockPointer, ObjectId, Txg};
use pool::Tx;

use crate::bpobj::BpobjSpace;
use crate::error::Result;
use crate::objset::ObjectSet;

/// One tree that waits to be freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BptreeEntry {
    /// Root block of the dataset.
    pub root: BlockPointer,
    /// Only blocks born after this txg are freed.
    pub birth_txg: Txg,
    /// Where an interrupted traversal goes on: objset, object, level, block.
    pub bookmark: [u64; 4],
}

/// A queue of trees.
#[derive(Clone)]
pub struct Bptree {}

impl Bptree {
    /// Creates an empty queue.
    pub async fn create(objset: &Arc<ObjectSet>, tx: &Tx) -> Result<Self> {
        let _ = (objset, tx);
        todo!()
    }
    /// Opens a queue.
    pub async fn open(objset: &Arc<ObjectSet>, id: ObjectId) -> Result<Self> {
        let _ = (objset, id);
        todo!()
    }
    /// Its number.
    pub fn id(&self) -> ObjectId {
        todo!()
    }
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// Space that waits to be freed.
    pub fn space(&self) -> BpobjSpace {
        todo!()
    }
    /// Appends a tree.
    pub async fn add(&self, tx: &Tx, entry: BptreeEntry, space: BpobjSpace) -> Result<()> {
        let _ = (tx, entry, space);
        todo!()
    }
    /// The trees that wait, oldest first.
    pub async fn entries(&self) -> Result<Vec<BptreeEntry>> {
        todo!()
    }
    /// Replaces the oldest entry's bookmark, and takes freed space off the totals.
    pub async fn advance(&self, tx: &Tx, bookmark: [u64; 4], freed: BpobjSpace) -> Result<()> {
        let _ = (tx, bookmark, freed);
        todo!()
    }
    /// Drops the oldest entry.
    pub async fn pop(&self, tx: &Tx, freed: BpobjSpace) -> Result<()> {
        let _ = (tx, freed);
        todo!()
    }
    /// Frees the queue's object.
    pub async fn destroy(self, tx: &Tx) -> Result<()> {
        let _ = tx;
        todo!()
    }
}
