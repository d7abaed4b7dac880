//! A pool as a whole, from outside: one binary, since every binary compiles all that its tests wait
//! for anew.

mod activity;
mod cache;
mod changes;
mod checkpoint;
mod churn;
mod classes;
mod common;
mod crash;
mod create;
mod damage;
mod dedup;
mod defer;
mod errlog;
mod expand_peer;
mod faults;
mod forecast;
mod golden;
mod import;
mod layouts;
mod logs;
mod peer;
mod rebuild;
mod rebuild_peer;
mod refusals;
mod rewind;
mod scan;
mod scan_peer;
mod scrub;
mod second;
mod stall;
mod tasks;
mod trim;
mod vdevprops;
