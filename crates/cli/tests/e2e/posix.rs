//! The short form of `scripts/posix`: programs that look for what a filesystem does wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{MILLPOND, can_mount, finds, is_long, need, text_of};

/// Where `scripts/install` puts what it builds.
pub fn tools() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    std::env::var_os("XDG_CACHE_HOME")
        .map_or_else(home, PathBuf::from)
        .join("millpond/tools/bin")
}

fn phases(names: &[&str]) {
    if !can_mount() {
        return;
    }
    for tool in ["pjdfstest", "fsx", "fio", "zdb", "mkfs.ext4"] {
        let is_there = finds(tool) || tools().join(tool).exists();
        if !need(&format!("{tool} (scripts/install test)"), is_there) {
            return;
        }
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/posix");
    let mut command = Command::new(script);
    if is_long() {
        command.arg("long");
    } else {
        command.env("FSX_OPERATIONS", "1500");
    }
    let base = std::env::var_os("MILLPOND_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let output = command
        .args(names)
        .env("MILLPOND", MILLPOND)
        .env("MILLPOND_TEST_DIR", base)
        .stdin(Stdio::null())
        .output()
        .expect("the script runs");
    assert!(output.status.success(), "{}", text_of(&output));
}

#[test]
fn pjdfstest_fails_nothing_that_ext4_passes() {
    phases(&["pjdfstest"]);
}

#[test]
fn fsx_and_fio_find_no_wrong_byte() {
    phases(&["fsx", "fio"]);
}

#[test]
fn a_source_tree_and_a_big_directory_are_what_was_put_there() {
    phases(&["tree", "million"]);
}
