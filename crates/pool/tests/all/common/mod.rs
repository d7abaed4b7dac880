//! What the engine's tests share: images, a small object set, oracles.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use dataset::{Dataset, DirtyEstimate, ObjsetInit, PropertyValue};
use device::{BoxFuture, World};
use format::{ObjectId, ObjectType, ObjsetKind};
use object::{NewObject, ObjectSet, Zap, ZapOptions};
use oracles::images;
pub use oracles::{Peer, golden, unpack};
use pool::{
    CreateSpec, FeatureChoice, FoundPool, HostIdentity, ImportSpec, LeafSpec, Pool, ScanSpec,
    VdevClass, VdevLayout, VdevSpec,
};
use zil::LogRecord;
use zio::Tx;

/// Fills the root dataset with the least that a filesystem has; what the tests need is objects.
pub struct BareFilesystem;

impl ObjsetInit for BareFilesystem {
    fn kind(&self) -> ObjsetKind {
        ObjsetKind::Filesystem
    }

    fn init<'a>(
        &'a self,
        objset: &'a Arc<ObjectSet>,
        _properties: &'a [(String, PropertyValue)],
        tx: &'a Tx,
    ) -> BoxFuture<'a, Result<(), Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async move {
            let mut options = ZapOptions::new(ObjectType::MASTER_NODE);
            options.claim = Some(ObjectId::MASTER_NODE);
            let master = Zap::create(objset, tx, options).await?;
            master.add_u64(tx, "VERSION", 5).await?;
            Ok(())
        })
    }
}

/// A directory of image files.
pub struct Images {
    dir: tempfile::TempDir,
}

impl Images {
    /// An empty directory; below `MILLPOND_TEST_DIR` if that is set.
    pub fn new() -> Self {
        let dir = match std::env::var_os("MILLPOND_TEST_DIR") {
            Some(base) => tempfile::tempdir_in(base),
            None => tempfile::tempdir(),
        };
        let mut dir = dir.expect("a temporary directory");
        // For looking at what a failed test left.
        dir.disable_cleanup(std::env::var_os("MILLPOND_TEST_KEEP").is_some());
        Images { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn text(&self) -> String {
        self.path().to_str().expect("UTF-8").to_owned()
    }

    /// `count` sparse files of `mib` MiB.
    pub fn make(&self, count: usize, mib: u64) -> Vec<LeafSpec> {
        (0..count)
            .map(|index| {
                let path = self.path().join(format!("d{index}.img"));
                let file = std::fs::File::create(&path).expect("an image");
                file.set_len(mib << 20).expect("its size");
                LeafSpec {
                    path: path.to_str().expect("UTF-8").to_owned(),
                    is_file: true,
                }
            })
            .collect()
    }
}

pub fn host() -> HostIdentity {
    HostIdentity {
        hostid: 0,
        hostname: "test".into(),
    }
}

pub fn normal(layout: VdevLayout) -> VdevSpec {
    VdevSpec {
        layout,
        class: VdevClass::Normal,
    }
}

/// A pool to create, with everything by default.
pub fn spec(name: &str, vdevs: Vec<VdevSpec>) -> CreateSpec {
    CreateSpec {
        name: name.into(),
        vdevs,
        properties: Vec::new(),
        features: FeatureChoice::All,
        root_properties: Vec::new(),
        root_init: Arc::new(BareFilesystem),
        altroot: None,
        force: false,
        host: host(),
        events: None,
        cache: None,
    }
}

/// The one pool in a directory.
pub async fn find(world: &World, dir: &Path) -> FoundPool {
    let spec = ScanSpec {
        paths: vec![dir.to_str().expect("UTF-8").into()],
        ..ScanSpec::default()
    };
    let mut found = pool::scan(world, &spec).await.expect("scan");
    assert_eq!(found.len(), 1, "one pool in {}", dir.display());
    found.remove(0)
}

pub async fn import(world: &World, dir: &Path) -> Arc<Pool> {
    let found = find(world, dir).await;
    Pool::import(world, ImportSpec::new(found, host()))
        .await
        .expect("import")
}

/// Content that tells where it belongs, half of it compressible.
pub fn content(object: u64, block: u64, length: usize) -> Bytes {
    let mut state =
        object.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block.wrapping_mul(0xd1b5_4a32_d192_ed03) | 1;
    let mut out = Vec::with_capacity(length);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
        out.extend_from_slice(&object.to_le_bytes());
    }
    out.truncate(length);
    out.into()
}

const BLOCK: usize = 128 << 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Writes `count` new objects of `blocks` blocks each; returns their numbers.
pub async fn try_write_objects(
    dataset: &Dataset,
    count: usize,
    blocks: u64,
) -> Result<Vec<ObjectId>, Failure> {
    let mut out = Vec::new();
    for _ in 0..count {
        let tx = dataset
            .assign(DirtyEstimate::write(blocks * BLOCK as u64))
            .await?;
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(BLOCK as u32);
        let object = dataset.objset().allocate(&tx, new).await?;
        for block in 0..blocks {
            let data = content(object.id().get(), block, BLOCK);
            object.write(&tx, block * BLOCK as u64, data).await?;
        }
        out.push(object.id());
    }
    Ok(out)
}

/// The same, where nothing may fail.
pub async fn write_objects(dataset: &Dataset, count: usize, blocks: u64) -> Vec<ObjectId> {
    try_write_objects(dataset, count, blocks)
        .await
        .expect("write")
}

/// Writes an object with a log record for it, and makes that durable.
pub async fn write_logged(dataset: &Dataset) -> ObjectId {
    let log = Arc::clone(dataset.log().expect("a log"));
    let tx = dataset
        .assign(DirtyEstimate::write(128 << 10))
        .await
        .expect("assign");
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(128 << 10);
    let object = dataset
        .objset()
        .allocate(&tx, new)
        .await
        .expect("an object");
    let data = content(object.id().get(), 0, 128 << 10);
    object.write(&tx, 0, data).await.expect("write");
    log.record(&tx, LogRecord::write(object.id(), true, 0, 128 << 10));
    drop(tx);
    log.commit(object.id()).await.expect("commit");
    object.id()
}

/// Compares objects with what [`write_objects`] wrote.
pub async fn check_objects(dataset: &Dataset, objects: &[ObjectId], blocks: u64) {
    for id in objects {
        let object = dataset.objset().hold(*id).await.expect("hold");
        for block in 0..blocks {
            let data = object
                .read_bytes(block * BLOCK as u64, BLOCK)
                .await
                .expect("read");
            assert!(
                data == content(id.get(), block, BLOCK),
                "object {id} block {block}"
            );
        }
    }
}

/// Frees objects.
pub async fn try_free_objects(dataset: &Dataset, objects: &[ObjectId]) -> Result<(), Failure> {
    for id in objects {
        let tx = dataset.assign(DirtyEstimate::free()).await?;
        dataset.objset().free(&tx, *id).await?;
    }
    Ok(())
}

/// The same, where nothing may fail.
pub async fn free_objects(dataset: &Dataset, objects: &[ObjectId]) {
    try_free_objects(dataset, objects).await.expect("free");
}

/// zdb; the script has it end sooner.
pub const ZDB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/zdb");

pub fn zdb(dir: &Path, pool: &str, options: &[&str]) -> String {
    let output = Command::new(ZDB)
        .args(["-e", "-p"])
        .arg(dir)
        .args(options)
        .arg(pool)
        .output()
        .expect("zdb (Debian package zfsutils-linux) is needed");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success(),
        "zdb {options:?} says {}:\n{text}",
        output.status
    );
    let text = text.replace("nothing leaked", "");
    for bad in [
        "leaked",
        "mismatch",
        "ERROR",
        "error:",
        "failed",
        "assertion",
    ] {
        assert!(!text.contains(bad), "zdb {options:?} says '{bad}':\n{text}");
    }
    text
}

/// zdb finds nothing to complain about: every checksum, space maps against blocks, features'
/// counts, objects that nothing refers to.
pub fn zdb_is_clean(dir: &Path, pool: &str) {
    let text = zdb(dir, pool, &["-bcc", "-d", "-mm"]);
    assert!(
        text.contains("No leaks (block sum matches space maps exactly)"),
        "{text}"
    );
}

/// Runs a script in the machine with the real OpenZFS, with all images of a directory as disks.
pub fn run_in_peer(peer: &Peer, dir: &Path, script: &str) -> String {
    let disk = |image: &PathBuf| {
        let stem = image.file_stem().expect("name").to_str().expect("UTF-8");
        format!("{},{stem}", image.display())
    };
    let disks: Vec<String> = images(dir).iter().map(disk).collect();
    peer.run(&disks, script)
}
