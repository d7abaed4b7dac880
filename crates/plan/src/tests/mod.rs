//! Goal: the planner's figures are those that the engine and measurements have. Method: the
//! engine's own arithmetic beside ours, over random layouts; the published tables; the disk model
//! of crate `device`; sums that can be done by hand.

mod answers;
mod rates;
mod risks;
mod space;
mod words;

use crate::{DiskKind, Disks, Layout};

pub(crate) fn layout(word: &str) -> Layout {
    word.parse().expect("a layout")
}

/// The disks of the story: 16 of 500 GB, of which each does 90 seeks and 72 MB a second.
pub(crate) fn story_disks() -> Disks {
    Disks {
        accesses_per_second: 90.0,
        rate: 72_000_000,
        ..Disks::usual(16, 500_000_000_000, DiskKind::Hdd)
    }
}

/// Fails unless a figure is within a part of what is expected.
#[track_caller]
pub(crate) fn within(figure: f64, expected: f64, part: f64, of: &str) {
    let off = figure / expected - 1.0;
    println!(
        "{of}: {figure:.2}, expected {expected:.2}: {:+.0} %",
        off * 100.0
    );
    assert!(
        off.abs() <= part,
        "{of}: {figure} is {:+.1} % off {expected}",
        off * 100.0
    );
}
