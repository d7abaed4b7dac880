//! `zpool scrub`, `zpool checkpoint`, and what can be done about jobs.

use api::{
    Empty, EventKind, Failure, Job, JobCancel, JobGet, JobKind, JobList, JobListReply, JobResult,
    ScrubAction, ZpoolCheckpoint, ZpoolScrub,
};
use pool::ScrubCommand;

use crate::caller::Caller;
use crate::error::from_pool;
use crate::service::{OpenPool, Service};

impl Service {
    /// `zpool scrub`.
    pub(crate) async fn zpool_scrub(&self, call: &ZpoolScrub) -> Result<Empty, Failure> {
        let pools = if call.all {
            self.pools()
        } else {
            self.pools_named(&call.names)?
        };
        for open in &pools {
            scrub(open, call.action).await?;
        }
        Ok(Empty {})
    }

    /// `zpool checkpoint`.
    pub(crate) async fn zpool_checkpoint(&self, call: &ZpoolCheckpoint) -> Result<Empty, Failure> {
        let open = self.pool(&call.name)?;
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
        self.log_command(&open.pool, &call.command).await;
        open.background.poke(&open.pool);
        self.events.tell_of(&open.pool, EventKind::PoolChanged);
        Ok(Empty {})
    }

    /// Lists jobs; what was begun before this was asked is among them.
    pub(crate) fn job_list(&self, call: &JobList, caller: &Caller) -> JobListReply {
        for open in self.pools() {
            open.background.look(&open.pool);
        }
        let jobs = self.jobs.list(call.pool.as_deref()).into_iter();
        JobListReply {
            jobs: jobs.map(|job| as_seen_by(caller, job)).collect(),
        }
    }

    /// Tells of a job.
    pub(crate) fn job_get(&self, call: &JobGet, caller: &Caller) -> Result<Job, Failure> {
        let job = self.jobs.get(call.id)?;
        Ok(as_seen_by(caller, job))
    }

    /// What a request that became a job is answered.
    pub(crate) fn job_result(&self, call: &JobResult) -> Result<serde_json::Value, Failure> {
        self.jobs.outcome(call.id)
    }

    /// Asks a job to stop.
    pub(crate) async fn job_cancel(&self, call: &JobCancel) -> Result<Empty, Failure> {
        self.jobs.cancel(call.id)?;
        let job = self.jobs.get(call.id)?;
        if let (JobKind::Scrub, Some(pool)) = (job.kind, &job.pool) {
            scrub(&*self.pool(pool)?, ScrubAction::Stop).await?;
        }
        Ok(Empty {})
    }
}

async fn scrub(open: &OpenPool, action: ScrubAction) -> Result<(), Failure> {
    let (command, doing) = match action {
        ScrubAction::Start => (ScrubCommand::Start, "cannot scrub"),
        ScrubAction::Pause => (ScrubCommand::Pause, "cannot pause scrubbing"),
        ScrubAction::Stop => (ScrubCommand::Stop, "cannot cancel scrubbing"),
    };
    let doing = format!("{doing} '{}'", open.pool.name());
    let done = open.pool.scrub(command).await;
    done.map_err(|error| from_pool(&doing, &error))?;
    match action {
        ScrubAction::Start => open.background.scrub_begun(&open.pool),
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
