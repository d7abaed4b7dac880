//! Why a dataset cannot be used, or not be had alone.

use dataset::DatasetError;
use filesystem::FsError;
use volume::VolumeError;

use crate::user::User;

/// Why a dataset cannot be used, or not be had alone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// There is no such dataset, or it cannot be opened.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The filesystem cannot be opened, or its last changes could not be written.
    #[error(transparent)]
    Filesystem(#[from] FsError),
    /// The volume cannot be opened, or its last changes could not be written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A filesystem was asked for, and it is a volume, or the other way round.
    #[error("dataset '{name}' is no {wanted}; choose another one")]
    WrongKind {
        /// The dataset.
        name: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// Others use what is to be had alone.
    #[error(
        "dataset '{name}' is busy: {}; end that, then try again",
        listed(users)
    )]
    InUse {
        /// The dataset.
        name: String,
        /// Who uses it.
        users: Vec<User>,
    },
    /// The pool is being exported.
    #[error("pool '{pool}' is being exported; import it again for this")]
    Leaving {
        /// The pool.
        pool: String,
    },
    /// Opening or closing the dataset met a fault of our own, and nobody knows how far it came.
    #[error("dataset '{name}': opening or closing it failed within the program; export the pool")]
    Broken {
        /// The dataset.
        name: String,
    },
    /// What was written last could not be stored, so that the dataset was left as it is.
    #[error("the last changes of '{name}' could not be written: {source}")]
    NotClosed {
        /// The dataset.
        name: String,
        /// Why.
        source: Box<AccessError>,
    },
    /// The dataset was changed while in use, and cannot be opened again: who uses it gets errors.
    #[error(
        "'{name}' cannot be opened again, and nobody can use it: {source}; unmount or unshare it, \
         then put it back"
    )]
    NotReopened {
        /// The dataset.
        name: String,
        /// Why.
        source: Box<AccessError>,
    },
}

/// Short for results of this crate.
pub type Result<T, E = AccessError> = std::result::Result<T, E>;

fn listed(users: &[User]) -> String {
    let words: Vec<String> = users.iter().map(User::to_string).collect();
    words.join(", ")
}

impl From<AccessError> for FsError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Filesystem(error) => error,
            AccessError::Dataset(error) => error.into(),
            AccessError::Leaving { .. } => FsError::Closed,
            other => FsError::Object {
                source: Box::new(other),
            },
        }
    }
}
