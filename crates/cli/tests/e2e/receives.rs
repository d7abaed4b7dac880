//! Goal: receives keep what came, mount what they received and nothing else, and take what OpenZFS
//! takes. Method: streams of our own go into pools that are too small, over mount points that are
//! in use, below encrypted filesystems, and with options that scripts give each time.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Server, can_mount, run, zdb_finds_no_leaks, zdb_is_clean};
use crate::streams::{pool, receive, refused, send, value};

/// Writes a file that no compression makes smaller.
fn fill(path: &Path, seed: u64, bytes: usize) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes());
    }
    data.truncate(bytes);
    std::fs::write(path, data).expect("a file");
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).expect("a stream").len()
}

/// The words of OpenZFS, with the token that the target has.
fn tells_the_token(server: &Server, target: &str, text: &str) -> String {
    let token = value(server, target, "receive_resume_token");
    assert_ne!(token, "-", "{text}");
    let words = format!(
        "A resuming stream can be generated on the sending system by running:\n    zfs send -t \
         {token}"
    );
    assert!(text.contains(&words), "{text}");
    token
}

/// What is received into a pool that is too small, or over a quota, is kept as what breaks off is,
/// and gone on with when there is room.
#[test]
fn what_ran_out_of_room_goes_on() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let root = server.text("source");
    server.ok(&format!("zfs create -o mountpoint={root} tank/s"));
    fill(&Path::new(&root).join("first"), 1, 8 << 20);
    server.ok("zfs snapshot tank/s@1");
    fill(&Path::new(&root).join("second"), 2, 96 << 20);
    server.ok("zfs snapshot tank/s@2");
    for (name, bytes) in [("small", 80u64 << 20), ("more", 1 << 30)] {
        let file = File::create(server.path("disks").join(name));
        file.and_then(|file| file.set_len(bytes)).expect("a disk");
    }
    let disks = server.text("disks");
    server.ok(&format!(
        "zpool create -O mountpoint=none small {disks}/small"
    ));
    let whole = send(&server, "zfs send tank/s@2", "whole");
    let text = refused(&server, "zfs receive -s -u small/full", &whole);
    assert!(text.contains("out of space"), "{text}");
    let token = tells_the_token(&server, "small/full", &text);
    server.ok(&format!("zpool add small {disks}/more"));
    let rest = send(&server, &format!("zfs send -t {token}"), "rest");
    assert!(length(&rest) + (4 << 20) < length(&whole), "it goes on");
    let at = server.text("full");
    receive(
        &server,
        &format!("zfs receive -s -o mountpoint={at} small/full"),
        &rest,
    );
    run("diff", &["-r", &root, &at]);

    // A difference, and a quota.
    let first = send(&server, "zfs send tank/s@1", "first");
    receive(&server, "zfs receive -u small/part", &first);
    server.ok("zfs set quota=48M small/part");
    let second = send(&server, "zfs send -i @1 tank/s@2", "second");
    let text = refused(&server, "zfs receive -s -u small/part", &second);
    assert!(text.contains("quota"), "{text}");
    let token = tells_the_token(&server, "small/part", &text);
    server.ok("zfs set quota=none small/part");
    let rest = send(&server, &format!("zfs send -t {token}"), "rest of it");
    assert!(length(&rest) + (4 << 20) < length(&second), "it goes on");
    receive(&server, "zfs receive -s -u small/part", &rest);
    let at = server.text("part");
    server.ok(&format!("zfs set mountpoint={at} small/part"));
    if value(&server, "small/part", "mounted") == "no" {
        server.ok("zfs mount small/part");
    }
    run("diff", &["-r", &root, &at]);

    // Without -s nothing stays.
    server.ok("zfs create -u -o quota=16M small/limited");
    let text = refused(&server, "zfs receive -u small/limited/x", &whole);
    assert!(
        text.contains("quota") && !text.contains("zfs send -t"),
        "{text}"
    );
    assert_eq!(
        server.ok("zfs list -Ho name -r small/limited"),
        "small/limited\n"
    );

    // A stream that ends too early has the same words, and those for that.
    let cut = server.path("cut");
    let bytes = std::fs::read(&whole).expect("a stream");
    std::fs::write(&cut, &bytes[..bytes.len() / 8]).expect("a part of it");
    let text = refused(&server, "zfs receive -s -u small/cut", &cut);
    let words = "cannot receive new filesystem stream: checksum mismatch or incomplete stream.\n\
                 Partially received snapshot is saved.\n";
    assert!(text.contains(words), "{text}");
    tells_the_token(&server, "small/cut", &text);
    let text = refused(&server, "zfs receive -u small/other", &cut);
    assert!(text.contains("incomplete stream"), "{text}");
    assert!(!text.contains("zfs send -t"), "{text}");
    for pool in ["small", "tank"] {
        server.ok(&format!("zpool export {pool}"));
        zdb_is_clean(&server.path("disks"), pool);
    }
}

/// A replica whose mount points are in use is mounted over them, and what is there stays what and
/// where it is.
#[test]
fn a_receive_leaves_what_is_mounted_where_it_is() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let bar = server.path("bar");
    server.ok(&format!(
        "zfs create -o mountpoint={} tank/s",
        bar.display()
    ));
    server.ok("zfs create tank/s/deep");
    let deep = bar.join("deep");
    std::fs::write(deep.join("sent"), "sent").expect("a file");
    server.ok("zfs snapshot -r tank/s@1");
    // In use: whoever moved it would be refused.
    let mut live = File::create(deep.join("live")).expect("a file");
    let stream = send(&server, "zfs send -R tank/s@1", "stream");
    let said = receive(&server, "zfs receive tank/all", &stream);
    assert!(said.contains("over 'tank/s'"), "{said}");
    for name in ["tank/s", "tank/s/deep", "tank/all", "tank/all/deep"] {
        assert_eq!(value(&server, name, "mounted"), "yes", "{name}");
    }
    assert!(deep.join("sent").exists() && !deep.join("live").exists());
    live.write_all(b"still here").expect("it is mounted");
    // It can go elsewhere, and go.
    let there = server.path("there");
    server.ok(&format!("zfs set mountpoint={} tank/all", there.display()));
    assert!(there.join("deep/sent").exists() && !there.join("deep/live").exists());
    let read = || std::fs::read_to_string(deep.join("live")).expect("it is to be seen");
    assert_eq!(read(), "still here");
    server.ok("zfs destroy -r tank/all");
    receive(&server, "zfs receive tank/all", &stream);
    server.ok("zfs destroy -r tank/all");
    live.write_all(b", too").expect("it is mounted");
    drop(live);
    assert_eq!(read(), "still here, too");
    // Of what comes with one package, what lies inside of another is mounted in it.
    let (outer, inner) = (server.path("m/in"), server.path("m/in/side"));
    server.ok("zfs create tank/q");
    for (name, at) in [("x", &inner), ("z", &outer)] {
        server.ok(&format!(
            "zfs create -o mountpoint={} tank/q/{name}",
            at.display()
        ));
        std::fs::write(at.join(name), name).expect("a file");
    }
    server.ok("zfs snapshot -r tank/q@1");
    let stream = send(&server, "zfs send -R tank/q@1", "stream");
    for name in ["x", "z"] {
        server.ok(&format!("zfs unmount tank/q/{name}"));
    }
    let said = receive(&server, "zfs receive tank/r", &stream);
    assert!(!said.contains("over"), "{said}");
    assert!(outer.join("z").exists() && inner.join("x").exists());
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// `-p` says that a filesystem is in the clear, also where it has no property of its own; a stream
/// without properties is encrypted as what it is below.
#[test]
fn a_stream_with_properties_stays_in_the_clear() {
    let server = Server::start();
    pool(&server);
    encrypted(&server, "tank/e");
    server.ok("zfs create -u tank/plain");
    server.ok("zfs snapshot tank/plain@a");
    for (options, name, wanted) in [
        ("-p", "p", "off"),
        ("-pe", "pe", "off"),
        ("-b", "b", "off"),
        ("-R", "R", "off"),
        ("-h", "h", "aes-256-gcm"),
        ("", "bare", "aes-256-gcm"),
    ] {
        let stream = send(
            &server,
            &format!("zfs send {options} tank/plain@a"),
            "stream",
        );
        receive(&server, &format!("zfs receive -u tank/e/{name}"), &stream);
        let found = value(&server, &format!("tank/e/{name}"), "encryption");
        assert_eq!(found, wanted, "{options}");
        let chosen = format!("tank/e/x{name}");
        if !options.contains('e') {
            receive(
                &server,
                &format!("zfs receive -u -x encryption {chosen}"),
                &stream,
            );
            assert_eq!(
                value(&server, &chosen, "encryption"),
                "aes-256-gcm",
                "{options}"
            );
        }
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Makes an encrypted filesystem.
fn encrypted(server: &Server, name: &str) {
    let key = server.path("key");
    std::fs::write(&key, "a passphrase of some length").expect("a file");
    server.ok(&format!(
        "zfs create -u -o encryption=on -o keyformat=passphrase -o keylocation=file://{} {name}",
        key.display()
    ));
}

/// A script that leaves out what is of keys does so each time, also where a difference comes.
#[test]
fn keys_are_left_out_of_differences_as_well() {
    let server = Server::start();
    pool(&server);
    encrypted(&server, "tank/e");
    server.ok("zfs create -u tank/plain");
    server.ok("zfs create -u tank/plain/below");
    for snapshot in ["a", "b"] {
        server.ok(&format!("zfs snapshot -r tank/plain@{snapshot}"));
    }
    let left_out = ["encryption", "keyformat", "keylocation", "pbkdf2iters"];
    let all = left_out.map(|name| format!("-x {name}")).join(" ");
    for (number, options) in ["", "-p", "-R", "-I"].into_iter().enumerate() {
        let copy = format!("tank/e/copy{number}");
        let (whole, from) = match options {
            "-I" => ("", "-I @a"),
            "-R" => ("-R", "-R -i @a"),
            "-p" => ("-p", "-p -i @a"),
            _ => ("", "-i @a"),
        };
        let stream = send(&server, &format!("zfs send {whole} tank/plain@a"), "first");
        receive(&server, &format!("zfs receive -u {all} {copy}"), &stream);
        let stream = send(&server, &format!("zfs send {from} tank/plain@b"), "second");
        if options != "-R" {
            let words = format!("zfs receive -u -o encryption=aes-128-ccm {copy}");
            let text = refused(&server, &words, &stream);
            assert!(text.contains("'encryption' cannot be given"), "{text}");
        }
        receive(&server, &format!("zfs receive -u {all} {copy}"), &stream);
        let listed = server.ok(&format!("zfs list -Ht snapshot -o name {copy}"));
        assert_eq!(listed, format!("{copy}@a\n{copy}@b\n"), "{options}");
        assert_eq!(
            value(&server, &copy, "encryption"),
            "aes-256-gcm",
            "{options}"
        );
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// A difference is taken that is over the target's `refquota`, as what was sent may be over its own
/// (zfs_receive_012_pos of OpenZFS's tests).
#[test]
fn a_difference_may_be_over_refquota() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let root = server.text("source");
    server.ok(&format!("zfs create -o mountpoint={root} tank/s"));
    server.ok("zfs snapshot tank/s@1");
    fill(&Path::new(&root).join("file"), 3, 12 << 20);
    server.ok("zfs snapshot tank/s@2");
    let first = send(&server, "zfs send tank/s@1", "first");
    receive(&server, "zfs receive -u tank/copy", &first);
    server.ok("zfs set refquota=8M tank/copy");
    let second = send(&server, "zfs send -i @1 tank/s@2", "second");
    receive(&server, "zfs receive -u tank/copy", &second);
    let referenced: u64 = value(&server, "tank/copy", "referenced")
        .parse()
        .expect("a number");
    assert!(referenced > 8 << 20, "{referenced}");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// `-b` sends what was received, and nothing else, whatever was set since (zfs_send-b of OpenZFS's
/// tests); snapshots that are there get what the package has of them
/// (receive-o-x_props_override).
#[test]
fn received_properties_go_on() {
    let server = Server::start();
    pool(&server);
    server.ok("zfs create -u -o compression=gzip -o org.openzfs:prop=val tank/s");
    server.ok("zfs snapshot tank/s@s1");
    server.ok("zfs set org.openzfs:snapprop=val tank/s@s1");
    let stream = send(&server, "zfs send -p tank/s@s1", "stream");
    receive(&server, "zfs receive -u tank/backup", &stream);
    for (name, property) in [
        ("tank/backup", "compression=lz4"),
        ("tank/backup", "exec=off"),
        ("tank/backup", "org.openzfs:prop=newval"),
        ("tank/backup", "org.openzfs:newprop=newval"),
        ("tank/backup@s1", "org.openzfs:snapprop=newval"),
        ("tank/backup@s1", "org.openzfs:newsnapprop=newval"),
    ] {
        server.ok(&format!("zfs set {property} {name}"));
    }
    let told = |name: &str, property: &str| {
        let words = format!("zfs get -Hp -o value,source {property} {name}");
        server.ok(&words).trim_end_matches('\n').to_owned()
    };
    for options in ["-b", "-bp", "-bR", "-bcew"] {
        let words = format!("zfs send {options} tank/backup@s1");
        let stream = send(&server, &words, "backup");
        receive(&server, "zfs receive -u tank/restore", &stream);
        for (name, property, wanted) in [
            ("tank/restore", "compression", "gzip\treceived"),
            ("tank/restore", "org.openzfs:prop", "val\treceived"),
            ("tank/restore", "exec", "on\tdefault"),
            ("tank/restore", "org.openzfs:newprop", "-\t-"),
            ("tank/restore@s1", "org.openzfs:snapprop", "val\treceived"),
            ("tank/restore@s1", "org.openzfs:newsnapprop", "-\t-"),
        ] {
            assert_eq!(told(name, property), wanted, "{options} {name} {property}");
        }
        server.ok("zfs destroy -r tank/restore");
    }

    // Odd characters, and a snapshot that has got properties since it was sent.
    server.ok("zfs create -u tank/t");
    server.ok("zfs create -u tank/t/sub");
    server.ok("zfs snapshot -r tank/t@1");
    let first = send(&server, "zfs send -R tank/t@1", "first");
    receive(&server, "zfs receive -u tank/u", &first);
    server.ok("zfs snapshot -r tank/t@2");
    let odd = r#"!#$%^&()+=|\{}[];",<>?/`~@Z"#;
    for name in ["tank/t@1", "tank/t/sub@1", "tank/t/sub@2"] {
        server.ok(&format!("zfs set a-.:x:snap={odd} {name}"));
    }
    let second = send(&server, "zfs send -R -I @1 tank/t@2", "second");
    receive(
        &server,
        &format!("zfs receive -u -o x:={odd} -o :y= tank/u"),
        &second,
    );
    for name in ["tank/u@1", "tank/u/sub@1", "tank/u/sub@2"] {
        assert_eq!(
            told(name, "a-.:x:snap"),
            format!("{odd}\treceived"),
            "{name}"
        );
    }
    assert_eq!(told("tank/u@2", "a-.:x:snap"), "-\t-");
    assert_eq!(told("tank/u", "x:"), format!("{odd}\tlocal"));
    // One that is set to nothing.
    assert_eq!(told("tank/u", ":y"), "\tlocal");
    server.ok("zfs inherit a-.:x:snap tank/t@1");
    server.ok("zfs snapshot -r tank/t@3");
    let third = send(&server, "zfs send -R -I @2 tank/t@3", "third");
    receive(&server, "zfs receive -u tank/u", &third);
    assert_eq!(told("tank/u@1", "a-.:x:snap"), "-\t-");
    assert_eq!(
        told("tank/u/sub@1", "a-.:x:snap"),
        format!("{odd}\treceived")
    );
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// What follows a redacted snapshot can be received where as much is lacked, also after a break
/// (redacted_origin of OpenZFS's tests).
#[test]
fn a_difference_to_a_redacted_snapshot_is_taken() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let at = |name: &str| server.path(name);
    server.ok(&format!(
        "zfs create -o mountpoint={} tank/s",
        server.text("s")
    ));
    fill(&at("s").join("f"), 1, 4 << 20);
    server.ok("zfs snapshot tank/s@0");
    for (name, seed) in [("b", 2), ("c", 3), ("other", 4)] {
        let mountpoint = server.text(name);
        server.ok(&format!(
            "zfs clone -o mountpoint={mountpoint} tank/s@0 tank/{name}"
        ));
        // Parts of it, not the same ones.
        let file = File::options().write(true).open(at(name).join("f"));
        let written = file.and_then(|file| file.write_all_at(&vec![7; 1 << 20], seed << 18));
        written.expect("written");
        fill(&at(name).join("own"), seed, 2 << 20);
        server.ok(&format!("zfs snapshot tank/{name}@x"));
    }
    for (bookmark, with, copy) in [
        ("bc", "tank/b@x tank/c@x", "tank/rbc"),
        ("b", "tank/b@x", "tank/rb"),
        ("other", "tank/other@x", "tank/rother"),
    ] {
        server.ok(&format!("zfs redact tank/s@0 {bookmark} {with}"));
        let words = format!("zfs send --redact {bookmark} tank/s@0");
        let stream = send(&server, &words, "redacted");
        receive(&server, &format!("zfs receive {copy}"), &stream);
    }
    // Whole, on top of what lacks something.
    let whole = send(&server, "zfs send tank/other@x", "whole");
    for name in ["rbc", "rb", "rother"] {
        let words = format!("zfs receive -u -o origin=tank/{name}@0 tank/on-{name}");
        receive(&server, &words, &whole);
    }
    for (name, is_taken) in [("rbc", true), ("rb", true), ("rother", false)] {
        let words = format!("zfs send -i tank/{name}@0 tank/on-{name}@x");
        let stream = send(&server, &words, "difference");
        let words = format!("zfs receive -u -o origin=tank/rbc@0 tank/from-{name}");
        if is_taken {
            receive(&server, &words, &stream);
        } else {
            refused(&server, &words, &stream);
        }
    }
    // From where it broke off.
    let stream = send(&server, "zfs send -i tank/rb@0 tank/on-rb@x", "difference");
    let bytes = std::fs::read(&stream).expect("a stream");
    let cut = server.path("cut");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("half of it");
    let words = "zfs receive -s -u -o origin=tank/rbc@0 tank/broken";
    refused(&server, words, &cut);
    let token = value(&server, "tank/broken", "receive_resume_token");
    let rest = send(&server, &format!("zfs send -t {token}"), "rest");
    receive(&server, "zfs receive -s -u tank/broken", &rest);
    for (name, directory) in [("from-rbc", "x"), ("from-rb", "y"), ("broken", "z")] {
        let mountpoint = server.text(directory);
        server.ok(&format!("zfs set mountpoint={mountpoint} tank/{name}"));
        if value(&server, &format!("tank/{name}"), "mounted") == "no" {
            server.ok(&format!("zfs mount tank/{name}"));
        }
        run("diff", &["-r", &server.text("other"), &mountpoint]);
    }
    server.ok("zpool export tank");
    // `zdb -d` never ends where there are redaction bookmarks: it keeps hold of their datasets.
    zdb_finds_no_leaks(&server.path("disks"), "tank");
}
