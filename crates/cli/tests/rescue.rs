//! Goal: `millpond rescue` brings out every file that is still whole, byte for byte, and says which
//! are not. Method: golden pools are broken in seeded ways: the engine tells where the blocks of
//! this or that are, and all copies of them are overwritten. What is still whole is told by the
//! strict readers, which are given the datasets' roots from before. Every such file must come out
//! with the hash of the manifest, every other be reported, and nothing come out under its own name
//! with other content.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use device::World;
use format::{BlockPointer, NvList, ObjectId};
use object::{Object, ObjectSet, ObjsetOptions, Zap};
use pool::{FoundPool, HostIdentity, ImportSpec, Pool, ScanSpec};
use serde_json::Value;
use sha2::{Digest, Sha256};

const MILLPOND: &str = env!("CARGO_BIN_EXE_millpond");
/// Bytes before the first allocatable byte of a device (two labels and the boot area).
const DEVICE_START_BYTES: u64 = 4 << 20;
/// Files longer than this are not read.
const READ_BYTES_MAX: u64 = 64 << 20;

/// xorshift64*: the same numbers everywhere for a seed.
struct Seeded(u64);

impl Seeded {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }
}

/// A golden pool that is open and about to be broken.
struct Bed {
    dir: tempfile::TempDir,
    name: String,
    manifest: Value,
    world: World,
    found: FoundPool,
    pool: Arc<Pool>,
    roots: BTreeMap<String, (ObjectId, BlockPointer)>,
    random: Seeded,
}

/// A file of the manifest.
struct Expected {
    dataset: String,
    path: Vec<u8>,
    ino: u64,
    size: u64,
    sha256: String,
}

impl Bed {
    async fn new(golden: &Path, name: &str, seed: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let images = oracles::unpack(golden, name, dir.path());
        let manifest = oracles::manifest(golden, name);
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let world = World::system(2);
        let spec = ScanSpec {
            paths: vec![images.to_str().expect("UTF-8").to_owned()],
            ..ScanSpec::default()
        };
        let mut all = pool::scan(&world, &spec).await.expect("scan");
        let found = all.remove(0);
        let mut spec = ImportSpec::new(found.clone(), HostIdentity::default());
        spec.read_only = true;
        let pool = Pool::import(&world, spec).await.expect("import");
        let mut roots = BTreeMap::new();
        let trees = manifest["trees"].as_object().expect("trees");
        for dataset in trees.keys() {
            let open = pool.dsl().open_dataset(dataset).await.expect("a dataset");
            roots.insert(dataset.clone(), (open.object(), open.objset().root()));
        }
        Self {
            dir,
            name: name.to_owned(),
            manifest,
            world,
            found,
            pool,
            roots,
            random: Seeded::new(seed),
        }
    }

    fn images(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }

    async fn objset(&self, dataset: &str) -> Result<Arc<ObjectSet>, object::ObjectError> {
        let (object, root) = self.roots[dataset];
        let options = ObjsetOptions {
            read_only: true,
            dataset: object,
            ..ObjsetOptions::default()
        };
        ObjectSet::open(
            self.pool.pipeline().clone(),
            self.world.clone(),
            root,
            options,
        )
        .await
    }

    /// All files of the manifest whose content it has a hash of.
    fn files(&self) -> Vec<Expected> {
        let mut out = Vec::new();
        for (dataset, tree) in self.manifest["trees"].as_object().expect("trees") {
            for entry in tree.as_array().expect("a list") {
                let size = entry["size"].as_u64().unwrap_or(0);
                let is_file = entry["type"] == "file" && size <= READ_BYTES_MAX;
                if let Some(sha256) = entry["sha256"].as_str().filter(|_| is_file) {
                    out.push(Expected {
                        dataset: dataset.clone(),
                        path: path_of(entry),
                        ino: entry["ino"].as_u64().expect("ino"),
                        size,
                        sha256: sha256.to_owned(),
                    });
                }
            }
        }
        out
    }

    /// Numbers of the objects of one type in live datasets.
    fn objects(&self, kind: &str) -> Vec<(String, u64)> {
        let mut out = Vec::new();
        for (dataset, tree) in self.manifest["trees"].as_object().expect("trees") {
            if dataset.contains('@') {
                continue;
            }
            for entry in tree.as_array().expect("a list") {
                let ino = entry["ino"].as_u64().expect("ino");
                // Control directories have numbers that no object has.
                if entry["type"] == kind && ino < ObjectId::LIMIT / 2 {
                    out.push((dataset.clone(), ino));
                }
            }
        }
        out
    }

    fn choose<T: Clone>(&mut self, list: &[T], count: usize) -> Vec<T> {
        (0..count.min(list.len()))
            .map(|_| list[self.random.below(list.len())].clone())
            .collect()
    }

    /// Overwrites all copies of a block.
    fn wreck(&mut self, pointer: &BlockPointer) {
        if pointer.is_hole() || pointer.is_embedded() {
            return;
        }
        let tree = self.found.config.list("vdev_tree").expect("a tree").clone();
        let tops = tree.lists("children").expect("top-level vdevs");
        for dva in pointer.dvas() {
            let top = &tops[dva.vdev().get() as usize];
            for (path, offset, length) in self.places(top, dva.offset_bytes(), dva.asize_bytes()) {
                let mut garbage = vec![0; length as usize];
                garbage.fill_with(|| self.random.next() as u8);
                let file = std::fs::OpenOptions::new()
                    .write(true)
                    .open(path)
                    .expect("an image");
                file.write_all_at(&garbage, offset).expect("write");
            }
        }
    }

    fn places(&self, top: &NvList, offset: u64, length: u64) -> Vec<(PathBuf, u64, u64)> {
        let path = |leaf: &NvList| {
            let guid = leaf.u64("guid").expect("a guid");
            PathBuf::from(&self.found.paths[&guid.into()])
        };
        let leaves = top.lists("children").unwrap_or_default();
        match top.string("type").expect("a type") {
            "raidz" => {
                let ashift = top.u64("ashift").expect("ashift");
                let count = leaves.len() as u64;
                let first = offset >> ashift;
                (first..first + (length >> ashift))
                    .map(|sector| {
                        let leaf = path(&leaves[(sector % count) as usize]);
                        let at = (sector / count) << ashift;
                        (leaf, DEVICE_START_BYTES + at, 1 << ashift)
                    })
                    .collect()
            }
            "mirror" => leaves
                .iter()
                .map(|leaf| (path(leaf), DEVICE_START_BYTES + offset, length))
                .collect(),
            _ => vec![(path(top), DEVICE_START_BYTES + offset, length)],
        }
    }

    async fn wreck_object(&mut self, object: &Object) {
        for block in 0..=object.info().max_block_id {
            if let Ok(pointer) = object.block_pointer(block).await {
                self.wreck(&pointer);
            }
        }
    }

    /// Overwrites the newest uberblock in every label.
    async fn wreck_newest_uberblock(&mut self) {
        let newest = self.found.uberblock_txg;
        for path in self.found.paths.values() {
            let device = self.world.opener.open(path, true).await.expect("a device");
            let labels = vdev::survey_labels(&*device).await.expect("labels");
            let shift = labels
                .iter()
                .find_map(|label| label.config.as_ref()?.list("vdev_tree")?.u64("ashift"))
                .expect("ashift")
                .clamp(10, 13);
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(path)
                .expect("an image");
            for label in &labels {
                for slot in label
                    .slots
                    .iter()
                    .filter(|slot| slot.uberblock.txg == newest)
                {
                    let at = label.offset_bytes + (128 << 10) + (slot.slot << shift);
                    file.write_all_at(&[0x5a; 1024], at).expect("write");
                }
            }
        }
    }

    /// A dataset's objects, if the MOS still leads to them and the filesystem's own structures are
    /// whole.
    async fn usable(&self, dataset: &str) -> Result<Arc<ObjectSet>, object::ObjectError> {
        let options = ObjsetOptions {
            read_only: true,
            ..ObjsetOptions::default()
        };
        let mos = ObjectSet::open(
            self.pool.pipeline().clone(),
            self.world.clone(),
            self.pool.dsl().root_bp(),
            options,
        )
        .await?;
        mos.hold(self.roots[dataset].0).await?;
        let objset = self.objset(dataset).await?;
        let master = Zap::hold(&objset, ObjectId::MASTER_NODE).await?;
        if let Some(id) = master.lookup_u64("SA_ATTRS").await? {
            for entry in Zap::hold(&objset, id.into()).await?.all().await? {
                let part = entry.value.as_u64().expect("an object");
                Zap::hold(&objset, part.into()).await?.all().await?;
            }
        }
        Ok(objset)
    }

    /// Which files can still be read by whoever insists on everything.
    async fn still_whole(&self) -> HashSet<(String, u64)> {
        self.pool.pipeline().cache().clear();
        let mut out = HashSet::new();
        let mut sets: HashMap<String, Option<Arc<ObjectSet>>> = HashMap::new();
        for dataset in self.roots.keys() {
            let open = self.usable(dataset).await;
            sets.insert(dataset.clone(), open.ok());
        }
        for file in self.files() {
            let Some(objset) = &sets[&file.dataset] else {
                continue;
            };
            let read = async {
                let object = objset.hold(ObjectId::new(file.ino)).await.ok()?;
                object.spill().await.ok()?;
                object.read_bytes(0, file.size as usize).await.ok()
            };
            if let Some(data) = read.await {
                assert_eq!(hash(&data), file.sha256, "the strict reader is right");
                out.insert((file.dataset, file.ino));
            }
        }
        out
    }

    /// Rescues, and compares what comes out. Returns the report.
    async fn check(self, about: &str) -> Value {
        let whole = self.still_whole().await;
        let files = self.files();
        self.pool.export(false).await.expect("close the pool");
        let out = self.dir.path().join("out");
        let output = Command::new(MILLPOND)
            .args(["rescue", "--json", "--snapshots", "-d"])
            .arg(self.images())
            .arg("--to")
            .arg(&out)
            .arg(self.found.guid.to_string())
            .output()
            .expect("millpond");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let about = format!("{} with {about}", self.name);
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{about}: {error}: {said}"));
        let code = output.status.code();
        let (copies, names) = everything_below(&out);
        let newest = self.found.uberblock_txg.get();
        let mut links = HashMap::<_, Vec<&Expected>>::new();
        for file in &files {
            let link = links.entry((&*file.dataset, file.ino)).or_default();
            link.push(file);
        }
        let mut missing = 0;
        for file in &files {
            // Directories here cannot hold longer names; the report advises an archive.
            if file
                .path
                .split(|byte| *byte == b'/')
                .any(|name| name.len() > 255)
            {
                missing += 1;
                continue;
            }
            let own = [file.dataset.as_bytes(), &file.path].concat();
            let shown = format!("{about}: {}", String::from_utf8_lossy(&own));
            let there = names.get(&own);
            let reports = report["datasets"].as_array().expect("datasets");
            let dataset = reports
                .iter()
                .find(|dataset| dataset["name"] == file.dataset.as_str());
            let is_newest = dataset.is_some_and(|dataset| dataset["txg"] == newest);
            if is_newest && let Some(there) = there {
                assert_eq!(*there, file.sha256, "{shown}: wrong content came out");
                continue;
            }
            if there == Some(&file.sha256) {
                continue;
            }
            // Under its number, or in a dataset that has lost its name.
            let number = format!("/{}", file.ino).into_bytes();
            let with = |name: &[u8]| {
                let key = (file.sha256.clone(), last_of(name).to_vec());
                copies.get(&key).into_iter().flatten()
            };
            let is_elsewhere = with(&file.path)
                .chain(with(&number))
                .any(|path| path.ends_with(&file.path) || is_found(path, &file.path, &number));
            // Under another of its names.
            let is_linked = links[&(&*file.dataset, file.ino)].iter().any(|other| {
                let path = [other.dataset.as_bytes(), &other.path].concat();
                names.get(&path) == Some(&file.sha256)
                    || with(&other.path)
                        .chain(with(&number))
                        .any(|path| is_found(path, &other.path, &number))
            });
            if is_elsewhere || is_linked {
                continue;
            }
            missing += 1;
            let is_whole = whole.contains(&(file.dataset.clone(), file.ino));
            assert!(
                !is_whole,
                "{shown} is whole but did not come out: {report:#}"
            );
            assert!(
                !is_newest || dataset.is_none_or(|dataset| is_told(dataset, file)),
                "{shown} is missing and the report does not say so: {report:#}"
            );
        }
        let is_well = missing == 0 && is_all_well(&report);
        let is_newest = report["is_rewound"] == false
            && report["datasets"]
                .as_array()
                .is_some_and(|all| all.iter().all(|dataset| dataset["txg"] == report["txg"]));
        assert_eq!(
            code,
            Some(if is_well && is_newest { 0 } else { 2 }),
            "{about}: {missing} files did not come out: {said}"
        );
        report
    }
}

fn is_all_well(report: &Value) -> bool {
    let datasets = report["datasets"].as_array().expect("datasets");
    datasets.iter().all(|dataset| {
        let is_empty = |list: &str| dataset[list].as_array().is_some_and(Vec::is_empty);
        dataset["problem"].is_null()
            && ["lost", "damaged", "found", "not_stored"]
                .into_iter()
                .all(is_empty)
    })
}

/// Whether a dataset's report tells that a file is not there, itself or by what it depends on.
fn is_told(dataset: &Value, file: &Expected) -> bool {
    let path = String::from_utf8_lossy(&file.path).into_owned();
    let damaged = dataset["damaged"].as_array().expect("a list");
    let lost = dataset["lost"].as_array().expect("a list");
    let covers = |what: &str| {
        what == "/"
            || what.starts_with('(')
            || what == path
            || path.starts_with(&format!("{what}/"))
    };
    !dataset["problem"].is_null()
        || damaged.iter().any(|item| item["object"] == file.ino)
        || lost
            .iter()
            .any(|item| item["object"] == file.ino || covers(item["what"].as_str().expect("text")))
}

/// The last name of a path.
fn last_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Whether it is where files go whose directory is lost: under its number, or below a directory
/// that has one.
fn is_found(path: &[u8], own: &[u8], number: &[u8]) -> bool {
    let name = own.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let place = b"/millpond-lost+found/";
    path.windows(place.len()).any(|part| part == place)
        && (path.ends_with(number) || path.ends_with(&own[name..]))
}

fn hash(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn path_of(entry: &Value) -> Vec<u8> {
    match entry["path_hex"].as_str() {
        Some(text) => text
            .as_bytes()
            .chunks(2)
            .map(|pair| {
                u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex")
            })
            .collect(),
        None => entry["path"].as_str().expect("a path").as_bytes().to_vec(),
    }
}

/// Paths by the hash of the content and the last name.
type Copies = HashMap<(String, Vec<u8>), Vec<Vec<u8>>>;

/// All files below a directory: where each content is, and the hash at each path.
fn everything_below(dir: &Path) -> (Copies, HashMap<Vec<u8>, String>) {
    let mut copies = Copies::new();
    let mut names = HashMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        for entry in std::fs::read_dir(&at).into_iter().flatten() {
            let entry = entry.expect("an entry");
            let meta = entry.metadata().expect("metadata");
            if meta.is_dir() {
                left.push(entry.path());
            } else if meta.is_file() && meta.len() <= READ_BYTES_MAX {
                let path = entry.path();
                let below = path.strip_prefix(dir).expect("below").as_os_str();
                let below = below.to_owned().into_vec();
                let sha256 = hash(&std::fs::read(&path).expect("read"));
                let key = (sha256.clone(), last_of(&below).to_vec());
                copies.entry(key).or_default().push(below.clone());
                names.insert(below, sha256);
            }
        }
    }
    assert!(!dir.as_os_str().as_bytes().is_empty());
    (copies, names)
}

async fn bed(name: &str, seed: u64) -> Option<Bed> {
    Some(Bed::new(&oracles::golden()?, name, seed).await)
}

const POOLS: [&str; 3] = ["stripe_of_mirrors", "raidz1_3", "nofeat"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_pools_come_out_whole() {
    for name in [
        "plain",
        "stripe_of_mirrors",
        "raidz1_3",
        "nofeat",
        "v28",
        "mirror3",
    ] {
        let Some(bed) = bed(name, 1).await else {
            return;
        };
        let files = bed.files().len() as u64;
        let report = bed.check("nothing wrong").await;
        let datasets = report["datasets"].as_array().expect("datasets");
        let count = |field: &str| -> u64 {
            datasets
                .iter()
                .map(|dataset| dataset[field].as_u64().expect("a number"))
                .sum()
        };
        assert!(count("files") + count("hard_links") >= files, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_uberblock_is_lost() {
    for name in POOLS {
        let Some(mut bed) = bed(name, 2).await else {
            return;
        };
        let newest = bed.found.uberblock_txg.get();
        bed.wreck_newest_uberblock().await;
        let report = bed.check("its newest uberblock lost").await;
        assert!(report["txg"].as_u64().expect("txg") < newest);
        assert!(is_all_well(&report), "{name}: {report:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_of_the_mos_is_lost() {
    for name in POOLS {
        let Some(mut bed) = bed(name, 3).await else {
            return;
        };
        let newest = bed.found.uberblock_txg.get();
        let root = bed.pool.dsl().root_bp();
        bed.wreck(&root);
        let report = bed.check("the root of its MOS lost").await;
        assert!(report["txg"].as_u64().expect("txg") < newest);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_the_mos_are_lost() {
    for name in POOLS {
        let Some(mut bed) = bed(name, 4).await else {
            return;
        };
        let mos = bed.pool.dsl().mos().clone();
        let directory = mos.hold(ObjectId::POOL_DIRECTORY).await.expect("directory");
        bed.wreck_object(&directory).await;
        bed.check("its object directory lost").await;
    }
    // Maps of names: all of them, so that no name is known from below either.
    for name in POOLS {
        let Some(mut bed) = bed(name, 5).await else {
            return;
        };
        let mos = bed.pool.dsl().mos().clone();
        let mut after = None;
        while let Some(id) = mos.next_object(after).await.expect("an object") {
            let object = mos.hold(id).await.expect("an object");
            if object.info().object_type == format::ObjectType::DSL_DIR_CHILD_MAP {
                bed.wreck_object(&object).await;
            }
            after = Some(id);
        }
        bed.check("the names of its datasets lost").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dnodes_of_the_mos_are_lost() {
    for name in POOLS {
        for seed in 0..3 {
            let Some(mut bed) = bed(name, 10 + seed).await else {
                return;
            };
            let mos = bed.pool.dsl().mos().clone();
            let meta = mos.hold(ObjectId::META_DNODE).await.expect("dnodes");
            let count = meta.info().max_block_id as usize + 1;
            let block = bed.random.below(count) as u64;
            let pointer = meta.block_pointer(block).await.expect("a pointer");
            bed.wreck(&pointer);
            bed.check(&format!("block {block} of its MOS's dnodes lost"))
                .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roots_of_datasets_are_lost() {
    for name in ["plain", "raidz1_3", "v28"] {
        let Some(mut bed) = bed(name, 6).await else {
            return;
        };
        let names: Vec<String> = bed.roots.keys().cloned().collect();
        for dataset in bed.choose(&names, 3) {
            let (_, root) = bed.roots[&dataset];
            bed.wreck(&root);
        }
        bed.check("roots of datasets lost").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_lost() {
    for name in [
        "plain",
        "stripe_of_mirrors",
        "raidz1_3",
        "nofeat",
        "v28",
        "big_dirs",
    ] {
        let Some(mut bed) = bed(name, 7).await else {
            return;
        };
        let directories = bed.objects("dir");
        for (dataset, ino) in bed.choose(&directories, 6) {
            let objset = bed.objset(&dataset).await.expect("a dataset");
            let object = objset.hold(ObjectId::new(ino)).await.expect("a directory");
            let last = object.info().max_block_id as usize;
            // All of a small one; a few leaves of a big one, or its header.
            if last < 4 || bed.random.below(3) == 0 {
                let pointer = object.block_pointer(0).await.expect("a pointer");
                bed.wreck(&pointer);
            } else {
                for _ in 0..3 {
                    let block = bed.random.below(last) as u64 + 1;
                    let pointer = object.block_pointer(block).await.expect("a pointer");
                    bed.wreck(&pointer);
                }
            }
        }
        bed.check("directories lost").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_files_and_dnodes_are_lost() {
    for name in ["plain", "stripe_of_mirrors", "raidz1_3", "nofeat", "v28"] {
        let Some(mut bed) = bed(name, 8).await else {
            return;
        };
        let files = bed.objects("file");
        for (dataset, ino) in bed.choose(&files, 20) {
            let objset = bed.objset(&dataset).await.expect("a dataset");
            let object = objset.hold(ObjectId::new(ino)).await.expect("a file");
            let last = object.info().max_block_id as usize;
            let block = bed.random.below(last + 1) as u64;
            let pointer = object.block_pointer(block).await.expect("a pointer");
            bed.wreck(&pointer);
        }
        for (dataset, ino) in bed.choose(&files, 3) {
            let objset = bed.objset(&dataset).await.expect("a dataset");
            let meta = objset.hold(ObjectId::META_DNODE).await.expect("dnodes");
            let pointer = meta.block_pointer(ino / 32).await.expect("a pointer");
            bed.wreck(&pointer);
        }
        let report = bed.check("blocks of files and dnodes lost").await;
        assert!(!is_all_well(&report), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_top_level_vdev_is_lost() {
    for lost in [["d0.img", "d1.img"], ["d2.img", "d3.img"]] {
        let Some(bed) = bed("stripe_of_mirrors", 9).await else {
            return;
        };
        for image in lost {
            let path = bed.images().join(image);
            let length = std::fs::metadata(&path).expect("an image").len();
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .expect("an image");
            file.write_all_at(&vec![0; length as usize], 0)
                .expect("write");
        }
        let report = bed.check(&format!("{lost:?} lost")).await;
        assert_eq!(report["missing_vdevs"].as_array().map(Vec::len), Some(1));
        assert!(!is_all_well(&report));
    }
}

/// A second run copies nothing again; an archive holds what a directory gets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_go_on_and_archives_hold_the_same() {
    let Some(mut bed) = bed("stripe_of_mirrors", 11).await else {
        return;
    };
    let files = bed.objects("file");
    for (dataset, ino) in bed.choose(&files, 5) {
        let objset = bed.objset(&dataset).await.expect("a dataset");
        let object = objset.hold(ObjectId::new(ino)).await.expect("a file");
        let pointer = object.block_pointer(0).await.expect("a pointer");
        bed.wreck(&pointer);
    }
    let run = |arguments: &[&str]| {
        let output = Command::new(MILLPOND)
            .args(["rescue", "--json", "-d"])
            .arg(bed.images())
            .args(arguments)
            .arg(&bed.found.name)
            .output()
            .expect("millpond");
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        (output.status.code(), report)
    };
    let out = bed.dir.path().join("again");
    let to = ["--to", out.to_str().expect("UTF-8")];
    let (code, first) = run(&to);
    assert_eq!(code, Some(2));
    let (_, before) = everything_below(&out);
    let damaged = first["datasets"][0]["damaged"]
        .as_array()
        .expect("a list")
        .len();
    assert!(damaged > 0, "{first:#}");
    let is_damaged = |path: &&Vec<u8>| path.ends_with(b".millpond-damaged");
    assert_eq!(before.keys().filter(is_damaged).count(), damaged);
    // One that was not finished, and one that somebody changed.
    let has_one_name = |path: &&Vec<u8>| {
        use std::os::unix::fs::MetadataExt;
        let path = out.join(std::ffi::OsStr::from_bytes(path));
        std::fs::metadata(path).expect("metadata").nlink() == 1
    };
    let mut whole: Vec<&Vec<u8>> = before
        .keys()
        .filter(|path| !is_damaged(path) && has_one_name(path))
        .collect();
    whole.sort();
    let mut whole = whole.into_iter();
    let gone = out.join(std::ffi::OsStr::from_bytes(whole.next().expect("a file")));
    let changed = out.join(std::ffi::OsStr::from_bytes(whole.next().expect("a file")));
    std::fs::remove_file(&gone).expect("remove");
    std::fs::write(&changed, b"mine").expect("write");
    let (code, second) = run(&to);
    assert_eq!(code, Some(2));
    assert!(gone.exists());
    assert_eq!(std::fs::read(&changed).expect("read"), b"mine");
    let told = second["datasets"][0]["not_stored"]
        .as_array()
        .expect("a list");
    assert_eq!(told.len(), 1, "{second:#}");
    assert_eq!(
        second["datasets"][0]["kept"].as_u64(),
        first["datasets"][0]["files"]
            .as_u64()
            .map(|files| files - 2)
    );

    let archive = bed.dir.path().join("all.tar");
    let (code, _) = run(&["--tar", archive.to_str().expect("UTF-8")]);
    assert_eq!(code, Some(2));
    let unpacked = bed.dir.path().join("unpacked");
    std::fs::create_dir(&unpacked).expect("a directory");
    let status = Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&unpacked)
        .status()
        .expect("tar");
    assert!(status.success());
    assert_eq!(everything_below(&unpacked).1, before);
    let omitted = bed.dir.path().join("omitted");
    run(&["--omit-damaged", "--to", omitted.to_str().expect("UTF-8")]);
    assert_eq!(everything_below(&omitted).1.len(), before.len() - damaged);
}
