//! The state in which every peer begins: booted, with its drivers, before its disks are there.
//!
//! Booting takes nine seconds of computing under emulation, going on from the state a fraction of
//! one. The state is made once for an image and kept in the cache; the first test that wants it
//! makes it while the others wait.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::machine::Machine;
use super::seeds::Seeds;

/// The first process of the machine.
const INIT: &str = include_str!("init.sh");
/// A program that it runs.
const RESEED: &str = include_str!("reseed.c");
/// How long booting may take.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// Bytes per second at which QEMU may write the state: no bound.
const BANDWIDTH_MAX: u64 = 1 << 40;

/// CPUs of the machine. With two, emulated, the kernel computes half as much again: each waits for
/// locks that the other one holds while the host does not run it.
pub const CPUS: usize = 1;
/// What the console shows when the machine waits for its disks, with the places of its seeds.
const READY: &str = "PEER-READY ";

/// Arguments of QEMU for a machine with this image (`vmlinuz`, `initrd.zst`), without what differs
/// between one that boots and one that goes on.
pub fn arguments(image: &Path, initrd: &Path) -> Vec<String> {
    let kernel = image.join("vmlinuz").display().to_string();
    let cpus = CPUS.to_string();
    let words = "-accel tcg,thread=multi -cpu max -m 4096 -nographic -no-reboot \
        -nodefaults -serial stdio -monitor none -device virtio-rng-pci \
        -netdev user,id=n0 -device virtio-net-pci,netdev=n0";
    let mut out: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    // On a busy host the timer may look as if it did not work (check_timer,
    // arch/x86/kernel/apic/io_apic.c).
    let boot = "console=ttyS0 panic=-1 quiet loglevel=3 random.trust_cpu=on mitigations=off \
        no_timer_check";
    out.extend([
        "-kernel".to_owned(),
        kernel,
        "-append".to_owned(),
        boot.to_owned(),
    ]);
    out.extend(["-smp".to_owned(), cpus]);
    out.extend(["-initrd".to_owned(), initrd.display().to_string()]);
    out
}

/// What a machine that goes on needs. Nobody removes it as long as this lives.
pub struct State {
    /// What QEMU saved.
    pub memory: PathBuf,
    /// The initial RAM disk that it was booted with.
    pub initrd: PathBuf,
    /// The seeds of its random numbers.
    pub seeds: Seeds,
    /// Locked: shared by those that use the states, exclusive for one that makes some.
    _lock: File,
}

/// Where a state is kept. The memory comes last, when the others are there.
struct Files {
    memory: PathBuf,
    initrd: PathBuf,
    seeds: PathBuf,
}

/// The state of this image, made now if it is not in the cache.
///
/// # Panics
/// When it cannot be made.
pub fn of(image: &Path, cache: &Path) -> State {
    let directory = cache.join("peer");
    std::fs::create_dir_all(&directory).expect("a directory for the state of the peer");
    let name = image
        .file_name()
        .expect("the name of the image")
        .to_string_lossy();
    let key = format!("{name}-{:016x}", fingerprint(image));
    let lock = File::options()
        .create(true)
        .append(true)
        .open(directory.join("lock"));
    let lock = lock.expect("the lock of the peer's state");
    let files = Files {
        memory: directory.join(format!("{key}.memory")),
        initrd: directory.join(format!("{key}.initrd")),
        seeds: directory.join(format!("{key}.seeds")),
    };
    lock.lock_shared().expect("the lock of the peer's state");
    while !files.memory.exists() {
        lock.unlock().expect("the lock of the peer's state");
        lock.lock().expect("the lock of the peer's state");
        if !files.memory.exists() {
            remove_others(&directory, &format!("{name}-"));
            make(image, &files, &directory);
        }
        lock.unlock().expect("the lock of the peer's state");
        lock.lock_shared().expect("the lock of the peer's state");
    }
    let text = std::fs::read_to_string(&files.seeds).expect("the seeds of the peer");
    State {
        memory: files.memory,
        initrd: files.initrd,
        seeds: Seeds::parse(&text).expect("the seeds of the peer"),
        _lock: lock,
    }
}

/// Removes the states of other images of this name: of one that was renewed.
fn remove_others(directory: &Path, prefix: &str) {
    for entry in std::fs::read_dir(directory)
        .expect("the states of the peer")
        .flatten()
    {
        let old = entry.file_name();
        let key = old.to_string_lossy();
        // `image-2.4-KEY` is another image than `image-KEY`.
        let is_of_it = (key.strip_prefix(prefix)).is_some_and(|key| !key.contains('-'));
        if is_of_it {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Of everything that the state depends on.
fn fingerprint(image: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    (INIT, RESEED).hash(&mut hasher);
    arguments(image, Path::new("")).hash(&mut hasher);
    let version = Command::new(super::EMULATOR).arg("--version").output();
    version.expect("QEMU runs").stdout.hash(&mut hasher);
    for name in ["vmlinuz", "initrd.zst"] {
        let about = std::fs::metadata(image.join(name)).expect("the image of the peer");
        about.len().hash(&mut hasher);
        about.modified().expect("a time").hash(&mut hasher);
    }
    hasher.finish()
}

fn make(image: &Path, files: &Files, directory: &Path) {
    let scratch = tempfile::tempdir_in(directory).expect("a directory");
    std::fs::write(&files.initrd, initrd(image, scratch.path())).expect("the initial RAM disk");
    let mut machine = Machine::start(&arguments(image, &files.initrd), scratch.path());
    let until = Instant::now() + BOOT_TIMEOUT;
    let mut shown = Vec::new();
    let seeds = loop {
        match machine.line(until) {
            Ok(line) => shown.push(line),
            Err(_) => panic!("the peer does not boot:\n{}", shown.join("\n")),
        }
        let line = shown.last().map_or("", String::as_str);
        if let Some((_, seeds)) = line.split_once(READY) {
            break seeds;
        }
    };
    let known = Seeds::parse(seeds);
    assert!(known.is_some(), "the peer does not find its seeds: {seeds}");
    std::fs::write(&files.seeds, seeds).expect("the seeds of the peer");
    machine.ask("stop", &json!({}));
    machine.ask(
        "migrate-set-parameters",
        &json!({"max-bandwidth": BANDWIDTH_MAX}),
    );
    let memory = scratch.path().join("memory");
    let write = format!("exec:cat > '{}'", memory.display());
    machine.ask("migrate", &json!({"uri": write}));
    loop {
        let status = machine.ask("query-migrate", &json!({}))["status"].clone();
        match status.as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => panic!("QEMU does not save the state of the peer"),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    // QEMU waits for the program that writes before it says that it is done.
    std::fs::rename(&memory, &files.memory).expect("the state of the peer");
}

/// The image's initial RAM disk with our first process and its program: of archives that follow one
/// another the kernel takes the later file
/// (Documentation/driver-api/early-userspace/buffer-format.rst).
fn initrd(image: &Path, scratch: &Path) -> Vec<u8> {
    let root = scratch.join("root");
    std::fs::create_dir(&root).expect("a directory");
    std::fs::write(root.join("init"), INIT).expect("the first process");
    std::fs::write(scratch.join("reseed.c"), RESEED).expect("a program");
    let pack = "mkdir bin && cc -O1 -static -s -o bin/reseed ../reseed.c && chmod 755 init && \
        find . | cpio --quiet -o -H newc -R 0:0";
    let packed = Command::new("sh")
        .args(["-c", pack])
        .current_dir(&root)
        .output();
    let packed = packed.expect("a shell");
    let told = String::from_utf8_lossy(&packed.stderr);
    assert!(
        packed.status.success(),
        "the first process is not packed: {told}"
    );
    let mut out = std::fs::read(image.join("initrd.zst")).expect("the image of the peer");
    out.resize(out.len().next_multiple_of(4), 0);
    out.write_all(&packed.stdout).expect("memory");
    out
}
