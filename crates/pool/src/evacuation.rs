//! Removal of a top-level vdev that has data: everything on it is copied to others, and a mapping
//! tells from then on where it is (`zpool remove`).
//!
//! ```text
//!            begin                     all is copied
//!  (none) ----------> under way --------------------------> finished: the vdev is indirect
//!                         | stopped, or a device fails
//!                         v
//!                      canceled: the vdev is as it was
//! ```
//!
//! # Rhythm
//! In the first pass of each transaction group the removal has a turn, as long as a resilver's. It
//! goes through the vdev from its begin to its end, and copies what is allocated and stays so in
//! this group ([`settled::remaining`]) to places that are allocated for it
//! ([`evacuation::copy_out`]). The turn ends with all of its copies written, and their entries
//! in the mapping; the group's flush covers both. Nothing is in flight between two groups. OpenZFS
//! has a thread instead, and keeps account of copies in flight.
//!
//! When all is copied, the whole vdev is looked at for what was not, in as many turns as that
//! takes.
//!
//! # What is freed meanwhile
//! is settled with its own group, by the mapping of that moment (crate `zio`, module `leaving`).
//! Frees for groups that were open when the removal began are not in that queue: so nothing is
//! copied before these are on disk ([`Running::from_txg`]).
//!
//! # Devices that fail
//! Copies go to vdevs each of which has a device that lacks nothing; other devices of theirs may be
//! away, or fail to take a copy. Those lack its group. A resilver does not come upon copies while
//! their vdev is being removed, so that they go on lacking the groups of copies until it is gone
//! (crate `scan`, module `resilver`). Then they are taken to lack all groups from the first one on:
//! blocks of any birth were copied, and OpenZFS leaves out those that were born before what a
//! device lacks. Nothing that was scanned before the end counts as scanned: so the removal does not
//! end while a scan is under way and some device lacks copies.
//!
//! Where no device of a vdev has all copies any more (its cache was lost before it was flushed),
//! the removal is given up. So it is where the vdev itself cannot be read (`spa_vdev_remove_thread`
//! does the same on errors), where the mapping would get bigger than an import believes, and where
//! something is allocated in the end that is not in the mapping.
//!
//! # What a crash leaves
//! Before the group that begins it: nothing. Then the mapping as of the last group on disk, and the
//! vdev with all that is still allocated on it; copies that are not in the mapping lie in free
//! space. The next import goes on behind the end of the mapping, or OpenZFS does. The group that
//! finishes it puts the indirect vdev in the place of the other one. Nobody is told before that
//! group is on disk ([`Evacuation::done`]), and the labels of its devices are written over after
//! that, before anybody is told, or stay, and then the configuration does not know them (an export
//! waits for it, not for long: [`Evacuation::wait_left`]). A removal that is given up is told when
//! its group is on disk, and only then blocks go to the vdev again: a log of which blocks were
//! there would be lost with a crash before.
//!
//! Lock: `state`, for a few instructions; nothing else is locked under it. `admin` and the gate of
//! passes over free space are taken to finish, if nobody has them.
//!
//! Source: module/zfs/vdev_removal.c.

mod command;
mod copying;
pub(crate) mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dataset::DatasetError;
use format::names::config::{NONALLOCATING, REMOVING};
use format::{Guid, NvList, ObjectId, RemovingPhys, Txg, VdevId};
use object::{ObjectSet, Zap};
use parking_lot::Mutex;
use scan::Scans;
use spa::events::{About, Sysevent};
use spa::{Pass, PoolError, Spa, config, damaged, directory};
use tokio::sync::watch;
use trim::Passes;
use vdev::{
    IndirectMap, MirrorRole, RangeSet, TopSpec, Vdev, VdevKind, VdevTree, evacuation,
    leaf_label_config, write_detached_labels,
};
use zio::ZioError;
use zio::alloc::{Settled, TopSpace, settled};
use zio::pipeline::Dvas;

use self::store::Objects;
use crate::newtops::NewTops;
use crate::removed::{
    self, BIRTHS_MAX, BIRTHS_OBJECT, ENTRIES_MAX, MAPPING_OBJECT, PREVIOUS, RemovalState,
    RemovalStatus, SCAN_CANCELED, SCAN_FINISHED, SCAN_SCANNING,
};

/// The feature; refcount: removed vdevs, and one that is being removed.
const DEVICE_REMOVAL: &str = "com.delphix:device_removal";
/// Bytes of one entry of the mapping (`zfs_remove_max_segment`).
const ENTRY_BYTES_MAX: u64 = 16 << 20;
/// Groups that may be open or be written when a removal begins.
const CONCURRENT_TXGS: u64 = 3;
/// How long readers that found a vdev before it was removed may take.
const READERS_PATIENCE: Duration = Duration::from_secs(60);
const READERS_STEP: Duration = Duration::from_millis(10);
/// The same where the pool is to be closed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// A removal that is under way.
#[derive(Debug, Clone, Copy)]
struct Running {
    vdev: VdevId,
    objects: Objects,
    /// The first group that may copy.
    from_txg: Txg,
    /// Whether it is known exactly what there was to copy.
    is_counted: bool,
    /// Up to where all is copied or was not in use.
    passed_bytes: u64,
    checked: Checked,
    is_to_stop: bool,
    /// The group that ended it: that is not on disk yet, or nobody was told.
    ended_in: Option<Txg>,
    /// It is done, and its devices are to be told.
    is_leaving: bool,
}

/// What is known, before it finishes, to have nothing that was not copied.
#[derive(Debug, Clone, Copy, Default)]
struct Checked {
    /// The first metaslabs.
    metaslabs: u64,
    /// How often something had been allocated from the vdev ([`settled::taken`]).
    taken: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The last removal, as the MOS tells; nothing while there was none.
    phys: Option<RemovingPhys>,
    is_dirty: bool,
    running: Option<Running>,
    /// What is told of one that has ended, until everybody may know.
    told: Option<RemovalStatus>,
    /// The last turn came further.
    has_moved: bool,
    /// All is copied, and a scan is to end first.
    waits_for_scan: bool,
}

/// A vdev that was removed, until its devices know.
struct Leaving {
    top: Arc<Vdev>,
    about: About,
    /// Its devices, and what their labels are to say.
    labels: Vec<(Arc<Vdev>, NvList)>,
}

/// How a turn ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    More,
    Whole,
    Failed(String),
}

/// The removal of a vdev of a pool, if one is under way, and the last one.
pub struct Evacuation {
    spa: Arc<Spa>,
    scans: Arc<Scans>,
    passes: Arc<Passes>,
    new_tops: Arc<NewTops>,
    state: Mutex<State>,
    /// Whether one is under way.
    active: watch::Sender<bool>,
    leaving: Mutex<Vec<Leaving>>,
    limits: Limits,
}

/// What may be less in tests.
struct Limits {
    /// What a turn copies, at most.
    turn_bytes: AtomicU64,
    /// Entries and births of a mapping: more of them no import believes.
    entries: AtomicU64,
    births: AtomicU64,
    /// Nothing is copied (tunable `zfs_removal_suspend_progress`).
    is_held: AtomicBool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            turn_bytes: AtomicU64::new(u64::MAX),
            entries: AtomicU64::new(ENTRIES_MAX),
            births: AtomicU64::new(BIRTHS_MAX),
            is_held: AtomicBool::new(false),
        }
    }
}

/// The removal that an import found, in a pool that was opened.
#[derive(Debug, Default)]
pub(crate) struct Found {
    phys: Option<RemovingPhys>,
    running: Option<(VdevId, Objects)>,
}

impl Found {
    /// Reads it, and tells those who free of the vdev that is being removed, if there is one.
    pub(crate) async fn load(
        mos: &Arc<ObjectSet>,
        tree: &VdevTree,
        dvas: &Dvas,
    ) -> Result<Self, PoolError> {
        let phys = removed::status(mos).await?;
        let Some(under_way) = phys.filter(|phys| phys.state == SCAN_SCANNING) else {
            return Ok(Found {
                phys,
                running: None,
            });
        };
        let vdev = u32::try_from(under_way.removing_vdev).ok();
        let top = vdev.and_then(|id| tree.top(VdevId::new(id)));
        let top = top.filter(|top| evacuation::can_be_emptied(tree, top.vdev_id()));
        if top.is_none() && tree.is_read_only() {
            // Where its devices are not there, the others can be read all the same.
            return Ok(Found {
                phys,
                running: None,
            });
        }
        let top = top.ok_or_else(|| {
            let why = format!("vdev {} is none that can be", under_way.removing_vdev);
            damaged("the pool", "which vdev is being removed", why)
        })?;
        let [mapping, births] = removed::objects_of(&top)?;
        let read = removed::read(mos, mapping, births).await;
        let (head, map) = match read.and_then(check_births) {
            // All is where it was.
            Err(error) if tree.is_read_only() => {
                tracing::warn!(%error, "the mapping of a vdev that is being removed is not read");
                return Ok(Found {
                    phys,
                    running: None,
                });
            }
            read => read?,
        };
        dvas.begin_removal(top.vdev_id(), map);
        let objects = Objects {
            mapping,
            births,
            head,
        };
        Ok(Found {
            phys,
            running: Some((top.vdev_id(), objects)),
        })
    }
}

/// What is copied next is behind all that was: so are its births.
fn check_births<H>((head, map): (H, IndirectMap)) -> Result<(H, IndirectMap), PoolError> {
    let end_bytes = map.end_bytes();
    if map
        .last_birth()
        .is_some_and(|(_, birth)| birth.offset_bytes > end_bytes)
    {
        let what = "the mapping of a vdev that is being removed";
        let why = "its births go on behind its end".to_owned();
        return Err(damaged("the pool", what, why));
    }
    Ok((head, map))
}

fn missing(vdev: VdevId) -> ZioError {
    ZioError::Vdev(vdev::VdevError::NoSuchVdev { vdev })
}

impl Evacuation {
    /// Of a pool that was just opened: goes on with what was found.
    pub(crate) fn new(
        spa: &Arc<Spa>,
        scans: &Arc<Scans>,
        passes: &Arc<Passes>,
        new_tops: &Arc<NewTops>,
        found: Found,
    ) -> Arc<Self> {
        let running = found.running.map(|(vdev, objects)| Running {
            vdev,
            objects,
            from_txg: Txg::ZERO,
            is_counted: objects.head.entries > 0,
            passed_bytes: 0,
            checked: Checked::default(),
            is_to_stop: false,
            ended_in: None,
            is_leaving: false,
        });
        if let Some(running) = &running {
            settled::hold(spa.pipeline.allocator(), running.vdev);
        }
        let is_active = running.is_some() && !spa.read_only;
        Arc::new(Evacuation {
            spa: spa.clone(),
            scans: scans.clone(),
            passes: passes.clone(),
            new_tops: new_tops.clone(),
            state: Mutex::new(State {
                phys: found.phys,
                running,
                ..State::default()
            }),
            active: watch::Sender::new(is_active),
            leaving: Mutex::default(),
            limits: Limits::default(),
        })
    }

    fn running(&self) -> Option<Running> {
        self.state.lock().running
    }

    /// Whether a vdev is being removed, or that this has ended is not told yet.
    pub fn is_active(&self) -> bool {
        self.running().is_some()
    }

    /// Refuses what cannot be done meanwhile.
    pub(crate) fn check_none(&self) -> Result<(), PoolError> {
        match self.is_active() {
            true => Err(PoolError::RemovalUnderWay {
                pool: self.spa.identity.name(),
            }),
            false => Ok(()),
        }
    }

    /// Waits until none is being removed, or the pool is closed.
    pub async fn wait(&self) {
        let mut active = self.active.subscribe();
        // The sender is in this very value.
        let _ = active.wait_for(|active| !*active).await;
    }

    /// Before the pool is closed: waits, not for long, until the devices of a vdev that was just
    /// removed are told.
    pub(crate) async fn wait_left(&self) {
        let clock = self.spa.world.clock.clone();
        let until_ns = clock.monotonic_ns() + CLOSE_PATIENCE.as_nanos() as u64;
        let is_leaving = |running: Running| running.is_leaving;
        while self.running().is_some_and(is_leaving) && clock.monotonic_ns() < until_ns {
            clock.sleep(READERS_STEP).await;
        }
    }

    /// The pool is closed: nobody waits any more.
    pub(crate) fn closed(&self) {
        self.active.send_replace(false);
    }

    /// Sets how many bytes a transaction group copies, at most, in whole sectors; for tests.
    pub fn set_turn_bytes(&self, bytes: u64) {
        self.limits.turn_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Sets how many entries and births a mapping has, at most; for tests.
    pub fn set_mapping_limits(&self, entries: u64, births: u64) {
        self.limits.entries.store(entries, Ordering::Relaxed);
        self.limits.births.store(births, Ordering::Relaxed);
    }

    /// What is told of the last removal (`spa_removal_get_stats`): that it has ended once that
    /// is on disk, and the devices are free.
    pub fn status(&self) -> Option<RemovalStatus> {
        let (phys, told) = {
            let state = self.state.lock();
            (state.phys?, state.told.clone())
        };
        if told.is_some() {
            return told;
        }
        let state = match phys.state {
            SCAN_SCANNING => RemovalState::Running,
            SCAN_FINISHED => RemovalState::Finished,
            SCAN_CANCELED => RemovalState::Canceled,
            _ => return None,
        };
        let vdev = u32::try_from(phys.removing_vdev).ok();
        let vdev = vdev.and_then(|id| self.spa.tree.top(VdevId::new(id)));
        let name = vdev.map_or_else(String::new, |vdev| {
            vdev.path().unwrap_or_else(|| match vdev.kind() {
                VdevKind::Raidz(raidz) => format!("raidz{}", raidz.parity),
                kind => kind.name().to_owned(),
            })
        });
        let tops = self.spa.tree.tops();
        Some(RemovalStatus {
            state,
            vdev: phys.removing_vdev,
            name,
            start_s: phys.start_time_seconds,
            end_s: phys.end_time_seconds,
            to_copy_bytes: phys.to_copy_bytes,
            copied_bytes: phys.copied_bytes,
            mapping_bytes: tops.iter().filter_map(|top| top.indirect_bytes()).sum(),
            waits_for: self.waits_for(),
        })
    }

    /// Why nothing is copied at present.
    fn waits_for(&self) -> Option<String> {
        let running = self
            .running()
            .filter(|running| running.ended_in.is_none())?;
        if self.spa.read_only {
            return None;
        }
        if self.spa.suspended().is_some() {
            return Some("the pool is suspended".to_owned());
        }
        let names = evacuation::waits_for(&self.spa.tree, running.vdev);
        if !names.is_empty() {
            let names = names.join(", ");
            return Some(format!("waits until {names} can be used and lacks nothing"));
        }
        let waits_for_scan = self.state.lock().waits_for_scan;
        let scan = self.scans.scan.status(&self.scans);
        let words = match scan.is_some_and(|scan| scan.pause_time_s != 0) {
            true => "waits for the scrub that is paused: let it go on or stop it",
            false => "waits for the scan that is under way",
        };
        waits_for_scan.then(|| words.to_owned())
    }

    fn now_s(&self) -> u64 {
        self.spa.world.clock.wall_ns() / 1_000_000_000
    }

    /// Whether turns are over for now.
    fn rests(&self, vdev: VdevId) -> bool {
        self.limits.is_held.load(Ordering::Acquire)
            || self.scans.scan.rests()
            || self.spa.suspended().is_some()
            || !evacuation::takes_copies(&self.spa.tree, vdev)
    }

    /// Lets a removal wait where it is, or go on.
    pub(crate) fn set_held(&self, is_held: bool) {
        self.limits.is_held.store(is_held, Ordering::Release);
    }

    /// Whether it needs a transaction group although nobody asked for one.
    pub(crate) fn has_work(&self) -> bool {
        if self.spa.read_only {
            return false;
        }
        let is_under_way = |running: &Running| running.ended_in.is_none();
        self.running().filter(is_under_way).is_some_and(|running| {
            running.is_to_stop || !self.rests(running.vdev) || self.obstacle(&running).is_some()
        })
    }

    /// The turn in each pass of a transaction group, before anything is put in the place of devices
    /// and before space is recorded.
    pub(crate) async fn turn(&self, pass: &Pass<'_>) -> Result<(), PoolError> {
        if self.is_active() {
            self.spa.pipeline.dvas().settle_removal(pass.ctx.txg);
            self.note_uncopied();
        }
        if pass.is_first()
            && let Some(running) = self.running().filter(|running| running.ended_in.is_none())
        {
            self.state.lock().has_moved = false;
            self.work(pass, &running).await?;
        }
        let phys = {
            let mut state = self.state.lock();
            let is_dirty = std::mem::take(&mut state.is_dirty);
            state.phys.filter(|_| is_dirty)
        };
        if let Some(phys) = phys {
            store::store_state(pass.tx, self.spa.dsl.mos(), &phys).await?;
        }
        Ok(())
    }

    /// The transaction group is on disk: devices of a vdev that it removed may go, and blocks may
    /// come to one that stays. That it ended a removal is told when the devices have gone: who
    /// hears of it may put something else on them at once. Returns whether it was given up.
    pub(crate) fn done(self: &Arc<Self>, txg: Txg) -> bool {
        let is_given_up =
            |running: &Running| running.ended_in.is_some_and(|at| at <= txg) && !running.is_leaving;
        let given_up = self.running().filter(is_given_up);
        if let Some(Running { vdev, .. }) = given_up {
            let allocator = self.spa.pipeline.allocator();
            let spec = self.spa.tree.top(vdev).and_then(|top| TopSpec::of(&top));
            if let Some(spec) = spec {
                allocator.set_allocatable(vdev, spec.allocatable);
            }
            settled::release(allocator, vdev);
            self.tell_end();
        }
        for leaving in std::mem::take(&mut *self.leaving.lock()) {
            let evacuation = self.clone();
            let clock = self.spa.world.clock.clone();
            let tasks = self.spa.pipeline.tasks();
            let about = leaving.about.clone();
            self.spa.events.tell_vdev(Sysevent::VdevRemoveDev, about);
            tasks.spawn("leave a removed vdev", async move {
                let from_ns = clock.monotonic_ns();
                let is_over = || {
                    let passed_ns = clock.monotonic_ns().saturating_sub(from_ns);
                    passed_ns > READERS_PATIENCE.as_nanos() as u64
                };
                let own = leaving.own_references();
                while Arc::strong_count(&leaving.top) > own && !is_over() {
                    clock.sleep(READERS_STEP).await;
                }
                leaving.leave().await;
                evacuation.tell_end();
            });
        }
        // One that cannot go on waits for a group that comes anyway: else groups with nothing in
        // them would follow one another, as quickly as they can.
        if self.state.lock().has_moved && self.has_work() {
            self.spa.txgs.go_on();
        }
        given_up.is_some()
    }

    fn tell_end(&self) {
        {
            let mut state = self.state.lock();
            state.running = None;
            state.told = None;
        }
        // What devices lack of copies can be given to them now.
        self.scans.scan.forget_unmended();
        self.active.send_replace(false);
    }

    fn change_running(&self, change: impl FnOnce(&mut Running)) {
        if let Some(running) = &mut self.state.lock().running {
            change(running);
        }
    }

    fn note_moved(&self) {
        self.state.lock().has_moved = true;
    }

    /// What was freed before it was copied needs no copy: it counts as done.
    fn note_uncopied(&self) {
        let bytes = self.spa.pipeline.dvas().take_uncopied();
        let mut state = self.state.lock();
        let is_counted = state.running.is_some_and(|running| running.is_counted);
        if bytes > 0
            && is_counted
            && let Some(phys) = &mut state.phys
        {
            phys.copied_bytes = phys.copied_bytes.saturating_add(bytes);
            state.is_dirty = true;
        }
    }

    /// Why a removal cannot go on, if it cannot.
    fn obstacle(&self, running: &Running) -> Option<String> {
        if running.is_to_stop {
            return Some("it was stopped".to_owned());
        }
        if self.spa.pipeline.dvas().has_spoilt_copies() {
            return Some("what was healed could not be healed in its copy".to_owned());
        }
        if evacuation::takes_copies(&self.spa.tree, running.vdev) {
            // There is a device with all of them on each vdev.
            return None;
        }
        let births = self.birth_txgs();
        evacuation::lacks_copies(&self.spa.tree, running.vdev, &births)
            .then(|| "no device of a vdev has all that was copied to it".to_owned())
    }

    /// The groups in which something was copied.
    fn birth_txgs(&self) -> RangeSet {
        let dvas = self.spa.pipeline.dvas();
        let births = dvas.with_removal(|map| map.birth_txgs());
        births.unwrap_or_default()
    }

    async fn work(&self, pass: &Pass<'_>, running: &Running) -> Result<(), PoolError> {
        if let Some(why) = self.obstacle(running) {
            return self.cancel(pass, &why).await;
        }
        if self.rests(running.vdev) {
            return Ok(());
        }
        if pass.ctx.txg < running.from_txg {
            self.note_moved();
            return Ok(());
        }
        self.count(running);
        match self.copy(pass, running.vdev).await? {
            Ended::More => Ok(()),
            Ended::Whole => self.finish(pass).await,
            Ended::Failed(why) => self.cancel(pass, &why).await,
        }
    }

    /// What there is to copy, now that nothing is freed any more that nobody hears of.
    fn count(&self, running: &Running) {
        if running.is_counted {
            return;
        }
        let bytes = settled::remaining_bytes(self.spa.pipeline.allocator(), running.vdev);
        let mut state = self.state.lock();
        state.is_dirty = true;
        if let Some(phys) = &mut state.phys {
            phys.to_copy_bytes = bytes;
            phys.copied_bytes = 0;
        }
        if let Some(running) = &mut state.running {
            running.is_counted = true;
        }
    }

    /// All is copied: the vdev becomes indirect (`vdev_remove_complete`). Not while somebody
    /// changes devices, or discards on them.
    async fn finish(&self, pass: &Pass<'_>) -> Result<(), PoolError> {
        let spa = &self.spa;
        let (Ok(_admin), Ok(_gate)) = (spa.admin.try_lock(), self.passes.gate.try_lock()) else {
            return Ok(());
        };
        let Some(Running { vdev, .. }) = self.running().filter(|running| !running.is_to_stop)
        else {
            return Ok(());
        };
        let top = spa.tree.top(vdev).ok_or_else(|| missing(vdev))?;
        if !is_plain(&top) {
            // Until a device that was put in the place of another one has taken it.
            return Ok(());
        }
        let births = self.birth_txgs();
        let waits_for_scan =
            self.scans.scan.is_running() && evacuation::is_lacking(&spa.tree, vdev, &births);
        self.state.lock().waits_for_scan = waits_for_scan;
        if waits_for_scan {
            return Ok(());
        }
        match self.left_behind(pass.ctx.txg, &top).await {
            Ended::Whole => {}
            Ended::More => {
                self.note_moved();
                return Ok(());
            }
            Ended::Failed(why) => {
                // Whatever came there, it is lost if the vdev goes.
                tracing::error!(why, vdev = top.display_name(), "a vdev cannot be removed");
                return self.cancel(pass, &why).await;
            }
        }
        if evacuation::lack_all(&spa.tree, vdev, &births) {
            tracing::warn!(
                vdev = top.display_name(),
                "a device lacks what was copied from a removed vdev, and is to be resilvered"
            );
        }
        let about = About::vdev(&top);
        let told = self.status();
        let labels = self.labels_of(&top);
        self.forget_space(pass, vdev, &top).await?;
        for (leaf, _) in &labels {
            self.forget_leaf(pass, leaf).await?;
        }
        let previous = self
            .state
            .lock()
            .phys
            .map(|phys| phys.previous_indirect_vdev);
        if let Some(previous) = previous.filter(|previous| *previous != u64::MAX) {
            top.set_config(PREVIOUS, previous);
        }
        let guid = self.new_guid();
        let put = |map: IndirectMap| spa.tree.replace_with_indirect(vdev, guid, map);
        let replaced = spa.pipeline.dvas().end_removal(put);
        replaced.transpose().map_err(ZioError::from)?;
        spa.pipeline.allocator().remove_top(vdev);
        spa.identity.mark_dirty();
        let now_s = self.now_s();
        {
            let mut state = self.state.lock();
            state.end(pass.ctx.txg, told, true);
            if let Some(phys) = &mut state.phys {
                phys.state = SCAN_FINISHED;
                phys.previous_indirect_vdev = phys.removing_vdev;
                phys.end_time_seconds = now_s;
                phys.to_copy_bytes = phys.copied_bytes;
            }
        }
        let text = format!("{} vdev {vdev}", spa.identity.lock().disk_name.clone());
        spa.history
            .internal(pass.tx, "vdev remove completed", text)
            .await;
        let leaving = Leaving { top, about, labels };
        self.leaving.lock().push(leaving);
        Ok(())
    }

    /// Whether something is still on a vdev of which all should have been copied: nothing is taken
    /// for granted, as what is not in the mapping is lost for good. It may take several groups,
    /// and begins anew where something was allocated since it began.
    async fn left_behind(&self, txg: Txg, top: &Vdev) -> Ended {
        let (vdev, pipeline) = (top.vdev_id(), &self.spa.pipeline);
        let allocator = pipeline.allocator();
        let is_it = |space: &TopSpace| space.vdev == vdev && space.pending_bytes > 0;
        let just_allocated = || Ended::Failed("something was just allocated on it".to_owned());
        if allocator.top_spaces().iter().any(is_it) {
            return just_allocated();
        }
        let is_over = self.scans.scan.turn_is_over(&self.scans, txg);
        let taken = settled::taken(allocator, vdev);
        let checked = self.running().map(|running| running.checked);
        let checked = checked.filter(|checked| checked.taken == taken);
        for metaslab in checked.map_or(0, |checked| checked.metaslabs).. {
            let ranges = match settled::remaining(allocator, txg, vdev, metaslab).await {
                Settled::Ranges(ranges) => ranges,
                Settled::Unknown => {
                    return Ended::Failed("a record of free space cannot be read".to_owned());
                }
                Settled::End => break,
            };
            let unmapped = pipeline.dvas().with_removal(|map| {
                let is_unmapped = |(offset, length): &(u64, u64)| !map.covers(*offset, *length);
                ranges.iter().find(is_unmapped)
            });
            match unmapped {
                Some(None) => {}
                Some(Some((offset, length))) => {
                    return Ended::Failed(format!(
                        "{length} bytes at {offset:#x} of it are in use and were not copied"
                    ));
                }
                None => return Ended::Failed("it has no mapping".to_owned()),
            }
            settled::unload(allocator, vdev, metaslab);
            if is_over() {
                let metaslabs = metaslab + 1;
                self.change_running(|running| running.checked = Checked { metaslabs, taken });
                return Ended::More;
            }
        }
        match settled::taken(allocator, vdev) == taken {
            true => Ended::Whole,
            false => just_allocated(),
        }
    }

    /// The devices of a vdev, and the labels that they get when it is removed: of no pool.
    fn labels_of(&self, top: &Arc<Vdev>) -> Vec<(Arc<Vdev>, NvList)> {
        let mut pool = self.spa.pairs(Txg::ZERO).label_config();
        pool.set("txg", 0u64);
        let label = |leaf: Arc<Vdev>| {
            let mut own = leaf_label_config(&pool, &self.spa.tree, top, &leaf);
            own.set("create_txg", 0u64);
            (leaf, own)
        };
        top.leaves().into_iter().map(label).collect()
    }

    /// Frees the space maps of the vdev, and what its ZAP says of them.
    async fn forget_space(
        &self,
        pass: &Pass<'_>,
        vdev: VdevId,
        top: &Vdev,
    ) -> Result<(), PoolError> {
        let spa = &self.spa;
        spa.space.remove_top(&pass.space(), vdev).await?;
        let zap = Zap::hold(spa.dsl.mos(), top_zap(top)?).await?;
        let flushes = directory::MS_UNFLUSHED_PHYS_TXGS;
        if zap.lookup(flushes).await?.is_some() {
            zap.remove(pass.tx, flushes).await?;
        }
        Ok(())
    }

    /// Frees what is kept of a device that goes.
    async fn forget_leaf(&self, pass: &Pass<'_>, leaf: &Vdev) -> Result<(), PoolError> {
        let (spa, mos) = (&self.spa, self.spa.dsl.mos());
        spa.dirty_times.remove(&pass.space(), mos, leaf).await?;
        let zap = leaf.config_u64(config::LEAF_ZAP).unwrap_or(0);
        if zap != 0 {
            mos.free(pass.tx, ObjectId::new(zap)).await?;
            spa.props.forget_vdev(ObjectId::new(zap));
            let all = spa.identity.lock().all_vdev_zaps;
            if !all.is_zero() {
                Zap::hold(mos, all).await?.remove_int(pass.tx, zap).await?;
            }
        }
        Ok(())
    }

    fn new_guid(&self) -> Guid {
        loop {
            match self.spa.world.random.next_u64() {
                0 => {}
                guid => return Guid::new(guid),
            }
        }
    }

    /// Gives the removal up: all copies are freed, and the vdev is used as before
    /// (`spa_vdev_remove_cancel_sync`).
    async fn cancel(&self, pass: &Pass<'_>, why: &str) -> Result<(), PoolError> {
        let (spa, txg) = (&self.spa, pass.ctx.txg);
        let Some(running) = self.running() else {
            return Ok(());
        };
        let vdev = running.vdev;
        let told = self.status();
        let top = spa.tree.top(vdev).ok_or_else(|| missing(vdev))?;
        tracing::warn!(why, vdev = top.display_name(), "a removal is given up");
        self.free_copies(txg, &top).await;
        let dvas = spa.pipeline.dvas();
        dvas.end_removal(drop);
        dvas.forget_obsolete(vdev);
        let (sync, mos, zap) = (pass.space(), spa.dsl.mos(), top_zap(&top)?);
        running.objects.free(&sync, mos, &top, zap).await?;
        spa.dsl
            .features()
            .decrement(pass.ctx, DEVICE_REMOVAL)
            .await?;
        for pair in [REMOVING, MAPPING_OBJECT, BIRTHS_OBJECT] {
            top.remove_config(pair);
        }
        // Property `allocating` may say so as well (`vdev_prop_allocating_off`).
        let allocating = Zap::hold(mos, zap).await?.lookup_u64("allocating").await?;
        let is_withheld = allocating == Some(0);
        if !is_withheld {
            top.remove_config(NONALLOCATING);
        }
        // Blocks go there again once this is on disk ([`Self::done`]).
        settled::set_withheld(spa.pipeline.allocator(), vdev, is_withheld);
        spa.identity.mark_dirty();
        let now_s = self.now_s();
        {
            let mut state = self.state.lock();
            state.end(txg, told, false);
            if let Some(phys) = &mut state.phys {
                phys.state = SCAN_CANCELED;
                phys.end_time_seconds = now_s;
            }
        }
        let pool = spa.identity.lock().disk_name.clone();
        let path = top.path().unwrap_or_else(|| "-".to_owned());
        let text = format!("{pool} vdev {vdev} {path}");
        spa.history
            .internal(pass.tx, "vdev remove canceled", text)
            .await;
        Ok(())
    }

    /// Frees the copies of all that is still allocated of a vdev. Where nobody knows what is, the
    /// copies are lost.
    async fn free_copies(&self, txg: Txg, top: &Vdev) {
        let (allocator, dvas) = (self.spa.pipeline.allocator(), self.spa.pipeline.dvas());
        let vdev = top.vdev_id();
        let end = dvas.with_removal(|map| map.end_bytes()).unwrap_or(0);
        let mut metaslab = 0;
        while metaslab << top.metaslab_shift() < end {
            let mut ranges = match settled::remaining(allocator, txg, vdev, metaslab).await {
                Settled::Ranges(ranges) => ranges,
                Settled::Unknown => {
                    tracing::error!(%vdev, metaslab, "copies of a metaslab cannot be freed");
                    RangeSet::new()
                }
                // Where the mapping ends is damaged.
                Settled::End => break,
            };
            ranges.remove(end, u64::MAX - end);
            for (offset, length) in ranges.iter() {
                let places = dvas
                    .with_removal(|map| map.places(offset, length))
                    .flatten();
                for (to, offset, length) in places.into_iter().flatten() {
                    if let Err(error) = allocator.free_range(txg, to, offset, length) {
                        tracing::error!(%error, "a copy cannot be freed, and its space is lost");
                    }
                }
            }
            settled::unload(allocator, vdev, metaslab);
            metaslab += 1;
        }
    }

    /// The sectors of the pool's vdevs: they have the same (checked when the removal began).
    fn sector_bytes(&self) -> u64 {
        let running = self.running();
        let top = running.and_then(|running| self.spa.tree.top(running.vdev));
        top.map_or(1 << format::SECTOR_SHIFT, |top| 1 << top.ashift())
    }
}

impl State {
    /// It has ended in a group that is being written; for now `told` is told.
    fn end(&mut self, txg: Txg, told: Option<RemovalStatus>, is_leaving: bool) {
        self.is_dirty = true;
        self.told = told;
        if let Some(running) = &mut self.running {
            running.ended_in = Some(txg);
            running.is_leaving = is_leaving;
        }
    }
}

impl Leaving {
    /// How often this refers to the vdev itself: a disk without others is its own device.
    fn own_references(&self) -> usize {
        let is_it = |(leaf, _): &&(Arc<Vdev>, NvList)| Arc::ptr_eq(leaf, &self.top);
        1 + self.labels.iter().filter(is_it).count()
    }

    /// Nobody reads from the vdev any more: its devices are told that they are free.
    async fn leave(self) {
        for (vdev, label) in self.labels {
            let Some(device) = vdev.leaf().and_then(|leaf| leaf.device()) else {
                continue;
            };
            if let Err(error) = write_detached_labels(&*device, &label).await {
                tracing::warn!(
                    %error, device = vdev.display_name(),
                    "the label of a removed device stays as it was"
                );
            }
        }
        self.top.close();
    }
}

/// Whether it is a disk or a mirror of disks, and none of its devices is being replaced.
fn is_plain(vdev: &Vdev) -> bool {
    match vdev.kind() {
        VdevKind::Leaf(_) => true,
        VdevKind::Mirror(mirror) => {
            mirror.role == MirrorRole::Mirror
                && vdev.children().iter().all(|child| child.kind().is_leaf())
        }
        _ => false,
    }
}

/// The ZAP of a top-level vdev that is being removed.
fn top_zap(top: &Vdev) -> Result<ObjectId, DatasetError> {
    let zap = top.config_u64(config::TOP_ZAP).filter(|zap| *zap != 0);
    zap.map(ObjectId::new)
        .ok_or_else(|| DatasetError::Zio(missing(top.vdev_id())))
}
