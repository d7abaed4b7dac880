//! A POSIX filesystem on a dataset: what OpenZFS calls the ZPL.
//!
//! [`Filesystem`] offers every POSIX operation by object number ("inode"), asynchronously. It knows
//! nothing of FUSE or NFS: those turn their requests into calls here and [`FsError::errno`] into
//! their status. Permission checks are left to who serves it (the kernel, with
//! `default_permissions`). [`ZplInit`] makes an empty filesystem in a new dataset.
//!
//! | Module | What it does |
//! |---|---|
//! | `filesystem` | opening and closing, files by number, transactions |
//! | `node` | files in memory, their locks and the order of all locks |
//! | `namespace`, `create`, `rename`, `directory` | names: look up, link, remove; make; rename; listing |
//! | `data`, `attributes`, `xattr`, `quota` | content; attributes; extended attributes; quotas |
//! | `share`, `rewrite` | blocks shared between files; files written again as they are |
//! | `unlinked` | files without a name, and freeing them |
//! | `log`, `replay` | records of the intent log, and doing them again |
//! | `salvage` | what is left of a damaged filesystem |
//! | `init` | a new filesystem |
//! | `znode`, `acl`, `posix_acl`, `names` | layouts and rules, pure |
//!
//! # What a crash leaves
//!
//! An operation is one transaction (freeing and writing much is several, each good in itself), and
//! a txg is on disk whole or not at all. What was synchronous and not yet in a txg on disk is in
//! the intent log and done again when the filesystem is opened.

#![forbid(unsafe_code)]

mod acl;
mod attributes;
mod counting;
mod create;
mod data;
mod directory;
mod error;
mod filesystem;
mod init;
mod log;
mod names;
mod namespace;
mod node;
mod path;
mod posix_acl;
mod quota;
mod rename;
mod replay;
mod rewrite;
mod salvage;
mod share;
mod types;
mod unlinked;
mod upgrade;
mod xattr;
mod znode;

pub use error::{FsError, Result, errno};
pub use filesystem::Filesystem;
pub use init::ZplInit;
pub use quota::{QuotaKind, SpaceUse};
pub use salvage::{SalvagedDirectory, SalvagedFile, SalvagedFilesystem, SalvagedXattrs};
pub use types::{
    Allocate, AskGroups, Attributes, Caller, DirEntry, FileKind, FsStatistics, MountChoices,
    RenameMode, SeekTo, SetAttributes, SetTime, Time, XattrMode,
};
pub use znode::pflags;

/// Decodes bytes as lists of access of each kind, and as the attributes of a file (each its number,
/// its length, then its value): for fuzzers.
#[doc(hidden)]
pub fn decode_for_fuzzing(data: &[u8]) {
    use format::Endian;
    let mut lists = vec![acl::Acl::decode(data, u64::MAX)];
    for endian in [Endian::Little, Endian::Big] {
        lists.push(acl::Acl::decode_v0(data, u64::MAX, endian));
    }
    for acl in lists.into_iter().flatten() {
        let stored = acl.encode();
        let again = acl::Acl::decode(&stored, u64::MAX);
        assert_eq!(again.map(|acl| acl.encode()), Some(stored));
    }
    let _ = znode::parse_old_acl(data);
    if let Some(Some(acl)) = posix_acl::PosixAcl::decode(data) {
        let again = posix_acl::PosixAcl::decode(&acl.encode());
        assert_eq!(
            again.map(|acl| acl.map(|acl| acl.mode())),
            Some(Some(acl.mode()))
        );
    }
    let mut attributes = Vec::new();
    let mut rest = data;
    while let Some(([number, length], after)) = rest.split_first_chunk::<2>() {
        let (value, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        let attribute = object::SaAttribute(u16::from(*number));
        attributes.push((attribute, bytes::Bytes::copy_from_slice(value)));
    }
    let _ = znode::Znode::parse(2, format::ObjectType::SA, &attributes);
}
