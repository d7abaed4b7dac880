//! Taking and renaming snapshots (`dsl_dataset_snapshot_sync_impl`, module/zfs/dsl_dataset.c).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use device::BoxFuture;
use format::{DslDatasetPhys, ObjectType, Txg, UsedBy, names};
use object::{NewObject, SyncContext, Zap, ZapValue};
use zio::Tx;

use crate::check::{check_of_snapshot, parse_setting};
use crate::dsl::DslPool;
use crate::features::guid;
use crate::name::{check_name, split_snapshot};
use crate::props::Kinds;
use crate::state::{Dir, Ds, Space};
use crate::task::{BLOCKS_MIN, SpaceCheck, SyncTask};
use crate::{DatasetError, PropertyValue};

/// Snapshots: [`DslPool::snapshots`].
#[derive(Clone, Copy)]
pub struct Snapshots<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Snapshots: taking, renaming, rolling back, promoting.
    pub fn snapshots(self: &Arc<Self>) -> Snapshots<'_> {
        Snapshots { dsl: self }
    }
}

impl Snapshots<'_> {
    /// Takes a snapshot of a head that has nothing unwritten, in syncing context.
    pub(crate) fn take_now<'a>(
        &'a self,
        ctx: &'a SyncContext,
        head: &'a Arc<Ds>,
        name: &'a str,
        now_seconds: u64,
    ) -> BoxFuture<'a, Result<Arc<Ds>, DatasetError>> {
        Box::pin(async move {
            let tx = Tx::syncing(ctx.txg);
            let dir = head.dir();
            let creation_txg = if name == names::hidden_directory::ORIGIN {
                Txg::new(1)
            } else {
                ctx.txg
            };
            self.dsl
                .limits()
                .adjust(ctx, &dir, 1, names::directory::SNAPSHOT_COUNT)
                .await?;
            let from = head.phys();
            let phys = DslDatasetPhys {
                directory: dir.object,
                fsid_guid: self.dsl.directories().random_fsid(),
                guid: self.dsl.random_guid(),
                previous_snapshot: from.previous_snapshot,
                previous_snapshot_txg: from.previous_snapshot_txg,
                next_snapshot: head.object,
                children: 1,
                creation_time_seconds: now_seconds,
                creation_txg,
                deadlist: from.deadlist,
                referenced_bytes: from.referenced_bytes,
                compressed_bytes: from.compressed_bytes,
                uncompressed_bytes: from.uncompressed_bytes,
                flags: from.flags,
                block: from.block,
                ..DslDatasetPhys::default()
            };
            let new = NewObject::new(ObjectType::DSL_DATASET)
                .with_bonus(ObjectType::DSL_DATASET, phys.encode().to_vec());
            let object = self.dsl.mos().allocate(&tx, new).await?.id();
            let snapshot = self.dsl.directories().dataset(object).await?;
            snapshot.state().kind = head.state().kind;
            let features = head.state().features.clone();
            for (feature, value) in features {
                self.dsl
                    .activate_feature(ctx, &snapshot, &feature, value)
                    .await?;
            }
            self.dsl.keys().note_iv_set(ctx, &snapshot).await?;
            if let Some(prev) = head.prev() {
                let prev_phys = prev.phys();
                if prev_phys.next_snapshot == head.object {
                    prev.change(|state| state.phys.next_snapshot = object);
                } else if !prev_phys.next_clones.is_zero() {
                    self.remove_next_clone(ctx, &prev, head.object).await?;
                    Zap::hold(self.dsl.mos(), prev_phys.next_clones)
                        .await?
                        .add_int(&tx, object.get(), object.get())
                        .await?;
                }
            }
            let reserved = head.state().reserved_bytes;
            if reserved != 0 {
                dir.did_use(
                    UsedBy::RefReservation,
                    Space {
                        used: from.unique_bytes.min(reserved) as i64,
                        ..Space::default()
                    },
                );
            }
            let keys = head
                .state()
                .bookmarks
                .keys_after(from.previous_snapshot_txg);
            let chain = match from.previous_snapshot.is_zero() {
                true => Vec::new(),
                false => {
                    self.dsl
                        .deadlists()
                        .snapshot_chain_keys(head, from.previous_snapshot)
                        .await?
                }
            };
            let deadlist = {
                let list = self.dsl.deadlists().of(head).await?;
                let everything = Txg::new(u64::MAX);
                let lists = &self.dsl.lists;
                let deadlist = list.clone_keys(lists, ctx, everything, &chain).await?;
                // It is the snapshot's from now on. With thousands of snapshots, the lists of all
                // of them would else be what objects in memory mostly are.
                list.forget_content().await;
                deadlist
            };
            head.change(|state| state.phys.deadlist = deadlist.object());
            *head.deadlist.lock().await = Some(deadlist);
            let mut list = self.dsl.deadlists().of(head).await?;
            list.add_key(&self.dsl.lists, ctx, from.previous_snapshot_txg)
                .await?;
            for key in keys {
                list.add_key(&self.dsl.lists, ctx, key).await?;
            }
            drop(list);
            self.dsl
                .deadlists()
                .remaps_snapshotted(ctx, head, &snapshot)
                .await?;
            head.change(|state| {
                state.phys.previous_snapshot = object;
                state.phys.previous_snapshot_txg = creation_txg;
                state.phys.unique_bytes = 0;
                state.phys.flags |= DslDatasetPhys::FLAG_UNIQUE_ACCURATE;
                state.prev = Some(snapshot.clone());
            });
            self.dsl.env().hooks.snapshotted(head.object, object);
            Zap::hold(self.dsl.mos(), from.snapshot_names)
                .await?
                .add_u64(&tx, name, object.get())
                .await?;
            snapshot.state().snapshot_name = Some(name.to_owned());
            if name != names::hidden_directory::ORIGIN {
                self.note_snapshots_changed(ctx, &dir).await?;
                let full_name = self.dsl.directories().full_name(&snapshot).await?;
                self.dsl
                    .history(ctx, "snapshot", full_name, object, " ")
                    .await?;
            }
            Ok(snapshot)
        })
    }

    /// Remembers when the set of snapshots changed (`dsl_dir_snap_cmtime_update`).
    pub(crate) async fn note_snapshots_changed(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        if !self.dsl.features().is_enabled(guid::EXTENSIBLE_DATASET) {
            return Ok(());
        }
        let now_ns = self.dsl.env().world.clock.wall_ns();
        let zap = self.dsl.zapify_dir(ctx, dir).await?;
        let value = ZapValue::from_u64s(&[now_ns / 1_000_000_000, now_ns % 1_000_000_000]);
        zap.update(
            &Tx::syncing(ctx.txg),
            names::directory::SNAPSHOTS_CHANGED,
            value,
        )
        .await?;
        Ok(())
    }

    /// Removes an entry of a snapshot's next clones; that it is missing is a known old fault.
    pub(crate) async fn remove_next_clone(
        &self,
        ctx: &SyncContext,
        snapshot: &Arc<Ds>,
        clone: format::ObjectId,
    ) -> Result<(), DatasetError> {
        let zap = Zap::hold(self.dsl.mos(), snapshot.phys().next_clones).await?;
        match zap.remove_int(&Tx::syncing(ctx.txg), clone.get()).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Takes snapshots, all of them in one txg or none.
    ///
    /// # Errors
    /// [`DatasetError::Exists`], [`DatasetError::NotFound`], [`DatasetError::NoSpace`], ...
    pub async fn take(
        &self,
        names: &[String],
        properties: &[(String, String)],
    ) -> Result<(), DatasetError> {
        let mut parsed = Vec::new();
        if let (Some(first), false) = (names.first(), properties.is_empty()) {
            check_of_snapshot(first, self.dsl.pool_version())?;
        }
        for (name, typed) in properties {
            parsed.push((
                name.clone(),
                parse_setting(name, typed, Kinds::SNAPSHOT, true)?,
            ));
        }
        for name in names {
            check_snapshot_name(name)?;
        }
        let mut attempts = 0;
        loop {
            let task = Arc::new(SnapshotTask {
                dsl: self.dsl.clone(),
                names: names.to_vec(),
                properties: parsed.clone(),
            });
            match self.dsl.tasks().run(task).await {
                // A snapshot of the same dataset was taken in the same txg: the next one will do.
                Err(DatasetError::Again { .. }) if attempts < 100 => attempts += 1,
                Err(error) => return Err(error),
                Ok(()) => {
                    self.dsl.fulfilled("snapshot", "snaps", names);
                    return Ok(());
                }
            }
        }
    }

    /// Renames the snapshots `old` of a filesystem and of all below it, all or none.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`] when none has it, [`DatasetError::Exists`].
    pub async fn rename_all(&self, head: &str, old: &str, new: &str) -> Result<(), DatasetError> {
        self.rename_snapshots_of(head, old, new, true).await
    }

    /// Renames one snapshot.
    pub(crate) async fn rename(
        &self,
        head: &str,
        old: &str,
        new: &str,
    ) -> Result<(), DatasetError> {
        self.rename_snapshots_of(head, old, new, false).await
    }

    /// The task that takes one snapshot, for who runs tasks in syncing context
    /// ([`crate::ProgramPool`]).
    ///
    /// # Errors
    /// [`DatasetError::InvalidName`].
    pub fn take_task(&self, name: &str) -> Result<Arc<dyn SyncTask>, DatasetError> {
        check_snapshot_name(name)?;
        Ok(Arc::new(SnapshotTask {
            dsl: self.dsl.clone(),
            names: vec![name.to_owned()],
            properties: Vec::new(),
        }))
    }

    /// The task that renames one snapshot, which nobody has open.
    ///
    /// # Errors
    /// [`DatasetError::InvalidName`].
    pub fn rename_task(
        &self,
        head: &str,
        old: &str,
        new: &str,
    ) -> Result<Arc<dyn SyncTask>, DatasetError> {
        check_snapshot_name(&format!("{head}@{new}"))?;
        Ok(Arc::new(RenameSnapshotTask {
            dsl: self.dsl.clone(),
            head: head.to_owned(),
            old: old.to_owned(),
            new: new.to_owned(),
            is_recursive: false,
            only_unused: true,
        }))
    }

    async fn rename_snapshots_of(
        &self,
        head: &str,
        old: &str,
        new: &str,
        is_recursive: bool,
    ) -> Result<(), DatasetError> {
        check_name(&format!("{head}@{new}"))?;
        self.dsl
            .tasks()
            .run(Arc::new(RenameSnapshotTask {
                dsl: self.dsl.clone(),
                head: head.to_owned(),
                old: old.to_owned(),
                new: new.to_owned(),
                is_recursive,
                only_unused: false,
            }))
            .await
    }
}

/// Checks the full name of a new snapshot.
fn check_snapshot_name(name: &str) -> Result<(), DatasetError> {
    check_name(name)?;
    match split_snapshot(name).1 {
        Some(_) => Ok(()),
        None => Err(DatasetError::InvalidName {
            name: name.to_owned(),
            reason: "missing '@' delimiter in snapshot name".into(),
        }),
    }
}

struct SnapshotTask {
    dsl: Arc<DslPool>,
    names: Vec<String>,
    properties: Vec<(String, PropertyValue)>,
}

impl SnapshotTask {
    /// Refuses a head with a log that other software left.
    async fn check_has_no_log(&self, head: &Arc<Ds>, name: &str) -> Result<(), DatasetError> {
        let header = match head.open_objset() {
            Some(objset) => objset.zil_header(),
            None => self.dsl.logs().stored_head(head).await?,
        };
        match header.log.is_hole() {
            true => Ok(()),
            false => Err(DatasetError::LogWaits {
                name: name.to_owned(),
            }),
        }
    }

    async fn do_check(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let mut per_dataset: BTreeMap<&str, u64> = BTreeMap::new();
        let mut reserved_needed = 0u64;
        let (mut names, mut heads) = (HashSet::new(), HashSet::new());
        for full_name in &self.names {
            let (head_name, Some(name)) = split_snapshot(full_name) else {
                return Err(DatasetError::not_found(full_name.clone()));
            };
            let head = dsl.directories().resolve(head_name).await?;
            let phys = head.phys();
            if phys.is_snapshot() {
                return Err(DatasetError::not_found(head_name));
            }
            if phys.previous_snapshot_txg >= ctx.txg {
                return Err(DatasetError::Again {
                    name: full_name.clone(),
                });
            }
            let is_twice = !names.insert(full_name);
            if dsl.directories().snapshot_of(&head, name).await?.is_some() || is_twice {
                return Err(DatasetError::Exists {
                    name: full_name.clone(),
                });
            }
            if !heads.insert(head_name) {
                return Err(DatasetError::InvalidName {
                    name: full_name.clone(),
                    reason: "a dataset can have only one snapshot taken at a time".into(),
                });
            }
            if phys.flags & DslDatasetPhys::FLAG_INCONSISTENT != 0 {
                return Err(DatasetError::Busy {
                    name: full_name.clone(),
                    reason: "it is being received into".into(),
                });
            }
            dsl.readable().new_snapshot(&head, name).await?;
            if !dsl.pool_version().has_logs() {
                self.check_has_no_log(&head, head_name).await?;
            }
            // What the snapshot takes out of a refreservation must be found elsewhere.
            let reserved = head.state().reserved_bytes;
            let needed = phys.unique_bytes.min(reserved);
            reserved_needed = reserved_needed.saturating_add(needed);
            if needed > 0 && reserved_needed > dsl.space().available(&head.dir(), None, true) {
                return Err(DatasetError::NoSpace {
                    name: full_name.clone(),
                });
            }
            let mut at = head_name;
            loop {
                *per_dataset.entry(at).or_default() += 1;
                match at.rsplit_once('/') {
                    Some((above, _)) => at = above,
                    None => break,
                }
            }
        }
        for (name, count) in per_dataset {
            let dir = dsl.directories().resolve_dir(name).await?;
            dsl.limits()
                .check(
                    &dir,
                    count,
                    names::directory::SNAPSHOT_COUNT,
                    dir.parent().as_ref(),
                )
                .await?;
        }
        Ok(())
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let now_seconds = dsl.now_seconds();
        for full_name in &self.names {
            let (head_name, name) = split_snapshot(full_name);
            let head = dsl.directories().resolve(head_name).await?;
            let snapshot = dsl
                .snapshots()
                .take_now(ctx, &head, name.unwrap_or_default(), now_seconds)
                .await?;
            for (property, value) in &self.properties {
                dsl.properties()
                    .change_property(ctx, &snapshot, property, Some(value))
                    .await?;
            }
        }
        Ok(())
    }
}

impl SyncTask for SnapshotTask {
    fn name(&self) -> &'static str {
        "snapshot"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Normal
    }
    fn blocks(&self) -> u64 {
        let of_each = BLOCKS_MIN + u64::from(!self.properties.is_empty());
        of_each.saturating_mul(self.names.len() as u64)
    }
    fn check<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check(ctx))
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}

struct RenameSnapshotTask {
    dsl: Arc<DslPool>,
    head: String,
    old: String,
    new: String,
    is_recursive: bool,
    /// Refuse it where somebody has the snapshot open, and knows it by its name.
    only_unused: bool,
}

impl RenameSnapshotTask {
    /// Every head that has a snapshot of the old name.
    async fn affected(&self) -> Result<Vec<(Arc<Ds>, Arc<Ds>)>, DatasetError> {
        let dsl = &self.dsl;
        let top = dsl.directories().resolve_dir(&self.head).await?;
        let mut pending = vec![top];
        let mut affected = Vec::new();
        while let Some(dir) = pending.pop() {
            let head = dsl.directories().head(&dir).await?;
            if let Some(snapshot) = dsl.directories().snapshot_of(&head, &self.old).await? {
                affected.push((head, snapshot));
            }
            if self.is_recursive {
                pending.extend(dsl.directories().children(&dir).await?);
            }
        }
        Ok(affected)
    }

    async fn do_check(&self) -> Result<(), DatasetError> {
        let affected = self.affected().await?;
        if affected.is_empty() {
            return Err(DatasetError::not_found(format!(
                "{}@{}",
                self.head, self.old
            )));
        }
        for (head, snapshot) in affected {
            if self.only_unused && snapshot.hold_count() > 0 {
                return Err(DatasetError::Busy {
                    name: self.dsl.directories().full_name(&snapshot).await?,
                    reason: "it is open".into(),
                });
            }
            let full_name = format!(
                "{}@{}",
                head.dir().full_name(&self.dsl.pool_name()),
                self.new
            );
            check_name(&full_name)?;
            self.dsl.readable().new_snapshot(&head, &self.new).await?;
            if self
                .dsl
                .directories()
                .snapshot_of(&head, &self.new)
                .await?
                .is_some()
            {
                return Err(DatasetError::Exists { name: full_name });
            }
        }
        Ok(())
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        for (head, snapshot) in self.affected().await? {
            let full_name = self.dsl.directories().full_name(&snapshot).await?;
            self.dsl
                .history(
                    ctx,
                    "rename",
                    full_name,
                    snapshot.object,
                    format!("-> @{}", self.new),
                )
                .await?;
            let names = Zap::hold(self.dsl.mos(), head.phys().snapshot_names).await?;
            names.remove(&tx, &self.old).await?;
            names.add_u64(&tx, &self.new, snapshot.object.get()).await?;
            snapshot.state().snapshot_name = Some(self.new.clone());
            self.dsl
                .snapshots()
                .note_snapshots_changed(ctx, &head.dir())
                .await?;
        }
        Ok(())
    }
}

impl SyncTask for RenameSnapshotTask {
    fn name(&self) -> &'static str {
        "rename snapshot"
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check())
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}
