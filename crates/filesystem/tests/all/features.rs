//! Goal: feature flags become active when OpenZFS makes them so, in the dataset that needs them and
//! no other, and inactive with the last one: a release without the feature takes no pool that it
//! should refuse, and refuses none that it can take. Method: one kind of change after the other on
//! a new pool; after each one the counts of all active features are compared with what they were
//! before. What is expected was measured on OpenZFS 2.3.2 (`zpool get all` after each change) and
//! read in its sources, which are named.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::common::*;
use dataset::PropertyChange;
use device::World;
use filesystem::{Filesystem, RenameMode, ZplInit};
use pool::{AddSpec, LeafSpec, Pool, VdevClass, VdevLayout, VdevSpec};

/// What a new pool with one filesystem has active.
const OF_A_NEW_POOL: [&str; 12] = [
    "embedded_data",
    "enabled_txg",
    "extensible_dataset",
    "head_errlog",
    "hole_birth",
    "log_spacemap",
    "lz4_compress",
    "project_quota",
    "spacemap_histogram",
    "spacemap_v2",
    "userobj_accounting",
    "vdev_zaps_v2",
];

/// Active in a dataset while it has an intent log, which is closed some time after the filesystem:
/// a test of its own.
const OF_LOGS: &str = "zilsaxattr";

/// Features that count things which tests do not follow: here they are just active or not.
const UNCOUNTED: [&str; 4] = [
    "empty_bpobj",
    "enabled_txg",
    "extensible_dataset",
    "spacemap_histogram",
];

/// How counts changed, by feature.
type Changes = BTreeMap<String, i64>;

struct Bed {
    world: World,
    pool: Arc<Pool>,
    before: BTreeMap<String, u64>,
}

impl Bed {
    async fn new(image: &Image, root_properties: &[(&str, &str)]) -> Self {
        let world = World::system(2);
        let pool = create(&world, image, root_properties).await;
        let before = active(&pool);
        Self {
            world,
            pool,
            before,
        }
    }

    /// Demands that since the last call these counts have changed, and no others.
    async fn expect(&mut self, what: &str, changes: &[(&str, i64)]) {
        // What one txg frees, the next ones may have to count.
        for _ in 0..3 {
            self.pool.sync().await.expect("sync");
        }
        let now = active(&self.pool);
        let mut found = Changes::new();
        for name in self.before.keys().chain(now.keys()) {
            let count = |of: &BTreeMap<String, u64>| of.get(name).map_or(0, |count| *count as i64);
            let change = count(&now) - count(&self.before);
            if change != 0 {
                found.insert(name.clone(), change);
            }
        }
        let own = |(name, change): &(&str, i64)| ((*name).to_owned(), *change);
        let expected: Changes = changes.iter().map(own).collect();
        assert_eq!(found, expected, "after: {what}");
        self.before = now;
    }

    async fn create(&self, name: &str, properties: &[(&str, &str)]) {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let properties: Vec<_> = properties.iter().map(own).collect();
        let fill = Arc::new(ZplInit::new());
        let created = self
            .pool
            .dsl()
            .datasets()
            .create(name, &properties, fill)
            .await;
        created.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    async fn set(&self, name: &str, property: &str, value: &str) {
        let change = (property.to_owned(), PropertyChange::Set(value.to_owned()));
        let set = self.pool.dsl().properties().set(name, &[change]).await;
        set.unwrap_or_else(|error| panic!("{name} {property}={value}: {error}"));
    }

    async fn snapshot(&self, name: &str) {
        let taken = self
            .pool
            .dsl()
            .snapshots()
            .take(&[name.to_owned()], &[])
            .await;
        taken.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    async fn destroy(&self, name: &str) {
        let destroyed = self.pool.dsl().destroyer().destroy(name).await;
        destroyed.unwrap_or_else(|error| panic!("{name}: {error}"));
        // What is freed in the background is.
        for _ in 0..4 {
            self.pool.sync().await.expect("sync");
        }
    }

    async fn open(&self, name: &str) -> Arc<Filesystem> {
        open(&self.world, &self.pool, name).await
    }

    /// The pool goes there and back, with nothing wrong to be found.
    async fn reimport(mut self, dir: &Path) -> Self {
        self.pool.export(false).await.expect("export");
        zdb_is_clean(dir, "tank");
        self.pool = import(&self.world, dir, false).await;
        self.expect("an import", &[]).await;
        self
    }

    async fn end(self, dir: &Path) {
        self.pool.export(false).await.expect("export");
        zdb_is_clean(dir, "tank");
    }
}

fn active(pool: &Pool) -> BTreeMap<String, u64> {
    let features = pool.properties().features().into_iter();
    features
        .filter(|feature| feature.refcount > 0 && feature.name != OF_LOGS)
        .map(|feature| match UNCOUNTED.contains(&&*feature.name) {
            true => (feature.name, 1),
            false => (feature.name, feature.refcount),
        })
        .collect()
}

async fn write(filesystem: &Filesystem, name: &str, data: Vec<u8>) -> u64 {
    let root = filesystem.root();
    let file = match filesystem.lookup(root, name.as_bytes()).await {
        Ok(found) => found,
        Err(_) => (filesystem.create(root, name.as_bytes(), 0o644, ROOT).await).expect("create"),
    };
    let written = filesystem.write(file.ino, 0, data.into(), false, ROOT);
    written.await.expect("write");
    file.ino
}

/// Data that does not compress.
fn noise(bytes: usize) -> Vec<u8> {
    Random(7).bytes(bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_pool_has_those_of_openzfs() {
    let image = Image::new(256);
    let bed = Bed::new(&image, &[]).await;
    let names: Vec<&str> = bed.before.keys().map(String::as_str).collect();
    assert_eq!(names, OF_A_NEW_POOL);
    bed.end(image.path()).await;
}

/// A property of the root filesystem counts as one that is set later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_pool_of_zstd_has_zstd_active() {
    let image = Image::new(256);
    let bed = Bed::new(&image, &[("compression", "zstd-5")]).await;
    assert_eq!(bed.before.get("zstd_compress"), Some(&1));
    bed.end(image.path()).await;
}

/// `zfs_link_create` (module/os/linux/zfs/zfs_dir.c): with the first long name, not with the
/// property.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_names_are_counted_per_dataset() {
    let image = Image::new(256);
    let mut bed = Bed::new(&image, &[]).await;
    let accounting = [("userobj_accounting", 1), ("project_quota", 1)];
    for name in ["tank/a", "tank/b", "tank/c", "tank/d"] {
        bed.create(name, &[("longname", "on")]).await;
        let first = (name == "tank/a").then_some(("empty_bpobj", 1));
        let changes: Vec<_> = accounting.into_iter().chain(first).collect();
        bed.expect("zfs create -o longname=on", &changes).await;
    }
    let long = |letter: u8| vec![letter; 256];
    let a = bed.open("tank/a").await;
    let root = a.root();
    a.create(root, &[b's'; 255], 0o644, ROOT)
        .await
        .expect("a short name");
    bed.expect("a name of 255 bytes", &[]).await;
    a.create(root, &long(b'x'), 0o644, ROOT)
        .await
        .expect("create");
    bed.expect("a name of 256 bytes", &[("longname", 1)]).await;
    a.create(root, &long(b'y'), 0o644, ROOT)
        .await
        .expect("create");
    bed.expect("another one", &[]).await;
    a.unlink(root, &long(b'x')).await.expect("unlink");
    a.unlink(root, &long(b'y')).await.expect("unlink");
    a.close().await.expect("close");
    bed.expect("without long names again", &[]).await;

    // Every way to a name.
    let b = bed.open("tank/b").await;
    let short = b
        .create(b.root(), b"short", 0o644, ROOT)
        .await
        .expect("create");
    b.link(short.ino, b.root(), &long(b'l'))
        .await
        .expect("link");
    bed.expect("a link", &[("longname", 1)]).await;
    b.close().await.expect("close");
    let c = bed.open("tank/c").await;
    c.create(c.root(), b"short", 0o644, ROOT)
        .await
        .expect("create");
    c.rename(
        c.root(),
        b"short",
        c.root(),
        &long(b'r'),
        RenameMode::Replace,
    )
    .await
    .expect("rename");
    bed.expect("a rename", &[("longname", 1)]).await;
    c.close().await.expect("close");
    let d = bed.open("tank/d").await;
    d.make_directory(d.root(), &long(b'd'), 0o755, ROOT)
        .await
        .expect("mkdir");
    bed.expect("a directory", &[("longname", 1)]).await;
    d.close().await.expect("close");

    let mut bed = bed.reimport(image.path()).await;
    bed.snapshot("tank/a@1").await;
    let one_more = [
        ("longname", 1),
        ("userobj_accounting", 1),
        ("project_quota", 1),
    ];
    let one_less = one_more.map(|(name, count)| (name, -count));
    bed.expect("a snapshot", &one_more).await;
    let datasets = bed.pool.dsl().datasets();
    let cloned = datasets.clone_snapshot("tank/a@1", "tank/e", &[]);
    cloned.await.expect("clone");
    let with_list: Vec<_> = one_more.into_iter().chain([("livelist", 1)]).collect();
    bed.expect("a clone", &with_list).await;
    bed.pool
        .dsl()
        .snapshots()
        .promote("tank/e")
        .await
        .expect("promote");
    bed.expect("promoted", &[("livelist", -1)]).await;
    for name in ["tank/a", "tank/e@1", "tank/e"] {
        bed.destroy(name).await;
        bed.expect(&format!("zfs destroy {name}"), &one_less).await;
    }
    for name in ["tank/b", "tank/c", "tank/d"] {
        bed.destroy(name).await;
        // The last one that shares an empty list.
        let last = (name == "tank/d").then_some(("empty_bpobj", -1));
        let changes: Vec<_> = one_less.into_iter().chain(last).collect();
        bed.expect(&format!("zfs destroy {name}"), &changes).await;
    }
    assert_eq!(bed.before.get("longname"), None);
    bed.end(image.path()).await;
}

/// What a rollback takes back, it takes from the counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_takes_features_back() {
    let image = Image::new(256);
    let mut bed = Bed::new(&image, &[]).await;
    bed.create("tank/a", &[("longname", "on")]).await;
    bed.snapshot("tank/a@1").await;
    bed.expect(
        "a filesystem and its snapshot",
        &[
            ("empty_bpobj", 1),
            ("userobj_accounting", 2),
            ("project_quota", 2),
        ],
    )
    .await;
    let a = bed.open("tank/a").await;
    a.create(a.root(), &[b'x'; 300], 0o644, ROOT)
        .await
        .expect("create");
    a.close().await.expect("close");
    drop(a);
    bed.expect("a long name", &[("longname", 1)]).await;
    bed.pool
        .dsl()
        .snapshots()
        .rollback("tank/a", None)
        .await
        .expect("rollback");
    bed.expect("a rollback", &[("longname", -1)]).await;
    let a = bed.open("tank/a").await;
    a.create(a.root(), b"short", 0o644, ROOT)
        .await
        .expect("create");
    a.close().await.expect("close");
    bed.expect("a short name", &[]).await;
    bed.end(image.path()).await;
}

/// A name that comes from a log counts as any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_name_that_is_replayed_counts() {
    let image = Image::new(256);
    let bed = Bed::new(&image, &[]).await;
    bed.create("tank/a", &[("longname", "on")]).await;
    let a = bed.open("tank/a").await;
    // The log is begun, and then says more than the last txg.
    let first = a
        .create(a.root(), b"first", 0o644, ROOT)
        .await
        .expect("create");
    a.sync_file(first.ino).await.expect("fsync");
    bed.pool.sync().await.expect("sync");
    let long = a
        .create(a.root(), &[b'x'; 300], 0o644, ROOT)
        .await
        .expect("create");
    a.sync_file(long.ino).await.expect("fsync");
    let after = cut(&image);
    a.close().await.expect("close");
    bed.pool.export(true).await.expect("export");

    let pool = import_after_cut(&bed.world, after.path()).await;
    let a = open(&bed.world, &pool, "tank/a").await;
    a.lookup(a.root(), &[b'x'; 300])
        .await
        .expect("the long name");
    pool.sync().await.expect("sync");
    assert_eq!(active(&pool).get("longname"), Some(&1));
    a.close().await.expect("close");
    drop(a);
    pool.export(false).await.expect("export");
    zdb_is_clean(after.path(), "tank");
}

/// `zil_create`, `zil_sync` (module/zfs/zil.c): with a log, and only as long as there is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_counts_while_it_is_there() {
    let image = Image::new(256);
    let bed = Bed::new(&image, &[]).await;
    let count = || {
        let features = bed.pool.properties().features().into_iter();
        let of_logs = |feature: &pool::FeatureStatus| feature.name == OF_LOGS;
        features
            .filter(of_logs)
            .map(|feature| feature.refcount)
            .sum::<u64>()
    };
    for name in ["tank/a", "tank/b"] {
        bed.create(name, &[]).await;
        let filesystem = bed.open(name).await;
        write(&filesystem, "file", noise(40_000)).await;
        bed.pool.sync().await.expect("sync");
        assert_eq!(count(), 0, "written, not logged");
        let ino = write(&filesystem, "file", noise(50_000)).await;
        filesystem.sync_file(ino).await.expect("fsync");
        bed.pool.sync().await.expect("sync");
        assert_eq!(count(), 1, "{name} has a log");
        filesystem.close().await.expect("close");
        drop(filesystem);
        for _ in 0..1000 {
            if count() == 0 {
                break;
            }
            bed.pool.sync().await.expect("sync");
        }
        assert_eq!(count(), 0, "{name} has no log any more");
    }
    bed.end(image.path()).await;
}

/// Each change, in the words of `zfs` and `zpool`, and what it makes active.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_change_activates_what_it_needs() {
    let image = Image::new(512);
    let mut bed = Bed::new(&image, &[]).await;
    bed.create("tank/a", &[]).await;
    bed.expect(
        "zfs create",
        &[
            ("empty_bpobj", 1),
            ("userobj_accounting", 1),
            ("project_quota", 1),
        ],
    )
    .await;
    let a = bed.open("tank/a").await;
    write(&a, "file", noise(40_000)).await;
    bed.expect("a write", &[]).await;
    a.close().await.expect("close");
    drop(a);

    // By the first block that is born so (`dsl_dataset_block_born`, module/zfs/dsl_dataset.c).
    for (property, value, feature) in [
        ("recordsize", "1M", "large_blocks"),
        ("checksum", "sha512", "sha512"),
        ("checksum", "skein", "skein"),
        ("checksum", "edonr", "edonr"),
        ("checksum", "blake3", "blake3"),
        ("dnodesize", "auto", "large_dnode"),
    ] {
        let name = format!("tank/{feature}");
        bed.create(&name, &[]).await;
        let accounting = [("userobj_accounting", 1), ("project_quota", 1)];
        bed.expect("zfs create", &accounting).await;
        bed.set(&name, property, value).await;
        bed.expect(&format!("zfs set {property}={value}"), &[])
            .await;
        let filesystem = bed.open(&name).await;
        write(&filesystem, "file", noise(1 << 20)).await;
        bed.expect(&format!("a write with {property}={value}"), &[(feature, 1)])
            .await;
        filesystem.close().await.expect("close");
        drop(filesystem);
        bed.destroy(&name).await;
        let gone = [
            (feature, -1),
            ("userobj_accounting", -1),
            ("project_quota", -1),
        ];
        bed.expect("zfs destroy", &gone).await;
    }
    for (property, value) in [
        ("checksum", "sha256"),
        ("compression", "gzip-9"),
        ("compression", "lz4"),
        ("recordsize", "128K"),
    ] {
        bed.set("tank/a", property, value).await;
        let a = bed.open("tank/a").await;
        write(&a, "file", vec![b'x'; 300_000]).await;
        a.close().await.expect("close");
        bed.expect(&format!("a write with {property}={value}"), &[])
            .await;
    }

    // By the property (`dsl_dataset_set_compression_sync`), or by the first block where it is
    // inherited.
    bed.set("tank/a", "compression", "zstd").await;
    bed.expect("zfs set compression=zstd", &[("zstd_compress", 1)])
        .await;
    bed.set("tank/a", "compression", "zstd-fast-10").await;
    bed.expect("another level", &[]).await;
    bed.create("tank/a/below", &[]).await;
    let accounting = [("userobj_accounting", 1), ("project_quota", 1)];
    bed.expect("inherited", &accounting).await;
    let below = bed.open("tank/a/below").await;
    write(&below, "file", vec![b'x'; 300_000]).await;
    bed.expect("a write that inherits zstd", &[("zstd_compress", 1)])
        .await;
    below.close().await.expect("close");
    drop(below);
    bed.set("tank/a", "compression", "off").await;
    bed.expect("zfs set compression=off", &[]).await;

    // For good (`dsl_dir_activate_fs_ss_limit`, module/zfs/dsl_dir.c).
    bed.set("tank/a", "snapshot_limit", "5").await;
    bed.expect("zfs set snapshot_limit=5", &[("filesystem_limits", 1)])
        .await;
    bed.set("tank/a", "filesystem_limit", "none").await;
    bed.expect("zfs set filesystem_limit=none", &[]).await;

    // One table (`brt_vdev_create`, module/zfs/brt.c), until it is empty.
    let a = bed.open("tank/a").await;
    let from = write(&a, "cloned", noise(262_144)).await;
    bed.pool.sync().await.expect("sync");
    let to = a
        .create(a.root(), b"clone", 0o644, ROOT)
        .await
        .expect("create")
        .ino;
    let copied = a
        .copy_range(from, 0, to, 0, 262_144, ROOT)
        .await
        .expect("copied");
    assert_eq!(copied, 262_144);
    bed.expect("a cloned block", &[("block_cloning", 1)]).await;
    for (name, ino) in [("cloned", from), ("clone", to)] {
        a.unlink(a.root(), name.as_bytes()).await.expect("unlink");
        a.unlinked().free(ino).await;
    }
    a.close().await.expect("close");
    drop(a);
    for _ in 0..4 {
        bed.pool.sync().await.expect("sync");
    }
    bed.expect("no cloned block any more", &[("block_cloning", -1)])
        .await;

    // One table with a log (`ddt_create_dir`, module/zfs/ddt.c), until it is empty.
    bed.set("tank/a", "dedup", "sha256").await;
    bed.expect("zfs set dedup=sha256", &[]).await;
    let a = bed.open("tank/a").await;
    let ino = write(&a, "dedup", noise(262_144)).await;
    bed.expect("a write with dedup", &[("fast_dedup", 1)]).await;
    a.unlink(a.root(), b"dedup").await.expect("unlink");
    a.unlinked().free(ino).await;
    a.close().await.expect("close");
    drop(a);
    for _ in 0..4 {
        bed.pool.sync().await.expect("sync");
    }
    bed.expect("no deduplicated block any more", &[("fast_dedup", -1)])
        .await;

    bed.pool.checkpoint().await.expect("checkpoint");
    bed.expect("zpool checkpoint", &[("zpool_checkpoint", 1)])
        .await;
    bed.pool.discard_checkpoint().await.expect("discard");
    while bed.pool.is_discarding() {
        bed.pool.sync().await.expect("sync");
    }
    bed.expect("zpool checkpoint -d", &[("zpool_checkpoint", -1)])
        .await;

    let mut bed = bed.reimport(image.path()).await;
    let path = image.path().join("d1.img");
    let file = std::fs::File::create(&path).expect("an image");
    file.set_len(256 << 20).expect("its size");
    let special = VdevSpec {
        layout: VdevLayout::Leaf(LeafSpec {
            path: path.to_str().expect("UTF-8").to_owned(),
            is_file: false,
        }),
        class: VdevClass::Special,
    };
    let add = AddSpec {
        vdevs: vec![special],
        force: true,
        ..AddSpec::default()
    };
    bed.pool.add(&add).await.expect("add");
    bed.expect("zpool add special", &[("allocation_classes", 1)])
        .await;

    // Datasets take what is theirs with them.
    bed.destroy("tank/a/below").await;
    bed.destroy("tank/a").await;
    bed.expect(
        "zfs destroy -r",
        &[
            ("zstd_compress", -2),
            ("empty_bpobj", -1),
            ("userobj_accounting", -2),
            ("project_quota", -2),
        ],
    )
    .await;
    bed.end(image.path()).await;
}
