//! Goal: `zpool initialize` writes over all free space and nothing else, `zpool trim` gives all of
//! it back and nothing else, on all layouts; both stop when told to and go on where they were,
//! after an export, a crash, and in OpenZFS.
//! Method: pools on sparse files; contents, parity (a scrub reads all of it) and zdb afterwards.
//! What a power cut may find, crate `sim` tests.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::common::*;
use crate::layouts::scrub;
use device::World;
use pool::{
    ActivityCommand, ActivityKind, ActivityObstacle, ActivityOutcome, ActivitySpec, ActivityState,
    ActivityStatus, ImportSpec, LeafSpec, Pool, VdevClass, VdevLayout, VdevSpec, VdevStatus,
};

const PATTERN: u64 = 0xdead_beef_dead_beee;

fn of(kind: ActivityKind, command: ActivityCommand) -> ActivitySpec {
    ActivitySpec {
        kind,
        command,
        value: None,
        rate: 0,
        secure: false,
    }
}

const INITIALIZE: ActivitySpec = ActivitySpec {
    kind: ActivityKind::Initialize,
    command: ActivityCommand::Start,
    value: None,
    rate: 0,
    secure: false,
};
const TRIM: ActivitySpec = ActivitySpec {
    kind: ActivityKind::Trim,
    ..INITIALIZE
};

async fn act(pool: &Pool, spec: ActivitySpec) -> ActivityOutcome {
    pool.activity(&[], &spec).await.expect("the command")
}

fn leaves(vdev: &VdevStatus, out: &mut Vec<VdevStatus>) {
    if vdev.children.is_empty() {
        out.push(vdev.clone());
    }
    vdev.children.iter().for_each(|child| leaves(child, out));
}

fn statuses(pool: &Pool, kind: ActivityKind) -> Vec<ActivityStatus> {
    let mut all = Vec::new();
    leaves(&pool.status().root, &mut all);
    let of = |leaf: VdevStatus| match kind {
        ActivityKind::Initialize => leaf.initialize,
        ActivityKind::Trim => leaf.trim,
    };
    all.into_iter().map(of).collect()
}

fn is_all(pool: &Pool, kind: ActivityKind, state: ActivityState) -> bool {
    statuses(pool, kind).iter().all(|at| at.state == state)
}

/// Two minutes at most.
async fn wait_until(pool: &Pool, kind: ActivityKind, state: ActivityState) {
    for _ in 0..6000 {
        if is_all(pool, kind, state) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{:?}", statuses(pool, kind));
}

/// Bytes that all images take.
fn taken(dir: &Path) -> u64 {
    let images = oracles::images(dir);
    let blocks = images
        .iter()
        .map(|path| path.metadata().expect("an image").blocks());
    blocks.sum::<u64>() * 512
}

/// Bytes of an image that have the pattern, in words of 512 bytes.
fn initialized(path: &Path, value: u64) -> u64 {
    let pattern = value.to_le_bytes().repeat(64);
    let image = std::fs::read(path).expect("an image");
    let count = image.chunks_exact(512).filter(|chunk| **chunk == *pattern);
    count.count() as u64 * 512
}

fn path(images: &Images, index: usize) -> std::path::PathBuf {
    images.path().join(format!("d{index}.img"))
}

async fn check_layout(vdevs: Vec<VdevSpec>, images: &Images) {
    let world = World::system(2);
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let mut kept = write_objects(&dataset, 24, 8).await;
    pool.sync().await.expect("sync");
    // Free space lies between what is kept.
    let gone: Vec<_> = (0..6).map(|index| kept.remove(3 * index)).collect();
    free_objects(&dataset, &gone).await;
    assert_eq!(act(&pool, INITIALIZE).await.refused, []);
    let more = write_objects(&dataset, 4, 8).await;
    wait_until(&pool, ActivityKind::Initialize, ActivityState::Complete).await;
    check_objects(&dataset, &kept, 8).await;
    check_objects(&dataset, &more, 8).await;
    kept.extend(more);
    pool.sync().await.expect("sync");
    let full = taken(images.path());
    let free = pool.numbers().free_bytes;
    let written: u64 = oracles::images(images.path())
        .iter()
        .map(|path| initialized(path, PATTERN))
        .sum();
    assert!(written > free * 7 / 10, "{written} of {free}");
    // And all of that is given back.
    assert_eq!(act(&pool, TRIM).await.refused, []);
    let more = write_objects(&dataset, 4, 8).await;
    wait_until(&pool, ActivityKind::Trim, ActivityState::Complete).await;
    kept.extend(more);
    pool.sync().await.expect("sync");
    check_objects(&dataset, &kept, 8).await;
    let after = taken(images.path());
    assert!(after < full / 2, "{full} to {after}");
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    scrub(&world, images.path()).await;
    let pool = import(&world, images.path()).await;
    for kind in [ActivityKind::Initialize, ActivityKind::Trim] {
        assert!(is_all(&pool, kind, ActivityState::Complete));
    }
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &kept, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disks_and_mirrors_are_initialized_and_trimmed() {
    let images = Images::new();
    let leaves = images.make(4, 128);
    let vdevs = vec![
        normal(VdevLayout::Leaf(leaves[0].clone())),
        normal(VdevLayout::Mirror(leaves[1..3].to_vec())),
        VdevSpec {
            layout: VdevLayout::Leaf(leaves[3].clone()),
            class: VdevClass::Log,
        },
    ];
    check_layout(vdevs, &images).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raidz_and_draid_are_initialized_and_trimmed() {
    for (parity, count) in [(1, 3), (2, 5)] {
        let images = Images::new();
        let leaves = images.make(count, 96);
        check_layout(vec![normal(VdevLayout::Raidz { parity, leaves })], &images).await;
    }
    let images = Images::new();
    let draid = VdevLayout::Draid {
        parity: 1,
        data: 2,
        spares: 1,
        leaves: images.make(5, 128),
    };
    check_layout(vec![normal(draid)], &images).await;
}

fn mirror(leaves: Vec<LeafSpec>) -> Vec<VdevSpec> {
    vec![normal(VdevLayout::Mirror(leaves))]
}

/// Goal: who suspends, cancels, forgets or begins anew gets what OpenZFS would do, and is refused
/// where it would refuse. Method: trims with a rate, which take long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_change_states_or_are_refused() {
    use ActivityCommand::{Cancel, Forget, Start, Suspend};
    use ActivityKind::{Initialize, Trim};
    let images = Images::new();
    let world = World::system(2);
    let made = images.make(2, 128);
    let names: Vec<String> = made.iter().map(|leaf| leaf.path.clone()).collect();
    let pool = Pool::create(&world, spec("tank", mirror(made)))
        .await
        .expect("create");
    let refused = async |spec| {
        let outcome = act(&pool, spec).await;
        let why: Vec<_> = outcome.refused.into_iter().map(|(_, why)| why).collect();
        why
    };
    for kind in [Initialize, Trim] {
        for command in [Suspend, Cancel] {
            let none = [ActivityObstacle::NotActive; 2];
            assert_eq!(refused(of(kind, command)).await, none);
        }
    }
    let slow = ActivitySpec {
        rate: 4 << 20,
        ..TRIM
    };
    assert_eq!(refused(slow).await, []);
    assert_eq!(refused(slow).await, [ActivityObstacle::Busy; 2]);
    assert_eq!(pool.activities().len(), 2);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(refused(of(Trim, Suspend)).await, []);
    assert!(is_all(&pool, Trim, ActivityState::Suspended));
    let before = statuses(&pool, Trim)[0];
    assert!(before.done_bytes > 1 << 20, "{before:?}");
    assert!(before.done_bytes < 90 << 20, "{before:?}");
    assert_eq!(
        refused(of(Trim, Suspend)).await,
        [ActivityObstacle::NotActive; 2]
    );
    pool.export(false).await.expect("export");
    let pool = import(&world, images.path()).await;
    let refused = async |spec| {
        let outcome = act(&pool, spec).await;
        let why: Vec<_> = outcome.refused.into_iter().map(|(_, why)| why).collect();
        why
    };
    // It stays suspended; how far it is goes by what is free.
    let now = statuses(&pool, Trim)[0];
    assert_eq!((now.state, now.time_s), (before.state, before.time_s));
    assert!(now.done_bytes.abs_diff(before.done_bytes) < 1 << 20);
    // It goes on from there; what is canceled begins anew.
    assert_eq!(refused(slow).await, []);
    assert!(statuses(&pool, Trim)[0].done_bytes + (1 << 20) >= before.done_bytes);
    assert_eq!(refused(of(Trim, Cancel)).await, []);
    assert!(is_all(&pool, Trim, ActivityState::Canceled));
    assert_eq!(refused(slow).await, []);
    let anew = statuses(&pool, Trim)[0];
    assert!(anew.done_bytes < before.done_bytes, "{anew:?} {before:?}");
    // After a crash it goes on by itself.
    pool.sync().await.expect("sync");
    drop(pool);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let pool = import(&world, images.path()).await;
    assert!(is_all(&pool, Trim, ActivityState::Active));
    tokio::time::sleep(Duration::from_secs(4)).await;
    let later = statuses(&pool, Trim)[0];
    assert!(later.done_bytes > anew.done_bytes, "{later:?} {anew:?}");
    act(&pool, of(Trim, Cancel)).await;

    let one = &names[..1];
    let outcome = pool.activity(one, &INITIALIZE).await.expect("one");
    assert_eq!((outcome.begun.len(), outcome.devices), (1, 1));
    while !pool.activities().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let states = |pool: &Pool| {
        let all = statuses(pool, Initialize).into_iter();
        all.map(|at| at.state).collect::<Vec<_>>()
    };
    assert_eq!(
        states(&pool),
        [ActivityState::Complete, ActivityState::None]
    );
    act(&pool, of(Initialize, Forget)).await;
    assert!(is_all(&pool, Initialize, ActivityState::None));
    // With another value, from the start.
    let zero = ActivitySpec {
        value: Some(0x1111_2222_3333_4444),
        ..INITIALIZE
    };
    pool.activity(one, &zero).await.expect("one");
    while !pool.activities().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pool.sync().await.expect("sync");
    let value = initialized(&path(&images, 0), 0x1111_2222_3333_4444);
    assert!(value > 80 << 20, "{value}");
    assert_eq!(initialized(&path(&images, 1), 0x1111_2222_3333_4444), 0);

    let unknown = vec![names[0].clone(), "/nowhere".to_owned()];
    let outcome = pool
        .activity(&unknown, &of(Trim, Start))
        .await
        .expect("asked");
    let expected = ("/nowhere".to_owned(), ActivityObstacle::NoSuchDevice);
    assert_eq!((outcome.refused, outcome.begun), (vec![expected], vec![]));
    let named = async |name: &str, spec| {
        let outcome = pool
            .activity(&[name.to_owned()], &spec)
            .await
            .expect("asked");
        outcome.refused.first().map(|first| first.1)
    };
    let mirror = named("mirror-0", TRIM).await;
    assert_eq!(mirror, Some(ActivityObstacle::NotWriteable));
    let secure = ActivitySpec {
        secure: true,
        ..TRIM
    };
    let secure = named(&names[0], secure).await;
    assert_eq!(secure, Some(ActivityObstacle::TrimUnsupported));
    let history = pool.history().await.expect("history");
    let told = |event: &str, end: &str| {
        history.iter().any(|record| {
            let text = format!("{:?}", record.what);
            text.contains(event) && text.contains(end)
        })
    };
    for end in ["activated", "suspended", "canceled"] {
        assert!(told("\"trim\"", end), "{end}");
    }
    assert!(told("\"initialize\"", "complete"));
    assert!(told("\"uninitialize\"", "vdev="));
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

/// Goal: nothing that a checkpoint has is written over or discarded. Method: most of what it has is
/// freed, and all free space written over and discarded; then back to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_checkpoint_has_is_left_alone() {
    let images = Images::new();
    let world = World::system(2);
    let leaves = images.make(3, 128);
    let vdevs = vec![normal(VdevLayout::Raidz { parity: 1, leaves })];
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 24, 8).await;
    pool.sync().await.expect("sync");
    pool.checkpoint().await.expect("checkpoint");
    free_objects(&dataset, &objects[4..]).await;
    for _ in 0..6 {
        pool.sync().await.expect("sync");
    }
    act(&pool, INITIALIZE).await;
    wait_until(&pool, ActivityKind::Initialize, ActivityState::Complete).await;
    act(&pool, TRIM).await;
    wait_until(&pool, ActivityKind::Trim, ActivityState::Complete).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    let found = find(&world, images.path()).await;
    let mut spec = ImportSpec::new(found, host());
    spec.rewind = pool::Rewind::Checkpoint;
    let pool = Pool::import(&world, spec).await.expect("the checkpoint");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
    scrub(&world, images.path()).await;
}

const SCRIPT: &str = r"
set -e
zpool import -d /dev/disk/peer -N tank
zpool status -it tank | sed 's/^/BEFORE /'
zpool initialize -s tank 2>/dev/null || true
zpool trim tank 2>/dev/null || true
zpool initialize -w tank 2>/dev/null || zpool wait -t initialize tank
zpool status -i tank | sed 's/^/AFTER /'
# The state is complete before the thread ends (vdev_initialize.c, vdev_initialize_thread waits for
# a group between the two), and as long as there is a thread the device is busy.
for _ in $(seq 100); do zpool initialize -u tank 2>/dev/null && break; sleep 0.1; done
zpool initialize tank
zpool initialize -s tank || true
zpool status -i tank | sed 's/^/LEFT /'
zpool scrub -w tank
zpool status tank | sed 's/^/SCRUBBED /'
zpool export tank
echo PEER-DONE
";

/// Goal: OpenZFS goes on with an initialization that we suspended, and we with its own. Method:
/// ours stops wherever each disk stands after a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_go_on_in_openzfs_and_back() {
    let Some(peer) = Peer::find() else { return };
    let images = Images::new();
    let world = World::system(2);
    let leaves = images.make(2, 256).into_iter().map(|leaf| LeafSpec {
        is_file: false,
        ..leaf
    });
    let vdevs = mirror(leaves.collect());
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 30, 8).await;
    drop(dataset);
    act(&pool, INITIALIZE).await;
    // Most often in the middle; where it was is in what the peer says.
    tokio::time::sleep(Duration::from_millis(300)).await;
    act(
        &pool,
        of(ActivityKind::Initialize, ActivityCommand::Suspend),
    )
    .await;
    let stood = statuses(&pool, ActivityKind::Initialize);
    let suspended = stood
        .iter()
        .filter(|status| status.state == ActivityState::Suspended)
        .count();
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    let text = run_in_peer(&peer, images.path(), SCRIPT);
    assert!(text.contains("PEER-DONE"), "{text}");
    let count = |mark: &str, word: &str| {
        text.lines()
            .filter(|line| line.starts_with(mark) && line.contains(word))
            .count()
    };
    assert_eq!(
        count("BEFORE", "% initialized, suspended, started at"),
        suspended,
        "{text}"
    );
    assert_eq!(
        count("AFTER", "100% initialized, completed at"),
        2,
        "{text}"
    );
    assert_eq!(count("SCRUBBED", "No known data errors"), 1, "{text}");
    let is_suspended = count("LEFT", "suspended") == 2;

    let pool = import(&world, images.path()).await;
    if is_suspended {
        assert!(is_all(
            &pool,
            ActivityKind::Initialize,
            ActivityState::Suspended
        ));
    }
    act(&pool, INITIALIZE).await;
    wait_until(&pool, ActivityKind::Initialize, ActivityState::Complete).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}
