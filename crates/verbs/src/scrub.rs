//! `zpool scrub`, `zpool checkpoint`, and what can be done about jobs.

use api::{
    Empty, EventKind, Failure, Job, JobCancel, JobGet, JobKind, JobList, JobListReply, JobResult,
    ScrubAction, ZpoolCheckpoint, ZpoolScrub,
};
use device::BoxFuture;
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
        for open in &named {
            scrub(open, call.action).await?;
            crate::zpool::log_command(&open.pool, &call.command).await;
        }
        Ok(Empty {})
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
            scrub(&*serving.pools.get(pool)?, ScrubAction::Stop).await?;
        }
        Ok(Empty {})
    })
}

async fn scrub(open: &OpenPool, action: ScrubAction) -> Result<(), Failure> {
    let (command, doing) = match action {
        ScrubAction::Start => (ScrubCommand::Start, "cannot scrub"),
        ScrubAction::Continue => (ScrubCommand::Continue, "cannot scrub"),
        ScrubAction::Errors => (ScrubCommand::Errors, "cannot scrub"),
        ScrubAction::Pause => (ScrubCommand::Pause, "cannot pause scrubbing"),
        ScrubAction::Stop => (ScrubCommand::Stop, "cannot cancel scrubbing"),
    };
    let doing = format!("{doing} '{}'", open.pool.name());
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
