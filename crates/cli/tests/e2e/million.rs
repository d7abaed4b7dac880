//! Goal: a pool with a million small files is right for OpenZFS, and what it leaves of them right
//! here. Method: half of the files in one directory, half in five hundred; contents that tell their
//! names, a quarter of them embedded in block pointers. OpenZFS scrubs, counts, compares a part,
//! removes some and adds some; here all that is left is compared, and then most of it removed. Only
//! with `MILLPOND_LONG=1`: it takes half an hour.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::harness::{Peer, PeerOptions, Server, can_mount, is_long, need, zdb_is_clean};
use crate::kill::content;

const FILES: usize = 1_000_000;
const FLAT: usize = FILES / 2;
const IN_ONE: usize = 1000;
/// Directories that OpenZFS removes.
const GONE: usize = 100;
/// Files that it adds.
const ADDED: usize = 1000;
const WORKERS: usize = 4;

fn path_of(index: usize) -> String {
    if index < FLAT {
        format!("flat/f{index}")
    } else {
        format!("tree/d{}/f{index}", (index - FLAT) / IN_ONE)
    }
}

fn content_of(index: usize) -> Vec<u8> {
    match index % 4 {
        0 => format!("this is file {index}\n").into_bytes(),
        _ => content(&path_of(index), 1 + index * 7919 % 1500),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Does something to every file, by several threads.
fn each(indices: std::ops::Range<usize>, act: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (act, indices) = (&act, indices.clone());
            scope.spawn(move || indices.skip(worker).step_by(WORKERS).for_each(act));
        }
    });
}

fn count(directory: &Path) -> usize {
    let (mut files, mut stack) = (0, vec![directory.to_path_buf()]);
    while let Some(directory) = stack.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_dir() {
                stack.push(entry.path());
            } else {
                files += 1;
            }
        }
    }
    files
}

#[test]
fn a_million_files_go_to_openzfs_and_back() {
    if !is_long() {
        eprintln!("skipped: half an hour, only with MILLPOND_LONG=1");
        return;
    }
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    if std::env::var_os("MILLPOND_KEEP").is_some() {
        server.directory.disable_cleanup(true);
    }
    let begin = Instant::now();
    let told = |what: &str| eprintln!("{:>6} s: {what}", begin.elapsed().as_secs());
    let disks = server.disks(3, 4 << 30);
    let devices = server.attach(&disks).join(" ");
    let altroot = server.text("mnt");
    let root = PathBuf::from(format!("{altroot}/million"));
    server.ok(&format!(
        "zpool create -o ashift=9 -R {altroot} million raidz1 {devices}"
    ));
    std::fs::create_dir(root.join("flat")).expect("a directory");
    for directory in 0..(FILES - FLAT) / IN_ONE {
        std::fs::create_dir_all(root.join(format!("tree/d{directory}"))).expect("a directory");
    }
    each(0..FILES, |index| {
        std::fs::write(root.join(path_of(index)), content_of(index)).expect("a file is written");
    });
    told("created");
    server.ok("zpool export million");
    server.detach();
    zdb_is_clean(&server.path("disks"), "million");
    told("clean for zdb");

    let inside = server.path("in");
    std::fs::create_dir_all(&inside).expect("a directory");
    let mut sums = String::new();
    for index in (0..FILES).step_by(19) {
        let _ = writeln!(
            sums,
            "{}  {}",
            hex(&Sha256::digest(content_of(index))),
            path_of(index)
        );
    }
    std::fs::write(inside.join("sums"), sums).expect("the sums");
    let attached: Vec<String> = (disks.iter().enumerate())
        .map(|(at, disk)| format!("{disk},d{at}"))
        .collect();
    let options = PeerOptions::default()
        .limit(Duration::from_secs(5400))
        .input(&inside);
    let text = peer.run_with(
        &attached,
        options,
        &format!(
            "set -e; zpool import -d /dev/disk/peer -R /mnt million; zpool scrub -w million; zpool \
             status million; \
             cd /mnt/million; echo \"files: $(find . -type f | wc -l)\"; \
             sha256sum -c /peer/sums >/tmp/sums && echo same || grep -v OK /tmp/sums | head; \
             for d in $(seq 0 {}); do rm -r tree/d$d; done; \
             mkdir theirs; for i in $(seq 1 {ADDED}); do echo $i >theirs/f$i; done; \
             cd /; zpool export million; zpool import -d /dev/disk/peer -N million; \
             zpool export million; echo done",
            GONE - 1
        ),
    );
    told("back from OpenZFS");
    for expected in [
        "scrub repaired 0B",
        "with 0 errors",
        "No known data errors",
        &format!("files: {FILES}"),
        "same",
        "done",
    ] {
        assert!(text.contains(expected), "{expected} is missing:\n{text}");
    }
    zdb_is_clean(&server.path("disks"), "million");

    let search = server.attach_to_import(&disks);
    server.ok(&format!("zpool import {search} -R {altroot} million"));
    let gone = FLAT..FLAT + GONE * IN_ONE;
    assert_eq!(count(&root), FILES - gone.len() + ADDED);
    each(0..FILES, |index| {
        let path = root.join(path_of(index));
        if gone.contains(&index) {
            assert!(!path.exists(), "{path:?} was removed");
        } else {
            let data = std::fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert!(data == content_of(index), "{path:?} differs");
        }
    });
    for index in 1..=ADDED {
        let data = std::fs::read_to_string(root.join(format!("theirs/f{index}"))).expect("a file");
        assert_eq!(data, format!("{index}\n"));
    }
    told("compared");
    each(0..FLAT, |index| {
        std::fs::remove_file(root.join(path_of(index))).expect("a file goes");
    });
    told("half of them removed");
    server.ok("zpool export million");
    server.detach();
    zdb_is_clean(&server.path("disks"), "million");
    told("clean for zdb");
}
