use std::sync::Arc;

use super::*;
use crate::handle::{Handle, Place};
use crate::nlm::table::{Range, Table};
use crate::v4::opens::{READ, WRITE, Wanted};

const CHANNEL: Channel = Channel {
    padding_bytes: 0,
    request_bytes: 1 << 20,
    answer_bytes: 1 << 20,
    kept_bytes: 1 << 20,
    operations: 100,
    requests: 1000,
};

fn principal(last: u8) -> Principal {
    Principal {
        address: IpAddr::from([10, 0, 0, last]),
        uid: Some(0),
        has_root_port: true,
    }
}

fn file() -> Handle {
    let (ino, generation) = (5, 6);
    Handle {
        dataset: 1,
        place: Place::File { ino, generation },
    }
}

fn state(table: &Arc<Table>, directory: Option<&std::path::Path>) -> State {
    let found = Records::load(directory.map(Into::into), 1 << 40);
    let opens = Opens::new(Arc::clone(table), 1 << 8);
    State::new(found, opens, 1 << 8, Arc::new(device::SystemRandom))
}

fn session(state: &mut State, owner: &'static [u8], now: Instant) -> (u64, SessionId) {
    let owner = Bytes::from_static(owner);
    let (id, sequence, _) = state
        .exchange_id(&owner, [1; 8], 0, principal(1), now)
        .unwrap();
    let channels = (CHANNEL, CHANNEL);
    let created = state.create_session(id, sequence, channels, principal(1), now);
    let created = created.unwrap();
    assert_eq!(created.fore.requests, SLOTS_MAX);
    assert_eq!(created.fore.kept_bytes, KEPT_BYTES_MAX);
    (id, created.session)
}

fn complete(state: &mut State, id: u64, now: Instant) {
    let (records, owner) = state.reclaim_complete(id, now).unwrap();
    records.add(&owner).unwrap();
    state.reclaim_completed(id, &owner).unwrap();
}

/// Goal: who is silent loses what it has, and its record before anybody hears that he has that now;
/// the record is not removed under the lock that all clients wait for.
#[tokio::test]
async fn who_is_silent_loses_what_it_has_and_its_record_first() {
    let directory = tempfile::tempdir().unwrap();
    let table = Arc::default();
    let mut state = state(&table, Some(directory.path()));
    let start = Instant::now();
    let (one, _) = session(&mut state, b"one", start);
    let (two, session_of_two) = session(&mut state, b"two", start);
    complete(&mut state, one, start);
    complete(&mut state, two, start);
    let again = state.reclaim_complete(two, start).map(drop);
    assert_eq!(again, Err(Status::COMPLETE_ALREADY));
    let owner = Bytes::from_static(b"o");
    let open = state.opens.open(one, &owner, file(), READ | WRITE, WRITE);
    let wanted = Wanted {
        range: Range::ALL,
        is_exclusive: true,
    };
    let address = state.address_of(one).unwrap();
    let locker = Opens::lock_owner(one, address, b"l");
    let locked = state
        .opens
        .lock_new(one, &open.unwrap(), &file(), locker, wanted);
    locked.unwrap();
    let mut later = start;
    while later < start + LEASE - SWEEP {
        later += LEASE / 3;
        state
            .meet(&session_of_two, 0, 99, (1, 1), later)
            .unwrap_err();
    }
    assert_eq!(
        state.opens.open(two, &owner, file(), WRITE, 0),
        Err(Status::SHARE_DENIED)
    );
    later += LEASE / 3;
    let met = state.meet(&session_of_two, 1, 0, (1, 1), later);
    assert!(matches!(met, Ok(Met::New(_))));
    let open = state.opens.open(two, &owner, file(), WRITE, 0).unwrap();
    let locker = Opens::lock_owner(two, address, b"l");
    let locked = state.opens.lock_new(two, &open, &file(), locker, wanted);
    locked.unwrap();
    let found = || Records::load(Some(directory.path().into()), 0).owners;
    assert_eq!(found().len(), 2);
    state.records.settled().await;
    assert_eq!(found(), HashSet::from([Bytes::from_static(b"two")]));
    // Requests that are under way keep their client, however long they take.
    state.sweep(later + 9 * LEASE);
    assert!(state.opens.has_client(two));
    let Ok(Met::New(entry)) = met else {
        panic!("{met:?}");
    };
    state.done(&entry, None, later);
    state.sweep(later + 10 * LEASE);
    assert!(!state.opens.has_client(two) && state.sessions.is_empty());
}

/// A client's record is stored while the grace ends.
#[tokio::test]
async fn an_end_of_the_grace_meanwhile_leaves_a_client_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let table = Arc::default();
    let start = Instant::now();
    let mut before = state(&table, Some(directory.path()));
    let (id, _) = session(&mut before, b"one", start);
    complete(&mut before, id, start);
    let mut state = state(&table, Some(directory.path()));
    assert!(state.is_grace(start));
    let (one, _) = session(&mut state, b"one", start + GRACE - SWEEP);
    let (records, owner) = state.reclaim_complete(one, start + GRACE - SWEEP).unwrap();
    records.add(&owner).unwrap();
    assert!(!state.is_grace(start + GRACE));
    state.reclaim_completed(one, &owner).unwrap();
    state.records.settled().await;
    let found = Records::load(Some(directory.path().into()), 0);
    assert_eq!(found.owners, HashSet::from([owner]));
}

#[tokio::test]
async fn the_grace_ends_in_time_whoever_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let table = Arc::default();
    let start = Instant::now();
    let mut before = state(&table, Some(directory.path()));
    assert!(!before.is_grace(start));
    for owner in [&b"one"[..], b"two"] {
        let (id, _) = session(&mut before, owner, start);
        complete(&mut before, id, start);
    }
    let mut state = state(&table, Some(directory.path()));
    assert!(state.is_grace(start));
    let (one, _) = session(&mut state, b"one", start);
    assert_eq!(state.may_claim(one, false, start), Err(Status::GRACE));
    assert_eq!(state.may_claim(one, true, start), Ok(()));
    complete(&mut state, one, start);
    assert_eq!(state.may_claim(one, true, start), Err(Status::NO_GRACE));
    assert_eq!(state.may_claim(one, false, start), Err(Status::GRACE));
    let (two, _) = session(&mut state, b"two", start + GRACE - SWEEP);
    assert_eq!(state.may_claim(two, true, start + GRACE - SWEEP), Ok(()));
    assert!(!state.is_grace(start + GRACE));
    let may = state.may_claim(two, true, start + GRACE);
    assert_eq!(may, Err(Status::NO_GRACE));
    state.records.settled().await;
    let found = Records::load(Some(directory.path().into()), 0);
    assert_eq!(found.owners, HashSet::from([Bytes::from_static(b"one")]));
}

#[test]
fn clients_sessions_and_states_are_bounded() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let now = Instant::now();
    let mut exchange = |owner: String, last: u8, now| {
        let owner = Bytes::from(owner);
        state.exchange_id(&owner, [1; 8], 0, principal(last), now)
    };
    for n in 0..OF_ADDRESS_MAX {
        exchange(format!("{n}"), 1, now).unwrap();
    }
    exchange("other".into(), 2, now).unwrap();
    // Who confirms nothing makes room for others.
    let (id, _, _) = exchange("more".into(), 1, now).unwrap();
    let channels = (CHANNEL, CHANNEL);
    for sequence in 1..=SESSIONS_MAX as u32 {
        let created = state.create_session(id, sequence, channels, principal(1), now);
        created.unwrap();
    }
    let sequence = SESSIONS_MAX as u32 + 1;
    let refused = state.create_session(id, sequence, channels, principal(1), now);
    assert_eq!(refused, Err(Status::DELAY));
    let tiny = Channel {
        answer_bytes: 99,
        ..CHANNEL
    };
    // Who asks for what cannot be, or is to come later, comes again with the same number.
    let create = |state: &mut State, sequence, channel| {
        let channels = (channel, channel);
        state.create_session(id, sequence, channels, principal(1), now)
    };
    let refused = create(&mut state, sequence, tiny);
    assert_eq!(refused, Err(Status::TOOSMALL));
    let refused = create(&mut state, sequence, CHANNEL);
    assert_eq!(refused, Err(Status::DELAY));
    let last = *state.clients[&id].sessions.last().unwrap();
    state.destroy_session(&last).unwrap();
    create(&mut state, sequence, CHANNEL).unwrap();
    let owner = Bytes::from_static(b"o");
    let mut count = 0;
    loop {
        let (ino, generation) = (count, 0);
        let handle = Handle {
            dataset: 1,
            place: Place::File { ino, generation },
        };
        match state.opens.open(id, &owner, handle, READ, 0) {
            Ok(_) => count += 1,
            Err(status) => {
                assert_eq!((status, count), (Status::SERVERFAULT, 16 << 10));
                break;
            }
        }
    }
    let busy = state.destroy_client(id, principal(1));
    assert_eq!(busy, Err(Status::CLIENTID_BUSY));
    // Another user of its host is not taken for it.
    let user = Principal {
        has_root_port: false,
        ..principal(1)
    };
    let owner = Bytes::from_static(b"more");
    let refused = state.exchange_id(&owner, [2; 8], 0, user, now);
    assert_eq!(refused, Err(Status::CLID_INUSE));
}

#[test]
fn nobody_else_is_told_a_session_or_ends_a_client() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let now = Instant::now();
    let (id, session) = session(&mut state, b"one", now);
    let mut create = |who| state.create_session(id, 1, (CHANNEL, CHANNEL), who, now);
    assert_eq!(create(principal(1)).map(|told| told.session), Ok(session));
    assert_eq!(create(principal(2)), Err(Status::CLID_INUSE));
    state.destroy_session(&session).unwrap();
    let other = state.destroy_client(id, principal(2));
    assert_eq!(other, Err(Status::WRONG_CRED));
    assert_eq!(state.destroy_client(id, principal(1)), Ok(()));
}

/// A client that was confirmed may have sessions for other users of its host.
#[test]
fn other_users_of_a_confirmed_clients_host_may_have_sessions() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let now = Instant::now();
    let user = Principal {
        uid: Some(1000),
        ..principal(1)
    };
    let channels = (CHANNEL, CHANNEL);
    let (owner, other) = (Bytes::from_static(b"one"), Bytes::from_static(b"two"));
    let (id, sequence, _) = state
        .exchange_id(&other, [1; 8], 0, principal(1), now)
        .unwrap();
    let refused = state.create_session(id, sequence, channels, user, now);
    assert_eq!(refused, Err(Status::CLID_INUSE));
    let (id, session) = session(&mut state, b"one", now);
    let again = state.create_session(id, 1, channels, user, now);
    assert_eq!(again.map(|told| told.session), Ok(session));
    let created = state.create_session(id, 2, channels, user, now).unwrap();
    assert_ne!(created.session, session);
    let updated = state.exchange_id(&owner, [1; 8], 0, user, now);
    assert_eq!(updated, Err(Status::CLID_INUSE));
}

/// Goal: a silent client is in nobody's way once its lease is over as it was told, but keeps what
/// nobody wants; one that never confirmed is gone by then.
#[test]
fn who_is_silent_makes_way_for_others() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let start = Instant::now();
    let (one, _) = session(&mut state, b"one", start);
    let (three, _) = session(&mut state, b"three", start);
    let late = start + PROMISED;
    let (two, _) = session(&mut state, b"two", late);
    let owner = Bytes::from_static(b"o");
    let unconfirmed = Bytes::from_static(b"nobody");
    let (nobody, sequence, _) = state
        .exchange_id(&unconfirmed, [1; 8], 0, principal(1), start)
        .unwrap();
    let elsewhere = Handle {
        dataset: 2,
        ..file()
    };
    state.opens.open(one, &owner, file(), READ, WRITE).unwrap();
    state
        .opens
        .open(three, &owner, elsewhere, READ, WRITE)
        .unwrap();
    let asks = |state: &mut State, now| {
        state.make_way((two, &owner), &file(), (WRITE, 0), now);
        state.opens.open(two, &owner, file(), WRITE, 0)
    };
    assert_eq!(asks(&mut state, late), Err(Status::SHARE_DENIED));
    let late = late + SWEEP;
    asks(&mut state, late).unwrap();
    assert!(!state.opens.has_client(one) && state.opens.has_client(three));
    let channels = (CHANNEL, CHANNEL);
    let gone = state.create_session(nobody, sequence, channels, principal(1), late);
    assert_eq!(gone, Err(Status::STALE_CLIENTID));
}

/// A host with several addresses, or with another one than before, is known by its verifier.
#[test]
fn a_client_may_come_from_several_addresses() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let now = Instant::now();
    let (id, _) = session(&mut state, b"one", now);
    let owner = Bytes::from_static(b"one");
    let told = state.exchange_id(&owner, [1; 8], 0, principal(2), now);
    assert_eq!(told.map(|told| told.0), Ok(id));
    let created = state.create_session(id, 2, (CHANNEL, CHANNEL), principal(2), now);
    assert!(created.is_ok(), "{created:?}");
    // Who does not know it is somebody else.
    let refused = state.exchange_id(&owner, [2; 8], 0, principal(3), now);
    assert_eq!(refused, Err(Status::CLID_INUSE));
    let created = state.create_session(id, 3, (CHANNEL, CHANNEL), principal(3), now);
    assert_eq!(created, Err(Status::CLID_INUSE));
    // Another user of the host is, too.
    let user = Principal {
        uid: Some(1000),
        ..principal(2)
    };
    let refused = state.exchange_id(&owner, [1; 8], 0, user, now);
    assert_eq!(refused, Err(Status::CLID_INUSE));
}

#[test]
fn ids_of_sessions_tell_nothing_of_others() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let now = Instant::now();
    let mut ids = HashSet::new();
    for owner in [&b"one"[..], b"two", b"three"] {
        let (id, session) = session(&mut state, owner, now);
        assert_ne!(session[..8], id.to_be_bytes());
        ids.insert(session[..8].to_vec());
        ids.insert(session[8..].to_vec());
    }
    assert_eq!(ids.len(), 6);
}

#[test]
fn one_host_does_not_take_all_sessions() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let now = Instant::now();
    let channels = (CHANNEL, CHANNEL);
    let exchange = |state: &mut State, owner: usize, verifier: u8, last| {
        let owner = Bytes::from(format!("{owner}"));
        let told = state.exchange_id(&owner, [verifier; 8], 0, principal(last), now);
        told.unwrap().0
    };
    let clients = OF_ADDRESS_SESSIONS_MAX / SESSIONS_MAX;
    for owner in 0..clients {
        let id = exchange(&mut state, owner, 1, 1);
        for sequence in 1..=SESSIONS_MAX as u32 {
            let created = state.create_session(id, sequence, channels, principal(1), now);
            created.unwrap();
        }
    }
    let more = exchange(&mut state, clients, 1, 1);
    let refused = state.create_session(more, 1, channels, principal(1), now);
    assert_eq!(refused, Err(Status::DELAY));
    let other = exchange(&mut state, clients + 1, 1, 2);
    let created = state.create_session(other, 1, channels, principal(2), now);
    created.unwrap();
    // Who begins anew gives its own back, and makes room.
    let anew = exchange(&mut state, 0, 2, 1);
    for id in [anew, more] {
        let created = state.create_session(id, 1, channels, principal(1), now);
        created.unwrap();
    }
}

#[tokio::test]
async fn a_late_end_of_reclaims_leaves_the_successor_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let table = Arc::default();
    let mut state = state(&table, Some(directory.path()));
    let now = Instant::now();
    let owner = Bytes::from_static(b"one");
    let anew = |state: &mut State, verifier: u8| {
        let told = state.exchange_id(&owner, [verifier; 8], 0, principal(1), now);
        let id = told.unwrap().0;
        let created = state.create_session(id, 1, (CHANNEL, CHANNEL), principal(1), now);
        created.unwrap();
        id
    };
    let first = anew(&mut state, 1);
    let (records, name) = state.reclaim_complete(first, now).unwrap();
    let second = anew(&mut state, 2);
    complete(&mut state, second, now);
    records.add(&name).unwrap();
    let late = state.reclaim_completed(first, &name);
    assert_eq!(late, Err(Status::STALE_CLIENTID));
    state.records.settled().await;
    let found = || Records::load(Some(directory.path().into()), 0).owners;
    assert_eq!(found(), HashSet::from([owner.clone()]));
    // Where nobody has that name any more, none is left.
    state.remove_client(second);
    records.add(&name).unwrap();
    let late = state.reclaim_completed(first, &name);
    assert_eq!(late, Err(Status::STALE_CLIENTID));
    state.records.settled().await;
    assert!(found().is_empty());
}

#[test]
fn what_is_reserved_is_taken_back() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let now = Instant::now();
    let (one, _) = session(&mut state, b"one", now);
    let (two, _) = session(&mut state, b"two", now);
    let owner = Bytes::from_static(b"o");
    let opens = &mut state.opens;
    let reserved = opens.reserve(one, &owner, file(), READ, WRITE).unwrap();
    let refused = opens.open(two, &owner, file(), WRITE, 0);
    assert_eq!(refused, Err(Status::SHARE_DENIED));
    opens.take_back(one, &reserved);
    assert!(!opens.has_client(one));
    // As it was, so that what the client knows is the last one.
    let known = opens.open(one, &owner, file(), READ, 0).unwrap();
    let reserved = opens.reserve(one, &owner, file(), READ, WRITE).unwrap();
    opens.take_back(one, &reserved);
    assert_eq!(opens.test(one, &known), Status::OK);
    let theirs = opens.open(two, &owner, file(), WRITE, 0).unwrap();
    // Cutting off is writing, whatever it is opened for.
    opens.close(two, &theirs, &file()).unwrap();
    let theirs = opens.open(two, &owner, file(), READ, WRITE).unwrap();
    let refused = opens.reserve(one, &owner, file(), READ, 0).map(drop);
    assert_eq!(refused, Err(Status::SHARE_DENIED));
    // Opened once more meanwhile, it stays.
    opens.close(two, &theirs, &file()).unwrap();
    let reserved = opens.reserve(one, &owner, file(), READ, WRITE).unwrap();
    let again = opens.open(one, &owner, file(), READ, 0).unwrap();
    opens.take_back(one, &reserved);
    assert_eq!(opens.test(one, &again), Status::OK);
    assert!(opens.is_denied(&file(), WRITE));
}

#[test]
fn many_sessions_have_few_slots() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let now = Instant::now();
    for n in 0..=SESSIONS_MANY {
        let owner = Bytes::from(format!("{n}"));
        let who = principal((n / OF_ADDRESS_SESSIONS_MAX) as u8);
        let told = state.exchange_id(&owner, [1; 8], 0, who, now);
        let id = told.unwrap().0;
        let created = state.create_session(id, 1, (CHANNEL, CHANNEL), who, now);
        let expected = if n < SESSIONS_MANY {
            SLOTS_MAX
        } else {
            FEW_SLOTS_MAX
        };
        assert_eq!(created.unwrap().fore.requests, expected);
    }
}

/// Goal: no user of a host keeps its root from mounting, nor one host all others.
#[test]
fn room_is_made_by_who_never_confirmed_and_kept_for_others() {
    let table = Arc::default();
    let mut state = state(&table, None);
    let now = Instant::now();
    let channels = (CHANNEL, CHANNEL);
    let mut next = 0;
    let mut begin = |state: &mut State, who: Principal, confirms: bool| {
        next += 1;
        let owner = Bytes::from(format!("owner {next}"));
        let (id, sequence, _) = state.exchange_id(&owner, [1; 8], 0, who, now)?;
        if confirms {
            state.create_session(id, sequence, channels, who, now)?;
        }
        Ok::<u64, Status>(id)
    };
    let root = principal(1);
    let user = Principal {
        has_root_port: false,
        ..root
    };
    for _ in 0..OF_ADDRESS_MAX {
        begin(&mut state, user, true).unwrap();
    }
    assert_eq!(begin(&mut state, user, true), Err(Status::DELAY));
    let first = begin(&mut state, root, true).unwrap();
    // However many it begins, it has no more than its part, and what is confirmed stays.
    for _ in 0..3 * OF_ADDRESS_MAX {
        begin(&mut state, root, false).unwrap();
    }
    begin(&mut state, root, true).unwrap();
    assert!(state.clients.contains_key(&first));
    assert_eq!(state.clients.len(), 2 * OF_ADDRESS_MAX);
    // A network of IPv6 has a part as well.
    let of_network = |network: u16, host: u16| Principal {
        address: IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]),
        ..root
    };
    for host in 0..OF_NETWORK_MAX as u16 {
        begin(&mut state, of_network(1, host), true).unwrap();
    }
    let refused = begin(&mut state, of_network(1, u16::MAX), true);
    assert_eq!(refused, Err(Status::DELAY));
    // In all: those go that never confirmed, of the network that has most of them.
    let one = begin(&mut state, of_network(3, 0), false).unwrap();
    for host in 0..OF_NETWORK_MAX as u16 {
        begin(&mut state, of_network(2, host), false).unwrap();
    }
    let mut last = 2;
    while state.clients.len() < CLIENTS_MAX {
        for _ in 0..OF_ADDRESS_MAX / 2 {
            begin(&mut state, principal(last), true).unwrap();
        }
        last += 1;
    }
    begin(&mut state, principal(200), true).unwrap();
    assert!(state.clients.len() <= CLIENTS_MAX && state.clients.contains_key(&one));
}
