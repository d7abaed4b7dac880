//! Blocks that are in more than one place: dedup tables and tables of cloned blocks.
//!
//! Both count references to blocks beyond the first, so that a block's space is freed with its last
//! reference only. They are [`SharedBlocks`], which has one turn in a transaction group: after
//! frees were queued and before space is recorded. Afterwards the allocator hears how much space
//! both save.
//!
//! | Module | Counts | In OpenZFS |
//! |---|---|---|
//! | `dedup` | blocks with the same content, by checksum, found when they are written | ddt.c |
//! | `clones` | blocks that files share because a range was cloned | brt.c |
//! | `status` | what both save, for reports | ddt_stats.c |
//! | `age` | which entries are the oldest, for `zpool ddtprune` | ddt.c: `ddt_prune_walk` |
//! | `filter` | which keys a table has, in little memory | |
//! | `forecast` | what tables would hold if all was deduplicated | zdb.c: `dump_simulated_ddt` |

#![forbid(unsafe_code)]

mod age;
mod clones;
mod dedup;
mod filter;
mod forecast;
mod prefetch;
mod status;

use std::sync::Arc;

use format::Txg;
use spa::{Participant, Pass, Spa, Turn};

pub use age::PruneBy;
pub use clones::CloneTables;
pub use dedup::{Dedup, LogLimits, QUOTA_AUTO, of_pool};
pub use forecast::{Forecast, Forecasted, Forecasting};
pub use status::{CloneStatus, DedupStatus};

/// A pool's tables of shared blocks.
pub struct SharedBlocks {
    /// Dedup tables.
    pub dedup: Arc<Dedup>,
    /// Tables of cloned blocks.
    pub clones: CloneTables,
    /// What tables would hold.
    pub forecast: Arc<Forecast>,
}

impl SharedBlocks {
    /// Tells the allocator what dedup and cloning save.
    pub fn note_saved_space(&self, spa: &Spa) {
        let saved = self
            .dedup
            .status()
            .saved_bytes()
            .saturating_add(self.clones.status().saved_bytes);
        spa.pipeline.allocator().set_saved_bytes(saved);
    }
}

impl Participant for SharedBlocks {
    fn has_work(&self, _: &Spa) -> bool {
        self.dedup.has_work()
    }

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
            if pass.is_first() {
                self.forecast.turn(pass).await;
            }
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

    /// What the next group changes in dedup tables is read ahead.
    fn done(&self, spa: &Spa, _txg: Txg, wrote: bool) {
        if wrote {
            self.dedup.read_ahead(spa.pipeline.tasks());
        }
    }
}

/// Decodes bytes as entries of a dedup table, of either kind: for fuzzers.
#[doc(hidden)]
pub fn decode_for_fuzzing(data: &[u8]) {
    for flat in [false, true] {
        let _ = dedup::decode_value(format::ObjectId::ZERO, data, flat);
    }
}
