//! Programs: several operations within one transaction group, of which all are there after a power
//! cut or none.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataset::{DatasetError, DslPool, Program, ProgramPool, SyncTask};
use device::BoxFuture;
use parking_lot::Mutex;

use super::Run;
use super::model::{Mark, PoolModel, Refused, Snap};
use super::steps::{SNAPS_MAX, is_as_told};
use crate::verify::Failure;

/// Operations of a program, at most.
const CHANGES_MAX: u64 = 12;
/// Filesystems and volumes that programs leave.
const SETS_MIN: usize = 3;

/// An operation, by the names that it is about.
#[derive(Debug, Clone)]
enum Change {
    Take(String),
    Destroy {
        name: String,
        defer: bool,
    },
    Rollback(String),
    Promote(String),
    Rename {
        set: String,
        from: String,
        to: String,
    },
    Bookmark {
        name: String,
        source: String,
    },
}

impl Change {
    fn task(&self, dsl: &Arc<DslPool>) -> Result<Arc<dyn SyncTask>, DatasetError> {
        match self {
            Change::Take(name) => dsl.snapshots().take_task(name),
            Change::Destroy { name, defer } => Ok(dsl.destroyer().destroy_task(name, *defer)),
            Change::Rollback(name) => Ok(dsl.snapshots().rollback_task(name)),
            Change::Promote(name) => Ok(dsl.snapshots().promote_task(name)),
            Change::Rename { set, from, to } => dsl.snapshots().rename_task(set, from, to),
            Change::Bookmark { name, source } => dsl.bookmarks().create_task(name, source),
        }
    }
}

/// Operations, and what the model says of each.
struct Changes {
    changes: Vec<(Change, Result<(), Refused>)>,
    /// What went otherwise.
    wrong: Mutex<Option<String>>,
}

impl Program for Changes {
    fn run<'a>(&'a self, pool: &'a ProgramPool<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            for (change, told) in &self.changes {
                let done = match change.task(pool.dsl()) {
                    Ok(task) => pool.change(&*task, true).await,
                    Err(error) => Err(error),
                };
                let is_right = match (told, &done) {
                    (Ok(()), Ok(())) => true,
                    (Err(refused), Err(error)) => is_as_told(*refused, error),
                    _ => false,
                };
                if !is_right {
                    let what = format!("{change:?}: {done:?}, though {told:?}");
                    *self.wrong.lock() = Some(what);
                    return;
                }
            }
        })
    }
}

impl Run {
    /// Several operations in one program.
    pub(super) async fn program(&mut self, side: usize) -> Result<(), Failure> {
        self.abandon_all(side).await?;
        // What is open is busy.
        self.sides[side].close("").await?;
        let dsl = self.sides[side].pool().dsl().clone();
        dsl.logs().close_open().await?;
        let mut model = self.next(side);
        let (mut changes, mut new) = (Vec::new(), BTreeSet::new());
        for _ in 0..=self.rng.below(CHANGES_MAX) {
            let mut tried = model.clone();
            let Some((change, told)) = self.random_change(&mut tried, &mut new) else {
                continue;
            };
            if told.is_ok() {
                model = tried;
            }
            changes.push((change, told));
        }
        let what = format!("pool {side}: program {changes:?}");
        let program = Arc::new(Changes {
            changes,
            wrong: Mutex::default(),
        });
        self.sides[side].issue(&what, model.clone());
        let ran = dsl.tasks().run_program(program.clone()).await;
        let wrong = program.wrong.lock().take();
        if let Some(wrong) = wrong {
            return Err(format!("{what}: {wrong}").into());
        }
        ran.map_err(|error| format!("{what}: {error}"))?;
        self.sides[side].is_synced();
        *self.outcome.done.entry("program").or_default() += 1;
        for (set, snap) in model.sets.iter().flat_map(|(name, set)| {
            let snaps = set.snaps.iter();
            snaps.map(move |snap| (name, snap))
        }) {
            if new.contains(&snap.number) {
                let name = format!("{set}@{}", snap.name);
                let guid = dsl.directories().lookup(&name).await?.guid;
                self.guids.insert(snap.id, guid.get());
            }
        }
        Ok(())
    }

    /// An operation on what there is then, and what the model says of it. `new` are the snapshots
    /// that the program has taken: of each dataset it takes one, to which it does not go back.
    fn random_change(
        &mut self,
        model: &mut PoolModel,
        new: &mut BTreeSet<u64>,
    ) -> Option<(Change, Result<(), Refused>)> {
        let names: Vec<String> = model.sets.keys().cloned().collect();
        let name = self.rng.pick(&names)?;
        let set = model.sets[&name].clone();
        let snap = self.rng.pick(&set.snaps);
        let last = set.snaps.last();
        let is_new = |snap: &Snap| new.contains(&snap.number);
        let kind = self.rng.below(100);
        Some(match kind {
            0..=29 => {
                if last.is_some_and(is_new) || set.snaps.len() >= SNAPS_MAX {
                    return None;
                }
                let short = self.name("s");
                let told = model.snapshot(&[(name.clone(), self.fresh())], &short);
                new.extend(model.sets[&name].snaps.last().map(|snap| snap.number));
                (Change::Take(format!("{name}@{short}")), told)
            }
            30..=54 => {
                let (short, defer) = (snap?.name, self.rng.percent(30));
                let told = model.destroy_snapshots(&name, std::slice::from_ref(&short), defer);
                let name = format!("{name}@{short}");
                (Change::Destroy { name, defer }, told)
            }
            55..=69 => {
                let last = last?;
                let has_newer_mark = set.marks.values().any(|mark| mark.number > last.number);
                if is_new(last) || has_newer_mark {
                    return None;
                }
                model.rollback(&name);
                (Change::Rollback(name), Ok(()))
            }
            70..=81 => {
                let told = model.promote(&name);
                (Change::Promote(name), told)
            }
            82..=88 => {
                let (from, to) = (snap?.name, self.name("r"));
                let told = model.rename_snapshot(&name, &from, &to);
                let set = name;
                (Change::Rename { set, from, to }, told)
            }
            89..=93 => {
                let snap = snap.filter(|snap| !is_new(snap))?;
                let mark = Mark {
                    id: snap.id,
                    state: snap.state,
                    number: snap.number,
                    ivs: snap.ivs,
                };
                let short = self.name("b");
                let told = model.bookmark(&name, &short, mark);
                let source = format!("{name}@{}", snap.name);
                let name = format!("{name}#{short}");
                (Change::Bookmark { name, source }, told)
            }
            _ => {
                if names.len() <= SETS_MIN {
                    return None;
                }
                let told = model.destroy(&name);
                let defer = false;
                (Change::Destroy { name, defer }, told)
            }
        })
    }
}
