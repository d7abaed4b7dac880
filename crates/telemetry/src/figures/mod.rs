//! Figures over time, for reports: what was read and written, how long it took, and what was in
//! caches and queues (crate `series` keeps them).
//!
//! | Module | What it is |
//! |---|---|
//! | [`cache`] | what the API tells of caches |
//! | [`reading`] | what the server counts, at one moment |
//! | [`report`] | what the API tells of what was |
//!
//! Every ten seconds one thread reads the counters that the server has anyway, and takes in what
//! came since it read them before. Nothing is counted for it alone but by mounts and portals.
//! Clients that come and go between two readings are counted all the same: their counters outlive
//! connections and mounts, though not shares. When the server stops it reads once more; when it
//! crashes the last two minutes are lost.
//!
//! Counters are told apart by what counts, not by what it is called ([`reading::Part`]): a dataset
//! that is renamed goes on under its new name with what comes from then on, and a device that
//! leaves a pool takes nothing of what the others did with it.
//!
//! Locks: who reads has `turn` (async) until all is taken in, so that readings come in the order in
//! which they were made. `before` is held while samples are taken in. What a report needs is in the
//! store, whose locks are its own.

mod cache;
mod reading;
mod report;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use series::{BUCKETS, Column, Key, Sample, SeriesError, Shape, Store};
use serving::Serving;

pub use cache::cache;
use reading::{Part, Reading};
pub use report::{get, list, plan_log};

/// Seconds between two readings.
const EVERY_S: u64 = 10;
/// How long a server that stops waits for the last one.
const LAST: Duration = Duration::from_secs(5);

/// Most bytes of all files: 50 MB, with some left for the directory and for what filesystems take
/// beside content.
const LIMIT_BYTES: u64 = 49_000_000;

const POOL: &str = "pool";
const CACHE: &str = "cache";
const DEVICE: &str = "device";
const MOUNT: &str = "mount";
const SHARE: &str = "share";
const CLIENT: &str = "client";
const PORTAL: &str = "portal";

/// Bytes read and written, reads, writes; then hits and misses of the cache; bytes in the cache and
/// of intent logs.
const POOL_COLUMNS: &[Column] = &[
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Level,
    Column::Level,
];
/// Hits and misses of the cache in memory: of data, of metadata, of dedup tables; those of its
/// misses that twice as much memory had answered; hits and misses of cache devices; bytes that
/// these hold, and of the index of it.
const CACHE_COLUMNS: &[Column] = &[
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Level,
    Column::Level,
];
/// Bytes read and written, reads, writes; requests in queues.
const DEVICE_COLUMNS: &[Column] = &[
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Amount,
    Column::Level,
];
/// Bytes read and written, reads, writes; nanoseconds of reads and of writes.
const SHARE_COLUMNS: &[Column] = &[Column::Amount; 6];
/// Bytes read and written, reads, writes. Portals have the same.
const CLIENT_COLUMNS: &[Column] = &[Column::Amount; 4];

/// What is kept. Pools and devices go before shares, those before clients: strangers make as many
/// of these as they like.
static SHAPES: [Shape; 7] = [
    shape(POOL, POOL_COLUMNS, 2, 0, 12_000_000),
    shape(CACHE, CACHE_COLUMNS, 0, 0, 12_000_000),
    shape(DEVICE, DEVICE_COLUMNS, 2, 1, 40_000_000),
    shape(MOUNT, SHARE_COLUMNS, 0, 2, 12_000_000),
    shape(SHARE, SHARE_COLUMNS, 0, 2, 15_000_000),
    shape(PORTAL, CLIENT_COLUMNS, 0, 2, 6_000_000),
    shape(CLIENT, CLIENT_COLUMNS, 0, 3, 15_000_000),
];

const fn shape(
    name: &'static str,
    columns: &'static [Column],
    histograms: usize,
    rank: u8,
    limit_bytes: u64,
) -> Shape {
    Shape {
        name,
        columns,
        histograms,
        rank,
        limit_bytes,
    }
}

/// The shape of this name.
fn shape_of(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name == name)
}

/// The figures of a server.
pub struct Figures {
    store: Store,
    turn: tokio::sync::Mutex<()>,
    before: Mutex<Before>,
    left_out: AtomicUsize,
    is_leaving: AtomicBool,
}

/// What was read before.
struct Before {
    at: Instant,
    /// By the names of their shapes and what they are known by.
    parts: HashMap<(&'static str, String), Part>,
    /// What was last said of a file that cannot be written.
    problem: Option<String>,
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Figures {
    /// Opens what the state directory has of them.
    pub fn load(state: &Path) -> Arc<Self> {
        let (store, opened) = Store::open(&state.join("figures"), &SHAPES, LIMIT_BYTES);
        for path in &opened.removed {
            let path = path.display();
            tracing::warn!(%path, "what was kept for reports is damaged, and begins anew");
        }
        for error in &opened.errors {
            tracing::error!("{error}");
        }
        Arc::new(Self {
            store,
            turn: tokio::sync::Mutex::default(),
            before: Mutex::new(Before {
                at: Instant::now(),
                parts: HashMap::new(),
                problem: None,
            }),
            left_out: AtomicUsize::new(0),
            is_leaving: AtomicBool::new(false),
        })
    }

    /// Takes in what came since the last reading. Blocks.
    fn record(&self, readings: Vec<Reading>) {
        let mut before = self.before.lock();
        let at = Instant::now();
        let covered = at.duration_since(before.at);
        let covered_ms = u32::try_from(covered.as_millis()).unwrap_or(u32::MAX);
        let samples: Vec<(Key, String, Sample)> = readings
            .iter()
            .filter_map(|reading| {
                let sample = before.since(reading, covered_ms);
                let is_seen = reading.is_here || sample.columns.iter().any(|value| *value > 0.0);
                is_seen.then(|| (reading.key.clone(), reading.label.clone(), sample))
            })
            .collect();
        // A sample belongs to the middle of its time.
        let half_s = (covered.as_secs() / 2).min(EVERY_S / 2);
        let taken = self.store.take(now_s().saturating_sub(half_s), &samples);
        self.left_out.store(taken.left_out, Ordering::Relaxed);
        before.complain(&taken.errors);
        before.at = at;
        let parts = readings.into_iter().flat_map(|reading| {
            let shape = reading.key.shape;
            let parts = reading.parts.into_iter();
            parts.map(move |part| ((shape, part.id.clone()), part))
        });
        before.parts = parts.collect();
    }

    /// Takes in the last samples, and writes all that waits: the server leaves.
    pub async fn stop(self: &Arc<Self>, serving: &Serving) {
        if self.is_leaving.swap(true, Ordering::Relaxed) {
            return;
        }
        let last = async {
            let _turn = self.turn.lock().await;
            let (here, readings) = (Arc::clone(self), reading::all(serving));
            let writing = tokio::task::spawn_blocking(move || {
                here.record(readings);
                here.store.flush()
            });
            writing.await
        };
        match tokio::time::timeout(LAST, last).await {
            Ok(Ok(taken)) => self.before.lock().complain(&taken.errors),
            _ => tracing::warn!("the last figures for reports could not be written"),
        }
    }
}

impl Before {
    /// What came since the reading before this one.
    fn since(&self, now: &Reading, covered_ms: u32) -> Sample {
        let shape = shape_of(now.key.shape);
        let columns = shape.map_or(&[][..], |shape| shape.columns);
        let mut sample = Sample {
            covered_ms,
            columns: vec![0.0; columns.len()],
            peaks: now.peaks.clone(),
            histograms: vec![[0; BUCKETS]; shape.map_or(0, |shape| shape.histograms)],
        };
        for part in &now.parts {
            let before = self.parts.get(&(now.key.shape, part.id.clone()));
            part.add_since(before, columns, &mut sample);
        }
        sample
    }

    /// Says why something cannot be written, unless it was said.
    fn complain(&mut self, errors: &[SeriesError]) {
        let problem = errors.first().map(ToString::to_string);
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.problem) {
            tracing::warn!("{problem}");
        }
        self.problem = problem;
    }
}

/// Begins to take samples, until what serves the pools goes away or [`Figures::stop`].
pub fn begin(figures: &Arc<Figures>, serving: &Arc<Serving>) {
    tokio::spawn(follow(Arc::clone(figures), Arc::downgrade(serving)));
}

async fn follow(figures: Arc<Figures>, weak: Weak<Serving>) {
    loop {
        let into = SystemTime::now().duration_since(UNIX_EPOCH);
        let into_ms = into.map_or(0, |since| since.as_millis() % u128::from(EVERY_S * 1000));
        let left_ms = EVERY_S * 1000 - u64::try_from(into_ms).unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(left_ms)).await;
        let Some(serving) = weak.upgrade() else {
            return;
        };
        let _turn = figures.turn.lock().await;
        if figures.is_leaving.load(Ordering::Relaxed) {
            return;
        }
        let here = Arc::clone(&figures);
        let reading = tokio::task::spawn_blocking(move || {
            here.record(reading::all(&serving));
        });
        if reading.await.is_err() {
            tracing::error!("figures for reports are missing: taking a sample failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(id: &str, columns: [u64; 5], count: u64) -> Part {
        let mut histogram = [0; BUCKETS];
        histogram[2] = count;
        Part {
            id: id.into(),
            columns: columns.to_vec(),
            histograms: vec![histogram],
        }
    }

    fn reading(pool: &str, parts: Vec<Part>) -> Reading {
        Reading {
            key: Key {
                shape: DEVICE,
                names: vec![pool.into(), "1".into()],
            },
            label: String::new(),
            is_here: true,
            parts,
            peaks: Vec::new(),
        }
    }

    fn before(parts: Vec<Part>) -> Before {
        let parts = parts.into_iter();
        Before {
            at: Instant::now(),
            parts: parts
                .map(|part| ((DEVICE, part.id.clone()), part))
                .collect(),
            problem: None,
        }
    }

    #[test]
    fn a_sample_is_what_came_since_the_last_one() {
        let first = || part("a", [100, 10, 1, 1, 7], 4);
        let second = || part("a", [250, 10, 2, 1, 3], 9);
        let told = |then: Option<Part>, now: Part| {
            before(then.into_iter().collect()).since(&reading("tank", vec![now]), 10_000)
        };
        let sample = told(Some(first()), second());
        assert_eq!(sample.columns, [150.0, 0.0, 1.0, 0.0, 3.0]);
        assert_eq!(sample.histograms[0][2], 5);
        assert_eq!((sample.histograms.len(), sample.covered_ms), (2, 10_000));
        // One that is new, or counts anew, began in between.
        let new = told(None, first());
        assert_eq!(new.columns, [100.0, 10.0, 1.0, 1.0, 7.0]);
        assert_eq!(told(Some(second()), first()), new);
    }

    #[test]
    fn what_is_called_otherwise_or_loses_a_part_is_not_counted_again() {
        let one = |bytes| part("a", [bytes, 0, 0, 0, 1], bytes);
        let other = |bytes| part("b", [bytes, 0, 0, 0, 2], bytes);
        let before = before(vec![one(1000), other(5000)]);
        let both = before.since(&reading("tank", vec![one(1001), other(5002)]), 10_000);
        assert_eq!(both.columns[..], [3.0, 0.0, 0.0, 0.0, 3.0]);
        assert_eq!(both.histograms[0][2], 3);
        let less = before.since(&reading("lake", vec![one(1001)]), 10_000);
        assert_eq!(less.columns[..], [1.0, 0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn what_is_kept_at_most_is_within_the_limit() {
        const { assert!(LIMIT_BYTES < 50_000_000) };
        assert!(SHAPES.iter().all(|shape| shape.limit_bytes <= LIMIT_BYTES));
        // What strangers make leaves room for what is ours.
        let strangers = shape_of(CLIENT).expect("clients").limit_bytes;
        assert!(strangers * 3 < LIMIT_BYTES);
    }
}
