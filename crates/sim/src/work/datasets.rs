//! Work on datasets: making, destroying, snapshots, properties.

use std::collections::BTreeMap;

use dataset::PropertyChange;

use super::{End, FILESYSTEMS_MAX, SNAPSHOTS_MAX, Worker};
use crate::golden::Golden;
use crate::history::UNKNOWN;
use crate::model::{Content, DatasetModel, State};
use crate::verify::Failure;

impl Worker {
    /// Unloads the key of the worker's datasets, which nobody else has, does what needs no key, and
    /// loads it again.
    pub(super) async fn lock_for_a_while(&mut self, golden: &Golden) -> Result<(), Failure> {
        let Some((root, wrapping)) = golden.key_of(&self.top) else {
            return Ok(());
        };
        self.close_all().await;
        let dsl = self.pool.dsl().clone();
        let unloaded = dsl.keys().unload(root).await;
        unloaded.map_err(|error| format!("unloading the key of {root}: {error}"))?;
        for _ in 0..self.rng.below(4) {
            self.dataset_step().await?;
        }
        let loaded = dsl.keys().load(root, wrapping.clone(), false).await;
        loaded.map_err(|error| format!("loading the key of {root}: {error}").into())
    }

    pub(super) async fn dataset_step(&mut self) -> Result<(), Failure> {
        let mut state = self.state();
        let names: Vec<String> = state.keys().cloned().collect();
        let name = self.rng.pick(&names).ok_or("no datasets")?;
        let dsl = self.pool.dsl().clone();
        let dataset = state.get_mut(&name).expect("a dataset of the state");
        let what;
        let end = match self.rng.below(100) {
            0..=29 => {
                let many = self.rng.percent(40);
                let snapshot = self.name("s");
                let mut full = Vec::new();
                for (other, dataset) in &mut state {
                    if (many || *other == name) && dataset.snapshots.len() < SNAPSHOTS_MAX {
                        let content = dataset.content.clone();
                        dataset.snapshots.push((snapshot.clone(), content));
                        full.push(format!("{other}@{snapshot}"));
                    }
                }
                if full.is_empty() {
                    return Ok(());
                }
                what = format!("snapshot {full:?}");
                self.issue(what.clone(), state);
                self.settle(&what, dsl.snapshots().take(&full, &[]).await)?
            }
            30..=49 => {
                let clones: Vec<String> = state
                    .values()
                    .filter_map(|dataset| dataset.origin.clone())
                    .collect();
                let dataset = state.get_mut(&name).expect("a dataset of the state");
                if dataset.snapshots.is_empty() {
                    return Ok(());
                }
                let at = self.rng.below(dataset.snapshots.len() as u64) as usize;
                let full = format!("{name}@{}", dataset.snapshots[at].0);
                if clones.contains(&full) {
                    return Ok(());
                }
                dataset.snapshots.remove(at);
                what = format!("destroy {full}");
                self.issue(what.clone(), state);
                self.settle(
                    &what,
                    dsl.destroyer().destroy_snapshots(&[full], false).await,
                )?
            }
            50..=61 => {
                let Some((_, content)) = dataset.snapshots.last().cloned() else {
                    return Ok(());
                };
                dataset.content = content;
                // What is not synced is gone with the rollback in any case.
                self.close(&name).await?;
                what = format!("rollback {name}");
                self.issue(what.clone(), state);
                let done = self.settle(&what, dsl.snapshots().rollback(&name, None).await)?;
                done.map(drop)
            }
            62..=71 => {
                let filesystems = state
                    .values()
                    .filter(|dataset| matches!(*dataset.content, Content::Files(_)))
                    .count();
                let dataset = &state[&name];
                let is_files = matches!(*dataset.content, Content::Files(_));
                let Some((snapshot, content)) = self.rng.pick(&dataset.snapshots) else {
                    return Ok(());
                };
                if !is_files || filesystems >= FILESYSTEMS_MAX {
                    return Ok(());
                }
                let origin = format!("{name}@{snapshot}");
                let own = self.name("c");
                let clone = format!("{}/{own}", self.top);
                state.insert(
                    clone.clone(),
                    DatasetModel {
                        content,
                        snapshots: Vec::new(),
                        origin: Some(origin.clone()),
                        properties: BTreeMap::new(),
                        sync_disabled: None,
                    },
                );
                what = format!("clone {origin} to {clone}");
                self.issue(what.clone(), state);
                self.settle(
                    &what,
                    dsl.datasets().clone_snapshot(&origin, &clone, &[]).await,
                )?
            }
            72..=77 => {
                let has_clones = state.values().any(|other| {
                    other
                        .origin
                        .as_ref()
                        .is_some_and(|origin| dataset::name::split_snapshot(origin).0 == name)
                });
                let dataset = &state[&name];
                // The top one, which the others are below, is a clone when one of them was
                // promoted.
                let is_top = name == self.top;
                let is_clone = dataset.origin.is_some() && !is_top;
                if !is_clone || has_clones || !dataset.snapshots.is_empty() {
                    return Ok(());
                }
                self.close(&name).await?;
                state.remove(&name);
                what = format!("destroy {name}");
                self.issue(what.clone(), state);
                self.settle(&what, dsl.destroyer().destroy(&name).await)?
            }
            78..=83 => {
                let Some(origin) = dataset.origin.clone() else {
                    return Ok(());
                };
                promote(&mut state, &name, &origin);
                what = format!("promote {name}");
                self.issue(what.clone(), state);
                self.settle(&what, dsl.snapshots().promote(&name).await)?
            }
            _ => {
                let is_files = matches!(*dataset.content, Content::Files(_));
                let choices: &[(&str, &str)] = &[
                    ("compression", "off"),
                    ("compression", "lz4"),
                    ("compression", "zstd"),
                    ("compression", "gzip-1"),
                    ("checksum", "sha256"),
                    ("checksum", "fletcher4"),
                    ("checksum", "blake3"),
                    ("copies", "1"),
                    ("copies", "2"),
                    ("user:note", "something"),
                    ("redundant_metadata", "most"),
                    ("sync", "standard"),
                    ("sync", "always"),
                    ("sync", "disabled"),
                    ("recordsize", "4096"),
                    ("recordsize", "131072"),
                    ("recordsize", "1048576"),
                    ("dnodesize", "auto"),
                    ("dnodesize", "legacy"),
                    ("xattr", "sa"),
                    ("atime", "off"),
                ];
                let count = if is_files { choices.len() } else { 14 };
                let (property, value) = choices[self.rng.below(count as u64) as usize];
                dataset.properties.insert(property.into(), UNKNOWN.into());
                let mut known = state.clone();
                what = format!("set {property}={value} {name}");
                self.issue(what.clone(), state);
                let change = (property.to_owned(), PropertyChange::Set(value.to_owned()));
                let done = self.settle(&what, dsl.properties().set(&name, &[change]).await)?;
                if done.is_some() {
                    let read = format!("{:?}", dsl.properties().get(&name, property).await?.value);
                    let dataset = known.get_mut(&name).expect("a dataset of the state");
                    dataset.properties.insert(property.into(), read);
                    if property == "sync" {
                        dataset.sync_disabled = Some(value == "disabled");
                    }
                    let mut book = self.book.lock();
                    book.history.cancel();
                    book.history.issue(what.clone(), known);
                }
                done
            }
        };
        let end = if end.is_some() {
            End::Done
        } else {
            End::Refused
        };
        if let End::Done = end {
            let mut book = self.book.lock();
            let step = book.history.last();
            book.history.set_synced(step);
        }
        Ok(())
    }
}

/// A clone and what it is a clone of change places.
fn promote(state: &mut State, clone: &str, origin: &str) {
    let (parent, Some(snapshot)) = dataset::name::split_snapshot(origin) else {
        return;
    };
    let (parent, snapshot) = (parent.to_owned(), snapshot.to_owned());
    let Some(above) = state.get_mut(&parent) else {
        return;
    };
    let Some(at) = above
        .snapshots
        .iter()
        .position(|(name, _)| *name == snapshot)
    else {
        return;
    };
    let rest = above.snapshots.split_off(at + 1);
    let mut moved = std::mem::replace(&mut above.snapshots, rest);
    let names: Vec<String> = moved.iter().map(|(name, _)| name.clone()).collect();
    let above_origin = above.origin.replace(format!("{clone}@{snapshot}"));
    let below = state.get_mut(clone).expect("the clone");
    moved.append(&mut below.snapshots);
    below.snapshots = moved;
    below.origin = above_origin;
    for (name, dataset) in state.iter_mut() {
        if let Some(origin) = &mut dataset.origin
            && *name != parent
            && let (of, Some(snapshot)) = dataset::name::split_snapshot(origin)
            && of == parent
            && names.iter().any(|name| name == snapshot)
        {
            *origin = format!("{clone}@{snapshot}");
        }
    }
}
