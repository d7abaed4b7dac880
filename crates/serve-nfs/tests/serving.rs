//! Goal: what clients ask for is done as RFC 1813 has it, by who may; handles and data live through
//! restarts and crashes as promised; whoever sends nonsense gets nothing and breaks nothing.
//! Method: a pool on an image file, the real server on a loopback port, and a client of our own
//! ([`oracles::nfs`]); images copied while in use for what a crash leaves.

mod cross;
mod doors;
mod locks;
mod rig;
mod version4;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use filesystem::{Caller, XattrMode};
use oracles::nfs::{self as client, Client, NLM, ROOT, Who, Words, made, user};
use rig::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Lets everybody in from any port, and root be root.
const OPEN: &str = "rw,insecure,no_root_squash";

const PERM: u32 = 1;
const NOENT: u32 = 2;
const ACCES: u32 = 13;
const EXIST: u32 = 17;
const NOTDIR: u32 = 20;
const ISDIR: u32 = 21;
const INVAL: u32 = 22;
const ROFS: u32 = 30;
const NAMETOOLONG: u32 = 63;
const NOTEMPTY: u32 = 66;
const DQUOT: u32 = 69;
const STALE: u32 = 70;
const BADHANDLE: u32 = 10001;
const NOT_SYNC: u32 = 10002;
const BAD_COOKIE: u32 = 10003;
const TOOSMALL: u32 = 10005;
const BADTYPE: u32 = 10007;
const JUKEBOX: u32 = 10008;
/// Of `nlm4_stats`.
const DENIED_GRACE_PERIOD: u32 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn files_are_made_written_read_and_removed() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    assert_eq!(client.create(&ROOT, &root, b"file", 1).await, Err(EXIST));
    let data = pattern(3 << 20, 7);
    for (index, part) in data.chunks(1 << 20).enumerate() {
        let offset = (index << 20) as u64;
        let (status, count, committed, _) = client.write(&ROOT, &file, offset, part, 0).await;
        assert_eq!((status, count, committed), (0, 1 << 20, 0));
    }
    // Pieces that begin and end anywhere.
    for (offset, count) in [
        (0, 1 << 20),
        (1, 4096),
        (131_071, 300_000),
        ((3 << 20) - 5, 100),
    ] {
        let (found, is_end) = client
            .read(&ROOT, &file, offset, count)
            .await
            .expect("read");
        let end = (offset as usize + count as usize).min(data.len());
        assert!(found == data[offset as usize..end], "at {offset}");
        assert_eq!(is_end, end == data.len());
    }
    let (found, is_end) = client.read(&ROOT, &file, 4 << 20, 10).await.expect("read");
    assert!(found.is_empty() && is_end);
    // More than a transfer is cut, not refused.
    let (found, is_end) = client.read(&ROOT, &file, 0, u32::MAX).await.expect("read");
    assert!(found.len() == 1 << 20 && !is_end);
    let told = client.getattr(&file).await.expect("attributes");
    assert_eq!(
        (told.size, told.kind, told.mode, told.links),
        (3 << 20, 1, 0o644, 1)
    );

    // UNCHECKED on what is there cuts it only where it is asked to.
    let again = client
        .create(&ROOT, &root, b"file", 0)
        .await
        .expect("found");
    assert_eq!(again, file);
    let args = Words::new().opaque(&root).opaque(b"file").u32(0).size(5);
    let cut = made(client.nfs(8, &ROOT, args).await).expect("found");
    assert_eq!(cut, file);
    let (found, is_end) = client.read(&ROOT, &file, 0, 100).await.expect("read");
    assert!(found == data[..5] && is_end);

    let sub = client
        .mkdir(&ROOT, &root, b"sub", 0o755)
        .await
        .expect("made");
    let args = Words::new()
        .opaque(&root)
        .opaque(b"file")
        .opaque(&sub)
        .opaque(b"moved");
    let mut reply = client.nfs(14, &ROOT, args).await;
    assert_eq!(reply.take32(), 0);
    let (before, after) = reply.change();
    // One entry less: the size of a directory counts them.
    assert_eq!(before.expect("before"), after.expect("after").size + 1);
    let (before, after) = reply.change();
    assert_eq!(before.expect("before") + 1, after.expect("after").size);
    // Handles live through renames.
    assert_eq!(
        client.read(&ROOT, &file, 0, 100).await.expect("read").0,
        data[..5]
    );
    let (found, _) = client.lookup(&ROOT, &sub, b"moved").await.expect("found");
    assert_eq!(found, file);

    let args = Words::new().opaque(&file).opaque(&root).opaque(b"link");
    let mut reply = client.nfs(15, &ROOT, args).await;
    assert_eq!(reply.take32(), 0);
    assert_eq!(reply.after().expect("attributes").links, 2);
    let args = Words::new()
        .opaque(&root)
        .opaque(b"soft")
        .mode(0o777)
        .opaque(b"sub/moved");
    let soft = made(client.nfs(10, &ROOT, args).await).expect("made");
    let mut reply = client.nfs(5, &ROOT, Words::new().opaque(&soft)).await;
    assert_eq!(reply.take32(), 0);
    assert_eq!(reply.after().expect("attributes").kind, 5);
    assert_eq!(reply.take_opaque(), b"sub/moved");
    let args = Words::new()
        .opaque(&root)
        .opaque(b"fifo")
        .u32(7)
        .mode(0o600);
    made(client.nfs(11, &ROOT, args).await).expect("made");
    let args = Words::new()
        .opaque(&root)
        .opaque(b"disk")
        .u32(3)
        .mode(0o600)
        .u32(8)
        .u32(1);
    made(client.nfs(11, &ROOT, args).await).expect("made");
    let args = Words::new().opaque(&root).opaque(b"odd").u32(1).mode(0o600);
    assert_eq!(made(client.nfs(11, &ROOT, args).await), Err(BADTYPE));

    assert_eq!(client.remove(&ROOT, &root, b"sub", 13).await, NOTEMPTY);
    assert_eq!(client.remove(&ROOT, &root, b"sub", 12).await, ISDIR);
    assert_eq!(client.remove(&ROOT, &root, b"link", 13).await, NOTDIR);
    assert_eq!(client.remove(&ROOT, &root, b"link", 12).await, 0);
    assert_eq!(client.remove(&ROOT, &sub, b"moved", 12).await, 0);
    assert_eq!(client.getattr(&file).await, Err(STALE));
    assert_eq!(client.remove(&ROOT, &root, b"sub", 13).await, 0);
    assert_eq!(client.lookup(&ROOT, &root, b"sub").await, Err(NOENT));
    let long = vec![b'x'; 300];
    assert_eq!(
        client.create(&ROOT, &root, &long, 1).await,
        Err(NAMETOOLONG)
    );
    assert_eq!(client.create(&ROOT, &root, b"a/b", 1).await, Err(INVAL));
    assert_eq!(client.getattr(b"nonsense").await, Err(BADHANDLE));
    rig.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_promised_lives_through_a_crash() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let sub = client
        .mkdir(&ROOT, &root, b"sub", 0o755)
        .await
        .expect("made");
    let stable = client
        .create(&ROOT, &sub, b"stable", 1)
        .await
        .expect("made");
    let data = pattern(300_000, 1);
    let (status, _, committed, verifier) = client.write(&ROOT, &stable, 0, &data, 2).await;
    assert_eq!((status, committed), (0, 2));
    let unstable = client
        .create(&ROOT, &sub, b"unstable", 1)
        .await
        .expect("made");
    let (status, ..) = client.write(&ROOT, &unstable, 0, &data, 0).await;
    assert_eq!(status, 0);
    let mut reply = client
        .nfs(21, &ROOT, Words::new().opaque(&unstable).u64(0).u32(0))
        .await;
    assert_eq!(reply.take32(), 0);
    let _ = reply.change();
    assert_eq!(reply.take64(), verifier, "nothing was lost since the write");
    let exclusive = Words::new()
        .opaque(&sub)
        .opaque(b"exclusive")
        .u32(2)
        .u64(0x8123_4567_89ab_cdef);
    let first = made(client.nfs(8, &ROOT, exclusive.clone()).await).expect("made");

    let after = rig.crashed().await;
    let (mut client, same_root) = after.mounted().await;
    assert_eq!(same_root, root);
    for file in [&stable, &unstable] {
        let (found, is_end) = client.read(&ROOT, file, 0, 1 << 20).await.expect("read");
        assert!(found == data && is_end);
    }
    let (.., other) = client.write(&ROOT, &stable, 0, b"x", 0).await;
    assert_ne!(
        other, verifier,
        "clients must write again what they did not commit"
    );
    // Asked again, it was this client's; another one's it is not.
    let again = made(client.nfs(8, &ROOT, exclusive).await).expect("made by this client");
    assert_eq!(again, first);
    let other = Words::new().opaque(&sub).opaque(b"exclusive").u32(2).u64(1);
    assert_eq!(made(client.nfs(8, &ROOT, other).await), Err(EXIST));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_used_again_is_another_file() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let first = client
        .create(&ROOT, &root, b"first", 1)
        .await
        .expect("made");
    let number = client.getattr(&first).await.expect("attributes").number;
    assert_eq!(client.remove(&ROOT, &root, b"first", 12).await, 0);
    rig.pool.sync().await.expect("synced");
    for n in 0..200 {
        let name = format!("f{n}");
        let file = client
            .create(&ROOT, &root, name.as_bytes(), 1)
            .await
            .expect("made");
        assert_ne!(file, first);
        if client.getattr(&file).await.expect("attributes").number == number {
            break;
        }
    }
    assert_eq!(client.getattr(&first).await, Err(STALE));
}

/// Extended attributes that are stored as files have no handles, whatever a client puts together:
/// their directories are everybody's to write, and the file's own permissions would not count.
#[tokio::test(flavor = "multi_thread")]
async fn handles_that_are_made_up_do_not_reach_extended_attributes() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let number = client.getattr(&file).await.expect("attributes").number;
    let looking = rig
        .access
        .look("tank", access::User::Command { name: "test" })
        .await;
    let filesystem = looking.expect("the filesystem").get();
    // Too long for anything but a file of its own.
    let value = vec![7; 60_000];
    let set = filesystem.xattrs().set(
        number,
        b"trusted.long",
        &value,
        XattrMode::Any,
        Caller::new(0, 0),
    );
    set.await.expect("set");
    let mut reached = 0;
    for ino in 1..200_u64 {
        let Ok(found) = filesystem.attributes(ino).await else {
            continue;
        };
        if found.flags & filesystem::pflags::XATTR == 0 {
            continue;
        }
        reached += 1;
        // As the file's own handle, but for number and generation.
        let mut forged = file.clone();
        forged[12..20].copy_from_slice(&ino.to_be_bytes());
        forged[20..28].copy_from_slice(&found.generation.to_be_bytes());
        assert_eq!(client.getattr(&forged).await, Err(STALE));
        let read = client.read(&user(1000), &forged, 0, 10).await;
        assert_eq!(read, Err(STALE));
        let made = client.create(&user(1000), &forged, b"mine", 1).await;
        assert_eq!(made, Err(STALE));
    }
    assert_eq!(reached, 2, "the directory and what is in it");
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_are_those_of_the_user_that_asks() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let (alice, bob) = (user(1000), user(1001));
    let home = client
        .mkdir(&ROOT, &root, b"home", 0o755)
        .await
        .expect("made");
    let own = async |client: &mut Client, file: &[u8], uid: u32| {
        let set = Words::new()
            .opaque(file)
            .u32(0)
            .u32(1)
            .u32(uid)
            .u32(1)
            .u32(uid);
        let set = set.u32(0).u32(0).u32(0).u32(0);
        assert_eq!(client.nfs(2, &ROOT, set).await.take32(), 0);
    };
    own(&mut client, &home, 1000).await;
    assert_eq!(client.create(&bob, &home, b"no", 1).await, Err(ACCES));
    let file = client
        .create(&alice, &home, b"file", 1)
        .await
        .expect("made");
    let told = client.getattr(&file).await.expect("attributes");
    assert_eq!((told.uid, told.gid), (1000, 1000));
    assert_eq!(client.write(&alice, &file, 0, b"hello", 2).await.0, 0);
    assert_eq!(client.write(&bob, &file, 0, b"HELLO", 2).await.0, ACCES);
    assert_eq!(
        client.read(&bob, &file, 0, 9).await.expect("0644").0,
        b"hello"
    );
    let chmod = |file: &[u8], mode| Words::new().opaque(file).mode(mode).u32(0);
    assert_eq!(
        client.nfs(2, &bob, chmod(&file, 0o777)).await.take32(),
        PERM
    );
    assert_eq!(client.nfs(2, &alice, chmod(&file, 0o040)).await.take32(), 0);
    assert_eq!(client.read(&bob, &file, 0, 9).await, Err(ACCES));
    // An owner goes on with what is open; a member of the group reads.
    assert_eq!(
        client.read(&alice, &file, 0, 9).await.expect("owner").0,
        b"hello"
    );
    let member = Who {
        groups: vec![7, 1000],
        ..bob.clone()
    };
    assert_eq!(
        client.read(&member, &file, 0, 9).await.expect("group").0,
        b"hello"
    );
    assert_eq!(client.write(&member, &file, 0, b"x", 0).await.0, ACCES);
    let access = async |client: &mut Client, who: &Who, file: &[u8]| {
        let mut reply = client
            .nfs(4, who, Words::new().opaque(file).u32(0x3f))
            .await;
        assert_eq!(reply.take32(), 0);
        let _ = reply.after();
        reply.take32()
    };
    assert_eq!(access(&mut client, &member, &file).await, 0x01);
    assert_eq!(access(&mut client, &bob, &file).await, 0);
    assert_eq!(access(&mut client, &ROOT, &file).await, 0x0d);
    assert_eq!(access(&mut client, &alice, &home).await, 0x1f);
    assert_eq!(access(&mut client, &bob, &home).await, 0x03);
    // Nobody gives files away, nor takes groups that they are not of.
    let give = |uid, gid| {
        let set = Words::new()
            .opaque(&file)
            .u32(0)
            .u32(1)
            .u32(uid)
            .u32(1)
            .u32(gid);
        set.u32(0).u32(0).u32(0).u32(0)
    };
    assert_eq!(client.nfs(2, &alice, give(1001, 1000)).await.take32(), PERM);
    assert_eq!(client.nfs(2, &alice, give(1000, 7)).await.take32(), PERM);
    let args = Words::new()
        .opaque(&home)
        .opaque(b"disk")
        .u32(3)
        .mode(0o600)
        .u32(8)
        .u32(1);
    assert_eq!(made(client.nfs(11, &alice, args).await), Err(PERM));
    // In a sticky directory only owners remove.
    let shared = client
        .mkdir(&ROOT, &root, b"shared", 0o1777)
        .await
        .expect("made");
    client
        .create(&alice, &shared, b"hers", 1)
        .await
        .expect("made");
    assert_eq!(client.remove(&bob, &shared, b"hers", 12).await, PERM);
    assert_eq!(client.remove(&alice, &shared, b"hers", 12).await, 0);
    // Who may not look into a directory finds nothing in it.
    assert_eq!(client.nfs(2, &alice, chmod(&home, 0o700)).await.take32(), 0);
    assert_eq!(
        client.lookup(&bob, &home, b"file").await.map(|_| ()),
        Err(ACCES)
    );
    let args = Words::new().opaque(&home).u64(0).u64(0).u32(4096);
    assert_eq!(client.nfs(16, &bob, args).await.take32(), ACCES);
    // A guard says what the client believes.
    let ctime = client.getattr(&file).await.expect("attributes").ctime;
    let guarded = |seconds, nanoseconds| {
        let set = Words::new().opaque(&file).mode(0o644);
        set.u32(1).u32(seconds).u32(nanoseconds)
    };
    let stale = client
        .nfs(2, &alice, guarded(ctime.0 - 1, ctime.1))
        .await
        .take32();
    assert_eq!(stale, NOT_SYNC);
    assert_eq!(
        client
            .nfs(2, &alice, guarded(ctime.0, ctime.1))
            .await
            .take32(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_let_in_whom_they_name() {
    let rig = Rig::new("rw=10.1.2.3,insecure").await;
    let mut client = rig.client().await;
    assert_eq!(client.mount("/tank").await, Err(ACCES));
    assert_eq!(client.mount("/elsewhere").await, Err(NOENT));
    rig.share("tank", "/tank", "ro,insecure,root=127.0.0.1", 0)
        .await;
    let root = client.mount("/tank").await.expect("mounted");
    assert_eq!(client.create(&ROOT, &root, b"file", 1).await, Err(ROFS));
    // A handle is worth nothing where the policy does not let its bearer in.
    rig.share("tank", "/tank", "rw=10.1.2.3,insecure", 0).await;
    assert_eq!(client.getattr(&root).await, Err(ACCES));
    rig.share("tank", "/tank", OPEN, 0).await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    // Root is nobody, unless it is said otherwise.
    rig.share("tank", "/tank", "rw,insecure", 0).await;
    assert_eq!(client.write(&ROOT, &file, 0, b"x", 0).await.0, ACCES);
    rig.share(
        "tank",
        "/tank",
        "rw,insecure,all_squash,anonuid=5,anongid=6",
        0,
    )
    .await;
    assert_eq!(client.write(&user(0), &file, 0, b"x", 0).await.0, ACCES);
    // From a port that anybody may use.
    rig.share("tank", "/tank", "rw", 0).await;
    assert_eq!(client.getattr(&root).await, Err(ACCES));
    rig.shares.remove("tank").await;
    assert_eq!(client.getattr(&root).await, Err(STALE));
    assert_eq!(client.mount("/tank").await, Err(NOENT));
}

/// Goal: no client is told for good that its files are gone while they may still come, by its pool
/// or its key; once nothing is expected it is.
#[tokio::test(flavor = "multi_thread")]
async fn clients_ask_again_for_what_is_expected() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let found = rig.pool.dsl().directories().lookup("tank").await;
    let guid = found.expect("the dataset").guid.get();
    let is_expecting = Arc::new(AtomicBool::new(true));
    let expects = Arc::clone(&is_expecting);
    rig.shares
        .expect_by(move || expects.load(Ordering::Relaxed));
    let lock = Words::new().opaque(b"c").u32(0).u32(1).opaque(b"machine");
    let lock = lock.opaque(&file).opaque(b"owner").u32(1).u64(0).u64(0);
    let lock = lock.u32(0).u32(0);
    let locked = async |client: &mut Client| {
        let mut reply = client.call(NLM, 4, 2, &ROOT, lock.clone()).await;
        assert_eq!(reply.take_opaque(), b"c");
        reply.take32()
    };
    // What is here is served meanwhile.
    assert!(client.getattr(&file).await.is_ok());
    rig.shares.remove("tank").await;
    assert_eq!(client.getattr(&file).await, Err(JUKEBOX));
    let wrote = client.write(&ROOT, &file, 0, b"x", 2).await;
    assert_eq!(wrote.0, JUKEBOX);
    assert_eq!(locked(&mut client).await, DENIED_GRACE_PERIOD);
    // Its pool has come, and its key has not.
    rig.shares.set_awaited("tank", Some(guid));
    is_expecting.store(false, Ordering::Relaxed);
    assert_eq!(client.getattr(&file).await, Err(JUKEBOX));
    rig.shares.set_awaited("tank", None);
    rig.shares.set_awaited("other", Some(guid ^ 1));
    assert_eq!(client.getattr(&file).await, Err(STALE));
    rig.share("tank", "/tank", OPEN, 0).await;
    assert!(client.getattr(&file).await.is_ok());
    assert_eq!(locked(&mut client).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_are_listed_whole_while_they_change() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let sub = client
        .mkdir(&ROOT, &root, b"sub", 0o755)
        .await
        .expect("made");
    let mut names: Vec<String> = (0..500).map(|n| format!("file {n}")).collect();
    for name in &names {
        client
            .create(&ROOT, &sub, name.as_bytes(), 1)
            .await
            .expect("made");
    }
    names.extend([".".into(), "..".into()]);
    names.sort();
    for (bytes, is_plus) in [(400, false), (4096, false), (900, true), (32768, true)] {
        let found = client.list(&ROOT, &sub, bytes, is_plus).await;
        let mut found: Vec<String> = found.into_iter().map(|(name, _)| name).collect();
        found.sort();
        assert_eq!(found, names);
    }
    // A cookie stays good when others go, also those before it.
    let all = client.list(&ROOT, &sub, 4096, false).await;
    for (name, _) in &all[2..250] {
        assert_eq!(client.remove(&ROOT, &sub, name.as_bytes(), 12).await, 0);
    }
    let args = Words::new().opaque(&sub).u64(all[249].1).u64(0).u32(4096);
    let mut reply = client.nfs(16, &ROOT, args).await;
    let _ = (
        reply.take32(),
        reply.after(),
        reply.take64(),
        reply.take32(),
        reply.take64(),
    );
    assert_eq!(reply.take_opaque(), all[250].0.as_bytes());
    let args = Words::new().opaque(&sub).u64(0).u64(0).u32(110);
    assert_eq!(client.nfs(16, &ROOT, args).await.take32(), TOOSMALL);
    let args = Words::new().opaque(&sub).u64(1 << 63).u64(0).u32(4096);
    assert_eq!(client.nfs(16, &ROOT, args).await.take32(), BAD_COOKIE);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_seen_as_they_were_taken() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    client.write(&ROOT, &file, 0, b"before", 2).await;
    rig.snapshot("tank@one").await;
    client.write(&ROOT, &file, 0, b"after!", 2).await;
    let names = |found: Vec<(String, u64)>| -> Vec<String> {
        found.into_iter().map(|(name, _)| name).collect()
    };
    assert!(names(client.list(&ROOT, &root, 4096, true).await).contains(&".zfs".into()));
    let (zfs, told) = client.lookup(&ROOT, &root, b".zfs").await.expect("found");
    assert_eq!(told.kind, 2);
    let (snapshots, _) = client
        .lookup(&ROOT, &zfs, b"snapshot")
        .await
        .expect("found");
    rig.snapshot("tank@two").await;
    let listed = names(client.list(&ROOT, &snapshots, 4096, false).await);
    assert_eq!(listed, [".", "..", "one", "two"]);
    let (one, told) = client
        .lookup(&ROOT, &snapshots, b"one")
        .await
        .expect("found");
    let of_root = client.getattr(&root).await.expect("attributes");
    assert_ne!(
        told.fsid, of_root.fsid,
        "numbers of files repeat in snapshots"
    );
    let (old, _) = client.lookup(&ROOT, &one, b"file").await.expect("found");
    assert_eq!(
        client.read(&ROOT, &old, 0, 99).await.expect("read").0,
        b"before"
    );
    assert_eq!(
        client.read(&ROOT, &file, 0, 99).await.expect("read").0,
        b"after!"
    );
    assert_eq!(client.write(&ROOT, &old, 0, b"x", 0).await.0, ROFS);
    assert_eq!(client.create(&ROOT, &one, b"x", 1).await, Err(ROFS));
    assert_eq!(client.create(&ROOT, &snapshots, b"x", 1).await, Err(ROFS));
    // What is there for Samba is not for clients.
    let shadow = client.lookup(&ROOT, &zfs, b"shadow").await;
    assert_eq!(shadow.map(drop), Err(NOENT));
    assert_eq!(client.create(&ROOT, &root, b".zfs", 1).await, Err(EXIST));
    assert_eq!(client.remove(&ROOT, &root, b".zfs", 13).await, PERM);
    let (above, _) = client.lookup(&ROOT, &one, b"..").await.expect("found");
    assert_eq!(above, snapshots);
    assert_eq!(
        client.mount("/tank/.zfs/snapshot/one").await,
        Ok(one.clone())
    );
    // A handle is of one snapshot, not of whatever has its name.
    rig.shares.release_snapshot("tank", "one").await;
    assert_eq!(
        client.read(&ROOT, &old, 0, 99).await.expect("read").0,
        b"before"
    );
    rig.shares.release_snapshot("tank", "one").await;
    let destroyer = rig.pool.dsl().destroyer();
    destroyer
        .destroy_snapshots(&["tank@one".into()], false)
        .await
        .expect("destroyed");
    rig.snapshot("tank@one").await;
    assert_eq!(client.read(&ROOT, &old, 0, 99).await, Err(STALE));
    let (_, _) = client
        .lookup(&ROOT, &snapshots, b"one")
        .await
        .expect("the new one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_changes_files_under_clients() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    client.write(&ROOT, &file, 0, b"before", 2).await;
    rig.snapshot("tank@then").await;
    client.write(&ROOT, &file, 0, b"after!", 2).await;
    let later = client
        .create(&ROOT, &root, b"later", 1)
        .await
        .expect("made");
    let dsl = Arc::clone(rig.pool.dsl());
    let rollback = async move {
        let done = dsl.snapshots().rollback("tank", Some("tank@then")).await;
        done.expect("rolled back");
    };
    rig.access
        .exchange("tank", rollback)
        .await
        .expect("nobody stands in the way");
    assert_eq!(
        client.read(&ROOT, &file, 0, 99).await.expect("read").0,
        b"before"
    );
    assert_eq!(client.getattr(&later).await, Err(STALE));
    assert_eq!(client.write(&ROOT, &file, 0, b"again!", 2).await.0, 0);
}

/// Goal: a share whose filesystem could not be opened again after a rollback is none any more, and
/// is shared anew as soon as it can be opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_that_was_not_opened_again_is_shared_anew() {
    let rig = Rig::new(OPEN).await;
    let wrapping = || codec::crypt::WrappingKey::new([7; 32]);
    let key = dataset::NewKey::new(dataset::KeyFormat::Raw, wrapping()).expect("a key");
    let properties = [("encryption", "on"), ("keyformat", "raw")];
    let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let init = Arc::new(filesystem::ZplInit::new());
    let dsl = Arc::clone(rig.pool.dsl());
    let made = dsl.datasets();
    made.create_with_key("tank/e", &properties, init, Some(key))
        .await
        .expect("made");
    rig.share("tank/e", "/e", OPEN, 1).await;
    let mut client = rig.client().await;
    let root = client.mount("/e").await.expect("mounted");
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    client.write(&ROOT, &file, 0, b"content", 2).await;
    assert!(rig.shares.is_served("tank/e"));

    // Its key goes while the other state comes.
    let work = {
        let dsl = Arc::clone(&dsl);
        async move { dsl.keys().unload("tank/e").await.expect("unloaded") }
    };
    let exchanged = rig.access.exchange("tank/e", work).await;
    let not_reopened = matches!(exchanged, Err(access::AccessError::NotReopened { .. }));
    assert!(not_reopened, "{exchanged:?}");
    assert!(!rig.shares.is_served("tank/e"));
    assert_eq!(client.read(&ROOT, &file, 0, 99).await, Err(JUKEBOX));
    // It is begun anew, and cannot be yet: its clients are to wait on.
    let spec = rig.spec("tank/e", "/e", OPEN).await;
    let refused = rig.shares.add(spec, 2).await;
    assert!(matches!(refused, Err(serve_nfs::ShareError::Access(_))));
    assert_eq!(client.read(&ROOT, &file, 0, 99).await, Err(JUKEBOX));

    dsl.keys()
        .load("tank/e", wrapping(), false)
        .await
        .expect("loaded");
    rig.share("tank/e", "/e", OPEN, 2).await;
    assert!(rig.shares.is_served("tank/e"));
    let read = client.read(&ROOT, &file, 0, 99).await.expect("read");
    assert_eq!(read.0, b"content");
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_and_limits_are_told_by_name() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    rig.set("quota", "4M").await;
    let data = pattern(1 << 20, 3);
    let mut status = 0;
    for n in 0..200 {
        (status, ..) = client.write(&ROOT, &file, n << 20, &data, 2).await;
        if status != 0 {
            break;
        }
    }
    assert_eq!(status, DQUOT);
    rig.set("quota", "none").await;
    assert_eq!(client.write(&ROOT, &file, 0, b"x", 0).await.0, 0);
    let mut reply = client.nfs(19, &ROOT, Words::new().opaque(&root)).await;
    assert_eq!(reply.take32(), 0);
    let _ = reply.after();
    assert_eq!(reply.take32(), 1 << 20, "bytes of a transfer");
    let mut reply = client.nfs(18, &ROOT, Words::new().opaque(&root)).await;
    assert_eq!(reply.take32(), 0);
    let _ = reply.after();
    let (total, free) = (reply.take64(), reply.take64());
    assert!(
        total > 100 << 20 && free < total && free > 0,
        "{total} {free}"
    );
    let mut reply = client.nfs(20, &ROOT, Words::new().opaque(&root)).await;
    assert_eq!(reply.take32(), 0);
    let _ = reply.after();
    assert_eq!((reply.take32() > 1000, reply.take32()), (true, 255));
    rig.set("readonly", "on").await;
    assert_eq!(client.write(&ROOT, &file, 0, b"x", 0).await.0, ROFS);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_are_under_way_at_once() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    const COUNT: u32 = 64;
    let data: Vec<Vec<u8>> = (0..COUNT).map(|n| pattern(256 << 10, n.into())).collect();
    let mut all = Vec::new();
    for (n, data) in (0..).zip(&data) {
        let args = Words::new().opaque(&file).u64(u64::from(n) * (256 << 10));
        let args = args.u32(data.len() as u32).u32(0).opaque(data);
        all.extend(client::record(1000 + n, client::NFS, 3, 7, &ROOT, &args));
    }
    let (mut reading, mut writing) = client.stream.into_split();
    let sending = tokio::spawn(async move {
        writing.write_all(&all).await.expect("sent");
        writing
    });
    let mut seen = std::collections::HashSet::new();
    for _ in 0..COUNT {
        let mark = reading.read_u32().await.expect("a reply") & !(1 << 31);
        let mut reply = vec![0; mark as usize];
        reading.read_exact(&mut reply).await.expect("all of it");
        assert_eq!(&reply[24..28], &[0; 4], "written");
        seen.insert(u32::from_be_bytes(*reply.first_chunk().expect("a number")));
    }
    assert_eq!(seen.len() as u32, COUNT);
    let writing = sending.await.expect("sent");
    let stream = reading.reunite(writing).expect("one connection");
    let mut client = Client { stream, xid: 1 };
    for (n, data) in (0..).zip(&data) {
        let found = client.read(&ROOT, &file, n * (256 << 10), 256 << 10).await;
        assert!(found.expect("read").0 == *data, "part {n}");
    }
    let report = rig.shares.report();
    assert_eq!((report[0].counts.writes, report[0].counts.reads), (64, 64));
    assert_eq!(report[0].counts.written_bytes, 16 << 20);
    let of_client = &report[0].clients[0];
    assert!(of_client.is_connected && of_client.counts == report[0].counts);
}

/// Goal: requests of one connection for one file that wait for each other are not taken for one.
/// Method: the first finds nothing in memory: it waits with the file locked while others begin.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_connection_wait_for_each_other() {
    const COUNT: u32 = 16;
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let data = pattern(1 << 20, 3);
    assert_eq!(client.write(&ROOT, &file, 0, &data, 2).await.0, 0);
    rig.pool.sync().await.expect("sync");
    let rig = rig.crashed().await;
    let (client, _) = rig.mounted().await;
    let mut stream = client.stream;
    let mut all = Vec::new();
    for n in 0..COUNT {
        let args = Words::new().opaque(&file).u64(u64::from(n) * 40_000 + 7);
        let args = args.u32(100).u32(0).opaque(&[n as u8; 100]);
        all.extend(client::record(1000 + n, client::NFS, 3, 7, &ROOT, &args));
    }
    stream.write_all(&all).await.expect("sent");
    let mut client = Client { stream, xid: 1 };
    for _ in 0..COUNT {
        let (_, mut reply) = client.reply().await;
        let head = [(); 5].map(|()| reply.take32());
        assert_eq!(head, [0; 5], "written");
    }
    for n in 0..COUNT {
        let offset = u64::from(n) * 40_000 + 7;
        let found = client.read(&ROOT, &file, offset, 100).await;
        assert_eq!(found.expect("read").0, [n as u8; 100]);
    }
}

/// A client that asks a second time, as its connection broke, hears what it would have heard.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_is_not_done_twice() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let args = Words::new().opaque(&root).opaque(b"file");
    let record = client::record(4711, client::NFS, 3, 12, &ROOT, &args);
    client.stream.write_all(&record).await.expect("sent");
    let (_, first) = client.reply().await;
    let mut client = rig.client().await;
    client.stream.write_all(&record).await.expect("sent");
    let (_, second) = client.reply().await;
    assert_eq!(first.bytes, second.bytes);
    assert_eq!(client.remove(&ROOT, &root, b"file", 12).await, NOENT);
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_ends_its_connection_and_nothing_else() {
    let rig = Rig::new(OPEN).await;
    let (mut good, root) = rig.mounted().await;
    let mut seed = 1;
    for round in 0..200u32 {
        let mut bad = rig.client().await;
        let mut bytes = pattern(1 + (round as usize * 37) % 3000, u64::from(round) + seed);
        match round % 4 {
            // Records of a length that is true, and of one that is not.
            0 => {
                let mark = bytes.len() as u32 | 1 << 31;
                bytes.splice(0..0, mark.to_be_bytes());
            }
            1 => {
                bytes.splice(0..0, [0xff; 4]);
            }
            // A call with arguments of no sense, to a procedure of any.
            2 => {
                let args = Words::new().opaque(&root).opaque(&bytes);
                bytes = client::record(round, client::NFS, 3, round % 24, &ROOT, &args);
                let at = 60 + (seed as usize) % (bytes.len() - 60);
                bytes[at] ^= 0xff;
            }
            _ => {}
        }
        seed = seed.wrapping_mul(31).wrapping_add(7);
        let _ = bad.stream.write_all(&bytes).await;
        if round % 3 == 0 {
            let mut reply = [0; 512];
            let _ =
                tokio::time::timeout(Duration::from_millis(20), bad.stream.read(&mut reply)).await;
        }
    }
    // One that promises much and sends nothing does not hold others up.
    let mut kept = Vec::new();
    for _ in 0..100 {
        let mut bad = rig.client().await;
        bad.stream
            .write_all(&(1u32 << 20 | 1 << 31).to_be_bytes())
            .await
            .expect("sent");
        kept.push(bad);
    }
    // Nor do those that take no answers.
    let args = Words::new().opaque(&root).u64(0).u32(1 << 20);
    let asks = client::record(9, client::NFS, 3, 6, &ROOT, &args).repeat(500);
    for _ in 0..40 {
        let mut bad = rig.client().await;
        bad.stream.write_all(&asks).await.expect("sent");
        kept.push(bad);
    }
    good.getattr(&root).await.expect("it is still served");
    let (status, ..) = {
        let file = good.create(&ROOT, &root, b"file", 1).await.expect("made");
        good.write(&ROOT, &file, 0, &pattern(1 << 20, 1), 2).await
    };
    assert_eq!(status, 0);
    let longer = good
        .call(client::NFS, 3, 0, &ROOT, Words::new().opaque(&[0; 1000]))
        .await;
    assert_eq!(longer.left(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_may_come_in_fragments() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let data = pattern(200_000, 5);
    let args = Words::new()
        .opaque(&file)
        .u64(0)
        .u32(200_000)
        .u32(2)
        .opaque(&data);
    let whole = client::record(77, client::NFS, 3, 7, &ROOT, &args);
    let parts: Vec<&[u8]> = whole[4..].chunks(40_000).collect();
    for (index, part) in parts.iter().enumerate() {
        let last = if index + 1 == parts.len() { 1 << 31 } else { 0 };
        let mark = part.len() as u32 | last;
        client
            .stream
            .write_all(&mark.to_be_bytes())
            .await
            .expect("sent");
        client.stream.write_all(part).await.expect("sent");
    }
    assert_eq!(client.reply().await.0, 77);
    let (found, _) = client.read(&ROOT, &file, 0, 1 << 20).await.expect("read");
    assert!(found == data);
}
