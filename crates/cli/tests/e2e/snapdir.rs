//! Snapshots that somebody looks into through `.zfs/snapshot`.

use std::fs::{File, read_to_string, write};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::harness::{Server, can_mount, run, zdb_is_clean};

/// Goal: a snapshot with an open file, or a process's directory, is not destroyed and stays whole;
/// idle, it is. Method: all kinds of use, each tried twice, and the content read while and after it
/// was refused.
#[test]
fn a_snapshot_in_use_is_not_destroyed() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = &server.disks(1, 512 << 20)[0];
    let top = server.path("mnt");
    server.ok(&format!("zpool create -m {} tank {disk}", top.display()));
    let content: Vec<u8> = (0..3u32 << 20).map(|at| (at >> 7) as u8).collect();
    std::fs::create_dir_all(top.join("d/deep")).unwrap();
    write(top.join("d/deep/file"), &content).unwrap();
    for name in ["idle", "used", "other"] {
        server.ok(&format!("zfs snapshot tank@{name}"));
    }
    std::fs::remove_dir_all(top.join("d")).unwrap();
    let below = |snapshot: &str| top.join(".zfs/snapshot").join(snapshot).join("d/deep");
    // Whoever has only looked is not in the way, whatever the kernel remembers of it.
    run("ls", &["-lR", &top.join(".zfs/snapshot").to_string_lossy()]);
    assert_eq!(std::fs::read(below("idle").join("file")).unwrap(), content);
    server.ok("zfs destroy tank@idle");

    let busy = |command: &str| {
        let refused = server.fails(command);
        assert!(
            refused.contains("cannot destroy snapshot tank@used: dataset is busy"),
            "{command}: {refused}"
        );
        let there = server.ok("zfs list -H -t snapshot -o name");
        assert_eq!(there, "tank@used\ntank@other\n", "after {command}");
    };
    let file = File::open(below("used").join("file")).unwrap();
    let mut buffer = vec![0; 70_000];
    // All or none of a list, also later.
    for command in [
        "zfs destroy tank@used",
        "zfs destroy tank@other,used",
        "zfs destroy -d tank@used",
    ] {
        busy(command);
        file.read_exact_at(&mut buffer, 1 << 20).unwrap();
        assert!(buffer == content[1 << 20..][..buffer.len()]);
    }
    drop(file);
    let mut shell = Command::new("sh")
        .args(["-c", "echo in; read wait; pwd -P; sha256sum <file"])
        .current_dir(below("used"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    busy("zfs destroy tank@used");
    busy("zfs destroy tank@used");
    shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let said = String::from_utf8(shell.wait_with_output().unwrap().stdout).unwrap();
    let path = below("used").canonicalize().unwrap();
    assert!(said.contains(&*path.to_string_lossy()), "{said}");
    write(top.join("copy"), &content).unwrap();
    let sum = run("sha256sum", &[&top.join("copy").to_string_lossy()]);
    assert!(said.contains(&sum[..64]), "{said}");
    // Nobody is there any more; what the kernel kept when it was refused is found again.
    server.ok("zfs destroy tank@other,used");
    assert!(read_to_string(below("used").join("file")).is_err());
    assert_eq!(server.ok("zfs list -H -t snapshot -o name"), "");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
