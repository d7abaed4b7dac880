//! A filesystem as POSIX says it is, in memory, and random operations on it and a real one.

use std::collections::BTreeMap;

use filesystem::{
    Allocate, Attributes, Caller, FileKind, Filesystem, FsError, RenameMode, SeekTo, SetAttributes,
    SetTime, Time, XattrMode, errno,
};

use super::*;

pub type Id = usize;

#[derive(Debug, Clone, Default)]
pub struct File {
    pub ino: u64,
    pub kind: Option<FileKind>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: (u32, u32),
    pub data: Vec<u8>,
    pub target: Vec<u8>,
    pub entries: BTreeMap<Vec<u8>, Id>,
    pub parent: Id,
    /// Names of anything but a directory.
    pub names: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub mtime: Option<Time>,
}

impl File {
    pub fn is_directory(&self) -> bool {
        self.kind == Some(FileKind::Directory)
    }
}

pub struct Model {
    pub files: Vec<File>,
}

pub type Outcome<T> = Result<T, i32>;

impl Model {
    pub fn links(&self, id: Id) -> u32 {
        let file = &self.files[id];
        if !file.is_directory() {
            return file.names;
        }
        let subdirectories = file
            .entries
            .values()
            .filter(|child| self.files[**child].is_directory())
            .count();
        2 + subdirectories as u32
    }

    pub fn size(&self, id: Id) -> u64 {
        let file = &self.files[id];
        match file.kind {
            Some(FileKind::Directory) => file.entries.len() as u64 + 2,
            Some(FileKind::Symlink) => file.target.len() as u64,
            _ => file.data.len() as u64,
        }
    }

    pub fn is_within(&self, mut id: Id, ancestor: Id) -> bool {
        loop {
            if id == ancestor {
                return true;
            }
            if id == 0 {
                return false;
            }
            id = self.files[id].parent;
        }
    }

    pub fn add(&mut self, parent: Id, name: &[u8], mut file: File) -> Outcome<Id> {
        if self.files[parent].entries.contains_key(name) {
            return Err(errno::EEXIST);
        }
        if self.files[parent].mode & 0o2000 != 0 {
            file.gid = self.files[parent].gid;
            if file.is_directory() {
                file.mode |= 0o2000;
            }
        }
        file.parent = parent;
        file.names = 1;
        let id = self.files.len();
        self.files.push(file);
        self.files[parent].entries.insert(name.to_vec(), id);
        Ok(id)
    }

    pub fn remove(&mut self, parent: Id, name: &[u8], directory: bool) -> Outcome<Id> {
        let id = *self.files[parent].entries.get(name).ok_or(errno::ENOENT)?;
        match (self.files[id].is_directory(), directory) {
            (true, false) => return Err(errno::EISDIR),
            (false, true) => return Err(errno::ENOTDIR),
            (true, true) if !self.files[id].entries.is_empty() => return Err(errno::ENOTEMPTY),
            _ => {}
        }
        self.files[parent].entries.remove(name);
        self.files[id].names -= 1;
        Ok(id)
    }

    pub fn rename(
        &mut self,
        from: Id,
        name: &[u8],
        to: Id,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Outcome<()> {
        let id = *self.files[from].entries.get(name).ok_or(errno::ENOENT)?;
        let victim = self.files[to].entries.get(new_name).copied();
        match (mode, victim) {
            (RenameMode::NoReplace, Some(_)) => return Err(errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(errno::ENOENT),
            _ => {}
        }
        if victim == Some(id) {
            return Ok(());
        }
        let moves = self.files[id].is_directory();
        if from != to {
            if moves && self.is_within(to, id) {
                return Err(errno::EINVAL);
            }
            if let Some(victim) = victim
                && self.files[victim].is_directory()
                && self.is_within(from, victim)
            {
                let exchange = mode == RenameMode::Exchange;
                return Err(if exchange {
                    errno::EINVAL
                } else {
                    errno::ENOTEMPTY
                });
            }
        }
        if let (Some(victim), false) = (victim, mode == RenameMode::Exchange) {
            match (moves, self.files[victim].is_directory()) {
                (true, false) => return Err(errno::ENOTDIR),
                (false, true) => return Err(errno::EISDIR),
                (true, true) if !self.files[victim].entries.is_empty() => {
                    return Err(errno::ENOTEMPTY);
                }
                _ => {}
            }
            self.files[victim].names -= 1;
        }
        self.files[from].entries.remove(name);
        self.files[to].entries.insert(new_name.to_vec(), id);
        self.files[id].parent = to;
        if let (Some(victim), RenameMode::Exchange) = (victim, mode) {
            self.files[from].entries.insert(name.to_vec(), victim);
            self.files[victim].parent = from;
        }
        Ok(())
    }
}

/// Both say the same.
pub fn agree<A, B>(what: &str, real: Result<A, FsError>, model: &Outcome<B>) -> Option<A> {
    match (real, model) {
        (Ok(real), Ok(_)) => Some(real),
        (Err(real), Err(model)) if real.errno() == *model => None,
        (Ok(_), Err(model)) => panic!("{what}: done, but should fail with {model}"),
        (Err(real), Ok(_)) => panic!("{what}: {real}, but should be done"),
        (Err(real), Err(model)) => panic!("{what}: {real} ({}), not {model}", real.errno()),
    }
}

pub struct Run {
    pub random: Random,
    pub model: Model,
    pub filesystem: std::sync::Arc<Filesystem>,
    pub max_size: u64,
}

impl Run {
    pub fn directories(&self) -> Vec<Id> {
        self.reachable()
            .into_iter()
            .filter(|id| self.model.files[*id].is_directory())
            .collect()
    }

    pub fn regular(&self) -> Vec<Id> {
        let is_regular = |id: &Id| self.model.files[*id].kind == Some(FileKind::Regular);
        self.reachable().into_iter().filter(is_regular).collect()
    }

    pub fn reachable(&self) -> Vec<Id> {
        let mut found = vec![0];
        let mut next = 0;
        while next < found.len() {
            let entries = self.model.files[found[next]].entries.values().copied();
            let new: Vec<_> = entries.filter(|id| !found.contains(id)).collect();
            found.extend(new);
            next += 1;
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            None
        } else {
            Some(from[self.random.below(from.len() as u64) as usize])
        }
    }

    pub fn name(&mut self) -> Vec<u8> {
        let n = self.random.below(12);
        match n {
            0 => vec![b'n'; 255],
            1 => "größer ☃".as_bytes().to_vec(),
            _ => format!("name{n}").into_bytes(),
        }
    }

    pub fn caller(&mut self) -> Caller {
        if self.random.below(2) == 0 {
            ROOT
        } else {
            Caller { umask: 0, ..ALICE }
        }
    }

    pub fn content(&mut self, length: u64) -> Vec<u8> {
        match self.random.below(4) {
            0 => vec![0; length as usize],
            1 => b"0123456789abcdef"
                .iter()
                .copied()
                .cycle()
                .take(length as usize)
                .collect(),
            _ => self.random.bytes(length as usize),
        }
    }

    pub fn learn(&mut self, id: Outcome<Id>, made: Option<Attributes>) {
        if let (Ok(id), Some(made)) = (id, made) {
            self.model.files[id].ino = made.ino;
        }
    }

    pub async fn step(&mut self) {
        let filesystem = std::sync::Arc::clone(&self.filesystem);
        let directories = self.directories();
        let regular = self.regular();
        let all = self.reachable();
        let parent = self.pick(&directories).expect("the root at least");
        let parent_ino = self.model.files[parent].ino;
        let name = self.name();
        let caller = self.caller();
        let of = |caller: Caller, kind, mode| File {
            kind: Some(kind),
            mode,
            uid: caller.uid,
            gid: caller.gid,
            ..File::default()
        };
        match self.random.below(34) {
            0..=4 => {
                let file = of(caller, FileKind::Regular, 0o644);
                let model = self.model.add(parent, &name, file);
                let real = filesystem.create(parent_ino, &name, 0o644, caller).await;
                let made = agree("create", real, &model);
                self.learn(model, made);
            }
            5 | 6 => {
                let mode = [0o755, 0o2775, 0o1777][self.random.below(3) as usize];
                let file = of(caller, FileKind::Directory, mode);
                let model = self.model.add(parent, &name, file);
                let real = filesystem
                    .make_directory(parent_ino, &name, mode, caller)
                    .await;
                let made = agree("mkdir", real, &model);
                self.learn(model, made);
            }
            7 => {
                let length = 1 + self.random.below(4000) as usize;
                let target: Vec<u8> = b"/a/long/way"
                    .iter()
                    .copied()
                    .cycle()
                    .take(length)
                    .collect();
                let mut file = of(caller, FileKind::Symlink, 0o777);
                file.target = target.clone();
                let model = self.model.add(parent, &name, file);
                let real = filesystem.symlink(parent_ino, &name, &target, caller).await;
                let made = agree("symlink", real, &model);
                self.learn(model, made);
            }
            8 => {
                let kinds = [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice];
                let kind = self.pick(&kinds).expect("some");
                let mut file = of(caller, kind, 0o600);
                let rdev = (259, 70_000);
                file.rdev = if kind.is_device() { rdev } else { (0, 0) };
                let model = self.model.add(parent, &name, file);
                let real = filesystem
                    .make_node(parent_ino, &name, kind, 0o600, rdev, caller)
                    .await;
                let made = agree("mknod", real, &model);
                self.learn(model, made);
            }
            9 => {
                let id = self.pick(&all).expect("some");
                let model = if self.model.files[id].is_directory() {
                    Err(errno::EPERM)
                } else if self.model.files[parent].entries.contains_key(&name) {
                    Err(errno::EEXIST)
                } else {
                    self.model.files[parent].entries.insert(name.clone(), id);
                    self.model.files[id].names += 1;
                    Ok(())
                };
                let ino = self.model.files[id].ino;
                agree(
                    "link",
                    filesystem.link(ino, parent_ino, &name).await,
                    &model,
                );
            }
            10 | 11 => {
                let model = self.model.remove(parent, &name, false);
                agree("unlink", filesystem.unlink(parent_ino, &name).await, &model);
            }
            12 => {
                let model = self.model.remove(parent, &name, true);
                agree(
                    "rmdir",
                    filesystem.remove_directory(parent_ino, &name).await,
                    &model,
                );
            }
            13..=16 => {
                let to = self.pick(&directories).expect("some");
                let to_ino = self.model.files[to].ino;
                let new_name = self.name();
                let modes = [
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ];
                let mode = modes[self.random.below(4).min(2) as usize % 3];
                let model = self.model.rename(parent, &name, to, &new_name, mode);
                let real = filesystem
                    .rename(parent_ino, &name, to_ino, &new_name, mode)
                    .await;
                agree("rename", real, &model);
            }
            17..=21 => {
                let Some(id) = self.pick(&regular) else {
                    return;
                };
                let length = match self.random.below(3) {
                    0 => self.random.below(100),
                    1 => self.random.below(20_000),
                    _ => self.random.below(300_000),
                };
                let offset = match self.random.below(3) {
                    0 => self.model.size(id),
                    1 => self.random.below(self.max_size / 8),
                    _ => self.random.below(self.max_size),
                };
                let data = self.content(length);
                let file = &mut self.model.files[id];
                let end = (offset + length) as usize;
                if length > 0 {
                    if file.data.len() < end {
                        file.data.resize(end, 0);
                    }
                    file.data[offset as usize..end].copy_from_slice(&data);
                    if caller.uid != 0 && file.mode & 0o111 != 0 {
                        file.mode &= !0o6000;
                    }
                    file.mtime = None;
                }
                filesystem
                    .write(file.ino, offset, data.into(), false, caller)
                    .await
                    .expect("write");
            }
            22 => {
                let Some(id) = self.pick(&regular) else {
                    return;
                };
                let length = self.random.below(5000);
                let data = self.content(length);
                let file = &mut self.model.files[id];
                let at = filesystem
                    .append(file.ino, data.clone().into(), false, ROOT)
                    .await;
                assert_eq!(at.expect("append"), file.data.len() as u64);
                if !data.is_empty() {
                    file.mtime = None;
                }
                file.data.extend_from_slice(&data);
            }
            23 | 24 => {
                let Some(id) = self.pick(&regular) else {
                    return;
                };
                let size = match self.random.below(3) {
                    0 => 0,
                    1 => self.random.below(self.model.size(id) + 1),
                    _ => self.random.below(self.max_size),
                };
                let file = &mut self.model.files[id];
                file.data.resize(size as usize, 0);
                file.mtime = None;
                let set = SetAttributes {
                    size_bytes: Some(size),
                    ..SetAttributes::default()
                };
                let found = filesystem
                    .set_attributes(file.ino, &set, ROOT)
                    .await
                    .expect("cut");
                assert_eq!(found.size_bytes, size);
            }
            25 => {
                let Some(id) = self.pick(&regular) else {
                    return;
                };
                let offset = self.random.below(self.max_size);
                let length = 1 + self.random.below(self.max_size);
                let hows = [
                    Allocate::PunchHole,
                    Allocate::ZeroRange { keep_size: true },
                    Allocate::ZeroRange { keep_size: false },
                    Allocate::Reserve { keep_size: false },
                ];
                let how = self.pick(&hows).expect("some");
                let file = &mut self.model.files[id];
                let (size, end) = (file.data.len() as u64, offset + length);
                let grows = matches!(
                    how,
                    Allocate::ZeroRange { keep_size: false } | Allocate::Reserve { .. }
                );
                if grows && end > size {
                    file.data.resize(end as usize, 0);
                }
                if !matches!(how, Allocate::Reserve { .. }) {
                    let end = end.min(file.data.len() as u64) as usize;
                    if (offset as usize) < end {
                        file.data[offset as usize..end].fill(0);
                    }
                }
                file.mtime = None;
                filesystem
                    .allocate(file.ino, how, offset, length, ROOT)
                    .await
                    .expect("allocate");
            }
            26 => {
                let (Some(from), Some(to)) = (self.pick(&regular), self.pick(&regular)) else {
                    return;
                };
                if from == to {
                    return;
                }
                // Whole blocks can be shared.
                let unit = [1, 512, 8 << 10, 128 << 10][self.random.below(4) as usize];
                let (mut offset, mut at) = (
                    self.random.below(self.max_size) / unit * unit,
                    self.random.below(self.max_size) / unit * unit,
                );
                let mut length = self.random.below(200_000);
                if self.random.below(3) > 0 {
                    offset = 0;
                    length = self.max_size;
                    at = [0, 0, at][self.random.below(3) as usize];
                }
                let source = &self.model.files[from].data;
                let start = (offset as usize).min(source.len());
                let end = ((offset + length) as usize).min(source.len());
                let piece = source[start..end.max(start)].to_vec();
                let (from_ino, to_ino) = (self.model.files[from].ino, self.model.files[to].ino);
                let copied = filesystem
                    .copy_range(from_ino, offset, to_ino, at, length, ROOT)
                    .await
                    .expect("copy");
                assert_eq!(copied, piece.len() as u64);
                let file = &mut self.model.files[to];
                if !piece.is_empty() {
                    let end = at as usize + piece.len();
                    if file.data.len() < end {
                        file.data.resize(end, 0);
                    }
                    file.data[at as usize..end].copy_from_slice(&piece);
                    file.mtime = None;
                }
            }
            27 => {
                let id = self.pick(&all).expect("some");
                let file = &mut self.model.files[id];
                let mode = [0o644, 0o4755, 0o600, 0o2711, 0o7777][self.random.below(5) as usize];
                file.mode = mode;
                let set = SetAttributes {
                    mode: Some(mode),
                    ..SetAttributes::default()
                };
                filesystem
                    .set_attributes(file.ino, &set, ROOT)
                    .await
                    .expect("chmod");
            }
            28 => {
                let id = self.pick(&all).expect("some");
                let file = &mut self.model.files[id];
                (file.uid, file.gid) = (self.random.below(5) as u32, self.random.below(5) as u32);
                if !file.is_directory() {
                    file.mode &= !0o6000;
                }
                let time = Time {
                    seconds: -7,
                    nanoseconds: 5,
                };
                file.mtime = Some(time);
                let set = SetAttributes {
                    uid: Some(file.uid),
                    gid: Some(file.gid),
                    atime: Some(SetTime::Now),
                    mtime: Some(SetTime::At(time)),
                    ..SetAttributes::default()
                };
                filesystem
                    .set_attributes(file.ino, &set, ROOT)
                    .await
                    .expect("chown");
            }
            29 | 30 => {
                let id = self.pick(&all).expect("some");
                let name = format!("user.attribute{}", self.random.below(4)).into_bytes();
                let length = match self.random.below(5) {
                    0 => 0,
                    1 => 40_000,
                    2 => 20_000,
                    _ => self.random.below(200),
                };
                let value = self.content(length);
                let modes = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
                let mode = self.pick(&modes).expect("some");
                let file = &mut self.model.files[id];
                let model = match (mode, file.xattrs.contains_key(&name)) {
                    (XattrMode::Create, true) => Err(errno::EEXIST),
                    (XattrMode::Replace, false) => Err(errno::ENODATA),
                    _ => Ok(()),
                };
                if model.is_ok() {
                    file.xattrs.insert(name.clone(), value.clone());
                }
                let real = filesystem
                    .xattrs()
                    .set(file.ino, &name, &value, mode, ROOT)
                    .await;
                agree("set an attribute", real, &model);
            }
            31 => {
                let id = self.pick(&all).expect("some");
                let name = format!("user.attribute{}", self.random.below(4)).into_bytes();
                let file = &mut self.model.files[id];
                let model = file.xattrs.remove(&name).ok_or(errno::ENODATA);
                let real = filesystem.xattrs().remove(file.ino, &name).await;
                agree("remove an attribute", real, &model);
            }
            32 => {
                // A file that is unlinked while it is open.
                let Some(id) = self.pick(&regular) else {
                    return;
                };
                let ino = self.model.files[id].ino;
                let entry = self.model.files[parent]
                    .entries
                    .iter()
                    .find(|(_, there)| **there == id);
                let Some(name) = entry.map(|(name, _)| name.clone()) else {
                    return;
                };
                filesystem.retain(ino, 1);
                let model = self.model.remove(parent, &name, false);
                agree("unlink", filesystem.unlink(parent_ino, &name).await, &model);
                let data = self.model.files[id].data.clone();
                let read = filesystem
                    .read(ino, 0, data.len() + 1)
                    .await
                    .expect("read")
                    .concat();
                assert!(read == data, "an open file keeps its content");
                let more = b"more".to_vec();
                filesystem
                    .write(ino, 3, more.into(), false, ROOT)
                    .await
                    .expect("write");
                if self.model.files[id].names > 0 {
                    let file = &mut self.model.files[id];
                    file.data.resize(file.data.len().max(7), 0);
                    file.data[3..7].copy_from_slice(b"more");
                    file.mtime = None;
                }
                filesystem.release(ino, 1);
            }
            _ => {
                let Some(id) = self.pick(&regular) else {
                    return;
                };
                let file = &self.model.files[id];
                let offset = self.random.below(self.max_size);
                let length = self.random.below(100_000) as usize;
                let start = (offset as usize).min(file.data.len());
                let end = (start + length).min(file.data.len());
                let real = filesystem
                    .read(file.ino, offset, length)
                    .await
                    .expect("read")
                    .concat();
                assert!(real == file.data[start..end], "read {length} at {offset}");
            }
        }
    }

    /// Everything is as the model says.
    pub async fn compare(&mut self) {
        let filesystem = &self.filesystem;
        for id in self.reachable() {
            let file = &self.model.files[id];
            let at = filesystem.attributes(file.ino).await.expect("attributes");
            let what = format!("file {id}, object {}", file.ino);
            assert_eq!(Some(at.kind), file.kind, "{what}");
            assert_eq!(at.mode, file.mode, "{what}: mode");
            assert_eq!((at.uid, at.gid), (file.uid, file.gid), "{what}: owner");
            assert_eq!(at.size_bytes, self.model.size(id), "{what}: size");
            assert_eq!(at.nlink, self.model.links(id), "{what}: links");
            assert_eq!(at.rdev, file.rdev, "{what}: device");
            if let Some(mtime) = file.mtime
                && !file.is_directory()
            {
                assert_eq!(at.mtime, mtime, "{what}: mtime");
            }
            if file.is_directory() {
                let mut found = BTreeMap::new();
                let mut cookie = 0;
                loop {
                    let batch = 1 + self.random.0 as usize % 7;
                    let entries = filesystem
                        .read_directory(file.ino, cookie, batch)
                        .await
                        .expect("list");
                    let Some(last) = entries.last() else { break };
                    cookie = last.next_cookie;
                    for entry in entries {
                        found.insert(entry.name, (entry.ino, entry.kind));
                    }
                }
                let parent = self.model.files[file.parent].ino;
                assert_eq!(
                    found.remove(&b"."[..]).map(|(ino, _)| ino),
                    Some(file.ino),
                    "{what}"
                );
                assert_eq!(
                    found.remove(&b".."[..]).map(|(ino, _)| ino),
                    Some(parent),
                    "{what}"
                );
                let wanted: BTreeMap<_, _> = file
                    .entries
                    .iter()
                    .map(|(name, id)| {
                        let child = &self.model.files[*id];
                        (name.clone(), (child.ino, child.kind))
                    })
                    .collect();
                assert_eq!(found, wanted, "{what}: entries");
            }
            if file.kind == Some(FileKind::Regular) {
                let mut real = Vec::new();
                while real.len() < file.data.len() {
                    let at = real.len() as u64;
                    for piece in filesystem.read(file.ino, at, 777_777).await.expect("read") {
                        real.extend_from_slice(&piece);
                    }
                }
                let first = real.iter().zip(&file.data).position(|(a, b)| a != b);
                assert_eq!(first, None, "{what}: content (size {})", file.data.len());
                self.check_holes(file).await;
            }
            if file.kind == Some(FileKind::Symlink) {
                let target = filesystem.read_link(file.ino).await.expect("target");
                assert_eq!(target, file.target, "{what}");
            }
            let mut names = filesystem
                .xattrs()
                .names(file.ino)
                .await
                .expect("attributes");
            names.sort();
            assert!(names.iter().eq(file.xattrs.keys()), "{what}: {names:?}");
            for (name, value) in &file.xattrs {
                let real = filesystem
                    .xattrs()
                    .get(file.ino, name)
                    .await
                    .expect("attribute");
                assert!(real == value, "{what}: an attribute's value");
            }
        }
    }

    /// Holes read as zeros, and data and holes alternate.
    pub async fn check_holes(&self, file: &File) {
        let size = file.data.len() as u64;
        let mut place = 0;
        while place < size {
            let data = match self.filesystem.seek(file.ino, place, SeekTo::Data).await {
                Ok(data) => data,
                Err(FsError::NoSuchPlace { .. }) => size,
                Err(error) => panic!("{error}"),
            };
            let hole = &file.data[place as usize..data as usize];
            assert!(hole.iter().all(|byte| *byte == 0), "a hole with data in it");
            if data >= size {
                break;
            }
            place = self
                .filesystem
                .seek(file.ino, data, SeekTo::Hole)
                .await
                .expect("a hole");
            assert!(place > data);
        }
    }
}

impl Run {
    /// An empty model for an empty filesystem.
    pub async fn new(seed: u64, filesystem: std::sync::Arc<Filesystem>, max_size: u64) -> Self {
        let root = filesystem
            .attributes(filesystem.root())
            .await
            .expect("root");
        let root = File {
            ino: root.ino,
            kind: Some(FileKind::Directory),
            mode: root.mode,
            ..File::default()
        };
        Self {
            random: Random(seed),
            model: Model { files: vec![root] },
            filesystem,
            max_size,
        }
    }
}
