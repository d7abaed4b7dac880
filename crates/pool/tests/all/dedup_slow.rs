//! Goal: parts of a dedup table that a disk does not give, and takes its time to say so, do not
//! hold an import up for as long as each change for them would; none of these changes is lost.
//! Method: a simulated disk, and logs that are too long for memory, with a change of each entry;
//! all copies of a leaf unreadable after some seconds, with no more entries than there is memory
//! for; the import in virtual time; then it can be read again, and everything is flushed; zdb on
//! the image.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use format::{BlockPointer, LABEL_START_BYTES, ObjectId};
use object::Zap;
use pool::{ImportSpec, LeafSpec, Pool, ScanSpec, VdevLayout};
use zio::SharedCache;

use crate::common::*;
use crate::dedup::{SMALL_STEPS, flush, new_object, put};

const KINDS: u64 = 1500;
const BLOCK: usize = 4 << 10;
/// How long the disk tries to read a bad sector.
const SLOW: Duration = Duration::from_secs(4);
/// What an import may take. If each change were tried on its own, it took three times as long.
const PATIENCE: Duration = Duration::from_secs(1800);

fn pattern(kind: u64) -> Bytes {
    content(7000 + kind, kind, BLOCK)
}

async fn find_sim(sim: &SimWorld) -> pool::FoundPool {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let mut found = pool::scan(&sim.world(), &spec).await.expect("scan");
    found.remove(0)
}

/// A leaf of the table of entries with one reference.
async fn a_leaf(pool: &Pool) -> BlockPointer {
    let mos = pool.dsl().mos();
    let mut table = ObjectId::POOL_DIRECTORY;
    for name in ["DDT-sha256", "DDT-sha256-zap-unique"] {
        let zap = Zap::hold(mos, table).await.expect("hold");
        let id = zap.lookup_u64(name).await.expect("look up");
        table = ObjectId::new(id.expect("the table"));
    }
    let table = mos.hold(table).await.expect("hold");
    let last = table.info().max_block_id;
    assert!(last >= 4, "{last} leaves");
    table.block_pointer(last).await.expect("a leaf")
}

async fn check(pool: &Pool, objects: &[ObjectId]) {
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    for id in objects {
        let object = dataset.objset().hold(*id).await.expect("hold");
        for kind in 0..KINDS {
            let data = object.read_bytes(kind * BLOCK as u64, BLOCK).await;
            assert!(data.expect("read") == pattern(kind), "{id} block {kind}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bad_sectors_of_a_table_do_not_hold_an_import_up() {
    let sim = SimWorld::new(31);
    let disk = sim.add_disk("disk0", 256 << 20);
    let leaf = VdevLayout::Leaf(LeafSpec {
        path: "disk0".into(),
        is_file: false,
    });
    let mut spec = spec("tank", vec![normal(leaf)]);
    spec.root_properties = vec![("dedup".into(), "on".into())];
    let pool = Pool::create(&sim.world(), spec).await.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let one = new_object(&dataset, BLOCK).await;
    let two = new_object(&dataset, BLOCK).await;
    let objects = [one.id(), two.id()];
    for kind in 0..KINDS {
        put(&dataset, &one, kind, pattern(kind)).await;
    }
    pool.sync().await.expect("sync");
    flush(&pool).await;
    pool::set_dedup_log_limits(&pool, SMALL_STEPS);
    for kind in 0..KINDS {
        put(&dataset, &two, kind, pattern(kind)).await;
    }
    pool.sync().await.expect("sync");
    assert!(pool.status().dedup.logged > KINDS - 100);
    let bad = a_leaf(&pool).await;
    drop((one, two, dataset));
    pool.export(false).await.expect("export");
    for dva in bad.dvas() {
        let at = LABEL_START_BYTES + dva.offset_bytes();
        disk.make_unreadable(at, dva.asize_bytes());
        let slow = Fault::new(SimOp::Read, FaultEffect::Delay(SLOW));
        disk.inject(slow.within(at..at + dva.asize_bytes()));
    }
    let mut spec = ImportSpec::new(find_sim(&sim).await, host());
    spec.cache = Some(SharedCache::new(64 << 10));
    let begun = sim.elapsed();
    let pool: Arc<Pool> = Pool::import(&sim.world(), spec).await.expect("import");
    let took = sim.elapsed() - begun;
    let logged = pool.status().dedup.logged;
    assert!(took < PATIENCE, "{took:?}, {logged} changes are left");
    assert!((50..500).contains(&logged), "{logged}");
    check(&pool, &objects).await;
    // The disk reads them again, and something else changes.
    disk.make_all_readable();
    disk.clear_faults();
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let more = new_object(&dataset, BLOCK).await;
    put(&dataset, &more, 0, pattern(KINDS)).await;
    pool.sync().await.expect("sync");
    flush(&pool).await;
    let status = pool.status().dedup;
    assert_eq!(status.entries, KINDS + 1);
    assert_eq!(status.total().referenced_blocks, 2 * KINDS + 1);
    check(&pool, &objects).await;
    drop((more, dataset));
    pool.export(false).await.expect("export");
    let images = Images::new();
    let saved = disk.save_image(images.path().join("disk0.img"));
    saved.expect("save");
    zdb_is_clean(images.path(), "tank");
}
