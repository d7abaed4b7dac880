//! Goal: with `autotrim=on`, whatever moment the power goes at, everything that was said to be
//! durable is there; and the states before the newest are whole as well, as `zpool import -F` may
//! choose them. Method: disks on which a discard takes effect at once and for good, while writes
//! that were not flushed may be lost; freed space is gathered for as short as can be.

use sim::torture::{Cut, Layout, Plan, run_plan, seeds};
use sim::work::WorkOptions;

use crate::crash::{run_all, run_every_moment};

fn with_autotrim(seed: u64) -> Plan {
    let plan = Plan::of(seed);
    let layout = match seed % 8 {
        3 => Layout::Draid(1, 2, 1, 5),
        6 => Layout::Classes,
        _ => plan.layout,
    };
    Plan {
        layout,
        disk_mib: plan.disk_mib.max(128),
        autotrim: true,
        zdb: seed.is_multiple_of(4),
        work: WorkOptions {
            // Bigger files and more syncs, so that more comes free at a time.
            file_bytes_max: 2 << 20,
            sync_percent: plan.work.sync_percent.max(6),
            copies: seed.is_multiple_of(5),
            ..plan.work
        },
        ..plan
    }
}

#[test]
fn discards_lose_nothing_when_the_power_goes() {
    run_all(&seeds(16), with_autotrim);
}

/// There is something to be lost.
#[test]
fn much_is_discarded_and_older_states_are_looked_at() {
    let (mut discards, mut older) = (0, 0);
    for seed in 1..5 {
        let plan = Plan {
            cut: Cut::Later,
            ..with_autotrim(seed)
        };
        let (outcome, _) = run_plan(&plan).unwrap();
        discards += outcome.discards;
        older += outcome.older_states;
    }
    assert!(discards > 100 && older > 4, "{discards} {older}");
}

/// The same on disks that fail, and in pools that stand still.
fn on_failing_disks(seed: u64) -> Plan {
    let plan = with_autotrim(seed);
    let layout = match plan.layout {
        Layout::Single => Layout::Mirror(2),
        Layout::Stripe => Layout::Raidz(2, 4),
        given => given,
    };
    Plan {
        layout,
        faults: seed.is_multiple_of(2),
        standstills: !seed.is_multiple_of(2),
        cut: Cut::Later,
        ..plan
    }
}

#[test]
fn discards_on_failing_disks_lose_nothing() {
    run_all(&seeds(8), on_failing_disks);
}

/// A block is cloned twice in one txg, and both clones are dead in a later snapshot: the checker
/// took that for a mistake.
#[test]
fn clones_of_one_txg_may_die_together() {
    run_all(&[1115], on_failing_disks);
}

/// Every write, flush and discard of a small workload as the moment at which the power goes (a
/// sample of them by default, all with `MILLPOND_LONG=1`).
#[test]
fn every_moment_with_discards() {
    let stride = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 1,
        None => 61,
    };
    for layout in [Layout::Single, Layout::Raidz(1, 3)] {
        let plan = Plan {
            layout,
            cycles: 1,
            workers: 1,
            zdb: false,
            work: WorkOptions {
                steps: 60,
                dataset_percent: 10,
                sync_percent: 20,
                file_bytes_max: 2 << 20,
                ..WorkOptions::default()
            },
            ..with_autotrim(7)
        };
        run_every_moment(plan, stride);
    }
}
