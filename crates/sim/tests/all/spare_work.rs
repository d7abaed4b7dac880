//! Goal: what a transaction group can do without never keeps it from being written: condensing a
//! space map, a clone's list of blocks, the references of a cloned block that is freed. What is
//! asked of the pool's own space is asked before. Method: blocks of such objects are damaged, or
//! become unreadable for good, in the simulated world; pools without some feature; pools whose
//! space somebody holds.

use std::sync::Arc;

use crate::common::{ROOT, data, get, open, put, remove};
use dataset::{DatasetError, DirtyEstimate, PropertyChange};
use device::sim::{Fault, FaultEffect, PowerCut, SimOp, SimWorld};
use filesystem::Filesystem;
use format::{Dva, Endian, ObjectId, VdevId};
use object::{Object, Zap};
use pool::Pool;
use sim::torture::{Layout, POOL, create, create_with, import, inspect, patiently, simulate};

/// Where a disk's data begins: behind two labels and the boot area.
const FRONT_BYTES: u64 = 4 << 20;

/// How blocks are lost.
#[derive(Clone, Copy)]
enum Loss {
    /// Other bytes are there.
    Damaged,
    /// The device cannot read them.
    Unreadable,
}

/// Loses all copies of some blocks of an object, which is on one disk.
async fn lose(sim: &SimWorld, object: &Object, blocks: std::ops::Range<u64>, how: Loss) {
    let disk = sim.disk("disk0").unwrap();
    let mut lost = 0;
    for block in blocks {
        let pointer = object.block_pointer(block).await.unwrap();
        for dva in pointer.dvas() {
            let start = FRONT_BYTES + dva.offset_bytes();
            match how {
                Loss::Damaged => disk.corrupt(start, 512),
                Loss::Unreadable => disk.inject(
                    Fault::new(SimOp::Read, FaultEffect::Error)
                        .within(start..start + dva.asize_bytes()),
                ),
            }
            lost += 1;
        }
    }
    assert!(lost > 0, "nothing was lost");
    object.objset().pipeline().cache().clear();
}

/// Takes these places, as far as they are free, and says how many were.
async fn claim(pool: &Pool, places: impl Iterator<Item = (u64, u64)>) -> usize {
    let vdev = VdevId::new(0);
    let dataset = pool.dsl().open_dataset(POOL).await.unwrap();
    let tx = dataset.assign(DirtyEstimate::free()).await.unwrap();
    let allocator = pool.pipeline().allocator();
    let mut taken = 0;
    for (start, length) in places {
        let place = Dva::new(vdev, start, length, false).unwrap();
        taken += usize::from(allocator.claim(tx.txg(), &place).await.is_ok());
    }
    taken
}

/// Where the metaslab begins whose space map is long.
fn fragmented(pool: &Pool) -> u64 {
    2 << pool.pipeline().tree().tops().remove(0).metaslab_shift()
}

/// Units in the fragmented part of that metaslab.
const UNITS: u64 = 160 << 10;

/// A pool of which a metaslab is fragmented so much that its space map has several blocks, and is
/// as short as it can be.
async fn with_long_map(sim: &SimWorld) -> (Arc<Pool>, Arc<Filesystem>) {
    let pool = create(sim, Layout::Single, 2048, true).await.unwrap();
    let fs = open(sim, &pool).await.unwrap();
    put(&fs, "before", &data(1, 30_000)).await.unwrap();
    pool.sync().await.unwrap();
    let first = fragmented(&pool);
    let places = (0..UNITS).step_by(2).map(|unit| (first + unit * 512, 512));
    // Copies of something may be there.
    assert!(claim(&pool, places).await as u64 > UNITS / 2 - 1000);
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
    drop((fs, pool));
    let pool = import(sim, false).await.unwrap();
    let fs = open(sim, &pool).await.unwrap();
    (pool, fs)
}

/// The object of that space map.
async fn long_map(pool: &Pool) -> Object {
    let mos = pool.dsl().mos();
    let top = pool.pipeline().tree().tops().remove(0);
    let array = top.top().expect("a top-level vdev").metaslab_array();
    let array = mos.hold(ObjectId::new(array)).await.unwrap();
    let word = array.read_bytes(16, 8).await.unwrap();
    let map = ObjectId::new(u64::from_le_bytes(*word.first_chunk().unwrap()));
    let map = mos.hold(map).await.unwrap();
    assert!(map.info().max_block_id > 3, "{:?}", map.info());
    map
}

async fn cut(sim: &SimWorld, pool: Arc<Pool>, fs: Arc<Filesystem>) {
    sim.power_cut(PowerCut::LoseUnflushed);
    sim.kill_tasks().await;
    pool.dsl().tasks().close();
    drop((pool, fs));
    sim.kill_tasks().await;
    sim.power_on();
}

/// The metaslab is not used any more; the pool is exported, and imported after a crash.
#[test]
fn a_long_space_map_that_cannot_be_read_stops_nothing() {
    for (how, exports) in [(Loss::Damaged, true), (Loss::Unreadable, false)] {
        simulate(async move {
            let sim = SimWorld::new(1);
            let (pool, fs) = with_long_map(&sim).await;
            // There is something to be written to the map, which is read to be made shorter.
            let first = fragmented(&pool);
            let places = (1..UNITS)
                .step_by(4000)
                .map(|unit| (first + unit * 512, 512));
            assert!(claim(&pool, places).await > 0);
            pool.sync().await.unwrap();
            let map = long_map(&pool).await;
            lose(&sim, &map, 1..2, how).await;
            drop(map);
            let ino = put(&fs, "after", &data(2, 30_000)).await.unwrap();
            let synced = fs.sync_file(ino);
            patiently("fsync", synced).await.unwrap().unwrap();
            if exports {
                fs.close().await.unwrap();
                drop(fs);
                let exported = patiently("the export", pool.export(false));
                exported.await.unwrap().unwrap();
                drop(pool);
            } else {
                cut(&sim, pool, fs).await;
            }
            let imported = patiently("the import", import(&sim, false));
            let pool = imported.await.unwrap().unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            let ino = put(&fs, "again", &data(3, 30_000)).await.unwrap();
            let synced = patiently("fsync", fs.sync_file(ino));
            synced.await.unwrap().unwrap();
            patiently("a sync", pool.sync()).await.unwrap().unwrap();
            for (name, seed) in [("before", 1), ("after", 2), ("again", 3)] {
                assert_eq!(get(&fs, name).await.unwrap(), data(seed, 30_000));
            }
            fs.close().await.unwrap();
            let exported = patiently("the export", pool.export(false));
            exported.await.unwrap().unwrap();
        });
    }
}

/// Reads of a device that fail for a while: the space maps that could not be read are needed in the
/// end, and the pool waits for them instead of giving the group up.
#[test]
fn space_maps_that_could_not_be_read_for_a_while_are_read_again() {
    simulate(async {
        let sim = SimWorld::new(2);
        let (pool, fs) = with_long_map(&sim).await;
        let map = long_map(&pool).await;
        lose(&sim, &map, 1..2, Loss::Unreadable).await;
        drop(map);
        // What is free elsewhere is all taken.
        let unread = fragmented(&pool);
        for (span, _) in pool.pipeline().allocator().metaslab_spaces(VdevId::new(0)) {
            if span.start != unread {
                let mut pieces = vec![(span.start, span.end - span.start)];
                while let Some((start, length)) = pieces.pop() {
                    let is_taken = claim(&pool, [(start, length)].into_iter()).await > 0;
                    if !is_taken && length > 512 {
                        let part = length / 8;
                        pieces.extend((0..8).map(|number| (start + number * part, part)));
                    }
                }
            }
        }
        let ino = put(&fs, "after", &data(2, 30_000)).await.unwrap();
        let syncing = tokio::spawn({
            let (pool, fs) = (pool.clone(), fs.clone());
            async move {
                pool.sync().await.unwrap();
                fs.sync_file(ino).await.unwrap();
            }
        });
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert!(!syncing.is_finished());
        assert!(pool.pipeline().suspension().error().is_some());
        sim.disk("disk0").unwrap().clear_faults();
        pool.pipeline().suspension().clear().await.unwrap();
        patiently("the sync", syncing).await.unwrap().unwrap();
        assert_eq!(get(&fs, "after").await.unwrap(), data(2, 30_000));
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
    });
}

/// A clone of the pool's filesystem that has changed a little, and its filesystem.
async fn changed_clone(sim: &SimWorld, pool: &Pool) -> Arc<Filesystem> {
    let fs = open(sim, pool).await.unwrap();
    put(&fs, "big", &data(1, 900_000)).await.unwrap();
    fs.close().await.unwrap();
    let dsl = pool.dsl();
    let snapshot = format!("{POOL}@s");
    let snapshots = dsl.snapshots();
    let taken = snapshots.take(std::slice::from_ref(&snapshot), &[]).await;
    taken.unwrap();
    let clone = format!("{POOL}/clone");
    let datasets = dsl.datasets();
    let cloned = datasets.clone_snapshot(&snapshot, &clone, &[]).await;
    cloned.unwrap();
    let dataset = dsl.open_dataset(&clone).await.unwrap();
    let fs = Filesystem::open(dataset, sim.world()).await.unwrap();
    put(&fs, "own", &data(2, 20_000)).await.unwrap();
    pool.sync().await.unwrap();
    fs
}

/// Destroys the clone, and looks whether all is well.
async fn destroy_clone(sim: &SimWorld, pool: Arc<Pool>, fs: Arc<Filesystem>) {
    fs.close().await.unwrap();
    drop(fs);
    let destroyed = pool.dsl().destroyer().destroy("tank/clone").await;
    destroyed.unwrap();
    for _ in 0..5 {
        patiently("a sync", pool.sync()).await.unwrap().unwrap();
    }
    let exported = patiently("the export", pool.export(false));
    exported.await.unwrap().unwrap();
    drop(pool);
    let pool = import(sim, false).await.unwrap();
    pool.sync().await.unwrap();
    pool.export(false).await.unwrap();
}

/// A part of a clone's list is an object of its own there from the start, and counts what is freed.
#[test]
fn clones_free_blocks_in_a_pool_without_shared_empty_lists() {
    simulate(async {
        let sim = SimWorld::new(3);
        let lacks = vec![("feature@empty_bpobj".to_owned(), "disabled".to_owned())];
        let created = create_with(&sim, Layout::Single, 128, false, lacks);
        let pool = created.await.unwrap();
        let fs = changed_clone(&sim, &pool).await;
        remove(&fs, "own").await;
        patiently("a sync", pool.sync()).await.unwrap().unwrap();
        put(&fs, "more", &data(3, 20_000)).await.unwrap();
        pool.sync().await.unwrap();
        let dir = pool.dsl().directories().lookup("tank/clone").await;
        assert!(dir.is_ok());
        let livelist = pool.properties().get("feature@livelist").unwrap().value;
        assert_eq!(livelist, "active", "the list is still there");
        destroy_clone(&sim, pool, fs).await;
        inspect(&sim, "without the clone", true).await.unwrap();
    });
}

/// The last part of the clone's list.
async fn livelist(pool: &Pool) -> Object {
    let mos = pool.dsl().mos();
    let mut cursor = None;
    loop {
        let next = mos.next_object(cursor).await.unwrap();
        let next = next.expect("a livelist");
        cursor = Some(next);
        let object = mos.hold(next).await.unwrap();
        if object.info().bonus_type != format::ObjectType::DSL_DIR {
            continue;
        }
        let Ok(zap) = Zap::hold(mos, next).await else {
            continue;
        };
        let found = zap.lookup_u64(format::names::directory::LIVELIST).await;
        let Ok(Some(list)) = found else { continue };
        let list = Zap::hold(mos, ObjectId::new(list)).await.unwrap();
        let parts = list.all().await.unwrap();
        let last = parts.last().unwrap().value.as_u64().unwrap();
        return mos.hold(ObjectId::new(last)).await.unwrap();
    }
}

/// The list goes; the clone is walked when it is destroyed.
#[test]
fn a_clones_list_of_blocks_that_cannot_be_read_stops_nothing() {
    for how in [Loss::Damaged, Loss::Unreadable] {
        for (is_open, writes) in [(true, true), (false, false), (false, true)] {
            simulate(async move {
                let sim = SimWorld::new(4);
                let pool = create(&sim, Layout::Single, 128, false).await.unwrap();
                let fs = changed_clone(&sim, &pool).await;
                let part = livelist(&pool).await;
                lose(&sim, &part, 0..1, how).await;
                drop(part);
                let (pool, fs) = match is_open {
                    true => (pool, fs),
                    false => {
                        fs.close().await.unwrap();
                        pool.export(false).await.unwrap();
                        drop((pool, fs));
                        let pool = import(&sim, false).await.unwrap();
                        let dataset = pool.dsl().open_dataset("tank/clone").await.unwrap();
                        let fs = Filesystem::open(dataset, sim.world()).await.unwrap();
                        (pool, fs)
                    }
                };
                if writes {
                    put(&fs, "more", &data(3, 20_000)).await.unwrap();
                    patiently("a sync", pool.sync()).await.unwrap().unwrap();
                    assert_eq!(get(&fs, "more").await.unwrap(), data(3, 20_000));
                    assert_eq!(get(&fs, "own").await.unwrap(), data(2, 20_000));
                }
                destroy_clone(&sim, pool, fs).await;
            });
        }
    }
}

/// What is freed stays allocated, as another file may have it.
#[test]
fn cloned_blocks_whose_references_cannot_be_read_stay() {
    for how in [Loss::Damaged, Loss::Unreadable] {
        simulate(async move {
            let sim = SimWorld::new(5);
            let pool = create(&sim, Layout::Single, 128, false).await.unwrap();
            let fs = open(&sim, &pool).await.unwrap();
            let from = put(&fs, "from", &data(1, 300_000)).await.unwrap();
            pool.sync().await.unwrap();
            for name in ["to", "third"] {
                let made = fs.create(fs.root(), name.as_bytes(), 0o644, ROOT);
                let to = made.await.unwrap().ino;
                let copied = fs.copy_range(from, 0, to, 0, 300_000, ROOT).await.unwrap();
                assert_eq!(copied, 300_000);
            }
            pool.sync().await.unwrap();
            let mos = pool.dsl().mos();
            let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await.unwrap();
            let array = directory.lookup_u64("com.fudosecurity:brt:vdev:0").await;
            let array = mos.hold(ObjectId::new(array.unwrap().unwrap()));
            let bonus = array.await.unwrap().bonus();
            let table = format::BrtVdevPhys::decode(&bonus, Endian::Little).unwrap();
            let entries = mos.hold(table.entries).await.unwrap();
            let blocks = 0..entries.info().max_block_id + 1;
            lose(&sim, &entries, blocks, how).await;
            drop(entries);
            remove(&fs, "from").await;
            remove(&fs, "to").await;
            patiently("a sync", pool.sync()).await.unwrap().unwrap();
            put(&fs, "more", &data(2, 300_000)).await.unwrap();
            patiently("a sync", pool.sync()).await.unwrap().unwrap();
            assert_eq!(get(&fs, "third").await.unwrap(), data(1, 300_000));
            assert_eq!(get(&fs, "more").await.unwrap(), data(2, 300_000));
            fs.close().await.unwrap();
            let exported = patiently("the export", pool.export(false));
            exported.await.unwrap().unwrap();
        });
    }
}

/// Leaves free as much as is said for what the pool keeps back.
async fn hold_all_but(pool: &Pool, left_bytes: impl Fn(u64) -> u64) {
    let allocator = pool.pipeline().allocator();
    let totals = allocator.totals();
    let info = pool.dsl().directories().lookup(POOL).await.unwrap();
    let used = info.used_bytes + totals.deferred_deflated_bytes;
    let left = left_bytes(totals.slop_bytes);
    allocator.set_checkpoint_bytes(totals.usable_deflated_bytes - used - left);
}

fn change(name: &str, value: &str) -> [(String, PropertyChange); 1] {
    [(name.to_owned(), PropertyChange::Set(value.to_owned()))]
}

/// To lower them is what helps where a pool is fuller than other changes may make it.
#[test]
fn quotas_and_reservations_are_lowered_in_a_pool_filled_past_half_its_slop() {
    simulate(async {
        let sim = SimWorld::new(6);
        let pool = create(&sim, Layout::Single, 256, false).await.unwrap();
        let properties = pool.dsl().properties();
        for (name, value) in [
            ("quota", "96M"),
            ("refquota", "64M"),
            ("reservation", "32M"),
            ("refreservation", "16M"),
        ] {
            let set = properties.set(POOL, &change(name, value)).await;
            set.unwrap();
        }
        for _ in 0..4 {
            pool.sync().await.unwrap();
        }
        hold_all_but(&pool, |slop| slop / 8 * 3).await;
        let refused = properties.set(POOL, &change("compression", "off")).await;
        let is_full = matches!(refused, Err(DatasetError::NoSpace { .. }));
        assert!(is_full, "{refused:?}");
        for (name, value) in [
            ("refreservation", "8M"),
            ("reservation", "16M"),
            ("refquota", "32M"),
            ("quota", "64M"),
        ] {
            let set = properties.set(POOL, &change(name, value)).await;
            set.unwrap();
        }
    });
}

/// What is many times as much needs many times as much.
#[test]
fn a_task_asks_for_the_space_that_it_takes() {
    simulate(async {
        let sim = SimWorld::new(7);
        let pool = create(&sim, Layout::Single, 256, false).await.unwrap();
        let dsl = pool.dsl();
        let mut names = Vec::new();
        for number in 0..24 {
            let name = format!("{POOL}/{number}");
            let init = Arc::new(filesystem::ZplInit::new());
            dsl.datasets().create(&name, &[], init).await.unwrap();
            names.push(name);
        }
        for _ in 0..4 {
            pool.sync().await.unwrap();
        }
        let snapshots =
            |of: &[String]| -> Vec<String> { of.iter().map(|name| format!("{name}@s")).collect() };
        hold_all_but(&pool, |slop| slop + (2 << 20)).await;
        let refused = dsl.snapshots().take(&snapshots(&names), &[]).await;
        let is_full = matches!(refused, Err(DatasetError::NoSpace { .. }));
        assert!(is_full, "{refused:?}");
        let taken = dsl.snapshots().take(&snapshots(&names[..2]), &[]).await;
        taken.unwrap();
    });
}
