//! Ways in to one filesystem: a mount, NFS 3 and NFS 4.2.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oracles::nfs::v4::{self, Ops, State};
use oracles::nfs::{MOUNT, NFS, Words};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::calls::{Calls, patiently, status};

const NOENT: u32 = 2;
/// `FILE_SYNC` and `UNSTABLE` of a write, of both versions.
const FILE_SYNC: u32 = 2;
const UNSTABLE: u32 = 0;
/// Most open files that a client keeps.
const HELD_MAX: usize = 3;

/// What a client does in the one directory that there is. What changes names or a size is on stable
/// storage when it is answered.
pub trait Way: Send {
    /// Begins anew, as a client does whose server was away.
    fn connect(&mut self) -> io::Result<()>;
    /// Looks names up anew: what they led to may be another file now.
    fn forget(&mut self) {}
    fn create(&mut self, name: &str) -> io::Result<()>;
    /// Writes, to stable storage or not yet; the verifier of the write.
    fn write(&mut self, name: &str, offset: u64, data: &[u8], is_stable: bool) -> io::Result<u64>;
    /// Has what was written put on stable storage; the verifier. If it is another one than that of
    /// a write, this may be lost.
    fn commit(&mut self, name: &str) -> io::Result<u64>;
    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()>;
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// All of a file; none where there is no such name.
    fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>>;
    fn list(&mut self) -> io::Result<BTreeSet<String>>;
}

/// How often what a mount's kernel had not written yet may have been lost: it is counted after
/// servers were killed and pools exported, before there is a mount again.
pub type Losses = Arc<AtomicU64>;

/// A mount, whose fsync is the commit. The verifier counts losses: another mount may be at the same
/// place, with the same number, before anybody has noticed.
pub struct Mounted {
    root: PathBuf,
    losses: Losses,
    held: BTreeMap<String, File>,
}

impl Mounted {
    pub fn new(root: PathBuf, losses: Losses) -> Self {
        let held = BTreeMap::new();
        Self { root, losses, held }
    }

    fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// The mount's root, whatever is mounted there later. Without a mount there is the directory
    /// below, which is not meant.
    fn directory(&self) -> io::Result<File> {
        let directory = File::open(&self.root)?;
        let above = self.root.parent().map(fs::metadata).transpose()?;
        let device = directory.metadata()?.dev();
        match above.is_some_and(|above| above.dev() != device) {
            true => Ok(directory),
            false => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn open(&mut self, name: &str, flags: OFlags) -> io::Result<File> {
        if let Some(file) = self.held.get(name) {
            return file.try_clone();
        }
        let flags = flags | OFlags::RDWR;
        let file: File = openat(self.directory()?, name, flags, Mode::from(0o644))?.into();
        if self.held.len() < HELD_MAX {
            self.held.insert(name.to_owned(), file.try_clone()?);
        } else {
            self.held.clear();
        }
        Ok(file)
    }
}

impl Way for Mounted {
    fn connect(&mut self) -> io::Result<()> {
        self.held.clear();
        self.directory().map(drop)
    }

    fn create(&mut self, name: &str) -> io::Result<()> {
        self.open(name, OFlags::CREATE | OFlags::EXCL)?.sync_all()
    }

    fn write(&mut self, name: &str, offset: u64, data: &[u8], is_stable: bool) -> io::Result<u64> {
        let before = self.losses();
        let file = self.open(name, OFlags::empty())?;
        file.write_all_at(data, offset)?;
        if is_stable {
            file.sync_all()?;
        }
        Ok(before)
    }

    fn commit(&mut self, name: &str) -> io::Result<u64> {
        self.open(name, OFlags::empty())?.sync_all()?;
        Ok(self.losses())
    }

    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        let file = self.open(name, OFlags::empty())?;
        file.set_len(bytes)?;
        file.sync_all()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.held.remove(to);
        let directory = self.directory()?;
        renameat(&directory, from, &directory, to)?;
        if let Some(file) = self.held.remove(from) {
            self.held.insert(to.to_owned(), file);
        }
        directory.sync_all()
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.held.remove(name);
        let directory = self.directory()?;
        unlinkat(&directory, name, AtFlags::empty())?;
        directory.sync_all()
    }

    fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match openat(self.directory()?, name, OFlags::RDONLY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => file?,
        };
        let mut data = Vec::new();
        File::from(file).read_to_end(&mut data)?;
        Ok(Some(data))
    }

    fn list(&mut self) -> io::Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        for entry in Dir::read_from(self.directory()?)? {
            found.insert(entry?.file_name().to_string_lossy().into_owned());
        }
        found.retain(|name| name != "." && name != "..");
        Ok(found)
    }
}

/// NFS version 3.
pub struct Third {
    port: u16,
    path: String,
    calls: Option<Calls>,
    root: Vec<u8>,
    handles: BTreeMap<String, Vec<u8>>,
}

impl Third {
    /// Of a share with this path.
    pub fn new(port: u16, path: String) -> Self {
        Self {
            port,
            path,
            calls: None,
            root: Vec::new(),
            handles: BTreeMap::new(),
        }
    }

    /// The status and the rest of an answer.
    fn ask(&mut self, procedure: u32, args: &Words) -> io::Result<(u32, Words)> {
        let calls = self.calls.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        patiently(|| {
            let mut reply = calls.call((NFS, 3, procedure), args)?;
            Ok((reply.take32(), reply))
        })
    }

    fn ok(&mut self, procedure: u32, args: &Words) -> io::Result<Words> {
        match self.ask(procedure, args)? {
            (0, reply) => Ok(reply),
            (number, _) => Err(status(number)),
        }
    }

    fn find(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        if let Some(handle) = self.handles.get(name) {
            return Ok(Some(handle.clone()));
        }
        let args = Words::new().opaque(&self.root).opaque(name.as_bytes());
        match self.ask(3, &args)? {
            (0, mut reply) => {
                let handle = reply.take_opaque();
                self.handles.insert(name.to_owned(), handle.clone());
                Ok(Some(handle))
            }
            (NOENT, _) => Ok(None),
            (number, _) => Err(status(number)),
        }
    }

    fn handle(&mut self, name: &str) -> io::Result<Vec<u8>> {
        self.find(name)?.ok_or_else(|| status(NOENT))
    }
}

impl Way for Third {
    fn connect(&mut self) -> io::Result<()> {
        // Handles are kept: they are good as long as their files are there.
        let mut calls = Calls::connect(self.port)?;
        let args = Words::new().opaque(self.path.as_bytes());
        let mut reply = calls.call((MOUNT, 3, 1), &args)?;
        match reply.take32() {
            0 => self.root = reply.take_opaque(),
            number => return Err(status(number)),
        }
        self.calls = Some(calls);
        Ok(())
    }

    fn forget(&mut self) {
        self.handles.clear();
    }

    fn create(&mut self, name: &str) -> io::Result<()> {
        let args = Words::new().opaque(&self.root).opaque(name.as_bytes());
        let mut reply = self.ok(8, &args.u32(1).mode(0o644))?;
        if reply.take32() == 1 {
            self.handles.insert(name.to_owned(), reply.take_opaque());
        }
        Ok(())
    }

    fn write(&mut self, name: &str, offset: u64, data: &[u8], is_stable: bool) -> io::Result<u64> {
        let how = if is_stable { FILE_SYNC } else { UNSTABLE };
        let args = Words::new().opaque(&self.handle(name)?).u64(offset);
        let mut reply = self.ok(7, &args.u32(data.len() as u32).u32(how).opaque(data))?;
        let _ = reply.change();
        let (count, committed) = (reply.take32(), reply.take32());
        if count as usize != data.len() || committed < how {
            return Err(io::Error::other(
                "it was written in part, or not as asked for",
            ));
        }
        Ok(reply.take64())
    }

    fn commit(&mut self, name: &str) -> io::Result<u64> {
        let args = Words::new().opaque(&self.handle(name)?).u64(0).u32(0);
        let mut reply = self.ok(21, &args)?;
        let _ = reply.change();
        Ok(reply.take64())
    }

    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        let args = Words::new().opaque(&self.handle(name)?).size(bytes).u32(0);
        self.ok(2, &args).map(drop)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let args = Words::new().opaque(&self.root).opaque(from.as_bytes());
        let args = args.opaque(&self.root).opaque(to.as_bytes());
        self.handles.remove(to);
        let handle = self.handles.remove(from);
        self.ok(14, &args)?;
        self.handles
            .extend(handle.map(|handle| (to.to_owned(), handle)));
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.handles.remove(name);
        let args = Words::new().opaque(&self.root).opaque(name.as_bytes());
        self.ok(12, &args).map(drop)
    }

    fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        // By the name: others change what it leads to.
        self.handles.remove(name);
        let Some(handle) = self.find(name)? else {
            return Ok(None);
        };
        let args = Words::new().opaque(&handle).u64(0).u32(1 << 20);
        let mut reply = self.ok(6, &args)?;
        let _ = reply.after();
        let (_count, is_end) = (reply.take32(), reply.take32());
        let data = reply.take_opaque();
        match is_end {
            1 => Ok(Some(data)),
            _ => Err(io::Error::other(format!("no end at {}", data.len()))),
        }
    }

    fn list(&mut self) -> io::Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        let mut cookie = 0;
        loop {
            let args = Words::new().opaque(&self.root).u64(cookie).u64(0).u32(8192);
            let mut reply = self.ok(16, &args)?;
            let _ = reply.after();
            let _verifier = reply.take64();
            while reply.take32() == 1 {
                let _number = reply.take64();
                let name = reply.take_opaque();
                found.insert(String::from_utf8_lossy(&name).into_owned());
                cookie = reply.take64();
            }
            if reply.take32() == 1 {
                found.retain(|name| name != "." && name != "..");
                return Ok(found);
            }
        }
    }
}

/// NFS version 4.2.
pub struct Fourth {
    port: u16,
    path: String,
    session: Option<Session>,
    root: Vec<u8>,
    held: BTreeMap<String, (State, Vec<u8>)>,
}

struct Session {
    calls: Calls,
    id: [u8; 16],
    sequence: u32,
}

impl Session {
    fn begin(port: u16) -> io::Result<Self> {
        let mut calls = Calls::connect(port)?;
        // A client that was started anew: what it had open is gone, with its sessions.
        let verifier = std::time::UNIX_EPOCH.elapsed();
        let verifier = verifier.map_err(io::Error::other)?.as_nanos() as u64;
        let mut reply = compound(&mut calls, 1, &v4::exchange(b"torture", verifier))?;
        reply.well(&[v4::EXCHANGE_ID]);
        let (client, sequence) = (reply.take64(), reply.take32());
        let mut reply = compound(&mut calls, 1, &v4::create_session(client, sequence))?;
        reply.well(&[v4::CREATE_SESSION]);
        let (id, sequence) = (reply.take_raw(), 0);
        let mut session = Self {
            calls,
            id,
            sequence,
        };
        let complete = Ops::new().add(v4::RECLAIM_COMPLETE, Words::new().u32(0));
        match session.ask(&complete)?.0 {
            // Said before.
            0 | 10054 => Ok(session),
            number => Err(status(number)),
        }
    }

    /// The status, and results after that of SEQUENCE.
    fn ask(&mut self, ops: &Ops) -> io::Result<(u32, Words)> {
        patiently(|| {
            self.sequence += 1;
            // Nothing is asked twice, so no answer needs to be kept.
            let all = ops.in_session(&self.id, 0, self.sequence, false);
            let mut reply = self.calls.call((NFS, 4, 1), &all.arguments(2))?;
            let (number, _tag, _count) = (reply.take32(), reply.take_opaque(), reply.take32());
            if reply.left() == 0 || reply.result(v4::SEQUENCE) != 0 {
                return Err(status(number));
            }
            let _id: [u8; 16] = reply.take_raw();
            let _words = [(); 5].map(|()| reply.take32());
            Ok((number, reply))
        })
    }
}

/// What is asked outside of sessions.
fn compound(calls: &mut Calls, minor: u32, ops: &Ops) -> io::Result<Words> {
    let (number, mut reply) = patiently(|| {
        let mut reply = calls.call((NFS, 4, 1), &ops.arguments(minor))?;
        Ok((reply.take32(), reply))
    })?;
    let (_tag, _count) = (reply.take_opaque(), reply.take32());
    match number {
        0 => Ok(reply),
        number => Err(status(number)),
    }
}

impl Fourth {
    /// Of a share with this path.
    pub fn new(port: u16, path: String) -> Self {
        Self {
            port,
            path,
            session: None,
            root: Vec::new(),
            held: BTreeMap::new(),
        }
    }

    fn ask(&mut self, ops: &Ops) -> io::Result<(u32, Words)> {
        let session = self.session.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        session.ask(ops)
    }

    fn ok(&mut self, ops: &Ops) -> io::Result<Words> {
        match self.ask(ops)? {
            (0, reply) => Ok(reply),
            (number, _) => Err(status(number)),
        }
    }

    /// Opens a file, or makes it; none where there is no such name.
    fn open(&mut self, name: &str, how: Words) -> io::Result<Option<(State, Vec<u8>)>> {
        let arguments = v4::open(b"owner", 3, 0, how, v4::by_name(name.as_bytes()));
        let ops = Ops::new().put(&self.root).add(v4::OPEN, arguments);
        let (number, mut reply) = self.ask(&ops.plain(v4::GETFH))?;
        match number {
            0 => {}
            NOENT => return Ok(None),
            number => return Err(status(number)),
        }
        reply.well(&[v4::PUTFH]);
        let state = reply.opened();
        reply.well(&[v4::GETFH]);
        Ok(Some((state, reply.take_opaque())))
    }

    fn close(&mut self, (state, handle): (State, Vec<u8>)) -> io::Result<()> {
        let close = Words::new().u32(0).raw(&state);
        self.ok(&Ops::new().put(&handle).add(v4::CLOSE, close))
            .map(drop)
    }

    /// A file that stays open for a while.
    fn hold(&mut self, name: &str) -> io::Result<(State, Vec<u8>)> {
        if let Some(held) = self.held.get(name) {
            return Ok(held.clone());
        }
        while self.held.len() >= HELD_MAX {
            if let Some((_, held)) = self.held.pop_first() {
                self.close(held)?;
            }
        }
        let opened = self.open(name, Words::new().u32(0))?;
        let opened = opened.ok_or_else(|| status(NOENT))?;
        self.held.insert(name.to_owned(), opened.clone());
        Ok(opened)
    }

    fn release(&mut self, name: &str) -> io::Result<()> {
        match self.held.remove(name) {
            Some(held) => self.close(held),
            None => Ok(()),
        }
    }
}

impl Way for Fourth {
    fn connect(&mut self) -> io::Result<()> {
        self.held.clear();
        let mut session = Session::begin(self.port)?;
        let mut find = |at: Ops, numbers: &[u32]| {
            let (number, mut reply) = session.ask(&at.plain(v4::GETFH))?;
            if number != 0 {
                return Err(status(number));
            }
            reply.well(numbers);
            reply.well(&[v4::GETFH]);
            Ok(reply.take_opaque())
        };
        self.root = find(Ops::new().plain(v4::PUTROOTFH), &[v4::PUTROOTFH])?;
        // One by one, as a request may have few operations.
        for name in self.path.split('/').filter(|name| !name.is_empty()) {
            let lookup = Ops::new().put(&self.root).name(v4::LOOKUP, name.as_bytes());
            self.root = find(lookup, &[v4::PUTFH, v4::LOOKUP])?;
        }
        self.session = Some(session);
        Ok(())
    }

    fn create(&mut self, name: &str) -> io::Result<()> {
        let opened = self.open(name, v4::making(0o644))?;
        let opened = opened.ok_or_else(|| status(NOENT))?;
        self.close(opened)
    }

    fn write(&mut self, name: &str, offset: u64, data: &[u8], is_stable: bool) -> io::Result<u64> {
        let (state, handle) = self.hold(name)?;
        let how = if is_stable { FILE_SYNC } else { UNSTABLE };
        let words = Words::new().raw(&state).u64(offset).u32(how).opaque(data);
        let mut reply = self.ok(&Ops::new().put(&handle).add(v4::WRITE, words))?;
        reply.well(&[v4::PUTFH, v4::WRITE]);
        let (count, committed) = (reply.take32(), reply.take32());
        if count as usize != data.len() || committed < how {
            return Err(io::Error::other(
                "it was written in part, or not as asked for",
            ));
        }
        Ok(reply.take64())
    }

    fn commit(&mut self, name: &str) -> io::Result<u64> {
        let (_, handle) = self.hold(name)?;
        let all = Words::new().u64(0).u32(0);
        let mut reply = self.ok(&Ops::new().put(&handle).add(v4::COMMIT, all))?;
        reply.well(&[v4::PUTFH, v4::COMMIT]);
        Ok(reply.take64())
    }

    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        let (state, handle) = self.hold(name)?;
        let words = Words::new()
            .raw(&state)
            .u32(1)
            .u32(1 << 4)
            .u32(8)
            .u64(bytes);
        let ops = Ops::new().put(&handle).add(v4::SETATTR, words);
        self.ok(&ops).map(drop)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.release(to)?;
        let held = self.held.remove(from);
        let ops = Ops::new().put(&self.root).plain(v4::SAVEFH).put(&self.root);
        let names = Words::new().opaque(from.as_bytes()).opaque(to.as_bytes());
        self.ok(&ops.add(v4::RENAME, names))?;
        self.held.extend(held.map(|held| (to.to_owned(), held)));
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.release(name)?;
        let ops = Ops::new().put(&self.root);
        self.ok(&ops.name(v4::REMOVE, name.as_bytes())).map(drop)
    }

    fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let Some((state, handle)) = self.open(name, Words::new().u32(0))? else {
            return Ok(None);
        };
        let words = Words::new().raw(&state).u64(0).u32(1 << 20);
        let mut reply = self.ok(&Ops::new().put(&handle).add(v4::READ, words))?;
        reply.well(&[v4::PUTFH, v4::READ]);
        let (is_end, data) = (reply.take32(), reply.take_opaque());
        // One owner has one state of a file: what is held is closed with it.
        self.held.remove(name);
        self.close((state, handle))?;
        match is_end {
            1 => Ok(Some(data)),
            _ => Err(io::Error::other(format!("no end at {}", data.len()))),
        }
    }

    fn list(&mut self) -> io::Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        let (mut cookie, mut verifier) = (0, 0);
        loop {
            let words = Words::new().u64(cookie).u64(verifier).u32(8192).u32(8192);
            let ops = Ops::new().put(&self.root).add(v4::READDIR, words.u32(0));
            let mut reply = self.ok(&ops)?;
            reply.well(&[v4::PUTFH, v4::READDIR]);
            verifier = reply.take64();
            while reply.take32() == 1 {
                cookie = reply.take64();
                let name = reply.take_opaque();
                found.insert(String::from_utf8_lossy(&name).into_owned());
                let _attributes = (reply.bits(), reply.take_opaque());
            }
            if reply.take32() == 1 {
                return Ok(found);
            }
        }
    }
}
