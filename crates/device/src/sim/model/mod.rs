//! Models of disks and of a network link: how long things take.
//!
//! A model is a pure state machine over virtual time in nanoseconds: no tasks, no clock, no data.
//! A simulated disk asks one when each of its operations is complete
//! ([`SimWorld::add_disk_of`](crate::sim::SimWorld::add_disk_of)); [`measure`] runs a load like
//! fio's on one without a world around it.
//!
//! | Model | What it knows |
//! |---|---|
//! | [`Latency`] | fixed latencies and one rate |
//! | [`HddSpec`] | seeks, rotation, zones, read-ahead, write cache, command queue |
//! | [`SsdSpec`] | dies and channels, page-mapped flash translation, garbage collection, wear |
//! | [`LinkSpec`] | frames, serialization and latency of a network link |
//!
//! Specifications of real models have their published figures, and where these are from, in their
//! docstrings; the tests beside each model compare with them. [`Model::scaled`] makes a disk slower
//! by a factor in all that it does, for stories that are told at a fraction of their size.
//!
//! # Protocol
//!
//! [`Machine::submit`] hands a command over. Mostly the machine knows at once when it will be
//! complete. A disk that chooses from its queue decides later: at [`Machine::next_ns`] it wants
//! [`Machine::advance`] to be called, which tells the commands that were decided meanwhile. Calls
//! have to be in order of time; equal calls give equal answers.

mod hdd;
mod link;
mod load;
mod simple;
mod ssd;

pub use hdd::{Hdd, HddSpec};
pub use link::{Link, LinkSpec};
pub use load::{Access, Load, Measured, measure};
pub use simple::Latency;
pub use ssd::{Ssd, SsdSpec, Wear};

use super::op::SimOp;
use super::rng::Rng;
use simple::Simple;

/// What kind of disk a simulated disk is.
#[derive(Debug, Clone, PartialEq)]
pub enum Model {
    /// Fixed latencies and one rate.
    Simple(Latency),
    /// A hard disk.
    Hdd(HddSpec),
    /// A solid-state disk.
    Ssd(SsdSpec),
}

impl Model {
    /// The same disk `factor` times slower in all that it does, a hard disk with caches `factor`
    /// times smaller. With a size `factor` times smaller it needs the same time for the whole of
    /// it.
    #[must_use]
    pub fn scaled(&self, factor: u32) -> Model {
        match self {
            Model::Simple(latency) => Model::Simple(Latency {
                read: latency.read * factor,
                write: latency.write * factor,
                flush: latency.flush * factor,
                bytes_per_second: latency.bytes_per_second / u64::from(factor),
                ..*latency
            }),
            Model::Hdd(spec) => Model::Hdd(spec.scaled(factor)),
            Model::Ssd(spec) => Model::Ssd(spec.scaled(factor)),
        }
    }
}

/// An operation as a disk sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// What.
    pub op: SimOp,
    /// First byte.
    pub offset_bytes: u64,
    /// Length; 0 for flushes.
    pub length_bytes: u64,
}

/// A command whose time was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// The number that was given with it.
    pub number: u64,
    /// When it is complete.
    pub done_ns: u64,
}

/// A disk of a [`Model`] and a size, at work.
#[derive(Debug, Clone)]
pub struct Machine {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Simple(Simple),
    Hdd(Box<Hdd>),
    Ssd(Box<Ssd>),
}

impl Machine {
    /// An idle disk on which nothing was ever written.
    pub fn new(model: &Model, size_bytes: u64) -> Self {
        let kind = match model {
            Model::Simple(latency) => Kind::Simple(Simple::new(*latency)),
            Model::Hdd(spec) => Kind::Hdd(Box::new(Hdd::new(spec, size_bytes))),
            Model::Ssd(spec) => Kind::Ssd(Box::new(Ssd::new(spec, size_bytes))),
        };
        Machine { kind }
    }

    /// Hands a command over under a number that no other command under way has. When it will be
    /// complete, if that is decided already; otherwise [`Self::advance`] tells it.
    pub(super) fn submit(
        &mut self,
        now_ns: u64,
        number: u64,
        command: &Command,
        rng: &mut Rng,
    ) -> Option<u64> {
        match &mut self.kind {
            Kind::Simple(simple) => Some(simple.submit(now_ns, command, rng)),
            Kind::Hdd(hdd) => hdd.submit(now_ns, number, command),
            Kind::Ssd(ssd) => Some(ssd.submit(now_ns, command)),
        }
    }

    /// When the disk has to decide next, if anything waits for a decision.
    pub fn next_ns(&self) -> Option<u64> {
        match &self.kind {
            Kind::Simple(_) | Kind::Ssd(_) => None,
            Kind::Hdd(hdd) => hdd.next_ns(),
        }
    }

    /// Lets the disk decide all that it has to until now.
    pub fn advance(&mut self, now_ns: u64, decided: &mut Vec<Decided>) {
        if let Kind::Hdd(hdd) = &mut self.kind {
            hdd.advance(now_ns, decided);
        }
    }

    /// The power went: nothing is under way or cached any more. What flash holds stays.
    pub fn reset(&mut self) {
        match &mut self.kind {
            Kind::Simple(simple) => simple.reset(),
            Kind::Hdd(hdd) => hdd.reset(),
            Kind::Ssd(ssd) => ssd.reset(),
        }
    }

    /// Gives a disk other latencies. One of another model becomes a simple one.
    pub(super) fn set_latency(&mut self, latency: Latency) {
        match &mut self.kind {
            Kind::Simple(simple) => simple.latency = latency,
            other => *other = Kind::Simple(Simple::new(latency)),
        }
    }

    /// What was written to the flash of a solid-state disk.
    pub fn wear(&self) -> Option<Wear> {
        match &self.kind {
            Kind::Ssd(ssd) => Some(ssd.wear()),
            _ => None,
        }
    }
}

/// Time that `bytes` take at a rate.
fn transfer_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1))) as u64
}
