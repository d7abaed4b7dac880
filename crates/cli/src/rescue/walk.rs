//! Through all that is left of a dataset, and what becomes of each file.
//!
//! A filesystem's tree is walked from its root. Where anything of it is damaged, all dnodes are
//! looked at afterwards, and files that were not met go to `millpond-lost+found` by their object
//! number, directories with all that is below them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use dataset::DatasetKind;
use filesystem::{FileKind, FsError, SalvagedFile, SalvagedFilesystem, SalvagedXattrs};
use format::ObjectId;
use object::{Object, ObjectSet, salvage_zap};
use pool::{Salvage, SalvagedDataset};

use super::progress::Progress;
use super::report::{Damaged, DatasetReport, Lost};
use super::sink::{Content, Item, Outcome, Sink, damaged_name};

/// Where files without a directory go.
const LOST_AND_FOUND: &[u8] = b"millpond-lost+found";
/// A volume's data and its properties (`ZVOL_OBJ`, `ZVOL_ZAP_OBJ`).
const VOLUME_DATA: ObjectId = ObjectId::new(1);
const VOLUME_PROPERTIES: ObjectId = ObjectId::new(2);

/// Components of a path below the dataset's root.
type Path = Vec<Vec<u8>>;

/// A path for people and reports.
fn shown(path: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in path {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out
}

/// Brings out one dataset. Fails only where the destination does not take anything any more.
pub async fn dataset(
    salvage: &Salvage,
    dataset: &SalvagedDataset,
    sink: &mut Sink,
    progress: &Progress,
) -> anyhow::Result<DatasetReport> {
    let mut report = DatasetReport::new(dataset);
    if report.problem.is_some() {
        return Ok(report);
    }
    let objset = match salvage.objset(dataset).await {
        Ok(objset) => objset,
        Err(error) => {
            report.problem = Some(error.to_string());
            return Ok(report);
        }
    };
    progress.dataset(&dataset.name);
    match dataset.kind {
        Some(DatasetKind::Volume) => volume(&objset, dataset, sink, progress, &mut report).await?,
        _ => match SalvagedFilesystem::open(objset).await {
            Ok(filesystem) => {
                for problem in filesystem.problems() {
                    report.lost.push(Lost::new(b"(filesystem)", None, problem));
                }
                let mut walk = Walk {
                    filesystem: &filesystem,
                    dataset: &dataset.name,
                    sink,
                    progress,
                    report: &mut report,
                    seen: HashSet::new(),
                    linked: HashMap::new(),
                };
                walk.all().await?;
            }
            Err(error) => report.problem = Some(error.to_string()),
        },
    }
    Ok(report)
}

async fn volume(
    objset: &Arc<ObjectSet>,
    dataset: &SalvagedDataset,
    sink: &mut Sink,
    progress: &Progress,
    report: &mut DatasetReport,
) -> anyhow::Result<()> {
    let data = match objset.hold(VOLUME_DATA).await {
        Ok(data) => data,
        Err(error) => {
            report.problem = Some(error.to_string());
            return Ok(());
        }
    };
    let known = match objset.hold(VOLUME_PROPERTIES).await {
        Ok(object) => salvage_zap(&object).await.number("size"),
        Err(_) => None,
    };
    let size = known.unwrap_or_else(|| {
        report
            .notes
            .push("its size is lost: it ends after the last block that was written".to_owned());
        (data.info().max_block_id + 1).saturating_mul(data.data_block_bytes())
    });
    let content = Content {
        object: &data,
        size_bytes: size.min(i64::MAX as u64),
    };
    let outcome = sink.volume(&dataset.name, &content, progress).await?;
    settle(outcome, b"(volume)", &data, size, report);
    Ok(())
}

/// Notes what became of a file with content.
fn settle(outcome: Outcome, path: &[u8], object: &Object, size: u64, report: &mut DatasetReport) {
    report.bytes += outcome.bytes;
    for problem in outcome.not_stored {
        report
            .not_stored
            .push(Lost::new(path, Some(object.id().get()), problem));
    }
    if !outcome.is_done {
        return;
    }
    if outcome.lost.is_empty() {
        report.files += 1;
        report.kept += u64::from(outcome.was_there);
        return;
    }
    let ranges = merged(outcome.lost);
    let mut damaged = Damaged::new(path, object.id().get(), size, &ranges, outcome.why);
    damaged.saved_as = outcome.saved_as;
    report.damaged.push(damaged);
}

/// Ranges that touch become one.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

enum Task {
    Visit { path: Path, ino: u64 },
    Leave { path: Path, file: SalvagedFile },
}

/// A file with several names, under its first.
#[derive(Clone)]
struct Linked {
    path: Path,
    is_damaged: bool,
}

struct Walk<'a> {
    filesystem: &'a SalvagedFilesystem,
    dataset: &'a str,
    sink: &'a mut Sink,
    progress: &'a Progress,
    report: &'a mut DatasetReport,
    /// Objects that were met.
    seen: HashSet<u64>,
    /// First paths of files with several links that were brought out.
    linked: HashMap<u64, Linked>,
}

impl Walk<'_> {
    async fn all(&mut self) -> anyhow::Result<()> {
        match self.filesystem.root() {
            Some(root) => self.tree(Vec::new(), root).await?,
            None => self.lose(&[], None, "its root directory is lost"),
        }
        if !self.report.lost.is_empty() && !self.progress.is_stopped() {
            self.orphans().await?;
        }
        Ok(())
    }

    fn lose(&mut self, path: &[Vec<u8>], object: Option<u64>, why: impl ToString) {
        self.report.lost.push(Lost::new(&shown(path), object, why));
    }

    async fn tree(&mut self, path: Path, ino: u64) -> anyhow::Result<()> {
        let mut tasks = vec![Task::Visit { path, ino }];
        while let Some(task) = tasks.pop() {
            if self.progress.is_stopped() {
                return Ok(());
            }
            match task {
                Task::Visit { path, ino } => self.visit(path, ino, &mut tasks).await?,
                Task::Leave { path, file } => {
                    let xattrs = self.xattrs(&path, &file).await;
                    let problems = self
                        .sink
                        .leave(&item(self.dataset, &path, &file), &xattrs)?;
                    self.not_stored(&path, ino_of(&file), problems);
                }
            }
        }
        Ok(())
    }

    fn not_stored(&mut self, path: &[Vec<u8>], ino: u64, problems: Vec<String>) {
        for problem in problems {
            let lost = Lost::new(&shown(path), Some(ino), problem);
            self.report.not_stored.push(lost);
        }
    }

    async fn xattrs(&mut self, path: &[Vec<u8>], file: &SalvagedFile) -> SalvagedXattrs {
        let xattrs = self.filesystem.xattrs(file).await;
        for loss in &xattrs.losses {
            let why = format!("extended attributes: {loss}");
            self.lose(path, Some(ino_of(file)), why);
        }
        xattrs
    }

    async fn visit(&mut self, path: Path, ino: u64, tasks: &mut Vec<Task>) -> anyhow::Result<()> {
        self.progress.file();
        let is_first = self.seen.insert(ino);
        let file = match self.filesystem.file(ino).await {
            Ok(file) => file,
            Err(error) => {
                self.lose(&path, Some(ino), error);
                return Ok(());
            }
        };
        let attributes = file.attributes();
        if attributes.kind == FileKind::Directory {
            if !is_first {
                self.lose(&path, Some(ino), "the directory has another name already");
                return Ok(());
            }
            return self.directory(path, file, tasks).await;
        }
        if !is_first && let Some(first) = self.linked.get(&ino).cloned() {
            let mut as_stored = path.clone();
            if let Some(last) = as_stored.last_mut().filter(|_| first.is_damaged) {
                *last = damaged_name(last);
            }
            let item = item(self.dataset, &as_stored, &file);
            let problems = self.sink.hard_link(&item, &first.path)?;
            if problems.is_empty() {
                self.report.hard_links += 1;
            }
            if first.is_damaged {
                self.lose(&path, Some(ino), "it is another name of a damaged file");
            }
            self.not_stored(&path, ino, problems);
            return Ok(());
        }
        self.leaf(path, file).await
    }

    async fn directory(
        &mut self,
        path: Path,
        file: SalvagedFile,
        tasks: &mut Vec<Task>,
    ) -> anyhow::Result<()> {
        let ino = ino_of(&file);
        let problems = self.sink.enter(&item(self.dataset, &path, &file))?;
        let is_refused = !problems.is_empty();
        self.not_stored(&path, ino, problems);
        if is_refused {
            return Ok(());
        }
        self.report.directories += 1;
        let found = self.filesystem.entries(&file).await;
        for loss in found.losses {
            let why = format!("names in it are lost: {loss}");
            self.lose(&path, Some(ino), why);
        }
        tasks.push(Task::Leave {
            path: path.clone(),
            file,
        });
        for (name, ino, _) in found.entries.into_iter().rev() {
            let mut path = path.clone();
            path.push(name);
            tasks.push(Task::Visit { path, ino });
        }
        Ok(())
    }

    async fn leaf(&mut self, path: Path, file: SalvagedFile) -> anyhow::Result<()> {
        let ino = ino_of(&file);
        let attributes = file.attributes();
        let xattrs = self.xattrs(&path, &file).await;
        match attributes.kind {
            FileKind::Regular => {
                let content = Content {
                    object: file.content(),
                    size_bytes: file.content_range().end,
                };
                let item = item(self.dataset, &path, &file);
                let outcome = self
                    .sink
                    .file(&item, &xattrs, &content, self.progress)
                    .await?;
                if outcome.is_done && attributes.nlink > 1 {
                    let mut as_stored = path.clone();
                    if let (Some(name), Some(last)) = (&outcome.stored_name, as_stored.last_mut()) {
                        last.clone_from(name);
                    }
                    if outcome.lost.is_empty() || outcome.saved_as.is_some() {
                        let linked = Linked {
                            path: as_stored,
                            is_damaged: !outcome.lost.is_empty(),
                        };
                        self.linked.insert(ino, linked);
                    }
                }
                settle(
                    outcome,
                    &shown(&path),
                    file.content(),
                    attributes.size_bytes,
                    self.report,
                );
                return Ok(());
            }
            FileKind::Symlink => match self.filesystem.link_target(&file).await {
                Ok(target) => {
                    let item = item(self.dataset, &path, &file);
                    let problems = self.sink.symlink(&item, &xattrs, &target)?;
                    self.report.symlinks += u64::from(problems.is_empty());
                    self.not_stored(&path, ino, problems);
                }
                Err(error) => {
                    self.lose(&path, Some(ino), error);
                    return Ok(());
                }
            },
            _ => {
                let problems = self
                    .sink
                    .special(&item(self.dataset, &path, &file), &xattrs)?;
                self.report.specials += u64::from(problems.is_empty());
                self.not_stored(&path, ino, problems);
            }
        }
        if attributes.nlink > 1 {
            let linked = Linked {
                path,
                is_damaged: false,
            };
            self.linked.insert(ino, linked);
        }
        Ok(())
    }

    /// Files that no directory has any more.
    async fn orphans(&mut self) -> anyhow::Result<()> {
        let mut orphans = Vec::new();
        let mut numbers = HashSet::new();
        let mut from = Some(0);
        while let Some(at) = from {
            if self.progress.is_stopped() {
                return Ok(());
            }
            let run = self.filesystem.dnode_run(at).await;
            from = run.next;
            if let Some((range, error)) = run.lost {
                let what = format!("(objects {} to {})", range.start, range.end - 1);
                self.report
                    .lost
                    .push(Lost::new(what.as_bytes(), None, error));
            }
            for id in run.objects {
                if self.seen.contains(&id.get()) {
                    continue;
                }
                match self.filesystem.file(id.get()).await {
                    Ok(file) => {
                        let attributes = file.attributes();
                        let is_wanted = !file.is_xattr()
                            && attributes.nlink > 0
                            && !self.filesystem.is_unlinked(id.get());
                        if is_wanted {
                            numbers.insert(id.get());
                            orphans.push((id.get(), attributes.parent));
                        }
                    }
                    Err(FsError::Stale { .. }) => {}
                    Err(error) => {
                        let what = format!("(object {id})");
                        let lost = Lost::new(what.as_bytes(), Some(id.get()), error);
                        self.report.lost.push(lost);
                    }
                }
            }
        }
        if orphans.is_empty() {
            return Ok(());
        }
        if !self.sink.lost_and_found(self.dataset, LOST_AND_FOUND)? {
            let why = "something of this name is there already; choose an empty directory";
            self.report
                .not_stored
                .push(Lost::new(LOST_AND_FOUND, None, why));
            return Ok(());
        }
        // Directories bring what is below them; what is left are loops, taken last.
        orphans.sort_by_key(|(_, parent)| numbers.contains(parent));
        for (ino, parent) in orphans {
            if self.seen.contains(&ino) {
                continue;
            }
            let path = vec![LOST_AND_FOUND.to_vec(), ino.to_string().into_bytes()];
            let why = format!("its name is lost; it was in the directory with the number {parent}");
            self.report
                .found
                .push(Lost::new(&shown(&path), Some(ino), why));
            self.tree(path, ino).await?;
        }
        Ok(())
    }
}

fn ino_of(file: &SalvagedFile) -> u64 {
    file.content().id().get()
}

fn item<'a>(dataset: &'a str, path: &'a [Vec<u8>], file: &SalvagedFile) -> Item<'a> {
    Item {
        dataset,
        path,
        attributes: file.attributes(),
    }
}
