//! OPEN and CLOSE, locks (RFC 8881 sections 9, 18.2, 18.10 to 18.12, 18.16, 18.18).

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use filesystem::{Attributes, FileKind, SetAttributes};

use super::Nfs4;
use super::attributes::{Set, TIME_ACCESS, TIME_MODIFY};
use super::compound::{Done, Failed, Running, check_name};
use super::look::{check_content, check_regular};
use super::opens::{NotLocked, Opens, READ, Reserved, WRITE, Wanted};
use super::request::{Claim, Locker, Making, Open};
use super::state::State;
use super::types::{Bits, StateId, Status, write_change};
use crate::handle::{Handle, Place};
use crate::nlm::table::{Lock, Range};
use crate::object::{File, Object};
use crate::share::Entered;
use crate::v3::change::{Changing, create_in, settle_made};
use crate::v3::request::CreateHow;
use crate::v3::types::Change;
use crate::xdr::Writer;

/// `OPEN4_RESULT_LOCKTYPE_POSIX`.
const RESULT_POSIX_LOCKS: u32 = 4;
/// `OPEN_DELEGATE_NONE`, and `OPEN_DELEGATE_NONE_EXT` with a reason, for who says what it wants.
const NO_DELEGATION: u32 = 0;
const NO_DELEGATION_SINCE: u32 = 3;
/// `WND4_NOT_WANTED`, `WND4_NOT_SUPP_FTYPE` (there are none here), and `WND4_CANCELLED`.
const NOT_WANTED: u32 = 0;
const NOT_OF_FILES: u32 = 3;
const CANCELLED: u32 = 7;
/// What a client may say about delegations, besides how it opens.
const WANTS: u32 = 0x3_ff00;
/// Which it wants, and `OPEN4_SHARE_ACCESS_WANT_NO_DELEG`, `_WANT_CANCEL`.
const WANTED: u32 = 0xff00;
const WANT_NONE: u32 = 0x400;
const WANT_CANCEL: u32 = 0x500;
/// Types of locks that are told: `READ_LT`, `WRITE_LT`.
const READ_LOCK: u32 = 1;
const WRITE_LOCK: u32 = 2;

/// Who opens a file, and how.
#[derive(Clone, Copy)]
struct Asked<'a> {
    client: u64,
    owner: &'a Bytes,
    access: u32,
    deny: u32,
}

/// A file that is open before it is cut off; dropping this takes that back.
struct Reservation<'a> {
    nfs: &'a Nfs4,
    client: u64,
    handle: Handle,
    reserved: Option<Reserved>,
}

impl Reservation<'_> {
    /// It stays open.
    fn keep(mut self) -> Option<StateId> {
        self.reserved.take().map(|reserved| reserved.state)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take() {
            let mut state = self.nfs.state.lock();
            state.opens.take_back(self.client, &reserved);
        }
    }
}

/// What was opened.
struct Opened<'a> {
    file: File,
    /// Where nobody else's share was in the way before anything was changed.
    reservation: Option<Reservation<'a>>,
    change: Change,
    /// Attributes that were set.
    set: Bits,
    /// It was made by this, so that its mode keeps its maker from nothing.
    is_made: bool,
}

/// A range as clients give it: all ones mean to the end.
fn range_of((offset, length): (u64, u64)) -> Result<Range, Status> {
    match length {
        0 => Err(Status::INVAL),
        u64::MAX => Range::new(offset, 0).ok_or(Status::INVAL),
        length => Range::new(offset, length).ok_or(Status::INVAL),
    }
}

/// `LOCK4denied`.
fn denied(held: &Lock) -> Failed {
    let mut told = Writer::new();
    let (offset, length) = held.range.offset_and_length();
    told.u64(offset);
    told.u64(if length == 0 { u64::MAX } else { length });
    told.u32(if held.is_exclusive {
        WRITE_LOCK
    } else {
        READ_LOCK
    });
    told.u64(held.owner.of_version_4.unwrap_or(0));
    told.opaque(&held.owner.machine);
    Failed {
        status: Status::DENIED,
        told,
    }
}

impl From<NotLocked> for Failed {
    fn from(not_locked: NotLocked) -> Self {
        match not_locked {
            NotLocked::Held(held) => denied(&held),
            NotLocked::Failed(status) => status.into(),
        }
    }
}

impl<'a> Running<'a> {
    pub(super) async fn open(&mut self, open: Open) -> Done {
        let client = self.client()?;
        let (access, deny) = (open.access & !WANTS, open.deny);
        if !(READ..=READ | WRITE).contains(&access) || deny > READ | WRITE {
            return Err(Status::INVAL.into());
        }
        let reclaims = matches!(open.claim, Claim::Previous);
        let may = self
            .nfs
            .state
            .lock()
            .may_claim(client, reclaims, Instant::now());
        may?;
        let entered = match self.enter().await {
            // Nothing but directories is there.
            Err(Status::ROFS) if matches!(open.making, Making::No) => {
                return Err(Status::ISDIR.into());
            }
            entered => entered?,
        };
        let opened = match &open.claim {
            Claim::Name(name) => {
                check_name(name)?;
                let asked = Asked {
                    client,
                    owner: &open.owner,
                    access,
                    deny,
                };
                self.open_by_name(&entered, name, asked, open.making)
                    .await?
            }
            Claim::Previous | Claim::Handle => {
                if !matches!(open.making, Making::No) {
                    return Err(Status::INVAL.into());
                }
                let file = entered.file(self.handle()?.place).await?;
                Opened {
                    file,
                    reservation: None,
                    change: Change::default(),
                    set: Bits::default(),
                    is_made: true,
                }
            }
            Claim::Delegated => return Err(Status::NOTSUPP.into()),
        };
        let file = &opened.file;
        check_regular(file)?;
        check_access(&entered, file, access, !opened.is_made).await?;
        let handle = entered.handle_of(file.snapshot, &file.attributes);
        let reserved = match opened.reservation {
            Some(reservation) if reservation.handle == handle => reservation.keep(),
            // Another file has come to have its name.
            _ => None,
        };
        let state = if let Some(state) = reserved {
            Ok(state)
        } else {
            let mut state = self.nfs.state.lock();
            // The grace may have begun, or its end, in between.
            let now = Instant::now();
            state.may_claim(client, reclaims, now)?;
            state.make_way((client, &open.owner), &handle, (access, deny), now);
            let opens = &mut state.opens;
            opens.open(client, &open.owner, handle, access, deny)
        };
        let state = state.map_err(|status| match (status, reclaims) {
            (Status::SHARE_DENIED, true) => Status::RECLAIM_CONFLICT,
            _ => status,
        })?;
        self.current = Some(handle);
        self.current_state = Some(state);
        let mut told = Writer::new();
        state.write(&mut told);
        write_change(&mut told, &opened.change);
        told.u32(RESULT_POSIX_LOCKS);
        opened.set.write(&mut told);
        // Section 18.16.3: who says what it wants is told why it does not get it.
        match open.access & WANTED {
            0 => told.u32(NO_DELEGATION),
            wanted => {
                told.u32(NO_DELEGATION_SINCE);
                told.u32(match wanted {
                    WANT_NONE => NOT_WANTED,
                    WANT_CANCEL => CANCELLED,
                    _ => NOT_OF_FILES,
                });
            }
        }
        Ok(told)
    }

    async fn open_by_name(
        &mut self,
        entered: &Arc<Entered>,
        name: &[u8],
        asked: Asked<'_>,
        making: Making,
    ) -> Result<Opened<'a>, Failed> {
        let place = self.handle()?.place;
        let how = match making {
            Making::No => return self.open_existing(entered, place, name).await,
            Making::Unchecked(set) => {
                let set = set?;
                (CreateHow::Unchecked(set.set), set.which)
            }
            Making::Guarded(set) => {
                let set = set?;
                (CreateHow::Guarded(set.set), set.which)
            }
            Making::Exclusive(verifier) => {
                let set = Set::default();
                (CreateHow::Exclusive(verifier, set.set), exclusive(set))
            }
            Making::ExclusiveWith(verifier, set) => {
                let set = set?;
                if !set.is_for_exclusive() {
                    return Err(Status::INVAL.into());
                }
                (CreateHow::Exclusive(verifier, set.set), exclusive(set))
            }
        };
        match self.open_made(entered, place, name, asked, how).await {
            // What is there can be opened where nothing can be made.
            Err(Failed {
                status: Status::ROFS,
                told,
            }) => match self.open_existing(entered, place, name).await {
                Ok(_) if !matches!(making, Making::Unchecked(_)) => Err(Status::EXIST.into()),
                Ok(opened) => Ok(opened),
                Err(_) => Err(Failed {
                    status: Status::ROFS,
                    told,
                }),
            },
            opened => opened,
        }
    }

    async fn open_existing(
        &self,
        entered: &Arc<Entered>,
        place: Place,
        name: &[u8],
    ) -> Result<Opened<'a>, Failed> {
        let directory = entered.resolve(place).await?;
        if let Object::File(file) = &directory {
            match file.attributes.kind {
                FileKind::Directory => {}
                FileKind::Symlink => return Err(Status::SYMLINK.into()),
                _ => return Err(Status::NOTDIR.into()),
            }
        }
        let Object::File(file) = entered.lookup(&directory, name).await? else {
            return Err(Status::ISDIR.into());
        };
        // Nothing changes.
        let now = entered.tell(&directory).await?;
        Ok(Opened {
            file,
            reservation: None,
            change: Change {
                before: Some(now.attributes),
                after: Some(now),
            },
            set: Bits::default(),
            is_made: false,
        })
    }

    async fn open_made(
        &self,
        entered: &Arc<Entered>,
        place: Place,
        name: &[u8],
        asked: Asked<'_>,
        (how, which): (CreateHow, Bits),
    ) -> Result<Opened<'a>, Failed> {
        let changing = Changing::begin(entered, place).await?;
        let directory = &changing.directory;
        if directory.attributes.kind != FileKind::Directory {
            return Err(Status::NOTDIR.into());
        }
        let truncates = match &how {
            CreateHow::Unchecked(SetAttributes { size_bytes, .. }) => size_bytes.is_some(),
            _ => false,
        };
        // Others who come by NFS make nothing meanwhile.
        let before = directory.filesystem.lookup(directory.ino(), name).await;
        let mut reservation = None;
        let outcome = match &before {
            Ok(found) if matches!(how, CreateHow::Unchecked(_)) => {
                // It is cut off only for whoever may open it.
                let handle = entered.handle_of(None, found);
                let checked = async {
                    let file = entered.file(handle.place).await?;
                    check_access(entered, &file, asked.access, true).await?;
                    match truncates {
                        true => check_content(&file),
                        false => Ok(()),
                    }
                };
                // Who may not search the directory hears of that first.
                entered
                    .check(&directory.attributes, directory, access::MAY_EXECUTE)
                    .await?;
                if found.kind == FileKind::Regular {
                    checked.await?;
                    if truncates {
                        reservation = Some(self.reserve(handle, asked)?);
                    }
                }
                create_in(entered, directory, name, how).await
            }
            _ => create_in(entered, directory, name, how).await,
        };
        let is_made = before.is_err();
        let (change, directory) = changing.end().await;
        let made: Attributes = match is_made || truncates {
            true => settle_made(outcome, &directory).await?,
            false => outcome?,
        };
        let file = entered.file(entered.handle_of(None, &made).place).await?;
        const SIZE: u32 = 4;
        let set = match (is_made, truncates) {
            (true, _) => which,
            (false, true) => which.and(Bits::of(&[SIZE])),
            (false, false) => Bits::default(),
        };
        Ok(Opened {
            file,
            reservation,
            change,
            set,
            is_made,
        })
    }

    /// Opens a file that is there, before it is cut off.
    fn reserve(&self, handle: Handle, asked: Asked<'_>) -> Result<Reservation<'a>, Status> {
        let Asked {
            client,
            owner,
            access,
            deny,
        } = asked;
        let mut state = self.nfs.state.lock();
        let now = Instant::now();
        state.may_claim(client, false, now)?;
        state.make_way((client, owner), &handle, (access | WRITE, deny), now);
        let reserved = state.opens.reserve(client, owner, handle, access, deny)?;
        Ok(Reservation {
            nfs: self.nfs,
            client,
            handle,
            reserved: Some(reserved),
        })
    }

    pub(super) fn open_downgrade(&mut self, state: &StateId, access: u32, deny: u32) -> Done {
        let (client, handle) = (self.client()?, self.handle()?);
        let state = self.state_of(state)?;
        let (access, deny) = (access & !WANTS, deny & (READ | WRITE));
        let mut held = self.nfs.state.lock();
        let state = held
            .opens
            .downgrade(client, &state, &handle, access, deny)?;
        drop(held);
        self.told_state(state)
    }

    pub(super) fn close(&mut self, state: &StateId) -> Done {
        let (client, handle) = (self.client()?, self.handle()?);
        let state = self.state_of(state)?;
        self.nfs.state.lock().opens.close(client, &state, &handle)?;
        self.told_state(StateId::INVALID)
    }

    fn told_state(&mut self, state: StateId) -> Done {
        self.current_state = Some(state);
        let mut told = Writer::new();
        state.write(&mut told);
        Ok(told)
    }

    pub(super) async fn lock(
        &mut self,
        is_exclusive: bool,
        is_reclaimed: bool,
        range: (u64, u64),
        locker: Locker,
    ) -> Done {
        let (client, handle) = (self.client()?, self.handle()?);
        let wanted = Wanted {
            range: range_of(range)?,
            is_exclusive,
        };
        let entered = self.enter().await?;
        let file = entered.file(handle.place).await?;
        check_content(&file)?;
        let locker = match locker {
            Locker::New { open, owner } => Locker::New {
                open: self.state_of(&open)?,
                owner,
            },
            Locker::Known { lock } => Locker::Known {
                lock: self.state_of(&lock)?,
            },
        };
        // What clients of version 3 had before a restart they may take back.
        if !is_reclaimed && self.nfs.monitor.is_grace(Instant::now()) {
            return Err(Status::GRACE.into());
        }
        let mut held = self.nfs.state.lock();
        let now = Instant::now();
        held.may_claim(client, is_reclaimed, now)?;
        let address = held.address_of(client)?;
        let state = loop {
            let opens = &mut held.opens;
            let state = match &locker {
                Locker::New { open, owner } => {
                    let owner = Opens::lock_owner(client, address, owner);
                    opens.lock_new(client, open, &handle, owner, wanted)
                }
                Locker::Known { lock } => opens.lock_known(client, lock, &handle, wanted),
            };
            match &state {
                Err(NotLocked::Held(lock)) if makes_way(&mut held, client, lock, now) => {}
                _ => break state,
            }
        };
        drop(held);
        let state = state.map_err(|error| match error {
            NotLocked::Held(_) if is_reclaimed => Status::RECLAIM_CONFLICT.into(),
            error => Failed::from(error),
        })?;
        self.told_state(state)
    }

    pub(super) async fn test_lock(
        &mut self,
        is_exclusive: bool,
        range: (u64, u64),
        owner: &Bytes,
    ) -> Done {
        let (client, handle) = (self.client()?, self.handle()?);
        let wanted = Wanted {
            range: range_of(range)?,
            is_exclusive,
        };
        let entered = self.enter().await?;
        let file = entered.file(handle.place).await?;
        check_content(&file)?;
        let mut held = self.nfs.state.lock();
        let now = Instant::now();
        if held.is_grace(now) {
            return Err(Status::GRACE.into());
        }
        let owner = Opens::lock_owner(client, held.address_of(client)?, owner);
        while let Some(lock) = held.opens.test_lock(&handle, &owner, wanted) {
            if !makes_way(&mut held, client, &lock, now) {
                return Err(denied(&lock));
            }
        }
        Ok(Writer::new())
    }

    pub(super) fn unlock(&mut self, state: &StateId, range: (u64, u64)) -> Done {
        let (client, handle) = (self.client()?, self.handle()?);
        let state = self.state_of(state)?;
        let range = range_of(range)?;
        let mut held = self.nfs.state.lock();
        let state = held.opens.unlock(client, &state, &handle, range)?;
        drop(held);
        self.told_state(state)
    }
}

/// Whether a lock in the way was another client's that is silent, and has gone with it.
fn makes_way(state: &mut State, client: u64, lock: &Lock, now: Instant) -> bool {
    let other = lock.owner.of_version_4.filter(|other| *other != client);
    other.is_some_and(|other| state.end_if_silent(other, now))
}

/// What is told to be set of a file that is made exclusively: times have the verifier, so that the
/// client sets them anew.
fn exclusive(set: Set) -> Bits {
    Bits(set.which.0 | Bits::of(&[TIME_ACCESS, TIME_MODIFY]).0)
}

/// Whether the caller may open a file so. Its owner may in any case, unless that is `strict`:
/// clients look first, and open again after a restart what they have open.
async fn check_access(
    entered: &Entered,
    file: &File,
    access: u32,
    strict: bool,
) -> Result<(), Status> {
    if access & READ != 0 {
        match strict {
            true if !may_open_to_read(entered, file).await? => {
                return Err(Status::ACCESS);
            }
            true => {}
            false => entered.check_read(file).await?,
        }
    }
    if access & WRITE != 0 {
        match strict {
            true => {
                let attributes = &file.attributes;
                entered.check(attributes, file, access::MAY_WRITE).await?;
            }
            false => entered.check_write(file).await?,
        }
        entered.check_writable(file)?;
    }
    Ok(())
}

/// Whether the caller may open a file to read it, as its mode says.
async fn may_open_to_read(entered: &Entered, file: &File) -> Result<bool, Status> {
    // Programs are read to be executed.
    Ok(entered
        .may(&file.attributes, file, access::MAY_READ)
        .await?
        || entered
            .may(&file.attributes, file, access::MAY_EXECUTE)
            .await?)
}
