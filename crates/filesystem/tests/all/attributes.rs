//! Goal: an attribute has its old value or its new one, whatever comes between, and what was synced
//! is there. Method: values that fit the dnode and that do not, in turn; the image is copied while
//! the pool is open, as a power cut would leave it.

use filesystem::{Filesystem, FsError, XattrMode};
use pool::FeatureChoice;

use crate::common::*;
use device::World;

const NAME: &[u8] = b"user.a";

async fn set(filesystem: &Filesystem, ino: u64, value: &[u8]) -> filesystem::Result<()> {
    let set = filesystem
        .xattrs()
        .set(ino, NAME, value, XattrMode::Any, ROOT);
    set.await
}

/// What is synced after an attribute was set again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Synced {
    Itself,
    Another,
}

/// Sets a value that gets to disk, then another, syncs, cuts, and answers what is there.
async fn set_twice_and_cut(
    features: FeatureChoice,
    xattr: &str,
    synced: Synced,
    values: [&[u8]; 2],
) -> Option<Vec<u8>> {
    let (image, world) = (Image::new(256), World::system(2));
    let pool = create_with(&world, &image, features, &[("xattr", xattr)]).await;
    let live = open(&world, &pool, "tank").await;
    let file = live.create(live.root(), b"f", 0o644, ROOT).await;
    let file = file.expect("create").ino;
    let other = live.create(live.root(), b"g", 0o644, ROOT).await;
    let other = other.expect("create").ino;
    set(&live, file, values[0]).await.expect("set");
    live.sync_file(file).await.expect("fsync");
    pool.sync().await.expect("sync");
    set(&live, file, values[1]).await.expect("set");
    match synced {
        Synced::Itself => live.sync_file(file).await.expect("fsync"),
        Synced::Another => {
            let text = bytes::Bytes::from_static(b"x");
            let written = live.write(other, 0, text, true, ROOT).await;
            written.expect("write");
        }
    }
    let after = cut(&image);
    let pool_after = import_after_cut(&world, after.path()).await;
    let filesystem = open(&world, &pool_after, "tank").await;
    let value = filesystem.xattrs().get(file, NAME).await.ok();
    filesystem.close().await.expect("close");
    drop(filesystem);
    pool_after.export(false).await.expect("export");
    zdb_is_clean(after.path(), "tank");
    live.close().await.expect("close");
    drop(live);
    pool.export(false).await.expect("export");
    value.map(|value| value.to_vec())
}

async fn survives(features: FeatureChoice, xattr: &str) {
    let (small, medium, big) = (vec![b'S'; 8], vec![b'M'; 9_000], vec![b'B'; 40_005]);
    for [before, after] in [
        [&big, &small],
        [&small, &big],
        [&big, &medium],
        [&medium, &big],
    ] {
        let values = [&before[..], &after[..]];
        let found = set_twice_and_cut(features.clone(), xattr, Synced::Itself, values).await;
        assert!(found.as_ref() == Some(after), "{xattr}: {:?}", head(&found));
        let found = set_twice_and_cut(features.clone(), xattr, Synced::Another, values).await;
        assert!(
            found.as_ref() == Some(after) || found.as_ref() == Some(before),
            "{xattr}: {:?}",
            head(&found)
        );
    }
}

/// Length and beginning of a value.
fn head(value: &Option<Vec<u8>>) -> Option<(usize, &[u8])> {
    let value = value.as_ref()?;
    Some((value.len(), &value[..value.len().min(8)]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_move_between_dnode_and_directory() {
    survives(FeatureChoice::All, "sa").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_in_dnodes_of_pools_whose_logs_do_not_know_them() {
    survives(FeatureChoice::None, "sa").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_in_directories() {
    survives(FeatureChoice::All, "dir").await;
}

/// Goal: setting an attribute that is refused for want of room leaves the value that was there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_change_leaves_the_value() {
    let (image, world) = (Image::new(256), World::system(2));
    let pool = create(&world, &image, &[("xattr", "dir"), ("compression", "off")]).await;
    let live = open(&world, &pool, "tank").await;
    let file = live.create(live.root(), b"f", 0o644, ROOT).await;
    let file = file.expect("create").ino;
    let old = vec![7; 5_000];
    set(&live, file, &old).await.expect("set");
    pool.sync().await.expect("sync");
    let change = dataset::PropertyChange::Set("1M".into());
    let limit = [("refquota".to_owned(), change)];
    pool.dsl()
        .properties()
        .set("tank", &limit)
        .await
        .expect("a quota");
    let mut random = Random(5);
    let mut offset = 0;
    while live
        .write(file, offset, random.bytes(65_536).into(), false, ROOT)
        .await
        .is_ok()
    {
        offset += 65_536;
        pool.sync().await.expect("sync");
        assert!(offset < 4 << 20, "there is room");
    }
    for length in [40_000, 10, 5_000, 64 << 10] {
        let value = random.bytes(length);
        let outcome = set(&live, file, &value).await;
        let found = live.xattrs().get(file, NAME).await.expect("a value");
        let expected = if outcome.is_ok() { &value } else { &old };
        assert!(found == *expected, "{length}: {outcome:?}");
        assert!(outcome.is_err(), "{length}: there is room");
    }
    let fresh = live
        .xattrs()
        .set(file, b"user.b", b"new", XattrMode::Any, ROOT);
    assert!(fresh.await.is_err());
    assert!(live.xattrs().get(file, b"user.b").await.is_err());
    live.close().await.expect("close");
    drop(live);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Names of attributes are bytes: an attribute whose name is no text is kept in the dnode as others
/// are, and keeps neither its file from being used nor others from being set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_attributes_are_bytes() {
    const RAW: &[u8] = b"user.caf\xe9";
    let (image, world) = (Image::new(256), World::system(2));
    let pool = create(&world, &image, &[("xattr", "sa")]).await;
    let live = open(&world, &pool, "tank").await;
    let root = live.root();
    let file = live.create(root, b"f", 0o644, ROOT).await;
    let file = file.expect("create").ino;
    pool.sync().await.expect("sync");
    let objects = live.dataset().expect("open").objset().object_count();
    for ino in [root, file] {
        let set_raw = (live.xattrs()).set(ino, RAW, b"1", XattrMode::Create, ROOT);
        set_raw.await.expect("set");
        set(&live, ino, b"2").await.expect("set");
    }
    pool.sync().await.expect("sync");
    let after = live.dataset().expect("open").objset().object_count();
    assert_eq!(after, objects, "no directory was made for them");
    live.close().await.expect("close");
    drop(live);

    let live = open(&world, &pool, "tank").await;
    for ino in [root, file] {
        let names = live.xattrs().names(ino).await.expect("names");
        assert_eq!(names, [RAW, NAME]);
        let whole = RAW.len() + NAME.len() + 2;
        for (limit, fits) in [(whole, true), (whole - 1, false)] {
            let within = live.xattrs().names_within(ino, limit).await;
            match fits {
                true => assert_eq!(within.expect("names"), names),
                false => assert!(matches!(within, Err(FsError::AttributeTooBig))),
            }
        }
        let value = live.xattrs().get(ino, RAW).await.expect("a value");
        assert_eq!(value[..], b"1"[..]);
    }
    let written = live
        .write(file, 0, b"content"[..].into(), false, ROOT)
        .await;
    written.expect("write");
    let created = live.create(root, b"g", 0o644, ROOT).await;
    created.expect("create in a directory that has such a name");
    live.xattrs().remove(file, RAW).await.expect("remove");
    let names = live.xattrs().names(file).await.expect("names");
    assert_eq!(names, [NAME]);
    live.close().await.expect("close");
    drop(live);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Goal: that a file has no attributes is known without looking for any, from when it is made and
/// when it is loaded: the kernel asks for one before each file's first write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_without_attributes_are_known() {
    let (image, world) = (Image::new(128), World::system(2));
    let pool = create(&world, &image, &[("xattr", "sa")]).await;
    let fs = open(&world, &pool, "tank").await;
    let plain = fs.create(fs.root(), b"plain", 0o644, ROOT).await;
    let plain = plain.expect("create").ino;
    let other = fs.create(fs.root(), b"other", 0o644, ROOT).await;
    let other = other.expect("create").ino;
    let lacks = |fs: &Filesystem| [plain, other].map(|ino| fs.xattrs().lacks(ino, NAME));
    assert_eq!(lacks(&fs), [true, true]);
    for ino in [plain, other] {
        set(&fs, ino, b"value").await.expect("set");
    }
    assert_eq!(lacks(&fs), [false, false]);
    let removed = fs.xattrs().remove(plain, NAME).await;
    removed.expect("remove");
    assert_eq!(lacks(&fs), [true, false]);
    let third = fs.create(fs.root(), b"third", 0o644, ROOT).await;
    let third = third.expect("create").ino;
    fs.close().await.expect("close");
    drop(fs);
    let fs = open(&world, &pool, "tank").await;
    for ino in [other, third] {
        fs.attributes(ino).await.expect("there");
    }
    assert!(fs.xattrs().lacks(third, NAME) && !fs.xattrs().lacks(other, NAME));
    let value = fs.xattrs().get(other, NAME).await;
    assert_eq!(value.expect("there"), &b"value"[..]);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
}
