//! Tests of vdevs: layout against a model, redundancy against damage; labels in [`labels`].

mod labels;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Fault, FaultEffect, Latency, SimOp, SimWorld};
use format::{Guid, LABEL_START_BYTES, NvValue, Txg, VdevId};
use proptest::prelude::*;

use super::geometry::Columns;
use super::*;
use crate::error::VdevError;
use crate::report::{Priority, ScanRead};
use crate::testing::{TestTree, group, leaf, noise, pool_config, simulate};

/// What a block must be.
struct Same(Vec<u8>);

impl Verify for Same {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.0 == *data))
    }
}

/// The sectors of a block by going through the vdev's rows one sector at a time, and what they
/// are: parity in front of every row's data. Data runs down the columns.
fn sectors_by_hand(
    offset: u64,
    sectors: u64,
    width: u64,
    parity: u64,
) -> (BTreeSet<(u64, u64)>, u64) {
    let mut places = BTreeSet::new();
    let mut left = sectors;
    let mut at = offset;
    while left > 0 {
        let in_row = left.min(width - parity);
        for _ in 0..in_row + parity {
            places.insert((at % width, at / width));
            at += 1;
        }
        left -= in_row;
    }
    let used = at - offset;
    (places, used.next_multiple_of(parity + 1))
}

fn places_of(map: &Columns, shift: u32) -> BTreeSet<(u64, u64)> {
    map.columns
        .iter()
        .flat_map(|column| {
            (0..column.length as u64 >> shift)
                .map(move |row| (column.child as u64, (column.offset >> shift) + row))
        })
        .collect()
}

#[test]
fn raidz_sizes_are_those_of_openzfs() {
    // (ashift, width, parity, psize, asize), from the formula worked out by hand.
    for (ashift, width, parity, psize, asize) in [
        (9, 3, 1, 512, 1024),
        (9, 3, 1, 1024, 2048),
        (9, 3, 1, 131_072, 196_608),
        (9, 5, 1, 131_072, 163_840),
        (12, 6, 2, 4096, 12_288),
        (12, 6, 2, 131_072, 196_608),
        (12, 8, 3, 131_072, 229_376),
        (9, 8, 3, 1024, 4096),
    ] {
        let geometry = Geometry::raidz(ashift, width, parity).expect("a geometry");
        assert_eq!(geometry.asize(psize), asize, "{width} {parity} {psize}");
    }
    assert_eq!(Geometry::plain(12).asize(512), 4096);
    assert_eq!(Geometry::plain(9).deflate_ratio(), 512);
    assert_eq!(
        Geometry::raidz(9, 3, 1).map(|g| g.deflate_ratio()),
        Some(341)
    );
    assert!(Geometry::raidz(9, 1, 1).is_none());
    assert!(Geometry::raidz(9, 256, 3).is_none());
}

proptest! {
    #[test]
    fn raidz_columns_are_the_sectors_that_follow(
        parity in 1u64..=3, extra in 1u64..12, ashift in prop::sample::select(vec![9u32, 12, 13]),
        first in 0u64..100_000, sectors in 1u64..300,
    ) {
        let width = parity + extra;
        let geometry = Geometry::raidz(ashift, width as usize, parity).expect("a geometry");
        let offset = first << ashift;
        let map = geometry
            .columns(offset, (sectors << ashift) as usize)
            .expect("columns");
        let (places, total) = sectors_by_hand(first, sectors, width, parity);
        prop_assert_eq!(places_of(&map, ashift), places.clone());
        prop_assert_eq!(geometry.asize(sectors << ashift), total << ashift);
        // Data in all, and every column on a child of its own.
        let data: usize = map.columns[map.parity..]
            .iter()
            .map(|column| column.length)
            .sum();
        prop_assert_eq!(data as u64, sectors << ashift);
        let children: BTreeSet<_> = map.columns.iter().map(|column| column.child).collect();
        prop_assert_eq!(children.len(), map.columns.len());
        // Skip sectors are what the allocation has beyond that.
        let skips: BTreeSet<_> = map
            .skips
            .iter()
            .map(|skip| (skip.child as u64, skip.offset >> ashift))
            .collect();
        let all: BTreeSet<_> = (first..first + total)
            .map(|at| (at % width, at / width))
            .collect();
        prop_assert_eq!(
            skips,
            all.difference(&places).copied().collect::<BTreeSet<_>>()
        );
        // The first parity column starts at the block's own sector, but for the swap.
        let swapped = parity == 1 && offset & (1 << 20) != 0;
        let own = &map.columns[usize::from(swapped)];
        prop_assert_eq!(
            (own.child as u64, own.offset >> ashift),
            (first % width, first / width)
        );
        prop_assert_eq!(
            geometry.psize_max(geometry.asize(sectors << ashift)) >= sectors << ashift,
            true
        );
    }

    #[test]
    fn raidz_gives_back_what_at_most_parity_columns_lost(
        parity in 1u64..=3, extra in 2u64..5, sectors in 1usize..70, first in 0u64..5000,
        seed in any::<u64>(), silent in any::<bool>(),
    ) {
        simulate(async move {
            let width = parity + extra;
            let sim = SimWorld::new(seed);
            let config = group(&sim, "raidz", parity, "d", width, 10);
            let pool = TestTree::create(sim, vec![config], 9).await;
            let tree = &pool.tree;
            let data = noise(sectors * 512, seed);
            let offset = first * 512 * (parity + 1);
            let context = IoContext {
                priority: Priority::Async,
                birth: Txg::new(5),
                ..IoContext::default()
            };
            tree.write_block(VdevId::new(0), offset, Bytes::from(data.clone()), &context)
                .await
                .expect("written");
            let verify = Same(data.clone());
            // Any `parity` children go bad, one way or the other.
            let bad: BTreeSet<u64> = (0..parity)
                .map(|index| (seed.rotate_left(index as u32 * 9) ^ index) % width)
                .collect();
            for child in &bad {
                let disk = pool.disk(&format!("d{child}"));
                if silent {
                    let map = tree.tops()[0]
                        .geometry()
                        .expect("raidz")
                        .columns(offset, data.len())
                        .expect("columns");
                    for column in map
                        .columns
                        .iter()
                        .filter(|column| column.child as u64 == *child)
                    {
                        disk.corrupt(column.offset + LABEL_START_BYTES, column.length);
                    }
                } else {
                    disk.inject(Fault::new(SimOp::Read, FaultEffect::Error).times(1));
                }
            }
            let read = tree
                .read_block(VdevId::new(0), offset, data.len(), &context, &verify)
                .await;
            assert_eq!(
                read.map_err(|failure| failure.cause),
                Ok(Bytes::from(data.clone()))
            );
            // Everything was repaired: another read, with parity, finds nothing wrong.
            let before = pool.reports.checksum();
            let scrub = IoContext {
                scan: ScanRead::Scrub,
                ..context
            };
            for _ in 0..2 {
                let read = tree
                    .read_block(VdevId::new(0), offset, data.len(), &scrub, &verify)
                    .await;
                assert_eq!(
                    read.map_err(|failure| failure.cause),
                    Ok(Bytes::from(data.clone()))
                );
            }
            // (Parity that nobody looked at is found by the first scrub.)
            assert!(pool.reports.checksum() - before <= bad.len());
            for vdev in tree.leaves() {
                assert!(vdev.is_readable());
            }
        });
    }
}

#[test]
fn more_damage_than_parity_is_an_error_and_not_wrong_data() {
    simulate(async {
        let sim = SimWorld::new(1);
        let config = group(&sim, "raidz", 1, "d", 4, 10);
        let pool = TestTree::create(sim, vec![config], 9).await;
        let tree = &pool.tree;
        let data = noise(3 * 512 * 8, 3);
        let context = IoContext::default();
        tree.write_block(VdevId::new(0), 0, Bytes::from(data.clone()), &context)
            .await
            .expect("written");
        for disk in ["d1", "d2"] {
            pool.disk(disk).corrupt(LABEL_START_BYTES, 4096);
        }
        let failure = tree
            .read_block(VdevId::new(0), 0, data.len(), &context, &Same(data.clone()))
            .await
            .expect_err("two columns are wrong");
        assert!(failure.checksum);
    });
}

/// A device and its successor have whole blocks, like any half of a mirror: a scrub looks at both,
/// and a reader gets what one of them has.
#[test]
fn mirrors_see_which_of_a_replacement_is_wrong() {
    simulate(async {
        let sim = SimWorld::new(6);
        let mut config = group(&sim, "mirror", 0, "m", 1, 10);
        let below = group(&sim, "replacing", 0, "r", 2, 20);
        if let Some(NvValue::ListArray(children)) = config.get_mut("children") {
            children.push(below);
        }
        let pool = TestTree::create(sim, vec![config], 9).await;
        let tree = &pool.tree;
        let data = noise(8192, 3);
        let verify = Same(data.clone());
        let written = IoContext::default();
        tree.write_block(VdevId::new(0), 0, Bytes::from(data.clone()), &written)
            .await
            .expect("written");
        let scrub = IoContext {
            scan: ScanRead::Scrub,
            priority: Priority::Scrub,
            ..IoContext::default()
        };
        for wrong in ["r0", "r1"] {
            pool.disk(wrong).corrupt(LABEL_START_BYTES, 4096);
            tree.read_block(VdevId::new(0), 0, data.len(), &scrub, &verify)
                .await
                .expect("two are right");
            for disk in ["m0", "r0", "r1"] {
                let found = pool.disk(disk).peek(LABEL_START_BYTES, data.len());
                assert!(found == data, "{wrong} was wrong, now {disk} is");
            }
        }
        // With the other half gone as well, one of the two is all there is.
        pool.disk("m0").set_gone(true);
        for wrong in ["r0", "r1"] {
            pool.disk(wrong).corrupt(LABEL_START_BYTES, 4096);
            let read = tree
                .read_block(VdevId::new(0), 0, data.len(), &written, &verify)
                .await
                .expect("one is right");
            assert!(read == data);
            pool.disk(wrong).poke(LABEL_START_BYTES, &data);
        }
    });
}

/// Where a device and its successor differ, RAID-Z takes the one that is right, also when it can do
/// without no other device.
#[test]
fn raidz_takes_the_right_one_of_a_replacement() {
    simulate(async {
        let sim = SimWorld::new(7);
        let mut config = group(&sim, "raidz", 1, "d", 2, 10);
        let below = group(&sim, "replacing", 0, "r", 2, 20);
        if let Some(NvValue::ListArray(children)) = config.get_mut("children") {
            children.push(below);
        }
        let pool = TestTree::create(sim, vec![config], 9).await;
        let tree = &pool.tree;
        let data = noise(8192, 3);
        let verify = Same(data.clone());
        let context = IoContext::default();
        tree.write_block(VdevId::new(0), 0, Bytes::from(data.clone()), &context)
            .await
            .expect("written");
        let scrub = IoContext {
            scan: ScanRead::Scrub,
            priority: Priority::Scrub,
            ..IoContext::default()
        };
        let right: Vec<Vec<u8>> = ["d0", "d1", "r0", "r1"]
            .iter()
            .map(|disk| pool.disk(disk).peek(LABEL_START_BYTES, 4096))
            .collect();
        assert!(right[2] == right[3]);
        for other in ["d0", "d1"] {
            for wrong in ["r0", "r1"] {
                for disk in [other, wrong] {
                    pool.disk(disk).corrupt(LABEL_START_BYTES, 4096);
                }
                let read = tree
                    .read_block(VdevId::new(0), 0, data.len(), &context, &verify)
                    .await
                    .expect("enough is right");
                assert!(read == data);
                // What a reader did not look at, a scrub does.
                tree.read_block(VdevId::new(0), 0, data.len(), &scrub, &verify)
                    .await
                    .expect("enough is right");
                for (disk, right) in ["d0", "d1", "r0", "r1"].iter().zip(&right) {
                    let found = pool.disk(disk).peek(LABEL_START_BYTES, 4096);
                    assert!(found == *right, "{other} and {wrong} were wrong, {disk} is");
                }
            }
        }
    });
}

/// What fills a block's last sector is under no checksum: a device that lies about it is put right,
/// and no parity is made of the lie.
#[test]
fn a_lie_behind_the_end_of_a_block_is_mended_where_it_is() {
    simulate(async {
        let sim = SimWorld::new(2);
        let config = group(&sim, "raidz", 2, "d", 5, 10);
        let pool = TestTree::create(sim, vec![config], 12).await;
        let tree = &pool.tree;
        let data = noise(4096 * 2 + 512, 3);
        let written = IoContext::default();
        tree.write_block(VdevId::new(0), 0, Bytes::from(data.clone()), &written)
            .await
            .expect("written");
        let disks: Vec<_> = (0..5).map(|disk| pool.disk(&format!("d{disk}"))).collect();
        let contents = || -> Vec<Vec<u8>> {
            let content = disks.iter().map(|disk| disk.peek(LABEL_START_BYTES, 8192));
            content.collect()
        };
        let right = contents();
        let last = right.iter().position(|content| {
            content[..512] == data[8192..] && content[512..4096].iter().all(|byte| *byte == 0)
        });
        let last = last.expect("the last column");
        disks[last].poke(LABEL_START_BYTES + 1024, &noise(1000, 4));
        let scrub = IoContext {
            scan: ScanRead::Scrub,
            priority: Priority::Scrub,
            ..IoContext::default()
        };
        let verify = Same(data.clone());
        let read = tree
            .read_block(VdevId::new(0), 0, data.len(), &scrub, &verify)
            .await
            .expect("right");
        assert_eq!(read, data);
        assert!(contents() == right, "something is not as it was written");
    });
}

#[test]
fn healthy_raidz_reads_touch_data_columns_only() {
    simulate(async {
        let sim = SimWorld::new(1);
        let config = group(&sim, "raidz", 2, "d", 6, 10);
        let pool = TestTree::create(sim, vec![config], 12).await;
        let tree = &pool.tree;
        let data = noise(128 << 10, 3);
        let context = IoContext::default();
        tree.write_block(VdevId::new(0), 0, Bytes::from(data.clone()), &context)
            .await
            .expect("written");
        let before = pool.sim.counts().reads;
        tree.read_block(VdevId::new(0), 0, data.len(), &context, &Same(data.clone()))
            .await
            .expect("right");
        assert_eq!(pool.sim.counts().reads - before, 4);
    });
}

#[test]
fn a_mirror_heals_itself() {
    simulate(async {
        let sim = SimWorld::new(7);
        let config = group(&sim, "mirror", 0, "m", 3, 10);
        let pool = TestTree::create(sim, vec![config], 12).await;
        let tree = &pool.tree;
        let data = noise(8192, 5);
        let context = IoContext {
            birth: Txg::new(9),
            ..IoContext::default()
        };
        tree.write_block(VdevId::new(0), 0, Bytes::from(data.clone()), &context)
            .await
            .expect("written");
        pool.disk("m0").corrupt(LABEL_START_BYTES, 8192);
        pool.disk("m1")
            .inject(Fault::new(SimOp::Read, FaultEffect::Error).times(1));
        let verify = Same(data.clone());
        let scrub = IoContext {
            scan: ScanRead::Scrub,
            ..context
        };
        let read = tree
            .read_block(VdevId::new(0), 0, data.len(), &scrub, &verify)
            .await
            .expect("m2 has it");
        assert_eq!(read, data);
        assert_eq!(pool.disk("m0").peek(LABEL_START_BYTES, 8192), data);
        assert_eq!(pool.reports.checksum(), 1);
        let counters = tree.find(Guid::new(11)).expect("m0").counters();
        assert_eq!(counters.checksum_errors, 1);
        assert_eq!(counters.repaired_bytes, 8192);
        // A child that could not be written, nor when it was tried again, misses the txg, and is
        // not asked for it while others are there.
        pool.disk("m0").inject(
            Fault::new(SimOp::Write, FaultEffect::Error)
                .within(LABEL_START_BYTES..u64::MAX)
                .times(2),
        );
        let newer = noise(8192, 6);
        let context = IoContext {
            birth: Txg::new(10),
            ..context
        };
        tree.write_block(VdevId::new(0), 8192, Bytes::from(newer.clone()), &context)
            .await
            .expect("two of three suffice");
        let m0 = tree.find(Guid::new(11)).expect("m0");
        assert!(m0.is_missing(0, Txg::new(10)) && !m0.is_missing(0, Txg::new(9)));
        for _ in 0..6 {
            tree.read_block(VdevId::new(0), 8192, 8192, &context, &Same(newer.clone()))
                .await
                .expect("right");
        }
        assert_eq!(pool.reports.checksum(), 1);
    });
}

/// After a power cut between the uberblocks of a RAID-Z's children, one that was away before and
/// one that only lacks the last uberblock look alike: both are read, the checksum tells which is
/// right.
#[test]
fn a_stale_child_does_not_hide_one_that_is_right() {
    simulate(async {
        let sim = SimWorld::new(8);
        let config = group(&sim, "raidz", 1, "z", 4, 10);
        let pool = TestTree::create(sim, vec![config], 9).await;
        let tree = &pool.tree;
        let data = noise(3 * 512, 3);
        let context = IoContext {
            birth: Txg::new(27),
            priority: Priority::Async,
            ..IoContext::default()
        };
        tree.write_block(VdevId::new(0), 0, Bytes::from(data.clone()), &context)
            .await
            .expect("all are there");
        for (away, late) in [(1, 2), (2, 1), (0, 3), (3, 0)] {
            let disk = pool.disk(&format!("z{away}"));
            let before = disk.peek(LABEL_START_BYTES, 4096);
            disk.corrupt(LABEL_START_BYTES, 4096);
            for (index, txgs) in [(away, 20..28u64), (late, 27..28)] {
                let vdev = tree.tops()[0].children()[index].clone();
                let missing = [(txgs.start, txgs.end - txgs.start)];
                vdev.leaf()
                    .expect("a leaf")
                    .dirty_times()
                    .set_missing(missing.into_iter().collect());
            }
            let verify = Same(data.clone());
            let read = tree
                .read_block(VdevId::new(0), 0, data.len(), &context, &verify)
                .await
                .expect("three of four are right");
            assert_eq!(read, data, "{away} was away, {late} is late");
            disk.poke(LABEL_START_BYTES, &before);
            for index in [away, late] {
                let vdev = tree.tops()[0].children()[index].clone();
                let leaf = vdev.leaf().expect("a leaf");
                leaf.dirty_times().set_missing(std::iter::empty().collect());
            }
        }
    });
}

#[test]
fn a_dead_device_is_faulted_and_a_vanished_one_removed() {
    simulate(async {
        let sim = SimWorld::new(7);
        let config = group(&sim, "mirror", 0, "m", 3, 10);
        let pool = TestTree::create(sim, vec![config], 12).await;
        let tree = &pool.tree;
        pool.disk("m0")
            .inject(Fault::new(SimOp::Write, FaultEffect::Error));
        pool.disk("m1").set_gone(true);
        let data = Bytes::from(noise(4096, 1));
        let context = IoContext {
            birth: Txg::new(5),
            priority: Priority::Async,
            ..IoContext::default()
        };
        tree.write_block(VdevId::new(0), 0, data.clone(), &context)
            .await
            .expect("one is left");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let state = |guid| tree.find(Guid::new(guid)).expect("a leaf").state().0;
        assert_eq!(state(11), VdevState::Faulted);
        assert_eq!(state(12), VdevState::Removed);
        assert_eq!(tree.tops()[0].state().0, VdevState::Degraded);
        pool.disk("m0").clear_faults();
        pool.disk("m1").set_gone(false);
        assert_eq!(tree.reopen(false).await.unwrap(), 2);
        assert_eq!(tree.tops()[0].state().0, VdevState::Healthy);
        // The last good device cannot be taken offline... but two of three can.
        assert!(tree.take_out(Guid::new(11), false, false).is_ok());
        assert!(tree.take_out(Guid::new(12), false, false).is_ok());
        assert!(tree.take_out(Guid::new(13), false, false).is_err());
        assert_eq!(state(13), VdevState::Healthy);
    });
}

/// What a device took and did not flush before it went away is written again when it is back, and
/// before the pool goes on; where others had it, the device is not trusted with it.
#[test]
fn writes_that_no_flush_covered_are_made_again() {
    simulate(async {
        let sim = SimWorld::new(7);
        let single = leaf(&sim, "single", 10);
        let mirror = group(&sim, "mirror", 0, "m", 2, 20);
        let pool = TestTree::create(sim, vec![single, mirror], 12).await;
        let tree = &pool.tree;
        let context = IoContext {
            birth: Txg::new(5),
            ..IoContext::default()
        };
        let data = Bytes::from(vec![7; 4096]);
        for id in [0, 1] {
            tree.write_block(VdevId::new(id), 0, data.clone(), &context)
                .await
                .expect("written");
        }
        pool.disk("m0")
            .inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
        tree.flush().await.expect("the mirror has another device");
        let m0 = tree.find(Guid::new(21)).expect("m0");
        assert_eq!(m0.state().0, VdevState::Faulted);
        assert!(m0.is_missing(0, Txg::new(5)));
        tree.write_block(VdevId::new(0), 4096, data.clone(), &context)
            .await
            .expect("written");
        // The device goes away, and loses what it had in its cache.
        let single = pool.disk("single");
        single.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
        let error = pool.flush().await.expect_err("nothing else has the data");
        assert!(matches!(error, VdevError::NotDurable { .. }), "{error}");
        assert!(pool.tree.halt().is_halted());
        single.corrupt(format::LABEL_START_BYTES + 4096, 4096);
        pool.clear().await.expect("it works again");
        let raw = format::LABEL_START_BYTES as usize;
        assert_eq!(single.peek(raw as u64 + 4096, 4096), data);
        assert_eq!(single.unflushed_count(), 0);
        pool.flush().await.expect("all is well");
        assert!(
            !tree
                .find(Guid::new(10))
                .expect("single")
                .is_missing(0, Txg::new(5))
        );
    });
}

/// A flush does not cover what the device takes while it runs: such a write is missing when the
/// device is given up.
#[test]
fn a_write_that_a_flush_did_not_cover_is_missed() {
    simulate(async {
        let sim = SimWorld::new(9);
        let mirror = group(&sim, "mirror", 0, "m", 2, 20);
        let pool = TestTree::create(sim, vec![mirror], 12).await;
        let tree = pool.tree.clone();
        let disk = pool.disk("m0");
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Delay(Duration::from_secs(1))).times(1));
        let writing = tokio::spawn({
            let tree = tree.clone();
            let context = IoContext {
                birth: Txg::new(5),
                ..IoContext::default()
            };
            let data = Bytes::from(vec![7; 4096]);
            async move { tree.write_block(VdevId::new(0), 0, data, &context).await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        tree.flush().await.expect("flushed");
        assert!(!writing.is_finished());
        writing.await.expect("no panic").expect("written");
        disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
        tree.flush().await.expect("the mirror has another device");
        let m0 = tree.find(Guid::new(21)).expect("m0");
        assert_eq!(m0.state().0, VdevState::Faulted);
        assert!(m0.is_missing(0, Txg::new(5)));
    });
}

/// Nobody's flush makes lost writes count as durable while they are made again.
#[test]
fn a_flush_waits_until_lost_writes_are_made_again() {
    simulate(async {
        let sim = SimWorld::new(10);
        let single = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim, vec![single], 12).await;
        let tree = pool.tree.clone();
        let data = Bytes::from(vec![7; 4096]);
        for offset in [0, 1 << 20] {
            let context = IoContext {
                birth: Txg::new(5),
                ..IoContext::default()
            };
            tree.write_block(VdevId::new(0), offset, data.clone(), &context)
                .await
                .expect("written");
        }
        let disk = pool.disk("single");
        disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1));
        pool.flush().await.expect_err("nothing else has it");
        let places = [0, 1 << 20].map(|offset| format::LABEL_START_BYTES + offset);
        for place in places {
            disk.corrupt(place, 4096);
        }
        // The first write takes long, the second fails: it is to be made again once more.
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Delay(Duration::from_secs(1))).times(1));
        disk.inject(
            Fault::new(SimOp::Write, FaultEffect::Error)
                .within(places[1]..places[1] + 4096)
                .times(1),
        );
        let clearing = tokio::spawn({
            let pool = pool.clone();
            async move { pool.clear().await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _ = tree.flush().await;
        clearing.await.expect("no panic").expect("may be tried");
        pool.clear().await.expect("may be tried again");
        for place in places {
            assert_eq!(disk.peek(place, 4096), data);
        }
    });
}

/// That a device is gone may be found out by others than a flush; its writes are not durable all
/// the same.
#[test]
fn a_vdev_that_went_away_silently_is_not_flushed() {
    simulate(async {
        let sim = SimWorld::new(8);
        let single = leaf(&sim, "single", 10);
        let other = leaf(&sim, "other", 20);
        let pool = TestTree::create(sim, vec![single, other], 12).await;
        let tree = &pool.tree;
        let context = IoContext {
            birth: Txg::new(5),
            ..IoContext::default()
        };
        let data = Bytes::from(vec![7; 4096]);
        tree.write_block(VdevId::new(0), 0, data.clone(), &context)
            .await
            .expect("written");
        // Found out by a read, not by the flush.
        pool.disk("single").set_gone(true);
        let read = tree
            .read_block(VdevId::new(0), 8192, 4096, &context, &crate::io::Unverified)
            .await;
        assert!(read.is_err());
        assert_eq!(tree.tops()[0].state().0, VdevState::Removed);
        assert!(tree.flush().await.is_err(), "the write may be lost");
        pool.disk("single").set_gone(false);
        assert_eq!(tree.reopen(false).await.unwrap(), 1);
        tree.flush().await.expect("all is well");
    });
}

#[test]
fn queued_writes_are_put_together() {
    simulate(async {
        let sim = SimWorld::new(3);
        let config = leaf(&sim, "single", 10);
        sim.disk("single").expect("a disk").set_latency(Latency {
            write: Duration::from_millis(5),
            ..Latency::NONE
        });
        let pool = TestTree::create(sim, vec![config], 12).await;
        let tree = &pool.tree;
        let context = IoContext {
            priority: Priority::Async,
            ..IoContext::default()
        };
        let before = pool.sim.counts().writes;
        let block = 4096u64;
        let count = 2048u64;
        let writes = (0..count).map(|index| {
            let data = Bytes::from(noise(block as usize, index));
            tree.write_block(VdevId::new(0), index * block, data, &context)
        });
        for result in futures::future::join_all(writes).await {
            result.expect("written");
        }
        let operations = pool.sim.counts().writes - before;
        assert!(
            operations < 60,
            "{operations} operations for {count} adjacent blocks"
        );
        for index in [0, 1, 77, count - 1] {
            let on_disk = pool
                .disk("single")
                .peek(LABEL_START_BYTES + index * block, block as usize);
            assert_eq!(on_disk, noise(block as usize, index));
        }
    });
}

#[test]
fn every_caller_of_an_aggregate_learns_of_its_own_part() {
    simulate(async {
        let sim = SimWorld::new(3);
        let config = leaf(&sim, "single", 10);
        sim.disk("single").expect("a disk").set_latency(Latency {
            write: Duration::from_millis(5),
            ..Latency::NONE
        });
        let pool = TestTree::create(sim, vec![config], 12).await;
        let tree = &pool.tree;
        let bad = LABEL_START_BYTES + 50 * 4096;
        pool.disk("single")
            .inject(Fault::new(SimOp::Write, FaultEffect::Error).within(bad..bad + 4096));
        let context = IoContext {
            priority: Priority::Async,
            ..IoContext::default()
        };
        let writes = (0..100u64).map(|index| {
            let data = Bytes::from(noise(4096, index));
            tree.write_block(VdevId::new(0), index * 4096, data, &context)
        });
        let results = futures::future::join_all(writes).await;
        let failed: Vec<usize> = (0..100).filter(|index| results[*index].is_err()).collect();
        assert_eq!(failed, [50]);
        // Probing found the device alive.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(tree.tops()[0].state().0, VdevState::Healthy);
    });
}

#[test]
fn vdevs_can_be_added() {
    simulate(async {
        let sim = SimWorld::new(3);
        let config = leaf(&sim, "single", 10);
        let pool = TestTree::create(sim.clone(), vec![config], 12).await;
        let tree = &pool.tree;
        let sum = tree.guid_sum();
        let mut more = group(&sim, "mirror", 0, "m", 2, 20);
        more.set("id", 1u64);
        more.set("ashift", 12u64);
        let added = tree.prepare_tops(&[more]).await.expect("opened");
        tree.insert_tops(&added).expect("added");
        tree.init_labels(&added, &pool_config(5), Txg::new(5))
            .await
            .expect("labelled");
        assert_eq!(tree.top_count(), 2);
        assert_eq!(added[0].vdev_id(), VdevId::new(1));
        assert_eq!(tree.guid_sum().get(), sum.get() + 20 + 21 + 22);
        let data = noise(4096, 1);
        tree.write_block(
            VdevId::new(1),
            0,
            Bytes::from(data.clone()),
            &IoContext::default(),
        )
        .await
        .expect("written");
        assert_eq!(pool.disk("m1").peek(LABEL_START_BYTES, 4096), data);
    });
}

/// Found by changing a configuration behind its checksum: asize and the metaslabs' size made for
/// more metaslabs than fit in memory, and making them never ended.
#[test]
fn more_metaslabs_than_can_be_are_refused() {
    simulate(async {
        let sim = SimWorld::new(1);
        let mut top = leaf(&sim, "d0", 7);
        top.set("id", 0u64);
        top.set("ashift", 12u64);
        top.set("metaslab_shift", 9u64);
        top.set("asize", 1u64 << 60);
        let mut root = format::NvList::new();
        root.set("type", "root");
        root.set("guid", 1u64);
        root.set("children", vec![top]);
        let opened = VdevTree::open(sim.world(), &root, OpenOptions::default()).await;
        let error = opened.map(drop).expect_err("too many");
        assert!(matches!(error, VdevError::BadConfig { .. }), "{error}");
    });
}

/// Goal: a vdev grows to no more metaslabs than the next import takes. Method: one of tiny
/// metaslabs on a device that has room for four times as many.
#[test]
fn a_vdev_that_has_grown_can_be_opened_again() {
    simulate(async {
        let sim = SimWorld::new(11);
        sim.add_disk("d", 512 << 20).set_latency(Latency::NONE);
        let pool = TestTree::create(sim.clone(), vec![leaf(&sim, "d", 10)], 9).await;
        let top = pool.tree.tops().remove(0);
        let numbers = top.top().expect("a top-level vdev");
        numbers.set_metaslabs(1, 9);
        numbers.set_size(9, 4 << 20);
        let room = (METASLABS_MAX << 9) - (4 << 20);
        assert_eq!(crate::sizes::expandable_bytes(&top), room);
        assert!(crate::sizes::expand(&top));
        assert_eq!(top.metaslab_count(), METASLABS_MAX);
        let again = pool.reopen().await;
        assert_eq!(again.tops()[0].metaslab_count(), METASLABS_MAX);
    });
}
