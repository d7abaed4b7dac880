//! What is open of a pool: the registry.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dataset::{DatasetError, DatasetInfo, DatasetKind, DslPool};
use device::{BoxFuture, Tasks, World};
use filesystem::Filesystem;
use format::{ObjectId, ObjsetKind};
use futures::future::try_join_all;
use parking_lot::Mutex;
use volume::Volume;
use zio::Charge;

use crate::control::ControlDirectory;
use crate::error::{AccessError, Result};
use crate::lease::{Lease, entry};
use crate::opened::{Manner, Opened, Served};
use crate::slot::{Excluded, Exclusion, PoolParts, Slot};
use crate::user::User;

/// How often access times are stored, and unused snapshots closed.
const HOUSEKEEPING: Duration = Duration::from_secs(30);
/// How long that is not done again, whatever wants memory: what cannot be stored now stays so for a
/// while.
const REST: Duration = Duration::from_secs(1);
/// Slots up to which those of closed datasets are not looked for.
const SLOTS_MIN: usize = 64;

/// What is open of one pool: at most one filesystem or volume per dataset, whoever uses it.
///
/// Each pool that is imported has a registry of its own, made with it and dropped with it: a pool's
/// name and guid may change while it is open, and another pool may have them afterwards.
pub struct Access {
    pool: Arc<PoolParts>,
    slots: Arc<Mutex<Slots>>,
}

/// Places of datasets by their objects, which stay the same when datasets are renamed.
#[derive(Default)]
struct Slots {
    by_object: BTreeMap<ObjectId, Weak<Slot>>,
    /// From so many on, those that are gone are taken out.
    is_many: usize,
    /// How many want everybody out.
    leaving: usize,
    /// Directories whose snapshots are closed when they are idle.
    controls: Vec<Weak<ControlDirectory>>,
}

impl Slots {
    fn all(&self) -> Vec<Arc<Slot>> {
        self.by_object.values().filter_map(Weak::upgrade).collect()
    }
}

/// Datasets that somebody has alone, until this is dropped: nobody has one open, and whoever wants
/// to open one waits.
#[must_use = "others may open the dataset when this is dropped"]
pub struct Exclusive {
    _excluded: Vec<Excluded>,
}

/// A pool of which nothing is open, and nothing can be opened until this is dropped.
#[must_use = "datasets may be opened again when this is dropped"]
pub struct Leaving {
    slots: Arc<Mutex<Slots>>,
    excluded: Vec<Excluded>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.slots.lock().leaving -= 1;
        self.excluded.clear();
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        // Opening and closing go on to their end.
        self.pool.tasks.cancel();
    }
}

impl Access {
    /// A registry for a pool. Nothing is open yet.
    pub fn new(dsl: Arc<DslPool>, world: World) -> Self {
        // A panic is logged, and breaks the dataset that it is about.
        let tasks = Tasks::new(&world, |_| {});
        let pool = Arc::new(PoolParts { dsl, world, tasks });
        let slots = Arc::default();
        let charge = Arc::clone(pool.dsl.mos().pipeline().cache().charge());
        let housekeeping = keep_house(Arc::downgrade(&slots), pool.world.clone(), charge);
        pool.tasks.spawn("housekeeping", housekeeping);
        Self { pool, slots }
    }

    /// The pool's datasets.
    pub fn dsl(&self) -> &Arc<DslPool> {
        &self.pool.dsl
    }

    pub(crate) fn world(&self) -> &World {
        &self.pool.world
    }

    pub(crate) fn keep_house_of(&self, control: Weak<ControlDirectory>) {
        let mut slots = self.slots.lock();
        slots.controls.retain(|control| control.strong_count() > 0);
        slots.controls.push(control);
    }

    fn slot(&self, info: &DatasetInfo, is_exclusive: bool) -> Result<Arc<Slot>> {
        let object = info.object;
        let mut slots = self.slots.lock();
        if slots.leaving > 0 && !is_exclusive {
            let pool = self.pool.dsl.pool_name();
            return Err(AccessError::Leaving { pool });
        }
        if let Some(slot) = slots.by_object.get(&object).and_then(Weak::upgrade) {
            return Ok(slot);
        }
        if slots.by_object.len() >= slots.is_many.max(SLOTS_MIN) {
            slots.by_object.retain(|_, slot| slot.strong_count() > 0);
            slots.is_many = slots.by_object.len() * 2;
        }
        let slot = Arc::new(Slot::new(
            object,
            info.kind == DatasetKind::Snapshot,
            Arc::clone(&self.pool),
        ));
        slots.by_object.insert(object, Arc::downgrade(&slot));
        Ok(slot)
    }

    /// A lease on a filesystem or a snapshot of one, which is opened if it is not: after a crash
    /// its log is replayed then. Waits while it is opened, closed or had alone by somebody else.
    ///
    /// # Errors
    /// [`AccessError::Leaving`], [`AccessError::WrongKind`], [`AccessError::Dataset`], and as
    /// [`Filesystem::open`].
    pub async fn filesystem(&self, name: &str, user: User) -> Result<Lease<Filesystem>> {
        let lease = self.filesystem_to_read(name, user).await?;
        filesystem::begin_upkeep(&lease.get());
        Ok(lease)
    }

    /// [`Self::filesystem`] for who does not change anything: unless others do, nothing is written
    /// but what a log of a crash has.
    ///
    /// # Errors
    /// As there.
    pub async fn filesystem_to_read(&self, name: &str, user: User) -> Result<Lease<Filesystem>> {
        self.lease(name, user, Manner::Serve).await
    }

    /// [`Self::filesystem`] to look at what is there: where nobody serves it nothing is written,
    /// and a log that a crash left stays. Whoever wants to serve it meanwhile waits, so `user` is
    /// to be done in a moment.
    ///
    /// # Errors
    /// As there.
    pub async fn look(&self, name: &str, user: User) -> Result<Lease<Filesystem>> {
        self.lease(name, user, Manner::Look).await
    }

    /// A lease on a volume or a snapshot of one, as [`Self::filesystem`].
    ///
    /// # Errors
    /// As there, and as [`Volume::open`].
    pub async fn volume(&self, name: &str, user: User) -> Result<Lease<Volume>> {
        self.lease(name, user, Manner::Serve).await
    }

    /// What a name means. Boxed: it is deep, and would be part of all that asks for a dataset.
    fn find<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<DatasetInfo, DatasetError>> {
        Box::pin(async move { self.pool.dsl.directories().lookup(name).await })
    }

    async fn lease<T: Served>(&self, name: &str, user: User, manner: Manner) -> Result<Lease<T>> {
        let slot = self.slot_of::<T>(name).await?;
        let (place, cell) = slot.join(entry::<T>(user), manner).await?;
        Ok(Lease::new(place, cell))
    }

    /// [`Self::filesystem_to_read`] of several at once, in the order of the names. While one of
    /// them has to be waited for none is held, so that whoever wants one of them alone, whatever
    /// else he has, gets it.
    ///
    /// # Errors
    /// As [`Self::filesystem`].
    pub async fn filesystems<const N: usize>(
        &self,
        names: [&str; N],
        user: User,
    ) -> Result<[Lease<Filesystem>; N]> {
        let mut slots = Vec::with_capacity(N);
        for name in names {
            slots.push(self.slot_of::<Filesystem>(name).await?);
        }
        let joining = || entry::<Filesystem>(user.clone());
        let mut in_the_way: Option<usize> = None;
        loop {
            let mut joined: [Option<Lease<Filesystem>>; N] = [const { None }; N];
            if let Some(at) = in_the_way.take() {
                let (place, cell) = slots[at].join(joining(), Manner::Serve).await?;
                joined[at] = Some(Lease::new(place, cell));
            }
            for (slot, joined) in slots.iter().zip(&mut joined) {
                if joined.is_none() {
                    let there = slot.try_join(joining(), Manner::Serve).await?;
                    *joined = there.map(|(place, cell)| Lease::new(place, cell));
                }
            }
            in_the_way = joined.iter().position(Option::is_none);
            let all: Vec<Lease<Filesystem>> = joined.into_iter().flatten().collect();
            if let Ok(all) = all.try_into() {
                return Ok(all);
            }
        }
    }

    async fn slot_of<T: Served>(&self, name: &str) -> Result<Arc<Slot>> {
        let info = self.find(name).await?;
        let kind = match info.head_kind {
            DatasetKind::Volume => Volume::KIND,
            _ => Filesystem::KIND,
        };
        if kind != T::KIND {
            return Err(AccessError::WrongKind {
                name: name.to_owned(),
                wanted: T::KIND,
            });
        }
        self.slot(&info, false)
    }

    /// Replays the intent logs that a crash left of datasets that nobody has used since, of all or
    /// of those at and below `top`: after an import, and when a key is loaded. So nothing that is
    /// done without opening a dataset, as a snapshot, goes without what its log has. Answers those
    /// that cannot be replayed, or not now; what has no key, or is half received, is left alone.
    ///
    /// # Errors
    /// Of reading the list of datasets.
    pub async fn replay_waiting(&self, top: Option<&str>) -> Result<Vec<(String, AccessError)>> {
        let logs = self.pool.dsl.logs();
        let waiting: BoxFuture<'_, _> = Box::pin(logs.waiting(top));
        let mut failed = Vec::new();
        for name in waiting.await? {
            match self.replay(&name, false).await {
                Ok(())
                | Err(AccessError::Dataset(
                    DatasetError::KeyNotLoaded { .. }
                    | DatasetError::Receive { .. }
                    | DatasetError::NotFound { .. },
                )) => {}
                Err(error) => failed.push((name, error)),
            }
        }
        Ok(failed)
    }

    /// Goes on without the records of a dataset's intent log that cannot be replayed, and without
    /// those that rely on them: what they promised is lost. The others are replayed.
    ///
    /// # Errors
    /// As [`Self::filesystem`] and [`Self::volume`].
    pub async fn discard_log(&self, name: &str) -> Result<()> {
        self.replay(name, true).await
    }

    /// Opens and closes a dataset, whose log is replayed then.
    async fn replay(&self, name: &str, leaves_out: bool) -> Result<()> {
        let opening: BoxFuture<'_, _> = Box::pin(self.pool.dsl.open_dataset(name));
        // Held until the end: what is open is what was told.
        let dataset = opening.await?;
        if leaves_out && let Some(log) = dataset.log() {
            log.leave_out_unreplayable();
            log.discard_unclaimed().await.map_err(DatasetError::from)?;
        }
        let user = User::Command {
            name: "replay of an intent log",
        };
        match dataset.objset_kind() {
            ObjsetKind::Volume => self.volume(name, user).await?.close().await,
            _ => self.filesystem_to_read(name, user).await?.close().await,
        }
    }

    /// Who uses a dataset now.
    ///
    /// # Errors
    /// [`AccessError::Dataset`], where there is none.
    pub async fn users(&self, name: &str) -> Result<Vec<User>> {
        let object = self.find(name).await?.object;
        let slot = self.slots.lock().by_object.get(&object).cloned();
        let slot = slot.and_then(|slot| slot.upgrade());
        Ok(slot.map(|slot| slot.users()).unwrap_or_default())
    }

    /// Has datasets alone and closed: to destroy them, for instance. Waits for who opens or closes
    /// one, and for users who are done in a moment. They are taken in the order of their objects,
    /// snapshots last, whatever the order of the names.
    ///
    /// # Errors
    /// [`AccessError::InUse`], where that is [`Exclusion::Refused`], also of users who were to be
    /// done in a moment and are not; [`AccessError::Dataset`].
    pub async fn exclusive(&self, names: &[String], how: Exclusion) -> Result<Exclusive> {
        let mut slots = Vec::with_capacity(names.len());
        for name in names {
            slots.push(self.slot(&self.find(name).await?, true)?);
        }
        slots.sort_by_key(|slot| (slot.is_snapshot, slot.object));
        slots.dedup_by_key(|slot| slot.object);
        let mut excluded = Vec::with_capacity(slots.len());
        for slot in slots {
            excluded.push(slot.exclude(how).await?);
        }
        Ok(Exclusive {
            _excluded: excluded,
        })
    }

    /// Waits until nobody uses any of these datasets who is done in a moment, whoever else does.
    ///
    /// # Errors
    /// [`AccessError::InUse`] of users who were to be done in a moment and are not;
    /// [`AccessError::Dataset`].
    pub async fn settled(&self, names: &[String]) -> Result<()> {
        for name in names {
            self.slot(&self.find(name).await?, true)?.settled().await?;
        }
        Ok(())
    }

    /// Does `work`, which brings another state of a dataset (a rollback), while nobody is at it:
    /// mounts, files of volumes and iSCSI targets go on afterwards with what is there then, and
    /// their requests wait meanwhile. Once begun, it is done to its end whoever waits for it.
    ///
    /// # Errors
    /// [`AccessError::InUse`], where somebody uses it who cannot go on; `work` is not done then,
    /// nor with [`AccessError::NotClosed`]. [`AccessError::NotReopened`], [`AccessError::Dataset`].
    pub async fn exchange<R: Send + 'static>(
        &self,
        name: &str,
        work: impl Future<Output = R> + Send + 'static,
    ) -> Result<R> {
        let info = self.find(name).await?;
        self.slot(&info, true)?.exchange(work).await
    }

    /// Closes everything and lets nobody open anything, so that the pool can be exported.
    ///
    /// # Errors
    /// [`AccessError::InUse`] of the first dataset that somebody uses, where that is
    /// [`Exclusion::Refused`]: what is open stays so then.
    pub async fn leave(&self, how: Exclusion) -> Result<Leaving> {
        let all = {
            let mut slots = self.slots.lock();
            slots.leaving += 1;
            slots.all()
        };
        let mut leaving = Leaving {
            slots: Arc::clone(&self.slots),
            excluded: Vec::new(),
        };
        // A rollback that nobody waits for any more may have a dataset, and want its snapshots.
        let (snapshots, heads): (Vec<_>, Vec<_>) = all.iter().partition(|slot| slot.is_snapshot);
        for slots in [heads, snapshots] {
            let excluded = slots.into_iter().map(|slot| slot.exclude(how));
            leaving.excluded.extend(try_join_all(excluded).await?);
        }
        Ok(leaving)
    }
}

/// Stores access times and closes idle snapshots, until the registry is gone: from time to time,
/// and when files in memory take more than they may, as those with access times to store stay.
async fn keep_house(slots: Weak<Mutex<Slots>>, world: World, charge: Arc<Charge>) {
    loop {
        world.clock.sleep(REST).await;
        // In this order, so that the simulator tells the same story each time.
        tokio::select! {
            biased;
            () = charge.is_over() => {}
            () = world.clock.sleep(HOUSEKEEPING - REST) => {}
        }
        let Some(slots) = slots.upgrade() else { return };
        let (all, controls) = {
            let slots = slots.lock();
            (slots.all(), slots.controls.clone())
        };
        for control in controls.iter().filter_map(Weak::upgrade) {
            control.close_idle().await;
        }
        for slot in all {
            if let Some(Opened::Filesystem(filesystem)) = slot.served()
                && !filesystem.is_read_only()
                && !filesystem.is_closed()
            {
                filesystem.store_access_times().await;
            }
        }
    }
}
