//! Whether a device may hold an intent log: how long its flushes take, how many synchronous writes
//! it keeps up for minutes, and whether it tells the truth when it says that data is safe.
//!
//! A log device that answers a flush before the data is on its medium is fast and loses the writes
//! of the last moment, which were acknowledged, when the power goes. No host can see inside a
//! device; but a flush cannot be faster than the medium, unless nothing has to reach it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::job::{self, Flushes, JobFile, MEASURED, Times};
use crate::log::{Point, curve};
use crate::progress::{Listener, Progress};
use crate::protected::{Protection, known};
use crate::report::Answers;
use crate::run::Runner;
use crate::stats::{half_interval, mean};
use crate::{Area, BenchError};

/// The kind that such a report names.
pub const KIND: &str = "millpond bench log";

/// The medium that keeps a device's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// Disks that turn.
    Hdd,
    /// Flash, or what says that it does not turn.
    Ssd,
    /// Something that another system, or this one, makes up of something else.
    Virtual,
}

/// A device, as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Its name: `sda`.
    pub name: String,
    /// Its model, where it has one.
    pub model: Option<String>,
    /// Its medium.
    pub medium: Medium,
    /// Whether it says that it has a volatile cache, so that flushes are sent to it; `None` where
    /// the kernel does not tell.
    pub has_volatile_cache: Option<bool>,
}

/// Names of devices that are made up of others.
const MADE_UP: [&str; 10] = [
    "loop", "ram", "zram", "vd", "xvd", "dm-", "md", "nbd", "rbd", "ublk",
];
/// Words in the vendors and models of hypervisors' disks.
const HYPERVISORS: [&str; 5] = ["QEMU", "VMware", "VBOX", "Virtual", "Xen"];

impl Facts {
    /// Of the block device with these numbers, or the one that a partition is on; `sys` is `/sys`.
    /// `None` where there is none.
    pub fn read(sys: &Path, major: u32, minor: u32) -> Option<Self> {
        let link = sys.join(format!("dev/block/{major}:{minor}"));
        let mut directory = std::fs::canonicalize(link).ok()?;
        if directory.join("partition").exists() {
            directory.pop();
        }
        let name = directory.file_name()?.to_string_lossy().into_owned();
        let text = |path: &str| {
            let text = std::fs::read_to_string(directory.join(path)).ok()?;
            let text = text.trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let model = text("device/model");
        let vendor = text("device/vendor").unwrap_or_default();
        let is_of_hypervisor = HYPERVISORS.iter().any(|word| {
            vendor.contains(word) || model.as_ref().is_some_and(|model| model.contains(word))
        });
        let is_made_up = MADE_UP.iter().any(|begin| name.starts_with(begin));
        let medium = match text("queue/rotational").as_deref() {
            _ if is_made_up || is_of_hypervisor => Medium::Virtual,
            Some("1") => Medium::Hdd,
            _ => Medium::Ssd,
        };
        // Documentation/ABI/stable/sysfs-block: "write back" or "write through".
        let cache = text("queue/write_cache");
        Some(Facts {
            name,
            model,
            medium,
            has_volatile_cache: cache.map(|cache| cache == "write back"),
        })
    }
}

/// A step of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Bytes of a write.
    pub block_bytes: u64,
    /// How many write at the same time.
    pub writers: u32,
    /// Whether each waits for a flush.
    pub flushes: Flushes,
    /// For so many seconds.
    pub seconds: u64,
}

/// The figures of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stepped {
    /// Which.
    #[serde(flatten)]
    pub step: Step,
    /// Writes a second.
    pub iops: f64,
    /// Half of the interval in which the true figure is with 95 % confidence.
    pub iops_error: Option<f64>,
    /// Bytes a second.
    pub rate: f64,
    /// Times of the writes without their flushes.
    pub writes: Option<Answers>,
    /// Times of the flushes.
    pub flushed: Option<Answers>,
    /// Writes a second over time.
    pub points: Vec<Point>,
}

/// All of the test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogReport {
    /// [`KIND`].
    pub kind: String,
    /// `fio-3.33`.
    pub fio: String,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// The target, as it was named.
    pub target: String,
    /// The device, as the kernel describes it; `None` where there is none.
    pub facts: Option<Facts>,
    /// The steps, in order.
    pub steps: Vec<Stepped>,
    /// Conclusions from the steps.
    pub findings: Vec<Finding>,
    /// All in all.
    pub verdict: Verdict,
    /// Job files that made the figures, in order.
    pub jobs: Vec<String>,
}

/// All in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Acknowledged writes are safe, as far as its maker and its times tell.
    Safe,
    /// It may be, or not: nothing that can be measured tells.
    Unknown,
    /// It says that data is safe which is not.
    Unsafe,
}

impl Verdict {
    /// A sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Verdict::Safe => "Nothing here speaks against an intent log on it.",
            Verdict::Unknown => {
                "Nothing here tells whether what it acknowledges is safe. Ask its maker whether it \
                 has power-loss protection before it holds an intent log."
            }
            Verdict::Unsafe => {
                "It should not hold an intent log: it acknowledges what may be lost with the power."
            }
        }
    }
}

/// A conclusion from the figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "finding")]
pub enum Finding {
    /// The model is known.
    Known {
        /// The series.
        series: String,
        /// Its protection.
        protection: Protection,
        /// By whom.
        source: String,
    },
    /// It says that it has no volatile cache: no flush is sent to it.
    NoFlushes,
    /// Flushes take less than the medium can.
    TooFast {
        /// The median of flushes, in microseconds.
        median_us: f64,
        /// The least that the medium takes, in microseconds.
        least_us: f64,
        /// The medium.
        medium: Medium,
    },
    /// Flushes take as long as the medium does.
    Plausible {
        /// The median of flushes, in microseconds.
        median_us: f64,
    },
    /// Writes with flushes are about as many as without, though there is a cache to flush.
    NoDifference {
        /// Writes a second with flushes.
        flushed: f64,
        /// And without.
        free: f64,
    },
    /// The devices that it is made of are not seen.
    MadeUp,
    /// It got slower.
    Slower {
        /// Writes a second in the first quarter.
        first: f64,
        /// And in the last one.
        last: f64,
    },
    /// Something took very long.
    Stall {
        /// The longest write or flush, in milliseconds.
        longest_ms: f64,
    },
}

/// The least time of a flush that wrote on a disk, in microseconds: on average half a turn, which
/// is 2 ms at 15,000 turns a minute.
const HDD_LEAST_US: f64 = 1000.0;
/// The least time of a flush that wrote on flash, in microseconds: what programming a page takes,
/// on the fastest flash that is sold (makers tell 100 µs of Z-NAND, 200 µs and more of other SLC,
/// and a millisecond of TLC).
const SSD_LEAST_US: f64 = 100.0;
/// With a cache to flush, flushes cost more than this part of the writes.
const NO_DIFFERENCE: f64 = 0.8;
/// It got slower when the last quarter has less than this part of the first one.
const SLOWER: f64 = 0.7;
/// A write or flush that takes longer is a stall, in milliseconds: clients wait for it.
const STALL_MS: f64 = 500.0;

impl Finding {
    /// A sentence or two.
    pub fn sentence(&self) -> String {
        match self {
            Finding::Known {
                series,
                protection,
                source,
            } => {
                let what = match protection {
                    Protection::Capacitors => {
                        "has capacitors that keep its cache when the power goes, so that it may \
                         answer flushes at once"
                    }
                    Protection::NoCache => "has no volatile cache for data",
                    Protection::Flushed => "keeps what was flushed",
                    Protection::Missing => "was found to lose what was flushed",
                };
                format!("{series} {what} ({source}).")
            }
            Finding::NoFlushes => {
                "It says that it has no volatile cache, so that the kernel sends \
                                   it no flushes: a write that is done is safe, if that is true."
                    .to_owned()
            }
            Finding::TooFast {
                median_us,
                least_us,
                medium,
            } => {
                let medium = match medium {
                    Medium::Hdd => "disks that turn",
                    Medium::Ssd => "flash",
                    Medium::Virtual => "it",
                };
                format!(
                    "Half of the flushes took {median_us:.0} µs or less, and no write on {medium} \
                     takes less than about {least_us:.0} µs: either its cache survives the loss of \
                     power, or flushes do nothing."
                )
            }
            Finding::Plausible { median_us } => {
                format!("Half of the flushes took {median_us:.0} µs or more, as its medium does.")
            }
            Finding::NoDifference { flushed, free } => format!(
                "It does {flushed:.0} writes a second with flushes and {free:.0} without, though \
                 it says that it has a volatile cache: flushes seem to do nothing."
            ),
            Finding::MadeUp => "It is made up of other devices, whose caches are not seen from \
                                here."
                .to_owned(),
            Finding::Slower { first, last } => format!(
                "It began with {first:.0} synchronous writes a second and ended with {last:.0}: \
                 what it does for long is less than what it does for a moment."
            ),
            Finding::Stall { longest_ms } => {
                format!("A write or flush took {longest_ms:.0} ms, for which clients wait.")
            }
        }
    }
}

/// The steps: without flushes and with them, then with them for minutes, in the sizes of log
/// blocks, and by several at the same time.
pub fn steps(seconds: u64, long_seconds: u64) -> Vec<Step> {
    let step = |block_bytes, writers, flushes, seconds| Step {
        block_bytes,
        writers,
        flushes,
        seconds,
    };
    vec![
        step(4096, 1, Flushes::Never, seconds),
        step(4096, 1, Flushes::EachWrite, long_seconds),
        step(32_768, 1, Flushes::EachWrite, seconds),
        step(131_072, 1, Flushes::EachWrite, seconds),
        step(4096, 8, Flushes::EachWrite, seconds),
    ]
}

impl Step {
    /// Its name: `writes of 4K, each flushed`.
    pub fn name(&self) -> String {
        let block = plan::amount::show_block(self.block_bytes);
        let flushes = match self.flushes {
            Flushes::Never => "without flushes",
            Flushes::EachWrite => "each flushed",
        };
        match self.writers {
            1 => format!("writes of {block}, {flushes}"),
            writers => format!("writes of {block} by {writers}, {flushes}"),
        }
    }

    fn times(&self) -> Times {
        Times {
            seconds: self.seconds,
            warm_up_seconds: 0,
        }
    }

    /// Its job file.
    ///
    /// # Errors
    /// A path that cannot be told.
    pub fn job(&self, area: &Area) -> Result<JobFile, BenchError> {
        job::log_writes(
            area,
            self.block_bytes,
            self.writers,
            self.flushes,
            self.times(),
        )
    }
}

/// Tests a device.
///
/// # Errors
/// As [`Runner::run`].
pub async fn measure(
    mut report: LogReport,
    area: &Area,
    steps: &[Step],
    runner: &mut Runner,
    tell: Listener<'_>,
) -> Result<LogReport, BenchError> {
    // Nothing is told of blocks that were never written: some devices make room for them first.
    tell(Progress::Filling {
        bytes: area.size_bytes,
    });
    runner.run(&job::fill(area)?).await?;
    for step in steps {
        tell(Progress::Log {
            step: &step.name(),
            seconds: step.seconds,
        });
        let job = step.job(area)?;
        let ran = runner.run(&job).await?;
        let done = ran.output.job(MEASURED)?;
        let log = ran.log(&format!("{MEASURED}_iops.log"))?;
        let points = curve(&log, step.times().step_ms());
        let samples: Vec<f64> = points.iter().map(|point| point.iops).collect();
        report.steps.push(Stepped {
            step: *step,
            iops: done.write.iops,
            iops_error: half_interval(&samples),
            rate: done.write.bw_bytes,
            writes: Answers::of(&done.write.lat_ns),
            flushed: Answers::of(&done.sync.lat_ns),
            points,
        });
        report.jobs.push(job.text().to_owned());
    }
    (report.findings, report.verdict) = judge(report.facts.as_ref(), &report.steps);
    Ok(report)
}

/// Conclusions from the steps, and the verdict.
pub fn judge(facts: Option<&Facts>, steps: &[Stepped]) -> (Vec<Finding>, Verdict) {
    let mut findings = Vec::new();
    let series = facts.and_then(|facts| known(facts.model.as_deref()?));
    findings.extend(series.map(|series| Finding::Known {
        series: series.name.to_owned(),
        protection: series.protection,
        source: series.source.to_owned(),
    }));
    let (times, mut suspicious) = times_of_flushes(facts, steps);
    findings.extend(times);
    let same = no_difference(facts, steps);
    suspicious |= same.is_some();
    findings.extend(same);
    let verdict = match (series.map(|series| series.protection), facts) {
        (Some(Protection::Missing), _) => Verdict::Unsafe,
        (Some(Protection::Capacitors | Protection::NoCache), _) => Verdict::Safe,
        // It keeps what was flushed, and flushes do nothing.
        (Some(Protection::Flushed), _) if suspicious => Verdict::Unsafe,
        (Some(Protection::Flushed), _) => Verdict::Safe,
        (None, None) => Verdict::Unknown,
        (None, Some(facts)) => match facts.medium {
            Medium::Virtual => Verdict::Unknown,
            // Controllers with batteries are devices of their own, and say that they have no cache.
            Medium::Hdd if suspicious => Verdict::Unsafe,
            Medium::Ssd if suspicious => Verdict::Unknown,
            _ if facts.has_volatile_cache == Some(false) => Verdict::Unknown,
            _ => Verdict::Safe,
        },
    };
    findings.extend(over_time(steps));
    (findings, verdict)
}

fn flushed(steps: &[Stepped]) -> impl Iterator<Item = &Stepped> {
    let is_it = |one: &&Stepped| one.step.flushes == Flushes::EachWrite && one.step.writers == 1;
    steps.iter().filter(is_it)
}

/// By how long flushes take; and whether that is suspicious.
fn times_of_flushes(facts: Option<&Facts>, steps: &[Stepped]) -> (Option<Finding>, bool) {
    let Some(facts) = facts else {
        return (None, false);
    };
    if facts.medium == Medium::Virtual {
        return (Some(Finding::MadeUp), false);
    }
    if facts.has_volatile_cache == Some(false) {
        return (Some(Finding::NoFlushes), false);
    }
    let medians = flushed(steps).filter_map(|one| one.flushed?.p50_ms);
    let Some(median_us) = medians.reduce(f64::min).map(|ms| ms * 1000.0) else {
        return (None, false);
    };
    let least_us = match facts.medium {
        Medium::Hdd => HDD_LEAST_US,
        Medium::Ssd | Medium::Virtual => SSD_LEAST_US,
    };
    match median_us < least_us {
        true => {
            let finding = Finding::TooFast {
                median_us,
                least_us,
                medium: facts.medium,
            };
            (Some(finding), true)
        }
        false => (Some(Finding::Plausible { median_us }), false),
    }
}

/// By what flushes cost.
fn no_difference(facts: Option<&Facts>, steps: &[Stepped]) -> Option<Finding> {
    let facts = facts.filter(|facts| facts.medium != Medium::Virtual)?;
    if facts.has_volatile_cache != Some(true) {
        return None;
    }
    let is_free = |one: &&Stepped| one.step.flushes == Flushes::Never;
    let free = steps.iter().find(is_free)?;
    let same = |one: &&Stepped| one.step.block_bytes == free.step.block_bytes;
    let flushed = flushed(steps).find(same)?;
    (flushed.iops > NO_DIFFERENCE * free.iops).then_some(Finding::NoDifference {
        flushed: flushed.iops,
        free: free.iops,
    })
}

/// By what happened over minutes.
fn over_time(steps: &[Stepped]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(long) = flushed(steps).max_by_key(|one| one.step.seconds) {
        let iops: Vec<f64> = long.points.iter().map(|point| point.iops).collect();
        let quarter = iops.len() / 4;
        let (first, last) = (mean(&iops[..quarter]), mean(&iops[iops.len() - quarter..]));
        if last < SLOWER * first {
            findings.push(Finding::Slower { first, last });
        }
    }
    let all = steps
        .iter()
        .flat_map(|one| [one.writes, one.flushed])
        .flatten();
    let longest_ms = all.map(|answers| answers.max_ms).fold(0.0, f64::max);
    if longest_ms > STALL_MS {
        findings.push(Finding::Stall { longest_ms });
    }
    findings
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn answers(p50_us: f64, max_ms: f64) -> Answers {
        Answers {
            mean_ms: p50_us / 1000.0,
            p50_ms: Some(p50_us / 1000.0),
            p99_ms: Some(p50_us / 500.0),
            p999_ms: Some(p50_us / 200.0),
            max_ms,
        }
    }

    /// Steps of a device that flushes in so many microseconds and writes in 50.
    fn stepped(flush_us: f64) -> Vec<Stepped> {
        let of = |step: Step| {
            let is_flushed = step.flushes == Flushes::EachWrite;
            let each_us = 50.0 + if is_flushed { flush_us } else { 0.0 };
            let iops = 1e6 / each_us;
            let points = (1..=40).map(|at| Point {
                at_seconds: f64::from(at),
                iops,
            });
            Stepped {
                step,
                iops,
                iops_error: Some(0.0),
                rate: iops * step.block_bytes as f64,
                writes: Some(answers(50.0, 9.0)),
                flushed: is_flushed.then(|| answers(flush_us, 12.0)),
                points: points.collect(),
            }
        };
        steps(10, 120).into_iter().map(of).collect()
    }

    fn facts(model: &str, medium: Medium, has_volatile_cache: bool) -> Facts {
        Facts {
            name: "sda".into(),
            model: Some(model.into()),
            medium,
            has_volatile_cache: Some(has_volatile_cache),
        }
    }

    /// A test of a device, as it is told.
    pub(crate) fn report() -> LogReport {
        let facts = facts("INTEL SSDSC2BA200G3", Medium::Ssd, true);
        let steps = stepped(40.0);
        let (findings, verdict) = judge(Some(&facts), &steps);
        LogReport {
            kind: KIND.into(),
            fio: "fio-3.33".into(),
            began: 1_795_965_488,
            target: "/dev/sda".into(),
            facts: Some(facts),
            steps,
            findings,
            verdict,
            jobs: vec!["[global]\n".into()],
        }
    }

    fn verdict(facts: &Facts, flush_us: f64) -> Verdict {
        judge(Some(facts), &stepped(flush_us)).1
    }

    #[test]
    fn a_disk_that_turns_cannot_flush_in_no_time() {
        let disk = facts("WDC WD5003ABYX", Medium::Hdd, true);
        assert_eq!(verdict(&disk, 8000.0), Verdict::Safe);
        assert_eq!(verdict(&disk, 200.0), Verdict::Unsafe);
    }

    #[test]
    fn flash_that_flushes_in_no_time_is_asked_of_its_maker() {
        let unknown = facts("Samsung SSD 980 PRO", Medium::Ssd, true);
        assert_eq!(verdict(&unknown, 900.0), Verdict::Safe);
        let (findings, verdict_of_fast) = judge(Some(&unknown), &stepped(5.0));
        assert_eq!(verdict_of_fast, Verdict::Unknown);
        let told: Vec<String> = findings.iter().map(Finding::sentence).collect();
        assert!(told[0].contains("5 µs or less"), "{told:?}");
        // 18,181 with flushes and 20,000 without.
        assert!(
            told[1].contains("18182") && told[1].contains("20000"),
            "{told:?}"
        );
        let protected = facts("INTEL SSDSC2BA200G3", Medium::Ssd, true);
        assert_eq!(verdict(&protected, 5.0), Verdict::Safe);
        let bad = facts("INTEL SSDSC2CT120A3", Medium::Ssd, true);
        assert_eq!(verdict(&bad, 900.0), Verdict::Unsafe);
        let flushed = facts("Crucial_CT256MX100SSD1", Medium::Ssd, true);
        assert_eq!(verdict(&flushed, 900.0), Verdict::Safe);
        assert_eq!(verdict(&flushed, 5.0), Verdict::Unsafe);
    }

    #[test]
    fn what_cannot_be_seen_is_not_judged() {
        let disk = facts("QEMU HARDDISK", Medium::Virtual, true);
        assert_eq!(
            judge(Some(&disk), &stepped(5.0)),
            (vec![Finding::MadeUp], Verdict::Unknown)
        );
        assert_eq!(judge(None, &stepped(5.0)), (Vec::new(), Verdict::Unknown));
        let no_cache = facts("LOGICAL VOLUME", Medium::Ssd, false);
        let (findings, verdict) = judge(Some(&no_cache), &stepped(1.0));
        assert_eq!(
            (findings, verdict),
            (vec![Finding::NoFlushes], Verdict::Unknown)
        );
    }

    #[test]
    fn what_happens_over_minutes_is_told() {
        let disk = facts("WDC WD5003ABYX", Medium::Hdd, true);
        let mut steps = stepped(8000.0);
        for point in &mut steps[1].points[25..] {
            point.iops = 10.0;
        }
        steps[3].flushed = Some(answers(8000.0, 1700.0));
        let (findings, _) = judge(Some(&disk), &steps);
        let told: Vec<String> = findings.iter().map(Finding::sentence).collect();
        assert!(
            told[1].contains("124 synchronous") && told[1].contains("with 10"),
            "{told:?}"
        );
        assert!(told[2].contains("1700 ms"), "{told:?}");
    }

    #[test]
    fn facts_are_those_of_the_disk_below_a_partition() {
        let sys = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = sys.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("block/sda/queue/rotational", "1\n");
        put("block/sda/queue/write_cache", "write back\n");
        put("block/sda/device/model", "WDC WD5003ABYX  \n");
        put("block/sda/sda1/partition", "1\n");
        put("block/loop0/queue/rotational", "0\n");
        std::fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        for (number, to) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("7:0", "loop0")] {
            let link = sys.path().join("dev/block").join(number);
            std::os::unix::fs::symlink(format!("../../block/{to}"), link).unwrap();
        }
        let disk = Facts::read(sys.path(), 8, 0).unwrap();
        assert_eq!(disk, facts("WDC WD5003ABYX", Medium::Hdd, true));
        assert_eq!(Facts::read(sys.path(), 8, 1), Some(disk));
        let made_up = Facts::read(sys.path(), 7, 0).unwrap();
        assert_eq!(
            (made_up.medium, made_up.has_volatile_cache),
            (Medium::Virtual, None)
        );
        assert_eq!(Facts::read(sys.path(), 9, 9), None);
    }

    #[test]
    fn steps_have_names_and_a_report_is_read_as_it_was_written() {
        let report = report();
        let names: Vec<String> = report.steps.iter().map(|one| one.step.name()).collect();
        assert_eq!(names[0], "writes of 4K, without flushes");
        assert_eq!(names[4], "writes of 4K by 8, each flushed");
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<LogReport>(&text).unwrap(), report);
    }
}
