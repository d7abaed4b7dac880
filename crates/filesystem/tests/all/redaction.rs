//! Goal: a redacted stream has what at least one of the snapshots has that it is redacted with, and
//! nothing else; what may follow it makes whole what it follows. Method: clones of a snapshot are
//! changed in every way; what the redaction list should say is told by comparing block pointers one
//! by one. Streams go to another dataset, and to the real OpenZFS, which makes lists of its own of
//! the same snapshots; theirs are read here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use dataset::{Dataset, DatasetError, ReceiveObstacle, RedactObstacle};
use device::World;
use filesystem::{Allocate, Filesystem, SetAttributes, ZplInit};
use format::stream::{Record, StreamFeatures};
use format::{BlockPointer, ObjectId, RedactBlock, RedactionListPhys};
use object::{Zap, ZapCursor};
use pool::Pool;
use stream::{Progress, SendOptions, Start, StreamError, StreamReader};

use crate::common::*;
use crate::streams::{How, load, receive, records};

pub const RECORD: u64 = 16 << 10;
const PLAIN: SendOptions = SendOptions {
    large_blocks: false,
    embedded: false,
    compressed: false,
    raw: false,
    resume_at: None,
};
const FEATURES: [&str; 3] = [
    "com.delphix:redaction_bookmarks",
    "com.delphix:redaction_list_spill",
    "com.delphix:redacted_datasets",
];

/// zdb finds no leak; it never ends with `-d` where there is a redaction bookmark.
pub fn is_clean(image: &Image) {
    let output = std::process::Command::new(ZDB)
        .args(["-e", "-p"])
        .arg(image.path())
        .args(["-bcc", "tank"])
        .output()
        .expect("zdb (Debian package zfsutils-linux) is needed");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    for bad in ["leaked space", "mismatch", "ERROR", "error:"] {
        assert!(!text.contains(bad), "{text}{errors}");
    }
}

fn counts(pool: &Pool) -> [Option<u64>; 3] {
    FEATURES.map(|feature| pool.dsl().features().refcount(feature))
}

async fn take(pool: &Pool, snapshot: &str) {
    let names = [snapshot.to_owned()];
    let taken = pool.dsl().snapshots().take(&names, &[]).await;
    taken.expect("taken");
}

async fn clone(pool: &Pool, snapshot: &str, name: &str) {
    let datasets = pool.dsl().datasets();
    let made = datasets.clone_snapshot(snapshot, name, &[]).await;
    made.expect("a clone");
}

pub async fn redact(
    pool: &Pool,
    snapshot: &str,
    bookmark: &str,
    with: &[&str],
) -> Result<(), DatasetError> {
    let with: Vec<String> = with.iter().map(|name| (*name).to_owned()).collect();
    let bookmarks = pool.dsl().bookmarks();
    bookmarks.redact(snapshot, bookmark, &with, &|| false).await
}

fn obstacle<T: std::fmt::Debug>(result: Result<T, DatasetError>) -> RedactObstacle {
    match result {
        Err(DatasetError::Redact { obstacle, .. }) => obstacle,
        other => panic!("{other:?}"),
    }
}

/// The list of a redaction bookmark.
pub async fn list_of(pool: &Pool, bookmark: &str) -> (RedactionListPhys, Vec<RedactBlock>) {
    let (head, _) = bookmark.split_once('#').expect("a bookmark");
    let bookmarks = pool.dsl().bookmarks();
    let known = bookmarks.list(head).await.expect("listed");
    let mut known = known.iter();
    let found = known.find(|found| found.name == bookmark).expect("there");
    let phys = bookmarks.redaction(&found.phys).await.expect("readable");
    let phys = phys.expect("a redaction bookmark");
    let object = pool.dsl().mos().hold(found.phys.redaction_list).await;
    let length = phys.entries as usize * RedactBlock::BYTES;
    let data = object.expect("hold").read_bytes(0, length).await;
    let data = data.expect("readable");
    let entries = data.chunks_exact(RedactBlock::BYTES);
    let entries = entries.map(|raw| RedactBlock::decode(raw, format::Endian::Little));
    let entries: Vec<_> = entries.map(|entry| entry.expect("an entry")).collect();
    let is_sorted = entries
        .windows(2)
        .all(|pair| (pair[0].object, pair[0].end()) <= (pair[1].object, pair[1].block_id));
    assert!(is_sorted, "{entries:?}");
    (phys, entries)
}

pub type Place = (u64, u64);

async fn deleted(dataset: &Dataset) -> BTreeSet<u64> {
    let hold = async |id| Zap::hold(dataset.objset(), id).await.expect("a ZAP");
    let master = hold(ObjectId::MASTER_NODE).await;
    let queue = master.lookup_u64("DELETE_QUEUE").await.expect("readable");
    let queue = hold(ObjectId::new(queue.expect("a queue"))).await;
    let entries = queue.entries(ZapCursor::START, 1000).await;
    let entries = entries.expect("readable");
    entries
        .iter()
        .filter_map(|entry| entry.value.as_u64())
        .collect()
}

/// The pointers of all blocks of files that are no holes.
pub async fn blocks(dataset: &Dataset) -> Vec<(Place, u32, BlockPointer)> {
    let (objset, mut at, mut out) = (dataset.objset(), None, Vec::new());
    while let Some(id) = objset.next_object(at).await.expect("next") {
        at = Some(id);
        let object = objset.hold(id).await.expect("hold");
        let info = object.info();
        if info.object_type.is_metadata() {
            continue;
        }
        for block in 0..=info.max_block_id {
            let pointer = object.block_pointer(block).await.expect("a pointer");
            if !pointer.is_hole() {
                out.push(((id.get(), block), info.data_block_bytes, pointer));
            }
        }
    }
    out
}

/// The blocks of a snapshot that none of some others has, by comparing all pointers.
async fn unwanted(pool: &Pool, snapshot: &str, with: &[&str]) -> BTreeSet<Place> {
    let open = async |name: &str| pool.dsl().open_dataset(name).await.expect("open");
    let mut out = blocks(&open(snapshot).await).await;
    for name in with {
        let dataset = open(name).await;
        let gone = deleted(&dataset).await;
        let there: BTreeSet<_> = blocks(&dataset)
            .await
            .into_iter()
            .filter(|((object, _), ..)| !gone.contains(object))
            .map(|(place, bytes, pointer)| (place, bytes, *pointer.words()))
            .collect();
        out.retain(|(place, bytes, pointer)| !there.contains(&(*place, *bytes, *pointer.words())));
    }
    out.into_iter().map(|(place, ..)| place).collect()
}

pub fn places(entries: &[RedactBlock]) -> BTreeSet<Place> {
    let of = |entry: &RedactBlock| {
        let object = entry.object.get();
        (entry.block_id..entry.end()).map(move |block| (object, block))
    };
    entries.iter().flat_map(of).collect()
}

/// The list has what it should have, and what is no data at most besides.
pub async fn check_list(
    pool: &Pool,
    snapshot: &str,
    bookmark: &str,
    with: &[&str],
) -> BTreeSet<Place> {
    let (phys, entries) = list_of(pool, bookmark).await;
    assert!(phys.is_whole());
    let mut guids = Vec::new();
    for name in with {
        let info = pool.dsl().directories().lookup(name).await;
        guids.push(info.expect("it is there").guid);
    }
    assert_eq!(phys.snapshots, guids);
    let dataset = pool.dsl().open_dataset(snapshot).await.expect("open");
    let data: BTreeSet<Place> = blocks(&dataset)
        .await
        .into_iter()
        .map(|(place, ..)| place)
        .collect();
    for entry in &entries {
        let object = dataset.objset().hold(entry.object).await.expect("hold");
        let info = object.info();
        assert!(!info.object_type.is_metadata());
        assert_eq!(entry.block_bytes(), u64::from(info.data_block_bytes));
        assert!(entry.end() <= info.max_block_id + 1 && entry.count() > 0);
    }
    let found: BTreeSet<Place> = places(&entries).intersection(&data).copied().collect();
    let expected = unwanted(pool, snapshot, with).await;
    assert_eq!(found, expected, "{with:?}");
    found
}

fn content(length: u64, seed: u64) -> Bytes {
    Random(seed).bytes(length as usize).into()
}

async fn write(fs: &Filesystem, ino: u64, offset: u64, length: u64, seed: u64) {
    let data = content(length, seed);
    let written = fs.write(ino, offset, data, false, ROOT).await;
    written.expect("written");
}

async fn make(fs: &Filesystem, name: &str, length: u64, seed: u64) -> u64 {
    let made = fs.create(fs.root(), name.as_bytes(), 0o644, ROOT).await;
    let ino = made.expect("created").ino;
    if length > 0 {
        write(fs, ino, 0, length, seed).await;
    }
    ino
}

async fn resize(fs: &Filesystem, ino: u64, size_bytes: u64) {
    let set = SetAttributes {
        size_bytes: Some(size_bytes),
        ..SetAttributes::default()
    };
    fs.set_attributes(ino, &set, ROOT).await.expect("resized");
}

async fn punch(fs: &Filesystem, ino: u64, first: u64, count: u64) {
    let how = Allocate::PunchHole;
    let punched = fs.allocate(ino, how, first * RECORD, count * RECORD, ROOT);
    punched.await.expect("punched");
}

async fn remove(fs: &Filesystem, name: &str) {
    let root = fs.root();
    let ino = fs.lookup(root, name.as_bytes()).await.expect("it").ino;
    fs.unlink(root, name.as_bytes()).await.expect("unlinked");
    fs.unlinked().free(ino).await;
}

/// A filesystem with files of every shape, a snapshot, and two clones of it that are changed.
pub async fn fill(world: &World, pool: &Pool) -> Vec<u64> {
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let properties = [("recordsize", "16K"), ("compression", "lz4")].map(own);
    let init = Arc::new(ZplInit::new());
    let datasets = pool.dsl().datasets();
    let made = datasets.create("tank/fs", &properties, init).await;
    made.expect("created");
    let fs = open(world, pool, "tank/fs").await;
    let mut inos = Vec::new();
    for file in 0..40u64 {
        let length = match file % 5 {
            0 => 300,
            1 => 5000 + file * 100,
            _ => (file % 12 + 2) * RECORD + file * 7,
        };
        inos.push(make(&fs, &format!("f{file}"), length, file + 1).await);
    }
    // More than one indirect block, and sparse.
    inos.push(make(&fs, "big", 150 * RECORD, 100).await);
    let sparse = make(&fs, "sparse", 0, 0).await;
    write(&fs, sparse, 3000 * RECORD, 4 * RECORD, 101).await;
    write(&fs, sparse, 5000 * RECORD, 2 * RECORD, 102).await;
    inos.push(sparse);
    fs.close().await.expect("close");
    take(pool, "tank/fs@s").await;
    for (number, seed) in [(1u64, 500), (2, 900)] {
        let name = format!("tank/c{number}");
        clone(pool, "tank/fs@s", &name).await;
        let fs = open(world, pool, &name).await;
        // The same in both, and something else in each.
        for (file, block) in [(2, 0), (2, number), (3, 1), (7, 2 + number)] {
            write(&fs, inos[file], block * RECORD, RECORD, seed + block).await;
        }
        write(&fs, inos[1], 100, 50, seed).await;
        resize(&fs, inos[8], RECORD + 100).await;
        resize(&fs, inos[9], 10 * RECORD * number).await;
        punch(&fs, inos[12], 1, 2 + number).await;
        punch(&fs, inos[40], 64 * number, 70).await;
        write(&fs, inos[41], (3000 + number) * RECORD, RECORD, seed).await;
        resize(&fs, inos[41], 4000 * RECORD).await;
        for file in [13, 14, 15, 16, 20 + number] {
            remove(&fs, &format!("f{file}")).await;
        }
        // Numbers of objects are used again, with blocks of other sizes.
        pool.sync().await.expect("sync");
        make(&fs, "again", 700, seed + 1).await;
        make(&fs, "more", 3 * RECORD, seed + 2).await;
        // One that waits to be freed.
        let root = fs.root();
        let ino = fs.lookup(root, b"f30").await.expect("f30").ino;
        assert!(inos.contains(&ino));
        fs.unlink(root, b"f30").await.expect("unlinked");
        if number == 2 {
            fs.unlink(root, b"f31").await.expect("unlinked");
        }
        pool.sync().await.expect("sync");
        take(pool, &format!("{name}@r")).await;
        fs.close().await.expect("close");
    }
    inos
}

pub async fn send_source(source: dataset::SendSource, options: &SendOptions) -> Vec<u8> {
    let mut out = Vec::new();
    let sent = stream::send(&source, options, &mut out, &Progress::default()).await;
    sent.expect("sent");
    out
}

pub async fn send(pool: &Pool, name: &str, from: Option<&str>) -> Vec<u8> {
    let source = pool.dsl().sends().source(name, from).await;
    send_source(source.expect("a source"), &PLAIN).await
}

pub async fn send_redacted(pool: &Pool, name: &str, from: Option<&str>, bookmark: &str) -> Vec<u8> {
    let sends = pool.dsl().sends();
    let source = sends.redacted_source(name, from, bookmark).await;
    send_source(source.expect("a source"), &PLAIN).await
}

/// Files are the same, but for blocks that were left out, which are zeros.
pub async fn compare(
    world: &World,
    pool: &Pool,
    ours: &str,
    theirs: &str,
    without: &BTreeSet<Place>,
) {
    let (one, other) = (
        open(world, pool, ours).await,
        open(world, pool, theirs).await,
    );
    let walked = tree::walk(&one).await;
    assert_eq!(
        walked.keys().collect::<Vec<_>>(),
        tree::walk(&other).await.keys().collect::<Vec<_>>(),
        "{ours} {theirs}"
    );
    let dataset = one.dataset().expect("open");
    let (mut left_out, mut inos) = (0, BTreeSet::new());
    for (path, at) in walked {
        if at.kind != filesystem::FileKind::Regular {
            continue;
        }
        inos.insert(at.ino);
        let size = at.size_bytes as usize;
        let object = dataset.objset().hold(ObjectId::new(at.ino)).await;
        let block_bytes = u64::from(object.expect("hold").info().data_block_bytes);
        let data = one.read(at.ino, 0, size).await.expect("read").concat();
        let mut data = data.to_vec();
        for (block, part) in data.chunks_mut(block_bytes as usize).enumerate() {
            if without.contains(&(at.ino, block as u64)) {
                assert!(part.iter().any(|byte| *byte != 0), "it had data");
                part.fill(0);
                left_out += 1;
            }
        }
        let found = other.read(at.ino, 0, size).await.expect("read").concat();
        assert!(found == data, "{}", String::from_utf8_lossy(&path));
    }
    // Files that wait to be freed have no names.
    let named = without.iter().filter(|(ino, _)| inos.contains(ino));
    assert_eq!(left_out, named.count(), "{theirs}");
    drop(dataset);
    one.close().await.expect("close");
    other.close().await.expect("close");
}

pub async fn receive_as(pool: &Pool, bytes: &[u8], target: &str, origin: Option<&str>) {
    let how = How {
        origin: origin.map(str::to_owned),
        ..How::default()
    };
    let received = receive(pool, bytes, target, &how).await;
    received.unwrap_or_else(|error| panic!("{target}: {error}"));
}

async fn is_refused(pool: &Pool, bytes: &[u8], target: &str, origin: Option<&str>) {
    let how = How {
        origin: origin.map(str::to_owned),
        ..How::default()
    };
    let received = receive(pool, bytes, target, &how).await;
    assert!(
        matches!(
            received,
            Err(StreamError::Dataset(DatasetError::Receive {
                obstacle: ReceiveObstacle::Redaction,
                ..
            }))
        ),
        "{received:?}"
    );
}

async fn redacted_with(pool: &Pool, name: &str) -> Option<Vec<u64>> {
    let dataset = pool.dsl().open_dataset(name).await.expect("open");
    dataset.redacted_with()
}

/// Lists are right, streams leave out what they say, and only what is made whole by it follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redacted_streams_lack_what_no_clone_has() {
    let (world, image) = (World::system(2), Image::new(512));
    let pool = create(&world, &image, &[]).await;
    fill(&world, &pool).await;
    let both = ["tank/c1@r", "tank/c2@r"];
    assert_eq!(counts(&pool), [Some(0); 3]);
    for (bookmark, with) in [
        ("one", &both[..1]),
        ("two", &both[1..]),
        ("both", &both[..]),
    ] {
        redact(&pool, "tank/fs@s", bookmark, with)
            .await
            .expect("redacted");
        let name = format!("tank/fs#{bookmark}");
        let out = check_list(&pool, "tank/fs@s", &name, with).await;
        assert!(out.len() > 20, "{}", out.len());
        let sent = send_redacted(&pool, "tank/fs@s", None, bookmark).await;
        let target = format!("tank/{bookmark}");
        receive_as(&pool, &sent, &target, None).await;
        compare(&world, &pool, "tank/fs@s", &format!("{target}@s"), &out).await;
        let guids: Vec<u64> = list_of(&pool, &name)
            .await
            .0
            .snapshots
            .iter()
            .map(|guid| guid.get())
            .collect();
        for name in [format!("{target}@s"), target] {
            assert_eq!(redacted_with(&pool, &name).await, Some(guids.clone()));
        }
    }
    assert_eq!(counts(&pool), [Some(3), Some(0), Some(6)]);
    // What the receiver has that was redacted with both is enough for either of them.
    let none = BTreeSet::new();
    for (number, clone) in both.iter().enumerate() {
        let sent = send(&pool, clone, Some("tank/fs@s")).await;
        let target = format!("tank/from_both{number}");
        receive_as(&pool, &sent, &target, Some("tank/both@s")).await;
        compare(&world, &pool, clone, &format!("{target}@r"), &none).await;
        assert_eq!(redacted_with(&pool, &target).await, None);
    }
    let second = send(&pool, both[1], Some("tank/fs@s")).await;
    is_refused(&pool, &second, "tank/refused", Some("tank/one@s")).await;
    // A later state of the filesystem itself needs what was left out.
    let fs = open(&world, &pool, "tank/fs").await;
    make(&fs, "new", 5 * RECORD, 77).await;
    remove(&fs, "f2").await;
    fs.close().await.expect("close");
    take(&pool, "tank/fs@t").await;
    let plain = send(&pool, "tank/fs@t", Some("tank/fs@s")).await;
    is_refused(&pool, &plain, "tank/both", None).await;
    let whole = send(&pool, "tank/fs@t", Some("tank/fs#both")).await;
    // From a list of more snapshots less was left out than from one of fewer.
    is_refused(&pool, &whole, "tank/one", None).await;
    let of_one = send(&pool, "tank/fs@t", Some("tank/fs#one")).await;
    receive_as(&pool, &of_one, "tank/one", None).await;
    compare(&world, &pool, "tank/fs@t", "tank/one@t", &none).await;
    assert_eq!(redacted_with(&pool, "tank/one").await, None);
    receive_as(&pool, &whole, "tank/both", None).await;
    compare(&world, &pool, "tank/fs@t", "tank/both@t", &none).await;
    // The bookmarks go, and with them what they count as.
    for name in ["one", "two", "both"] {
        let name = format!("tank/fs#{name}");
        let gone = pool.dsl().bookmarks().destroy(&[name]).await;
        gone.expect("destroyed");
    }
    assert_eq!(counts(&pool)[..2], [Some(0), Some(0)]);
    pool.export(false).await.expect("export");
    is_clean(&image);
}

/// A difference may be redacted as well, and may begin where what was left out is filled in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn differences_are_redacted() {
    let (world, image) = (World::system(2), Image::new(512));
    let pool = create(&world, &image, &[]).await;
    fill(&world, &pool).await;
    redact(&pool, "tank/fs@s", "b", &["tank/c1@r", "tank/c2@r"])
        .await
        .expect("redacted");
    let sent = send_redacted(&pool, "tank/fs@s", None, "b").await;
    receive_as(&pool, &sent, "tank/copy", None).await;
    let whole = send(&pool, "tank/fs@s", None).await;
    receive_as(&pool, &whole, "tank/whole", None).await;
    // A clone's snapshot is redacted with one of a clone of it.
    clone(&pool, "tank/c1@r", "tank/d").await;
    let fs = open(&world, &pool, "tank/d").await;
    let ino = fs.lookup(fs.root(), b"big").await.expect("big").ino;
    write(&fs, ino, 3 * RECORD, 5 * RECORD, 3).await;
    write(&fs, ino, 70 * RECORD, 2 * RECORD, 4).await;
    let ino = fs.lookup(fs.root(), b"f2").await.expect("f2").ino;
    write(&fs, ino, 0, 2 * RECORD, 5).await;
    remove(&fs, "f22").await;
    fs.close().await.expect("close");
    take(&pool, "tank/d@x").await;
    redact(&pool, "tank/c1@r", "c", &["tank/d@x"])
        .await
        .expect("redacted");
    let out = check_list(&pool, "tank/c1@r", "tank/c1#c", &["tank/d@x"]).await;
    assert!(out.len() > 8);
    // Blocks that did not change are said to be left out, too.
    let sent = send_redacted(&pool, "tank/c1@r", Some("tank/fs@s"), "c").await;
    receive_as(&pool, &sent, "tank/c1_of_whole", Some("tank/whole@s")).await;
    compare(&world, &pool, "tank/c1@r", "tank/c1_of_whole@r", &out).await;
    // What was left out of its origin is filled in where it is not left out now.
    let sent = send_redacted(&pool, "tank/c1@r", Some("tank/fs#b"), "c").await;
    let features = {
        let mut reader = StreamReader::new(&sent[..]);
        let Start::Begin(begin, list) = reader.start().await.expect("a beginning") else {
            panic!("no beginning");
        };
        assert_eq!(list.u64s("redact_snaps").map(<[u64]>::len), Some(1));
        assert_eq!(list.u64s("redact_from_snaps").map(<[u64]>::len), Some(2));
        begin.features
    };
    assert!(features.contains(StreamFeatures::REDACTED));
    let is_redact = |record: &Record| matches!(record, Record::Redact(_));
    assert!(records(&sent).await.iter().any(is_redact));
    receive_as(&pool, &sent, "tank/c1_of_copy", Some("tank/copy@s")).await;
    let lacking = places(&list_of(&pool, "tank/fs#b").await.1);
    assert!(lacking.iter().any(|place| !out.contains(place)));
    compare(&world, &pool, "tank/c1@r", "tank/c1_of_copy@r", &out).await;
    pool.export(false).await.expect("export");
    is_clean(&image);
}

/// What cannot be redacted, or sent with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_refused() {
    let (world, image) = (World::system(2), Image::new(512));
    let pool = create(&world, &image, &[]).await;
    fill(&world, &pool).await;
    take(&pool, "tank/fs@t").await;
    use RedactObstacle as Why;
    let all = [
        ("tank/fs@t", "x", &["tank/c1@r"][..], Why::NotDescendant),
        ("tank/fs@s", "x", &["tank/fs@s"][..], Why::NotDescendant),
        ("tank/c1@r", "x", &["tank/c2@r"][..], Why::NotDescendant),
        ("tank/fs@s", "x", &[][..], Why::NoSnapshots),
    ];
    for (snapshot, bookmark, with, why) in all {
        let refused = redact(&pool, snapshot, bookmark, with).await;
        assert_eq!(obstacle(refused), why, "{snapshot}");
    }
    let long = "x".repeat(250);
    let refused = redact(&pool, "tank/fs@s", &long, &["tank/c1@r"]).await;
    assert_eq!(obstacle(refused), Why::NameTooLong);
    let bad = redact(&pool, "tank/fs@s", "a#b", &["tank/c1@r"]).await;
    assert!(
        matches!(bad, Err(DatasetError::InvalidName { .. })),
        "{bad:?}"
    );
    let gone = redact(&pool, "tank/fs@none", "x", &["tank/c1@r"]).await;
    assert!(
        matches!(gone, Err(DatasetError::NotFound { .. })),
        "{gone:?}"
    );
    redact(&pool, "tank/fs@s", "x", &["tank/c1@r"])
        .await
        .expect("redacted");
    let again = redact(&pool, "tank/fs@s", "x", &["tank/c1@r"]).await;
    assert_eq!(obstacle(again), Why::Exists);
    let other = redact(&pool, "tank/fs@s", "x", &["tank/c2@r"]).await;
    assert_eq!(obstacle(other), Why::OtherSnapshots);
    let plain = [("tank/fs#plain".to_owned(), "tank/fs@s".to_owned())];
    let bookmarks = pool.dsl().bookmarks();
    bookmarks.create(&plain).await.expect("a bookmark");
    let taken = redact(&pool, "tank/fs@s", "plain", &["tank/c1@r"]).await;
    assert_eq!(obstacle(taken), Why::Exists);
    let sends = pool.dsl().sends();
    let refused = sends.redacted_source("tank/fs@s", None, "plain").await;
    assert_eq!(obstacle(refused.map(|_| ())), Why::NoList);
    let refused = sends.redacted_source("tank/fs@t", None, "x").await;
    assert_eq!(obstacle(refused.map(|_| ())), Why::OtherSource);
    // While a stream is made with it, it stays.
    let source = sends.redacted_source("tank/fs@s", None, "x").await;
    let source = source.expect("a source");
    let busy = bookmarks.destroy(&["tank/fs#x".to_owned()]).await;
    assert!(matches!(busy, Err(DatasetError::Busy { .. })), "{busy:?}");
    let sent = send_source(source, &PLAIN).await;
    receive_as(&pool, &sent, "tank/red", None).await;
    let refused = redact(&pool, "tank/red@s", "y", &["tank/red@s"]).await;
    assert_eq!(obstacle(refused), Why::Redacted);
    // A bookmark of it says what it is redacted with.
    let made = [("tank/red#m".to_owned(), "tank/red@s".to_owned())];
    bookmarks.create(&made).await.expect("a bookmark");
    let (phys, entries) = list_of(&pool, "tank/red#m").await;
    assert!(phys.is_whole() && entries.is_empty());
    assert_eq!(
        phys.snapshots,
        list_of(&pool, "tank/fs#x").await.0.snapshots
    );
    // A clone lacks what its origin lacks.
    clone(&pool, "tank/red@s", "tank/red_clone").await;
    assert!(redacted_with(&pool, "tank/red_clone").await.is_some());
    for name in ["tank/red_clone", "tank/red"] {
        let destroyed = pool.dsl().destroyer();
        if name == "tank/red" {
            let snapshots = ["tank/red@s".to_owned()];
            let gone = destroyed.destroy_snapshots(&snapshots, false).await;
            gone.expect("destroyed");
        }
        let gone = pool.dsl().destroyer().destroy(name).await;
        gone.expect("destroyed");
    }
    bookmarks
        .destroy(&["tank/fs#x".to_owned(), "tank/fs#plain".to_owned()])
        .await
        .expect("destroyed");
    assert_eq!(counts(&pool), [Some(0); 3]);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// One that is stopped, or cut off by a power cut, is gone on with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_interrupted_is_gone_on_with() {
    const BLOCKS: u64 = 40_000;
    let (world, image) = (World::system(2), Image::new(512));
    let properties = [("recordsize", "512"), ("compression", "off")];
    let pool = create(&world, &image, &properties).await;
    let fs = open(&world, &pool, "tank").await;
    let ino = make(&fs, "file", BLOCKS * 512, 1).await;
    fs.close().await.expect("close");
    take(&pool, "tank@s").await;
    clone(&pool, "tank@s", "tank/c").await;
    let fs = open(&world, &pool, "tank/c").await;
    for block in (0..BLOCKS).step_by(2) {
        write(&fs, ino, block * 512, 512, block + 5).await;
    }
    fs.close().await.expect("close");
    take(&pool, "tank/c@r").await;
    let with = ["tank/c@r".to_owned()];
    let bookmarks = pool.dsl().bookmarks();
    redact(&pool, "tank@s", "whole", &["tank/c@r"])
        .await
        .expect("redacted");
    let (_, expected) = list_of(&pool, "tank#whole").await;
    assert_eq!(expected.len() as u64, BLOCKS / 2);
    check_list(&pool, "tank@s", "tank#whole", &["tank/c@r"]).await;
    // After the first part is stored, and before.
    let asked = AtomicUsize::new(0);
    let stops = |after: usize| {
        asked.store(0, Ordering::Relaxed);
        let asked = &asked;
        move || asked.fetch_add(1, Ordering::Relaxed) >= after
    };
    let stopped = bookmarks.redact("tank@s", "part", &with, &stops(100)).await;
    assert!(
        matches!(stopped, Err(DatasetError::Interrupted)),
        "{stopped:?}"
    );
    let (phys, entries) = list_of(&pool, "tank#part").await;
    assert!(!phys.is_whole() && entries.is_empty());
    let sends = pool.dsl().sends();
    let refused = sends.redacted_source("tank@s", None, "part");
    assert_eq!(
        obstacle(refused.await.map(|_| ())),
        RedactObstacle::NotWhole
    );
    let stopped = bookmarks
        .redact("tank@s", "part", &with, &stops(34_000))
        .await;
    assert!(
        matches!(stopped, Err(DatasetError::Interrupted)),
        "{stopped:?}"
    );
    let (phys, entries) = list_of(&pool, "tank#part").await;
    let stored = entries.len();
    assert!(
        !phys.is_whole() && stored > 1000 && stored < expected.len(),
        "{stored}"
    );
    assert_eq!(phys.reached.0, ino);
    let other = redact(&pool, "tank@s", "part", &["tank@s"]).await;
    assert_eq!(obstacle(other), RedactObstacle::NotDescendant);
    let after = cut(&image);
    pool.export(false).await.expect("export");
    let pool = import_after_cut(&world, after.path()).await;
    redact(&pool, "tank@s", "part", &["tank/c@r"])
        .await
        .expect("redacted");
    let (phys, entries) = list_of(&pool, "tank#part").await;
    assert!(phys.is_whole());
    assert_eq!(entries, expected);
    pool.export(false).await.expect("export");
    is_clean(&after);
}

/// More snapshots than a bonus has room for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_many_snapshots_have_a_spill_block() {
    let (world, image) = (World::system(2), Image::new(256));
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let ino = make(&fs, "file", 20 << 17, 1).await;
    fs.close().await.expect("close");
    take(&pool, "tank@s").await;
    let mut with = Vec::new();
    for number in 0..41u64 {
        let name = format!("tank/c{number}");
        clone(&pool, "tank@s", &name).await;
        let fs = open(&world, &pool, &name).await;
        write(&fs, ino, 5 << 17, 4 << 17, number + 2).await;
        fs.close().await.expect("close");
        take(&pool, &format!("{name}@r")).await;
        with.push(format!("{name}@r"));
    }
    let names: Vec<&str> = with.iter().map(String::as_str).collect();
    redact(&pool, "tank@s", "few", &names[..36])
        .await
        .expect("redacted");
    assert_eq!(counts(&pool), [Some(1), Some(0), Some(0)]);
    redact(&pool, "tank@s", "many", &names)
        .await
        .expect("redacted");
    assert_eq!(counts(&pool), [Some(2), Some(1), Some(0)]);
    pool.export(false).await.expect("export");
    is_clean(&image);
    let pool = import(&world, image.path(), false).await;
    for (bookmark, with) in [("tank#few", &names[..36]), ("tank#many", &names)] {
        let out = check_list(&pool, "tank@s", bookmark, with).await;
        assert_eq!(out, (5..9).map(|block| (ino, block)).collect());
    }
    let sent = send_redacted(&pool, "tank@s", None, "many").await;
    receive_as(&pool, &sent, "tank/red", None).await;
    assert_eq!(
        redacted_with(&pool, "tank/red@s").await.map(|of| of.len()),
        Some(41)
    );
    let both = ["tank#few".to_owned(), "tank#many".to_owned()];
    let gone = pool.dsl().bookmarks().destroy(&both).await;
    gone.expect("destroyed");
    assert_eq!(counts(&pool)[..2], [Some(0), Some(0)]);
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// A stream of OpenZFS's says what it is redacted with, and that is kept.
#[tokio::test(flavor = "multi_thread")]
async fn what_openzfs_redacted_is_marked() {
    let Some(stream) = load("redacted") else {
        return;
    };
    let (world, image) = (World::system(2), Image::new(512));
    let pool = create(&world, &image, &[]).await;
    receive_as(&pool, &stream.bytes, "tank/target", None).await;
    let with = redacted_with(&pool, "tank/target").await.expect("marked");
    assert!(!with.is_empty());
    pool.export(false).await.expect("export");
    let pool = import(&world, image.path(), false).await;
    assert_eq!(redacted_with(&pool, "tank/target").await, Some(with));
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}
