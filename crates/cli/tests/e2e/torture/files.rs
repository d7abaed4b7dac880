//! Files on a mount under random work, while the server is killed.
//!
//! Oracles: a model of the tree ([`super::model`]); every filesystem mounts again; whatever fsync
//! acknowledged is there; zdb finds no leak. Errors that the work may meet (a flag,
//! a project) leave the model as it was; any other error before the kill is a failure.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FallocateFlags, IFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use sim::rng::Rng;

use super::model::{ACCESS_LIST, Content, Entry, Names, Tree, XATTR_BYTES_MAX, access_list};
use crate::harness::{Server, zdb_is_clean};

/// Rounds of a story: each ends with a kill.
const ROUNDS: u64 = 4;

/// Longest file, in bytes.
const FILE_BYTES_MAX: u64 = 600_000;

/// Most files that are held open.
const HELD_MAX: usize = 6;

/// Names in a directory.
const NAMES: u64 = 12;

/// What work may meet without harm.
const REFUSALS: [Errno; 22] = [
    Errno::PERM,
    Errno::ACCESS,
    Errno::XDEV,
    Errno::NOTEMPTY,
    Errno::EXIST,
    Errno::NOENT,
    Errno::OPNOTSUPP,
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::TOOBIG,
    Errno::RANGE,
    Errno::NODATA,
    Errno::NOTTY,
    Errno::INVAL,
    Errno::BUSY,
    Errno::MLINK,
    Errno::NAMETOOLONG,
    Errno::ISDIR,
    Errno::NOTDIR,
    Errno::ROFS,
    Errno::NOSYS,
    Errno::FBIG,
];

/// The one who changes files, and what they should hold.
struct Worker {
    rng: Rng,
    root: PathBuf,
    tree: Tree,
    /// Open files of the model; their names may be gone.
    held: Vec<(u64, File)>,
    /// The last operations, for whoever reads of a failure.
    story: Vec<String>,
    refused: u64,
    done: u64,
}

impl Worker {
    fn new(rng: Rng, root: PathBuf) -> Self {
        Self {
            rng,
            root,
            tree: Tree::new(),
            held: Vec::new(),
            story: Vec::new(),
            refused: 0,
            done: 0,
        }
    }

    fn tell(&mut self, words: String) {
        self.story.push(words);
        if self.story.len() > 60 {
            self.story.remove(0);
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Works until an operation meets a dead server, or somebody says that it is enough.
    fn work(&mut self, is_over: &AtomicBool, is_killed: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            let Err(error) = self.operation() else {
                self.done += 1;
                continue;
            };
            let refusal =
                Errno::from_io_error(&error).is_some_and(|errno| REFUSALS.contains(&errno));
            if is_killed.load(Ordering::SeqCst) {
                return;
            }
            if refusal {
                self.refused += 1;
            } else {
                // The kill may have come between the error and the look at it.
                std::thread::sleep(Duration::from_millis(500));
                assert!(
                    is_killed.load(Ordering::SeqCst),
                    "an operation failed: {error}\n{}",
                    self.story.join("\n")
                );
                return;
            }
        }
    }

    /// Changes names: the model first, so that a kill in between leaves both states possible.
    fn change_names(
        &mut self,
        words: String,
        change: impl FnOnce(&mut Names),
        operation: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.tell(words);
        let mut names = self.tree.names().clone();
        change(&mut names);
        self.tree.rename(names);
        let result = operation();
        if is_refusal(&result) {
            self.tree.refuse_names();
            self.tell("  refused".to_owned());
        }
        result
    }

    /// Changes one file likewise.
    fn change_file(
        &mut self,
        words: String,
        id: u64,
        change: impl FnOnce(&mut Content),
        operation: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.tell(format!("{words} (file {id})"));
        let mut content = self.tree.file(id).clone();
        change(&mut content);
        self.tree.write(id, content);
        let result = operation();
        if is_refusal(&result) {
            self.tree.refuse_file(id);
            self.tell("  refused".to_owned());
        }
        result
    }

    fn directory(&mut self) -> String {
        let names = self.tree.names();
        let directories = names
            .iter()
            .filter(|(_, entry)| **entry == Entry::Directory);
        let mut all: Vec<String> = directories.map(|(path, _)| path.clone()).collect();
        all.push(String::new());
        self.rng.pick(&all).unwrap_or_default()
    }

    /// A name that may be there or not.
    fn some_name(&mut self) -> String {
        let directory = self.directory();
        let number = self.rng.below(NAMES);
        match directory.as_str() {
            "" => format!("n{number}"),
            _ => format!("{directory}/n{number}"),
        }
    }

    fn existing(&mut self) -> Option<(String, Entry)> {
        let names = self.tree.names();
        let all: Vec<_> = names
            .iter()
            .map(|(path, entry)| (path.clone(), entry.clone()))
            .collect();
        self.rng.pick(&all)
    }

    fn existing_file(&mut self) -> Option<(String, u64)> {
        let files = self
            .tree
            .names()
            .iter()
            .filter_map(|(path, entry)| match entry {
                Entry::File(id) => Some((path.clone(), *id)),
                _ => None,
            });
        let all: Vec<_> = files.collect();
        self.rng.pick(&all)
    }

    /// An open file: one that is held, or one that is opened for this.
    fn open(&mut self) -> io::Result<Option<(u64, File)>> {
        if self.rng.percent(40)
            && let Some(place) =
                (!self.held.is_empty()).then(|| self.rng.below(self.held.len() as u64) as usize)
        {
            let (id, file) = &self.held[place];
            return Ok(Some((*id, file.try_clone()?)));
        }
        let Some((path, id)) = self.existing_file() else {
            return Ok(None);
        };
        let file = File::options().read(true).write(true).open(self.at(&path));
        let file = match file {
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                // Append-only files are opened like this.
                File::options()
                    .read(true)
                    .append(true)
                    .open(self.at(&path))?
            }
            other => other?,
        };
        Ok(Some((id, file)))
    }

    fn operation(&mut self) -> io::Result<()> {
        match self.rng.below(100) {
            0..12 => self.create(),
            12..16 => self.make_directory(),
            16..24 => self.remove(),
            24..32 => self.rename(),
            32..36 => self.link(),
            36..38 => self.symlink(),
            38..56 => self.write(),
            56..60 => self.truncate(),
            60..65 => self.punch(),
            65..71 => self.clone_range(),
            71..76 => self.attribute(),
            76..79 => self.access_list(),
            79..82 => self.mode(),
            82..86 => self.flags(),
            86..88 => self.project(),
            88..92 => self.hold(),
            _ => self.fsync(),
        }
    }

    fn create(&mut self) -> io::Result<()> {
        let path = self.some_name();
        if self.tree.names().contains_key(&path) {
            return Ok(());
        }
        let id = self.tree.create(0o644);
        let at = self.at(&path);
        let mut created = None;
        let result = self.change_names(
            format!("create {path} (file {id})"),
            |names| {
                names.insert(path.clone(), Entry::File(id));
            },
            || {
                let mut options = File::options();
                options.read(true).write(true).create_new(true).mode(0o644);
                created = Some(options.open(at)?);
                Ok(())
            },
        );
        if let Some(file) = created
            && self.rng.percent(30)
        {
            self.keep(id, file);
        }
        result
    }

    fn keep(&mut self, id: u64, file: File) {
        if self.held.len() == HELD_MAX {
            let place = self.rng.below(HELD_MAX as u64) as usize;
            self.held.swap_remove(place);
        }
        self.held.push((id, file));
    }

    fn hold(&mut self) -> io::Result<()> {
        if let Some((id, file)) = self.open()? {
            self.keep(id, file);
        }
        Ok(())
    }

    fn make_directory(&mut self) -> io::Result<()> {
        let path = self.some_name();
        if self.tree.names().contains_key(&path) || path.matches('/').count() > 3 {
            return Ok(());
        }
        let at = self.at(&path);
        self.change_names(
            format!("mkdir {path}"),
            |names| {
                names.insert(path.clone(), Entry::Directory);
            },
            || fs::create_dir(at),
        )
    }

    fn remove(&mut self) -> io::Result<()> {
        let Some((path, entry)) = self.existing() else {
            return Ok(());
        };
        let at = self.at(&path);
        self.change_names(
            format!("remove {path}"),
            |names| {
                names.remove(&path);
            },
            || match entry {
                Entry::Directory => fs::remove_dir(at),
                _ => fs::remove_file(at),
            },
        )
    }

    fn rename(&mut self) -> io::Result<()> {
        let Some((from, entry)) = self.existing() else {
            return Ok(());
        };
        let to = self.some_name();
        let below = |path: &str, of: &str| path.starts_with(&format!("{of}/"));
        if from == to || below(&to, &from) || below(&from, &to) {
            return Ok(());
        }
        let other = self.tree.names().get(&to).cloned();
        let same = other.as_ref() == Some(&entry) && matches!(entry, Entry::File(_));
        let exchange = other.is_some() && self.rng.percent(30);
        if same {
            // Two names of one file: nothing happens, also says POSIX.
            return Ok(());
        }
        let (source, target) = (self.at(&from), self.at(&to));
        let flags = match exchange {
            true => RenameFlags::EXCHANGE,
            false => RenameFlags::empty(),
        };
        self.change_names(
            format!("rename {from} {to}, exchange: {exchange}"),
            |names| {
                let moved = take(names, &from);
                let replaced = take(names, &to);
                put(names, &to, moved);
                if exchange {
                    put(names, &from, replaced);
                }
            },
            || Ok(rustix::fs::renameat_with(CWD, source, CWD, target, flags)?),
        )
    }

    fn link(&mut self) -> io::Result<()> {
        let Some((from, id)) = self.existing_file() else {
            return Ok(());
        };
        let to = self.some_name();
        if self.tree.names().contains_key(&to) {
            return Ok(());
        }
        let (source, target) = (self.at(&from), self.at(&to));
        self.change_names(
            format!("link {from} {to}"),
            |names| {
                names.insert(to.clone(), Entry::File(id));
            },
            || fs::hard_link(source, target),
        )
    }

    fn symlink(&mut self) -> io::Result<()> {
        let path = self.some_name();
        if self.tree.names().contains_key(&path) {
            return Ok(());
        }
        let target = "t".repeat(1 + self.rng.below(300) as usize);
        let at = self.at(&path);
        self.change_names(
            format!("symlink {path}"),
            |names| {
                names.insert(path.clone(), Entry::Link(target.clone()));
            },
            || std::os::unix::fs::symlink(&target, at),
        )
    }

    fn write(&mut self) -> io::Result<()> {
        let Some((id, file)) = self.open()? else {
            return Ok(());
        };
        let length = self.tree.file(id).data.len() as u64;
        let is_append = rustix::fs::fcntl_getfl(&file)?.contains(rustix::fs::OFlags::APPEND);
        let offset = match self.rng.percent(30) || is_append {
            true => length,
            false => self.rng.below(length + 70_000),
        };
        let size = match self.rng.below(3) {
            0 => self.rng.below(300),
            1 => self.rng.below(10_000),
            _ => self.rng.below(130_000),
        };
        if offset + size > FILE_BYTES_MAX || size == 0 {
            return Ok(());
        }
        let data = self.rng.content(size as usize);
        let end = (offset + size) as usize;
        self.change_file(
            format!("write {offset} {size}, append: {is_append}"),
            id,
            |content| {
                if content.data.len() < end {
                    content.data.resize(end, 0);
                }
                content.data[offset as usize..end].copy_from_slice(&data);
            },
            || file.write_all_at(&data, offset),
        )
    }

    fn truncate(&mut self) -> io::Result<()> {
        let Some((id, file)) = self.open()? else {
            return Ok(());
        };
        let length = match self.rng.below(3) {
            0 => 0,
            _ => self.rng.below(FILE_BYTES_MAX),
        };
        self.change_file(
            format!("truncate {length}"),
            id,
            |content| content.data.resize(length as usize, 0),
            || file.set_len(length),
        )
    }

    fn punch(&mut self) -> io::Result<()> {
        let Some((id, file)) = self.open()? else {
            return Ok(());
        };
        let length = self.tree.file(id).data.len() as u64;
        let offset = self.rng.below(length + 1000);
        let size = 1 + self.rng.below(150_000);
        let is_hole = self.rng.percent(80);
        let flags = match is_hole {
            true => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            false => FallocateFlags::empty(),
        };
        self.change_file(
            format!("fallocate {offset} {size}, hole: {is_hole}"),
            id,
            |content| {
                let end = (offset + size) as usize;
                match is_hole {
                    true => {
                        let end = end.min(content.data.len());
                        if let Some(hole) = content.data.get_mut(offset as usize..end) {
                            hole.fill(0);
                        }
                    }
                    false if end > content.data.len() => content.data.resize(end, 0),
                    false => {}
                }
            },
            || Ok(rustix::fs::fallocate(&file, flags, offset, size)?),
        )
    }

    fn clone_range(&mut self) -> io::Result<()> {
        let (Some((from, source)), Some((to, target))) = (self.open()?, self.open()?) else {
            return Ok(());
        };
        if from == to || rustix::fs::fcntl_getfl(&target)?.contains(rustix::fs::OFlags::APPEND) {
            return Ok(());
        }
        let data = self.tree.file(from).data.clone();
        let whole = self.rng.percent(60);
        let offset = match whole {
            true => 0,
            false => self.rng.below(data.len() as u64 / 4096 + 1) * 4096,
        };
        let size = (data.len() as u64).saturating_sub(offset);
        if size == 0 {
            return Ok(());
        }
        let end = (offset + size) as usize;
        self.change_file(
            format!("copy_file_range of file {from}, {offset} {size}"),
            to,
            |content| {
                if content.data.len() < end {
                    content.data.resize(end, 0);
                }
                content.data[offset as usize..end].copy_from_slice(&data[offset as usize..end]);
            },
            || {
                let (mut read_at, mut write_at) = (offset, offset);
                while read_at < offset + size {
                    let rest = (offset + size - read_at) as usize;
                    let (read, write) = (Some(&mut read_at), Some(&mut write_at));
                    match rustix::fs::copy_file_range(&source, read, &target, write, rest) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(_) => {}
                        // Some of it is there: both states may be seen.
                        Err(Errno::ROFS) if read_at > offset => return Ok(()),
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok(())
            },
        )
    }

    fn attribute(&mut self) -> io::Result<()> {
        let Some((id, file)) = self.open()? else {
            return Ok(());
        };
        let name = format!("user.a{}", self.rng.below(4));
        if self.rng.percent(30) {
            return self.change_file(
                format!("remove attribute {name}"),
                id,
                |content| {
                    content.xattrs.remove(&name);
                },
                || Ok(rustix::fs::fremovexattr(&file, name.as_str())?),
            );
        }
        let length = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.below(200),
            2 => self.rng.below(5_000),
            _ => self.rng.below(XATTR_BYTES_MAX as u64),
        };
        let value = self.rng.content(length as usize);
        self.change_file(
            format!("set attribute {name}, {length} bytes"),
            id,
            |content| {
                content.xattrs.insert(name.clone(), value.clone());
            },
            || {
                let flags = XattrFlags::empty();
                Ok(rustix::fs::fsetxattr(&file, name.as_str(), &value, flags)?)
            },
        )
    }

    /// A POSIX list of access, which changes the mode as well.
    fn access_list(&mut self) -> io::Result<()> {
        let Some((id, file)) = self.open()? else {
            return Ok(());
        };
        if self.rng.percent(20) {
            return self.change_file(
                "remove the access list".to_owned(),
                id,
                |content| {
                    content.xattrs.remove(ACCESS_LIST);
                },
                || Ok(rustix::fs::fremovexattr(&file, ACCESS_LIST)?),
            );
        }
        let mode = 0o600 | self.rng.below(0o100) as u32;
        let (named, group) = (self.rng.below(8) as u16, self.rng.below(8) as u16);
        let users = 1 + self.rng.below(20) as u32;
        let list = access_list(mode, users, named, group);
        self.change_file(
            format!("set an access list, {mode:o}, {users} users"),
            id,
            |content| {
                content.mode = mode;
                content.xattrs.insert(ACCESS_LIST.to_owned(), list.clone());
            },
            || {
                let flags = XattrFlags::empty();
                Ok(rustix::fs::fsetxattr(&file, ACCESS_LIST, &list, flags)?)
            },
        )
    }

    fn mode(&mut self) -> io::Result<()> {
        let Some((id, file)) = self.open()? else {
            return Ok(());
        };
        let mode = 0o600 | self.rng.below(0o100) as u32;
        self.change_file(
            format!("chmod {mode:o}"),
            id,
            |content| content.change_mode(mode),
            || file.set_permissions(Permissions::from_mode(mode)),
        )
    }

    /// Immutable, append-only, or neither: of a file or of a directory.
    fn flags(&mut self) -> io::Result<()> {
        let Some((path, entry)) = self.existing() else {
            return Ok(());
        };
        if matches!(entry, Entry::Link(_)) {
            return Ok(());
        }
        let choices = [
            IFlags::empty(),
            IFlags::empty(),
            IFlags::IMMUTABLE,
            IFlags::APPEND,
        ];
        let flags = self.rng.pick(&choices).unwrap_or(IFlags::empty());
        self.tell(format!("chattr {flags:?} {path}"));
        let file = File::open(self.at(&path))?;
        Ok(rustix::fs::ioctl_setflags(&file, flags)?)
    }

    /// A directory gives its project to what is made in it, or not any more.
    fn project(&mut self) -> io::Result<()> {
        let directory = self.directory();
        if directory.is_empty() {
            return Ok(());
        }
        let words = match self.rng.percent(50) {
            true => vec![
                "+P".to_owned(),
                "-p".to_owned(),
                self.rng.below(3).to_string(),
            ],
            false => vec!["-P".to_owned()],
        };
        self.tell(format!("chattr {words:?} {directory}"));
        let at = self.at(&directory);
        // Refused or not: the model does not know of projects.
        std::process::Command::new("chattr")
            .args(words)
            .arg(at)
            .output()?;
        Ok(())
    }

    fn fsync(&mut self) -> io::Result<()> {
        let Some((id, file)) = self.open()? else {
            return Ok(());
        };
        self.tell(format!("fsync (file {id})"));
        file.sync_all()?;
        self.tree.is_durable(id);
        self.tell("  durable".to_owned());
        Ok(())
    }
}

/// The names at and below a path, without it.
fn take(names: &mut Names, path: &str) -> Names {
    let below = format!("{path}/");
    let all: Vec<String> = names
        .keys()
        .filter(|name| *name == path || name.starts_with(&below))
        .cloned()
        .collect();
    all.into_iter()
        .filter_map(|name| Some((name[path.len()..].to_owned(), names.remove(&name)?)))
        .collect()
}

/// Puts them at another path.
fn put(names: &mut Names, path: &str, moved: Names) {
    names.extend(
        moved
            .into_iter()
            .map(|(rest, entry)| (format!("{path}{rest}"), entry)),
    );
}

fn is_refusal(result: &io::Result<()>) -> bool {
    let errno = result.as_ref().err().and_then(Errno::from_io_error);
    errno.is_some_and(|errno| REFUSALS.contains(&errno))
}

/// Commits the log all the time, so that any record is in it when the server dies.
fn make_noise(root: &Path, number: usize, is_over: &AtomicBool) {
    let directory = root.join(format!("noise{number}"));
    let mut count = 0_u64;
    let mut round = || -> io::Result<()> {
        count += 1;
        let file = File::create(directory.join(format!("f{}", count % 7)))?;
        file.write_all_at(&vec![count as u8; 1 + (count * 997 % 9000) as usize], 0)?;
        file.sync_all()
    };
    while !is_over.load(Ordering::Relaxed) {
        if round().is_err() {
            // Dead, or read-only for a moment.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Options of the filesystem and of its pool.
fn options(server: &Server, rng: &mut Rng) -> (String, String) {
    let disks = server.disks(5, 1 << 30);
    let vdevs = match rng.below(4) {
        0 => disks[0].clone(),
        1 => format!("mirror {} {}", disks[0], disks[1]),
        2 => format!("raidz1 {} {} {}", disks[0], disks[1], disks[2]),
        _ => format!("{} log {}", disks[0], disks[4]),
    };
    let mut words = format!(
        "-o xattr={} -o recordsize={} -o compression={} -o logbias={}",
        ["sa", "dir"][rng.below(2) as usize],
        ["4K", "16K", "128K"][rng.below(3) as usize],
        ["off", "lz4", "zstd"][rng.below(3) as usize],
        ["latency", "throughput"][rng.below(2) as usize],
    );
    if rng.percent(60) {
        words.push_str(" -o acltype=posix");
    }
    if rng.percent(20) {
        words.push_str(" -o dedup=on");
    }
    if rng.percent(20) {
        words.push_str(" -o dnodesize=auto");
    }
    if rng.percent(30) {
        let key = server.path("key");
        fs::write(&key, [7; 32]).expect("a key");
        words.push_str(&format!(
            " -o encryption=on -o keyformat=raw -o keylocation=file://{}",
            key.display()
        ));
    }
    (vdevs, words)
}

fn story(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut server = Server::start();
    let (vdevs, words) = options(&server, &mut rng);
    let mountpoint = server.path("mnt");
    server.ok(&format!("zpool create -O canmount=off tank {vdevs}"));
    server.ok(&format!(
        "zfs create -o mountpoint={} {words} tank/f",
        mountpoint.display()
    ));
    eprintln!("tank {vdevs}, tank/f {words}");
    let is_encrypted = words.contains("encryption=on");
    let mut worker = Worker::new(rng.clone(), mountpoint.clone());
    for number in 0..2 {
        fs::create_dir(mountpoint.join(format!("noise{number}"))).expect("a directory");
    }
    server.ok("zpool sync tank");
    for round in 0..ROUNDS {
        round_of(&mut server, &mut worker, &mut rng);
        server.launch(&["daemon"]);
        server.wait_until("the pool is imported again", || {
            server.command(&["zfs", "list", "tank/f"]).status.success()
        });
        if is_encrypted {
            // A pool that is imported by itself asks for no key.
            let _ = server.command(&["zfs", "load-key", "tank/f"]);
            let _ = server.command(&["zfs", "mount", "tank/f"]);
        }
        server.wait_until("the filesystem is mounted again", || {
            server.ok("zfs mount").contains("tank/f")
        });
        let result = worker.tree.compare(&mountpoint);
        if let Err(why) = result {
            server.kill_only();
            server.directory.disable_cleanup(true);
            panic!(
                "seed {seed}, round {round}: {why}\nwhat is left is in {}\n\
                 the last operations:\n{}",
                server.directory.path().display(),
                worker.story.join("\n")
            );
        }
        worker.story.clear();
        server.ok("zfs set readonly=off tank/f");
    }
    assert!(
        worker.done > worker.refused,
        "nearly all was refused: {}",
        worker.refused
    );
    server.ok("zpool export tank");
    // What zdb complains of is kept.
    server.directory.disable_cleanup(true);
    zdb_is_clean(&server.path("disks"), "tank");
    server.directory.disable_cleanup(false);
}

/// Work until the kill, and in some rounds the filesystem becomes read-only before it.
fn round_of(server: &mut Server, worker: &mut Worker, rng: &mut Rng) {
    let (is_over, is_killed) = (AtomicBool::new(false), AtomicBool::new(false));
    let root = worker.root.clone();
    let (for_ms, read_only) = (200 + rng.below(2500), rng.percent(25));
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (root, is_over) = (&root, &is_over);
            scope.spawn(move || make_noise(root, number, is_over));
        }
        let (over, killed) = (&is_over, &is_killed);
        let work = scope.spawn(|| worker.work(over, killed));
        std::thread::sleep(Duration::from_millis(for_ms));
        if read_only {
            server.ok("zfs set readonly=on tank/f");
            std::thread::sleep(Duration::from_millis(rng.below(100)));
        }
        is_killed.store(true, Ordering::SeqCst);
        server.kill_only();
        is_over.store(true, Ordering::SeqCst);
        let ended = work.join();
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
    worker.held.clear();
    server.clear_mounts();
}

#[test]
fn every_file_is_as_it_was_acknowledged() {
    super::tell(story);
}
