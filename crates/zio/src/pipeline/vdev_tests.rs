//! Tests of what the pipeline does about vdevs: log blocks that devices lack, space of removed
//! ones.

use device::WriteBuffer;
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use format::{
    BlockPointer, Dva, Guid, LABEL_START_BYTES, NvList, ObjectType, RegularPointer, Txg, VdevId,
};
use vdev::testing::{births, entry, noise, removed, root};
use vdev::{IndirectMap, OpenOptions, RangeSet, VdevTree};

use crate::alloc::settled;
use crate::pipeline::{CacheUse, LogPlaces, ReadContext, WritePolicy};
use crate::testing::{TestPool, group, leaf, simulate};

/// A block of an intent log without records.
fn log_block() -> WriteBuffer {
    let mut block = WriteBuffer::with_capacity(4096);
    block.resize(4096);
    // zc_nused, behind a word and the next block's pointer.
    block.as_mut()[136..144].copy_from_slice(&192u64.to_le_bytes());
    block
}

/// A block on a removed vdev, at two places there, in three pieces each.
fn on_removed(offsets: [u64; 2], gang: bool) -> BlockPointer {
    let place = |offset| Dva::new(VdevId::new(1), offset, 2048, gang).expect("a place");
    BlockPointer::regular(&RegularPointer {
        dvas: [Some(place(offsets[0])), Some(place(offsets[1])), None],
        lsize_bytes: 2048,
        psize_bytes: 2048,
        compression: format::Compression::Off,
        checksum_kind: format::Checksum::Fletcher4,
        object_type: format::ObjectType::PLAIN_FILE_CONTENTS,
        level: 0,
        dedup: false,
        uses_crypt: false,
        rewritten: false,
        endian: format::Endian::Little,
        fill: 1,
        logical_birth: Txg::new(7),
        physical_birth: Txg::new(7),
        checksum: [1, 2, 3, 4],
        crypt: None,
    })
    .expect("a pointer")
}

/// A copy that no device gave is written anew like one that was wrong.
#[test]
fn a_copy_that_a_device_did_not_give_is_written_anew() {
    simulate(async {
        let sim = SimWorld::new(5);
        let tops = vec![leaf(&sim, "a", 10), leaf(&sim, "b", 20)];
        let pool = TestPool::create(sim, tops, 12).await;
        let data = noise(8192, 1);
        let two = WritePolicy {
            copies: 2,
            cache: false,
            ..WritePolicy::data(ObjectType::PLAIN_FILE_CONTENTS)
        };
        let bp = pool.pipeline.write(Txg::new(5), data.clone().into(), &two);
        let bp = bp.await.expect("written");
        let dva = bp.dva(0).expect("a copy");
        let disk = pool.disk(["a", "b"][dva.vdev().get() as usize]);
        let at = dva.offset_bytes() + LABEL_START_BYTES;
        disk.corrupt(at, 8192);
        let fault = Fault::new(SimOp::Read, FaultEffect::Error);
        disk.inject(fault.within(at..at + 8192));
        let direct = ReadContext {
            cache: CacheUse::Bypass,
            ..ReadContext::default()
        };
        let read = pool.pipeline.read(&bp, &direct).await;
        assert!(read.expect("the other copy") == data);
        assert!(disk.peek(at, 8192) == data);
    });
}

#[test]
fn what_the_pool_went_on_without_is_not_durable() {
    simulate(async {
        let sim = SimWorld::new(8);
        let main = leaf(&sim, "main", 10);
        let mut log = leaf(&sim, "log", 11);
        log.set("is_log", 1u64);
        let pool = TestPool::create(sim, vec![main, log], 12).await;
        let pipeline = &pool.pipeline;
        let block = pipeline
            .log_blocks()
            .allocate(Txg::new(5), 4096, None, LogPlaces::ANYWHERE)
            .await
            .expect("allocated");
        assert_eq!(block.dva(0).expect("a place").vdev(), VdevId::new(1));
        pipeline
            .log_blocks()
            .write(&block, log_block(), false)
            .await
            .expect("written");
        pool.disk("log").set_gone(true);
        // The sync loop does without log devices.
        pipeline.flush().await.expect("flushed");
        pipeline
            .log_blocks()
            .flush(&[block])
            .await
            .expect_err("it is gone with the device");
    });
}

/// As in 2.4: log vdevs, then special ones as long as they have room to spare, then the others.
#[test]
fn logs_prefer_special_vdevs_to_data() {
    simulate(async {
        let sim = SimWorld::new(10);
        let main = leaf(&sim, "main", 10);
        let mut special = leaf(&sim, "special", 11);
        special.set("alloc_bias", "special");
        let pool = TestPool::create(sim, vec![main, special], 12).await;
        let pipeline = &pool.pipeline;
        let allocate = async |places| {
            let logs = pipeline.log_blocks();
            let block = logs.allocate(Txg::new(5), 128 << 10, None, places);
            let block = block.await.expect("allocated");
            block.dva(0).expect("a place").vdev()
        };
        let (main, special) = (VdevId::new(0), VdevId::new(1));
        assert_eq!(allocate(LogPlaces::ANYWHERE).await, special);
        let throughput = LogPlaces {
            on_log_devices: false,
            among_data: true,
        };
        assert_eq!(allocate(throughput).await, main);
        // A quarter is left to metadata.
        let size = pipeline.space().special_size_bytes;
        let mut taken = 0;
        while allocate(LogPlaces::ANYWHERE).await == special {
            taken += 128 << 10;
            pipeline.sync_done(Txg::new(5));
            assert!(taken < size, "{taken} of {size}");
        }
        assert!(taken > size / 2, "{taken} of {size}");
    });
}

#[test]
fn what_one_device_lacks_of_a_log_is_on_record_first() {
    simulate(async {
        let sim = SimWorld::new(9);
        let main = leaf(&sim, "main", 10);
        let mut log = group(&sim, "mirror", 0, "m", 2, 20);
        log.set("is_log", 1u64);
        let pool = TestPool::create(sim, vec![main, log], 12).await;
        let (pipeline, tree) = (&pool.pipeline, pool.pipeline.tree());
        let allocate = async |txg| {
            pipeline
                .log_blocks()
                .allocate(Txg::new(txg), 4096, None, LogPlaces::ANYWHERE)
                .await
                .expect("allocated")
        };
        for (flush, late) in [(true, 0), (false, 0), (true, 2)] {
            let m0 = tree.find(Guid::new(21)).expect("m0");
            m0.leaf()
                .expect("a leaf")
                .dirty_times()
                .set_missing(RangeSet::default());
            let on_record = m0.recorded().expect("a device");
            on_record.set(RangeSet::default(), Txg::new(4));
            let block = allocate(5 + late).await;
            let write = async || {
                pipeline
                    .log_blocks()
                    .write(&block, log_block(), flush)
                    .await?;
                match flush {
                    true => Ok(()),
                    false => pipeline.log_blocks().flush(&[block]).await,
                }
            };
            write().await.expect("both have it");
            // It is written once more, so one failure changes nothing.
            let fault = || {
                Fault::new(SimOp::Write, FaultEffect::Error)
                    .within(LABEL_START_BYTES..LABEL_START_BYTES + (32 << 20))
            };
            pool.disk("m0").inject(fault().times(1));
            write().await.expect("both have it");
            pool.disk("m0").inject(fault().times(2));
            write()
                .await
                .expect_err("a crash would let it be forgotten");
            assert!(m0.is_missing(0, Txg::new(5 + late)));
            write().await.expect_err("and it still would");
            // On record: for this txg, or for the last one of a device that is away.
            let recorded = if late == 0 { 5 } else { 6 };
            on_record.set(
                RangeSet::from_iter([(5, 1), (recorded, 1)]),
                Txg::new(recorded),
            );
            write().await.expect("on record");
            // Alone it does not tell that a block was never written.
            assert!(tree.topology().tells_of(&block));
            tree.take_out(Guid::new(22), false, false)
                .expect("m0 is left");
            assert!(!tree.topology().tells_of(&block));
            tree.bring_back(Guid::new(22)).await.expect("known");
            tree.reopen(false).await.expect("reopened");
        }
    });
}

/// What is freed on a removed vdev is free where it is now, and obsolete where it was.
#[test]
fn blocks_of_removed_vdevs_are_freed_where_they_are() {
    simulate(async {
        let sim = SimWorld::new(5);
        let tree = removed(&sim).await;
        let (first, second) = (VdevId::new(1), VdevId::new(2));
        let map = vec![
            entry(0, 0, 0x10000, 1024),
            entry(1024, 2, 0x2000, 1024),
            entry(4096, 0, 0x80000, 8192),
        ];
        tree.topology()
            .set_indirect_map(first, IndirectMap::new(map, births()).expect("a map"))
            .expect("set");
        let map = vec![
            entry(0x2000, 0, 0x30000, 512),
            entry(0x2200, 0, 0x20000, 512),
        ];
        tree.topology()
            .set_indirect_map(second, IndirectMap::new(map, births()).expect("a map"))
            .expect("set");
        let pool = TestPool::over(sim, tree);
        let pipeline = &pool.pipeline;
        let block = on_removed([0, 4608], false);
        let now = [
            (0x10000, 1024),
            (0x20000, 512),
            (0x30000, 512),
            (0x80200, 2048),
        ];
        pipeline
            .frees()
            .claim(Txg::new(8), &block)
            .await
            .expect("claimed");
        let changes = pipeline
            .frees()
            .take_changes(Txg::new(8))
            .await
            .expect("changes");
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].allocated, RangeSet::from_iter(now));
        assert!(pipeline.dvas().take_obsolete(Txg::new(8)).is_empty());
        pipeline.sync_done(Txg::new(8));
        assert!(
            pipeline.frees().claim(Txg::new(9), &block).await.is_err(),
            "twice"
        );

        pipeline.free(Txg::new(9), &block);
        // Another one in a later txg.
        let changes = pipeline
            .frees()
            .take_changes(Txg::new(9))
            .await
            .expect("changes");
        assert_eq!(changes[0].vdev, VdevId::new(0));
        assert_eq!(changes[0].freed, RangeSet::from_iter(now));
        let obsolete = pipeline.dvas().take_obsolete(Txg::new(9));
        let wanted = vec![
            (first, RangeSet::from_iter([(0, 2048), (4608, 2048)])),
            (second, RangeSet::from_iter([(0x2000, 1024)])),
        ];
        assert_eq!(obsolete, wanted);
        assert!(pipeline.dvas().take_obsolete(Txg::new(9)).is_empty());
        // What is free is not obsolete once more.
        pipeline.free(Txg::new(9), &block);
        assert!(pipeline.dvas().take_obsolete(Txg::new(9)).is_empty());
        // Nobody knows where this is.
        pipeline.free(Txg::new(9), &on_removed([1 << 20, 2 << 20], false));
        assert!(pipeline.dvas().take_obsolete(Txg::new(9)).is_empty());
    });
}

/// Goal: what is healed on a vdev that is being removed is healed in its copy, and is not taken for
/// copied where it was read before. Method: a block with a place on each of two vdevs; one is wrong
/// where it is, and in its copy.
#[test]
fn what_is_healed_on_a_vdev_that_is_being_removed_is_healed_in_its_copy() {
    simulate(async {
        let sim = SimWorld::new(5);
        let tops = vec![leaf(&sim, "a", 10), leaf(&sim, "b", 20)];
        let pool = TestPool::create(sim, tops, 12).await;
        let data = noise(8192, 1);
        let two = WritePolicy {
            copies: 2,
            cache: false,
            compression: format::Compression::Off,
            ..WritePolicy::data(ObjectType::PLAIN_FILE_CONTENTS)
        };
        let bp = pool.pipeline.write(Txg::new(5), data.clone().into(), &two);
        let bp = bp.await.expect("written");
        let dva = bp.dva(0).expect("a copy");
        let (from, offset) = (dva.vdev(), dva.offset_bytes());
        let to = VdevId::new(1 - from.get());
        let dvas = pool.pipeline.dvas();
        dvas.begin_removal(from, IndirectMap::default());
        let entries = [entry(offset, to.get(), 32 << 20, 8192)];
        let extended = dvas.with_removal(|map| map.extend(&entries, Txg::new(9)));
        extended.expect("a removal").expect("in order");
        let disk = |vdev: VdevId| pool.disk(["a", "b"][vdev.get() as usize]);
        let (at, copy) = (offset + LABEL_START_BYTES, (32 << 20) + LABEL_START_BYTES);
        disk(from).corrupt(at, 8192);
        dvas.begin_copies();
        let direct = ReadContext {
            cache: CacheUse::Bypass,
            ..ReadContext::default()
        };
        let read = pool.pipeline.read(&bp, &direct).await;
        assert!(read.expect("the other copy") == data);
        assert!(disk(from).peek(at, 8192) == data);
        assert!(disk(to).peek(copy, 8192) == data);
        let is_healed = || dvas.with_copies(|_, healed| healed.overlaps(offset, 1));
        assert_eq!(is_healed(), Some(true));
        dvas.begin_copies();
        assert_eq!(is_healed(), Some(false));
        assert!(!dvas.has_spoilt_copies());
    });
}

/// Goal: each part of what is freed of a vdev that is being removed is freed once, where it is and
/// where its copy is. Method: blocks behind, across and before the end of the mapping, of a vdev
/// and of one that was removed to it earlier.
#[test]
fn frees_while_a_vdev_is_removed_go_by_the_mapping() {
    simulate(async {
        let sim = SimWorld::new(6);
        let mut gone = NvList::new();
        gone.set("type", "indirect").set("guid", 30u64);
        gone.set("asize", 1u64 << 24);
        let tops = vec![leaf(&sim, "a", 10), leaf(&sim, "b", 20), gone];
        let options = OpenOptions {
            create: true,
            ..OpenOptions::default()
        };
        let config = root(tops, 9);
        let tree = VdevTree::open(sim.world(), &config, options);
        let tree = tree.await.expect("opens");
        let [from, to, earlier] = [0, 1, 2].map(VdevId::new);
        // All of the earlier one is at 1 MiB of the one that goes now.
        let map = IndirectMap::new(vec![entry(0, 0, 1 << 20, 8192)], births());
        tree.topology()
            .set_indirect_map(earlier, map.expect("a map"))
            .expect("set");
        let pool = TestPool::over(sim, tree);
        let pipeline = &pool.pipeline;
        let mib = 1u64 << 20;
        let txg = Txg::new(8);
        let places = [
            (from, 0, 4096),
            (from, mib, 8192),
            (from, 2 * mib, 4096),
            (to, 8 * mib, 4096 + 2048),
        ];
        for (vdev, offset, length) in places {
            let place = Dva::new(vdev, offset, length, false).expect("a place");
            let claimed = pipeline.allocator().claim(txg, &place).await;
            claimed.expect("free");
        }
        let take = async |txg| {
            let changes = pipeline.frees().take_changes(txg).await.expect("changes");
            let freed = changes
                .into_iter()
                .map(|change| (change.vdev, change.freed));
            let mut freed: Vec<_> = freed.collect();
            freed.sort_by_key(|(vdev, _)| *vdev);
            pipeline.sync_done(txg);
            freed
        };
        take(txg).await;
        pipeline.dvas().begin_removal(from, IndirectMap::default());
        // The first 4 KiB are copied, and 2 KiB of what the earlier one has.
        let entries = [
            entry(0, 1, 8 * mib, 4096),
            entry(mib, 1, 8 * mib + 4096, 2048),
        ];
        let extended = pipeline
            .dvas()
            .with_removal(|map| map.extend(&entries, txg));
        extended.expect("a removal").expect("in order");
        let txg = Txg::new(9);
        let on = |vdev, offset, length| {
            let place = Dva::new(vdev, offset, length, false).expect("a place");
            let mut block = on_removed([0, 0], false);
            block.set_dva(0, Some(place));
            block.set_dva(1, None);
            block
        };
        pipeline.free(txg, &on(from, 0, 4096));
        pipeline.free(txg, &on(earlier, 0, 4096));
        pipeline.free(txg, &on(from, 2 * mib, 4096));
        let wanted = vec![
            (
                from,
                RangeSet::from_iter([(0, 4096), (mib, 4096), (2 * mib, 4096)]),
            ),
            (to, RangeSet::from_iter([(8 * mib, 4096 + 2048)])),
        ];
        assert_eq!(take(txg).await, wanted);
        let obsolete = vec![
            (from, RangeSet::from_iter([(0, 4096), (mib, 2048)])),
            (earlier, RangeSet::from_iter([(0, 4096)])),
        ];
        assert_eq!(pipeline.dvas().take_obsolete(txg), obsolete);
    });
}

/// Nobody who says where blocks may go gets past one who holds them off.
#[test]
fn a_vdev_that_is_held_gets_nothing() {
    simulate(async {
        let sim = SimWorld::new(7);
        let tops = vec![leaf(&sim, "a", 10), leaf(&sim, "b", 20)];
        let pool = TestPool::create(sim, tops, 12).await;
        let allocator = pool.pipeline.allocator();
        let held = VdevId::new(1);
        let is_given = async || {
            let mut vdevs = Vec::new();
            for number in 0..64 {
                let data = noise(131_072, number);
                let policy = WritePolicy::data(ObjectType::PLAIN_FILE_CONTENTS);
                let written = pool.pipeline.write(Txg::new(5), data.into(), &policy);
                let bp = written.await.expect("written");
                vdevs.extend(bp.dvas().map(|dva| dva.vdev()));
            }
            vdevs.contains(&held)
        };
        assert!(is_given().await);
        settled::hold(allocator, held);
        settled::hold(allocator, held);
        allocator.set_allocatable(held, true);
        settled::release(allocator, held);
        assert!(!allocator.is_allocatable(held) && !is_given().await);
        settled::release(allocator, held);
        settled::release(allocator, held);
        assert!(allocator.is_allocatable(held) && is_given().await);
    });
}
