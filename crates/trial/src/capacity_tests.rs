//! Goal: the planner's capacities are those of pools that the engine makes, on 200 random layouts.
//! Method: pools on simulated disks of 256 MiB to 16 TiB, which hold nothing but what the engine
//! writes there; SIZE of `zpool list`, and USED and AVAIL of `zfs list` together.

use device::sim::{Latency, SimWorld};
use plan::Layout;
use plan::capacity::Capacity;
use pool::Pool;

use crate::rng::Rng;
use crate::server::{POOL, create_spec};

const LAYOUTS: usize = 200;
const DISKS_MAX: u64 = 24;

fn random(rng: &mut Rng) -> Layout {
    let vdevs = 1 + rng.below(4);
    let parity = 1 + rng.below(3);
    match rng.below(5) {
        0 => Layout::Stripe { disks: vdevs },
        1 => Layout::Mirror {
            vdevs,
            ways: 2 + rng.below(3),
        },
        2 | 3 => Layout::Raidz {
            parity,
            vdevs,
            disks: parity + 1 + rng.below(12),
        },
        _ => {
            let (data, spares) = (1 + rng.below(8), rng.below(3));
            Layout::Draid {
                parity,
                data,
                vdevs: 1 + rng.below(2),
                children: (parity + data + spares + rng.below(10)).max(2),
                spares,
            }
        }
    }
}

/// SIZE, and USED and AVAIL together, of a pool that is made.
async fn made(layout: Layout, disk_bytes: u64, ashift: u32) -> (u64, u64) {
    let sim = SimWorld::in_microseconds(1);
    let names: Vec<String> = (0..layout.disks()).map(|disk| format!("d{disk}")).collect();
    for name in &names {
        sim.add_disk(name, disk_bytes).set_latency(Latency::NONE);
    }
    let mut spec = create_spec(layout, &names);
    spec.properties = vec![("ashift".to_owned(), ashift.to_string())];
    let pool = Pool::create(&sim.world(), spec).await.unwrap();
    let size_bytes = pool.numbers().size_bytes;
    let root = pool.dsl().directories().lookup(POOL).await.unwrap();
    pool.export(false).await.unwrap();
    (size_bytes, root.used_bytes + root.available_bytes)
}

#[tokio::test(start_paused = true)]
async fn capacities_are_those_of_pools_that_are_made() {
    let mut rng = Rng::new(1);
    let mut told = 0;
    while told < LAYOUTS {
        let layout = random(&mut rng);
        // Every power of two as often as the others, and odd.
        let power = 28 + rng.below(16);
        let disk_bytes = ((1 << power) + rng.below(1 << power)) >> 9 << 9;
        let ashift = [9, 12, 13][rng.below(3) as usize];
        if layout.disks() > DISKS_MAX {
            continue;
        }
        // Not every layout can be of disks so small.
        let Ok(capacity) = Capacity::of(layout, disk_bytes, ashift) else {
            continue;
        };
        let is = made(layout, disk_bytes, ashift).await;
        let expected = (capacity.raw_bytes, capacity.usable_bytes);
        let what = format!("{layout} of {disk_bytes} bytes, ashift {ashift}");
        // The slop of a pool follows what was written to it.
        let off = is.1.abs_diff(expected.1) as f64 / is.1 as f64;
        assert!(
            is.0 == expected.0 && off < 0.005,
            "{what}: {is:?}, {expected:?}"
        );
        told += 1;
    }
}
