//! Goal: pools with dedup tables are written to, blocks are shared and freed when nothing refers to
//! them, and zdb agrees with every step: no leaks, counts of references as they are. Method: golden
//! pools of both kinds of tables are thinned out, overwritten and emptied; own pools with each kind
//! of table get random work; zdb after every import, which walks all pointers and compares them
//! with the tables.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::*;
use bytes::Bytes;
use dataset::{Dataset, DatasetError, DirtyEstimate, ListOptions, PropertyChange};
use device::World;
use format::{LABEL_START_BYTES, ObjectId, ObjectType};
use object::{NewObject, Object, Zap};
use pool::{
    FeatureChoice, FeatureState, ImportSpec, LeafSpec, LogLimits, Pool, PruneBy, VdevLayout,
};
use zio::SharedCache;

const KIB: usize = 1 << 10;

fn refcount(pool: &Pool) -> (FeatureState, u64) {
    let features = pool.properties().features();
    let feature = features
        .into_iter()
        .find(|feature| feature.name == "fast_dedup")
        .expect("a known feature");
    (feature.state, feature.refcount)
}

/// Brings what is in logs into the tables.
pub async fn flush(pool: &Pool) {
    for _ in 0..100 {
        if pool.status().dedup.logged == 0 {
            return;
        }
        pool.sync().await.expect("sync");
    }
    panic!("logs are never flushed");
}

/// Imports, does something, exports, and asks zdb.
async fn session<T>(
    world: &World,
    dir: &Path,
    name: &str,
    work: impl AsyncFnOnce(&Arc<Pool>) -> T,
) -> T {
    session_with(world, dir, name, None, work).await
}

/// The same with a cache of its own.
async fn session_with<T>(
    world: &World,
    dir: &Path,
    name: &str,
    cache: Option<Arc<SharedCache>>,
    work: impl AsyncFnOnce(&Arc<Pool>) -> T,
) -> T {
    let found = find(world, dir).await;
    let mut spec = ImportSpec::new(found, host());
    spec.force = true;
    spec.cache = cache;
    let pool = Pool::import(world, spec).await.expect("import");
    let out = work(&pool).await;
    pool.sync().await.expect("sync");
    flush(&pool).await;
    let status = pool.status().dedup;
    let shown = (status.entries, nice(status.total().referenced_blocks));
    pool.export(false).await.expect("export");
    let text = zdb(dir, name, &["-bcc"]);
    assert!(
        text.contains("No leaks (block sum matches space maps exactly)"),
        "{text}"
    );
    assert_eq!(shown, entries_by_zdb(dir, name), "what zdb counts");
    out
}

/// Entries of all tables, and references, as zdb tells them.
fn entries_by_zdb(dir: &Path, name: &str) -> (u64, String) {
    let text = zdb(dir, name, &["-DD"]);
    let mut entries = 0;
    for line in text.lines() {
        // DDT-sha256-zap-unique: dspace=23040; mspace=65536; entries=9
        if let Some((_, count)) = line.split_once("; entries=") {
            entries += count.trim().parse::<u64>().expect("a number");
        }
    }
    // The walk of all pointers, which zdb makes for -bcc, has compared references already.
    let statistics = text.split("aggregated over all DDTs").nth(1);
    let total = statistics.and_then(|text| {
        text.lines()
            .find(|line| line.trim_start().starts_with("Total"))
    });
    let referenced = total.map_or("0".to_owned(), |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[5].to_owned()
    });
    (entries, referenced)
}

/// As zdb writes a number below ten thousand.
fn nice(number: u64) -> String {
    match number {
        0..1024 => number.to_string(),
        _ => format!("{:.2}K", number as f64 / 1024.0),
    }
}

async fn heads(pool: &Pool) -> Vec<String> {
    let listed = pool
        .dsl()
        .directories()
        .list(
            &pool.name(),
            &ListOptions {
                snapshots: true,
                ..ListOptions::default()
            },
        )
        .await
        .expect("list");
    listed.into_iter().map(|info| info.name).collect()
}

/// The objects that hold users' data.
async fn data_objects(dataset: &Dataset) -> Vec<Object> {
    let mut out = Vec::new();
    let mut last = None;
    while let Some(id) = dataset.objset().next_object(last).await.expect("next") {
        last = Some(id);
        let object = dataset.objset().hold(id).await.expect("hold");
        let kind = object.info().object_type;
        if kind == ObjectType::PLAIN_FILE_CONTENTS || kind == ObjectType::ZVOL {
            out.push(object);
        }
    }
    out
}

/// Frees every third block of every file, overwrites another third with the blocks before them, and
/// removes some files.
async fn thin_out(dataset: &Dataset) {
    for (number, object) in data_objects(dataset).await.into_iter().enumerate() {
        let info = object.info();
        let block_bytes = u64::from(info.data_block_bytes);
        if number % 7 == 3 && info.object_type == ObjectType::PLAIN_FILE_CONTENTS {
            let tx = dataset.assign(DirtyEstimate::free()).await.expect("assign");
            object.free_range(&tx, 0, u64::MAX).await.expect("free");
            continue;
        }
        for block in 0..=info.max_block_id.min(400) {
            let at = block * block_bytes;
            match (block + number as u64) % 3 {
                0 => {
                    let tx = dataset.assign(DirtyEstimate::free()).await.expect("assign");
                    object.free_range(&tx, at, block_bytes).await.expect("free");
                }
                1 if block > 0 => {
                    let before = object
                        .read_bytes(at - block_bytes, block_bytes as usize)
                        .await
                        .expect("read");
                    let tx = dataset
                        .assign(DirtyEstimate::write(block_bytes))
                        .await
                        .expect("assign");
                    object.write(&tx, at, before).await.expect("write");
                }
                _ => {}
            }
        }
    }
}

async fn golden_is_used_up(name: &str) {
    let Some(golden) = golden() else { return };
    let images = Images::new();
    let dir = unpack(&golden, name, images.path());
    let world = World::system(2);
    let pool_name = name.to_owned();
    // With an import and no change, logs are flushed soon.
    let (entries, snapshots) = session(&world, &dir, name, async |pool| {
        let names = heads(pool).await;
        (pool.status().dedup.entries, names)
    })
    .await;
    assert!(entries > 0, "there are tables");
    session(&world, &dir, name, async |pool| {
        for head in heads(pool).await {
            if head.contains('@') {
                continue;
            }
            match pool.dsl().open_dataset(&head).await {
                Ok(dataset) => thin_out(&dataset).await,
                Err(DatasetError::KeyNotLoaded { .. }) => {}
                Err(error) => panic!("{head}: {error}"),
            }
        }
        pool.sync().await.expect("sync");
    })
    .await;
    // Snapshots go, then datasets, then what the root has.
    session(&world, &dir, name, async |pool| {
        let mut kept = 0;
        for snapshot in snapshots.iter().filter(|name| name.contains('@')) {
            let gone = pool
                .dsl()
                .destroyer()
                .destroy_snapshots(std::slice::from_ref(snapshot), false)
                .await;
            kept += u32::from(gone.is_err());
        }
        kept
    })
    .await;
    let left = session(&world, &dir, name, async |pool| {
        // Children before parents, clones before what they come from.
        for _ in 0..4 {
            for head in heads(pool).await.into_iter().rev() {
                if head == pool_name {
                    continue;
                }
                let _ = if head.contains('@') {
                    pool.dsl()
                        .destroyer()
                        .destroy_snapshots(&[head], false)
                        .await
                } else {
                    pool.dsl().destroyer().destroy(&head).await
                };
            }
        }
        let root = pool.dsl().open_dataset(&pool_name).await.expect("open");
        for object in data_objects(&root).await {
            let tx = root.assign(DirtyEstimate::free()).await.expect("assign");
            object.free_range(&tx, 0, u64::MAX).await.expect("free");
        }
        drop(root);
        while pool.dsl().destroyer().freeing_bytes() > 0 {
            pool.sync().await.expect("sync");
        }
        pool.sync().await.expect("sync");
        flush(pool).await;
        (
            heads(pool).await,
            pool.status().dedup.entries,
            refcount(pool),
        )
    })
    .await;
    let (names, entries, feature) = left;
    if names.len() == 1 {
        assert_eq!(entries, 0, "{name}: {names:?}");
        assert_eq!(feature.1, 0, "{name}: the feature is in use without tables");
    }
    eprintln!("{name}: left {names:?}, {entries} entries");
}

macro_rules! golden_pools {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            golden_is_used_up(stringify!($name)).await;
        }
    )*};
}

golden_pools!(dedup_legacy dedup_fast encrypted);

/// Makes a pool of which both logs hold changes, deletions among them, and of one a part is
/// flushed.
const WITH_LOGS: &str = r"set -euo pipefail
cd /sys/module/zfs/parameters
echo 5 >zfs_dedup_log_flush_entries_min; echo 1 >zfs_dedup_log_flush_min_time_ms
echo 3 >zfs_dedup_log_txg_max; echo 100000 >zfs_dedup_log_flush_passes_max
zpool create -o ashift=12 -O dedup=on -O recordsize=4K -O compression=off -O atime=off logs \
  /dev/disk/peer/d0
cd /logs
head -c 3000000 /dev/urandom >base; sync -f .; zpool sync logs
cp --reflink=never base copy; zpool sync logs
for i in 1 2 3 4; do
  head -c 400000 /dev/urandom >r$i; dd if=base of=s$i bs=4k count=200 skip=$((i*100)) status=none
  zpool sync logs
done
rm copy r2 s3; truncate -s 2000000 base; zpool sync logs
rm r4; cp --reflink=never s1 t1; zpool sync logs
dd if=/dev/urandom of=s2 bs=4k count=50 conv=notrunc status=none; rm s1; zpool sync logs
cd /; zpool export logs
";

/// Logs that OpenZFS left are flushed soon by who imports the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_openzfs_are_flushed() {
    let Some(peer) = Peer::find() else { return };
    let images = Images::new();
    images.make(1, 256);
    run_in_peer(&peer, images.path(), WITH_LOGS);
    let before = zdb(images.path(), "logs", &["-DD"]);
    assert!(before.contains("[FLUSHING CHECKPOINT]"), "{before}");
    let logged = before
        .lines()
        .filter(|line| line.starts_with("DDT-log-") && !line.ends_with("entries=0"));
    assert_eq!(logged.count(), 2, "{before}");
    let (_, references) = entries_by_zdb(images.path(), "logs");
    let world = World::system(2);
    // Memory has no room for what is in them: they are flushed whole by the import.
    let little = Some(SharedCache::new(64 << 10));
    let entries = session_with(&world, images.path(), "logs", little, async |pool| {
        assert_eq!(pool.status().dedup.logged, 0);
        let status = pool.status().dedup;
        assert_eq!(nice(status.total().referenced_blocks), references);
        assert_eq!(status.entries, status.total().blocks);
        status.entries
    })
    .await;
    assert!(entries > 500);
    let after = zdb(images.path(), "logs", &["-DD"]);
    assert!(!after.contains("CHECKPOINT"), "{after}");
    session(&world, images.path(), "logs", async |pool| {
        let dataset = pool.dsl().open_dataset("logs").await.expect("open");
        thin_out(&dataset).await;
    })
    .await;
    if std::env::var_os("MILLPOND_LONG").is_none() {
        return;
    }
    // OpenZFS goes on with the empty logs.
    run_in_peer(
        &peer,
        images.path(),
        r"set -euo pipefail
zpool import -d /dev/disk/peer logs; cd /logs
for i in 1 2 3; do cp --reflink=never base more$i; zpool sync logs; done
rm more1 r1; zpool sync logs; zpool scrub -w logs; zpool status logs | grep 'with 0 errors'
cd /; zpool export logs
",
    );
    session(&world, images.path(), "logs", async |pool| {
        let dataset = pool.dsl().open_dataset("logs").await.expect("open");
        for object in data_objects(&dataset).await {
            let tx = dataset.assign(DirtyEstimate::free()).await.expect("assign");
            object.free_range(&tx, 0, u64::MAX).await.expect("free");
        }
        pool.sync().await.expect("sync");
        flush(pool).await;
        assert_eq!(pool.status().dedup.entries, 0);
        assert_eq!(refcount(pool).1, 0);
    })
    .await;
    zdb_is_clean(images.path(), "logs");
}

/// A pool of its own for random work.
struct Ground {
    world: World,
    images: Images,
}

impl Ground {
    async fn new(fast: bool, dedup: &str, more: &[(&str, &str)]) -> (Self, Arc<Pool>) {
        let world = World::system(2);
        let images = Images::new();
        let leaves = images.make(2, 512).into_iter();
        // Disks, as which the real OpenZFS has them.
        let leaves = leaves.map(|leaf| LeafSpec {
            is_file: false,
            ..leaf
        });
        let leaves = leaves.collect();
        let mut spec = spec("tank", vec![normal(VdevLayout::Mirror(leaves))]);
        if !fast {
            spec.properties = vec![("feature@fast_dedup".into(), "disabled".into())];
        }
        spec.features = FeatureChoice::All;
        spec.root_properties = vec![("dedup".into(), dedup.into())];
        for (name, value) in more {
            spec.root_properties.push(((*name).into(), (*value).into()));
        }
        let pool = Pool::create(&world, spec).await.expect("create");
        (Ground { world, images }, pool)
    }
}

pub async fn new_object(dataset: &Dataset, block_bytes: usize) -> Object {
    let tx = dataset
        .assign(DirtyEstimate::write(KIB as u64))
        .await
        .expect("assign");
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(block_bytes as u32);
    dataset.objset().allocate(&tx, new).await.expect("allocate")
}

pub async fn put(dataset: &Dataset, object: &Object, block: u64, data: Bytes) {
    let tx = dataset
        .assign(DirtyEstimate::write(data.len() as u64))
        .await
        .expect("assign");
    let at = block * data.len() as u64;
    object.write(&tx, at, data).await.expect("write");
}

/// One of a few contents.
fn pattern(number: u64) -> Bytes {
    content(1000 + number, number, 16 * KIB)
}

/// The same data many times, in one txg and in several, is stored once.
async fn stored_once(fast: bool, dedup: &str, more: &[(&str, &str)]) {
    let (ground, pool) = Ground::new(fast, dedup, more).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let one = new_object(&dataset, 16 * KIB).await;
    for block in 0..100 {
        put(&dataset, &one, block, pattern(block % 5)).await;
    }
    pool.sync().await.expect("sync");
    let two = new_object(&dataset, 16 * KIB).await;
    for block in 0..50 {
        put(&dataset, &two, block, pattern(block % 10)).await;
    }
    pool.sync().await.expect("sync");
    let status = pool.status().dedup;
    assert_eq!(
        (status.entries, status.total().referenced_blocks),
        (10, 150)
    );
    assert_eq!(status.ratio_percent(), 1500);
    assert_eq!(
        pool.properties()
            .get("dedupratio")
            .expect("a property")
            .value,
        "15.00"
    );
    assert_eq!(refcount(&pool).1, u64::from(fast));
    for (object, count, kinds) in [(&one, 100, 5), (&two, 50, 10)] {
        for block in 0..count {
            let data = object.read_bytes(block * 16 * KIB as u64, 16 * KIB).await;
            assert!(
                data.expect("read") == pattern(block % kinds),
                "block {block}"
            );
        }
    }
    let ids = (one.id(), two.id());
    drop((one, two, dataset));
    pool.export(false).await.expect("export");
    zdb_is_clean(ground.images.path(), "tank");
    assert_eq!(
        entries_by_zdb(ground.images.path(), "tank"),
        (10, nice(150))
    );
    // Overwritten with the same, with others, and freed; with a snapshot that keeps some.
    let (world, dir) = (&ground.world, ground.images.path());
    session(world, dir, "tank", async |pool| {
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let one = dataset.objset().hold(ids.0).await.expect("hold");
        for block in 0..40 {
            put(&dataset, &one, block, pattern(block % 5)).await;
        }
        pool.sync().await.expect("sync");
        pool.dsl()
            .snapshots()
            .take(&["tank@s".into()], &[])
            .await
            .expect("snapshot");
        for block in 0..20 {
            put(&dataset, &one, block, pattern(50 + block)).await;
        }
        pool.sync().await.expect("sync");
        let status = pool.status().dedup;
        assert_eq!(
            (status.entries, status.total().referenced_blocks),
            (30, 170)
        );
    })
    .await;
    session(world, dir, "tank", async |pool| {
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        free_objects(&dataset, &[ids.0, ids.1]).await;
        pool.sync().await.expect("sync");
        let status = pool.status().dedup;
        assert_eq!(
            (status.entries, status.total().referenced_blocks),
            (10, 150)
        );
    })
    .await;
    session(world, dir, "tank", async |pool| {
        pool.dsl()
            .destroyer()
            .destroy_snapshots(&["tank@s".into()], false)
            .await
            .expect("destroy");
        pool.sync().await.expect("sync");
        flush(pool).await;
        assert_eq!(pool.status().dedup.entries, 0);
        assert_eq!(refcount(pool).1, 0);
    })
    .await;
    zdb_is_clean(dir, "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flat_entries_are_stored_once() {
    stored_once(true, "on", &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_entries_are_stored_once() {
    stored_once(false, "on", &[]).await;
}

/// Goal: a table has the form of its first entries, and no reference gets lost by another one.
/// Method: the feature is enabled in the txg that writes the first blocks of a table; then their
/// references are dropped, some at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_has_the_form_of_its_first_entries() {
    let (ground, pool) = Ground::new(false, "on", &[]).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let one = new_object(&dataset, 16 * KIB).await;
    let two = new_object(&dataset, 16 * KIB).await;
    for block in 0..10 {
        put(&dataset, &one, block, pattern(block)).await;
        put(&dataset, &two, block, pattern(block)).await;
    }
    let enabled = pool.properties().set("feature@fast_dedup", "enabled");
    enabled.await.expect("enable");
    assert_eq!(refcount(&pool), (FeatureState::Enabled, 0));
    let ids = (one.id(), two.id());
    drop((one, two, dataset));
    pool.export(false).await.expect("export");
    let (world, dir) = (&ground.world, ground.images.path());
    zdb_is_clean(dir, "tank");
    assert_eq!(entries_by_zdb(dir, "tank"), (10, nice(20)));
    session(world, dir, "tank", async |pool| {
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        free_objects(&dataset, &[ids.0]).await;
        pool.sync().await.expect("sync");
        check_kinds(pool, &[(ids.1, (0..10).collect())]).await;
    })
    .await;
    session(world, dir, "tank", async |pool| {
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        free_objects(&dataset, &[ids.1]).await;
        pool.sync().await.expect("sync");
        assert_eq!(pool.status().dedup.entries, 0);
        // A table that is made now is flat.
        let three = new_object(&dataset, 16 * KIB).await;
        put(&dataset, &three, 0, pattern(0)).await;
        pool.sync().await.expect("sync");
        assert_eq!(refcount(pool), (FeatureState::Active, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_checksums_and_verification() {
    stored_once(true, "blake3,verify", &[("copies", "2")]).await;
    if std::env::var_os("MILLPOND_LONG").is_none() {
        return;
    }
    stored_once(true, "edonr,verify", &[("compression", "off")]).await;
    stored_once(false, "edonr,verify", &[]).await;
    stored_once(false, "skein", &[("copies", "3")]).await;
    stored_once(true, "sha512", &[("compression", "zstd")]).await;
}

/// Random writes, frees, snapshots and changes of `copies` and `dedup`.
async fn random_work(fast: bool, seed: u64) {
    let (ground, pool) = Ground::new(fast, "on", &[]).await;
    let (world, dir) = (&ground.world, ground.images.path());
    pool.dsl()
        .datasets()
        .create("tank/a", &[], Arc::new(BareFilesystem))
        .await
        .expect("create");
    pool.export(false).await.expect("export");
    let mut state = seed | 1;
    let mut random = move |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % limit
    };
    // What each block of each object holds.
    let mut model: Vec<(&str, ObjectId, Vec<Option<u64>>)> = Vec::new();
    for round in 0..4 {
        session(world, dir, "tank", async |pool| {
            for (name, id, blocks) in &model {
                let dataset = pool.dsl().open_dataset(name).await.expect("open");
                let object = dataset.objset().hold(*id).await.expect("hold");
                for (block, kind) in blocks.iter().enumerate() {
                    let at = block as u64 * 16 * KIB as u64;
                    let data = object.read_bytes(at, 16 * KIB).await.expect("read");
                    let expected = kind.map_or(Bytes::from(vec![0; 16 * KIB]), pattern);
                    assert!(data == expected, "{name} {id} block {block}");
                }
            }
            for step in 0..150 {
                let name = ["tank", "tank/a"][random(2) as usize];
                let dataset = pool.dsl().open_dataset(name).await.expect("open");
                if model.len() < 6 {
                    let object = new_object(&dataset, 16 * KIB).await;
                    model.push((name, object.id(), vec![None; 20]));
                }
                let index = random(model.len() as u64) as usize;
                let (name, id, blocks) = &mut model[index];
                let dataset = pool.dsl().open_dataset(name).await.expect("open");
                let object = dataset.objset().hold(*id).await.expect("hold");
                let block = random(20);
                match random(10) {
                    0 => {
                        let tx = dataset.assign(DirtyEstimate::free()).await.expect("assign");
                        let at = block * 16 * KIB as u64;
                        object
                            .free_range(&tx, at, 16 * KIB as u64)
                            .await
                            .expect("free");
                        blocks[block as usize] = None;
                    }
                    1 if step % 3 == 0 => {
                        let copies = ["1", "2", "3"][random(3) as usize];
                        set(pool, name, "copies", copies).await;
                        let dedup = ["on", "verify", "off", "on", "sha512"][random(5) as usize];
                        set(pool, name, "dedup", dedup).await;
                    }
                    2 if step % 5 == 0 => {
                        let snapshot = format!("{name}@{round}-{step}");
                        pool.dsl()
                            .snapshots()
                            .take(&[snapshot], &[])
                            .await
                            .expect("snapshot");
                    }
                    3 if step % 5 == 0 => {
                        let names = heads(pool).await;
                        let one = names.into_iter().find(|name| name.contains('@'));
                        if let Some(one) = one {
                            pool.dsl()
                                .destroyer()
                                .destroy_snapshots(&[one], false)
                                .await
                                .expect("destroy");
                        }
                    }
                    4 => pool.sync().await.expect("sync"),
                    _ => {
                        let kind = random(12);
                        put(&dataset, &object, block, pattern(kind)).await;
                        blocks[block as usize] = Some(kind);
                    }
                }
            }
        })
        .await;
    }
    session(world, dir, "tank", async |pool| {
        for name in heads(pool)
            .await
            .into_iter()
            .filter(|name| name.contains('@'))
        {
            pool.dsl()
                .destroyer()
                .destroy_snapshots(&[name], false)
                .await
                .expect("destroy");
        }
        for (name, id, _) in &model {
            let dataset = pool.dsl().open_dataset(name).await.expect("open");
            free_objects(&dataset, &[*id]).await;
        }
        pool.sync().await.expect("sync");
        flush(pool).await;
        assert_eq!(pool.status().dedup.entries, 0);
        assert_eq!(refcount(pool).1, 0);
    })
    .await;
}

async fn set(pool: &Pool, dataset: &str, name: &str, value: &str) {
    let change = PropertyChange::Set(value.to_owned());
    pool.dsl()
        .properties()
        .set(dataset, &[(name.to_owned(), change)])
        .await
        .expect("set");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_agrees_with_zdb() {
    let seeds = match std::env::var("MILLPOND_LONG") {
        Ok(_) => 1..=20,
        Err(_) => 1..=2,
    };
    for seed in seeds {
        random_work(seed % 2 == 0, seed * 7919).await;
    }
}

/// Limits by which a few entries are flushed with each txg, so that most of what is written in a
/// moment stays in logs.
pub const SMALL_STEPS: LogLimits = LogLimits {
    is_written: true,
    entries_max: None,
    flushed_least: 3,
    flushed_at_rest: 3,
    active_txgs: 1,
};

/// What objects of a pool hold: by name of the dataset and number, kinds of [`pattern`].
type Kinds = Vec<(ObjectId, Vec<u64>)>;

/// Writes so that both logs hold changes, removals among them, and one is flushed in part.
async fn fill_logs(pool: &Pool) -> Kinds {
    pool::set_dedup_log_limits(pool, SMALL_STEPS);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let mut out = Kinds::new();
    for round in 0..6 {
        let object = new_object(&dataset, 16 * KIB).await;
        let kinds: Vec<u64> = (0..20).map(|block| round * 12 + block).collect();
        for (block, kind) in kinds.iter().enumerate() {
            put(&dataset, &object, block as u64, pattern(*kind)).await;
        }
        out.push((object.id(), kinds));
        if round == 3 {
            let (gone, _) = out.remove(1);
            drop(object);
            free_objects(&dataset, &[gone]).await;
        }
        pool.sync().await.expect("sync");
    }
    out
}

async fn check_kinds(pool: &Pool, kinds: &[(ObjectId, Vec<u64>)]) {
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    for (id, kinds) in kinds {
        let object = dataset.objset().hold(*id).await.expect("hold");
        for (block, kind) in kinds.iter().enumerate() {
            let data = object.read_bytes((block * 16 * KIB) as u64, 16 * KIB).await;
            assert!(data.expect("read") == pattern(*kind), "{id} block {block}");
        }
    }
}

/// References that are in the tables, as they must be.
fn references(kinds: &[(ObjectId, Vec<u64>)]) -> u64 {
    kinds.iter().map(|(_, kinds)| kinds.len() as u64).sum()
}

/// Goal: logs are right while there is something in them, for us and for zdb. Method: logs that are
/// flushed slowly; zdb on the pool as it is exported, and a second import.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_hold_what_is_not_in_the_tables() {
    let (ground, pool) = Ground::new(true, "on", &[]).await;
    let kinds = fill_logs(&pool).await;
    let status = pool.status().dedup;
    assert!(status.logged > 20, "{status:?}");
    assert_eq!(status.total().referenced_blocks, references(&kinds));
    assert_eq!(status.entries, status.total().blocks);
    pool.export(false).await.expect("export");
    let dir = ground.images.path();
    zdb_is_clean(dir, "tank");
    let text = zdb(dir, "tank", &["-DD"]);
    assert!(text.contains("[FLUSHING CHECKPOINT]"), "{text}");
    assert_eq!(entries_by_zdb(dir, "tank").1, nice(references(&kinds)));
    let found = find(&ground.world, dir).await;
    let pool = Pool::import(&ground.world, ImportSpec::new(found, host()))
        .await
        .expect("import");
    assert_eq!(pool.status().dedup.entries, status.entries);
    check_kinds(&pool, &kinds).await;
    flush(&pool).await;
    let flushed = pool.status().dedup;
    assert_eq!(flushed.entries, status.entries);
    assert_eq!(flushed.total(), status.total());
    pool.export(false).await.expect("export");
    assert_eq!(
        entries_by_zdb(dir, "tank"),
        (status.entries, nice(references(&kinds)))
    );
    zdb_is_clean(dir, "tank");
}

/// Goal: changes for a part of a table that is damaged stop no import, and none of them is lost.
/// Method: entries in the table and changes of each of them in logs; a leaf destroyed; imports with
/// too little memory for the logs, and with enough. What was shared is still there after one of two
/// references is gone and other data was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_for_a_damaged_part_of_a_table_stay_in_the_logs() {
    let (ground, pool) = Ground::new(true, "on", &[]).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let object = new_object(&dataset, 16 * KIB).await;
    let again = new_object(&dataset, 16 * KIB).await;
    let (kept, gone) = (object.id(), again.id());
    for kind in 0..400 {
        put(&dataset, &object, kind, pattern(kind)).await;
    }
    pool.sync().await.expect("sync");
    flush(&pool).await;
    pool::set_dedup_log_limits(&pool, SMALL_STEPS);
    for kind in 0..450 {
        put(&dataset, &again, kind, pattern(kind)).await;
    }
    pool.sync().await.expect("sync");
    assert!(pool.status().dedup.logged > 420);
    let leaf = {
        let mos = pool.dsl().mos();
        let mut table = ObjectId::POOL_DIRECTORY;
        for name in ["DDT-sha256", "DDT-sha256-zap-unique"] {
            let zap = Zap::hold(mos, table).await.expect("hold");
            let id = zap.lookup_u64(name).await.expect("look up");
            table = ObjectId::new(id.expect("the table"));
        }
        let table = mos.hold(table).await.expect("hold");
        let last = table.info().max_block_id;
        table.block_pointer(last).await.expect("a leaf")
    };
    drop((object, again, dataset));
    pool.export(false).await.expect("export");
    let dir = ground.images.path();
    for image in ["d0.img", "d1.img"] {
        let file = std::fs::File::options().write(true).open(dir.join(image));
        let file = file.expect("an image");
        for dva in leaf.dvas() {
            let at = LABEL_START_BYTES + dva.offset_bytes();
            file.write_all_at(&[0xa5; 512], at).expect("write");
        }
    }
    let kinds = [(kept, (0..400).collect()), (gone, (0..450).collect())];
    let mut left = 0;
    for round in 0..3 {
        let mut spec = ImportSpec::new(find(&ground.world, dir).await, host());
        spec.cache = (round < 2).then(|| SharedCache::new(64 << 10));
        let pool = Pool::import(&ground.world, spec).await.expect("import");
        let logged = pool.status().dedup.logged;
        assert!((20..300).contains(&logged), "{logged} in round {round}");
        check_kinds(&pool, &kinds[..2 - usize::from(round > 0)]).await;
        if round == 0 {
            left = logged;
            let dataset = pool.dsl().open_dataset("tank").await.expect("open");
            free_objects(&dataset, &[gone]).await;
            for _ in 0..4 {
                pool.sync().await.expect("sync");
            }
            let more = new_object(&dataset, 16 * KIB).await;
            for kind in 1000..1800 {
                put(&dataset, &more, kind - 1000, pattern(kind)).await;
            }
            pool.sync().await.expect("sync");
        } else {
            // Entries of the 50 blocks that had one reference are gone.
            assert!(logged + 50 >= left, "{logged} of {left}");
        }
        check_kinds(&pool, &kinds[..1]).await;
        pool.export(false).await.expect("export");
    }
}

/// Writes to the pool as OpenZFS does, so that logs hold changes on both sides.
const GO_ON_WITH_LOGS: &str = r"set -euo pipefail
cd /sys/module/zfs/parameters
echo 5 >zfs_dedup_log_flush_entries_min; echo 1 >zfs_dedup_log_flush_min_time_ms
echo 3 >zfs_dedup_log_txg_max
zpool import -d /dev/disk/peer -N tank
zfs create -o mountpoint=/more -o recordsize=16K -o compression=off tank/more
cd /more
for i in 1 2 3 4; do
  head -c 300000 /dev/urandom >r$i; [ $i = 1 ] || cp --reflink=never r1 s$i; zpool sync tank
done
rm r2 s3; zpool sync tank
zpool scrub -w tank; zpool status tank | grep 'with 0 errors'
# A scrub flushes logs first.
for i in 5 6 7; do
  head -c 600000 /dev/urandom >r$i; cp --reflink=never r3 t$i; zpool sync tank
done
rm r4; zpool sync tank
cd /; zpool export tank
";

/// Goal: OpenZFS goes on with our logs, and we with its. Method: a pool with logs in the middle
/// goes to OpenZFS, which writes to it and scrubs, and comes back.
async fn logs_go_to_openzfs_and_back(peer: Option<Peer>) {
    let Some(peer) = peer else { return };
    let (ground, pool) = Ground::new(true, "on", &[]).await;
    let kinds = fill_logs(&pool).await;
    assert!(pool.status().dedup.logged > 20);
    pool.export(false).await.expect("export");
    let dir = ground.images.path();
    run_in_peer(&peer, dir, GO_ON_WITH_LOGS);
    let text = zdb(dir, "tank", &["-DD"]);
    let is_logged = |line: &str| line.starts_with("DDT-log-") && !line.ends_with("entries=0");
    assert!(text.lines().any(is_logged), "{text}");
    session(&ground.world, dir, "tank", async |pool| {
        check_kinds(pool, &kinds).await;
        let found = fill_logs(pool).await;
        check_kinds(pool, &found).await;
    })
    .await;
    session(&ground.world, dir, "tank", async |pool| {
        pool.dsl()
            .destroyer()
            .destroy("tank/more")
            .await
            .expect("destroy");
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        for object in data_objects(&dataset).await {
            let tx = dataset.assign(DirtyEstimate::free()).await.expect("assign");
            object.free_range(&tx, 0, u64::MAX).await.expect("free");
        }
        drop(dataset);
        while pool.dsl().destroyer().freeing_bytes() > 0 {
            pool.sync().await.expect("sync");
        }
        pool.sync().await.expect("sync");
        flush(pool).await;
        assert_eq!(pool.status().dedup.entries, 0);
        assert_eq!(refcount(pool).1, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_go_to_openzfs_2_3_and_back() {
    logs_go_to_openzfs_and_back(Peer::find()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_go_to_openzfs_2_4_and_back() {
    logs_go_to_openzfs_and_back(Peer::find_2_4()).await;
}

/// Goal: entries that are pruned are gone, their blocks are there, and are freed like others.
/// Method: blocks that are there once and twice; the same data again; then all is freed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pruned_entries_leave_their_blocks() {
    let (ground, pool) = Ground::new(true, "on", &[]).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let one = new_object(&dataset, 16 * KIB).await;
    let two = new_object(&dataset, 16 * KIB).await;
    for kind in 0..40 {
        put(&dataset, &one, kind, pattern(kind)).await;
    }
    for kind in 0..10 {
        put(&dataset, &two, kind, pattern(kind)).await;
    }
    pool.sync().await.expect("sync");
    flush(&pool).await;
    let an_hour = PruneBy::Age { seconds: 3600 };
    assert_eq!(pool::prune_dedup(&pool, an_hour).await.expect("prune"), 0);
    assert_eq!(pool.status().dedup.entries, 40);
    let half = PruneBy::Percent(50);
    assert_eq!(pool::prune_dedup(&pool, half).await.expect("prune"), 15);
    assert_eq!(pool.status().dedup.entries, 25);
    let all = PruneBy::Percent(100);
    assert_eq!(pool::prune_dedup(&pool, all).await.expect("prune"), 15);
    let status = pool.status().dedup;
    assert_eq!((status.entries, status.total().referenced_blocks), (10, 20));
    // What is written again is a new block, and only that is shared from now on.
    let again = new_object(&dataset, 16 * KIB).await;
    for kind in 0..40 {
        put(&dataset, &again, kind, pattern(kind)).await;
    }
    pool.sync().await.expect("sync");
    assert_eq!(pool.status().dedup.total().referenced_blocks, 60);
    let ids = [one.id(), two.id(), again.id()];
    drop((one, two, again, dataset));
    pool.export(false).await.expect("export");
    let (world, dir) = (&ground.world, ground.images.path());
    zdb_is_clean(dir, "tank");
    session(world, dir, "tank", async |pool| {
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        free_objects(&dataset, &ids[..1]).await;
        pool.sync().await.expect("sync");
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let again = dataset.objset().hold(ids[2]).await.expect("hold");
        for kind in 0..40 {
            let data = again.read_bytes(kind * 16 * KIB as u64, 16 * KIB).await;
            assert!(data.expect("read") == pattern(kind), "block {kind}");
        }
    })
    .await;
    session(world, dir, "tank", async |pool| {
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        free_objects(&dataset, &ids[1..]).await;
        pool.sync().await.expect("sync");
        flush(pool).await;
        assert_eq!(pool.status().dedup.entries, 0);
    })
    .await;
}
