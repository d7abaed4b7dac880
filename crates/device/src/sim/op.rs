//! Operations on simulated disks, as they are counted and noted, and what a power cut does to them.

use std::sync::Arc;

/// Kinds of operation on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimOp {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush of the disk's cache.
    Flush,
    /// A discard.
    Discard,
}

impl SimOp {
    pub(super) fn name(self) -> &'static str {
        match self {
            SimOp::Read => "read",
            SimOp::Write => "write",
            SimOp::Flush => "flush",
            SimOp::Discard => "discard",
        }
    }
}

/// How many operations of each kind were issued.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct OpCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
}

impl OpCounts {
    fn of(&mut self, op: SimOp) -> &mut u64 {
        match op {
            SimOp::Read => &mut self.reads,
            SimOp::Write => &mut self.writes,
            SimOp::Flush => &mut self.flushes,
            SimOp::Discard => &mut self.discards,
        }
    }

    pub(super) fn add(&mut self, op: SimOp) {
        *self.of(op) += 1;
    }

    /// Operations of one kind.
    pub fn get(mut self, op: SimOp) -> u64 {
        *self.of(op)
    }
}

/// One operation, as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpRecord {
    /// Virtual time at which it was issued, since the world was made.
    pub at_ns: u64,
    /// Number of the host that issued it.
    pub host: u32,
    /// Name of the disk.
    pub disk: Arc<str>,
    /// What.
    pub op: SimOp,
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub length_bytes: u64,
}

/// What a power cut does to writes that no flush covered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum PowerCut {
    /// The seed decides: all lost, all kept, or each on its own (kept, lost or torn).
    #[default]
    Random,
    /// Each on its own is kept, lost or torn.
    Shuffle,
    /// None survives.
    LoseUnflushed,
    /// Everything that was issued survives.
    KeepAll,
}
