//! Goal: destroying a clone frees all that it allocated and nothing else, by the list of that which
//! it keeps, also after crashes; a list is there as long as it is of use. Method: clones that are
//! written over, cut off from power and destroyed; the pool's numbers of allocated bytes, what the
//! origin has, and zdb, which reads lists with `-y` and counts them.

use std::process::Command;
use std::sync::Arc;

use crate::common::*;
use bytes::Bytes;
use device::World;
use filesystem::Filesystem;
use pool::{FeatureChoice, Pool};

const LIVELIST: &str = "com.delphix:livelist";

fn has_lists(pool: &Pool) -> bool {
    pool.dsl().features().is_active(LIVELIST)
}

async fn fill(fs: &Filesystem, name: &str, data: &[u8]) -> u64 {
    let made = fs.create(fs.root(), name.as_bytes(), 0o644, ROOT).await;
    let ino = made.expect("create").ino;
    write(fs, ino, 0, data).await;
    ino
}

async fn write(fs: &Filesystem, ino: u64, offset: u64, data: &[u8]) {
    for (at, part) in data.chunks(1 << 20).enumerate() {
        let offset = offset + ((at as u64) << 20);
        let part = Bytes::copy_from_slice(part);
        let done = fs.write(ino, offset, part, false, ROOT).await;
        done.expect("write");
    }
}

async fn content(fs: &Filesystem, name: &str) -> Vec<u8> {
    let found = fs.lookup(fs.root(), name.as_bytes()).await;
    let ino = found.expect("lookup").ino;
    let size = fs.attributes(ino).await.expect("attributes").size_bytes;
    fs.read(ino, 0, size as usize).await.expect("read").concat()
}

/// Waits until nothing is left to free.
async fn settle(pool: &Pool) -> u64 {
    for _ in 0..100 {
        pool.sync().await.expect("sync");
        if pool
            .properties()
            .get("freeing")
            .is_some_and(|freeing| freeing.value == "0")
        {
            break;
        }
    }
    for _ in 0..4 {
        pool.sync().await.expect("sync");
    }
    pool.numbers().allocated_bytes
}

fn run_zdb(image: &Image, words: &[&str]) -> String {
    let output = Command::new(ZDB)
        .args(["-e", "-p"])
        .arg(image.path())
        .args(words)
        .output()
        .expect("zdb (Debian package zfsutils-linux) is needed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "zdb {words:?} says:\n{text}");
    text
}

fn lists_are_right(image: &Image) {
    zdb_is_clean(image.path(), "tank");
    let text = run_zdb(image, &["-y", "tank"]);
    assert!(
        text.contains("Verifying deleted livelist entries"),
        "{text}"
    );
}

async fn origin(pool: &Pool, world: &World, data: &[u8]) {
    let fs = open(world, pool, "tank").await;
    fill(&fs, "file", data).await;
    fs.close().await.expect("close");
    let names = ["tank@s".to_owned()];
    let taken = pool.dsl().snapshots().take(&names, &[]).await;
    taken.expect("snapshot");
}

async fn clone_of(pool: &Pool, name: &str) {
    let datasets = pool.dsl().datasets();
    let cloned = datasets.clone_snapshot("tank@s", name, &[]).await;
    cloned.expect("clone");
}

async fn leave(image: &Image, world: &World, pool: Arc<Pool>) -> Arc<Pool> {
    pool.export(false).await.expect("export");
    drop(pool);
    lists_are_right(image);
    import(world, image.path(), false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroyed_clone_frees_what_it_allocated() {
    let (image, world) = (Image::new(256), World::system(2));
    let pool = create(&world, &image, &[]).await;
    let data = Random(3).bytes(16 << 20);
    origin(&pool, &world, &data).await;
    let before = settle(&pool).await;
    assert!(!has_lists(&pool));
    clone_of(&pool, "tank/c").await;
    assert!(has_lists(&pool));
    let mut changed = data.clone();
    let mut pool = leave(&image, &world, pool).await;
    for turn in 0..4u64 {
        let fs = open(&world, &pool, "tank/c").await;
        let ino = fs.lookup(fs.root(), b"file").await.expect("lookup").ino;
        let part = Random(turn).bytes(700_000);
        let at = turn * 300_000;
        write(&fs, ino, at, &part).await;
        changed[at as usize..at as usize + part.len()].copy_from_slice(&part);
        // Born and gone between two syncs, and in another one.
        fill(&fs, &format!("new{turn}"), &part[..200_000]).await;
        let root = fs.root();
        fs.unlink(root, format!("new{turn}").as_bytes())
            .await
            .expect("unlink");
        if turn > 0 {
            let old = format!("kept{}", turn - 1);
            fs.unlink(root, old.as_bytes()).await.expect("unlink");
        }
        fill(&fs, &format!("kept{turn}"), &part[..300_000]).await;
        fs.close().await.expect("close");
        pool = leave(&image, &world, pool).await;
    }
    assert!(has_lists(&pool));
    let fs = open(&world, &pool, "tank/c").await;
    assert!(content(&fs, "file").await == changed);
    fs.close().await.expect("close");
    // A snapshot of the clone has blocks that the clone gives up.
    let names = ["tank/c@t".to_owned()];
    let dsl = pool.dsl();
    dsl.snapshots().take(&names, &[]).await.expect("snapshot");
    let fs = open(&world, &pool, "tank/c").await;
    fs.unlink(fs.root(), b"kept3").await.expect("unlink");
    fs.close().await.expect("close");
    pool.sync().await.expect("sync");
    dsl.destroyer()
        .destroy_snapshots(&names, false)
        .await
        .expect("destroy");
    let pool = leave(&image, &world, pool).await;
    pool.dsl()
        .destroyer()
        .destroy("tank/c")
        .await
        .expect("destroy");
    // What a power cut leaves here goes on at the next import.
    let cut = cut(&image);
    let after = settle(&pool).await;
    assert!(!has_lists(&pool), "the list goes with the last block");
    assert!(after <= before + (1 << 20), "{before} {after}");
    let pool = leave(&image, &world, pool).await;
    let fs = open(&world, &pool, "tank").await;
    assert!(content(&fs, "file").await == data);
    fs.close().await.expect("close");
    pool.export(false).await.expect("export");
    let pool = import(&world, cut.path(), false).await;
    let after = settle(&pool).await;
    assert!(!has_lists(&pool) && after <= before + (1 << 20));
    pool.export(false).await.expect("export");
    lists_are_right(&cut);
}

/// Where a clone has little left of its origin, its list goes; so it does where another dataset
/// gets its contents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_go_where_they_are_of_no_use() {
    let (image, world) = (Image::new(256), World::system(2));
    let pool = create(&world, &image, &[]).await;
    let data = Random(4).bytes(8 << 20);
    origin(&pool, &world, &data).await;
    let before = settle(&pool).await;
    for name in ["tank/other", "tank/promoted", "tank/back"] {
        clone_of(&pool, name).await;
    }
    let fs = open(&world, &pool, "tank/other").await;
    let ino = fs.lookup(fs.root(), b"file").await.expect("lookup").ino;
    write(&fs, ino, 0, &Random(5).bytes(3 << 20)).await;
    fs.close().await.expect("close");
    pool.sync().await.expect("sync");
    assert!(has_lists(&pool), "the others have theirs");
    let dsl = pool.dsl();
    dsl.snapshots()
        .promote("tank/promoted")
        .await
        .expect("promote");
    dsl.snapshots().promote("tank").await.expect("promote");
    let names = ["tank/back@u".to_owned()];
    dsl.snapshots().take(&names, &[]).await.expect("snapshot");
    let to = Some("tank/back@u");
    let rolled = dsl.snapshots().rollback("tank/back", to).await;
    rolled.expect("rollback");
    pool.sync().await.expect("sync");
    assert!(!has_lists(&pool));
    dsl.destroyer()
        .destroy_snapshots(&names, false)
        .await
        .expect("destroy");
    let pool = leave(&image, &world, pool).await;
    for name in ["tank/other", "tank/promoted", "tank/back"] {
        pool.dsl().destroyer().destroy(name).await.expect("destroy");
    }
    assert!(settle(&pool).await <= before + (1 << 20));
    leave(&image, &world, pool)
        .await
        .export(false)
        .await
        .expect("export");
}

/// A list of a clone that is written over again and again does not grow without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_a_list_become_one() {
    let (image, world) = (Image::new(512), World::system(2));
    let properties = [("recordsize", "512"), ("compression", "off")];
    let mut spec = spec_with(&image, FeatureChoice::All, &properties);
    spec.properties.push(("ashift".into(), "9".into()));
    let pool = Pool::create(&world, spec).await.expect("create");
    let data = Random(6).bytes(48 << 20);
    origin(&pool, &world, &data).await;
    let before = settle(&pool).await;
    clone_of(&pool, "tank/c").await;
    for turn in 0..5u64 {
        let fs = open(&world, &pool, "tank/c").await;
        let ino = fs.lookup(fs.root(), b"file").await.expect("lookup").ino;
        write(&fs, ino, 0, &Random(10 + turn).bytes(9 << 20)).await;
        fs.close().await.expect("close");
        pool.sync().await.expect("sync");
    }
    assert!(has_lists(&pool));
    pool.export(false).await.expect("export");
    lists_are_right(&image);
    let text = run_zdb(&image, &["-dddd", "tank/c"]);
    let list = text.split("Livelist:").nth(1).expect("a livelist");
    let parts = list.lines().filter(|line| line.contains("mintxg")).count();
    // Each turn fills one, and leaves nothing of the one before.
    assert!((2..=3).contains(&parts), "{parts}");
    let pool = import(&world, image.path(), false).await;
    pool.dsl()
        .destroyer()
        .destroy("tank/c")
        .await
        .expect("destroy");
    assert!(settle(&pool).await <= before + (1 << 20));
    let pool = leave(&image, &world, pool).await;
    let fs = open(&world, &pool, "tank").await;
    assert!(content(&fs, "file").await == data);
    fs.close().await.expect("close");
    pool.export(false).await.expect("export");
}
