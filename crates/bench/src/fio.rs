//! fio's output: its JSON (`fio(1)`, "--output-format=json"), and the engines that it has.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::BenchError;

/// A run: fields of fio's that are used.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Output {
    /// `fio-3.33`.
    #[serde(rename = "fio version")]
    pub version: String,
    /// A group of jobs each, by sections.
    #[serde(default)]
    pub jobs: Vec<Job>,
}

/// The jobs of a section together.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Job {
    /// The section's name.
    pub jobname: String,
    /// The first error (errno), else 0.
    #[serde(default)]
    pub error: i32,
    /// Reads.
    pub read: Side,
    /// Writes.
    pub write: Side,
    /// Flushes.
    #[serde(default)]
    pub sync: Flushes,
    /// Milliseconds that its threads ran, together.
    pub job_runtime: u64,
    /// Of that, the part that they computed by themselves, in percent.
    pub usr_cpu: f64,
    /// And in the kernel.
    pub sys_cpu: f64,
    /// Whether it became steady, where that was asked for.
    pub steadystate: Option<Steady>,
}

/// Reads or writes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Side {
    /// Bytes.
    pub io_bytes: u64,
    /// Bytes a second.
    pub bw_bytes: f64,
    /// A second.
    pub iops: f64,
    /// Milliseconds.
    pub runtime: u64,
    /// How many.
    pub total_ios: u64,
    /// From the request to its end.
    #[serde(default)]
    pub lat_ns: Latency,
}

/// Flushes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Flushes {
    /// From the request to its end.
    #[serde(default)]
    pub lat_ns: Latency,
}

/// Times in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Latency {
    /// The shortest.
    #[serde(default)]
    pub min: f64,
    /// The longest.
    #[serde(default)]
    pub max: f64,
    /// The mean.
    #[serde(default)]
    pub mean: f64,
    /// How many.
    #[serde(default, rename = "N")]
    pub count: u64,
    /// By percent, with six digits behind the point.
    #[serde(default)]
    pub percentile: BTreeMap<String, f64>,
}

impl Latency {
    /// The time that so many of a hundred took at most, in nanoseconds.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        self.percentile.get(&format!("{percent:.6}")).copied()
    }
}

/// Whether a job became steady.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Steady {
    /// 1 if it did.
    pub attained: u8,
}

impl Steady {
    /// Whether it did.
    pub fn is_attained(&self) -> bool {
        self.attained != 0
    }
}

impl Output {
    /// Reads it. fio may print lines of text first.
    ///
    /// # Errors
    /// [`BenchError::Output`]; [`BenchError::Failed`] where a job had an error.
    pub fn read(text: &str) -> Result<Self, BenchError> {
        let begin = text.find('{').ok_or_else(|| BenchError::Output {
            why: "it has no JSON".to_owned(),
        })?;
        // Behind it may be text again.
        let mut values = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Self>();
        let output = match values.next() {
            Some(Ok(output)) => output,
            Some(Err(error)) => {
                return Err(BenchError::Output {
                    why: error.to_string(),
                });
            }
            None => {
                return Err(BenchError::Output {
                    why: "it has no JSON".to_owned(),
                });
            }
        };
        match output.jobs.iter().find(|job| job.error != 0) {
            Some(job) => Err(BenchError::Failed {
                told: std::io::Error::from_raw_os_error(job.error).to_string(),
            }),
            None => Ok(output),
        }
    }

    /// The jobs of a section.
    ///
    /// # Errors
    /// [`BenchError::Output`] when they are not there.
    pub fn job(&self, name: &str) -> Result<&Job, BenchError> {
        let found = self.jobs.iter().find(|job| job.jobname == name);
        found.ok_or_else(|| BenchError::Output {
            why: format!("it has no job {name}"),
        })
    }

    /// Bytes that all its jobs read and wrote.
    pub fn bytes(&self) -> u64 {
        self.jobs.iter().map(Job::bytes).sum()
    }
}

impl Job {
    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.read.io_bytes + self.write.io_bytes
    }

    /// Seconds of a processor that its threads took.
    pub fn cpu_seconds(&self) -> f64 {
        (self.usr_cpu + self.sys_cpu) / 100.0 * self.job_runtime as f64 / 1000.0
    }
}

/// The engines of fio, from `fio --enghelp`: a line of text, then a name in each.
pub fn engines(enghelp: &str) -> BTreeSet<String> {
    let lines = enghelp
        .lines()
        .filter(|line| line.starts_with(char::is_whitespace));
    lines.map(|line| line.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: &str = include_str!("../fixtures/real-life.json");
    const LOG: &str = include_str!("../fixtures/log.json");

    #[test]
    fn a_run_of_fio_is_read() {
        let output = Output::read(LIFE).unwrap();
        assert_eq!(output.version, "fio-3.33");
        let warm_up = output.job("warm-up").unwrap();
        assert_eq!(warm_up.steadystate, Some(Steady { attained: 1 }));
        let measured = output.job("measured").unwrap();
        assert_eq!(measured.steadystate, None);
        // As the file says.
        let share = measured.read.iops / (measured.read.iops + measured.write.iops);
        assert!((0.6..0.7).contains(&share), "{share}");
        let latency = &measured.read.lat_ns;
        let [half, most, nearly_all] =
            [50.0, 99.0, 99.9].map(|percent| latency.percentile(percent).unwrap());
        assert!(half <= most && most <= nearly_all && nearly_all <= latency.max * 1.02);
        assert!(latency.min <= half && latency.percentile(12.0).is_none());
        assert_eq!(output.bytes(), warm_up.bytes() + measured.bytes());
        assert!(measured.cpu_seconds() > 0.0 && measured.cpu_seconds() < 3.0);
    }

    #[test]
    fn flushes_have_times_of_their_own() {
        let output = Output::read(LOG).unwrap();
        let flushes = &output.job("measured").unwrap().sync.lat_ns;
        assert!(flushes.count > 100, "{flushes:?}");
        assert!(flushes.percentile(50.0).unwrap() > 0.0);
    }

    #[test]
    fn text_around_the_json_is_left_out() {
        let text = format!("fio: a note\n{LIFE}\nand another\n");
        assert_eq!(Output::read(&text).unwrap(), Output::read(LIFE).unwrap());
    }

    #[test]
    fn what_is_no_output_is_said() {
        for (text, says) in [
            ("", "no JSON"),
            ("fio: failed", "no JSON"),
            ("{\"jobs\": 3}", "a fio from 3.17 on"),
        ] {
            let error = Output::read(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        let failed = LIFE.replacen("\"error\" : 0", "\"error\" : 28", 1);
        let error = Output::read(&failed).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        assert!(Output::read(LIFE).unwrap().job("other").is_err());
    }

    #[test]
    fn engines_are_listed() {
        let told = "Available IO engines:\n\tcpuio\n\tpsync\n\tlibaio\n";
        let engines = engines(told);
        assert!(
            engines.contains("libaio") && engines.len() == 3,
            "{engines:?}"
        );
    }
}
