//! Random operations.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataset::{DatasetError, KeyChange, KeyFormat, NewKey, ObjsetInit, ReceiveObstacle};
use filesystem::{Caller, SetAttributes};
use volume::{Volume, ZvolInit};

use super::found::wrapping;
use super::model::{CONTENT, Mark, PoolModel, Refused, USERS, VOLUME_BYTES};
use super::{Opened, Run};
use crate::torture::POOL;
use crate::verify::Failure;

/// Filesystems and volumes of a pool.
pub(super) const SETS_MAX: usize = 8;
/// Snapshots of a filesystem.
pub(super) const SNAPS_MAX: usize = 6;
/// Blocks of volumes, in bytes; what is written within one is written at once.
const VOLUME_BLOCK_BYTES: u64 = 16 << 10;
/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 300 << 10;
const FILES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const TAGS: [&str; 3] = ["one", "two", "three"];

fn new_key(user: u8) -> Result<NewKey, DatasetError> {
    NewKey::new(KeyFormat::Raw, wrapping(user))
}

/// Properties of a new encryption root.
fn encrypted() -> Vec<(String, String)> {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![pair("encryption", "on"), pair("keyformat", "raw")]
}

pub(super) fn is_as_told(refused: Refused, error: &DatasetError) -> bool {
    use DatasetError as Error;
    let obstacle = match error {
        Error::Receive { obstacle, .. } => Some(*obstacle),
        _ => None,
    };
    match refused {
        Refused::Exists => {
            matches!(error, Error::Exists { .. }) || obstacle == Some(ReceiveObstacle::Exists)
        }
        Refused::HasChildren => matches!(
            error,
            Error::HasChildren { .. } | Error::HasSnapshots { .. }
        ),
        Refused::HasSnapshots => matches!(
            error,
            Error::HasChildren { .. } | Error::HasSnapshots { .. }
        ),
        Refused::HasClones => matches!(error, Error::HasClones { .. }),
        Refused::Held => matches!(error, Error::Held { .. }),
        Refused::NotAClone | Refused::Key => matches!(error, Error::WrongKind { .. }),
        Refused::NotEncrypted => obstacle == Some(ReceiveObstacle::NotEncrypted),
        Refused::OtherKey => obstacle == Some(ReceiveObstacle::OtherKey),
        Refused::OtherIvs => obstacle == Some(ReceiveObstacle::IvSetMismatch),
        Refused::NoSource => obstacle == Some(ReceiveObstacle::NoSource),
        Refused::Modified => obstacle == Some(ReceiveObstacle::Modified),
    }
}

impl Run {
    pub(super) async fn step(&mut self, side: usize) -> Result<(), Failure> {
        let count = self.sides[side].model().sets.len();
        if count < 2 {
            return self.create(side).await;
        }
        if self.has_programs && self.rng.percent(25) {
            return self.program(side).await;
        }
        let has_rests = !self.sides[side].rests.is_empty();
        match self.rng.below(100) {
            0..=24 => self.write(side).await,
            25..=36 => self.snapshot(side).await,
            37..=40 => self.create(side).await,
            41..=46 => self.clone_one(side).await,
            47..=51 => self.promote(side).await,
            52..=55 => self.rename(side).await,
            56..=58 => self.rename_snapshot(side).await,
            59..=62 => self.rollback(side).await,
            63..=69 => self.destroy_snapshots(side).await,
            70..=73 => self.destroy(side).await,
            74..=76 => self.hold(side).await,
            77..=78 => self.release(side).await,
            79..=81 => self.bookmark(side).await,
            82 => self.change_key(side).await,
            83..=88 if has_rests => self.resume(side).await,
            89 if has_rests => {
                let names: Vec<String> = self.sides[side].rests.keys().cloned().collect();
                let name = self.rng.pick(&names).ok_or("no rests")?;
                self.abandon(side, &name).await
            }
            _ => self.receive(side).await,
        }
    }

    pub(super) fn pick_set(&mut self, side: usize) -> Result<String, Failure> {
        let names: Vec<String> = self.sides[side].model().sets.keys().cloned().collect();
        self.rng.pick(&names).ok_or_else(|| "no filesystems".into())
    }

    /// What there should be now, to be changed.
    pub(super) fn next(&self, side: usize) -> PoolModel {
        (**self.sides[side].model()).clone()
    }

    /// Does what the model has done already, or has refused.
    pub(super) async fn agree<T>(
        &mut self,
        side: usize,
        op: &'static str,
        what: &str,
        told: (PoolModel, Result<(), Refused>),
        work: impl Future<Output = Result<T, DatasetError>>,
    ) -> Result<bool, Failure> {
        let (model, told) = told;
        let what = format!("pool {side}: {op} {what}");
        if told.is_ok() {
            self.sides[side].issue(&what, model);
        }
        match (told, work.await) {
            (Ok(()), Ok(_)) => {
                self.sides[side].is_synced();
                *self.outcome.done.entry(op).or_default() += 1;
                Ok(true)
            }
            (Err(refused), Err(error)) if is_as_told(refused, &error) => {
                *self.outcome.refused.entry(op).or_default() += 1;
                Ok(false)
            }
            (told, Ok(_)) => Err(format!("{what}: done, though {told:?}").into()),
            (told, Err(error)) => Err(format!("{what}: {error}, though {told:?}").into()),
        }
    }

    /// Gives the rest of a receive up.
    pub(super) async fn abandon(&mut self, side: usize, name: &str) -> Result<(), Failure> {
        if !self.sides[side].rests.contains_key(name) {
            return Ok(());
        }
        let dsl = self.sides[side].pool().dsl().clone();
        let aborted = dsl.receives().abort(name).await;
        aborted.map_err(|error| format!("pool {side}: abort {name}: {error}"))?;
        self.sides[side].rests.remove(name);
        *self.outcome.done.entry("abort").or_default() += 1;
        Ok(())
    }

    pub(super) async fn abandon_all(&mut self, side: usize) -> Result<(), Failure> {
        let names: Vec<String> = self.sides[side].rests.keys().cloned().collect();
        for name in names {
            self.abandon(side, &name).await?;
        }
        Ok(())
    }

    /// A new name, in the pool or below a filesystem.
    pub(super) fn new_name(&mut self, side: usize) -> Result<String, Failure> {
        let own = self.name("n");
        let parent = match self.rng.percent(50) {
            true => POOL.to_owned(),
            false => self.pick_set(side).unwrap_or_else(|_| POOL.to_owned()),
        };
        // What only a receive has begun has none below it, and no volume has.
        let known = self.sides[side].model().sets.get(&parent);
        match known.is_some_and(|parent| !parent.is_volume) {
            true => Ok(format!("{parent}/{own}")),
            false => Ok(format!("{POOL}/{own}")),
        }
    }

    async fn create(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        if model.sets.len() >= SETS_MAX {
            return Ok(());
        }
        let name = self.new_name(side)?;
        let is_volume = self.rng.percent(25);
        let user = match self.rng.percent(35) {
            true => Some(self.user()),
            false => None,
        };
        model.create(&name, is_volume, self.fresh(), user);
        let dsl = self.sides[side].pool().dsl().clone();
        let init: Arc<dyn ObjsetInit> = match is_volume {
            true => Arc::new(ZvolInit::new(VOLUME_BYTES, VOLUME_BLOCK_BYTES as u32)),
            false => Arc::new(filesystem::ZplInit::new()),
        };
        let work = async {
            let properties = user.map_or(Vec::new(), |_| encrypted());
            let key = user.map(new_key).transpose()?;
            let datasets = dsl.datasets();
            datasets
                .create_with_key(&name, &properties, init, key)
                .await
        };
        let op = match (is_volume, user) {
            (_, Some(_)) => "create encrypted",
            (true, None) => "create volume",
            (false, None) => "create",
        };
        self.agree(side, op, &name, (model, Ok(())), work).await?;
        Ok(())
    }

    fn user(&mut self) -> u8 {
        1 + self.rng.below(USERS.into()) as u8
    }

    async fn change_key(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        let encrypted = model.sets.iter().filter(|(_, set)| set.key.is_some());
        let encrypted: Vec<String> = encrypted.map(|(name, _)| name.clone()).collect();
        let name = match self.rng.pick(&encrypted) {
            Some(name) if self.rng.percent(90) => name,
            _ => self.pick_set(side)?,
        };
        self.abandon_all(side).await?;
        let user = match self.rng.percent(60) {
            true => Some(self.user()),
            false => None,
        };
        let told = model.change_key(&name, user);
        let dsl = self.sides[side].pool().dsl().clone();
        let work = async {
            let change = match user {
                Some(user) => KeyChange::New {
                    key: new_key(user)?,
                    location: Some("prompt".into()),
                },
                None => KeyChange::Inherit,
            };
            dsl.keys().change(&name, change, &[]).await
        };
        let what = format!("{name} {user:?}");
        self.agree(side, "change key", &what, (model, told), work)
            .await?;
        Ok(())
    }

    async fn write(&mut self, side: usize) -> Result<(), Failure> {
        let name = self.pick_set(side)?;
        self.abandon(side, &name).await?;
        let fs = match self.sides[side].opened(&name).await? {
            Opened::Filesystem(fs) => fs,
            Opened::Volume(volume) => return self.write_volume(side, &name, &volume).await,
        };
        for _ in 0..1 + self.rng.below(3) {
            let file = self.rng.pick(&FILES).ok_or("no names")?;
            let mut model = self.next(side);
            let size = model.sets[&name]
                .files
                .get(file)
                .map(|data| data.len() as u64);
            let what = format!("pool {side}: write {name} {file}");
            let Some(size) = size else {
                model.write(&name, |files| {
                    files.insert(file.to_owned(), Arc::default());
                });
                self.sides[side].issue(&what, model);
                fs.create(fs.root(), file.as_bytes(), 0o644, Caller::ROOT)
                    .await?;
                continue;
            };
            let ino = fs.lookup(fs.root(), file.as_bytes()).await?.ino;
            match self.rng.below(10) {
                0 => {
                    model.write(&name, |files| {
                        files.remove(file);
                    });
                    self.sides[side].issue(&what, model);
                    fs.unlink(fs.root(), file.as_bytes()).await?;
                }
                1 => {
                    let new = self.rng.below(size + 1);
                    model.write(&name, |files| {
                        let data = files.get_mut(file).expect("a file");
                        Arc::make_mut(data).truncate(new as usize);
                    });
                    self.sides[side].issue(&what, model);
                    let attributes = SetAttributes {
                        size_bytes: Some(new),
                        ..SetAttributes::default()
                    };
                    fs.set_attributes(ino, &attributes, Caller::ROOT).await?;
                }
                _ => {
                    let offset = match self.rng.below(3) {
                        0 => size,
                        1 => 0,
                        _ => self.rng.below(size + 5000),
                    };
                    let most = [500, 20 << 10, 150 << 10][self.rng.below(3) as usize];
                    let length = 1 + self.rng.below(most);
                    if offset + length > FILE_BYTES_MAX {
                        continue;
                    }
                    let content = self.rng.content(length as usize);
                    let end = (offset + length) as usize;
                    model.write(&name, |files| {
                        let data = Arc::make_mut(files.get_mut(file).expect("a file"));
                        if data.len() < end {
                            data.resize(end, 0);
                        }
                        data[offset as usize..end].copy_from_slice(&content);
                    });
                    self.sides[side].issue(&what, model);
                    fs.write(ino, offset, content.into(), false, Caller::ROOT)
                        .await?;
                }
            }
        }
        *self.outcome.done.entry("write").or_default() += 1;
        Ok(())
    }

    async fn write_volume(
        &mut self,
        side: usize,
        name: &str,
        volume: &Volume,
    ) -> Result<(), Failure> {
        for _ in 0..1 + self.rng.below(4) {
            let first = self.rng.below(VOLUME_BYTES / VOLUME_BLOCK_BYTES) * VOLUME_BLOCK_BYTES;
            let (offset, length) = match self.rng.percent(60) {
                true => (first, VOLUME_BLOCK_BYTES),
                false => {
                    let within = self.rng.below(VOLUME_BLOCK_BYTES / 512);
                    let rest = VOLUME_BLOCK_BYTES / 512 - within;
                    (first + within * 512, 512 * (1 + self.rng.below(rest)))
                }
            };
            let is_unmapped = self.rng.percent(20);
            let content = match is_unmapped {
                true => vec![0; length as usize],
                false => self.rng.content(length as usize),
            };
            let mut model = self.next(side);
            let range = offset as usize..(offset + length) as usize;
            if model.sets[name].files[CONTENT][range.clone()] == content {
                // Zeros where there is nothing are no change.
                continue;
            }
            model.write(name, |files| {
                let data = Arc::make_mut(files.get_mut(CONTENT).expect("its content"));
                data[range].copy_from_slice(&content);
            });
            let what = format!("pool {side}: write {name} {length} bytes at {offset}");
            self.sides[side].issue(&what, model);
            match is_unmapped {
                true => volume.write_zeroes(offset, length, false).await?,
                false => volume.write(offset, content.into(), false).await?,
            }
        }
        *self.outcome.done.entry("write volume").or_default() += 1;
        Ok(())
    }

    async fn snapshot(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        let is_many = self.rng.percent(30);
        let one = self.pick_set(side)?;
        let mut ids = Vec::new();
        let names: Vec<String> = model.sets.keys().cloned().collect();
        for name in names {
            let is_meant = name == one || is_many;
            if is_meant && model.sets[&name].snaps.len() < SNAPS_MAX {
                self.abandon(side, &name).await?;
                ids.push((name, self.fresh()));
            }
        }
        if ids.is_empty() {
            return Ok(());
        }
        let old = &model.sets[&ids[0].0].snaps;
        let short = match old.last() {
            Some(last) if self.rng.percent(10) => last.name.clone(),
            _ => self.name("s"),
        };
        let told = model.snapshot(&ids, &short);
        let names: Vec<String> = ids
            .iter()
            .map(|(name, _)| format!("{name}@{short}"))
            .collect();
        let dsl = self.sides[side].pool().dsl().clone();
        let work = async { dsl.snapshots().take(&names, &[]).await };
        let what = names.join(" ");
        if self
            .agree(side, "snapshot", &what, (model, told), work)
            .await?
        {
            for (name, (_, id)) in names.iter().zip(&ids) {
                let guid = dsl.directories().lookup(name).await?.guid;
                self.guids.insert(*id, guid.get());
            }
        }
        Ok(())
    }

    /// A snapshot that is not waiting to go.
    fn pick_snapshot(&mut self, side: usize) -> Option<u64> {
        let model = self.sides[side].model().clone();
        let all = model.sets.values().flat_map(|set| &set.snaps);
        let numbers: Vec<u64> = all
            .filter(|snap| !snap.is_doomed)
            .map(|snap| snap.number)
            .collect();
        self.rng.pick(&numbers)
    }

    async fn clone_one(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        let Some(number) = self.pick_snapshot(side) else {
            return Ok(());
        };
        if model.sets.len() >= SETS_MAX {
            return Ok(());
        }
        let name = self.new_name(side)?;
        let origin = model.full_name(number).ok_or("no such snapshot")?;
        model.clone_of(number, &name);
        let dsl = self.sides[side].pool().dsl().clone();
        let work = async { dsl.datasets().clone_snapshot(&origin, &name, &[]).await };
        let what = format!("{origin} {name}");
        self.agree(side, "clone", &what, (model, Ok(())), work)
            .await?;
        Ok(())
    }

    async fn promote(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        let all = model.sets.iter();
        let clones = all.filter(|(_, set)| set.origin.is_some());
        let clones: Vec<String> = clones.map(|(name, _)| name.clone()).collect();
        let name = match self.rng.pick(&clones) {
            Some(name) if self.rng.percent(90) => name,
            _ => self.pick_set(side)?,
        };
        self.abandon_all(side).await?;
        let told = model.promote(&name);
        let dsl = self.sides[side].pool().dsl().clone();
        let work = async { dsl.snapshots().promote(&name).await };
        self.agree(side, "promote", &name, (model, told), work)
            .await?;
        Ok(())
    }

    async fn rename(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        let from = self.pick_set(side)?;
        let to = self.new_name(side)?;
        if to.starts_with(&format!("{from}/")) {
            return Ok(());
        }
        self.abandon_all(side).await?;
        self.sides[side].close(&from).await?;
        let told = model.rename(&from, &to);
        let dsl = self.sides[side].pool().dsl().clone();
        let work = async { dsl.directories().rename(&from, &to).await };
        let what = format!("{from} {to}");
        self.agree(side, "rename", &what, (model, told), work)
            .await?;
        Ok(())
    }

    async fn rename_snapshot(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        let Some(number) = self.pick_snapshot(side) else {
            return Ok(());
        };
        let (set, snap) = model.find(number).ok_or("no such snapshot")?;
        let (set, from) = (set.to_owned(), snap.name.clone());
        let others: Vec<String> = model.sets[&set]
            .snaps
            .iter()
            .map(|other| other.name.clone())
            .filter(|other| *other != from)
            .collect();
        let to = match self.rng.pick(&others) {
            Some(other) if self.rng.percent(20) => other,
            _ => self.name("r"),
        };
        let told = model.rename_snapshot(&set, &from, &to);
        let dsl = self.sides[side].pool().dsl().clone();
        let (from, to) = (format!("{set}@{from}"), format!("{set}@{to}"));
        let work = async { dsl.directories().rename(&from, &to).await };
        let what = format!("{from} {to}");
        self.agree(side, "rename snapshot", &what, (model, told), work)
            .await?;
        Ok(())
    }

    /// Back to any snapshot, for which newer ones and their bookmarks go first.
    async fn rollback(&mut self, side: usize) -> Result<(), Failure> {
        let name = self.pick_set(side)?;
        let set = self.sides[side].model().sets[&name].clone();
        let Some(to) = self.rng.pick(&set.snaps) else {
            return Ok(());
        };
        self.abandon_all(side).await?;
        let dsl = self.sides[side].pool().dsl().clone();
        let newer = set.marks.iter().filter(|(_, mark)| mark.number > to.number);
        let newer: Vec<String> = newer.map(|(mark, _)| mark.clone()).collect();
        self.destroy_marks(side, &name, &newer).await?;
        let later = set.snaps.iter().filter(|snap| snap.number > to.number);
        let later: Vec<String> = later.map(|snap| snap.name.clone()).collect();
        if !later.is_empty() && !self.destroy_some(side, &name, &later, false).await? {
            return Ok(());
        }
        self.sides[side].close(&name).await?;
        let mut model = self.next(side);
        model.rollback(&name);
        let full_name = format!("{name}@{}", to.name);
        let work = async { dsl.snapshots().rollback(&name, Some(&full_name)).await };
        self.agree(side, "rollback", &full_name, (model, Ok(())), work)
            .await?;
        Ok(())
    }

    /// Destroys snapshots of one filesystem; whether it did.
    async fn destroy_some(
        &mut self,
        side: usize,
        set: &str,
        names: &[String],
        defer: bool,
    ) -> Result<bool, Failure> {
        let mut model = self.next(side);
        let told = model.destroy_snapshots(set, names, defer);
        let full: Vec<String> = names.iter().map(|name| format!("{set}@{name}")).collect();
        let dsl = self.sides[side].pool().dsl().clone();
        let work = async { dsl.destroyer().destroy_snapshots(&full, defer).await };
        let what = format!("{} {defer}", full.join(" "));
        self.agree(side, "destroy snapshots", &what, (model, told), work)
            .await
    }

    async fn destroy_snapshots(&mut self, side: usize) -> Result<(), Failure> {
        let name = self.pick_set(side)?;
        let snaps = &self.sides[side].model().sets[&name].snaps;
        let mut names: Vec<String> = snaps.iter().map(|snap| snap.name.clone()).collect();
        while names.len() > 1 && self.rng.percent(60) {
            let at = self.rng.below(names.len() as u64);
            names.remove(at as usize);
        }
        if names.is_empty() {
            return Ok(());
        }
        self.abandon_all(side).await?;
        let defer = self.rng.percent(40);
        self.destroy_some(side, &name, &names, defer).await?;
        Ok(())
    }

    /// Destroys a filesystem with all that depends on it (`-R`), or tries to without.
    async fn destroy(&mut self, side: usize) -> Result<(), Failure> {
        let name = self.pick_set(side)?;
        self.abandon_all(side).await?;
        let dsl = self.sides[side].pool().dsl().clone();
        if self.rng.percent(30) {
            let mut model = self.next(side);
            let told = model.destroy(&name);
            self.sides[side].close(&name).await?;
            let work = async { dsl.destroyer().destroy(&name).await };
            self.agree(side, "destroy", &name, (model, told), work)
                .await?;
            return Ok(());
        }
        let model = self.sides[side].model().clone();
        let mut doomed: BTreeSet<String> = BTreeSet::new();
        let mut todo = vec![name];
        while let Some(name) = todo.pop() {
            if !doomed.insert(name.clone()) {
                continue;
            }
            todo.extend(model.children(&name));
            for snap in &model.sets[&name].snaps {
                if !snap.holds.is_empty() {
                    return Ok(());
                }
                todo.extend(model.clones(snap.number));
            }
        }
        while !doomed.is_empty() {
            let model = self.sides[side].model().clone();
            let is_free = |name: &&String| {
                let mut snaps = model.sets[*name].snaps.iter();
                model.children(name).is_empty()
                    && snaps.all(|snap| model.clones(snap.number).is_empty())
            };
            let next = doomed.iter().find(is_free).cloned();
            // One may be a clone of what is below it.
            let Some(next) = next else { return Ok(()) };
            doomed.remove(&next);
            let snaps = model.sets[&next].snaps.iter();
            let snaps: Vec<String> = snaps.map(|snap| snap.name.clone()).collect();
            self.sides[side].close(&next).await?;
            if !snaps.is_empty() {
                self.destroy_some(side, &next, &snaps, false).await?;
            }
            let mut model = self.next(side);
            let told = model.destroy(&next);
            let work = async { dsl.destroyer().destroy(&next).await };
            self.agree(side, "destroy", &next, (model, told), work)
                .await?;
        }
        Ok(())
    }

    async fn hold(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        let Some(number) = self.pick_snapshot(side) else {
            return Ok(());
        };
        let tag = self.rng.pick(&TAGS).ok_or("no tags")?;
        let name = model.full_name(number).ok_or("no such snapshot")?;
        let told = model.hold(number, tag);
        let dsl = self.sides[side].pool().dsl().clone();
        let names = [name.clone()];
        let work = async { dsl.holds().hold(&names, tag).await };
        self.agree(side, "hold", &name, (model, told), work).await?;
        Ok(())
    }

    async fn release(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        let all = model.sets.values().flat_map(|set| &set.snaps);
        let held: Vec<(u64, String)> = all
            .flat_map(|snap| snap.holds.iter().map(|tag| (snap.number, tag.clone())))
            .collect();
        let Some((number, tag)) = self.rng.pick(&held) else {
            return Ok(());
        };
        let name = model.full_name(number).ok_or("no such snapshot")?;
        self.abandon_all(side).await?;
        model.release(number, &tag);
        let dsl = self.sides[side].pool().dsl().clone();
        let names = [name.clone()];
        let work = async { dsl.holds().release(&names, &tag).await };
        self.agree(side, "release", &name, (model, Ok(())), work)
            .await?;
        Ok(())
    }

    async fn bookmark(&mut self, side: usize) -> Result<(), Failure> {
        let mut model = self.next(side);
        let name = self.pick_set(side)?;
        let set = &model.sets[&name];
        let marks: Vec<String> = set.marks.keys().cloned().collect();
        if let Some(mark) = self.rng.pick(&marks)
            && self.rng.percent(30)
        {
            return self.destroy_marks(side, &name, &[mark]).await;
        }
        let snaps = set.snaps.iter().map(|snap| {
            let mark = Mark {
                id: snap.id,
                state: snap.state,
                number: snap.number,
                ivs: snap.ivs,
            };
            (format!("{name}@{}", snap.name), mark)
        });
        let copies = set.marks.iter();
        let copies = copies.map(|(short, mark)| (format!("{name}#{short}"), *mark));
        let sources: Vec<(String, Mark)> = snaps.chain(copies).collect();
        let Some((source, mark)) = self.rng.pick(&sources) else {
            return Ok(());
        };
        let short = match self.rng.pick(&marks) {
            Some(short) if self.rng.percent(15) => short,
            _ => self.name("b"),
        };
        let told = model.bookmark(&name, &short, mark);
        let dsl = self.sides[side].pool().dsl().clone();
        let full_name = format!("{name}#{short}");
        let what = format!("{source} {full_name}");
        let made = [(full_name, source)];
        let work = async { dsl.bookmarks().create(&made).await };
        self.agree(side, "bookmark", &what, (model, told), work)
            .await?;
        Ok(())
    }

    async fn destroy_marks(
        &mut self,
        side: usize,
        set: &str,
        marks: &[String],
    ) -> Result<(), Failure> {
        if marks.is_empty() {
            return Ok(());
        }
        let mut model = self.next(side);
        let own = &mut model.set(set).marks;
        own.retain(|short, _| !marks.contains(short));
        let full: Vec<String> = marks.iter().map(|short| format!("{set}#{short}")).collect();
        let dsl = self.sides[side].pool().dsl().clone();
        let work = async { dsl.bookmarks().destroy(&full).await };
        let what = full.join(" ");
        self.agree(side, "destroy bookmarks", &what, (model, Ok(())), work)
            .await?;
        Ok(())
    }
}
