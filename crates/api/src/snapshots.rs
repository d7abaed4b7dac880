//! Messages of the `zfs` command about clones, bookmarks, holds and differences,
//! and `zfs wait`.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::quoted;
use crate::permissions::{head, parent};
use crate::{Access, Call, Empty, Failure, JobKind, Needed, Role, Settings, narrow};

/// `zfs clone`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsClone {
    /// `pool/fs@snapshot`.
    pub origin: String,
    /// Full name of the clone.
    pub name: String,
    /// Properties (`-o`).
    #[serde(default)]
    pub properties: Settings,
    /// Create missing parents, and succeed if it exists (`-p`).
    #[serde(default)]
    pub parents: bool,
    /// Parents that are made are never mounted (`-pp`).
    #[serde(default)]
    pub parents_unmounted: bool,
    /// Do not mount (`-u`).
    #[serde(default)]
    pub no_mount: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsClone {
    const PATH: &'static str = "/v1/zfs/clone";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot create '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let above = parent(&self.name);
        let mut needs = vec![
            Needed::on(&self.origin, "clone"),
            Needed::on(above, "create"),
            Needed::on(above, "mount"),
        ];
        let names = self.properties.keys();
        needs.extend(names.map(|property| Needed::to_set(&self.name, property)));
        Some(needs)
    }

    fn restrict(&mut self) {
        self.parents = false;
        self.no_mount = true;
    }

    fn narrow_mounts(&mut self, root: Option<&Path>) -> Result<(), String> {
        narrow::check_mountpoint(&self.properties, root)
    }
}

/// `zfs promote`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsPromote {
    /// The clone.
    pub name: String,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsPromote {
    const PATH: &'static str = "/v1/zfs/promote";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot promote '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let of_origin = Needed {
            of_origin: true,
            ..Needed::on(&self.name, "promote")
        };
        let own = ["promote", "mount"].map(|permission| Needed::on(&self.name, permission));
        Some(own.into_iter().chain([of_origin]).collect())
    }
}

/// `zfs bookmark`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsBookmark {
    /// `pool/fs@snapshot` or `pool/fs#bookmark`.
    pub source: String,
    /// `pool/fs#bookmark`.
    pub name: String,
    /// The snapshots of the same name of children too, each in its own dataset (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsBookmark {
    const PATH: &'static str = "/v1/zfs/bookmark";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot create bookmark '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        // With `-r` they are made where the snapshots are.
        let at = |name| Needed::on(head(name), "bookmark").and_below(self.recursive);
        Some(vec![at(&self.name), at(&self.source)])
    }
}

/// `zfs redact`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsRedact {
    /// `pool/fs@snapshot`.
    pub snapshot: String,
    /// The bookmark's name, without the dataset and the `#`.
    pub bookmark: String,
    /// Full names of later snapshots of it or of clones: what none of them has is left out.
    pub with: Vec<String>,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsRedact {
    const PATH: &'static str = "/v1/zfs/redact";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot redact '{}'", call.snapshot));
    const ROLE: Option<Role> = Some(Role::Operator);
    const JOB: Option<JobKind> = Some(JobKind::Redact);
    type Reply = Empty;

    fn pool(&self) -> Option<String> {
        self.snapshot.split(['/', '@']).next().map(str::to_owned)
    }
}

/// `zfs hold`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsHold {
    /// Snapshots.
    pub names: Vec<String>,
    /// Name of the hold.
    pub tag: String,
    /// The snapshots of the same name of children too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsHold {
    const PATH: &'static str = "/v1/zfs/hold";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot hold snapshot {}", quoted(&call.names)));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let needs = self.names.iter();
        let needs = needs.map(|name| Needed::on(head(name), "hold").and_below(self.recursive));
        Some(needs.collect())
    }
}

/// `zfs release`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsRelease {
    /// Snapshots.
    pub names: Vec<String>,
    /// Name of the hold.
    pub tag: String,
    /// The snapshots of the same name of children too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsRelease {
    const PATH: &'static str = "/v1/zfs/release";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot release hold from snapshot {}", quoted(&call.names)));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let needs = self.names.iter();
        let needs = needs.map(|name| Needed::on(head(name), "release").and_below(self.recursive));
        Some(needs.collect())
    }
}

/// `zfs wait`: until a filesystem has freed what was removed from it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsWait {
    /// The filesystem.
    pub name: String,
}

impl Call for ZfsWait {
    const PATH: &'static str = "/v1/zfs/wait";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = Empty;
}

/// `zfs diff`: what changed between a snapshot and a later one, or what is there now.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsDiff {
    /// Full name of the earlier snapshot.
    pub from: String,
    /// Full name of the later snapshot, of the same filesystem or of a clone; or of the filesystem
    /// or clone as it is now.
    pub to: String,
}

/// Differences, in no particular order of their names.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsDiffReply {
    /// What changed.
    pub changes: Vec<DiffReport>,
    /// What could not be found out, and why.
    pub failures: Vec<Failure>,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiffKind {
    /// It was made.
    Added,
    /// It was removed.
    Removed,
    /// It was changed, or has got or lost links.
    Modified,
    /// It has another name.
    Renamed,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiffFile {
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A regular file.
    Regular,
    /// A socket.
    Socket,
    /// A symbolic link.
    Symlink,
}

/// A file that changed. In paths, bytes other than the printable ones of ASCII, spaces and
/// backslashes stand as a backslash and four octal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffReport {
    /// What became of it.
    pub change: DiffKind,
    /// What it is.
    pub file: DiffFile,
    /// Its path with the filesystem's mountpoint before it; the earlier one where it was renamed.
    pub path: String,
    /// Its new path where it was renamed.
    pub new_path: Option<String>,
    /// How many more links it has, if not as many as before.
    pub links: Option<i64>,
    /// When its attributes changed last: seconds since the epoch, and nanoseconds.
    pub changed: (i64, u32),
}

impl Call for ZfsDiff {
    const PATH: &'static str = "/v1/zfs/diff";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot tell what changed since '{}'", call.from));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZfsDiffReply;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        // What is gone since then is told as well.
        Some(vec![
            Needed::on(head(&self.from), "diff"),
            Needed::on(head(&self.to), "diff"),
        ])
    }

    fn changes(&self) -> bool {
        false
    }
}
