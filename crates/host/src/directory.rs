//! The state directory: the lock that keeps two daemons apart, and who may look in.

use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::process::geteuid;

use crate::stopped;

/// How often and how long to wait for the lock: a daemon that has answered `millpond down` holds it
/// until its process has ended.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Why the state directory cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The state directory cannot be used.
    #[error("the state directory {path} cannot be used: {source}; set MILLPOND_STATE to a \
         directory of yours", path = path.display())]
    Unusable {
        /// The directory or a file in it.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another daemon has the state directory.
    #[error(
        "another millpond already runs with the state directory {path}{process}; use it, stop it \
         with 'millpond down', or set MILLPOND_STATE to another directory",
        path = path.display()
    )]
    Running {
        /// The state directory.
        path: PathBuf,
        /// ` (process N)`, where known.
        process: String,
    },
}

/// The state directory, locked.
#[derive(Debug)]
pub struct State {
    directory: PathBuf,
    _lock: File,
}

/// What an ordinary user may do with root's state directory: pass through it to what is meant for
/// all.
const MODE_OF_ROOTS: u32 = 0o711;
const MODE_OF_USERS: u32 = 0o700;
/// Files in it, and directories with what they hold, that were made when every file was for all to
/// read.
const PRIVATE: [&str; 24] = [
    "alerts-book.json",
    "alerts-outbox.json",
    "alerts-secrets.json",
    "alerts.json",
    "audit-refused.jsonl",
    "audit.jsonl",
    "daemon.log",
    "https-certificate.pem",
    "https-key.pem",
    "iscsi-secrets.json",
    "lights.json",
    "smart",
    "people.json",
    "millpond.lock",
    "millpond.toml",
    "pools.json",
    "pools.json.new",
    "replications.json",
    "replications.json.new",
    "replications.json.damaged",
    "schedules.json",
    "schedules.json.new",
    "schedules.json.damaged",
    "disks",
];

/// Those of them that hold secrets: who could read one may know them still.
const SECRETS: [&str; 4] = [
    "alerts-secrets.json",
    "https-key.pem",
    "iscsi-secrets.json",
    "people.json",
];

/// What else is in it.
const FOR_ALL: [&str; 5] = ["millpond.sock", stopped::NAME, "zvol", "mnt", "smb"];

/// Sees to it that others cannot read the state directory. One in which others keep things for all
/// to read is left as it is, but for what is ours in it. Gives the files with secrets that others
/// could read.
fn make_private(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut exposed = Vec::new();
    let found = directory.metadata()?;
    let own = geteuid();
    if found.uid() != own.as_raw() {
        return Ok(exposed);
    }
    let mut is_shared = found.mode() & Mode::SVTX.as_raw_mode() != 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_ours = PRIVATE.iter().chain(&FOR_ALL).any(|ours| name == *ours);
        let is_private = || {
            let found = entry.metadata();
            found.is_ok_and(|found| found.mode() & 0o077 == 0)
        };
        is_shared |= !is_ours && !is_private();
    }
    if !is_shared {
        let mode = if own.is_root() {
            MODE_OF_ROOTS
        } else {
            MODE_OF_USERS
        };
        set_mode(directory, mode)?;
    } else {
        tracing::warn!(
            "the state directory {} is not Millpond's alone: others may see what is in it",
            directory.display()
        );
    }
    for name in PRIVATE {
        let path = directory.join(name);
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            set_mode(&path, 0o700)?;
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                if entry.file_type()?.is_file() {
                    set_mode(&entry.path(), 0o600)?;
                }
            }
        } else if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
            let was_open = path.metadata()?.mode() & 0o077 != 0;
            if was_open && SECRETS.contains(&name) {
                exposed.push(path.clone());
            }
            set_mode(&path, 0o600)?;
        }
    }
    Ok(exposed)
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let before = path.metadata()?.mode() & 0o7777;
    if before != mode {
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
        tracing::debug!("{} had mode {before:o}", path.display());
    }
    Ok(())
}

/// Takes the lock; false where another process keeps it.
fn is_locked_soon(lock: &File) -> bool {
    (0..LOCK_TRIES).any(|tries| {
        if tries > 0 {
            std::thread::sleep(LOCK_PAUSE);
        }
        flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

impl State {
    /// Makes the directory where needed, locks it, and keeps others from reading it.
    ///
    /// # Errors
    /// [`StateError::Running`] where another process has it, [`StateError::Unusable`].
    pub fn open(directory: &Path) -> Result<Self, StateError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StateError::Unusable { path, source }
        };
        std::fs::create_dir_all(directory).map_err(failed(directory))?;
        let lock_path = directory.join(stopped::LOCK);
        for path in make_private(directory).map_err(failed(directory))? {
            tracing::warn!(
                "others could read the secrets in {}; now only its owner can; change them",
                path.display()
            );
        }
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(failed(&lock_path))?;
        if !is_locked_soon(&lock) {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder);
            let process = if holder.trim().is_empty() {
                String::new()
            } else {
                format!(" (process {})", holder.trim())
            };
            return Err(StateError::Running {
                path: directory.to_owned(),
                process,
            });
        }
        let write = |lock: &mut File| -> io::Result<()> {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        write(&mut lock).map_err(failed(&lock_path))?;
        stopped::forget(directory).map_err(failed(&directory.join(stopped::NAME)))?;
        Ok(Self {
            directory: directory.to_owned(),
            _lock: lock,
        })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Somebody stops the server: no command is to start another one by itself.
    pub fn note_stopped(&self) {
        if let Err(error) = stopped::note(&self.directory) {
            tracing::warn!(
                "the next command may start a server again, as it cannot be noted in {} that this \
                 one was stopped: {error}",
                self.directory.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_refused_and_told_who_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let first = State::open(directory.path()).unwrap();
        let error = State::open(directory.path()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
        drop(first);
        State::open(directory.path()).unwrap();
    }

    #[test]
    fn what_others_could_read_is_mended() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        std::fs::create_dir_all(state.join("disks")).unwrap();
        let files = [
            "millpond.lock",
            "pools.json",
            "daemon.log",
            "disks/disk0.img",
        ];
        for file in files {
            std::fs::write(state.join(file), "[]").unwrap();
            set_mode(&state.join(file), 0o644).unwrap();
        }
        for path in [&state, &state.join("disks")] {
            set_mode(path, 0o755).unwrap();
        }
        drop(State::open(&state).unwrap());
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
        let expected = if geteuid().is_root() { 0o711 } else { 0o700 };
        assert_eq!(mode(&state), expected);
        assert_eq!(mode(&state.join("disks")), 0o700);
        for file in files {
            assert_eq!(mode(&state.join(file)), 0o600, "{file}");
        }
    }

    #[test]
    fn secrets_that_others_could_read_are_told() {
        let directory = tempfile::tempdir().unwrap();
        for (name, mode) in [
            ("iscsi-secrets.json", 0o644),
            ("people.json", 0o600),
            ("pools.json", 0o644),
        ] {
            std::fs::write(directory.path().join(name), "{}").unwrap();
            set_mode(&directory.path().join(name), mode).unwrap();
        }
        let told = make_private(directory.path()).unwrap();
        assert_eq!(told, [directory.path().join("iscsi-secrets.json")]);
        assert!(make_private(directory.path()).unwrap().is_empty());
    }

    #[test]
    fn a_directory_that_others_use_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
        let shared = directory.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        set_mode(&shared, 0o1777).unwrap();
        for _ in 0..2 {
            drop(State::open(&shared).unwrap());
            assert_eq!(mode(&shared), 0o1777);
        }
        let others = directory.path().join("others");
        std::fs::create_dir(&others).unwrap();
        std::fs::write(others.join("file"), "").unwrap();
        set_mode(&others, 0o755).unwrap();
        for _ in 0..2 {
            drop(State::open(&others).unwrap());
            assert_eq!(mode(&others), 0o755);
            assert_eq!(mode(&others.join("file")), 0o644);
            assert_eq!(mode(&others.join("millpond.lock")), 0o600);
        }
    }
}
