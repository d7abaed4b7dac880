//! How far a stream is, for who watches it and may have it stop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::StreamError;

/// How often it is asked whether to stop while nothing comes.
const LOOK: Duration = Duration::from_millis(500);

/// Is told how many bytes are done; says whether to stop.
type Report = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// How far streams are; may be looked at by others.
#[derive(Default)]
pub struct Progress {
    bytes: AtomicU64,
    report: Option<Report>,
}

impl Progress {
    /// Tells somebody, who may have it stop.
    pub fn new(report: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            report: Some(Box::new(report)),
        }
    }

    /// Bytes of streams that are done.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits for what a stream has to say, unless it is stopped: whoever sends may be silent.
    ///
    /// # Errors
    /// [`StreamError::Interrupted`], and those of `work`.
    pub async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        let stopped = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if let Err(error) = self.add(0) {
                    return error;
                }
            }
        };
        tokio::select! {
            done = work => done,
            error = stopped => Err(error),
        }
    }

    pub(crate) fn add(&self, bytes: u64) -> Result<(), StreamError> {
        let done = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match &self.report {
            Some(report) if report(done) => Err(StreamError::Interrupted),
            _ => Ok(()),
        }
    }
}
