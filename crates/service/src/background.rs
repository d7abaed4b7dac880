//! What pools do in the background, as jobs and events: scrubs, resilvers, replacements, frees,
//! removals of vdevs, discarding of checkpoints, and that a pool is suspended or goes on.
//!
//! Each imported pool has a task that looks ([`Background::look`]) whenever a transaction group is
//! on disk, the pool is suspended, or somebody says that something was begun ([`Background::poke`],
//! after a command). Whoever needs to see what was just begun looks by themselves before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::{EventKind, JobKind, JobState, Progress, Unit};
use format::Guid;
use parking_lot::Mutex;
use pool::{ActivityKind, Pool, RemovalState, RemovalStatus};
use tokio::sync::{Notify, watch};

use crate::events::Events;
use crate::jobs::{Jobs, Work};
use crate::pools::OpenPool;
use crate::reports;

/// How often the progress of a scrub is looked at: no transaction groups tell of it, as the pool is
/// not written.
const SCRUB_PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// What is known of a pool's background work.
pub struct Background {
    jobs: Arc<Jobs>,
    events: Arc<Events>,
    works: Mutex<Works>,
    poked: Notify,
    closed: watch::Sender<bool>,
}

#[derive(Default)]
struct Works {
    is_suspended: bool,
    is_closed: bool,
    scan: Option<Scan>,
    /// How many scans were seen to begin or to end.
    scan_changes: u64,
    replace: Option<Work>,
    expand: Option<Work>,
    discard: Option<Shrinking>,
    remove: Option<Work>,
    free: Option<Shrinking>,
    activities: BTreeMap<(Guid, ActivityKind), Work>,
}

/// What a scan goes through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanOf {
    /// All data, or what devices lack of it.
    Data,
    /// The space of a vdev: a sequential rebuild.
    Space,
    /// The error log.
    Errors,
}

/// A scrub or resilver.
struct Scan {
    kind: JobKind,
    of: ScanOf,
    work: Work,
}

/// Bytes that become fewer.
struct Shrinking {
    work: Work,
    most_bytes: u64,
}

impl Shrinking {
    fn left(&mut self, bytes: u64) {
        self.most_bytes = self.most_bytes.max(bytes);
        self.work.progress(Progress {
            done: self.most_bytes - bytes,
            total: self.most_bytes,
            unit: Unit::Bytes,
        });
    }
}

impl Background {
    /// That of a pool of which nothing is known yet.
    pub fn new(jobs: &Arc<Jobs>, events: &Arc<Events>) -> Self {
        Self {
            jobs: Arc::clone(jobs),
            events: Arc::clone(events),
            works: Mutex::default(),
            poked: Notify::new(),
            closed: watch::Sender::new(false),
        }
    }

    fn begin(&self, kind: JobKind, pool: &Pool) -> Work {
        let guid = reports::guid(pool.guid());
        let can_cancel = kind == JobKind::Scrub;
        self.jobs
            .begin(kind, Some(pool.name()), Some(guid), can_cancel)
    }

    /// How many scans were seen to begin or to end: to be given to [`Background::scrub_begun`].
    pub fn scan_changes(&self) -> u64 {
        self.works.lock().scan_changes
    }

    /// A scrub was begun, or goes on: there is a job even if it has ended by now. `changes_before`
    /// is [`Background::scan_changes`] from before the command: whoever looked in between may have
    /// seen all of a short scrub already, and it is told of once.
    pub fn scrub_begun(&self, pool: &Pool, changes_before: u64) {
        let mut works = self.works.lock();
        if works.scan_changes == changes_before {
            self.events.tell_of(pool, EventKind::ScrubStarted);
            match &works.scan {
                Some(scan) => scan.work.set_paused(false),
                None => {
                    works.scan = Some(self.scan(JobKind::Scrub, pool));
                    works.scan_changes += 1;
                }
            }
        }
        drop(works);
        self.poke(pool);
    }

    /// Returns when the pool was exported or destroyed.
    pub async fn until_closed(&self) {
        let mut closed = self.closed.subscribe();
        // An error means that the pool is gone, which it is not while somebody has it.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Something was begun or ended.
    pub fn poke(&self, pool: &Pool) {
        self.look(pool);
        self.poked.notify_one();
    }

    /// Looks what the pool does; whether a scrub or resilver is under way.
    pub fn look(&self, pool: &Pool) -> bool {
        let mut works = self.works.lock();
        if works.is_closed {
            return false;
        }
        let is_suspended = pool.suspended().is_some();
        if is_suspended != works.is_suspended {
            works.is_suspended = is_suspended;
            let kind = match is_suspended {
                true => EventKind::PoolSuspended,
                false => EventKind::PoolResumed,
            };
            self.events.tell_of(pool, kind);
        }
        let is_written = !pool.is_read_only();
        let discarding = (is_written && pool.is_discarding()).then(|| pool.checkpoint_bytes());
        let freeing = Some(pool.freeing_bytes()).filter(|bytes| is_written && *bytes > 0);
        self.shrinks(
            &mut works.discard,
            JobKind::CheckpointDiscard,
            pool,
            discarding,
        );
        self.shrinks(&mut works.free, JobKind::Free, pool, freeing);
        for at in [&works.discard, &works.free].into_iter().flatten() {
            at.work.set_paused(is_suspended);
        }
        match (pool.is_replacing(), &works.replace) {
            (true, None) => works.replace = Some(self.begin(JobKind::Replace, pool)),
            (false, Some(_)) => {
                if let Some(work) = works.replace.take() {
                    work.end(JobState::Finished);
                }
            }
            _ => {}
        }
        self.look_at_removal(&mut works, pool);
        self.look_at_expansion(&mut works, pool);
        self.look_at_activities(&mut works, pool);
        self.look_at_scan(&mut works, pool)
    }

    fn look_at_expansion(&self, works: &mut Works, pool: &Pool) {
        let Some((done, total)) = pool.scans().expanded_bytes() else {
            if let Some(work) = works.expand.take() {
                work.end(JobState::Finished);
            }
            return;
        };
        let work = works
            .expand
            .get_or_insert_with(|| self.begin(JobKind::Expand, pool));
        work.progress(Progress {
            done,
            total,
            unit: Unit::Bytes,
        });
        work.set_paused(works.is_suspended);
    }

    /// Devices are initialized or trimmed from now on: there are jobs even if that has ended.
    /// Returns their numbers.
    pub fn activities_begun(&self, pool: &Pool, leaves: &[Guid], kind: ActivityKind) -> Vec<u64> {
        let mut works = self.works.lock();
        let ids = leaves.iter().map(|leaf| {
            let known = works.activities.entry((*leaf, kind));
            let work = known.or_insert_with(|| self.activity(kind, pool));
            work.job().id
        });
        ids.collect()
    }

    fn activity(&self, kind: ActivityKind, pool: &Pool) -> Work {
        let kind = match kind {
            ActivityKind::Initialize => JobKind::Initialize,
            ActivityKind::Trim => JobKind::Trim,
        };
        self.begin(kind, pool)
    }

    fn look_at_removal(&self, works: &mut Works, pool: &Pool) {
        let status = pool::removal(pool).status();
        let is_written = !pool.is_read_only();
        let is_running = |status: &&RemovalStatus| status.state == RemovalState::Running;
        let Some(running) = status.as_ref().filter(is_running).filter(|_| is_written) else {
            if let Some(work) = works.remove.take() {
                let is_done = status.is_some_and(|at| at.state == RemovalState::Finished);
                work.end(match is_done {
                    true => JobState::Finished,
                    false => JobState::Canceled,
                });
            }
            return;
        };
        let is_suspended = works.is_suspended;
        let known = &mut works.remove;
        let work = known.get_or_insert_with(|| self.begin(JobKind::Remove, pool));
        work.progress(Progress {
            done: running.copied_bytes,
            total: running.to_copy_bytes,
            unit: Unit::Bytes,
        });
        work.set_paused(is_suspended);
    }

    fn look_at_activities(&self, works: &mut Works, pool: &Pool) {
        let under_way = pool.activities();
        for one in &under_way {
            let known = works.activities.entry((one.leaf, one.kind));
            let work = known.or_insert_with(|| self.activity(one.kind, pool));
            work.progress(Progress {
                done: one.status.done_bytes,
                total: one.status.total_bytes,
                unit: Unit::Bytes,
            });
            work.set_paused(works.is_suspended);
        }
        let is_there = |key: &(Guid, ActivityKind)| {
            let mut under_way = under_way.iter();
            under_way.any(|one| (one.leaf, one.kind) == *key)
        };
        let ended = works.activities.extract_if(.., |key, _| !is_there(key));
        for ((leaf, kind), work) in ended {
            work.end(match pool.is_activity_complete(leaf, kind) {
                true => JobState::Finished,
                false => JobState::Canceled,
            });
        }
    }

    fn scan(&self, kind: JobKind, pool: &Pool) -> Scan {
        Scan {
            kind,
            of: ScanOf::Data,
            work: self.begin(kind, pool),
        }
    }

    fn shrinks(
        &self,
        known: &mut Option<Shrinking>,
        kind: JobKind,
        pool: &Pool,
        left_bytes: Option<u64>,
    ) {
        match left_bytes {
            Some(bytes) => known
                .get_or_insert_with(|| Shrinking {
                    work: self.begin(kind, pool),
                    most_bytes: 0,
                })
                .left(bytes),
            None => {
                if let Some(done) = known.take() {
                    done.work.end(JobState::Finished);
                }
            }
        }
    }

    fn look_at_scan(&self, works: &mut Works, pool: &Pool) -> bool {
        let kind_of = |status: &pool::ScanStatus| match status.function {
            pool::ScanFunction::Scrub => JobKind::Scrub,
            pool::ScanFunction::Resilver => JobKind::Resilver,
        };
        let status = pool.scans().scrub_status();
        let running = status
            .as_ref()
            .filter(|status| status.state == pool::ScanState::Scanning);
        let errors = pool.scans().error_scrub();
        let is_whole_of_errors = errors.is_some_and(|at| at.state == pool::ScanState::Finished);
        let errors = errors.filter(|at| at.state == pool::ScanState::Scanning);
        let kind = match running {
            Some(status) => Some(kind_of(status)),
            None if pool.scans().is_rebuilding() => Some(JobKind::Resilver),
            None if errors.is_some() => Some(JobKind::Scrub),
            // It begins with one of the next transaction groups.
            None => pool.scans().is_resilver_due().then_some(JobKind::Resilver),
        };
        if let Some(scan) = works.scan.take_if(|scan| Some(scan.kind) != kind) {
            works.scan_changes += 1;
            let own = status
                .as_ref()
                .filter(|status| kind_of(status) == scan.kind);
            if let Some(status) = own {
                scan.work.progress(progress_of(status));
            }
            let is_whole = match scan.of {
                ScanOf::Space => is_rebuilt(&pool.scans().rebuilds()),
                ScanOf::Errors => is_whole_of_errors,
                ScanOf::Data => own.is_some_and(|own| own.state == pool::ScanState::Finished),
            };
            self.events.tell_of(
                pool,
                match (scan.kind, is_whole) {
                    (JobKind::Resilver, _) => EventKind::ResilverFinished,
                    (_, true) => EventKind::ScrubFinished,
                    (_, false) => EventKind::ScrubCanceled,
                },
            );
            scan.work.end(match is_whole {
                true => JobState::Finished,
                false => JobState::Canceled,
            });
        }
        let Some(kind) = kind else { return false };
        let changes = &mut works.scan_changes;
        let scan = works.scan.get_or_insert_with(|| {
            *changes += 1;
            self.events.tell_of(
                pool,
                match kind {
                    JobKind::Resilver => EventKind::ResilverStarted,
                    _ => EventKind::ScrubStarted,
                },
            );
            self.scan(kind, pool)
        });
        let Some(status) = running else {
            if let Some(errors) = errors {
                scan.of = ScanOf::Errors;
                scan.work.progress(Progress {
                    done: errors.examined,
                    total: errors.examined.saturating_add(errors.to_examine),
                    unit: Unit::Blocks,
                });
                let is_paused = errors.pause_time_s != 0;
                scan.work.set_paused(is_paused);
                return !is_paused;
            }
            let is_rebuilding = pool.scans().is_rebuilding();
            if is_rebuilding {
                scan.of = ScanOf::Space;
                scan.work
                    .progress(progress_of_rebuilds(&pool.scans().rebuilds()));
            }
            return is_rebuilding;
        };
        scan.of = ScanOf::Data;
        scan.work.progress(progress_of(status));
        let was_paused = scan.work.job().state == JobState::Paused;
        let is_paused = status.pause_time_s != 0;
        scan.work.set_paused(is_paused);
        if is_paused && !was_paused {
            self.events.tell_of(pool, EventKind::ScrubPaused);
        }
        !is_paused
    }

    /// The pool was exported or destroyed: nothing of it goes on here.
    pub fn close(&self, pool: &Pool) {
        let mut works = self.works.lock();
        works.is_closed = true;
        let shrinking = [works.discard.take(), works.free.take()];
        let shrinking = shrinking.into_iter().flatten().map(|at| at.work);
        let scan = works.scan.take().map(|scan| scan.work);
        let activities = std::mem::take(&mut works.activities).into_values();
        let scan = scan.into_iter().chain(activities);
        for work in shrinking.chain(scan).chain(works.replace.take()) {
            work.end(JobState::Canceled);
        }
        self.events.tell_of(pool, EventKind::PoolExported);
        self.closed.send_replace(true);
    }
}

/// Whether the rebuild that ended last was complete.
fn is_rebuilt(rebuilds: &[pool::RebuildStatus]) -> bool {
    let last = rebuilds.iter().max_by_key(|rebuild| rebuild.end_time_s);
    last.is_some_and(|last| last.state == pool::RebuildState::Complete)
}

fn progress_of_rebuilds(rebuilds: &[pool::RebuildStatus]) -> Progress {
    let active = rebuilds
        .iter()
        .filter(|rebuild| rebuild.state == pool::RebuildState::Active);
    let mut out = Progress {
        done: 0,
        total: 0,
        unit: Unit::Bytes,
    };
    for rebuild in active {
        out.done += rebuild.scanned_bytes.min(rebuild.estimated_bytes);
        out.total += rebuild.estimated_bytes;
    }
    out
}

fn progress_of(scan: &pool::ScanStatus) -> Progress {
    Progress {
        done: scan.issued_bytes,
        total: scan.to_examine_bytes,
        unit: Unit::Bytes,
    }
}

/// Looks at a pool until it is closed.
pub async fn watch(open: Arc<OpenPool>) {
    let background = &open.background;
    let pool = &open.pool;
    let mut closed = background.closed.subscribe();
    loop {
        let txg = pool.synced_txg();
        let is_scrubbing = background.look(pool);
        let synced = async {
            if pool.is_read_only() || pool.synced_after(txg).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let suspended = async {
            match pool.suspended() {
                None => pool.until_suspended().await,
                Some(_) => std::future::pending().await,
            }
        };
        let scrubbed = async {
            match is_scrubbing {
                true => tokio::select! {
                    () = pool.scans().wait_for_scrub(false) => {}
                    () = tokio::time::sleep(SCRUB_PROGRESS_EVERY) => {}
                },
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            // An error means that the pool is gone, which it is not while this has it.
            _ = closed.wait_for(|closed| *closed) => return,
            () = background.poked.notified() => {}
            () = synced => {}
            () = suspended => {}
            () = scrubbed => {}
        }
    }
}
