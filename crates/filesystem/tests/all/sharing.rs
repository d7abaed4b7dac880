//! Goal: copying a range shares whole blocks where that can be and copies where not; files are what
//! they would be with copies, after power cuts too, and the last file that has a block frees it.
//! Method: `copy_range` between files, the pool's numbers of cloned blocks, images copied while the
//! pool is open, and zdb.

use std::sync::Arc;

use crate::common::*;
use bytes::Bytes;
use dataset::DirtyEstimate;
use device::World;
use filesystem::{Filesystem, SetAttributes};
use format::{BlockPointer, LogBody};
use pool::Pool;
use zil::LogRecord;

const K: u64 = 1024;

struct Bed {
    image: Image,
    world: World,
    pool: Arc<Pool>,
    fs: Arc<Filesystem>,
}

impl Bed {
    async fn new(properties: &[(&str, &str)]) -> Self {
        let image = Image::new(256);
        let world = World::system(2);
        let pool = create(&world, &image, properties).await;
        Self::of(image, world, pool).await
    }

    async fn of(image: Image, world: World, pool: Arc<Pool>) -> Self {
        let fs = open(&world, &pool, "tank").await;
        Bed {
            image,
            world,
            pool,
            fs,
        }
    }

    async fn file(&self, name: &str, data: &[u8]) -> u64 {
        let made = self
            .fs
            .create(self.fs.root(), name.as_bytes(), 0o644, ROOT)
            .await
            .expect("create");
        self.write(made.ino, 0, data).await;
        made.ino
    }

    async fn write(&self, ino: u64, offset: u64, data: &[u8]) {
        if !data.is_empty() {
            let data = Bytes::copy_from_slice(data);
            let done = self.fs.write(ino, offset, data, false, ROOT).await;
            done.expect("write");
        }
    }

    async fn copy(&self, from: (u64, u64), to: (u64, u64), length: u64) -> u64 {
        self.fs
            .copy_range(from.0, from.1, to.0, to.1, length, ROOT)
            .await
            .expect("copy")
    }

    async fn sync(&self) {
        self.pool.sync().await.expect("sync");
    }

    /// Bytes that cloning saves.
    async fn saved(&self) -> u64 {
        self.sync().await;
        number(&self.pool, "bclonesaved")
    }

    /// Nothing is shared any more, once what was deleted is freed.
    async fn shares_nothing(&self) {
        for _ in 0..50 {
            if self.saved().await == 0 {
                assert_eq!(number(&self.pool, "bcloneused"), 0);
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("{} bytes are saved", self.saved().await);
    }

    async fn unlink(&self, name: &str) {
        let root = self.fs.root();
        self.fs.unlink(root, name.as_bytes()).await.expect("unlink");
    }

    /// Leaves the pool to zdb and takes it again.
    async fn again(self) -> Self {
        let Bed {
            image,
            world,
            pool,
            fs,
        } = self;
        fs.close().await.expect("close");
        drop(fs);
        pool.export(false).await.expect("export");
        drop(pool);
        zdb_is_clean(image.path(), "tank");
        let pool = import(&world, image.path(), false).await;
        Self::of(image, world, pool).await
    }
}

fn number(pool: &Pool, property: &str) -> u64 {
    let value = pool.properties().get(property).expect("a property").value;
    value.parse().expect("a number")
}

async fn content(fs: &Filesystem, ino: u64) -> Vec<u8> {
    let size = fs.attributes(ino).await.expect("attributes").size_bytes;
    fs.read(ino, 0, size as usize).await.expect("read").concat()
}

async fn content_at(fs: &Filesystem, name: &str) -> Vec<u8> {
    let found = fs.lookup(fs.root(), name.as_bytes()).await;
    content(fs, found.expect("lookup").ino).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_files_are_shared_and_the_last_frees_the_blocks() {
    let bed = Bed::new(&[]).await;
    let data = Random(7).bytes(10 * 128 * K as usize + 5000);
    let source = bed.file("source", &data).await;
    bed.sync().await;
    let used = bed.fs.attributes(source).await.expect("attributes");
    let mut files = vec![source];
    for index in 0..3 {
        let target = bed.file(&format!("copy{index}"), b"").await;
        let from = files[index];
        let done = bed.copy((from, 0), (target, 0), u64::MAX >> 1).await;
        assert_eq!(done, data.len() as u64);
        assert!(
            content(&bed.fs, target).await == data,
            "before it is written"
        );
        files.push(target);
    }
    let saved = bed.saved().await;
    // The last block is stored without its zeros.
    let once = number(&bed.pool, "bcloneused");
    assert!(once > 10 * 128 * K && once < 11 * 128 * K, "{once}");
    assert_eq!(saved, 3 * once);
    let ratio = bed
        .pool
        .properties()
        .get("bcloneratio")
        .expect("ratio")
        .value;
    assert_eq!(ratio, "4.00");
    for file in &files {
        assert!(content(&bed.fs, *file).await == data);
        let at = bed.fs.attributes(*file).await.expect("attributes");
        assert_eq!(at.size_bytes, used.size_bytes);
    }
    let bed = bed.again().await;
    // Written over in part: only those blocks go their own ways.
    bed.write(files[1], 300 * K, b"changed").await;
    bed.write(files[0], 0, b"first").await;
    assert_eq!(bed.saved().await, saved - 2 * 128 * K);
    let mut changed = data.clone();
    changed[300 * K as usize..300 * K as usize + 7].copy_from_slice(b"changed");
    assert!(content(&bed.fs, files[1]).await == changed);
    assert!(content(&bed.fs, files[2]).await == data);
    // The first one goes, the others stay.
    bed.unlink("source").await;
    bed.unlink("copy1").await;
    let bed = bed.again().await;
    assert!(content_at(&bed.fs, "copy0").await == changed);
    assert!(content_at(&bed.fs, "copy2").await == data);
    bed.unlink("copy0").await;
    let bed = bed.again().await;
    bed.shares_nothing().await;
    assert!(content_at(&bed.fs, "copy2").await == data);
    let allocated = bed.pool.numbers().allocated_bytes;
    bed.unlink("copy2").await;
    for _ in 0..4 {
        bed.sync().await;
    }
    assert!(bed.pool.numbers().allocated_bytes + 10 * 128 * K < allocated);
    bed.again().await.fs.close().await.expect("close");
}

/// A file comes back out of a snapshot without being copied, and stays whichever of both goes
/// first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_snapshots_come_back_shared() {
    let bed = Bed::new(&[]).await;
    let data = Random(9).bytes(4 * 128 * K as usize);
    bed.file("lost", &data).await;
    bed.sync().await;
    let names = ["tank@s".to_owned()];
    let taken = bed.pool.dsl().snapshots().take(&names, &[]).await;
    taken.expect("taken");
    bed.unlink("lost").await;
    let old = open(&bed.world, &bed.pool, "tank@s").await;
    let from = old.lookup(old.root(), b"lost").await.expect("lookup").ino;
    // The first may have the number that the lost one had.
    for name in ["back", "again"] {
        let to = bed.file(name, b"").await;
        let length = data.len() as u64;
        let copied = bed.fs.copy_range_of(&old, from, 0, to, 0, length, ROOT);
        assert_eq!(copied.await.expect("copied"), length);
        assert!(content(&bed.fs, to).await == data);
    }
    assert_eq!(bed.saved().await, 2 * 4 * 128 * K);
    let refused = old.copy_range(from, 0, from, 1 << 20, 1, ROOT).await;
    assert!(refused.is_err(), "nothing is written to a snapshot");
    old.close().await.expect("close");
    drop(old);
    bed.unlink("again").await;
    let bed = bed.again().await;
    let destroyer = bed.pool.dsl().destroyer();
    let destroyed = destroyer.destroy_snapshots(&names, false).await;
    destroyed.expect("destroyed");
    let bed = bed.again().await;
    bed.shares_nothing().await;
    assert!(content_at(&bed.fs, "back").await == data);
    bed.again().await.fs.close().await.expect("close");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_shared_is_copied() {
    let bed = Bed::new(&[("recordsize", "16K"), ("compression", "off")]).await;
    let data = Random(8).bytes(100 * K as usize);
    let source = bed.file("source", &data).await;
    let fresh = bed.file("fresh", b"").await;
    // Not on disk yet.
    assert_eq!(bed.copy((source, 0), (fresh, 0), 100 * K).await, 100 * K);
    assert!(content(&bed.fs, fresh).await == data);
    assert_eq!(bed.saved().await, 0);
    // Not at blocks' bounds.
    let shifted = bed.file("shifted", b"").await;
    bed.copy((source, 0), (shifted, 5), 64 * K).await;
    bed.copy((source, 100), (shifted, 5 + 64 * K), 16 * K).await;
    assert!(content(&bed.fs, shifted).await[5..][..64 * K as usize] == data[..64 * K as usize]);
    assert_eq!(bed.saved().await, 0);
    // Small enough to be in its pointer, or in one small block that the target has outgrown.
    let tiny = bed.file("tiny", &[b'x'; 60]).await;
    let small = bed.file("small", &data[..3000]).await;
    bed.sync().await;
    bed.copy((tiny, 0), (shifted, 0), 60).await;
    bed.copy((small, 0), (shifted, 0), 3000).await;
    assert!(content(&bed.fs, shifted).await[..3000] == data[..3000]);
    assert_eq!(bed.saved().await, 0);
    // Blocks of another size.
    bed.pool
        .dsl()
        .properties()
        .set(
            "tank",
            &[(
                "recordsize".to_owned(),
                dataset::PropertyChange::Set("32K".to_owned()),
            )],
        )
        .await
        .expect("set");
    let wide = bed.file("wide", &data).await;
    bed.sync().await;
    bed.copy((source, 0), (wide, 0), 100 * K).await;
    assert!(content(&bed.fs, wide).await == data);
    assert_eq!(bed.saved().await, 0);
    // And what can: a part in the middle, within one file, the end, a small file onto an empty one.
    bed.copy((source, 16 * K), (source, 64 * K), 32 * K).await;
    let mut moved = data.clone();
    moved.copy_within(16 * K as usize..48 * K as usize, 64 * K as usize);
    assert!(content(&bed.fs, source).await == moved);
    assert_eq!(bed.saved().await, 32 * K);
    let end = bed.file("end", &data[..32 * K as usize]).await;
    let empty = bed.file("empty", b"").await;
    bed.sync().await;
    assert_eq!(
        bed.copy((source, 96 * K), (end, 32 * K), K << 10).await,
        4 * K
    );
    assert_eq!(bed.copy((small, 0), (empty, 0), K << 10).await, 3000);
    assert!(content(&bed.fs, end).await[32 * K as usize..] == moved[96 * K as usize..]);
    assert!(content(&bed.fs, empty).await == data[..3000]);
    let bed = bed.again().await;
    assert!(content_at(&bed.fs, "source").await == moved);
    assert!(content_at(&bed.fs, "empty").await == data[..3000]);
    assert!(content_at(&bed.fs, "end").await[32 * K as usize..] == moved[96 * K as usize..]);
    bed.fs.close().await.expect("close");
}

/// In the open transaction group a shared block is written, cut, cut off, punched, shared again and
/// freed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_blocks_change_before_they_are_written() {
    let bed = Bed::new(&[("recordsize", "8K")]).await;
    let data = Random(9).bytes(64 * K as usize);
    let source = bed.file("source", &data).await;
    bed.sync().await;
    let mut wanted = Vec::new();
    for index in 0..6u64 {
        let name = format!("f{index}");
        let to = bed.file(&name, b"").await;
        bed.copy((source, 0), (to, 0), 64 * K).await;
        let mut now = data.clone();
        match index {
            0 => {
                bed.write(to, 10_000, b"in the middle").await;
                now[10_000..10_013].copy_from_slice(b"in the middle");
            }
            1 => {
                let set = SetAttributes {
                    size_bytes: Some(30_000),
                    ..SetAttributes::default()
                };
                bed.fs.set_attributes(to, &set, ROOT).await.expect("cut");
                now.truncate(30_000);
            }
            2 => {
                let how = filesystem::Allocate::PunchHole;
                let punched = bed.fs.allocate(to, how, 8 * K, 20_000, ROOT).await;
                punched.expect("punch");
                now[8 * K as usize..][..20_000].fill(0);
            }
            3 => {
                // The clone is cloned, and the source is written: both in one txg.
                bed.write(source, 0, &[1; 8192]).await;
                let next = bed.file("next", b"").await;
                bed.copy((to, 0), (next, 0), 64 * K).await;
                wanted.push(("next".to_owned(), data.clone()));
                bed.copy((next, 16 * K), (to, 0), 16 * K).await;
                now.copy_within(16 * K as usize..32 * K as usize, 0);
                bed.write(source, 0, &data[..8192]).await;
                bed.sync().await;
            }
            4 => {
                bed.unlink(&name).await;
                continue;
            }
            _ => {
                bed.copy((source, 0), (to, 0), 64 * K).await;
                bed.write(to, 0, &[2; 8192]).await;
                bed.copy((source, 0), (to, 0), 8 * K).await;
            }
        }
        assert!(content(&bed.fs, to).await == now, "{name} at once");
        wanted.push((name, now));
    }
    let bed = bed.again().await;
    for (name, data) in &wanted {
        assert!(content_at(&bed.fs, name).await == *data, "{name}");
    }
    assert!(content_at(&bed.fs, "source").await == data);
    for (name, _) in &wanted {
        bed.unlink(name).await;
    }
    bed.unlink("source").await;
    let bed = bed.again().await;
    bed.shares_nothing().await;
    bed.fs.close().await.expect("close");
}

/// Clones that were synchronous are there after a power cut, and are shared; whatever became of the
/// source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_loses_no_synchronous_clone() {
    let bed = Bed::new(&[("recordsize", "16K"), ("sync", "always")]).await;
    let data = Random(10).bytes(500 * K as usize);
    let source = bed.file("source", &data).await;
    bed.sync().await;
    let target = bed.file("target", b"").await;
    bed.copy((source, 0), (target, 0), 500 * K).await;
    let other = bed.file("other", &data[..160 * K as usize]).await;
    bed.copy((source, 32 * K), (other, 0), 64 * K).await;
    bed.write(other, 5, b"written").await;
    bed.write(source, 40 * K, b"changed").await;
    bed.unlink("target").await;
    let last = bed.file("last", b"").await;
    bed.copy((source, 64 * K), (last, 0), 128 * K).await;
    let after = cut(&bed.image);
    let mut changed = data.clone();
    changed[40 * K as usize..][..7].copy_from_slice(b"changed");
    let mut mixed = data[..160 * K as usize].to_vec();
    mixed[..64 * K as usize].copy_from_slice(&data[32 * K as usize..96 * K as usize]);
    mixed[5..12].copy_from_slice(b"written");
    for round in 0..2 {
        let pool = import_after_cut(&bed.world, after.path()).await;
        let fs = open(&bed.world, &pool, "tank").await;
        assert!(content_at(&fs, "source").await == changed, "{round}");
        assert!(content_at(&fs, "other").await == mixed, "{round}");
        assert!(content_at(&fs, "last").await == data[64 * K as usize..192 * K as usize]);
        assert!(fs.lookup(fs.root(), b"target").await.is_err());
        pool.sync().await.expect("sync");
        assert!(number(&pool, "bclonesaved") >= 128 * K, "it is shared");
        fs.close().await.expect("close");
        drop(fs);
        pool.export(false).await.expect("export");
        drop(pool);
        zdb_is_clean(after.path(), "tank");
    }
    bed.again().await.fs.close().await.expect("close");
}

/// A record of the log may tell anything, with a right checksum: then the filesystem is not opened,
/// and nothing is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clone_records_that_lead_beyond_any_file_are_refused() {
    const BLOCK: u64 = 16 * K;
    for (offset, length, count) in [
        (u64::MAX - BLOCK + 1, BLOCK, 1),
        (1 << 63, BLOCK, 1),
        (0, u64::MAX - BLOCK + 1, 1),
        ((1 << 63) - BLOCK, 5, 3),
    ] {
        let bed = Bed::new(&[("recordsize", "16K"), ("sync", "always")]).await;
        let file = bed.file("file", &[7; 16 << 10]).await;
        bed.sync().await;
        let body = LogBody::CloneRange {
            object: file.into(),
            offset,
            length,
            block_bytes: BLOCK,
            blocks: vec![BlockPointer::HOLE; count].into(),
        };
        let dataset = bed.pool.dsl().open_dataset("tank").await.expect("open");
        let log = dataset.log().expect("a log");
        let tx = dataset.assign(DirtyEstimate::metadata()).await;
        let tx = tx.expect("assign");
        log.record(&tx, LogRecord::of_object(file.into(), true, &body));
        drop(tx);
        log.commit(file.into()).await.expect("commit");
        let after = cut(&bed.image);
        let pool = import_after_cut(&bed.world, after.path()).await;
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let error = Filesystem::open(dataset, bed.world.clone()).await;
        let error = error.err().expect("it cannot be replayed").to_string();
        assert!(error.contains("cannot be replayed"), "{error}");
    }
}

const SCRIPT: &str = r#"
set -e
zpool import -f -d /dev/disk/peer tank
sums() { cd /tank; sha256sum * | sed "s/^/$1 /"; cd /; }
sums HASH1
zpool sync tank
zpool get -Hp -o value bclonesaved tank | sed 's/^/SAVED /'
zpool scrub -w tank
zpool status tank
rm /tank/source
printf changed | dd of=/tank/other bs=1 seek=50000 conv=notrunc 2>/dev/null
echo 1 > /sys/module/zfs/parameters/zfs_bclone_enabled
cp --reflink=always /tank/last /tank/theirs || cp /tank/last /tank/theirs
zpool sync tank
sums HASH2
zpool export tank
echo PEER-DONE
"#;

/// Lines `label hash  name` of what the machine said.
fn told(text: &str, label: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| line.trim_end().strip_prefix(label)?.trim().split_once("  "))
        .map(|(hash, name)| (name.to_owned(), hash.to_owned()))
        .collect()
}

async fn digests(fs: &Filesystem, names: &[(String, String)]) -> Vec<(String, String)> {
    use sha2::{Digest, Sha256};
    let mut out = Vec::new();
    for (name, _) in names {
        let digest = Sha256::digest(content_at(fs, name).await);
        let hex = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        out.push((name.clone(), hex));
    }
    out
}

/// The real OpenZFS replays our clones from the intent log, verifies those on disk, frees some and
/// makes one, and gives the pool back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_takes_our_clones() {
    let Some(peer) = Peer::find() else { return };
    let bed = Bed::new(&[("recordsize", "16K"), ("sync", "always")]).await;
    let data = Random(12).bytes(500 * K as usize);
    let source = bed.file("source", &data).await;
    bed.sync().await;
    let stored = bed.file("stored", b"").await;
    bed.copy((source, 0), (stored, 0), 500 * K).await;
    bed.sync().await;
    // These are in the log only.
    let other = bed.file("other", &data[..160 * K as usize]).await;
    bed.copy((source, 32 * K), (other, 0), 64 * K).await;
    let last = bed.file("last", b"").await;
    bed.copy((stored, 64 * K), (last, 0), 128 * K).await;
    let after = cut(&bed.image);
    let text = run_in_peer(&peer, &after.path().join("d0.img"), SCRIPT).replace('\r', "");
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(text.contains("scrub repaired 0B"), "{text}");
    assert!(text.contains("errors: No known data errors"), "{text}");
    let first = told(&text, "HASH1 ");
    assert_eq!(first.len(), 4, "{text}");
    assert_eq!(first, digests(&bed.fs, &first).await);
    let saved = text.lines().find_map(|line| line.strip_prefix("SAVED "));
    let saved: u64 = saved.expect("SAVED").trim().parse().expect("bytes");
    assert_eq!(saved, bed.saved().await);
    zdb_is_clean(after.path(), "tank");
    let pool = import(&bed.world, after.path(), false).await;
    let after = Bed::of(after, World::system(2), pool).await;
    let second = told(&text, "HASH2 ");
    assert_eq!(second.len(), 4, "{text}");
    assert_eq!(second, digests(&after.fs, &second).await);
    for (name, _) in &second {
        after.unlink(name).await;
    }
    let after = after.again().await;
    after.shares_nothing().await;
    after.again().await.fs.close().await.expect("close");
    bed.fs.close().await.expect("close");
}

/// Copies from and to the same files at the same time as writes and cuts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clones_and_writes_at_the_same_time() {
    let bed = Bed::new(&[("recordsize", "16K")]).await;
    let mut files = Vec::new();
    for index in 0..4u8 {
        // Every block of a file is of one byte.
        let data = vec![index + 1; 256 * K as usize];
        files.push(bed.file(&format!("f{index}"), &data).await);
    }
    bed.sync().await;
    let mut tasks = Vec::new();
    for worker in 0..6u64 {
        let (fs, pool, files) = (bed.fs.clone(), bed.pool.clone(), files.clone());
        tasks.push(tokio::spawn(async move {
            let mut random = Random(worker + 77);
            for step in 0..120 {
                let (from, to) = (random.below(4) as usize, random.below(4) as usize);
                let (a, b) = (random.below(16) * 16 * K, random.below(16) * 16 * K);
                let length = (1 + random.below(4)) * 16 * K;
                match random.below(10) {
                    0..=5 => {
                        if from != to || a + length <= b || b + length <= a {
                            let (from, to) = (files[from], files[to]);
                            let done = fs.copy_range(from, a, to, b, length, ROOT).await;
                            done.expect("copy");
                        }
                    }
                    6..=7 => {
                        let data = Bytes::from(vec![random.below(200) as u8; 16 * K as usize]);
                        let done = fs.write(files[to], b, data, false, ROOT).await;
                        done.expect("write");
                    }
                    8 => {
                        let how = filesystem::Allocate::PunchHole;
                        fs.allocate(files[to], how, b, length, ROOT)
                            .await
                            .expect("punch");
                    }
                    _ => {
                        let data = fs.read(files[from], 0, 256 * K as usize).await;
                        let data = data.expect("read").concat();
                        for block in data.chunks(16 * K as usize) {
                            assert!(block.iter().all(|byte| *byte == block[0]));
                        }
                    }
                }
                if step % 10 == worker {
                    pool.sync().await.expect("sync");
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let mut before = Vec::new();
    for file in &files {
        before.push(content(&bed.fs, *file).await);
    }
    let bed = bed.again().await;
    for (file, data) in files.iter().zip(&before) {
        assert!(content(&bed.fs, *file).await == *data);
    }
    for index in 0..4 {
        bed.unlink(&format!("f{index}")).await;
    }
    let bed = bed.again().await;
    bed.shares_nothing().await;
    bed.fs.close().await.expect("close");
}
