//! The network lock manager, version 4 (RFC 1813 appendix II; X/Open's Protocols for Interworking,
//! XNFS version 3W, chapters 10 and 14), and of the status monitor what tells that a client began
//! anew (chapter 11).
//!
//! Locks are between clients of this server. Whoever waits for one is answered when it comes free,
//! or after some seconds that it is blocked: it asks again then, as all clients do. Nobody is
//! called back, so a client needs no port that can be reached. Whoever gives up while it waits, or
//! loses its connection, is not granted anything later.
//!
//! Locks are given back, and waits ended, whatever has become of the file and its share. So what
//! keeps other programs of a client's host from that is not the share's policy (`secure`), but that
//! what was locked from a port of root's is root's: UNLOCK, CANCEL, FREE_ALL and NOTIFY from other
//! ports do not reach it.
//!
//! Clients of version 4 have their locks in the same table. After a restart, while they take theirs
//! back, nobody gets new ones.
//!
//! A restart forgets all locks. Clients that had some are on record ([`monitor`]) and are told
//! ([`crate::Server`]); until they had time to lock again what they had (`reclaim`), nobody gets
//! new locks.

pub(crate) mod monitor;
pub(crate) mod table;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use filesystem::FsError;

use crate::handle::Handle;
use crate::object::Error;
use crate::rpc::{Credential, Outcome};
use crate::share::{Entered, Refused, Shares};
use crate::xdr::{Reader, Result, Writer};
use monitor::{Client, Monitor};
use table::{Denied, Lock, Owner, Range, Table, Waiter};

/// The program's number.
pub(crate) const PROGRAM: u32 = 100_021;
/// Version.
pub(crate) const VERSION: u32 = 4;
/// The status monitor's number.
pub(crate) const STATUS_PROGRAM: u32 = 100_024;
/// Its version.
pub(crate) const STATUS_VERSION: u32 = 1;

/// Longest cookie, handle or owner (`MAXNETOBJ_SZ`).
const OBJECT_BYTES_MAX: u32 = 1024;
/// Longest name of a client (`LM_MAXSTRLEN`).
const NAME_BYTES_MAX: u32 = 1024;
/// How long a lock is waited for before the client hears that it is blocked: less than clients wait
/// for an answer (`LOCKD_DFLT_TIMEO`, include/linux/lockd/lockd.h: 10 seconds).
const PATIENCE: Duration = Duration::from_secs(6);

/// `nlm4_stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Status {
    Granted = 0,
    Denied = 1,
    NoLocks = 2,
    Blocked = 3,
    DeniedGracePeriod = 4,
    ReadOnly = 6,
    Stale = 7,
    TooBig = 8,
    Failed = 9,
}

/// `nlm4_lock`, and who asks for it.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    cookie: Bytes,
    machine: Bytes,
    file: Option<Handle>,
    owner_handle: Bytes,
    process: u32,
    offset: u64,
    length: u64,
    /// How often the client had begun anew when it asked, as its status monitor counts; 0 where it
    /// does not say.
    state: u32,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Null,
    Test {
        wanted: Wanted,
        is_exclusive: bool,
    },
    Lock {
        wanted: Wanted,
        is_exclusive: bool,
        waits: bool,
        /// The client had it before the server began anew.
        is_reclaimed: bool,
    },
    Cancel {
        wanted: Wanted,
    },
    Unlock {
        wanted: Wanted,
    },
    /// Of locks of whole files, which nobody but DOS asks for: SHARE and UNSHARE.
    Share {
        cookie: Bytes,
    },
    FreeAll {
        machine: Bytes,
    },
}

/// A request to the status monitor.
#[derive(Debug, Clone)]
pub(crate) enum StatusRequest {
    Null,
    /// A client began anew, and has none of the locks that it took before.
    Notify {
        machine: Bytes,
        /// The state that it is in now.
        state: u32,
    },
}

impl Wanted {
    fn read(cookie: Bytes, reader: &mut Reader) -> Result<Self> {
        Ok(Self {
            cookie,
            machine: reader.opaque(NAME_BYTES_MAX)?,
            file: Handle::decode(&reader.opaque(OBJECT_BYTES_MAX)?),
            owner_handle: reader.opaque(OBJECT_BYTES_MAX)?,
            process: reader.u32()?,
            offset: reader.u64()?,
            length: reader.u64()?,
            state: 0,
        })
    }

    /// `None` where the range makes no sense.
    fn lock(&self, peer: SocketAddr, is_exclusive: bool) -> Option<Lock> {
        let owner = Owner {
            client: peer.ip().to_canonical(),
            // A copy, so that the request is not held by it.
            machine: Bytes::copy_from_slice(&self.machine),
            process: self.process,
            has_root_port: has_root_port(peer),
            of_version_4: None,
        };
        Some(Lock {
            owner: Arc::new(owner),
            owner_handle: Bytes::copy_from_slice(&self.owner_handle),
            range: Range::new(self.offset, self.length)?,
            is_exclusive,
            client_state: self.state,
        })
    }
}

impl Request {
    /// The arguments of a procedure; `Ok(None)` where there is no such procedure.
    pub(crate) fn decode(procedure: u32, reader: &mut Reader) -> Result<Option<Self>> {
        let cookie = |reader: &mut Reader| reader.opaque(OBJECT_BYTES_MAX);
        Ok(Some(match procedure {
            0 => Self::Null,
            1 => {
                let (cookie, is_exclusive) = (cookie(reader)?, reader.bool()?);
                let wanted = Wanted::read(cookie, reader)?;
                Self::Test {
                    wanted,
                    is_exclusive,
                }
            }
            // NM_LOCK is LOCK of a client that nobody watches.
            2 | 22 => {
                let cookie = cookie(reader)?;
                let (waits, is_exclusive) = (reader.bool()?, reader.bool()?);
                let mut wanted = Wanted::read(cookie, reader)?;
                let is_reclaimed = reader.bool()?;
                wanted.state = reader.u32()?;
                Self::Lock {
                    wanted,
                    is_exclusive,
                    waits: waits && procedure == 2,
                    is_reclaimed,
                }
            }
            3 => {
                let cookie = cookie(reader)?;
                let (_waits, _exclusive) = (reader.bool()?, reader.bool()?);
                let wanted = Wanted::read(cookie, reader)?;
                Self::Cancel { wanted }
            }
            4 => {
                let cookie = cookie(reader)?;
                let wanted = Wanted::read(cookie, reader)?;
                Self::Unlock { wanted }
            }
            20 | 21 => Self::Share {
                cookie: cookie(reader)?,
            },
            23 => Self::FreeAll {
                machine: reader.opaque(NAME_BYTES_MAX)?,
            },
            _ => return Ok(None),
        }))
    }

    /// Whether it names a file, so that the caller must be somebody.
    pub(crate) fn is_about_a_file(&self) -> bool {
        matches!(
            self,
            Self::Test { .. } | Self::Lock { .. } | Self::Unlock { .. }
        )
    }

    /// Whether it may wait for others.
    pub(crate) fn may_wait(&self) -> bool {
        matches!(self, Self::Lock { waits: true, .. })
    }
}

impl StatusRequest {
    /// The arguments of a procedure; `Ok(None)` where there is no such procedure.
    pub(crate) fn decode(procedure: u32, reader: &mut Reader) -> Result<Option<Self>> {
        Ok(Some(match procedure {
            0 => Self::Null,
            6 => Self::Notify {
                machine: reader.opaque(NAME_BYTES_MAX)?,
                state: reader.u32()?,
            },
            _ => return Ok(None),
        }))
    }
}

/// Whether only root of its host can use the port that a request comes from.
fn has_root_port(peer: SocketAddr) -> bool {
    peer.port() < 1024
}

/// Whose locks and waits this one may end, by what is said of both: its own; and root's port those
/// that were made from others, which may be another mount's of the same host.
fn may_end(owner: &Arc<Owner>) -> Vec<Arc<Owner>> {
    let mut owners = vec![Arc::clone(owner)];
    if owner.has_root_port {
        owners.push(Arc::new(Owner {
            has_root_port: false,
            ..Owner::clone(owner)
        }));
    }
    owners
}

/// What clients have locked.
#[derive(Debug)]
pub(crate) struct Locks {
    table: Arc<Table>,
    monitor: Arc<Monitor>,
}

/// `nlm4_res`.
fn result(cookie: &[u8], status: Status) -> Outcome {
    let mut answer = Writer::new();
    answer.opaque(cookie);
    answer.u32(status as u32);
    Outcome::Success(answer)
}

/// `nlm4_testres`.
fn tested(cookie: &[u8], holder: Option<&Lock>) -> Outcome {
    let mut answer = Writer::new();
    answer.opaque(cookie);
    match holder {
        None => answer.u32(Status::Granted as u32),
        Some(holder) => {
            let (offset, length) = holder.range.offset_and_length();
            answer.u32(Status::Denied as u32);
            answer.bool(holder.is_exclusive);
            answer.u32(holder.owner.process);
            answer.opaque(&holder.owner_handle);
            answer.u64(offset);
            answer.u64(length);
        }
    }
    Outcome::Success(answer)
}

/// Lets a client at a file that it wants to lock.
async fn enter(
    shares: &Shares,
    peer: SocketAddr,
    credential: &Credential,
    file: Option<Handle>,
) -> std::result::Result<(Entered, Handle), Status> {
    let handle = file.ok_or(Status::Stale)?;
    let entered = shares.enter(handle.dataset, peer, credential).await;
    let entered = entered.map_err(|refused| match refused {
        Refused::NoShare => Status::Stale,
        // Clients ask again.
        Refused::NotYet => Status::DeniedGracePeriod,
        Refused::NotAdmitted => Status::Failed,
    })?;
    let may_lock = async {
        let file = entered.file(handle.place).await?;
        match entered.check_read(&file).await {
            Err(Error::Access) => entered.check_write(&file).await,
            checked => checked,
        }
    };
    let checked = may_lock.await;
    match checked {
        Ok(()) => Ok((entered, handle)),
        Err(Error::Stale | Error::BadHandle | Error::Filesystem(FsError::Stale { .. })) => {
            Err(Status::Stale)
        }
        Err(Error::ReadOnly) => Err(Status::ReadOnly),
        Err(_) => Err(Status::Failed),
    }
}

impl Locks {
    /// Locks in this table, of clients that this monitor remembers.
    pub(crate) fn new(table: Arc<Table>, monitor: Arc<Monitor>) -> Self {
        Self { table, monitor }
    }

    /// Clients that had locks when the server last ran.
    pub(crate) fn locked_before(&self) -> Vec<Client> {
        self.monitor.before()
    }

    /// Whether only what was had before a restart is locked.
    pub(crate) fn is_grace(&self) -> bool {
        self.monitor.is_grace(Instant::now())
    }

    /// Carries a request out. `is_grace`: only what was had before a restart is locked.
    pub(crate) async fn execute(
        &self,
        shares: &Shares,
        peer: SocketAddr,
        credential: &Credential,
        request: Request,
        is_grace: bool,
    ) -> Outcome {
        match request {
            Request::Null => Outcome::Success(Writer::new()),
            // Clients of version 4 still take back what they had.
            Request::Lock {
                wanted,
                is_reclaimed: false,
                ..
            } if is_grace => result(&wanted.cookie, Status::DeniedGracePeriod),
            Request::Test {
                wanted,
                is_exclusive,
            } => {
                let cookie = &wanted.cookie;
                let handle = match enter(shares, peer, credential, wanted.file).await {
                    Ok((_entered, handle)) => handle,
                    Err(status) => return result(cookie, status),
                };
                match wanted.lock(peer, is_exclusive) {
                    Some(lock) => tested(cookie, self.table.test(&handle, &lock).as_ref()),
                    None => result(cookie, Status::TooBig),
                }
            }
            Request::Lock {
                wanted,
                is_exclusive,
                waits,
                ..
            } => {
                let lock = wanted.lock(peer, is_exclusive);
                // From here on it can be given up.
                let waiter = match (&wanted.file, &lock) {
                    (Some(handle), Some(lock)) if waits => Some(self.table.wait(handle, lock)),
                    _ => None,
                };
                // The share is not held while the lock is waited for.
                let entered = enter(shares, peer, credential, wanted.file).await;
                let status = match entered.map(|(_, handle)| handle) {
                    Ok(handle) => match lock {
                        Some(lock) => self.lock_watched(&handle, lock, waiter).await,
                        None => Status::TooBig,
                    },
                    Err(status) => status,
                };
                result(&wanted.cookie, status)
            }
            // What it got before this came the client gives back.
            Request::Cancel { wanted } => {
                let lock = wanted.lock(peer, false);
                if let (Some(handle), Some(lock)) = (wanted.file, lock) {
                    for owner in may_end(&lock.owner) {
                        self.table.cancel(&handle, &owner, lock.range);
                    }
                }
                result(&wanted.cookie, Status::Granted)
            }
            Request::Unlock { wanted } => {
                // Whatever has become of the file, its locks can be given back.
                let lock = wanted.lock(peer, false);
                let unlocked = match (wanted.file, lock) {
                    (Some(handle), Some(lock)) => may_end(&lock.owner)
                        .iter()
                        .try_for_each(|owner| self.table.unlock(&handle, owner, lock.range)),
                    _ => Ok(()),
                };
                let status = match unlocked {
                    Ok(()) => Status::Granted,
                    // One that is cut in two would be one too many.
                    Err(_) => Status::NoLocks,
                };
                result(&wanted.cookie, status)
            }
            Request::Share { cookie } => {
                let mut answer = Writer::new();
                answer.opaque(&cookie);
                answer.u32(Status::Failed as u32);
                answer.u32(0);
                Outcome::Success(answer)
            }
            Request::FreeAll { machine } => {
                let client = peer.ip().to_canonical();
                self.table.free(client, &machine, None, has_root_port(peer));
                Outcome::Success(Writer::new())
            }
        }
    }

    /// Locks, for a client that is on record before it hears so.
    async fn lock_watched(
        &self,
        handle: &Handle,
        lock: Lock,
        waiter: Option<Waiter<'_>>,
    ) -> Status {
        let client = Client {
            address: lock.owner.client,
            machine: lock.owner.machine.clone(),
        };
        self.monitor.watch(&client).await;
        let status = self.lock(handle, lock, waiter).await;
        let have_locks = || {
            let clients = self.table.clients().into_iter();
            clients
                .map(|(address, machine)| Client { address, machine })
                .collect()
        };
        self.monitor.sweep(Instant::now(), have_locks).await;
        if status == Status::Granted {
            // It had none when somebody looked, and was forgotten.
            self.monitor.watch(&client).await;
        }
        status
    }

    /// Locks, if it must be after a wait. One that was ended is as one that was too long: who wants
    /// the lock all the same asks again.
    async fn lock(&self, handle: &Handle, lock: Lock, waiter: Option<Waiter<'_>>) -> Status {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let mut released = std::pin::pin!(self.table.released.notified());
            // From here on nothing is missed.
            released.as_mut().enable();
            let locked = match &waiter {
                None => Some(self.table.lock(handle, lock.clone())),
                Some(waiter) => waiter.lock(handle, lock.clone()),
            };
            match locked {
                Some(Ok(())) => return Status::Granted,
                Some(Err(Denied::TooMany)) => return Status::NoLocks,
                Some(Err(Denied::Held(_))) if waiter.is_none() => return Status::Denied,
                Some(Err(Denied::Held(_))) => {}
                None => return Status::Blocked,
            }
            if tokio::time::timeout_at(end, released).await.is_err() {
                return Status::Blocked;
            }
        }
    }

    /// Carries a request to the status monitor out.
    pub(crate) fn execute_status(&self, peer: SocketAddr, request: &StatusRequest) -> Outcome {
        if let StatusRequest::Notify { machine, state } = request
            && !machine.is_empty()
        {
            let (client, is_root) = (peer.ip().to_canonical(), has_root_port(peer));
            // It comes again until it is answered, be it after new locks were taken.
            if self.table.free(client, machine, Some(*state), is_root) {
                tracing::info!(%peer, "an NFS client began anew; its locks are free");
            }
        }
        Outcome::Success(Writer::new())
    }
}
