//! Goal: pools that OpenZFS made with widened RAID-Z, dRAID or removed vdevs are written like any
//! other: what was there stays right, what is new is right, and no space is lost. Method: golden
//! pools, with objects written, overwritten, held by a snapshot, freed, and the pool filled to the
//! last block and emptied again; `zdb -bcc` after each step, and a scrub at the end.

use std::path::Path;
use std::sync::Arc;

use crate::common::*;
use dataset::{Dataset, DirtyEstimate, ListOptions};
use device::World;
use format::{ObjectId, ObjectType};
use object::NewObject;
use pool::{AddSpec, CondenseLimits, ImportSpec, LeafSpec, Pool, VdevClass, VdevLayout, VdevSpec};

const RECORD: u64 = 128 << 10;

/// zdb counts every block and compares with the space maps. (In some golden pools it takes objects
/// with permissions for leaked, which it says elsewhere.)
fn no_leaks(dir: &Path, pool: &str) {
    let text = std::process::Command::new(ZDB)
        .args(["-e", "-p"])
        .arg(dir)
        .args(["-bcc", pool])
        .output()
        .expect("zdb (Debian package zfsutils-linux) is needed");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&text.stdout),
        String::from_utf8_lossy(&text.stderr)
    );
    assert!(
        text.contains("No leaks (block sum matches space maps exactly)"),
        "{text}"
    );
    for bad in ["ERROR", "leaked space", "error:", "ASSERT"] {
        assert!(!text.contains(bad), "zdb says '{bad}':\n{text}");
    }
    zdb(dir, pool, &["-mm"]);
}

/// Writes objects of four records until there is no space.
async fn fill(dataset: &Dataset) -> Vec<ObjectId> {
    let mut objects = Vec::new();
    loop {
        let Ok(tx) = dataset.assign(DirtyEstimate::write(RECORD * 4)).await else {
            return objects;
        };
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(RECORD as u32);
        let object = dataset.objset().allocate(&tx, new).await.expect("allocate");
        for block in 0..4 {
            let data = content(object.id().get(), block, RECORD as usize);
            object
                .write(&tx, block * RECORD, data)
                .await
                .expect("write");
        }
        objects.push(object.id());
        assert!(objects.len() < 2000, "a pool takes more than there is");
    }
}

async fn settle(pool: &Arc<Pool>) {
    for _ in 0..100 {
        pool.sync().await.expect("sync");
        if pool.numbers().freeing_bytes == 0 {
            break;
        }
    }
    for _ in 0..4 {
        pool.sync().await.expect("sync");
    }
}

pub async fn scrub(world: &World, dir: &Path) {
    let spec = ImportSpec {
        read_only: true,
        ..ImportSpec::new(find(world, dir).await, host())
    };
    let pool = Pool::import(world, spec).await.expect("read-only");
    pool.scans()
        .scrub(pool::ScrubCommand::Start)
        .await
        .expect("scrub");
    pool.scans().wait_for_scrub(true).await;
    let scan = pool.status().scan.expect("a scrub");
    assert_eq!(scan.state, pool::ScanState::Finished);
    assert_eq!((scan.errors, scan.repaired_bytes), (0, 0), "{scan:?}");
    pool.export(false).await.expect("close");
}

async fn check(golden: &Path, name: &str) {
    let images = Images::new();
    let dir = unpack(golden, name, images.path());
    let world = World::system(2);
    let pool = import(&world, &dir).await;
    let root = pool.name();
    let before = pool.numbers();
    let dataset = pool.dsl().open_dataset(&root).await.expect("open");
    let kept = write_objects(&dataset, 12, 3).await;
    let freed = write_objects(&dataset, 6, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    no_leaks(&dir, &root);

    let pool = import(&world, &dir).await;
    let dataset = pool.dsl().open_dataset(&root).await.expect("open");
    check_objects(&dataset, &kept, 3).await;
    check_objects(&dataset, &freed, 2).await;
    let snapshot = format!("{root}@ours");
    pool.dsl()
        .snapshots()
        .take(std::slice::from_ref(&snapshot), &[])
        .await
        .expect("snapshot");
    free_objects(&dataset, &freed).await;
    // Overwritten, with sizes that fit no row.
    for (index, id) in kept.iter().enumerate() {
        let tx = dataset
            .assign(DirtyEstimate::write(RECORD))
            .await
            .expect("assign");
        let object = dataset.objset().hold(*id).await.expect("hold");
        let data = content(id.get(), 1, RECORD as usize);
        object.write(&tx, RECORD, data).await.expect("write");
        drop(tx);
        if index % 4 == 0 {
            pool.sync().await.expect("sync");
        }
    }
    pool.sync().await.expect("sync");
    check_objects(&dataset, &kept, 3).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    no_leaks(&dir, &root);

    let pool = import(&world, &dir).await;
    pool.dsl()
        .destroyer()
        .destroy_snapshots(&[snapshot], false)
        .await
        .expect("destroy");
    let dataset = pool.dsl().open_dataset(&root).await.expect("open");
    let many = fill(&dataset).await;
    pool.sync().await.expect("sync of a full pool");
    assert!(many.len() > 20, "only {} objects fit", many.len());
    check_objects(&dataset, &many, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    no_leaks(&dir, &root);
    scrub(&world, &dir).await;

    let pool = import(&world, &dir).await;
    let dataset = pool.dsl().open_dataset(&root).await.expect("open");
    check_objects(&dataset, &many, 4).await;
    check_objects(&dataset, &kept, 3).await;
    free_objects(&dataset, &many).await;
    free_objects(&dataset, &kept).await;
    drop(dataset);
    settle(&pool).await;
    let after = pool.numbers();
    assert!(
        after.allocated_bytes < before.allocated_bytes + (8 << 20),
        "{} bytes are allocated, {} at first",
        after.allocated_bytes,
        before.allocated_bytes
    );
    pool.export(false).await.expect("export");
    no_leaks(&dir, &root);

    // What OpenZFS wrote goes as well.
    let pool = import(&world, &dir).await;
    let all = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let listed = pool
        .dsl()
        .directories()
        .list(&root, &all)
        .await
        .expect("list");
    let snapshots: Vec<String> = (listed.iter().map(|info| &info.name))
        .filter(|name| name.contains('@'))
        .cloned()
        .collect();
    pool.dsl()
        .destroyer()
        .destroy_snapshots(&snapshots, false)
        .await
        .expect("destroy");
    for info in listed.iter().rev() {
        if !info.name.contains('@') && info.name != root {
            pool.dsl()
                .destroyer()
                .destroy(&info.name)
                .await
                .expect("destroy");
        }
    }
    let dataset = pool.dsl().open_dataset(&root).await.expect("open");
    let mut files = Vec::new();
    let mut last = None;
    while let Some(id) = dataset.objset().next_object(last).await.expect("objects") {
        last = Some(id);
        let object = dataset.objset().hold(id).await.expect("hold");
        if object.info().object_type == ObjectType::PLAIN_FILE_CONTENTS {
            files.push(id);
        }
    }
    assert!(!files.is_empty());
    free_objects(&dataset, &files).await;
    drop(dataset);
    settle(&pool).await;
    let empty = pool.numbers();
    assert!(empty.allocated_bytes < after.allocated_bytes);
    pool.export(false).await.expect("export");
    no_leaks(&dir, &root);
}

macro_rules! writeable {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if let Some(golden) = golden() {
                check(&golden, stringify!($name)).await;
            }
        }
    )*};
}

writeable!(raidz_expanded raidz_expanding draid draid_spare removed);

/// Has groups written until all mappings are condensed that have anything obsolete.
async fn condense(pool: &Pool) {
    pool::condensing(pool).set_limits(CondenseLimits {
        obsolete_percent: 1,
        mapping_bytes_min: 0,
        turn_entries: 100,
        ..CondenseLimits::default()
    });
    let mut quiet = 0;
    for _ in 0..1000 {
        pool.sync().await.expect("sync");
        quiet = match pool::condensing(pool).is_active() {
            true => 0,
            false => quiet + 1,
        };
        if quiet == 4 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("it does not end");
}

/// Goal: what OpenZFS mapped is condensed, with the gaps between blocks that it copied as well; all
/// that is in use stays, and zdb agrees on what is obsolete. Method: of a pool with two removed
/// vdevs snapshots go, then datasets, and mappings are condensed after each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mappings_of_openzfs_are_condensed() {
    let Some(golden) = golden() else { return };
    let images = Images::new();
    let dir = unpack(&golden, "removed", images.path());
    let world = World::system(2);
    let mapping_bytes = |pool: &Pool| {
        let status = pool::removal(pool).status();
        status.expect("there was one").mapping_bytes
    };
    let mut last_bytes = u64::MAX;
    for step in ["as it was", "without snapshots", "without datasets"] {
        let pool = import(&world, &dir).await;
        let root = pool.name();
        if step == "as it was" {
            last_bytes = mapping_bytes(&pool);
        }
        let all = ListOptions {
            snapshots: true,
            ..ListOptions::default()
        };
        let listed = pool.dsl().directories().list(&root, &all).await;
        let listed = listed.expect("list");
        let destroyer = pool.dsl().destroyer();
        let is_snapshot = |name: &&String| name.contains('@');
        let names = || listed.iter().map(|info| &info.name);
        match step {
            "without snapshots" => {
                let snapshots: Vec<String> = names().filter(is_snapshot).cloned().collect();
                let destroyed = destroyer.destroy_snapshots(&snapshots, false).await;
                destroyed.expect("destroy");
            }
            "without datasets" => {
                let names: Vec<&String> = names().filter(|name| **name != root).collect();
                for name in names.into_iter().rev() {
                    destroyer.destroy(name).await.expect("destroy");
                }
            }
            _ => {}
        }
        settle(&pool).await;
        condense(&pool).await;
        let now_bytes = mapping_bytes(&pool);
        assert!(now_bytes <= last_bytes, "{step}: {now_bytes}");
        if step == "without datasets" {
            assert!(now_bytes < last_bytes && pool::condensing(&pool).ended() > 0);
        }
        last_bytes = now_bytes;
        pool.export(false).await.expect("export");
        no_leaks(&dir, &root);
        scrub(&world, &dir).await;
    }
}

/// What OpenZFS began to remove is removed here, while the pool is written; and then nothing is
/// needed of the devices that left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_openzfs_began_ends_here() {
    let Some(golden) = golden() else { return };
    let images = Images::new();
    let dir = unpack(&golden, "removing", images.path());
    let world = World::system(2);
    let pool = import(&world, &dir).await;
    let dataset = pool.dsl().open_dataset("removing").await.expect("open");
    let objects = write_objects(&dataset, 6, 3).await;
    drop(dataset);
    let removal = pool::removal(&pool);
    removal.wait().await;
    let status = removal.status().expect("the last one");
    assert_eq!(status.state, pool::RemovalState::Finished);
    assert!(status.mapping_bytes > 0, "{status:?}");
    pool.sync().await.expect("sync");
    pool.export(false).await.expect("export");
    for gone in ["e0.img", "e1.img"] {
        std::fs::remove_file(dir.join(gone)).expect("it was there");
    }
    no_leaks(&dir, "removing");
    scrub(&world, &dir).await;
    let pool = import(&world, &dir).await;
    let dataset = pool.dsl().open_dataset("removing").await.expect("open");
    check_objects(&dataset, &objects, 3).await;
    drop(dataset);
    pool.export(false).await.expect("export");
}

/// Goal: whatever is on a vdev is moved, and freed where it is then: blocks in pieces, cloned,
/// deduplicated and encrypted ones, copies. Method: a pool of OpenZFS's making gets another disk,
/// what it had is removed while it is written, and then all is destroyed.
async fn is_moved(golden: &Path, name: &str) {
    let images = Images::new();
    let dir = unpack(golden, name, images.path());
    let world = World::system(2);
    let pool = import(&world, &dir).await;
    let root = pool.name();
    let tops = pool.pipeline().tree().tops();
    let [top] = &tops[..] else {
        panic!("{name} has several vdevs");
    };
    let (gone, ashift) = (top.guid().to_string(), top.ashift());
    let old: Vec<String> = top.leaves().iter().filter_map(|leaf| leaf.path()).collect();
    drop(tops);
    let path = dir.join("n0.img");
    std::fs::File::create(&path)
        .and_then(|file| file.set_len(512 << 20))
        .expect("an image");
    let addition = AddSpec {
        vdevs: vec![VdevSpec {
            layout: VdevLayout::Leaf(LeafSpec {
                path: path.to_str().expect("UTF-8").into(),
                is_file: true,
            }),
            class: VdevClass::Normal,
        }],
        ashift: Some(ashift as u8),
        force: true,
        ..AddSpec::default()
    };
    pool.add(&addition).await.expect("add");
    let dataset = pool.dsl().open_dataset(&root).await.expect("open");
    let freed = write_objects(&dataset, 6, 3).await;
    let removal = pool::removal(&pool);
    removal.set_turn_bytes(1 << 20);
    pool.remove(&gone).await.expect("begun");
    let objects = write_objects(&dataset, 6, 3).await;
    free_objects(&dataset, &freed).await;
    removal.set_turn_bytes(u64::MAX);
    removal.wait().await;
    let status = removal.status().expect("the last one");
    assert_eq!(status.state, pool::RemovalState::Finished, "{name}");
    assert!(status.copied_bytes > 1 << 20, "{status:?}");
    check_objects(&dataset, &objects, 3).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    for path in old {
        let file = Path::new(&path).file_name().expect("a name");
        std::fs::remove_file(dir.join(file)).expect("it was there");
    }
    no_leaks(&dir, &root);
    scrub(&world, &dir).await;

    let pool = import(&world, &dir).await;
    let all = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    // Clones go before their origins.
    for _ in 0..8 {
        let listed = pool.dsl().directories().list(&root, &all).await;
        let mut names: Vec<_> = listed.expect("list").into_iter().collect();
        names.retain(|info| info.name != root);
        for info in names.iter().rev() {
            let _ = pool.dsl().destroyer().destroy(&info.name).await;
        }
    }
    let left = pool.dsl().directories().list(&root, &all).await;
    let left = left.expect("list").len();
    // Snapshots with holds stay.
    assert!(left <= 4, "{name}: {left}");
    settle(&pool).await;
    let dataset = pool.dsl().open_dataset(&root).await.expect("open");
    check_objects(&dataset, &objects, 3).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    no_leaks(&dir, &root);
}

macro_rules! moved {
    ($($test:ident: $name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            if let Some(golden) = golden() {
                is_moved(&golden, stringify!($name)).await;
            }
        }
    )*};
}

moved!(
    blocks_in_pieces_are_moved_in_a_removal: gang
    cloned_blocks_are_moved_in_a_removal: cloned_blocks
    deduplicated_blocks_are_moved_in_a_removal: dedup_fast
    blocks_of_old_dedup_tables_are_moved_in_a_removal: dedup_legacy
    encrypted_blocks_are_moved_in_a_removal: encrypted
    blocks_of_all_kinds_are_moved_in_a_removal: plain
    unflushed_logs_of_space_are_moved_in_a_removal: mirror3
);
