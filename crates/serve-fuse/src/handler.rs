//! The kernel's requests for a mounted filesystem.
//!
//! # What the kernel may keep
//!
//! What others change the kernel is told of (`teller`), so it may keep entries and pages for long.
//! Where somebody else serves the filesystem, entries of all but directories are good for a second,
//! since an answer may cross what it is told. Attributes are good for a second, since access times
//! move with reads; those of a file with changes that are not on disk yet are good for 20
//! milliseconds, since the txg's sync changes what it takes on disk, of which the kernel is not
//! told. Names that are not there, and names in `.zfs`, are good for a second; where case or form
//! of names does not count, entries are not kept at all. `open` is answered "not needed" once, and
//! then never asked again; `create` likewise.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use access::{ControlEntry, ControlNode, Snapdir, Traffic, TrafficKind};
use bytes::Bytes;
use filesystem::{
    Allocate, Attributes, Changes, FileKind, FsError, LISTED_BYTES_MAX, RenameMode, SeekTo,
    SetAttributes, Via, XattrMode,
};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use crate::convert::{self, caller, errno};
use crate::listing::{control_attributes, list, list_plus, no_attributes};
use crate::nodes::{self, File, Nodes, Target};
use crate::seek::seek;
use crate::snapdir::is_snapdir;
use crate::task::{Course, LONG_BYTES, Runner, run, run_as};

const ENTRY_TTL: Duration = Duration::from_secs(24 * 60 * 60);
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(1);
/// Shorter than most transaction groups take, which count the blocks of what was written.
const DIRTY_TTL: Duration = Duration::from_millis(20);
/// Biggest write in one request.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way in the background (read-ahead, write-back).
const BACKGROUND_MAX: u16 = 64;
const O_DSYNC: i32 = 0o10000;
const O_NOATIME: i32 = 0o1000000;
/// `XATTR_CREATE`, `XATTR_REPLACE` (include/uapi/linux/xattr.h).
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
/// `FALLOC_FL_*` (include/uapi/linux/falloc.h).
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 0x10;

/// Requests of one mount.
pub(crate) struct Handler {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) runtime: Runner,
    pub(crate) posix_acl: bool,
    /// What was read and written, as far as it did not stay in the kernel's cache.
    pub(crate) traffic: Arc<Traffic>,
    /// How the kernel is told something, once it is mounted.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
}

impl Handler {
    /// How long the kernel may keep an entry of this kind.
    pub(crate) fn entry_ttl(file: &File, kind: FileKind) -> Duration {
        if !file.filesystem.compares_names_exactly() {
            return Duration::ZERO;
        }
        let is_shared = || Changes::of(&file.filesystem).is_some_and(|all| all.is_shared());
        match kind != FileKind::Directory && file.is_live && is_shared() {
            true => SHORT_TTL,
            false => ENTRY_TTL,
        }
    }

    /// How long the kernel may go by a file's attributes. What a file takes is not known before it
    /// is on disk; but whoever makes one asks several times in a row, as Samba does, and the kernel
    /// forgets with the attributes what it knows of ACLs and capabilities. Directories are not
    /// asked for what they take, and every path leads through some. Nor does it matter for a
    /// listing, which the next one replaces.
    pub(crate) fn attributes_ttl(of: &Attributes) -> Duration {
        match of.is_dirty && of.kind == FileKind::Regular {
            true => DIRTY_TTL,
            false => SHORT_TTL,
        }
    }

    /// Answers with an entry, which the kernel then knows.
    fn reply_entry(reply: ReplyEntry, parent: &File, found: &Attributes) {
        parent.retain(found.ino);
        let attributes = convert::attributes(parent.node(found.ino), found);
        let generation = Generation(found.generation);
        let ttl = if parent.has_own_number(found.ino) {
            Self::attributes_ttl(found)
        } else {
            Duration::ZERO
        };
        reply.entry_with_ttls(
            &ttl,
            &Self::entry_ttl(parent, found.kind),
            &attributes,
            generation,
        );
    }

    /// A node's attributes, and how long they are good for. Those of `.zfs` change with the
    /// snapshots.
    async fn target_attributes(nodes: &Nodes, node: u64) -> Result<(FileAttr, Duration), Errno> {
        match nodes.resolve(node).await? {
            Target::File(file) => {
                let found = file
                    .filesystem
                    .attributes(file.ino)
                    .await
                    .map_err(|error| errno(&error))?;
                let attributes = convert::attributes(file.shown(file.ino), &found);
                Ok((attributes, Self::attributes_ttl(&found)))
            }
            Target::Control(of) => {
                let told = nodes.control().attributes(of).await;
                Ok((control_attributes(of.number(), told), Duration::ZERO))
            }
        }
    }

    /// Answers with an entry of a control directory.
    pub(crate) async fn reply_control(
        nodes: &Nodes,
        of: ControlNode,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        match nodes.control().lookup(of, name.as_bytes()).await {
            Ok(ControlEntry::Node(found)) => {
                let told = nodes.control().attributes(found).await;
                let attributes = control_attributes(nodes::control_node(found), told);
                let (none, generation) = (Duration::ZERO, Generation(0));
                reply.entry_with_ttls(&none, &SHORT_TTL, &attributes, generation);
            }
            Ok(ControlEntry::Snapshot(snapshot)) => {
                let node = match nodes.retain_snapshot(&snapshot) {
                    Ok(node) => node,
                    Err(error) => return reply.error(error),
                };
                let found = async {
                    let file = nodes.file(node).await?;
                    let found = file.filesystem.attributes(file.ino).await;
                    Ok((found.map_err(|error| errno(&error))?, file))
                };
                match found.await {
                    Ok((found, file)) => {
                        let attributes = convert::attributes(file.node(found.ino), &found);
                        reply.entry(&SHORT_TTL, &attributes, Generation(found.generation));
                    }
                    Err(error) => {
                        nodes.release_snapshot(node, 1);
                        reply.error(error);
                    }
                }
            }
            Err(error) => reply.error(errno(&error)),
        }
    }
}

/// Runs a request about one file: resolves the node, does `work`, and answers.
macro_rules! on_file {
    (
        $self:ident, $node:expr, $reply:ident,
        |$file:ident| $work:expr, |$value:pat_param| $done:expr
    ) => {
        on_file!($self, $node, $reply, Course::Any, |$file| $work, |$value| {
            $done
        })
    };
    (
        $self:ident, $node:expr, $reply:ident, $course:expr,
        |$file:ident| $work:expr, |$value:pat_param| $done:expr
    ) => {
        let nodes = Arc::clone(&$self.nodes);
        run_as(&$self.runtime, $course, async move {
            let outcome = async {
                let $file = nodes.file($node.0).await?;
                let value = $work.await.map_err(|error| errno(&error))?;
                Ok(($file, value))
            };
            match outcome.await {
                Ok(($file, $value)) => {
                    let _ = &$file;
                    $done
                }
                Err(error) => $reply.error(error),
            }
        })
    };
}

/// Whether a request asks for the cache to be left out. Each says how its file is open, so `open`
/// need not be asked for, and `fcntl` may change it. The kernel leaves its own cache out for such
/// files: it writes back what is dirty there before, and drops what is there before and after a
/// write, so that who has the file open otherwise sees it (`generic_file_direct_write`,
/// mm/filemap.c). `FOPEN_DIRECT_IO` would add nothing but files that cannot be mapped.
fn via(flags: OpenFlags) -> Via {
    match flags.0 & OFlags::DIRECT.bits() as i32 {
        0 => Via::Cache,
        _ => Via::Direct,
    }
}

fn count_read(traffic: &Traffic, pieces: &[Bytes], since: Instant) {
    let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
    traffic.count(TrafficKind::Read, bytes, since.elapsed());
}

fn sized(reply: ReplyXattr, size: u32, data: &[u8]) {
    if size == 0 {
        reply.size(data.len() as u32);
    } else if data.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(data);
    }
}

impl fuser::Filesystem for Handler {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
        ];
        // What an older kernel does not know it does not need.
        for flag in wanted {
            let _ = config.add_capabilities(flag);
        }
        if self.posix_acl {
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_ACL);
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let nodes = Arc::clone(&self.nodes);
        let name = name.to_owned();
        let _ = request;
        let disabled = self.nodes.control().snapdir() == Snapdir::Disabled;
        run(&self.runtime, async move {
            match nodes.resolve(parent.0).await {
                Err(error) => reply.error(error),
                Ok(Target::File(file)) => {
                    let is_root = file.is_live && file.ino == file.filesystem.root();
                    if is_root && name == ".zfs" && !disabled {
                        let told = nodes.control().attributes(ControlNode::Zfs).await;
                        let attributes = control_attributes(nodes::ZFS, told);
                        let generation = Generation(0);
                        return reply.entry_with_ttls(
                            &Duration::ZERO,
                            &ENTRY_TTL,
                            &attributes,
                            generation,
                        );
                    }
                    match file.filesystem.lookup(file.ino, name.as_bytes()).await {
                        Ok(found) => Self::reply_entry(reply, &file, &found),
                        Err(FsError::NotFound { .. })
                            if file.filesystem.compares_names_exactly() =>
                        {
                            // Node 0: the kernel may remember that there is nothing.
                            reply.entry(&SHORT_TTL, &no_attributes(0), Generation(0));
                        }
                        Err(error) => reply.error(errno(&error)),
                    }
                }
                Ok(Target::Control(of)) => Self::reply_control(&nodes, of, &name, reply).await,
            }
        });
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        if self.nodes.forget(node.0, count) {
            // Whoever removes files asks for the next one at once. Several nodes may come in one
            // request: this thread must not wait for a turn before it has dealt with all.
            self.runtime.readers.stay();
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        // The file is let go of before this thread waits for its turn (`Nodes::pause`).
        let found = self.nodes.try_file(node.0).and_then(|file| {
            let found = file.filesystem.try_attributes(file.ino)?;
            Some((file.shown(file.ino), found))
        });
        if let Some((number, found)) = found {
            let ttl = Self::attributes_ttl(&found);
            let answer = || reply.attr(&ttl, &convert::attributes(number, &found));
            return self.runtime.at_once(answer);
        }
        let nodes = Arc::clone(&self.nodes);
        run(&self.runtime, async move {
            match Self::target_attributes(&nodes, node.0).await {
                Ok((attributes, ttl)) => reply.attr(&ttl, &attributes),
                Err(error) => reply.error(error),
            }
        });
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let caller = caller(request, 0);
        let mut set = SetAttributes {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size_bytes: size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
            ..SetAttributes::default()
        };
        // A change of nothing is all that is left of one that takes set-id bits away, since that is
        // ours to do (FUSE_HANDLE_KILLPRIV_V2): `chown -1:-1`, and what comes before a write or
        // fallocate.
        set.without_set_id = set == SetAttributes::default();
        on_file!(
            self,
            node,
            reply,
            |file| file.filesystem.set_attributes(file.ino, &set, caller),
            |found| {
                let number = file.shown(file.ino);
                reply.attr(
                    &Self::attributes_ttl(&found),
                    &convert::attributes(number, &found),
                );
            }
        );
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        on_file!(
            self,
            node,
            reply,
            |file| file.filesystem.read_link(file.ino),
            |target| {
                reply.data(&target);
            }
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(request, umask), name.to_owned());
        let Some(kind) = FileKind::from_mode(mode) else {
            return reply.error(Errno::EINVAL);
        };
        let rdev = convert::decode_rdev(rdev);
        on_file!(
            self,
            parent,
            reply,
            |file| file
                .filesystem
                .make_node(file.ino, name.as_bytes(), kind, mode, rdev, caller),
            |found| Self::reply_entry(reply, &file, &found)
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        if is_snapdir(parent) {
            return self.make_snapshot(request, name, reply);
        }
        let (caller, name) = (caller(request, umask), name.to_owned());
        on_file!(
            self,
            parent,
            reply,
            |file| file
                .filesystem
                .make_directory(file.ino, name.as_bytes(), mode, caller),
            |found| Self::reply_entry(reply, &file, &found)
        );
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        on_file!(
            self,
            parent,
            reply,
            |file| file.filesystem.unlink(file.ino, name.as_bytes()),
            |()| reply.ok()
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if is_snapdir(parent) {
            return self.remove_snapshot(request, name, reply);
        }
        let name = name.to_owned();
        on_file!(
            self,
            parent,
            reply,
            |file| file.filesystem.remove_directory(file.ino, name.as_bytes()),
            |()| reply.ok()
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (caller, name, target) = (caller(request, 0), name.to_owned(), target.to_owned());
        on_file!(
            self,
            parent,
            reply,
            |file| {
                let target = target.as_os_str().as_bytes();
                file.filesystem
                    .symlink(file.ino, name.as_bytes(), target, caller)
            },
            |found| Self::reply_entry(reply, &file, &found)
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if is_snapdir(parent) {
            let to = (new_parent, new_name);
            return self.rename_snapshot(request, name, to, flags, reply);
        }
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let nodes = Arc::clone(&self.nodes);
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        run(&self.runtime, async move {
            let outcome = async {
                let (from, to) = nodes.files(parent.0, new_parent.0).await?;
                from.filesystem
                    .rename(from.ino, name.as_bytes(), to.ino, new_name.as_bytes(), mode)
                    .await
                    .map_err(|error| errno(&error))
            };
            match outcome.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn link(
        &self,
        _request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let nodes = Arc::clone(&self.nodes);
        let new_name = new_name.to_owned();
        run(&self.runtime, async move {
            let outcome = async {
                let (file, parent) = nodes.files(node.0, new_parent.0).await?;
                let linked = file
                    .filesystem
                    .link(file.ino, parent.ino, new_name.as_bytes())
                    .await;
                Ok((parent, linked.map_err(|error| errno(&error))?))
            };
            match outcome.await {
                Ok((parent, found)) => Self::reply_entry(reply, &parent, &found),
                Err(error) => reply.error(error),
            }
        });
    }

    fn open(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // "Not needed": the kernel does not ask again, and keeps pages over opens.
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = size as usize;
        let moves_time = flags.0 & O_NOATIME == 0;
        let via = via(flags);
        let since = Instant::now();
        let at_once = |file: File| file.filesystem.try_read_via(file.ino, offset, length, via);
        if moves_time && let Some(pieces) = self.nodes.try_file(node.0).and_then(at_once) {
            self.runtime.readers.begin(length >= LONG_BYTES);
            count_read(&self.traffic, &pieces, since);
            convert::joined(&pieces, |data| reply.data(data));
            return self.runtime.readers.end();
        }
        let traffic = Arc::clone(&self.traffic);
        on_file!(
            self,
            node,
            reply,
            |file| file
                .filesystem
                .read_via(file.ino, offset, length, via, moves_time),
            |pieces| {
                count_read(&traffic, &pieces, since);
                convert::joined(&pieces, |data| reply.data(data));
            }
        );
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut caller = caller(request, 0);
        // The kernel says whether set-id bits are to go (and for a page written back later it does
        // not know who wrote it).
        if !write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            caller.uid = 0;
        } else if caller.uid == 0 {
            caller.uid = u32::MAX;
        }
        let (sync, via) = (flags.0 & O_DSYNC != 0, via(flags));
        let written = data.len() as u32;
        let (traffic, since) = (Arc::clone(&self.traffic), Instant::now());
        let data = if data.len() >= LONG_BYTES {
            device::FileDevice::aligned_copy(data)
        } else {
            Bytes::copy_from_slice(data)
        };
        on_file!(
            self,
            node,
            reply,
            Course::of_write(data.len()),
            |file| file
                .filesystem
                .write_via(file.ino, offset, data, via, sync, caller),
            |()| {
                traffic.count(TrafficKind::Write, written.into(), since.elapsed());
                reply.written(written)
            }
        );
    }

    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        on_file!(
            self,
            node,
            reply,
            Course::Logged,
            |file| file.filesystem.sync_file(file.ino),
            |()| reply.ok()
        );
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // `.zfs/snapshot` changes by itself, so listings are not to be kept.
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let nodes = Arc::clone(&self.nodes);
        let visible = self.nodes.control().snapdir() == Snapdir::Visible;
        run(&self.runtime, async move {
            match list(&nodes, node.0, offset, visible, &mut reply).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let nodes = Arc::clone(&self.nodes);
        let visible = self.nodes.control().snapdir() == Snapdir::Visible;
        run(&self.runtime, async move {
            match list_plus(&nodes, node.0, offset, visible, &mut reply).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        on_file!(
            self,
            node,
            reply,
            Course::Logged,
            |file| file.filesystem.sync_file(file.ino),
            |()| reply.ok()
        );
    }

    fn statfs(&self, _request: &Request, node: INodeNo, reply: ReplyStatfs) {
        let nodes = Arc::clone(&self.nodes);
        run(&self.runtime, async move {
            let found = match nodes.resolve(node.0).await {
                Ok(Target::File(file)) => file.filesystem.statistics_at(file.ino).await,
                _ => nodes.live().statistics().await,
            };
            match found {
                Ok(found) => reply.statfs(
                    found.blocks,
                    found.blocks_free,
                    found.blocks_free,
                    found.files,
                    found.files_free,
                    found.io_bytes,
                    found.name_bytes_max,
                    found.block_bytes,
                ),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let caller = caller(request, 0);
        let (name, value) = (name.to_owned(), value.to_vec());
        let mode = match flags & (XATTR_CREATE | XATTR_REPLACE) {
            0 => XattrMode::Any,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        on_file!(
            self,
            node,
            reply,
            |file| file
                .filesystem
                .xattrs()
                .set(file.ino, name.as_bytes(), &value, mode, caller),
            |()| reply.ok()
        );
    }

    fn getxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let is_none = match self.nodes.try_resolve(node.0) {
            Some(Target::File(file)) => file.filesystem.xattrs().lacks(file.ino, name.as_bytes()),
            Some(Target::Control(_)) => true,
            None => false,
        };
        if is_none {
            return self.runtime.at_once(|| reply.error(Errno::ENODATA));
        }
        let name = name.to_owned();
        on_file!(
            self,
            node,
            reply,
            |file| file.filesystem.xattrs().get(file.ino, name.as_bytes()),
            |value| sized(reply, size, &value)
        );
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let privileged = request.uid() == 0;
        if matches!(self.nodes.try_resolve(node.0), Some(Target::Control(_))) {
            return sized(reply, size, &[]);
        }
        on_file!(
            self,
            node,
            reply,
            |file| (file.filesystem.xattrs()).names_within(file.ino, LISTED_BYTES_MAX),
            |names| {
                let mut list = Vec::new();
                for name in names {
                    if privileged || !name.starts_with(b"trusted.") {
                        list.extend_from_slice(&name);
                        list.push(0);
                    }
                }
                sized(reply, size, &list);
            }
        );
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        on_file!(
            self,
            node,
            reply,
            |file| file.filesystem.xattrs().remove(file.ino, name.as_bytes()),
            |()| reply.ok()
        );
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        // "Make a node, then open it", which needs no asking: a file that was made so needs no
        // release when it is closed. The kernel does not ask again. Permissions were checked, so a
        // mode that forbids what the file is opened for does not matter.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let caller = caller(request, 0);
        let keep_size = mode & KEEP_SIZE != 0;
        let how = match mode & !KEEP_SIZE {
            0 => Allocate::Reserve { keep_size },
            PUNCH_HOLE if keep_size => Allocate::PunchHole,
            ZERO_RANGE => Allocate::ZeroRange { keep_size },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        on_file!(
            self,
            node,
            reply,
            |file| file
                .filesystem
                .allocate(file.ino, how, offset, length, caller),
            |()| reply.ok()
        );
    }

    fn lseek(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let to = match whence {
            SEEK_DATA => SeekTo::Data,
            SEEK_HOLE => SeekTo::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let nodes = Arc::clone(&self.nodes);
        let notifier = Arc::clone(&self.notifier);
        run(&self.runtime, async move {
            match seek(&nodes, notifier.get(), node.0, offset, to).await {
                Ok(found) => reply.offset(found as i64),
                Err(error) => reply.error(error),
            }
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        node_in: INodeNo,
        _handle_in: FileHandle,
        offset_in: u64,
        node_out: INodeNo,
        _handle_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        /// Most that one answer can tell, with room to spare.
        const LENGTH_MAX: u64 = 1 << 30;
        let caller = caller(request, 0);
        let nodes = Arc::clone(&self.nodes);
        run(&self.runtime, async move {
            let outcome = async {
                let (from, to) = nodes.files(node_in.0, node_out.0).await?;
                let length = length.min(LENGTH_MAX);
                let (from_fs, from) = (&from.filesystem, from.ino);
                let copying = to
                    .filesystem
                    .copy_range_of(from_fs, from, offset_in, to.ino, offset_out, length, caller);
                copying.await.map_err(|error| errno(&error))
            };
            match outcome.await {
                Ok(copied) => reply.written(copied as u32),
                Err(error) => reply.error(error),
            }
        });
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        input: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        // Programs that ask of every file whether it is a terminal need not wait for it to be
        // looked up.
        if !crate::flags::is_known(command) {
            return self.runtime.at_once(|| reply.error(Errno::ENOTTY));
        }
        let caller = caller(request, 0);
        let input = input.to_vec();
        let nodes = Arc::clone(&self.nodes);
        run(&self.runtime, async move {
            let outcome = async {
                let file = nodes.file(node.0).await?;
                if command == crate::flags::SET_DOS && nodes.is_read_only() {
                    return Err(Errno::EROFS);
                }
                crate::flags::ioctl(&file, command, &input, caller).await
            };
            match outcome.await {
                Ok(output) => reply.ioctl(0, &output),
                Err(error) => reply.error(error),
            }
        });
    }
}
