//! Goal: after a program of many changes within one transaction group the accounts are right, and
//! each dataset has what the changes, one after the other, make of it; a program that finds no room
//! hears so, and what it did before is whole. Method: random programs by seed, of changes that are
//! in the way of each other, against a model of contents; in a small pool changes until some are
//! refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataset::{DatasetError, Program, ProgramPool, PropertyChange, SyncTask};
use device::BoxFuture;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{TestPool, all_features};
use crate::{OBJECT, names, random, read, write};

const LENGTH: usize = 30_000;
const PROPERTY: &str = "org.example:p";

/// A change, by the names that it is about.
#[derive(Debug, Clone)]
enum Change {
    Take(String),
    DestroySnapshot(String),
    DestroyHead(String),
    /// A head, and what it goes back to.
    Rollback(String, Option<String>),
    Promote(String),
    /// A snapshot, and its new name behind `@`.
    Rename(String, String),
    /// A snapshot, and the bookmark's name behind `#`.
    Bookmark(String, String),
    Set(String),
}

use Change::*;

fn split(snapshot: &str) -> (&str, &str) {
    snapshot.split_once('@').expect("a snapshot")
}

impl Change {
    fn word(&self) -> &'static str {
        match self {
            Take(_) => "take",
            DestroySnapshot(_) => "destroy a snapshot",
            DestroyHead(_) => "destroy a head",
            Rollback(..) => "rollback",
            Promote(_) => "promote",
            Rename(..) => "rename",
            Bookmark(..) => "bookmark",
            Set(_) => "set",
        }
    }

    async fn task(&self, pool: &ProgramPool<'_>) -> Result<Arc<dyn SyncTask>, DatasetError> {
        let dsl = pool.dsl();
        match self {
            Take(name) => dsl.snapshots().take_task(name),
            DestroySnapshot(name) | DestroyHead(name) => {
                Ok(dsl.destroyer().destroy_task(name, false))
            }
            Rollback(head, _) => Ok(dsl.snapshots().rollback_task(head)),
            Promote(head) => Ok(dsl.snapshots().promote_task(head)),
            Rename(snapshot, new) => {
                let (head, old) = split(snapshot);
                dsl.snapshots().rename_task(head, old, new)
            }
            Bookmark(snapshot, name) => {
                let bookmark = format!("{}#{name}", split(snapshot).0);
                dsl.bookmarks().create_task(&bookmark, snapshot)
            }
            Set(head) => {
                let change = PropertyChange::Set("v".to_owned());
                pool.set_task(head, PROPERTY, change).await
            }
        }
    }

    /// Whether it may be refused like this.
    fn may_be_refused(&self, error: &DatasetError) -> bool {
        match self {
            // There is one of this group.
            Take(_) => matches!(error, DatasetError::Again { .. }),
            DestroySnapshot(_) => matches!(error, DatasetError::HasClones { .. }),
            DestroyHead(_) => matches!(error, DatasetError::HasSnapshots { .. }),
            Rollback(_, None) => matches!(error, DatasetError::NotFound { .. }),
            Rollback(..) => matches!(
                error,
                DatasetError::Again { .. } | DatasetError::NewerSnapshots { .. }
            ),
            Promote(_) => matches!(error, DatasetError::WrongKind { .. }),
            Rename(..) | Bookmark(..) | Set(_) => false,
        }
    }
}

/// What a random program knows of the pool.
struct Model {
    rng: StdRng,
    /// Of heads and snapshots.
    contents: BTreeMap<String, Vec<u8>>,
    /// Names used so far: behind `@` and `#` each is used once.
    next: usize,
    done: BTreeMap<&'static str, u32>,
    refused: BTreeMap<&'static str, u32>,
}

impl Model {
    fn all(&self, are_snapshots: bool) -> Vec<String> {
        let all = self.contents.keys();
        let wanted = all.filter(|name| name.contains('@') == are_snapshots);
        wanted.cloned().collect()
    }

    fn one(&mut self, are_snapshots: bool) -> Option<String> {
        let all = self.all(are_snapshots);
        match all.is_empty() {
            true => None,
            false => Some(all[self.rng.random_range(0..all.len())].clone()),
        }
    }

    async fn change(&mut self, pool: &ProgramPool<'_>) -> Change {
        self.next += 1;
        let new = format!("n{}", self.next);
        let head = self.one(false).expect("there is always one");
        let kind = self.rng.random_range(0..100);
        match (kind, self.one(true)) {
            (0..25, Some(snapshot)) => DestroySnapshot(snapshot),
            (25..33, Some(snapshot)) => Rename(snapshot, new),
            (33..39, Some(snapshot)) => Bookmark(snapshot, new),
            (39..45, _) if self.all(false).len() > 2 => DestroyHead(head),
            (45..60, _) => {
                let own = pool.snapshots(&head).await.expect("a list");
                let origin = pool.property(&head, "origin").await.expect("its origin");
                let origin = origin.and_then(|it| it.value.text().map(str::to_owned));
                Rollback(head, own.last().cloned().or(origin))
            }
            (60..72, _) => Promote(head),
            (72..75, _) => Set(head),
            _ => Take(format!("{head}@{new}")),
        }
    }

    async fn step(&mut self, pool: &ProgramPool<'_>) {
        let change = self.change(pool).await;
        let task = change.task(pool).await;
        let task = task.unwrap_or_else(|error| panic!("{change:?}: {error}"));
        let tried = pool.change(&*task, false).await.is_ok();
        match pool.change(&*task, true).await {
            Ok(()) => assert!(tried, "{change:?}: it was refused before"),
            Err(error) => {
                assert!(change.may_be_refused(&error), "{change:?}: {error}");
                assert!(!tried, "{change:?}: {error}: it was not refused before");
                *self.refused.entry(change.word()).or_default() += 1;
                return;
            }
        }
        *self.done.entry(change.word()).or_default() += 1;
        let contents = &mut self.contents;
        match change {
            Take(name) => {
                let content = contents[split(&name).0].clone();
                contents.insert(name, content);
            }
            DestroySnapshot(name) | DestroyHead(name) => {
                contents.remove(&name);
            }
            Rollback(head, to) => {
                let content = contents[&to.expect("it went back to one")].clone();
                contents.insert(head, content);
            }
            Promote(head) => {
                for snapshot in pool.snapshots(&head).await.expect("a list") {
                    let short = split(&snapshot).1;
                    let old = contents
                        .keys()
                        .find(|name| name.split_once('@').is_some_and(|(_, of)| of == short));
                    let old = old.expect("it was another one's").clone();
                    let content = contents.remove(&old).expect("known");
                    contents.insert(snapshot, content);
                }
            }
            Rename(snapshot, new) => {
                let content = contents.remove(&snapshot).expect("known");
                contents.insert(format!("{}@{new}", split(&snapshot).0), content);
            }
            Bookmark(..) | Set(_) => {}
        }
    }
}

/// A program of so many random changes.
struct Random {
    steps: usize,
    model: Mutex<Option<Model>>,
}

impl Program for Random {
    fn run<'a>(&'a self, pool: &'a ProgramPool<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(mut model) = self.model.lock().take() else {
                return;
            };
            for _ in 0..self.steps {
                model.step(pool).await;
            }
            *self.model.lock() = Some(model);
        })
    }
}

async fn check_contents(pool: &TestPool, model: &Model, about: &str) {
    let mut found = names(pool).await;
    found.retain(|name| name.contains('/'));
    found.sort_unstable();
    let known: Vec<String> = model.contents.keys().cloned().collect();
    assert_eq!(found, known, "{about}");
    for (name, content) in &model.contents {
        let open = pool.dsl.open_dataset(name).await.expect("opens");
        let there = read(&open, OBJECT, LENGTH).await;
        assert!(there == *content, "{name}: {about}");
    }
}

/// Writes to some heads, and makes a clone or two: programs do neither.
async fn prepare(pool: &TestPool, model: &mut Model) {
    for head in model.all(false) {
        if model.rng.random_bool(0.3) {
            continue;
        }
        let offset = model.rng.random_range(0..LENGTH / 2);
        let length = model.rng.random_range(1..LENGTH / 2);
        let data = random(&mut model.rng, length);
        let content = model.contents.get_mut(&head).expect("known");
        content[offset..offset + length].copy_from_slice(&data);
        let open = pool.dsl.open_dataset(&head).await.expect("opens");
        write(&open, OBJECT, offset as u64, data).await;
    }
    // Else what is written goes with the program's group.
    if model.rng.random_bool(0.5) {
        pool.sync().await;
    }
    while model.all(false).len() < 5 {
        let Some(origin) = model.one(true) else {
            break;
        };
        model.next += 1;
        let name = format!("tank/fs{}", model.next);
        let datasets = pool.dsl.datasets();
        let cloned = datasets.clone_snapshot(&origin, &name, &[]).await;
        cloned.expect("cloned");
        let content = model.contents[&origin].clone();
        model.contents.insert(name, content);
    }
}

async fn programs(seed: u64, features: Vec<String>, counts: &mut [BTreeMap<&'static str, u32>; 2]) {
    let mut pool = TestPool::with_features(1 << 30, features).await;
    let mut model = Model {
        rng: StdRng::seed_from_u64(seed),
        contents: BTreeMap::new(),
        next: 0,
        done: BTreeMap::new(),
        refused: BTreeMap::new(),
    };
    for name in ["tank/a", "tank/b"] {
        pool.create(name, &[]).await.expect("created");
        model.contents.insert(name.to_owned(), vec![0; LENGTH]);
    }
    for round in 0..16 {
        let about = format!("seed {seed}, round {round}");
        prepare(&pool, &mut model).await;
        let program = Arc::new(Random {
            steps: model.rng.random_range(1..24),
            model: Mutex::new(Some(model)),
        });
        let ran = pool.dsl.tasks().run_program(program.clone()).await;
        ran.unwrap_or_else(|error| panic!("{about}: {error}"));
        model = program.model.lock().take().expect("it ran");
        pool.check().await;
        check_contents(&pool, &model, &about).await;
        if round % 4 == 3 {
            pool = pool.reopen().await;
            check_contents(&pool, &model, &about).await;
        }
    }
    for (sum, of) in counts.iter_mut().zip([&model.done, &model.refused]) {
        for (word, count) in of {
            *sum.entry(*word).or_default() += count;
        }
    }
}

#[tokio::test]
async fn random_programs_keep_contents_and_accounts() {
    // More of them: MILLPOND_TEST_SEEDS=100.
    let seeds = std::env::var("MILLPOND_TEST_SEEDS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(6);
    let mut counts = [BTreeMap::new(), BTreeMap::new()];
    for seed in 0..seeds {
        programs(seed, all_features(), &mut counts).await;
    }
    let [done, refused] = counts;
    for word in [
        "take",
        "destroy a snapshot",
        "destroy a head",
        "rollback",
        "promote",
        "rename",
        "bookmark",
        "set",
    ] {
        assert!(done.contains_key(word), "no {word}: {done:?} {refused:?}");
    }
    for word in ["take", "destroy a snapshot", "destroy a head", "rollback"] {
        assert!(
            refused.contains_key(word),
            "no refused {word}: {refused:?} {done:?}"
        );
    }
}

/// What is destroyed is free at once where there is no `async_destroy`, and clones have no lists of
/// their own without `livelist`.
#[tokio::test]
async fn random_programs_need_no_background_to_free_in() {
    let is_other = |guid: &String| {
        !matches!(
            guid.as_str(),
            "com.delphix:async_destroy" | "com.delphix:livelist"
        )
    };
    let others = all_features().into_iter().filter(is_other).collect();
    let mut counts = [BTreeMap::new(), BTreeMap::new()];
    programs(101, others, &mut counts).await;
}

/// Goal: a clone goes back to what it was made of, whose figures stay: what that snapshot alone has
/// is by the dataset that it is of. Method: a clone with other contents, of a snapshot whose
/// dataset was written since.
#[tokio::test]
async fn a_clone_goes_back_to_its_origin() {
    let pool = TestPool::new(1 << 30).await;
    pool.create("tank/a", &[]).await.expect("created");
    let mut rng = StdRng::seed_from_u64(1);
    let mut put = async |name: &str| {
        let data = random(&mut rng, LENGTH);
        let open = pool.dsl.open_dataset(name).await.expect("opens");
        write(&open, OBJECT, 0, data.clone()).await;
        drop(open);
        pool.sync().await;
        data
    };
    let kept = put("tank/a").await;
    let names = ["tank/a@1".to_owned()];
    let taken = pool.dsl.snapshots().take(&names, &[]).await;
    taken.expect("a snapshot");
    put("tank/a").await;
    let datasets = pool.dsl.datasets();
    let cloned = datasets.clone_snapshot("tank/a@1", "tank/c", &[]).await;
    cloned.expect("a clone");
    put("tank/c").await;
    let before = pool.number("tank/a@1", "used").await;
    assert!(before > 0, "{before}");
    let rollback = pool.dsl.snapshots().rollback_task("tank/c");
    pool.dsl.tasks().run(rollback).await.expect("rolled back");
    assert_eq!(pool.number("tank/a@1", "used").await, before);
    pool.check().await;
    let open = pool.dsl.open_dataset("tank/c").await.expect("opens");
    assert!(read(&open, OBJECT, LENGTH).await == kept);
}

/// A program that takes snapshots and destroys them until there is no room, and some more.
#[derive(Default)]
struct Greedy {
    made: Mutex<usize>,
    refused: Mutex<usize>,
}

impl Program for Greedy {
    fn run<'a>(&'a self, pool: &'a ProgramPool<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            for number in 0..2000 {
                let name = format!("tank/a@{number}");
                let changes = [Take(name.clone()), DestroySnapshot(name)];
                for change in changes {
                    let task = change.task(pool).await.expect("a task");
                    match pool.change(&*task, true).await {
                        Ok(()) => *self.made.lock() += 1,
                        Err(DatasetError::NoSpace { .. }) => *self.refused.lock() += 1,
                        // What was not taken, or not destroyed.
                        Err(DatasetError::NotFound { .. } | DatasetError::Again { .. }) => {}
                        Err(error) => panic!("{change:?}: {error}"),
                    }
                }
            }
        })
    }
}

#[tokio::test]
async fn a_program_that_finds_no_room_is_told() {
    let pool = TestPool::new(128 << 20).await;
    pool.create("tank/a", &[]).await.expect("created");
    let greedy = Arc::new(Greedy::default());
    let ran = pool.dsl.tasks().run_program(greedy.clone()).await;
    ran.expect("it ran");
    let (made, refused) = (*greedy.made.lock(), *greedy.refused.lock());
    assert!(made > 0 && refused > 0, "{made} {refused}");
    pool.check().await;
    let pool = pool.reopen().await;
    pool.check().await;
}
