//! Why there is no result.

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A word that is not understood.
    #[error("'{word}' is not understood: {wanted}")]
    Word {
        /// As given.
        word: String,
        /// The words that are known.
        wanted: &'static str,
    },
    /// There is no such program.
    #[error(
        "{program} is not installed, and it makes the load; install it with `apt install fio` or \
         `dnf install fio`, or name another one with --fio"
    )]
    NoFio {
        /// The program.
        program: String,
    },
    /// What starts the program is not there.
    #[error(
        "the program setpriv is not installed, and it has fio end with who started it; install it \
         with `apt install util-linux` or `dnf install util-linux`"
    )]
    NoSetpriv,
    /// Nobody holds the file that the loads go over.
    #[error("what the loads go over is not held; nothing was run")]
    NotHeld,
    /// The program lacks an engine.
    #[error(
        "{program} was built without its engine {engine} (Debian's package fio is); build fio from \
         its source with {library} installed and name it with --fio, or {instead}"
    )]
    NoEngine {
        /// The program.
        program: String,
        /// The engine.
        engine: &'static str,
        /// Package that fio's build needs.
        library: &'static str,
        /// Another way.
        instead: &'static str,
    },
    /// The program could not be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// The program.
        program: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The program failed.
    #[error("fio failed: {told}")]
    Failed {
        /// The end of what it said.
        told: String,
    },
    /// Its output is not what it should be.
    #[error("fio's output cannot be read ({why}); a fio from 3.17 on is needed")]
    Output {
        /// The first thing that is wrong.
        why: String,
    },
    /// An address that a job file cannot name.
    #[error("a job file cannot name '{path}'; give it by a name of plain letters")]
    Path {
        /// The address.
        path: String,
    },
    /// A file of ours.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A report that cannot be read.
    #[error("'{path}' is not a report of `millpond bench`: {why}")]
    NotAReport {
        /// Its file.
        path: String,
        /// Why not.
        why: String,
    },
    /// Nothing is left to be measured.
    #[error(
        "all tests of this profile write, and what is on {target} would be lost; --destroy has \
         them run"
    )]
    NothingToRead {
        /// Where.
        target: String,
    },
    /// The target is too small.
    #[error("{target} has room for {room_bytes} bytes, and {wanted_bytes} are needed; say --size")]
    TooSmall {
        /// Where.
        target: String,
        /// Bytes that there are.
        room_bytes: u64,
        /// Bytes that are needed.
        wanted_bytes: u64,
    },
    /// The planner's own.
    #[error(transparent)]
    Plan(#[from] plan::PlanError),
    /// It was stopped.
    #[error("stopped; nothing is left behind")]
    Stopped,
}
