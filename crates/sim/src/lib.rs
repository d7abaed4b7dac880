//! Torture in the simulated world (what `ztest` is to OpenZFS): random work on a real engine over
//! simulated disks that lose power, lose writes, tear them, reorder them and fail, checked against
//! a model of what must have survived.
//!
//! | Module | What it does |
//! |---|---|
//! | [`verify`] | reads a whole pool, block by block, and compares it with its space maps and accounts (`zdb -bcc`, in process) |
//! | [`copies`] | reads what each device has of each block |
//! | [`model`] | what filesystems and volumes should hold, and what they do hold |
//! | [`work`] | random operations |
//! | [`layout`] | how disks are put together |
//! | [`history`] | what they were told is durable |
//! | [`torture`] | runs: work, power cut, import, comparison, over and over |
//! | [`failures`] | runs in which disks fail, are replaced and resilvered, and all is well again |
//! | [`datasets`] | runs of operations on datasets of two pools, with streams between them |
//! | [`golden`] | the same below encryption roots that OpenZFS made |
//!
//! One seed is one run: everything that happens depends on it alone, to the last operation on
//! the last disk. A run that fails names its seed; `MILLPOND_SEED=n` runs that one only,
//! `MILLPOND_SIM_SEEDS=n` that many instead of the few that are run by default.

#![forbid(unsafe_code)]
// Whole pools and those who work with them are deep futures.
#![recursion_limit = "256"]

mod cache_device;
pub mod copies;
pub mod datasets;
pub mod dedup;
pub mod failures;
pub mod golden;
pub mod history;
pub mod layout;
pub mod model;
mod passes;
mod raising;
pub mod rng;
pub mod torture;
pub mod verify;
mod verify_clones;
mod verify_dedup;
mod verify_log;
mod verify_mappings;
pub mod work;
