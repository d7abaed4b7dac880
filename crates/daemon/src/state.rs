//! The state directory: the lock that keeps two daemons apart, and the list of pools to import at
//! the next start.
//!
//! `pools.json` is replaced whole (written beside, synced, renamed), so a crash leaves the old list
//! or the new one. It is a hint only: what pools hold is on their own devices.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::DaemonError;

/// How often and how long to wait for the lock: a daemon that has answered `millpond down` holds it until its process has ended.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// A pool to import at the next start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedPool {
    /// Name when it was last open.
    pub(crate) name: String,
    /// Identity.
    pub(crate) guid: u64,
    /// The identity that it was just being given (`zpool reguid`): it has the one or the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next_guid: Option<u64>,
    /// Where its devices were.
    pub(crate) devices: Vec<String>,
    /// Whether it was imported read-only.
    #[serde(default)]
    pub(crate) read_only: bool,
}

impl CachedPool {
    /// Whether a pool of this identity is it.
    pub(crate) fn is(&self, guid: u64) -> bool {
        self.guid == guid || self.next_guid == Some(guid)
    }
}

/// The state directory, locked.
#[derive(Debug)]
pub(crate) struct State {
    directory: PathBuf,
    _lock: File,
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
    /// Makes the directory where needed and locks it.
    pub(crate) fn open(directory: &Path) -> Result<Self, DaemonError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| DaemonError::State { path, source }
        };
        std::fs::create_dir_all(directory).map_err(failed(directory))?;
        let lock_path = directory.join("millpond.lock");
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
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
            return Err(DaemonError::Running {
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
        Ok(Self {
            directory: directory.to_owned(),
            _lock: lock,
        })
    }

    /// The directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The pools to import, none where the list is missing or unreadable.
    pub(crate) fn cached_pools(&self) -> Vec<CachedPool> {
        let path = self.directory.join("pools.json");
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!(
                    "{} is damaged ({error}); import the pools by hand",
                    path.display()
                );
                Vec::new()
            }),
            Err(_) => Vec::new(),
        }
    }

    /// Replaces the list.
    pub(crate) fn set_cached_pools(&self, pools: &[CachedPool]) -> io::Result<()> {
        let path = self.directory.join("pools.json");
        let beside = self.directory.join("pools.json.new");
        let mut file = File::create(&beside)?;
        serde_json::to_writer_pretty(&mut file, pools)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)
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
    fn the_list_of_pools_survives_and_damage_to_it_is_no_obstacle() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        assert!(state.cached_pools().is_empty());
        let pools = vec![CachedPool {
            name: "tank".into(),
            guid: 7,
            next_guid: None,
            devices: vec!["/d/a".into()],
            read_only: false,
        }];
        state.set_cached_pools(&pools).unwrap();
        assert_eq!(state.cached_pools(), pools);
        std::fs::write(directory.path().join("pools.json"), "[{").unwrap();
        assert!(state.cached_pools().is_empty());
    }
}
