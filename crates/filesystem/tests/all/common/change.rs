//! Golden pools whose images lie, imported for writing: everything that changes a pool is tried,
//! within limits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use dataset::{DatasetInfo, DatasetKind, DirtyEstimate, ListOptions, PropertyChange};
use device::World;
use filesystem::{
    Allocate, Caller, FileKind, Filesystem, RenameMode, SetAttributes, XattrMode, ZplInit,
};
use format::ObjectId;
use pool::{HostIdentity, ImportSpec, Pool, ScanSpec};

use super::flip::{
    Images, MEMORY_KIB_MAX, PANICS, RUN_SECONDS_MAX, Seeded, Touched, peak_memory_kib,
};
use super::{Image, create};

const ROOT: Caller = Caller::ROOT;
/// Entries of one filesystem that a run changes or looks at.
const ENTRIES_MAX: usize = 60;
/// Datasets of one pool that a run changes.
const DATASETS_MAX: usize = 6;
/// Bytes of one write.
const WRITE_BYTES_MAX: u64 = 300_000;

/// How runs ended.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ended {
    /// The pool could not be imported.
    pub refused: u64,
    /// It was suspended meanwhile.
    pub suspended: u64,
    /// It could be exported.
    pub exported: u64,
    /// Operations that were done, and that failed.
    pub done: u64,
    pub failed: u64,
}

impl std::ops::AddAssign for Ended {
    fn add_assign(&mut self, other: Self) {
        self.refused += other.refused;
        self.suspended += other.suspended;
        self.exported += other.exported;
        self.done += other.done;
        self.failed += other.failed;
    }
}

/// A sound pool in the same process.
pub struct Neighbour {
    pool: Arc<Pool>,
    filesystem: Arc<Filesystem>,
    ino: u64,
    rounds: std::sync::atomic::AtomicU64,
    _image: Image,
}

impl Neighbour {
    pub async fn new(world: &World) -> Self {
        let image = Image::new(128);
        let pool = create(world, &image, &[]).await;
        let filesystem = super::open(world, &pool, "tank").await;
        let root = filesystem.root();
        let made = filesystem.create(root, b"file", 0o644, ROOT).await;
        Self {
            pool,
            filesystem,
            ino: made.expect("create").ino,
            rounds: 0.into(),
            _image: image,
        }
    }

    /// It takes a write, on stable storage, and a txg, and is not held up for good.
    pub async fn goes_on(&self, about: &str) {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let data = Bytes::from(round.to_le_bytes().repeat(4000));
        let use_it = async {
            let written = self.filesystem.write(self.ino, 0, data.clone(), true, ROOT);
            written.await.expect("another pool takes writes");
            self.pool.sync().await.expect("another pool syncs");
            let read = self.filesystem.read(self.ino, 0, data.len()).await;
            assert!(read.expect("another pool reads").concat() == data);
        };
        let limit = Duration::from_secs(RUN_SECONDS_MAX);
        let done = tokio::time::timeout(limit, use_it).await;
        done.unwrap_or_else(|_| panic!("{about}: another pool hangs"));
    }
}

/// A run through a pool.
struct Run<'a> {
    world: &'a World,
    pool: &'a Arc<Pool>,
    random: Seeded,
    touched: &'a mut Touched,
    ended: &'a mut Ended,
}

/// Imports the pools that are found for writing and does everything that users do. An error may be
/// the answer, and a suspended pool, which is then given up; nothing else.
pub async fn exercise_changes(
    images: &Images,
    world: &World,
    seed: u64,
    about: &str,
) -> (Ended, Touched) {
    let mut ended = Ended::default();
    let mut touched = Touched::new();
    let run = async {
        let spec = ScanSpec {
            paths: images.paths(),
            ..ScanSpec::default()
        };
        let found = pool::scan(world, &spec).await.unwrap_or_default();
        for found in found {
            let mut spec = ImportSpec::new(found, HostIdentity::default());
            spec.force = true;
            let pool = match Pool::import(world, spec).await {
                Ok(pool) => pool,
                Err(error) => {
                    let _ = error.to_string();
                    ended.refused += 1;
                    continue;
                }
            };
            let mut run = Run {
                world,
                pool: &pool,
                random: Seeded::new(seed),
                touched: &mut touched,
                ended: &mut ended,
            };
            tokio::select! {
                () = run.change_pool() => {}
                () = pool.until_suspended() => {}
            }
            if pool.suspended().is_some() {
                ended.suspended += 1;
                pool.give_up();
                pool.export(true).await.expect("a pool can be left");
            } else if pool.export(false).await.is_ok() {
                ended.exported += 1;
            } else {
                let _ = pool.export(true).await;
            }
        }
    };
    let limit = Duration::from_secs(RUN_SECONDS_MAX);
    let done = tokio::time::timeout(limit, run).await;
    done.unwrap_or_else(|_| panic!("{about}: it hangs"));
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{about}: a panic");
    let peak = peak_memory_kib();
    assert!(peak < MEMORY_KIB_MAX, "{about}: {peak} KiB of memory");
    (ended, touched)
}

impl Run<'_> {
    /// Counts how an operation ended; what it gave.
    fn count<T, E: std::fmt::Display>(&mut self, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => {
                self.ended.done += 1;
                Some(value)
            }
            Err(error) => {
                let _ = error.to_string();
                self.ended.failed += 1;
                None
            }
        }
    }

    fn pick<'t, T>(&mut self, from: &'t [T]) -> Option<&'t T> {
        from.get(self.random.below(from.len() as u64) as usize)
    }

    async fn sync(&mut self) {
        let synced = self.pool.sync().await;
        self.count(synced);
    }

    async fn change_pool(&mut self) {
        let dsl = Arc::clone(self.pool.dsl());
        let root = dsl.pool_name();
        let everything = ListOptions {
            snapshots: true,
            ..ListOptions::default()
        };
        let listed = dsl.directories().list(&root, &everything).await;
        let Some(datasets) = self.count(listed) else {
            return;
        };
        let (snapshots, heads): (Vec<_>, Vec<_>) = datasets
            .into_iter()
            .partition(|info| info.kind == DatasetKind::Snapshot);
        let first = self.random.below(heads.len() as u64) as usize;
        for info in heads
            .iter()
            .cycle()
            .skip(first)
            .take(heads.len().min(DATASETS_MAX))
        {
            self.change_dataset(info).await;
        }
        self.sync().await;
        self.change_datasets(&root, &heads, &snapshots).await;
        self.sync().await;
        // Also what is destroyed in the background.
        for _ in 0..3 {
            self.sync().await;
        }
    }

    async fn change_dataset(&mut self, info: &DatasetInfo) {
        let opened = self.pool.dsl().open_dataset(&info.name).await;
        let Some(dataset) = self.count(opened) else {
            return;
        };
        if info.kind == DatasetKind::Volume {
            let Ok(data) = dataset.objset().hold(ObjectId::new(1)).await else {
                return;
            };
            for _ in 0..4 {
                let offset = self.random.below(16 << 20);
                let bytes = self.bytes();
                let length = bytes.len() as u64;
                let change = async {
                    data.prepare_write(offset, length).await?;
                    let tx = dataset.assign(DirtyEstimate::write(length)).await?;
                    data.write(&tx, offset, bytes).await?;
                    Ok::<_, dataset::DatasetError>(())
                };
                let changed = change.await;
                self.count(changed);
            }
            return;
        }
        let opened = Filesystem::open(dataset, self.world.clone()).await;
        let Some(filesystem) = self.count(opened) else {
            return;
        };
        self.change_tree(&filesystem, &info.name).await;
        let closed = filesystem.close().await;
        self.count(closed);
    }

    fn bytes(&mut self) -> Bytes {
        let length = 1 + self.random.below(WRITE_BYTES_MAX) as usize;
        let word = self.random.next();
        word.to_le_bytes().repeat(length.div_ceil(8)).into()
    }

    async fn change_tree(&mut self, fs: &Filesystem, dataset: &str) {
        let root = fs.root();
        let made = fs.make_directory(root, b"made here", 0o755, ROOT).await;
        if let Some(made) = self.count(made) {
            self.fill(fs, made.ino).await;
        }
        let mut left = vec![root];
        let mut entries_left = ENTRIES_MAX;
        while let Some(directory) = left.pop() {
            let entries = fs.read_directory(directory, 0, entries_left).await;
            let Some(entries) = self.count(entries) else {
                continue;
            };
            for entry in entries {
                if entries_left == 0 {
                    return;
                }
                if matches!(&entry.name[..], b"." | b"..") {
                    continue;
                }
                entries_left -= 1;
                let attributes = fs.attributes(entry.ino).await;
                let Some(attributes) = self.count(attributes) else {
                    continue;
                };
                match attributes.kind {
                    FileKind::Directory => {
                        left.push(entry.ino);
                        if self.random.below(4) == 0 {
                            self.fill(fs, entry.ino).await;
                        }
                    }
                    FileKind::Regular if self.random.below(3) > 0 => {
                        self.touched.insert((dataset.to_owned(), entry.ino));
                        let size = attributes.size_bytes;
                        self.change_file(fs, directory, &entry.name, entry.ino, size)
                            .await;
                    }
                    _ if self.random.below(3) == 0 => {
                        let gone = fs.unlink(directory, &entry.name).await;
                        self.count(gone);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Makes files and directories, and removes some.
    async fn fill(&mut self, fs: &Filesystem, directory: u64) {
        for number in 0..12 {
            let name = format!("{number}{}", "x".repeat(self.random.below(100) as usize));
            let name = name.as_bytes();
            let made = match number % 4 {
                0 => fs.make_directory(directory, name, 0o755, ROOT).await,
                1 => fs.symlink(directory, name, b"target", ROOT).await,
                _ => fs.create(directory, name, 0o644, ROOT).await,
            };
            let Some(made) = self.count(made) else {
                continue;
            };
            if made.kind == FileKind::Regular {
                let (data, sync) = (self.bytes(), self.random.below(4) == 0);
                let written = fs.write(made.ino, 0, data, sync, ROOT).await;
                self.count(written);
            }
            if self.random.below(4) == 0 {
                let gone = match made.kind {
                    FileKind::Directory => fs.remove_directory(directory, name).await,
                    _ => fs.unlink(directory, name).await,
                };
                self.count(gone);
            }
        }
    }

    async fn change_file(
        &mut self,
        fs: &Filesystem,
        directory: u64,
        name: &[u8],
        ino: u64,
        size: u64,
    ) {
        let offset = self.random.below(size.min(1 << 40) + 1);
        let length = 1 + self.random.below(WRITE_BYTES_MAX);
        let set = async |set: SetAttributes| fs.set_attributes(ino, &set, ROOT).await;
        match self.random.below(9) {
            0 => {
                let (data, sync) = (self.bytes(), self.random.below(4) == 0);
                let written = fs.write(ino, offset, data, sync, ROOT).await;
                self.count(written);
            }
            1 => {
                let appended = fs.append(ino, self.bytes(), false, ROOT).await;
                self.count(appended);
            }
            2 => {
                let cut = set(SetAttributes {
                    size_bytes: Some(offset),
                    ..SetAttributes::default()
                });
                let cut = cut.await;
                self.count(cut);
            }
            3 => {
                let punched = fs.allocate(ino, Allocate::PunchHole, offset, length, ROOT);
                let punched = punched.await;
                self.count(punched);
            }
            4 => {
                let made = fs.create(directory, b"a copy", 0o644, ROOT).await;
                if let Some(made) = self.count(made) {
                    let copied = fs.copy_range(ino, 0, made.ino, 0, size.min(4 << 20), ROOT);
                    let copied = copied.await;
                    self.count(copied);
                }
            }
            5 => {
                let length = self.random.below(3000) as usize;
                let value = vec![7; length];
                let mode = XattrMode::Any;
                let put = fs.xattrs().set(ino, b"user.made", &value, mode, ROOT).await;
                self.count(put);
                for name in fs.xattrs().names(ino).await.unwrap_or_default() {
                    let gone = fs.xattrs().remove(ino, &name).await;
                    self.count(gone);
                }
            }
            6 => {
                let changed = set(SetAttributes {
                    mode: Some(0o640),
                    uid: Some(1000),
                    gid: Some(1000),
                    ..SetAttributes::default()
                });
                let changed = changed.await;
                self.count(changed);
            }
            7 => {
                let mode = RenameMode::Replace;
                let renamed = fs.rename(directory, name, fs.root(), b"renamed", mode);
                let renamed = renamed.await;
                self.count(renamed);
            }
            _ => {
                let gone = fs.unlink(directory, name).await;
                self.count(gone);
            }
        }
    }

    /// Snapshots, clones, new datasets, and destroying of all kinds.
    async fn change_datasets(
        &mut self,
        root: &str,
        heads: &[DatasetInfo],
        snapshots: &[DatasetInfo],
    ) {
        let dsl = Arc::clone(self.pool.dsl());
        let (child, clone) = (format!("{root}/made"), format!("{root}/cloned"));
        let made = dsl
            .datasets()
            .create(&child, &[], Arc::new(ZplInit::new()))
            .await;
        self.count(made);
        if let Ok(dataset) = dsl.open_dataset(&child).await
            && let Ok(filesystem) = Filesystem::open(dataset, self.world.clone()).await
        {
            self.fill(&filesystem, filesystem.root()).await;
            let closed = filesystem.close().await;
            self.count(closed);
        }
        let taken: Vec<String> = heads
            .iter()
            .filter(|_| self.random.below(2) == 0)
            .map(|info| format!("{}@made", info.name))
            .collect();
        let snapshot = dsl.snapshots().take(&taken, &[]).await;
        self.count(snapshot);
        if let Some(origin) = self.pick(&taken) {
            let cloned = dsl.datasets().clone_snapshot(origin, &clone, &[]).await;
            self.count(cloned);
            if self.random.below(2) == 0 {
                let promoted = dsl.snapshots().promote(&clone).await;
                self.count(promoted);
            }
        }
        self.sync().await;
        if let Some(info) = self.pick(heads) {
            let gzip = PropertyChange::Set("gzip".to_owned());
            let set = dsl
                .properties()
                .set(&info.name, &[("compression".to_owned(), gzip)])
                .await;
            self.count(set);
        }
        for _ in 0..3 {
            if let Some(info) = self.pick(snapshots) {
                let names = std::slice::from_ref(&info.name);
                let gone = dsl.destroyer().destroy_snapshots(names, false).await;
                self.count(gone);
            }
        }
        for name in taken.iter().skip(1) {
            let gone = dsl
                .destroyer()
                .destroy_snapshots(std::slice::from_ref(name), true)
                .await;
            self.count(gone);
        }
        for name in [&clone, &child] {
            let gone = dsl.destroyer().destroy(name).await;
            self.count(gone);
        }
        // Leaves first: what has children is refused.
        for info in heads.iter().rev().take(4) {
            if self.random.below(2) == 0 {
                let gone = dsl.destroyer().destroy(&info.name).await;
                self.count(gone);
            }
        }
    }
}
