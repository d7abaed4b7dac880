//! Goal: a log that a crash left is replayed before anything else happens to its filesystem,
//! whatever its properties say; nothing that was permitted when it was done is refused when it is
//! done again; what is synced while the filesystem becomes read-only is durable.
//! Method: an image is copied while its pool is open, after a sync of some other file, and
//! imported.

use std::sync::Arc;

use crate::common::*;
use bytes::Bytes;
use dataset::{DirtyEstimate, PropertyChange};
use device::World;
use filesystem::{DOS_FLAGS, Filesystem, FsError, RenameMode, SetAttributes, XattrMode, pflags};
use format::{LogBody, LogKind, ObjectId};
use pool::Pool;
use zil::{LogContent, LogRecord};

const IMMUTABLE: u64 = 0x10_0000_0000;
const APPEND_ONLY: u64 = 0x40_0000_0000;
const INHERITS_PROJECT: u64 = 0x4000_0000_0000;

async fn set(pool: &Pool, property: &str, value: &str) {
    let change = PropertyChange::Set(value.to_owned());
    let change = [(property.to_owned(), change)];
    let set = pool.dsl().properties().set("tank", &change).await;
    set.expect("set");
}

async fn file(fs: &Filesystem, parent: u64, name: &str) -> u64 {
    let made = fs.create(parent, name.as_bytes(), 0o644, ROOT).await;
    made.expect("create").ino
}

async fn directory(fs: &Filesystem, name: &str) -> u64 {
    let made = fs.make_directory(fs.root(), name.as_bytes(), 0o755, ROOT);
    made.await.expect("mkdir").ino
}

async fn write(fs: &Filesystem, ino: u64, text: &'static str, sync: bool) {
    let data = Bytes::from_static(text.as_bytes());
    fs.write(ino, 0, data, sync, ROOT).await.expect("write");
}

async fn text(fs: &Filesystem, ino: u64) -> String {
    let data = fs.read(ino, 0, 1 << 16).await.expect("read").concat();
    String::from_utf8(data).expect("text")
}

async fn flag(fs: &Filesystem, ino: u64, flags: u64) {
    let set = SetAttributes {
        flags: Some(flags),
        ..SetAttributes::default()
    };
    fs.set_attributes(ino, &set, ROOT).await.expect("flags");
}

async fn project(fs: &Filesystem, ino: u64, project: u64, flags: u64) {
    let set = SetAttributes {
        flags: Some(flags),
        project: Some(project),
        ..SetAttributes::default()
    };
    fs.set_attributes(ino, &set, ROOT).await.expect("a project");
}

async fn has(fs: &Filesystem, parent: u64, name: &str) -> bool {
    match fs.lookup(parent, name.as_bytes()).await {
        Ok(_) => true,
        Err(FsError::NotFound { .. }) => false,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// A pool that a crash left, its filesystem open, and what it was before.
struct Crashed {
    pool: Arc<Pool>,
    fs: Arc<Filesystem>,
    image: Image,
    before: (Image, Arc<Pool>, Arc<Filesystem>),
}

impl Crashed {
    async fn leave(self) {
        self.fs.close().await.expect("close");
        drop(self.fs);
        self.pool.export(false).await.expect("export");
        zdb_is_clean(self.image.path(), "tank");
        let (_image, pool, fs) = self.before;
        fs.close().await.expect("close");
        drop(fs);
        pool.export(false).await.expect("export");
    }
}

/// What is there after `change`, a sync of another file and a crash, where `prepare` had been on
/// disk.
async fn after_crash<T>(
    properties: &[(&str, &str)],
    prepare: impl AsyncFn(&Filesystem) -> T,
    change: impl AsyncFn(&Filesystem, &T),
) -> (Crashed, T) {
    let image = Image::new(128);
    let world = World::system(2);
    let pool = create(&world, &image, properties).await;
    let fs = open(&world, &pool, "tank").await;
    let other = file(&fs, fs.root(), "other").await;
    // The first commit makes the log, and waits for its group.
    write(&fs, other, "made", true).await;
    let made = prepare(&fs).await;
    pool.sync().await.expect("sync");
    change(&fs, &made).await;
    write(&fs, other, "synced", true).await;
    let after = cut(&image);
    let pool_after = import_after_cut(&world, after.path()).await;
    let dataset = pool_after.dsl().open_dataset("tank").await.expect("open");
    let log = dataset.log().expect("a log");
    assert!(log.needs_replay(), "a txg came between");
    let opened = Filesystem::open(dataset, world.clone()).await;
    let opened = opened.expect("the log is replayed");
    assert_eq!(text(&opened, other).await, "synced");
    let crashed = Crashed {
        pool: pool_after,
        fs: opened,
        image: after,
        before: (image, pool, fs),
    };
    (crashed, made)
}

/// A pool with a log that waits: "old" is on disk, "new" in the log.
async fn with_waiting_log(world: &World) -> (Image, u64) {
    let image = Image::new(128);
    let pool = create(world, &image, &[]).await;
    let fs = open(world, &pool, "tank").await;
    let ino = file(&fs, fs.root(), "file").await;
    // The first commit makes the log, and waits for its group.
    write(&fs, ino, "old", true).await;
    pool.sync().await.expect("sync");
    write(&fs, ino, "new", true).await;
    let after = cut(&image);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    (after, ino)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_log_has_is_there_though_the_filesystem_is_read_only() {
    let world = World::system(2);
    let (image, ino) = with_waiting_log(&world).await;
    let pool = import_after_cut(&world, image.path()).await;
    set(&pool, "readonly", "on").await;
    let fs = open(&world, &pool, "tank").await;
    assert_eq!(text(&fs, ino).await, "new");
    let refused = fs.create(fs.root(), b"more", 0o644, ROOT).await;
    assert!(matches!(refused, Err(FsError::ReadOnly)), "{refused:?}");
    fs.close().await.expect("close");
    set(&pool, "readonly", "off").await;
    let fs = open(&world, &pool, "tank").await;
    write(&fs, ino, "newer", true).await;
    pool.sync().await.expect("sync");
    fs.close().await.expect("close");
    let fs = open(&world, &pool, "tank").await;
    assert_eq!(text(&fs, ino).await, "newer");
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_changed_while_a_log_waits() {
    let world = World::system(2);
    let (image, ino) = with_waiting_log(&world).await;
    let pool = import_after_cut(&world, image.path()).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let refused = dataset.assign(DirtyEstimate::metadata()).await;
    let error = refused.map(|_| ()).expect_err("a log waits");
    assert!(error.to_string().contains("waits"), "{error}");
    let fs = Filesystem::open(dataset.clone(), world.clone())
        .await
        .expect("open");
    drop(
        dataset
            .assign(DirtyEstimate::metadata())
            .await
            .expect("now"),
    );
    drop(dataset);
    assert_eq!(text(&fs, ino).await, "new");
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_while_the_filesystem_becomes_read_only_is_one() {
    let image = Image::new(128);
    let world = World::system(2);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let ino = file(&fs, fs.root(), "file").await;
    // The property may be set before the first of the writes below.
    write(&fs, ino, "000000000", true).await;
    pool.sync().await.expect("sync");
    let setting = {
        let pool = Arc::clone(&pool);
        tokio::spawn(async move { set(&pool, "readonly", "on").await })
    };
    // Some of it is of the group after that of the property.
    let mut written = 0;
    let refused = loop {
        let data = Bytes::from(format!("{:09}", written + 1));
        match fs.write(ino, 0, data, false, ROOT).await {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, FsError::ReadOnly), "{refused}");
    assert!(fs.is_read_only());
    fs.sync_file(ino).await.expect("sync");
    let after = cut(&image);
    setting.await.expect("set");
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    let pool = import_after_cut(&world, after.path()).await;
    let fs = open(&world, &pool, "tank").await;
    assert_eq!(text(&fs, ino).await, format!("{written:09}"));
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_directories_that_are_free_again_change_as_they_did() {
    let prepare = async |fs: &Filesystem| {
        let root = fs.root();
        let mut inos = Vec::new();
        for name in ["removed", "linked", "moved", "replaced", "a"] {
            inos.push(file(fs, root, name).await);
        }
        let (fixed, log) = (directory(fs, "fixed").await, directory(fs, "log").await);
        file(fs, log, "old").await;
        for ino in &inos[..4] {
            flag(fs, *ino, IMMUTABLE).await;
        }
        flag(fs, fixed, IMMUTABLE).await;
        flag(fs, log, APPEND_ONLY).await;
        (inos, fixed, log)
    };
    let change = async |fs: &Filesystem, (inos, fixed, log): &(Vec<u64>, u64, u64)| {
        let root = fs.root();
        for ino in inos[..4].iter().chain([fixed, log]) {
            flag(fs, *ino, 0).await;
        }
        fs.unlink(root, b"removed").await.expect("unlink");
        fs.link(inos[1], root, b"link").await.expect("link");
        let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
        let moved = fs.rename(root, b"moved", root, b"there", replace).await;
        moved.expect("rename");
        let over = fs.rename(root, b"a", root, b"replaced", replace).await;
        over.expect("rename");
        let swapped = fs.rename(root, b"there", root, b"link", exchange).await;
        swapped.expect("exchange");
        file(fs, *fixed, "new").await;
        fs.unlink(*log, b"old").await.expect("unlink");
    };
    let (crashed, (inos, fixed, log)) = after_crash(&[], prepare, change).await;
    let (fs, root) = (&crashed.fs, crashed.fs.root());
    for gone in ["removed", "moved", "a"] {
        assert!(!has(fs, root, gone).await, "{gone}");
    }
    for (name, ino) in [("link", inos[2]), ("there", inos[1]), ("replaced", inos[4])] {
        let found = fs.lookup(root, name.as_bytes()).await.expect("lookup");
        assert_eq!(found.ino, ino, "{name}");
    }
    assert!(has(fs, fixed, "new").await);
    assert!(!has(fs, log, "old").await);
    crashed.leave().await;
}

/// Attributes of DOS and Linux's flags leave each other alone, also where a log is replayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_dos_survive_a_crash() {
    const WANTED: u64 = pflags::HIDDEN | pflags::OFFLINE | pflags::NODUMP;
    let prepare = async |fs: &Filesystem| file(fs, fs.root(), "file").await;
    let change = async |fs: &Filesystem, ino: &u64| {
        let mut set = SetAttributes {
            flags: Some(WANTED),
            flags_among: Some(DOS_FLAGS),
            ..SetAttributes::default()
        };
        fs.set_attributes(*ino, &set, ROOT).await.expect("flags");
        // What only the filesystem itself sets stays, whatever is asked for.
        (set.flags, set.flags_among) = (Some(0), Some(!DOS_FLAGS));
        let before = fs.attributes(*ino).await.expect("attributes").flags;
        fs.set_attributes(*ino, &set, ROOT).await.expect("flags");
        let after = fs.attributes(*ino).await.expect("attributes").flags;
        assert_eq!(before & !pflags::ARCHIVE, after & !pflags::ARCHIVE);
        // What is read-only is cut by root alone.
        let cut = SetAttributes {
            size_bytes: Some(0),
            ..SetAttributes::default()
        };
        for (flags, may) in [(pflags::READONLY, false), (WANTED, true)] {
            set.flags = Some(flags);
            set.flags_among = Some(pflags::READONLY);
            fs.set_attributes(*ino, &set, ROOT).await.expect("flags");
            fs.set_attributes(*ino, &cut, ROOT).await.expect("cut");
            let tried = fs.set_attributes(*ino, &cut, ALICE).await;
            assert_eq!(tried.is_ok(), may, "{tried:?}");
        }
        // As `chattr -d` says it.
        flag(fs, *ino, 0).await;
        fs.sync_file(*ino).await.expect("sync");
    };
    let (crashed, ino) = after_crash(&[], prepare, change).await;
    let found = crashed.fs.attributes(ino).await.expect("attributes");
    let wanted = WANTED & !pflags::NODUMP | pflags::ARCHIVE;
    assert_eq!(found.flags & DOS_FLAGS, wanted, "{:x}", found.flags);
    crashed.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_come_into_a_directory_that_does_not_pass_its_project_on_any_more() {
    let prepare = async |fs: &Filesystem| {
        let shared = directory(fs, "shared").await;
        project(fs, shared, 7, INHERITS_PROJECT).await;
        let inos = [
            file(fs, fs.root(), "moved").await,
            file(fs, fs.root(), "linked").await,
        ];
        (shared, inos)
    };
    let change = async |fs: &Filesystem, (shared, inos): &(u64, [u64; 2])| {
        project(fs, *shared, 7, 0).await;
        let replace = RenameMode::Replace;
        let moved = fs.rename(fs.root(), b"moved", *shared, b"moved", replace);
        moved.await.expect("rename");
        fs.link(inos[1], *shared, b"linked").await.expect("link");
    };
    let (crashed, (shared, _)) = after_crash(&[], prepare, change).await;
    for name in ["moved", "linked"] {
        assert!(has(&crashed.fs, shared, name).await, "{name}");
    }
    crashed.leave().await;
}

/// Attributes of files that somebody has open, and that have no name any more. Some have a
/// directory of attributes from before.
async fn attributes_without_a_name(properties: &[(&str, &str)]) {
    static BIG: [u8; 40_000] = [7; 40_000];
    let prepare = async |fs: &Filesystem| {
        let mut inos = Vec::new();
        for name in ["bare", "had"] {
            let ino = file(fs, fs.root(), name).await;
            fs.retain(ino, 1);
            inos.push(ino);
        }
        let set = fs
            .xattrs()
            .set(inos[1], b"user.old", b"", XattrMode::Any, ROOT);
        set.await.expect("an attribute");
        inos
    };
    let change = async |fs: &Filesystem, inos: &Vec<u64>| {
        for (ino, name) in inos.iter().zip(["bare", "had"]) {
            fs.unlink(fs.root(), name.as_bytes()).await.expect("unlink");
            for (name, value) in [("user.empty", &BIG[..0]), ("user.big", &BIG[..])] {
                let set = fs
                    .xattrs()
                    .set(*ino, name.as_bytes(), value, XattrMode::Any, ROOT);
                set.await.expect("an attribute");
            }
            let removed = fs.xattrs().remove(*ino, b"user.empty").await;
            removed.expect("remove");
        }
        fs.xattrs()
            .remove(inos[1], b"user.old")
            .await
            .expect("remove");
    };
    let (crashed, _) = after_crash(properties, prepare, change).await;
    assert!(!has(&crashed.fs, crashed.fs.root(), "had").await);
    let held = &crashed.before.2;
    for (ino, _) in held.retained() {
        held.release(ino, 1);
    }
    crashed.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_a_file_without_a_name_are_not_replayed() {
    attributes_without_a_name(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_in_directories_of_a_file_without_a_name_are_not_replayed() {
    attributes_without_a_name(&[("xattr", "dir")]).await;
}

/// Goal: records of attributes whose directory is gone altogether, as older releases logged them,
/// keep nothing from being replayed. Method: a number that no object has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_whose_directory_is_gone_are_not_replayed() {
    const GONE: u64 = 777;
    let change = async |fs: &Filesystem, _: &()| {
        let dataset = fs.dataset().expect("open");
        let tx = dataset.assign(DirtyEstimate::metadata()).await;
        let (tx, log) = (tx.expect("a tx"), dataset.log().expect("a log"));
        let removed = LogBody::Remove {
            directory: ObjectId::new(GONE),
            name: b"user.old",
            is_directory: false,
        };
        log.record(&tx, LogRecord::named(ObjectId::new(GONE), &removed));
    };
    let (crashed, ()) = after_crash(&[], async |_| (), change).await;
    crashed.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_appended_is_appended_once_though_its_record_comes_twice() {
    let prepare = async |fs: &Filesystem| {
        let ino = file(fs, fs.root(), "log").await;
        write(fs, ino, "one ", true).await;
        flag(fs, ino, APPEND_ONLY).await;
        ino
    };
    let change = async |fs: &Filesystem, ino: &u64| {
        let (data, length) = (Bytes::from_static(b"two"), 3);
        let at = fs.append(*ino, data, true, ROOT).await.expect("append");
        let dataset = fs.dataset().expect("open");
        let tx = dataset.assign(DirtyEstimate::metadata()).await;
        let (tx, log) = (tx.expect("a tx"), dataset.log().expect("a log"));
        log.record(&tx, LogRecord::write(ObjectId::new(*ino), true, at, length));
        // As an indirect write of OpenZFS, which begins where its block does.
        log.record(&tx, LogRecord::write(ObjectId::new(*ino), true, 0, 7));
        let object = ObjectId::new(*ino);
        let whole = LogBody::Truncate {
            object,
            offset: 7,
            length: 0,
        };
        log.record(&tx, LogRecord::named(object, &whole));
    };
    let (crashed, ino) = after_crash(&[], prepare, change).await;
    assert_eq!(text(&crashed.fs, ino).await, "one two");
    crashed.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_names_in_the_log_outlive_the_property() {
    let image = Image::new(128);
    let world = World::system(2);
    let pool = create(&world, &image, &[("longname", "on")]).await;
    let fs = open(&world, &pool, "tank").await;
    let (root, short) = (fs.root(), file(&fs, fs.root(), "short").await);
    file(&fs, root, "moved").await;
    fs.sync_file(short).await.expect("sync");
    pool.sync().await.expect("sync");
    let names = ["link", "moved", "made"].map(|name| name.repeat(100));
    fs.link(short, root, names[0].as_bytes())
        .await
        .expect("link");
    let moved = fs.rename(
        root,
        b"moved",
        root,
        names[1].as_bytes(),
        RenameMode::Replace,
    );
    moved.await.expect("rename");
    file(&fs, root, &names[2]).await;
    fs.sync_file(short).await.expect("sync");
    let after = cut(&image);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    let pool = import_after_cut(&world, after.path()).await;
    set(&pool, "longname", "off").await;
    let fs = open(&world, &pool, "tank").await;
    for name in &names {
        assert!(has(&fs, root, name).await, "{name}");
    }
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
}

/// A record of a directory as older releases logged it: without the name of its group's domain,
/// whose number is that in the filesystem's table.
fn made_directory(parent: u64, ino: u64, gid: u64, name: &str) -> LogRecord {
    let mut body = Vec::new();
    for word in [parent, ino, 0o42755, 0, gid, 1, 1_000_000_000, 0, 0] {
        body.extend_from_slice(&word.to_le_bytes());
    }
    body.extend_from_slice(name.as_bytes());
    body.push(0);
    LogRecord {
        kind: LogKind::Mkdir,
        content: LogContent::Encoded(body.into()),
        ..LogRecord::unlogged(ObjectId::new(ino), true)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_whose_group_has_a_domain_are_made_again() {
    const INO: u64 = 5000;
    const GROUP: u64 = (3 << 32) | 1234;
    let nothing = async |_: &Filesystem| ();
    let change = async |fs: &Filesystem, _: &()| {
        let dataset = fs.dataset().expect("open");
        let tx = dataset.assign(DirtyEstimate::metadata()).await;
        let record = made_directory(fs.root(), INO, GROUP, "ours");
        dataset
            .log()
            .expect("a log")
            .record(&tx.expect("a tx"), record);
    };
    let (crashed, ()) = after_crash(&[], nothing, change).await;
    let (fs, world) = (&crashed.fs, World::system(2));
    let ours = fs.lookup(fs.root(), b"ours").await.expect("lookup");
    assert_eq!((ours.ino, ours.mode), (INO, 0o2755));
    // What is made in it is of that group.
    file(fs, INO, "file").await;
    let made = fs.make_directory(INO, b"below", 0o755, ROOT).await;
    file(fs, made.expect("mkdir").ino, "deeper").await;
    fs.sync_all().await.expect("sync");
    let again = cut(&crashed.image);
    let pool = import_after_cut(&world, again.path()).await;
    let fs = open(&world, &pool, "tank").await;
    assert!(has(&fs, INO, "file").await);
    let below = fs.lookup(INO, b"below").await.expect("lookup").ino;
    assert!(has(&fs, below, "deeper").await);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    crashed.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attribute_whose_name_is_no_text_is_replayed() {
    const NAME: &[u8] = b"user.\xff\xfe";
    let prepare = async |fs: &Filesystem| file(fs, fs.root(), "file").await;
    let change = async |fs: &Filesystem, ino: &u64| {
        let object = ObjectId::new(*ino);
        let body = LogBody::SetXattr {
            object,
            name: NAME,
            value: b"value",
        };
        let dataset = fs.dataset().expect("open");
        let tx = dataset.assign(DirtyEstimate::metadata()).await;
        let record = LogRecord::named(object, &body);
        dataset
            .log()
            .expect("a log")
            .record(&tx.expect("a tx"), record);
    };
    let (crashed, ino) = after_crash(&[], prepare, change).await;
    let value = crashed
        .fs
        .xattrs()
        .get(ino, NAME)
        .await
        .expect("the attribute");
    assert_eq!(&value[..], b"value");
    crashed.leave().await;
}

/// Whoever looks for names all the time and uses what there is has the records of both in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_made_in_a_new_directory_is_logged_after_it() {
    const ROUNDS: usize = 500;
    let image = Image::new(128);
    let world = World::system(2);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let root = fs.root();
    let other = file(&fs, root, "other").await;
    write(&fs, other, "made", true).await;
    pool.sync().await.expect("sync");
    let user = {
        let fs = Arc::clone(&fs);
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let name = format!("directory {round}");
                let found = loop {
                    if let Ok(found) = fs.lookup(root, name.as_bytes()).await {
                        break found.ino;
                    }
                    tokio::task::yield_now().await;
                };
                file(&fs, found, "child").await;
            }
        })
    };
    for round in 0..ROUNDS {
        directory(&fs, &format!("directory {round}")).await;
    }
    user.await.expect("all children");
    fs.sync_all().await.expect("sync");
    let after = cut(&image);
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    let pool = import_after_cut(&world, after.path()).await;
    let fs = open(&world, &pool, "tank").await;
    for round in 0..ROUNDS {
        let name = format!("directory {round}");
        let found = fs.lookup(root, name.as_bytes()).await.expect("lookup");
        assert!(has(&fs, found.ino, "child").await, "{round}");
    }
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
    zdb_is_clean(after.path(), "tank");
}
