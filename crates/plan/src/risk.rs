//! Chances of loss in a year, with what is assumed.
//!
//! A vdev of *n* disks of which *f* may fail goes from *k* failed disks to *k + 1* at the rate
//! (*n - k*) times that of one disk, and back to *k - 1* when a rebuild ends: the Markov chain by
//! which the mean time to data loss of RAID has been computed since Patterson, Gibson and Katz
//! (SIGMOD 1988). The mean time from *k* to *k + 1* is
//!
//! ```text
//! T(k) = (1 + T(k-1) / R) / ((n - k) λ)        R: time of a rebuild, λ: failures of a disk a year
//! ```
//!
//! and loss is exponential with the sum of T(0) to T(f). Failures are taken as independent. They
//! are not where disks are of one batch, in one shelf, at one power supply: the true chance is
//! bigger, and no layout replaces a copy elsewhere.
//!
//! A sector that cannot be read while nothing else has its data costs the blocks that are there,
//! and not the pool: that chance is told apart ([`Risk::damage_per_year`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{DiskKind, Layout, PlanError};

const YEAR_SECONDS: f64 = 365.25 * 86400.0;
/// Sets of failed disks of which [`Risk::survives`] tells.
const FAILED_MAX: usize = 6;

/// What is assumed about failures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanAssumptions")]
pub struct Assumptions {
    /// Part of the disks that fail in a year.
    pub failures_per_year: f64,
    /// Seconds until somebody has replaced a disk for which there is no spare.
    pub replace_seconds: f64,
    /// Bits read for one that cannot be read.
    pub bits_per_error: f64,
    /// Part of the pool that is in use, 0 to 1.
    pub filled: f64,
    /// Seconds between scrubs.
    pub scrub_interval_seconds: f64,
}

impl Assumptions {
    /// What is usual for a kind of disk: a new disk after two days, a pool that is four fifths
    /// full, a scrub each month.
    pub fn usual(kind: DiskKind) -> Self {
        Assumptions {
            failures_per_year: kind.usual_failures_per_year(),
            replace_seconds: 2.0 * 86400.0,
            bits_per_error: kind.usual_bits_per_error(),
            filled: 0.8,
            scrub_interval_seconds: 30.0 * 86400.0,
        }
    }

    /// Whether all figures can be true.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`].
    pub fn check(&self) -> Result<(), PlanError> {
        let bounds = [
            (
                "the failures of a disk in a year",
                self.failures_per_year,
                1e-6..=10.0,
                "0.000001 to 10",
            ),
            (
                "the time until a disk is replaced",
                self.replace_seconds,
                0.0..=1e9,
                "0 to 1,000,000,000 seconds",
            ),
            (
                "the bits read for an error",
                self.bits_per_error,
                1e9..=1e24,
                "10^9 to 10^24",
            ),
            (
                "the part of the pool that is in use",
                self.filled,
                0.0..=1.0,
                "0 to 1",
            ),
            (
                "the time between scrubs",
                self.scrub_interval_seconds,
                60.0..=1e10,
                "60 to 10,000,000,000 seconds",
            ),
        ];
        for (what, value, range, wanted) in bounds {
            if !range.contains(&value) {
                return Err(PlanError::OutOfRange {
                    what,
                    value: value.to_string(),
                    wanted,
                });
            }
        }
        Ok(())
    }
}

/// What may happen to a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PlanRisk")]
pub struct Risk {
    /// Chance that the pool is lost, in a year.
    pub loss_per_year: f64,
    /// Chance that the pool or some of its blocks are lost, in a year.
    pub damage_per_year: f64,
    /// How many disks may fail, whichever they are.
    pub may_fail: u64,
    /// Chance that the pool survives when so many of its disks, any, fail at the same time: of one
    /// first, then of two, and so on.
    pub survives: Vec<f64>,
    /// Disks that are expected to fail in a year, of all that the pool has.
    pub failures_per_year: f64,
}

impl Risk {
    /// On a layout with `spares` disks waiting, whose rebuild takes `rebuild_seconds`, and on whose
    /// disks `used_bytes` each are in use.
    pub fn of(
        layout: Layout,
        spares: u64,
        rebuild_seconds: Option<f64>,
        used_bytes: f64,
        assumed: &Assumptions,
    ) -> Self {
        let (vdevs, disks) = (layout.vdevs() as f64, layout.disks_of_vdev() as f64);
        let has_spare = spares > 0 || layout.distributed_spares() > 0;
        let wait = if has_spare {
            0.0
        } else {
            assumed.replace_seconds
        };
        let rebuild = (wait + rebuild_seconds.unwrap_or(0.0)) / YEAR_SECONDS;
        // Mean times in years, from the first failure on.
        let mut steps: Vec<f64> = Vec::new();
        for failed in 0..=layout.may_fail() {
            let rate = (disks - failed as f64) * assumed.failures_per_year;
            let before = steps.last().map_or(0.0, |before| before / rebuild);
            steps.push((1.0 + before) / rate);
        }
        let until_loss: f64 = steps.iter().sum();
        let until_bare: f64 = until_loss - steps.last().copied().unwrap_or(0.0);
        // One minus e^-x, exact for small x.
        let chance = |events: f64| -(-events).exp_m1();
        // Blocks that one pass over all that is left finds to be unreadable.
        let left = disks - layout.may_fail() as f64;
        let unreadable = chance(left * used_bytes * 8.0 / assumed.bits_per_error);
        let passes = if until_bare > 0.0 {
            1.0 / until_bare
        } else {
            YEAR_SECONDS / assumed.scrub_interval_seconds
        };
        let losses = vdevs / until_loss;
        Risk {
            loss_per_year: chance(losses),
            damage_per_year: chance(losses + vdevs * passes * unreadable),
            may_fail: layout.may_fail(),
            survives: survives(layout),
            failures_per_year: vdevs * disks * assumed.failures_per_year,
        }
    }
}

/// Chances that no vdev lost more than it may, when so many disks of all failed: the sets of disks
/// for which that is so, counted vdev by vdev, among all sets.
fn survives(layout: Layout) -> Vec<f64> {
    let disks = layout.disks();
    let most = FAILED_MAX.min(disks as usize);
    // As chances from the beginning, so that the counts stay small: `good[j]` is how many ways
    // there are for j failures, over the vdevs looked at so far.
    let choose = |from: u64, count: usize| -> f64 {
        let parts = (0..count as u64).map(|at| (from.saturating_sub(at)) as f64 / (at + 1) as f64);
        parts.product()
    };
    let may_fail = layout.may_fail() as usize;
    let mut good = vec![0.0; most + 1];
    good[0] = 1.0;
    for _ in 0..layout.vdevs() {
        let mut next = vec![0.0; most + 1];
        for (failed, ways) in good.iter().enumerate() {
            for here in 0..=may_fail.min(most - failed) {
                next[failed + here] += ways * choose(layout.disks_of_vdev(), here);
            }
        }
        good = next;
    }
    (1..=most)
        .map(|failed| (good[failed] / choose(disks, failed)).min(1.0))
        .collect()
}
