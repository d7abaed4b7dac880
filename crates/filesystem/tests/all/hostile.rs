//! Goal: blocks that pass their checksums and hold anything whatsoever harm nobody: typed errors,
//! no panic, no hang, no memory without limit. Changes on the device alone rarely get past the
//! checksums. Method: the pipeline changes verified blocks of golden pools (feature `hostile`),
//! seeded, while everything is read, and while everything is changed that users change.
//! `MILLPOND_LONG=1` makes thousands of runs, `MILLPOND_SEED=N` repeats one.

use std::sync::Arc;

use crate::common::change::{Ended, Neighbour, exercise_changes};
use crate::common::flip::{Images, Seeded, Seen, count_panics, exercise, seeds, spoil};
use crate::common::golden;
use bytes::Bytes;
use device::World;
use format::BlockPointer;

/// Pools and seeds that once found something: a log of space maps that took memory without limit.
const FOUND: [(&str, u64); 1] = [("zil_dirty", 1427)];
/// The same while writing: space that was used less than what is freed.
const FOUND_WRITING: [(&str, u64); 1] = [("nofeat", 58)];

/// The seeds to run with a pool: a few, or all, and those that once found something.
fn seeds_with<'a>(
    found: &'a [(&str, u64)],
    name: &'a str,
    few: u64,
) -> impl Iterator<Item = u64> + 'a {
    let once = found.iter().filter(move |(pool, _)| *pool == name);
    seeds(few).chain(once.map(|(_, seed)| *seed))
}

/// The hook is one for the whole process: a test has it for itself.
static HOOK: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// How many blocks a run leaves for each that it changes.
fn one_in(seed: u64) -> u64 {
    [400, 60, 20, 8][(seed % 4) as usize]
}

/// Changes a block or leaves it as it is: the same for the same block and seed.
fn change(seed: u64, one_in: u64, pointer: &BlockPointer, data: Bytes) -> Bytes {
    let place = pointer.words()[1] ^ pointer.words()[0].rotate_left(32);
    let mut random = Seeded::new(seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    if data.is_empty() || random.below(one_in) != 0 {
        return data;
    }
    let mut data = data.to_vec();
    spoil(&mut random, &mut data);
    data.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_blocks_give_errors() {
    let Some(golden) = golden() else { return };
    let _alone = HOOK.lock().await;
    count_panics();
    let base = World::system(2);
    for name in ["nofeat", "v28", "raidz1_3", "gang", "zil_dirty", "plain"] {
        let images = Images::new(&golden, name);
        let mut seen = Seen::default();
        for seed in seeds_with(&FOUND, name, 25) {
            let about = format!("{name}, MILLPOND_SEED={seed}");
            zio::hostile::set_block_hook(Arc::new(move |pointer, data| {
                change(seed, one_in(seed), pointer, data)
            }));
            let world = images.world(&base, &Vec::new());
            seen += exercise(&images, &world, false, &about).await;
        }
        eprintln!("{name}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_blocks_met_while_writing_give_errors() {
    let Some(golden) = golden() else { return };
    let _alone = HOOK.lock().await;
    count_panics();
    let base = World::system(2);
    zio::hostile::set_block_hook(Arc::new(|_, data| data));
    let neighbour = Neighbour::new(&base).await;
    for name in [
        "nofeat",
        "v28",
        "raidz1_3",
        "gang",
        "zil_dirty",
        "plain",
        "cloned_blocks",
        "dedup_legacy",
        "dedup_fast",
        "removed",
        "checkpoint",
    ] {
        let images = Images::new(&golden, name);
        let mut ended = Ended::default();
        for seed in seeds_with(&FOUND_WRITING, name, 8) {
            let about = format!("{name}, MILLPOND_SEED={seed}");
            // Few enough that imports get somewhere.
            let one_in = one_in(seed) * 4;
            zio::hostile::set_block_hook(Arc::new(move |pointer, data| {
                change(seed, one_in, pointer, data)
            }));
            let world = images.writable_world(&base, &Vec::new());
            ended += exercise_changes(&images, &world, seed, &about).await.0;
            // Its blocks go through the hook as well.
            zio::hostile::set_block_hook(Arc::new(|_, data| data));
            neighbour.goes_on(&about).await;
        }
        eprintln!("{name}: {ended:?}");
    }
}
