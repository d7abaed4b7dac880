//! Goal: a scrub of a read-only pool reads every block that there is, once, finds what is damaged
//! where it is damaged, and nothing else. Method: golden pools with known damage, zdb's count of
//! blocks, damage made here.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::*;
use dataset::{Dataset, DatasetError, DslPool, PropertyValue, SyncTask};
use device::{BoxFuture, World};
use format::{BlockPointer, Bookmark, DslDatasetPhys, Endian, ObjectId, ObjsetId};
use object::{Bpobj, SyncContext, Zap};
use pool::{ImportSpec, Pool, PoolError, ScrubCommand, ScrubNumbers, VdevLayout, VdevStatus};
use serde_json::Value;
use zio::Tx;

async fn import_read_only(world: &World, dir: &Path) -> Arc<Pool> {
    let mut spec = ImportSpec::new(find(world, dir).await, host());
    spec.read_only = true;
    Pool::import(world, spec).await.expect("import")
}

async fn scrub(pool: &Pool) -> ScrubNumbers {
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("start");
    pool.scans().wait_for_scrub(true).await;
    let scan = pool.status().scan.expect("a scrub");
    assert_eq!(scan.state, pool::ScanState::Finished);
    assert!(scan.verify_only);
    let numbers = pool.scans().scrub_numbers().expect("numbers");
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
    assert_eq!(pool.damaged().await, Vec::new(), "{name}");
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
    gang gang_raidz special logs_cache dedup_fast dedup_legacy
    removed removing draid draid_spare raidz_expanded raidz_expanding
    cloned_blocks checkpoint big_dirs nofeat v28 v15_fs3 stale
}

/// Pools with encrypted datasets: without a key, and with logs that were not replayed. Where
/// encryption is not supported at all they are refused by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_pools_are_verified_without_keys() {
    let Some(golden) = golden() else { return };
    for name in ["encrypted", "zil_dirty", "zil_dirty_slog"] {
        let images = Images::new();
        let dir = unpack(&golden, name, images.path());
        let world = World::system(2);
        let mut spec = ImportSpec::new(find(&world, &dir).await, host());
        spec.read_only = true;
        match Pool::import(&world, spec).await {
            Err(PoolError::UnsupportedFeatures { features, .. }) => {
                assert_eq!(features.len(), 1, "{features:?}");
                assert!(features[0].contains("encryption"), "{features:?}");
            }
            Err(error) => panic!("{name}: {error}"),
            Ok(pool) => {
                pool.export(false).await.expect("close");
                check_golden(&golden, name).await;
            }
        }
    }
}

/// Overwrites a block's copies on one image.
fn damage(image: &str, bp: &BlockPointer) {
    const LABELS_BYTES: u64 = 4 << 20;
    let file = std::fs::File::options()
        .write(true)
        .open(image)
        .expect("open");
    for dva in bp.dvas() {
        let at = LABELS_BYTES + dva.offset_bytes();
        file.write_all_at(&[0xa5; 512], at + 512).expect("write");
    }
}

async fn block(dataset: &Dataset, object: ObjectId, block: u64) -> BlockPointer {
    let object = dataset.objset().hold(object).await.expect("hold");
    object.block_pointer(block).await.expect("a pointer")
}

/// Goal: what is lost is told, where it is told, and that only. Method: a mirror; one block is
/// destroyed on both devices, one on one of them; the former is in a snapshot, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_blocks_are_named_and_others_are_counted() {
    let images = Images::new();
    let leaves = images.make(2, 64);
    let paths: Vec<String> = leaves.iter().map(|leaf| leaf.path.clone()).collect();
    let world = World::system(2);
    let layout = normal(VdevLayout::Mirror(leaves));
    let pool = Pool::create(&world, spec("tank", vec![layout]))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 8, 6).await;
    pool.dsl()
        .snapshots()
        .take(&["tank@one".to_owned()], &[])
        .await
        .expect("snapshot");
    let later = write_objects(&dataset, 2, 2).await;
    pool.sync().await.expect("sync");
    let lost_old = block(&dataset, objects[3], 2).await;
    let lost_new = block(&dataset, later[1], 1).await;
    let one_sided = block(&dataset, objects[5], 0).await;
    let head = ObjsetId::new(dataset.object().get());
    drop(dataset);
    let snapshot = pool
        .dsl()
        .directories()
        .lookup("tank@one")
        .await
        .expect("lookup")
        .object;
    pool.export(false).await.expect("export");

    let pool = import_read_only(&world, images.path()).await;
    let numbers = scrub(&pool).await;
    assert_eq!(numbers.errors, 0);
    assert_eq!(damaged_leaves(&pool), Vec::<String>::new());
    same_as_zdb(images.path(), "tank", &pool, numbers).await;
    pool.export(false).await.expect("close");

    for path in &paths {
        damage(path, &lost_old);
        damage(path, &lost_new);
    }
    damage(&paths[1], &one_sided);
    let pool = import_read_only(&world, images.path()).await;
    let again = scrub(&pool).await;
    assert_eq!(again.errors, 2);
    assert_eq!(again.found_blocks, numbers.found_blocks);
    let lost = |objset, object, block| Bookmark {
        objset,
        object,
        level: 0,
        block_id: block,
    };
    let mut expected = vec![
        lost(ObjsetId::new(snapshot.get()), objects[3], 2),
        // The same block, which is still there.
        lost(head, objects[3], 2),
        lost(head, later[1], 1),
    ];
    expected.sort();
    assert_eq!(pool.damaged().await, expected);
    let status = pool.status();
    assert_eq!(status.data_errors, 2);
    assert_eq!(status.scan.expect("a scrub").errors, 2);
    let mirror = &status.root.children[0];
    let errors: Vec<u64> = mirror
        .children
        .iter()
        .map(|leaf| leaf.checksum_errors)
        .collect();
    assert_eq!(errors, [2, 3]);
    // As with OpenZFS, nothing is cleared of a pool that is only read.
    let cleared = pool.clear(None).await;
    assert!(matches!(cleared, Err(PoolError::ReadOnly { .. })));
    assert_eq!(pool.damaged().await, expected);
    scrub(&pool).await;
    assert_eq!(pool.damaged().await, expected);
    pool.export(false).await.expect("close");
}

/// Takes a dataset out of the list of clones of the snapshot that it comes from.
struct Unlist {
    clone: ObjectId,
    dsl: Arc<DslPool>,
}

impl SyncTask for Unlist {
    fn name(&self) -> &'static str {
        "unlist"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let mos = self.dsl.mos();
            let phys = async |id| {
                let object = mos.hold(id).await?;
                let phys = DslDatasetPhys::decode(&object.bonus(), Endian::Little);
                Ok::<_, DatasetError>(phys.expect("a dataset"))
            };
            let origin = phys(self.clone).await?.previous_snapshot;
            let list = Zap::hold(mos, phys(origin).await?.next_clones).await?;
            let name = format!("{:x}", self.clone.get());
            list.remove(&Tx::syncing(ctx.txg), &name).await?;
            Ok(())
        })
    }
}

/// Goal: a clone that is missing in its origin's list of clones is scanned like others. Method: the
/// entry is taken out, as in pools that were upgraded long ago; a block of the clone is destroyed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_that_no_list_has_is_scrubbed() {
    let images = Images::new();
    let leaf = images.make(1, 64).remove(0);
    let path = leaf.path.clone();
    let world = World::system(2);
    let pool = Pool::create(&world, spec("tank", vec![normal(VdevLayout::Leaf(leaf))]))
        .await
        .expect("create");
    let dsl = pool.dsl().clone();
    let taken = dsl.snapshots().take(&["tank@one".to_owned()], &[]).await;
    taken.expect("snapshot");
    for name in ["tank/a", "tank/b"] {
        let made = dsl.datasets().clone_snapshot("tank@one", name, &[]).await;
        made.expect("clone");
    }
    let dataset = dsl.open_dataset("tank/b").await.expect("open");
    let object = write_objects(&dataset, 1, 2).await[0];
    pool.sync().await.expect("sync");
    let lost = block(&dataset, object, 1).await;
    let unlist = Unlist {
        clone: dataset.object(),
        dsl: dsl.clone(),
    };
    drop(dataset);
    dsl.tasks().run(Arc::new(unlist)).await.expect("unlisted");
    drop(dsl);
    pool.export(false).await.expect("export");

    damage(&path, &lost);
    let pool = import(&world, images.path()).await;
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("start");
    pool.scans().wait_for_scrub(false).await;
    assert_eq!(pool.status().scan.expect("a scrub").errors, 1);
    // Nor does a user miss it.
    let clones = pool.dsl().properties().get("tank@one", "clones").await;
    let clones = clones.expect("a property").value;
    assert_eq!(clones, PropertyValue::Text("tank/a,tank/b".to_owned()));
    // Nor who destroys the snapshot.
    let clones = pool.dsl().directories().clones("tank@one").await;
    assert_eq!(clones.expect("names"), ["tank/a", "tank/b"]);
    pool.export(false).await.expect("export");
}

/// Goal: pools that were written here are found whole, clones, destroyed datasets and parity
/// included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_ours_is_clean() {
    let images = Images::new();
    let world = World::system(2);
    let layout = normal(VdevLayout::Raidz {
        parity: 2,
        leaves: images.make(5, 64),
    });
    let pool = Pool::create(&world, spec("tank", vec![layout]))
        .await
        .expect("create");
    let dsl = pool.dsl();
    let dataset = dsl.open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 10, 9).await;
    dsl.snapshots()
        .take(&["tank@one".to_owned()], &[])
        .await
        .expect("snapshot");
    free_objects(&dataset, &objects[..5]).await;
    dsl.datasets()
        .clone_snapshot("tank@one", "tank/clone", &[])
        .await
        .expect("clone");
    let clone = dsl.open_dataset("tank/clone").await.expect("open");
    free_objects(&clone, &objects[3..7]).await;
    write_objects(&clone, 3, 4).await;
    drop((dataset, clone));
    pool.export(false).await.expect("export");
    let pool = import_read_only(&world, images.path()).await;
    let numbers = scrub(&pool).await;
    assert_eq!(numbers.errors, 0);
    assert_eq!(damaged_leaves(&pool), Vec::<String>::new());
    same_as_zdb(images.path(), "tank", &pool, numbers).await;
    pool.export(false).await.expect("close");
}

/// Goal: a scrub obeys, and refuses what makes no sense. Method: commands before its tasks get to
/// run.
#[tokio::test]
async fn a_scrub_is_paused_continued_and_stopped() {
    let images = Images::new();
    let world = World::system(2);
    let layout = normal(VdevLayout::Mirror(images.make(2, 64)));
    let pool = Pool::create(&world, spec("tank", vec![layout]))
        .await
        .expect("create");
    pool.export(false).await.expect("export");
    let pool = import_read_only(&world, images.path()).await;
    for command in [ScrubCommand::Pause, ScrubCommand::Stop] {
        let refused = pool.scans().scrub(command).await;
        assert!(matches!(refused, Err(PoolError::NoScrub { .. })));
    }
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("start");
    let refused = pool.scans().scrub(ScrubCommand::Start).await;
    assert!(matches!(refused, Err(PoolError::ScrubActive { .. })));
    pool.scans()
        .scrub(ScrubCommand::Pause)
        .await
        .expect("pause");
    let refused = pool.scans().scrub(ScrubCommand::Pause).await;
    assert!(matches!(refused, Err(PoolError::ScrubPaused { .. })));
    // Pausing ends the wait of those who do not wait for the end.
    pool.scans().wait_for_scrub(false).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let scan = pool.status().scan.expect("a scrub");
    assert_eq!(scan.state, pool::ScanState::Scanning);
    assert_ne!(scan.pause_time_s, 0);
    assert_eq!(scan.issued_bytes, 0);

    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("continue");
    pool.scans().wait_for_scrub(false).await;
    let scan = pool.status().scan.expect("a scrub");
    assert_eq!((scan.state, scan.errors), (pool::ScanState::Finished, 0));
    assert!(scan.issued_bytes > 0);

    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("start");
    pool.scans()
        .scrub(ScrubCommand::Pause)
        .await
        .expect("pause");
    pool.scans().scrub(ScrubCommand::Stop).await.expect("stop");
    assert_eq!(
        pool.status().scan.expect("a scrub").state,
        pool::ScanState::Canceled
    );
    // Closing the pool ends it.
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("start");
    pool.export(false).await.expect("close");
    let refused = pool.scans().scrub(ScrubCommand::Start).await;
    assert!(matches!(refused, Err(PoolError::Closed { .. })));
}
