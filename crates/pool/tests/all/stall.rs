//! Goal: freeing what was destroyed stops at what a device does not give, and at nothing else: the
//! pool works on, other destroys too, and all is freed, once, when the device gives it again.
//! Method: a simulated disk with sectors that cannot be read, below a destroyed dataset; zdb says
//! in the end that nothing leaked and nothing was freed twice.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::sim::{SimDisk, SimWorld};
use device::{BoxFuture, Tasks};
use format::{BlockPointer, Bookmark, ObjectId, ObjectType, ObjsetId, Txg};
use object::{Met, Traverse, Visitor, Zap, traverse};
use parking_lot::Mutex;
use pool::{ImportSpec, LeafSpec, Pool, ScanSpec, VdevLayout};
use tokio::time::timeout;
use zio::{Pipeline, ReadContext, ZioError};

use crate::common::*;

const LABELS_BYTES: u64 = 4 << 20;

async fn import(sim: &SimWorld) -> Arc<Pool> {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let found = pool::scan(&sim.world(), &spec)
        .await
        .expect("scan")
        .remove(0);
    let spec = ImportSpec::new(found, host());
    Pool::import(&sim.world(), spec).await.expect("import")
}

/// Collects the blocks of an object set.
struct Blocks {
    pipeline: Arc<Pipeline>,
    found: Mutex<Vec<(Bookmark, BlockPointer)>>,
}

impl Visitor for Blocks {
    fn meet(&self, met: &Met<'_>) -> bool {
        self.found.lock().push((met.bookmark, *met.pointer));
        true
    }

    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        _bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        Box::pin(async move { self.pipeline.read(&pointer, &ReadContext::default()).await })
    }
}

async fn blocks(sim: &SimWorld, pool: &Pool, root: BlockPointer) -> Vec<(Bookmark, BlockPointer)> {
    let visitor = Arc::new(Blocks {
        pipeline: pool.pipeline().clone(),
        found: Mutex::default(),
    });
    let what = Traverse {
        root,
        objset: ObjsetId::new(1),
        after: Txg::ZERO,
        from: None,
    };
    traverse(&what, &Tasks::new(&sim.world(), |_| ()), &visitor).await;
    std::mem::take(&mut *visitor.found.lock())
}

fn make_unreadable(disk: &SimDisk, pointer: &BlockPointer) {
    for dva in pointer.dvas() {
        disk.make_unreadable(LABELS_BYTES + dva.offset_bytes(), dva.asize_bytes());
    }
}

async fn sync_often(pool: &Pool) {
    for _ in 0..6 {
        let synced = timeout(Duration::from_secs(600), pool.sync()).await;
        synced.expect("the pool does not hang").expect("sync");
    }
    assert!(pool.suspended().is_none());
}

async fn destroy(pool: &Pool, name: &str) {
    let destroyer = pool.dsl().destroyer();
    let destroyed = timeout(Duration::from_secs(600), destroyer.destroy(name)).await;
    destroyed
        .expect("the pool does not hang")
        .expect("destroyed");
}

fn allocated_bytes(pool: &Pool) -> u64 {
    pool.pipeline().allocator().totals().allocated_bytes
}

/// A pool on one disk, with two datasets.
async fn make(seed: u64) -> (SimWorld, SimDisk) {
    let sim = SimWorld::new(seed);
    let disk = sim.add_disk("disk0", 128 << 20);
    let leaf = VdevLayout::Leaf(LeafSpec {
        path: "disk0".into(),
        is_file: false,
    });
    let spec = spec("tank", vec![normal(leaf)]);
    let pool = Pool::create(&sim.world(), spec).await.expect("create");
    for name in ["tank/bad", "tank/good"] {
        let init = Arc::new(BareFilesystem);
        let datasets = pool.dsl().datasets();
        datasets.create(name, &[], init).await.expect("created");
        let dataset = pool.dsl().open_dataset(name).await.expect("open");
        write_objects(&dataset, 45, 4).await;
    }
    pool.export(false).await.expect("export");
    (sim, disk)
}

async fn freed_in_the_end(sim: &SimWorld, pool: Arc<Pool>) {
    sync_often(&pool).await;
    let destroyer = pool.dsl().destroyer();
    assert_eq!(
        (destroyer.freeing_bytes(), destroyer.leaked_bytes()),
        (0, 0)
    );
    pool.export(false).await.expect("export");
    let images = Images::new();
    let disk = sim.disk("disk0").expect("the disk");
    let saved = disk.save_image(images.path().join("disk0.img"));
    saved.expect("save");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(start_paused = true)]
async fn a_destroyed_tree_waits_for_what_cannot_be_read() {
    for (seed, is_bad) in [
        // A block of pointers of some file; of the first one; one of dnodes; the first of these.
        (
            1,
            (|at, block| at.object.get() == 41 && block.level() == 1)
                as fn(&Bookmark, &BlockPointer) -> bool,
        ),
        (2, |at, block| at.object.get() == 2 && block.level() == 1),
        (3, |at, block| {
            block.object_type() == ObjectType::DNODE && block.level() == 0 && at.block_id == 1
        }),
        (4, |at, block| {
            block.object_type() == ObjectType::DNODE && block.level() == 0 && at.block_id == 0
        }),
    ] {
        let (sim, disk) = make(seed).await;
        let pool = import(&sim).await;
        let root = {
            let dataset = pool.dsl().open_dataset("tank/bad").await.expect("open");
            dataset.objset().root()
        };
        let bad: Vec<_> = blocks(&sim, &pool, root)
            .await
            .into_iter()
            .filter(|(at, block)| !block.is_hole() && is_bad(at, block))
            .collect();
        assert!(!bad.is_empty(), "case {seed}");
        pool.export(false).await.expect("export");
        bad.iter()
            .for_each(|(_, block)| make_unreadable(&disk, block));

        let pool = import(&sim).await;
        let before = allocated_bytes(&pool);
        let destroyer = pool.dsl().destroyer();
        destroy(&pool, "tank/bad").await;
        sync_often(&pool).await;
        let left = destroyer.freeing_bytes();
        assert!(left > 0, "case {seed}");
        assert!(!destroyer.has_work(), "case {seed}");
        // What is destroyed later does not wait for it.
        destroy(&pool, "tank/good").await;
        sync_often(&pool).await;
        assert_eq!(destroyer.freeing_bytes(), left, "case {seed}");
        assert!(allocated_bytes(&pool) < before - (8 << 20), "case {seed}");
        assert!(!destroyer.has_work(), "case {seed}");
        // Nor does an import.
        pool.export(false).await.expect("export");
        let pool = import(&sim).await;
        sync_often(&pool).await;
        assert_eq!(pool.dsl().destroyer().freeing_bytes(), left, "case {seed}");
        disk.make_all_readable();
        assert!(!pool.dsl().destroyer().has_work(), "case {seed}");
        pool.clear(None).await.expect("clear");
        freed_in_the_end(&sim, pool).await;
    }
}

/// Goal: what is below a block that all devices give wrong is lost, and property `leaked` says how
/// much, as `freeing` does not any more; also after an import.
#[tokio::test(start_paused = true)]
async fn what_is_below_a_damaged_block_is_told_as_leaked() {
    let (sim, disk) = make(6).await;
    let pool = import(&sim).await;
    let root = {
        let dataset = pool.dsl().open_dataset("tank/bad").await.expect("open");
        dataset.objset().root()
    };
    let all = blocks(&sim, &pool, root).await;
    pool.export(false).await.expect("export");
    let pointers = all
        .iter()
        .filter(|(at, block)| !block.is_hole() && block.level() == 1 && at.object.get() == 41);
    for dva in pointers.flat_map(|(_, block)| block.dvas()) {
        disk.corrupt(LABELS_BYTES + dva.offset_bytes(), 512);
    }

    let pool = import(&sim).await;
    assert_eq!(pool.numbers().leaked_bytes, 0);
    destroy(&pool, "tank/bad").await;
    sync_often(&pool).await;
    let leaked = pool.numbers().leaked_bytes;
    assert!(leaked > 0);
    assert_eq!(pool.numbers().freeing_bytes, 0);
    pool.export(false).await.expect("export");
    let pool = import(&sim).await;
    assert_eq!(pool.numbers().leaked_bytes, leaked);
    let told = pool.properties().get("leaked").expect("a property");
    assert_eq!(told.number, Some(leaked));
    pool.export(false).await.expect("export");
}

#[tokio::test(start_paused = true)]
async fn the_list_of_freed_blocks_waits_for_what_cannot_be_read() {
    let (sim, disk) = make(5).await;
    let pool = import(&sim).await;
    let dsl = pool.dsl().clone();
    dsl.snapshots()
        .take(&["tank/bad@1".into()], &[])
        .await
        .expect("@1");
    {
        let dataset = dsl.open_dataset("tank/bad").await.expect("open");
        let more: Vec<_> = (2..40).map(ObjectId::new).collect();
        free_objects(&dataset, &more).await;
    }
    pool.sync().await.expect("sync");
    dsl.destroyer().put_off(true);
    dsl.destroyer()
        .destroy_snapshots(&["tank/bad@1".into()], false)
        .await
        .expect("destroyed");
    pool.sync().await.expect("sync");
    let directory = Zap::hold(dsl.mos(), ObjectId::POOL_DIRECTORY)
        .await
        .expect("it");
    let list = directory
        .lookup_u64("free_bpobj")
        .await
        .expect("read")
        .expect("a list");
    let bad: Vec<_> = blocks(&sim, &pool, dsl.root_bp())
        .await
        .into_iter()
        .filter(|(at, block)| at.object.get() == list && at.level == 0 && !block.is_hole())
        .collect();
    assert!(!bad.is_empty());
    pool.export(false).await.expect("export");
    bad.iter()
        .for_each(|(_, block)| make_unreadable(&disk, block));

    let pool = import(&sim).await;
    let left = pool.dsl().destroyer().freeing_bytes();
    sync_often(&pool).await;
    let destroyer = pool.dsl().destroyer();
    assert!(left > 0 && destroyer.freeing_bytes() == left);
    destroy(&pool, "tank/good").await;
    sync_often(&pool).await;
    assert_eq!(destroyer.freeing_bytes(), left);
    assert!(!destroyer.has_work());
    disk.make_all_readable();
    pool.clear(None).await.expect("clear");
    freed_in_the_end(&sim, pool).await;
}
