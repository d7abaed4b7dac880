//! The state of an open pool, shared by its handle and its sync loop.

use std::pin::pin;
use std::sync::Arc;

use dataset::{DslPool, SyncTask};
use device::{Tasks, World};
use format::{Guid, Txg, Uberblock};
use futures::future::{Either, select};
use parking_lot::Mutex;
use space::Space;
use vdev::VdevTree;
use zio::pipeline::FailMode;
use zio::{Pipeline, TxgManager, ZioError};

use crate::auxiliary::Auxiliary;
use crate::checkpoint::Checkpoint;
use crate::claims::LogClaims;
use crate::config::PoolPairs;
use crate::dedup::{Dedup, QUOTA_AUTO};
use crate::deferred::{DeferredFrees, Salt};
use crate::dtl::DirtyTimes;
use crate::errors::ErrorLog;
use crate::events::Events;
use crate::history::HistoryLog;
use crate::identity::Identity;
use crate::participant::Participant;
use crate::props::{Props, Stored};
use crate::scan::Scan;
use crate::topology::Replacements;
use crate::vdevs::NewTops;
use crate::{HostIdentity, PoolError, Rewound};

/// How far a pool's life is. Locked for a few instructions at a time, never across an await.
pub(crate) struct State {
    /// The last uberblock on disk.
    pub(crate) uberblock: Uberblock,
    /// The sync loop met an error that it cannot go on from.
    pub(crate) failure: Option<String>,
    /// What was given up to import it.
    pub(crate) rewound: Option<Rewound>,
    /// Exported or destroyed.
    pub(crate) closed: bool,
}

impl State {
    /// Of a pool that was at this uberblock.
    pub(crate) fn new(uberblock: Uberblock) -> Self {
        State {
            uberblock,
            failure: None,
            rewound: None,
            closed: false,
        }
    }
}

/// An open pool.
pub(crate) struct Core {
    pub(crate) world: World,
    /// Random number of this import (`spa_load_guid`).
    pub(crate) load_guid: u64,
    pub(crate) host: HostIdentity,
    pub(crate) read_only: bool,
    pub(crate) altroot: Option<String>,
    /// When it was opened, by the monotonic clock.
    pub(crate) opened_ns: u64,
    pub(crate) tree: Arc<VdevTree>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) txgs: Arc<TxgManager>,
    pub(crate) dsl: Arc<DslPool>,
    pub(crate) space: Arc<Space>,
    pub(crate) dirty_times: DirtyTimes,
    pub(crate) dedup: Arc<Dedup>,
    pub(crate) history: Arc<HistoryLog>,
    pub(crate) errors: Arc<ErrorLog>,
    pub(crate) events: Arc<Events>,
    pub(crate) bootfs: Arc<crate::bootfs::BootFs>,
    /// Scrub and resilver.
    pub(crate) scan: Arc<Scan>,
    /// Heartbeats of multi-host protection.
    pub(crate) heart: crate::multihost::Heart,
    /// Discards of free space.
    pub(crate) trim: crate::trim::Trim,
    pub(crate) state: Mutex<State>,
    /// Name, version and the configuration.
    pub(crate) identity: Identity,
    /// Properties of the pool and of its vdevs.
    pub(crate) props: Props,
    /// Spares and second-level cache devices, as the MOS lists them.
    pub(crate) auxiliary: Mutex<Auxiliary>,
    /// The pool's checkpoint.
    pub(crate) checkpoint: Checkpoint,
    /// Logs that the first transaction group claims.
    pub(crate) claims: LogClaims,
    /// The salt of checksums, until the MOS has it.
    pub(crate) salt: Salt,
    /// Frees that another release put off.
    pub(crate) deferred_frees: DeferredFrees,
    /// Top-level vdevs that are being added.
    pub(crate) new_tops: NewTops,
    /// Devices that have been replaced.
    pub(crate) replacements: Replacements,
    /// Devices that spares are to stand in for.
    pub(crate) spares: Arc<crate::spares::Spares>,
    /// What is in the places of devices and cannot replace them.
    pub(crate) returned: crate::returning::Refused,
    /// Held while vdevs are added or removed.
    pub(crate) admin: tokio::sync::Mutex<()>,
    /// Tables of cloned blocks.
    pub(crate) clones: crate::clones::CloneTables,
    /// What is only read, once.
    pub(crate) tables: crate::tables::Tables,
    /// The sync loop.
    pub(crate) looping: Tasks,
}

impl Core {
    /// What takes part in writing a transaction group, in the order of turns.
    pub(crate) fn participants(&self) -> [&dyn Participant; 18] {
        [
            &self.claims,
            &*self.history,
            &self.salt,
            // What it finds out goes into error and dirty time logs.
            &*self.scan,
            &self.tables.error_scrub,
            // Before this txg's changes of space are recorded.
            &self.tables.rebuilds,
            // Frees settle in what follows.
            &self.deferred_frees,
            &*self.errors,
            &self.clones,
            &*self.dedup,
            &self.checkpoint,
            &self.trim,
            // Frees dirty times.
            &self.replacements,
            // With devices, their ZAPs go.
            &self.tables.activities,
            &self.dirty_times,
            // Whatever allocates or frees does so before.
            &*self.space,
            &self.new_tops,
            // Tells what the others did to the vdevs.
            &self.identity,
        ]
    }

    /// Whether a scan, or a rebuild, reaches the devices that were there when it began.
    pub(crate) fn is_scanning(&self) -> bool {
        self.scan.is_running() || self.is_rebuilding()
    }

    /// The pool's identity.
    pub(crate) fn guid(&self) -> Guid {
        self.tree.guid()
    }

    /// The pool-level pairs of a configuration written in `txg`.
    pub(crate) fn pairs(&self, txg: Txg) -> PoolPairs {
        let state = self.identity.lock();
        PoolPairs {
            version: state.version,
            name: state.disk_name.clone(),
            state: state.pool_state,
            txg: txg.get(),
            guid: self.guid().get(),
            errata: state.errata,
            comment: state.comment.clone(),
            compatibility: state.compatibility.clone(),
            hostid: self.host.hostid,
            hostname: self.host.hostname.clone(),
            holes: self
                .tree
                .tops()
                .iter()
                .filter(|top| top.kind().is_hole())
                .map(|top| top.id())
                .collect(),
            label_features: self.dsl.features().in_labels(),
            split_guid: state.split_guid,
            splitting: state.splitting.clone(),
        }
    }

    /// Why the pool does not make progress, if it does not.
    pub(crate) fn suspended(&self) -> Option<String> {
        self.state
            .lock()
            .failure
            .clone()
            .or_else(|| match self.pipeline.suspension().error()? {
                ZioError::Suspended { reason } => Some(reason),
                error => Some(error.to_string()),
            })
    }

    /// Returns when the pool is suspended.
    pub(crate) async fn until_suspended(&self) {
        let mut changes = self.pipeline.suspension().watch();
        while self.suspended().is_none() && changes.changed().await.is_ok() {}
    }

    /// Refuses what would have to wait for a pool that stands still.
    pub(crate) fn check_not_suspended(&self) -> Result<(), PoolError> {
        self.check_tasks()?;
        match self.suspended() {
            Some(why) => Err(PoolError::Suspended {
                pool: self.identity.name(),
                why,
            }),
            None => Ok(()),
        }
    }

    /// # Errors
    /// [`ZioError::TaskPanicked`] when that stopped the pool for good.
    pub(crate) fn check_tasks(&self) -> Result<(), PoolError> {
        match self
            .pipeline
            .suspension()
            .error()
            .filter(ZioError::is_final)
        {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Waits for something that needs txgs to be synced, but not for a pool that is suspended or
    /// gets so: who holds `admin` would keep everybody else from it.
    pub(crate) async fn unless_suspended<T, E: Into<PoolError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, PoolError> {
        self.check_not_suspended()?;
        match select(pin!(work), pin!(self.until_suspended())).await {
            Either::Left((result, _)) => result.map_err(Into::into),
            Either::Right(_) => {
                self.check_not_suspended()?;
                Err(ZioError::Closing.into())
            }
        }
    }

    /// Has a task done. One that waits for its turn when the pool is suspended is withdrawn; of one
    /// that was done but is not on disk, it is said as well that the pool is suspended.
    pub(crate) async fn run_task(&self, task: impl SyncTask + 'static) -> Result<(), PoolError> {
        self.unless_suspended(self.dsl.tasks().run(Arc::new(task)))
            .await
    }

    /// Tells those who write what property `failmode` says.
    pub(crate) fn apply_fail_mode(&self) {
        let stored = self.props.get("failmode");
        // `panic` would take all other pools down as well: here it means to fail at once.
        let mode = match stored {
            Some(Stored::Number(1 | 2)) => FailMode::Continue,
            _ => FailMode::Wait,
        };
        self.pipeline.suspension().set_fail_mode(mode);
    }

    /// Tells the dedup tables what property `dedup_table_quota` says.
    pub(crate) fn apply_dedup_quota(&self) {
        let stored = self.props.get("dedup_table_quota");
        self.dedup.set_quota(match stored {
            Some(Stored::Number(bytes)) => bytes,
            _ => QUOTA_AUTO,
        });
    }

    /// Tells the allocator what dedup and cloning save.
    pub(crate) fn note_saved_space(&self) {
        let saved = self
            .dedup
            .status()
            .saved_bytes()
            .saturating_add(self.clones.status().saved_bytes);
        self.pipeline.allocator().set_saved_bytes(saved);
    }

    /// Lets go of everything; the sync loop has ended.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.scan.closed();
        self.tables.rebuilds.closed();
        self.tables.error_scrub.closed();
        self.auxiliary.lock().release();
        self.dsl.tasks().close();
        // Of a pool that is given up, some may wait for devices that never answer.
        self.pipeline.tasks().cancel();
        self.space.close();
        self.tree.close();
    }

    /// Waits until the sync loop has ended.
    pub(crate) async fn wait_ended(&self) {
        self.looping.wait().await;
    }
}

/// Does what can only be done while the pool is not suspended, for a pool that nobody has yet. Once
/// it is suspended, it is given up, as by a crash: nobody could clear it.
pub(crate) async fn unless_suspended<T>(
    pipeline: &Pipeline,
    pool: &str,
    work: impl Future<Output = Result<T, PoolError>>,
) -> Result<T, PoolError> {
    let mut changes = pipeline.suspension().watch();
    let suspended = async {
        loop {
            if let Some(error) = pipeline.suspension().error() {
                return error;
            }
            if changes.changed().await.is_err() {
                return ZioError::Closing;
            }
        }
    };
    match select(pin!(work), pin!(suspended)).await {
        Either::Left((result, _)) => result,
        Either::Right((error, _)) => {
            pipeline.suspension().abandon(ZioError::Closing);
            Err(PoolError::Suspended {
                pool: pool.to_owned(),
                why: match error {
                    ZioError::Suspended { reason } => reason,
                    error => error.to_string(),
                },
            })
        }
    }
}

impl Drop for Core {
    /// Also for a pool that nobody closed: space maps and pipeline know each other, and would stay
    /// in memory.
    fn drop(&mut self) {
        self.events.end();
        self.spares.end();
        self.space.close();
    }
}
