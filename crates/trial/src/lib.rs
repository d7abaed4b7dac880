//! A pool tried before its disks are bought: the engine itself, on models of disks, in virtual
//! time.
//!
//! A [`Trial`] names disks by model, a layout, a set of data and steps: loads of reads and writes,
//! a disk that fails, a replacement, a scrub. [`run`] makes the pool, fills the set, and does the
//! steps one after the other; a [`Report`] says how fast each was and what limited it. Nothing of
//! the engine is replaced but its world: devices, clock, tasks. A file may tell the same of several
//! servers ([`Trials`]), which then stand beside each other in what is [`Told`].
//!
//! Real time is spent on what the engine computes, so a trial is told at a fraction of its size
//! ([`Trial::scale`]): all sizes and rates are smaller by it and all delays longer, so that it
//! takes as long in virtual time as the whole one. Figures in a report are those of the whole one.
//!
//! What is not simulated: servers and clients beside their messages. A request costs a message each
//! way over the network, when the trial has one, and some time of the server's processor.

#![forbid(unsafe_code)]

mod bus;
#[cfg(test)]
mod capacity_tests;
mod catalog;
mod load;
mod plot;
mod predict;
mod report;
mod rng;
mod run;
mod server;
mod servers;
mod spec;
mod stories;

pub use catalog::{CATALOG, Known, known};
pub use report::{Outcome, Point, Report, Told};
pub use run::{run, run_all};
pub use servers::Trials;
pub use spec::{Access, Load, Published, Set, SetKind, Step, Trial};
pub use stories::{STORIES, story};

/// Why a trial could not be told.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The file is not one of ours, or asks for what there is not.
    #[error("{0}")]
    Spec(String),
    /// The engine refused or failed.
    #[error("{doing}: {source}")]
    Engine {
        /// What it was doing.
        doing: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It was stopped.
    #[error("the trial was stopped")]
    Stopped,
}

/// A failure of the engine in a step.
fn engine<E>(doing: impl Into<String>) -> impl FnOnce(E) -> TrialError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let doing = doing.into();
    move |source| TrialError::Engine {
        doing,
        source: source.into(),
    }
}
