//! Goal: whatever disks do, as long as no more fail than redundancy can do without, nobody notices,
//! and once they were mended or replaced nothing is wrong any more.
//! Method: seeds; see `sim::failures`.

use crate::crash::run_seeds;
use sim::failures::{Plan, run_plan};
use sim::torture::seeds;

#[test]
fn no_more_failures_than_parity_are_noticed() {
    run_seeds(&seeds(6), |seed| run_plan(&Plan::of(seed)));
}
