//! Goal: blocks of which no copy is good stay on record, in the form that OpenZFS gives the record,
//! as long as somebody has them. Method: blocks are destroyed on a file; what is told of them is
//! compared with where they are, across imports, and zdb looks at the pool after the blocks were
//! put back.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::*;
use dataset::{Dataset, DirtyEstimate};
use device::World;
use format::Bookmark;
use format::{
    BlockPointer, Bookmark as LogBookmark, ErrorBookmark, ObjectId, ObjectType, ObjsetId,
};
use object::{NewObject, Zap};
use pool::{FeatureChoice, ImportSpec, Pool, PoolError, ScanState, ScrubCommand, VdevLayout};

/// A block that is overwritten on an image, to be put back.
struct Damage {
    image: String,
    at: u64,
    before: [u8; 512],
}

impl Damage {
    fn new(image: &str, bp: &BlockPointer) -> Vec<Self> {
        const LABELS_BYTES: u64 = 4 << 20;
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(image)
            .expect("open");
        bp.dvas()
            .map(|dva| {
                let at = LABELS_BYTES + dva.offset_bytes() + 512;
                let mut before = [0; 512];
                file.read_exact_at(&mut before, at).expect("read");
                file.write_all_at(&[0xa5; 512], at).expect("write");
                Damage {
                    image: image.to_owned(),
                    at,
                    before,
                }
            })
            .collect()
    }

    fn undo(self) {
        let file = std::fs::File::options()
            .write(true)
            .open(&self.image)
            .expect("open");
        file.write_all_at(&self.before, self.at).expect("write");
    }
}

async fn pointer(dataset: &Dataset, object: ObjectId, block: u64) -> BlockPointer {
    let object = dataset.objset().hold(object).await.expect("hold");
    object.block_pointer(block).await.expect("a pointer")
}

fn place(dataset: ObjectId, object: ObjectId, block: u64) -> Bookmark {
    Bookmark {
        objset: ObjsetId::new(dataset.get()),
        object,
        level: 0,
        block_id: block,
    }
}

async fn object_of(pool: &Pool, name: &str) -> ObjectId {
    pool.dsl()
        .directories()
        .lookup(name)
        .await
        .expect("lookup")
        .object
}

async fn try_read(pool: &Pool, name: &str, object: ObjectId, block: u64) -> bool {
    let dataset = pool.dsl().open_dataset(name).await.expect("open");
    let object = dataset.objset().hold(object).await.expect("hold");
    object.read_bytes(block * (128 << 10), 4096).await.is_ok()
}

/// Names in a log, of the one dataset that it has entries of.
async fn log_keys(pool: &Pool, name: &str) -> Vec<(String, Vec<String>)> {
    let mos = pool.dsl().mos();
    let Some(log) = pool.dsl().directory().lookup_u64(name).await.expect("log") else {
        return Vec::new();
    };
    if log == 0 {
        return Vec::new();
    }
    let zap = Zap::hold(mos, ObjectId::new(log)).await.expect("a ZAP");
    let mut out = Vec::new();
    for entry in zap.all().await.expect("entries") {
        let mut below = Vec::new();
        if let Some(child) = entry.value.as_u64() {
            let child = Zap::hold(mos, ObjectId::new(child)).await.expect("a ZAP");
            for entry in child.all().await.expect("entries") {
                assert_eq!(&entry.value.data[..], b"\0");
                below.push(entry.name_str().into_owned());
            }
        }
        below.sort();
        out.push((entry.name_str().into_owned(), below));
    }
    out.sort();
    out
}

async fn import_read_only(world: &World, dir: &Path) -> Arc<Pool> {
    let mut spec = ImportSpec::new(find(world, dir).await, host());
    spec.read_only = true;
    Pool::import(world, spec).await.expect("import")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_blocks_are_logged_for_all_who_have_them() {
    let images = Images::new();
    let leaf = images.make(1, 128).remove(0);
    let image = leaf.path.clone();
    let world = World::system(2);
    let pool = Pool::create(&world, spec("tank", vec![normal(VdevLayout::Leaf(leaf))]))
        .await
        .expect("create");
    let dsl = pool.dsl();
    let dataset = dsl.open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 4, 3).await;
    dsl.snapshots()
        .take(&["tank@one".to_owned()], &[])
        .await
        .expect("snapshot");
    dsl.datasets()
        .clone_snapshot("tank@one", "tank/clone", &[])
        .await
        .expect("clone");
    // The clone keeps objects[0] only; the live dataset has a newer file that nobody else has.
    let clone = dsl.open_dataset("tank/clone").await.expect("open");
    free_objects(&clone, &objects[1..]).await;
    let later = write_objects(&dataset, 1, 2).await;
    pool.sync().await.expect("sync");
    let shared = pointer(&dataset, objects[0], 2).await;
    let own = pointer(&dataset, later[0], 1).await;
    drop((dataset, clone));
    pool.export(false).await.expect("export");

    let mut damage = Damage::new(&image, &shared);
    damage.extend(Damage::new(&image, &own));
    let pool = import(&world, images.path()).await;
    assert_eq!(pool.damaged().await, Vec::new());
    assert!(!try_read(&pool, "tank/clone", objects[0], 2).await);
    assert!(!try_read(&pool, "tank", later[0], 1).await);
    assert_eq!(pool.status().data_errors, 2);
    let (head, clone) = (
        object_of(&pool, "tank").await,
        object_of(&pool, "tank/clone").await,
    );
    let snapshot = object_of(&pool, "tank@one").await;
    let mut expected = vec![
        place(head, objects[0], 2),
        place(snapshot, objects[0], 2),
        place(clone, objects[0], 2),
        place(head, later[0], 1),
    ];
    expected.sort();
    assert_eq!(pool.damaged().await, expected, "in memory");
    pool.sync().await.expect("sync");
    let key = |object: ObjectId, block_id, bp: &BlockPointer| {
        let error = ErrorBookmark {
            object,
            level: 0,
            block_id,
            birth: bp.physical_birth(),
        };
        error.log_key()
    };
    let of_clone = (
        format!("{:x}", clone.get()),
        vec![key(objects[0], 2, &shared)],
    );
    let mut keys = vec![
        of_clone,
        (format!("{:x}", head.get()), vec![key(later[0], 1, &own)]),
    ];
    keys.sort();
    assert_eq!(log_keys(&pool, "errlog_last").await, keys);
    assert_eq!(log_keys(&pool, "errlog_scrub").await, Vec::new());
    assert_eq!(pool.damaged().await, expected, "logged");
    // As in OpenZFS, the log stays.
    pool.clear(None).await.expect("clear");
    assert_eq!(pool.status().data_errors, 2);
    pool.export(false).await.expect("export");

    let pool = import_read_only(&world, images.path()).await;
    assert_eq!(pool.status().data_errors, 2);
    assert_eq!(pool.damaged().await, expected, "imported read-only");
    // A scrub that finds less says what is left.
    for damage in damage {
        damage.undo();
    }
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("scrub");
    pool.scans().wait_for_scrub(true).await;
    assert_eq!(pool.status().data_errors, 0);
    assert_eq!(pool.damaged().await, Vec::new());
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    // What is in no dataset any more is forgotten when somebody asks.
    let pool = import(&world, images.path()).await;
    assert_eq!(pool.damaged().await, expected, "imported");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    free_objects(&dataset, &later).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    expected.retain(|lost| lost.object != later[0]);
    assert_eq!(pool.damaged().await, expected);
    pool.sync().await.expect("sync");
    assert_eq!(pool.status().data_errors, 1);
    // The clone's log goes with the clone when it is promoted, and with it what the snapshot has.
    pool.dsl()
        .snapshots()
        .promote("tank/clone")
        .await
        .expect("promote");
    assert_eq!(pool.damaged().await, expected, "promoted");
    pool.dsl()
        .snapshots()
        .promote("tank")
        .await
        .expect("promote");
    let moved = log_keys(&pool, "errlog_last").await;
    let of_head = (
        format!("{:x}", head.get()),
        vec![key(objects[0], 2, &shared)],
    );
    assert!(moved.contains(&of_head), "{moved:?}");
    pool.dsl()
        .destroyer()
        .destroy("tank/clone")
        .await
        .expect("destroy");
    expected.retain(|lost| lost.objset != ObjsetId::new(clone.get()));
    assert_eq!(pool.damaged().await, expected, "without the clone");
    assert_eq!(log_keys(&pool, "errlog_last").await, [of_head]);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_pools_without_the_feature_have_the_old_form_and_are_upgraded() {
    let images = Images::new();
    let leaf = images.make(1, 128).remove(0);
    let image = leaf.path.clone();
    let world = World::system(2);
    let mut create = spec("tank", vec![normal(VdevLayout::Leaf(leaf))]);
    create.features = FeatureChoice::None;
    let pool = Pool::create(&world, create).await.expect("create");
    let dsl = pool.dsl();
    let dataset = dsl.open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 2, 3).await;
    dsl.snapshots()
        .take(&["tank@one".to_owned()], &[])
        .await
        .expect("snapshot");
    let lost = pointer(&dataset, objects[1], 1).await;
    let gone = pointer(&dataset, objects[0], 0).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    let mut damage = Damage::new(&image, &lost);
    damage.extend(Damage::new(&image, &gone));

    let pool = import(&world, images.path()).await;
    assert!(!try_read(&pool, "tank", objects[1], 1).await);
    assert!(!try_read(&pool, "tank", objects[0], 0).await);
    let (head, snapshot) = (
        object_of(&pool, "tank").await,
        object_of(&pool, "tank@one").await,
    );
    let expected = vec![place(head, objects[0], 0), place(head, objects[1], 1)];
    // As it was found, and not elsewhere.
    assert_eq!(pool.damaged().await, expected);
    pool.export(false).await.expect("export");
    let pool = import(&world, images.path()).await;
    let key = |object: ObjectId, block| {
        LogBookmark::new(ObjsetId::new(head.get()), object, 0, block).log_key()
    };
    let mut keys = vec![(key(objects[0], 0), vec![]), (key(objects[1], 1), vec![])];
    keys.sort();
    assert_eq!(log_keys(&pool, "errlog_last").await, keys);
    assert_eq!(pool.status().data_errors, 2);
    assert_eq!(pool.damaged().await, expected);

    // One is in the snapshot only when the feature comes.
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    free_objects(&dataset, &objects[..1]).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    pool.properties()
        .set("feature@head_errlog", "enabled")
        .await
        .expect("enable");
    assert_eq!(
        pool.damaged().await,
        [place(head, objects[1], 1), place(snapshot, objects[1], 1)]
    );
    let error = ErrorBookmark {
        object: objects[1],
        level: 0,
        block_id: 1,
        birth: lost.physical_birth(),
    };
    assert_eq!(
        log_keys(&pool, "errlog_last").await,
        [(format!("{:x}", head.get()), vec![error.log_key()])]
    );
    assert_eq!(pool.status().data_errors, 1);
    pool.export(false).await.expect("export");
    for damage in damage {
        damage.undo();
    }
    zdb_is_clean(images.path(), "tank");
}

/// The number of a spill block is that of OpenZFS: zdb, which reads the same damaged pool, names
/// the block alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_spill_block_is_logged_under_its_number() {
    let images = Images::new();
    let leaf = images.make(1, 128).remove(0);
    let image = leaf.path.clone();
    let world = World::system(2);
    let pool = Pool::create(&world, spec("tank", vec![normal(VdevLayout::Leaf(leaf))]))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let tx = dataset
        .assign(DirtyEstimate::metadata())
        .await
        .expect("assign");
    // With so long a bonus there is one pointer of data; a shorter one leaves room for the other.
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS)
        .with_bonus(ObjectType::UINT64_OTHER, vec![0; 200]);
    let object = dataset
        .objset()
        .allocate(&tx, new)
        .await
        .expect("an object");
    let id = object.id();
    let (bonus, content) = (vec![0; 64].into(), content(id.get(), 0, 4096));
    object
        .set_bonus_and_spill(&tx, bonus, Some(content))
        .expect("a spill block");
    drop(tx);
    pool.sync().await.expect("sync");
    let spill = object.spill_pointer().expect("a spill block");
    drop((object, dataset));
    pool.export(false).await.expect("export");

    let damage = Damage::new(&image, &spill);
    assert_eq!(damage.len(), 2, "metadata has two copies");
    let pool = import_read_only(&world, images.path()).await;
    let head = object_of(&pool, "tank").await;
    let lost = place(head, id, LogBookmark::SPILL_BLOCK_ID);
    pool.scans()
        .scrub(ScrubCommand::Start)
        .await
        .expect("scrub");
    pool.scans().wait_for_scrub(true).await;
    assert_eq!(pool.damaged().await, [lost], "found by a scrub");
    pool.export(false).await.expect("export");
    let pool = import(&world, images.path()).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let object = dataset.objset().hold(id).await.expect("hold");
    assert!(object.spill().await.is_err());
    drop((object, dataset));
    pool.sync().await.expect("sync");
    assert_eq!(pool.damaged().await, [lost], "found by a reader");
    let key = ErrorBookmark {
        object: id,
        level: 0,
        block_id: u64::MAX - 1,
        birth: spill.physical_birth(),
    }
    .log_key();
    let keys = [(format!("{:x}", head.get()), vec![key])];
    assert_eq!(log_keys(&pool, "errlog_last").await, keys);
    pool.export(false).await.expect("export");

    let output = std::process::Command::new(ZDB)
        .args(["-e", "-p", &images.text(), "-bcc", "tank"])
        .output()
        .expect("zdb (Debian package zfsutils-linux) is needed");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let named = format!("reading <{}, {id}, 0, fffffffffffffffe>", head.get());
    assert!(
        text.contains(&named),
        "zdb says nothing of {named}:\n{text}"
    );
    for damage in damage {
        damage.undo();
    }
    zdb_is_clean(images.path(), "tank");
}

/// A scrub of the error log forgets what is good again, in snapshots as well, and keeps what is
/// not; it goes on after an export, and is refused and stopped as OpenZFS's is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrub_of_the_error_log_reads_what_it_names() {
    for has_feature in [false, true] {
        let images = Images::new();
        let leaf = images.make(1, 128).remove(0);
        let image = leaf.path.clone();
        let world = World::system(2);
        let mut making = spec("tank", vec![normal(VdevLayout::Leaf(leaf))]);
        if !has_feature {
            making.features = FeatureChoice::None;
        }
        let pool = Pool::create(&world, making).await.expect("create");
        if !has_feature {
            let refused = pool.scans().scrub(ScrubCommand::Errors).await;
            let is_right = matches!(refused, Err(PoolError::NoHeadErrlog { .. }));
            assert!(is_right, "{refused:?}");
            pool.export(false).await.expect("export");
            continue;
        }
        let dataset = pool.dsl().open_dataset("tank").await.expect("open");
        let objects = write_objects(&dataset, 6, 3).await;
        let snapshots = pool.dsl().snapshots();
        let taken = snapshots.take(&["tank@one".to_owned()], &[]).await;
        taken.expect("snapshot");
        pool.sync().await.expect("sync");
        // Nothing is known: there is nothing to do.
        pool.scans()
            .scrub(ScrubCommand::Errors)
            .await
            .expect("nothing");
        assert!(pool.scans().error_scrub().is_none());
        let mut damage = Vec::new();
        for object in &objects {
            let pointer = pointer(&dataset, *object, 1).await;
            damage.push(Damage::new(&image, &pointer));
        }
        pool.pipeline().cache().clear();
        for object in &objects {
            assert!(!try_read(&pool, "tank", *object, 1).await);
        }
        pool.sync().await.expect("sync");
        let known = pool.damaged().await.len();
        assert!(known >= objects.len(), "{known}");
        // Two stay as they are, the others are good again.
        for damage in damage.drain(2..).flatten() {
            damage.undo();
        }
        pool.scans().hold(true);
        pool.scans()
            .scrub(ScrubCommand::Errors)
            .await
            .expect("start");
        let refused = pool.scans().scrub(ScrubCommand::Errors).await;
        let is_right = matches!(refused, Err(PoolError::ErrorScrubActive { .. }));
        assert!(is_right, "{refused:?}");
        let refused = pool.scans().scrub(ScrubCommand::Start).await;
        let is_right = matches!(refused, Err(PoolError::ErrorScrubActive { .. }));
        assert!(is_right, "{refused:?}");
        pool.scans()
            .scrub(ScrubCommand::Pause)
            .await
            .expect("pause");
        assert_ne!(pool.scans().error_scrub().expect("one").pause_time_s, 0);
        let refused = pool.scans().scrub(ScrubCommand::Pause).await;
        let is_right = matches!(refused, Err(PoolError::ErrorScrubPaused { .. }));
        assert!(is_right, "{refused:?}");
        drop(dataset);
        pool.export(false).await.expect("export");
        let pool = import(&world, images.path()).await;
        let status = pool.scans().error_scrub().expect("one");
        assert_eq!((status.state, status.examined), (ScanState::Scanning, 0));
        assert_ne!(status.pause_time_s, 0);
        assert_eq!(pool.damaged().await.len(), known);
        // One that is stopped forgets nothing.
        pool.scans().scrub(ScrubCommand::Stop).await.expect("stop");
        let status = pool.scans().error_scrub().expect("one");
        assert_eq!(status.state, ScanState::Canceled);
        pool.sync().await.expect("sync");
        assert_eq!(pool.damaged().await.len(), known);
        pool.scans()
            .scrub(ScrubCommand::Errors)
            .await
            .expect("start");
        pool.scans().wait_for_scrub(true).await;
        let status = pool.scans().error_scrub().expect("one");
        assert_eq!(status.state, ScanState::Finished);
        assert!(status.examined >= objects.len() as u64, "{status:?}");
        assert!(status.errors >= 2, "{status:?}");
        pool.sync().await.expect("sync");
        let left = pool.damaged().await;
        let mut lost: Vec<_> = left.iter().map(|bookmark| bookmark.object).collect();
        lost.dedup();
        assert!(
            !lost.is_empty() && lost.iter().all(|object| objects[..2].contains(object)),
            "{left:?}"
        );
        for damage in damage.into_iter().flatten() {
            damage.undo();
        }
        pool.scans()
            .scrub(ScrubCommand::Errors)
            .await
            .expect("start");
        pool.scans().wait_for_scrub(true).await;
        pool.sync().await.expect("sync");
        assert_eq!(pool.damaged().await, Vec::new());
        let history = format!("{:?}", pool.history().await.expect("history"));
        for words in [
            "error scrub setup",
            "error scrub canceled",
            "error scrub done",
        ] {
            assert!(history.contains(words), "{words}: {history}");
        }
        // Of a scrub of everything it is not told any more.
        pool.scans()
            .scrub(ScrubCommand::Start)
            .await
            .expect("start");
        pool.scans().wait_for_scrub(true).await;
        assert!(pool.scans().error_scrub().is_none());
        assert_eq!(pool.status().scan.expect("a scan").errors, 0);
        pool.export(false).await.expect("export");
        zdb_is_clean(images.path(), "tank");
    }
}
