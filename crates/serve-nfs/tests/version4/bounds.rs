//! Goal: what a session was told that it may have holds, and what RFC 8881 bounds or has no meaning
//! for is refused: what pynfs, the test suite of version 4.1, asks for.

use oracles::nfs::v4::*;
use oracles::nfs::{Client, ROOT, Words};

use super::{OPEN_TO_ALL, begin};
use crate::Rig;

const INVAL: u32 = 22;
const TOOSMALL: u32 = 10005;
const SYMLINK: u32 = 10029;
const BADXDR: u32 = 10036;
const REP_TOO_BIG: u32 = 10066;
const REP_TOO_BIG_TO_CACHE: u32 = 10067;

/// Longest request and answer, longest answer that is kept, operations.
type Sizes = [u32; 4];
const USUAL: Sizes = [8192, 8192, 4096, 8];

fn create(id: u64, sequence: u32, flags: u32, fore: Sizes, back: Sizes) -> Ops {
    let mut words = Words::new().u64(id).u32(sequence).u32(flags);
    for [request, answer, kept, operations] in [fore, back] {
        for word in [0, request, answer, kept, operations, 4, 0] {
            words = words.u32(word);
        }
    }
    Ops::new().add(CREATE_SESSION, words.u32(0x4000_0000).u32(1).u32(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_refused_what_cannot_be() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut client = Client::connect(rig.server.local_address()).await;
    let (_, mut reply) = compound(&mut client, &ROOT, 1, &exchange(b"one", 1)).await;
    reply.well(&[EXCHANGE_ID]);
    let (id, sequence) = (reply.take64(), reply.take32());
    for (flags, fore, back, status) in [
        (0xf, USUAL, USUAL, INVAL),
        (0, [20, 8192, 8192, 8], USUAL, TOOSMALL),
        (0, [8192, 0, 8192, 8], USUAL, TOOSMALL),
        (0, USUAL, [10, 8192, 8192, 8], TOOSMALL),
        (0, USUAL, [8192, 8192, 8192, 1], TOOSMALL),
        // None of these used the number up, and nobody need be called back.
        (3, USUAL, [0; 4], 0),
    ] {
        let asked = create(id, sequence, flags, fore, back);
        let (told, _) = compound(&mut client, &ROOT, 1, &asked).await;
        assert_eq!(told, status, "{flags} {fore:?} {back:?}");
    }
    // Two programs, where one is the most.
    let mut words = Words::new().u64(1).opaque(b"two").u32(0).u32(0).u32(2);
    for _ in 0..2 {
        words = words.opaque(b"org").opaque(b"name").u64(0).u32(0);
    }
    let twice = Ops::new().add(EXCHANGE_ID, words);
    assert_eq!(compound(&mut client, &ROOT, 1, &twice).await.0, BADXDR);
}

/// A session that was created with these sizes.
async fn sized(rig: &Rig, owner: &[u8], fore: Sizes) -> Session {
    let mut session = begin(rig, owner).await;
    let asked = create(session.id, 2, 0, fore, USUAL);
    let (status, mut reply) = compound(&mut session.client, &ROOT, 1, &asked).await;
    assert_eq!(status, 0);
    reply.well(&[CREATE_SESSION]);
    (session.session, session.sequence) = (reply.take_raw(), 0);
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_no_longer_than_a_session_takes() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = sized(&rig, b"one", [8192, 400, 400, 8]).await;
    let many = (0..4).fold(Ops::new().plain(PUTROOTFH), |ops, _| ops.attributes());
    session.sequence += 1;
    assert_eq!(session.again(&many, false).await.0, REP_TOO_BIG);
    // What would be too long to be kept is told before it is done, and uses no number up.
    let mut session = sized(&rig, b"two", [8192, 8192, 10, 8]).await;
    let root = Ops::new().plain(PUTROOTFH);
    session.sequence += 1;
    assert_eq!(session.again(&root, true).await.0, REP_TOO_BIG_TO_CACHE);
    assert_eq!(session.again(&root, false).await.0, 0);
    let mut session = sized(&rig, b"three", [8192, 8192, 400, 8]).await;
    session.sequence += 1;
    assert_eq!(session.again(&many, true).await.0, REP_TOO_BIG_TO_CACHE);
    session.sequence += 1;
    assert_eq!(session.again(&many, false).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn links_have_no_parent_and_who_wants_delegations_is_told_why_not() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    let root = session.walk(&["tank"]).await.expect("the share");
    let link = Words::new().u32(5).opaque(b"to").opaque(b"link");
    let made = Ops::new().put(&root).add(CREATE, link.u32(0).u32(0));
    let (status, _) = session.run(made.plain(LOOKUPP)).await;
    assert_eq!(status, SYMLINK);
    for (wanted, why) in [(0x400, 0), (0x500, 7), (0x100, 3)] {
        let asked = open(b"o", 3 | wanted, 0, making(0o600), by_name(b"file"));
        let mut reply = session.ok(Ops::new().put(&root).add(OPEN, asked)).await;
        reply.well(&[PUTFH, OPEN]);
        let _ = (reply.state(), reply.changed(), reply.take32(), reply.bits());
        assert_eq!((reply.take32(), reply.take32()), (3, why));
    }
}

/// The time of birth of a file, and its time of change of content, in seconds and nanoseconds.
async fn times(session: &mut Session, file: &[u8]) -> [(u64, u32); 2] {
    const TIMES: u32 = 1 << (50 - 32) | 1 << (53 - 32);
    let asked = Words::new().u32(2).u32(0).u32(TIMES);
    let mut reply = session.ok(Ops::new().put(file).add(GETATTR, asked)).await;
    reply.well(&[PUTFH, GETATTR]);
    assert_eq!((reply.bits(), reply.take32()), (vec![0, TIMES], 24));
    [(); 2].map(|()| (reply.take64(), reply.take32()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_keeps_the_time_of_its_birth() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    let root = session.walk(&["tank"]).await.expect("the share");
    let made = session.open(&root, b"file", (3, 0), making(0o600)).await;
    let (state, file) = made.expect("made");
    let [born, _] = times(&mut session, &file).await;
    assert!(born.0 > 1_000_000_000, "{born:?}");
    // Content, and its time, change.
    let write = Words::new().raw(&state).u64(0).u32(2).opaque(b"content");
    session.ok(Ops::new().put(&file).add(WRITE, write)).await;
    let value = Words::new().u32(1).u64(5).u32(6);
    let set = Words::new()
        .raw(&ANONYMOUS)
        .u32(2)
        .u32(0)
        .u32(1 << (54 - 32));
    let set = set.opaque(&value.bytes);
    session.ok(Ops::new().put(&file).add(SETATTR, set)).await;
    assert_eq!(times(&mut session, &file).await, [born, (5, 6)]);
}
