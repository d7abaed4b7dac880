//! What datasets of a pool should be: names, contents, snapshots, holds, bookmarks, origins, keys,
//! and which operations are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Files of a filesystem, all in its root directory; of a volume, its content as one of them.
pub(super) type Files = BTreeMap<String, Arc<Vec<u8>>>;

/// Why an operation is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Exists,
    HasChildren,
    HasClones,
    HasSnapshots,
    Held,
    NotAClone,
    /// It would leave its encryption root, or has no key that could be changed.
    Key,
    /// A raw stream's: the target is not encrypted.
    NotEncrypted,
    /// A raw stream's: the target has another data key.
    OtherKey,
    /// A raw stream's: what it is the difference to was encrypted separately there.
    OtherIvs,
    /// A stream's: the target has not what it is the difference to.
    NoSource,
    /// A stream's: the target was changed.
    Modified,
}

/// A snapshot. Those that streams made of each other have the same `id`, as they have one GUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snap {
    pub(super) name: String,
    pub(super) id: u64,
    /// Which it is in its pool; later ones have greater numbers.
    pub(super) number: u64,
    pub(super) files: Arc<Files>,
    /// Which state of the head it is: equal numbers are equal contents.
    pub(super) state: u64,
    pub(super) holds: BTreeSet<String>,
    /// It goes when nothing needs it any more.
    pub(super) is_doomed: bool,
    /// Those that raw streams made of each other have the same set of IVs; zero: not encrypted.
    pub(super) ivs: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) id: u64,
    /// As [`Snap::state`] was.
    pub(super) state: u64,
    /// Of the snapshot that it was made of.
    pub(super) number: u64,
    /// As [`Snap::ivs`].
    pub(super) ivs: u64,
}

/// The data key of a filesystem or volume and of its clones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DataKey {
    /// Those that raw streams made of each other are the same.
    pub(super) id: u64,
    /// [`Set::id`] of the encryption root.
    pub(super) root: u64,
    /// The user's key that it is wrapped with.
    pub(super) user: u8,
    /// A raw stream brought it so.
    pub(super) is_received: bool,
}

/// What a volume's content is called.
pub(super) const CONTENT: &str = "content";
/// Size of volumes, in bytes.
pub(super) const VOLUME_BYTES: u64 = 256 << 10;

/// Users' keys, from 1 on.
pub(super) const USERS: u8 = 4;

/// A filesystem or volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Set {
    pub(super) is_volume: bool,
    pub(super) files: Arc<Files>,
    pub(super) state: u64,
    /// Oldest first.
    pub(super) snaps: Vec<Snap>,
    pub(super) marks: BTreeMap<String, Mark>,
    /// Number of the snapshot that it is a clone of.
    pub(super) origin: Option<u64>,
    /// What it keeps when it is renamed.
    pub(super) id: u64,
    /// Which of [`PoolModel::keys`] it has, if it is encrypted.
    pub(super) key: Option<u64>,
}

/// What a raw stream says of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentKey {
    /// [`DataKey::id`].
    pub(super) id: u64,
    /// [`DataKey::user`] when it was sent.
    pub(super) user: u8,
    /// [`Snap::ivs`].
    pub(super) ivs: u64,
    /// Of what it is the difference to.
    pub(super) from_ivs: u64,
}

/// A stream, as far as the target is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    /// What the snapshot is called at the target.
    pub(super) name: String,
    pub(super) id: u64,
    pub(super) is_volume: bool,
    pub(super) files: Arc<Files>,
    pub(super) from: Option<u64>,
    /// Whether nothing was changed between the two.
    pub(super) is_empty: bool,
    pub(super) force: bool,
    /// Number of the snapshot at the target that a new dataset is a clone of.
    pub(super) origin: Option<u64>,
    /// It is raw.
    pub(super) raw: Option<SentKey>,
    /// What nobody else has in both pools: what a key or set of IVs that it gets is called.
    pub(super) own: u64,
}

/// Filesystems and volumes of a pool, by full name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PoolModel {
    pub(super) sets: BTreeMap<String, Set>,
    /// By number. Those that nothing has any more stay.
    pub(super) keys: BTreeMap<u64, DataKey>,
    /// Numbers so far, of snapshots, states, filesystems and keys.
    next: u64,
}

impl PoolModel {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn fresh_key(&mut self, key: DataKey) -> Option<u64> {
        let number = self.fresh();
        self.keys.insert(number, key);
        Some(number)
    }

    pub(super) fn set(&mut self, name: &str) -> &mut Set {
        self.sets.get_mut(name).expect("a filesystem of the model")
    }

    /// Where a snapshot is: its filesystem, and its place there.
    pub(super) fn find(&self, number: u64) -> Option<(&str, &Snap)> {
        let all = self.sets.iter();
        let mut all = all.flat_map(|(name, set)| set.snaps.iter().map(move |snap| (name, snap)));
        let found = all.find(|(_, snap)| snap.number == number);
        found.map(|(name, snap)| (name.as_str(), snap))
    }

    pub(super) fn full_name(&self, number: u64) -> Option<String> {
        let (set, snap) = self.find(number)?;
        Some(format!("{set}@{}", snap.name))
    }

    pub(super) fn clones(&self, number: u64) -> Vec<String> {
        let clones = self.sets.iter();
        let clones = clones.filter(|(_, set)| set.origin == Some(number));
        clones.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn children(&self, name: &str) -> Vec<String> {
        let below = format!("{name}/");
        let names = self.sets.keys();
        names
            .filter(|name| name.starts_with(&below))
            .cloned()
            .collect()
    }

    /// Makes one; encrypted as an encryption root with a user's key, or where the one above is so.
    /// `id`: what its data key is called then.
    pub(super) fn create(&mut self, name: &str, is_volume: bool, id: u64, user: Option<u8>) {
        let state = self.fresh();
        let own = self.fresh();
        let key = match user {
            Some(user) => self.fresh_key(DataKey {
                id,
                root: own,
                user,
                is_received: false,
            }),
            None => self.inherited_key(name, id),
        };
        let content = is_volume.then(|| {
            let zeros = Arc::new(vec![0; VOLUME_BYTES as usize]);
            (CONTENT.to_owned(), zeros)
        });
        let set = Set {
            is_volume,
            files: Arc::new(content.into_iter().collect()),
            state,
            id: own,
            key,
            ..Set::default()
        };
        self.sets.insert(name.to_owned(), set);
    }

    /// A new data key that is wrapped as that of the filesystem above, if that has one.
    fn inherited_key(&mut self, name: &str, id: u64) -> Option<u64> {
        let above = self.key_above(name)?;
        self.fresh_key(DataKey {
            id,
            is_received: false,
            ..above
        })
    }

    /// The data key of the filesystem above one.
    pub(super) fn key_above(&self, name: &str) -> Option<DataKey> {
        let (above, _) = name.rsplit_once('/')?;
        self.key(above)
    }

    pub(super) fn key(&self, name: &str) -> Option<DataKey> {
        let number = self.sets.get(name)?.key?;
        Some(self.keys[&number])
    }

    /// Name of an encryption root.
    pub(super) fn root_name(&self, id: u64) -> Option<&str> {
        let found = self.sets.iter().find(|(_, set)| set.id == id)?;
        Some(found.0)
    }

    /// Names of those that have a data key of their own (clones have that of their origin) and the
    /// same encryption root, from `top` on: those below, those below its clones, and so on.
    pub(super) fn of_root(&self, root: u64, top: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        let mut pending = vec![(top.to_owned(), false)];
        while let Some((name, is_shared)) = pending.pop() {
            let Some(key) = self.key(&name) else {
                continue;
            };
            let set = &self.sets[&name];
            let is_own = key.root == root && set.origin.is_none();
            if !is_shared && !is_own || !seen.insert(name.clone()) {
                continue;
            }
            if !is_shared {
                found.push(name.clone());
            }
            let children = self.children(&name).into_iter();
            let children = children.filter(|child| !child[name.len() + 1..].contains('/'));
            pending.extend(children.map(|child| (child, false)));
            for snap in &set.snaps {
                let clones = self.clones(snap.number).into_iter();
                pending.extend(clones.map(|clone| (clone, true)));
            }
        }
        found
    }

    fn wrap(&mut self, names: &[String], root: u64, user: u8) {
        for name in names {
            let number = self.sets[name].key.expect("an encrypted one");
            let key = self.keys.get_mut(&number).expect("a key of the model");
            *key = DataKey {
                root,
                user,
                is_received: false,
                ..*key
            };
        }
    }

    /// What changes a key: to another user's, or to that of the filesystem above.
    pub(super) fn change_key(&mut self, name: &str, user: Option<u8>) -> Result<(), Refused> {
        let key = self.key(name).ok_or(Refused::Key)?;
        let set = &self.sets[name];
        let own = set.id;
        if set.origin.is_some() {
            return Err(Refused::Key);
        }
        let (root, user) = match user {
            Some(user) => (own, user),
            None => {
                let above = self.key_above(name).filter(|_| key.root == own);
                let above = above.ok_or(Refused::Key)?;
                (above.root, above.user)
            }
        };
        let all = self.of_root(key.root, name);
        self.wrap(&all, root, user);
        Ok(())
    }

    /// A data key as the sender has it wrapped, for a dataset with the same one: unless anything of
    /// its encryption root was wrapped here.
    fn receive_key(&mut self, number: u64, sent: &SentKey) {
        let key = self.keys[&number];
        let root = self
            .root_name(key.root)
            .expect("an encryption root")
            .to_owned();
        let all = self.of_root(key.root, &root);
        let is_received = |name: &String| self.key(name).is_some_and(|key| key.is_received);
        if key.is_received && all.iter().all(is_received) {
            self.keys.get_mut(&number).expect("it is there").user = sent.user;
        }
    }

    /// Whether a raw difference fits what it is a difference to.
    fn check_raw(&self, target: &str, base: &Snap, sent: &SentKey) -> Result<(), Refused> {
        let key = self.key(target).ok_or(Refused::NotEncrypted)?;
        if key.id != sent.id {
            return Err(Refused::OtherKey);
        }
        match base.ivs == sent.from_ivs {
            true => Ok(()),
            false => Err(Refused::OtherIvs),
        }
    }

    pub(super) fn write(&mut self, name: &str, change: impl FnOnce(&mut Files)) {
        let state = self.fresh();
        let set = self.set(name);
        set.state = state;
        change(Arc::make_mut(&mut set.files));
    }

    /// Snapshots of one moment; `ids` by filesystem.
    pub(super) fn snapshot(&mut self, ids: &[(String, u64)], short: &str) -> Result<(), Refused> {
        let has = |set: &Set| set.snaps.iter().any(|snap| snap.name == short);
        if ids.iter().any(|(name, _)| has(&self.sets[name])) {
            return Err(Refused::Exists);
        }
        let number = self.fresh();
        for (at, (name, id)) in ids.iter().enumerate() {
            // All are as old as each other, and yet each is one of its own.
            let number = match at {
                0 => number,
                _ => self.fresh(),
            };
            let ivs = match self.sets[name].key {
                // A snapshot's id is nobody else's.
                Some(_) => *id,
                None => 0,
            };
            let set = self.set(name);
            let snap = Snap {
                name: short.to_owned(),
                id: *id,
                number,
                files: set.files.clone(),
                state: set.state,
                holds: BTreeSet::new(),
                is_doomed: false,
                ivs,
            };
            set.snaps.push(snap);
        }
        Ok(())
    }

    pub(super) fn clone_of(&mut self, number: u64, name: &str) {
        let (of, snap) = self.find(number).expect("a snapshot of the model");
        let set = Set {
            is_volume: self.sets[of].is_volume,
            files: snap.files.clone(),
            state: snap.state,
            origin: Some(number),
            key: self.sets[of].key,
            ..Set::default()
        };
        let id = self.fresh();
        self.sets.insert(name.to_owned(), Set { id, ..set });
    }

    pub(super) fn promote(&mut self, name: &str) -> Result<(), Refused> {
        let origin = self.sets[name].origin.ok_or(Refused::NotAClone)?;
        let (above, _) = self.find(origin).expect("an origin");
        let above = above.to_owned();
        let other = &self.sets[&above];
        let at = other.snaps.iter().position(|snap| snap.number == origin);
        let count = at.expect("it is there") + 1;
        let own = &self.sets[name];
        let has_name = |snap: &Snap| own.snaps.iter().any(|own| own.name == snap.name);
        let moves = |mark: &Mark| mark.number <= origin;
        let mut marks = other.marks.iter().filter(|(_, mark)| moves(mark));
        if other.snaps[..count].iter().any(has_name)
            || marks.any(|(mark, _)| own.marks.contains_key(mark))
        {
            return Err(Refused::Exists);
        }
        // The encryption root is the promoted one, unless it is somewhere else.
        if let Some(key) = self.key(&above)
            && self.sets[&above].origin.is_none()
        {
            let (from, to) = (self.sets[&above].id, self.sets[name].id);
            if key.root == from {
                for moved in self.of_root(from, &above) {
                    let number = self.sets[&moved].key.expect("an encrypted one");
                    self.keys.get_mut(&number).expect("a key").root = to;
                }
            } else {
                let roots = [&above, name].map(|name| Some(self.key_above(name)?.root));
                if roots[0].is_none() || roots[0] != roots[1] {
                    return Err(Refused::Key);
                }
            }
        }
        let other = self.set(&above);
        let rest = other.snaps.split_off(count);
        let mut moved = std::mem::replace(&mut other.snaps, rest);
        let origin_above = other.origin.replace(origin);
        let marks: Vec<String> = other.marks.keys().cloned().collect();
        let mut moved_marks = Vec::new();
        for mark in marks {
            if moves(&other.marks[&mark]) {
                let found = other.marks.remove(&mark).expect("a bookmark");
                moved_marks.push((mark, found));
            }
        }
        let own = self.set(name);
        moved.append(&mut own.snaps);
        own.snaps = moved;
        own.origin = origin_above;
        own.marks.extend(moved_marks);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<(), Refused> {
        let [above, above_to] =
            [from, to].map(|name| name.rsplit_once('/').map(|(above, _)| above));
        if let Some(key) = self.key(from)
            && above != above_to
            && key.root != self.sets[from].id
            && self
                .key_above(to)
                .is_none_or(|above| above.root != key.root)
        {
            return Err(Refused::Key);
        }
        for name in [vec![from.to_owned()], self.children(from)].concat() {
            let set = self.sets.remove(&name).expect("a filesystem");
            self.sets
                .insert(format!("{to}{}", &name[from.len()..]), set);
        }
        Ok(())
    }

    pub(super) fn rename_snapshot(
        &mut self,
        set: &str,
        from: &str,
        to: &str,
    ) -> Result<(), Refused> {
        let snaps = &mut self.set(set).snaps;
        if snaps.iter().any(|snap| snap.name == to) {
            return Err(Refused::Exists);
        }
        let found = snaps.iter_mut().find(|snap| snap.name == from);
        found.expect("a snapshot").name = to.to_owned();
        Ok(())
    }

    /// Back to the last snapshot.
    pub(super) fn rollback(&mut self, name: &str) {
        let set = self.set(name);
        let last = set.snaps.last().expect("a snapshot");
        (set.files, set.state) = (last.files.clone(), last.state);
    }

    /// Destroys snapshots of one filesystem, all or none.
    pub(super) fn destroy_snapshots(
        &mut self,
        set: &str,
        names: &[String],
        defer: bool,
    ) -> Result<(), Refused> {
        let found: Vec<u64> = self.sets[set]
            .snaps
            .iter()
            .filter(|snap| names.contains(&snap.name))
            .map(|snap| snap.number)
            .collect();
        for number in &found {
            if !defer {
                self.check_free(*number)?;
            }
        }
        for number in found {
            let is_free = self.check_free(number).is_ok();
            let snaps = &mut self.set(set).snaps;
            let at = snaps.iter().position(|snap| snap.number == number);
            let at = at.expect("a snapshot");
            match is_free {
                true => drop(snaps.remove(at)),
                false => snaps[at].is_doomed = true,
            }
        }
        Ok(())
    }

    /// Whether nothing keeps a snapshot.
    fn check_free(&self, number: u64) -> Result<(), Refused> {
        let (_, snap) = self.find(number).expect("a snapshot");
        if !snap.holds.is_empty() {
            return Err(Refused::Held);
        }
        match self.clones(number).is_empty() {
            true => Ok(()),
            false => Err(Refused::HasClones),
        }
    }

    /// A snapshot that was only waiting for that goes.
    fn let_go(&mut self, number: u64) {
        let is_doomed = self.find(number).is_some_and(|(_, snap)| snap.is_doomed);
        if is_doomed && self.check_free(number).is_ok() {
            for set in self.sets.values_mut() {
                set.snaps.retain(|snap| snap.number != number);
            }
        }
    }

    pub(super) fn destroy(&mut self, name: &str) -> Result<(), Refused> {
        let set = &self.sets[name];
        if !set.snaps.is_empty() {
            return Err(Refused::HasSnapshots);
        }
        if !self.children(name).is_empty() {
            return Err(Refused::HasChildren);
        }
        let origin = set.origin;
        self.sets.remove(name);
        if let Some(origin) = origin {
            self.let_go(origin);
        }
        Ok(())
    }

    pub(super) fn hold(&mut self, number: u64, tag: &str) -> Result<(), Refused> {
        match self.snap(number).holds.insert(tag.to_owned()) {
            true => Ok(()),
            false => Err(Refused::Exists),
        }
    }

    pub(super) fn release(&mut self, number: u64, tag: &str) {
        self.snap(number).holds.remove(tag);
        self.let_go(number);
    }

    fn snap(&mut self, number: u64) -> &mut Snap {
        let mut all = self.sets.values_mut().flat_map(|set| &mut set.snaps);
        let found = all.find(|snap| snap.number == number);
        found.expect("a snapshot of the model")
    }

    pub(super) fn bookmark(&mut self, set: &str, name: &str, mark: Mark) -> Result<(), Refused> {
        let marks = &mut self.set(set).marks;
        if marks.contains_key(name) {
            return Err(Refused::Exists);
        }
        marks.insert(name.to_owned(), mark);
        Ok(())
    }

    /// What a stream makes of a filesystem (`dmu_recv_begin`, `dmu_recv_end`).
    pub(super) fn receive(&mut self, target: &str, sent: &Sent) -> Result<(), Refused> {
        let state = self.fresh();
        let number = self.fresh();
        let snap = Snap {
            name: sent.name.clone(),
            id: sent.id,
            number,
            files: sent.files.clone(),
            state,
            holds: BTreeSet::new(),
            is_doomed: false,
            ivs: 0,
        };
        if !self.sets.contains_key(target) {
            return self.receive_new(target, sent, snap);
        }
        let set = &self.sets[target];
        if set.snaps.iter().any(|snap| snap.name == sent.name) {
            return Err(Refused::Exists);
        }
        let from = sent.from.ok_or(Refused::Exists)?;
        if sent.raw.is_some() && set.key.is_none() {
            return Err(Refused::NotEncrypted);
        }
        let base = set.snaps.iter().rposition(|snap| snap.id == from);
        let base = base.ok_or(Refused::NoSource)?;
        if sent.force {
            if let Some(raw) = &sent.raw {
                self.check_raw(target, &set.snaps[base], raw)?;
            }
            let later = set.snaps[base + 1..].iter();
            let later: Vec<u64> = later.map(|snap| snap.number).collect();
            // The newest goes first, and its reason to stay is the one that is told.
            for number in later.iter().rev() {
                self.check_free(*number)?;
            }
            self.set(target).snaps.truncate(base + 1);
        } else {
            if set.state != set.snaps[base].state {
                return Err(Refused::Modified);
            }
            if let Some(raw) = &sent.raw {
                // Snapshots without changes have sets of IVs of their own.
                if base + 1 != set.snaps.len() {
                    return Err(Refused::Modified);
                }
                self.check_raw(target, &set.snaps[base], raw)?;
            }
        }
        if let (Some(number), Some(raw)) = (self.sets[target].key, &sent.raw) {
            self.receive_key(number, raw);
        }
        let set = self.set(target);
        // What brings nothing is no change: another difference to the same base may follow.
        let state = match sent.is_empty {
            true => set.snaps.last().map_or(state, |last| last.state),
            false => state,
        };
        (set.files, set.state) = (sent.files.clone(), state);
        let ivs = set.ivs_of(sent);
        set.snaps.push(Snap { state, ivs, ..snap });
        Ok(())
    }

    fn receive_new(&mut self, target: &str, sent: &Sent, snap: Snap) -> Result<(), Refused> {
        let own = self.fresh();
        let origin = sent.origin.and_then(|origin| self.find(origin));
        let (mut key, mut state) = (None, snap.state);
        if let Some((of, origin)) = origin {
            if let Some(raw) = &sent.raw {
                self.check_raw(of, origin, raw)?;
            }
            key = self.sets[of].key;
            if sent.is_empty {
                state = origin.state;
            }
        }
        match (&sent.raw, key) {
            (Some(raw), Some(number)) => self.receive_key(number, raw),
            (Some(raw), None) => {
                key = self.fresh_key(DataKey {
                    id: raw.id,
                    root: own,
                    user: raw.user,
                    is_received: true,
                });
            }
            (None, None) if sent.origin.is_none() => key = self.inherited_key(target, sent.own),
            (None, _) => {}
        }
        let mut set = Set {
            is_volume: sent.is_volume,
            files: sent.files.clone(),
            state,
            snaps: Vec::new(),
            marks: BTreeMap::new(),
            origin: sent.origin,
            id: own,
            key,
        };
        let ivs = set.ivs_of(sent);
        set.snaps.push(Snap { state, ivs, ..snap });
        self.sets.insert(target.to_owned(), set);
        Ok(())
    }
}

impl Set {
    /// Of a snapshot that is received.
    fn ivs_of(&self, sent: &Sent) -> u64 {
        match (&sent.raw, self.key) {
            (Some(raw), _) => raw.ivs,
            (None, Some(_)) => sent.own,
            (None, None) => 0,
        }
    }
}
