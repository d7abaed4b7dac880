//! The MOUNT protocol, version 3 (RFC 1813 appendix I): from a path to a handle of a share.
//!
//! Directories below a share's root can be mounted as well. Who mounts is not remembered: a handle
//! is all that a client needs, and its requests are checked one by one.

use std::net::SocketAddr;

use bytes::Bytes;
use device::BoxFuture;

use crate::handle::Handle;
use crate::object::{Error, Object};
use crate::rpc::{AUTH_SYS, Credential, Outcome};
use crate::share::{Entered, Refused, Shares};
use crate::v3::types::Status;
use crate::xdr::{Reader, Result, Writer};

/// The program's number.
pub(crate) const PROGRAM: u32 = 100_005;
/// Version.
pub(crate) const VERSION: u32 = 3;
/// Longest path (`MNTPATHLEN`).
const PATH_BYTES_MAX: u32 = 1024;
/// Most clients that DUMP names.
const CLIENTS_MAX: usize = 256;
/// What DUMP, or EXPORT, names, in bytes.
const LISTS_BYTES_MAX: usize = 256 << 10;

/// A request.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Null,
    Mount { path: Bytes },
    Dump,
    Unmount,
    Export,
}

impl Request {
    /// The arguments of a procedure; `Ok(None)` where there is no such procedure.
    pub(crate) fn decode(procedure: u32, reader: &mut Reader) -> Result<Option<Self>> {
        Ok(Some(match procedure {
            0 => Self::Null,
            1 => Self::Mount {
                path: reader.opaque(PATH_BYTES_MAX)?,
            },
            2 => Self::Dump,
            3 | 4 => Self::Unmount,
            5 => Self::Export,
            _ => return Ok(None),
        }))
    }
}

impl Request {
    /// What the answer may need, in bytes.
    pub(crate) fn answer_bytes(&self) -> u32 {
        const SMALL: u32 = 4096;
        match self {
            Self::Dump | Self::Export => LISTS_BYTES_MAX as u32 + SMALL,
            Self::Null | Self::Mount { .. } | Self::Unmount => SMALL,
        }
    }
}

/// Carries a request out.
pub(crate) async fn execute(
    shares: &Shares,
    peer: SocketAddr,
    credential: &Credential,
    request: Request,
) -> Outcome {
    Outcome::Success(match request {
        Request::Null | Request::Unmount => Writer::new(),
        Request::Mount { path } => mount(shares, peer, credential, &path).await,
        Request::Dump => dump(shares),
        Request::Export => export(shares),
    })
}

async fn mount(shares: &Shares, peer: SocketAddr, credential: &Credential, path: &[u8]) -> Writer {
    let mut answer = Writer::new();
    let found = find(shares, peer, credential, path).await;
    match found {
        Ok(handle) => {
            answer.u32(0);
            handle.write(&mut answer);
            // Flavors that are taken.
            answer.u32(1);
            answer.u32(AUTH_SYS);
        }
        Err(status) => {
            let path = String::from_utf8_lossy(path);
            tracing::info!(%peer, %path, ?status, "an NFS mount is refused");
            // `mountstat3` has the same numbers, but fewer.
            answer.u32(match status {
                Status::Perm
                | Status::NoEnt
                | Status::Io
                | Status::Acces
                | Status::NotDir
                | Status::NameTooLong => status as u32,
                Status::Inval => Status::Inval as u32,
                _ => Status::Io as u32,
            });
        }
    }
    answer
}

/// Parts of a path, without empty ones.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
}

async fn find(
    shares: &Shares,
    peer: SocketAddr,
    credential: &Credential,
    path: &[u8],
) -> std::result::Result<Handle, Status> {
    let wanted: Vec<&[u8]> = parts(path).collect();
    if wanted.iter().any(|part| matches!(*part, b"." | b"..")) {
        return Err(Status::Inval);
    }
    let depth_in = |path: &str| {
        let depth = parts(path.as_bytes()).count();
        let leads_into =
            wanted.len() >= depth && parts(path.as_bytes()).eq(wanted[..depth].iter().copied());
        leads_into.then_some(depth)
    };
    // The innermost share that the path leads into.
    let mut best = None;
    for share in shares.all() {
        if let Some(depth) = depth_in(&share.names().path)
            && best.as_ref().is_none_or(|(deepest, _)| depth > *deepest)
        {
            best = Some((depth, share));
        }
    }
    let (depth, share) = best.ok_or(Status::NoEnt)?;
    // Not the plain directory below the mount of another filesystem.
    let mut others = shares.other_paths().into_iter();
    if others.any(|path| depth_in(&path).is_some_and(|other| other > depth)) {
        return Err(Status::Acces);
    }
    let entered = shares.enter_share(share, peer, credential).await;
    let entered = entered.map_err(|refused| match refused {
        Refused::NoShare => Status::NoEnt,
        Refused::NotYet => Status::Jukebox,
        Refused::NotAdmitted => Status::Acces,
    })?;
    // Boxed: it is deep.
    let walking: BoxFuture<'_, _> = Box::pin(walk(&entered, &wanted[depth..]));
    walking.await.map_err(|error| Status::from(&error))
}

async fn walk(entered: &Entered, names: &[&[u8]]) -> std::result::Result<Handle, Error> {
    let root = entered.share.root(&entered.filesystem).await?;
    let mut object = entered.resolve(root.place).await?;
    for name in names {
        object = entered.lookup(&object, name).await?;
    }
    if let Object::File(file) = &object
        && file.attributes.kind != filesystem::FileKind::Directory
    {
        let ino = file.ino();
        return Err(filesystem::FsError::NotDirectory { ino }.into());
    }
    Ok(entered.handle(&object))
}

/// Clients that use a share now, and which.
fn dump(shares: &Shares) -> Writer {
    let mut answer = Writer::new();
    let reports = shares.report();
    let connected = reports.iter().flat_map(|report| {
        let clients = report.clients.iter().filter(|client| client.is_connected);
        clients.map(|client| (client.address.to_string(), &report.path))
    });
    for (address, path) in connected.take(CLIENTS_MAX) {
        let before = answer.len();
        answer.bool(true);
        answer.opaque(address.as_bytes());
        answer.opaque(path.as_bytes());
        if answer.len() > LISTS_BYTES_MAX {
            answer.truncate(before);
            break;
        }
    }
    answer.bool(false);
    answer
}

fn export(shares: &Shares) -> Writer {
    let mut answer = Writer::new();
    for share in shares.all() {
        let before = answer.len();
        answer.bool(true);
        answer.opaque(share.names().path.as_bytes());
        for host in Shares::listed_hosts(&share) {
            answer.bool(true);
            answer.opaque(host.as_bytes());
        }
        answer.bool(false);
        if answer.len() > LISTS_BYTES_MAX {
            answer.truncate(before);
            break;
        }
    }
    answer.bool(false);
    answer
}
