//! Putting a file, or a directory with all below it, from a snapshot into the filesystem.
//!
//! A copy is made beside what is there, as `NAME.restored-DATE.partial`, and gets its name when it
//! is whole: a crash, an error or a cancellation leaves what was there as it was, and the part. In
//! the place of the old one it comes by an exchange of two names; the old one stays beside it as
//! `NAME.replaced-DATE`, so nothing is lost by a mistake. Between the two steps of that, a crash
//! leaves the old one as `NAME.restored-DATE`.
//!
//! Owner, mode, times, extended attributes, POSIX lists of access, holes, and hard links within
//! what is restored are kept. Links are restored as links, never followed. What cannot be read is
//! left out and told, and then nothing is put in the place of what is there.
//!
//! The filesystem is let go of every now and then ([`super::held`]). Whoever rolls it back
//! meanwhile ends the work: files are known by number and generation, and another one's are never
//! written.

use device::BoxFuture;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use api::{Failure, FailureKind, FileFault, FileRestore, FileRestoreReply, Progress, Unit};
use bytes::Bytes;
use filesystem::{
    Attributes, Caller, FileKind, Filesystem, FsError, RenameMode, SeekTo, SetAttributes, SetTime,
    XattrMode,
};

use super::held::{Held, Same};
use super::{failed, find, names};
use service::jobs::Work;
use serving::Serving;
use serving::mounts::Mounts;

/// How much is copied at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Entries of a directory that are read at once.
const ENTRIES: usize = 256;
/// Faults that are told.
const FAULTS_MAX: usize = 100;
/// Names that are tried where others are taken.
const NAMES_TRIED: u32 = 100;
const PARTIAL: &[u8] = b".partial";
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Why something is not restored.
enum Stop {
    /// It cannot be read; the rest can be restored.
    Unread(String),
    /// Nothing more can be done.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A directory that is being restored.
struct Level {
    source: Attributes,
    made: Same,
    cookie: u64,
    entries: VecDeque<(Bytes, Result<Attributes, FsError>)>,
    is_read: bool,
}

struct Restore<'a> {
    work: &'a Work,
    doing: String,
    from: Held,
    to: Held,
    /// The directory in which all is put, and those that are being made below it.
    above: Vec<Same>,
    /// Names of these in the snapshot, from its root on.
    path: Vec<Vec<u8>>,
    /// Files with several names that were made, by their number in the snapshot.
    links: HashMap<u64, Same>,
    has_begun: bool,
    total_bytes: u64,
    reply: FileRestoreReply,
}

impl Restore<'_> {
    /// The filesystem, where what is being made is still there.
    async fn live(&mut self, file: Option<Same>) -> Result<Arc<Filesystem>, Failure> {
        let files = self.above.iter().copied().chain(file);
        self.to.with(files).await
    }

    fn fails(&self, error: &FsError) -> Failure {
        failed(&self.doing, error)
    }

    fn unread(&self, error: FsError) -> Stop {
        match error {
            FsError::Closed | FsError::Suspended { .. } => Stop::Failed(self.fails(&error)),
            error => Stop::Unread(error.to_string()),
        }
    }

    fn fault(&self, name: Option<&[u8]>, why: String) -> FileFault {
        let names = self.path.iter().map(Vec::as_slice).chain(name);
        FileFault {
            path: names::path_of(names),
            why,
        }
    }

    fn missing(&mut self, name: Option<&[u8]>, why: String) {
        self.reply.missing_count += 1;
        if self.reply.missing.len() < FAULTS_MAX {
            let fault = self.fault(name, why);
            self.reply.missing.push(fault);
        }
    }

    fn lacking(&mut self, name: Option<&[u8]>, why: String) {
        self.reply.lacking_count += 1;
        if self.reply.lacking.len() < FAULTS_MAX {
            let fault = self.fault(name, why);
            self.reply.lacking.push(fault);
        }
    }

    fn check_canceled(&self) -> Result<(), Failure> {
        if !self.work.is_canceled() {
            return Ok(());
        }
        let message = format!("{}: canceled", self.doing);
        Err(Failure::new(FailureKind::Canceled, message))
    }

    fn progress(&self) {
        self.work.progress(Progress {
            done: self.reply.bytes,
            total: self.total_bytes.max(self.reply.bytes),
            unit: Unit::Bytes,
        });
    }

    /// Restores `source` as `name` in the directory `above`, with all below it.
    async fn tree(&mut self, source: Attributes, own: &[u8], name: &[u8]) -> Result<Same, Failure> {
        self.total_bytes += size_of(&source);
        let top = match self.one(&source, own, name).await {
            Ok(made) => made,
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::Unread(why)) => {
                let message = format!("{}: {why}", self.doing);
                return Err(Failure::new(FailureKind::Io, message));
            }
        };
        let mut levels = Vec::new();
        if source.kind == FileKind::Directory {
            self.enter(&mut levels, source, top, own);
        }
        while let Some(level) = levels.last_mut() {
            self.check_canceled()?;
            if level.entries.is_empty() && !level.is_read {
                self.read(level).await?;
                continue;
            }
            let Some((entry, found)) = level.entries.pop_front() else {
                let (source, made) = (level.source, level.made);
                self.finish(&source, made, None).await?;
                levels.pop();
                self.above.pop();
                self.path.pop();
                continue;
            };
            let done = match found {
                Ok(found) => {
                    let made = self.one(&found, &entry, &entry).await;
                    made.map(|made| (found, made))
                }
                Err(error) => Err(self.unread(error)),
            };
            match done {
                Ok((found, made)) if found.kind == FileKind::Directory => {
                    self.enter(&mut levels, found, made, &entry);
                }
                Ok(_) => {}
                Err(Stop::Unread(why)) => self.missing(Some(&entry), why),
                Err(Stop::Failed(failure)) => return Err(failure),
            }
        }
        Ok(top)
    }

    fn enter(&mut self, levels: &mut Vec<Level>, source: Attributes, made: Same, name: &[u8]) {
        self.above.push(made);
        self.path.push(name.to_vec());
        levels.push(Level {
            source,
            made,
            cookie: 0,
            entries: VecDeque::new(),
            is_read: false,
        });
    }

    /// Reads more of a directory in the snapshot.
    async fn read(&mut self, level: &mut Level) -> Result<(), Failure> {
        let (from, _) = self.from.get().await?;
        let ino = level.source.ino;
        let entries = match from.peek_directory(ino, level.cookie, ENTRIES).await {
            Ok(entries) => entries,
            Err(error) => match self.unread(error) {
                Stop::Failed(failure) => return Err(failure),
                Stop::Unread(why) => {
                    level.is_read = true;
                    self.missing(None, why);
                    return Ok(());
                }
            },
        };
        match entries.last() {
            Some(last) => level.cookie = last.next_cookie,
            None => level.is_read = true,
        }
        for entry in entries {
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            let found = from.attributes(entry.ino).await;
            self.total_bytes += found.as_ref().map_or(0, size_of);
            level.entries.push_back((entry.name.into(), found));
        }
        Ok(())
    }

    /// Makes one file, whole unless it is a directory.
    async fn one(&mut self, source: &Attributes, own: &[u8], name: &[u8]) -> Result<Same, Stop> {
        let to = self.live(None).await?;
        let parent = self.above.last().map_or(0, |parent| parent.ino);
        if source.kind == FileKind::Regular
            && source.nlink > 1
            && let Some(first) = self.links.get(&source.ino).copied()
            && let Ok(found) = to.attributes(first.ino).await
            && Same::of(&found) == first
        {
            match to.link(first.ino, parent, name).await {
                Ok(_) => {
                    self.reply.files += 1;
                    return Ok(first);
                }
                Err(FsError::TooManyLinks { .. }) => {}
                Err(error) => return Err(self.fails(&error).into()),
            }
        }
        let root = Caller::ROOT;
        let made = match source.kind {
            FileKind::Regular => to.create(parent, name, 0o600, root).await,
            FileKind::Directory => to.make_directory(parent, name, 0o700, root).await,
            FileKind::Symlink => {
                let (from, _) = self.from.get().await?;
                let target = from.read_link(source.ino).await;
                let target = target.map_err(|error| self.unread(error))?;
                to.symlink(parent, name, &target, root).await
            }
            kind => {
                to.make_node(parent, name, kind, 0o600, source.rdev, root)
                    .await
            }
        };
        let made = Same::of(&made.map_err(|error| self.fails(&error))?);
        self.has_begun = true;
        self.reply.files += 1;
        if source.kind == FileKind::Directory {
            return Ok(made);
        }
        let mut filled = Ok(());
        if source.kind == FileKind::Regular {
            filled = self.fill(source, made).await;
        }
        if let Err(stop) = filled {
            if matches!(stop, Stop::Unread(_)) {
                self.reply.files -= 1;
                let to = self.live(Some(made)).await?;
                if let Ok(found) = to.lookup(parent, name).await
                    && Same::of(&found) == made
                {
                    let removed = to.unlink(parent, name).await;
                    removed.map_err(|error| self.fails(&error))?;
                }
            }
            return Err(stop);
        }
        self.finish(source, made, Some(own)).await?;
        if source.nlink > 1 {
            self.links.insert(source.ino, made);
        }
        Ok(made)
    }

    /// Copies what a file holds; what is a hole stays one.
    async fn fill(&mut self, source: &Attributes, made: Same) -> Result<(), Stop> {
        let size_bytes = source.size_bytes;
        let mut at = 0;
        loop {
            let (from, _) = self.from.get().await?;
            let begin = match from.seek(source.ino, at, SeekTo::Data).await {
                Ok(begin) => begin,
                Err(FsError::NoSuchPlace { .. }) => break,
                Err(error) => return Err(self.unread(error)),
            };
            let end = from.seek(source.ino, begin, SeekTo::Hole).await;
            let end = end.map_err(|error| self.unread(error))?.min(size_bytes);
            at = begin;
            while at < end {
                self.check_canceled()?;
                let (from, _) = self.from.get().await?;
                // To the next multiple, so that blocks are written whole.
                let length = (CHUNK_BYTES - at % CHUNK_BYTES).min(end - at) as usize;
                let parts = from.peek(source.ino, at, length).await;
                let parts = parts.map_err(|error| self.unread(error))?;
                let data = match <[Bytes; 1]>::try_from(parts) {
                    Ok([data]) => data,
                    Err(parts) => Bytes::from(parts.concat()),
                };
                if data.len() != length {
                    return Err(Stop::Unread("the file is shorter than it says".into()));
                }
                let to = self.live(Some(made)).await?;
                let written = to.write(made.ino, at, data, false, Caller::ROOT).await;
                written.map_err(|error| self.fails(&error))?;
                at += length as u64;
                self.reply.bytes += length as u64;
                self.progress();
            }
        }
        let to = self.live(Some(made)).await?;
        let size = SetAttributes {
            size_bytes: Some(size_bytes),
            ..SetAttributes::default()
        };
        let set = to.set_attributes(made.ino, &size, Caller::ROOT).await;
        set.map_err(|error| self.fails(&error))?;
        Ok(())
    }

    /// Gives a file the attributes of the old one; `name` is of one in the directory that is being
    /// restored, none of that itself.
    async fn finish(
        &mut self,
        source: &Attributes,
        made: Same,
        name: Option<&[u8]>,
    ) -> Result<(), Failure> {
        let root = Caller::ROOT;
        let to = self.live(Some(made)).await?;
        let owner = SetAttributes {
            uid: Some(source.uid),
            gid: Some(source.gid),
            ..SetAttributes::default()
        };
        let set = to.set_attributes(made.ino, &owner, root).await;
        set.map_err(|error| self.fails(&error))?;
        self.copy_xattrs(source, made, name).await?;
        // After the lists of access, which change the mode.
        let to = self.live(Some(made)).await?;
        let rest = SetAttributes {
            mode: (source.kind != FileKind::Symlink).then_some(source.mode),
            atime: Some(SetTime::At(source.atime)),
            mtime: Some(SetTime::At(source.mtime)),
            ..SetAttributes::default()
        };
        let set = to.set_attributes(made.ino, &rest, root).await;
        set.map_err(|error| self.fails(&error))?;
        Ok(())
    }

    async fn copy_xattrs(
        &mut self,
        source: &Attributes,
        made: Same,
        name: Option<&[u8]>,
    ) -> Result<(), Failure> {
        let (from, _) = self.from.get().await?;
        let xattrs = match from.xattrs().names(source.ino).await {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.lacking(name, format!("its extended attributes: {error}"));
                return Ok(());
            }
        };
        let to = self.live(Some(made)).await?;
        // What it inherited from the directory that it was made in is not its own.
        if to.has_posix_acls() && source.kind != FileKind::Symlink {
            for acl in ACLS
                .iter()
                .filter(|acl| !xattrs.iter().any(|name| name == *acl))
            {
                match to.xattrs().remove(made.ino, acl).await {
                    Ok(()) | Err(FsError::NoAttribute { .. } | FsError::Unsupported { .. }) => {}
                    Err(error) => return Err(self.fails(&error)),
                }
            }
        }
        for xattr in xattrs {
            let (from, _) = self.from.get().await?;
            let value = match from.xattrs().get(source.ino, &xattr).await {
                Ok(value) => value,
                Err(error) => {
                    self.lacking(name, format!("'{}': {error}", names::written(&xattr)));
                    continue;
                }
            };
            let to = self.live(Some(made)).await?;
            let set = to
                .xattrs()
                .set(made.ino, &xattr, &value, XattrMode::Any, Caller::ROOT);
            match set.await {
                Ok(()) => {}
                Err(error @ (FsError::NoSpace | FsError::QuotaExceeded | FsError::ReadOnly)) => {
                    return Err(self.fails(&error));
                }
                Err(error) => {
                    self.lacking(name, format!("'{}': {error}", names::written(&xattr)));
                }
            }
        }
        Ok(())
    }
}

fn size_of(source: &Attributes) -> u64 {
    match source.kind {
        FileKind::Regular => source.size_bytes,
        _ => 0,
    }
}

/// A name with something behind it, shortened if it gets too long.
fn with_ending(name: &[u8], ending: &str, bytes_max: usize) -> Vec<u8> {
    let mut length = name.len().min(bytes_max.saturating_sub(ending.len()));
    if let Ok(text) = std::str::from_utf8(name) {
        while !text.is_char_boundary(length) {
            length -= 1;
        }
    }
    [&name[..length], ending.as_bytes()].concat()
}

/// A name that is not taken, nor the one of its part.
async fn free_name(
    filesystem: &Filesystem,
    doing: &str,
    parent: u64,
    name: &[u8],
    word: &str,
) -> Result<Vec<u8>, Failure> {
    let of_all = filesystem.statistics().await;
    let bytes_max = of_all
        .map_err(|error| failed(doing, &error))?
        .name_bytes_max as usize;
    let date = chrono::Local::now().format("%Y-%m-%d-%H%M%S");
    for number in 1..=NAMES_TRIED {
        let ending = match number {
            1 => format!(".{word}-{date}"),
            _ => format!(".{word}-{date}-{number}"),
        };
        let name = with_ending(name, &ending, bytes_max.saturating_sub(PARTIAL.len()));
        let mut is_free = true;
        for name in [name.clone(), [&name[..], PARTIAL].concat()] {
            match filesystem.lookup(parent, &name).await {
                Err(FsError::NotFound { .. }) => {}
                Ok(_) => is_free = false,
                Err(error) => return Err(failed(doing, &error)),
            }
        }
        if is_free {
            return Ok(name);
        }
    }
    let message = format!("{doing}: names for it are taken; remove what was restored before");
    Err(Failure::new(FailureKind::Exists, message))
}

/// Refuses to rename what leads to another mount, which would be lost with it.
fn check_mounts(
    mounts: &Mounts,
    doing: &str,
    dataset: &str,
    path: &[Vec<u8>],
) -> Result<(), Failure> {
    let path: PathBuf = path.iter().cloned().map(OsString::from_vec).collect();
    if !mounts.is_over_mount(dataset, &path) {
        return Ok(());
    }
    let message = format!(
        "{doing}: something is mounted at it or below it; unmount that, or restore beside it"
    );
    Err(Failure::new(FailureKind::Busy, message))
}

/// Restores a file or directory.
pub fn restore<'a>(
    serving: &'a Arc<Serving>,
    call: &'a FileRestore,
    work: &'a Work,
) -> BoxFuture<'a, Result<FileRestoreReply, Failure>> {
    Box::pin(async move {
        let doing = format!("cannot restore '{}' of '{}'", call.path, call.snapshot);
        let invalid = |why: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {why}"));
        let Some((dataset, _)) = call.snapshot.split_once('@') else {
            return Err(invalid("that is no snapshot"));
        };
        let path = names::path(&doing, &call.path)?;
        let Some((name, above)) = path.split_last() else {
            return Err(invalid(
                "roll back to the snapshot or clone it to have all of it",
            ));
        };
        let mut from = Held::open(serving, &call.snapshot, &doing, "restore").await?;
        let source = find(&from.get().await?.0, &doing, &path).await?;
        let mut to = Held::open(serving, dataset, &doing, "restore").await?;
        let (live, _) = to.get().await?;
        let parent = match find(&live, &doing, above).await {
            Ok(parent) if parent.kind == FileKind::Directory => parent,
            Ok(_) => return Err(invalid("where it was is no directory any more")),
            Err(failure) if failure.kind == FailureKind::NotFound => {
                let above = names::path_of(above.iter().map(Vec::as_slice));
                let why = format!("'{above}', where it was, is not there any more; restore that");
                return Err(Failure::new(
                    FailureKind::NotFound,
                    format!("{doing}: {why}"),
                ));
            }
            Err(failure) => return Err(failure),
        };
        if call.in_place {
            check_mounts(&serving.mounts, &doing, dataset, &path)?;
        }
        let beside = free_name(&live, &doing, parent.ino, name, "restored").await?;
        drop(live);
        let partial = [&beside[..], PARTIAL].concat();
        let path_of = |name: &[u8]| names::path_of(above.iter().map(Vec::as_slice).chain([name]));
        let mut restore = Restore {
            work,
            doing: doing.clone(),
            from,
            to,
            above: vec![Same::of(&parent)],
            path: above.to_vec(),
            links: HashMap::new(),
            has_begun: false,
            total_bytes: 0,
            reply: FileRestoreReply::default(),
        };
        let parted = |restore: &Restore<'_>, mut failure: Failure| {
            if restore.has_begun {
                failure.message += &format!(
                    "; what was restored until then is '{}', which can be removed",
                    path_of(&partial)
                );
            }
            failure
        };
        let made = match restore.tree(source, name, &partial).await {
            Ok(made) => made,
            Err(failure) => return Err(parted(&restore, failure)),
        };
        let placed = place(serving, &mut restore, call, dataset, &path, made, &beside);
        match placed.await {
            Ok(replaced) => {
                restore.reply.replaced = replaced.map(|name| path_of(&name));
                Ok(restore.reply)
            }
            Err(failure) => Err(parted(&restore, failure)),
        }
    })
}

/// Gives what was restored its name; the name that what was there has now.
async fn place(
    serving: &Arc<Serving>,
    restore: &mut Restore<'_>,
    call: &FileRestore,
    dataset: &str,
    path: &[Vec<u8>],
    made: Same,
    beside: &[u8],
) -> Result<Option<Vec<u8>>, Failure> {
    let doing = restore.doing.clone();
    let fails = |error: FsError| failed(&doing, &error);
    let live = restore.live(Some(made)).await?;
    let parent = restore.above.first().map_or(0, |parent| parent.ino);
    let partial = [beside, PARTIAL].concat();
    let Some((name, above)) = path.split_last() else {
        return Ok(None);
    };
    let path_of = |name: &[u8]| names::path_of(above.iter().map(Vec::as_slice).chain([name]));
    let keep = RenameMode::NoReplace;
    let found = live.lookup(parent, &partial).await.map_err(fails)?;
    if Same::of(&found) != made {
        let message = format!("{doing}: another file has the name of its part");
        return Err(Failure::new(FailureKind::Busy, message));
    }
    live.rename(parent, &partial, parent, beside, keep)
        .await
        .map_err(fails)?;
    // From here on it is called so.
    restore.has_begun = false;
    restore.reply.path = path_of(beside);
    let mut replaced = None;
    if call.in_place && restore.reply.missing_count == 0 {
        let stays = |mut failure: Failure| {
            failure.message += &format!("; it is restored as '{}'", path_of(beside));
            failure
        };
        match live.lookup(parent, name).await {
            Ok(_) => {
                check_mounts(&serving.mounts, &doing, dataset, path).map_err(stays)?;
                let old = free_name(&live, &doing, parent, name, "replaced").await;
                let old = old.map_err(stays)?;
                let exchanged = live.rename(parent, beside, parent, name, RenameMode::Exchange);
                exchanged.await.map_err(|error| stays(fails(error)))?;
                restore.reply.path = path_of(name);
                replaced = Some(
                    match live.rename(parent, beside, parent, &old, keep).await {
                        Ok(()) => old,
                        // It is safe, if by a name that says something else.
                        Err(_) => beside.to_vec(),
                    },
                );
            }
            Err(FsError::NotFound { .. }) => {
                let renamed = live.rename(parent, beside, parent, name, keep).await;
                renamed.map_err(|error| stays(fails(error)))?;
                restore.reply.path = path_of(name);
            }
            Err(error) => return Err(stays(fails(error))),
        }
    }
    let changed = [Some(name.clone()), Some(beside.to_vec()), replaced.clone()];
    let changed = changed.into_iter().flatten().map(OsString::from_vec);
    serving
        .mounts
        .forget_names(dataset, parent, changed.collect())
        .await;
    live.sync_all().await.map_err(fails)?;
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name stays within what a filesystem takes, and whole characters.
    #[test]
    fn long_names_are_cut() {
        assert_eq!(with_ending(b"a.txt", ".x", 255), b"a.txt.x");
        assert_eq!(with_ending(&[b'a'; 255], ".ending", 255).len(), 255);
        let name = "\u{fc}".repeat(127);
        let cut = with_ending(name.as_bytes(), ".xy", 254);
        assert_eq!(
            String::from_utf8(cut).unwrap(),
            "\u{fc}".repeat(125) + ".xy"
        );
        assert_eq!(with_ending(&[0xff; 255], ".xy", 255).len(), 255);
    }
}
