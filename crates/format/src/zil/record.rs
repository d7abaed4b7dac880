//! Records of the intent log (`lr_*_t`, include/sys/zil.h; what follows the fixed parts is as in
//! module/zfs/zfs_log.c and zfs_replay.c).

use std::borrow::Cow;

use super::{LogHeader, LogKind, LogWriteBody};
use crate::blkptr::{BLOCK_POINTER_BYTES, BlockPointer, read_pointer};
use crate::bytes::{Endian, Put, Reader, bits, with_bits};
use crate::error::{FormatError, Result, bad, does_not_fit};
use crate::ids::{ObjectId, Txg};

const LR: &str = "lr_t";
/// In the mask of a set-attributes record: extended attributes follow (`ATTR_XVATTR` of Linux).
const MASK_ATTRIBUTES: u64 = 1 << 31;
/// Words of the bitmap of extended attributes (`XVA_MAPSIZE` is 3); more are not believed.
const MAX_BITMAP_WORDS: u32 = 64;
/// What most bodies without data fit into, in bytes.
const USUAL_BYTES: usize = 192;

/// A time: seconds, then nanoseconds.
pub type Log64Time = [u64; 2];

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// Txg that it belongs to.
    pub txg: Txg,
    /// Number of the record in its log, from 1.
    pub sequence: u64,
    /// Names were looked up without regard to case (`TX_CI`).
    pub case_insensitive: bool,
    /// What was done.
    pub body: LogBody<'a>,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogBody<'a> {
    /// Nothing; never on disk (`TX_COMMIT`).
    Commit,
    /// A file, directory, link or device was made (`TX_CREATE`, `TX_MKDIR`, `TX_SYMLINK`, ...).
    Create(Box<LogCreate<'a>>),
    /// An entry was removed: directory object, name (`TX_REMOVE`, `TX_RMDIR`).
    Remove {
        /// The directory.
        directory: ObjectId,
        /// The entry.
        name: &'a [u8],
        /// It is a directory.
        is_directory: bool,
    },
    /// A link was made (`TX_LINK`).
    Link {
        /// The directory.
        directory: ObjectId,
        /// What is linked.
        object: ObjectId,
        /// The entry.
        name: &'a [u8],
    },
    /// An entry was renamed (`TX_RENAME`, `TX_RENAME_EXCHANGE`, `TX_RENAME_WHITEOUT`).
    Rename(LogRename<'a>),
    /// Data was written (`TX_WRITE`).
    Write(LogWrite<'a>),
    /// Data was written that its txg already has; only the size counts (`TX_WRITE2`).
    WriteSize(LogWrite<'a>),
    /// A range was freed (`TX_TRUNCATE`); a length of zero is up to the end.
    Truncate {
        /// The file.
        object: ObjectId,
        /// Where it starts.
        offset: u64,
        /// How long it is.
        length: u64,
    },
    /// Attributes were set (`TX_SETATTR`).
    SetAttributes(Box<LogSetAttributes<'a>>),
    /// An ACL of version 0 was set (`TX_ACL_V0`).
    AclV0 {
        /// The file.
        object: ObjectId,
        /// Number of entries.
        count: u64,
        /// Entries and what follows.
        entries: &'a [u8],
    },
    /// An ACL was set (`TX_ACL`).
    Acl {
        /// The file.
        object: ObjectId,
        /// The ACL.
        acl: LogAcl<'a>,
    },
    /// An extended attribute was set or, when empty, removed (`TX_SETSAXATTR`).
    SetXattr {
        /// The file.
        object: ObjectId,
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// Blocks were cloned into a file (`TX_CLONE_RANGE`).
    CloneRange {
        /// The file.
        object: ObjectId,
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
        /// The file's block size in bytes.
        block_bytes: u64,
        /// The blocks.
        blocks: Cow<'a, [BlockPointer]>,
    },
    /// A type that this release does not know.
    Unknown {
        /// The type.
        code: u64,
        /// What follows the header.
        bytes: &'a [u8],
    },
}

/// An object that is made, and the slots that its dnode takes (`LR_FOID_GET_SLOTS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogObject {
    /// The object: 48 bits.
    pub object: ObjectId,
    /// Slots of its dnode; at least 1.
    pub dnode_slots: u16,
}

impl LogObject {
    const fn decode(word: u64) -> Self {
        Self {
            object: ObjectId::new(bits(word, 0, 48)),
            dnode_slots: bits(word, 56, 8) as u16 + 1,
        }
    }

    const fn encode(self) -> u64 {
        let slots = (self.dnode_slots as u64).saturating_sub(1);
        with_bits(bits(self.object.get(), 0, 48), 56, 8, slots)
    }
}

/// What is made by a create record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogCreateKind {
    /// A file or device.
    File,
    /// A directory.
    Directory,
    /// A directory of extended attributes.
    XattrDirectory,
    /// A symbolic link.
    Symlink,
}

/// A create record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogCreate<'a> {
    /// What is made.
    pub kind: LogCreateKind,
    /// The directory that it is made in.
    pub directory: ObjectId,
    /// The object.
    pub object: LogObject,
    /// Type and permissions.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Generation: txg of its creation.
    pub generation: u64,
    /// When.
    pub create_time: Log64Time,
    /// Device number.
    pub rdev: u64,
    /// Extended attributes (types `*_ATTR`).
    pub attributes: Option<LogAttributes>,
    /// ACL (types `*_ACL`).
    pub acl: Option<LogAcl<'a>>,
    /// Domains of owner and group when these are FUIDs, in records without an ACL. None, although
    /// they are, in records that older releases of Millpond wrote: these ids are the stored ones.
    pub domains: Vec<&'a [u8]>,
    /// Its name.
    pub name: &'a [u8],
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

/// Extended attributes in a record (`lr_attr_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogAttributes {
    /// Which are set: words of the bitmap, of which only the first has any bits (`XAT0_*`,
    /// include/sys/xvattr.h).
    pub bitmap: Vec<u32>,
    /// Their values.
    pub attributes: u64,
    /// Creation time.
    pub create_time: Log64Time,
    /// Stamp of a virus scanner, or in its first word the project.
    pub scan_stamp: [u8; 32],
}

impl LogAttributes {
    /// Words of the bitmap that we write (`XVA_MAPSIZE`).
    pub const BITMAP_WORDS: usize = 3;

    /// The word of the bitmap that has the bits.
    pub fn first_word(&self) -> u32 {
        self.bitmap.first().copied().unwrap_or(0)
    }

    /// The project, where the bitmap says that there is one, of a record in this byte order.
    pub fn project(&self, endian: Endian) -> u64 {
        let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = self.scan_stamp;
        endian.u64([b0, b1, b2, b3, b4, b5, b6, b7])
    }

    /// The stamp that holds a project, little-endian.
    pub fn stamp_of_project(project: u64) -> [u8; 32] {
        let mut stamp = [0; 32];
        stamp[..8].copy_from_slice(&project.to_le_bytes());
        stamp
    }
}

/// An ACL in a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogAcl<'a> {
    /// Number of entries.
    pub count: u64,
    /// Flags.
    pub flags: u64,
    /// The entries, each as `ace_t` has it: who (4 bytes), mask (4), flags (2), type (2).
    pub entries: &'a [u8],
    /// FUIDs that the entries speak of.
    pub fuids: Vec<u64>,
    /// Domains that the FUIDs speak of.
    pub domains: Vec<&'a [u8]>,
}

/// How an entry was renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameKind {
    /// Over what was there.
    Plain,
    /// The two were exchanged.
    Exchange,
    /// A whiteout was left at the source.
    Whiteout(LogWhiteout),
}

/// A whiteout that a rename leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogWhiteout {
    /// The object.
    pub object: LogObject,
    /// Type and permissions.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Generation.
    pub generation: u64,
    /// When.
    pub create_time: Log64Time,
    /// Device number.
    pub rdev: u64,
}

/// A rename record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRename<'a> {
    /// How.
    pub kind: RenameKind,
    /// Directory that the entry was in.
    pub source_directory: ObjectId,
    /// Directory that it is in now.
    pub target_directory: ObjectId,
    /// Its name before.
    pub source: &'a [u8],
    /// Its name now.
    pub target: &'a [u8],
}

/// A write record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogWrite<'a> {
    /// The file or volume object.
    pub object: ObjectId,
    /// Where.
    pub offset: u64,
    /// How much.
    pub length: u64,
    /// No longer used.
    pub block_offset: u64,
    /// The data's block, when `data` is `None`; else a hole.
    pub block: BlockPointer,
    /// The data, when it is in the record.
    pub data: Option<&'a [u8]>,
}

impl LogWrite<'_> {
    /// A write whose data follows the record's fixed part.
    pub const fn new(object: ObjectId, offset: u64, length: u64) -> Self {
        Self {
            object,
            offset,
            length,
            block_offset: 0,
            block: BlockPointer::HOLE,
            data: None,
        }
    }
}

/// A set-attributes record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSetAttributes<'a> {
    /// The file.
    pub object: ObjectId,
    /// Which are set: [`Self::MODE`] and its neighbours. The bit of extended attributes follows
    /// [`Self::attributes`] when encoding.
    pub mask: u64,
    /// Permissions.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Size.
    pub size: u64,
    /// Access time.
    pub access_time: Log64Time,
    /// Modify time.
    pub modify_time: Log64Time,
    /// Extended attributes.
    pub attributes: Option<LogAttributes>,
    /// Domains of owner and group when these are set, and FUIDs.
    pub domains: Vec<&'a [u8]>,
}

impl LogSetAttributes<'_> {
    /// In the mask: permissions are set (Linux's `ATTR_MODE`, include/linux/fs.h).
    pub const MODE: u64 = 1;
    /// The owner is set (`ATTR_UID`).
    pub const UID: u64 = 1 << 1;
    /// The group is set (`ATTR_GID`).
    pub const GID: u64 = 1 << 2;
    /// The size is set (`ATTR_SIZE`).
    pub const SIZE: u64 = 1 << 3;
    /// The access time is set (`ATTR_ATIME`).
    pub const ATIME: u64 = 1 << 4;
    /// The modify time is set (`ATTR_MTIME`).
    pub const MTIME: u64 = 1 << 5;

    /// Domains in a record with this mask: ids that it does not set are of no meaning.
    fn domain_count(mask: u64, uid: u64, gid: u64) -> u64 {
        domain_count(
            if mask & Self::UID == 0 { 0 } else { uid },
            if mask & Self::GID == 0 { 0 } else { gid },
        )
    }
}

/// Domains that a record holds for these owners (`zfs_replay_domain_cnt`): FUIDs have the index of
/// their domain in the high half.
fn domain_count(uid: u64, gid: u64) -> u64 {
    let (uid, gid) = (uid >> 32, gid >> 32);
    u64::from(uid != 0) + u64::from(gid != 0 && gid != uid)
}

fn name<'a>(r: &mut Reader<'a>) -> Result<&'a [u8]> {
    let length = r
        .rest()
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(FormatError::BadText {
            structure: LR,
            field: "name",
        })?;
    let name = r.take(length)?;
    r.skip(1)?;
    Ok(name)
}

fn domains<'a>(r: &mut Reader<'a>, count: u64) -> Result<Vec<&'a [u8]>> {
    if count > r.remaining() as u64 {
        return Err(bad(LR, "lr_domcnt", count, "as many as fit the record"));
    }
    (0..count).map(|_| name(r)).collect()
}

/// Whether the strings that follow are only those that a record has without domains: what older
/// releases of Millpond logged of ids with a domain. Zero bytes fill the record up, so empty
/// strings do not count.
fn only_names_follow(r: &Reader<'_>, kind: LogCreateKind) -> bool {
    let strings = r.rest().split(|byte| *byte == 0);
    let strings = strings.filter(|string| !string.is_empty()).count();
    strings == usize::from(kind != LogCreateKind::XattrDirectory)
}

fn attributes(r: &mut Reader<'_>) -> Result<LogAttributes> {
    let words = r.u32()?;
    if words == 0 || words > MAX_BITMAP_WORDS {
        return Err(bad(LR, "lr_attr_masksize", words.into(), "1 to 64 words"));
    }
    Ok(LogAttributes {
        bitmap: (0..words).map(|_| r.u32()).collect::<Result<_>>()?,
        attributes: r.u64()?,
        create_time: r.words()?,
        scan_stamp: r.array()?,
    })
}

fn acl_tail<'a>(
    r: &mut Reader<'a>,
    [count, domain_count, fuid_count, bytes, flags]: [u64; 5],
) -> Result<LogAcl<'a>> {
    let length = usize::try_from(bytes)
        .ok()
        .filter(|length| *length <= r.remaining())
        .ok_or_else(|| bad(LR, "lr_acl_bytes", bytes, "what fits the record"))?;
    let entries = r.take(length)?;
    r.skip(length.next_multiple_of(8) - length)?;
    if fuid_count > r.remaining() as u64 / 8 {
        return Err(bad(
            LR,
            "lr_fuidcnt",
            fuid_count,
            "as many as fit the record",
        ));
    }
    let fuids = (0..fuid_count).map(|_| r.u64()).collect::<Result<_>>()?;
    Ok(LogAcl {
        count,
        flags,
        entries,
        fuids,
        domains: domains(r, domain_count)?,
    })
}

impl<'a> LogRecord<'a> {
    /// Decodes the record at the start of `bytes` and says how long it is.
    ///
    /// # Errors
    /// [`FormatError`] when it is damaged or cut off.
    pub fn decode(bytes: &'a [u8], endian: Endian) -> Result<(Self, usize)> {
        let header = LogHeader::decode(bytes, endian)?;
        let body = &bytes[LogHeader::BYTES..header.length_bytes];
        let body = LogBody::decode(body, header.kind, endian)?;
        Ok((
            Self {
                txg: header.txg,
                sequence: header.sequence,
                case_insensitive: header.case_insensitive,
                body,
            },
            header.length_bytes,
        ))
    }

    /// The record, little-endian, its length filled up to a multiple of eight.
    ///
    /// # Errors
    /// [`FormatError`] when a name holds a zero byte, or parts of the record contradict another.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(LogHeader::BYTES + USUAL_BYTES);
        out.put_zeros(LogHeader::BYTES);
        self.body.write(&mut out)?;
        out.resize(out.len().next_multiple_of(8), 0);
        let header = LogHeader {
            kind: self.body.kind(),
            case_insensitive: self.case_insensitive,
            length_bytes: out.len(),
            txg: self.txg,
            sequence: self.sequence,
        };
        out[..LogHeader::BYTES].copy_from_slice(&header.encode(Endian::Little));
        Ok(out)
    }
}

impl<'a> LogBody<'a> {
    /// The record's kind.
    pub fn kind(&self) -> LogKind {
        match self {
            Self::Commit => LogKind::Commit,
            Self::Create(create) => {
                use LogCreateKind::{Directory, File, Symlink, XattrDirectory};
                match (
                    create.kind,
                    create.acl.is_some(),
                    create.attributes.is_some(),
                ) {
                    (File, false, false) => LogKind::Create,
                    (Directory, false, false) => LogKind::Mkdir,
                    (XattrDirectory, _, _) => LogKind::MkXattr,
                    (Symlink, _, _) => LogKind::Symlink,
                    (File, true, false) => LogKind::CreateAcl,
                    (File, false, true) => LogKind::CreateAttr,
                    (File, true, true) => LogKind::CreateAclAttr,
                    (Directory, true, false) => LogKind::MkdirAcl,
                    (Directory, false, true) => LogKind::MkdirAttr,
                    (Directory, true, true) => LogKind::MkdirAclAttr,
                }
            }
            Self::Remove {
                is_directory: false,
                ..
            } => LogKind::Remove,
            Self::Remove {
                is_directory: true, ..
            } => LogKind::Rmdir,
            Self::Link { .. } => LogKind::Link,
            Self::Rename(rename) => match rename.kind {
                RenameKind::Plain => LogKind::Rename,
                RenameKind::Exchange => LogKind::RenameExchange,
                RenameKind::Whiteout(_) => LogKind::RenameWhiteout,
            },
            Self::Write(_) => LogKind::Write,
            Self::Truncate { .. } => LogKind::Truncate,
            Self::SetAttributes(_) => LogKind::SetAttr,
            Self::AclV0 { .. } => LogKind::AclV0,
            Self::Acl { .. } => LogKind::Acl,
            Self::WriteSize(_) => LogKind::Write2,
            Self::SetXattr { .. } => LogKind::SetSaXattr,
            Self::CloneRange { .. } => LogKind::CloneRange,
            Self::Unknown { code, .. } => LogKind::Unknown(*code),
        }
    }

    /// Decodes what follows a record's header.
    ///
    /// # Errors
    /// [`FormatError`] when it is damaged or cut off.
    pub fn decode(body: &'a [u8], kind: LogKind, endian: Endian) -> Result<Self> {
        Self::read(&mut Reader::new(LR, body, endian), kind, endian)
    }

    /// What follows a record's header, little-endian.
    ///
    /// # Errors
    /// As those of [`LogRecord::encode`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(USUAL_BYTES);
        self.write(&mut out)?;
        Ok(out)
    }

    fn read(r: &mut Reader<'a>, kind: LogKind, endian: Endian) -> Result<Self> {
        use LogCreateKind::{Directory, File, Symlink, XattrDirectory};
        Ok(match kind {
            LogKind::Commit => Self::Commit,
            LogKind::Create => Self::read_create(r, File, false, false)?,
            LogKind::Mkdir => Self::read_create(r, Directory, false, false)?,
            LogKind::MkXattr => Self::read_create(r, XattrDirectory, false, false)?,
            LogKind::Symlink => Self::read_create(r, Symlink, false, false)?,
            LogKind::CreateAcl => Self::read_create(r, File, true, false)?,
            LogKind::CreateAttr => Self::read_create(r, File, false, true)?,
            LogKind::CreateAclAttr => Self::read_create(r, File, true, true)?,
            LogKind::MkdirAcl => Self::read_create(r, Directory, true, false)?,
            LogKind::MkdirAttr => Self::read_create(r, Directory, false, true)?,
            LogKind::MkdirAclAttr => Self::read_create(r, Directory, true, true)?,
            LogKind::Remove | LogKind::Rmdir => {
                let directory = r.u64()?.into();
                Self::Remove {
                    directory,
                    name: name(r)?,
                    is_directory: kind == LogKind::Rmdir,
                }
            }
            LogKind::Link => {
                let [directory, object] = r.words()?;
                Self::Link {
                    directory: directory.into(),
                    object: object.into(),
                    name: name(r)?,
                }
            }
            LogKind::Rename | LogKind::RenameExchange | LogKind::RenameWhiteout => {
                let [source_directory, target_directory] = r.words()?;
                let kind = match kind {
                    LogKind::Rename => RenameKind::Plain,
                    LogKind::RenameExchange => RenameKind::Exchange,
                    _ => {
                        let [object, mode, uid, gid, generation] = r.words()?;
                        let object = LogObject::decode(object);
                        let create_time = r.words()?;
                        let rdev = r.u64()?;
                        RenameKind::Whiteout(LogWhiteout {
                            object,
                            mode,
                            uid,
                            gid,
                            generation,
                            create_time,
                            rdev,
                        })
                    }
                };
                Self::Rename(LogRename {
                    kind,
                    source_directory: source_directory.into(),
                    target_directory: target_directory.into(),
                    source: name(r)?,
                    target: name(r)?,
                })
            }
            LogKind::Write => Self::Write(Self::read_write(r, endian)?),
            LogKind::Write2 => Self::WriteSize(Self::read_write_head(r, endian)?),
            LogKind::Truncate => {
                let [object, offset, length] = r.words()?;
                Self::Truncate {
                    object: object.into(),
                    offset,
                    length,
                }
            }
            LogKind::SetAttr => {
                let [object, mask, mode, uid, gid, size] = r.words()?;
                let access_time = r.words()?;
                let modify_time = r.words()?;
                let attributes = if mask & MASK_ATTRIBUTES != 0 {
                    Some(attributes(r)?)
                } else {
                    None
                };
                Self::SetAttributes(Box::new(LogSetAttributes {
                    object: object.into(),
                    mask,
                    mode,
                    uid,
                    gid,
                    size,
                    access_time,
                    modify_time,
                    attributes,
                    domains: domains(r, LogSetAttributes::domain_count(mask, uid, gid))?,
                }))
            }
            LogKind::AclV0 => {
                let [object, count] = r.words()?;
                let entries = r.take(r.remaining())?;
                Self::AclV0 {
                    object: object.into(),
                    count,
                    entries,
                }
            }
            LogKind::Acl => {
                let object = r.u64()?.into();
                let head = r.words()?;
                Self::Acl {
                    object,
                    acl: acl_tail(r, head)?,
                }
            }
            LogKind::SetSaXattr => {
                let [object, size] = r.words()?;
                let name = name(r)?;
                let size = usize::try_from(size)
                    .ok()
                    .filter(|size| *size <= r.remaining())
                    .ok_or_else(|| bad(LR, "lr_size", size, "what fits the record"))?;
                Self::SetXattr {
                    object: object.into(),
                    name,
                    value: r.take(size)?,
                }
            }
            LogKind::CloneRange => {
                let [object, offset, length, block_bytes, count] = r.words()?;
                if count > (r.remaining() / BLOCK_POINTER_BYTES) as u64 {
                    return Err(bad(LR, "lr_nbps", count, "as many as fit the record"));
                }
                let blocks = (0..count)
                    .map(|_| read_pointer(r, endian))
                    .collect::<Result<_>>()?;
                let object = object.into();
                Self::CloneRange {
                    object,
                    offset,
                    length,
                    block_bytes,
                    blocks,
                }
            }
            LogKind::Unknown(code) => Self::Unknown {
                code,
                bytes: r.take(r.remaining())?,
            },
        })
    }

    fn read_write_head(r: &mut Reader<'a>, endian: Endian) -> Result<LogWrite<'a>> {
        let [object, offset, length, block_offset] = r.words()?;
        Ok(LogWrite {
            block_offset,
            block: read_pointer(r, endian)?,
            ..LogWrite::new(object.into(), offset, length)
        })
    }

    fn read_write(r: &mut Reader<'a>, endian: Endian) -> Result<LogWrite<'a>> {
        let head = Self::read_write_head(r, endian)?;
        let data = if r.remaining() == 0 {
            None
        } else {
            let length = head.length;
            let fits = usize::try_from(length)
                .ok()
                .filter(|length| *length <= r.remaining());
            let length = fits.ok_or_else(|| bad(LR, "lr_length", length, "the record's data"))?;
            Some(r.take(length)?)
        };
        Ok(LogWrite { data, ..head })
    }

    fn read_create(
        r: &mut Reader<'a>,
        kind: LogCreateKind,
        has_acl: bool,
        has_attributes: bool,
    ) -> Result<Self> {
        let [directory, object, mode, uid, gid, generation] = r.words()?;
        let create_time = r.words()?;
        let rdev = r.u64()?;
        let acl_head = if has_acl { Some(r.words()?) } else { None };
        let attributes = if has_attributes {
            Some(attributes(r)?)
        } else {
            None
        };
        let acl = acl_head.map(|head| acl_tail(r, head)).transpose()?;
        let domain_count = match kind {
            LogCreateKind::Symlink => 0,
            _ if has_acl || only_names_follow(r, kind) => 0,
            _ => domain_count(uid, gid),
        };
        let domains = domains(r, domain_count)?;
        let name_bytes = match kind {
            // A directory of extended attributes has no name; a zero byte may be there or not.
            LogCreateKind::XattrDirectory if r.remaining() == 0 => &[],
            _ => name(r)?,
        };
        let target = match kind {
            LogCreateKind::Symlink => name(r)?,
            _ => &[],
        };
        Ok(Self::Create(Box::new(LogCreate {
            kind,
            directory: directory.into(),
            object: LogObject::decode(object),
            mode,
            uid,
            gid,
            generation,
            create_time,
            rdev,
            attributes,
            acl,
            domains,
            name: name_bytes,
            target,
        })))
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::Commit => {}
            Self::Create(create) => write_create(create, out)?,
            Self::Remove {
                directory, name, ..
            } => {
                out.put_u64(directory.get());
                put_name(out, name)?;
            }
            Self::Link {
                directory,
                object,
                name,
            } => {
                out.put_words(&[directory.get(), object.get()]);
                put_name(out, name)?;
            }
            Self::Rename(rename) => {
                out.put_words(&[rename.source_directory.get(), rename.target_directory.get()]);
                if let RenameKind::Whiteout(w) = &rename.kind {
                    out.put_words(&[w.object.encode(), w.mode, w.uid, w.gid, w.generation]);
                    out.put_words(&w.create_time);
                    out.put_u64(w.rdev);
                }
                put_name(out, rename.source)?;
                put_name(out, rename.target)?;
            }
            Self::Write(write) | Self::WriteSize(write) => {
                out.extend_from_slice(&LogWriteBody::encode(write));
                if let Some(data) = write.data {
                    if data.len() as u64 != write.length || data.is_empty() {
                        let expected = "the length of the data";
                        return Err(does_not_fit(LR, "lr_length", write.length, expected));
                    }
                    out.extend_from_slice(data);
                }
            }
            Self::Truncate {
                object,
                offset,
                length,
            } => {
                out.put_words(&[object.get(), *offset, *length]);
            }
            Self::SetAttributes(set) => {
                let mask = match set.attributes {
                    Some(_) => set.mask | MASK_ATTRIBUTES,
                    None => set.mask & !MASK_ATTRIBUTES,
                };
                out.put_words(&[set.object.get(), mask, set.mode, set.uid, set.gid, set.size]);
                out.put_words(&set.access_time);
                out.put_words(&set.modify_time);
                if let Some(attributes) = &set.attributes {
                    put_attributes(out, attributes)?;
                }
                let expected = LogSetAttributes::domain_count(set.mask, set.uid, set.gid);
                put_domains(out, &set.domains, expected)?;
            }
            Self::AclV0 {
                object,
                count,
                entries,
            } => {
                out.put_words(&[object.get(), *count]);
                out.extend_from_slice(entries);
            }
            Self::Acl { object, acl } => {
                out.put_u64(object.get());
                put_acl_head(out, acl);
                put_acl_tail(out, acl)?;
            }
            Self::SetXattr {
                object,
                name,
                value,
            } => {
                out.reserve(value.len());
                out.put_words(&[object.get(), value.len() as u64]);
                put_name(out, name)?;
                out.extend_from_slice(value);
            }
            Self::CloneRange {
                object,
                offset,
                length,
                block_bytes,
                blocks,
            } => {
                out.reserve(blocks.len() * BLOCK_POINTER_BYTES);
                out.put_words(&[object.get(), *offset, *length, *block_bytes]);
                out.put_u64(blocks.len() as u64);
                for block in blocks.iter() {
                    out.extend_from_slice(&block.encode());
                }
            }
            Self::Unknown { bytes, .. } => out.extend_from_slice(bytes),
        }
        Ok(())
    }
}

fn write_create(create: &LogCreate<'_>, out: &mut Vec<u8>) -> Result<()> {
    let plain = matches!(create.kind, LogCreateKind::File | LogCreateKind::Directory);
    if !plain && (create.acl.is_some() || create.attributes.is_some()) {
        let found = create.mode;
        return Err(does_not_fit(
            LR,
            "lrc_txtype",
            found,
            "an ACL of a file or directory",
        ));
    }
    out.put_words(&[create.directory.get(), create.object.encode(), create.mode]);
    out.put_words(&[create.uid, create.gid, create.generation]);
    out.put_words(&create.create_time);
    out.put_u64(create.rdev);
    if let Some(acl) = &create.acl {
        put_acl_head(out, acl);
    }
    if let Some(attributes) = &create.attributes {
        put_attributes(out, attributes)?;
    }
    if let Some(acl) = &create.acl {
        put_acl_tail(out, acl)?;
    }
    let expected = match create.kind {
        LogCreateKind::Symlink => 0,
        _ if create.acl.is_some() => 0,
        _ => domain_count(create.uid, create.gid),
    };
    put_domains(out, &create.domains, expected)?;
    put_name(out, create.name)?;
    if create.kind == LogCreateKind::Symlink {
        put_name(out, create.target)?;
    }
    Ok(())
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) -> Result<()> {
    if name.contains(&0) {
        return Err(FormatError::BadText {
            structure: LR,
            field: "name",
        });
    }
    out.extend_from_slice(name);
    out.push(0);
    Ok(())
}

fn put_domains(out: &mut Vec<u8>, domains: &[&[u8]], expected: u64) -> Result<()> {
    if domains.len() as u64 != expected {
        let found = domains.len() as u64;
        return Err(does_not_fit(
            LR,
            "domains",
            found,
            "as many as owner and group name",
        ));
    }
    domains.iter().try_for_each(|domain| put_name(out, domain))
}

fn put_attributes(out: &mut Vec<u8>, attributes: &LogAttributes) -> Result<()> {
    let words = attributes.bitmap.len();
    if words == 0 || words > MAX_BITMAP_WORDS as usize {
        return Err(does_not_fit(
            LR,
            "lr_attr_masksize",
            words as u64,
            "1 to 64 words",
        ));
    }
    out.put_u32(words as u32);
    for word in &attributes.bitmap {
        out.put_u32(*word);
    }
    out.put_u64(attributes.attributes);
    out.put_words(&attributes.create_time);
    out.extend_from_slice(&attributes.scan_stamp);
    Ok(())
}

fn put_acl_head(out: &mut Vec<u8>, acl: &LogAcl<'_>) {
    out.put_words(&[
        acl.count,
        acl.domains.len() as u64,
        acl.fuids.len() as u64,
        acl.entries.len() as u64,
        acl.flags,
    ]);
}

fn put_acl_tail(out: &mut Vec<u8>, acl: &LogAcl<'_>) -> Result<()> {
    out.extend_from_slice(acl.entries);
    out.put_zeros(acl.entries.len().next_multiple_of(8) - acl.entries.len());
    out.put_words(&acl.fuids);
    acl.domains
        .iter()
        .try_for_each(|domain| put_name(out, domain))
}
