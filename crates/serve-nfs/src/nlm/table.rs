//! Locks of byte ranges, as POSIX has them: an owner's locks never exclude each other, a new one
//! takes the place of what the owner has in its range. Knows nothing of protocols.
//!
//! Nothing of this is on disk but who has locks ([`super::monitor`]). Who locks stays bounded: of
//! one client, and of all together.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::handle::Handle;

/// Locks in all.
const LOCKS_MAX: usize = 64 << 10;
/// Locks of one client.
const CLIENT_LOCKS_MAX: usize = 16 << 10;

/// Who locks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    /// The client's address.
    pub(crate) client: IpAddr,
    /// What the client calls itself.
    pub(crate) machine: Bytes,
    /// Which of its processes it is.
    pub(crate) process: u32,
    /// It locks from a port that only root of its host can use: other users there, who may call
    /// themselves as they like, are not taken for it. Never of a client of version 4.
    pub(crate) has_root_port: bool,
    /// Of a client of version 4: its id; `machine` is its name for who locks.
    pub(crate) of_version_4: Option<u64>,
}

/// Bytes of a file, from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    first: u64,
    last: u64,
}

impl Range {
    /// All that a file may have.
    pub(crate) const ALL: Self = Self {
        first: 0,
        last: u64::MAX,
    };

    /// `None` where it would end beyond what can be; no length means to the end of the file.
    pub(crate) fn new(offset: u64, length: u64) -> Option<Self> {
        let last = match length {
            0 => u64::MAX,
            length => offset.checked_add(length - 1)?,
        };
        Some(Self {
            first: offset,
            last,
        })
    }

    fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Offset and length, as [`Self::new`] takes them.
    pub(crate) fn offset_and_length(self) -> (u64, u64) {
        let length = match self.last {
            u64::MAX => 0,
            last => last - self.first + 1,
        };
        (self.first, length)
    }
}

/// A lock that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) owner: Arc<Owner>,
    /// What the client knows the owner by.
    pub(crate) owner_handle: Bytes,
    pub(crate) range: Range,
    pub(crate) is_exclusive: bool,
    /// Of a client of version 3, how often it had begun anew when it asked; 0 where it does not
    /// say.
    pub(crate) client_state: u32,
}

/// Why a lock is not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denied {
    /// Another one is in the way.
    Held(Lock),
    /// There are too many.
    TooMany,
}

#[derive(Debug, Default)]
struct State {
    by_file: HashMap<Handle, Vec<Lock>>,
    count: usize,
    by_client: HashMap<IpAddr, usize>,
    /// Who waits for what, by number.
    waiting: HashMap<u64, Waiting>,
    next_number: u64,
}

/// A lock that is waited for.
#[derive(Debug)]
struct Waiting {
    file: Handle,
    owner: Arc<Owner>,
    range: Range,
    client_state: u32,
}

/// A place among those who wait for locks; dropping it ends the wait. Others may end it too.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    table: &'a Table,
    number: u64,
}

impl Waiter<'_> {
    /// Locks; `None` where the wait was ended.
    pub(crate) fn lock(&self, file: &Handle, wanted: Lock) -> Option<Result<(), Denied>> {
        let state = self.table.state.lock();
        // Under the lock that whoever ends waits has: what is given up is not granted.
        let is_waiting = state.waiting.contains_key(&self.number);
        is_waiting.then(|| self.table.lock_in(state, file, wanted))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.table.state.lock().waiting.remove(&self.number);
    }
}

/// Locks of all files.
#[derive(Debug, Default)]
pub(crate) struct Table {
    state: Mutex<State>,
    /// Told when a lock is given back, or a wait is ended.
    pub(crate) released: Notify,
}

impl State {
    fn in_the_way(&self, file: &Handle, wanted: &Lock) -> Option<&Lock> {
        let held = self.by_file.get(file)?;
        held.iter().find(|lock| {
            lock.owner != wanted.owner
                && (lock.is_exclusive || wanted.is_exclusive)
                && lock.range.meets(wanted.range)
        })
    }

    /// Whether a range is in the midst of a lock that an owner has.
    fn splits(&self, file: &Handle, owner: &Owner, range: Range) -> bool {
        let mut held = self.by_file.get(file).into_iter().flatten();
        held.any(|lock| {
            *lock.owner == *owner && lock.range.first < range.first && lock.range.last > range.last
        })
    }

    /// Takes a range from what an owner has; how many locks that leaves more or less.
    fn cut(&mut self, file: &Handle, owner: &Owner, range: Range) {
        let Entry::Occupied(mut entry) = self.by_file.entry(*file) else {
            return;
        };
        let held = entry.get_mut();
        let before = held.len();
        let mut rests = Vec::new();
        held.retain(|lock| {
            if *lock.owner != *owner || !lock.range.meets(range) {
                return true;
            }
            if lock.range.first < range.first {
                let mut rest = lock.clone();
                rest.range.last = range.first - 1;
                rests.push(rest);
            }
            if lock.range.last > range.last {
                let mut rest = lock.clone();
                rest.range.first = range.last + 1;
                rests.push(rest);
            }
            false
        });
        held.append(&mut rests);
        let after = held.len();
        if held.is_empty() {
            entry.remove();
        }
        self.count = self.count + after - before;
        if let Some(of_client) = self.by_client.get_mut(&owner.client) {
            *of_client = *of_client + after - before;
            if *of_client == 0 {
                self.by_client.remove(&owner.client);
            }
        }
    }
}

impl Table {
    /// What is in the way of a lock.
    pub(crate) fn test(&self, file: &Handle, wanted: &Lock) -> Option<Lock> {
        self.state.lock().in_the_way(file, wanted).cloned()
    }

    /// Begins to wait for a lock.
    pub(crate) fn wait(&self, file: &Handle, wanted: &Lock) -> Waiter<'_> {
        let mut state = self.state.lock();
        let number = state.next_number;
        state.next_number += 1;
        let waiting = Waiting {
            file: *file,
            owner: Arc::clone(&wanted.owner),
            range: wanted.range,
            client_state: wanted.client_state,
        };
        state.waiting.insert(number, waiting);
        Waiter {
            table: self,
            number,
        }
    }

    /// Ends waits of an owner for exactly this range.
    pub(crate) fn cancel(&self, file: &Handle, owner: &Owner, range: Range) {
        let mut state = self.state.lock();
        state.waiting.retain(|_, waiting| {
            waiting.file != *file || *waiting.owner != *owner || waiting.range != range
        });
        drop(state);
        self.released.notify_waiters();
    }

    /// Locks.
    pub(crate) fn lock(&self, file: &Handle, wanted: Lock) -> Result<(), Denied> {
        self.lock_in(self.state.lock(), file, wanted)
    }

    fn lock_in(
        &self,
        mut state: MutexGuard<'_, State>,
        file: &Handle,
        wanted: Lock,
    ) -> Result<(), Denied> {
        if let Some(held) = state.in_the_way(file, &wanted) {
            return Err(Denied::Held(held.clone()));
        }
        let client = wanted.owner.client;
        let of_client = state.by_client.get(&client).copied().unwrap_or(0);
        // One that is cut in two is counted when it is.
        if state.count + 2 > LOCKS_MAX || of_client + 2 > CLIENT_LOCKS_MAX {
            return Err(Denied::TooMany);
        }
        state.cut(file, &wanted.owner, wanted.range);
        state.count += 1;
        *state.by_client.entry(client).or_default() += 1;
        let was_shared = !wanted.is_exclusive;
        state.by_file.entry(*file).or_default().push(wanted);
        drop(state);
        if was_shared {
            // It may have been exclusive before.
            self.released.notify_waiters();
        }
        Ok(())
    }

    /// Gives a range back; what the owner waits for of it is not waited for any more. Refused where
    /// that would leave too many: a lock that is cut in two is one more.
    pub(crate) fn unlock(&self, file: &Handle, owner: &Owner, range: Range) -> Result<(), Denied> {
        let state = self.state.lock();
        let of_client = state.by_client.get(&owner.client).copied().unwrap_or(0);
        let is_full = state.count >= LOCKS_MAX || of_client >= CLIENT_LOCKS_MAX;
        if is_full && state.splits(file, owner, range) {
            return Err(Denied::TooMany);
        }
        self.unlock_in(state, file, owner, range);
        Ok(())
    }

    /// Gives all of a file back.
    pub(crate) fn release(&self, file: &Handle, owner: &Owner) {
        self.unlock_in(self.state.lock(), file, owner, Range::ALL);
    }

    fn unlock_in(
        &self,
        mut state: MutexGuard<'_, State>,
        file: &Handle,
        owner: &Owner,
        range: Range,
    ) {
        state.cut(file, owner, range);
        state.waiting.retain(|_, waiting| {
            waiting.file != *file || *waiting.owner != *owner || !waiting.range.meets(range)
        });
        drop(state);
        self.released.notify_waiters();
    }

    /// Clients of version 3 that have locks: addresses, and what they call themselves.
    pub(crate) fn clients(&self) -> HashSet<(IpAddr, Bytes)> {
        let state = self.state.lock();
        let owners = state.by_file.values().flatten().map(|lock| &lock.owner);
        let owners = owners.filter(|owner| owner.of_version_4.is_none());
        owners
            .map(|owner| (owner.client, owner.machine.clone()))
            .collect()
    }

    /// Whether an owner has locks of a file.
    pub(crate) fn has_any(&self, file: &Handle, owner: &Owner) -> bool {
        let state = self.state.lock();
        let held = state.by_file.get(file).into_iter().flatten();
        held.into_iter().any(|lock| *lock.owner == *owner)
    }

    /// Gives back all that a client of version 3 has that calls itself so, and ends its waits; with
    /// no name, whatever it is called. What it asked for in the state that it is in now
    /// (`client_state`) stays. Who says so from a port that every user can have (`by_root_port` is
    /// false) says it of what was locked from such ports alone. Whether there was anything.
    pub(crate) fn free(
        &self,
        client: IpAddr,
        machine: &[u8],
        client_state: Option<u32>,
        by_root_port: bool,
    ) -> bool {
        let is_of = |owner: &Owner, asked_in: u32| {
            owner.of_version_4.is_none()
                && owner.client == client
                && (by_root_port || !owner.has_root_port)
                && (machine.is_empty() || owner.machine == machine)
                && (asked_in == 0 || Some(asked_in) != client_state)
        };
        let mut state = self.state.lock();
        let waited = state.waiting.len();
        state
            .waiting
            .retain(|_, waiting| !is_of(&waiting.owner, waiting.client_state));
        let gave_up = state.waiting.len() < waited;
        // Anybody may say so: of a client without locks it costs nothing.
        if !gave_up && !state.by_client.contains_key(&client) {
            return false;
        }
        let mut freed = 0;
        state.by_file.retain(|_, held| {
            let before = held.len();
            held.retain(|lock| !is_of(&lock.owner, lock.client_state));
            freed += before - held.len();
            !held.is_empty()
        });
        state.count -= freed;
        if let Entry::Occupied(mut of_client) = state.by_client.entry(client) {
            // What its clients of version 4 have stays.
            *of_client.get_mut() -= freed;
            if *of_client.get() == 0 {
                of_client.remove();
            }
        }
        drop(state);
        let is_anything = gave_up || freed > 0;
        if is_anything {
            self.released.notify_waiters();
        }
        is_anything
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Place;
    use proptest::prelude::*;

    fn file() -> Handle {
        let (ino, generation) = (5, 6);
        Handle {
            dataset: 1,
            place: Place::File { ino, generation },
        }
    }

    #[test]
    fn what_is_given_up_is_not_granted() {
        let table = Table::default();
        table.lock(&file(), lock(1, 0, 10, true)).unwrap();
        let wanted = lock(2, 0, 5, true);
        let owner = &*wanted.owner;
        let waits = || table.wait(&file(), &wanted);
        let granted = |waiter: &Waiter<'_>| waiter.lock(&file(), wanted.clone());
        let all = [waits(), waits(), waits(), waits()];
        assert!(matches!(granted(&all[0]), Some(Err(Denied::Held(_)))));
        table.cancel(&file(), owner, Range::new(0, 6).unwrap());
        table
            .unlock(&file(), owner, Range::new(5, 0).unwrap())
            .unwrap();
        table.free(owner.client, b"other", None, true);
        assert!(granted(&all[1]).is_some());
        table.cancel(&file(), owner, wanted.range);
        assert!(all.iter().all(|waiter| granted(waiter).is_none()));
        let waiter = waits();
        table
            .unlock(&file(), owner, Range::new(4, 1).unwrap())
            .unwrap();
        assert_eq!(granted(&waiter), None);
        let waiter = waits();
        table.free(owner.client, b"", None, false);
        assert!(matches!(granted(&waiter), Some(Err(Denied::Held(_)))));
        table.free(owner.client, b"", None, true);
        // The one that held it has nothing any more either.
        assert_eq!(granted(&waiter), None);
        let waiter = waits();
        assert_eq!(granted(&waiter), Some(Ok(())));
        drop((all, waiter));
        assert!(table.state.lock().waiting.is_empty());
    }

    fn lock(process: u32, offset: u64, length: u64, is_exclusive: bool) -> Lock {
        let owner = Owner {
            client: "10.0.0.1".parse().unwrap(),
            machine: Bytes::from_static(b"m"),
            process,
            has_root_port: true,
            of_version_4: None,
        };
        Lock {
            owner: Arc::new(owner),
            owner_handle: Bytes::new(),
            range: Range::new(offset, length).unwrap(),
            is_exclusive,
            client_state: 7,
        }
    }

    #[test]
    fn locks_exclude_others_where_they_meet() {
        let table = Table::default();
        table.lock(&file(), lock(1, 0, 10, true)).unwrap();
        table.lock(&file(), lock(2, 10, 0, false)).unwrap();
        table.lock(&file(), lock(3, 20, 5, false)).unwrap();
        assert!(table.test(&file(), &lock(2, 9, 1, false)).is_some());
        let held = table.lock(&file(), lock(1, 24, 1, true)).unwrap_err();
        assert!(matches!(held, Denied::Held(lock) if lock.owner.process == 2));
        // A part in the middle comes free.
        let owner = lock(1, 0, 0, true).owner;
        let unlocked = table.unlock(&file(), &owner, Range::new(4, 2).unwrap());
        unlocked.unwrap();
        assert!(table.test(&file(), &lock(2, 4, 2, true)).is_none());
        assert!(table.test(&file(), &lock(2, 3, 1, true)).is_some());
        assert!(table.test(&file(), &lock(2, 6, 1, true)).is_some());
        assert_eq!(table.state.lock().count, 4);
        let free = |machine: &[u8], state, by_root_port| {
            table.free("10.0.0.1".parse().unwrap(), machine, state, by_root_port)
        };
        assert!(!free(b"other", None, true));
        assert!(!free(b"m", None, false));
        assert!(!free(b"m", Some(7), true));
        assert_eq!(table.state.lock().count, 4);
        assert!(free(b"m", Some(9), true));
        let state = table.state.lock();
        assert!(state.by_file.is_empty() && state.by_client.is_empty() && state.count == 0);
        assert_eq!(Range::new(u64::MAX, 2), None);
    }

    #[test]
    fn a_client_has_a_bounded_number_of_locks() {
        let table = Table::default();
        let mut n = 0;
        while table.lock(&file(), lock(n as u32, n * 2, 1, false)).is_ok() {
            n += 1;
        }
        assert_eq!(n as usize, CLIENT_LOCKS_MAX - 1);
        // Nor by giving back what is in the midst of one.
        let table = Table::default();
        table.lock(&file(), lock(1, 0, 0, true)).unwrap();
        let owner = lock(1, 0, 0, true).owner;
        let unlock =
            |offset, length| table.unlock(&file(), &owner, Range::new(offset, length).unwrap());
        let mut n = 0;
        while n < LOCKS_MAX as u64 && unlock(n * 2 + 1, 1).is_ok() {
            n += 1;
        }
        assert_eq!(n as usize, CLIENT_LOCKS_MAX - 1);
        assert_eq!(table.state.lock().count, CLIENT_LOCKS_MAX);
        // What leaves no more is given back all the same.
        assert_eq!(unlock(0, 1), Ok(()));
        assert_eq!(unlock(n * 2 + 1, 1), Ok(()));
        table.release(&file(), &owner);
        assert!(table.state.lock().by_client.is_empty());
    }

    proptest! {
        /// A byte is locked as the last request of each owner left it, and no two owners have what
        /// excludes each other.
        #[test]
        fn bytes_are_locked_as_asked(
            requests in prop::collection::vec((0..3u32, 0..12u64, 1..5u64, 0..3u8), 1..60)
        ) {
            let table = Table::default();
            // By owner and byte: whether it is exclusive.
            let mut model: HashMap<(u32, u64), bool> = HashMap::new();
            for (process, offset, length, what) in requests {
                let bytes = offset..offset + length;
                let wanted = lock(process, offset, length, what == 2);
                if what == 0 {
                    let unlocked = table.unlock(&file(), &wanted.owner, wanted.range);
                    prop_assert_eq!(unlocked, Ok(()));
                    model.retain(|(owner, byte), _| *owner != process || !bytes.contains(byte));
                    continue;
                }
                let conflicts = model.iter().any(|((owner, byte), exclusive)| {
                    *owner != process && bytes.contains(byte) && (*exclusive || what == 2)
                });
                prop_assert_eq!(table.lock(&file(), wanted).is_err(), conflicts);
                if !conflicts {
                    model.extend(bytes.map(|byte| ((process, byte), what == 2)));
                }
            }
            let state = table.state.lock();
            let held = state.by_file.get(&file()).into_iter().flatten();
            let mut found = HashMap::new();
            for lock in held {
                for byte in lock.range.first..=lock.range.last {
                    let before = found.insert((lock.owner.process, byte), lock.is_exclusive);
                    prop_assert!(before.is_none());
                }
            }
            prop_assert_eq!(found, model);
            prop_assert_eq!(state.count, state.by_file.values().map(Vec::len).sum::<usize>());
        }
    }
}
