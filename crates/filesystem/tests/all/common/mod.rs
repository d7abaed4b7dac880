//! What the filesystem's tests share: pools with a filesystem, golden pools, oracles.

pub mod big_endian;
pub mod change;
pub mod flip;
pub mod model;
pub mod tree;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use codec::crypt::{WrappingKey, passphrase_key};
use dataset::KeyFormat;
use device::World;
use filesystem::{Caller, Filesystem, ZplInit};
pub use oracles::{Peer, golden, unpack};
use pool::{
    CreateSpec, FeatureChoice, FoundPool, HostIdentity, ImportSpec, LeafSpec, Pool, Rewind,
    ScanSpec, VdevClass, VdevLayout, VdevSpec,
};

pub const ROOT: Caller = Caller::ROOT;
pub const ALICE: Caller = Caller {
    umask: 0o022,
    ..Caller::new(1000, 1000)
};

/// A directory with one image in it; below `MILLPOND_TEST_DIR` if that is set.
pub struct Image {
    dir: tempfile::TempDir,
}

impl Image {
    pub fn new(mib: u64) -> Self {
        let image = Self::empty();
        let file = std::fs::File::create(image.dir.path().join("d0.img")).expect("an image");
        file.set_len(mib << 20).expect("its size");
        image
    }

    pub fn empty() -> Self {
        let dir = match std::env::var_os("MILLPOND_TEST_DIR") {
            Some(base) => tempfile::tempdir_in(base),
            None => tempfile::tempdir(),
        };
        let mut dir = dir.expect("a temporary directory");
        // For looking at what a failed test left.
        dir.disable_cleanup(std::env::var_os("MILLPOND_TEST_KEEP").is_some());
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

pub fn host() -> HostIdentity {
    HostIdentity {
        hostid: 0,
        hostname: "test".into(),
    }
}

/// A new pool "tank" on one image.
pub async fn create(world: &World, image: &Image, root_properties: &[(&str, &str)]) -> Arc<Pool> {
    create_with(world, image, FeatureChoice::All, root_properties).await
}

/// The same with these features.
pub async fn create_with(
    world: &World,
    image: &Image,
    features: FeatureChoice,
    root_properties: &[(&str, &str)],
) -> Arc<Pool> {
    let spec = spec_with(image, features, root_properties);
    Pool::create(world, spec).await.expect("create")
}

/// What such a pool is made of.
pub fn spec_with(
    image: &Image,
    features: FeatureChoice,
    root_properties: &[(&str, &str)],
) -> CreateSpec {
    let path = image.path().join("d0.img");
    let leaf = LeafSpec {
        path: path.to_str().expect("UTF-8").to_owned(),
        // The machine with the real OpenZFS sees the image as a disk.
        is_file: false,
    };
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    CreateSpec {
        name: "tank".into(),
        vdevs: vec![VdevSpec {
            layout: VdevLayout::Leaf(leaf),
            class: VdevClass::Normal,
        }],
        properties: Vec::new(),
        features,
        root_properties: root_properties.iter().map(own).collect(),
        root_init: Arc::new(ZplInit::new()),
        altroot: None,
        force: false,
        host: host(),
        events: None,
        cache: None,
    }
}

/// The one pool in a directory, imported.
pub async fn import(world: &World, dir: &Path, read_only: bool) -> Arc<Pool> {
    import_at(world, dir, read_only, Rewind::No).await
}

/// The one pool in a directory, imported at its newest state or another.
pub async fn import_at(world: &World, dir: &Path, read_only: bool, rewind: Rewind) -> Arc<Pool> {
    let mut spec = ImportSpec::new(find(world, dir).await, host());
    spec.read_only = read_only;
    spec.rewind = rewind;
    Pool::import(world, spec).await.expect("import")
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

/// The image as a power cut would leave it now. Its labels are read before all else: of a pool that
/// is written meanwhile they lead to what is there already.
pub fn cut(image: &Image) -> Image {
    /// Two labels.
    const ENDS_BYTES: usize = 512 << 10;
    let after = Image::empty();
    let [from, to] = [image, &after].map(|one| one.path().join("d0.img"));
    let file = File::open(&from).expect("the image");
    let end = file.metadata().expect("its size").len() - ENDS_BYTES as u64;
    let ends = [0, end].map(|at| {
        let mut labels = vec![0; ENDS_BYTES];
        file.read_exact_at(&mut labels, at).expect("labels");
        (at, labels)
    });
    let copy = Command::new("cp")
        .arg("--sparse=always")
        .args([&from, &to])
        .status();
    assert!(copy.expect("cp").success());
    let file = File::options().write(true).open(&to).expect("the copy");
    for (at, labels) in ends {
        file.write_all_at(&labels, at).expect("labels");
    }
    after
}

/// The pool of such an image; it seems to be in use.
pub async fn import_after_cut(world: &World, dir: &Path) -> Arc<Pool> {
    let mut spec = ImportSpec::new(find(world, dir).await, host());
    spec.force = true;
    Pool::import(world, spec).await.expect("import")
}

/// A dataset's filesystem.
pub async fn open(world: &World, pool: &Pool, name: &str) -> Arc<Filesystem> {
    let dataset = pool
        .dsl()
        .open_dataset(name)
        .await
        .expect("open the dataset");
    Filesystem::open(dataset, world.clone())
        .await
        .expect("open the filesystem")
}

/// Loads the keys that a manifest tells.
pub async fn load_keys(pool: &Pool, manifest: &serde_json::Value) {
    for key in manifest["keys"].as_array().into_iter().flatten() {
        let name = key["dataset"].as_str().expect("a dataset");
        let text = key["key"].as_str().expect("a key");
        let info = pool.dsl().keys().info(name).await.expect("readable");
        let info = info.expect("an encrypted dataset");
        let wrapping = match info.format {
            KeyFormat::Passphrase => {
                let iterations = u32::try_from(info.iterations).expect("iterations");
                passphrase_key(text.as_bytes(), info.salt, iterations)
            }
            KeyFormat::Raw | KeyFormat::Hex => {
                let mut bytes = [0; 32];
                for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
                    let digits = std::str::from_utf8(digits).expect("text");
                    *byte = u8::from_str_radix(digits, 16).expect("hex");
                }
                WrappingKey::new(bytes)
            }
        };
        pool.dsl()
            .keys()
            .load(name, wrapping, false)
            .await
            .expect("the right key");
    }
}

/// zdb; the script has it end sooner.
pub const ZDB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/zdb");

/// zdb finds nothing to complain about.
pub fn zdb_is_clean(dir: &Path, pool: &str) {
    for options in ["-bcc", "-d"] {
        let output = Command::new(ZDB)
            .args(["-e", "-p"])
            .arg(dir)
            .args([options, pool])
            .output()
            .expect("zdb (Debian package zfsutils-linux) is needed");
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            output.status.success(),
            "zdb {options} says {}:\n{text}",
            output.status
        );
        for bad in [
            "leaked space",
            "mismatch",
            "ERROR",
            "error:",
            "failed",
            "assertion",
        ] {
            assert!(!text.contains(bad), "zdb {options} says '{bad}':\n{text}");
        }
    }
}

/// Runs a script in the machine with the real OpenZFS, with the image as disk "d0".
pub fn run_in_peer(peer: &Peer, image: &Path, script: &str) -> String {
    peer.run(&[format!("{},d0", image.display())], script)
}

/// Numbers that look random, the same every time.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(length + 8);
        while out.len() < length {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(length);
        out
    }
}
