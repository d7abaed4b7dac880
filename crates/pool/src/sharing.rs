//! Tables of blocks that are in more than one place: dedup tables and tables of cloned blocks. They
//! have one turn in a transaction group, in which frees settle; afterwards the allocator hears how
//! much space both save.

use std::sync::Arc;

use spa::{Participant, Pass, Spa, Turn};

use crate::clones::CloneTables;
use crate::dedup::Dedup;

/// The tables of shared blocks.
pub(crate) struct Sharing {
    /// Dedup tables.
    pub(crate) dedup: Arc<Dedup>,
    /// Tables of cloned blocks.
    pub(crate) clones: CloneTables,
}

impl Sharing {
    /// Tells the allocator what dedup and cloning save.
    pub(crate) fn note_saved_space(&self, spa: &Spa) {
        let saved = self
            .dedup
            .status()
            .saved_bytes()
            .saturating_add(self.clones.status().saved_bytes);
        spa.pipeline.allocator().set_saved_bytes(saved);
    }
}

impl Participant for Sharing {
    fn early<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            if self.dedup.early(pass).await? {
                self.note_saved_space(pass.spa);
            }
            Ok(())
        })
    }

    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            if self.clones.settle(pass).await? {
                self.note_saved_space(pass.spa);
            }
            if self.dedup.settle(pass).await? {
                self.note_saved_space(pass.spa);
            }
            Ok(())
        })
    }

    /// Once more, for frees of clones that were queued since.
    fn late<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            if self.clones.settle(pass).await? {
                self.note_saved_space(pass.spa);
            }
            Ok(())
        })
    }
}
