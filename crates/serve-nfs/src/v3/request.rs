//! Arguments of version 3's procedures (RFC 1813 section 3.3).

use bytes::Bytes;
use filesystem::{FileKind, SetAttributes, Time};

use super::types::{NAME_BYTES_MAX, TARGET_BYTES_MAX, read_guard, read_set};
use crate::handle::Handle;
use crate::xdr::{Reader, Result, XdrError};

/// Most bytes that one request reads or writes.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Copying so much takes some tens of microseconds.
pub(crate) const LONG_WRITE_BYTES: usize = 64 << 10;
/// Number of the procedure that writes.
pub(crate) const WRITE: u32 = 7;
/// Most bytes of a directory that one request lists.
pub(crate) const LISTING_BYTES_MAX: u32 = 128 << 10;

/// An entry of a directory: `diropargs3`.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) directory: Option<Handle>,
    pub(crate) name: Bytes,
}

/// `createhow3`.
#[derive(Debug, Clone)]
pub(crate) enum CreateHow {
    Unchecked(SetAttributes),
    Guarded(SetAttributes),
    /// With the attributes that it gets; times keep the verifier.
    Exclusive([u8; 8], SetAttributes),
}

/// `stable_how`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Stable {
    Unstable = 0,
    DataSync = 1,
    FileSync = 2,
}

/// A request. A handle is `None` where it is not one of ours.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Null,
    GetAttributes {
        file: Option<Handle>,
    },
    SetAttributes {
        file: Option<Handle>,
        set: SetAttributes,
        guard: Option<Time>,
    },
    Lookup {
        entry: Entry,
    },
    Access {
        file: Option<Handle>,
        wanted: u32,
    },
    ReadLink {
        file: Option<Handle>,
    },
    Read {
        file: Option<Handle>,
        offset_bytes: u64,
        count_bytes: u32,
    },
    Write {
        file: Option<Handle>,
        offset_bytes: u64,
        stable: Stable,
        data: Bytes,
    },
    Create {
        entry: Entry,
        how: CreateHow,
    },
    MakeDirectory {
        entry: Entry,
        set: SetAttributes,
    },
    Symlink {
        entry: Entry,
        set: SetAttributes,
        target: Bytes,
    },
    MakeNode {
        entry: Entry,
        /// `None`: a kind that is made otherwise.
        kind: Option<FileKind>,
        set: SetAttributes,
        rdev: (u32, u32),
    },
    Remove {
        entry: Entry,
    },
    RemoveDirectory {
        entry: Entry,
    },
    Rename {
        from: Entry,
        to: Entry,
    },
    Link {
        file: Option<Handle>,
        entry: Entry,
    },
    ReadDirectory {
        directory: Option<Handle>,
        cookie: u64,
        /// Most bytes of the names and what belongs to them.
        names_bytes: u32,
        /// Most bytes of the answer.
        count_bytes: u32,
        /// With attributes and handles.
        is_plus: bool,
    },
    Statistics {
        file: Option<Handle>,
    },
    Information {
        file: Option<Handle>,
    },
    PathLimits {
        file: Option<Handle>,
    },
    Commit {
        file: Option<Handle>,
    },
}

impl Entry {
    fn read(reader: &mut Reader) -> Result<Self> {
        Ok(Self {
            directory: Handle::read(reader)?,
            name: reader.opaque(NAME_BYTES_MAX)?,
        })
    }
}

impl CreateHow {
    fn read(reader: &mut Reader) -> Result<Self> {
        Ok(match reader.u32()? {
            0 => Self::Unchecked(read_set(reader)?),
            1 => Self::Guarded(read_set(reader)?),
            2 => Self::Exclusive(reader.fixed()?, SetAttributes::default()),
            number => {
                return Err(XdrError::BadValue {
                    what: "createmode3",
                    number,
                });
            }
        })
    }
}

/// File, offset, count and stability of a WRITE.
fn read_write_head(reader: &mut Reader) -> Result<(Option<Handle>, u64, u32, Stable)> {
    let file = Handle::read(reader)?;
    let (offset_bytes, count) = (reader.u64()?, reader.u32()?);
    let stable = match reader.u32()? {
        0 => Stable::Unstable,
        1 => Stable::DataSync,
        2 => Stable::FileSync,
        number => {
            return Err(XdrError::BadValue {
                what: "stable_how",
                number,
            });
        }
    };
    Ok((file, offset_bytes, count, stable))
}

/// Goes on to the content of a WRITE, by its arguments as far as they are there.
pub(crate) fn skip_to_content(reader: &mut Reader) -> Result<()> {
    read_write_head(reader)?;
    let _length = reader.u32()?;
    Ok(())
}

impl Request {
    /// The arguments of a procedure; `Ok(None)` where there is no such procedure.
    pub(crate) fn decode(procedure: u32, reader: &mut Reader) -> Result<Option<Self>> {
        Ok(Some(match procedure {
            0 => Self::Null,
            1 => Self::GetAttributes {
                file: Handle::read(reader)?,
            },
            2 => Self::SetAttributes {
                file: Handle::read(reader)?,
                set: read_set(reader)?,
                guard: read_guard(reader)?,
            },
            3 => Self::Lookup {
                entry: Entry::read(reader)?,
            },
            4 => Self::Access {
                file: Handle::read(reader)?,
                wanted: reader.u32()?,
            },
            5 => Self::ReadLink {
                file: Handle::read(reader)?,
            },
            6 => Self::Read {
                file: Handle::read(reader)?,
                offset_bytes: reader.u64()?,
                count_bytes: reader.u32()?.min(TRANSFER_BYTES_MAX),
            },
            WRITE => Self::read_write(reader)?,
            8 => Self::Create {
                entry: Entry::read(reader)?,
                how: CreateHow::read(reader)?,
            },
            9 => Self::MakeDirectory {
                entry: Entry::read(reader)?,
                set: read_set(reader)?,
            },
            10 => Self::Symlink {
                entry: Entry::read(reader)?,
                set: read_set(reader)?,
                target: reader.opaque(TARGET_BYTES_MAX)?,
            },
            11 => Self::read_make_node(reader)?,
            12 => Self::Remove {
                entry: Entry::read(reader)?,
            },
            13 => Self::RemoveDirectory {
                entry: Entry::read(reader)?,
            },
            14 => Self::Rename {
                from: Entry::read(reader)?,
                to: Entry::read(reader)?,
            },
            15 => Self::Link {
                file: Handle::read(reader)?,
                entry: Entry::read(reader)?,
            },
            16 | 17 => Self::read_listing(reader, procedure == 17)?,
            18 => Self::Statistics {
                file: Handle::read(reader)?,
            },
            19 => Self::Information {
                file: Handle::read(reader)?,
            },
            20 => Self::PathLimits {
                file: Handle::read(reader)?,
            },
            21 => {
                let file = Handle::read(reader)?;
                // All of the file is committed, so the range does not matter.
                let (_offset, _count) = (reader.u64()?, reader.u32()?);
                Self::Commit { file }
            }
            _ => return Ok(None),
        }))
    }

    fn read_write(reader: &mut Reader) -> Result<Self> {
        let (file, offset_bytes, count, stable) = read_write_head(reader)?;
        let mut data = reader.opaque(TRANSFER_BYTES_MAX)?;
        if data.len() < count as usize {
            return Err(XdrError::Short);
        }
        data.truncate(count as usize);
        Ok(Self::Write {
            file,
            offset_bytes,
            stable,
            data,
        })
    }

    fn read_make_node(reader: &mut Reader) -> Result<Self> {
        let entry = Entry::read(reader)?;
        let (kind, is_device) = match reader.u32()? {
            3 => (Some(FileKind::BlockDevice), true),
            4 => (Some(FileKind::CharDevice), true),
            6 => (Some(FileKind::Socket), false),
            7 => (Some(FileKind::Fifo), false),
            _ => (None, false),
        };
        let mut set = SetAttributes::default();
        let mut rdev = (0, 0);
        if kind.is_some() {
            set = read_set(reader)?;
        }
        if is_device {
            rdev = (reader.u32()?, reader.u32()?);
        }
        Ok(Self::MakeNode {
            entry,
            kind,
            set,
            rdev,
        })
    }

    fn read_listing(reader: &mut Reader, is_plus: bool) -> Result<Self> {
        let (directory, cookie) = (Handle::read(reader)?, reader.u64()?);
        // Cookies stay good, so there is nothing to verify.
        let _verifier: [u8; 8] = reader.fixed()?;
        let first = reader.u32()?;
        let (names_bytes, count_bytes) = match is_plus {
            true => (first, reader.u32()?),
            false => (u32::MAX, first),
        };
        Ok(Self::ReadDirectory {
            directory,
            cookie,
            names_bytes,
            count_bytes: count_bytes.min(LISTING_BYTES_MAX),
            is_plus,
        })
    }

    /// What the answer may need, in bytes.
    pub(crate) fn answer_bytes(&self) -> u32 {
        const SMALL: u32 = 1024;
        match self {
            Self::Read { count_bytes, .. } | Self::ReadDirectory { count_bytes, .. } => {
                count_bytes + SMALL
            }
            Self::ReadLink { .. } => TARGET_BYTES_MAX + SMALL,
            _ => SMALL,
        }
    }

    /// Whether doing it twice may give another answer than doing it once.
    pub(crate) fn is_once_only(&self) -> bool {
        matches!(
            self,
            Self::SetAttributes { .. }
                | Self::Create { .. }
                | Self::MakeDirectory { .. }
                | Self::Symlink { .. }
                | Self::MakeNode { .. }
                | Self::Remove { .. }
                | Self::RemoveDirectory { .. }
                | Self::Rename { .. }
                | Self::Link { .. }
        )
    }

    /// The handle that decides which share it is about; `Err` for none.
    pub(crate) fn handle(&self) -> std::result::Result<Option<Handle>, ()> {
        match self {
            Self::Null => Err(()),
            Self::GetAttributes { file }
            | Self::SetAttributes { file, .. }
            | Self::Access { file, .. }
            | Self::ReadLink { file }
            | Self::Read { file, .. }
            | Self::Write { file, .. }
            | Self::Link { file, .. }
            | Self::Statistics { file }
            | Self::Information { file }
            | Self::PathLimits { file }
            | Self::Commit { file }
            | Self::ReadDirectory {
                directory: file, ..
            } => Ok(*file),
            Self::Lookup { entry }
            | Self::Create { entry, .. }
            | Self::MakeDirectory { entry, .. }
            | Self::Symlink { entry, .. }
            | Self::MakeNode { entry, .. }
            | Self::Remove { entry }
            | Self::RemoveDirectory { entry }
            | Self::Rename { from: entry, .. } => Ok(entry.directory),
        }
    }
}
