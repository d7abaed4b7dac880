//! Loads that `fio` runs on real storage, and reports of what came of them.
//!
//! A [`Profile`] is a list of loads ([`Test`]) that people know: Iometer's tests, those of VMware's
//! users, SIO, Bonnie, streams of a recorder. [`job`] writes them as fio's job files, [`run`] has
//! fio run them, [`fio`] and [`log`] read what it found, and a [`Report`] holds all that can be
//! said of it, as JSON, CSV and a page with plots. [`log_device`] tests whether a device may hold
//! an intent log.
//!
//! | Module | What it knows |
//! |---|---|
//! | [`profile`] | the loads, by name |
//! | [`job`] | fio's job files |
//! | [`fio`] | what fio prints: its JSON, its engines |
//! | [`log`] | fio's logs over time |
//! | [`stats`] | means, confidence, how far streams fall behind |
//! | [`held`] | the file that loads go over, by a descriptor instead of its name |
//! | [`limits`] | the most that may be asked for |
//! | [`run`] | fio as a process: started, stopped, never left behind |
//! | [`measure`] | a profile from its first job to its report |
//! | [`progress`] | what is told meanwhile |
//! | [`streams`] | the search for how many streams go without a gap |
//! | [`warm_up`] | hours of reading, in parts that can go on another day |
//! | [`log_device`] | flushes, and whether they tell the truth |
//! | [`protected`] | models whose makers say that they survive the loss of power |
//! | [`against`] | what the planner says about the same loads |
//! | [`report`], [`compare`] | results, and two of them side by side |
//! | [`csv`], [`html`], [`plot`] | results for spreadsheets and for people |
//!
//! **Nothing here makes I/O of its own.** Loads are fio's (`fio(1)`), which people trust and can
//! run again: a report has the job files. All but [`held`], [`run`] and its callers ([`measure`],
//! [`log_device`]) is pure.
//!
//! **What is left behind.** Job files and logs are in a directory of the caller, who takes it away;
//! so is the file that loads read and write, unless they use a device. The caller makes it, and
//! gives it to the [`Runner`] to hold. fio and what it started are one process group, which ends
//! with the future that waits for it.

#![forbid(unsafe_code)]

pub mod against;
pub mod compare;
pub mod csv;
mod error;
pub mod fio;
pub mod held;
pub mod html;
pub mod job;
pub mod limits;
pub mod log;
pub mod log_device;
pub mod measure;
pub mod plot;
pub mod profile;
pub mod progress;
pub mod protected;
pub mod report;
pub mod run;
pub mod stats;
pub mod streams;
pub mod warm_up;

pub use error::BenchError;
pub use held::Held;
pub use job::{Area, Place};
pub use profile::{Profile, Test};
pub use report::Report;
pub use run::Runner;
