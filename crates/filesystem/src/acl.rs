//! Access control lists as they are stored: what OpenZFS calls ACEs.
//!
//! On Linux permissions are the mode's (and POSIX ACLs, which are extended attributes). Yet every
//! file stores an NFSv4-style list that says the same as its mode (a *trivial* one), which illumos
//! and FreeBSD obey. So a list is written with every new file and every `chmod`, exactly as
//! OpenZFS writes it (`zfs_acl_chmod`, `acl_trivial_access_masks`, `zfs_mode_compute`, all
//! module/os/linux/zfs/zfs_acl.c).
//!
//! # Layout (include/sys/zfs_acl.h), in the byte order of the writer
//!
//! | version | entry |
//! |---|---|
//! | 0 (ZPL 1, 2) | `who: u32, mask: u32, flags: u16, type: u16`: 12 bytes |
//! | 1 (ZPL 3+) | `type: u16, flags: u16, mask: u32`: 8 bytes for owner@, group@, everyone@; else `fuid: u64` follows: 16 bytes; object types have two 16-byte ids more: 48 bytes |

use format::Endian;

use crate::types::FileKind;

/// Permission bits, flags and types of entries (RFC 7530 section 6.2.1 with illumos's additions).
pub(crate) mod bits {
    pub const READ_DATA: u32 = 0x1;
    pub const WRITE_DATA: u32 = 0x2;
    pub const APPEND_DATA: u32 = 0x4;
    pub const READ_NAMED_ATTRS: u32 = 0x8;
    pub const WRITE_NAMED_ATTRS: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
    pub const DELETE_CHILD: u32 = 0x40;
    pub const READ_ATTRIBUTES: u32 = 0x80;
    pub const WRITE_ATTRIBUTES: u32 = 0x100;
    pub const READ_ACL: u32 = 0x2_0000;
    pub const WRITE_ACL: u32 = 0x4_0000;
    pub const WRITE_OWNER: u32 = 0x8_0000;
    pub const SYNCHRONIZE: u32 = 0x10_0000;

    pub const FILE_INHERIT: u16 = 0x1;
    pub const DIRECTORY_INHERIT: u16 = 0x2;
    pub const NO_PROPAGATE: u16 = 0x4;
    pub const INHERIT_ONLY: u16 = 0x8;
    pub const INHERITED: u16 = 0x80;
    pub const ALL_INHERIT: u16 =
        FILE_INHERIT | DIRECTORY_INHERIT | NO_PROPAGATE | INHERIT_ONLY | INHERITED;
    pub const IDENTIFIER_GROUP: u16 = 0x40;
    pub const OWNER: u16 = 0x1000;
    pub const GROUP: u16 = 0x2000;
    pub const EVERYONE: u16 = 0x4000;
    /// `group@`.
    pub const OWNING_GROUP: u16 = GROUP | IDENTIFIER_GROUP;
    /// The bits of the flags that say whom an entry is about.
    pub const WHO: u16 = OWNER | GROUP | EVERYONE | IDENTIFIER_GROUP;

    pub const ALLOW: u16 = 0;
    pub const DENY: u16 = 1;
    /// First and last of the types with object ids.
    pub const OBJECT_TYPES: std::ops::RangeInclusive<u16> = 5..=8;
}
use bits::*;

/// Who an entry without an id of its own is about.
const NOBODY: u64 = u64::MAX;

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ace {
    /// Allow, deny, audit, alarm.
    pub kind: u16,
    /// Inheritance and whom it is about.
    pub flags: u16,
    /// Permissions.
    pub mask: u32,
    /// User or group, where the flags do not tell.
    pub who: u64,
    /// Object and inherited object type, for the kinds that have them.
    pub object: Option<[u8; 32]>,
}

impl Ace {
    fn abstract_of(kind: u16, flags: u16, mask: u32) -> Self {
        Self {
            kind,
            flags,
            mask,
            who: NOBODY,
            object: None,
        }
    }

    /// Whether it is about owner@, group@ or everyone@ (and so has no id in version 1).
    fn is_abstract(&self) -> bool {
        matches!(self.flags & WHO, OWNER | OWNING_GROUP | EVERYONE)
    }
}

/// A list, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Acl {
    /// The entries.
    pub entries: Vec<Ace>,
}

struct Masks {
    allow0: u32,
    deny1: u32,
    deny2: u32,
    owner: u32,
    group: u32,
    everyone: u32,
}

/// What each class of user may and may not, by the mode.
fn masks(mode: u32, is_directory: bool) -> Masks {
    let write = WRITE_DATA | APPEND_DATA | if is_directory { DELETE_CHILD } else { 0 };
    let common = READ_ACL | READ_ATTRIBUTES | READ_NAMED_ATTRS | SYNCHRONIZE;
    let mut masks = Masks {
        allow0: 0,
        deny1: 0,
        deny2: 0,
        owner: common | WRITE_ATTRIBUTES | WRITE_OWNER | WRITE_ACL | WRITE_NAMED_ATTRS,
        group: common,
        everyone: common,
    };
    for (bit, permission) in [(4, READ_DATA), (2, write), (1, EXECUTE)] {
        let (user, group, other) = (
            mode & (bit << 6) != 0,
            mode & (bit << 3) != 0,
            mode & bit != 0,
        );
        if !user && (group || other) {
            masks.deny1 |= permission;
        }
        if !group && other {
            masks.deny2 |= permission;
            if user {
                masks.allow0 |= permission;
            }
        }
        if user {
            masks.owner |= permission;
        }
        if group {
            masks.group |= permission;
        }
        if other {
            masks.everyone |= permission;
        }
    }
    masks
}

/// `aclmode=restricted`: `chmod` of a file with a list of access is refused.
pub(crate) const ACLMODE_RESTRICTED: u64 = 4;

/// Property `aclinherit` (`ZFS_ACL_*`, include/sys/fs/zfs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AclInherit {
    Discard,
    NoAllow,
    Passthrough,
    Restricted,
    PassthroughX,
}

impl AclInherit {
    pub(crate) fn from_stored(stored: u64) -> Self {
        match stored {
            0 => Self::Discard,
            1 => Self::NoAllow,
            3 => Self::Passthrough,
            5 => Self::PassthroughX,
            _ => Self::Restricted,
        }
    }
}

impl Acl {
    /// The list that says what `mode` says and no more.
    pub(crate) fn trivial(mode: u32, is_directory: bool) -> Self {
        Self::default().with_mode(mode, is_directory, false, false)
    }

    /// The list after the mode was set to `mode`: entries for owner@, group@ and everyone@ say what
    /// the mode says, others stay. With `split`, entries of those three are replaced (inheritable
    /// ones of a directory are kept for inheritance only); with `trim`, what others allow is cut
    /// down to what the group has.
    pub(crate) fn with_mode(&self, mode: u32, is_directory: bool, split: bool, trim: bool) -> Self {
        let masks = masks(mode, is_directory);
        let mut entries = Vec::with_capacity(self.entries.len() + 6);
        if masks.allow0 != 0 {
            entries.push(Ace::abstract_of(ALLOW, OWNER, masks.allow0));
        }
        if masks.deny1 != 0 {
            entries.push(Ace::abstract_of(DENY, OWNER, masks.deny1));
        }
        if masks.deny2 != 0 {
            entries.push(Ace::abstract_of(DENY, OWNING_GROUP, masks.deny2));
        }
        for old in &self.entries {
            let mut ace = *old;
            if split && ace.is_abstract() {
                if !is_directory || ace.flags & (FILE_INHERIT | DIRECTORY_INHERIT) == 0 {
                    continue;
                }
                ace.flags |= INHERIT_ONLY;
            }
            if trim && ace.kind == ALLOW && ace.flags & INHERIT_ONLY == 0 {
                ace.mask &= masks.group;
            }
            entries.push(ace);
        }
        entries.push(Ace::abstract_of(ALLOW, OWNER, masks.owner));
        entries.push(Ace::abstract_of(ALLOW, OWNING_GROUP, masks.group));
        entries.push(Ace::abstract_of(ALLOW, EVERYONE, masks.everyone));
        Self { entries }
    }

    /// Whether files made in a directory with this list inherit from it.
    pub(crate) fn has_inheritable(&self) -> bool {
        self.entries
            .iter()
            .any(|ace| ace.flags & (FILE_INHERIT | DIRECTORY_INHERIT) != 0)
    }

    /// Whether the list says nothing that a mode could not.
    pub(crate) fn is_trivial(&self) -> bool {
        self.entries.iter().all(|ace| {
            ace.is_abstract()
                && ace.flags & (FILE_INHERIT | DIRECTORY_INHERIT | NO_PROPAGATE | INHERIT_ONLY) == 0
                && matches!(ace.kind, ALLOW | DENY)
        })
    }

    /// What a new file or directory gets from this list of its directory by `how`
    /// (`zfs_acl_inherit`): inheritable entries; then the mode is applied, unless entries for
    /// owner@, group@ or everyone@ are passed through or (`keep`, `aclmode=restricted`) anything
    /// was inherited. Returns the mode that the list amounts to.
    pub(crate) fn inherited(
        &self,
        how: AclInherit,
        keep: bool,
        mode: u32,
        kind: FileKind,
    ) -> (Self, u32) {
        let is_directory = kind == FileKind::Directory;
        let passes = matches!(how, AclInherit::Passthrough | AclInherit::PassthroughX);
        let mut entries = Vec::new();
        let mut gives_mode = false;
        for old in &self.entries {
            if how == AclInherit::Discard || how == AclInherit::NoAllow && old.kind == ALLOW {
                continue;
            }
            let usable = if is_directory {
                old.flags & DIRECTORY_INHERIT != 0
                    || old.flags & FILE_INHERIT != 0 && old.flags & NO_PROPAGATE == 0
            } else {
                old.flags & FILE_INHERIT != 0
            };
            if !usable {
                continue;
            }
            let mut ace = *old;
            if how == AclInherit::Restricted && ace.kind == ALLOW {
                ace.mask &= !(WRITE_ACL | WRITE_OWNER);
            }
            // Execution only where the mode asks for it.
            if how == AclInherit::PassthroughX && !is_directory && mode & 0o111 == 0 {
                ace.mask &= !EXECUTE;
            }
            gives_mode |= passes
                && ace.is_abstract()
                && (kind == FileKind::Regular
                    || is_directory && old.flags & DIRECTORY_INHERIT != 0);
            if !is_directory || old.flags & NO_PROPAGATE != 0 {
                ace.flags &= !ALL_INHERIT;
            } else if old.flags & (FILE_INHERIT | DIRECTORY_INHERIT) == FILE_INHERIT {
                ace.flags |= INHERIT_ONLY;
            } else {
                ace.flags &= !INHERIT_ONLY;
            }
            ace.flags |= INHERITED;
            entries.push(ace);
        }
        let inherited = Self { entries };
        let list = if gives_mode || keep && !inherited.entries.is_empty() {
            inherited
        } else {
            inherited.with_mode(mode, is_directory, false, false)
        };
        let mode = mode & !0o777 | list.mode();
        (list, mode)
    }

    /// Whether nobody is denied execution (`ZFS_NO_EXECS_DENIED`), which lets path walks skip the
    /// list.
    pub(crate) fn execution_is_free(&self) -> bool {
        let mut seen = 0u32;
        let mut allowed = 0u32;
        for ace in &self.entries {
            if ace.flags & INHERIT_ONLY != 0 || ace.mask & EXECUTE == 0 {
                continue;
            }
            let classes = match ace.flags & WHO {
                OWNER => 0o100,
                OWNING_GROUP => 0o010,
                EVERYONE => 0o111,
                _ if ace.kind == DENY => return false,
                _ => continue,
            };
            if ace.kind == ALLOW {
                allowed |= classes & !seen;
            }
            seen |= classes;
        }
        allowed == 0o111
    }

    /// The permissions of the mode that the list amounts to: the first entry that speaks about a
    /// class and permission decides.
    pub(crate) fn mode(&self) -> u32 {
        let (mut seen, mut mode) = (0, 0);
        for ace in self
            .entries
            .iter()
            .filter(|ace| ace.flags & INHERIT_ONLY == 0)
        {
            let classes: &[u32] = match ace.flags & WHO {
                OWNER => &[6],
                OWNING_GROUP => &[3],
                EVERYONE => &[6, 3, 0],
                _ => &[],
            };
            for (bit, permission) in [(4, READ_DATA), (2, WRITE_DATA), (1, EXECUTE)] {
                for class in classes {
                    let bit = bit << class;
                    if ace.mask & permission != 0 && seen & bit == 0 {
                        seen |= bit;
                        mode |= if ace.kind == ALLOW { bit } else { 0 };
                    }
                }
            }
        }
        mode
    }

    /// Version 1 (`ZPL_DACL_ACES`): little-endian.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.entries.len() * 8);
        for ace in &self.entries {
            out.extend_from_slice(&ace.kind.to_le_bytes());
            out.extend_from_slice(&ace.flags.to_le_bytes());
            out.extend_from_slice(&ace.mask.to_le_bytes());
            if !ace.is_abstract() {
                out.extend_from_slice(&ace.who.to_le_bytes());
            }
            // A log's entries come without the types, which a stored entry of this kind has.
            if OBJECT_TYPES.contains(&ace.kind) && !ace.is_abstract() {
                out.extend_from_slice(&ace.object.unwrap_or([0; 32]));
            }
        }
        out
    }

    /// Decodes version 1. `None` if the bytes are no such list.
    pub(crate) fn decode(mut bytes: &[u8], count_max: u64) -> Option<Self> {
        let mut entries = Vec::new();
        while (entries.len() as u64) < count_max && !bytes.is_empty() {
            let (head, rest) = bytes.split_first_chunk::<8>()?;
            bytes = rest;
            let [k0, k1, f0, f1, mask @ ..] = *head;
            let mut ace = Ace::abstract_of(
                u16::from_le_bytes([k0, k1]),
                u16::from_le_bytes([f0, f1]),
                u32::from_le_bytes(mask),
            );
            if !ace.is_abstract() {
                let (who, rest) = bytes.split_first_chunk::<8>()?;
                ace.who = u64::from_le_bytes(*who);
                bytes = rest;
                if OBJECT_TYPES.contains(&ace.kind) {
                    let (object, rest) = bytes.split_first_chunk::<32>()?;
                    ace.object = Some(*object);
                    bytes = rest;
                }
            }
            entries.push(ace);
        }
        Some(Self { entries })
    }

    /// Version 0 (`zfs_oldace_t`), for filesystems of ZPL version 1 and 2: little-endian. Entries
    /// with object types cannot be said and are left out.
    pub(crate) fn encode_v0(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.entries.len() * 12);
        for ace in self.entries.iter().filter(|ace| ace.object.is_none()) {
            let who = if ace.is_abstract() {
                u32::MAX
            } else {
                ace.who as u32
            };
            out.extend_from_slice(&who.to_le_bytes());
            out.extend_from_slice(&ace.mask.to_le_bytes());
            out.extend_from_slice(&ace.flags.to_le_bytes());
            out.extend_from_slice(&ace.kind.to_le_bytes());
        }
        out
    }

    /// Decodes version 0.
    pub(crate) fn decode_v0(bytes: &[u8], count_max: u64, endian: Endian) -> Option<Self> {
        let mut entries = Vec::new();
        for raw in bytes
            .chunks_exact(12)
            .take(usize::try_from(count_max).ok()?)
        {
            let [w0, w1, w2, w3, m0, m1, m2, m3, f0, f1, k0, k1] = *raw else {
                return None;
            };
            let mut ace = Ace::abstract_of(
                endian.u16([k0, k1]),
                endian.u16([f0, f1]),
                endian.u32([m0, m1, m2, m3]),
            );
            if !ace.is_abstract() {
                ace.who = u64::from(endian.u32([w0, w1, w2, w3]));
            }
            entries.push(ace);
        }
        Some(Self { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of mode 0644 as OpenZFS 2.3 wrote it into the pool "plain".
    #[test]
    fn trivial_list_of_0644_has_three_entries() {
        let acl = Acl::trivial(0o644, false);
        let masks: Vec<_> = acl
            .entries
            .iter()
            .map(|e| (e.kind, e.flags, e.mask))
            .collect();
        assert_eq!(
            masks,
            [
                (ALLOW, OWNER, 0x1e_019f & !0x1_0000),
                (ALLOW, OWNING_GROUP, 0x12_0089),
                (ALLOW, EVERYONE, 0x12_0089)
            ]
        );
        assert_eq!(acl.encode().len(), 24);
        assert!(acl.is_trivial());
    }

    #[test]
    fn every_mode_survives_its_list() {
        for mode in 0..0o1000u32 {
            for is_directory in [false, true] {
                let acl = Acl::trivial(mode, is_directory);
                assert_eq!(
                    Acl::decode(&acl.encode(), 99).as_ref(),
                    Some(&acl),
                    "{mode:o}"
                );
                let decoded = Acl::decode_v0(&acl.encode_v0(), 99, Endian::Little);
                assert_eq!(decoded.as_ref(), Some(&acl));
                assert_eq!(acl.mode(), mode, "{mode:o}");
                assert_eq!(acl.execution_is_free(), mode & 0o111 == 0o111, "{mode:o}");
                // Setting another mode leaves nothing of the first.
                assert_eq!(
                    acl.with_mode(0o640, is_directory, true, false),
                    Acl::trivial(0o640, is_directory)
                );
            }
        }
    }

    /// A log that a big-endian machine wrote has entries in its byte order.
    #[test]
    fn lists_of_both_byte_orders_are_the_same() {
        let acl = Acl::trivial(0o640, false);
        let mut stored = acl.encode_v0();
        for entry in stored.chunks_exact_mut(12) {
            entry[..4].reverse();
            entry[4..8].reverse();
            entry[8..10].reverse();
            entry[10..].reverse();
        }
        assert_eq!(Acl::decode_v0(&stored, 99, Endian::Big), Some(acl));
    }

    #[test]
    fn damaged_lists_are_refused_or_cut() {
        assert_eq!(Acl::decode(&[0; 7], 1), None);
        assert_eq!(
            Acl::decode(&[0; 8], 1),
            None,
            "an entry for a user needs its id"
        );
        assert_eq!(Acl::decode(&[], 5), Some(Acl::default()));
    }

    #[test]
    fn a_file_inherits_what_its_directory_says() {
        let user = Ace {
            kind: ALLOW,
            flags: FILE_INHERIT,
            mask: READ_DATA | WRITE_OWNER,
            who: 7,
            object: None,
        };
        let mut acl = Acl::trivial(0o755, true);
        acl.entries.insert(0, user);
        assert!(acl.has_inheritable() && !acl.is_trivial());
        let inherit = |acl: &Acl, how, mode, kind| acl.inherited(how, false, mode, kind);
        let (child, mode) = inherit(&acl, AclInherit::Restricted, 0o644, FileKind::Regular);
        assert_eq!(mode, 0o644);
        assert_eq!(
            child.entries[0],
            Ace {
                flags: INHERITED,
                mask: READ_DATA,
                ..user
            }
        );
        assert_eq!(child.entries.len(), 4);
        let (sub, _) = inherit(&acl, AclInherit::Restricted, 0o755, FileKind::Directory);
        assert_eq!(
            sub.entries[0].flags,
            FILE_INHERIT | INHERIT_ONLY | INHERITED
        );
        // Other values of aclinherit.
        let (none, _) = inherit(&acl, AclInherit::Discard, 0o644, FileKind::Regular);
        assert_eq!(none, Acl::trivial(0o644, false));
        let (none, _) = inherit(&acl, AclInherit::NoAllow, 0o644, FileKind::Regular);
        assert!(none.is_trivial());
        let (all, _) = inherit(&acl, AclInherit::Passthrough, 0o644, FileKind::Regular);
        assert_eq!(all.entries[0].mask, READ_DATA | WRITE_OWNER);
        // Passed through, entries for the classes of the mode say the mode.
        let everyone = Ace::abstract_of(ALLOW, EVERYONE | FILE_INHERIT, READ_DATA | EXECUTE);
        acl.entries.insert(0, everyone);
        let (list, mode) = inherit(&acl, AclInherit::Passthrough, 0o600, FileKind::Regular);
        assert_eq!((list.entries.len(), mode), (2, 0o555));
        let (list, mode) = inherit(&acl, AclInherit::PassthroughX, 0o600, FileKind::Regular);
        assert_eq!((list.entries[0].mask, mode), (READ_DATA, 0o444));
        let (kept, mode) = acl.inherited(AclInherit::Restricted, true, 0o600, FileKind::Regular);
        assert_eq!((kept.entries.len(), mode), (2, 0o555));
    }
}
