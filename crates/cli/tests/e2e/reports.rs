//! Goal: reports tell what clients really did, of each share and each client, and still do after
//! restarts and crashes. Method: programs that know how much they read and wrote (fio on a mount,
//! iscsi-perf, an initiator and an NFS client that move a known amount), and what the report says.

use std::fs;
use std::process::Command;

use crate::harness::{Server, can_mount, finds, need, run};
use crate::initiator::{Initiator, blocks};

/// Who iscsi-perf says that it is, and who our own initiator does.
const PERF: &str = "iqn.2026-11.test:perf";
const RAW: &str = "iqn.2025-01.test:raw";
const MIB: u64 = 1 << 20;

/// What `millpond reports` says of something: bytes read, bytes written, reads, writes.
fn told(server: &Server, what: &str, name: &str) -> Option<[u64; 4]> {
    let listed = server.ok("reports -Hp");
    let mut rows = listed
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let row = rows.find(|words| words[..2] == [what, name])?;
    let number = |at: usize| row[at].parse().ok();
    Some([number(2)?, number(3)?, number(4)?, number(5)?])
}

/// Whether a count is within two percent of what it should be.
fn is_close(told: u64, wanted: u64) -> bool {
    told.abs_diff(wanted) * 50 <= wanted
}

/// Waits until the report has what was read and written, and no more.
fn tells(server: &Server, what: &str, name: &str, [read, written]: [u64; 2]) {
    let mut last = None;
    server.wait_until(
        &format!("{what} {name}: {read} read, {written} written"),
        || {
            last = told(server, what, name);
            last.is_some_and(|all| all[0] * 50 >= read * 49 && all[1] * 50 >= written * 49)
        },
    );
    let all = last.expect("a row");
    let is_told = is_close(all[0], read) && is_close(all[1], written);
    assert!(
        is_told,
        "{what} {name}: {read} {written}, but the report has {all:?}"
    );
}

/// Bytes that fio says it has read and written in a file of so many bytes.
fn fio(file: &str, way: &str, bytes: u64) -> u64 {
    let words = [
        "--name=known",
        &format!("--filename={file}"),
        &format!("--rw={way}"),
        &format!("--size={bytes}"),
        "--bs=128k",
        "--ioengine=psync",
        "--end_fsync=1",
        "--output-format=json",
    ];
    let printed = run("fio", &words);
    let from = printed.find('{').expect("JSON");
    let told: serde_json::Value = serde_json::from_str(&printed[from..]).expect("JSON of fio");
    let of_job = &told["jobs"][0][if way == "read" { "read" } else { "write" }];
    of_job["io_bytes"].as_u64().expect("bytes")
}

/// Reads a unit for so many seconds; the bytes that iscsi-perf says it has read.
fn iscsi_perf(url: &str, seconds: u64) -> u64 {
    const BLOCKS: u64 = 128;
    let (time, size) = (seconds.to_string(), BLOCKS.to_string());
    let words = ["-i", PERF, "-b", &size, "-m", "8", "-t", &time, url];
    let printed = run("iscsi-perf", &words);
    let (_, after) = printed.rsplit_once("iops average ").expect("an average");
    let average = after.split(' ').next().expect("a number");
    average.parse::<u64>().expect("a number") * seconds * BLOCKS * 512
}

#[test]
fn reports_have_what_clients_say_they_did() {
    let has_tools = ["fio", "iscsi-perf", "nfs-cp", "nfs-cat"].into_iter();
    if !can_mount() || !has_tools.clone().all(|tool| need(tool, finds(tool))) {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(2, 1 << 30);
    let at = server.text("tank");
    server.ok(&format!(
        "zpool create -m {at} tank {} log {}",
        disks[0], disks[1]
    ));
    server.ok("zfs create tank/files");
    server.ok("zfs create -o sharenfs=rw=127.0.0.1,no_root_squash tank/nfs");
    server.ok("zfs create -V 64M -o millpond:iscsi=on tank/vol");
    let info = server.ok("info");
    let iqn = info.lines().find_map(|line| line.strip_prefix("iscsi:"));
    let iqn = iqn.and_then(|rest| rest.split_whitespace().next());
    let iqn = iqn.unwrap_or_else(|| panic!("no target in {info}"));
    let portal = format!("127.0.0.1:{}", server.iscsi_port);

    // What each says that it did.
    let file = format!("{at}/files/known");
    let written = fio(&file, "write", 96 * MIB);
    assert_eq!(written, 96 * MIB);
    // The kernel has the pages of what was written; another mount has not.
    server.ok("zfs unmount tank/files");
    server.ok("zfs mount tank/files");
    let read = fio(&file, "read", 96 * MIB);
    let of_perf = iscsi_perf(&format!("iscsi://{portal}/{iqn}/0"), 5);
    let mut raw = Initiator::log_in(&portal, iqn, 1).expect("a session");
    let data = vec![7; 128 << 10];
    for n in 0..100u32 {
        raw.does(&blocks(0x2a, 0, 256 * n, 256), 0, &data);
    }
    for n in 0..40u32 {
        raw.does(&blocks(0x28, 0, 256 * n, 256), 128 << 10, &[]);
    }
    let (raw_read, raw_written) = (40 * (128 << 10), 100 * (128 << 10));
    // It is gone before anybody counts what it did.
    drop(raw);
    let local = server.text("local");
    fs::write(&local, vec![9; 24 * MIB as usize]).expect("a file");
    let port = server.nfs_port;
    let url = format!("nfs://127.0.0.1{at}/nfs/copy?version=3&nfsport={port}&mountport={port}");
    run("nfs-cp", &[&local, &url]);
    let copy = Command::new("nfs-cat").arg(&url).output().expect("nfs-cat");
    assert_eq!(copy.stdout.len() as u64, 24 * MIB);

    // What the report says.
    tells(&server, "mount", "tank/files", [read, written]);
    let share = "tank/vol (iscsi)";
    tells(&server, "client", &format!("{share} {PERF}"), [of_perf, 0]);
    let of_raw = [raw_read, raw_written];
    tells(&server, "client", &format!("{share} {RAW}"), of_raw);
    tells(&server, "share", share, [of_perf + raw_read, raw_written]);
    let of_nfs = [24 * MIB, 24 * MIB];
    tells(&server, "client", "tank/nfs (nfs) 127.0.0.1", of_nfs);
    tells(&server, "share", "tank/nfs (nfs)", of_nfs);
    // All that was written is on the devices, and more than that.
    let [_, of_pool, _, writes] = told(&server, "pool", "tank").expect("a pool");
    assert!(of_pool >= 96 * MIB && writes > 0, "{of_pool} in {writes}");
    let of_log = told(&server, "device", &disks[1]).expect("the log device");
    assert!(of_log[1] > 0, "{of_log:?}");
    log_was_used(&server);

    // A restart keeps it, so does every span; a crash costs nothing that is older than two minutes.
    let before = told(&server, "share", share);
    server.stop();
    assert!(stored_bytes(&server) > 0);
    server.launch(&["daemon"]);
    assert_eq!(told(&server, "share", share), before);
    for span in ["day", "week", "month", "year"] {
        let listed = server.ok(&format!("reports tank/vol -Hp --last {span}"));
        let read = before.expect("a share")[0].to_string();
        assert!(listed.contains(&format!("\t{read}\t")), "{span}: {listed}");
    }
    server.kill();
    // What a crash left half, and what a disk lost.
    let mut files = fs::read_dir(server.state().join("figures"))
        .expect("figures")
        .map(|entry| entry.expect("a file").path());
    let (torn, cut) = (files.next().expect("one"), files.next().expect("two"));
    let mut bytes = fs::read(&torn).expect("a file");
    bytes[4096..20_000].fill(0xa5);
    fs::write(&torn, &bytes).expect("a file");
    fs::write(&cut, &bytes[..5000]).expect("a file");
    server.launch(&["daemon"]);
    let listed = server.ok("reports -H");
    assert!(listed.lines().count() > 5, "{listed}");
    assert!(server.log().contains("begins anew"), "{}", server.log());
    let unknown = server.fails("reports nobody");
    assert!(unknown.contains("no report of 'nobody'"), "{unknown}");
    server.ok("zpool export tank");
}

/// The most that the intent logs held is told, though they hold nothing for long.
fn log_was_used(server: &Server) {
    let told = server.ok("reports tank --json");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let reports = told["reports"].as_array().expect("reports").iter();
    let mut figures = reports.filter(|report| report["subject"]["of"] == "pool");
    let figures = figures.next().expect("the pool")["figures"].as_array();
    let mut figures = figures.expect("figures").iter();
    let log = figures.find(|one| one["figure"] == "log-bytes");
    let most = log.and_then(|log| log["most"].as_f64()).expect("log-bytes");
    assert!(most >= 4096.0, "{most}");
}

/// Bytes of the files that figures are kept in.
fn stored_bytes(server: &Server) -> u64 {
    let files = fs::read_dir(server.state().join("figures")).expect("figures");
    let all = files.map(|entry| entry.expect("a file").metadata().expect("a file"));
    all.map(|file| file.len()).sum()
}
