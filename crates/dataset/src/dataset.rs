//! An open dataset: the handle that filesystems and volumes work on.
//!
//! The object set, its intent log and its settings are opened once for all handles
//! ([`OpenState`]), and let go of when the last handle is gone and everything is written.

use std::sync::Arc;

use device::BoxFuture;
use format::{DslDatasetPhys, Guid, ObjectId, ObjsetKind, Txg};
use object::ObjectSet;
use tokio::sync::watch;
use zil::{SyncMode, Zil};
use zio::Tx;

use crate::dsl::DslPool;
use crate::features::guid;
use crate::info::kind_of;
use crate::obstacle::ReceiveObstacle;
use crate::space::{Cost, Room};
use crate::state::{DatasetSettings, Ds, OpenState, ResumePoint, slot};
use crate::{DatasetError, DatasetKind, DirtyEstimate, PropertySetting};

/// How often an assignment is tried again when space may come free.
const ASSIGN_TRIES_MAX: u32 = 16;

impl DslPool {
    /// Opens a dataset or snapshot. The handle is a hold.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::KeyNotLoaded`], [`DatasetError::Receive`] of one
    /// that is being received, and of reading.
    pub fn open_dataset<'a>(
        self: &'a Arc<Self>,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Dataset, DatasetError>> {
        // In a box: what waits for it would else be a future too deep for the compiler.
        Box::pin(self.open_dataset_now(name))
    }

    async fn open_dataset_now(self: &Arc<Self>, name: &str) -> Result<Dataset, DatasetError> {
        let _config = self.config.read().await;
        let dataset = self.directories().resolve(name).await?;
        if dataset.is_inconsistent() {
            return Err(DatasetError::Receive {
                name: name.to_owned(),
                obstacle: match dataset.hold_count() {
                    0 => ReceiveObstacle::Interrupted,
                    _ => ReceiveObstacle::UnderWay,
                },
            });
        }
        // The hold comes first: a sync task checks it under the lock that we have.
        dataset.hold();
        let handle = Hold {
            dsl: self.clone(),
            dataset: dataset.clone(),
        };
        let _opening = dataset.opening.lock().await;
        let existing = dataset.open.lock().clone();
        let open = match existing {
            Some(open) => open,
            None => {
                let objset = self.datasets().open_objset(&dataset).await?;
                if !self.env().read_only && !dataset.is_snapshot() {
                    // Each group that overwrites something will need it, and must not fail.
                    drop(self.deadlists().of(&dataset).await?);
                }
                self.datasets().attach(&dataset, objset).await?
            }
        };
        Ok(Dataset { hold: handle, open })
    }

    /// Opens a snapshot as its blocks are stored, without its key. Others who open it get what is
    /// decrypted.
    pub(crate) async fn open_raw_snapshot(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<Dataset, DatasetError> {
        let _config = self.config.read().await;
        let dataset = self.directories().resolve(name).await?;
        dataset.hold();
        let handle = Hold {
            dsl: self.clone(),
            dataset: dataset.clone(),
        };
        let objset = self.datasets().open_raw_objset(&dataset).await?;
        let settings = self.properties().dataset_settings(&dataset).await?;
        let open = Arc::new(OpenState {
            objset,
            log: None,
            settings: watch::Sender::new(settings),
        });
        Ok(Dataset { hold: handle, open })
    }

    /// Opens a dataset that is received into, raw or not; it has no log meanwhile.
    pub(crate) async fn open_receiving(
        self: &Arc<Self>,
        object: ObjectId,
        is_raw: bool,
    ) -> Result<Dataset, DatasetError> {
        let _config = self.config.read().await;
        let dataset = self.directories().dataset(object).await?;
        dataset.hold();
        let handle = Hold {
            dsl: self.clone(),
            dataset: dataset.clone(),
        };
        let _opening = dataset.opening.lock().await;
        // The first one who opens it; another receive was refused.
        let objset = match is_raw {
            true => self.datasets().open_raw_objset(&dataset).await?,
            false => self.datasets().open_objset(&dataset).await?,
        };
        let open = self.datasets().attach_without_log(&dataset, objset).await?;
        Ok(Dataset { hold: handle, open })
    }
}

/// A hold on a dataset, given back when dropped.
struct Hold {
    dsl: Arc<DslPool>,
    dataset: Arc<Ds>,
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        self.dataset.hold();
        Hold {
            dsl: self.dsl.clone(),
            dataset: self.dataset.clone(),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.dataset.release()
            && let Some(log) = self.dataset.open_log()
            && !log.is_closed()
        {
            // As `zil_close` at unmount: then the object set can be let go of.
            log.close_in_background();
        }
    }
}

/// An open dataset. Each handle is a hold: a held dataset cannot be destroyed or rolled back.
/// Cheap to clone (another hold).
#[derive(Clone)]
pub struct Dataset {
    // The shared state goes before the hold.
    open: Arc<OpenState>,
    hold: Hold,
}

impl Dataset {
    fn ds(&self) -> &Arc<Ds> {
        &self.hold.dataset
    }
    /// Full name now (renames follow).
    pub fn name(&self) -> String {
        let state = self.ds().state();
        let head = state.dir.full_name(&self.hold.dsl.pool_name());
        match &state.snapshot_name {
            Some(name) if state.phys.is_snapshot() => format!("{head}@{name}"),
            _ => head,
        }
    }
    /// Its pool's datasets.
    pub fn dsl(&self) -> &Arc<DslPool> {
        &self.hold.dsl
    }
    /// Object number in the MOS.
    pub fn object(&self) -> ObjectId {
        self.ds().object
    }
    /// Identity.
    pub fn guid(&self) -> Guid {
        self.ds().state().phys.guid
    }
    /// Identity of the mounted filesystem: 56 bits (`ds_fsid_guid`).
    pub fn fsid_guid(&self) -> u64 {
        self.ds().state().phys.fsid_guid
    }
    /// Kind; a snapshot of a volume is a snapshot.
    pub fn kind(&self) -> DatasetKind {
        if self.is_snapshot() {
            DatasetKind::Snapshot
        } else {
            kind_of(self.open.objset.kind())
        }
    }
    /// What its objects are: a filesystem's or a volume's.
    pub fn objset_kind(&self) -> ObjsetKind {
        self.open.objset.kind()
    }
    /// Whether it is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.ds().is_snapshot()
    }
    /// Whether changes are refused, by its nature, its properties or the pool.
    pub fn is_read_only(&self) -> bool {
        self.settings().read_only
    }
    /// The properties that matter to whoever works on it.
    pub fn settings(&self) -> DatasetSettings {
        *self.open.settings.borrow()
    }
    /// Changes each time the settings do.
    pub fn watch_settings(&self) -> watch::Receiver<DatasetSettings> {
        self.open.settings.subscribe()
    }
    /// One property.
    ///
    /// # Errors
    /// Objects that cannot be read, and a name that no property has.
    pub async fn property(&self, name: &str) -> Result<PropertySetting, DatasetError> {
        let dsl = &self.hold.dsl;
        let _config = dsl.config.read().await;
        dsl.properties()
            .setting(self.ds(), name)
            .await?
            .ok_or_else(|| DatasetError::InvalidProperty {
                property: name.to_owned(),
                reason: format!("the dataset has no property '{name}'"),
            })
    }
    /// Its objects.
    pub fn objset(&self) -> &Arc<ObjectSet> {
        &self.open.objset
    }
    /// Its intent log; `None` for snapshots and pools open read-only.
    pub fn log(&self) -> Option<&Arc<Zil>> {
        self.open.log.as_ref()
    }

    /// Whether its blocks need a feature.
    pub fn uses_feature(&self, guid: &str) -> bool {
        self.ds().state().features.contains_key(guid)
    }

    /// GUIDs of the snapshots that it is redacted with, if it is: it lacks blocks that none of them
    /// has.
    pub fn redacted_with(&self) -> Option<Vec<u64>> {
        let state = self.ds().state();
        let guids = state.features.get(guid::REDACTED_DATASETS)?;
        Some(guids.to_u64s())
    }

    /// The txg in which it was made.
    pub fn creation_txg(&self) -> Txg {
        self.ds().state().phys.creation_txg
    }

    /// When it was made, in seconds since 1970.
    pub fn creation_seconds(&self) -> u64 {
        self.ds().state().phys.creation_time_seconds
    }

    /// Whether names in it are not sensitive to case, as the dataset says.
    pub fn is_case_insensitive(&self) -> bool {
        self.ds().state().phys.flags & DslDatasetPhys::FLAG_CASE_INSENSITIVE != 0
    }

    /// Whether a feature of the pool is enabled.
    pub fn has_feature(&self, guid: &str) -> bool {
        self.hold.dsl.features().is_enabled(guid)
    }

    /// Whether space is counted by owner, or will be: of what was received raw it is once it can be
    /// changed, of what is older than counting never.
    pub fn counts_owners(&self) -> bool {
        let is_counted = self.objset().flags() & format::OBJSET_FLAG_USER_ACCOUNTING != 0;
        is_counted || self.ds().is_encrypted()
    }

    /// Counts objects per owner, and space per project, and of what was received raw all space,
    /// from now on, as far as the pool's features let it. Answers the bits `format::OBJSET_FLAG_*`
    /// to set once every object was written again (`dmu_objset_id_quota_upgrade_cb`,
    /// module/zfs/dmu_objset.c); zero where there is nothing to do.
    pub fn begin_to_count(&self) -> u64 {
        let objset = self.objset();
        let flags = objset.flags();
        let can_change = !self.hold.dsl.env().read_only && !self.is_snapshot();
        if !can_change || objset.kind() != ObjsetKind::Filesystem {
            return 0;
        }
        let mut missing = 0;
        if !self.counts_owners() {
            return 0;
        }
        if flags & format::OBJSET_FLAG_USER_ACCOUNTING == 0 {
            // Of what was received raw, all is to be counted.
            missing = format::OBJSET_FLAG_USER_ACCOUNTING;
            objset.recount();
        }
        for (feature, flag) in [
            (
                guid::USEROBJ_ACCOUNTING,
                format::OBJSET_FLAG_USER_OBJECT_ACCOUNTING,
            ),
            (guid::PROJECT_QUOTA, format::OBJSET_FLAG_PROJECT_QUOTA),
        ] {
            if flags & flag == 0 && self.has_feature(feature) {
                missing |= flag;
                self.ds().state().activating.insert(feature);
            }
        }
        objset.count_also(missing);
        missing
    }

    /// The last txg that is on disk.
    pub fn synced_txg(&self) -> Txg {
        self.hold.dsl.env().txgs.synced_txg()
    }

    /// Joins the open txg to change the dataset; `readonly=on` does not keep from it (log replay,
    /// unlinked files), that is the caller's to check. A log that a crash left does, until it is
    /// replayed: it would come over what is newer.
    ///
    /// # Errors
    /// [`DatasetError::NoSpace`], [`DatasetError::QuotaExceeded`]; [`DatasetError::ReadOnly`] for
    /// what can never change; [`DatasetError::LogWaits`], [`DatasetError::LogPassedOver`].
    pub async fn assign(&self, estimate: DirtyEstimate) -> Result<Tx, DatasetError> {
        let dsl = &self.hold.dsl;
        if dsl.env().read_only || self.is_snapshot() {
            return Err(DatasetError::ReadOnly {
                name: self.name(),
                reason: "snapshots, and pools imported read-only, do not change",
            });
        }
        if let Some(log) = &self.open.log
            && log.forbids_changes()
        {
            let name = self.name();
            return Err(match log.is_unclaimed() {
                true => DatasetError::LogPassedOver { name },
                false => DatasetError::LogWaits { name },
            });
        }
        let txgs = &dsl.env().txgs;
        let allocator = dsl.env().pipeline.allocator();
        let cost = Cost::new(allocator, &self.open.objset.properties(), estimate);
        // What a log has was promised: no limit stops its replay, but the end of all space.
        let replays = self.open.log.as_ref().is_some_and(|log| log.is_replaying());
        let mut tries = 0;
        loop {
            let mut tx = txgs.assign(estimate.bytes).await?;
            match dsl.space().reserve(
                self.ds(),
                tx.txg(),
                cost.of_estimate(estimate),
                estimate.frees_space || replays,
            )? {
                Room::Granted(grant) => {
                    tx.settle_with(Box::new(move |added| grant.keep(cost.of_added(added))));
                    return Ok(tx);
                }
                Room::Later(why) => {
                    let txg = tx.txg();
                    drop(tx);
                    tries += 1;
                    if tries > ASSIGN_TRIES_MAX {
                        return Err(why);
                    }
                    txgs.wait_synced(txg).await?;
                }
            }
        }
    }

    /// Notes how far a receive into it came, with what the group of `tx` has.
    pub(crate) fn note_received(&self, tx: &Tx, point: ResumePoint) {
        self.ds().state().received[slot(tx.txg())] = Some(point);
        // Even where the object set is not dirty otherwise.
        let dirty = &self.hold.dsl.sync_state.datasets;
        dirty.add(tx.txg(), self.ds().clone());
    }

    /// Most bytes on disk that changes of txgs which are not on disk yet may come to, as counted
    /// against the space.
    pub fn in_flight_bytes(&self) -> u64 {
        let dir = self.ds().dir();
        let state = dir.state();
        state.to_write[0] + state.to_write[1]
    }

    /// Makes everything done to `object` (zero: to anything) durable, as property `sync` says.
    ///
    /// # Errors
    /// When the pool fails.
    pub async fn commit(&self, object: ObjectId) -> Result<(), DatasetError> {
        match &self.open.log {
            Some(log) => Ok(log.commit(object).await?),
            None if self.hold.dsl.env().read_only || self.is_snapshot() => Ok(()),
            None if self.settings().sync == SyncMode::Disabled => Ok(()),
            None => {
                self.hold.dsl.env().txgs.sync().await?;
                Ok(())
            }
        }
    }

    /// Space referenced, and space still available to it, both in bytes (statfs).
    pub fn space(&self) -> (u64, u64) {
        let referenced = self.ds().state().phys.referenced_bytes;
        let available = if self.is_snapshot() {
            0
        } else {
            self.hold.dsl.space().available_to(self.ds())
        };
        (referenced, available)
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Dataset")
            .field("name", &self.name())
            .field("object", &self.object())
            .finish_non_exhaustive()
    }
}
