//! Vdev tree, I/O pipeline, allocation, cache and transaction groups.
//!
//! | Module | What it is | OpenZFS's words |
//! |---|---|---|
//! | [`vdev`] | leaves, mirrors, RAID-Z, labels: bytes at (vdev, offset) with redundancy | VDEV |
//! | [`alloc`] | which bytes of which vdev are free; per-txg changes | METASLAB |
//! | [`cache`] | verified logical blocks in memory, bounded, scan resistant | ARC |
//! | [`clones`] | which blocks may be shared by several files | BRT |
//! | [`pipeline`] | block pointers to data and back: compression, checksums, copies, gangs | ZIO |
//! | [`txg`] | open / quiesced / synced transaction groups and the write throttle | TXG |
//!
//! Lock order inside this crate (a later lock may be taken while an earlier one is held, never the
//! other way; no lock is held across an await): txg state; allocator rotor; allocator top;
//! cache shard; vdev queue; vdev leaf. In practice most code holds one of them at a time.

#![forbid(unsafe_code)]

pub mod alloc;
pub mod cache;
pub mod clones;
mod error;
#[cfg(feature = "hostile")]
pub mod hostile;
pub mod pipeline;
#[cfg(test)]
mod testing;
pub mod txg;
pub mod vdev;

pub use alloc::{Allocator, MetaslabChange, MetaslabSource};
pub use cache::Cache;
pub use clones::{CloneChanges, CloneKey, Clones};
pub use error::PoolError;
pub use pipeline::{
    Bookmark, CacheUse, ErrorReport, ErrorSink, Pipeline, PipelineOptions, Priority, ReadContext,
    WritePolicy,
};
pub use txg::{Added, Settle, Tx, TxgLimits, TxgManager};
pub use vdev::VdevTree;
