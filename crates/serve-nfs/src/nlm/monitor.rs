//! Clients of version 3 that have locks, on stable storage, so that after a restart they are told
//! of it and lock again what they had, and nobody else gets it meanwhile (X/Open's Protocols for
//! Interworking, XNFS version 3W, chapter 11: what lockd and statd are to each other, is one here).
//!
//! A directory holds a file for each client that has locks, or had some within the last minute. It
//! is there before the client hears that it has its first lock, and goes when it has none any more.
//! A crash leaves a record too many, never one too few: who has nothing is told for nothing.
//!
//! After a start that finds such records there is a grace: locks are given to who says that he had
//! them. Then what has not come back is forgotten.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use device::private;
use parking_lot::Mutex;

const PREFIX: &str = "locks-";
/// Clients that are remembered.
const CLIENTS_MAX: usize = 4096;
/// Those of one address: a host has one name, or a few.
const OF_ADDRESS_MAX: usize = 64;
/// Longest record: an address, and a name.
const RECORD_BYTES_MAX: u64 = 2048;
/// Bytes of a record that name its file.
const NAMING_BYTES: usize = 96;
/// How long locks are only taken back: clients are told at once, and some are slow to answer.
pub(crate) const GRACE: Duration = Duration::from_secs(45);
/// How often is looked who has no locks any more.
const SWEEP: Duration = Duration::from_secs(60);

/// A client, as it is told from others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) address: IpAddr,
    /// What it calls itself.
    pub(crate) machine: Bytes,
}

impl Client {
    fn record(&self) -> Vec<u8> {
        let mut record = self.address.to_string().into_bytes();
        record.push(b'\n');
        record.extend_from_slice(&self.machine);
        record
    }

    fn parse(record: &[u8]) -> Option<Self> {
        let at = record.iter().position(|byte| *byte == b'\n')?;
        let address = std::str::from_utf8(&record[..at]).ok()?.parse().ok()?;
        let machine = Bytes::copy_from_slice(&record[at + 1..]);
        Some(Self { address, machine })
    }

    /// The name of its file: nobody else's, unless both call themselves by the same hundred bytes.
    fn file_name(&self) -> String {
        let mut name = PREFIX.to_owned();
        for byte in self.record().iter().take(NAMING_BYTES) {
            // Writing into a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }
}

/// Reads bytes as a record: for fuzzers.
pub(crate) fn decode_for_fuzzing(data: &[u8]) {
    if let Some(client) = Client::parse(data) {
        assert_eq!(Client::parse(&client.record()), Some(client));
    }
}

#[derive(Debug)]
struct State {
    /// Those on record.
    recorded: HashSet<Client>,
    /// Those of an earlier run, until the grace is over.
    before: HashSet<Client>,
    /// From the first request on.
    grace_ends: Option<Instant>,
    swept: Instant,
}

impl State {
    /// Whether a client is to be put on record, and there is room.
    fn may_record(&self, client: &Client) -> bool {
        let of_address = self.recorded.iter();
        let of_address = of_address.filter(|other| other.address == client.address);
        !self.recorded.contains(client)
            && self.recorded.len() < CLIENTS_MAX
            && of_address.count() < OF_ADDRESS_MAX
    }
}

/// Who has locks.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// Nowhere, as in a test.
    directory: Option<PathBuf>,
    state: Mutex<State>,
    /// Held while a record is written or removed.
    writing: tokio::sync::Mutex<()>,
}

impl Monitor {
    /// What an earlier run left in a directory.
    pub(crate) fn load(directory: Option<&Path>) -> Self {
        let before = directory.map_or_else(HashSet::new, |directory| {
            read(directory).unwrap_or_else(|error| {
                let directory = directory.display();
                tracing::warn!(%directory, %error, "NFS clients with locks cannot be told");
                HashSet::new()
            })
        });
        Self {
            directory: directory.map(Path::to_owned),
            state: Mutex::new(State {
                recorded: before.clone(),
                before,
                grace_ends: None,
                swept: Instant::now(),
            }),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Those that an earlier run gave locks: they are to be told that these are gone.
    pub(crate) fn before(&self) -> Vec<Client> {
        self.state.lock().before.iter().cloned().collect()
    }

    /// Whether locks are given only to who had them before.
    pub(crate) fn is_grace(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.before.is_empty() {
            return false;
        }
        let ends = *state.grace_ends.get_or_insert(now + GRACE);
        if now < ends {
            return true;
        }
        state.before.clear();
        // At the next lock.
        state.swept = now.checked_sub(SWEEP).unwrap_or(now);
        tracing::info!("NFS clients of version 3 that have not locked again lose what they had");
        false
    }

    fn is_recorded(&self, client: &Client) -> bool {
        self.state.lock().recorded.contains(client)
    }

    /// Puts a client on record that is about to have a lock, or has just got one: whoever has one
    /// is on record before it hears so. Where that cannot be it gets the lock all the same.
    pub(crate) async fn watch(&self, client: &Client) {
        if self.is_recorded(client) {
            return;
        }
        let Some(directory) = self.directory.clone() else {
            return;
        };
        let _alone = self.writing.lock().await;
        if !self.state.lock().may_record(client) {
            return;
        }
        let (path, record) = (directory.join(client.file_name()), client.record());
        match blocking(move || private::write(&path, &record)).await {
            Ok(()) => {
                self.state.lock().recorded.insert(client.clone());
            }
            Err(error) => tracing::warn!(
                %error,
                "an NFS client cannot be remembered: after a restart it is not told of its locks"
            ),
        }
    }

    /// Takes those off the record, from time to time, who have no locks any more by what
    /// `have_locks` says. Who gets one meanwhile is put on it again ([`Self::watch`]).
    pub(crate) async fn sweep(&self, now: Instant, have_locks: impl FnOnce() -> HashSet<Client>) {
        {
            let mut state = self.state.lock();
            if now.duration_since(state.swept) < SWEEP || !state.before.is_empty() {
                return;
            }
            state.swept = now;
        }
        let Some(directory) = self.directory.clone() else {
            return;
        };
        let _alone = self.writing.lock().await;
        let gone: Vec<Client> = {
            let mut state = self.state.lock();
            // Asked under the lock by which others are found on record.
            let have_locks = have_locks();
            let gone = state.recorded.difference(&have_locks);
            let gone: Vec<Client> = gone.cloned().collect();
            for client in &gone {
                state.recorded.remove(client);
            }
            gone
        };
        if gone.is_empty() {
            return;
        }
        let remove = move || {
            for client in gone {
                match fs::remove_file(directory.join(client.file_name())) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            File::open(&directory)?.sync_all()
        };
        if let Err(error) = blocking(remove).await {
            tracing::warn!(%error, "records of NFS clients that have no locks cannot be removed");
        }
    }
}

/// Does what may block, to its end.
async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn read(directory: &Path) -> io::Result<HashSet<Client>> {
    let mut clients = HashSet::new();
    let listed = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(clients),
        listed => listed?,
    };
    for entry in listed {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        if entry.metadata()?.len() > RECORD_BYTES_MAX || clients.len() >= CLIENTS_MAX {
            continue;
        }
        let client = Client::parse(&fs::read(entry.path())?);
        clients.extend(client.filter(|client| client.file_name() == name));
    }
    Ok(clients)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> Client {
        Client {
            address: IpAddr::from([10, 0, 0, last]),
            machine: Bytes::from_static(b"name\nwith a line"),
        }
    }

    /// Goal: who has locks is found after a restart and waited for, others are not.
    #[tokio::test]
    async fn clients_with_locks_are_waited_for_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nfs");
        let start = Instant::now();
        let first = Monitor::load(Some(&path));
        assert!(!first.is_grace(start));
        fs::create_dir(&path).unwrap();
        for last in [1, 2, 2] {
            first.watch(&client(last)).await;
        }
        fs::write(path.join("locks-00"), b"else").unwrap();
        let second = Monitor::load(Some(&path));
        let before: HashSet<Client> = second.before().into_iter().collect();
        assert_eq!(before, HashSet::from([client(1), client(2)]));
        assert!(second.is_grace(start) && second.is_grace(start + GRACE / 2));
        let late = start + GRACE + SWEEP;
        second.sweep(late, HashSet::new).await;
        assert_eq!(Monitor::load(Some(&path)).before().len(), 2);
        assert!(!second.is_grace(late));
        second.sweep(late, || HashSet::from([client(2)])).await;
        assert_eq!(Monitor::load(Some(&path)).before(), [client(2)]);
        // No host takes all the room.
        for number in 0..2 * OF_ADDRESS_MAX {
            let machine = Bytes::from(format!("name {number}"));
            let address = client(3).address;
            second.watch(&Client { address, machine }).await;
        }
        let recorded = Monitor::load(Some(&path)).before().len();
        assert_eq!(recorded, 1 + OF_ADDRESS_MAX);
        second
            .sweep(late + SWEEP, || HashSet::from([client(2)]))
            .await;
        // Who comes again is on record again.
        second.watch(&client(1)).await;
        assert_eq!(Monitor::load(Some(&path)).before().len(), 2);
    }
}
