//! Goal: the property `direct` says which requests leave the cache out, and whichever way content
//! is read or written, everybody sees the same. Method: the cache's own figures, where nobody else
//! has data; readers of both ways beside writers of both ways; zdb.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use device::World;
use filesystem::{Filesystem, Via};
use pool::Pool;
use zio::BlockKind;

const RECORD: usize = 16 << 10;
const RECORDS: usize = 64;
const FILE_BYTES: usize = RECORD * RECORDS;

struct Made {
    image: Image,
    pool: Arc<Pool>,
    filesystem: Arc<Filesystem>,
    ino: u64,
}

async fn made(prefetch: &str) -> Made {
    let world = World::system(2);
    let image = Image::new(256);
    let properties = [
        ("recordsize", "16K"),
        ("atime", "off"),
        ("prefetch", prefetch),
    ];
    let pool = create(&world, &image, &properties).await;
    let filesystem = open(&world, &pool, "tank").await;
    let root = filesystem.root();
    let ino = filesystem.create(root, b"f", 0o644, ROOT).await;
    let ino = ino.expect("created").ino;
    Made {
        image,
        pool,
        filesystem,
        ino,
    }
}

impl Made {
    async fn set_direct(&self, value: &str) {
        let change = dataset::PropertyChange::Set(value.to_owned());
        let changes = [("direct".to_owned(), change)];
        let set = self.pool.dsl().properties().set("tank", &changes).await;
        set.expect("set");
    }

    async fn write(&self, at: usize, data: Vec<u8>, via: Via) {
        let (fs, ino) = (&self.filesystem, self.ino);
        let written = fs.write_via(ino, at as u64, Bytes::from(data), via, false, ROOT);
        written.await.expect("written");
    }

    async fn read(&self, at: usize, length: usize, via: Via) -> Vec<u8> {
        let (fs, ino) = (&self.filesystem, self.ino);
        let pieces = match fs.try_read_via(ino, at as u64, length, via) {
            Some(pieces) => pieces,
            None => {
                let read = fs.read_via(ino, at as u64, length, via, true);
                read.await.expect("read")
            }
        };
        pieces.concat()
    }

    /// Blocks of the file in the cache.
    fn kept(&self) -> u64 {
        let stats = self.pool.pipeline().cache().stats();
        stats.of(BlockKind::Data).blocks
    }

    fn clear(&self) {
        self.pool.pipeline().cache().clear();
    }

    async fn end(self) {
        self.filesystem.close().await.expect("closed");
        drop(self.filesystem);
        self.pool.export(false).await.expect("exported");
        drop(self.pool);
        zdb_is_clean(self.image.path(), "tank");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_property_says_which_requests_leave_the_cache_out() {
    let made = made("none").await;
    let mut random = Random(11);
    for (value, via, is_past) in [
        ("standard", Via::Cache, false),
        ("standard", Via::Direct, true),
        ("always", Via::Cache, true),
        ("always", Via::Direct, true),
        ("disabled", Via::Direct, false),
    ] {
        made.set_direct(value).await;
        made.clear();
        let content = random.bytes(FILE_BYTES);
        made.write(0, content.clone(), via).await;
        // As long as it is dirty everybody reads it from there.
        for via in [Via::Direct, Via::Cache] {
            assert!(made.read(0, FILE_BYTES, via).await == content, "{value}");
        }
        made.pool.sync().await.expect("synced");
        let expected = if is_past { 0 } else { RECORDS as u64 };
        assert_eq!(made.kept(), expected, "{value} {via:?}: written");
        made.clear();
        for at in (0..FILE_BYTES).step_by(FILE_BYTES / 8) {
            let read = made.read(at, FILE_BYTES / 8, via).await;
            assert!(read == content[at..at + FILE_BYTES / 8], "{value} {via:?}");
        }
        assert_eq!(made.kept(), expected, "{value} {via:?}: read");
        // Past the end there is nothing, and up to it less than was asked for.
        assert!(made.read(FILE_BYTES, RECORD, via).await.is_empty());
        let last = made.read(FILE_BYTES - RECORD, 4 * RECORD, via).await;
        assert!(last == content[FILE_BYTES - RECORD..]);
    }
    made.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_in_whole_pages_or_records_passes_the_cache() {
    let made = made("none").await;
    let mut content = Random(12).bytes(FILE_BYTES);
    made.write(0, content.clone(), Via::Direct).await;
    made.pool.sync().await.expect("synced");
    assert_eq!(made.kept(), 0);
    // Part of a page, in another record each: the record is kept.
    for (number, (at, length)) in [(512, 4096), (0, 512), (100, 7)].into_iter().enumerate() {
        let at = number * RECORD + at;
        let read = made.read(at, length, Via::Direct).await;
        assert!(read == content[at..at + length]);
        assert_eq!(made.kept(), number as u64 + 1);
    }
    // Pages of a record are read past it, and written as parts of the record.
    let at = 10 * RECORD + 4096;
    let read = made.read(at, 4096, Via::Direct).await;
    assert!(read == content[at..at + 4096]);
    assert_eq!(made.kept(), 3);
    made.clear();
    content[at..at + 4096].fill(3);
    made.write(at, vec![3; 4096], Via::Direct).await;
    made.pool.sync().await.expect("synced");
    assert!(made.kept() > 0);
    // Of a write over several records those that are whole are not kept.
    made.clear();
    let (from, to) = (20 * RECORD, 24 * RECORD + 4096);
    content[from..to].fill(4);
    made.write(from, vec![4; to - from], Via::Direct).await;
    made.pool.sync().await.expect("synced");
    assert!(made.kept() <= 2, "{}", made.kept());
    for via in [Via::Direct, Via::Cache] {
        assert!(made.read(0, FILE_BYTES, via).await == content);
    }
    made.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_read_ahead_of_who_leaves_the_cache_out() {
    let made = made("all").await;
    let content = Random(14).bytes(FILE_BYTES);
    made.write(0, content.clone(), Via::Direct).await;
    made.pool.sync().await.expect("synced");
    for at in (0..FILE_BYTES / 2).step_by(RECORD) {
        let read = made.read(at, RECORD, Via::Direct).await;
        assert!(read == content[at..at + RECORD]);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(made.kept(), 0);
    for at in (0..FILE_BYTES / 2).step_by(RECORD) {
        let read = made.read(at, RECORD, Via::Cache).await;
        assert!(read == content[at..at + RECORD]);
    }
    assert!(made.kept() >= RECORDS as u64 / 2, "{}", made.kept());
    made.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_and_writers_of_both_ways_see_each_other() {
    const ROUNDS: usize = 300;
    let made = Arc::new(made("all").await);
    made.write(0, vec![0; FILE_BYTES], Via::Direct).await;
    let is_done = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for reader in 0..4_u64 {
        let (made, is_done) = (Arc::clone(&made), Arc::clone(&is_done));
        readers.push(tokio::spawn(async move {
            let mut random = Random(100 + reader);
            let mut seen = vec![0; RECORDS];
            while !is_done.load(Ordering::Relaxed) {
                let via = [Via::Cache, Via::Direct][random.below(2) as usize];
                let number = random.below(RECORDS as u64) as usize;
                let read = made.read(number * RECORD, RECORD, via).await;
                // Records are written whole, with higher and higher numbers.
                let first = u32::from_le_bytes(read[..4].try_into().expect("four bytes"));
                let mut words = read.chunks(4);
                assert!(words.all(|word| word == first.to_le_bytes()), "torn");
                assert!(first >= seen[number], "{first} after {}", seen[number]);
                seen[number] = first;
                tokio::task::yield_now().await;
            }
        }));
    }
    let mut random = Random(13);
    let mut newest = vec![0_u32; RECORDS];
    for round in 1..=ROUNDS as u32 {
        let via = [Via::Cache, Via::Direct][random.below(2) as usize];
        let first = random.below(RECORDS as u64 - 3) as usize;
        let count = 1 + random.below(3) as usize;
        let data = round.to_le_bytes().repeat(count * RECORD / 4);
        made.write(first * RECORD, data, via).await;
        newest[first..first + count].fill(round);
        if round % 40 == 0 {
            made.pool.sync().await.expect("synced");
        }
    }
    is_done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.expect("a reader");
    }
    made.pool.sync().await.expect("synced");
    made.clear();
    for via in [Via::Direct, Via::Cache] {
        for (number, round) in newest.iter().enumerate() {
            let read = made.read(number * RECORD, RECORD, via).await;
            assert!(read == round.to_le_bytes().repeat(RECORD / 4), "{number}");
        }
    }
    let Ok(made) = Arc::try_unwrap(made) else {
        panic!("readers are done");
    };
    made.end().await;
}
