//! Devices that fail under load: pools that stop, say so, hang nobody, and go on.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::{Server, can_mount, run, zdb_is_clean};

/// How long a command may take that must not wait for a pool. (Generous: machines of CI are slow.)
const AT_ONCE: Duration = Duration::from_secs(60);

/// A filesystem in memory that gets full.
pub struct Small(pub PathBuf);

impl Small {
    pub fn mount(path: PathBuf, size: &str) -> Self {
        std::fs::create_dir_all(&path).expect("a directory");
        let text = path.to_string_lossy();
        run(
            "mount",
            &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", &text],
        );
        Self(path)
    }

    pub fn resize(&self, size: &str) {
        let text = self.0.to_string_lossy();
        run("mount", &["-o", &format!("remount,size={size}"), &text]);
    }

    /// A sparse file in it.
    pub fn disk(&self, name: &str, bytes: u64) -> String {
        let path = self.0.join(name);
        std::fs::File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .expect("a sparse file");
        path.to_string_lossy().into_owned()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .output();
    }
}

/// Noise that does not compress.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

fn write_synced(path: &Path, data: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    file.write_all(data)?;
    file.sync_all()
}

/// Writes much, in the background, as long as the same filesystem is mounted there. An error comes
/// with how many files were synced before it.
pub fn fill(directory: &Path, files: u64) -> JoinHandle<Result<(), (u64, std::io::Error)>> {
    let device = std::fs::metadata(directory).expect("a directory").dev();
    let directory = directory.to_owned();
    std::thread::spawn(move || {
        for number in 0..files {
            let data = noise(100 + number, 8 << 20);
            let path = directory.join(format!("fill{number}"));
            let written = write_synced(&path, &data).and_then(|()| std::fs::metadata(&path));
            if written.map_err(|error| (number, error))?.dev() != device {
                // It is in the directory below.
                return Err((number, std::io::ErrorKind::NotConnected.into()));
            }
        }
        Ok(())
    })
}

pub fn filled(directory: &Path, files: u64) {
    for number in 0..files {
        let found = std::fs::read(directory.join(format!("fill{number}"))).expect("the file");
        assert!(
            found == noise(100 + number, 8 << 20),
            "fill{number} differs"
        );
    }
}

/// Runs it, and demands that it does not wait for anything.
fn at_once<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = run();
    let took = begin.elapsed();
    assert!(took < AT_ONCE, "{what} took {took:?}");
    result
}

pub fn until_suspended(server: &Server, pool: &str) {
    server.wait_until("the pool is suspended", || {
        server
            .ok(&format!("zpool list -H -o health {pool}"))
            .contains("SUSPENDED")
    });
}

#[test]
fn a_pool_whose_backing_filesystem_is_full_hangs_nobody_and_goes_on() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let small = Small::mount(server.path("small"), "100M");
    let disk = small.disk("d0", 1 << 30);
    let (root, other) = (server.path("mnt"), server.path("other"));
    let disks = server.disks(2, 1 << 30);
    let (healthy, unused) = (&disks[0], &disks[1]);
    std::fs::File::create(unused)
        .and_then(|file| file.set_len(64 << 20))
        .expect("a small one");
    server.ok(&format!("zpool create -m {} tank {disk}", root.display()));
    server.ok(&format!(
        "zpool create -m {} well {healthy}",
        other.display()
    ));
    let before = noise(1, 3 << 20);
    write_synced(&root.join("before"), &before).unwrap();
    let filling = fill(&root, 20);
    until_suspended(&server, "tank");

    let status = at_once("status", || server.ok("zpool status tank"));
    for line in [
        " state: SUSPENDED",
        "status: One or more devices are faulted in response to IO failures.",
        "action: Make sure the affected devices are connected, then run 'zpool clear'.",
        "msg/ZFS-8000-HC",
    ] {
        assert!(status.contains(line), "'{line}' is not in:\n{status}");
    }
    at_once("list", || server.ok("zpool list"));
    at_once("get", || server.ok("zpool get all tank"));
    at_once("zfs list", || server.ok("zfs list -r tank"));
    for refused in [
        "zpool export tank",
        "zpool destroy tank",
        "zpool set comment=x tank",
        "zfs create tank/new",
        "zfs snapshot tank@new",
        "zpool checkpoint tank",
        "zpool checkpoint -d tank",
        "zpool reguid tank",
        &format!("zpool add tank {unused}"),
        &format!("zpool add tank cache {unused}"),
    ] {
        let text = at_once(refused, || server.fails(refused));
        assert!(
            text.contains("pool I/O is currently suspended"),
            "{refused}: {text}"
        );
    }
    let untouched = std::fs::read(unused).unwrap();
    assert!(untouched.iter().all(|byte| *byte == 0), "it was labelled");
    for command in ["zpool sync tank", "zpool sync", "zpool sync well tank"] {
        let text = at_once(command, || server.fails(command));
        let told = "sync of pool 'tank' failed: pool I/O is currently suspended";
        assert!(text.contains(told) && !text.contains("well"), "{text}");
    }
    at_once("sync", || server.ok("zpool sync well"));
    // The other pool does not notice.
    at_once("a write to the other pool", || {
        write_synced(&other.join("file"), &noise(2, 1 << 20)).unwrap();
    });
    at_once("create in the other pool", || {
        server.ok("zfs create well/new")
    });
    // What is in memory can still be read.
    assert!(std::fs::read(root.join("before")).unwrap() == before);

    // Without a remedy it stays as it is.
    let text = at_once("clear", || server.fails("zpool clear tank"));
    assert!(text.contains("pool I/O is currently suspended"), "{text}");
    until_suspended(&server, "tank");
    assert!(!filling.is_finished());
    small.resize("1G");
    server.ok("zpool clear tank");
    filling.join().unwrap().expect("all is written in the end");
    let status = server.ok("zpool status tank");
    assert!(status.contains(" state: ONLINE"), "{status}");
    assert!(!status.contains("checkpoint:"), "{status}");
    filled(&root, 20);
    server.ok("zpool export tank");
    zdb_is_clean(&small.0, "tank");
    server.ok(&format!("zpool import -d {} tank", small.0.display()));
    assert!(std::fs::read(root.join("before")).unwrap() == before);
    filled(&root, 20);
    server.ok("zpool destroy tank");
}

#[test]
fn a_suspended_pool_is_left_by_force() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let small = Small::mount(server.path("small"), "100M");
    let root = server.path("mnt");
    let disk = small.disk("d0", 1 << 30);
    server.ok(&format!("zpool create -m {} tank {disk}", root.display()));
    let before = noise(1, 3 << 20);
    write_synced(&root.join("before"), &before).unwrap();
    let filling = fill(&root, 20);
    until_suspended(&server, "tank");
    at_once("export -f", || server.ok("zpool export -f tank"));
    // Whoever was writing hears of it.
    at_once("the writer", || assert!(filling.join().unwrap().is_err()));
    assert!(!server.ok("zpool list").contains("tank"));
    assert!(!root.join("before").exists(), "it is still mounted");
    small.resize("220M");
    server.ok(&format!("zpool import -d {} tank", small.0.display()));
    assert!(std::fs::read(root.join("before")).unwrap() == before);
    // Twice: unmounting by force first, then destroying.
    let filling = fill(&root, 40);
    until_suspended(&server, "tank");
    at_once("unmount -f", || server.ok("zfs unmount -f tank"));
    at_once("the writer", || assert!(filling.join().unwrap().is_err()));
    let text = at_once("mount", || server.fails("zfs mount tank"));
    assert!(text.contains("pool I/O is currently suspended"), "{text}");
    at_once("destroy -f", || server.ok("zpool destroy -f tank"));
    assert!(!server.ok("zpool list").contains("tank"));
}

#[test]
fn failmode_continue_answers_with_errors() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let small = Small::mount(server.path("small"), "100M");
    let root = server.path("mnt");
    // A block device whose writes fail with EIO, and so do its flushes.
    let device = server.attach(&[small.disk("d0", 1 << 30)]).remove(0);
    server.ok(&format!(
        "zpool create -o failmode=continue -m {} tank {device}",
        root.display()
    ));
    let before = noise(1, 3 << 20);
    write_synced(&root.join("before"), &before).unwrap();
    let (_, error) = at_once("a write that cannot be made durable", || {
        fill(&root, 20).join().unwrap().expect_err("an error")
    });
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    let status = server.ok("zpool status tank");
    assert!(status.contains("msg/ZFS-8000-JQ"), "{status}");
    assert!(std::fs::read(root.join("before")).unwrap() == before);
    small.resize("1G");
    server.ok("zpool clear tank");
    write_synced(&root.join("after"), &before).unwrap();
    assert!(server.ok("zpool status tank").contains(" state: ONLINE"));
    server.ok("zpool export tank");
    zdb_is_clean(&small.0, "tank");
    // By stopping the server, too.
    server.ok(&format!("zpool import -d {} tank", small.0.display()));
    assert!(std::fs::read(root.join("after")).unwrap() == before);
    server.stop();
}

#[test]
fn with_redundancy_a_failing_device_is_faulted_and_comes_back() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let small = Small::mount(server.path("small"), "60M");
    let tiny = Small::mount(server.path("tiny"), "2M");
    let root = server.path("mnt");
    let mut files = vec![small.disk("d0", 1 << 30), tiny.disk("log", 128 << 20)];
    let well = server.disks(1, 1 << 30).remove(0);
    let devices = server.attach(&files);
    server.ok(&format!(
        "zpool create -f -m {} tank mirror {} {well} log {}",
        root.display(),
        devices[0],
        devices[1]
    ));
    // Small synchronous writes, until the log device is full.
    for number in 0..60 {
        write_synced(&root.join(format!("small{number}")), &noise(number, 60_000)).unwrap();
    }
    fill(&root, 12).join().unwrap().expect("a mirror goes on");
    // Its labels can be written, so that it is the number of errors which tells.
    server.wait_until("a device with too many errors is faulted", || {
        let status = server.ok("zpool status tank");
        status.contains(" state: DEGRADED") && status.contains("FAULTED")
    });
    filled(&root, 12);
    // The devices are well again; what one of them missed is known.
    small.resize("1G");
    tiny.resize("1G");
    server.ok("zpool clear tank");
    assert!(server.ok("zpool status tank").contains(" state: ONLINE"));
    filled(&root, 12);
    for number in 0..60 {
        let found = std::fs::read(root.join(format!("small{number}"))).unwrap();
        assert!(found == noise(number, 60_000), "small{number} differs");
    }
    server.ok("zpool export tank");
    server.detach();
    let together = server.path("together");
    std::fs::create_dir_all(&together).unwrap();
    files.push(well);
    for (index, file) in files.iter().enumerate() {
        std::os::unix::fs::symlink(file, together.join(format!("d{index}"))).unwrap();
    }
    zdb_is_clean(&together, "tank");
}

/// Goal: a pool that stands still while a start replays its logs keeps no other pool away, is told
/// of, and goes on with that when it is cleared. Method: after a kill there is room for the import
/// and not for what the log holds.
#[test]
fn a_pool_that_stands_still_as_it_comes_holds_up_no_start() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let small = Small::mount(server.path("small"), "200M");
    let disk = small.disk("d0", 1 << 30);
    let disks = server.disks(2, 256 << 20);
    let root = server.path("mnt");
    server.ok(&format!(
        "zpool create -O compression=off -m {} tank {disk} log {}",
        root.display(),
        disks[0]
    ));
    server.ok(&format!(
        "zpool create -O mountpoint=none well {}",
        disks[1]
    ));
    server.ok("zpool sync");
    // Short enough to be in the log itself.
    let files: Vec<_> = (0..128).map(|seed| noise(seed, 30_000)).collect();
    let name = |index: usize| root.join(format!("logged{index}"));
    for (index, data) in files.iter().enumerate() {
        write_synced(&name(index), data).expect("synced");
    }
    server.kill_only();
    let leave_room = || {
        let used_kib = std::fs::metadata(&disk).expect("the disk").blocks() / 2;
        small.resize(&format!("{}k", used_kib + 1024));
    };
    leave_room();
    server.launch(&["daemon"]);
    let health = server.ok("zpool list -H -o name,health");
    assert!(health.contains("well\tONLINE"), "{health}");
    until_suspended(&server, "tank");
    let status = at_once("status", || server.ok("zpool status tank"));
    assert!(status.contains("state: SUSPENDED"), "{status}");
    assert!(
        server.log().contains("'zpool clear tank'"),
        "{}",
        server.log()
    );
    at_once("create", || server.ok("zfs create well/new"));
    // A stop does not wait for it either.
    at_once("a stop", || server.stop());
    leave_room();
    server.launch(&["daemon"]);
    until_suspended(&server, "tank");
    small.resize("200M");
    server.ok("zpool clear tank");
    server.wait_until("it is mounted", || name(0).exists());
    for (index, data) in files.iter().enumerate() {
        let found = std::fs::read(name(index)).expect("it was synced");
        assert!(found == *data, "logged{index}");
    }
    let health = server.ok("zpool list -H -o name,health");
    assert_eq!(health, "tank\tONLINE\nwell\tONLINE\n");
    server.ok("zpool export -a");
}
