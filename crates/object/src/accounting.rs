//! Whose space an object counts as: users, groups and projects.

use std::collections::BTreeMap;

use format::{ObjectType, SaFixedPlace, SaHeader};

use crate::rangeset::RangeSet;

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

/// Tells whose an object is (`zpl_get_file_info`, module/zfs/zfs_quota.c). A filesystem's object
/// set uses [`ZplAccounting`] unless told otherwise.
pub trait AccountingKeys: Send + Sync {
    /// The owner of the object that has this bonus (already in our byte order), or `None` when its
    /// space is not counted.
    fn ids(&self, bonus_type: ObjectType, bonus: &[u8]) -> Option<AccountingIds>;
}

/// Reads the owner from znodes and system attributes at their fixed places (`SA_UID_OFFSET` ...,
/// include/sys/zfs_sa.h): every layout of the ZPL starts with the same attributes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZplAccounting;

impl AccountingKeys for ZplAccounting {
    fn ids(&self, bonus_type: ObjectType, bonus: &[u8]) -> Option<AccountingIds> {
        const FLAG_PROJECT: u64 = 0x0000_8000_0000_0000;
        let little = |at: usize| -> Option<u64> {
            let bytes = bonus.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        if bonus_type == ObjectType::ZNODE {
            return Some(AccountingIds {
                user: little(128)?,
                group: little(136)?,
                project: 0,
            });
        }
        if bonus_type != ObjectType::SA {
            return None;
        }
        if bonus.len() >= 8 && SaHeader::is_unfilled(bonus) {
            // A file whose attributes were not filled in yet.
            return Some(AccountingIds::default());
        }
        let header = SaHeader::decode(bonus).ok()?;
        let value = |place| header.fixed(bonus, place);
        let has_project = value(SaFixedPlace::Flags)? & FLAG_PROJECT != 0;
        Some(AccountingIds {
            user: value(SaFixedPlace::User)?,
            group: value(SaFixedPlace::Group)?,
            project: match has_project {
                true => value(SaFixedPlace::Project)?,
                false => 0,
            },
        })
    }
}

/// What one sync changes in the three accounting ZAPs, by entry name.
#[derive(Debug, Default)]
pub(crate) struct AccountDeltas {
    pub users: BTreeMap<String, i64>,
    pub groups: BTreeMap<String, i64>,
    pub projects: BTreeMap<String, i64>,
}

/// What counts in an object set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccountScope {
    pub objects: bool,
    pub projects: bool,
}

impl AccountDeltas {
    /// Adds (`sign` 1) or takes away (-1) one object and its space
    /// (`do_userquota_update`, `do_userobjquota_update`, module/zfs/dmu_objset.c).
    pub(crate) fn count(
        &mut self,
        ids: AccountingIds,
        used_bytes: u64,
        space: bool,
        object: bool,
        scope: AccountScope,
        sign: i64,
    ) {
        const DNODE_MIN_BYTES: i64 = 512;
        let bytes = sign * (used_bytes as i64).saturating_add(DNODE_MIN_BYTES);
        let mut tables = vec![(&mut self.users, ids.user), (&mut self.groups, ids.group)];
        if scope.projects {
            tables.push((&mut self.projects, ids.project));
        }
        for (table, id) in tables {
            if space {
                *table.entry(format!("{id:x}")).or_default() += bytes;
            }
            if object {
                *table.entry(format!("obj-{id:x}")).or_default() += sign;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_found_in_both_kinds_of_bonus_and_byte_order() {
        let mut words = [0u64; 18];
        (words[3], words[4], words[6], words[16]) = (1000, 100, 0x0000_8000_0000_0000, 7);
        let ids = AccountingIds {
            user: 1000,
            group: 100,
            project: 7,
        };
        let mut little = 0x2f_505au32.to_le_bytes().to_vec();
        little.extend((2 | (1u16 << 10)).to_le_bytes());
        little.extend([0; 2]);
        little.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let mut big = 0x2f_505au32.to_be_bytes().to_vec();
        big.extend((2 | (1u16 << 10)).to_be_bytes());
        big.extend([0; 2]);
        big.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        assert_eq!(ZplAccounting.ids(ObjectType::SA, &little), Some(ids));
        assert_eq!(ZplAccounting.ids(ObjectType::SA, &big), Some(ids));
        assert_eq!(ZplAccounting.ids(ObjectType::SA, &little[..20]), None);
        assert_eq!(ZplAccounting.ids(ObjectType::NONE, &little), None);
        let mut znode = vec![0u8; 264];
        znode[128] = 5;
        znode[136] = 6;
        let found = ZplAccounting
            .ids(ObjectType::ZNODE, &znode)
            .expect("a znode");
        assert_eq!((found.user, found.group, found.project), (5, 6, 0));
    }

    #[test]
    fn moving_a_file_between_users_moves_its_space() {
        let scope = AccountScope {
            objects: true,
            projects: false,
        };
        let of = |user| AccountingIds {
            user,
            ..AccountingIds::default()
        };
        let mut deltas = AccountDeltas::default();
        deltas.count(of(16), 1024, true, scope.objects, scope, -1);
        deltas.count(of(17), 2048, true, scope.objects, scope, 1);
        assert_eq!(deltas.users["10"], -1536);
        assert_eq!(deltas.users["11"], 2560);
        assert_eq!(deltas.users["obj-11"], 1);
        assert_eq!(deltas.groups["0"], 1024);
        assert_eq!(deltas.groups["obj-0"], 0);
        assert!(deltas.projects.is_empty());
    }
}

/// An object set that is counted anew, since what is on disk does not tell what was counted: it was
/// received raw, after it had been counted. Not on disk: whoever opens it next begins anew.
#[derive(Debug, Default)]
pub(crate) struct Recount {
    /// Objects that were counted.
    pub counted: RangeSet,
    /// What had been counted before is gone.
    pub is_cleared: bool,
}
