//! Blocks born and dead, as a sync reports them: who they count for, and whether a dead one is free
//! or still belongs to a snapshot (`dsl_dataset_block_born` and `dsl_dataset_block_kill`,
//! module/zfs/dsl_dataset.c).

use std::sync::Arc;

use format::{BlockPointer, Compression, OLD_MAX_BLOCK_BYTES, Txg, UsedBy};
use object::BlockAccounting;
use parking_lot::Mutex;
use zio::Pipeline;

use crate::features::{guid, of_checksum};
use crate::state::{Dir, Ds, DsState, Space, accounted_delta, apply};

/// Accounts of one head dataset while it is synced.
pub(crate) struct HeadAccounting<'a> {
    pub pipeline: &'a Arc<Pipeline>,
    pub txg: Txg,
    pub head: &'a Arc<Ds>,
}

/// How a change of unique bytes looks to the directory, which counts refreservations too.
fn unique_delta(state: &DsState, delta: i64) -> i64 {
    if state.reserved_bytes == 0 {
        return delta;
    }
    accounted_delta(state.phys.unique_bytes, state.reserved_bytes, delta)
}

/// Whether a block of a head is one that its livelist, which it has, is about. What is in its
/// pointer needs no freeing.
fn has_livelist(dir: &Dir, block: &BlockPointer) -> bool {
    let state = dir.state();
    !state.livelist.is_zero() && block.birth() > state.origin_txg && !block.is_embedded()
}

/// Features that a block needs, beside large blocks.
fn block_features(block: &BlockPointer) -> [Option<&'static str>; 3] {
    [
        of_checksum(block.checksum_kind()),
        (block.compression() == Compression::Zstd).then_some(guid::ZSTD_COMPRESS),
        block.is_rewritten().then_some(guid::PHYSICAL_REWRITE),
    ]
}

impl BlockAccounting for HeadAccounting<'_> {
    fn born(&self, block: &BlockPointer) {
        if block.is_hole() || block.is_redacted() {
            return;
        }
        let space = Space::of(self.pipeline, block);
        let (delta, dir) = self.head.change(|state| {
            let delta = unique_delta(state, space.used);
            let phys = &mut state.phys;
            apply(&mut phys.referenced_bytes, space.used);
            apply(&mut phys.compressed_bytes, space.compressed);
            apply(&mut phys.uncompressed_bytes, space.uncompressed);
            apply(&mut phys.unique_bytes, space.used);
            if block.lsize_bytes() > OLD_MAX_BLOCK_BYTES {
                state.activating.insert(guid::LARGE_BLOCKS);
            }
            for feature in block_features(block).into_iter().flatten() {
                state.activating.insert(feature);
            }
            if has_livelist(&state.dir, block) {
                state.live.allocated.push(*block);
            }
            (delta, state.dir.clone())
        });
        dir.did_use_transfer(
            Space {
                used: delta,
                ..space
            },
            space.used,
            UsedBy::RefReservation,
            UsedBy::Head,
        );
    }

    fn dead(&self, block: &BlockPointer) {
        if block.is_hole() || block.is_redacted() {
            return;
        }
        let space = Space::of(self.pipeline, block);
        let birth = block.birth();
        self.head.change(|state| {
            if has_livelist(&state.dir, block) {
                state.live.freed.push(*block);
            }
        });
        let prev_txg = self.head.state().phys.previous_snapshot_txg;
        if birth > prev_txg {
            self.pipeline.free(self.txg, block);
            let (delta, dir) = self.head.change(|state| {
                let delta = unique_delta(state, -space.used);
                apply(&mut state.phys.unique_bytes, -space.used);
                (delta, state.dir.clone())
            });
            let freed = space.negated();
            dir.did_use_transfer(
                Space {
                    used: delta,
                    ..freed
                },
                freed.used,
                UsedBy::RefReservation,
                UsedBy::Head,
            );
        } else {
            let (prev, dir) = self.head.change(|state| {
                state.dead.push(*block);
                (state.prev.clone(), state.dir.clone())
            });
            if let Some(prev) = prev {
                let is_only_ours = {
                    let phys = &prev.state().phys;
                    phys.next_snapshot == self.head.object && birth > phys.previous_snapshot_txg
                };
                if is_only_ours {
                    prev.change(|state| apply(&mut state.phys.unique_bytes, space.used));
                }
            }
            if birth > dir.state().origin_txg {
                dir.transfer(space.used, UsedBy::Head, UsedBy::Snapshots);
            }
        }
        self.head.change(|state| {
            state.bookmarks.block_died(prev_txg, block, space);
            apply(&mut state.phys.referenced_bytes, -space.used);
            apply(&mut state.phys.compressed_bytes, -space.compressed);
            apply(&mut state.phys.uncompressed_bytes, -space.uncompressed);
        });
    }
}

/// Accounts of the MOS: its space is that of the directory `$MOS`, which itself is in the MOS, so
/// the sum is only noted here and booked with the next pass.
pub(crate) struct MosAccounting<'a> {
    pub pipeline: &'a Arc<Pipeline>,
    pub txg: Txg,
    pub delta: &'a Mutex<Space>,
}

impl BlockAccounting for MosAccounting<'_> {
    fn born(&self, block: &BlockPointer) {
        self.delta.lock().add(Space::of(self.pipeline, block));
    }

    fn dead(&self, block: &BlockPointer) {
        self.pipeline.free(self.txg, block);
        self.delta
            .lock()
            .add(Space::of(self.pipeline, block).negated());
    }
}
