//! Goal: while devices are initialized and trimmed, whatever moment the power goes at, everything
//! that was said to be durable is there, in the states before the newest as well, and zdb agrees
//! with the space maps. Method: random work on disks on which a discard takes effect at once and
//! for good, with passes that begin, end and go on at random.

use sim::torture::{Cut, Layout, Plan, run_plan, seeds};
use sim::work::WorkOptions;

use crate::crash::run_all;

fn with_passes(seed: u64) -> Plan {
    let plan = Plan::of(seed);
    let layout = match seed % 8 {
        0 => Layout::Single,
        1 => Layout::Mirror(2),
        2 | 6 => Layout::Raidz(1, 3),
        3 => Layout::Draid(1, 2, 1, 5),
        4 => Layout::MirrorAndLog,
        5 => Layout::Stripe,
        _ => Layout::Raidz(2, 5),
    };
    Plan {
        layout,
        disk_mib: if seed % 8 == 3 { 96 } else { 64 },
        autotrim: true,
        passes: true,
        zdb: seed.is_multiple_of(4),
        work: WorkOptions {
            file_bytes_max: 2 << 20,
            sync_percent: plan.work.sync_percent.max(6),
            copies: seed.is_multiple_of(5),
            ..plan.work
        },
        ..plan
    }
}

#[test]
fn passes_lose_nothing_when_the_power_goes() {
    run_all(&seeds(8), with_passes);
}

/// There is something to be lost.
#[test]
fn much_is_discarded_and_older_states_are_looked_at() {
    let (mut discards, mut older) = (0, 0);
    for seed in [2, 9] {
        let plan = Plan {
            cut: Cut::Later,
            ..with_passes(seed)
        };
        let (outcome, _) = run_plan(&plan).unwrap();
        discards += outcome.discards;
        older += outcome.older_states;
    }
    assert!(discards > 20 && older > 2, "{discards} {older}");
}

/// The same on disks that fail, and in pools that stand still.
#[test]
fn passes_on_failing_disks_lose_nothing() {
    run_all(&seeds(4), |seed| {
        let plan = with_passes(seed);
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
    });
}
