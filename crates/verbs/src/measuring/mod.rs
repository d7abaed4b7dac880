//! Measurements (crate `bench`): loads that fio runs below a dataset, while the pool is in use.
//!
//! There is one at a time. What it will do to the pool is found out first (module `planned`), and
//! told to who asks; what takes more than half of what is available is refused. Loads go over a
//! dataset of their own (module `set`), which is destroyed when all is done, when somebody cancels
//! the job, when it takes longer than it was told to, and when the server leaves. fio's processes
//! are killed before that, all of them at once ([`bench::run`]). Reports are kept (module `kept`),
//! with the planner's figures where the pool is something that it knows (module `expected`).
//!
//! Directory `bench/` of the state directory, its owner's alone: `sets.json`, `reports.json` and
//! `report-*.json`, `run/` with job files and logs of the run that is under way, and `mnt/`, where
//! its filesystem is mounted.
//!
//! Locks: `turn` is had while something is measured; a pool's `admin` lock comes after it. The one
//! of `running` is short.

mod expected;
mod kept;
mod planned;
mod set;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{
    BenchCompare, BenchGet, BenchGetReply, BenchListReply, BenchLoads, BenchLook, BenchLookReply,
    BenchProfilesReply, BenchProgressReply, BenchRemove, BenchRun, BenchRunReply, BenchRunning,
    BenchStep, BenchWanted, Empty, EventKind, Failure, FailureKind, Progress, Unit,
};
use bench::against::Against;
use bench::compare::Comparison;
use bench::measure::{self, Setup};
use bench::progress::Progress as Step;
use bench::report::Note;
use bench::run::{self, Runner};
use bench::streams::StreamsFound;
use bench::warm_up::WarmUp;
use bench::{Area, BenchError, Place, Profile, Report};
use device::{BoxFuture, private};
use parking_lot::Mutex;
use tokio::sync::watch;

use kept::Kept;
use planned::{NO_FIO, Planned, STREAM_TRIES};
use service::error::and_back;
use service::events::Wanted;
use service::jobs::Work;
use serving::Serving;
use set::{Left, Set};

/// How long a measurement may take to end when the server leaves.
const LAST_RUN: Duration = Duration::from_secs(30);

/// What measures, and what is kept of it.
pub struct Bench {
    serving: Arc<Serving>,
    directory: PathBuf,
    left: Left,
    kept: Kept,
    turn: tokio::sync::Mutex<()>,
    running: Mutex<Option<BenchRunning>>,
    /// Whether the server leaves.
    leaving: watch::Sender<bool>,
}

/// Why a measurement ends before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Asked,
    Leaving,
    Late,
}

impl Ended {
    fn failure(self, doing: &str) -> Failure {
        let (kind, why) = match self {
            Self::Asked => (FailureKind::Canceled, "stopped on request"),
            Self::Leaving => (FailureKind::Canceled, "the server leaves"),
            Self::Late => (
                FailureKind::Other,
                "it took longer than it was to take at most, and was ended; the pool is slow, or \
                 does not answer",
            ),
        };
        Failure::new(kind, format!("{doing}: {why}"))
    }
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn failure(doing: &str, error: &BenchError) -> Failure {
    let kind = match error {
        BenchError::NoFio { .. } => {
            return Failure::new(FailureKind::Unsupported, format!("{doing}: {NO_FIO}"));
        }
        BenchError::NoEngine { .. } | BenchError::NoSetpriv => FailureKind::Unsupported,
        BenchError::Path { .. } | BenchError::Word { .. } => FailureKind::Invalid,
        BenchError::Stopped => FailureKind::Canceled,
        BenchError::Run { .. } | BenchError::Failed { .. } | BenchError::File { .. } => {
            FailureKind::Io
        }
        _ => FailureKind::Other,
    };
    Failure::new(kind, format!("{doing}: {error}"))
}

impl Bench {
    /// What a state directory has kept. Nothing is measured yet.
    pub fn load(state: &Path, serving: Arc<Serving>) -> Arc<Self> {
        let directory = state.join("bench");
        Arc::new(Self {
            serving,
            left: Left::load(&directory),
            kept: Kept::load(&directory),
            directory,
            turn: tokio::sync::Mutex::default(),
            running: Mutex::default(),
            leaving: watch::Sender::new(false),
        })
    }

    /// The loads that can be run.
    pub fn profiles(&self) -> BenchProfilesReply {
        let memory_bytes = host::memory_bytes();
        let of = |profile: Profile| BenchLoads {
            profile,
            title: profile.title().to_owned(),
            loads: match profile {
                Profile::Streams => None,
                _ => Some(profile.tests(&[]).len() as u64),
            },
            has_depths: !matches!(profile, Profile::Bonnie | Profile::Streams),
            seconds: profile.seconds(),
            size_bytes: profile.size_bytes(memory_bytes),
        };
        let fio = run::find("fio");
        BenchProfilesReply {
            profiles: Profile::ALL.into_iter().map(of).collect(),
            problem: fio.is_none().then(|| NO_FIO.to_owned()),
            fio: fio.map(|path| path.to_string_lossy().into_owned()),
        }
    }

    /// What a measurement would do.
    ///
    /// # Errors
    /// It would be refused.
    pub fn look(&self, call: BenchLook) -> BoxFuture<'_, Result<BenchLookReply, Failure>> {
        Box::pin(async move {
            Ok(planned::plan(&self.serving.pools, &call.wanted)
                .await?
                .1
                .told)
        })
    }

    /// What is being measured.
    pub fn progress(&self) -> BenchProgressReply {
        BenchProgressReply {
            running: self.running.lock().clone(),
        }
    }

    /// The reports that are kept.
    pub fn list(&self) -> BenchListReply {
        self.kept.list()
    }

    /// One of them.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn get(&self, call: &BenchGet) -> Result<BenchGetReply, Failure> {
        self.kept.get(call.id)
    }

    /// Forgets one of them.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn remove(&self, call: &BenchRemove) -> Result<Empty, Failure> {
        self.kept.remove(call.id)
    }

    /// Two of them side by side.
    ///
    /// # Errors
    /// There is none of a number.
    pub fn compare(&self, call: &BenchCompare) -> Result<Comparison, Failure> {
        self.kept.compare(call.before, call.after)
    }

    /// Measures, and keeps the report.
    ///
    /// # Errors
    /// Something is measured already; it would be refused; fio is not there, or fails; stopped on
    /// request, or because it took too long.
    pub fn run<'a>(
        &'a self,
        call: BenchRun,
        work: &'a Work,
    ) -> BoxFuture<'a, Result<BenchRunReply, Failure>> {
        Box::pin(async move {
            let wanted = call.wanted;
            let doing = format!("cannot measure '{}'", wanted.dataset);
            let failed = |kind, why: &str| Failure::new(kind, format!("{doing}: {why}"));
            let Ok(_turn) = self.turn.try_lock() else {
                let why = "another measurement is under way; wait for it, or cancel its job";
                return Err(failed(FailureKind::Busy, why));
            };
            if *self.leaving.borrow() {
                return Err(Ended::Leaving.failure(&doing));
            }
            let (open, planned) = planned::plan(&self.serving.pools, &wanted).await?;
            let Some(program) = run::find("fio") else {
                return Err(failed(FailureKind::Unsupported, NO_FIO));
            };
            self.take_leftovers_away().await;
            let began_s = now_s();
            let _shown = Shown::new(
                self,
                BenchRunning {
                    job: work.id(),
                    wanted: wanted.clone(),
                    began_s,
                    until_s: began_s + planned.told.seconds_max,
                    step: BenchStep::Making,
                    report: None,
                },
            );
            let files = self.directory.join("run");
            let files = Scratch::new(files.clone()).map_err(|error| {
                let why = format!("{}: {error}", files.display());
                failed(FailureKind::Io, &why)
            })?;
            // Before hours are spent on what cannot be kept.
            self.kept.check()?;
            let (stop, stopped) = watch::channel(false);
            let server = Some(std::process::id());
            let runner = Runner::new(&program, &files.0, stopped, server).await;
            let runner = runner.map_err(|error| failure(&doing, &error))?;
            let mountpoint = self.directory.join("mnt");
            let set = set::make(
                &self.serving,
                &open,
                &self.left,
                &wanted,
                &mountpoint,
                planned.told.size_bytes,
                planned.block_bytes,
            );
            let Set {
                name,
                word,
                place,
                held,
            } = Box::pin(set).await?;
            // It may leave meanwhile.
            drop(open);
            let mut runner = runner.holding(Some(held));
            let done = self
                .until_ended(&doing, &wanted, &planned, &place, &mut runner, work, &stop)
                .await;
            self.show(|running| running.step = BenchStep::Ending);
            // With what it holds, nothing could be unmounted.
            drop(runner);
            let gone = Box::pin(set::take_away(&self.serving, &self.left, &name, &word)).await;
            let report = match done {
                Ok(report) => report,
                Err(failure) => return and_back(Err(failure), gone),
            };
            let id = self.kept.keep(wanted, report)?;
            let warnings = gone.err().map(|failure| failure.message);
            Ok(BenchRunReply {
                id,
                warnings: warnings.into_iter().collect(),
            })
        })
    }

    /// Measures until all is done, or has to end.
    async fn until_ended(
        &self,
        doing: &str,
        wanted: &BenchWanted,
        planned: &Planned,
        place: &Place,
        runner: &mut Runner,
        work: &Work,
        stop: &watch::Sender<bool>,
    ) -> Result<Report, Failure> {
        let longest = Duration::from_secs(planned.told.seconds_max);
        let mut leaving = self.leaving.subscribe();
        let leaves = async {
            // Its sender is this one's, and stays.
            let _ = leaving.wait_for(|leaving| *leaving).await;
        };
        let ending = async {
            tokio::select! {
                () = work.canceled() => Ended::Asked,
                () = leaves => Ended::Leaving,
                () = tokio::time::sleep(longest) => Ended::Late,
            }
        };
        let measuring = self.measured(wanted, planned, place, runner, work);
        let mut measuring = std::pin::pin!(measuring);
        let done = tokio::select! {
            biased;
            ended = ending => Err(ended),
            done = &mut measuring => Ok(done),
        };
        match done {
            Ok(done) => done.map_err(|error| failure(doing, &error)),
            Err(ended) => {
                stop.send_replace(true);
                match measuring.await {
                    Ok(report) => Ok(report),
                    Err(BenchError::Stopped) => Err(ended.failure(doing)),
                    Err(error) => Err(failure(doing, &error)),
                }
            }
        }
    }

    /// Has fio measure.
    async fn measured(
        &self,
        wanted: &BenchWanted,
        planned: &Planned,
        place: &Place,
        runner: &mut Runner,
        work: &Work,
    ) -> Result<Report, BenchError> {
        runner.check(place)?;
        let setup = setup(wanted, planned, place);
        let root = planned.root.clone();
        let block_bytes = planned.block_bytes;
        let against = serve_fuse::aside(move || expected::against(&root, block_bytes)).await;
        let mut so_far = setup.report(runner);
        if wanted.profile == Profile::WarmUp {
            so_far.warm_up = Some(warm_up(planned));
        }
        self.show(|running| running.report = Some(so_far));
        let mut tell = |step: Step<'_>| self.told(step, planned, against.as_ref(), work);
        let report = match wanted.profile {
            Profile::Streams => {
                let streams = planned.streams;
                measure::streams(&setup, streams, None, runner, &mut tell).await?
            }
            Profile::WarmUp => {
                setup.fill(runner, &mut tell).await?;
                self.show(|running| {
                    running.step = BenchStep::Warming {
                        done_seconds: 0,
                        total_seconds: planned.total_seconds,
                    };
                });
                let setup = Setup {
                    is_filled: false,
                    ..setup
                };
                let mut keep = |_: &Report| Ok::<(), BenchError>(());
                let warm_up = warm_up(planned);
                measure::warm_up(&setup, None, warm_up, &mut keep, runner, &mut tell).await?
            }
            _ => setup.measure(runner, &mut tell).await?,
        };
        Ok(with_plan(report, against.as_ref()))
    }

    /// Shows a step to those who watch.
    fn told(&self, step: Step<'_>, planned: &Planned, against: Option<&Against>, work: &Work) {
        let mut done = None;
        self.show(|running| {
            if let Some(report) = &mut running.report {
                add(report, step, planned);
                if let Some(against) = against {
                    against.add_to(report);
                }
                done = Some(done_of(report, step, planned));
            }
            if let Some(step) = shown(step, running.report.as_ref(), planned) {
                running.step = step;
            }
        });
        if let Some((done, total)) = done {
            work.progress(Progress {
                done,
                total,
                unit: Unit::Loads,
            });
        }
    }

    fn show(&self, change: impl FnOnce(&mut BenchRunning)) {
        if let Some(running) = self.running.lock().as_mut() {
            change(running);
        }
    }

    /// Destroys datasets that measurements left which broke off.
    async fn take_leftovers_away(&self) {
        for (name, word) in self.left.all() {
            let gone = set::take_away(&self.serving, &self.left, &name, &word);
            if let Err(failure) = Box::pin(gone).await {
                tracing::warn!("{failure}; it is tried again before the next measurement");
            }
        }
    }

    /// Ends what is under way, as the server leaves.
    pub async fn stop(&self) {
        self.leaving.send_replace(true);
        if tokio::time::timeout(LAST_RUN, self.turn.lock())
            .await
            .is_err()
        {
            tracing::warn!("a measurement does not end; the next start destroys its dataset");
        }
    }
}

/// Destroys what measurements left which broke off, now and when pools come.
pub async fn follow(weak: Weak<Bench>) {
    let Some(bench) = weak.upgrade() else {
        return;
    };
    let mut reader = bench.serving.events.reader(None, Wanted::Own);
    drop(bench);
    loop {
        let Some(bench) = weak.upgrade() else {
            return;
        };
        // While something is measured, that is on the list; what else is there goes later.
        if let Ok(_turn) = bench.turn.try_lock() {
            bench.take_leftovers_away().await;
        }
        drop(bench);
        loop {
            let Some(event) = reader.next().await else {
                return;
            };
            if matches!(
                event.kind,
                EventKind::PoolImported(_) | EventKind::PoolResumed(_)
            ) {
                break;
            }
        }
    }
}

/// What is shown to those who watch, until this is dropped.
struct Shown<'a>(&'a Bench);

impl<'a> Shown<'a> {
    fn new(bench: &'a Bench, running: BenchRunning) -> Self {
        *bench.running.lock() = Some(running);
        Shown(bench)
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        *self.0.running.lock() = None;
    }
}

/// A directory of ours, which is taken away with this.
struct Scratch(PathBuf);

impl Scratch {
    /// An empty one, whatever a crash left there.
    fn new(directory: PathBuf) -> std::io::Result<Self> {
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        private::make_directory(&directory)?;
        Ok(Self(directory))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, "{} stays", self.0.display());
        }
    }
}

fn warm_up(planned: &Planned) -> WarmUp {
    WarmUp {
        wanted_seconds: planned.total_seconds,
        parts: Vec::new(),
        set: None,
    }
}

fn setup(wanted: &BenchWanted, planned: &Planned, place: &Place) -> Setup {
    let size_bytes = planned.told.size_bytes;
    let memory_bytes = host::memory_bytes();
    let mut notes = Vec::new();
    if matches!(place, Place::File { is_direct, .. } if !is_direct) {
        notes.push(Note::PageCache);
    }
    if size_bytes < memory_bytes {
        notes.push(Note::InMemory {
            size_bytes,
            memory_bytes,
        });
    }
    Setup {
        target: wanted.dataset.clone(),
        area: Area {
            place: place.clone(),
            size_bytes,
            is_read_only: false,
        },
        profile: wanted.profile,
        tests: planned.told.tests.clone(),
        times: planned.times,
        is_filled: true,
        notes,
    }
}

fn with_plan(mut report: Report, against: Option<&Against>) -> Report {
    if let Some(against) = against {
        against.add_to(&mut report);
    }
    report
}

/// Adds what a step found to what was found before.
fn add(report: &mut Report, step: Step<'_>, planned: &Planned) {
    match step {
        Step::Measured(one) => report.tests.push(one.clone()),
        Step::StreamsRan(one) => {
            let found = report.streams.get_or_insert_with(|| StreamsFound {
                wanted: planned.streams,
                most: 0,
                is_at_limit: true,
                planned: None,
                tries: Vec::new(),
            });
            match one.has_gap {
                true => found.is_at_limit = false,
                false => found.most = found.most.max(one.count),
            }
            found.tries.push(*one);
        }
        Step::Warmed(part) => {
            if let Some(warm_up) = &mut report.warm_up {
                warm_up.parts.push(*part);
            }
        }
        _ => {}
    }
}

/// How much of a measurement is done, and of how much: the writing of what loads go over is one.
fn done_of(report: &Report, step: Step<'_>, planned: &Planned) -> (u64, u64) {
    let filled = u64::from(!matches!(step, Step::Filling { .. }));
    let tries = report.streams.as_ref().map_or(0, |found| found.tries.len());
    let parts = report.warm_up.as_ref().map_or(0, |found| found.parts.len());
    let done = (report.tests.len() + tries + parts) as u64;
    let total = match report.profile {
        Profile::Streams => STREAM_TRIES,
        Profile::WarmUp => planned.total_seconds.div_ceil(planned.times.seconds.max(1)),
        _ => planned.told.tests.len() as u64,
    };
    (filled + done, 1 + total.max(done))
}

/// What a step is to those who watch; none where it ends one.
fn shown(step: Step<'_>, report: Option<&Report>, planned: &Planned) -> Option<BenchStep> {
    let warming = |report: &Report| BenchStep::Warming {
        done_seconds: report
            .warm_up
            .as_ref()
            .map_or(0, |warm_up| warm_up.done_seconds().round() as u64),
        total_seconds: planned.total_seconds,
    };
    match step {
        Step::Filling { .. } => Some(BenchStep::Filling),
        Step::Begun {
            test,
            number,
            count,
        } => Some(BenchStep::Load {
            name: test.to_string(),
            number: number as u64,
            count: count as u64,
        }),
        Step::Streams { count } => Some(BenchStep::Streams { count }),
        Step::Warmed(_) => report.map(warming),
        _ => None,
    }
}
