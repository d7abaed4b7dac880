//! Disks, and what they hang on.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::PlanError;
use crate::amount::{parse_bytes, parse_rate};

/// What a disk is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanDiskKind")]
#[serde(rename_all = "lowercase")]
pub enum DiskKind {
    /// Platters and an arm.
    Hdd,
    /// Flash behind SATA or SAS.
    Ssd,
    /// Flash behind PCI Express.
    Nvme,
}

/// Part of a hard disk's access that is the wait for the sector: 4.2 of 11.1 ms at 7,200
/// revolutions a minute and 90 accesses a second. Disks with faster arms turn faster.
const ROTATION_SHARE: f64 = 3.0 / 8.0;

impl DiskKind {
    /// Small random reads a second, one at a time. Hard disks: 12.5 ms for an arm of today at
    /// 7,200 revolutions a minute. Flash: about 120 and 80 microseconds for a read.
    pub fn usual_accesses_per_second(self) -> f64 {
        match self {
            DiskKind::Hdd => 80.0,
            DiskKind::Ssd => 8_000.0,
            DiskKind::Nvme => 12_000.0,
        }
    }

    /// Sequential bytes a second: a hard disk of today on average over its zones, SATA 6 Gbit/s,
    /// four lanes of PCI Express 3.0.
    pub fn usual_rate(self) -> u64 {
        match self {
            DiskKind::Hdd => 180_000_000,
            DiskKind::Ssd => 530_000_000,
            DiskKind::Nvme => 3_000_000_000,
        }
    }

    /// Part of the disks that fail in a year. Backblaze's reports for 2013 to 2024 have 1 to 2 %
    /// for hard disks and about 1 % for SSDs.
    pub fn usual_failures_per_year(self) -> f64 {
        match self {
            DiskKind::Hdd => 0.02,
            DiskKind::Ssd | DiskKind::Nvme => 0.01,
        }
    }

    /// Bits read for one that cannot be read, by the makers' data sheets: 10^14 for hard disks of
    /// desktops, 10^15 for those of servers (taken here), 10^16 and 10^17 for flash.
    pub fn usual_bits_per_error(self) -> f64 {
        match self {
            DiskKind::Hdd => 1e15,
            DiskKind::Ssd => 1e16,
            DiskKind::Nvme => 1e17,
        }
    }

    /// How many times as many small reads a disk does with `depth` of them under way than with
    /// one. `depth` is at least 1.
    ///
    /// A hard disk takes the nearest of the `depth - 1` that wait while one is under way. The
    /// chance that one is within time *t* grows with the cube of *t* (the square of the distance
    /// that the arm covers, times the wait), so the nearest of *n* is about n^(1/3) times as near;
    /// settling, which no choice makes shorter, leaves the fourth root. The model of a disk in
    /// crate `device` agrees (a test compares them). Flash works at several at the same time.
    pub fn gain(self, depth: f64) -> f64 {
        /// Reads that flash works at in the end: channels behind SATA's 32 commands, dies of NVMe.
        const SSD_PARALLEL: f64 = 10.0;
        const NVME_PARALLEL: f64 = 40.0;
        match self {
            DiskKind::Hdd => (depth - 1.0).max(1.0).powf(0.25),
            DiskKind::Ssd => depth.clamp(1.0, SSD_PARALLEL),
            DiskKind::Nvme => depth.clamp(1.0, NVME_PARALLEL),
        }
    }

    /// How much longer the last of `count` disks takes, that begin the same access at the same
    /// time, than one: all move their arms alike, and each waits for its own sector, on average
    /// for half a revolution, the last of them for `count / (count + 1)` of one.
    pub fn wait_for_all(self, count: f64) -> f64 {
        match self {
            DiskKind::Hdd => 1.0 - ROTATION_SHARE + ROTATION_SHARE * 2.0 * count / (count + 1.0),
            DiskKind::Ssd | DiskKind::Nvme => 1.0,
        }
    }
}

impl fmt::Display for DiskKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            DiskKind::Hdd => "hdd",
            DiskKind::Ssd => "ssd",
            DiskKind::Nvme => "nvme",
        })
    }
}

/// Some disks that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanDisks")]
pub struct Disks {
    /// How many.
    pub count: u64,
    /// Bytes of each.
    pub size_bytes: u64,
    /// What they are made of.
    pub kind: DiskKind,
    /// Small random reads a second of each, one at a time. In a question, 0 is what is usual for
    /// the kind.
    #[serde(default)]
    pub accesses_per_second: f64,
    /// Sequential bytes a second of each. In a question, 0 is what is usual for the kind.
    #[serde(default)]
    pub rate: u64,
    /// What each costs, in any currency; 0 when that is not known.
    #[serde(default)]
    pub price: f64,
}

impl Disks {
    /// With what is usual for the kind where nothing was said.
    #[must_use]
    pub(crate) fn or_usual(mut self) -> Self {
        if self.accesses_per_second == 0.0 {
            self.accesses_per_second = self.kind.usual_accesses_per_second();
        }
        if self.rate == 0 {
            self.rate = self.kind.usual_rate();
        }
        self
    }

    /// Disks with the figures that are usual for their kind.
    pub fn usual(count: u64, size_bytes: u64, kind: DiskKind) -> Self {
        Disks {
            count,
            size_bytes,
            kind,
            accesses_per_second: kind.usual_accesses_per_second(),
            rate: kind.usual_rate(),
            price: 0.0,
        }
    }

    /// Whether all figures can be of disks.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`].
    pub fn check(&self) -> Result<(), PlanError> {
        let bad = |what, value: String, wanted| {
            Err(PlanError::OutOfRange {
                what,
                value,
                wanted,
            })
        };
        if !(1..=100_000).contains(&self.count) {
            return bad(
                "the number of disks",
                self.count.to_string(),
                "1 to 100,000",
            );
        }
        if self.size_bytes < 64 << 20 || self.size_bytes > 1 << 60 {
            return bad(
                "a disk's size",
                self.size_bytes.to_string(),
                "64 MiB to 1 EiB, in bytes",
            );
        }
        if !(1.0..=1e7).contains(&self.accesses_per_second) {
            return bad(
                "a disk's accesses a second",
                self.accesses_per_second.to_string(),
                "1 to 10,000,000",
            );
        }
        if !(100_000..=1_000_000_000_000).contains(&self.rate) {
            return bad(
                "a disk's rate",
                self.rate.to_string(),
                "100 kB/s to 1 TB/s, in bytes a second",
            );
        }
        if !(0.0..=1e9).contains(&self.price) {
            return bad("a disk's price", self.price.to_string(), "0 to 1e9");
        }
        Ok(())
    }
}

/// `COUNTxSIZE[:KIND][:FIGURE...]`, such as `16x500GB`, `2x400GB:ssd` or
/// `16x500GB:hdd:90seeks:72MB/s:price=55`. A count of one can be left out.
impl FromStr for Disks {
    type Err = PlanError;

    fn from_str(word: &str) -> Result<Self, PlanError> {
        const WANTED: &str = "disks are COUNTxSIZE, then after colons a kind (hdd, ssd, nvme), \
                              90seeks, 72MB/s, price=55 as far as known: 16x500GB:hdd:90seeks";
        let bad = || PlanError::word(word, WANTED);
        let mut parts = word.split(':');
        let first = parts.next().unwrap_or_default();
        let (count, size) = first.split_once('x').unwrap_or(("1", first));
        let count = count.parse().map_err(|_| bad())?;
        let size_bytes = parse_bytes(size)?;
        let (mut kind, mut accesses, mut rate, mut price) = (DiskKind::Hdd, None, None, 0.0);
        for part in parts {
            match part {
                "hdd" => kind = DiskKind::Hdd,
                "ssd" => kind = DiskKind::Ssd,
                "nvme" => kind = DiskKind::Nvme,
                part => {
                    if let Some(number) = part.strip_suffix("seeks") {
                        accesses = Some(number.parse().map_err(|_| bad())?);
                    } else if let Some(number) = part.strip_prefix("price=") {
                        price = number.parse().map_err(|_| bad())?;
                    } else if part.ends_with("/s") {
                        rate = Some(parse_rate(part)?);
                    } else {
                        return Err(bad());
                    }
                }
            }
        }
        let usual = Disks::usual(count, size_bytes, kind);
        let disks = Disks {
            accesses_per_second: accesses.unwrap_or(usual.accesses_per_second),
            rate: rate.unwrap_or(usual.rate),
            price,
            ..usual
        };
        disks.check()?;
        Ok(disks)
    }
}

impl fmt::Display for Disks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = crate::amount::show_bytes(self.size_bytes);
        write!(out, "{} × {size} {}", self.count, self.kind)
    }
}

/// Something that several disks share on their way to memory: a controller, its slot, a bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanBus")]
pub struct Bus {
    /// What people call it.
    pub name: String,
    /// Bytes a second that it carries from its disks to memory.
    pub read_rate: u64,
    /// Bytes a second that it carries from memory to its disks.
    pub write_rate: u64,
    /// Disks on it at most; 0: its share of all.
    pub disks: u64,
}

/// What PCI-X really carries of what its clock allows (64 bits a cycle). A controller that sends to
/// memory gets about half, beside arbitration, address phases and bursts that end early: the one
/// measurement at hand is 520 MB/s of 1,067 through one bus of 133 MHz (issue 45). For a transfer
/// to a disk the controller has to ask for the data first, and gets it in split completions of at
/// most 512 bytes (PCI-X 1.0b, maximum memory read byte count as it is after a reset); two thirds
/// of the other direction are assumed.
const PCIX_SEND_PERCENT: u64 = 49;
const PCIX_ASK_PERCENT: u64 = 33;

/// What PCI Express carries of its lanes' rate after encoding: headers of packets of 128 to 256
/// bytes, acknowledgements and credits take an eighth to a quarter.
const PCIE_PERCENT: u64 = 80;

impl Bus {
    fn pcix(name: &str, mhz_thirds: u64) -> (u64, u64) {
        debug_assert!(name.starts_with("pcix"));
        // Thirds of a MHz: the clocks are 66 2/3, 100 and 133 1/3.
        let raw = mhz_thirds * 8_000_000 / 3;
        (raw * PCIX_SEND_PERCENT / 100, raw * PCIX_ASK_PERCENT / 100)
    }

    /// What a name of a bus stands for: rates from the disks and to them.
    fn known(name: &str) -> Option<(u64, u64)> {
        let both = |rate: u64| Some((rate, rate));
        let lanes_of = |word: &str| {
            let lanes = word.parse::<u64>().ok();
            lanes.filter(|lanes| (1..=32).contains(lanes))
        };
        if let Some(rest) = name.strip_prefix("pcie") {
            let (generation, lanes) = rest.split_once('x')?;
            // Bytes a second of one lane after its encoding (8b/10b, from generation 3 on
            // 128b/130b).
            let lane = match generation {
                "1" => 250_000_000,
                "2" => 500_000_000,
                "3" => 984_600_000,
                "4" => 1_969_200_000,
                "5" => 3_938_400_000,
                _ => return None,
            };
            return both(lane * lanes_of(lanes)? * PCIE_PERCENT / 100);
        }
        if let Some(rest) = name.strip_prefix("sas") {
            let (generation, lanes) = rest.split_once('x')?;
            // Bytes a second of one lane beside its frames, as of SATA.
            let lane = match generation {
                "1" => 270_000_000,
                "2" => 540_000_000,
                "3" => 1_080_000_000,
                "4" => 2_160_000_000,
                _ => return None,
            };
            return both(lane * lanes_of(lanes)?);
        }
        match name {
            "pcix66" => Some(Self::pcix(name, 200)),
            "pcix100" => Some(Self::pcix(name, 300)),
            "pcix133" => Some(Self::pcix(name, 400)),
            // What SATA carries beside its frames: a port multiplier has one such link.
            "sata1" => both(135_000_000),
            "sata2" => both(270_000_000),
            "sata3" => both(540_000_000),
            _ => None,
        }
    }
}

/// `NAME[:DISKS]` with a name such as `pcix133`, `pcie3x8`, `sata2`, `sas2x4`, or
/// `READ[/WRITE][:DISKS]` with measured rates, such as `520MB/350MB:8`.
impl FromStr for Bus {
    type Err = PlanError;

    fn from_str(word: &str) -> Result<Self, PlanError> {
        const WANTED: &str = "a bus is pcix66, pcix100, pcix133, pcie3x8 and the like, sata2, \
                              sas2x4, or its rates as 520MB/350MB; then, after a colon, how many \
                              disks are on it";
        let bad = || PlanError::word(word, WANTED);
        let (name, disks) = match word.split_once(':') {
            Some((name, disks)) => (name, disks.parse().map_err(|_| bad())?),
            None => (word, 0),
        };
        let (read_rate, write_rate) = match Self::known(name) {
            Some(rates) => rates,
            None => {
                let (read, write) = name.split_once('/').unwrap_or((name, name));
                let rate = |word| parse_bytes(word).map_err(|_| bad());
                (rate(read)?, rate(write)?)
            }
        };
        if read_rate == 0 || write_rate == 0 {
            return Err(bad());
        }
        Ok(Bus {
            name: name.to_owned(),
            read_rate,
            write_rate,
            disks,
        })
    }
}

/// The rates of `count` disks, all as busy as each other, through their buses: how much all of
/// them together can move, in bytes a second, and which bus is full then. `None` without buses:
/// nothing is known that limits them.
///
/// Disks are spread over the buses evenly, as far as each has room.
pub fn through(buses: &[Bus], count: u64, rate_of: impl Fn(&Bus) -> u64) -> Option<(f64, usize)> {
    let on_each = spread(buses, count);
    let limits = buses.iter().zip(on_each).enumerate();
    limits
        .filter(|(_, (_, on))| *on > 0)
        .map(|(index, (bus, on))| {
            let share = count as f64 / on as f64;
            (rate_of(bus) as f64 * share, index)
        })
        .min_by(|one, other| one.0.total_cmp(&other.0))
}

/// How many of `count` disks are on each bus: evenly, as far as each has room. What does not come
/// out even goes to the buses that are named last. More than fit are spread evenly too.
fn spread(buses: &[Bus], count: u64) -> Vec<u64> {
    let rooms = || {
        let room_of = |bus: &Bus| match bus.disks {
            0 => u64::MAX,
            disks => disks,
        };
        buses.iter().map(room_of)
    };
    let up_to = |level: u64| {
        let taken = rooms().map(|room| room.min(level));
        taken.fold(0, u64::saturating_add)
    };
    // The highest level up to which all can be filled.
    let (mut level, mut above) = (0, count + 1);
    while above - level > 1 {
        let middle = level + (above - level) / 2;
        match up_to(middle) <= count {
            true => level = middle,
            false => above = middle,
        }
    }
    let mut on: Vec<u64> = rooms().map(|room| room.min(level)).collect();
    let mut left = count - up_to(level);
    for (on, room) in on.iter_mut().zip(rooms()).rev() {
        if left > 0 && room > *on {
            (*on, left) = (*on + 1, left - 1);
        }
    }
    let all = buses.len().max(1) as u64;
    for (index, on) in on.iter_mut().rev().enumerate() {
        *on += left / all + u64::from((index as u64) < left % all);
    }
    on
}
