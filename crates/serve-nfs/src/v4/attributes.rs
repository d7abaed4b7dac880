//! Attributes (RFC 8881 section 5): told, compared, set.

use bytes::Bytes;
use filesystem::{Attributes, FsStatistics, SetAttributes, SetTime, Time};

use super::types::{Bits, Status};
use crate::object::Told;
use crate::v3::look::LINKS_MAX;
use crate::v3::request::TRANSFER_BYTES_MAX;
use crate::v3::types::file_type;
use crate::xdr::{Reader, Writer, XdrError};

/// How long a client may be silent and keep what it has, in seconds.
pub(crate) const LEASE_SECONDS: u32 = 60;
/// Longest list of values that is read.
const VALUES_BYTES_MAX: u32 = 16 << 10;
/// Longest name of an owner that is read.
const OWNER_BYTES_MAX: u32 = 1024;
/// Bytes that one entry's attributes may need at most.
pub(crate) const ATTRIBUTES_BYTES_MAX: u32 = 640;

pub(crate) const SUPPORTED_ATTRS: u32 = 0;
pub(crate) const TYPE: u32 = 1;
const FH_EXPIRE_TYPE: u32 = 2;
const CHANGE: u32 = 3;
const SIZE: u32 = 4;
const LINK_SUPPORT: u32 = 5;
const SYMLINK_SUPPORT: u32 = 6;
const NAMED_ATTR: u32 = 7;
const FSID: u32 = 8;
const UNIQUE_HANDLES: u32 = 9;
const LEASE_TIME: u32 = 10;
pub(crate) const RDATTR_ERROR: u32 = 11;
const ACLSUPPORT: u32 = 13;
const CANSETTIME: u32 = 15;
const CASE_INSENSITIVE: u32 = 16;
const CASE_PRESERVING: u32 = 17;
const CHOWN_RESTRICTED: u32 = 18;
pub(crate) const FILEHANDLE: u32 = 19;
const FILEID: u32 = 20;
const FILES_AVAIL: u32 = 21;
const FILES_FREE: u32 = 22;
const FILES_TOTAL: u32 = 23;
const HOMOGENEOUS: u32 = 26;
const MAXFILESIZE: u32 = 27;
const MAXLINK: u32 = 28;
const MAXNAME: u32 = 29;
const MAXREAD: u32 = 30;
const MAXWRITE: u32 = 31;
const MODE: u32 = 33;
const NO_TRUNC: u32 = 34;
const NUMLINKS: u32 = 35;
const OWNER: u32 = 36;
const OWNER_GROUP: u32 = 37;
const RAWDEV: u32 = 41;
const SPACE_AVAIL: u32 = 42;
const SPACE_FREE: u32 = 43;
const SPACE_TOTAL: u32 = 44;
const SPACE_USED: u32 = 45;
pub(crate) const TIME_ACCESS: u32 = 47;
const TIME_ACCESS_SET: u32 = 48;
const TIME_CREATE: u32 = 50;
const TIME_DELTA: u32 = 51;
const TIME_METADATA: u32 = 52;
pub(crate) const TIME_MODIFY: u32 = 53;
const TIME_MODIFY_SET: u32 = 54;
const MOUNTED_ON_FILEID: u32 = 55;
const SUPPATTR_EXCLCREAT: u32 = 75;
const CLONE_BLKSIZE: u32 = 77;
pub(crate) const XATTR_SUPPORT: u32 = 82;

/// Those that can be told.
const TOLD: &[u32] = &[
    SUPPORTED_ATTRS,
    TYPE,
    FH_EXPIRE_TYPE,
    CHANGE,
    SIZE,
    LINK_SUPPORT,
    SYMLINK_SUPPORT,
    NAMED_ATTR,
    FSID,
    UNIQUE_HANDLES,
    LEASE_TIME,
    RDATTR_ERROR,
    ACLSUPPORT,
    CANSETTIME,
    CASE_INSENSITIVE,
    CASE_PRESERVING,
    CHOWN_RESTRICTED,
    FILEHANDLE,
    FILEID,
    FILES_AVAIL,
    FILES_FREE,
    FILES_TOTAL,
    HOMOGENEOUS,
    MAXFILESIZE,
    MAXLINK,
    MAXNAME,
    MAXREAD,
    MAXWRITE,
    MODE,
    NO_TRUNC,
    NUMLINKS,
    OWNER,
    OWNER_GROUP,
    RAWDEV,
    SPACE_AVAIL,
    SPACE_FREE,
    SPACE_TOTAL,
    SPACE_USED,
    TIME_ACCESS,
    TIME_CREATE,
    TIME_DELTA,
    TIME_METADATA,
    TIME_MODIFY,
    MOUNTED_ON_FILEID,
    SUPPATTR_EXCLCREAT,
];
/// Those that can be set.
const SET: &[u32] = &[
    SIZE,
    MODE,
    OWNER,
    OWNER_GROUP,
    TIME_ACCESS_SET,
    TIME_MODIFY_SET,
];
/// Those that can be set where a file is made exclusively: times keep the verifier.
const SET_EXCLUSIVELY: &[u32] = &[SIZE, MODE, OWNER, OWNER_GROUP];
const OF_STATISTICS: &[u32] = &[
    FILES_AVAIL,
    FILES_FREE,
    FILES_TOTAL,
    MAXNAME,
    SPACE_AVAIL,
    SPACE_FREE,
    SPACE_TOTAL,
];

/// What is known of an object.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) told: Told,
    pub(crate) handle: Vec<u8>,
    /// Where another filesystem begins: the number of the directory that it covers.
    pub(crate) mounted_on: Option<u64>,
    pub(crate) statistics: Option<FsStatistics>,
    pub(crate) is_case_exact: bool,
    /// Whether files have extended attributes, where that is asked for.
    pub(crate) has_xattrs: bool,
    /// The minor version that is spoken.
    pub(crate) minor: u32,
}

/// All that there is in a minor version.
pub(crate) fn supported(minor: u32) -> Bits {
    let mut all = Bits(Bits::of(TOLD).0 | Bits::of(SET).0);
    if minor >= 2 {
        all.0 |= Bits::of(&[CLONE_BLKSIZE, XATTR_SUPPORT]).0;
    }
    all
}

/// Whether numbers of the whole filesystem are asked for.
pub(crate) fn wants_statistics(wanted: Bits) -> bool {
    wanted.0 & Bits::of(OF_STATISTICS).0 != 0
}

/// What changes whenever the object does: its time of change, in nanoseconds.
pub(crate) fn change_of(attributes: &Attributes) -> u64 {
    let Time {
        seconds,
        nanoseconds,
    } = attributes.ctime;
    // Good for centuries; after that it repeats.
    (seconds as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(nanoseconds.into())
}

fn write_time(writer: &mut Writer, time: Time) {
    // `int64_t`, as two's complement.
    writer.u64(time.seconds as u64);
    writer.u32(time.nanoseconds);
}

/// `fattr4` of what is wanted and can be told.
pub(crate) fn write(writer: &mut Writer, wanted: Bits, facts: &Facts) {
    let readable = Bits(supported(facts.minor).0 & !(Bits::of(SET).0 & !Bits::of(TOLD).0));
    let given = wanted.and(readable);
    given.write(writer);
    writer.opaque(&values(given, facts));
}

/// `fattr4` of an entry whose file cannot be read.
pub(crate) fn write_error(writer: &mut Writer, wanted: Bits, why: Status, number: u64) {
    let given = wanted.and(Bits::of(&[RDATTR_ERROR, MOUNTED_ON_FILEID]));
    given.write(writer);
    let mut values = Writer::new();
    if given.has(RDATTR_ERROR) {
        values.u32(why.0);
    }
    if given.has(MOUNTED_ON_FILEID) {
        values.u64(number);
    }
    writer.opaque(&values.finish().concat());
}

fn values(given: Bits, facts: &Facts) -> Vec<u8> {
    let mut values = Writer::new();
    for number in given.numbers() {
        value(&mut values, number, facts);
    }
    values.finish().concat()
}

fn value(writer: &mut Writer, number: u32, facts: &Facts) {
    let file = &facts.told.attributes;
    let statistics = facts.statistics;
    let blocks = |count: u64| {
        let unit = statistics.map_or(512, |found| found.block_bytes);
        count.saturating_mul(unit.into())
    };
    match number {
        SUPPORTED_ATTRS => supported(facts.minor).write(writer),
        TYPE => writer.u32(file_type(file.kind)),
        // They last (`FH4_PERSISTENT`).
        FH_EXPIRE_TYPE => writer.u32(0),
        CHANGE => writer.u64(change_of(file)),
        SIZE => writer.u64(file.size_bytes),
        LINK_SUPPORT | SYMLINK_SUPPORT | UNIQUE_HANDLES | CANSETTIME | CASE_PRESERVING
        | CHOWN_RESTRICTED | HOMOGENEOUS | NO_TRUNC => writer.bool(true),
        NAMED_ATTR => writer.bool(false),
        CASE_INSENSITIVE => writer.bool(!facts.is_case_exact),
        FSID => {
            writer.u64(facts.told.fsid);
            writer.u64(0);
        }
        LEASE_TIME => writer.u32(LEASE_SECONDS),
        RDATTR_ERROR | ACLSUPPORT => writer.u32(0),
        FILEHANDLE => writer.opaque(&facts.handle),
        FILEID => writer.u64(file.ino),
        MOUNTED_ON_FILEID => writer.u64(facts.mounted_on.unwrap_or(file.ino)),
        FILES_AVAIL | FILES_FREE => writer.u64(statistics.map_or(0, |found| found.files_free)),
        FILES_TOTAL => writer.u64(statistics.map_or(0, |found| found.files)),
        SPACE_AVAIL | SPACE_FREE => {
            writer.u64(statistics.map_or(0, |found| blocks(found.blocks_free)));
        }
        SPACE_TOTAL => writer.u64(statistics.map_or(0, |found| blocks(found.blocks))),
        MAXFILESIZE => writer.u64(i64::MAX as u64),
        MAXLINK => writer.u32(LINKS_MAX),
        MAXNAME => writer.u32(statistics.map_or(255, |found| found.name_bytes_max)),
        MAXREAD | MAXWRITE => writer.u64(TRANSFER_BYTES_MAX.into()),
        MODE => writer.u32(file.mode),
        NUMLINKS => writer.u32(file.nlink),
        // As numbers (section 5.9): no directory of names is needed on either side.
        OWNER => writer.opaque(file.uid.to_string().as_bytes()),
        OWNER_GROUP => writer.opaque(file.gid.to_string().as_bytes()),
        RAWDEV => {
            writer.u32(file.rdev.0);
            writer.u32(file.rdev.1);
        }
        SPACE_USED => writer.u64(file.allocated_bytes),
        TIME_ACCESS => write_time(writer, file.atime),
        TIME_CREATE => write_time(writer, file.crtime),
        TIME_METADATA => write_time(writer, file.ctime),
        TIME_MODIFY => write_time(writer, file.mtime),
        TIME_DELTA => {
            writer.u64(0);
            writer.u32(1);
        }
        SUPPATTR_EXCLCREAT => Bits::of(SET_EXCLUSIVELY).write(writer),
        // Whole blocks are cloned, and what is not whole is copied.
        CLONE_BLKSIZE => writer.u32(1),
        XATTR_SUPPORT => writer.bool(facts.has_xattrs),
        _ => unreachable!("only what can be told is given"),
    }
}

/// Values that a client compares with.
#[derive(Debug, Clone)]
pub(crate) struct Compared {
    wanted: Bits,
    values: Bytes,
}

impl Compared {
    pub(crate) fn read(reader: &mut Reader) -> Result<Self, XdrError> {
        Ok(Self {
            wanted: Bits::read(reader)?,
            values: reader.opaque(VALUES_BYTES_MAX)?,
        })
    }

    pub(crate) fn wanted(&self) -> Bits {
        self.wanted
    }

    /// Whether they are the object's.
    pub(crate) fn is_same(&self, facts: &Facts) -> Result<bool, Status> {
        if !self.wanted.is_within(supported(facts.minor)) {
            return Err(Status::ATTRNOTSUPP);
        }
        let never = [RDATTR_ERROR, TIME_ACCESS_SET, TIME_MODIFY_SET];
        if self.wanted.0 & Bits::of(&never).0 != 0 {
            return Err(Status::INVAL);
        }
        Ok(values(self.wanted, facts) == self.values)
    }
}

/// Attributes that are to be set, and which they are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Set {
    pub(crate) which: Bits,
    pub(crate) set: SetAttributes,
}

impl Set {
    /// From `fattr4`. What makes no sense in it is told by whoever carries it out.
    pub(crate) fn read(reader: &mut Reader) -> Result<Result<Self, Status>, XdrError> {
        let which = Bits::read(reader)?;
        let mut values = Reader::new(reader.opaque(VALUES_BYTES_MAX)?);
        Ok(Self::of(which, &mut values))
    }

    fn of(which: Bits, values: &mut Reader) -> Result<Self, Status> {
        if !which.is_within(supported(2)) {
            return Err(Status::ATTRNOTSUPP);
        }
        if !which.is_within(Bits::of(SET)) {
            return Err(Status::INVAL);
        }
        let mut set = SetAttributes::default();
        for number in which.numbers() {
            match number {
                SIZE => set.size_bytes = Some(values.u64()?),
                MODE => {
                    let mode = values.u32()?;
                    if mode > 0o7777 {
                        return Err(Status::INVAL);
                    }
                    set.mode = Some(mode);
                }
                OWNER => set.uid = Some(read_id(values)?),
                OWNER_GROUP => set.gid = Some(read_id(values)?),
                TIME_ACCESS_SET => set.atime = Some(read_time(values)?),
                TIME_MODIFY_SET => set.mtime = Some(read_time(values)?),
                _ => return Err(Status::INVAL),
            }
        }
        if !values.rest().is_empty() {
            return Err(Status::BADXDR);
        }
        if set.size_bytes.is_some_and(|size| size > i64::MAX as u64) {
            return Err(Status(27));
        }
        Ok(Self { which, set })
    }

    /// Whether a file that is made exclusively can have them.
    pub(crate) fn is_for_exclusive(&self) -> bool {
        self.which.is_within(Bits::of(SET_EXCLUSIVELY))
    }
}

fn read_id(values: &mut Reader) -> Result<u32, Status> {
    let name = values.opaque(OWNER_BYTES_MAX)?;
    let name = std::str::from_utf8(&name).map_err(|_| Status::INVAL)?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Status::BADOWNER);
    }
    let id = name.parse().ok().filter(|id| *id != u32::MAX);
    id.ok_or(Status::BADOWNER)
}

fn read_time(values: &mut Reader) -> Result<SetTime, Status> {
    match values.u32()? {
        0 => Ok(SetTime::Now),
        1 => {
            // `int64_t`, as two's complement.
            let seconds = values.u64()? as i64;
            let nanoseconds = values.u32()?;
            if nanoseconds > 999_999_999 {
                return Err(Status::INVAL);
            }
            Ok(SetTime::At(Time {
                seconds,
                nanoseconds,
            }))
        }
        _ => Err(Status::BADXDR),
    }
}
