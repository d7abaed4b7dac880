//! Trials told by the engine on models of disks.

mod dedup;
mod trials;
mod warm_up;
