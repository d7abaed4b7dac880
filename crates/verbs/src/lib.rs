//! What requests do to pools, datasets and files: one function per request of the API, which takes
//! the parts of the server that it works on.
//!
//! Modules are named after what a request is about. A request that changes something takes the
//! pool's `admin` lock, changes the engine, then what is served of the dataset
//! ([`serving::Serving`]), puts the command into the pool's history ([`zpool::log_command`]), and
//! tells of it. One that fails half-way puts back what it took away, and says in one answer what is
//! not as it was. Who may ask has been decided before; nothing here knows of HTTP. Measurements
//! ([`measuring`]) have something of their own: what is being measured, and the reports.

#![forbid(unsafe_code)]

pub mod activity;
pub mod create;
mod damage;
pub mod destroy;
pub mod diff;
pub mod files;
pub mod import;
pub mod inject;
pub mod keys;
mod look;
pub mod measuring;
pub mod order;
pub mod owners;
pub mod permissions;
pub mod planning;
pub mod program;
pub mod properties;
pub mod receive;
pub mod redact;
pub mod reopen;
pub mod replica;
mod replication;
pub mod rewrite;
pub mod scrub;
pub mod send;
pub mod snapshots;
pub mod split;
pub mod temporary;
pub mod topology;
pub mod upgrade;
pub mod usage;
pub mod vdevs;
pub mod zfs;
pub mod zpool;
