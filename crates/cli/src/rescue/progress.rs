//! Progress on standard error, and the wish to stop.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::numbers::nice_bytes;

/// How often a terminal is told.
const EVERY: Duration = Duration::from_millis(500);
/// How often a log is told.
const EVERY_IN_LOG: Duration = Duration::from_secs(30);

/// Counts what is done; cheap to call.
pub struct Progress {
    stop: Arc<AtomicBool>,
    files: AtomicU64,
    bytes: AtomicU64,
    is_terminal: bool,
    /// When it was shown last, and the dataset.
    shown: Mutex<(Instant, String)>,
}

impl Progress {
    /// Nothing done yet. `stop` is set by whoever wants it to end.
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        Self {
            stop,
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            is_terminal: std::io::stderr().is_terminal(),
            shown: Mutex::new((Instant::now(), String::new())),
        }
    }

    /// Whether to come to an end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A dataset begins.
    pub fn dataset(&self, name: &str) {
        name.clone_into(&mut self.shown.lock().1);
        self.show();
    }

    /// A file begins.
    pub fn file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.show();
    }

    /// Content was read.
    pub fn bytes(&self, count: u64) {
        self.bytes.fetch_add(count, Ordering::Relaxed);
        self.show();
    }

    fn show(&self) {
        let every = if self.is_terminal {
            EVERY
        } else {
            EVERY_IN_LOG
        };
        let mut shown = self.shown.lock();
        if shown.0.elapsed() < every {
            return;
        }
        shown.0 = Instant::now();
        let files = self.files.load(Ordering::Relaxed);
        let bytes = nice_bytes(self.bytes.load(Ordering::Relaxed));
        let (begin, end) = if self.is_terminal {
            ("\r\x1b[K", "")
        } else {
            ("", "\n")
        };
        let mut out = std::io::stderr().lock();
        let _ = write!(out, "{begin}{}: {files} files, {bytes}{end}", shown.1);
        let _ = out.flush();
    }

    /// Clears the line.
    pub fn end(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
