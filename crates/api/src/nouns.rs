//! What several messages speak of, and stands on nothing else here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// What a dataset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DatasetKind {
    /// A filesystem.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// A bookmark.
    Bookmark,
}

impl DatasetKind {
    /// As the `type` property says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Bookmark => "bookmark",
        }
    }
}

/// Why a stream is not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// A corrective receive is of a snapshot that is not here.
    NothingToHeal,
    /// A corrective receive is of another snapshot than the one of that name here.
    OtherSnapshot,
    /// A corrective receive of a stream that is not raw needs the key.
    NeedsKey,
    /// The target is encrypted, or the stream is, and would replace the target.
    OverwritesEncrypted,
    /// The stream ends before its end.
    CutShort,
    /// The stream holds something else than was sent.
    Checksum,
    /// It is no stream.
    NoStream,
}

impl ReceiveObstacle {
    /// What is told to people who ask otherwise than by `zfs receive`, which has OpenZFS's words.
    pub fn words(self) -> &'static str {
        match self {
            Self::NoSource => {
                "it has no snapshot that the stream is the difference to; send all of it, or from \
                 another snapshot"
            }
            Self::NoTarget => "it does not exist, and the stream is a difference; send all of it",
            Self::Modified => "it was changed since its most recent snapshot; roll it back",
            Self::Exists => "it exists, and the stream would replace it; force does",
            Self::HasSnapshots => "it has snapshots, and the stream would replace it; destroy them",
            Self::SnapshotExists => "it has a snapshot of that name",
            Self::Interrupted => {
                "it holds the rest of a receive that was interrupted; go on with it or give it up"
            }
            Self::NothingToResume => "there is no interrupted receive to go on with",
            Self::UnderWay => "another receive into it is under way",
            Self::SnapshotNotAllowed => "it must not be a snapshot; name a filesystem or volume",
            Self::NoOrigin => "the origin of the clone is not here; send that first",
            Self::NothingToHeal => "there is no snapshot of that name to heal",
            Self::OtherSnapshot => "the snapshot of that name here is not that of the stream",
            Self::NeedsKey => "its key has to be loaded, as the stream is not raw",
            Self::OverwritesEncrypted => {
                "an encrypted filesystem is not replaced, nor is another one by an encrypted one; \
                 receive to another name"
            }
            Self::CutShort => "the stream ends before its end",
            Self::Checksum => "the stream was damaged on its way: a checksum is wrong",
            Self::NoStream => "what was sent is no stream of snapshots",
        }
    }
}

/// What is told of a receive of which a part was kept (`recv_ecksum_set_aux`,
/// lib/libzfs/libzfs_sendrecv.c).
pub fn how_to_resume(token: &str) -> String {
    format!(
        "Partially received snapshot is saved.\n\
         A resuming stream can be generated on the sending system by running:\n    \
         zfs send -t {token}"
    )
}

/// Something not to be shown in logs. Overwritten with zeros when dropped.
#[derive(
    Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Zeroize, ZeroizeOnDrop,
)]
#[serde(transparent)]
#[schemars(extend("format" = "password"))]
pub struct Secret(pub String);

/// Whether messages of this type may hold a [`Secret`].
pub fn may_hold_secrets<T: JsonSchema>() -> bool {
    let schema = schemars::schema_for!(T);
    schema
        .as_value()
        .to_string()
        .contains(r#""format":"password""#)
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("(secret)")
    }
}

/// What the key of a replication is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    /// The filesystem or volume, which need not exist. What is below it counts as well.
    pub dataset: String,
    /// For how many days what was received with it is not destroyed with it.
    pub keep_days: u32,
}

impl Replica {
    /// What somebody is told who asks for more.
    pub fn denied(&self, why: &str) -> String {
        format!(
            "permission denied: {why}; the key is for replication into '{}' and below it, and for \
             nothing else",
            self.dataset
        )
    }
}
