//! Tests of the pipeline: round trips, redundancy between copies, gangs, suspension.

use std::time::Duration;

use codec::compress::ZstdLevel;
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use format::{Checksum, Compression, LABEL_START_BYTES, ObjectType, Pointer};
use futures::future::join;
use proptest::prelude::*;

use super::*;
use crate::testing::{DISK_BYTES, TestPool, group, leaf, noise, simulate};

const TXG: Txg = Txg::new(7);

fn policy() -> WritePolicy {
    WritePolicy {
        cache: false,
        ..WritePolicy::data(ObjectType::PLAIN_FILE_CONTENTS)
    }
}

fn direct() -> ReadContext {
    ReadContext {
        cache: CacheUse::Bypass,
        ..ReadContext::default()
    }
}

/// Data that compresses to about half.
fn text(length: usize, seed: u64) -> Vec<u8> {
    let mut out = noise(length, seed);
    for line in out.chunks_mut(64) {
        let half = line.len() / 2;
        line[half..].fill(b' ');
    }
    out
}

async fn single(ashift: u64) -> TestPool {
    let sim = SimWorld::new(5);
    let config = leaf(&sim, "single", 10);
    TestPool::create(sim, vec![config], ashift).await
}

async fn round_trip(pool: &TestPool, data: &[u8], policy: &WritePolicy) -> BlockPointer {
    let written = Bytes::copy_from_slice(data);
    let bp = pool
        .pipeline
        .write(TXG, written, policy)
        .await
        .expect("written");
    bp.validate().expect("a sound pointer");
    let read = pool.pipeline.read(&bp, &direct()).await.expect("read");
    assert!(read == data, "{bp}: the data is another");
    bp
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_written_is_read(
        sectors in 1usize..300,
        seed in any::<u64>(),
        kind in 0usize..3,
        copies in 1u8..=3,
        checksum in prop::sample::select(vec![
            Checksum::Fletcher2, Checksum::Fletcher4, Checksum::Sha256, Checksum::Sha512,
            Checksum::Skein, Checksum::EdonR, Checksum::Blake3, Checksum::Off,
        ]),
        compression in prop::sample::select(vec![
            Compression::Off, Compression::Lz4, Compression::Zstd, Compression::Gzip(6),
            Compression::Lzjb, Compression::Zle,
        ]),
        raidz in any::<bool>(),
        ashift in prop::sample::select(vec![9u64, 12]),
    ) {
        simulate(async move {
            let sim = SimWorld::new(seed);
            let tops = if raidz {
                vec![
                    group(&sim, "raidz", 2, "r", 5, 10),
                    group(&sim, "mirror", 0, "m", 2, 20),
                ]
            } else {
                vec![leaf(&sim, "a", 10), leaf(&sim, "b", 20)]
            };
            let pool = TestPool::create(sim, tops, ashift).await;
            let length = sectors * 512;
            let data = match kind {
                0 => noise(length, seed),
                1 => text(length, seed),
                _ => vec![7; length],
            };
            let policy = WritePolicy {
                checksum,
                compression,
                copies,
                allow_embedded: seed & 1 == 0,
                ..policy()
            };
            let bp = round_trip(&pool, &data, &policy).await;
            assert_eq!(bp.lsize_bytes(), length as u64);
            if !bp.is_embedded() {
                assert_eq!(bp.copies(), usize::from(copies));
                assert_eq!(bp.physical_birth(), TXG);
                assert!(bp.psize_bytes() <= bp.lsize_bytes());
                assert_eq!(
                    bp.compression() == Compression::Off,
                    bp.psize_bytes() == bp.lsize_bytes()
                );
                assert_eq!(
                    pool.pipeline
                        .reader()
                        .read_raw(&bp, &direct())
                        .await
                        .expect("stored")
                        .len() as u64,
                    bp.psize_bytes()
                );
            }
            assert_eq!(pool.reports.0.lock().len(), 0);
        });
    }
}

#[test]
fn zeros_become_holes_unless_compression_is_off() {
    simulate(async {
        let pool = single(12).await;
        let zeros = vec![0u8; 128 << 10];
        let bp = round_trip(&pool, &zeros[..512], &policy()).await;
        assert_eq!(bp, BlockPointer::HOLE);
        let remembered = WritePolicy {
            hole_birth: true,
            ..policy()
        };
        let bp = round_trip(&pool, &zeros, &remembered).await;
        assert!(bp.is_hole());
        assert_eq!((bp.logical_birth(), bp.lsize_bytes()), (TXG, 128 << 10));
        let off = WritePolicy {
            compression: Compression::Off,
            ..policy()
        };
        let bp = round_trip(&pool, &zeros, &off).await;
        assert_eq!(bp.psize_bytes(), 128 << 10);
        assert_eq!(pool.pipeline.dsize_bytes(&bp), 128 << 10);
        assert_eq!(pool.pipeline.dsize_bytes(&BlockPointer::HOLE), 0);
    });
}

#[test]
fn small_blocks_live_in_their_pointer_when_that_is_allowed() {
    simulate(async {
        let pool = single(12).await;
        let mut data = vec![0u8; 4096];
        data[..40].copy_from_slice(&noise(40, 1));
        let allowed = WritePolicy {
            allow_embedded: true,
            ..policy()
        };
        let bp = round_trip(&pool, &data, &allowed).await;
        assert!(matches!(bp.decoded(), Pointer::Embedded(_)));
        assert!(!round_trip(&pool, &data, &policy()).await.is_embedded());
        let indirect = WritePolicy {
            level: 1,
            ..allowed
        };
        assert!(!round_trip(&pool, &data, &indirect).await.is_embedded());
        let dnodes = WritePolicy {
            object_type: ObjectType::DNODE,
            ..allowed
        };
        assert!(!round_trip(&pool, &data, &dnodes).await.is_embedded());
    });
}

#[test]
fn compressed_sizes_are_whole_allocation_units() {
    simulate(async {
        let pool = single(12).await;
        let bp = round_trip(&pool, &text(128 << 10, 1), &policy()).await;
        assert!(bp.psize_bytes().is_multiple_of(4096) && bp.psize_bytes() < 128 << 10);
        // Less than an eighth saved is not worth it.
        let mut dense = noise(32 << 10, 1);
        dense[..3000].fill(0);
        let bp = round_trip(&pool, &dense, &policy()).await;
        assert_eq!(bp.compression(), Compression::Off);
        // A level of zstd is kept in the block.
        let level = ZstdLevel::fast(10).expect("a level");
        let strong = WritePolicy {
            compression: Compression::Zstd,
            zstd_level: level,
            ..policy()
        };
        let bp = round_trip(&pool, &text(16 << 10, 1), &strong).await;
        let raw = pool
            .pipeline
            .reader()
            .read_raw(&bp, &direct())
            .await
            .expect("stored");
        assert_eq!(raw[4], level.code());
    });
}

#[test]
fn a_bad_copy_is_read_elsewhere_and_repaired() {
    simulate(async {
        let sim = SimWorld::new(5);
        let tops = vec![leaf(&sim, "a", 10), leaf(&sim, "b", 20)];
        let pool = TestPool::create(sim, tops, 12).await;
        let data = noise(8192, 1);
        let two = WritePolicy {
            copies: 2,
            ..policy()
        };
        let bp = round_trip(&pool, &data, &two).await;
        let name = |index: usize| ["a", "b"][bp.dva(index).expect("a copy").vdev().get() as usize];
        let at = |index: usize| bp.dva(index).expect("a copy").offset_bytes() + LABEL_START_BYTES;
        pool.disk(name(0)).corrupt(at(0), 8192);
        let read = pool
            .pipeline
            .read(&bp, &direct())
            .await
            .expect("the other copy");
        assert!(read == data);
        assert_eq!(pool.disk(name(0)).peek(at(0), 8192), data);
        assert_eq!((pool.reports.checksum(), pool.reports.data()), (1, 0));
        // A scrub looks at all copies.
        pool.disk(name(1)).corrupt(at(1), 8192);
        let outcome = pool
            .pipeline
            .reader()
            .scrub(&bp, &direct())
            .await
            .expect("one is good");
        assert_eq!((outcome.copies, outcome.bad_copies), (2, 1));
        assert_eq!(pool.disk(name(1)).peek(at(1), 8192), data);
        let outcome = pool
            .pipeline
            .reader()
            .scrub(&bp, &direct())
            .await
            .expect("both are good");
        assert_eq!(outcome.bad_copies, 0);
        // None is left.
        pool.disk(name(0)).corrupt(at(0), 8192);
        pool.disk(name(1)).corrupt(at(1), 8192);
        let error = pool
            .pipeline
            .read(&bp, &direct())
            .await
            .expect_err("both are bad");
        assert!(matches!(error, ZioError::Checksum { .. }), "{error}");
        assert_eq!(pool.reports.data(), 1);
        let quiet = ReadContext {
            speculative: true,
            ..direct()
        };
        assert!(pool.pipeline.read(&bp, &quiet).await.is_err());
        assert_eq!(pool.reports.data(), 1);
    });
}

#[test]
fn blocks_are_cached_and_readers_share_a_read() {
    simulate(async {
        let pool = single(12).await;
        let data = noise(128 << 10, 1);
        let bp = round_trip(&pool, &data, &policy()).await;
        assert_eq!(pool.pipeline.read_cached(&bp), None);
        let before = pool.sim.counts().reads;
        let context = ReadContext::default();
        let reads = (0..20).map(|_| pool.pipeline.read(&bp, &context));
        for read in futures::future::join_all(reads).await {
            assert!(read.expect("read") == data);
        }
        assert_eq!(pool.sim.counts().reads - before, 1);
        assert!(pool.pipeline.read_cached(&bp).expect("kept") == data);
        // A reader that goes away does not take the others with it.
        pool.pipeline.cache().clear();
        pool.disk("single")
            .set_latency(device::sim::Latency::default());
        let first = pool.pipeline.read(&bp, &context);
        let second = pool.pipeline.read(&bp, &context);
        let second = tokio::time::timeout(Duration::from_secs(1), second);
        let mut first = Box::pin(first);
        assert!(futures::poll!(&mut first).is_pending());
        let mut second = Box::pin(second);
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        assert!(second.await.expect("in time").expect("read") == data);
        // Prefetching fills the cache.
        pool.pipeline.cache().clear();
        pool.pipeline.prefetch(&bp, &context);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(pool.pipeline.read_cached(&bp).is_some());
    });
}

#[test]
fn a_rewrite_stays_in_place_when_it_can() {
    simulate(async {
        let pool = single(12).await;
        let plain = WritePolicy {
            compression: Compression::Off,
            cache: true,
            ..policy()
        };
        let old = pool
            .pipeline
            .write(TXG, noise(8192, 1).into(), &plain)
            .await
            .expect("written");
        let new = pool
            .pipeline
            .rewrite(TXG, &old, noise(8192, 2).into(), &plain)
            .await
            .expect("written");
        assert_eq!(old.dva(0), new.dva(0));
        assert_ne!(old.checksum(), new.checksum());
        for context in [ReadContext::default(), direct()] {
            assert!(pool.pipeline.read(&new, &context).await.expect("read") == noise(8192, 2));
        }
        // Another size, or another txg: elsewhere.
        let moved = pool
            .pipeline
            .rewrite(TXG, &new, noise(4096, 3).into(), &plain)
            .await
            .expect("written");
        assert_ne!(moved.dva(0), new.dva(0));
        let later = pool
            .pipeline
            .rewrite(TXG.next(), &moved, noise(4096, 4).into(), &plain)
            .await
            .expect("written");
        assert_ne!(later.dva(0), moved.dva(0));
        // What moved frees nothing by itself.
        pool.pipeline.free(TXG, &new);
        pool.pipeline.free(TXG, &moved);
        let changes = pool
            .pipeline
            .frees()
            .take_changes(TXG)
            .await
            .expect("changes");
        assert!(
            changes.is_empty(),
            "allocated and freed in one txg leaves nothing to record: {changes:?}"
        );
        let changes = pool
            .pipeline
            .frees()
            .take_changes(TXG.next())
            .await
            .expect("changes");
        assert_eq!(
            changes
                .iter()
                .map(|change| change.allocated.space())
                .sum::<u64>(),
            4096
        );
    });
}

/// Leaves free runs of at most `run` bytes.
pub(super) async fn crumble(pool: &TestPool, run: u64) {
    let mut all = Vec::new();
    let plain = |psize_bytes| crate::alloc::Request {
        txg: Txg::new(4),
        psize_bytes,
        copies: 1,
        class: vdev::AllocClass::Normal,
        fallback: true,
        gang: false,
    };
    while let Ok(dvas) = pool.pipeline.allocator().allocate(&plain(run)).await {
        all.extend(dvas.into_iter().flatten());
    }
    all.sort_by_key(|dva| (dva.vdev(), dva.offset_bytes()));
    for dva in all.iter().step_by(2) {
        pool.pipeline.allocator().unallocate(Txg::new(4), dva);
    }
}

/// With `dynamic_gang_header`, one header of a sector points to what took a tree of short ones;
/// short ones of before are read, written in place and freed beside it.
#[test]
fn wide_gang_headers_hold_more_pieces_and_short_ones_stay() {
    for raidz in [false, true] {
        simulate(async move {
            let sim = SimWorld::new(5);
            let tops = if raidz {
                vec![group(&sim, "raidz", 1, "r", 3, 20)]
            } else {
                vec![leaf(&sim, "a", 30), leaf(&sim, "b", 40)]
            };
            let pool = TestPool::create(sim, tops, 12).await;
            crumble(&pool, 8192).await;
            let taken = pool.pipeline.frees().take_changes(Txg::new(4)).await;
            taken.expect("changes");
            pool.pipeline.sync_done(Txg::new(4));
            let before = pool.pipeline.space();
            let plain = WritePolicy {
                compression: Compression::Off,
                ..policy()
            };
            let members = async |bp: &BlockPointer| {
                let found = pool.pipeline.reader().read_gang_header(bp, &direct()).await;
                found.expect("a header").len()
            };
            let gangs = pool.pipeline.wide_gangs();
            assert!(!gangs.are_wanted());
            let data = noise(128 << 10, 1);
            let short = round_trip(&pool, &data, &plain).await;
            assert!(short.is_gang() && gangs.are_wanted());
            assert_eq!(members(&short).await, 3);

            gangs.write();
            let mut written = vec![(short, data)];
            for (length, pieces) in [(16 << 10, 2), (128 << 10, 16), (512 << 10, 31)] {
                let data = noise(length, length as u64);
                let bp = round_trip(&pool, &data, &plain).await;
                assert!(bp.is_gang());
                assert_eq!(members(&bp).await, pieces, "{length}");
                written.push((bp, data));
            }
            for (bp, data) in &mut written {
                let pieces = members(bp).await;
                *data = noise(data.len(), 7);
                let again = pool.pipeline.rewrite(TXG, bp, data.clone().into(), &plain);
                let again = again.await.expect("rewritten");
                assert_eq!(again.dva(0), bp.dva(0));
                assert_eq!(members(&again).await, pieces);
                let read = pool.pipeline.read(&again, &direct()).await;
                assert!(read.expect("the new version") == *data);
                let outcome = pool.pipeline.reader().scrub(&again, &direct()).await;
                assert_eq!(outcome.expect("all good").bad_copies, 0);
                *bp = again;
            }
            for (bp, _) in &written {
                pool.pipeline.free(TXG, bp);
            }
            let freed = pool.pipeline.frees().take_changes(TXG).await;
            freed.expect("changes");
            pool.pipeline.sync_done(TXG);
            let after = pool.pipeline.space();
            let left = after.allocated_bytes - after.deferred_bytes;
            assert_eq!(left, before.allocated_bytes - before.deferred_bytes);
        });
    }
}

#[test]
fn without_long_runs_blocks_are_ganged_and_read_back() {
    for raidz in [false, true] {
        simulate(async move {
            let sim = SimWorld::new(5);
            let tops = if raidz {
                vec![group(&sim, "raidz", 1, "r", 3, 10)]
            } else {
                vec![leaf(&sim, "a", 10), leaf(&sim, "b", 20)]
            };
            let pool = TestPool::create(sim, tops, 9).await;
            crumble(&pool, 4096).await;
            pool.pipeline
                .frees()
                .take_changes(Txg::new(4))
                .await
                .expect("changes");
            pool.pipeline.sync_done(Txg::new(4));
            let before = pool.pipeline.space();
            let plain = WritePolicy {
                compression: Compression::Off,
                copies: 2,
                ..policy()
            };
            let mut written = Vec::new();
            for (index, length) in [8192usize, 12_288, 128 << 10, 512 << 10]
                .into_iter()
                .enumerate()
            {
                let data = noise(length, index as u64);
                let bp = round_trip(&pool, &data, &plain).await;
                assert!(bp.is_gang());
                assert_eq!(bp.copies(), 3);
                // The pointer's size covers the tree.
                assert!(bp.dva(0).expect("a copy").asize_bytes() > length as u64);
                let outcome = pool
                    .pipeline
                    .reader()
                    .scrub(&bp, &direct())
                    .await
                    .expect("all good");
                assert!(outcome.copies > 6 && outcome.bad_copies == 0);
                // A new version in the same txg takes the same places.
                let data = noise(length, 100 + index as u64);
                let again = pool
                    .pipeline
                    .rewrite(TXG, &bp, data.clone().into(), &plain)
                    .await
                    .expect("rewritten");
                assert_eq!(again.asize_bytes(), bp.asize_bytes());
                for copy in 0..3 {
                    assert_eq!(again.dva(copy), bp.dva(copy));
                }
                let read = pool.pipeline.read(&again, &direct()).await;
                assert!(read.expect("the new version") == data);
                written.push((again, data));
            }
            // A lost header copy is no loss.
            let (bp, data) = &written[2];
            let dva = bp.dva(0).expect("a copy");
            let top = pool.pipeline.tree().top(dva.vdev()).expect("a vdev");
            let geometry = top.geometry().expect("a geometry");
            for vdev in top.leaves() {
                let offset = match geometry.columns(dva.offset_bytes(), 512) {
                    Some(map) => match map
                        .columns
                        .iter()
                        .find(|column| column.child as u64 == vdev.id())
                    {
                        Some(column) => column.offset,
                        None => continue,
                    },
                    None => dva.offset_bytes(),
                };
                pool.disk(&vdev.path().expect("a path"))
                    .corrupt(offset + LABEL_START_BYTES, 512);
            }
            assert!(
                pool.pipeline
                    .read(bp, &direct())
                    .await
                    .expect("another header copy")
                    == *data
            );
            assert!(pool.reports.checksum() > 0);
            // Freeing gives everything back.
            let allocated: u64 = pool
                .pipeline
                .frees()
                .take_changes(TXG)
                .await
                .expect("changes")
                .iter()
                .map(|change| change.allocated.space())
                .sum();
            let asize: u64 = written.iter().map(|(bp, _)| bp.asize_bytes()).sum();
            assert_eq!(asize, allocated);
            pool.pipeline.sync_done(TXG);
            for (bp, _) in &written {
                pool.pipeline.free(TXG.next(), bp);
            }
            let freed: u64 = pool
                .pipeline
                .frees()
                .take_changes(TXG.next())
                .await
                .expect("changes")
                .iter()
                .map(|change| change.freed.space())
                .sum();
            assert_eq!(freed, allocated);
            for txg in 8..14 {
                pool.pipeline.sync_done(Txg::new(txg));
            }
            assert_eq!(pool.pipeline.space(), before);
        });
    }
}

#[test]
fn no_space_at_all_leaks_nothing() {
    simulate(async {
        let pool = single(9).await;
        crumble(&pool, 512).await;
        let before = pool.pipeline.allocator().top_spaces()[0].pending_bytes;
        let plain = WritePolicy {
            compression: Compression::Off,
            ..policy()
        };
        // Headers fit, but pieces of the least size and headers for all of them do not.
        let mut blocks = 0;
        let error = loop {
            match pool
                .pipeline
                .write(TXG, noise(1 << 20, 1).into(), &plain)
                .await
            {
                Ok(_) => blocks += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ZioError::NoSpace { .. }), "{error}");
        let after = pool.pipeline.allocator().top_spaces()[0].pending_bytes;
        assert!(blocks < 64);
        if blocks == 0 {
            assert_eq!(after, before);
        }
        // What a failed attempt took, it gave back: a sector is still there.
        round_trip(&pool, &noise(512, 1), &plain).await;
    });
}

#[test]
fn a_write_that_fails_suspends_and_goes_on_after_clear() {
    simulate(async {
        let pool = single(12).await;
        let data = noise(4096, 1);
        pool.disk("single")
            .inject(Fault::new(SimOp::Write, FaultEffect::Error));
        let writer = tokio::spawn({
            let (pipeline, data) = (pool.pipeline.clone(), data.clone());
            async move { pipeline.write(TXG, data.into(), &policy()).await }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!writer.is_finished());
        assert!(matches!(
            pool.pipeline.suspension().error(),
            Some(ZioError::Suspended { .. })
        ));
        assert_eq!(
            pool.pipeline.tree().tops()[0].state().0,
            vdev::VdevState::Faulted
        );
        // Nothing changed: it suspends again.
        pool.pipeline
            .suspension()
            .clear()
            .await
            .expect("may be tried");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(pool.pipeline.suspension().error().is_some() && !writer.is_finished());
        pool.disk("single").clear_faults();
        pool.pipeline
            .suspension()
            .clear()
            .await
            .expect("may be tried");
        let bp = writer.await.expect("no panic").expect("written");
        assert!(pool.pipeline.read(&bp, &direct()).await.expect("read") == data);
        assert!(pool.pipeline.suspension().error().is_none());
    });
}

/// Goal: of what is under way when the pool is suspended, devices get nothing but what they have
/// accepted, which counts as no failure of theirs; and all of it is written when the pool resumes.
/// Method: disks that stall, with so many writes that most wait in queues, and one log block.
#[test]
fn a_suspended_pool_gives_its_devices_nothing() {
    simulate(async {
        let sim = SimWorld::new(11);
        let tops = vec![
            group(&sim, "mirror", 0, "m", 2, 10),
            group(&sim, "raidz", 1, "r", 3, 20),
        ];
        let pool = TestPool::create(sim, tops, 12).await;
        let disks = ["m0", "m1", "r0", "r1", "r2"].map(|name| pool.disk(name));
        for disk in &disks {
            disk.inject(Fault::new(SimOp::Write, FaultEffect::Stall));
        }
        let write = |seed| {
            let pipeline = pool.pipeline.clone();
            let data = noise(12 << 10, seed);
            tokio::spawn(async move { pipeline.write(TXG, data.into(), &policy()).await })
        };
        let writers: Vec<_> = (0..200).map(write).collect();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let accepted = pool.sim.counts();
        assert!(accepted.writes > 10, "{accepted:?}");
        let error = ZioError::HeartbeatsFailed { silent_ms: 10_001 };
        pool.pipeline.suspension().suspend(error);
        disks.iter().for_each(device::sim::SimDisk::release);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let flushed = pool.pipeline.tree().flush().await;
        assert!(flushed.is_err(), "nothing was flushed");
        assert_eq!(pool.sim.counts(), accepted);
        assert!(writers.iter().all(|writer| !writer.is_finished()));
        for top in pool.pipeline.tree().tops() {
            assert_eq!(top.counters().write_errors, 0);
            for leaf in top.leaves() {
                assert_eq!(leaf.counters().write_errors, 0);
                assert!(
                    leaf.leaf()
                        .expect("a leaf")
                        .dirty_times()
                        .missing()
                        .is_empty()
                );
            }
        }
        pool.pipeline.suspension().clear().await.expect("resumed");
        for (seed, writer) in writers.into_iter().enumerate() {
            let bp = writer.await.expect("no panic").expect("written");
            let read = pool.pipeline.read(&bp, &direct()).await;
            assert!(read.expect("read") == noise(12 << 10, seed as u64));
        }
        pool.pipeline.flush().await.expect("flushed");
    });
}

/// A mirror of which one disk has no block, and the other one is away.
#[test]
fn the_sync_loop_waits_for_what_it_must_read() {
    simulate(async {
        let sim = SimWorld::new(5);
        let mirror = group(&sim, "mirror", 0, "m", 2, 10);
        let pool = TestPool::create(sim, vec![mirror], 12).await;
        let (stale, whole) = (pool.disk("m0"), pool.disk("m1"));
        let data = noise(4096, 1);
        stale.inject(Fault::new(SimOp::Write, FaultEffect::Lost));
        let written = pool
            .pipeline
            .write(TXG, data.clone().into(), &policy())
            .await;
        let bp = written.expect("written");
        // Else it would be written again when the pool is cleared.
        pool.pipeline.tree().flush().await.expect("flushed");
        stale.clear_faults();
        whole.set_gone(true);
        // Others are told at once.
        let read = pool.pipeline.read(&bp, &direct()).await;
        assert!(matches!(read, Err(ZioError::Checksum { .. })));
        assert!(pool.pipeline.suspension().error().is_none());
        let reported = pool.reports.data();
        let shared = ReadContext::default();
        let reader = tokio::spawn({
            let pipeline = pool.pipeline.clone();
            async move {
                let read = pipeline.read(&bp, &shared);
                let raw = pipeline.reader().read_raw(&bp, &shared);
                must_succeed(join(read, raw)).await
            }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!reader.is_finished() && pool.pipeline.suspension().error().is_some());
        assert_eq!(pool.reports.data(), reported);
        let read = pool.pipeline.read(&bp, &shared).await;
        assert!(matches!(read, Err(ZioError::Checksum { .. })));
        // Nothing changed: it suspends again.
        pool.pipeline
            .suspension()
            .clear()
            .await
            .expect("may be tried");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!reader.is_finished() && pool.pipeline.suspension().error().is_some());
        whole.set_gone(false);
        pool.pipeline
            .suspension()
            .clear()
            .await
            .expect("may be tried");
        let (read, raw) = reader.await.expect("no panic");
        assert!(read.expect("read") == data);
        raw.expect("read raw");
        assert!(pool.pipeline.suspension().error().is_none());
        // With all devices there it is damage, which waiting does not heal.
        for disk in [&stale, &whole] {
            let top = &pool.pipeline.tree().tops()[0];
            let dva = bp.dva(0).expect("a copy");
            assert!(top.state().0.is_usable());
            disk.corrupt(dva.offset_bytes() + LABEL_START_BYTES, 4096);
        }
        let read = must_succeed(pool.pipeline.read(&bp, &direct())).await;
        assert!(matches!(read, Err(ZioError::Checksum { .. })));
        assert!(pool.pipeline.suspension().error().is_none());
    });
}

#[test]
fn an_abandoned_pool_fails_its_writes() {
    simulate(async {
        let pool = single(12).await;
        pool.disk("single").set_gone(true);
        let writer = tokio::spawn({
            let pipeline = pool.pipeline.clone();
            async move { pipeline.write(TXG, noise(4096, 1).into(), &policy()).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let told = Arc::new(Mutex::new(Vec::new()));
        let hook = told.clone();
        pool.pipeline
            .suspension()
            .set_hook(Arc::new(move |error, _| hook.lock().push(error.is_some())));
        pool.pipeline.suspension().abandon(ZioError::Closing);
        assert!(matches!(
            writer.await.expect("no panic"),
            Err(ZioError::Closing)
        ));
        assert!(matches!(
            pool.pipeline
                .write(TXG, noise(512, 1).into(), &policy())
                .await,
            Err(ZioError::Closing)
        ));
        assert!(pool.pipeline.suspension().resume().is_err());
        assert_eq!(*told.lock(), [true, true, true]);
    });
}

#[test]
fn log_blocks_are_written_read_and_claimed() {
    for raidz in [false, true] {
        simulate(async move {
            let sim = SimWorld::new(5);
            let config = if raidz {
                group(&sim, "raidz", 1, "r", 3, 10)
            } else {
                leaf(&sim, "a", 10)
            };
            let mut log = leaf(&sim, "log", 20);
            log.set("is_log", 1u64);
            let pool = TestPool::create(sim, vec![config, log], 12).await;
            let mut bp = pool
                .pipeline
                .log_blocks()
                .allocate(TXG, 128 << 10, None, LogPlaces::ANYWHERE)
                .await
                .expect("space");
            assert_eq!(bp.dva(0).expect("a copy").vdev().get(), 1);
            let among_data = LogPlaces {
                on_log_devices: false,
                among_data: true,
            };
            assert_eq!(pool.pipeline.allocator().log_held_bytes(), 0);
            let (on_device, peak) = pool.pipeline.allocator().take_log_peak();
            assert!(on_device >= 128 << 10 && peak == on_device, "{on_device}");
            let elsewhere = pool
                .pipeline
                .log_blocks()
                .allocate(TXG, 128 << 10, None, among_data)
                .await
                .expect("space");
            assert_eq!(elsewhere.dva(0).expect("a copy").vdev().get(), 0);
            // What is held among the data is known until its txg has freed it.
            let held = pool.pipeline.allocator().log_held_bytes();
            assert!(held > 120 << 10, "{held}");
            pool.pipeline.free(TXG, &elsewhere);
            assert_eq!(pool.pipeline.allocator().log_held_bytes(), held);
            pool.pipeline.sync_done(TXG);
            assert_eq!(pool.pipeline.allocator().log_held_bytes(), 0);
            // The most is told once.
            let most = (on_device, on_device + held);
            assert_eq!(pool.pipeline.allocator().take_log_peak(), most);
            let after = pool.pipeline.allocator().take_log_peak();
            assert_eq!(after, (on_device, on_device));
            let nowhere = LogPlaces {
                among_data: false,
                ..among_data
            };
            let refused = pool
                .pipeline
                .log_blocks()
                .allocate(TXG, 512, None, nowhere)
                .await;
            assert!(matches!(refused, Err(ZioError::NoSpace { .. })));
            bp.set_checksum([1, 2, 3, 4]);
            let mut data = vec![0u8; 8192];
            // zc_nused, behind a word and the next block's pointer.
            data[136..144].copy_from_slice(&8000u64.to_le_bytes());
            data[192..8000].copy_from_slice(&noise(7808, 1));
            let before = pool.sim.counts().flushes;
            pool.pipeline
                .log_blocks()
                .write(&bp, data.as_slice().into(), false)
                .await
                .expect("written");
            pool.pipeline
                .log_blocks()
                .flush(&[bp])
                .await
                .expect("durable");
            assert_eq!(pool.sim.counts().flushes - before, 1);
            let read = pool.pipeline.read(&bp, &direct()).await.expect("read");
            assert_eq!(read.len(), 128 << 10);
            assert_eq!(read[192..8000], data[192..8000]);
            // Another log's block is not taken for this one's.
            let mut other = bp;
            other.set_checksum([1, 2, 3, 5]);
            let quiet = ReadContext {
                speculative: true,
                ..direct()
            };
            assert!(pool.pipeline.read(&other, &quiet).await.is_err());
            // After an import its space is claimed, once.
            let again = TestPool::over(pool.sim.clone(), pool.reopen().await);
            again.pipeline.frees().claim(TXG, &bp).await.expect("free");
            assert!(again.pipeline.frees().claim(TXG, &bp).await.is_err());
            // A failed write is told, not waited for.
            again
                .disk("log")
                .inject(Fault::new(SimOp::Write, FaultEffect::Error));
            let error = again
                .pipeline
                .log_blocks()
                .write(&bp, data.as_slice().into(), true)
                .await
                .expect_err("failed");
            assert!(matches!(
                error,
                ZioError::Vdev(vdev::VdevError::VdevUnavailable { .. })
            ));
            assert!(again.pipeline.suspension().error().is_none());
        });
    }
}

#[test]
fn pointers_that_cannot_be_are_refused() {
    simulate(async {
        let pool = single(12).await;
        let good = round_trip(&pool, &noise(4096, 1), &policy()).await;
        let Pointer::Regular(parts) = good.decoded() else {
            panic!("a block on disk")
        };
        let with = |vdev: u32, offset: u64| {
            let dva = format::Dva::new(format::VdevId::new(vdev), offset, 4096, false).ok();
            BlockPointer::regular(&format::RegularPointer {
                dvas: [dva, None, None],
                ..parts
            })
            .expect("a pointer")
        };
        for bp in [
            with(7, 0),
            with(0, DISK_BYTES),
            with(0, 512),
            with(0, u64::MAX << 10 >> 1),
        ] {
            assert!(pool.pipeline.read(&bp, &direct()).await.is_err());
        }
        // Decompressing what is not compressed.
        let lie = BlockPointer::regular(&format::RegularPointer {
            compression: Compression::Gzip(1),
            ..parts
        })
        .expect("a pointer");
        let error = pool
            .pipeline
            .read(&lie, &direct())
            .await
            .expect_err("no gzip");
        assert!(matches!(error, ZioError::Corrupt { .. }), "{error}");
        // A gang header that is none.
        let gang = BlockPointer::regular(&format::RegularPointer {
            dvas: [parts.dvas[0].map(|dva| dva.with_gang(true)), None, None],
            ..parts
        })
        .expect("a pointer");
        assert!(pool.pipeline.read(&gang, &direct()).await.is_err());
        pool.pipeline.free(TXG, &gang);
        pool.pipeline
            .frees()
            .take_changes(TXG)
            .await
            .expect("no failure");
    });
}

#[test]
fn a_read_only_pool_is_not_written() {
    simulate(async {
        let pool = single(12).await;
        let bp = round_trip(&pool, &noise(4096, 1), &policy()).await;
        let config = pool.pipeline.tree().to_config(vdev::Scope::Mos);
        pool.pipeline.tree().close();
        let options = vdev::OpenOptions {
            read_only: true,
            ..Default::default()
        };
        let tree = VdevTree::open(pool.sim.world(), &config, options)
            .await
            .expect("opens");
        let pool = TestPool::over(pool.sim, tree);
        let before = pool.sim.counts().writes;
        assert!(pool.pipeline.read(&bp, &direct()).await.is_ok());
        let error = pool
            .pipeline
            .write(TXG, noise(512, 1).into(), &policy())
            .await
            .expect_err("refused");
        assert!(matches!(error, ZioError::ReadOnly));
        pool.disk("single").corrupt(
            bp.dva(0).expect("a copy").offset_bytes() + LABEL_START_BYTES,
            4096,
        );
        assert!(pool.pipeline.read(&bp, &direct()).await.is_err());
        assert_eq!(pool.sim.counts().writes, before);
    });
}
