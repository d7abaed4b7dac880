//! What clients have: ids, sessions with their slots, leases; and the grace after a restart
//! (RFC 8881 sections 2.4, 2.10, 8.3, 8.4). Knows nothing of files; what they have open is in
//! `opens`, under the same lock.
//!
//! A client that is silent for longer than its lease loses all, at the next request of anybody: its
//! record on stable storage first, so that it does not reclaim after a restart what others have
//! got meanwhile. It is given half a lease more, unless it never confirmed, or somebody else wants
//! what it has.
//!
//! All is bounded: clients and sessions, of one host, of one network and in all, slots, answers
//! kept. A host's ports that only its root can use have a share of their own, so that no other user
//! of it keeps its kernel from mounting; and where there is no room, clients that never confirmed
//! make it (section 18.35.4).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use device::Random;

use super::attributes::LEASE_SECONDS;
use super::opens::Opens;
use super::records::{Found, Records};
use super::request::{ANSWER_BYTES_MAX, Channel, OPERATIONS_MAX};
use super::types::Status;
use crate::handle::Handle;
use crate::v3::request::TRANSFER_BYTES_MAX;

/// Clients in all.
const CLIENTS_MAX: usize = 1024;
/// Clients of one address, of either kind of ports.
const OF_ADDRESS_MAX: usize = 64;
/// Clients of one network of IPv6, all of whose addresses one host may have.
const OF_NETWORK_MAX: usize = 256;
/// Sessions of one client.
const SESSIONS_MAX: usize = 16;
/// Sessions of clients of one address, of either kind of ports.
const OF_ADDRESS_SESSIONS_MAX: usize = 64;
/// Sessions of clients of one network of IPv6.
const OF_NETWORK_SESSIONS_MAX: usize = 256;
/// Sessions in all.
const ALL_SESSIONS_MAX: usize = 1024;
/// Requests of one session at the same time.
const SLOTS_MAX: u32 = 64;
/// From so many sessions on, new ones have few slots: each slot may keep an answer.
const SESSIONS_MANY: usize = 256;
/// Slots of a session where there are many.
const FEW_SLOTS_MAX: u32 = 16;
/// Longest answer that is kept, in bytes.
pub(crate) const KEPT_BYTES_MAX: u32 = 4096;
/// Longest request.
pub(crate) const REQUEST_BYTES_MAX: u32 = TRANSFER_BYTES_MAX + (8 << 10);
/// Least that a session must take, in bytes: SEQUENCE and another short operation.
const CHANNEL_BYTES_MIN: u32 = 256;
/// Least that a channel for calling back must take, in bytes, if there is to be one.
const BACK_BYTES_MIN: u32 = 128;
/// Least operations of a call back: CB_SEQUENCE and another one.
const BACK_OPERATIONS_MIN: u32 = 2;
/// The lease as clients know it.
pub(crate) const PROMISED: Duration = Duration::from_secs(LEASE_SECONDS as u64);
/// The lease as clients know it, and some time for what is on its way.
pub(crate) const LEASE: Duration = Duration::from_secs(LEASE_SECONDS as u64 * 3 / 2);
/// How long clients may reclaim after a restart: they notice it when they renew their lease.
pub(crate) const GRACE: Duration = Duration::from_secs(LEASE_SECONDS as u64 * 3 / 2);
/// How often leases are looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`.
const FLAG_UPDATE: u32 = 0x4000_0000;
/// `EXCHGID4_FLAG_CONFIRMED_R`.
pub(crate) const FLAG_CONFIRMED: u32 = 0x8000_0000;
/// `EXCHGID4_FLAG_USE_NON_PNFS`.
pub(crate) const FLAG_NO_PNFS: u32 = 0x0001_0000;
/// Flags that a client may give.
const FLAGS_TAKEN: u32 = 0x4000_0000 | 0x0007_0000 | 0x0000_0103;

/// Most addresses of a client beside the one that it came from first.
const ADDRESSES_MAX: usize = 8;

/// Identity of a session.
pub(crate) type SessionId = [u8; 16];

/// Who a client is for the server: only the same one may say that it began anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) address: IpAddr,
    /// User id, where one is named.
    pub(crate) uid: Option<u32>,
    /// It comes from a port that only root of its host can use: other users of that are not taken
    /// for it.
    pub(crate) has_root_port: bool,
}

impl Principal {
    /// Whether another one counts as of the same host.
    fn is_beside(&self, other: &Self) -> bool {
        self.address == other.address && self.has_root_port == other.has_root_port
    }

    /// Which network it counts as of, and by which kind of ports.
    fn network(&self) -> (IpAddr, bool) {
        (net::origin(self.address), self.has_root_port)
    }
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) owner: Bytes,
    verifier: [u8; 8],
    pub(crate) principal: Principal,
    /// Other addresses that it has shown to be its own, by its verifier.
    addresses: Vec<IpAddr>,
    is_confirmed: bool,
    /// Of the last CREATE_SESSION, and what it was answered.
    sequence: u32,
    created: Option<Result<Created, Status>>,
    sessions: Vec<SessionId>,
    renewed: Instant,
    /// It has reclaimed all that it wants.
    pub(crate) is_complete: bool,
}

impl Client {
    /// Whether it is this one that asks.
    fn is_principal(&self, who: Principal) -> bool {
        let known = Principal {
            address: who.address,
            ..self.principal
        };
        known == who
            && (self.principal.address == who.address || self.addresses.contains(&who.address))
    }

    /// It comes from another address of its host's, or its host has got another one: nobody else
    /// knows its verifier (section 2.10.5: sessions over several addresses).
    fn comes_from(&mut self, who: Principal) {
        if !self.is_principal(who) {
            if self.addresses.len() >= ADDRESSES_MAX {
                self.addresses.remove(0);
            }
            self.addresses.push(who.address);
        }
    }
}

/// What CREATE_SESSION gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) session: SessionId,
    pub(crate) sequence: u32,
    pub(crate) fore: Channel,
    pub(crate) back: Channel,
}

/// The last request in a slot.
#[derive(Debug, Clone, Default)]
struct Slot {
    sequence: u32,
    is_under_way: bool,
    answer: Option<Bytes>,
}

/// A session.
#[derive(Debug)]
struct Session {
    client: u64,
    fore: Channel,
    slots: Vec<Slot>,
}

/// How a request is met that begins with SEQUENCE.
#[derive(Debug, Clone)]
pub(crate) enum Met {
    /// It is new.
    New(Entry),
    /// It was answered so.
    Answered(Bytes),
}

/// A request that has a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) session: SessionId,
    pub(crate) client: u64,
    pub(crate) slot: u32,
    pub(crate) sequence: u32,
    /// Slots less one.
    pub(crate) highest: u32,
    /// Longest answer, in bytes.
    pub(crate) answer_bytes: u32,
    /// Longest answer that is kept, in bytes.
    pub(crate) kept_bytes: u32,
}

/// What clients may reclaim after a restart.
#[derive(Debug)]
struct Grace {
    /// Who may, and has not said that it is done.
    waiting: HashSet<Bytes>,
    /// From the first request on.
    ends: Option<Instant>,
}

/// All of it.
pub(crate) struct State {
    clients: HashMap<u64, Client>,
    sessions: HashMap<SessionId, Session>,
    pub(crate) opens: Opens,
    records: Arc<Records>,
    grace: Grace,
    /// Tells this run from others.
    boot: u32,
    next: u32,
    /// Where sessions' ids are from, which nobody guesses who was not told them.
    random: Arc<dyn Random>,
    swept: Instant,
}

impl State {
    /// `boot` is told to clients, and nothing of `random` but sessions' ids.
    pub(crate) fn new(found: Found, opens: Opens, boot: u32, random: Arc<dyn Random>) -> Self {
        Self {
            clients: HashMap::new(),
            sessions: HashMap::new(),
            opens,
            records: found.records,
            grace: Grace {
                waiting: found.owners,
                ends: None,
            },
            boot,
            next: 0,
            random,
            swept: Instant::now(),
        }
    }

    /// Takes from those whose lease is over what they have, and ends the grace when it is time.
    pub(crate) fn sweep(&mut self, now: Instant) {
        if !self.grace.waiting.is_empty() {
            let ends = *self.grace.ends.get_or_insert(now + GRACE);
            if now >= ends {
                let missing: Vec<Bytes> = self.grace.waiting.drain().collect();
                for owner in missing {
                    self.records.doom(&owner);
                }
                tracing::info!("NFS clients that have not come back lose what they had");
            }
        }
        if now.duration_since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        let over: Vec<u64> = self
            .clients
            .iter()
            .filter(|(id, client)| {
                let lease = match client.is_confirmed {
                    true => LEASE,
                    false => PROMISED,
                };
                now.duration_since(client.renewed) > lease && !self.is_busy(**id)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            tracing::info!(client = id, "the lease of an NFS client is over");
            self.remove_client(id);
        }
    }

    /// Takes all from a client that is in somebody else's way, if its lease is over as it knows
    /// that; whether it was.
    pub(crate) fn end_if_silent(&mut self, id: u64, now: Instant) -> bool {
        let client = self.clients.get(&id);
        let is_silent = client.is_some_and(|client| now.duration_since(client.renewed) > PROMISED);
        let is_over = is_silent && !self.is_busy(id);
        if is_over {
            tracing::info!(client = id, "a silent NFS client is in another one's way");
            self.remove_client(id);
        }
        is_over
    }

    /// Has silent clients make way that keep an owner from opening a file.
    pub(crate) fn make_way(
        &mut self,
        (client, owner): (u64, &Bytes),
        handle: &Handle,
        (access, deny): (u32, u32),
        now: Instant,
    ) {
        for other in self.opens.in_the_way(client, owner, handle, access, deny) {
            if other != client {
                self.end_if_silent(other, now);
            }
        }
    }

    /// Whether requests of a client are under way.
    fn is_busy(&self, client: u64) -> bool {
        let of_client = self.clients.get(&client).into_iter();
        let mut sessions = of_client.flat_map(|client| &client.sessions);
        sessions.any(|session| {
            self.sessions
                .get(session)
                .is_some_and(|session| session.slots.iter().any(|slot| slot.is_under_way))
        })
    }

    /// Takes all from a client.
    fn remove_client(&mut self, id: u64) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        for session in &client.sessions {
            self.sessions.remove(session);
        }
        let has_another = self
            .clients
            .values()
            .any(|other| other.is_confirmed && other.owner == client.owner);
        let may_reclaim = self.grace.waiting.contains(&client.owner);
        if client.is_confirmed && !has_another && !may_reclaim {
            self.records.doom(&client.owner);
        }
        self.opens.remove_client(id);
    }

    /// Whether what clients had before a restart is still kept for them.
    pub(crate) fn is_grace(&mut self, now: Instant) -> bool {
        self.sweep(now);
        !self.grace.waiting.is_empty()
    }

    /// Whether a client may open and lock anew, or (`reclaims`) what it had.
    pub(crate) fn may_claim(
        &mut self,
        client: u64,
        reclaims: bool,
        now: Instant,
    ) -> Result<(), Status> {
        let is_grace = self.is_grace(now);
        let client = self.clients.get(&client).ok_or(Status::STALE_CLIENTID)?;
        match reclaims {
            true if client.is_complete => Err(Status::NO_GRACE),
            true if !self.grace.waiting.contains(&client.owner) => Err(Status::NO_GRACE),
            false if is_grace || !client.is_complete => Err(Status::GRACE),
            _ => Ok(()),
        }
    }

    /// RECLAIM_COMPLETE begins: the client's name is to be stored in these records, before
    /// [`Self::reclaim_completed`].
    pub(crate) fn reclaim_complete(
        &mut self,
        id: u64,
        now: Instant,
    ) -> Result<(Arc<Records>, Bytes), Status> {
        self.sweep(now);
        let client = self.clients.get(&id).ok_or(Status::STALE_CLIENTID)?;
        if client.is_complete {
            return Err(Status::COMPLETE_ALREADY);
        }
        // Else an end of the grace meanwhile would doom the record that is stored now. Until it is,
        // the one of the earlier run stands for it.
        self.grace.waiting.remove(&client.owner);
        Ok((Arc::clone(&self.records), client.owner.clone()))
    }

    /// A client has reclaimed all that it wants, and its record is stored.
    pub(crate) fn reclaim_completed(&mut self, id: u64, owner: &Bytes) -> Result<(), Status> {
        let Some(client) = self.clients.get_mut(&id) else {
            // It went in between. What is stored may be the record of its successor, or of what
            // that may still reclaim.
            if self.of_owner(owner, true).is_none() && !self.grace.waiting.contains(owner) {
                self.records.doom(owner);
            }
            return Err(Status::STALE_CLIENTID);
        };
        client.is_complete = true;
        Ok(())
    }

    /// The address that a client came from first, which its locks are counted under.
    pub(crate) fn address_of(&self, client: u64) -> Result<IpAddr, Status> {
        let client = self.clients.get(&client).ok_or(Status::STALE_CLIENTID)?;
        Ok(client.principal.address)
    }

    fn of_owner(&self, owner: &[u8], is_confirmed: bool) -> Option<u64> {
        let mut clients = self.clients.iter();
        clients.find_map(|(id, client)| {
            (client.owner == owner && client.is_confirmed == is_confirmed).then_some(*id)
        })
    }

    /// EXCHANGE_ID (section 18.35.4): id, the number that CREATE_SESSION is to give, flags.
    pub(crate) fn exchange_id(
        &mut self,
        owner: &Bytes,
        verifier: [u8; 8],
        flags: u32,
        principal: Principal,
        now: Instant,
    ) -> Result<(u64, u32, u32), Status> {
        self.sweep(now);
        if flags & !FLAGS_TAKEN != 0 {
            return Err(Status::INVAL);
        }
        let updates = flags & FLAG_UPDATE != 0;
        let confirmed = self.of_owner(owner, true);
        if let Some(id) = confirmed
            && let Some(client) = self.clients.get_mut(&id)
        {
            let is_same = client.verifier == verifier;
            let (known, asks) = (client.principal, principal);
            if is_same && (known.uid, known.has_root_port) == (asks.uid, asks.has_root_port) {
                client.comes_from(principal);
            }
            let is_principal = client.is_principal(principal);
            let next = client.sequence.wrapping_add(1);
            match (updates, is_same, is_principal) {
                (true, false, _) => return Err(Status::NOT_SAME),
                (true, true, false) => return Err(Status::PERM),
                (_, true, true) => {
                    client.renewed = now;
                    return Ok((id, next, FLAG_CONFIRMED | FLAG_NO_PNFS));
                }
                (false, _, false) => {
                    // Its lease is not over, or it would not be here.
                    if self.opens.has_client(id) || !client.sessions.is_empty() {
                        return Err(Status::CLID_INUSE);
                    }
                    self.remove_client(id);
                }
                // It began anew. What it had goes when it confirms that.
                (false, false, true) => {}
            }
        } else if updates {
            return Err(Status::NOENT);
        }
        if let Some(id) = self.of_owner(owner, false) {
            self.remove_client(id);
        }
        self.make_room(&principal)?;
        self.next = self.next.wrapping_add(1);
        let id = u64::from(self.boot) << 32 | u64::from(self.next);
        let client = Client {
            // A copy, so that the request is not held by it.
            owner: Bytes::copy_from_slice(owner),
            verifier,
            principal,
            addresses: Vec::new(),
            is_confirmed: false,
            sequence: 0,
            created: None,
            sessions: Vec::new(),
            renewed: now,
            is_complete: false,
        };
        self.clients.insert(id, client);
        Ok((id, 1, FLAG_NO_PNFS))
    }

    /// Makes room for one more client. Clients that never confirmed go, the oldest first: where the
    /// host has too many its own, where its network has the network's, and where there are too many
    /// in all those of the network that has most.
    fn make_room(&mut self, principal: &Principal) -> Result<(), Status> {
        loop {
            let mut of_networks: HashMap<(IpAddr, bool), (usize, usize)> = HashMap::new();
            let mut beside = 0;
            for client in self.clients.values() {
                let (all, unconfirmed) = of_networks.entry(client.principal.network()).or_default();
                *all += 1;
                *unconfirmed += usize::from(!client.is_confirmed);
                beside += usize::from(client.principal.is_beside(principal));
            }
            let network = principal.network();
            let of_network = of_networks.get(&network).map_or(0, |(all, _)| *all);
            let oldest = if beside >= OF_ADDRESS_MAX {
                self.oldest_unconfirmed(|client| client.principal.is_beside(principal))
            } else if of_network >= OF_NETWORK_MAX {
                self.oldest_unconfirmed(|client| client.principal.network() == network)
            } else if self.clients.len() >= CLIENTS_MAX {
                let most = of_networks.iter().max_by_key(|(_, (_, count))| *count);
                let most = most.map(|(network, _)| *network);
                self.oldest_unconfirmed(|client| Some(client.principal.network()) == most)
            } else {
                return Ok(());
            };
            self.remove_client(oldest.ok_or(Status::DELAY)?);
        }
    }

    fn oldest_unconfirmed(&self, is_meant: impl Fn(&Client) -> bool) -> Option<u64> {
        let clients = self.clients.iter();
        let unconfirmed = clients.filter(|(_, client)| !client.is_confirmed && is_meant(client));
        let oldest = unconfirmed.min_by_key(|(id, client)| (client.renewed, **id));
        oldest.map(|(id, _)| *id)
    }

    /// CREATE_SESSION (section 18.36.4).
    pub(crate) fn create_session(
        &mut self,
        id: u64,
        sequence: u32,
        channels: (Channel, Channel),
        principal: Principal,
        now: Instant,
    ) -> Result<Created, Status> {
        self.sweep(now);
        let client = self.clients.get_mut(&id).ok_or(Status::STALE_CLIENTID)?;
        // Once it is confirmed, others of the same host may have sessions of it too (section
        // 18.36.4), or be told them: on ports that all of them may use each can say to be any user.
        let as_known = Principal {
            uid: client.principal.uid,
            ..principal
        };
        let may_ask =
            client.is_principal(principal) || client.is_confirmed && client.is_principal(as_known);
        if !may_ask {
            return Err(Status::CLID_INUSE);
        }
        let channels = granted(channels)?;
        if sequence == client.sequence
            && let Some(created) = client.created
        {
            return created;
        }
        if sequence != client.sequence.wrapping_add(1) {
            return Err(Status::SEQ_MISORDERED);
        }
        let created = self.new_session(id, sequence, channels, now);
        // Who is to come later does so with the same number.
        if created != Err(Status::DELAY)
            && let Some(client) = self.clients.get_mut(&id)
        {
            client.sequence = sequence;
            client.created = Some(created);
        }
        created
    }

    fn new_session(
        &mut self,
        id: u64,
        sequence: u32,
        (fore, back): (Channel, Channel),
        now: Instant,
    ) -> Result<Created, Status> {
        let slots = match self.sessions.len() {
            SESSIONS_MANY.. => FEW_SLOTS_MAX,
            _ => SLOTS_MAX,
        };
        let granted = Channel {
            requests: fore.requests.min(slots),
            ..fore
        };
        let client = self.clients.get(&id).ok_or(Status::STALE_CLIENTID)?;
        let before = match client.is_confirmed {
            true => None,
            false => self.of_owner(&client.owner, true),
        };
        // Those of `before` make room.
        let others = || self.clients.iter().filter(|(id, _)| Some(**id) != before);
        let sessions_of = |is_meant: &dyn Fn(&Principal) -> bool| -> usize {
            let meant = others().filter(|(_, other)| is_meant(&other.principal));
            meant.map(|(_, other)| other.sessions.len()).sum()
        };
        let principal = &client.principal;
        let of_address = sessions_of(&|other| other.is_beside(principal));
        let of_network = sessions_of(&|other| other.network() == principal.network());
        if client.sessions.len() >= SESSIONS_MAX
            || of_address >= OF_ADDRESS_SESSIONS_MAX
            || of_network >= OF_NETWORK_SESSIONS_MAX
            || self.sessions.len() >= ALL_SESSIONS_MAX
        {
            return Err(Status::DELAY);
        }
        if let Some(before) = before {
            // The client's machine began anew: what it had is nobody's.
            self.remove_client(before);
        }
        let mut session = [0; 16];
        self.random.fill(&mut session);
        let client = self.clients.get_mut(&id).ok_or(Status::STALE_CLIENTID)?;
        client.is_confirmed = true;
        client.renewed = now;
        client.sessions.push(session);
        let slots = vec![Slot::default(); granted.requests as usize];
        self.sessions.insert(
            session,
            Session {
                client: id,
                fore: granted,
                slots,
            },
        );
        Ok(Created {
            session,
            sequence,
            fore: granted,
            // Nobody is called back.
            back,
        })
    }

    /// Whether a session's answers may be so long, in bytes, if they are kept.
    pub(crate) fn check_answer(
        &self,
        id: &SessionId,
        bytes: u32,
        is_kept: bool,
    ) -> Result<(), Status> {
        match self.sessions.get(id) {
            Some(session) if bytes > session.fore.answer_bytes => Err(Status::REP_TOO_BIG),
            Some(session) if is_kept && bytes > session.fore.kept_bytes => {
                Err(Status::REP_TOO_BIG_TO_CACHE)
            }
            _ => Ok(()),
        }
    }

    /// DESTROY_SESSION.
    pub(crate) fn destroy_session(&mut self, session: &SessionId) -> Result<(), Status> {
        let found = self.sessions.get(session).ok_or(Status::BADSESSION)?;
        let client = found.client;
        self.sessions.remove(session);
        if let Some(client) = self.clients.get_mut(&client) {
            client.sessions.retain(|other| other != session);
        }
        Ok(())
    }

    /// DESTROY_CLIENTID.
    pub(crate) fn destroy_client(&mut self, id: u64, principal: Principal) -> Result<(), Status> {
        let client = self.clients.get(&id).ok_or(Status::STALE_CLIENTID)?;
        if !client.is_principal(principal) {
            return Err(Status::WRONG_CRED);
        }
        if !client.sessions.is_empty() || self.opens.has_client(id) {
            return Err(Status::CLIENTID_BUSY);
        }
        self.remove_client(id);
        Ok(())
    }

    pub(crate) fn has_session(&self, session: &SessionId) -> bool {
        self.sessions.contains_key(session)
    }

    /// SEQUENCE (section 18.46.3), which renews the lease.
    pub(crate) fn meet(
        &mut self,
        id: &SessionId,
        sequence: u32,
        slot: u32,
        (operations, bytes): (usize, usize),
        now: Instant,
    ) -> Result<Met, Status> {
        self.sweep(now);
        let session = self.sessions.get_mut(id).ok_or(Status::BADSESSION)?;
        let client = self.clients.get_mut(&session.client);
        client.ok_or(Status::BADSESSION)?.renewed = now;
        let highest = session.fore.requests - 1;
        let place = session.slots.get_mut(slot as usize);
        let place = place.ok_or(Status::BADSLOT)?;
        if sequence == place.sequence {
            return match (place.is_under_way, &place.answer) {
                (true, _) => Err(Status::DELAY),
                (false, Some(answer)) => Ok(Met::Answered(answer.clone())),
                // Of a slot that nobody used yet, too.
                (false, None) if sequence == 0 => Err(Status::SEQ_MISORDERED),
                (false, None) => Err(Status::RETRY_UNCACHED_REP),
            };
        }
        if sequence != place.sequence.wrapping_add(1) || place.is_under_way {
            return Err(Status::SEQ_MISORDERED);
        }
        if operations > session.fore.operations as usize {
            return Err(Status::TOO_MANY_OPS);
        }
        if bytes > session.fore.request_bytes as usize {
            return Err(Status::REQ_TOO_BIG);
        }
        *place = Slot {
            sequence,
            is_under_way: true,
            answer: None,
        };
        Ok(Met::New(Entry {
            session: *id,
            client: session.client,
            slot,
            sequence,
            highest,
            answer_bytes: session.fore.answer_bytes,
            kept_bytes: session.fore.kept_bytes,
        }))
    }

    /// A request is done; its answer is kept, if there is one to keep.
    pub(crate) fn done(&mut self, entry: &Entry, answer: Option<Bytes>, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&entry.session)
            && let Some(slot) = session.slots.get_mut(entry.slot as usize)
            && slot.sequence == entry.sequence
        {
            slot.is_under_way = false;
            slot.answer = answer;
        }
        if let Some(client) = self.clients.get_mut(&entry.client) {
            client.renewed = now;
        }
    }
}

/// What a session may have of the channels that a client asks for. One that could not answer or be
/// called back is refused (section 18.36.3; `check_forechannel_attrs`, `check_backchannel_attrs`,
/// fs/nfsd/nfs4state.c of Linux), but for one that is for nothing.
fn granted((fore, back): (Channel, Channel)) -> Result<(Channel, Channel), Status> {
    let granted = Channel {
        padding_bytes: 0,
        request_bytes: fore.request_bytes.min(REQUEST_BYTES_MAX),
        answer_bytes: fore.answer_bytes.min(ANSWER_BYTES_MAX),
        kept_bytes: fore.kept_bytes.min(KEPT_BYTES_MAX),
        operations: fore.operations.min(OPERATIONS_MAX as u32),
        requests: fore.requests,
    };
    if granted.request_bytes < CHANNEL_BYTES_MIN || granted.answer_bytes < CHANNEL_BYTES_MIN {
        return Err(Status::TOOSMALL);
    }
    if granted.operations == 0 || granted.requests == 0 {
        return Err(Status::INVAL);
    }
    let is_any = (back.request_bytes, back.answer_bytes, back.operations) != (0, 0, 0);
    let is_small = back.request_bytes < BACK_BYTES_MIN
        || back.answer_bytes < BACK_BYTES_MIN
        || back.operations < BACK_OPERATIONS_MIN;
    match is_any && is_small {
        true => Err(Status::TOOSMALL),
        false => Ok((granted, back)),
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
