//! What can go wrong with datasets.

use format::ObjectId;
use zil::ZilError;

/// Why an operation on datasets failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// No dataset or snapshot of that name.
    #[error("dataset '{name}' does not exist; check the name with 'zfs list -t all'")]
    NotFound {
        /// The full name.
        name: String,
    },
    /// The name is taken.
    #[error("dataset '{name}' already exists; choose another name")]
    Exists {
        /// The full name.
        name: String,
    },
    /// The name is not one that a dataset may have.
    #[error("'{name}': {reason}; use letters, digits and -_.: with '/' between components")]
    InvalidName {
        /// As given.
        name: String,
        /// In OpenZFS's words.
        reason: String,
    },
    /// Something holds the dataset.
    #[error("dataset '{name}' is busy: {reason}; unmount it or stop what uses it, then try again")]
    Busy {
        /// The full name.
        name: String,
        /// What holds it.
        reason: String,
    },
    /// Children exist.
    #[error("filesystem '{name}' has children; use '-r' to destroy them too")]
    HasChildren {
        /// The full name.
        name: String,
    },
    /// Snapshots exist.
    #[error("'{name}' has snapshots; use '-r' to destroy them too")]
    HasSnapshots {
        /// The full name.
        name: String,
    },
    /// Clones depend on a snapshot.
    #[error("snapshot '{name}' has dependent clones; use '-R' to destroy them too")]
    HasClones {
        /// The snapshot's full name.
        name: String,
    },
    /// Holds are on a snapshot.
    #[error("snapshot '{name}' is held; release its holds ('zfs holds', 'zfs release') first")]
    Held {
        /// The snapshot's full name.
        name: String,
    },
    /// More recent snapshots stand in the way of a rollback.
    #[error("more recent snapshots than '{name}' exist; use '-r' to destroy them")]
    NewerSnapshots {
        /// The snapshot to roll back to.
        name: String,
    },
    /// A bookmark's source is no earlier state of the dataset that is to have the bookmark.
    #[error("source is not an ancestor of the new bookmark's dataset; bookmark it in its own")]
    NotAncestor {
        /// The bookmark's full name.
        name: String,
    },
    /// The pool has no room for it.
    #[error("'{name}': out of space; free or add some")]
    NoSpace {
        /// The dataset.
        name: String,
    },
    /// A quota forbids it.
    #[error("'{name}': the quota is exceeded; free some space or raise quota or refquota")]
    QuotaExceeded {
        /// The dataset.
        name: String,
    },
    /// A limit on the number of filesystems or snapshots forbids it.
    #[error("'{name}': its {property} is reached; raise it or destroy what is not needed")]
    LimitReached {
        /// The dataset that carries the limit.
        name: String,
        /// `filesystem_limit` or `snapshot_limit`.
        property: &'static str,
    },
    /// A change to something that cannot change.
    #[error("'{name}' is read-only; {reason}")]
    ReadOnly {
        /// The dataset.
        name: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A property's value is not one that it takes.
    #[error("{reason}; see zfsprops(7) for the values of '{property}'")]
    InvalidProperty {
        /// Name of the property.
        property: String,
        /// In OpenZFS's words.
        reason: String,
    },
    /// The operation does not apply to this kind of dataset.
    #[error("'{name}': {reason}; choose another dataset")]
    WrongKind {
        /// The dataset.
        name: String,
        /// What does not apply.
        reason: String,
    },
    /// The dataset is encrypted, and its key is not loaded.
    #[error("encryption key not loaded; run 'zfs load-key {root}'")]
    KeyNotLoaded {
        /// The dataset.
        name: String,
        /// Its encryption root.
        root: String,
    },
    /// The key is loaded already.
    #[error("Key already loaded for '{name}'.")]
    KeyLoaded {
        /// The encryption root.
        name: String,
    },
    /// A key that does not open the dataset.
    #[error(
        "Incorrect key provided for '{name}'; give the key that it was created or last changed with"
    )]
    WrongKey {
        /// The encryption root.
        name: String,
    },
    /// The key that is loaded for an encryption root is not the one that a dataset's is wrapped
    /// with.
    #[error(
        "the key that is loaded for '{root}' does not open '{name}', which was wrapped with \
         another one: unload it, and load the key that '{root}' was last changed with"
    )]
    OtherKey {
        /// The dataset.
        name: String,
        /// Its encryption root.
        root: String,
    },
    /// The pool lacks a feature, or this release does.
    #[error("'{name}': {what} is not supported; enable the feature or use another setting")]
    Unsupported {
        /// The dataset or pool.
        name: String,
        /// What.
        what: String,
    },
    /// What is on disk contradicts itself.
    #[error("dataset object {object}: {what}; the pool is damaged, restore it from a backup")]
    Corrupt {
        /// The MOS object.
        object: ObjectId,
        /// What is wrong.
        what: String,
    },
    /// The pool is being closed or suspended.
    #[error("the pool is closing or suspended; 'zpool status' says why")]
    Closed,
    /// A stream cannot be received there.
    #[error("'{name}': {obstacle}")]
    Receive {
        /// Where it was to be received.
        name: String,
        /// Why not.
        obstacle: crate::ReceiveObstacle,
    },
    /// A redaction bookmark cannot be made, or a stream not be made with it.
    #[error("'{name}': {obstacle}")]
    Redact {
        /// The bookmark or snapshot.
        name: String,
        /// Why not.
        obstacle: crate::RedactObstacle,
    },
    /// Whoever asked for it asked to stop.
    #[error("interrupted; begin again")]
    Interrupted,
    /// The same thing may work in the next transaction group.
    #[error("'{name}': the same was just done in this transaction group; try again")]
    Again {
        /// The dataset.
        name: String,
    },
    /// The dataset is not to be changed yet: what a crash left in its intent log comes first.
    #[error(
        "the intent log of '{name}' waits to be replayed, and nothing can be changed before; mount \
         the filesystem, or use the volume"
    )]
    LogWaits {
        /// The full name.
        name: String,
    },
    /// The dataset is not to be changed: when the pool was imported, its intent log was passed
    /// over, as the dataset could not be read then.
    #[error(
        "'{name}' could not be read when the pool was imported, so what its intent log had is \
         lost, and nothing can be changed before the log is given up: 'zfs mount --discard-log \
         {name}' goes on without it"
    )]
    LogPassedOver {
        /// The full name.
        name: String,
    },
    /// An intent log cannot be read or replayed.
    #[error("{0}")]
    Log(#[source] ZilError),
    /// A caller above (a filesystem's initialiser, an intent log's replayer, the engine) failed.
    #[error("{what}: {source}; see the cause")]
    Hook {
        /// What was being done.
        what: String,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The object layer failed.
    #[error("{0}")]
    Object(#[from] object::ObjectError),
    /// The pool layer failed.
    #[error("{0}")]
    Zio(#[from] zio::ZioError),
    /// A structure on disk could not be decoded.
    #[error("{0}")]
    Format(#[from] format::FormatError),
}

impl From<ZilError> for DatasetError {
    fn from(error: ZilError) -> Self {
        match error {
            ZilError::Zio(error) => Self::Zio(error),
            ZilError::Closed => Self::Closed,
            other => Self::Log(other),
        }
    }
}

impl DatasetError {
    pub(crate) fn corrupt(object: ObjectId, what: impl Into<String>) -> Self {
        DatasetError::Corrupt {
            object,
            what: what.into(),
        }
    }

    pub(crate) fn not_found(name: impl Into<String>) -> Self {
        DatasetError::NotFound { name: name.into() }
    }
}
