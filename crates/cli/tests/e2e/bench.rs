//! Goal: `millpond bench` has fio run the loads that it names, on directories, disks and mounts,
//! harms nothing that it is not told to, and leaves nothing behind, also when it is stopped.
//! Method: each profile for some seconds on small files and loop devices; no figure is compared,
//! only that there are some.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{MILLPOND, Server, can_mount, finds, need, run, text_of};

const IS_FAST: &str = "--warm-up 0 --seconds 1 --size 16M";

fn has_fio() -> bool {
    need("fio", finds("fio"))
}

/// A directory to be measured, and one for what else is made.
struct Room {
    data: TempDir,
    work: TempDir,
}

impl Room {
    fn new() -> Self {
        let base =
            std::env::var_os("MILLPOND_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let new = || TempDir::with_prefix_in("millpond-", &base).expect("a directory");
        Room {
            data: new(),
            work: new(),
        }
    }

    fn data(&self) -> &str {
        self.data.path().to_str().expect("UTF-8")
    }

    fn file(&self, name: &str) -> String {
        let path = self.work.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    /// `millpond bench` with these words and, first, what it makes in `work/tmp`.
    fn command(&self, words: &str) -> Command {
        let tmp = self.work.path().join("tmp");
        std::fs::create_dir_all(&tmp).expect("a directory");
        let mut command = Command::new(MILLPOND);
        command
            .arg("bench")
            .args(words.split_whitespace())
            .env("TMPDIR", tmp)
            .stdin(Stdio::null());
        command
    }

    fn output(&self, words: &str) -> Output {
        self.command(words).output().expect("millpond runs")
    }

    fn json(&self, words: &str) -> Value {
        let output = self.output(&format!("{words} --json"));
        assert!(output.status.success(), "{words}: {}", text_of(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn fails(&self, words: &str) -> String {
        let output = self.output(words);
        assert!(!output.status.success(), "{words}: {}", text_of(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Nothing is left where it was measured, nor where job files were.
    fn is_clean(&self) {
        for directory in [self.data.path().to_owned(), self.work.path().join("tmp")] {
            let left: Vec<_> = std::fs::read_dir(&directory)
                .expect("a directory")
                .map(|entry| entry.expect("an entry").path())
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

/// The figures of a report's loads, each of which has some.
fn loads(report: &Value) -> Vec<Value> {
    let tests = report["tests"].as_array().expect("loads").clone();
    for test in &tests {
        assert!(test["iops"].as_f64().expect("a figure") > 0.0, "{test}");
        let ways = [&test["reads"], &test["writes"]];
        assert!(ways.iter().any(|way| way["p99_ms"].is_number()), "{test}");
    }
    tests
}

#[test]
fn every_profile_runs_in_a_directory() {
    if !has_fio() {
        return;
    }
    let room = Room::new();
    let data = room.data();
    for (profile, words, count) in [
        ("iometer", "--depth 2", 8),
        ("vmware", "", 4),
        ("sio", "", 2),
        ("bonnie", "", 4),
    ] {
        let report = room.json(&format!("{profile} {data} {IS_FAST} {words}"));
        assert_eq!(loads(&report).len(), count, "{report}");
        assert_eq!(report["profile"], profile);
        assert_eq!(report["jobs"].as_array().expect("job files").len(), count);
        room.is_clean();
    }
    let words = "--rate 1MB --block 1M --buffer 60";
    let report = room.json(&format!("streams {data} {IS_FAST} {words}"));
    let streams = &report["streams"];
    // No stream is behind by a minute after a second, and there is room for eight of each.
    assert_eq!(streams["most"], 8, "{streams}");
    assert_eq!(streams["tries"].as_array().expect("tries").len(), 4);
    room.is_clean();
    let report = room.json(&format!("warm-up {data} {IS_FAST} --hours 0.0006"));
    let parts = report["warm_up"]["parts"].as_array().expect("parts");
    assert_eq!(parts.len(), 2, "{report}");
    room.is_clean();
}

/// A load is steady before it is measured, or said not to be; figures have their confidence and the
/// planner's beside them; tables, CSV and a page tell the same; two reports are compared.
#[test]
fn results_are_told_in_all_ways() {
    if !has_fio() {
        return;
    }
    let room = Room::new();
    let [first, second, page] = ["a.json", "b.json", "page.html"].map(|name| room.file(name));
    let data = room.data();
    let load = format!("vmware {data} --warm-up 4 --seconds 2 --size 16M --depth 4");
    let plan = "--against plan --disks 1x500GB:90seeks:72MB/s --layout stripe:1 --record 8K";
    let output = room.output(&format!("{load} {plan} --save {first} --html {page}"));
    let told = text_of(&output);
    assert!(output.status.success(), "{told}");
    for says in [
        "PLANNED",
        "real life, 60% random, 65% reads, 4 deep",
        "Ctrl-C stops at once",
    ] {
        assert!(told.contains(says), "{says}: {told}");
    }
    let report: Value =
        serde_json::from_slice(&std::fs::read(&first).expect("a report")).expect("JSON");
    for test in loads(&report) {
        assert!(test["is_steady"].is_boolean(), "{test}");
        assert!(test["iops_error"].is_number(), "{test}");
        assert!(
            test["client_cpu_per_gb"].as_f64().expect("a figure") > 0.0,
            "{test}"
        );
        assert!(
            !test["points"].as_array().expect("points").is_empty(),
            "{test}"
        );
    }
    // What the planner does not know is told by nothing.
    let planned = |index: usize| report["tests"][index]["planned_iops"].is_number();
    assert_eq!([0, 1, 2, 3].map(planned), [true, true, false, true]);
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(
        page.contains("<svg") && page.contains("real life"),
        "{page}"
    );
    let output = room.output(&format!("{load} --csv --save {second}"));
    let csv = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(csv.lines().count(), 5, "{csv}");
    let told = room.output(&format!("compare {first} {second}"));
    let told = text_of(&told);
    assert!(
        told.contains("RATIO") && told.contains("random 8K, 70% reads, 4 deep"),
        "{told}"
    );
    let told = room.json(&format!("compare {first} {second}"));
    assert_eq!(told["tests"].as_array().expect("loads").len(), 4);
    let wrong = room.fails(&format!("compare {first} {data}/none"));
    assert!(wrong.contains("none"), "{wrong}");
    room.is_clean();
}

#[test]
fn job_files_are_shown_and_nothing_is_done() {
    if !has_fio() {
        return;
    }
    let room = Room::new();
    let output = room.output(&format!("vmware {} --show", room.data()));
    let told = text_of(&output);
    for says in [
        "[fill]",
        "filename=/proc/self/fd/0",
        "rwmixread=65",
        "percentage_random=60",
        "iodepth=64",
    ] {
        assert!(told.contains(says), "{says}: {told}");
    }
    room.is_clean();
    let output = room.output("");
    assert!(
        text_of(&output).contains("\n  iometer "),
        "{}",
        text_of(&output)
    );
    for (words, says) in [
        ("iozone /tmp".to_owned(), "warm-up or streams"),
        ("iometer".to_owned(), "millpond bench iometer /tank/data"),
        (
            "iometer /nonexistent/place".to_owned(),
            "/nonexistent/place",
        ),
        (
            "iometer iscsi://user%secret@host/iqn.a/0".to_owned(),
            "LIBISCSI_CHAP_PASSWORD",
        ),
        (
            format!("iometer {} --fio /nonexistent/fio", room.data()),
            "apt install fio",
        ),
        (format!("iometer {} --size 900000T", room.data()), "--size"),
        (format!("iometer {} --against plan", room.data()), "--disks"),
        (
            format!("iometer {} --seconds 3601", room.data()),
            "3,600 seconds",
        ),
        (
            format!("streams {} --seconds 601", room.data()),
            "600 seconds",
        ),
        (format!("warm-up {} --hours 49", room.data()), "48 hours"),
        (
            format!("warm-up {} --save {}/no/where", room.data(), room.data()),
            "cannot be written",
        ),
    ] {
        let told = room.fails(&words);
        assert!(told.contains(says), "{words}: {told}");
    }
    let engines = run("fio", &["--enghelp"]);
    if !engines.lines().any(|line| line.trim() == "libiscsi") {
        let told = room.fails("iometer iscsi://127.0.0.1/iqn.2026-11.org.example:a/0");
        assert!(
            told.contains("libiscsi-dev") && told.contains("open-iscsi"),
            "{told}"
        );
    }
    room.is_clean();
}

/// What is on a disk stays unless somebody says that it may go, and never goes while it is used.
#[test]
fn disks_are_only_read_unless_they_may_be_destroyed() {
    if !has_fio() || !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists())
    {
        return;
    }
    let room = Room::new();
    let mut server = Server::start();
    let files = server.disks(1, 80 << 20);
    let device = server.attach(&files).remove(0);
    let bytes = || std::fs::read(&files[0]).expect("a disk");
    std::fs::write(&files[0], vec![7; 80 << 20]).expect("a disk");
    let before = bytes();
    // All of it: nothing else was said.
    let report = room.json(&format!("sio {device} --warm-up 0 --seconds 1"));
    assert_eq!(loads(&report).len(), 1, "{report}");
    assert_eq!(report["area"]["size_bytes"], 80 << 20, "{report}");
    assert_eq!(report["notes"][0]["note"], "read-only", "{report}");
    let told = room.fails(&format!("streams {device} {IS_FAST}"));
    assert!(told.contains("--destroy"), "{told}");
    let told = room.fails(&format!("log {device}"));
    assert!(told.contains("--destroy"), "{told}");
    assert!(before == bytes(), "it was only to be read");
    // A pool has it.
    server.ok(&format!("zpool create -O mountpoint=none tank {device}"));
    let told = room.fails(&format!("sio {device} {IS_FAST} --destroy"));
    assert!(told.contains("is not overwritten"), "{told}");
    server.ok("zpool export tank");
    let report = room.output(&format!("sio {device} {IS_FAST} --destroy"));
    let told = text_of(&report);
    assert!(report.status.success() && told.contains("'tank'"), "{told}");
    // A table of partitions is named, and goes.
    let mut table = vec![0; 512];
    table[440..444].copy_from_slice(b"disk");
    table[450] = 0x83;
    table[454..458].copy_from_slice(&2048u32.to_le_bytes());
    table[458..462].copy_from_slice(&4096u32.to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    let mut disk = bytes();
    disk[..1 << 20].fill(0);
    let end = disk.len() - (1 << 20);
    disk[end..].fill(0);
    disk[..512].copy_from_slice(&table);
    std::fs::write(&files[0], disk).expect("a disk");
    let report = room.output(&format!("sio {device} {IS_FAST} --destroy"));
    let told = text_of(&report);
    assert!(
        report.status.success() && told.contains("that is lost"),
        "{told}"
    );
    // So is a test of a log device.
    let words = "--seconds 1 --minutes 0.02 --size 16M --destroy";
    let report = room.json(&format!("log {device} {words}"));
    assert_eq!(report["facts"]["medium"], "virtual", "{report}");
    assert_eq!(report["verdict"], "unknown", "{report}");
    room.is_clean();
}

#[test]
fn a_log_device_is_tested_through_a_directory() {
    if !has_fio() {
        return;
    }
    let room = Room::new();
    let page = room.file("page.html");
    let words = format!("log {} --seconds 1 --minutes 0.02 --size 16M", room.data());
    let report = room.json(&format!("{words} --html {page}"));
    let steps = report["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 5, "{report}");
    for step in steps {
        let is_flushed = step["flushes"] == "each-write";
        assert_eq!(step["flushed"]["p50_ms"].is_number(), is_flushed, "{step}");
        assert!(step["iops"].as_f64().expect("a figure") > 0.0, "{step}");
    }
    assert!(report["verdict"].is_string(), "{report}");
    assert!(
        std::fs::read_to_string(page)
            .expect("a page")
            .contains("Log device")
    );
    let output = room.output(&words);
    assert!(
        text_of(&output).contains("writes of 128K, each flushed"),
        "{}",
        text_of(&output)
    );
    room.is_clean();
}

/// The server's share of the work is told as well.
#[test]
fn a_mounted_dataset_is_measured_with_its_server() {
    if !has_fio() || !can_mount() {
        return;
    }
    let room = Room::new();
    let server = Server::start();
    let disks = server.disks(1, 256 << 20);
    let mountpoint = server.text("data");
    server.ok(&format!(
        "zpool create -O mountpoint={mountpoint} tank {}",
        disks[0]
    ));
    let info = server.ok("info");
    let pid = info
        .split("runs as process ")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next())
        .expect("a number");
    let report = room.json(&format!("vmware {mountpoint} {IS_FAST} --server {pid}"));
    for test in loads(&report) {
        assert!(test["server_cpu_per_gb"].is_number(), "{test}");
    }
    let left = std::fs::read_dir(&mountpoint).expect("a mount").count();
    assert_eq!(left, 0);
    room.is_clean();
}

/// Waits for what another process does.
fn until(what: &str, child: &mut Child, mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        let ended = child.try_wait().expect("a child");
        assert!(ended.is_none(), "it ended before {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn interrupt(child: Child) -> Output {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
    child.wait_with_output().expect("its end")
}

/// Processes that work below a directory.
fn workers_below(directory: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let places = processes.filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok());
    places.filter(|place| place.starts_with(directory)).count()
}

#[test]
fn an_interrupt_stops_at_once_and_leaves_nothing() {
    if !has_fio() {
        return;
    }
    let room = Room::new();
    let words = format!(
        "iometer {} --warm-up 0 --seconds 3600 --size 16M",
        room.data()
    );
    let mut command = room.command(&words);
    // As a shell does with what it has in the foreground.
    command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().expect("millpond runs");
    let work = room.work.path().join("tmp");
    let second = |entry: std::fs::DirEntry| entry.path().join("run2").exists();
    until("its first load", &mut child, || {
        let mut entries = std::fs::read_dir(&work).expect("a directory").flatten();
        entries.any(second) && workers_below(&work) > 0
    });
    // Whoever owns the directory renames what is measured, and has its name lead elsewhere: that
    // is neither written to nor removed, and what was made is.
    let theirs = room.file("theirs");
    std::fs::create_dir(&theirs).expect("a directory");
    std::fs::write(format!("{theirs}/data"), "theirs").expect("a file");
    let mut entries = std::fs::read_dir(room.data()).expect("a directory");
    let own = entries.next().expect("what is measured").expect("an entry");
    std::fs::rename(own.path(), room.data.path().join("moved")).expect("renamed");
    std::os::unix::fs::symlink(&theirs, own.path()).expect("a link");
    let output = interrupt(child);
    assert!(!output.status.success());
    let told = text_of(&output);
    assert!(told.contains("stopped; nothing is left behind"), "{told}");
    std::fs::remove_file(own.path()).expect("the link stays");
    let data = std::fs::read(format!("{theirs}/data")).expect("a file");
    assert_eq!(data, b"theirs");
    assert_eq!(workers_below(&work), 0);
    room.is_clean();
}

#[test]
fn a_warm_up_goes_on_where_it_was_stopped() {
    if !has_fio() {
        return;
    }
    let room = Room::new();
    let save = room.file("warm.json");
    let words = format!(
        "warm-up {} --seconds 1 --size 16M --save {save}",
        room.data()
    );
    let mut command = room.command(&format!("{words} --hours 1"));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("millpond runs");
    let parts = || {
        let text = std::fs::read(&save).unwrap_or_default();
        let report: Value = serde_json::from_slice(&text).unwrap_or_default();
        let parts = report["warm_up"]["parts"].as_array().cloned();
        parts.unwrap_or_default()
    };
    until("its first part", &mut child, || !parts().is_empty());
    let output = interrupt(child);
    let told = text_of(&output);
    assert!(
        !output.status.success() && told.contains("goes on"),
        "{told}"
    );
    let before = parts();
    assert_eq!(
        std::fs::read_dir(room.data()).expect("a directory").count(),
        1
    );
    let wrong = room.fails(&format!("warm-up /tmp --save {save}"));
    assert!(wrong.contains("is a warm-up of"), "{wrong}");
    // Two seconds more than were done.
    let hours = (before.len() + 2) as f64 / 3600.0;
    let report = room.json(&format!("{words} --hours {hours}"));
    let after = report["warm_up"]["parts"].as_array().expect("parts");
    assert!(
        after.len() > before.len() && after[..before.len()] == before[..],
        "{report}"
    );
    assert!(report["warm_up"]["set"].is_null(), "{report}");
    room.is_clean();
    let done = room.fails(&format!("{words} --hours {hours}"));
    assert!(done.contains("is done"), "{done}");
}
