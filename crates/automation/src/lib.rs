//! What a server does by itself, again and again: replications ([`replicate`]) and schedules
//! ([`schedules`]).
//!
//! Both are kept in a file per kind, run when they are due, rest and go: module `timetable`. When
//! one is due, and which snapshots stay, is decided by functions that look at nothing but what they
//! are given (`timetable::rule`, `replicate::plan`). A run carries its steps out with the same code
//! that requests ask for (crate `verbs`); what it has not finished is found again by GUIDs and by
//! the target's token.
//!
//! [`Automation`] holds both kinds and the parts that their runs work on.

#![forbid(unsafe_code)]

use std::sync::Arc;

use api::{Failure, ScheduleUntested, SelfTestKind};
use device::BoxFuture;
use host::State;
use host::table_file::FileProblem;
use serving::Serving;

pub mod replicate;
pub mod schedules;
mod timetable;

/// What became of having disks test themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelfTests {
    /// How many have begun.
    pub begun: u64,
    /// How many are at an earlier test still.
    pub are_testing: u64,
    /// Those that do not, and why.
    pub refused: Vec<ScheduleUntested>,
    /// How many have nothing to tell, and are not asked for a test either.
    pub unable: u64,
}

/// Disks that can test themselves.
pub trait Disks: Send + Sync {
    /// Has the disks of a pool test themselves; for no pool, all of the host.
    ///
    /// # Errors
    /// Where disks cannot be asked at all.
    fn begin_tests<'a>(
        &'a self,
        pool: &'a str,
        kind: SelfTestKind,
    ) -> BoxFuture<'a, Result<SelfTests, Failure>>;

    /// Whether one of a pool's disks tests itself, as far as it is known; of any for no pool.
    fn is_testing(&self, pool: &str) -> bool;
}

/// Replications and schedules, and what their runs work on.
pub struct Automation {
    pub(crate) serving: Arc<Serving>,
    pub(crate) disks: Arc<dyn Disks>,
    pub(crate) replications: replicate::Replications,
    pub(crate) left: replicate::LeftNotes,
    pub(crate) schedules: schedules::Schedules,
}

impl Automation {
    /// Those that the state directory has.
    pub fn load(state: &State, serving: Arc<Serving>, disks: Arc<dyn Disks>) -> Arc<Self> {
        Arc::new(Self {
            serving,
            disks,
            replications: replicate::Replications::load(state),
            left: replicate::LeftNotes::load(state),
            schedules: schedules::Schedules::load(state),
        })
    }

    /// Runs them when they are due, until [`Automation::stop`].
    pub fn begin(self: &Arc<Self>) {
        tokio::spawn(replicate::follow(Arc::clone(self)));
        tokio::spawn(schedules::follow(Arc::clone(self)));
    }

    /// Stops all runs; they go on with the next start.
    pub async fn stop(&self) {
        let jobs = &self.serving.jobs;
        tokio::join!(self.replications.stop(jobs), self.schedules.stop(jobs));
    }

    /// What is wrong with a file of replications.
    pub fn replications_problem(&self) -> Option<FileProblem> {
        self.replications.problem().or_else(|| self.left.problem())
    }

    /// What is wrong with the file of schedules.
    pub fn schedules_problem(&self) -> Option<FileProblem> {
        self.schedules.problem()
    }
}
