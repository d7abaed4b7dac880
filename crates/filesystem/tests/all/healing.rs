//! Goal: a stream of a snapshot puts those blocks of it right that are damaged, and nothing else
//! is changed. Method: all copies of data blocks are overwritten on the image, in pools with blocks
//! that are compressed in every way, encrypted, deduplicated or in pieces; a stream that was made
//! before is received. What was damaged is read again, and is out of the error log; the image is
//! byte by byte what it was where blocks are; zdb looks at the pool.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use codec::crypt::WrappingKey;
use dataset::{DatasetError, KeyFormat, NewKey, ReceiveObstacle, ReceiveTarget};
use device::World;
use filesystem::{Filesystem, ZplInit, errno};
use format::{BlockPointer, Bookmark, Dva, ObjectId, ObjsetId};
use pool::Pool;
use stream::{Healed, Progress, SendOptions, Start, StreamError, StreamReader};
use zio::ReadContext;

use crate::common::*;
use crate::{rawstreams, streams};

const LABELS_BYTES: u64 = 4 << 20;
const RECORD_BYTES: u64 = 128 << 10;
const BLOCKS: u64 = 8;

const PLAIN: SendOptions = SendOptions {
    large_blocks: false,
    embedded: false,
    compressed: false,
    raw: false,
    resume_at: None,
};
const COMPRESSED: SendOptions = SendOptions {
    compressed: true,
    ..PLAIN
};

/// Half of it can be compressed.
fn content(seed: u64) -> Bytes {
    let mut random = Random(seed);
    let mut out = Vec::new();
    for _ in 0..BLOCKS * RECORD_BYTES / 256 {
        out.extend(random.bytes(128));
        out.extend([seed as u8; 128]);
    }
    out.into()
}

/// A file in a new filesystem, and a snapshot. Its object number.
async fn fill(world: &World, pool: &Pool, name: &str, seed: u64) -> u64 {
    let filesystem = open(world, pool, name).await;
    let root = filesystem.root();
    let file = filesystem.create(root, b"file", 0o644, ROOT).await;
    let ino = file.expect("create").ino;
    let written = filesystem.write(ino, 0, content(seed), false, ROOT).await;
    written.expect("write");
    filesystem.close().await.expect("close");
    take(pool, &format!("{name}@s")).await;
    ino
}

async fn take(pool: &Pool, snapshot: &str) {
    let names = [snapshot.to_owned()];
    pool.dsl()
        .snapshots()
        .take(&names, &[])
        .await
        .expect("taken");
}

async fn pointer(pool: &Pool, snapshot: &str, ino: u64, block: u64) -> BlockPointer {
    let dataset = pool.dsl().open_dataset(snapshot).await.expect("open");
    let object = dataset.objset().hold(ObjectId::new(ino)).await;
    let pointer = object.expect("hold").block_pointer(block).await;
    pointer.expect("a pointer")
}

/// The first disk of a pool.
struct Disk(std::fs::File);

impl Disk {
    fn of(dir: &Path) -> Self {
        let path = dir.join("d0.img");
        let file = std::fs::File::options().read(true).write(true).open(path);
        Self(file.expect("open"))
    }

    fn stored(&self, dva: &Dva, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; bytes as usize];
        let at = LABELS_BYTES + dva.offset_bytes();
        self.0.read_exact_at(&mut out, at).expect("read");
        out
    }

    /// Destroys all copies of a block; what was there.
    fn damage(&self, pointer: &BlockPointer) -> Vec<u8> {
        let length = pointer.psize_bytes();
        let mut before = Vec::new();
        for dva in pointer.dvas() {
            before = self.stored(&dva, length);
            let at = LABELS_BYTES + dva.offset_bytes();
            self.0.write_all_at(&[0xa5; 512], at).expect("write");
        }
        assert!(!before.is_empty(), "it has a place");
        before
    }
}

/// Puts right what a stream has of a snapshot.
async fn heal(pool: &Pool, bytes: &[u8], name: &str) -> (Healed, Result<(), StreamError>) {
    let mut healed = Healed::default();
    let outcome = heal_into(pool, bytes, name, &mut healed).await;
    (healed, outcome)
}

async fn heal_into(
    pool: &Pool,
    bytes: &[u8],
    name: &str,
    healed: &mut Healed,
) -> Result<(), StreamError> {
    let mut reader = StreamReader::new(bytes);
    let Start::Begin(begin, list) = reader.start().await? else {
        return Err(StreamError::CutShort);
    };
    let (head, snapshot) = name.split_once('@').expect("a snapshot");
    let target = ReceiveTarget {
        name: head.to_owned(),
        snapshot: snapshot.to_owned(),
        begin: *begin,
        origin: None,
        force: false,
        resumable: false,
        properties: Vec::new(),
        new_key: None,
        key_data: list.list("crypt_keydata").cloned(),
        redaction: dataset::Redaction::of(&list),
    };
    let receives = pool.dsl().receives();
    let corrective = receives.begin_corrective(target).await?;
    let progress = Progress::default();
    let outcome = stream::heal(&mut reader, &corrective, &progress, healed).await;
    receives.end_corrective(corrective).await?;
    outcome
}

async fn is_lost(filesystem: &Filesystem, ino: u64, block: u64) {
    let read = filesystem.read(ino, block * RECORD_BYTES, 4096).await;
    match read {
        Ok(_) => panic!("block {block} can be read"),
        Err(error) => assert_eq!(error.errno(), errno::EIO, "{error}"),
    }
}

async fn is_whole(world: &World, pool: &Pool, name: &str, ino: u64, seed: u64) {
    let filesystem = open(world, pool, name).await;
    let length = (BLOCKS * RECORD_BYTES) as usize;
    let read = filesystem.read(ino, 0, length).await.expect("read");
    assert!(read.concat() == content(seed), "{name}");
    filesystem.close().await.expect("close");
}

fn place(snapshot: ObjectId, ino: u64, block: u64) -> Bookmark {
    Bookmark::new(ObjsetId::new(snapshot.get()), ObjectId::new(ino), 0, block)
}

/// A pool with a filesystem for each of some properties, blocks of which are damaged and put right
/// with streams that `options` say.
async fn heals(root: &[(&str, &str)], properties: &[(&str, &str)], options: &[SendOptions]) {
    let (world, image) = (World::system(2), Image::new(256));
    let pool = create(&world, &image, root).await;
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let properties: Vec<_> = properties.iter().map(own).collect();
    let mut sent = Vec::new();
    for (number, options) in options.iter().enumerate() {
        let name = format!("tank/fs{number}");
        pool.dsl()
            .datasets()
            .create(&name, &properties, Arc::new(ZplInit::new()))
            .await
            .expect("created");
        let seed = number as u64 + 1;
        let ino = fill(&world, &pool, &name, seed).await;
        let snapshot = format!("{name}@s");
        let bytes = streams::send(&pool, &snapshot, None, options).await;
        let mut pointers = Vec::new();
        for block in [1, 4, 5] {
            pointers.push((block, pointer(&pool, &snapshot, ino, block).await));
        }
        sent.push((name, seed, ino, bytes, pointers));
    }
    pool.export(false).await.expect("export");

    let disk = Disk::of(image.path());
    let mut before = Vec::new();
    for (.., pointers) in &sent {
        for (_, pointer) in pointers {
            before.push((*pointer, disk.damage(pointer)));
        }
    }
    let pool = import(&world, image.path(), false).await;
    for (name, seed, ino, bytes, pointers) in &sent {
        let snapshot = format!("{name}@s");
        let filesystem = open(&world, &pool, &snapshot).await;
        for (block, _) in pointers {
            is_lost(&filesystem, *ino, *block).await;
        }
        filesystem.close().await.expect("close");
        pool.sync().await.expect("sync");
        let object = pool.dsl().directories().lookup(&snapshot).await;
        let object = object.expect("it is there").object;
        let damaged = pool.damaged().await;
        for (block, _) in pointers {
            let place = place(object, *ino, *block);
            assert!(damaged.contains(&place), "{name}: {place} in {damaged:?}");
        }
        let (healed, outcome) = heal(&pool, bytes, &snapshot).await;
        outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(healed.blocks, 3, "{name}");
        assert_eq!(healed.bytes, 3 * RECORD_BYTES, "{name}");
        is_whole(&world, &pool, &snapshot, *ino, *seed).await;
        // The filesystem that it is a snapshot of has the same blocks.
        is_whole(&world, &pool, name, *ino, *seed).await;
        // Nothing is left to do.
        let (again, outcome) = heal(&pool, bytes, &snapshot).await;
        outcome.expect("it is whole");
        assert_eq!(again, Healed::default(), "{name}");
    }
    assert_eq!(pool.damaged().await, Vec::new());
    pool.export(false).await.expect("export");
    for (pointer, stored) in before {
        for dva in pointer.dvas() {
            assert!(
                disk.stored(&dva, pointer.psize_bytes()) == stored,
                "{pointer}"
            );
        }
    }
    zdb_is_clean(image.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_without_compression_are_healed() {
    let root = [("compression", "off"), ("copies", "2")];
    heals(&root, &[], &[PLAIN, COMPRESSED]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_blocks_are_healed() {
    for compression in ["lz4", "gzip-3", "lzjb"] {
        let root = [("compression", compression), ("checksum", "sha256")];
        heals(&root, &[], &[PLAIN, COMPRESSED]).await;
    }
}

/// The property says another level than the one that the blocks were compressed with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_any_level_of_zstd_are_healed() {
    let (world, image) = (World::system(2), Image::new(256));
    let pool = create(&world, &image, &[("compression", "zstd-9")]).await;
    let ino = fill(&world, &pool, "tank", 1).await;
    let lost = pointer(&pool, "tank@s", ino, 2).await;
    let bytes = streams::send(&pool, "tank@s", None, &PLAIN).await;
    let level = dataset::PropertyChange::Set("zstd-fast-5".into());
    let set = [("compression".to_owned(), level)];
    let set = pool.dsl().properties().set("tank", &set).await;
    set.expect("set");
    pool.export(false).await.expect("export");
    Disk::of(image.path()).damage(&lost);
    let pool = import(&world, image.path(), false).await;
    let (healed, outcome) = heal(&pool, &bytes, "tank@s").await;
    outcome.expect("healed");
    assert_eq!(healed.blocks, 1);
    is_whole(&world, &pool, "tank@s", ino, 1).await;
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deduplicated_blocks_are_healed() {
    let root = [("dedup", "on"), ("compression", "lz4")];
    heals(&root, &[], &[PLAIN, COMPRESSED]).await;
}

/// A pool without feature `head_errlog` notes damage in another way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_error_logs_forget_what_was_healed() {
    let (world, image) = (World::system(2), Image::new(256));
    let features = pool::FeatureChoice::None;
    let pool = create_with(&world, &image, features, &[("compression", "on")]).await;
    let ino = fill(&world, &pool, "tank", 1).await;
    let lost = [
        pointer(&pool, "tank@s", ino, 2).await,
        pointer(&pool, "tank@s", ino, 6).await,
    ];
    let bytes = streams::send(&pool, "tank@s", None, &PLAIN).await;
    pool.export(false).await.expect("export");
    let disk = Disk::of(image.path());
    lost.iter().for_each(|lost| drop(disk.damage(lost)));
    let pool = import(&world, image.path(), false).await;
    let filesystem = open(&world, &pool, "tank@s").await;
    is_lost(&filesystem, ino, 2).await;
    is_lost(&filesystem, ino, 6).await;
    filesystem.close().await.expect("close");
    pool.sync().await.expect("sync");
    assert_eq!(pool.damaged().await.len(), 2);
    let (healed, outcome) = heal(&pool, &bytes, "tank@s").await;
    outcome.expect("healed");
    assert_eq!(healed.blocks, 2);
    assert_eq!(pool.damaged().await, Vec::new());
    pool.export(false).await.expect("export");
    let pool = import(&world, image.path(), false).await;
    assert_eq!(pool.damaged().await, Vec::new());
    is_whole(&world, &pool, "tank@s", ino, 1).await;
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// With raw streams, without the key; and with others, with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_blocks_are_healed() {
    let (world, image) = (World::system(2), Image::new(256));
    let pool = create(&world, &image, &[("compression", "lz4")]).await;
    let wrapping = || WrappingKey::new([7; 32]);
    let key = || NewKey::new(KeyFormat::Raw, wrapping()).expect("a key");
    let mut sent = Vec::new();
    for (number, suite) in ["aes-256-gcm", "aes-128-ccm"].iter().enumerate() {
        let name = format!("tank/fs{number}");
        let properties = [
            ("encryption".to_owned(), (*suite).to_owned()),
            ("keyformat".to_owned(), "raw".to_owned()),
            ("keylocation".to_owned(), "file:///key".to_owned()),
        ];
        pool.dsl()
            .datasets()
            .create_with_key(&name, &properties, Arc::new(ZplInit::new()), Some(key()))
            .await
            .expect("created");
        let seed = number as u64 + 1;
        let ino = fill(&world, &pool, &name, seed).await;
        let snapshot = format!("{name}@s");
        let raw = rawstreams::send(&pool, &snapshot, None).await;
        let plain = streams::send(&pool, &snapshot, None, &PLAIN).await;
        let compressed = streams::send(&pool, &snapshot, None, &COMPRESSED).await;
        let lost = [
            pointer(&pool, &snapshot, ino, 0).await,
            pointer(&pool, &snapshot, ino, 7).await,
        ];
        assert!(lost[0].uses_crypt());
        sent.push((snapshot, seed, ino, raw, [plain, compressed], lost));
    }
    let mut pool = pool;
    for (snapshot, seed, ino, raw, plain, lost) in &sent {
        let (head, _) = snapshot.split_once('@').expect("a snapshot");
        pool.export(false).await.expect("export");
        let disk = Disk::of(image.path());
        lost.iter().for_each(|lost| drop(disk.damage(lost)));
        pool = import(&world, image.path(), false).await;
        // Nobody could tell, or encrypt, what comes in the clear.
        let (healed, outcome) = heal(&pool, &plain[0], snapshot).await;
        assert!(
            matches!(
                outcome,
                Err(StreamError::Dataset(DatasetError::Receive {
                    obstacle: ReceiveObstacle::NeedsKey,
                    ..
                }))
            ),
            "{outcome:?}"
        );
        assert_eq!(healed, Healed::default());
        let (healed, outcome) = heal(&pool, raw, snapshot).await;
        outcome.expect("healed");
        assert_eq!(healed.blocks, 2, "raw");
        pool.dsl()
            .keys()
            .load(head, wrapping(), false)
            .await
            .expect("the right key");
        is_whole(&world, &pool, snapshot, *ino, *seed).await;
        for bytes in plain {
            pool.export(false).await.expect("export");
            lost.iter().for_each(|lost| drop(disk.damage(lost)));
            pool = import(&world, image.path(), false).await;
            pool.dsl()
                .keys()
                .load(head, wrapping(), false)
                .await
                .expect("the right key");
            let (healed, outcome) = heal(&pool, bytes, snapshot).await;
            outcome.expect("healed");
            assert_eq!(healed.blocks, 2, "in the clear");
            is_whole(&world, &pool, snapshot, *ino, *seed).await;
        }
        assert_eq!(pool.damaged().await, Vec::new());
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Blocks in pieces, of OpenZFS's making.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_of_gang_blocks_are_healed() {
    let Some(golden) = golden() else { return };
    let (world, image) = (World::system(2), Image::empty());
    let dir: PathBuf = unpack(&golden, "gang", image.path());
    let pool = import(&world, &dir, false).await;
    take(&pool, "gang/big@s").await;
    let sent = streams::send(&pool, "gang/big@s", None, &COMPRESSED_LARGE).await;
    // The first gang block of data that there is.
    let dataset = pool.dsl().open_dataset("gang/big@s").await.expect("open");
    let (mut at, mut found) = (None, None);
    'objects: while let Some(id) = dataset.objset().next_object(at).await.expect("next") {
        let object = dataset.objset().hold(id).await.expect("hold");
        for block in 0..=object.info().max_block_id.min(64) {
            let pointer = object.block_pointer(block).await.expect("a pointer");
            if pointer.is_gang() && !object.info().object_type.is_metadata() {
                found = Some((id, block, pointer));
                break 'objects;
            }
        }
        at = Some(id);
    }
    let (id, block, gang) = found.expect("a gang block");
    let reader = pool.pipeline().reader();
    let context = ReadContext::default();
    let members = reader.read_gang_header(&gang, &context).await;
    let members = members.expect("its header");
    let whole = pool.pipeline().read(&gang, &context).await.expect("read");
    drop(dataset);
    pool.export(false).await.expect("export");

    let disk = Disk::of(&dir);
    let is_piece = |member: &&BlockPointer| !member.is_gang();
    let pieces: Vec<_> = members.iter().filter(is_piece).take(2).collect();
    assert!(!pieces.is_empty());
    let before: Vec<_> = pieces.iter().map(|piece| disk.damage(piece)).collect();
    let pool = import(&world, &dir, false).await;
    let lost = pool.pipeline().read(&gang, &context).await;
    lost.expect_err("it is damaged");
    let (healed, outcome) = heal(&pool, &sent, "gang/big@s").await;
    outcome.expect("healed");
    assert_eq!(healed.blocks, 1, "block {block} of object {id}");
    let read = pool.pipeline().read(&gang, &context).await;
    assert!(read.expect("read") == whole);
    pool.export(false).await.expect("export");
    for (piece, stored) in pieces.iter().zip(before) {
        for dva in piece.dvas() {
            assert!(disk.stored(&dva, piece.psize_bytes()) == stored, "{piece}");
        }
    }
    zdb_is_clean(&dir, "gang");
}

const COMPRESSED_LARGE: SendOptions = SendOptions {
    large_blocks: true,
    ..COMPRESSED
};

/// A stream of another snapshot, one that ends early, and one that does not have what is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_do_not_fit_change_nothing() {
    let (world, image) = (World::system(2), Image::new(256));
    let pool = create(&world, &image, &[("compression", "off")]).await;
    let ino = fill(&world, &pool, "tank", 1).await;
    let full = streams::send(&pool, "tank@s", None, &PLAIN).await;
    let filesystem = open(&world, &pool, "tank").await;
    let data = content(2).slice(..RECORD_BYTES as usize);
    let written = filesystem
        .write(ino, 3 * RECORD_BYTES, data, false, ROOT)
        .await;
    written.expect("write");
    filesystem.close().await.expect("close");
    take(&pool, "tank@t").await;
    let difference = streams::send(&pool, "tank@t", Some("tank@s"), &PLAIN).await;
    let changed = pointer(&pool, "tank@t", ino, 3).await;
    let lost = [
        pointer(&pool, "tank@s", ino, 1).await,
        pointer(&pool, "tank@s", ino, 3).await,
        pointer(&pool, "tank@s", ino, 6).await,
    ];
    pool.export(false).await.expect("export");
    let disk = Disk::of(image.path());
    lost.iter().for_each(|lost| drop(disk.damage(lost)));
    disk.damage(&changed);
    let is_damaged = |pointer: &BlockPointer| {
        let dva = pointer.dva(0).expect("a place");
        disk.stored(&dva, 512) == [0xa5; 512]
    };

    let pool = import(&world, image.path(), false).await;
    for (bytes, name) in [
        (&full, "tank@t"),
        (&difference, "tank@s"),
        (&full, "tank@none"),
        (&full, "tank/none@s"),
    ] {
        let (healed, outcome) = heal(&pool, bytes, name).await;
        let Err(StreamError::Dataset(DatasetError::Receive { obstacle, .. })) = outcome else {
            panic!("{name}: {outcome:?}");
        };
        let expected = match name.ends_with("none") || name.contains("/none") {
            true => ReceiveObstacle::NothingToHeal,
            false => ReceiveObstacle::OtherSnapshot,
        };
        assert_eq!(obstacle, expected, "{name}");
        assert_eq!(healed, Healed::default());
    }
    assert!(lost.iter().all(is_damaged) && is_damaged(&changed));
    // A difference has what changed, and no more.
    let (healed, outcome) = heal(&pool, &difference, "tank@t").await;
    outcome.expect("healed");
    assert_eq!(healed.blocks, 1);
    assert!(lost.iter().all(is_damaged) && !is_damaged(&changed));
    // Cut behind the second of the lost blocks.
    let end = full.len() - 3 * RECORD_BYTES as usize;
    let (healed, outcome) = heal(&pool, &full[..end], "tank@s").await;
    assert!(matches!(outcome, Err(StreamError::CutShort)), "{outcome:?}");
    assert_eq!(healed.blocks, 2);
    assert!(!is_damaged(&lost[0]) && !is_damaged(&lost[1]) && is_damaged(&lost[2]));
    // Something else comes under that number.
    let mut forged = full.clone();
    let at = forged.len() - RECORD_BYTES as usize;
    forged[at] ^= 1;
    let (_, outcome) = heal(&pool, &forged, "tank@s").await;
    assert!(matches!(outcome, Err(StreamError::Checksum)), "{outcome:?}");
    let (healed, outcome) = heal(&pool, &full, "tank@s").await;
    outcome.expect("the rest");
    assert!(healed.blocks <= 1);
    is_whole(&world, &pool, "tank@s", ino, 1).await;
    assert_eq!(pool.damaged().await, Vec::new());
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// What comes has other data than what is lost: that stays, and it is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_not_written() {
    let (world, image) = (World::system(2), Image::new(256));
    let pool = create(&world, &image, &[("compression", "lz4")]).await;
    let ino = fill(&world, &pool, "tank", 1).await;
    let lost = [
        pointer(&pool, "tank@s", ino, 1).await,
        pointer(&pool, "tank@s", ino, 2).await,
    ];
    let full = streams::send(&pool, "tank@s", None, &PLAIN).await;
    // The same guid; a byte of the second lost block is another one.
    let forged = forge(&full, ino, 2 * RECORD_BYTES).await;
    pool.export(false).await.expect("export");
    let disk = Disk::of(image.path());
    lost.iter().for_each(|lost| drop(disk.damage(lost)));
    let pool = import(&world, image.path(), false).await;
    let (healed, outcome) = heal(&pool, &forged, "tank@s").await;
    let is_told = matches!(outcome, Err(StreamError::NotHealed { blocks: 1, .. }));
    assert!(is_told, "{outcome:?}");
    assert_eq!((healed.blocks, healed.lost), (1, 1));
    let dva = lost[1].dva(0).expect("a place");
    assert_eq!(disk.stored(&dva, 512), [0xa5; 512]);
    assert_eq!(
        pool.damaged().await.len(),
        2,
        "in the filesystem and its snapshot"
    );
    let (healed, outcome) = heal(&pool, &full, "tank@s").await;
    outcome.expect("healed");
    assert_eq!(healed.blocks, 1);
    is_whole(&world, &pool, "tank@s", ino, 1).await;
    assert_eq!(pool.damaged().await, Vec::new());
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// A stream with a byte of a block changed, and the right checksums.
async fn forge(bytes: &[u8], ino: u64, offset: u64) -> Vec<u8> {
    use codec::checksum::Fletcher4;
    use format::Endian;
    use format::stream::{RECORD_BYTES, RECORD_CHECKSUM_OFFSET, Record};

    let (mut out, mut sum, mut at) = (Vec::new(), Fletcher4::new(Endian::Little), 0);
    while at < bytes.len() {
        let mut header: [u8; RECORD_BYTES] = bytes[at..at + RECORD_BYTES].try_into().expect("all");
        let record = Record::decode(&header, Endian::Little).expect("a record");
        let length = match &record {
            Record::Begin(begin) => begin.payload_bytes as usize,
            record => record.payload_bytes().expect("a length"),
        };
        at += RECORD_BYTES;
        let mut payload = bytes[at..at + length].to_vec();
        at += length;
        if let Record::Write(write) = &record
            && (write.object, write.offset_bytes) == (ino, offset)
        {
            payload[77] ^= 1;
        }
        if let Record::End { to_guid, .. } = record {
            let checksum = sum.words();
            header = Record::End { checksum, to_guid }.encode();
        }
        sum.update(&header[..RECORD_CHECKSUM_OFFSET]);
        if !matches!(record, Record::Begin(_)) {
            let words = sum.words();
            let places = header[RECORD_CHECKSUM_OFFSET..].chunks_exact_mut(8);
            for (place, word) in places.zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
        sum.update(&header[RECORD_CHECKSUM_OFFSET..]);
        sum.update(&payload);
        out.extend_from_slice(&header);
        out.extend_from_slice(&payload);
    }
    out
}
