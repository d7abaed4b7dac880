//! Goal: properties of vdevs are kept where OpenZFS keeps them, and what cannot be set is refused.
//! Method: set, read, export, let zdb look, import again, read; remove; ask for what must not be.

use std::sync::Arc;

use device::World;
use format::Guid;
use pool::{FeatureChoice, HistoryWhat, Pool, PoolError, VdevClass, VdevLayout, VdevSpec};

use crate::common::*;

/// What the vdev with this guid has.
fn of(pool: &Pool, guid: Guid) -> Vec<(String, String)> {
    fn walk(vdev: &pool::VdevStatus, guid: Guid) -> Option<Vec<(String, String)>> {
        if vdev.guid == guid {
            return Some(vdev.properties.clone());
        }
        vdev.children.iter().find_map(|child| walk(child, guid))
    }
    walk(&pool.status().root, guid).expect("the vdev")
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let pairs = expected.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

async fn why(pool: &Pool, vdev: Guid, name: &str, value: &str) -> String {
    match pool.properties().set_of_vdev(vdev, name, value).await {
        Err(PoolError::BadVdevProperty { why, property, .. }) => {
            assert_eq!(property, name);
            why
        }
        other => panic!("{name}={value}: {other:?}"),
    }
}

/// The root, a mirror, its first device, and a device that is on top, with a log beside.
async fn tank(images: &Images, world: &World) -> (Arc<Pool>, [Guid; 5]) {
    let leaves = images.make(4, 64);
    let mut vdevs = vec![
        normal(VdevLayout::Mirror(leaves[..2].to_vec())),
        normal(VdevLayout::Leaf(leaves[2].clone())),
    ];
    vdevs.push(VdevSpec {
        layout: VdevLayout::Leaf(leaves[3].clone()),
        class: VdevClass::Log,
    });
    let mut spec = spec("tank", vdevs);
    spec.force = true;
    let pool = Pool::create(world, spec).await.expect("create");
    let root = pool.status().root;
    let [mirror, disk, log] = [0, 1, 2].map(|index| root.children[index].guid);
    let leaf = root.children[0].children[0].guid;
    (pool, [root.guid, mirror, leaf, disk, log])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_set_is_there_after_an_import() {
    let images = Images::new();
    let world = World::system(2);
    let (pool, [root, mirror, leaf, disk, log]) = tank(&images, &world).await;
    assert_eq!(of(&pool, mirror), []);
    let long = "v".repeat(8191);
    for (vdev, name, value) in [
        (root, "comment", "the root"),
        (root, "failfast", "off"),
        (mirror, "org.example:rack", "seven"),
        (mirror, "org.example:shelf", &long),
        (mirror, "comment", "left"),
        (mirror, "io_n", "12"),
        (leaf, "checksum_t", "1K"),
        (leaf, "slow_io_n", "0"),
        (leaf, "org.example:rack", "eight"),
        (disk, "io_t", "5"),
        (disk, "slow_io_events", "off"),
        (log, "comment", "quick"),
    ] {
        let set = pool.properties().set_of_vdev(vdev, name, value).await;
        set.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let check = |pool: &Pool| {
        let expected = pairs(&[("comment", "the root"), ("failfast", "off")]);
        assert_eq!(of(pool, root), expected);
        let expected = pairs(&[
            ("comment", "left"),
            ("io_n", "12"),
            ("org.example:rack", "seven"),
            ("org.example:shelf", &long),
        ]);
        assert_eq!(of(pool, mirror), expected);
        let expected = pairs(&[
            ("checksum_t", "1024"),
            ("slow_io_n", "0"),
            ("org.example:rack", "eight"),
        ]);
        assert_eq!(of(pool, leaf), expected);
        assert_eq!(
            of(pool, disk),
            pairs(&[("io_t", "5"), ("slow_io_events", "off")])
        );
        let expected = [
            ("comment", "quick"),
            ("org.zfsonlinux:allocation_bias", "log"),
        ];
        assert_eq!(of(pool, log), pairs(&expected));
    };
    check(&pool);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let pool = import(&world, images.path()).await;
    check(&pool);

    // Another guid of the pool is another guid of the root vdev.
    let root = Guid::new(4711);
    pool.change_guid(root).await.expect("another guid");
    assert_eq!(of(&pool, root)[0].1, "the root");
    for (vdev, name, value) in [
        (mirror, "org.example:rack", ""),
        (mirror, "org.example:shelf", ""),
        (mirror, "org.example:shelf", ""),
        (mirror, "io_n", "none"),
        (leaf, "checksum_t", "none"),
        (root, "failfast", "on"),
        (root, "comment", ""),
    ] {
        let set = pool.properties().set_of_vdev(vdev, name, value).await;
        set.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    pool.remove(&log.to_string()).await.expect("the log goes");
    let gone = pool.properties().set_of_vdev(log, "comment", "x").await;
    assert!(
        matches!(gone, Err(PoolError::NoSuchDevice { .. })),
        "{gone:?}"
    );
    let history = pool.history().await.expect("the history");
    let events: Vec<String> = history
        .into_iter()
        .filter_map(|record| match record.what {
            HistoryWhat::Internal { event, text, .. } if event == "vdev set" => Some(text),
            _ => None,
        })
        .collect();
    assert!(events.contains(&format!("vdev_guid={mirror}: org.example:rack=seven")));
    assert!(events.contains(&format!("vdev_guid={mirror}: org.example:rack=")));
    assert!(events.contains(&format!("vdev_guid={mirror}: io_n=-1")));
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let pool = import(&world, images.path()).await;
    assert_eq!(of(&pool, root), pairs(&[("comment", "")]));
    assert_eq!(of(&pool, mirror), pairs(&[("comment", "left")]));
    assert_eq!(of(&pool, leaf).len(), 2);
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_set_is_refused_by_name() {
    let images = Images::new();
    let world = World::system(2);
    let (pool, [root, mirror, leaf, ..]) = tank(&images, &world).await;
    for (vdev, name, value, expected) in [
        (mirror, "guid", "5", "'guid' is readonly"),
        (leaf, "state", "online", "'state' is readonly"),
        (root, "trim_support", "on", "'trim_support' is readonly"),
        (mirror, "nosuch", "1", "invalid property: 'nosuch'"),
        (mirror, "Org:x", "1", "invalid property: 'Org:x'"),
        (leaf, "path", "/dev/sda", "'path' cannot be set"),
        (mirror, "allocating", "off", "'allocating' cannot be set"),
        (mirror, "autosit", "on", "'autosit' cannot be set"),
        (leaf, "sit_out", "on", "'sit_out' cannot be set"),
        (
            mirror,
            "failfast",
            "maybe",
            "'failfast' must be one of 'on | off'",
        ),
        (mirror, "io_n", "few", "bad numeric value 'few'"),
        (mirror, "io_n", "-1", "bad numeric value '-1'"),
        (mirror, "io_n", "auto", "'auto' is invalid value for 'io_n'"),
        (
            mirror,
            "comment",
            &"c".repeat(4096),
            "'comment' is too long",
        ),
        (mirror, "a:b", &"v".repeat(8192), "the value of 'a:b'"),
        (mirror, &format!("a:{}", "b".repeat(254)), "1", "too long"),
        // What the pool itself keeps beside them.
        (
            mirror,
            "com.delphix:ms_unflushed_phys_txgs",
            "1",
            "is readonly",
        ),
        (
            mirror,
            "org.zfsonlinux:allocation_bias",
            "special",
            "is readonly",
        ),
        (leaf, "org.zfsonlinux:vdev_trim_state", "", "is readonly"),
    ] {
        let why = why(&pool, vdev, name, value).await;
        assert!(why.contains(expected), "{name}={value}: {why}");
    }
    let nobody = pool
        .properties()
        .set_of_vdev(Guid::new(7), "comment", "x")
        .await;
    assert!(
        matches!(nobody, Err(PoolError::NoSuchDevice { .. })),
        "{nobody:?}"
    );
    assert_eq!(of(&pool, mirror), []);
    pool.export(false).await.expect("export");
}

/// The root's ZAP comes with a feature: when that is enabled in a pool that is older.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn properties_of_the_root_need_a_feature() {
    let images = Images::new();
    let world = World::system(2);
    let leaf = images.make(1, 64).remove(0);
    let mut spec = spec("tank", vec![normal(VdevLayout::Leaf(leaf))]);
    spec.features = FeatureChoice::None;
    let pool = Pool::create(&world, spec).await.expect("create");
    let root = pool.guid();
    let refused = why(&pool, root, "comment", "x").await;
    assert!(
        refused.contains("feature@vdev_zaps_v2=enabled"),
        "{refused}"
    );
    let top = pool.status().root.children[0].guid;
    pool.properties()
        .set_of_vdev(top, "comment", "on top")
        .await
        .expect("set");
    pool.properties()
        .set("feature@vdev_zaps_v2", "enabled")
        .await
        .expect("the feature");
    pool.properties()
        .set_of_vdev(root, "comment", "x")
        .await
        .expect("set");
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let pool = import(&world, images.path()).await;
    assert_eq!(of(&pool, root), pairs(&[("comment", "x")]));
    assert_eq!(of(&pool, top), pairs(&[("comment", "on top")]));
    pool.export(false).await.expect("export");
}

/// Goal: a vdev that is written in smaller sectors than its devices have is told as such, on the
/// devices that have them (`print_status_config`). Method: a mirror of a disk with sectors of 4 KiB
/// and one of 512 bytes, as OpenZFS would have made it with `ashift=9`, and one as disks want it.
#[tokio::test(start_paused = true)]
async fn devices_with_bigger_sectors_are_told() {
    for (ashift, configured_bytes) in [("9", Some(512)), ("0", None)] {
        let sim = device::sim::SimWorld::new(9);
        let leaves = [("disk0", 512), ("disk1", 4096)].map(|(name, sector_bytes)| {
            sim.add_disk(name, 96 << 20).set_sector_bytes(sector_bytes);
            pool::LeafSpec {
                path: name.to_owned(),
                is_file: false,
            }
        });
        let mut spec = spec("tank", vec![normal(VdevLayout::Mirror(leaves.to_vec()))]);
        spec.properties.push(("ashift".into(), ashift.into()));
        let pool = Pool::create(&sim.world(), spec).await.expect("create");
        let root = pool.status().root;
        let told = |index: usize| root.children[0].children[index].small_sectors;
        let wanted = configured_bytes.map(|configured_bytes| pool::SmallSectors {
            configured_bytes,
            native_bytes: 4096,
        });
        assert_eq!((told(0), told(1)), (None, wanted), "ashift {ashift}");
        assert_eq!(root.children[0].small_sectors, None);
        pool.export(false).await.expect("export");
    }
}
