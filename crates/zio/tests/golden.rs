//! Pools made by OpenZFS, read through the pipeline: every block that can be reached from the
//! uberblock must pass its checksum and decompress, with all devices there, with as many missing
//! as parity allows, and with damage that redundancy can make up for.
//!
//! The pools are in `MILLPOND_GOLDEN`, or in `../shared/golden` beside the workspace. Without them
//! the tests pass with a note, except in CI.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{BoxFuture, World};
use format::{
    BlockPointer, DnodePhys, DslDatasetPhys, Endian, Guid, NvList, NvValue, ObjectType, ObjsetPhys,
    RegularPointer, Txg, ZapKeyBuf, ZapKeyKind, ZapLeaf, ZapValue,
};
use vdev::{ErrorReport, ErrorSink};
use vdev::{OpenOptions, Scope, VdevState, VdevTree, read_labels};
use zio::alloc::Allocator;
use zio::{Cache, CacheUse, Pipeline, PipelineOptions, ReadContext, ZioError};

/// Unpacks a pool and gives the folder with its images.
fn unpack(name: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let golden = oracles::golden()?;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let images = oracles::unpack(&golden, name, dir.path());
    Some((dir, images))
}

#[derive(Default)]
struct Count {
    checksum: AtomicU64,
    data: AtomicU64,
}

impl ErrorSink for Count {
    fn report(&self, report: ErrorReport) {
        match report {
            ErrorReport::Checksum { .. } => self.checksum.fetch_add(1, Ordering::Relaxed),
            ErrorReport::Data { .. } => self.data.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

struct Opened {
    pipeline: Arc<Pipeline>,
    root: BlockPointer,
    errors: Arc<Count>,
    sizes: Vec<(u64, u64)>,
}

/// The root of the vdev tree from the labels of its devices, as an import finds it.
async fn open(images: &Path, without: &[&str], read_only: bool) -> Opened {
    let world = World::system(2);
    let mut children: BTreeMap<u64, (u64, NvList)> = BTreeMap::new();
    let mut paths = BTreeMap::new();
    let (mut pool_guid, mut count, mut best) = (0, 0, None);
    let mut files: Vec<_> = std::fs::read_dir(images)
        .expect("images")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    for file in files {
        let name = file
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if without.contains(&name.as_str()) {
            continue;
        }
        let path = file.to_string_lossy().into_owned();
        let device = world.opener.open(&path, true).await.expect("opens");
        let labels = read_labels(&*device).await.expect("readable");
        let Some(config) = labels.config(Txg::new(u64::MAX)) else {
            continue;
        };
        // Spares and cache devices have no tree.
        let Some(tree) = config.list("vdev_tree") else {
            continue;
        };
        let txg = config.u64("txg").unwrap_or(0);
        paths.insert(Guid::new(config.u64("guid").expect("a guid")), path);
        pool_guid = config.u64("pool_guid").expect("a pool");
        count = count.max(config.u64("vdev_children").expect("children"));
        let id = tree.u64("id").expect("an id");
        match children.get(&id) {
            Some((other, _)) if *other >= txg => {}
            _ => {
                children.insert(id, (txg, tree.clone()));
            }
        }
        let newest = labels.best_uberblock(Txg::new(u64::MAX));
        if let Some(newest) = newest
            && best.is_none_or(|best: format::Uberblock| best.recency() < newest.recency())
        {
            best = Some(newest);
        }
    }
    let tops: Vec<NvList> = (0..count)
        .map(|id| match children.remove(&id) {
            Some((_, tree)) => tree,
            None => {
                let mut hole = NvList::new();
                hole.set("type", "hole");
                hole.set("id", id);
                hole.set("guid", 0u64);
                hole
            }
        })
        .collect();
    let mut root = NvList::new();
    root.set("type", "root");
    root.set("id", 0u64);
    root.set("guid", pool_guid);
    root.set("children", NvValue::ListArray(tops.clone()));
    let options = OpenOptions {
        read_only,
        paths,
        pool_guid: Some(Guid::new(pool_guid)),
        ..OpenOptions::default()
    };
    let tree = VdevTree::open(world.clone(), &root, options)
        .await
        .expect("the tree opens");
    // Regenerated configurations say what the labels said.
    for (config, top) in tops.iter().zip(tree.tops()) {
        if top.state().0 == VdevState::Healthy && config.string("type") != Some("hole") {
            let again = top.to_config(Scope::Label);
            for (name, value) in config.iter().filter(|(name, _)| *name != "children") {
                assert_eq!(again.get(name), Some(value), "{name}");
            }
            assert_eq!(again.len(), config.len());
        }
    }
    let sizes = tree
        .tops()
        .iter()
        .map(|top| (top.asize_bytes(), u64::from(top.metaslab_shift())))
        .collect();
    let uberblock = best.expect("an uberblock");
    if without.is_empty() {
        assert_eq!(tree.uberblocks().await.first(), Some(&uberblock));
    }
    let errors = Arc::new(Count::default());
    let pipeline = Pipeline::new(
        world,
        tree,
        Arc::new(Allocator::new()),
        Arc::new(Cache::new(64 << 20)),
        PipelineOptions::default(),
        errors.clone(),
    );
    Opened {
        pipeline,
        root: uberblock.root,
        errors,
        sizes,
    }
}

#[derive(Debug, Default)]
struct Seen {
    blocks: u64,
    gangs: u64,
    embedded: u64,
    encrypted: u64,
    failed: u64,
    datasets: u64,
}

/// Reads everything below a pointer of `level`, and gives level-0 blocks to the caller.
fn walk<'a>(
    pipeline: &'a Pipeline,
    bp: BlockPointer,
    seen: &'a mut Seen,
    leaves: &'a mut Vec<(ObjectType, Endian, bytes::Bytes)>,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        if bp.is_hole() || bp.is_redacted() {
            return;
        }
        seen.blocks += 1;
        seen.gangs += u64::from(bp.is_gang());
        seen.embedded += u64::from(bp.is_embedded());
        let context = ReadContext {
            cache: CacheUse::NoFill,
            ..ReadContext::default()
        };
        if bp.is_encrypted() {
            seen.encrypted += 1;
            pipeline
                .read_raw(&bp, &context)
                .await
                .expect("stored bytes are right");
            return;
        }
        // What is in the clear but has a MAC is read without the key here.
        let read = if bp.is_authenticated() {
            pipeline.read_raw(&bp, &context).await.map(|stored| {
                let length = bp.lsize_bytes() as usize;
                codec::compress::decompress(bp.compression(), &stored, length)
                    .expect("it decompresses")
                    .into()
            })
        } else {
            pipeline.read(&bp, &context).await
        };
        let data = match read {
            Ok(data) => data,
            Err(error) => {
                eprintln!("{error}: {bp}");
                seen.failed += 1;
                return;
            }
        };
        assert_eq!(data.len() as u64, bp.lsize_bytes());
        if bp.level() > 0 {
            let pointers: Vec<_> = BlockPointer::decode_all(&data, bp.endian()).collect();
            for pointer in pointers {
                walk(pipeline, pointer, seen, leaves).await;
            }
        } else if matches!(
            bp.object_type(),
            ObjectType::DNODE | ObjectType::OBJSET | ObjectType::OBJECT_DIRECTORY
        ) {
            leaves.push((bp.object_type(), bp.endian(), data));
        }
    })
}

/// Reads an object set: its dnodes, all their blocks, and the object sets of datasets in it.
fn walk_objset<'a>(
    pipeline: &'a Pipeline,
    root: BlockPointer,
    seen: &'a mut Seen,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let mut heads = Vec::new();
        walk(pipeline, root, seen, &mut heads).await;
        for (_, endian, head) in heads {
            let objset = ObjsetPhys::decode(&head, endian).expect("an object set");
            let mut blocks = Vec::new();
            for pointer in objset.meta_dnode.pointers.clone() {
                walk(pipeline, pointer, seen, &mut blocks).await;
            }
            for (_, endian, block) in blocks {
                let mut at = 0;
                while at < block.len() {
                    let dnode = DnodePhys::decode(&block[at..], endian).expect("a dnode");
                    at += dnode.slots() * 512;
                    if dnode.is_free() {
                        continue;
                    }
                    let mut below = Vec::new();
                    for pointer in dnode.pointers.iter().chain(dnode.spill.as_ref()) {
                        walk(pipeline, *pointer, seen, &mut below).await;
                    }
                    for (_, endian, block) in &below {
                        if let Some(salt) = find_salt(block, *endian) {
                            pipeline.set_salt(salt);
                        }
                    }
                    if dnode.bonus_type == ObjectType::DSL_DATASET {
                        let dataset =
                            DslDatasetPhys::decode(&dnode.bonus, endian).expect("a dataset");
                        seen.datasets += 1;
                        walk_objset(pipeline, dataset.block, seen).await;
                    }
                }
            }
        }
    })
}

/// The pool's checksum salt, if this is the leaf of the MOS's directory that holds it.
fn find_salt(block: &[u8], endian: Endian) -> Option<[u8; 32]> {
    let leaf = ZapLeaf::open(block, endian, ZapKeyKind::Name).ok()?;
    for entry in leaf.entries().ok()? {
        let ZapKeyBuf::Name(name) = leaf.key(&entry).ok()? else {
            continue;
        };
        if name == b"org.illumos:checksum_salt"
            && let ZapValue::Bytes(value) = leaf.value(&entry).ok()?
        {
            return value.as_slice().try_into().ok();
        }
    }
    None
}

async fn check(name: &str, without: &[&str], read_only: bool) -> Option<(Seen, u64)> {
    let (_dir, images) = unpack(name)?;
    let opened = open(&images, without, read_only).await;
    let mut seen = Seen::default();
    walk_objset(&opened.pipeline, opened.root, &mut seen).await;
    eprintln!("{name} without {without:?}: {seen:?}");
    assert!(seen.blocks > 50 && seen.datasets > 2, "{name}: {seen:?}");
    assert_eq!(seen.failed, 0, "{name}");
    assert_eq!(opened.errors.data.load(Ordering::Relaxed), 0);
    for (asize, shift) in opened.sizes {
        if asize > 0 {
            assert_eq!(u64::from(vdev::metaslab_shift(asize)), shift, "{name}");
        }
    }
    Some((seen, opened.errors.checksum.load(Ordering::Relaxed)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_block_of_a_healthy_pool_is_right() {
    for name in [
        "plain",
        "mirror3",
        "stripe_of_mirrors",
        "raidz1_3",
        "raidz1_5",
        "raidz2_6",
        "raidz2_multi",
        "raidz3_8",
        "nofeat",
        "special",
        "encrypted",
        "draid",
        "removing",
        "logs_cache",
    ] {
        if let Some((_, checksum_errors)) = check(name, &[], true).await {
            assert_eq!(checksum_errors, 0, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_blocks_are_put_together() {
    for name in ["gang", "gang_raidz"] {
        if let Some((seen, checksum_errors)) = check(name, &[], true).await {
            assert!(seen.gangs > 0, "{name}");
            assert_eq!(checksum_errors, 0, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_devices_are_made_up_for() {
    let cases: [(&str, &[&str]); 13] = [
        ("mirror3", &["d0.img", "d2.img"]),
        ("raidz1_3", &["d1.img"]),
        ("raidz1_5", &["d4.img"]),
        ("raidz2_6", &["d0.img", "d3.img"]),
        ("raidz2_multi", &["d1.img", "d2.img", "e0.img", "e3.img"]),
        ("raidz3_8", &["d0.img", "d4.img", "d7.img"]),
        ("special", &["d0.img", "s1.img"]),
        ("removing", &["d1.img", "e0.img"]),
        ("draid", &["d0.img"]),
        ("draid", &["d3.img"]),
        // One device is missing anyway, a distributed spare stands in for it.
        ("draid_spare", &[]),
        ("draid_spare", &["d0.img"]),
        ("draid_spare", &["d4.img"]),
    ];
    for (name, without) in cases {
        if let Some((_, checksum_errors)) = check(name, without, true).await {
            assert_eq!(checksum_errors, 0, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_repaired_by_reading() {
    for name in ["damaged", "damaged_raidz"] {
        let Some((_dir, images)) = unpack(name) else {
            continue;
        };
        for round in 0..2 {
            let opened = open(&images, &[], false).await;
            let mut seen = Seen::default();
            walk_objset(&opened.pipeline, opened.root, &mut seen).await;
            assert_eq!(seen.failed, 0, "{name}");
            let found = opened.errors.checksum.load(Ordering::Relaxed);
            eprintln!("{name} round {round}: {found} checksum errors, {seen:?}");
            assert_eq!(
                found > 0,
                round == 0,
                "{name}: the second reading finds nothing"
            );
            opened.pipeline.tree().close();
        }
    }
}

#[tokio::test]
async fn one_device_too_few_is_an_error_that_names_it() {
    let Some((_dir, images)) = unpack("raidz1_3") else {
        return;
    };
    let opened = open(&images, &["d0.img", "d1.img"], true).await;
    assert_eq!(
        opened.pipeline.tree().tops()[0].state().0,
        VdevState::CantOpen
    );
    // Small blocks may still be there; a bigger one is not.
    let mut seen = Seen::default();
    walk(&opened.pipeline, opened.root, &mut seen, &mut Vec::new()).await;
    let wide = BlockPointer::regular(&RegularPointer {
        psize_bytes: 64 << 10,
        lsize_bytes: 64 << 10,
        compression: format::Compression::Off,
        ..match opened.root.decoded() {
            format::Pointer::Regular(root) => root,
            other => panic!("{other:?}"),
        }
    })
    .expect("a pointer");
    match opened.pipeline.read(&wide, &ReadContext::default()).await {
        Err(ZioError::Unreadable { .. }) => {}
        other => panic!("{:?}", other.map(|data| data.len())),
    }
}
