//! Pool properties: the table, how values are written as text, and which values are allowed.
//!
//! Properties that a person set live in the MOS object `pool_props` (a ZAP: numbers as one
//! 64-bit integer, text with its closing zero byte), `comment` and `compatibility` in the
//! configuration itself. Source: module/zcommon/zpool_prop.c, spa.c `spa_prop_validate`,
//! `spa_sync_props`, `spa_prop_get`.

use std::collections::BTreeMap;

use dataset::OLDEST_WRITTEN;
use format::{ObjectId, Uberblock};
use parking_lot::{Mutex, MutexGuard};

use crate::PoolError;
use crate::vdevprops::VdevProps;

/// The properties of an open pool and of its vdevs, as they are stored. Locked for a few
/// instructions at a time, never across an await.
#[derive(Default)]
pub struct Props(Mutex<PropValues>);

/// What is behind the lock of [`Props`].
#[derive(Default)]
pub struct PropValues {
    /// MOS object of the pool's; zero without.
    pub object: ObjectId,
    /// The pool's.
    pub stored: BTreeMap<String, Stored>,
    /// Those of vdevs, by the ZAP that has them.
    pub vdevs: BTreeMap<ObjectId, VdevProps>,
    /// Property `cachefile`: a path or `none`; for the daemon, not stored.
    pub cachefile: Option<String>,
}

impl Props {
    /// Of a pool with these values.
    pub fn new(values: PropValues) -> Self {
        Props(Mutex::new(values))
    }

    /// The values, to read or to change them.
    pub fn lock(&self) -> MutexGuard<'_, PropValues> {
        self.0.lock()
    }

    /// One of the pool's, if it was set.
    pub fn get(&self, name: &str) -> Option<Stored> {
        self.lock().stored.get(name).cloned()
    }

    /// Text was stored in a vdev's ZAP: `zpool get all` shows it, as OpenZFS does, even the pool's
    /// own.
    pub fn note_vdev_text(&self, zap: ObjectId, name: &str, text: &str) {
        let mut values = self.lock();
        let stored = values.vdevs.entry(zap).or_default();
        stored.insert(name.to_owned(), Stored::Text(text.to_owned()));
    }

    /// A vdev's ZAP is gone.
    pub fn forget_vdev(&self, zap: ObjectId) {
        self.lock().vdevs.remove(&zap);
    }
}

/// Where a property's value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PropertySource {
    /// Not settable: `-`.
    None,
    /// Not set.
    Default,
    /// Set on the pool.
    Local,
}

impl PropertySource {
    /// The word that `zpool get` prints.
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::Default => "default",
            Self::Local => "local",
        }
    }
}

/// A pool property with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolProperty {
    /// Name.
    pub name: String,
    /// Value as text; numbers exact (as with `zpool get -p`).
    pub value: String,
    /// The number, where the value is one.
    pub number: Option<u64>,
    /// Source.
    pub source: PropertySource,
}

/// What kind of value a property has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number with its default.
    Number(u64),
    /// One of a few words, stored as its index, with the default's index.
    Word(&'static [&'static str], u64),
    /// Text.
    Text,
}

/// Who may change a property, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Computed.
    ReadOnly,
    /// Kept in the `pool_props` object.
    Stored,
    /// Kept in the pool's configuration.
    Config,
    /// Holds while the pool is imported.
    Session,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Name.
    pub name: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// Who may change it.
    pub access: Access,
}

/// Words of a switch, in the order of their values on disk.
pub const OFF_ON: &[&str] = &["off", "on"];
/// `zio_failure_mode` values, in order.
pub const FAILMODES: &[&str] = &["wait", "continue", "panic"];

const fn row(name: &'static str, kind: Kind, access: Access) -> Row {
    Row { name, kind, access }
}

/// Longest text that goes into the configuration, in bytes (`MAXPATHLEN`), closing zero included.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Longest comment, in bytes (`ZPROP_MAX_COMMENT`).
const COMMENT_BYTES_MAX: usize = 32;
/// Longest name of a user property, in bytes (`ZAP_MAXNAMELEN`), closing zero included.
pub const NAME_BYTES_MAX: usize = 256;
/// Longest value of a user property, in bytes (`ZAP_MAXVALUELEN`).
pub const VALUE_BYTES_MAX: usize = 8192;

/// All native properties, in the order of `zpool get all` (`zpool_prop_t`, include/sys/fs/zfs.h).
pub const TABLE: &[Row] = &[
    row("size", Kind::Number(0), Access::ReadOnly),
    row("capacity", Kind::Number(0), Access::ReadOnly),
    row("altroot", Kind::Text, Access::Session),
    row("health", Kind::Text, Access::ReadOnly),
    row("guid", Kind::Number(0), Access::ReadOnly),
    row("version", Kind::Number(5000), Access::ReadOnly),
    row("bootfs", Kind::Text, Access::Stored),
    row("delegation", Kind::Word(OFF_ON, 1), Access::Stored),
    row("autoreplace", Kind::Word(OFF_ON, 0), Access::Stored),
    row("cachefile", Kind::Text, Access::Session),
    row("failmode", Kind::Word(FAILMODES, 0), Access::Stored),
    row("listsnapshots", Kind::Word(OFF_ON, 0), Access::Stored),
    row("autoexpand", Kind::Word(OFF_ON, 0), Access::Stored),
    row("dedupratio", Kind::Text, Access::ReadOnly),
    row("free", Kind::Number(0), Access::ReadOnly),
    row("allocated", Kind::Number(0), Access::ReadOnly),
    row("readonly", Kind::Word(OFF_ON, 0), Access::Session),
    row("ashift", Kind::Number(0), Access::Stored),
    row("comment", Kind::Text, Access::Config),
    row("expandsize", Kind::Number(0), Access::ReadOnly),
    row("freeing", Kind::Number(0), Access::ReadOnly),
    row("fragmentation", Kind::Number(0), Access::ReadOnly),
    row("leaked", Kind::Number(0), Access::ReadOnly),
    row("multihost", Kind::Word(OFF_ON, 0), Access::Stored),
    row("checkpoint", Kind::Number(0), Access::ReadOnly),
    row("load_guid", Kind::Number(0), Access::ReadOnly),
    row("autotrim", Kind::Word(OFF_ON, 0), Access::Stored),
    row("compatibility", Kind::Text, Access::Config),
    row("bcloneused", Kind::Number(0), Access::ReadOnly),
    row("bclonesaved", Kind::Number(0), Access::ReadOnly),
    row("bcloneratio", Kind::Text, Access::ReadOnly),
    row("dedup_table_size", Kind::Number(0), Access::ReadOnly),
    row("dedup_table_quota", Kind::Number(u64::MAX), Access::Stored),
    row("last_scrubbed_txg", Kind::Number(0), Access::ReadOnly),
];

/// The row of a native property; `listsnaps` is another name of `listsnapshots`.
pub fn find(name: &str) -> Option<&'static Row> {
    let name = if name == "listsnaps" {
        "listsnapshots"
    } else {
        name
    };
    TABLE.iter().find(|row| row.name == name)
}

/// Whether this is a user property's name: it has a colon and only allowed characters.
pub fn is_user(name: &str) -> bool {
    name.contains(':')
        && !name.starts_with('-')
        && name.chars().all(|c| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.' | ':')
        })
}

/// A value as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// A number or a word's index.
    Number(u64),
    /// Text; empty removes it.
    Text(String),
}

/// What setting a property means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Write it into the `pool_props` object.
    Stored(String, Stored),
    /// Change the configuration's comment or compatibility.
    Config(&'static str, String),
    /// Change what holds while the pool is imported.
    Session(&'static str, String),
    /// Enable a feature by its short name.
    Feature(String),
    /// Raise the version of the pool's format; 5000 has feature flags.
    Version(u64),
}

/// Checks `name=value` and says what setting it means.
pub fn parse(name: &str, value: &str) -> Result<Change, PoolError> {
    let bad = |why: &str| PoolError::BadProperty {
        property: name.to_owned(),
        value: value.to_owned(),
        why: why.to_owned(),
    };
    if name.contains('\0') || value.contains('\0') {
        return Err(bad(
            "it has a zero byte, where text on disk ends; leave that out",
        ));
    }
    if let Some(feature) = name.strip_prefix("feature@") {
        return match value {
            "enabled" => Ok(Change::Feature(feature.to_owned())),
            "disabled" => Err(bad(&format!(
                "property '{name}' can only be set to 'disabled' at creation time"
            ))),
            _ => Err(bad(&format!(
                "property '{name}' can only be set to 'enabled' or 'disabled'"
            ))),
        };
    }
    if is_user(name) {
        if name.len() >= NAME_BYTES_MAX {
            return Err(bad("the property's name is too long"));
        }
        if value.len() >= VALUE_BYTES_MAX {
            return Err(bad("the value is too long"));
        }
        return Ok(Change::Stored(
            name.to_owned(),
            Stored::Text(value.to_owned()),
        ));
    }
    let row = find(name).ok_or_else(|| bad(&format!("invalid property '{name}'")))?;
    let text = match row.kind {
        Kind::Number(_) => {
            let number = match (row.name, value) {
                ("dedup_table_quota", "none") => 0,
                ("dedup_table_quota", "auto") => u64::MAX,
                _ => {
                    parse_size(value).ok_or_else(|| bad(&format!("bad numeric value '{value}'")))?
                }
            };
            if row.name == "ashift" && number != 0 && !(9..=16).contains(&number) {
                return Err(bad(&format!(
                    "property 'ashift' number {number} is invalid, only values between 9 and 16 \
                     are allowed.; 0 stands for the devices' own size"
                )));
            }
            Stored::Number(number)
        }
        Kind::Word(words, _) => {
            let index = words
                .iter()
                .position(|word| *word == value)
                .ok_or_else(|| {
                    // OpenZFS has "on" first.
                    let words = match words {
                        ["off", "on"] => "on | off".to_owned(),
                        words => words.join(" | "),
                    };
                    bad(&format!("'{name}' must be one of '{words}'"))
                })?;
            Stored::Number(index as u64)
        }
        Kind::Text => Stored::Text(value.to_owned()),
    };
    match (row.access, text) {
        (_, Stored::Number(version)) if row.name == "version" => {
            let known = OLDEST_WRITTEN..=Uberblock::VERSION_BEFORE_FEATURES;
            match known.contains(&version) || version == Uberblock::VERSION_FEATURES {
                true => Ok(Change::Version(version)),
                false => Err(bad(&format!(
                    "property 'version' number {version} is invalid.; this release writes pools of \
                     versions {} to {}, and of version {}, which has feature flags",
                    known.start(),
                    known.end(),
                    Uberblock::VERSION_FEATURES
                ))),
            }
        }
        (Access::ReadOnly, _) => Err(bad(&format!("'{name}' is readonly"))),
        (Access::Stored, stored) => Ok(Change::Stored(row.name.to_owned(), stored)),
        (Access::Config, Stored::Text(text)) => {
            if row.name == "comment" {
                if text.len() > COMMENT_BYTES_MAX {
                    return Err(bad("comment must not exceed 32 characters"));
                }
                if !text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
                    return Err(bad(
                        "comment may only have printable characters; those of ASCII",
                    ));
                }
            }
            if text.len() >= TEXT_BYTES_MAX {
                return Err(bad(
                    "it has at most 4095 bytes; name fewer or shorter files",
                ));
            }
            Ok(Change::Config(row.name, text))
        }
        (Access::Session, Stored::Text(text)) => {
            if row.name == "cachefile" && !text.is_empty() && text != "none" {
                check_cachefile(&text).map_err(|why| bad(&why))?;
            }
            if row.name == "altroot" && !text.starts_with('/') {
                return Err(bad(&format!(
                    "bad alternate root '{text}'; it must be an absolute path"
                )));
            }
            Ok(Change::Session(row.name, text))
        }
        (Access::Session, Stored::Number(number)) => {
            Ok(Change::Session(row.name, number.to_string()))
        }
        (Access::Config, Stored::Number(_)) => Err(bad("it must be text")),
    }
}

/// Whether a path can be that of a cache file (`zpool_valid_proplist`, lib/libzfs/libzfs_pool.c);
/// otherwise why not. The file that OpenZFS takes where none is named cannot be: at its next start
/// its module would import the pools that it names, which the server has.
fn check_cachefile(path: &str) -> Result<(), String> {
    const OPENZFS: [&str; 2] = ["/etc/zfs/zpool.cache", "/boot/zfs/zpool.cache"];
    if !path.starts_with('/') {
        return Err("property 'cachefile' must be empty, an absolute path, or 'none'".to_owned());
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    if matches!(last, "" | "." | "..") {
        return Err(format!("'{path}' is not a valid file"));
    }
    if OPENZFS.contains(&path) {
        return Err(format!(
            "'{path}' is OpenZFS's own, which would import the pool at its next start; name \
             another file, or nothing: the server keeps its own list"
        ));
    }
    Ok(())
}

/// The refusal of a property that names what a pool must have first (`zpool_valid_proplist`,
/// lib/libzfs/libzfs_pool.c).
pub fn only_later(name: &str, value: &str) -> PoolError {
    PoolError::BadProperty {
        property: name.to_owned(),
        value: value.to_owned(),
        why: format!(
            "property '{name}' cannot be set at creation or import time; use 'zpool set' afterwards"
        ),
    }
}

/// The refusal of a property that cannot be given to a pool that is made.
pub fn only_at_import(name: &str, value: &str) -> PoolError {
    PoolError::BadProperty {
        property: name.to_owned(),
        value: value.to_owned(),
        why: format!("property '{name}' can only be set at import time"),
    }
}

/// Whether a host of this id may set it: who has none cannot be told from others.
pub fn check_host(change: &Change, hostid: u64) -> Result<(), PoolError> {
    match change {
        Change::Stored(name, Stored::Number(1)) if name == "multihost" && hostid == 0 => {
            Err(PoolError::BadProperty {
                property: name.clone(),
                value: "on".into(),
                why: "requires a non-zero system hostid (see zgenhostid(8))".into(),
            })
        }
        _ => Ok(()),
    }
}

/// A number with an optional suffix K, M, G, T, P or E (powers of 1024), as `zfs_nicestrtonum`
/// reads it.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let suffix = text[digits..].to_ascii_uppercase();
    let power = match suffix.trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        "E" => 6,
        _ => return None,
    };
    1u64.checked_shl(10 * power)
        .and_then(|unit| number.checked_mul(unit))
}

/// A stored value as text.
pub fn render(row: &Row, number: u64) -> String {
    match row.kind {
        Kind::Word(words, _) => words
            .get(usize::try_from(number).unwrap_or(usize::MAX))
            .map_or_else(|| number.to_string(), |word| (*word).to_owned()),
        _ if row.name == "dedup_table_quota" && number == u64::MAX => "auto".to_owned(),
        _ if row.name == "dedup_table_quota" && number == 0 => "none".to_owned(),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_openzfs_takes_are_taken() {
        assert_eq!(
            parse("failmode", "continue").unwrap(),
            Change::Stored("failmode".into(), Stored::Number(1))
        );
        assert_eq!(
            parse("listsnaps", "on").unwrap(),
            Change::Stored("listsnapshots".into(), Stored::Number(1))
        );
        assert_eq!(
            parse("ashift", "12").unwrap(),
            Change::Stored("ashift".into(), Stored::Number(12))
        );
        assert_eq!(
            parse("comment", "a b").unwrap(),
            Change::Config("comment", "a b".into())
        );
        assert_eq!(
            parse("feature@lz4_compress", "enabled").unwrap(),
            Change::Feature("lz4_compress".into())
        );
        assert_eq!(
            parse("org.example:colour", "blue").unwrap(),
            Change::Stored("org.example:colour".into(), Stored::Text("blue".into()))
        );
        assert_eq!(
            parse("bootfs", "tank/root").unwrap(),
            Change::Stored("bootfs".into(), Stored::Text("tank/root".into()))
        );
        assert_eq!(
            parse("dedup_table_quota", "none").unwrap(),
            Change::Stored("dedup_table_quota".into(), Stored::Number(0))
        );
    }

    #[test]
    fn values_that_openzfs_refuses_are_refused() {
        for (name, value) in [
            ("size", "5"),
            ("ashift", "8"),
            ("ashift", "17"),
            ("failmode", "shrug"),
            ("nosuch", "1"),
            ("comment", "the comment of this pool is far too long"),
            ("comment", "tab\there"),
            ("feature@lz4_compress", "disabled"),
            ("feature@lz4_compress", "active"),
            ("cachefile", "elsewhere"),
            ("cachefile", "/elsewhere/"),
            ("cachefile", "/elsewhere/.."),
            ("cachefile", "/etc/zfs/zpool.cache"),
            ("altroot", "relative/path"),
            ("version", "10"),
            ("version", "29"),
            ("autotrim", "2"),
        ] {
            assert!(parse(name, value).is_err(), "{name}={value}");
        }
    }

    #[test]
    fn versions_that_are_written_can_be_asked_for() {
        for version in [11, 28, 5000] {
            let change = parse("version", &version.to_string()).expect("a version");
            assert_eq!(change, Change::Version(version));
        }
    }

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_size("17"), Some(17));
        assert_eq!(parse_size("4K"), Some(4096));
        assert_eq!(parse_size("2GiB"), Some(2 << 30));
        assert_eq!(parse_size("17E"), None);
        assert_eq!(parse_size("x"), None);
    }
}
