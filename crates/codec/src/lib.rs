//! Checksums, compression and RAID-Z arithmetic: bytes in, bytes out, no I/O, no clock, no state
//! but tables computed once, the session keys of a data key, and pages of memory for keys.
//!
//! - [`checksum`]: every checksum that a block pointer can name, and those embedded in labels,
//!   gang headers and intent log blocks.
//! - [`compress`]: every compression that a block pointer can name.
//! - [`crypt`]: encryption and authentication of blocks, and the keys for it.
//! - [`raidz`]: parity of up to three columns, and the columns that it gives back.
//!
//! Work on whole blocks takes microseconds to milliseconds: callers on an async task hand it to a
//! CPU worker.
//!
//! # `unsafe`
//!
//! For SIMD (`std::arch`), in `checksum::fletcher4::x86` and `raidz::x86`: each function there
//! needs CPU features that its caller has detected, and reads and writes through unaligned loads
//! and stores within slices whose lengths it checks. Every SIMD path has a scalar twin that tests
//! compare it with.
//!
//! And in `crypt::locked`: memory for keys is mapped and locked by system calls, and handed out as
//! a box would be.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod checksum;
pub mod compress;
pub mod crypt;
pub mod raidz;
