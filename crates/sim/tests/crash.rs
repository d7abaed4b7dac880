//! Goal: whatever moment the power goes at, the pool imports, everything that was said to be
//! durable is there, nothing half done shows, and the pool's books are right to the byte.
//! Method: seeds; see `sim::torture`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sim::torture::{Plan, run_plan, seeds};

/// Runs seeds on two threads; tells all failures.
fn run_all(seeds: &[u64], plan: impl Fn(u64) -> Plan + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let plan = plan(*seed);
                    let outcome =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_plan(&plan)));
                    match outcome {
                        Ok(Ok((outcome, _))) => eprintln!("seed {seed}: {outcome:?}"),
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

#[test]
fn a_power_cut_loses_nothing_that_is_durable() {
    if std::env::var_os("MILLPOND_LOG").is_some() {
        tracing_subscriber::fmt().with_test_writer().init();
    }
    run_all(&seeds(22), Plan::of);
}
