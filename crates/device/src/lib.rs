//! What the engine asks of the world.
//!
//! Everything above this crate reaches devices, time, randomness, tasks and CPU workers only
//! through the traits here, so that the same engine runs for real (io_uring, a worker pool) and
//! simulated (one thread, virtual time, disks with volatile caches and faults, one seed).
//!
//! | Piece | For real | Simulated ([`sim`]) |
//! |---|---|---|
//! | [`Device`] | [`FileDevice`] (file or block device), [`MemoryDevice`] | [`sim::SimDevice`] |
//! | [`Clock`] | [`SystemClock`] | [`sim::SimClock`]: tokio's paused time |
//! | [`Random`] | [`SystemRandom`] | [`sim::SimRandom`]: one seed |
//! | [`Spawn`] | [`TokioSpawn`] | [`sim::SimSpawn`]: tasks that a crash kills |
//! | [`Cpu`] | [`CpuPool`] | [`InlineCpu`] |
//! | [`Opener`] | [`SystemOpener`] | [`sim::SimWorld`], disks by name |
//!
//! [`Tasks`] owns the tasks that belong together: it hears of their panics, cancels them and waits
//! for them.
//!
//! [`private`] is how files that only their owner reads are read and replaced.
//!
//! [`output_within`] runs programs that look at devices, and may never come back.
//!
//! [`Allocator`] is where the process has its memory from; [`wipe_freed`] has it overwritten when
//! it is freed.
//!
//! [`MemoryUses`] lists who has how much memory.
//!
//! `unsafe` appears in `allocator`, `descriptors`, `file::buffer` (aligned, recycled buffers),
//! `file::request` (how full they are), `file::uring` (submission queue entries that point into
//! buffers the ring's owner keeps alive) and one ioctl.

mod allocator;
mod cpu;
mod descriptors;
mod file;
mod looks;
mod memory;
mod near;
pub mod private;
mod program;
pub mod sim;
mod sockets;
mod sparse;
mod system;
mod tasks;
mod usage;
mod world;

pub use allocator::{
    Allocator, CountingAllocator, WipeFreed, give_back_free, give_back_freed, wipe_freed,
};
pub use cpu::{CpuPool, InlineCpu};
pub use descriptors::leave_descriptors;
pub use file::{FileDevice, FileOptions, IoEngine, WriteBuffer, create_sparse_file};
pub use looks::{Entry, PathKind, Place};
pub use memory::MemoryDevice;
pub use near::start_near;
pub use program::output_within;
pub use sockets::{cut, watch_over};
pub use system::{SystemClock, SystemOpener, SystemRandom, TokioSpawn};
pub use tasks::{TaskPanic, Tasks};
pub use usage::{MemoryUse, MemoryUser, MemoryUses};
pub use world::{
    BoxFuture, Clock, Cpu, Device, DeviceError, Foreign, Hold, Opener, Random, Spawn, World,
};
