//! Goal: a block that a sync would need and that cannot be read is an error for whoever wants the
//! change, and for nobody else: the pool goes on, also after a crash with such a change in the log.
//! Method: all copies of an indirect block (or of a block of dnodes) are destroyed on the image;
//! everything that changes a file is tried there, while other files change.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::common::*;
use bytes::Bytes;
use dataset::Dataset;
use device::World;
use filesystem::{Allocate, Filesystem, SetAttributes, errno};
use format::Bookmark;
use format::{BlockPointer, DNODES_PER_BLOCK, ObjectId};
use object::{Zap, ZapCursor};
use pool::Pool;

/// `recordsize`: an indirect block then has the pointers of 4 MiB.
const RECORD: (&str, &str) = ("recordsize", "4K");
const M: u64 = 1 << 20;
const INDIRECT_BYTES: u64 = 4 * M;

/// Blocks that are overwritten on an image, to be put back.
struct Damage {
    image: std::fs::File,
    before: Vec<(u64, [u8; 512])>,
}

impl Damage {
    /// Destroys all copies of a block.
    fn new(image: &Image, bp: &BlockPointer) -> Self {
        const LABELS_BYTES: u64 = 4 << 20;
        let image = std::fs::File::options()
            .read(true)
            .write(true)
            .open(image.path().join("d0.img"))
            .expect("open");
        let copy = |dva: format::Dva| {
            let at = LABELS_BYTES + dva.offset_bytes();
            let mut before = [0; 512];
            image.read_exact_at(&mut before, at).expect("read");
            image.write_all_at(&[0xa5; 512], at).expect("write");
            (at, before)
        };
        let before: Vec<_> = bp.dvas().map(copy).collect();
        assert!(before.len() > 1, "metadata has two copies");
        Damage { image, before }
    }

    fn undo(self) {
        for (at, before) in self.before {
            self.image.write_all_at(&before, at).expect("write");
        }
    }
}

fn content(length: u64, seed: u64) -> Bytes {
    Random(seed).bytes(length as usize).into()
}

/// A file with random content.
async fn make(fs: &Filesystem, name: &str, length: u64, seed: u64) -> u64 {
    let file = fs.create(fs.root(), name.as_bytes(), 0o644, ROOT).await;
    let ino = file.expect("create").ino;
    fs.write(ino, 0, content(length, seed), false, ROOT)
        .await
        .expect("write");
    ino
}

/// The pointer of the level-1 block `number` of a file.
async fn indirect(dataset: &Dataset, ino: u64, number: u64) -> BlockPointer {
    let object = dataset.objset().hold(ObjectId::new(ino)).await;
    let pointer = object.expect("hold").pointer_at(1, number).await;
    pointer.expect("a pointer")
}

fn is_eio<T: std::fmt::Debug>(result: filesystem::Result<T>, what: &str) {
    match result {
        Ok(value) => panic!("{what}: {value:?}"),
        Err(error) => assert_eq!(error.errno(), errno::EIO, "{what}: {error}"),
    }
}

/// Others write, and it gets to the disk.
async fn goes_on(pool: &Pool, fs: &Filesystem, other: u64, round: u8) {
    let data = Bytes::from(vec![round; 5000]);
    fs.write(other, 100, data.clone(), true, ROOT)
        .await
        .expect("another file");
    pool.sync().await.expect("the txg is written");
    assert_eq!(pool.suspended(), None);
    let read = fs.read(other, 100, 5000).await.expect("read").concat();
    assert_eq!(read, data);
}

async fn queued(dataset: &Dataset) -> usize {
    let hold = async |id| Zap::hold(dataset.objset(), id).await.expect("a ZAP");
    let master = hold(ObjectId::MASTER_NODE).await;
    let queue = master.lookup_u64("DELETE_QUEUE").await.expect("readable");
    let queue = hold(ObjectId::new(queue.expect("a queue"))).await;
    let entries = queue.entries(ZapCursor::START, 10).await;
    entries.expect("readable").len()
}

async fn reopen(world: &World, image: &Image) -> (Arc<Pool>, Arc<Filesystem>) {
    let pool = import(world, image.path(), false).await;
    let fs = open(world, &pool, "tank").await;
    (pool, fs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_below_an_unreadable_indirect_block_fail_alone() {
    let image = Image::new(256);
    let world = World::system(2);
    let pool = create(&world, &image, &[RECORD]).await;
    let fs = open(&world, &pool, "tank").await;
    let file = make(&fs, "file", 10 * M, 1).await;
    let appended = make(&fs, "appended", 10 * M, 2).await;
    let other = make(&fs, "other", 5000, 3).await;
    let source = make(&fs, "source", M, 4).await;
    pool.sync().await.expect("sync");
    let dataset = fs.dataset().expect("open");
    let lost = [
        indirect(&dataset, file, 1).await,
        indirect(&dataset, appended, 2).await,
    ];
    drop(dataset);
    fs.close().await.expect("close");
    pool.export(false).await.expect("export");

    let damage = lost.map(|pointer| Damage::new(&image, &pointer));
    let (pool, fs) = reopen(&world, &image).await;
    let start = INDIRECT_BYTES;
    let write =
        async |ino, offset, length| fs.write(ino, offset, content(length, 5), false, ROOT).await;
    is_eio(write(file, start, 4096).await, "a whole block");
    is_eio(write(file, start + 8000, 10).await, "a part of a block");
    is_eio(write(file, start - 8192, 65536).await, "from before it");
    let appending = fs.append(appended, content(4096, 6), false, ROOT).await;
    is_eio(appending, "appending");
    goes_on(&pool, &fs, other, 1).await;
    let punch = async |offset, length| {
        fs.allocate(file, Allocate::PunchHole, offset, length, ROOT)
            .await
    };
    is_eio(punch(start + 4096, 8192).await, "a hole in it");
    is_eio(punch(start, INDIRECT_BYTES).await, "a hole of all of it");
    is_eio(punch(0, 10 * M).await, "a hole around it");
    goes_on(&pool, &fs, other, 2).await;
    let truncate = async |size_bytes| {
        let set = SetAttributes {
            size_bytes: Some(size_bytes),
            ..SetAttributes::default()
        };
        fs.set_attributes(file, &set, ROOT).await
    };
    for size in [start + 12_288, start, 4096, 0] {
        is_eio(truncate(size).await, "truncating");
    }
    let clone = fs.copy_range(source, 0, file, start, M, ROOT).await;
    is_eio(clone, "cloning");
    goes_on(&pool, &fs, other, 3).await;
    // What is not below it changes.
    write(file, 0, M).await.expect("before it");
    write(file, 2 * start, M).await.expect("behind it");
    truncate(2 * start + M).await.expect("behind it");
    let cloned = fs.copy_range(source, 0, file, M, M, ROOT).await;
    assert_eq!(cloned.expect("before it"), M);
    goes_on(&pool, &fs, other, 4).await;
    let read = fs.read(file, M, M as usize).await.expect("read").concat();
    assert_eq!(read, content(M, 4));
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    damage.into_iter().for_each(Damage::undo);
    zdb_is_clean(image.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_freed_whole_stays_in_the_delete_queue() {
    let image = Image::new(256);
    let world = World::system(2);
    let pool = create(&world, &image, &[RECORD]).await;
    let fs = open(&world, &pool, "tank").await;
    let empty = fs.dataset().expect("open").space().0;
    let file = make(&fs, "file", 30 * M, 1).await;
    let other = make(&fs, "other", 5000, 3).await;
    pool.sync().await.expect("sync");
    let lost = indirect(&fs.dataset().expect("open"), file, 3).await;
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");

    let damage = Damage::new(&image, &lost);
    let (pool, fs) = reopen(&world, &image).await;
    for round in 0..2 {
        if round == 0 {
            fs.unlink(fs.root(), b"file").await.expect("unlink");
        }
        fs.unlinked().free(file).await;
        goes_on(&pool, &fs, other, round).await;
        let dataset = fs.dataset().expect("open");
        assert_eq!(queued(&dataset).await, 1);
        // All is free but what the damaged block leads to.
        let used = dataset.space().0 - empty;
        assert!(used > INDIRECT_BYTES && used < INDIRECT_BYTES + M, "{used}");
    }
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    damage.undo();
    zdb_is_clean(image.path(), "tank");
    // When it can be read again the rest is freed.
    let (pool, fs) = reopen(&world, &image).await;
    fs.unlinked().free(file).await;
    pool.sync().await.expect("sync");
    let dataset = fs.dataset().expect("open");
    assert_eq!(queued(&dataset).await, 0);
    assert!(dataset.space().0 - empty < M);
    drop(dataset);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// A power cut leaves a log with writes there, and others. All but those are replayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_logged_write_there_does_not_keep_others_from_being_replayed() {
    let image = Image::new(256);
    let world = World::system(2);
    let pool = create(&world, &image, &[RECORD, ("sync", "always")]).await;
    let fs = open(&world, &pool, "tank").await;
    let file = make(&fs, "file", 10 * M, 1).await;
    let other = make(&fs, "other", 5000, 3).await;
    pool.sync().await.expect("sync");
    let head = pool
        .dsl()
        .directories()
        .lookup("tank")
        .await
        .expect("lookup")
        .object;
    let lost = indirect(&fs.dataset().expect("open"), file, 1).await;
    let write = async |ino, offset, byte: u8| {
        let data = Bytes::from(vec![byte; 4096]);
        fs.write(ino, offset, data, true, ROOT).await
    };
    write(other, 0, 11).await.expect("write");
    write(file, INDIRECT_BYTES + 4096, 12).await.expect("write");
    write(file, 8192, 13).await.expect("write");
    let root = fs.root();
    let made = fs.create(root, b"made", 0o644, ROOT).await;
    let made = made.expect("create").ino;
    write(made, 0, 14).await.expect("write");
    let after = cut(&image);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");

    let damage = Damage::new(&after, &lost);
    let pool = import_after_cut(&world, after.path()).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let log = dataset.log().expect("a log");
    assert!(log.needs_replay(), "a txg came between");
    let fs = Filesystem::open(dataset, world.clone())
        .await
        .expect("the filesystem opens");
    let reads = async |ino, offset, byte: u8| {
        let data = fs.read(ino, offset, 4096).await.expect("read").concat();
        assert!(data.iter().all(|found| *found == byte), "{byte}");
    };
    reads(other, 0, 11).await;
    reads(file, 8192, 13).await;
    let found = fs.lookup(root, b"made").await.expect("lookup");
    assert_eq!(found.ino, made);
    reads(made, 0, 14).await;
    goes_on(&pool, &fs, other, 1).await;
    // Who lost something is on record.
    let place = Bookmark {
        objset: head.get().into(),
        object: ObjectId::new(file),
        level: 1,
        block_id: 1,
    };
    assert_eq!(pool.damaged().await, [place]);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    let (pool, fs) = reopen(&world, &after).await;
    assert_eq!(pool.damaged().await, [place]);
    goes_on(&pool, &fs, other, 2).await;
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    damage.undo();
    zdb_is_clean(after.path(), "tank");
}

/// A file that is in memory, whose dnode's block is not any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_file_whose_block_of_dnodes_is_unreadable_fail_alone() {
    let image = Image::new(128);
    let world = World::system(2);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let other = make(&fs, "other", 5000, 3).await;
    let mut file = other;
    while file / DNODES_PER_BLOCK == other / DNODES_PER_BLOCK {
        file = make(&fs, &format!("file {file}"), 5000, 1).await;
    }
    pool.sync().await.expect("sync");
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");

    let (pool, fs) = reopen(&world, &image).await;
    fs.attributes(file).await.expect("in memory now");
    let dataset = fs.dataset().expect("open");
    let dnodes = dataset.objset().hold(ObjectId::META_DNODE).await;
    let dnodes = dnodes.expect("dnodes");
    let lost = dnodes.block_pointer(file / DNODES_PER_BLOCK).await;
    let damage = Damage::new(&image, &lost.expect("a pointer"));
    drop(dataset);
    pool.pipeline().cache().clear();
    let mode = SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    let set = fs.set_attributes(file, &mode, ROOT).await;
    is_eio(set, "setting the mode");
    let write = fs.write(file, 0, content(5000, 7), false, ROOT).await;
    is_eio(write, "writing");
    goes_on(&pool, &fs, other, 1).await;
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    damage.undo();
    zdb_is_clean(image.path(), "tank");
}
