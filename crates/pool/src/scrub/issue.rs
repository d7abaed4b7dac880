//! Verifying the blocks that were found, in the order in which they lie on the devices.
//!
//! A batch is split by the top-level vdev of each block's first copy and sorted by offset
//! (`scan_io_queue`, module/zfs/dsl_scan.c): what files and snapshots scattered becomes one sweep. Blocks that
//! several files share (dedup, clones) meet in the batch and are verified once. Every vdev has tasks of
//! its own that take the next block in order; the runtime spreads them over the CPU cores, and each
//! computes the checksums of what it read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use format::VdevId;
use tokio::sync::mpsc;

use super::{Found, Run};

/// Blocks of one top-level vdev that are verified at the same time.
const PER_VDEV: usize = 32;

/// The blocks of one top-level vdev, by offset.
struct Lane {
    blocks: Vec<Found>,
    next: AtomicUsize,
}

/// Verifies a batch; returns when it is done (or the scrub was stopped).
pub(super) async fn issue(run: &Arc<Run>, batch: Vec<Found>) {
    let mut lanes: BTreeMap<VdevId, Vec<Found>> = BTreeMap::new();
    for found in batch {
        let Some(dva) = found.bp.dva(0) else {
            run.note_error(found.bookmark, "a block pointer leads nowhere");
            continue;
        };
        lanes.entry(dva.vdev()).or_default().push(found);
    }
    let (alive, mut ended) = mpsc::channel::<()>(1);
    for mut blocks in lanes.into_values() {
        blocks.sort_unstable_by_key(|found| found.bp.dva(0).map_or(0, |dva| dva.offset_bytes()));
        let tasks = blocks.len().min(PER_VDEV);
        let lane = Arc::new(Lane {
            blocks,
            next: AtomicUsize::new(0),
        });
        for _ in 0..tasks {
            let (own, lane, alive) = (run.clone(), lane.clone(), alive.clone());
            run.tasks.spawn("scrub", async move {
                lane.work(&own).await;
                drop(alive);
            });
        }
    }
    drop(alive);
    // Nobody sends: this is when the last task drops its end.
    ended.recv().await;
}

impl Lane {
    async fn work(&self, run: &Run) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(found) = self.blocks.get(index) else {
                return;
            };
            if !run.go_on().await {
                return;
            }
            if index > 0 && found.is_same_block(&self.blocks[index - 1]) {
                // Whoever has the first of them speaks for all.
                continue;
            }
            let good = run.verify(found).await;
            let others = self.blocks[index + 1..]
                .iter()
                .take_while(|other| other.is_same_block(found));
            for other in others {
                run.share(other, good);
            }
        }
    }
}
