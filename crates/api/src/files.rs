//! Messages about files in filesystems and their snapshots: looking at them, and getting them back.
//!
//! A path is names with a slash between them, from the root directory of the filesystem or snapshot
//! on: `docs/letter.txt`, and nothing for the root itself. It never leads out: no name is `.` or
//! `..`, and no symbolic link is followed. In names a backslash is written `\\`, and bytes that are
//! no UTF-8 are `\xff`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, JobKind, Role};

/// Path of the request that gives what a file holds, a `GET` with `dataset` and `path`.
pub const FILE_DOWNLOAD_PATH: &str = "/v1/files/download";

/// Entries in an answer, at most.
pub const FILE_ENTRIES_MAX: u32 = 1000;

/// What something in a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// Lists a directory.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileList {
    /// A filesystem, or a snapshot of one.
    pub dataset: String,
    /// Path of the directory.
    pub path: String,
    /// Where to go on: [`FileListReply::next`] of the answer before.
    #[serde(default)]
    pub after: Option<String>,
    /// Most entries to be told: 200 unless said otherwise, 1000 ([`FILE_ENTRIES_MAX`]) at most.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// What is in a directory, or a part of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct FileListReply {
    /// In the order in which they are stored.
    pub entries: Vec<FileEntry>,
    /// Where to go on; none at the end.
    pub next: Option<String>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEntry {
    /// The name.
    pub name: String,
    /// What it is; none where that cannot be read.
    pub file: Option<FileReport>,
}

/// A file of any type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileReport {
    /// What it is.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// Size in bytes; of a directory the number of its entries and 2.
    pub size_bytes: u64,
    /// Permissions with set-id and sticky bits (`07777`).
    pub mode: u32,
    /// Number of its owner.
    pub uid: u32,
    /// Number of its group.
    pub gid: u32,
    /// When it was changed last, in seconds since 1970; negative before that.
    pub modified_s: i64,
    /// Where a symbolic link points, written as names are.
    pub target: Option<String>,
}

impl Call for FileList {
    const PATH: &'static str = "/v1/files/list";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot list files of '{}'", call.dataset));
    /// Files are private: who may only look at pools does not look at them.
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = FileListReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Tells whose a directory is, and who may do what in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileAccess {
    /// A filesystem.
    pub dataset: String,
    /// Path of the directory; nothing for the filesystem's own.
    pub path: String,
}

/// Whose a directory is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileAccessReply {
    /// Number of its owner.
    pub uid: u32,
    /// The owner's name, if the server or its host knows one.
    pub owner: Option<String>,
    /// Number of its group.
    pub gid: u32,
    /// The group's name, if the server or its host knows one.
    pub group: Option<String>,
    /// Permissions with set-id and sticky bits (`07777`).
    pub mode: u32,
    /// It has a POSIX list of access, which says more than the permissions do.
    pub has_list: bool,
}

impl Call for FileAccess {
    const PATH: &'static str = "/v1/files/access";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot look at access to '{}'", call.dataset));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = FileAccessReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Says whose a directory is, and who may do what in it. What is in it stays as it is. The answer
/// is what holds then.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileAccessSet {
    /// A filesystem.
    pub dataset: String,
    /// Path of the directory; nothing for the filesystem's own.
    pub path: String,
    /// Name or number of the owner, who stays where there is none.
    #[serde(default)]
    pub owner: Option<String>,
    /// Name or number of the group, which stays where there is none.
    #[serde(default)]
    pub group: Option<String>,
    /// Permissions, with set-group-id and sticky bit (`03777`); they stay where there are none.
    #[serde(default)]
    pub mode: Option<u32>,
}

impl Call for FileAccessSet {
    const PATH: &'static str = "/v1/files/access-set";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot set access to '{}'", call.dataset));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = FileAccessReply;
}

/// Puts a file, or a directory with all below it, from a snapshot into the filesystem: beside what
/// is there, or in its place.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileRestore {
    /// `pool/fs@snapshot`.
    pub snapshot: String,
    /// Path in it.
    pub path: String,
    /// Under its own name. What has that now stays beside it, as `NAME.replaced-DATE`. Without
    /// this, what is restored is called `NAME.restored-DATE`.
    #[serde(default)]
    pub in_place: bool,
}

/// What was restored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileRestoreReply {
    /// Its path in the filesystem. Not in its place, though that was asked for, where something is
    /// missing.
    pub path: String,
    /// Path of what was in its place.
    pub replaced: Option<String>,
    /// Names that were made.
    pub files: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// What could not be restored, as it could not be read: the first 100.
    pub missing: Vec<FileFault>,
    /// How many these are.
    pub missing_count: u64,
    /// What lacks an extended attribute or a list of access now: the first 100.
    pub lacking: Vec<FileFault>,
    /// How many these are.
    pub lacking_count: u64,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileFault {
    /// Path in the snapshot.
    pub path: String,
    /// What is wrong.
    pub why: String,
}

impl Call for FileRestore {
    const PATH: &'static str = "/v1/files/restore";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot restore '{}' of '{}'", call.path, call.snapshot));
    const ROLE: Option<Role> = Some(Role::Operator);
    const JOB: Option<JobKind> = Some(JobKind::Restore);
    type Reply = FileRestoreReply;

    fn pool(&self) -> Option<String> {
        let end = self.snapshot.find(['/', '@']);
        let end = end.unwrap_or(self.snapshot.len());
        Some(self.snapshot[..end].to_owned())
    }
}
