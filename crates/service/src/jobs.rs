//! Jobs: what takes long, listed with its progress ([`api::Job`]).
//!
//! Whoever works at something has its [`Work`], reports through it, and looks whether it is to
//! stop. Every change is an event, told in the order in which it happened; progress alone is told
//! at most once in [`PROGRESS_EVERY`]. What ended stays listed for a while, with what a request
//! that became a job is to be answered.
//!
//! Nothing of it is on disk: what goes on in a pool is found again at its next import.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{EventKind, Failure, FailureKind, Guid, Job, JobKind, JobState, Progress};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::events::Events;

/// Jobs that ended and stay listed.
const ENDED_MAX: usize = 128;
/// Least time between two events about the progress of one job.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// What a request was answered.
type Outcome = Result<Value, Failure>;

/// Who asked for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A user of the system, by number.
    User(u32),
    /// Who has an API key, by its ID.
    Key(String),
}

#[derive(Debug)]
struct Entry {
    job: Job,
    /// Whether somebody asked it to stop.
    is_canceled: watch::Sender<bool>,
    told: Instant,
    outcome: Option<Outcome>,
    /// Who asked for it, where that is known.
    asker: Option<Asker>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    jobs: BTreeMap<u64, Entry>,
}

/// The jobs of a server.
#[derive(Debug)]
pub struct Jobs {
    events: Arc<Events>,
    table: Mutex<Table>,
}

/// Where a job is worked at. When it is dropped without having ended, the job has failed.
#[derive(Debug)]
pub struct Work {
    jobs: Arc<Jobs>,
    id: u64,
    is_canceled: watch::Receiver<bool>,
}

fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Jobs {
    /// None yet.
    pub fn new(events: Arc<Events>) -> Arc<Self> {
        Arc::new(Self {
            events,
            table: Mutex::new(Table::default()),
        })
    }

    /// Begins a job.
    pub fn begin(
        self: &Arc<Self>,
        kind: JobKind,
        pool: Option<String>,
        guid: Option<Guid>,
        can_cancel: bool,
    ) -> Work {
        let mut table = self.table.lock();
        table.last += 1;
        let id = table.last;
        let (cancel, is_canceled) = watch::channel(false);
        let mut job = Job {
            id,
            kind,
            pool,
            guid,
            start_s: now_s(),
            end_s: None,
            state: JobState::Running,
            progress: None,
            can_cancel,
            failure: None,
            sequence: 0,
        };
        self.events.tell_numbered(|sequence| {
            job.sequence = sequence;
            EventKind::JobStarted { job: job.clone() }
        });
        let entry = Entry {
            job,
            is_canceled: cancel,
            told: Instant::now(),
            outcome: None,
            asker: None,
        };
        table.jobs.insert(id, entry);
        Work {
            jobs: Arc::clone(self),
            id,
            is_canceled,
        }
    }

    /// All jobs, or those of a pool, in the order in which they began.
    pub fn list(&self, pool: Option<&str>) -> Vec<Job> {
        let table = self.table.lock();
        let all = table.jobs.values().map(|entry| &entry.job);
        all.filter(|job| pool.is_none() || job.pool.as_deref() == pool)
            .cloned()
            .collect()
    }

    /// One job.
    ///
    /// # Errors
    /// [`FailureKind::NotFound`].
    pub fn get(&self, id: u64) -> Result<Job, Failure> {
        self.table.lock().entry(id).map(|entry| entry.job.clone())
    }

    /// What a request that became a job is answered.
    ///
    /// # Errors
    /// Its failure; [`FailureKind::NotFound`] without such a job, or of one that was no request;
    /// [`FailureKind::Busy`] while it has not ended.
    pub fn outcome(&self, id: u64) -> Outcome {
        let mut table = self.table.lock();
        let entry = table.entry(id)?;
        if !entry.job.state.is_ended() {
            let message = format!("job {id} has not ended yet; follow its events");
            return Err(Failure::new(FailureKind::Busy, message));
        }
        entry.outcome.clone().unwrap_or_else(|| {
            let message = format!("job {id} was no request: it has no result but its state");
            Err(Failure::new(FailureKind::NotFound, message))
        })
    }

    /// Whether this one asked for it, who may know its result then.
    pub fn is_of(&self, id: u64, asker: &Asker) -> bool {
        let table = self.table.lock();
        let entry = table.jobs.get(&id);
        entry.and_then(|entry| entry.asker.as_ref()) == Some(asker)
    }

    /// Asks a job to stop.
    ///
    /// # Errors
    /// [`FailureKind::NotFound`]; [`FailureKind::Invalid`] when it has ended;
    /// [`FailureKind::Unsupported`] when it cannot stop.
    pub fn cancel(&self, id: u64) -> Result<(), Failure> {
        let mut table = self.table.lock();
        let entry = table.entry(id)?;
        if entry.job.state.is_ended() {
            let message = format!("cannot cancel job {id}: it has ended");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        if !entry.job.can_cancel {
            let message = format!("cannot cancel job {id}: it can only be waited for");
            return Err(Failure::new(FailureKind::Unsupported, message));
        }
        entry.is_canceled.send_replace(true);
        Ok(())
    }

    /// Changes a job that has not ended, and tells of it: always of another state, now and then
    /// of progress.
    fn change(&self, id: u64, change: impl FnOnce(&mut Job)) {
        let mut table = self.table.lock();
        let Some(entry) = table.jobs.get_mut(&id) else {
            return;
        };
        if entry.job.state.is_ended() {
            return;
        }
        let before = entry.job.clone();
        change(&mut entry.job);
        if entry.job == before {
            return;
        }
        let is_other = entry.job.state != before.state;
        if !is_other && entry.told.elapsed() < PROGRESS_EVERY {
            return;
        }
        entry.told = Instant::now();
        let job = &mut entry.job;
        if job.state.is_ended() {
            job.end_s = Some(now_s());
        }
        self.events.tell_numbered(|sequence| {
            job.sequence = sequence;
            match job.state.is_ended() {
                true => EventKind::JobFinished { job: job.clone() },
                false => EventKind::JobProgress { job: job.clone() },
            }
        });
        table.forget_old();
    }
}

impl Table {
    fn entry(&mut self, id: u64) -> Result<&mut Entry, Failure> {
        self.jobs.get_mut(&id).ok_or_else(|| {
            let message = format!("there is no job {id}, or it ended long ago; list the jobs");
            Failure::new(FailureKind::NotFound, message)
        })
    }

    /// Forgets the oldest that ended.
    fn forget_old(&mut self) {
        let ended = |entry: &&Entry| entry.job.state.is_ended();
        let mut many = self.jobs.values().filter(ended).count();
        self.jobs.retain(|_, entry| {
            let goes = many > ENDED_MAX && entry.job.state.is_ended();
            many -= usize::from(goes);
            !goes
        });
    }
}

impl Work {
    /// Notes who asked for it.
    pub fn asked_by(&self, asker: Option<Asker>) {
        if let Some(entry) = self.jobs.table.lock().jobs.get_mut(&self.id) {
            entry.asker = asker;
        }
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How it is.
    pub fn job(&self) -> Job {
        let job = self.jobs.get(self.id);
        job.expect("a job that is worked at is listed")
    }

    /// Says how far it is.
    pub fn progress(&self, progress: Progress) {
        self.jobs
            .change(self.id, |job| job.progress = Some(progress));
    }

    /// Says that it stands still, or goes on.
    pub fn set_paused(&self, is_paused: bool) {
        self.jobs.change(self.id, |job| {
            job.state = match is_paused {
                true => JobState::Paused,
                false => JobState::Running,
            };
        });
    }

    /// Whether somebody asked it to stop.
    pub fn is_canceled(&self) -> bool {
        *self.is_canceled.borrow()
    }

    /// Completes when somebody asks it to stop.
    pub async fn canceled(&self) {
        let mut is_canceled = self.is_canceled.clone();
        if is_canceled
            .wait_for(|is_canceled| *is_canceled)
            .await
            .is_err()
        {
            // It is not listed any more, and nobody can.
            std::future::pending::<()>().await;
        }
    }

    /// It has ended, in that state.
    pub fn end(&self, state: JobState) {
        self.jobs.change(self.id, |job| job.state = state);
    }

    /// The request has been answered.
    pub fn answer(&self, outcome: Outcome) {
        let state = match &outcome {
            Ok(_) => JobState::Finished,
            Err(failure) if failure.kind == FailureKind::Canceled => JobState::Canceled,
            Err(_) => JobState::Failed,
        };
        let failure = outcome.as_ref().err().cloned();
        if let Ok(entry) = self.jobs.table.lock().entry(self.id) {
            entry.outcome = Some(outcome);
        }
        self.jobs.change(self.id, |job| {
            job.state = state;
            job.failure = failure;
        });
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let id = self.id;
        self.jobs.change(id, |job| {
            let message = format!("job {id} broke off; see the server's log");
            job.state = JobState::Failed;
            job.failure = Some(Failure::new(FailureKind::Other, message));
        });
    }
}

#[cfg(test)]
mod tests {
    use api::Unit;

    use super::*;

    fn jobs() -> (Arc<Events>, Arc<Jobs>) {
        let events = Arc::new(Events::default());
        (Arc::clone(&events), Jobs::new(events))
    }

    async fn told(events: &Arc<Events>, count: usize) -> Vec<EventKind> {
        let mut reader = events.reader(Some(0), crate::events::Wanted::Own);
        let mut out = Vec::new();
        for _ in 0..=count {
            out.push(reader.next().await.unwrap().kind);
        }
        out.remove(0);
        assert_eq!(events.last(), count as u64);
        out
    }

    #[tokio::test]
    async fn a_job_begins_stops_on_request_and_ends() {
        let (events, jobs) = jobs();
        let work = jobs.begin(JobKind::Destroy, Some("tank".into()), None, true);
        let id = work.id();
        assert!(!work.is_canceled());
        assert_eq!(jobs.outcome(id).unwrap_err().kind, FailureKind::Busy);
        jobs.cancel(id).unwrap();
        assert!(work.is_canceled());
        work.canceled().await;
        assert_eq!(jobs.get(id).unwrap().state, JobState::Running);
        let failure = Failure::new(FailureKind::Canceled, "stopped on request");
        work.answer(Err(failure.clone()));
        let job = jobs.get(id).unwrap();
        assert_eq!(job.state, JobState::Canceled);
        assert!(job.end_s.is_some());
        assert_eq!(jobs.outcome(id), Err(failure));
        assert_eq!(jobs.cancel(id).unwrap_err().kind, FailureKind::Invalid);
        let [
            EventKind::JobStarted { job: first },
            EventKind::JobFinished { job: last },
        ] = &told(&events, 2).await[..]
        else {
            panic!("other events");
        };
        assert_eq!((first.id, first.sequence), (id, 1));
        assert_eq!((last, last.sequence), (&job, 2));
        assert_eq!(jobs.list(Some("tank")), [job]);
        assert_eq!(jobs.list(Some("other")), []);
    }

    #[tokio::test]
    async fn progress_is_told_now_and_then_and_states_at_once() {
        let (events, jobs) = jobs();
        let work = jobs.begin(JobKind::Scrub, None, None, false);
        let at = |done| Progress {
            done,
            total: 100,
            unit: Unit::Bytes,
        };
        for done in 0..100 {
            work.progress(at(done));
        }
        // Known at once, though not all of it is told.
        assert_eq!(work.job().progress, Some(at(99)));
        assert!(events.last() < 50);
        let before = events.last();
        work.set_paused(true);
        work.set_paused(true);
        assert_eq!(events.last(), before + 1);
        assert_eq!(work.job().state, JobState::Paused);
        let id = work.id();
        assert_eq!(jobs.cancel(id).unwrap_err().kind, FailureKind::Unsupported);
        work.end(JobState::Finished);
        assert_eq!(jobs.get(id).unwrap().state, JobState::Finished);
        assert_eq!(jobs.get(id).unwrap().failure, None);
        assert_eq!(jobs.outcome(id).unwrap_err().kind, FailureKind::NotFound);
    }

    #[tokio::test]
    async fn a_worker_that_panics_leaves_a_job_that_failed() {
        let (_, jobs) = jobs();
        let work = jobs.begin(JobKind::Import, None, None, false);
        let id = work.id();
        drop(work);
        let job = jobs.get(id).unwrap();
        assert_eq!(job.state, JobState::Failed);
        assert!(job.failure.is_some());
    }

    #[tokio::test]
    async fn the_oldest_that_ended_are_forgotten() {
        let (_, jobs) = jobs();
        let running = jobs.begin(JobKind::Free, None, None, false);
        for _ in 0..2 * ENDED_MAX {
            let work = jobs.begin(JobKind::Export, None, None, false);
            work.end(JobState::Finished);
        }
        let listed = jobs.list(None);
        assert_eq!(listed.len(), ENDED_MAX + 1);
        assert_eq!(listed[0].id, running.id());
        assert_eq!(jobs.get(2).unwrap_err().kind, FailureKind::NotFound);
    }
}
