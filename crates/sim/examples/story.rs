//! Tells how the cache devices of a server of 2010 get warm ([`sim::story`]): filled at 7 MB/s, as
//! published, and as fast as they take it; prints a table and bars, in Markdown. The word is the
//! factor by which all is smaller, 16 without one.

use std::time::Duration;

use sim::story::{Point, Server};
use sim::torture::simulate;
use sim::verify::Failure;

const MINUTE: Duration = Duration::from_secs(60);
/// What the published server's cache devices were filled with, in bytes a second.
const SLOW_FILL: u64 = 7_000_000;
/// Published: reads a second ten minutes after the start, and four hours after it.
const PUBLISHED: [(u64, f64); 2] = [(10, 2532.0), (240, 20_873.0)];
/// Characters of the longest bar.
const BAR: f64 = 60.0;

/// Points, bytes written to cache devices, and points after a restart.
type Told = (Vec<Point>, u64, Vec<Point>);

async fn tell(factor: u32, slow: bool) -> Result<Told, Failure> {
    let mut server = Server::new(44, factor).await?;
    server.add_cache_devices(2).await?;
    if slow {
        server.fill_slowly(SLOW_FILL);
    }
    let points = server.read(1, 240 * MINUTE, 10 * MINUTE).await?;
    let written_bytes = server.cache_bytes_written();
    // What filled them at that rate had forgotten all then.
    let again = match slow {
        true => Vec::new(),
        false => {
            server.restart().await?;
            server.read(2, 3 * MINUTE, MINUTE).await?
        }
    };
    server.close().await?;
    Ok((points, written_bytes, again))
}

fn bars(points: &[Point]) {
    let most = points.iter().map(|point| point.reads_per_second);
    let most = most.fold(1.0, f64::max);
    println!("```text");
    for point in points {
        let length = (point.reads_per_second / most * BAR).round() as usize;
        let minutes = point.at.as_secs() / 60;
        println!("{minutes:>4} min {}", "#".repeat(length));
    }
    println!("```");
}

fn main() -> Result<(), Failure> {
    let word = std::env::args().nth(1);
    let factor = word.map_or(Ok(16), |word| word.parse());
    let factor = factor.map_err(|_| "the factor is a number, such as 16")?;
    let slow = simulate(tell(factor, true))?;
    let fast = simulate(tell(factor, false))?;
    println!("Reads of 4 KiB a second, at 1:{factor}.");
    println!();
    println!("| minutes | published | 7 MB/s | Millpond |");
    println!("|---|---|---|---|");
    for (slow, fast) in slow.0.iter().zip(&fast.0) {
        let minutes = slow.at.as_secs() / 60;
        let mut published = PUBLISHED.iter().filter(|(at, _)| *at == minutes);
        let published = published.next().map(|(_, reads)| format!("{reads:.0}"));
        println!(
            "| {minutes} | {} | {:.0} | {:.0} |",
            published.unwrap_or_default(),
            slow.reads_per_second,
            fast.reads_per_second
        );
    }
    for point in &fast.2 {
        let (minutes, reads) = (point.at.as_secs() / 60, point.reads_per_second);
        println!("| {minutes} after a restart | | | {reads:.0} |");
    }
    println!();
    println!(
        "Written to the cache devices: {} and {} GB.",
        slow.1 / 1_000_000_000,
        fast.1 / 1_000_000_000
    );
    for (name, points) in [("7 MB/s", &slow.0), ("Millpond", &fast.0)] {
        println!("\n{name}:\n");
        bars(points);
    }
    Ok(())
}
