//! Tests of vdevs whose blocks are not where their offset says: dRAID and its spares, removed
//! vdevs. What is read was put on the simulated disks by the tests, and what is written is looked
//! for there.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use codec::raidz;
use device::BoxFuture;
use device::sim::{Fault, FaultEffect, Latency, SimOp, SimWorld};
use format::{BlockPointer, Dva, Guid, LABEL_START_BYTES, NvList, NvValue, Txg, VdevId};
use proptest::prelude::*;

use super::*;
use crate::report::ScanRead;
use crate::testing::{births, entry, group, noise, removed, root, simulate};

const DISK_BYTES: u64 = 192 << 20;
const TOP: VdevId = VdevId::new(0);

/// What a block must be.
struct Same(Vec<u8>);

impl Verify for Same {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.0 == *data))
    }
}

/// A dRAID vdev over disks called `d0`, `d1`...
fn draid_config(sim: &SimWorld, parity: u64, data: u64, children: u64, spares: u64) -> NvList {
    for index in 0..children {
        sim.add_disk(&format!("d{index}"), DISK_BYTES)
            .set_latency(Latency::NONE);
    }
    let (width, columns) = (parity + data, children - spares);
    let mut groups = 1;
    while !(groups * width).is_multiple_of(columns) {
        groups += 1;
    }
    let mut config = group(sim, "draid", parity, "d", children, 10);
    config
        .set("draid_ndata", data)
        .set("draid_nspares", spares)
        .set("draid_ngroups", groups);
    config
}

/// Replaces a device by one that is not there and distributed spare number `spare`.
fn use_spare(config: &mut NvList, child: usize, spare: u64) {
    let mut gone = NvList::new();
    gone.set("type", "disk")
        .set("guid", 900 + child as u64)
        .set("path", "gone");
    put_spare(config, child, spare, Some(gone));
}

/// Puts distributed spare number `spare` beside a device, or beside `other` in its place.
fn put_spare(config: &mut NvList, child: usize, spare: u64, other: Option<NvList>) {
    let Some(NvValue::ListArray(children)) = config.get_mut("children") else {
        panic!("no children");
    };
    let device = other.unwrap_or_else(|| children[child].clone());
    let mut dspare = NvList::new();
    dspare
        .set("type", "dspare")
        .set("guid", 800 + spare)
        .set("path", format!("draid1-0-{spare}").as_str())
        .set("top_guid", 10u64)
        .set("spareid", spare);
    let mut both = NvList::new();
    both.set("type", "spare").set("guid", 700 + child as u64);
    both.set("children", NvValue::ListArray(vec![device, dspare]));
    children[child] = both;
}

async fn open(sim: &SimWorld, tops: Vec<NvList>, ashift: u64, label: bool) -> Arc<VdevTree> {
    let options = OpenOptions {
        create: label,
        read_only: !label,
        ..OpenOptions::default()
    };
    let config = root(tops, ashift);
    let tree = VdevTree::open(sim.world(), &config, options)
        .await
        .expect("opens");
    if label {
        tree.init_labels(&tree.tops(), &crate::testing::pool_config(0), Txg::INITIAL)
            .await
            .expect("labelled");
    }
    tree
}

/// Puts a block on the disks. `spares` says which child's place a spare has taken.
fn put(sim: &SimWorld, top: &Vdev, offset: u64, block: &[u8], spares: &[(usize, u64)]) {
    let VdevKind::Draid(draid) = top.kind() else {
        panic!("not dRAID");
    };
    let rows = draid
        .layout
        .rows(top.ashift(), offset, block.len())
        .expect("rows");
    for row in rows {
        let data: Vec<&[u8]> = row
            .data_at
            .iter()
            .zip(&row.columns[row.parity..])
            .map(|(at, column)| &block[*at..at + column.length])
            .collect();
        let parity = raidz::generate_columns(row.parity, &data).expect("parity");
        let content = parity.iter().map(Vec::as_slice).chain(data.iter().copied());
        for (column, bytes) in row.columns.iter().zip(content) {
            let mut child = column.child;
            while let Some((_, spare)) = spares.iter().find(|(gone, _)| *gone == child) {
                child = draid
                    .layout
                    .spare_child(*spare, column.offset)
                    .expect("a spare");
            }
            sim.disk(&format!("d{child}"))
                .expect("a disk")
                .poke(LABEL_START_BYTES + column.offset, bytes);
        }
    }
}

/// See `draid_is_written`: parity, data, spares, more children and spares in use; devices gone.
async fn write_to_draid(
    [parity, data, spares, extra, used]: [u64; 5],
    ashift: u64,
    sectors: usize,
    gone: u64,
    (near_end, at): (bool, u64),
    seed: u64,
) -> Result<(), TestCaseError> {
    let children = parity + data + spares + extra;
    let sim = SimWorld::new(seed);
    let mut config = draid_config(&sim, parity, data, children, spares);
    open(&sim, vec![config.clone()], ashift, true).await.close();
    let first = (seed % children) as usize;
    let replaced: Vec<(usize, u64)> = (0..spares.min(used))
        .map(|spare| ((first + spare as usize) % children as usize, spare))
        .collect();
    for (child, spare) in &replaced {
        use_spare(&mut config, *child, *spare);
    }
    let options = OpenOptions::default();
    let tree = VdevTree::open(sim.world(), &root(vec![config], ashift), options)
        .await
        .expect("opens");
    let top = tree.tops()[0].clone();
    let group = (parity + data) << 24;
    let stripe = (parity + data) << ashift;
    let length = sectors << ashift;
    let offset = if near_end {
        group - (at % 4 + 1) * stripe
    } else {
        at * stripe
    };
    let asize = top.geometry().expect("dRAID").asize(length as u64);
    if asize > top.asize_bytes().saturating_sub(offset) {
        return Ok(());
    }
    // What was there before must not shine through.
    let VdevKind::Draid(draid) = top.kind() else {
        unreachable!()
    };
    let rows = draid
        .layout
        .rows(ashift as u32, offset, length)
        .expect("rows");
    for row in &rows {
        for child in 0..children {
            let disk = sim.disk(&format!("d{child}")).expect("a disk");
            for column in &row.columns {
                disk.corrupt(LABEL_START_BYTES + column.offset, row.columns[0].length);
            }
        }
    }
    let healthy: Vec<u64> = (0..children)
        .filter(|child| {
            replaced
                .iter()
                .all(|(other, _)| other != &(*child as usize))
        })
        .collect();
    let gone: Vec<u64> = healthy
        .iter()
        .copied()
        .cycle()
        .skip(seed as usize % 7)
        .take((gone.min(parity) as usize).min(healthy.len()))
        .collect();
    for child in &gone {
        sim.disk(&format!("d{child}"))
            .expect("a disk")
            .set_gone(true);
    }
    let block = noise(length, seed);
    let context = IoContext {
        birth: Txg::new(5),
        ..IoContext::default()
    };
    tree.write_block(TOP, offset, Bytes::from(block.clone()), &context)
        .await
        .expect("written");
    let read = tree
        .read_block(TOP, offset, length, &context, &Same(block.clone()))
        .await;
    prop_assert_eq!(
        read.map_err(|failure| failure.cause),
        Ok(Bytes::from(block.clone()))
    );
    for row in &rows {
        // The same length on every device, and the parity of all of it.
        let longest = row.columns[0].length;
        let mut content = Vec::new();
        let mut failed = 0;
        for column in &row.columns {
            let mut child = column.child;
            while let Some((_, spare)) = replaced.iter().find(|(other, _)| *other == child) {
                child = draid
                    .layout
                    .spare_child(*spare, column.offset)
                    .expect("a spare");
            }
            if gone.contains(&(child as u64)) {
                failed += 1;
                content.push(None);
                continue;
            }
            let disk = sim.disk(&format!("d{child}")).expect("a disk");
            content.push(Some(disk.peek(LABEL_START_BYTES + column.offset, longest)));
        }
        prop_assert!(failed <= parity);
        for (index, at) in row.data_at.iter().enumerate() {
            let column = row.columns[index + row.parity];
            let mut wanted = block[*at..*at + column.length].to_vec();
            wanted.resize(longest, 0);
            if let Some(found) = &content[index + row.parity] {
                prop_assert_eq!(found, &wanted);
            }
            content[index + row.parity] = Some(wanted);
        }
        let whole: Vec<&[u8]> = content[row.parity..]
            .iter()
            .map(|column| column.as_deref().expect("data"))
            .collect();
        for (found, wanted) in content
            .iter()
            .zip(raidz::generate_columns(row.parity, &whole).expect("parity"))
        {
            prop_assert!(found.as_ref().is_none_or(|found| *found == wanted));
        }
    }
    Ok(())
}

/// The two rows of a block follow each other on every child, and a spare's are on two devices.
#[test]
fn a_block_at_the_end_of_a_group_is_read_from_a_spare() {
    let seed = 7394984090969841610;
    simulate(write_to_draid([1, 4, 1, 0, 1], 9, 9, 1, (true, 28), seed)).expect("written");
    for seed in 0..40 {
        simulate(write_to_draid(
            [1, 4, 1, 0, 1],
            9,
            9,
            seed % 2,
            (true, seed),
            seed,
        ))
        .expect("written");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// What is written lies where it is read from, with zeros up to whole stripes, also with
    /// devices gone, and with spares in the place of devices. What is missing is known.
    #[test]
    fn draid_is_written(
        parity in 1u64..=3, data in 1u64..5, spares in 0u64..3, extra in 0u64..4, used in 0u64..3,
        ashift in prop::sample::select(vec![9u64, 12]), sectors in 1usize..40, gone in 0u64..4,
        near_end in any::<bool>(), at in 0u64..64, seed in any::<u64>(),
    ) {
        simulate(write_to_draid(
            [parity, data, spares, extra, used],
            ashift,
            sectors,
            gone,
            (near_end, at),
            seed,
        ))?;
    }

    /// Every block reads with any `parity` devices silent or gone, wherever in its group it is; a
    /// block with one device more is refused.
    #[test]
    fn draid_gives_back_what_at_most_parity_devices_lost(
        parity in 1u64..=3, data in 1u64..5, spares in 0u64..3, extra in 0u64..4,
        ashift in prop::sample::select(vec![9u64, 12]), sectors in 1usize..40,
        near_end in any::<bool>(), at in 0u64..64, seed in any::<u64>(), silent in any::<bool>(),
    ) {
        simulate(async move {
            let children = parity + data + spares + extra;
            let sim = SimWorld::new(seed);
            let config = draid_config(&sim, parity, data, children, spares);
            let tree = open(&sim, vec![config], ashift, true).await;
            let top = tree.tops()[0].clone();
            let stripe = (parity + data) << ashift;
            let group = (parity + data) << 24;
            // Near the end of the first group, blocks go on in the next.
            let length = sectors << ashift;
            let offset = if near_end {
                group - (at % 4 + 1) * stripe
            } else {
                at * stripe
            };
            let room = top.asize_bytes().saturating_sub(offset);
            if top.geometry().expect("dRAID").asize(length as u64) > room {
                return Ok(());
            }
            let block = noise(length, seed);
            put(&sim, &top, offset, &block, &[]);
            let context = IoContext {
                birth: Txg::new(5),
                ..IoContext::default()
            };
            let read = async || {
                tree.read_block(TOP, offset, length, &context, &Same(block.clone()))
                    .await
            };
            prop_assert_eq!(
                read().await.map_err(|failure| failure.cause),
                Ok(Bytes::from(block.clone()))
            );
            let VdevKind::Draid(draid) = top.kind() else {
                unreachable!()
            };
            let rows = draid
                .layout
                .rows(top.ashift(), offset, length)
                .expect("rows");
            // Devices that have something of the first row, in some order.
            let mut used: Vec<usize> = rows[0]
                .columns
                .iter()
                .filter(|column| column.length > 0)
                .map(|column| column.child)
                .collect();
            let turn = seed as usize % used.len();
            used.rotate_left(turn);
            let lost = used.len().min(parity as usize);
            for child in &used[..lost] {
                let disk = sim.disk(&format!("d{child}")).expect("a disk");
                if silent {
                    for column in rows
                        .iter()
                        .flat_map(|row| &row.columns)
                        .filter(|column| column.child == *child)
                    {
                        disk.corrupt(LABEL_START_BYTES + column.offset, column.length);
                    }
                } else {
                    disk.set_gone(true);
                }
            }
            let found = read().await;
            if silent {
                // Wrong data is written anew.
                prop_assert_eq!(
                    found.map_err(|failure| failure.cause),
                    Ok(Bytes::from(block.clone()))
                );
                let count = |child: usize| top.children()[child].counters().checksum_errors;
                for child in 0..children as usize {
                    let rows_hit = rows
                        .iter()
                        .filter(|row| {
                            row.columns
                                .iter()
                                .any(|column| column.child == child && column.length > 0)
                        })
                        .count() as u64;
                    let wanted = if used[..lost].contains(&child) {
                        rows_hit
                    } else {
                        0
                    };
                    // Parity that nobody needed is not looked at.
                    prop_assert!(count(child) <= wanted, "{child}: {}", count(child));
                }
                return Ok(());
            }
            prop_assert_eq!(
                found.map_err(|failure| failure.cause),
                Ok(Bytes::from(block.clone()))
            );
            if let Some(child) = used.get(lost) {
                sim.disk(&format!("d{child}"))
                    .expect("a disk")
                    .set_gone(true);
                prop_assert!(read().await.is_err());
            }
            Ok(())
        })?;
    }

    /// A distributed spare reads what was rebuilt onto it, with `parity` more devices gone.
    #[test]
    fn distributed_spares_stand_in(
        parity in 1u64..=2, data in 1u64..4, two in any::<bool>(), sectors in 1usize..20,
        at in 0u64..5000, seed in any::<u64>(),
    ) {
        simulate(async move {
            let spares = 1 + u64::from(two);
            let children = parity + data + spares + 1;
            let sim = SimWorld::new(seed);
            let config = draid_config(&sim, parity, data, children, spares);
            open(&sim, vec![config.clone()], 9, true).await.close();
            let first = (seed % children) as usize;
            let replaced: Vec<(usize, u64)> = (0..spares)
                .map(|spare| ((first + spare as usize) % children as usize, spare))
                .collect();
            let mut config = config;
            for (child, spare) in &replaced {
                use_spare(&mut config, *child, *spare);
            }
            let tree = open(&sim, vec![config], 9, false).await;
            let top = tree.tops()[0].clone();
            prop_assert_eq!(top.state(), (VdevState::Degraded, VdevAux::None));
            prop_assert_eq!(tree.topology().draid_spares().len() as u64, spares);
            let block = noise(sectors * 512, seed);
            let offset = at * ((parity + data) << 9);
            put(&sim, &top, offset, &block, &replaced);
            let VdevKind::Draid(draid) = top.kind() else {
                unreachable!()
            };
            let rows = draid.layout.rows(9, offset, block.len()).expect("rows");
            let healthy: BTreeSet<usize> = rows[0]
                .columns
                .iter()
                .filter(|column| column.length > 0)
                .map(|column| column.child)
                .filter(|child| replaced.iter().all(|(gone, _)| gone != child))
                .collect();
            let context = IoContext {
                birth: Txg::new(5),
                ..IoContext::default()
            };
            for child in healthy.iter().take(parity as usize) {
                let read = tree
                    .read_block(TOP, offset, block.len(), &context, &Same(block.clone()))
                    .await;
                prop_assert_eq!(
                    read.map_err(|failure| failure.cause),
                    Ok(Bytes::from(block.clone()))
                );
                sim.disk(&format!("d{child}"))
                    .expect("a disk")
                    .set_gone(true);
            }
            // A device that is gone may have had a spare's part of the other row, so only blocks in
            // one row.
            if rows.len() == 1 {
                let read = tree
                    .read_block(TOP, offset, block.len(), &context, &Same(block.clone()))
                    .await;
                prop_assert_eq!(
                    read.map_err(|failure| failure.cause),
                    Ok(Bytes::from(block.clone()))
                );
            }
            Ok(())
        })?;
    }
}

/// Each of a block's two rows has a silently wrong column, on different devices.
#[test]
fn rows_of_one_block_are_wrong_each_in_its_own_way() {
    simulate(async {
        let sim = SimWorld::new(3);
        let config = draid_config(&sim, 1, 2, 6, 1);
        let tree = open(&sim, vec![config], 9, true).await;
        let top = tree.tops()[0].clone();
        let stripe = 3u64 << 9;
        let (offset, length) = ((3 << 24) - stripe, 4 * 512);
        let block = noise(length, 4);
        put(&sim, &top, offset, &block, &[]);
        let VdevKind::Draid(draid) = top.kind() else {
            unreachable!()
        };
        let rows = draid.layout.rows(9, offset, length).expect("rows");
        assert_eq!(rows.len(), 2);
        let first = rows[0].columns[1];
        let second = rows[1].columns[1..]
            .iter()
            .find(|column| column.child != first.child)
            .copied()
            .expect("another child");
        for column in [first, second] {
            sim.disk(&format!("d{}", column.child))
                .expect("a disk")
                .corrupt(LABEL_START_BYTES + column.offset, column.length);
        }
        let context = IoContext::default();
        let read = tree
            .read_block(TOP, offset, length, &context, &Same(block.clone()))
            .await;
        assert_eq!(
            read.map_err(|failure| failure.cause),
            Ok(Bytes::from(block))
        );
    });
}

/// What a device missed while it was away is written when a scrub comes by, zeros included.
#[test]
fn a_device_that_comes_back_gets_what_it_missed() {
    simulate(async {
        let sim = SimWorld::new(3);
        let config = draid_config(&sim, 1, 3, 6, 1);
        let tree = open(&sim, vec![config], 9, true).await;
        let top = tree.tops()[0].clone();
        let VdevKind::Draid(draid) = top.kind() else {
            unreachable!()
        };
        let away = draid.layout.rows(9, 0, 512).expect("rows")[0].columns[2].child;
        let disk = sim.disk(&format!("d{away}")).expect("a disk");
        disk.corrupt(LABEL_START_BYTES, 4 << 20);
        let context = IoContext {
            birth: Txg::new(7),
            ..IoContext::default()
        };
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Error));
        let blocks: Vec<(u64, Vec<u8>)> = (0..30u64)
            .map(|index| {
                (
                    index * 8 * 2048,
                    noise(512 * (1 + index as usize % 13), index),
                )
            })
            .collect();
        for (offset, block) in &blocks {
            tree.write_block(TOP, *offset, Bytes::from(block.clone()), &context)
                .await
                .expect("written");
        }
        disk.clear_faults();
        let leaf = tree.leaves()[away].leaf().expect("a leaf").clone();
        assert!(leaf.dirty_times().is_missing(Txg::new(7)));
        tree.reopen(false).await.unwrap();
        let scrub = IoContext {
            scan: ScanRead::Scrub,
            ..context
        };
        for (offset, block) in &blocks {
            let read = tree
                .read_block(TOP, *offset, block.len(), &scrub, &Same(block.clone()))
                .await;
            assert_eq!(read.expect("parity makes up for it"), *block);
            for row in draid.layout.rows(9, *offset, block.len()).expect("rows") {
                let longest = row.columns[0].length;
                for (index, at) in row.data_at.iter().enumerate() {
                    let column = row.columns[index + row.parity];
                    if column.child == away {
                        let mut wanted = block[*at..*at + column.length].to_vec();
                        wanted.resize(longest, 0);
                        let found = disk.peek(LABEL_START_BYTES + column.offset, longest);
                        assert_eq!(found, wanted);
                    }
                }
            }
        }
    });
}

/// Opens draid2 of six devices, where the spare stands in for the second one.
async fn with_spare_in_use(sim: &SimWorld) -> Arc<VdevTree> {
    let mut config = draid_config(sim, 2, 2, 6, 1);
    open(sim, vec![config.clone()], 9, true).await.close();
    use_spare(&mut config, 1, 0);
    VdevTree::open(sim.world(), &root(vec![config], 9), OpenOptions::default())
        .await
        .expect("opens")
}

/// A spare that did not get a write knows so.
#[test]
fn a_spare_that_misses_a_write_says_so() {
    simulate(async {
        let sim = SimWorld::new(3);
        let tree = with_spare_in_use(&sim).await;
        let top = tree.tops()[0].clone();
        let VdevKind::Draid(draid) = top.kind() else {
            unreachable!()
        };
        assert!(!top.lacks_data());
        let context = IoContext {
            birth: Txg::new(7),
            ..IoContext::default()
        };
        // A block that the device which is gone has a part of.
        let offset = (0..100u64)
            .map(|at| at * (4 << 9))
            .find(|offset| {
                let rows = draid.layout.rows(9, *offset, 1024).expect("rows");
                rows[0].columns.iter().any(|column| column.child == 1)
            })
            .expect("some block is on every device");
        let rows = draid.layout.rows(9, offset, 1024).expect("rows");
        let at = rows[0].columns[0].offset;
        let behind = draid.layout.spare_child(0, at).expect("a spare");
        let disk = sim.disk(&format!("d{behind}")).expect("a disk");
        disk.inject(Fault::new(SimOp::Write, FaultEffect::Error));
        let block = noise(1024, 5);
        tree.write_block(TOP, offset, Bytes::from(block.clone()), &context)
            .await
            .expect("parity makes up for it");
        let spare = tree.topology().draid_spares()[0].clone();
        assert!(
            spare
                .kind()
                .draid_spare()
                .expect("a spare")
                .missing()
                .contains(7, 1)
        );
        assert!(spare.is_missing(at, Txg::new(7)));
        assert!(!spare.is_missing(at, Txg::new(6)));
        let read = tree
            .read_block(TOP, offset, 1024, &context, &Same(block.clone()))
            .await;
        assert_eq!(read.expect("right"), block);
    });
}

/// What a row of a block has in each column, with the zeros that fill it up.
fn contents(row: &Columns, block: &[u8]) -> Vec<Vec<u8>> {
    let data: Vec<&[u8]> = row
        .data_at
        .iter()
        .zip(&row.columns[row.parity..])
        .map(|(at, column)| &block[*at..at + column.length])
        .collect();
    let parity = raidz::generate_columns(row.parity, &data).expect("parity");
    let longest = row.columns[0].length;
    let mut out = parity;
    out.extend(data.iter().map(|data| data.to_vec()));
    out.iter_mut().for_each(|column| column.resize(longest, 0));
    out
}

/// Which blocks a distributed spare needs is asked about their own columns: at the block's offset
/// the spare may stand on itself, and on other devices than those that have the block.
#[test]
fn a_block_needs_a_resilver_where_the_spare_has_a_column_of_it() {
    simulate(async {
        let sim = SimWorld::new(3);
        let tree = with_spare_in_use(&sim).await;
        let top = tree.tops()[0].clone();
        let VdevKind::Draid(draid) = top.kind() else {
            unreachable!()
        };
        let spare = tree.topology().draid_spares()[0].clone();
        let own = spare.kind().draid_spare().expect("a spare");
        own.set_missing(RangeSet::from_iter([(7, 1)]));
        // On slices of all devices' turns, first and not first in their groups.
        let offsets = (0..600u64).map(|at| at * 1_200_000 / 2048 * 2048);
        let (mut needed, mut count, mut on_itself) = (0, 0, 0);
        for offset in offsets.chain([60 << 20, 64 << 20]) {
            let length = 512 * (1 + offset as usize / 2048 % 5);
            let rows = draid.layout.rows(9, offset, length).expect("rows");
            let mut columns = rows.iter().flat_map(|row| &row.columns);
            let is_on_spare = columns.any(|column| column.child == 1);
            assert_eq!(
                top.needs_resilver(offset, length - 100, Txg::new(7)),
                is_on_spare,
                "{offset:#x}"
            );
            assert!(!top.needs_resilver(offset, length, Txg::new(6)));
            needed += usize::from(is_on_spare);
            on_itself += usize::from(draid.layout.spare_child(0, offset) == Some(1));
            count += 1;
        }
        assert!(0 < needed && needed < count, "{needed} of {count}");
        assert!(on_itself > 0);
        // Where no block can be.
        assert!(top.needs_resilver(512, 512, Txg::new(7)));
        assert!(top.needs_resilver(0, 0, Txg::new(7)));
    });
}

/// Goal: a resilver gives a distributed spare all that it lacks, zeros included, whether or not the
/// device that it stands in for is still there, and reads no other blocks. Method: blocks from
/// before the spare came, and noise in its places.
#[test]
fn a_resilver_gives_a_distributed_spare_what_it_lacks() {
    for is_there in [false, true] {
        simulate(async {
            let sim = SimWorld::new(4);
            let mut config = draid_config(&sim, 2, 2, 6, 1);
            let tree = open(&sim, vec![config.clone()], 9, true).await;
            let context = IoContext {
                birth: Txg::new(7),
                ..IoContext::default()
            };
            let blocks: Vec<(u64, Vec<u8>)> = (0..200u64)
                .map(|at| {
                    let block = noise(512 * (1 + at as usize % 5), at);
                    (at * 3_600_000 / 2048 * 2048, block)
                })
                .collect();
            for (offset, block) in &blocks {
                let data = Bytes::from(block.clone());
                let written = tree.write_block(TOP, *offset, data, &context).await;
                written.expect("written");
            }
            tree.close();
            match is_there {
                true => put_spare(&mut config, 1, 0, None),
                false => use_spare(&mut config, 1, 0),
            }
            let config = root(vec![config], 9);
            let tree = VdevTree::open(sim.world(), &config, OpenOptions::default()).await;
            let tree = tree.expect("opens");
            let top = tree.tops()[0].clone();
            let VdevKind::Draid(draid) = top.kind() else {
                unreachable!()
            };
            let spare = tree.topology().draid_spares()[0].clone();
            let own = spare.kind().draid_spare().expect("a spare");
            own.set_missing(RangeSet::from_iter([(4, 10)]));
            // What the spare is to have where.
            let mut wanted = Vec::new();
            for (offset, block) in &blocks {
                for row in draid.layout.rows(9, *offset, block.len()).expect("rows") {
                    for (column, content) in row.columns.iter().zip(contents(&row, block)) {
                        if column.child == 1 {
                            let behind = draid.layout.spare_child(0, column.offset);
                            let behind = behind.expect("a spare");
                            let disk = sim.disk(&format!("d{behind}")).expect("a disk");
                            let at = LABEL_START_BYTES + column.offset;
                            disk.corrupt(at, content.len());
                            wanted.push((disk, at, content));
                        }
                    }
                }
            }
            let resilver = IoContext {
                scan: ScanRead::Resilver,
                priority: Priority::Scrub,
                ..context
            };
            let mut skipped = 0;
            for (offset, block) in &blocks {
                if !top.needs_resilver(*offset, block.len(), resilver.birth) {
                    skipped += 1;
                    continue;
                }
                let verify = Same(block.clone());
                let read = tree.read_block(TOP, *offset, block.len(), &resilver, &verify);
                assert_eq!(read.await.expect("parity makes up for it"), *block);
            }
            assert!(0 < skipped && skipped < blocks.len(), "{skipped}");
            for (disk, at, content) in &wanted {
                let found = disk.peek(*at, content.len());
                assert!(found == *content, "{is_there}: {} at {at:#x}", disk.name());
            }
            // Now two others may go.
            own.set_missing(RangeSet::new());
            for away in [0, 4] {
                let vdev = tree.find(Guid::new(11 + away)).expect("a device");
                let leaf = vdev.leaf().expect("a leaf");
                leaf.set_state(VdevState::CantOpen, VdevAux::OpenFailed);
            }
            for (offset, block) in &blocks {
                let verify = Same(block.clone());
                let read = tree.read_block(TOP, *offset, block.len(), &context, &verify);
                assert_eq!(read.await.expect("parity and the spare"), *block);
            }
        });
    }
}

/// Whether a block may have been written where it is not found is what its own columns say: it may
/// if so many of them are away that a block there could not be read. Rows where the spare falls to
/// the device that it replaces hold no column of that device, and are not asked about.
#[test]
fn what_a_block_may_lack_is_what_would_make_it_unreadable() {
    simulate(async {
        let sim = SimWorld::new(3);
        let tree = with_spare_in_use(&sim).await;
        let top = tree.tops()[0].clone();
        let context = IoContext {
            birth: Txg::new(7),
            ..IoContext::default()
        };
        // On rows of many permutations, of one sector to more than a stripe.
        let blocks: Vec<(u64, Vec<u8>)> = (0..600u64)
            .map(|at| {
                // Also such as do not fill their last sector.
                let length = 512 * (1 + at as usize % 5) - at as usize % 2 * 100;
                (at * 1_200_000 / 2048 * 2048, noise(length, at))
            })
            .collect();
        for (offset, block) in &blocks {
            tree.write_block(TOP, *offset, Bytes::from(block.clone()), &context)
                .await
                .expect("written");
        }
        let mut lacking = Vec::new();
        for away in [None, Some(3), Some(4), Some(5), Some(0)] {
            if let Some(away) = away {
                let vdev = tree.find(Guid::new(11 + away)).expect("a device");
                let leaf = vdev.leaf().expect("a leaf");
                leaf.set_state(VdevState::CantOpen, VdevAux::OpenFailed);
            }
            let mut count = 0;
            for (offset, block) in &blocks {
                let read = tree
                    .read_block(TOP, *offset, block.len(), &context, &Same(block.clone()))
                    .await;
                let may_lack = top.may_lack_block(*offset, block.len(), context.birth);
                assert_eq!(may_lack, read.is_err(), "{away:?}, {offset}");
                count += usize::from(may_lack);
            }
            lacking.push(count);
        }
        assert_eq!(lacking[..3], [0, 0, 0], "parity and the spare");
        assert!(0 < lacking[3] && lacking[3] < lacking[4], "{lacking:?}");
    });
}

#[test]
fn sizes_are_rounded_to_what_draid_allocates() {
    simulate(async {
        let sim = SimWorld::new(3);
        let draid = draid_config(&sim, 1, 3, 6, 1);
        let tree = open(&sim, vec![draid.clone()], 12, true).await;
        let units = tree.topology().alloc_units();
        assert_eq!((units.min_bytes, units.step_bytes), (12_288, 12_288));
        assert_eq!(units.round_up(1), 12_288);
        assert_eq!(units.round_up(12_289), 24_576);
        tree.close();
        let mirror = group(&sim, "mirror", 0, "m", 2, 50);
        let tree = open(&sim, vec![draid, mirror], 12, true).await;
        let units = tree.topology().alloc_units();
        assert_eq!((units.min_bytes, units.step_bytes), (4096, 4096));
    });
}

/// Spares that stand for each other, or of another vdev, would send a read in circles.
#[test]
fn spares_that_cannot_be_are_not_used() {
    simulate(async {
        let sim = SimWorld::new(3);
        let mut config = draid_config(&sim, 1, 2, 6, 2);
        open(&sim, vec![config.clone()], 9, true).await.close();
        use_spare(&mut config, 1, 0);
        use_spare(&mut config, 2, 0);
        use_spare(&mut config, 3, 7);
        let tree = open(&sim, vec![config], 9, false).await;
        let states: Vec<VdevState> = tree
            .topology()
            .draid_spares()
            .iter()
            .map(|spare| spare.state().0)
            .collect();
        assert_eq!(
            states,
            [VdevState::Healthy, VdevState::CantOpen, VdevState::CantOpen]
        );
        assert_eq!(tree.tops()[0].state().0, VdevState::CantOpen);
    });
}

/// What a spare was not rebuilt with is not taken from it, and counts as nobody's error.
#[test]
fn a_spare_that_is_being_rebuilt_is_not_asked() {
    simulate(async {
        let sim = SimWorld::new(3);
        let mut config = draid_config(&sim, 1, 2, 6, 1);
        open(&sim, vec![config.clone()], 9, true).await.close();
        use_spare(&mut config, 1, 0);
        let tree = open(&sim, vec![config], 9, false).await;
        let top = tree.tops()[0].clone();
        let spare = tree.topology().draid_spares()[0].clone();
        let missing = RangeSet::from_iter([(1, 100)]);
        spare
            .kind()
            .draid_spare()
            .expect("a spare")
            .set_missing(missing);
        let context = IoContext {
            birth: Txg::new(7),
            ..IoContext::default()
        };
        for number in 0..20u64 {
            let offset = number * (3 << 9);
            let block = noise(1024, number);
            put(&sim, &top, offset, &block, &[]);
            let read = tree
                .read_block(TOP, offset, 1024, &context, &Same(block.clone()))
                .await;
            assert_eq!(read.expect("from parity"), block);
        }
        assert_eq!(spare.counters().checksum_errors, 0);
        assert!(
            tree.leaves()
                .iter()
                .all(|leaf| leaf.counters().checksum_errors == 0)
        );
    });
}

#[test]
fn blocks_of_removed_vdevs_are_put_together_from_any_copies() {
    simulate(async {
        let sim = SimWorld::new(5);
        let tree = removed(&sim).await;
        let (first, second) = (VdevId::new(1), VdevId::new(2));
        // Vdev 1 was moved to 0 and 2, and 2 then to 0: a block of 4 sectors is in three places.
        let map = vec![entry(0, 0, 0x10000, 1024), entry(1024, 2, 0x2000, 1024)];
        tree.topology()
            .set_indirect_map(first, IndirectMap::new(map, births()).expect("a map"))
            .expect("set");
        let block = noise(2048, 9);
        let context = IoContext {
            birth: Txg::new(7),
            ..IoContext::default()
        };
        let verify = Same(block.clone());
        // Not before what it leads to is known.
        assert!(
            tree.read_block(first, 0, 2048, &context, &verify)
                .await
                .is_err()
        );
        let map = vec![
            entry(0x2000, 0, 0x30000, 512),
            entry(0x2200, 0, 0x20000, 512),
        ];
        tree.topology()
            .set_indirect_map(second, IndirectMap::new(map, births()).expect("a map"))
            .expect("set");
        let places = [
            (0x10000, 0..1024),
            (0x30000, 1024..1536),
            (0x20000, 1536..2048),
        ];
        for (place, part) in &places {
            for disk in ["m0", "m1"] {
                let disk = sim.disk(disk).expect("a disk");
                disk.poke(LABEL_START_BYTES + place, &block[part.clone()]);
            }
        }
        let read = tree.read_block(first, 0, 2048, &context, &verify).await;
        assert_eq!(read.expect("right"), block);
        // A block smaller than a piece, and one in the middle.
        let part = Same(block[512..1536].to_vec());
        let read = tree.read_block(first, 512, 1024, &context, &part).await;
        assert_eq!(read.expect("right"), block[512..1536]);
        // Every piece is wrong on one disk or the other.
        for (disk, place) in [("m0", 0x10000), ("m1", 0x30000), ("m0", 0x20000)] {
            let disk = sim.disk(disk).expect("a disk");
            disk.corrupt(LABEL_START_BYTES + place, 512);
        }
        let scrub = IoContext {
            scan: ScanRead::Scrub,
            ..context
        };
        let read = tree.read_block(first, 0, 2048, &scrub, &verify).await;
        assert_eq!(read.expect("a combination is right"), block);
        let errors = |guid| {
            tree.find(Guid::new(guid))
                .expect("a disk")
                .counters()
                .checksum_errors
        };
        assert_eq!((errors(11), errors(12)), (2, 1));
        // What is nowhere is an error.
        assert!(
            tree.read_block(first, 2048, 512, &context, &verify)
                .await
                .is_err()
        );
    });
}

/// Of more pieces than all combinations can be tried of, one device may have all wrong.
#[test]
fn a_device_may_be_wrong_in_many_pieces_of_a_block() {
    simulate(async {
        let sim = SimWorld::new(5);
        let tree = removed(&sim).await;
        let first = VdevId::new(1);
        let map = (0u64..20).map(|piece| entry(piece * 512, 0, 0x10000 + piece * 4096, 512));
        let map = IndirectMap::new(map.collect(), births()).expect("a map");
        tree.topology().set_indirect_map(first, map).expect("set");
        let block = noise(20 * 512, 9);
        for (piece, part) in block.chunks(512).enumerate() {
            let at = LABEL_START_BYTES + 0x10000 + piece as u64 * 4096;
            sim.disk("m1").expect("a disk").poke(at, part);
        }
        let context = IoContext {
            birth: Txg::new(7),
            scan: ScanRead::Scrub,
            ..IoContext::default()
        };
        let verify = Same(block.clone());
        let read = tree.read_block(first, 0, 20 * 512, &context, &verify).await;
        assert_eq!(read.expect("one device is right"), block);
    });
}

/// A copy on a removed vdev that is wrong is written anew from one that is right.
#[test]
fn bad_copies_on_removed_vdevs_are_repaired() {
    simulate(async {
        let sim = SimWorld::new(5);
        let tree = removed(&sim).await;
        let map = vec![
            entry(0, 0, 0x10000, 1024),
            entry(1024, 0, 0x30000, 1024),
            entry(2048, 0, 0x50000, 2048),
        ];
        tree.topology()
            .set_indirect_map(
                VdevId::new(1),
                IndirectMap::new(map, births()).expect("a map"),
            )
            .expect("set");
        let block = noise(2000, 3);
        let context = IoContext {
            birth: Txg::new(7),
            ..IoContext::default()
        };
        tree.write_block(VdevId::new(1), 0, Bytes::from(block.clone()), &context)
            .await
            .expect("written");
        for disk in ["m0", "m1"] {
            let disk = sim.disk(disk).expect("a disk");
            assert_eq!(disk.peek(LABEL_START_BYTES + 0x10000, 1024), block[..1024]);
            assert_eq!(disk.peek(LABEL_START_BYTES + 0x30000, 976), block[1024..]);
        }
        let verify = Same(block.clone());
        let read = tree
            .read_block(VdevId::new(1), 0, 2000, &context, &verify)
            .await;
        assert_eq!(read.expect("right"), block);
        let nowhere = tree.write_block(VdevId::new(1), 1 << 20, Bytes::from(block), &context);
        assert!(nowhere.await.is_err());
    });
}

/// What a failed read of a block on a removed vdev waits for: any device that stopped working.
#[test]
fn a_device_may_bring_back_blocks_of_removed_vdevs() {
    simulate(async {
        let sim = SimWorld::new(5);
        let tree = removed(&sim).await;
        let mut block = BlockPointer::HOLE;
        let dva = Dva::new(VdevId::new(1), 0, 1024, false).expect("a DVA");
        block.set_dva(0, Some(dva));
        block.set_birth(Txg::new(7), Txg::new(7));
        assert!(!tree.topology().may_come_back(&block));
        let disk = tree.find(Guid::new(11)).expect("a disk");
        disk.close();
        assert!(tree.topology().may_come_back(&block));
    });
}

#[test]
fn mappings_in_circles_end() {
    simulate(async {
        let sim = SimWorld::new(5);
        let tree = removed(&sim).await;
        for (from, to) in [(1u32, 2u32), (2, 1)] {
            let map = vec![entry(0, to, 0, 4096)];
            tree.topology()
                .set_indirect_map(
                    VdevId::new(from),
                    IndirectMap::new(map, births()).expect("a map"),
                )
                .expect("set");
        }
        let context = IoContext::default();
        let failure = tree
            .read_block(VdevId::new(1), 0, 512, &context, &Same(vec![0; 512]))
            .await
            .expect_err("nowhere");
        assert!(failure.cause.contains("circles"), "{}", failure.cause);
    });
}

#[test]
fn metaslabs_of_draid_are_whole_stripes() {
    // Those of a pool of 5 disks of 128 MiB (draid1:2d:5c:1s, ashift 12): zdb -m.
    let spans: Vec<_> = (0..9)
        .map(|index| metaslab_span(index, 25, 12_288))
        .collect();
    let starts: Vec<u64> = spans.iter().map(|span| span.start).collect();
    assert_eq!(starts[..4], [0, 0x200_1000, 0x400_2000, 0x600_0000]);
    let total: u64 = spans.iter().map(|span| span.end - span.start).sum();
    assert_eq!(total, 301_916_160);
    assert_eq!(metaslab_span(3, 25, 0), 3 << 25..4 << 25);
    // Nonsense from a disk.
    let span = metaslab_span(1, 9, 1 << 24);
    assert!(span.is_empty());
}
