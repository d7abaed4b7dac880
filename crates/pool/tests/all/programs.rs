//! Goal: a program's changes are one transaction group: each sees those before it, refusals are its
//! own to hear, the pool's books are right after it, and a power cut leaves all of it or nothing.
//! Method: a small pool with snapshots, a clone, holds and bookmarks on a simulated disk, and a
//! program that makes every kind of change, several of them of the same dataset; zdb on what it
//! leaves. The same with the power cut at some of its writes (with `MILLPOND_LONG` at each).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dataset::{
    DatasetError, DslPool, GrantChange, Grantee, ListOptions, Program, ProgramPool, PropertyChange,
    SyncTask,
};
use device::BoxFuture;
use device::sim::{PowerCut, SimOp, SimWorld};
use parking_lot::Mutex;
use pool::Pool;

use crate::common::*;
use crate::damage::{Contents, Image, load, make, try_import};

/// A change, by the names that it is about.
#[derive(Clone, Copy)]
pub enum Step {
    Take(&'static str),
    Destroy(&'static str),
    Promote(&'static str),
    Rollback(&'static str),
    Rename(&'static str, &'static str, &'static str),
    Bookmark(&'static str, &'static str),
    Set(&'static str, &'static str),
}

use Step::*;

impl Step {
    async fn task(self, dsl: &Arc<DslPool>) -> Result<Arc<dyn SyncTask>, DatasetError> {
        match self {
            Take(name) => dsl.snapshots().take_task(name),
            Destroy(name) => Ok(dsl.destroyer().destroy_task(name, false)),
            Promote(name) => Ok(dsl.snapshots().promote_task(name)),
            Rollback(name) => Ok(dsl.snapshots().rollback_task(name)),
            Rename(head, old, new) => dsl.snapshots().rename_task(head, old, new),
            Bookmark(name, source) => dsl.bookmarks().create_task(name, source),
            Set(name, value) => {
                let change = PropertyChange::Set(value.to_owned());
                dsl.properties()
                    .set_task(name, "org.example:p", change)
                    .await
            }
        }
    }
}

/// A program that makes changes one after the other, and keeps why some were refused.
#[derive(Default)]
pub struct Steps {
    steps: Vec<Step>,
    pub refused: Mutex<Vec<(usize, DatasetError)>>,
    looked: Mutex<Vec<String>>,
}

impl Steps {
    pub fn new(steps: &[Step]) -> Arc<Steps> {
        Arc::new(Steps {
            steps: steps.to_vec(),
            ..Steps::default()
        })
    }
}

impl Program for Steps {
    fn run<'a>(&'a self, pool: &'a ProgramPool<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            for (at, step) in self.steps.iter().enumerate() {
                let done = async {
                    let task = step.task(pool.dsl()).await?;
                    // To try changes nothing.
                    pool.change(&*task, false).await?;
                    pool.change(&*task, true).await
                };
                if let Err(error) = done.await {
                    self.refused.lock().push((at, error));
                }
                let snapshots = pool.snapshots("tank/a").await.unwrap_or_default();
                self.looked.lock().push(snapshots.join(" "));
            }
        })
    }
}

/// Every kind of change, and some in the way of others.
const ALL: &[Step] = &[
    Take("tank@x"),
    Take("tank/a@x"),
    // A second one of the same group.
    Take("tank/a@z"),
    Rename("tank/a", "x", "y"),
    Bookmark("tank/a#y", "tank/a@y"),
    Set("tank/a", "v"),
    Set("tank/a@y", "w"),
    // It goes away and comes back.
    Promote("tank/clone"),
    Promote("tank/a"),
    // It is held.
    Destroy("tank/a@2"),
    Rollback("tank/dedup"),
    Destroy("tank/dedup@r"),
    Take("tank/dedup@n"),
    Destroy("tank/dedup@n"),
    Destroy("tank/clone"),
    Destroy("tank/a@1"),
    Destroy("tank/none"),
];
/// Those of them that are refused.
const REFUSED: [usize; 3] = [2, 9, 16];

/// The pool with something to roll back.
async fn begin(image: &Image) -> (SimWorld, Arc<Pool>) {
    let sim = load(image);
    let pool = try_import(&sim, false).await.expect("import");
    let dsl = pool.dsl();
    // zdb takes lists of permissions for leaks.
    let grants = GrantChange {
        grantee: Grantee::User(1000),
        local: true,
        descendent: true,
        permissions: None,
    };
    let taken = dsl.delegation().change("tank/a", &[grants], true).await;
    taken.expect("taken away");
    let name = "tank/dedup@r".to_owned();
    dsl.snapshots()
        .take(&[name], &[])
        .await
        .expect("a snapshot");
    let dataset = dsl.open_dataset("tank/dedup").await.expect("open");
    write_objects(&dataset, 2, 2).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    (sim, pool)
}

/// Names of all that there is, and what the program sets.
async fn look(pool: &Pool) -> Vec<String> {
    let dsl = pool.dsl();
    let options = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let listed = dsl
        .directories()
        .list("tank", &options)
        .await
        .expect("list");
    let mut names: Vec<String> = listed.into_iter().map(|info| info.name).collect();
    let bookmarks = dsl.bookmarks().list("tank/a").await.expect("bookmarks");
    names.extend(bookmarks.into_iter().map(|bookmark| bookmark.name));
    let wanted = ["org.example:p".to_owned()];
    let set = dsl.properties().named("tank/a", &wanted).await;
    let set = set.expect("properties");
    names.extend(set.iter().map(|setting| format!("{:?}", setting.value)));
    names
}

async fn check_contents(pool: &Pool, contents: &Contents) {
    for name in ["tank", "tank/a", "tank/a@2", "tank/dedup"] {
        let dataset = pool.dsl().open_dataset(name).await.expect("open");
        // What was written there since goes with the rollback.
        check_objects(&dataset, &contents[name], 2).await;
    }
}

fn images_of(sim: &SimWorld) -> Images {
    let images = Images::new();
    for name in sim.disk_names() {
        let disk = sim.disk(&name).expect("a disk");
        let saved = disk.save_image(images.path().join(format!("{name}.img")));
        saved.expect("save");
    }
    images
}

fn zdb_of_sim(sim: &SimWorld) {
    zdb_is_clean(images_of(sim).path(), "tank");
}

/// zdb counts the list of who has permissions, and not the lists of permissions that it names
/// (`count_dir_mos_objects`, cmd/zdb/zdb.c): so it takes them for leaks, where nothing has happened
/// but `zfs allow`. That is why the other tests take them away.
#[tokio::test(start_paused = true)]
async fn zdb_takes_lists_of_permissions_for_leaks() {
    let (image, _) = make().await;
    let sim = load(&image);
    let pool = try_import(&sim, false).await.expect("import");
    pool.export(false).await.expect("export");
    let images = images_of(&sim);
    let output = std::process::Command::new(ZDB)
        .args(["-e", "-p"])
        .arg(images.path())
        .args(["-bcc", "-d", "-mm", "tank"])
        .output()
        .expect("zdb");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let leaks: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(") leaked"))
        .collect();
    assert!(!leaks.is_empty(), "{text}");
    let of_permissions = |line: &&str| line.contains("(DSL permissions) leaked");
    assert!(leaks.iter().all(of_permissions), "{leaks:?}");
    // It ends there, and finds nothing wrong with the blocks where it is not asked for more.
    let text = zdb(images.path(), "tank", &["-bcc"]);
    assert!(text.contains("No leaks"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_program_makes_its_changes_in_one_group() {
    let (image, contents) = make().await;
    let (sim, pool) = begin(&image).await;
    let program = Steps::new(ALL);
    let ran = pool.dsl().tasks().run_program(program.clone()).await;
    ran.expect("it ran");
    let refused = std::mem::take(&mut *program.refused.lock());
    let places: Vec<usize> = refused.iter().map(|(at, _)| *at).collect();
    assert_eq!(places, REFUSED, "{refused:?}");
    assert!(
        matches!(refused[0].1, DatasetError::Again { .. }),
        "{refused:?}"
    );
    assert!(
        matches!(refused[1].1, DatasetError::Held { .. }),
        "{refused:?}"
    );
    assert!(
        matches!(refused[2].1, DatasetError::NotFound { .. }),
        "{refused:?}"
    );
    let looked = std::mem::take(&mut *program.looked.lock());
    assert_eq!(looked[0], "tank/a@1 tank/a@2");
    assert_eq!(looked[1], "tank/a@1 tank/a@2 tank/a@x");
    assert_eq!(looked[3], "tank/a@1 tank/a@2 tank/a@y");
    assert_eq!(looked[7], "tank/a@2 tank/a@y", "the first is the clone's");
    assert_eq!(looked[16], "tank/a@2 tank/a@y");
    // One group: what was made is of one time.
    let directories = pool.dsl().directories();
    let first = directories.lookup("tank@x").await.expect("a snapshot");
    let second = directories.lookup("tank/a@y").await.expect("a snapshot");
    assert_eq!(first.createtxg, second.createtxg);
    check_contents(&pool, &contents).await;
    pool.sync().await.expect("sync");
    pool.export(false).await.expect("export");
    zdb_of_sim(&sim);
    let pool = try_import(&sim, false).await.expect("import");
    check_contents(&pool, &contents).await;
    pool.export(false).await.expect("export");
}

/// Runs the program until the power goes at this write of it; says whether it was answered, and
/// what is there then.
async fn cut(image: &Image, contents: &Contents, write: u64) -> (bool, Vec<String>) {
    let (sim, pool) = begin(image).await;
    sim.cut_power_at(SimOp::Write, write, PowerCut::Random);
    let answered = Arc::new(AtomicBool::new(false));
    let is_answered = answered.clone();
    let work = async move {
        let ran = pool.dsl().tasks().run_program(Steps::new(ALL)).await;
        is_answered.store(ran.is_ok(), Ordering::Relaxed);
    };
    sim.world().spawn.spawn(Box::pin(work));
    tokio::select! {
        () = sim.power_lost() => {}
        () = tokio::time::sleep(std::time::Duration::from_secs(60)) => {
            sim.power_cut(PowerCut::Random);
        }
    }
    sim.kill_tasks().await;
    sim.power_on();
    let pool = try_import(&sim, false).await.expect("import");
    check_contents(&pool, contents).await;
    let found = look(&pool).await;
    pool.export(false).await.expect("export");
    if write % 16 == 1 {
        zdb_of_sim(&sim);
    }
    (answered.load(Ordering::Relaxed), found)
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_leaves_a_program_whole_or_not_begun() {
    let (image, contents) = make().await;
    let (sim, pool) = begin(&image).await;
    let nothing = look(&pool).await;
    let before = sim.counts().get(SimOp::Write);
    let program = pool.dsl().tasks().run_program(Steps::new(ALL)).await;
    program.expect("it ran");
    let all = look(&pool).await;
    let writes = sim.counts().get(SimOp::Write) - before;
    pool.export(false).await.expect("export");
    assert_ne!(nothing, all);
    let stride = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 1,
        None => (writes / 8).max(1),
    };
    let mut seen = [0, 0];
    for write in (1..=writes + 4).step_by(stride as usize) {
        let (is_answered, found) = cut(&image, &contents, write).await;
        assert!(found == all || found == nothing, "write {write}: {found:?}");
        assert!(
            found == all || !is_answered,
            "write {write}: it was answered"
        );
        seen[usize::from(found == all)] += 1;
    }
    assert!(seen[0] > 0, "{seen:?} of {writes}");
}
