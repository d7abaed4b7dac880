//! What tests compare Millpond with: golden pools, which OpenZFS made, and the peer, a virtual
//! machine that runs it. And a file whose server stops ([`StoppableFile`]).
//!
//! The former lie outside the repository: in `MILLPOND_GOLDEN` and `MILLPOND_PEER`, or else in
//! `../shared/golden` and `../shared/peer` beside it. Where one is missing, tests that need it are
//! left out and say so; with `CI=true` they fail. A few golden pools of OpenZFS 2.4 lie in this
//! crate, in `golden-2.4`.
//!
//! For tests only: whatever is wrong panics.

#![forbid(unsafe_code)]

mod stoppable;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use stoppable::StoppableFile;

/// Before each script in the peer: there is no udev in it, and `zpool import` would wait seconds
/// for it to name each disk (`update_vdev_config_dev_strs`,
/// lib/libzutil/os/linux/zutil_import_os.c).
const NO_UDEV: &str = "export ZFS_VDEV_DEVID_OPT_OUT=YES\n";
/// How often a script is begun: the emulated machine now and then stops dead.
const ATTEMPTS: u32 = 2;
/// Exit codes of `peer-vm` when the machine did not come to the script's end.
const STOPPED: [i32; 2] = [124, 125];

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

/// OpenZFS's own test suite, as its package has it (`.../zfs-tests`), where `scripts/install test`
/// unpacks it.
pub fn zfs_test_suite() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let suite = cache
        .or_else(home)?
        .join("millpond/zfs-test/usr/share/zfs/zfs-tests");
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

/// What OpenZFS said of a golden pool: JSON.
///
/// # Panics
/// When it cannot be read.
pub fn manifest(golden: &Path, name: &str) -> Vec<u8> {
    std::fs::read(golden.join(format!("{name}.json"))).expect("a manifest")
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

/// The virtual machine with the real OpenZFS.
pub struct Peer {
    program: PathBuf,
    /// Options of `peer-vm` that say which OpenZFS runs in it.
    version: &'static [&'static str],
}

impl Peer {
    /// The peer with OpenZFS 2.3, if it is here.
    pub fn find() -> Option<Self> {
        Self::find_with("image", &[])
    }

    /// The peer with OpenZFS 2.4, if it is here.
    pub fn find_2_4() -> Option<Self> {
        Self::find_with("image-2.4", &["-V", "2.4"])
    }

    fn find_with(image: &str, version: &'static [&'static str]) -> Option<Self> {
        let directory = shared("MILLPOND_PEER", "peer");
        let program = directory.join("peer-vm");
        let emulator = Command::new("qemu-system-x86_64")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        let is_there = program.exists()
            && directory.join(image).exists()
            && emulator.is_ok_and(|status| status.success());
        let what = format!("the peer machine (peer-vm with its {image}, qemu-system-x86)");
        need(&what, is_there).then_some(Self { program, version })
    }

    /// The command that starts it, for what [`Self::run`] does not do. Takes no turn.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Waits until no other test uses the machine, of this process or another. The turn lasts until
    /// the file is closed.
    ///
    /// # Panics
    /// When the temporary directory cannot hold a lock, or when `cargo nextest` does not know that
    /// this test uses the machine.
    pub fn turn() -> File {
        if let Ok(group) = std::env::var("NEXTEST_TEST_GROUP") {
            let advice = "add it to the group `peer` in .config/nextest.toml";
            assert_eq!(group, "peer", "this test uses the peer: {advice}");
        }
        let path = std::env::temp_dir().join("millpond-peer.lock");
        let file = File::options().create(true).append(true).open(path);
        let file = file.expect("the lock of the peer");
        file.lock().expect("a turn");
        file
    }

    /// Runs a script in it, as root, with these disks (`PATH,NAME`) and options of `peer-vm`
    /// (without: for 15 minutes at most); answers what it printed. Waits for its turn.
    ///
    /// # Panics
    /// With what it printed when the script fails, or the machine stops again and again.
    pub fn run(&self, disks: &[String], options: &[&str], script: &str) -> String {
        let _turn = Self::turn();
        let mut attempt = 1;
        loop {
            let mut command = Command::new(&self.program);
            let common = ["-q", "-t", "900"].iter().chain(self.version);
            command.args(common).args(options);
            for disk in disks {
                command.args(["-d", disk]);
            }
            let output = command
                .args(["-c", &format!("{NO_UDEV}{script}")])
                .stdin(Stdio::null())
                .output()
                .expect("peer-vm runs");
            let text = [&output.stdout, &output.stderr].map(|out| String::from_utf8_lossy(out));
            let text = text.concat();
            match output.status.code() {
                Some(0) => return text,
                Some(code) if STOPPED.contains(&code) && attempt < ATTEMPTS => {
                    eprintln!("the machine stopped, again:\n{text}");
                    attempt += 1;
                }
                code => panic!("the script failed in the peer ({code:?}):\n{text}"),
            }
        }
    }
}
