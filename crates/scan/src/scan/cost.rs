//! What a scan reads of each dataset.
//!
//! A block that several have counts for the one that the walk meets it in first: of a dataset and
//! its snapshots and clones, the oldest that has it. It is counted when it is found, before it is
//! read; what is freed meanwhile is not taken off again.

use std::collections::BTreeMap;

use format::{BlockPointer, ObjsetId};
use parking_lot::Mutex;

use super::Scan;

/// What a scan reads of one object set: all copies, with parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanCost {
    /// Blocks.
    pub blocks: u64,
    /// Bytes allocated for them.
    pub bytes: u64,
}

/// What the last scan since the import read, up to now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanCosts {
    /// By object set; number 0 is the pool's own metadata.
    pub by_objset: BTreeMap<ObjsetId, ScanCost>,
    /// It began before the import: what it read until then is not known.
    pub is_continued: bool,
}

/// Counters by object set.
#[derive(Debug, Default)]
pub(super) struct Costs(Mutex<BTreeMap<ObjsetId, ScanCost>>);

impl Costs {
    pub(super) fn add(&self, objset: ObjsetId, pointer: &BlockPointer) {
        let mut costs = self.0.lock();
        let cost = costs.entry(objset).or_default();
        cost.blocks += 1;
        cost.bytes = cost.bytes.saturating_add(pointer.asize_bytes());
    }

    pub(super) fn values(&self) -> BTreeMap<ObjsetId, ScanCost> {
        self.0.lock().clone()
    }
}

impl Scan {
    /// What the last scan since the import read of each object set; `None` before the first.
    pub fn costs(&self) -> Option<ScanCosts> {
        let of_run = || {
            let blocks = self.blocks.read().clone()?;
            Some(ScanCosts {
                by_objset: blocks.costs.values(),
                is_continued: self.state.lock().run.is_continued,
            })
        };
        self.read_only.costs().or_else(of_run)
    }
}
