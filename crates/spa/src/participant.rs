//! Turns of a pool's parts in the writing of a transaction group.
//!
//! The sync loop (crate `pool`) does not know what a pool keeps in its MOS. Each part that does is
//! a participant: it owns its state, says when it needs a transaction group, and writes what
//! changed when its turn comes. In the first pass all have their `early` turn before any dataset is
//! written. In each pass, after the datasets, all have their `pass` turn: what a pass changes may
//! dirty the MOS, which takes another one. A group that turns out to be written has `late` turns at
//! the end of its first pass, for what need not be written in a group of its own. When the group is
//! on disk (or had nothing to write), all hear of it in `done`.
//!
//! Turns go in the order in which the sync loop lists the participants, which matters: frees settle
//! after what queues them, and space is recorded after everything that allocates or frees.

use std::future::ready;

use device::BoxFuture;
use format::Txg;
use object::SyncContext;
use space::SpaceSync;
use zio::Tx;

use crate::{PoolError, Spa};

/// One pass over the pool.
pub struct Pass<'a> {
    /// The pool.
    pub spa: &'a Spa,
    /// Transaction group and number of the pass.
    pub ctx: &'a SyncContext,
    /// The transaction that the MOS is changed in.
    pub tx: &'a Tx,
    /// Whether a scan, or a rebuild, reaches the devices that were there when it began.
    pub is_scanning: &'a (dyn Fn() -> bool + Send + Sync),
}

impl Pass<'_> {
    /// Whether it is the transaction group's first.
    pub fn is_first(&self) -> bool {
        self.ctx.pass == 1
    }

    /// Whether the transaction group has changed something by now.
    pub fn is_dirty(&self) -> bool {
        self.spa.wrote(self.ctx.txg) || self.spa.dsl.mos().is_dirty(self.ctx.txg)
    }

    /// The same pass for space maps.
    pub fn space(&self) -> SpaceSync<'_> {
        SpaceSync {
            ctx: self.ctx,
            tx: self.tx,
            features: self.spa.dsl.features(),
            pipeline: &self.spa.pipeline,
        }
    }
}

/// The end of a turn. Errors are those that end the sync loop, since writes that can be made again
/// wait in the pipeline.
pub type Turn<'a> = BoxFuture<'a, Result<(), PoolError>>;

/// A part of the pool that writes with each transaction group.
pub trait Participant: Send + Sync {
    /// Whether it needs a transaction group although nobody asked for one.
    fn has_work(&self, _spa: &Spa) -> bool {
        false
    }

    /// First pass, before datasets are written.
    fn early<'a>(&'a self, _pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(ready(Ok(())))
    }

    /// Each pass, after datasets were written.
    fn pass<'a>(&'a self, _pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(ready(Ok(())))
    }

    /// End of the first pass, of a transaction group that is written.
    fn late<'a>(&'a self, _pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(ready(Ok(())))
    }

    /// The transaction group is on disk; without `wrote` there was nothing to write.
    fn done(&self, _spa: &Spa, _txg: Txg, _wrote: bool) {}
}
