//! Goal: unlinked files are freed when nobody uses them any more, all of those that gathered, also
//! when the filesystem is closed at that very moment. Method: the delete queue and the objects on
//! disk are counted.

use std::time::Duration;

use crate::common::*;
use dataset::Dataset;
use device::World;
use filesystem::XattrMode;
use format::ObjectId;
use object::{Zap, ZapCursor};
use pool::Pool;

const FILES: usize = 300;

/// Entries of the delete queue, and objects on disk.
async fn left(pool: &Pool, dataset: &Dataset) -> (usize, u64) {
    pool.sync().await.expect("sync");
    let master = Zap::hold(dataset.objset(), ObjectId::MASTER_NODE)
        .await
        .expect("a master node");
    let queue = master.lookup_u64("DELETE_QUEUE").await.expect("readable");
    let queue = Zap::hold(dataset.objset(), ObjectId::new(queue.expect("a queue")))
        .await
        .expect("the queue");
    let entries = queue.entries(ZapCursor::START, 2 * FILES).await;
    (
        entries.expect("readable").len(),
        dataset.objset().object_count(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_nobody_uses_any_more_are_freed_though_the_filesystem_closes() {
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let root = fs.root();
    let before = left(&pool, &fs.dataset().expect("open")).await;
    let mut files = Vec::new();
    for number in 0..FILES {
        let name = format!("f{number}");
        let file = fs.create(root, name.as_bytes(), 0o644, ROOT).await;
        let ino = file.expect("create").ino;
        let data = vec![7; 3000].into();
        fs.write(ino, 0, data, false, ROOT).await.expect("write");
        fs.retain(ino, 1);
        files.push((ino, name));
    }
    for (_, name) in &files {
        fs.unlink(root, name.as_bytes()).await.expect("unlink");
    }
    let (queued, objects) = left(&pool, &fs.dataset().expect("open")).await;
    assert_eq!((queued, objects), (FILES, before.1 + FILES as u64));
    // One that is taken up again before its turn has come stays until it is let go of.
    let kept = files[0].0;
    fs.release(kept, 1);
    fs.retain(kept, 1);
    // While others gather and are freed, more come.
    for (ino, _) in &files[1..] {
        fs.release(*ino, 1);
        if ino % 50 == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
    let data = fs.read(kept, 0, 4096).await.expect("its content is there");
    assert_eq!(data.iter().map(|piece| piece.len()).sum::<usize>(), 3000);
    fs.close().await.expect("close");
    drop(fs);

    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let (queued, objects) = left(&pool, &dataset).await;
    assert_eq!((queued, objects), (1, before.1 + 1));
    drop(dataset);
    // What is left over is freed by who opens the filesystem the next time.
    let fs = open(&world, &pool, "tank").await;
    for _ in 0..500 {
        if left(&pool, &fs.dataset().expect("open")).await == before {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(left(&pool, &fs.dataset().expect("open")).await, before);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// A file without a name is freed by its last user also where nobody has read it since the
/// filesystem was opened: a mount takes what the kernel has open along to another state.
#[tokio::test]
async fn the_last_user_frees_a_file_that_is_not_in_memory() {
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let before = left(&pool, &fs.dataset().expect("open")).await;
    let file = fs.create(fs.root(), b"f", 0o644, ROOT).await;
    let ino = file.expect("create").ino;
    fs.retain(ino, 1);
    fs.unlink(fs.root(), b"f").await.expect("unlink");
    fs.close().await.expect("close");
    drop(fs);
    let fs = open(&world, &pool, "tank").await;
    fs.retain(ino, 1);
    let used = left(&pool, &fs.dataset().expect("open")).await;
    assert_eq!(used, (1, before.1 + 1), "it is in use");
    assert!(fs.release(ino, 1));
    // What was listed is freed before it is closed.
    fs.close().await.expect("close");
    drop(fs);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    assert_eq!(left(&pool, &dataset).await, before);
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Goal: of files that are unlinked one after the other the small ones are freed together, and the
/// others all the same: long ones, those with attributes in a directory, and those in use later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_all_kinds_that_gather_are_freed() {
    let world = World::system(2);
    let image = Image::new(256);
    let pool = create(&world, &image, &[("xattr", "dir")]).await;
    let fs = open(&world, &pool, "tank").await;
    let root = fs.root();
    let before = left(&pool, &fs.dataset().expect("open")).await;
    let mut inos = Vec::new();
    for number in 0..100 {
        let name = format!("f{number}");
        let name = name.as_bytes();
        if number % 5 == 0 {
            let made = fs.symlink(root, name, b"target", ROOT).await;
            inos.push(made.expect("a link").ino);
            continue;
        }
        let made = fs.create(root, name, 0o644, ROOT).await;
        let ino = made.expect("create").ino;
        let length = [0, 0, 2000, 700_000, 10_000][number % 5];
        let data = vec![number as u8; length].into();
        fs.write(ino, 0, data, false, ROOT).await.expect("write");
        if number % 5 == 4 {
            let set = fs.xattrs().set(ino, b"user.a", b"b", XattrMode::Any, ROOT);
            set.await.expect("an attribute");
        }
        inos.push(ino);
    }
    fs.retain(inos[2], 1);
    fs.retain(inos[3], 1);
    // Some are on disk when they are freed, some are not.
    for number in 0..100 {
        if number == 50 {
            pool.sync().await.expect("sync");
        }
        let name = format!("f{number}");
        fs.unlink(root, name.as_bytes()).await.expect("unlink");
    }
    assert!(fs.release(inos[3], 1));
    while fs.unlinked().count().await.expect("readable") > before.0 as u64 + 1 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    fs.close().await.expect("close");
    drop(fs);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let (queued, objects) = left(&pool, &dataset).await;
    assert_eq!(
        (queued, objects),
        (before.0 + 1, before.1 + 1),
        "one is in use"
    );
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}
