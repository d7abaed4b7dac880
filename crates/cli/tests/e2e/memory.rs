//! Goal: the server's memory stays within `--cache`, but for a fifth and 200 MB more, whatever
//! number of files is made and of filesystems is walked. Method: 600,000 new files, then 100
//! filesystems whose files are all looked at and read; what the kernel tells of the process at its
//! largest. Only with `MILLPOND_LONG=1`: it takes some ten minutes. Who has how much is told by
//! name, and adds up to what the kernel tells.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{Server, can_mount, is_long};

const CACHE_BYTES: u64 = 512 << 20;
const LIMIT_BYTES: u64 = CACHE_BYTES / 5 * 6 + 200_000_000;
const FILES: usize = 600_000;
const IN_ONE: usize = 1000;
const THREADS: usize = 4;
const FILESYSTEMS: usize = 100;
/// Files of each filesystem that is walked.
const WALKED: usize = 3000;

/// A figure of the process, in bytes, as `/proc/PID/status` has it.
fn bytes_of(server: &Server, name: &str) -> u64 {
    let lock = server.state().join("millpond.lock");
    let process = std::fs::read_to_string(lock).expect("the server's process");
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.trim()));
    let status = status.expect("what the kernel tells of the server");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|text| text.split_whitespace().next());
    kib.and_then(|text| text.parse::<u64>().ok())
        .expect("a number")
        << 10
}

/// What is resident now and was at most; the latter is within the limit.
fn check(server: &Server, after: &str) {
    let (now, most) = (bytes_of(server, "VmRSS:"), bytes_of(server, "VmHWM:"));
    eprintln!(
        "{after}: {} MB now, {} MB at most",
        now / 1_000_000,
        most / 1_000_000
    );
    assert!(most < LIMIT_BYTES, "{most} bytes after {after}");
}

/// Makes so many files, [`IN_ONE`] in each directory, several directories at a time.
fn fill(directory: &Path, files: usize) {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let first = next.fetch_add(IN_ONE, Ordering::Relaxed);
            if first >= files {
                break;
            }
            let within = directory.join(format!("d{}", first / IN_ONE));
            std::fs::create_dir(&within).expect("a directory");
            for number in first..files.min(first + IN_ONE) {
                let file = within.join(format!("f{number}"));
                std::fs::write(file, number.to_string()).expect("a file is written");
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
}

/// Looks at all files, and reads them; how many there are.
fn walk(directory: &Path) -> usize {
    let mut files = 0;
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.metadata().expect("attributes").is_dir() {
            files += walk(&path);
        } else {
            std::fs::read(&path).expect("its content");
            files += 1;
        }
    }
    files
}

#[test]
fn memory_stays_within_the_cache_whatever_the_number_of_files() {
    if !is_long() {
        eprintln!("skipped: ten minutes, only with MILLPOND_LONG=1");
        return;
    }
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    server.launch(&["daemon", "--cache=512M"]);
    let disk = &server.disks(1, 16 << 30)[0];
    let mount = PathBuf::from(server.text("mnt"));
    server.ok(&format!("zpool create -m {} tank {disk}", mount.display()));
    server.ok("zfs create tank/many");
    for number in 0..FILESYSTEMS {
        server.ok(&format!("zfs create tank/fs{number}"));
    }
    check(&server, "the filesystems were made");
    fill(&mount.join("many"), FILES);
    check(&server, "the files were made");
    for number in 0..FILESYSTEMS {
        fill(&mount.join(format!("fs{number}")), WALKED);
    }
    check(&server, "those of the others were made");
    // Nothing is known any more, of what is walked and read then.
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    for number in 0..FILESYSTEMS {
        assert_eq!(walk(&mount.join(format!("fs{number}"))), WALKED);
    }
    check(&server, "the filesystems were walked");
    assert_eq!(walk(&mount.join("many")), FILES);
    check(&server, "the many files were walked");
    server.ok("zpool destroy tank");
    check(&server, "the pool was destroyed");
}

#[test]
fn who_has_how_much_memory_is_told_by_name_and_adds_up() {
    let mut server = Server::prepare();
    server.launch(&["daemon", "--cache=64M"]);
    let disk = &server.disks(1, 256 << 20)[0];
    server.ok(&format!("zpool create -m none tank {disk}"));
    server.ok("zfs create tank/fs");
    server.ok("zfs snapshot tank/fs@a");
    let told = server.ok("info --memory --json");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let uses = told["uses"].as_array().expect("a list");
    let of = |user: &str| {
        let found = uses.iter().find(|one| one["user"] == user);
        found.unwrap_or_else(|| panic!("no {user} in {told}"))
    };
    for (user, counts_in_cache) in [
        ("cache-blocks", true),
        ("objects", true),
        ("cache-tables", false),
        ("free-space", false),
        ("datasets", false),
        ("program", false),
    ] {
        assert!(number(&of(user)["bytes"]) > 0, "{user}: {told}");
        assert_eq!(of(user)["counts_in_cache"], counts_in_cache, "{user}");
    }
    for bounded in ["cache-blocks", "objects", "dirty", "spare-buffers", "iscsi"] {
        let one = of(bounded);
        assert!(
            number(&one["bytes"]) <= number(&one["bound_bytes"]),
            "{one}"
        );
    }
    let sum: u64 = uses.iter().map(|one| number(&one["bytes"])).sum();
    let resident = number(&told["resident_bytes"]);
    assert_eq!(
        number(&told["unexplained_bytes"]),
        resident.saturating_sub(sum)
    );
    assert!(number(&told["cache_limit_bytes"]) <= 64 << 20);
    assert_eq!(number(&told["cache_limit_max_bytes"]), 64 << 20);
    let table = server.ok("info --memory");
    for name in [
        "NAME",
        "cache",
        "dirty",
        "datasets",
        "unexplained",
        "resident",
    ] {
        assert!(table.contains(name), "{table}");
    }
    // It says nothing by itself.
    assert!(server.fails("info --json").contains("--memory"));
}
