//! Programs: sync tasks that look at the pool and change it as they go along (`zcp_eval_sync`,
//! module/zfs/zcp.c).
//!
//! A program runs alone with the namespace, after the datasets of its transaction group were
//! written and before the MOS is. Each of its changes is a sync task of its own, with that one's
//! check and space, run at once; so one program does what a queue of tasks in the same group would
//! do, and sees after each what it has come to. The group is written as a whole: a crash leaves all
//! that the program did or nothing. What a program did before it ended, however it ended, is not
//! taken back.
//!
//! The group is not written before the program ends. What it looks at fails where it cannot be
//! read; who writes programs bounds what they do.

use std::sync::Arc;

use device::BoxFuture;
use format::{ObjectId, ObjsetKind};
use object::{SyncContext, Zap};
use parking_lot::Mutex;
use zio::pipeline::may_fail;

use crate::dsl::DslPool;
use crate::props::{PROPERTIES, find, is_user_property};
use crate::state::Ds;
use crate::task::{SpaceCheck, SyncTask};
use crate::tasks::{TaskRoom, Tasks};
use crate::{DatasetError, PropertyChange, PropertySetting};

/// What runs within one sync task.
pub trait Program: Send + Sync {
    /// Runs it to its end. What comes of it is the program's to keep.
    fn run<'a>(&'a self, pool: &'a ProgramPool<'a>) -> BoxFuture<'a, ()>;
}

/// A pool in syncing context, for a [`Program`].
pub struct ProgramPool<'a> {
    dsl: &'a Arc<DslPool>,
    ctx: &'a SyncContext,
    /// A change that had to succeed did not: the pool's failure, after which nothing goes on.
    failure: Mutex<Option<DatasetError>>,
    /// What its changes may take, at worst: of all kinds, as one program can make many that each
    /// might go beyond what others may use (`zri_space_used`).
    taken_bytes: Mutex<u64>,
}

impl Tasks<'_> {
    /// Runs a program in the open txg and waits until it is on disk.
    ///
    /// # Errors
    /// As [`Tasks::run`]; a program whose txg did not come to disk has changed nothing.
    pub async fn run_program(&self, program: Arc<dyn Program>) -> Result<(), DatasetError> {
        let task = ProgramTask {
            dsl: self.dsl.clone(),
            program,
        };
        self.run(Arc::new(task)).await
    }
}

impl<'a> ProgramPool<'a> {
    /// The datasets, for the functions that make tasks of [`Self::change`]. Others of its functions
    /// wait for the namespace, which this one holds.
    pub fn dsl(&self) -> &'a Arc<DslPool> {
        self.dsl
    }

    /// Whether a task could be run now; with `apply` it is run.
    ///
    /// # Errors
    /// What its check says; [`DatasetError::NoSpace`]; [`DatasetError::Closed`] once the pool
    /// failed.
    pub async fn change(&self, task: &dyn SyncTask, apply: bool) -> Result<(), DatasetError> {
        if self.failure.lock().is_some() {
            return Err(DatasetError::Closed);
        }
        let tasks = self.dsl.tasks();
        let taken_bytes = *self.taken_bytes.lock();
        if tasks.task_room(task) != TaskRoom::Fits || !tasks.fits_beside(task, taken_bytes) {
            return Err(DatasetError::NoSpace {
                name: self.dsl.pool_name(),
            });
        }
        may_fail(task.check(self.ctx)).await?;
        if !apply {
            return Ok(());
        }
        if let Err(error) = task.apply(self.ctx).await {
            tracing::error!(task = task.name(), %error, "a program's change failed while applied");
            *self.failure.lock() = Some(error);
            return Err(DatasetError::Closed);
        }
        tasks.take_space(task);
        let mut taken_bytes = self.taken_bytes.lock();
        *taken_bytes = taken_bytes.saturating_add(tasks.checked_bytes(task));
        Ok(())
    }

    /// The task that changes one property, for [`Self::change`].
    ///
    /// # Errors
    /// As [`crate::Properties::set_task`]; what cannot be read is one of them here.
    pub async fn set_task(
        &self,
        name: &str,
        property: &str,
        change: PropertyChange,
    ) -> Result<Arc<dyn SyncTask>, DatasetError> {
        may_fail(self.dsl.properties().set_task(name, property, change)).await
    }

    async fn resolve(&self, name: &str) -> Result<Arc<Ds>, DatasetError> {
        may_fail(self.dsl.directories().resolve(name)).await
    }

    /// A filesystem or volume.
    async fn head(&self, name: &str) -> Result<Arc<Ds>, DatasetError> {
        let head = self.resolve(name).await?;
        match head.is_snapshot() {
            false => Ok(head),
            true => Err(wrong_kind(name, "it is a snapshot")),
        }
    }

    /// Whether there is a dataset or snapshot of that name.
    ///
    /// # Errors
    /// Of reading.
    pub async fn exists(&self, name: &str) -> Result<bool, DatasetError> {
        match self.resolve(name).await {
            Ok(_) => Ok(true),
            Err(DatasetError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// One property of a dataset or snapshot, native, `written@SNAPSHOT`, or a user property, as
    /// far as the dataset has it.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::InvalidProperty`] where there is no such
    /// property at all.
    pub async fn property(
        &self,
        name: &str,
        property: &str,
    ) -> Result<Option<PropertySetting>, DatasetError> {
        let dataset = self.resolve(name).await?;
        let is_written = property.starts_with("written@") || property.starts_with("written#");
        if find(property).is_none() && !is_user_property(property) && !is_written {
            return Err(DatasetError::InvalidProperty {
                property: property.to_owned(),
                reason: format!("'{name}' has no property '{property}'"),
            });
        }
        may_fail(self.dsl.properties().setting(&dataset, property)).await
    }

    /// The quota of a user, group or project in a filesystem, or what is used of it: properties
    /// like `userquota@1000` and `groupobjused@0`, by number (`zcp_get_userquota_prop`,
    /// module/zfs/zcp_get.c). Nothing where there is no quota.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::InvalidProperty`] where it is no such property,
    /// or the dataset no filesystem.
    pub async fn owned(&self, name: &str, property: &str) -> Result<Option<u64>, DatasetError> {
        let dataset = self.resolve(name).await?;
        let parsed = owned_property(property);
        let kind = may_fail(self.dsl.directories().objset_kind(&dataset)).await?;
        match parsed.filter(|_| kind == ObjsetKind::Filesystem) {
            Some(owned) => may_fail(self.owned_now(&dataset, owned)).await,
            None => Err(DatasetError::InvalidProperty {
                property: property.to_owned(),
                reason: format!("'{name}' has no property '{property}'"),
            }),
        }
    }

    async fn owned_now(
        &self,
        dataset: &Arc<Ds>,
        owned: Owned<'_>,
    ) -> Result<Option<u64>, DatasetError> {
        let Owned { which, account, id } = owned;
        let objset = self.dsl.datasets().peek_objset(dataset).await?;
        if which.ends_with("used") {
            let key = match which.ends_with("objused") {
                true => format!("obj-{id:x}"),
                false => format!("{id:x}"),
            };
            return match Zap::hold(&objset, account).await {
                Ok(zap) => Ok(Some(zap.lookup_u64(key).await?.unwrap_or(0))),
                Err(error) if error.is_not_found() => Ok(Some(0)),
                Err(error) => Err(error.into()),
            };
        }
        let master = Zap::hold(&objset, ObjectId::MASTER_NODE).await?;
        let quotas = master.lookup_u64(format!("{which}@")).await?;
        let own = match quotas {
            Some(quotas) => {
                let zap = Zap::hold(&objset, ObjectId::new(quotas)).await?;
                zap.lookup_u64(format!("{id:x}")).await?
            }
            None => None,
        };
        let default = master.lookup_u64(format!("default{which}")).await?;
        Ok(own.or(default.filter(|quota| *quota > 0)))
    }

    /// Names of the native properties that a dataset or snapshot has.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn native_properties(&self, name: &str) -> Result<Vec<String>, DatasetError> {
        let dataset = self.resolve(name).await?;
        let properties = self.dsl.properties();
        let mut names = Vec::new();
        for property in PROPERTIES.iter().filter(|property| property.visible) {
            let setting = properties.setting(&dataset, property.name);
            names.extend(may_fail(setting).await?.map(|setting| setting.name));
        }
        Ok(names)
    }

    /// User properties of a dataset or snapshot, its own and inherited ones.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn user_properties(&self, name: &str) -> Result<Vec<PropertySetting>, DatasetError> {
        let dataset = self.resolve(name).await?;
        let found = may_fail(self.dsl.properties().user_properties(&dataset)).await?;
        let settings = found
            .into_iter()
            .map(|(name, value, source)| PropertySetting {
                name,
                value,
                source,
            });
        Ok(settings.collect())
    }

    /// Full names of the filesystems and volumes right below one.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::WrongKind`] of a snapshot.
    pub async fn children(&self, name: &str) -> Result<Vec<String>, DatasetError> {
        let head = self.head(name).await?;
        let children = may_fail(self.dsl.directories().children(&head.dir())).await?;
        let pool = self.dsl.pool_name();
        Ok(children
            .iter()
            .map(|child| child.full_name(&pool))
            .collect())
    }

    /// Full names of the snapshots of a filesystem or volume, oldest first.
    ///
    /// # Errors
    /// As [`Self::children`].
    pub async fn snapshots(&self, name: &str) -> Result<Vec<String>, DatasetError> {
        let head = self.head(name).await?;
        let snapshots = may_fail(self.dsl.directories().snapshots(&head)).await?;
        let names = snapshots.into_iter();
        Ok(names.map(|(short, _)| format!("{name}@{short}")).collect())
    }

    /// Full names of the bookmarks of a filesystem or volume, oldest first.
    ///
    /// # Errors
    /// As [`Self::children`].
    pub async fn bookmarks(&self, name: &str) -> Result<Vec<String>, DatasetError> {
        let head = self.head(name).await?;
        let state = head.state();
        let entries = state.bookmarks.entries().iter();
        Ok(entries
            .map(|entry| format!("{name}#{}", entry.name))
            .collect())
    }

    /// Full names of the clones of a snapshot.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::WrongKind`] of anything but a snapshot.
    pub async fn clones(&self, name: &str) -> Result<Vec<String>, DatasetError> {
        let snapshot = self.resolve(name).await?;
        if !snapshot.is_snapshot() {
            return Err(wrong_kind(name, "it is not a snapshot"));
        }
        let mut clones = may_fail(self.dsl.directories().clone_names(&snapshot)).await?;
        clones.retain(|clone| !clone.contains("/%"));
        Ok(clones)
    }

    /// Tags of the holds on a snapshot, with the seconds since the epoch at which they were set.
    ///
    /// # Errors
    /// As [`Self::clones`].
    pub async fn holds(&self, name: &str) -> Result<Vec<(String, u64)>, DatasetError> {
        may_fail(self.dsl.holds().list_now(name)).await
    }
}

/// A property of a user, group or project.
struct Owned<'a> {
    /// What stands before the `@`.
    which: &'a str,
    /// Where what is used is counted.
    account: ObjectId,
    id: u64,
}

fn owned_property(property: &str) -> Option<Owned<'_>> {
    let (which, id) = property.split_once('@')?;
    let id = id.parse().ok()?;
    let owners = [
        ("user", ObjectId::USER_USED),
        ("group", ObjectId::GROUP_USED),
        ("project", ObjectId::PROJECT_USED),
    ];
    let mut found = owners.into_iter().filter_map(|(owner, account)| {
        let what = which.strip_prefix(owner)?;
        let is_known = ["quota", "objquota", "used", "objused"].contains(&what);
        is_known.then_some(Owned { which, account, id })
    });
    found.next()
}

fn wrong_kind(name: &str, reason: &str) -> DatasetError {
    DatasetError::WrongKind {
        name: name.to_owned(),
        reason: reason.to_owned(),
    }
}

struct ProgramTask {
    dsl: Arc<DslPool>,
    program: Arc<dyn Program>,
}

impl SyncTask for ProgramTask {
    fn name(&self) -> &'static str {
        "program"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::ExtraReserved
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let pool = ProgramPool {
                dsl: &self.dsl,
                ctx,
                failure: Mutex::new(None),
                taken_bytes: Mutex::new(0),
            };
            self.program.run(&pool).await;
            match pool.failure.into_inner() {
                Some(error) => Err(error),
                None => Ok(()),
            }
        })
    }
}
