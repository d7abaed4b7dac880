//! What replications that were removed leave for the next one by their name: which snapshots of the
//! source the target has, where no bookmark says so ([`Replication::unmarked`]), and the ID in the
//! names of their own. Until the next one is made, no schedule destroys those snapshots.
//!
//! They are in a file of the state directory, which is written before a replication is forgotten: a
//! crash leaves both, or the notes alone.
//!
//! Locks: `notes` is short, and taken below the table of replications.

use std::collections::{BTreeMap, BTreeSet};

use host::State;
use host::table_file::{FileProblem, NotKept, TableFile};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::kept::Replication;
use crate::timetable::Kept;

/// The file in the state directory.
const FILE: &str = "replications-removed.json";
/// How many removed replications are remembered: the last ones.
const NOTES_MAX: usize = 1000;

/// What one left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Left {
    name: String,
    source: String,
    pub(super) id: String,
    /// As [`Replication::unmarked`].
    pub(super) unmarked: BTreeMap<String, BTreeSet<u64>>,
}

/// What all of them left.
pub(crate) struct LeftNotes {
    file: TableFile,
    notes: Mutex<Vec<Left>>,
}

impl LeftNotes {
    /// What was kept.
    pub(crate) fn load(state: &State) -> Self {
        let path = state.directory().join(FILE);
        let (notes, file) = TableFile::load(path, "notes of removed replications");
        let notes = Mutex::new(notes);
        Self { file, notes }
    }

    /// What is wrong with their file.
    pub(crate) fn problem(&self) -> Option<FileProblem> {
        self.file.problem()
    }

    /// Whether nobody knows what they are.
    pub(crate) fn are_unknown(&self) -> bool {
        self.file.unread().is_some()
    }

    /// The snapshots that stay for them, by their GUIDs.
    pub(crate) fn guids(&self) -> Vec<u64> {
        let notes = self.notes.lock();
        let all = notes.iter().flat_map(|left| left.unmarked.values());
        all.flatten().copied().collect()
    }

    /// Keeps what a replication notes, which is to be forgotten.
    pub(super) fn keep(&self, removed: &Kept<Replication>) -> Result<(), NotKept> {
        let Kept { course, own } = removed;
        if own.unmarked.is_empty() {
            return Ok(());
        }
        let mut notes = self.notes.lock();
        let mut changed = notes.clone();
        changed.retain(|left| !left.is_of(&course.name, &own.what.source));
        changed.push(Left {
            name: course.name.clone(),
            source: own.what.source.clone(),
            id: own.id.clone(),
            unmarked: own.unmarked.clone(),
        });
        let too_many = changed.len().saturating_sub(NOTES_MAX);
        changed.drain(..too_many);
        self.file.write(&changed)?;
        *notes = changed;
        Ok(())
    }

    /// What the last one by that name, of that source, left.
    pub(super) fn of(&self, name: &str, source: &str) -> Option<Left> {
        let notes = self.notes.lock();
        notes.iter().find(|left| left.is_of(name, source)).cloned()
    }

    /// Drops what a new one has taken over.
    pub(super) fn taken_over(&self, name: &str, source: &str) {
        let mut notes = self.notes.lock();
        let mut changed = notes.clone();
        changed.retain(|left| !left.is_of(name, source));
        if changed.len() == notes.len() {
            return;
        }
        if let Err(error) = self.file.write(&changed) {
            tracing::error!("{FILE} could not be written: {error}; see to the state directory");
        }
        *notes = changed;
    }
}

impl Left {
    fn is_of(&self, name: &str, source: &str) -> bool {
        self.name == name && self.source == source
    }
}
