//! NFS version 3 (RFC 1813).
//!
//! | Module | What it does |
//! |---|---|
//! | `types` | status, attributes, and what was before and after |
//! | `request` | arguments, pure |
//! | `look` | procedures that change nothing |
//! | `change` | those that do |
//! | `listing` | READDIR and READDIRPLUS |
//!
//! What changes names or attributes is on stable storage when it is answered, as the RFC asks for
//! (section 4.8); content is when the client asks for that, or commits.
//!
//! Mounts have been told of what was changed when it is answered, be it only in part
//! ([`filesystem::Changes`]).
//!
//! What a directory was before a change is told only where nobody else who comes by NFS changed it
//! meanwhile. For content nothing is told: writes of one file go on side by side.

pub(crate) mod change;
pub(crate) mod listing;
pub(crate) mod look;
pub(crate) mod request;
pub(crate) mod types;

use std::net::SocketAddr;

use crate::object::Error;
use crate::rpc::{Credential, Outcome};
use crate::share::{Entered, Refused, Shares};
use crate::xdr::Writer;
use request::Request;
use types::{Change, Status, write_after};

/// The program's number.
pub(crate) const PROGRAM: u32 = 100_003;
/// Version.
pub(crate) const VERSION: u32 = 3;

impl Request {
    /// How many words after its status say, in a failure, that nothing is told.
    fn untold(&self) -> usize {
        match self {
            Self::Null | Self::GetAttributes { .. } => 0,
            Self::Lookup { .. }
            | Self::Access { .. }
            | Self::ReadLink { .. }
            | Self::Read { .. }
            | Self::ReadDirectory { .. }
            | Self::Statistics { .. }
            | Self::Information { .. }
            | Self::PathLimits { .. } => 1,
            Self::Link { .. } => 3,
            Self::Rename { .. } => 4,
            _ => 2,
        }
    }
}

/// An answer that fails, with what is told all the same.
fn failed(status: Status, tell: impl FnOnce(&mut Writer)) -> Writer {
    let mut answer = Writer::new();
    answer.u32(status as u32);
    tell(&mut answer);
    answer
}

fn succeeded() -> Writer {
    let mut answer = Writer::new();
    answer.u32(0);
    answer
}

/// The answer to a change of one object.
fn changed(outcome: Result<impl FnOnce(&mut Writer, &Change), Error>, change: &Change) -> Writer {
    match outcome {
        Ok(write) => {
            let mut answer = succeeded();
            write(&mut answer, change);
            answer
        }
        Err(error) => failed((&error).into(), |answer| change.write(answer)),
    }
}

/// Carries a request out.
pub(crate) async fn execute(
    shares: &Shares,
    peer: SocketAddr,
    credential: &Credential,
    request: Request,
) -> Outcome {
    let untold = request.untold();
    let nothing = |answer: &mut Writer| (0..untold).for_each(|_| answer.bool(false));
    let handle = match request.handle() {
        Err(()) => return Outcome::Success(Writer::new()),
        Ok(None) => return Outcome::Success(failed(Status::BadHandle, nothing)),
        Ok(Some(handle)) => handle,
    };
    let entered = match shares.enter(handle.dataset, peer, credential).await {
        Ok(entered) => entered,
        Err(refused) => {
            let status = match refused {
                Refused::NoShare => Status::Stale,
                Refused::NotYet => Status::Jukebox,
                Refused::NotAdmitted => Status::Acces,
            };
            return Outcome::Success(failed(status, nothing));
        }
    };
    let answer = carry_out(shares, &entered, request).await;
    entered.mounts_told().await;
    let answer = answer.unwrap_or_else(|error| {
        tracing::debug!(%error, "an NFS request failed");
        failed((&error).into(), nothing)
    });
    if answer.first_u32().is_some_and(Status::is_trouble) {
        entered.counted.failed();
    }
    Outcome::Success(answer)
}

async fn carry_out(shares: &Shares, entered: &Entered, request: Request) -> Result<Writer, Error> {
    let place = match request.handle() {
        Ok(Some(handle)) => handle.place,
        _ => return Err(Error::BadHandle),
    };
    // Boxed where they are deep: most requests need far less room.
    match request {
        Request::Null => Ok(Writer::new()),
        Request::GetAttributes { .. } => look::attributes(entered, place).await,
        Request::SetAttributes { set, guard, .. } => {
            Box::pin(change::set_attributes(entered, place, set, guard)).await
        }
        Request::Lookup { entry } => look::lookup(entered, place, &entry.name).await,
        Request::Access { wanted, .. } => look::access(entered, place, wanted).await,
        Request::ReadLink { .. } => look::read_link(entered, place).await,
        Request::Read {
            offset_bytes,
            count_bytes,
            ..
        } => look::read(entered, place, offset_bytes, count_bytes).await,
        Request::Write {
            offset_bytes,
            stable,
            data,
            ..
        } => Box::pin(change::write(entered, place, offset_bytes, stable, data)).await,
        Request::Create { entry, how } => {
            Box::pin(change::create(entered, place, &entry.name, how)).await
        }
        Request::MakeDirectory { entry, set } => {
            let made = change::Made::Directory;
            Box::pin(change::make(entered, place, &entry.name, made, set)).await
        }
        Request::Symlink { entry, set, target } => {
            let made = change::Made::Symlink { target };
            Box::pin(change::make(entered, place, &entry.name, made, set)).await
        }
        Request::MakeNode {
            entry,
            kind,
            set,
            rdev,
        } => {
            let made = change::Made::Node { kind, rdev };
            Box::pin(change::make(entered, place, &entry.name, made, set)).await
        }
        Request::Remove { entry } => {
            Box::pin(change::remove(shares, entered, place, &entry.name, false)).await
        }
        Request::RemoveDirectory { entry } => {
            Box::pin(change::remove(shares, entered, place, &entry.name, true)).await
        }
        Request::Rename { from, to } => {
            let target = to.directory.ok_or(Error::BadHandle)?;
            if target.dataset != entered.share.identity {
                return Err(filesystem::FsError::CrossDevice.into());
            }
            Box::pin(change::rename(
                shares,
                entered,
                (place, &from.name),
                (target.place, &to.name),
            ))
            .await
        }
        Request::Link { entry, .. } => {
            let target = entry.directory.ok_or(Error::BadHandle)?;
            if target.dataset != entered.share.identity {
                return Err(filesystem::FsError::CrossDevice.into());
            }
            Box::pin(change::link(entered, place, target.place, &entry.name)).await
        }
        Request::ReadDirectory {
            cookie,
            names_bytes,
            count_bytes,
            is_plus,
            ..
        } => {
            let limits = listing::Limits {
                names_bytes: names_bytes as usize,
                count_bytes: count_bytes as usize,
            };
            Box::pin(listing::list(entered, place, cookie, limits, is_plus)).await
        }
        Request::Statistics { .. } => look::statistics(entered, place).await,
        Request::Information { .. } => look::information(entered, place).await,
        Request::PathLimits { .. } => look::path_limits(entered, place).await,
        Request::Commit { .. } => Box::pin(change::commit(entered, place)).await,
    }
}

/// Attributes of an object after an operation that found it, if they can be told.
async fn after(entered: &Entered, object: &crate::object::Object, answer: &mut Writer) {
    let told = entered.tell(object).await.ok();
    write_after(answer, told.as_ref());
}
