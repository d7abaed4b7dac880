//! Types of version 4 that more than one operation uses (RFC 5662, RFC 7863, RFC 8276): status,
//! numbers of operations, state ids, sets of attributes.

use filesystem::FsError;

use crate::object::Error;
use crate::v3;
use crate::xdr::{Reader, Result, Writer, XdrError};

/// `nfsstat4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

#[allow(dead_code, reason = "all that operations of the RFC name")]
impl Status {
    pub(crate) const OK: Self = Self(0);
    pub(crate) const PERM: Self = Self(1);
    pub(crate) const NOENT: Self = Self(2);
    pub(crate) const IO: Self = Self(5);
    pub(crate) const NXIO: Self = Self(6);
    pub(crate) const ACCESS: Self = Self(13);
    pub(crate) const EXIST: Self = Self(17);
    pub(crate) const XDEV: Self = Self(18);
    pub(crate) const NOTDIR: Self = Self(20);
    pub(crate) const ISDIR: Self = Self(21);
    pub(crate) const INVAL: Self = Self(22);
    pub(crate) const ROFS: Self = Self(30);
    pub(crate) const STALE: Self = Self(70);
    pub(crate) const BADHANDLE: Self = Self(10001);
    pub(crate) const BAD_COOKIE: Self = Self(10003);
    pub(crate) const NOTSUPP: Self = Self(10004);
    pub(crate) const TOOSMALL: Self = Self(10005);
    pub(crate) const SERVERFAULT: Self = Self(10006);
    pub(crate) const BADTYPE: Self = Self(10007);
    pub(crate) const DELAY: Self = Self(10008);
    pub(crate) const SAME: Self = Self(10009);
    pub(crate) const DENIED: Self = Self(10010);
    pub(crate) const LOCKED: Self = Self(10012);
    pub(crate) const GRACE: Self = Self(10013);
    pub(crate) const SHARE_DENIED: Self = Self(10015);
    pub(crate) const WRONGSEC: Self = Self(10016);
    pub(crate) const CLID_INUSE: Self = Self(10017);
    pub(crate) const NOFILEHANDLE: Self = Self(10020);
    pub(crate) const MINOR_VERS_MISMATCH: Self = Self(10021);
    pub(crate) const STALE_CLIENTID: Self = Self(10022);
    pub(crate) const OLD_STATEID: Self = Self(10024);
    pub(crate) const BAD_STATEID: Self = Self(10025);
    pub(crate) const NOT_SAME: Self = Self(10027);
    pub(crate) const SYMLINK: Self = Self(10029);
    pub(crate) const RESTOREFH: Self = Self(10030);
    pub(crate) const ATTRNOTSUPP: Self = Self(10032);
    pub(crate) const NO_GRACE: Self = Self(10033);
    pub(crate) const RECLAIM_BAD: Self = Self(10034);
    pub(crate) const RECLAIM_CONFLICT: Self = Self(10035);
    pub(crate) const BADXDR: Self = Self(10036);
    pub(crate) const LOCKS_HELD: Self = Self(10037);
    pub(crate) const OPENMODE: Self = Self(10038);
    pub(crate) const BADOWNER: Self = Self(10039);
    pub(crate) const BADNAME: Self = Self(10041);
    pub(crate) const LOCK_NOTSUPP: Self = Self(10043);
    pub(crate) const OP_ILLEGAL: Self = Self(10044);
    pub(crate) const FILE_OPEN: Self = Self(10046);
    pub(crate) const BADSESSION: Self = Self(10052);
    pub(crate) const BADSLOT: Self = Self(10053);
    pub(crate) const COMPLETE_ALREADY: Self = Self(10054);
    pub(crate) const BAD_HIGH_SLOT: Self = Self(10077);
    pub(crate) const CLIENTID_BUSY: Self = Self(10074);
    pub(crate) const SEQ_MISORDERED: Self = Self(10063);
    pub(crate) const SEQUENCE_POS: Self = Self(10064);
    pub(crate) const REQ_TOO_BIG: Self = Self(10065);
    pub(crate) const REP_TOO_BIG: Self = Self(10066);
    pub(crate) const REP_TOO_BIG_TO_CACHE: Self = Self(10067);
    pub(crate) const RETRY_UNCACHED_REP: Self = Self(10068);
    pub(crate) const TOO_MANY_OPS: Self = Self(10070);
    pub(crate) const OP_NOT_IN_SESSION: Self = Self(10071);
    pub(crate) const ENCR_ALG_UNSUPP: Self = Self(10079);
    pub(crate) const NOT_ONLY_OP: Self = Self(10081);
    pub(crate) const WRONG_CRED: Self = Self(10082);
    pub(crate) const WRONG_TYPE: Self = Self(10083);
    pub(crate) const UNION_NOTSUPP: Self = Self(10090);
    pub(crate) const NOXATTR: Self = Self(10095);
    pub(crate) const XATTR2BIG: Self = Self(10096);

    /// Whether it says that the server could not do what was asked for, rather than that there is
    /// no such thing or that it is not allowed.
    pub(crate) fn is_trouble(self) -> bool {
        v3::types::Status::is_trouble(self.0) || self == Self::SERVERFAULT
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        tracing::debug!(%error, "an NFS operation failed");
        match error {
            // Linux's clients make EBUSY of it (`nfsd_unlink`, fs/nfsd/vfs.c).
            Error::MountedOn => Self::FILE_OPEN,
            Error::Filesystem(FsError::NoAttribute { .. }) => Self::NOXATTR,
            Error::Filesystem(FsError::AttributeTooBig) => Self::XATTR2BIG,
            // Those of version 3 have the same numbers here (RFC 8881 section 15.1).
            error => Self(v3::types::Status::from(&error) as u32),
        }
    }
}

impl From<FsError> for Status {
    fn from(error: FsError) -> Self {
        Error::from(error).into()
    }
}

impl From<XdrError> for Status {
    fn from(_: XdrError) -> Self {
        Self::BADXDR
    }
}

/// `nfs_opnum4`.
pub(crate) mod op {
    pub(crate) const ACCESS: u32 = 3;
    pub(crate) const CLOSE: u32 = 4;
    pub(crate) const COMMIT: u32 = 5;
    pub(crate) const CREATE: u32 = 6;
    pub(crate) const DELEGRETURN: u32 = 8;
    pub(crate) const GETATTR: u32 = 9;
    pub(crate) const GETFH: u32 = 10;
    pub(crate) const LINK: u32 = 11;
    pub(crate) const LOCK: u32 = 12;
    pub(crate) const LOCKT: u32 = 13;
    pub(crate) const LOCKU: u32 = 14;
    pub(crate) const LOOKUP: u32 = 15;
    pub(crate) const LOOKUPP: u32 = 16;
    pub(crate) const NVERIFY: u32 = 17;
    pub(crate) const OPEN: u32 = 18;
    pub(crate) const OPEN_DOWNGRADE: u32 = 21;
    pub(crate) const PUTFH: u32 = 22;
    pub(crate) const PUTPUBFH: u32 = 23;
    pub(crate) const PUTROOTFH: u32 = 24;
    pub(crate) const READ: u32 = 25;
    pub(crate) const READDIR: u32 = 26;
    pub(crate) const READLINK: u32 = 27;
    pub(crate) const REMOVE: u32 = 28;
    pub(crate) const RENAME: u32 = 29;
    pub(crate) const RESTOREFH: u32 = 31;
    pub(crate) const SAVEFH: u32 = 32;
    pub(crate) const SECINFO: u32 = 33;
    pub(crate) const SETATTR: u32 = 34;
    pub(crate) const VERIFY: u32 = 37;
    pub(crate) const WRITE: u32 = 38;
    pub(crate) const BIND_CONN_TO_SESSION: u32 = 41;
    pub(crate) const EXCHANGE_ID: u32 = 42;
    pub(crate) const CREATE_SESSION: u32 = 43;
    pub(crate) const DESTROY_SESSION: u32 = 44;
    pub(crate) const FREE_STATEID: u32 = 45;
    pub(crate) const SECINFO_NO_NAME: u32 = 52;
    pub(crate) const SEQUENCE: u32 = 53;
    pub(crate) const TEST_STATEID: u32 = 55;
    pub(crate) const DESTROY_CLIENTID: u32 = 57;
    pub(crate) const RECLAIM_COMPLETE: u32 = 58;
    pub(crate) const ALLOCATE: u32 = 59;
    pub(crate) const COPY: u32 = 60;
    pub(crate) const DEALLOCATE: u32 = 62;
    pub(crate) const SEEK: u32 = 69;
    pub(crate) const CLONE: u32 = 71;
    pub(crate) const GETXATTR: u32 = 72;
    pub(crate) const SETXATTR: u32 = 73;
    pub(crate) const LISTXATTRS: u32 = 74;
    pub(crate) const REMOVEXATTR: u32 = 75;
    pub(crate) const ILLEGAL: u32 = 10044;
    /// Operations that each minor version knows.
    pub(crate) const FIRST: u32 = 3;
    pub(crate) const LAST_OF_1: u32 = 58;
    pub(crate) const LAST_OF_2: u32 = 75;
}

/// `stateid4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateId {
    pub(crate) sequence: u32,
    pub(crate) other: [u8; 12],
}

impl StateId {
    /// Of nobody's open file (RFC 8881 section 8.2.3).
    pub(crate) const ANONYMOUS: Self = Self {
        sequence: 0,
        other: [0; 12],
    };
    /// The same, to read whatever others forbid.
    pub(crate) const BYPASS: Self = Self {
        sequence: u32::MAX,
        other: [0xff; 12],
    };
    /// That which the last operation gave.
    pub(crate) const CURRENT: Self = Self {
        sequence: 1,
        other: [0; 12],
    };
    /// Of nothing: what is left after CLOSE.
    pub(crate) const INVALID: Self = Self {
        sequence: u32::MAX,
        other: [0; 12],
    };

    pub(crate) fn is_special(&self) -> bool {
        *self == Self::ANONYMOUS || *self == Self::BYPASS
    }

    pub(crate) fn read(reader: &mut Reader) -> Result<Self> {
        Ok(Self {
            sequence: reader.u32()?,
            other: reader.fixed()?,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.u32(self.sequence);
        writer.fixed(&self.other);
    }
}

/// `bitmap4`, up to four words of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bits(pub(crate) u128);

impl Bits {
    /// Words that are read at all.
    const WORDS_MAX: u32 = 8;
    /// Stands for all that no word of ours has.
    const BEYOND: u32 = 127;

    pub(crate) fn of(numbers: &[u32]) -> Self {
        Self(numbers.iter().fold(0, |bits, number| bits | 1 << number))
    }

    pub(crate) fn has(self, number: u32) -> bool {
        self.0 >> number & 1 == 1
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The numbers, in order.
    pub(crate) fn numbers(self) -> impl Iterator<Item = u32> {
        (0..128).filter(move |number| self.has(*number))
    }

    pub(crate) fn read(reader: &mut Reader) -> Result<Self> {
        let count = reader.u32()?;
        if count > Self::WORDS_MAX {
            return Err(XdrError::TooLong {
                length_bytes: count.saturating_mul(4),
                limit_bytes: Self::WORDS_MAX * 4,
            });
        }
        let mut bits = 0;
        for index in 0..count {
            let word = reader.u32()?;
            match index {
                0..4 => bits |= u128::from(word) << (32 * index),
                _ if word != 0 => bits |= 1 << Self::BEYOND,
                _ => {}
            }
        }
        Ok(Self(bits))
    }

    pub(crate) fn write(self, writer: &mut Writer) {
        let words = (128 - self.0.leading_zeros()).div_ceil(32);
        writer.u32(words);
        for index in 0..words {
            // One word of it.
            writer.u32((self.0 >> (32 * index)) as u32);
        }
    }
}

/// What a directory was before a change and is after it (`change_info4`).
pub(crate) fn write_change(writer: &mut Writer, change: &v3::types::Change) {
    let before = change
        .before
        .map(|before| super::attributes::change_of(&before));
    let after = change
        .after
        .map(|told| super::attributes::change_of(&told.attributes));
    writer.bool(before.is_some() && after.is_some());
    writer.u64(before.unwrap_or(0));
    writer.u64(after.unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn sets_of_attributes_come_back_as_they_went() {
        for bits in [
            Bits::default(),
            Bits::of(&[0, 1, 31]),
            Bits::of(&[33, 75]),
            Bits::of(&[96]),
        ] {
            let mut writer = Writer::new();
            bits.write(&mut writer);
            let mut reader = Reader::new(Bytes::from(writer.finish().concat()));
            assert_eq!(Bits::read(&mut reader), Ok(bits));
            assert!(reader.rest().is_empty());
        }
        let mut writer = Writer::new();
        for word in [5, 2, 0, 0, 0, 1] {
            writer.u32(word);
        }
        let mut reader = Reader::new(Bytes::from(writer.finish().concat()));
        let bits = Bits::read(&mut reader).unwrap();
        assert!(bits.has(1) && bits.has(Bits::BEYOND));
        let mut reader = Reader::new(Bytes::from_static(&[0, 0, 1, 0]));
        assert!(Bits::read(&mut reader).is_err());
    }
}
