//! The I/O pipeline, allocation, cache and transaction groups.
//!
//! | Module | What it is | OpenZFS's words |
//! |---|---|---|
//! | [`alloc`] | which bytes of which vdev are free; per-txg changes | METASLAB |
//! | [`cache`] | verified logical blocks in memory, bounded, scan resistant; what counts beside | ARC |
//! | [`clones`] | which blocks may be shared by several files | BRT |
//! | [`pipeline`] | block pointers to data and back: compression, checksums, copies, gangs | ZIO |
//! | [`txg`] | open / quiesced / synced transaction groups and the write throttle | TXG |
//!
//! Lock order inside this crate (a later lock may be taken while an earlier one is held, never the
//! other way; no lock is held across an await): txg state; allocator rotor; allocator top; the
//! cache's pool numbers; cache shard; then those of crate `vdev`. The list of who can give memory
//! back (`cache::Charge`) comes before all: it is held while they do, with locks of crates above.
//! In practice most code holds one of them at a time.

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

pub use alloc::{Allocator, MetaslabChange, MetaslabSource};
pub use cache::{BlockKind, Cache, Charge, Charged, Holder, SharedCache};
pub use clones::{CloneChanges, CloneKey, Clones};
pub use error::ZioError;
pub use pipeline::{
    BlockData, CacheUse, Pipeline, PipelineOptions, RawBlock, ReadContext, WideGangs, WritePolicy,
};
pub use txg::{Added, Settle, Tx, TxgLimits, TxgManager};
