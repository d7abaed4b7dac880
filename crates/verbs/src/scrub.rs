//! `zpool scrub`, `zpool checkpoint`, and what can be done about jobs.

use std::collections::BTreeMap;

use api::{
    Empty, EventKind, Failure, FailureKind, Job, JobCancel, JobGet, JobKind, JobList, JobListReply,
    JobResult, ScanCostReport, ScrubAction, ZpoolCheckpoint, ZpoolScanCost, ZpoolScanCostReply,
    ZpoolScrub,
};
use device::BoxFuture;
use format::ObjectId;
use pool::ScrubCommand;

use service::error::from_pool;
use service::jobs::Jobs;
use service::pools::{OpenPool, Pools};
use serving::Serving;

/// `zpool scrub`.
pub fn zpool_scrub<'a>(
    pools: &'a Pools,
    call: &'a ZpoolScrub,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let named = if call.all {
            pools.all()
        } else {
            pools.named(&call.names)?
        };
        let command = command(call)?;
        for open in &named {
            scrub(open, call.action, command).await?;
            crate::zpool::log_command(&open.pool, &call.command).await;
        }
        Ok(Empty {})
    })
}

/// Tells what the last scrub or resilver read of each dataset.
pub async fn zpool_scan_cost(
    pools: &Pools,
    call: &ZpoolScanCost,
) -> Result<ZpoolScanCostReply, Failure> {
    let open = pools.get(&call.name)?;
    if open.pool.suspended().is_some() {
        let message = format!("pool '{}' has stopped; 'zpool status' tells", call.name);
        return Err(Failure::new(FailureKind::Io, message));
    }
    let costs = open.pool.scans().scan_costs().unwrap_or_default();
    let mut datasets: BTreeMap<Option<String>, ScanCostReport> = BTreeMap::new();
    for (objset, cost) in costs.by_objset {
        let object = ObjectId::new(objset.get());
        let name = match object.is_zero() {
            true => None,
            // One that was destroyed meanwhile has none.
            false => open.pool.dsl().directories().name_of(object).await.ok(),
        };
        // Snapshots count for what they are of.
        let name = name.map(|name| match name.split_once('@') {
            Some((dataset, _)) => dataset.to_owned(),
            None => name,
        });
        // Those that no one sees.
        let name = name.filter(|name| !name.contains('$'));
        let entry = datasets.entry(name.clone()).or_default();
        entry.dataset = name;
        entry.blocks += cost.blocks;
        entry.bytes = entry.bytes.saturating_add(cost.bytes);
    }
    let mut datasets: Vec<ScanCostReport> = datasets.into_values().collect();
    datasets.sort_by(|a, b| {
        b.bytes
            .cmp(&a.bytes)
            .then_with(|| a.dataset.cmp(&b.dataset))
    });
    Ok(ZpoolScanCostReply {
        is_continued: costs.is_continued,
        datasets,
    })
}

/// `zpool checkpoint`.
pub fn zpool_checkpoint<'a>(
    serving: &'a Serving,
    call: &'a ZpoolCheckpoint,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = serving.pools.get(&call.name)?;
        let _admin = open.admin.lock().await;
        let (doing, done) = match call.discard {
            true => (
                format!("cannot discard checkpoint in '{}'", call.name),
                open.pool.discard_checkpoint().await,
            ),
            false => (
                format!("cannot checkpoint '{}'", call.name),
                open.pool.checkpoint().await,
            ),
        };
        done.map_err(|error| from_pool(&doing, &error))?;
        crate::zpool::log_command(&open.pool, &call.command).await;
        open.background.poke(&open.pool);
        serving.events.tell_of(&open.pool, EventKind::PoolChanged);
        Ok(Empty {})
    })
}

/// Lists jobs; what was begun before this was asked is among them.
pub fn job_list(serving: &Serving, call: &JobList, may_change: bool) -> JobListReply {
    for open in serving.pools.all() {
        open.background.look(&open.pool);
    }
    let jobs = serving.jobs.list(call.pool.as_deref()).into_iter();
    JobListReply {
        jobs: jobs.map(|job| as_seen_by(may_change, job)).collect(),
    }
}

/// Tells of a job.
pub fn job_get(jobs: &Jobs, call: &JobGet, may_change: bool) -> Result<Job, Failure> {
    let job = jobs.get(call.id)?;
    Ok(as_seen_by(may_change, job))
}

/// What a request that became a job is answered.
pub fn job_result(jobs: &Jobs, call: &JobResult) -> Result<serde_json::Value, Failure> {
    jobs.outcome(call.id)
}

/// Asks a job to stop.
pub fn job_cancel<'a>(
    serving: &'a Serving,
    call: &'a JobCancel,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        serving.jobs.cancel(call.id)?;
        let job = serving.jobs.get(call.id)?;
        if let (JobKind::Scrub, Some(pool)) = (job.kind, &job.pool) {
            let open = serving.pools.get(pool)?;
            scrub(&open, ScrubAction::Stop, ScrubCommand::Stop).await?;
        }
        Ok(Empty {})
    })
}

/// What the pool is to do.
fn command(call: &ZpoolScrub) -> Result<ScrubCommand, Failure> {
    let (from_s, until_s) = (call.from_s, call.until_s);
    let invalid = |message: &str| Failure::new(FailureKind::Invalid, message);
    if from_s.is_some() || until_s.is_some() {
        if call.action != ScrubAction::Start {
            return Err(invalid(
                "cannot scrub: dates are only for a scrub that is started",
            ));
        }
        if from_s
            .zip(until_s)
            .is_some_and(|(from, until)| from > until)
        {
            return Err(invalid(
                "cannot scrub: the end date has to be later than the start date",
            ));
        }
        return Ok(ScrubCommand::Between { from_s, until_s });
    }
    Ok(match call.action {
        ScrubAction::Start => ScrubCommand::Start,
        ScrubAction::Continue => ScrubCommand::Continue,
        ScrubAction::Errors => ScrubCommand::Errors,
        ScrubAction::Pause => ScrubCommand::Pause,
        ScrubAction::Stop => ScrubCommand::Stop,
    })
}

async fn scrub(open: &OpenPool, action: ScrubAction, command: ScrubCommand) -> Result<(), Failure> {
    let doing = match action {
        ScrubAction::Start | ScrubAction::Continue | ScrubAction::Errors => "cannot scrub",
        ScrubAction::Pause => "cannot pause scrubbing",
        ScrubAction::Stop => "cannot cancel scrubbing",
    };
    let doing = format!("{doing} {}", open.pool.name());
    let changes_before = open.background.scan_changes();
    let done = open.pool.scans().scrub(command).await;
    done.map_err(|error| from_pool(&doing, &error))?;
    match action {
        // Without errors there is none.
        ScrubAction::Errors => open.background.poke(&open.pool),
        ScrubAction::Start | ScrubAction::Continue => {
            open.background.scrub_begun(&open.pool, changes_before);
        }
        ScrubAction::Pause | ScrubAction::Stop => open.background.poke(&open.pool),
    }
    Ok(())
}

/// Why something failed is for those who may do it.
fn as_seen_by(may_change: bool, mut job: Job) -> Job {
    if !may_change {
        job.failure = None;
    }
    job
}
