//! Files in OpenZFS's format that name pools, where property `cachefile` asks for one: for `zpool
//! import -c`, here or of OpenZFS. The pools of such a file are imported by whoever reads it, and
//! not by the next start of the server.
//!
//! They are written whenever the list of pools for the next start is, with the pools that name
//! them and can be written; a file that no pool names any more is removed. What is something else
//! is never written over nor removed. As the server leaves, they stay as they are. One is replaced
//! whole, from a file beside it of this process's own (`.NAME.millpond-PID.NUMBER`), which a crash
//! may leave; what is there of that name already stays.
//!
//! No file is on a filesystem that a process serves, this server perhaps: who asks one may wait for
//! ever. What mounts there are tells so, before anything is asked. Links may lead there all the
//! same; so one thread of its own writes, which holds nothing of the process's, and is not waited
//! for forever.
//!
//! Source: module/zfs/spa_config.c (`spa_write_cachefile`).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use format::{NvEncoding, NvList, NvValue};
use parking_lot::{Condvar, Mutex};
use pool::Pool;
use rustix::fs::OFlags;
use tokio::runtime::{Handle, RuntimeFlavor};

/// How long a command waits for the files.
const PATIENCE: Duration = Duration::from_secs(5);
/// No file of pools is longer.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Mode of a file.
const FILE_MODE: u32 = 0o600;
/// The last number of a file beside one.
const BESIDE_MAX: u32 = 99;
/// What OpenZFS's module reads at its start.
const OPENZFS: [&str; 2] = ["/etc/zfs/zpool.cache", "/boot/zfs/zpool.cache"];
/// Why no cache file can be where something else is.
const OTHER: &str = "something else than a cache file of pools is there";

/// Which files are to be, with what is to be in them.
type Wanted = BTreeMap<PathBuf, NvList>;

/// What was written.
#[derive(Default)]
struct Written {
    /// The last of what was asked for that was done.
    number: u64,
    /// The files that are there.
    files: BTreeSet<PathBuf>,
}

/// What was asked for.
#[derive(Default)]
struct Asked {
    /// How often.
    number: u64,
    /// Whether there ever was a file.
    is_used: bool,
    /// Whether pools go only because the server leaves or the power fails.
    is_leaving: bool,
    /// Whether files that are there are nobody's: they stay.
    is_left: bool,
    /// What is to be written next.
    next: Option<(u64, Wanted)>,
    /// Whether a thread is at it.
    is_busy: bool,
    /// Whether that was waited for in vain.
    is_late: bool,
    /// The last that was done.
    done: u64,
}

/// What the thread has in common with those that ask.
#[derive(Default)]
struct Shared {
    asked: Mutex<Asked>,
    written: Mutex<Written>,
    is_done: Condvar,
}

/// The files of the pools that are imported.
///
/// Locks: `asked` comes before the table of pools; `written` is the thread's, while files are
/// written, and `asked` is not locked under it.
#[derive(Default)]
pub struct CacheFiles {
    shared: Arc<Shared>,
}

impl CacheFiles {
    /// Writes what the pools ask for that are here.
    pub fn write(&self, here: impl FnOnce() -> Vec<Arc<Pool>>) {
        let mut asked = self.shared.asked.lock();
        if asked.is_leaving {
            return;
        }
        // Of two that ask, the later one has seen what both did.
        let wanted = wanted(&here());
        asked.is_used |= !wanted.is_empty();
        if !asked.is_used {
            return;
        }
        asked.number += 1;
        let number = asked.number;
        asked.next = Some((number, wanted));
        if !asked.is_busy {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("cachefile".to_owned());
            asked.is_busy = thread.spawn(move || shared.work()).is_ok();
        }
        // Who hangs is waited for once.
        let is_awaited = asked.is_busy && !asked.is_late;
        drop(asked);
        let is_done = is_awaited && in_place(|| self.shared.wait(number));
        if !is_done {
            tracing::warn!("the files that properties 'cachefile' name are not written yet");
        }
    }

    /// Pools go from now on only because the server leaves or the power fails: what is in the files
    /// stays there.
    pub fn leave(&self) {
        self.shared.asked.lock().is_leaving = true;
    }

    /// Pools come: those that went before do not count any more.
    pub fn go_on(&self) {
        let mut asked = self.shared.asked.lock();
        if asked.is_leaving {
            asked.is_leaving = false;
            asked.is_left = true;
        }
    }
}

impl Shared {
    /// Writes until nothing more is asked for.
    fn work(&self) {
        // Who holds nothing of the process's keeps nobody waiting, whatever it waits for itself.
        if let Err(error) = device::leave_descriptors() {
            tracing::debug!(%error, "a thread keeps the server's descriptors");
        }
        loop {
            let mut asked = self.asked.lock();
            let Some((number, wanted)) = asked.next.take() else {
                asked.is_busy = false;
                return;
            };
            let is_left = std::mem::take(&mut asked.is_left);
            drop(asked);
            let mut written = self.written.lock();
            if is_left {
                written.files.clear();
            }
            write_all(&mut written, number, &wanted);
            drop(written);
            let mut asked = self.asked.lock();
            asked.done = number;
            asked.is_late = false;
            drop(asked);
            self.is_done.notify_all();
        }
    }

    /// Waits until what was asked for is written, but not for ever; whether it is.
    fn wait(&self, number: u64) -> bool {
        let mut asked = self.asked.lock();
        let is_open = |asked: &mut Asked| asked.done < number;
        self.is_done.wait_while_for(&mut asked, is_open, PATIENCE);
        let is_done = asked.done >= number;
        asked.is_late |= !is_done;
        is_done
    }
}

/// Waits on this thread, whose other tasks the runtime does on another one meanwhile.
fn in_place<T>(wait: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

/// The file that a pool asks for.
fn file_of(pool: &Pool) -> Option<PathBuf> {
    let property = pool.properties().get("cachefile")?;
    property
        .value
        .starts_with('/')
        .then(|| property.value.into())
}

fn wanted(pools: &[Arc<Pool>]) -> Wanted {
    let mut wanted = Wanted::new();
    for pool in pools {
        if pool.is_read_only() {
            continue;
        }
        let Some(path) = file_of(pool) else {
            continue;
        };
        let config = pool.cached_config();
        let name = config.string("name").unwrap_or_default().to_owned();
        let list = wanted.entry(path).or_default();
        list.set(&name, NvValue::List(config));
    }
    wanted
}

fn write_all(written: &mut Written, number: u64, wanted: &Wanted) {
    if number < written.number {
        return;
    }
    written.number = number;
    for (path, pools) in wanted {
        match write_one(path, pools) {
            Ok(()) => {
                written.files.insert(path.clone());
            }
            Err(error) => tracing::warn!(
                "'{}', which the property 'cachefile' names, is not written: {error}",
                path.display()
            ),
        }
    }
    written.files.retain(|path| {
        let is_wanted = wanted.contains_key(path);
        if !is_wanted && let Err(error) = remove_one(path) {
            tracing::warn!("'{}' is not removed: {error}", path.display());
        }
        is_wanted
    });
}

fn write_one(path: &Path, pools: &NvList) -> io::Result<()> {
    let place = place_of(path)?.map_err(io::Error::other)?;
    if let Some(why) = obstacle_at(&place)? {
        return Err(io::Error::other(why));
    }
    let bytes = pools
        .encode(NvEncoding::Xdr)
        .map_err(|error| io::Error::other(error.to_string()))?;
    replace(&place, &bytes)
}

/// Replaces a file with these bytes, or makes it.
fn replace(place: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(directory), Some(name)) = (place.parent(), place.file_name()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let (beside, mut file) = create_beside(directory, name)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&beside, place));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&beside);
        return Err(error);
    }
    File::open(directory)?.sync_all()
}

/// Makes a file beside one of this name.
fn create_beside(directory: &Path, name: &OsStr) -> io::Result<(PathBuf, File)> {
    let (name, process) = (name.to_string_lossy(), std::process::id());
    let mut number = 0;
    loop {
        let path = directory.join(format!(".{name}.millpond-{process}.{number}"));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE);
        match options.open(&path) {
            Ok(file) => return Ok((path, file)),
            // Whoever's it is.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < BESIDE_MAX => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn remove_one(path: &Path) -> io::Result<()> {
    match obstacle(path) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Why no cache file can be put in this place; nothing where one can. It may take long.
///
/// # Errors
/// Those of the filesystem.
pub fn obstacle(path: &Path) -> io::Result<Option<&'static str>> {
    match place_of(path)? {
        Ok(place) => obstacle_at(&place),
        Err(why) => Ok(Some(why)),
    }
}

/// Where the links of a path lead to, but for the last name; or why no cache file can be there.
fn place_of(path: &Path) -> io::Result<Result<PathBuf, &'static str>> {
    const SERVED: &str = "a process serves that filesystem through FUSE";
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Err(OTHER));
    };
    // Nothing of it is asked before.
    if is_served(path) {
        return Ok(Err(SERVED));
    }
    let place = directory.canonicalize()?.join(name);
    if OPENZFS.iter().any(|own| place == Path::new(own)) {
        return Ok(Err(
            "it is OpenZFS's own, which would import the pool at its next start",
        ));
    }
    Ok(match is_served(&place) {
        true => Err(SERVED),
        false => Ok(place),
    })
}

/// What is in the way of a cache file where no link leads elsewhere.
fn obstacle_at(place: &Path) -> io::Result<Option<&'static str>> {
    match std::fs::symlink_metadata(place) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Ok(Some(OTHER)),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    // Something else may have come since.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(place)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Ok(Some(OTHER));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok((!bytes.is_empty() && !is_cache_file(&bytes)).then_some(OTHER))
}

/// Whether the text of a path leads to a filesystem that a process serves.
fn is_served(path: &Path) -> bool {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    is_served_in(&String::from_utf8_lossy(&mounts), path)
}

/// The same, where these are the mounts (proc_pid_mountinfo(5)).
fn is_served_in(mounts: &str, path: &Path) -> bool {
    let (mut longest, mut is_served) = (0, false);
    for line in mounts.lines() {
        let Some((before, kind)) = line.split_once(" - ") else {
            continue;
        };
        let place = before.split(' ').nth(4).unwrap_or_default();
        let place = place
            .replace("\\040", " ")
            .replace("\\011", "\t")
            .replace("\\012", "\n")
            .replace("\\134", "\\");
        // Of two at one place the later one covers the other.
        if place.len() >= longest && path.starts_with(&place) {
            (longest, is_served) = (place.len(), kind.starts_with("fuse"));
        }
    }
    is_served
}

fn is_cache_file(bytes: &[u8]) -> bool {
    // What is there may be anything: the list may take what its bytes are, times a few.
    let mut room = bytes.len().saturating_mul(64);
    let mut take = |bytes: usize| match room.checked_sub(bytes) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    let Ok((pools, _)) = NvList::decode_within(bytes, &mut take) else {
        return false;
    };
    let is_pool =
        |value: &NvValue| matches!(value, NvValue::List(pool) if pool.contains("pool_guid"));
    !pools.is_empty() && pools.iter().all(|(_, value)| is_pool(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(names: &[&str]) -> NvList {
        let mut list = NvList::new();
        for name in names {
            let mut pool = NvList::new();
            pool.set("name", *name).set("pool_guid", 7u64);
            list.set(name, NvValue::List(pool));
        }
        list
    }

    fn wanted(files: &[(&Path, &[&str])]) -> Wanted {
        let files = files.iter();
        files
            .map(|(path, names)| (path.to_path_buf(), pools(names)))
            .collect()
    }

    fn names(path: &Path) -> Vec<String> {
        let bytes = std::fs::read(path).expect("a file");
        let pools = NvList::decode(&bytes).expect("a list");
        pools.iter().map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn mounts_tell_what_a_process_serves() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 22 0:50 / /tank/a\\040b rw shared:1 - fuse.millpond tank rw\n\
                      31 30 0:51 / /tank/a\\040b/c rw - tmpfs deeper rw\n\
                      32 22 0:52 / /over rw - fuse other rw\n\
                      33 32 0:53 / /over rw - ext4 /dev/sdb1 rw\n";
        for (path, expected) in [
            ("/tank/a b/cache", true),
            ("/tank/a b/c/cache", false),
            ("/tank/a bc/cache", false),
            ("/over/cache", false),
            ("/cache", false),
        ] {
            let told = is_served_in(mounts, Path::new(path));
            assert_eq!(told, expected, "{path}");
        }
    }

    #[test]
    fn files_beside_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("cache");
        let process = std::process::id();
        let others = [
            "cache.new".to_owned(),
            format!(".cache.millpond-{process}.0"),
        ];
        for name in &others {
            std::fs::write(directory.path().join(name), "mine").expect("a file");
        }
        write_one(&path, &pools(&["tank"])).expect("written");
        assert_eq!(names(&path), ["tank"]);
        for name in &others {
            let left = std::fs::read(directory.path().join(name)).expect("it");
            assert_eq!(left, b"mine");
        }
        let there = std::fs::read_dir(directory.path()).expect("a directory");
        assert_eq!(there.count(), 3, "nothing of one's own is left");
    }

    #[test]
    fn files_are_there_as_long_as_a_pool_names_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
        let mut written = Written::default();
        let first: Wanted = wanted(&[(&one, &["tank", "pond"])]);
        write_all(&mut written, 1, &first);
        assert_eq!(names(&one), ["tank", "pond"]);
        write_all(
            &mut written,
            3,
            &wanted(&[(&one, &["tank"]), (&two, &["pond"])]),
        );
        assert_eq!(names(&one), ["tank"]);
        assert_eq!(names(&two), ["pond"]);
        // Who asked before that comes too late.
        write_all(&mut written, 2, &first);
        assert_eq!(names(&one), ["tank"]);
        write_all(&mut written, 4, &wanted(&[(&two, &["pond"])]));
        assert!(!one.exists() && two.exists());
        std::fs::remove_file(&two).expect("somebody removes it");
        write_all(&mut written, 5, &Wanted::new());
        assert!(written.files.is_empty());
    }

    #[test]
    fn what_is_something_else_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("passwd");
        let target = directory.path().join("target");
        std::fs::write(&target, "").expect("a file");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        let other = NvList::new().set("name", "tank").encode(NvEncoding::Xdr);
        let other = other.expect("a list");
        for text in [
            b"root:x:0".as_slice(),
            [0u8; 512].as_slice(),
            other.as_slice(),
        ] {
            std::fs::write(&path, text).expect("a file");
            let mut written = Written::default();
            write_all(
                &mut written,
                1,
                &wanted(&[(&path, &["tank"]), (&link, &["tank"])]),
            );
            assert!(written.files.is_empty());
            assert_eq!(std::fs::read(&path).expect("it"), text);
            assert_eq!(std::fs::read(&target).expect("it"), b"");
            // Nor is it removed, should it have come in the place of one.
            written.files.insert(path.clone());
            write_all(&mut written, 2, &Wanted::new());
            assert_eq!(std::fs::read(&path).expect("it"), text);
        }
    }
}
