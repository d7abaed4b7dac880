//! What people can do about passes over free space.

use std::sync::Arc;

use format::{Guid, LABEL_START_BYTES, ObjectId};
use spa::PoolError;
use vdev::Vdev;

use super::{Activities, Activity, ActivityKind, ActivityState, Key, zap_of};
use crate::Passes;

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivityCommand {
    /// Begin, or go on.
    Start,
    /// Stop, and give up.
    Cancel,
    /// Stop, to go on some time.
    Suspend,
    /// Forget what was initialized.
    Forget,
}

/// The work that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivitySpec {
    /// Which kind of work.
    pub kind: ActivityKind,
    /// What to do about it.
    pub command: ActivityCommand,
    /// What to write, as 64 bits in little-endian order.
    pub value: Option<u64>,
    /// Bytes to discard in a second, at most; zero for no bound.
    pub rate: u64,
    /// Erase for good.
    pub secure: bool,
}

/// What became of that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivityOutcome {
    /// Devices that it was done on.
    pub begun: Vec<Guid>,
    /// The others, by the names that were given, else by their paths, and why.
    pub refused: Vec<(String, ActivityObstacle)>,
    /// How many it was to be done on.
    pub devices: usize,
}

/// Why that is not done on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivityObstacle {
    /// The pool has no such device.
    NoSuchDevice,
    /// It is a hot spare that stands by.
    Spare,
    /// It is a cache device.
    Cache,
    /// It is no device, or cannot be written to.
    NotWriteable,
    /// Discards do not reach its medium.
    TrimUnsupported,
    /// It is under way already, or the vdev is being expanded.
    Busy,
    /// It is not under way.
    NotActive,
    /// The device is a part of an expanded RAID-Z vdev, where it is not done.
    Expanded,
}

/// Carries out a command on devices, on all without names. `find` tells which device a person calls
/// so. If it knows one of them not, nothing is done on any.
///
/// # Errors
/// [`PoolError::Suspended`].
pub async fn command(
    passes: &Passes,
    devices: &[String],
    find: impl Fn(&str) -> Result<Arc<Vdev>, ActivityObstacle>,
    spec: &ActivitySpec,
) -> Result<ActivityOutcome, PoolError> {
    let _admin = passes.spa.admin.lock().await;
    passes.spa.check_not_suspended()?;
    let mut refused = Vec::new();
    let mut found: Vec<(String, Arc<Vdev>)> = Vec::new();
    if devices.is_empty() {
        for leaf in passes.spa.tree.leaves() {
            found.push((leaf.path().unwrap_or_else(|| leaf.display_name()), leaf));
        }
    }
    for name in devices {
        match find(name) {
            Ok(vdev) => found.push((name.clone(), vdev)),
            Err(why) => refused.push((name, why)),
        }
    }
    let refused: Vec<_> = refused
        .into_iter()
        .map(|(name, why)| (name.clone(), why))
        .collect();
    let mut outcome = ActivityOutcome {
        begun: Vec::new(),
        devices: found.len() + refused.len(),
        refused,
    };
    if !outcome.refused.is_empty() {
        return Ok(outcome);
    }
    let activities = &passes.activities;
    let mut stopping = Vec::new();
    for (name, vdev) in found {
        match check(passes, &vdev, spec).and_then(|zap| apply(passes, (zap, spec.kind), spec)) {
            Ok(key) => {
                outcome.begun.push(vdev.guid());
                stopping.push(key);
            }
            Err(why) => outcome.refused.push((name, why)),
        }
    }
    if spec.command != ActivityCommand::Start {
        let stopped = async {
            stopped(activities, &stopping).await;
            Ok::<_, PoolError>(())
        };
        passes.spa.unless_suspended(stopped).await?;
    }
    passes.spa.unless_suspended(passes.spa.txgs.sync()).await?;
    Ok(outcome)
}

/// Whether it could be done on a vdev at all; its ZAP.
fn check(
    passes: &Passes,
    vdev: &Arc<Vdev>,
    spec: &ActivitySpec,
) -> Result<ObjectId, ActivityObstacle> {
    let leaf = vdev.leaf().filter(|leaf| leaf.is_writeable());
    let leaf = leaf.ok_or(ActivityObstacle::NotWriteable)?;
    let zap = zap_of(vdev).filter(|zap| !passes.activities.lost.contains(zap));
    let zap = zap.ok_or(ActivityObstacle::NotWriteable)?;
    let top = passes.spa.tree.topology().top_of(vdev.guid());
    let top = top.ok_or(ActivityObstacle::NoSuchDevice)?;
    if spec.kind == ActivityKind::Trim && (!leaf.supports_discard() || spec.secure) {
        return Err(ActivityObstacle::TrimUnsupported);
    }
    if spec.command == ActivityCommand::Start && !top.can_discard_free() {
        return Err(match top.is_expanding() {
            true => ActivityObstacle::Busy,
            false => ActivityObstacle::Expanded,
        });
    }
    Ok(zap)
}

fn apply(passes: &Passes, key: Key, spec: &ActivitySpec) -> Result<Key, ActivityObstacle> {
    let activities = &passes.activities;
    let (state, is_running) = {
        let all = activities.all.lock();
        let at = all.get(&key);
        at.map_or((ActivityState::None, false), |at| (at.state, at.is_running))
    };
    let is_begun = matches!(state, ActivityState::Active | ActivityState::Suspended);
    let stop = |at: &mut Activity| at.is_stopped = at.is_running;
    match spec.command {
        ActivityCommand::Start if is_running => return Err(ActivityObstacle::Busy),
        ActivityCommand::Start => {
            activities.change(&passes.spa, key, ActivityState::Active, |at| {
                at.begin(key.1, spec)
            });
        }
        ActivityCommand::Cancel if is_begun => {
            activities.change(&passes.spa, key, ActivityState::Canceled, stop);
        }
        ActivityCommand::Suspend if state == ActivityState::Active => {
            activities.change(&passes.spa, key, ActivityState::Suspended, stop);
        }
        ActivityCommand::Cancel | ActivityCommand::Suspend => {
            return Err(ActivityObstacle::NotActive);
        }
        ActivityCommand::Forget if is_running => return Err(ActivityObstacle::Busy),
        ActivityCommand::Forget => {
            activities.change(&passes.spa, key, ActivityState::None, |at| {
                at.next_offset_bytes = 0;
            });
        }
    }
    Ok(key)
}

impl Activity {
    /// Becomes active.
    fn begin(&mut self, kind: ActivityKind, spec: &ActivitySpec) {
        let goes_on = self.is_begun();
        match kind {
            ActivityKind::Initialize => {
                if spec.value.is_some() || !goes_on {
                    self.value = spec.value;
                }
            }
            ActivityKind::Trim => {
                if !goes_on {
                    self.next_offset_bytes = LABEL_START_BYTES;
                    (self.rate, self.is_partial, self.is_secure) = (0, false, false);
                }
                if spec.rate != 0 {
                    self.rate = spec.rate;
                }
            }
        }
    }
}

/// Waits until nothing of these is under way.
async fn stopped(activities: &Activities, keys: &[Key]) {
    let mut changes = activities.changed.subscribe();
    let is_running = || {
        let all = activities.all.lock();
        keys.iter()
            .any(|key| all.get(key).is_some_and(|at| at.is_running))
    };
    // The sender is in this very value.
    while is_running() && changes.changed().await.is_ok() {}
}
