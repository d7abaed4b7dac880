//! Results, as they are kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fio::{Job, Latency, Side};
use crate::job::{Area, Times};
use crate::log::Point;
use crate::streams::StreamsFound;
use crate::warm_up::WarmUp;
use crate::{BenchError, Profile, Test};

/// The kind that a report names.
pub const KIND: &str = "millpond bench";

/// All that a profile came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchReport")]
pub struct Report {
    /// [`KIND`].
    pub kind: String,
    /// `fio-3.33`.
    pub fio: String,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// The target, as it was named.
    pub target: String,
    /// Which loads.
    pub profile: Profile,
    /// The range that they went over.
    pub area: Area,
    /// For how long.
    pub times: Times,
    /// Notes on the figures.
    pub notes: Vec<Note>,
    /// The loads, in order.
    pub tests: Vec<Measured>,
    /// Streams, where they were looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamsFound>,
    /// Hours of reading, where they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<WarmUp>,
    /// Job files that made the figures, in order.
    pub jobs: Vec<String>,
}

/// One load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchMeasured")]
pub struct Measured {
    /// Which.
    #[serde(flatten)]
    pub test: Test,
    /// Seconds that were measured.
    pub seconds: f64,
    /// Seconds until then.
    pub warm_up_seconds: f64,
    /// Whether it was steady then; `None` where nobody looked.
    pub is_steady: Option<bool>,
    /// Reads and writes a second.
    pub iops: f64,
    /// Half of the interval in which the true figure is with 95 % confidence.
    pub iops_error: Option<f64>,
    /// Bytes a second.
    pub rate: f64,
    /// Reads, if there were any.
    pub reads: Option<Way>,
    /// Writes, if there were any.
    pub writes: Option<Way>,
    /// Seconds of a processor that fio took for 10^9 bytes.
    pub client_cpu_per_gb: Option<f64>,
    /// The same of the server.
    pub server_cpu_per_gb: Option<f64>,
    /// The planner's figure: operations a second.
    pub planned_iops: Option<f64>,
    /// Operations a second while it became steady.
    pub before: Vec<Point>,
    /// Operations a second while it was measured.
    pub points: Vec<Point>,
}

/// Reads or writes of a load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchWay")]
pub struct Way {
    /// A second.
    pub iops: f64,
    /// Bytes a second.
    pub rate: f64,
    /// Times from request to answer.
    #[serde(flatten)]
    pub times: Answers,
}

/// Times from request to answer, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchAnswers")]
pub struct Answers {
    /// The mean.
    pub mean_ms: f64,
    /// Half of them took no longer.
    pub p50_ms: Option<f64>,
    /// 99 of 100 took no longer.
    pub p99_ms: Option<f64>,
    /// 999 of 1,000 took no longer.
    pub p999_ms: Option<f64>,
    /// The longest.
    pub max_ms: f64,
}

impl Answers {
    /// Of fio's figures; `None` where there was nothing.
    pub fn of(latency: &Latency) -> Option<Self> {
        // Whole nanoseconds: a figure with all digits of a mean is not the same when it is read.
        let ms = |ns: f64| ns.round() / 1e6;
        (latency.count > 0).then(|| Answers {
            mean_ms: ms(latency.mean),
            p50_ms: latency.percentile(50.0).map(ms),
            p99_ms: latency.percentile(99.0).map(ms),
            p999_ms: latency.percentile(99.9).map(ms),
            max_ms: ms(latency.max),
        })
    }
}

impl Way {
    fn of(side: &Side) -> Option<Self> {
        Answers::of(&side.lat_ns).map(|times| Way {
            iops: side.iops,
            rate: side.bw_bytes,
            times,
        })
    }
}

impl Measured {
    /// The figures of the section that counts. The caller adds the warm-up, confidence, processor
    /// time of a server and plans.
    pub fn of(test: &Test, job: &Job) -> Self {
        let gigabytes = job.bytes() as f64 / 1e9;
        let cpu = job.cpu_seconds() / gigabytes;
        Measured {
            test: test.clone(),
            seconds: job.read.runtime.max(job.write.runtime) as f64 / 1000.0,
            warm_up_seconds: 0.0,
            is_steady: None,
            iops: job.read.iops + job.write.iops,
            iops_error: None,
            rate: job.read.bw_bytes + job.write.bw_bytes,
            reads: Way::of(&job.read),
            writes: Way::of(&job.write),
            client_cpu_per_gb: cpu.is_finite().then_some(cpu),
            server_cpu_per_gb: None,
            planned_iops: None,
            before: Vec::new(),
            points: Vec::new(),
        }
    }

    /// The mean time from request to answer of reads and writes together, in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        let ways = [self.reads, self.writes];
        let ways = || ways.iter().flatten();
        let all: f64 = ways().map(|way| way.iops).sum();
        let weighed: f64 = ways().map(|way| way.iops * way.times.mean_ms).sum();
        match all > 0.0 {
            true => weighed / all,
            false => 0.0,
        }
    }

    /// The longer of the times that 99 of 100 reads, or writes, took at most.
    pub fn p99_ms(&self) -> Option<f64> {
        let ways = [self.reads, self.writes];
        let slowest = ways.iter().flatten().filter_map(|way| way.times.p99_ms);
        slowest.reduce(f64::max)
    }
}

/// A note on figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchNote")]
#[serde(rename_all = "kebab-case", tag = "note")]
pub enum Note {
    /// Tests that write were left out.
    ReadOnly {
        /// How many.
        left_out: usize,
    },
    /// Reads of a device that was not written before: a device may answer them without its medium.
    NotFilled,
    /// Only a part of a device: its arm moves less.
    Part {
        /// Bytes of the part.
        size_bytes: u64,
        /// Bytes of all.
        whole_bytes: u64,
    },
    /// The set fits in the host's memory.
    InMemory {
        /// Bytes of the set.
        size_bytes: u64,
        /// Bytes of memory.
        memory_bytes: u64,
    },
    /// The filesystem knows no direct access.
    PageCache,
    /// Loads that were not steady when they were measured.
    NotSteady {
        /// Which.
        tests: Vec<String>,
    },
    /// Loads whose figures are not sure.
    Unsure {
        /// Which.
        tests: Vec<String>,
    },
}

/// The error of a figure from which on it is not sure, as a part of it.
const UNSURE: f64 = 0.1;

impl Note {
    /// A sentence or two.
    pub fn sentence(&self) -> String {
        use plan::amount::show_bytes;
        match self {
            Note::ReadOnly { left_out } => format!(
                "{left_out} tests that write were left out, since what is there would be lost; \
                 --destroy has them run."
            ),
            Note::NotFilled => "The area was not written before, so that a device or volume may \
                                have answered reads of places that hold nothing without its disks."
                .to_owned(),
            Note::Part {
                size_bytes,
                whole_bytes,
            } => format!(
                "The loads went over the first {} of {}: a disk's arm moves less there than over \
                 all of it (--size).",
                show_bytes(*size_bytes),
                show_bytes(*whole_bytes)
            ),
            Note::InMemory {
                size_bytes,
                memory_bytes,
            } => format!(
                "The set of {} fits in the {} of memory of this host: where the server runs here \
                 too, or the page cache is used, reads tell how fast memory is (--size).",
                show_bytes(*size_bytes),
                show_bytes(*memory_bytes)
            ),
            Note::PageCache => "The filesystem knows no direct access: the loads went through the \
                                page cache."
                .to_owned(),
            Note::NotSteady { tests } => format!(
                "Still changing when they were measured: {} (--warm-up).",
                tests.join("; ")
            ),
            Note::Unsure { tests } => format!(
                "Not sure within {:.0} %: {} (--seconds).",
                UNSURE * 100.0,
                tests.join("; ")
            ),
        }
    }

    /// Notes on loads that were not steady or are not sure.
    pub fn of_tests(tests: &[Measured]) -> Vec<Note> {
        let named = |is_it: &dyn Fn(&Measured) -> bool| -> Vec<String> {
            let named = tests.iter().filter(|one| is_it(one));
            named.map(|one| one.test.to_string()).collect()
        };
        let moving = named(&|one| one.is_steady == Some(false));
        let unsure = named(&|one| {
            let error = one.iops_error.unwrap_or(0.0);
            error > UNSURE * one.iops
        });
        let mut notes = Vec::new();
        if !moving.is_empty() {
            notes.push(Note::NotSteady { tests: moving });
        }
        if !unsure.is_empty() {
            notes.push(Note::Unsure { tests: unsure });
        }
        notes
    }
}

/// A report that a call before has kept, to go on with.
///
/// # Errors
/// [`BenchError::NotAReport`] when it is none of a warm-up.
pub fn kept_warm_up(path: &str, text: &str) -> Result<Report, BenchError> {
    let wrong = |why: String| BenchError::NotAReport {
        path: path.to_owned(),
        why,
    };
    let report: Report = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if report.kind != KIND || report.profile != Profile::WarmUp || report.warm_up.is_none() {
        return Err(wrong("it is not of a warm-up".to_owned()));
    }
    Ok(report)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Place;
    use crate::fio::Output;

    const LIFE: &str = include_str!("../fixtures/real-life.json");

    /// A report of one load as fio told it, and of another one.
    pub(crate) fn report() -> Report {
        let tests = Profile::Vmware.tests(&[]);
        let output = Output::read(LIFE).unwrap();
        let mut life = Measured::of(&tests[1], output.job("measured").unwrap());
        let point = |at: i32| Point {
            at_seconds: f64::from(at),
            iops: 27_000.0 + f64::from(at * 40),
        };
        life.before = (1..=3).map(point).collect();
        life.points = (1..=10).map(point).collect();
        life.iops_error = Some(300.0);
        life.is_steady = Some(true);
        life.planned_iops = Some(25_000.0);
        let all = Measured {
            test: tests[0].clone(),
            writes: None,
            is_steady: Some(false),
            iops_error: Some(9_000.0),
            ..life.clone()
        };
        Report {
            kind: KIND.into(),
            fio: output.version,
            began: 1_795_965_488,
            target: "/tank/<data>".into(),
            profile: Profile::Vmware,
            area: Area {
                place: Place::File {
                    path: "/tank/<data>/file".into(),
                    is_direct: true,
                },
                size_bytes: 4 << 30,
                is_read_only: false,
            },
            times: Times {
                seconds: 2,
                warm_up_seconds: 9,
            },
            notes: Note::of_tests(&[all.clone(), life.clone()]),
            tests: vec![all, life],
            streams: None,
            warm_up: None,
            jobs: vec!["[global]\nrw=<randrw>\n".into()],
        }
    }

    #[test]
    fn a_load_has_the_figures_of_fio() {
        let report = report();
        let life = &report.tests[1];
        let (reads, writes) = (life.reads.unwrap(), life.writes.unwrap());
        assert_eq!(life.iops, reads.iops + writes.iops);
        // Bytes are blocks of 8 KiB.
        assert!((life.rate / life.iops / 8192.0 - 1.0).abs() < 0.01);
        let mean = life.mean_ms();
        let means = [reads.times.mean_ms, writes.times.mean_ms];
        assert!(mean > means[0].min(means[1]) && mean < means[0].max(means[1]));
        assert!(life.p99_ms() >= reads.times.p99_ms && life.client_cpu_per_gb.unwrap() > 0.0);
        assert!((1.9..2.2).contains(&life.seconds), "{}", life.seconds);
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let report = report();
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert!(text.contains("\"profile\":\"vmware\""), "{text}");
    }

    #[test]
    fn figures_that_move_or_scatter_are_named() {
        let notes = report().notes;
        assert_eq!(notes.len(), 2, "{notes:?}");
        for note in notes {
            let sentence = note.sentence();
            assert!(
                sentence.contains("max throughput, all reads, 64 deep"),
                "{sentence}"
            );
            assert!(!sentence.contains("real life"), "{sentence}");
        }
    }

    #[test]
    fn only_a_warm_up_can_go_on() {
        let mut report = report();
        let text = |report: &Report| serde_json::to_string(report).unwrap();
        let error = kept_warm_up("a.json", &text(&report))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("'a.json'") && error.contains("warm-up"),
            "{error}"
        );
        report.profile = Profile::WarmUp;
        report.warm_up = Some(WarmUp::default());
        assert_eq!(kept_warm_up("a.json", &text(&report)).unwrap(), report);
        assert!(kept_warm_up("a.json", "{}").is_err());
    }
}
