//! Goal: new data goes to a pool whose dedup table is eight times as large as its memory at a rate
//! that bears comparison with that of the same pool without deduplication. Method: the trial
//! `dedup-8x`, with `MILLPOND_LONG=1` alone: it takes minutes; `RUST_LOG=dedup=debug` shows how
//! long flushing takes in each transaction group. What is asked for is what changes of the table
//! that are logged first come to; half on disks and four fifths with an SSD are wanted.

use trial::{Told, Trials, run_all, story};

fn rate(told: &Told, server: &str) -> f64 {
    let mut servers = told.servers.iter();
    let report = servers.find(|report| report.server == server).unwrap();
    report.steps[0].rate.unwrap()
}

#[test]
fn new_data_does_not_wait_for_a_table_that_is_larger_than_memory() {
    if std::env::var_os("MILLPOND_LONG").is_none() {
        return;
    }
    let shown = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(shown).try_init();
    let trials = Trials::parse(story("dedup-8x").unwrap()).unwrap();
    let told = run_all(&trials, &mut |line| println!("{line}"), &|| false).unwrap();
    println!("{}", told.markdown());
    let plain = rate(&told, "without deduplication");
    let of_plain = |server: &str| rate(&told, server) / plain;
    let disks = of_plain("table on the disks, with logs");
    let ssd = of_plain("table on an SSD, with logs");
    assert!(
        disks > 0.2 && ssd > 0.6,
        "{disks:.2}, {ssd:.2} of {plain:.0}"
    );
}
