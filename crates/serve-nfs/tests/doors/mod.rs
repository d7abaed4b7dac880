//! Goal: what a user of the host cannot do to a filesystem, since the kernel refuses it before the
//! filesystem is asked, a client of NFS cannot do either.

use std::fs;
use std::path::{Path, PathBuf};

use access::{Exclusion, Snapdir, User};
use rustix::mount::{MountFlags, UnmountFlags};
use serve_fuse::{Mount, MountOptions, UnmountMode};

use crate::client::v4::*;
use crate::client::{Client, NLM, ROOT, Words, user};
use crate::cross::outside;
use crate::rig::Rig;
use crate::{ACCES, NOENT, OPEN as OPEN_TO_ALL, PERM, STALE};

const FILE_OPEN: u32 = 10046;

/// A client from a port that root alone can use.
async fn from_root_port(rig: &Rig) -> Client {
    let mut client = rig.client().await;
    for port in (600..1024).rev() {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        let own = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        if socket.bind(own).is_ok()
            && let Ok(stream) = socket.connect(rig.server.local_address()).await
        {
            client.stream = stream;
            return client;
        }
    }
    panic!("no port of root's is free");
}

/// RENAME's status.
async fn rename(client: &mut Client, from: (&[u8], &[u8]), to: (&[u8], &[u8])) -> u32 {
    let args = Words::new().opaque(from.0).opaque(from.1);
    let args = args.opaque(to.0).opaque(to.1);
    client.nfs(14, &ROOT, args).await.take32()
}

/// The same by version 4.
async fn rename4(session: &mut Session, from: (&[u8], &[u8]), to: (&[u8], &[u8])) -> u32 {
    let names = Words::new().opaque(from.1).opaque(to.1);
    let ops = Ops::new().put(from.0).plain(SAVEFH).put(to.0);
    session.run(ops.add(RENAME, names)).await.0
}

fn mount_on(place: PathBuf, of: Option<PathBuf>) {
    let mounted = match of {
        Some(of) => rustix::mount::mount_bind(of, place),
        None => rustix::mount::mount("none", place, "tmpfs", MountFlags::empty(), None),
    };
    mounted.expect("mounted");
}

fn unmount(place: &Path) {
    rustix::mount::unmount(place, UnmountFlags::empty()).expect("unmounted");
}

/// A directory's handle and a name in it.
type Entry<'a> = (&'a [u8], &'a [u8]);

/// Method: something of the host is mounted at a directory and at a file of a mounted filesystem.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn names_that_something_is_mounted_at_stay() {
    let fuse = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    let is_root = rustix::process::geteuid().is_root();
    if !oracles::need("root with /dev/fuse", is_root && fuse.is_ok()) {
        return;
    }
    let rig = Rig::new(OPEN_TO_ALL).await;
    let root = rig.dir.path().join("mnt");
    let lease = rig
        .access
        .filesystem("tank", User::Mount { path: root.clone() });
    let lease = lease.await.expect("a lease");
    let mount = Mount::new(&rig.access, lease, &root, MountOptions::new("tank"));
    let mount = mount.await.expect("mounted");
    let (mut third, top) = rig.mounted().await;
    let mut fourth = Session::begin(rig.server.local_address(), b"doors", &ROOT).await;
    let above = third.mkdir(&ROOT, &top, b"above", 0o755).await;
    let above = above.expect("made");
    for (directory, name) in [(&above, "point"), (&top, "free"), (&above, "beside")] {
        let made = third.mkdir(&ROOT, directory, name.as_bytes(), 0o755).await;
        made.expect("made");
    }
    for name in ["file", "other"] {
        let made = third.create(&ROOT, &top, name.as_bytes(), 1).await;
        made.expect("made");
    }
    // Nothing is inside, which is remembered until something is.
    assert_eq!(
        rename(&mut third, (&top, b"free"), (&top, b"empty")).await,
        0
    );
    let place = root.clone();
    outside(move || {
        mount_on(place.join("above/point"), None);
        mount_on(place.join("file"), Some(place.join("other")));
        // A directory above moves, and the mount with it.
        fs::rename(place.join("above"), place.join("way")).expect("rename");
    })
    .await;
    for _ in 0..2 {
        assert_eq!(third.remove(&ROOT, &above, b"point", 13).await, ACCES);
        assert_eq!(third.remove(&ROOT, &top, b"file", 12).await, ACCES);
        let refused: [(Entry<'_>, Entry<'_>); 5] = [
            ((&above, b"point"), (&top, b"stolen")),
            ((&above, b"point"), (&above, b"stolen")),
            ((&top, b"empty"), (&above, b"point")),
            ((&top, b"way"), (&top, b"stolen")),
            ((&top, b"other"), (&top, b"file")),
        ];
        for (from, to) in refused {
            let what = String::from_utf8_lossy(from.1);
            assert_eq!(rename(&mut third, from, to).await, ACCES, "{what}");
            assert_eq!(rename4(&mut fourth, from, to).await, FILE_OPEN, "{what}");
        }
        for (directory, name) in [(&above, &b"point"[..]), (&top, b"file")] {
            let ops = Ops::new().put(directory).name(REMOVE, name);
            assert_eq!(fourth.run(ops).await.0, FILE_OPEN);
        }
    }
    // Whoever may not take it away hears that first.
    let args = Words::new().opaque(&above).opaque(b"point");
    assert_eq!(third.nfs(13, &user(5), args).await.take32(), ACCES);
    // Others go where they like.
    assert_eq!(
        rename(&mut third, (&above, b"beside"), (&top, b"point")).await,
        0
    );
    assert_eq!(third.remove(&ROOT, &top, b"point", 13).await, 0);
    assert_eq!(third.remove(&ROOT, &top, b"other", 12).await, 0);
    assert_eq!(third.remove(&ROOT, &top, b"none", 12).await, NOENT);
    let place = root.clone();
    outside(move || {
        let inside = place.join("way/point/inside");
        fs::write(inside, "of the host").expect("written");
        unmount(&place.join("way/point"));
        unmount(&place.join("file"));
    })
    .await;
    assert_eq!(third.remove(&ROOT, &top, b"file", 12).await, 0);
    assert_eq!(
        rename(&mut third, (&top, b"way"), (&top, b"above")).await,
        0
    );
    assert_eq!(
        rename(&mut third, (&top, b"empty"), (&above, b"point")).await,
        0
    );
    assert_eq!(third.remove(&ROOT, &above, b"point", 13).await, 0);
    mount.unmount(UnmountMode::Force).await.expect("unmounted");
}

/// Where another share begins, its directory stays by version 3, too, and what leads there.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_lead_to_another_share_stay() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let init = std::sync::Arc::new(filesystem::ZplInit::new());
    let datasets = rig.pool.dsl().datasets();
    datasets
        .create("tank/near", &[], init)
        .await
        .expect("created");
    rig.share("tank/near", "/tank/way/near", OPEN_TO_ALL, 0)
        .await;
    let (mut third, top) = rig.mounted().await;
    let mut fourth = Session::begin(rig.server.local_address(), b"doors", &ROOT).await;
    let way = third.mkdir(&ROOT, &top, b"way", 0o755).await.expect("made");
    third
        .mkdir(&ROOT, &way, b"near", 0o755)
        .await
        .expect("made");
    assert_eq!(third.remove(&ROOT, &way, b"near", 13).await, ACCES);
    let moved = (&way[..], &b"near"[..], &top[..], &b"far"[..]);
    let (from, to) = ((moved.0, moved.1), (moved.2, moved.3));
    assert_eq!(rename(&mut third, from, to).await, ACCES);
    let above: (Entry<'_>, Entry<'_>) = ((&top, b"way"), (&top, b"off"));
    assert_eq!(rename(&mut third, above.0, above.1).await, ACCES);
    assert_eq!(rename4(&mut fourth, above.0, above.1).await, FILE_OPEN);
    rig.shares.remove("tank/near").await;
    assert_eq!(rename(&mut third, from, to).await, 0);
    assert_eq!(rename4(&mut fourth, above.0, above.1).await, 0);
}

/// The handle of a file in a snapshot of the filesystem, found through `.zfs`.
async fn file_in(client: &mut Client, root: &[u8], snapshot: &str) -> Result<Vec<u8>, u32> {
    let mut at = root.to_vec();
    for name in [".zfs", "snapshot", snapshot, "file"] {
        at = client.lookup(&ROOT, &at, name.as_bytes()).await?.0;
    }
    Ok(at)
}

/// Where `.zfs` is disabled, handles that were found through it lead nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn without_snapdir_no_handle_leads_into_a_snapshot() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    client.write(&ROOT, &file, 0, b"before", 2).await;
    rig.snapshot("tank@one").await;
    let old = file_in(&mut client, &root, "one").await.expect("found");
    let (zfs, _) = client.lookup(&ROOT, &root, b".zfs").await.expect("found");
    let read = async |client: &mut Client| client.read(&ROOT, &old, 0, 99).await;
    assert_eq!(read(&mut client).await.expect("read").0, b"before");
    let with = async |snapdir| {
        let spec = rig.spec("tank", "/tank", OPEN_TO_ALL).await;
        rig.shares
            .add(serve_nfs::ShareSpec { snapdir, ..spec }, 0)
            .await
            .expect("shared");
    };
    with(Snapdir::Disabled).await;
    assert_eq!(read(&mut client).await, Err(STALE));
    assert_eq!(client.getattr(&zfs).await, Err(STALE));
    assert_eq!(file_in(&mut client, &root, "one").await, Err(NOENT));
    // Nobody has the snapshot any more.
    let names = ["tank@one".to_owned()];
    drop(
        rig.access
            .exclusive(&names, Exclusion::Refused)
            .await
            .expect("nobody"),
    );
    with(Snapdir::Hidden).await;
    assert_eq!(read(&mut client).await.expect("read").0, b"before");
}

/// `zfs rollback -r`: that a client looked into a newer snapshot does not keep it.
#[tokio::test(flavor = "multi_thread")]
async fn snapshots_that_clients_looked_into_go_with_a_rollback() {
    let rig = Rig::new(OPEN_TO_ALL).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    client.write(&ROOT, &file, 0, b"before", 2).await;
    rig.snapshot("tank@one").await;
    client.write(&ROOT, &file, 0, b"after!", 2).await;
    rig.snapshot("tank@two").await;
    let newer = file_in(&mut client, &root, "two").await.expect("found");
    let (dsl, access) = (rig.pool.dsl().clone(), rig.access.clone());
    let rollback = async move {
        let names = ["tank@two".to_owned()];
        let _nobody = access.exclusive(&names, Exclusion::Refused).await?;
        dsl.destroyer().destroy_snapshots(&names, false).await?;
        dsl.snapshots().rollback("tank", Some("tank@one")).await?;
        Ok::<(), access::AccessError>(())
    };
    let done = rig.access.exchange("tank", rollback).await;
    done.expect("nobody is in the way").expect("rolled back");
    assert_eq!(client.read(&ROOT, &newer, 0, 99).await, Err(STALE));
    let now = client.read(&ROOT, &file, 0, 99).await.expect("read").0;
    assert_eq!(now, b"before");
}

/// Whatever changes a program's content or owner takes its capabilities away, as through a mount.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_changed_loses_its_capabilities() {
    const ALLOCATE: u32 = 59;
    const DEALLOCATE: u32 = 62;
    const CAPABILITY: &[u8] = b"security.capability";
    let rig = Rig::new(OPEN_TO_ALL).await;
    let (mut client, root) = rig.mounted().await;
    let mut session = Session::begin(rig.server.local_address(), b"doors", &ROOT).await;
    session.minor = 2;
    let lease = rig
        .access
        .filesystem("tank", User::Command { name: "test" });
    let lease = lease.await.expect("a lease");
    let filesystem = lease.get();
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let source = client
        .create(&ROOT, &root, b"source", 1)
        .await
        .expect("made");
    for file in [&file, &source] {
        let written = client.write(&ROOT, file, 0, &[7; 1 << 18], 2).await;
        assert_eq!(written.0, 0);
    }
    rig.pool.sync().await.expect("synced");
    let ino = filesystem
        .lookup(filesystem.root(), b"file")
        .await
        .expect("there")
        .ino;
    let give = async || {
        let xattrs = filesystem.xattrs();
        let (mode, caller) = (filesystem::XattrMode::Any, filesystem::Caller::ROOT);
        let given = xattrs.set(ino, CAPABILITY, &[1; 20], mode, caller);
        given.await.expect("given");
    };
    let has = async || filesystem.xattrs().get(ino, CAPABILITY).await.is_ok();
    let set = |attributes: Words| Words::new().opaque(&file).raw(&attributes.bytes).u32(0);
    let owner = Words::new()
        .u32(0)
        .u32(1)
        .u32(5)
        .u32(0)
        .u32(0)
        .u32(0)
        .u32(0);
    // What leaves them: reading, times, the mode.
    give().await;
    client.read(&ROOT, &file, 0, 9).await.expect("read");
    let mode = client
        .nfs(2, &ROOT, set(Words::new().mode(0o755)))
        .await
        .take32();
    assert_eq!(mode, 0);
    assert!(has().await);
    // What takes them.
    assert_eq!(client.write(&ROOT, &file, 0, b"x", 2).await.0, 0);
    assert!(!has().await, "WRITE");
    for (what, attributes) in [("size", Words::new().size(1 << 18)), ("owner", owner)] {
        give().await;
        assert_eq!(client.nfs(2, &ROOT, set(attributes)).await.take32(), 0);
        assert!(!has().await, "SETATTR of {what}");
    }
    let range = |length: u64| Words::new().raw(&ANONYMOUS).u64(0).u64(length);
    let copied = || Words::new().raw(&ANONYMOUS).raw(&ANONYMOUS).u64(0).u64(0);
    let from = Ops::new().put(&source).plain(SAVEFH).put(&file);
    let copy = copied().u64(4096).u32(1).u32(1).u32(0);
    for (what, ops) in [
        (
            "ALLOCATE",
            Ops::new().put(&file).add(ALLOCATE, range(1 << 19)),
        ),
        (
            "DEALLOCATE",
            Ops::new().put(&file).add(DEALLOCATE, range(4096)),
        ),
        ("COPY", from.clone().add(COPY, copy)),
        ("CLONE", from.add(CLONE, copied().u64(0))),
        ("WRITE", {
            let words = Words::new().raw(&ANONYMOUS).u64(0).u32(2).opaque(b"x");
            Ops::new().put(&file).add(WRITE, words)
        }),
    ] {
        give().await;
        session.ok(ops).await;
        assert!(!has().await, "{what}");
    }
}

/// A program that no share lets in has no client and no session, and hears so.
#[tokio::test(flavor = "multi_thread")]
async fn only_who_is_let_in_somewhere_begins_a_session() {
    const DELAY: u32 = 10008;
    const WRONG_CRED: u32 = 10082;
    // From a port that every user can have, to a share for ports of root alone.
    let rig = Rig::new("rw,no_root_squash").await;
    let mut client = rig.client().await;
    let asks = exchange(b"anybody", 1);
    assert_eq!(compound(&mut client, &ROOT, 1, &asks).await.0, PERM);
    rig.share("tank", "/tank", "rw=10.9.9.9,insecure", 0).await;
    assert_eq!(compound(&mut client, &ROOT, 1, &asks).await.0, PERM);
    rig.share("tank", "/tank", OPEN_TO_ALL, 0).await;
    let (status, mut reply) = compound(&mut client, &ROOT, 1, &asks).await;
    assert_eq!(status, 0);
    reply.well(&[EXCHANGE_ID]);
    let create = create_session(reply.take64(), reply.take32());
    rig.share("tank", "/tank", "rw,no_root_squash", 0).await;
    let status = compound(&mut client, &ROOT, 1, &create).await.0;
    assert_eq!(status, WRONG_CRED);
    // One that lets it in may yet come.
    rig.shares.expect_by(|| true);
    assert_eq!(compound(&mut client, &ROOT, 1, &create).await.0, DELAY);
    rig.share("tank", "/tank", OPEN_TO_ALL, 0).await;
    assert_eq!(compound(&mut client, &ROOT, 1, &create).await.0, 0);
}

/// What root's port locked only root's port ends: not another program of its host, by whatever
/// procedure.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_root_are_not_freed_by_other_programs_of_its_host() {
    let is_root = rustix::process::geteuid().is_root();
    if !oracles::need("root", is_root) {
        return;
    }
    let rig = Rig::new("rw,no_root_squash").await;
    let mut root = from_root_port(&rig).await;
    let top = root.mount("/tank").await.expect("mounted");
    let file = root.create(&ROOT, &top, b"file", 1).await.expect("made");
    let mut other = rig.client().await;
    let range = |words: Words, process: u32| {
        let words = words.opaque(b"machine").opaque(&file).opaque(b"owner");
        words.u32(process).u64(0).u64(10)
    };
    let lock = |process, waits: u32| {
        let words = Words::new().opaque(b"c").u32(waits).u32(1);
        range(words, process).u32(0).u32(0)
    };
    let unlock = |process| range(Words::new().opaque(b"c"), process);
    let notify = || Words::new().opaque(b"machine").u32(7);
    let status = |mut reply: Words| {
        assert_eq!(reply.take_opaque(), b"c");
        reply.take32()
    };
    assert_eq!(status(root.call(NLM, 4, 2, &ROOT, lock(1, 0)).await), 0);
    // NLM4_FAILED: the share is for ports of root alone.
    assert_eq!(status(other.call(NLM, 4, 2, &ROOT, lock(1, 0)).await), 9);
    let mut waiting = from_root_port(&rig).await;
    let wanted = lock(2, 1);
    let waits = tokio::spawn(async move { waiting.call(NLM, 4, 2, &ROOT, wanted).await });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let cancel = range(Words::new().opaque(b"c").u32(1).u32(1), 2);
    other.call(NLM, 4, 3, &ROOT, cancel).await;
    other.call(NLM, 4, 4, &ROOT, unlock(1)).await;
    other.call(NLM, 4, 4, &ROOT, unlock(2)).await;
    other.call(NLM, 4, 23, &ROOT, notify()).await;
    other.call(100_024, 1, 6, &ROOT, notify()).await;
    assert_eq!(status(root.call(NLM, 4, 2, &ROOT, lock(3, 0)).await), 1);
    assert!(!waits.is_finished());
    assert_eq!(status(root.call(NLM, 4, 4, &ROOT, unlock(1)).await), 0);
    assert_eq!(status(waits.await.expect("an answer")), 0);
    root.call(100_024, 1, 6, &ROOT, notify()).await;
    assert_eq!(status(root.call(NLM, 4, 2, &ROOT, lock(3, 0)).await), 0);
}

/// After a restart clients of version 3 take back what they had locked before anybody gets it.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_version_3_are_taken_back_after_a_restart() {
    const GRACE: u32 = 10013;
    let rig = Rig::new(OPEN_TO_ALL).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let lock = |process: u32, reclaims: u32| {
        let words = Words::new().opaque(b"c").u32(0).u32(1);
        let words = words.opaque(b"machine").opaque(&file).opaque(b"owner");
        words.u32(process).u64(0).u64(10).u32(reclaims).u32(0)
    };
    let status = |mut reply: Words| {
        assert_eq!(reply.take_opaque(), b"c");
        reply.take32()
    };
    assert_eq!(status(client.call(NLM, 4, 2, &ROOT, lock(1, 0)).await), 0);
    let again = rig.crashed().await;
    let (mut client, _) = again.mounted().await;
    let other = status(client.call(NLM, 4, 2, &ROOT, lock(2, 0)).await);
    assert_eq!(other, crate::DENIED_GRACE_PERIOD);
    let mut session = Session::begin(again.server.local_address(), b"doors", &ROOT).await;
    let opened = session
        .open(&root, b"file", (3, 0), Words::new().u32(0))
        .await;
    let (state, _) = opened.expect("open");
    let locked = session
        .lock(&file, &state, b"a", true, (0, 10), false)
        .await;
    assert_eq!(locked.map(drop).map_err(|(status, _)| status), Err(GRACE));
    assert_eq!(status(client.call(NLM, 4, 2, &ROOT, lock(1, 1)).await), 0);
}
