//! What is kept of replications, and which snapshots they need.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use api::{ReplicationResult, ReplicationWhat, ScheduleWhen, Secret};
use serde::{Deserialize, Serialize};
use serving::mounts::is_at_or_below;

use super::left::LeftNotes;
use super::names;
use crate::timetable::{Kept, Recurs, Table};

/// A replication, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Replication {
    /// What tells it from those of other servers by the same name; nothing in those of old.
    #[serde(default)]
    pub(super) id: String,
    pub(super) what: ReplicationWhat,
    /// A snapshot that was taken and is not at the target.
    pub(super) pending: Option<String>,
    pub(super) last: Option<ReplicationResult>,
    /// Snapshots of the source that no bookmark could be made of, by dataset and GUID: the last
    /// that both sides have, and those under way. They stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) unmarked: BTreeMap<String, BTreeSet<u64>>,
    /// The API key that a target by TLS takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<Secret>,
}

impl Recurs for Replication {
    const FILE: &'static str = "replications.json";
    const WORD: &'static str = "replication";
    const WORDS: &'static str = "replications";
    const LISTED_BY: &'static str = "millpond replicate --list";

    fn when(&self) -> Option<ScheduleWhen> {
        let seconds = self.what.every_s?;
        Some(ScheduleWhen::Interval { seconds })
    }
}

/// All replications.
pub(crate) type Replications = Table<Replication>;

/// Snapshots, by their GUIDs, that replications need and have no bookmark of.
pub(crate) fn unmarked(replications: &Replications) -> HashSet<u64> {
    let entries = replications.lock();
    let all = entries
        .values()
        .flat_map(|entry| entry.kept.own.unmarked.values());
    all.flatten().copied().collect()
}

/// Why snapshots of a dataset stay, of which any may be needed: nobody can read which replications
/// there are, or what those that were removed have left. `names` are after the `@`; `None` where
/// that is known.
pub(crate) fn all_stay(
    replications: &Replications,
    left: &LeftNotes,
    dataset: &str,
    names: &[String],
) -> Option<Vec<(String, String)>> {
    if !replications.are_unknown() && !left.are_unknown() {
        return None;
    }
    let why = "a replication may need it: which ones are needed could not be read as the server \
               started";
    let stays = |name: &String| (format!("{dataset}@{name}"), why.to_owned());
    Some(names.iter().map(stays).collect())
}

/// Whether a replication has sent a dataset of which nobody here knows what both sides have: there
/// is neither a bookmark (`bookmarks` are those of the dataset, after the `#`) nor a note.
pub(crate) fn may_need_any(replications: &Replications, dataset: &str, bookmarks: &[&str]) -> bool {
    let entries = replications.lock();
    let mut all = entries.values().map(|entry| &entry.kept);
    all.any(|Kept { course, own }| {
        let source = own.what.source.as_str();
        let is_its = dataset == source || own.what.recursive && is_at_or_below(dataset, source);
        let tag = names::tag(&course.name, &own.id);
        let mut marked = bookmarks
            .iter()
            .filter(|name| names::is_own_bookmark(&tag, name));
        let is_known = own.unmarked.contains_key(dataset) || marked.next().is_some();
        is_its && course.success_s.is_some() && !is_known
    })
}

/// Has a replication's notes of what it needs changed; they are on disk with that.
pub(super) fn note_unmarked(
    replications: &Replications,
    name: &str,
    change: impl FnOnce(&mut BTreeMap<String, BTreeSet<u64>>),
) {
    let mut entries = replications.lock();
    let Some(entry) = entries.get_mut(name) else {
        return;
    };
    let mut noted = entry.kept.own.unmarked.clone();
    change(&mut noted);
    noted.retain(|_, guids| !guids.is_empty());
    if noted != entry.kept.own.unmarked {
        entry.kept.own.unmarked = noted;
        replications.save_or_warn(&entries);
    }
}
