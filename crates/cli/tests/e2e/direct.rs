//! Goal: programs that open files of a mount with `O_DIRECT` leave the caches out, and see what
//! others see who do not; files are cloned by `copy_file_range`, as `FICLONE` does not get through
//! the kernel's FUSE. Method: `dd`, `fio` and `cp` on mounts, the server's own figures of its cache
//! and of cloned blocks; zdb.

use std::fs::{File, OpenOptions, read, write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{OFlags, copy_file_range, ioctl_ficlone};
use rustix::io::Errno;

use crate::harness::{Server, can_mount, finds, run, text_of};
use crate::properties::{done, tank};

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 32 * MIB;

/// Bytes that the server keeps of blocks.
fn cached(server: &Server) -> u64 {
    let told = server.ok("info --memory --json");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let mut uses = told["uses"].as_array().expect("a list").iter();
    let blocks = uses.find(|one| one["user"] == "cache-blocks");
    blocks.expect("the cache")["bytes"].as_u64().expect("bytes")
}

/// A file that does not compress, outside the pool.
fn noise(server: &Server, name: &str, mib: u64) -> String {
    let path = server.text(name);
    let count = format!("count={mib}");
    let to = format!("of={path}");
    run("dd", &["if=/dev/urandom", &to, "bs=1M", &count]);
    path
}

fn dd(from: &str, to: &str, flag: &str) {
    let (from, to) = (format!("if={from}"), format!("of={to}"));
    run("dd", &[&from, &to, "bs=1M", "conv=notrunc", flag]);
}

fn open_direct(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(OFlags::DIRECT.bits() as i32);
    options.open(path).expect("a file")
}

fn read_at(file: &File, at: u64, length: usize) -> Vec<u8> {
    let mut found = vec![0; length];
    file.read_exact_at(&mut found, at).expect("read");
    found
}

#[test]
fn what_is_open_with_o_direct_leaves_the_caches_out() {
    if !can_mount() {
        return;
    }
    let server = tank();
    let source = noise(&server, "noise", FILE_BYTES / MIB);
    let back = server.text("back");
    let content = read(&source).expect("the noise");
    for (setting, is_past) in [("standard", true), ("disabled", false)] {
        server.ok(&format!("zfs set direct={setting} tank"));
        let file = server.text(&format!("mnt/{setting}"));
        let before = cached(&server);
        dd(&source, &file, "oflag=direct");
        server.ok("zpool sync");
        let written = cached(&server).saturating_sub(before);
        // From disk, as nothing is in the cache.
        server.ok("zpool export tank");
        server.ok(&format!("zpool import -d {} tank", server.text("disks")));
        let before = cached(&server);
        dd(&file, &back, "iflag=direct");
        let found = cached(&server).saturating_sub(before);
        assert!(read(&back).expect("a copy") == content, "{setting}");
        for (what, bytes) in [("written", written), ("read", found)] {
            match is_past {
                true => assert!(bytes < FILE_BYTES / 4, "{setting}, {what}: {bytes}"),
                false => assert!(bytes > FILE_BYTES / 2, "{setting}, {what}: {bytes}"),
            }
        }
    }
    done(&server);
}

#[test]
fn programs_with_and_without_o_direct_see_the_same() {
    if !can_mount() {
        return;
    }
    let server = tank();
    let path = server.path("mnt/f");
    let mut content = read(noise(&server, "noise", 4)).expect("the noise");
    write(&path, &content).expect("written");
    let direct = open_direct(&path);
    let mut options = OpenOptions::new();
    let buffered = options.read(true).write(true).open(&path).expect("a file");
    let length = content.len();
    for setting in ["standard", "always", "disabled"] {
        server.ok(&format!("zfs set direct={setting} tank"));
        for round in 0..8_u8 {
            // In the kernel's cache.
            assert!(read_at(&buffered, 0, length) == content, "{setting}");
            // Whole records, pages, and neither, which passes the cache.
            for (at, length) in [(0, 128 << 10), (300 << 10, 8 << 10), (1_000_000, 1000)] {
                let at = at + usize::from(round) * (128 << 10);
                content[at..at + length].fill(round);
                direct
                    .write_all_at(&content[at..at + length], at as u64)
                    .expect("written");
            }
            assert!(read_at(&buffered, 0, length) == content, "{setting}");
            assert!(read_at(&direct, 0, length) == content, "{setting}");
            let at = 2_000_000 + usize::from(round) * 3;
            content[at..at + 5000].fill(!round);
            buffered
                .write_all_at(&content[at..at + 5000], at as u64)
                .expect("written");
            assert!(read_at(&direct, 0, length) == content, "{setting}");
            assert!(
                read_at(&direct, 513, 511) == content[513..1024],
                "{setting}"
            );
            if round % 3 == 0 {
                server.ok("zpool sync");
            }
        }
    }
    direct.sync_all().expect("synced");
    drop((direct, buffered));
    done(&server);
}

#[test]
fn fio_finds_what_it_wrote_whatever_direct_says() {
    if !can_mount() {
        return;
    }
    if !finds("fio") {
        eprintln!("skipped: fio is not here");
        return;
    }
    let server = tank();
    for setting in ["standard", "always", "disabled"] {
        server.ok(&format!("zfs set direct={setting} tank"));
        for (name, blocks, is_direct) in [
            ("records", "128k-128k", true),
            ("pages", "4k-4k", true),
            ("mixed", "4k-300k", true),
            ("buffered", "4k-300k", false),
        ] {
            let directory = server.text(&format!("mnt/{setting}-{name}"));
            std::fs::create_dir(&directory).expect("a directory");
            run(
                "fio",
                &[
                    "--name=job",
                    &format!("--directory={directory}"),
                    &format!("--bsrange={blocks}"),
                    &format!("--direct={}", u8::from(is_direct)),
                    "--rw=randrw",
                    "--size=8M",
                    "--numjobs=2",
                    "--ioengine=psync",
                    "--verify=crc32c",
                    "--verify_fatal=1",
                    "--do_verify=1",
                ],
            );
        }
    }
    done(&server);
}

fn cloned_bytes(server: &Server) -> u64 {
    server.ok("zpool sync");
    let told = server.ok("zpool get -Hp -o value bcloneused tank");
    told.trim().parse().expect("a number")
}

fn cp(how: &str, from: &Path, to: &Path) -> (bool, String) {
    let mut program = Command::new("cp");
    program.arg(format!("--reflink={how}")).arg(from).arg(to);
    let output = program.env("LC_ALL", "C").output().expect("cp");
    (output.status.success(), text_of(&output))
}

#[test]
fn files_are_cloned_by_copy_file_range_and_not_by_ficlone() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create tank/other");
    let source = server.path("mnt/source");
    let content = read(noise(&server, "noise", 4)).expect("the noise");
    write(&source, &content).expect("written");
    server.ok("zpool sync");
    let from = File::open(&source).expect("a file");

    let path = server.path("mnt/ficlone");
    let to = File::create(&path).expect("a file");
    assert_eq!(ioctl_ficlone(&to, &from), Err(Errno::OPNOTSUPP));
    drop(to);
    let (is_done, said) = cp("always", &source, &server.path("mnt/always"));
    assert!(!is_done && said.contains("not supported"), "{said}");
    assert_eq!(cloned_bytes(&server), 0);

    // `cp` asks for FICLONE first, then for copy_file_range.
    let path = server.path("mnt/auto");
    assert_eq!(cp("auto", &source, &path), (true, String::new()));
    assert!(read(&path).expect("a clone") == content);
    assert!(
        cloned_bytes(&server) >= 4 * MIB,
        "{}",
        cloned_bytes(&server)
    );

    // Another filesystem is another mount: the kernel reads there and writes here.
    let before = cloned_bytes(&server);
    let path = server.path("mnt/other/auto");
    assert_eq!(cp("auto", &source, &path), (true, String::new()));
    assert!(read(&path).expect("a copy") == content);
    let path = server.path("mnt/other/range");
    let to = File::create(&path).expect("a file");
    let copied = copy_file_range(&from, None, &to, None, 1 << 20).expect("copied");
    assert!(read(&path).expect("a copy") == content[..copied]);
    assert_eq!(cloned_bytes(&server), before);
    drop((from, to));
    done(&server);
}
