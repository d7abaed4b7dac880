//! What the datasets tell the pool: who keeps history, error logs, scans and events up to date.

use std::sync::Arc;

use dataset::{DatasetError, DslHooks, HistoryEvent};
use device::BoxFuture;
use format::{NvList, ObjectId, Txg};
use object::SyncContext;
use scan::Scan;
use spa::bootfs::BootFs;
use spa::errors::{Change, ErrorLog};
use spa::events::Events;
use spa::history::{HistoryLog, HistoryWhat};

/// What crate `dataset` tells this one.
pub(crate) struct Hooks {
    pub(crate) history: Arc<HistoryLog>,
    pub(crate) errors: Arc<ErrorLog>,
    pub(crate) bootfs: Arc<BootFs>,
    pub(crate) scan: Arc<Scan>,
    pub(crate) events: Arc<Events>,
}

impl DslHooks for Hooks {
    fn history<'a>(
        &'a self,
        ctx: &'a SyncContext,
        event: HistoryEvent,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        self.history.history(ctx, event)
    }

    fn fulfilled(&self, request: &'static str, input: NvList) {
        self.history.queue(HistoryWhat::Ioctl {
            name: request.to_owned(),
            input: Some(input),
            output: None,
        });
    }

    fn destroying<'a>(
        &'a self,
        ctx: &'a SyncContext,
        dataset: ObjectId,
        next: Option<ObjectId>,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        self.scan.destroyed(dataset, next);
        Box::pin(self.bootfs.destroying(ctx, dataset))
    }

    fn log_not_replayed(&self, dataset: &str, object: ObjectId, reason: &str) {
        self.events.log_not_replayed(dataset, object, reason);
    }

    fn snapshotted(&self, head: ObjectId, snapshot: ObjectId) {
        self.scan.snapshotted(head, snapshot);
    }

    fn swapped(&self, a: ObjectId, b: ObjectId) {
        self.scan.swapped(a, b);
    }

    fn destroyed(&self, head: ObjectId) {
        self.errors.note(Change::Destroyed(head));
    }

    fn promoted(&self, new_head: ObjectId, old_head: ObjectId, origin_txg: Txg) {
        self.errors.note(Change::Promoted {
            new_head,
            old_head,
            origin_txg,
        });
    }
}

#[cfg(test)]
mod tests {
    use device::World;
    use format::Bookmark;
    use format::{ObjectId, ObjsetId, Txg};
    use object::Zap;

    use spa::directory;

    use crate::{HostIdentity, ImportSpec, Pool, ScanSpec};

    /// Goal: what a whole scrub did not find any more is forgotten, on disk too
    /// (`spa_errlog_rotate`). Method: a golden pool; errors are told as the pipeline and scrubs
    /// tell them.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_scrub_replaces_the_log() {
        let Some(golden) = oracles::golden() else {
            return;
        };
        let dir = tempfile::tempdir().expect("a directory");
        let images = oracles::unpack(&golden, "mirror3", dir.path());
        let world = World::system(1);
        let paths = vec![images.to_str().expect("UTF-8").into()];
        let spec = ScanSpec {
            paths,
            ..ScanSpec::default()
        };
        let found = crate::scan(&world, &spec).await.expect("scan").remove(0);
        let pool = Pool::import(&world, ImportSpec::new(found, HostIdentity::default()))
            .await
            .expect("import");
        let name = pool.name();
        let head = pool
            .dsl()
            .directories()
            .lookup(&name)
            .await
            .expect("lookup")
            .object;
        let lost = |block| Bookmark {
            objset: ObjsetId::new(head.get()),
            object: ObjectId::new(2),
            level: 0,
            block_id: block,
        };
        let core = &pool.core;
        let logged = async |name: &str| {
            let log = core.dsl.directory().lookup_u64(name).await.expect("log");
            let log = log.expect("named");
            if log == 0 {
                return 0;
            }
            let zap = Zap::hold(core.dsl.mos(), log.into()).await.expect("ZAP");
            let child = zap.lookup_int(head.get()).await.expect("lookup");
            let child = Zap::hold(core.dsl.mos(), child.expect("a log").into()).await;
            child.expect("ZAP").count().await.expect("count")
        };
        for block in 1..=3 {
            core.errors.add(lost(block), Txg::new(5));
        }
        pool.sync().await.expect("sync");
        core.errors.begin_scrub();
        core.errors.add(lost(2), Txg::new(5));
        pool.sync().await.expect("sync");
        assert_eq!(logged(directory::ERRLOG_LAST).await, 3);
        assert_eq!(logged(directory::ERRLOG_SCRUB).await, 1);
        assert_eq!(core.errors.count(), 4);
        core.errors.add(lost(9), Txg::new(6));
        core.errors.end_scrub(true);
        assert_eq!(core.errors.count(), 1);
        pool.sync().await.expect("sync");
        assert_eq!(logged(directory::ERRLOG_LAST).await, 2);
        assert_eq!(logged(directory::ERRLOG_SCRUB).await, 0);
        assert_eq!(core.errors.count(), 2);
        // One that was stopped says nothing of what it did not come to.
        core.errors.begin_scrub();
        core.errors.end_scrub(false);
        pool.sync().await.expect("sync");
        assert_eq!(core.errors.count(), 2);
        core.errors.begin_scrub();
        core.errors.end_scrub(true);
        pool.sync().await.expect("sync");
        assert_eq!(core.errors.count(), 0);
        pool.export(false).await.expect("export");
        let zdb = std::process::Command::new("zdb")
            .args(["-e", "-d", "-p"])
            .arg(dir.path().join("mirror3"))
            .arg(&name)
            .output();
        if let Ok(zdb) = zdb {
            let text = String::from_utf8_lossy(&zdb.stdout);
            assert!(zdb.status.success() && !text.contains("leaked"), "{text}");
        }
    }
}
