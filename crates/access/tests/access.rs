//! Goal: whoever uses a dataset shares the one that is open, whatever others do at that moment;
//! having one alone names who stands in the way; a rollback takes along who uses it.
//! Method: a pool on an image file, its registry, and many tasks; images copied while in use for
//! what a crash leaves; a subscriber that counts how often a log is replayed.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use access::{
    Access, AccessError, ControlDirectory, ControlEntry, ControlNode, Exclusion, Lease, Snapdir,
    User,
};
use bytes::Bytes;
use dataset::{DirtyEstimate, PropertyChange};
use device::World;
use device::sim::SimWorld;
use filesystem::{Caller, Filesystem, FsError, ZplInit};
use format::{LogBody, NvValue, ObjectId};
use futures::future::join_all;
use parking_lot::Mutex;
use pool::{
    CreateSpec, EventSink, FeatureChoice, HostIdentity, ImportSpec, LeafSpec, Pool, PoolEvent,
    ScanSpec, VdevClass, VdevLayout, VdevSpec,
};
use volume::{Volume, ZvolInit};
use zil::LogRecord;

mod rollbacks;

const VOLUME_BYTES: u64 = 4 << 20;

struct Rig {
    world: World,
    pool: Arc<Pool>,
    access: Arc<Access>,
    // Dropped last.
    dir: tempfile::TempDir,
}

fn host() -> HostIdentity {
    HostIdentity {
        hostid: 0,
        hostname: "test".into(),
    }
}

fn mount() -> User {
    let path = "/mnt".into();
    User::Mount { path }
}

fn target() -> User {
    let iqn = "iqn.2026-01.test:vol".into();
    User::Target { iqn }
}

fn file() -> User {
    let path = "/state/zvol/tank/vol".into();
    User::VolumeFile { path }
}

fn command(name: &'static str) -> User {
    User::Command { name }
}

impl Rig {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World::system(2);
        let path = dir.path().join("d0.img");
        let image = std::fs::File::create(&path).expect("image");
        image.set_len(256 << 20).expect("size");
        let path = path.to_str().expect("UTF-8").to_owned();
        let pool = create(&world, path).await;
        Self::of(dir, world, pool)
    }

    fn of(dir: tempfile::TempDir, world: World, pool: Arc<Pool>) -> Self {
        let access = Arc::new(Access::new(Arc::clone(pool.dsl()), world.clone()));
        Self {
            world,
            pool,
            access,
            dir,
        }
    }

    /// The pool as a crash at this moment leaves it.
    async fn crashed(&self) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let to = dir.path().join("d0.img");
        std::fs::copy(self.dir.path().join("d0.img"), to).expect("copy");
        let pool = import(&self.world, dir.path()).await;
        Self::of(dir, self.world.clone(), pool)
    }

    async fn make_volume(&self) {
        let size = VOLUME_BYTES.to_string();
        let properties = [
            ("volsize".to_owned(), size),
            ("volblocksize".to_owned(), "8192".to_owned()),
        ];
        let init = Arc::new(ZvolInit::new(VOLUME_BYTES, 8192));
        let made = self.pool.dsl();
        let made = made.datasets().create("tank/vol", &properties, init).await;
        made.expect("create a volume");
    }

    async fn snapshot(&self, name: &str) {
        let made = self
            .pool
            .dsl()
            .snapshots()
            .take(&[name.to_owned()], &[])
            .await;
        made.expect("snapshot");
    }

    /// What rolls a dataset back.
    fn rollback(&self, name: &str, to: &str) -> impl Future<Output = ()> + Send + use<> {
        let (dsl, name, to) = (
            Arc::clone(self.pool.dsl()),
            name.to_owned(),
            format!("{name}@{to}"),
        );
        async move {
            dsl.snapshots()
                .rollback(&name, Some(&to))
                .await
                .expect("rollback");
        }
    }

    async fn filesystem(&self, user: User) -> Lease<Filesystem> {
        let lease = self.access.filesystem("tank", user).await;
        lease.expect("a lease")
    }

    async fn volume(&self, user: User) -> Lease<Volume> {
        let lease = self.access.volume("tank/vol", user).await;
        lease.expect("a lease")
    }
}

async fn create(world: &World, path: String) -> Arc<Pool> {
    // A simulated disk has a name only.
    let is_file = path.starts_with('/');
    let spec = CreateSpec {
        name: "tank".into(),
        vdevs: vec![VdevSpec {
            layout: VdevLayout::Leaf(LeafSpec { path, is_file }),
            class: VdevClass::Normal,
        }],
        properties: Vec::new(),
        features: FeatureChoice::All,
        root_properties: Vec::new(),
        root_init: Arc::new(ZplInit::new()),
        altroot: None,
        force: false,
        host: host(),
        events: None,
        cache: None,
    };
    Pool::create(world, spec).await.expect("create")
}

async fn import(world: &World, dir: &Path) -> Arc<Pool> {
    import_told(world, dir, None).await
}

async fn import_told(world: &World, dir: &Path, told: Option<Arc<Told>>) -> Arc<Pool> {
    let spec = ScanSpec {
        paths: vec![dir.to_str().expect("UTF-8").into()],
        ..ScanSpec::default()
    };
    let mut found = pool::scan(world, &spec).await.expect("scan");
    let mut spec = ImportSpec::new(found.remove(0), host());
    spec.force = true;
    spec.events = told.map(|told| told as Arc<dyn EventSink>);
    Pool::import(world, spec).await.expect("import")
}

fn caller() -> Caller {
    Caller {
        uid: 0,
        gid: 0,
        umask: 0,
        task: 0,
        groups: None,
    }
}

async fn write(filesystem: &Filesystem, name: &str, content: &'static [u8], sync: bool) {
    let root = filesystem.root();
    let ino = match filesystem.lookup(root, name.as_bytes()).await {
        Ok(found) => found.ino,
        Err(_) => {
            let made = filesystem
                .create(root, name.as_bytes(), 0o644, caller())
                .await;
            made.expect("create").ino
        }
    };
    let content = Bytes::from_static(content);
    let written = filesystem.write(ino, 0, content, sync, caller()).await;
    written.expect("write");
}

async fn read(filesystem: &Filesystem, name: &str) -> Vec<u8> {
    let found = filesystem.lookup(filesystem.root(), name.as_bytes()).await;
    let found = found.expect("it is there");
    let pieces = filesystem.read(found.ino, 0, 100).await.expect("read");
    pieces.concat()
}

/// Counts logs that are replayed.
struct Replays(Arc<AtomicUsize>);

impl tracing::field::Visit for Replays {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" && format!("{value:?}") == "replayed the intent log" {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl tracing::Subscriber for Replays {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Replays(Arc::clone(&self.0)));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Many at once get one filesystem, whose log is replayed once; who only looks leaves the log.
#[tokio::test]
async fn users_that_come_at_once_share_one_and_its_log_is_replayed_once() {
    let rig = Rig::new().await;
    let lease = rig.filesystem(mount()).await;
    // The first that is synchronous makes the log, which takes a transaction group.
    write(&lease.get(), "file", b"on disk", true).await;
    rig.pool.sync().await.expect("sync");
    write(&lease.get(), "file", b"in log!", true).await;

    let crashed = rig.crashed().await;
    let replays = Arc::new(AtomicUsize::new(0));
    let _counts = tracing::subscriber::set_default(Replays(Arc::clone(&replays)));
    let look = crashed.access.look("tank", command("status")).await;
    let look = look.expect("a look");
    assert_eq!(read(&look.get(), "file").await, b"on disk");
    let count = || replays.load(Ordering::Relaxed);
    assert_eq!(count(), 0, "who looks leaves the log alone");

    let opening = (0..8).map(|number| match number % 2 {
        0 => crashed.filesystem(mount()),
        _ => crashed.filesystem(command("userspace")),
    });
    let closing = async {
        tokio::task::yield_now().await;
        look.close().await.expect("close");
    };
    let (leases, ()) = tokio::join!(join_all(opening), closing);
    assert_eq!(count(), 1);
    let first = leases[0].get();
    assert!(leases.iter().all(|one| Arc::ptr_eq(&one.get(), &first)));
    assert_eq!(read(&first, "file").await, b"in log!");
    // One who looks now is content with what is served.
    let look = crashed.access.look("tank", command("status")).await;
    assert!(Arc::ptr_eq(&look.expect("a look").get(), &first));

    let (last, others) = leases.split_first().expect("eight");
    for lease in others {
        lease.close().await.expect("give back");
        assert!(!first.is_closed());
    }
    last.close().await.expect("close");
    assert!(first.is_closed());
    assert_eq!(count(), 1);
}

/// Leases come and go, also those that nobody waits for any more: what is open is always one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_that_races_opening_never_gives_two() {
    let rig = Arc::new(Rig::new().await);
    let seen: Arc<Mutex<Vec<Weak<Filesystem>>>> = Arc::default();
    let users = (0..6u64).map(|user| {
        let (rig, seen) = (Arc::clone(&rig), Arc::clone(&seen));
        tokio::spawn(async move {
            for round in 0..60u64 {
                let opening = rig.access.filesystem("tank", command("test"));
                let patience = Duration::from_micros((user * 7 + round * 13) % 40 * 25);
                let lease = match (user + round) % 3 {
                    // Gives up waiting, maybe.
                    0 => tokio::time::timeout(patience, opening).await.ok(),
                    _ => Some(opening.await),
                };
                let Some(lease) = lease else { continue };
                let lease = lease.expect("a lease");
                let here = lease.get();
                assert!(!here.is_closed());
                {
                    let mut seen = seen.lock();
                    let others = seen.iter().filter_map(Weak::upgrade);
                    let open = others.filter(|other| !other.is_closed());
                    for other in open {
                        assert!(Arc::ptr_eq(&other, &here), "two are open");
                    }
                    seen.push(Arc::downgrade(&here));
                }
                write(&here, &format!("file{user}"), b"x", round % 8 == 0).await;
                match round % 4 {
                    0 => lease.close().await.expect("close"),
                    1 => {
                        let _ = tokio::time::timeout(patience, lease.close()).await;
                    }
                    _ => drop(lease),
                }
            }
        })
    });
    for user in join_all(users).await {
        user.expect("no panic");
    }
    // Nothing holds the dataset once all are gone.
    let names = ["tank".to_owned()];
    let exclusive = rig.access.exclusive(&names, Exclusion::Refused).await;
    drop(exclusive.expect("nobody uses it"));
    let seen = seen.lock();
    let mut left = seen.iter().filter_map(Weak::upgrade);
    assert!(left.all(|filesystem| filesystem.is_closed()));
}

/// What is used for long is named; what is used for a moment is waited for; force cuts off.
#[tokio::test]
async fn having_it_alone_names_who_stands_in_the_way() {
    let rig = Rig::new().await;
    let names = ["tank".to_owned()];
    let lease = rig.filesystem(mount()).await;
    let brief = rig.filesystem(command("userspace")).await;
    let refused = rig.access.exclusive(&names, Exclusion::Refused).await;
    let error = refused.err().expect("refused");
    let AccessError::InUse { name, users } = &error else {
        panic!("{error}");
    };
    assert_eq!(name, "tank");
    assert_eq!(users, &[mount(), command("userspace")]);
    assert_eq!(rig.access.users("tank").await.unwrap(), *users);

    drop(lease);
    let mut waiting = Box::pin(rig.access.exclusive(&names, Exclusion::Refused));
    let patience = Duration::from_millis(50);
    let waits = tokio::time::timeout(patience, &mut waiting).await.is_err();
    assert!(waits, "somebody is there for a moment");
    drop(brief);
    let exclusive = waiting.await.expect("nobody is left");
    let mut opening = Box::pin(rig.access.filesystem("tank", mount()));
    let waits = tokio::time::timeout(patience, &mut opening).await.is_err();
    assert!(waits, "somebody has it alone");
    drop(exclusive);
    let lease = opening.await.expect("a lease");

    let before = lease.get();
    let exclusive = rig.access.exclusive(&names, Exclusion::Forced).await;
    let exclusive = exclusive.expect("by force");
    assert!(before.is_closed() && !lease.is_good());
    drop(exclusive);
    let next = rig.filesystem(mount()).await;
    assert!(!Arc::ptr_eq(&next.get(), &before));
    // One that was cut off neither sees what came after nor closes it.
    assert!(Arc::ptr_eq(&lease.get(), &before));
    lease.close().await.expect("nothing happens");
    drop(lease);
    assert!(!next.get().is_closed());
}

/// Whoever needs two datasets for a moment has both or none, so that a rollback that takes a
/// snapshot along comes to its end, as does having both alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_keeps_one_dataset_while_he_waits_for_another() {
    let rig = Rig::new().await;
    rig.snapshot("tank@older").await;
    rig.snapshot("tank@newer").await;
    let stop = Arc::new(AtomicUsize::new(0));
    let restores = {
        let (access, stop) = (Arc::clone(&rig.access), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut times = 0;
            while stop.load(Ordering::Relaxed) == 0 {
                let both = access.filesystems(["tank@newer", "tank"], command("restore"));
                let [newer, live] = both.await.expect("both");
                assert!(newer.is_good() && live.is_good());
                times += 1;
            }
            times
        })
    };
    for _ in 0..20 {
        let access = Arc::clone(&rig.access);
        let work = async move {
            let names = ["tank@newer".to_owned()];
            access.exclusive(&names, Exclusion::Refused).await.map(drop)
        };
        let done = rig.access.exchange("tank", work).await.expect("exchanged");
        done.expect("the snapshot alone");
        let names = ["tank@newer".to_owned(), "tank".to_owned()];
        let alone = rig.access.exclusive(&names, Exclusion::Refused).await;
        drop(alone.expect("both alone"));
    }
    stop.store(1, Ordering::Relaxed);
    assert!(restores.await.expect("it does not fail") > 0);

    // One after the other is found where it is done, not when somebody hangs.
    let access = Arc::clone(&rig.access);
    let in_a_row = tokio::spawn(async move {
        let older = access.filesystem("tank@older", command("diff")).await;
        let newer = access.filesystem("tank@newer", command("diff")).await;
        drop((older, newer));
    });
    assert!(in_a_row.await.is_err(), "docs/locks.md forbids it");
}

/// Who was to be done in a moment and is not is named in the end. In simulated time.
#[tokio::test(start_paused = true)]
async fn a_command_that_hangs_is_named() {
    let sim = SimWorld::new(1);
    sim.add_disk("d0", 256 << 20);
    let pool = create(&sim.world(), "d0".into()).await;
    let access = Arc::new(Access::new(Arc::clone(pool.dsl()), sim.world()));
    let lease = access.filesystem("tank", command("diff")).await;
    let lease = lease.expect("a lease");
    let names = ["tank".to_owned()];
    let alone = access.exclusive(&names, Exclusion::Refused).await.err();
    let exchanged = access.exchange("tank", std::future::ready(())).await.err();
    for refused in [alone, exchanged] {
        let Some(AccessError::InUse { name, users }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(
            (name.as_str(), &users[..]),
            ("tank", &[command("diff")][..])
        );
    }
    assert!(lease.is_good());
    drop(lease);
    let alone = access.exclusive(&names, Exclusion::Refused).await;
    drop(alone.expect("nobody is left"));
}

/// A pool is left when nobody uses it, or by force; meanwhile nobody gets in.
#[tokio::test]
async fn leaving_a_pool_lets_nobody_in() {
    let rig = Rig::new().await;
    rig.make_volume().await;
    let volume = rig.volume(target()).await;
    let error = rig.access.leave(Exclusion::Refused).await.err();
    let users = match error {
        Some(AccessError::InUse { users, .. }) => users,
        other => panic!("{other:?}"),
    };
    assert_eq!(users, [target()]);
    volume.flush().await.expect("it is as it was");
    let leaving = rig.access.leave(Exclusion::Forced).await.expect("by force");
    let closed = volume.flush().await.err();
    assert!(
        matches!(closed, Some(volume::VolumeError::Closed { .. })),
        "{closed:?}"
    );
    let refused = rig.access.filesystem("tank", mount()).await.err();
    assert!(
        matches!(refused, Some(AccessError::Leaving { .. })),
        "{refused:?}"
    );
    drop(leaving);
    rig.filesystem(mount()).await;
    let leaving = rig.access.leave(Exclusion::Refused).await;
    let _leaving = leaving.expect("all is closed, or about to be");
    rig.pool.export(false).await.expect("export");
}

/// What is of the other kind is refused, and stays closed.
#[tokio::test]
async fn kinds_are_told_apart() {
    let rig = Rig::new().await;
    rig.make_volume().await;
    let refused = rig.access.volume("tank", target()).await.err();
    assert!(
        matches!(refused, Some(AccessError::WrongKind { wanted, .. }) if wanted == "volume"),
        "{refused:?}"
    );
    let refused = rig.access.filesystem("tank/vol", mount()).await.err();
    assert!(
        matches!(refused, Some(AccessError::WrongKind { .. })),
        "{refused:?}"
    );
    let missing = rig.access.filesystem("tank/none", mount()).await.err();
    assert!(
        matches!(missing, Some(AccessError::Dataset(_))),
        "{missing:?}"
    );
    assert!(rig.access.users("tank/vol").await.unwrap().is_empty());
}

fn below(path: &str) -> User {
    let path = path.into();
    User::SnapshotDirectory { path }
}

/// `.zfs` opens snapshots when they are looked up, shares them with others, and tells one from
/// another that got its name.
#[tokio::test]
async fn snapshots_are_opened_on_demand() {
    let rig = Rig::new().await;
    let lease = rig.filesystem(mount()).await;
    write(&lease.get(), "file", b"old", false).await;
    rig.snapshot("tank@one").await;
    write(&lease.get(), "file", b"new", false).await;
    let access = &rig.access;
    let directory = |path| access.control_directory(lease.object(), below(path), Snapdir::Hidden);
    let (control, other) = (directory("/a"), directory("/b"));

    let names = |entries: Vec<(String, ControlEntry)>| -> Vec<String> {
        entries.into_iter().map(|(name, _)| name).collect()
    };
    let entries = control.entries(ControlNode::Zfs).await.expect("entries");
    assert_eq!(names(entries), ["shares", "snapshot"]);
    let entries = control.entries(ControlNode::Snapshots).await;
    assert_eq!(names(entries.expect("entries")), ["one"]);
    assert_eq!(control.attributes(ControlNode::Snapshots).await.links, 3);
    let users = async || access.users("tank@one").await.expect("it is there");
    assert!(users().await.is_empty(), "who lists opens none");

    let look_up = async |control: &ControlDirectory, name: &[u8]| {
        let found = control.lookup(ControlNode::Snapshots, name).await?;
        match found {
            ControlEntry::Snapshot(snapshot) => Ok::<_, FsError>(snapshot),
            ControlEntry::Node(node) => panic!("{node:?}"),
        }
    };
    let one = look_up(&control, b"one").await.expect("it is there");
    let elsewhere = look_up(&other, b"one").await.expect("it is there");
    assert_eq!(users().await, [below("/a"), below("/b")]);
    let opened = control.open(&one).await.expect("open");
    let same = other.open(&elsewhere).await.expect("open");
    assert!(Arc::ptr_eq(&opened, &same));
    assert!(Arc::ptr_eq(&opened, &control.try_open(&one).expect("open")));
    assert_eq!(read(&opened, "file").await, b"old");
    for missing in [&b"two"[..], b"\xff"] {
        let found = look_up(&control, missing).await.err();
        assert!(matches!(found, Some(FsError::NotFound { .. })), "{found:?}");
    }

    let snapshot = ["tank@one".to_owned()];
    let refused = access.exclusive(&snapshot, Exclusion::Refused).await.err();
    match refused {
        Some(AccessError::InUse { users, .. }) => assert_eq!(users, [below("/a"), below("/b")]),
        other => panic!("{other:?}"),
    }
    let closed = async |control: &ControlDirectory, dataset| -> Vec<String> {
        let closed = control.close(dataset).await.into_iter();
        closed.map(|place| place.name().to_owned()).collect()
    };
    assert_eq!(closed(&control, None).await, ["one"]);
    assert_eq!(closed(&other, Some("one")).await, ["one"]);
    assert!(opened.is_closed() && control.try_open(&one).is_none());
    // What is used again is opened again, as long as it is the same.
    control.open(&one).await.expect("open");
    control.close(None).await;
    let alone = access.exclusive(&snapshot, Exclusion::Refused).await;
    let destroyed = rig
        .pool
        .dsl()
        .destroyer()
        .destroy_snapshots(&snapshot, false)
        .await;
    destroyed.expect("destroy");
    drop(alone.expect("nobody has it open"));
    rig.snapshot("tank@one").await;
    let stale = control.open(&one).await.err();
    assert!(matches!(stale, Some(FsError::Stale { .. })), "{stale:?}");
    let next = look_up(&control, b"one").await.expect("another");
    assert!(!Arc::ptr_eq(&next, &one));
    let opened = control.open(&next).await.expect("open");
    assert_eq!(read(&opened, "file").await, b"new");
}

/// A snapshot is also found by when it was made, in a place of its own that goes with it.
#[tokio::test]
async fn snapshots_are_previous_versions_by_their_time() {
    let rig = Rig::new().await;
    let lease = rig.filesystem(mount()).await;
    write(&lease.get(), "file", b"old", false).await;
    rig.snapshot("tank@one").await;
    write(&lease.get(), "file", b"new", false).await;
    let control = rig
        .access
        .control_directory(lease.object(), below("/a"), Snapdir::Hidden);
    let shadow = control.lookup(ControlNode::Zfs, b"shadow").await;
    assert!(matches!(
        shadow.expect("it is there"),
        ControlEntry::Node(ControlNode::Shadow)
    ));
    let entries = control.entries(ControlNode::Shadow).await.expect("entries");
    let [(name, ControlEntry::Snapshot(listed))] = &entries[..] else {
        panic!("{entries:?}");
    };
    assert!(name.starts_with("@GMT-") && name.len() == 24, "{name}");
    let found = control.lookup(ControlNode::Shadow, name.as_bytes()).await;
    let Ok(ControlEntry::Snapshot(found)) = found else {
        panic!("{found:?}");
    };
    assert!(Arc::ptr_eq(listed, &found));
    let by_name = control.lookup(ControlNode::Snapshots, b"one").await;
    let Ok(ControlEntry::Snapshot(by_name)) = by_name else {
        panic!("{by_name:?}");
    };
    assert!(!Arc::ptr_eq(&by_name, &found), "each is a place of its own");
    let opened = control.open(&found).await.expect("open");
    assert_eq!(read(&opened, "file").await, b"old");
    // The one place's names are not the other's.
    for (of, name) in [
        (ControlNode::Snapshots, name.as_str()),
        (ControlNode::Shadow, "one"),
        (ControlNode::Shadow, "@GMT-1999.12.31-23.59.59"),
    ] {
        let found = control.lookup(of, name.as_bytes()).await;
        assert!(matches!(found, Err(FsError::NotFound { .. })), "{found:?}");
    }
    let mut places: Vec<_> = control.places_of("one").into_iter().collect();
    places.sort_by_key(|place| place.directory() == ControlNode::Shadow);
    let directories: Vec<_> = places.iter().map(|place| place.directory()).collect();
    assert_eq!(directories, [ControlNode::Snapshots, ControlNode::Shadow]);
    // Closed by its dataset's name, it is closed everywhere.
    assert_eq!(control.close(Some("one")).await.len(), 2);
    assert!(opened.is_closed());
    let snapshot = ["tank@one".to_owned()];
    let alone = rig.access.exclusive(&snapshot, Exclusion::Refused).await;
    drop(alone.expect("nobody has it"));
}

/// A snapshot that nobody has looked at for a while is closed; what is used stays. In simulated
/// time.
#[tokio::test(start_paused = true)]
async fn idle_snapshots_are_closed() {
    let sim = SimWorld::new(1);
    sim.add_disk("d0", 256 << 20);
    let pool = create(&sim.world(), "d0".into()).await;
    let access = Arc::new(Access::new(Arc::clone(pool.dsl()), sim.world()));
    for name in ["tank@idle", "tank@used"] {
        let made = pool.dsl().snapshots().take(&[name.to_owned()], &[]).await;
        made.expect("snapshot");
    }
    let lease = access.filesystem("tank", mount()).await.expect("a lease");
    let control = access.control_directory(lease.object(), below("/a"), Snapdir::Hidden);
    let mut used = None;
    for name in ["idle", "used"] {
        let found = control.lookup(ControlNode::Snapshots, name.as_bytes());
        if let ControlEntry::Snapshot(found) = found.await.expect("it is there") {
            used = Some(found);
        }
    }
    let used = used.expect("a snapshot");
    for _ in 0..10 {
        sim.world().clock.sleep(Duration::from_secs(20)).await;
        assert!(control.try_open(&used).is_some());
    }
    assert!(access.users("tank@idle").await.unwrap().is_empty());
    assert_eq!(access.users("tank@used").await.unwrap(), [below("/a")]);
}

/// Keeps the classes of events.
#[derive(Default)]
struct Told(Mutex<Vec<PoolEvent>>);

impl EventSink for Told {
    fn event(&self, event: PoolEvent) {
        self.0.lock().push(event);
    }
}

/// Logs are replayed without a mount, whatever `readonly` says, filesystems' and volumes'.
#[tokio::test]
async fn logs_are_replayed_though_nobody_opens_their_datasets() {
    let rig = Rig::new().await;
    rig.make_volume().await;
    let (lease, volume) = (rig.filesystem(mount()).await, rig.volume(file()).await);
    for (content, blocks) in [(&b"on disk"[..], 1), (&b"in log!"[..], 2)] {
        write(&lease.get(), "file", content, true).await;
        let data = Bytes::from(vec![blocks; 8192]);
        volume.get().write(0, data, true).await.expect("write");
        if blocks == 1 {
            rig.pool.sync().await.expect("sync");
        }
    }
    let crashed = rig.crashed().await;
    let logs = || crashed.pool.dsl().logs();
    let waiting = logs().waiting(None).await.expect("a list");
    assert_eq!(waiting, ["tank", "tank/vol"]);
    let below = logs().waiting(Some("tank/vol")).await.expect("a list");
    assert_eq!(below, ["tank/vol"]);
    let change = PropertyChange::Set("on".to_owned());
    let change = [("readonly".to_owned(), change)];
    let set = crashed.pool.dsl().properties().set("tank", &change).await;
    set.expect("set");
    let failed = crashed.access.replay_waiting(None).await.expect("replayed");
    assert!(failed.is_empty(), "{failed:?}");
    assert!(logs().waiting(None).await.expect("a list").is_empty());
    crashed.snapshot("tank@now").await;
    let look = crashed.access.look("tank@now", command("test")).await;
    let look = look.expect("a look");
    assert_eq!(read(&look.get(), "file").await, b"in log!");
    let volume = crashed.volume(file()).await;
    let found = volume.get().read(0, 8192).await.expect("read").concat();
    assert_eq!(found, vec![2; 8192]);
}

/// A record that cannot be replayed is told, and the log kept, until somebody says to go on without
/// it; then all others are replayed.
#[tokio::test]
async fn a_log_that_cannot_be_replayed_is_told_of_and_kept_until_it_is_given_up() {
    const MISSING: u64 = 9999;
    let rig = Rig::new().await;
    let lease = rig.filesystem(mount()).await;
    write(&lease.get(), "file", b"on disk", true).await;
    rig.pool.sync().await.expect("sync");
    {
        let dataset = lease.get().dataset().expect("open");
        // A link in a directory that is not there.
        let body = LogBody::Link {
            directory: ObjectId::new(MISSING),
            object: ObjectId::new(5000),
            name: b"lost",
        };
        let record = LogRecord::named(ObjectId::new(5000), &body);
        let tx = dataset.assign(DirtyEstimate::metadata()).await;
        dataset
            .log()
            .expect("a log")
            .record(&tx.expect("a tx"), record);
    }
    write(&lease.get(), "file", b"in log!", true).await;

    let dir = tempfile::tempdir().expect("a directory");
    let to = dir.path().join("d0.img");
    std::fs::copy(rig.dir.path().join("d0.img"), to).expect("copy");
    let told = Arc::new(Told::default());
    let pool = import_told(&rig.world, dir.path(), Some(Arc::clone(&told))).await;
    let crashed = Rig::of(dir, rig.world.clone(), pool);
    for _ in 0..2 {
        let failed = crashed.access.replay_waiting(None).await.expect("a list");
        let [(name, error)] = &failed[..] else {
            panic!("{failed:?}");
        };
        assert_eq!(name, "tank");
        let told = error.to_string();
        assert!(told.contains("'zfs mount --discard-log tank'"), "{told}");
        let opened = crashed.access.filesystem("tank", mount()).await;
        assert!(opened.is_err(), "it is open");
    }
    let events = told.0.lock().clone();
    let of_log = |event: &&PoolEvent| event.class == "ereport.fs.zfs.log_replay";
    let event = events.iter().find(of_log).expect("an event");
    let dataset = event.pairs.get("dataset");
    assert_eq!(dataset, Some(&NvValue::String("tank".to_owned())));

    crashed.access.discard_log("tank").await.expect("given up");
    let lease = crashed.filesystem(mount()).await;
    assert_eq!(read(&lease.get(), "file").await, b"in log!");
    write(&lease.get(), "file", b"goes on", true).await;
}
