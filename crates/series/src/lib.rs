//! Figures over time: an hour finely, a year coarsely, in a bounded amount of space.
//!
//! | Part | What it is |
//! |---|---|
//! | [`Shape`] | which figures the series of a kind have, and what may be taken by them |
//! | [`Point`] | what was, in one period: amounts, levels, histograms; how points become one |
//! | [`Span`] | the five rings that each series has: an hour, a day, a week, a month, a year |
//! | [`Store`] | all series: takes samples in, and gives points |
//!
//! **Files.** One for each series, `N.series` in the store's directory, of a size that follows from
//! the shape: a page that says whose it is, then the five rings ([`Span::ALL`]). Where a point lies
//! follows from its time, so nothing is searched, moved or grown. The store's size is the sum, and
//! is checked before a file is made: what was seen least recently goes then.
//!
//! **Consolidation.** A point of a coarser ring is made of the points of the next finer one when
//! its period is over. That needs no state but the rings, so a restart changes nothing.
//!
//! **Crash.** Points wait in memory for two minutes at most, and are written where they belong,
//! each with its checksum. One that was written half is none; a file whose first page is not
//! understood is removed. So a crash costs the newest points, and nothing can keep the store from
//! opening.
//!
//! **Locks.** `work` makes samples come one after the other, and is held while files are written.
//! Who reads takes the short locks alone (`series`, and `state` of one), and reads files without.
//!
//! **Rejected.** An embedded store (redb, SQLite): its file has no fixed size, each commit writes
//! a path of its tree and waits for the disk, and what it is good at, finding and changing things,
//! is not needed where a place is arithmetic.

#![forbid(unsafe_code)]

mod file;
mod point;
mod ring;
mod store;
#[cfg(test)]
mod tests;

pub use file::SeriesError;
pub use point::{BUCKETS, Column, Figure, Histogram, Point, Sample, Shape, quantile};
pub use ring::Span;
pub use store::{Key, Known, Opened, Store, Taken};
