//! Steps of a measurement, as they are reported while it runs.

use crate::Test;
use crate::report::Measured;
use crate::streams::Try;
use crate::warm_up::Part;

/// A step.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// The area is written.
    Filling {
        /// Bytes of it.
        bytes: u64,
    },
    /// A load begins.
    Begun {
        /// Which.
        test: &'a Test,
        /// Its number, from 1 on.
        number: usize,
        /// Of so many.
        count: usize,
    },
    /// A load is measured.
    Measured(&'a Measured),
    /// So many streams of each kind are tried.
    Streams {
        /// How many.
        count: u32,
    },
    /// Their result.
    StreamsRan(&'a Try),
    /// A part of a warm-up is done.
    Warmed(&'a Part),
    /// A step of a log device's test begins.
    Log {
        /// Its name.
        step: &'a str,
        /// For so many seconds.
        seconds: u64,
    },
}

/// Called at each step.
pub type Listener<'a> = &'a mut (dyn FnMut(Progress<'_>) + Send);
