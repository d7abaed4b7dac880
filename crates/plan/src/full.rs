//! The model that explains what is measured: rates by seeks, queues, buses and links.
//!
//! # Random reads
//!
//! A client has so many reads under way. They are at the vdevs as customers at the counters of a
//! closed queueing network (Gordon and Newell 1967; the sums by Buzen 1973): with few of them some
//! vdevs have nothing to do while others have several, and with several a disk may choose the
//! nearest ([`DiskKind::gain`]). A block on RAID-Z is on several disks of its vdev and there when
//! the last of them has read it ([`DiskKind::wait_for_all`]); the others of its disks are free for
//! other blocks, as far as blocks do not all have data on the same ones
//! ([`Footprint::busiest_share`]). So a vdev with small blocks does more than one disk does. The
//! disks of a mirror are counters of their own.
//!
//! # Random writes
//!
//! They are collected and written together, so that their number does not depend on the client: up
//! to ten are under way at each disk (`zfs_vdev_async_write_max_active`). Each is said to cost an
//! access of each disk that has a part of it, as on a pool whose free space is in pieces. A fresh
//! pool writes them side by side and is faster.
//!
//! # Streams
//!
//! A disk passes over parity as fast as over data, so data comes at its share of the disks' rate.
//! The disks of a mirror take turns in areas of 2 MiB (crate `vdev`, `mirror`), and each has to get
//! over the others' areas. Then the bytes go through the buses: data alone when reading, parity and
//! copies too when writing. What is read ahead for a client is limited; with *q* records on their
//! way through two stages of random speed, both together move less than the slower of them
//! ([`two_stages`]). Writes wait in memory, as many as it takes.
//!
//! # What it leaves out
//!
//! Caches, processors, and metadata.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hardware::through;
use crate::layout::Footprint;
use crate::{Bus, DiskKind, Disks, Layout};

/// Writes under way at each disk (`zfs_vdev_async_write_max_active`).
const WRITES_OF_DISK: f64 = 10.0;
/// Reads of a client that are counted at most: more make no difference that is worth the sums.
const DEPTH_MAX: u64 = 64;
/// Bytes that the disks of a mirror take turns at reading.
const MIRROR_AREA_BYTES: f64 = (2 << 20) as f64;
/// Bytes of a vdev's disk that a stream has in one piece (`metaslab_aliquot`).
const PIECE_BYTES: f64 = (1 << 20) as f64;
/// A jump over something near, in accesses: the wait for the sector and a short way of the arm.
const JUMP: f64 = 0.5;

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanLoad")]
pub struct Load {
    /// Bytes of a block, as it is stored: record size of filesystems, block size of volumes.
    pub block_bytes: u64,
    /// Blocks that are asked for at the same time, by all clients together.
    pub depth: u64,
    /// Part of what they do that is reading, 0 to 1.
    pub read_share: f64,
    /// Streams at the same time; 0: as many as will do.
    pub streams: u64,
    /// Bytes a second of each stream; 0: as fast as it goes.
    pub stream_rate: u64,
}

/// What stands between disks and clients.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    /// Controllers and buses; none: nothing that limits.
    pub buses: &'a [Bus],
    /// Bytes a second that the network carries, in each direction; `None`: nothing that limits.
    pub network_rate: Option<u64>,
}

/// What limits a rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanLimit")]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The disks' accesses.
    Seeks,
    /// The rate at which disks read and write.
    Disks,
    /// The clients ask for too little at a time to keep the disks busy.
    Queue,
    /// The bus of this name.
    Bus(String),
    /// The bus of this name, by parity or copies that go over it too.
    Parity(String),
    /// The network.
    Network,
}

/// Rates, and what limits each of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Random reads a second.
    pub read_iops: f64,
    /// Random writes a second.
    pub write_iops: f64,
    /// Both, in the load's relation.
    pub mixed_iops: f64,
    /// Bytes a second that one stream reads.
    pub read_rate: f64,
    /// Bytes a second that are written in streams.
    pub write_rate: f64,
    /// Streams of the load's rate that are served without a gap; `None` where none was given.
    pub streams_max: Option<u64>,
    /// Bytes written to disks for each byte of data, in streams.
    pub write_amplification: f64,
    /// What limits them.
    pub limited_by: LimitedBy,
}

/// What limits each of [`Rates`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanLimitedBy")]
pub struct LimitedBy {
    /// Random reads.
    pub read_iops: Limit,
    /// Random writes.
    pub write_iops: Limit,
    /// Reading streams.
    pub read_rate: Limit,
    /// Writing streams.
    pub write_rate: Limit,
}

impl Rates {
    /// Of a layout on disks that are alike, in sectors of 2^`ashift` bytes. The layout can be made
    /// ([`Layout::check`]) and the load is not empty.
    pub fn of(layout: Layout, disks: &Disks, ashift: u32, load: &Load, path: Path<'_>) -> Self {
        let pool = Pool {
            layout,
            disks,
            path,
            footprint: Footprint::of(layout, ashift, load.block_bytes),
            block_bytes: load.block_bytes as f64,
            depth: load.depth.clamp(1, DEPTH_MAX),
        };
        let (read_iops, by_read) = pool.random_reads();
        let (write_iops, by_write) = pool.random_writes();
        let (read_rate, by_reading) = pool.reading();
        let (write_rate, by_writing) = pool.writing();
        let share = load.read_share.clamp(0.0, 1.0);
        let mixed_iops = 1.0 / (share / read_iops + (1.0 - share) / write_iops);
        Rates {
            read_iops,
            write_iops,
            mixed_iops,
            read_rate,
            write_rate,
            streams_max: pool.streams(load, share, write_rate),
            write_amplification: pool.amplification(),
            limited_by: LimitedBy {
                read_iops: by_read,
                write_iops: by_write,
                read_rate: by_reading,
                write_rate: by_writing,
            },
        }
    }

    /// Accesses of `block_bytes` a second, of which so many of a hundred read; `None` of streams
    /// that read and write, which the model does not know.
    pub fn operations(&self, is_random: bool, reads_percent: u32, block_bytes: u64) -> Option<f64> {
        let block_bytes = block_bytes as f64;
        match (is_random, reads_percent) {
            (true, 100) => Some(self.read_iops),
            (true, 0) => Some(self.write_iops),
            (true, _) => Some(self.mixed_iops),
            (false, 100) => Some(self.read_rate / block_bytes),
            (false, 0) => Some(self.write_rate / block_bytes),
            (false, _) => None,
        }
    }
}

struct Pool<'a> {
    layout: Layout,
    disks: &'a Disks,
    path: Path<'a>,
    footprint: Footprint,
    block_bytes: f64,
    depth: u64,
}

impl Pool<'_> {
    fn kind(&self) -> DiskKind {
        self.disks.kind
    }

    /// Seconds that one disk takes for its part of a block, with `under_way` of them there and an
    /// access that takes `longer` times what one takes alone.
    fn access_seconds(&self, under_way: f64, longer: f64) -> f64 {
        let accesses = self.disks.accesses_per_second * self.kind().gain(under_way);
        longer / accesses + self.footprint.bytes_of_disk as f64 / self.disks.rate as f64
    }

    /// Counters at which reads wait, and disks of each.
    fn counters(&self) -> (u64, u64) {
        match self.layout {
            Layout::Stripe { .. } | Layout::Mirror { .. } => (self.layout.disks(), 1),
            _ => (self.layout.vdevs(), self.layout.disks_of_vdev()),
        }
    }

    fn random_reads(&self) -> (f64, Limit) {
        let (counters, disks) = self.counters();
        // Copies and single disks: each block is on the one that is asked.
        let share = match disks {
            1 => 1.0,
            _ => self.footprint.busiest_share,
        };
        let wait = self.kind().wait_for_all(self.footprint.read_disks as f64) - 1.0;
        // Blocks a second that a counter serves with so many there: as many as the busiest of its
        // disks, which has its share of them.
        let rate_with = |there: u64| {
            let busy = 1.0 - (1.0 - share).powf(there as f64);
            let under_way = there as f64 * share / busy;
            // Blocks wait for the last of their disks, unless a disk has a part of all that are
            // there: that one never stands still, and the others are done before.
            let waiting = match there {
                1 => 1.0,
                there => 1.0 - share.powf(there as f64),
            };
            busy / share / self.access_seconds(under_way, 1.0 + wait * waiting)
        };
        let rates: Vec<f64> = (1..=self.depth).map(rate_with).collect();
        let own = closed_network(counters, &rates);
        // Counters without a customer, on average over all ways in which they can be there.
        let idle = (counters - 1) as f64 / (self.depth + counters - 1) as f64;
        let limit = if idle > 0.25 {
            Limit::Queue
        } else {
            Limit::Seeks
        };
        self.capped(own, limit, self.block_bytes, 1.0, Direction::Read)
    }

    fn random_writes(&self) -> (f64, Limit) {
        let used = self.footprint.write_disks as f64;
        let vdev = self.layout.disks_of_vdev() as f64;
        let of_disk = 1.0 / self.access_seconds(WRITES_OF_DISK, 1.0);
        let own = self.layout.vdevs() as f64 * vdev / used * of_disk;
        let times = self.amplification();
        self.capped(own, Limit::Seeks, self.block_bytes, times, Direction::Write)
    }

    /// Bytes a second of data at which all disks of the layout read or write, each `efficiency` of
    /// its time.
    fn disk_rate(&self, efficiency: f64) -> f64 {
        let columns = match self.layout {
            Layout::Draid {
                children, spares, ..
            } => children - spares,
            layout => layout.disks_of_vdev(),
        };
        let share = self.block_bytes / self.footprint.allocated_bytes as f64;
        let of_vdev = match self.layout {
            Layout::Mirror { .. } => columns as f64,
            _ => columns as f64 * share,
        };
        self.layout.vdevs() as f64 * of_vdev * self.disks.rate as f64 * efficiency
    }

    /// Seconds that a disk needs to jump over something near.
    fn jump_seconds(&self) -> f64 {
        match self.kind() {
            DiskKind::Hdd => JUMP / self.disks.accesses_per_second,
            DiskKind::Ssd | DiskKind::Nvme => 0.0,
        }
    }

    /// Part of its time that a mirror's disk reads, when one stream takes turns at its disks: what
    /// is the others' it passes over or jumps over, whichever is sooner.
    fn turns(&self) -> f64 {
        let Layout::Mirror { ways, .. } = self.layout else {
            return 1.0;
        };
        let area = MIRROR_AREA_BYTES / self.disks.rate as f64;
        area / (area + self.jump_seconds().min(area * (ways - 1) as f64))
    }

    fn reading(&self) -> (f64, Limit) {
        let (counters, _) = self.counters();
        let asked = (self.depth as f64 / counters as f64).min(1.0);
        let own = self.disk_rate(self.turns()) * asked;
        let mut limit = if asked < 1.0 {
            Limit::Queue
        } else {
            Limit::Disks
        };
        let mut rate = own;
        if let Some((bus_rate, bus)) =
            through(self.path.buses, self.layout.disks(), |bus| bus.read_rate)
        {
            rate = two_stages(own, bus_rate, self.depth);
            if bus_rate < own {
                limit = Limit::Bus(self.path.buses[bus].name.clone());
            }
        }
        self.over_network(rate, limit, 1.0)
    }

    fn writing(&self) -> (f64, Limit) {
        let own = match self.layout {
            Layout::Mirror { ways, .. } => self.disk_rate(1.0) / ways as f64,
            _ => self.disk_rate(1.0),
        };
        let times = self.amplification();
        self.capped(own, Limit::Disks, 1.0, times, Direction::Write)
    }

    /// Bytes that go to disks for each byte of data.
    fn amplification(&self) -> f64 {
        let copies = match self.layout {
            Layout::Mirror { ways, .. } => ways,
            _ => 1,
        };
        (self.footprint.allocated_bytes * copies) as f64 / self.block_bytes
    }

    /// `own` units of `unit_bytes` a second, as far as buses and network let them: over the buses
    /// goes `times` as much.
    fn capped(
        &self,
        own: f64,
        limit: Limit,
        unit_bytes: f64,
        times: f64,
        direction: Direction,
    ) -> (f64, Limit) {
        let rate_of = |bus: &Bus| match direction {
            Direction::Read => bus.read_rate,
            Direction::Write => bus.write_rate,
        };
        let (mut rate, mut limit) = (own, limit);
        if let Some((bus_rate, bus)) = through(self.path.buses, self.layout.disks(), rate_of) {
            let most = bus_rate / times / unit_bytes;
            if most < rate {
                let name = self.path.buses[bus].name.clone();
                // Without parity and copies it would not be the bus.
                limit = match bus_rate / unit_bytes < rate {
                    true => Limit::Bus(name),
                    false => Limit::Parity(name),
                };
                rate = most;
            }
        }
        self.over_network(rate, limit, unit_bytes)
    }

    fn over_network(&self, rate: f64, limit: Limit, unit_bytes: f64) -> (f64, Limit) {
        match self.path.network_rate {
            Some(network) if network as f64 / unit_bytes < rate => {
                (network as f64 / unit_bytes, Limit::Network)
            }
            _ => (rate, limit),
        }
    }

    /// Streams of the load's rate that disks, buses and network serve. What streams read is in
    /// pieces, and for each of them the arm moves; what they write is written together.
    fn streams(&self, load: &Load, read_share: f64, write_rate: f64) -> Option<u64> {
        if load.stream_rate == 0 {
            return None;
        }
        let piece = PIECE_BYTES / self.disks.rate as f64;
        let access = match self.kind() {
            DiskKind::Hdd => 1.0 / self.disks.accesses_per_second,
            DiskKind::Ssd | DiskKind::Nvme => 0.0,
        };
        let own = self.disk_rate(piece / (piece + access));
        let (read_rate, _) = self.capped(own, Limit::Disks, 1.0, 1.0, Direction::Read);
        // Part of the disks' time that a byte a second takes.
        let of_disks = read_share / read_rate + (1.0 - read_share) / write_rate;
        let mut rate = 1.0 / of_disks;
        if let Some(network) = self.path.network_rate {
            // Both directions have it for themselves.
            rate = rate.min(network as f64 / read_share.max(1.0 - read_share));
        }
        Some((rate / load.stream_rate as f64) as u64)
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

/// What so many equal counters serve together, in customers a second, when there are always
/// `rates.len()` customers who go to any counter at random; `rates[n - 1]` is what a counter serves
/// with *n* of them there. Service times are exponential (Buzen's convolution).
pub fn closed_network(counters: u64, rates: &[f64]) -> f64 {
    let customers = rates.len();
    if customers == 0 || counters == 0 {
        return 0.0;
    }
    // In units of the first rate, so that the sums stay within what a number holds.
    let unit = rates[0];
    let mut one = vec![1.0; customers + 1];
    for n in 1..=customers {
        one[n] = one[n - 1] * unit / rates[n - 1];
    }
    let join = |left: &[f64], right: &[f64]| -> Vec<f64> {
        let sum = |n: usize| (0..=n).map(|k| left[k] * right[n - k]).sum();
        (0..=customers).map(sum).collect()
    };
    let mut sums = vec![0.0; customers + 1];
    sums[0] = 1.0;
    let (mut power, mut left) = (one, counters);
    while left > 0 {
        if left & 1 == 1 {
            sums = join(&sums, &power);
        }
        left >>= 1;
        if left > 0 {
            power = join(&power, &power);
        }
    }
    counters as f64 * unit * sums[customers - 1] / sums[customers]
}

/// What two stages of rates `one` and `other` move together when so many pieces are on their way:
/// the closed network of two counters, in closed form.
pub fn two_stages(one: f64, other: f64, pieces: u64) -> f64 {
    let relation = other / one;
    let pieces = pieces.min(1 << 20) as i32;
    if relation > 1.0 {
        return two_stages(other, one, pieces as u64);
    }
    if 1.0 - relation < 1e-9 {
        return one * f64::from(pieces) / f64::from(pieces + 1);
    }
    other * (1.0 - relation.powi(pieces)) / (1.0 - relation.powi(pieces + 1))
}
