//! POSIX access control lists, as Linux passes them in extended attributes
//! (include/uapi/linux/posix_acl_xattr.h): a little-endian `version: u32 = 2`, then entries of
//! `tag: u16, permissions: u16, id: u32`. OpenZFS keeps these very bytes
//! (module/os/linux/zfs/zpl_xattr.c).
//!
//! FUSE leaves to us what the kernel does for its own filesystems: the mode follows the list
//! (`posix_acl_update_mode`), the list follows `chmod` (`__posix_acl_chmod_masq`), and new files
//! inherit their directory's default list (`posix_acl_create_masq`).

/// Name of the attribute with the list that rules access.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute with the list that new entries of a directory get.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ID_NONE: u32 = u32::MAX;
/// Most entries: what fits into the biggest attribute that Linux passes.
const ENTRIES_MAX: usize = (64 << 10) / 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A valid list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PosixAcl {
    entries: Vec<Entry>,
}

impl PosixAcl {
    /// `None` if the bytes are no valid list (`posix_acl_valid`). An empty one is `Some(None)`:
    /// there is no list then.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Option<Self>> {
        let (version, mut rest) = bytes.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() % 8 != 0 {
            return None;
        }
        let mut entries = Vec::new();
        while let Some((&[t0, t1, p0, p1, ref id @ ..], after)) = rest.split_first_chunk::<8>() {
            let [i0, i1, i2, i3] = *id;
            entries.push(Entry {
                tag: u16::from_le_bytes([t0, t1]),
                permissions: u16::from_le_bytes([p0, p1]),
                id: u32::from_le_bytes([i0, i1, i2, i3]),
            });
            rest = after;
        }
        if entries.is_empty() {
            return Some(None);
        }
        let acl = Self { entries };
        acl.is_valid().then_some(Some(acl))
    }

    /// One of each of owner, group and others, in order; a mask where users or groups are named.
    fn is_valid(&self) -> bool {
        if self.entries.len() > ENTRIES_MAX {
            return false;
        }
        let rank = |tag| {
            [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER]
                .iter()
                .position(|t| *t == tag)
        };
        let ordered = self
            .entries
            .windows(2)
            .all(|pair| rank(pair[0].tag) <= rank(pair[1].tag));
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        ordered
            && self
                .entries
                .iter()
                .all(|e| rank(e.tag).is_some() && e.permissions <= 7)
            && [USER_OBJ, GROUP_OBJ, OTHER]
                .iter()
                .all(|tag| count(*tag) == 1)
            && (count(MASK) == 1 || count(MASK) == 0 && named == 0)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.permissions.to_le_bytes());
            let id = if matches!(entry.tag, USER | GROUP) {
                entry.id
            } else {
                ID_NONE
            };
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    /// The permissions of a mode that say as much as a mode can, and whether they say all.
    pub(crate) fn mode(&self) -> (u32, bool) {
        let mut mode = 0;
        let mut says_all = true;
        for entry in &self.entries {
            let bits = u32::from(entry.permissions);
            match entry.tag {
                USER_OBJ => mode |= bits << 6,
                GROUP_OBJ => mode |= bits << 3,
                OTHER => mode |= bits,
                MASK => {
                    mode = mode & !0o070 | bits << 3;
                    says_all = false;
                }
                _ => says_all = false,
            }
        }
        (mode, says_all)
    }

    fn mask_or_group(&mut self) -> Option<&mut Entry> {
        let tag = if self.entries.iter().any(|entry| entry.tag == MASK) {
            MASK
        } else {
            GROUP_OBJ
        };
        self.entries.iter_mut().find(|entry| entry.tag == tag)
    }

    /// The list after the mode's permissions were set.
    pub(crate) fn with_mode(mut self, mode: u32) -> Self {
        for entry in &mut self.entries {
            match entry.tag {
                USER_OBJ => entry.permissions = (mode >> 6 & 7) as u16,
                OTHER => entry.permissions = (mode & 7) as u16,
                _ => {}
            }
        }
        if let Some(entry) = self.mask_or_group() {
            entry.permissions = (mode >> 3 & 7) as u16;
        }
        self
    }

    /// What a new file gets from this default list when it asks for `mode`: its list, if a mode
    /// does not say it all, and its mode.
    pub(crate) fn inherited(mut self, mode: u32) -> (Option<Self>, u32) {
        let mut result = mode;
        for entry in &mut self.entries {
            match entry.tag {
                USER_OBJ => {
                    entry.permissions &= (mode >> 6 & 7) as u16;
                    result &= u32::from(entry.permissions) << 6 | !0o700;
                }
                OTHER => {
                    entry.permissions &= (mode & 7) as u16;
                    result &= u32::from(entry.permissions) | !0o007;
                }
                _ => {}
            }
        }
        if let Some(entry) = self.mask_or_group() {
            entry.permissions &= (mode >> 3 & 7) as u16;
            result &= u32::from(entry.permissions) << 3 | !0o070;
        }
        let says_all = self.mode().1;
        ((!says_all).then_some(self), result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> PosixAcl {
        let entries = entries
            .iter()
            .map(|&(tag, permissions, id)| Entry {
                tag,
                permissions,
                id,
            })
            .collect();
        PosixAcl { entries }
    }

    fn rich() -> PosixAcl {
        acl(&[
            (USER_OBJ, 7, ID_NONE),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, ID_NONE),
            (MASK, 7, ID_NONE),
            (OTHER, 4, ID_NONE),
        ])
    }

    #[test]
    fn lists_survive_and_invalid_ones_are_refused() {
        let bytes = rich().encode();
        assert_eq!(bytes.len(), 44);
        assert_eq!(PosixAcl::decode(&bytes), Some(Some(rich())));
        assert_eq!(PosixAcl::decode(&VERSION.to_le_bytes()), Some(None));
        assert_eq!(PosixAcl::decode(&bytes[..43]), None);
        assert_eq!(PosixAcl::decode(&[1, 0, 0, 0]), None);
        let without_mask = acl(&[
            (USER_OBJ, 7, ID_NONE),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, ID_NONE),
            (OTHER, 4, ID_NONE),
        ]);
        assert_eq!(PosixAcl::decode(&without_mask.encode()), None);
    }

    #[test]
    fn the_mode_follows_the_list_and_the_list_the_mode() {
        assert_eq!(rich().mode(), (0o774, false));
        let plain = acl(&[
            (USER_OBJ, 6, ID_NONE),
            (GROUP_OBJ, 4, ID_NONE),
            (OTHER, 0, ID_NONE),
        ]);
        assert_eq!(plain.mode(), (0o640, true));
        assert_eq!(rich().with_mode(0o600).mode(), (0o600, false));
        assert_eq!(plain.with_mode(0o755).mode(), (0o755, true));
    }

    #[test]
    fn new_files_inherit() {
        let (list, mode) = rich().inherited(0o666);
        assert_eq!(mode, 0o664);
        assert_eq!(list.unwrap().mode(), (0o664, false));
        let plain = acl(&[
            (USER_OBJ, 7, ID_NONE),
            (GROUP_OBJ, 5, ID_NONE),
            (OTHER, 0, ID_NONE),
        ]);
        assert_eq!(plain.inherited(0o777), (None, 0o750));
    }
}
