//! Work on files.

use std::sync::Arc;

use filesystem::{Allocate, Caller, FileKind, Filesystem, RenameMode, SetAttributes, XattrMode};

use super::{FILES_MAX, Worker};
use crate::model::{Content, File, FileId, FsModel, ROOT, State};
use crate::verify::Failure;

/// What a filesystem is to hold next.
fn set_files(state: &mut State, name: &str, model: FsModel) {
    let dataset = state.get_mut(name).expect("a dataset of the state");
    dataset.content = Arc::new(Content::Files(model));
}

impl Worker {
    pub(super) async fn file_step(&mut self, name: &str, mut state: State) -> Result<(), Failure> {
        let fs = self.files(name).await?;
        let dataset = state.get_mut(name).expect("a dataset of the state");
        let Content::Files(model) = &*dataset.content else {
            return Ok(());
        };
        let mut model = model.clone();
        let dirs = model.of_kind(FileKind::Directory);
        let files = model.of_kind(FileKind::Regular);
        let parent = self.rng.pick(&dirs).unwrap_or(ROOT);
        let file = self.rng.pick(&files);
        let crowded = model.files.len() > FILES_MAX;
        let set = |state: &mut State, model: FsModel| set_files(state, name, model);
        if self.options.copies && self.rng.percent(25) {
            return self.copy(name, &fs, state, model).await;
        }
        if self.options.rewrites && self.rng.percent(20) {
            return match file {
                Some(file) => self.rewrite(name, &fs, state, file).await,
                None => Ok(()),
            };
        }
        let ino = |id: FileId| self.book.lock().ids.ino(&fs, id);
        match self.rng.below(100) {
            0..=17 if !crowded => self.make(name, &fs, state, model, parent).await,
            18..=44 => {
                let Some(id) = file else { return Ok(()) };
                let size = model.files[&id].data.len() as u64;
                let offset = match self.rng.below(3) {
                    0 => size,
                    1 => self.rng.below(size + 1) / 4096 * 4096,
                    _ => self.rng.below(size + size / 4 + 4096),
                };
                let length = match self.rng.below(3) {
                    0 => 1 + self.rng.below(300),
                    1 => 1 + self.rng.below(20 << 10),
                    _ => 1 + self.rng.below(200 << 10),
                };
                if offset + length > self.options.file_bytes_max {
                    return Ok(());
                }
                let content = match self.options.repeats {
                    true => crate::dedup::content(&mut self.rng, offset, length as usize),
                    false => self.rng.content(length as usize),
                };
                let data = Arc::make_mut(&mut model.file(id).data);
                let end = (offset + length) as usize;
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[offset as usize..end].copy_from_slice(&content);
                set(&mut state, model);
                let what = format!("{name}: write file {id} {offset}+{length}");
                self.issue(what.clone(), state);
                let ino = self.book.lock().ids.ino(&fs, id);
                let result = fs
                    .write(ino, offset, content.into(), false, Caller::ROOT)
                    .await;
                self.settle(&what, result)?;
                Ok(())
            }
            45..=52 => {
                let Some(id) = file else { return Ok(()) };
                let size = model.files[&id].data.len() as u64;
                let new = match self.rng.below(3) {
                    0 => 0,
                    1 => self.rng.below(size + 1),
                    _ => self
                        .rng
                        .below((size * 2 + 1000).min(self.options.file_bytes_max)),
                };
                Arc::make_mut(&mut model.file(id).data).resize(new as usize, 0);
                set(&mut state, model);
                let what = format!("{name}: truncate file {id} {size} -> {new}");
                let ino = ino(id);
                self.issue(what.clone(), state);
                let attributes = SetAttributes {
                    size_bytes: Some(new),
                    ..SetAttributes::default()
                };
                let result = fs.set_attributes(ino, &attributes, Caller::ROOT).await;
                self.settle(&what, result)?;
                Ok(())
            }
            53..=57 => {
                let Some(id) = file else { return Ok(()) };
                let size = model.files[&id].data.len() as u64;
                let start = self.rng.below(size + 1);
                let length = 1 + self.rng.below(300 << 10);
                let data = Arc::make_mut(&mut model.file(id).data);
                let end = ((start + length) as usize).min(data.len());
                data[(start as usize).min(end)..end].fill(0);
                set(&mut state, model);
                let what = format!("{name}: punch file {id} {start}+{length}");
                let ino = ino(id);
                self.issue(what.clone(), state);
                let result = fs
                    .allocate(ino, Allocate::PunchHole, start, length, Caller::ROOT)
                    .await;
                self.settle(&what, result)?;
                Ok(())
            }
            58..=67 => self.rename(name, &fs, state, model).await,
            68..=76 => self.remove(name, &fs, state, model, parent).await,
            77..=82 => {
                let Some(id) = file else { return Ok(()) };
                let new = format!("l{}", self.rng.below(200)).into_bytes();
                if model.files[&parent].entries.contains_key(&new) {
                    return Ok(());
                }
                model.link(parent, &new, id);
                model.file(id).links += 1;
                set(&mut state, model);
                let (from, to) = (ino(id), ino(parent));
                self.issue(format!("{name}: link file {id}"), state);
                let result = fs.link(from, to, &new).await;
                self.settle("link", result)?;
                Ok(())
            }
            83..=91 => self.attribute(name, &fs, state, model).await,
            92..=96 => {
                let all: Vec<FileId> = model.files.keys().copied().collect();
                let id = self.rng.pick(&all).unwrap_or(ROOT);
                if model.files[&id].kind == FileKind::Symlink {
                    return Ok(());
                }
                let mode = 0o400 | self.rng.below(0o400) as u32;
                let owner = (self.rng.below(5) as u32, self.rng.below(5) as u32);
                model.file(id).mode = mode;
                model.file(id).owner = owner;
                set(&mut state, model);
                let ino = self.book.lock().ids.ino(&fs, id);
                self.issue(format!("{name}: chmod file {id} {mode:o} {owner:?}"), state);
                let attributes = SetAttributes {
                    mode: Some(mode),
                    uid: Some(owner.0),
                    gid: Some(owner.1),
                    ..SetAttributes::default()
                };
                let result = fs.set_attributes(ino, &attributes, Caller::ROOT).await;
                self.settle("chmod", result)?;
                Ok(())
            }
            _ => {
                let Some(id) = file else { return Ok(()) };
                let wanted = model.files[&id].data.clone();
                let start = self.rng.below(wanted.len() as u64 + 1);
                let length = self.rng.below(100 << 10) as usize;
                let found = fs.read(ino(id), start, length).await?.concat();
                let start = start as usize;
                if found != wanted[start..(start + length).min(wanted.len())] {
                    return Err(format!("file {id} read {start}+{length} is wrong").into());
                }
                Ok(())
            }
        }
    }

    fn inos(&self, fs: &Filesystem, files: [FileId; 2]) -> [u64; 2] {
        let book = self.book.lock();
        files.map(|id| book.ids.ino(fs, id))
    }

    /// Rewrites a part of a file or a whole one, which changes nothing that is seen.
    async fn rewrite(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        state: State,
        file: FileId,
    ) -> Result<(), Failure> {
        let physically = self.rng.percent(60);
        let start = match self.rng.percent(50) {
            true => 0,
            false => self.rng.below(self.options.file_bytes_max),
        };
        let length = 1 + self.rng.below(self.options.file_bytes_max);
        let what = format!("{name}: rewrite file {file} {start}+{length} {physically}");
        let ino = self.book.lock().ids.ino(fs, file);
        self.issue(what.clone(), state);
        let mut at = Some(start);
        while let Some(from) = at {
            let part = fs.rewrite_part(ino, from, start + length, physically).await;
            at = self.settle(&what, part)?.flatten();
        }
        Ok(())
    }

    /// Copies a part of a file to another, or a whole one.
    async fn copy(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        mut state: State,
        mut model: FsModel,
    ) -> Result<(), Failure> {
        let files = model.of_kind(FileKind::Regular);
        let (Some(from), Some(to)) = (self.rng.pick(&files), self.rng.pick(&files)) else {
            return Ok(());
        };
        let source = model.files[&from].data.clone();
        let unit = [512, 8 << 10, 128 << 10][self.rng.below(3) as usize];
        let (start, at) = match self.rng.below(3) {
            0 => (0, 0),
            _ => (
                self.rng.below(source.len() as u64 + 1) / unit * unit,
                self.rng.below(self.options.file_bytes_max) / unit * unit,
            ),
        };
        let length = 128 << 10;
        let end = (start + length).min(source.len() as u64);
        let target_end = model.files[&to].data.len() as u64;
        // Not more than one transaction takes, for a power cut may end it in between: blocks are
        // shared or all is copied.
        let is_whole = end == start + length || at + (end - start) >= target_end;
        if end <= start || from == to || !is_whole || at + length > self.options.file_bytes_max {
            return Ok(());
        }
        let piece = &source[start as usize..end as usize];
        let data = Arc::make_mut(&mut model.file(to).data);
        let data_end = at as usize + piece.len();
        if data.len() < data_end {
            data.resize(data_end, 0);
        }
        data[at as usize..data_end].copy_from_slice(piece);
        set_files(&mut state, name, model);
        let what = format!("{name}: copy file {from} {start}+{length} to file {to} {at}");
        let [from, to] = self.inos(fs, [from, to]);
        self.issue(what.clone(), state);
        let result = fs
            .copy_range(from, start, to, at, length, Caller::ROOT)
            .await;
        if let Some(copied) = self.settle(&what, result)?
            && copied != end - start
        {
            return Err(format!("{what}: {copied} bytes were copied").into());
        }
        Ok(())
    }

    async fn make(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        mut state: State,
        mut model: FsModel,
        parent: FileId,
    ) -> Result<(), Failure> {
        let new = match self.rng.below(30) {
            0 => vec![b'x'; 255],
            _ => format!("f{}", self.rng.below(300)).into_bytes(),
        };
        if model.files[&parent].entries.contains_key(&new) {
            return Ok(());
        }
        let id = self.book.lock().ids.fresh();
        let kind = match self.rng.below(10) {
            0..=1 => FileKind::Directory,
            2 => FileKind::Symlink,
            _ => FileKind::Regular,
        };
        let mode = match kind {
            FileKind::Symlink => 0o777,
            _ => 0o600 | self.rng.below(0o200) as u32,
        };
        let mut made = File::new(kind, mode);
        let length = 1 + self.rng.below(200);
        let target = vec![b't'; length as usize];
        if kind == FileKind::Symlink {
            made.data = Arc::new(target.clone());
        }
        model.files.insert(id, Arc::new(made));
        model.link(parent, &new, id);
        set_files(&mut state, name, model);
        let at = self.book.lock().ids.ino(fs, parent);
        let what = format!("{name}: make {kind:?} {id} in {parent}");
        self.issue(what.clone(), state);
        let result = match kind {
            FileKind::Directory => fs.make_directory(at, &new, mode, Caller::ROOT).await,
            FileKind::Symlink => fs.symlink(at, &new, &target, Caller::ROOT).await,
            _ => fs.create(at, &new, mode, Caller::ROOT).await,
        };
        if let Some(found) = self.settle(&what, result)? {
            self.book.lock().ids.set(id, found.ino);
        }
        Ok(())
    }

    fn any_entry(&mut self, model: &FsModel) -> Option<(FileId, Vec<u8>, FileId)> {
        let all: Vec<(FileId, Vec<u8>, FileId)> = model
            .files
            .iter()
            .flat_map(|(dir, file)| {
                let entry = |(name, id): (&Vec<u8>, &FileId)| (*dir, name.clone(), *id);
                file.entries.iter().map(entry).collect::<Vec<_>>()
            })
            .collect();
        self.rng.pick(&all)
    }

    async fn rename(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        mut state: State,
        mut model: FsModel,
    ) -> Result<(), Failure> {
        let Some((from, old, id)) = self.any_entry(&model) else {
            return Ok(());
        };
        let dirs = model.of_kind(FileKind::Directory);
        let mut to = self.rng.pick(&dirs).unwrap_or(ROOT);
        let mut new = format!("r{}", self.rng.below(300)).into_bytes();
        if self.rng.percent(40)
            && let Some((dir, entry, _)) = self.any_entry(&model)
        {
            (to, new) = (dir, entry);
        }
        let victim = model.files[&to].entries.get(&new).copied();
        if victim == Some(id) || model.is_within(to, id) {
            return Ok(());
        }
        let is_dir = |id: FileId| model.files[&id].kind == FileKind::Directory;
        let exchange = victim.is_some() && self.rng.percent(30);
        let mode = if exchange {
            RenameMode::Exchange
        } else {
            RenameMode::Replace
        };
        if let Some(victim) = victim {
            if model.is_within(from, victim) {
                return Ok(());
            }
            let fits = is_dir(victim) == is_dir(id)
                && (!is_dir(victim) || model.files[&victim].entries.is_empty());
            if !exchange && !fits {
                return Ok(());
            }
        }
        match victim {
            Some(victim) if exchange => {
                model.link(from, &old, victim);
                model.link(to, &new, id);
            }
            _ => {
                model.unlink(to, &new);
                Arc::make_mut(&mut model.file(from).entries).remove(&old);
                model.link(to, &new, id);
            }
        }
        set_files(&mut state, name, model);
        let what = format!("{name}: rename ({mode:?}) file {id} to {to}, over {victim:?}");
        self.issue(what.clone(), state);
        let [from, to] = self.inos(fs, [from, to]);
        let result = fs.rename(from, &old, to, &new, mode).await;
        self.settle(&what, result)?;
        Ok(())
    }

    async fn remove(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        mut state: State,
        mut model: FsModel,
        _parent: FileId,
    ) -> Result<(), Failure> {
        let Some((dir, entry, id)) = self.any_entry(&model) else {
            return Ok(());
        };
        let is_dir = model.files[&id].kind == FileKind::Directory;
        if is_dir && !model.files[&id].entries.is_empty() {
            return Ok(());
        }
        model.unlink(dir, &entry);
        set_files(&mut state, name, model);
        let what = format!("{name}: remove file {id}");
        self.issue(what.clone(), state);
        let at = self.book.lock().ids.ino(fs, dir);
        let result = if is_dir {
            fs.remove_directory(at, &entry).await
        } else {
            fs.unlink(at, &entry).await
        };
        self.settle(&what, result)?;
        Ok(())
    }

    async fn attribute(
        &mut self,
        name: &str,
        fs: &Arc<Filesystem>,
        mut state: State,
        mut model: FsModel,
    ) -> Result<(), Failure> {
        let all: Vec<FileId> = model.files.keys().copied().collect();
        let id = self.rng.pick(&all).unwrap_or(ROOT);
        if model.files[&id].kind == FileKind::Symlink {
            return Ok(());
        }
        let key = format!("user.a{}", self.rng.below(6)).into_bytes();
        let has = model.files[&id].xattrs.contains_key(&key);
        let ino = self.book.lock().ids.ino(fs, id);
        let removes = has && self.rng.percent(40);
        let length = match self.rng.below(4) {
            0 => self.rng.below(20),
            1 => self.rng.below(3000),
            2 => self.rng.below(300),
            _ => self.rng.below(60),
        };
        let value = self.rng.content(length as usize);
        let xattrs = Arc::make_mut(&mut model.file(id).xattrs);
        if removes {
            xattrs.remove(&key);
        } else {
            xattrs.insert(key.clone(), value.clone());
        }
        set_files(&mut state, name, model);
        let what = format!("{name}: attribute of file {id}, {length} bytes, {removes}");
        self.issue(what.clone(), state);
        let result = if removes {
            fs.xattrs().remove(ino, &key).await
        } else {
            fs.xattrs()
                .set(ino, &key, &value, XattrMode::Any, Caller::ROOT)
                .await
        };
        self.settle(&what, result)?;
        Ok(())
    }
}
