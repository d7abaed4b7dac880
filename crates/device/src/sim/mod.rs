//! The simulated world: one thread, virtual time, disks that fail, one seed.
//!
//! A [`SimWorld`] is made inside a tokio `current_thread` runtime whose clock is paused
//! (`#[tokio::test(start_paused = true)]`): nothing then depends on real time, tasks are polled in
//! one order, and everything random comes from the seed, so that a run repeats exactly. Time jumps
//! to the next timer whenever every task waits, so that a simulated hour costs only what happens in
//! it.
//!
//! ```
//! # use device::sim::{PowerCut, SimOp, SimWorld};
//! # use bytes::Bytes;
//! # let mut runtime = tokio::runtime::Builder::new_current_thread();
//! # let runtime = runtime.enable_time().start_paused(true).build().unwrap();
//! # runtime.block_on(async {
//! let sim = SimWorld::new(42);
//! let disk = sim.add_disk("disk0", 64 << 20);
//! let world = sim.world();
//! let device = world.opener.open("disk0", false).await.unwrap();
//! device.write(0, Bytes::from_static(b"kept")).await.unwrap();
//! device.flush().await.unwrap();
//! device.write(0, Bytes::from_static(b"lost")).await.unwrap();
//! sim.power_cut(PowerCut::LoseUnflushed);
//! sim.power_on();
//! assert_eq!(disk.peek(0, 4), b"kept");
//! # });
//! ```
//!
//! # What a disk does
//!
//! A write is in flight from when it is issued until its latency has passed, then it is in the
//! disk's volatile cache (reads see it), and it is durable once a flush that was issued later has
//! completed. A power cut ([`SimWorld::power_cut`]) decides for every write in flight or in the
//! cache on its own whether it survives whole, not at all, or in pieces of 512 bytes: any subset,
//! so that a later write may survive where an earlier one is lost. Dropping the future of a write
//! does not take the write back, as on a real device.
//!
//! After the cut every handle opened before it is dead ([`crate::DeviceError::Gone`]): an engine
//! that belongs to the time before the cut can't touch the disks of the time after. Open again
//! after [`SimWorld::power_on`].
//!
//! [`Fault`]s make operations fail, lie or hang. One that stalls ([`FaultEffect::Stall`]) is
//! accepted and neither done nor answered before [`SimDisk::release`].
//!
//! [`SimWorld::another_host`] is a second machine at the same disks.
//!
//! # How long it takes
//!
//! A disk has a [`model`]: fixed latencies ([`Latency`]), a hard disk, or a solid-state disk. A
//! [`SimLink`] is a network between clients and the server.
//!
//! tokio's timers count in milliseconds, so that latencies are rounded up to them; the order of
//! completions within one is shuffled by the seed. [`SimWorld::in_microseconds`] counts more
//! finely.

mod disk;
mod fault;
mod link;
pub mod model;
mod op;
mod rng;
#[cfg(test)]
mod tests;
mod world;

pub use disk::{SimDevice, SimDisk};
pub use fault::{Fault, FaultEffect};
pub use link::SimLink;
pub use model::{Latency, Model};
pub use op::{OpCounts, OpRecord, PowerCut, SimOp};
pub use world::{SimClock, SimRandom, SimSpawn, SimWorld};
