//! Goal: a server of 2010 gets warm as its owner published, with cache devices that are filled at 7
//! MB/s and lost at a restart; with today's defaults it is warm within an hour, for about as many
//! bytes written to them, and a minute after a restart. Method: the trials that are ready, at 1:64,
//! and at 1:16 with `MILLPOND_LONG=1`; at 1:64 no longer than until nothing changes any more.

use trial::{Outcome, Report, Step, Told, Trials, run_all, story};

/// Published: reads a second in the end, four hours after the start.
const WHEN_IT_WAS_WARM: f64 = 20_873.0;
const HOUR_SECONDS: u64 = 3600;

fn is_long() -> bool {
    std::env::var_os("MILLPOND_LONG").is_some_and(|value| value == "1")
}

/// Tells a trial that is ready; so many seconds of loads that last for hours, at 1:64.
fn tell(name: &str, seconds: u64) -> Told {
    let mut trials = Trials::parse(story(name).unwrap()).unwrap();
    if is_long() {
        trials = trials.at_scale(16).unwrap();
    } else {
        for step in trials.servers.iter_mut().flat_map(|trial| &mut trial.step) {
            if let Step::Load(load) = step {
                load.seconds = load.seconds.min(seconds);
            }
        }
    }
    let told = run_all(&trials, &mut |line| println!("{line}"), &|| false).unwrap();
    println!("{}", told.markdown());
    told
}

fn server<'a>(told: &'a Told, name: &str) -> &'a Report {
    let mut servers = told.servers.iter();
    servers.find(|report| report.server == name).unwrap()
}

fn step<'a>(report: &'a Report, name: &str) -> &'a Outcome {
    report.steps.iter().find(|step| step.name == name).unwrap()
}

fn is_within_a_fifth(seen: f64, published: f64) -> bool {
    (seen / published - 1.0).abs() < 0.2
}

#[test]
fn a_server_gets_warm_as_published_and_today_within_an_hour() {
    let told = tell("warm-up", HOUR_SECONDS * 4 / 3);
    let [none, slow, usual] =
        ["no cache device", "filled at 7 MB/s", "Millpond"].map(|name| server(&told, name));
    // As published, at both times of which it was.
    let getting_warm = step(slow, "getting warm");
    assert_eq!(getting_warm.published.len(), 2);
    for known in &getting_warm.published {
        // Where less is told, it had not changed for long.
        let last = getting_warm.points.last().unwrap().iops;
        let seen = getting_warm.iops_at(known.seconds).unwrap_or(last);
        assert!(
            is_within_a_fifth(seen, known.iops),
            "{seen:.0} reads a second after {} s",
            known.seconds
        );
    }
    let again = step(slow, "after a restart").iops_at(120).unwrap();
    assert!(again < 0.2 * WHEN_IT_WAS_WARM, "it is cold: {again:.0}");

    // Today's defaults.
    let faster = step(usual, "getting warm");
    let within_an_hour = faster.iops_at(HOUR_SECONDS).unwrap();
    assert!(
        is_within_a_fifth(within_an_hour, WHEN_IT_WAS_WARM),
        "{within_an_hour:.0} reads a second after an hour"
    );
    let warm = |outcome: &Outcome| outcome.reached(0.8 * WHEN_IT_WAS_WARM).unwrap();
    assert!(warm(faster) < warm(getting_warm), "{:?}", warm(faster));
    // The same set, and no more than some blocks of it twice.
    let written = |outcome: &Outcome| outcome.cache_written_bytes.unwrap();
    assert!(
        written(faster) as f64 <= 1.03 * written(getting_warm) as f64,
        "{} bytes, and {} at 7 MB/s",
        written(faster),
        written(getting_warm)
    );
    let again = step(usual, "after a restart").iops_at(120).unwrap();
    assert!(
        is_within_a_fifth(again, WHEN_IT_WAS_WARM),
        "{again:.0} reads a second in the second minute after a restart"
    );
    let index_bytes = faster.cache_index_bytes.unwrap();
    assert!(index_bytes <= 24.0, "{index_bytes} bytes for each block");

    // Memory alone holds less than half of the set.
    let without = step(none, "getting warm").points.last().unwrap().iops;
    assert!(without < 0.3 * WHEN_IT_WAS_WARM, "{without:.0}");
    let picture = told.svg().unwrap();
    assert_eq!(picture.matches("<polyline").count(), 3, "{picture}");
    assert_eq!(picture.matches("<title>published").count(), 2, "{picture}");
}
