//! Goal: files in memory count in the cache's limit, are given back down to their share of it, and
//! what is known only in memory survives that. Method: the bytes that are charged, while many files
//! of several filesystems are made, walked, read, opened and unlinked with a small cache.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::common::*;
use dataset::PropertyChange;
use device::World;
use filesystem::{Filesystem, FsError};
use pool::Pool;
use zio::Holder;

const CACHE_BYTES: u64 = 16 << 20;
const FILES: usize = 4000;
const FILESYSTEMS: usize = 4;

/// What may be charged: the share, and the step above it until memory is asked back.
const BOUND_BYTES: u64 = CACHE_BYTES / 2 + CACHE_BYTES / 2 / 64 + (64 << 10);

fn charged(pool: &Pool) -> u64 {
    pool.pipeline().cache().stats().charged_bytes
}

async fn set(pool: &Pool, property: &str, value: &str) {
    let change = PropertyChange::Set(value.to_owned());
    let changes = [(property.to_owned(), change)];
    let set = pool.dsl().properties().set("tank", &changes).await;
    set.expect("set");
}

async fn several(world: &World, pool: &Pool) -> Vec<Arc<Filesystem>> {
    let mut all = vec![open(world, pool, "tank").await];
    for number in 1..FILESYSTEMS {
        let name = format!("tank/fs{number}");
        let init = Arc::new(filesystem::ZplInit::new());
        let made = pool.dsl().datasets().create(&name, &[], init).await;
        made.expect("create");
        all.push(open(world, pool, &name).await);
    }
    all
}

fn name(number: usize) -> Vec<u8> {
    format!("f{number}").into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_files_of_several_filesystems_stay_within_the_share() {
    let world = World::system(2);
    let image = Image::new(512);
    let pool = create(&world, &image, &[("atime", "off")]).await;
    let all = several(&world, &pool).await;
    pool.pipeline()
        .cache()
        .shared()
        .set_limit_bytes(CACHE_BYTES);
    let empty = charged(&pool);
    for number in 0..FILES {
        let fs = &all[number % FILESYSTEMS];
        let made = fs.create(fs.root(), &name(number), 0o644, ROOT).await;
        let ino = made.expect("create").ino;
        let data = number.to_le_bytes().to_vec().into();
        fs.write(ino, 0, data, false, ROOT).await.expect("write");
        // As the kernel of a mount does, which forgets nothing here.
        fs.retain(ino, 1);
    }
    // New objects stay until they are on disk.
    pool.sync().await.expect("sync");
    assert!(charged(&pool) <= BOUND_BYTES, "{}", charged(&pool));
    for _ in 0..2 {
        for number in 0..FILES {
            let fs = &all[number % FILESYSTEMS];
            let found = fs.lookup(fs.root(), &name(number)).await.expect("there");
            assert!(charged(&pool) <= BOUND_BYTES, "{}", charged(&pool));
            let data = fs.read(found.ino, 0, 8).await.expect("read");
            assert_eq!(data.concat(), number.to_le_bytes());
        }
    }
    // Without room nothing stays that nobody uses; what kernels know is counted still.
    pool.pipeline().cache().shared().set_limit_bytes(0);
    let idle = charged(&pool);
    assert!(idle < empty + (FILES as u64) * 100, "{idle}");
    for fs in &all {
        let retained = fs.retained();
        assert_eq!(retained.len(), FILES / FILESYSTEMS);
        for (ino, count) in retained {
            fs.release(ino, count);
        }
        fs.close().await.expect("close");
    }
    drop(all);
    let left = charged(&pool);
    assert!(left <= empty + (64 << 10), "{left} of {empty}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_only_in_memory_survives() {
    let world = World::system(2);
    let image = Image::new(256);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    set(&pool, "atime", "on").await;
    set(&pool, "relatime", "off").await;
    // Everything that can be given back is, at each step.
    let cache = pool.pipeline().cache();
    cache.shared().set_limit_bytes(0);
    let root = fs.root();
    let make = async |name: &str| {
        let made = fs.create(root, name.as_bytes(), 0o644, ROOT).await;
        let made = made.expect("create");
        let data = vec![5; 3000].into();
        fs.write(made.ino, 0, data, false, ROOT)
            .await
            .expect("write");
        made
    };
    let read_at = make("read").await;
    let opened = make("opened").await;
    fs.retain(opened.ino, 1);
    pool.sync().await.expect("sync");
    cache.shared().set_limit_bytes(0);

    // An access time that is to be stored.
    fs.read(read_at.ino, 0, 100).await.expect("read");
    let accessed = fs.attributes(read_at.ino).await.expect("there").atime;
    assert!(accessed > read_at.atime);
    // A change that is not on disk yet.
    let changed = fs.write(read_at.ino, 3000, vec![6; 500].into(), false, ROOT);
    changed.await.expect("write");
    // An open file without a name.
    fs.unlink(root, b"opened").await.expect("unlink");
    for _ in 0..2 {
        cache.shared().set_limit_bytes(0);
        let now = fs.attributes(read_at.ino).await.expect("there");
        assert_eq!((now.atime, now.size_bytes), (accessed, 3500));
        let data = fs.read(opened.ino, 0, 4096).await.expect("its content");
        assert_eq!(data.concat(), vec![5; 3000]);
        assert_eq!(fs.attributes(opened.ino).await.expect("there").nlink, 0);
        pool.sync().await.expect("sync");
        fs.store_access_times().await;
    }
    let stored = fs.attributes(read_at.ino).await.expect("there").atime;
    assert!(stored >= accessed);
    // The last user is gone, and the file with it, whether its node is in memory or not.
    cache.shared().set_limit_bytes(0);
    assert!(fs.release(opened.ino, 1));
    fs.close().await.expect("close");
    drop(fs);
    let fs = open(&world, &pool, "tank").await;
    let gone = fs.attributes(opened.ino).await;
    assert!(matches!(gone, Err(FsError::Stale { .. })), "{gone:?}");
    let after = fs.attributes(read_at.ino).await.expect("there");
    assert_eq!((after.atime, after.size_bytes), (stored, 3500));
    fs.close().await.expect("close");
}

/// Where there is no room for access times, those that cannot be stored do not keep their files in
/// memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_times_that_cannot_be_stored_are_given_up_for_memory() {
    let world = World::system(2);
    let image = Image::new(256);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    set(&pool, "atime", "on").await;
    set(&pool, "relatime", "off").await;
    let mut files = Vec::new();
    for number in 0..FILES {
        let made = fs.create(fs.root(), &name(number), 0o644, ROOT).await;
        files.push(made.expect("create"));
    }
    let full = fs.create(fs.root(), b"full", 0o644, ROOT).await;
    let full = full.expect("create").ino;
    pool.sync().await.expect("sync");
    set(&pool, "quota", "32M").await;
    // Until nothing fits any more.
    let (mut random, mut refused) = (Random(1), 0);
    for at in 0..1 << 14 {
        let block = random.bytes(1 << 17).into();
        let written = fs.write(full, at << 17, block, false, ROOT).await;
        refused += u32::from(written.is_err());
        if refused > 3 {
            break;
        }
        pool.sync().await.expect("sync");
    }
    assert!(refused > 3, "there is room");
    pool.pipeline()
        .cache()
        .shared()
        .set_limit_bytes(CACHE_BYTES);
    for file in &files {
        fs.read(file.ino, 0, 8).await.expect("read");
    }
    // They cannot be stored, and stay.
    assert!(charged(&pool) > BOUND_BYTES, "{}", charged(&pool));
    fs.store_access_times().await;
    assert!(charged(&pool) <= BOUND_BYTES, "{}", charged(&pool));
    fs.close().await.expect("close");
}

/// Memory is asked back once for a transaction group, not for each of the filesystems in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_asked_back_once_for_a_txg() {
    /// Counts how often it is asked.
    #[derive(Default)]
    struct Counter(AtomicU64);
    impl Holder for Counter {
        fn give_back(&self, _: &dyn Fn() -> bool) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let world = World::system(2);
    let image = Image::new(512);
    let pool = create(&world, &image, &[("atime", "off")]).await;
    let all = several(&world, &pool).await;
    let cache = pool.pipeline().cache();
    cache.shared().set_limit_bytes(CACHE_BYTES);
    // Nothing that is given back is ever enough.
    let charged = cache.charge().take(CACHE_BYTES);
    cache.charge().settle();
    let counter = Arc::new(Counter::default());
    let holder: Weak<Counter> = Arc::downgrade(&counter);
    cache.charge().add_holder(holder);
    let asked = || counter.0.load(Ordering::Relaxed);
    let (mut asks, mut txgs) = (0, 0);
    for number in 0..20 {
        for fs in &all {
            let made = fs.create(fs.root(), &name(number), 0o644, ROOT).await;
            made.expect("create");
        }
        let (before, synced) = (asked(), pool.synced_txg().get());
        pool.sync().await.expect("sync");
        asks += asked() - before;
        txgs += pool.synced_txg().get() - synced;
    }
    // In two rounds or three, and sometimes once more for what the sync itself charged.
    assert!(asks <= 6 * txgs, "{asks} times for {txgs}");
    drop(charged);
    for fs in &all {
        fs.close().await.expect("close");
    }
}

/// Who looks for a name while it is removed finds it or does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_beside_an_unlink_finds_the_file_or_none() {
    const ROUNDS: usize = 4000;
    let world = World::system(2);
    let image = Image::new(256);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    pool.pipeline().cache().shared().set_limit_bytes(0);
    let is_over = Arc::new(AtomicBool::new(false));
    let looks = (0..2).map(|_| {
        let (fs, is_over) = (Arc::clone(&fs), Arc::clone(&is_over));
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let found = fs.lookup(fs.root(), b"name").await;
                let is_right = matches!(found, Ok(_) | Err(FsError::NotFound { .. }));
                assert!(is_right, "{found:?}");
                tokio::task::yield_now().await;
            }
        })
    });
    let looks: Vec<_> = looks.collect();
    for _ in 0..ROUNDS {
        let made = fs.create(fs.root(), b"name", 0o644, ROOT).await;
        made.expect("create");
        fs.unlink(fs.root(), b"name").await.expect("unlink");
    }
    is_over.store(true, Ordering::Relaxed);
    for look in looks {
        look.await.expect("no other error");
    }
    fs.close().await.expect("close");
}

/// If one file were in memory twice, changes of one would be written over by the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_file_is_in_memory_twice() {
    const DIRECTORIES: usize = 8;
    const TASKS: usize = 6;
    const ROUNDS: usize = 200;
    let world = World::system(2);
    let image = Image::new(256);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let root = fs.root();
    let mut directories = Vec::new();
    for number in 0..DIRECTORIES {
        let made = fs.make_directory(root, &name(number), 0o755, ROOT).await;
        directories.push(made.expect("make a directory").ino);
    }
    pool.sync().await.expect("sync");
    pool.pipeline().cache().shared().set_limit_bytes(0);
    let directories = Arc::new(directories);
    let tasks = (0..TASKS).map(|task| {
        let (fs, pool) = (Arc::clone(&fs), Arc::clone(&pool));
        let directories = Arc::clone(&directories);
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let directory = directories[(task * 31 + round * 7) % DIRECTORIES];
                let name = format!("{task}-{round}");
                let made = fs.create(directory, name.as_bytes(), 0o644, ROOT).await;
                let ino = made.expect("create").ino;
                fs.append(ino, vec![1; 100].into(), false, ROOT)
                    .await
                    .expect("append");
                if round % 3 == 0 {
                    let removed = fs.unlink(directory, name.as_bytes()).await;
                    removed.expect("unlink");
                }
                if round % 50 == 49 {
                    pool.sync().await.expect("sync");
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    let mut names = 0;
    for directory in directories.iter() {
        let found = fs.attributes(*directory).await.expect("there");
        let entries = fs.peek_directory(*directory, 0, 2 * TASKS * ROUNDS).await;
        // With `.` and `..`.
        let entries = entries.expect("entries").len() - 2;
        assert_eq!(found.size_bytes, entries as u64 + 2);
        names += entries;
    }
    assert_eq!(names, TASKS * (ROUNDS - ROUNDS.div_ceil(3)));
    fs.close().await.expect("close");
}
