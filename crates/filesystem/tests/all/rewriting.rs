//! Goal: a rewrite changes where a file is and how it is stored, and nothing else; a physical one
//! does not make it look changed either.
//! Method: pointers before and after, spaces, snapshots, other changes in the same txg, a power cut
//! in the middle; zdb where it knows the features.

use std::sync::Arc;

use crate::common::*;
use bytes::Bytes;
use device::World;
use filesystem::{Filesystem, FsError};
use format::{BlockPointer, Txg};
use pool::{FeatureState, Pool};

const BLOCK: u64 = 128 << 10;

fn content(blocks: u64) -> Bytes {
    // It shrinks, but not to nothing.
    let half = (BLOCK / 2) as usize;
    let mut random = Random(7);
    let parts = (0..blocks).flat_map(|_| {
        let mut part = random.bytes(half);
        part.resize(2 * half, 7);
        part
    });
    Bytes::from_iter(parts)
}

async fn rewrite(filesystem: &Filesystem, ino: u64, range: std::ops::Range<u64>, physically: bool) {
    let mut at = Some(range.start);
    while let Some(from) = at {
        let part = filesystem.rewrite_part(ino, from, range.end, physically);
        at = part.await.expect("rewritten");
    }
}

async fn pointers(pool: &Pool, name: &str, ino: u64, blocks: u64) -> Vec<BlockPointer> {
    let dataset = pool.dsl().open_dataset(name).await.expect("a dataset");
    let object = dataset.objset().hold(ino.into()).await.expect("an object");
    let mut out = Vec::new();
    for block in 0..blocks {
        out.push(object.block_pointer(block).await.expect("a pointer"));
    }
    out
}

async fn make(filesystem: &Filesystem, name: &[u8], data: &Bytes) -> u64 {
    let made = filesystem.create(filesystem.root(), name, 0o644, ROOT);
    let ino = made.await.expect("created").ino;
    let written = filesystem.write(ino, 0, data.clone(), false, ROOT);
    written.await.expect("written");
    ino
}

async fn read(filesystem: &Filesystem, ino: u64, length: usize) -> Vec<u8> {
    let parts = filesystem.peek(ino, 0, length).await.expect("read");
    parts.concat()
}

fn feature(pool: &Pool) -> FeatureState {
    let features = pool.properties().features();
    let found = features
        .iter()
        .find(|found| found.name == "physical_rewrite");
    found.expect("the feature").state
}

fn number(pool: &Pool, property: &str) -> u64 {
    let value = pool.properties().get(property).expect("a property").value;
    value.parse().expect("a number")
}

async fn set(pool: &Pool, name: &str, value: &str) {
    let props = pool.dsl().properties();
    let change = dataset::PropertyChange::Set(value.to_owned());
    let changes = [(name.to_owned(), change)];
    props.set("tank", &changes).await.expect("set");
}

struct Made {
    world: World,
    image: Image,
    pool: Arc<Pool>,
    filesystem: Arc<Filesystem>,
}

async fn made(is_enabled: bool, properties: &[(&str, &str)]) -> Made {
    let world = World::system(2);
    let image = Image::new(256);
    let pool = create(&world, &image, properties).await;
    if is_enabled {
        let enabled = pool.properties().set("feature@physical_rewrite", "enabled");
        enabled.await.expect("enabled");
    }
    let filesystem = open(&world, &pool, "tank").await;
    Made {
        world,
        image,
        pool,
        filesystem,
    }
}

impl Made {
    async fn export(self) -> (World, Image) {
        self.filesystem.close().await.expect("close");
        self.pool.export(false).await.expect("export");
        (self.world, self.image)
    }
}

/// An ordinary rewrite takes what the properties say now, in the range that was asked for; times
/// and holes stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rewrite_takes_new_properties_and_nothing_else() {
    let made = made(false, &[("compression", "off")]).await;
    let Made {
        pool, filesystem, ..
    } = &made;
    let data = content(40);
    let ino = make(filesystem, b"f", &data).await;
    let end = data.len() as u64 + 4 * BLOCK;
    let tail = Bytes::from_static(b"the end");
    filesystem
        .write(ino, end, tail, false, ROOT)
        .await
        .expect("written");
    pool.sync().await.expect("sync");
    let before = pointers(pool, "tank", ino, 45).await;
    let was = filesystem.attributes(ino).await.expect("attributes");
    set(pool, "compression", "lz4").await;
    set(pool, "checksum", "sha256").await;
    rewrite(filesystem, ino, 2 * BLOCK + 5..4 * BLOCK, false).await;
    pool.sync().await.expect("sync");
    let after = pointers(pool, "tank", ino, 45).await;
    for (block, (old, new)) in before.iter().zip(&after).enumerate() {
        if (2..4).contains(&block) {
            assert!(new.logical_birth() > old.logical_birth() && !new.is_rewritten());
            assert_ne!(new.dva(0), old.dva(0));
            assert!(new.psize_bytes() < old.psize_bytes());
            assert_eq!(new.checksum_kind(), format::Checksum::Sha256);
        } else {
            assert_eq!(old, new, "block {block}");
        }
    }
    rewrite(filesystem, ino, 0..u64::MAX, false).await;
    pool.sync().await.expect("sync");
    let after = pointers(pool, "tank", ino, 45).await;
    assert!(after[40..44].iter().all(BlockPointer::is_hole));
    assert!(after[..40].iter().all(|new| new.psize_bytes() < BLOCK));
    let now = filesystem.attributes(ino).await.expect("attributes");
    assert_eq!((now.mtime, now.ctime), (was.mtime, was.ctime));
    assert_eq!(now.size_bytes, was.size_bytes);
    assert!(read(filesystem, ino, data.len()).await == data);
    // Directories are not rewritten.
    let root = filesystem.root();
    let refused = filesystem.rewrite_part(root, 0, 1, false).await;
    assert!(
        matches!(refused, Err(FsError::IsDirectory { .. })),
        "{refused:?}"
    );
    let (_, image) = made.export().await;
    zdb_is_clean(image.path(), "tank");
}

/// A physical rewrite leaves a block as old as it was, and a snapshot what it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_physical_rewrite_keeps_the_age_of_blocks() {
    let made = made(true, &[("compression", "off")]).await;
    let Made {
        pool,
        filesystem,
        world,
        ..
    } = &made;
    let data = content(20);
    let ino = make(filesystem, b"f", &data).await;
    pool.sync().await.expect("sync");
    let snapshots = ["tank@s".to_owned()];
    pool.dsl()
        .snapshots()
        .take(&snapshots, &[])
        .await
        .expect("a snapshot");
    assert_eq!(feature(pool), FeatureState::Enabled);
    let before = pointers(pool, "tank", ino, 20).await;
    set(pool, "compression", "lz4").await;
    rewrite(filesystem, ino, 0..u64::MAX, true).await;
    pool.sync().await.expect("sync");
    assert_eq!(feature(pool), FeatureState::Active);
    let after = pointers(pool, "tank", ino, 20).await;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(new.logical_birth(), old.logical_birth());
        assert!(new.physical_birth() > old.physical_birth() && new.is_rewritten());
        assert_eq!(new.birth(), new.physical_birth());
        assert!(new.dva(0) != old.dva(0) && new.psize_bytes() < old.psize_bytes());
    }
    assert_eq!(pointers(pool, "tank@s", ino, 20).await, before);
    assert!(read(filesystem, ino, data.len()).await == data);

    // A second time: what the head alone had is free again, what the snapshot has is not.
    let held = number(pool, "allocated");
    rewrite(filesystem, ino, 0..u64::MAX, true).await;
    for _ in 0..3 {
        pool.sync().await.expect("sync");
    }
    let now = number(pool, "allocated");
    assert!(
        now.abs_diff(held) < 256 << 10,
        "{held} were allocated, now {now}"
    );
    let again = pointers(pool, "tank", ino, 20).await;
    assert!(
        again
            .iter()
            .zip(&before)
            .all(|(new, old)| { new.is_rewritten() && new.logical_birth() == old.logical_birth() })
    );
    let old = open(world, pool, "tank@s").await;
    assert!(read(&old, ino, data.len()).await == data);
    old.close().await.expect("close");
    let (world, image) = made.export().await;
    let pool = import(&world, image.path(), false).await;
    assert_eq!(feature(&pool), FeatureState::Active);
    let destroyer = pool.dsl().destroyer();
    destroyer
        .destroy_snapshots(&snapshots, false)
        .await
        .expect("destroyed");
    let filesystem = open(&world, &pool, "tank").await;
    assert!(read(&filesystem, ino, data.len()).await == data);
    filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
}

/// What is written into a block in the same txg, before or after, makes it a changed one: else a
/// stream of changes would leave it out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_in_the_same_txg_is_a_change() {
    let made = made(true, &[]).await;
    let Made {
        pool, filesystem, ..
    } = &made;
    let data = content(6);
    let ino = make(filesystem, b"f", &data).await;
    pool.sync().await.expect("sync");
    let before = pointers(pool, "tank", ino, 6).await;
    // Txgs follow each other by themselves: until nothing came between.
    let after = loop {
        let part = Bytes::from_static(b"changed");
        let open_txg = async || {
            let dataset = pool.dsl().open_dataset("tank").await.expect("a dataset");
            dataset.synced_txg()
        };
        pool.sync().await.expect("sync");
        let synced = open_txg().await;
        let write = |at| filesystem.write(ino, at, part.clone(), false, ROOT);
        write(10).await.expect("written");
        rewrite(filesystem, ino, 0..u64::MAX, true).await;
        write(BLOCK + 10).await.expect("written");
        let whole = Bytes::from(vec![5; BLOCK as usize]);
        let whole = filesystem.write(ino, 2 * BLOCK, whole, false, ROOT);
        whole.await.expect("written");
        let is_one = open_txg().await == synced;
        pool.sync().await.expect("sync");
        if is_one {
            break pointers(pool, "tank", ino, 6).await;
        }
    };
    for (block, (old, new)) in before.iter().zip(&after).enumerate() {
        let is_changed = block < 3;
        assert_eq!(new.is_rewritten(), !is_changed, "block {block}");
        assert_eq!(
            new.logical_birth() == old.logical_birth(),
            !is_changed,
            "block {block}"
        );
    }
    made.export().await;
}

/// What a dedup table has stays where it is, with as many references; a rewrite that shares is
/// given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deduplicated_blocks_stay_in_their_table() {
    let made = made(true, &[("dedup", "sha256")]).await;
    let Made {
        pool, filesystem, ..
    } = &made;
    let data = content(8);
    let first = make(filesystem, b"a", &data).await;
    make(filesystem, b"b", &data).await;
    pool.sync().await.expect("sync");
    let before = pointers(pool, "tank", first, 8).await;
    let allocated = number(pool, "allocated");
    rewrite(filesystem, first, 0..u64::MAX, true).await;
    pool.sync().await.expect("sync");
    assert_eq!(pointers(pool, "tank", first, 8).await, before);
    rewrite(filesystem, first, 0..u64::MAX, false).await;
    for _ in 0..3 {
        pool.sync().await.expect("sync");
    }
    let after = pointers(pool, "tank", first, 8).await;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.dva(0), new.dva(0));
        assert!(new.logical_birth() > old.logical_birth());
    }
    let now = number(pool, "allocated");
    assert!(
        now.abs_diff(allocated) < 128 << 10,
        "{allocated}, then {now}"
    );
    // Out of the table, as the property says now.
    set(pool, "dedup", "off").await;
    rewrite(filesystem, first, 0..u64::MAX, false).await;
    pool.sync().await.expect("sync");
    let after = pointers(pool, "tank", first, 8).await;
    assert!(after.iter().all(|new| !new.is_dedup()));
    assert!(read(filesystem, first, data.len()).await == data);
    let (_, image) = made.export().await;
    zdb_is_clean(image.path(), "tank");
}

/// Clones keep what they share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rewritten_file_no_longer_shares_its_blocks() {
    let made = made(false, &[]).await;
    let Made {
        pool, filesystem, ..
    } = &made;
    let data = content(8);
    let from = make(filesystem, b"a", &data).await;
    let to = make(filesystem, b"b", &Bytes::new()).await;
    pool.sync().await.expect("sync");
    let length = data.len() as u64;
    let copied = filesystem.copy_range(from, 0, to, 0, length, ROOT).await;
    assert_eq!(copied.expect("cloned"), length);
    pool.sync().await.expect("sync");
    assert!(number(pool, "bcloneused") > 0);
    rewrite(filesystem, from, 0..u64::MAX, false).await;
    pool.sync().await.expect("sync");
    assert_eq!(number(pool, "bcloneused"), 0);
    rewrite(filesystem, to, 0..u64::MAX, false).await;
    for ino in [from, to] {
        assert!(read(filesystem, ino, data.len()).await == data);
    }
    let (_, image) = made.export().await;
    zdb_is_clean(image.path(), "tank");
}

/// Without the feature nothing is moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_physical_rewrite_needs_its_feature() {
    let made = made(false, &[]).await;
    let ino = make(&made.filesystem, b"f", &content(1)).await;
    let refused = made.filesystem.rewrite_part(ino, 0, BLOCK, true).await;
    assert!(
        matches!(refused, Err(FsError::Unsupported { .. })),
        "{refused:?}"
    );
    rewrite(&made.filesystem, ino, 0..BLOCK, false).await;
    let (_, image) = made.export().await;
    zdb_is_clean(image.path(), "tank");
}

/// A file is rewritten over and over while the power is cut: it is whole at every import.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_cuts_in_the_middle_lose_nothing() {
    let made = made(true, &[]).await;
    let data = content(100);
    let ino = make(&made.filesystem, b"f", &data).await;
    made.pool.sync().await.expect("sync");
    for turn in 0..4u64 {
        let physically = turn % 2 == 0;
        let mut at = Some(0);
        let mut parts = 0;
        while let Some(from) = at {
            let part = made
                .filesystem
                .rewrite_part(ino, from, u64::MAX, physically);
            at = part.await.expect("rewritten");
            parts += 1;
            if parts == 1 + turn % 3 {
                made.pool.sync().await.expect("sync");
            }
        }
        // The synced parts are there, the others are not.
        let image = cut(&made.image);
        let pool = import_after_cut(&made.world, image.path()).await;
        let filesystem = open(&made.world, &pool, "tank").await;
        assert!(
            read(&filesystem, ino, data.len()).await == data,
            "turn {turn}"
        );
        let after = pointers(&pool, "tank", ino, 100).await;
        let moved = after.iter().filter(|new| new.is_rewritten()).count();
        assert!(
            !physically || moved > 0,
            "turn {turn}: {moved} blocks were moved"
        );
        filesystem.close().await.expect("close");
        pool.export(false).await.expect("export");
        assert!(after.iter().all(|new| new.birth() > Txg::ZERO));
    }
    made.export().await;
}
