//! The record of changes: one line of JSON for each request that changes something, whoever asks,
//! with who, from where, what about and what came of it. What the request says besides is not put
//! there, so no secret is.
//!
//! `audit.jsonl` in the state directory, and older ones, `audit.jsonl.1` being the newest of these.
//! What was refused because of who asked is in `audit-refused.jsonl`: strangers can make any number
//! of such requests, which must not push out what was done.
//! A line is there before the request is answered, though perhaps not on disk if the power fails;
//! a crash leaves whole lines, perhaps but for the last, which is left out when they are read. Room
//! for it is there before the change is made ([`Audit::make_room`]): where the state directory is
//! full, nothing is changed that could not be put on record.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::{AuditEntry, AuditListReply, Call, Failure, FailureKind};
use parking_lot::Mutex;
use serde_json::Value;

/// Size at which a file is put aside, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Files that were put aside and are kept.
const OLD_FILES: usize = 8;
/// Records that are told at most, and where nothing else is asked for.
const LIMIT_MAX: u32 = 1000;
const LIMIT: u32 = 100;
/// Things that a record names at most, and characters of each.
const ABOUT_MAX: usize = 16;
const ABOUT_LENGTH_MAX: usize = 256;

/// Fields that say what a request is about; what is in others is not put on record.
const ABOUT: [&str; 21] = [
    "name",
    "names",
    "target",
    "pool",
    "dataset",
    "snapshot",
    "snapshots",
    "filesystem",
    "from",
    "to",
    "device",
    "user",
    "id",
    "path",
    "paths",
    "owner",
    "group",
    "mode",
    "members",
    "uid",
    "gid",
];

/// Room that is made for a record, in bytes: a record is shorter.
const ROOM_BYTES: u64 = 32 << 10;
/// Records that there is room for at most, however many changes are under way.
const ROOMS_MAX: u64 = 32;

/// Of what was refused.
const OLD_REFUSED_FILES: usize = 1;

/// The record.
pub struct Audit {
    done: Log,
    refused: Log,
    /// How many changes are under way that there is room for.
    rooms: AtomicUsize,
}

/// Room for the record of a change, while it is made.
pub struct Room(Arc<Audit>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.rooms.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lines in a file, and in older ones.
struct Log {
    path: PathBuf,
    old_files: usize,
    file: Mutex<Option<(File, u64)>>,
}

/// What a request is about: pools, datasets, devices, users.
pub fn about<C: Call>(call: &C) -> Vec<String> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(call) else {
        return Vec::new();
    };
    // A request that has what it wants as a whole is about what that is about.
    if let Some(Value::Object(wanted)) = fields.shift_remove("wanted") {
        fields.extend(wanted);
    }
    let mut out = Vec::new();
    for (name, value) in fields {
        if !ABOUT.contains(&name.as_str()) {
            continue;
        }
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            let text = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                _ => continue,
            };
            if out.len() < ABOUT_MAX {
                out.push(text.chars().take(ABOUT_LENGTH_MAX).collect());
            }
        }
    }
    out
}

impl Audit {
    /// The record of a state directory.
    pub fn new(directory: &Path) -> Self {
        let log = |name: &str, old_files| Log {
            path: directory.join(name),
            old_files,
            file: Mutex::new(None),
        };
        Self {
            done: log("audit.jsonl", OLD_FILES),
            refused: log("audit-refused.jsonl", OLD_REFUSED_FILES),
            rooms: AtomicUsize::new(0),
        }
    }

    /// Makes room for the record of a change that is about to be made.
    ///
    /// # Errors
    /// [`FailureKind::NoSpace`], [`FailureKind::Io`]: the change could not be put on record.
    pub async fn make_room(self: Arc<Self>) -> Result<Room, Failure> {
        let rooms = self.rooms.fetch_add(1, Ordering::Relaxed) as u64 + 1;
        let room = Room(self);
        tokio::task::spawn_blocking(move || {
            let log = &room.0.done;
            log.make_room(rooms.min(ROOMS_MAX) * ROOM_BYTES)
                .map_err(|error| {
                    let kind = match error.kind() {
                        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                            FailureKind::NoSpace
                        }
                        _ => FailureKind::Io,
                    };
                    let message = format!(
                        "nothing is changed, as it could not be put on record: {}: {error}; make \
                         room in the state directory",
                        log.path.display()
                    );
                    Failure::new(kind, message)
                })?;
            Ok(room)
        })
        .await
        .map_err(|error| Failure::new(FailureKind::Other, error.to_string()))?
    }

    /// Puts a request on record. The log says where that fails, and the request is answered.
    pub async fn record(self: std::sync::Arc<Self>, entry: AuditEntry) {
        let written = tokio::task::spawn_blocking(move || {
            let log = match entry.failure {
                // Who tries too often is not even heard.
                Some(FailureKind::TooMany) => return Ok(()),
                Some(
                    FailureKind::Unauthenticated | FailureKind::CodeNeeded | FailureKind::Denied,
                ) => &self.refused,
                _ => &self.done,
            };
            let written = log.write(&entry);
            written.map_err(|error| format!("{}: {error}", log.path.display()))
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("a change is not on record: {error}"),
            Err(error) => tracing::error!("a change is not on record: {error}"),
        }
    }

    /// The last records, the newest first.
    pub fn list(&self, limit: Option<u32>) -> Result<AuditListReply, Failure> {
        let limit = limit.unwrap_or(LIMIT).min(LIMIT_MAX) as usize;
        let mut entries = self.done.list(limit)?;
        entries.extend(self.refused.list(limit)?);
        entries.sort_by_key(|entry: &AuditEntry| std::cmp::Reverse(entry.time_s));
        entries.truncate(limit);
        Ok(AuditListReply { entries })
    }
}

impl Log {
    fn old(&self, number: usize) -> PathBuf {
        self.path.with_extension(format!("jsonl.{number}"))
    }

    fn write(&self, entry: &AuditEntry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let mut file = self.file.lock();
        let (file, bytes) = self.opened(&mut file, line.len() as u64)?;
        file.write_all(&line)?;
        *bytes += line.len() as u64;
        Ok(())
    }

    /// Has the filesystem keep so much free for what is written next.
    fn make_room(&self, room_bytes: u64) -> io::Result<()> {
        let mut file = self.file.lock();
        let (file, bytes) = self.opened(&mut file, room_bytes)?;
        let kept = rustix::fs::fallocate(
            file,
            rustix::fs::FallocateFlags::KEEP_SIZE,
            *bytes,
            room_bytes,
        );
        match kept {
            // A filesystem that cannot says so when the record is written.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            kept => Ok(kept?),
        }
    }

    /// The file, with its length; another one where this much would make it too long.
    fn opened<'a>(
        &self,
        file: &'a mut Option<(File, u64)>,
        more_bytes: u64,
    ) -> io::Result<&'a mut (File, u64)> {
        if let Some((_, bytes)) = &*file
            && *bytes + more_bytes > FILE_BYTES_MAX
        {
            *file = None;
            for number in (1..self.old_files).rev() {
                rename_if_there(&self.old(number), &self.old(number + 1))?;
            }
            rename_if_there(&self.path, &self.old(1))?;
        }
        if file.is_none() {
            let opened = OpenOptions::new()
                .create(true)
                .append(true)
                .read(true)
                .mode(0o600)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
                .open(&self.path)?;
            let mut bytes = opened.metadata()?.len();
            // The line that a crash cut off stays a line of its own.
            if bytes > 0 && !ends_a_line(&opened, bytes)? {
                (&opened).write_all(b"\n")?;
                bytes += 1;
            }
            *file = Some((opened, bytes));
        }
        file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The last records, the newest first.
    fn list(&self, limit: usize) -> Result<Vec<AuditEntry>, Failure> {
        let _still = self.file.lock();
        let mut entries = Vec::new();
        let paths = std::iter::once(self.path.clone());
        for path in paths.chain((1..=self.old_files).map(|number| self.old(number))) {
            if entries.len() >= limit {
                break;
            }
            let mut text = Vec::new();
            match File::open(&path) {
                Ok(file) => {
                    let read = file.take(2 * FILE_BYTES_MAX).read_to_end(&mut text);
                    read.map_err(|error| {
                        let message = format!("{} cannot be read: {error}", path.display());
                        Failure::new(FailureKind::Io, message)
                    })?;
                }
                Err(_) => break,
            }
            let lines = text.rsplit(|byte| *byte == b'\n');
            let read = lines.filter_map(|line| serde_json::from_slice(line).ok());
            entries.extend(read.take(limit - entries.len()));
        }
        Ok(entries)
    }
}

fn ends_a_line(file: &File, bytes: u64) -> io::Result<bool> {
    let mut last = [0];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut last, bytes - 1)?;
    Ok(last == *b"\n")
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

#[cfg(test)]
mod tests {
    use api::AuditVia;

    use super::*;

    fn entry(number: u64) -> AuditEntry {
        AuditEntry {
            time_s: number,
            via: AuditVia::Session,
            user: Some("ann".into()),
            uid: None,
            address: Some("192.0.2.1".into()),
            path: "/v1/zfs/destroy".into(),
            about: vec!["tank/a".into()],
            failure: None,
        }
    }

    #[test]
    fn records_are_kept_in_order_over_crashes_and_files() {
        let directory = tempfile::tempdir().unwrap();
        let audit = Audit::new(directory.path());
        assert!(audit.list(None).unwrap().entries.is_empty());
        for number in 0..3 {
            audit.done.write(&entry(number)).unwrap();
        }
        // Cut off by a crash.
        let path = directory.path().join("audit.jsonl");
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 10]).unwrap();
        let audit = Audit::new(directory.path());
        audit.done.write(&entry(3)).unwrap();
        let times = |limit| {
            let entries = audit.list(limit).unwrap().entries;
            entries.iter().map(|entry| entry.time_s).collect::<Vec<_>>()
        };
        assert_eq!(times(None), [3, 1, 0]);
        // As if it were full.
        audit.done.file.lock().as_mut().unwrap().1 = FILE_BYTES_MAX;
        audit.done.write(&entry(4)).unwrap();
        audit.done.write(&entry(5)).unwrap();
        assert_eq!(times(None), [5, 4, 3, 1, 0]);
        assert_eq!(times(Some(3)), [5, 4, 3]);
        for number in 0..2 * OLD_FILES as u64 {
            audit.done.file.lock().as_mut().unwrap().1 = FILE_BYTES_MAX;
            audit.done.write(&entry(10 + number)).unwrap();
        }
        assert_eq!(times(None).len(), OLD_FILES + 1);
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            OLD_FILES + 1
        );
    }

    #[test]
    fn secrets_are_not_put_on_record() {
        let call = api::UserAdd {
            name: "ann".into(),
            role: api::Role::Admin,
            password: api::Secret("a long password".into()),
        };
        assert_eq!(about(&call), ["ann"]);
        let key = api::NewKey {
            key: api::Secret("0f".repeat(32)),
            salt: 1,
        };
        let call = api::ZfsChangeKey {
            name: "tank/a".into(),
            key: Some(key.clone()),
            ..api::ZfsChangeKey::default()
        };
        assert_eq!(about(&call), ["tank/a"]);
        assert!(!format!("{call:?}").contains("0f0f"));
        let call = api::ZfsCreate {
            name: "tank/b".into(),
            key: Some(key),
            ..api::ZfsCreate::default()
        };
        assert_eq!(about(&call), ["tank/b"]);
        assert!(!format!("{call:?}").contains("0f0f"));
        let call = api::ZfsSnapshot {
            names: vec!["a@b".into(), "c@d".into()],
            ..api::ZfsSnapshot::default()
        };
        assert_eq!(about(&call), ["a@b", "c@d"]);
    }

    #[test]
    fn who_is_given_what_is_on_record() {
        let call = api::FileAccessSet {
            dataset: "tank/a".into(),
            path: "sub".into(),
            owner: Some("ann".into()),
            ..api::FileAccessSet::default()
        };
        assert_eq!(about(&call), ["tank/a", "sub", "ann"]);
        let call = api::GroupAdd {
            name: "photos".into(),
            gid: Some(3001),
            members: vec!["ann".into(), "bob".into()],
        };
        assert_eq!(about(&call), ["photos", "3001", "ann", "bob"]);
    }

    #[test]
    fn what_a_request_wants_is_what_it_is_about() {
        let wanted = r#"{"wanted": {"dataset": "tank/a", "profile": "sio", "depths": [1]}}"#;
        let call: api::BenchRun = serde_json::from_str(wanted).unwrap();
        assert_eq!(about(&call), ["tank/a"]);
    }

    /// Nothing is changed that cannot be put on record.
    #[tokio::test]
    async fn there_is_room_for_a_record_before_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let audit = Arc::new(Audit::new(directory.path()));
        std::fs::create_dir(&path).unwrap();
        let refused = audit.clone().make_room().await.err().unwrap();
        assert!(refused.message.contains("nothing is changed"), "{refused}");
        std::fs::remove_dir(&path).unwrap();
        let rooms = [
            audit.clone().make_room().await.unwrap(),
            audit.clone().make_room().await.unwrap(),
        ];
        let found = path.metadata().unwrap();
        assert_eq!(found.len(), 0);
        let kept_bytes = std::os::unix::fs::MetadataExt::blocks(&found) * 512;
        assert!(kept_bytes >= 2 * ROOM_BYTES, "{kept_bytes}");
        audit.clone().record(entry(1)).await;
        drop(rooms);
        assert_eq!(audit.rooms.load(Ordering::Relaxed), 0);
        assert_eq!(audit.list(None).unwrap().entries.len(), 1);
    }

    /// What strangers try pushes out nothing that was done.
    #[tokio::test]
    async fn what_is_refused_is_kept_apart() {
        let directory = tempfile::tempdir().unwrap();
        let audit = std::sync::Arc::new(Audit::new(directory.path()));
        let refused = |number, failure| AuditEntry {
            failure: Some(failure),
            ..entry(number)
        };
        audit.clone().record(entry(1)).await;
        let tried = refused(2, FailureKind::Unauthenticated);
        audit.clone().record(tried).await;
        audit.clone().record(refused(3, FailureKind::TooMany)).await;
        audit.clone().record(refused(4, FailureKind::Busy)).await;
        let lines = |name: &str| {
            let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
            text.lines().count()
        };
        assert_eq!((lines("audit.jsonl"), lines("audit-refused.jsonl")), (2, 1));
        let listed = audit.list(None).unwrap().entries.into_iter();
        let times: Vec<u64> = listed.map(|entry| entry.time_s).collect();
        assert_eq!(times, [4, 2, 1]);
    }
}
