//! Goal: a pool that was filled to the last block, here or by OpenZFS, is right for the other, and
//! can be cleared out. Method: small pools are filled by a script until there is no space, twice,
//! so that the second time only crumbs are left; a third of the files is removed from the full
//! pool. Then OpenZFS checks, scrubs, compares and changes all; with `MILLPOND_LONG=1` it fills the
//! pools in turn (each of the last blocks takes it a txg, so minutes on an emulated machine), of
//! more layouts, three rounds.

use crate::harness::{Peer, is_long};
use crate::matrix::{Bed, Besides, can_go, same};

const POOLS: [(&str, &str, u64); 5] = [
    ("f0", "raidz1 D D D", 72 << 20),
    ("f1", "D", 130 << 20),
    ("f2", "mirror D D", 100 << 20),
    ("f3", "raidz2 D D D D D", 72 << 20),
    ("f4", "draid1:2d D D D", 100 << 20),
];

/// Fills every pool twice here.
fn fill(bed: &Bed, seed: u32) {
    for pool in &bed.pools {
        for time in 0..2 {
            let (_, mountpoint) = bed.mounts(&pool.name).remove(0);
            let seed = seed * 10 + time;
            bed.script(&["fill", &mountpoint, &seed.to_string()]);
            // What was freed may be written again some txgs later.
            for _ in 0..4 {
                bed.server.ok(&format!("zpool sync {}", pool.name));
            }
        }
    }
}

#[test]
fn full_pools_go_to_openzfs_and_back() {
    let Some(peer) = can_go().then(Peer::find).flatten() else {
        return;
    };
    let (pools, rounds) = if is_long() { (5, 3) } else { (2, 1) };
    let mut bed = Bed::new(4);
    for (name, layout, bytes) in POOLS.iter().take(pools) {
        bed.add_pool(name, layout, *bytes, "-O recordsize=16K");
    }
    bed.keep_access_times();
    let theirs = "for p in $(zpool list -H -o name); do for s in SEED0 SEED1; do
        bash /peer/matrix.sh fill /mnt/$p/$p $s
        for i in 1 2 3 4; do zpool sync $p; done
        done; done";
    for round in 0..rounds {
        fill(&bed, 2 * round + 1);
        bed.work(2 * round + 1);
        let expected = bed.survey();
        bed.export();
        let besides = Besides {
            last: if is_long() {
                theirs.replace("SEED", &(2 * round + 2).to_string())
            } else {
                String::new()
            },
            ..Besides::default()
        };
        let (before, after) = bed.turn(&peer, 2 * round + 2, &besides);
        same(
            &expected,
            &before,
            "OpenZFS sees something else than we wrote",
        );
        bed.verify();
        bed.import();
        same(
            &after,
            &bed.survey(),
            "we see something else than OpenZFS wrote",
        );
    }
    // All of it can go.
    for pool in &bed.pools {
        let (_, mountpoint) = bed.mounts(&pool.name).remove(0);
        for entry in std::fs::read_dir(&mountpoint).expect("a directory") {
            let path = entry.expect("an entry").path();
            std::fs::remove_dir_all(&path).expect("a directory of the full pool");
        }
    }
    bed.export();
}
