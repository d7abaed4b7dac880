//! Goal: what a change of datasets needs is read before the change begins, so damage refuses that
//! change alone: no command stops a pool. A dataset whose root block is lost can be destroyed.
//! Method: a pool with all that the changes have to read is made once, on a simulated disk. Each
//! case loads it, destroys all blocks of one object of the MOS, or one dataset's or snapshot's
//! root, as wrong checksums or as sectors that cannot be read, imports it and makes one change.
//! Then either the change was made, or nothing is changed; and the pool goes on. By default each
//! object meets some of the changes, which `MILLPOND_SEED=N` chooses; with `MILLPOND_LONG` all, in
//! both ways.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataset::{
    DatasetError, DatasetInfo, DirtyEstimate, ListOptions, ObjsetInit, PropertyChange,
    PropertyValue,
};
use device::BoxFuture;
use format::{LogBody, ObjectId, ObjectType, ObjsetKind};
use object::{NewObject, ObjectSet};
use pool::Pool;
use tokio::time::timeout;
use zil::LogRecord;
use zio::Tx;

use crate::common::*;
use crate::damage::{
    DISKS, How, Image, PATIENCE, Victim, destroy, leave_and_return, load, make, save, try_import,
    victims,
};
use crate::programs::{Step, Steps};

const ROOTS: [&str; 8] = [
    "tank",
    "tank/b",
    "tank/b@1",
    "tank/b@3",
    "tank/b@4",
    "tank/clone",
    "tank/b2",
    "tank/c",
];

type Outcome = Result<(), DatasetError>;

fn change(value: &str) -> PropertyChange {
    PropertyChange::Set(value.to_owned())
}

/// One change of datasets, by name.
struct Task {
    name: &'static str,
    run: fn(Arc<Pool>) -> BoxFuture<'static, Outcome>,
}

macro_rules! task {
    ($name:literal, |$dsl:ident| $body:expr) => {
        Task {
            name: $name,
            run: |pool| {
                Box::pin(async move {
                    let $dsl = pool.dsl();
                    let result: Outcome = $body.await;
                    result
                })
            },
        }
    };
}

fn set(
    pool: &Arc<dataset::DslPool>,
    name: &'static str,
    what: &'static str,
    to: PropertyChange,
) -> impl Future<Output = Outcome> + Send + use<> {
    let dsl = pool.clone();
    async move { dsl.properties().set(name, &[(what.to_owned(), to)]).await }
}

fn tasks() -> Vec<Task> {
    vec![
        task!("snapshot", |dsl| dsl
            .snapshots()
            .take(&["tank/b@new".into()], &[])),
        task!("snapshot of a clone", |dsl| dsl.snapshots().take(
            &["tank/b2@new".into()],
            &[("org.example:s".into(), "t".into())]
        )),
        task!("destroy the first", |dsl| dsl
            .destroyer()
            .destroy("tank/b@1")),
        task!("destroy the last", |dsl| dsl
            .destroyer()
            .destroy("tank/b@3")),
        task!("destroy some", |dsl| dsl.destroyer().destroy_snapshots(
            &["tank/b@1".into(), "tank/b@3".into()],
            false
        )),
        task!("defer", |dsl| dsl
            .destroyer()
            .destroy_snapshots(&["tank/b@2".into()], true)),
        task!("destroy a clone", |dsl| dsl.destroyer().destroy("tank/b2")),
        task!("destroy", |dsl| dsl.destroyer().destroy("tank/c")),
        task!("rollback", |dsl| async {
            dsl.snapshots().rollback("tank/b", None).await.map(drop)
        }),
        task!("promote", |dsl| dsl.snapshots().promote("tank/b2")),
        task!("rename", |dsl| dsl
            .directories()
            .rename("tank/b2", "tank/c/d")),
        task!("rename a snapshot", |dsl| dsl
            .directories()
            .rename("tank/b@1", "tank/b@one")),
        task!("set", |dsl| set(
            dsl,
            "tank/b",
            "org.example:c",
            change("e")
        )),
        task!("set a limit", |dsl| set(
            dsl,
            "tank/b",
            "snapshot_limit",
            change("9")
        )),
        task!("quota", |dsl| set(dsl, "tank/b", "quota", change("90M"))),
        task!("compression", |dsl| set(
            dsl,
            "tank/b",
            "compression",
            change("zstd")
        )),
        task!("inherit", |dsl| set(
            dsl,
            "tank/b",
            "org.example:c",
            PropertyChange::Inherit
        )),
        task!("set on a snapshot", |dsl| set(
            dsl,
            "tank/b@3",
            "org.example:s",
            change("t")
        )),
        task!("bookmark", |dsl| dsl
            .bookmarks()
            .create(&[("tank/b#new".into(), "tank/b@2".into())])),
        task!("destroy a bookmark", |dsl| dsl
            .bookmarks()
            .destroy(&["tank/b#0".into()])),
        task!("hold", |dsl| dsl.holds().hold(&["tank/b@3".into()], "more")),
        task!("release", |dsl| dsl
            .holds()
            .release(&["tank/b@4".into()], "keep")),
        task!("clone", |dsl| dsl.datasets().clone_snapshot(
            "tank/b@3",
            "tank/new",
            &[]
        )),
        task!("create", |dsl| dsl.datasets().create(
            "tank/c/new",
            &[("org.example:c".into(), "d".into())],
            Arc::new(BareFilesystem)
        )),
        // What some of its changes lack keeps none of the others from being made.
        task!("a program", |dsl| dsl.tasks().run_program(Steps::new(&[
            Step::Take("tank/b@new"),
            Step::Destroy("tank/b@1"),
            Step::Promote("tank/b2"),
            Step::Rename("tank/b", "3", "three"),
            Step::Set("tank/b", "f"),
            Step::Destroy("tank/c"),
        ]))),
    ]
}

/// Makes the pool.
async fn make_more() -> Image {
    let (image, _) = make().await;
    let sim = load(&image);
    let pool = try_import(&sim, false).await.expect("import");
    let dsl = pool.dsl().clone();
    for name in ["tank/b", "tank/c"] {
        let init = Arc::new(BareFilesystem);
        dsl.datasets().create(name, &[], init).await.expect(name);
    }
    let mut before = Vec::new();
    for snapshot in 0..=5 {
        let dataset = dsl.open_dataset("tank/b").await.expect("open");
        let objects = write_objects(&dataset, 4, 2).await;
        free_objects(&dataset, &before).await;
        before = objects[..2].to_vec();
        drop(dataset);
        pool.sync().await.expect("sync");
        if snapshot == 5 {
            break;
        }
        let names = [format!("tank/b@{snapshot}")];
        dsl.snapshots().take(&names, &[]).await.expect("snapshot");
    }
    dsl.datasets()
        .clone_snapshot("tank/b@2", "tank/b2", &[])
        .await
        .expect("clone");
    let dataset = dsl.open_dataset("tank/b2").await.expect("open");
    write_objects(&dataset, 2, 2).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    set(&dsl, "tank/b", "org.example:c", change("d"))
        .await
        .expect("set");
    set(&dsl, "tank", "filesystem_limit", change("100"))
        .await
        .expect("set");
    // A bookmark that counts what died before the next snapshot, whose own is gone.
    dsl.bookmarks()
        .create(&[("tank/b#0".to_owned(), "tank/b@0".to_owned())])
        .await
        .expect("bookmark");
    dsl.destroyer()
        .destroy("tank/b@0")
        .await
        .expect("destroyed");
    // Goes when its hold does.
    let last = ["tank/b@4".to_owned()];
    dsl.holds().hold(&last, "keep").await.expect("held");
    dsl.destroyer()
        .destroy_snapshots(&last, true)
        .await
        .expect("deferred");
    pool.export(false).await.expect("export");
    save(&sim)
}

/// What is seen of the pool's datasets, as far as it can be read.
async fn look(pool: &Pool) -> Option<BTreeMap<String, DatasetInfo>> {
    let options = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let mut all = pool.dsl().directories().list("tank", &options).await.ok()?;
    for info in &mut all {
        // What the MOS takes, and the history.
        info.available_bytes = 0;
        if info.name == "tank" {
            info.used_bytes = 0;
        }
    }
    Some(
        all.into_iter()
            .map(|info| (info.name.clone(), info))
            .collect(),
    )
}

/// Makes one change in a pool that lacks one thing. Says what came of the change, or what is wrong.
async fn outcome(image: &Image, victim: &Victim, how: How, task: &Task) -> Result<Outcome, String> {
    let sim = load(image);
    destroy(&sim, victim, how);
    let Ok(pool) = try_import(&sim, false).await else {
        // See `damage`.
        return Ok(Ok(()));
    };
    let before = look(&pool).await;
    let outcome = timeout(PATIENCE, (task.run)(pool.clone()))
        .await
        .map_err(|_| "the change hangs".to_owned())?;
    let synced = timeout(PATIENCE, pool.sync()).await;
    synced
        .map_err(|_| "the pool hangs".to_owned())?
        .map_err(|error| format!("the pool stopped: {error}"))?;
    if outcome.is_err()
        && let (Some(before), Some(after)) = (before, look(&pool).await)
        && before != after
    {
        return Err(format!("refused, and yet changed: {before:?} {after:?}"));
    }
    leave_and_return(&sim, &pool).await?;
    Ok(outcome)
}

fn is_tried(victim: &Victim) -> bool {
    victim.kind != ObjectType::DNODE
}

#[tokio::test(start_paused = true)]
async fn damage_refuses_a_change_and_stops_no_pool() {
    let image = make_more().await;
    let victims = victims(&image, &ROOTS).await;
    let tasks = tasks();
    let is_long = std::env::var_os("MILLPOND_LONG").is_some();
    let seed = std::env::var("MILLPOND_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let mut wrong = Vec::new();
    let mut refused = 0;
    for (index, victim) in victims.iter().filter(|victim| is_tried(victim)).enumerate() {
        for (number, task) in tasks.iter().enumerate() {
            let hows = match (index + number + seed) % 96 {
                _ if is_long => &[How::Corrupt, How::Unreadable][..],
                0 => &[How::Corrupt],
                48 => &[How::Unreadable],
                _ => &[],
            };
            for how in hows.iter().copied() {
                let (id, kind, name) = (victim.id, victim.kind, &victim.name);
                let case = format!("{}, {id} {kind:?} '{name}' {how:?}", task.name);
                match outcome(&image, victim, how, task).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        println!("{case}: {error}");
                        refused += 1;
                    }
                    Err(why) => {
                        println!("wrong: {case}: {why}");
                        wrong.push(format!("{case}: {why}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(refused > 0, "nothing was in the way of anything");
}

/// The change named so.
fn task(name: &str) -> Task {
    let mut all = tasks().into_iter();
    all.find(|task| task.name == name).expect("a change")
}

#[tokio::test(start_paused = true)]
async fn a_dataset_without_its_root_is_destroyed_and_others_are_not_changed() {
    let image = make_more().await;
    let victims = victims(&image, &ROOTS).await;
    let root = |name: &str| {
        let of = |victim: &&Victim| victim.id == ObjectId::ZERO && victim.name == name;
        victims.iter().find(of).expect("a root")
    };
    for (name, change, is_done) in [
        ("tank/c", "destroy", true),
        ("tank/b2", "destroy a clone", true),
        ("tank/b", "rollback", true),
        ("tank/b@4", "rollback", false),
        ("tank/b@3", "clone", false),
    ] {
        let came = outcome(&image, root(name), How::Corrupt, &task(change)).await;
        let came = came.unwrap_or_else(|why| panic!("{change} {name}: {why}"));
        assert_eq!(came.is_ok(), is_done, "{change} {name}: {came:?}");
    }
}

/// Whether a place that could not be read says of a dataset or snapshot that it is not listed.
fn covers(lost: &str, name: &str) -> bool {
    let below = |top: &str, separator: char| {
        let rest = name.strip_prefix(top);
        rest.is_some_and(|rest| rest.starts_with(separator))
    };
    match (lost.strip_suffix("/..."), lost.strip_suffix("@...")) {
        (Some(top), _) => below(top, '/'),
        (_, Some(top)) => below(top, '@'),
        _ => name == lost || below(lost, '/') || below(lost, '@'),
    }
}

/// Goal: damage to what is kept of one dataset hides no other one, and nothing silently. Method:
/// each object of datasets and directories in turn.
#[tokio::test(start_paused = true)]
async fn what_can_be_read_is_listed_without_what_cannot() {
    let image = make_more().await;
    let everything = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let pool = try_import(&load(&image), true).await.expect("import");
    let all = pool.dsl().directories().list("tank", &everything).await;
    let all: Vec<String> = all
        .expect("all")
        .into_iter()
        .map(|info| info.name)
        .collect();
    pool.export(false).await.expect("export");
    let kinds = [
        ObjectType::DSL_DIR,
        ObjectType::DSL_DIR_CHILD_MAP,
        ObjectType::DSL_DS_SNAP_MAP,
        ObjectType::DSL_PROPS,
        ObjectType::DSL_DATASET,
    ];
    let mut partly = 0;
    for victim in victims(&image, &ROOTS).await {
        if !kinds.contains(&victim.kind) {
            continue;
        }
        let sim = load(&image);
        destroy(&sim, &victim, How::Corrupt);
        let Ok(pool) = try_import(&sim, true).await else {
            continue;
        };
        let directories = pool.dsl().directories();
        let strict = directories.list("tank", &everything).await;
        if let Ok((listed, lost)) = directories.list_readable("tank", &everything).await {
            let (id, kind) = (victim.id, victim.kind);
            let listed: Vec<&str> = listed.iter().map(|info| info.name.as_str()).collect();
            for name in &all {
                assert!(
                    listed.contains(&name.as_str())
                        || lost.iter().any(|(lost, _)| covers(lost, name)),
                    "{id} {kind:?}: {name} is not in {listed:?}, {lost:?}"
                );
            }
            assert_eq!(strict.is_ok(), lost.is_empty(), "{id} {kind:?}: {lost:?}");
            partly += usize::from(!lost.is_empty() && !listed.is_empty());
        }
        pool.export(false).await.expect("export");
    }
    assert!(partly > 3, "{partly}");
}

/// The least that a volume has.
struct BareVolume;

impl ObjsetInit for BareVolume {
    fn kind(&self) -> ObjsetKind {
        ObjsetKind::Volume
    }

    fn init<'a>(
        &'a self,
        objset: &'a Arc<ObjectSet>,
        _properties: &'a [(String, PropertyValue)],
        tx: &'a Tx,
    ) -> BoxFuture<'a, Result<(), Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async move {
            let new = NewObject::new(ObjectType::ZVOL);
            objset.allocate(tx, new).await?;
            Ok(())
        })
    }
}

/// Goal: a volume whose root cannot be read is listed as a volume where a snapshot of it, or what a
/// clone was made from, still says so.
#[tokio::test(start_paused = true)]
async fn a_volume_without_its_root_is_what_its_snapshots_are() {
    let (image, _) = make().await;
    let sim = load(&image);
    let pool = try_import(&sim, false).await.expect("import");
    let dsl = pool.dsl();
    let size = [("volsize".to_owned(), "1M".to_owned())];
    let made = dsl
        .datasets()
        .create("tank/v", &size, Arc::new(BareVolume))
        .await;
    made.expect("created");
    let taken = dsl.snapshots().take(&["tank/v@1".to_owned()], &[]).await;
    taken.expect("taken");
    let datasets = dsl.datasets();
    let cloned = datasets.clone_snapshot("tank/v@1", "tank/w", &[]).await;
    cloned.expect("cloned");
    let mut roots = Vec::new();
    for name in ["tank/v", "tank/w"] {
        let dataset = dsl.open_dataset(name).await.expect("open");
        write_objects(&dataset, 1, 1).await;
        pool.sync().await.expect("sync");
        roots.push(dataset.objset().root());
    }
    pool.export(false).await.expect("export");
    let victim = Victim {
        id: ObjectId::ZERO,
        kind: ObjectType::OBJSET,
        blocks: roots,
        name: "tank/v".to_owned(),
    };
    destroy(&sim, &victim, How::Corrupt);
    let pool = try_import(&sim, false).await.expect("import again");
    let volumes = ListOptions {
        filesystems: false,
        ..ListOptions::default()
    };
    let listed = pool.dsl().directories().list("tank", &volumes).await;
    let listed: Vec<_> = listed
        .expect("a list")
        .into_iter()
        .map(|info| info.name)
        .collect();
    assert_eq!(listed, ["tank/v", "tank/w"]);
    pool.dsl().open_dataset("tank/v").await.expect_err("open");
    pool.export(false).await.expect("export again");
}

/// Changes something in a dataset as a program does that syncs it.
async fn change_durably(dataset: &dataset::Dataset) {
    let tx = dataset.assign(DirtyEstimate::metadata()).await;
    let tx = tx.expect("a tx");
    let removed = LogBody::Remove {
        directory: ObjectId::new(5000),
        name: b"gone",
        is_directory: false,
    };
    let record = LogRecord::named(ObjectId::new(5000), &removed);
    dataset.log().expect("a log").record(&tx, record);
    drop(tx);
    dataset.commit(ObjectId::ZERO).await.expect("committed");
}

#[tokio::test(start_paused = true)]
async fn a_dataset_that_an_import_could_not_read_is_used_again_without_its_log() {
    let sim = load(&make_more().await);
    let pool = try_import(&sim, false).await.expect("import");
    let dataset = pool.dsl().open_dataset("tank/b").await.expect("open");
    // The first makes a log, with a transaction group.
    for _ in 0..4 {
        change_durably(&dataset).await;
    }
    let root = Victim {
        id: ObjectId::ZERO,
        kind: ObjectType::OBJSET,
        blocks: vec![dataset.objset().root()],
        name: "tank/b".to_owned(),
    };
    // The power goes.
    let sim = load(&save(&sim));
    destroy(&sim, &root, How::Unreadable);
    let pool = try_import(&sim, false).await.expect("import");
    pool.dsl().open_dataset("tank/b").await.expect_err("open");
    // What the log had is anybody's now.
    let other = pool.dsl().open_dataset("tank/c").await.expect("open");
    write_objects(&other, 50, 2).await;
    drop(other);
    pool.sync().await.expect("sync");
    for name in DISKS {
        sim.disk(name).expect("a disk").make_all_readable();
    }
    let dataset = pool.dsl().open_dataset("tank/b").await.expect("open");
    let refused = dataset.assign(DirtyEstimate::metadata()).await;
    let refused = refused.expect_err("the log comes first");
    assert!(
        matches!(refused, DatasetError::LogPassedOver { .. }),
        "{refused}"
    );
    let log = dataset.log().expect("a log").clone();
    log.discard_unclaimed().await.expect("discarded");
    let objects = write_objects(&dataset, 2, 2).await;
    change_durably(&dataset).await;
    drop((dataset, log));
    pool.export(false).await.expect("export");
    let pool = try_import(&sim, false).await.expect("import again");
    let dataset = pool.dsl().open_dataset("tank/b").await.expect("open");
    check_objects(&dataset, &objects, 2).await;
    drop(dataset);
    pool.export(false).await.expect("export again");
}
