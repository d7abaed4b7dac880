//! `zfs rewrite`: writing files again as they are, below the paths that are named.
//!
//! It may take long, so it is a job that can be canceled, and nobody has to wait for it: the lease
//! on a filesystem is given back every now and then, and who unmounts or exports meanwhile ends the
//! work at that file. Every file is rewritten in parts, each of which is good in itself.
//!
//! Source: cmd/zfs/zfs_main.c (`zfs_do_rewrite`): first the files of a directory, then the
//! directories in it; what fails is told, and the others are rewritten all the same.

use device::BoxFuture;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use access::Lease;
use api::{Failure, FailureKind, NotRewritten, Progress, Unit, ZfsRewrite, ZfsRewriteReply};
use filesystem::{Attributes, FileKind, Filesystem, FsError};

use service::jobs::Work;
use serving::Serving;

/// How long a lease is kept: who wants the dataset for itself waits no longer.
const LEASE: Duration = Duration::from_millis(250);
/// Entries of a directory that are read at once.
const ENTRIES: usize = 512;

/// Why a file or directory was not rewritten.
type Why = String;

/// A lease that serves for what is in one directory.
struct Held {
    directory: PathBuf,
    lease: Lease<Filesystem>,
    /// Where in the filesystem the directory is.
    top: PathBuf,
    /// What was looked for is the root of the filesystem, which is in no directory of it.
    is_root: bool,
    since: Instant,
}

struct Walk<'a> {
    serving: &'a Serving,
    call: &'a ZfsRewrite,
    work: &'a Work,
    held: Option<Held>,
    reply: ZfsRewriteReply,
    files: u64,
    /// Bytes of files that are done, and of all that were found so far.
    done_bytes: u64,
    total_bytes: u64,
}

/// `zfs rewrite`.
pub fn zfs_rewrite<'a>(
    serving: &'a Serving,
    call: &'a ZfsRewrite,
    work: &'a Work,
) -> BoxFuture<'a, Result<ZfsRewriteReply, Failure>> {
    Box::pin(async move {
        let mut walk = Walk {
            serving,
            call,
            work,
            held: None,
            reply: ZfsRewriteReply::default(),
            files: 0,
            done_bytes: 0,
            total_bytes: 0,
        };
        let mut directories = VecDeque::new();
        for path in call.paths.iter().map(PathBuf::from) {
            // One may be where another is mounted.
            walk.held = None;
            match walk.find(&path).await {
                Ok((_, at)) if at.kind == FileKind::Regular => {
                    walk.total_bytes += walk.share(at.size_bytes);
                    walk.file(&path, at.size_bytes).await?;
                }
                Ok((_, at)) if at.kind == FileKind::Directory && call.recursive => {
                    directories.push_back(path);
                }
                Ok(_) => {}
                Err(why) => walk.failed(&path, why),
            }
        }
        while let Some(directory) = directories.pop_front() {
            let entries = match walk.entries(&directory).await {
                Ok(entries) => entries,
                Err(why) => {
                    walk.failed(&directory, why);
                    continue;
                }
            };
            let mut files = Vec::new();
            for entry in entries {
                // Where something is mounted, its root is what people see there.
                let is_crossed = || serving.mounts.dataset_at(&entry.path.to_string_lossy());
                if entry.kind == FileKind::Regular {
                    walk.total_bytes += walk.share(entry.size_bytes);
                    files.push(entry);
                } else if !call.one_filesystem || is_crossed().is_none() {
                    directories.push_back(entry.path);
                }
            }
            for entry in files {
                walk.file(&entry.path, entry.size_bytes).await?;
            }
        }
        Ok(walk.reply)
    })
}

/// A regular file or directory in a directory.
struct Found {
    path: PathBuf,
    kind: FileKind,
    size_bytes: u64,
}

impl Walk<'_> {
    fn failed(&mut self, path: &Path, why: Why) {
        self.reply.failed.push(NotRewritten {
            path: path.to_string_lossy().into_owned(),
            why,
        });
    }

    /// How many bytes of a file of this size are asked for.
    fn share(&self, size_bytes: u64) -> u64 {
        let rest = size_bytes.saturating_sub(self.call.offset_bytes);
        match self.call.length_bytes {
            0 => rest,
            length => rest.min(length),
        }
    }

    /// What is at a path, with the filesystem that it is in.
    async fn find(&mut self, path: &Path) -> Result<(&Held, Attributes), Why> {
        let top = path.parent().unwrap_or(path);
        let is_held = self.held.as_ref().is_some_and(|held| {
            !held.is_root
                && held.directory == top
                && held.since.elapsed() < LEASE
                && held.lease.is_good()
        });
        if !is_held {
            self.held = None;
            let found = self.serving.mounts.mounted_above(path, "rewrite").await;
            let (lease, below) =
                found.ok_or_else(|| "it is in no filesystem that is mounted here".to_owned())?;
            self.held = Some(Held {
                directory: top.to_owned(),
                lease,
                top: below.parent().map_or_else(PathBuf::new, Path::to_owned),
                is_root: below.as_os_str().is_empty(),
                since: Instant::now(),
            });
        }
        let held = self.held.as_ref().expect("it was just put there");
        let filesystem = held.lease.get();
        let failed = |error: FsError| error.to_string();
        let mut at = filesystem
            .attributes(filesystem.root())
            .await
            .map_err(failed)?;
        if held.is_root {
            return Ok((held, at));
        }
        let name = path.file_name().into_iter();
        for name in held.top.iter().chain(name).map(OsStr::as_bytes) {
            at = filesystem.lookup(at.ino, name).await.map_err(failed)?;
        }
        Ok((held, at))
    }

    /// Regular files and directories in a directory.
    async fn entries(&mut self, directory: &Path) -> Result<Vec<Found>, Why> {
        // Of it and not of what is in its place in the filesystem above it.
        self.held = None;
        let (held, at) = self.find(directory).await?;
        let filesystem = held.lease.get();
        let mut out = Vec::new();
        let mut cookie = 0;
        loop {
            let entries = filesystem
                .read_directory_with_attributes(at.ino, cookie, ENTRIES)
                .await
                .map_err(|error| error.to_string())?;
            let Some((last, _)) = entries.last() else {
                break;
            };
            cookie = last.next_cookie;
            for (entry, attributes) in entries {
                let Some(attributes) = attributes else {
                    continue;
                };
                let is_wanted = matches!(attributes.kind, FileKind::Regular | FileKind::Directory);
                if is_wanted && !matches!(&entry.name[..], b"." | b"..") {
                    out.push(Found {
                        path: directory.join(OsStr::from_bytes(&entry.name)),
                        kind: attributes.kind,
                        size_bytes: attributes.size_bytes,
                    });
                }
            }
        }
        self.held = None;
        Ok(out)
    }

    /// Rewrites a file that was found with this size.
    ///
    /// # Errors
    /// Only when the job was canceled.
    async fn file(&mut self, path: &Path, size_bytes: u64) -> Result<(), Failure> {
        let share = self.share(size_bytes);
        match self.rewrite(path, share).await {
            Ok(true) => {
                self.files += 1;
                if self.call.list {
                    self.reply.files.push(path.to_string_lossy().into_owned());
                }
            }
            Ok(false) => {
                let message = format!(
                    "cannot rewrite '{}': canceled; {} files were rewritten before it",
                    path.display(),
                    self.files
                );
                return Err(Failure::new(FailureKind::Canceled, message));
            }
            Err(why) => self.failed(path, why),
        }
        self.done_bytes += share;
        Ok(())
    }

    /// Rewrites a file, of which `share` bytes are asked for; whether it was not canceled.
    async fn rewrite(&mut self, path: &Path, share: u64) -> Result<bool, Why> {
        let (offset, physical) = (self.call.offset_bytes, self.call.physical);
        let end = match self.call.length_bytes {
            0 => u64::MAX,
            length => offset.saturating_add(length),
        };
        let mut begun: Option<(format::ObjectId, u64)> = None;
        let mut at = Some(offset);
        while let Some(from) = at {
            if self.work.is_canceled() {
                return Ok(false);
            }
            self.work.progress(Progress {
                done: self.done_bytes + share.min(from.saturating_sub(offset)),
                total: self.total_bytes,
                unit: Unit::Bytes,
            });
            let (held, found) = self.find(path).await?;
            let same = (held.lease.object(), found.ino);
            if begun.is_some_and(|begun| begun != same) {
                return Err("another file took its place meanwhile".to_owned());
            }
            begun = Some(same);
            let filesystem = held.lease.get();
            let part = filesystem.rewrite_part(found.ino, from, end, physical);
            at = part.await.map_err(|error| error.to_string())?;
        }
        Ok(true)
    }
}
