//! Exported pools of which no copy of an object of the MOS, or of some labels, can be read any
//! more.
//!
//! A story makes one pool of a random layout without redundancy, with random features and a little
//! of everything. Each case takes it as it was exported, damages the blocks of one object of the
//! MOS, the root block of a dataset, or labels, and has a server import it for writing. Oracles:
//! the import works, or says what is damaged where no pool can do without it; no file that can be
//! read is another one than it was, and none is lost with what a pool can do without; what cannot
//! be read is told; snapshots, destroying, scrubs and the export work or are refused, at once, and
//! the pool is never suspended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use device::{BoxFuture, Tasks, World};
use format::{BlockPointer, Bookmark, ObjectId, ObjectType, ObjsetId, Txg};
use object::{Met, Traverse, Visitor, Zap, traverse};
use parking_lot::Mutex;
use pool::{HostIdentity, ImportSpec, Pool, ScanSpec};
use sim::rng::Rng;
use zio::{Pipeline, ReadContext, ZioError};

use super::pools::lacking_features;
use crate::harness::Server;

/// Cases of a story.
const CASES: u64 = 12;
/// How long anything may take that must not wait for a pool. (Machines of CI are slow.)
const AT_ONCE: Duration = Duration::from_secs(120);

const DISK_BYTES: u64 = 128 << 20;
const LABEL_BYTES: u64 = 256 << 10;
/// Labels and boot block in front (`VDEV_LABEL_START_SIZE`).
const FRONT_BYTES: u64 = 4 << 20;

/// Objects of the MOS that a pool can do without, by their names in its directory.
const DISPENSABLE: [&str; 7] = [
    "feature_descriptions",
    "feature_enabled_txg",
    "history",
    "spares",
    "l2cache",
    "pool_props",
    "com.delphix:vdev_zap_map",
];

/// Disks by the numbers of their top-level vdevs: a block is on each of them.
type Tops = Vec<Vec<String>>;

fn layout(rng: &mut Rng, disks: &[String]) -> (String, Tops) {
    let tops = |all: &[&[usize]]| -> Tops {
        let top = |places: &&[usize]| places.iter().map(|place| disks[*place].clone()).collect();
        all.iter().map(top).collect()
    };
    let d = |place: usize| &disks[place];
    match rng.below(5) {
        0 => (d(0).clone(), tops(&[&[0]])),
        1 => (format!("{} {}", d(0), d(1)), tops(&[&[0], &[1]])),
        2 => (format!("mirror {} {}", d(0), d(1)), tops(&[&[0, 1]])),
        3 => (
            format!("{} log {} spare {} cache {}", d(0), d(1), d(2), d(3)),
            tops(&[&[0], &[1]]),
        ),
        _ => (
            format!("{} special {} dedup {}", d(0), d(1), d(2)),
            tops(&[&[0], &[1], &[2]]),
        ),
    }
}

/// Files below the mountpoint and in snapshots, with what they hold.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Writes a file and keeps what it holds.
fn write(rng: &mut Rng, files: &mut Files, path: PathBuf) {
    let length = 1 + rng.below(200_000) as usize;
    let data = rng.content(length);
    fs::write(&path, &data).expect("a file");
    files.insert(path, data);
}

/// Makes the pool, with a little of everything, and exports it.
fn make(server: &Server, rng: &mut Rng, create: &str) -> Files {
    let root = server.path("mnt");
    server.ok(create);
    let mut files = Files::new();
    for words in [
        "zfs create tank/a",
        "zfs create -o dedup=on -o checksum=sha256 tank/dedup",
        "zfs create -o compression=off -o xattr=sa tank/b",
        "zfs create tank/gone",
    ] {
        server.ok(words);
    }
    for name in ["", "a", "dedup", "b"] {
        for index in 0..3 {
            write(rng, &mut files, root.join(name).join(format!("f{index}")));
        }
    }
    server.ok("zpool sync tank");
    server.ok("zfs snapshot tank/a@1");
    let old: Vec<_> = (0..3)
        .map(|index| root.join(format!("a/f{index}")))
        .collect();
    for path in &old {
        let at = root
            .join("a/.zfs/snapshot/1")
            .join(path.file_name().expect("a name"));
        files.insert(at, files[path].clone());
    }
    server.ok("zfs clone tank/a@1 tank/clone");
    for path in &old {
        let at = root.join("clone").join(path.file_name().expect("a name"));
        files.insert(at, files[path].clone());
    }
    write(rng, &mut files, root.join("clone/own"));
    write(rng, &mut files, root.join("a/f0"));
    fs::remove_file(root.join("a/f1")).expect("removed");
    files.remove(&root.join("a/f1"));
    for words in [
        "zfs snapshot tank/a@2",
        "zfs bookmark tank/a@1 tank/a#1",
        "zfs hold keep tank/a@2",
        "zfs allow -u 1000 snapshot tank/a",
        "zfs set org.example:c=d tank/a",
        "zfs set quota=64M tank/b",
        "zpool set comment=anything tank",
        "zfs destroy tank/gone",
        "zpool scrub -w tank",
        "zpool export tank",
    ] {
        server.ok(words);
    }
    files
}

/// What is damaged in a case.
#[derive(Debug, Clone)]
struct Victim {
    what: String,
    /// Whether a pool can do without it.
    is_dispensable: bool,
    /// Places: disk, first byte, and length.
    places: Vec<(String, u64, u64)>,
}

/// Collects where the blocks of each object of the MOS are.
struct Blocks {
    pipeline: Arc<Pipeline>,
    found: Mutex<BTreeMap<ObjectId, Vec<BlockPointer>>>,
}

impl Visitor for Blocks {
    fn meet(&self, met: &Met<'_>) -> bool {
        if met.bookmark.level != Bookmark::ROOT_LEVEL {
            let mut found = self.found.lock();
            let blocks = found.entry(met.bookmark.object).or_default();
            blocks.push(*met.pointer);
        }
        true
    }

    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        _bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        Box::pin(async move { self.pipeline.read(&pointer, &ReadContext::default()).await })
    }
}

fn places(tops: &Tops, blocks: &[BlockPointer]) -> Vec<(String, u64, u64)> {
    let dvas = blocks.iter().flat_map(BlockPointer::dvas);
    let of_dva = dvas.flat_map(|dva| {
        let disks = tops.get(dva.vdev().get() as usize).into_iter().flatten();
        let (first, length) = (FRONT_BYTES + dva.offset_bytes(), dva.asize_bytes());
        disks.map(move |disk| (disk.clone(), first, length))
    });
    of_dva.collect()
}

/// The objects of the MOS, and the roots of datasets.
async fn objects(directory: &Path, tops: &Tops) -> Vec<Victim> {
    let world = World::system(1);
    let spec = ScanSpec {
        paths: vec![directory.to_string_lossy().into_owned()],
        ..ScanSpec::default()
    };
    let found = pool::scan(&world, &spec).await.expect("a scan");
    let found = found.into_iter().find(|found| found.name == "tank");
    let mut spec = ImportSpec::new(found.expect("the pool"), HostIdentity::default());
    (spec.read_only, spec.force) = (true, true);
    let pool = Pool::import(&world, spec).await.expect("import");
    let visitor = Arc::new(Blocks {
        pipeline: pool.pipeline().clone(),
        found: Mutex::default(),
    });
    let what = Traverse {
        root: pool.dsl().root_bp(),
        objset: ObjsetId::new(0),
        after: Txg::ZERO,
        from: None,
    };
    traverse(&what, &Tasks::new(&world, |_| ()), &visitor).await;
    let mos = pool.dsl().mos();
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await.expect("it");
    let mut names = BTreeMap::new();
    for entry in directory.all().await.expect("entries") {
        if let Some(id) = entry.value.as_u64() {
            names.insert(ObjectId::new(id), entry.name_str().into_owned());
        }
    }
    let found = std::mem::take(&mut *visitor.found.lock());
    let mut out = Vec::new();
    for (id, blocks) in found {
        let (kind, name) = match id == ObjectId::META_DNODE {
            true => (ObjectType::DNODE, "dnodes".to_owned()),
            false => {
                let info = mos.hold(id).await.expect("hold").info();
                (info.object_type, names.remove(&id).unwrap_or_default())
            }
        };
        out.push(Victim {
            what: format!("object {id} {kind:?} '{name}'"),
            is_dispensable: DISPENSABLE.contains(&name.as_str()),
            places: places(tops, &blocks),
        });
    }
    for name in [
        "tank",
        "tank/a",
        "tank/dedup",
        "tank/b",
        "tank/clone",
        "tank/a@1",
    ] {
        let dataset = pool.dsl().open_dataset(name).await.expect("open");
        out.push(Victim {
            what: format!("the root of {name}"),
            is_dispensable: false,
            places: places(tops, &[dataset.objset().root()]),
        });
    }
    pool.export(false).await.expect("export");
    // Embedded ones have no place.
    out.retain(|victim| !victim.places.is_empty());
    out
}

/// Up to three labels of each disk.
fn labels(rng: &mut Rng, disks: &[&String]) -> Victim {
    let at = [
        0,
        LABEL_BYTES,
        DISK_BYTES - 2 * LABEL_BYTES,
        DISK_BYTES - LABEL_BYTES,
    ];
    let mut places = Vec::new();
    let mut what = String::from("labels");
    for disk in disks {
        let spared = rng.below(4) as usize;
        let damaged: Vec<usize> = (0..4)
            .filter(|label| *label != spared && rng.percent(70))
            .collect();
        what.push_str(&format!(" {damaged:?}"));
        places.extend(
            damaged
                .iter()
                .map(|label| ((*disk).clone(), at[*label], LABEL_BYTES)),
        );
    }
    Victim {
        what,
        is_dispensable: true,
        places,
    }
}

fn damage(rng: &mut Rng, victim: &Victim) {
    for (disk, first, length) in &victim.places {
        let noise = rng.content(*length as usize);
        let file = File::options().write(true).open(disk).expect("a disk");
        file.write_all_at(&noise, *first).expect("written over");
    }
}

/// Runs a command that must not hang; its output, and whether it worked.
fn run(server: &Server, words: &str) -> Result<(bool, String), String> {
    let list: Vec<&str> = words.split_whitespace().collect();
    let mut command = std::process::Command::new(crate::harness::MILLPOND);
    command.args(list).env("MILLPOND_STATE", server.state());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("millpond runs");
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = pipe.map(|mut pipe| pipe.read_to_string(&mut text));
            text
        })
    };
    let out = read(
        child
            .stdout
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
    );
    let err = read(
        child
            .stderr
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
    );
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("its end") {
            break status;
        }
        if begin.elapsed() > AT_ONCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("'{words}' hangs"));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = out.join().expect("output") + &err.join().expect("errors");
    for bad in ["panic", "is a bug", "internal error"] {
        if text.contains(bad) {
            return Err(format!("'{words}': {text}"));
        }
    }
    Ok((status.success(), text))
}

/// Runs a command that works or is refused; the pool goes on.
fn tolerant(server: &Server, words: &str) -> Result<bool, String> {
    let (worked, text) = run(server, words)?;
    let (listed, health) = run(server, "zpool list -H -o health tank")?;
    if !listed || health.contains("SUSPENDED") {
        return Err(format!("after '{words}' ({text}): {health}"));
    }
    Ok(worked)
}

/// Files that cannot be read. One that reads as something else is an error.
fn unreadable(files: &Files) -> Result<BTreeSet<&Path>, String> {
    let mut lost = BTreeSet::new();
    for (path, data) in files {
        match fs::read(path) {
            Ok(found) if found == *data => {}
            Ok(found) => {
                let (is, was) = (found.len(), data.len());
                let path = path.display();
                return Err(format!("{path} is something else ({is} bytes for {was})"));
            }
            Err(_) => {
                lost.insert(path.as_path());
            }
        }
    }
    Ok(lost)
}

/// What becomes of the pool; the error says what should not.
fn fate(server: &Server, files: &Files, victim: &Victim) -> Result<String, String> {
    let import = format!("zpool import -d {} tank", server.text("disks"));
    let (imported, text) = run(server, &import)?;
    if !imported {
        let is_told = text.contains("damaged") || text.contains("corrupt");
        return match victim.is_dispensable || !is_told {
            true => Err(format!("it is not imported: {text}")),
            false => Ok("refused".to_owned()),
        };
    }
    let lost = unreadable(files)?;
    if victim.is_dispensable && !lost.is_empty() {
        return Err(format!("{lost:?} cannot be read"));
    }
    // What is written now is there after the next import.
    let root = server.path("mnt");
    let mut written = Files::new();
    let (_, mounted) = run(server, "zfs mount")?;
    for name in ["", "a", "b", "clone"] {
        let at = root.join(name);
        let is_mounted = |line: &str| line.split_whitespace().nth(1) == at.to_str();
        let data = vec![7; 50_000];
        let new = at.join("new");
        let store = || {
            let file = File::create(&new)?;
            file.write_all_at(&data, 0)?;
            file.sync_all()
        };
        if mounted.lines().any(is_mounted) && store().is_ok() {
            written.insert(new, data);
        }
    }
    let mut refused = Vec::new();
    for words in [
        "zpool sync tank",
        "zfs snapshot -r tank@now",
        "zfs set org.example:c=e tank/a",
        "zfs create tank/made",
        "zfs destroy tank/a#1",
        "zpool scrub -w tank",
    ] {
        if !tolerant(server, words)? {
            refused.push(words);
        }
    }
    let (_, status) = run(server, "zpool status -v tank")?;
    if !lost.is_empty() && status.contains("errors: No known data errors") {
        return Err(format!(
            "{lost:?} cannot be read, and nothing is told:\n{status}"
        ));
    }
    if victim.is_dispensable && !refused.is_empty() {
        return Err(format!("refused: {refused:?}\n{status}"));
    }
    for words in [
        "zfs destroy tank/a@2",
        "zfs release keep tank/a@2",
        "zfs destroy tank/a@2",
        "zfs destroy -r tank/clone",
        "zfs destroy -r tank/dedup",
        "zpool sync tank",
    ] {
        tolerant(server, words)?;
    }
    let (exported, text) = run(server, "zpool export tank")?;
    if !exported {
        return Err(format!("it is not exported: {text}"));
    }
    let (imported, text) = run(server, &import)?;
    if !imported {
        return Err(format!("it is not imported again: {text}"));
    }
    written.retain(|path, _| !path.starts_with(root.join("clone")));
    let lost_again = unreadable(&written)?;
    if !lost_again.is_empty() {
        return Err(format!("{lost_again:?} were synced, and cannot be read"));
    }
    let (exported, text) = run(server, "zpool export tank")?;
    match exported {
        true => Ok(format!(
            "works, {} files lost, refused: {refused:?}",
            lost.len()
        )),
        false => Err(format!("it is not exported again: {text}")),
    }
}

/// Puts all disks back as they were.
fn restore(server: &Server) {
    for entry in fs::read_dir(server.path("kept")).expect("a directory") {
        let kept = entry.expect("an entry").path();
        let disk = server.path("disks").join(kept.file_name().expect("a name"));
        crate::harness::run(
            "cp",
            &[
                "--sparse=always",
                &kept.to_string_lossy(),
                &disk.to_string_lossy(),
            ],
        );
    }
}

fn story(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut server = Server::start();
    let disks = server.disks(4, DISK_BYTES);
    let (vdevs, tops) = layout(&mut rng, &disks);
    let features: String = lacking_features(&mut rng)
        .iter()
        .map(|feature| format!(" -o feature@{feature}=disabled"))
        .collect();
    let create = format!(
        "zpool create -f -o ashift={} {features} -O mountpoint={} tank {vdevs}",
        9 + 3 * rng.below(2),
        server.path("mnt").display()
    );
    eprintln!("{create}");
    let files = make(&server, &mut rng, &create);
    fs::rename(server.path("disks"), server.path("kept")).expect("the pool is kept");
    fs::create_dir(server.path("disks")).expect("a directory");
    restore(&server);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let victims = runtime.block_on(objects(&server.path("disks"), &tops));
    drop(runtime);
    for case in 0..CASES {
        restore(&server);
        let victim = match rng.percent(20) {
            true => labels(&mut rng, &tops.iter().flatten().collect::<Vec<_>>()),
            false => rng.pick(&victims).expect("an object"),
        };
        damage(&mut rng, &victim);
        match fate(&server, &files, &victim) {
            Ok(fate) => eprintln!("  {}: {fate}", victim.what),
            Err(why) => {
                server.kill();
                server.directory.disable_cleanup(true);
                panic!(
                    "seed {seed}, case {case}, {}: {why}\nwhat is left is in {}",
                    victim.what,
                    server.directory.path().display()
                );
            }
        }
    }
}

#[test]
fn a_pool_goes_on_without_what_it_can_do_without() {
    super::tell(story);
}
