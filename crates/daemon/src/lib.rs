//! The process that owns the pools: API, mounts, shares.
