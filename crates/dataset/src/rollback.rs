//! Rolling a dataset back to its most recent snapshot (`dsl_dataset_rollback_sync`): a clone of the
//! snapshot is made, the two swap what they have (`dsl_dataset_clone_swap_sync_impl`), and the
//! clone, which then has what the dataset had, is destroyed in the background.

use std::sync::Arc;

use device::BoxFuture;
use format::{NvList, Txg, UsedBy};
use object::SyncContext;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::logs::LOG_TRIES_MAX;
use crate::snapshot::Snapshots;
use crate::state::{Ds, Space};
use crate::task::{SpaceCheck, SyncTask};

/// Name of the clone, which nobody ever sees.
const CLONE_NAME: &str = "%rollback";

impl Snapshots<'_> {
    /// Swaps what a head and a clone of its previous snapshot refer to.
    pub(crate) async fn swap_clone(
        &self,
        ctx: &SyncContext,
        clone: &Arc<Ds>,
        head: &Arc<Ds>,
    ) -> Result<(), DatasetError> {
        let clone_features = clone.state().features.clone();
        let head_features = head.state().features.clone();
        for feature in clone_features.keys() {
            self.dsl.deactivate_feature(ctx, clone, feature).await?;
        }
        for feature in head_features.keys() {
            self.dsl.deactivate_feature(ctx, head, feature).await?;
        }
        for (feature, value) in clone_features {
            self.dsl
                .activate_feature(ctx, head, &feature, value)
                .await?;
        }
        for (feature, value) in head_features {
            self.dsl
                .activate_feature(ctx, clone, &feature, value)
                .await?;
        }
        self.dsl.env().hooks.swapped(clone.object, head.object);
        *clone.open.lock() = None;
        *head.open.lock() = None;

        let (clone_phys, head_phys) = (clone.phys(), head.phys());
        let reserved = head.state().reserved_bytes;
        let refreservation_delta = reserved.min(head_phys.unique_bytes) as i64
            - reserved.min(clone_phys.unique_bytes) as i64;
        let origin = clone
            .prev()
            .ok_or_else(|| DatasetError::corrupt(clone.object, "a clone without an origin"))?;
        let everything = Txg::new(u64::MAX);
        let from = origin.phys().previous_snapshot_txg;
        let head_origin_txg = head.dir().state().origin_txg;
        let list = self.dsl.deadlists().of(clone).await?;
        let clone_dead = list.space().await?;
        let clone_after_prev = list.space_range(&self.dsl.lists, from, everything).await?;
        let clone_after_origin = list
            .space_range(&self.dsl.lists, head_origin_txg, everything)
            .await?;
        drop(list);
        let list = self.dsl.deadlists().of(head).await?;
        let head_dead = list.space().await?;
        let head_after_origin = list
            .space_range(&self.dsl.lists, head_origin_txg, everything)
            .await?;
        drop(list);
        // OpenZFS does so as well where a clone without snapshots goes back to what it was made of.
        // What that one alone has is by what follows it in its own dataset, which stays.
        if origin.phys().next_snapshot == head.object {
            origin.change(|state| state.phys.unique_bytes = clone_after_prev.used.max(0) as u64);
        }

        let mut delta = Space {
            used: clone_phys.referenced_bytes as i64 - head_phys.referenced_bytes as i64,
            compressed: clone_phys.compressed_bytes as i64 - head_phys.compressed_bytes as i64,
            uncompressed: clone_phys.uncompressed_bytes as i64
                - head_phys.uncompressed_bytes as i64,
        };
        delta.add(clone_dead);
        delta.add(head_dead.negated());
        // The clone's directory is below the head's: what one loses the other gains, and the
        // loser must have it first.
        clone.dir().did_use(UsedBy::Head, delta.negated());
        head.dir().did_use(UsedBy::Head, delta);
        head.dir().transfer(
            clone_after_origin.used - head_after_origin.used,
            UsedBy::Head,
            UsedBy::Snapshots,
        );

        *clone.deadlist.lock().await = None;
        *head.deadlist.lock().await = None;
        clone.change(|state| {
            let phys = &mut state.phys;
            phys.block = head_phys.block;
            phys.referenced_bytes = head_phys.referenced_bytes;
            phys.compressed_bytes = head_phys.compressed_bytes;
            phys.uncompressed_bytes = head_phys.uncompressed_bytes;
            phys.unique_bytes = head_phys.unique_bytes;
            phys.deadlist = head_phys.deadlist;
        });
        head.change(|state| {
            let phys = &mut state.phys;
            phys.block = clone_phys.block;
            phys.referenced_bytes = clone_phys.referenced_bytes;
            phys.compressed_bytes = clone_phys.compressed_bytes;
            phys.uncompressed_bytes = clone_phys.uncompressed_bytes;
            phys.unique_bytes = clone_phys.unique_bytes;
            phys.deadlist = clone_phys.deadlist;
        });
        head.dir().did_use(
            UsedBy::RefReservation,
            Space {
                used: refreservation_delta,
                ..Space::default()
            },
        );
        let name = self.dsl.directories().full_name(clone).await?;
        let parent = head.dir().full_name(&self.dsl.pool_name());
        let own_name = parent.rsplit('/').next().unwrap_or_default();
        let text = format!("parent={own_name}");
        self.dsl
            .history(ctx, "clone swap", name, clone.object, text)
            .await?;
        self.dsl
            .bookmarks()
            .next_changed(ctx, head, &origin)
            .await?;
        self.dsl.deadlists().swap_remaps(ctx, clone, head).await?;
        self.dsl
            .deadlists()
            .remove_livelist(ctx, &clone.dir())
            .await?;
        self.dsl.deadlists().remove_livelist(ctx, &head.dir()).await
    }

    /// Whether a snapshot of a filesystem or volume is too big to roll back to, whatever newer ones
    /// are destroyed for that.
    ///
    /// # Errors
    /// [`DatasetError::QuotaExceeded`], [`DatasetError::NotFound`].
    pub async fn check_fits(&self, name: &str, snapshot: &str) -> Result<(), DatasetError> {
        let directories = self.dsl.directories();
        let _config = self.dsl.config.read().await;
        let head = directories.resolve(name).await?;
        let target = directories.resolve(snapshot).await?;
        fits_refquota(name, &head, &target)
    }

    /// Makes a filesystem or volume what its most recent snapshot is, and returns that one's name.
    /// `snapshot`: must be that one. Nothing may have the dataset open.
    ///
    /// # Errors
    /// [`DatasetError::NewerSnapshots`], [`DatasetError::Busy`], [`DatasetError::NotFound`], ...
    pub async fn rollback(
        &self,
        name: &str,
        snapshot: Option<&str>,
    ) -> Result<String, DatasetError> {
        let mut attempts = 0;
        loop {
            self.dsl.logs().settle(name).await;
            let task = Arc::new(self.new_rollback(name, snapshot));
            match self.dsl.tasks().run(task.clone()).await {
                Err(DatasetError::Again { .. }) if attempts < 100 => attempts += 1,
                // Its log was being closed at that very moment.
                Err(DatasetError::Busy { .. })
                    if attempts < LOG_TRIES_MAX && self.dsl.logs().is_unused(name).await =>
                {
                    attempts += 1;
                }
                Err(error) => return Err(error),
                Ok(()) => {
                    let target = task.target.lock().clone();
                    let mut input = NvList::new();
                    input.set("target", target.as_str());
                    self.dsl.env().hooks.fulfilled("rollback", input);
                    return Ok(target);
                }
            }
        }
    }
}

impl Snapshots<'_> {
    fn new_rollback(&self, name: &str, snapshot: Option<&str>) -> RollbackTask {
        RollbackTask {
            dsl: self.dsl.clone(),
            name: name.to_owned(),
            snapshot: snapshot.map(str::to_owned),
            target: parking_lot::Mutex::default(),
        }
    }

    /// The task that rolls a dataset back to its most recent snapshot, for who runs tasks in
    /// syncing context ([`crate::ProgramPool`]).
    pub fn rollback_task(&self, name: &str) -> Arc<dyn SyncTask> {
        Arc::new(self.new_rollback(name, None))
    }
}

fn fits_refquota(name: &str, head: &Ds, snapshot: &Ds) -> Result<(), DatasetError> {
    let refquota = head.state().refquota_bytes;
    if refquota != 0 && snapshot.phys().referenced_bytes > refquota {
        return Err(DatasetError::QuotaExceeded {
            name: name.to_owned(),
        });
    }
    Ok(())
}

struct RollbackTask {
    dsl: Arc<DslPool>,
    name: String,
    snapshot: Option<String>,
    target: parking_lot::Mutex<String>,
}

impl RollbackTask {
    async fn do_check(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let head = dsl.directories().resolve(&self.name).await?;
        if head.is_snapshot() {
            return Err(DatasetError::WrongKind {
                name: self.name.clone(),
                reason: "a snapshot cannot be rolled back".into(),
            });
        }
        let phys = head.phys();
        if phys.previous_snapshot_txg < Txg::INITIAL {
            return Err(DatasetError::not_found(format!("{}@", self.name)));
        }
        if phys.previous_snapshot_txg >= ctx.txg {
            return Err(DatasetError::Again {
                name: self.name.clone(),
            });
        }
        let prev = head
            .prev()
            .ok_or_else(|| DatasetError::not_found(format!("{}@", self.name)))?;
        if let Some(wanted) = &self.snapshot {
            let target = dsl.directories().resolve(wanted).await?;
            if !Arc::ptr_eq(&target, &prev) {
                let is_ours = Arc::ptr_eq(&target.dir(), &head.dir())
                    || head.dir().state().phys.origin == target.object;
                return Err(if is_ours && target.is_snapshot() {
                    DatasetError::NewerSnapshots {
                        name: wanted.clone(),
                    }
                } else {
                    DatasetError::not_found(wanted.clone())
                });
            }
        }
        if head.state().bookmarks.latest_txg() > phys.previous_snapshot_txg {
            return Err(DatasetError::NewerSnapshots {
                name: self.name.clone(),
            });
        }
        if head.hold_count() > 0 || head.has_busy_log() {
            return Err(DatasetError::Busy {
                name: self.name.clone(),
                reason: "it is open or mounted".into(),
            });
        }
        fits_refquota(&self.name, &head, &prev)?;
        let reserved = head.state().reserved_bytes;
        let needed = reserved.min(phys.unique_bytes);
        if needed > 0 && needed > dsl.space().available(&head.dir(), None, true) {
            return Err(DatasetError::NoSpace {
                name: self.name.clone(),
            });
        }
        let readable = dsl.readable();
        readable.new_dir(&head.dir(), CLONE_NAME).await?;
        readable.clone_of(&prev, &head).await?;
        readable.swapped(&head).await?;
        readable.destroyed_content(&head).await
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let head = dsl.directories().resolve(&self.name).await?;
        let prev = head
            .prev()
            .ok_or_else(|| DatasetError::corrupt(head.object, "it lost its snapshot"))?;
        *self.target.lock() = dsl.directories().full_name(&prev).await?;
        let dir = dsl
            .datasets()
            .create_dir(ctx, Some(&head.dir()), CLONE_NAME)
            .await?;
        let clone = dsl.datasets().create_head(ctx, &dir, Some(&prev)).await?;
        dsl.snapshots().swap_clone(ctx, &clone, &head).await?;
        dsl.datasets().forget_log(ctx, &head).await?;
        dsl.destroyer().destroy_head_now(ctx, &clone).await
    }
}

impl SyncTask for RollbackTask {
    fn name(&self) -> &'static str {
        "rollback"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Reserved
    }
    fn check<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check(ctx))
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}
