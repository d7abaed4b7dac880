//! The words that programs match: what `zfs` and `zpool` say and how they end, condition by
//! condition, as OpenZFS 2.4 does (`libzfs_error_description`, `zfs_standard_error_fmt`,
//! lib/libzfs/libzfs_util.c; libzfs_dataset.c, libzfs_pool.c and libzfs_sendrecv.c beside it;
//! cmd/zfs/zfs_main.c; cmd/zpool/zpool_main.c). The first line and the status are OpenZFS's to the
//! letter; sentences that help come behind them.
//!
//! The rows of the tables `more` and `programs` are what OpenZFS 2.4.4 said in a virtual machine,
//! on pools made by the same commands, in this order.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use crate::harness::{MILLPOND, Server, can_mount};

/// What they say of what they refuse, on standard error: the status, the command, and below them
/// the first lines. `t` and `q` are the pools of [`bed`].
const ZFS: &str = include_str!("words_zfs.txt");

/// The same of `zpool`: `m` is a mirror of D0 and D1, `s` is on D2; D3, D4 and D6 are free, D5 is
/// small, and D9 is not there.
const ZPOOL: &str = include_str!("words_zpool.txt");

/// More of what `zfs` says on the same pools, in this order.
const MORE_ZFS: &str = include_str!("words_more_zfs.txt");

/// What is said of receives, of new datasets and of clones.
const RECEIVED: &str = include_str!("words_received.txt");

/// More of what `zpool` says on the same pools, in this order.
const MORE_ZPOOL: &str = include_str!("words_more_zpool.txt");

/// What is said of filesystems that are mounted, below MNT.
const MOUNTED: &str = include_str!("words_mounted.txt");

/// What Proxmox's plugin, go-zfs (Docker), Incus, Ansible's modules, zrepl, sanoid and syncoid,
/// znapzend, pyznap, telegraf and exporters ask for, as they ask it, with what they then read; and
/// what each command says of a pool that is not there.
const PROGRAMS: &str = include_str!("words_programs.txt");

/// What programs look for in how a command is used, to learn what it can.
const FORMS: &[(&str, &[&str])] = &[
    ("send", &["-t <receive_resume_token>"]),
    ("receive", &["-A <filesystem|volume>"]),
    ("destroy", &["<filesystem|volume>@<snap>[%<snap>][,...]"]),
    ("load-key", &["[-L <keylocation>]"]),
    ("unload-key", &["<-a | filesystem|volume>"]),
    ("change-key", &["-o keylocation=<value>"]),
];

fn run(server: &Server, words: &str) -> Output {
    server.command(&words.split(' ').collect::<Vec<_>>())
}

/// Runs a command with something at its standard input.
fn with_input(server: &Server, words: &str, input: &[u8]) -> Output {
    let mut child = Command::new(MILLPOND)
        .args(words.split(' '))
        .env("MILLPOND_STATE", server.state())
        .env_remove("ZPOOL_SCRIPTS_AS_ROOT")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    // It may not want all of it.
    let _ = pipe.write_all(input);
    drop(pipe);
    child.wait_with_output().expect("the command ends")
}

/// The same of a row that may say what it reads: `zfs receive t/x < t/a@1` reads that `zfs send`.
fn said_of(server: &Server, words: &str) -> Output {
    match words.split_once(" < ") {
        None => run(server, words),
        Some((words, sent)) => {
            let stream = run(server, &format!("zfs send {sent}"));
            let said = String::from_utf8_lossy(&stream.stderr);
            assert!(stream.status.success(), "zfs send {sent}: {said}");
            with_input(server, words, &stream.stdout)
        }
    }
}

/// What is wrong with what a command said; nothing where it is as expected.
fn differs(words: &str, output: &Output, status: i32, lines: &str) -> Option<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    let found = said.lines().take(lines.lines().count());
    let is_right = output.status.code() == Some(status) && found.eq(lines.lines());
    let code = output.status.code();
    (!is_right).then(|| format!("{words}\n  wanted {status}: {lines}\n  found {code:?}: {said}"))
}

/// A command, the status that it ends with, the first lines of what it says as an error, and of
/// what it prints.
struct Row {
    words: String,
    status: i32,
    lines: String,
    printed: String,
}

/// The rows of a table; what `#` begins is for readers, and `>` what is printed.
fn rows(table: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let lines = table.lines().filter(|line| !line.is_empty());
    for line in lines.filter(|line| !line.starts_with('#')) {
        if let Some(said) = line.strip_prefix("  ") {
            let row = rows.last_mut().expect("a command");
            row.lines += &format!("{said}\n");
            continue;
        }
        if let Some(printed) = line.strip_prefix("> ") {
            let row = rows.last_mut().expect("a command");
            row.printed += &format!("{printed}\n");
            continue;
        }
        let (status, words) = line.split_once(' ').expect("a status and a command");
        rows.push(Row {
            words: words.to_owned(),
            status: status.parse().expect("a status"),
            lines: String::new(),
            printed: String::new(),
        });
    }
    rows
}

/// Runs all commands of a table, and fails with all that are not as expected.
fn all_are_told(server: &Server, table: &str) {
    let place = |name: &str| server.path(name).to_string_lossy().into_owned();
    let (disks, mounts, files) = (place("disks"), place("mnt"), place("files"));
    let with_paths = |text: &str| {
        // The path of a temporary directory may have a disk's name in it.
        let text = (0..10).fold(text.to_owned(), |text, at| {
            text.replace(&format!("D{at}"), &format!("DISKS/d{at}"))
        });
        let others = [("DISKS", &disks), ("MNT", &mounts), ("FILES", &files)];
        others
            .into_iter()
            .fold(text, |text, (name, path)| text.replace(name, path))
    };
    let wrong = rows(table).into_iter().filter_map(|row| {
        let (words, lines) = (with_paths(&row.words), with_paths(&row.lines));
        let output = said_of(server, &words);
        let wrong = differs(&words, &output, row.status, &lines);
        wrong.or_else(|| {
            let (expected, found) = (with_paths(&row.printed), output.stdout);
            let found = String::from_utf8_lossy(&found);
            let lines = found.lines().take(expected.lines().count());
            let is_right = lines.eq(expected.lines());
            (!is_right).then(|| format!("{words}\n  wanted: {expected}\n  found: {found}"))
        })
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A pool `t` with something of each kind, and another pool, `q`; nothing is mounted.
fn bed() -> Server {
    let server = Server::start();
    let disks = server.disks(3, 128 << 20);
    let key = server.path("key");
    std::fs::write(&key, "secretsecret").expect("a key");
    server.ok(&format!(
        "zpool create -m none t mirror {} {}",
        disks[0], disks[1]
    ));
    server.ok(&format!("zpool create -m none q {}", disks[2]));
    for words in [
        "zfs create t/a",
        "zfs create t/a/kid",
        "zfs create t/b",
        "zfs create -s -V 32M t/v",
        "zfs snapshot t/a@1",
        "zfs snapshot t/a@2",
        "zfs snapshot t/b@held",
        "zfs snapshot t/b@too",
        "zfs snapshot t/b@free",
        "zfs hold keep t/b@held t/b@too",
        "zfs clone t/a@1 t/clone",
        "zfs bookmark t/a@1 t/a#m",
    ] {
        server.ok(words);
    }
    let key = key.display();
    server.ok(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{key} t/enc"
    ));
    server.ok("zfs create t/enc/kid");
    server
}

/// Goal: programs that match OpenZFS's words find them, and its statuses. Method: each condition of
/// a table.
#[test]
fn zfs_says_what_openzfs_says() {
    let server = bed();
    all_are_told(&server, ZFS);
    for (command, forms) in FORMS {
        let output = run(&server, &format!("zfs {command}"));
        let said = String::from_utf8_lossy(&output.stderr);
        for form in *forms {
            assert!(said.contains(form), "{command}: {said}");
        }
    }
    let output = run(&server, "zfs --help");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.starts_with("usage: zfs command args ..."),
        "{said}"
    );
}

/// The same of more conditions, each of which OpenZFS was asked for.
#[test]
fn zfs_says_more_of_what_openzfs_says() {
    let server = bed();
    std::fs::create_dir(server.path("files")).expect("a directory");
    for (name, text) in [
        ("bad.lua", "for"),
        ("bad2.lua", "x.y()"),
        ("err.lua", "error(\"boo\")"),
        ("ok.lua", "return 1"),
        ("write.lua", "return zfs.sync.snapshot(\"t/a@prog\")"),
    ] {
        std::fs::write(server.path("files").join(name), text).expect("a program");
    }
    all_are_told(&server, MORE_ZFS);
}

/// Goal: receives that are refused say so as OpenZFS's do. Method: a table of streams and targets.
#[test]
fn receives_say_what_openzfs_says() {
    all_are_told(&bed(), RECEIVED);
}

/// Goal: what programs ask for is answered as OpenZFS answers it. Method: their command lines.
#[test]
fn programs_read_what_openzfs_prints() {
    all_are_told(&bed(), PROGRAMS);
}

/// Goal: what is said of filesystems that are mounted, in use, or cannot be mounted. Method: each
/// condition of a table, on filesystems below a directory of the test.
#[test]
fn mounted_filesystems_are_told_of_as_openzfs_tells() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 256 << 20);
    let mounts = server.path("mnt");
    std::fs::create_dir(&mounts).expect("a directory");
    let at = mounts.display();
    server.ok(&format!("zpool create -m {at}/p p {}", disks[0]));
    for words in [
        "zfs create p/a",
        "zfs create p/b",
        "zfs create -o canmount=off p/off",
        "zfs create -o mountpoint=none p/none",
        "zfs create -o mountpoint=legacy p/legacy",
        "zfs create -o canmount=noauto p/noauto",
        "zfs create -o canmount=noauto -o overlay=off p/full",
        "zfs create -o canmount=noauto p/file",
        "zfs create -s -V 8M p/v",
        "zfs create p/busy",
        "zfs create p/busy/kid",
    ] {
        server.ok(words);
    }
    for directory in ["p/full", "p/full2", "p/a/dir"] {
        std::fs::create_dir_all(mounts.join(directory)).expect("a directory");
    }
    for file in ["p/full/x", "p/file", "p/full2/x", "p/busy/x"] {
        std::fs::write(mounts.join(file), "").expect("a file");
    }
    server.ok("zfs snapshot -r p@1");
    std::fs::write(mounts.join("p/a/new"), "").expect("a file");
    server.ok("zfs snapshot p/a@2");
    let used = File::open(mounts.join("p/busy/x")).expect("a file");
    all_are_told(&server, MOUNTED);
    drop(used);
}

/// A pool `m` that is a mirror, and `s` of one disk; D5 is smaller, D7 much too small.
fn pools() -> Server {
    let server = Server::start();
    let disks = server.disks(8, 128 << 20);
    for (at, bytes) in [(5, 64 << 20), (7, 1 << 20)] {
        let small = File::options().write(true).open(&disks[at]);
        small
            .and_then(|file| file.set_len(bytes))
            .expect("a small one");
    }
    server.ok(&format!(
        "zpool create -m none m mirror {} {}",
        disks[0], disks[1]
    ));
    server.ok(&format!("zpool create -m none s {}", disks[2]));
    server
}

/// More of `zpool`, each of which OpenZFS was asked for.
#[test]
fn zpool_says_more_of_what_openzfs_says() {
    all_are_told(&pools(), MORE_ZPOOL);
}

/// The same of `zpool`.
#[test]
fn zpool_says_what_openzfs_says() {
    let server = Server::start();
    let disks = server.disks(7, 128 << 20);
    let small = File::options().write(true).open(&disks[5]);
    small
        .and_then(|file| file.set_len(64 << 20))
        .expect("a small one");
    server.ok(&format!(
        "zpool create -m none m mirror {} {}",
        disks[0], disks[1]
    ));
    server.ok(&format!("zpool create -m none s {}", disks[2]));
    all_are_told(&server, ZPOOL);
    let output = run(&server, "zpool --help");
    let said = String::from_utf8_lossy(&output.stdout);
    let begin = "usage: zpool command args ...";
    assert!(output.status.success() && said.starts_with(begin), "{said}");
}

/// Goal: what is said of streams that break off, of what they go on with, and of snapshots that are
/// being sent. Method: a volume with content, sent and received in part.
#[test]
fn broken_streams_say_how_they_go_on() {
    if !can_mount() {
        return;
    }
    let server = bed();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // It does not compress, and is more than may be under way to who does not read.
    let words = std::iter::repeat_with(next).take(2 << 20);
    let content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    File::options()
        .write(true)
        .open(server.state().join("zvol/t/v"))
        .and_then(|mut file| {
            file.write_all(&content)?;
            file.sync_all()
        })
        .expect("the volume");
    server.ok("zfs snapshot t/v@1");
    server.ok("zfs snapshot t/v@2");

    // Somebody sends it, and holds another one.
    let mut sending = server.begin(&["zfs", "send", "t/v@1"]);
    let mut stream = sending.stdout.take().expect("a pipe");
    stream.read_exact(&mut [0; 64]).expect("the stream begins");
    server.ok("zfs hold keep t/v@2");
    for (words, lines) in [
        (
            "zfs destroy t/v@1",
            "cannot destroy snapshot t/v@1: dataset is busy",
        ),
        (
            "zfs destroy t/v@1,2",
            "cannot destroy snapshot t/v@1: dataset is busy\n\
             cannot destroy snapshot t/v@2: it's being held. Run 'zfs holds -r t/v@2' to see \
             holders.",
        ),
    ] {
        let output = run(&server, words);
        assert_eq!(differs(words, &output, 1, lines), None);
    }
    server.ok("zfs release keep t/v@2");
    let mut whole = Vec::new();
    stream.read_to_end(&mut whole).expect("the stream");
    assert!(sending.wait().expect("it ends").success());
    let whole = server.command(&["zfs", "send", "t/v@1"]).stdout;
    let difference = server.command(&["zfs", "send", "-i", "@1", "t/v@2"]).stdout;

    // Broken off: with and without something to go on with.
    let half = &whole[..whole.len() / 2];
    let words = "zfs receive t/x";
    let lines = "cannot receive new filesystem stream: incomplete stream";
    assert_eq!(
        differs(words, &with_input(&server, words, half), 1, lines),
        None
    );
    let words = "zfs receive -s t/half";
    let output = with_input(&server, words, half);
    let token = server.ok("zfs get -H -o value receive_resume_token t/half");
    let token = token.trim();
    let lines = format!(
        "cannot receive new filesystem stream: checksum mismatch or incomplete stream.\n\
         Partially received snapshot is saved.\n\
         A resuming stream can be generated on the sending system by running:\n    \
         zfs send -t {token}"
    );
    assert_eq!(differs(words, &output, 1, &lines), None);

    // What is there already.
    server.ok("zfs create -s -V 32M t/enc/v");
    for (words, input, lines) in [
        (
            "zfs receive t/v@2",
            &difference,
            "cannot restore to t/v@2: destination already exists",
        ),
        (
            "zfs receive t/v",
            &whole,
            "cannot receive new filesystem stream: destination 't/v' exists\n\
             must specify -F to overwrite it",
        ),
        (
            "zfs receive -F t/v",
            &whole,
            "cannot receive new filesystem stream: destination has snapshots (eg. t/v@1)\n\
             must destroy them to overwrite it",
        ),
        (
            "zfs receive t/none",
            &difference,
            "cannot receive incremental stream: destination 't/none' does not exist",
        ),
        (
            "zfs receive t/half",
            &whole,
            "cannot receive new filesystem stream: destination t/half contains \
             partially-complete state from \"zfs receive -s\".",
        ),
        (
            "zfs receive -F t/enc/v",
            &whole,
            "cannot receive new filesystem stream: zfs receive -F cannot be used to destroy an \
             encrypted filesystem or overwrite an unencrypted one with an encrypted one",
        ),
    ] {
        let output = with_input(&server, words, input);
        assert_eq!(differs(words, &output, 1, lines), None);
    }

    // The contents of the token come first, also where its source is gone.
    let words = format!("zfs send -nvt {token}");
    let said = server.ok(&words);
    assert!(said.starts_with("resume token contents:\n"), "{said}");
    server.ok("zfs destroy t/v@1");
    let output = run(&server, &words);
    let lines = "cannot resume send: 't/v@1' used in the initial send no longer exists";
    assert_eq!(differs(&words, &output, 255, lines), None);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("resume token contents:\n"), "{said}");
    for (token, lines) in [
        (
            "x",
            "cannot resume send: resume token is corrupt (invalid format)",
        ),
        (
            "2-a-b-cd",
            "cannot resume send: resume token is corrupt (invalid version 2)",
        ),
        (
            "1-a-b-cd",
            "cannot resume send: resume token is corrupt (incorrect checksum)",
        ),
    ] {
        let words = format!("zfs send -t {token}");
        assert_eq!(differs(&words, &run(&server, &words), 255, lines), None);
    }
    server.ok("zfs receive -A t/half");
    let words = "zfs list t/half";
    let lines = "cannot open 't/half': dataset does not exist";
    assert_eq!(differs(words, &run(&server, words), 1, lines), None);
}
