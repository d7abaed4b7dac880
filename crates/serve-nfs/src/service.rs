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

    /// Whether it may compute for a while before it waits for anything: lists are long.
    pub(crate) fn may_compute_long(&self) -> bool {
        match self {
            Self::V3(request) => matches!(request, v3::request::Request::ReadDirectory { .. }),
            Self::V4(request) => request.may_compute_long(),
            Self::Mount(_) | Self::Lock(_) | Self::Status(_) | Self::Map(_) => false,
        }
    }

    /// Whether all that it waits for is mostly the intent log, and it does little else.
    pub(crate) fn waits_for_log(&self) -> bool {
        use v3::request::{LONG_WRITE_BYTES, Request};
        match self {
            Self::V3(Request::Write { data, .. }) => data.len() < LONG_WRITE_BYTES,
            Self::V3(request) => matches!(request, Request::Commit { .. }),
            Self::V4(request) => request.waits_for_log(),
            Self::Mount(_) | Self::Lock(_) | Self::Status(_) | Self::Map(_) => false,
        }
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

/// Where in a record the content begins that a WRITE brings, by the first bytes of the record.
/// `None` where these do not show it, or it is no WRITE.
pub(crate) fn content_at(head: &[u8]) -> Option<usize> {
    /// What comes before the content has no more, but with long credentials, tags and handles.
    const HEAD_BYTES_MAX: usize = 1024;
    let head = Bytes::copy_from_slice(&head[..head.len().min(HEAD_BYTES_MAX)]);
    let length = head.len();
    let mut call = Call::decode(head).ok()?;
    let arguments = &mut call.arguments;
    let skipped = match (call.program, call.version, call.procedure) {
        (v3::PROGRAM, v3::VERSION, v3::request::WRITE) => v3::request::skip_to_content(arguments),
        (v3::PROGRAM, v4::VERSION, v4::request::COMPOUND) => {
            v4::request::skip_to_content(arguments)
        }
        _ => return None,
    };
    skipped.ok()?;
    Some(length - arguments.rest().len())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::Writer;

    /// A call of NFS before its arguments, by nobody.
    fn call(version: u32, procedure: u32) -> Writer {
        let mut call = Writer::new();
        for word in [9, 0, 2, v3::PROGRAM, version, procedure, 0, 0, 0, 0] {
            call.u32(word);
        }
        call
    }

    /// A WRITE by version 3, before its content.
    fn write3() -> Writer {
        let mut call = call(3, 7);
        call.opaque(&[1; 28]);
        call.u64(4096);
        for word in [65_536, 2, 65_536] {
            call.u32(word);
        }
        call
    }

    /// The same by version 4, as Linux sends it.
    fn write4() -> Writer {
        let mut call = call(4, 1);
        call.opaque(b"tag");
        for word in [2, 4, 53] {
            call.u32(word);
        }
        call.fixed(&[2; 16]);
        for word in [1, 0, 0, 1, 22] {
            call.u32(word);
        }
        call.opaque(&[1; 28]);
        call.u32(38);
        call.fixed(&[3; 16]);
        call.u64(4096);
        call.u32(0);
        call.u32(65_536);
        call
    }

    /// Goal: it shows where the content of a WRITE begins as soon as that begins, and of nothing
    /// else.
    #[test]
    fn the_place_of_content_shows() {
        for head in [write3(), write4()] {
            let head = head.finish().concat();
            assert_eq!(content_at(&head), Some(head.len()));
            let more = [head.clone(), vec![7; 5000]].concat();
            assert_eq!(content_at(&more), Some(head.len()));
            for length in 0..head.len() {
                assert_eq!(content_at(&head[..length]), None, "{length}");
            }
        }
        let mut read = call(3, 6);
        read.opaque(&[1; 28]);
        read.fixed(&[0; 5000]);
        let mut getattr = call(4, 1);
        getattr.opaque(b"");
        for word in [2, 1, 9] {
            getattr.u32(word);
        }
        getattr.fixed(&[0; 5000]);
        for other in [read, getattr, call(3, 7), call(2, 7)] {
            assert_eq!(content_at(&other.finish().concat()), None);
        }
        assert_eq!(content_at(&[0xff; 5000]), None);
    }

    /// Goal: lists are made beside other requests, whose answers are not kept waiting.
    #[test]
    fn lists_may_take_long() {
        let understood = |writer: Writer| {
            let call = Call::decode(Bytes::from(writer.finish().concat())).expect("a call");
            let call = Call {
                credential: Credential::Sys {
                    uid: 0,
                    gid: 0,
                    groups: Arc::new([]),
                },
                ..call
            };
            Work::decode(&call).expect("understood").may_compute_long()
        };
        let mut list = call(3, 17);
        list.opaque(&[1; 28]);
        list.u64(0);
        list.u64(0);
        list.u32(4096);
        list.u32(4096);
        assert!(understood(list));
        let mut list = call(4, 1);
        list.opaque(b"");
        for word in [2, 1, 26] {
            list.u32(word);
        }
        list.u64(0);
        list.u64(0);
        for word in [4096, 4096, 0] {
            list.u32(word);
        }
        assert!(understood(list));
        let mut getattr = call(3, 1);
        getattr.opaque(&[1; 28]);
        assert!(!understood(getattr));
        assert!(!understood(call(3, 0)));
    }

    /// Goal: only writes that are not long, and commits, go on on a device's thread.
    #[test]
    fn only_short_writes_and_commits_wait_for_the_log() {
        let waits = |writer: Writer| {
            let call = Call::decode(Bytes::from(writer.finish().concat())).expect("a call");
            let call = Call {
                credential: Credential::Sys {
                    uid: 0,
                    gid: 0,
                    groups: Arc::new([]),
                },
                ..call
            };
            Work::decode(&call).expect("understood").waits_for_log()
        };
        let write = |bytes: usize| {
            let mut write = call(3, 7);
            write.opaque(&[1; 28]);
            write.u64(0);
            write.u32(bytes as u32);
            write.u32(2);
            write.opaque(&vec![0; bytes]);
            write
        };
        assert!(waits(write(4096)));
        assert!(!waits(write(64 << 10)));
        let mut commit = call(3, 21);
        commit.opaque(&[1; 28]);
        commit.u64(0);
        commit.u32(0);
        assert!(waits(commit));
        let mut look = call(3, 1);
        look.opaque(&[1; 28]);
        assert!(!waits(look));
        // COMMIT, alone and beside a LOOKUP, which may do anything.
        let compound = |count: u32| {
            let mut compound = call(4, 1);
            compound.opaque(b"");
            compound.u32(2);
            compound.u32(count);
            compound.u32(5);
            compound.u64(0);
            compound.u32(0);
            compound
        };
        assert!(waits(compound(1)));
        let mut two = compound(2);
        two.u32(15);
        two.opaque(b"name");
        assert!(!waits(two));
    }
}
