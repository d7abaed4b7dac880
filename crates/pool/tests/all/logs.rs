//! Goal: the intent logs of a pool whose power was cut under OpenZFS are claimed and read whole,
//! with every record that OpenZFS knows how to write, and given back; also those of encrypted
//! datasets, which nobody can replay without the keys, stay as they are. Method: golden pools; a
//! target that keeps the records; the pool's own allocation checked by zdb. Replaying into
//! filesystems and volumes is tested with those.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::*;
use device::{BoxFuture, World};
use format::LogKind;
use parking_lot::Mutex;
use pool::{ImportSpec, Pool};
use zil::{ReplayError, ReplayRecord, ReplayTarget};

#[derive(Default)]
struct Keep(Mutex<Vec<ReplayRecord>>);

impl ReplayTarget for Keep {
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>> {
        self.0.lock().push(record);
        Box::pin(async { Ok(()) })
    }
}

/// Records by kind; and how many writes have their data in a block of its own.
fn kinds(records: &[ReplayRecord]) -> (BTreeMap<LogKind, usize>, usize) {
    let mut kinds = BTreeMap::new();
    for record in records {
        *kinds.entry(record.kind).or_default() += 1;
    }
    let indirect = records
        .iter()
        .filter(|record| record.data.is_some())
        .count();
    (kinds, indirect)
}

async fn replay_all(golden: &std::path::Path, name: &str) {
    let images = Images::new();
    let dir = unpack(golden, name, images.path());
    let world = World::system(2);
    let found = find(&world, &dir).await;
    let pool = Pool::import(&world, ImportSpec::new(found, host()))
        .await
        .expect("import");
    let mut indirect = BTreeMap::new();
    for dataset in ["always", "std", "thru", "rec1m", "xdir", "ci", "vol"] {
        let full = format!("{name}/{dataset}");
        let handle = pool.dsl().open_dataset(&full).await.expect("open");
        let log = Arc::clone(handle.log().expect("a log"));
        assert!(log.needs_replay(), "{full}");
        let kept = Keep::default();
        let count = log.replay(&kept).await.expect("replay");
        let records = kept.0.lock();
        // Those about objects that are gone are not given to the target.
        assert_eq!(count, records.len() as u64);
        assert!(
            records.is_sorted_by(|a, b| a.sequence < b.sequence),
            "{full}"
        );
        let (kinds, blocks) = kinds(&records);
        indirect.insert(dataset, blocks);
        if dataset == "always" {
            // Every kind of record that OpenZFS 2.3 writes on Linux for these operations.
            for kind in [
                LogKind::Create,
                LogKind::Mkdir,
                LogKind::Symlink,
                LogKind::Remove,
                LogKind::Rmdir,
                LogKind::Link,
                LogKind::Rename,
            ] {
                assert!(kinds.contains_key(&kind), "{full}: kind {kind:?}");
            }
        }
        if dataset == "vol" {
            let of_volumes = [LogKind::Write, LogKind::Truncate];
            assert!(
                kinds.keys().all(|kind| of_volumes.contains(kind)),
                "{kinds:?}"
            );
        }
        drop(records);
        assert!(!log.needs_replay());
        assert!(handle.objset().zil_header().log.is_hole());
    }
    // `logbias=throughput` writes data in place.
    assert!(indirect["thru"] > 0, "{indirect:?}");
    // The log of the encrypted dataset waits for its key, and the references of its clones with it.
    pool.export(false).await.expect("export");
    zdb_is_clean(&dir, name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_openzfs_are_claimed_read_and_given_back() {
    let Some(golden) = golden() else { return };
    replay_all(&golden, "zil_dirty").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_on_log_devices_too() {
    let Some(golden) = golden() else { return };
    replay_all(&golden, "zil_dirty_slog").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_claimed_once_and_wait_for_their_replay() {
    let Some(golden) = golden() else { return };
    let images = Images::new();
    let dir = unpack(&golden, "zil_dirty", images.path());
    let world = World::system(2);
    for round in 0..3 {
        let found = find(&world, &dir).await;
        let pool = Pool::import(&world, ImportSpec::new(found, host()))
            .await
            .expect("import");
        let handle = pool
            .dsl()
            .open_dataset("zil_dirty/always")
            .await
            .expect("open");
        assert!(handle.log().expect("a log").needs_replay(), "round {round}");
        drop(handle);
        pool.export(true).await.expect("left as it is");
        zdb_is_clean(&dir, "zil_dirty");
    }
    // Read-only there is no log to replay.
    let mut spec = ImportSpec::new(find(&world, &dir).await, host());
    spec.read_only = true;
    let pool = Pool::import(&world, spec).await.expect("import");
    let handle = pool
        .dsl()
        .open_dataset("zil_dirty/always")
        .await
        .expect("open");
    assert!(handle.log().is_none());
    drop(handle);
    pool.export(false).await.expect("export");
}
