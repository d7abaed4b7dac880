//! Pools made by OpenZFS: every object of every dataset is opened, every ZAP listed, and files,
//! directories and attributes compared with the manifests.
//!
//! The pools are in `MILLPOND_GOLDEN`, or in `../shared/golden` beside the workspace. Without them
//! the tests pass with a note, except in CI.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::all_objects;
use device::World;
use format::{
    BlockPointer, ByteswapKind, DslDatasetPhys, Endian, Guid, NvList, NvValue, ObjectId,
    ObjectType, Txg,
};
use object::{
    Bpobj, Object, ObjectSet, ObjsetOptions, Sa, SaAttribute, SaRegistration, SpaceMapKind,
    SpaceMapObject, Zap,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use vdev::IgnoreErrors;
use vdev::{OpenOptions, VdevTree, read_labels};
use zio::alloc::Allocator;
use zio::{Cache, Pipeline, PipelineOptions};

const fn attribute(name: &'static str, length_bytes: u16) -> SaRegistration {
    SaRegistration {
        name,
        length_bytes,
        byteswap: 0,
    }
}

static TABLE: [SaRegistration; 6] = [
    attribute("ZPL_SIZE", 8),
    attribute("ZPL_MODE", 8),
    attribute("ZPL_UID", 8),
    attribute("ZPL_GID", 8),
    attribute("ZPL_LINKS", 8),
    attribute("ZPL_MTIME", 16),
];

fn unpack(name: &str) -> Option<(tempfile::TempDir, PathBuf, Value)> {
    let golden = oracles::golden()?;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let images = oracles::unpack(&golden, name, dir.path());
    let manifest = oracles::manifest(&golden, name);
    let manifest = serde_json::from_slice(&manifest).expect("JSON");
    Some((dir, images, manifest))
}

/// Opens a pool's devices by their labels, as an import does.
async fn open(images: &Path) -> (World, Arc<Pipeline>, BlockPointer) {
    let world = World::system(2);
    let mut children: BTreeMap<u64, (u64, NvList)> = BTreeMap::new();
    let mut paths = BTreeMap::new();
    let (mut pool_guid, mut best) = (0, None);
    for file in std::fs::read_dir(images).expect("images") {
        let path = file
            .expect("an entry")
            .path()
            .to_string_lossy()
            .into_owned();
        let device = world.opener.open(&path, true).await.expect("opens");
        let labels = read_labels(&*device).await.expect("readable");
        let Some(config) = labels.config(Txg::new(u64::MAX)) else {
            continue;
        };
        let Some(tree) = config.list("vdev_tree") else {
            continue;
        };
        paths.insert(Guid::new(config.u64("guid").expect("a guid")), path);
        pool_guid = config.u64("pool_guid").expect("a pool");
        let txg = config.u64("txg").unwrap_or(0);
        let id = tree.u64("id").expect("an id");
        if children.get(&id).is_none_or(|(other, _)| *other < txg) {
            children.insert(id, (txg, tree.clone()));
        }
        let newest = labels.best_uberblock(Txg::new(u64::MAX));
        if let Some(newest) = newest
            && best.is_none_or(|best: format::Uberblock| best.recency() < newest.recency())
        {
            best = Some(newest);
        }
    }
    let mut root = NvList::new();
    root.set("type", "root");
    root.set("id", 0u64);
    root.set("guid", pool_guid);
    let tops: Vec<NvList> = children.into_values().map(|(_, tree)| tree).collect();
    root.set("children", NvValue::ListArray(tops));
    let options = OpenOptions {
        read_only: true,
        paths,
        pool_guid: Some(Guid::new(pool_guid)),
        ..OpenOptions::default()
    };
    let tree = VdevTree::open(world.clone(), &root, options)
        .await
        .expect("the tree opens");
    let pipeline = Pipeline::new(
        world.clone(),
        tree,
        Arc::new(Allocator::new()),
        Arc::new(Cache::new(64 << 20)),
        PipelineOptions::default(),
        Arc::new(IgnoreErrors),
    );
    (world, pipeline, best.expect("an uberblock").root)
}

/// Opens every object, lists every ZAP, reads every list and space map.
async fn visit(set: &Arc<ObjectSet>) -> (u64, u64) {
    let (mut objects, mut zaps) = (0, 0);
    for number in all_objects(set).await {
        let object = set.hold(ObjectId::new(number)).await.expect("opens");
        objects += 1;
        let kind = object.info().object_type;
        if kind.byteswap() == ByteswapKind::Zap {
            let zap = Zap::open(object).await.expect("opens");
            let entries = zap.all().await.expect("lists");
            assert_eq!(entries.len() as u64, zap.count().await.expect("counts"));
            let words = zap.flags().await.expect("known") & Zap::FLAG_UINT64_KEY != 0;
            for entry in entries.iter().filter(|_| words) {
                let found = zap
                    .lookup_u64_key(&entry.key_words())
                    .await
                    .expect("looks up");
                assert_eq!(found.as_ref(), Some(&entry.value));
            }
            if !words && zap.normalization().await.expect("known") == 0 {
                for entry in entries.iter().take(500) {
                    let found = zap.lookup(&entry.name).await.expect("looks up");
                    assert_eq!(found.as_ref(), Some(&entry.value), "{:?}", entry.name);
                }
            }
            zaps += 1;
        } else if kind == ObjectType::BPOBJ {
            let list = Bpobj::open(set, ObjectId::new(number))
                .await
                .expect("opens");
            let counted = list.space().await.expect("counts");
            let (mut uncompressed, mut compressed) = (0u64, 0u64);
            list.for_each(&mut |block, freed| {
                let whole = if block.is_metadata() {
                    block.psize_bytes()
                } else {
                    block.lsize_bytes()
                };
                let sign = |bytes: u64| if freed { bytes.wrapping_neg() } else { bytes };
                compressed = compressed.wrapping_add(sign(block.psize_bytes()));
                uncompressed = uncompressed.wrapping_add(sign(whole));
                Ok(())
            })
            .await
            .expect("lists");
            assert_eq!(counted.compressed_bytes, compressed, "list {number}");
            assert_eq!(counted.uncompressed_bytes, uncompressed, "list {number}");
        } else if kind == ObjectType::SPACE_MAP {
            let id = ObjectId::new(number);
            let map = SpaceMapObject::open(set, id, 0, u64::MAX >> 1, 9)
                .await
                .expect("opens");
            let mut sum = 0i64;
            map.for_each(u64::MAX, &mut |entry| {
                let bytes = entry.length_bytes as i64;
                sum += if entry.kind == SpaceMapKind::Allocate {
                    bytes
                } else {
                    -bytes
                };
                Ok(())
            })
            .await
            .expect("lists");
            // The unit is not in the map: a metaslab's is its vdev's sector, a log's 512 bytes.
            let allocated = map.allocated_bytes();
            assert!(
                (0..4).any(|shift| sum << shift == allocated),
                "space map {number}: {sum} and {allocated}"
            );
        }
    }
    (objects, zaps)
}

fn word(found: &Option<bytes::Bytes>) -> u64 {
    let bytes = found.as_ref().expect("has the attribute");
    u64::from_le_bytes(bytes[..8].try_into().expect("a word"))
}

async fn compare(set: &Arc<ObjectSet>, tree: &[Value]) -> u64 {
    let master = Zap::hold(set, ObjectId::MASTER_NODE)
        .await
        .expect("a master node");
    let sa_master = master.lookup_u64("SA_ATTRS").await.expect("reads");
    let sa = Sa::setup(set, ObjectId::new(sa_master.unwrap_or(0)), &TABLE)
        .await
        .expect("attributes");
    let root = master
        .lookup_u64("ROOT")
        .await
        .expect("reads")
        .expect("a root");
    let normalizes = master
        .lookup_u64("normalization")
        .await
        .expect("reads")
        .unwrap_or(0)
        != 0
        || master
            .lookup_u64("casesensitivity")
            .await
            .expect("reads")
            .unwrap_or(0)
            != 0;
    let mut compared = 0;
    for entry in tree {
        let Some(path) = entry["path"].as_str() else {
            continue;
        };
        let number = entry["ino"].as_u64().expect("an object number");
        // Places of the control directory, such as mounted snapshots, have numbers of their own.
        if number >= 1 << 47 {
            continue;
        }
        let object = set.hold(ObjectId::new(number)).await.expect("exists");
        let kind = entry["type"].as_str().expect("a type");
        // What is below a mounted child is of another dataset: the numbers differ.
        let mut at = root;
        let mut found = !normalizes;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if !found {
                break;
            }
            let directory = Zap::hold(set, ObjectId::new(at))
                .await
                .expect("a directory");
            match directory.lookup_u64(name).await.expect("looks up") {
                Some(value) => at = value & 0xffff_ffff_ffff,
                None => found = false,
            }
        }
        assert!(normalizes || found, "{path} is not there");
        assert!(
            normalizes || at == number,
            "{path} is object {at}, not {number}"
        );
        let all: Vec<_> = (0..6).map(SaAttribute).collect();
        let values = sa.get_many(&object, &all).await.expect("reads");
        let mode = u64::from_str_radix(entry["mode"].as_str().expect("a mode"), 8).expect("octal");
        assert_eq!(word(&values[1]) & 0o7777, mode, "{path}");
        assert_eq!(
            word(&values[2]),
            entry["uid"].as_u64().expect("a uid"),
            "{path}"
        );
        assert_eq!(
            word(&values[3]),
            entry["gid"].as_u64().expect("a gid"),
            "{path}"
        );
        if kind == "dir" {
            let zap = Zap::open(object).await.expect("a directory");
            let count = zap.count().await.expect("counts");
            assert_eq!(count + 2, entry["size"].as_u64().expect("a size"), "{path}");
        } else if kind == "file" {
            let size = entry["size"].as_u64().expect("a size");
            assert_eq!(word(&values[0]), size, "{path}");
            assert_eq!(
                word(&values[4]),
                entry["nlink"].as_u64().expect("links"),
                "{path}"
            );
            if let Some(sum) = entry["sha256"].as_str() {
                assert_eq!(digest(&object, size).await, sum, "{path}");
            }
        }
        compared += 1;
    }
    compared
}

async fn digest(object: &Object, size: u64) -> String {
    let mut hasher = Sha256::new();
    let mut at = 0;
    while at < size {
        let length = (size - at).min(4 << 20);
        for part in object.read(at, length as usize).await.expect("reads") {
            hasher.update(&part);
        }
        at += length;
    }
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The block that a dataset starts with.
async fn dataset(mos: &Arc<ObjectSet>, id: ObjectId) -> Option<BlockPointer> {
    let object = mos.hold(id).await.ok()?;
    let phys = DslDatasetPhys::decode(&object.bonus(), Endian::Little).ok()?;
    (!phys.block.is_hole()).then_some(phys.block)
}

async fn check(name: &str) {
    let Some((_dir, images, manifest)) = unpack(name) else {
        return;
    };
    let (world, pipeline, root) = open(&images).await;
    let options = ObjsetOptions {
        read_only: true,
        ..ObjsetOptions::default()
    };
    let mos = ObjectSet::open(pipeline.clone(), world.clone(), root, options.clone())
        .await
        .expect("the MOS opens");
    let (objects, zaps) = visit(&mos).await;
    assert!(
        objects > 30 && zaps > 10,
        "{objects} objects, {zaps} ZAPs in the MOS"
    );
    let directory = Zap::hold(&mos, ObjectId::POOL_DIRECTORY)
        .await
        .expect("the object directory");
    assert!(
        directory
            .lookup_u64("root_dataset")
            .await
            .expect("reads")
            .is_some()
    );
    let salt = directory
        .lookup("org.illumos:checksum_salt")
        .await
        .expect("reads");
    if let Some(salt) = salt.and_then(|salt| salt.data[..].try_into().ok()) {
        pipeline.set_salt(salt);
    }
    let (mut compared, mut sets, mut rows) = (0, 0, 0);
    for entry in manifest["datasets"].as_array().expect("datasets") {
        let Some(id) = entry["props"]["objsetid"].as_str() else {
            continue;
        };
        let id = ObjectId::new(id.parse().expect("a number"));
        let Some(root) = dataset(&mos, id).await else {
            continue;
        };
        let options = ObjsetOptions {
            dataset: id,
            ..options.clone()
        };
        let set = ObjectSet::open(pipeline.clone(), world.clone(), root, options)
            .await
            .expect("the dataset opens");
        visit(&set).await;
        sets += 1;
        let name = entry["name"].as_str().expect("a name");
        if let Some(tree) = manifest["trees"][name].as_array() {
            compared += compare(&set, tree).await;
        }
        for row in entry["space"].as_array().into_iter().flatten() {
            rows += check_space(&set, row).await;
        }
    }
    let what = format!("{objects} MOS objects, {sets} datasets, {compared} files, {rows} rows");
    assert!(sets > 0 && compared > 0 && rows > 0, "{name}: {what}");
    println!("{name}: {what}");
}

/// A row of userspace, groupspace or projectspace: type, id, used, quota, objects used, quota.
async fn check_space(set: &Arc<ObjectSet>, row: &Value) -> u64 {
    let text = |index: usize| row[index].as_str().unwrap_or_default();
    let id = match text(0) {
        "POSIX User" => ObjectId::USER_USED,
        "POSIX Group" => ObjectId::GROUP_USED,
        "Project" => ObjectId::PROJECT_USED,
        _ => return 0,
    };
    let (Ok(who), Ok(used)) = (text(1).parse::<u64>(), text(2).parse::<u64>()) else {
        return 0;
    };
    let object = set.hold(id).await.expect("an accounting object");
    let zap = Zap::open(object).await.expect("opens");
    let found = zap.lookup_int(who).await.expect("reads").unwrap_or(0);
    assert_eq!(found, used, "space of {row}");
    if let Ok(objects) = text(4).parse::<u64>() {
        let found = zap.lookup_u64(format!("obj-{who:x}")).await.expect("reads");
        assert_eq!(found.unwrap_or(0), objects, "objects of {row}");
    }
    1
}

#[tokio::test]
async fn a_pool_of_many_kinds_of_datasets() {
    check("plain").await;
}

#[tokio::test]
async fn big_directories() {
    check("big_dirs").await;
}

#[tokio::test]
async fn old_versions() {
    check("v15_fs3").await;
    check("v28").await;
    check("nofeat").await;
}

#[tokio::test]
async fn gang_blocks_and_special_vdevs() {
    check("gang").await;
    check("special").await;
}
