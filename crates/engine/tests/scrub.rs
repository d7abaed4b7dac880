//! Goal: a scrub of a read-only pool reads every block that there is, once, finds what is damaged where it is damaged,
//! and nothing else. Method: golden pools with known damage, zdb's count of blocks, damage made here.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::*;
use device::World;
use engine::{ImportSpec, Pool, ScrubCommand, ScrubNumbers, VdevStatus};
use format::ObjectId;
use object::Bpobj;
use serde_json::Value;

async fn import_read_only(world: &World, dir: &Path) -> Arc<Pool> {
    let mut spec = ImportSpec::new(find(world, dir).await, host());
    spec.read_only = true;
    Pool::import(world, spec).await.expect("import")
}

async fn scrub(pool: &Pool) -> ScrubNumbers {
    pool.scrub(ScrubCommand::Start).await.expect("start");
    pool.wait_for_scrub(true).await;
    let scan = pool.status().scan.expect("a scrub");
    assert_eq!(scan.state, "finished");
    assert!(scan.verify_only);
    let numbers = pool.scrub_numbers().expect("numbers");
    assert_eq!(
        numbers.verified_blocks + numbers.embedded_blocks,
        numbers.found_blocks
    );
    assert_eq!(numbers.verified_bytes, numbers.found_bytes);
    numbers
}

/// Leaves with checksum errors, as the last component of their paths.
fn bad_leaves(vdev: &VdevStatus, out: &mut Vec<String>) {
    assert_eq!(vdev.read_errors, 0, "{}", vdev.name);
    if vdev.checksum_errors > 0 {
        let path = vdev.path.as_deref().unwrap_or(&vdev.name);
        out.push(path.rsplit('/').next().unwrap_or(path).to_owned());
    }
    for child in &vdev.children {
        bad_leaves(child, out);
    }
}

fn damaged_leaves(pool: &Pool) -> Vec<String> {
    let mut out = Vec::new();
    bad_leaves(&pool.status().root, &mut out);
    out
}

/// Pointers and bytes that wait to be freed: zdb counts them, a scrub does not look at them.
async fn waiting(pool: &Pool) -> (u64, u64) {
    let mut total = (0, 0);
    for name in ["sync_bplist", "free_bpobj"] {
        let Some(value) = pool.dsl().directory().lookup(name).await.expect("lookup") else {
            continue;
        };
        let id = ObjectId::new(value.as_u64().expect("an object"));
        let list = Bpobj::open(pool.dsl().mos(), id).await.expect("a list");
        list.for_each(&mut |bp, _freed| {
            total.0 += 1;
            total.1 += bp.asize_bytes();
            Ok(())
        })
        .await
        .expect("its pointers");
    }
    total
}

/// The number after `label` in what zdb printed.
fn figure(text: &str, label: &str) -> u64 {
    text.lines()
        .find_map(|line| line.trim().strip_prefix(label))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or_else(|| panic!("no {label} in\n{text}"))
}

async fn same_as_zdb(dir: &Path, name: &str, pool: &Pool, numbers: ScrubNumbers) {
    let text = zdb(dir, name, &["-bcc"]);
    let (blocks, bytes) = waiting(pool).await;
    assert_eq!(
        numbers.found_blocks + blocks,
        figure(&text, "bp count:"),
        "{name}: pointers\n{text}"
    );
    assert_eq!(
        numbers.found_bytes + bytes,
        figure(&text, "bp allocated:"),
        "{name}: bytes\n{text}"
    );
}

async fn check_golden(golden: &Path, name: &str) {
    let manifest: Value = serde_json::from_slice(
        &std::fs::read(golden.join(format!("{name}.json"))).expect("manifest"),
    )
    .expect("JSON");
    let images = Images::new();
    let dir = unpack(golden, name, images.path());
    let pool = import_read_only(&World::system(2), &dir).await;
    let numbers = scrub(&pool).await;
    assert_eq!(numbers.errors, 0, "{name}");
    assert_eq!(pool.damaged(), Vec::new(), "{name}");
    assert_eq!(pool.status().data_errors, 0, "{name}");
    let damaged: Vec<String> = manifest["damage"]["image"]
        .as_str()
        .map(str::to_owned)
        .into_iter()
        .collect();
    assert_eq!(damaged_leaves(&pool), damaged, "{name}");
    let snapshots_and_heads = manifest["datasets"]
        .as_array()
        .expect("datasets")
        .iter()
        .filter(|dataset| dataset["type"] != "bookmark")
        .count() as u64;
    assert!(numbers.datasets >= snapshots_and_heads, "{name}");
    let pool_name = manifest["pool"].as_str().expect("pool");
    same_as_zdb(&dir, pool_name, &pool, numbers).await;
    pool.export(false).await.expect("close");
}

macro_rules! golden_pools {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if let Some(golden) = golden() {
                check_golden(&golden, stringify!($name)).await;
            }
        }
    )*};
}

golden_pools! {
    plain mirror3 stripe_of_mirrors raidz1_3 raidz1_5 raidz2_6 raidz2_multi raidz3_8
    damaged damaged_raidz degraded
}
