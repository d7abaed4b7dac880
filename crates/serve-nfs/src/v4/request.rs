//! COMPOUND's arguments (RFC 8881 sections 16 and 18, RFC 7862 section 15, RFC 8276 section 8).
//! Pure.
//!
//! An operation that cannot be read, or that there is not, ends the list: what comes before it is
//! carried out, and then it fails.

use bytes::Bytes;
use filesystem::{FileKind, XattrMode};

use super::attributes::{ATTRIBUTES_BYTES_MAX, Compared, Set};
use super::types::{Bits, StateId, Status, op};
use crate::handle::{HANDLE_BYTES_MAX, Handle};
use crate::v3::request::{LISTING_BYTES_MAX, LONG_WRITE_BYTES, Stable, TRANSFER_BYTES_MAX};
use crate::v3::types::{NAME_BYTES_MAX, TARGET_BYTES_MAX};
use crate::xdr::{Reader, Result, XdrError};

/// Number of the procedure that is not NULL.
pub(crate) const COMPOUND: u32 = 1;
/// Most operations of one COMPOUND.
pub(crate) const OPERATIONS_MAX: usize = 32;
/// Longest answer: the biggest READ, and what belongs to it.
pub(crate) const ANSWER_BYTES_MAX: u32 = TRANSFER_BYTES_MAX + (16 << 10);
/// Longest tag, owner or name of a client (`NFS4_OPAQUE_LIMIT`).
const OPAQUE_BYTES_MAX: u32 = 1024;
/// Longest handle (`NFS4_FHSIZE`).
const FH_BYTES_MAX: u32 = 128;
/// State ids that one TEST_STATEID asks about.
const STATEIDS_MAX: u32 = 1024;
/// Parts of lists without a bound of their own that are read past: security of callbacks,
/// algorithms.
const PARTS_MAX: u32 = 64;
/// Groups of one who calls (`authsys_parms`, RFC 5531 appendix A).
const GROUPS_MAX: u32 = 16;
/// Programs that a client says it is (`eia_client_impl_id<1>`).
const PROGRAMS_MAX: u32 = 1;
/// Longest value of an extended attribute (`XATTR_SIZE_MAX`, include/uapi/linux/limits.h).
const XATTR_BYTES_MAX: u32 = 64 << 10;
/// What an operation's result needs that has nothing of its own length.
const RESULT_BYTES: u32 = 160;

/// A procedure of the program.
#[derive(Debug)]
pub(crate) enum Request {
    Null,
    Compound(Compound),
}

/// `COMPOUND4args`.
#[derive(Debug)]
pub(crate) struct Compound {
    pub(crate) tag: Bytes,
    pub(crate) minor: u32,
    pub(crate) operations: Vec<Operation>,
    /// How long the arguments are.
    pub(crate) bytes: usize,
}

/// `state_protect_how4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protection {
    None,
    Machine,
    Secret,
}

/// `channel_attrs4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Channel {
    pub(crate) padding_bytes: u32,
    pub(crate) request_bytes: u32,
    pub(crate) answer_bytes: u32,
    pub(crate) kept_bytes: u32,
    pub(crate) operations: u32,
    pub(crate) requests: u32,
}

/// `openflag4`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Making {
    /// It must be there.
    No,
    Unchecked(std::result::Result<Set, Status>),
    Guarded(std::result::Result<Set, Status>),
    Exclusive([u8; 8]),
    ExclusiveWith([u8; 8], std::result::Result<Set, Status>),
}

/// `open_claim4`.
#[derive(Debug, Clone)]
pub(crate) enum Claim {
    /// A name in the current directory.
    Name(Bytes),
    /// The current file, which was open before the server began anew.
    Previous,
    /// The current file.
    Handle,
    /// By a delegation; there are none.
    Delegated,
}

/// `OPEN4args`.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    pub(crate) access: u32,
    pub(crate) deny: u32,
    pub(crate) owner: Bytes,
    pub(crate) making: Making,
    pub(crate) claim: Claim,
}

/// `createtype4`.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Directory,
    Symlink(Bytes),
    Node(FileKind, (u32, u32)),
    /// Of no kind that CREATE makes.
    Other,
}

/// Who locks, and under which open file.
#[derive(Debug, Clone)]
pub(crate) enum Locker {
    New { open: StateId, owner: Bytes },
    Known { lock: StateId },
}

/// One of the operations on extended attributes (RFC 8276 section 8.4).
#[derive(Debug)]
pub(crate) enum Xattr {
    Get {
        name: Bytes,
    },
    Set {
        mode: XattrMode,
        name: Bytes,
        value: Bytes,
    },
    List {
        cookie: u64,
        count_bytes: u32,
    },
    Remove {
        name: Bytes,
    },
}

/// One operation.
#[derive(Debug)]
pub(crate) enum Operation {
    /// It cannot be carried out.
    Refused {
        number: u32,
        status: Status,
    },
    Access {
        wanted: u32,
    },
    Close {
        state: StateId,
    },
    Commit,
    Create {
        kind: Kind,
        name: Bytes,
        set: std::result::Result<Set, Status>,
    },
    GetAttributes {
        wanted: Bits,
    },
    GetHandle,
    Link {
        name: Bytes,
    },
    Lock {
        is_exclusive: bool,
        is_reclaimed: bool,
        offset: u64,
        length: u64,
        locker: Locker,
    },
    TestLock {
        is_exclusive: bool,
        offset: u64,
        length: u64,
        owner: Bytes,
    },
    Unlock {
        state: StateId,
        offset: u64,
        length: u64,
    },
    Lookup {
        name: Bytes,
    },
    LookupParent,
    Verify {
        wants_same: bool,
        compared: Compared,
    },
    Open(Box<Open>),
    OpenDowngrade {
        state: StateId,
        access: u32,
        deny: u32,
    },
    PutHandle {
        handle: Option<Handle>,
    },
    PutRoot {
        number: u32,
    },
    Read {
        state: StateId,
        offset_bytes: u64,
        count_bytes: u32,
    },
    ReadDirectory {
        cookie: u64,
        count_bytes: u32,
        wanted: Bits,
    },
    ReadLink,
    Remove {
        name: Bytes,
    },
    Rename {
        from: Bytes,
        to: Bytes,
    },
    RestoreHandle,
    SaveHandle,
    Security {
        /// `None`: of the current object, or (`true`) of its parent.
        name: std::result::Result<Bytes, bool>,
    },
    SetAttributes {
        state: StateId,
        set: std::result::Result<Set, Status>,
    },
    Write {
        state: StateId,
        offset_bytes: u64,
        stable: Stable,
        data: Bytes,
    },
    BindConnection {
        session: [u8; 16],
        direction: u32,
    },
    ExchangeId {
        verifier: [u8; 8],
        owner: Bytes,
        flags: u32,
        protection: Protection,
    },
    CreateSession {
        client: u64,
        sequence: u32,
        flags: u32,
        fore: Channel,
        back: Channel,
    },
    DestroySession {
        session: [u8; 16],
    },
    DestroyClient {
        client: u64,
    },
    Sequence {
        session: [u8; 16],
        sequence: u32,
        slot: u32,
        is_kept: bool,
    },
    FreeState {
        state: StateId,
    },
    TestStates {
        states: Vec<StateId>,
    },
    ReclaimComplete {
        is_of_one: bool,
    },
    Allocate {
        is_hole: bool,
        state: StateId,
        offset: u64,
        length: u64,
    },
    Seek {
        state: StateId,
        offset: u64,
        wants_hole: bool,
    },
    /// CLONE and COPY.
    Copy {
        is_clone: bool,
        from_state: StateId,
        to_state: StateId,
        from: u64,
        to: u64,
        length: u64,
    },
    Xattr(Xattr),
}

fn name(reader: &mut Reader) -> Result<Bytes> {
    reader.opaque(NAME_BYTES_MAX)
}

fn bad(what: &'static str, number: u32) -> XdrError {
    XdrError::BadValue { what, number }
}

fn channel(reader: &mut Reader) -> Result<Channel> {
    let channel = Channel {
        padding_bytes: reader.u32()?,
        request_bytes: reader.u32()?,
        answer_bytes: reader.u32()?,
        kept_bytes: reader.u32()?,
        operations: reader.u32()?,
        requests: reader.u32()?,
    };
    let count = reader.u32()?;
    if count > 1 {
        return Err(bad("ca_rdma_ird", count));
    }
    for _ in 0..count {
        reader.u32()?;
    }
    Ok(channel)
}

/// How many parts a list has, of `most`, that is read past.
fn parts(reader: &mut Reader, most: u32) -> Result<u32> {
    let count = reader.u32()?;
    match count <= most {
        true => Ok(count),
        false => Err(bad("list", count)),
    }
}

/// `callback_sec_parms4<>`: nobody is called back.
fn skip_callback_security(reader: &mut Reader) -> Result<()> {
    for _ in 0..parts(reader, PARTS_MAX)? {
        match reader.u32()? {
            0 => {}
            1 => {
                let (_stamp, _machine) = (reader.u32()?, reader.opaque(255)?);
                let (_uid, _gid) = (reader.u32()?, reader.u32()?);
                for _ in 0..parts(reader, GROUPS_MAX)? {
                    reader.u32()?;
                }
            }
            6 => {
                reader.u32()?;
                reader.opaque(OPAQUE_BYTES_MAX)?;
                reader.opaque(OPAQUE_BYTES_MAX)?;
            }
            number => return Err(bad("auth_flavor", number)),
        }
    }
    Ok(())
}

fn protection(reader: &mut Reader) -> Result<Protection> {
    let skip_operations = |reader: &mut Reader| {
        Bits::read(reader)?;
        Bits::read(reader).map(drop)
    };
    match reader.u32()? {
        0 => Ok(Protection::None),
        1 => {
            skip_operations(reader)?;
            Ok(Protection::Machine)
        }
        2 => {
            skip_operations(reader)?;
            for _ in 0..2 {
                for _ in 0..parts(reader, PARTS_MAX)? {
                    reader.opaque(OPAQUE_BYTES_MAX)?;
                }
            }
            let (_window, _handles) = (reader.u32()?, reader.u32()?);
            Ok(Protection::Secret)
        }
        number => Err(bad("state_protect_how4", number)),
    }
}

/// `nfs_lock_type4`.
fn is_exclusive(reader: &mut Reader) -> Result<bool> {
    match reader.u32()? {
        // READ_LT, READW_LT; nobody is called back, whether they would wait or not.
        1 | 3 => Ok(false),
        2 | 4 => Ok(true),
        number => Err(bad("nfs_lock_type4", number)),
    }
}

impl Open {
    fn read(reader: &mut Reader) -> Result<Self> {
        let _sequence = reader.u32()?;
        let (access, deny) = (reader.u32()?, reader.u32()?);
        let _client = reader.u64()?;
        let owner = reader.opaque(OPAQUE_BYTES_MAX)?;
        let making = match reader.u32()? {
            0 => Making::No,
            1 => match reader.u32()? {
                0 => Making::Unchecked(Set::read(reader)?),
                1 => Making::Guarded(Set::read(reader)?),
                2 => Making::Exclusive(reader.fixed()?),
                3 => Making::ExclusiveWith(reader.fixed()?, Set::read(reader)?),
                number => return Err(bad("createmode4", number)),
            },
            number => return Err(bad("opentype4", number)),
        };
        let claim = match reader.u32()? {
            0 => Claim::Name(name(reader)?),
            1 => {
                let _delegation = reader.u32()?;
                Claim::Previous
            }
            2 => {
                StateId::read(reader)?;
                name(reader)?;
                Claim::Delegated
            }
            3 => {
                name(reader)?;
                Claim::Delegated
            }
            4 => Claim::Handle,
            5 => {
                StateId::read(reader)?;
                Claim::Delegated
            }
            6 => Claim::Delegated,
            number => return Err(bad("open_claim_type4", number)),
        };
        Ok(Self {
            access,
            deny,
            owner,
            making,
            claim,
        })
    }
}

/// Goes on to the content of the WRITE that a COMPOUND is sent for, by its arguments as far as they
/// are there: a session's, of a file whose handle is in it.
pub(crate) fn skip_to_content(reader: &mut Reader) -> Result<()> {
    reader.opaque(OPAQUE_BYTES_MAX)?;
    let (minor, _count) = (reader.u32()?, reader.u32()?);
    loop {
        match reader.u32()? {
            number @ (op::SEQUENCE | op::PUTFH) => {
                Operation::read(number, minor, reader)?;
            }
            op::WRITE => {
                StateId::read(reader)?;
                let (_offset, _stable, _length) = (reader.u64()?, reader.u32()?, reader.u32()?);
                return Ok(());
            }
            number => return Err(bad("WRITE", number)),
        }
    }
}

impl Request {
    /// The arguments of a procedure; `Ok(None)` where there is no such procedure.
    pub(crate) fn decode(procedure: u32, reader: &mut Reader) -> Result<Option<Self>> {
        Ok(match procedure {
            0 => Some(Self::Null),
            COMPOUND => Some(Self::Compound(Compound::read(reader)?)),
            _ => None,
        })
    }

    /// Whether it may compute for a while before it waits for anything.
    pub(crate) fn may_compute_long(&self) -> bool {
        let Self::Compound(compound) = self else {
            return false;
        };
        let is_long = |operation: &Operation| matches!(operation, Operation::ReadDirectory { .. });
        compound.operations.iter().any(is_long)
    }

    /// Whether all that it waits for is mostly the intent log, and it does little else: one write,
    /// or a commit, and what clients put around these.
    pub(crate) fn waits_for_log(&self) -> bool {
        let Self::Compound(compound) = self else {
            return false;
        };
        let is_logged = |operation: &Operation| {
            matches!(operation, Operation::Write { .. } | Operation::Commit)
        };
        let is_short = |operation: &Operation| match operation {
            Operation::Write { data, .. } => data.len() < LONG_WRITE_BYTES,
            Operation::Commit
            | Operation::Sequence { .. }
            | Operation::PutHandle { .. }
            | Operation::GetAttributes { .. } => true,
            _ => false,
        };
        let operations = &compound.operations;
        let logged = operations.iter().filter(|operation| is_logged(operation));
        logged.count() == 1 && operations.iter().all(is_short)
    }

    /// What the answer may need, in bytes.
    pub(crate) fn answer_bytes(&self) -> u32 {
        match self {
            Self::Null => 128,
            Self::Compound(compound) => {
                let results = compound.operations.iter().map(Operation::answer_bytes);
                let results = results.fold(256, u32::saturating_add);
                // The tag is repeated.
                let tag = compound.tag.len() as u32;
                results.min(ANSWER_BYTES_MAX) + tag
            }
        }
    }
}

impl Compound {
    fn read(reader: &mut Reader) -> Result<Self> {
        let bytes = reader.rest().len();
        let tag = reader.opaque(OPAQUE_BYTES_MAX)?;
        let (minor, count) = (reader.u32()?, reader.u32()? as usize);
        let mut operations = Vec::new();
        for _ in 0..count {
            let number = reader.u32()?;
            let is_known = (op::FIRST..=op::LAST_OF_2).contains(&number);
            let operation = if count > OPERATIONS_MAX && is_known {
                let status = Status::TOO_MANY_OPS;
                Operation::Refused { number, status }
            } else {
                Operation::read(number, minor, reader).unwrap_or_else(|error| {
                    tracing::debug!(number, %error, "an NFS operation is damaged");
                    let status = Status::BADXDR;
                    Operation::Refused { number, status }
                })
            };
            let is_end = matches!(operation, Operation::Refused { .. });
            operations.push(operation);
            if is_end {
                break;
            }
        }
        Ok(Self {
            tag,
            minor,
            operations,
            bytes,
        })
    }
}

fn read_xattr(number: u32, reader: &mut Reader) -> Result<Xattr> {
    Ok(match number {
        op::GETXATTR => Xattr::Get {
            name: name(reader)?,
        },
        op::SETXATTR => {
            let mode = match reader.u32()? {
                0 => XattrMode::Any,
                1 => XattrMode::Create,
                2 => XattrMode::Replace,
                number => return Err(bad("setxattr_option4", number)),
            };
            Xattr::Set {
                mode,
                name: name(reader)?,
                value: reader.opaque(TRANSFER_BYTES_MAX)?,
            }
        }
        op::LISTXATTRS => Xattr::List {
            cookie: reader.u64()?,
            count_bytes: reader.u32()?.min(LISTING_BYTES_MAX),
        },
        _ => Xattr::Remove {
            name: name(reader)?,
        },
    })
}

impl Operation {
    fn read(number: u32, minor: u32, reader: &mut Reader) -> Result<Self> {
        let last = if minor < 2 {
            op::LAST_OF_1
        } else {
            op::LAST_OF_2
        };
        if !(op::FIRST..=last).contains(&number) {
            return Ok(Self::Refused {
                number: op::ILLEGAL,
                status: Status::OP_ILLEGAL,
            });
        }
        Ok(match number {
            op::ACCESS => Self::Access {
                wanted: reader.u32()?,
            },
            op::CLOSE => {
                let _sequence = reader.u32()?;
                Self::Close {
                    state: StateId::read(reader)?,
                }
            }
            op::COMMIT => {
                // All of the file is committed, so the range does not matter.
                let (_offset, _count) = (reader.u64()?, reader.u32()?);
                Self::Commit
            }
            op::CREATE => Self::read_create(reader)?,
            // There are none.
            op::DELEGRETURN => Self::Refused {
                number,
                status: Status::BAD_STATEID,
            },
            op::GETATTR => Self::GetAttributes {
                wanted: Bits::read(reader)?,
            },
            op::GETFH => Self::GetHandle,
            op::LINK => Self::Link {
                name: name(reader)?,
            },
            op::LOCK => Self::read_lock(reader)?,
            op::LOCKT => {
                let is_exclusive = is_exclusive(reader)?;
                let (offset, length) = (reader.u64()?, reader.u64()?);
                let _client = reader.u64()?;
                Self::TestLock {
                    is_exclusive,
                    offset,
                    length,
                    owner: reader.opaque(OPAQUE_BYTES_MAX)?,
                }
            }
            op::LOCKU => {
                let (_type, _sequence) = (is_exclusive(reader)?, reader.u32()?);
                Self::Unlock {
                    state: StateId::read(reader)?,
                    offset: reader.u64()?,
                    length: reader.u64()?,
                }
            }
            op::LOOKUP => Self::Lookup {
                name: name(reader)?,
            },
            op::LOOKUPP => Self::LookupParent,
            op::VERIFY | op::NVERIFY => Self::Verify {
                wants_same: number == op::VERIFY,
                compared: Compared::read(reader)?,
            },
            op::OPEN => Self::Open(Box::new(Open::read(reader)?)),
            op::OPEN_DOWNGRADE => {
                let state = StateId::read(reader)?;
                let _sequence = reader.u32()?;
                Self::OpenDowngrade {
                    state,
                    access: reader.u32()?,
                    deny: reader.u32()?,
                }
            }
            op::PUTFH => {
                let handle = reader.opaque(FH_BYTES_MAX)?;
                const { assert!(HANDLE_BYTES_MAX < FH_BYTES_MAX) };
                Self::PutHandle {
                    handle: Handle::decode(&handle),
                }
            }
            op::PUTROOTFH | op::PUTPUBFH => Self::PutRoot { number },
            op::READ => Self::Read {
                state: StateId::read(reader)?,
                offset_bytes: reader.u64()?,
                count_bytes: reader.u32()?.min(TRANSFER_BYTES_MAX),
            },
            op::READDIR => {
                let cookie = reader.u64()?;
                // Cookies stay good, so there is nothing to verify; names are no part of a limit.
                let (_verifier, _names): ([u8; 8], u32) = (reader.fixed()?, reader.u32()?);
                Self::ReadDirectory {
                    cookie,
                    count_bytes: reader.u32()?.min(LISTING_BYTES_MAX),
                    wanted: Bits::read(reader)?,
                }
            }
            op::READLINK => Self::ReadLink,
            op::REMOVE => Self::Remove {
                name: name(reader)?,
            },
            op::RENAME => Self::Rename {
                from: name(reader)?,
                to: name(reader)?,
            },
            op::RESTOREFH => Self::RestoreHandle,
            op::SAVEFH => Self::SaveHandle,
            op::SECINFO => Self::Security {
                name: Ok(name(reader)?),
            },
            op::SECINFO_NO_NAME => Self::Security {
                name: match reader.u32()? {
                    0 => Err(false),
                    1 => Err(true),
                    number => return Err(bad("secinfo_style4", number)),
                },
            },
            op::SETATTR => Self::SetAttributes {
                state: StateId::read(reader)?,
                set: Set::read(reader)?,
            },
            op::WRITE => {
                let state = StateId::read(reader)?;
                let offset_bytes = reader.u64()?;
                let stable = match reader.u32()? {
                    0 => Stable::Unstable,
                    1 => Stable::DataSync,
                    2 => Stable::FileSync,
                    number => return Err(bad("stable_how4", number)),
                };
                Self::Write {
                    state,
                    offset_bytes,
                    stable,
                    data: reader.opaque(TRANSFER_BYTES_MAX)?,
                }
            }
            _ => return Self::read_of_session(number, reader),
        })
    }

    fn read_of_session(number: u32, reader: &mut Reader) -> Result<Self> {
        Ok(match number {
            op::BIND_CONN_TO_SESSION => {
                let session = reader.fixed()?;
                let direction = reader.u32()?;
                let _rdma = reader.bool()?;
                Self::BindConnection { session, direction }
            }
            op::EXCHANGE_ID => {
                let verifier = reader.fixed()?;
                let owner = reader.opaque(OPAQUE_BYTES_MAX)?;
                let flags = reader.u32()?;
                let protection = protection(reader)?;
                for _ in 0..parts(reader, PROGRAMS_MAX)? {
                    // Which program the client is.
                    reader.opaque(OPAQUE_BYTES_MAX)?;
                    reader.opaque(OPAQUE_BYTES_MAX)?;
                    let (_seconds, _nanoseconds) = (reader.u64()?, reader.u32()?);
                }
                Self::ExchangeId {
                    verifier,
                    owner,
                    flags,
                    protection,
                }
            }
            op::CREATE_SESSION => {
                let (client, sequence) = (reader.u64()?, reader.u32()?);
                let flags = reader.u32()?;
                let (fore, back) = (channel(reader)?, channel(reader)?);
                let _program = reader.u32()?;
                skip_callback_security(reader)?;
                Self::CreateSession {
                    client,
                    sequence,
                    flags,
                    fore,
                    back,
                }
            }
            op::DESTROY_SESSION => Self::DestroySession {
                session: reader.fixed()?,
            },
            op::DESTROY_CLIENTID => Self::DestroyClient {
                client: reader.u64()?,
            },
            op::SEQUENCE => {
                let session = reader.fixed()?;
                let (sequence, slot) = (reader.u32()?, reader.u32()?);
                let _highest = reader.u32()?;
                Self::Sequence {
                    session,
                    sequence,
                    slot,
                    is_kept: reader.bool()?,
                }
            }
            op::FREE_STATEID => Self::FreeState {
                state: StateId::read(reader)?,
            },
            op::TEST_STATEID => {
                let count = reader.u32()?;
                if count > STATEIDS_MAX {
                    return Err(bad("count of state ids", count));
                }
                let states = (0..count).map(|_| StateId::read(reader));
                Self::TestStates {
                    states: states.collect::<Result<_>>()?,
                }
            }
            op::RECLAIM_COMPLETE => Self::ReclaimComplete {
                is_of_one: reader.bool()?,
            },
            op::ALLOCATE | op::DEALLOCATE => Self::Allocate {
                is_hole: number == op::DEALLOCATE,
                state: StateId::read(reader)?,
                offset: reader.u64()?,
                length: reader.u64()?,
            },
            op::SEEK => Self::Seek {
                state: StateId::read(reader)?,
                offset: reader.u64()?,
                wants_hole: match reader.u32()? {
                    0 => false,
                    1 => true,
                    _ => {
                        let status = Status::UNION_NOTSUPP;
                        return Ok(Self::Refused { number, status });
                    }
                },
            },
            op::GETXATTR..=op::REMOVEXATTR => Self::Xattr(read_xattr(number, reader)?),
            op::CLONE => Self::read_copy(reader, true)?,
            op::COPY => Self::read_copy(reader, false)?,
            _ => Self::Refused {
                number,
                status: Status::NOTSUPP,
            },
        })
    }

    fn read_copy(reader: &mut Reader, is_clone: bool) -> Result<Self> {
        let (from_state, to_state) = (StateId::read(reader)?, StateId::read(reader)?);
        let (from, to, length) = (reader.u64()?, reader.u64()?, reader.u64()?);
        if !is_clone {
            let (_in_order, _waits) = (reader.bool()?, reader.bool()?);
            // Servers to copy from.
            if reader.u32()? != 0 {
                let (number, status) = (op::COPY, Status::NOTSUPP);
                return Ok(Self::Refused { number, status });
            }
        }
        Ok(Self::Copy {
            is_clone,
            from_state,
            to_state,
            from,
            to,
            length,
        })
    }

    fn read_create(reader: &mut Reader) -> Result<Self> {
        let kind = match reader.u32()? {
            2 => Kind::Directory,
            5 => Kind::Symlink(reader.opaque(TARGET_BYTES_MAX)?),
            3 => Kind::Node(FileKind::BlockDevice, (reader.u32()?, reader.u32()?)),
            4 => Kind::Node(FileKind::CharDevice, (reader.u32()?, reader.u32()?)),
            6 => Kind::Node(FileKind::Socket, (0, 0)),
            7 => Kind::Node(FileKind::Fifo, (0, 0)),
            _ => Kind::Other,
        };
        Ok(Self::Create {
            kind,
            name: name(reader)?,
            set: Set::read(reader)?,
        })
    }

    fn read_lock(reader: &mut Reader) -> Result<Self> {
        let (is_exclusive, is_reclaimed) = (is_exclusive(reader)?, reader.bool()?);
        let (offset, length) = (reader.u64()?, reader.u64()?);
        let locker = if reader.bool()? {
            let _sequence = reader.u32()?;
            let open = StateId::read(reader)?;
            let (_sequence, _client) = (reader.u32()?, reader.u64()?);
            let owner = reader.opaque(OPAQUE_BYTES_MAX)?;
            Locker::New { open, owner }
        } else {
            let lock = StateId::read(reader)?;
            let _sequence = reader.u32()?;
            Locker::Known { lock }
        };
        Ok(Self::Lock {
            is_exclusive,
            is_reclaimed,
            offset,
            length,
            locker,
        })
    }

    /// What its result may need, in bytes.
    pub(crate) fn answer_bytes(&self) -> u32 {
        RESULT_BYTES
            + match self {
                Self::Read { count_bytes, .. } | Self::ReadDirectory { count_bytes, .. } => {
                    *count_bytes
                }
                Self::ReadLink => TARGET_BYTES_MAX,
                Self::Xattr(Xattr::Get { .. }) => XATTR_BYTES_MAX,
                Self::Xattr(Xattr::List { count_bytes, .. }) => *count_bytes,
                Self::GetAttributes { .. } => ATTRIBUTES_BYTES_MAX,
                Self::Lock { .. } | Self::TestLock { .. } | Self::ExchangeId { .. } => {
                    OPAQUE_BYTES_MAX
                }
                // No more than some kilobytes.
                Self::TestStates { states } => states.len() as u32 * 4,
                _ => 0,
            }
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Refused { number, .. } | Self::PutRoot { number } => *number,
            Self::Access { .. } => op::ACCESS,
            Self::Close { .. } => op::CLOSE,
            Self::Commit => op::COMMIT,
            Self::Create { .. } => op::CREATE,
            Self::GetAttributes { .. } => op::GETATTR,
            Self::GetHandle => op::GETFH,
            Self::Link { .. } => op::LINK,
            Self::Lock { .. } => op::LOCK,
            Self::TestLock { .. } => op::LOCKT,
            Self::Unlock { .. } => op::LOCKU,
            Self::Lookup { .. } => op::LOOKUP,
            Self::LookupParent => op::LOOKUPP,
            Self::Verify { wants_same, .. } => match wants_same {
                true => op::VERIFY,
                false => op::NVERIFY,
            },
            Self::Open(_) => op::OPEN,
            Self::OpenDowngrade { .. } => op::OPEN_DOWNGRADE,
            Self::PutHandle { .. } => op::PUTFH,
            Self::Read { .. } => op::READ,
            Self::ReadDirectory { .. } => op::READDIR,
            Self::ReadLink => op::READLINK,
            Self::Remove { .. } => op::REMOVE,
            Self::Rename { .. } => op::RENAME,
            Self::RestoreHandle => op::RESTOREFH,
            Self::SaveHandle => op::SAVEFH,
            Self::Security { name: Ok(_) } => op::SECINFO,
            Self::Security { name: Err(_) } => op::SECINFO_NO_NAME,
            Self::SetAttributes { .. } => op::SETATTR,
            Self::Write { .. } => op::WRITE,
            Self::BindConnection { .. } => op::BIND_CONN_TO_SESSION,
            Self::ExchangeId { .. } => op::EXCHANGE_ID,
            Self::CreateSession { .. } => op::CREATE_SESSION,
            Self::DestroySession { .. } => op::DESTROY_SESSION,
            Self::DestroyClient { .. } => op::DESTROY_CLIENTID,
            Self::Sequence { .. } => op::SEQUENCE,
            Self::FreeState { .. } => op::FREE_STATEID,
            Self::TestStates { .. } => op::TEST_STATEID,
            Self::ReclaimComplete { .. } => op::RECLAIM_COMPLETE,
            Self::Allocate { is_hole: false, .. } => op::ALLOCATE,
            Self::Allocate { is_hole: true, .. } => op::DEALLOCATE,
            Self::Seek { .. } => op::SEEK,
            Self::Xattr(Xattr::Get { .. }) => op::GETXATTR,
            Self::Xattr(Xattr::Set { .. }) => op::SETXATTR,
            Self::Xattr(Xattr::List { .. }) => op::LISTXATTRS,
            Self::Xattr(Xattr::Remove { .. }) => op::REMOVEXATTR,
            Self::Copy { is_clone: true, .. } => op::CLONE,
            Self::Copy {
                is_clone: false, ..
            } => op::COPY,
        }
    }
}
