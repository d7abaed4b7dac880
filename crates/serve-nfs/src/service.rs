//! All programs of the server: from a call to its answer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use device::{BoxFuture, Random};

use crate::answers::{Answers, Key, Met};
use crate::nlm::monitor::{Client, Monitor};
use crate::nlm::table::Table;
use crate::nlm::{self, Locks};
use crate::rpc::{AuthError, Call, Credential, Outcome};
use crate::share::Shares;
use crate::{mount, portmap, v3, v4};

/// A call, understood.
#[derive(Debug)]
pub(crate) enum Work {
    V3(v3::request::Request),
    V4(v4::request::Request),
    Mount(mount::Request),
    Lock(nlm::Request),
    Status(nlm::StatusRequest),
    Map(portmap::Request),
}

/// What is served: shares, and what clients have locked in them.
pub struct Service {
    shares: Arc<Shares>,
    locks: Locks,
    nfs4: v4::Nfs4,
    answers: Arc<Answers>,
}

impl Service {
    /// Serves `shares`. Clients of version 4, and those of version 3 that have locks, are kept in
    /// mind in `directory`, so that they get back after a restart what they had open and locked;
    /// without one they do not. Sessions are as hard
    /// to guess as `random` is.
    pub fn new(
        shares: Arc<Shares>,
        directory: Option<PathBuf>,
        random: Arc<dyn Random>,
    ) -> Arc<Self> {
        let table = Arc::new(Table::default());
        let monitor = Arc::new(Monitor::load(directory.as_deref()));
        Arc::new(Self {
            shares,
            locks: Locks::new(Arc::clone(&table), Arc::clone(&monitor)),
            nfs4: v4::Nfs4::new(table, monitor, directory, random),
            answers: Arc::default(),
        })
    }

    /// Clients of version 3 that had locks when the server last ran.
    pub(crate) fn locked_before(&self) -> Vec<Client> {
        self.locks.locked_before()
    }

    /// What is shared.
    pub fn shares(&self) -> &Arc<Shares> {
        &self.shares
    }
}

impl Work {
    /// Understands a call's arguments.
    ///
    /// # Errors
    /// What it is answered, where there is nothing to do.
    pub(crate) fn decode(call: &Call) -> Result<Self, Outcome> {
        let (version, procedure) = (call.version, call.procedure);
        let reader = &mut call.arguments.clone();
        let versions = |lowest, highest| match (lowest..=highest).contains(&version) {
            true => Ok(()),
            false => Err(Outcome::NoVersion { lowest, highest }),
        };
        let work = match call.program {
            v3::PROGRAM if version == v4::VERSION => {
                v4::request::Request::decode(procedure, reader)?.map(Self::V4)
            }
            v3::PROGRAM => {
                versions(v3::VERSION, v4::VERSION)?;
                v3::request::Request::decode(procedure, reader)?.map(Self::V3)
            }
            mount::PROGRAM => {
                versions(mount::VERSION, mount::VERSION)?;
                mount::Request::decode(procedure, reader)?.map(Self::Mount)
            }
            nlm::PROGRAM => {
                versions(nlm::VERSION, nlm::VERSION)?;
                nlm::Request::decode(procedure, reader)?.map(Self::Lock)
            }
            nlm::STATUS_PROGRAM => {
                versions(nlm::STATUS_VERSION, nlm::STATUS_VERSION)?;
                nlm::StatusRequest::decode(procedure, reader)?.map(Self::Status)
            }
            portmap::PROGRAM => {
                versions(portmap::VERSION_MIN, portmap::VERSION_MAX)?;
                portmap::Request::decode(version, procedure, reader)?.map(Self::Map)
            }
            _ => return Err(Outcome::NoProgram),
        };
        let work = work.ok_or(Outcome::NoProcedure)?;
        // Files are for users who have a name.
        let needs_user = match &work {
            Self::V3(request) => request.handle().is_ok(),
            Self::Lock(request) => request.is_about_a_file(),
            // Operations of version 4 say so each for itself.
            Self::V4(_) | Self::Mount(_) | Self::Map(_) | Self::Status(_) => false,
        };
        if needs_user && call.credential == Credential::None {
            return Err(Outcome::Refused(AuthError::TooWeak));
        }
        Ok(work)
    }

    /// Whether it does nothing yet but wait until others let it: it can be given up.
    pub(crate) fn only_waits(&self) -> bool {
        matches!(self, Self::Lock(request) if request.may_wait())
    }

    /// What the answer may need, in bytes.
    pub(crate) fn answer_bytes(&self) -> u32 {
        match self {
            Self::V3(request) => request.answer_bytes(),
            Self::V4(request) => request.answer_bytes(),
            Self::Mount(request) => request.answer_bytes(),
            Self::Lock(_) | Self::Status(_) | Self::Map(_) => 1024,
        }
    }

    /// Whether doing it twice may give another answer than doing it once.
    fn is_once_only(&self) -> bool {
        match self {
            Self::V3(request) => request.is_once_only(),
            _ => false,
        }
    }

    /// Whether it may take long, so that it is not begun twice.
    fn may_take_long(&self) -> bool {
        use v3::request::Request;
        match self {
            Self::V3(request) => matches!(request, Request::Write { .. } | Request::Commit { .. }),
            Self::Lock(request) => request.may_wait(),
            _ => false,
        }
    }
}

impl Service {
    /// Does what a call asks for. The answer, in pieces, or `None` for none.
    pub(crate) async fn answer(
        &self,
        call: &Call,
        work: Work,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Option<Vec<Bytes>> {
        let once = work.is_once_only();
        let under_way = if once || work.may_take_long() {
            match self.answers.meet(Key::of(call, peer)) {
                Met::New(under_way) => Some(under_way),
                Met::UnderWay => return None,
                Met::Answered(answer) => return Some(answer),
            }
        } else {
            None
        };
        let (shares, credential) = (&*self.shares, &call.credential);
        // Boxed: they are deep, and each is much bigger than most requests need.
        let working: BoxFuture<'_, Outcome> = match work {
            Work::V3(request) => Box::pin(v3::execute(shares, peer, credential, request)),
            Work::V4(request) => Box::pin(self.nfs4.execute(shares, peer, credential, request)),
            Work::Mount(request) => Box::pin(mount::execute(shares, peer, credential, request)),
            Work::Lock(request) => {
                let is_grace = self.nfs4.is_grace() || self.locks.is_grace();
                Box::pin(async move {
                    let locks = &self.locks;
                    let done = locks.execute(shares, peer, credential, request, is_grace);
                    let done = done.await;
                    self.nfs4.records_settled().await;
                    done
                })
            }
            Work::Status(request) => Box::pin(std::future::ready(
                self.locks.execute_status(peer, &request),
            )),
            Work::Map(request) => Box::pin(std::future::ready(portmap::execute(local, &request))),
        };
        let outcome = working.await;
        let answer = outcome.encode(call.xid);
        if let Some(under_way) = under_way.filter(|_| once) {
            under_way.answered(&answer);
        }
        Some(answer)
    }
}
