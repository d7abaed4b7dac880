//! Streams of snapshots: `zfs receive` and `zfs send`.
//!
//! The bytes of a stream travel over the request's own connection: the request asks to switch it
//! (`Upgrade: millpond-stream`), is answered with status 101 and the number of its job (header
//! [`STREAM_JOB_HEADER`]), and from then on the connection is the stream, from who asks to the
//! server or the other way. Whoever sends closes their end when it is over. What came of it is the
//! job's result.

use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, JobKind, Settings};

/// What a connection is switched to.
pub const STREAM_PROTOCOL: &str = "millpond-stream";
/// The header that tells which job a stream is.
pub const STREAM_JOB_HEADER: &str = "millpond-job";

/// How names of what is received follow from those where it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveNaming {
    /// The target is the name.
    #[default]
    Exact,
    /// All but the pool's name comes below the target (`-d`).
    WithoutPool,
    /// The last component comes below the target (`-e`).
    LastOnly,
}

/// `zfs receive`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsReceive {
    /// Filesystem, volume or snapshot.
    pub target: String,
    /// What becomes of the names in the stream (`-d`, `-e`).
    pub naming: ReceiveNaming,
    /// Give up what was changed since the snapshot that the stream follows (`-F`).
    pub force: bool,
    /// Keep what came before a break (`-s`).
    pub resumable: bool,
    /// Do not mount (`-u`).
    pub no_mount: bool,
    /// Only tell what would be received (`-n`).
    pub dry_run: bool,
    /// Unmount what is in use (`-M`).
    pub force_unmount: bool,
    /// Leave holds out (`-h`).
    pub skip_holds: bool,
    /// The snapshot that a new dataset is to be a clone of (`-o origin=`).
    pub origin: Option<String>,
    /// Properties to set (`-o`).
    pub set: Settings,
    /// Properties to leave out (`-x`).
    pub exclude: Vec<String>,
    /// The command as typed, for the pool's history.
    pub command: String,
}

/// What was received.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ZfsReceiveReply {
    /// In order.
    pub received: Vec<ReceivedReport>,
    /// What went wrong that did not keep the streams from being received.
    pub warnings: Vec<String>,
}

/// One snapshot that was received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedReport {
    /// Its name where it was sent.
    pub sent: String,
    /// Its name here.
    pub name: String,
    /// Whether the stream was no difference.
    pub is_full: bool,
    /// It was here already.
    pub is_skipped: bool,
    /// Bytes of the stream.
    pub bytes: u64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}

impl Call for ZfsReceive {
    const PATH: &'static str = "/v1/zfs/receive";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot receive into '{}'", call.target));
    const JOB: Option<JobKind> = Some(JobKind::Receive);
    type Reply = ZfsReceiveReply;

    fn pool(&self) -> Option<String> {
        self.target.split(['/', '@']).next().map(str::to_owned)
    }
}

/// `zfs receive -A`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZfsReceiveAbort {
    /// Filesystem or volume.
    pub name: String,
    /// The command as typed, for the pool's history.
    pub command: String,
}

impl Call for ZfsReceiveAbort {
    const PATH: &'static str = "/v1/zfs/receive-abort";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot abort the receive into '{}'", call.name));
    type Reply = Empty;
}

/// Why a stream is not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveObstacle {
    /// The target has no snapshot that the stream is the difference to.
    NoSource,
    /// The stream is a difference, and the target does not exist.
    NoTarget,
    /// The target was changed since its most recent snapshot.
    Modified,
    /// The target exists, and the stream is no difference.
    Exists,
    /// The target has snapshots, and the stream would replace it.
    HasSnapshots,
    /// The target has that snapshot.
    SnapshotExists,
    /// It holds the rest of a receive that was interrupted.
    Interrupted,
    /// There is nothing to go on with.
    NothingToResume,
    /// A receive into it is under way.
    UnderWay,
    /// The target is a snapshot and must not be.
    SnapshotNotAllowed,
    /// The origin of a clone is not here.
    NoOrigin,
    /// The stream ends before its end.
    CutShort,
    /// The stream holds something else than was sent.
    Checksum,
    /// It is no stream.
    NoStream,
}
