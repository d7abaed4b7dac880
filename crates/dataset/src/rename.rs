//! Renaming filesystems and volumes, with all below them (`dsl_dir_rename_sync`).

use std::sync::Arc;

use device::BoxFuture;
use format::{UsedBy, names};
use object::{SyncContext, Zap};
use zio::Tx;

use crate::DatasetError;
use crate::directories::Directories;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::name::{NAME_MAX_BYTES, check_name, split_parent, split_snapshot};
use crate::state::{Dir, Space};
use crate::task::{SpaceCheck, SyncTask};

impl Directories<'_> {
    /// Gives a filesystem or volume (with all below it) or a snapshot another name. What is open
    /// stays open.
    ///
    /// # Errors
    /// [`DatasetError::Exists`], [`DatasetError::NotFound`], [`DatasetError::InvalidName`], ...
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        check_name(to)?;
        if let (head, Some(old)) = split_snapshot(from) {
            let (to_head, new) = match split_snapshot(to) {
                (to_head, Some(new)) => (to_head, new),
                (new, None) => (head, new),
            };
            if to_head != head {
                return Err(DatasetError::InvalidName {
                    name: to.to_owned(),
                    reason: "snapshots must be part of same dataset".into(),
                });
            }
            return self.dsl.snapshots().rename(head, old, new).await;
        }
        self.dsl
            .tasks()
            .run(Arc::new(RenameTask {
                dsl: self.dsl.clone(),
                from: from.to_owned(),
                to: to.to_owned(),
            }))
            .await
    }
}

struct RenameTask {
    dsl: Arc<DslPool>,
    from: String,
    to: String,
}

impl RenameTask {
    async fn do_check(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let dir = dsl.directories().resolve_dir(&self.from).await?;
        let (Some(parent_name), _) = split_parent(&self.to) else {
            return Err(DatasetError::Exists {
                name: self.to.clone(),
            });
        };
        let Some(old_parent) = dir.parent() else {
            return Err(DatasetError::WrongKind {
                name: self.from.clone(),
                reason: "a pool is renamed by exporting it and importing it by its new name".into(),
            });
        };
        let (new_parent, last) = dsl.directories().check_new_name(&self.to).await?;
        if new_parent.is_within(&dir) {
            return Err(DatasetError::InvalidName {
                name: self.to.clone(),
                reason: format!("New dataset name cannot be a descendant of '{parent_name}'"),
            });
        }
        // Names below get longer too.
        let longer = self.to.len().saturating_sub(self.from.len());
        let deeper = self
            .to
            .matches('/')
            .count()
            .saturating_sub(self.from.matches('/').count());
        if longer > 0 || deeper > 0 {
            let mut pending = vec![dir.clone()];
            while let Some(at) = pending.pop() {
                let name = at.full_name(&dsl.pool_name());
                let head = dsl.directories().head(&at).await?;
                let mut longest = 0;
                for (snapshot, _) in dsl.directories().snapshots(&head).await? {
                    longest = longest.max(snapshot.len() + 1);
                }
                if name.len() + longest + longer >= NAME_MAX_BYTES
                    || name.matches('/').count() + deeper >= crate::name::NESTING_MAX
                {
                    return Err(DatasetError::InvalidName {
                        name: self.to.clone(),
                        reason: "a name below it would be too long".into(),
                    });
                }
                pending.extend(dsl.directories().children(&at).await?);
            }
        }
        if !Arc::ptr_eq(&old_parent, &new_parent) {
            let bytes = {
                let state = dir.state();
                state.phys.used_bytes.max(state.phys.reserved_bytes)
            };
            dsl.space()
                .check_transfer(&old_parent, &new_parent, bytes, &self.to)?;
            dsl.keys().check_move_encrypted(&dir, &new_parent).await?;
            // What was made before there were limits is counted first (`dsl_dir_rename_check`).
            if dsl.features().is_active(guid::FILESYSTEM_LIMITS) {
                dsl.limits().count_below(ctx, &dir).await?;
            }
            // What is below both parents before and after counts no more than it did.
            let ancestor = dsl.directories().common_ancestor(&old_parent, &new_parent);
            let (filesystems, snapshots) = self.counts(&dir).await?;
            for (more, which) in [
                (filesystems, names::directory::FILESYSTEM_COUNT),
                (snapshots, names::directory::SNAPSHOT_COUNT),
            ] {
                dsl.limits()
                    .check(&new_parent, more, which, Some(&ancestor))
                    .await?;
            }
        }
        let readable = dsl.readable();
        readable.new_dir(&new_parent, &last).await?;
        readable.moved(&dir, &old_parent).await?;
        let new_head = dsl.directories().head(&new_parent).await?;
        readable.properties(&new_head).await?;
        readable.settings_of_open(&dir).await
    }

    /// Filesystems (itself included) and snapshots that move along, as far as they are counted.
    async fn counts(&self, dir: &Arc<Dir>) -> Result<(u64, u64), DatasetError> {
        let dsl = &self.dsl;
        if !dir.state().is_zapified {
            return Ok((1, 0));
        }
        let zap = Zap::hold(dsl.mos(), dir.object).await?;
        Ok((
            zap.lookup_u64(names::directory::FILESYSTEM_COUNT)
                .await?
                .unwrap_or(0)
                + 1,
            zap.lookup_u64(names::directory::SNAPSHOT_COUNT)
                .await?
                .unwrap_or(0),
        ))
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let tx = Tx::syncing(ctx.txg);
        let dir = dsl.directories().resolve_dir(&self.from).await?;
        let old_parent = dir
            .parent()
            .ok_or_else(|| DatasetError::corrupt(dir.object, "it has no parent"))?;
        let (new_parent, last) = dsl.directories().check_new_name(&self.to).await?;
        let head_object = dir.state().phys.head_dataset;
        dsl.history(
            ctx,
            "rename",
            self.from.clone(),
            head_object,
            format!("-> {}", self.to),
        )
        .await?;
        if !Arc::ptr_eq(&old_parent, &new_parent) {
            let (filesystems, snapshots) = self.counts(&dir).await?;
            for (parent, sign) in [(&old_parent, -1), (&new_parent, 1)] {
                dsl.limits()
                    .adjust(
                        ctx,
                        parent,
                        sign * filesystems as i64,
                        names::directory::FILESYSTEM_COUNT,
                    )
                    .await?;
                dsl.limits()
                    .adjust(
                        ctx,
                        parent,
                        sign * snapshots as i64,
                        names::directory::SNAPSHOT_COUNT,
                    )
                    .await?;
            }
            let (space, unused) = {
                let phys = dir.state().phys;
                (
                    Space {
                        used: phys.used_bytes as i64,
                        compressed: phys.compressed_bytes as i64,
                        uncompressed: phys.uncompressed_bytes as i64,
                    },
                    phys.reserved_bytes.saturating_sub(phys.used_bytes) as i64,
                )
            };
            let reserved = Space {
                used: unused,
                ..Space::default()
            };
            old_parent.did_use(UsedBy::Children, space.negated());
            new_parent.did_use(UsedBy::Children, space);
            old_parent.did_use(UsedBy::ChildrenReservation, reserved.negated());
            new_parent.did_use(UsedBy::ChildrenReservation, reserved);
        }
        // One after the other: both may be the same directory, and its lock is held until a
        // statement ends.
        let old_zap = old_parent.state().phys.child_directories;
        let new_zap = new_parent.state().phys.child_directories;
        let old_name = dir.state().name.clone();
        Zap::hold(dsl.mos(), old_zap)
            .await?
            .remove(&tx, &old_name)
            .await?;
        dir.change(|state| {
            state.phys.parent = new_parent.object;
            state.parent = Some(new_parent.clone());
            state.name = last.clone();
        });
        Zap::hold(dsl.mos(), new_zap)
            .await?
            .add_u64(&tx, &last, dir.object.get())
            .await?;
        dsl.properties().refresh_open(&dir).await
    }
}

impl SyncTask for RenameTask {
    fn name(&self) -> &'static str {
        "rename"
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
