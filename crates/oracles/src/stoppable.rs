//! A file on a FUSE filesystem whose server stops answering, as one of a machine that hangs.

use std::ffi::OsStr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, WriteFlags,
};
use tempfile::TempDir;

const FILE: INodeNo = INodeNo(2);

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stopped: bool,
    /// Descriptors of the file.
    open: usize,
}

impl Gate {
    fn set_stopped(&self, stopped: bool) {
        self.state.lock().unwrap().stopped = stopped;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        while state.stopped {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn count_open(&self, change: impl Fn(usize) -> usize) {
        let mut state = self.state.lock().unwrap();
        state.open = change(state.open);
        self.changed.notify_all();
    }

    /// Waits until nobody has the file open: a process that ends with files of its own server
    /// waits for answers that cannot come.
    fn until_closed(&self) {
        let mut state = self.state.lock().unwrap();
        while state.open > 0 {
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// One file, `disk`.
struct OneFile {
    gate: Arc<Gate>,
    data: Mutex<Vec<u8>>,
}

impl OneFile {
    fn size(&self) -> usize {
        self.data.lock().unwrap().len()
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == FILE;
        FileAttr {
            ino: inode,
            size: if is_file { self.size() as u64 } else { 0 },
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: match is_file {
                true => FileType::RegularFile,
                false => FileType::Directory,
            },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &fuser::Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.gate.pass();
        match name.to_str() {
            Some("disk") => reply.entry(&Duration::ZERO, &self.attributes(FILE), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.gate.pass();
        reply.attr(&Duration::ZERO, &self.attributes(ino));
    }

    fn open(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.gate.pass();
        self.gate.count_open(|open| open + 1);
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.gate.pass();
        let from = offset.min(self.size() as u64) as usize;
        let to = (from + size as usize).min(self.size());
        reply.data(&self.data.lock().unwrap()[from..to]);
    }

    fn write(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.gate.pass();
        let from = offset as usize;
        self.data.lock().unwrap()[from..from + data.len()].copy_from_slice(data);
        reply.written(data.len() as u32);
    }

    fn flush(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.gate.pass();
        reply.ok();
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.gate.pass();
        reply.ok();
    }

    fn release(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.gate.pass();
        reply.ok();
        self.gate.count_open(|open| open - 1);
    }
}

/// A mounted file whose server stops answering on a word. It answers again when this is dropped,
/// which waits until nobody has the file open.
pub struct StoppableFile {
    gate: Arc<Gate>,
    session: Option<BackgroundSession>,
    directory: TempDir,
}

impl StoppableFile {
    /// A file of `size_bytes` zeros, kept in memory; nothing where this user may not mount.
    pub fn mount(size_bytes: usize) -> Option<Self> {
        let gate = Arc::new(Gate::default());
        let files = OneFile {
            gate: gate.clone(),
            data: Mutex::new(vec![0; size_bytes]),
        };
        let directory = TempDir::new().ok()?;
        let session = fuser::spawn_mount(files, directory.path(), &Config::default());
        Some(StoppableFile {
            gate,
            session: Some(session.ok()?),
            directory,
        })
    }

    /// Its path.
    pub fn path(&self) -> String {
        self.directory.path().join("disk").display().to_string()
    }

    /// Whether requests are answered from now on; those that wait are as well.
    pub fn set_stopped(&self, stopped: bool) {
        self.gate.set_stopped(stopped);
    }
}

impl Drop for StoppableFile {
    fn drop(&mut self) {
        self.set_stopped(false);
        self.gate.until_closed();
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}
