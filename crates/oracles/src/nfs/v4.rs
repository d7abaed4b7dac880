//! COMPOUND and sessions of version 4, put together by hand.

use std::net::SocketAddr;

use super::{Client, NFS, Who, Words};

/// Number of operation CLOSE.
pub const CLOSE: u32 = 4;
/// Number of operation COMMIT.
pub const COMMIT: u32 = 5;
/// Number of operation CREATE.
pub const CREATE: u32 = 6;
/// Number of operation GETATTR.
pub const GETATTR: u32 = 9;
/// Number of operation GETFH.
pub const GETFH: u32 = 10;
/// Number of operation LINK.
pub const LINK: u32 = 11;
/// Number of operation LOCK.
pub const LOCK: u32 = 12;
/// Number of operation LOCKU.
pub const LOCKU: u32 = 14;
/// Number of operation LOOKUP.
pub const LOOKUP: u32 = 15;
/// Number of operation LOOKUPP.
pub const LOOKUPP: u32 = 16;
/// Number of operation OPEN.
pub const OPEN: u32 = 18;
/// Number of operation PUTFH.
pub const PUTFH: u32 = 22;
/// Number of operation PUTROOTFH.
pub const PUTROOTFH: u32 = 24;
/// Number of operation READ.
pub const READ: u32 = 25;
/// Number of operation READDIR.
pub const READDIR: u32 = 26;
/// Number of operation READLINK.
pub const READLINK: u32 = 27;
/// Number of operation REMOVE.
pub const REMOVE: u32 = 28;
/// Number of operation RENAME.
pub const RENAME: u32 = 29;
/// Number of operation SAVEFH.
pub const SAVEFH: u32 = 32;
/// Number of operation SECINFO.
pub const SECINFO: u32 = 33;
/// Number of operation SETATTR.
pub const SETATTR: u32 = 34;
/// Number of operation WRITE.
pub const WRITE: u32 = 38;
/// Number of operation EXCHANGE_ID.
pub const EXCHANGE_ID: u32 = 42;
/// Number of operation CREATE_SESSION.
pub const CREATE_SESSION: u32 = 43;
/// Number of operation DESTROY_SESSION.
pub const DESTROY_SESSION: u32 = 44;
/// Number of operation FREE_STATEID.
pub const FREE_STATEID: u32 = 45;
/// Number of operation SEQUENCE.
pub const SEQUENCE: u32 = 53;
/// Number of operation TEST_STATEID.
pub const TEST_STATEID: u32 = 55;
/// Number of operation DESTROY_CLIENTID.
pub const DESTROY_CLIENTID: u32 = 57;
/// Number of operation RECLAIM_COMPLETE.
pub const RECLAIM_COMPLETE: u32 = 58;
/// Number of operation COPY.
pub const COPY: u32 = 60;
/// Number of operation SEEK.
pub const SEEK: u32 = 69;
/// Number of operation CLONE.
pub const CLONE: u32 = 71;

/// Operations that are put together.
#[derive(Debug, Clone, Default)]
pub struct Ops {
    count: u32,
    words: Words,
}

impl Ops {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an operation.
    pub fn add(mut self, number: u32, arguments: Words) -> Self {
        self.count += 1;
        self.words = self.words.u32(number);
        self.words.bytes.extend(arguments.bytes);
        self
    }

    /// Appends one without arguments.
    pub fn plain(self, number: u32) -> Self {
        self.add(number, Words::new())
    }

    /// Appends PUTFH.
    pub fn put(self, handle: &[u8]) -> Self {
        self.add(PUTFH, Words::new().opaque(handle))
    }

    /// Appends one whose argument is a name.
    pub fn name(self, number: u32, name: &[u8]) -> Self {
        self.add(number, Words::new().opaque(name))
    }

    /// GETATTR of type, size, numlinks and mode.
    pub fn attributes(self) -> Self {
        let words = Words::new().u32(2).u32(1 << 1 | 1 << 4);
        self.add(GETATTR, words.u32(1 << (33 - 32) | 1 << (35 - 32)))
    }

    /// The same with SEQUENCE before them: the number of a request in a slot of a session.
    pub fn in_session(&self, session: &[u8; 16], slot: u32, sequence: u32, is_kept: bool) -> Ops {
        let words = Words::new().raw(session).u32(sequence);
        let words = words.u32(slot).u32(slot).u32(is_kept.into());
        let mut all = Ops::new().add(SEQUENCE, words);
        all.count += self.count;
        all.words.bytes.extend(&self.words.bytes);
        all
    }

    /// The arguments of a COMPOUND.
    pub fn arguments(&self, minor: u32) -> Words {
        let mut words = Words::new().opaque(b"tag").u32(minor).u32(self.count);
        words.bytes.extend(&self.words.bytes);
        words
    }
}

impl Words {
    /// Appends bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// Reads bytes as they are.
    pub fn take_raw<const N: usize>(&mut self) -> [u8; N] {
        let found = *self.bytes[self.at..].first_chunk().expect("bytes");
        self.at += N;
        found
    }

    /// The head of a result: the operation must be this; its status.
    pub fn result(&mut self, number: u32) -> u32 {
        assert_eq!(self.take32(), number);
        self.take32()
    }

    /// Results of operations that tell nothing more, all well.
    pub fn well(&mut self, numbers: &[u32]) {
        for number in numbers {
            assert_eq!(self.result(*number), 0, "operation {number}");
        }
    }

    /// GETATTR as [`Ops::attributes`] asks for it: type, size, mode, links.
    pub fn told(&mut self) -> (u32, u64, u32, u32) {
        self.well(&[GETATTR]);
        assert_eq!(
            (self.take32(), self.take32(), self.take32()),
            (2, 0x12, 0xa)
        );
        assert_eq!(self.take32(), 20);
        (self.take32(), self.take64(), self.take32(), self.take32())
    }

    /// `stateid4`.
    pub fn state(&mut self) -> State {
        self.take_raw()
    }

    /// `change_info4`.
    pub fn changed(&mut self) -> (bool, u64, u64) {
        (self.take32() == 1, self.take64(), self.take64())
    }

    /// `bitmap4`.
    pub fn bits(&mut self) -> Vec<u32> {
        (0..self.take32()).map(|_| self.take32()).collect()
    }

    /// OPEN's result.
    pub fn opened(&mut self) -> State {
        self.well(&[OPEN]);
        let state = self.state();
        let _ = (self.changed(), self.take32(), self.bits());
        assert_eq!(self.take32(), 0, "no delegation");
        state
    }
}

/// `stateid4`.
pub type State = [u8; 16];
/// Nobody's state (RFC 8881, section 8.2.3).
pub const ANONYMOUS: State = [0; 16];
/// The state that the operation before gave (likewise).
pub const CURRENT: State = {
    let mut state = [0; 16];
    state[3] = 1;
    state
};

/// How a file is opened.
pub fn open(owner: &[u8], access: u32, deny: u32, making: Words, claim: Words) -> Words {
    let words = Words::new()
        .u32(0)
        .u32(access)
        .u32(deny)
        .u64(0)
        .opaque(owner);
    words.raw(&making.bytes).raw(&claim.bytes)
}

/// UNCHECKED4 with a mode.
pub fn making(mode: u32) -> Words {
    let attributes = Words::new().u32(2).u32(0).u32(1 << 1);
    let attributes = attributes.opaque(&Words::new().u32(mode).bytes);
    Words::new().u32(1).u32(0).raw(&attributes.bytes)
}

/// CLAIM_NULL: a file by its name.
pub fn by_name(name: &[u8]) -> Words {
    Words::new().u32(0).opaque(name)
}

/// UNCHECKED4 with a size: what is there is cut off.
pub fn cutting(size: u64) -> Words {
    let attributes = Words::new().u32(1).u32(1 << 4);
    let attributes = attributes.opaque(&Words::new().u64(size).bytes);
    Words::new().u32(1).u32(0).raw(&attributes.bytes)
}

/// A client with a session, of one slot unless it says so.
pub struct Session {
    /// The connection.
    pub client: Client,
    /// The client's number.
    pub id: u64,
    /// The session's name.
    pub session: [u8; 16],
    /// The slot that requests go by.
    pub slot: u32,
    /// The number of the last request in that.
    pub sequence: u32,
    /// Who asks.
    pub who: Who,
    /// The minor version.
    pub minor: u32,
}

/// A COMPOUND outside of sessions; its status, and results.
pub async fn compound(client: &mut Client, who: &Who, minor: u32, ops: &Ops) -> (u32, Words) {
    let mut reply = client.call(NFS, 4, 1, who, ops.arguments(minor)).await;
    let status = reply.take32();
    assert_eq!(reply.take_opaque(), b"tag");
    let _count = reply.take32();
    (status, reply)
}

/// EXCHANGE_ID of a client by its name for itself.
pub fn exchange(owner: &[u8], verifier: u64) -> Ops {
    let words = Words::new()
        .u64(verifier)
        .opaque(owner)
        .u32(0)
        .u32(0)
        .u32(0);
    Ops::new().add(EXCHANGE_ID, words)
}

/// CREATE_SESSION with room for requests of 2 MiB.
pub fn create_session(id: u64, sequence: u32) -> Ops {
    let mut words = Words::new().u64(id).u32(sequence).u32(0);
    for _ in 0..2 {
        for word in [0, 2 << 20, 2 << 20, 4096, 8, 4, 0] {
            words = words.u32(word);
        }
    }
    Ops::new().add(CREATE_SESSION, words.u32(0x4000_0000).u32(1).u32(0))
}

impl Session {
    /// A new client, which has said that it has nothing to reclaim.
    pub async fn begin(address: SocketAddr, owner: &[u8], who: &Who) -> Self {
        let mut session = Self::exchanged(address, owner, who).await;
        session.reclaim_complete().await;
        session
    }

    /// A new client, which has not said yet that it has nothing to reclaim.
    pub async fn exchanged(address: SocketAddr, owner: &[u8], who: &Who) -> Self {
        let mut client = Client::connect(address).await;
        let (status, mut reply) = compound(&mut client, who, 1, &exchange(owner, 7)).await;
        assert_eq!(status, 0);
        reply.well(&[EXCHANGE_ID]);
        let (id, sequence) = (reply.take64(), reply.take32());
        let create = create_session(id, sequence);
        let (status, mut reply) = compound(&mut client, who, 1, &create).await;
        assert_eq!(status, 0);
        reply.well(&[CREATE_SESSION]);
        Self {
            client,
            id,
            session: reply.take_raw(),
            slot: 0,
            sequence: 0,
            who: who.clone(),
            minor: 1,
        }
    }

    /// RECLAIM_COMPLETE of all file systems.
    pub async fn reclaim_complete(&mut self) {
        let ops = Ops::new().add(RECLAIM_COMPLETE, Words::new().u32(0));
        assert_eq!(self.run(ops).await.0, 0);
    }

    /// All of a COMPOUND with SEQUENCE before `ops`.
    pub fn with_sequence(&self, ops: &Ops, is_kept: bool) -> Ops {
        ops.in_session(&self.session, self.slot, self.sequence, is_kept)
    }

    /// Asks once more, with the same number.
    pub async fn again(&mut self, ops: &Ops, is_kept: bool) -> (u32, Words) {
        let all = self.with_sequence(ops, is_kept);
        compound(&mut self.client, &self.who, self.minor, &all).await
    }

    /// The status, and results after that of SEQUENCE.
    pub async fn run(&mut self, ops: Ops) -> (u32, Words) {
        self.sequence += 1;
        let (status, mut reply) = self.again(&ops, true).await;
        if reply.result(SEQUENCE) == 0 {
            let _session: [u8; 16] = reply.take_raw();
            let _words = [(); 5].map(|()| reply.take32());
        } else {
            // The number is not used up.
            self.sequence -= 1;
        }
        (status, reply)
    }

    /// The same, where all is well.
    pub async fn ok(&mut self, ops: Ops) -> Words {
        let (status, reply) = self.run(ops).await;
        assert_eq!(status, 0);
        reply
    }

    /// The handle that a path leads to.
    pub async fn walk(&mut self, path: &[&str]) -> Result<Vec<u8>, u32> {
        let mut ops = Ops::new().plain(PUTROOTFH);
        for name in path {
            ops = ops.name(LOOKUP, name.as_bytes());
        }
        let (status, mut reply) = self.run(ops.plain(GETFH)).await;
        if status != 0 {
            return Err(status);
        }
        reply.well(&[PUTROOTFH]);
        path.iter().for_each(|_| reply.well(&[LOOKUP]));
        reply.well(&[GETFH]);
        Ok(reply.take_opaque())
    }

    /// Opens a file in a directory, or makes it; its state id and handle.
    pub async fn open(
        &mut self,
        directory: &[u8],
        name: &[u8],
        (access, deny): (u32, u32),
        how: Words,
    ) -> Result<(State, Vec<u8>), u32> {
        let arguments = open(b"owner", access, deny, how, by_name(name));
        let ops = Ops::new().put(directory).add(OPEN, arguments).plain(GETFH);
        let (status, mut reply) = self.run(ops).await;
        if status != 0 {
            return Err(status);
        }
        reply.well(&[PUTFH]);
        let state = reply.opened();
        reply.well(&[GETFH]);
        Ok((state, reply.take_opaque()))
    }

    /// Locks (`exclusive`: WRITE_LT) for a new owner; its state id, or the status.
    pub async fn lock(
        &mut self,
        file: &[u8],
        state: &State,
        owner: &[u8],
        exclusive: bool,
        (offset, length): (u64, u64),
        reclaims: bool,
    ) -> Result<State, (u32, Words)> {
        let words = Words::new()
            .u32(1 + u32::from(exclusive))
            .u32(reclaims.into());
        let words = words.u64(offset).u64(length).u32(1).u32(0).raw(state);
        let words = words.u32(0).u64(self.id).opaque(owner);
        let (status, mut reply) = self.run(Ops::new().put(file).add(LOCK, words)).await;
        if status == 10013 {
            return Err((status, reply));
        }
        reply.well(&[PUTFH]);
        match reply.result(LOCK) {
            0 => Ok(reply.state()),
            status => Err((status, reply)),
        }
    }

    /// LOCKU; the new state id.
    pub async fn unlock(&mut self, file: &[u8], state: &State, range: (u64, u64)) -> State {
        let words = Words::new()
            .u32(2)
            .u32(0)
            .raw(state)
            .u64(range.0)
            .u64(range.1);
        let mut reply = self.ok(Ops::new().put(file).add(LOCKU, words)).await;
        reply.well(&[PUTFH, LOCKU]);
        reply.state()
    }
}
