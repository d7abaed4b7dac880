//! Jobs: what takes long, with its progress, to be listed, followed and canceled.
//!
//! Some are what pools do in the background (scrubs, frees, discarding of checkpoints). Others are
//! requests: one of a [`Call`] with a [`Call::JOB`] is listed while it is worked at, and is
//! answered with the [`Job`] (status 202) instead of its reply when it asks for that by the header
//! `Prefer: respond-async` (RFC 7240; with `wait=N` only after N seconds). The job's events tell
//! when it has ended ([`crate::Event`]); then [`JobResult`] has what the request would have been
//! answered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, Failure, Guid, Role};

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    /// Its number, counted from 1 since the server started.
    pub id: u64,
    /// What it does.
    pub kind: JobKind,
    /// Name of the pool that it is about; of an import as far as it is known.
    pub pool: Option<String>,
    /// GUID of that pool, once it is known.
    pub guid: Option<Guid>,
    /// When it began, in seconds since 1970.
    pub start_s: u64,
    /// When it ended, likewise.
    pub end_s: Option<u64>,
    /// How it is.
    pub state: JobState,
    /// How far it is, where that is known.
    pub progress: Option<Progress>,
    /// Whether it can be canceled.
    pub can_cancel: bool,
    /// Why it failed; not for those who may only look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Sequence number of the last event about it: later ones tell more.
    pub sequence: u64,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// Verifies everything in a pool. Canceling it stops the scrub.
    Scrub,
    /// Gives devices what they missed.
    Resilver,
    /// Puts a device in another one's place; over when the old one has left.
    Replace,
    /// Makes a RAID-Z vdev wider.
    Expand,
    /// Frees what only a checkpoint kept.
    CheckpointDiscard,
    /// Copies what is on a vdev to others, to remove it; over when it is done or was stopped.
    Remove,
    /// Frees what was destroyed.
    Free,
    /// Writes over the free space of a device; over when it is done or was stopped.
    Initialize,
    /// Tells a device of its free space; over when it is done or was stopped.
    Trim,
    /// Imports pools.
    Import,
    /// Exports pools.
    Export,
    /// Destroys datasets. Canceling it leaves those that are not destroyed yet.
    Destroy,
    /// Receives streams. Canceling it leaves what was received whole.
    Receive,
    /// Sends streams. Canceling it cuts the stream off.
    Send,
    /// Makes a redaction bookmark. Canceling it leaves one that the same request goes on with.
    Redact,
    /// Writes files again. Canceling it leaves the rest of them as they are.
    Rewrite,
    /// Runs a schedule. Canceling it leaves what is done; a scrub that was begun goes on.
    Schedule,
    /// Puts files from a snapshot back. Canceling it leaves what is there as it was, and what was
    /// restored by then beside it.
    Restore,
    /// Foretells what dedup tables would hold. Canceling it leaves nothing.
    DedupForecast,
    /// Measures storage by loads. Canceling it stops them at once, and leaves nothing.
    Bench,
    /// Replicates datasets. Canceling it leaves what was received whole; the next run goes on.
    Replicate,
}

/// How a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Under way.
    Running,
    /// Stands still until somebody goes on with it: a scrub that was paused, or a suspended pool.
    Paused,
    /// Done.
    Finished,
    /// It could not be done.
    Failed,
    /// Stopped on request, or as the pool was exported.
    Canceled,
}

impl JobState {
    /// Whether nothing of it changes any more.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Canceled)
    }
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// What is done.
    pub done: u64,
    /// What there is to do in all, as far as it is known now.
    pub total: u64,
    /// Of what.
    pub unit: Unit,
}

/// What progress is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Datasets and snapshots.
    Datasets,
    /// Blocks.
    Blocks,
    /// Loads that are measured, with the writing of what they go over as one more.
    Loads,
}

/// Lists jobs: those under way, and the last that ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobList {
    /// Only those of this pool.
    #[serde(default)]
    pub pool: Option<String>,
}

/// Jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct JobListReply {
    /// In the order in which they began.
    pub jobs: Vec<Job>,
}

impl Call for JobList {
    const PATH: &'static str = "/v1/jobs/list";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = JobListReply;
}

/// Asks for one job.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobGet {
    /// Which.
    pub id: u64,
}

impl Call for JobGet {
    const PATH: &'static str = "/v1/jobs/get";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = Job;

    /// Of the key's own jobs.
    fn narrow(&mut self, _dataset: &str) -> Result<Vec<String>, &'static str> {
        Ok(Vec::new())
    }
}

/// Asks for what a request was answered that became a job and has ended: its reply, or its
/// failure.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobResult {
    /// Which.
    pub id: u64,
}

impl Call for JobResult {
    const PATH: &'static str = "/v1/jobs/result";
    /// Of ordinary users, who asked for the job.
    const ACCESS: Access<Self> = Access::Read;
    /// [`Call::Reply`] of the request.
    type Reply = serde_json::Value;

    /// Of the key's own jobs.
    fn narrow(&mut self, _dataset: &str) -> Result<Vec<String>, &'static str> {
        Ok(Vec::new())
    }
}

/// Asks a job to stop. Its events tell when it has.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobCancel {
    /// Which.
    pub id: u64,
}

impl Call for JobCancel {
    const PATH: &'static str = "/v1/jobs/cancel";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot cancel job {}", call.id));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}
