//! Why an operation failed, and the one mapping to `errno`.

use std::io;

/// Why a filesystem operation failed.
///
/// [`FsError::errno`] is the only place where these become numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// No such file, entry or attribute's file.
    #[error("object {ino}: there is no such file or entry; look the name up again")]
    NotFound {
        /// The object (of the directory, where an entry is missing).
        ino: u64,
    },
    /// The object was removed, or its number was used again for another file.
    #[error("object {ino}: the file is gone; look its name up again")]
    Stale {
        /// The object.
        ino: u64,
    },
    /// The name exists already.
    #[error("directory {ino}: an entry of this name exists already; choose another name")]
    Exists {
        /// The directory.
        ino: u64,
    },
    /// Something is in use.
    #[error("{ino} is in use; end what uses it, then try again")]
    Busy {
        /// The object.
        ino: u64,
    },
    /// A directory is needed.
    #[error("object {ino} is not a directory; use a path whose middle parts are directories")]
    NotDirectory {
        /// The object.
        ino: u64,
    },
    /// A directory is not allowed here.
    #[error("object {ino} is a directory; use an operation for directories")]
    IsDirectory {
        /// The object.
        ino: u64,
    },
    /// The directory still has entries.
    #[error("directory {ino} is not empty; remove its entries first")]
    NotEmpty {
        /// The directory.
        ino: u64,
    },
    /// The name is longer than the filesystem allows.
    #[error(
        "a name of {length_bytes} bytes is too long; use at most {limit_bytes} bytes (or enable \
         the longname property)"
    )]
    NameTooLong {
        /// Its length.
        length_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The name has bytes that the filesystem does not take (`utf8only=on`).
    #[error("the name is not UTF-8, which utf8only=on demands; use a UTF-8 name")]
    BadName,
    /// An argument makes no sense.
    #[error("{what}; correct the request")]
    Invalid {
        /// What is wrong.
        what: &'static str,
    },
    /// The operation would cross into another filesystem or project.
    #[error("the operation would leave its filesystem or project; copy the file instead")]
    CrossDevice,
    /// Not allowed to this caller, or the file is immutable.
    #[error("object {ino}: {what}")]
    NotPermitted {
        /// The object.
        ino: u64,
        /// Why, ending in advice.
        what: &'static str,
    },
    /// The filesystem, snapshot or pool does not take writes.
    #[error("the filesystem is read-only; set readonly=off or use another dataset")]
    ReadOnly,
    /// No space left in the pool (or under a dataset's quota: see [`FsError::QuotaExceeded`]).
    #[error("no space left in the pool; remove files or snapshots, or add devices")]
    NoSpace,
    /// A directory has as many names that differ only in case or form as can be.
    #[error("directory {ino} has no room for another name like this one; choose another name")]
    DirectoryFull {
        /// The directory.
        ino: u64,
    },
    /// A quota of the dataset, user, group or project is reached.
    #[error("a quota is reached; raise it or remove files")]
    QuotaExceeded,
    /// The file would get larger than can be.
    #[error("the file would get larger than {limit_bytes} bytes; use several files")]
    FileTooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// The file's blocks are longer than its dataset's cipher takes.
    #[error(
        "the blocks of object {ino} are too long for the dataset's cipher; copy the file, and \
         replace it with the copy"
    )]
    BlocksTooLong {
        /// The object.
        ino: u64,
    },
    /// Too many links to one file.
    #[error("object {ino} has as many links as can be; make a copy instead")]
    TooManyLinks {
        /// The object.
        ino: u64,
    },
    /// The extended attribute is not there.
    #[error("object {ino} has no such extended attribute; list its attributes")]
    NoAttribute {
        /// The object.
        ino: u64,
    },
    /// The extended attribute is too big.
    #[error("the extended attribute is too big; keep it under 64 KiB")]
    AttributeTooBig,
    /// No data or hole at or after this place (`SEEK_DATA`, `SEEK_HOLE`).
    #[error("there is nothing at or after offset {offset_bytes}; seek within the file")]
    NoSuchPlace {
        /// The place asked for.
        offset_bytes: u64,
    },
    /// What was asked for does not exist on this kind of filesystem or file.
    #[error("{what} is not supported here")]
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// The object set is being closed (unmounted, exported, rolled back).
    #[error("the filesystem is being unmounted; mount it again")]
    Closed,
    /// The pool has stopped after errors.
    #[error("the pool is suspended: {reason}; bring its devices back and run 'zpool clear'")]
    Suspended {
        /// What happened.
        reason: String,
    },
    /// What is on disk contradicts itself.
    #[error("object {ino}: {what}; run 'zpool scrub' and restore the file from a copy")]
    Corrupt {
        /// The object.
        ino: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The dataset's on-disk version or kind is not one that this filesystem code can serve.
    #[error("dataset {name}: {what}")]
    CannotOpen {
        /// The dataset.
        name: String,
        /// Why, ending in advice.
        what: String,
    },
    /// Objects could not be read or changed.
    #[error("{source}")]
    Object {
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Short for results of this crate.
pub type Result<T> = std::result::Result<T, FsError>;

/// Linux error numbers (asm-generic/errno-base.h, errno.h); stated here so that the mapping does
/// not depend on the machine that it is compiled on.
pub mod errno {
    #![allow(missing_docs)]
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EMLINK: i32 = 31;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ENODATA: i32 = 61;
    pub const E2BIG: i32 = 7;
    pub const EILSEQ: i32 = 84;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESTALE: i32 = 116;
    pub const EDQUOT: i32 = 122;
}

impl From<object::ObjectError> for FsError {
    fn from(error: object::ObjectError) -> Self {
        match error {
            object::ObjectError::Zio(error) => error.into(),
            object::ObjectError::NameExists { object, .. } => Self::Exists { ino: object.get() },
            object::ObjectError::NoSuchName { object, .. } => Self::NotFound { ino: object.get() },
            object::ObjectError::NoSuchObject { object } => Self::Stale { ino: object.get() },
            object::ObjectError::OutOfObjects => Self::NoSpace,
            object::ObjectError::BlockTooLong { object, .. } => {
                Self::BlocksTooLong { ino: object.get() }
            }
            object::ObjectError::NoRoomForName { object } => {
                Self::DirectoryFull { ino: object.get() }
            }
            other => Self::Object {
                source: Box::new(other),
            },
        }
    }
}

impl From<zio::ZioError> for FsError {
    fn from(error: zio::ZioError) -> Self {
        match error {
            zio::ZioError::NoSpace { .. } => Self::NoSpace,
            zio::ZioError::Suspended { reason } => Self::Suspended { reason },
            error @ zio::ZioError::TaskPanicked { .. } => Self::Suspended {
                reason: error.to_string(),
            },
            zio::ZioError::ReadOnly => Self::ReadOnly,
            zio::ZioError::Closing => Self::Closed,
            other => Self::Object {
                source: Box::new(other),
            },
        }
    }
}

impl From<dataset::DatasetError> for FsError {
    fn from(error: dataset::DatasetError) -> Self {
        use dataset::DatasetError;
        match error {
            DatasetError::NotFound { .. } => Self::NotFound { ino: 0 },
            DatasetError::NoSpace { .. } => Self::NoSpace,
            DatasetError::QuotaExceeded { .. } => Self::QuotaExceeded,
            DatasetError::ReadOnly { .. } => Self::ReadOnly,
            DatasetError::Closed => Self::Closed,
            DatasetError::Object(error) => error.into(),
            DatasetError::Zio(error) => error.into(),
            other => Self::Object {
                source: Box::new(other),
            },
        }
    }
}

impl From<zil::ZilError> for FsError {
    fn from(error: zil::ZilError) -> Self {
        dataset::DatasetError::from(error).into()
    }
}

impl FsError {
    /// The error number that a system call answers with.
    pub fn errno(&self) -> i32 {
        use errno::*;
        match self {
            Self::NotFound { .. } => ENOENT,
            Self::Stale { .. } => ESTALE,
            Self::Exists { .. } => EEXIST,
            Self::Busy { .. } => EBUSY,
            Self::NotDirectory { .. } => ENOTDIR,
            Self::IsDirectory { .. } => EISDIR,
            Self::NotEmpty { .. } => ENOTEMPTY,
            Self::NameTooLong { .. } => ENAMETOOLONG,
            Self::BadName => EILSEQ,
            Self::Invalid { .. } => EINVAL,
            Self::CrossDevice => EXDEV,
            Self::NotPermitted { .. } => EPERM,
            Self::ReadOnly => EROFS,
            Self::NoSpace | Self::DirectoryFull { .. } => ENOSPC,
            Self::QuotaExceeded => EDQUOT,
            Self::FileTooLarge { .. } | Self::BlocksTooLong { .. } => EFBIG,
            Self::TooManyLinks { .. } => EMLINK,
            Self::NoAttribute { .. } => ENODATA,
            Self::AttributeTooBig => E2BIG,
            Self::NoSuchPlace { .. } => ENXIO,
            Self::Unsupported { .. } => EOPNOTSUPP,
            Self::Closed
            | Self::Suspended { .. }
            | Self::Corrupt { .. }
            | Self::CannotOpen { .. }
            | Self::Object { .. } => EIO,
        }
    }

    /// As an [`io::Error`] of the same number.
    pub fn to_io(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno())
    }
}
