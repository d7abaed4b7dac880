//! `zfs clone`, `promote`, `bookmark`, `redact`, `hold` and `release` (`zfs_do_clone` and so on,
//! cmd/zfs/zfs_main.c).

use api::{ZfsBookmark, ZfsClone, ZfsHold, ZfsPromote, ZfsRedact, ZfsRelease};
use clap::Args;

use crate::client::Client;
use crate::settings::assignments;
use crate::usage::Status;

/// Make a clone of a snapshot.
#[derive(Debug, Args)]
pub struct Clone {
    /// Make missing parents; succeed if it exists
    #[arg(short, action = clap::ArgAction::Count)]
    parents: u8,
    /// Do not mount
    #[arg(short = 'u')]
    no_mount: bool,
    /// PROPERTY=VALUE
    #[arg(short = 'o')]
    properties: Vec<String>,
    snapshot: String,
    clone: String,
}

impl Clone {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        client.call(&ZfsClone {
            origin: self.snapshot,
            name: self.clone,
            properties: assignments(&self.properties)?,
            parents: self.parents > 0,
            parents_unmounted: self.parents > 1,
            no_mount: self.no_mount,
            command: typed,
        })?;
        Ok(())
    }
}

/// Make a clone what its origin is a clone of.
#[derive(Debug, Args)]
pub struct Promote {
    clone: String,
}

impl Promote {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        client.call(&ZfsPromote {
            name: self.clone,
            command: typed,
        })?;
        Ok(())
    }
}

/// Make a bookmark of a snapshot or of a bookmark.
#[derive(Debug, Args)]
pub struct Bookmark {
    /// Of the snapshots of children too
    #[arg(short)]
    recursive: bool,
    /// FILESYSTEM@SNAPSHOT or FILESYSTEM#BOOKMARK
    source: String,
    /// FILESYSTEM#BOOKMARK
    bookmark: String,
}

impl Bookmark {
    /// Asks the daemon. One of both names may lack the dataset, which is that of the other then.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let (mut source, mut name) = (self.source, self.bookmark);
        if !source.contains(['@', '#']) {
            bail_usage!("invalid source name '{source}': must contain a '@' or '#'");
        }
        if !name.contains('#') {
            bail_usage!("invalid bookmark name '{name}': must contain a '#'");
        }
        let head = |name: &str| name.split(['@', '#']).next().unwrap_or("").to_owned();
        match (head(&source).as_str(), head(&name).as_str()) {
            ("", "") => {
                bail_usage!("either source or bookmark must be specified as full dataset paths")
            }
            ("", of) => source = format!("{of}{source}"),
            (of, "") => name = format!("{of}{name}"),
            _ => {}
        }
        let is_snapshot = source.split('#').next().is_some_and(|of| of.contains('@'));
        if self.recursive && !is_snapshot {
            bail_usage!("recursive bookmarks (-r) can only be created from a snapshot source");
        }
        let made = client.call(&ZfsBookmark {
            source,
            name,
            recursive: self.recursive,
            command: typed,
        });
        made.map(drop).map_err(crate::usage::of_absent)
    }
}

/// Make a redaction bookmark of a snapshot.
#[derive(Debug, Args)]
pub struct Redact {
    /// FILESYSTEM@SNAPSHOT or VOLUME@SNAPSHOT
    snapshot: String,
    /// The bookmark, without the dataset and the #
    bookmark: String,
    /// Later snapshots of it or of its clones: what none of them has any more is left out
    #[arg(required = true)]
    redaction_snapshots: Vec<String>,
}

impl Redact {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let made = client.call(&ZfsRedact {
            snapshot: self.snapshot,
            bookmark: self.bookmark,
            with: self.redaction_snapshots,
            command: typed,
        });
        made.map(drop).map_err(|error| {
            let text = format!("{error:#}");
            let known = REDACT_STATUSES
                .iter()
                .find(|(begin, _)| text.starts_with(begin));
            match known {
                Some((_, code)) => Status { code: *code, text }.into(),
                None => error,
            }
        })
    }
}

/// How `zfs redact` ends, by what it says first: with the error's number (`zfs_do_redact`,
/// cmd/zfs/zfs_main.c).
const REDACT_STATUSES: [(&str, u8); 8] = [
    ("cannot open ", 2),
    ("attempted to resume redaction", 3),
    ("too many redaction snapshots", 7),
    ("specified redaction bookmark", 17),
    ("redaction snapshot must be", 22),
    ("redaction bookmark name must not", 22),
    ("provided bookmark name cannot", 36),
    ("attempted to redact redacted", 114),
];

/// A tag and snapshots.
#[derive(Debug, Args)]
pub struct Holding {
    /// Snapshots of the same name of children too
    #[arg(short)]
    recursive: bool,
    tag: String,
    #[arg(required = true)]
    snapshots: Vec<String>,
}

impl Holding {
    /// Asks the daemon for a hold.
    pub fn hold(self, client: &Client, typed: String) -> anyhow::Result<()> {
        if self.tag.starts_with('.') {
            bail_usage!("tag may not start with '.'");
        }
        client.call(&ZfsHold {
            names: self.snapshots,
            tag: self.tag,
            recursive: self.recursive,
            command: typed,
        })?;
        Ok(())
    }

    /// Asks the daemon to take it off.
    pub fn release(self, client: &Client, typed: String) -> anyhow::Result<()> {
        client.call(&ZfsRelease {
            names: self.snapshots,
            tag: self.tag,
            recursive: self.recursive,
            command: typed,
        })?;
        Ok(())
    }
}
