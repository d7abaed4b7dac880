//! The second-level cache: copies of blocks on fast devices, found by an index in memory.
//!
//! | Module | Holds |
//! |---|---|
//! | [`index`] | which blocks are where, at 24 bytes of memory each |
//! | [`ring`] | a device: writing, evicting, and what is found again after a start |
//! | [`level`] | a pool's devices: what is worth a place, who writes it, who reads it |
//!
//! It holds blocks as the pool stores them, compressed and encrypted: so it has no plaintext of an
//! encrypted dataset, it needs no key, and who reads verifies a copy by the checksum of the block
//! pointer as any other. Nothing here is ever needed: a device that fails, lies or vanishes is
//! taken out, and the pool is asked instead.
//!
//! Blocks come here when they are read from the pool, while their stored form is at hand, rather
//! than when they leave memory: then it would have to be made anew, and be the same to the bit.

#![forbid(unsafe_code)]

mod index;
mod level;
mod ring;

pub use index::Memory;
pub use level::{
    Block, CacheDevice, Copy, FailureHook, Figures, LevelOptions, SecondLevel, State, Worth,
};
pub use ring::{Geometry, Identity, Rebuilt, Trimmed};

#[cfg(test)]
mod tests;
