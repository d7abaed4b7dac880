//! Goal: extended attributes are read, changed and listed as RFC 8276 has it, by who may as on
//! Linux, and the filesystem has them as `user.` ones.

use access::User;
use filesystem::{Caller, XattrMode};
use oracles::nfs::v4::*;
use oracles::nfs::{Words, user};

use super::{ACCES, EXIST, OPEN_TO_ALL, ROFS, begin};
use crate::Rig;

const GETXATTR: u32 = 72;
const SETXATTR: u32 = 73;
const LISTXATTRS: u32 = 74;
const REMOVEXATTR: u32 = 75;
const PERM: u32 = 1;
const INVAL: u32 = 22;
const BAD_COOKIE: u32 = 10003;
const TOOSMALL: u32 = 10005;
const BADXDR: u32 = 10036;
const OP_ILLEGAL: u32 = 10044;
const NOXATTR: u32 = 10095;
const XATTR2BIG: u32 = 10096;
/// `SETXATTR4_EITHER`, `SETXATTR4_CREATE`, `SETXATTR4_REPLACE`.
const EITHER: u32 = 0;
const NEW: u32 = 1;
const THERE: u32 = 2;

fn me() -> User {
    User::Command { name: "test" }
}

async fn set(session: &mut Session, file: &[u8], how: u32, name: &[u8], value: &[u8]) -> u32 {
    let words = Words::new().u32(how).opaque(name).opaque(value);
    let (status, mut reply) = session.run(Ops::new().put(file).add(SETXATTR, words)).await;
    if status == 0 {
        reply.well(&[PUTFH, SETXATTR]);
        let (is_atomic, before, after) = reply.changed();
        assert!(is_atomic && before != after);
    }
    status
}

async fn get(session: &mut Session, file: &[u8], name: &[u8]) -> Result<Vec<u8>, u32> {
    let ops = Ops::new().put(file).name(GETXATTR, name);
    session.sequence += 1;
    let (status, mut reply) = session.again(&ops, false).await;
    reply.well(&[SEQUENCE]);
    let _head: [u8; 36] = reply.take_raw();
    reply.well(&[PUTFH]);
    assert_eq!(reply.result(GETXATTR), status);
    match status {
        0 => Ok(reply.take_opaque()),
        status => Err(status),
    }
}

async fn remove(session: &mut Session, file: &[u8], name: &[u8]) -> u32 {
    let ops = Ops::new().put(file).name(REMOVEXATTR, name);
    session.run(ops).await.0
}

/// Names from a cookie on, the next cookie, and whether that is the end.
async fn list(
    session: &mut Session,
    file: &[u8],
    cookie: u64,
    bytes: u32,
) -> Result<(Vec<Vec<u8>>, u64, bool), u32> {
    let words = Words::new().u64(cookie).u32(bytes);
    let (status, mut reply) = session
        .run(Ops::new().put(file).add(LISTXATTRS, words))
        .await;
    if status != 0 {
        return Err(status);
    }
    reply.well(&[PUTFH, LISTXATTRS]);
    let next = reply.take64();
    let names = (0..reply.take32()).map(|_| reply.take_opaque()).collect();
    Ok((names, next, reply.take32() == 1))
}

/// ACCESS's bits of extended attributes: which are known, and which are given.
async fn may(session: &mut Session, file: &[u8]) -> (u32, u32) {
    let words = Words::new().u32(0x1c0);
    let mut reply = session.ok(Ops::new().put(file).add(3, words)).await;
    reply.well(&[PUTFH, 3]);
    (reply.take32(), reply.take32())
}

/// Whether `xattr_support` is among the attributes, and what it is.
async fn is_supported(session: &mut Session, file: &[u8]) -> Option<bool> {
    const BIT: u32 = 1 << (82 - 64);
    let words = Words::new().u32(3).u32(0).u32(0).u32(BIT);
    let mut reply = session.ok(Ops::new().put(file).add(GETATTR, words)).await;
    reply.well(&[PUTFH, GETATTR]);
    let is_told = reply.bits().get(2) == Some(&BIT);
    let length = reply.take32();
    is_told.then(|| {
        assert_eq!(length, 4);
        reply.take32() == 1
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_set_read_listed_and_removed() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    let root = session.walk(&["tank"]).await.expect("the share");
    let made = session.open(&root, b"file", (3, 0), making(0o644)).await;
    let (_, file) = made.expect("made");
    // In minor version 1 there are none.
    assert_eq!(is_supported(&mut session, &file).await, None);
    assert_eq!(may(&mut session, &file).await, (0, 0));
    let (status, _) = session
        .run(Ops::new().put(&file).name(GETXATTR, b"a"))
        .await;
    assert_eq!(status, OP_ILLEGAL);
    session.minor = 2;
    let session = &mut session;
    assert_eq!(is_supported(session, &file).await, Some(true));
    assert_eq!(may(session, &file).await, (0x1c0, 0x1c0));
    assert_eq!(list(session, &file, 0, 100).await, Ok((vec![], 0, true)));
    assert_eq!(get(session, &file, b"a").await, Err(NOXATTR));
    assert_eq!(set(session, &file, THERE, b"a", b"1").await, NOXATTR);
    assert_eq!(set(session, &file, NEW, b"a", b"1").await, 0);
    assert_eq!(set(session, &file, NEW, b"a", b"2").await, EXIST);
    assert_eq!(get(session, &file, b"a").await, Ok(b"1".to_vec()));
    assert_eq!(set(session, &file, THERE, b"a", b"3").await, 0);
    assert_eq!(get(session, &file, b"a").await, Ok(b"3".to_vec()));
    // As long as they may be, which is more than an answer that is kept has.
    let long = vec![7; 64 << 10];
    assert_eq!(set(session, &file, EITHER, b"long", &long).await, 0);
    assert_eq!(get(session, &file, b"long").await, Ok(long));
    let longer = vec![7; (64 << 10) + 1];
    assert_eq!(
        set(session, &file, EITHER, b"long", &longer).await,
        XATTR2BIG
    );
    for name in [&b""[..], b"a\0b"] {
        assert_eq!(set(session, &file, EITHER, name, b"1").await, INVAL);
    }
    assert_eq!(set(session, &file, EITHER, &[b'n'; 256], b"1").await, 63);
    assert_eq!(set(session, &file, 3, b"a", b"1").await, BADXDR);

    // The filesystem's own are among them, of users alone.
    let lease = rig.access.filesystem("tank", me()).await.expect("open");
    let filesystem = lease.get();
    let ino = filesystem.lookup(filesystem.root(), b"file").await;
    let ino = ino.expect("the file").ino;
    let xattrs = filesystem.xattrs();
    let found = xattrs.get(ino, b"user.a").await.expect("it");
    assert_eq!(&found[..], b"3");
    for name in [&b"trusted.no"[..], b"user.b"] {
        let set = xattrs.set(ino, name, b"4", XattrMode::Any, Caller::ROOT);
        set.await.expect("set");
    }
    let (mut names, mut cookie, mut is_end) = (Vec::new(), 0, false);
    while !is_end {
        let more;
        // Two names fit.
        (more, cookie, is_end) = list(session, &file, cookie, 32).await.expect("names");
        names.extend(more);
    }
    names.sort_unstable();
    assert_eq!(names, [&b"a"[..], b"b", b"long"]);
    assert_eq!(list(session, &file, 0, 20).await, Err(TOOSMALL));
    assert_eq!(list(session, &file, 4, 200).await, Err(BAD_COOKIE));
    assert_eq!(get(session, &file, b"trusted.no").await, Err(NOXATTR));
    assert_eq!(remove(session, &file, b"a").await, 0);
    assert_eq!(remove(session, &file, b"a").await, NOXATTR);
    assert_eq!(xattrs.names(ino).await.expect("names").len(), 3);

    // What was answered is there after a crash.
    let crashed = rig.crashed().await;
    let lease = crashed.access.filesystem("tank", me()).await.expect("open");
    let filesystem = lease.get();
    let found = filesystem.lookup(filesystem.root(), b"file").await;
    let ino = found.expect("the file").ino;
    let found = filesystem.xattrs().get(ino, b"user.long").await;
    assert_eq!(found.expect("it").len(), 64 << 10);
    assert!(filesystem.xattrs().get(ino, b"user.a").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_for_who_may() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    let session = &mut session;
    session.minor = 2;
    let root = session.walk(&["tank"]).await.expect("the share");
    let made = session.open(&root, b"file", (3, 0), making(0o644)).await;
    let (_, file) = made.expect("made");
    let made = session.open(&root, b"secret", (3, 0), making(0o600)).await;
    let (_, secret) = made.expect("made");
    for file in [&file, &secret] {
        assert_eq!(set(session, file, NEW, b"a", b"1").await, 0);
    }
    let mode = |mode: u32| {
        let value = Words::new().u32(mode);
        Words::new().u32(2).u32(0).u32(2).opaque(&value.bytes)
    };
    let kind = Words::new()
        .u32(2)
        .opaque(b"shared")
        .raw(&mode(0o1777).bytes);
    let made = Ops::new().put(&root).add(CREATE, kind).plain(GETFH);
    session.ok(made).await;
    let shared = session.walk(&["tank", "shared"]).await.expect("it");
    let link = Words::new().u32(5).opaque(b"to").opaque(b"link");
    session
        .ok(Ops::new().put(&root).add(CREATE, link.u32(0).u32(0)))
        .await;
    let link = session.walk(&["tank", "link"]).await.expect("it");
    let control = session.walk(&["tank", ".zfs"]).await.expect("it");
    let top = session.walk(&[]).await.expect("the top");
    // Links, and directories that are nobody's, have none.
    for (what, status) in [(&link, PERM), (&control, ROFS), (&top, ROFS)] {
        assert_eq!(get(session, what, b"a").await, Err(NOXATTR));
        assert_eq!(set(session, what, EITHER, b"a", b"1").await, status);
        assert_eq!(remove(session, what, b"a").await, status);
        assert_eq!(list(session, what, 0, 100).await, Ok((vec![], 0, true)));
        assert_eq!(may(session, what).await, (0x1c0, 0));
    }
    assert_eq!(is_supported(session, &top).await, Some(false));

    session.who = user(1000);
    assert_eq!(get(session, &file, b"a").await, Ok(b"1".to_vec()));
    assert_eq!(set(session, &file, EITHER, b"a", b"2").await, ACCES);
    assert_eq!(remove(session, &file, b"a").await, ACCES);
    assert_eq!(may(session, &file).await, (0x1c0, 0x140));
    assert_eq!(get(session, &secret, b"a").await, Err(ACCES));
    assert_eq!(list(session, &secret, 0, 100).await, Err(ACCES));
    assert_eq!(may(session, &secret).await, (0x1c0, 0));
    // Anybody may write there, and its attributes are its owner's.
    assert_eq!(set(session, &shared, EITHER, b"a", b"2").await, PERM);
    assert_eq!(may(session, &shared).await, (0x1c0, 0x140));
    let hers = session.open(&shared, b"hers", (3, 0), making(0o600)).await;
    let (_, hers) = hers.expect("made");
    assert_eq!(set(session, &hers, NEW, b"a", b"2").await, 0);
    assert_eq!(remove(session, &hers, b"a").await, 0);
}

/// Goal: a share that is read-only, and one where root is nobody, keep even root from changing
/// them.
#[tokio::test(flavor = "multi_thread")]
async fn they_are_changed_as_the_share_lets() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let mut session = begin(&rig, b"one").await;
    let session = &mut session;
    session.minor = 2;
    let root = session.walk(&["tank"]).await.expect("the share");
    let made = session.open(&root, b"file", (3, 0), making(0o644)).await;
    let (_, file) = made.expect("made");
    let made = session.open(&root, b"secret", (3, 0), making(0o600)).await;
    let (_, secret) = made.expect("made");
    for file in [&file, &secret] {
        assert_eq!(set(session, file, NEW, b"a", b"1").await, 0);
    }
    let read_only = "ro,insecure,no_root_squash";
    for (policy, status) in [(read_only, ROFS), ("rw,insecure", ACCES)] {
        rig.share("tank", "/tank", policy, 0).await;
        assert_eq!(get(session, &file, b"a").await, Ok(b"1".to_vec()));
        assert_eq!(set(session, &file, EITHER, b"a", b"2").await, status);
        assert_eq!(remove(session, &file, b"a").await, status);
        assert_eq!(may(session, &file).await, (0x1c0, 0x140));
    }
    assert_eq!(get(session, &secret, b"a").await, Err(ACCES));
    assert_eq!(list(session, &secret, 0, 100).await, Err(ACCES));
    assert_eq!(may(session, &secret).await, (0x1c0, 0));
}
