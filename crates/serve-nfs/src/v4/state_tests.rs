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
    State::new(found, Opens::new(Arc::clone(table), 1 << 8), 1 << 40)
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

#[test]
fn who_is_silent_loses_what_it_has_and_its_record_first() {
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
    let found = Records::load(Some(directory.path().into()), 0);
    assert_eq!(found.owners, HashSet::from([Bytes::from_static(b"two")]));
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

#[test]
fn the_grace_ends_in_time_whoever_is_missing() {
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
    assert_eq!(exchange("more".into(), 1, now), Err(Status::DELAY));
    exchange("other".into(), 2, now).unwrap();
    // Who confirms nothing makes room for others before long.
    let (id, _, _) = exchange("more".into(), 1, now + UNCONFIRMED).unwrap();
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
    let refused = state.create_session(id, sequence + 1, (tiny, tiny), principal(1), now);
    assert_eq!(refused, Err(Status::TOOSMALL));
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
    state.destroy_client(id).unwrap_err();
    // Another user of its host is not taken for it.
    let user = Principal {
        has_root_port: false,
        ..principal(1)
    };
    let owner = Bytes::from_static(b"more");
    let refused = state.exchange_id(&owner, [2; 8], 0, user, now);
    assert_eq!(refused, Err(Status::CLID_INUSE));
}
