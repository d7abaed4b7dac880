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
