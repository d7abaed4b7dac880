//! What the server counts, at one moment.

use std::collections::BTreeMap;

use access::TrafficCounts;
use pool::{IoStats, PoolStatus, VdevStatus};
use series::{BUCKETS, Column, Histogram, Key, Sample};

use super::{CACHE, CLIENT, DEVICE, MOUNT, POOL, PORTAL, SHARE};
use service::pools::OpenPool;
use serving::Serving;
use serving::mounts::MountTraffic;
use serving::nfs::Nfs;
use serving::volumes::Volumes;
use zio::BlockKind;

/// Counters and levels of something.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) key: Key,
    pub(super) label: String,
    /// Whether it is there: one that is gone counts as seen only where it did something before.
    pub(super) is_here: bool,
    /// What it is made of: they are added.
    pub(super) parts: Vec<Part>,
    /// Of levels, the highest since they were read.
    pub(super) peaks: Vec<Option<f64>>,
}

/// Something that counts by itself.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// What it is known by among all of its shape, for as long as it counts, whatever people call
    /// it meanwhile.
    pub(super) id: String,
    /// In the order of the shape's columns; what is an amount is counted since it began.
    pub(super) columns: Vec<u64>,
    /// As many as the shape has, or none.
    pub(super) histograms: Vec<Histogram>,
}

impl Part {
    /// Adds to a sample what came since this was read before. What was not there before, or counts
    /// anew, began in between.
    pub(super) fn add_since(&self, before: Option<&Self>, columns: &[Column], sample: &mut Sample) {
        let goes_on = |before: &&Self| {
            let all = before.columns.iter().zip(&self.columns).zip(columns);
            let mut amounts = all.filter(|(_, column)| **column == Column::Amount);
            amounts.all(|((then, now), _)| then <= now)
        };
        let before = before.filter(goes_on);
        let all = self.columns.iter().zip(columns).enumerate();
        for ((index, (now, column)), sum) in all.zip(&mut sample.columns) {
            let then = before.and_then(|before| before.columns.get(index));
            *sum += match column {
                Column::Amount => now.saturating_sub(then.copied().unwrap_or(0)) as f64,
                Column::Level => *now as f64,
            };
        }
        let all = self.histograms.iter().enumerate();
        for ((index, now), sums) in all.zip(&mut sample.histograms) {
            let then = before.and_then(|before| before.histograms.get(index));
            let counts = now.iter().zip(then.unwrap_or(&[0; BUCKETS]));
            for (sum, (now, then)) in sums.iter_mut().zip(counts) {
                *sum += now.saturating_sub(*then);
            }
        }
    }
}

/// The lowest power of two of nanoseconds that has a bucket of its own: what is below is in the
/// same one as that.
const POWER_MIN: usize = 10;

/// A histogram of nanoseconds whose bucket *n* has what is not below 2^n and below 2^(n+1).
fn folded(powers: &[u64]) -> Histogram {
    let mut out = [0; BUCKETS];
    for (power, count) in powers.iter().enumerate() {
        out[power.saturating_sub(POWER_MIN).min(BUCKETS - 1)] += count;
    }
    out
}

/// Nanoseconds of a place in such a histogram.
pub(super) fn nanoseconds(place: f64) -> f64 {
    (place + POWER_MIN as f64).exp2()
}

fn key(shape: &'static str, names: &[&str]) -> Key {
    Key {
        shape,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// All that is counted.
pub(super) fn all(serving: &Serving) -> Vec<Reading> {
    let mut out = Vec::new();
    for open in serving.pools.all() {
        add_pool(&mut out, &open);
    }
    add_mounts(&mut out, serving.mounts.take_traffic());
    add_iscsi(&mut out, &serving.volumes);
    add_nfs(&mut out, &serving.nfs);
    out
}

fn add_pool(out: &mut Vec<Reading>, open: &OpenPool) {
    let (status, stats) = (open.pool.status(), open.pool.io_stats());
    let cache = open.pool.pipeline().cache().stats().total();
    let (log_bytes, log_peak) = open.pool.pipeline().allocator().take_log_peak();
    let mut leaves = Vec::new();
    add_leaves(&mut leaves, &status.root);
    let mut parts = vec![Part {
        id: status.guid.get().to_string(),
        columns: [
            [0; 4],
            [cache.hits, cache.misses, cache.size_bytes, log_bytes],
        ]
        .concat(),
        histograms: Vec::new(),
    }];
    parts.extend(leaves.iter().map(|leaf| Part {
        id: leaf.guid.get().to_string(),
        columns: of_vdev(leaf).to_vec(),
        histograms: times(stats.get(&leaf.guid), |stats| &stats.total),
    }));
    out.push(Reading {
        key: key(POOL, &[&status.name]),
        label: String::new(),
        is_here: true,
        parts,
        peaks: [vec![None; 7], vec![Some(log_peak as f64)]].concat(),
    });
    out.push(of_cache(open, &status));
    // What cache devices read and write is none of the pool's own devices.
    for leaf in leaves.into_iter().chain(&status.caches) {
        out.extend(of_device(&status.name, leaf, stats.get(&leaf.guid)));
    }
}

/// The cache in memory and each cache device count by themselves: one that is removed takes nothing
/// of what the others did with it.
fn of_cache(open: &OpenPool, status: &PoolStatus) -> Reading {
    let pipeline = open.pool.pipeline();
    let (stats, level) = (pipeline.cache().stats(), pipeline.second_level());
    let kinds = [BlockKind::Data, BlockKind::Metadata, BlockKind::DedupTable];
    let lookups = kinds.map(|kind| [stats.of(kind).hits, stats.of(kind).misses]);
    let ghosts = stats.total().ghost_hits;
    let rest = [ghosts, 0, level.misses(), 0, level.index_bytes()];
    let mut parts = vec![Part {
        id: status.guid.get().to_string(),
        columns: [&lookups.concat()[..], &rest].concat(),
        histograms: Vec::new(),
    }];
    parts.extend(status.caches.iter().map(|device| {
        Part {
            id: device.guid.get().to_string(),
            columns: [
                &[0; 7][..],
                &[device.read_ops, 0, device.allocated_bytes, 0],
            ]
            .concat(),
            histograms: Vec::new(),
        }
    }));
    Reading {
        key: key(CACHE, &[&status.name]),
        label: String::new(),
        is_here: true,
        parts,
        peaks: Vec::new(),
    }
}

fn add_leaves<'a>(out: &mut Vec<&'a VdevStatus>, vdev: &'a VdevStatus) {
    if vdev.children.is_empty() {
        out.push(vdev);
    }
    for child in &vdev.children {
        add_leaves(out, child);
    }
}

/// Bytes read and written, reads, writes.
fn of_vdev(vdev: &VdevStatus) -> [u64; 4] {
    [
        vdev.read_bytes,
        vdev.write_bytes,
        vdev.read_ops,
        vdev.write_ops,
    ]
}

fn times<const N: usize>(
    stats: Option<&IoStats>,
    of: impl Fn(&IoStats) -> &[[u64; N]; 2],
) -> Vec<Histogram> {
    let nothing = IoStats::default();
    let [reads, writes] = of(stats.unwrap_or(&nothing));
    vec![folded(reads), folded(writes)]
}

/// None of what has no path: spares among dRAID's disks, what is missing or was removed.
fn of_device(pool: &str, vdev: &VdevStatus, stats: Option<&IoStats>) -> Option<Reading> {
    let guid = vdev.guid.get().to_string();
    let waiting = |stats: &IoStats| stats.pending.iter().chain(&stats.active).sum::<u64>();
    let mut columns = of_vdev(vdev).to_vec();
    columns.push(stats.map_or(0, waiting));
    Some(Reading {
        key: key(DEVICE, &[pool, &guid]),
        label: vdev.path.clone()?,
        is_here: true,
        parts: vec![Part {
            id: guid,
            columns,
            histograms: times(stats, |stats| &stats.disk),
        }],
        peaks: Vec::new(),
    })
}

/// The first so many of: bytes read and written, reads, writes, nanoseconds of reads and of writes.
fn of_traffic(id: String, counts: &TrafficCounts, columns: usize) -> Part {
    let nanoseconds =
        |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut all = vec![
        counts.read_bytes,
        counts.written_bytes,
        counts.reads,
        counts.writes,
        nanoseconds(counts.read_time),
        nanoseconds(counts.write_time),
    ];
    all.truncate(columns);
    Part {
        id,
        columns: all,
        histograms: Vec::new(),
    }
}

fn of_part(key: Key, is_here: bool, part: Part) -> Reading {
    Reading {
        key,
        label: String::new(),
        is_here,
        parts: vec![part],
        peaks: Vec::new(),
    }
}

/// A filesystem may have been mounted several times.
fn add_mounts(out: &mut Vec<Reading>, mounts: Vec<MountTraffic>) {
    let mut by_dataset: BTreeMap<String, Reading> = BTreeMap::new();
    for mount in mounts {
        let part = of_traffic(mount.number.to_string(), &mount.counts, 6);
        match by_dataset.get_mut(&mount.dataset) {
            Some(reading) => {
                reading.is_here |= mount.is_mounted;
                reading.parts.push(part);
            }
            None => {
                let key = key(MOUNT, &[&mount.dataset]);
                let reading = of_part(key, mount.is_mounted, part);
                by_dataset.insert(mount.dataset, reading);
            }
        }
    }
    out.extend(by_dataset.into_values());
}

fn add_iscsi(out: &mut Vec<Reading>, volumes: &Volumes) {
    for (portal, counts) in volumes.traffic_by_portal() {
        let portal = portal.to_string();
        let part = of_traffic(portal.clone(), &counts, 4);
        out.push(of_part(key(PORTAL, &[&portal]), true, part));
    }
    for (share, unit) in volumes.traffic() {
        let Some(unit) = unit else { continue };
        let names = ["iscsi", &share.dataset, &share.name];
        let part = of_traffic(unit.iqn.clone(), &unit.total, 6);
        out.push(of_part(key(SHARE, &names), true, part));
        // An initiator may have several sessions, and had others.
        let present: Vec<String> = unit.clients.iter().map(|c| c.initiator.clone()).collect();
        let mut clients = unit.ended;
        for client in unit.clients {
            let counts = clients.entry(client.initiator).or_default();
            counts.add(&client.counts);
        }
        for (initiator, counts) in clients {
            let names = [&names[..], &[initiator.as_str()]].concat();
            let part = of_traffic(format!("{} {initiator}", unit.iqn), &counts, 4);
            let is_here = present.contains(&initiator);
            out.push(of_part(key(CLIENT, &names), is_here, part));
        }
    }
}

fn add_nfs(out: &mut Vec<Reading>, nfs: &Nfs) {
    for share in nfs.shares().report() {
        let names = ["nfs", &share.dataset, &share.path];
        let part = of_traffic(share.guid.to_string(), &share.counts, 6);
        out.push(of_part(key(SHARE, &names), true, part));
        for client in share.clients {
            let address = client.address.to_string();
            let names = [&names[..], &[address.as_str()]].concat();
            let part = of_traffic(format!("{} {address}", share.guid), &client.counts, 4);
            out.push(of_part(key(CLIENT, &names), client.is_connected, part));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_that_was_mounted_twice_is_one() {
        let mount = |dataset: &str, number, is_mounted| MountTraffic {
            dataset: dataset.into(),
            number,
            is_mounted,
            counts: TrafficCounts {
                reads: number,
                ..TrafficCounts::default()
            },
        };
        let mut readings = Vec::new();
        let mounts = vec![
            mount("a", 1, false),
            mount("b", 2, false),
            mount("a", 3, true),
        ];
        add_mounts(&mut readings, mounts);
        let told: Vec<_> = readings
            .iter()
            .map(|one| (one.key.names[0].as_str(), one.is_here, one.parts.len()))
            .collect();
        assert_eq!(told, [("a", true, 2), ("b", false, 1)]);
    }

    #[test]
    fn times_keep_their_place() {
        let mut powers = [0; 37];
        (powers[3], powers[10], powers[20], powers[36]) = (1, 2, 4, 8);
        let histogram = folded(&powers);
        assert_eq!((histogram[0], histogram[10], histogram[23]), (3, 4, 8));
        let of_20 = series::quantile(&histogram, 7.0 / 15.0).expect("a place");
        assert_eq!(nanoseconds(of_20), f64::from(1 << 21));
    }
}
