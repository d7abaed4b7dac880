//! The state of an open pool, shared by its handle and its sync loop.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use dataset::{DslPool, LogClaim, SyncTask};
use device::{Tasks, World};
use format::{Guid, ObjectId, Txg, Uberblock};
use futures::future::{Either, select};
use parking_lot::Mutex;
use vdev::Vdev;
use vdev::VdevTree;
use zio::pipeline::FailMode;
use zio::{Pipeline, TxgManager, ZioError};

use crate::auxiliary::Auxiliary;
use crate::checkpoint::CheckpointState;
use crate::config::PoolPairs;
use crate::dedup::{Dedup, QUOTA_AUTO};
use crate::dtl::DirtyTimes;
use crate::errors::ErrorLog;
use crate::features;
use crate::history::HistoryLog;
use crate::props::Stored;
use crate::scrub::Scrub;
use crate::space::Space;
use crate::vdevprops::VdevProps;
use crate::{HostIdentity, PoolError, Rewound, ScanStatus};

/// What changes while a pool is open. Locked for a few instructions at a time, never across an await.
pub(crate) struct State {
    /// Name shown to people.
    pub(crate) name: String,
    /// Name written to disk: differs while a temporary name is used.
    pub(crate) disk_name: String,
    /// `POOL_STATE_*` to be written.
    pub(crate) pool_state: u64,
    pub(crate) version: u64,
    pub(crate) errata: u64,
    pub(crate) comment: Option<String>,
    pub(crate) compatibility: Option<String>,
    /// The configuration must be written to the MOS and to all labels.
    pub(crate) config_dirty: bool,
    /// Txg of the configuration that is in the labels.
    pub(crate) config_txg: Txg,
    /// MOS object of the packed configuration.
    pub(crate) config_object: ObjectId,
    /// MOS object of the ZAP of vdev ZAPs; zero without.
    pub(crate) all_vdev_zaps: ObjectId,
    /// MOS object of the frees that wait (`sync_bplist`); zero without.
    pub(crate) deferred_frees: ObjectId,
    /// MOS object of pool properties; zero without.
    pub(crate) props_object: ObjectId,
    /// Stored properties.
    pub(crate) props: BTreeMap<String, Stored>,
    /// Properties of vdevs as they are stored, by the ZAP that has them.
    pub(crate) vdev_props: BTreeMap<ObjectId, VdevProps>,
    /// Property `cachefile`: for the daemon, not stored.
    pub(crate) cachefile: Option<String>,
    /// The last uberblock on disk.
    pub(crate) uberblock: Uberblock,
    /// Top-level vdevs that blocks can go to once the txg that is being written is on disk.
    pub(crate) added_tops: Vec<Arc<Vdev>>,
    /// Flush all metaslabs in the next txg (before export).
    pub(crate) flush_all: bool,
    /// Logs of datasets must be claimed in the next txg.
    pub(crate) claim_logs: Option<LogClaim>,
    /// Newest birth of what was claimed: users wait until this txg is on disk.
    pub(crate) claimed_birth: Txg,
    /// The checksum salt is not in the MOS yet.
    pub(crate) salt_missing: Option<[u8; 32]>,
    /// Spares and second-level cache devices, as the MOS lists them.
    pub(crate) auxiliary: Auxiliary,
    /// The pool's checkpoint.
    pub(crate) checkpoint: CheckpointState,
    /// The last scrub or resilver.
    pub(crate) scan: Option<ScanStatus>,
    /// The same as stored (`dsl_scan_phys_t`); empty without.
    pub(crate) scan_words: Vec<u64>,
    /// The sync loop met an error that it cannot go on from.
    pub(crate) failure: Option<String>,
    /// What was given up to import it.
    pub(crate) rewound: Option<Rewound>,
    /// Exported or destroyed.
    pub(crate) closed: bool,
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
    pub(crate) bootfs: Arc<crate::bootfs::BootFs>,
    pub(crate) scrub: Scrub,
    /// Heartbeats of multi-host protection.
    pub(crate) heart: crate::multihost::Heart,
    /// Discards of free space.
    pub(crate) trim: crate::trim::Trim,
    pub(crate) state: Mutex<State>,
    /// Held while vdevs are added or removed.
    pub(crate) admin: tokio::sync::Mutex<()>,
    /// Ranges of a discarded checkpoint that are freed in one txg.
    pub(crate) discard_step: AtomicUsize,
    /// Tables of cloned blocks.
    pub(crate) clones: crate::clones::CloneTables,
    /// What is only read, once.
    pub(crate) tables: crate::tables::Tables,
    /// The sync loop.
    pub(crate) looping: Tasks,
}

impl Core {
    /// The pool's identity.
    pub(crate) fn guid(&self) -> Guid {
        self.tree.guid()
    }

    /// The pool-level pairs of a configuration written in `txg`.
    pub(crate) fn pairs(&self, txg: Txg) -> PoolPairs {
        let state = self.state.lock();
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
            label_features: features::in_label(self.dsl.features()),
        }
    }

    /// Why the pool does not make progress, if it does not.
    pub(crate) fn suspended(&self) -> Option<String> {
        self.state
            .lock()
            .failure
            .clone()
            .or_else(|| match self.pipeline.suspended()? {
                ZioError::Suspended { reason } => Some(reason),
                error => Some(error.to_string()),
            })
    }

    /// Returns when the pool is suspended.
    pub(crate) async fn until_suspended(&self) {
        let mut changes = self.pipeline.suspension();
        while self.suspended().is_none() && changes.changed().await.is_ok() {}
    }

    /// Refuses what would have to wait for a pool that stands still.
    pub(crate) fn check_not_suspended(&self) -> Result<(), PoolError> {
        self.check_tasks()?;
        match self.suspended() {
            Some(why) => Err(PoolError::Suspended {
                pool: self.state.lock().name.clone(),
                why,
            }),
            None => Ok(()),
        }
    }

    /// # Errors
    /// [`ZioError::TaskPanicked`] when that stopped the pool for good.
    pub(crate) fn check_tasks(&self) -> Result<(), PoolError> {
        match self.pipeline.suspended().filter(ZioError::is_final) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Waits for something that needs txgs to be synced, but not for a pool that is suspended or gets so: who holds
    /// `admin` would keep everybody else from it.
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

    /// Has a task done. One that waits for its turn when the pool is suspended is withdrawn; of one that was done but is
    /// not on disk, it is said as well that the pool is suspended.
    pub(crate) async fn run_task(&self, task: impl SyncTask + 'static) -> Result<(), PoolError> {
        self.unless_suspended(self.dsl.tasks().run(Arc::new(task)))
            .await
    }

    /// Tells those who write what property `failmode` says.
    pub(crate) fn apply_fail_mode(&self) {
        let stored = self.state.lock().props.get("failmode").cloned();
        // `panic` would take all other pools down as well: here it means to fail at once.
        let mode = match stored {
            Some(Stored::Number(1 | 2)) => FailMode::Continue,
            _ => FailMode::Wait,
        };
        self.pipeline.set_fail_mode(mode);
    }

    /// Tells the dedup tables what property `dedup_table_quota` says.
    pub(crate) fn apply_dedup_quota(&self) {
        let stored = self.state.lock().props.get("dedup_table_quota").cloned();
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
        {
            let mut state = self.state.lock();
            state.closed = true;
            state.auxiliary.release();
        }
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

/// Does what can only be done while the pool is not suspended, for a pool that nobody has yet. Once it is suspended,
/// it is given up, as by a crash: nobody could clear it.
pub(crate) async fn unless_suspended<T>(
    pipeline: &Pipeline,
    pool: &str,
    work: impl Future<Output = Result<T, PoolError>>,
) -> Result<T, PoolError> {
    let mut changes = pipeline.suspension();
    let suspended = async {
        loop {
            if let Some(error) = pipeline.suspended() {
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
            pipeline.abandon(ZioError::Closing);
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
    /// Also for a pool that nobody closed: space maps and pipeline know each other, and would stay in memory.
    fn drop(&mut self) {
        self.space.close();
    }
}
