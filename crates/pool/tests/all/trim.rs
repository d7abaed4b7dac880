//! Goal: with `autotrim=on` what is freed is given back by the files that a pool lies on, on all
//! layouts, and nothing else is; off, nothing is given back. Method: pools on sparse files, whose
//! blocks are counted; contents, parity (a scrub reads all of it) and zdb afterwards. What a crash
//! may find, crate `sim` tests.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use crate::layouts::scrub;
use dataset::Dataset;
use device::World;
use format::ObjectId;
use pool::{ImportSpec, LeafSpec, Pool, Rewind, VdevClass, VdevLayout, VdevSpec};

/// Bytes that all images take.
fn taken(dir: &Path) -> u64 {
    oracles::images(dir)
        .iter()
        .map(|path| path.metadata().expect("an image").blocks() * 512)
        .sum()
}

/// Has enough transaction groups pass for everything to get ripe; what these free themselves may
/// follow.
async fn pass_txgs(pool: &Pool) {
    for _ in 0..14 {
        pool.sync().await.expect("sync");
    }
}

/// Waits until `taken` is no more than `bytes`, a minute at most; tells what it is in the end.
async fn wait_until_taken(bytes: u64, taken: impl Fn() -> u64) -> u64 {
    for _ in 0..3000 {
        if taken() <= bytes {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    taken()
}

async fn open(pool: &Pool) -> Dataset {
    pool.dsl().open_dataset("tank").await.expect("open")
}

async fn make(world: &World, vdevs: Vec<VdevSpec>, autotrim: &str) -> Arc<Pool> {
    let mut spec = spec("tank", vdevs);
    spec.properties = vec![("autotrim".into(), autotrim.into())];
    let pool = Pool::create(world, spec).await.expect("create");
    pool.set_trim_batch_txgs(0);
    pool
}

/// Objects of 1 MiB (half of it on disk): written, and every fourth of them kept. Returns the kept
/// ones, and what the images took before and take after.
async fn write_and_free(pool: &Pool, dir: &Path, count: usize) -> (Vec<ObjectId>, u64, u64) {
    let dataset = open(pool).await;
    let objects = write_objects(&dataset, count, 8).await;
    pool.sync().await.expect("sync");
    let before = taken(dir);
    let (mut kept, mut freed) = (Vec::new(), Vec::new());
    for (index, id) in objects.into_iter().enumerate() {
        if index % 4 == 0 {
            &mut kept
        } else {
            &mut freed
        }
        .push(id);
    }
    free_objects(&dataset, &freed).await;
    pass_txgs(pool).await;
    let after = wait_until_taken(before * 2 / 3, || taken(dir)).await;
    (kept, before, after)
}

async fn check_layout(vdevs: Vec<VdevSpec>, images: &Images) {
    let name = format!("{vdevs:?}");
    let world = World::system(2);
    let pool = make(&world, vdevs, "on").await;
    let (mut kept, before, after) = write_and_free(&pool, images.path(), 32).await;
    assert!(after <= before * 2 / 3, "{before} to {after}: {name}");
    let dataset = open(&pool).await;
    check_objects(&dataset, &kept, 8).await;
    // What was given back is used again, and freed again.
    for _ in 0..3 {
        let more = write_objects(&dataset, 8, 8).await;
        pass_txgs(&pool).await;
        free_objects(&dataset, &more[..6]).await;
        pool.sync().await.expect("sync");
        kept.extend(&more[6..]);
    }
    drop(dataset);
    assert!(
        (pool.io_stats().values()).any(|leaf| leaf.individual[5].iter().sum::<u64>() > 0),
        "'zpool iostat -r' counts them"
    );
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    scrub(&world, images.path()).await;
    let pool = import(&world, images.path()).await;
    let dataset = open(&pool).await;
    check_objects(&dataset, &kept, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
}

fn raidz(parity: u8, leaves: Vec<LeafSpec>) -> Vec<VdevSpec> {
    vec![normal(VdevLayout::Raidz { parity, leaves })]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disks_and_mirrors_give_back_what_was_freed() {
    let images = Images::new();
    let leaves = images.make(3, 128);
    let vdevs = vec![
        normal(VdevLayout::Leaf(leaves[0].clone())),
        normal(VdevLayout::Mirror(leaves[1..].to_vec())),
    ];
    check_layout(vdevs, &images).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raidz_gives_back_what_was_freed() {
    for (parity, count) in [(1, 3), (1, 5), (2, 5), (3, 7)] {
        let images = Images::new();
        let leaves = images.make(count, 128);
        check_layout(raidz(parity, leaves), &images).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draid_gives_back_what_was_freed() {
    for (parity, data, spares, count) in [(1, 2, 1, 5), (2, 3, 1, 9)] {
        let images = Images::new();
        let draid = VdevLayout::Draid {
            parity,
            data,
            spares,
            leaves: images.make(count, 192),
        };
        check_layout(vec![normal(draid)], &images).await;
    }
}

/// Goal: log, special and dedup vdevs are trimmed too. Method: data that all goes to a special
/// vdev; a log that comes and goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_classes_give_back_what_was_freed() {
    let images = Images::new();
    let leaves = images.make(3, 128);
    let classed = |class, leaf: &LeafSpec| VdevSpec {
        layout: VdevLayout::Leaf(leaf.clone()),
        class,
    };
    let vdevs = vec![
        normal(VdevLayout::Leaf(leaves[0].clone())),
        classed(VdevClass::Special, &leaves[1]),
        classed(VdevClass::Log, &leaves[2]),
    ];
    let world = World::system(2);
    let mut spec = spec("tank", vdevs);
    spec.properties = vec![("autotrim".into(), "on".into())];
    spec.root_properties
        .push(("special_small_blocks".into(), "128K".into()));
    let pool = Pool::create(&world, spec).await.expect("create");
    pool.set_trim_batch_txgs(0);
    let dataset = open(&pool).await;
    let logged = write_logged(&dataset).await;
    drop(dataset);
    let blocks = |index: usize| {
        let path = images.path().join(format!("d{index}.img"));
        path.metadata().expect("an image").blocks() * 512
    };
    let with_log = blocks(2);
    let (kept, ..) = write_and_free(&pool, images.path(), 32).await;
    // 4 MiB of 16 are left there, with metadata.
    let special = wait_until_taken(10 << 20, || blocks(1)).await;
    assert!(special <= 10 << 20, "{special}");
    assert!(with_log > 128 << 10, "{with_log}");
    assert!(blocks(2) <= with_log);
    // A removed log vdev is nobody's to discard.
    pool.remove("d2.img").await.expect("remove");
    let dataset = open(&pool).await;
    check_objects(&dataset, &kept, 8).await;
    check_objects(&dataset, &[logged], 1).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    std::fs::remove_file(images.path().join("d2.img")).expect("the log");
    zdb_is_clean(images.path(), "tank");
}

/// Goal: the property begins and ends it at once, also at import; off, nothing is discarded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_property_says_whether_anything_is_discarded() {
    let images = Images::new();
    let leaves = images.make(3, 128);
    let world = World::system(2);
    let mut pool = make(&world, raidz(1, leaves), "off").await;
    let mut kept = Vec::new();
    let trims = |pool: &Pool| -> u64 {
        let stats = pool.io_stats();
        stats.values().flat_map(|leaf| leaf.individual[5]).sum()
    };
    let dir = images.path();
    let mut shrinks = async |pool: &Pool, on: bool| {
        let dataset = open(pool).await;
        let objects = write_objects(&dataset, 16, 8).await;
        pool.sync().await.expect("sync");
        free_objects(&dataset, &objects[1..]).await;
        kept.push(objects[0]);
        let before = taken(dir);
        pass_txgs(pool).await;
        if !on {
            // What must not happen has the time to.
            tokio::time::sleep(Duration::from_secs(3)).await;
            return taken(dir) + (6 << 20) < before;
        }
        wait_until_taken(before - (6 << 20), || taken(dir)).await <= before - (6 << 20)
    };
    assert!(!shrinks(&pool, false).await, "off by default");
    assert_eq!(trims(&pool), 0);
    pool.properties().set("autotrim", "on").await.expect("on");
    assert!(shrinks(&pool, true).await);
    pool.properties().set("autotrim", "off").await.expect("off");
    // A part that was being discarded is finished.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = trims(&pool);
    assert!(before > 0);
    assert!(!shrinks(&pool, false).await);
    assert_eq!(trims(&pool), before);
    pool.properties().set("autotrim", "on").await.expect("on");
    pool.export(false).await.expect("export");
    pool = import(&world, dir).await;
    pool.set_trim_batch_txgs(0);
    assert!(shrinks(&pool, true).await);
    let dataset = open(&pool).await;
    check_objects(&dataset, &kept, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(dir, "tank");
}

/// Goal: nothing that a checkpoint has is discarded. Method: most of what it has is freed, and
/// written anew, beside other data that comes and goes; then back to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_checkpoint_has_is_not_discarded() {
    let images = Images::new();
    let leaves = images.make(4, 128);
    let world = World::system(2);
    let pool = make(&world, raidz(1, leaves), "on").await;
    let dataset = open(&pool).await;
    let objects = write_objects(&dataset, 24, 8).await;
    let before = write_objects(&dataset, 8, 8).await;
    pool.sync().await.expect("sync");
    // On its way to be discarded when the checkpoint is made.
    free_objects(&dataset, &before).await;
    pool.sync().await.expect("sync");
    pool.checkpoint().await.expect("checkpoint");
    let others = write_objects(&dataset, 24, 8).await;
    pool.sync().await.expect("sync");
    let most = taken(images.path());
    free_objects(&dataset, &objects).await;
    free_objects(&dataset, &others).await;
    pass_txgs(&pool).await;
    let least = wait_until_taken(most - (10 << 20), || taken(images.path())).await;
    assert!(least <= most - (10 << 20), "{most} to {least}");
    drop(dataset);
    pool.export(false).await.expect("export");
    let text = zdb(images.path(), "tank", &["-k", "-bcc"]);
    assert!(text.contains("No leaks"), "{text}");
    let mut spec = ImportSpec::new(find(&world, images.path()).await, host());
    spec.rewind = Rewind::Checkpoint;
    let pool = Pool::import(&world, spec).await.expect("rewind");
    let dataset = open(&pool).await;
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    scrub(&world, images.path()).await;
}

/// Goal: an idle pool discards what was freed without anybody's doing, and comes to rest. Method:
/// transaction groups that are only asked for, not given anything to write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_pool_discards_and_comes_to_rest() {
    let images = Images::new();
    let leaves = images.make(1, 128);
    let world = World::system(2);
    let vdevs = vec![normal(VdevLayout::Leaf(leaves[0].clone()))];
    let pool = make(&world, vdevs, "on").await;
    pool.set_trim_batch_txgs(8);
    let dataset = open(&pool).await;
    let objects = write_objects(&dataset, 16, 8).await;
    pool.sync().await.expect("sync");
    let before = taken(images.path());
    free_objects(&dataset, &objects).await;
    for _ in 0..30 {
        pool.sync().await.expect("sync");
    }
    let after = wait_until_taken(before - (6 << 20), || taken(images.path())).await;
    assert!(after <= before - (6 << 20), "{before} to {after}");
    // It is counted a moment after it is gone.
    let counted = || {
        let status = pool.status().root;
        status.trim_ops > 0 && status.trim_bytes >= 6 << 20
    };
    for _ in 0..300 {
        if counted() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(counted());
    let written = |pool: &Pool| pool.status().root.write_ops;
    let rest = written(&pool);
    for _ in 0..40 {
        pool.sync().await.expect("sync");
    }
    assert_eq!(written(&pool), rest, "nothing is written for nothing");
}

const SCRUB: &str = r"
set -e
zpool import -d /dev/disk/peer -N tank
zpool get -H -o property,value autotrim tank
zpool scrub -w tank
zpool status tank
zpool export tank
echo PEER-DONE
";

/// Goal: the real OpenZFS imports a pool that was trimmed, and scrubs it clean.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_scrubs_a_pool_that_was_trimmed() {
    let Some(peer) = Peer::find() else { return };
    let images = Images::new();
    let disks: Vec<LeafSpec> = (images.make(7, 128).into_iter())
        .map(|leaf| LeafSpec {
            is_file: false,
            ..leaf
        })
        .collect();
    let mut vdevs = raidz(1, disks[..5].to_vec());
    vdevs.push(VdevSpec {
        layout: VdevLayout::Mirror(disks[5..].to_vec()),
        class: VdevClass::Special,
    });
    let world = World::system(2);
    let pool = make(&world, vdevs, "on").await;
    let (kept, before, after) = write_and_free(&pool, images.path(), 48).await;
    assert!(after <= before * 2 / 3, "{before} to {after}");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let text = run_in_peer(&peer, images.path(), SCRUB);
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(text.contains("autotrim\ton"), "{text}");
    assert!(text.contains("scrub repaired 0B"), "{text}");
    assert!(text.contains("errors: No known data errors"), "{text}");
    let pool = import(&world, images.path()).await;
    let dataset = open(&pool).await;
    check_objects(&dataset, &kept, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}
