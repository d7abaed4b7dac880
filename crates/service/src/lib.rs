//! The pools that a server has imported, and what goes on in them.
//!
//! [`Pools`](pools::Pools) is the table of imported pools, each an [`OpenPool`](pools::OpenPool)
//! with the lock under which its datasets, mounts and shares change, and the list of those to
//! import at the next start ([`pool_list`]). What takes long is a job ([`jobs`]); what a pool does
//! by itself becomes jobs as well ([`background`]). What happens is told as events, from one
//! bounded list that every reader goes through at its own pace ([`events`]).
//!
//! [`reports`] and [`condition`] say in the API's types what pools and datasets are, [`error`] does
//! so with errors of the engine; [`asking`] knows on whose behalf a task works.
//!
//! [`cache_files`] are those that `zpool import -c` reads, where pools ask for them.
//!
//! [`receives`] are the streams that are being received into a pool.
//!
//! [`injections`] says whether faults may be injected, and which imports and exports are to take
//! long for that.
//!
//! [`spares`] knows which pools have the same spare device, which none of them does.
//!
//! Locks: the list of pools, then the table of pools, then those of jobs, then those of events. All
//! are short, but for the one under which the list is written.

#![forbid(unsafe_code)]

pub mod asking;
pub mod background;
pub mod cache_files;
pub mod compatibility;
pub mod condition;
pub mod error;
pub mod events;
pub mod injections;
pub mod jobs;
pub mod names;
pub mod opened;
pub mod pool_list;
pub mod pools;
pub mod receives;
pub mod reports;
pub mod spares;
