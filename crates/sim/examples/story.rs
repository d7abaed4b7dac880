//! Tells how the cache devices of a server of 2010 get warm ([`sim::story`]): filled at 7 MB/s, as
//! published, and as fast as they take it; then the same with a set of four times the memory.
//! Prints tables and bars, in Markdown. The word is the factor by which all is smaller, 16 without
//! one.

use std::time::Duration;

use sim::story::{CACHE_BYTES, Point, SET_BYTES, Server};
use sim::torture::simulate;
use sim::verify::Failure;

const MINUTE: Duration = Duration::from_secs(60);
const LASTING: Duration = Duration::from_secs(240 * 60);
/// What the published server's cache devices were filled with, in bytes a second.
const SLOW_FILL: u64 = 7_000_000;
/// Published: reads a second ten minutes after the start, and four hours after it.
const PUBLISHED: [(u64, f64); 2] = [(10, 2532.0), (240, 20_873.0)];
/// Characters of the longest bar.
const BAR: f64 = 60.0;

/// Cache devices of a server.
#[derive(Clone, Copy, PartialEq)]
enum Caches {
    /// It has none.
    None,
    /// Filled as the published server's were, and cold after a restart.
    Slow,
    /// As they are by default.
    Usual,
}

/// How it went with a server.
struct Told {
    points: Vec<Point>,
    /// Bytes written to cache devices.
    written_bytes: u64,
    /// Memory for each block on these.
    index_bytes_per_block: f64,
    /// After a restart.
    again: Vec<Point>,
}

async fn tell(factor: u32, set_bytes: u64, caches: Caches) -> Result<Told, Failure> {
    let mut server = Server::new(44, factor, set_bytes).await?;
    if caches != Caches::None {
        server.add_cache_devices(2).await?;
    }
    if caches == Caches::Slow {
        server.fill_slowly(SLOW_FILL);
    }
    let points = server.read(1, LASTING, 10 * MINUTE).await?;
    let written_bytes = server.cache_bytes_written();
    let index_bytes_per_block = server.index_bytes_per_block();
    let again = match caches {
        Caches::Usual => {
            server.restart().await?;
            server.read(2, 3 * MINUTE, MINUTE).await?
        }
        Caches::None | Caches::Slow => Vec::new(),
    };
    server.close().await?;
    Ok(Told {
        points,
        written_bytes,
        index_bytes_per_block,
        again,
    })
}

fn bars(points: &[Point], most: f64) {
    println!("```text");
    for point in points {
        let length = (point.reads_per_second / most * BAR).round() as usize;
        let minutes = point.at.as_secs() / 60;
        println!("{minutes:>4} min {}", "#".repeat(length));
    }
    println!("```");
}

/// One set: a table, what was written, and bars.
fn print(factor: u32, set_bytes: u64, published: &[(u64, f64)]) -> Result<(), Failure> {
    let none = simulate(tell(factor, set_bytes, Caches::None))?;
    let slow = simulate(tell(factor, set_bytes, Caches::Slow))?;
    let usual = simulate(tell(factor, set_bytes, Caches::Usual))?;
    println!(
        "Reads of 4 KiB a second from {} GB, with {} GB of memory for caches, at 1:{factor}:",
        set_bytes / 1_000_000_000,
        CACHE_BYTES / 1_000_000_000
    );
    println!();
    println!("| minutes | published | no cache device | filled at 7 MB/s | Millpond |");
    println!("|---|---|---|---|---|");
    for (number, point) in usual.points.iter().enumerate() {
        let minutes = point.at.as_secs() / 60;
        let mut known = published.iter().filter(|(at, _)| *at == minutes);
        let known = known.next().map(|(_, reads)| format!("{reads:.0}"));
        println!(
            "| {minutes} | {} | {:.0} | {:.0} | {:.0} |",
            known.unwrap_or_default(),
            none.points[number].reads_per_second,
            slow.points[number].reads_per_second,
            point.reads_per_second
        );
    }
    for point in &usual.again {
        let (minutes, reads) = (point.at.as_secs() / 60, point.reads_per_second);
        println!("| {minutes} after a restart | | | | {reads:.0} |");
    }
    println!();
    println!(
        "Written to the cache devices: {:.1} GB at 7 MB/s, {:.1} GB by Millpond, whose index of \
         them takes {:.1} bytes of memory for each block.",
        slow.written_bytes as f64 / 1e9,
        usual.written_bytes as f64 / 1e9,
        usual.index_bytes_per_block
    );
    let all = [&none, &slow, &usual].into_iter();
    let rates = all.flat_map(|told| told.points.iter().map(|point| point.reads_per_second));
    let most = rates.fold(1.0, f64::max);
    for (name, told) in [("Filled at 7 MB/s", &slow), ("Millpond", &usual)] {
        println!("\n{name}:\n");
        bars(&told.points, most);
    }
    println!();
    Ok(())
}

fn main() -> Result<(), Failure> {
    let word = std::env::args().nth(1);
    let factor = word.map_or(Ok(16), |word| word.parse());
    let factor = factor.map_err(|_| "the factor is a number, such as 16")?;
    print(factor, SET_BYTES, &PUBLISHED)?;
    print(factor, 4 * CACHE_BYTES, &[])
}
