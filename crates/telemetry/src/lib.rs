//! What programs and people are told of a server's work: metrics as they are now, for who scrapes
//! them ([`metrics`]), figures over time, for reports ([`figures`]), and who has its memory
//! ([`memory`]).
//!
//! All read what is counted where it is counted. A scrape keeps nothing; figures are what counters
//! became by since ten seconds before, in files of fixed size (crate `series`).

#![forbid(unsafe_code)]

pub mod figures;
pub mod memory;
pub mod metrics;
