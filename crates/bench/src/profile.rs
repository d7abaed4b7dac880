//! The loads, by the names under which people know them.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// A list of loads that people know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchProfile")]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Sixteen tests of 4 KiB and 32 KiB, as people ran them with Iometer on arrays.
    Iometer,
    /// Four tests that users of VMware compare arrays by.
    Vmware,
    /// `sio 0 0 64K 1900m 90 50`, then the same file read.
    Sio,
    /// A file bigger than memory written, rewritten, read, and sought in.
    Bonnie,
    /// Random reads for hours, while caches fill.
    WarmUp,
    /// Recordings and playbacks at a rate of bits: how many go without a gap.
    Streams,
}

/// One load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchTest")]
pub struct Test {
    /// Its name, without the depth.
    pub name: String,
    /// Accesses of a hundred that go to a random place; the others go on where the last one ended.
    pub random_percent: u8,
    /// Accesses of a hundred that read.
    pub reads_percent: u8,
    /// Bytes of each.
    pub block_bytes: u64,
    /// Accesses under way at a time, of each worker.
    pub depth: u32,
    /// Threads that each do this by themselves.
    pub workers: u32,
    /// Through the kernel's page cache, one access at a time, instead of past it.
    pub is_cached: bool,
    /// Once over all of the set, with a flush at its end, instead of for a time.
    pub is_whole: bool,
}

const KIB: u64 = 1 << 10;

impl Test {
    /// A load past the page cache, for a time.
    fn direct(name: &str, random: u8, reads: u8, block_bytes: u64, depth: u32) -> Self {
        Test {
            name: name.to_owned(),
            random_percent: random,
            reads_percent: reads,
            block_bytes,
            depth,
            workers: 1,
            is_cached: false,
            is_whole: false,
        }
    }

    /// Through the page cache, once over all.
    fn whole(name: &str, reads: u8) -> Self {
        Test {
            is_cached: true,
            is_whole: true,
            ..Self::direct(name, 0, reads, 8 * KIB, 1)
        }
    }

    /// Whether it changes what is there.
    pub fn writes(&self) -> bool {
        self.reads_percent < 100
    }

    /// Accesses under way at a time, of all workers.
    pub fn all_depth(&self) -> u32 {
        self.depth * self.workers
    }
}

impl fmt::Display for Test {
    /// `random reads of 4K, 9 deep`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match (self.is_whole, self.workers) {
            (true, _) => Ok(()),
            (false, 1) => write!(f, ", {} deep", self.depth),
            (false, workers) => write!(f, ", {workers} workers"),
        }
    }
}

/// Depths of Iometer's tests: 8 and 32 beside the one that is being answered.
const IOMETER_DEPTHS: [u32; 2] = [9, 33];

fn iometer() -> Vec<Test> {
    let mut out = Vec::new();
    for depth in IOMETER_DEPTHS {
        for block in [4, 32] {
            for (access, random) in [("sequential", 0), ("random", 100)] {
                for (way, reads) in [("reads", 100), ("writes", 0)] {
                    let name = format!("{access} {way} of {block}K");
                    out.push(Test::direct(&name, random, reads, block * KIB, depth));
                }
            }
        }
    }
    out
}

/// "OpenPerformanceTest", which users of VMware's forum (thread "Open unofficial storage
/// performance thread") run with Iometer, 64 accesses at a time, and Openfiler's users after them.
fn vmware() -> Vec<Test> {
    vec![
        Test::direct("max throughput, all reads", 0, 100, 32 * KIB, 64),
        Test::direct("real life, 60% random, 65% reads", 60, 65, 8 * KIB, 64),
        Test::direct("max throughput, half reads", 0, 50, 32 * KIB, 64),
        Test::direct("random 8K, 70% reads", 100, 70, 8 * KIB, 64),
    ]
}

/// SIO's words are reads and random accesses of a hundred, block, size, seconds, threads.
fn sio() -> Vec<Test> {
    vec![
        Test::direct("sio 0 0 64K: writes", 0, 0, 64 * KIB, 50),
        Test::direct("sio 100 0 64K: reads", 0, 100, 64 * KIB, 50),
    ]
}

/// Bonnie's phases of blocks: 8 KiB through the page cache; three seekers, each of which rewrites a
/// tenth of what it reads.
fn bonnie() -> Vec<Test> {
    let seeks = Test {
        workers: 3,
        is_whole: false,
        random_percent: 100,
        reads_percent: 90,
        ..Test::whole("random seeks", 90)
    };
    vec![
        Test::whole("output of blocks", 0),
        Test::whole("rewriting", 50),
        Test::whole("input of blocks", 100),
        seeks,
    ]
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 6] = [
        Profile::Iometer,
        Profile::Vmware,
        Profile::Sio,
        Profile::Bonnie,
        Profile::WarmUp,
        Profile::Streams,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Iometer => "iometer",
            Profile::Vmware => "vmware",
            Profile::Sio => "sio",
            Profile::Bonnie => "bonnie",
            Profile::WarmUp => "warm-up",
            Profile::Streams => "streams",
        }
    }

    /// Its loads, in a line.
    pub fn title(self) -> &'static str {
        match self {
            Profile::Iometer => {
                "reads and writes, random and sequential, of 4K and 32K, 9 and 33 deep"
            }
            Profile::Vmware => "the four tests that users of VMware compare arrays by, 64 deep",
            Profile::Sio => "sequential writes of 64K in 1,900 MB, 50 deep, then reads",
            Profile::Bonnie => "a file of twice the memory: written, rewritten, read, sought in",
            Profile::WarmUp => "random reads of 4K for hours, while caches fill; can be resumed",
            Profile::Streams => "the most recordings and playbacks without a gap",
        }
    }

    /// Seconds that each of its loads is measured for, unless somebody wants others.
    pub fn seconds(self) -> u64 {
        match self {
            Profile::Iometer | Profile::Bonnie => 30,
            // A recorder's buffers hide shorter trouble.
            Profile::Streams => 30,
            Profile::Vmware => 60,
            Profile::Sio => 90,
            Profile::WarmUp => 300,
        }
    }

    /// Bytes that its loads go over, unless somebody wants others, where the host has so much
    /// memory.
    pub fn size_bytes(self, memory_bytes: u64) -> u64 {
        match self {
            Profile::Sio => 1900 << 20,
            Profile::Bonnie => memory_bytes.saturating_mul(2),
            _ => 4 << 30,
        }
    }

    /// Its loads; at other depths than its own where some are given. None of streams, which are
    /// searched for.
    pub fn tests(self, depths: &[u32]) -> Vec<Test> {
        let own = match self {
            Profile::Iometer => iometer(),
            Profile::Vmware => vmware(),
            Profile::Sio => sio(),
            Profile::Bonnie => return bonnie(),
            Profile::WarmUp => vec![Test::direct("random reads of 4K", 100, 100, 4 * KIB, 32)],
            Profile::Streams => return Vec::new(),
        };
        if depths.is_empty() {
            return own;
        }
        let mut out: Vec<Test> = Vec::new();
        for test in own {
            for depth in depths {
                let depth = *depth;
                let test = Test {
                    depth,
                    ..test.clone()
                };
                if !out.contains(&test) {
                    out.push(test);
                }
            }
        }
        out
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = BenchError;

    fn from_str(word: &str) -> Result<Self, BenchError> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|profile| profile.name() == word);
        found.ok_or_else(|| BenchError::Word {
            word: word.to_owned(),
            wanted: "iometer, vmware, sio, bonnie, warm-up or streams",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_profiles() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse::<Profile>().ok(), Some(profile));
        }
        let wrong = "iozone".parse::<Profile>().unwrap_err().to_string();
        assert!(
            wrong.contains("'iozone'") && wrong.contains("warm-up"),
            "{wrong}"
        );
    }

    /// The sixteen that `millpond try iometer` tells.
    #[test]
    fn iometer_has_sixteen_tests_that_all_differ() {
        let tests = Profile::Iometer.tests(&[]);
        assert_eq!(tests.len(), 16);
        let mut names: Vec<String> = tests.iter().map(Test::to_string).collect();
        assert_eq!(names[0], "sequential reads of 4K, 9 deep");
        assert_eq!(names[15], "random writes of 32K, 33 deep");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 16);
    }

    #[test]
    fn vmwares_four_are_those_that_openfiler_publishes() {
        let told: Vec<_> = (Profile::Vmware.tests(&[]).iter())
            .map(|test| (test.random_percent, test.reads_percent, test.block_bytes))
            .collect();
        assert_eq!(
            told,
            [
                (0, 100, 32768),
                (60, 65, 8192),
                (0, 50, 32768),
                (100, 70, 8192)
            ]
        );
    }

    #[test]
    fn a_sweep_has_each_load_at_each_depth_once() {
        let tests = Profile::Iometer.tests(&[1, 4, 16, 4]);
        // Eight loads, each of which the profile has at two depths.
        assert_eq!(tests.len(), 8 * 3);
        // Bonnie has no depth to choose.
        assert_eq!(Profile::Bonnie.tests(&[1, 4]), Profile::Bonnie.tests(&[]));
    }

    #[test]
    fn only_reads_leave_things_as_they_are() {
        let writing = |profile: Profile| {
            let tests = profile.tests(&[]);
            tests.iter().filter(|test| test.writes()).count()
        };
        assert_eq!(writing(Profile::Iometer), 8);
        assert_eq!(writing(Profile::Vmware), 3);
        assert_eq!(writing(Profile::WarmUp), 0);
        assert_eq!(Profile::Bonnie.tests(&[])[3].all_depth(), 3);
    }
}
