//! Goal: a server of 2010, without its cache devices, reads as many blocks a second from its
//! disks as its owner measured before these were warm. Method: the real engine on models of its
//! disks, in virtual time.
//!
//! Compared is the first minute, in which memory is cold. After ten minutes, for which the figure
//! was published, the simulated server is half as fast again: its memory fills with what is read,
//! and its disks hold nothing but the set, at their outer end. How full the real ones were is not
//! known.

use std::time::Duration;

use sim::story::Server;
use sim::torture::simulate;

/// Published: 2,532 random reads a second, ten minutes after the start.
const BEFORE_IT_WAS_WARM: f64 = 2532.0;

#[test]
fn without_cache_devices_reads_come_at_the_disks_rate() {
    let factor = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 16,
        None => 64,
    };
    let points = simulate(async {
        let server = Server::new(44, factor).await.unwrap();
        let minute = Duration::from_secs(60);
        let points = server.read(1, 10 * minute, minute).await.unwrap();
        server.close().await.unwrap();
        points
    });
    for point in &points {
        println!(
            "{:>5} s: {:>6.0} reads/s, {} of 1000 lookups in memory",
            point.at.as_secs(),
            point.reads_per_second,
            point.hits_permille
        );
    }
    let first = points.first().unwrap().reads_per_second;
    let off = (first / BEFORE_IT_WAS_WARM - 1.0).abs();
    assert!(off < 0.2, "{first:.0} reads a second in the first minute");
    // Memory fills: it only gets faster.
    let rises = |pair: &[sim::story::Point]| pair[0].reads_per_second < pair[1].reads_per_second;
    assert!(points.windows(2).all(rises));
}
