//! Types of version 3 (RFC 1813 sections 2.5 and 2.6): status, attributes, their changes.

use filesystem::{Attributes, FileKind, FsError, SetAttributes, SetTime, Time};

use crate::object::{Error, Told};
use crate::xdr::{Reader, Result, Writer, XdrError};

/// Longest name that is read; the filesystem says what it takes.
pub(crate) const NAME_BYTES_MAX: u32 = 4096;
/// Longest target of a link that is read.
pub(crate) const TARGET_BYTES_MAX: u32 = 16 << 10;

/// `nfsstat3`, but for `NFS3_OK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    NxIo = 6,
    Acces = 13,
    Exist = 17,
    XDev = 18,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    RoFs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    BadHandle = 10001,
    NotSync = 10002,
    BadCookie = 10003,
    NotSupp = 10004,
    TooSmall = 10005,
    BadType = 10007,
    Jukebox = 10008,
}

impl Status {
    /// Those that say that the server could not do what was asked for, rather than that there is
    /// no such thing or that it is not allowed.
    const TROUBLES: [Self; 5] = [
        Self::Io,
        Self::NxIo,
        Self::NoSpc,
        Self::DQuot,
        Self::Jukebox,
    ];

    /// Whether the status that an answer begins with is one of those.
    pub(crate) fn is_trouble(code: u32) -> bool {
        let mut troubles = Self::TROUBLES.iter();
        troubles.any(|status| *status as u32 == code)
    }
}

impl From<&FsError> for Status {
    fn from(error: &FsError) -> Self {
        match error {
            FsError::NotFound { .. } => Self::NoEnt,
            FsError::Stale { .. } => Self::Stale,
            FsError::Exists { .. } => Self::Exist,
            FsError::NotDirectory { .. } => Self::NotDir,
            FsError::IsDirectory { .. } => Self::IsDir,
            FsError::NotEmpty { .. } => Self::NotEmpty,
            FsError::NameTooLong { .. } => Self::NameTooLong,
            FsError::BadName | FsError::Invalid { .. } => Self::Inval,
            FsError::CrossDevice => Self::XDev,
            FsError::NotPermitted { .. } => Self::Perm,
            FsError::ReadOnly => Self::RoFs,
            FsError::NoSpace | FsError::DirectoryFull { .. } => Self::NoSpc,
            FsError::QuotaExceeded => Self::DQuot,
            FsError::FileTooLarge { .. } | FsError::BlocksTooLong { .. } => Self::FBig,
            FsError::TooManyLinks { .. } => Self::MLink,
            FsError::NoSuchPlace { .. } => Self::NxIo,
            FsError::Unsupported { .. } => Self::NotSupp,
            // It comes back, or the share ends: the client asks again until it is known.
            FsError::Closed | FsError::Suspended { .. } => Self::Jukebox,
            _ => Self::Io,
        }
    }
}

impl From<&Error> for Status {
    fn from(error: &Error) -> Self {
        match error {
            Error::Filesystem(error) => error.into(),
            // There is none for what is busy: knfsd says this too (`nfsd3_map_status`).
            Error::Access | Error::MountedOn => Self::Acces,
            Error::NotOwner => Self::Perm,
            Error::ReadOnly => Self::RoFs,
            Error::BadHandle => Self::BadHandle,
            Error::Stale => Self::Stale,
            Error::NotSynchronized => Self::NotSync,
            Error::BadCookie => Self::BadCookie,
            Error::TooSmall => Self::TooSmall,
            Error::BadType => Self::BadType,
        }
    }
}

/// `nfstime3`: what is before the epoch, or later than 2106, is not told.
fn write_time(writer: &mut Writer, time: Time) {
    let seconds = time.seconds.clamp(0, u32::MAX.into());
    writer.u32(seconds as u32);
    writer.u32(time.nanoseconds);
}

fn read_time(reader: &mut Reader) -> Result<Time> {
    let (seconds, nanoseconds) = (reader.u32()?, reader.u32()?);
    Ok(Time {
        seconds: seconds.into(),
        nanoseconds: nanoseconds.min(999_999_999),
    })
}

/// `ftype3`.
pub(crate) fn file_type(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::BlockDevice => 3,
        FileKind::CharDevice => 4,
        FileKind::Symlink => 5,
        FileKind::Socket => 6,
        FileKind::Fifo => 7,
    }
}

/// Bytes of `fattr3`.
pub(crate) const ATTRIBUTES_BYTES: usize = 84;

/// `fattr3`.
pub(crate) fn write_attributes(writer: &mut Writer, told: &Told) {
    let Attributes {
        ino,
        kind,
        mode,
        uid,
        gid,
        nlink,
        size_bytes,
        allocated_bytes,
        rdev,
        atime,
        mtime,
        ctime,
        ..
    } = told.attributes;
    for word in [file_type(kind), mode, nlink, uid, gid] {
        writer.u32(word);
    }
    writer.u64(size_bytes);
    writer.u64(allocated_bytes);
    writer.u32(rdev.0);
    writer.u32(rdev.1);
    writer.u64(told.fsid);
    writer.u64(ino);
    for time in [atime, mtime, ctime] {
        write_time(writer, time);
    }
}

/// `post_op_attr`.
pub(crate) fn write_after(writer: &mut Writer, told: Option<&Told>) {
    writer.optional(told, write_attributes);
}

/// `wcc_data`: what a file was before an operation, where that is sure, and after it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Change {
    pub(crate) before: Option<Attributes>,
    pub(crate) after: Option<Told>,
}

impl Change {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.optional(self.before, |writer, before| {
            writer.u64(before.size_bytes);
            write_time(writer, before.mtime);
            write_time(writer, before.ctime);
        });
        write_after(writer, self.after.as_ref());
    }
}

/// `sattr3`.
pub(crate) fn read_set(reader: &mut Reader) -> Result<SetAttributes> {
    let time = |reader: &mut Reader| match reader.u32()? {
        0 => Ok(None),
        1 => Ok(Some(SetTime::Now)),
        2 => Ok(Some(SetTime::At(read_time(reader)?))),
        number => Err(XdrError::BadValue {
            what: "time_how",
            number,
        }),
    };
    // To the system calls of Linux that number is no id: it changes nothing, as with knfsd
    // (`svcxdr_decode_sattr3`, fs/nfsd/nfs3xdr.c).
    let id = |reader: &mut Reader| {
        let id = reader.optional(Reader::u32)?;
        Ok::<_, XdrError>(id.filter(|id| *id != u32::MAX))
    };
    Ok(SetAttributes {
        mode: reader.optional(Reader::u32)?.map(|mode| mode & 0o7777),
        uid: id(reader)?,
        gid: id(reader)?,
        size_bytes: reader.optional(Reader::u64)?,
        atime: time(reader)?,
        mtime: time(reader)?,
        ..SetAttributes::default()
    })
}

/// Whether a guard of SETATTR, a time of change, is a file's.
pub(crate) fn read_guard(reader: &mut Reader) -> Result<Option<Time>> {
    reader.optional(read_time)
}

/// A file's time of change as a client knows it.
pub(crate) fn as_told(time: Time) -> Time {
    Time {
        seconds: time.seconds.clamp(0, u32::MAX.into()),
        ..time
    }
}
