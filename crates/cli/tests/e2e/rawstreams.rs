//! Goal: encrypted datasets are sent and received without their keys, by us and by OpenZFS.
//! Method: packages of raw streams, ours and OpenZFS's, are received where no key is; encryption
//! roots are compared with those where they come from, and contents through mounts after the keys
//! were loaded.

use std::path::Path;

use crate::golden::Golden;
use crate::harness::{MILLPOND, Server, can_mount, run, text_of, zdb_is_clean};
use crate::keys::with_input;
use crate::streams::{accepted, compare, pool, receive, refused, send, unpack, value};
use crate::walk::compare_received;

const PASSPHRASE: &[u8] = b"correct horse battery\n";

fn load_key(server: &Server, name: &str, key: &[u8]) {
    let output = with_input(server, &format!("zfs load-key {name}"), key);
    assert!(output.status.success(), "{name}: {}", text_of(&output));
}

/// A package of OpenZFS's: children inherit their key again.
#[test]
fn a_tree_of_openzfs_is_received_with_its_roots() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let Some((stream, manifest)) = unpack(&server, "Rraw") else {
        return;
    };
    pool(&server);
    let mountpoint = server.text("mounted");
    let words = format!("zfs receive -o mountpoint={mountpoint} tank/target");
    receive(&server, &words, &stream);
    let below = server.ok("zfs list -Hro name tank/target");
    for name in below.lines() {
        assert_eq!(
            value(&server, name, "encryptionroot"),
            "tank/target",
            "{name}"
        );
        assert_eq!(value(&server, name, "keystatus"), "unavailable", "{name}");
        assert_eq!(value(&server, name, "mounted"), "no", "{name}");
    }
    assert!(below.lines().count() > 1, "{below}");
    load_key(&server, "tank/target", PASSPHRASE);
    server.ok("zfs mount -a");
    compare(&server, &manifest, "tank/target");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// A package of ours, a difference of it, and what is not raw.
#[test]
fn a_tree_is_sent_as_it_is_encrypted() {
    if !can_mount() {
        return;
    }
    let Some(golden) = Golden::unpack("encrypted") else {
        return;
    };
    let server = &golden.server;
    pool(server);
    let root = server.text("mnt");
    server.ok(&format!(
        "zpool import -R {root} -d {} encrypted",
        golden.directory
    ));
    // No key is loaded.
    server.ok("zfs snapshot -r encrypted/enc@go");
    let plan = server.ok("zfs send -n -v -R -w encrypted/enc@go");
    assert!(plan.contains("total estimated size is "), "{plan}");
    let full = send(server, "zfs send -R -w encrypted/enc@go", "full");
    let dumped = accepted(server, &full);
    assert!(dumped.contains("crypt_keydata"), "{dumped}");
    let error = server.fails("zfs send -p encrypted/enc@go");
    assert!(error.contains("without the raw flag"), "{error}");
    // In the clear it is sent as far as its key is there.
    let output = server.command(&["zfs", "send", "-n", "-p", "-U", "encrypted/enc@go"]);
    let told = text_of(&output);
    assert!(output.status.success(), "{told}");
    let warning = "WARNING: no-preserve-encryption flag set, sending dataset encrypted/enc \
                   without encryption";
    assert!(told.contains(warning), "{told}");
    let error = server.fails("zfs send -p -U encrypted/enc@go");
    assert!(error.contains("dataset key must be loaded"), "{error}");
    let error = server.fails("zfs send encrypted/enc@go");
    assert!(error.contains("dataset key must be loaded"), "{error}");

    let at = server.text("copy");
    receive(
        server,
        &format!("zfs receive -u -o mountpoint={at} -o atime=off tank/copy"),
        &full,
    );
    let names = server.ok("zfs list -Hro name encrypted/enc");
    let copy_of = |name: &str| name.replacen("encrypted/enc", "tank/copy", 1);
    for name in names.lines() {
        let (ours, theirs) = (copy_of(name), name);
        let wanted = copy_of(&value(server, theirs, "encryptionroot"));
        assert_eq!(value(server, &ours, "encryptionroot"), wanted, "{name}");
        assert_eq!(value(server, &ours, "keystatus"), "unavailable", "{name}");
        for property in ["encryption", "keyformat", "keylocation", "pbkdf2iters"] {
            let wanted = value(server, theirs, property);
            assert_eq!(value(server, &ours, property), wanted, "{name}: {property}");
        }
    }
    load_key(server, "tank/copy", PASSPHRASE);
    for (name, tree) in golden.manifest["trees"].as_object().expect("trees") {
        let is_ours = name.starts_with("encrypted/enc") && !name.contains("hexkey");
        if is_ours && !name.contains('@') {
            // Alone: others are mounted upon its directories.
            let copy = copy_of(name);
            server.ok(&format!("zfs mount {copy}"));
            let at = value(server, &copy, "mountpoint");
            compare_received(name, Path::new(&at), tree.as_array().expect("a list"));
            server.ok(&format!("zfs unmount {copy}"));
        }
    }
    server.ok("zfs mount -a");

    // A difference, onto what nobody changed.
    load_key(server, "encrypted/enc", PASSPHRASE);
    server.ok("zfs mount -a");
    let source = value(server, "encrypted/enc/child", "mountpoint");
    for file in 0..50u32 {
        let bytes: Vec<u8> = (0..70_000u32).map(|at| (at * file) as u8).collect();
        std::fs::write(format!("{source}/new{file}"), bytes).expect("a file");
    }
    server.ok("zfs snapshot -r encrypted/enc@on");
    let words = "zfs send -R -w -i @go encrypted/enc@on";
    let difference = send(server, words, "difference");
    accepted(server, &difference);
    let error = refused(server, "zfs receive tank/none", &difference);
    assert!(error.contains("does not exist"), "{error}");
    receive(server, "zfs receive -F tank/copy", &difference);
    let copy = value(server, "tank/copy/child", "mountpoint");
    run(
        "diff",
        &[
            "-r",
            &format!("{source}/.zfs/snapshot/on"),
            &format!("{copy}/.zfs/snapshot/on"),
        ],
    );
    let root_of_child = value(server, "tank/copy/child", "encryptionroot");
    assert_eq!(root_of_child, "tank/copy");

    // From a bookmark, and where it was cut.
    server.ok("zfs bookmark encrypted/enc/child@go encrypted/enc/child#go");
    let first = send(server, "zfs send -w encrypted/enc/child@go", "first");
    receive(server, "zfs receive -u tank/child", &first);
    assert_eq!(value(server, "tank/child", "encryptionroot"), "tank/child");
    let second = send(
        server,
        "zfs send -w -i #go encrypted/enc/child@on",
        "second",
    );
    let bytes = std::fs::read(&second).expect("a stream");
    let cut = server.path("cut");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("half of it");
    refused(server, "zfs receive -s -u tank/child", &cut);
    let token = value(server, "tank/child", "receive_resume_token");
    let told = server.ok(&format!("stream token {token}"));
    assert!(told.contains("rawok = 1"), "{told}");
    // As those ask who know OpenZFS's command.
    let zstream = server.text("zstream");
    std::os::unix::fs::symlink(MILLPOND, &zstream).expect("a link");
    assert_eq!(run(&zstream, &["token", &token]), told);
    let corrupt = std::process::Command::new(&zstream)
        .args(["token", &token[..token.len() - 4]])
        .output();
    assert!(!corrupt.expect("it runs").status.success());
    let rest = send(server, &format!("zfs send -t {token}"), "rest");
    accepted(server, &rest);
    receive(server, "zfs receive -s -u tank/child", &rest);
    let listed = server.ok("zfs list -Hrt snapshot -o name tank/child");
    assert_eq!(listed, "tank/child@go\ntank/child@on\n");

    // Of what is not encrypted nothing is raw.
    server.ok("zfs snapshot encrypted@clear");
    let raw = send(server, "zfs send -w encrypted@clear", "raw");
    let stored = send(server, "zfs send -L -e -c encrypted@clear", "stored");
    assert!(std::fs::read(raw).expect("a stream") == std::fs::read(stored).expect("a stream"));
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// What is encrypted is replicated as it is encrypted.
#[test]
fn replication_needs_no_key() {
    let Some(golden) = Golden::unpack("encrypted") else {
        return;
    };
    let server = &golden.server;
    pool(server);
    server.ok(&format!(
        "zpool import -N -d {} encrypted",
        golden.directory
    ));
    server.ok("replicate -r encrypted/enc/child tank/copy");
    assert_eq!(value(server, "tank/copy", "encryptionroot"), "tank/copy");
    assert_eq!(value(server, "tank/copy", "keystatus"), "unavailable");
    server.ok("replicate --run encrypted-enc-child");
    let snapshots = |name: &str| {
        let listed = server.ok(&format!("zfs list -Hpt snapshot -o guid {name}"));
        listed.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for below in ["", "/grand"] {
        let (source, copy) = (
            format!("encrypted/enc/child{below}"),
            format!("tank/copy{below}"),
        );
        assert_eq!(snapshots(&source), snapshots(&copy));
        load_key(server, &copy, PASSPHRASE);
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Sectors of a file that the machine with OpenZFS sees as a disk.
fn whole_sectors(path: &Path) -> u64 {
    let length = std::fs::metadata(path).expect("a stream").len();
    let file = std::fs::File::options().write(true).open(path);
    let grown = file.and_then(|file| file.set_len(length.next_multiple_of(1 << 20)));
    grown.expect("whole sectors");
    length
}

/// Goal: raw streams go to the real OpenZFS and back, by turns, onto what the other made. Method:
/// ours, of datasets with everything, goes there as a tree and as a difference; with the key loaded
/// it finds the same hashes, changes files, and its difference comes back onto ours, which is
/// changed again and goes there once more. Scrubs find nothing on either side.
#[test]
fn raw_streams_go_to_openzfs_and_back() {
    let Some(peer) = oracles::Peer::find() else {
        return;
    };
    if !can_mount() {
        return;
    }
    let Some(golden) = Golden::unpack("encrypted") else {
        return;
    };
    let server = &golden.server;
    let root = server.text("mnt");
    server.ok(&format!(
        "zpool import -R {root} -d {} encrypted",
        golden.directory
    ));
    load_key(server, "encrypted/enc", PASSPHRASE);
    server.ok("zfs create -o recordsize=16K -o dnodesize=auto -o xattr=sa encrypted/enc/src");
    server.ok("zfs create -o recordsize=1M encrypted/enc/src/big");
    server.ok("zfs create -V 8M encrypted/enc/src/vol");
    let root = value(server, "encrypted/enc/src", "mountpoint");
    let write = |name: &str, seed: u8, length: usize| {
        let bytes: Vec<u8> = (0..length).map(|at| (at / 900) as u8 ^ seed).collect();
        std::fs::write(Path::new(&root).join(name), bytes).expect("a file");
    };
    for file in 0..100u8 {
        write(&format!("f{file}"), file, usize::from(file) * 4000);
    }
    write("big/a", 1, 5 << 20);
    std::os::unix::fs::symlink("x".repeat(900), Path::new(&root).join("link")).expect("a link");
    run(
        "setfattr",
        &[
            "-n",
            "user.long",
            "-v",
            &"v".repeat(9000),
            &format!("{root}/f50"),
        ],
    );
    server.ok("zfs snapshot -r encrypted/enc/src@one");
    for file in 0..40u8 {
        std::fs::remove_file(Path::new(&root).join(format!("f{file}"))).expect("removed");
        write(&format!("g{file}"), file, usize::from(file) * 9000 + 1);
    }
    write("f77", 5, 3);
    run(
        "setfattr",
        &[
            "-n",
            "user.long",
            "-v",
            &"w".repeat(5000),
            &format!("{root}/f50"),
        ],
    );
    server.ok("zfs snapshot -r encrypted/enc/src@two");
    let hash = |path: &str| {
        let script = format!("cd {path} && find . -type f | sort | xargs sha256sum | sha256sum");
        let words = run("sh", &["-c", &script]);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let disk = server.path("peer");
    let file = std::fs::File::create(&disk).and_then(|file| file.set_len(768 << 20));
    file.expect("a disk");
    let out = server.path("out");
    let file = std::fs::File::create(&out).and_then(|file| file.set_len(64 << 20));
    file.expect("room for a stream");
    let disks = |streams: &[(&str, &Path)]| {
        let mut disks = vec![
            format!("{},d0", disk.display()),
            format!("{},out", out.display()),
        ];
        let named = streams.iter();
        disks.extend(named.map(|(name, path)| format!("{},{name}", path.display())));
        disks
    };
    let told_after = |told: &str, word: &str| -> Vec<String> {
        let lines = told.lines().filter_map(|line| line.strip_prefix(word));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    let full = send(server, "zfs send -R -w encrypted/enc/src@one", "full");
    let words = "zfs send -R -w -i @one encrypted/enc/src@two";
    let difference = send(server, words, "difference");
    let lengths = [whole_sectors(&full), whole_sectors(&difference)];
    let key = "echo 'correct horse battery' | zfs load-key";
    let sums = "find . -type f | sort | xargs sha256sum | sha256sum";
    let clean = "zpool scrub -w peer; zpool status peer | grep -q 'No known data errors'";
    let script = format!(
        "set -e\nzpool create -O mountpoint=/px -O atime=off peer /dev/disk/peer/d0\n\
         head -c {} /dev/disk/peer/full | zfs receive -x mountpoint peer/raw\n\
         head -c {} /dev/disk/peer/difference | zfs receive -x mountpoint peer/raw\n\
         {clean}\n\
         zfs list -Hr -o name,encryptionroot,keystatus peer/raw\n\
         test $(zfs get -H -o value encryptionroot peer/raw/big) = peer/raw\n\
         {key} peer/raw\nzfs mount -a\n\
         cd /px/raw; echo HASH $({sums})\n\
         echo VALUE $(getfattr --only-values -n user.long f50 | sha256sum)\n\
         v=; for i in $(seq 100); do for z in /dev/zd*; do [ ! -b \"$z\" ] || v=$z; done; \
         [ -z \"$v\" ] || break; sleep 0.2; done; sha256sum < $v > /dev/null\n\
         {clean}\n\
         rm f9*; head -c 700000 /dev/urandom > new; cp new big/new; \
         setfattr -x user.long f50; truncate -s 10 f60; cd /\n\
         zfs snapshot -r peer/raw@three\n\
         echo HASH $(cd /px/raw; {sums})\n\
         zfs send -R -w -i @two peer/raw@three > /tmp/stream\n\
         echo LENGTH $(stat -c %s /tmp/stream)\n\
         dd if=/tmp/stream of=/dev/disk/peer/out bs=1M conv=notrunc 2>/dev/null\n\
         sync; zpool export peer\n",
        lengths[0], lengths[1]
    );
    let told = peer.run(
        &disks(&[("full", &full), ("difference", &difference)]),
        &script,
    );
    let hashes = told_after(&told, "HASH ");
    assert_eq!(hashes[0], hash(&root), "{told}");
    // Back, onto what both have.
    let back = |told: &str| {
        let length: usize = told_after(told, "LENGTH ")[0].parse().expect("a number");
        let bytes = std::fs::read(&out).expect("a stream");
        std::fs::write(server.path("back"), &bytes[..length]).expect("a stream");
        server.path("back")
    };
    receive(server, "zfs receive -F encrypted/enc/src", &back(&told));
    assert_eq!(hash(&root), hashes[1], "{told}");
    // And once more, onto what OpenZFS made.
    write("again", 9, 2_000_000);
    write("big/again", 9, 2_000_000);
    std::fs::remove_file(format!("{root}/new")).expect("removed");
    server.ok("zfs snapshot -r encrypted/enc/src@four");
    let words = "zfs send -R -w -i @three encrypted/enc/src@four";
    let third = send(server, words, "third");
    let length = whole_sectors(&third);
    let script = format!(
        "set -e\nzpool import -N -d /dev/disk/peer peer\n\
         head -c {length} /dev/disk/peer/third | zfs receive -F peer/raw\n\
         {key} peer/raw\nzfs mount -a\n\
         echo HASH $(cd /px/raw; {sums})\n{clean}\n\
         zfs create -o encryption=aes-128-ccm -o keyformat=passphrase -o dnodesize=auto \
         -o recordsize=512K peer/theirs < /tmp/key\n\
         head -c 3000000 /dev/urandom > /px/theirs/file; \
         setfattr -n user.a -v $(head -c 3000 /dev/zero | tr '\\0' b) /px/theirs/file\n\
         for n in $(seq 300); do echo $n > /px/theirs/n$n; done\n\
         zfs snapshot peer/theirs@a\n\
         rm /px/theirs/n*5*; head -c 200000 /dev/urandom >> /px/theirs/file\n\
         zfs snapshot peer/theirs@b\n\
         echo HASH $(cd /px/theirs; {sums})\n\
         zfs send -p -w -I @a peer/theirs@b > /tmp/b; zfs send -w peer/theirs@a > /tmp/a\n\
         echo LENGTHS $(stat -c %s /tmp/a) $(stat -c %s /tmp/b)\n\
         cat /tmp/a /tmp/b | dd of=/dev/disk/peer/out bs=1M conv=notrunc iflag=fullblock \
         2>/dev/null\n\
         sync; zpool export peer\n"
    )
    .replace(
        "set -e\n",
        "set -e\necho 'correct horse battery' > /tmp/key\n",
    );
    let told = peer.run(&disks(&[("third", &third)]), &script);
    let hashes = told_after(&told, "HASH ");
    assert_eq!(hashes[0], hash(&root), "{told}");
    let lengths: Vec<usize> = told_after(&told, "LENGTHS ")[0]
        .split_whitespace()
        .map(|length| length.parse().expect("a number"))
        .collect();
    let bytes = std::fs::read(&out).expect("streams");
    let mut at = 0;
    for (number, length) in lengths.into_iter().enumerate() {
        let stream = server.path(&format!("theirs{number}"));
        std::fs::write(&stream, &bytes[at..at + length]).expect("a stream");
        at += length;
        receive(server, "zfs receive -u encrypted/theirs", &stream);
    }
    load_key(server, "encrypted/theirs", PASSPHRASE);
    server.ok("zfs mount encrypted/theirs");
    let theirs = value(server, "encrypted/theirs", "mountpoint");
    assert_eq!(hash(&theirs), hashes[1], "{told}");
    server.ok("zpool scrub -w encrypted");
    let status = server.ok("zpool status encrypted");
    assert!(status.contains("No known data errors"), "{status}");
    server.ok("zpool export encrypted");
    zdb_is_clean(Path::new(&golden.directory), "encrypted");
}

/// Goal: who mounts what was received raw to read from it can still receive the next stream.
/// Method: files, one of them open without a name, are sent raw and received; with its key loaded
/// the copy is mounted with `-o ro` and read, and the next stream comes. Mounted to be written, it
/// counts what its owners use, which is a change.
#[test]
fn a_mount_to_read_from_writes_nothing() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let key = server.text("key");
    std::fs::write(&key, [7; 32]).expect("a key");
    let (at, copied) = (server.text("at"), server.text("copied"));
    server.ok(&format!(
        "zfs create -o encryption=on -o keyformat=raw -o keylocation=file://{key} \
         -o mountpoint={at} tank/e"
    ));
    for file in 0..50 {
        std::fs::write(format!("{at}/f{file}"), vec![b'x'; 9000]).expect("a file");
    }
    let nameless = std::fs::File::open(format!("{at}/f7")).expect("a file");
    std::fs::remove_file(format!("{at}/f7")).expect("removed");
    server.ok("zfs snapshot tank/e@one");
    drop(nameless);
    std::fs::write(format!("{at}/later"), "later").expect("a file");
    server.ok("zfs snapshot tank/e@two");
    let first = send(&server, "zfs send -w tank/e@one", "first");
    let second = send(&server, "zfs send -w -i @one tank/e@two", "second");
    receive(
        &server,
        &format!("zfs receive -u -o mountpoint={copied} tank/copy"),
        &first,
    );
    server.ok(&format!("zfs load-key -L file://{key} tank/copy"));
    let counted = || {
        let output = server.command(&["zfs", "userspace", "-Hn", "tank/copy"]);
        output.status.success()
    };
    for _ in 0..2 {
        server.ok("zfs mount -o ro tank/copy");
        run("grep", &["-qr", "xx", &copied]);
        assert!(std::fs::write(format!("{copied}/no"), "no").is_err());
        server.ok("zpool sync tank");
        assert_eq!(value(&server, "tank/copy", "written"), "0");
        server.ok("zfs unmount tank/copy");
        assert_eq!(value(&server, "tank/copy", "written"), "0");
    }
    receive(&server, "zfs receive -u tank/copy", &second);
    server.ok("zfs mount -o ro tank/copy");
    let later = std::fs::read(format!("{copied}/later")).expect("a file");
    assert_eq!(later, b"later");
    server.ok("zpool sync tank");
    assert_eq!(value(&server, "tank/copy", "written"), "0");
    // From here on it may be changed.
    server.ok("zfs mount -o remount,rw tank/copy");
    server.wait_until("owners are counted", || {
        server.ok("zpool sync tank");
        value(&server, "tank/copy", "written") != "0" && counted()
    });
    std::fs::write(format!("{copied}/yes"), "yes").expect("a file");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
