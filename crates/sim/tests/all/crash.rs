//! Goal: whatever moment the power goes at, the pool imports, everything that was said to be
//! durable is there, nothing half done shows, and the pool's books are right to the byte.
//! Method: seeds; see `sim::torture`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use device::sim::{PowerCut, SimOp};
use sim::torture::{Cut, Layout, Plan, run_plan, seeds};
use sim::work::WorkOptions;

/// Runs plans on two threads; tells all failures.
pub fn run_all(seeds: &[u64], plan: impl Fn(u64) -> Plan + Sync) {
    run_seeds(seeds, |seed| {
        let (mut outcome, _) = run_plan(&plan(seed))?;
        outcome.log.clear();
        Ok(outcome)
    });
}

/// Runs seeds on two threads; tells all failures.
pub fn run_seeds<T: std::fmt::Debug>(seeds: &[u64], run: impl Fn(u64) -> Result<T, String> + Sync) {
    if std::env::var_os("MILLPOND_LOG").is_some() {
        // Another test may have been first.
        let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    }
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run = std::panic::AssertUnwindSafe(|| run(*seed));
                    match std::panic::catch_unwind(run) {
                        Ok(Ok(outcome)) => eprintln!("seed {seed}: {outcome:?}"),
                        Ok(Err(error)) => {
                            eprintln!("{error}");
                            failures.lock().unwrap().push(error);
                        }
                        Err(_) => failures
                            .lock()
                            .unwrap()
                            .push(format!("MILLPOND_SEED={seed} panics")),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let heads: Vec<_> = failures
        .iter()
        .map(|failure| failure.lines().take(3).collect::<Vec<_>>().join("\n"))
        .collect();
    assert!(
        failures.is_empty(),
        "{} seeds fail:\n{}",
        failures.len(),
        heads.join("\n")
    );
}

/// Runs a plan to its end, then with the power cut at every one of its writes and flushes (at each
/// `stride`th).
pub fn run_every_moment(plan: Plan, stride: u64) {
    let base = Plan {
        cut: Cut::Never,
        ..plan
    };
    let (whole, _) = run_plan(&base).unwrap();
    let moments = |op, count: u64, how| {
        (1..=count)
            .filter(move |at| at % stride == 1 % stride)
            .map(move |at| Cut::At(op, at, how))
    };
    let cuts: Vec<Cut> = moments(SimOp::Write, whole.writes, PowerCut::Shuffle)
        .chain(moments(SimOp::Write, whole.writes, PowerCut::LoseUnflushed))
        .chain(moments(SimOp::Flush, whole.flushes, PowerCut::Shuffle))
        .chain(moments(SimOp::Flush, whole.flushes, PowerCut::KeepAll))
        .chain(moments(
            SimOp::Discard,
            whole.discards,
            PowerCut::LoseUnflushed,
        ))
        .collect();
    let numbers: Vec<u64> = (0..cuts.len() as u64).collect();
    run_all(&numbers, |number| Plan {
        cut: cuts[number as usize],
        ..base
    });
}

#[test]
fn a_power_cut_loses_nothing_that_is_durable() {
    run_all(&seeds(22), Plan::of);
}

/// The same with pools that lack features, each other ones: code must not rely on what new pools
/// usually have.
#[test]
fn pools_that_lack_features_lose_nothing() {
    run_all(&seeds(8), |seed| {
        let plan = Plan::of(seed);
        Plan {
            lacks_features: true,
            work: WorkOptions {
                lacks_features: true,
                copies: seed % 3 == 1,
                // Clones are made and destroyed, among others.
                dataset_percent: plan.work.dataset_percent.max(10),
                ..plan.work
            },
            zdb: seed % 4 == 0,
            ..plan
        }
    });
}

/// The same with pools of versions before feature flags, raised after the first power cut. Before
/// version 27 they have no intent logs: what is to be durable waits for its transaction group.
#[test]
fn pools_of_old_versions_lose_nothing() {
    const VERSIONS: [u64; 8] = [25, 14, 26, 22, 11, 24, 27, 12];
    run_all(&seeds(16), |seed| {
        let plan = Plan::of(seed);
        let version = VERSIONS[(seed % 8) as usize];
        Plan {
            version: Some(version),
            layout: match plan.layout {
                Layout::Raidz(3, _) if version < 17 => Layout::Raidz(2, 5),
                layout => layout,
            },
            cycles: plan.cycles.max(2),
            work: WorkOptions {
                lacks_features: true,
                dataset_percent: plan.work.dataset_percent.max(10),
                sync_percent: plan.work.sync_percent.max(15),
                ..plan.work
            },
            zdb: seed % 3 == 0,
            ..plan
        }
    });
}

/// The same with disks that fail, as many as redundancy can do without.
#[test]
fn failing_disks_and_power_cuts_lose_nothing() {
    run_all(&seeds(12), with_failing_disks);
}

/// The same with pools that stand still now and then, since all their disks refuse writes and
/// forget what they had in their caches.
#[test]
fn pools_that_stood_still_lose_nothing() {
    run_all(&seeds(12), with_standstills);
}

/// Deduplicated blocks: references are those that tables count, whenever the power goes.
#[test]
fn a_power_cut_loses_no_reference_to_a_shared_block() {
    run_all(&seeds(16), with_dedup);
}

/// There is something to be lost.
#[test]
fn blocks_are_shared_when_the_power_goes() {
    let (mut shared, mut logged) = (0, 0);
    for seed in 0..4 {
        let (outcome, _) = run_plan(&with_dedup(seed)).unwrap();
        shared += outcome.shared_references;
        logged += outcome.logged_entries;
    }
    assert!(shared > 100 && logged > 10, "{shared}, {logged}");
}

fn with_dedup(seed: u64) -> Plan {
    let plan = Plan::of(seed);
    Plan {
        zdb: seed.is_multiple_of(4),
        dedup: Some(["on", "verify", "sha512", "edonr,verify"][(seed / 3 % 4) as usize]),
        work: WorkOptions {
            repeats: true,
            ..plan.work
        },
        ..plan
    }
}

/// The sync loop once ended where it needed a block that only a disk had which had just failed.
#[test]
fn a_pool_that_stood_still_waits_for_what_it_must_read() {
    run_all(&[35], with_standstills);
}

/// A log block that could not be written once left those behind it allocated, where no chain leads
/// to them, until the txg after the next; a power cut in between leaked them.
#[test]
fn log_blocks_behind_one_that_failed_do_not_leak() {
    run_all(&[165], with_standstills);
}

fn with_standstills(seed: u64) -> Plan {
    let plan = Plan::of(seed);
    Plan {
        // A power cut in the middle would end most of them before anything happens.
        cut: if seed.is_multiple_of(3) {
            plan.cut
        } else {
            Cut::Later
        },
        standstills: true,
        ..plan
    }
}

/// Cloned blocks: tables count the pointers that there are, whenever the power goes.
#[test]
fn a_power_cut_loses_no_reference_to_a_cloned_block() {
    run_all(&seeds(16), with_copies);
}

fn with_copies(seed: u64) -> Plan {
    let plan = Plan::of(seed);
    Plan {
        zdb: seed.is_multiple_of(4),
        work: WorkOptions {
            copies: true,
            ..plan.work
        },
        ..plan
    }
}

/// Files that are rewritten are whole whenever the power goes, and no block is lost or freed twice:
/// with clones, deduplication and snapshots beside it.
#[test]
fn a_power_cut_loses_nothing_that_is_rewritten() {
    run_all(&seeds(16), with_rewrites);
}

fn with_rewrites(seed: u64) -> Plan {
    let plan = match seed % 4 {
        0 => with_dedup(seed),
        1 => with_copies(seed),
        _ => Plan::of(seed),
    };
    Plan {
        // zdb of 2.3 takes blocks for as old as they look.
        zdb: false,
        work: WorkOptions {
            rewrites: true,
            ..plan.work
        },
        ..plan
    }
}

/// Every write and flush of a small workload that clones.
#[test]
fn every_moment_of_cloning() {
    every_moment_of(&[Layout::Mirror(2), Layout::MirrorAndLog], 97, true);
}

fn with_failing_disks(seed: u64) -> Plan {
    let plan = Plan::of(seed);
    let layout = match plan.layout {
        Layout::Single => Layout::Mirror(2),
        Layout::Stripe => Layout::Raidz(2, 4),
        given => given,
    };
    Plan {
        layout,
        faults: true,
        ..plan
    }
}

/// What was under way once outgrew the reserve of a full pool: a file was made longer and refused
/// at the same time.
#[test]
fn a_full_pool_refuses_whole_operations_only() {
    run_all(&[3275], with_failing_disks);
}

/// zdb, who knows nothing of us, finds the pools sound after power cuts and in the end.
#[test]
fn zdb_agrees_after_power_cuts() {
    run_all(&seeds(4), |seed| Plan {
        zdb: true,
        ..Plan::of(seed + 100)
    });
}

/// Every write and flush of a small workload as the moment at which the power goes (a sample of
/// them by default, all with `MILLPOND_LONG=1`).
#[test]
fn every_moment_of_a_small_workload() {
    let layouts = [Layout::Single, Layout::Mirror(2), Layout::Raidz(1, 3)];
    every_moment(&layouts, 41);
}

/// The same with vdevs for the intent log and for metadata.
#[test]
fn every_moment_with_log_and_special_vdevs() {
    let layouts = [Layout::MirrorAndLog, Layout::MirrorAndLogs, Layout::Classes];
    every_moment(&layouts, 97);
}

fn every_moment(layouts: &[Layout], stride: u64) {
    every_moment_of(layouts, stride, false);
}

fn every_moment_of(layouts: &[Layout], stride: u64, copies: bool) {
    let stride = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 1,
        None => stride,
    };
    for (seed, layout) in seeds(1)
        .into_iter()
        .flat_map(|seed| layouts.iter().map(move |layout| (seed, *layout)))
    {
        let plan = Plan {
            layout,
            cycles: 1,
            workers: 1,
            work: WorkOptions {
                steps: 40,
                dataset_percent: 15,
                sync_percent: 12,
                copies,
                ..WorkOptions::default()
            },
            ..Plan::of(6 + seed)
        };
        run_every_moment(plan, stride);
    }
}

/// dRAID through random power cuts and failing disks.
#[test]
fn draid_survives_power_cuts() {
    run_all(&seeds(6), |seed| {
        let layouts = [
            Layout::Draid(1, 2, 1, 5),
            Layout::Draid(2, 2, 1, 6),
            Layout::Draid(1, 3, 0, 7),
        ];
        Plan {
            layout: layouts[seed as usize % layouts.len()],
            faults: seed.is_multiple_of(2),
            zdb: seed.is_multiple_of(3),
            // OpenZFS opens no dRAID with less space than the least device has.
            disk_mib: 128,
            ..Plan::of(seed + 500)
        }
    });
}

/// Every moment of a small workload on dRAID.
#[test]
fn every_moment_on_draid() {
    every_moment(&[Layout::Draid(1, 2, 1, 5)], 97);
}

/// Vdevs for the intent log and for metadata under all that can happen.
#[test]
fn log_and_special_vdevs_lose_nothing() {
    run_all(&seeds(12), with_log_vdevs);
}

/// A write of a volume that was not acknowledged was once torn within a sector, where a log block
/// ended; and a change of a file that was removed later could not be replayed when the file went
/// away meanwhile.
#[test]
fn logs_are_cut_and_replayed_in_whole_steps() {
    run_all(&[221, 562], with_log_vdevs);
}

fn with_log_vdevs(seed: u64) -> Plan {
    let plan = match seed % 3 {
        0 => Plan::of(seed),
        1 => with_standstills(seed),
        _ => with_failing_disks(seed),
    };
    Plan {
        layout: match seed / 3 % 2 {
            0 => Layout::MirrorAndLogs,
            _ => Layout::Classes,
        },
        ..plan
    }
}

/// One seed is one run, to the last operation on the last disk.
#[test]
fn one_seed_gives_one_run() {
    for seed in [3, 5, 8] {
        let plan = Plan {
            log: true,
            ..Plan::of(seed)
        };
        let (first, _) = run_plan(&plan).unwrap();
        let (second, _) = run_plan(&plan).unwrap();
        assert!(first.log.len() > 500);
        let differs = first.log.iter().zip(&second.log).position(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}: operation {differs:?} differs");
        assert_eq!(first.log.len(), second.log.len());
    }
}
