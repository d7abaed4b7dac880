//! Goal: pools made by OpenZFS open read-only and say what OpenZFS says of them.
//! Method: golden pools and their manifests (shared/golden/README.md).

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::*;
use dataset::ListOptions;
use device::World;
use pool::{FoundState, ImportSpec, Pool, PoolHealth};
use serde_json::Value;

fn number(value: &Value, name: &str) -> Option<u64> {
    value["props"][name].as_str()?.parse().ok()
}

async fn check(golden: &Path, name: &str) {
    let manifest: Value = serde_json::from_slice(
        &std::fs::read(golden.join(format!("{name}.json"))).expect("manifest"),
    )
    .expect("JSON");
    let images = Images::new();
    let dir = unpack(golden, name, images.path());
    let world = World::system(2);
    let found = find(&world, &dir).await;
    // Those with logs to be replayed were cut off.
    let cut = !manifest["trees_without_replay"].is_null();
    let state = if cut {
        FoundState::Active
    } else {
        FoundState::Exported
    };
    assert_eq!(found.state, state);
    let vdevs = manifest["vdevs"].as_array().expect("vdevs");
    let health = if manifest["pool_props"]["health"] == "DEGRADED"
        || vdevs.iter().any(|vdev| vdev["withheld"] == true)
    {
        PoolHealth::Degraded
    } else {
        PoolHealth::Online
    };
    assert_eq!(
        Some(found.guid.get().to_string().as_str()),
        manifest["pool_props"]["guid"].as_str()
    );
    let pool_name = manifest["pool"].as_str().expect("pool").to_owned();
    assert_eq!(found.name, pool_name);
    let mut spec = ImportSpec::new(found, host());
    spec.read_only = true;
    spec.force = cut;
    let pool = Pool::import(&world, spec).await.expect("import");
    assert_eq!(pool.health(), health);

    let mut features = BTreeMap::new();
    for feature in pool.properties().features() {
        features.insert(feature.name, feature.state.word().to_owned());
    }
    for (feature, state) in manifest["features"].as_object().expect("features") {
        assert_eq!(
            Some(features[feature].as_str()),
            state.as_str(),
            "{name}: {feature}"
        );
    }
    assert_eq!(
        Some(pool.properties().get("size").expect("size").value.as_str()),
        manifest["pool_props"]["size"].as_str()
    );

    let listed = pool
        .dsl()
        .directories()
        .list(
            &pool_name,
            &ListOptions {
                snapshots: true,
                ..ListOptions::default()
            },
        )
        .await
        .expect("list");
    let listed: BTreeMap<&str, _> = listed
        .iter()
        .map(|info| (info.name.as_str(), info))
        .collect();
    let mut expected = 0;
    for dataset in manifest["datasets"].as_array().expect("datasets") {
        if dataset["type"] == "bookmark" {
            continue;
        }
        expected += 1;
        let full = dataset["name"].as_str().expect("name");
        let info = listed
            .get(full)
            .unwrap_or_else(|| panic!("{full} is missing"));
        assert_eq!(Some(info.guid.get()), number(dataset, "guid"), "{full}");
        assert_eq!(
            Some(info.creation_seconds),
            number(dataset, "creation"),
            "{full}"
        );
        assert_eq!(
            Some(info.createtxg.get()),
            number(dataset, "createtxg"),
            "{full}"
        );
        // The manifest's numbers are of after the replay.
        if cut {
            continue;
        }
        assert_eq!(
            Some(info.used_bytes),
            number(dataset, "used"),
            "{full} used"
        );
        assert_eq!(
            Some(info.referenced_bytes),
            number(dataset, "referenced"),
            "{full} referenced"
        );
    }
    assert_eq!(listed.len(), expected, "{name}: datasets");

    let history = pool.history().await.expect("history");
    let version = manifest["pool_props"]["version"].as_str().unwrap_or("5000");
    let created = format!("pool version {version}");
    assert!(history.iter().any(|record| matches!(
        &record.what,
        pool::HistoryWhat::Internal { event, text, .. }
            if event == "create" && text.contains(&created)
    )));
    let commands = history
        .into_iter()
        .filter(|record| matches!(record.what, pool::HistoryWhat::Command(_)))
        .count();
    let lines = manifest["history"].as_str().map_or(0, |text| {
        text.lines()
            .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
            .count()
    });
    assert!(commands == lines || cut, "{name}: history");
    pool.export(false).await.expect("close");
}

macro_rules! golden_pools {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if let Some(golden) = golden() {
                check(&golden, stringify!($name)).await;
            }
        }
    )*};
}

golden_pools!(
    plain mirror3 stripe_of_mirrors raidz1_3 raidz1_5 raidz2_6 raidz2_multi raidz3_8 big_dirs nofeat
    v28 v15_fs3 checkpoint cloned_blocks dedup_fast dedup_legacy raidz_expanded raidz_expanding
    removed removing draid special logs_cache damaged damaged_raidz gang gang_raidz encrypted
);

/// A pool that was lost in mid-write opens read-only at its last transaction group, and says whose
/// logs wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_that_wait_for_replay_are_named() {
    let Some(golden) = golden() else { return };
    for (name, expected) in [
        ("zil_dirty", true),
        ("zil_dirty_slog", true),
        ("logs_cache", false),
    ] {
        let images = Images::new();
        let dir = unpack(&golden, name, images.path());
        let world = World::system(2);
        let mut spec = ImportSpec::new(find(&world, &dir).await, host());
        spec.read_only = true;
        spec.force = true;
        let pool = Pool::import(&world, spec).await.expect("import");
        let waiting = pool.dsl().logs().awaiting_replay().await.expect("logs");
        let wanted: Vec<String> = ["always", "ci", "enc", "rec1m", "std", "thru", "vol", "xdir"]
            .iter()
            .filter(|_| expected)
            .map(|dataset| format!("{name}/{dataset}"))
            .collect();
        let mut waiting = waiting;
        waiting.sort();
        assert_eq!(waiting, wanted, "{name}");
        pool.export(false).await.expect("close");
    }
}
