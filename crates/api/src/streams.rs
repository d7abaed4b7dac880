//! Streams of snapshots: `zfs receive` and `zfs send`.
//!
//! The bytes of a stream travel over the request's own connection: the request asks to switch it
//! (`Upgrade: millpond-stream`), is answered with status 101 and the number of its job (header
//! [`STREAM_JOB_HEADER`]), and from then on the connection is the stream, from who asks to the
//! server or the other way. Whoever sends closes their end when it is over. What came of it is the
//! job's result.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::permissions::head;
use crate::{Access, Call, Empty, JobKind, Needed, ReceiveGuard, Role, Settings, narrow};

/// What a connection is switched to.
pub const STREAM_PROTOCOL: &str = "millpond-stream";
/// The header that tells which job a stream is.
pub const STREAM_JOB_HEADER: &str = "millpond-job";

/// How names of what is received follow from those where it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveNaming {
    /// The target is the name.
    #[default]
    Exact,
    /// All but the pool's name comes below the target (`-d`).
    WithoutPool,
    /// The last component comes below the target (`-e`).
    LastOnly,
}

/// `zfs receive`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsReceive {
    /// Filesystem, volume or snapshot.
    pub target: String,
    /// What becomes of the names in the stream (`-d`, `-e`).
    pub naming: ReceiveNaming,
    /// Give up what was changed since the snapshot that the stream follows (`-F`).
    #[serde(default)]
    pub force: bool,
    /// Keep what came before a break (`-s`).
    #[serde(default)]
    pub resumable: bool,
    /// Do not mount (`-u`).
    #[serde(default)]
    pub no_mount: bool,
    /// Only tell what would be received (`-n`).
    #[serde(default)]
    pub dry_run: bool,
    /// Unmount what is in use (`-M`).
    #[serde(default)]
    pub force_unmount: bool,
    /// Leave holds out (`-h`).
    #[serde(default)]
    pub skip_holds: bool,
    /// Put damaged blocks of a snapshot right that is here already (`-c`). Goes with `dry_run` and
    /// `force_unmount` only.
    #[serde(default)]
    pub corrective: bool,
    /// The snapshot that a new dataset is to be a clone of (`-o origin=`).
    pub origin: Option<String>,
    /// Properties to set (`-o`).
    #[serde(default)]
    pub set: Settings,
    /// Properties to leave out (`-x`).
    pub exclude: Vec<String>,
    /// The key of an encryption root; `set` is to say its `keyformat`.
    #[serde(default)]
    pub key: Option<crate::NewKey>,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
    /// Who sends the stream, which the server knows and nobody tells it.
    #[serde(skip)]
    pub guard: ReceiveGuard,
}

/// What was received.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsReceiveReply {
    /// In order.
    pub received: Vec<ReceivedReport>,
    /// What went wrong that did not keep the streams from being received.
    pub warnings: Vec<String>,
}

/// One snapshot that was received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReceivedReport {
    /// Its name where it was sent.
    pub sent: String,
    /// Its name here.
    pub name: String,
    /// Whether the stream was no difference.
    pub is_full: bool,
    /// It was here already.
    pub is_skipped: bool,
    /// Of a corrective receive: damaged blocks that were put right.
    #[serde(default)]
    pub healed_blocks: Option<u64>,
    /// Bytes of the stream.
    pub bytes: u64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}

impl Call for ZfsReceive {
    const PATH: &'static str = "/v1/zfs/receive";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot receive into '{}'", call.target));
    const ROLE: Option<Role> = Some(Role::Operator);
    const JOB: Option<JobKind> = Some(JobKind::Receive);
    type Reply = ZfsReceiveReply;

    fn changes(&self) -> bool {
        !self.dry_run
    }

    /// `zfs_secpolicy_recv` (module/zfs/zfs_ioctl.c). Where the names in the stream say what is
    /// made, nobody can tell whose that is.
    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        if self.naming != ReceiveNaming::Exact || self.force_unmount {
            return None;
        }
        let target = head(&self.target);
        let receive = Needed::on(target, "receive");
        let mut needs = match self.force {
            // It destroys what came later, with `-R` also what was destroyed at the source.
            true => {
                let also = ["rollback", "destroy"];
                let also = also.map(|name| Needed::on(target, name).and_below(true));
                std::iter::once(receive).chain(also).collect()
            }
            false => vec![receive.or("receive:append")],
        };
        needs.extend(["create", "mount"].map(|name| Needed::on(target, name)));
        let origin = self.origin.iter();
        needs.extend(origin.map(|origin| Needed::on(origin, "clone")));
        let names = self.set.keys();
        needs.extend(names.map(|name| Needed::to_set(target, name)));
        Some(needs)
    }

    fn restrict(&mut self) {
        self.no_mount = true;
        self.guard = ReceiveGuard::User;
    }

    fn narrow(&mut self, dataset: &str) -> Result<Vec<String>, &'static str> {
        narrow::receive(self, dataset).map(|()| Vec::new())
    }

    fn narrow_mounts(&mut self, root: Option<&Path>) -> Result<(), String> {
        self.guard = ReceiveGuard::Operator;
        narrow::check_mountpoint(&self.set, root)
    }

    fn pool(&self) -> Option<String> {
        self.target.split(['/', '@']).next().map(str::to_owned)
    }
}

/// `zfs receive -A`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsReceiveAbort {
    /// Filesystem or volume.
    pub name: String,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsReceiveAbort {
    const PATH: &'static str = "/v1/zfs/receive-abort";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot abort the receive into '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    /// As [`ZfsReceive`], and `destroy` as for any dataset: that is what it does to a new one.
    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let receive = Needed::on(&self.name, "receive").or("receive:append");
        let others = ["mount", "destroy"].map(|name| Needed::on(&self.name, name));
        Some(std::iter::once(receive).chain(others).collect())
    }

    fn narrow(&mut self, dataset: &str) -> Result<Vec<String>, &'static str> {
        narrow::check_names(std::slice::from_ref(&self.name), dataset).map(|()| Vec::new())
    }
}

/// `zfs send`. The stream comes over the connection; what it would be, [`ZfsSendPlan`] tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsSend {
    /// `pool/fs@name`; with a token, nothing.
    pub snapshot: String,
    /// Full name of the snapshot or bookmark that the receiver has (`-i`, `-I`).
    pub from: Option<String>,
    /// All snapshots between the two, one after the other (`-I`).
    #[serde(default)]
    pub all_between: bool,
    /// All datasets below it too, with properties (`-R`).
    #[serde(default)]
    pub replicate: bool,
    /// Properties (`-p`).
    #[serde(default)]
    pub properties: bool,
    /// Properties as they were received (`-b`).
    #[serde(default)]
    pub backup: bool,
    /// Holds (`-h`).
    #[serde(default)]
    pub holds: bool,
    /// Encrypted datasets may be sent with properties in the clear (`-U`).
    #[serde(default)]
    pub no_preserve_encryption: bool,
    /// Datasets that lack the snapshot are left out (`-s`).
    #[serde(default)]
    pub skip_missing: bool,
    /// Datasets that are left out with all below them (`-X`).
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Blocks of more than 128 KiB stay whole (`-L`).
    #[serde(default)]
    pub large_blocks: bool,
    /// Embedded blocks stay so (`-e`).
    #[serde(default)]
    pub embedded: bool,
    /// Blocks stay compressed (`-c`).
    #[serde(default)]
    pub compressed: bool,
    /// Blocks stay as they are stored, encrypted ones encrypted (`-w`).
    #[serde(default)]
    pub raw: bool,
    /// Without what this redaction bookmark of the snapshot lists (`--redact`): its name, with or
    /// without the dataset and the `#`.
    #[serde(default)]
    pub redact: Option<String>,
    /// Goes on where a receive was interrupted (`-t`).
    pub token: Option<String>,
}

/// What was sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsSendReply {
    /// Bytes of all streams.
    pub bytes: u64,
}

impl Call for ZfsSend {
    const PATH: &'static str = "/v1/zfs/send";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot send '{}'", call.snapshot));
    const ROLE: Option<Role> = Some(Role::Operator);
    const JOB: Option<JobKind> = Some(JobKind::Send);
    type Reply = ZfsSendReply;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        if self.token.is_some() {
            return None;
        }
        let mut send = Needed::on(head(&self.snapshot), "send");
        if self.raw {
            // (`zfs_secpolicy_send_impl`, module/zfs/zfs_ioctl.c)
            send = send.or("send:raw").or_if_encrypted("send:encrypted");
        }
        Some(vec![send.and_below(self.replicate)])
    }

    fn pool(&self) -> Option<String> {
        self.snapshot.split(['/', '@']).next().map(str::to_owned)
    }
}

/// `zfs send -n`: what would be sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsSendPlan {
    /// What is asked for.
    pub send: ZfsSend,
}

/// What would be sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsSendPlanReply {
    /// In order.
    pub streams: Vec<PlannedStream>,
    /// What is left out, and why.
    pub warnings: Vec<String>,
}

/// One stream that would be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedStream {
    /// The snapshot.
    pub name: String,
    /// What it is the difference to; a full name.
    pub from: Option<String>,
    /// Bytes that it may have.
    pub size_bytes: u64,
}

impl Call for ZfsSendPlan {
    const PATH: &'static str = "/v1/zfs/send-plan";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot send '{}'", call.send.snapshot));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZfsSendPlanReply;

    fn needs(&self, uid: u32) -> Option<Vec<Needed>> {
        self.send.needs(uid)
    }

    fn changes(&self) -> bool {
        false
    }
}
