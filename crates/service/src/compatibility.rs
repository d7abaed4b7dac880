//! The pool property `compatibility`: which features a pool may have so that other systems can
//! still use it.
//!
//! Its value names files, separated by commas, in one of two directories; a feature is allowed that
//! all of them list. The sets of OpenZFS 2.3 and 2.4 are known without files. Without it, or with
//! `off`, everything is allowed; with `legacy`, nothing.
//!
//! Source: lib/libzfs/libzfs_pool.c `zpool_load_compat`, zpool-features(7).

use std::collections::BTreeSet;
use std::path::Path;

use api::{Failure, FailureKind};

/// Where the files are; the first one with such a file counts.
pub const DIRECTORIES: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// Largest file that is read (`ZPOOL_COMPAT_MAXSIZE`), in bytes.
const FILE_BYTES_MAX: u64 = 16 << 10;

/// What a value of the property allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compatibility {
    /// Every feature.
    All,
    /// These features, by name.
    Only(BTreeSet<String>),
}

impl Compatibility {
    /// Reads the files of a value.
    pub fn load(value: &str) -> Result<Self, Failure> {
        Self::load_from(value, &DIRECTORIES)
    }

    fn load_from(value: &str, directories: &[&str]) -> Result<Self, Failure> {
        match value {
            "" | "-" | "off" => return Ok(Self::All),
            "legacy" => return Ok(Self::Only(BTreeSet::new())),
            _ => {}
        }
        let mut allowed: Option<BTreeSet<String>> = None;
        for name in value.split(',') {
            let features = read(name, directories)?;
            allowed = Some(match allowed {
                None => features,
                Some(before) => before.intersection(&features).cloned().collect(),
            });
        }
        Ok(Self::Only(allowed.unwrap_or_default()))
    }

    /// Whether a feature is allowed.
    pub fn allows(&self, feature: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(allowed) => allowed.contains(feature),
        }
    }

    /// The features that a new pool gets.
    pub fn choose(self) -> impl Iterator<Item = &'static str> {
        let supported = pool::supported_features().into_iter();
        supported.filter_map(move |feature| self.allows(feature.name).then_some(feature.name))
    }

    /// Whether a pool that lacks this feature is told to be upgraded. Where the property says
    /// nothing, that is so for the features that new pools get.
    pub fn asks_for(&self, feature: &str) -> bool {
        match self {
            Self::All => pool::is_default_feature(feature),
            Self::Only(allowed) => {
                allowed.contains(feature) && !pool::is_left_out_of_upgrades(feature)
            }
        }
    }
}

/// What the files of this name hold where OpenZFS is not installed, or an older one is.
fn built_in(name: &str) -> Option<BTreeSet<String>> {
    let version = name
        .strip_suffix("-linux")
        .or(name.strip_suffix("-freebsd"));
    let is_wanted = match version.unwrap_or(name) {
        "openzfs-2.3" => pool::is_default_feature,
        "openzfs-2.4" => |_: &str| true,
        _ => return None,
    };
    let names = pool::supported_features().into_iter();
    let wanted = names
        .map(|feature| feature.name)
        .filter(|name| is_wanted(name));
    Some(wanted.map(str::to_owned).collect())
}

fn read(name: &str, directories: &[&str]) -> Result<BTreeSet<String>, Failure> {
    let refuse = |why: String| {
        let message =
            format!("compatibility: {why}; see zpool-features(7), or use 'off' or 'legacy'");
        Failure::new(FailureKind::Invalid, message)
    };
    if name.is_empty() || name.contains("..") {
        return Err(refuse(format!("'{name}' is no name of a file")));
    }
    let mut found = directories
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .filter(|path| path.is_file());
    let Some(path) = found.next() else {
        if let Some(features) = built_in(name) {
            return Ok(features);
        }
        return Err(refuse(format!(
            "there is no file '{name}' in {}",
            directories.join(" or ")
        )));
    };
    let is_small = std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() <= FILE_BYTES_MAX);
    if !is_small {
        return Err(refuse(format!("{} is too long", path.display())));
    }
    let text = std::fs::read_to_string(&path)
        .map_err(|error| refuse(format!("{} cannot be read: {error}", path.display())))?;
    let words = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or(""))
        .flat_map(|line| line.split(|c: char| c.is_whitespace() || c == ','))
        .filter(|word| !word.is_empty());
    Ok(words.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_2_3_and_2_4_are_there_without_their_files() {
        let load = |value: &str| Compatibility::load_from(value, &["/nonexistent"]);
        let count = |value: &str| load(value).unwrap().choose().count();
        assert_eq!(count("openzfs-2.3"), 44);
        assert_eq!(count("openzfs-2.4-linux"), 47);
        assert_eq!(count("openzfs-2.4-freebsd,openzfs-2.3-linux"), 44);
        assert!(load("openzfs-2.5").is_err());
        let newest = load("openzfs-2.4").unwrap();
        assert!(newest.asks_for("physical_rewrite"));
        assert!(
            !newest.asks_for("dynamic_gang_header"),
            "upgrades leave it out"
        );
        assert!(!Compatibility::All.asks_for("physical_rewrite"));
        assert!(Compatibility::All.asks_for("longname"));
    }

    #[test]
    fn files_are_intersected_and_comments_left_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("a"),
            "# features\nlz4_compress, bookmarks # two\nembedded_data\n",
        )
        .unwrap();
        std::fs::write(dir.path().join("b"), "bookmarks\nlarge_blocks\n").unwrap();
        let directory = dir.path().to_str().unwrap();
        let load = |value: &str| Compatibility::load_from(value, &["/nonexistent", directory]);
        let both = load("a,b").unwrap();
        assert!(both.allows("bookmarks") && !both.allows("lz4_compress"));
        assert_eq!(both.choose().collect::<Vec<_>>(), ["bookmarks"]);
        assert!(load("a").unwrap().allows("lz4_compress"));
        assert_eq!(load("off").unwrap(), Compatibility::All);
        assert!(!load("legacy").unwrap().allows("bookmarks"));
        for bad in ["c", "a,c", "../a", "a,"] {
            assert!(load(bad).is_err(), "{bad}");
        }
    }
}
