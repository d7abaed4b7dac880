//! `millpond bench`: loads on real storage, by fio.

mod common;
mod log;
mod own;
mod tables;
mod target;
mod unused;

use std::io::Write;
use std::path::{Path, PathBuf};

use ::bench::against::Against;
use ::bench::limits::Asked;
use ::bench::measure::{self, Setup};
use ::bench::progress::Progress;
use ::bench::report::{Note, Report, kept_warm_up};
use ::bench::run::Runner;
use ::bench::streams::Wanted;
use ::bench::warm_up::WarmUp;
use ::bench::{Area, BenchError, Profile, compare, csv, html, job};
use ::plan::amount::{show_bytes, show_seconds};
use ::plan::{Bus, Disks, Layout};
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use tokio::sync::watch;

use common::{Common, check_writable, directory_of, run_until_stopped, tell, write};
use target::Target;

/// Measures storage with loads that people know, by fio.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    what: Option<What>,
    /// The loads: iometer, vmware, sio, bonnie, warm-up or streams (without: what these are)
    #[arg(value_parser = profile)]
    profile: Option<Profile>,
    /// A directory, a disk, a volume's file, iscsi://HOST/TARGET/LUN or nfs://HOST/DIRECTORY
    #[arg(requires = "profile")]
    target: Option<String>,
    /// Seconds that each load is measured for (default: as the profile has it)
    #[arg(long)]
    seconds: Option<u64>,
    /// Seconds within which a load has to be steady before it is measured; 0: not looked at
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    warm_up: u64,
    /// Bytes that the loads go over
    #[arg(long, value_parser = crate::plan::size)]
    size: Option<u64>,
    /// Accesses under way, instead of the profile's: 1,4,16,64
    #[arg(long, value_delimiter = ',', value_name = "DEPTHS",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: Vec<u32>,
    /// Bits or bytes a second of a stream: 10Mbit, 1.25MB
    #[arg(long, value_parser = crate::plan::rate, default_value = "10Mbit", value_name = "RATE")]
    rate: u64,
    /// Bytes of a stream's accesses
    #[arg(long, value_parser = crate::plan::size, default_value = "256K", value_name = "SIZE")]
    block: u64,
    /// Seconds that players and recorders have in their buffers
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    buffer: f64,
    /// Recordings for each that is counted
    #[arg(long, default_value_t = 1, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(0..=64))]
    recordings: u32,
    /// Playbacks for each that is counted
    #[arg(long, default_value_t = 1, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(0..=64))]
    playbacks: u32,
    /// Hours of a warm-up
    #[arg(long, default_value_t = 4.0)]
    hours: f64,
    /// Process of the server whose processor time is told as well
    #[arg(long, value_name = "PID")]
    server: Option<u32>,
    /// Put the planner's figures beside the measured ones
    #[arg(long, value_enum, requires_all = ["disks", "layout"])]
    against: Option<Beside>,
    /// The pool's disks, for the planner: 16x500GB, 16x500GB:hdd:90seeks:72MB/s
    #[arg(long, value_parser = crate::plan::word::<Disks>)]
    disks: Option<Disks>,
    /// Its layout: mirror:7x2, raidz2:2x6, stripe:1
    #[arg(long, value_parser = crate::plan::word::<Layout>)]
    layout: Option<Layout>,
    /// Buses of the disks: pcie3x8, 520MB/350MB:8
    #[arg(long = "bus", value_name = "BUS", value_parser = crate::plan::word::<Bus>)]
    buses: Vec<Bus>,
    /// What the network carries: 1Gbit, 125MB
    #[arg(long, value_name = "RATE", value_parser = crate::plan::rate)]
    network: Option<u64>,
    /// Bytes of a block as it is stored (default: of directories 128K, else the loads')
    #[arg(long, value_name = "SIZE", value_parser = crate::plan::size)]
    record: Option<u64>,
    /// log2 of a sector's size
    #[arg(long, default_value_t = 12)]
    ashift: u32,
    #[command(flatten)]
    common: Common,
    /// Keep the report in a file, to be compared; a warm-up goes on with it
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Beside {
    Plan,
}

/// What else can be done.
#[derive(Debug, Subcommand)]
enum What {
    /// Put two reports side by side
    Compare(Compare),
    /// Tell whether a device may hold an intent log: flushes, synchronous writes, honesty
    Log(log::Log),
}

/// Puts two reports side by side.
#[derive(Debug, Args)]
struct Compare {
    /// A report that --save or --json made
    before: PathBuf,
    /// Another one
    after: PathBuf,
    /// Print JSON, with exact numbers
    #[arg(short, long)]
    json: bool,
}

fn profile(word: &str) -> Result<Profile, String> {
    word.parse().map_err(|error: BenchError| error.to_string())
}

/// Bytes of a record of filesystems, where nobody says otherwise.
const RECORD_BYTES: u64 = 128 << 10;

/// Bytes of the host's memory, also of what this process may not have: a server may.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit.max(1))
}

impl Bench {
    /// Measures and prints.
    pub fn run(mut self) -> anyhow::Result<()> {
        match self.what.take() {
            Some(What::Compare(compare)) => return compare.run(),
            Some(What::Log(log)) => return log.run(),
            None => {}
        }
        let (Some(profile), Some(target)) = (self.profile, self.target.clone()) else {
            if let Some(profile) = self.profile {
                bail!("say what is to be measured, as in `millpond bench {profile} /tank/data`");
            }
            print!("{}", tables::profiles());
            return Ok(());
        };
        let against = self.against()?;
        if let Some(against) = &against {
            against.check()?;
        }
        let asked = Asked {
            profile,
            depths: &self.depth,
            seconds: self.seconds,
            warm_up_seconds: Some(self.warm_up),
            total_seconds: Some(self.total_seconds()),
            stream_rate: Some(self.rate),
        };
        if let Err(why) = asked.check() {
            bail!("{why} (--depth, --seconds, --warm-up, --hours, --rate)");
        }
        if !self.buffer.is_finite() || self.buffer <= 0.0 {
            bail!("--buffer is more than 0");
        }
        if self.recordings + self.playbacks == 0 {
            bail!("streams are recordings or playbacks; one of both is more than 0");
        }
        if self.block < 512 {
            bail!("a stream has a --block of 512 bytes or more");
        }
        self.check_files(profile)?;
        run_until_stopped(|stopped| async move {
            let report = self.measured(profile, &target, stopped).await;
            let Some(mut report) = report? else {
                return Ok(());
            };
            if let Some(against) = against {
                let usual = Path::new(&target).is_dir().then_some(RECORD_BYTES);
                let record_bytes = against.record_bytes.or(usual);
                Against {
                    record_bytes,
                    ..against
                }
                .add_to(&mut report);
            }
            self.told(&report)
        })
    }

    /// Seconds of a warm-up in all. A number that is none is 0, and refused as that.
    fn total_seconds(&self) -> u64 {
        (self.hours * 3600.0).round() as u64
    }

    /// Whether what is found could be written where it is to be.
    fn check_files(&self, profile: Profile) -> anyhow::Result<()> {
        check_writable(self.common.html.as_deref())?;
        check_writable(self.save.as_deref())?;
        let Some(path) = self.save.as_deref().filter(|_| profile == Profile::WarmUp) else {
            return Ok(());
        };
        // It is replaced whole after each part, which a device or pipe must not be.
        if path.exists() && !path.is_file() {
            bail!(
                "{} is no file, and a warm-up goes on with one",
                path.display()
            );
        }
        let made = tempfile::tempfile_in(directory_of(path));
        made.map(drop)
            .with_context(|| format!("{} cannot be replaced, as a warm-up does", path.display()))
    }

    fn against(&self) -> anyhow::Result<Option<Against>> {
        let (Some(Beside::Plan), Some(disks), Some(layout)) =
            (self.against, self.disks.clone(), self.layout)
        else {
            return Ok(None);
        };
        Ok(Some(Against {
            disks,
            layout,
            buses: self.buses.clone(),
            network_rate: self.network,
            record_bytes: self.record,
            ashift: self.ashift,
        }))
    }

    fn told(&self, report: &Report) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(report)?;
        if let Some(path) = &self.save {
            write(path, &json)?;
        }
        if let Some(path) = &self.common.html {
            write(path, &html::of_report(report))?;
        }
        match (self.common.json, self.common.csv) {
            (true, _) => println!("{json}"),
            (_, true) => print!("{}", csv::of_report(report)),
            _ => print!("{}", tables::report(report)),
        }
        Ok(())
    }

    /// Measures; nothing when only job files are to be shown.
    async fn measured(
        &self,
        profile: Profile,
        word: &str,
        stopped: watch::Receiver<bool>,
    ) -> anyhow::Result<Option<Report>> {
        let before = self.kept(profile, word)?;
        let work = tempfile::Builder::new()
            .prefix("millpond-bench-")
            .tempdir()
            .context("a directory for job files")?;
        let runner = Runner::new(&self.common.fio, work.path(), stopped, self.server).await?;
        let kept_set = before
            .as_ref()
            .and_then(|report| Some((report.warm_up.as_ref()?.set.clone()?, report)));
        let mut target = match &kept_set {
            Some((set, report)) => Target::kept(word, Path::new(set), report.area.size_bytes)?,
            None => Target::open(word, self.common.destroy, &runner).await?,
        };
        let kept_set = kept_set.map(|(set, _)| set);
        if let Some(before) = &before {
            if target.is_ours() && kept_set.is_none() {
                bail!("the set of the warm-up did not stay; begin with another file");
            }
            target.take_name(&before.area.place);
        }
        runner.check(target.place())?;
        // After the target, so that it lets go of what it holds before that ends.
        let mut runner = runner.holding(target.held()?);
        let size_bytes = before.as_ref().map(|report| report.area.size_bytes);
        let mut setup = self.setup(profile, &target, size_bytes.or(self.size))?;
        setup.is_filled &= before.is_none();
        if self.common.show {
            for job in self.jobs(&setup)? {
                println!("{job}");
            }
            return Ok(None);
        }
        if setup.is_filled {
            target.set_size(setup.area.size_bytes)?;
        }
        tell(&self.announced(&setup, &target));
        let mut told = |progress: Progress<'_>| tables::progress(progress);
        match profile {
            Profile::Streams => {
                let wanted = self.wanted();
                let report = measure::streams(&setup, wanted, None, &mut runner, &mut told).await;
                Ok(Some(report?))
            }
            Profile::WarmUp => {
                let warm_up = WarmUp {
                    wanted_seconds: self.total_seconds(),
                    parts: Vec::new(),
                    set: match &self.save {
                        Some(_) => kept_set.or_else(|| target.keep()),
                        None => None,
                    },
                };
                self.warmed(&setup, before, warm_up, &mut runner, &mut target)
                    .await
                    .map(Some)
            }
            _ => Ok(Some(setup.measure(&mut runner, &mut told).await?)),
        }
    }

    /// A warm-up that was begun before and goes on.
    fn kept(&self, profile: Profile, word: &str) -> anyhow::Result<Option<Report>> {
        let Some(path) = self.save.as_ref().filter(|_| profile == Profile::WarmUp) else {
            return Ok(None);
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let name = path.display().to_string();
        let report = kept_warm_up(&name, &text)?;
        if report.target != word {
            bail!(
                "'{name}' is a warm-up of {}, and not of {word}; name another file",
                report.target
            );
        }
        let is_done = report.warm_up.as_ref().is_some_and(|done| {
            let done = WarmUp {
                wanted_seconds: self.total_seconds(),
                ..done.clone()
            };
            done.is_done()
        });
        if is_done {
            bail!("the warm-up in '{name}' is done; name another file, or more --hours");
        }
        Ok(Some(report))
    }

    async fn warmed(
        &self,
        setup: &Setup,
        before: Option<Report>,
        warm_up: WarmUp,
        runner: &mut Runner,
        target: &mut Target,
    ) -> anyhow::Result<Report> {
        let set = warm_up.set.clone();
        let mut told = |progress: Progress<'_>| tables::progress(progress);
        let mut keep = |report: &Report| match &self.save {
            Some(path) => saved(path, report),
            None => Ok(()),
        };
        let done = measure::warm_up(setup, before, warm_up, &mut keep, runner, &mut told).await;
        match (done, &self.save) {
            (Ok(mut report), _) => {
                // All is done: what was kept for it goes.
                target.forget();
                if let Some(warm_up) = &mut report.warm_up {
                    warm_up.set = None;
                }
                Ok(report)
            }
            (Err(BenchError::Stopped), Some(path)) if path.exists() => {
                let set = set.map_or_else(String::new, |set| format!("; the set stays in {set}"));
                bail!(
                    "stopped; the same command with --save {} goes on{set}",
                    path.display()
                )
            }
            (Err(error), _) => {
                if !self.save.as_ref().is_some_and(|path| path.exists()) {
                    target.forget();
                }
                Err(error.into())
            }
        }
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            rate: self.rate,
            block_bytes: self.block,
            buffer_seconds: self.buffer,
            recordings: self.recordings,
            playbacks: self.playbacks,
        }
    }

    fn setup(
        &self,
        profile: Profile,
        target: &Target,
        size_bytes: Option<u64>,
    ) -> anyhow::Result<Setup> {
        let memory_bytes = memory_bytes();
        let size_bytes = target.size_bytes(size_bytes, profile.size_bytes(memory_bytes))?;
        let mut notes = Vec::new();
        let mut tests = profile.tests(&self.depth);
        if target.is_read_only() {
            let all = tests.len();
            tests.retain(|test| !test.writes());
            let writes = profile == Profile::Streams && self.recordings > 0;
            if writes || tests.is_empty() && profile != Profile::Streams {
                return Err(BenchError::NothingToRead {
                    target: target.name().to_owned(),
                }
                .into());
            }
            let left_out = all - tests.len();
            if left_out > 0 {
                notes.push(Note::ReadOnly { left_out });
            }
            notes.push(Note::NotFilled);
        }
        if let Some(whole_bytes) = target.whole_bytes().filter(|whole| *whole > size_bytes) {
            notes.push(Note::Part {
                size_bytes,
                whole_bytes,
            });
        }
        if !target.is_direct() {
            notes.push(Note::PageCache);
        }
        if size_bytes < memory_bytes && target.has_cache() {
            notes.push(Note::InMemory {
                size_bytes,
                memory_bytes,
            });
        }
        let is_steady_asked = !matches!(profile, Profile::WarmUp | Profile::Streams);
        Ok(Setup {
            target: target.name().to_owned(),
            area: Area {
                place: target.place().clone(),
                size_bytes,
                is_read_only: target.is_read_only(),
            },
            profile,
            tests,
            times: job::Times {
                seconds: self.seconds.unwrap_or_else(|| profile.seconds()),
                warm_up_seconds: if is_steady_asked { self.warm_up } else { 0 },
            },
            is_filled: !target.is_read_only(),
            notes,
        })
    }

    /// The job files, as text.
    fn jobs(&self, setup: &Setup) -> anyhow::Result<Vec<String>> {
        let mut jobs = setup.jobs()?;
        if setup.profile == Profile::Streams {
            let one = self.wanted().job(1);
            jobs.push(job::streams(&setup.area, &one, setup.times.seconds)?);
        }
        Ok(jobs.iter().map(|job| job.text().to_owned()).collect())
    }

    /// What is about to be done.
    fn announced(&self, setup: &Setup, target: &Target) -> String {
        let size = show_bytes(setup.area.size_bytes);
        let longest = match setup.profile {
            Profile::WarmUp => self.total_seconds(),
            _ => setup.seconds_max(),
        };
        let time = match longest {
            0 => String::new(),
            seconds => format!(" Up to {}.", show_seconds(seconds as f64)),
        };
        format!(
            "{}.{time} Others who use it will notice. Ctrl-C stops at once.",
            target.announced(&size)
        )
    }
}

impl Compare {
    fn run(self) -> anyhow::Result<()> {
        let read = |path: &Path| {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(|| name.clone())?;
            anyhow::Ok(compare::read(&name, &text)?)
        };
        let (before, after) = (read(&self.before)?, read(&self.after)?);
        let told = compare::compare(&before, &after);
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&told)?),
            false => print!("{}", tables::comparison(&told)),
        }
        Ok(())
    }
}

/// Writes a report so that it is there whole, before or after.
fn saved(path: &Path, report: &Report) -> Result<(), BenchError> {
    let ours = |source| BenchError::File {
        path: path.display().to_string(),
        source,
    };
    let text = serde_json::to_string_pretty(report).map_err(|error| ours(error.into()))?;
    let mut file = tempfile::NamedTempFile::new_in(directory_of(path)).map_err(ours)?;
    file.write_all(text.as_bytes()).map_err(ours)?;
    file.persist(path).map_err(|error| ours(error.error))?;
    Ok(())
}
