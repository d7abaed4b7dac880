//! Goal: whatever of a device is wrong, readers get right data or a typed error: never wrong data, a panic, a
//! hang, or memory without limit.
//! Method: golden pools whose images have seeded changes laid over them (bits, bytes, sectors, misplaced
//! writes; configurations and uberblocks that lie under right checksums) are opened and read, by the strict readers and by those that go on past damage.
//! `MILLPOND_LONG=1` makes thousands of runs, `MILLPOND_SEED=N` repeats one.

#[path = "all/common/mod.rs"]
mod common;
#[path = "all/common/flip.rs"]
mod flip;

use common::{golden, unpack};
use device::World;
use flip::{Images, Seeded, Seen, count_panics, exercise, seeds};

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
