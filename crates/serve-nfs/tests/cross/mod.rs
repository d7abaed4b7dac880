//! One tree, changed in turn through a mount (where Samba serves it too), by NFS 3, by NFS 4.2, and
//! in the server itself as a restore does: after each step each of them finds what was done, and
//! what the mount's kernel had kept is not in the way. Files that programs have open there, as
//! Samba has, are looked at as well.
//!
//! `MILLPOND_LONG=1` makes ten thousand steps, `MILLPOND_SEED=N` repeats a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use access::{Lease, User};
use bytes::Bytes;
use filesystem::{Caller, Filesystem, FsError, RenameMode, SetAttributes};
use oracles::nfs::v4::*;
use oracles::nfs::{Client, ROOT, Words};
use serve_fuse::{Mount, MountError, MountOptions, UnmountMode};

use crate::rig::Rig;
use crate::{NOENT, OPEN as OPEN_TO_ALL};

const DIRECTORIES: [&str; 3] = ["", "a", "b"];
const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];
const SIZE_MAX: u64 = 20_000;

/// Who does a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Actor {
    Mount,
    Nfs3,
    Nfs4,
    Server,
}

/// A name: of a directory, and in it.
type Name = (usize, usize);

#[derive(Debug, Clone)]
enum Step {
    /// Makes the file where there is none.
    Write(Name, u64, Vec<u8>),
    Cut(Name, u64),
    Rename(Name, Name),
    Link(Name, Name),
    Remove(Name),
    MakeDirectory(Name),
}

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    File(u64),
    Directory,
}

/// What there is.
#[derive(Default)]
struct Model {
    names: BTreeMap<Name, Entry>,
    files: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % end
    }

    fn name(&mut self) -> Name {
        (self.below(DIRECTORIES.len()), self.below(NAMES.len()))
    }
}

fn path_of(name: Name) -> PathBuf {
    Path::new(DIRECTORIES[name.0]).join(NAMES[name.1])
}

fn word(name: Name) -> &'static [u8] {
    NAMES[name.1].as_bytes()
}

impl Model {
    /// A step that can be made.
    fn step(&self, random: &mut Random) -> Step {
        loop {
            let (name, other) = (random.name(), random.name());
            let (there, target) = (self.names.get(&name), self.names.get(&other));
            let is_file = matches!(there, Some(Entry::File(_)));
            match random.below(10) {
                0..=3 if there != Some(&Entry::Directory) => {
                    let seed = random.below(1 << 20) as u64;
                    let data = crate::rig::pattern(1 + random.below(6000), seed);
                    let offset = random.below(SIZE_MAX as usize) as u64;
                    return Step::Write(name, offset, data);
                }
                4 if is_file => return Step::Cut(name, random.below(SIZE_MAX as usize) as u64),
                // Of one kind both, and not two names of one file, of which both stay.
                5 | 6 => match (there, target) {
                    (Some(Entry::File(file)), Some(Entry::File(other))) if file == other => {}
                    (Some(Entry::File(_)), None | Some(Entry::File(_)))
                    | (Some(Entry::Directory), None | Some(Entry::Directory))
                        if name != other =>
                    {
                        return Step::Rename(name, other);
                    }
                    _ => {}
                },
                7 if is_file && target.is_none() => return Step::Link(name, other),
                8 if there.is_some() => return Step::Remove(name),
                9 if there.is_none() => return Step::MakeDirectory(name),
                _ => {}
            }
        }
    }

    fn does(&mut self, step: &Step) {
        match step {
            Step::Write(name, offset, data) => {
                let next = self.next;
                let entry = *self.names.entry(*name).or_insert(Entry::File(next));
                let Entry::File(file) = entry else {
                    panic!("{name:?} is a directory")
                };
                self.next += u64::from(file == next);
                let content = self.files.entry(file).or_default();
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                content.resize(content.len().max(end), 0);
                content[start..end].copy_from_slice(data);
            }
            Step::Cut(name, size) => {
                if let Some(Entry::File(file)) = self.names.get(name) {
                    self.files
                        .entry(*file)
                        .and_modify(|content| content.resize(*size as usize, 0));
                }
            }
            Step::Rename(from, to) => {
                if let Some(entry) = self.names.remove(from) {
                    self.names.insert(*to, entry);
                }
            }
            Step::Link(from, to) => {
                if let Some(entry) = self.names.get(from).copied() {
                    self.names.insert(*to, entry);
                }
            }
            Step::Remove(name) => {
                self.names.remove(name);
            }
            Step::MakeDirectory(name) => {
                self.names.insert(*name, Entry::Directory);
            }
        }
    }

    fn links(&self, file: u64) -> u64 {
        let is_it = |entry: &&Entry| **entry == Entry::File(file);
        self.names.values().filter(is_it).count() as u64
    }

    /// What a name is to be found as: content (none of a directory) and links.
    fn expected(&self, name: Name) -> Option<(Option<Vec<u8>>, u64)> {
        match self.names.get(&name)? {
            Entry::File(file) => Some((Some(self.files[file].clone()), self.links(*file))),
            Entry::Directory => Some((None, 2)),
        }
    }
}

impl Step {
    fn names(&self) -> Vec<Name> {
        match self {
            Self::Write(name, ..)
            | Self::Cut(name, _)
            | Self::Remove(name)
            | Self::MakeDirectory(name) => vec![*name],
            Self::Rename(from, to) | Self::Link(from, to) => vec![*from, *to],
        }
    }
}

struct Cross {
    root: PathBuf,
    lease: Lease<Filesystem>,
    mount: Mount,
    third: Client,
    third_directories: Vec<Vec<u8>>,
    fourth: Session,
    fourth_directories: Vec<Vec<u8>>,
    // Dropped last.
    rig: Rig,
}

type Found = Option<(Option<Vec<u8>>, u64)>;

impl Cross {
    async fn new() -> Self {
        let rig = Rig::new(OPEN_TO_ALL).await;
        let root = rig.dir.path().join("mnt");
        let user = User::Mount { path: root.clone() };
        let lease = rig.access.filesystem("tank", user).await.expect("a lease");
        let own = lease.share(User::Command { name: "test" });
        let own = own.await.expect("a lease");
        let options = MountOptions::new("tank");
        let mount = Mount::new(&rig.access, lease, &root, options).await;
        let mount = mount.expect("mounted");
        let place = root.clone();
        outside(move || {
            for name in &DIRECTORIES[1..] {
                fs::create_dir(place.join(name)).expect("mkdir");
            }
        })
        .await;
        let (mut third, top) = rig.mounted().await;
        let mut third_directories = vec![top.clone()];
        for name in &DIRECTORIES[1..] {
            let found = third.lookup(&ROOT, &top, name.as_bytes()).await;
            third_directories.push(found.expect("there").0);
        }
        let mut fourth = Session::begin(rig.server.local_address(), b"cross", &ROOT).await;
        fourth.minor = 2;
        let mut fourth_directories = Vec::new();
        for name in DIRECTORIES {
            let path: Vec<&str> = ["tank", name]
                .into_iter()
                .filter(|n| !n.is_empty())
                .collect();
            fourth_directories.push(fourth.walk(&path).await.expect("there"));
        }
        Self {
            root,
            lease: own,
            mount,
            third,
            third_directories,
            fourth,
            fourth_directories,
            rig,
        }
    }

    async fn does(&mut self, actor: Actor, step: &Step, is_new: bool, is_directory: bool) {
        match actor {
            Actor::Mount => {
                let (root, step) = (self.root.clone(), step.clone());
                outside(move || by_mount(&root, &step, is_directory)).await;
            }
            Actor::Nfs3 => self.by_third(step, is_new, is_directory).await,
            Actor::Nfs4 => self.by_fourth(step, is_new).await,
            Actor::Server => self.by_server(step, is_new, is_directory).await,
        }
    }

    async fn by_third(&mut self, step: &Step, is_new: bool, is_directory: bool) {
        let above = |name: &Name| self.third_directories[name.0].clone();
        match step {
            Step::Write(name, offset, data) => {
                let directory = above(name);
                let file = match is_new {
                    true => self.third.create(&ROOT, &directory, word(*name), 1).await,
                    false => {
                        let found = self.third.lookup(&ROOT, &directory, word(*name)).await;
                        found.map(|(file, _)| file)
                    }
                };
                let file = file.expect("a file");
                let stable = (*offset % 3) as u32;
                let written = self.third.write(&ROOT, &file, *offset, data, stable).await;
                assert_eq!(written.0, 0);
            }
            Step::Cut(name, size) => {
                let directory = above(name);
                let found = self.third.lookup(&ROOT, &directory, word(*name)).await;
                let (file, _) = found.expect("a file");
                let args = Words::new().opaque(&file).size(*size).u32(0);
                assert_eq!(self.third.nfs(2, &ROOT, args).await.take32(), 0);
            }
            Step::Rename(from, to) => {
                let args = Words::new().opaque(&above(from)).opaque(word(*from));
                let args = args.opaque(&above(to)).opaque(word(*to));
                assert_eq!(self.third.nfs(14, &ROOT, args).await.take32(), 0);
            }
            Step::Link(from, to) => {
                let (directory, target) = (above(from), above(to));
                let found = self.third.lookup(&ROOT, &directory, word(*from)).await;
                let (file, _) = found.expect("a file");
                let args = Words::new().opaque(&file).opaque(&target).opaque(word(*to));
                assert_eq!(self.third.nfs(15, &ROOT, args).await.take32(), 0);
            }
            Step::Remove(name) => {
                let (directory, procedure) = (above(name), if is_directory { 13 } else { 12 });
                let removed = self
                    .third
                    .remove(&ROOT, &directory, word(*name), procedure)
                    .await;
                assert_eq!(removed, 0);
            }
            Step::MakeDirectory(name) => {
                let directory = above(name);
                let made = self
                    .third
                    .mkdir(&ROOT, &directory, word(*name), 0o755)
                    .await;
                made.expect("made");
            }
        }
    }

    async fn by_fourth(&mut self, step: &Step, is_new: bool) {
        let above = |name: &Name| self.fourth_directories[name.0].clone();
        match step {
            Step::Write(name, offset, data) => {
                let how = match is_new {
                    true => making(0o644),
                    false => Words::new().u32(0),
                };
                let directory = above(name);
                let opened = self.fourth.open(&directory, word(*name), (2, 0), how);
                let (state, file) = opened.await.expect("open");
                let stable = (*offset % 3) as u32;
                let words = Words::new().raw(&state).u64(*offset).u32(stable);
                let write = Ops::new().put(&file).add(WRITE, words.opaque(data));
                self.fourth.ok(write).await;
                let close = Words::new().u32(0).raw(&state);
                self.fourth
                    .ok(Ops::new().put(&file).add(CLOSE, close))
                    .await;
            }
            Step::Cut(name, size) => {
                let words = Words::new().raw(&ANONYMOUS).u32(1).u32(1 << 4).u32(8);
                let find = Ops::new().put(&above(name)).name(LOOKUP, word(*name));
                self.fourth.ok(find.add(SETATTR, words.u64(*size))).await;
            }
            Step::Rename(from, to) => {
                let ops = Ops::new().put(&above(from)).plain(SAVEFH).put(&above(to));
                let names = Words::new().opaque(word(*from)).opaque(word(*to));
                self.fourth.ok(ops.add(RENAME, names)).await;
            }
            Step::Link(from, to) => {
                let find = Ops::new().put(&above(from)).name(LOOKUP, word(*from));
                let ops = find.plain(SAVEFH).put(&above(to)).name(LINK, word(*to));
                self.fourth.ok(ops).await;
            }
            Step::Remove(name) => {
                let ops = Ops::new().put(&above(name)).name(REMOVE, word(*name));
                self.fourth.ok(ops).await;
            }
            Step::MakeDirectory(name) => {
                // A directory with mode 0755.
                let words = Words::new().u32(2).opaque(word(*name));
                let words = words.u32(2).u32(0).u32(1 << 1).u32(4).u32(0o755);
                let ops = Ops::new().put(&above(name)).add(CREATE, words);
                self.fourth.ok(ops).await;
            }
        }
    }

    async fn by_server(&mut self, step: &Step, is_new: bool, is_directory: bool) {
        let fs = self.lease.get();
        let above = async |name: &Name| match DIRECTORIES[name.0] {
            "" => fs.root(),
            path => fs.lookup(fs.root(), path.as_bytes()).await.expect("d").ino,
        };
        let file = async |name: &Name| {
            let found = fs.lookup(above(name).await, word(*name)).await;
            found.expect("a file").ino
        };
        let done: Result<(), FsError> = match step {
            Step::Write(name, offset, data) => {
                if is_new {
                    let made = fs.create(above(name).await, word(*name), 0o644, Caller::ROOT);
                    made.await.expect("made");
                }
                let (ino, data) = (file(name).await, Bytes::copy_from_slice(data));
                fs.write(ino, *offset, data, false, Caller::ROOT).await
            }
            Step::Cut(name, size) => {
                let set = SetAttributes {
                    size_bytes: Some(*size),
                    ..SetAttributes::default()
                };
                let ino = file(name).await;
                fs.set_attributes(ino, &set, Caller::ROOT).await.map(drop)
            }
            Step::Rename(from, to) => {
                let (one, other) = (above(from).await, above(to).await);
                let mode = RenameMode::Replace;
                fs.rename(one, word(*from), other, word(*to), mode).await
            }
            Step::Link(from, to) => {
                let (ino, directory) = (file(from).await, above(to).await);
                fs.link(ino, directory, word(*to)).await.map(drop)
            }
            Step::Remove(name) => match is_directory {
                true => fs.remove_directory(above(name).await, word(*name)).await,
                false => fs.unlink(above(name).await, word(*name)).await,
            },
            Step::MakeDirectory(name) => {
                let directory = above(name).await;
                let made = fs.make_directory(directory, word(*name), 0o755, Caller::ROOT);
                made.await.map(drop)
            }
        };
        done.expect("done");
        self.lease.changes().told().await;
    }

    async fn found_by_third(&mut self, name: Name) -> Found {
        let directory = self.third_directories[name.0].clone();
        match self.third.lookup(&ROOT, &directory, word(name)).await {
            Ok((file, attributes)) if attributes.kind == 1 => {
                let read = self.third.read(&ROOT, &file, 0, 1 << 16).await;
                let content = read.expect("read").0;
                assert_eq!(content.len() as u64, attributes.size);
                Some((Some(content), attributes.links.into()))
            }
            Ok((_, attributes)) => Some((None, attributes.links.into())),
            Err(status) => {
                assert_eq!(status, NOENT);
                None
            }
        }
    }

    async fn found_by_fourth(&mut self, name: Name) -> Found {
        let directory = self.fourth_directories[name.0].clone();
        let find = Ops::new().put(&directory).name(LOOKUP, word(name));
        let (status, mut reply) = self.fourth.run(find.plain(GETFH).attributes()).await;
        if status != 0 {
            assert_eq!(status, NOENT);
            return None;
        }
        reply.well(&[PUTFH, LOOKUP, GETFH]);
        let file = reply.take_opaque();
        let (kind, size, _, links) = reply.told();
        if kind != 1 {
            return Some((None, links.into()));
        }
        let words = Words::new().raw(&ANONYMOUS).u64(0).u32(1 << 16);
        let mut content = Vec::new();
        if size > 0 {
            // Longer than what is kept for clients that ask again.
            self.fourth.sequence += 1;
            let ops = Ops::new().put(&file).add(READ, words);
            let (_, mut reply) = self.fourth.again(&ops, false).await;
            reply.well(&[SEQUENCE]);
            let _session: [u8; 16] = reply.take_raw();
            let _words = [(); 5].map(|()| reply.take32());
            reply.well(&[PUTFH, READ]);
            let _is_end = reply.take32();
            content = reply.take_opaque();
        }
        assert_eq!(content.len() as u64, size);
        Some((Some(content), links.into()))
    }

    /// The version of a directory and of what a name leads to, as NFS tells it.
    async fn change_of(&mut self, name: Name) -> Vec<(u32, u32)> {
        let directory = self.third_directories[name.0].clone();
        let above = self.third.getattr(&directory).await.expect("attributes");
        let found = self.third.lookup(&ROOT, &directory, word(name)).await;
        let own = found.ok().map(|(_, attributes)| attributes.ctime);
        [Some(above.ctime), own].into_iter().flatten().collect()
    }

    async fn check(&mut self, model: &Model, name: Name, what: &str) {
        let expected = model.expected(name);
        let place = self.root.join(path_of(name));
        let found = outside(move || found_at(&place)).await;
        assert!(found == expected, "mount: {name:?} after {what}");
        let found = self.found_by_third(name).await;
        assert!(found == expected, "NFS 3: {name:?} after {what}");
        let found = self.found_by_fourth(name).await;
        assert!(found == expected, "NFS 4.2: {name:?} after {what}");
    }

    async fn check_lists(&mut self, model: &Model, what: &str) {
        for (index, directory) in DIRECTORIES.iter().enumerate() {
            let mut expected: BTreeSet<String> = model
                .names
                .keys()
                .filter(|name| name.0 == index)
                .map(|name| NAMES[name.1].to_owned())
                .collect();
            if index == 0 {
                expected.extend(DIRECTORIES[1..].iter().map(|name| (*name).to_owned()));
            }
            let place = self.root.join(directory);
            let listed = outside(move || {
                let entries = fs::read_dir(place).expect("list");
                let names = entries.map(|entry| entry.expect("an entry").file_name());
                names
                    .map(|name| name.into_string().expect("UTF-8"))
                    .collect::<BTreeSet<_>>()
            });
            assert_eq!(listed.await, expected, "mount after {what}");
            let handle = self.third_directories[index].clone();
            let listed = self.third.list(&ROOT, &handle, 8192, true).await;
            let listed: BTreeSet<String> = listed
                .into_iter()
                .map(|(name, _)| name)
                .filter(|name| !name.starts_with('.'))
                .collect();
            assert_eq!(listed, expected, "NFS 3 after {what}");
        }
    }

    async fn end(self) {
        drop((self.third, self.fourth, self.lease));
        // Programs that another test starts have this process's files open for a moment.
        loop {
            match self.mount.unmount(UnmountMode::Clean).await {
                Err(MountError::Busy { .. }) => tokio::task::yield_now().await,
                done => break done.expect("unmounted"),
            }
        }
        drop((self.mount, self.rig));
    }
}

/// Runs what uses the mount on a thread that serves nobody.
pub async fn outside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

fn by_mount(root: &Path, step: &Step, is_directory: bool) {
    let at = |name: &Name| root.join(path_of(*name));
    let done = match step {
        Step::Write(name, offset, data) => {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false);
            let file = file.open(at(name));
            file.and_then(|file| {
                file.write_all_at(data, *offset)?;
                match offset % 3 {
                    0 => file.sync_all(),
                    _ => Ok(()),
                }
            })
        }
        Step::Cut(name, size) => {
            let file = OpenOptions::new().write(true).open(at(name));
            file.and_then(|file| file.set_len(*size))
        }
        Step::Rename(from, to) => fs::rename(at(from), at(to)),
        Step::Link(from, to) => fs::hard_link(at(from), at(to)),
        Step::Remove(name) if is_directory => fs::remove_dir(at(name)),
        Step::Remove(name) => fs::remove_file(at(name)),
        Step::MakeDirectory(name) => fs::create_dir(at(name)),
    };
    done.unwrap_or_else(|error| panic!("{step:?} through the mount: {error}"));
}

fn found_at(place: &Path) -> Found {
    let attributes = match fs::symlink_metadata(place) {
        Ok(attributes) => attributes,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            return None;
        }
    };
    let content = attributes.is_file().then(|| fs::read(place).expect("read"));
    if let Some(content) = &content {
        assert_eq!(content.len() as u64, attributes.size(), "stat and read");
    }
    Some((content, attributes.nlink()))
}

/// Goal: whichever way a tree is changed, all other ways show it, and nothing that was written is
/// elsewhere than where its name led.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn each_way_in_sees_what_the_others_do() {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let is_root = rustix::process::geteuid().is_root();
    if !oracles::need("root with /dev/fuse", is_root && fuse.is_ok()) {
        return;
    }
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seed = number("MILLPOND_SEED").unwrap_or(20_261_127);
    let steps = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 10_000,
        None => 300,
    };
    let mut cross = Cross::new().await;
    let (mut model, mut random) = (Model::default(), Random(seed | 1));
    // Open in the mount, as what Samba serves is.
    let mut open: Option<(u64, Arc<File>)> = None;
    for count in 0..steps {
        let step = model.step(&mut random);
        let actors = [Actor::Mount, Actor::Nfs3, Actor::Nfs4, Actor::Server];
        let actor = actors[random.below(actors.len())];
        let what = format!("step {count} of seed {seed}, {actor:?}");
        let name = step.names()[0];
        let is_new = !model.names.contains_key(&name);
        let is_directory = model.names.get(&name) == Some(&Entry::Directory);
        let before = cross.change_of(name).await;
        cross.does(actor, &step, is_new, is_directory).await;
        model.does(&step);
        let after = cross.change_of(name).await;
        assert!(before != after, "no version changed: {what}");
        let mut names = step.names();
        names.push(random.name());
        for name in names {
            cross.check(&model, name, &what).await;
        }
        if let Some((file, kept)) = &open {
            let (expected, kept) = (model.files[file].clone(), Arc::clone(kept));
            let size = 2 * SIZE_MAX as usize;
            let found = outside(move || {
                let mut found = vec![0; size];
                let length = kept.read_at(&mut found, 0).expect("read");
                found.truncate(length);
                found
            });
            assert!(found.await == expected, "an open file after {what}");
        }
        if count % 8 == 0 {
            cross.check_lists(&model, &what).await;
            let name = random.name();
            if let Some(Entry::File(file)) = model.names.get(&name) {
                let place = cross.root.join(path_of(name));
                let kept = outside(move || File::open(place).expect("open")).await;
                open = Some((*file, Arc::new(kept)));
            }
        }
    }
    drop(open);
    cross.end().await;
}

/// Goal: nobody waits for ever where the kernel, which is told of changes, NFS clients, who wait
/// for that, and rollbacks, which wait for both, are at the same directories.
/// Method: all at once; that it ends is what counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn all_ways_in_at_once_come_to_an_end() {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let is_root = rustix::process::geteuid().is_root();
    if !oracles::need("root with /dev/fuse", is_root && fuse.is_ok()) {
        return;
    }
    let rounds = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 5_000,
        None => 300,
    };
    let cross = Cross::new().await;
    cross.rig.snapshot("tank@s").await;
    let Cross {
        rig,
        root,
        mount,
        lease,
        ..
    } = cross;
    // A rollback waits for commands.
    drop(lease);
    let mut all = Vec::new();
    for seed in 1..=3 {
        let root = root.clone();
        let work = outside(move || {
            let mut random = Random(seed * 77 + 1);
            for _ in 0..rounds {
                let (one, other) = (root.join(path_of(random.name())), path_of(random.name()));
                // What another removed, or a rollback, is not there.
                let _ = match random.below(5) {
                    0 => fs::write(&one, pattern_of(&mut random)),
                    1 => fs::read(&one).map(drop),
                    2 => fs::rename(&one, root.join(other)),
                    3 => fs::read_dir(&root).map(|entries| {
                        let _ = entries.count();
                    }),
                    _ => fs::remove_file(&one),
                };
            }
        });
        all.push(tokio::spawn(work));
        let (mut client, top) = rig.mounted().await;
        all.push(tokio::spawn(async move {
            let mut random = Random(seed * 55 + 1);
            for _ in 0..rounds {
                let (one, other) = (word(random.name()), word(random.name()));
                match random.below(3) {
                    0 => {
                        if let Ok(file) = client.create(&ROOT, &top, one, 0).await {
                            let data = pattern_of(&mut random);
                            client.write(&ROOT, &file, 100, &data, 0).await;
                        }
                    }
                    1 => {
                        let args = Words::new().opaque(&top).opaque(one);
                        let args = args.opaque(&top).opaque(other);
                        client.nfs(14, &ROOT, args).await;
                    }
                    _ => {
                        client.remove(&ROOT, &top, one, 12).await;
                    }
                }
            }
        }));
    }
    for _ in 0..3 {
        let dsl = Arc::clone(rig.pool.dsl());
        let work = async move { dsl.snapshots().rollback("tank", Some("tank@s")).await };
        let exchanged = rig.access.exchange("tank", work).await;
        exchanged
            .expect("nobody is in the way")
            .expect("rolled back");
    }
    for work in all {
        work.await.expect("done");
    }
    loop {
        match mount.unmount(UnmountMode::Clean).await {
            Err(MountError::Busy { .. }) => tokio::task::yield_now().await,
            done => break done.expect("unmounted"),
        }
    }
    drop((mount, rig));
}

fn pattern_of(random: &mut Random) -> Vec<u8> {
    let seed = random.below(1 << 20) as u64;
    crate::rig::pattern(1 + random.below(9000), seed)
}
