//! Files that clients have open or locked, by state ids (RFC 8881 sections 8.2, 9.1, 9.7 to 9.12).
//!
//! Locks themselves are in the table that the lock manager of version 3 has too
//! ([`crate::nlm::table`]), so that clients of either version see those of the other. A state id
//! of locks says whose they are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;

use super::types::{StateId, Status};
use crate::handle::Handle;
use crate::nlm::table::{Denied, Lock, Owner, Range, Table};

/// `OPEN4_SHARE_ACCESS_READ`, also of what is denied.
pub(crate) const READ: u32 = 1;
/// `OPEN4_SHARE_ACCESS_WRITE`.
pub(crate) const WRITE: u32 = 2;
/// State ids in all.
const STATES_MAX: usize = 64 << 10;
/// State ids of one client.
const OF_CLIENT_MAX: usize = 16 << 10;

/// An open file.
#[derive(Debug)]
struct Open {
    client: u64,
    owner: Bytes,
    handle: Handle,
    sequence: u32,
    access: u32,
    deny: u32,
    /// Its locks' states.
    locks: Vec<u64>,
}

/// Somebody's locks of an open file.
#[derive(Debug)]
struct Locks {
    open: u64,
    owner: Arc<Owner>,
    sequence: u32,
}

/// Who has a file open and how, and whose locks.
#[derive(Debug)]
pub(crate) struct Opens {
    opens: HashMap<u64, Open>,
    locks: HashMap<u64, Locks>,
    by_file: HashMap<Handle, Vec<u64>>,
    by_client: HashMap<u64, usize>,
    table: Arc<Table>,
    /// Tells this run from others.
    boot: u32,
    next: u64,
}

/// What an open file lets its client do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) access: u32,
    /// What others keep it from, where it was not opened to read.
    pub(crate) others_deny: u32,
}

/// A file that was opened before it was known whether that succeeds.
#[derive(Debug)]
pub(crate) struct Reserved {
    pub(crate) state: StateId,
    /// Access, what is denied, and the number of the state id, where its owner had it open.
    before: Option<(u32, u32, u32)>,
}

/// A range that is to be locked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) range: Range,
    pub(crate) is_exclusive: bool,
}

/// Why a lock is not given.
#[derive(Debug)]
pub(crate) enum NotLocked {
    Held(Box<Lock>),
    Failed(Status),
}

impl From<Status> for NotLocked {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

impl Opens {
    pub(crate) fn new(table: Arc<Table>, boot: u32) -> Self {
        Self {
            opens: HashMap::new(),
            locks: HashMap::new(),
            by_file: HashMap::new(),
            by_client: HashMap::new(),
            table,
            boot,
            next: 0,
        }
    }

    /// Whether a client has anything.
    pub(crate) fn has_client(&self, client: u64) -> bool {
        self.by_client.contains_key(&client)
    }

    fn state_id(&self, id: u64, sequence: u32) -> StateId {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.boot.to_be_bytes());
        other[4..].copy_from_slice(&id.to_be_bytes());
        StateId { sequence, other }
    }

    /// A new state id of a client.
    fn allocate(&mut self, client: u64) -> Result<u64, Status> {
        let count = self.opens.len() + self.locks.len();
        let of_client = self.by_client.get(&client).copied().unwrap_or(0);
        if count >= STATES_MAX || of_client >= OF_CLIENT_MAX {
            return Err(Status::SERVERFAULT);
        }
        *self.by_client.entry(client).or_default() += 1;
        self.next += 1;
        Ok(self.next)
    }

    fn released(&mut self, client: u64) {
        if let Some(count) = self.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }

    /// What a state id is of, whichever file.
    fn find(&self, client: u64, state: &StateId) -> Result<u64, Status> {
        let (boot, id) = state.other.split_at(4);
        let id = id.try_into().map_err(|_| Status::BAD_STATEID)?;
        let id = u64::from_be_bytes(id);
        if boot != self.boot.to_be_bytes() {
            return Err(Status::BAD_STATEID);
        }
        let (of, sequence) = if let Some(open) = self.opens.get(&id) {
            (open.client, open.sequence)
        } else if let Some(locks) = self.locks.get(&id) {
            let open = self.opens.get(&locks.open).ok_or(Status::BAD_STATEID)?;
            (open.client, locks.sequence)
        } else {
            return Err(Status::BAD_STATEID);
        };
        if of != client {
            return Err(Status::BAD_STATEID);
        }
        // Zero is the last one, whichever that is.
        match state.sequence {
            0 => Ok(id),
            asked if asked == sequence => Ok(id),
            asked if asked.wrapping_sub(sequence) > u32::MAX / 2 => Err(Status::OLD_STATEID),
            _ => Err(Status::BAD_STATEID),
        }
    }

    fn open_of(&self, id: u64) -> Option<(u64, &Open)> {
        let id = self.locks.get(&id).map_or(id, |locks| locks.open);
        self.opens.get(&id).map(|open| (id, open))
    }

    /// What a state id lets a client do to a file.
    pub(crate) fn granted(
        &self,
        client: u64,
        state: &StateId,
        handle: &Handle,
    ) -> Result<Granted, Status> {
        let id = self.find(client, state)?;
        let (id, open) = self.open_of(id).ok_or(Status::BAD_STATEID)?;
        if open.handle != *handle {
            return Err(Status::BAD_STATEID);
        }
        let others_deny = match open.access {
            // Of no matter, and there may be many.
            access if access & READ != 0 => 0,
            _ => {
                let others = self.by_file.get(handle).into_iter().flatten();
                let others = others.filter(|other| **other != id);
                let others = others.filter_map(|other| self.opens.get(other));
                others.fold(0, |denied, other| denied | other.deny)
            }
        };
        Ok(Granted {
            access: open.access,
            others_deny,
        })
    }

    /// Whether a state id is good.
    pub(crate) fn test(&self, client: u64, state: &StateId) -> Status {
        self.find(client, state)
            .map_or_else(|status| status, |_| Status::OK)
    }

    /// Whether somebody who opened a file keeps others from it.
    pub(crate) fn is_denied(&self, handle: &Handle, access: u32) -> bool {
        let opens = self.by_file.get(handle).into_iter().flatten();
        let mut opens = opens.filter_map(|id| self.opens.get(id));
        opens.any(|open| open.deny & access != 0)
    }

    /// Whether nobody else keeps an owner from opening a file; what it has open of it already.
    fn check_share(
        &self,
        client: u64,
        owner: &Bytes,
        handle: &Handle,
        access: u32,
        deny: u32,
    ) -> Result<Option<u64>, Status> {
        let mut known = None;
        for id in self.by_file.get(handle).into_iter().flatten() {
            let Some(open) = self.opens.get(id) else {
                continue;
            };
            if open.client == client && open.owner == owner {
                known = Some(*id);
            } else if open.deny & access != 0 || open.access & deny != 0 {
                return Err(Status::SHARE_DENIED);
            }
        }
        Ok(known)
    }

    /// Whose open files keep an owner from opening a file.
    pub(crate) fn in_the_way(
        &self,
        client: u64,
        owner: &Bytes,
        handle: &Handle,
        access: u32,
        deny: u32,
    ) -> Vec<u64> {
        let opens = self.by_file.get(handle).into_iter().flatten();
        let opens = opens.filter_map(|id| self.opens.get(id));
        let others = opens.filter(|open| open.client != client || open.owner != owner);
        others
            .filter(|open| open.deny & access != 0 || open.access & deny != 0)
            .map(|open| open.client)
            .collect()
    }

    /// Opens a file that is to be cut off, which is writing whatever it is opened for.
    pub(crate) fn reserve(
        &mut self,
        client: u64,
        owner: &Bytes,
        handle: Handle,
        access: u32,
        deny: u32,
    ) -> Result<Reserved, Status> {
        let known = self.check_share(client, owner, &handle, access | WRITE, deny)?;
        let before = known.and_then(|id| self.opens.get(&id));
        let before = before.map(|open| (open.access, open.deny, open.sequence));
        let state = self.open(client, owner, handle, access, deny)?;
        Ok(Reserved { state, before })
    }

    /// What was reserved is as it was, unless its owner opened it once more meanwhile.
    pub(crate) fn take_back(&mut self, client: u64, reserved: &Reserved) {
        let Ok(id) = self.find(client, &reserved.state) else {
            return;
        };
        match (reserved.before, self.opens.get_mut(&id)) {
            (Some(before), Some(open)) => {
                (open.access, open.deny, open.sequence) = before;
            }
            _ => self.remove_open(id),
        }
    }

    /// Opens a file, or lets an owner who has it open do more with it.
    pub(crate) fn open(
        &mut self,
        client: u64,
        owner: &Bytes,
        handle: Handle,
        access: u32,
        deny: u32,
    ) -> Result<StateId, Status> {
        let known = self.check_share(client, owner, &handle, access, deny)?;
        if let Some(id) = known
            && let Some(open) = self.opens.get_mut(&id)
        {
            open.access |= access;
            open.deny |= deny;
            open.sequence = next(open.sequence);
            let sequence = open.sequence;
            return Ok(self.state_id(id, sequence));
        }
        let id = self.allocate(client)?;
        let open = Open {
            client,
            // A copy, so that the request is not held by it.
            owner: Bytes::copy_from_slice(owner),
            handle,
            sequence: 1,
            access,
            deny,
            locks: Vec::new(),
        };
        self.opens.insert(id, open);
        self.by_file.entry(handle).or_default().push(id);
        Ok(self.state_id(id, 1))
    }

    /// The open file, not the locks, that a state id is of.
    fn own_open(
        &mut self,
        client: u64,
        state: &StateId,
        handle: &Handle,
    ) -> Result<(u64, &mut Open), Status> {
        let id = self.find(client, state)?;
        let open = self.opens.get_mut(&id).ok_or(Status::BAD_STATEID)?;
        match open.handle == *handle {
            true => Ok((id, open)),
            false => Err(Status::BAD_STATEID),
        }
    }

    pub(crate) fn downgrade(
        &mut self,
        client: u64,
        state: &StateId,
        handle: &Handle,
        access: u32,
        deny: u32,
    ) -> Result<StateId, Status> {
        let (id, open) = self.own_open(client, state, handle)?;
        if access & !open.access != 0 || deny & !open.deny != 0 || access == 0 {
            return Err(Status::INVAL);
        }
        open.access = access;
        open.deny = deny;
        open.sequence = next(open.sequence);
        let sequence = open.sequence;
        Ok(self.state_id(id, sequence))
    }

    /// Closes a file; locks that are left go with it.
    pub(crate) fn close(
        &mut self,
        client: u64,
        state: &StateId,
        handle: &Handle,
    ) -> Result<(), Status> {
        let (id, _) = self.own_open(client, state, handle)?;
        self.remove_open(id);
        Ok(())
    }

    fn remove_open(&mut self, id: u64) {
        let Some(open) = self.opens.remove(&id) else {
            return;
        };
        for lock in &open.locks {
            if let Some(locks) = self.locks.remove(lock) {
                self.table.release(&open.handle, &locks.owner);
                self.released(open.client);
            }
        }
        if let Some(opens) = self.by_file.get_mut(&open.handle) {
            opens.retain(|other| *other != id);
            if opens.is_empty() {
                self.by_file.remove(&open.handle);
            }
        }
        self.released(open.client);
    }

    /// Takes all from a client.
    pub(crate) fn remove_client(&mut self, client: u64) {
        let of_client = self.opens.iter().filter(|(_, open)| open.client == client);
        let of_client: Vec<u64> = of_client.map(|(id, _)| *id).collect();
        for id in of_client {
            self.remove_open(id);
        }
    }

    /// Who somebody is in the table of locks.
    pub(crate) fn lock_owner(client: u64, address: IpAddr, owner: &[u8]) -> Arc<Owner> {
        Arc::new(Owner {
            client: address,
            machine: Bytes::copy_from_slice(owner),
            process: 0,
            has_root_port: false,
            of_version_4: Some(client),
        })
    }

    /// Locks a range under an open file, for `owner`.
    pub(crate) fn lock_new(
        &mut self,
        client: u64,
        state: &StateId,
        handle: &Handle,
        owner: Arc<Owner>,
        wanted: Wanted,
    ) -> Result<StateId, NotLocked> {
        let (open_id, open) = self.own_open(client, state, handle)?;
        check_mode(open.access, wanted)?;
        let states = open.locks.clone();
        let known = states
            .into_iter()
            .find(|id| self.locks.get(id).is_some_and(|locks| locks.owner == owner));
        let id = match known {
            Some(id) => id,
            None => self.allocate(client)?,
        };
        if let Err(error) = self.lock_in_table(handle, &owner, wanted) {
            if known.is_none() {
                self.released(client);
            }
            return Err(error);
        }
        if known.is_none() {
            let locks = Locks {
                open: open_id,
                owner,
                sequence: 0,
            };
            self.locks.insert(id, locks);
            if let Some(open) = self.opens.get_mut(&open_id) {
                open.locks.push(id);
            }
        }
        Ok(self.advance(id))
    }

    /// Locks a range for whom a state id of locks is of.
    pub(crate) fn lock_known(
        &mut self,
        client: u64,
        state: &StateId,
        handle: &Handle,
        wanted: Wanted,
    ) -> Result<StateId, NotLocked> {
        let id = self.own_locks(client, state, handle)?;
        let (_, open) = self.open_of(id).ok_or(Status::BAD_STATEID)?;
        check_mode(open.access, wanted)?;
        let owner = Arc::clone(&self.locks[&id].owner);
        self.lock_in_table(handle, &owner, wanted)?;
        Ok(self.advance(id))
    }

    fn lock_in_table(
        &self,
        handle: &Handle,
        owner: &Arc<Owner>,
        wanted: Wanted,
    ) -> Result<(), NotLocked> {
        let locked = self.table.lock(handle, lock_of(owner, wanted));
        locked.map_err(|denied| match denied {
            Denied::Held(held) => NotLocked::Held(Box::new(held)),
            Denied::TooMany => NotLocked::Failed(Status::SERVERFAULT),
        })
    }

    /// What is in the way of a lock.
    pub(crate) fn test_lock(
        &self,
        handle: &Handle,
        owner: &Arc<Owner>,
        wanted: Wanted,
    ) -> Option<Lock> {
        self.table.test(handle, &lock_of(owner, wanted))
    }

    pub(crate) fn unlock(
        &mut self,
        client: u64,
        state: &StateId,
        handle: &Handle,
        range: Range,
    ) -> Result<StateId, Status> {
        let id = self.own_locks(client, state, handle)?;
        let unlocked = self.table.unlock(handle, &self.locks[&id].owner, range);
        // As where too many are locked.
        unlocked.map_err(|_| Status::SERVERFAULT)?;
        Ok(self.advance(id))
    }

    fn own_locks(&self, client: u64, state: &StateId, handle: &Handle) -> Result<u64, Status> {
        let id = self.find(client, state)?;
        let locks = self.locks.get(&id).ok_or(Status::BAD_STATEID)?;
        let open = self.opens.get(&locks.open).ok_or(Status::BAD_STATEID)?;
        match open.handle == *handle {
            true => Ok(id),
            false => Err(Status::BAD_STATEID),
        }
    }

    fn advance(&mut self, id: u64) -> StateId {
        let sequence = self.locks.get_mut(&id).map_or(1, |locks| {
            locks.sequence = next(locks.sequence);
            locks.sequence
        });
        self.state_id(id, sequence)
    }

    /// FREE_STATEID: of locks that have been given back.
    pub(crate) fn free(&mut self, client: u64, state: &StateId) -> Result<(), Status> {
        let id = self.find(client, state)?;
        let Some(locks) = self.locks.get(&id) else {
            return Err(Status::LOCKS_HELD);
        };
        let (open, owner) = (locks.open, Arc::clone(&locks.owner));
        let open = self.opens.get_mut(&open).ok_or(Status::BAD_STATEID)?;
        if self.table.has_any(&open.handle, &owner) {
            return Err(Status::LOCKS_HELD);
        }
        open.locks.retain(|other| *other != id);
        self.locks.remove(&id);
        self.released(client);
        Ok(())
    }
}

/// The number after that, which is never zero.
fn next(sequence: u32) -> u32 {
    sequence.wrapping_add(1).max(1)
}

fn lock_of(owner: &Arc<Owner>, wanted: Wanted) -> Lock {
    Lock {
        owner: Arc::clone(owner),
        owner_handle: Bytes::new(),
        client_state: 0,
        range: wanted.range,
        is_exclusive: wanted.is_exclusive,
    }
}

fn check_mode(access: u32, wanted: Wanted) -> Result<(), Status> {
    let needed = if wanted.is_exclusive { WRITE } else { READ };
    match access & needed {
        0 => Err(Status::OPENMODE),
        _ => Ok(()),
    }
}
