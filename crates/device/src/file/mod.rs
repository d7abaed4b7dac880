//! Files and block devices.
//!
//! An operation becomes a [`request::Request`] that owns its memory, goes to one of two engines (an
//! io_uring ring with an owner thread, or threads that block), and answers through a channel. Reads
//! that the page cache can answer never leave the caller's task. Dropping the future of an
//! operation does not take the operation back: the kernel may already be at it, so it happens, and
//! its memory lives until it has.
//!
//! # Devices that do not answer
//!
//! The threads of a device are its own ([`lane`]), as is the one that opens or closes it
//! ([`aside`]); a ring that it shares never waits for it, and has room for all that it may have
//! under way ([`uring`]): nothing that a device can keep waiting is anybody else's. No call that
//! may wait for a device or for a file's server is made on a caller's task. This matters most where
//! devices depend on each other: a file on a filesystem of one pool is a vdev of another, and is
//! answered once the first pool's devices have worked.
//!
//! # The page cache
//!
//! The engine above has a cache of its own, so that the page cache would hold everything twice, and
//! copying into it costs more than all else that a write does. So besides the plain descriptor
//! there is one opened with `O_DIRECT`, and what is aligned (to the logical block of a block
//! device; to a page in a file) goes direct, from aligned memory ([`FileDevice::aligned_copy`])
//! without any copy; other memory is copied once. The rest, and all where the filesystem has no
//! direct I/O, goes through the page cache ([`FileOptions::direct`]); so does a file that is only
//! read, which others may have read before. The kernel keeps the two ways coherent: a direct
//! operation writes back and drops the cached pages of its range. A flush covers both.
//!
//! # Durable writes
//!
//! A write that is to be durable when it is done ([`Device::write_durable`]) is one system call
//! with `RWF_DSYNC`: the kernel has the disk write through its cache where it can (FUA), and
//! flushes it where it cannot. Where it is not known that this holds ([`knows_durable_writes`]), a
//! flush follows the write, on the same thread of the device's, so that whoever waits for both is
//! woken once.
//!
//! # Two daemons, one device
//!
//! A device opened for writing is locked (`flock`, exclusive) until it is closed; block devices are
//! also opened `O_EXCL`, which the kernel refuses while they are mounted or held by another
//! subsystem. Looking at labels while another process owns the pool is normal, so readers take no
//! lock, until they ask that what they read stays as it is ([`Device::keep_writers_out`]: `flock`,
//! shared).
//!
//! # What a crash leaves
//!
//! Completed writes that no later flush covered may be lost or torn, as on any disk.

mod aside;
mod assembly;
mod blocking;
mod buffer;
mod foreign;
pub(crate) mod hold;
mod lane;
mod request;
#[cfg(test)]
mod stopped_tests;
#[cfg(test)]
mod tests;
mod uring;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::oneshot;

pub(crate) use self::aside::away;
pub use self::assembly::WriteBuffer;
use self::buffer::AlignedBuffer;
use self::lane::Lane;
use self::request::{Action, Descriptors, Durability, Request};
use self::uring::Ring;
use crate::memory::{check_range, read_only_error};
use crate::{BoxFuture, Device, DeviceError, Foreign, Hold, MemoryUser, MemoryUses};

/// How often and how long to wait for a lock that somebody holds for a moment (udev probes
/// devices; an exported pool's last operation may still be ending).
const LOCK_TRIES: u32 = 80;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Longest read that is tried from the page cache before it goes to an engine; copying that much
/// takes some tens of microseconds.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// Which engine carries operations out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum IoEngine {
    /// What the environment variable `MILLPOND_IO_ENGINE` says (`uring` or `blocking`); else
    /// io_uring where the system has it, else threads.
    #[default]
    Auto,
    /// io_uring; opening fails where the system lacks it.
    Uring,
    /// Threads that block in system calls.
    Blocking,
}

/// How to open a [`FileDevice`].
#[derive(Debug, Default, Clone)]
pub struct FileOptions {
    /// Refuse writes, and take no lock until [`Device::keep_writers_out`].
    pub read_only: bool,
    /// Bypass the page cache for aligned operations: `Some` decides. `None` means block devices do,
    /// and files that are opened for writing unless the environment variable `MILLPOND_DIRECT` is
    /// `off`.
    pub direct: Option<bool>,
    /// Which engine to use.
    pub engine: IoEngine,
    /// Never lock the device, not even when it is opened for writing.
    pub unlocked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Engine {
    Uring,
    Blocking,
}

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    path: String,
    /// As of the opening, or of [`Device::look_again`].
    size_bytes: AtomicU64,
    /// What the path named then: device and inode, or the number of the block device.
    identity: (u64, u64),
    /// Smallest write without read-modify-write.
    sector_bytes: u32,
    /// What direct I/O must be aligned to.
    logical_block_bytes: u32,
    is_block_device: bool,
    supports_discard: bool,
    read_only: bool,
    unlocked: bool,
    /// Another machine or process answers for the file: nothing of it is near.
    is_remote: bool,
    engine: Engine,
    /// What makes a write durable that is to be so when it is done.
    durability: Durability,
    /// Its driver never sleeps in a submission that is not to block.
    shares_rings: bool,
    lane: Lane,
    /// Started when something is to be done that it is the place for; nothing where there is none.
    ring: OnceLock<Option<Ring>>,
    /// Always there, but while the device is dropped.
    files: Option<Arc<Descriptors>>,
}

impl FileDevice {
    /// Opens `path`. Blocks for as long as the system takes; see [`FileDevice::open_async`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::Open`] with the system's answer; [`DeviceError::InUse`] when another opening
    /// holds the device for writing.
    pub fn open(path: impl Into<String>, options: &FileOptions) -> Result<Self, DeviceError> {
        let path = path.into();
        match open_file(&path, options) {
            Ok(device) => Ok(device),
            Err(OpenError::InUse) => Err(DeviceError::InUse { path }),
            Err(OpenError::System(source)) => Err(DeviceError::Open { path, source }),
        }
    }

    /// [`FileDevice::open`] away from the caller's task.
    ///
    /// # Errors
    ///
    /// As [`FileDevice::open`].
    pub async fn open_async(path: String, options: FileOptions) -> Result<Self, DeviceError> {
        let place = path.clone();
        away(&place, move || FileDevice::open(path, &options)).await?
    }

    /// Whether somebody holds `path` for writing, after a moment of patience. False as well where
    /// that cannot be found out.
    pub async fn is_held(path: String) -> bool {
        let place = path.clone();
        away(&place, move || is_held(&path)).await.unwrap_or(false)
    }

    /// What other software has on `path`.
    ///
    /// # Errors
    /// [`DeviceError::Unexamined`] when that cannot be found out.
    pub async fn foreign(path: String) -> Result<Option<Foreign>, DeviceError> {
        let place = path.clone();
        away(&place, move || foreign::probe(&path)).await?
    }

    /// Keeps others off `path`, which is not opened for use; within this process it may be held
    /// more than once.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] when somebody has it, [`DeviceError::Open`] with the system's answer.
    pub async fn hold(path: String) -> Result<Hold, DeviceError> {
        let place = path.clone();
        away(&place, move || match hold::hold(&path) {
            Ok(file) => Ok(Hold::new(file)),
            Err(OpenError::InUse) => Err(DeviceError::InUse { path }),
            Err(OpenError::System(source)) => Err(DeviceError::Open { path, source }),
        })
        .await?
    }

    /// Lets this process open `path` although it holds it ([`FileDevice::hold`]), until somebody
    /// asks to hold it again.
    pub async fn lend(path: String) {
        let place = path.clone();
        // One that nobody can look at is not opened either.
        let _ = away(&place, move || hold::lend(&path)).await;
    }

    /// Whether operations go through io_uring.
    pub fn uses_uring(&self) -> bool {
        self.engine == Engine::Uring
    }

    /// Whether aligned operations bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.files().direct.is_some()
    }

    fn files(&self) -> &Arc<Descriptors> {
        let files = self.files.as_ref();
        files.expect("a device has its files until it is dropped")
    }

    /// Its ring, if operations are to go there.
    fn ring(&self) -> Option<&Ring> {
        if self.engine != Engine::Uring || self.is_remote {
            return None;
        }
        let start = || match Ring::start(self.lane.clone(), self.shares_rings) {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::warn!(%error, path = self.path, "no ring for a device: threads do it all");
                None
            }
        };
        self.ring.get_or_init(start).as_ref()
    }

    /// Runs what may wait for the device on its threads.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, io::Error> {
        let (send, receive) = oneshot::channel();
        self.lane.run(Box::new(move || {
            let _ = send.send(work());
        }));
        receive.await.map_err(|_| stopped())
    }

    fn aligned(&self, offset_bytes: u64, length: usize) -> bool {
        let block = u64::from(self.logical_block_bytes);
        self.files().direct.is_some()
            && length > 0
            && offset_bytes.is_multiple_of(block)
            && (length as u64).is_multiple_of(block)
    }

    async fn submit(
        &self,
        op: &'static str,
        offset_bytes: u64,
        length_bytes: u64,
        direct: bool,
        action: Action,
    ) -> Result<Option<AlignedBuffer>, DeviceError> {
        let (answer, receive) = oneshot::channel();
        let request = Request {
            files: self.files().clone(),
            direct,
            offset_bytes,
            action,
            answer,
        };
        match if direct { self.ring() } else { None } {
            Some(ring) => ring.submit(request),
            None => blocking::submit(&self.lane, request),
        }
        match receive.await.unwrap_or_else(|_| Err(stopped())) {
            Ok(buffer) => Ok(buffer),
            Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                // Shorter than when it was opened.
                let files = self.files().clone();
                let size = self.aside(move || rustix::fs::fstat(&files.buffered)).await;
                Err(DeviceError::OutOfRange {
                    path: self.path.clone(),
                    op,
                    offset_bytes,
                    length_bytes,
                    size_bytes: match size {
                        Ok(Ok(stat)) => stat.st_size as u64,
                        _ => self.size_bytes(),
                    },
                })
            }
            Err(source) => Err(self.error(op, offset_bytes, length_bytes, source)),
        }
    }

    fn error(
        &self,
        op: &'static str,
        offset_bytes: u64,
        length_bytes: u64,
        source: io::Error,
    ) -> DeviceError {
        let path = self.path.clone();
        match Errno::from_io_error(&source) {
            Some(Errno::NODEV | Errno::NXIO) => DeviceError::Gone { path },
            _ => DeviceError::Io {
                path,
                op,
                offset_bytes,
                length_bytes,
                source,
            },
        }
    }

    fn check(
        &self,
        op: &'static str,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), DeviceError> {
        if self.read_only && op != "read" {
            return Err(read_only_error(&self.path, op, offset_bytes, length_bytes));
        }
        check_range(
            &self.path,
            op,
            offset_bytes,
            length_bytes,
            self.size_bytes(),
        )
    }

    async fn write_parts(
        &self,
        offset_bytes: u64,
        parts: Vec<Bytes>,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let length: usize = parts.iter().map(Bytes::len).sum();
        self.check("write", offset_bytes, length as u64)?;
        if length == 0 {
            return Ok(());
        }
        let direct = self.aligned(offset_bytes, length);
        let parts = if direct && !self.memory_is_aligned(&parts) {
            vec![AlignedBuffer::gather(&parts).into_bytes()]
        } else {
            parts
        };
        let action = Action::Write {
            parts,
            done: 0,
            durability,
        };
        self.submit("write", offset_bytes, length as u64, direct, action)
            .await
            .map(drop)
    }

    /// Takes what the page cache has, here and now; true when that was everything. What leaves this
    /// task costs a few microseconds more than copying a cached block does.
    fn read_cached(&self, offset_bytes: u64, buffer: &mut AlignedBuffer) -> bool {
        let target = buffer.unfilled_slice();
        let wanted = target.len();
        if wanted > INLINE_BYTES_MAX || self.is_remote {
            return false;
        }
        let result = rustix::io::preadv2(
            &self.files().buffered,
            &mut [io::IoSliceMut::new(target)],
            offset_bytes,
            ReadWriteFlags::NOWAIT,
        );
        // Whatever the matter is, the engine will meet it again.
        let count = result.unwrap_or(0);
        buffer.advance(count);
        count == wanted
    }

    /// A copy of `data` in memory that direct I/O takes as it is, recycled where there is some.
    pub fn aligned_copy(data: &[u8]) -> Bytes {
        AlignedBuffer::copy_of(data).into_bytes()
    }

    /// `parts` in one, in recycled memory where there is some.
    pub fn gathered(parts: &[Bytes]) -> Bytes {
        AlignedBuffer::gather(parts).into_bytes()
    }

    /// Keeps so much freed memory for reuse from now on, in the whole process; 128 MiB at most.
    pub fn keep_memory_at_most(bytes: u64) {
        buffer::keep_at_most(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Adds the freed memory that the process keeps for reuse.
    pub fn add_memory(uses: &mut MemoryUses) {
        let (kept_bytes, most_bytes) = buffer::kept_bytes();
        let bound_bytes = Some(most_bytes as u64);
        uses.add(MemoryUser::SpareBuffers, kept_bytes as u64, bound_bytes);
    }

    /// Gives back memory that was kept for reuse and that nobody needed since this was called last.
    /// To be called now and then.
    pub fn give_back_unused_memory() {
        buffer::give_back_unused();
    }

    fn memory_is_aligned(&self, parts: &[Bytes]) -> bool {
        let block = self.logical_block_bytes as usize;
        parts.iter().all(|part| {
            (part.as_ptr() as usize).is_multiple_of(block) && part.len().is_multiple_of(block)
        })
    }
}

impl Device for FileDevice {
    fn path(&self) -> &str {
        &self.path
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn keep_writers_out(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            if !self.read_only || self.unlocked {
                return Ok(());
            }
            let files = self.files().clone();
            let locking = self
                .aside(move || lock_now(&files.buffered, FlockOperation::NonBlockingLockShared));
            match locking.await.unwrap_or_else(|error| Err(error.into())) {
                Err(OpenError::InUse) => Err(DeviceError::InUse {
                    path: self.path.clone(),
                }),
                // Some filesystems have no locks; what is there is read all the same.
                Ok(()) | Err(OpenError::System(_)) => Ok(()),
            }
        })
    }

    fn look_again(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let (path, identity, files) = (self.path.clone(), self.identity, self.files().clone());
            let size = self.aside(move || size_again(&path, identity, &files));
            match size.await.unwrap_or_else(Err) {
                Ok(size) => {
                    self.size_bytes.store(size, Ordering::Relaxed);
                    Ok(())
                }
                Err(source) => Err(DeviceError::Open {
                    path: self.path.clone(),
                    source,
                }),
            }
        })
    }

    fn outstanding(&self) -> usize {
        // Each request has the descriptors, and so has who looks at the device again.
        Arc::strong_count(self.files()) - 1
    }

    fn supports_discard(&self) -> bool {
        self.supports_discard
    }

    fn read(&self, offset_bytes: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DeviceError>> {
        Box::pin(async move {
            self.check("read", offset_bytes, length as u64)?;
            if length == 0 {
                return Ok(Bytes::new());
            }
            let mut buffer = AlignedBuffer::with_length(length);
            let direct = self.aligned(offset_bytes, length);
            if !direct && self.read_cached(offset_bytes, &mut buffer) {
                return Ok(buffer.into_bytes());
            }
            let action = Action::Read { buffer };
            let buffer = self
                .submit("read", offset_bytes, length as u64, direct, action)
                .await?;
            Ok(buffer
                .expect("a read that succeeded gives its buffer back")
                .into_bytes())
        })
    }

    fn write(&self, offset_bytes: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.write_parts(offset_bytes, vec![data], Durability::Later))
    }

    fn write_vectored(
        &self,
        offset_bytes: u64,
        parts: Vec<Bytes>,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.write_parts(offset_bytes, parts, Durability::Later))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            if self.read_only {
                return Ok(());
            }
            self.submit("flush", 0, self.size_bytes(), false, Action::Flush)
                .await
                .map(drop)
        })
    }

    fn write_durable(
        &self,
        offset_bytes: u64,
        data: Bytes,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(self.write_parts(offset_bytes, vec![data], self.durability))
    }

    fn discard(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.check("discard", offset_bytes, length_bytes)?;
            if length_bytes == 0 {
                return Ok(());
            }
            let action = if self.is_block_device {
                Action::BlockDiscard { length_bytes }
            } else {
                Action::PunchHole { length_bytes }
            };
            self.submit("discard", offset_bytes, length_bytes, false, action)
                .await
                .map(drop)
        })
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // What is under way has the files as well, and who is last closes them.
        if let Some(files) = self.files.take().and_then(Arc::into_inner) {
            aside::close(files);
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other("the I/O engine has stopped")
}

/// Why opening failed.
enum OpenError {
    InUse,
    System(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        OpenError::System(error)
    }
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        OpenError::System(errno.into())
    }
}

fn open_file(path: &str, options: &FileOptions) -> Result<FileDevice, OpenError> {
    let access = if options.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    } | OFlags::CLOEXEC;
    // Nothing but a file or block device is opened at all: opening others may block or act.
    let kind = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode);
    let is_block_device = match kind {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        _ => {
            return Err(OpenError::System(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither a regular file nor a block device",
            )));
        }
    };
    let lock = !options.read_only && !options.unlocked;
    let exclusive = if is_block_device && lock {
        OFlags::EXCL
    } else {
        OFlags::empty()
    };
    let buffered = open_retrying(path, access | exclusive, lock)?;
    let opened = rustix::fs::fstat(&buffered)?;
    if FileType::from_raw_mode(opened.st_mode) != kind {
        return Err(OpenError::System(io::Error::other(
            "the path changed what it names while it was opened",
        )));
    }
    if lock {
        lock_now(&buffered, FlockOperation::NonBlockingLockExclusive)?;
    }
    let (size_bytes, logical_block_bytes, sector_bytes) = if is_block_device {
        let size = rustix::fs::seek(&buffered, SeekFrom::End(0))?;
        let logical = rustix::fs::ioctl_blksszget(&buffered)?;
        let physical = rustix::fs::ioctl_blkpbszget(&buffered).unwrap_or(logical);
        (size, logical, physical.max(logical))
    } else {
        // A file's direct I/O is aligned to its filesystem's block, for which a page is safe.
        (opened.st_size as u64, 4096, 512)
    };
    let direct = options
        .direct
        .unwrap_or_else(|| is_block_device || !options.read_only && direct_by_default());
    let direct = if direct {
        open_direct(path, access, &opened)
    } else {
        None
    };
    let supports_discard = !is_block_device || can_discard(opened.st_rdev);
    let is_remote = !is_block_device && is_remote(&buffered);
    Ok(FileDevice {
        durability: match is_block_device || knows_durable_writes(&buffered) {
            true => Durability::AtOnce,
            false => Durability::ByFlush,
        },
        supports_discard,
        path: path.to_owned(),
        size_bytes: AtomicU64::new(size_bytes),
        identity: identity(&opened),
        sector_bytes,
        logical_block_bytes,
        is_block_device,
        read_only: options.read_only,
        unlocked: options.unlocked,
        is_remote,
        engine: choose_engine(options.engine)?,
        shares_rings: is_block_device && !sleeps_in_submission(opened.st_rdev),
        lane: Lane::start()?,
        ring: OnceLock::new(),
        files: Some(Arc::new(Descriptors { buffered, direct })),
    })
}

/// Whether the kernel passes discards on to a disk, or the disk of a partition; where it does not
/// tell, it may.
fn can_discard(rdev: u64) -> bool {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    ["queue", "../queue"].iter().find_map(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse::<u64>().ok()
    }) != Some(0)
}

/// Whether the block device's driver may send a request in its submitter's name, waiting for as
/// long as that takes (`BLK_MQ_F_BLOCKING`, and drivers without a queue).
fn sleeps_in_submission(rdev: u64) -> bool {
    /// As in the kernel's devices.txt: flash, network block devices, DRBD, memory cards.
    const MAJORS: [u32; 4] = [31, 43, 147, 179];
    MAJORS.contains(&rustix::fs::major(rdev))
}

/// Whether the file is of a filesystem that another machine or process answers for. No call on such
/// a file is made but by threads that may wait for ever.
fn is_remote(file: &OwnedFd) -> bool {
    /// As in linux/magic.h: FUSE, NFS, SMB (the old one and two of today's), 9P, Ceph, AFS (and
    /// the kernel's own), Coda, VirtualBox's folders.
    const REMOTE: [u32; 11] = [
        0x6573_5546,
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x0102_1997,
        0x00c3_6400,
        0x5346_414f,
        0x6b41_4653,
        0x7375_7245,
        0x786f_4256,
    ];
    // What cannot be told is taken for one.
    !rustix::fs::fstatfs(file).is_ok_and(|answer| !REMOTE.contains(&(answer.f_type as u32)))
}

/// Whether a write with `RWF_DSYNC` to this file is on the medium when it is done. The kernel
/// promises that, but some filesystems only pass the word on (FUSE, to a server that may not care)
/// where they do carry out a flush. So this names those of which it is known.
fn knows_durable_writes(file: &OwnedFd) -> bool {
    /// As in linux/magic.h: ext2 to ext4, XFS.
    const KNOWN: [u32; 2] = [0xef53, 0x5846_5342];
    rustix::fs::fstatfs(file).is_ok_and(|answer| KNOWN.contains(&(answer.f_type as u32)))
}

/// What tells a file or block device from others.
fn identity(stat: &rustix::fs::Stat) -> (u64, u64) {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => (stat.st_rdev, 0),
        _ => (stat.st_dev, stat.st_ino),
    }
}

/// The size of what is open, if `path` names that.
fn size_again(path: &str, expected: (u64, u64), file: &Descriptors) -> Result<u64, std::io::Error> {
    if identity(&rustix::fs::stat(path)?) != expected {
        return Err(io::Error::other("the path names something else by now"));
    }
    let opened = rustix::fs::fstat(&file.buffered)?;
    match FileType::from_raw_mode(opened.st_mode) {
        FileType::BlockDevice => Ok(rustix::fs::seek(&file.buffered, SeekFrom::End(0))?),
        _ => Ok(opened.st_size as u64),
    }
}

/// Opens `path`; with `patient`, waits a moment for whoever else holds it.
fn open_retrying(path: &str, flags: OFlags, patient: bool) -> Result<OwnedFd, OpenError> {
    let mut tries = 0;
    loop {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(descriptor) => return Ok(descriptor),
            Err(Errno::INTR) => {}
            Err(Errno::BUSY) if patient && tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(Errno::BUSY) => return Err(OpenError::InUse),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Looks without holding on to anything: a lock for an instant, which a writer's patience outlasts.
fn is_held(path: &str) -> bool {
    let Ok(stat) = rustix::fs::stat(path) else {
        return false;
    };
    let exclusive = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => OFlags::empty(),
        FileType::BlockDevice => OFlags::EXCL,
        _ => return false,
    };
    let access = OFlags::RDONLY | OFlags::CLOEXEC | exclusive;
    let locked = open_retrying(path, access, true)
        .and_then(|file| lock_now(&file, FlockOperation::NonBlockingLockShared));
    matches!(locked, Err(OpenError::InUse))
}

/// Locks the file; waits a moment for whoever else holds it.
fn lock_now(file: &OwnedFd, operation: FlockOperation) -> Result<(), OpenError> {
    let mut tries = 0;
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(Errno::WOULDBLOCK) => return Err(OpenError::InUse),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether to bypass the page cache for files that are written, where nothing else is said.
fn direct_by_default() -> bool {
    std::env::var("MILLPOND_DIRECT").as_deref() != Ok("off")
}

/// A second descriptor with `O_DIRECT`, or nothing where the filesystem has none.
fn open_direct(path: &str, access: OFlags, opened: &rustix::fs::Stat) -> Option<OwnedFd> {
    let direct = rustix::fs::open(path, access | OFlags::DIRECT, Mode::empty()).ok()?;
    let again = rustix::fs::fstat(&direct).ok()?;
    let same = again.st_dev == opened.st_dev
        && again.st_ino == opened.st_ino
        && again.st_rdev == opened.st_rdev;
    same.then_some(direct)
}

fn choose_engine(asked: IoEngine) -> Result<Engine, OpenError> {
    let asked = match asked {
        IoEngine::Auto => match std::env::var("MILLPOND_IO_ENGINE").as_deref() {
            Ok("uring") => IoEngine::Uring,
            Ok("blocking") => IoEngine::Blocking,
            _ => IoEngine::Auto,
        },
        given => given,
    };
    match asked {
        IoEngine::Blocking => Ok(Engine::Blocking),
        IoEngine::Uring if !uring::is_available() => Err(OpenError::System(io::Error::new(
            io::ErrorKind::Unsupported,
            "the system offers no io_uring",
        ))),
        IoEngine::Uring => Ok(Engine::Uring),
        IoEngine::Auto if uring::is_available() => Ok(Engine::Uring),
        IoEngine::Auto => Ok(Engine::Blocking),
    }
}

/// Creates a file of `size_bytes` that takes no room yet, for use as a device.
///
/// # Errors
///
/// When the file exists or cannot be created.
pub fn create_sparse_file(path: impl AsRef<Path>, size_bytes: u64) -> io::Result<()> {
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)?
        .set_len(size_bytes)
}
