//! Goal: version 4.1 and 4.2 do what RFC 8881 and RFC 7862 have them do: sessions carry requests
//! out once, files are opened and locked between clients of both versions, a restart leaves clients
//! what they had, and whoever sends nonsense gets nothing.

mod bounds;
mod xattrs;

use oracles::nfs::v4::*;
use oracles::nfs::{Client, NLM, ROOT, Words, user};

use super::{OPEN as OPEN_TO_ALL, Rig, pattern};

const ROFS: u32 = 30;
const ACCES: u32 = 13;
const NOENT: u32 = 2;
const EXIST: u32 = 17;
const STALE: u32 = 70;
const DELAY: u32 = 10008;
const DENIED: u32 = 10010;
const LOCKED: u32 = 10012;
const GRACE: u32 = 10013;
const SHARE_DENIED: u32 = 10015;
const WRONGSEC: u32 = 10016;
const CLID_INUSE: u32 = 10017;
const MINOR_VERS_MISMATCH: u32 = 10021;
const OLD_STATEID: u32 = 10024;
const BAD_STATEID: u32 = 10025;
const NO_GRACE: u32 = 10033;
const OPENMODE: u32 = 10038;
const FILE_OPEN: u32 = 10046;
const BADSESSION: u32 = 10052;
const SEQ_MISORDERED: u32 = 10063;
const RETRY_UNCACHED_REP: u32 = 10068;
const TOO_MANY_OPS: u32 = 10070;
const OP_NOT_IN_SESSION: u32 = 10071;
const WRONG_CRED: u32 = 10082;
const WRONG_TYPE: u32 = 10083;

async fn begin(rig: &Rig, owner: &[u8]) -> Session {
    Session::begin(rig.server.local_address(), owner, &ROOT).await
}

fn write_of(state: &State, offset: u64, stable: u32, data: &[u8]) -> Words {
    let words = Words::new().raw(state).u64(offset).u32(stable);
    words.opaque(data)
}

fn read_of(state: &State, offset: u64, count: u32) -> Words {
    Words::new().raw(state).u64(offset).u32(count)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_opened_written_read_and_removed() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    let root = session.walk(&["tank"]).await.expect("the share");
    assert_eq!(session.walk(&["none"]).await, Err(NOENT));
    // Made, written and read in one go, by what the operation before gave.
    let arguments = open(b"o", 3, 0, making(0o640), by_name(b"file"));
    let data = pattern(100_000, 3);
    let ops = Ops::new().put(&root).add(OPEN, arguments).plain(GETFH);
    let ops = ops.add(WRITE, write_of(&CURRENT, 5, 0, &data));
    let ops = ops.add(COMMIT, Words::new().u64(0).u32(0)).attributes();
    let mut reply = session.ok(ops).await;
    reply.well(&[PUTFH]);
    let state = reply.opened();
    reply.well(&[GETFH]);
    let file = reply.take_opaque();
    reply.well(&[WRITE]);
    assert_eq!((reply.take32(), reply.take32()), (100_000, 0));
    let verifier = reply.take64();
    reply.well(&[COMMIT]);
    assert_eq!(reply.take64(), verifier);
    assert_eq!(reply.told(), (1, 100_005, 0o640, 1));
    let ops = Ops::new().put(&file).add(READ, read_of(&state, 0, 1 << 20));
    session.sequence += 1;
    let (status, mut reply) = session.again(&ops, false).await;
    assert_eq!(status, 0);
    reply.well(&[SEQUENCE]);
    let _head: [u8; 36] = reply.take_raw();
    reply.well(&[PUTFH, READ]);
    assert_eq!(reply.take32(), 1);
    let found = reply.take_opaque();
    assert!(found[..5] == [0; 5] && found[5..] == data);
    // Closed, its state is nothing.
    let close = Ops::new()
        .put(&file)
        .add(CLOSE, Words::new().u32(0).raw(&state));
    session.ok(close.clone()).await;
    assert_eq!(session.run(close).await.0, BAD_STATEID);
    let read = Ops::new().put(&file).add(READ, read_of(&state, 0, 5));
    assert_eq!(session.run(read).await.0, BAD_STATEID);
    let read = Ops::new().put(&file).add(READ, read_of(&ANONYMOUS, 0, 5));
    session.ok(read).await;

    // Names.
    let attributes = Words::new()
        .u32(2)
        .u32(0)
        .u32(2)
        .opaque(&Words::new().u32(0o755).bytes);
    let kind = Words::new().u32(2).opaque(b"dir").raw(&attributes.bytes);
    let mut reply = session
        .ok(Ops::new().put(&root).add(CREATE, kind).plain(GETFH))
        .await;
    reply.well(&[PUTFH, CREATE]);
    let (is_atomic, before, after) = reply.changed();
    assert!(is_atomic && before != after);
    assert_eq!(reply.bits(), [0, 2]);
    reply.well(&[GETFH]);
    let directory = reply.take_opaque();
    let link = Words::new()
        .u32(5)
        .opaque(b"target")
        .opaque(b"link")
        .u32(0)
        .u32(0);
    let ops = Ops::new().put(&directory).add(CREATE, link).plain(READLINK);
    let mut reply = session.ok(ops).await;
    reply.well(&[PUTFH, CREATE]);
    let _ = (reply.changed(), reply.bits());
    reply.well(&[READLINK]);
    assert_eq!(reply.take_opaque(), b"target");
    let names = Words::new().opaque(b"file").opaque(b"moved");
    let ops = Ops::new().put(&root).plain(SAVEFH).put(&directory);
    session.ok(ops.add(RENAME, names)).await;
    let ops = Ops::new().put(&file).plain(SAVEFH).put(&root);
    session.ok(ops.name(LINK, b"again")).await;
    let mut reply = session.ok(Ops::new().put(&file).attributes()).await;
    reply.well(&[PUTFH]);
    assert_eq!(reply.told().3, 2);
    let mut reply = session
        .ok(Ops::new().put(&directory).plain(LOOKUPP).plain(GETFH))
        .await;
    reply.well(&[PUTFH, LOOKUPP, GETFH]);
    assert_eq!(reply.take_opaque(), root);
    let mut found = list(&mut session, &directory, 4096).await;
    found.sort_unstable();
    assert_eq!(found, ["link", "moved"]);
    for name in [&b"link"[..], b"moved"] {
        session
            .ok(Ops::new().put(&directory).name(REMOVE, name))
            .await;
    }
    session.ok(Ops::new().put(&root).name(REMOVE, b"dir")).await;
    let many: Vec<String> = (0..200).map(|n| format!("many{n:03}")).collect();
    for name in &many {
        let made = session
            .open(&root, name.as_bytes(), (1, 0), making(0o600))
            .await;
        made.expect("made");
    }
    let mut found = list(&mut session, &root, 1500).await;
    found.sort_unstable();
    assert!(found.len() == 202 && found[2..] == many, "{found:?}");
}

/// Names of a directory, in lists of `bytes` each.
async fn list(session: &mut Session, directory: &[u8], bytes: u32) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let words = Words::new().u64(cookie).u64(0).u32(bytes).u32(bytes);
        let ops = Ops::new()
            .put(directory)
            .add(READDIR, words.u32(1).u32(1 << 1 | 1 << 20));
        session.sequence += 1;
        let (status, mut reply) = session.again(&ops, false).await;
        assert_eq!(status, 0);
        reply.well(&[SEQUENCE]);
        let _head: [u8; 36] = reply.take_raw();
        reply.well(&[PUTFH, READDIR]);
        assert!(reply.left() <= bytes as usize);
        assert_eq!(reply.take64(), 0);
        while reply.take32() == 1 {
            cookie = reply.take64();
            names.push(String::from_utf8(reply.take_opaque()).expect("a name"));
            let _ = (reply.bits(), reply.take_opaque());
        }
        if reply.take32() == 1 {
            return names;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_twice_is_carried_out_once() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    let root = session.walk(&["tank"]).await.expect("the share");
    session
        .open(&root, b"file", (1, 0), making(0o600))
        .await
        .expect("made");
    let remove = Ops::new().put(&root).name(REMOVE, b"file");
    session.ok(remove.clone()).await;
    // On another connection, as a client does that lost the first.
    let sequence = session.sequence;
    session.client = Client::connect(rig.server.local_address()).await;
    assert_eq!(session.again(&remove, true).await.0, 0);
    assert_eq!(session.run(remove.clone()).await.0, NOENT);
    session.sequence = sequence;
    assert_eq!(session.again(&remove, true).await.0, SEQ_MISORDERED);
    session.sequence = sequence + 3;
    assert_eq!(session.again(&remove, true).await.0, SEQ_MISORDERED);
    // What the client did not want kept.
    session.sequence = sequence + 2;
    let look = Ops::new().put(&root).attributes();
    assert_eq!(session.again(&look, false).await.0, 0);
    assert_eq!(session.again(&look, false).await.0, RETRY_UNCACHED_REP);

    let many = (0..9).fold(Ops::new(), |ops, _| ops.plain(PUTROOTFH));
    assert_eq!(session.run(many).await.0, TOO_MANY_OPS);
    let who = ROOT;
    let client = &mut session.client;
    let alone = Ops::new().plain(PUTROOTFH);
    assert_eq!(compound(client, &who, 1, &alone).await.0, OP_NOT_IN_SESSION);
    assert_eq!(
        compound(client, &who, 0, &alone).await.0,
        MINOR_VERS_MISMATCH
    );
    assert_eq!(
        compound(client, &who, 3, &alone).await.0,
        MINOR_VERS_MISMATCH
    );
    // CREATE_SESSION is answered the same, too.
    let (_, mut reply) = compound(client, &who, 1, &exchange(b"two", 1)).await;
    reply.well(&[EXCHANGE_ID]);
    let (id, sequence) = (reply.take64(), reply.take32());
    let create = create_session(id, sequence);
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let (_, mut reply) = compound(client, &who, 1, &create).await;
        reply.well(&[CREATE_SESSION]);
        sessions.push(reply.take_raw::<16>());
    }
    assert_eq!(sessions[0], sessions[1]);
    // To others of its host too, as it is confirmed.
    let (status, mut reply) = compound(client, &user(5), 1, &create).await;
    assert_eq!(status, 0);
    reply.well(&[CREATE_SESSION]);
    assert_eq!(reply.take_raw::<16>(), sessions[0]);
    let destroy = Ops::new().add(DESTROY_SESSION, Words::new().raw(&sessions[0]));
    assert_eq!(compound(client, &who, 1, &destroy).await.0, 0);
    assert_eq!(compound(client, &who, 1, &destroy).await.0, BADSESSION);
    let destroy = Ops::new().add(DESTROY_CLIENTID, Words::new().u64(id));
    assert_eq!(compound(client, &user(5), 1, &destroy).await.0, WRONG_CRED);
    assert_eq!(compound(client, &who, 1, &destroy).await.0, 0);
    // A client that began anew takes the place of what it was; somebody else does not.
    let (status, _) = compound(client, &user(5), 1, &exchange(b"one", 8)).await;
    assert_eq!(status, CLID_INUSE);
    let mut anew = Session::exchanged(rig.server.local_address(), b"one", &ROOT).await;
    assert_eq!(anew.id, session.id, "it is the same client");
    let (_, mut reply) = compound(&mut anew.client, &who, 1, &exchange(b"one", 8)).await;
    reply.well(&[EXCHANGE_ID]);
    let (id, sequence) = (reply.take64(), reply.take32());
    assert_ne!(id, session.id);
    session.ok(Ops::new().plain(PUTROOTFH)).await;
    compound(&mut anew.client, &who, 1, &create_session(id, sequence)).await;
    assert_eq!(session.run(Ops::new().plain(PUTROOTFH)).await.0, BADSESSION);
}

#[tokio::test(flavor = "multi_thread")]
async fn opens_and_locks_are_kept_between_clients_of_both_versions() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let (mut one, mut two) = (begin(&rig, b"one").await, begin(&rig, b"two").await);
    let root = one.walk(&["tank"]).await.expect("the share");
    let (state, file) = one
        .open(&root, b"file", (3, 0), making(0o666))
        .await
        .expect("made");
    let nothing = || Words::new().u32(0);
    // The same owner opens it once more; what was known before is old.
    let (later, _) = one
        .open(&root, b"file", (1, 0), nothing())
        .await
        .expect("open");
    assert!(state[4..] == later[4..] && later[3] == 2);
    let write = |state: &State| {
        Ops::new()
            .put(&file)
            .add(WRITE, write_of(state, 0, 2, b"x"))
    };
    assert_eq!(one.run(write(&state)).await.0, OLD_STATEID);
    assert_eq!(one.run(write(&later)).await.0, 0);
    assert_eq!(two.run(write(&later)).await.0, BAD_STATEID);
    // Who denies finds those who have it.
    assert_eq!(
        two.open(&root, b"file", (1, 2), nothing()).await,
        Err(SHARE_DENIED)
    );
    let (reader, _) = two
        .open(&root, b"file", (1, 0), nothing())
        .await
        .expect("open");
    assert_eq!(two.run(write(&reader)).await.0, OPENMODE);
    let (sole, other) = two
        .open(&root, b"sole", (3, 2), making(0o666))
        .await
        .expect("made");
    assert_eq!(
        one.open(&root, b"sole", (2, 0), nothing()).await,
        Err(SHARE_DENIED)
    );
    let close = Ops::new().put(&other).add(CLOSE, nothing().raw(&sole));
    two.ok(close).await;
    one.open(&root, b"sole", (2, 0), nothing())
        .await
        .expect("open");

    let lock = one
        .lock(&file, &later, b"a", true, (0, 10), false)
        .await
        .expect("locked");
    let (status, mut held) = two
        .lock(&file, &reader, b"b", false, (9, 1), false)
        .await
        .unwrap_err();
    assert_eq!(
        (status, held.take64(), held.take64(), held.take32()),
        (DENIED, 0, 10, 2)
    );
    assert_eq!(
        (held.take64(), &held.take_opaque()[..]),
        (one.id, &b"a"[..])
    );
    let (status, _) = two
        .lock(&file, &reader, b"b", true, (20, 1), false)
        .await
        .unwrap_err();
    assert_eq!(status, OPENMODE);
    // Version 3 sees it, and is seen.
    let mut third = Client::connect(rig.server.local_address()).await;
    let wanted = |offset: u64, length: u64| {
        let words = Words::new()
            .opaque(b"m")
            .opaque(&file)
            .opaque(b"pid")
            .u32(77);
        words.u64(offset).u64(length).bytes
    };
    let ask = |offset, length| {
        let words = Words::new()
            .opaque(b"c")
            .u32(0)
            .u32(1)
            .raw(&wanted(offset, length));
        words.u32(0).u32(0)
    };
    let mut status = async |offset, length| {
        let mut reply = third.call(NLM, 4, 2, &ROOT, ask(offset, length)).await;
        assert_eq!(reply.take_opaque(), b"c");
        reply.take32()
    };
    assert_eq!(status(5, 1).await, 1, "denied");
    assert_eq!(status(50, 0).await, 0, "granted");
    let (refused, _) = one
        .lock(&file, &later, b"a", false, (40, 100), false)
        .await
        .unwrap_err();
    assert_eq!(refused, DENIED);
    // Version 3's end of a machine leaves version 4 what it has.
    let free = Words::new().opaque(b"").u32(0);
    third.call(NLM, 4, 23, &ROOT, free).await;
    one.lock(&file, &later, b"a", false, (40, 100), false)
        .await
        .expect("locked");
    let mut reply = third.call(NLM, 4, 2, &ROOT, ask(5, 1)).await;
    assert_eq!((reply.take_opaque(), reply.take32()), (b"c".to_vec(), 1));
    let free = |state: &State| Ops::new().add(FREE_STATEID, Words::new().raw(state));
    let mut current = lock;
    current[..4].copy_from_slice(&[0; 4]);
    assert_eq!(one.run(free(&current)).await.0, 10037, "locks are held");
    one.unlock(&file, &current, (0, u64::MAX)).await;
    let held = two
        .lock(&file, &reader, b"b", false, (0, u64::MAX), false)
        .await;
    held.expect("all of it");
    let words = Words::new().u32(2).raw(&current).raw(&[7; 16]);
    let mut reply = one.ok(Ops::new().add(TEST_STATEID, words)).await;
    reply.well(&[TEST_STATEID]);
    assert_eq!([(); 3].map(|()| reply.take32()), [2, 0, BAD_STATEID]);
    one.ok(free(&current)).await;
    // CLOSE gives back what is locked.
    let mut any = reader;
    any[..4].copy_from_slice(&[0; 4]);
    two.ok(Ops::new().put(&file).add(CLOSE, nothing().raw(&any)))
        .await;
    one.lock(&file, &later, b"c", true, (0, u64::MAX), false)
        .await
        .expect("locked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_cut_off_only_where_nobodys_share_is_in_the_way() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let (mut one, mut two) = (begin(&rig, b"one").await, begin(&rig, b"two").await);
    let root = one.walk(&["tank"]).await.expect("the share");
    let (sole, file) = one
        .open(&root, b"file", (3, 2), making(0o644))
        .await
        .expect("made");
    let write = Ops::new()
        .put(&file)
        .add(WRITE, write_of(&sole, 0, 2, b"data"));
    one.ok(write).await;
    let mut size = async || {
        let mut reply = one.ok(Ops::new().put(&file).attributes()).await;
        reply.well(&[PUTFH]);
        reply.told().1
    };
    // Whatever it is opened for.
    for access in [2, 3, 1] {
        let cut = two.open(&root, b"file", (access, 0), cutting(0)).await;
        assert_eq!(cut, Err(SHARE_DENIED));
        assert_eq!(size().await, 4);
    }
    let close = Ops::new()
        .put(&file)
        .add(CLOSE, Words::new().u32(0).raw(&sole));
    one.ok(close).await;
    // Who may not cut it off does not have it open either.
    let address = rig.server.local_address();
    let mut alice = Session::begin(address, b"alice", &user(1000)).await;
    let cut = alice.open(&root, b"file", (1, 3), cutting(0)).await;
    assert_eq!(cut, Err(ACCES));
    let (state, _) = two
        .open(&root, b"file", (2, 0), cutting(1))
        .await
        .expect("cut off");
    assert_eq!(state[..4], [0, 0, 0, 1]);
    let mut reply = one.ok(Ops::new().put(&file).attributes()).await;
    reply.well(&[PUTFH]);
    assert_eq!(reply.told().1, 1);
    let (again, _) = two
        .open(&root, b"file", (1, 0), cutting(0))
        .await
        .expect("cut off");
    assert!(again[..4] == [0, 0, 0, 2] && again[4..] == state[4..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_opened_a_file_to_write_reads_what_it_may() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut one = begin(&rig, b"one").await;
    one.minor = 2;
    let root = one.walk(&["tank"]).await.expect("the share");
    let made = one.open(&root, b"file", (3, 0), making(0o622)).await;
    let (state, file) = made.expect("made");
    let made = one.open(&root, b"target", (3, 0), making(0o666)).await;
    let (_, target) = made.expect("made");
    let write = Ops::new()
        .put(&file)
        .add(WRITE, write_of(&state, 0, 2, b"data"));
    one.ok(write).await;
    let address = rig.server.local_address();
    let mut alice = Session::begin(address, b"alice", &user(1000)).await;
    alice.minor = 2;
    let none = || Words::new().u32(0);
    let opened = alice.open(&root, b"target", (3, 0), none()).await;
    let (to, _) = opened.expect("open");
    let all = |from: &State, to: &State| {
        let read = Ops::new().put(&file).add(READ, read_of(from, 0, 4));
        let words = Words::new().raw(from).u64(0).u32(0);
        let seek = Ops::new().put(&file).add(SEEK, words);
        let both = Ops::new().put(&file).plain(SAVEFH).put(&target);
        let words = Words::new().raw(from).raw(to).u64(0).u64(0).u64(0);
        let clone = both.clone().add(CLONE, words.clone());
        let copy = both.add(COPY, words.u32(1).u32(1).u32(0));
        [read, seek, clone, copy]
    };
    // Its mode lets others write, not read.
    let opened = alice.open(&root, b"file", (2, 0), none()).await;
    let (writer, _) = opened.expect("open");
    for ops in all(&writer, &to) {
        assert_eq!(alice.run(ops).await.0, ACCES);
    }
    // What is around its writes its owner reads, unless others are in the way.
    let mut two = begin(&rig, b"two").await;
    two.minor = 2;
    let opened = two.open(&root, b"target", (3, 0), none()).await;
    let (to, _) = opened.expect("open");
    let opened = two.open(&root, b"file", (2, 0), none()).await;
    let (writer, _) = opened.expect("open");
    for ops in all(&writer, &to) {
        assert_eq!(two.run(ops).await.0, 0);
    }
    let close = |state: &State| Ops::new().put(&file).add(CLOSE, none().raw(state));
    one.ok(close(&state)).await;
    let opened = one.open(&root, b"file", (2, 1), none()).await;
    let (sole, _) = opened.expect("open");
    for ops in all(&writer, &to) {
        assert_eq!(two.run(ops).await.0, LOCKED);
    }
    let read = Ops::new().put(&file).add(READ, read_of(&sole, 0, 4));
    assert_eq!(one.run(read).await.0, 0, "nobody keeps itself out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_gone_is_not_taken_for_another_type() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    let root = session.walk(&["tank"]).await.expect("the share");
    let link = Words::new().u32(5).opaque(b"target").opaque(b"link");
    let ops = Ops::new().put(&root).add(CREATE, link.u32(0).u32(0));
    let mut reply = session.ok(ops.plain(GETFH)).await;
    reply.well(&[PUTFH, CREATE]);
    let _ = (reply.changed(), reply.bits());
    reply.well(&[GETFH]);
    let link = reply.take_opaque();
    let control = session.walk(&["tank", ".zfs"]).await.expect("the control");
    let read = |handle: &[u8]| Ops::new().put(handle).plain(READLINK);
    session.ok(read(&link)).await;
    for other in [&root, &control] {
        assert_eq!(session.run(read(other)).await.0, WRONG_TYPE);
    }
    session
        .ok(Ops::new().put(&root).name(REMOVE, b"link"))
        .await;
    assert_eq!(session.run(read(&link)).await.0, STALE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_leaves_clients_what_they_had() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let (mut one, mut two) = (begin(&rig, b"one").await, begin(&rig, b"two").await);
    let root = one.walk(&["tank"]).await.expect("the share");
    let (state, file) = one
        .open(&root, b"file", (3, 0), making(0o600))
        .await
        .expect("made");
    one.lock(&file, &state, b"a", true, (0, 10), false)
        .await
        .expect("locked");
    two.ok(Ops::new().plain(PUTROOTFH)).await;
    let again = rig.crashed().await;
    let address = again.server.local_address();
    one.client = Client::connect(address).await;
    assert_eq!(one.run(Ops::new().plain(PUTROOTFH)).await.0, BADSESSION);
    let previous = || {
        open(
            b"owner",
            3,
            0,
            Words::new().u32(0),
            Words::new().u32(1).u32(0),
        )
    };
    let reclaim = || Ops::new().put(&file).add(OPEN, previous());

    let mut one = Session::exchanged(address, b"one", &ROOT).await;
    // Somebody who was not there gets nothing of what others had.
    let mut third = Session::begin(address, b"three", &ROOT).await;
    assert_eq!(third.run(reclaim()).await.0, NO_GRACE);
    let refused = third
        .open(&root, b"file", (3, 0), Words::new().u32(0))
        .await;
    assert_eq!(refused, Err(GRACE));
    let mut nlm = Client::connect(address).await;
    let words = Words::new()
        .opaque(b"c")
        .u32(0)
        .u32(1)
        .opaque(b"m")
        .opaque(&file);
    let words = words.opaque(b"pid").u32(7).u64(0).u64(0).u32(0).u32(0);
    let mut reply = nlm.call(NLM, 4, 2, &ROOT, words).await;
    assert_eq!((reply.take_opaque(), reply.take32()), (b"c".to_vec(), 4));
    let mut reply = one.ok(reclaim()).await;
    reply.well(&[PUTFH]);
    let state = reply.opened();
    let fresh = one.lock(&file, &state, b"a", true, (0, 10), false).await;
    assert_eq!(fresh.unwrap_err().0, GRACE);
    one.lock(&file, &state, b"a", true, (0, 10), true)
        .await
        .expect("its own");
    one.reclaim_complete().await;
    assert_eq!(one.run(reclaim()).await.0, NO_GRACE);
    // Two has not come back yet.
    assert_eq!(
        third.open(&root, b"new", (3, 0), making(0o600)).await,
        Err(GRACE)
    );
    let mut two = Session::exchanged(address, b"two", &ROOT).await;
    two.reclaim_complete().await;
    let (theirs, _) = third
        .open(&root, b"file", (3, 0), Words::new().u32(0))
        .await
        .expect("open");
    let denied = third.lock(&file, &theirs, b"t", true, (0, 1), false).await;
    assert_eq!(denied.unwrap_err().0, DENIED);
    // A client that goes is forgotten, and waited for no more.
    let destroy = Ops::new().add(DESTROY_SESSION, Words::new().raw(&two.session));
    assert_eq!(compound(&mut two.client, &ROOT, 1, &destroy).await.0, 0);
    let destroy = Ops::new().add(DESTROY_CLIENTID, Words::new().u64(two.id));
    assert_eq!(compound(&mut two.client, &ROOT, 1, &destroy).await.0, 0);
    let last = again.crashed().await;
    let address = last.server.local_address();
    for owner in [b"one".as_slice(), b"three"] {
        let mut session = Session::exchanged(address, owner, &ROOT).await;
        let early = session
            .open(&root, b"file", (1, 0), Words::new().u32(0))
            .await;
        assert_eq!(early, Err(GRACE));
        session.reclaim_complete().await;
        let opened = session
            .open(&root, b"file", (1, 0), Words::new().u32(0))
            .await;
        assert_eq!(opened.is_ok(), owner == b"three");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_and_permissions_hold_for_each_operation() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut root_session = begin(&rig, b"root").await;
    let root = root_session.walk(&["tank"]).await.expect("the share");
    let made = root_session
        .open(&root, b"secret", (2, 0), making(0o600))
        .await;
    let (_, secret) = made.expect("made");
    let address = rig.server.local_address();
    let mut alice = Session::begin(address, b"alice", &user(1000)).await;
    let nothing = || Words::new().u32(0);
    assert_eq!(
        alice.open(&root, b"secret", (1, 0), nothing()).await,
        Err(ACCES)
    );
    assert_eq!(
        alice.open(&root, b"mine", (1, 0), making(0o600)).await,
        Err(ACCES)
    );
    let read = Ops::new().put(&secret).add(READ, read_of(&ANONYMOUS, 0, 5));
    assert_eq!(alice.run(read.clone()).await.0, ACCES);
    let by_handle = || open(b"owner", 1, 0, nothing(), Words::new().u32(4));
    let ops = Ops::new().put(&secret).add(OPEN, by_handle());
    assert_eq!(alice.run(ops).await.0, ACCES);
    assert_eq!(
        alice
            .run(Ops::new().put(&root).name(REMOVE, b"secret"))
            .await
            .0,
        ACCES
    );
    let exclusive = Words::new().u32(1).u32(2).u64(99);
    let first = root_session
        .open(&root, b"once", (3, 0), exclusive.clone())
        .await
        .expect("made");
    let again = root_session
        .open(&root, b"once", (3, 0), exclusive)
        .await
        .expect("the same");
    assert_eq!(first.1, again.1);
    let other = Words::new().u32(1).u32(2).u64(98);
    assert_eq!(
        root_session.open(&root, b"once", (3, 0), other).await,
        Err(EXIST)
    );

    // Read-only from now on; then for others alone.
    rig.share("tank", "/tank", "ro,insecure,no_root_squash", 0)
        .await;
    let refused = root_session
        .open(&root, b"new", (2, 0), making(0o600))
        .await;
    assert_eq!(refused, Err(ROFS));
    let refused = root_session.open(&root, b"secret", (2, 0), nothing()).await;
    assert_eq!(refused, Err(ROFS));
    root_session
        .open(&root, b"secret", (1, 0), making(0o600))
        .await
        .expect("it is there");
    let set = Words::new().raw(&ANONYMOUS).u32(2).u32(0).u32(2);
    let set = set.opaque(&Words::new().u32(0o777).bytes);
    let ops = Ops::new().put(&secret).add(SETATTR, set);
    assert_eq!(root_session.run(ops).await.0, ROFS);
    rig.share("tank", "/tank", "rw=10.9.9.9,insecure", 0).await;
    assert_eq!(root_session.walk(&["tank"]).await, Err(ACCES));
    assert_eq!(root_session.run(read).await.0, ACCES);
    // Nobody without a name, but to ask what is wanted.
    rig.share("tank", "/tank", OPEN_TO_ALL, 0).await;
    root_session.sequence += 1;
    let ops = Ops::new().put(&secret).attributes();
    let arguments = root_session.with_sequence(&ops, false).arguments(1);
    let status = nameless(&mut root_session.client, arguments).await;
    assert_eq!(status, WRONGSEC);
    let ops = Ops::new().put(&root).name(SECINFO, b"secret");
    let mut reply = root_session.ok(ops).await;
    reply.well(&[PUTFH, SECINFO]);
    assert_eq!((reply.take32(), reply.take32()), (1, 1));
}

/// COMPOUND with AUTH_NONE; its status.
async fn nameless(client: &mut Client, arguments: Words) -> u32 {
    use tokio::io::AsyncWriteExt;
    let call = Words::new()
        .u32(4242)
        .u32(0)
        .u32(2)
        .u32(100_003)
        .u32(4)
        .u32(1);
    let call = call.u32(0).u32(0).u32(0).u32(0).raw(&arguments.bytes);
    let mark = call.bytes.len() as u32 | 1 << 31;
    client.stream.write_u32(mark).await.expect("sent");
    client.stream.write_all(&call.bytes).await.expect("sent");
    let (_, mut reply) = client.reply().await;
    assert_eq!([(); 4].map(|()| reply.take32()), [0; 4]);
    reply.take32()
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_are_found_by_their_paths_also_within_others() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let datasets = rig.pool.dsl().datasets();
    let init = std::sync::Arc::new(filesystem::ZplInit::new());
    for name in ["tank/far", "tank/near"] {
        let created = datasets.create(name, &[], init.clone()).await;
        created.expect("created");
    }
    rig.share("tank/near", "/tank/near", OPEN_TO_ALL, 0).await;
    rig.share("tank/far", "/srv/deep/far", OPEN_TO_ALL, 0).await;
    let mut session = begin(&rig, b"one").await;
    let top = session.walk(&[]).await.expect("the top");
    let tank = session.walk(&["tank"]).await.expect("the share");
    assert_eq!(list(&mut session, &top, 4096).await, ["srv", "tank"]);
    let deep = session
        .walk(&["srv", "deep"])
        .await
        .expect("a directory above");
    assert_eq!(list(&mut session, &deep, 4096).await, ["far"]);
    let far = session
        .walk(&["srv", "deep", "far"])
        .await
        .expect("the share");
    let near = session
        .walk(&["tank", "near"])
        .await
        .expect("the share within");
    for (below, above) in [(&far, &deep), (&near, &tank), (&tank, &top)] {
        let ops = Ops::new().put(below).plain(LOOKUPP).plain(GETFH);
        let mut reply = session.ok(ops).await;
        reply.well(&[PUTFH, LOOKUPP, GETFH]);
        assert_eq!(reply.take_opaque(), *above);
    }
    assert_eq!(
        session
            .run(Ops::new().put(&deep).name(REMOVE, b"far"))
            .await
            .0,
        ROFS
    );
    assert_eq!(session.walk(&["srv", "none"]).await, Err(NOENT));
    // Where a share begins, the directory below it stays.
    let remove = Ops::new().put(&tank).name(REMOVE, b"near");
    assert_eq!(session.run(remove).await.0, FILE_OPEN);
    // What is shared within a share that lets nobody in is reached all the same.
    rig.share("tank", "/tank", "rw=10.9.9.9,insecure", 0).await;
    assert_eq!(session.walk(&["tank", "near"]).await.as_ref(), Ok(&near));
    rig.shares.remove("tank/near").await;
    assert_eq!(session.walk(&["tank"]).await, Err(ACCES));
    // Once nothing is expected; until then clients ask again, also for directories on the way.
    let of = |handle: &[u8]| Ops::new().put(handle).attributes();
    assert_eq!(session.run(of(&near)).await.0, STALE);
    rig.shares.remove("tank/far").await;
    assert_eq!(session.run(of(&deep)).await.0, STALE);
    rig.shares.expect_by(|| true);
    assert_eq!(session.run(of(&near)).await.0, DELAY);
    assert_eq!(session.run(of(&deep)).await.0, DELAY);
    assert_eq!(session.run(of(&top)).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn version_4_2_finds_holes_and_clones() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    session.minor = 2;
    let root = session.walk(&["tank"]).await.expect("the share");
    let (state, file) = session
        .open(&root, b"f", (3, 0), making(0o600))
        .await
        .expect("made");
    let data = pattern(1 << 17, 9);
    let write = Ops::new()
        .put(&file)
        .add(WRITE, write_of(&state, 1 << 20, 2, &data));
    session.ok(write).await;
    let seek = |offset: u64, what: u32| {
        let words = Words::new().raw(&state).u64(offset).u32(what);
        Ops::new().put(&file).add(SEEK, words)
    };
    for (offset, what, expected) in [(0, 0, (0, 1 << 20)), (1 << 20, 1, (1, 0x12_0000))] {
        let mut reply = session.ok(seek(offset, what)).await;
        reply.well(&[PUTFH, SEEK]);
        assert_eq!((reply.take32(), reply.take64()), expected);
    }
    assert_eq!(session.run(seek(2 << 20, 0)).await.0, 6);
    let (target, copy) = session
        .open(&root, b"g", (3, 0), making(0o600))
        .await
        .expect("made");
    let words = Words::new().raw(&state).raw(&target).u64(0).u64(0).u64(0);
    let ops = Ops::new()
        .put(&file)
        .plain(SAVEFH)
        .put(&copy)
        .add(CLONE, words);
    session.ok(ops).await;
    let ops = Ops::new()
        .put(&copy)
        .add(READ, read_of(&target, 1 << 20, 1 << 20));
    session.sequence += 1;
    let (status, mut reply) = session.again(&ops, false).await;
    assert_eq!(status, 0);
    reply.well(&[SEQUENCE]);
    let _head: [u8; 36] = reply.take_raw();
    reply.well(&[PUTFH, READ]);
    assert!(reply.take32() == 1 && reply.take_opaque() == data);
    session.minor = 1;
    assert_eq!(
        session.run(seek(0, 0)).await.0,
        10044,
        "not of this version"
    );
}

/// Goal: whoever sends operations without sense, in a session that is good and to files that are
/// there, gets answers, and harms nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn nonsense_in_a_session_is_answered() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    let mut other = begin(&rig, b"other").await;
    let root = session.walk(&["tank"]).await.expect("the share");
    let (state, file) = session
        .open(&root, b"file", (3, 0), making(0o666))
        .await
        .expect("made");
    let top = session.walk(&[]).await.expect("the top");
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    session.minor = 2;
    let mut statuses = std::collections::BTreeSet::new();
    for _ in 0..4000 {
        let mut ops = Ops::new();
        for _ in 0..random(4) {
            let handle = [&root, &file, &top][random(3) as usize];
            ops = ops.put(handle);
            if random(2) == 0 {
                ops = ops.plain(SAVEFH);
            }
            let mut words = Words::new();
            if random(2) == 0 {
                words = words.raw(&[state, CURRENT, ANONYMOUS][random(3) as usize]);
            }
            for _ in 0..random(24) {
                words = match random(6) {
                    0 => words.u32(random(1 << 32) as u32),
                    1 => words.u32(u32::MAX),
                    2 => words.opaque(b"name"),
                    3 => words.u64(1 << random(64)),
                    4 => words.opaque(&[0xff; 40][..random(41) as usize]),
                    _ => words.u32(random(5) as u32),
                };
            }
            // All but those that end the session.
            let number = random(72) as u32 + 1;
            if ![DESTROY_SESSION, DESTROY_CLIENTID].contains(&number) {
                ops = ops.add(number, words);
            }
        }
        let (status, reply) = session.run(ops).await;
        assert!(status == 0 || status < 10_100, "{status}");
        statuses.insert(status);
        drop(reply);
    }
    assert!(statuses.len() > 20, "{statuses:?}");
    assert!(!statuses.contains(&SEQ_MISORDERED));
    other.walk(&["tank"]).await.expect("the share");
    let made = other.open(&root, b"fresh", (3, 0), making(0o666)).await;
    made.expect("made");
}
