//! Golden pools whose images lie: what the tests of bad input share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use codec::checksum::{label_verifier, seal};
use dataset::{DatasetKind, ListOptions};
use device::{BoxFuture, Device, DeviceError, Opener, World};
use filesystem::{FileKind, Filesystem, SalvagedFilesystem};
use format::{
    Checksum, Eck, Endian, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET, LABEL_COUNT,
    LABEL_UBERBLOCK_OFFSET, LABEL_UBERBLOCK_RING_BYTES, ObjectId, Uberblock, label_offset,
};
use object::Piece;
use parking_lot::Mutex;
use pool::{HostIdentity, ImportSpec, Pool, Salvage, SalvageSpec, ScanSpec};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::unpack;

/// Memory that no damaged pool may make the process use, in KiB: the cache's limit and as much
/// again.
pub const MEMORY_KIB_MAX: u64 = 1 << 20;
/// Entries of one filesystem that a run looks at.
const ENTRIES_MAX: usize = 400;
/// Bytes of one file that a run reads.
const READ_BYTES_MAX: u64 = 4 << 20;
/// A run that takes longer hangs.
pub const RUN_SECONDS_MAX: u64 = 120;

/// xorshift64*: the same numbers everywhere for a seed.
#[derive(Debug, Clone)]
pub struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        let mut seeded =
            Self((seed ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        seeded.next();
        seeded
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, count: u64) -> u64 {
        (self.next() >> 11) % count.max(1)
    }
}

/// Files whose content a run may have changed: datasets and object numbers.
pub type Touched = BTreeSet<(String, u64)>;

const PAGE_BYTES: u64 = 4096;

/// What was written to an image, in memory, by page.
type Pages = Arc<Mutex<HashMap<u64, Vec<u8>>>>;

/// An image with changes laid over it.
struct Overlaid {
    path: String,
    file: Arc<File>,
    size: u64,
    changes: Vec<(u64, Vec<u8>)>,
    /// None where nothing may be written.
    written: Option<Pages>,
}

impl Overlaid {
    fn check(&self, op: &'static str, offset: u64, length: usize) -> Result<u64, DeviceError> {
        let end = offset.checked_add(length as u64);
        end.filter(|end| *end <= self.size)
            .ok_or_else(|| DeviceError::OutOfRange {
                path: self.path.clone(),
                op,
                offset_bytes: offset,
                length_bytes: length as u64,
                size_bytes: self.size,
            })
    }

    /// What is there but for what was written.
    fn below(&self, offset: u64, out: &mut [u8]) {
        self.file.read_exact_at(out, offset).expect("an image");
        let end = offset + out.len() as u64;
        for (at, bytes) in &self.changes {
            let (from, to) = (offset.max(*at), end.min(at + bytes.len() as u64));
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            }
        }
    }
}

/// Calls `each` with the pages that a range touches, and which of its bytes and of the page's
/// belong together.
fn by_page(
    offset: u64,
    length: usize,
    mut each: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < length {
        let at = offset + done as u64;
        let start = (at % PAGE_BYTES) as usize;
        let part = (length - done).min(PAGE_BYTES as usize - start);
        each(at / PAGE_BYTES, done..done + part, start..start + part);
        done += part;
    }
}

impl std::fmt::Debug for Overlaid {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.path)
    }
}

impl Device for Overlaid {
    fn path(&self) -> &str {
        &self.path
    }
    fn size_bytes(&self) -> u64 {
        self.size
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn is_read_only(&self) -> bool {
        self.written.is_none()
    }
    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DeviceError>> {
        Box::pin(async move {
            self.check("read", offset, length)?;
            let mut out = vec![0; length];
            self.below(offset, &mut out);
            if let Some(written) = &self.written {
                let written = written.lock();
                by_page(offset, length, |page, ours, its| {
                    if let Some(page) = written.get(&page) {
                        out[ours].copy_from_slice(&page[its]);
                    }
                });
            }
            Ok(out.into())
        })
    }
    fn write(&self, offset: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
        let Some(written) = &self.written else {
            panic!("{}: nothing may be written", self.path)
        };
        Box::pin(async move {
            self.check("write", offset, data.len())?;
            let mut written = written.lock();
            by_page(offset, data.len(), |page, ours, its| {
                let page = written.entry(page).or_insert_with(|| {
                    let start = page * PAGE_BYTES;
                    let mut below = vec![0; PAGE_BYTES as usize];
                    let there = (self.size - start).min(PAGE_BYTES) as usize;
                    self.below(start, &mut below[..there]);
                    below
                });
                page[its].copy_from_slice(&data[ours]);
            });
            Ok(())
        })
    }
    fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async { Ok(()) })
    }
    fn discard(&self, _: u64, _: u64) -> BoxFuture<'_, Result<(), DeviceError>> {
        assert!(
            self.written.is_some(),
            "{}: nothing may be discarded",
            self.path
        );
        Box::pin(async { Ok(()) })
    }
}

/// A golden pool's images, opened once for all runs.
pub struct Images {
    files: Vec<(String, Arc<File>, u64)>,
    /// 4 KiB blocks that hold anything: image and offset.
    filled: Vec<(usize, u64)>,
    manifest: Value,
    _dir: tempfile::TempDir,
}

type Changes = Vec<(usize, u64, Vec<u8>)>;

/// A file, its size, what lies over it (offsets and bytes), and what is written to it.
type Changed = (Arc<File>, u64, Vec<(u64, Vec<u8>)>, Option<Pages>);

/// By path.
struct Overlay(HashMap<String, Changed>);

impl Opener for Overlay {
    fn open<'a>(
        &'a self,
        path: &'a str,
        _read_only: bool,
    ) -> BoxFuture<'a, Result<Arc<dyn Device>, DeviceError>> {
        Box::pin(async move {
            let Some((file, size, changes, written)) = self.0.get(path) else {
                return Err(DeviceError::Open {
                    path: path.to_owned(),
                    source: std::io::ErrorKind::NotFound.into(),
                });
            };
            Ok(Arc::new(Overlaid {
                path: path.to_owned(),
                file: file.clone(),
                size: *size,
                changes: changes.clone(),
                written: written.clone(),
            }) as Arc<dyn Device>)
        })
    }
}

/// Numbers that overflow, underflow or mean something special somewhere.
const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    0xffff,
    0xffff_ffff,
    1 << 47,
    1 << 62,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Changes a few bits, bytes, numbers and runs of bytes.
pub fn spoil(random: &mut Seeded, data: &mut [u8]) {
    for _ in 0..=random.below(4) {
        // The beginning, where headers are, more often than chance would.
        let span = if random.below(2) == 0 { 256 } else { u64::MAX };
        let at = random.below(span.min(data.len() as u64)) as usize;
        let number = NUMBERS[random.below(NUMBERS.len() as u64) as usize];
        match random.below(5) {
            0 => data[at] ^= 1 << random.below(8),
            1 => data[at] = random.next() as u8,
            kind @ (2 | 3) => {
                let start = at & !7;
                let bytes = if kind == 2 {
                    number.to_le_bytes()
                } else {
                    number.to_be_bytes()
                };
                if let Some(word) = data.get_mut(start..start + 8) {
                    word.copy_from_slice(&bytes);
                }
            }
            _ => {
                let end = (at + 1 + random.below(128) as usize).min(data.len());
                data[at..end].fill(random.next() as u8);
            }
        }
    }
}

/// A part of a label with the checksum that belongs there.
fn sealed(offset: u64, mut bytes: Vec<u8>) -> Vec<u8> {
    let verifier = label_verifier(offset);
    seal(Checksum::Label, Endian::Little, &verifier, &mut bytes).expect("a part of a label");
    bytes
}

impl Images {
    pub fn new(golden: &Path, name: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let images = unpack(golden, name, dir.path());
        let manifest = std::fs::read(golden.join(format!("{name}.json"))).expect("manifest");
        let mut paths: Vec<_> = std::fs::read_dir(images)
            .expect("images")
            .map(|entry| entry.expect("an image").path())
            .collect();
        paths.sort();
        let mut files = Vec::new();
        let mut filled = Vec::new();
        for (index, path) in paths.iter().enumerate() {
            let bytes = std::fs::read(path).expect("an image");
            for (block, content) in bytes.chunks(4096).enumerate() {
                if content.iter().any(|byte| *byte != 0) {
                    filled.push((index, block as u64 * 4096));
                }
            }
            let file = Arc::new(File::open(path).expect("an image"));
            files.push((
                path.to_str().expect("UTF-8").to_owned(),
                file,
                bytes.len() as u64,
            ));
        }
        Self {
            files,
            filled,
            manifest: serde_json::from_slice(&manifest).expect("JSON"),
            _dir: dir,
        }
    }

    /// Some changes where there is something to change.
    pub fn changes(&self, random: &mut Seeded) -> Changes {
        let shift = random.below(9);
        let count = 1 + random.below(1 << shift);
        (0..count)
            .map(|_| {
                let (image, block) = self.filled[random.below(self.filled.len() as u64) as usize];
                let mut old = [0; 4096];
                let file = &self.files[image].1;
                file.read_exact_at(&mut old, block).expect("an image");
                match random.below(5) {
                    0 => {
                        let at = random.below(4096);
                        (
                            image,
                            block + at,
                            vec![old[at as usize] ^ (1 << random.below(8))],
                        )
                    }
                    1 => (image, block + random.below(4096), vec![random.next() as u8]),
                    2 => (image, block + random.below(8) * 512, vec![0; 512]),
                    3 => {
                        let bytes = (0..512).map(|_| random.next() as u8).collect();
                        (image, block + random.below(8) * 512, bytes)
                    }
                    // A write that went elsewhere.
                    _ => {
                        let (from, other) =
                            self.filled[random.below(self.filled.len() as u64) as usize];
                        let mut bytes = vec![0; 4096];
                        let file = &self.files[from].1;
                        file.read_exact_at(&mut bytes, other).expect("an image");
                        (image, block, bytes)
                    }
                }
            })
            .collect()
    }

    /// Labels with changed configurations and uberblocks whose checksums are right: on each image
    /// the same in all four labels.
    pub fn forged(&self, random: &mut Seeded) -> Changes {
        let mut changes = Changes::new();
        for (image, (_, file, size)) in self.files.iter().enumerate() {
            if random.below(4) == 0 {
                continue;
            }
            let seed = random.next();
            for label in 0..LABEL_COUNT {
                let mut same = Seeded::new(seed);
                let start = label_offset(*size, label).expect("labels");
                let config = start + LABEL_CONFIG_OFFSET;
                let mut bytes = vec![0; LABEL_CONFIG_BYTES];
                file.read_exact_at(&mut bytes, config).expect("an image");
                let list = &bytes[..LABEL_CONFIG_BYTES - Eck::BYTES];
                let used = list.iter().rposition(|byte| *byte != 0);
                if let Some(used) = used.filter(|_| same.below(3) > 0) {
                    spoil(&mut same, &mut bytes[..used]);
                    changes.push((image, config, sealed(config, bytes)));
                }
                // Slots are as large as the ashift demands; where uberblocks are tells.
                let ring = start + LABEL_UBERBLOCK_OFFSET;
                let mut all = vec![0; LABEL_UBERBLOCK_RING_BYTES as usize];
                file.read_exact_at(&mut all, ring).expect("an image");
                let is_there = |at: &usize| Uberblock::decode(&all[*at..*at + 1024]).is_ok();
                let starts: Vec<usize> = (0..all.len()).step_by(1024).filter(is_there).collect();
                let apart = starts.windows(2).map(|pair| pair[1] - pair[0]).min();
                let slot = apart.filter(|apart| apart.is_power_of_two());
                let slot = slot.unwrap_or(1024);
                let spoils = same.below(3) == 0;
                for at in starts {
                    if spoils && at + slot <= all.len() {
                        let mut bytes = all[at..at + slot].to_vec();
                        spoil(&mut same, &mut bytes[8..Uberblock::BYTES]);
                        let at = ring + at as u64;
                        changes.push((image, at, sealed(at, bytes)));
                    }
                }
            }
        }
        changes
    }

    /// A world in which the images have these changes, to be read.
    pub fn world(&self, base: &World, changes: &Changes) -> World {
        self.world_with(base, changes, || None)
    }

    /// The same, to be written as well; what is written is kept as long as that world.
    pub fn writable_world(&self, base: &World, changes: &Changes) -> World {
        self.world_with(base, changes, || Some(Pages::default()))
    }

    fn world_with(
        &self,
        base: &World,
        changes: &Changes,
        written: impl Fn() -> Option<Pages>,
    ) -> World {
        let mut all = HashMap::new();
        for (index, (path, file, size)) in self.files.iter().enumerate() {
            let own = changes
                .iter()
                .filter(|(image, ..)| *image == index)
                .map(|(_, at, bytes)| (*at, bytes.clone()))
                .collect();
            all.insert(path.clone(), (file.clone(), *size, own, written()));
        }
        World {
            opener: Arc::new(Overlay(all)),
            ..base.clone()
        }
    }

    pub fn paths(&self) -> Vec<String> {
        self.files.iter().map(|(path, ..)| path.clone()).collect()
    }

    /// What the manifest says of a dataset's files.
    fn expected(&self, dataset: &str) -> BTreeMap<Vec<u8>, (u64, &str)> {
        let tree = self.manifest["trees"][dataset].as_array();
        tree.into_iter()
            .flatten()
            .filter_map(|entry| {
                let path = entry["path"].as_str()?.as_bytes().to_vec();
                Some((path, (entry["size"].as_u64()?, entry["sha256"].as_str()?)))
            })
            .collect()
    }
}

/// Counts panics of any thread or task.
pub static PANICS: AtomicU64 = AtomicU64::new(0);

/// Begins to count panics, and shows what happens where `RUST_LOG` asks for it.
pub fn count_panics() {
    if std::env::var_os("RUST_LOG").is_some() {
        let shown = tracing_subscriber::EnvFilter::from_default_env();
        // Another test of this process may have done so.
        let _ = tracing_subscriber::fmt().with_env_filter(shown).try_init();
    }
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        show(info);
    }));
}

/// Most memory that this process ever used, in KiB.
pub fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("VmHWM");
    line.trim()
        .trim_end_matches(" kB")
        .trim()
        .parse()
        .expect("a number")
}

/// How much a run saw.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    pub opened: u64,
    pub right: u64,
    pub failed: u64,
    pub salvaged: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.opened += other.opened;
        self.right += other.right;
        self.failed += other.failed;
        self.salvaged += other.salvaged;
    }
}

/// Does everything that readers do, within limits. With `is_verified`, what is read must be right.
pub async fn exercise(images: &Images, world: &World, is_verified: bool, about: &str) -> Seen {
    exercise_after(images, world, is_verified, &Touched::new(), about).await
}

/// The same after files were changed, of which nothing is known.
pub async fn exercise_after(
    images: &Images,
    world: &World,
    is_verified: bool,
    touched: &Touched,
    about: &str,
) -> Seen {
    let run = async {
        let mut seen = Seen::default();
        let spec = ScanSpec {
            paths: images.paths(),
            ..ScanSpec::default()
        };
        let Ok(found) = pool::scan(world, &spec).await else {
            return seen;
        };
        for found in found {
            let mut spec = ImportSpec::new(found.clone(), HostIdentity::default());
            spec.read_only = true;
            spec.force = true;
            match Pool::import(world, spec).await {
                Ok(pool) => {
                    seen.opened += 1;
                    let known = Known {
                        images,
                        is_verified,
                        touched,
                    };
                    read_pool(&known, world, &pool, about, &mut seen).await;
                    let _ = pool.export(false).await;
                }
                Err(error) => {
                    seen.failed += 1;
                    let _ = error.to_string();
                }
            }
            let spec = SalvageSpec {
                found,
                txg_max: None,
                older: true,
            };
            if let Ok(salvage) = Salvage::open(world, &spec).await {
                salvage_all(&salvage, &mut seen).await;
                salvage.close();
            }
        }
        seen
    };
    let limit = std::time::Duration::from_secs(RUN_SECONDS_MAX);
    let seen = tokio::time::timeout(limit, run)
        .await
        .unwrap_or_else(|_| panic!("{about}: it hangs"));
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{about}: a panic");
    let peak = peak_memory_kib();
    assert!(peak < MEMORY_KIB_MAX, "{about}: {peak} KiB of memory");
    seen
}

/// What is known of a pool's content.
#[derive(Clone, Copy)]
struct Known<'a> {
    images: &'a Images,
    is_verified: bool,
    touched: &'a Touched,
}

async fn read_pool(
    known: &Known<'_>,
    world: &World,
    pool: &Arc<Pool>,
    about: &str,
    seen: &mut Seen,
) {
    let everything = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let _ = (
        pool.status(),
        pool.numbers(),
        pool.properties().all(),
        pool.properties().features(),
    );
    let name = pool.dsl().pool_name();
    let Ok(datasets) = pool.dsl().directories().list(&name, &everything).await else {
        seen.failed += 1;
        return;
    };
    for info in datasets.iter().take(40) {
        let _ = pool.dsl().properties().all(&info.name).await;
        let Ok(dataset) = pool.dsl().open_dataset(&info.name).await else {
            seen.failed += 1;
            continue;
        };
        if info.head_kind == DatasetKind::Volume {
            if let Ok(data) = dataset.objset().hold(ObjectId::new(1)).await {
                let _ = data.read(0, READ_BYTES_MAX as usize).await;
            }
            continue;
        }
        // Without checksums nothing can be known to be wrong.
        let known = Known {
            is_verified: known.is_verified && !info.name.contains("/sum/off"),
            ..*known
        };
        match Filesystem::open(dataset, world.clone()).await {
            Ok(filesystem) => {
                let about = format!("{about}: {}", info.name);
                read_tree(&filesystem, &known, &info.name, &about, seen).await;
                let _ = filesystem.close().await;
            }
            Err(error) => {
                seen.failed += 1;
                let _ = error.to_string();
            }
        }
    }
}

async fn read_tree(
    filesystem: &Filesystem,
    known: &Known<'_>,
    dataset: &str,
    about: &str,
    seen: &mut Seen,
) {
    let expected = known.images.expected(dataset);
    let mut left = vec![(Vec::new(), filesystem.root())];
    let mut entries_left = ENTRIES_MAX;
    while let Some((path, ino)) = left.pop() {
        let Ok(entries) = filesystem.read_directory(ino, 0, entries_left).await else {
            seen.failed += 1;
            continue;
        };
        for entry in entries {
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            if entries_left == 0 {
                return;
            }
            entries_left -= 1;
            let path = [&path[..], b"/", &entry.name].concat();
            let Ok(attributes) = filesystem.attributes(entry.ino).await else {
                seen.failed += 1;
                continue;
            };
            if let Ok(names) = filesystem.xattrs().names(entry.ino).await {
                for name in names.iter().take(8) {
                    let _ = filesystem.xattrs().get(entry.ino, name).await;
                }
            }
            match attributes.kind {
                FileKind::Directory => left.push((path, entry.ino)),
                FileKind::Symlink => drop(filesystem.read_link(entry.ino).await),
                FileKind::Regular => {
                    let length = attributes.size_bytes.min(READ_BYTES_MAX) as usize;
                    let Ok(data) = filesystem.read(entry.ino, 0, length).await else {
                        seen.failed += 1;
                        continue;
                    };
                    let file = (dataset.to_owned(), entry.ino);
                    if !known.is_verified || known.touched.contains(&file) {
                        continue;
                    }
                    let Some((size, sha256)) = expected.get(&path) else {
                        continue;
                    };
                    let shown = format!("{about}{}", String::from_utf8_lossy(&path));
                    assert_eq!(attributes.size_bytes, *size, "{shown}: a wrong size");
                    if *size <= READ_BYTES_MAX {
                        let mut hasher = Sha256::new();
                        data.iter().for_each(|part| hasher.update(part));
                        let found: String = hasher
                            .finalize()
                            .iter()
                            .map(|byte| format!("{byte:02x}"))
                            .collect();
                        assert_eq!(found, *sha256, "{shown}: wrong data");
                        seen.right += 1;
                    }
                }
                _ => {}
            }
        }
    }
}

async fn salvage_all(salvage: &Salvage, seen: &mut Seen) {
    for dataset in salvage.datasets().iter().take(40) {
        let Ok(objset) = salvage.objset(dataset).await else {
            continue;
        };
        let Ok(filesystem) = SalvagedFilesystem::open(objset).await else {
            continue;
        };
        let mut from = Some(0);
        let mut left = ENTRIES_MAX;
        while let Some(at) = from {
            let run = filesystem.dnode_run(at).await;
            from = run.next.filter(|_| left > 0);
            for id in run.objects {
                left = left.saturating_sub(1);
                let Ok(file) = filesystem.file(id.get()).await else {
                    continue;
                };
                let _ = filesystem.xattrs(&file).await;
                match file.attributes().kind {
                    FileKind::Directory => drop(filesystem.entries(&file).await),
                    FileKind::Symlink => drop(filesystem.link_target(&file).await),
                    _ => {
                        let end = file.content_range().end.min(READ_BYTES_MAX);
                        let mut at = 0;
                        while let Some(piece) = file.content().next_piece(at, end).await {
                            let next = match piece {
                                Piece::Data { start_bytes, data } => {
                                    start_bytes + data.iter().map(Bytes::len).sum::<usize>() as u64
                                }
                                Piece::Lost { range, .. } => range.end,
                            };
                            assert!(next > at, "a piece without bytes");
                            at = next;
                        }
                        seen.salvaged += 1;
                    }
                }
            }
        }
    }
}

/// How many runs of each pool: few in CI, thousands with `MILLPOND_LONG=1`.
pub fn seeds(few: u64) -> std::ops::Range<u64> {
    if let Some(seed) = std::env::var("MILLPOND_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        return seed..seed + 1;
    }
    match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 0..2000,
        None => 0..few,
    }
}
