//! Goal: `zfs redact`, `zfs send --redact` and `zfs receive -c` do what OpenZFS's do. Method: files
//! of mounted filesystems, of which some are replaced in clones; streams are received and compared,
//! cut and gone on with; files of a snapshot are overwritten on the disk and healed.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Server, can_mount, run, zdb_finds_no_leaks, zdb_is_clean};
use crate::streams::{accepted, receive, refused, send, value};

const FEATURES: &str = "zpool get -Ho value feature@redaction_bookmarks,\
                        feature@redaction_list_spill,feature@redacted_datasets tank";

fn pool(server: &Server) {
    let disk = &server.disks(1, 512 << 20)[0];
    let at = server.text("at");
    server.ok(&format!(
        "zpool create -O mountpoint={at} -O compression=off tank {disk}"
    ));
}

fn write(path: &str, seed: u8, length: usize) {
    let mut word = u64::from(seed)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(1);
    let bytes: Vec<u8> = (0..length)
        .map(|_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(7);
            (word >> 40) as u8
        })
        .collect();
    std::fs::write(path, bytes).expect("a file");
}

/// A filesystem with secrets, and a clone in which they are replaced.
fn fill(server: &Server) -> String {
    let at = server.text("at");
    server.ok("zfs create tank/fs");
    for file in 0..6u8 {
        write(&format!("{at}/fs/public{file}"), file, 300_000);
        write(&format!("{at}/fs/secret{file}"), file + 100, 300_000);
    }
    server.ok("zfs snapshot tank/fs@s");
    server.ok("zfs clone tank/fs@s tank/clean");
    for file in 0..6u8 {
        let path = format!("{at}/clean/secret{file}");
        match file % 2 {
            0 => std::fs::remove_file(path).expect("removed"),
            _ => write(&path, file + 200, 300_000),
        }
    }
    server.ok("zfs snapshot tank/clean@r");
    at
}

#[test]
fn secrets_are_left_out_of_streams() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let at = fill(&server);
    for (words, why) in [
        ("tank/fs@s b", "too few arguments"),
        (
            "tank/fs@none b tank/clean@r",
            "provided snapshot tank/fs@none does not exist",
        ),
        (
            "tank/fs@s b tank/none@r",
            "provided snapshot tank/none@r does not exist",
        ),
        ("tank/fs@s #b @r", "full dataset names required"),
        ("tank/fs@s a#b tank/clean@r", "must not contain '#'"),
        (
            "tank/clean@r b tank/fs@s",
            "must be descendent of snapshot being redacted",
        ),
    ] {
        let said = server.fails(&format!("zfs redact {words}"));
        assert!(said.contains(why), "{words}: {said}");
    }
    server.ok("zfs redact tank/fs@s b tank/clean@r");
    let said = server.fails("zfs redact tank/fs@s b tank/clean@r");
    let exists = "specified redaction bookmark (b) provided already exists";
    assert!(said.contains(exists), "{said}");
    assert_eq!(server.ok(FEATURES), "active\nenabled\nenabled\n");
    assert_eq!(
        server.ok("zfs list -Hrt bookmark -o name tank"),
        "tank/fs#b\n"
    );
    let guid = value(&server, "tank/clean@r", "guid");
    assert_eq!(value(&server, "tank/fs#b", "redact_snaps"), guid);
    assert_eq!(value(&server, "tank/fs@s", "redact_snaps"), "-");
    let history = server.ok("zpool history tank");
    assert!(
        history.contains("zfs redact tank/fs@s b tank/clean@r"),
        "{history}"
    );

    let said = server.fails("zfs send --redact b -w tank/fs@s");
    assert!(said.contains("raw sends may not be redacted"), "{said}");
    server.ok("zfs bookmark tank/fs@s tank/fs#plain");
    let said = server.fails("zfs send --redact plain tank/fs@s");
    assert!(said.contains("not a redaction bookmark"), "{said}");
    let stream = send(&server, "zfs send --redact b tank/fs@s", "redacted");
    let dumped = accepted(&server, &stream);
    assert!(dumped.contains("redact_snaps"), "{dumped}");
    let bytes = std::fs::read(&stream).expect("a stream");
    // What is left out does not count.
    let planned = server.ok("zfs send -nvP --redact b tank/fs@s");
    let size = planned.lines().find_map(|line| line.strip_prefix("size\t"));
    assert_eq!(size, Some(bytes.len().to_string().as_str()), "{planned}");
    let secret = std::fs::read(format!("{at}/fs/secret1")).expect("a secret");
    let is_in = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|one| one == part);
    assert!(!is_in(&bytes, &secret[140_000..140_100]));
    let public = std::fs::read(format!("{at}/fs/public1")).expect("a file");
    assert!(is_in(&bytes, &public[140_000..140_100]));

    // It is cut, and gone on with.
    let cut = server.path("cut");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("half of it");
    refused(&server, "zfs receive -s tank/copy", &cut);
    let token = value(&server, "tank/copy", "receive_resume_token");
    let told = server.ok(&format!("stream token {token}"));
    assert!(told.contains("redact_snaps"), "{told}");
    let rest = send(&server, &format!("zfs send -t {token}"), "rest");
    receive(&server, "zfs receive -s tank/copy", &rest);
    for name in ["tank/copy", "tank/copy@s"] {
        assert_eq!(value(&server, name, "redact_snaps"), guid);
    }
    // It is not mounted by itself.
    assert_eq!(value(&server, "tank/copy", "mounted"), "no");
    server.ok("zfs mount -a");
    assert_eq!(value(&server, "tank/copy", "mounted"), "no");
    let said = server.fails("zfs mount tank/copy");
    let incomplete = "Dataset is not complete, was created by receiving a redacted zfs send stream";
    assert!(said.contains(incomplete), "{said}");
    server.ok("zfs mount -f tank/copy");
    let copied = |name: &str| std::fs::read(format!("{at}/copy/{name}")).expect("a file");
    assert!(copied("public1") == public);
    assert!(copied("secret1") == vec![0; 300_000]);
    server.ok("zfs unmount tank/copy");

    // The clone is made whole by what follows, the filesystem's next snapshot is not.
    let clone = send(&server, "zfs send -i tank/fs@s tank/clean@r", "clone");
    receive(
        &server,
        "zfs receive -o origin=tank/copy@s tank/cleaned",
        &clone,
    );
    assert_eq!(value(&server, "tank/cleaned", "redact_snaps"), "-");
    run(
        "diff",
        &["-r", &format!("{at}/clean"), &format!("{at}/cleaned")],
    );
    write(&format!("{at}/fs/new"), 77, 200_000);
    server.ok("zfs snapshot tank/fs@t");
    let plain = send(&server, "zfs send -i @s tank/fs@t", "plain");
    let said = refused(&server, "zfs receive tank/copy", &plain);
    assert!(said.contains("lacks blocks"), "{said}");
    let filled = send(&server, "zfs send -i #b tank/fs@t", "filled");
    receive(&server, "zfs receive -F tank/copy", &filled);
    assert_eq!(value(&server, "tank/copy", "redact_snaps"), "-");
    server.ok("zfs mount tank/copy");
    run("diff", &["-r", &format!("{at}/fs"), &format!("{at}/copy")]);

    server.ok("zfs destroy tank/fs#b");
    server.ok("zfs destroy -R tank/copy@s");
    assert_eq!(server.ok(FEATURES), "enabled\nenabled\nenabled\n");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Destroys pieces of a file on the disk.
fn damage(disk: &Path, content: &[u8]) -> usize {
    const PIECE: usize = 4096;
    let image = std::fs::read(disk).expect("the disk");
    let file = std::fs::File::options().write(true).open(disk);
    let file = file.expect("the disk");
    let mut damaged = 0;
    for start in (0..content.len() - PIECE).step_by(128 << 10) {
        let piece = &content[start..start + PIECE];
        for at in (0..image.len() - PIECE).step_by(512) {
            if image[at..at + PIECE] == *piece {
                file.write_all_at(&[0xa5; PIECE], at as u64)
                    .expect("written");
                damaged += 1;
            }
        }
    }
    damaged
}

#[test]
fn damaged_files_are_healed_by_a_stream() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let at = fill(&server);
    let disks = server.path("disks");
    let stream = send(&server, "zfs send tank/fs@s", "stream");
    let of_clone = send(&server, "zfs send tank/clean@r", "of_clone");
    let content = std::fs::read(format!("{at}/fs/public2")).expect("a file");
    server.ok("zpool export tank");
    let disk = std::fs::read_dir(&disks).expect("disks").next();
    let disk = disk.expect("a disk").expect("an entry").path();
    assert_eq!(damage(&disk, &content), 3);
    let import = format!("zpool import -d {} tank", disks.display());
    server.ok(&import);
    let file = format!("{at}/fs/public2");
    std::fs::read(&file).expect_err("it is damaged");
    let status = server.ok("zpool status -v tank");
    assert!(status.contains("public2"), "{status}");

    for (words, stream, why) in [
        (
            "-c tank/fs@none",
            &stream,
            "must specify an existing snapshot to heal",
        ),
        (
            "-c tank/none",
            &stream,
            "must specify an existing snapshot to heal",
        ),
        (
            "-c tank/fs@s",
            &of_clone,
            "doesn't match the snapshot in the provided stream",
        ),
        ("-c -F tank/fs@s", &stream, "cannot be used with"),
        ("-c -u tank/fs@s", &stream, "cannot be used with"),
    ] {
        let said = refused(&server, &format!("zfs receive {words}"), stream);
        assert!(said.contains(why), "{words}: {said}");
    }
    let told = receive(&server, "zfs receive -c -n -v tank/fs@s", &stream);
    assert!(
        told.contains("would receive corrective full stream"),
        "{told}"
    );
    std::fs::read(&file).expect_err("it is damaged");
    // Half of a stream heals half of it, and says so.
    let bytes = std::fs::read(&stream).expect("a stream");
    let at_content = bytes.windows(64).position(|one| *one == content[..64]);
    let end = at_content.expect("the file") + (128 << 10) + 1000;
    let cut = server.path("cut");
    std::fs::write(&cut, &bytes[..end]).expect("a part");
    let said = refused(&server, "zfs receive -c tank/fs@s", &cut);
    assert!(said.contains("incomplete stream"), "{said}");
    assert!(said.contains("1 block was healed"), "{said}");
    let told = receive(&server, "zfs receive -c -v tank/fs@s", &stream);
    assert!(
        told.contains("receiving corrective full stream of tank/fs@s into tank/fs@s"),
        "{told}"
    );
    assert!(told.contains("healed 2 damaged blocks"), "{told}");
    assert!(std::fs::read(&file).expect("it is whole") == content);
    let status = server.ok("zpool status -v tank");
    assert!(status.contains("No known data errors"), "{status}");
    server.ok("zpool scrub -w tank");
    let status = server.ok("zpool status -v tank");
    assert!(status.contains("with 0 errors"), "{status}");
    server.ok("zpool export tank");
    zdb_finds_no_leaks(&disks, "tank");
    zdb_is_clean(&disks, "tank");
}
