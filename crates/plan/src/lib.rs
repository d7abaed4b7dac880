//! What a set of disks will do as a pool, told before it is made.
//!
//! A [`Question`] has the disks, what they hang on and what the pool is for; [`answer`] tells, for
//! each [`Layout`], how much fits, how fast it is and what limits that, how likely data is lost,
//! how long scrubs and rebuilds take, and what it costs.
//!
//! | Module | What it knows |
//! |---|---|
//! | [`amount`] | sizes and rates as people write them |
//! | [`hardware`] | disks, controllers and buses, links |
//! | [`layout`] | how disks become vdevs: words, limits, blocks on them |
//! | [`capacity`] | how much fits, as the engine makes it |
//! | [`simple`] | rates in multiples of one disk |
//! | [`full`] | rates by seeks, queues, buses and links |
//! | [`risk`] | chances of loss in a year |
//! | [`scan`] | how long scrubs and rebuilds take |
//! | [`sizes`] | log devices, cache devices, dedup tables, special vdevs |
//! | [`choose`] | which layouts there are, and what counts for what |
//! | [`look`] | what is odd about vdevs that are about to be made |
//! | [`note`] | what is worth saying about an answer: facts, and sentences of them |
//!
//! **Pure.** No I/O, no clock, no randomness: equal questions give equal answers. Figures and
//! sentences are apart: an answer serializes to figures and the names of notes, and a note tells
//! its sentence when it is asked ([`Note::sentence`]).
//!
//! **Facts twice.** The arithmetic of space is the engine's (crates `vdev` and `zio`), which this
//! crate does not use, since a planner should not need an engine. Tests compare the two.

#![forbid(unsafe_code)]

pub mod amount;
mod answer;
mod ask;
pub mod capacity;
pub mod choose;
mod error;
pub mod full;
pub mod hardware;
pub mod layout;
pub mod look;
pub mod note;
pub mod risk;
pub mod scan;
pub mod simple;
pub mod sizes;
#[cfg(test)]
mod tests;

pub use answer::answer;
pub use ask::{Answer, Cost, Model, Planned, Question};
pub use error::PlanError;
pub use hardware::{Bus, DiskKind, Disks};
pub use layout::Layout;
pub use note::Note;
