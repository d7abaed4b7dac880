//! Goal: whatever of a device is wrong, readers get right data or a typed error: never wrong data,
//! a panic, a hang, or memory without limit. Method: golden pools whose images have seeded changes
//! laid over them (bits, bytes, sectors, misplaced writes; configurations and uberblocks that lie
//! under right checksums) are opened and read, by the strict readers and by those that go on past
//! damage. Then they are imported for writing, and everything that users do is done there: what
//! nobody changed stays right, and another pool in the same process goes on. `MILLPOND_LONG=1`
//! makes thousands of runs, `MILLPOND_SEED=N` repeats one.

use crate::common::change::{Ended, Neighbour, exercise_changes};
use crate::common::flip::{Images, Seeded, Seen, count_panics, exercise, exercise_after, seeds};
use crate::common::golden;
use device::World;

/// Pools and seeds that once found something: an older state with less space used than what is
/// freed.
const FOUND_WRITING: [(&str, u64); 1] = [("nofeat", 941)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_devices_give_right_data_or_errors() {
    let Some(golden) = golden() else { return };
    count_panics();
    let base = World::system(2);
    for name in ["nofeat", "v28", "mirror3", "raidz1_3", "plain"] {
        let images = Images::new(&golden, name);
        let mut seen = Seen::default();
        for seed in seeds(12) {
            let about = format!("{name}, MILLPOND_SEED={seed}");
            let changes = images.changes(&mut Seeded::new(seed));
            let world = images.world(&base, &changes);
            seen += exercise(&images, &world, true, &about).await;
        }
        eprintln!("{name}: {seen:?}");
        assert!(seen.right > 0, "{name}: nothing could be read at all");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_labels_give_errors() {
    let Some(golden) = golden() else { return };
    count_panics();
    let base = World::system(2);
    for name in [
        "mirror3",
        "raidz_expanding",
        "removed",
        "draid_spare",
        "special",
        "logs_cache",
    ] {
        let images = Images::new(&golden, name);
        let mut seen = Seen::default();
        for seed in seeds(30) {
            let about = format!("{name}, MILLPOND_SEED={seed}");
            // What is read may be an older state, as a forged uberblock says.
            let changes = images.forged(&mut Seeded::new(seed));
            let world = images.world(&base, &changes);
            seen += exercise(&images, &world, false, &about).await;
        }
        eprintln!("{name}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_devices_are_written_or_give_errors() {
    let Some(golden) = golden() else { return };
    count_panics();
    let base = World::system(2);
    let neighbour = Neighbour::new(&base).await;
    for name in [
        "nofeat",
        "v28",
        "raidz1_3",
        "plain",
        "cloned_blocks",
        "dedup_legacy",
        "zil_dirty",
        "removed",
    ] {
        let images = Images::new(&golden, name);
        let (mut seen, mut ended) = (Seen::default(), Ended::default());
        let once = FOUND_WRITING.iter().filter(|(pool, _)| *pool == name);
        for seed in seeds(6).chain(once.map(|(_, seed)| *seed)) {
            let about = format!("{name}, MILLPOND_SEED={seed}");
            let mut random = Seeded::new(seed);
            let changes = match seed % 3 {
                2 => images.forged(&mut random),
                _ => images.changes(&mut random),
            };
            let world = images.writable_world(&base, &changes);
            let (how, touched) = exercise_changes(&images, &world, seed, &about).await;
            ended += how;
            neighbour.goes_on(&about).await;
            // A forged uberblock may tell of an older state, whose blocks are free by now; and what
            // a log says is there only when it was replayed.
            let is_verified = seed % 3 != 2 && name != "zil_dirty";
            seen += exercise_after(&images, &world, is_verified, &touched, &about).await;
        }
        eprintln!("{name}: {ended:?}, then {seen:?}");
        assert!(ended.done > 0, "{name}: nothing could be done at all");
    }
}
