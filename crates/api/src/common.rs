//! What every message shares: the call trait, failures and property values.

use std::path::Path;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{DatasetKind, JobKind, Needed, ReceiveObstacle, Role};

/// Who may make a request. Ordinary users may look where OpenZFS lets them (its
/// `zfs_secpolicy_read` and `zfs_secpolicy_none`, module/zfs/zfs_ioctl.c).
#[derive(Clone, Copy, Debug)]
pub enum Access<C> {
    /// Every local user.
    Read,
    /// Root and who runs the server, and whom permissions let ([`Call::needs`]). Others are told
    /// what cannot be done: `cannot destroy 'tank/a'`.
    Change(fn(&C) -> String),
}

/// A request: where it goes and what comes back.
pub trait Call: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// Path of the HTTP request.
    const PATH: &'static str;
    /// Who may make it.
    const ACCESS: Access<Self> = Access::Change(|_| "cannot do this".to_owned());
    /// What who comes over the network has to be at least; none where they need not have logged in.
    const ROLE: Option<Role> = match Self::ACCESS {
        Access::Read => Some(Role::Viewer),
        Access::Change(_) => Some(Role::Admin),
    };
    /// It may take long, so it is a job while it is worked at ([`crate::Job`]).
    const JOB: Option<JobKind> = None;
    /// It may bring the first pool to a server, so one is worth starting for it.
    const BRINGS_POOLS: bool = false;
    /// What the daemon answers when it worked.
    type Reply: Serialize + DeserializeOwned + JsonSchema + Send + 'static;

    /// Whether it changes something, so that it is put on record.
    fn changes(&self) -> bool {
        matches!(Self::ACCESS, Access::Change(_))
    }

    /// The permissions that let an ordinary user, whose number is `uid`, make a request that is
    /// [`Access::Change`]; none where nothing does.
    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        None
    }

    /// Takes out of it what permissions give nobody: mounting what is made, and putting out who
    /// uses something.
    fn restrict(&mut self) {}

    /// Narrows it to what the key of a replication may ask, about a dataset and what is below it
    /// ([`crate::Replica`]). Gives the snapshots that are to go, which must have been there long
    /// enough.
    ///
    /// # Errors
    /// What of it is not for such a key, as in "permission denied: a receive with such options".
    fn narrow(&mut self, _dataset: &str) -> Result<Vec<String>, &'static str> {
        Err("a request that is no replication's")
    }

    /// Narrows it to what an operator may ask who comes over the network, and who chooses mount
    /// points below `root` only, or none where there is none.
    ///
    /// # Errors
    /// What they are told.
    fn narrow_mounts(&mut self, _root: Option<&Path>) -> Result<(), String> {
        Ok(())
    }

    /// The pool that it is about, where it is a job.
    fn pool(&self) -> Option<String> {
        None
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// What kind of failure it is, for programs.
    pub kind: FailureKind,
    /// What happened and what to do, for logs and for who does not know `refusal`. One line or
    /// several, without a trailing newline.
    pub message: String,
    /// What was in the way, where the reader has words of its own for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Box<Refusal>>,
}

/// Why a device is not attached, replaced, detached or taken out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyObstacle {
    /// The pool has no such device.
    NoSuchDevice,
    /// It is a hot spare that stands by.
    Spare,
    /// It is a cache device.
    Cache,
    /// It is no device, but has some.
    NotADevice,
    /// It is neither a top-level device nor a mirror's.
    CannotAttach,
    /// It is a part of a replacement that this one does not go with.
    CannotReplace,
    /// It is a spare in use, which another device is to replace.
    OnlyBySpare,
    /// It is a log device, which a spare is to replace.
    LogBySpare,
    /// It is no device of the dRAID vdev whose distributed spare is to replace it.
    OtherDraid,
    /// The new device is too small.
    TooSmall,
    /// The new device has larger sectors.
    Ashift,
    /// It is a part of neither a mirror nor a replacement.
    CannotDetach,
    /// No other device has all that it has.
    OnlyCopy,
    /// It is in no vdev whose devices can be rebuilt sequentially.
    SequentialUnsupported,
    /// The pool has not the feature `device_rebuild`.
    SequentialDisabled,
    /// A resilver is under way, or about to begin.
    Resilvering,
    /// A sequential rebuild is under way.
    Rebuilding,
    /// The pool has not the feature `raidz_expansion`.
    ExpansionDisabled,
    /// A RAID-Z vdev is being made wider.
    Expanding,
    /// A RAID-Z vdev that is to be made wider lacks devices, or one is being replaced.
    NotWell,
    /// Something else is under way.
    Busy,
}

/// What was in the way of a request, with its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// A pool could not be imported.
    Import(ImportRefusal),
    /// The vdevs asked for are in use, or do not go together.
    Vdevs {
        /// What is wrong with them.
        why: String,
        /// Whether force would take them all the same.
        can_be_forced: bool,
    },
    /// The label of a device may be in use.
    Label {
        /// The device.
        path: String,
        /// What for.
        device_use: DeviceUse,
    },
    /// The directory where a new pool's filesystem would be mounted is not free.
    Mountpoint {
        /// The directory.
        path: String,
        /// What is there.
        why: String,
    },
    /// Datasets depend on what was to be destroyed.
    Dependents {
        /// What was to be destroyed.
        target: String,
        /// What it is.
        kind: DatasetKind,
        /// How they depend on it.
        dependence: Dependence,
        /// The datasets, or the first of them.
        names: Vec<String>,
    },
    /// The vdevs of a pool do not change like that.
    Topology {
        /// What was to be done, as the request's own words tell it.
        doing: String,
        /// Why not.
        why: TopologyObstacle,
    },
    /// A stream is not received.
    Receive {
        /// Where it was to be received: a snapshot's full name, or what was asked for.
        target: String,
        /// Whether it is no difference, as far as that is known.
        is_full: Option<bool>,
        /// Whether the target was to be made.
        is_new: bool,
        /// Why not.
        why: ReceiveObstacle,
        /// What came is kept, and a stream made with this token goes on from there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume_token: Option<String>,
    },
    /// The root filesystem of a pool goes only with the pool.
    RootFilesystem {
        /// The pool.
        pool: String,
    },
    /// A rollback would destroy what is newer.
    Newer {
        /// The snapshots and bookmarks.
        names: Vec<String>,
    },
}

/// Which pool could not be imported, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportRefusal {
    /// Name or GUID, as asked for or found.
    pub pool: String,
    /// The name that it was to have.
    pub new_name: Option<String>,
    /// What is in the way.
    pub obstacle: ImportObstacle,
}

/// What is in the way of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "obstacle", rename_all = "kebab-case")]
pub enum ImportObstacle {
    /// No pool was found that is called so.
    NotFound,
    /// It is here already, and no other is called so.
    AlreadyImported,
    /// Several pools are called so.
    Ambiguous,
    /// Another pool here has the name.
    NameTaken,
    /// Another host had it last.
    ForeignHost {
        /// Name of the host.
        hostname: String,
        /// Its id.
        hostid: u64,
        /// When it was last written, in seconds since 1970.
        accessed_s: u64,
    },
    /// Another host uses it at this moment.
    ActiveElsewhere {
        /// Name of the host.
        hostname: String,
        /// Its id.
        hostid: u64,
    },
    /// Its property multihost is on, and this host has no id.
    NoHostid,
    /// It cannot be read for want of these features.
    UnsupportedFeatures {
        /// Their names.
        features: Vec<String>,
    },
    /// It cannot be written for want of these features.
    ReadOnlyFeatures {
        /// Their names.
        features: Vec<String>,
    },
    /// Log devices are missing or damaged.
    MissingLogs {
        /// The devices.
        devices: Vec<String>,
        /// The datasets whose intent logs are on them.
        datasets: Vec<String>,
    },
    /// The newest state is damaged; an older one may be whole.
    Damaged,
}

/// How datasets depend on what is to be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dependence {
    /// They are below it.
    Children,
    /// They are clones of its snapshots, or of it.
    Clones,
}

/// What a device is used for, as its label says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "use", rename_all = "kebab-case")]
pub enum DeviceUse {
    /// It belongs to a pool that was not exported.
    ActivePool {
        /// The pool.
        pool: String,
    },
    /// It belongs to an exported pool.
    ExportedPool {
        /// The pool.
        pool: String,
    },
    /// Anything else.
    Other {
        /// What it contains: "an ext4 filesystem".
        what: String,
    },
}

/// Kinds of failure that a client may treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The request makes no sense (bad name, bad property, missing argument).
    Invalid,
    /// What it is about does not exist.
    NotFound,
    /// It exists already.
    Exists,
    /// In use, mounted, has children, or belongs to another system.
    Busy,
    /// Who asks has no right to it.
    Denied,
    /// Who asks over the network has neither a session nor a key, or not the right password.
    Unauthenticated,
    /// The password is right; six digits are needed as well.
    CodeNeeded,
    /// Too many tries; the header `Retry-After` says for how long none is taken.
    TooMany,
    /// Not supported: an unknown feature or property.
    Unsupported,
    /// Out of space or over a quota.
    NoSpace,
    /// A key that does not open the dataset.
    WrongKey,
    /// Devices failed or data is damaged.
    Io,
    /// Stopped on request.
    Canceled,
    /// Anything else.
    Other,
}

impl FailureKind {
    /// The HTTP status that carries it.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated | Self::CodeNeeded => 401,
            Self::NotFound => 404,
            Self::Exists | Self::Busy | Self::Canceled => 409,
            Self::Unsupported => 422,
            Self::WrongKey | Self::Denied => 403,
            Self::TooMany => 429,
            Self::NoSpace => 507,
            Self::Io | Self::Other => 500,
        }
    }
}

/// Leaves out the numbers that Rust puts behind the system's errors: of `No such file or directory
/// (os error 2)` people need the words alone.
pub fn for_people(text: String) -> String {
    const BEGIN: &str = " (os error ";
    if !text.contains(BEGIN) {
        return text;
    }
    let mut parts = text.split(BEGIN);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.trim_start_matches(|c: char| c.is_ascii_digit());
        match digits
            .strip_prefix(')')
            .filter(|_| digits.len() < part.len())
        {
            Some(rest) => out.push_str(rest),
            None => {
                out.push_str(BEGIN);
                out.push_str(part);
            }
        }
    }
    out
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A failure of the given kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: for_people(message.into()),
            refusal: None,
        }
    }

    /// What somebody is told who has no right to it; `doing` says to what, as in "cannot destroy
    /// 'tank'".
    pub fn denied(doing: &str) -> Self {
        Self::new(FailureKind::Denied, format!("{doing}: permission denied"))
    }

    /// The same, with what was in the way.
    #[must_use]
    pub fn with_refusal(mut self, refusal: Refusal) -> Self {
        self.refusal = Some(Box::new(refusal));
        self
    }
}

/// Where a property's value comes from, as the SOURCE column of `zfs get` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A statistic; it has no source (`-`).
    None,
    /// The built-in default.
    Default,
    /// Set on this dataset or pool.
    Local,
    /// Set for this mount only.
    Temporary,
    /// Came with a received stream.
    Received,
    /// Set on the named ancestor.
    Inherited(String),
}

/// A property's value in its parseable form, and its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Property {
    /// Sizes in bytes, times in seconds since the epoch, ratios as `1.00`, others as typed.
    pub value: String,
    /// Where it comes from.
    pub source: Source,
}

impl Property {
    /// A statistic.
    pub fn statistic(value: impl ToString) -> Self {
        Self {
            value: value.to_string(),
            source: Source::None,
        }
    }
}

/// Properties to set, by name, in the order in which they were typed, and values as typed.
pub type Settings = IndexMap<String, String>;

/// Properties by name, in the order in which `get all` shows them.
pub type PropertyMap = IndexMap<String, Property>;

/// Names as messages list them: `'tank/a', 'tank/b'`.
pub(crate) fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_system_are_left_out_of_what_people_read() {
        let error = std::io::Error::from_raw_os_error(2);
        let failure = Failure::new(FailureKind::Io, format!("/a: {error}; /b: {error}. Look."));
        let words = "No such file or directory";
        assert_eq!(failure.message, format!("/a: {words}; /b: {words}. Look."));
        for whole in ["nothing", " (os error ", " (os error x)", "a (os error 2"] {
            assert_eq!(for_people(whole.to_owned()), whole);
        }
    }
}
