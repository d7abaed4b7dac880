//! Messages about replications: datasets whose snapshots are sent elsewhere, again and again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, Failure, Job, JobState, Role, Secret};

/// Where a replication goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReplicationTarget {
    /// A pool of this server.
    Local {
        /// Filesystem or volume.
        dataset: String,
    },
    /// Another host, by `ssh`.
    Ssh {
        /// `USER@HOST`.
        host: String,
        /// Filesystem or volume there.
        dataset: String,
        /// How `zfs` is called there: a path, or several words.
        command: String,
    },
    /// Another Millpond, by its API over TLS.
    Tls {
        /// `HOST` or `HOST:PORT`, as in the address of its console; the port is 8443 where none is
        /// named.
        host: String,
        /// Filesystem or volume there.
        dataset: String,
        /// SHA-256 of its certificate in DER, 64 hexadecimal digits; none where the certificate is
        /// of an authority that this host trusts.
        fingerprint: Option<String>,
    },
}

impl ReplicationTarget {
    /// The dataset, wherever it is.
    pub fn dataset(&self) -> &str {
        match self {
            Self::Local { dataset } | Self::Ssh { dataset, .. } | Self::Tls { dataset, .. } => {
                dataset
            }
        }
    }
}

/// How many of a replication's own snapshots stay: the newest one of each of the last so many
/// hours, days, weeks and months (of UTC; weeks begin on Monday) that have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// Hours.
    #[serde(default)]
    pub hourly: u32,
    /// Days.
    #[serde(default)]
    pub daily: u32,
    /// Weeks.
    #[serde(default)]
    pub weekly: u32,
    /// Months.
    #[serde(default)]
    pub monthly: u32,
}

/// What a replication is told to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationSpec {
    /// Its name: letters, digits, `_`, `-` and `.`; of the source's where there is none.
    pub name: Option<String>,
    /// Filesystem or volume.
    pub source: String,
    /// Where it goes to.
    pub target: ReplicationTarget,
    /// Datasets below it, too.
    #[serde(default)]
    pub recursive: bool,
    /// Seconds between the beginnings of two runs; none where it runs only on request.
    pub every_s: Option<u64>,
    /// Which of its snapshots stay; none where all do.
    pub keep: Option<Keep>,
    /// Most bytes of streams in a second.
    pub limit_bytes: Option<u64>,
    /// The API key that the other side takes, for a target by TLS.
    #[serde(default)]
    pub key: Option<Secret>,
}

/// Makes a replication, whose first run begins at once.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationCreate {
    /// What it does.
    pub spec: ReplicationSpec,
}

/// The run that was begun.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReplicationRunReply {
    /// Name of the replication.
    pub name: String,
    /// Its job.
    pub job: Job,
}

impl Call for ReplicationCreate {
    const PATH: &'static str = "/v1/replications/create";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot replicate '{}'", call.spec.source));
    type Reply = ReplicationRunReply;
}

/// Changes what a replication does; source and target stay. A run that is under way goes on as it
/// was begun.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationChange {
    /// Which.
    pub name: String,
    /// Datasets below its source, too.
    #[serde(default)]
    pub recursive: bool,
    /// Seconds between the beginnings of two runs; none where it runs only on request.
    pub every_s: Option<u64>,
    /// Which of its snapshots stay; none where all do.
    pub keep: Option<Keep>,
    /// Most bytes of streams in a second.
    pub limit_bytes: Option<u64>,
    /// Another API key for a target by TLS; none where it stays.
    #[serde(default)]
    pub key: Option<Secret>,
    /// Another certificate of a target by TLS, as in [`ReplicationTarget::Tls`]; none where it
    /// stays.
    #[serde(default)]
    pub fingerprint: Option<String>,
}

impl Call for ReplicationChange {
    const PATH: &'static str = "/v1/replications/change";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot change replication '{}'", call.name));
    type Reply = Empty;
}

/// Runs a replication now.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationRun {
    /// Which.
    pub name: String,
}

impl Call for ReplicationRun {
    const PATH: &'static str = "/v1/replications/run";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot run replication '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ReplicationRunReply;
}

/// Forgets a replication, and stops its run. Snapshots stay, on both sides.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationRemove {
    /// Which.
    pub name: String,
}

impl Call for ReplicationRemove {
    const PATH: &'static str = "/v1/replications/remove";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot remove replication '{}'", call.name));
    type Reply = Empty;
}

/// Has a replication run no more by itself, and stops its run; or go on.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationPause {
    /// Which.
    pub name: String,
    /// Whether it rests.
    pub is_paused: bool,
}

impl Call for ReplicationPause {
    const PATH: &'static str = "/v1/replications/pause";
    const ACCESS: Access<Self> = Access::Change(|call| match call.is_paused {
        true => format!("cannot pause replication '{}'", call.name),
        false => format!("cannot resume replication '{}'", call.name),
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// Lists replications. Where they go to is told to those only who may change things.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationList {}

impl Call for ReplicationList {
    const PATH: &'static str = "/v1/replications/list";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot list replications".to_owned());
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ReplicationListReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Replications.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ReplicationListReply {
    /// By name.
    pub replications: Vec<ReplicationReport>,
}

/// A replication, and how it is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReplicationReport {
    /// Its name.
    pub name: String,
    /// What it does; with its name.
    #[serde(flatten)]
    pub what: ReplicationWhat,
    /// Whether it rests.
    pub is_paused: bool,
    /// The job of its run, while there is one.
    pub job: Option<Job>,
    /// When it runs next by itself, in seconds since 1970.
    pub next_s: Option<u64>,
    /// What its last run came to.
    pub last: Option<ReplicationResult>,
}

/// What a replication does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicationWhat {
    /// Filesystem or volume.
    pub source: String,
    /// Where it goes to.
    pub target: ReplicationTarget,
    /// Datasets below it, too.
    pub recursive: bool,
    /// Seconds between the beginnings of two runs.
    pub every_s: Option<u64>,
    /// Which of its snapshots stay; none where all do.
    pub keep: Option<Keep>,
    /// Most bytes of streams in a second.
    pub limit_bytes: Option<u64>,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicationResult {
    /// When it began, in seconds since 1970.
    pub begin_s: u64,
    /// When it ended, likewise.
    pub end_s: u64,
    /// How.
    pub state: JobState,
    /// The snapshot that it was about, after the `@`.
    pub snapshot: Option<String>,
    /// Bytes of streams that were sent.
    pub bytes: u64,
    /// Datasets whose target has that snapshot now.
    pub datasets: u64,
    /// Whether it went on where an earlier run was interrupted.
    pub is_resumed: bool,
    /// Why it failed; of several datasets the first one's.
    pub failure: Option<Failure>,
    /// How many datasets could not be replicated.
    pub failed: u64,
    /// What is different from what one may expect.
    pub notes: Vec<ReplicationNote>,
}

/// What is told of a run although it is no failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicationNote {
    /// The target has a dataset that the source has not any more. It stays as it is.
    Gone {
        /// By its name there.
        target: String,
    },
    /// A snapshot that the rule does not keep could not be destroyed.
    NotPruned {
        /// Full name.
        snapshot: String,
        /// Whether it is the target's.
        is_of_target: bool,
        /// Why.
        why: String,
    },
}
