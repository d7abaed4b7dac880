//! What a trial's file says.

use std::fmt;
use std::time::Duration;

use plan::Layout;
use plan::amount::parse_bytes;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use crate::TrialError;
use crate::catalog::{Known, known};

/// A pool, what is in it, and what is done with it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// What it is about, in a line.
    pub title: String,
    /// More of it, and where published figures are from.
    #[serde(default)]
    pub about: String,
    /// Which server it is, where a file tells of several ([`crate::Trials`]).
    #[serde(default)]
    pub server: String,
    /// Decides all that is random.
    #[serde(default)]
    pub seed: u64,
    /// All sizes and rates are smaller by this factor, so that it is told sooner.
    #[serde(default = "one")]
    pub scale: u32,
    /// The pool.
    pub pool: Pool,
    /// Buses between the disks and memory; disks take turns on them. Without any, nothing but the
    /// disks limits the pool.
    #[serde(default)]
    pub bus: Vec<Bus>,
    /// Between the clients and the server; without it they are one machine.
    pub network: Option<Network>,
    /// What is read and written.
    pub set: Set,
    /// What is done, in order.
    pub step: Vec<Step>,
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// As in `millpond plan`: `mirror:10x2`, `raidz2:2x6`.
    pub layout: Layout,
    /// Name of the disks' model.
    pub disk: String,
    /// Size of each disk, if not the model's.
    #[serde(default, deserialize_with = "maybe_size")]
    pub disk_bytes: Option<u64>,
    /// Cache in memory.
    #[serde(default = "memory", deserialize_with = "size")]
    pub memory: u64,
    /// Cache devices.
    #[serde(default)]
    pub cache: Vec<Devices>,
    /// Bytes a second that all cache devices together are filled with, however empty they are: as
    /// OpenZFS's `l2arc_write_max` does. Without it they are filled as they are by default.
    #[serde(default, deserialize_with = "maybe_size")]
    pub cache_fill: Option<u64>,
    /// Cache devices are empty after a restart, as OpenZFS's were before version 2.0.
    #[serde(default)]
    pub cache_lost: bool,
    /// Log devices, each on its own.
    #[serde(default)]
    pub log: Vec<Devices>,
    /// Devices for dedup tables, each on its own.
    #[serde(default)]
    pub dedup: Vec<Devices>,
    /// Changes of dedup tables are logged first, as pools have it. Without, they go into the tables
    /// at once.
    #[serde(default = "yes")]
    pub dedup_logs: bool,
    /// Part of the disks that the set takes, in percent, if they are to be so small: data on an
    /// old, full pool is all over the disks, on a new one at the outer end, where the arm moves
    /// little.
    pub spread_percent: Option<u32>,
}

/// Devices of one model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Devices {
    /// How many.
    pub count: usize,
    /// Name of the model.
    pub disk: String,
}

/// Some of the disks share it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bus {
    /// Bytes a second from disks, one direction at a time.
    #[serde(deserialize_with = "size")]
    pub rate: u64,
    /// The same to disks, if it is another one: some buses and controllers write slower.
    #[serde(default, deserialize_with = "maybe_size")]
    pub write_rate: Option<u64>,
    /// How many disks are on it; those that no bus names are on none.
    pub disks: usize,
}

impl Bus {
    /// Bytes a second to disks.
    pub(crate) fn rate_to_disks(&self) -> u64 {
        self.write_rate.unwrap_or(self.rate)
    }
}

/// A network of gigabit links.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Links, used in turns.
    #[serde(default = "one_link")]
    pub links: usize,
    /// Frames of 9,000 bytes.
    #[serde(default)]
    pub jumbo: bool,
    /// What the server's processor does for each request, in microseconds.
    #[serde(default)]
    pub request_us: u64,
}

/// What is read and written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// A volume or a file.
    pub kind: SetKind,
    /// Its size.
    #[serde(deserialize_with = "size")]
    pub bytes: u64,
    /// `volblocksize` or `recordsize`.
    #[serde(deserialize_with = "size")]
    pub block: u64,
    /// How many files it is in, for [`SetKind::Files`].
    #[serde(default)]
    pub files: u64,
    /// Its blocks are deduplicated. None of them is like another one, so nothing is saved.
    #[serde(default)]
    pub dedup: bool,
    /// Each read of a file moves its access time on.
    #[serde(default)]
    pub atime: bool,
    /// So much of it, in percent, is written before, at its end. Sequential loads begin at its
    /// start, so that what they write is new until they come there.
    #[serde(default = "all_percent")]
    pub filled_percent: u32,
}

fn all_percent() -> u32 {
    100
}

/// What the data is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SetKind {
    /// A block volume.
    Volume,
    /// A file of a filesystem.
    File,
    /// Many files, a thousand in each directory.
    Files,
}

/// What is done with the pool.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    tag = "do",
    rename_all = "lowercase",
    rename_all_fields = "snake_case",
    deny_unknown_fields
)]
pub enum Step {
    /// Reads and writes for a time.
    Load(Load),
    /// A disk stops to answer, by number from 0.
    Fail {
        /// Which.
        disk: usize,
    },
    /// A new disk takes the place of one, by number; until it holds all.
    Replace {
        /// Which.
        disk: usize,
        /// In the order of the disk, without checksums first.
        #[serde(default)]
        sequential: bool,
    },
    /// Everything is verified.
    Scrub {
        /// What clients do meanwhile; its times do not count.
        beside: Option<Load>,
        /// What was published, to be printed beside it: how long it took.
        published_seconds: Option<u64>,
    },
    /// The pool is exported and imported: memory is empty then.
    Restart,
}

/// Reads and writes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// A line of the report.
    pub name: String,
    /// Where.
    pub access: Access,
    /// How many of a hundred are reads; the others are writes.
    pub reads_percent: u32,
    /// Bytes of each.
    #[serde(deserialize_with = "size")]
    pub block: u64,
    /// Under way at a time.
    pub depth: usize,
    /// Writes are durable when they are answered.
    #[serde(default)]
    pub sync: bool,
    /// The cache is empty when it begins.
    #[serde(default = "yes")]
    pub cold: bool,
    /// Seconds of virtual time.
    pub seconds: u64,
    /// Seconds before those that count.
    #[serde(default)]
    pub warm_up_seconds: u64,
    /// A point of the report for so many seconds; 0: for all.
    #[serde(default)]
    pub every_seconds: u64,
    /// What was published, to be printed beside it: operations a second.
    pub published_iops: Option<f64>,
    /// The same at times of a load that is told in stretches.
    #[serde(default)]
    pub published: Vec<Published>,
    /// The same: bytes a second.
    #[serde(default, deserialize_with = "maybe_size")]
    pub published_rate: Option<u64>,
    /// The same: the most that log devices held, in bytes.
    #[serde(default, deserialize_with = "maybe_size")]
    pub published_log: Option<u64>,
}

/// Operations a second that were published of a time.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Seconds since what counts of the load began.
    pub seconds: u64,
    /// Operations a second.
    pub iops: f64,
}

/// Where reads and writes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Anywhere in the set.
    Random,
    /// One after the other.
    Sequential,
}

fn one() -> u32 {
    1
}

fn one_link() -> usize {
    1
}

fn yes() -> bool {
    true
}

fn memory() -> u64 {
    1 << 30
}

/// Virtual time that one step may take: what does not end until then never will.
pub(crate) const STEP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

impl Trial {
    /// Reads a trial's file.
    ///
    /// # Errors
    /// [`TrialError::Spec`] says where the file is wrong.
    pub fn parse(text: &str) -> Result<Self, TrialError> {
        let trial: Trial =
            toml_edit::de::from_str(text).map_err(|error| TrialError::Spec(error.to_string()))?;
        trial.check()?;
        Ok(trial)
    }

    /// What one would try first with a layout of disks of a model: reads and writes at random and
    /// in sequence, then, where the layout has redundancy, a disk that fails and is replaced, and a
    /// scrub.
    ///
    /// # Errors
    /// [`TrialError::Spec`]: there is no such model.
    pub fn usual(layout: Layout, disk: &str) -> Result<Self, TrialError> {
        const BLOCK_BYTES: u64 = 128 << 10;
        let load = |name: &str, access, reads_percent, depth, seconds| {
            Step::Load(Load {
                name: name.into(),
                access,
                reads_percent,
                block: BLOCK_BYTES,
                depth,
                sync: false,
                cold: true,
                seconds,
                warm_up_seconds: 4,
                every_seconds: 0,
                published_iops: None,
                published: Vec::new(),
                published_rate: None,
                published_log: None,
            })
        };
        let mut step = vec![
            load("sequential reads", Access::Sequential, 100, 8, 8),
            load("random reads", Access::Random, 100, 32, 30),
            load("sequential writes", Access::Sequential, 0, 8, 10),
            load("random writes", Access::Random, 0, 32, 10),
        ];
        if layout.may_fail() > 0 {
            step.push(Step::Fail { disk: 0 });
            step.push(Step::Replace {
                disk: 0,
                sequential: false,
            });
        }
        step.push(Step::Scrub {
            beside: None,
            published_seconds: None,
        });
        let trial = Trial {
            title: "A layout".into(),
            about: String::new(),
            server: String::new(),
            seed: 1,
            scale: 1,
            pool: Pool {
                layout,
                disk: disk.into(),
                disk_bytes: None,
                memory: 128 << 20,
                cache: Vec::new(),
                cache_fill: None,
                cache_lost: false,
                log: Vec::new(),
                dedup: Vec::new(),
                dedup_logs: true,
                spread_percent: Some(50),
            },
            bus: Vec::new(),
            network: None,
            set: Set {
                kind: SetKind::File,
                bytes: 2 << 30,
                block: BLOCK_BYTES,
                files: 0,
                dedup: false,
                atime: false,
                filled_percent: all_percent(),
            },
            step,
        };
        trial.check()?;
        Ok(trial)
    }

    /// The same trial at another scale.
    ///
    /// # Errors
    /// [`TrialError::Spec`] where too little is left at that scale.
    pub fn at_scale(mut self, scale: u32) -> Result<Self, TrialError> {
        self.scale = scale;
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), TrialError> {
        let disks = self.pool.layout.disks() as usize;
        let refuse = |why: String| Err(TrialError::Spec(why));
        if self.scale == 0 {
            return refuse("scale: 1 is the whole size".into());
        }
        if self
            .pool
            .spread_percent
            .is_some_and(|spread| !(1..=80).contains(&spread))
        {
            return refuse("spread_percent: 1 to 80".into());
        }
        self.disk()?;
        let pool = &self.pool;
        for device in pool.cache.iter().chain(&pool.log).chain(&pool.dedup) {
            model(&device.disk)?;
        }
        if self.bus.iter().map(|bus| bus.disks).sum::<usize>() > disks {
            return refuse(format!(
                "there are more disks on buses than the {disks} there are"
            ));
        }
        if self
            .bus
            .iter()
            .any(|bus| bus.rate.min(bus.rate_to_disks()) / u64::from(self.scale) == 0)
        {
            return refuse("bus: its rate is 0".into());
        }
        if self
            .network
            .as_ref()
            .is_some_and(|network| network.links == 0)
        {
            return refuse("network: it has one link at least".into());
        }
        if self.set.block == 0 || !self.set.block.is_power_of_two() || self.set.block > 16 << 20 {
            return refuse("set: block is a power of two up to 16M".into());
        }
        if (self.set.kind == SetKind::Files) != (self.set.files > 0) {
            return refuse("set: files goes with kind = \"files\"".into());
        }
        if self.set.filled_percent > 100 || self.set.filled_percent < 100 && self.set.files > 0 {
            return refuse("set: filled_percent: 0 to 100, of files all".into());
        }
        if self.set_bytes() < self.set.block.min(self.file_bytes().unwrap_or(u64::MAX)) {
            return refuse(format!(
                "set: smaller than a block at 1:{}; choose a smaller scale",
                self.scale
            ));
        }
        for step in &self.step {
            match step {
                Step::Load(load) => self.check_load(load)?,
                Step::Fail { disk } | Step::Replace { disk, .. } if *disk >= disks => {
                    return refuse(format!("disk {disk}: there are disks 0 to {}", disks - 1));
                }
                Step::Scrub {
                    beside: Some(load), ..
                } => self.check_load(load)?,
                Step::Fail { .. }
                | Step::Replace { .. }
                | Step::Scrub { beside: None, .. }
                | Step::Restart => {}
            }
        }
        Ok(())
    }

    fn check_load(&self, load: &Load) -> Result<(), TrialError> {
        let refuse = |why: &str| Err(TrialError::Spec(format!("load {}: {why}", load.name)));
        if load.reads_percent > 100 {
            return refuse("reads_percent is 0 to 100");
        }
        if load.depth == 0 || load.depth > 4096 {
            return refuse("depth is 1 to 4096");
        }
        if load.seconds == 0 {
            return refuse("it lasts a second at least");
        }
        if load.block == 0 || !load.block.is_multiple_of(512) || load.block > self.set_bytes() {
            return refuse("block is a multiple of 512 bytes, and not larger than the scaled set");
        }
        if (self.file_bytes()).is_some_and(|bytes| !bytes.is_multiple_of(load.block)) {
            return refuse("each file is as long as some of its blocks");
        }
        Ok(())
    }

    /// The disks' model.
    pub(crate) fn disk(&self) -> Result<&'static Known, TrialError> {
        model(&self.pool.disk)
    }

    /// Size of the set as it is told.
    pub(crate) fn set_bytes(&self) -> u64 {
        let by = u64::from(self.scale);
        match self.file_bytes() {
            Some(bytes) => self.set.files / by * bytes,
            None => self.set.bytes / by / self.set.block * self.set.block,
        }
    }

    /// Bytes of each file of a set of many: a multiple of 512.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        let files = self.set.files;
        (files > 0).then(|| (self.set.bytes / files / 512 * 512).max(512))
    }
}

pub(crate) fn model(name: &str) -> Result<&'static Known, TrialError> {
    known(name).ok_or_else(|| {
        let names: Vec<&str> = crate::CATALOG.iter().map(|known| known.name).collect();
        TrialError::Spec(format!(
            "there is no model of {name:?}: known are {}",
            names.join(", ")
        ))
    })
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Size;
    impl Visitor<'_> for Size {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size such as \"64K\" or \"500GB\"")
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
            u64::try_from(value).map_err(|_| E::custom("a size is not negative"))
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
            parse_bytes(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_any(Size)
}

fn maybe_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    size(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        title = "Ten mirrors"
        scale = 64
        [pool]
        layout = "mirror:10x2"
        disk = "wd-re3-500gb"
        memory = "11GB"
        cache = [{ count = 2, disk = "intel-x25-m-160gb" }]
        [[bus]]
        rate = "520MB"
        disks = 20
        [set]
        kind = "volume"
        bytes = "25GB"
        block = "4K"
        [[step]]
        do = "load"
        name = "random reads"
        access = "random"
        reads_percent = 100
        block = 4096
        depth = 32
        seconds = 600
        [[step]]
        do = "fail"
        disk = 3
        [[step]]
        do = "scrub"
    "#;

    #[test]
    fn a_file_is_read_and_what_is_wrong_in_it_is_said() {
        let trial = Trial::parse(GOOD).unwrap();
        assert_eq!(trial.pool.memory, 11_000_000_000);
        assert_eq!(trial.step.len(), 3);
        assert_eq!(trial.set_bytes(), 25_000_000_000 / 64 / 4096 * 4096);
        for (from, to, says) in [
            ("disk = 3", "disk = 20", "disks 0 to 19"),
            ("wd-re3-500gb", "wd-re4", "known are wd-re3-500gb"),
            ("scale = 64", "scale = 0", "scale"),
            ("depth = 32", "depth = 0", "depth"),
            (
                "rate = \"520MB\"\n        disks = 20",
                "rate = \"1MB\"\n disks = 21",
                "buses",
            ),
            ("bytes = \"25GB\"", "bytes = \"25 pounds\"", "128K"),
            ("seconds = 600", "second = 600", "second"),
            ("mirror:10x2", "mirror:10", "buses"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = Trial::parse(&GOOD.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(error.contains(says), "{to}: {error}");
        }
    }
}
