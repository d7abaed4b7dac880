//! Bits of a file's attribute `ZPL_FLAGS` (include/sys/zfs_znode.h).

/// It is an extended attribute (`ZFS_XATTR`).
pub const XATTR: u64 = 0x1;
/// The ACL has entries to be inherited (`ZFS_INHERIT_ACE`).
pub const INHERIT_ACE: u64 = 0x2;
/// The ACL says no more than the mode (`ZFS_ACL_TRIVIAL`).
pub const ACL_TRIVIAL: u64 = 0x4;
/// The ACL has object entries (`ZFS_ACL_OBJ_ACE`).
pub const ACL_OBJECT: u64 = 0x8;
/// The ACL is protected from inheritance (`ZFS_ACL_PROTECTED`).
pub const ACL_PROTECTED: u64 = 0x10;
/// The ACL was defaulted (`ZFS_ACL_DEFAULTED`).
pub const ACL_DEFAULTED: u64 = 0x20;
/// The ACL was inherited (`ZFS_ACL_AUTO_INHERIT`).
pub const ACL_AUTO_INHERIT: u64 = 0x40;
/// A scan stamp follows an old znode (`ZFS_BONUS_SCANSTAMP`).
pub const BONUS_SCANSTAMP: u64 = 0x80;
/// Everyone may execute or search it (`ZFS_NO_EXECS_DENIED`).
pub const NO_EXECS_DENIED: u64 = 0x100;
/// Read only, as DOS has it (`ZFS_READONLY`).
pub const READONLY: u64 = 1 << 32;
/// Hidden (`ZFS_HIDDEN`).
pub const HIDDEN: u64 = 1 << 33;
/// System (`ZFS_SYSTEM`).
pub const SYSTEM: u64 = 1 << 34;
/// Changed since it was archived (`ZFS_ARCHIVE`); set on all new files.
pub const ARCHIVE: u64 = 1 << 35;
/// Cannot be changed (`ZFS_IMMUTABLE`).
pub const IMMUTABLE: u64 = 1 << 36;
/// Cannot be removed (`ZFS_NOUNLINK`).
pub const NO_UNLINK: u64 = 1 << 37;
/// Can only be appended to (`ZFS_APPENDONLY`).
pub const APPEND_ONLY: u64 = 1 << 38;
/// Not to be dumped (`ZFS_NODUMP`).
pub const NO_DUMP: u64 = 1 << 39;
/// Opaque (`ZFS_OPAQUE`).
pub const OPAQUE: u64 = 1 << 40;
/// Found to hold a virus (`ZFS_AV_QUARANTINED`).
pub const AV_QUARANTINED: u64 = 1 << 41;
/// Changed since it was scanned (`ZFS_AV_MODIFIED`).
pub const AV_MODIFIED: u64 = 1 << 42;
/// A reparse point (`ZFS_REPARSE`).
pub const REPARSE: u64 = 1 << 43;
/// Offline (`ZFS_OFFLINE`).
pub const OFFLINE: u64 = 1 << 44;
/// Sparse (`ZFS_SPARSE`).
pub const SPARSE: u64 = 1 << 45;
/// New entries get this directory's project (`ZFS_PROJINHERIT`).
pub const PROJECT_INHERIT: u64 = 1 << 46;
/// There is a project (`ZFS_PROJID`).
pub const PROJECT_ID: u64 = 1 << 47;
