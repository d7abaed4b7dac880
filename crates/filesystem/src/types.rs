//! What operations take and give: attributes, callers, directory entries.

/// What kind of file an object is; the number is the type in a mode (`mode >> 12`) and in a
/// directory entry (`ZFS_DIRENT_TYPE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileKind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The kind in a full mode (`S_IFMT` bits).
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::from_number(((mode >> 12) & 0xf) as u8)
    }

    /// The `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }

    /// Whether it is a device, which has a device number.
    pub fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }
}

/// A moment: seconds since the Unix epoch (negative before it) and nanoseconds, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanoseconds: u32,
}

impl Time {
    /// From nanoseconds since the epoch.
    pub fn from_ns(ns: u64) -> Self {
        Self {
            seconds: (ns / 1_000_000_000) as i64,
            nanoseconds: (ns % 1_000_000_000) as u32,
        }
    }

    /// Nanoseconds since the epoch, negative before it.
    pub fn as_ns(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanoseconds)
    }
}

/// All about a file that `stat` tells, and some more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Object number.
    pub ino: u64,
    /// Generation: differs between files that had the same object number.
    pub generation: u64,
    /// Kind.
    pub kind: FileKind,
    /// Permissions with set-id and sticky bits (`07777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links, as `stat` shows them (a directory: 2 and one for each subdirectory).
    pub nlink: u32,
    /// Size: bytes, or for a directory its entries and 2.
    pub size_bytes: u64,
    /// Space used on disk, in bytes (a multiple of 512).
    pub allocated_bytes: u64,
    /// Size for efficient I/O (the file's block size), in bytes.
    pub block_bytes: u32,
    /// Device number as (major, minor); zeros for other kinds.
    pub rdev: (u32, u32),
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Flags (`z_pflags`: [`crate::pflags`]).
    pub flags: u64,
    /// Project that space is accounted to, if the file has one.
    pub project: Option<u64>,
    /// Directory in which it was made or last put (`ZPL_PARENT`).
    pub parent: u64,
    /// It has changes that are not on disk yet, which may change how much it takes there.
    pub is_dirty: bool,
}

/// Who asks: the ids that new files get, and that decide on set-id bits.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Permissions that new files do not get (unless their directory has a default list of
    /// access).
    pub umask: u32,
    /// The caller's task, by a number that `groups` knows it by.
    pub task: u32,
    /// Who knows of which groups the caller is besides; `None`: of none.
    pub groups: Option<AskGroups>,
}

/// Whether a caller is of a group besides its first. Asked only where that decides; what cannot be
/// found out is no. It must not wait.
pub type AskGroups = fn(&Caller, u32) -> bool;

impl Caller {
    /// The superuser.
    pub const ROOT: Self = Self::new(0, 0);

    /// One of a single group, without a umask.
    pub const fn new(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            umask: 0,
            task: 0,
            groups: None,
        }
    }

    /// Whether a file's set-group-id bit may stay when this caller changes the file
    /// (`in_group_or_capable`, fs/inode.c of Linux; only root is known to have `CAP_FSETID`).
    pub(crate) fn may_keep_set_group_id(&self, gid: u64) -> bool {
        let asked = || match (self.groups, u32::try_from(gid)) {
            (Some(ask), Ok(gid)) => ask(self, gid),
            _ => false,
        };
        self.uid == 0 || u64::from(self.gid) == gid || asked()
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The present.
    Now,
    /// This moment.
    At(Time),
}

/// What a mount does otherwise than the properties say (`zfs mount -o`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountChoices {
    /// Instead of `atime`.
    pub atime: Option<bool>,
    /// Instead of `relatime`.
    pub relatime: Option<bool>,
    /// Instead of `xattr`, as that is stored.
    pub xattr: Option<u64>,
}

/// Which attributes to set; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions (`07777`).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes (regular files).
    pub size_bytes: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Flags of the upper half of `z_pflags` (immutable, append-only, no-dump ...).
    pub flags: Option<u64>,
    /// Which flags `flags` speaks of, others stay as they are; without it, those that Linux shows.
    pub flags_among: Option<u64>,
    /// Project.
    pub project: Option<u64>,
    /// Set-id bits go, as a change of owner or of content asks for (those two need not say so).
    pub without_set_id: bool,
}

/// How to rename (`renameat2`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replace what has the new name.
    #[default]
    Replace,
    /// Fail if something has the new name.
    NoReplace,
    /// Swap the two.
    Exchange,
}

/// How to set an extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Any,
    /// Fail if it exists.
    Create,
    /// Fail if it does not exist.
    Replace,
}

/// Whether who reads or writes asks for the cache to be left out. What comes of it is up to the
/// property `direct`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Via {
    /// No.
    #[default]
    Cache,
    /// Yes (`O_DIRECT`).
    Direct,
}

/// What to look for with [`crate::Filesystem::seek`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// The next data.
    Data,
    /// The next hole (the end of the file counts as one).
    Hole,
}

/// What `fallocate` should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve (nothing can be reserved in copy-on-write; checks that space is there, and makes the
    /// file longer unless `keep_size`).
    Reserve {
        /// Leave the size as it is.
        keep_size: bool,
    },
    /// Make a hole; the size stays.
    PunchHole,
    /// Zero the range, growing the file unless `keep_size`.
    ZeroRange {
        /// Leave the size as it is.
        keep_size: bool,
    },
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Name, without `/` and NUL.
    pub name: Vec<u8>,
    /// Object number.
    pub ino: u64,
    /// Kind, as the entry says (very old pools do not: `None`).
    pub kind: Option<FileKind>,
    /// Where to go on after this entry: give it to [`crate::Filesystem::read_directory`].
    pub next_cookie: u64,
}

/// Space and objects (`statfs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsStatistics {
    /// Unit of the counts of blocks, in bytes.
    pub block_bytes: u32,
    /// Size for efficient I/O, in bytes.
    pub io_bytes: u32,
    /// Blocks in all (used and free).
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Objects in all (used and possible).
    pub files: u64,
    /// Objects that can still be made.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}
