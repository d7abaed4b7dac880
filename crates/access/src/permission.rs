//! Permissions of callers that no kernel checks: those of network servers.
//!
//! They are what Linux makes of mode and POSIX access control list for a file that is mounted
//! (`generic_permission`, `acl_permission_check`, fs/namei.c; `posix_acl_permission`,
//! fs/posix_acl.c), so that a file is as open through one way as through the other. NFSv4 lists,
//! which a mount does not obey either, say nothing here.

use std::sync::Arc;

use filesystem::{Attributes, FileKind, Filesystem, FsError};

/// Attribute with the list that rules access (include/uapi/linux/xattr.h).
const POSIX_ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// Tags of entries (include/uapi/linux/posix_acl.h).
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// To read a file, or list a directory.
pub const MAY_READ: u32 = 4;
/// To write a file, or change a directory's entries.
pub const MAY_WRITE: u32 = 2;
/// To execute a file, or look up in a directory.
pub const MAY_EXECUTE: u32 = 1;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User id; 0 may do nearly everything.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Groups besides.
    pub groups: Arc<[u32]>,
}

impl Credentials {
    /// Whether these are the superuser's.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether they are of a member of a group.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Whether `who` may do all of `wanted` ([`MAY_READ`] and the like) to a file with these
/// attributes.
///
/// # Errors
/// Of reading the file's list.
pub async fn permits(
    filesystem: &Filesystem,
    attributes: &Attributes,
    who: &Credentials,
    wanted: u32,
) -> Result<bool, FsError> {
    let Attributes {
        kind, mode, uid, ..
    } = *attributes;
    if who.is_root() {
        // Even root executes only what somebody may execute.
        let executes = wanted & MAY_EXECUTE != 0 && kind != FileKind::Directory;
        return Ok(!executes || mode & 0o111 != 0);
    }
    if uid == who.uid {
        return Ok(mode >> 6 & wanted == wanted);
    }
    // The group's permissions in the mode are the mask of a list, if there is one.
    if mode & 0o070 != 0
        && kind != FileKind::Symlink
        && let Some(list) = access_list(filesystem, attributes.ino).await?
    {
        return Ok(list_permits(&list, attributes, who, wanted));
    }
    let shift = if who.is_in_group(attributes.gid) {
        3
    } else {
        0
    };
    Ok(mode >> shift & wanted == wanted)
}

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    tag: u16,
    permissions: u32,
    id: u32,
}

/// The list that rules access to a file, if it has one that is whole.
async fn access_list(filesystem: &Filesystem, ino: u64) -> Result<Option<Vec<Entry>>, FsError> {
    if !filesystem.has_posix_acls() || filesystem.xattrs().lacks(ino, POSIX_ACL_ACCESS) {
        return Ok(None);
    }
    match filesystem.xattrs().get(ino, POSIX_ACL_ACCESS).await {
        Ok(stored) => Ok(decode(&stored)),
        Err(FsError::NoAttribute { .. } | FsError::Unsupported { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `struct posix_acl_xattr_header` and entries (include/uapi/linux/posix_acl_xattr.h).
pub(crate) fn decode(stored: &[u8]) -> Option<Vec<Entry>> {
    const VERSION: u32 = 2;
    let (version, entries) = stored.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let entries = entries.chunks_exact(8).map(|entry| Entry {
        tag: u16::from_le_bytes([entry[0], entry[1]]),
        permissions: u32::from(u16::from_le_bytes([entry[2], entry[3]])),
        id: u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]),
    });
    Some(entries.collect())
}

/// What a list says of somebody who does not own the file.
fn list_permits(list: &[Entry], file: &Attributes, who: &Credentials, wanted: u32) -> bool {
    let mask = list.iter().find(|entry| entry.tag == MASK);
    let mask = mask.map_or(7, |mask| mask.permissions);
    let grants = |permissions: u32| permissions & wanted == wanted;
    let mut is_of_group = false;
    for entry in list {
        let group = match entry.tag {
            USER_OBJ => continue,
            USER if entry.id == who.uid => return grants(entry.permissions & mask),
            GROUP_OBJ => file.gid,
            GROUP => entry.id,
            OTHER if !is_of_group => return grants(entry.permissions),
            _ => continue,
        };
        if who.is_in_group(group) {
            is_of_group = true;
            if grants(entry.permissions) {
                return grants(mask);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use filesystem::Time;

    fn file(uid: u32, gid: u32) -> Attributes {
        Attributes {
            ino: 5,
            generation: 1,
            kind: FileKind::Regular,
            mode: 0o640,
            uid,
            gid,
            nlink: 1,
            size_bytes: 0,
            allocated_bytes: 0,
            block_bytes: 512,
            rdev: (0, 0),
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            crtime: Time::default(),
            flags: 0,
            project: None,
            parent: 3,
            is_dirty: false,
        }
    }

    fn who(uid: u32, groups: &[u32]) -> Credentials {
        Credentials {
            uid,
            gid: 100,
            groups: groups.into(),
        }
    }

    #[test]
    fn lists_give_users_and_groups_what_they_name_under_the_mask() {
        let entry = |tag, permissions: u8, id: u32| {
            let mut bytes = u16::to_le_bytes(tag).to_vec();
            bytes.extend(u16::from(permissions).to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes
        };
        let mut stored = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in [
            (USER_OBJ, 7, u32::MAX),
            (USER, 6, 1001),
            (GROUP_OBJ, 4, u32::MAX),
            (GROUP, 2, 50),
            (MASK, 6, u32::MAX),
            (OTHER, 1, u32::MAX),
        ] {
            stored.extend(entry(tag, permissions, id));
        }
        let list = decode(&stored).unwrap();
        let file = file(1000, 200);
        let may = |who: &Credentials, wanted| list_permits(&list, &file, who, wanted);
        assert!(may(&who(1001, &[]), MAY_READ | MAY_WRITE));
        assert!(!may(&who(1001, &[]), MAY_EXECUTE));
        assert!(may(&who(1002, &[200]), MAY_READ));
        assert!(may(&who(1002, &[50]), MAY_WRITE));
        // No single entry grants both.
        assert!(!may(&who(1002, &[50, 200]), MAY_READ | MAY_WRITE));
        // Of a group that is named: what others may does not count.
        assert!(!may(&who(1002, &[50]), MAY_EXECUTE));
        assert!(may(&who(1002, &[]), MAY_EXECUTE));
        assert!(decode(&stored[..stored.len() - 1]).is_none());
    }
}
