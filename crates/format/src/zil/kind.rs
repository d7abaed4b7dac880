//! Kinds of records (`TX_*`, include/sys/zil.h).

use std::fmt;

/// What a record of the intent log says (`TX_*`, include/sys/zil.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogKind {
    /// `TX_COMMIT`: nothing; never on disk.
    Commit,
    /// `TX_CREATE`: a file or device was made.
    Create,
    /// `TX_MKDIR`: a directory was made.
    Mkdir,
    /// `TX_MKXATTR`: a directory of extended attributes was made.
    MkXattr,
    /// `TX_SYMLINK`: a symbolic link was made.
    Symlink,
    /// `TX_REMOVE`: a name of something that is no directory was removed.
    Remove,
    /// `TX_RMDIR`: a directory was removed.
    Rmdir,
    /// `TX_LINK`: an object got another name.
    Link,
    /// `TX_RENAME`: a name was moved.
    Rename,
    /// `TX_WRITE`: data was written.
    Write,
    /// `TX_TRUNCATE`: a range was freed.
    Truncate,
    /// `TX_SETATTR`: attributes were set.
    SetAttr,
    /// `TX_ACL_V0`: an ACL of version 0 was set.
    AclV0,
    /// `TX_ACL`: an ACL was set.
    Acl,
    /// `TX_CREATE_ACL`: a file was made with an ACL.
    CreateAcl,
    /// `TX_CREATE_ATTR`: a file was made with attributes.
    CreateAttr,
    /// `TX_CREATE_ACL_ATTR`: a file was made with both.
    CreateAclAttr,
    /// `TX_MKDIR_ACL`: a directory was made with an ACL.
    MkdirAcl,
    /// `TX_MKDIR_ATTR`: a directory was made with attributes.
    MkdirAttr,
    /// `TX_MKDIR_ACL_ATTR`: a directory was made with both.
    MkdirAclAttr,
    /// `TX_WRITE2`: data was written that its transaction group has already; the size counts.
    Write2,
    /// `TX_SETSAXATTR`: an extended attribute in the dnode was set or removed.
    SetSaXattr,
    /// `TX_RENAME_EXCHANGE`: two names were swapped.
    RenameExchange,
    /// `TX_RENAME_WHITEOUT`: a name was moved and a whiteout took its place.
    RenameWhiteout,
    /// `TX_CLONE_RANGE`: blocks were cloned into a file.
    CloneRange,
    /// A code that this release does not know.
    Unknown(u64),
}

/// All kinds in the order of their codes.
const CODES: [LogKind; 25] = [
    LogKind::Commit,
    LogKind::Create,
    LogKind::Mkdir,
    LogKind::MkXattr,
    LogKind::Symlink,
    LogKind::Remove,
    LogKind::Rmdir,
    LogKind::Link,
    LogKind::Rename,
    LogKind::Write,
    LogKind::Truncate,
    LogKind::SetAttr,
    LogKind::AclV0,
    LogKind::Acl,
    LogKind::CreateAcl,
    LogKind::CreateAttr,
    LogKind::CreateAclAttr,
    LogKind::MkdirAcl,
    LogKind::MkdirAttr,
    LogKind::MkdirAclAttr,
    LogKind::Write2,
    LogKind::SetSaXattr,
    LogKind::RenameExchange,
    LogKind::RenameWhiteout,
    LogKind::CloneRange,
];

impl LogKind {
    /// From the stored code, without the bit for names.
    pub fn from_code(code: u64) -> Self {
        let known = usize::try_from(code).ok().and_then(|code| CODES.get(code));
        known.copied().unwrap_or(Self::Unknown(code))
    }

    /// The stored code.
    pub fn code(self) -> u64 {
        match self {
            Self::Unknown(code) => code,
            known => CODES.iter().position(|kind| *kind == known).unwrap_or(0) as u64,
        }
    }

    /// Whether it is about the content of one object, and in no order with changes of names
    /// (`TX_OOO`).
    pub const fn is_out_of_order(self) -> bool {
        matches!(
            self,
            Self::Write
                | Self::Truncate
                | Self::SetAttr
                | Self::AclV0
                | Self::Acl
                | Self::Write2
                | Self::SetSaXattr
                | Self::CloneRange
        )
    }

    /// Whether it makes an object, whose number is in the second word of the body
    /// (`lr_create_t`).
    pub const fn makes_object(self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::Mkdir
                | Self::MkXattr
                | Self::Symlink
                | Self::CreateAcl
                | Self::CreateAttr
                | Self::CreateAclAttr
                | Self::MkdirAcl
                | Self::MkdirAttr
                | Self::MkdirAclAttr
        )
    }

    /// Whether it is about two objects that exist, in the first two words of the body: a directory
    /// and what gets a name in it (`lr_link_t`), or two directories (`lr_rename_t`).
    pub const fn is_about_two(self) -> bool {
        matches!(
            self,
            Self::Link | Self::Rename | Self::RenameExchange | Self::RenameWhiteout
        )
    }
}

impl fmt::Display for LogKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.code())
    }
}
