//! Objects, object sets and ZAPs from outside: one binary, since every binary compiles anew all
//! that its tests wait for.

mod cached;
mod charge;
mod common;
mod golden;
mod model;
mod packed;
mod structures;
mod traverse;
mod zap;
