//! What datasets of a pool should be: names, contents, snapshots, holds, bookmarks, origins, and
//! which operations are refused.

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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) id: u64,
    /// As [`Snap::state`] was.
    pub(super) state: u64,
    /// Of the snapshot that it was made of.
    pub(super) number: u64,
}

/// What a volume's content is called.
pub(super) const CONTENT: &str = "content";
/// Size of volumes, in bytes.
pub(super) const VOLUME_BYTES: u64 = 256 << 10;

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
}

/// Filesystems and volumes of a pool, by full name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PoolModel {
    pub(super) sets: BTreeMap<String, Set>,
    /// Numbers so far, of snapshots and of states.
    next: u64,
}

impl PoolModel {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
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

    pub(super) fn create(&mut self, name: &str, is_volume: bool) {
        let state = self.fresh();
        let content = is_volume.then(|| {
            let zeros = Arc::new(vec![0; VOLUME_BYTES as usize]);
            (CONTENT.to_owned(), zeros)
        });
        let set = Set {
            is_volume,
            files: Arc::new(content.into_iter().collect()),
            state,
            ..Set::default()
        };
        self.sets.insert(name.to_owned(), set);
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
            let set = self.set(name);
            let snap = Snap {
                name: short.to_owned(),
                id: *id,
                number,
                files: set.files.clone(),
                state: set.state,
                holds: BTreeSet::new(),
                is_doomed: false,
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
            ..Set::default()
        };
        self.sets.insert(name.to_owned(), set);
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

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        for name in [vec![from.to_owned()], self.children(from)].concat() {
            let set = self.sets.remove(&name).expect("a filesystem");
            self.sets
                .insert(format!("{to}{}", &name[from.len()..]), set);
        }
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
        };
        let Some(set) = self.sets.get(target) else {
            let origin = sent.origin.filter(|_| sent.is_empty);
            let origin = origin.and_then(|origin| self.find(origin));
            let state = origin.map_or(state, |(_, origin)| origin.state);
            let set = Set {
                is_volume: sent.is_volume,
                files: sent.files.clone(),
                state,
                snaps: vec![Snap { state, ..snap }],
                marks: BTreeMap::new(),
                origin: sent.origin,
            };
            self.sets.insert(target.to_owned(), set);
            return Ok(());
        };
        if set.snaps.iter().any(|snap| snap.name == sent.name) {
            return Err(Refused::Exists);
        }
        let from = sent.from.ok_or(Refused::Exists)?;
        let base = set.snaps.iter().rposition(|snap| snap.id == from);
        let base = base.ok_or(Refused::NoSource)?;
        if sent.force {
            let later: Vec<u64> = set.snaps[base + 1..]
                .iter()
                .map(|snap| snap.number)
                .collect();
            for number in &later {
                self.check_free(*number)?;
            }
            self.set(target).snaps.truncate(base + 1);
        } else if set.state != set.snaps[base].state {
            return Err(Refused::Modified);
        }
        let set = self.set(target);
        // What brings nothing is no change: another difference to the same base may follow.
        let state = match sent.is_empty {
            true => set.snaps.last().map_or(state, |last| last.state),
            false => state,
        };
        (set.files, set.state) = (sent.files.clone(), state);
        set.snaps.push(Snap { state, ..snap });
        Ok(())
    }
}
