//! `zpool scrub`, `zpool checkpoint`, and what can be done about jobs.

use api::{
    Empty, EventKind, Failure, Job, JobCancel, JobGet, JobKind, JobList, JobListReply, JobResult,
    ScrubAction, ZpoolCheckpoint, ZpoolScrub,
};
use pool::ScrubCommand;

use crate::service::Service;
use service::error::from_pool;
use service::pools::OpenPool;
use web::caller::Caller;

/// `zpool scrub`.
pub(crate) async fn zpool_scrub(service: &Service, call: &ZpoolScrub) -> Result<Empty, Failure> {
    let pools = if call.all {
        service.serving.pools.all()
    } else {
        service.serving.pools.named(&call.names)?
    };
    for open in &pools {
        scrub(open, call.action).await?;
        crate::zpool::log_command(&open.pool, &call.command).await;
    }
    Ok(Empty {})
}

/// `zpool checkpoint`.
pub(crate) async fn zpool_checkpoint(
    service: &Service,
    call: &ZpoolCheckpoint,
) -> Result<Empty, Failure> {
    let open = service.serving.pools.get(&call.name)?;
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
    service
        .serving
        .events
        .tell_of(&open.pool, EventKind::PoolChanged);
    Ok(Empty {})
}

/// Lists jobs; what was begun before this was asked is among them.
pub(crate) fn job_list(service: &Service, call: &JobList, caller: &Caller) -> JobListReply {
    for open in service.serving.pools.all() {
        open.background.look(&open.pool);
    }
    let jobs = service.serving.jobs.list(call.pool.as_deref()).into_iter();
    JobListReply {
        jobs: jobs.map(|job| as_seen_by(caller, job)).collect(),
    }
}

/// Tells of a job.
pub(crate) fn job_get(service: &Service, call: &JobGet, caller: &Caller) -> Result<Job, Failure> {
    let job = service.serving.jobs.get(call.id)?;
    Ok(as_seen_by(caller, job))
}

/// What a request that became a job is answered.
pub(crate) fn job_result(
    service: &Service,
    call: &JobResult,
) -> Result<serde_json::Value, Failure> {
    service.serving.jobs.outcome(call.id)
}

/// Asks a job to stop.
pub(crate) async fn job_cancel(service: &Service, call: &JobCancel) -> Result<Empty, Failure> {
    service.serving.jobs.cancel(call.id)?;
    let job = service.serving.jobs.get(call.id)?;
    if let (JobKind::Scrub, Some(pool)) = (job.kind, &job.pool) {
        scrub(&*service.serving.pools.get(pool)?, ScrubAction::Stop).await?;
    }
    Ok(Empty {})
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
    let done = open.pool.scrub(command).await;
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
fn as_seen_by(caller: &Caller, mut job: Job) -> Job {
    if !caller.may_change() {
        job.failure = None;
    }
    job
}
