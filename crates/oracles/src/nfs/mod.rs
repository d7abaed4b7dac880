//! A small NFS client of our own: calls over TCP, with arguments and answers put together by hand,
//! so that nothing of the server's own coding is relied on. [`Client`] and [`v4::Session`] panic
//! where the server does not answer; who expects that has sockets of its own, and takes
//! [`record`], [`answer`] and [`Words`].

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub mod v4;

/// The program MOUNT (RFC 1813, appendix I).
pub const MOUNT: u32 = 100_005;
/// The program NFS.
pub const NFS: u32 = 100_003;
/// The program of the lock manager.
pub const NLM: u32 = 100_021;

/// Arguments, or an answer that is read.
#[derive(Debug, Clone, Default)]
pub struct Words {
    /// As they go over the wire.
    pub bytes: Vec<u8>,
    at: usize,
}

impl Words {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a number.
    pub fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// Appends a long number.
    pub fn u64(mut self, value: u64) -> Self {
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// Appends bytes with their length before them.
    pub fn opaque(mut self, value: &[u8]) -> Self {
        self = self.u32(value.len() as u32);
        self.bytes.extend(value);
        let fill = value.len().wrapping_neg() % 4;
        self.bytes.extend(std::iter::repeat_n(0, fill));
        self
    }

    /// `sattr3` with a mode alone.
    pub fn mode(self, mode: u32) -> Self {
        self.u32(1).u32(mode).u32(0).u32(0).u32(0).u32(0).u32(0)
    }

    /// `sattr3` with a size alone.
    pub fn size(self, bytes: u64) -> Self {
        self.u32(0).u32(0).u32(0).u32(1).u64(bytes).u32(0).u32(0)
    }

    /// Reads a number.
    pub fn take32(&mut self) -> u32 {
        let bytes = self.bytes[self.at..].first_chunk::<4>().expect("a word");
        self.at += 4;
        u32::from_be_bytes(*bytes)
    }

    /// Reads a long number.
    pub fn take64(&mut self) -> u64 {
        let bytes = self.bytes[self.at..].first_chunk::<8>().expect("two words");
        self.at += 8;
        u64::from_be_bytes(*bytes)
    }

    /// Reads bytes that have their length before them.
    pub fn take_opaque(&mut self) -> Vec<u8> {
        let length = self.take32() as usize;
        let found = self.bytes[self.at..self.at + length].to_vec();
        self.at += length.next_multiple_of(4);
        found
    }

    /// `fattr3`.
    pub fn attributes(&mut self) -> Attributes {
        let (kind, mode, links) = (self.take32(), self.take32(), self.take32());
        let (uid, gid) = (self.take32(), self.take32());
        let size = self.take64();
        let _used = self.take64();
        let _device = self.take64();
        let (fsid, number) = (self.take64(), self.take64());
        let [atime, mtime, ctime] = [(); 3].map(|()| (self.take32(), self.take32()));
        Attributes {
            kind,
            mode,
            links,
            uid,
            gid,
            size,
            fsid,
            number,
            atime,
            mtime,
            ctime,
        }
    }

    /// `post_op_attr`.
    pub fn after(&mut self) -> Option<Attributes> {
        (self.take32() == 1).then(|| self.attributes())
    }

    /// `wcc_data`: the size before, and all that is told of after.
    pub fn change(&mut self) -> (Option<u64>, Option<Attributes>) {
        let before = (self.take32() == 1).then(|| {
            let size = self.take64();
            let _times = [(); 4].map(|()| self.take32());
            size
        });
        (before, self.after())
    }

    /// What is left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }
}

/// What is told of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// `ftype3`.
    pub kind: u32,
    /// Permissions.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Number of the file system.
    pub fsid: u64,
    /// Number of the file in it.
    pub number: u64,
    /// Last access, in seconds and nanoseconds.
    pub atime: (u32, u32),
    /// Last change of content, likewise.
    pub mtime: (u32, u32),
    /// Last change of anything, likewise.
    pub ctime: (u32, u32),
}

/// Who calls.
#[derive(Debug, Clone)]
pub struct Who {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// Root.
pub const ROOT: Who = Who {
    uid: 0,
    gid: 0,
    groups: Vec::new(),
};

/// A user in the group of the same number.
pub fn user(uid: u32) -> Who {
    Who {
        uid,
        gid: uid,
        groups: Vec::new(),
    }
}

/// A connection.
pub struct Client {
    /// The connection itself.
    pub stream: TcpStream,
    /// The number of the last request.
    pub xid: u32,
}

/// A call's record, with its mark.
pub fn record(
    xid: u32,
    program: u32,
    version: u32,
    procedure: u32,
    who: &Who,
    args: &Words,
) -> Vec<u8> {
    let mut credential = Words::new()
        .u32(1)
        .opaque(b"test")
        .u32(who.uid)
        .u32(who.gid);
    credential = credential.u32(who.groups.len() as u32);
    for gid in &who.groups {
        credential = credential.u32(*gid);
    }
    let call = Words::new()
        .u32(xid)
        .u32(0)
        .u32(2)
        .u32(program)
        .u32(version)
        .u32(procedure);
    let call = call.u32(1).opaque(&credential.bytes).u32(0).u32(0);
    let length = (call.bytes.len() + args.bytes.len()) as u32;
    let mut record = (length | 1 << 31).to_be_bytes().to_vec();
    record.extend(&call.bytes);
    record.extend(&args.bytes);
    record
}

/// A reply without its mark: its number, and what follows that.
pub fn answer(bytes: Vec<u8>) -> (u32, Words) {
    let mut reply = Words { bytes, at: 0 };
    let xid = reply.take32();
    assert_eq!(reply.take32(), 1, "it is a reply");
    (xid, reply)
}

impl Client {
    /// One with numbers of its own: a request with the number and the content of another one's
    /// from the same address would be taken for a repeat.
    pub async fn connect(address: SocketAddr) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1 << 16);
        let stream = TcpStream::connect(address).await.expect("the server");
        stream.set_nodelay(true).expect("an option");
        let xid = NEXT.fetch_add(1 << 16, Ordering::Relaxed);
        Self { stream, xid }
    }

    /// Reads a reply; its number, and what follows that.
    pub async fn reply(&mut self) -> (u32, Words) {
        let mark = self.stream.read_u32().await.expect("a reply");
        assert!(mark & 1 << 31 != 0, "replies are in one fragment");
        let mut bytes = vec![0; (mark & !(1 << 31)) as usize];
        self.stream.read_exact(&mut bytes).await.expect("all of it");
        answer(bytes)
    }

    /// Calls, and gives what comes after the head of a reply that was accepted.
    pub async fn call(
        &mut self,
        program: u32,
        version: u32,
        procedure: u32,
        who: &Who,
        args: Words,
    ) -> Words {
        self.xid += 1;
        let record = record(self.xid, program, version, procedure, who, &args);
        self.stream.write_all(&record).await.expect("sent");
        let (xid, mut reply) = self.reply().await;
        assert_eq!(xid, self.xid);
        let head = [(); 4].map(|()| reply.take32());
        assert_eq!(head, [0; 4], "accepted, and carried out");
        reply
    }

    /// Calls a procedure of NFS version 3.
    pub async fn nfs(&mut self, procedure: u32, who: &Who, args: Words) -> Words {
        self.call(NFS, 3, procedure, who, args).await
    }

    /// Mounts; the root's handle, or the status.
    pub async fn mount(&mut self, path: &str) -> Result<Vec<u8>, u32> {
        let args = Words::new().opaque(path.as_bytes());
        let mut reply = self.call(MOUNT, 3, 1, &ROOT, args).await;
        match reply.take32() {
            0 => Ok(reply.take_opaque()),
            status => Err(status),
        }
    }

    /// GETATTR as root; or the status.
    pub async fn getattr(&mut self, file: &[u8]) -> Result<Attributes, u32> {
        let mut reply = self.nfs(1, &ROOT, Words::new().opaque(file)).await;
        match reply.take32() {
            0 => Ok(reply.attributes()),
            status => Err(status),
        }
    }

    /// LOOKUP; handle and attributes, or the status.
    pub async fn lookup(
        &mut self,
        who: &Who,
        directory: &[u8],
        name: &[u8],
    ) -> Result<(Vec<u8>, Attributes), u32> {
        let args = Words::new().opaque(directory).opaque(name);
        let mut reply = self.nfs(3, who, args).await;
        match reply.take32() {
            0 => {
                let handle = reply.take_opaque();
                Ok((handle, reply.after().expect("attributes")))
            }
            status => Err(status),
        }
    }

    /// UNCHECKED 0, GUARDED 1.
    pub async fn create(
        &mut self,
        who: &Who,
        directory: &[u8],
        name: &[u8],
        how: u32,
    ) -> Result<Vec<u8>, u32> {
        let args = Words::new()
            .opaque(directory)
            .opaque(name)
            .u32(how)
            .mode(0o644);
        let reply = self.nfs(8, who, args).await;
        made(reply)
    }

    /// MKDIR; the handle, or the status.
    pub async fn mkdir(
        &mut self,
        who: &Who,
        directory: &[u8],
        name: &[u8],
        mode: u32,
    ) -> Result<Vec<u8>, u32> {
        let args = Words::new().opaque(directory).opaque(name).mode(mode);
        made(self.nfs(9, who, args).await)
    }

    /// REMOVE 12, RMDIR 13; the status.
    pub async fn remove(
        &mut self,
        who: &Who,
        directory: &[u8],
        name: &[u8],
        procedure: u32,
    ) -> u32 {
        let args = Words::new().opaque(directory).opaque(name);
        self.nfs(procedure, who, args).await.take32()
    }

    /// Status, and where that is 0 bytes written, how stable, and the verifier.
    pub async fn write(
        &mut self,
        who: &Who,
        file: &[u8],
        offset: u64,
        data: &[u8],
        stable: u32,
    ) -> (u32, u32, u32, u64) {
        let args = Words::new().opaque(file).u64(offset).u32(data.len() as u32);
        let args = args.u32(stable).opaque(data);
        let mut reply = self.nfs(7, who, args).await;
        let status = reply.take32();
        let _ = reply.change();
        if status != 0 {
            return (status, 0, 0, 0);
        }
        (status, reply.take32(), reply.take32(), reply.take64())
    }

    /// Data, and whether that was the end.
    pub async fn read(
        &mut self,
        who: &Who,
        file: &[u8],
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), u32> {
        let args = Words::new().opaque(file).u64(offset).u32(count);
        let mut reply = self.nfs(6, who, args).await;
        let status = reply.take32();
        let _ = reply.after();
        if status != 0 {
            return Err(status);
        }
        let count = reply.take32();
        let is_end = reply.take32() == 1;
        let data = reply.take_opaque();
        assert_eq!(data.len(), count as usize);
        Ok((data, is_end))
    }

    /// All names of a directory with their cookies, in lists of `bytes` each; READDIRPLUS if so.
    pub async fn list(
        &mut self,
        who: &Who,
        directory: &[u8],
        bytes: u32,
        is_plus: bool,
    ) -> Vec<(String, u64)> {
        let mut found: Vec<(String, u64)> = Vec::new();
        loop {
            let cookie = found.last().map_or(0, |(_, cookie)| *cookie);
            let args = Words::new().opaque(directory).u64(cookie).u64(0).u32(bytes);
            let mut reply = match is_plus {
                true => self.nfs(17, who, args.u32(bytes)).await,
                false => self.nfs(16, who, args).await,
            };
            assert!(
                reply.left() <= bytes as usize,
                "{} of {bytes}",
                reply.left()
            );
            assert_eq!(reply.take32(), 0);
            let _ = reply.after();
            assert_eq!(reply.take64(), 0);
            while reply.take32() == 1 {
                let _number = reply.take64();
                let name = String::from_utf8(reply.take_opaque()).expect("a name");
                let cookie = reply.take64();
                if is_plus {
                    let _ = reply.after();
                    if reply.take32() == 1 {
                        let _ = reply.take_opaque();
                    }
                }
                found.push((name, cookie));
            }
            if reply.take32() == 1 {
                assert_eq!(reply.left(), 0);
                return found;
            }
        }
    }
}

/// The handle that a procedure which makes something answers, or the status.
pub fn made(mut reply: Words) -> Result<Vec<u8>, u32> {
    match reply.take32() {
        0 => {
            assert_eq!(reply.take32(), 1, "a handle");
            let handle = reply.take_opaque();
            let _ = reply.after().expect("attributes");
            let (before, after) = reply.change();
            assert!(before.is_some() && after.is_some());
            assert_eq!(reply.left(), 0);
            Ok(handle)
        }
        status => Err(status),
    }
}
