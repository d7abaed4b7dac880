//! The filesystem from outside: one binary, since every binary compiles all that its tests wait for
//! anew. `cargo nextest` runs each test in a process of its own, as tests of memory, of panics and
//! of the pipeline's hook want it.

mod attributes;
mod background;
mod clones;
mod clones_peer;
mod common;
mod datasets;
mod direct;
mod encrypted;
mod features;
mod flips;
mod full;
mod gangs_peer;
mod golden;
mod healing;
mod hostile;
mod links;
mod livelists;
mod locking;
mod members;
mod memory;
mod model;
mod newkeys;
mod old_lists;
mod old_pools;
mod parted;
mod rawstreams;
mod redaction;
mod redaction_peer;
mod replay;
mod rewriting;
mod rewritten;
mod sharing;
mod sparse;
mod streams;
mod unlinked;
mod unreadable;
mod unreplayed;
mod whole_attributes;
