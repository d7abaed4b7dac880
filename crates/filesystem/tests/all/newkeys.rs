//! Goal: encryption roots that are made here are as OpenZFS makes them, whatever their suite and
//! format; changed keys open all that had the old one, and the old one opens nothing; clones and
//! promotions follow. Method: a pool is made, written, exported and imported again, with keys that
//! are right and wrong; zdb looks for leaks, and a search through the image for plain text. What
//! the real OpenZFS says is in the tests of crate `cli` (`keys`).

use std::sync::Arc;

use crate::common::*;
use crate::rawstreams::send;
use crate::streams::{How, receive};
use bytes::Bytes;
use codec::crypt::{WrappingKey, passphrase_key};
use dataset::{DatasetError, KeyChange, KeyFormat, NewKey, PBKDF2_ITERATIONS_MIN, PropertyChange};
use device::World;
use filesystem::{Filesystem, ZplInit};
use pool::Pool;

/// What must not be found on the disk.
const SECRET: &[u8] = b"the quick brown fox jumps over an encrypted dog";

pub fn wrapping(number: u8) -> WrappingKey {
    WrappingKey::new([number; 32])
}

pub fn raw(number: u8) -> NewKey {
    NewKey::new(KeyFormat::Raw, wrapping(number)).expect("a key")
}

pub async fn make(
    pool: &Pool,
    name: &str,
    properties: &[(&str, &str)],
    key: Option<NewKey>,
) -> Result<(), DatasetError> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let properties: Vec<_> = properties.iter().map(own).collect();
    pool.dsl()
        .datasets()
        .create_with_key(name, &properties, Arc::new(ZplInit::new()), key)
        .await
}

pub async fn text(pool: &Pool, name: &str, property: &str) -> String {
    let got = pool.dsl().properties().get(name, property).await;
    let value = got.expect(property).value;
    dataset::props::show_value(dataset::props::find(property), &value, true)
}

pub async fn write(filesystem: &Arc<Filesystem>, name: &[u8], content: &[u8]) {
    let made = filesystem
        .create(filesystem.root(), name, 0o644, ROOT)
        .await
        .expect("create");
    let content = Bytes::copy_from_slice(content);
    filesystem
        .write(made.ino, 0, content, false, ROOT)
        .await
        .expect("write");
}

pub async fn read(filesystem: &Arc<Filesystem>, name: &[u8]) -> Vec<u8> {
    let file = filesystem
        .lookup(filesystem.root(), name)
        .await
        .expect("the file");
    filesystem
        .read(file.ino, 0, file.size_bytes as usize)
        .await
        .expect("read")
        .concat()
}

/// A file with the secret, in a filesystem that is closed then.
async fn fill(world: &World, pool: &Pool, name: &str) {
    let filesystem = open(world, pool, name).await;
    let content = [name.as_bytes(), &SECRET.repeat(3000)].concat();
    write(&filesystem, b"file", &content).await;
    filesystem.close().await.expect("close");
}

async fn is_filled(world: &World, pool: &Pool, name: &str, as_of: &str) {
    let filesystem = open(world, pool, name).await;
    let content = [as_of.as_bytes(), &SECRET.repeat(3000)].concat();
    assert_eq!(read(&filesystem, b"file").await, content, "{name}");
    filesystem.close().await.expect("close");
}

fn is_secret_on_disk(image: &Image) -> bool {
    let bytes = std::fs::read(image.path().join("d0.img")).expect("the image");
    bytes.windows(SECRET.len()).any(|window| window == SECRET)
}

/// How often a feature is counted.
fn count(pool: &Pool, feature: &str) -> Option<u64> {
    pool.dsl().features().refcount(feature)
}

const FEATURE: &str = "com.datto:encryption";
pub const ROOT_OF_RAW: [(&str, &str); 3] = [
    ("encryption", "on"),
    ("keyformat", "raw"),
    ("keylocation", "file:///key"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encryption_roots_of_every_suite_and_format_are_made() {
    let world = World::system(2);
    let image = Image::new(256);
    // Compression would hide the secret from the search below.
    let pool = create(&world, &image, &[("compression", "off")]).await;
    assert_eq!(count(&pool, FEATURE), Some(0));
    let suites = [
        ("on", "aes-256-gcm"),
        ("aes-128-ccm", "aes-128-ccm"),
        ("aes-192-ccm", "aes-192-ccm"),
        ("aes-256-ccm", "aes-256-ccm"),
        ("aes-128-gcm", "aes-128-gcm"),
        ("aes-192-gcm", "aes-192-gcm"),
        ("aes-256-gcm", "aes-256-gcm"),
    ];
    let passphrase = || passphrase_key(b"correct horse", 77, PBKDF2_ITERATIONS_MIN as u32);
    let key_of = |index: usize| match index % 3 {
        0 => ("raw", raw(index as u8), wrapping(index as u8)),
        1 => {
            let key = NewKey::new(KeyFormat::Hex, wrapping(index as u8));
            ("hex", key.expect("a key"), wrapping(index as u8))
        }
        _ => {
            let key = NewKey::of_passphrase(passphrase(), 77, PBKDF2_ITERATIONS_MIN);
            ("passphrase", key.expect("a key"), passphrase())
        }
    };
    for (index, (typed, suite)) in suites.iter().enumerate() {
        let (format, key, _) = key_of(index);
        let name = format!("tank/f{index}");
        let properties = [("encryption", *typed), ("keyformat", format)];
        make(&pool, &name, &properties, Some(key))
            .await
            .expect("made");
        for (property, wanted) in [
            ("encryption", *suite),
            ("keyformat", format),
            ("keylocation", "prompt"),
            ("keystatus", "available"),
            ("encryptionroot", &name),
            (
                "pbkdf2iters",
                if format == "passphrase" {
                    "100000"
                } else {
                    "0"
                },
            ),
        ] {
            assert_eq!(text(&pool, &name, property).await, wanted, "{property}");
        }
        fill(&world, &pool, &name).await;
        // What is below has the same root, and a suite of its own if it likes.
        let child = format!("{name}/child");
        let own = [("encryption", "aes-128-gcm")];
        let own = if index == 0 { &own[..] } else { &[] };
        make(&pool, &child, own, None).await.expect("made");
        assert_eq!(text(&pool, &child, "encryptionroot").await, name);
        let wanted = if index == 0 { "aes-128-gcm" } else { suite };
        assert_eq!(text(&pool, &child, "encryption").await, wanted);
        assert_eq!(text(&pool, &child, "keylocation").await, "none");
        fill(&world, &pool, &child).await;
    }
    // Not encrypted below an encrypted one, as OpenZFS 2 allows.
    make(&pool, "tank/f0/clear", &[("encryption", "off")], None)
        .await
        .expect("made");
    assert_eq!(text(&pool, "tank/f0/clear", "encryption").await, "off");
    assert_eq!(count(&pool, FEATURE), Some(14));
    pool.dsl()
        .snapshots()
        .take(&["tank/f0@s".to_owned()], &[])
        .await
        .expect("snapshot");
    assert_eq!(count(&pool, FEATURE), Some(15));
    // A root below a root.
    make(&pool, "tank/f1/root", &ROOT_OF_RAW[1..], Some(raw(99)))
        .await
        .expect("made");
    assert_eq!(
        text(&pool, "tank/f1/root", "encryptionroot").await,
        "tank/f1/root"
    );
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
    assert!(!is_secret_on_disk(&image), "the secret is in the clear");

    let pool = import(&world, image.path(), false).await;
    for index in 0..suites.len() {
        let name = format!("tank/f{index}");
        assert_eq!(text(&pool, &name, "keystatus").await, "unavailable");
        let locked = pool.dsl().open_dataset(&name).await;
        assert!(matches!(locked, Err(DatasetError::KeyNotLoaded { .. })));
        let wrong = pool.dsl().keys().load(&name, wrapping(200), false).await;
        assert!(
            matches!(wrong, Err(DatasetError::WrongKey { .. })),
            "{wrong:?}"
        );
        let (_, _, right) = key_of(index);
        let keys = pool.dsl().keys();
        keys.load(&name, right, false).await.expect("the key");
        is_filled(&world, &pool, &name, &name).await;
        let child = format!("{name}/child");
        is_filled(&world, &pool, &child, &child).await;
    }
    // All of it goes again, and the feature rests.
    for index in 0..suites.len() {
        let dsl = pool.dsl();
        let mut names = vec![format!("tank/f{index}/child")];
        if index == 0 {
            names.push("tank/f0/clear".into());
            names.push("tank/f0@s".into());
        }
        if index == 1 {
            names.push("tank/f1/root".into());
        }
        names.push(format!("tank/f{index}"));
        for name in names {
            let gone = match name.contains('@') {
                true => {
                    let names = std::slice::from_ref(&name);
                    dsl.destroyer().destroy_snapshots(names, false).await
                }
                false => dsl.destroyer().destroy(&name).await,
            };
            gone.expect(&name);
        }
    }
    for _ in 0..3 {
        pool.sync().await.expect("sync");
    }
    assert_eq!(count(&pool, FEATURE), Some(0));
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Whether this is the key of an encryption root.
pub async fn opens(pool: &Pool, root: &str, key: u8) -> bool {
    match pool.dsl().keys().load(root, wrapping(key), true).await {
        Ok(()) => true,
        Err(DatasetError::WrongKey { .. }) => false,
        Err(error) => panic!("{root}: {error}"),
    }
}

fn new(key: u8, location: Option<&str>) -> KeyChange {
    KeyChange::New {
        key: raw(key),
        location: location.map(str::to_owned),
    }
}

/// Goal: each way to change a key does so for all that have it. Method: a root with a child, a
/// clone elsewhere and what is below that; roots are made within and given up again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_changed_with_all_that_inherit_them() {
    let world = World::system(2);
    let image = Image::new(192);
    let pool = create(&world, &image, &[("compression", "off")]).await;
    make(&pool, "tank/a", &ROOT_OF_RAW, Some(raw(1)))
        .await
        .expect("made");
    make(&pool, "tank/a/b", &[], None).await.expect("made");
    make(&pool, "tank/a/b/c", &[], None).await.expect("made");
    for name in ["tank/a", "tank/a/b", "tank/a/b/c"] {
        fill(&world, &pool, name).await;
    }
    let dsl = pool.dsl().clone();
    dsl.snapshots()
        .take(&["tank/a/b@s".to_owned()], &[])
        .await
        .expect("snapshot");
    let cloned = dsl.datasets();
    let with_key = [("keylocation".to_owned(), "prompt".to_owned())];
    let refused = cloned.clone_snapshot("tank/a/b@s", "tank/clone", &with_key);
    assert!(matches!(
        refused.await,
        Err(DatasetError::InvalidProperty { .. })
    ));
    cloned
        .clone_snapshot("tank/a/b@s", "tank/clone", &[])
        .await
        .expect("clone");
    assert_eq!(text(&pool, "tank/clone", "encryptionroot").await, "tank/a");
    make(&pool, "tank/clone/below", &[], None)
        .await
        .expect("made");
    fill(&world, &pool, "tank/clone/below").await;
    assert_eq!(
        text(&pool, "tank/clone/below", "encryptionroot").await,
        "tank/a"
    );

    let keys = dsl.keys();
    // One stays open meanwhile.
    let used = open(&world, &pool, "tank/a/b/c").await;
    keys.change("tank/a", new(2, None), &[("x:y".into(), "z".into())])
        .await
        .expect("changed");
    assert!(!opens(&pool, "tank/a", 1).await && opens(&pool, "tank/a", 2).await);
    assert_eq!(text(&pool, "tank/a", "keylocation").await, "file:///key");
    assert_eq!(text(&pool, "tank/a", "x:y").await, "z");
    write(&used, b"after", SECRET).await;
    assert_eq!(read(&used, b"after").await, SECRET);
    used.close().await.expect("close");

    // A child becomes a root, with what is below it and its clones.
    let refused = keys.change("tank/a/b", new(3, None), &[]).await;
    assert!(
        matches!(refused, Err(DatasetError::InvalidProperty { .. })),
        "{refused:?}"
    );
    keys.change("tank/a/b", new(3, Some("prompt")), &[])
        .await
        .expect("changed");
    for name in ["tank/a/b", "tank/a/b/c", "tank/clone", "tank/clone/below"] {
        assert_eq!(text(&pool, name, "encryptionroot").await, "tank/a/b");
    }
    assert_eq!(text(&pool, "tank/a/b", "keylocation").await, "prompt");
    assert!(opens(&pool, "tank/a", 2).await && opens(&pool, "tank/a/b", 3).await);
    // Each goes without the other.
    pool.sync().await.expect("sync");
    keys.unload("tank/a").await.expect("unload");
    assert_eq!(text(&pool, "tank/clone", "keystatus").await, "available");
    let locked = keys.change("tank/a", new(4, None), &[]).await;
    assert!(matches!(locked, Err(DatasetError::KeyNotLoaded { .. })));
    let locked = keys.change("tank/a/b", KeyChange::Inherit, &[]).await;
    assert!(
        matches!(locked, Err(DatasetError::KeyNotLoaded { .. })),
        "{locked:?}"
    );
    let locked = make(&pool, "tank/a/new", &[], None).await;
    assert!(matches!(locked, Err(DatasetError::KeyNotLoaded { .. })));
    keys.load("tank/a", wrapping(2), false).await.expect("load");

    for (name, change) in [
        ("tank", new(9, Some("prompt"))),
        ("tank/clone", new(9, Some("prompt"))),
        ("tank/a/b@s", new(9, Some("prompt"))),
        ("tank/a", KeyChange::Inherit),
        ("tank/a/b/c", KeyChange::Inherit),
    ] {
        let refused = keys.change(name, change, &[]).await;
        assert!(refused.is_err(), "{name}");
    }
    keys.change("tank/a/b", KeyChange::Inherit, &[])
        .await
        .expect("inherited");
    for name in ["tank/a/b", "tank/a/b/c", "tank/clone", "tank/clone/below"] {
        assert_eq!(text(&pool, name, "encryptionroot").await, "tank/a");
        assert_eq!(text(&pool, name, "keylocation").await, "none");
    }
    keys.unload("tank/a").await.expect("all of it");
    assert_eq!(text(&pool, "tank/clone", "keystatus").await, "unavailable");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
    assert!(!is_secret_on_disk(&image));

    let pool = import(&world, image.path(), false).await;
    let keys = pool.dsl().keys();
    keys.load("tank/a", wrapping(2), false).await.expect("load");
    for name in ["tank/a", "tank/a/b", "tank/a/b/c", "tank/clone/below"] {
        is_filled(&world, &pool, name, name).await;
    }
    is_filled(&world, &pool, "tank/clone", "tank/a/b").await;
    is_filled(&world, &pool, "tank/a/b@s", "tank/a/b").await;
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Goal: no dataset has a key by the number that an earlier one had. Method: snapshots of an
/// encrypted filesystem are read and destroyed, then the filesystem itself; none of their numbers
/// has a key any more. A number of a filesystem in the clear is given one, and its log is in the
/// clear all the same: what it has is replayed when no key is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_go_with_their_datasets_and_logs_go_by_the_dataset() {
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    make(&pool, "tank/a", &ROOT_OF_RAW, Some(raw(1)))
        .await
        .expect("made");
    make(&pool, "tank/clear", &[], None).await.expect("made");
    fill(&world, &pool, "tank/a").await;
    let dsl = pool.dsl().clone();
    let snapshot = "tank/a@s".to_owned();
    let names = std::slice::from_ref(&snapshot);
    dsl.snapshots().take(names, &[]).await.expect("taken");
    let number_of = async |name: &str| {
        let dataset = dsl.open_dataset(name).await.expect("open");
        format::ObjsetId::new(dataset.object().get())
    };
    let (head, of_snapshot) = (number_of("tank/a").await, number_of("tank/a@s").await);
    let keys = pool.pipeline().keys();
    let key = keys.get(head).expect("it is open");
    assert!(keys.get(of_snapshot).is_some());
    dsl.destroyer()
        .destroy_snapshots(names, false)
        .await
        .expect("destroyed");
    assert!(
        keys.get(of_snapshot).is_none(),
        "the number's next owner has its key"
    );
    dsl.destroyer().destroy("tank/a").await.expect("destroyed");
    assert!(keys.get(head).is_none());

    keys.map(number_of("tank/clear").await, key);
    let clear = open(&world, &pool, "tank/clear").await;
    write(&clear, b"file", b"content").await;
    clear.sync_all().await.expect("committed");
    let dataset = clear.dataset().expect("open");
    let log = dataset.objset().zil_header().log;
    assert!(!log.is_hole());
    assert!(!log.uses_crypt(), "the log is encrypted: {log}");
    drop(dataset);
    clear.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Goal: no record is longer than its dataset's cipher takes, which would stop the pool. Method: it
/// is refused to a dataset with a CCM suite, when it is made and later; one that inherits it writes
/// shorter records, and with GCM they are as long as was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_no_longer_than_the_cipher_takes() {
    let world = World::system(2);
    let image = Image::new(256);
    let long = ("recordsize", "16M");
    let pool = create(&world, &image, &[long, ("compression", "off")]).await;
    let refused = |result: Result<(), DatasetError>| match result {
        Err(DatasetError::InvalidProperty { property, .. }) => property == "recordsize",
        other => panic!("{other:?}"),
    };
    let rest = &ROOT_OF_RAW[1..];
    let ccm = [&[("encryption", "aes-256-ccm")], rest].concat();
    let with_long = [&ccm[..], &[long]].concat();
    let made = make(&pool, "tank/ccm", &with_long, Some(raw(1))).await;
    assert!(refused(made));
    make(&pool, "tank/ccm", &ccm, Some(raw(1)))
        .await
        .expect("made");
    make(&pool, "tank/gcm", &ROOT_OF_RAW, Some(raw(1)))
        .await
        .expect("made");
    let changes = [(long.0.to_owned(), PropertyChange::Set(long.1.to_owned()))];
    let properties = pool.dsl().properties();
    assert!(refused(properties.set("tank/ccm", &changes).await));
    properties.set("tank/gcm", &changes).await.expect("set");

    let content: Vec<u8> = (0..17_u32 << 18)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes())
        .collect();
    for (name, record_bytes) in [("tank/ccm", 8 << 20), ("tank/gcm", 16 << 20)] {
        let filesystem = open(&world, &pool, name).await;
        write(&filesystem, b"file", &content).await;
        pool.sync().await.expect("written");
        let file = filesystem
            .lookup(filesystem.root(), b"file")
            .await
            .expect("there");
        let dataset = filesystem.dataset().expect("open");
        let number = format::ObjectId::new(file.ino);
        let object = dataset.objset().hold(number).await.expect("there");
        assert_eq!(object.info().data_block_bytes, record_bytes, "{name}");
        drop((object, dataset));
        assert!(read(&filesystem, b"file").await == content);
        filesystem.close().await.expect("close");
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Goal: a clone of an encryption root that is promoted is the root from then on, for all
/// (`dsl_dataset_promote_crypt_sync`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_clone_of_a_root_is_the_root() {
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    make(&pool, "tank/a", &ROOT_OF_RAW, Some(raw(1)))
        .await
        .expect("made");
    make(&pool, "tank/a/child", &[], None).await.expect("made");
    fill(&world, &pool, "tank/a").await;
    fill(&world, &pool, "tank/a/child").await;
    let dsl = pool.dsl().clone();
    let snapshots = ["tank/a@s".to_owned(), "tank/a/child@s".to_owned()];
    dsl.snapshots().take(&snapshots, &[]).await.expect("taken");
    let datasets = dsl.datasets();
    datasets
        .clone_snapshot("tank/a@s", "tank/b", &[])
        .await
        .expect("clone");
    datasets
        .clone_snapshot("tank/a/child@s", "tank/c", &[])
        .await
        .expect("clone");
    // The parents of these two have different roots, or none.
    let refused = dsl.snapshots().promote("tank/c").await;
    assert!(
        matches!(refused, Err(DatasetError::WrongKind { .. })),
        "{refused:?}"
    );
    dsl.snapshots().promote("tank/b").await.expect("promoted");
    for name in ["tank/a", "tank/a/child", "tank/b", "tank/c"] {
        assert_eq!(text(&pool, name, "encryptionroot").await, "tank/b");
        assert_eq!(text(&pool, name, "keystatus").await, "available");
    }
    assert_eq!(text(&pool, "tank/b", "keylocation").await, "file:///key");
    assert_eq!(text(&pool, "tank/a", "keylocation").await, "none");
    dsl.keys().unload("tank/b").await.expect("unload");
    assert_eq!(text(&pool, "tank/a", "keystatus").await, "unavailable");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");

    let pool = import(&world, image.path(), false).await;
    let refused = pool.dsl().keys().load("tank/a", wrapping(1), false).await;
    assert!(matches!(refused, Err(DatasetError::WrongKind { .. })));
    let keys = pool.dsl().keys();
    keys.load("tank/b", wrapping(1), false).await.expect("load");
    for (name, as_of) in [
        ("tank/a", "tank/a"),
        ("tank/b", "tank/a"),
        ("tank/a/child", "tank/a/child"),
        ("tank/c", "tank/a/child"),
    ] {
        is_filled(&world, &pool, name, as_of).await;
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Goal: the root dataset of a pool is encrypted from its first byte, if asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_dataset_of_a_pool_is_encrypted() {
    let world = World::system(2);
    let image = Image::new(128);
    let spec = |features| {
        let mut properties = vec![("compression", "off")];
        properties.extend(ROOT_OF_RAW);
        spec_with(&image, features, &properties)
    };
    let without = pool::FeatureChoice::None;
    let refused = Pool::create_with_key(&world, spec(without), Some(raw(1))).await;
    assert!(refused.is_err(), "without the feature");
    let refused = Pool::create(&world, spec(pool::FeatureChoice::All)).await;
    assert!(refused.is_err(), "without a key");
    let pool = Pool::create_with_key(&world, spec(pool::FeatureChoice::All), Some(raw(1)))
        .await
        .expect("made");
    assert_eq!(text(&pool, "tank", "encryptionroot").await, "tank");
    assert_eq!(text(&pool, "tank", "keylocation").await, "file:///key");
    assert_eq!(count(&pool, FEATURE), Some(1));
    fill(&world, &pool, "tank").await;
    make(&pool, "tank/below", &[], None).await.expect("made");
    fill(&world, &pool, "tank/below").await;
    assert_eq!(text(&pool, "tank/below", "encryptionroot").await, "tank");
    let refused = pool
        .dsl()
        .keys()
        .change("tank", KeyChange::Inherit, &[])
        .await;
    assert!(refused.is_err());
    // Where keys are said to be can be changed, but not to nowhere.
    for (name, location, is_taken) in [
        ("tank", "prompt", true),
        ("tank", "none", false),
        ("tank/below", "prompt", false),
    ] {
        let change = PropertyChange::Set(location.into());
        let set = pool
            .dsl()
            .properties()
            .set(name, &[("keylocation".into(), change)])
            .await;
        assert_eq!(set.is_ok(), is_taken, "{name} {location}");
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
    assert!(!is_secret_on_disk(&image));
    let pool = import(&world, image.path(), false).await;
    let keys = pool.dsl().keys();
    keys.load("tank", wrapping(1), false).await.expect("load");
    is_filled(&world, &pool, "tank", "tank").await;
    is_filled(&world, &pool, "tank/below", "tank/below").await;
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_openzfs_refuses_is_refused() {
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    let all: Vec<(&str, &str)> = ROOT_OF_RAW.to_vec();
    for (properties, key, why) in [
        (&all[..1], None, "Keyformat required"),
        (&all[..], None, "key of the new encryption root is missing"),
        (&all[1..], Some(raw(1)), "Encryption must be turned on"),
        (&all[1..2], None, "Encryption must be turned on"),
        (&[("pbkdf2iters", "1000")][..], None, "minimum pbkdf2"),
        (&[("encryption", "rot13")][..], None, "encryption"),
        (
            &[("encryption", "on"), ("keylocation", "ftp://x/y")][..],
            Some(raw(1)),
            "keylocation",
        ),
    ] {
        let refused = make(&pool, "tank/x", properties, key).await;
        let refused = refused.expect_err(why).to_string();
        assert!(refused.contains(why), "{refused}");
    }
    // Nothing is left of them.
    assert_eq!(count(&pool, FEATURE), Some(0));
    make(&pool, "tank/a", &all, Some(raw(1)))
        .await
        .expect("made");
    make(&pool, "tank/b", &all, Some(raw(2)))
        .await
        .expect("made");
    make(&pool, "tank/a/child", &[], None).await.expect("made");
    let refused = make(&pool, "tank/a/x", &all[2..], None).await;
    assert!(refused.is_err());
    let directories = pool.dsl().directories();
    for to in ["tank/child", "tank/b/child"] {
        let refused = directories.rename("tank/a/child", to).await;
        assert!(refused.is_err(), "{to}");
    }
    // Roots may go anywhere.
    directories
        .rename("tank/b", "tank/a/b")
        .await
        .expect("moved");
    directories
        .rename("tank/a/child", "tank/a/other")
        .await
        .expect("renamed");
    assert_eq!(text(&pool, "tank/a/b", "encryptionroot").await, "tank/a/b");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Goal: the same for a dataset that inherits from another one that came raw, whether that goes
/// along with the sender or not. Method: the key is changed at the sender; at one of the targets
/// something was made below the root, which is wrapped with the key that was; at another the child
/// gets no difference any more, and is a root of its own with that key.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_difference_leaves_no_child_that_its_root_does_not_open() {
    let (world, images) = (World::system(2), [Image::new(128), Image::new(128)]);
    let pool = create(&world, &images[0], &[]).await;
    let other = create(&world, &images[1], &[]).await;
    let root = [("encryption", "on"), ("keyformat", "raw")];
    let made = make(&pool, "tank/r", &root, Some(raw(1))).await;
    made.expect("made");
    make(&pool, "tank/r/c", &[], None).await.expect("made");
    let sources = ["tank/r", "tank/r/c"];
    let snapshot = async |name: &str| {
        for source in sources {
            let filesystem = open(&world, &pool, source).await;
            write(&filesystem, name.as_bytes(), name.as_bytes()).await;
            filesystem.close().await.expect("close");
        }
        let all = sources.map(|source| format!("{source}@{name}"));
        let taken = pool.dsl().snapshots().take(&all, &[]).await;
        taken.expect("taken");
        all
    };
    let one = snapshot("one").await;
    let keys = other.dsl().keys();
    let targets = ["tank/alone", "tank/mixed", "tank/stale"];
    for target in targets {
        for (full, below) in one.iter().zip(["", "/c"]) {
            let full = send(&pool, full, None).await;
            let to = format!("{target}{below}");
            let received = receive(&other, &full, &to, &How::default()).await;
            received.expect("received");
        }
        let below = format!("{target}/c");
        let inherits = keys.set_root(&below, dataset::KeyRoot::Inherited).await;
        inherits.expect("it has the same key");
        let loaded = keys.load(target, wrapping(1), false).await;
        loaded.expect("the right key");
    }
    make(&other, "tank/mixed/own", &[], None)
        .await
        .expect("made");
    let change = KeyChange::New {
        key: raw(2),
        location: None,
    };
    let changed = pool.dsl().keys().change("tank/r", change, &[]).await;
    changed.expect("changed");
    let two = snapshot("two").await;
    for target in targets {
        for ((one, two), below) in one.iter().zip(&two).zip(["", "/c"]) {
            let difference = send(&pool, two, Some(one)).await;
            let to = format!("{target}{below}");
            if to == "tank/stale/c" {
                continue;
            }
            let received = receive(&other, &difference, &to, &How::default()).await;
            received.expect("received");
        }
    }
    // The key that was is not loaded for another one: nothing is wrapped with it.
    assert_eq!(text(&other, "tank/stale", "keystatus").await, "unavailable");
    let refused = make(&other, "tank/stale/new", &[], None).await;
    assert!(matches!(refused, Err(DatasetError::KeyNotLoaded { .. })));
    // But for those that it still opens.
    assert_eq!(text(&other, "tank/stale/c", "keystatus").await, "available");
    make(&other, "tank/stale/c/new", &[], None)
        .await
        .expect("made");
    keys.unload("tank/stale/c").await.expect("unloaded");
    assert_eq!(text(&other, "tank/stale/c", "keylocation").await, "prompt");
    for (below, inherits) in [("tank/alone/c", true), ("tank/stale/c", false)] {
        assert_eq!(text(&other, below, "encryptionroot").await, below);
        let set = keys.set_root(below, dataset::KeyRoot::Inherited).await;
        assert_eq!(set.is_ok(), inherits, "{below}: {set:?}");
    }
    pool.export(false).await.expect("export");
    other.export(false).await.expect("export");

    let other = import(&world, images[1].path(), false).await;
    let keys = other.dsl().keys();
    for (root, right, wrong) in [("tank/alone", 2, 1), ("tank/mixed", 1, 2)] {
        let refused = keys.load(root, wrapping(wrong), false).await;
        assert!(refused.is_err(), "{root}");
        let loaded = keys.load(root, wrapping(right), false).await;
        loaded.unwrap_or_else(|error| panic!("{root}: {error}"));
        for below in ["", "/c"] {
            let filesystem = open(&world, &other, &format!("{root}{below}")).await;
            assert_eq!(read(&filesystem, b"two").await, b"two", "{root}{below}");
            filesystem.close().await.expect("close");
        }
    }
    for (root, right, wrong) in [("tank/stale", 2, 1), ("tank/stale/c", 1, 2)] {
        assert!(!opens(&other, root, wrong).await && opens(&other, root, right).await);
        let loaded = keys.load(root, wrapping(right), false).await;
        loaded.unwrap_or_else(|error| panic!("{root}: {error}"));
    }
    for (name, file) in [("tank/stale", "two"), ("tank/stale/c", "one")] {
        let filesystem = open(&world, &other, name).await;
        assert_eq!(read(&filesystem, file.as_bytes()).await, file.as_bytes());
        filesystem.close().await.expect("close");
    }
    for name in ["tank/mixed/own", "tank/stale/c/new"] {
        let filesystem = open(&world, &other, name).await;
        filesystem.close().await.expect("close");
    }
    other.export(false).await.expect("export");
    zdb_is_clean(images[1].path(), "tank");
}

/// Goal: a raw difference brings a key that was changed where it is sent, and never leaves a
/// dataset that no key opens. Method: a filesystem goes raw to two targets, one of which inherits
/// another user's key since then; its key is changed, and a difference sent. OpenZFS wraps the key
/// of both as it is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_difference_leaves_no_dataset_that_no_key_opens() {
    let (world, images) = (World::system(2), [Image::new(128), Image::new(128)]);
    let pool = create(&world, &images[0], &[]).await;
    let other = create(&world, &images[1], &[]).await;
    let root = [("encryption", "on"), ("keyformat", "raw")];
    let made = make(&pool, "tank/source", &root, Some(raw(1))).await;
    made.expect("made");
    let made = make(&other, "tank/above", &root, Some(raw(3))).await;
    made.expect("made");
    let filesystem = open(&world, &pool, "tank/source").await;
    let snapshot = async |name: &str, content: &[u8]| {
        write(&filesystem, name.as_bytes(), content).await;
        let full = format!("tank/source@{name}");
        let taken = pool
            .dsl()
            .snapshots()
            .take(std::slice::from_ref(&full), &[])
            .await;
        taken.expect("taken");
        full
    };
    let one = snapshot("one", b"first").await;
    let full = send(&pool, &one, None).await;
    let targets = ["tank/above/inherits", "tank/follows"];
    for target in targets {
        let received = receive(&other, &full, target, &How::default()).await;
        received.expect("received");
    }
    let keys = other.dsl().keys();
    let loaded = keys.load(targets[0], wrapping(1), false).await;
    loaded.expect("the right key");
    let inherits = keys.change(targets[0], KeyChange::Inherit, &[]).await;
    inherits.expect("changed");
    let change = KeyChange::New {
        key: raw(2),
        location: None,
    };
    let changed = pool.dsl().keys().change("tank/source", change, &[]).await;
    changed.expect("changed");
    let two = snapshot("two", b"second").await;
    let difference = send(&pool, &two, Some(&one)).await;
    for target in targets {
        let received = receive(&other, &difference, target, &How::default()).await;
        received.expect("received");
    }
    filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
    other.export(false).await.expect("export");

    let other = import(&world, images[1].path(), false).await;
    let keys = other.dsl().keys();
    for (root, right, wrong) in [("tank/above", 3, 2), ("tank/follows", 2, 1)] {
        let refused = keys.load(root, wrapping(wrong), false).await;
        let is_refused = matches!(refused, Err(DatasetError::WrongKey { .. }));
        assert!(is_refused, "{root}: {refused:?}");
        let loaded = keys.load(root, wrapping(right), false).await;
        loaded.unwrap_or_else(|error| panic!("{root}: {error}"));
    }
    for target in targets {
        let filesystem = open(&world, &other, target).await;
        assert_eq!(read(&filesystem, b"one").await, b"first", "{target}");
        assert_eq!(read(&filesystem, b"two").await, b"second", "{target}");
        filesystem.close().await.expect("close");
    }
    // What came with another user's key does not become a dataset that inherits.
    let received = receive(&other, &full, "tank/above/new", &How::default()).await;
    received.expect("received");
    let refused = keys.set_root("tank/above/new", dataset::KeyRoot::Inherited);
    let refused = refused.await;
    let is_refused = matches!(refused, Err(DatasetError::WrongKind { .. }));
    assert!(is_refused, "{refused:?}");
    other.export(false).await.expect("export");
    zdb_is_clean(images[1].path(), "tank");
}

/// Goal: blocks that are written again have other MACs, so a raw difference brings them. Method:
/// one file's are moved as OpenZFS does it, another's are rewritten here, which is no move where a
/// filesystem is encrypted; what was received is opened and read.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_difference_brings_what_was_rewritten() {
    const BLOCKS: u64 = 8;
    let (world, images) = (World::system(2), [Image::new(128), Image::new(128)]);
    let pool = create(&world, &images[0], &[]).await;
    let other = create(&world, &images[1], &[]).await;
    let enabled = pool
        .properties()
        .set("feature@physical_rewrite", "enabled")
        .await;
    enabled.expect("enabled");
    make(&pool, "tank/e", &ROOT_OF_RAW, Some(raw(1)))
        .await
        .expect("made");
    let filesystem = open(&world, &pool, "tank/e").await;
    let content: Vec<u8> = (0..BLOCKS << 15)
        .flat_map(|word| (word as u32).wrapping_mul(0x9e37_79b9).to_le_bytes())
        .collect();
    for name in [&b"moved"[..], b"rewritten"] {
        write(&filesystem, name, &content).await;
    }
    let snapshots = pool.dsl().snapshots();
    let names = ["tank/e@a".to_owned(), "tank/e@b".to_owned()];
    snapshots.take(&names[..1], &[]).await.expect("taken");
    let full = send(&pool, &names[0], None).await;
    let received = receive(&other, &full, "tank/e", &How::default()).await;
    received.expect("received");

    let dataset = filesystem.dataset().expect("open");
    let root = filesystem.root();
    for (name, is_moved) in [(&b"moved"[..], true), (b"rewritten", false)] {
        let ino = filesystem.lookup(root, name).await.expect("there").ino;
        let object = dataset.objset().hold(ino.into()).await.expect("there");
        if is_moved {
            let estimate = dataset::DirtyEstimate::write(content.len() as u64);
            let tx = dataset.assign(estimate).await.expect("assigned");
            let moved = object.rewrite_blocks(&tx, 0, BLOCKS - 1, true).await;
            assert_eq!(moved.expect("moved"), content.len() as u64);
        } else {
            let mut at = Some(0);
            while let Some(from) = at {
                let part = filesystem.rewrite_part(ino, from, u64::MAX, true).await;
                at = part.expect("rewritten");
            }
        }
        pool.sync().await.expect("sync");
        let until = format::Txg::new(u64::MAX);
        let pointers = object.shareable_blocks(0, BLOCKS, until).await;
        let pointers = pointers.expect("read").expect("on disk");
        assert!(
            pointers
                .iter()
                .all(|pointer| pointer.is_rewritten() == is_moved)
        );
    }
    drop(dataset);
    filesystem.close().await.expect("close");
    snapshots.take(&names[1..], &[]).await.expect("taken");
    let difference = send(&pool, &names[1], Some(&names[0])).await;
    let received = receive(&other, &difference, "tank/e", &How::default()).await;
    received.expect("received");
    let keys = other.dsl().keys();
    keys.load("tank/e", wrapping(1), false).await.expect("load");
    let filesystem = open(&world, &other, "tank/e").await;
    for name in [&b"moved"[..], b"rewritten"] {
        assert!(read(&filesystem, name).await == content);
    }
    filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
    other.export(false).await.expect("export");
    zdb_is_clean(images[1].path(), "tank");
}
