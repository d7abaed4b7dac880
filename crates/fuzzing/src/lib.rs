//! Every decoder of bytes from disks and networks as a function that a fuzzer can call.
//!
//! [`TARGETS`] names them. cargo-fuzz calls them from `fuzz/` (a workspace of its own, as it needs
//! a nightly compiler); [`run`] does the same without it, with seeded mutations of seeds, so that
//! the tests call every target in each run. A target panics only when a decoder breaks its promise:
//! it gives a typed error or a value that holds together.
//!
//! Seeds are blocks of golden pools: `cargo run -p fuzzing --example seeds -- GOLDEN OUT` writes
//! them. Inputs that once made a target panic are kept in `regressions/TARGET/`.

#![forbid(unsafe_code)]

mod mutate;
mod targets;

pub use mutate::{Seeded, mutate};
pub use targets::TARGETS;

/// Longest input that is made, in bytes.
pub const INPUT_BYTES_MAX: usize = 16 << 10;

/// A decoder.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name: of the binary in `fuzz/`, and of the directories of seeds.
    pub name: &'static str,
    /// Decodes.
    pub run: fn(&[u8]),
}

/// Calls a target with `count` inputs: bytes of no sense, and changed `seeds`.
///
/// # Panics
/// When the target does.
pub fn run(target: &Target, seeds: &[Vec<u8>], seed: u64, count: u64) {
    for seed in seeds {
        (target.run)(seed);
    }
    let mut random = Seeded::new(seed);
    for _ in 0..count {
        let input = if seeds.is_empty() || random.below(8) == 0 {
            let shift = random.below(13);
            let length = random.below(1 << shift);
            (0..length).map(|_| random.next() as u8).collect()
        } else {
            let mut input = seeds[random.below(seeds.len() as u64) as usize].clone();
            mutate(&mut random, &mut input, seeds);
            input
        };
        (target.run)(&input);
    }
}
