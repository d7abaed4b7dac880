//! Goal: a pool is imported when it may be, and else the refusal says why.
//! Method: small pools on files.

use std::sync::Arc;

use crate::common::*;
use dataset::{DatasetError, DslPool, SyncTask};
use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use device::{BoxFuture, Device, DeviceError, Opener, World};
use format::{
    LABEL_COUNT, LABEL_UBERBLOCK_OFFSET, LABEL_UBERBLOCK_RING_BYTES, ObjectId, Txg, Uberblock,
    label_offset,
};
use object::{SyncContext, Zap};
use pool::{
    ActivityState, ActivityStatus, CreateSpec, FoundState, HostIdentity, ImportSpec, LeafSpec,
    Pool, PoolError, PoolHealth, Rewind, ScanSpec, VdevClass, VdevLayout, VdevSpec,
};
use zio::Tx;

async fn exported(layout: VdevLayout) {
    let world = World::system(1);
    let pool = Pool::create(&world, spec("tank", vec![normal(layout)]))
        .await
        .expect("create");
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_gets_another_name() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    exported(VdevLayout::Leaf(leaves[0].clone())).await;
    for (name, temporary, on_disk) in [("pond", false, "pond"), ("guest", true, "pond")] {
        let mut spec = ImportSpec::new(find(&world, images.path()).await, host());
        spec.new_name = Some(name.into());
        spec.temporary_name = temporary;
        let pool = Pool::import(&world, spec).await.expect("import");
        assert_eq!(pool.name(), name);
        pool.dsl()
            .open_dataset(name)
            .await
            .expect("the root dataset has the name as well");
        pool.export(false).await.expect("export");
        assert_eq!(find(&world, images.path()).await.name, on_disk);
    }
    zdb_is_clean(images.path(), "pond");
    let mut spec = ImportSpec::new(find(&world, images.path()).await, host());
    spec.new_name = Some("mirror1".into());
    assert!(matches!(
        Pool::import(&world, spec).await,
        Err(PoolError::BadName { .. })
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_hosts_pool_needs_force() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    let theirs = HostIdentity {
        hostid: 0xaaaa,
        hostname: "theirs".into(),
    };
    let ours = HostIdentity {
        hostid: 0xbbbb,
        hostname: "ours".into(),
    };
    let create = CreateSpec {
        host: theirs,
        ..spec("tank", vec![normal(VdevLayout::Leaf(leaves[0].clone()))])
    };
    // Never exported, as after a crash of that host.
    drop(Pool::create(&world, create).await.expect("create"));
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let found = find(&world, images.path()).await;
    assert_eq!((found.state, found.hostid), (FoundState::Active, 0xaaaa));
    let error = Pool::import(&world, ImportSpec::new(found.clone(), ours.clone()))
        .await
        .expect_err("in use elsewhere");
    assert!(
        matches!(&error, PoolError::ForeignHost { hostname, .. } if hostname == "theirs"),
        "{error}"
    );
    let mut forced = ImportSpec::new(found, ours.clone());
    forced.force = true;
    let pool = Pool::import(&world, forced).await.expect("forced");
    drop(pool);
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    // Now it is ours, and needs no force.
    let found = find(&world, images.path()).await;
    assert_eq!((found.hostid, found.hostname.as_str()), (0xbbbb, "ours"));
    let pool = Pool::import(&world, ImportSpec::new(found, ours))
        .await
        .expect("import");
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroyed_pool_comes_back_on_request() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(2, 64);
    let vdevs = vec![normal(VdevLayout::Mirror(leaves))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    pool.destroy(false).await.expect("destroy");
    let found = find(&world, images.path()).await;
    assert_eq!(found.state, FoundState::Destroyed);
    let error = Pool::import(&world, ImportSpec::new(found.clone(), host()))
        .await
        .expect_err("destroyed");
    assert!(error.to_string().contains("-D"), "{error}");
    let mut spec = ImportSpec::new(found, host());
    spec.destroyed = true;
    let pool = Pool::import(&world, spec).await.expect("import -D");
    pool.export(false).await.expect("export");
    assert_eq!(
        find(&world, images.path()).await.state,
        FoundState::Exported
    );
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_devices_are_tolerated_up_to_redundancy() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(4, 64);
    exported(VdevLayout::Raidz {
        parity: 1,
        leaves: leaves.clone(),
    })
    .await;
    let elsewhere = Images::new();
    let away = |index: usize| {
        let to = elsewhere.path().join(format!("{index}"));
        std::fs::rename(&leaves[index].path, &to).expect("rename");
        to
    };
    let first = away(2);
    let found = find(&world, images.path()).await;
    assert_eq!(found.health, PoolHealth::Degraded);
    assert_eq!(found.missing, vec![leaves[2].path.clone()]);
    let pool = Pool::import(&world, ImportSpec::new(found, host()))
        .await
        .expect("degraded");
    assert_eq!(pool.health(), PoolHealth::Degraded);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 3, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");

    let second = away(0);
    let found = find(&world, images.path()).await;
    assert_eq!(found.health, PoolHealth::Faulted);
    let error = Pool::import(&world, ImportSpec::new(found, host()))
        .await
        .expect_err("too few");
    assert!(
        matches!(&error, PoolError::MissingDevices { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("d0.img"), "{error}");

    std::fs::rename(first, &leaves[2].path).expect("back");
    std::fs::rename(second, &leaves[0].path).expect("back");
    let pool = import(&world, images.path()).await;
    assert_eq!(pool.health(), PoolHealth::Online);
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

/// A half of a mirror that missed what was written, found with the log device that tells of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_half_alone_asks_for_the_other_one() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(3, 64);
    let log = VdevSpec {
        layout: VdevLayout::Leaf(leaves[2].clone()),
        class: VdevClass::Log,
    };
    let mirror = normal(VdevLayout::Mirror(leaves[..2].to_vec()));
    let pool = Pool::create(&world, spec("tank", vec![mirror, log])).await;
    let pool = pool.expect("create");
    pool.export(false).await.expect("export");
    let elsewhere = Images::new();
    let away = |index: usize| elsewhere.path().join(format!("{index}"));
    std::fs::rename(&leaves[0].path, away(0)).expect("rename");
    for _ in 0..3 {
        let pool = import(&world, images.path()).await;
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        write_objects(&dataset, 20, 2).await;
        drop(dataset);
        pool.export(false).await.expect("export");
    }
    std::fs::rename(away(0), &leaves[0].path).expect("back");
    std::fs::rename(&leaves[1].path, away(1)).expect("rename");
    let found = find(&world, images.path()).await;
    let refused = Pool::import(&world, ImportSpec::new(found, host())).await;
    let refused = refused.expect_err("what was written last is not there");
    assert!(
        matches!(&refused, PoolError::MissingDevices { why, .. } if why.contains("d1.img is \
            UNAVAIL")),
        "{refused}"
    );
    std::fs::rename(away(1), &leaves[1].path).expect("back");
    let pool = import(&world, images.path()).await;
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cached_configuration_finds_the_pool() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(2, 64);
    let vdevs = vec![normal(VdevLayout::Mirror(leaves))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let cached = pool.cached_config();
    // A second opening of the same devices is refused while the first holds them.
    let found = find(&world, images.path()).await;
    assert!(
        Pool::import(&world, ImportSpec::new(found, host()))
            .await
            .is_err()
    );
    drop(pool);
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let found = pool::found_in_cache(&world, &cached).await.expect("found");
    let pool = Pool::import(&world, ImportSpec::new(found, host()))
        .await
        .expect("import");
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_gets_its_id_while_it_has_a_pool() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    let mut wanted = spec("tank", vec![normal(VdevLayout::Leaf(leaves[0].clone()))]);
    wanted.host = HostIdentity::default();
    let pool = Pool::create(&world, wanted).await.expect("create");
    let refused = pool.properties().set("multihost", "on").await;
    assert!(matches!(refused, Err(PoolError::BadProperty { .. })));
    // One that has none, or no longer, changes nothing.
    for (hostid, told) in [(0, 0), (7, 7), (0, 7)] {
        let host = HostIdentity {
            hostid,
            hostname: "here".into(),
        };
        pool::set_host(&pool, host);
        pool.sync_config().await.expect("sync");
        assert_eq!(find(&world, images.path()).await.hostid, told);
    }
    pool.properties()
        .set("multihost", "on")
        .await
        .expect("it has an id now");
    pool.export(false).await.expect("export");
}

/// A detached device is no pool's, and has where its last state is: `zhack label repair -u` gives
/// it back from that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_device_knows_its_last_state() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(2, 64);
    let path = leaves[1].path.clone();
    let vdevs = vec![normal(VdevLayout::Mirror(leaves))];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    pool.sync().await.expect("sync");
    pool.detach(&path).await.expect("detach");
    let image = std::fs::read(&path).expect("image");
    let size = image.len() as u64;
    for label in 0..LABEL_COUNT {
        let start = label_offset(size, label).expect("a label");
        let ring = &image[(start + LABEL_UBERBLOCK_OFFSET) as usize..];
        let ring = &ring[..LABEL_UBERBLOCK_RING_BYTES as usize];
        let uberblock = Uberblock::decode(ring).expect("an uberblock");
        assert_eq!(uberblock.txg, Txg::ZERO);
        let birth = uberblock.root.logical_birth();
        assert!(birth > Txg::ZERO && birth < pool.synced_txg(), "{birth}");
        // Its slot has no checksum, and there is none behind it.
        let rest = &ring[Uberblock::BYTES..];
        assert!(rest.iter().all(|byte| *byte == 0), "label {label}");
    }
    let spec = ScanSpec {
        paths: vec![path],
        guid: None,
        name: None,
    };
    let found = pool::scan(&world, &spec).await.expect("scan");
    assert!(found.is_empty(), "{found:?}");
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_open_read_only_changes_nothing() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    exported(VdevLayout::Leaf(leaves[0].clone())).await;
    let before = std::fs::read(&leaves[0].path).expect("image");
    let mut spec = ImportSpec::new(find(&world, images.path()).await, host());
    spec.read_only = true;
    let pool = Pool::import(&world, spec).await.expect("import");
    assert!(matches!(
        pool.properties().set("comment", "x").await,
        Err(PoolError::ReadOnly { .. })
    ));
    assert!(matches!(pool.sync().await, Err(PoolError::ReadOnly { .. })));
    assert!(matches!(
        pool.log_history("x", None).await,
        Err(PoolError::ReadOnly { .. })
    ));
    // As with OpenZFS, destroying it only closes it.
    pool.destroy(false).await.expect("close");
    assert!(before == std::fs::read(&leaves[0].path).expect("image"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exported_pool_leaves_nothing_in_memory() {
    let world = World::system(1);
    let images = Images::new();
    let leaves = images.make(1, 64);
    exported(VdevLayout::Leaf(leaves[0].clone())).await;
    let spec = ImportSpec::new(find(&world, images.path()).await, host());
    let pool = Pool::import(&world, spec).await.expect("import");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let tx = dataset
        .assign(dataset::DirtyEstimate::metadata())
        .await
        .expect("room");
    drop(tx);
    drop(dataset);
    let pipeline = std::sync::Arc::downgrade(pool.pipeline());
    let dsl = std::sync::Arc::downgrade(pool.dsl());
    pool.export(false).await.expect("export");
    drop(pool);
    // What was under way in the background ends by itself.
    for _ in 0..100 {
        if pipeline.strong_count() + dsl.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!(
        "still held: the pipeline {} times, the DSL {} times",
        pipeline.strong_count(),
        dsl.strong_count()
    );
}

/// Writes numbers into a ZAP of the MOS, as the sync loop's task.
struct Note {
    zap: ObjectId,
    numbers: Vec<(&'static str, u64)>,
    dsl: Arc<DslPool>,
}

impl SyncTask for Note {
    fn name(&self) -> &'static str {
        "note"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let zap = Zap::hold(self.dsl.mos(), self.zap).await?;
            for (name, number) in &self.numbers {
                zap.update_u64(&Tx::syncing(ctx.txg), name, *number).await?;
            }
            Ok(())
        })
    }
}

/// Goal: how far devices were initialized and trimmed is what their ZAPs say. Method: the entries
/// that OpenZFS writes (`vdev_initialize_zap_update_sync`, `vdev_trim_zap_update_sync`), in the ZAP
/// of one of two devices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_tell_how_far_they_were_initialized_and_trimmed() {
    let world = World::system(1);
    let images = Images::new();
    let layout = VdevLayout::Mirror(images.make(2, 256));
    let pool = Pool::create(&world, spec("tank", vec![normal(layout)]))
        .await
        .expect("create");
    let config = pool.cached_config();
    let root = config.require_list("vdev_tree").expect("a tree");
    let mirror = &root.lists("children").expect("children")[0];
    let leaf = &mirror.lists("children").expect("children")[1];
    let zap = leaf.u64("com.delphix:vdev_zap_leaf").expect("a ZAP");
    let note = Note {
        zap: ObjectId::new(zap),
        numbers: vec![
            ("com.delphix:vdev_initialize_state", 3),
            ("com.delphix:vdev_initialize_action_time", 1_700_000_000),
            ("com.delphix:next_offset_to_initialize", 100 << 20),
            ("org.zfsonlinux:vdev_trim_state", 4),
            ("org.zfsonlinux:vdev_trim_action_time", 1_700_000_001),
            ("org.zfsonlinux:next_offset_to_trim", 100 << 20),
        ],
        dsl: pool.dsl().clone(),
    };
    pool.dsl().tasks().run(Arc::new(note)).await.expect("noted");
    pool.export(false).await.expect("export");
    let pool = import(&world, images.path()).await;
    let status = pool.status();
    let mirror = &status.root.children[0];
    let [other, leaf] = &mirror.children[..] else {
        panic!("a mirror of two");
    };
    for untouched in [mirror, other] {
        assert_eq!(untouched.initialize, ActivityStatus::default());
        assert_eq!(untouched.trim, ActivityStatus::default());
    }
    assert_eq!(leaf.initialize.state, ActivityState::Suspended);
    assert_eq!(leaf.initialize.time_s, 1_700_000_000);
    let (done, total) = (leaf.initialize.done_bytes, leaf.initialize.total_bytes);
    // What was freed lately counts as free here.
    let free = mirror.size_bytes - mirror.allocated_bytes;
    assert!(total >= free && total < mirror.size_bytes, "{free} {total}");
    assert!(done > 90 << 20 && done <= 100 << 20, "{done} of {total}");
    let complete = ActivityStatus {
        state: ActivityState::Complete,
        time_s: 1_700_000_001,
        ..ActivityStatus::default()
    };
    assert_eq!(leaf.trim, complete);
    assert!(leaf.can_trim && leaf.slow_ios == 0);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

/// Opens as the system does, and cannot look who has a device: as if he came between the look and
/// the opening.
struct Blind(Arc<dyn Opener>);

impl Opener for Blind {
    fn open<'a>(
        &'a self,
        path: &'a str,
        read_only: bool,
    ) -> BoxFuture<'a, Result<Arc<dyn Device>, DeviceError>> {
        self.0.open(path, read_only)
    }

    fn entries<'a>(
        &'a self,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<device::Entry>>, DeviceError>> {
        self.0.entries(path)
    }
}

/// Whoever has one half of a mirror has the pool: the other half must not become a second one, nor
/// be read meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_somebody_has_is_refused() {
    let seeing = World::system(1);
    let images = Images::new();
    let leaves = images.make(2, 64);
    let held = leaves[1].path.clone();
    exported(VdevLayout::Mirror(leaves)).await;
    let blind = World {
        opener: Arc::new(Blind(seeing.opener.clone())),
        ..seeing.clone()
    };
    let holder = seeing.opener.open(&held, false).await.expect("held");
    let cases = [
        (&seeing, false, Rewind::No),
        (&seeing, true, Rewind::No),
        (&seeing, false, Rewind::Recent),
        (&blind, false, Rewind::No),
    ];
    for (world, read_only, rewind) in cases {
        let mut spec = ImportSpec::new(find(world, images.path()).await, host());
        (spec.force, spec.read_only, spec.rewind) = (true, read_only, rewind);
        let refused = Pool::import(world, spec).await.expect_err("held");
        let refused = refused.to_string();
        assert!(
            refused.contains(&format!("{held}: the device is in use by another process")),
            "{refused}"
        );
    }
    drop(holder);
    let pool = import(&seeing, images.path()).await;
    assert_eq!(pool.status().health, PoolHealth::Online);
    pool.export(false).await.expect("export");
}

/// A second server must not write, and mount, what the first one reads and has mounted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_somebody_reads_is_not_written() {
    let world = World::system(1);
    let images = Images::new();
    exported(VdevLayout::Mirror(images.make(2, 64))).await;
    let import = async |read_only, rewind| {
        let mut spec = ImportSpec::new(find(&world, images.path()).await, host());
        (spec.force, spec.read_only, spec.rewind) = (true, read_only, rewind);
        Pool::import(&world, spec).await
    };
    let readers = [
        import(true, Rewind::No).await.expect("read"),
        import(true, Rewind::Recent).await.expect("read as well"),
    ];
    for rewind in [Rewind::No, Rewind::Recent] {
        let refused = import(false, rewind).await.expect_err("read").to_string();
        assert!(
            refused.contains("the device is in use by another process"),
            "{refused}"
        );
    }
    for reader in readers {
        assert_eq!(reader.status().health, PoolHealth::Online);
        reader.export(false).await.expect("export");
    }
    let pool = import(false, Rewind::No).await.expect("nobody reads it");
    pool.export(false).await.expect("export");
}

/// What stands by for one pool, or for several, is no other pool's: each is imported beside the
/// others, whichever comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_beside_spares_and_caches_that_are_in_use_are_imported() {
    let world = World::system(2);
    let images = Images::new();
    let leaves = images.make(5, 64);
    let aux = |class, index: usize| VdevSpec {
        layout: VdevLayout::Leaf(leaves[index].clone()),
        class,
    };
    let all = [
        (
            "one",
            vec![
                aux(VdevClass::Normal, 0),
                aux(VdevClass::Spare, 3),
                aux(VdevClass::Cache, 4),
            ],
        ),
        (
            "two",
            vec![aux(VdevClass::Normal, 1), aux(VdevClass::Spare, 3)],
        ),
        ("three", vec![aux(VdevClass::Normal, 2)]),
    ];
    let mut made = Vec::new();
    for (name, vdevs) in all {
        let pool = Pool::create(&world, spec(name, vdevs)).await;
        made.push(pool.expect("create"));
    }
    for pool in made {
        pool.export(false).await.expect("export");
    }
    let scan = ScanSpec {
        paths: vec![images.text()],
        ..ScanSpec::default()
    };
    for is_reversed in [false, true] {
        let mut found = pool::scan(&world, &scan).await.expect("scan");
        assert_eq!(found.len(), 3);
        if is_reversed {
            found.reverse();
        }
        let mut pools = Vec::new();
        for found in found {
            let name = found.name.clone();
            let imported = Pool::import(&world, ImportSpec::new(found, host())).await;
            let pool = imported.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(pool.status().health, PoolHealth::Online);
            let spares = usize::from(name != "three");
            assert_eq!(pool.status().spares.len(), spares, "{name}");
            pools.push(pool);
        }
        for pool in pools {
            pool.export(false).await.expect("export");
        }
    }
}

/// A disk with four labels has three to lose: the pool is imported, written, and found again.
#[tokio::test(start_paused = true)]
async fn a_single_disk_without_one_of_its_labels_is_imported_for_writing() {
    for lost in 0..format::LABEL_COUNT {
        let sim = SimWorld::new(40 + lost as u64);
        let disk = sim.add_disk("disk", 64 << 20);
        let leaf = LeafSpec {
            path: "disk".to_owned(),
            is_file: false,
        };
        let world = sim.world();
        let pool = Pool::create(&world, spec("tank", vec![normal(VdevLayout::Leaf(leaf))])).await;
        pool.expect("create").export(false).await.expect("export");
        let start = format::label_offset(64 << 20, lost).expect("a label");
        for op in [SimOp::Read, SimOp::Write] {
            // One bad sector for the configuration, one for the padding.
            for at in [start, start + (16 << 10)] {
                disk.inject(Fault::new(op, FaultEffect::Error).within(at..at + 512));
            }
        }
        let scan = ScanSpec {
            paths: sim.disk_names(),
            ..ScanSpec::default()
        };
        let mut objects = Vec::new();
        for round in 0..2 {
            let found = pool::scan(&world, &scan).await.expect("scan").remove(0);
            let imported = Pool::import(&world, ImportSpec::new(found, host())).await;
            let pool = imported.unwrap_or_else(|error| panic!("label {lost}, {round}: {error}"));
            let dataset = pool.dsl().open_dataset("tank").await.expect("open");
            check_objects(&dataset, &objects, 2).await;
            objects.extend(write_objects(&dataset, 2, 2).await);
            pool.sync_config().await.expect("sync");
            tokio::time::sleep(std::time::Duration::from_secs(10)).await;
            assert_eq!(pool.suspended().map(|why| why.to_string()), None);
            drop(dataset);
            pool.export(false).await.expect("export");
        }
    }
}

/// Goal: what does not answer holds up neither a search nor the threads of who searches. Method: a
/// directory with a link to a file whose server has stopped, and one thread for everything.
#[test]
fn a_path_that_does_not_answer_holds_up_no_search() {
    let Some(hung) = oracles::StoppableFile::mount(64 << 20) else {
        return;
    };
    let images = Images::new();
    let leaves = images.make(1, 64);
    let run = |work: BoxFuture<'static, ()>| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        runtime.block_on(work);
    };
    run(Box::pin(exported(VdevLayout::Leaf(leaves[0].clone()))));
    std::os::unix::fs::symlink(hung.path(), images.path().join("hung")).expect("a link");
    hung.set_stopped(true);
    let directory = images.path().to_str().expect("UTF-8").to_owned();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let work = Box::pin(async move {
            let world = World::system(1);
            let spec = ScanSpec {
                paths: vec![directory],
                ..ScanSpec::default()
            };
            let found = pool::scan(&world, &spec).await.expect("scan");
            let _ = send.send(found);
        });
        run(work);
    });
    let found = receive.recv_timeout(std::time::Duration::from_secs(120));
    hung.set_stopped(false);
    let found = found.expect("the search ends");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, "tank");
}
