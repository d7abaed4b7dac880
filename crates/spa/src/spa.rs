//! The ground that all parts of an open pool stand on.

use std::pin::pin;
use std::sync::Arc;

use dataset::{DslPool, SyncTask};
use device::World;
use format::{Guid, Txg, Uberblock};
use futures::future::{Either, select};
use parking_lot::Mutex;
use space::Space;
use vdev::VdevTree;
use zio::pipeline::FailMode;
use zio::{Pipeline, TxgManager, ZioError};

use crate::bootfs::BootFs;
use crate::config::PoolPairs;
use crate::dtl::DirtyTimes;
use crate::errors::ErrorLog;
use crate::events::Events;
use crate::history::HistoryLog;
use crate::identity::Identity;
use crate::props::{Props, Stored};
use crate::{HostIdentity, PoolError, Rewound, TxgTimeLog};

/// How far a pool's life is. Locked for a few instructions at a time, never across an await.
pub struct State {
    /// The last uberblock on disk.
    pub uberblock: Uberblock,
    /// The sync loop met an error that it cannot go on from.
    pub failure: Option<String>,
    /// What was given up to import it.
    pub rewound: Option<Rewound>,
    /// Exported or destroyed.
    pub closed: bool,
}

impl State {
    /// Of a pool that was at this uberblock.
    pub fn new(uberblock: Uberblock) -> Self {
        State {
            uberblock,
            failure: None,
            rewound: None,
            closed: false,
        }
    }
}

/// An open pool, as far as more than one of its parts needs it.
pub struct Spa {
    /// Devices, clock, randomness.
    pub world: World,
    /// Random number of this import (`spa_load_guid`).
    pub load_guid: u64,
    /// Who has the pool open. Its lock is for a look.
    pub host: Mutex<HostIdentity>,
    /// Nothing is written.
    pub read_only: bool,
    /// Prefix of all mount points; not stored.
    pub altroot: Option<String>,
    /// When it was opened, by the monotonic clock.
    pub opened_ns: u64,
    /// The vdevs.
    pub tree: Arc<VdevTree>,
    /// The I/O pipeline.
    pub pipeline: Arc<Pipeline>,
    /// The transaction groups.
    pub txgs: Arc<TxgManager>,
    /// The datasets, with the MOS.
    pub dsl: Arc<DslPool>,
    /// Space maps.
    pub space: Arc<Space>,
    /// Transaction groups that devices lack.
    pub dirty_times: DirtyTimes,
    /// When transaction groups were written.
    pub txg_times: TxgTimeLog,
    /// The command history.
    pub history: Arc<HistoryLog>,
    /// Damaged blocks.
    pub errors: Arc<ErrorLog>,
    /// Events, and those who are told of them.
    pub events: Arc<Events>,
    /// Property `bootfs`.
    pub bootfs: Arc<BootFs>,
    /// How far its life is.
    pub state: Mutex<State>,
    /// Name, version and the configuration.
    pub identity: Identity,
    /// Properties of the pool and of its vdevs.
    pub props: Props,
    /// Held while vdevs are added or removed, a checkpoint is made or discarded, a vdev's property
    /// is set.
    pub admin: tokio::sync::Mutex<()>,
}

impl Spa {
    /// The pool's identity.
    pub fn guid(&self) -> Guid {
        self.tree.guid()
    }

    /// The pool-level pairs of a configuration written in `txg`.
    pub fn pairs(&self, txg: Txg) -> PoolPairs {
        let host = self.host.lock().clone();
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
            hostid: host.hostid,
            hostname: host.hostname,
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

    /// Whether this txg has a MOS of its own.
    pub fn wrote(&self, txg: Txg) -> bool {
        self.dsl.root_bp().birth() == txg
    }

    /// Why the pool does not make progress, if it does not.
    pub fn suspended(&self) -> Option<String> {
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
    pub async fn until_suspended(&self) {
        let mut changes = self.pipeline.suspension().watch();
        while self.suspended().is_none() && changes.changed().await.is_ok() {}
    }

    /// Refuses an operation that would have to wait for a pool that stands still.
    ///
    /// # Errors
    /// [`PoolError::Suspended`], and those of [`Self::check_tasks`].
    pub fn check_not_suspended(&self) -> Result<(), PoolError> {
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
    pub fn check_tasks(&self) -> Result<(), PoolError> {
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
    ///
    /// # Errors
    /// Those of the work; [`PoolError::Suspended`] when the pool stands still.
    pub async fn unless_suspended<T, E: Into<PoolError>>(
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
    ///
    /// # Errors
    /// Those of the task; [`PoolError::Suspended`] when the pool stands still.
    pub async fn run_task(&self, task: impl SyncTask + 'static) -> Result<(), PoolError> {
        self.unless_suspended(self.dsl.tasks().run(Arc::new(task)))
            .await
    }

    /// Tells those who write what property `failmode` says.
    pub fn apply_fail_mode(&self) {
        let stored = self.props.get("failmode");
        // `panic` would take all other pools down as well: here it means to fail at once.
        let mode = match stored {
            Some(Stored::Number(1 | 2)) => FailMode::Continue,
            _ => FailMode::Wait,
        };
        self.pipeline.suspension().set_fail_mode(mode);
    }
}

/// Does what can only be done while the pool is not suspended, for a pool that nobody has yet. Once
/// it is suspended, it is given up, as by a crash: nobody could clear it.
///
/// # Errors
/// Those of the work; [`PoolError::Suspended`] when the pool stood still.
pub async fn unless_suspended<T>(
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

impl Drop for Spa {
    /// Also for a pool that nobody closed: space maps and pipeline know each other, and would stay
    /// in memory.
    fn drop(&mut self) {
        self.events.end();
        self.space.close();
    }
}
