//! Goal: wherever the power goes while encryption roots are made and keys are changed, each root is
//! opened by its old key or by its new one, never by neither or both, and by the new one once that
//! was promised; all that inherits opens with it. Method: in the simulated world, the power is cut
//! at each write of a run of such changes (at a sample by default).

use std::sync::Arc;

use codec::crypt::WrappingKey;
use dataset::{DatasetError, KeyChange, KeyFormat, NewKey};
use device::sim::{PowerCut, SimOp, SimWorld};
use filesystem::{Filesystem, ZplInit};
use parking_lot::Mutex;
use pool::Pool;
use sim::torture::{Layout, create, import, inspect, one_or, patiently, simulate};
use sim::verify::Failure;

use crate::common::{data, get, put};
use crate::encrypted::until_the_power_goes;

const OLD: &str = "tank/old";
const CHILD: &str = "tank/old/child";
/// A clone of `CHILD`.
const CLONE: &str = "tank/clone";
const NEW: &str = "tank/new";
/// User property of `CHILD` that is set as it joins: nothing else tells that from never having been
/// a root.
const JOINED: &str = "step:joined";
/// A clone of `OLD`.
const COPY: &str = "tank/copy";

/// The changes, in their order: each is seen in what is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Start,
    /// `NEW` is made with key 2.
    Made,
    /// `OLD` has key 3 instead of 1, and so have its child and that one's clone.
    Changed,
    /// `CHILD` is a root with key 4, and so is its clone.
    Split,
    /// `CHILD` has its parent's key again.
    Joined,
    /// The clone of `OLD` is promoted: it is the root.
    Promoted,
}

fn key(number: u8) -> NewKey {
    NewKey::new(KeyFormat::Raw, wrapping(number)).expect("a key")
}

fn wrapping(number: u8) -> WrappingKey {
    WrappingKey::new([number; 32])
}

fn change(number: u8) -> KeyChange {
    KeyChange::New {
        key: key(number),
        location: Some("prompt".into()),
    }
}

async fn make(pool: &Pool, name: &str, new: Option<u8>) -> Result<(), Failure> {
    let mut properties = Vec::new();
    if new.is_some() {
        properties.push(("encryption".to_owned(), "on".to_owned()));
        properties.push(("keyformat".to_owned(), "raw".to_owned()));
    }
    let init = Arc::new(ZplInit::new());
    let datasets = pool.dsl().datasets();
    datasets
        .create_with_key(name, &properties, init, new.map(key))
        .await?;
    Ok(())
}

async fn fill(sim: &SimWorld, pool: &Pool, name: &str) -> Result<(), Failure> {
    let fs = Filesystem::open(pool.dsl().open_dataset(name).await?, sim.world()).await?;
    let ino = put(&fs, "file", &data(5, 40_000)).await?;
    fs.sync_file(ino).await?;
    Ok(fs.close().await?)
}

async fn is_filled(sim: &SimWorld, pool: &Pool, name: &str) -> Result<(), Failure> {
    let fs = Filesystem::open(pool.dsl().open_dataset(name).await?, sim.world()).await?;
    let content = get(&fs, "file").await?;
    fs.close().await?;
    match content == data(5, 40_000) {
        true => Ok(()),
        false => Err(format!("{name} has something else").into()),
    }
}

/// What is there before.
async fn begin(sim: &SimWorld) -> Result<Arc<Pool>, Failure> {
    let pool = create(sim, Layout::Single, 96, false).await?;
    make(&pool, OLD, Some(1)).await?;
    make(&pool, CHILD, None).await?;
    fill(sim, &pool, OLD).await?;
    fill(sim, &pool, CHILD).await?;
    let snapshots = [format!("{OLD}@s"), format!("{CHILD}@s")];
    let dsl = pool.dsl();
    dsl.snapshots().take(&snapshots, &[]).await?;
    let datasets = dsl.datasets();
    datasets.clone_snapshot(&snapshots[0], COPY, &[]).await?;
    datasets.clone_snapshot(&snapshots[1], CLONE, &[]).await?;
    pool.sync().await?;
    Ok(pool)
}

/// Does it all, and notes what was promised.
async fn go_on(sim: &SimWorld, pool: &Pool, done: &Mutex<Step>) -> Result<(), Failure> {
    let keys = pool.dsl().keys();
    make(pool, NEW, Some(2)).await?;
    *done.lock() = Step::Made;
    fill(sim, pool, NEW).await?;
    keys.change(OLD, change(3), &[]).await?;
    *done.lock() = Step::Changed;
    keys.change(CHILD, change(4), &[]).await?;
    *done.lock() = Step::Split;
    let joined = [(JOINED.to_owned(), "yes".to_owned())];
    keys.change(CHILD, KeyChange::Inherit, &joined).await?;
    *done.lock() = Step::Joined;
    pool.dsl().snapshots().promote(COPY).await?;
    *done.lock() = Step::Promoted;
    Ok(())
}

/// The one of these keys that opens an encryption root.
async fn opener(pool: &Pool, root: &str, keys: &[u8]) -> Result<u8, Failure> {
    let mut found = Vec::new();
    for number in keys {
        match pool.dsl().keys().load(root, wrapping(*number), true).await {
            Ok(()) => found.push(*number),
            Err(DatasetError::WrongKey { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match found[..] {
        [number] => Ok(number),
        _ => Err(format!("{root} is opened by {found:?}").into()),
    }
}

async fn root_of(pool: &Pool, name: &str) -> Result<String, Failure> {
    let info = pool.dsl().keys().info(name).await?;
    Ok(info.ok_or_else(|| format!("{name} is not encrypted"))?.root)
}

/// What is there after a power cut, when so much was promised.
async fn judge(sim: &SimWorld, pool: &Arc<Pool>, done: Step) -> Result<Step, Failure> {
    let keys = pool.dsl().keys();
    let mut found = Step::Start;
    let top = root_of(pool, OLD).await?;
    let of_old = opener(pool, &top, &[1, 3]).await?;
    if of_old == 3 {
        found = Step::Changed;
    }
    let has_joined = pool.dsl().properties().get(CHILD, JOINED).await.is_ok();
    if has_joined {
        found = Step::Joined;
    }
    if top == COPY {
        found = Step::Promoted;
    } else if top != OLD {
        return Err(format!("{OLD} has root {top}").into());
    }
    if root_of(pool, COPY).await? != top {
        return Err("a clone has another root than its origin".into());
    }
    keys.load(&top, wrapping(of_old), false).await?;
    let of_child = root_of(pool, CHILD).await?;
    if of_child == CHILD {
        if has_joined {
            return Err(format!("{CHILD} has joined, and is a root").into());
        }
        found = Step::Split;
        keys.load(CHILD, wrapping(4), false).await?;
    } else if of_child != top {
        return Err(format!("{CHILD} has root {of_child}").into());
    }
    if root_of(pool, CLONE).await? != of_child {
        return Err("a clone has another root than its origin".into());
    }
    for name in [OLD, CHILD, CLONE, COPY] {
        is_filled(sim, pool, name).await?;
    }
    match keys.info(NEW).await {
        Ok(Some(_)) => {
            keys.load(NEW, wrapping(2), false).await?;
            found = found.max(Step::Made);
            let fs = Filesystem::open(pool.dsl().open_dataset(NEW).await?, sim.world()).await?;
            fs.close().await?;
            if done > Step::Made {
                is_filled(sim, pool, NEW).await?;
            }
        }
        Ok(None) => return Err("the new root is not encrypted".into()),
        Err(DatasetError::NotFound { .. }) if found == Step::Start => {}
        Err(error) => return Err(error.into()),
    }
    match found >= done {
        true => Ok(found),
        false => Err(format!("{done:?} was promised, found {found:?}").into()),
    }
}

/// One run; without `at` to its end. Answers how many writes it took, and what was found.
async fn run(number: u64, at: Option<u64>) -> Result<(u64, Step), Failure> {
    let sim = SimWorld::new(number);
    let pool = begin(&sim).await?;
    let before = sim.counts().writes;
    let how = [
        PowerCut::Random,
        PowerCut::LoseUnflushed,
        PowerCut::Shuffle,
        PowerCut::KeepAll,
    ][number as usize % 4];
    if let Some(at) = at {
        sim.cut_power_at(SimOp::Write, at, how);
    }
    let done = Mutex::new(Step::Start);
    let ended = until_the_power_goes(&sim, "the changes", go_on(&sim, &pool, &done)).await?;
    let writes = sim.counts().writes - before;
    if ended.is_some() {
        sim.power_cut(how);
        sim.kill_tasks().await;
        sim.power_on();
    }
    pool.dsl().tasks().close();
    drop(pool);
    sim.kill_tasks().await;
    inspect(&sim, "after the power cut", true).await?;
    let pool = import(&sim, false).await?;
    let done = *done.lock();
    let found = judge(&sim, &pool, done).await?;
    pool.sync().await?;
    pool.export(false).await?;
    drop(pool);
    inspect(&sim, "after the export", true).await?;
    Ok((writes, found))
}

#[test]
fn keys_are_old_or_new_wherever_the_power_goes() {
    let go = |number, at| simulate(patiently("it", run(number, at))).and_then(|done| done);
    let (writes, found) = go(0, None).unwrap();
    assert_eq!(found, Step::Promoted);
    assert!(writes > 100, "{writes} writes");
    let stride = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 1,
        None => writes as usize / 40,
    };
    let moments = one_or((1..=writes).step_by(stride.max(1)).collect());
    let mut seen = Vec::new();
    for at in &moments {
        let outcome = go(*at, Some(*at));
        let (_, found) = outcome.unwrap_or_else(|error| panic!("MILLPOND_SEED={at}: {error}"));
        seen.push(found);
    }
    seen.sort_unstable();
    seen.dedup();
    // The cuts are in the midst of it.
    assert!(moments.len() == 1 || seen.len() >= 4, "{seen:?}");
}
