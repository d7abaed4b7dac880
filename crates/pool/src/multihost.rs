//! Multi-host protection: pools whose devices several hosts reach.
//!
//! With property `multihost`, the host that has the pool writes *heartbeats*: about once a second
//! per device, the last uberblock with a new time and sequence number, into the last slot of the
//! ring of some label, which no txg's uberblock uses. Who wants to import the pool watches the
//! uberblocks first, and leaves it alone when they change. A host that did not get a heartbeat out
//! for [`FAIL_INTERVALS`] intervals suspends the pool, since another one may take it from then on;
//! it is resumed only when nobody has.
//!
//! A device may fail, and it may just not answer. So each heartbeat is a task of its own, a device
//! with one under way gets no other, and the silence is tested by a timer that waits for no I/O. A
//! heartbeat that comes late changes nothing about a suspension. While the pool is suspended its
//! devices get nothing more (crate `vdev`, `common`), and what they had accepted is not told to
//! anybody as written.
//!
//! Before a suspended pool goes on ([`Core::check_still_ours`]), its uberblocks are read from the
//! devices opened anew, and watched as for an import. Those that this host wrote, or may have
//! written without ever hearing so (`Beats::unsettled`), are its own; any other that is newer is
//! another host's.
//!
//! An import has two parts: *watch* (read-only, twice as long as the other host would take to
//! suspend, and up to a quarter longer by chance), then *claim* (ten times: write a heartbeat with
//! a sequence number of chance, wait an interval, and find it still the newest), which tells apart
//! two hosts that import at the same moment.
//!
//! A crash leaves heartbeats that are the last uberblock but for time and sequence: whoever takes
//! one for the pool's state is right.
//!
//! Source: module/zfs/mmp.c (`mmp_thread`, `mmp_write_uberblock`, `mmp_claim_uberblock`),
//! module/zfs/spa.c (`spa_activity_check_required`, `spa_activity_check_duration`,
//! `spa_activity_check_claim`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use device::World;
use format::{Multihost, Txg, Uberblock};
use spa::props::Stored;
use vdev::{Vdev, VdevTree, best_uberblock};
use zio::ZioError;

use crate::core::Core;
use crate::heart::{Beats, INTERVAL_MS, NS_PER_MS};
use crate::{FoundState, ImportSpec, PoolError};

/// The property that switches it on.
pub(crate) const NAME: &str = "multihost";
/// Intervals without a heartbeat after which the pool is suspended
/// (`zfs_multihost_fail_intervals`).
const FAIL_INTERVALS: u16 = 10;
/// Intervals for which an import watches where the other host's settings are not known
/// (`zfs_multihost_import_intervals`).
const IMPORT_INTERVALS: u64 = 20;
/// How much longer an import watches than the other host needs to suspend
/// (`MMP_IMPORT_SAFETY_FACTOR`).
const SAFETY_FACTOR: u64 = 2;
/// Rounds of a claim (`MMP_IMPORT_VERIFY_ITERS`).
const CLAIM_ROUNDS: u32 = 10;
/// Labels per device.
const LABELS: u64 = 4;

const FAIL_NS: u64 = INTERVAL_MS as u64 * NS_PER_MS * FAIL_INTERVALS as u64;

impl Core {
    /// Whether the property is on.
    pub(crate) fn is_multihost(&self) -> bool {
        self.props.get(NAME) == Some(Stored::Number(1))
    }

    /// What a txg's uberblock says (`uberblock_update`, module/zfs/uberblock.c).
    pub(crate) fn multihost_of_txg(&self) -> Multihost {
        if !self.is_multihost() {
            return Multihost::default();
        }
        let beats = self.heart.state.lock();
        Multihost {
            delay_ns: beats.delay_ns.max(1),
            interval_ms: Some(INTERVAL_MS),
            sequence: Some(0),
            fail_intervals: Some(FAIL_INTERVALS),
        }
    }

    /// A txg's uberblock is about to be written: from now on it may be on disk.
    pub(crate) fn uberblock_begins(&self, uberblock: &Uberblock) {
        self.heart.state.lock().unsettled.push(*uberblock);
    }

    /// A txg's uberblock is on disk: as good as a heartbeat.
    pub(crate) fn uberblock_written(&self, uberblock: &Uberblock) {
        let devices = self.tree.leaves().len();
        let now_ns = self.world.clock.monotonic_ns();
        let mut beats = self.heart.state.lock();
        beats.note_success(uberblock, now_ns, devices);
    }

    /// Starts the heartbeats, if the property is on and they are not under way.
    pub(crate) fn start_heart(self: &Arc<Self>) {
        if self.read_only || !self.is_multihost() {
            return;
        }
        {
            let synced = self.state.lock().uberblock;
            let mut beats = self.heart.state.lock();
            if std::mem::replace(&mut beats.running, true) {
                return;
            }
            beats.last.get_or_insert(synced);
            beats.begin(self.world.clock.monotonic_ns());
        }
        let (world, weak) = (self.world.clone(), Arc::downgrade(self));
        let beating = beat_until_closed(world, weak);
        self.pipeline.tasks().spawn("heartbeats", beating);
    }

    /// Whether the loop goes on; ends it if not, without a gap in which nobody would start it
    /// again.
    fn heart_goes_on(&self) -> bool {
        let goes_on = self.is_multihost() && !self.state.lock().closed;
        if !goes_on {
            self.heart.state.lock().running = false;
        }
        goes_on
    }

    /// Before a suspended pool is resumed: whether another host took it meanwhile.
    ///
    /// # Errors
    /// [`PoolError::TakenOver`]; [`PoolError::Suspended`] and [`vdev::VdevError::Stalled`] when
    /// that cannot be told.
    pub(crate) async fn check_still_ours(&self) -> Result<(), PoolError> {
        if !self.is_multihost() || self.pipeline.suspension().error().is_none() {
            return Ok(());
        }
        let newest = self.look_for_others().await?;
        let end_ns = watch_until(&self.world, &newest);
        while self.world.clock.monotonic_ns() < end_ns {
            self.world.clock.sleep(Duration::from_secs(1)).await;
            self.look_for_others().await?;
        }
        Ok(())
    }

    /// The newest uberblock on the devices.
    ///
    /// # Errors
    /// As [`Self::check_still_ours`].
    async fn look_for_others(&self) -> Result<Uberblock, PoolError> {
        let pool = || self.identity.name();
        let all = self.tree.uberblocks_on_paths().await?;
        let Some(newest) = best_uberblock(&all, Txg::new(u64::MAX)) else {
            return Err(PoolError::Suspended {
                pool: pool(),
                why: "none of its devices can be read, to see whether another host took it"
                    .to_owned(),
            });
        };
        let is_ours = {
            let beats = self.heart.state.lock();
            all.iter().all(|uberblock| beats.is_ours(uberblock))
        };
        match is_ours {
            true => Ok(newest),
            false => Err(PoolError::TakenOver { pool: pool() }),
        }
    }

    /// Suspends the pool when no heartbeat has come out for too long; says whether.
    fn check_silence(&self) -> bool {
        let now_ns = self.world.clock.monotonic_ns();
        let silent_ns = now_ns.saturating_sub(self.heart.state.lock().last_success_ns);
        let is_silent = silent_ns > FAIL_NS;
        if is_silent {
            self.pipeline
                .suspension()
                .suspend(ZioError::HeartbeatsFailed {
                    silent_ms: silent_ns / NS_PER_MS,
                });
        }
        is_silent
    }

    /// Sends one heartbeat to the next device in turn, and does not wait for it.
    fn send_heartbeat(self: &Arc<Self>) {
        let targets = self.tree.heartbeat_targets();
        let now_ns = self.world.clock.monotonic_ns();
        let (uberblock, target) = {
            let mut beats = self.heart.state.lock();
            let Some(last) = beats.last else { return };
            let Some(target) = beats.next_target(&targets) else {
                return beats.note_failure(now_ns);
            };
            let uberblock = self.next_heartbeat(&beats, &last);
            beats.unsettled.push(uberblock);
            beats.pending.insert(target.guid());
            (uberblock, target)
        };
        let label = (self.world.random.next_u64() % LABELS) as usize;
        // The device may never answer: that must not keep the pool in memory.
        let weak = Arc::downgrade(self);
        self.pipeline.tasks().spawn("heartbeat", async move {
            let result = target.write(&uberblock, label).await;
            let Some(core) = weak.upgrade() else { return };
            let now_ns = core.world.clock.monotonic_ns();
            let mut beats = core.heart.state.lock();
            beats.pending.remove(&target.guid());
            match result {
                Ok(()) => beats.note_success(&uberblock, now_ns, targets.len()),
                Err(error) => {
                    tracing::debug!(%error, "a heartbeat could not be written");
                    beats.note_failure(now_ns);
                }
            }
        });
    }

    /// `last` with a new time and number: newer than all that were sent.
    fn next_heartbeat(&self, beats: &Beats, last: &Uberblock) -> Uberblock {
        let same_txg = |other: &&Uberblock| other.txg == last.txg;
        let sent = beats.unsettled.iter().filter(same_txg);
        let newest = sent.max_by_key(|sent| sent.recency()).unwrap_or(last);
        let seconds = self.world.clock.wall_ns() / 1_000_000_000;
        let before = newest.multihost.and_then(|mmp| mmp.sequence).unwrap_or(0);
        // Numbers begin anew with each second, as there are only so many.
        let sequence = if seconds > newest.timestamp_seconds {
            1
        } else {
            before.saturating_add(1)
        };
        Uberblock {
            endian: format::Endian::Little,
            timestamp_seconds: seconds.max(newest.timestamp_seconds),
            multihost: Some(Multihost {
                delay_ns: beats.delay_ns.max(1),
                interval_ms: Some(INTERVAL_MS),
                sequence: Some(sequence),
                fail_intervals: Some(FAIL_INTERVALS),
            }),
            ..*last
        }
    }
}

/// Sends heartbeats, and listens whether they come out, until the pool is closed or the property is
/// off. Waits for nothing but the time.
async fn beat_until_closed(world: World, weak: Weak<Core>) {
    let mut was_suspended = false;
    loop {
        let wait_ns = {
            let Some(core) = weak.upgrade() else { return };
            if !core.heart_goes_on() {
                return;
            }
            if core.pipeline.suspension().error().is_some() {
                was_suspended = true;
            } else {
                if std::mem::take(&mut was_suspended) {
                    let now_ns = core.world.clock.monotonic_ns();
                    core.heart.state.lock().begin(now_ns);
                }
                if !core.check_silence() {
                    core.send_heartbeat();
                }
            }
            let devices = core.tree.leaves().len().max(1) as u64;
            u64::from(INTERVAL_MS) * NS_PER_MS / devices
        };
        world.clock.sleep(Duration::from_nanos(wait_ns)).await;
    }
}

/// Whether an import must watch (`spa_activity_check_required`).
fn is_required(spec: &ImportSpec, uberblock: &Uberblock) -> bool {
    let found = &spec.found;
    let is_off = uberblock.multihost.is_none_or(|mmp| mmp.delay_ns == 0);
    let is_ours = spec.host.hostid != 0
        && found.hostid == spec.host.hostid
        && found.state == FoundState::Exported;
    !(spec.unwatched || is_off || is_ours || found.state == FoundState::Destroyed)
}

/// For how long (`spa_activity_check_duration`), without what is added by chance.
fn duration_ns(uberblock: &Uberblock) -> u64 {
    let mmp = uberblock.multihost.unwrap_or_default();
    let own = u64::from(INTERVAL_MS) * NS_PER_MS;
    let least = IMPORT_INTERVALS * own;
    match (mmp.interval_ms, mmp.fail_intervals) {
        (Some(interval), Some(fails)) if fails > 0 => {
            (u64::from(fails) * u64::from(interval) * NS_PER_MS).saturating_mul(SAFETY_FACTOR)
        }
        (interval, _) => {
            let interval = interval.map_or(own, |ms| u64::from(ms) * NS_PER_MS);
            least.max(
                interval
                    .saturating_add(mmp.delay_ns)
                    .saturating_mul(IMPORT_INTERVALS),
            )
        }
    }
}

/// Until when to watch what is like `from`, by the monotonic clock in nanoseconds.
fn watch_until(world: &World, from: &Uberblock) -> u64 {
    let duration = duration_ns(from);
    let chance = world.random.next_u64() % 250;
    world
        .clock
        .monotonic_ns()
        .saturating_add(duration)
        .saturating_add(duration / 1000 * chance)
}

async fn newest(tree: &VdevTree) -> Option<Uberblock> {
    best_uberblock(&tree.uberblocks().await, Txg::new(u64::MAX))
}

/// Watches for as long as `from` says; `false` when anything newer shows up.
async fn watch(world: &World, from: &Uberblock, tree: &VdevTree) -> bool {
    let end_ns = watch_until(world, from);
    while world.clock.monotonic_ns() < end_ns {
        world.clock.sleep(Duration::from_secs(1)).await;
        let newest = newest(tree).await;
        if newest.is_some_and(|newest| newest.recency() != from.recency()) {
            return false;
        }
    }
    true
}

/// The first part of an import: leaves the pool alone when somebody is at work on it. `uberblock`
/// is the newest.
///
/// # Errors
/// [`PoolError::RemoteActive`], [`PoolError::NoHostid`].
pub(crate) async fn check_unused(
    world: &World,
    spec: &ImportSpec,
    tree: &VdevTree,
    uberblock: &Uberblock,
) -> Result<(), PoolError> {
    if !is_required(spec, uberblock) {
        return Ok(());
    }
    if spec.host.hostid == 0 {
        return Err(PoolError::NoHostid {
            pool: spec.found.name.clone(),
        });
    }
    tracing::info!(
        pool = spec.found.name,
        seconds = duration_ns(uberblock) / 1_000_000_000,
        "watching whether another host uses the pool"
    );
    if watch(world, uberblock, tree).await {
        Ok(())
    } else {
        Err(active(spec))
    }
}

fn active(spec: &ImportSpec) -> PoolError {
    PoolError::RemoteActive {
        pool: spec.found.name.clone(),
        hostname: spec.found.hostname.clone(),
        hostid: spec.found.hostid,
    }
}

/// How many devices of a vdev must take a claim, so that another host sees it.
fn needed(top: &Vdev) -> usize {
    match top.kind().parity() {
        0 => top.children().len().max(1),
        parity => parity as usize + 1,
    }
}

/// The second part, when the devices are open for writing: makes sure that nobody else imports the
/// pool at this moment.
///
/// # Errors
/// [`PoolError::RemoteActive`], and [`PoolError::MissingDevices`] when too few devices take the
/// claim.
pub(crate) async fn claim(
    world: &World,
    spec: &ImportSpec,
    tree: &VdevTree,
    uberblock: &Uberblock,
) -> Result<(), PoolError> {
    if spec.read_only || !is_required(spec, uberblock) {
        return Ok(());
    }
    if newest(tree).await.map(|newest| newest.recency()) != Some(uberblock.recency()) {
        return Err(active(spec));
    }
    let mmp = uberblock.multihost.unwrap_or_default();
    let interval = Duration::from_millis(u64::from(mmp.interval_ms.unwrap_or(INTERVAL_MS)));
    let before = mmp
        .sequence
        .filter(|number| *number < u16::MAX)
        .unwrap_or(0);
    let mut result = Ok(());
    for _ in 0..CLAIM_ROUNDS {
        let room = u64::from(u16::MAX - before);
        let sequence = before + 1 + (world.random.next_u64() % room) as u16;
        let mine = Uberblock {
            multihost: Some(Multihost {
                sequence: Some(sequence),
                ..mmp
            }),
            ..*uberblock
        };
        result = write_claim(spec, tree, &mine).await;
        if result.is_err() {
            break;
        }
        world.clock.sleep(interval).await;
        if newest(tree).await.map(|newest| newest.recency()) != Some(mine.recency()) {
            result = Err(active(spec));
            break;
        }
    }
    // So that another attempt finds what this one did.
    if let Err(error) = write_claim(spec, tree, uberblock).await {
        tracing::debug!(%error, "a claim could not be taken back");
    }
    result
}

async fn write_claim(
    spec: &ImportSpec,
    tree: &VdevTree,
    uberblock: &Uberblock,
) -> Result<(), PoolError> {
    let targets = tree.heartbeat_targets();
    for top in tree.tops() {
        let is_log = top.is_log();
        if is_log || top.leaves().is_empty() {
            continue;
        }
        let mut good = 0;
        for target in targets.iter().filter(|target| target.top == top.vdev_id()) {
            if target.write(uberblock, 0).await.is_ok() {
                good += 1;
            }
        }
        if good < needed(&top) {
            return Err(PoolError::MissingDevices {
                pool: spec.found.name.clone(),
                why: format!(
                    "{} took the claim of this host on {good} of {} devices (its property \
                     multihost is on)",
                    top.display_name(),
                    needed(&top)
                ),
            });
        }
    }
    tree.flush().await?;
    Ok(())
}
