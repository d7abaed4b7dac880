//! NFS version 4, minor versions 1 and 2 (RFC 8881, RFC 7862).
//!
//! | Module | What it does |
//! |---|---|
//! | `types`, `attributes` | status, state ids, attributes |
//! | `request` | arguments, pure |
//! | `records` | clients on stable storage |
//! | `state` | clients, sessions, slots, leases, grace: no sockets, no files |
//! | `opens` | files that are open and locked, by state ids |
//! | `exports` | the pseudo filesystem above the shares |
//! | `junctions` | roots of shares within other shares |
//! | `compound` | COMPOUND: one operation after another |
//! | `session` | operations of clients and sessions |
//! | `look`, `listing` | operations that change nothing |
//! | `change` | those that do |
//! | `open` | OPEN, CLOSE, locks |
//!
//! Minor version 0 is refused, which clients take to mean that they are to try another one.
//!
//! Each operation enters the share that its handle is of, as a request of version 3 does: what
//! a share's policy says holds for each of them. What is done to files is done by the same code.
//!
//! A request has a slot of its session, and its answer is kept there where the client wants that:
//! when it asks again, because its connection broke, it is answered the same. A restart forgets
//! sessions. Clients notice, and take back what they had open and locked during the grace.

mod attributes;
mod change;
mod compound;
mod exports;
mod junctions;
mod listing;
mod look;
mod open;
mod opens;
mod records;
pub(crate) mod request;
mod session;
mod state;
mod types;
mod xattrs;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use device::Random;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::nlm::monitor::Monitor;
use crate::nlm::table::Table;
use crate::rpc::{Credential, Outcome};
use crate::share::Shares;
use crate::xdr::Writer;
use opens::Opens;
use records::Records;
use request::Request;
use state::State;

/// Version.
pub(crate) const VERSION: u32 = 4;
/// COPY and CLONE at the same time: each holds memory that is counted under no request.
const COPIES_MAX: usize = 4;

/// All that is known of clients of this version.
pub(crate) struct Nfs4 {
    state: Mutex<State>,
    records: Arc<Records>,
    /// Clients of version 3 with locks.
    monitor: Arc<Monitor>,
    /// The server's name, the same after a restart.
    server: String,
    /// Who copies, and waits to.
    copies: Semaphore,
    began: filesystem::Time,
}

impl Nfs4 {
    /// With locks in `table`, and clients remembered in `directory`.
    pub(crate) fn new(
        table: Arc<Table>,
        monitor: Arc<Monitor>,
        directory: Option<PathBuf>,
        random: Arc<dyn Random>,
    ) -> Self {
        let found = Records::load(directory, random.next_u64());
        let (server, records) = (found.server.clone(), Arc::clone(&found.records));
        // It tells this run from others, and nothing else that is random.
        let boot = random.next_u64() as u32;
        let opens = Opens::new(table, boot);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let since = since.unwrap_or_default();
        Self {
            state: Mutex::new(State::new(found, opens, boot, random)),
            records,
            monitor,
            server,
            copies: Semaphore::new(COPIES_MAX),
            began: filesystem::Time {
                seconds: i64::try_from(since.as_secs()).unwrap_or(0),
                nanoseconds: since.subsec_nanos(),
            },
        }
    }

    /// Whether what clients had before a restart is still kept for them. Whose lease is over loses
    /// what they have.
    pub(crate) fn is_grace(&self) -> bool {
        self.state.lock().is_grace(Instant::now())
    }

    /// Completes when nobody is on record any more who has lost what he had: before anybody hears
    /// that he has it now.
    pub(crate) async fn records_settled(&self) {
        self.records.settled().await;
    }

    /// Carries a request out.
    pub(crate) async fn execute(
        &self,
        shares: &Shares,
        peer: SocketAddr,
        credential: &Credential,
        request: Request,
    ) -> Outcome {
        Outcome::Success(match request {
            Request::Null => Writer::new(),
            Request::Compound(compound) => {
                let done = compound::execute(self, shares, peer, credential, compound).await;
                self.records_settled().await;
                done
            }
        })
    }
}
