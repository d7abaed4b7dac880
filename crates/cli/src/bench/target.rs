//! What is measured, by the words that people have for it, and what must not be harmed.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use ::bench::log_device::Facts;
use ::bench::run::Runner;
use ::bench::{BenchError, Place};
use anyhow::{Context, bail};
use device::World;
use pool::DeviceUse;
use rustix::fs::OFlags;
use tempfile::TempDir;

use super::common;

/// Directories of ours are called so.
const PREFIX: &str = "millpond-bench-";
/// The file in them.
const DATA: &str = "data";
/// Least bytes that loads go over.
const SIZE_MIN: u64 = 1 << 20;
/// Loads take a quarter of the space that is free, at most, where nobody says otherwise.
const OF_FREE: u64 = 4;

/// What is measured.
#[derive(Debug)]
pub(super) struct Target {
    name: String,
    place: Place,
    kind: Kind,
    is_read_only: bool,
    /// Ends after the directory in it.
    mount: Option<Mount>,
}

#[derive(Debug)]
enum Kind {
    /// A directory of ours in one of theirs, with so many bytes free.
    Ours { own: Own, free_bytes: u64 },
    /// A disk or file of theirs, of so many bytes.
    Theirs { size_bytes: u64, what: &'static str },
    /// On another host: nobody knows how big.
    Remote,
}

/// A directory of ours.
#[derive(Debug)]
enum Own {
    /// Taken away with this.
    Ends(TempDir),
    /// Stays until somebody is done with it.
    Stays(PathBuf),
    /// Was taken away.
    Gone,
}

/// A share that is mounted for this.
#[derive(Debug)]
struct Mount {
    directory: Option<TempDir>,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(directory) = self.directory.take() else {
            return;
        };
        let is_unmounted = Command::new("umount").arg(directory.path()).status();
        if !is_unmounted.is_ok_and(|status| status.success()) {
            // What is in there is not ours.
            let path = directory.keep();
            common::tell(&format!("cannot unmount {}", path.display()));
        }
    }
}

/// Whether there is direct access to a file that is there.
fn is_direct(path: &Path) -> bool {
    let flags = OFlags::DIRECT.bits() as i32;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .is_ok()
}

fn text(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.with_context(|| format!("{}: names are in UTF-8", path.display()))
}

impl Target {
    /// Looks at what is named, and makes a directory in it where it is one.
    pub(super) async fn open(word: &str, destroy: bool, runner: &Runner) -> anyhow::Result<Self> {
        if word.starts_with("iscsi://") {
            return Self::iscsi(word, destroy);
        }
        if let Some(rest) = word.strip_prefix("nfs://") {
            return Self::nfs(word, rest, runner);
        }
        let path = Path::new(word);
        let metadata = std::fs::metadata(path).with_context(|| {
            format!(
                "{word}; name a directory, a disk, a file, or an address with iscsi:// or nfs://"
            )
        })?;
        if metadata.is_dir() {
            return Self::directory(word, path, None);
        }
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            bail!("{word} is no directory, disk or file");
        }
        if destroy {
            check_unused(word, metadata.file_type().is_block_device()).await?;
        }
        let size_bytes = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        let size_bytes = size_bytes.with_context(|| word.to_owned())?;
        let what = match metadata.file_type().is_block_device() {
            true => "disk",
            false => "file",
        };
        Ok(Target {
            name: word.to_owned(),
            place: Place::File {
                path: text(&std::fs::canonicalize(path)?)?,
                is_direct: is_direct(path),
            },
            kind: Kind::Theirs { size_bytes, what },
            is_read_only: !destroy,
            mount: None,
        })
    }

    fn iscsi(word: &str, destroy: bool) -> anyhow::Result<Self> {
        let address = &word["iscsi://".len()..];
        let host = address.split('/').next().unwrap_or_default();
        if host.contains('@') {
            bail!(
                "a secret in an address is seen by everybody who lists processes; put the name \
                 and the secret into LIBISCSI_CHAP_USERNAME and LIBISCSI_CHAP_PASSWORD"
            );
        }
        if host.is_empty() || address.split('/').count() != 3 {
            bail!("'{word}' should be iscsi://HOST[:PORT]/TARGET/LUN");
        }
        Ok(Target {
            name: word.to_owned(),
            place: Place::Iscsi {
                url: word.to_owned(),
            },
            kind: Kind::Remote,
            is_read_only: !destroy,
            mount: None,
        })
    }

    /// By fio's engine, or else mounted by the kernel.
    fn nfs(word: &str, rest: &str, runner: &Runner) -> anyhow::Result<Self> {
        let (host, directory) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            bail!("'{word}' should be nfs://HOST[:PORT]/DIRECTORY");
        }
        if runner.has("nfs") {
            return Ok(Target {
                name: word.to_owned(),
                place: Place::Nfs {
                    url: word.to_owned(),
                    name: format!("{PREFIX}{}", std::process::id()),
                },
                kind: Kind::Remote,
                is_read_only: false,
                mount: None,
            });
        }
        if !rustix::process::geteuid().is_root() {
            bail!(
                "fio has no engine for NFS here, and only root can mount {word}; mount it and name \
                 its directory"
            );
        }
        let at = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, Some(port)),
            _ => (host, None),
        };
        let mut command = Command::new("mount");
        command.args(["-t", "nfs"]);
        if let Some(port) = port {
            command.args(["-o", &format!("port={port}")]);
        }
        command.arg(format!("{host}:/{directory}")).arg(at.path());
        let mounted = command.output().context("mount")?;
        if !mounted.status.success() {
            bail!(
                "fio has no engine for NFS here, and {word} cannot be mounted (package nfs-common \
                 has what is needed): {}",
                String::from_utf8_lossy(&mounted.stderr).trim()
            );
        }
        let path = at.path().to_owned();
        let mount = Mount {
            directory: Some(at),
        };
        Self::directory(word, &path, Some(mount))
    }

    fn directory(word: &str, path: &Path, mount: Option<Mount>) -> anyhow::Result<Self> {
        let space = rustix::fs::statvfs(path).with_context(|| word.to_owned())?;
        let own = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(path)
            .with_context(|| format!("{word}: no directory can be made in it"))?;
        let data = own.path().join(DATA);
        File::create(&data).with_context(|| data.display().to_string())?;
        Ok(Target {
            name: word.to_owned(),
            place: Place::File {
                path: text(&std::fs::canonicalize(&data)?)?,
                is_direct: is_direct(&data),
            },
            kind: Kind::Ours {
                own: Own::Ends(own),
                free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
            },
            is_read_only: false,
            mount,
        })
    }

    /// The directory of a call before, which stayed.
    pub(super) fn kept(word: &str, own: &Path) -> anyhow::Result<Self> {
        let data = own.join(DATA);
        if !data.is_file() {
            bail!(
                "the set of the warm-up is gone: {}; begin with another file",
                data.display()
            );
        }
        Ok(Target {
            name: word.to_owned(),
            place: Place::File {
                path: text(&data)?,
                is_direct: is_direct(&data),
            },
            kind: Kind::Ours {
                own: Own::Stays(own.to_owned()),
                free_bytes: std::fs::metadata(&data)?.len().saturating_mul(OF_FREE),
            },
            is_read_only: false,
            mount: None,
        })
    }

    /// Has the directory stay after this call, unless it is on what is mounted for it; its path.
    pub(super) fn keep(&mut self) -> Option<String> {
        if self.mount.is_some() {
            return None;
        }
        let Kind::Ours { own, .. } = &mut self.kind else {
            return None;
        };
        if let Own::Ends(directory) = std::mem::replace(own, Own::Gone) {
            *own = Own::Stays(directory.keep());
        }
        match own {
            Own::Stays(path) => path.to_str().map(str::to_owned),
            _ => None,
        }
    }

    /// Takes the directory away, also where it was to stay.
    pub(super) fn forget(&mut self) {
        let Kind::Ours { own, .. } = &mut self.kind else {
            return;
        };
        if let Own::Stays(path) = std::mem::replace(own, Own::Gone)
            && let Err(error) = std::fs::remove_dir_all(&path)
        {
            common::tell(&format!("{} stays: {error}", path.display()));
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether loads can go past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        match &self.place {
            Place::File { is_direct, .. } => *is_direct,
            Place::Iscsi { .. } | Place::Nfs { .. } => true,
        }
    }

    /// Whether memory of this host may stand between loads and what they go over: not where they
    /// go past the page cache of a disk.
    pub(super) fn has_cache(&self) -> bool {
        !matches!(&self.kind, Kind::Theirs { what: "disk", .. })
    }

    /// Bytes of all that is there, of a disk or file.
    pub(super) fn whole_bytes(&self) -> Option<u64> {
        match &self.kind {
            Kind::Theirs { size_bytes, .. } => Some(*size_bytes),
            Kind::Ours { .. } | Kind::Remote => None,
        }
    }

    /// Bytes that loads go over: those that somebody wants, else all of what is only read, else
    /// the usual, as far as there is room.
    pub(super) fn size_bytes(&self, wanted: Option<u64>, usual: u64) -> anyhow::Result<u64> {
        let room_bytes = match &self.kind {
            Kind::Ours { free_bytes, .. } => Some(*free_bytes),
            Kind::Theirs { size_bytes, .. } => Some(*size_bytes),
            Kind::Remote => None,
        };
        let bytes = match (wanted, room_bytes, &self.kind) {
            (Some(wanted), _, _) => wanted,
            (None, Some(room), Kind::Ours { .. }) => usual.min(room / OF_FREE),
            (None, Some(room), _) if self.is_read_only => room,
            (None, Some(room), _) => usual.min(room),
            (None, None, _) => usual,
        };
        let bytes = bytes / SIZE_MIN * SIZE_MIN;
        let wanted_bytes = bytes.max(SIZE_MIN);
        let room_bytes = room_bytes.unwrap_or(u64::MAX);
        match bytes == 0 || wanted_bytes > room_bytes {
            true => Err(BenchError::TooSmall {
                target: self.name.clone(),
                room_bytes,
                wanted_bytes,
            }
            .into()),
            false => Ok(bytes),
        }
    }

    /// What the kernel tells of the device that it is, or is on.
    pub(super) fn facts(&self) -> Option<Facts> {
        let Place::File { path, .. } = &self.place else {
            return None;
        };
        let metadata = std::fs::metadata(path).ok()?;
        let number = match metadata.file_type().is_block_device() {
            true => metadata.rdev(),
            false => metadata.dev(),
        };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        Facts::read(Path::new("/sys"), major, minor)
    }

    /// What happens to it, with the bytes that loads go over.
    pub(super) fn announced(&self, size: &str) -> String {
        match (&self.kind, self.is_read_only) {
            (Kind::Ours { own, .. }, _) => {
                let until = match own {
                    Own::Stays(_) => "taken away when all is done",
                    _ => "taken away at the end",
                };
                format!("A file of {size} is written in {}, and {until}", self.name)
            }
            (Kind::Theirs { what, .. }, true) => {
                format!(
                    "{size} of the {what} {} are read, and nothing is written",
                    self.name
                )
            }
            (Kind::Theirs { what, .. }, false) => {
                format!("{size} of the {what} {} are overwritten", self.name)
            }
            (Kind::Remote, true) => {
                format!("{size} of {} are read, and nothing is written", self.name)
            }
            (Kind::Remote, false) => match &self.place {
                Place::Nfs { name, .. } => {
                    format!(
                        "A file {name} of {size} is written in {} and stays there, since fio's \
                         engine for NFS removes none",
                        self.name
                    )
                }
                _ => format!("{size} of {} are overwritten", self.name),
            },
        }
    }
}

/// Refuses what is mounted, held by somebody, or part of a pool that is in use; says of the rest
/// what is lost.
async fn check_unused(word: &str, is_disk: bool) -> anyhow::Result<()> {
    if is_disk {
        let flags = OFlags::EXCL.bits() as i32;
        let held = OpenOptions::new().read(true).custom_flags(flags).open(word);
        if let Err(error) = held {
            bail!("{word} is mounted or held by another program, and is not overwritten: {error}");
        }
    }
    let world = World::system(1);
    let found = pool::device_use(&world, word).await;
    match found.with_context(|| format!("what is on {word} cannot be found out"))? {
        None => {}
        Some(DeviceUse::ActivePool { pool }) => bail!(
            "{word} is part of the pool '{pool}', which was not exported, and is not overwritten; \
             destroy the pool, or `zpool labelclear -f {word}`"
        ),
        Some(other) => common::tell(&format!("{word} {other}; that is lost")),
    }
    Ok(())
}
