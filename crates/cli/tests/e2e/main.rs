//! The product from outside: the real binary, real mounts, and the oracles (zdb, the real OpenZFS).
//!
//! Tests need root and `/dev/fuse`; without them they are skipped with a reason, or fail where
//! `CI=true`. `MILLPOND_LONG=1` runs them at full size (a tree of a gigabyte, 200 kills).

mod activity;
mod bookmarks;
mod busy;
mod checkpoint;
mod classes;
mod commands;
mod condition;
mod conformance;
mod console;
mod counting;
mod damage;
mod dedup;
mod events;
mod expand;
mod foreign;
mod full;
mod golden;
mod harness;
mod initiator;
mod iscsi;
mod keys;
mod kill;
mod layouts;
mod legacy;
mod matrix;
mod matrix_2_4;
mod million;
mod mounts;
mod multihost;
mod nfs;
mod packages;
mod posix;
mod properties;
mod races;
mod rebuild;
mod refusals;
mod removed;
mod reopen;
mod rewrite;
mod san;
mod scrub;
mod smb;
mod snapdir;
mod spares;
mod starts;
mod suspend;
mod topology;
mod up;
mod users;
mod vdevprops;
mod walk;
mod zpool;
