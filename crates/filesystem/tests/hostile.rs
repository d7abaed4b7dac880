//! Goal: blocks that pass their checksums and hold anything whatsoever harm nobody: typed errors, no panic, no
//! hang, no memory without limit. Changes on the device alone rarely get past the checksums.
//! Method: the pipeline changes verified blocks of golden pools (feature `hostile`), seeded, while everything
//! is read. `MILLPOND_LONG=1` makes thousands of runs, `MILLPOND_SEED=N` repeats one.

#[path = "all/common/mod.rs"]
mod common;
#[path = "all/common/flip.rs"]
mod flip;

use std::sync::Arc;

use bytes::Bytes;
use common::{golden, unpack};
use device::World;
use flip::{Images, Seeded, Seen, count_panics, exercise, seeds, spoil};
use format::BlockPointer;

/// Pools and seeds that once found something: a log of space maps that took memory without limit.
const FOUND: [(&str, u64); 1] = [("zil_dirty", 1427)];

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
    count_panics();
    let base = World::system(2);
    for name in ["nofeat", "v28", "raidz1_3", "gang", "zil_dirty", "plain"] {
        let images = Images::new(&golden, name);
        let mut seen = Seen::default();
        let once = FOUND.iter().filter(|(pool, _)| *pool == name);
        for seed in seeds(25).chain(once.map(|(_, seed)| *seed)) {
            let about = format!("{name}, MILLPOND_SEED={seed}");
            let one_in = [400, 60, 20, 8][(seed % 4) as usize];
            pool::hostile::set_block_hook(Arc::new(move |pointer, data| {
                change(seed, one_in, pointer, data)
            }));
            let world = images.world(&base, &Vec::new());
            seen += exercise(&images, &world, false, &about).await;
        }
        eprintln!("{name}: {seen:?}");
    }
}
