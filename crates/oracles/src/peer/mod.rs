//! The peer: a virtual machine with the real OpenZFS, and with Linux's clients of iSCSI, NFS and
//! SMB, under software emulation. Its image is outside the repository (`MILLPOND_PEER` or
//! `../shared/peer`).
//!
//! A script runs in a machine of its own. It finds its disks in `/dev/disk/peer`, the files that it
//! was given in `/peer`, and leaves others in `/peer/out`. The machine begins where it is booted
//! already ([`state`]); then its disks are plugged in.

mod machine;
mod seeds;
mod state;

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::{cache, need, shared};
use machine::{Machine, Silence};

const EMULATOR: &str = "qemu-system-x86_64";
/// Before each script in the peer: there is no udev in it, and `zpool import` would wait seconds
/// for it to name each disk (`update_vdev_config_dev_strs`,
/// lib/libzutil/os/linux/zutil_import_os.c).
const NO_UDEV: &str = "export ZFS_VDEV_DEVID_OPT_OUT=YES\n";
/// How long a script may take that does not say.
const LIMIT: Duration = Duration::from_secs(900);
/// Most characters of a disk's name: those of a serial number (`VIRTIO_BLK_ID_BYTES`).
const NAME_CHARS_MAX: usize = 20;
/// Bytes that a script can leave in `/peer/out`.
const OUTPUT_BYTES: u64 = 4 << 30;
/// How many machines run at once.
const TURNS: u32 = 2;

/// The virtual machine with the real OpenZFS.
pub struct Peer {
    /// The directory of its kernel and its initial RAM disk.
    image: PathBuf,
    /// Where its state is kept.
    cache: PathBuf,
}

/// How a script runs in the peer; by default without a network and files, for 15 minutes at most.
#[derive(Debug, Default, Clone, Copy)]
pub struct PeerOptions<'a> {
    has_network: bool,
    input: Option<&'a Path>,
    output: Option<&'a Path>,
    limit: Option<Duration>,
    loses_power: bool,
}

impl<'a> PeerOptions<'a> {
    /// The host's loopback is 10.0.2.2 in it, and the modules of its clients are loaded.
    pub fn network(mut self) -> Self {
        self.has_network = true;
        self
    }

    /// The files of this directory are in `/peer`.
    pub fn input<P: AsRef<Path> + ?Sized>(mut self, directory: &'a P) -> Self {
        self.input = Some(directory.as_ref());
        self
    }

    /// This directory takes what the script leaves in `/peer/out`.
    pub fn output<P: AsRef<Path> + ?Sized>(mut self, directory: &'a P) -> Self {
        self.output = Some(directory.as_ref());
        self
    }

    /// How long the script may take.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The machine loses its power when the script prints the line `POWERCUT`, and that is right.
    pub fn loses_power(mut self) -> Self {
        self.loses_power = true;
        self
    }
}

impl Peer {
    /// The peer with OpenZFS 2.3, if it is here.
    pub fn find() -> Option<Self> {
        Self::find_with("image")
    }

    /// The peer with OpenZFS 2.4, if it is here.
    pub fn find_2_4() -> Option<Self> {
        Self::find_with("image-2.4")
    }

    fn find_with(name: &str) -> Option<Self> {
        let image = shared("MILLPOND_PEER", "peer").join(name);
        let emulator = Command::new(EMULATOR)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        let is_there = image.is_dir() && emulator.is_ok_and(|status| status.success());
        let what = format!("the peer machine (its {name}, qemu-system-x86)");
        let cache = cache();
        let is_there = need(&what, is_there && cache.is_some());
        is_there
            .then_some(cache)
            .flatten()
            .map(|cache| Self { image, cache })
    }

    /// Waits until fewer than [`TURNS`] machines run, of this process or another. The turn lasts
    /// until the file is closed.
    fn turn() -> File {
        if let Ok(group) = std::env::var("NEXTEST_TEST_GROUP") {
            let advice = "add it to the group `peer` in .config/nextest.toml";
            assert_eq!(group, "peer", "this test uses the peer: {advice}");
        }
        let open = |turn: u32| {
            let path = std::env::temp_dir().join(format!("millpond-peer-{turn}.lock"));
            let file = File::options().create(true).append(true).open(path);
            file.expect("a lock of the peer")
        };
        let free = (0..TURNS).map(open).find(|file| file.try_lock().is_ok());
        free.unwrap_or_else(|| {
            let file = open(std::process::id() % TURNS);
            file.lock().expect("a turn");
            file
        })
    }

    /// As [`Self::run_with`], by default.
    pub fn run(&self, disks: &[String], script: &str) -> String {
        self.run_with(disks, PeerOptions::default(), script)
    }

    /// Runs a script in it, as root, with these disks (`PATH,NAME`, or a path whose last part is
    /// the name); answers what it printed. Waits for its turn.
    ///
    /// # Panics
    /// With what it printed when the script fails or does not end in time.
    pub fn run_with(&self, disks: &[String], options: PeerOptions<'_>, script: &str) -> String {
        let _turn = Self::turn();
        let scratch = tempfile::tempdir().expect("a directory");
        let state = state::of(&self.image, &self.cache);
        let mut arguments = state::arguments(&self.image, &state.initrd);
        let read = format!("exec:cat '{}'", state.memory.display());
        arguments.extend(["-incoming".to_owned(), read]);
        let mut machine = Machine::start(&arguments, scratch.path());
        while machine.ask("query-status", &json!({}))["status"] == "inmigrate" {
            std::thread::sleep(Duration::from_millis(10));
        }
        state.seeds.renew(&machine);
        drop(state);

        let input = scratch.path().join("in.tar");
        pack(
            &format!("{NO_UDEV}{script}"),
            options.input,
            scratch.path(),
            &input,
        );
        machine.plug(&input, "peer-in");
        let mut count = 1;
        let output = scratch.path().join("out.tar");
        if options.output.is_some() {
            let file = File::create(&output).expect("a disk for what the script leaves");
            file.set_len(OUTPUT_BYTES).expect("a sparse file");
            machine.plug(&output, "peer-out");
            count += 1;
        }
        for disk in disks {
            let (path, name) = match disk.split_once(',') {
                Some((path, name)) => (Path::new(path), name.into()),
                None => (Path::new(disk), own_name(Path::new(disk))),
            };
            assert!(
                name.len() <= NAME_CHARS_MAX,
                "the name {name} is too long for a disk"
            );
            machine.plug(path, &name);
            count += 1;
        }
        machine.ask("cont", &json!({}));
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time")
            .as_secs();
        machine.type_line(&format!("{now} {count} {}", u8::from(options.has_network)));

        let text = follow(&machine, &options);
        if let Some(directory) = options.output {
            unpack(&output, directory);
        }
        text
    }
}

fn own_name(path: &Path) -> Cow<'_, str> {
    path.file_name().expect("a file").to_string_lossy()
}

/// Reads the console until the machine is off; what the script printed.
fn follow(machine: &Machine, options: &PeerOptions<'_>) -> String {
    let until = Instant::now() + options.limit.unwrap_or(LIMIT);
    let mut text = String::new();
    let (mut is_inside, mut end) = (false, None);
    loop {
        let line = match machine.line(until) {
            Ok(line) => line,
            Err(Silence::Off) => break,
            Err(Silence::Late) => panic!("the script does not end in the peer:\n{text}"),
        };
        if let Some(code) = line.strip_prefix("PEER-END rc=") {
            (is_inside, end) = (false, Some(code.to_owned()));
        } else if options.loses_power && line == "POWERCUT" {
            return text;
        } else if line.ends_with("PEER-BEGIN") {
            is_inside = true;
        } else if is_inside || end.is_none() && line.contains("Kernel panic") {
            text.push_str(&line);
            text.push('\n');
        }
    }
    let end = end.as_deref().unwrap_or("the machine stopped");
    assert_eq!(end, "0", "the script failed in the peer:\n{text}");
    text
}

/// Packs the script, and the files of a directory, as the machine's init wants them.
fn pack(script: &str, input: Option<&Path>, scratch: &Path, archive: &Path) {
    std::fs::write(scratch.join(".script"), script).expect("the script");
    let mut tar = Command::new("tar");
    tar.arg("-cf")
        .arg(archive)
        .arg("-C")
        .arg(scratch)
        .arg(".script");
    if let Some(input) = input {
        tar.arg("-C").arg(input).arg(".");
    }
    assert!(
        tar.status().expect("tar runs").success(),
        "tar packs the script"
    );
}

/// Unpacks what the script left. A script that left nothing made no archive.
fn unpack(archive: &Path, directory: &Path) {
    std::fs::create_dir_all(directory).expect("a directory for what the script left");
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive).arg("-C").arg(directory);
    let _ = tar.stderr(Stdio::null()).status().expect("tar runs");
}
