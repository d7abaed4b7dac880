//! fio's job files (`fio(1)`, "JOB FILE FORMAT").

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BenchError, Test, held};

/// Where a load goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchPlace")]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A file, a volume's file or a block device.
    File {
        /// Its path.
        path: String,
        /// Past the page cache, where the filesystem can.
        is_direct: bool,
    },
    /// A unit of an iSCSI target.
    Iscsi {
        /// Its address, as libiscsi reads it, without secrets.
        url: String,
    },
    /// A file of an NFS server.
    Nfs {
        /// The directory's address, as libnfs reads it.
        url: String,
        /// The file's name in it.
        name: String,
    },
}

impl Place {
    /// The engine that it is reached by, with `depth` accesses at a time or, where they go through
    /// the page cache, one by one.
    pub fn engine(&self, is_cached: bool) -> &'static str {
        match self {
            Place::File { .. } if is_cached => "psync",
            Place::File { .. } => "libaio",
            Place::Iscsi { .. } => "libiscsi",
            Place::Nfs { .. } => "nfs",
        }
    }
}

/// The range of bytes that a load goes over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchArea")]
pub struct Area {
    /// Where.
    pub place: Place,
    /// Bytes of it, from its start.
    pub size_bytes: u64,
    /// Nothing there may be changed.
    pub is_read_only: bool,
}

/// A job file: a section for all jobs, and one for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFile {
    text: String,
    /// fio refuses to write.
    pub is_read_only: bool,
    /// It goes over its standard input ([`held`]).
    pub is_of_input: bool,
}

/// Percentiles that are asked for.
const PERCENTILES: &str = "50:99:99.9";
/// Most points of a log over time.
const POINTS: u64 = 600;
/// Means of a log are over so many milliseconds at least.
const LOG_STEP_MS: u64 = 100;
/// A load is steady when its operations grow or fall by less than this part in a second, by a line
/// through them (least squares).
const STEADY_SLOPE: &str = "iops_slope:0.5%";
/// Bytes that a set is written in at a time, and how many such writes are under way.
const FILL_BLOCK: u64 = 1 << 20;
const FILL_DEPTH: u32 = 8;

impl JobFile {
    fn new(area: &Area, is_cached: bool) -> Result<Self, BenchError> {
        let mut job = JobFile {
            text: "[global]\n".to_owned(),
            is_read_only: area.is_read_only,
            is_of_input: matches!(area.place, Place::File { .. }),
        };
        job.set("ioengine", area.place.engine(is_cached));
        match &area.place {
            Place::File { path, is_direct } => {
                // For who runs it again. Quoted as Rust does it, a path is in one line.
                job.comment(format_args!("standard input is {path:?}"));
                job.set("filename", held::NAME);
                // Nothing is made where it is not that.
                job.set("allow_file_create", 0);
                job.set("direct", u8::from(*is_direct && !is_cached));
                job.set("fallocate", "none");
            }
            Place::Iscsi { url } => job.set("filename", escaped(url)?),
            Place::Nfs { url, name } => {
                // Not split at colons as names are.
                plain(url)?;
                job.set("nfs_url", url);
                job.set("filename", escaped(name)?);
            }
        }
        // Threads end with the process, and processes might not; and threads have its standard
        // input.
        job.set("thread", 1);
        job.set("group_reporting", 1);
        job.set("percentile_list", PERCENTILES);
        job.set("lat_percentiles", 1);
        job.set("clat_percentiles", 0);
        job.set("disk_util", 0);
        Ok(job)
    }

    fn comment(&mut self, words: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.text, "# {words}");
    }

    fn set(&mut self, key: &str, value: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{key}={value}");
    }

    /// Counts what is in caches, too. The engine for NFS knows no flushes (`engines/nfs.c`).
    fn flush_at_end(&mut self, area: &Area) {
        if !matches!(area.place, Place::Nfs { .. }) {
            self.set("end_fsync", 1);
        }
    }

    fn section(&mut self, name: &str) {
        let _ = writeln!(self.text, "\n[{name}]");
    }

    /// The text, as fio reads it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A job file cannot have everything: `$` stands for variables, `;` and `#` begin comments.
fn plain(path: &str) -> Result<&str, BenchError> {
    let is_bad = |c: char| c.is_control() || ['$', ';', '#', '"', '\\'].contains(&c);
    let is_trimmed = path.trim() != path || path.is_empty();
    match path.contains(is_bad) || is_trimmed {
        true => Err(BenchError::Path {
            path: path.to_owned(),
        }),
        false => Ok(path),
    }
}

/// A name: fio would see several in one with colons.
fn escaped(path: &str) -> Result<String, BenchError> {
    Ok(plain(path)?.replace(':', "\\:"))
}

/// How a load is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchTimes")]
pub struct Times {
    /// Seconds that count.
    pub seconds: u64,
    /// Seconds until it has to be steady; 0: what comes first counts.
    pub warm_up_seconds: u64,
}

impl Times {
    /// Milliseconds between two points of a log.
    pub fn step_ms(&self) -> u64 {
        let longest = self.seconds.max(self.warm_up_seconds);
        let of_few = (self.seconds * 1000 / 30).clamp(LOG_STEP_MS, 1000);
        of_few.max(longest * 1000 / POINTS)
    }

    /// Seconds over which a load has to be steady: fio looks once a second.
    pub fn steady_seconds(&self) -> u64 {
        (self.warm_up_seconds / 3).clamp(2, 30)
    }

    /// Whether there is time to see that a load is steady.
    pub fn warms_up(&self) -> bool {
        self.warm_up_seconds > self.steady_seconds()
    }
}

/// Name of the section of a load until it is steady, and of its log.
pub const WARM_UP: &str = "warm-up";
/// Name of the section that counts, and of its log.
pub const MEASURED: &str = "measured";

/// The whole set written, so that no read finds a hole.
///
/// # Errors
/// A path that cannot be told.
pub fn fill(area: &Area) -> Result<JobFile, BenchError> {
    let mut job = JobFile::new(area, false)?;
    job.set("size", area.size_bytes);
    job.section("fill");
    job.set("rw", "write");
    job.set("bs", FILL_BLOCK);
    job.set("iodepth", FILL_DEPTH);
    job.flush_at_end(area);
    Ok(job)
}

/// A load: first until it is steady, then what counts. `seed` decides which places are random.
///
/// # Errors
/// A path that cannot be told.
pub fn test(area: &Area, test: &Test, times: Times, seed: u64) -> Result<JobFile, BenchError> {
    let mut job = JobFile::new(area, test.is_cached)?;
    job.set("size", area.size_bytes);
    job.set("bs", test.block_bytes);
    let way = match (test.random_percent, test.reads_percent) {
        (0, 100) => "read",
        (0, 0) => "write",
        (0, _) => "rw",
        (_, 100) => "randread",
        (_, 0) => "randwrite",
        _ => "randrw",
    };
    job.set("rw", way);
    if !matches!(test.reads_percent, 0 | 100) {
        job.set("rwmixread", test.reads_percent);
    }
    if !matches!(test.random_percent, 0 | 100) {
        job.set("percentage_random", test.random_percent);
    }
    job.set("iodepth", test.depth);
    job.set("numjobs", test.workers);
    job.set("randseed", seed);
    if test.random_percent > 0 {
        // Any place, as often as it comes, without a map of those that were there.
        job.set("norandommap", 1);
    }
    if test.is_whole {
        if test.writes() {
            job.flush_at_end(area);
        }
    } else {
        job.set("time_based", 1);
    }
    job.set("per_job_logs", 0);
    job.set("log_avg_msec", times.step_ms());
    if times.warms_up() && !test.is_whole {
        job.section(WARM_UP);
        job.set("runtime", times.warm_up_seconds);
        job.set("steadystate", STEADY_SLOPE);
        job.set("steadystate_duration", times.steady_seconds());
        job.set("write_iops_log", WARM_UP);
    }
    job.section(MEASURED);
    job.set("stonewall", 1);
    if !test.is_whole {
        job.set("runtime", times.seconds);
    }
    job.set("write_iops_log", MEASURED);
    Ok(job)
}

/// Streams of a recorder: each has its part of the area, and goes through it again and again at its
/// rate. Recordings are in the second half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streams {
    /// Recordings at the same time.
    pub recordings: u32,
    /// Playbacks at the same time.
    pub playbacks: u32,
    /// Bytes a second of each.
    pub rate: u64,
    /// Bytes of an access.
    pub block_bytes: u64,
}

/// Name of the sections and logs of playbacks.
pub const PLAYBACK: &str = "playback";
/// Name of the sections and logs of recordings.
pub const RECORDING: &str = "recording";

/// The streams for so many seconds.
///
/// # Errors
/// A path that cannot be told; an area too small for them.
pub fn streams(area: &Area, streams: &Streams, seconds: u64) -> Result<JobFile, BenchError> {
    let mut job = JobFile::new(area, false)?;
    let half = area.size_bytes / 2;
    let part = |count: u32| half / u64::from(count.max(1)) / streams.block_bytes;
    let smallest = part(streams.recordings).min(part(streams.playbacks));
    if smallest == 0 {
        let count = streams.recordings.max(streams.playbacks);
        return Err(BenchError::TooSmall {
            target: "the set".to_owned(),
            room_bytes: area.size_bytes,
            wanted_bytes: 2 * u64::from(count) * streams.block_bytes,
        });
    }
    job.set("bs", streams.block_bytes);
    job.set("rate", streams.rate);
    job.set("time_based", 1);
    job.set("runtime", seconds);
    job.set("iodepth", 1);
    // One line for each access.
    job.set("per_job_logs", 1);
    let ways = [
        (PLAYBACK, "read", streams.playbacks, 0),
        (RECORDING, "write", streams.recordings, half),
    ];
    for (name, way, count, offset) in ways.into_iter().filter(|(_, _, count, _)| *count > 0) {
        let bytes = part(count) * streams.block_bytes;
        job.section(name);
        job.set("rw", way);
        job.set("numjobs", count);
        job.set("offset", offset);
        job.set("offset_increment", bytes);
        job.set("size", bytes);
        job.set("write_lat_log", name);
    }
    Ok(job)
}

/// How a device is asked to keep what it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flushes {
    /// Never.
    Never,
    /// After each write.
    EachWrite,
}

/// Writes one after the other, as an intent log has them, by `writers` at the same time.
///
/// # Errors
/// A path that cannot be told.
pub fn log_writes(
    area: &Area,
    block_bytes: u64,
    writers: u32,
    flushes: Flushes,
    times: Times,
) -> Result<JobFile, BenchError> {
    let mut job = JobFile::new(area, false)?;
    // The flush of one write after the other: no queue.
    job.text = job.text.replace("ioengine=libaio", "ioengine=psync");
    job.set("bs", block_bytes);
    job.set("rw", "write");
    job.set("numjobs", writers);
    let part = area.size_bytes / u64::from(writers) / block_bytes * block_bytes;
    job.set("size", part);
    job.set("offset_increment", part);
    job.set("time_based", 1);
    job.set("runtime", times.seconds);
    job.set("per_job_logs", 0);
    job.set("log_avg_msec", times.step_ms());
    job.section(MEASURED);
    if flushes == Flushes::EachWrite {
        job.set("fdatasync", 1);
    }
    job.set("write_iops_log", MEASURED);
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    fn area() -> Area {
        Area {
            place: Place::File {
                path: "/tank/a:b/data".into(),
                is_direct: true,
            },
            size_bytes: 64 << 20,
            is_read_only: false,
        }
    }

    const TIMES: Times = Times {
        seconds: 30,
        warm_up_seconds: 60,
    };

    fn has(job: &JobFile, lines: &[&str]) {
        for line in lines {
            let found = job.text().lines().any(|one| one == *line);
            assert!(found, "{line} is not in\n{}", job.text());
        }
    }

    #[test]
    fn a_load_is_told_in_the_words_of_fio() {
        let life = &Profile::Vmware.tests(&[])[1];
        let job = test(&area(), life, TIMES, 7).unwrap();
        has(
            &job,
            &[
                "ioengine=libaio",
                "# standard input is \"/tank/a:b/data\"",
                "filename=/proc/self/fd/0",
                "allow_file_create=0",
                "direct=1",
                "rw=randrw",
                "rwmixread=65",
                "percentage_random=60",
                "bs=8192",
                "iodepth=64",
                "randseed=7",
                "[warm-up]",
                "steadystate=iops_slope:0.5%",
                "steadystate_duration=20",
                "runtime=60",
                "[measured]",
                "runtime=30",
            ],
        );
        assert!(!job.is_read_only && job.is_of_input);
    }

    #[test]
    fn without_a_warm_up_all_counts() {
        let reads = &Profile::Iometer.tests(&[])[2];
        let times = Times {
            seconds: 1,
            warm_up_seconds: 0,
        };
        let job = test(&area(), reads, times, 1).unwrap();
        has(&job, &["rw=randread", "log_avg_msec=100", "[measured]"]);
        assert!(!job.text().contains("[warm-up]"), "{}", job.text());
        assert!(!job.text().contains("rwmixread"), "{}", job.text());
    }

    #[test]
    fn bonnie_goes_through_memory_once_and_flushes() {
        let bonnie = Profile::Bonnie.tests(&[]);
        let output = test(&area(), &bonnie[0], TIMES, 1).unwrap();
        has(
            &output,
            &["ioengine=psync", "direct=0", "rw=write", "end_fsync=1"],
        );
        assert!(!output.text().contains("runtime"), "{}", output.text());
        let input = test(&area(), &bonnie[2], TIMES, 1).unwrap();
        assert!(!input.text().contains("fsync"), "{}", input.text());
        let seeks = test(&area(), &bonnie[3], TIMES, 1).unwrap();
        has(
            &seeks,
            &["rw=randrw", "rwmixread=90", "numjobs=3", "runtime=30"],
        );
    }

    #[test]
    fn places_have_engines_of_their_own() {
        let reads = &Profile::Iometer.tests(&[])[0];
        let iscsi = Area {
            place: Place::Iscsi {
                url: "iscsi://10.0.0.1:3260/iqn.2026-11.org.example:tank/0".into(),
            },
            is_read_only: true,
            ..area()
        };
        let job = test(&iscsi, reads, TIMES, 1).unwrap();
        let name = "filename=iscsi\\://10.0.0.1\\:3260/iqn.2026-11.org.example\\:tank/0";
        has(&job, &["ioengine=libiscsi", name]);
        assert!(job.is_read_only && !job.is_of_input);
        assert!(!job.text().contains("direct"));
        let nfs = Area {
            place: Place::Nfs {
                url: "nfs://10.0.0.1/tank".into(),
                name: "data".into(),
            },
            ..area()
        };
        let job = test(&nfs, reads, TIMES, 1).unwrap();
        has(
            &job,
            &[
                "ioengine=nfs",
                "nfs_url=nfs://10.0.0.1/tank",
                "filename=data",
            ],
        );
    }

    #[test]
    fn names_that_a_job_file_would_read_otherwise_are_refused() {
        for name in ["${HOME}", "a;b", "a#b", "a\nrw=write", " a", ""] {
            let area = Area {
                place: Place::Nfs {
                    url: "nfs://10.0.0.1/tank".into(),
                    name: name.into(),
                },
                ..area()
            };
            assert!(
                matches!(fill(&area), Err(BenchError::Path { .. })),
                "{name}"
            );
        }
    }

    /// Files are held, and their paths are for people.
    #[test]
    fn paths_of_files_are_words_in_a_line() {
        let area = Area {
            place: Place::File {
                path: "/tank/${HOME};\nrw=write".into(),
                is_direct: true,
            },
            ..area()
        };
        let job = fill(&area).unwrap();
        has(
            &job,
            &[
                "# standard input is \"/tank/${HOME};\\nrw=write\"",
                "filename=/proc/self/fd/0",
            ],
        );
    }

    #[test]
    fn streams_have_parts_that_do_not_overlap() {
        let wanted = Streams {
            recordings: 3,
            playbacks: 4,
            rate: 1_250_000,
            block_bytes: 1 << 18,
        };
        let job = streams(&area(), &wanted, 20).unwrap();
        // A quarter and a third of 32 MiB, in blocks.
        has(
            &job,
            &[
                "[playback]",
                "numjobs=4",
                "size=8388608",
                "offset_increment=8388608",
                "[recording]",
                "numjobs=3",
                "offset=33554432",
                "offset_increment=11010048",
                "rate=1250000",
            ],
        );
        let one_way = Streams {
            recordings: 0,
            ..wanted
        };
        let job = streams(&area(), &one_way, 20).unwrap();
        assert!(!job.text().contains("recording"), "{}", job.text());
        let many = Streams {
            recordings: 1000,
            ..wanted
        };
        let refused = streams(&area(), &many, 20);
        assert!(matches!(refused, Err(BenchError::TooSmall { .. })));
    }

    #[test]
    fn a_log_is_written_with_and_without_flushes() {
        let flushed = log_writes(&area(), 4096, 1, Flushes::EachWrite, TIMES).unwrap();
        has(
            &flushed,
            &["ioengine=psync", "fdatasync=1", "rw=write", "direct=1"],
        );
        let free = log_writes(&area(), 131_072, 4, Flushes::Never, TIMES).unwrap();
        has(
            &free,
            &["numjobs=4", "size=16777216", "offset_increment=16777216"],
        );
        assert!(!free.text().contains("sync=1\n"), "{}", free.text());
    }

    #[test]
    fn logs_have_enough_points_and_not_too_many() {
        let step = |seconds, warm_up_seconds| {
            let times = Times {
                seconds,
                warm_up_seconds,
            };
            times.step_ms()
        };
        assert_eq!(step(1, 0), 100);
        assert_eq!(step(30, 60), 1000);
        assert_eq!(step(10, 0), 333);
        assert_eq!(step(3600, 0), 6000);
    }
}
