//! Events with OpenZFS's classes: what happens to a pool, told to whoever gave an [`EventSink`].
//!
//! Three kinds, by the beginning of their class: `sysevent.fs.zfs.*` is what was done to the pool
//! ([`Sysevent`]), `resource.fs.zfs.*` that a device's state changed, `ereport.fs.zfs.*` what went
//! wrong with devices and blocks. Their pairs are those of OpenZFS as far as there is something
//! behind them here (`pairs`): I/O has no stages, so `zio_stage` and `zio_pipeline` are left out.
//!
//! **Order.** Devices report from I/O tasks, where nothing may block, so what they say goes into a
//! queue first. Whoever tells of something tells what is in the queue before; a task of the pool
//! does so when nobody else has something to tell. So events come in the order in which things
//! happened. Where more is wrong at once than the queue takes, the rest is counted, and logged.
//!
//! **How much.** A block that is read again and fails again is not told again within 15 minutes,
//! nor are more than so many checksum errors or slow operations of a device per second
//! (`limits`). What is told counts for the [diagnosis](crate::diagnosis), which takes devices out
//! of use that have too many errors (`Teller::retire`); for each device that goes bad, in whichever
//! way, a spare is wanted ([`SpareDevices`]).
//!
//! Locks: `teller` is held while events are made, around those of the pool's name, properties and
//! vdevs; so nothing is told with one of these held. `queue` is for single operations.
//!
//! Source: module/zfs/zfs_fm.c, include/sys/sysevent/eventdefs.h, include/sys/fm/fs/zfs.h.

mod limits;
mod pairs;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use device::World;
use format::{Guid, NvList, NvValue, ObjectId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use vdev::{
    DeviceIo, ErrorReport, ErrorSink, Operation, Priority, Vdev, VdevAux, VdevState, VdevTree,
};

use self::limits::{Recent, RecentError, Throttle};
use crate::diagnosis::{Diagnosis, ErrorKind};
use crate::errors::ErrorLog;
use crate::{Spa, vdevprops};

/// Reports that wait to be told, at most.
const QUEUED_MAX: usize = 4096;

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolEvent {
    /// Its class: `sysevent.fs.zfs.scrub_start`.
    pub class: String,
    /// What it tells, as OpenZFS names it, the class included; without the time and number that
    /// who keeps it gives it.
    pub pairs: NvList,
}

/// Who is told of events.
pub trait EventSink: Send + Sync {
    /// Takes an event. Called from the pool's tasks, one at a time per pool: quick, never blocks.
    fn event(&self, event: PoolEvent);
}

/// The pool's spares, which are no part of its vdev tree: listed in events about devices, and
/// wanted where one went bad.
pub trait SpareDevices: Send + Sync {
    /// Paths and guids of those whose path is known.
    fn listed(&self) -> (Vec<String>, Vec<u64>);

    /// A spare is to stand in for this device. Returns at once.
    fn want(&self, device: Guid);
}

/// What was done to a pool (`ESC_ZFS_*`, include/sys/sysevent/eventdefs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    missing_docs,
    dead_code,
    reason = "named as in OpenZFS; some wait for who does that"
)]
pub enum Sysevent {
    PoolCreate,
    PoolImport,
    PoolExport,
    PoolDestroy,
    PoolReguid,
    ConfigSync,
    HistoryEvent,
    VdevAdd,
    VdevAttach,
    VdevRemove,
    VdevRemoveAux,
    VdevRemoveDev,
    VdevSpare,
    VdevClear,
    VdevOnline,
    VdevAutoexpand,
    ScrubStart,
    ScrubFinish,
    ScrubAbort,
    ScrubPaused,
    ScrubResume,
    ErrorscrubStart,
    ErrorscrubFinish,
    ErrorscrubAbort,
    ErrorscrubPaused,
    ErrorscrubResume,
    ResilverStart,
    ResilverFinish,
    TrimStart,
    TrimFinish,
    TrimCancel,
    TrimSuspend,
    TrimResume,
}

impl Sysevent {
    const fn name(self) -> &'static str {
        match self {
            Self::PoolCreate => "pool_create",
            Self::PoolImport => "pool_import",
            Self::PoolExport => "pool_export",
            Self::PoolDestroy => "pool_destroy",
            Self::PoolReguid => "pool_reguid",
            Self::ConfigSync => "config_sync",
            Self::HistoryEvent => "history_event",
            Self::VdevAdd => "vdev_add",
            Self::VdevAttach => "vdev_attach",
            Self::VdevRemove => "vdev_remove",
            Self::VdevRemoveAux => "vdev_remove_aux",
            Self::VdevRemoveDev => "vdev_remove_dev",
            Self::VdevSpare => "vdev_spare",
            Self::VdevClear => "vdev_clear",
            Self::VdevOnline => "vdev_online",
            Self::VdevAutoexpand => "vdev_autoexpand",
            Self::ScrubStart => "scrub_start",
            Self::ScrubFinish => "scrub_finish",
            Self::ScrubAbort => "scrub_abort",
            Self::ScrubPaused => "scrub_paused",
            Self::ScrubResume => "scrub_resume",
            Self::ErrorscrubStart => "errorscrub_start",
            Self::ErrorscrubFinish => "errorscrub_finish",
            Self::ErrorscrubAbort => "errorscrub_abort",
            Self::ErrorscrubPaused => "errorscrub_paused",
            Self::ErrorscrubResume => "errorscrub_resume",
            Self::ResilverStart => "resilver_start",
            Self::ResilverFinish => "resilver_finish",
            Self::TrimStart => "trim_start",
            Self::TrimFinish => "trim_finish",
            Self::TrimCancel => "trim_cancel",
            Self::TrimSuspend => "trim_suspend",
            Self::TrimResume => "trim_resume",
        }
    }
}

/// A vdev that an event is about; one that is no part of the pool any more, too.
#[derive(Debug, Clone)]
pub struct About {
    guid: Guid,
    state: VdevState,
    path: Option<String>,
}

impl About {
    /// A vdev as it is now.
    pub fn vdev(vdev: &Vdev) -> Self {
        About {
            guid: vdev.guid(),
            state: vdev.state().0,
            path: vdev.path(),
        }
    }

    /// A device that is only in a list of spares or caches.
    pub fn auxiliary(guid: Guid, path: Option<String>) -> Self {
        About {
            guid,
            state: VdevState::Healthy,
            path,
        }
    }
}

/// Something that was reported.
#[derive(Debug)]
enum Reported {
    Error(ErrorReport),
    /// The pool was suspended.
    Suspended,
}

/// The events of a pool.
pub struct Events {
    world: World,
    queue: Mutex<Queue>,
    /// Something is in the queue.
    reported: Notify,
    teller: Mutex<Teller>,
}

#[derive(Default)]
struct Queue {
    /// With the time of the monotonic clock.
    reports: VecDeque<(u64, Reported)>,
    lost: u64,
}

impl Events {
    /// Of a pool that is being opened; nothing is told before [`Self::begin`].
    pub fn new(world: &World) -> Arc<Self> {
        Arc::new(Events {
            world: world.clone(),
            queue: Mutex::default(),
            reported: Notify::new(),
            teller: Mutex::default(),
        })
    }

    /// The pool is there. What was reported before is forgotten: a device that cannot be opened
    /// while a pool is imported was not there to begin with (`vdev_not_present`).
    pub fn begin(
        self: &Arc<Self>,
        spa: &Arc<Spa>,
        spares: Weak<dyn SpareDevices>,
        sink: Option<Arc<dyn EventSink>>,
        context: LoadState,
    ) {
        {
            let mut teller = self.teller.lock();
            *self.queue.lock() = Queue::default();
            teller.sink = sink;
            teller.spa = Arc::downgrade(spa);
            teller.spares = Some(spares);
            teller.context = context;
        }
        let (events, weak) = (self.clone(), Arc::downgrade(spa));
        let telling = tell_until_closed(events, weak);
        spa.pipeline.tasks().spawn("events", telling);
    }

    /// It is created, or imported.
    pub fn loaded(&self) {
        self.teller.lock().context = LoadState::None;
    }

    /// Tells that something was done to the pool.
    pub fn tell(&self, what: Sysevent) {
        self.tell_about(what, None, NvList::new());
    }

    /// Tells that something was done to a vdev.
    pub fn tell_vdev(&self, what: Sysevent, about: About) {
        self.tell_about(what, Some(about), NvList::new());
    }

    /// Tells that a cache device, which worked, failed and is not used any more.
    pub fn cache_failed(&self, guid: Guid, path: Option<String>) {
        let about = About {
            guid,
            state: VdevState::Faulted,
            path,
        };
        let mut more = NvList::new();
        more.set("vdev_laststate", VdevState::Healthy.code());
        let mut teller = self.teller.lock();
        self.settle_with(&mut teller);
        if let Some(spa) = teller.spa.upgrade() {
            teller.send(&spa, "resource.fs.zfs.statechange", Some(&about), more);
        }
    }

    /// Tells that something was done, with more pairs.
    pub fn tell_about(&self, what: Sysevent, about: Option<About>, more: NvList) {
        let mut teller = self.teller.lock();
        self.settle_with(&mut teller);
        if let Some(spa) = teller.spa.upgrade() {
            let class = format!("sysevent.fs.zfs.{}", what.name());
            teller.send(&spa, &class, about.as_ref(), more);
        }
    }

    /// Tells that a dataset's intent log cannot be replayed (`FM_EREPORT_ZFS_LOG_REPLAY`; the pairs
    /// about the dataset are ours: OpenZFS tells of whole pools).
    pub fn log_not_replayed(&self, dataset: &str, object: ObjectId, reason: &str) {
        let mut more = NvList::new();
        more.set("zio_objset", NvValue::UInt64(object.get()));
        more.set("dataset", NvValue::String(dataset.to_owned()));
        more.set("reason", NvValue::String(reason.to_owned()));
        let mut teller = self.teller.lock();
        self.settle_with(&mut teller);
        if let Some(spa) = teller.spa.upgrade() {
            teller.send(&spa, "ereport.fs.zfs.log_replay", None, more);
        }
    }

    /// The pool was suspended.
    pub fn suspended(&self) {
        self.put(Reported::Suspended);
    }

    /// Tells what was reported so far, and acts on it.
    pub fn settle(&self) {
        self.settle_with(&mut self.teller.lock());
    }

    /// Devices were cleared: what they did before does not count any more, and is told again.
    pub fn clear(&self, leaves: &[Guid]) {
        let mut teller = self.teller.lock();
        self.settle_with(&mut teller);
        for leaf in leaves {
            teller.diagnosis.close(*leaf);
            teller.recent.forget(*leaf);
        }
    }

    /// The pool is gone: the task that tells of reports ends.
    pub fn end(&self) {
        self.reported.notify_one();
    }

    fn put(&self, reported: Reported) {
        {
            let mut queue = self.queue.lock();
            if queue.reports.len() >= QUEUED_MAX {
                queue.lost += 1;
                return;
            }
            let now_ns = self.world.clock.monotonic_ns();
            queue.reports.push_back((now_ns, reported));
        }
        self.reported.notify_one();
    }

    fn settle_with(&self, teller: &mut Teller) {
        let Some(spa) = teller.spa.upgrade() else {
            return;
        };
        loop {
            // Acting on a report makes more of them.
            let next = self.queue.lock().reports.pop_front();
            match next {
                Some((at_ns, Reported::Error(report))) => teller.take(&spa, at_ns, report),
                Some((at_ns, Reported::Suspended)) => teller.suspended(&spa, at_ns),
                None => {
                    let now_ns = self.world.clock.monotonic_ns();
                    let due = teller.diagnosis.due(now_ns);
                    if due.is_empty() {
                        break;
                    }
                    for leaf in due {
                        teller.retire(&spa, leaf, ErrorKind::Io);
                    }
                }
            }
        }
        let lost = std::mem::take(&mut self.queue.lock().lost);
        if lost > 0 {
            tracing::warn!(lost, "more went wrong than events could tell");
        }
    }

    fn next_ns(&self) -> Option<u64> {
        self.teller.lock().diagnosis.next_ns()
    }
}

/// Tells of what is reported while nobody else tells of anything.
async fn tell_until_closed(events: Arc<Events>, weak: Weak<Spa>) {
    loop {
        if weak.strong_count() == 0 {
            return;
        }
        events.settle();
        let clock = events.world.clock.clone();
        let due = async {
            match events.next_ns() {
                Some(next_ns) => {
                    let wait_ns = next_ns.saturating_sub(clock.monotonic_ns());
                    clock.sleep(Duration::from_nanos(wait_ns)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = events.reported.notified() => {}
            () = due => {}
        }
    }
}

/// What a pool is doing as a whole (`spa_load_state_t`, include/sys/fs/zfs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadState {
    /// It is there.
    #[default]
    None,
    /// It is being imported.
    Import,
    /// It is being created.
    Create,
}

impl LoadState {
    const fn code(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Import => 2,
            Self::Create => 6,
        }
    }
}

/// Makes events.
#[derive(Default)]
struct Teller {
    sink: Option<Arc<dyn EventSink>>,
    spa: Weak<Spa>,
    spares: Option<Weak<dyn SpareDevices>>,
    context: LoadState,
    recent: Recent,
    throttle: Throttle,
    diagnosis: Diagnosis,
    /// Vdevs that too few devices are left of.
    without_replicas: BTreeSet<Guid>,
}

/// The vdevs from a top-level one down to a leaf.
pub fn path_to(tree: &VdevTree, guid: Guid) -> Vec<Arc<Vdev>> {
    fn below(vdev: &Arc<Vdev>, guid: Guid, path: &mut Vec<Arc<Vdev>>) -> bool {
        path.push(vdev.clone());
        let mut children = vdev.children().iter();
        if vdev.guid() == guid || children.any(|child| below(child, guid, path)) {
            return true;
        }
        path.pop();
        false
    }
    let mut path = Vec::new();
    tree.tops().iter().find(|top| below(top, guid, &mut path));
    path
}

impl Teller {
    fn spares(&self) -> Option<Arc<dyn SpareDevices>> {
        self.spares.as_ref()?.upgrade()
    }

    /// Tells of a `sysevent` or `resource`.
    fn send(&self, spa: &Spa, class: &str, about: Option<&About>, more: NvList) {
        let Some(sink) = &self.sink else { return };
        let mut pairs = pairs::resource(spa, self.context, class, about);
        for (name, value) in more.iter() {
            pairs.push(name, value.clone());
        }
        sink.event(PoolEvent {
            class: class.to_owned(),
            pairs,
        });
    }

    /// Tells of an `ereport`.
    fn send_report(&self, spa: &Spa, name: &str, at_ns: u64, what: pairs::Error<'_>) {
        let Some(sink) = &self.sink else { return };
        let class = format!("ereport.fs.zfs.{name}");
        let spares = self
            .spares()
            .map_or_else(Default::default, |of| of.listed());
        let pairs = pairs::ereport(spa, self.context, &class, at_ns, what, spares);
        sink.event(PoolEvent { class, pairs });
    }

    fn suspended(&self, spa: &Spa, at_ns: u64) {
        self.send_report(spa, "io_failure", at_ns, pairs::Error::pool());
    }

    fn take(&mut self, spa: &Spa, at_ns: u64, report: ErrorReport) {
        match report {
            // Of a flush that fails, the device's state tells.
            ErrorReport::Device {
                leaf, io, errno, ..
            } if io.operation != Operation::Flush => {
                self.take_io(spa, at_ns, leaf, ErrorKind::Io, io, errno);
            }
            ErrorReport::Checksum { leaf, io } => {
                self.take_io(spa, at_ns, leaf, ErrorKind::Checksum, io, pairs::ECKSUM);
            }
            ErrorReport::Slow { leaf, io } => {
                self.take_io(spa, at_ns, leaf, ErrorKind::SlowIo, io, 0);
            }
            ErrorReport::Deadman { leaf, io } => {
                let path = path_to(&spa.tree, leaf);
                let what = pairs::Error::of_waiting(&path, io);
                self.send_report(spa, "deadman", at_ns, what);
            }
            ErrorReport::ProbeFailed { leaf, state } => {
                let path = path_to(&spa.tree, leaf);
                let what = pairs::Error::of_vdev(&path, state);
                self.send_report(spa, "probe_failure", at_ns, what);
            }
            ErrorReport::State {
                leaf,
                from,
                to,
                aux,
            } => self.take_state(spa, at_ns, leaf, (from, to, aux)),
            ErrorReport::Data { bookmark, .. } => {
                let what = pairs::Error::of_block(bookmark);
                self.send_report(spa, "data", at_ns, what);
            }
            _ => {}
        }
    }

    /// An operation that failed, was wrong or slow.
    fn take_io(
        &mut self,
        spa: &Spa,
        at_ns: u64,
        leaf: Guid,
        kind: ErrorKind,
        io: DeviceIo,
        errno: i32,
    ) {
        let path = path_to(&spa.tree, leaf);
        let Some(vdev) = path.last() else { return };
        if kind == ErrorKind::SlowIo && !vdevprops::tells_slow_io(spa, vdev) {
            return;
        }
        let error = RecentError { kind, io, errno };
        // Slow is what takes long each time.
        if kind != ErrorKind::SlowIo && self.recent.has(leaf, &error, at_ns) {
            return;
        }
        if kind != ErrorKind::Io && !self.throttle.lets(leaf, kind, at_ns) {
            return;
        }
        let name = match kind {
            ErrorKind::Io => "io",
            ErrorKind::Checksum => "checksum",
            ErrorKind::SlowIo => "delay",
        };
        let limits = vdevprops::limits(spa, &path, kind);
        let what = pairs::Error::of_io(&path, kind, io, errno, limits);
        self.send_report(spa, name, at_ns, what);
        let by_scan = io.scrub || io.priority == Priority::Scrub;
        if kind == ErrorKind::Checksum && by_scan {
            return;
        }
        let Some(limit) = limits.effective(kind) else {
            return;
        };
        let parent = match path.len() {
            0 | 1 => spa.guid(),
            depth => path[depth - 2].guid(),
        };
        if self
            .diagnosis
            .record(vdev.guid(), parent, kind, limit, at_ns)
        {
            self.retire(spa, leaf, kind);
        }
    }

    /// A device has too many errors (zfs_retire.c: `zfs_retire_recv`). What that makes of it comes
    /// back as a change of its state.
    fn retire(&mut self, spa: &Spa, leaf: Guid, kind: ErrorKind) {
        let result = match kind {
            ErrorKind::Io => spa.tree.fault(leaf),
            ErrorKind::Checksum | ErrorKind::SlowIo => spa.tree.degrade(leaf),
        };
        match result {
            Ok(state) => tracing::error!(%leaf, ?kind, %state, "a device has too many errors"),
            Err(error) => {
                tracing::debug!(%leaf, ?kind, %error, "it is out of use by now");
            }
        }
    }

    /// A device has another state.
    fn take_state(
        &mut self,
        spa: &Spa,
        at_ns: u64,
        leaf: Guid,
        (from, to, aux): (VdevState, VdevState, VdevAux),
    ) {
        let path = path_to(&spa.tree, leaf);
        let Some(vdev) = path.last() else { return };
        match to {
            VdevState::Removed => self.diagnosis.removed(leaf),
            VdevState::Healthy => self.diagnosis.close(leaf),
            _ => {}
        }
        let is_bad = match to {
            VdevState::Removed | VdevState::Faulted | VdevState::CantOpen => true,
            VdevState::Degraded => aux == VdevAux::ErrorsExceeded,
            _ => false,
        };
        if is_bad {
            self.went_bad(spa, vdev);
        }
        let leaves = spa.tree.leaves();
        self.diagnosis
            .retain(|guid| leaves.iter().any(|vdev| vdev.guid() == guid));
        let about = About {
            state: to,
            ..About::vdev(vdev)
        };
        if to == VdevState::Removed {
            let mut more = NvList::new();
            more.push("by_kernel", format::NvValue::Boolean);
            self.send(spa, "resource.fs.zfs.removed", Some(&about), more);
        }
        if to == VdevState::CantOpen {
            let name = open_failure(aux);
            self.send_report(spa, name, at_ns, pairs::Error::of_vdev(&path, from));
        }
        let mut more = NvList::new();
        more.push("vdev_laststate", from.code());
        self.send(spa, "resource.fs.zfs.statechange", Some(&about), more);
        for above in path.iter().rev().skip(1) {
            let lacks = above.state() == (VdevState::CantOpen, VdevAux::NoReplicas);
            if !lacks {
                self.without_replicas.remove(&above.guid());
            } else if self.without_replicas.insert(above.guid()) {
                let depth = path.iter().position(|vdev| vdev.guid() == above.guid());
                let what = pairs::Error::of_vdev(&path[..=depth.unwrap_or(0)], VdevState::Degraded);
                self.send_report(spa, open_failure(VdevAux::NoReplicas), at_ns, what);
            }
        }
    }

    /// A device was removed, faulted, degraded for its errors, or cannot be opened again: a hot
    /// spare is to take over (zfs_retire.c: `replace_with_spare`), in a task of its own, as devices
    /// are not waited for where events are made.
    fn went_bad(&self, spa: &Spa, vdev: &Vdev) {
        tracing::debug!(vdev = %vdev.display_name(), "a device went bad");
        if !spa.read_only {
            if let Some(spares) = self.spares() {
                spares.want(vdev.guid());
            }
            // The configuration tells its state, and the txg that notes what it misses from now on
            // is not put off.
            spa.identity.mark_dirty();
            spa.txgs.kick();
        }
    }
}

/// The class of a report that a vdev cannot be opened (`vdev_set_state`, module/zfs/vdev.c).
const fn open_failure(aux: VdevAux) -> &'static str {
    match aux {
        VdevAux::OpenFailed => "vdev.open_failed",
        VdevAux::CorruptData => "vdev.corrupt_data",
        VdevAux::NoReplicas => "vdev.no_replicas",
        VdevAux::TooSmall => "vdev.too_small",
        VdevAux::BadLabel => "vdev.bad_label",
        VdevAux::None
        | VdevAux::Spared
        | VdevAux::ErrorsExceeded
        | VdevAux::External
        | VdevAux::SplitPool => "vdev.unknown",
    }
}

/// Hears what the vdevs and the pipeline report, and gives it to the error log and the events.
pub struct Reports {
    /// Keeps the blocks.
    pub errors: Arc<ErrorLog>,
    /// Tells of them.
    pub events: Arc<Events>,
}

impl ErrorSink for Reports {
    fn report(&self, report: ErrorReport) {
        self.errors.note_report(&report);
        self.events.put(Reported::Error(report));
    }
}
