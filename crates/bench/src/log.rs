//! fio's logs over time (`fio(1)`, "LOG FILE FORMATS"): lines of milliseconds since the job's
//! begin, a value, the direction, the bytes of an access, and more that is not used.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Since the job began.
    pub at_ms: u64,
    /// Operations a second, or nanoseconds, as the log has it.
    pub value: u64,
    /// Bytes of the access; 0 where the line is about several.
    pub block_bytes: u64,
}

/// A point of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchPoint")]
pub struct Point {
    /// Seconds since the load began.
    pub at_seconds: f64,
    /// Operations a second.
    pub iops: f64,
}

/// Reads a log.
///
/// # Errors
/// [`BenchError::Output`] for a line that is none.
pub fn read(text: &str) -> Result<Vec<Entry>, BenchError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(entry).collect()
}

fn entry(line: &str) -> Result<Entry, BenchError> {
    let mut fields = line.split(',').map(str::trim);
    let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok());
    let told = (number(), number(), number(), number());
    match told {
        (Some(at_ms), Some(value), Some(_), Some(block_bytes)) => Ok(Entry {
            at_ms,
            value,
            block_bytes,
        }),
        _ => Err(BenchError::Output {
            why: format!("a line of its log is '{line}'"),
        }),
    }
}

/// Operations a second over time, of a log of means over `step_ms`: what reads and writes and all
/// threads did in a step, together. Steps take a little longer than they should, by and by, and
/// threads tell of one some milliseconds apart. A last one that is not whole is left out.
pub fn curve(entries: &[Entry], step_ms: u64) -> Vec<Point> {
    let mut sorted = entries.to_vec();
    sorted.sort_by_key(|entry| entry.at_ms);
    let mut steps: Vec<(u64, u64)> = Vec::new();
    for entry in sorted {
        match steps.last_mut() {
            Some((at_ms, iops)) if entry.at_ms - *at_ms < step_ms / 2 => *iops += entry.value,
            _ => steps.push((entry.at_ms, entry.value)),
        }
    }
    let mut before_ms = 0;
    let mut points = Vec::new();
    for (at_ms, iops) in steps {
        let is_whole = (at_ms - before_ms) * 4 >= step_ms * 3;
        before_ms = at_ms;
        if is_whole {
            points.push(Point {
                at_seconds: at_ms as f64 / 1000.0,
                iops: iops as f64,
            });
        }
    }
    points
}

/// As many points or fewer, each the mean of some.
pub fn thinned(points: &[Point], most: usize) -> Vec<Point> {
    let together = points.len().div_ceil(most.max(1)).max(1);
    points
        .chunks(together)
        .map(|chunk| Point {
            at_seconds: chunk[chunk.len() - 1].at_seconds,
            iops: chunk.iter().map(|point| point.iops).sum::<f64>() / chunk.len() as f64,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../fixtures/real-life_iops.log");
    const STREAM: &str = include_str!("../fixtures/playback_lat.log");

    #[test]
    fn reads_and_writes_of_a_step_are_one_point() {
        let entries = read(MEASURED).unwrap();
        let points = curve(&entries, 100);
        assert!(points.len() >= 10, "{points:?}");
        assert!(
            points
                .windows(2)
                .all(|pair| pair[0].at_seconds < pair[1].at_seconds)
        );
        let first = &entries[..2];
        assert_eq!(points[0].iops, (first[0].value + first[1].value) as f64);
        assert!((points[0].at_seconds - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_log_of_all_accesses_has_their_sizes() {
        let entries = read(STREAM).unwrap();
        assert!(entries.len() > 10 && entries.iter().all(|entry| entry.block_bytes == 65536));
    }

    #[test]
    fn what_is_no_log_is_said() {
        assert_eq!(read("\n").unwrap(), []);
        for wrong in ["1, 2", "a, 2, 0, 4096", "1, -2, 0, 4096"] {
            assert!(
                matches!(read(wrong), Err(BenchError::Output { .. })),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_step_that_is_not_whole_is_left_out() {
        let entry = |at_ms, value| Entry {
            at_ms,
            value,
            block_bytes: 0,
        };
        // Threads tell of a step one after the other, and steps come later and later.
        let entries = [entry(149, 5), entry(251, 7), entry(151, 6), entry(310, 1)];
        let told = curve(&entries, 100);
        let iops: Vec<f64> = told.iter().map(|point| point.iops).collect();
        assert_eq!(iops, [11.0, 7.0]);
        assert_eq!(curve(&[], 100), []);
    }

    #[test]
    fn a_curve_is_thinned_to_means() {
        let points: Vec<Point> = (1..=10)
            .map(|at| Point {
                at_seconds: f64::from(at),
                iops: f64::from(at),
            })
            .collect();
        let thin = thinned(&points, 4);
        assert_eq!(thin.len(), 4);
        assert_eq!((thin[0].at_seconds, thin[0].iops), (3.0, 2.0));
        assert_eq!(thinned(&points, 100), points);
        assert_eq!(thinned(&[], 3), []);
    }
}
