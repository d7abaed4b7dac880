//! Goal: pools of versions before feature flags that other software had in between are taken over
//! with nothing lost and nothing left behind; what they cannot have is refused. Method: pools of
//! ours whose uberblocks are changed to say what other software would; zdb judges in the end.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use codec::checksum::{label_verifier, seal};
use dataset::DatasetError;
use device::World;
use filesystem::{Filesystem, FsError, QuotaKind, ZplInit};
use format::{
    Checksum, Endian, LABEL_COUNT, LABEL_UBERBLOCK_OFFSET, LABEL_UBERBLOCK_RING_BYTES, ObjectId,
    ObjectType, Uberblock, label_offset,
};
use pool::{CreateSpec, FeatureChoice, ImportSpec, Pool, ScrubCommand};

use crate::common::*;

/// Places in an uberblock, in bytes.
const VERSION: usize = 8;
const SOFTWARE_VERSION: usize = 168;

/// Writes a number into every uberblock of an image.
fn change_uberblocks(image: &Image, place: usize, number: u64) {
    let path = image.path().join("d0.img");
    let file = File::options().read(true).write(true).open(path);
    let file = file.expect("the image");
    let size = file.metadata().expect("its size").len();
    let mut changed = 0;
    for label in 0..LABEL_COUNT {
        let ring = label_offset(size, label).expect("labels") + LABEL_UBERBLOCK_OFFSET;
        let mut all = vec![0; LABEL_UBERBLOCK_RING_BYTES as usize];
        file.read_exact_at(&mut all, ring).expect("the image");
        let is_there = |at: &usize| Uberblock::decode(&all[*at..*at + 1024]).is_ok();
        let starts: Vec<usize> = (0..all.len()).step_by(1024).filter(is_there).collect();
        let apart = starts.windows(2).map(|pair| pair[1] - pair[0]).min();
        let slot = apart.expect("several uberblocks");
        for start in starts {
            let mut bytes = all[start..start + slot].to_vec();
            bytes[place..place + 8].copy_from_slice(&number.to_le_bytes());
            let at = ring + start as u64;
            let verifier = label_verifier(at);
            seal(Checksum::Label, Endian::Little, &verifier, &mut bytes).expect("a slot");
            file.write_all_at(&bytes, at).expect("the image");
            changed += 1;
        }
    }
    assert!(changed > 4, "{changed}");
}

/// A new pool of this version.
async fn of_version(world: &World, image: &Image, version: u64) -> Arc<Pool> {
    let spec = CreateSpec {
        properties: vec![("version".to_owned(), version.to_string())],
        ..spec_with(image, FeatureChoice::All, &[])
    };
    Pool::create(world, spec).await.expect("create")
}

async fn write(fs: &Filesystem, name: &str, text: &'static str) {
    let made = fs.create(fs.root(), name.as_bytes(), 0o644, ROOT).await;
    let ino = made.expect("create").ino;
    let data = Bytes::from_static(text.as_bytes());
    fs.write(ino, 0, data, false, ROOT).await.expect("write");
    fs.sync_file(ino).await.expect("durable");
}

/// Whether the root filesystem has the head of a log on disk, as an import that changes nothing
/// finds it.
async fn has_log(world: &World, image: &Image) -> bool {
    let spec = ImportSpec {
        read_only: true,
        force: true,
        ..ImportSpec::new(find(world, image.path()).await, host())
    };
    let pool = Pool::import(world, spec).await.expect("import");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let has_log = !dataset.objset().zil_header().log.is_hole();
    drop(dataset);
    pool.export(false).await.expect("export");
    has_log
}

/// OpenZFS leaves the head of a log with every filesystem that was written synchronously. Before
/// version 27 a snapshot must not have it: one without records goes at the import, one with records
/// is replayed first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_other_software_get_into_no_snapshot() {
    for has_records in [false, true] {
        let world = World::system(2);
        let image = Image::new(256);
        let pool = of_version(&world, &image, 27).await;
        let fs = open(&world, &pool, "tank").await;
        for (name, text) in [("a", "first"), ("b", "second")] {
            write(&fs, name, text).await;
        }
        pool.sync().await.expect("sync");
        if has_records {
            write(&fs, "c", "third").await;
        }
        let cut = cut(&image);
        fs.close().await.expect("close");
        pool.export(false).await.expect("export");
        drop((fs, pool));

        change_uberblocks(&cut, VERSION, 26);
        assert!(has_log(&world, &cut).await);
        let pool = import_after_cut(&world, cut.path()).await;
        assert_eq!(pool.status().version, 26);
        let names = ["tank@now".to_owned()];
        let taken = pool.dsl().snapshots().take(&names, &[]).await;
        if has_records {
            let is_refused = matches!(taken, Err(DatasetError::LogWaits { .. }));
            assert!(is_refused, "{taken:?}");
        } else {
            taken.expect("nothing waits to be replayed");
        }
        let fs = open(&world, &pool, "tank").await;
        let found = fs.lookup(fs.root(), b"c").await;
        assert_eq!(found.is_ok(), has_records, "{found:?}");
        if has_records {
            let taken = pool.dsl().snapshots().take(&names, &[]).await;
            taken.expect("it is replayed");
        }
        // Durable without a log.
        write(&fs, "d", "fourth").await;
        fs.close().await.expect("close");
        let snapshot = pool.dsl().open_dataset("tank@now").await.expect("opens");
        assert!(snapshot.objset().zil_header().log.is_hole());
        drop(snapshot);
        pool.export(false).await.expect("export");
        drop((fs, pool));
        assert!(!has_log(&world, &cut).await);
        zdb_is_clean(cut.path(), "tank");
    }
}

/// Words of the scan that is stored: its state, and the object of its queue.
async fn stored_scan(pool: &Pool) -> (u64, ObjectId) {
    let stored = pool.dsl().directory().lookup("scan").await.expect("read");
    let words = stored.expect("a scan").to_u64s();
    (words[1], ObjectId::new(words[2]))
}

/// A scan of ours that software from before version 25 came between is given up, with its queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_a_scan_that_is_given_up() {
    const SCANNING: u64 = 1;
    const CANCELED: u64 = 3;
    let world = World::system(2);
    let image = Image::new(256);
    let pool = of_version(&world, &image, 24).await;
    let fs = open(&world, &pool, "tank").await;
    write(&fs, "a", "text").await;
    fs.close().await.expect("close");
    drop(fs);
    pool.scans().hold(true);
    let begun = pool.scans().scrub(ScrubCommand::Start).await;
    begun.expect("begun");
    for _ in 0..2 {
        pool.sync().await.expect("sync");
    }
    let (state, queue) = stored_scan(&pool).await;
    assert_eq!(state, SCANNING);
    assert!(!queue.is_zero());
    pool.export(false).await.expect("export");
    drop(pool);

    change_uberblocks(&image, SOFTWARE_VERSION, 24);
    let pool = import(&world, image.path(), false).await;
    pool.sync().await.expect("sync");
    assert_eq!(stored_scan(&pool).await, (CANCELED, ObjectId::ZERO));
    if let Ok(other) = pool.dsl().mos().hold(queue).await {
        assert_ne!(other.info().object_type, ObjectType::SCAN_QUEUE);
    }
    pool.export(false).await.expect("export");
    drop(pool);
    // It tells of objects that nobody refers to.
    zdb_is_clean(image.path(), "tank");
}

/// Filesystems from before the pool counted who uses what get no quotas, whatever their version is
/// by now; those that are made later do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_need_that_space_was_counted() {
    let (kind, id) = (QuotaKind::User, 1000);
    let world = World::system(2);
    let image = Image::new(256);
    let pool = of_version(&world, &image, 14).await;
    let fs = open(&world, &pool, "tank").await;
    assert_eq!(fs.version(), 3);
    let made = fs.create(fs.root(), b"file", 0o644, ROOT).await;
    made.expect("made");
    let is_unsupported = |result: Result<(), FsError>, why: &str| match result {
        Err(FsError::Unsupported { what }) => assert!(what.contains(why), "{what}"),
        other => panic!("{why}: {other:?}"),
    };
    is_unsupported(fs.quotas().set(kind, id, false, 9).await, "before 4");
    pool.properties().raise_version(15).await.expect("raised");
    fs.raise_version(4).await.expect("raised");
    fs.close().await.expect("close");
    drop(fs);

    let fs = open(&world, &pool, "tank").await;
    assert_eq!(fs.version(), 4);
    let why = "before space was counted";
    is_unsupported(fs.quotas().set(kind, id, false, 1 << 20).await, why);
    is_unsupported(fs.quotas().set_default(kind, false, 1 << 20).await, why);
    // One that OpenZFS set can go.
    fs.quotas().set(kind, id, false, 0).await.expect("none");
    let removed = fs.quotas().set_default(kind, false, 0).await;
    removed.expect("none");
    fs.close().await.expect("close");
    drop(fs);

    let datasets = pool.dsl().datasets();
    let made = datasets.create("tank/new", &[], Arc::new(ZplInit::new()));
    made.await.expect("create");
    let fs = open(&world, &pool, "tank/new").await;
    let set = fs.quotas().set(kind, id, false, 1 << 20).await;
    set.expect("its space is counted");
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    drop(pool);
    zdb_is_clean(image.path(), "tank");
}
