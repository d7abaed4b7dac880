//! Goal: a volume is a run of bytes that keeps what was written, alone and after any other
//! operation, over closing and importing again; volumes made by OpenZFS read as they do there; and
//! zdb finds the pool sound.
//! Method: random operations on a volume and on a vector of bytes; many writes at once; golden
//! pools with their manifests.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use dataset::{PropertyChange, PropertyValue};
use device::World;
use pool::{
    CreateSpec, FeatureChoice, HostIdentity, ImportSpec, LeafSpec, Pool, ScanSpec, VdevClass,
    VdevLayout, VdevSpec,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use volume::{Volume, VolumeError, ZvolInit};

/// An empty root dataset: what is tested is below it.
struct Nothing;

impl dataset::ObjsetInit for Nothing {
    fn kind(&self) -> format::ObjsetKind {
        format::ObjsetKind::Filesystem
    }

    fn init<'a>(
        &'a self,
        objset: &'a Arc<object::ObjectSet>,
        _properties: &'a [(String, PropertyValue)],
        tx: &'a zio::Tx,
    ) -> device::BoxFuture<'a, Result<(), Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async move {
            let mut options = object::ZapOptions::new(format::ObjectType::MASTER_NODE);
            options.claim = Some(format::ObjectId::MASTER_NODE);
            object::Zap::create(objset, tx, options)
                .await?
                .add_u64(tx, "VERSION", 5)
                .await?;
            Ok(())
        })
    }
}

fn host() -> HostIdentity {
    HostIdentity {
        hostid: 0,
        hostname: "test".into(),
    }
}

async fn create(world: &World, dir: &Path) -> Arc<Pool> {
    let path = dir.join("d0.img");
    std::fs::File::create(&path)
        .expect("image")
        .set_len(256 << 20)
        .expect("size");
    let leaf = LeafSpec {
        path: path.to_str().expect("UTF-8").to_owned(),
        is_file: true,
    };
    let spec = CreateSpec {
        name: "tank".into(),
        vdevs: vec![VdevSpec {
            layout: VdevLayout::Leaf(leaf),
            class: VdevClass::Normal,
        }],
        properties: Vec::new(),
        features: FeatureChoice::All,
        root_properties: Vec::new(),
        root_init: Arc::new(Nothing),
        altroot: None,
        force: false,
        host: host(),
        events: None,
        cache: None,
    };
    Pool::create(world, spec).await.expect("create")
}

async fn find(world: &World, dir: &Path) -> ImportSpec {
    let spec = ScanSpec {
        paths: vec![dir.to_str().expect("UTF-8").into()],
        ..ScanSpec::default()
    };
    let mut found = pool::scan(world, &spec).await.expect("scan");
    ImportSpec::new(found.remove(0), host())
}

async fn import(world: &World, dir: &Path, read_only: bool) -> Arc<Pool> {
    let mut spec = find(world, dir).await;
    spec.read_only = read_only;
    Pool::import(world, spec).await.expect("import")
}

/// Copies an image while its pool may write. Labels come first: what their uberblocks lead to is in
/// the rest, which may be younger, and is not written over for some groups.
fn copy_in_use(from: &Path, to: &Path) {
    use std::os::unix::fs::FileExt;
    const LABELS: u64 = 512 << 10;
    let from = std::fs::File::open(from).expect("the image");
    let to = std::fs::File::create(to).expect("a copy");
    let size = from.metadata().expect("its size").len();
    to.set_len(size).expect("room");
    let pieces = (LABELS..size - LABELS).step_by(LABELS as usize);
    for at in [0, size - LABELS].into_iter().chain(pieces) {
        let mut piece = vec![0; LABELS as usize];
        from.read_exact_at(&mut piece, at).expect("read");
        if piece.iter().any(|byte| *byte != 0) {
            to.write_all_at(&piece, at).expect("written");
        }
    }
}

/// The pool of an image that was copied while it was open.
async fn import_in_use(world: &World, dir: &Path) -> Arc<Pool> {
    let mut spec = find(world, dir).await;
    spec.force = true;
    Pool::import(world, spec).await.expect("import")
}

async fn open(world: &World, pool: &Pool, name: &str) -> Arc<Volume> {
    let dataset = pool
        .dsl()
        .open_dataset(name)
        .await
        .expect("open the dataset");
    Volume::open(dataset, world.clone())
        .await
        .expect("open the volume")
}

fn zdb_is_clean(dir: &Path) {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/zdb"))
        .args(["-e", "-p"])
        .arg(dir)
        .args(["-bcc", "tank"])
        .output()
        .expect("zdb (Debian package zfsutils-linux) is needed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("No leaks"), "{text}");
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit.max(1)
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        match self.below(3) {
            0 => vec![0; length as usize],
            1 => vec![self.below(256) as u8; length as usize],
            _ => (0..length).map(|_| self.below(256) as u8).collect(),
        }
    }
}

async fn compare(volume: &Volume, model: &[u8]) {
    assert_eq!(volume.size_bytes(), model.len() as u64);
    let mut at = 0;
    while at < model.len() {
        let length = (model.len() - at).min(1_234_567);
        let real = volume.read(at as u64, length).await.expect("read").concat();
        assert_eq!(real.len(), length);
        let first = real.iter().zip(&model[at..]).position(|(a, b)| a != b);
        assert_eq!(first.map(|first| first + at), None);
        at += length;
    }
    // What is not mapped reads as zeroes, and extents reach the end.
    let mut at = 0;
    while at < model.len() as u64 {
        let extent = volume
            .extent_at(at, model.len() as u64 - at)
            .await
            .expect("extent");
        assert!(extent.length_bytes > 0);
        if !extent.is_mapped {
            let range = at as usize..(at + extent.length_bytes) as usize;
            assert!(model[range].iter().all(|byte| *byte == 0));
        }
        at += extent.length_bytes;
    }
}

async fn run(seed: u64, block_bytes: u32) {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::system(2);
    let mut pool = create(&world, dir.path()).await;
    let mut model = vec![0u8; 8 << 20];
    let init = Arc::new(ZvolInit::new(model.len() as u64, block_bytes));
    let properties = [
        ("volsize".to_owned(), model.len().to_string()),
        ("volblocksize".to_owned(), block_bytes.to_string()),
    ];
    pool.dsl()
        .datasets()
        .create("tank/vol", &properties, init)
        .await
        .expect("create the volume");
    let mut volume = open(&world, &pool, "tank/vol").await;
    assert_eq!(volume.block_bytes(), block_bytes);
    let mut random = Random(seed);
    for step in 1..=400 {
        let size = model.len() as u64;
        let offset = random.below(size);
        let length = match random.below(3) {
            0 => random.below(5000),
            1 => random.below(100_000),
            _ => random.below(1 << 20),
        }
        .min(size - offset);
        let range = offset as usize..(offset + length) as usize;
        match random.below(8) {
            0..=3 => {
                let data = random.bytes(length);
                model[range].copy_from_slice(&data);
                let durable = random.below(8) == 0;
                volume
                    .write(offset, data.into(), durable)
                    .await
                    .expect("write");
            }
            4 => {
                model[range].fill(0);
                volume.unmap(offset, length).await.expect("unmap");
            }
            5 => {
                model[range].fill(0);
                volume
                    .write_zeroes(offset, length, false)
                    .await
                    .expect("zeroes");
            }
            6 if random.below(10) == 0 => {
                let size = (1 + random.below(64)) * 256 * 1024;
                model.resize(size as usize, 0);
                volume.resize(size).await.expect("resize");
            }
            _ => {
                let real = volume
                    .read(offset, length as usize)
                    .await
                    .expect("read")
                    .concat();
                assert!(real == model[range], "{length} bytes at {offset}");
            }
        }
        if step % 50 == 0 {
            volume.flush().await.expect("flush");
            compare(&volume, &model).await;
        }
        if step % 200 == 0 {
            volume.close().await.expect("close");
            assert!(matches!(
                volume.flush().await,
                Err(VolumeError::Closed { .. })
            ));
            drop(volume);
            pool.export(false).await.expect("export");
            zdb_is_clean(dir.path());
            pool = import(&world, dir.path(), false).await;
            volume = open(&world, &pool, "tank/vol").await;
            compare(&volume, &model).await;
        }
    }
    volume.close().await.expect("close");
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_by_default() {
    run(21, 16 << 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiny_blocks() {
    run(22, 512).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn big_blocks() {
    run(23, 256 << 10).await;
}

/// Goal: what is cloned from another volume, or from elsewhere in the same one, reads as its source
/// did, whatever is written to either afterwards, also where a crash leaves it to the intent log;
/// nothing is freed too early or too late.
/// Method: random writes, frees and clones of two volumes and of two vectors of bytes; the image of
/// the pool as it is after a flush, imported; zdb.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clones_share_blocks_and_nothing_else() {
    const BLOCK: u64 = 8192;
    const BLOCKS: u64 = 256;
    const NAMES: [&str; 2] = ["tank/a", "tank/b"];
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::system(2);
    let mut pool = create(&world, dir.path()).await;
    for name in NAMES {
        let init = Arc::new(ZvolInit::new(BLOCK * BLOCKS, BLOCK as u32));
        let properties = [
            ("volsize".to_owned(), (BLOCK * BLOCKS).to_string()),
            ("volblocksize".to_owned(), BLOCK.to_string()),
        ];
        let datasets = pool.dsl().datasets();
        let created = datasets.create(name, &properties, init).await;
        created.expect("create the volume");
    }
    let mut models = [
        vec![0u8; (BLOCK * BLOCKS) as usize],
        vec![0u8; (BLOCK * BLOCKS) as usize],
    ];
    let mut random = Random(31);
    let (mut cloned, mut copied) = (0, 0);
    for round in 0..3 {
        let mut volumes = Vec::new();
        for name in NAMES {
            volumes.push(open(&world, &pool, name).await);
        }
        for (volume, model) in volumes.iter().zip(&models) {
            compare(volume, model).await;
        }
        for step in 0..200 {
            let (to, from) = (random.below(2) as usize, random.below(2) as usize);
            let length = (1 + random.below(40)) * BLOCK;
            let target = random.below(BLOCKS - length / BLOCK) * BLOCK;
            let source = random.below(BLOCKS - length / BLOCK) * BLOCK;
            let (start, end) = (target as usize, (target + length) as usize);
            match random.below(6) {
                0 | 1 => {
                    let data = random.bytes(length);
                    models[to][start..end].copy_from_slice(&data);
                    let write = volumes[to].write(target, data.into(), false).await;
                    write.expect("write");
                }
                2 => {
                    models[to][start..end].fill(0);
                    volumes[to].unmap(target, length).await.expect("unmap");
                }
                _ => {
                    let overlaps = target < source + length && source < target + length;
                    if to == from && overlaps {
                        continue;
                    }
                    let clone = volumes[to].clone_range(&volumes[from], source, target, length);
                    let done = clone.await.expect("clone");
                    assert!(done == 0 || done == length, "{done} of {length}");
                    let done = done as usize;
                    let source = source as usize;
                    let data = models[from][source..source + done].to_vec();
                    models[to][start..start + done].copy_from_slice(&data);
                    cloned += usize::from(done > 0);
                    copied += usize::from(done == 0);
                }
            }
            if step % 20 == 0 {
                pool.sync().await.expect("sync");
            }
            if step % 50 == 49 {
                for (volume, model) in volumes.iter().zip(&models) {
                    compare(volume, model).await;
                    volume.flush().await.expect("flush");
                }
                // As after a crash: the intent logs say what is not in the pool.
                let crashed = tempfile::tempdir().expect("a directory");
                let image = |at: &Path| at.join("d0.img");
                std::fs::copy(image(dir.path()), image(crashed.path())).expect("copy");
                let other = import_in_use(&world, crashed.path()).await;
                for (name, model) in NAMES.iter().zip(&models) {
                    let volume = open(&world, &other, name).await;
                    compare(&volume, model).await;
                    volume.close().await.expect("close");
                }
                other.export(false).await.expect("export");
                zdb_is_clean(crashed.path());
            }
        }
        // Blocks of another size, or not whole ones, are the caller's to copy.
        let half = volumes[0].clone_range(&volumes[1], 512, 0, BLOCK).await;
        assert_eq!(half.expect("no clone"), 0);
        let beyond = volumes[0].clone_range(&volumes[1], BLOCK * BLOCKS, 0, BLOCK);
        assert!(matches!(beyond.await, Err(VolumeError::OutOfRange { .. })));
        for volume in volumes {
            volume.close().await.expect("close");
        }
        pool.export(false).await.expect("export");
        zdb_is_clean(dir.path());
        pool = import(&world, dir.path(), false).await;
        assert!(cloned > 20 * (round + 1) && copied > 0, "{cloned} {copied}");
    }
    pool.export(false).await.expect("export");
}

/// Many writers of one volume at once, while txgs come and go: each finds what it wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once() {
    const SLICE: u64 = 100_003;
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::system(2);
    let pool = create(&world, dir.path()).await;
    let init = Arc::new(ZvolInit::new(4 << 20, 8192));
    let properties = [
        ("volsize".to_owned(), (4 << 20).to_string()),
        ("volblocksize".to_owned(), "8192".to_owned()),
    ];
    pool.dsl()
        .datasets()
        .create("tank/vol", &properties, init)
        .await
        .expect("create the volume");
    let volume = open(&world, &pool, "tank/vol").await;
    let writers: Vec<_> = (0..16)
        .map(|writer| {
            let volume = Arc::clone(&volume);
            tokio::spawn(async move {
                // Slices meet within blocks.
                let start = writer * SLICE;
                for round in 0..30u64 {
                    let data = vec![(writer * 31 + round) as u8; SLICE as usize];
                    volume
                        .write(start, Bytes::from(data.clone()), round % 10 == 0)
                        .await
                        .unwrap();
                    let real = volume.read(start, SLICE as usize).await.unwrap().concat();
                    assert!(real == data, "writer {writer}, round {round}");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("a writer");
    }
    volume.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(dir.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::system(2);
    let pool = create(&world, dir.path()).await;
    assert!(!ZvolInit::new(0, 8192).is_valid());
    assert!(!ZvolInit::new(8193, 8192).is_valid());
    assert!(!ZvolInit::new(10_000, 1000).is_valid());
    let init = Arc::new(ZvolInit::new(1 << 20, 8192));
    let properties = [
        ("volsize".to_owned(), (1 << 20).to_string()),
        ("volblocksize".to_owned(), "8192".to_owned()),
    ];
    pool.dsl()
        .datasets()
        .create("tank/vol", &properties, init)
        .await
        .expect("create the volume");
    let volume = open(&world, &pool, "tank/vol").await;
    let beyond = volume
        .write((1 << 20) - 1, Bytes::from_static(b"xy"), false)
        .await;
    assert!(matches!(beyond, Err(VolumeError::OutOfRange { .. })));
    assert!(matches!(
        volume.read(u64::MAX, 1).await,
        Err(VolumeError::OutOfRange { .. })
    ));
    assert!(matches!(
        volume.resize(1000).await,
        Err(VolumeError::BadSize { .. })
    ));
    let read_only = PropertyChange::Set("on".into());
    let changes = [("readonly".to_owned(), read_only)];
    let set = pool.dsl().properties().set("tank/vol", &changes).await;
    set.expect("readonly=on");
    let refused = volume.write(0, Bytes::from_static(b"x"), false).await;
    assert!(matches!(refused, Err(VolumeError::ReadOnly { .. })));
    volume.close().await.expect("close");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let other = Volume::open(dataset, world.clone()).await;
    assert!(matches!(other, Err(VolumeError::CannotOpen { .. })));
    pool.export(false).await.expect("export");
}

/// Goal: a write, an unmap and a zeroing that wait for a volume to shrink end behind it, and leave
/// nothing that a growing volume would show. Method: a read holds the volume while
/// another thread decompresses; a resize waits for it, and the others for that.
#[tokio::test]
async fn nothing_that_waits_for_a_shrinking_volume_is_done_beyond_its_end() {
    const SIZE: u64 = 1 << 20;
    const BLOCK: u64 = 128 << 10;
    let world = World::system(2);
    let dir = tempfile::tempdir().expect("a directory");
    let pool = create(&world, dir.path()).await;
    let properties = [
        ("volsize".to_owned(), SIZE.to_string()),
        ("volblocksize".to_owned(), BLOCK.to_string()),
        ("compression".to_owned(), "zstd".to_owned()),
    ];
    let init = Arc::new(ZvolInit::new(SIZE, BLOCK as u32));
    pool.dsl()
        .datasets()
        .create("tank/vol", &properties, init)
        .await
        .expect("create the volume");
    let volume = open(&world, &pool, "tank/vol").await;
    // Compressible, and not so far that a pointer has room for it.
    let bytes = (0..SIZE as u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 24) as u8 & 15);
    let written = volume.write(0, bytes.collect(), true).await;
    written.expect("write");
    volume.close().await.expect("close");
    pool.export(false).await.expect("export");

    let pool = import(&world, dir.path(), false).await;
    let volume = open(&world, &pool, "tank/vol").await;
    let (read, resized, written, freed, zeroed) = tokio::join!(
        volume.read(0, BLOCK as usize),
        volume.resize(SIZE / 2),
        volume.write(SIZE - 8192, Bytes::from_static(&[2; 8192]), true),
        volume.unmap(SIZE - 8192, 4096),
        volume.write_zeroes(SIZE - 4096, 100, false),
    );
    read.expect("read");
    resized.expect("resize");
    for late in [written, freed, zeroed] {
        assert!(matches!(late, Err(VolumeError::OutOfRange { .. })));
    }
    volume.resize(SIZE).await.expect("resize");
    let half = (SIZE / 2) as usize;
    let beyond = volume.read(SIZE / 2, half).await.expect("read");
    assert!(beyond.concat() == vec![0; half]);
    volume.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(dir.path());
}

/// A write or an unmap below an indirect block of which no copy is good fails, and nothing else
/// does, also after a crash with such a write in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_below_an_unreadable_indirect_block_fail_alone() {
    /// What an indirect block has the pointers of.
    const SPAN: u64 = 4 << 20;
    const SIZE: u64 = 4 * SPAN;
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::system(2);
    let pool = create(&world, dir.path()).await;
    let init = Arc::new(ZvolInit::new(SIZE, 4096));
    let properties = [
        ("volsize".to_owned(), SIZE.to_string()),
        ("volblocksize".to_owned(), "4096".to_owned()),
    ];
    pool.dsl()
        .datasets()
        .create("tank/vol", &properties, init)
        .await
        .expect("create the volume");
    let volume = open(&world, &pool, "tank/vol").await;
    let mut random = Random(31);
    let all: Vec<u8> = (0..SIZE).map(|_| random.below(256) as u8).collect();
    volume.write(0, all.into(), false).await.expect("write");
    pool.sync().await.expect("sync");
    let dataset = pool.dsl().open_dataset("tank/vol").await.expect("open");
    let data = dataset.objset().hold(1.into()).await.expect("the data");
    let lost = data.pointer_at(1, 1).await.expect("a pointer");
    drop((data, dataset));
    for offset in [0, SPAN, 2 * SPAN] {
        let written = volume.write(offset, vec![1; 8192].into(), true).await;
        written.expect("write");
    }
    // As a power cut leaves it, with a log.
    let after = tempfile::tempdir().expect("a directory");
    let path = after.path().join("d0.img");
    std::fs::copy(dir.path().join("d0.img"), &path).expect("copy");
    volume.close().await.expect("close");
    pool.export(false).await.expect("export");

    let image = std::fs::File::options().read(true).write(true).open(&path);
    let image = image.expect("open");
    let mut before = Vec::new();
    for dva in lost.dvas() {
        let at = (4 << 20) + dva.offset_bytes();
        let mut old = [0; 512];
        image.read_exact_at(&mut old, at).expect("read");
        image.write_all_at(&[0xa5; 512], at).expect("destroy");
        before.push((at, old));
    }
    let pool = import_in_use(&world, after.path()).await;
    let dataset = pool.dsl().open_dataset("tank/vol").await.expect("open");
    let log = dataset.log().expect("a log");
    assert!(log.needs_replay(), "a txg came between");
    let volume = Volume::open(dataset, world.clone())
        .await
        .expect("the volume opens");
    for offset in [0, 2 * SPAN] {
        let read = volume.read(offset, 8192).await.expect("read").concat();
        assert!(read.iter().all(|byte| *byte == 1), "{offset}");
    }
    for round in 0..2u8 {
        let is_damaged = |done: volume::Result<()>| {
            let damaged = matches!(done, Err(VolumeError::Damaged { .. }));
            assert!(damaged, "{done:?}");
        };
        let data = Bytes::from(vec![round; 65536]);
        is_damaged(volume.write(SPAN, data.clone(), false).await);
        is_damaged(volume.write(SPAN + 10, data.clone(), true).await);
        is_damaged(volume.write(SPAN - 4096, data.clone(), false).await);
        is_damaged(volume.unmap(SPAN, 65536).await);
        is_damaged(volume.unmap(0, SIZE).await);
        is_damaged(volume.write_zeroes(SPAN, SPAN, true).await);
        let written = volume.write(3 * SPAN, data.clone(), true).await;
        written.expect("elsewhere");
        volume.unmap(SPAN - 65536, 65536).await.expect("elsewhere");
        pool.sync().await.expect("the txg is written");
        assert_eq!(pool.suspended(), None);
        let read = volume.read(3 * SPAN, 65536).await.expect("read");
        assert_eq!(read.concat(), data);
    }
    volume.close().await.expect("close");
    pool.export(false).await.expect("export");
    for (at, old) in before {
        image.write_all_at(&old, at).expect("put back");
    }
    zdb_is_clean(after.path());
}

async fn check_golden(golden: &Path, name: &str) {
    let manifest = oracles::manifest(golden, name);
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let dir = tempfile::tempdir().expect("a directory");
    let images = oracles::unpack(golden, name, dir.path());
    let world = World::system(2);
    let pool = import(&world, &images, true).await;
    let mut checked = 0;
    for expected in manifest["zvols"].as_array().into_iter().flatten() {
        let full = expected["name"].as_str().expect("name");
        let volume = open(&world, &pool, full).await;
        assert!(volume.is_read_only());
        assert_eq!(
            Some(volume.size_bytes()),
            expected["volsize"].as_u64(),
            "{full}"
        );
        let mut hasher = Sha256::new();
        let mut at = 0;
        while at < volume.size_bytes() {
            let length = (volume.size_bytes() - at).min(1 << 20) as usize;
            for piece in volume.read(at, length).await.expect("read") {
                hasher.update(&piece);
            }
            at += length as u64;
        }
        let hash: String = hasher
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(Some(hash.as_str()), expected["sha256"].as_str(), "{full}");
        volume.close().await.expect("close");
        checked += 1;
    }
    assert!(checked > 0, "{name} has no volumes");
    pool.export(false).await.expect("close the pool");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn golden_volumes() {
    if let Some(golden) = oracles::golden() {
        check_golden(&golden, "plain").await;
    }
}

/// What is flushed while `readonly` is being set, or closed after it, is durable; and what a log
/// has is there though the volume is read-only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_while_the_volume_becomes_read_only_is_one() {
    const SIZE: u64 = 1 << 20;
    let world = World::system(2);
    for closes in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = create(&world, dir.path()).await;
        let properties = [("volsize".to_owned(), SIZE.to_string())];
        let init = Arc::new(ZvolInit::new(SIZE, 16 << 10));
        let datasets = pool.dsl().datasets();
        let made = datasets.create("tank/vol", &properties, init).await;
        made.expect("create the volume");
        let volume = open(&world, &pool, "tank/vol").await;
        // The first commit makes the log, and waits for its group.
        let made = volume.write(0, vec![1; 512].into(), true).await;
        made.expect("write");
        pool.sync().await.expect("sync");
        let setting = {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move {
                let change = PropertyChange::Set("on".to_owned());
                let change = [("readonly".to_owned(), change)];
                let set = pool.dsl().properties().set("tank/vol", &change).await;
                set.expect("set");
            })
        };
        // Some of it is of the group after that of the property.
        let mut written = 1_u64;
        let refused = loop {
            let next = (written + 1).to_le_bytes().to_vec();
            match volume.write(0, next.into(), false).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, VolumeError::ReadOnly { .. }), "{refused}");
        match closes {
            true => volume.close().await.expect("close"),
            false => volume.flush().await.expect("flush"),
        }
        let after = tempfile::tempdir().expect("a directory");
        let (from, to) = (dir.path().join("d0.img"), after.path().join("d0.img"));
        copy_in_use(&from, &to);
        setting.await.expect("set");
        volume.close().await.expect("close");
        drop(volume);
        pool.export(false).await.expect("export");
        let pool = import_in_use(&world, after.path()).await;
        let volume = open(&world, &pool, "tank/vol").await;
        let found = volume.read(0, 8).await.expect("read").concat();
        assert_eq!(found, written.to_le_bytes(), "closes: {closes}");
        volume.close().await.expect("close");
        drop(volume);
        pool.export(false).await.expect("export");
    }
}
