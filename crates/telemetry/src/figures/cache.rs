//! What the API tells of caches: what is counted now, and what reports have of the time before.

use std::sync::Arc;

use api::{
    CacheDeviceReport, CacheGet, CacheGetReply, CacheLookups, Failure, FailureKind,
    PoolCacheReport, SecondLevelReport, VdevClass, VdevReport,
};
use series::{Key, Point, Shape, Span};
use service::pools::{OpenPool, Pools};
use service::reports::{cache_kinds, tree};

use super::{DEVICE, EVERY_S, Figures, POOL, now_s, shape_of};

/// What "now" is: so many seconds.
const NOW_S: u64 = 60;
/// Columns of a pool's shape.
const HITS: usize = 4;
const MISSES: usize = 5;
/// A column of a device's shape.
const WRITTEN: usize = 1;

/// How caches are.
///
/// # Errors
/// Not found: a pool that is named is not imported.
pub async fn cache(
    figures: &Arc<Figures>,
    pools: &Pools,
    call: CacheGet,
) -> Result<CacheGetReply, Failure> {
    let (limit_bytes, limit_max_bytes) = (pools.cache().limit_bytes(), pools.cache_bytes());
    let open = pools.named(&call.pools)?;
    let figures = Arc::clone(figures);
    // Files are read, and whole indexes gone through.
    let telling = move || {
        let pools = open.iter().map(|open| of_pool(&figures, open));
        let mut pools: Vec<PoolCacheReport> = pools.collect();
        pools.sort_by(|one, other| one.pool.cmp(&other.pool));
        pools.dedup_by(|one, other| one.pool == other.pool);
        pools
    };
    let pools = tokio::task::spawn_blocking(telling).await;
    let failed = |error: tokio::task::JoinError| {
        let message = format!("the caches could not be looked at: {error}");
        Failure::new(FailureKind::Other, message)
    };
    Ok(CacheGetReply {
        limit_bytes,
        limit_max_bytes,
        pools: pools.map_err(failed)?,
    })
}

fn of_pool(figures: &Figures, open: &OpenPool) -> PoolCacheReport {
    let (pool, cache) = (open.pool.name(), open.pool.pipeline().cache());
    let past = Past::of(figures, POOL, vec![pool.clone()]);
    PoolCacheReport {
        charged_bytes: cache.stats().charged_bytes,
        kinds: cache_kinds(cache),
        minute: past.now().map(|point| lookups(&point)),
        hour: past.over(Span::Hour).map(|point| lookups(&point)),
        day: past.over(Span::Day).map(|point| lookups(&point)),
        week: past.over(Span::Week).map(|point| lookups(&point)),
        second: second_level(figures, open),
        pool,
    }
}

fn amount(point: &Point, column: usize) -> u64 {
    let value = point.figures.get(column).map_or(0.0, |figure| figure.value);
    value.max(0.0).round() as u64
}

fn lookups(point: &Point) -> CacheLookups {
    CacheLookups {
        hits: amount(point, HITS),
        misses: amount(point, MISSES),
    }
}

fn second_level(figures: &Figures, open: &OpenPool) -> Option<SecondLevelReport> {
    let tree = tree(&open.pool.status());
    let is_cache = |vdev: &&VdevReport| vdev.class == VdevClass::Cache;
    let caches: Vec<&VdevReport> = tree.children.iter().filter(is_cache).collect();
    let level = open.pool.pipeline().second_level();
    let used = level.figures();
    let devices = caches.iter().map(|vdev| {
        let names = vec![open.pool.name(), vdev.guid.0.to_string()];
        let past = Past::of(figures, DEVICE, names);
        let used = used.iter().find(|used| used.device.get() == vdev.guid.0);
        let is_filled = used.is_some_and(|used| used.is_filled);
        let now = past.now();
        let rate = now.and_then(|point| per_second(&point, WRITTEN));
        let day = past.over(Span::Day);
        CacheDeviceReport {
            guid: vdev.guid,
            name: vdev.path.clone().unwrap_or_else(|| vdev.name.clone()),
            state: vdev.state,
            is_rebuilding: used.is_some_and(|used| used.is_rebuilding()),
            is_filled,
            size_bytes: vdev.size_bytes,
            used_bytes: vdev.allocated_bytes,
            hits: vdev.reads.count,
            read_bytes: vdev.reads.bytes,
            written_bytes: vdev.writes.bytes,
            read_errors: vdev.read_errors,
            write_errors: vdev.write_errors,
            checksum_errors: vdev.checksum_errors,
            fill_bytes_per_s: rate,
            full_in_s: rate.filter(|_| !is_filled).and_then(|rate| {
                let left_bytes = vdev.size_bytes.checked_sub(vdev.allocated_bytes)?;
                left_bytes.checked_div(rate)
            }),
            day_written_bytes: day.map(|point| amount(&point, WRITTEN)),
        }
    });
    let devices: Vec<CacheDeviceReport> = devices.collect();
    (!devices.is_empty()).then(|| SecondLevelReport {
        blocks: level.blocks(),
        index_bytes: level.index_bytes(),
        left_out: level.left_out(),
        misses: level.misses(),
        devices,
    })
}

fn per_second(point: &Point, column: usize) -> Option<u64> {
    let value = point.figures.get(column)?.value;
    let seconds = point.covered_s();
    (seconds > 0.0).then(|| (value / seconds).max(0.0).round() as u64)
}

/// What reports have of something.
struct Past<'a> {
    figures: &'a Figures,
    key: Key,
    shape: Option<&'static Shape>,
    now_s: u64,
}

impl<'a> Past<'a> {
    fn of(figures: &'a Figures, shape: &'static str, names: Vec<String>) -> Self {
        Self {
            figures,
            key: Key { shape, names },
            shape: shape_of(shape),
            now_s: now_s(),
        }
    }

    fn points(&self, span: Span) -> Vec<Point> {
        let points = self.figures.store.read(&self.key, span, self.now_s);
        points.unwrap_or_default()
    }

    /// What the points of a span come to.
    fn over(&self, span: Span) -> Option<Point> {
        Point::all(self.shape?, &self.points(span))
    }

    /// What those of the last minute come to.
    fn now(&self) -> Option<Point> {
        let from_s = self.now_s.saturating_sub(NOW_S + EVERY_S);
        let mut points = self.points(Span::Hour);
        points.retain(|point| point.start_s(Span::Hour) >= from_s);
        Point::all(self.shape?, &points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use series::{BUCKETS, Sample};

    #[test]
    fn lookups_are_told_of_the_last_minute_and_of_longer() {
        let directory = tempfile::tempdir().expect("a directory");
        let figures = Figures::load(directory.path());
        let mut past = Past::of(&figures, POOL, vec!["tank".to_owned()]);
        assert!(past.now().is_none() && past.over(Span::Week).is_none());
        past.now_s = 1_000_000_000;
        let samples = [(40, 100.0, 300.0), (30, 0.0, 0.0), (600, 1000.0, 1.0)];
        for (ago_s, hits, misses) in samples {
            let sample = Sample {
                covered_ms: 10_000,
                columns: vec![0.0, 0.0, 0.0, 0.0, hits, misses, 0.0, 0.0],
                peaks: vec![None; 8],
                histograms: vec![[0; BUCKETS]; 2],
            };
            let sample = (past.key.clone(), String::new(), sample);
            figures.store.take(past.now_s - ago_s, &[sample]);
        }
        let told = |hits, misses| Some(CacheLookups { hits, misses });
        assert_eq!(past.now().map(|point| lookups(&point)), told(100, 300));
        for span in [Span::Hour, Span::Day] {
            let hour = past.over(span).map(|point| lookups(&point));
            assert_eq!(hour, told(1100, 301));
        }
        // Two readings were in it, of ten seconds each.
        let now = past.now().expect("points");
        assert_eq!(per_second(&now, HITS), Some(5));
    }
}
