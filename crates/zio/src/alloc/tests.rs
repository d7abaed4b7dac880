//! Tests of allocation: sets of ranges and the allocator against models.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::free_map::FreeMap;
use super::*;
use crate::testing::simulate;

#[derive(Debug, Clone)]
enum Op {
    Add(u64, u64),
    Remove(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0u64..200, 0u64..40);
    prop_oneof![
        range
            .clone()
            .prop_map(|(start, length)| Op::Add(start, length)),
        range.prop_map(|(start, length)| Op::Remove(start, length)),
    ]
}

proptest! {
    #[test]
    fn range_sets_are_sets(
        ops in prop::collection::vec(op(), 1..60),
        probe in (0u64..220, 1u64..30),
    ) {
        let mut set = RangeSet::new();
        let mut free = FreeMap::default();
        let mut model = BTreeSet::new();
        for op in ops {
            let before = model.len() as u64;
            match op {
                Op::Add(start, length) => {
                    model.extend(start..start + length);
                    prop_assert_eq!(set.add(start, length), model.len() as u64 - before);
                    free.add(start, length);
                }
                Op::Remove(start, length) => {
                    model.retain(|at| !(start..start + length).contains(at));
                    prop_assert_eq!(set.remove(start, length), before - model.len() as u64);
                    free.remove(start, length);
                }
            }
            prop_assert_eq!(set.space(), model.len() as u64);
            prop_assert_eq!(
                set.ranges().flatten().collect::<BTreeSet<_>>(),
                model.clone()
            );
            // Touching ranges are one.
            let ends: Vec<_> = set.ranges().collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(free.ranges(), &set);
            prop_assert_eq!(
                free.longest(),
                set.iter().map(|(_, length)| length).max().unwrap_or(0)
            );
            let histogram = set.histogram();
            for (log2, count) in histogram.iter().enumerate() {
                prop_assert_eq!(free.runs(log2 as u32), *count);
            }
        }
        let (start, length) = probe;
        let inside = (start..start + length)
            .filter(|at| model.contains(at))
            .count() as u64;
        prop_assert_eq!(set.contains(start, length), inside == length);
        prop_assert_eq!(set.overlaps(start, length), inside > 0);
        let parts: u64 = set
            .intersection(start, length)
            .map(|part| part.end - part.start)
            .sum();
        prop_assert_eq!(parts, inside);
        let from: Vec<_> = set
            .from(start)
            .flatten()
            .filter(|at| *at >= start)
            .collect();
        prop_assert_eq!(from, model.range(start..).copied().collect::<Vec<_>>());
    }

    #[test]
    fn a_free_map_gives_out_only_what_is_free(
        sizes in prop::collection::vec(1u64..64, 1..200),
        holes in prop::collection::vec((0u64..4000, 1u64..100), 0..20),
    ) {
        let mut map = FreeMap::default();
        map.add(0, 4096);
        for (start, length) in holes {
            map.remove(start, length);
        }
        let mut model: BTreeSet<u64> = map.ranges().ranges().flatten().collect();
        for size in sizes {
            match map.allocate(size, 4096) {
                Some(start) => {
                    for at in start..start + size {
                        prop_assert!(model.remove(&at), "{} was not free", at);
                    }
                }
                None => prop_assert!(map.longest() < size),
            }
            prop_assert_eq!(map.space(), model.len() as u64);
        }
    }
}

const MIB: u64 = 1 << 20;
const SHIFT: u32 = 24;

pub(super) fn spec(vdev: u32, class: AllocClass, metaslab_count: u64) -> TopSpec {
    let geometry = Geometry::plain(9);
    TopSpec {
        vdev: VdevId::new(vdev),
        class,
        metaslab_shift: SHIFT,
        metaslab_count,
        geometry,
        before: None,
        deflate_ratio: geometry.deflate_ratio(),
        allocatable: true,
        is_withheld: false,
    }
}

pub(super) fn allocator(specs: &[TopSpec]) -> Allocator {
    let allocator = Allocator::new();
    for spec in specs {
        allocator.add_top(spec.clone());
    }
    allocator.set_source(Arc::new(AllFree {
        metaslab_shift: SHIFT,
    }));
    allocator
}

fn request(txg: u64, psize_bytes: u64, copies: usize) -> Request {
    Request {
        txg: Txg::new(txg),
        psize_bytes,
        copies,
        class: AllocClass::Normal,
        fallback: true,
        gang: false,
    }
}

/// What the space maps would say: keeps what `take_changes` hands out, and loads from it.
#[derive(Default)]
struct Recorder {
    free: Mutex<BTreeMap<(u32, u64), RangeSet>>,
    loads: AtomicU64,
}

impl Recorder {
    fn record(&self, changes: &[MetaslabChange]) {
        let mut free = self.free.lock();
        for change in changes {
            let key = (change.vdev.get(), change.metaslab);
            let set = free.entry(key).or_insert_with(|| all(change.metaslab));
            for (start, length) in change.allocated.iter() {
                assert_eq!(set.remove(start, length), length, "allocated twice");
            }
            for (start, length) in change.freed.iter() {
                assert_eq!(
                    set.add(start, length),
                    length,
                    "freed what was not recorded as allocated"
                );
            }
        }
    }
}

fn all(metaslab: u64) -> RangeSet {
    RangeSet::from_iter([(metaslab << SHIFT, 1 << SHIFT)])
}

impl MetaslabSource for Recorder {
    fn load(&self, vdev: VdevId, metaslab: u64) -> BoxFuture<'_, Result<RangeSet, ZioError>> {
        Box::pin(async move {
            self.loads.fetch_add(1, Ordering::Relaxed);
            let read = |recorder: &Self| {
                let free = recorder.free.lock();
                free.get(&(vdev.get(), metaslab))
                    .cloned()
                    .unwrap_or_else(|| all(metaslab))
            };
            // Slow enough for others to come in between.
            let before = read(self);
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
            Ok(before)
        })
    }
}

#[derive(Debug, Clone)]
enum Step {
    Allocate { sectors: u64, copies: usize },
    Free(prop::sample::Index),
    Pass,
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u64..600, 1usize..=3)
            .prop_map(|(sectors, copies)| Step::Allocate { sectors, copies }),
        5 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => Just(Step::Pass),
        1 => Just(Step::Sync),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Random allocations and frees over several passes and txgs: no byte is ever given out twice,
    /// nor before the txg that freed it and two more are synced, and what is handed out for the
    /// space maps always applies to what was handed out before.
    #[test]
    fn space_is_never_given_out_twice(
        steps in prop::collection::vec(step(), 1..250),
        raidz in any::<bool>(),
    ) {
        simulate(async move {
            let mut specs = [
                spec(0, AllocClass::Normal, 3),
                spec(1, AllocClass::Normal, 5),
            ];
            if raidz {
                specs[1].geometry = Geometry::raidz(12, 5, 2).expect("a geometry");
            }
            let recorder = Arc::new(Recorder::default());
            let allocator = allocator(&specs);
            allocator.set_source(recorder.clone());
            let mut txg = 10u64;
            let mut live: Vec<Dva> = Vec::new();
            // Everything that must not be given out: live or waiting.
            let mut taken: BTreeMap<u32, RangeSet> = BTreeMap::new();
            let mut waiting: Vec<(u64, Dva)> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate { sectors, copies } => {
                        let Ok(dvas) = allocator
                            .allocate(&request(txg, sectors * 512, copies))
                            .await
                        else {
                            continue;
                        };
                        assert_eq!(dvas.iter().flatten().count(), copies);
                        for dva in dvas.iter().flatten() {
                            let set = taken.entry(dva.vdev().get()).or_default();
                            let geometry = specs[dva.vdev().get() as usize].geometry;
                            assert_eq!(dva.asize_bytes(), geometry.asize(sectors * 512));
                            assert_eq!(
                                set.add(dva.offset_bytes(), dva.asize_bytes()),
                                dva.asize_bytes(),
                                "given out twice"
                            );
                            assert_eq!(
                                dva.offset_bytes() >> SHIFT,
                                (dva.offset_bytes() + dva.asize_bytes() - 1) >> SHIFT
                            );
                            live.push(*dva);
                        }
                        if copies > 1 {
                            assert_ne!(
                                dvas[0].map(|dva| dva.vdev()),
                                dvas[1].map(|dva| dva.vdev())
                            );
                        }
                    }
                    Step::Free(index) => {
                        if live.is_empty() {
                            continue;
                        }
                        let dva = live.swap_remove(index.index(live.len()));
                        allocator.free(Txg::new(txg), &dva).expect("freed once");
                        assert!(allocator.free(Txg::new(txg), &dva).is_err(), "freed twice");
                        waiting.push((txg, dva));
                    }
                    Step::Pass => recorder.record(&allocator.take_changes(Txg::new(txg))),
                    Step::Sync => {
                        recorder.record(&allocator.take_changes(Txg::new(txg)));
                        assert!(allocator.take_changes(Txg::new(txg)).is_empty());
                        allocator.sync_done(Txg::new(txg));
                        waiting.retain(|(freed, dva)| {
                            let wait = txg < freed + DEFER_TXGS;
                            if !wait {
                                taken
                                    .entry(dva.vdev().get())
                                    .or_default()
                                    .remove(dva.offset_bytes(), dva.asize_bytes());
                            }
                            wait
                        });
                        txg += 1;
                    }
                }
            }
            // Let everything settle: then exactly what is live is allocated, in memory and on
            // record.
            for _ in 0..4 {
                recorder.record(&allocator.take_changes(Txg::new(txg)));
                allocator.sync_done(Txg::new(txg));
                txg += 1;
            }
            let live_bytes: u64 = live.iter().map(|dva| dva.asize_bytes()).sum();
            let spaces = allocator.top_spaces();
            assert_eq!(
                spaces.iter().map(|top| top.allocated_bytes).sum::<u64>(),
                live_bytes
            );
            assert!(
                spaces
                    .iter()
                    .all(|top| top.deferred_bytes == 0 && top.pending_bytes == 0)
            );
            for (key, free) in recorder.free.lock().iter() {
                let inside = allocator.recorded_free(VdevId::new(key.0), key.1);
                assert_eq!(inside.as_ref(), Some(free));
                assert_eq!(
                    allocator.histogram(VdevId::new(key.0), key.1),
                    Some(free.histogram())
                );
            }
        });
    }
}

#[test]
fn metaslab_sizes_are_those_of_openzfs() {
    // From pools that OpenZFS made, and the table in vdev.c.
    for (asize, shift) in [
        (187_170_816, 24),
        (62_390_272, 24),
        (128 * MIB, 24),
        (4 << 30, 29),
        (8 << 30, 29),
        (100 << 30, 29),
        (101 << 30, 30),
        (3 << 40, 34),
        (1 << 50, 34),
        (4 << 50, 36),
    ] {
        assert_eq!(vdev::metaslab_shift(asize), shift, "{asize}");
    }
}

#[test]
fn slop_space_is_a_32nd_within_bounds() {
    assert_eq!(slop_bytes(64 << 30), 2 << 30);
    assert_eq!(slop_bytes(1 << 30), 128 << 20);
    assert_eq!(slop_bytes(100 << 20), 50 << 20);
    assert_eq!(slop_bytes(1 << 50), 128 << 30);
}

#[test]
fn fragmentation_follows_the_table() {
    let mut histogram = [0; 64];
    assert_eq!(fragmentation(&histogram), None);
    histogram[9] = 4;
    assert_eq!(fragmentation(&histogram), Some(100));
    histogram[29] = 1;
    assert_eq!(fragmentation(&histogram), Some(0));
    let mut half = [0; 64];
    half[17] = 8;
    half[20] = 1;
    assert_eq!(fragmentation(&half), Some((64 + 43) / 2));
}

#[test]
fn no_space_is_an_error_and_leaks_nothing() {
    simulate(async {
        let allocator = allocator(&[spec(0, AllocClass::Normal, 1)]);
        let mut got = 0;
        while allocator.allocate(&request(5, MIB, 1)).await.is_ok() {
            got += 1;
        }
        assert_eq!(got, 16);
        let error = allocator
            .allocate(&request(5, 512, 1))
            .await
            .expect_err("full");
        assert!(matches!(
            error,
            ZioError::NoSpace {
                size_bytes: 512,
                ..
            }
        ));
        // One copy fits, two do not: nothing stays allocated.
        let dva = Dva::new(VdevId::new(0), 0, MIB, false).expect("a dva");
        allocator.unallocate(Txg::new(5), &dva);
        assert!(allocator.allocate(&request(5, MIB, 2)).await.is_err());
        assert!(allocator.allocate(&request(5, MIB, 1)).await.is_ok());
    });
}

#[test]
fn copies_on_one_vdev_are_far_apart() {
    simulate(async {
        let allocator = allocator(&[spec(0, AllocClass::Normal, 16)]);
        for _ in 0..200 {
            let dvas = allocator
                .allocate(&request(5, 4096, 3))
                .await
                .expect("space");
            let offsets: Vec<u64> = dvas
                .iter()
                .flatten()
                .map(|dva| dva.offset_bytes() >> SHIFT)
                .collect();
            for (index, offset) in offsets.iter().enumerate() {
                for other in &offsets[..index] {
                    assert!(offset.abs_diff(*other) >= 2, "{offsets:?}");
                }
            }
        }
    });
}

#[test]
fn vdevs_take_turns_by_their_free_space() {
    simulate(async {
        let allocator = allocator(&[
            spec(0, AllocClass::Normal, 4),
            spec(1, AllocClass::Normal, 12),
        ]);
        let mut by_vdev = [0u64; 2];
        for _ in 0..1200 {
            let dvas = allocator
                .allocate(&request(5, 128 << 10, 1))
                .await
                .expect("space");
            by_vdev[dvas[0].expect("a copy").vdev().get() as usize] += 128 << 10;
        }
        let share = by_vdev[1] as f64 / by_vdev[0] as f64;
        assert!((2.0..4.5).contains(&share), "{by_vdev:?}");
    });
}

#[test]
fn memory_goes_by_the_ranges_that_are_known() {
    simulate(async {
        let allocator = allocator(&[spec(0, AllocClass::Normal, 4)]);
        let none = allocator.memory_bytes();
        let mut dvas = Vec::new();
        for _ in 0..200 {
            let got = allocator.allocate(&request(5, 4096, 1)).await;
            dvas.push(got.expect("space")[0].expect("a copy"));
        }
        let whole = allocator.memory_bytes();
        assert!(whole > none);
        // Every other one goes: so many ranges come that touch no others.
        for dva in dvas.iter().step_by(2) {
            allocator.unallocate(Txg::new(5), dva);
        }
        assert!(allocator.memory_bytes() >= whole + 90 * 32, "{whole}");
    });
}

#[test]
fn classes_fall_back_to_normal() {
    simulate(async {
        let allocator = allocator(&[
            spec(0, AllocClass::Normal, 4),
            spec(1, AllocClass::Log, 1),
            spec(2, AllocClass::Special, 1),
        ]);
        let place = |class, fallback| Request {
            class,
            fallback,
            ..request(5, MIB, 1)
        };
        let vdev = |dvas: [Option<Dva>; 3]| dvas[0].expect("a copy").vdev().get();
        for _ in 0..16 {
            assert_eq!(
                vdev(
                    allocator
                        .allocate(&place(AllocClass::Log, true))
                        .await
                        .expect("space")
                ),
                1
            );
            assert_eq!(
                vdev(
                    allocator
                        .allocate(&place(AllocClass::Dedup, true))
                        .await
                        .expect("space")
                ),
                2
            );
        }
        assert!(
            allocator
                .allocate(&place(AllocClass::Log, false))
                .await
                .is_err()
        );
        assert_eq!(
            vdev(
                allocator
                    .allocate(&place(AllocClass::Log, true))
                    .await
                    .expect("space")
            ),
            0
        );
        assert_eq!(
            vdev(
                allocator
                    .allocate(&place(AllocClass::Special, true))
                    .await
                    .expect("space")
            ),
            0
        );
        // Log vdevs are no part of the pool's space.
        assert_eq!(allocator.totals().size_bytes, 5 << SHIFT);
        assert_eq!(allocator.totals().normal_deflated_bytes, 4 << SHIFT);
    });
}

#[test]
fn what_is_withheld_is_not_offered() {
    simulate(async {
        let withheld = TopSpec {
            allocatable: false,
            is_withheld: true,
            ..spec(1, AllocClass::Normal, 8)
        };
        let allocator = allocator(&[spec(0, AllocClass::Normal, 4), withheld]);
        allocator.set_recorded(VdevId::new(1), 0, 5 * MIB, None);
        let totals = allocator.totals();
        assert_eq!(totals.size_bytes, 12 << SHIFT);
        assert_eq!(totals.allocated_bytes, 5 * MIB);
        assert_eq!(totals.normal_deflated_bytes, 12 << SHIFT);
        assert_eq!(totals.usable_deflated_bytes, 4 << SHIFT);
        assert_eq!(totals.normal_free_bytes, 4 << SHIFT);
        assert_eq!(totals.slop_bytes, slop_bytes(4 << SHIFT));
    });
}

/// Blocks take less of a wider vdev, from its txg on; and what is not free counts as occupied.
#[test]
fn a_vdev_that_is_made_wider() {
    simulate(async {
        let raidz = |width| Geometry::raidz(9, width, 1).expect("raidz");
        let narrow = TopSpec {
            geometry: raidz(3),
            ..spec(0, AllocClass::Normal, 4)
        };
        let allocator = allocator(std::slice::from_ref(&narrow));
        let vdev = VdevId::new(0);
        assert_eq!(allocator.occupied(vdev, 0), None, "nobody needed it yet");
        let taken = async |txg| {
            let places = allocator.allocate(&request(txg, 12 << 10, 1)).await;
            places.expect("space")[0].expect("a place")
        };
        let first = taken(5).await;
        let metaslab = first.offset_bytes() >> SHIFT;
        let occupied = allocator.occupied(vdev, metaslab).expect("it is loaded");
        assert_eq!(occupied.space(), first.asize_bytes());
        assert!(occupied.contains(first.offset_bytes(), first.asize_bytes()));
        allocator.widen(&TopSpec {
            geometry: raidz(5),
            before: Some((Txg::new(8), raidz(3))),
            ..narrow
        });
        let (old, new) = (raidz(3).asize(12 << 10), raidz(5).asize(12 << 10));
        assert!(new < old);
        assert_eq!(taken(7).await.asize_bytes(), old);
        assert_eq!(taken(8).await.asize_bytes(), new);
        let worst = || allocator.worst_deflated_bytes(12 << 10);
        let before = worst();
        for txg in 5..=8 {
            allocator.take_changes(Txg::new(txg));
            allocator.sync_done(Txg::new(txg));
        }
        assert!(worst() < before, "no txg is open that takes more");
    });
}

#[test]
fn sequential_blocks_are_next_to_each_other() {
    simulate(async {
        let allocator = allocator(&[spec(0, AllocClass::Normal, 16)]);
        let mut last: Option<Dva> = None;
        for _ in 0..100 {
            let dva = allocator
                .allocate(&request(5, 128 << 10, 1))
                .await
                .expect("space")[0]
                .expect("a copy");
            if let Some(last) = last {
                assert_eq!(dva.offset_bytes(), last.offset_bytes() + last.asize_bytes());
            }
            last = Some(dva);
        }
    });
}

#[test]
fn a_claim_takes_what_is_free_and_nothing_else() {
    simulate(async {
        let allocator = allocator(&[spec(0, AllocClass::Normal, 2)]);
        let dva = Dva::new(VdevId::new(0), (1 << SHIFT) + 4096, 8192, false).expect("a dva");
        allocator.claim(Txg::new(5), &dva).await.expect("free");
        assert!(matches!(
            allocator.claim(Txg::new(5), &dva).await,
            Err(ZioError::SpaceMap { .. })
        ));
        let beyond = Dva::new(VdevId::new(0), 2 << SHIFT, 8192, false).expect("a dva");
        assert!(matches!(
            allocator.claim(Txg::new(5), &beyond).await,
            Err(ZioError::SpaceMap { .. })
        ));
        let nowhere = Dva::new(VdevId::new(9), 0, 8192, false).expect("a dva");
        assert!(matches!(
            allocator.claim(Txg::new(5), &nowhere).await,
            Err(ZioError::Vdev(vdev::VdevError::NoSuchVdev { .. }))
        ));
        let changes = allocator.take_changes(Txg::new(5));
        assert_eq!(changes.len(), 1);
        assert_eq!(
            changes[0].allocated.iter().collect::<Vec<_>>(),
            [((1 << SHIFT) + 4096, 8192)]
        );
    });
}

#[test]
fn a_gang_header_occupies_its_own_sector_only() {
    simulate(async {
        let allocator = allocator(&[spec(0, AllocClass::Normal, 2)]);
        let mut header = request(5, 512, 1);
        header.gang = true;
        let own = allocator.allocate(&header).await.expect("space")[0].expect("a copy");
        assert!(own.is_gang());
        let whole = Dva::new(
            own.vdev(),
            own.offset_bytes(),
            own.asize_bytes() + MIB,
            true,
        )
        .expect("a dva");
        allocator.take_changes(Txg::new(5));
        allocator.sync_done(Txg::new(5));
        allocator.free(Txg::new(6), &whole).expect("freed");
        let changes = allocator.take_changes(Txg::new(6));
        assert_eq!(changes[0].freed.space(), 512);
    });
}

#[test]
fn changes_during_a_load_are_not_lost() {
    simulate(async {
        let recorder = Arc::new(Recorder::default());
        let allocator = Arc::new(allocator(&[spec(0, AllocClass::Normal, 1)]));
        allocator.set_source(recorder.clone());
        // On record: 1 MiB is allocated.
        let old = Dva::new(VdevId::new(0), 0, MIB, false).expect("a dva");
        recorder.free.lock().insert((0, 0), {
            let mut free = all(0);
            free.remove(0, MIB);
            free
        });
        allocator.set_recorded(VdevId::new(0), 0, MIB, None);
        // It is freed, handed out and synced while somebody loads the metaslab.
        let loader = {
            let allocator = allocator.clone();
            tokio::spawn(async move { allocator.allocate(&request(6, 4096, 1)).await })
        };
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        allocator.free(Txg::new(5), &old).expect("allocated");
        recorder.record(&allocator.take_changes(Txg::new(5)));
        allocator.sync_done(Txg::new(5));
        loader.await.expect("no panic").expect("space");
        assert_eq!(recorder.loads.load(Ordering::Relaxed), 1);
        for txg in 6..9 {
            recorder.record(&allocator.take_changes(Txg::new(txg)));
            allocator.sync_done(Txg::new(txg));
        }
        assert_eq!(
            allocator.recorded_free(VdevId::new(0), 0).as_ref(),
            recorder.free.lock().get(&(0, 0))
        );
        assert_eq!(allocator.totals().allocated_bytes, 4096);
    });
}

/// Goal: a space map that is lost and begins anew calls free what is known to be, and nothing else:
/// all that is free while its metaslab is loaded. Method: one that is loaded; and one whose old map
/// is being read.
#[test]
fn a_map_that_begins_anew_calls_free_what_is_known_to_be() {
    simulate(async {
        let vdev = VdevId::new(0);
        let recorder = Arc::new(Recorder::default());
        let first = allocator(&[spec(0, AllocClass::Normal, 1)]);
        first.set_source(recorder.clone());
        let place = |dvas: [Option<Dva>; COPIES_MAX]| dvas[0].expect("a copy");
        let old = place(first.allocate(&request(5, 4096, 1)).await.expect("space"));
        recorder.record(&first.take_changes(Txg::new(5)));
        // What belongs to the next txg is free in the records of this one.
        place(first.allocate(&request(6, 4096, 1)).await.expect("space"));
        let free = first.begin_anew(vdev, 0, &RangeSet::new());
        assert_eq!(Some(&free), recorder.free.lock().get(&(0, 0)));

        let then = Arc::new(allocator(&[spec(0, AllocClass::Normal, 1)]));
        then.set_source(recorder.clone());
        let loads = recorder.loads.load(Ordering::Relaxed);
        let waiting = {
            let then = then.clone();
            tokio::spawn(async move { then.allocate(&request(7, 4096, 1)).await })
        };
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        then.free(Txg::new(6), &old).expect("allocated");
        let changes = then.take_changes(Txg::new(6));
        let free = then.begin_anew(vdev, 0, &changes[0].freed);
        assert_eq!(free, changes[0].freed);
        recorder.free.lock().insert((0, 0), free);
        then.sync_done(Txg::new(6));
        // Space is short, so it does not wait.
        let new = place(waiting.await.expect("no panic").expect("space"));
        assert_eq!(new, old);
        assert_eq!(recorder.loads.load(Ordering::Relaxed), loads + 2);
        let full = then.allocate(&request(7, 512, 1)).await;
        assert!(matches!(full, Err(ZioError::NoSpace { .. })), "{full:?}");
        recorder.record(&then.take_changes(Txg::new(7)));
        then.sync_done(Txg::new(7));
        assert_eq!(then.totals().allocated_bytes, 1 << SHIFT);
    });
}

#[test]
fn unused_metaslabs_leave_memory_and_come_back() {
    simulate(async {
        let recorder = Arc::new(Recorder::default());
        let allocator = allocator(&[spec(0, AllocClass::Normal, 64)]);
        allocator.set_source(recorder.clone());
        let mut live = Vec::new();
        for _ in 0..64 * 16 {
            live.push(
                allocator
                    .allocate(&request(5, MIB, 1))
                    .await
                    .expect("space")[0]
                    .expect("a copy"),
            );
        }
        for dva in live.drain(..).step_by(2) {
            allocator.free(Txg::new(5), &dva).expect("allocated");
        }
        for txg in 5..60 {
            recorder.record(&allocator.take_changes(Txg::new(txg)));
            allocator.sync_done(Txg::new(txg));
        }
        assert_eq!(recorder.loads.load(Ordering::Relaxed), 64);
        let loaded = (0..64)
            .filter(|index| allocator.recorded_free(VdevId::new(0), *index).is_some())
            .count();
        assert!(loaded <= 17, "{loaded}");
        let mut again = 0;
        while allocator.allocate(&request(60, MIB, 1)).await.is_ok() {
            again += 1;
        }
        assert_eq!(again, 64 * 8);
        recorder.record(&allocator.take_changes(Txg::new(60)));
    });
}
