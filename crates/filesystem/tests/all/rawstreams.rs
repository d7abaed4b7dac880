//! Goal: what is encrypted is sent and received without its key, and is there when the key is
//! loaded. Method: OpenZFS's raw streams are received to the state in their manifests, sent on
//! without a key and received again; a filesystem takes random changes between snapshots, which go
//! to another pool as raw differences and are compared with the model; streams are cut, flipped,
//! resumed, and given to targets that they do not fit. MACs are checked by reading all of it with
//! the key, and zdb looks at the pools.

use std::sync::Arc;

use bytes::Bytes;
use codec::crypt::passphrase_key;
use dataset::{DatasetError, ReceiveObstacle, ResumeToken};
use device::World;
use filesystem::{Filesystem, QuotaKind, SetAttributes, ZplInit};
use format::stream::StreamFeatures;
use pool::Pool;
use serde_json::Value;
use stream::{Progress, Received, SendOptions, Start, StreamError, StreamReader};

use crate::common::model::Run;
use crate::common::*;
use crate::streams::{How, check, load, receive, records};

const PASSPHRASE: &[u8] = b"correct horse battery";
const RAW: SendOptions = SendOptions {
    large_blocks: false,
    embedded: false,
    compressed: false,
    raw: true,
    resume_at: None,
};

fn force() -> How {
    How {
        force: true,
        ..How::default()
    }
}

fn resumable() -> How {
    How {
        resumable: true,
        ..How::default()
    }
}

/// A manifest of what was received into `target`.
fn of_target(manifest: &Value, target: &str) -> Value {
    let text = manifest.to_string().replace("TARGET", target);
    serde_json::from_str(&text).expect("JSON")
}

async fn send_with(
    pool: &Pool,
    name: &str,
    from: Option<&str>,
    options: &SendOptions,
) -> Result<Vec<u8>, StreamError> {
    let source = pool.dsl().sends().raw_source(name, from).await?;
    let mut out = Vec::new();
    stream::send(&source, options, &mut out, &Progress::default()).await?;
    Ok(out)
}

pub async fn send(pool: &Pool, name: &str, from: Option<&str>) -> Vec<u8> {
    send_with(pool, name, from, &RAW).await.expect("sent")
}

async fn text(pool: &Pool, name: &str, property: &str) -> String {
    let found = pool.dsl().properties().get(name, property).await;
    let value = found.expect(property).value;
    dataset::props::show_value(dataset::props::find(property), &value, true)
}

/// Receives the streams one after the other, and what the target sends on without its key into
/// another dataset; compares both with the manifests.
async fn receive_all(names: &[&str]) {
    if golden().is_none() {
        return;
    }
    let (world, images) = (World::system(2), [Image::new(512), Image::new(512)]);
    let pool = create(&world, &images[0], &[]).await;
    let other = create(&world, &images[1], &[]).await;
    let mut before = None;
    let mut has_key = false;
    for name in names {
        let stream = load(name).expect("it is there");
        let received = receive(&pool, &stream.bytes, "tank/target", &force()).await;
        received.unwrap_or_else(|error| panic!("{name}: {error}"));
        let snapshot = {
            let mut reader = StreamReader::new(&stream.bytes[..]);
            let Start::Begin(begin, _) = reader.start().await.expect("a beginning") else {
                panic!("no beginning");
            };
            let (_, snapshot) = begin.to_name.split_once('@').expect("a snapshot");
            format!("tank/target@{snapshot}")
        };
        let sent = send(&pool, &snapshot, before.as_deref()).await;
        if !stream.manifest["command"]
            .as_str()
            .is_some_and(|it| it.contains(" -p "))
        {
            let (ours, theirs) = (records(&sent).await, records(&stream.bytes).await);
            for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                assert_eq!(ours, theirs, "{name}: record {at}");
            }
            assert_eq!(ours.len(), theirs.len(), "{name}");
        }
        receive(&other, &sent, "tank/elsewhere/copy", &force())
            .await
            .expect_err("there is nothing above");
        receive(&other, &sent, "tank/copy", &force())
            .await
            .expect("received");
        for (pool, target) in [(&pool, "tank/target"), (&other, "tank/copy")] {
            let manifest = of_target(&stream.manifest, target);
            if !has_key {
                assert_eq!(text(pool, target, "keystatus").await, "unavailable");
                assert_eq!(text(pool, target, "encryptionroot").await, target);
                assert_eq!(text(pool, target, "keylocation").await, "prompt");
                let opened = pool.dsl().open_dataset(target).await.err();
                let is_locked = matches!(opened, Some(DatasetError::KeyNotLoaded { .. }));
                assert!(is_locked, "{opened:?}");
                load_keys(pool, &manifest).await;
            }
            check(&world, pool, &stream.manifest, target, true).await;
        }
        has_key = true;
        before = Some(snapshot);
    }
    for (pool, image) in [(pool, &images[0]), (other, &images[1])] {
        pool.export(false).await.expect("export");
        zdb_is_clean(image.path(), "tank");
    }
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
    differences: "raw" "raw_incr";
    another_suite_with_properties: "raw_hex";
    volumes: "raw_vol";
    large_blocks_dnodes_and_lists: "raw_zpl";
}

/// A pool with an encrypted filesystem of ours in it, below one of OpenZFS's.
struct Source {
    world: World,
    _image: Image,
    pool: Arc<Pool>,
}

const SOURCE: &str = "encrypted/enc/ours";

impl Source {
    async fn new(properties: &[(&str, &str)]) -> Option<Self> {
        let golden = golden()?;
        let manifest = std::fs::read(golden.join("encrypted.json")).expect("manifest");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let (world, image) = (World::system(2), Image::empty());
        let dir = unpack(&golden, "encrypted", image.path());
        let pool = import(&world, &dir, false).await;
        load_keys(&pool, &manifest).await;
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let properties: Vec<_> = properties.iter().map(own).collect();
        pool.dsl()
            .datasets()
            .create(SOURCE, &properties, Arc::new(ZplInit::new()))
            .await
            .expect("created");
        Some(Self {
            world,
            _image: image,
            pool,
        })
    }

    async fn snapshot(&self, name: &str) -> String {
        let full = format!("{SOURCE}@{name}");
        let taken = self
            .pool
            .dsl()
            .snapshots()
            .take(std::slice::from_ref(&full), &[])
            .await;
        taken.expect("taken");
        full
    }
}

/// Loads the key of what came from [`SOURCE`].
async fn unlock(pool: &Pool, name: &str) {
    let info = pool
        .dsl()
        .keys()
        .info(name)
        .await
        .expect("readable")
        .expect("encrypted");
    let iterations = u32::try_from(info.iterations).expect("iterations");
    let key = passphrase_key(PASSPHRASE, info.salt, iterations);
    pool.dsl()
        .keys()
        .load(name, key, false)
        .await
        .expect("the right key");
}

/// Random changes between snapshots; each goes over as a raw difference, one of them to a bookmark,
/// and is what the model was then.
async fn random_changes(seed: u64, properties: &[(&str, &str)]) {
    let Some(source) = Source::new(properties).await else {
        return;
    };
    let (world, pool) = (&source.world, &source.pool);
    let image = Image::new(1024);
    let other = create(world, &image, &[]).await;
    let filesystem = open(world, pool, SOURCE).await;
    let mut run = Run::new(seed, filesystem.clone(), 3_000_000).await;
    let mut before: Option<String> = None;
    for turn in 0..6 {
        for _ in 0..120 {
            run.step().await;
        }
        filesystem.sync_all().await.expect("on disk");
        let snapshot = source.snapshot(&format!("s{turn}")).await;
        let sent = send(pool, &snapshot, before.as_deref()).await;
        receive(&other, &sent, "tank/copy", &How::default())
            .await
            .expect("received");
        if turn == 0 {
            unlock(&other, "tank/copy").await;
        }
        let copy = open(world, &other, &format!("tank/copy@s{turn}")).await;
        run.filesystem = copy.clone();
        run.compare().await;
        run.filesystem = filesystem.clone();
        copy.close().await.expect("close");
        let bookmark = format!("{SOURCE}#b{turn}");
        let new = (bookmark.clone(), snapshot.clone());
        pool.dsl()
            .bookmarks()
            .create(&[new])
            .await
            .expect("a bookmark");
        before = Some(if turn % 2 == 0 { snapshot } else { bookmark });
    }
    // The live filesystem counts what nobody could without the key, and goes on.
    let copy = open(world, &other, "tank/copy").await;
    copy.counting().count_owners().await.expect("counted");
    filesystem.counting().count_owners().await.expect("counted");
    run.filesystem = copy.clone();
    run.compare().await;
    pool.dsl().sync().await.expect("on disk");
    for kind in [QuotaKind::User, QuotaKind::Group, QuotaKind::Project] {
        let objects = async |of: &Filesystem| {
            let found = of.quotas().space_by(kind).await.expect("space");
            let rows = found
                .into_iter()
                .map(|space| (space.id, space.used_objects));
            rows.collect::<Vec<_>>()
        };
        assert_eq!(objects(&copy).await, objects(&filesystem).await, "{kind:?}");
    }
    for _ in 0..60 {
        run.step().await;
    }
    run.compare().await;
    copy.close().await.expect("close");
    filesystem.close().await.expect("close");
    other.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

#[tokio::test(flavor = "multi_thread")]
async fn random_changes_go_over_as_differences() {
    random_changes(1, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_changes_with_small_records_and_large_dnodes() {
    let properties = [
        ("recordsize", "8K"),
        ("dnodesize", "auto"),
        ("xattr", "sa"),
        ("compression", "zstd"),
    ];
    random_changes(2, &properties).await;
}

/// A stream of everything random that is in two snapshots, and what it is a stream of.
struct Streams {
    source: Source,
    run: Run,
    full: Vec<u8>,
    difference: Vec<u8>,
}

async fn streams(seed: u64) -> Option<Streams> {
    let source = Source::new(&[("recordsize", "16K")]).await?;
    let filesystem = open(&source.world, &source.pool, SOURCE).await;
    let mut run = Run::new(seed, filesystem.clone(), 500_000).await;
    let mut sent = Vec::new();
    for turn in 0..2 {
        for _ in 0..100 {
            run.step().await;
        }
        filesystem.sync_all().await.expect("on disk");
        let snapshot = source.snapshot(&format!("s{turn}")).await;
        let before = format!("{SOURCE}@s0");
        sent.push(send(&source.pool, &snapshot, (turn > 0).then_some(&*before)).await);
    }
    let [full, difference] = <[Vec<u8>; 2]>::try_from(sent).ok()?;
    Some(Streams {
        source,
        run,
        full,
        difference,
    })
}

/// Cut at any place, and again where it goes on, by a token that says that it is raw.
#[tokio::test(flavor = "multi_thread")]
async fn raw_receives_go_on_after_cuts() {
    let Some(mut made) = streams(3).await else {
        return;
    };
    let (world, image) = (&made.source.world, Image::new(512));
    let other = create(world, &image, &[]).await;
    let mut random = Random(11);
    for (turn, whole) in [&made.full, &made.difference].into_iter().enumerate() {
        let mut bytes = whole.clone();
        let mut cuts = 0;
        loop {
            let is_last = cuts == 12;
            let at = match is_last {
                true => bytes.len(),
                // Mostly a part of what is left.
                false => random.below(bytes.len() as u64 / 3 + 400) as usize,
            };
            let part = &bytes[..at.min(bytes.len())];
            let received = receive(&other, part, "tank/copy", &resumable()).await;
            match received {
                Ok(_) => break,
                Err(StreamError::CutShort) => cuts += 1,
                Err(error) => panic!("{turn}, {cuts}, {at}: {error}"),
            }
            let found = other
                .dsl()
                .properties()
                .get("tank/copy", "receive_resume_token")
                .await;
            let Ok(found) = found else { continue };
            let Some(token) = found.value.text().and_then(ResumeToken::decode) else {
                continue;
            };
            assert!(token.raw && token.compressed, "{token:?}");
            let options = SendOptions {
                resume_at: Some((token.object, token.offset_bytes)),
                ..RAW
            };
            let before = format!("{SOURCE}@s0");
            let before = token.from_guid.map(|_| &*before);
            let to = format!("{SOURCE}@s{turn}");
            let sent = send_with(&made.source.pool, &to, before, &options).await;
            bytes = sent.expect("sent");
        }
        assert!(cuts > 3, "{cuts}");
    }
    unlock(&other, "tank/copy").await;
    let copy = open(world, &other, "tank/copy@s1").await;
    let filesystem = std::mem::replace(&mut made.run.filesystem, copy.clone());
    made.run.compare().await;
    copy.close().await.expect("close");
    filesystem.close().await.expect("close");
    other.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_raw_streams_leave_the_target_as_it_was() {
    let Some(mut made) = streams(4).await else {
        return;
    };
    let (world, image) = (&made.source.world, Image::new(512));
    let other = create(world, &image, &[]).await;
    let mut random = Random(7);
    let mut spoil = |whole: &[u8], turn: u64| {
        let mut bytes = whole.to_vec();
        let at = random.below(bytes.len() as u64) as usize;
        match turn % 2 {
            0 => bytes.truncate(at),
            _ => bytes[at] ^= 1 << random.below(8),
        }
        bytes
    };
    for turn in 0..16 {
        let bytes = spoil(&made.full, turn);
        let received = receive(&other, &bytes, "tank/copy", &How::default()).await;
        assert!(received.is_err(), "{turn}");
        let found = other.dsl().directories().lookup("tank/copy").await;
        assert!(found.is_err(), "{turn}");
    }
    receive(&other, &made.full, "tank/copy", &How::default())
        .await
        .expect("received");
    for turn in 0..16 {
        let bytes = spoil(&made.difference, turn);
        let received = receive(&other, &bytes, "tank/copy", &How::default()).await;
        assert!(received.is_err(), "{turn}");
        let found = other.dsl().directories().lookup("tank/copy/%recv").await;
        assert!(found.is_err(), "{turn}");
    }
    receive(&other, &made.difference, "tank/copy", &How::default())
        .await
        .expect("received");
    unlock(&other, "tank/copy").await;
    let copy = open(world, &other, "tank/copy@s1").await;
    let filesystem = std::mem::replace(&mut made.run.filesystem, copy.clone());
    made.run.compare().await;
    copy.close().await.expect("close");
    filesystem.close().await.expect("close");
    other.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

fn obstacle(received: Result<Received, StreamError>) -> ReceiveObstacle {
    match received {
        Err(StreamError::Dataset(DatasetError::Receive { obstacle, .. })) => obstacle,
        other => panic!("{other:?}"),
    }
}

/// What OpenZFS refuses, too.
#[tokio::test(flavor = "multi_thread")]
async fn raw_streams_go_only_where_they_fit() {
    let Some(made) = streams(5).await else {
        return;
    };
    let (world, pool) = (&made.source.world, &made.source.pool);
    let image = Image::new(512);
    let other = create(world, &image, &[]).await;
    let how = How::default();
    let plain = SendOptions { raw: false, ..RAW };
    // In the clear, with the key: to a dataset that is not encrypted.
    let decrypted = async |to: &str, from: Option<&str>| {
        let source = pool
            .dsl()
            .sends()
            .source(to, from)
            .await
            .expect("a snapshot");
        let mut out = Vec::new();
        let sent = stream::send(&source, &plain, &mut out, &Progress::default()).await;
        sent.expect("sent");
        out
    };
    let (first, second) = (format!("{SOURCE}@s0"), format!("{SOURCE}@s1"));
    let full = decrypted(&first, None).await;
    let difference = decrypted(&second, Some(&first)).await;
    receive(&other, &full, "tank/clear", &how)
        .await
        .expect("received");
    let refused = receive(&other, &made.difference, "tank/clear", &how).await;
    assert_eq!(obstacle(refused), ReceiveObstacle::NotEncrypted);
    let init = Arc::new(ZplInit::new());
    let created = other.dsl().datasets().create("tank/empty", &[], init).await;
    created.expect("created");
    let refused = receive(&other, &made.full, "tank/empty", &force()).await;
    assert_eq!(obstacle(refused), ReceiveObstacle::Encrypted);

    receive(&other, &made.full, "tank/copy", &how)
        .await
        .expect("received");
    // What is not raw needs the key, and ends what can be received raw.
    let refused = receive(&other, &difference, "tank/copy", &how).await;
    let is_locked = matches!(
        refused,
        Err(StreamError::Dataset(DatasetError::KeyNotLoaded { .. }))
    );
    assert!(is_locked, "{refused:?}");
    // Another key, and the same snapshot: a dataset that was encrypted here.
    receive(&other, &made.full, "tank/mixed", &how)
        .await
        .expect("received");
    unlock(&other, "tank/mixed").await;
    receive(&other, &difference, "tank/mixed", &how)
        .await
        .expect("received");
    let filesystem = made.run.filesystem.clone();
    let file = filesystem
        .create(filesystem.root(), b"more", 0o644, ROOT)
        .await
        .expect("made");
    filesystem
        .write(file.ino, 0, Bytes::from_static(b"more"), true, ROOT)
        .await
        .expect("written");
    let third = made.source.snapshot("s2").await;
    let later = send(pool, &third, Some(&second)).await;
    let refused = receive(&other, &later, "tank/mixed", &how).await;
    assert_eq!(obstacle(refused), ReceiveObstacle::IvSetMismatch);
    let later_clear = decrypted(&third, Some(&second)).await;
    receive(&other, &later_clear, "tank/mixed", &how)
        .await
        .expect("received");

    // Changed here: only by force, which undoes that.
    unlock(&other, "tank/copy").await;
    let copy = open(world, &other, "tank/copy").await;
    let made_here = copy.create(copy.root(), b"here", 0o644, ROOT).await;
    made_here.expect("made");
    copy.close().await.expect("close");
    let refused = receive(&other, &made.difference, "tank/copy", &how).await;
    assert_eq!(obstacle(refused), ReceiveObstacle::Modified);
    receive(&other, &made.difference, "tank/copy", &force())
        .await
        .expect("received");
    receive(&other, &later, "tank/copy", &how)
        .await
        .expect("received");
    let copy = open(world, &other, "tank/copy").await;
    assert!(copy.lookup(copy.root(), b"more").await.is_ok());
    assert!(copy.lookup(copy.root(), b"here").await.is_err());
    copy.close().await.expect("close");

    // And back, where the source has counted and the target has not.
    let back = open(world, &other, "tank/copy").await;
    let file = back
        .create(back.root(), b"back", 0o600, ROOT)
        .await
        .expect("made");
    let owner = SetAttributes {
        uid: Some(77),
        ..SetAttributes::default()
    };
    let given = back.set_attributes(file.ino, &owner, ROOT).await;
    given.expect("given");
    back.close().await.expect("close");
    let name = "tank/copy@s3".to_owned();
    other
        .dsl()
        .snapshots()
        .take(std::slice::from_ref(&name), &[])
        .await
        .expect("taken");
    let stream = send(&other, &name, Some("tank/copy@s2")).await;
    filesystem.close().await.expect("close");
    receive(pool, &stream, SOURCE, &force())
        .await
        .expect("received");
    let filesystem = open(world, pool, SOURCE).await;
    filesystem.counting().count_owners().await.expect("counted");
    let back = open(world, &other, "tank/copy").await;
    back.counting().count_owners().await.expect("counted");
    for kind in [QuotaKind::User, QuotaKind::Group] {
        let rows = async |of: &Filesystem| {
            let found = of.quotas().space_by(kind).await.expect("space");
            let rows = found
                .into_iter()
                .map(|space| (space.id, space.used_objects));
            rows.collect::<Vec<_>>()
        };
        assert_eq!(rows(&filesystem).await, rows(&back).await, "{kind:?}");
    }
    filesystem.close().await.expect("close");
    back.close().await.expect("close");
    other.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// A raw stream says the same whether the key is loaded or not, and no other name for it.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_makes_no_difference() {
    let Some(made) = streams(6).await else {
        return;
    };
    let pool = &made.source.pool;
    made.run.filesystem.close().await.expect("close");
    pool.dsl()
        .keys()
        .unload("encrypted/enc")
        .await
        .expect("unloaded");
    let (first, second) = (format!("{SOURCE}@s0"), format!("{SOURCE}@s1"));
    assert!(send(pool, &first, None).await == made.full);
    assert!(send(pool, &second, Some(&first)).await == made.difference);
    let mut reader = StreamReader::new(&made.full[..]);
    let Start::Begin(begin, _) = reader.start().await.expect("a beginning") else {
        panic!("no beginning");
    };
    assert!(begin.features.contains(StreamFeatures::RAW));
    assert!(!begin.features.contains(StreamFeatures::EMBED_DATA));
}
