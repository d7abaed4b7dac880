//! What tests compare Millpond with: golden pools, which OpenZFS made, and the peer, a virtual
//! machine that runs it. And a file whose server stops ([`StoppableFile`]), and an NFS client
//! ([`nfs`]).
//!
//! The former lie outside the repository: in `MILLPOND_GOLDEN` and `MILLPOND_PEER`, or else in
//! `../shared/golden` and `../shared/peer` beside it. Where one is missing, tests that need it are
//! left out and say so; with `CI=true` they fail. A few golden pools of OpenZFS 2.4 lie in this
//! crate, in `golden-2.4`.
//!
//! For tests only: whatever is wrong panics.

#![forbid(unsafe_code)]

pub mod nfs;
mod peer;
mod stoppable;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use peer::{Peer, PeerOptions};
pub use stoppable::StoppableFile;

/// Whether tests that need what is not there fail instead of being left out.
fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// `true` if what a test needs is there. Otherwise says why the test is left out.
///
/// # Panics
/// In CI, when it is not there.
pub fn need(what: &str, is_there: bool) -> bool {
    if !is_there {
        assert!(!is_ci(), "{what} is missing, and CI demands it");
        eprintln!("left out: {what} is missing");
        note_left_out(what);
    }
    is_there
}

/// Tells who runs the tests (`cargo xtask ci`) that one is left out: a line in the file that
/// `MILLPOND_LEFT_OUT` names. What a test that passes prints is not shown.
fn note_left_out(what: &str) {
    let Some(path) = std::env::var_os("MILLPOND_LEFT_OUT") else {
        return;
    };
    let line = format!("{what} is missing\n");
    let written = File::options()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the list of what is left out");
}

fn shared(variable: &str, name: &str) -> PathBuf {
    let beside = || {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../../shared")
            .join(name)
    };
    std::env::var_os(variable).map_or_else(beside, PathBuf::from)
}

/// The directory of the golden pools: `NAME.tar.zst` with images, `NAME.json` with what OpenZFS
/// says of them.
pub fn golden() -> Option<PathBuf> {
    let path = shared("MILLPOND_GOLDEN", "golden");
    need(
        "the golden pools (MILLPOND_GOLDEN or ../shared/golden)",
        path.is_dir(),
    )
    .then_some(path)
}

/// The directory of the golden pools of OpenZFS 2.4, of the same kind, which have the features that
/// 2.3 lacks.
pub fn golden_of_2_4() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-2.4")
}

/// The directory of what is fetched or made once for all tests, as `scripts/install` has it.
fn cache() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Some(cache.or_else(home)?.join("millpond"))
}

/// OpenZFS's own test suite, as its package has it (`.../zfs-tests`), where `scripts/install test`
/// unpacks it.
pub fn zfs_test_suite() -> Option<PathBuf> {
    let suite = cache()?.join("zfs-test/usr/share/zfs/zfs-tests");
    let what = "OpenZFS's test suite (package zfs-test, which scripts/install unpacks)";
    need(what, suite.is_dir()).then_some(suite)
}

/// Unpacks a golden pool below `into`; the directory of its images.
///
/// # Panics
/// When `tar` and `zstd` are not there or fail.
pub fn unpack(golden: &Path, name: &str, into: &Path) -> PathBuf {
    let archive = golden.join(format!("{name}.tar.zst"));
    let status = Command::new("tar")
        .args(["--zstd", "-xSf"])
        .arg(&archive)
        .arg("-C")
        .arg(into)
        .status()
        .expect("tar runs");
    assert!(status.success(), "{} does not unpack", archive.display());
    into.join(name)
}

/// What OpenZFS said of a golden pool: JSON. Of the two words for one value of `xattr`, OpenZFS 2.3
/// shows `on`, 2.4 `sa` (`xattr_table`, module/zcommon/zfs_prop.c): here it is always the latter.
///
/// # Panics
/// When it cannot be read.
pub fn manifest(golden: &Path, name: &str) -> Vec<u8> {
    let path = golden.join(format!("{name}.json"));
    let manifest = std::fs::read_to_string(path).expect("a manifest");
    manifest
        .replace(r#""xattr": "on""#, r#""xattr": "sa""#)
        .into_bytes()
}

/// The images (`*.img`) of a directory, by name.
///
/// # Panics
/// When it cannot be read.
pub fn images(dir: &Path) -> Vec<PathBuf> {
    let mut images: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("a directory of images")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "img"))
        .collect();
    images.sort();
    images
}
