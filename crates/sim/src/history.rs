//! What workers did, step by step, and which of it was said to be durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{
    Content, DatasetModel, File, FileId, FsModel, SECTOR, State, VolumeModel, difference,
    file_difference,
};

/// A property that is being set.
pub(crate) const UNKNOWN: &str = "?";

/// The states that a worker's datasets went through.
#[derive(Debug, Default)]
pub struct History {
    steps: Vec<(String, Arc<State>)>,
    /// Number of the first of `steps`.
    base: usize,
    /// Everything up to this step is on disk, in every dataset.
    synced: usize,
    /// In this dataset everything up to this step.
    pub(crate) datasets: BTreeMap<String, usize>,
    /// Of this file everything up to this step.
    pub(crate) files: BTreeMap<(String, FileId), usize>,
    /// Whether an intent log was there.
    pub uses_log: bool,
}

impl History {
    /// From a state that is on disk.
    pub fn new(state: State) -> Self {
        History {
            steps: vec![("start".into(), Arc::new(state))],
            ..History::default()
        }
    }

    pub(crate) fn last(&self) -> usize {
        self.base + self.steps.len() - 1
    }

    pub(crate) fn issue(&mut self, what: String, state: State) -> usize {
        if std::env::var_os("MILLPOND_TRACE").is_some() {
            eprintln!("step {}: {what}", self.last() + 1);
        }
        self.steps.push((what, Arc::new(state)));
        self.last()
    }

    /// The last operation was not done.
    pub(crate) fn cancel(&mut self) {
        self.steps.pop();
    }

    pub(crate) fn set_synced(&mut self, step: usize) {
        self.synced = self.synced.max(step);
        let before = self.synced - self.base;
        self.steps.drain(..before);
        self.base = self.synced;
    }

    /// The state that the last operation leads to.
    pub fn newest(&self) -> Arc<State> {
        self.steps.last().expect("never empty").1.clone()
    }

    /// Number of operations so far.
    pub fn len(&self) -> usize {
        self.last()
    }

    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        self.last() == 0
    }

    /// Compares what was found after a crash with the history.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub fn check(&self, found: &State) -> Result<(), String> {
        let mut problems = Vec::new();
        for (index, (what, wanted)) in self.steps.iter().enumerate().rev() {
            match state_difference(wanted, found) {
                None => return Ok(()),
                Some(differs) => {
                    problems.push(format!("  step {} ({what}): {differs}", self.base + index));
                }
            }
        }
        let strict = format!(
            "matches none of the states since step {} (last {}):\n{}",
            self.synced,
            self.last(),
            problems.join("\n")
        );
        if !self.uses_log {
            return Err(strict);
        }
        self.check_each(found)
            .map_err(|relaxed| format!("{strict}\nand each on its own: {relaxed}"))
    }

    fn since(&self, step: usize) -> impl DoubleEndedIterator<Item = &Arc<State>> {
        self.steps[step.max(self.base) - self.base..]
            .iter()
            .map(|(_, state)| state)
    }

    /// Each dataset, and in filesystems each file, on its own.
    fn check_each(&self, found: &State) -> Result<(), String> {
        let shape = |state: &State| -> Vec<(String, Vec<String>)> {
            let names = |dataset: &DatasetModel| {
                dataset
                    .snapshots
                    .iter()
                    .map(|(name, _)| name.clone())
                    .collect()
            };
            state
                .iter()
                .map(|(name, dataset)| (name.clone(), names(dataset)))
                .collect()
        };
        let same_shape = self
            .since(0)
            .find(|state| {
                shape(state) == shape(found)
                    && found.iter().all(|(name, dataset)| {
                        let wanted = state[name].snapshots.iter();
                        wanted
                            .zip(&dataset.snapshots)
                            .all(|(one, other)| difference(&one.1, &other.1).is_none())
                    })
            })
            .is_some();
        if !same_shape {
            return Err("datasets or snapshots differ".into());
        }
        for (name, dataset) in found {
            let from = self.datasets.get(name).copied().unwrap_or(0);
            if let Content::Sectors(found) = &*dataset.content {
                self.sectors_fit(name, from, found)
                    .map_err(|why| format!("{name} since step {from}: {why}"))?;
                continue;
            }
            let mut why = Vec::new();
            let fits = self.since(from).rev().any(|state| {
                let Some(wanted) = state.get(name) else {
                    return false;
                };
                let differs = match (&*wanted.content, &*dataset.content) {
                    (Content::Files(wanted), Content::Files(found)) => {
                        self.files_fit(name, wanted, found).err()
                    }
                    (wanted, found) => difference(wanted, found),
                };
                let fits = differs.is_none();
                why.extend(differs);
                fits
            });
            if !fits {
                why.dedup();
                return Err(format!("{name} since step {from}: {}", why.join("; ")));
            }
        }
        Ok(())
    }

    /// A volume is as after a step, with a part of the next one: that was logged, and not
    /// acknowledged. Whole sectors of it, in order.
    fn sectors_fit(&self, name: &str, from: usize, found: &VolumeModel) -> Result<(), String> {
        let mut versions: Vec<&VolumeModel> = self
            .since(from)
            .filter_map(|state| match &*state.get(name)?.content {
                Content::Sectors(model) => Some(model),
                Content::Files(_) => None,
            })
            .filter(|model| model.size_bytes == found.size_bytes)
            .collect();
        versions.dedup();
        let value = |model: &VolumeModel, at| model.sectors.get(&at).copied();
        let mut why = Vec::new();
        for (index, before) in versions.iter().enumerate() {
            let after = versions.get(index + 1).unwrap_or(before);
            let mut is_later = true;
            let differs = (0..found.size_bytes / SECTOR).find(|at| {
                let (old, new, now) = (value(before, *at), value(after, *at), value(found, *at));
                if old != new {
                    is_later &= now == new;
                }
                now != old && !(is_later && now == new)
            });
            match differs {
                None => return Ok(()),
                Some(at) => why.push(format!(
                    "sector {at} holds {:?}, not {:?}",
                    value(found, at),
                    value(before, at)
                )),
            }
        }
        why.dedup();
        Err(why.join("; "))
    }

    fn files_fit(&self, name: &str, wanted: &FsModel, found: &FsModel) -> Result<(), String> {
        let (wanted, found) = (wanted.view(), found.view());
        let lossy = String::from_utf8_lossy;
        if let Some(path) = wanted.keys().find(|path| !found.contains_key(*path)) {
            return Err(format!("{} is missing", lossy(path)));
        }
        for (path, seen) in &found {
            let Some(model) = wanted.get(path) else {
                return Err(format!("{} should not be there", lossy(path)));
            };
            if model.same_as != seen.same_as || model.file.kind != seen.file.kind {
                return Err(format!("{} is another file", lossy(path)));
            }
            let key = (name.to_owned(), model.id);
            let from = self.files.get(&key).copied().unwrap_or(0);
            let versions: Vec<&Arc<File>> = self
                .since(from)
                .filter_map(|state| match &*state.get(name)?.content {
                    Content::Files(files) => files.files.get(&model.id),
                    Content::Sectors(_) => None,
                })
                .collect();
            // Data, permissions and attributes come to the log separately.
            let data = versions
                .iter()
                .any(|version| version.data == seen.file.data);
            let owner = versions
                .iter()
                .any(|version| (version.mode, version.owner) == (seen.file.mode, seen.file.owner));
            let xattrs = versions
                .iter()
                .any(|version| version.xattrs == seen.file.xattrs);
            if !(data && owner && xattrs) {
                let differs = versions
                    .last()
                    .and_then(|version| file_difference(version, &seen.file));
                return Err(format!("{}: {differs:?} (since step {from})", lossy(path)));
            }
        }
        Ok(())
    }
}

fn state_difference(wanted: &State, found: &State) -> Option<String> {
    for (name, dataset) in wanted {
        let Some(other) = found.get(name) else {
            return Some(format!("{name} is missing"));
        };
        if let Some(what) = difference(&dataset.content, &other.content) {
            return Some(format!("{name}: {what}"));
        }
        let names = |dataset: &DatasetModel| -> Vec<String> {
            dataset
                .snapshots
                .iter()
                .map(|(name, _)| name.clone())
                .collect()
        };
        if names(dataset) != names(other) {
            return Some(format!(
                "{name}: snapshots {:?}, not {:?}",
                names(other),
                names(dataset)
            ));
        }
        for ((snapshot, one), (_, two)) in dataset.snapshots.iter().zip(&other.snapshots) {
            if let Some(what) = difference(one, two) {
                return Some(format!("{name}@{snapshot}: {what}"));
            }
        }
        for (property, value) in &dataset.properties {
            // How a value reads is known once it was set.
            if value != UNKNOWN && other.properties.get(property) != Some(value) {
                return Some(format!(
                    "{name}: {property} is {:?}, not {value}",
                    other.properties.get(property)
                ));
            }
        }
        if dataset.origin != other.origin {
            return Some(format!(
                "{name}: a clone of {:?}, not {:?}",
                other.origin, dataset.origin
            ));
        }
    }
    let extra = found.keys().find(|name| !wanted.contains_key(*name))?;
    Some(format!("{extra} should not be there"))
}
