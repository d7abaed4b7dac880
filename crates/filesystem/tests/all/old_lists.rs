//! Goal: lists of access of filesystems without system attributes (ZPL versions below 5) keep all
//! their entries, however many, and the objects of long ones go with them. Method: a directory gets
//! a list that another system could have given it; its mode is changed, and files inherit from it;
//! objects that hold lists are counted.

use dataset::PropertyChange;
use device::World;
use filesystem::{Filesystem, FsError, SetAttributes, pflags};
use format::{ObjectId, ObjectType};
use pool::Pool;

use crate::common::*;

/// Places in the `znode_phys_t` of a directory.
const FLAGS_OFFSET: usize = 120;
const ACL_OFFSET: usize = 176;
/// The list says no more than the mode; it has entries that are inherited.
const TRIVIAL: u64 = 0x4;
const INHERITS: u64 = 0x2;
/// What an entry is inherited by: files and directories.
const BY_ALL: u16 = 0x3;

/// Gives a directory a list of four users, who may read it.
async fn give_list(pool: &Pool, ino: u64, is_new: bool) {
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let object = dataset.objset().hold(ObjectId::new(ino)).await;
    let object = object.expect("hold");
    let mut bonus = object.bonus().to_vec();
    let flags = u64::from_le_bytes(*bonus[FLAGS_OFFSET..].first_chunk().expect("flags"));
    let flags = flags & !TRIVIAL | INHERITS;
    bonus[FLAGS_OFFSET..][..8].copy_from_slice(&flags.to_le_bytes());
    let mut entries = Vec::new();
    for user in 2000..2004_u64 {
        let mask = 0x1_u32;
        match is_new {
            true => {
                entries.extend([0_u16, BY_ALL].map(u16::to_le_bytes).concat());
                entries.extend(mask.to_le_bytes());
                entries.extend(user.to_le_bytes());
            }
            false => {
                entries.extend((user as u32).to_le_bytes());
                entries.extend(mask.to_le_bytes());
                entries.extend([BY_ALL, 0].map(u16::to_le_bytes).concat());
            }
        }
    }
    let list = &mut bonus[ACL_OFFSET..];
    list.fill(0);
    match is_new {
        true => {
            list[8..12].copy_from_slice(&(entries.len() as u32).to_le_bytes());
            list[12..14].copy_from_slice(&1_u16.to_le_bytes());
            list[14..16].copy_from_slice(&4_u16.to_le_bytes());
        }
        false => list[8..12].copy_from_slice(&4_u32.to_le_bytes()),
    }
    list[16..][..entries.len()].copy_from_slice(&entries);
    object.prepare_dnode().await.expect("prepared");
    let tx = dataset.assign(dataset::DirtyEstimate::metadata()).await;
    object.set_bonus(&tx.expect("a txg"), bonus).expect("set");
    pool.sync().await.expect("sync");
}

/// Objects that hold lists.
async fn lists(pool: &Pool) -> usize {
    pool.sync().await.expect("sync");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let (mut count, mut at) = (0, None);
    while let Some(id) = dataset.objset().next_object(at).await.expect("an object") {
        let object = dataset.objset().hold(id).await.expect("hold");
        let kind = object.info().object_type;
        count += usize::from(kind == ObjectType::ACL || kind == ObjectType::OLDACL);
        at = Some(id);
    }
    count
}

async fn chmod(fs: &Filesystem, ino: u64, mode: u32) {
    let set = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    fs.set_attributes(ino, &set, ROOT).await.expect("chmod");
}

async fn set(pool: &Pool, property: &str, value: &str) {
    let change = PropertyChange::Set(value.into());
    let set = [(property.to_owned(), change)];
    pool.dsl()
        .properties()
        .set("tank", &set)
        .await
        .expect("set");
}

async fn long_lists(version: &str, is_new: bool) {
    let (image, world) = (Image::new(256), World::system(2));
    let properties = [
        ("version", version),
        ("aclmode", "passthrough"),
        ("aclinherit", "passthrough"),
    ];
    let pool = create(&world, &image, &properties).await;
    let fs = open(&world, &pool, "tank").await;
    let directory = fs.make_directory(fs.root(), b"d", 0o755, ROOT).await;
    let directory = directory.expect("mkdir").ino;
    let flags = SetAttributes {
        flags: Some(pflags::NODUMP),
        ..SetAttributes::default()
    };
    let flagged = fs.set_attributes(directory, &flags, ROOT).await;
    let is_refused = matches!(flagged, Err(FsError::Invalid { .. }));
    assert_eq!(is_refused, !is_new, "{flagged:?}");
    fs.close().await.expect("close");
    drop(fs);
    give_list(&pool, directory, is_new).await;
    assert_eq!(lists(&pool).await, 0);

    // With the entries of its mode the list is longer than the znode has room for.
    let fs = open(&world, &pool, "tank").await;
    chmod(&fs, directory, 0o750).await;
    assert_eq!(lists(&pool).await, 1);
    let made = fs.make_directory(directory, b"sub", 0o755, ROOT).await;
    let made = made.expect("what inherits the list").ino;
    assert_eq!(lists(&pool).await, 2);
    fs.close().await.expect("close");
    drop(fs);
    let fs = open(&world, &pool, "tank").await;
    for (ino, mode) in [(directory, 0o700), (made, 0o711), (directory, 0o755)] {
        chmod(&fs, ino, mode).await;
        let found = fs.attributes(ino).await.expect("attributes");
        assert_eq!(found.mode & 0o777, mode);
    }
    assert_eq!(lists(&pool).await, 2);
    // One goes with its directory, the other when a short list takes its place.
    fs.remove_directory(directory, b"sub").await.expect("rmdir");
    fs.close().await.expect("close");
    drop(fs);
    set(&pool, "aclmode", "discard").await;
    let fs = open(&world, &pool, "tank").await;
    chmod(&fs, directory, 0o750).await;
    fs.close().await.expect("close");
    drop(fs);
    assert_eq!(lists(&pool).await, 0);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_of_version_4_keep_their_entries() {
    long_lists("4", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_of_version_2_keep_their_entries() {
    long_lists("2", false).await;
}
