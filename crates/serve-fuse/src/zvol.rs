//! Volumes as files `POOL/VOLUME` in one FUSE filesystem.
//!
//! Directories follow from the names. A file's size is its volume's; it cannot be changed here.
//! Reads and writes go past the kernel's page cache only where the opener asks (`O_DIRECT`);
//! otherwise the cache is kept, since others (iSCSI) write too only where an administrator serves
//! one volume twice; a rollback drops it. `fsync` is the volume's flush, punching a hole its unmap:
//! so `losetup` passes both on from a filesystem on top.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use access::{Lease, Paused, Resident};
use bytes::Bytes;
use device::BoxFuture;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, Notifier, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use parking_lot::RwLock;
use volume::{Volume, VolumeError};

use crate::attach::Attachment;
use crate::convert::joined;
use crate::error::Result;
use crate::mount::{Served, UnmountMode};
use crate::nodes::ROOT;
use crate::task::{Course, LONG_BYTES, Runner, run, run_as};

/// How long the kernel may go by a size that it was told; [`ZvolDirectory::resized`] tells it
/// sooner.
const TTL: Duration = Duration::from_secs(1);
/// How long it may go by a name. Volumes come and go, and are replaced under the same name: not at
/// all.
const NAME_TTL: Duration = Duration::ZERO;
const WRITE_BYTES_MAX: u32 = 1 << 20;
const O_DSYNC: i32 = 0o10000;
/// Threads that read requests.
const THREADS: usize = 2;
/// `FALLOC_FL_*` (include/uapi/linux/falloc.h).
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 0x10;

fn errno(error: &VolumeError) -> Errno {
    match error {
        VolumeError::OutOfRange { .. } | VolumeError::BadSize { .. } => Errno::EINVAL,
        VolumeError::ReadOnly { .. } => Errno::EROFS,
        VolumeError::NoSpace { .. } => Errno::ENOSPC,
        _ => Errno::EIO,
    }
}

struct Shown {
    volume: Arc<Lease<Volume>>,
    opens: Arc<AtomicUsize>,
    /// Gone as soon as nobody has it open.
    is_leaving: bool,
    pages: Arc<Pages>,
}

/// What the kernel holds of a file's size and content.
struct Pages {
    node: u64,
    notifier: Notifier,
}

impl Pages {
    /// Has the kernel write what it has to, and drop the rest.
    async fn forget(&self) {
        let (node, notifier) = (self.node, self.notifier.clone());
        // It waits for pages that are being read, so not on a thread of the runtime.
        let forget = move || notifier.inval_inode(INodeNo(node), 0, 0);
        let _ = tokio::task::spawn_blocking(forget).await;
    }
}

/// Requests wait by themselves while the volume is rolled back ([`Lease<Volume>`]); what the kernel
/// holds is of the state before.
impl Resident for Pages {
    fn pause(self: Arc<Self>) -> BoxFuture<'static, Option<Box<dyn Paused>>> {
        Box::pin(async move {
            self.forget().await;
            Some(Box::new(PausedPages(self)) as _)
        })
    }
}

struct PausedPages(Arc<Pages>);

impl Paused for PausedPages {
    fn resume(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.0.forget().await })
    }
}

enum Node {
    Directory {
        parent: u64,
        entries: BTreeMap<String, u64>,
    },
    File {
        parent: u64,
        shown: Shown,
    },
}

/// The tree of names. Numbers are never used twice.
struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

impl Tree {
    fn new() -> Self {
        let root = Node::Directory {
            parent: ROOT,
            entries: BTreeMap::new(),
        };
        Self {
            nodes: HashMap::from([(ROOT, root)]),
            next: ROOT + 1,
        }
    }

    fn entries(&mut self, node: u64) -> Option<&mut BTreeMap<String, u64>> {
        match self.nodes.get_mut(&node)? {
            Node::Directory { entries, .. } => Some(entries),
            Node::File { .. } => None,
        }
    }

    fn find(&self, name: &str) -> Option<u64> {
        name.split('/')
            .filter(|part| !part.is_empty())
            .try_fold(ROOT, |node, part| match self.nodes.get(&node)? {
                Node::Directory { entries, .. } => entries.get(part).copied(),
                Node::File { .. } => None,
            })
    }

    fn insert(&mut self, name: &str, volume: Arc<Lease<Volume>>, notifier: Notifier) {
        let number = self.next;
        self.next += 1;
        let node = number;
        let pages = Arc::new(Pages { node, notifier });
        let resident: Weak<Pages> = Arc::downgrade(&pages);
        volume.set_resident(resident);
        let shown = Shown {
            volume,
            opens: Arc::default(),
            is_leaving: false,
            pages,
        };
        self.place(name, number, shown);
    }

    /// Puts a file at a name, with the directories that it takes. It keeps its number, by which
    /// those know it who have it open.
    fn place(&mut self, name: &str, file: u64, shown: Shown) {
        let mut node = ROOT;
        let parts: Vec<_> = name.split('/').filter(|part| !part.is_empty()).collect();
        let Some((last, above)) = parts.split_last() else {
            return;
        };
        for part in above {
            let number = self.next;
            let Some(entries) = self.entries(node) else {
                return;
            };
            let next = *entries.entry((*part).to_owned()).or_insert(number);
            if next == number {
                self.next += 1;
                let directory = Node::Directory {
                    parent: node,
                    entries: BTreeMap::new(),
                };
                self.nodes.insert(number, directory);
            }
            node = next;
        }
        let Some(entries) = self.entries(node) else {
            return;
        };
        if let Some(before) = entries.insert((*last).to_owned(), file) {
            self.nodes.remove(&before);
        }
        let parent = node;
        self.nodes.insert(file, Node::File { parent, shown });
    }

    fn rename(&mut self, from: &str, to: &str) {
        if let Some(number) = self.find(from)
            && let Some(shown) = self.remove_node(number)
        {
            self.place(to, number, shown);
        }
    }

    fn remove(&mut self, name: &str) -> bool {
        let number = self.find(name);
        number.is_some_and(|number| self.remove_node(number).is_some())
    }

    fn remove_node(&mut self, number: u64) -> Option<Shown> {
        if !matches!(self.nodes.get(&number)?, Node::File { .. }) {
            return None;
        }
        let Some(Node::File { mut parent, shown }) = self.nodes.remove(&number) else {
            return None;
        };
        // Directories that are empty then go too.
        let mut gone = number;
        loop {
            let entries = self.entries(parent)?;
            entries.retain(|_, there| *there != gone);
            let is_empty = entries.is_empty();
            if parent == ROOT || !is_empty {
                return Some(shown);
            }
            gone = parent;
            if let Some(Node::Directory { parent: above, .. }) = self.nodes.remove(&gone) {
                parent = above;
            }
        }
    }

    /// Removes a file that is to leave, unless somebody has it open.
    fn leave(&mut self, number: u64) {
        if let Some(Node::File { shown, .. }) = self.nodes.get(&number)
            && shown.is_leaving
            && shown.opens.load(Ordering::Acquire) == 0
        {
            self.remove_node(number);
        }
    }

    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut left = vec![(String::new(), ROOT)];
        while let Some((path, node)) = left.pop() {
            match self.nodes.get(&node) {
                Some(Node::Directory { entries, .. }) => {
                    left.extend(entries.iter().map(|(name, node)| {
                        let separator = if path.is_empty() { "" } else { "/" };
                        (format!("{path}{separator}{name}"), *node)
                    }));
                }
                Some(Node::File { .. }) => names.push(path),
                None => {}
            }
        }
        names.sort();
        names
    }
}

struct Handler {
    tree: Arc<RwLock<Tree>>,
    runtime: Runner,
    started: SystemTime,
    uid: u32,
    gid: u32,
}

impl Handler {
    fn volume(&self, node: INodeNo) -> std::result::Result<Arc<Lease<Volume>>, Errno> {
        match self.tree.read().nodes.get(&node.0) {
            Some(Node::File { shown, .. }) => Ok(Arc::clone(&shown.volume)),
            Some(Node::Directory { .. }) => Err(Errno::EISDIR),
            None => Err(Errno::ESTALE),
        }
    }

    fn attributes(&self, tree: &Tree, node: u64) -> Option<FileAttr> {
        let (kind, perm, size, nlink, blksize) = match tree.nodes.get(&node)? {
            Node::Directory { entries, .. } => {
                (FileType::Directory, 0o755, entries.len() as u64 + 2, 2, 512)
            }
            Node::File { shown, .. } => {
                let perm = if shown.volume.get().is_read_only() {
                    0o400
                } else {
                    0o600
                };
                let size = shown.volume.get().size_bytes();
                (
                    FileType::RegularFile,
                    perm,
                    size,
                    1,
                    shown.volume.get().block_bytes(),
                )
            }
        };
        Some(FileAttr {
            ino: INodeNo(node),
            size,
            blocks: size / 512,
            atime: self.started,
            mtime: self.started,
            ctime: self.started,
            crtime: self.started,
            kind,
            perm,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize,
            flags: 0,
        })
    }
}

impl fuser::Filesystem for Handler {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flag in [InitFlags::FUSE_MAX_PAGES, InitFlags::FUSE_ASYNC_DIO] {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let tree = self.tree.read();
        let found = match (tree.nodes.get(&parent.0), name.to_str()) {
            (Some(Node::Directory { entries, .. }), Some(name)) => entries.get(name).copied(),
            _ => None,
        };
        match found.and_then(|node| self.attributes(&tree, node)) {
            Some(attributes) => {
                reply.entry_with_ttls(&TTL, &NAME_TTL, &attributes, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.attributes(&self.tree.read(), node.0) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let tree = self.tree.read();
        let Some(attributes) = self.attributes(&tree, node.0) else {
            return reply.error(Errno::ESTALE);
        };
        // A device's size stays whatever is cut off or written (`dd of=`); times are not kept.
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        let _ = size;
        reply.attr(&Duration::ZERO, &attributes);
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let tree = self.tree.read();
        match tree.nodes.get(&node.0) {
            Some(Node::File { shown, .. }) => {
                let writes = flags.acc_mode() != fuser::OpenAccMode::O_RDONLY;
                if writes && shown.volume.get().is_read_only() {
                    return reply.error(Errno::EROFS);
                }
                shown.opens.fetch_add(1, Ordering::AcqRel);
                reply.opened(FileHandle(node.0), FopenFlags::empty());
            }
            Some(Node::Directory { .. }) => reply.error(Errno::EISDIR),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn release(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let is_left = match self.tree.read().nodes.get(&node.0) {
            Some(Node::File { shown, .. }) => {
                shown.opens.fetch_sub(1, Ordering::AcqRel) == 1 && shown.is_leaving
            }
            _ => false,
        };
        if is_left {
            self.tree.write().leave(node.0);
        }
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let volume = match self.volume(node) {
            Ok(volume) => volume,
            Err(error) => return reply.error(error),
        };
        let length = volume
            .get()
            .size_bytes()
            .saturating_sub(offset)
            .min(u64::from(size)) as usize;
        if length == 0 {
            return reply.data(&[]);
        }
        if let Some(pieces) = volume.try_read(offset, length) {
            return self
                .runtime
                .at_once(|| joined(&pieces, |data| reply.data(data)));
        }
        run(&self.runtime, async move {
            match volume.read(offset, length).await {
                Ok(pieces) => joined(&pieces, |data| reply.data(data)),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let volume = match self.volume(node) {
            Ok(volume) => volume,
            Err(error) => return reply.error(error),
        };
        let room = volume
            .get()
            .size_bytes()
            .saturating_sub(offset)
            .min(data.len() as u64) as usize;
        if room == 0 {
            return reply.error(Errno::ENOSPC);
        }
        let data = Bytes::copy_from_slice(&data[..room]);
        let durable = flags.0 & O_DSYNC != 0;
        let course = match room < LONG_BYTES {
            true => Course::Logged,
            false => Course::Any,
        };
        run_as(&self.runtime, course, async move {
            match volume.write(offset, data, durable).await {
                Ok(()) => reply.written(room as u32),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let volume = match self.volume(node) {
            Ok(volume) => volume,
            Err(error) => return reply.error(error),
        };
        run_as(&self.runtime, Course::Logged, async move {
            match volume.flush().await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn fallocate(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let volume = match self.volume(node) {
            Ok(volume) => volume,
            Err(error) => return reply.error(error),
        };
        let length = volume.get().size_bytes().saturating_sub(offset).min(length);
        run(&self.runtime, async move {
            let outcome = match mode & !KEEP_SIZE {
                0 => Ok(()),
                PUNCH_HOLE => volume.unmap(offset, length).await,
                ZERO_RANGE => volume.write_zeroes(offset, length, false).await,
                _ => return reply.error(Errno::EOPNOTSUPP),
            };
            match outcome {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
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
        let volume = match self.volume(node) {
            Ok(volume) => volume,
            Err(error) => return reply.error(error),
        };
        let size = volume.get().size_bytes();
        let start = match u64::try_from(offset) {
            Ok(start) if start < size => start,
            _ => return reply.error(Errno::ENXIO),
        };
        if whence != SEEK_DATA && whence != SEEK_HOLE {
            return reply.error(Errno::EINVAL);
        }
        run(&self.runtime, async move {
            let mut place = start;
            while place < size {
                match volume.extent_at(place, size - place).await {
                    Ok(extent) if extent.is_mapped == (whence == SEEK_DATA) => {
                        return reply.offset(place as i64);
                    }
                    Ok(extent) => place += extent.length_bytes,
                    Err(error) => return reply.error(errno(&error)),
                }
            }
            if whence == SEEK_HOLE {
                reply.offset(size as i64)
            } else {
                reply.error(Errno::ENXIO)
            }
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let tree = self.tree.read();
        let Some(Node::Directory { parent, entries }) = tree.nodes.get(&node.0) else {
            return reply.error(Errno::ENOTDIR);
        };
        let dots = [(".", node.0), ("..", *parent)];
        let named = entries.iter().map(|(name, node)| (&name[..], *node));
        for (index, (name, entry)) in (1..).zip(dots.into_iter().chain(named)) {
            let kind = match tree.nodes.get(&entry) {
                Some(Node::File { .. }) => FileType::RegularFile,
                _ => FileType::Directory,
            };
            if index > offset && reply.add(INodeNo(entry), index, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        reply.statfs(
            0,
            0,
            0,
            self.tree.read().nodes.len() as u64,
            0,
            4096,
            255,
            512,
        );
    }
}

/// A directory of volumes, mounted. Dropping it unmounts lazily.
pub struct ZvolDirectory {
    served: Served,
    tree: Arc<RwLock<Tree>>,
}

impl ZvolDirectory {
    /// Mounts an empty one at `mountpoint`. Call it within a tokio runtime, where requests are then
    /// served.
    ///
    /// # Errors
    /// What stands in the way of mounting, as [`crate::MountError`] tells apart.
    pub async fn mount(mountpoint: &Path) -> Result<Self> {
        let tree = Arc::new(RwLock::new(Tree::new()));
        let runtime = Runner::current(filesystem::Origin::NONE);
        let readers = runtime.readers.clone();
        let handler = Handler {
            tree: Arc::clone(&tree),
            runtime,
            started: SystemTime::now().max(UNIX_EPOCH),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let attachment = Attachment {
            source_name: "millpond-zvol".into(),
            read_only: false,
            devices: false,
            setuid: false,
            exec: true,
            // Loop devices read and write as root whoever made them.
            allow_other: rustix::process::geteuid().is_root(),
        };
        let served = Served::start(
            handler,
            &readers,
            mountpoint,
            attachment,
            THREADS,
            (true, None),
        )
        .await?;
        Ok(Self { served, tree })
    }

    /// Shows a volume at `name` (`pool/dir/volume`; `@snapshot` may follow). Replaces what was
    /// there.
    pub fn insert(&self, name: &str, volume: Lease<Volume>) {
        let notifier = self.served.notifier().clone();
        self.tree.write().insert(name, Arc::new(volume), notifier);
    }

    /// Takes a volume away: open files of it fail from now on. Whether it was there.
    pub fn remove(&self, name: &str) -> bool {
        self.tree.write().remove(name)
    }

    /// Gives a volume another name; who has its file open goes on.
    pub fn rename(&self, from: &str, to: &str) {
        self.tree.write().rename(from, to);
    }

    /// Takes a volume away once nobody has its file open, maybe at once (`leaves`), or keeps it
    /// after all.
    pub fn set_leaving(&self, name: &str, leaves: bool) {
        let mut tree = self.tree.write();
        let Some(number) = tree.find(name) else {
            return;
        };
        if let Some(Node::File { shown, .. }) = tree.nodes.get_mut(&number) {
            shown.is_leaving = leaves;
        }
        tree.leave(number);
    }

    /// Has the kernel ask for the size of a volume's file again, and drop what it holds of the
    /// content: beyond the end of one that was made smaller, and bigger again, there is nothing
    /// now.
    pub async fn resized(&self, name: &str) {
        let pages = {
            let tree = self.tree.read();
            match tree.find(name).and_then(|node| tree.nodes.get(&node)) {
                Some(Node::File { shown, .. }) => Arc::clone(&shown.pages),
                _ => return,
            }
        };
        pages.forget().await;
    }

    /// Whether some process (or loop device) has the volume's file open.
    pub fn is_open(&self, name: &str) -> bool {
        let tree = self.tree.read();
        match tree.find(name).and_then(|node| tree.nodes.get(&node)) {
            Some(Node::File { shown, .. }) => shown.opens.load(Ordering::Acquire) > 0,
            _ => false,
        }
    }

    /// Names shown.
    pub fn names(&self) -> Vec<String> {
        self.tree.read().names()
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        self.served.mountpoint()
    }

    /// Unmounts.
    ///
    /// # Errors
    /// [`crate::MountError::Busy`] and what else stands in the way.
    pub async fn unmount(&self, mode: UnmountMode) -> Result<()> {
        self.served.unmount(mode).await
    }
}
