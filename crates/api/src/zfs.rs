//! Messages of the `zfs` command.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::quoted;
use crate::keys::NewKey;
use crate::permissions::{head, parent};
use crate::{
    Access, Call, DatasetKind, Empty, Failure, JobKind, Needed, PropertyMap, Role, Settings, narrow,
};

/// `zfs list` and `zfs get`: datasets with all their properties.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsList {
    /// Where to begin; empty means every pool.
    pub names: Vec<String>,
    /// How many levels below each name: none for no limit, 0 for the names alone.
    pub depth: Option<u32>,
    /// Which kinds to show; empty means filesystems and volumes (and whatever is named itself).
    pub kinds: Vec<DatasetKind>,
    /// The properties to tell, as far as a dataset has them; without, all that it has by itself.
    /// `written@SNAPSHOT`, `userused@USER` and such are told only where they are named.
    #[serde(default)]
    pub properties: Option<Vec<String>>,
    /// What a receive brought is told, too, also where it does not count.
    #[serde(default)]
    pub received: bool,
}

/// Datasets, parents before children, snapshots after their dataset.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsListReply {
    /// The datasets.
    pub datasets: Vec<DatasetReport>,
    /// What is wrong with those that were named and are not among them.
    #[serde(default)]
    pub failures: Vec<Failure>,
}

/// One dataset.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DatasetReport {
    /// Full name.
    pub name: String,
    /// What it is.
    pub kind: DatasetKind,
    /// Transaction group of its birth.
    pub create_txg: u64,
    /// Every property, user properties among them.
    pub properties: PropertyMap,
    /// What a receive brought, where that was asked for.
    #[serde(default, skip_serializing_if = "PropertyMap::is_empty")]
    pub received: PropertyMap,
}

impl Call for ZfsList {
    const PATH: &'static str = "/v1/zfs/list";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZfsListReply;

    fn narrow(&mut self, dataset: &str) -> Result<Vec<String>, &'static str> {
        narrow::check_names(&self.names, dataset).map(|()| Vec::new())
    }
}

/// `zfs create`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsCreate {
    /// Full name.
    pub name: String,
    /// Properties (`-o`).
    #[serde(default)]
    pub properties: Settings,
    /// Size in bytes of a volume (`-V`); none makes a filesystem.
    pub volume_size_bytes: Option<u64>,
    /// Reserve no space for the volume (`-s`).
    #[serde(default)]
    pub sparse: bool,
    /// Create missing parents, and succeed if it exists (`-p`).
    #[serde(default)]
    pub parents: bool,
    /// Parents that are made are never mounted (`-pp`).
    #[serde(default)]
    pub parents_unmounted: bool,
    /// Do not mount (`-u`).
    #[serde(default)]
    pub no_mount: bool,
    /// Only check, and say what would be made (`-n`).
    #[serde(default)]
    pub dry_run: bool,
    /// The key of an encryption root; the properties are to say its `keyformat`.
    #[serde(default)]
    pub key: Option<NewKey>,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// What `zfs create` made, or would.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsCreateReply {
    /// Whether parents were to be made, if missing.
    pub ancestors: bool,
    /// It was there already (`-p`), so nothing was made.
    #[serde(default)]
    pub exists: bool,
    /// The properties that were set, worked-out ones among them.
    pub properties: Settings,
    /// What is worth knowing of it: that a volume takes much more space than it holds.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Call for ZfsCreate {
    const PATH: &'static str = "/v1/zfs/create";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot create '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZfsCreateReply;

    fn changes(&self) -> bool {
        !self.dry_run
    }

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let above = parent(&self.name);
        let mut needs = vec![Needed::on(above, "create"), Needed::on(above, "mount")];
        if self.volume_size_bytes.is_some() && !self.sparse {
            needs.push(Needed::on(&self.name, "refreservation"));
        }
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

/// `zfs destroy`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsDestroy {
    /// `pool/fs`, `pool/fs@snap[%snap][,snap...]`, or `pool/fs#bookmark`.
    pub target: String,
    /// Children too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// Clones outside of the tree too (`-R`).
    #[serde(default)]
    pub dependents: bool,
    /// Unmount even what is in use (`-f`).
    #[serde(default)]
    pub force: bool,
    /// Only say what would go (`-n`).
    #[serde(default)]
    pub dry_run: bool,
    /// Snapshots that are held or have clones go when they can (`-d`).
    #[serde(default)]
    pub defer: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// What `zfs destroy` destroyed, or would.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsDestroyReply {
    /// Full names in the order of their going.
    pub names: Vec<String>,
    /// Space that came free or would, in bytes, where known.
    pub reclaimed_bytes: Option<u64>,
    /// Of what would be destroyed (`-n`): what would be refused for holds, a sentence each. With
    /// what it is below or of it is not among the names.
    #[serde(default)]
    pub refused: Vec<String>,
}

impl Call for ZfsDestroy {
    const PATH: &'static str = "/v1/zfs/destroy";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot destroy '{}'", call.target));
    const ROLE: Option<Role> = Some(Role::Operator);
    const JOB: Option<JobKind> = Some(JobKind::Destroy);
    type Reply = ZfsDestroyReply;

    fn changes(&self) -> bool {
        !self.dry_run
    }

    fn pool(&self) -> Option<String> {
        let pool = self.target.split(['/', '@', '#']).next();
        pool.map(str::to_owned)
    }

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        if self.target.contains('#') {
            return Some(vec![Needed::on(head(&self.target), "destroy")]);
        }
        // Clones elsewhere would have to be looked at each.
        if self.dependents {
            return None;
        }
        let needs = ["mount", "destroy"]
            .map(|permission| Needed::on(&self.target, permission).and_below(self.recursive));
        Some(needs.into())
    }

    fn restrict(&mut self) {
        self.force = false;
    }

    fn narrow(&mut self, dataset: &str) -> Result<Vec<String>, &'static str> {
        narrow::destroy(self, dataset)
    }
}

/// `zfs set`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsSet {
    /// Datasets.
    pub names: Vec<String>,
    /// Properties and values, as typed.
    #[serde(default)]
    pub properties: Settings,
    /// Leave mounts and shares as they are (`-u`).
    #[serde(default)]
    pub no_mount: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// What `zfs set` and `zfs inherit` did not do, beside the change itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsChanged {
    /// Filesystems that could not be mounted where they belong now.
    pub warnings: Vec<String>,
}

impl Call for ZfsSet {
    const PATH: &'static str = "/v1/zfs/set";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot set property for {}", quoted(&call.names)));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZfsChanged;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let names = self.names.iter();
        let needs = names.flat_map(|name| {
            let properties = self.properties.keys();
            properties.map(move |property| Needed::to_set(name, property))
        });
        Some(needs.collect())
    }

    fn restrict(&mut self) {
        self.no_mount = true;
    }

    fn narrow_mounts(&mut self, root: Option<&Path>) -> Result<(), String> {
        narrow::check_mountpoint(&self.properties, root)
    }
}

/// `zfs inherit`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsInherit {
    /// Datasets.
    pub names: Vec<String>,
    /// The property.
    pub property: String,
    /// Children too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// Return to the value that was received (`-S`).
    #[serde(default)]
    pub received: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsInherit {
    const PATH: &'static str = "/v1/zfs/inherit";
    const ACCESS: Access<Self> = Access::Change(|call| {
        format!(
            "cannot inherit {} for {}",
            call.property,
            quoted(&call.names)
        )
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZfsChanged;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        // What is mounted would have to follow.
        if matches!(self.property.as_str(), "mountpoint" | "canmount") {
            return None;
        }
        let needs = self
            .names
            .iter()
            .map(|name| Needed::to_set(name, &self.property).and_below(self.recursive));
        Some(needs.collect())
    }

    fn narrow_mounts(&mut self, _root: Option<&Path>) -> Result<(), String> {
        // A stream brought it.
        match self.received && self.property == "mountpoint" {
            true => Err(narrow::NO_ROOT.to_owned()),
            false => Ok(()),
        }
    }
}

/// `zfs snapshot`: all of the named snapshots of one pool at the same moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsSnapshot {
    /// `pool/fs@name`.
    pub names: Vec<String>,
    /// Children too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// User properties (`-o`).
    #[serde(default)]
    pub properties: Settings,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsSnapshot {
    const PATH: &'static str = "/v1/zfs/snapshot";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot create snapshot {}", quoted(&call.names)));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let mut needs = Vec::new();
        for name in &self.names {
            let of = head(name);
            needs.push(Needed::on(of, "snapshot").and_below(self.recursive));
            if !self.properties.is_empty() {
                needs.push(Needed::on(of, "userprop").and_below(self.recursive));
            }
        }
        Some(needs)
    }
}

/// `zfs rollback`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsRollback {
    /// `pool/fs@name`.
    pub snapshot: String,
    /// Destroy newer snapshots and bookmarks (`-r`).
    #[serde(default)]
    pub destroy_newer: bool,
    /// Their clones too (`-R`).
    #[serde(default)]
    pub destroy_clones: bool,
    /// Unmount even what is in use (`-f`).
    #[serde(default)]
    pub force: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsRollback {
    const PATH: &'static str = "/v1/zfs/rollback";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot rollback to '{}'", call.snapshot));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let of = head(&self.snapshot);
        let mut needs = vec![Needed::on(of, "rollback")];
        if self.destroy_clones {
            return None;
        }
        if self.destroy_newer {
            let newer = format!("{of}@");
            needs.extend(["mount", "destroy"].map(|permission| Needed::on(&newer, permission)));
        }
        Some(needs)
    }

    fn restrict(&mut self) {
        self.force = false;
    }
}

/// `zfs rename`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsRename {
    /// Old full name.
    pub from: String,
    /// New full name.
    pub to: String,
    /// Create missing parents (`-p`).
    #[serde(default)]
    pub parents: bool,
    /// Snapshots of children too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// Do not remount (`-u`).
    #[serde(default)]
    pub no_mount: bool,
    /// Unmount even what is in use (`-f`).
    #[serde(default)]
    pub force: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsRename {
    const PATH: &'static str = "/v1/zfs/rename";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot rename '{}'", call.from));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let above = match self.from.contains('@') {
            true => head(&self.from),
            false => parent(&self.to),
        };
        Some(vec![
            Needed::on(&self.from, "rename").and_below(self.recursive),
            Needed::on(&self.from, "mount").and_below(self.recursive),
            Needed::on(above, "create"),
            Needed::on(above, "mount"),
        ])
    }

    fn restrict(&mut self) {
        self.parents = false;
        self.no_mount = true;
        self.force = false;
    }
}

/// `zfs mount FILESYSTEM` and `zfs mount -a`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsMount {
    /// The filesystem.
    pub name: Option<String>,
    /// All of them (`-a`).
    #[serde(default)]
    pub all: bool,
    /// Also over a directory that is not empty (`-O`).
    #[serde(default)]
    pub overlay: bool,
    /// Also a redacted one, which lacks some of its blocks (`-f`).
    #[serde(default)]
    pub force: bool,
    /// Records of the intent log that cannot be replayed, and those that rely on them, are given up
    /// first, also of a volume (`--discard-log`).
    #[serde(default)]
    pub discard_log: bool,
    /// Mount options (`-o`).
    pub options: Vec<String>,
}

impl Call for ZfsMount {
    const PATH: &'static str = "/v1/zfs/mount";
    const ACCESS: Access<Self> = Access::Change(|call| match &call.name {
        Some(name) => format!("cannot mount '{name}'"),
        None => "cannot mount filesystems".to_owned(),
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    /// Where it is mounted is to be the user's, too, which is found out when it is done
    /// (`zfs_mount`, usr/src/uts/common/fs/zfs/zfs_vfsops.c of illumos; on Linux OpenZFS lets
    /// nobody but root mount).
    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let name = self.name.as_ref()?;
        if self.all || self.force || self.discard_log {
            return None;
        }
        Some(vec![Needed::on(name, "mount")])
    }

    /// What users mount obeys neither set-id bits nor device files
    /// (`secpolicy_fs_mount_clearopts`, usr/src/uts/common/os/policy.c). The later word counts.
    fn restrict(&mut self) {
        self.overlay = false;
        self.options.extend(["nosuid", "nodev"].map(str::to_owned));
    }
}

/// `zfs unmount`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsUnmount {
    /// A filesystem or a mount point.
    pub name: Option<String>,
    /// All of them (`-a`).
    #[serde(default)]
    pub all: bool,
    /// Even what is in use (`-f`).
    #[serde(default)]
    pub force: bool,
}

impl Call for ZfsUnmount {
    const PATH: &'static str = "/v1/zfs/unmount";
    const ACCESS: Access<Self> = Access::Change(|call| match &call.name {
        Some(name) => format!("cannot unmount '{name}'"),
        None => "cannot unmount filesystems".to_owned(),
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        // What is mounted at a path has a name that permissions go by.
        let name = self.name.as_ref().filter(|name| !name.starts_with('/'))?;
        (!self.all && !self.force).then(|| vec![Needed::on(name, "mount")])
    }
}

/// `zfs mount` without arguments: what is mounted.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsMountList {}

/// Mounted filesystems.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsMountListReply {
    /// In the order of mounting.
    pub mounts: Vec<ZfsMounted>,
}

/// One mounted filesystem.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ZfsMounted {
    /// Dataset.
    pub name: String,
    /// Mount point.
    pub mountpoint: String,
}

impl Call for ZfsMountList {
    const PATH: &'static str = "/v1/zfs/mounts";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZfsMountListReply;
}

/// `zfs userspace`, `groupspace` and `projectspace`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsSpace {
    /// A filesystem or a snapshot of one.
    pub name: String,
    /// Whose.
    pub owners: Vec<SpaceOwner>,
}

/// Whose space is counted.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum SpaceOwner {
    /// Groups.
    Group,
    /// Users.
    User,
    /// Projects.
    Project,
}

/// Who uses how much.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsSpaceReply {
    /// In no particular order.
    pub uses: Vec<SpaceReport>,
}

/// What one owner uses and may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpaceReport {
    /// Kind of owner.
    pub owner: SpaceOwner,
    /// Number.
    pub id: u64,
    /// Name, where this host knows one.
    pub name: Option<String>,
    /// Bytes; none where nothing is kept of them.
    pub bytes: Option<Usage>,
    /// The same for objects.
    pub objects: Option<Usage>,
}

/// How much somebody uses and may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// What is used.
    pub used: u64,
    /// The most that may be; 0 where there is no limit.
    pub quota: u64,
}

impl Call for ZfsSpace {
    const PATH: &'static str = "/v1/zfs/space";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot get used/quota for {}", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZfsSpaceReply;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let needs = self.owners.iter().flat_map(|owner| match owner {
            SpaceOwner::User => ["userused", "userquota", "userobjused", "userobjquota"],
            SpaceOwner::Group => ["groupused", "groupquota", "groupobjused", "groupobjquota"],
            SpaceOwner::Project => [
                "projectused",
                "projectquota",
                "projectobjused",
                "projectobjquota",
            ],
        });
        // What is counted is told together.
        Some(
            needs
                .map(|permission| Needed::on(&self.name, permission))
                .collect(),
        )
    }

    fn changes(&self) -> bool {
        false
    }
}

/// `zfs project`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsProject {
    /// Absolute paths, without links in them.
    pub paths: Vec<String>,
    /// What to change; nothing lists.
    pub change: Option<ProjectChange>,
    /// All below directories too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// The directory alone, not what is in it (`-d`).
    #[serde(default)]
    pub directory_only: bool,
}

/// A change of projects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProjectChange {
    /// `-p`, `-s`.
    Set {
        /// Number; that of what is named where not given.
        project: Option<u64>,
        /// What is made in it is of its project.
        inherit: bool,
    },
    /// `-C`.
    Clear {
        /// Clear only that it is inherited (`-k`).
        keep_project: bool,
    },
}

/// Projects of files.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsProjectReply {
    /// The files, where they are listed.
    pub files: Vec<ProjectReport>,
}

/// A file's project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectReport {
    /// Path.
    pub path: String,
    /// Number.
    pub project: u64,
    /// Whether what is made in it is of its project.
    pub inherits: bool,
}

impl Call for ZfsProject {
    const PATH: &'static str = "/v1/zfs/project";
    const ACCESS: Access<Self> = Access::Change(|call| {
        format!(
            "cannot get or change the project of {}",
            quoted(&call.paths)
        )
    });
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZfsProjectReply;
}

/// `zfs rewrite`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsRewrite {
    /// Absolute paths, without links in them. What is neither a regular file nor, with
    /// `recursive`, a directory is passed over.
    pub paths: Vec<String>,
    /// All below directories too (`-r`).
    #[serde(default)]
    pub recursive: bool,
    /// But not what is mounted there (`-x`).
    #[serde(default)]
    pub one_filesystem: bool,
    /// Where to begin in each file, in bytes (`-o`).
    pub offset_bytes: u64,
    /// How many bytes of each file from there on, 0 for all (`-l`).
    pub length_bytes: u64,
    /// Leave blocks as old as they are, so that they do not count as changed (`-P`).
    #[serde(default)]
    pub physical: bool,
    /// Tell the names of what was rewritten (`-v`).
    #[serde(default)]
    pub list: bool,
}

/// What `zfs rewrite` did.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsRewriteReply {
    /// The files that were rewritten, where they are listed.
    pub files: Vec<String>,
    /// What could not be.
    pub failed: Vec<NotRewritten>,
}

/// A file or directory that was not rewritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotRewritten {
    /// Path.
    pub path: String,
    /// Why, and what to do.
    pub why: String,
}

impl Call for ZfsRewrite {
    const PATH: &'static str = "/v1/zfs/rewrite";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot rewrite {}", quoted(&call.paths)));
    const ROLE: Option<Role> = Some(Role::Operator);
    const JOB: Option<JobKind> = Some(JobKind::Rewrite);
    type Reply = ZfsRewriteReply;
}

/// `zfs holds`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsHolds {
    /// Snapshots.
    pub names: Vec<String>,
    /// Snapshots of the same name of children too (`-r`).
    #[serde(default)]
    pub recursive: bool,
}

/// Holds on snapshots.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsHoldsReply {
    /// In order of snapshot and tag.
    pub holds: Vec<HoldReport>,
}

/// A hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HoldReport {
    /// Snapshot.
    pub name: String,
    /// Tag.
    pub tag: String,
    /// When, in seconds since the epoch.
    pub time_s: u64,
}

impl Call for ZfsHolds {
    const PATH: &'static str = "/v1/zfs/holds";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = ZfsHoldsReply;

    fn narrow(&mut self, dataset: &str) -> Result<Vec<String>, &'static str> {
        narrow::check_names(&self.names, dataset).map(|()| Vec::new())
    }
}
