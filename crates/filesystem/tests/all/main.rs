//! The filesystem from outside: one binary, since every binary compiles all that its tests wait for
//! anew. Tests of what a whole process has (its memory, its panics, a hook) are binaries of their
//! own.

mod attributes;
mod clones;
mod clones_peer;
mod common;
mod datasets;
mod encrypted;
mod features;
mod full;
mod gangs_peer;
mod golden;
mod healing;
mod links;
mod livelists;
mod members;
mod model;
mod newkeys;
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
