//! Reasons for which a stream is not received, and a snapshot not redacted.

/// Why a stream cannot be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiveObstacle {
    /// The target has no snapshot that the stream is the difference to.
    NoSource,
    /// The stream is redacted with other snapshots than what it follows, or not at all.
    Redaction,
    /// The stream is a difference, and the target does not exist.
    NoTarget,
    /// The target was changed since its most recent snapshot.
    Modified,
    /// The target exists, and the stream is no difference.
    Exists,
    /// It holds the rest of a receive that was interrupted.
    Interrupted,
    /// There is nothing to go on with, or it is of another stream.
    NothingToResume,
    /// A receive into it is under way.
    UnderWay,
    /// The stream needs a feature that this release does not know.
    UnknownFeature,
    /// The stream is encrypted and the target is not.
    NotEncrypted,
    /// The stream is raw, and the target's key is another one.
    OtherKey,
    /// The stream is raw, and it or the target does not say which set of IVs the snapshot has that
    /// it is the difference to.
    IvSetMissing,
    /// The stream is raw, and the snapshot that it is the difference to is not encrypted as the
    /// target's is.
    IvSetMismatch,
    /// The stream is raw, and its object set is built in another way than those of today.
    OtherShape,
    /// The target is encrypted and the stream has embedded blocks, or replaces it whole.
    Encrypted,
    /// The target has large blocks, and the stream was sent without `-L`.
    LargeBlocks,
    /// A clone's stream needs its origin, or the origin is not what the stream is made for.
    Origin,
    /// A corrective receive is of a snapshot that is not there.
    NothingToHeal,
    /// A corrective receive is of another snapshot.
    OtherSnapshot,
    /// The key is not loaded that a corrective receive needs.
    NeedsKey,
    /// It is not a stream of a filesystem or volume, or one that cannot be there.
    BadStream,
}

impl ReceiveObstacle {
    fn advice(self) -> &'static str {
        match self {
            Self::NoSource => {
                "it has no snapshot that the stream is the difference to; send from a snapshot \
                 that both sides have"
            }
            Self::Redaction => {
                "the snapshot that the stream follows lacks blocks that the stream takes for \
                 granted (zfs-send(8) says what can follow a redacted stream); send from its \
                 redaction bookmark"
            }
            Self::NoTarget => {
                "the stream is incremental and the target does not exist; receive a full stream \
                 first"
            }
            Self::Modified => {
                "it has been modified since its most recent snapshot; use -F to roll it back"
            }
            Self::Exists => "it exists; use -F to overwrite it",
            Self::Interrupted => {
                "it holds a partial receive; resume it with its receive_resume_token, or give it \
                 up with 'zfs receive -A'"
            }
            Self::NothingToResume => {
                "it holds no partial receive of this stream; send again without a token"
            }
            Self::UnderWay => "something is being received into it; wait for that",
            Self::UnknownFeature => {
                "the stream has features that this release does not know; send it without them"
            }
            Self::NotEncrypted => {
                "a raw stream cannot follow one that was not raw; send without -w"
            }
            Self::OtherKey => {
                "it has another encryption key than what was sent; receive a full stream into a \
                 new dataset"
            }
            Self::IvSetMissing => {
                "IV set guid missing: its latest snapshot, or what the stream begins with, was \
                 made by a release that did not note how it is encrypted; receive a full raw \
                 stream into a new dataset"
            }
            Self::IvSetMismatch => {
                "IV set guid mismatch: the snapshot that the stream begins with is encrypted in \
                 another way here, as after a receive that was not raw; receive a full raw stream \
                 into a new dataset, or send without -w"
            }
            Self::OtherShape => {
                "the raw stream is of a dataset that was made in another way (by an early release, \
                 or on a big-endian machine); load its key where it is and send it without -w"
            }
            Self::Encrypted => {
                "an encrypted dataset cannot take embedded blocks or be overwritten whole; send \
                 without -e, or to another name"
            }
            Self::LargeBlocks => "it was received with large blocks; send with -L",
            Self::Origin => {
                "the stream is a clone's; give the snapshot that it was made of with -o origin="
            }
            Self::NothingToHeal => {
                "corrective recv must specify an existing snapshot to heal; name the snapshot that \
                 the stream is of"
            }
            Self::OtherSnapshot => {
                "local snapshot doesn't match the snapshot in the provided stream; send the one \
                 that is to be healed"
            }
            Self::NeedsKey => {
                "key must be loaded to do a non-raw corrective recv on an encrypted dataset; load \
                 it with 'zfs load-key', or send with -w"
            }
            Self::BadStream => "the stream is damaged or of no filesystem or volume; send it again",
        }
    }
}

impl std::fmt::Display for ReceiveObstacle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.advice())
    }
}

/// Why a snapshot is not redacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedactObstacle {
    /// What is redacted, or with what, is of no snapshot that follows the other.
    NotDescendant,
    /// What is redacted, or with what, lacks blocks already.
    Redacted,
    /// The bookmark exists, and is whole or another one.
    Exists,
    /// The bookmark was begun with other snapshots.
    OtherSnapshots,
    /// More snapshots than a list has room for.
    TooManySnapshots,
    /// No snapshot to redact with.
    NoSnapshots,
    /// The bookmark's name would be too long.
    NameTooLong,
    /// The same is being done by somebody else.
    UnderWay,
    /// The bookmark has no redaction list.
    NoList,
    /// The bookmark's list is not whole.
    NotWhole,
    /// The bookmark is one of another snapshot.
    OtherSource,
}

impl std::fmt::Display for RedactObstacle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::NotDescendant => {
                "redaction snapshot must be descendent of snapshot being redacted; give later \
                 snapshots of it or of its clones"
            }
            Self::Redacted => {
                "attempted to redact redacted dataset or with respect to redacted dataset; give \
                 one that is whole"
            }
            Self::Exists => {
                "specified redaction bookmark provided already exists; choose another name"
            }
            Self::OtherSnapshots => {
                "attempted to resume redaction with a mismatched redaction list; give the \
                 snapshots that it was begun with, or destroy the bookmark"
            }
            Self::TooManySnapshots => {
                "too many redaction snapshots specified; more fit with feature \
                 redaction_list_spill"
            }
            Self::NoSnapshots => "no redaction snapshot is given; give one at least",
            Self::NameTooLong => {
                "provided bookmark name cannot be used, final name would be too long; choose a \
                 shorter one"
            }
            Self::UnderWay => "it is being redacted, or sent with it; wait for that",
            Self::NoList => "not a redaction bookmark; make one with 'zfs redact'",
            Self::NotWhole => {
                "incomplete redaction bookmark provided; run the same 'zfs redact' again"
            }
            Self::OtherSource => {
                "the redaction bookmark is of another snapshot; make one of this with 'zfs redact'"
            }
        })
    }
}
