//! A profile from its first job to its report.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::fio::Steady;
use crate::job::{self, JobFile, MEASURED, PLAYBACK, RECORDING, Times, WARM_UP};
use crate::log::curve;
use crate::progress::{Listener, Progress};
use crate::report::{KIND, Measured, Note, Report};
use crate::run::{Ran, Runner};
use crate::stats::{half_interval, worst_lag_seconds};
use crate::streams::{Search, StreamsFound, Try, Wanted};
use crate::warm_up::{Part, WarmUp};
use crate::{Area, BenchError, Profile, Test};

/// A profile on a target: all that a run needs.
#[derive(Debug, Clone)]
pub struct Setup {
    /// As it was named.
    pub target: String,
    /// The range that the loads go over.
    pub area: Area,
    /// Which loads.
    pub profile: Profile,
    /// They themselves.
    pub tests: Vec<Test>,
    /// For how long.
    pub times: Times,
    /// The area is written before, so that no read finds a hole.
    pub is_filled: bool,
    /// Notes that are known before anything is measured.
    pub notes: Vec<Note>,
}

impl Setup {
    /// The job files of its loads, and of what comes before them.
    ///
    /// # Errors
    /// A path that cannot be told.
    pub fn jobs(&self) -> Result<Vec<JobFile>, BenchError> {
        let mut jobs = Vec::new();
        if self.is_filled {
            jobs.push(job::fill(&self.area)?);
        }
        for (number, test) in self.tests.iter().enumerate() {
            jobs.push(self.job(number, test)?);
        }
        Ok(jobs)
    }

    fn job(&self, number: usize, test: &Test) -> Result<JobFile, BenchError> {
        job::test(&self.area, test, self.times, number as u64 + 1)
    }

    /// Seconds that it takes at most, without filling.
    pub fn seconds_max(&self) -> u64 {
        let of = |test: &Test| match test.is_whole {
            // Nobody knows.
            true => 0,
            false if self.times.warms_up() => self.times.warm_up_seconds + self.times.seconds,
            false => self.times.seconds,
        };
        self.tests.iter().map(of).sum()
    }

    /// A report without figures.
    pub fn report(&self, runner: &Runner) -> Report {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Report {
            kind: KIND.to_owned(),
            fio: runner.version().to_owned(),
            began: since.map_or(0, |since| since.as_secs()),
            target: self.target.clone(),
            profile: self.profile,
            area: self.area.clone(),
            times: self.times,
            notes: self.notes.clone(),
            tests: Vec::new(),
            streams: None,
            warm_up: None,
            jobs: Vec::new(),
        }
    }

    /// Writes the area, if that is wanted.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub async fn fill(&self, runner: &mut Runner, tell: Listener<'_>) -> Result<(), BenchError> {
        if self.is_filled {
            let bytes = self.area.size_bytes;
            tell(Progress::Filling { bytes });
            runner.run(&job::fill(&self.area)?).await?;
        }
        Ok(())
    }

    /// Measures all loads.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub async fn measure(
        &self,
        runner: &mut Runner,
        tell: Listener<'_>,
    ) -> Result<Report, BenchError> {
        let mut report = self.report(runner);
        self.fill(runner, tell).await?;
        for (number, test) in self.tests.iter().enumerate() {
            tell(Progress::Begun {
                test,
                number: number + 1,
                count: self.tests.len(),
            });
            let job = self.job(number, test)?;
            let ran = runner.run(&job).await?;
            let measured = measured(test, &ran, self.times)?;
            tell(Progress::Measured(&measured));
            report.tests.push(measured);
            report.jobs.push(job.text().to_owned());
        }
        report.notes.extend(Note::of_tests(&report.tests));
        Ok(report)
    }
}

/// A load as fio ran it.
///
/// # Errors
/// Its output or logs cannot be read.
pub fn measured(test: &Test, ran: &Ran, times: Times) -> Result<Measured, BenchError> {
    let log = |name: &str| -> Result<_, BenchError> {
        Ok(curve(
            &ran.log(&format!("{name}_iops.log"))?,
            times.step_ms(),
        ))
    };
    let output = &ran.output;
    let mut out = Measured::of(test, output.job(MEASURED)?);
    out.points = log(MEASURED)?;
    if !test.is_whole {
        let samples: Vec<f64> = out.points.iter().map(|point| point.iops).collect();
        out.iops_error = half_interval(&samples);
    }
    if let Ok(warm_up) = output.job(WARM_UP) {
        let ran_ms = warm_up.read.runtime.max(warm_up.write.runtime);
        out.warm_up_seconds = ran_ms as f64 / 1000.0;
        out.is_steady = warm_up.steadystate.as_ref().map(Steady::is_attained);
        out.before = log(WARM_UP)?;
    }
    let gigabytes = output.bytes() as f64 / 1e9;
    let server = ran.server_cpu_seconds.map(|seconds| seconds / gigabytes);
    out.server_cpu_per_gb = server.filter(|seconds| seconds.is_finite());
    Ok(out)
}

/// Looks for the most streams.
///
/// # Errors
/// As [`Runner::run`]; the area has no room for one.
pub async fn streams(
    setup: &Setup,
    wanted: Wanted,
    planned: Option<u32>,
    runner: &mut Runner,
    tell: Listener<'_>,
) -> Result<Report, BenchError> {
    let mut report = setup.report(runner);
    setup.fill(runner, tell).await?;
    let mut search = Search::new(wanted.count_max(setup.area.size_bytes).max(1));
    let mut tries = Vec::new();
    while let Some(count) = search.next() {
        tell(Progress::Streams { count });
        let job = job::streams(&setup.area, &wanted.job(count), setup.times.seconds)?;
        let ran = runner.run(&job).await?;
        let one = tried(count, &wanted, &ran, setup.times.seconds as f64)?;
        tell(Progress::StreamsRan(&one));
        search.tried(count, one.has_gap);
        tries.push(one);
        report.jobs.push(job.text().to_owned());
    }
    report.streams = Some(StreamsFound {
        wanted,
        most: search.found(),
        is_at_limit: tries.iter().all(|one| !one.has_gap),
        planned,
        tries,
    });
    Ok(report)
}

fn tried(count: u32, wanted: &Wanted, ran: &Ran, seconds: f64) -> Result<Try, BenchError> {
    let worst = |name: &str| -> Result<Option<f64>, BenchError> {
        let logs = ran.logs(name, "lat")?;
        let lags = logs
            .iter()
            .map(|log| worst_lag_seconds(log, wanted.rate, seconds));
        Ok(lags.reduce(f64::max))
    };
    let (recording, playback) = (worst(RECORDING)?, worst(PLAYBACK)?);
    let lag = recording.unwrap_or(0.0).max(playback.unwrap_or(0.0));
    Ok(Try {
        count,
        recording_lag_seconds: recording,
        playback_lag_seconds: playback,
        rate: ran.output.bytes() as f64 / seconds,
        has_gap: lag > wanted.buffer_seconds,
    })
}

/// Reads until all that is wanted is done. `keep` is called after each part.
///
/// # Errors
/// As [`Runner::run`]; what `keep` says.
pub async fn warm_up(
    setup: &Setup,
    before: Option<Report>,
    warm_up: WarmUp,
    keep: &mut (dyn FnMut(&Report) -> Result<(), BenchError> + Send),
    runner: &mut Runner,
    tell: Listener<'_>,
) -> Result<Report, BenchError> {
    let mut report = match before {
        Some(report) => Report {
            notes: setup.notes.clone(),
            ..report
        },
        None => {
            let mut report = setup.report(runner);
            setup.fill(runner, tell).await?;
            report.warm_up = Some(warm_up.clone());
            keep(&report)?;
            report
        }
    };
    let mut done = WarmUp {
        parts: report
            .warm_up
            .map(|before| before.parts)
            .unwrap_or_default(),
        ..warm_up
    };
    let test = &setup.tests[0];
    while let Some(seconds) = done.next_seconds(setup.times.seconds) {
        let times = Times {
            seconds,
            warm_up_seconds: 0,
        };
        // Other places than in the parts before.
        let seed = done.parts.len() as u64 + 1;
        let job = job::test(&setup.area, test, times, seed)?;
        let ran = runner.run(&job).await?;
        let one = measured(test, &ran, times)?;
        let part = Part {
            at_seconds: done.done_seconds() + one.seconds,
            iops: one.iops,
            mean_ms: one.mean_ms(),
        };
        tell(Progress::Warmed(&part));
        done.parts.push(part);
        report.tests = vec![one];
        report.jobs = vec![job.text().to_owned()];
        report.warm_up = Some(done.clone());
        keep(&report)?;
    }
    report.warm_up = Some(done);
    Ok(report)
}
