//! Operations of clients and sessions.

use std::net::SocketAddr;
use std::time::Instant;

use super::compound::{Done, Running};
use super::request::{Channel, Operation, Protection};
use super::state::Principal;
use super::types::{StateId, Status};
use crate::rpc::Credential;
use crate::share::{Refused, Shares};
use crate::xdr::Writer;

/// Flags of CREATE_SESSION: `CREATE_SESSION4_FLAG_PERSIST`, `_CONN_BACK_CHAN`, `_CONN_RDMA`; none
/// is granted.
const CREATE_FLAGS: u32 = 7;
/// `CDFC4_FORE`: what a connection is used for, to the server.
const FORE: u32 = 1;
/// `CDFC4_BACK_OR_BOTH`, and `CDFC4_BACK`: nobody is called back.
const BACKS: [u32; 2] = [2, 7];

fn write_channel(writer: &mut Writer, channel: &Channel) {
    for word in [
        channel.padding_bytes,
        channel.request_bytes,
        channel.answer_bytes,
        channel.kept_bytes,
        channel.operations,
        channel.requests,
        // No RDMA.
        0,
    ] {
        writer.u32(word);
    }
}

/// Whether a client may begin what takes room here: EXCHANGE_ID and CREATE_SESSION, which every
/// program can send. Only hosts may, from ports, that some share lets in; while shares are expected
/// they ask again. The statuses are of those that the operations have (RFC 8881 section 15.2).
pub(super) async fn check_admitted(
    shares: &Shares,
    peer: SocketAddr,
    operation: &Operation,
) -> Result<(), Status> {
    let refused = match operation {
        Operation::ExchangeId { .. } => Status::PERM,
        Operation::CreateSession { .. } => Status::WRONG_CRED,
        _ => return Ok(()),
    };
    match shares.admit(peer).await {
        Ok(()) => Ok(()),
        Err(Refused::NotYet) => Err(Status::DELAY),
        Err(Refused::NoShare | Refused::NotAdmitted) => {
            tracing::debug!(%peer, "no share lets an NFS client in from there");
            Err(refused)
        }
    }
}

impl Running<'_> {
    fn principal(&self) -> Principal {
        Principal {
            address: self.peer.ip().to_canonical(),
            uid: match self.credential {
                Credential::None => None,
                Credential::Sys { uid, .. } => Some(*uid),
            },
            has_root_port: self.peer.port() < 1024,
        }
    }

    pub(super) fn of_session(&mut self, operation: Operation) -> Done {
        let now = Instant::now();
        let mut state = self.nfs.state.lock();
        match operation {
            Operation::ExchangeId {
                verifier,
                owner,
                flags,
                protection,
            } => {
                match protection {
                    Protection::None => {}
                    // It needs a machine's credential of Kerberos.
                    Protection::Machine => return Err(Status::INVAL.into()),
                    Protection::Secret => return Err(Status::ENCR_ALG_UNSUPP.into()),
                }
                let principal = self.principal();
                let (id, sequence, flags) =
                    state.exchange_id(&owner, verifier, flags, principal, now)?;
                drop(state);
                let mut told = Writer::new();
                told.u64(id);
                told.u32(sequence);
                told.u32(flags);
                // No protection.
                told.u32(0);
                // The owner of servers between which sessions could be shared, and the scope in
                // which handles and state ids mean the same.
                let server = self.nfs.server.as_bytes();
                told.u64(0);
                told.opaque(server);
                told.opaque(server);
                told.u32(0);
                Ok(told)
            }
            Operation::CreateSession {
                client,
                sequence,
                flags,
                fore,
                back,
            } => {
                // As what channels must have, it is looked at first, and uses no number up
                // (`nfsd4_create_session`, fs/nfsd/nfs4state.c of Linux).
                if flags & !CREATE_FLAGS != 0 {
                    return Err(Status::INVAL.into());
                }
                let channels = (fore, back);
                let created =
                    state.create_session(client, sequence, channels, self.principal(), now)?;
                let mut told = Writer::new();
                told.fixed(&created.session);
                told.u32(created.sequence);
                told.u32(0);
                write_channel(&mut told, &created.fore);
                write_channel(&mut told, &created.back);
                Ok(told)
            }
            Operation::BindConnection { session, direction } => {
                if !state.has_session(&session) {
                    return Err(Status::BADSESSION.into());
                }
                if BACKS.contains(&direction) {
                    return Err(Status::INVAL.into());
                }
                // Requests say which session they are of, whatever their connection.
                let mut told = Writer::new();
                told.fixed(&session);
                told.u32(FORE);
                told.bool(false);
                Ok(told)
            }
            Operation::DestroySession { session } => {
                state.destroy_session(&session)?;
                Ok(Writer::new())
            }
            Operation::DestroyClient { client } => {
                state.destroy_client(client, self.principal())?;
                Ok(Writer::new())
            }
            _ => Err(Status::NOTSUPP.into()),
        }
    }

    /// RECLAIM_COMPLETE, of all filesystems or (`is_of_one`) of one that moved here from another
    /// server: none does.
    pub(super) async fn reclaim_complete(&mut self, is_of_one: bool) -> Done {
        let client = self.client()?;
        if is_of_one {
            return Ok(Writer::new());
        }
        let begun = self
            .nfs
            .state
            .lock()
            .reclaim_complete(client, Instant::now());
        let (records, owner) = begun?;
        let name = owner.clone();
        let stored = tokio::task::spawn_blocking(move || records.add(&name)).await;
        if let Err(error) = stored.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            tracing::warn!(
                %error,
                "an NFS client cannot be remembered: after a restart it loses its locks"
            );
        }
        self.nfs.state.lock().reclaim_completed(client, &owner)?;
        Ok(Writer::new())
    }

    pub(super) fn free_state(&mut self, state: &StateId) -> Done {
        let (client, state) = (self.client()?, self.state_of(state)?);
        self.nfs.state.lock().opens.free(client, &state)?;
        Ok(Writer::new())
    }

    pub(super) fn test_states(&mut self, states: &[StateId]) -> Done {
        let client = self.client()?;
        let held = self.nfs.state.lock();
        let mut told = Writer::new();
        // No more than a request names.
        told.u32(states.len() as u32);
        for state in states {
            told.u32(held.opens.test(client, state).0);
        }
        Ok(told)
    }
}
