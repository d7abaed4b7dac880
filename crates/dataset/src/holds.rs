//! User holds: named reasons why a snapshot must stay (`zfs hold`; module/zfs/dsl_userhold.c).
//!
//! A snapshot's ZAP of holds maps tags to the time at which they were set. Holds of running sends
//! are temporary: they are also in the object directory's `tmp_userrefs`, as `OBJECT-TAG`, and are
//! released at the next import.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::BoxFuture;
use format::{DslDatasetPhys, NvList, ObjectId, ObjectType, names};
use object::{ObjectError, SyncContext, Zap, ZapOptions};
use zio::Tx;
use zio::pipeline::may_fail;

use crate::DatasetError;
use crate::dsl::{DslPool, all_true};
use crate::state::Ds;
use crate::task::{BLOCKS_MIN, SpaceCheck, SyncTask};

/// Longest tag (`MAXNAMELEN`).
const TAG_MAX_BYTES: usize = 255;

/// User holds of snapshots: [`DslPool::holds`].
#[derive(Clone, Copy)]
pub struct Holds<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// User holds.
    pub fn holds(self: &Arc<Self>) -> Holds<'_> {
        Holds { dsl: self }
    }
}

impl Holds<'_> {
    /// A pool was opened: what an earlier import held for sends is released with the first group.
    pub(crate) fn note_interrupted(&self) {
        let has_interrupted = &self.dsl.has_interrupted_holds;
        has_interrupted.store(true, Ordering::Release);
    }

    /// Whether such holds are to be released now; once.
    pub(crate) fn take_interrupted(&self) -> bool {
        let has_interrupted = &self.dsl.has_interrupted_holds;
        has_interrupted.swap(false, Ordering::AcqRel)
    }

    /// Refuses a pool whose snapshots cannot be held: ask before taking one that is to be held.
    ///
    /// # Errors
    /// [`DatasetError::Unsupported`].
    pub fn check_possible(&self, name: &str) -> Result<(), DatasetError> {
        match self.dsl.pool_version().has_holds() {
            true => Ok(()),
            false => Err(DatasetError::Unsupported {
                name: name.to_owned(),
                what: "holding snapshots in a pool of a version before 18".into(),
            }),
        }
    }

    /// Puts a hold on snapshots, on all of them or none.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::Exists`] when one has that tag already.
    pub async fn hold(&self, names: &[String], tag: &str) -> Result<(), DatasetError> {
        if tag.is_empty() || tag.len() > TAG_MAX_BYTES || tag.contains('\0') {
            return Err(DatasetError::InvalidName {
                name: tag.to_owned(),
                reason: "tag too long or empty".into(),
            });
        }
        self.dsl
            .tasks()
            .run(Arc::new(HoldTask {
                dsl: self.dsl.clone(),
                names: names.to_vec(),
                tag: tag.to_owned(),
                release: false,
                is_temporary: false,
            }))
            .await?;
        let mut held = NvList::new();
        for name in names {
            held.set(name, tag);
        }
        let mut input = NvList::new();
        input.set("holds", held);
        self.dsl.env().hooks.fulfilled("hold", input);
        Ok(())
    }

    /// Puts a hold on a snapshot that ends with the import, if it is not released before.
    ///
    /// # Errors
    /// As [`Self::hold`].
    pub async fn hold_for_now(&self, name: &str, tag: &str) -> Result<(), DatasetError> {
        self.dsl
            .tasks()
            .run(Arc::new(HoldTask {
                dsl: self.dsl.clone(),
                names: vec![name.to_owned()],
                tag: tag.to_owned(),
                release: false,
                is_temporary: true,
            }))
            .await
    }

    /// Takes a hold off snapshots, off all of them or none. A snapshot that was only waiting for
    /// that is destroyed.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`] when a snapshot or its tag does not exist.
    pub async fn release(&self, names: &[String], tag: &str) -> Result<(), DatasetError> {
        self.dsl
            .tasks()
            .run(Arc::new(HoldTask {
                dsl: self.dsl.clone(),
                names: names.to_vec(),
                tag: tag.to_owned(),
                release: true,
                is_temporary: false,
            }))
            .await?;
        let mut input = NvList::new();
        for name in names {
            input.set(name, all_true(&[tag.to_owned()]));
        }
        self.dsl.env().hooks.fulfilled("release", input);
        Ok(())
    }

    /// Tags of the holds on a snapshot, with the seconds since the epoch at which they were set.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::WrongKind`].
    pub async fn list(&self, name: &str) -> Result<Vec<(String, u64)>, DatasetError> {
        let _config = self.dsl.config.read().await;
        self.list_now(name).await
    }

    /// The same for who holds the namespace.
    pub(crate) async fn list_now(&self, name: &str) -> Result<Vec<(String, u64)>, DatasetError> {
        let snapshot = self.held_snapshot(name).await?;
        let zap = snapshot.phys().user_references;
        let mut out = Vec::new();
        if !zap.is_zero() {
            for entry in Zap::hold(self.dsl.mos(), zap).await?.all().await? {
                let tag = String::from_utf8_lossy(&entry.name).into_owned();
                out.push((tag, entry.value.as_u64().unwrap_or(0)));
            }
        }
        out.sort();
        Ok(out)
    }

    async fn held_snapshot(&self, name: &str) -> Result<Arc<Ds>, DatasetError> {
        let snapshot = self.dsl.directories().resolve(name).await?;
        if !snapshot.is_snapshot() {
            return Err(DatasetError::WrongKind {
                name: name.to_owned(),
                reason: "it is not a snapshot".into(),
            });
        }
        Ok(snapshot)
    }

    async fn has_hold(&self, snapshot: &Arc<Ds>, tag: &str) -> Result<bool, DatasetError> {
        let zap = snapshot.phys().user_references;
        if zap.is_zero() {
            return Ok(false);
        }
        let zap = Zap::hold(self.dsl.mos(), zap).await?;
        Ok(zap.lookup(tag).await?.is_some())
    }

    async fn hold_now(
        &self,
        ctx: &SyncContext,
        snapshot: &Arc<Ds>,
        tag: &str,
        is_temporary: bool,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let mut zap = snapshot.phys().user_references;
        if zap.is_zero() {
            zap = Zap::create(self.dsl.mos(), &tx, ZapOptions::new(ObjectType::USERREFS))
                .await?
                .id();
            snapshot.change(|state| state.phys.user_references = zap);
        }
        Zap::hold(self.dsl.mos(), zap)
            .await?
            .add_u64(&tx, tag, self.dsl.now_seconds())
            .await?;
        if is_temporary {
            let name = format!("{:x}-{tag}", snapshot.object.get());
            self.temporary(ctx)
                .await?
                .add_u64(&tx, name, self.dsl.now_seconds())
                .await?;
        }
        let count = {
            let mut state = snapshot.state();
            state.user_holds += 1;
            state.user_holds
        };
        let name = self.dsl.directories().full_name(snapshot).await?;
        let text = format!("tag={tag} temp={} refs={count}", u8::from(is_temporary));
        self.dsl
            .history(ctx, "hold", name, snapshot.object, text)
            .await
    }

    async fn release_now(
        &self,
        ctx: &SyncContext,
        snapshot: &Arc<Ds>,
        tag: &str,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        Zap::hold(self.dsl.mos(), snapshot.phys().user_references)
            .await?
            .remove(&tx, tag)
            .await?;
        if let Some(zap) = self.existing_temporary().await? {
            let name = format!("{:x}-{tag}", snapshot.object.get());
            forget(&zap, &tx, name.as_bytes()).await?;
        }
        let count = {
            let mut state = snapshot.state();
            state.user_holds = state.user_holds.saturating_sub(1);
            state.user_holds
        };
        let name = self.dsl.directories().full_name(snapshot).await?;
        let text = format!("tag={tag} refs={count}");
        self.dsl
            .history(ctx, "release", name, snapshot.object, text)
            .await?;
        let phys = snapshot.phys();
        if phys.flags & DslDatasetPhys::FLAG_DEFER_DESTROY != 0
            && phys.children == 1
            && count == 0
            && snapshot.hold_count() == 0
        {
            self.dsl
                .destroyer()
                .destroy_snapshot_now(ctx, snapshot, false)
                .await?;
        }
        Ok(())
    }

    /// Releases what a send held when the pool went down (`dsl_pool_clean_tmp_userrefs`), in
    /// syncing context.
    pub(crate) async fn release_temporary(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let Some(object) = self
            .dsl
            .directory
            .lookup_u64(names::pool::TMP_USERREFS)
            .await?
        else {
            return Ok(());
        };
        let tx = Tx::syncing(ctx.txg);
        let read = async {
            let zap = Zap::hold(self.dsl.mos(), object.into()).await?;
            let entries = zap.all().await?;
            Ok::<_, ObjectError>((zap, entries))
        };
        let (zap, entries) = match may_fail(read).await {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, "holds of ended sends cannot be read, and stay");
                return Ok(());
            }
        };
        for entry in entries {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if let Some((object, tag)) = name.split_once('-')
                && let Ok(object) = u64::from_str_radix(object, 16)
            {
                let found = async {
                    let snapshot = self
                        .dsl
                        .directories()
                        .dataset(ObjectId::new(object))
                        .await?;
                    let is_held = self.has_hold(&snapshot, tag).await?;
                    Ok::<_, DatasetError>((snapshot, is_held))
                };
                match may_fail(found).await {
                    Ok((snapshot, true)) => self.release_now(ctx, &snapshot, tag).await?,
                    Ok((_, false)) => {}
                    // Destroyed since.
                    Err(DatasetError::Object(ObjectError::NoSuchObject { .. })) => {}
                    Err(error) => {
                        // The next import tries again.
                        tracing::warn!(%error, tag, "a hold of an ended send is not released");
                        continue;
                    }
                }
            }
            forget(&zap, &tx, &entry.name).await?;
        }
        Ok(())
    }

    async fn existing_temporary(&self) -> Result<Option<Zap>, DatasetError> {
        let directory = &self.dsl.directory;
        match directory.lookup_u64(names::pool::TMP_USERREFS).await? {
            Some(object) => Ok(Some(Zap::hold(self.dsl.mos(), object.into()).await?)),
            None => Ok(None),
        }
    }

    /// The list of holds that end with the import (`dsl_pool_user_hold_create_obj`).
    async fn temporary(&self, ctx: &SyncContext) -> Result<Zap, DatasetError> {
        if let Some(zap) = self.existing_temporary().await? {
            return Ok(zap);
        }
        let tx = Tx::syncing(ctx.txg);
        let zap = Zap::create(self.dsl.mos(), &tx, ZapOptions::new(ObjectType::USERREFS)).await?;
        let name = names::pool::TMP_USERREFS;
        self.dsl
            .directory
            .add_u64(&tx, name, zap.id().get())
            .await?;
        Ok(zap)
    }
}

/// Removes an entry that need not be there.
async fn forget(zap: &Zap, tx: &Tx, name: &[u8]) -> Result<(), DatasetError> {
    match zap.remove(tx, name).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

struct HoldTask {
    dsl: Arc<DslPool>,
    names: Vec<String>,
    tag: String,
    release: bool,
    is_temporary: bool,
}

impl HoldTask {
    async fn do_check(&self) -> Result<(), DatasetError> {
        if !self.release {
            let first = self.names.first().map_or("", String::as_str);
            self.dsl.holds().check_possible(first)?;
        }
        if (self.is_temporary || self.release)
            && let Some(zap) = self.dsl.holds().existing_temporary().await?
        {
            // It is about to be written.
            zap.all().await?;
        }
        for name in &self.names {
            let snapshot = self.dsl.holds().held_snapshot(name).await?;
            let has = self.dsl.holds().has_hold(&snapshot, &self.tag).await?;
            if self.release && !has {
                return Err(DatasetError::not_found(format!("{name}#{}", self.tag)));
            }
            if !self.release && has {
                return Err(DatasetError::Exists {
                    name: format!("{name}#{}", self.tag),
                });
            }
            match self.release {
                true => self.dsl.readable().released(&snapshot).await?,
                false => self.dsl.readable().hold(&snapshot).await?,
            }
        }
        Ok(())
    }

    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        for name in &self.names {
            let snapshot = self.dsl.holds().held_snapshot(name).await?;
            if self.release {
                self.dsl
                    .holds()
                    .release_now(ctx, &snapshot, &self.tag)
                    .await?;
            } else {
                self.dsl
                    .holds()
                    .hold_now(ctx, &snapshot, &self.tag, self.is_temporary)
                    .await?;
            }
        }
        Ok(())
    }
}

impl SyncTask for HoldTask {
    fn name(&self) -> &'static str {
        if self.release { "release" } else { "hold" }
    }
    fn space_check(&self) -> SpaceCheck {
        if self.release {
            SpaceCheck::None
        } else {
            SpaceCheck::Reserved
        }
    }
    fn blocks(&self) -> u64 {
        BLOCKS_MIN.max(1 + self.names.len() as u64)
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_check())
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}
