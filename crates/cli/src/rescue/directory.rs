//! Copying into a directory.
//!
//! Each dataset becomes a directory (a volume, a file) of its name below the destination. A file is
//! written under a temporary name, gets its owner, mode, attributes and times, and only then its
//! own name, which never replaces anything: so whatever has its own name is complete, and a second
//! run goes on where the first one stopped. What is there already with the same size and time of
//! change is taken for the same. Directories get their owner, mode and times when everything in
//! them is there.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use filesystem::{Attributes, FileKind, SalvagedXattrs, Time};
use object::Piece;
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, Timespec, Timestamps, XattrFlags};

use super::progress::Progress;
use super::sink::{Content, Item, Outcome, Problems, components, damaged_name};

/// Begins the name of a copy that is not complete.
const PARTIAL: &str = ".millpond-part-";

/// Seconds since the epoch that ext4 can store.
const COMMON_SECONDS: std::ops::Range<i64> = -(1 << 31)..(1 << 34) - (1 << 31);

/// A destination directory.
pub struct Directory {
    base: PathBuf,
    /// Damaged files are left out.
    omit_damaged: bool,
    /// Time of change that volumes get.
    volume_time: Time,
    /// Directories that datasets go into, below others.
    shared: HashSet<PathBuf>,
    /// Those, to be finished at the end.
    late: Vec<(PathBuf, Attributes)>,
    /// What could not be set, and how often.
    unset: BTreeMap<String, u64>,
}

impl Directory {
    /// Into `base`, for these datasets.
    pub fn new<'a>(
        base: &Path,
        omit_damaged: bool,
        volume_time: Time,
        datasets: impl Iterator<Item = &'a str>,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(base)
            .with_context(|| format!("{} cannot be made", base.display()))?;
        let mut shared = HashSet::new();
        for name in datasets {
            let mut path = place(base, name, &[]);
            while path.pop() && path != base {
                shared.insert(path.clone());
            }
        }
        Ok(Self {
            base: base.to_owned(),
            omit_damaged,
            volume_time,
            shared,
            late: Vec::new(),
            unset: BTreeMap::new(),
        })
    }

    fn place(&self, item: &Item<'_>) -> PathBuf {
        place(&self.base, item.dataset, item.path)
    }

    /// Makes the directories that lead to a dataset.
    fn lead_to(&self, dataset: &str) -> io::Result<()> {
        let mut path = self.base.clone();
        let parts = components(dataset);
        for part in &parts[..parts.len().saturating_sub(1)] {
            path.push(OsStr::from_bytes(part));
            make_directory(&path)?;
        }
        Ok(())
    }

    pub(super) fn enter(&mut self, item: &Item<'_>) -> Problems {
        if item.path.is_empty()
            && let Err(error) = self.lead_to(item.dataset)
        {
            return refused(error);
        }
        match make_directory(&self.place(item)) {
            Ok(()) => Ok(Vec::new()),
            Err(error) => refused(error),
        }
    }

    pub(super) fn leave(&mut self, item: &Item<'_>, xattrs: &SalvagedXattrs) -> Problems {
        let path = self.place(item);
        self.set_xattrs(&path, xattrs);
        if self.shared.contains(&path) {
            self.late.push((path, item.attributes));
            return Ok(Vec::new());
        }
        self.set_attributes(&path, &item.attributes)
    }

    /// Notes that something could not be set.
    fn unset(&mut self, what: &str, error: &dyn std::fmt::Display) {
        *self.unset.entry(format!("{what}: {error}")).or_default() += 1;
    }

    fn set_xattrs(&mut self, path: &Path, xattrs: &SalvagedXattrs) {
        for (name, value) in &xattrs.list {
            let result = rustix::fs::lsetxattr(path, &name[..], value, XattrFlags::empty());
            if let Err(error) = result {
                let what = format!("extended attribute {}", String::from_utf8_lossy(name));
                self.unset(&what, &error);
            }
        }
    }

    /// Owner, mode and times.
    fn set_attributes(&mut self, path: &Path, attributes: &Attributes) -> Problems {
        let (uid, gid) = (attributes.uid, attributes.gid);
        let mut mode = attributes.mode;
        if let Err(error) = std::os::unix::fs::lchown(path, Some(uid), Some(gid)) {
            self.unset("owner", &error);
            // A program must not run as somebody else than it was meant to.
            mode &= 0o1777;
        }
        if attributes.kind != FileKind::Symlink
            && let Err(error) =
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        {
            self.unset("mode", &error);
        }
        if let Err(error) = set_times(path, attributes) {
            self.unset("times", &error);
        }
        Ok(Vec::new())
    }

    pub(super) async fn file(
        &mut self,
        item: &Item<'_>,
        xattrs: &SalvagedXattrs,
        content: &Content<'_>,
        progress: &Progress,
    ) -> anyhow::Result<Outcome> {
        let path = self.place(item);
        self.copy(&path, &item.attributes, xattrs, content, progress)
            .await
    }

    pub(super) async fn volume(
        &mut self,
        dataset: &str,
        content: &Content<'_>,
        progress: &Progress,
    ) -> anyhow::Result<Outcome> {
        if let Err(error) = self.lead_to(dataset) {
            return Ok(Outcome {
                not_stored: vec![told(&error)],
                ..Outcome::default()
            });
        }
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let attributes = content.volume_attributes(uid.as_raw(), gid.as_raw(), self.volume_time);
        let path = place(&self.base, dataset, &[]);
        let xattrs = SalvagedXattrs::default();
        self.copy(&path, &attributes, &xattrs, content, progress)
            .await
    }

    async fn copy(
        &mut self,
        path: &Path,
        attributes: &Attributes,
        xattrs: &SalvagedXattrs,
        content: &Content<'_>,
        progress: &Progress,
    ) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome::default();
        match std::fs::symlink_metadata(path) {
            Ok(there) if is_same(&there, attributes) => {
                outcome.is_done = true;
                outcome.was_there = true;
                return Ok(outcome);
            }
            Ok(_) => {
                outcome.not_stored.push(
                    "something else of this name is there already; choose an empty directory"
                        .into(),
                );
                return Ok(outcome);
            }
            Err(_) => {}
        }
        let partial = path.with_file_name(format!("{PARTIAL}{}", attributes.ino));
        let file = match begin(&partial, content.size_bytes) {
            Ok(file) => file,
            Err(error) => {
                let _ = std::fs::remove_file(&partial);
                fatal(&error)?;
                outcome.not_stored.push(told(&error));
                return Ok(outcome);
            }
        };
        let result = fill(&file, content, progress, &mut outcome).await;
        drop(file);
        if let Err(error) = result {
            let _ = std::fs::remove_file(&partial);
            fatal(&error)?;
            outcome.is_done = false;
            outcome.not_stored.push(told(&error));
            return Ok(outcome);
        }
        let is_damaged = !outcome.lost.is_empty();
        if !outcome.is_done || is_damaged && self.omit_damaged {
            std::fs::remove_file(&partial).context("removing an incomplete copy")?;
            return Ok(outcome);
        }
        self.set_xattrs(&partial, xattrs);
        self.set_attributes(&partial, attributes)?;
        let to = if is_damaged {
            let name = damaged_name(path.file_name().unwrap_or_default().as_bytes());
            let to = path.with_file_name(OsStr::from_bytes(&name));
            outcome.saved_as = Some(String::from_utf8_lossy(&name).into_owned());
            outcome.stored_name = Some(name);
            to
        } else {
            path.to_owned()
        };
        if let Err(error) = rename(&partial, &to) {
            let there = std::fs::symlink_metadata(&to).ok();
            let is_there = there.is_some_and(|there| is_same(&there, attributes));
            let _ = std::fs::remove_file(&partial);
            if !is_there {
                outcome.saved_as = None;
                outcome.not_stored.push(told(&error));
            }
        }
        Ok(outcome)
    }

    pub(super) fn hard_link(&mut self, item: &Item<'_>, first: &[Vec<u8>]) -> Problems {
        let first = place(&self.base, item.dataset, first);
        let path = self.place(item);
        match std::fs::hard_link(&first, &path) {
            Ok(()) => Ok(Vec::new()),
            Err(error) => {
                let same = |there: &Metadata, first: &Metadata| {
                    (there.dev(), there.ino()) == (first.dev(), first.ino())
                };
                match (
                    std::fs::symlink_metadata(&path),
                    std::fs::symlink_metadata(&first),
                ) {
                    (Ok(there), Ok(first)) if same(&there, &first) => Ok(Vec::new()),
                    _ => refused(error),
                }
            }
        }
    }

    pub(super) fn symlink(
        &mut self,
        item: &Item<'_>,
        xattrs: &SalvagedXattrs,
        target: &[u8],
    ) -> Problems {
        let path = self.place(item);
        match std::os::unix::fs::symlink(OsStr::from_bytes(target), &path) {
            Ok(()) => {}
            Err(error) => {
                let there = std::fs::read_link(&path);
                return match there {
                    Ok(there) if there.as_os_str().as_bytes() == target => Ok(Vec::new()),
                    _ => refused(error),
                };
            }
        }
        self.set_xattrs(&path, xattrs);
        self.set_attributes(&path, &item.attributes)
    }

    pub(super) fn special(&mut self, item: &Item<'_>, xattrs: &SalvagedXattrs) -> Problems {
        use rustix::fs::FileType;
        let path = self.place(item);
        let attributes = &item.attributes;
        let kind = match attributes.kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            _ => return Ok(vec!["it is of no kind that can be stored".into()]),
        };
        let device = rustix::fs::makedev(attributes.rdev.0, attributes.rdev.1);
        let mode = Mode::from_raw_mode(0o600);
        if let Err(error) = rustix::fs::mknodat(CWD, &path, kind, mode, device) {
            if let Ok(there) = std::fs::symlink_metadata(&path)
                && FileType::from_raw_mode(there.mode()) == kind
                && (!attributes.kind.is_device() || there.rdev() == device)
            {
                return Ok(Vec::new());
            }
            return refused(error.into());
        }
        self.set_xattrs(&path, xattrs);
        self.set_attributes(&path, attributes)
    }

    pub(super) fn lost_and_found(&mut self, dataset: &str, name: &[u8]) -> anyhow::Result<bool> {
        let root = place(&self.base, dataset, &[]);
        if let Err(error) = self.lead_to(dataset).and_then(|()| make_directory(&root)) {
            fatal(&error)?;
            return Ok(false);
        }
        let path = root.join(OsStr::from_bytes(name));
        if let Err(error) = make_directory(&path) {
            fatal(&error)?;
            return Ok(false);
        }
        Ok(true)
    }

    pub(super) fn finish(mut self) -> anyhow::Result<Vec<String>> {
        for (path, attributes) in std::mem::take(&mut self.late).into_iter().rev() {
            self.set_attributes(&path, &attributes)?;
        }
        if let Ok(base) = File::open(&self.base) {
            rustix::fs::syncfs(&base).context("writing everything to disk")?;
        }
        let advice = if rustix::process::geteuid().is_root() {
            ""
        } else {
            "; run it as root to set all of them"
        };
        Ok(self
            .unset
            .iter()
            .map(|(what, count)| format!("{count} times not set: {what}{advice}"))
            .collect())
    }
}

fn place(base: &Path, dataset: &str, path: &[Vec<u8>]) -> PathBuf {
    let mut out = base.to_owned();
    for part in components(dataset).iter().chain(path) {
        out.push(OsStr::from_bytes(part));
    }
    out
}

fn refused(error: io::Error) -> Problems {
    fatal(&error)?;
    Ok(vec![told(&error)])
}

/// Going on makes no sense when nothing more can be written.
fn fatal(error: &io::Error) -> anyhow::Result<()> {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded | ReadOnlyFilesystem => {
            anyhow::bail!(
                "the destination takes nothing more: {error}; make room and run the same command \
                 again"
            )
        }
        _ => Ok(()),
    }
}

fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            "something else of this name is there already; choose an empty directory".to_owned()
        }
        io::ErrorKind::InvalidFilename => {
            format!("{error}; use '--tar', which takes names of any length")
        }
        _ => error.to_string(),
    }
}

/// Makes a directory that only its owner can enter; one that is there is taken, but no link to one.
fn make_directory(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let there = std::fs::symlink_metadata(path)?;
            if !there.is_dir() {
                return Err(error);
            }
            // From an earlier run; gets its own mode again when it is left.
            let mode = there.permissions().mode();
            if mode & 0o700 != 0o700 {
                let open = std::fs::Permissions::from_mode(mode & 0o7777 | 0o700);
                std::fs::set_permissions(path, open)?;
            }
            Ok(())
        }
        other => other,
    }
}

/// Whether what is there is a complete copy of an earlier run. Times that common filesystems cannot
/// store are not compared.
fn is_same(there: &Metadata, attributes: &Attributes) -> bool {
    let mtime = attributes.mtime;
    there.is_file()
        && there.len() == attributes.size_bytes
        && (!COMMON_SECONDS.contains(&mtime.seconds)
            || (there.mtime(), there.mtime_nsec()) == (mtime.seconds, i64::from(mtime.nanoseconds)))
}

fn set_times(path: &Path, attributes: &Attributes) -> io::Result<()> {
    let spec = |time: Time| Timespec {
        tv_sec: time.seconds,
        tv_nsec: i64::from(time.nanoseconds),
    };
    let times = Timestamps {
        last_access: spec(attributes.atime),
        last_modification: spec(attributes.mtime),
    };
    Ok(rustix::fs::utimensat(
        CWD,
        path,
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// The file of an incomplete copy, one sparse hole.
fn begin(path: &Path, size_bytes: u64) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            options.open(path)?
        }
        other => other?,
    };
    file.set_len(size_bytes)?;
    Ok(file)
}

async fn fill(
    file: &File,
    content: &Content<'_>,
    progress: &Progress,
    outcome: &mut Outcome,
) -> io::Result<()> {
    let mut at = 0;
    while let Some(piece) = content.object.next_piece(at, content.size_bytes).await {
        if progress.is_stopped() {
            return Ok(());
        }
        match piece {
            Piece::Data { start_bytes, data } => {
                at = start_bytes;
                for part in data {
                    file.write_all_at(&part, at)?;
                    at += part.len() as u64;
                }
                outcome.bytes += at - start_bytes;
                progress.bytes(at - start_bytes);
            }
            Piece::Lost { range, error } => {
                at = range.end;
                outcome.lose(range, &error);
            }
        }
    }
    outcome.is_done = true;
    Ok(())
}

/// Gives a complete copy its name, which must be free.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        // The filesystem cannot do that; a link never replaces anything either.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        Err(error) => Err(error.into()),
    }
}
