//! Pools made by OpenZFS, opened read-only: every dataset, snapshot and property must be what
//! OpenZFS itself said of them, as recorded in the manifests.
//!
//! The pools are in `MILLPOND_GOLDEN`, or in `../shared/golden` beside the workspace. Without them
//! the tests pass with a note, except in CI.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use codec::crypt::{WrappingKey, passphrase_key};
use dataset::props::{find, show_value};
use dataset::{
    DatasetError, DslEnvironment, DslPool, KeyFormat, KeyInfo, ListOptions, NoHooks,
    PropertySource, PropertyValue,
};
use device::World;
use format::{Guid, NvList, NvValue, Txg, Uberblock, names};
use oracles::{golden, unpack};
use serde_json::Value;
use vdev::IgnoreErrors;
use vdev::{OpenOptions, VdevTree, read_labels};
use zio::alloc::Allocator;
use zio::{Cache, Pipeline, PipelineOptions, TxgLimits, TxgManager};

/// Opens the datasets of the pool whose images are in `images`, read-only.
async fn open(images: &Path, pool_name: &str) -> Arc<DslPool> {
    let world = World::system(2);
    let mut tops: BTreeMap<u64, (u64, NvList)> = BTreeMap::new();
    let mut paths = BTreeMap::new();
    let (mut pool_guid, mut count) = (0, 0);
    let mut version = 0;
    let mut best: Option<Uberblock> = None;
    for entry in std::fs::read_dir(images).expect("images") {
        let path = entry.expect("an entry").path();
        let path = path.to_string_lossy().into_owned();
        let device = world.opener.open(&path, true).await.expect("opens");
        let labels = read_labels(&*device).await.expect("readable");
        let Some(config) = labels.config(Txg::new(u64::MAX)) else {
            continue;
        };
        let Some(tree) = config.list("vdev_tree") else {
            continue;
        };
        let txg = config.u64("txg").unwrap_or(0);
        paths.insert(Guid::new(config.u64("guid").expect("a guid")), path);
        pool_guid = config.u64("pool_guid").expect("a pool");
        version = config.u64("version").expect("a version");
        count = count.max(config.u64("vdev_children").expect("children"));
        let id = tree.u64("id").expect("an id");
        if tops.get(&id).is_none_or(|(other, _)| *other < txg) {
            tops.insert(id, (txg, tree.clone()));
        }
        let newest = labels.best_uberblock(Txg::new(u64::MAX));
        if let Some(newest) = newest
            && best.is_none_or(|best| best.recency() < newest.recency())
        {
            best = Some(newest);
        }
    }
    let children = (0..count)
        .map(|id| {
            tops.remove(&id).map_or_else(
                || {
                    let mut hole = NvList::new();
                    hole.set("type", "hole");
                    hole.set("id", id);
                    hole.set("guid", 0u64);
                    hole
                },
                |(_, tree)| tree,
            )
        })
        .collect();
    let mut root = NvList::new();
    root.set("type", "root");
    root.set("id", 0u64);
    root.set("guid", pool_guid);
    root.set("children", NvValue::ListArray(children));
    let options = OpenOptions {
        read_only: true,
        paths,
        pool_guid: Some(Guid::new(pool_guid)),
        ..OpenOptions::default()
    };
    let tree = VdevTree::open(world.clone(), &root, options)
        .await
        .expect("the tree opens");
    let allocator = Arc::new(Allocator::new());
    for top in tree.tops() {
        if let Some(spec) = vdev::TopSpec::of(&top) {
            allocator.add_top(spec);
        }
    }
    let pipeline = Pipeline::new(
        world.clone(),
        tree,
        allocator,
        Arc::new(Cache::new(64 << 20)),
        PipelineOptions {
            read_only: true,
            ..PipelineOptions::default()
        },
        Arc::new(IgnoreErrors),
    );
    let uberblock = best.expect("an uberblock");
    let env = DslEnvironment {
        pool_name: pool_name.to_owned(),
        pipeline,
        world: world.clone(),
        txgs: TxgManager::new(world, uberblock.txg, TxgLimits::default()),
        hooks: Arc::new(NoHooks),
        read_only: true,
        spa_version: version,
    };
    let pipeline = env.pipeline.clone();
    let dsl = DslPool::open(env, uberblock.root)
        .await
        .expect("the datasets open");
    // Datasets with salted checksums need the pool's salt, which is in the MOS.
    let salt = dsl
        .directory()
        .lookup(names::pool::CHECKSUM_SALT)
        .await
        .expect("readable");
    if let Some(salt) = salt {
        pipeline.set_salt(salt.data[..].try_into().expect("32 bytes"));
    }
    dsl
}

/// Properties that are not the DSL's to know here: what depends on the pool's space maps.
const NOT_COMPARED: &[&str] = &["available"];

async fn compare(name: &str) {
    let Some(golden) = golden() else { return };
    let manifest = oracles::manifest(&golden, name);
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let pool_name = manifest["pool"].as_str().expect("a name");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let images = unpack(&golden, name, dir.path());
    let dsl = open(&images, pool_name).await;
    let options = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let list = dsl
        .directories()
        .list(pool_name, &options)
        .await
        .expect("a list");
    let mut names: Vec<&str> = list.iter().map(|info| info.name.as_str()).collect();
    names.sort_unstable();
    let wanted: Vec<&Value> = manifest["datasets"]
        .as_array()
        .expect("datasets")
        .iter()
        .filter(|wanted| wanted["type"] != "bookmark")
        .collect();
    let mut wanted_names: Vec<&str> = wanted
        .iter()
        .map(|wanted| wanted["name"].as_str().expect("a name"))
        .collect();
    wanted_names.sort_unstable();
    assert_eq!(names, wanted_names, "datasets of {name}");

    let mut wrong = Vec::new();
    let mut compared = 0;
    for wanted in wanted {
        let dataset = wanted["name"].as_str().expect("a name");
        let settings = match dsl.properties().all(dataset).await {
            Ok(settings) => settings,
            Err(error) => panic!("{dataset}: {error}"),
        };
        let found: BTreeMap<&str, _> = settings
            .iter()
            .map(|setting| (setting.name.as_str(), setting))
            .collect();
        assert_eq!(
            found["type"].value.text(),
            wanted["type"].as_str(),
            "type of {dataset}"
        );
        for (property, value) in wanted["props"].as_object().expect("properties") {
            if NOT_COMPARED.contains(&property.as_str()) {
                continue;
            }
            let value = value.as_str().expect("text");
            let shown = found
                .get(property.as_str())
                .map(|setting| show_value(find(property), &setting.value, true));
            compared += 1;
            if shown.as_deref() != Some(value) {
                wrong.push(format!("{dataset} {property}: {shown:?}, not {value}"));
            }
        }
        for (property, value) in wanted["local"].as_object().expect("settings") {
            let value = value.as_str().expect("text");
            let setting = found.get(property.as_str());
            let shown = setting.map(|setting| show_value(find(property), &setting.value, true));
            let is_local = setting.is_some_and(|setting| {
                matches!(
                    setting.source,
                    PropertySource::Local | PropertySource::Received
                )
            });
            compared += 1;
            if shown.as_deref() != Some(value) || !is_local {
                wrong.push(format!(
                    "{dataset} {property}: local {value} is {:?}",
                    setting.map(|setting| (&setting.value, &setting.source))
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{name}: {} of {compared} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(compared > 20, "{name}: only {compared} values compared");
}

macro_rules! golden {
    ($($name:ident)*) => {$(
        #[tokio::test]
        async fn $name() {
            compare(stringify!($name)).await;
        }
    )*};
}

golden! {
    plain
    mirror3
    nofeat
    raidz1_3
    raidz2_multi
    stripe_of_mirrors
    big_dirs
    gang
    logs_cache
    v28
    v15_fs3
    cloned_blocks
    dedup_fast
    checkpoint
    encrypted
}

/// The wrapping key that a manifest's entry of `keys` stands for.
fn wrapping_key(info: &KeyInfo, key: &Value) -> WrappingKey {
    let text = key["key"].as_str().expect("a key");
    match key["format"].as_str().expect("a format") {
        "passphrase" => {
            assert_eq!(info.format, KeyFormat::Passphrase);
            passphrase_key(text.as_bytes(), info.salt, info.iterations as u32)
        }
        _ => {
            assert_ne!(info.format, KeyFormat::Passphrase);
            let mut bytes = [0; 32];
            for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
                let digits = std::str::from_utf8(digits).expect("text");
                *byte = u8::from_str_radix(digits, 16).expect("hex");
            }
            WrappingKey::new(bytes)
        }
    }
}

/// Keys of every suite and format open their datasets, and only these; when they are unloaded
/// again, nothing opens.
#[tokio::test]
async fn keys_open_what_they_belong_to() {
    let Some(golden) = golden() else { return };
    let manifest = oracles::manifest(&golden, "encrypted");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let images = unpack(&golden, "encrypted", dir.path());
    let dsl = open(&images, "encrypted").await;
    let status = async |name: &str| dsl.properties().get(name, "keystatus").await.unwrap().value;
    let keys = manifest["keys"].as_array().expect("keys");
    let names: Vec<&str> = manifest["datasets"]
        .as_array()
        .expect("datasets")
        .iter()
        .filter(|dataset| dataset["props"]["encryption"] != "off")
        .filter_map(|dataset| dataset["name"].as_str())
        .collect();
    for name in &names {
        let refused = dsl.open_dataset(name).await.map(|_| ());
        assert!(
            matches!(refused, Err(DatasetError::KeyNotLoaded { .. })),
            "{name}: {refused:?}"
        );
        assert_eq!(status(name).await, PropertyValue::Number(1), "{name}");
    }
    let wrong = WrappingKey::new([1; 32]);
    for key in keys {
        let name = key["dataset"].as_str().expect("a dataset");
        let info = dsl.keys().info(name).await.unwrap().expect("encrypted");
        assert!(info.is_root && !info.is_loaded, "{info:?}");
        let right = wrapping_key(&info, key);
        let refused = dsl.keys().load(name, wrong.clone(), false).await;
        assert!(matches!(refused, Err(DatasetError::WrongKey { .. })));
        dsl.keys()
            .load(name, right.clone(), true)
            .await
            .expect(name);
        assert_eq!(status(name).await, PropertyValue::Number(1));
        dsl.keys()
            .load(name, right.clone(), false)
            .await
            .expect(name);
        let again = dsl.keys().load(name, right, false).await;
        assert!(matches!(again, Err(DatasetError::KeyLoaded { .. })));
    }
    // A child is no encryption root.
    let part = dsl.keys();
    let child = part.load("encrypted/enc/child", wrong.clone(), false);
    assert!(matches!(child.await, Err(DatasetError::WrongKind { .. })));
    let mut objects = 0;
    for name in &names {
        assert_eq!(status(name).await, PropertyValue::Number(2), "{name}");
        let dataset = dsl.open_dataset(name).await.expect(name);
        let objset = dataset.objset();
        let mut at = None;
        while let Some(next) = objset.next_object(at).await.expect(name) {
            let object = objset.hold(next).await.expect(name);
            let info = object.info();
            let blocks = info.max_block_id.min(64) as usize + 1;
            let length = blocks * info.data_block_bytes as usize;
            object.read(0, length).await.expect(name);
            object.spill().await.expect(name);
            objects += 1;
            at = Some(next);
        }
        let busy = match dsl.keys().info(name).await.unwrap() {
            Some(info) => dsl.keys().unload(&info.root).await,
            None => panic!("{name} is encrypted"),
        };
        assert!(matches!(busy, Err(DatasetError::Busy { .. })), "{busy:?}");
    }
    assert!(objects > 1000, "{objects} objects");
    for key in keys {
        let name = key["dataset"].as_str().expect("a dataset");
        dsl.keys().unload(name).await.expect(name);
        let again = dsl.keys().unload(name).await;
        assert!(matches!(again, Err(DatasetError::KeyNotLoaded { .. })));
    }
    for name in &names {
        assert!(dsl.open_dataset(name).await.is_err(), "{name}");
    }
}
