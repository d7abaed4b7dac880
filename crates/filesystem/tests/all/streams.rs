//! Goal: a stream of OpenZFS's becomes what it is a stream of. Method: every stream of the golden
//! set is received, after those that it is the difference to; trees, volumes and guids are compared
//! with the manifest, and zdb looks at the pool.

use std::io::Cursor;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use codec::checksum::Fletcher4;
use dataset::{DatasetError, ListOptions, ReceiveTarget, ResumeToken};
use device::World;
use filesystem::ZplInit;
use format::Endian;
use format::stream::{HeaderKind, RECORD_BYTES, RECORD_CHECKSUM_OFFSET, Record, StreamFeatures};
use pool::Pool;
use serde_json::Value;
use stream::{Piece, Progress, Received, SendOptions, Start, StreamError, StreamReader};

use crate::common::*;
use crate::golden::{Compared, check_tree, hash_volume};

pub struct Stream {
    pub manifest: Value,
    pub bytes: Vec<u8>,
}

pub fn load(name: &str) -> Option<Stream> {
    let streams = golden()?.join("streams");
    let manifest = std::fs::read(streams.join(format!("{name}.json"))).expect("a manifest");
    let packed = streams.join(format!("{name}.zstream.zst"));
    let unpacked = Command::new("zstd").arg("-dc").arg(&packed).output();
    let unpacked = unpacked.expect("zstd runs");
    assert!(unpacked.status.success(), "{}", packed.display());
    Some(Stream {
        manifest: serde_json::from_slice(&manifest).expect("JSON"),
        bytes: unpacked.stdout,
    })
}

/// How a stream is received.
#[derive(Clone, Default)]
pub struct How {
    pub force: bool,
    pub resumable: bool,
    pub origin: Option<String>,
}

/// Receives one stream that is no package, or in a package without any others.
pub async fn receive(
    pool: &Pool,
    bytes: &[u8],
    target: &str,
    how: &How,
) -> Result<Received, StreamError> {
    let mut reader = StreamReader::new(Cursor::new(bytes.to_vec()));
    let (begin, list) = loop {
        let Start::Begin(begin, list) = reader.start().await? else {
            return Err(StreamError::CutShort);
        };
        if begin.header == HeaderKind::Snapshot {
            break (begin, list);
        }
        reader.skip().await?;
    };
    let (_, snapshot) = begin.to_name.split_once('@').expect("a snapshot");
    let target = ReceiveTarget {
        name: target.to_owned(),
        snapshot: snapshot.to_owned(),
        begin: *begin,
        origin: how.origin.clone(),
        force: how.force,
        resumable: how.resumable,
        properties: Vec::new(),
        new_key: None,
        key_data: list.list("crypt_keydata").cloned(),
        redaction: dataset::Redaction::of(&list),
    };
    let dsl = pool.dsl();
    let receiving = dsl.receives().begin(target).await?;
    let progress = Progress::default();
    let received = stream::receive(&mut reader, &list, &receiving, &progress).await;
    let ended = match received {
        Ok(received) => (dsl.receives().finish(&receiving).await)
            .map(|()| received)
            .map_err(Into::into),
        Err(error) => Err(error),
    };
    if let Err(error) = &ended {
        let keep = error.is_of_stream();
        dsl.receives().give_up(receiving, keep).await?;
    }
    ended
}

/// Compares what was received with the manifest.
pub async fn check(world: &World, pool: &Pool, manifest: &Value, target: &str, is_last: bool) {
    let name_of = |name: &str| name.replacen("TARGET", target, 1);
    for (name, tree) in manifest["trees"].as_object().expect("trees") {
        // A live filesystem that somebody opened is not what its snapshot is.
        if !is_last && !name.contains('@') {
            continue;
        }
        let filesystem = open(world, pool, &name_of(name)).await;
        let tree = tree.as_array().expect("a list");
        check_tree(&filesystem, name, tree, Compared::AllButSpace).await;
        filesystem.close().await.expect("close");
    }
    for volume in manifest["zvols"].as_array().into_iter().flatten() {
        let name = name_of(volume["name"].as_str().expect("a name"));
        let wanted = volume["sha256"].as_str().expect("a hash");
        let size = volume["volsize"].as_u64().expect("a size");
        assert_eq!(hash_volume(pool, &name, size).await, wanted, "{name}");
    }
    for dataset in manifest["datasets"].as_array().expect("datasets") {
        let name = name_of(dataset["name"].as_str().expect("a name"));
        let found = pool
            .dsl()
            .directories()
            .lookup(&name)
            .await
            .expect("it is there");
        let wanted = |property: &str| dataset["props"][property].as_str().map(str::to_owned);
        if name.contains('@') {
            assert_eq!(wanted("guid"), Some(found.guid.to_string()), "{name}: guid");
            let creation = Some(found.creation_seconds.to_string());
            assert_eq!(wanted("creation"), creation, "{name}: creation");
        }
    }
}

/// Receives the streams one after the other into one dataset, and compares after each.
async fn receive_all(names: &[&str]) {
    if golden().is_none() {
        return;
    }
    let (world, image) = (World::system(2), Image::new(512));
    let pool = create(&world, &image, &[]).await;
    for name in names {
        let stream = load(name).expect("it is there");
        let force = stream.manifest["receive"]
            .as_str()
            .is_some_and(|command| command.contains(" -F "));
        let how = How {
            force,
            ..How::default()
        };
        let received = receive(&pool, &stream.bytes, "tank/target", &how).await;
        received.unwrap_or_else(|error| panic!("{name}: {error}"));
        let is_last = names.last() == Some(name);
        check(&world, &pool, &stream.manifest, "tank/target", is_last).await;
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

macro_rules! received {
    ($($test:ident: $($name:literal)*;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            receive_all(&[$($name),*]).await;
        }
    )*};
}

received! {
    differences: "full" "incr_i";
    a_difference_that_skips_snapshots: "full" "incr_skip";
    a_difference_to_a_bookmark: "full" "incr_bookmark";
    compressed_and_embedded: "Lec";
    every_kind_of_file: "nonflag_kinds";
    large_blocks: "big_L";
    the_largest_blocks: "big_Lc16M";
    large_blocks_that_are_split: "big_split";
    names_without_case: "ci";
    decrypted: "decrypted";
    large_dnodes: "dnode";
    volumes: "vol" "vol_incr";
    attributes_in_directories: "xattr_dir";
    attributes_in_dnodes: "xattr_sa";
    redacted: "redacted";
}

/// Sends a snapshot.
pub async fn send(pool: &Pool, name: &str, from: Option<&str>, options: &SendOptions) -> Vec<u8> {
    let source = pool
        .dsl()
        .sends()
        .source(name, from)
        .await
        .expect("a snapshot");
    let mut out = Vec::new();
    let progress = Progress::default();
    stream::send(&source, options, &mut out, &progress)
        .await
        .expect("sent");
    assert_eq!(progress.bytes(), out.len() as u64);
    out
}

/// Records of a stream, without what another pool has otherwise.
pub async fn records(bytes: &[u8]) -> Vec<Record> {
    let mut reader = StreamReader::new(bytes);
    let Start::Begin(..) = reader.start().await.expect("a beginning") else {
        panic!("no beginning");
    };
    let mut out = Vec::new();
    loop {
        let mut record = reader.next().await.expect("a record").record;
        match &mut record {
            Record::Write(write) => {
                (write.checksum, write.flags, write.key) = (0, 0, [0; 5]);
            }
            Record::End { .. } => return out,
            _ => {}
        }
        out.push(record);
    }
}

/// Receives golden streams, sends what they made, receives that, and compares it with the manifest.
///
/// `are_alike`: the golden streams were made with the same options, of files that are stored as
/// those that were received are.
async fn send_on(names: &[&str], options: SendOptions, are_alike: bool) {
    if golden().is_none() {
        return;
    }
    let (world, image) = (World::system(2), Image::new(768));
    let pool = create(&world, &image, &[("recordsize", "128K")]).await;
    let how = How {
        force: true,
        ..How::default()
    };
    let mut before: Option<String> = None;
    for name in names {
        let stream = load(name).expect("it is there");
        receive(&pool, &stream.bytes, "tank/target", &how)
            .await
            .expect("received");
        let mut reader = StreamReader::new(&stream.bytes[..]);
        let Start::Begin(begin, _) = reader.start().await.expect("a beginning") else {
            panic!("no beginning");
        };
        let (_, snapshot) = begin.to_name.split_once('@').expect("a snapshot");
        let snapshot = format!("tank/target@{snapshot}");
        let sent = send(&pool, &snapshot, before.as_deref(), &options).await;
        if are_alike {
            let (ours, theirs) = (records(&sent).await, records(&stream.bytes).await);
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(ours, theirs, "{name}");
            }
            assert_eq!(ours.len(), theirs.len(), "{name}");
        }
        receive(&pool, &sent, "tank/copy", &how)
            .await
            .expect("received");
        let is_last = names.last() == Some(name);
        check(&world, &pool, &stream.manifest, "tank/copy", is_last).await;
        before = Some(snapshot);
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

macro_rules! sent {
    ($($test:ident: $options:expr, $are_alike:literal, $($name:literal)*;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            send_on(&[$($name),*], $options, $are_alike).await;
        }
    )*};
}

const PLAIN: SendOptions = SendOptions {
    large_blocks: false,
    embedded: false,
    compressed: false,
    raw: false,
    resume_at: None,
};
const AS_STORED: SendOptions = SendOptions {
    large_blocks: true,
    embedded: true,
    compressed: true,
    raw: false,
    resume_at: None,
};

sent! {
    differences_are_sent: PLAIN, true, "full" "incr_i";
    differences_are_sent_as_stored: AS_STORED, false, "full" "incr_i";
    every_kind_of_file_is_sent: PLAIN, false, "nonflag_kinds";
    every_kind_of_file_is_sent_as_stored: AS_STORED, false, "nonflag_kinds";
    large_blocks_are_sent_whole: AS_STORED, false, "big_L";
    large_blocks_are_sent_in_pieces: PLAIN, false, "big_split";
    large_dnodes_are_sent: PLAIN, true, "dnode";
    volumes_are_sent: PLAIN, false, "vol" "vol_incr";
    attributes_are_sent: PLAIN, false, "xattr_sa";
    directories_of_attributes_are_sent: PLAIN, true, "xattr_dir";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_is_received_with_its_origin() {
    let Some(full) = load("full") else { return };
    let clone = load("clone").expect("it is there");
    let (world, image) = (World::system(2), Image::new(512));
    let pool = create(&world, &image, &[]).await;
    let how = How::default();
    receive(&pool, &full.bytes, "tank/full", &how)
        .await
        .expect("received");
    assert!(
        receive(&pool, &clone.bytes, "tank/clone", &how)
            .await
            .is_err()
    );
    let how = How {
        origin: Some("tank/full@s1".into()),
        ..how
    };
    receive(&pool, &clone.bytes, "tank/clone", &how)
        .await
        .expect("received");
    check(&world, &pool, &clone.manifest, "tank/clone", true).await;
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_receive_goes_on() {
    let Some(partial) = load("partial") else {
        return;
    };
    let resumed = load("resumed").expect("it is there");
    let (world, image) = (World::system(2), Image::new(512));
    let pool = create(&world, &image, &[]).await;
    let how = How {
        resumable: true,
        ..How::default()
    };
    let cut = receive(&pool, &partial.bytes, "tank/target", &how).await;
    assert!(matches!(cut, Err(StreamError::CutShort)), "{cut:?}");
    let token = pool
        .dsl()
        .properties()
        .get("tank/target", "receive_resume_token")
        .await
        .expect("a token");
    let token = ResumeToken::decode(token.value.text().expect("text")).expect("a token");
    let given = partial.manifest["receive_resume_token"].as_str();
    assert_eq!(Some(token), given.and_then(ResumeToken::decode));
    receive(&pool, &resumed.bytes, "tank/target", &how)
        .await
        .expect("received");
    check(&world, &pool, &resumed.manifest, "tank/target", true).await;
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// Whether a pool has nothing but its root.
async fn is_empty(pool: &Pool) -> bool {
    let dsl = pool.dsl();
    let all = dsl
        .directories()
        .list("tank", &ListOptions::default())
        .await;
    let hidden = dsl.directories().lookup("tank/target/%recv").await;
    all.expect("listed").len() == 1 && hidden.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_streams_leave_the_target_as_it_was() {
    let Some(whole) = load("whole") else { return };
    let (world, image) = (World::system(2), Image::new(256));
    let pool = create(&world, &image, &[]).await;
    let mut random = Random(7);
    for turn in 0..24 {
        let mut bytes = whole.bytes.clone();
        let at = random.below(bytes.len() as u64) as usize;
        match turn % 2 {
            0 => bytes.truncate(at),
            _ => bytes[at] ^= 1 << random.below(8),
        }
        let received = receive(&pool, &bytes, "tank/target", &How::default()).await;
        assert!(received.is_err(), "{turn}: {at}");
        assert!(is_empty(&pool).await, "{turn}: {at}");
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// A crash in the middle leaves what the next import destroys, or what it can go on with.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_leaves_nothing_that_is_in_the_way() {
    let Some(full) = load("full") else { return };
    let difference = load("incr_i").expect("it is there");
    let (world, image) = (World::system(2), Image::new(512));
    let pool = create(&world, &image, &[]).await;
    let how = How::default();
    receive(&pool, &full.bytes, "tank/target", &how)
        .await
        .expect("received");
    let mut reader = StreamReader::new(&difference.bytes[..]);
    let Start::Begin(begin, list) = reader.start().await.expect("a beginning") else {
        panic!("no beginning");
    };
    let target = ReceiveTarget {
        name: "tank/target".into(),
        snapshot: "s2".into(),
        begin: *begin,
        origin: None,
        force: false,
        resumable: false,
        properties: Vec::new(),
        new_key: None,
        key_data: list.list("crypt_keydata").cloned(),
        redaction: dataset::Redaction::of(&list),
    };
    let receiving = pool
        .dsl()
        .receives()
        .begin(target)
        .await
        .expect("it begins");
    pool.dsl().sync().await.expect("on disk");
    let after = cut(&image);
    drop(receiving);
    pool.export(true).await.expect("export");
    let pool = import_after_cut(&world, after.path()).await;
    pool.dsl()
        .receives()
        .destroy_interrupted()
        .await
        .expect("destroyed");
    receive(&pool, &difference.bytes, "tank/target", &how)
        .await
        .expect("received");
    check(&world, &pool, &difference.manifest, "tank/target", true).await;
    pool.export(false).await.expect("export");
    zdb_is_clean(after.path(), "tank");
}

/// Goal: what a difference begins with is a state that what is sent once was in. A bookmark of the
/// filesystem that a clone was made of is none where it is later than the clone's origin, however
/// many clones are between: what was changed in the clone before that would not be sent.
#[tokio::test(flavor = "multi_thread")]
async fn bookmarks_later_than_the_origin_are_refused() {
    let (world, image) = (World::system(2), Image::new(128));
    let pool = create(&world, &image, &[]).await;
    let dsl = pool.dsl();
    let take = async |name: &str| {
        let taken = dsl.snapshots().take(&[name.to_owned()], &[]).await;
        taken.unwrap_or_else(|error| panic!("{name}: {error}"));
    };
    let mark = async |name: &str, of: &str| {
        let made = [(name.to_owned(), of.to_owned())];
        dsl.bookmarks().create(&made).await.expect("a bookmark");
    };
    let clone = async |of: &str, name: &str| {
        let made = dsl.datasets().clone_snapshot(of, name, &[]).await;
        made.expect("a clone");
    };
    let write = async |head: &str| {
        let filesystem = open(&world, &pool, head).await;
        let name = head.replace('/', "_");
        let file = filesystem.create(filesystem.root(), name.as_bytes(), 0o644, ROOT);
        file.await.expect("a file");
        filesystem.close().await.expect("close");
    };
    let init = Arc::new(ZplInit::new());
    let made = dsl.datasets().create("tank/fs", &[], init).await;
    made.expect("a filesystem");
    take("tank/fs@s1").await;
    mark("tank/fs#one", "tank/fs@s1").await;
    clone("tank/fs@s1", "tank/c").await;
    write("tank/c").await;
    take("tank/c@k").await;
    mark("tank/c#k", "tank/c@k").await;
    clone("tank/c@k", "tank/d").await;
    write("tank/fs").await;
    take("tank/fs@s2").await;
    mark("tank/fs#two", "tank/fs@s2").await;
    take("tank/c@late").await;
    mark("tank/c#late", "tank/c@late").await;
    take("tank/c@x").await;
    write("tank/d").await;
    take("tank/d@x").await;

    for (name, from) in [
        ("tank/fs@s1", "tank/fs#one"),
        ("tank/fs@s1", "tank/fs#two"),
        ("tank/fs@s2", "tank/c#k"),
        ("tank/c@x", "tank/fs#two"),
        ("tank/d@x", "tank/fs#two"),
        ("tank/d@x", "tank/c#late"),
    ] {
        let refused = dsl.sends().source(name, Some(from)).await.err();
        assert!(
            matches!(refused, Some(DatasetError::WrongKind { .. })),
            "{from} {name}: {refused:?}"
        );
    }
    for (name, from) in [
        ("tank/fs@s2", "tank/fs#one"),
        ("tank/c@x", "tank/fs#one"),
        ("tank/c@x", "tank/c#late"),
        ("tank/d@x", "tank/fs#one"),
        ("tank/d@x", "tank/c#k"),
    ] {
        let source = dsl.sends().source(name, Some(from)).await;
        let source = source.unwrap_or_else(|error| panic!("{from} {name}: {error}"));
        let is_own = name.split('@').next() == from.split('#').next();
        assert_eq!(source.from.map(|from| from.is_origin), Some(!is_own));
        send(&pool, name, Some(from), &PLAIN).await;
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// What was only moved (`zfs rewrite -P`) is not sent again.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_moved_is_no_difference() {
    const BYTES: usize = 4 << 20;
    let (world, image) = (World::system(2), Image::new(256));
    let pool = create(&world, &image, &[]).await;
    let enabled = pool
        .properties()
        .set("feature@physical_rewrite", "enabled")
        .await;
    enabled.expect("enabled");
    let filesystem = open(&world, &pool, "tank").await;
    let root = filesystem.root();
    let mut inos = Vec::new();
    for name in [&b"moved"[..], b"changed"] {
        let made = filesystem.create(root, name, 0o644, ROOT).await;
        let ino = made.expect("created").ino;
        let data = Bytes::from(Random(ino).bytes(BYTES));
        let written = filesystem.write(ino, 0, data, false, ROOT).await;
        written.expect("written");
        inos.push(ino);
    }
    pool.sync().await.expect("sync");
    let snapshots = pool.dsl().snapshots();
    snapshots
        .take(&["tank@a".to_owned()], &[])
        .await
        .expect("a");
    for (ino, physically) in inos.iter().zip([true, false]) {
        let mut at = Some(0);
        while let Some(from) = at {
            let part = filesystem.rewrite_part(*ino, from, u64::MAX, physically);
            at = part.await.expect("rewritten");
        }
    }
    pool.sync().await.expect("sync");
    snapshots
        .take(&["tank@b".to_owned()], &[])
        .await
        .expect("b");
    let sent = send(&pool, "tank@b", Some("tank@a"), &SendOptions::default()).await;
    let mut written = std::collections::BTreeMap::<u64, usize>::new();
    for record in records(&sent).await {
        if let Record::Write(write) = record {
            *written.entry(write.object).or_default() += 1;
        }
    }
    let blocks = BYTES / (128 << 10);
    assert_eq!(written, [(inos[1], blocks)].into());
    filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
}

/// Blocks of 1 MiB that zstd puts into their pointers, sent by every set of options: all of them
/// are received, and none is longer than the stream says. A stream that has them whole without
/// saying so (Millpond made such once) is received, and that is said.
#[tokio::test(flavor = "multi_thread")]
async fn large_embedded_blocks_are_sent_so_that_they_can_be_received() {
    const BLOCK_BYTES: usize = 1 << 20;
    let (world, image) = (World::system(2), Image::new(512));
    let properties = [("recordsize", "1M"), ("compression", "zstd")];
    let pool = create(&world, &image, &properties).await;
    let filesystem = open(&world, &pool, "tank").await;
    let file = filesystem.create(filesystem.root(), b"file", 0o644, ROOT);
    let ino = file.await.expect("create").ino;
    let content: Bytes = [vec![1; BLOCK_BYTES], vec![2; BLOCK_BYTES]].concat().into();
    let written = filesystem.write(ino, 0, content.clone(), false, ROOT).await;
    written.expect("write");
    filesystem.close().await.expect("close");
    let snapshots = pool.dsl().snapshots();
    snapshots
        .take(&["tank@s".into()], &[])
        .await
        .expect("taken");
    let mut copies = 0;
    for code in 0..8 {
        let options = SendOptions {
            large_blocks: code & 1 != 0,
            embedded: code & 2 != 0,
            compressed: code & 4 != 0,
            ..PLAIN
        };
        let mut sent = send(&pool, "tank@s", None, &options).await;
        let found = records(&sent).await;
        let longest = found.iter().filter_map(|record| match record {
            Record::Write(write) => Some(write.logical_bytes),
            Record::WriteEmbedded(write) => Some(write.length_bytes),
            _ => None,
        });
        let expected = match options.large_blocks {
            true => BLOCK_BYTES as u64,
            false => 128 << 10,
        };
        assert_eq!(longest.max(), Some(expected), "{options:?}");
        let is_embedded = found
            .iter()
            .any(|record| matches!(record, Record::WriteEmbedded(write) if write.object == ino));
        assert_eq!(is_embedded, code == 7, "{options:?}");
        let mut long = vec![0];
        if is_embedded {
            long.push(2);
        }
        for blocks in long {
            if blocks > 0 {
                sent = without_large_blocks(&sent).await;
            }
            let name = format!("tank/copy{copies}");
            copies += 1;
            let received = receive(&pool, &sent, &name, &How::default()).await;
            let received = received.unwrap_or_else(|error| panic!("{options:?}: {error}"));
            assert_eq!(received.long_embedded_blocks, blocks);
            let copy = open(&world, &pool, &name).await;
            let read = copy.read(ino, 0, 2 * BLOCK_BYTES).await.expect("read");
            assert!(read.concat() == content, "{options:?}");
            copy.close().await.expect("close");
        }
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// What a stream writes: object, offset, compression and payload.
async fn writes(bytes: &[u8]) -> Vec<(u64, u64, u8, Bytes)> {
    let mut reader = StreamReader::new(bytes);
    let Start::Begin(..) = reader.start().await.expect("a beginning") else {
        panic!("no beginning");
    };
    let mut out = Vec::new();
    loop {
        let piece = reader.next().await.expect("a record");
        match piece.record {
            Record::Write(write) => out.push((
                write.object,
                write.offset_bytes,
                write.compression,
                piece.payload,
            )),
            Record::End { .. } => return out,
            _ => {}
        }
    }
}

/// Goal: blocks that come compressed are stored as they came, whatever is compressed with where
/// they are received: sent from there, they are the same. What is no block there, as it comes in
/// parts, or in the clear, is stored as the properties say.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_stored_as_they_were_sent() {
    let (world, image) = (World::system(2), Image::new(256));
    let pool = create(&world, &image, &[("compression", "gzip-9")]).await;
    let filesystem = open(&world, &pool, "tank").await;
    let root = filesystem.root();
    // Half of each block can be compressed, of one file all but nothing.
    for (name, noise) in [(&b"half"[..], 64 << 10), (b"little", 4 << 10)] {
        let made = filesystem.create(root, name, 0o644, ROOT).await;
        let ino = made.expect("created").ino;
        let mut content = Random(ino).bytes(1 << 20);
        for block in content.chunks_mut(128 << 10) {
            block[noise..].fill(b'-');
        }
        let written = filesystem.write(ino, 0, content.into(), false, ROOT).await;
        written.expect("written");
    }
    filesystem.close().await.expect("close");
    pool.sync().await.expect("sync");
    let taken = pool.dsl().snapshots();
    taken.take(&["tank@a".into()], &[]).await.expect("taken");
    let (stored, plain) = (
        send(&pool, "tank@a", None, &AS_STORED).await,
        send(&pool, "tank@a", None, &PLAIN).await,
    );
    let sent = writes(&stored).await;
    let gzip = format::Compression::Gzip(9).code();
    let is_gzip = |write: &&(u64, u64, u8, Bytes)| write.2 == gzip;
    assert_eq!(sent.iter().filter(is_gzip).count(), 16);
    for compression in ["off", "lz4", "zstd"] {
        let change = dataset::PropertyChange::Set(compression.into());
        let set = [("compression".to_owned(), change)];
        let properties = pool.dsl().properties();
        properties.set("tank", &set).await.expect("set");
        let (as_sent, anew) = (
            format!("tank/{compression}"),
            format!("tank/{compression}-anew"),
        );
        for (bytes, target) in [(&stored, &as_sent), (&plain, &anew)] {
            let received = receive(&pool, bytes, target, &How::default()).await;
            received.unwrap_or_else(|error| panic!("{target}: {error}"));
        }
        let again = send(&pool, &format!("{as_sent}@a"), None, &AS_STORED).await;
        let again = writes(&again).await;
        assert!(again == sent, "{compression}");
        let other = send(&pool, &format!("{anew}@a"), None, &AS_STORED).await;
        assert_eq!(writes(&other).await.iter().filter(is_gzip).count(), 0);
        let same = send(&pool, &format!("{as_sent}@a"), None, &PLAIN).await;
        assert!(writes(&same).await == writes(&plain).await, "{compression}");
    }
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// A stream as Millpond sent it once without `-L`: its beginning says nothing of large blocks, and
/// objects are cut to blocks of 128 KiB.
async fn without_large_blocks(bytes: &[u8]) -> Vec<u8> {
    const FEATURES_OFFSET: usize = 16;
    let mut sum = Fletcher4::new(Endian::Little);
    let mut reader = StreamReader::new(bytes);
    let mut out = bytes[..RECORD_BYTES].to_vec();
    let features = Endian::Little.u64(*out[FEATURES_OFFSET..].first_chunk().expect("it is there"));
    // The two low bits are the kind of header; features are above them.
    let without = features & !(StreamFeatures::LARGE_BLOCKS.0 << 2);
    out[FEATURES_OFFSET..][..8].copy_from_slice(&without.to_le_bytes());
    let Start::Begin(begin, _) = reader.start().await.expect("a beginning") else {
        panic!("no beginning");
    };
    assert_eq!(begin.payload_bytes, 0);
    sum.update(&out);
    loop {
        let Piece {
            mut record,
            payload,
            ..
        } = reader.next().await.expect("a record");
        if let Record::Object(object) = &mut record {
            object.block_bytes = object.block_bytes.min(128 << 10);
        }
        if let Record::End { checksum, .. } = &mut record {
            *checksum = sum.words();
        }
        let mut header = record.encode();
        sum.update(&header[..RECORD_CHECKSUM_OFFSET]);
        let words = sum.words().map(u64::to_le_bytes).concat();
        header[RECORD_CHECKSUM_OFFSET..].copy_from_slice(&words);
        sum.update(&header[RECORD_CHECKSUM_OFFSET..]);
        sum.update(&payload);
        out.extend_from_slice(&header);
        out.extend_from_slice(&payload);
        if let Record::End { .. } = record {
            return out;
        }
    }
}
