//! Goal: snapshots, clones, rollbacks, promotions and destroys leave a pool that zdb finds sound
//! and that the real OpenZFS goes on with; and the numbers of all datasets are what OpenZFS says.
//! Method: a tree of datasets with files, changed here and there in turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::*;
use dataset::props::{find, show_value};
use dataset::{ListOptions, PropertyChange};
use device::World;
use filesystem::{Filesystem, XattrMode, ZplInit};
use pool::{CreateSpec, FeatureChoice, LeafSpec, Pool, VdevClass, VdevLayout, VdevSpec};

/// What both sides are asked about each dataset.
const HEAD_NUMBERS: &[&str] = &[
    "used",
    "available",
    "referenced",
    "usedbydataset",
    "usedbysnapshots",
    "usedbychildren",
    "usedbyrefreservation",
    "written",
    "logicalused",
    "logicalreferenced",
    "compressratio",
    "refcompressratio",
    "guid",
    "createtxg",
    "objsetid",
    "origin",
    "compression",
    "recordsize",
];
const SNAPSHOT_NUMBERS: &[&str] = &[
    "used",
    "referenced",
    "written",
    "logicalreferenced",
    "refcompressratio",
    "guid",
    "createtxg",
    "objsetid",
    "clones",
    "defer_destroy",
];

async fn write(filesystem: &Arc<Filesystem>, name: &str, offset: u64, data: Vec<u8>) {
    let root = filesystem.root();
    let file = match filesystem.lookup(root, name.as_bytes()).await {
        Ok(found) => found,
        Err(_) => filesystem
            .create(root, name.as_bytes(), 0o644, ROOT)
            .await
            .expect("create"),
    };
    filesystem
        .write(file.ino, offset, data.into(), false, ROOT)
        .await
        .expect("write");
}

async fn set(pool: &Pool, name: &str, property: &str, value: &str) {
    let change = PropertyChange::Set(value.to_owned());
    pool.dsl()
        .properties()
        .set(name, &[(property.to_owned(), change)])
        .await
        .unwrap_or_else(|error| panic!("{name} {property}={value}: {error}"));
}

async fn snapshot(pool: &Pool, name: &str) {
    pool.dsl()
        .snapshots()
        .take(&[name.to_owned()], &[])
        .await
        .unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// All that is asked, of all datasets: as `zfs get -Hp -o name,property,value` prints it.
async fn numbers(pool: &Pool) -> BTreeMap<(String, String), String> {
    let options = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let mut out = BTreeMap::new();
    for info in pool
        .dsl()
        .directories()
        .list("tank", &options)
        .await
        .expect("list")
    {
        let asked = if info.name.contains('@') {
            SNAPSHOT_NUMBERS
        } else {
            HEAD_NUMBERS
        };
        for property in asked {
            let value = match pool.dsl().properties().get(&info.name, property).await {
                Ok(setting) => show_value(find(property), &setting.value, true),
                Err(_) => "-".to_owned(),
            };
            let value = if value.is_empty() {
                "-".to_owned()
            } else {
                value
            };
            out.insert((info.name.clone(), (*property).to_owned()), value);
        }
    }
    out
}

/// The same as OpenZFS printed it between the marks.
fn numbers_of_peer(text: &str, mark: &str) -> BTreeMap<(String, String), String> {
    let start = text
        .find(&format!("BEGIN-{mark}"))
        .expect("the list's start");
    let end = text.find(&format!("END-{mark}")).expect("the list's end");
    text[start..end]
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.trim_end().split('\t');
            let key = (fields.next()?.to_owned(), fields.next()?.to_owned());
            Some((key, fields.next()?.to_owned()))
        })
        .collect()
}

fn compare(ours: &BTreeMap<(String, String), String>, theirs: &BTreeMap<(String, String), String>) {
    assert!(theirs.len() > 50, "OpenZFS printed {} values", theirs.len());
    let mut wrong = Vec::new();
    for (key, value) in theirs {
        let found = ours.get(key);
        // Writing the uberblock of the export changes what the pool itself uses.
        let is_root_total = key.0 == "tank"
            && matches!(
                key.1.as_str(),
                "used" | "usedbychildren" | "logicalused" | "compressratio"
            );
        if is_root_total || key.1 == "available" {
            let close = found
                .and_then(|found| found.parse::<f64>().ok())
                .zip(value.parse::<f64>().ok())
                .is_some_and(|(ours, theirs)| (ours - theirs).abs() <= 0.05 * theirs.max(1e6));
            if close {
                continue;
            }
        }
        if found != Some(value) {
            wrong.push(format!(
                "{} {}: {found:?}, OpenZFS says {value}",
                key.0, key.1
            ));
        }
    }
    for key in ours.keys() {
        if !theirs.contains_key(key) {
            wrong.push(format!("{} {}: OpenZFS does not have it", key.0, key.1));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Filesystems, snapshots, clones of clones; what was changed since; and a big one half destroyed.
async fn build(world: &World, pool: &Pool, random: &mut Random) {
    for name in ["tank/a", "tank/a/deep", "tank/z", "tank/gone"] {
        pool.dsl()
            .datasets()
            .create(name, &[], Arc::new(ZplInit::new()))
            .await
            .expect("create");
    }
    set(pool, "tank/a", "compression", "zstd").await;
    set(pool, "tank/z", "recordsize", "1M").await;
    set(pool, "tank/z", "refreservation", "8M").await;
    set(pool, "tank/a/deep", "quota", "50M").await;
    let a = open(world, pool, "tank/a").await;
    for round in 0..6 {
        for file in 0..4 {
            let length = 40_000 + random.below(100_000) as usize;
            let offset = random.below(200_000);
            write(&a, &format!("file{file}"), offset, random.bytes(length)).await;
            write(&a, &format!("text{file}"), offset, vec![b'x'; length]).await;
        }
        if round == 3 {
            a.unlink(a.root(), b"file1").await.expect("unlink");
        }
        snapshot(pool, &format!("tank/a@{round}")).await;
    }
    let z = open(world, pool, "tank/z").await;
    write(&z, "big", 0, random.bytes(5 << 20)).await;
    snapshot(pool, "tank/z@1").await;
    write(&z, "big", 1 << 20, random.bytes(1 << 20)).await;
    for (origin, name) in [("tank/a@2", "tank/c1"), ("tank/a@4", "tank/c2")] {
        pool.dsl()
            .datasets()
            .clone_snapshot(origin, name, &[])
            .await
            .expect("clone");
        let clone = open(world, pool, name).await;
        write(&clone, "file0", 10_000, random.bytes(80_000)).await;
        snapshot(pool, &format!("{name}@s")).await;
        write(&clone, "new", 0, random.bytes(80_000)).await;
        clone.close().await.expect("close");
    }
    pool.dsl()
        .datasets()
        .clone_snapshot("tank/c1@s", "tank/c3", &[])
        .await
        .expect("clone");
    let c3 = open(world, pool, "tank/c3").await;
    write(&c3, "file0", 0, random.bytes(30_000)).await;
    c3.close().await.expect("close");
    pool.dsl()
        .destroyer()
        .destroy("tank/a@1")
        .await
        .expect("destroy");
    pool.dsl()
        .destroyer()
        .destroy("tank/a@3")
        .await
        .expect("destroy");
    write(&a, "file2", 0, random.bytes(60_000)).await;
    a.close().await.expect("close");
    z.close().await.expect("close");
    pool.dsl()
        .snapshots()
        .rollback("tank/a", None)
        .await
        .expect("rollback");
    pool.dsl()
        .snapshots()
        .promote("tank/c2")
        .await
        .expect("promote");
    let gone = open(world, pool, "tank/gone").await;
    write(&gone, "f", 0, random.bytes(3 << 20)).await;
    gone.close().await.expect("close");
    pool.dsl()
        .destroyer()
        .destroy("tank/gone")
        .await
        .expect("destroy");
    pool.dsl()
        .directories()
        .rename("tank/a/deep", "tank/z/moved")
        .await
        .expect("rename");
}

const PRINT: &str = r#"
show() {
  echo "BEGIN-$1"
  zfs get -Hp -t filesystem,volume -r -o name,property,value HEAD tank
  zfs get -Hp -t snapshot -r -o name,property,value SNAP tank
  echo "END-$1"
}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zdb_finds_every_block_of_snapshots_and_clones() {
    let world = World::system(2);
    let image = Image::new(256);
    let mut random = Random(11);
    let pool = create(&world, &image, &[]).await;
    build(&world, &pool, &mut random).await;
    let before = numbers(&pool).await;
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
    let pool = import(&world, image.path(), false).await;
    let after = numbers(&pool).await;
    let names = |numbers: &BTreeMap<(String, String), String>| {
        numbers
            .keys()
            .map(|key| key.0.clone())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&before), names(&after));
    for name in ["tank/a@0", "tank/c2@2", "tank/c2@4", "tank/a@5"] {
        let _ = pool.dsl().destroyer().destroy(name).await;
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Once the new time of change found no room, and the caller was told that what had been done was
/// not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attribute_is_removed_or_said_to_stay_where_there_is_no_room() {
    let world = World::system(2);
    let image = Image::new(256);
    let mut random = Random(13);
    let pool = create(&world, &image, &[]).await;
    pool.dsl()
        .datasets()
        .create("tank/x", &[], Arc::new(ZplInit::new()))
        .await
        .expect("create");
    set(&pool, "tank/x", "xattr", "dir").await;
    let x = open(&world, &pool, "tank/x").await;
    write(&x, "f", 0, random.bytes(300_000)).await;
    let ino = x.lookup(x.root(), b"f").await.expect("f").ino;
    let names: Vec<String> = (0..8).map(|number| format!("user.a{number}")).collect();
    for name in &names {
        x.xattrs()
            .set(ino, name.as_bytes(), b"value", XattrMode::Any, ROOT)
            .await
            .expect("set");
    }
    pool.sync().await.expect("sync");
    set(&pool, "tank/x", "refquota", "2M").await;
    // Fills the quota with ever smaller writes, until the last are refused.
    let mut refused = Ok(0);
    for (number, length) in [(0, 65536), (1, 4096), (2, 512)] {
        let base = 1 << 20 << number;
        for piece in 0..64 {
            let data = random.bytes(length).into();
            let offset = base + piece * length as u64;
            refused = x.write(ino, offset, data, false, ROOT).await.map(|_| 0);
            if refused.is_err() {
                break;
            }
        }
    }
    assert!(refused.is_err(), "there is room");
    for name in &names {
        let outcome = x.xattrs().remove(ino, name.as_bytes()).await;
        let is_there = x.xattrs().get(ino, name.as_bytes()).await.is_ok();
        assert_eq!(outcome.is_err(), is_there, "{name}: {outcome:?}");
    }
    x.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Goal: a filesystem that is made for a user is that user's, also by what is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_filesystem_belongs_to_whom_it_is_made_for() {
    let world = World::system(2);
    let image = Image::new(256);
    let pool = create(&world, &image, &[]).await;
    let fill = Arc::new(ZplInit::owned_by(1000, 100));
    let created = pool.dsl().datasets().create("tank/x", &[], fill).await;
    created.expect("create");
    let x = open(&world, &pool, "tank/x").await;
    let root = x.attributes(x.root()).await.expect("the root");
    assert_eq!((root.uid, root.gid), (1000, 100));
    pool.sync().await.expect("sync");
    x.close().await.expect("close");
    drop(x);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// A pool whose image is a disk on the other machine.
async fn create_on_disk(world: &World, image: &Image) -> Arc<Pool> {
    let path = image.path().join("d0.img");
    let leaf = LeafSpec {
        path: path.to_str().expect("UTF-8").to_owned(),
        is_file: false,
    };
    let spec = CreateSpec {
        name: "tank".into(),
        vdevs: vec![VdevSpec {
            layout: VdevLayout::Leaf(leaf),
            class: VdevClass::Normal,
        }],
        properties: Vec::new(),
        features: FeatureChoice::All,
        root_properties: Vec::new(),
        root_init: Arc::new(ZplInit::new()),
        altroot: None,
        force: false,
        host: host(),
        events: None,
        cache: None,
    };
    Pool::create(world, spec).await.expect("create")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_agrees_on_every_number_and_goes_on() {
    let Some(peer) = Peer::find() else { return };
    let world = World::system(2);
    let image = Image::new(256);
    let mut random = Random(12);
    let pool = create_on_disk(&world, &image).await;
    build(&world, &pool, &mut random).await;
    pool.sync().await.expect("sync");
    pool.sync().await.expect("sync");
    let ours = numbers(&pool).await;
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");

    let script = PRINT
        .replace("HEAD", &HEAD_NUMBERS.join(","))
        .replace("SNAP", &SNAPSHOT_NUMBERS.join(","))
        + r"
set -e
zpool import -N -d /dev/disk/peer -R /mnt tank
# Before anything is mounted: the directories made for that are in the pool's own filesystem.
show first
zfs mount -a
zfs snapshot tank/c1@theirs
zfs destroy tank/c2@0
zfs destroy -r tank/c3
zfs rollback -r tank/c1@s
zfs clone tank/z@1 tank/theirs
dd if=/dev/urandom of=/mnt/tank/theirs/more bs=64k count=20 2>/dev/null
zfs snapshot tank/theirs@t
dd if=/dev/urandom of=/mnt/tank/theirs/big bs=64k count=8 conv=notrunc 2>/dev/null
zfs bookmark tank/z@1 tank/z#b
zfs promote tank/a
zfs destroy tank/a@4 2>/dev/null || true
zpool sync tank
zpool scrub -w tank
zpool status -v tank
zpool wait -t free tank
show second
zfs clone tank/z@1 tank/quick
dd if=/dev/urandom of=/mnt/tank/quick/more bs=64k count=20 2>/dev/null
zpool sync tank
zfs destroy tank/quick
zpool export tank
echo PEER-DONE
";
    let text = run_in_peer(&peer, &image.path().join("d0.img"), &script);
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(text.contains("No known data errors"), "{text}");
    compare(&ours, &numbers_of_peer(&text, "first"));

    let pool = import(&world, image.path(), false).await;
    compare(&numbers(&pool).await, &numbers_of_peer(&text, "second"));
    // Their clone has a list of what it allocated, which ours goes on with.
    let theirs = open(&world, &pool, "tank/theirs").await;
    write(&theirs, "more", 0, random.bytes(500_000)).await;
    theirs.close().await.expect("close");
    pool.sync().await.expect("sync");
    // A bookmark holds on to its deadlist key.
    let z = open(&world, &pool, "tank/z").await;
    write(&z, "big", 0, random.bytes(200_000)).await;
    z.close().await.expect("close");
    snapshot(&pool, "tank/z@2").await;
    // It goes along, and comes back when OpenZFS promotes.
    let promoted = pool.dsl().snapshots().promote("tank/theirs").await;
    promoted.expect("promote");
    for name in ["tank/theirs@t", "tank/c1@s", "tank/a@5", "tank/a@0"] {
        let outcome = pool.dsl().destroyer().destroy(name).await;
        eprintln!("{name}: {outcome:?}");
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
    let text = run_in_peer(
        &peer,
        &image.path().join("d0.img"),
        r"
set -e
zpool import -d /dev/disk/peer -N tank
zfs list -Ht bookmark -o name tank/theirs#b
zfs promote tank/z
zfs destroy tank/theirs
zfs destroy tank/z@1
zfs destroy tank/z#b
zfs list -t all -r tank
zpool scrub -w tank
zpool wait -t free tank
zpool status -v tank
zfs destroy -R tank/z
zfs destroy -R tank/a
zpool wait -t free tank
zfs list -t all -r tank
zpool export tank
echo PEER-DONE
",
    );
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(text.contains("No known data errors"), "{text}");
    zdb_is_clean(image.path(), "tank");
}
