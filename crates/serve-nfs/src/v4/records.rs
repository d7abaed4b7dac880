//! Clients on stable storage, so that after a restart those that had files open or locked get them
//! back, and nobody else does (RFC 8881 section 8.4.2.1).
//!
//! A directory holds a file for each client that has said that it has reclaimed all it wants
//! (RECLAIM_COMPLETE), with the client's name as its content; it is there before the client can
//! open anything anew. When the client goes, or loses what it has, its record is doomed, and it is
//! removed before anybody hears that he got something ([`Records::settled`]). A crash in between
//! leaves a record too many, never one too few: its client may reclaim what nobody else was told to
//! have.
//!
//! Locks: `writing` is held while the directory is changed, and never by who has another lock of
//! NFS; `doomed` is short, and below all others.
//!
//! The server's own name is there too: clients that find another one after a restart take it for
//! another server, and do not reclaim.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use device::private;
use parking_lot::Mutex;

/// The file with the server's name.
const SERVER_NAME: &str = "server";
const CLIENT_PREFIX: &str = "client-";
/// Clients that are read.
const CLIENTS_MAX: usize = 4096;
/// Longest name of a client.
const OWNER_BYTES_MAX: u64 = 1024;

/// Where clients are remembered; `None` nowhere, as in a test.
#[derive(Debug)]
pub(crate) struct Records {
    directory: Option<PathBuf>,
    /// One is written at a time.
    writing: Mutex<()>,
    /// Clients whose records are to be removed.
    doomed: Mutex<Vec<Bytes>>,
    /// Who waits for that has this, so that few threads wait for `writing`.
    settling: tokio::sync::Mutex<()>,
}

impl Records {
    fn of(directory: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            directory,
            writing: Mutex::default(),
            doomed: Mutex::default(),
            settling: tokio::sync::Mutex::default(),
        })
    }
}

/// What was found of an earlier run.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) records: Arc<Records>,
    /// Names of clients that may reclaim.
    pub(crate) owners: HashSet<Bytes>,
    /// The server's name.
    pub(crate) server: String,
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

/// FNV-1a, twice with different beginnings: names files, and tells nothing apart that matters.
fn file_name(owner: &[u8]) -> String {
    let hash = |start: u64| {
        owner.iter().fold(start, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let (one, other) = (hash(0xcbf2_9ce4_8422_2325), hash(0x9e37_79b9_7f4a_7c15));
    format!("{CLIENT_PREFIX}{}{}", hex(one), hex(other))
}

impl Records {
    /// What an earlier run left in `directory`, which is made if it is not there. `random` names
    /// the server where it has no name yet.
    pub(crate) fn load(directory: Option<PathBuf>, random: u64) -> Found {
        let nothing = |directory| Found {
            records: Records::of(directory),
            owners: HashSet::new(),
            server: hex(random),
        };
        let Some(directory) = directory else {
            return nothing(None);
        };
        match Self::read(&directory, random) {
            Ok((owners, server)) => Found {
                records: Records::of(Some(directory)),
                owners,
                server,
            },
            Err(error) => {
                tracing::warn!(
                    directory = %directory.display(), %error,
                    "NFS clients cannot be remembered: after a restart they lose their locks"
                );
                nothing(None)
            }
        }
    }

    fn read(directory: &Path, random: u64) -> io::Result<(HashSet<Bytes>, String)> {
        fs::create_dir_all(directory)?;
        let server = match fs::read_to_string(directory.join(SERVER_NAME)) {
            Ok(name) if name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                name
            }
            // It may be readable the next time, and clients know it.
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidData
                ) =>
            {
                return Err(error);
            }
            _ => {
                private::write(&directory.join(SERVER_NAME), hex(random).as_bytes())?;
                hex(random)
            }
        };
        let mut owners = HashSet::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_client = name
                .to_str()
                .is_some_and(|name| name.starts_with(CLIENT_PREFIX));
            if !is_client || entry.metadata()?.len() > OWNER_BYTES_MAX {
                continue;
            }
            let owner = Bytes::from(fs::read(entry.path())?);
            if owners.len() < CLIENTS_MAX && name.to_str() == Some(&file_name(&owner)) {
                owners.insert(owner);
            }
        }
        Ok((owners, server))
    }

    /// Remembers a client, also where its record was doomed before. May block.
    pub(crate) fn add(&self, owner: &[u8]) -> io::Result<()> {
        let _alone = self.writing.lock();
        self.doomed.lock().retain(|doomed| doomed != owner);
        match &self.directory {
            Some(directory) => private::write(&directory.join(file_name(owner)), owner),
            None => Ok(()),
        }
    }

    /// Forgets a client: its record goes with [`Self::settled`]. Does not block.
    pub(crate) fn doom(&self, owner: &Bytes) {
        if self.directory.is_some() {
            self.doomed.lock().push(owner.clone());
        }
    }

    /// Completes when no record is there any more of a client that was forgotten before this was
    /// called. It may be given up without harm.
    pub(crate) async fn settled(self: &Arc<Self>) {
        if self.doomed.lock().is_empty() {
            return;
        }
        let _alone = self.settling.lock().await;
        if self.doomed.lock().is_empty() {
            return;
        }
        let records = Arc::clone(self);
        // It does not panic.
        let _ = tokio::task::spawn_blocking(move || records.remove_doomed()).await;
    }

    /// May block.
    fn remove_doomed(&self) {
        let Some(directory) = &self.directory else {
            return;
        };
        let _alone = self.writing.lock();
        let doomed = self.doomed.lock().clone();
        if doomed.is_empty() {
            return;
        }
        let (mut has_removed, mut failed) = (false, None);
        // One that stays is not to keep the others.
        for owner in &doomed {
            match fs::remove_file(directory.join(file_name(owner))) {
                Ok(()) => has_removed = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => failed = Some(error),
            }
        }
        // Clients that come and go without ever having had a record cost nobody a flush.
        if has_removed {
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            failed = failed.or(synced.err());
        }
        if let Some(error) = failed {
            tracing::warn!(%error, "records of NFS clients cannot be removed");
        }
        // Only who is `alone` takes any out, and others put theirs behind these.
        self.doomed.lock().drain(..doomed.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn clients_are_found_again_until_they_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let load = |random| Records::load(Some(directory.path().join("nfs")), random);
        let first = load(7);
        assert!(first.owners.is_empty() && first.server == hex(7));
        first.records.add(b"one").unwrap();
        first.records.add(b"other").unwrap();
        first.records.add(b"one").unwrap();
        let second = load(8);
        assert_eq!(second.server, hex(7));
        let expected = [&b"one"[..], b"other"].map(Bytes::from_static);
        assert_eq!(second.owners, expected.into_iter().collect());
        for owner in [&b"one"[..], b"nobody", b"other"] {
            second.records.doom(&Bytes::from_static(owner));
        }
        assert_eq!(load(9).owners.len(), 2);
        // It has come back since.
        second.records.add(b"other").unwrap();
        second.records.settled().await;
        let expected = HashSet::from([Bytes::from_static(b"other")]);
        assert_eq!(load(9).owners, expected);
        second.records.settled().await;
        assert_eq!(load(9).owners, expected);
        // A name that cannot be read is not given up.
        let path = directory.path().join("nfs").join(SERVER_NAME);
        fs::rename(&path, directory.path().join("kept")).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(load(9).owners.is_empty());
        fs::remove_dir(&path).unwrap();
        fs::rename(directory.path().join("kept"), &path).unwrap();
        assert_eq!(load(9).server, hex(7));
        // What is damaged is no client's.
        let name = file_name(b"other");
        fs::write(directory.path().join("nfs").join(name), b"else").unwrap();
        assert!(load(9).owners.is_empty());
        assert!(Records::load(None, 3).owners.is_empty());
    }
}
