//! A POSIX filesystem on a dataset: what OpenZFS calls the ZPL.
//!
//! [`Filesystem`] offers every POSIX operation by object number ("inode"), asynchronously. It knows
//! nothing of FUSE or NFS: those turn their requests into calls here and [`FsError::errno`] into
//! their status. Permission checks are left to who serves it (the kernel, with
//! `default_permissions`). [`ZplInit`] makes an empty filesystem in a new dataset.
//!
//! | Module | What it does |
//! |---|---|
//! | `filesystem`, `open` | the whole: its parts, attributes, closing; opening |
//! | `namespace`, `rename`, `directory`, `path` | operations on names: look up, make, link, remove; rename; list |
//! | `data`, `rewrite` | operations on content; files written again as they are |
//! | `replay` | doing again what the intent log of a crash says |
//! | `upgrade` | raising the version; what is told of the filesystem as a whole |
//!
//! These know the [`Filesystem`]. Its parts, and the steps that operations are made of, are below
//! it and take only the parts that they need:
//!
//! | Module | What it does |
//! |---|---|
//! | `opening` | the hold on the dataset, its settings, who is inside |
//! | `node`, `rank`, `locking` | files in memory, their locks, and the one order of all locks |
//! | `changes`, `outlet` | who is told of changes: mounts, for what their kernels keep |
//! | `files` | files by number: loading, storing, transactions, the intent log |
//! | `counting`, `quota`, `unlinked`, `xattr` | counting of owners, quotas, the delete queue and freeing, extended attributes: the parts |
//! | `content`, `share`, `access_times` | blocks and sizes; blocks shared between files; access times |
//! | `attributes`, `stored_acl` | attributes and lists of access |
//! | `entries`, `create`, `remove`, `checks` | entries of directories, and whether they may be changed |
//! | `log` | records of the intent log |
//! | `znode`, `acl`, `posix_acl`, `names`, `describe` | layouts and rules, pure |
//!
//! Beside them, `salvage` reads what is left of a damaged filesystem, and `init` makes a new one.
//!
//! # What a crash leaves
//!
//! An operation is one transaction (freeing and writing much is several, each good in itself), and
//! a txg is on disk whole or not at all. What was synchronous and not yet in a txg on disk is in
//! the intent log and done again when the filesystem is opened.

#![forbid(unsafe_code)]

mod access_times;
mod acl;
mod attributes;
mod changes;
mod checks;
mod content;
mod counting;
mod create;
mod data;
mod describe;
mod directory;
mod entries;
mod error;
mod files;
mod filesystem;
mod folding;
mod init;
mod list_ahead;
mod listing;
mod locking;
mod log;
mod names;
mod namespace;
mod node;
mod open;
mod opening;
mod outlet;
mod path;
mod posix_acl;
mod quota;
mod rank;
mod remove;
mod rename;
mod replay;
mod rewrite;
mod salvage;
mod share;
mod stored_acl;
mod types;
mod unlinked;
mod upgrade;
mod xattr;
mod znode;

pub use attributes::DOS_FLAGS;
pub use changes::{By, Change, Changes, Former, Listener, Listening, Origin, Sharing};
pub use counting::Counting;
pub use error::{FsError, Result, errno};
pub use filesystem::Filesystem;
pub use init::ZplInit;
pub use open::{begin_upkeep, is_kept_up, open_quietly};
pub use quota::{QuotaKind, Quotas, SpaceUse};
pub use salvage::{SalvagedDirectory, SalvagedFile, SalvagedFilesystem, SalvagedXattrs};
pub use types::{
    Allocate, AskGroups, Attributes, Caller, DirEntry, FileKind, FsStatistics, MountChoices,
    RenameMode, SeekTo, SetAttributes, SetTime, Time, Via, XattrMode,
};
pub use unlinked::Unlinked;
pub use xattr::{LISTED_BYTES_MAX, Xattrs};
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
