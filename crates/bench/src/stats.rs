//! Means and how sure they are; how far streams fall behind.

use crate::log::Entry;

/// Samples are put together to so many means. Samples that follow each other are alike, and means
/// of several are much less so (method of batch means; 10 to 30 are enough: Schmeiser, "Batch size
/// effects in the analysis of simulation output", Operations Research 30, 1982).
const BATCHES: usize = 10;
/// Student's t for 9 degrees of freedom, at 97.5 %.
const STUDENT: f64 = 2.262;

/// Half of the interval that holds the true mean with 95 % confidence; `None` of fewer than ten
/// samples.
pub fn half_interval(samples: &[f64]) -> Option<f64> {
    let each = samples.len() / BATCHES;
    if each == 0 {
        return None;
    }
    // Of samples that are over, the first ones are left out.
    let used = &samples[samples.len() - each * BATCHES..];
    let means: Vec<f64> = used.chunks(each).map(mean).collect();
    let centre = mean(&means);
    let squares: f64 = means.iter().map(|mean| (mean - centre).powi(2)).sum();
    let variance = squares / (BATCHES - 1) as f64;
    Some(STUDENT * (variance / BATCHES as f64).sqrt())
}

/// The mean; 0 of nothing.
pub fn mean(samples: &[f64]) -> f64 {
    match samples.len() {
        0 => 0.0,
        count => samples.iter().sum::<f64>() / count as f64,
    }
}

/// Seconds by which a stream of `rate` bytes a second was behind at most, by a log of its accesses:
/// the time between when an access was due and when it was done. A player or recorder with a buffer
/// for fewer seconds had a gap. `seconds` is for how long it should have run.
pub fn worst_lag_seconds(entries: &[Entry], rate: u64, seconds: f64) -> f64 {
    let rate = rate.max(1) as f64;
    let mut bytes = 0;
    let mut worst = 0f64;
    for entry in entries {
        let due = bytes as f64 / rate;
        worst = worst.max(entry.at_ms as f64 / 1000.0 - due);
        bytes += entry.block_bytes;
    }
    // The next access may be due and not have come until the end.
    worst.max(seconds - bytes as f64 / rate).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log;

    const STREAM: &str = include_str!("../fixtures/playback_lat.log");
    /// As the recipe of the fixture says.
    const RATE: u64 = 1_250_000;

    #[test]
    fn the_interval_grows_with_what_differs_and_shrinks_with_samples() {
        assert_eq!(half_interval(&[5.0; 9]), None);
        assert_eq!(half_interval(&[5.0; 30]), Some(0.0));
        // Ten samples are ten batches: 1 to 10 have a standard deviation of 3.0277.
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        let half = half_interval(&ten).unwrap();
        assert!(
            (half - 2.262 * 3.027_65 / 10f64.sqrt()).abs() < 1e-4,
            "{half}"
        );
        let noise = |count: u32| -> Vec<f64> {
            // A fixed sequence that looks random.
            let seeds = (0..count).scan(1u32, |seed, _| {
                *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                Some(f64::from(*seed >> 16))
            });
            seeds.collect()
        };
        let (few, many) = (half_interval(&noise(20)), half_interval(&noise(2000)));
        assert!(few.unwrap() > 3.0 * many.unwrap(), "{few:?} {many:?}");
    }

    #[test]
    fn a_stream_that_keeps_up_has_no_lag_to_speak_of() {
        let entries = log::read(STREAM).unwrap();
        let lag = worst_lag_seconds(&entries, RATE, 3.0);
        assert!(lag < 0.2, "{lag}");
    }

    #[test]
    fn a_stream_that_stops_is_behind_by_as_long() {
        let entry = |at_ms| Entry {
            at_ms,
            value: 0,
            block_bytes: 1000,
        };
        // A thousand bytes a second, the third and fourth of which come late.
        let entries = [entry(0), entry(1000), entry(4500), entry(4600), entry(4700)];
        assert_eq!(worst_lag_seconds(&entries, 1000, 5.0), 2.5);
        // Or not at all.
        assert_eq!(worst_lag_seconds(&entries[..2], 1000, 5.0), 3.0);
        assert_eq!(worst_lag_seconds(&[], 1000, 5.0), 5.0);
    }
}
