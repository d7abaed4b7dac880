//! The target from outside: one binary, since every binary compiles anew all that its tests wait
//! for.

mod chap;
mod common;
mod connections;
mod libiscsi;
mod paths;
mod server;
mod wire;
