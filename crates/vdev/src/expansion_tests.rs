//! RAID-Z that was widened: blocks of every width that the vdev had are read, whole and damaged.
//! Method: blocks are written at one width after the other, and between them every sector is moved
//! to where the wider vdev has it, by hand; the last time perhaps only up to some offset, or into
//! the scratch space.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use format::{
    BOOT_BYTES, BlockPointer, Endian, Guid, LABEL_START_BYTES, NvValue, ReflowScratchState, Txg,
    Uberblock, VdevId,
};
use proptest::prelude::*;

use super::*;
use crate::error::VdevError;
use crate::expansion::{Reflow, Reflows};
use crate::reflow::{self, ReflowStep};
use crate::report::ScanRead;
use crate::testing::{TestTree, group, noise, pool_config, root, simulate};

const SECTOR: u64 = 512;

/// What a block must be.
struct Same(Vec<u8>);

impl Verify for Same {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.0 == *data))
    }
}

struct Block {
    offset: u64,
    birth: Txg,
    data: Vec<u8>,
}

/// How the last expansion stands.
#[derive(Debug, Clone, Copy)]
enum Stand {
    Done,
    /// Up to this sector.
    At(u64),
    /// Up to this sector, which are all in the scratch space.
    Scratch(u64),
}

struct Bed {
    sim: SimWorld,
    parity: u64,
    width: u64,
    txgs: Vec<u64>,
    blocks: Vec<Block>,
    /// First free sector.
    free: u64,
    stand: Stand,
}

impl Bed {
    fn new(seed: u64, parity: u64, width: u64) -> Self {
        Self {
            sim: SimWorld::new(seed),
            parity,
            width,
            txgs: Vec::new(),
            blocks: Vec::new(),
            free: 0,
            stand: Stand::Done,
        }
    }

    fn disk(&self, child: u64) -> device::sim::SimDisk {
        self.sim.disk(&format!("d{child}")).expect("a disk")
    }

    /// Writes blocks of these many sectors at today's width, one after the other.
    async fn write(&mut self, sizes: &[u64], seed: u64) {
        let config = group(&self.sim, "raidz", self.parity, "d", self.width, 10);
        let pool = TestTree::create(self.sim.clone(), vec![config], 9).await;
        let tree = &pool.tree;
        let geometry = tree.tops()[0].geometry().expect("raidz");
        let birth = Txg::new(self.txgs.last().copied().unwrap_or(5) + 1);
        for (index, sectors) in sizes.iter().enumerate() {
            let data = noise((sectors * SECTOR) as usize, seed ^ index as u64);
            let offset = self.free * SECTOR;
            let context = IoContext {
                birth,
                ..IoContext::default()
            };
            tree.write_block(VdevId::new(0), offset, Bytes::from(data.clone()), &context)
                .await
                .expect("written");
            self.free += geometry.asize(sectors * SECTOR) / SECTOR;
            self.blocks.push(Block {
                offset,
                birth,
                data,
            });
        }
        tree.flush().await.expect("flushed");
        tree.close();
    }

    /// Takes one more child in.
    fn widen(&mut self, stand: Stand) {
        let (from, to) = (self.width, self.width + 1);
        // Makes the new disk.
        group(&self.sim, "raidz", self.parity, "d", to, 10);
        let count = match stand {
            Stand::Done => self.free,
            Stand::At(sector) | Stand::Scratch(sector) => sector.min(self.free),
        };
        let base = match stand {
            Stand::Scratch(_) => LABEL_START_BYTES - BOOT_BYTES,
            _ => LABEL_START_BYTES,
        };
        // A sector's new place is the old one of an earlier sector: in order, none is lost.
        for sector in 0..count {
            let old = LABEL_START_BYTES + sector / from * SECTOR;
            let bytes = self.disk(sector % from).peek(old, SECTOR as usize);
            self.disk(sector % to)
                .poke(base + sector / to * SECTOR, &bytes);
        }
        self.width = to;
        self.stand = stand;
        if matches!(stand, Stand::Done) {
            self.txgs.push(self.txgs.last().copied().unwrap_or(5) + 5);
        }
    }

    async fn open(&self) -> (TestTree, Arc<VdevTree>) {
        let mut config = group(&self.sim, "raidz", self.parity, "d", self.width, 10);
        if !self.txgs.is_empty() {
            config.set("raidz_expand_txgs", NvValue::UInt64Array(self.txgs.clone()));
        }
        if !matches!(self.stand, Stand::Done) {
            config.set("raidz_expanding", NvValue::Boolean);
        }
        let options = OpenOptions {
            create: true,
            ..OpenOptions::default()
        };
        let config = root(vec![config], 9);
        let tree = VdevTree::open(self.sim.world(), &config, options)
            .await
            .expect("opens");
        tree.init_labels(&tree.tops(), &pool_config(0), Txg::INITIAL)
            .await
            .expect("labelled");
        let (sector, state) = match self.stand {
            Stand::Done => (0, ReflowScratchState::NotInUse),
            Stand::At(sector) => (sector, ReflowScratchState::InvalidSyncedReflow),
            Stand::Scratch(sector) => (sector, ReflowScratchState::Valid),
        };
        tree.set_uberblock(&Uberblock {
            endian: Endian::Little,
            version: Uberblock::VERSION_FEATURES,
            txg: Txg::new(100),
            guid_sum: Guid::new(0),
            timestamp_seconds: 0,
            root: BlockPointer::HOLE,
            software_version: 0,
            multihost: None,
            checkpoint_txg: Txg::ZERO,
            reflow_offset_bytes: sector * SECTOR,
            reflow_state: state,
        });
        let pool = TestTree::over(self.sim.clone(), tree.clone());
        tree.set_error_sink(pool.reports.clone());
        (pool, tree)
    }

    async fn read_all(&self, tree: &VdevTree, scrub: bool) -> Result<(), String> {
        for block in &self.blocks {
            let context = IoContext {
                birth: block.birth,
                scan: if scrub { ScanRead::Scrub } else { ScanRead::No },
                ..IoContext::default()
            };
            let verify = Same(block.data.clone());
            let read = tree
                .read_block(
                    VdevId::new(0),
                    block.offset,
                    block.data.len(),
                    &context,
                    &verify,
                )
                .await;
            match read {
                Ok(data) => assert_eq!(data, block.data, "verified data is right"),
                Err(failure) => {
                    return Err(format!("block at {:#x}: {}", block.offset, failure.cause));
                }
            }
        }
        Ok(())
    }

    /// Everything that a child has of the pool is lost, and it does not say so.
    fn garble(&self, child: u64) {
        self.disk(child).corrupt(
            LABEL_START_BYTES - BOOT_BYTES,
            (BOOT_BYTES + 2 * self.free * SECTOR) as usize,
        );
    }
}

fn stands() -> impl Strategy<Value = Stand> {
    prop_oneof![
        Just(Stand::Done),
        (300u64..3000).prop_map(Stand::At),
        (1u64..600).prop_map(Stand::Scratch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn blocks_of_all_widths_survive_what_parity_can_make_up_for(
        parity in 1u64..=3,
        extra in 1u64..4,
        seed in any::<u64>(),
        silent in any::<bool>(),
        sizes in prop::collection::vec(1u64..260, 1..12),
        more in prop::collection::vec(1u64..100, 1..6),
        stand in stands(),
        early in any::<bool>(),
    ) {
        simulate(async move {
            let mut bed = Bed::new(seed, parity, parity + extra);
            bed.write(&sizes, seed).await;
            if early {
                // A child lied before the vdev was widened, and nobody noticed.
                bed.garble(seed % bed.width);
            }
            bed.widen(Stand::Done);
            bed.write(&more, !seed).await;
            bed.widen(stand);
            if matches!(stand, Stand::Done) {
                bed.write(&more, seed.rotate_left(7)).await;
            }
            let (pool, tree) = bed.open().await;
            if !early {
                bed.read_all(&tree, false).await.expect("whole");
                bed.read_all(&tree, true).await.expect("whole");
                assert_eq!(pool.reports.checksum(), 0);
            }
            let lost = parity - u64::from(early);
            let bad: BTreeSet<u64> = (0..lost)
                .map(|index| (seed.rotate_left(index as u32 * 9) ^ index) % bed.width)
                .collect();
            // What lied before is one of each row's wrong columns already.
            for child in &bad {
                if silent {
                    bed.garble(*child);
                } else {
                    bed.disk(*child)
                        .inject(Fault::new(SimOp::Read, FaultEffect::Error));
                }
            }
            bed.read_all(&tree, false)
                .await
                .expect("parity makes up for it");
            tree.close();
        });
    }
}

#[test]
fn more_damage_than_parity_is_an_error_and_not_wrong_data() {
    simulate(async {
        let mut bed = Bed::new(3, 1, 3);
        bed.write(&[40, 7, 100], 3).await;
        bed.widen(Stand::Done);
        let (pool, tree) = bed.open().await;
        bed.garble(0);
        bed.read_all(&tree, false).await.expect("one of four");
        assert!(pool.reports.checksum() > 0);
        bed.garble(0);
        bed.garble(2);
        bed.read_all(&tree, false).await.expect_err("two of four");
    });
}

/// A vdev to which a child was attached just now, with blocks all over it.
async fn widened(seed: u64, parity: u64, width: u64) -> (Bed, TestTree, Arc<Vdev>) {
    let mut bed = Bed::new(seed, parity, width);
    // The scratch space holds so many sectors: blocks lie in it, across its end and behind it.
    let scratch = BOOT_BYTES / SECTOR * (width + 1);
    for (index, first) in [0, scratch - 50, scratch + scratch / 3, 5 * scratch]
        .into_iter()
        .enumerate()
    {
        bed.free = first;
        bed.write(&[40, 7, 1, 2, 250, 100], seed + index as u64)
            .await;
    }
    let config = root(vec![group(&bed.sim, "raidz", parity, "d", width, 10)], 9);
    let options = OpenOptions {
        create: true,
        ..OpenOptions::default()
    };
    let tree = VdevTree::open(bed.sim.world(), &config, options).await;
    let tree = tree.expect("opens");
    let new = crate::testing::leaf(&bed.sim, &format!("d{width}"), 11 + width);
    let new = tree.prepare_leaf(&new).await.expect("a device");
    let fresh = std::slice::from_ref(&new);
    tree.init_labels(fresh, &pool_config(0), Txg::INITIAL)
        .await
        .expect("labelled");
    let (former, after) = tree.widen(Guid::new(10), &new).expect("it can be widened");
    assert!(former.iter().all(|vdev| vdev.strong_count() == 0), "no I/O");
    bed.width = width + 1;
    let pool = TestTree::over(bed.sim.clone(), tree);
    (bed, pool, after)
}

/// Everything is read by what an uberblock would say, as after a crash.
async fn read_after_crash(bed: &Bed, tree: &VdevTree, told: Reflow) {
    let options = OpenOptions {
        create: true,
        read_only: true,
        ..OpenOptions::default()
    };
    let config = tree.to_config(crate::Scope::Mos);
    let found = VdevTree::open(bed.sim.world(), &config, options).await;
    let found = found.expect("opens");
    found.set_uberblock(&Uberblock {
        reflow_offset_bytes: told.offset_bytes,
        reflow_state: match told.scratch {
            true => ReflowScratchState::Valid,
            false => ReflowScratchState::InvalidSyncedReflow,
        },
        ..crate::testing::uberblock(100)
    });
    let pool = TestTree::over(bed.sim.clone(), found);
    bed.read_all(&pool.tree, true)
        .await
        .expect("nothing is lost");
    assert_eq!(pool.reports.checksum(), 0, "nothing is stale");
    pool.tree.close();
}

/// Writes other data into all blocks, as intent logs do with theirs.
async fn rewrite(bed: &mut Bed, tree: &VdevTree, seed: u64) {
    for (index, block) in bed.blocks.iter_mut().enumerate() {
        block.data = noise(block.data.len(), seed ^ index as u64);
        let context = IoContext {
            birth: block.birth,
            ..IoContext::default()
        };
        let data = Bytes::from(block.data.clone());
        let written = tree.write_block(VdevId::new(0), block.offset, data, &context);
        written.await.expect("written");
    }
}

fn stand(top: &Vdev) -> Reflows {
    top.kind()
        .expansion()
        .and_then(|at| at.reflows())
        .expect("it is expanding")
}

/// Everything is moved, step by step. After each step blocks are written, and both the state on
/// disk and the next one have all of them.
#[test]
fn sectors_are_moved_and_no_state_on_disk_lacks_any() {
    for (seed, parity, width) in [(1, 1, 2), (2, 1, 3), (3, 2, 4)] {
        simulate(async move {
            let (mut bed, pool, top) = widened(seed, parity, width).await;
            let tree = &pool.tree;
            let mut txg = 20;
            let occupied = RangeSet::from_iter([(0, bed.free * SECTOR)]);
            loop {
                txg += 1;
                tree.settle_reflow(&top).await.expect("nobody writes");
                let mut is_over = true;
                while let Some(step) = reflow::next(&top) {
                    if matches!(step, ReflowStep::End | ReflowStep::Waits) {
                        is_over = step == ReflowStep::End;
                        break;
                    }
                    let moved = tree.reflow_step(&top, step, Txg::new(txg), || occupied.clone());
                    moved.await.expect("moved");
                    rewrite(&mut bed, tree, seed + 100 * txg).await;
                    let Reflows { now, told, .. } = stand(&top);
                    read_after_crash(&bed, tree, told).await;
                    read_after_crash(&bed, tree, now).await;
                }
                bed.read_all(tree, true).await.expect("whole");
                if is_over {
                    break;
                }
                tree.reflow_told();
                rewrite(&mut bed, tree, seed + 100 * txg + 50).await;
                read_after_crash(&bed, tree, stand(&top).told).await;
            }
            let ended = tree.end_expansion(&top, Txg::new(txg + 3)).await;
            ended.expect("it is over");
            assert!(!top.is_expanding() && !top.has_config("raidz_expanding"));
            bed.read_all(tree, true).await.expect("whole");
            assert_eq!(pool.reports.checksum(), 0);
            assert_eq!(tree.reflow(), (0, ReflowScratchState::NotInUse));
            // As any vdev that was widened.
            for child in 0..parity {
                bed.garble(child + 1);
            }
            bed.read_all(tree, false)
                .await
                .expect("parity makes up for it");
        });
    }
}

/// Nothing counts as moved when a device fails meanwhile, or lacks something, and all is read.
#[test]
fn devices_that_fail_stop_a_move() {
    simulate(async {
        let (mut bed, pool, top) = widened(7, 1, 3).await;
        let tree = &pool.tree;
        let occupied = RangeSet::from_iter([(0, bed.free * SECTOR)]);
        for txg in 21..27 {
            tree.settle_reflow(&top).await.expect("nobody writes");
            let step = reflow::next(&top).expect("it goes on");
            let child = txg % 3;
            let (op, effect) = match txg % 3 {
                0 => (SimOp::Read, FaultEffect::Error),
                1 => (SimOp::Write, FaultEffect::Error),
                _ => (SimOp::Flush, FaultEffect::Error),
            };
            bed.disk(child).inject(Fault::new(op, effect));
            let before = stand(&top);
            let moved = tree.reflow_step(&top, step, Txg::new(txg), || occupied.clone());
            assert!(moved.await.is_err(), "{step:?}");
            assert_eq!(stand(&top), before, "{step:?}");
            bed.read_all(tree, false).await.expect("one of four failed");
            bed.disk(child).clear_faults();
            pool.clear().await.expect("it works again");
            for leaf in tree.leaves() {
                let leaf = leaf.leaf().expect("a leaf");
                leaf.dirty_times().set_missing(RangeSet::new());
            }
            rewrite(&mut bed, tree, txg).await;
            let leaves = tree.leaves();
            let lacking = leaves[0].leaf().expect("a leaf").dirty_times();
            lacking.add_missing(Txg::new(3));
            let step = reflow::next(&top).expect("it goes on");
            let moved = tree.reflow_step(&top, step, Txg::new(txg), || occupied.clone());
            assert!(moved.await.is_err(), "a device lacks something");
            lacking.set_missing(RangeSet::new());
            let moved = tree.reflow_step(&top, step, Txg::new(txg), || occupied.clone());
            moved.await.expect("all are well");
            tree.reflow_told();
            read_after_crash(&bed, tree, stand(&top).told).await;
        }
    });
}

/// A row across the boundary is in its old place, with copies of what was moved in the new ones. A
/// device that did not take such a copy gets it when it is resilvered.
#[test]
fn a_resilver_writes_what_was_moved_of_rows_across_the_boundary() {
    simulate(async {
        let (mut bed, pool, top) = widened(9, 1, 3).await;
        let tree = &pool.tree;
        let occupied = RangeSet::from_iter([(0, bed.free * SECTOR)]);
        for txg in [21, 22] {
            let step = reflow::next(&top).expect("it goes on");
            let moved = tree.reflow_step(&top, step, Txg::new(txg), || occupied.clone());
            moved.await.expect("moved");
            tree.reflow_told();
            tree.settle_reflow(&top).await.expect("nobody writes");
        }
        bed.disk(3)
            .inject(Fault::new(SimOp::Write, FaultEffect::Error));
        rewrite(&mut bed, tree, 5).await;
        bed.disk(3).clear_faults();
        pool.clear().await.expect("it works again");
        let leaves = tree.leaves();
        let lacking = leaves[3].leaf().expect("a leaf").dirty_times();
        assert!(!lacking.missing().is_empty());
        bed.read_all(tree, true)
            .await
            .expect("parity makes up for it");
        lacking.set_missing(RangeSet::new());
        let step = reflow::next(&top).expect("it goes on");
        let moved = tree.reflow_step(&top, step, Txg::new(30), || occupied.clone());
        moved.await.expect("moved");
        // Were something stale, no more than that could be lost.
        bed.disk(1)
            .inject(Fault::new(SimOp::Read, FaultEffect::Error));
        bed.read_all(tree, false).await.expect("one of four failed");
    });
}

/// The first two steps, with what the uberblock tells of them: everything that the scratch space
/// had room for is in its new place.
async fn first_steps(bed: &Bed, tree: &VdevTree, top: &Arc<Vdev>) {
    for txg in [21, 22] {
        let step = reflow::next(top).expect("it goes on");
        let occupied = RangeSet::from_iter([(0, bed.free * SECTOR)]);
        let moved = tree.reflow_step(top, step, Txg::new(txg), || occupied);
        moved.await.expect("moved");
        tree.reflow_told();
        tree.settle_reflow(top).await.expect("nobody writes");
    }
}

/// Of a device that is replaced meanwhile, the new one gets the copies as well.
#[test]
fn a_new_device_gets_what_was_moved_of_rows_across_the_boundary() {
    simulate(async {
        let (bed, pool, top) = widened(9, 1, 3).await;
        let tree = &pool.tree;
        first_steps(&bed, tree, &top).await;
        drop(top);
        let new = crate::testing::leaf(&bed.sim, "replacement", 30);
        let new = tree.prepare_leaf(&new).await.expect("a device");
        let (role, until) = (crate::MirrorRole::Replacing, Txg::new(30));
        tree.attach(Guid::new(14), &new, role, Guid::new(31), until)
            .expect("attached");
        let top = tree.tops().remove(0);
        assert!(reflow::obstacle(&top).is_some(), "it is being replaced");
        drop(top);
        bed.read_all(tree, true).await.expect("resilvered");
        let leaf = new.leaf().expect("a leaf");
        leaf.dirty_times().set_missing(RangeSet::new());
        let gone = tree.detach(Guid::new(14), None, until, Txg::new(33));
        drop(gone.await.expect("detached"));
        let top = tree.tops().remove(0);
        assert_eq!(reflow::obstacle(&top), None);
        let step = reflow::next(&top).expect("it goes on");
        let occupied = RangeSet::from_iter([(0, bed.free * SECTOR)]);
        let moved = tree.reflow_step(&top, step, Txg::new(34), || occupied);
        moved.await.expect("moved");
        assert_eq!(pool.reports.checksum(), 0);
        bed.disk(1)
            .inject(Fault::new(SimOp::Read, FaultEffect::Error));
        bed.read_all(tree, false).await.expect("one of four failed");
    });
}

/// A repair goes on when its reader goes away. Where older states than the one on disk have a
/// block, nothing is written over before it has ended.
#[test]
fn what_is_repaired_is_not_written_over() {
    simulate(async {
        let (mut bed, pool, top) = widened(11, 1, 3).await;
        let tree = &pool.tree;
        first_steps(&bed, tree, &top).await;
        let from = stand(&top).told.offset_bytes;
        let step = reflow::next(&top).expect("it goes on");
        let occupied = RangeSet::from_iter([(0, bed.free * SECTOR)]);
        let moved = tree.reflow_step(&top, step, Txg::new(23), || occupied.clone());
        moved.await.expect("moved");
        tree.reflow_told();
        let until = stand(&top).told.offset_bytes;
        let is_moved = |block: &&Block| {
            let end = block.offset + 2 * block.data.len() as u64;
            block.offset > from && end < until && block.data.len() > 50_000
        };
        let found = bed.blocks.iter().find(is_moved).expect("one was moved");
        let (offset, birth) = (found.offset, found.birth);
        let verify = Same(found.data.clone());
        let length = found.data.len();
        let faulty = Fault::new(SimOp::Read, FaultEffect::Corrupt);
        bed.disk(1).inject(faulty.times(1));
        for child in 0..4 {
            let stalls = Fault::new(SimOp::Write, FaultEffect::Stall);
            bed.disk(child).inject(stalls);
        }
        let context = IoContext {
            birth,
            ..IoContext::default()
        };
        let read = tree.read_block(VdevId::new(0), offset, length, &context, &verify);
        let read = tokio::time::timeout(std::time::Duration::from_millis(100), read).await;
        assert!(read.is_err(), "the repair takes its time");
        assert!(tree.settle_reflow(&top).await.is_err(), "it goes on");
        for child in 0..4 {
            bed.disk(child).clear_faults();
            bed.disk(child).release();
        }
        tree.settle_reflow(&top).await.expect("it has ended");
        rewrite(&mut bed, tree, 3).await;
        bed.read_all(tree, true).await.expect("whole");
    });
}

/// What a vdev was before counts as in use as long as I/O is on it, also when it was something else
/// in between.
#[test]
fn all_that_a_vdev_was_is_waited_for() {
    simulate(async {
        let bed = Bed::new(13, 1, 3);
        let config = group(&bed.sim, "raidz", 1, "d", 3, 10);
        let pool = TestTree::create(bed.sim.clone(), vec![config], 9).await;
        let tree = &pool.tree;
        let leaf = async |name: &str, guid| {
            let config = crate::testing::leaf(&bed.sim, name, guid);
            let new = tree.prepare_leaf(&config).await.expect("a device");
            let labels = pool_config(0);
            let labelled = tree.init_labels(std::slice::from_ref(&new), &labels, Txg::INITIAL);
            labelled.await.expect("labelled");
            new
        };
        let used = tree.tops().remove(0);
        let new = leaf("given up", 30).await;
        let (role, until) = (crate::MirrorRole::Replacing, Txg::new(30));
        tree.attach(Guid::new(12), &new, role, Guid::new(31), until)
            .expect("attached");
        let gone = tree.detach(Guid::new(30), None, until, until);
        drop(gone.await.expect("detached"));
        let (former, _) = tree
            .widen(Guid::new(10), &leaf("d3", 14).await)
            .expect("it can be widened");
        let is_used = || former.iter().any(|vdev| vdev.strong_count() > 0);
        assert!(is_used(), "I/O is on the first one");
        drop(used);
        assert!(!is_used());
    });
}

/// Free sectors between others are moved with these, if they can be read.
#[test]
fn free_sectors_that_cannot_be_read_stop_nothing() {
    simulate(async {
        let (bed, pool, top) = widened(15, 1, 3).await;
        let tree = &pool.tree;
        // Sector 100 is in row 33 of the second child. What is there does not matter here.
        let at = LABEL_START_BYTES + 33 * SECTOR;
        let fails = Fault::new(SimOp::Read, FaultEffect::Error).within(at..at + SECTOR);
        bed.disk(1).inject(fails);
        let step = reflow::next(&top).expect("it begins");
        let all = RangeSet::from_iter([(0, 200 * SECTOR)]);
        let moved = tree.reflow_step(&top, step, Txg::new(21), || all);
        assert!(moved.await.is_err(), "it is not free");
        let free = RangeSet::from_iter([(0, 100 * SECTOR), (101 * SECTOR, 99 * SECTOR)]);
        let moved = tree.reflow_step(&top, step, Txg::new(21), || free);
        assert_eq!(moved.await.expect("moved"), 200 * SECTOR);
        assert_ne!(reflow::next(&top), Some(step));
    });
}

/// What no expansion leaves in an uberblock is known for that: where blocks are written would be
/// where others are.
#[test]
fn uberblocks_that_cannot_be_are_noticed() {
    simulate(async {
        let (_, pool, top) = widened(17, 1, 3).await;
        let scratch = BOOT_BYTES * 4;
        let end = top.metaslab_count() << top.metaslab_shift();
        let reflowed = ReflowScratchState::InvalidSyncedReflow;
        for (offset, state, is_damaged) in [
            (0, ReflowScratchState::NotInUse, false),
            (scratch, ReflowScratchState::Valid, false),
            (scratch, ReflowScratchState::InvalidSynced, false),
            (scratch, ReflowScratchState::InvalidSyncedOnImport, false),
            (scratch + 3 * SECTOR, reflowed, false),
            (end, reflowed, false),
            (scratch, ReflowScratchState::Unknown(7), true),
            (2 * scratch, ReflowScratchState::Valid, true),
            (scratch - SECTOR, ReflowScratchState::Valid, true),
            (8 * SECTOR, reflowed, true),
            (end + SECTOR, reflowed, true),
            (u64::MAX >> 9 << 9, reflowed, true),
        ] {
            pool.tree.set_uberblock(&Uberblock {
                reflow_offset_bytes: offset,
                reflow_state: state,
                ..crate::testing::uberblock(100)
            });
            assert_eq!(reflow::is_damaged(&top), is_damaged, "{offset} {state:?}");
        }
    });
}

/// Blocks of the newest width, of the one before and of the first one are written side by side and
/// read again, also with as many devices lying as there is parity; what was there before stays
/// right.
#[test]
fn blocks_of_all_widths_are_written() {
    for (seed, parity, width) in [(1, 1, 3), (2, 2, 5), (3, 3, 5)] {
        simulate(async move {
            let mut bed = Bed::new(seed, parity, width);
            bed.write(&[40, 7, 100, 1, 2], seed).await;
            bed.widen(Stand::Done);
            bed.write(&[33, 9, 1], seed + 1).await;
            bed.widen(Stand::Done);
            let births = [
                3,
                bed.txgs[0],
                bed.txgs[1] - 1,
                bed.txgs[1],
                bed.txgs[1] + 9,
            ];
            let (_pool, tree) = bed.open().await;
            let top = &tree.tops()[0];
            let spec = crate::TopSpec::of(top).expect("a spec");
            assert!(spec.allocatable);
            assert_eq!(top.geometry().expect("raidz").children(), width + 2);
            let (from, before) = spec.before.expect("it was narrower");
            assert_eq!((from.get(), before.children()), (bed.txgs[1], width + 1));
            for (index, birth) in births.into_iter().cycle().take(40).enumerate() {
                let sectors = 1 + (index as u64 * 7) % 61;
                let data = noise((sectors * SECTOR) as usize, seed ^ index as u64);
                let (birth, offset) = (Txg::new(birth), bed.free * SECTOR);
                let context = IoContext {
                    birth,
                    ..IoContext::default()
                };
                tree.write_block(VdevId::new(0), offset, Bytes::from(data.clone()), &context)
                    .await
                    .expect("written");
                // As much as the narrowest takes.
                let widest = Geometry::raidz(9, width as usize, parity).expect("raidz");
                bed.free += widest.asize(sectors * SECTOR) / SECTOR;
                bed.blocks.push(Block {
                    offset,
                    birth,
                    data,
                });
            }
            bed.read_all(&tree, false).await.expect("all is right");
            for child in 0..parity {
                bed.garble(child * 2);
            }
            bed.read_all(&tree, false)
                .await
                .expect("parity makes up for it");
            bed.read_all(&tree, true).await.expect("repaired");
        });
    }
}

/// A block of an old width is written when no more devices fail than there is parity.
#[test]
fn degraded_writes_of_old_widths() {
    simulate(async {
        let mut bed = Bed::new(5, 1, 3);
        bed.write(&[10], 1).await;
        bed.widen(Stand::Done);
        let (_pool, tree) = bed.open().await;
        let context = IoContext {
            birth: Txg::new(3),
            ..IoContext::default()
        };
        let data = Bytes::from(noise(40 * SECTOR as usize, 9));
        let offset = 600 * SECTOR;
        bed.disk(1)
            .inject(Fault::new(SimOp::Write, FaultEffect::Error));
        tree.write_block(VdevId::new(0), offset, data.clone(), &context)
            .await
            .expect("one of four failed");
        assert!(
            !tree.leaves()[1]
                .leaf()
                .expect("a leaf")
                .dirty_times()
                .missing()
                .is_empty()
        );
        let verify = Same(data.to_vec());
        let read = tree.read_block(VdevId::new(0), offset, data.len(), &context, &verify);
        assert_eq!(read.await.expect("parity makes up for it"), data);
        bed.disk(2)
            .inject(Fault::new(SimOp::Write, FaultEffect::Error));
        let second = tree.write_block(VdevId::new(0), offset, data, &context);
        assert!(second.await.is_err(), "two of four failed");
    });
}

#[test]
fn a_failing_sector_does_not_take_its_neighbours_along() {
    simulate(async {
        let mut bed = Bed::new(5, 1, 3);
        bed.write(&[200], 3).await;
        bed.widen(Stand::Done);
        let (_pool, tree) = bed.open().await;
        // Sectors of different rows on two devices.
        for (child, row) in [(0, 4), (2, 30)] {
            let at = LABEL_START_BYTES + row * SECTOR;
            bed.disk(child)
                .inject(Fault::new(SimOp::Read, FaultEffect::Error).within(at..at + SECTOR));
        }
        bed.read_all(&tree, false).await.expect("one in each row");
    });
}

#[test]
fn configurations_that_cannot_be_are_refused() {
    simulate(async {
        for (width, txgs, parity) in [
            (4, vec![5, 6, 7], 1),
            (4, vec![7, 6], 1),
            (5, vec![1, 2, 3], 2),
        ] {
            let sim = SimWorld::new(1);
            let mut config = group(&sim, "raidz", parity, "d", width, 10);
            config.set("raidz_expand_txgs", NvValue::UInt64Array(txgs));
            let config = root(vec![config], 9);
            let opened = VdevTree::open(sim.world(), &config, OpenOptions::default()).await;
            assert!(matches!(opened, Err(VdevError::BadConfig { .. })));
        }
    });
}

#[test]
fn space_is_counted_by_the_first_width() {
    simulate(async {
        let mut bed = Bed::new(5, 1, 3);
        bed.write(&[1], 1).await;
        bed.widen(Stand::Done);
        let (_pool, tree) = bed.open().await;
        let top = &tree.tops()[0];
        let spec = crate::TopSpec::of(top).expect("a spec");
        assert_eq!(spec.deflate_ratio, 341);
        assert_eq!(top.geometry().expect("raidz").children(), 4);
        assert!(crate::TopSpec::of(top).expect("a spec").allocatable);
    });
}
