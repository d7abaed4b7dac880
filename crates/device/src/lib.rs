//! What the engine asks of the world.
//!
//! Everything above this crate reaches devices, time, randomness, tasks and CPU workers only
//! through the traits here, so that the same engine runs for real (io_uring, a worker pool) and
//! simulated (one thread, virtual time, disks with volatile caches and faults, one seed).

mod world;

pub use world::{BoxFuture, Clock, Cpu, Device, DeviceError, Opener, Random, Spawn, World};
