//! Names of entries: what is allowed, and when two are the same.
//!
//! A filesystem made with `normalization` or `casesensitivity` compares names after bringing them
//! into a normal form (Unicode normalisation, upper case). The entry keeps the name as it was
//! given; the directory's ZAP hashes the normal form (`zap_normalize`, module/zfs/zap_micro.c),
//! which [`crate::folding`] makes.

use crate::error::{FsError, Result};
use crate::folding::{TO_UPPER, prepared};

/// Longest name in bytes (`ZAP_MAXNAMELEN` with its zero).
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Longest name in bytes with `longname=on` (`ZAP_MAXNAMELEN_NEW`).
pub(crate) const LONG_NAME_BYTES_MAX: usize = 1023;

/// Property `casesensitivity` (`zfs_case_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    Sensitive,
    Insensitive,
    /// Sensitive, except where a caller asks otherwise (SMB).
    Mixed,
}

impl Case {
    pub(crate) fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Insensitive,
            2 => Self::Mixed,
            _ => Self::Sensitive,
        }
    }
}

/// How a filesystem treats names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameRules {
    /// `zap_normflags` of its directories.
    pub(crate) norm_flags: u64,
    pub(crate) case: Case,
    pub(crate) utf8_only: bool,
}

impl NameRules {
    /// From the master node's entries `normalization` (already a set of flags), `casesensitivity`,
    /// `utf8only`.
    pub(crate) fn new(normalization: u64, case: u64, utf8_only: bool) -> Self {
        let case = Case::from_number(case);
        let fold = if case == Case::Sensitive { 0 } else { TO_UPPER };
        Self {
            norm_flags: normalization | fold,
            case,
            utf8_only,
        }
    }

    /// Whether names need the normal form at all.
    pub(crate) fn is_plain(&self) -> bool {
        self.norm_flags == 0
    }

    /// The form by which names are hashed.
    pub(crate) fn hashed_form(&self, name: &[u8]) -> Vec<u8> {
        prepared(name, self.norm_flags)
    }

    /// The form by which a lookup compares: in a `mixed` filesystem case counts
    /// (`MT_MATCH_CASE`).
    pub(crate) fn compared_form(&self, name: &[u8]) -> Vec<u8> {
        let flags = if self.case == Case::Mixed {
            self.norm_flags & !TO_UPPER
        } else {
            self.norm_flags
        };
        prepared(name, flags)
    }

    /// Whether a new entry may have this name.
    pub(crate) fn check(&self, ino: u64, name: &[u8], long_names: bool) -> Result<()> {
        let limit_bytes = if long_names {
            LONG_NAME_BYTES_MAX
        } else {
            NAME_BYTES_MAX
        };
        if name.len() > limit_bytes {
            return Err(FsError::NameTooLong {
                length_bytes: name.len(),
                limit_bytes,
            });
        }
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(FsError::Invalid {
                what: "a name is not empty and has no '/' or NUL",
            });
        }
        if name == b"." || name == b".." {
            return Err(FsError::Exists { ino });
        }
        if self.utf8_only && std::str::from_utf8(name).is_err() {
            return Err(FsError::BadName);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be() {
        let rules = NameRules::new(0, 0, true);
        assert!(rules.check(1, b"", false).is_err());
        assert!(rules.check(1, b"a/b", false).is_err());
        assert!(rules.check(1, b"a\0b", false).is_err());
        assert!(matches!(
            rules.check(1, b"..", false),
            Err(FsError::Exists { .. })
        ));
        assert!(matches!(
            rules.check(1, b"\xff", false),
            Err(FsError::BadName)
        ));
        assert!(rules.check(1, &[b'x'; 255], false).is_ok());
        assert!(rules.check(1, &[b'x'; 256], false).is_err());
        assert!(rules.check(1, &[b'x'; 1023], true).is_ok());
        assert!(rules.check(1, &[b'x'; 1024], true).is_err());
        assert!(NameRules::new(0, 0, false).check(1, b"\xff", false).is_ok());
    }

    #[test]
    fn the_same_name_in_other_forms() {
        let composed = "\u{fc}mlaut".as_bytes();
        let decomposed = "u\u{308}mlaut".as_bytes();
        for form in [0x10, 0x50, 0x20, 0x60] {
            let rules = NameRules::new(form, 0, true);
            assert_eq!(
                rules.compared_form(composed),
                rules.compared_form(decomposed)
            );
            let compatible = form & 0x20 != 0;
            assert_eq!(
                rules.compared_form("\u{fb01}le".as_bytes()) == b"file",
                compatible,
                "{form:#x}"
            );
        }
        let insensitive = NameRules::new(0, 1, false);
        assert_eq!(insensitive.compared_form("Äx".as_bytes()), "ÄX".as_bytes());
        let mixed = NameRules::new(0, 2, false);
        assert_eq!(mixed.compared_form(b"Ab"), b"Ab");
        assert_eq!(mixed.hashed_form(b"Ab"), b"AB");
        assert!(!mixed.is_plain());
    }
}
