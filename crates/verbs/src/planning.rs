//! What somebody asks before they change a pool: what deduplication would save and cost.

use std::time::Duration;

use api::{DedupReport, Failure, FailureKind, PlanDedup, PlanDedupReply, Progress, Unit};
use device::BoxFuture;
use plan::sizes::dedup_table;

use service::error::from_pool;
use service::jobs::Work;
use service::pools::Pools;
use service::reports::dedup_histogram;

/// Different blocks that are remembered where nothing is said, and what may be said.
const SAMPLE: u64 = 1 << 20;
const SAMPLES: std::ops::RangeInclusive<u64> = 100..=1 << 24;
/// How often it is looked whether somebody wants it to stop.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Foretells what dedup tables of a pool would hold.
///
/// # Errors
/// No such pool, one that is read-only, or of which such a forecast is under way already; stopped
/// on request.
pub fn plan_dedup<'a>(
    pools: &'a Pools,
    call: PlanDedup,
    work: &'a Work,
) -> BoxFuture<'a, Result<PlanDedupReply, Failure>> {
    Box::pin(async move {
        let doing = format!("cannot forecast dedup of '{}'", call.pool);
        let failed = |kind, why: &str| Failure::new(kind, format!("{doing}: {why}"));
        let sample = call.sample.unwrap_or(SAMPLE);
        if !SAMPLES.contains(&sample) {
            let why = "a sample has 100 to 16,777,216 blocks";
            return Err(failed(FailureKind::Invalid, why));
        }
        let (begun, total) = {
            let open = pools.get(&call.pool)?;
            let begun = pool::forecast_dedup(&open.pool, sample as usize);
            (begun, open.pool.pipeline().space().allocated_bytes)
        };
        let begun = begun.map_err(|error| from_pool(&doing, &error))?;
        let Some(mut forecasting) = begun else {
            let why = "another forecast of it is under way; wait for it, or cancel its job";
            return Err(failed(FailureKind::Busy, why));
        };
        loop {
            if work.is_canceled() {
                return Err(failed(FailureKind::Canceled, "stopped on request"));
            }
            work.progress(Progress {
                done: forecasting.met_bytes().min(total),
                total,
                unit: Unit::Bytes,
            });
            match tokio::time::timeout(LOOK_EVERY, forecasting.next()).await {
                Ok(Ok(true)) => break,
                Ok(Ok(false)) | Err(_) => {}
                Ok(Err(why)) => return Err(failed(FailureKind::Io, &why)),
            }
        }
        let found = forecasting.result();
        let entries = found.histogram.iter().map(|stat| stat.blocks).sum();
        let (core_bytes, disk_bytes) = dedup_table(entries);
        Ok(PlanDedupReply {
            table: DedupReport {
                entries,
                disk_bytes,
                core_bytes,
                histogram: dedup_histogram(&found.histogram),
            },
            sampled: found.sampled,
            ratio: found.ratio,
            ratio_error: found.ratio_error,
            unreadable: found.unreadable,
        })
    })
}
