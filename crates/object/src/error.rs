//! The one error type of this crate.

use format::{FormatError, ObjectId, ObjectType};

/// Short for a result with an [`ObjectError`].
pub type Result<T> = std::result::Result<T, ObjectError>;

/// Why an operation on an object set, an object or a ZAP failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The pool could not read or write a block.
    #[error(transparent)]
    Zio(#[from] zio::ZioError),
    /// A structure on disk is not what it must be.
    #[error("object {object}: {source}")]
    Format {
        /// The object whose block holds the structure.
        object: ObjectId,
        /// What is wrong.
        source: FormatError,
    },
    /// There is no such object.
    #[error(
        "object {object} does not exist; whatever refers to it is stale, so look it up again or \
         scrub the pool"
    )]
    NoSuchObject {
        /// The object.
        object: ObjectId,
    },
    /// The object number is taken.
    #[error("object {object} exists already; choose another object number")]
    ObjectExists {
        /// The object.
        object: ObjectId,
    },
    /// Every object number is taken.
    #[error("the object set has no free object number left; remove files or use another dataset")]
    OutOfObjects,
    /// The object is of another type than the operation needs.
    #[error(
        "object {object} is of type {found}, not {expected}; whatever refers to it is stale or \
         damaged, so scrub the pool"
    )]
    WrongType {
        /// The object.
        object: ObjectId,
        /// Its type.
        found: ObjectType,
        /// What it should be, in words.
        expected: &'static str,
    },
    /// A structure inside an object is damaged.
    #[error(
        "object {object}: damaged {structure}: {detail}; scrub the pool or restore from a backup"
    )]
    Damaged {
        /// The object.
        object: ObjectId,
        /// OpenZFS's name of the structure.
        structure: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// A name exists already in a ZAP.
    #[error("object {object}: the name {name:?} exists already; remove it first or choose another")]
    NameExists {
        /// The ZAP.
        object: ObjectId,
        /// The name (lossy).
        name: String,
    },
    /// A name does not exist in a ZAP.
    #[error("object {object}: there is no name {name:?}; it may have been removed, so look again")]
    NoSuchName {
        /// The ZAP.
        object: ObjectId,
        /// The name (lossy).
        name: String,
    },
    /// A value or a request is outside the limits of the on-disk format.
    #[error(
        "object {object}: {what}; this is a limit of the on-disk format, so use a smaller value"
    )]
    TooBig {
        /// The object.
        object: ObjectId,
        /// What is too big, with numbers.
        what: String,
    },
    /// A ZAP has as many names of one hash as a leaf holds.
    #[error("object {object}: there is no room for another name like this; choose another name")]
    NoRoomForName {
        /// The ZAP.
        object: ObjectId,
    },
    /// The block size cannot be changed any more.
    #[error(
        "object {object}: the block size cannot change once there is more than one block; copy the \
         data into a new object"
    )]
    BlockSizeFixed {
        /// The object.
        object: ObjectId,
    },
    /// Blocks of this length may not fit the dataset's cipher.
    #[error(
        "object {object}: blocks of {block_bytes} bytes are too long for the dataset's cipher, \
         which takes {limit_bytes}; copy the file, and replace it with the copy"
    )]
    BlockTooLong {
        /// The object.
        object: ObjectId,
        /// Length of its data blocks.
        block_bytes: u32,
        /// Longest that can be written.
        limit_bytes: u32,
    },
    /// Something that is not done yet.
    #[error("object {object}: {what} is not supported yet; use OpenZFS for this dataset")]
    Unsupported {
        /// The object.
        object: ObjectId,
        /// What it is.
        what: &'static str,
    },
    /// The operation needs syncing context, or must not be in it, or the object set is read-only.
    #[error("object {object}: {what}; this is a bug, please report it")]
    Misuse {
        /// The object.
        object: ObjectId,
        /// What was done wrong.
        what: &'static str,
    },
}

impl ObjectError {
    /// Whether the error says that a name or an object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NoSuchObject { .. } | Self::NoSuchName { .. })
    }

    /// Whether the error says that a name or an object exists already.
    pub fn is_exists(&self) -> bool {
        matches!(self, Self::ObjectExists { .. } | Self::NameExists { .. })
    }
}

pub(crate) fn damaged(
    object: ObjectId,
    structure: &'static str,
    detail: impl Into<String>,
) -> ObjectError {
    ObjectError::Damaged {
        object,
        structure,
        detail: detail.into(),
    }
}

/// Attaches the object to a format error.
pub(crate) trait OfObject<T> {
    fn of(self, object: ObjectId) -> Result<T>;
}

impl<T> OfObject<T> for std::result::Result<T, FormatError> {
    fn of(self, object: ObjectId) -> Result<T> {
        self.map_err(|source| ObjectError::Format { object, source })
    }
}
