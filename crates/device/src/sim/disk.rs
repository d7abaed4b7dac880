//! Simulated disks: what is stored, what is only cached, what goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::fault::{Fault, FaultEffect};
use super::model::{Command, Latency, Machine, Model, Wear};
use super::op::{OpCounts, PowerCut, SimOp};
use super::rng::Rng;
use super::world::{Shared, SimWorld, State};
use crate::memory::{check_range, read_only_error};
use crate::sparse::Sparse;
use crate::{BoxFuture, Device, DeviceError};

/// What survives or is lost together when a write is torn.
const TORN_BYTES: usize = 512;

/// A change that is on its way to the medium.
#[derive(Clone)]
enum Change {
    Write {
        offset_bytes: u64,
        data: Bytes,
        /// It alone is on the medium when it is complete ([`Device::write_durable`]).
        durable: bool,
    },
    Discard {
        offset_bytes: u64,
        length_bytes: u64,
    },
}

impl Change {
    fn apply(&self, to: &mut Sparse) {
        match self {
            Change::Write {
                offset_bytes, data, ..
            } => to.write(*offset_bytes, data),
            Change::Discard {
                offset_bytes,
                length_bytes,
            } => to.clear(*offset_bytes, *length_bytes),
        }
    }

    /// First byte and length.
    fn range(&self) -> (u64, u64) {
        match self {
            Change::Write {
                offset_bytes, data, ..
            } => (*offset_bytes, data.len() as u64),
            Change::Discard {
                offset_bytes,
                length_bytes,
            } => (*offset_bytes, *length_bytes),
        }
    }

    /// Whether no power cut takes it once it is complete.
    fn is_durable(&self) -> bool {
        matches!(self, Change::Write { durable: true, .. })
    }

    /// Whether there are bytes that both are about.
    fn overlaps(&self, other: &Change) -> bool {
        let ((ours, our_length), (theirs, their_length)) = (self.range(), other.range());
        ours < theirs + their_length && theirs < ours + our_length
    }

    /// Applies each piece of a write on its own, or not. A discard is a hint to the disk, which
    /// takes it whole or not at all.
    fn apply_torn(&self, to: &mut Sparse, rng: &mut Rng) {
        let Change::Write {
            offset_bytes, data, ..
        } = self
        else {
            return;
        };
        // Half of torn writes stop somewhere; the other half have holes anywhere.
        let pieces = data.len().div_ceil(TORN_BYTES) as u64;
        let stop = rng.chance(500).then(|| rng.below(pieces + 1));
        for (index, piece) in data.chunks(TORN_BYTES).enumerate() {
            let survives = match stop {
                Some(stop) => (index as u64) < stop,
                None => rng.chance(500),
            };
            if survives {
                to.write(offset_bytes + (index * TORN_BYTES) as u64, piece);
            }
        }
    }
}

/// A disk.
pub(super) struct DiskState {
    pub(super) size_bytes: u64,
    pub(super) sector_bytes: u32,
    pub(super) gone: bool,
    /// Who has it open for writing on each host, and since which power-on.
    pub(super) writers: BTreeMap<u32, (u64, Weak<()>)>,
    /// What reads see.
    current: Sparse,
    /// What a power cut cannot take.
    durable: Sparse,
    /// Completed and not yet durable, oldest first; and durable writes that came over some of
    /// these, lest they come over them in turn when they get to the medium.
    cached: Vec<Change>,
    /// How many changes have left `cached` for the medium since the beginning: with `cached`'s
    /// length this numbers the changes.
    settled: u64,
    /// Issued, not completed, by the number of the operation.
    in_flight: BTreeMap<u64, Change>,
    next_operation: u64,
    /// How often [`SimDisk::release`] was called.
    releases: u64,
    /// Stalled operations that nobody waits for any more; the disk still does them once it is
    /// released.
    left: Vec<(u64, Arc<()>)>,
    machine: Machine,
    /// Operations about whose time the disk has not decided.
    undecided: BTreeMap<u64, oneshot::Sender<u64>>,
    /// There is one more of them: whoever has [`decide`] run receives it.
    submitted: watch::Sender<()>,
    faults: Vec<Fault>,
    counts: OpCounts,
    eager_discards: bool,
    /// It writes through its cache where it is asked to; else it is flushed for that.
    durable_writes: bool,
    /// Pieces of [`TORN_BYTES`] that cannot be read until they are written, by number.
    unreadable: BTreeSet<u64>,
}

/// The pieces of [`TORN_BYTES`] that a range touches.
fn pieces(offset_bytes: u64, length_bytes: u64) -> Range<u64> {
    let piece = TORN_BYTES as u64;
    let end_bytes = offset_bytes.saturating_add(length_bytes);
    offset_bytes / piece..end_bytes.div_ceil(piece)
}

impl DiskState {
    /// A disk that knows no model yet.
    pub(super) fn new(size_bytes: u64) -> Self {
        DiskState {
            size_bytes,
            sector_bytes: 512,
            gone: false,
            writers: BTreeMap::new(),
            current: Sparse::default(),
            durable: Sparse::default(),
            cached: Vec::new(),
            settled: 0,
            in_flight: BTreeMap::new(),
            next_operation: 0,
            releases: 0,
            left: Vec::new(),
            machine: Machine::new(&Model::Simple(Latency::NONE), size_bytes),
            undecided: BTreeMap::new(),
            submitted: watch::Sender::new(()),
            faults: Vec::new(),
            counts: OpCounts::default(),
            eager_discards: false,
            durable_writes: false,
            unreadable: BTreeSet::new(),
        }
    }

    /// The power goes: what is not durable survives or not.
    pub(super) fn lose_power(&mut self, how: PowerCut, rng: &mut Rng) {
        let cached = std::mem::take(&mut self.cached);
        self.settled += cached.len() as u64;
        let in_flight = std::mem::take(&mut self.in_flight);
        self.left.clear();
        let cached = cached.into_iter().map(|change| (change, true));
        let in_flight = in_flight.into_values().map(|change| (change, false));
        for (change, is_complete) in cached.chain(in_flight) {
            match how {
                _ if is_complete && change.is_durable() => change.apply(&mut self.durable),
                _ if self.eager_discards && matches!(change, Change::Discard { .. }) => {
                    change.apply(&mut self.durable);
                }
                PowerCut::LoseUnflushed => {}
                PowerCut::KeepAll => change.apply(&mut self.durable),
                PowerCut::Random | PowerCut::Shuffle => match rng.below(3) {
                    0 => {}
                    1 => change.apply(&mut self.durable),
                    _ => change.apply_torn(&mut self.durable, rng),
                },
            }
        }
        self.current = self.durable.clone();
        self.machine.reset();
        self.undecided.clear();
        self.writers.clear();
    }

    /// A change is complete: reads see it from now on.
    fn take_in(&mut self, change: Change) {
        change.apply(&mut self.current);
        let is_eager = self.eager_discards && matches!(change, Change::Discard { .. });
        if is_eager || change.is_durable() {
            change.apply(&mut self.durable);
        }
        let covers_older = || self.cached.iter().any(|older| older.overlaps(&change));
        if !is_eager && (!change.is_durable() || covers_older()) {
            self.cached.push(change);
        }
    }

    /// A change reached the medium: what it wrote can be read.
    fn make_readable(&mut self, change: &Change) {
        let (offset_bytes, length_bytes) = change.range();
        let range = pieces(offset_bytes, length_bytes);
        let written: Vec<u64> = self.unreadable.range(range).copied().collect();
        for piece in written {
            self.unreadable.remove(&piece);
        }
    }

    fn is_unreadable(&self, offset_bytes: u64, length_bytes: u64) -> bool {
        let mut touched = self.unreadable.range(pieces(offset_bytes, length_bytes));
        touched.next().is_some()
    }

    /// The fault that an operation meets, if any.
    fn meet_fault(
        &mut self,
        host: u32,
        op: SimOp,
        range: &Range<u64>,
        rng: &mut Rng,
    ) -> Option<FaultEffect> {
        let mut effect = None;
        for fault in &mut self.faults {
            let touches =
                fault.range_bytes.start < range.end && range.start < fault.range_bytes.end;
            let is_meant = fault.op == op && fault.host.is_none_or(|only| only == host);
            if effect.is_some() || !is_meant || !touches || fault.times == 0 {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            if rng.chance(fault.chance_permille) {
                fault.times -= 1;
                effect = Some(fault.effect);
            }
        }
        self.faults.retain(|fault| fault.times > 0);
        effect
    }

    /// Hands an operation to the disk's model.
    fn submit(&mut self, number: u64, command: &Command, now_ns: u64, rng: &mut Rng) -> Due {
        match self.machine.submit(now_ns, number, command, rng) {
            Some(done_ns) => Due::At(done_ns),
            None => {
                let (decide, decided) = oneshot::channel();
                self.undecided.insert(number, decide);
                self.submitted.send_replace(());
                Due::Undecided(decided)
            }
        }
    }

    /// Lets the disk decide what it has to. When it has to again.
    fn decide(&mut self, now_ns: u64) -> Option<u64> {
        let mut decided = Vec::new();
        self.machine.advance(now_ns, &mut decided);
        for decision in decided {
            if let Some(waiting) = self.undecided.remove(&decision.number) {
                // Whoever waited may have given up.
                let _ = waiting.send(decision.done_ns);
            }
        }
        self.machine.next_ns()
    }
}

/// A disk at the times at which it decides, as long as it exists.
async fn decide(shared: Weak<Shared>, name: Arc<str>, mut submitted: watch::Receiver<()>) {
    loop {
        submitted.mark_unchanged();
        let next = {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let now_ns = shared.elapsed_ns();
            let mut state = shared.state.lock();
            let next_ns = (state.disks.get_mut(&name)).and_then(|disk| disk.decide(now_ns));
            drop(state);
            next_ns.map(|next_ns| {
                let left = Duration::from_nanos(next_ns.saturating_sub(now_ns));
                shared.sleep(left)
            })
        };
        let is_there = match next {
            None => submitted.changed().await.is_ok(),
            Some(next) => tokio::select! {
                biased;
                () = next => true,
                changed = submitted.changed() => changed.is_ok(),
            },
        };
        if !is_there {
            return;
        }
    }
}

/// When an operation is complete.
enum Due {
    At(u64),
    /// The disk tells it.
    Undecided(oneshot::Receiver<u64>),
}

/// What an issued operation does when its time has passed.
enum Outcome {
    /// Take the change in; fail afterwards if there is an error kind.
    Change(Option<io::ErrorKind>),
    /// Read, flip a bit if told.
    Read { corrupt: bool },
    /// Make durable what was completed when the flush was issued: all changes up to this number.
    Flush { settle_until: u64 },
    /// Do nothing, and say this.
    Nothing(Result<(), io::ErrorKind>),
}

/// An operation in flight. Dropped before it completes, it still takes effect.
struct Operation<'a> {
    device: &'a SimDevice,
    op: SimOp,
    number: u64,
    offset_bytes: u64,
    length_bytes: u64,
    outcome: Outcome,
    /// It is answered when the disk has been released more often than this.
    stalled: Option<u64>,
    done: bool,
    /// Shared with the handle: it tells how many there are.
    pending: Arc<()>,
}

/// An operation as it was issued.
struct Issued<'a> {
    operation: Operation<'a>,
    due: Due,
    /// How much longer it takes than the disk says.
    delay: Duration,
    /// How often it lets others go first besides.
    yields: u64,
}

/// A handle on a simulated disk: the [`Device`] that the engine sees.
pub struct SimDevice {
    shared: Arc<Shared>,
    name: Arc<str>,
    host: u32,
    read_only: bool,
    incarnation: u64,
    size_bytes: u64,
    sector_bytes: u32,
    /// Alive as long as the device is open.
    _token: Arc<()>,
    /// Each operation that the disk has not answered has it.
    pending: Arc<()>,
}

impl SimDevice {
    /// A handle on `disk`, opened by `host`; `token` lives as long as it is open.
    pub(super) fn new(
        host: &SimWorld,
        name: Arc<str>,
        disk: &DiskState,
        read_only: bool,
        incarnation: u64,
        token: Arc<()>,
    ) -> Self {
        SimDevice {
            shared: host.shared.clone(),
            name,
            host: host.host_number(),
            read_only,
            incarnation,
            size_bytes: disk.size_bytes,
            sector_bytes: disk.sector_bytes,
            _token: token,
            pending: Arc::new(()),
        }
    }

    fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            path: self.name.to_string(),
        }
    }

    fn io(&self, op: SimOp, offset: u64, length: u64, kind: io::ErrorKind) -> DeviceError {
        // EIO has no kind of its own.
        let source = match kind {
            io::ErrorKind::Other => io::Error::from_raw_os_error(5),
            kind => kind.into(),
        };
        DeviceError::Io {
            path: self.name.to_string(),
            op: op.name(),
            offset_bytes: offset,
            length_bytes: length,
            source,
        }
    }

    /// The disk, when this handle still reaches it.
    fn alive<'s>(
        &self,
        state: &'s mut State,
    ) -> Result<(&'s mut DiskState, &'s mut Rng), DeviceError> {
        let reachable = state.powered && state.incarnation == self.incarnation;
        match state.disks.get_mut(&self.name) {
            Some(disk) if reachable && !disk.gone => Ok((disk, &mut state.rng)),
            _ => Err(self.gone()),
        }
    }

    /// Whether the disk writes through its cache where it is asked to.
    fn writes_durably(&self) -> Result<bool, DeviceError> {
        let mut state = self.shared.state.lock();
        Ok(self.alive(&mut state)?.0.durable_writes)
    }

    fn issue(
        &self,
        op: SimOp,
        offset_bytes: u64,
        length_bytes: u64,
        change: Option<Change>,
    ) -> Result<Issued<'_>, DeviceError> {
        let mut guard = self.shared.state.lock();
        let state = &mut *guard;
        self.alive(state)?;
        if op != SimOp::Flush {
            if self.read_only && op != SimOp::Read {
                let refused = read_only_error(&self.name, op.name(), offset_bytes, length_bytes);
                return Err(refused);
            }
            check_range(
                &self.name,
                op.name(),
                offset_bytes,
                length_bytes,
                self.size_bytes,
            )?;
        }
        let who = (self.host, &self.name);
        let cut = self
            .shared
            .note_op(state, who, op, offset_bytes, length_bytes);
        let now_ns = self.shared.elapsed_ns();
        let (disk, rng) = self.alive(state)?;
        disk.counts.add(op);
        let number = disk.next_operation;
        disk.next_operation += 1;
        let command = Command {
            op,
            offset_bytes,
            length_bytes,
        };
        let due = disk.submit(number, &command, now_ns, rng);
        let mut delay = Duration::ZERO;
        let yields = rng.below(4);
        let range = match op {
            SimOp::Flush => 0..u64::MAX,
            _ => offset_bytes..offset_bytes + length_bytes,
        };
        let effect = disk.meet_fault(self.host, op, &range, rng);
        let stalled = (effect == Some(FaultEffect::Stall)).then_some(disk.releases);
        let mut change = change;
        let outcome = match effect {
            Some(FaultEffect::Error) => Outcome::Nothing(Err(io::ErrorKind::Other)),
            Some(FaultEffect::NoSpace) => Outcome::Nothing(Err(io::ErrorKind::StorageFull)),
            Some(FaultEffect::Short) => match &mut change {
                Some(Change::Write { data, .. }) => {
                    data.truncate(data.len() / 2);
                    Outcome::Change(Some(io::ErrorKind::Other))
                }
                _ if op == SimOp::Read => Outcome::Nothing(Err(io::ErrorKind::UnexpectedEof)),
                _ => Outcome::Nothing(Err(io::ErrorKind::Other)),
            },
            Some(FaultEffect::Lost) if op != SimOp::Read => Outcome::Nothing(Ok(())),
            Some(FaultEffect::Vanish) => {
                disk.gone = true;
                return Err(self.gone());
            }
            other => {
                if let Some(FaultEffect::Delay(longer)) = other {
                    delay = longer;
                }
                if let (
                    Some(FaultEffect::Misdirected(by)),
                    Some(Change::Write {
                        offset_bytes, data, ..
                    }),
                ) = (other, &mut change)
                {
                    let last = disk.size_bytes - data.len() as u64;
                    *offset_bytes = offset_bytes.saturating_add(by).min(last);
                }
                match op {
                    SimOp::Read => Outcome::Read {
                        corrupt: other == Some(FaultEffect::Corrupt),
                    },
                    SimOp::Write | SimOp::Discard => Outcome::Change(None),
                    SimOp::Flush => Outcome::Flush {
                        settle_until: disk.settled + disk.cached.len() as u64,
                    },
                }
            }
        };
        if let (Outcome::Change(_), Some(change)) = (&outcome, change) {
            if disk.eager_discards && op == SimOp::Discard {
                change.apply(&mut disk.current);
                change.apply(&mut disk.durable);
            }
            disk.in_flight.insert(number, change);
        }
        if let Some(how) = cut {
            self.shared.cut(state, how);
            return Err(self.gone());
        }
        let operation = Operation {
            device: self,
            op,
            number,
            offset_bytes,
            length_bytes,
            outcome,
            stalled,
            done: false,
            pending: self.pending.clone(),
        };
        Ok(Issued {
            operation,
            due,
            delay,
            yields,
        })
    }

    async fn perform(
        &self,
        op: SimOp,
        offset_bytes: u64,
        length_bytes: u64,
        change: Option<Change>,
    ) -> Result<Bytes, DeviceError> {
        let issued = self.issue(op, offset_bytes, length_bytes, change)?;
        let Issued {
            operation, yields, ..
        } = issued;
        let issued_ns = self.shared.elapsed_ns();
        operation.until_released().await;
        let stalled_ns = self.shared.elapsed_ns() - issued_ns;
        let done_ns = match issued.due {
            Due::At(done_ns) => done_ns,
            // A disk without power decides nothing more: the operation fails below.
            Due::Undecided(decided) => decided.await.unwrap_or(0),
        };
        // What stalls, is delayed or was decided takes its time after that.
        let left_ns = (done_ns + stalled_ns).saturating_sub(self.shared.elapsed_ns());
        let left = Duration::from_nanos(left_ns) + issued.delay;
        if !left.is_zero() {
            self.shared.sleep(left).await;
        }
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        operation.complete()
    }
}

impl Operation<'_> {
    /// Whether the disk does nothing about it for now.
    fn is_stalled(&self) -> bool {
        let mut state = self.device.shared.state.lock();
        match (self.stalled, self.device.alive(&mut state)) {
            (Some(releases), Ok((disk, _))) => disk.releases <= releases,
            _ => false,
        }
    }

    async fn until_released(&self) {
        if self.stalled.is_none() {
            return;
        }
        let mut changes = self.device.shared.released.subscribe();
        // The sender lives in the device's world, so that waiting can't fail.
        while self.is_stalled() && changes.changed().await.is_ok() {}
    }

    fn complete(mut self) -> Result<Bytes, DeviceError> {
        self.take_effect()
    }

    fn take_effect(&mut self) -> Result<Bytes, DeviceError> {
        self.done = true;
        let device = self.device;
        let mut guard = device.shared.state.lock();
        let (disk, rng) = device.alive(&mut guard)?;
        let io = |kind| device.io(self.op, self.offset_bytes, self.length_bytes, kind);
        match &self.outcome {
            Outcome::Nothing(result) => result.map(|()| Bytes::new()).map_err(io),
            Outcome::Change(failure) => {
                if let Some(change) = disk.in_flight.remove(&self.number) {
                    disk.make_readable(&change);
                    disk.take_in(change);
                }
                match failure {
                    Some(kind) => Err(io(*kind)),
                    None => Ok(Bytes::new()),
                }
            }
            Outcome::Read { .. } if disk.is_unreadable(self.offset_bytes, self.length_bytes) => {
                Err(io(io::ErrorKind::Other))
            }
            Outcome::Read { corrupt } => {
                // Its length was checked against the disk's size, and the disk is in memory.
                let mut out = vec![0; self.length_bytes as usize];
                disk.current.read(self.offset_bytes, &mut out);
                if *corrupt && !out.is_empty() {
                    let bit = rng.below(out.len() as u64 * 8);
                    out[(bit / 8) as usize] ^= 1 << (bit % 8);
                }
                Ok(out.into())
            }
            Outcome::Flush { settle_until } => {
                // Another flush may have settled some or all of it already.
                let count = settle_until.saturating_sub(disk.settled) as usize;
                let settled: Vec<Change> = disk.cached.drain(..count).collect();
                disk.settled += count as u64;
                let is_same = disk.cached.is_empty();
                for change in settled {
                    if is_same {
                        let (offset_bytes, length_bytes) = change.range();
                        let (durable, current) = (&mut disk.durable, &disk.current);
                        durable.share(current, offset_bytes, length_bytes);
                    } else {
                        change.apply(&mut disk.durable);
                    }
                }
                Ok(Bytes::new())
            }
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // Nobody waits any more, but the disk does what it was told.
        if self.is_stalled() {
            let mut state = self.device.shared.state.lock();
            if let Ok((disk, _)) = self.device.alive(&mut state) {
                disk.left.push((self.number, self.pending.clone()));
            }
        } else {
            let _ = self.take_effect();
        }
    }
}

impl Device for SimDevice {
    fn path(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn outstanding(&self) -> usize {
        Arc::strong_count(&self.pending) - 1
    }

    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DeviceError>> {
        Box::pin(self.perform(SimOp::Read, offset, length as u64, None))
    }

    fn write(&self, offset_bytes: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let length = data.len() as u64;
            let change = Change::Write {
                offset_bytes,
                data,
                durable: false,
            };
            self.perform(SimOp::Write, offset_bytes, length, Some(change))
                .await
                .map(drop)
        })
    }

    fn write_durable(
        &self,
        offset_bytes: u64,
        data: Bytes,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            if !self.writes_durably()? {
                self.write(offset_bytes, data).await?;
                return self.flush().await;
            }
            let length = data.len() as u64;
            let change = Change::Write {
                offset_bytes,
                data,
                durable: true,
            };
            self.perform(SimOp::Write, offset_bytes, length, Some(change))
                .await
                .map(drop)
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move { self.perform(SimOp::Flush, 0, 0, None).await.map(drop) })
    }

    fn discard(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let change = Change::Discard {
                offset_bytes,
                length_bytes,
            };
            self.perform(SimOp::Discard, offset_bytes, length_bytes, Some(change))
                .await
                .map(drop)
        })
    }
}

impl std::fmt::Debug for SimDevice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SimDevice")
            .field("name", &self.name)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

/// The hand of the simulation on a disk: faults, damage, images. Independent of power.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
    name: Arc<str>,
}

impl SimDisk {
    pub(super) fn new(shared: Arc<Shared>, name: Arc<str>) -> Self {
        SimDisk { shared, name }
    }

    fn with<T>(&self, act: impl FnOnce(&mut DiskState, &mut Rng) -> T) -> T {
        let mut state = self.shared.state.lock();
        let State { disks, rng, .. } = &mut *state;
        let disk = disks
            .get_mut(&self.name)
            .expect("a world never forgets a disk's name");
        act(disk, rng)
    }

    /// Its name, which is its path to the engine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets how long operations take. A disk of another model becomes a simple one.
    pub fn set_latency(&self, latency: Latency) {
        self.with(|disk, _| {
            disk.machine.set_latency(latency);
            disk.undecided.clear();
        });
    }

    /// Makes a new disk of a model of it that holds what this one does: caches, queue and flash
    /// translation begin anew. For pools that are filled before the time that is looked at.
    pub fn set_model(&self, model: &Model) {
        let submitted = self.with(|disk, _| {
            disk.machine = Machine::new(model, disk.size_bytes);
            // Who waits for a decision of the disk that was does not wait for the new one's.
            disk.undecided.clear();
            let is_driven = disk.submitted.receiver_count() > 0;
            (!is_driven).then(|| disk.submitted.subscribe())
        });
        if let (Model::Hdd(_), Some(submitted)) = (model, submitted) {
            // Not one of the engine's tasks: a disk outlives a crash.
            let shared = Arc::downgrade(&self.shared);
            tokio::spawn(decide(shared, self.name.clone(), submitted));
        }
    }

    /// What was written to the flash of a solid-state disk; `None` for others.
    pub fn wear(&self) -> Option<Wear> {
        self.with(|disk, _| disk.machine.wear())
    }

    /// Sets the sector size that handles opened from now on report.
    pub fn set_sector_bytes(&self, sector_bytes: u32) {
        self.with(|disk, _| disk.sector_bytes = sector_bytes);
    }

    /// Adds a fault; of several that an operation meets, the one added first counts.
    pub fn inject(&self, fault: Fault) {
        self.with(|disk, _| disk.faults.push(fault));
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.with(|disk, _| disk.faults.clear());
    }

    /// Answers all operations that met [`FaultEffect::Stall`], and takes these faults away.
    pub fn release(&self) {
        self.with(|disk, _| {
            disk.faults
                .retain(|fault| fault.effect != FaultEffect::Stall);
            disk.releases += 1;
            for (number, _) in std::mem::take(&mut disk.left) {
                if let Some(change) = disk.in_flight.remove(&number) {
                    disk.take_in(change);
                }
            }
        });
        self.shared.released.send_replace(());
    }

    /// Discards take effect when they are issued, and again when they complete, and no power cut
    /// takes them back: as badly as a disk may do it.
    pub fn set_eager_discards(&self, eager: bool) {
        self.with(|disk, _| disk.eager_discards = eager);
    }

    /// Has the disk write through its cache where a write is to be durable (FUA): such a write is
    /// one operation, and nothing else is durable by it. A new disk is flushed behind the write,
    /// with all that it has.
    pub fn set_durable_writes(&self, durable: bool) {
        self.with(|disk, _| disk.durable_writes = durable);
    }

    /// Unplugs the disk, or plugs it back in; its content stays. Handles work again afterwards.
    pub fn set_gone(&self, gone: bool) {
        self.with(|disk, _| disk.gone = gone);
    }

    /// The disk is reset: what it had not made durable survives as `how` says. With a fault that
    /// fails what comes next, or [`Self::set_gone`], this is a disk that goes away.
    pub fn lose_cache(&self, how: PowerCut) {
        self.with(|disk, rng| {
            let in_flight = std::mem::take(&mut disk.in_flight);
            let left = std::mem::take(&mut disk.left);
            let writers = std::mem::take(&mut disk.writers);
            disk.lose_power(how, rng);
            disk.in_flight = in_flight;
            disk.left = left;
            disk.writers = writers;
        });
    }

    /// Silently fills a range with noise, on the medium and in the cache.
    pub fn corrupt(&self, offset_bytes: u64, length: usize) {
        self.with(|disk, rng| {
            let mut noise = vec![0; length];
            rng.fill(&mut noise);
            disk.current.write(offset_bytes, &noise);
            disk.durable.write(offset_bytes, &noise);
        });
    }

    /// A range that cannot be read until it is written again: latent sector errors.
    pub fn make_unreadable(&self, offset_bytes: u64, length_bytes: u64) {
        self.with(|disk, _| disk.unreadable.extend(pieces(offset_bytes, length_bytes)));
    }

    /// All can be read again, and read faults are gone.
    pub fn make_all_readable(&self) {
        self.with(|disk, _| {
            disk.unreadable.clear();
            disk.faults.retain(|fault| fault.op != SimOp::Read);
        });
    }

    /// Silently fills with noise what was ever written in a range.
    pub fn corrupt_written(&self, range_bytes: Range<u64>) {
        self.with(|disk, rng| {
            let pages = disk.current.pages().map(|(at, page)| (at, page.len()));
            let within = pages.filter(|(at, _)| range_bytes.contains(at));
            for (at, length) in within.collect::<Vec<_>>() {
                let mut noise = vec![0; length];
                rng.fill(&mut noise);
                disk.current.write(at, &noise);
                disk.durable.write(at, &noise);
            }
        });
    }

    /// Silently flips one bit, on the medium and in the cache.
    pub fn flip_bit(&self, offset_bytes: u64, bit: u8) {
        self.with(|disk, _| {
            for side in [&mut disk.current, &mut disk.durable] {
                let mut byte = [0];
                side.read(offset_bytes, &mut byte);
                byte[0] ^= 1 << (bit % 8);
                side.write(offset_bytes, &byte);
            }
        });
    }

    /// What a read would see, at once and whatever the power or faults.
    pub fn peek(&self, offset_bytes: u64, length: usize) -> Vec<u8> {
        self.with(|disk, _| {
            let mut out = vec![0; length];
            disk.current.read(offset_bytes, &mut out);
            out
        })
    }

    /// What would be there after the worst power cut.
    pub fn peek_durable(&self, offset_bytes: u64, length: usize) -> Vec<u8> {
        self.with(|disk, _| {
            let mut out = vec![0; length];
            disk.durable.read(offset_bytes, &mut out);
            out
        })
    }

    /// Stores bytes on the medium, at once and durably.
    pub fn poke(&self, offset_bytes: u64, data: &[u8]) {
        self.with(|disk, _| {
            disk.current.write(offset_bytes, data);
            disk.durable.write(offset_bytes, data);
        });
    }

    /// Operations issued to this disk.
    pub fn counts(&self) -> OpCounts {
        self.with(|disk, _| disk.counts)
    }

    /// Completed changes that a power cut may still take.
    pub fn unflushed_count(&self) -> usize {
        self.with(|disk, _| {
            let lasts = disk.cached.iter().filter(|change| change.is_durable());
            disk.cached.len() - lasts.count()
        })
    }

    /// Writes what reads see to a sparse file, for other programs (zdb) to look at.
    ///
    /// # Errors
    ///
    /// When the file can't be written.
    pub fn save_image(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let (content, size) = self.with(|disk, _| (disk.current.clone(), disk.size_bytes));
        let mut file = std::fs::File::create(path)?;
        file.set_len(size)?;
        for (offset, page) in content.pages() {
            let keep = page.len().min((size - offset) as usize);
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(&page[..keep])?;
        }
        file.flush()
    }

    /// Stores the content of a file on the medium, durably; zeros take no memory.
    ///
    /// # Errors
    ///
    /// When the file can't be read.
    pub fn load_image(&self, path: impl AsRef<Path>) -> io::Result<()> {
        use std::io::Read;
        let mut file = std::fs::File::open(path)?;
        let mut piece = vec![0; 1 << 20];
        let mut offset = 0;
        loop {
            let count = file.read(&mut piece)?;
            if count == 0 {
                return Ok(());
            }
            // Short reads may leave the pages' borders; the store does not mind.
            for (index, part) in piece[..count].chunks(4096).enumerate() {
                if part.iter().any(|byte| *byte != 0) {
                    self.poke(offset + index as u64 * 4096, part);
                }
            }
            offset += count as u64;
        }
    }
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SimDisk")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
