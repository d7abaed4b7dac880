//! Whose space an object counts as: users, groups and projects.

use format::ObjectType;

/// Who an object's space counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AccountingIds {
    /// User.
    pub user: u64,
    /// Group.
    pub group: u64,
    /// Project; 0 (`ZFS_DEFAULT_PROJID`) when the object has none.
    pub project: u64,
}

/// Tells whose an object is (`zpl_get_file_info`, module/zfs/zfs_quota.c); given to an object set by who
/// knows the attributes in its bonus.
pub trait AccountingKeys: Send + Sync {
    /// The owner of the object that has this bonus (already in our byte order), or `None` when its space is not counted.
    fn ids(&self, bonus_type: ObjectType, bonus: &[u8]) -> Option<AccountingIds>;
}
