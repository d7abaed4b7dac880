//! Keys of the persistent error logs (`bookmark_to_name` and `errphys_to_name`,
//! module/zfs/spa_errlog.c).
//!
//! A log is a ZAP of type [`crate::ObjectType::ERROR_LOG`], named in the MOS's object directory.
//! Without feature `head_errlog` its keys are bookmarks, `objset:object:level:block`. With it the
//! keys are object numbers of live datasets and the values numbers of one more ZAP each, with keys
//! `object:level:block:birth`. All numbers are hexadecimal and without prefix, a level below zero
//! as 64 bits; values of the entries are empty strings.

use crate::{Bookmark, ErrorBookmark};

fn parts(key: &[u8]) -> Option<[u64; 4]> {
    let key = std::str::from_utf8(key).ok()?;
    let mut out = [0; 4];
    let mut words = key.split(':');
    for slot in &mut out {
        *slot = u64::from_str_radix(words.next()?, 16).ok()?;
    }
    words.next().is_none().then_some(out)
}

impl Bookmark {
    /// Its key in an error log.
    pub fn log_key(&self) -> String {
        let [objset, object, level, block] = self.to_words();
        format!("{objset:x}:{object:x}:{level:x}:{block:x}")
    }

    /// The bookmark that a key of an error log stands for; `None` for what is no such key.
    pub fn from_log_key(key: &[u8]) -> Option<Self> {
        let [objset, object, level, block] = parts(key)?;
        // The level is an int there.
        let level = level as u32 as i32;
        Some(Self::new(objset.into(), object.into(), level.into(), block))
    }
}

impl ErrorBookmark {
    /// Its key in a dataset's error log.
    pub fn log_key(&self) -> String {
        format!(
            "{:x}:{:x}:{:x}:{:x}",
            self.object.get(),
            self.level,
            self.block_id,
            self.birth.get()
        )
    }

    /// What a key of a dataset's error log stands for; `None` for what is no such key.
    pub fn from_log_key(key: &[u8]) -> Option<Self> {
        let [object, level, block_id, birth] = parts(key)?;
        Some(Self {
            object: object.into(),
            level: (level as u32 as i32).into(),
            block_id,
            birth: birth.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hexadecimal_and_come_back() {
        let bookmark = Bookmark::new(0x36.into(), 0x1f.into(), -1, 10);
        assert_eq!(bookmark.log_key(), "36:1f:ffffffffffffffff:a");
        assert_eq!(
            Bookmark::from_log_key(b"36:1f:ffffffffffffffff:a"),
            Some(bookmark)
        );
        let error = ErrorBookmark {
            object: 2.into(),
            level: 1,
            block_id: u64::MAX,
            birth: 0x1234.into(),
        };
        assert_eq!(error.log_key(), "2:1:ffffffffffffffff:1234");
        assert_eq!(
            ErrorBookmark::from_log_key(error.log_key().as_bytes()),
            Some(error)
        );
    }

    #[test]
    fn other_names_are_no_keys() {
        for key in [
            "",
            "1:2:3",
            "1:2:3:4:5",
            "1:2:3:x",
            "1::3:4",
            "\u{fc}:1:2:3",
        ] {
            assert_eq!(Bookmark::from_log_key(key.as_bytes()), None, "{key}");
        }
        assert_eq!(ErrorBookmark::from_log_key(b"\xff:1:2:3"), None);
    }
}
