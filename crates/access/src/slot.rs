//! The place of one dataset: what is open of it, and for whom.
//!
//! ```text
//!   Closed ── first lease ──▶ Opening ──▶ Open ── last lease gone ──▶ Closing ──▶ Closed
//!                                │         │ ▲
//!                        fails: Closed     ▼ │ rollback, under all who use it
//!                                       Exchanging ── cannot be opened again ──▶ Closed
//!   Closed without leases ── somebody has it alone ──▶ Excluded ──▶ Closed
//!   Opening, Closing, Exchanging ── panics ──▶ Broken
//! ```
//!
//! The dataset is opened only on the way from `Closed` to `Opening` and within `Exchanging`, and
//! what is open is gone before either can be reached: there are never two. Opening, closing and
//! exchanging are tasks of the pool's registry, so that nobody who gives up waiting cuts one short,
//! and whoever needs the dataset meanwhile waits for them. A task that panics leaves nobody who
//! could tell how far it came: nothing is opened any more then.
//!
//! # Lock
//!
//! The state (short, within the channel by which others hear of changes). It is never held while
//! anything waits or another lock is taken.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dataset::DslPool;
use dataset::lock_order::{self, Held, Lock};
use device::{BoxFuture, Tasks, World};
use filesystem::Changes;
use format::ObjectId;
use futures::future::join_all;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use crate::error::{AccessError, Result};
use crate::opened::{Manner, Opened};
use crate::user::User;

/// A user that stays while another state takes the place of what it uses.
pub trait Resident: Send + Sync + 'static {
    /// Lets no request at the dataset any more, and completes when none is under way; `None` where
    /// they do not end. Dropping what it gives lets requests in again, as [`Paused::resume`] does.
    fn pause(self: Arc<Self>) -> BoxFuture<'static, Option<Box<dyn Paused>>>;
}

/// A [`Resident`] whose requests wait.
pub trait Paused: Send + 'static {
    /// Takes what it holds open over to what its lease gives now. All do this before the first is
    /// let go on, so that nobody removes or frees what another one has open; a file without a name
    /// that nobody takes over here is freed.
    fn adopt(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Goes on with what its lease gives now; completes when nobody sees anything older.
    fn resume(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// Whether who uses a dataset keeps others from having it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// Yes; only those who are done in a moment are waited for.
    Refused,
    /// No: it is closed under them, and all that they ask for from then on fails.
    Forced,
}

/// How long somebody is waited for who was to be done with a dataset in a moment.
const PATIENCE: Duration = Duration::from_secs(60);

/// What all slots of a pool need.
pub(crate) struct PoolParts {
    pub(crate) dsl: Arc<DslPool>,
    pub(crate) world: World,
    /// Opening, closing, exchanging, and the housekeeper.
    pub(crate) tasks: Tasks,
}

/// What is open, where all its leases find it.
pub(crate) type Cell = Arc<RwLock<Opened>>;

/// A lease, as its slot knows it.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) user: User,
    /// Whether it goes on by itself where another state takes the place of what is open.
    pub(crate) goes_along: bool,
    /// Who has to be told of that.
    pub(crate) resident: Option<Weak<dyn Resident>>,
}

enum Phase {
    Closed,
    Opening,
    Open { cell: Cell, manner: Manner },
    Closing,
    Exchanging,
    Excluded,
    Broken,
}

struct State {
    phase: Phase,
    leases: BTreeMap<u64, Entry>,
    next_lease: u64,
    /// How many wait to have it alone: whoever comes after them waits behind them.
    claims: usize,
}

/// The place of one dataset.
pub(crate) struct Slot {
    pub(crate) object: ObjectId,
    /// Who is told of what changes in the filesystem, through rollbacks.
    pub(crate) changes: Arc<Changes>,
    /// Of a snapshot: had alone after what it is of.
    pub(crate) is_snapshot: bool,
    pool: Arc<PoolParts>,
    state: watch::Sender<State>,
}

/// A lease's place in its slot; given back when dropped.
pub(crate) struct Place {
    pub(crate) slot: Arc<Slot>,
    id: u64,
    /// Where others wait for it to be given back.
    held: Mutex<Option<Held>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // How closing ends is logged.
        drop(self.slot.leave(self.id));
    }
}

impl Place {
    /// Gives it back, and waits until the dataset is closed, or somebody else uses it for long.
    pub(crate) async fn close(&self) -> Result<()> {
        let mut outcome = Ok(());
        drop(self.held.lock().take());
        if let Some(closed) = self.slot.leave(self.id) {
            outcome = match closed.await {
                Ok(outcome) => outcome,
                Err(_) => Err(self.slot.broken().await),
            };
        }
        let mut state = self.slot.state.subscribe();
        // The sender is the slot's, which this has.
        let _ = state.wait_for(State::is_left).await;
        outcome
    }

    /// Whether `cell` is what is open here, or is about to be once more.
    pub(crate) fn is_open(&self, cell: &Cell) -> bool {
        match &self.slot.state.borrow().phase {
            Phase::Open { cell: open, .. } => Arc::ptr_eq(open, cell),
            Phase::Exchanging => true,
            _ => false,
        }
    }

    /// Whether it was neither given back nor cut off.
    pub(crate) fn is_good(&self) -> bool {
        self.slot.state.borrow().leases.contains_key(&self.id)
    }

    pub(crate) fn set_resident(&self, resident: Weak<dyn Resident>) {
        self.slot.step(|state| {
            if let Some(entry) = state.leases.get_mut(&self.id) {
                entry.goes_along = true;
                entry.resident = Some(resident);
            }
            ((), false)
        });
    }
}

/// A dataset that somebody has alone: nobody opens it until this is dropped.
pub(crate) struct Excluded(Arc<Slot>);

impl Drop for Excluded {
    fn drop(&mut self) {
        self.0.step(|state| {
            state.phase = Phase::Closed;
            ((), true)
        });
    }
}

/// Somebody waits to have the dataset alone.
struct Claim<'a>(&'a Slot);

impl<'a> Claim<'a> {
    fn new(slot: &'a Slot) -> Self {
        slot.step(|state| {
            state.claims += 1;
            ((), false)
        });
        Self(slot)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.step(|state| {
            state.claims -= 1;
            ((), true)
        });
    }
}

/// Says that nobody knows how far a task came, where it does not get to [`Self::done`].
struct Unfinished<'a>(&'a Slot);

impl Unfinished<'_> {
    fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.step(|state| {
            state.phase = Phase::Broken;
            ((), true)
        });
    }
}

impl State {
    fn enter(&mut self, entry: Entry) -> u64 {
        let id = self.next_lease;
        self.next_lease += 1;
        self.leases.insert(id, entry);
        id
    }

    /// Enters somebody, unless others have to be done first.
    fn join(&mut self, entry: &Entry, manner: Manner) -> Joining {
        match &self.phase {
            Phase::Broken => Joining::Broken,
            _ if self.claims > 0 => Joining::Wait,
            // Who only looks is content with more; who serves waits until lookers are gone.
            Phase::Open { cell, manner: has } if *has == Manner::Serve || *has == manner => {
                let cell = Arc::clone(cell);
                Joining::Joined(self.enter(entry.clone()), cell)
            }
            Phase::Closed => {
                self.phase = Phase::Opening;
                Joining::Open(self.enter(entry.clone()))
            }
            _ => Joining::Wait,
        }
    }

    /// Those who were to be done in a moment.
    fn brief_users(&self) -> Vec<User> {
        let users = self.leases.values().map(|entry| &entry.user);
        users.filter(|user| user.is_brief()).cloned().collect()
    }

    fn has_lasting_users(&self) -> bool {
        self.leases.values().any(|entry| !entry.user.is_brief())
    }

    /// Whether who has given up a lease need not wait any more.
    fn is_left(&self) -> bool {
        match self.phase {
            Phase::Closed | Phase::Excluded | Phase::Broken => true,
            Phase::Open { .. } | Phase::Exchanging | Phase::Opening => self.has_lasting_users(),
            Phase::Closing => false,
        }
    }

    fn users(&self) -> Vec<User> {
        let users = self.leases.values().map(|entry| entry.user.clone());
        users.collect()
    }

    /// What is to be closed now, if it is open and has no leases.
    fn settle(&mut self) -> Option<Cell> {
        if !self.leases.is_empty() {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Closing) {
            Phase::Open { cell, .. } => Some(cell),
            other => {
                self.phase = other;
                None
            }
        }
    }
}

/// What whoever asks for a lease is to do.
enum Joining {
    Joined(u64, Cell),
    Open(u64),
    Wait,
    Broken,
}

/// What whoever wants a dataset alone is to do.
enum Excluding {
    Done,
    Close(Cell),
    Wait,
    InUse(Vec<User>),
    Broken,
}

/// What whoever brings another state of a dataset is to do.
enum Exchanging {
    Alone,
    Under(Vec<(User, Weak<dyn Resident>)>),
    Wait,
    InUse(Vec<User>),
    Broken,
}

impl Slot {
    pub(crate) fn new(object: ObjectId, is_snapshot: bool, pool: Arc<PoolParts>) -> Self {
        let state = State {
            phase: Phase::Closed,
            leases: BTreeMap::new(),
            next_lease: 0,
            claims: 0,
        };
        Self {
            object,
            changes: Arc::default(),
            is_snapshot,
            pool,
            state: watch::Sender::new(state),
        }
    }

    /// Looks at the state and changes it; `step` says whether others are to hear of it.
    fn step<R>(&self, step: impl FnOnce(&mut State) -> (R, bool)) -> R {
        let mut result = None;
        self.state.send_if_modified(|state| {
            let (value, has_changed) = step(state);
            result = Some(value);
            has_changed
        });
        result.expect("a step is made once")
    }

    /// Repeats `step` whenever the state has changed, until it has a result.
    async fn until<R>(&self, mut step: impl FnMut(&mut State) -> (Option<R>, bool)) -> R {
        let mut changes = self.state.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(result) = self.step(&mut step) {
                return result;
            }
            // The sender is this slot's.
            let _ = changes.changed().await;
        }
    }

    /// [`Self::until`], but users who were to be done in a moment are waited for no longer than
    /// [`PATIENCE`]: they are the error then. Opening and closing, which wait for devices alone,
    /// are waited for to their end.
    async fn until_patient<R>(
        &self,
        mut step: impl FnMut(&mut State) -> (Option<R>, bool),
    ) -> Result<R> {
        loop {
            let patience = self.pool.world.clock.sleep(PATIENCE);
            tokio::select! {
                biased;
                result = self.until(&mut step) => return Ok(result),
                () = patience => {}
            }
            let users = self.state.borrow().brief_users();
            if !users.is_empty() {
                return Err(self.in_use(users).await);
            }
        }
    }

    /// Waits for users who are done in a moment, and for nobody else.
    pub(crate) async fn settled(&self) -> Result<()> {
        lock_order::about_to_wait(Lock::Lease);
        self.until_patient(|state| (state.brief_users().is_empty().then_some(()), false))
            .await
    }

    /// Runs a task of the registry to its end.
    fn run(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.pool.tasks.own(name, task);
        self.pool.world.spawn.spawn(Box::pin(task));
    }

    /// The dataset's name now.
    async fn name(&self) -> String {
        // Boxed: it is deep, and would be part of all that may fail here.
        let directories = self.pool.dsl.directories();
        let name: BoxFuture<'_, _> = Box::pin(directories.name_of(self.object));
        name.await
            .unwrap_or_else(|_| format!("<{:#x}>", self.object.get()))
    }

    async fn broken(&self) -> AccessError {
        let name = self.name().await;
        AccessError::Broken { name }
    }

    async fn in_use(&self, users: Vec<User>) -> AccessError {
        let name = self.name().await;
        AccessError::InUse { name, users }
    }

    pub(crate) fn users(&self) -> Vec<User> {
        self.state.borrow().users()
    }

    /// What is open, if it is to be served.
    pub(crate) fn served(&self) -> Option<Opened> {
        match &self.state.borrow().phase {
            Phase::Open { cell, manner } if *manner == Manner::Serve => Some(cell.read().clone()),
            _ => None,
        }
    }

    /// Completes while no other state is about to take the place of what is open.
    pub(crate) async fn exchanged(&self) {
        let mut state = self.state.subscribe();
        let is_settled = |state: &State| !matches!(state.phase, Phase::Exchanging);
        // The sender is this slot's.
        let _ = state.wait_for(is_settled).await;
    }

    /// A lease on the dataset, which is opened if it is not. Whoever has one for a moment gives it
    /// back before: see "Access" in docs/locks.md.
    pub(crate) async fn join(
        self: &Arc<Self>,
        entry: Entry,
        manner: Manner,
    ) -> Result<(Place, Cell)> {
        lock_order::about_to_wait(Lock::Lease);
        let joining = self.until(|state| match state.join(&entry, manner) {
            Joining::Wait => (None, false),
            joining => (Some(joining), true),
        });
        match self.joined(joining.await, &entry, manner).await? {
            Some(joined) => Ok(joined),
            None => Err(self.broken().await),
        }
    }

    /// The same; `None` where somebody else has to be done first.
    pub(crate) async fn try_join(
        self: &Arc<Self>,
        entry: Entry,
        manner: Manner,
    ) -> Result<Option<(Place, Cell)>> {
        let joining = self.step(|state| {
            let joining = state.join(&entry, manner);
            let has_changed = !matches!(joining, Joining::Wait);
            (joining, has_changed)
        });
        self.joined(joining, &entry, manner).await
    }

    async fn joined(
        self: &Arc<Self>,
        joining: Joining,
        entry: &Entry,
        manner: Manner,
    ) -> Result<Option<(Place, Cell)>> {
        let is_brief = entry.user.is_brief();
        let place = |id| Place {
            slot: Arc::clone(self),
            id,
            held: Mutex::new(is_brief.then(|| lock_order::holds(Lock::Lease))),
        };
        match joining {
            Joining::Joined(id, cell) => Ok(Some((place(id), cell))),
            Joining::Open(id) => {
                let (reply, opened) = oneshot::channel();
                self.run("open a dataset", Arc::clone(self).open(id, manner, reply));
                let place = place(id);
                match opened.await {
                    Ok(cell) => Ok(Some((place, cell?))),
                    Err(_) => Err(self.broken().await),
                }
            }
            Joining::Wait => Ok(None),
            Joining::Broken => Err(self.broken().await),
        }
    }

    async fn open_now(&self, manner: Manner) -> Result<Opened> {
        let dsl = &self.pool.dsl;
        loop {
            let name = dsl.directories().name_of(self.object).await?;
            let dataset = dsl.open_dataset(&name).await?;
            // Renamed meanwhile, it is found by its other name.
            if dataset.object() == self.object {
                return Opened::open(dataset, manner, &self.pool.world, &self.changes).await;
            }
        }
    }

    async fn open(self: Arc<Self>, id: u64, manner: Manner, reply: oneshot::Sender<Result<Cell>>) {
        let unfinished = Unfinished(&self);
        let outcome = self.open_now(manner).await;
        unfinished.done();
        match outcome {
            Ok(opened) => {
                let cell = Arc::new(RwLock::new(opened));
                let unused = self.step(|state| {
                    let cell = Arc::clone(&cell);
                    state.phase = Phase::Open { cell, manner };
                    (state.settle(), true)
                });
                // Who asked may have given up.
                let _ = reply.send(Ok(cell));
                if let Some(cell) = unused {
                    self.begin_to_close(cell);
                }
            }
            Err(error) => {
                self.step(|state| {
                    state.phase = Phase::Closed;
                    state.leases.remove(&id);
                    ((), true)
                });
                let _ = reply.send(Err(error));
            }
        }
    }

    /// Gives a lease back. The last one closes the dataset; how that ends can be waited for.
    fn leave(self: &Arc<Self>, id: u64) -> Option<oneshot::Receiver<Result<()>>> {
        let unused = self.step(|state| match state.leases.remove(&id) {
            Some(_) => (state.settle(), true),
            None => (None, false),
        });
        unused.map(|cell| self.begin_to_close(cell))
    }

    fn begin_to_close(self: &Arc<Self>, cell: Cell) -> oneshot::Receiver<Result<()>> {
        let (reply, closed) = oneshot::channel();
        let slot = Arc::clone(self);
        self.run("close a dataset", async move {
            let unfinished = Unfinished(&slot);
            let opened = cell.read().clone();
            let outcome = opened.close().await;
            unfinished.done();
            slot.step(|state| {
                state.phase = Phase::Closed;
                ((), true)
            });
            if let Err(Err(error)) = reply.send(outcome) {
                tracing::warn!(%error, "a dataset that nobody uses any more was not closed well");
            }
        });
        closed
    }

    /// Has the dataset alone and closed.
    pub(crate) async fn exclude(self: &Arc<Self>, how: Exclusion) -> Result<Excluded> {
        lock_order::about_to_wait(Lock::Lease);
        let _claim = Claim::new(self);
        loop {
            let excluding = self.until_patient(|state| {
                let is_free = state.leases.is_empty();
                let is_refused = how == Exclusion::Refused && state.has_lasting_users();
                let excluding = match &state.phase {
                    Phase::Broken if how == Exclusion::Refused => Excluding::Broken,
                    Phase::Open { .. } | Phase::Opening | Phase::Closed if is_refused => {
                        Excluding::InUse(state.users())
                    }
                    Phase::Closed if is_free => Excluding::Done,
                    Phase::Closed | Phase::Broken if how == Exclusion::Forced => Excluding::Done,
                    Phase::Open { cell, .. } if how == Exclusion::Forced => {
                        Excluding::Close(Arc::clone(cell))
                    }
                    _ => Excluding::Wait,
                };
                match &excluding {
                    Excluding::Done => state.phase = Phase::Excluded,
                    Excluding::Close(_) => state.phase = Phase::Closing,
                    Excluding::Wait => return (None, false),
                    Excluding::InUse(_) | Excluding::Broken => return (Some(excluding), false),
                }
                state.leases.clear();
                (Some(excluding), true)
            });
            match excluding.await? {
                Excluding::Done => return Ok(Excluded(Arc::clone(self))),
                Excluding::Close(cell) => drop(self.begin_to_close(cell)),
                Excluding::InUse(users) => return Err(self.in_use(users).await),
                Excluding::Wait | Excluding::Broken => return Err(self.broken().await),
            }
        }
    }

    /// Does `work`, which brings another state of the dataset, while nobody is at it; whoever uses
    /// the dataset goes on with that state. Once begun it is done to its end.
    pub(crate) async fn exchange<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = R> + Send + 'static,
    ) -> Result<R> {
        lock_order::about_to_wait(Lock::Lease);
        let (reply, done) = oneshot::channel();
        let slot = Arc::clone(self);
        self.run("exchange a dataset", async move {
            let outcome = slot.exchange_now(work).await;
            // Who asked may have given up.
            let _ = reply.send(outcome);
        });
        match done.await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.broken().await),
        }
    }

    async fn exchange_now<R>(self: &Arc<Self>, work: impl Future<Output = R>) -> Result<R> {
        let _claim = Claim::new(self);
        loop {
            let residents = match self.begin_to_exchange().await? {
                Exchanging::Under(residents) => residents,
                Exchanging::Alone => {
                    let excluded = Excluded(Arc::clone(self));
                    let result = work.await;
                    drop(excluded);
                    return Ok(result);
                }
                Exchanging::InUse(users) => return Err(self.in_use(users).await),
                Exchanging::Wait | Exchanging::Broken => return Err(self.broken().await),
            };
            let mut paused = Vec::new();
            for (user, resident) in residents {
                let Some(resident) = resident.upgrade() else {
                    continue;
                };
                match resident.pause().await {
                    Some(pause) => paused.push(pause),
                    None => return Err(self.in_use(vec![user]).await),
                }
            }
            let cell = self.step(|state| match &state.phase {
                Phase::Open { cell, .. } => {
                    let cell = Arc::clone(cell);
                    state.phase = Phase::Exchanging;
                    (Some(cell), true)
                }
                // All have left meanwhile.
                _ => (None, false),
            });
            if let Some(cell) = cell {
                return self.exchange_under(paused, cell, work).await;
            }
        }
    }

    async fn begin_to_exchange(&self) -> Result<Exchanging> {
        self.until_patient(|state| {
            let stays = |entry: &&Entry| !entry.goes_along && !entry.user.is_brief();
            let in_the_way = state.leases.values().filter(stays);
            let in_the_way: Vec<User> = in_the_way.map(|entry| entry.user.clone()).collect();
            let has_brief = state.leases.values().any(|entry| entry.user.is_brief());
            let exchanging = match &state.phase {
                Phase::Broken => Exchanging::Broken,
                Phase::Closed if state.leases.is_empty() => {
                    state.phase = Phase::Excluded;
                    return (Some(Exchanging::Alone), true);
                }
                // Nobody can go on with what could not be opened again once.
                Phase::Closed => Exchanging::InUse(state.users()),
                Phase::Open { .. } if !in_the_way.is_empty() => Exchanging::InUse(in_the_way),
                Phase::Open { .. } if !has_brief => {
                    let residents = state.leases.values().filter_map(|entry| {
                        let resident = entry.resident.clone()?;
                        Some((entry.user.clone(), resident))
                    });
                    Exchanging::Under(residents.collect())
                }
                _ => Exchanging::Wait,
            };
            match exchanging {
                Exchanging::Wait => (None, false),
                exchanging => (Some(exchanging), false),
            }
        })
        .await
    }

    async fn exchange_under<R>(
        self: &Arc<Self>,
        mut paused: Vec<Box<dyn Paused>>,
        cell: Cell,
        work: impl Future<Output = R>,
    ) -> Result<R> {
        let unfinished = Unfinished(self);
        let before = cell.read().clone();
        let result = match before.close().await {
            Ok(()) => Ok(work.await),
            Err(error) => Err(error),
        };
        let reopened = self.open_now(Manner::Serve).await;
        let reopened = match reopened {
            Ok(opened) => {
                opened.take_after(&before);
                *cell.write() = opened.clone();
                for pause in &mut paused {
                    pause.adopt().await;
                }
                opened.is_taken_over(&before);
                Ok(())
            }
            Err(error) => Err(error),
        };
        unfinished.done();
        let is_open = reopened.is_ok();
        let unused = self.step(|state| {
            let manner = Manner::Serve;
            state.phase = match is_open {
                true => Phase::Open { cell, manner },
                false => Phase::Closed,
            };
            (state.settle(), true)
        });
        if let Some(cell) = unused {
            drop(self.begin_to_close(cell));
        }
        if is_open {
            join_all(paused.into_iter().map(|pause| pause.resume())).await;
        }
        match (reopened, result) {
            (Err(source), _) => Err(AccessError::NotReopened {
                name: self.name().await,
                source: Box::new(source),
            }),
            (Ok(()), Err(source)) => Err(AccessError::NotClosed {
                name: self.name().await,
                source: Box::new(source),
            }),
            (Ok(()), Ok(result)) => Ok(result),
        }
    }
}
