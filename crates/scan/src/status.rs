//! How far a scan is, as `zpool status` shows it.

/// What a scan does (`pool_scan_func_t`, include/sys/fs/zfs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScanFunction {
    /// Verifies everything.
    Scrub,
    /// Writes what devices lack.
    Resilver,
}

/// How far a scan is (`dsl_scan_state_t`, include/sys/fs/zfs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScanState {
    /// Under way, or paused.
    Scanning,
    /// Done.
    Finished,
    /// Stopped before it was done.
    Canceled,
}

impl ScanStatus {
    /// Whether this is a resilver that has not ended.
    pub fn is_resilvering(&self) -> bool {
        self.function == ScanFunction::Resilver && self.state == ScanState::Scanning
    }
}

/// The last scrub or resilver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanStatus {
    /// What it does.
    pub function: ScanFunction,
    /// How far it is.
    pub state: ScanState,
    /// Seconds since the epoch.
    pub start_time_s: u64,
    /// Seconds since the epoch; zero while it runs.
    pub end_time_s: u64,
    /// Bytes to examine.
    pub to_examine_bytes: u64,
    /// Bytes found.
    pub examined_bytes: u64,
    /// Bytes verified.
    pub issued_bytes: u64,
    /// Bytes repaired.
    pub repaired_bytes: u64,
    /// Errors found.
    pub errors: u64,
    /// Since when it is paused, in seconds since the epoch; zero when it is not.
    pub pause_time_s: u64,
    /// Seconds at work, pauses deducted.
    pub elapsed_s: u64,
    /// Nothing is repaired, because the pool was imported read-only.
    pub verify_only: bool,
}
