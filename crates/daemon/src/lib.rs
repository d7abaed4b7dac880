//! The process that owns the pools: its API, its mounts, its shares.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;

/// What the daemon is told at its start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The state directory: socket, configuration, pool cache, volumes as files.
    pub state: PathBuf,
    /// Where iSCSI listens.
    pub iscsi_address: SocketAddr,
    /// Most memory for the cache in bytes; a quarter of the machine's where not given.
    pub cache_bytes: Option<u64>,
}

/// The embedded pool of `millpond up`.
#[derive(Clone, Debug, Default)]
pub struct DefaultPool {
    /// Size of its disks together in bytes; by the free space where not given.
    pub size_bytes: Option<u64>,
    /// Where its filesystem appears.
    pub mountpoint: Option<PathBuf>,
}

/// Why the daemon could not start or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {}

/// Runs the daemon until it is told to stop (Ctrl-C, SIGTERM, `millpond down`).
pub fn run(_options: Options, _default_pool: Option<DefaultPool>) -> Result<(), DaemonError> {
    Ok(())
}
