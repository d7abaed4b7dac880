//! Promoting a clone: its origin, and the snapshots before that, become the clone's own, and what
//! it was cloned from becomes a clone of it (`dsl_dataset_promote_sync`, module/zfs/dsl_dataset.c).

use std::sync::Arc;

use device::BoxFuture;
use format::{ObjectId, Txg, UsedBy, names};
use object::{SyncContext, Zap};
use zio::Tx;

use crate::DatasetError;
use crate::bookmark::Bookmarks;
use crate::dsl::DslPool;
use crate::snapshot::Snapshots;
use crate::state::{Ds, Space};
use crate::task::{SpaceCheck, SyncTask};

/// The datasets that a promotion is about.
struct Parts {
    clone: Arc<Ds>,
    /// The snapshot that the clone was made of.
    origin: Arc<Ds>,
    /// Head of the dataset that it is a snapshot of.
    origin_head: Arc<Ds>,
    /// The origin and its predecessors that are in the same directory, newest first.
    shared: Vec<Arc<Ds>>,
    /// The clone and its snapshots, newest first.
    of_clone: Vec<Arc<Ds>>,
    /// The head and its snapshots after the origin, newest first.
    of_origin: Vec<Arc<Ds>>,
    /// What the oldest shared snapshot follows: the empty origin, or a snapshot of a third dataset.
    before: Option<Arc<Ds>>,
}

/// Space that changes hands.
struct Amounts {
    moved: Space,
    origin_unique: u64,
    clone_used_by_snapshots: u64,
    origin_used_by_snapshots: u64,
}

impl Snapshots<'_> {
    async fn promote_parts(&self, name: &str) -> Result<Parts, DatasetError> {
        let clone = self.dsl.directories().resolve(name).await?;
        let not_a_clone = || DatasetError::WrongKind {
            name: name.to_owned(),
            reason: "not a cloned filesystem".into(),
        };
        let dir = clone.dir();
        let origin_object = {
            let state = dir.state();
            if clone.is_snapshot() || state.origin_txg.is_zero() {
                return Err(not_a_clone());
            }
            state.phys.origin
        };
        let origin = self.dsl.directories().dataset(origin_object).await?;
        let origin_dir = origin.dir();
        let origin_head = self.dsl.directories().head(&origin_dir).await?;
        let before_object = origin_dir.state().phys.origin;
        Ok(Parts {
            shared: self.chain(origin.object, before_object).await?,
            of_clone: self.chain(clone.object, origin.object).await?,
            of_origin: self.chain(origin_head.object, origin.object).await?,
            before: match before_object.is_zero() {
                true => None,
                false => Some(self.dsl.directories().dataset(before_object).await?),
            },
            clone,
            origin,
            origin_head,
        })
    }

    /// Datasets from one back to another (exclusive).
    async fn chain(&self, from: ObjectId, until: ObjectId) -> Result<Vec<Arc<Ds>>, DatasetError> {
        let mut out = Vec::new();
        let mut at = match from.is_zero() {
            true => None,
            false => Some(self.dsl.directories().dataset(from).await?),
        };
        while let Some(dataset) = at.filter(|dataset| dataset.object != until) {
            at = self.dsl.directories().before(&dataset).await?;
            out.push(dataset);
        }
        Ok(out)
    }

    async fn dead_after(&self, list: &[Arc<Ds>], after: Txg) -> Result<u64, DatasetError> {
        let mut total = 0;
        for dataset in list {
            let space = self
                .dsl
                .deadlists()
                .of(dataset)
                .await?
                .space_range(&self.dsl.lists, after, Txg::new(u64::MAX))
                .await?;
            self.dsl.deadlists().let_go(dataset).await;
            total += space.used.max(0) as u64;
        }
        Ok(total)
    }

    async fn promote_amounts(&self, parts: &Parts) -> Result<Amounts, DatasetError> {
        let oldest_of_clone = parts.of_clone.last().unwrap_or(&parts.clone);
        let from = parts.origin.phys().previous_snapshot_txg;
        let unique = self
            .dead_after(std::slice::from_ref(oldest_of_clone), from)
            .await?;
        let phys = parts.origin.phys();
        let mut moved = Space {
            used: phys.referenced_bytes as i64,
            compressed: phys.compressed_bytes as i64,
            uncompressed: phys.uncompressed_bytes as i64,
        };
        for snapshot in &parts.shared {
            if !snapshot.phys().previous_snapshot.is_zero() {
                moved.add(self.dsl.deadlists().of(snapshot).await?.space().await?);
                self.dsl.deadlists().let_go(snapshot).await;
            }
        }
        if let Some(before) = &parts.before {
            let phys = before.phys();
            moved.add(Space {
                used: -(phys.referenced_bytes as i64),
                compressed: -(phys.compressed_bytes as i64),
                uncompressed: -(phys.uncompressed_bytes as i64),
            });
        }
        let origin_txg = parts.origin_head.dir().state().origin_txg;
        let mut clone_used = self.dead_after(&parts.shared, origin_txg).await?;
        clone_used += self.dead_after(&parts.of_clone, origin_txg).await?;
        let origin_used = self.dead_after(&parts.of_origin, phys.creation_txg).await?;
        Ok(Amounts {
            moved,
            origin_unique: unique,
            clone_used_by_snapshots: clone_used,
            origin_used_by_snapshots: origin_used,
        })
    }

    async fn promote_now(&self, ctx: &SyncContext, name: &str) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let parts = self.promote_parts(name).await?;
        let amounts = self.promote_amounts(&parts).await?;
        let Parts {
            clone,
            origin,
            origin_head,
            ..
        } = &parts;
        let (dir, odd) = (clone.dir(), origin.dir());
        self.dsl.keys().promote(ctx, clone, origin_head).await?;
        let oldest_of_clone = parts.of_clone.last().unwrap_or(clone).clone();
        let old_next = origin.phys().next_snapshot;

        origin.change(|state| state.phys.next_snapshot = oldest_of_clone.object);
        let next_clones = origin.phys().next_clones;
        if !next_clones.is_zero() {
            self.remove_next_clone(ctx, origin, oldest_of_clone.object)
                .await?;
            Zap::hold(self.dsl.mos(), next_clones)
                .await?
                .add_int(&tx, old_next.get(), old_next.get())
                .await?;
        }
        let (before_object, before_txg) = {
            let state = odd.state();
            (state.phys.origin, state.origin_txg)
        };
        dir.change(|state| {
            state.phys.origin = before_object;
            state.origin_txg = before_txg;
        });
        odd.change(|state| {
            state.phys.origin = origin.object;
            state.origin_txg = origin.phys().creation_txg;
        });

        // Who is whose clone.
        let odd_clones = odd.state().phys.clones;
        self.move_clone(ctx, odd_clones, None, clone.object).await?;
        let before_clones = match &parts.before {
            Some(before) => before.dir().state().phys.clones,
            None => ObjectId::ZERO,
        };
        if !before_clones.is_zero() {
            self.move_clone(ctx, ObjectId::ZERO, Some(before_clones), clone.object)
                .await?;
            self.move_clone(ctx, before_clones, None, origin_head.object)
                .await?;
        }
        let has_clones = self.dsl.pool_version().has_deadlist_maps();
        if has_clones {
            let datasets = self.dsl.datasets();
            datasets.note_clone(&tx, &dir, origin_head.object).await?;
        }
        let dir_clones = dir.state().phys.clones;

        let until = origin.phys().creation_txg;
        self.dsl
            .bookmarks()
            .give(ctx, origin_head, clone, until)
            .await?;
        self.dsl
            .bookmarks()
            .next_changed(ctx, clone, origin)
            .await?;

        for snapshot in &parts.shared {
            *snapshot.open.lock() = None;
            let name = self.dsl.directories().snapshot_name(snapshot).await?;
            Zap::hold(self.dsl.mos(), origin_head.phys().snapshot_names)
                .await?
                .remove(&tx, &name)
                .await?;
            self.dsl
                .limits()
                .adjust(ctx, &odd, -1, names::directory::SNAPSHOT_COUNT)
                .await?;
            Zap::hold(self.dsl.mos(), clone.phys().snapshot_names)
                .await?
                .add_u64(&tx, &name, snapshot.object.get())
                .await?;
            self.dsl
                .limits()
                .adjust(ctx, &dir, 1, names::directory::SNAPSHOT_COUNT)
                .await?;
            snapshot.change(|state| {
                state.phys.directory = dir.object;
                state.dir = dir.clone();
            });
            let next_clones = snapshot.phys().next_clones;
            if has_clones && !next_clones.is_zero() {
                for entry in Zap::hold(self.dsl.mos(), next_clones).await?.all().await? {
                    let next: ObjectId = entry.value.as_u64().unwrap_or(0).into();
                    if next == old_next {
                        continue;
                    }
                    let of = self.dsl.directories().dataset(next).await?.dir();
                    let head = of.state().phys.head_dataset;
                    self.move_clone(ctx, odd_clones, Some(dir_clones), head)
                        .await?;
                }
            }
        }

        // Space: the clone's directory first gives nothing, so every step stays above zero.
        let moved = amounts.moved;
        let delta = amounts.clone_used_by_snapshots as i64
            - dir.state().phys.used_breakdown[UsedBy::Snapshots as usize] as i64;
        let only_used = |used| Space {
            used,
            ..Space::default()
        };
        dir.did_use(UsedBy::Snapshots, only_used(delta));
        dir.did_use(
            UsedBy::Head,
            Space {
                used: moved.used - delta,
                ..moved
            },
        );
        let delta = amounts.origin_used_by_snapshots as i64
            - odd.state().phys.used_breakdown[UsedBy::Snapshots as usize] as i64;
        odd.did_use(UsedBy::Snapshots, only_used(delta));
        let gone = moved.negated();
        odd.did_use(
            UsedBy::Head,
            Space {
                used: gone.used - delta,
                ..gone
            },
        );
        origin.change(|state| state.phys.unique_bytes = amounts.origin_unique);
        self.dsl.deadlists().remove_livelist(ctx, &dir).await?;
        self.dsl.deadlists().remove_livelist(ctx, &odd).await?;
        self.dsl
            .env()
            .hooks
            .promoted(clone.object, origin_head.object, origin.phys().creation_txg);
        self.dsl
            .history(ctx, "promote", name.to_owned(), clone.object, " ")
            .await
    }

    /// Moves a clone's head between two directories' lists of clones.
    async fn move_clone(
        &self,
        ctx: &SyncContext,
        from: ObjectId,
        to: Option<ObjectId>,
        head: ObjectId,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        if !from.is_zero() {
            Zap::hold(self.dsl.mos(), from)
                .await?
                .remove_int(&tx, head.get())
                .await?;
        }
        if let Some(to) = to {
            Zap::hold(self.dsl.mos(), to)
                .await?
                .add_int(&tx, head.get(), head.get())
                .await?;
        }
        Ok(())
    }

    /// Makes a clone's origin its own snapshot, and what it was cloned from a clone of it
    /// (`zfs promote`).
    ///
    /// # Errors
    /// [`DatasetError::WrongKind`] when it is no clone, [`DatasetError::Exists`] when both have a
    /// snapshot of the same name, [`DatasetError::NoSpace`], [`DatasetError::Busy`].
    pub async fn promote(&self, name: &str) -> Result<(), DatasetError> {
        self.dsl.tasks().run(self.promote_task(name)).await
    }

    /// The task that does so, for who runs tasks in syncing context ([`crate::ProgramPool`]).
    pub fn promote_task(&self, name: &str) -> Arc<dyn SyncTask> {
        Arc::new(PromoteTask {
            dsl: self.dsl.clone(),
            name: name.to_owned(),
        })
    }
}

struct PromoteTask {
    dsl: Arc<DslPool>,
    name: String,
}

impl PromoteTask {
    async fn do_check(&self) -> Result<(), DatasetError> {
        let dsl = &self.dsl;
        let parts = dsl.snapshots().promote_parts(&self.name).await?;
        for snapshot in &parts.shared {
            if snapshot.hold_count() > 0 {
                return Err(DatasetError::Busy {
                    name: dsl.directories().full_name(snapshot).await?,
                    reason: "it is open".into(),
                });
            }
            let name = dsl.directories().snapshot_name(snapshot).await?;
            let full_name = format!("{}@{name}", self.name);
            crate::name::check_name(&full_name)?;
            if dsl
                .directories()
                .snapshot_of(&parts.clone, &name)
                .await?
                .is_some()
            {
                return Err(DatasetError::Exists { name: full_name });
            }
        }
        // Bookmarks of what the clone gets move along, and their names must be free too.
        let until = parts.origin.phys().creation_txg;
        for bookmark in Bookmarks::names_until(&parts.origin_head, until) {
            let full_name = format!("{}#{bookmark}", self.name);
            crate::name::check_bookmark_name(&full_name)?;
            if parts.clone.state().bookmarks.find(&bookmark).is_some() {
                return Err(DatasetError::Exists { name: full_name });
            }
        }
        dsl.keys()
            .check_promote_encrypted(&parts.clone.dir(), &parts.origin.dir())
            .await?;
        let amounts = dsl.snapshots().promote_amounts(&parts).await?;
        dsl.space().check_transfer(
            &parts.origin.dir(),
            &parts.clone.dir(),
            amounts.moved.used.max(0) as u64,
            &self.name,
        )?;
        dsl.limits()
            .check(
                &parts.clone.dir(),
                parts.shared.len() as u64,
                names::directory::SNAPSHOT_COUNT,
                None,
            )
            .await?;
        self.check_readable(&parts).await
    }

    /// What applying it will read.
    async fn check_readable(&self, parts: &Parts) -> Result<(), DatasetError> {
        let (dsl, readable) = (&self.dsl, self.dsl.readable());
        let (clone, origin_head) = (&parts.clone, &parts.origin_head);
        let (dir, odd) = (clone.dir(), origin_head.dir());
        let keys = dsl.keys();
        if keys.stored(&odd).await?.is_some() {
            readable.properties(clone).await?;
            readable.properties(origin_head).await?;
            for (_, stored) in keys.of_root(odd.object, &odd).await? {
                readable.whole(stored.object).await?;
            }
        }
        for head in [clone, origin_head] {
            readable.bookmarks(head).await?;
            readable.ancestors(&head.dir()).await?;
            let clones = head.dir().state().phys.clones;
            readable.whole(clones).await?;
        }
        let until = parts.origin.phys().creation_txg;
        for bookmark in Bookmarks::names_until(origin_head, until) {
            readable.destroyed_bookmark(origin_head, &bookmark).await?;
        }
        let next = dsl
            .directories()
            .dataset(parts.origin.phys().next_snapshot)
            .await?;
        dsl.deadlists().of(&next).await?.space().await?;
        dsl.deadlists().let_go(&next).await;
        let odd_clones = odd.state().phys.clones;
        readable.key_to_remove(odd_clones, clone.object).await?;
        if let Some(before) = &parts.before {
            let before_clones = before.dir().state().phys.clones;
            readable
                .key_to_remove(before_clones, origin_head.object)
                .await?;
            readable.key(before_clones, clone.object).await?;
        }
        let old_next = parts.origin.phys().next_snapshot;
        for snapshot in &parts.shared {
            let phys = snapshot.phys();
            readable.dataset(snapshot).await?;
            let name = dsl.directories().snapshot_name(snapshot).await?;
            let names = [origin_head, clone].map(|head| head.phys().snapshot_names);
            readable.name_to_remove(names[0], &name).await?;
            readable.name(names[1], &name).await?;
            if phys.next_clones.is_zero() {
                continue;
            }
            readable.whole(phys.next_clones).await?;
            for entry in Zap::hold(dsl.mos(), phys.next_clones).await?.all().await? {
                let next: ObjectId = entry.value.as_u64().unwrap_or(0).into();
                let of = dsl.directories().dataset(next).await?.dir();
                let head = of.state().phys.head_dataset;
                if next != old_next && !Arc::ptr_eq(&of, &dir) {
                    readable.key_to_remove(odd_clones, head).await?;
                }
            }
        }
        Ok(())
    }
}

impl SyncTask for PromoteTask {
    fn name(&self) -> &'static str {
        "promote"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Reserved
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check())
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move { self.dsl.snapshots().promote_now(ctx, &self.name).await })
    }
}
