//! What scripts ask for, and who answers.

use crate::value::Value;

/// Answers what a script asks, out of one state of a pool.
pub trait Host {
    /// Answers a request, on the script's thread.
    ///
    /// # Errors
    /// [`Refusal`].
    fn ask(&self, request: Request) -> Result<Answer, Refusal>;

    /// Whether nobody waits for the script any more. Asked every hundred instructions.
    fn is_cancelled(&self) -> bool;
}

/// What a script asks for. Names are full ones, and may be of anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Whether there is a dataset or snapshot of that name.
    Exists(String),
    /// A property of a dataset or snapshot.
    Property {
        /// The dataset or snapshot.
        dataset: String,
        /// The property.
        property: String,
    },
    /// What there is of a kind at a dataset.
    List(Listing, String),
    /// A message for the server's log.
    Debug(String),
    /// A change: whether it could be made, or (`apply`) to make it.
    Change {
        /// What.
        change: Change,
        /// To make it.
        apply: bool,
    },
}

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// Full names of filesystems and volumes right below one.
    Children,
    /// Full names of snapshots of a filesystem or volume.
    Snapshots,
    /// Full names of clones of a snapshot.
    Clones,
    /// Full names of bookmarks of a filesystem or volume.
    Bookmarks,
    /// Tags of holds on a snapshot, and the seconds since the epoch when each was set.
    Holds,
    /// Names of user properties, their values, and the datasets on which each is set.
    UserProperties,
    /// Names of the properties that a dataset or snapshot has.
    SystemProperties,
}

/// A change of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Destroy a filesystem, volume or snapshot.
    Destroy {
        /// Its name.
        name: String,
        /// A snapshot that is needed goes when it is not any more.
        defer: bool,
    },
    /// Make a clone the owner of the snapshots that it shares.
    Promote {
        /// Its name.
        clone: String,
    },
    /// Go back to the last snapshot.
    Rollback {
        /// The filesystem or volume.
        name: String,
    },
    /// Take a snapshot.
    Snapshot {
        /// Its full name.
        name: String,
    },
    /// Clear a property.
    Inherit {
        /// The dataset or snapshot.
        dataset: String,
        /// The property.
        property: String,
    },
    /// Set a user property.
    Set {
        /// The dataset or snapshot.
        dataset: String,
        /// The property.
        property: String,
        /// Its new value.
        value: String,
    },
    /// Make a bookmark.
    Bookmark {
        /// The snapshot or bookmark that it is made of.
        source: String,
        /// The bookmark's full name.
        name: String,
    },
    /// Rename a snapshot.
    RenameSnapshot {
        /// The filesystem or volume.
        dataset: String,
        /// The snapshot's name behind `@`.
        old: String,
        /// The new one.
        new: String,
    },
}

impl Change {
    /// The dataset that is named in messages about it.
    pub fn dataset(&self) -> &str {
        match self {
            Change::Destroy { name, .. }
            | Change::Rollback { name }
            | Change::Snapshot { name }
            | Change::Bookmark { name, .. } => name,
            Change::Promote { clone } => clone,
            Change::Inherit { dataset, .. }
            | Change::Set { dataset, .. }
            | Change::RenameSnapshot { dataset, .. } => dataset,
        }
    }
}

/// What a host answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Exists`].
    Exists(bool),
    /// To [`Request::Property`]: value and source, as far as the dataset has it.
    Property(Option<(Value, Option<String>)>),
    /// To [`Request::List`]: for each entry what the script gets of it.
    List(Vec<Vec<Value>>),
    /// To [`Request::Debug`].
    Done,
    /// To [`Request::Change`].
    Changed(Changed),
}

/// How a change went.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changed {
    /// The code of the error; zero where all went well.
    pub errno: i32,
    /// More about it, for the script.
    pub details: Option<Value>,
}

/// Why a request has no answer. It ends the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such dataset.
    NotFound,
    /// The dataset is another pool's.
    OtherPool,
    /// The dataset has no such property, or is of the wrong kind.
    Invalid,
    /// Something could not be read.
    Io,
    /// Another error, by its code.
    Other(i32),
    /// The pool is left, or nobody waits any more.
    Gone,
}

impl Refusal {
    /// Its code.
    pub fn errno(self) -> i32 {
        match self {
            Refusal::NotFound => crate::errnos::code("ENOENT"),
            Refusal::OtherPool => crate::errnos::code("EXDEV"),
            Refusal::Invalid => crate::errnos::code("EINVAL"),
            Refusal::Io => crate::errnos::code("EIO"),
            Refusal::Other(code) => code,
            Refusal::Gone => crate::errnos::code("EINTR"),
        }
    }
}
