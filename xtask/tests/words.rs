//! What people read is in words: crates that speak with them put no value there as Rust writes it
//! for its own developers (`{value:?}`), but in assertions and in what is logged for debugging.

use std::path::{Path, PathBuf};

/// Crates whose messages are for people.
const CRATES: [&str; 14] = [
    "alerts",
    "answers",
    "api",
    "automation",
    "cli",
    "daemon",
    "disks",
    "drives",
    "host",
    "service",
    "serving",
    "telemetry",
    "verbs",
    "web",
];
/// Files that show structures of the disk to who knows them.
const DUMPS: [&str; 2] = ["cli/src/labels.rs", "cli/src/streams.rs"];
/// Where it is for developers.
const ALLOWED: [&str; 6] = [
    "debug!(",
    "trace!(",
    "assert",
    "panic!(",
    "Debug for",
    "write!(out",
];
/// Lines that a call may take before the text.
const CALL_LINES: usize = 4;

fn files_below(directory: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && name != "tests" {
            files_below(&path, out);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            out.push(path);
        }
    }
}

#[test]
fn messages_show_no_values_as_rust_writes_them() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut wrong = Vec::new();
    for name in CRATES {
        let mut files = Vec::new();
        files_below(&crates.join(name).join("src"), &mut files);
        assert!(!files.is_empty(), "{name}");
        for path in files {
            if DUMPS.iter().any(|dump| path.ends_with(dump)) {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let lines: Vec<&str> = code.lines().collect();
            for (at, line) in lines.iter().enumerate() {
                let call = lines[at.saturating_sub(CALL_LINES)..=at].concat();
                if line.contains(":?}") && !ALLOWED.iter().any(|word| call.contains(word)) {
                    wrong.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "for people, write it in words:\n{}",
        wrong.join("\n")
    );
}
