//! Goal: wherever the power goes while a snapshot is redacted, the bookmark is not there or is gone
//! on with, and ends with the same list; wherever it goes while damaged blocks are put right, each
//! block is damaged still or right, and the same stream puts the rest right. Method: in the
//! simulated world, the power is cut at each write of a run (at a sample by default).

use std::sync::Arc;

use dataset::{DatasetError, ReceiveTarget, RedactObstacle};
use device::sim::{PowerCut, SimOp, SimWorld};
use filesystem::Filesystem;
use format::{Endian, ObjectId, RedactBlock};
use pool::Pool;
use sim::torture::{Layout, create, import, inspect, one_or, patiently, simulate};
use sim::verify::Failure;
use stream::{Healed, Progress, SendOptions, Start, StreamReader};

use crate::common::{ROOT, data, get, put};
use crate::encrypted::until_the_power_goes;

const BLOCKS: u64 = 160;
const BLOCK_BYTES: u64 = 4096;
/// Entries of the list that are stored at once.
const PART: usize = 16;

const HOW: [PowerCut; 4] = [
    PowerCut::Random,
    PowerCut::LoseUnflushed,
    PowerCut::Shuffle,
    PowerCut::KeepAll,
];

async fn open(sim: &SimWorld, pool: &Pool, name: &str) -> Result<Arc<Filesystem>, Failure> {
    let dataset = pool.dsl().open_dataset(name).await?;
    Ok(Filesystem::open(dataset, sim.world()).await?)
}

/// A file, a snapshot, and a clone in which every other block of it is another one.
async fn begin(sim: &SimWorld) -> Result<(Arc<Pool>, u64), Failure> {
    let pool = create(sim, Layout::Single, 96, false).await?;
    let small = dataset::PropertyChange::Set(BLOCK_BYTES.to_string());
    let properties = pool.dsl().properties();
    properties
        .set("tank", &[("recordsize".into(), small)])
        .await?;
    let fs = open(sim, &pool, "tank").await?;
    let content = data(3, (BLOCKS * BLOCK_BYTES) as usize);
    let ino = put(&fs, "file", &content).await?;
    fs.close().await?;
    let dsl = pool.dsl();
    dsl.snapshots().take(&["tank@s".into()], &[]).await?;
    dsl.datasets()
        .clone_snapshot("tank@s", "tank/c", &[])
        .await?;
    let fs = open(sim, &pool, "tank/c").await?;
    for block in (0..BLOCKS).step_by(2) {
        let part = data(100 + block, BLOCK_BYTES as usize);
        fs.write(ino, block * BLOCK_BYTES, part, false, ROOT)
            .await?;
    }
    fs.close().await?;
    dsl.snapshots().take(&["tank/c@r".into()], &[]).await?;
    pool.sync().await?;
    Ok((pool, ino))
}

async fn redact(pool: &Pool) -> Result<(), Failure> {
    let with = ["tank/c@r".to_owned()];
    let bookmarks = pool.dsl().bookmarks();
    let redacting = bookmarks.redact_in_parts("tank@s", "b", &with, &|| false, PART);
    Ok(redacting.await?)
}

/// The list of the bookmark, and whether it is whole.
async fn list(pool: &Pool) -> Result<Option<(bool, Vec<RedactBlock>)>, Failure> {
    let bookmarks = pool.dsl().bookmarks();
    let Some(found) = bookmarks.list("tank").await?.pop() else {
        return Ok(None);
    };
    let Some(phys) = bookmarks.redaction(&found.phys).await? else {
        return Err("the bookmark has no list".into());
    };
    let object = pool.dsl().mos().hold(found.phys.redaction_list).await?;
    let length = phys.entries as usize * RedactBlock::BYTES;
    let stored = object.read_bytes(0, length).await?;
    let entries = stored.chunks_exact(RedactBlock::BYTES);
    let entries = entries.map(|raw| RedactBlock::decode(raw, Endian::Little));
    Ok(Some((phys.is_whole(), entries.collect::<Result<_, _>>()?)))
}

/// After a power cut, or the end: the pool as it is on disk.
async fn reopen(
    sim: &SimWorld,
    pool: Arc<Pool>,
    how: Option<PowerCut>,
) -> Result<Arc<Pool>, Failure> {
    if let Some(how) = how {
        sim.power_cut(how);
        sim.kill_tasks().await;
        sim.power_on();
    }
    pool.dsl().tasks().close();
    drop(pool);
    sim.kill_tasks().await;
    import(sim, false).await
}

/// One run of a redaction; without `at` to its end. Answers how many writes it took, and how much
/// was stored.
async fn redact_until(number: u64, at: Option<u64>) -> Result<(u64, Option<usize>), Failure> {
    let sim = SimWorld::new(number);
    let (pool, ino) = begin(&sim).await?;
    let before = sim.counts().writes;
    let how = HOW[number as usize % HOW.len()];
    if let Some(at) = at {
        sim.cut_power_at(SimOp::Write, at, how);
    }
    let ended = until_the_power_goes(&sim, "the redaction", redact(&pool)).await?;
    let writes = sim.counts().writes - before;
    let is_done = ended.is_some();
    let pool = reopen(&sim, pool, is_done.then_some(how)).await?;
    let found = list(&pool).await?;
    let stored = found.as_ref().map(|(_, entries)| entries.len());
    if is_done && !found.as_ref().is_some_and(|(is_whole, _)| *is_whole) {
        return Err(format!("it was done, and there is {found:?}").into());
    }
    if let Some((false, _)) = found {
        let sends = pool.dsl().sends();
        match sends.redacted_source("tank@s", None, "b").await {
            Err(DatasetError::Redact {
                obstacle: RedactObstacle::NotWhole,
                ..
            }) => {}
            other => return Err(format!("a part is used: {:?}", other.map(|_| ())).into()),
        }
    }
    if !found.is_some_and(|(is_whole, _)| is_whole) {
        redact(&pool).await?;
    }
    let wanted = (0..BLOCKS).step_by(2);
    let wanted: Vec<_> = wanted
        .map(|block| RedactBlock::new(ObjectId::new(ino), block, 1, BLOCK_BYTES))
        .collect();
    match list(&pool).await? {
        Some((true, entries)) if entries == wanted => {}
        other => return Err(format!("the list is {other:?}").into()),
    }
    pool.sync().await?;
    pool.export(false).await?;
    drop(pool);
    inspect(&sim, "after the export", true).await?;
    Ok((writes, stored))
}

/// Moments of a run of so many writes at which the power goes.
fn moments(writes: u64, count: u64) -> Vec<u64> {
    let stride = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 1,
        None => (writes / count).max(1),
    };
    one_or((1..=writes).step_by(stride as usize).collect())
}

#[test]
fn lists_are_gone_on_with_wherever_the_power_goes() {
    let go = |number, at| {
        let run = redact_until(number, at);
        simulate(patiently("it", run)).and_then(|done| done)
    };
    let (writes, stored) = go(0, None).unwrap();
    assert_eq!(stored, Some(BLOCKS as usize / 2));
    let moments = moments(writes, 40);
    let mut seen = Vec::new();
    for at in &moments {
        let outcome = go(*at, Some(*at));
        let (_, stored) = outcome.unwrap_or_else(|error| panic!("MILLPOND_SEED={at}: {error}"));
        seen.push(stored);
    }
    seen.sort_unstable();
    seen.dedup();
    // The cuts are in the midst of it.
    assert!(moments.len() == 1 || seen.len() >= 4, "{seen:?}");
}

/// Puts blocks of snapshot `tank@s` right with a stream of it: how many.
pub async fn heal(pool: &Pool, bytes: &[u8]) -> Result<u64, Failure> {
    let mut reader = StreamReader::new(bytes);
    let Start::Begin(begin, _) = reader.start().await? else {
        return Err("no beginning".into());
    };
    let target = ReceiveTarget {
        name: "tank".into(),
        snapshot: "s".into(),
        begin: *begin,
        origin: None,
        force: false,
        resumable: false,
        properties: Vec::new(),
        new_key: None,
        key_data: None,
        redaction: dataset::Redaction::default(),
    };
    let receives = pool.dsl().receives();
    let corrective = receives.begin_corrective(target).await?;
    let mut healed = Healed::default();
    let done = stream::heal(&mut reader, &corrective, &Progress::default(), &mut healed).await;
    receives.end_corrective(corrective).await?;
    done?;
    Ok(healed.blocks)
}

/// One run of healing; without `at` to its end. Answers how many writes it took, and how many
/// blocks the power cut left to be done.
async fn heal_until(number: u64, at: Option<u64>) -> Result<(u64, u64), Failure> {
    const FRONT_BYTES: u64 = 4 << 20;
    let sim = SimWorld::new(number);
    let (pool, ino) = begin(&sim).await?;
    let source = pool.dsl().sends().source("tank@s", None).await?;
    let mut bytes = Vec::new();
    let options = SendOptions::default();
    stream::send(&source, &options, &mut bytes, &Progress::default()).await?;
    let object = source.snapshot.objset().hold(ObjectId::new(ino)).await?;
    let mut lost = 0;
    for block in (1..BLOCKS).step_by(7) {
        let pointer = object.block_pointer(block).await?;
        let dva = pointer.dva(0).ok_or("a block without a place")?;
        let names = sim.disk_names();
        let disk = sim.disk(&names[0]).ok_or("no disk")?;
        disk.corrupt(FRONT_BYTES + dva.offset_bytes(), 512);
        lost += 1;
    }
    drop((object, source));
    pool.pipeline().cache().clear();
    let before = sim.counts().writes;
    let how = HOW[number as usize % HOW.len()];
    if let Some(at) = at {
        sim.cut_power_at(SimOp::Write, at, how);
    }
    let ended = until_the_power_goes(&sim, "the healing", heal(&pool, &bytes)).await?;
    let writes = sim.counts().writes - before;
    if let Some(blocks) = ended
        && blocks != lost
    {
        return Err(format!("{blocks} blocks were healed of {lost}").into());
    }
    let pool = reopen(&sim, pool, ended.is_some().then_some(how)).await?;
    let left = heal(&pool, &bytes).await?;
    if ended.is_some() && left > 0 {
        return Err(format!("it was done, and {left} blocks were not on disk").into());
    }
    for name in ["tank", "tank@s"] {
        let fs = open(&sim, &pool, name).await?;
        let found = get(&fs, "file").await?;
        fs.close().await?;
        if found != data(3, (BLOCKS * BLOCK_BYTES) as usize) {
            return Err(format!("{name} has something else").into());
        }
    }
    // What was logged before the cut stays for a scrub to find right.
    if at.is_none() && !pool.damaged().await.is_empty() {
        return Err("there are errors in the log".into());
    }
    pool.sync().await?;
    pool.export(false).await?;
    drop(pool);
    inspect(&sim, "after the export", true).await?;
    Ok((writes, left))
}

#[test]
fn blocks_are_healed_wherever_the_power_goes() {
    let go = |number, at| {
        let run = heal_until(number, at);
        simulate(patiently("it", run)).and_then(|done| done)
    };
    let (writes, left) = go(0, None).unwrap();
    assert_eq!(left, 0);
    let moments = moments(writes, 30);
    let mut seen = Vec::new();
    for at in &moments {
        let outcome = go(*at, Some(*at));
        let (_, left) = outcome.unwrap_or_else(|error| panic!("MILLPOND_SEED={at}: {error}"));
        seen.push(left);
    }
    seen.sort_unstable();
    seen.dedup();
    // All blocks are written at the same time: mostly all are left, or none.
    assert!(moments.len() == 1 || seen.len() >= 2, "{seen:?}");
}
