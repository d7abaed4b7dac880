//! Hours of reading while caches fill, in parts: what was done is kept after each, so that another
//! call goes on where one was stopped.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Progress so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchWarmUp")]
pub struct WarmUp {
    /// Seconds of reading that are wanted.
    pub wanted_seconds: u64,
    /// Its parts, in order.
    pub parts: Vec<Part>,
    /// The directory with the set, which stays until all is done; `None` for devices, and where
    /// nothing is kept.
    #[serde(default)]
    pub set: Option<String>,
}

/// A part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchWarmUpPart")]
pub struct Part {
    /// Seconds of reading until its end, without what came between calls.
    pub at_seconds: f64,
    /// Reads a second in it.
    pub iops: f64,
    /// The mean time of a read, in milliseconds.
    pub mean_ms: f64,
}

impl WarmUp {
    /// Seconds of reading that are done.
    pub fn done_seconds(&self) -> f64 {
        self.parts.last().map_or(0.0, |part| part.at_seconds)
    }

    /// Seconds of the next part; `None` when all is done.
    pub fn next_seconds(&self, part_seconds: u64) -> Option<u64> {
        // Parts are a little longer than they should be.
        let left = self.wanted_seconds as f64 - self.done_seconds();
        (left >= 0.5).then_some((left.round() as u64).clamp(1, part_seconds.max(1)))
    }

    /// Whether nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.next_seconds(u64::MAX).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_with_all_that_is_wanted() {
        let mut warm_up = WarmUp {
            wanted_seconds: 650,
            ..WarmUp::default()
        };
        let mut told = Vec::new();
        while let Some(seconds) = warm_up.next_seconds(300) {
            told.push(seconds);
            let part = Part {
                // fio ends some milliseconds late.
                at_seconds: warm_up.done_seconds() + seconds as f64 + 0.2,
                iops: 1.0,
                mean_ms: 1.0,
            };
            warm_up.parts.push(part);
        }
        assert_eq!(told, [300, 300, 50]);
        assert!(warm_up.is_done());
        warm_up.wanted_seconds = 1000;
        assert!(!warm_up.is_done());
    }
}
