//! Trials told by the engine on models of disks.

mod trials;
mod warm_up;
