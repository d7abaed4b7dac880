//! Goal: an extended attribute whose value is in a file of its own has its old value whole or its
//! new one, wherever an intent log ends that is replayed, by us or by OpenZFS, and in every
//! snapshot.
//! Method: attributes of all sizes are set in one transaction group and committed together; for
//! each block of the log a copy of the image has that block damaged, so that the log ends before
//! it, is imported, and compared. Snapshots are taken while attributes are set.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use device::World;
use filesystem::{Filesystem, FsError, XattrMode};
use format::{LABEL_START_BYTES, ObjsetId, Txg};
use pool::Pool;

use crate::common::*;

/// An attribute: its name, the length that it has, if it is there, and the one that it gets.
type Case = (&'static [u8], Option<usize>, usize);

const CASES: [Case; 8] = [
    (b"user.made", None, 54_921),
    (b"user.longer", Some(100), 60_001),
    (b"user.shorter", Some(60_000), 3),
    (b"user.as long", Some(40_000), 40_000),
    (b"user.small", None, 700),
    (b"user.emptied", Some(5_000), 0),
    // Longer than Linux lets attributes be: another system made it.
    (b"user.oversize", Some(OVERSIZE_BYTES), 30_000),
    (b"user.longest", Some(20_000), VALUE_BYTES_MAX),
];
const OVERSIZE_BYTES: usize = 200_003;
const VALUE_BYTES_MAX: usize = 64 << 10;

fn old_value(length: usize) -> Vec<u8> {
    vec![b'o'; length]
}

fn new_value(length: usize) -> Vec<u8> {
    vec![b'n'; length]
}

async fn set(fs: &Filesystem, ino: u64, name: &[u8], value: &[u8]) {
    let set = fs.xattrs().set(ino, name, value, XattrMode::Any, ROOT);
    set.await.expect("set");
}

async fn value_of(fs: &Filesystem, ino: u64, name: &[u8]) -> Option<Bytes> {
    match fs.xattrs().get(ino, name).await {
        Ok(value) => Some(value),
        Err(FsError::NoAttribute { .. }) => None,
        Err(error) => panic!("{}: {error}", String::from_utf8_lossy(name)),
    }
}

async fn make(fs: &Filesystem, name: &[u8]) -> u64 {
    let made = fs.create(fs.root(), name, 0o644, ROOT).await;
    made.expect("create").ino
}

/// Sets an attribute to what no caller may: as the file that it is.
async fn set_oversize(fs: &Filesystem, ino: u64, name: &[u8], value: &[u8]) {
    /// No other file has this length, which is too long for a dnode.
    const MARK_BYTES: u64 = 40_347;
    set(fs, ino, name, &old_value(MARK_BYTES as usize)).await;
    for number in 1..1000 {
        let Ok(found) = fs.attributes(number).await else {
            continue;
        };
        if found.size_bytes == MARK_BYTES {
            let data = Bytes::copy_from_slice(value);
            let written = fs.write(number, 0, data, false, ROOT).await;
            return written.expect("write");
        }
    }
    panic!("the attribute's file is not found");
}

fn image_path(image: &Image) -> PathBuf {
    image.path().join("d0.img")
}

fn copy_of(image: &Image) -> Image {
    let copy = Image::empty();
    std::fs::copy(image_path(image), image_path(&copy)).expect("a copy");
    copy
}

/// Where in the image the blocks of the log of "tank" begin, in order, that were written.
async fn log_blocks(world: &World, image: &Image) -> Vec<u64> {
    let copy = copy_of(image);
    let pool = import_after_cut(world, copy.path()).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    assert!(dataset.log().expect("a log").needs_replay(), "it waits");
    let mut blocks = Vec::new();
    let header = dataset.objset().zil_header();
    let mut visit = |pointer: format::BlockPointer, _| {
        let place = pointer.dva(0).expect("a place");
        blocks.push(LABEL_START_BYTES + place.offset_bytes());
    };
    let pipeline = pool.pipeline();
    zil::visit_log(pipeline, ObjsetId::new(0), Txg::ZERO, &header, &mut visit).await;
    // The last one is kept for the next commit.
    blocks.pop();
    drop(dataset);
    pool.export(false).await.expect("export");
    blocks
}

/// A copy of the image whose log ends before the block there.
fn ending_at(image: &Image, block: u64) -> Image {
    let copy = copy_of(image);
    let file = std::fs::File::options().write(true).open(image_path(&copy));
    let file = file.expect("the image");
    file.write_all_at(&[0xa5; 512], block).expect("damaged");
    copy
}

/// Files with the attributes, a pool image whose log has their change, and where its blocks are.
struct Crashed {
    inos: Vec<u64>,
    image: Image,
    blocks: Vec<u64>,
}

async fn crashed(world: &World, properties: &[(&str, &str)]) -> Crashed {
    let image = Image::new(256);
    let pool = create(world, &image, properties).await;
    let fs = open(world, &pool, "tank").await;
    let other = make(&fs, b"other").await;
    // The first commit makes the log, and waits for its group.
    let write = async |text: &'static [u8]| {
        let written = fs.write(other, 0, text.into(), true, ROOT).await;
        written.expect("write");
    };
    write(b"made").await;
    let inos = vec![make(&fs, b"one").await, make(&fs, b"two").await];
    for ino in &inos {
        for (name, before, _) in CASES {
            match before {
                Some(OVERSIZE_BYTES) => {
                    set_oversize(&fs, *ino, name, &old_value(OVERSIZE_BYTES)).await;
                }
                Some(length) => set(&fs, *ino, name, &old_value(length)).await,
                None => {}
            }
        }
    }
    pool.sync().await.expect("sync");
    for ino in &inos {
        for (name, _, length) in CASES {
            set(&fs, *ino, name, &new_value(length)).await;
        }
    }
    // A commit of another file writes what is to keep its order.
    write(b"synced").await;
    for ino in &inos {
        fs.sync_file(*ino).await.expect("fsync");
    }
    let after = cut(&image);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    let blocks = log_blocks(world, &after).await;
    assert!(blocks.len() >= 4, "{blocks:?}: a txg came between");
    Crashed {
        inos,
        image: after,
        blocks,
    }
}

/// Each attribute has its old value or its new one; answers which have the new one.
async fn check(fs: &Filesystem, inos: &[u64], what: &str) -> Vec<bool> {
    let mut all = Vec::new();
    for (index, ino) in inos.iter().enumerate() {
        for (name, before, after) in CASES {
            let shown = format!("{what}: {} of {index}", String::from_utf8_lossy(name));
            let found = value_of(fs, *ino, name).await;
            let old = before.map(|length| old_value(length.min(VALUE_BYTES_MAX)));
            let is_new = found.as_deref() == Some(&new_value(after)[..]);
            assert!(
                is_new || found.as_deref() == old.as_deref(),
                "{shown}: {:?} bytes, {:?} of them new",
                found.as_ref().map(Bytes::len),
                found.map(|value| value.iter().filter(|byte| **byte == b'n').count()),
            );
            all.push(is_new);
        }
    }
    all
}

async fn let_go(fs: Arc<Filesystem>, pool: Arc<Pool>) {
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
}

async fn wherever_the_log_ends(properties: &[(&str, &str)]) {
    let world = World::system(2);
    let Crashed {
        inos,
        image,
        blocks,
    } = crashed(&world, properties).await;
    for (index, block) in blocks.iter().map(Some).chain([None]).enumerate() {
        let what = format!("{index} of {} blocks", blocks.len());
        let copy = match block {
            Some(block) => ending_at(&image, *block),
            None => copy_of(&image),
        };
        let pool = import_after_cut(&world, copy.path()).await;
        let fs = open(&world, &pool, "tank").await;
        let is_new = check(&fs, &inos, &what).await;
        assert!(block.is_some() || !is_new.contains(&false), "{is_new:?}");
        let_go(fs, pool).await;
        zdb_is_clean(copy.path(), "tank");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_the_log_ends_attributes_are_old_or_new() {
    wherever_the_log_ends(&[("xattr", "dir"), ("compression", "off")]).await;
}

/// Values of many blocks; those that fit are in the dnode, and leave it or come to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_the_log_ends_attributes_of_many_blocks_and_in_dnodes_are_old_or_new() {
    wherever_the_log_ends(&[("xattr", "sa"), ("recordsize", "4K")]).await;
}

/// OpenZFS replays what is left of the log, and we look at what it made of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_replays_attributes_whole() {
    let Some(peer) = Peer::find() else { return };
    let world = World::system(2);
    let properties = [("xattr", "dir"), ("recordsize", "8K")];
    let Crashed {
        inos,
        image,
        blocks,
    } = crashed(&world, &properties).await;
    let mut copies: Vec<Image> = blocks.iter().map(|at| ending_at(&image, *at)).collect();
    copies.push(image);
    let disk = |(index, copy): (usize, &Image)| format!("{},d{index}", image_path(copy).display());
    let disks: Vec<String> = copies.iter().enumerate().map(disk).collect();
    let script = r#"
for disk in /dev/disk/peer/d*; do
  zpool import -f -d $disk tank || exit 3
  getfattr -d -m - /tank/one /tank/two > /dev/null || exit 4
  zpool scrub -w tank
  zpool status -v tank
  zpool export tank || exit 5
done
"#;
    let text = peer.run(&disks, script);
    let sound = text.matches("errors: No known data errors").count();
    assert_eq!(sound, copies.len(), "{text}");
    for (index, copy) in copies.iter().enumerate() {
        let what = format!("{index} of {} blocks", blocks.len());
        let pool = import(&world, copy.path(), false).await;
        let fs = open(&world, &pool, "tank").await;
        let is_new = check(&fs, &inos, &what).await;
        assert!(is_new.is_sorted_by(|before, after| before >= after));
        assert!(index < blocks.len() || !is_new.contains(&false));
        let_go(fs, pool).await;
        zdb_is_clean(copy.path(), "tank");
    }
}

/// The value of a version: it tells how long it is.
fn version(number: usize) -> Vec<u8> {
    let length = 8 + number * 7_919 % (VALUE_BYTES_MAX - 8);
    let mut value = vec![number as u8; length];
    value[..8].copy_from_slice(&(length as u64).to_le_bytes());
    value
}

fn is_a_version(value: &[u8]) -> bool {
    let length = value.first_chunk::<8>().map(|raw| u64::from_le_bytes(*raw));
    let fill = value.get(8);
    length == Some(value.len() as u64) && value[8..].iter().all(|byte| Some(byte) == fill)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_have_attributes_whole() {
    const SNAPSHOTS: usize = 24;
    const NAMES: [&[u8]; 2] = [b"user.kept", b"user.made anew"];
    let (image, world) = (Image::new(512), World::system(2));
    let properties = [("xattr", "dir"), ("recordsize", "8K")];
    let pool = create(&world, &image, &properties).await;
    let fs = open(&world, &pool, "tank").await;
    let ino = make(&fs, b"file").await;
    let is_over = Arc::new(AtomicBool::new(false));
    let setting = {
        let (fs, is_over) = (Arc::clone(&fs), Arc::clone(&is_over));
        tokio::spawn(async move {
            let mut number = 0;
            while !is_over.load(Ordering::Acquire) {
                number += 1;
                for name in NAMES {
                    set(&fs, ino, name, &version(number)).await;
                }
                fs.xattrs().remove(ino, NAMES[1]).await.expect("remove");
            }
        })
    };
    let names: Vec<String> = (0..SNAPSHOTS).map(|at| format!("tank@{at}")).collect();
    for name in &names {
        let name = std::slice::from_ref(name);
        let taken = pool.dsl().snapshots().take(name, &[]).await;
        taken.expect("a snapshot");
    }
    is_over.store(true, Ordering::Release);
    setting.await.expect("it sets attributes");
    let mut seen = 0;
    for name in &names {
        let then = open(&world, &pool, name).await;
        for attribute in NAMES {
            if let Some(value) = value_of(&then, ino, attribute).await {
                let length = value.len();
                assert!(is_a_version(&value), "{name}: a value of {length} bytes");
                seen += 1;
            }
        }
        then.close().await.expect("close");
    }
    assert!(seen >= SNAPSHOTS / 2, "{seen}");
    let_go(fs, pool).await;
    zdb_is_clean(image.path(), "tank");
}
