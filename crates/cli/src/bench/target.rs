//! What is measured, by the words that people have for it, and what must not be harmed.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use ::bench::log_device::Facts;
use ::bench::run::Runner;
use ::bench::{BenchError, Held, Place};
use anyhow::{Context, bail};
use rustix::fs::OFlags;
use tempfile::TempDir;

use super::common;
use super::own::{Own, PREFIX};
use super::unused;

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
    /// Ends after the directory in it, and after whoever holds the file there.
    mount: Option<Mount>,
}

#[derive(Debug)]
enum Kind {
    /// A directory of ours in one of theirs, with so many bytes free.
    Ours { own: Own, free_bytes: u64 },
    /// A disk or file of theirs, of so many bytes.
    Theirs {
        held: Held,
        size_bytes: u64,
        what: &'static str,
        /// A disk that is overwritten is nobody else's until this ends.
        _claim: Option<File>,
    },
    /// On another host: nobody knows how big.
    Remote,
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

/// A path for people: what is held may be called otherwise by now.
fn text(held: &Held) -> anyhow::Result<String> {
    let path = std::fs::read_link(held.path())?;
    let text = path.to_str().map(str::to_owned);
    text.with_context(|| format!("{}: names are in UTF-8", path.display()))
}

fn place_of(held: &Held) -> anyhow::Result<Place> {
    Ok(Place::File {
        path: text(held)?,
        is_direct: held.is_direct(),
    })
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
        let held = Held::find(word).with_context(|| {
            format!(
                "{word}; name a directory, a disk, a file, or an address with iscsi:// or nfs://"
            )
        })?;
        let metadata = held.metadata().with_context(|| word.to_owned())?;
        if metadata.is_dir() {
            return Self::directory(word, None, held);
        }
        if !metadata.is_file() && !metadata.file_type().is_block_device() {
            bail!("{word} is no directory, disk or file");
        }
        let claim = match destroy {
            true => unused::claim(word, &held).await?,
            false => None,
        };
        let opened = held.open(OFlags::RDONLY);
        let size_bytes = opened.and_then(|mut file| file.seek(SeekFrom::End(0)));
        let size_bytes = size_bytes.with_context(|| word.to_owned())?;
        let what = match metadata.file_type().is_block_device() {
            true => "disk",
            false => "file",
        };
        Ok(Target {
            name: word.to_owned(),
            place: place_of(&held)?,
            kind: Kind::Theirs {
                held,
                size_bytes,
                what,
                _claim: claim,
            },
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
        let above = Held::find(&path).with_context(|| word.to_owned())?;
        Self::directory(word, Some(mount), above)
    }

    /// What is held is the last parameter, which ends before the others: it is let go before what
    /// was mounted for it is unmounted.
    fn directory(word: &str, mount: Option<Mount>, above: Held) -> anyhow::Result<Self> {
        let space = rustix::fs::fstatvfs(&above).with_context(|| word.to_owned())?;
        let own = Own::make(&above);
        let own = own.with_context(|| format!("{word}: no directory can be made in it"))?;
        Ok(Target {
            name: word.to_owned(),
            place: place_of(own.data())?,
            kind: Kind::Ours {
                own,
                free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
            },
            is_read_only: false,
            mount,
        })
    }

    /// The directory of a call before, which stayed, with a file of so many bytes.
    pub(super) fn kept(word: &str, own: &Path, size_bytes: u64) -> anyhow::Result<Self> {
        let above = Held::find(word).with_context(|| word.to_owned())?;
        let own = Own::find(&above, own, size_bytes)?;
        Ok(Target {
            name: word.to_owned(),
            place: place_of(own.data())?,
            kind: Kind::Ours {
                own,
                free_bytes: size_bytes.saturating_mul(OF_FREE),
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
        // Where it cannot be named, nobody could go on with it.
        let path = own.path().to_str()?.to_owned();
        own.set_stays(true);
        Some(path)
    }

    /// Has the directory be taken away at the end, also where it was to stay.
    pub(super) fn forget(&mut self) {
        if let Kind::Ours { own, .. } = &mut self.kind {
            own.set_stays(false);
        }
    }

    /// Whether it is a directory of ours.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Ours { .. })
    }

    /// Takes the name that a call before gave to its file on the same server, which is there.
    pub(super) fn take_name(&mut self, before: &Place) {
        let (Place::Nfs { url, .. }, Place::Nfs { url: same, name }) = (&self.place, before) else {
            return;
        };
        if url == same && name.starts_with(PREFIX) && !name.contains('/') {
            self.place = before.clone();
        }
    }

    /// What loads go over, where that is of this host. Whoever holds it lets go before this ends.
    pub(super) fn held(&self) -> anyhow::Result<Option<Held>> {
        let held = match &self.kind {
            Kind::Ours { own, .. } => own.data(),
            Kind::Theirs { held, .. } => held,
            Kind::Remote => return Ok(None),
        };
        Ok(Some(held.try_clone()?))
    }

    /// Gives a file of ours the size that loads need.
    pub(super) fn set_size(&self, bytes: u64) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Ours { own, .. } => {
                let sized = own.data().set_size(bytes);
                sized.with_context(|| format!("{}: no file of {bytes} bytes", self.name))
            }
            Kind::Theirs { .. } | Kind::Remote => Ok(()),
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
        let metadata = self.held().ok()??.metadata().ok()?;
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
                let until = match own.stays() {
                    true => "taken away when all is done",
                    false => "taken away at the end",
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
