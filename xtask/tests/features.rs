//! One set of features for each outside library, whichever of our crates is tested: else `cargo
//! test -p pool` after `cargo test --workspace` builds tokio and all that stands on it a second
//! time, for minutes.
//!
//! Crate `workspace-hack`, which every crate names among what its tests need, brings that about;
//! its manifest is written by `cargo hakari generate`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Outside libraries, each with its features, of what is built for the tests of some crates.
fn libraries(of: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--prefix", "none"])
        .args(["--edges", "normal,build,dev", "--format", "{p}|{f}"])
        .args(of)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("cargo tree");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text from cargo tree");
    let lines = text.lines().map(|line| {
        let line = line.strip_suffix(" (*)").unwrap_or(line);
        line.replace(" (proc-macro)", "")
    });
    // Ours are shown with their paths.
    lines.filter(|line| !line.contains(" (/")).collect()
}

#[test]
fn features_do_not_depend_on_what_is_tested() {
    let all = libraries(&["--workspace"]);
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    for entry in std::fs::read_dir(crates).expect("crates/") {
        let name = entry.expect("a crate").file_name();
        let name = name.to_str().expect("its name");
        let other: Vec<_> = libraries(&["--package", name])
            .difference(&all)
            .cloned()
            .collect();
        assert!(
            other.is_empty(),
            "the tests of {name} need other features than those of all: {other:?}\n\
             Does its Cargo.toml have 'workspace-hack.workspace = true' under [dev-dependencies]? \
             If so, install cargo-hakari, run 'cargo hakari generate', and commit what it changes."
        );
    }
}
