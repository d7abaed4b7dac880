//! COMPOUND: one operation after another, until one fails (RFC 8881 sections 2.10.6, 16.2).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::Nfs4;
use super::request::{ANSWER_BYTES_MAX, Compound, Operation};
use super::session::check_admitted;
use super::state::{Entry, KEPT_BYTES_MAX, Met};
use super::types::{StateId, Status, op};
use crate::handle::{Handle, Place};
use crate::rpc::Credential;
use crate::share::{Entered, Refused, Shares};
use crate::xdr::Writer;

/// What an answer needs besides its results and the tag, in bytes: heads of RPC and of COMPOUND.
const HEAD_BYTES: u32 = 64;
/// What SEQUENCE is answered, in bytes.
const SEQUENCE_BYTES: u32 = 44;

/// Why an operation ends a COMPOUND, and what is told all the same.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) status: Status,
    pub(super) told: Writer,
}

impl<T: Into<Status>> From<T> for Failed {
    fn from(status: T) -> Self {
        Self {
            status: status.into(),
            told: Writer::new(),
        }
    }
}

/// Short for results of operations.
pub(super) type Done = Result<Writer, Failed>;

/// A COMPOUND that is being carried out.
pub(super) struct Running<'a> {
    pub(super) nfs: &'a Nfs4,
    pub(super) shares: &'a Shares,
    pub(super) peer: SocketAddr,
    pub(super) credential: &'a Credential,
    pub(super) minor: u32,
    /// Its slot; `None` outside of sessions.
    pub(super) entry: Option<Entry>,
    pub(super) current: Option<Handle>,
    pub(super) saved: Option<Handle>,
    pub(super) current_state: Option<StateId>,
    saved_state: Option<StateId>,
    /// The share that was entered last. Never two at a time: who ends or exchanges one waits for
    /// those who are in it.
    entered: Option<Arc<Entered>>,
    /// Bytes that the answer may still have.
    pub(super) room_bytes: u32,
    /// What an answer is told to be that needs more.
    pub(super) too_big: Status,
}

/// A slot that is given back when this is dropped, however the request ends.
struct Slotted<'a> {
    nfs: &'a Nfs4,
    entry: Entry,
    answer: Option<Bytes>,
}

impl Drop for Slotted<'_> {
    fn drop(&mut self) {
        let mut state = self.nfs.state.lock();
        state.done(&self.entry, self.answer.take(), Instant::now());
    }
}

fn answer(status: Status, tag: &[u8], count: u32, results: Writer) -> Writer {
    let mut answer = Writer::new();
    answer.u32(status.0);
    answer.opaque(tag);
    answer.u32(count);
    answer.append(results);
    answer
}

/// An answer with the failure of its first operation alone.
fn failed_at_once(tag: &[u8], number: u32, status: Status) -> Writer {
    let mut results = Writer::new();
    results.u32(number);
    results.u32(status.0);
    answer(status, tag, 1, results)
}

/// Carries a COMPOUND out.
pub(super) async fn execute(
    nfs: &Nfs4,
    shares: &Shares,
    peer: SocketAddr,
    credential: &Credential,
    compound: Compound,
) -> Writer {
    let Compound {
        tag,
        minor,
        operations,
        bytes,
    } = compound;
    if !(1..=2).contains(&minor) {
        return answer(Status::MINOR_VERS_MISMATCH, &tag, 0, Writer::new());
    }
    let mut running = Running {
        nfs,
        shares,
        peer,
        credential,
        minor,
        entry: None,
        current: None,
        saved: None,
        current_state: None,
        saved_state: None,
        entered: None,
        room_bytes: ANSWER_BYTES_MAX - HEAD_BYTES,
        too_big: Status::REP_TOO_BIG,
    };
    let count = operations.len();
    let mut operations = operations.into_iter();
    let Some(first) = operations.next() else {
        return answer(Status::OK, &tag, 0, Writer::new());
    };
    let number = first.number();
    let Operation::Sequence {
        session,
        sequence,
        slot,
        is_kept,
    } = first
    else {
        let status = match &first {
            Operation::Refused { status, .. } => *status,
            Operation::ExchangeId { .. }
            | Operation::CreateSession { .. }
            | Operation::DestroySession { .. }
            | Operation::DestroyClient { .. }
            | Operation::BindConnection { .. } => match count {
                1 => {
                    let (status, count, results) = running.all(std::iter::once(first), false).await;
                    return answer(status, &tag, count, results);
                }
                _ => Status::NOT_ONLY_OP,
            },
            _ => Status::OP_NOT_IN_SESSION,
        };
        return failed_at_once(&tag, number, status);
    };
    // No more than a tag has.
    let head = HEAD_BYTES + tag.len() as u32;
    let met = {
        let mut state = nfs.state.lock();
        let fits = state.check_answer(&session, head + SEQUENCE_BYTES, is_kept);
        let request = (count, bytes);
        fits.and_then(|()| state.meet(&session, sequence, slot, request, Instant::now()))
    };
    let entry = match met {
        Ok(Met::New(entry)) => entry,
        Ok(Met::Answered(kept)) => return Writer::of(kept),
        Err(status) => return failed_at_once(&tag, number, status),
    };
    let mut slotted = Slotted {
        nfs,
        entry,
        answer: None,
    };
    running.entry = Some(entry);
    let mut answer_bytes = entry.answer_bytes.min(ANSWER_BYTES_MAX);
    if is_kept && entry.kept_bytes < answer_bytes {
        answer_bytes = entry.kept_bytes;
        running.too_big = Status::REP_TOO_BIG_TO_CACHE;
    }
    running.room_bytes = answer_bytes.saturating_sub(head);
    let mut results = Writer::new();
    results.u32(op::SEQUENCE);
    results.u32(0);
    results.fixed(&session);
    for word in [sequence, slot, entry.highest, entry.highest, 0] {
        results.u32(word);
    }
    running.room_bytes = running.room_bytes.saturating_sub(results.len() as u32);
    let (status, done, more) = running.all(operations, is_kept).await;
    results.append(more);
    let answered = answer(status, &tag, done + 1, results);
    // What is told of a share is counted before its client knows.
    drop(running);
    if (is_kept || count == 1) && answered.len() <= KEPT_BYTES_MAX as usize {
        let kept = Bytes::from(answered.finish().concat());
        slotted.answer = Some(kept.clone());
        return Writer::of(kept);
    }
    answered
}

impl Running<'_> {
    /// Carries operations out; the last one's status, how many there were, and their results.
    async fn all(
        &mut self,
        operations: impl Iterator<Item = Operation>,
        is_kept: bool,
    ) -> (Status, u32, Writer) {
        let mut results = Writer::new();
        let mut count = 0;
        for operation in operations {
            count += 1;
            let number = operation.number();
            let before = results.len();
            let has_room = check_room(&operation, is_kept, self.room_bytes, self.too_big);
            let done = match has_room {
                Ok(()) => self.one(operation).await,
                Err(status) => Err(status.into()),
            };
            if let Some(entered) = &self.entered {
                entered.mounts_told().await;
            }
            let (mut status, mut told) = match done {
                Ok(told) => (Status::OK, told),
                Err(Failed { status, told }) => (status, told),
            };
            // Only of what changes nothing: there was room for the rest.
            if told.len() > self.room_bytes as usize {
                (status, told) = (self.too_big, Writer::new());
            }
            results.u32(number);
            results.u32(status.0);
            results.append(told);
            // No more than an answer has.
            let length = (results.len() - before) as u32;
            self.room_bytes = self.room_bytes.saturating_sub(length);
            if status != Status::OK {
                tracing::debug!(number, status = status.0, "an NFS operation failed");
                if status.is_trouble()
                    && let Some(entered) = &self.entered
                {
                    entered.counted.failed();
                }
                return (status, count, results);
            }
        }
        (Status::OK, count, results)
    }

    async fn one(&mut self, operation: Operation) -> Done {
        // Boxed where they are deep: most requests need far less room.
        match operation {
            Operation::Refused { status, .. } => Err(status.into()),
            Operation::Sequence { .. } => Err(Status::SEQUENCE_POS.into()),
            Operation::PutHandle { handle } => {
                self.current = Some(handle.ok_or(Status::BADHANDLE)?);
                self.current_state = None;
                Ok(Writer::new())
            }
            Operation::PutRoot { .. } => self.put_root().await,
            Operation::GetHandle => {
                let mut told = Writer::new();
                self.handle()?.write(&mut told);
                Ok(told)
            }
            Operation::SaveHandle => {
                self.saved = Some(self.handle()?);
                self.saved_state = self.current_state;
                Ok(Writer::new())
            }
            Operation::RestoreHandle => {
                self.current = Some(self.saved.ok_or(Status::NOFILEHANDLE)?);
                self.current_state = self.saved_state;
                Ok(Writer::new())
            }
            Operation::Access { wanted } => self.access(wanted).await,
            Operation::GetAttributes { wanted } => self.get_attributes(wanted).await,
            Operation::Verify {
                wants_same,
                compared,
            } => self.verify(wants_same, &compared).await,
            Operation::Lookup { name } => self.lookup(&name).await,
            Operation::LookupParent => Box::pin(self.lookup_parent()).await,
            Operation::Security { name } => Box::pin(self.security(name)).await,
            Operation::Read {
                state,
                offset_bytes,
                count_bytes,
            } => self.read(&state, offset_bytes, count_bytes).await,
            Operation::ReadLink => self.read_link().await,
            Operation::Seek {
                state,
                offset,
                wants_hole,
            } => Box::pin(self.seek(&state, offset, wants_hole)).await,
            Operation::ReadDirectory {
                cookie,
                count_bytes,
                wanted,
            } => Box::pin(self.read_directory(cookie, count_bytes, wanted)).await,
            Operation::Write {
                state,
                offset_bytes,
                stable,
                data,
            } => Box::pin(self.write(&state, offset_bytes, stable, data)).await,
            Operation::Commit => Box::pin(self.commit()).await,
            Operation::SetAttributes { state, set } => {
                Box::pin(self.set_attributes(&state, set)).await
            }
            Operation::Create { kind, name, set } => Box::pin(self.create(kind, &name, set)).await,
            Operation::Remove { name } => Box::pin(self.remove(&name)).await,
            Operation::Rename { from, to } => Box::pin(self.rename(&from, &to)).await,
            Operation::Link { name } => Box::pin(self.link(&name)).await,
            Operation::Allocate {
                is_hole,
                state,
                offset,
                length,
            } => Box::pin(self.allocate(is_hole, &state, offset, length)).await,
            Operation::Copy {
                is_clone,
                from_state,
                to_state,
                from,
                to,
                length,
            } => {
                let states = (&from_state, &to_state);
                Box::pin(self.copy(is_clone, states, from, to, length)).await
            }
            Operation::Xattr(asked) => Box::pin(self.xattr(asked)).await,
            Operation::Open(open) => Box::pin(self.open(*open)).await,
            Operation::OpenDowngrade {
                state,
                access,
                deny,
            } => self.open_downgrade(&state, access, deny),
            Operation::Close { state } => self.close(&state),
            Operation::Lock {
                is_exclusive,
                is_reclaimed,
                offset,
                length,
                locker,
            } => {
                let range = (offset, length);
                Box::pin(self.lock(is_exclusive, is_reclaimed, range, locker)).await
            }
            Operation::TestLock {
                is_exclusive,
                offset,
                length,
                owner,
            } => Box::pin(self.test_lock(is_exclusive, (offset, length), &owner)).await,
            Operation::Unlock {
                state,
                offset,
                length,
            } => self.unlock(&state, (offset, length)),
            Operation::FreeState { state } => self.free_state(&state),
            Operation::TestStates { states } => self.test_states(&states),
            Operation::ReclaimComplete { is_of_one } => {
                Box::pin(self.reclaim_complete(is_of_one)).await
            }
            of_session => {
                let admitted = check_admitted(self.shares, self.peer, &of_session);
                Box::pin(admitted).await?;
                self.of_session(of_session)
            }
        }
    }

    /// The client, of whom the session is.
    pub(super) fn client(&self) -> Result<u64, Status> {
        self.entry
            .map(|entry| entry.client)
            .ok_or(Status::OP_NOT_IN_SESSION)
    }

    /// The current handle.
    pub(super) fn handle(&self) -> Result<Handle, Status> {
        self.current.ok_or(Status::NOFILEHANDLE)
    }

    /// A state id, or what the last operation gave.
    pub(super) fn state_of(&self, state: &StateId) -> Result<StateId, Status> {
        match *state == StateId::CURRENT {
            true => self.current_state.ok_or(Status::BAD_STATEID),
            false => Ok(*state),
        }
    }

    /// Enters the share of the current handle, where it is of one.
    pub(super) async fn enter(&mut self) -> Result<Arc<Entered>, Status> {
        let handle = self.handle()?;
        if matches!(handle.place, Place::Export { .. }) {
            return Err(Status::ROFS);
        }
        if let Some(entered) = &self.entered
            && entered.share.identity == handle.dataset
        {
            return Ok(Arc::clone(entered));
        }
        self.entered = None;
        if *self.credential == Credential::None {
            return Err(Status::WRONGSEC);
        }
        let entered = self
            .shares
            .enter(handle.dataset, self.peer, self.credential)
            .await;
        self.entered(entered)
    }

    /// Enters a share that was found.
    pub(super) async fn enter_share(
        &mut self,
        share: Arc<crate::share::Share>,
    ) -> Result<Arc<Entered>, Status> {
        self.entered = None;
        if *self.credential == Credential::None {
            return Err(Status::WRONGSEC);
        }
        let entered = self
            .shares
            .enter_share(share, self.peer, self.credential)
            .await;
        self.entered(entered)
    }

    fn entered(&mut self, entered: Result<Entered, Refused>) -> Result<Arc<Entered>, Status> {
        let entered = entered.map_err(|refused| match refused {
            Refused::NoShare => Status::STALE,
            Refused::NotYet => Status::DELAY,
            Refused::NotAdmitted => Status::ACCESS,
        })?;
        let entered = Arc::new(entered);
        self.entered = Some(Arc::clone(&entered));
        Ok(entered)
    }
}

/// Whether the longest answer of an operation fits into the room that is left; READ gives what
/// fits.
fn check_room(
    operation: &Operation,
    is_kept: bool,
    room_bytes: u32,
    too_big: Status,
) -> Result<(), Status> {
    let is_long = matches!(
        operation,
        Operation::Read { .. } | Operation::ReadDirectory { .. }
    );
    if is_long && is_kept && operation.answer_bytes() > KEPT_BYTES_MAX {
        return Err(Status::REP_TOO_BIG_TO_CACHE);
    }
    let needed = match operation {
        Operation::Read { .. } | Operation::ReadDirectory { .. } | Operation::ReadLink => 256,
        Operation::Refused { .. } => 0,
        // What is likely: the rest is for attributes, owners with long names, and lists.
        _ => operation.answer_bytes().min(256),
    };
    match needed <= room_bytes {
        true => Ok(()),
        false => Err(too_big),
    }
}

/// A name that an operation may be about.
pub(super) fn check_name(name: &[u8]) -> Result<(), Status> {
    match name {
        b"" => Err(Status::INVAL),
        b"." | b".." => Err(Status::BADNAME),
        _ => Ok(()),
    }
}
