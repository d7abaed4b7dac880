//! Goal: a clone is as good as a copy wherever the block that it shares lies: on a vdev that was
//! removed, at the very end of a vdev. The table of cloned blocks counts it, and after a crash the
//! log that tells of it is replayed with all that follows. Method: files that are cloned in the
//! simulated world, a crash, a look at all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::common::golden::removed;
use crate::common::{ROOT, data, get, open, put};
use dataset::DirtyEstimate;
use device::sim::{PowerCut, SimWorld};
use filesystem::Filesystem;
use format::{Dva, VdevId};
use pool::Pool;
use sim::golden::Golden;
use sim::model::{Ids, observe_files};
use sim::torture::{Layout, create_with, import, simulate};
use sim::verify::verify_pool;

/// Files that the test makes.
const SMALL_FILES: u64 = 12;

/// The same file once more, by cloning all of its blocks that can be.
async fn clone(fs: &Filesystem, from: u64, name: &str) -> u64 {
    let length = fs.attributes(from).await.unwrap().size_bytes;
    let made = fs.create(fs.root(), name.as_bytes(), 0o644, ROOT);
    let to = made.await.unwrap().ino;
    let mut done = 0;
    while done < length {
        let copied = fs.copy_range(from, done, to, done, length - done, ROOT);
        let copied = copied.await.unwrap();
        assert!(copied > 0, "{name}: {done} of {length} bytes");
        done += copied;
    }
    to
}

/// Clones of these files, each of them promised, and promises behind them.
async fn clone_all(fs: &Filesystem, files: &BTreeMap<String, u64>) {
    for (name, ino) in files {
        let copy = clone(fs, *ino, &format!("copy-of-{name}")).await;
        fs.sync_file(copy).await.unwrap();
    }
    for number in 0..SMALL_FILES {
        let ino = put(fs, &format!("small{number}"), &data(number, 3000))
            .await
            .unwrap();
        fs.sync_file(ino).await.unwrap();
    }
}

async fn check(fs: &Filesystem, content: &BTreeMap<String, Vec<u8>>) {
    for (name, wanted) in content {
        let found = get(fs, &format!("copy-of-{name}")).await.unwrap();
        assert!(found == *wanted, "the copy of {name} is another");
    }
    for number in 0..SMALL_FILES {
        let name = format!("small{number}");
        assert_eq!(get(fs, &name).await.unwrap(), data(number, 3000), "{name}");
    }
}

async fn cut(sim: &SimWorld, pool: Arc<Pool>, fs: Arc<Filesystem>) {
    sim.power_cut(PowerCut::LoseUnflushed);
    sim.kill_tasks().await;
    pool.dsl().tasks().close();
    drop((pool, fs));
    sim.kill_tasks().await;
    sim.power_on();
}

/// The regular files in the top directory and below it, by a name of their own.
async fn files_of(fs: &Filesystem) -> (BTreeMap<String, u64>, BTreeMap<String, Vec<u8>>) {
    let mut ids = Ids::default();
    let seen = observe_files(fs, &mut ids).await.unwrap();
    let (mut files, mut content) = (BTreeMap::new(), BTreeMap::new());
    for id in seen.of_kind(filesystem::FileKind::Regular) {
        let name = format!("{id:03}");
        files.insert(name.clone(), ids.ino(fs, id));
        content.insert(name, seen.files[&id].data.to_vec());
    }
    (files, content)
}

async fn begin_removed(golden: &Golden, seed: u64) -> (SimWorld, Arc<Pool>, Arc<Filesystem>) {
    let sim = SimWorld::new(seed);
    let pool = golden.begin(&sim, true).await.unwrap();
    let fs = open(&sim, &pool).await.unwrap();
    (sim, pool, fs)
}

/// What the verifier says of a pool with removed vdevs, of whose remapped blocks it knows nothing.
async fn problems(sim: &SimWorld) -> (BTreeSet<String>, u64) {
    let pool = import(sim, true).await.unwrap();
    let report = verify_pool(&pool).await.unwrap();
    pool.export(false).await.unwrap();
    let problems = report.problems.into_iter().collect();
    (problems, report.cloned_references)
}

/// The same of the pool as it was made.
async fn problems_before(golden: &Golden) -> BTreeSet<String> {
    let sim = SimWorld::new(0);
    let pool = golden.begin(&sim, true).await.unwrap();
    pool.export(false).await.unwrap();
    problems(&sim).await.0
}

/// Leaves those files alone of which a block lies on a vdev that is there.
async fn keep_removed(pool: &Pool, fs: &Filesystem, files: &mut BTreeMap<String, u64>) {
    let dataset = pool.dsl().open_dataset(&pool.name()).await.unwrap();
    let tree = pool.pipeline().tree();
    let mut kept = BTreeMap::new();
    for (name, ino) in std::mem::take(files) {
        let length = fs.attributes(ino).await.unwrap().size_bytes;
        let object = dataset.objset().hold(ino.into()).await.unwrap();
        let blocks = length.div_ceil(u64::from(object.info().data_block_bytes));
        let found = object.shareable_blocks(0, blocks, pool.synced_txg()).await;
        let pointers = found.unwrap().unwrap_or_default();
        let is_removed = |vdev| tree.top(vdev).unwrap().kind().is_indirect();
        let mut places = pointers.iter().flat_map(|pointer| pointer.dvas());
        if !pointers.is_empty() && places.all(|dva| is_removed(dva.vdev())) {
            kept.insert(name, ino);
        }
    }
    *files = kept;
    assert!(files.len() > 5, "the tests are about nothing");
}

/// The clones are counted in the table of the removed vdev, and freed again.
#[test]
fn blocks_of_removed_vdevs_are_cloned() {
    let Some(golden) = removed() else { return };
    simulate(async move {
        let (sim, pool, fs) = begin_removed(golden, 1).await;
        let (mut files, mut content) = files_of(&fs).await;
        keep_removed(&pool, &fs, &mut files).await;
        content.retain(|name, _| files.contains_key(name));
        clone_all(&fs, &files).await;
        pool.sync().await.unwrap();
        assert!(pool.properties().get("bcloneused").unwrap().value != "0");
        check(&fs, &content).await;
        for name in files.keys() {
            let name = format!("copy-of-{name}");
            fs.unlink(fs.root(), name.as_bytes()).await.unwrap();
        }
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
        drop(pool);
        let (found, references) = problems(&sim).await;
        let before = problems_before(golden).await;
        let new: Vec<_> = found.difference(&before).collect();
        assert!(new.is_empty(), "{new:#?}");
        assert_eq!(references, 0);
    });
}

/// The log that tells of them is claimed and replayed as a whole.
#[test]
fn clones_of_blocks_of_removed_vdevs_survive_a_crash() {
    let Some(golden) = removed() else { return };
    simulate(async move {
        let (sim, pool, fs) = begin_removed(golden, 2).await;
        let (mut files, mut content) = files_of(&fs).await;
        keep_removed(&pool, &fs, &mut files).await;
        content.retain(|name, _| files.contains_key(name));
        clone_all(&fs, &files).await;
        cut(&sim, pool, fs).await;
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        check(&fs, &content).await;
        pool.sync().await.unwrap();
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
        drop(pool);
        let (found, references) = problems(&sim).await;
        let before = problems_before(golden).await;
        let new: Vec<_> = found.difference(&before).collect();
        assert!(new.is_empty(), "{new:#?}");
        assert!(references > 0);
    });
}

/// A dRAID whose metaslabs lose much by being cut to stripes, and of which nothing is free but a
/// little everywhere, and a little more at the very end.
async fn full_draid(sim: &SimWorld) -> Arc<Pool> {
    /// A stripe.
    const UNIT_BYTES: u64 = 31 << 16;
    const LEFT_BYTES: u64 = 30 << 20;
    const LEFT_AT_THE_END_BYTES: u64 = 60 << 20;
    let layout = Layout::Draid(1, 30, 0, 31);
    let properties = vec![("ashift".to_owned(), "16".to_owned())];
    let pool = create_with(sim, layout, 1024, false, properties);
    let pool = pool.await.unwrap();
    pool.sync().await.unwrap();
    let vdev = VdevId::new(0);
    let allocator = pool.pipeline().allocator().clone();
    let dataset = pool.dsl().open_dataset(&pool.name()).await.unwrap();
    let tx = dataset.assign(DirtyEstimate::free()).await.unwrap();
    let metaslabs = allocator.metaslab_spaces(vdev);
    let last = metaslabs.len() - 1;
    for (index, (span, _)) in metaslabs.into_iter().enumerate() {
        let left = match index == last {
            true => LEFT_AT_THE_END_BYTES,
            false => LEFT_BYTES,
        };
        let end = span.end - left / UNIT_BYTES * UNIT_BYTES;
        for start in (span.start..end).step_by(UNIT_BYTES as usize) {
            let place = Dva::new(vdev, start, UNIT_BYTES, false).unwrap();
            // Some are taken already.
            let _ = allocator.claim(tx.txg(), &place).await;
        }
    }
    drop((tx, dataset));
    pool.sync().await.unwrap();
    pool
}

/// Offsets near the end of a dRAID are behind the sum of its metaslabs' sizes.
#[test]
fn blocks_at_the_end_of_a_draid_are_cloned_and_survive_a_crash() {
    simulate(async {
        let sim = SimWorld::new(3);
        let pool = full_draid(&sim).await;
        let fs = open(&sim, &pool).await.unwrap();
        let (mut files, mut content) = (BTreeMap::new(), BTreeMap::new());
        for number in 0..8 {
            let name = format!("{number}");
            let bytes = data(100 + number, 8000);
            files.insert(name.clone(), put(&fs, &name, &bytes).await.unwrap());
            content.insert(name, bytes.to_vec());
        }
        pool.sync().await.unwrap();
        let space = pool.pipeline().allocator().top_spaces()[0];
        let dataset = pool.dsl().open_dataset(&pool.name()).await.unwrap();
        let mut behind = 0;
        for ino in files.values() {
            let object = dataset.objset().hold((*ino).into()).await.unwrap();
            let found = object.shareable_blocks(0, 1, pool.synced_txg()).await;
            let pointer = found.unwrap().unwrap()[0];
            let offset_bytes = pointer.dva(0).unwrap().offset_bytes();
            behind += u64::from(offset_bytes > space.size_bytes + (16 << 20));
        }
        assert!(behind > 0, "the test is about nothing");
        drop(dataset);
        clone_all(&fs, &files).await;
        cut(&sim, pool, fs).await;
        let pool = import(&sim, false).await.unwrap();
        let fs = open(&sim, &pool).await.unwrap();
        check(&fs, &content).await;
        pool.sync().await.unwrap();
        check(&fs, &content).await;
        assert!(pool.properties().get("bcloneused").unwrap().value != "0");
        fs.close().await.unwrap();
        pool.export(false).await.unwrap();
    });
}
