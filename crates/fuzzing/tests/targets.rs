//! Goal: no decoder panics, whatever the bytes. Method: every target gets what once made one panic,
//! then thousands of seeded inputs: changed blocks of golden pools, and bytes of no sense.
//! `MILLPOND_LONG=1` makes it millions.

mod common;

use std::path::Path;

use fuzzing::{TARGETS, run};

fn count() -> u64 {
    match std::env::var_os("MILLPOND_LONG") {
        Some(_) => 1_000_000,
        None => 4_000,
    }
}

fn regressions(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("regressions")
        .join(target);
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("an input"))
        .collect()
}

#[test]
fn decoders_take_anything() {
    // Targets may have a runtime of their own.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut seeds = match oracles::golden() {
        Some(golden) => runtime.block_on(common::extract(&golden)),
        None => common::Seeds::new(),
    };
    common::network(&mut seeds);
    common::texts(&mut seeds);
    common::log_records(&mut seeds);
    for (index, target) in TARGETS.iter().enumerate() {
        for input in regressions(target.name) {
            (target.run)(&input);
        }
        let own: Vec<Vec<u8>> = seeds
            .remove(target.name)
            .unwrap_or_default()
            .into_iter()
            .collect();
        eprintln!("{}: {} seeds", target.name, own.len());
        run(target, &own, index as u64, count());
    }
    assert!(seeds.is_empty(), "no target for {:?}", seeds.keys());
}

/// Each target has its binary for cargo-fuzz.
#[test]
fn cargo_fuzz_has_every_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).expect("a manifest");
    for target in TARGETS {
        let path = format!("fuzz_targets/{}.rs", target.name);
        let source = std::fs::read_to_string(fuzz.join(&path)).expect("a source");
        assert!(source.contains(&format!("\"{}\"", target.name)), "{path}");
        assert!(manifest.contains(&format!("path = \"{path}\"")), "{path}");
    }
}
