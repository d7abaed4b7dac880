//! Goal: `zfs diff` tells what changed, as OpenZFS does. Method: every kind of change and of file,
//! between snapshots, to what is there now, and to a clone; golden output.

use std::fs::{create_dir, hard_link, remove_dir, remove_file, rename, write};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::harness::{Server, can_mount, run, zdb_is_clean};

#[test]
fn what_changed_is_told() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = &server.disks(1, 256 << 20)[0];
    let top = server.text("mnt");
    server.ok(&format!("zpool create -O mountpoint={top} tank {disk}"));
    server.ok("zfs create tank/a");
    let at = |path: &str| PathBuf::from(&top).join("a").join(path);
    for name in [
        "same",
        "changed",
        "removed",
        "renamed",
        "linked",
        "odd name\\ä",
        "many",
    ] {
        write(at(name), name).unwrap();
    }
    for name in ["dir", "dir/deep", "gone"] {
        create_dir(at(name)).unwrap();
    }
    write(at("gone/f"), "f").unwrap();
    // More objects than a block of dnodes has, so that whole blocks come and go.
    for number in 0..200 {
        write(at(&format!("dir/{number}")), "x").unwrap();
    }
    server.ok("zfs snapshot tank/a@1");
    write(at("changed"), "otherwise").unwrap();
    write(at("odd name\\ä"), "changed").unwrap();
    remove_file(at("removed")).unwrap();
    rename(at("renamed"), at("dir/moved")).unwrap();
    hard_link(at("linked"), at("dir/link")).unwrap();
    remove_file(at("gone/f")).unwrap();
    remove_dir(at("gone")).unwrap();
    for number in 50..200 {
        remove_file(at(&format!("dir/{number}"))).unwrap();
    }
    write(at("new"), "new").unwrap();
    symlink("new", at("symlink")).unwrap();
    run("mkfifo", &[&at("fifo").to_string_lossy()]);
    create_dir(at("made")).unwrap();
    let told = |words: &str| -> Vec<String> {
        let text = server.ok(&format!("zfs diff {words}")).replace(&top, "");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.retain(|line| !line.contains("/dir/1") || line.contains("link"));
        lines.sort();
        lines
    };
    let mut expected: Vec<String> = [
        "M\t/\t/a/",
        "M\tF\t/a/changed",
        "M\tF\t/a/odd\\0040name\\0134\\0303\\0244",
        "-\tF\t/a/removed",
        "R\tF\t/a/renamed -> /a/dir/moved",
        "M\tF\t/a/linked\t(+1)",
        "M\t/\t/a/dir",
        "-\t/\t/a/gone",
        "-\tF\t/a/gone/f",
        "+\tF\t/a/new",
        "+\t@\t/a/symlink",
        "+\t|\t/a/fifo",
        "+\t/\t/a/made",
    ]
    .map(str::to_owned)
    .to_vec();
    expected.extend((50..100).map(|number| format!("-\tF\t/a/dir/{number}")));
    expected.sort();
    // Numbers of objects that were used again are told as removed and made: the same set.
    let now = told("-F tank/a@1");
    assert_eq!(now, expected);
    // Nothing is left of the snapshot that this took.
    assert_eq!(server.ok("zfs list -H -o name -t snapshot"), "tank/a@1\n");
    server.ok("zfs snapshot tank/a@2");
    assert_eq!(told("-F tank/a@1 tank/a@2"), expected);
    assert_eq!(told("-F tank/a@1 @2"), expected);
    assert!(told("tank/a@2").is_empty());
    let raw = server.ok("zfs diff -hH tank/a@1 tank/a@2");
    assert!(raw.contains("/a/odd name\\ä\n"), "{raw}");
    assert!(
        raw.contains(&format!("R\t{top}/a/renamed\t{top}/a/dir/moved\n")),
        "{raw}"
    );
    let timed = server.ok("zfs diff -t tank/a@1 tank/a@2");
    let stamp = timed.split('\t').next().unwrap_or("").trim().to_owned();
    let (seconds, nanoseconds) = stamp.split_once('.').expect("two numbers");
    assert!(
        seconds.parse::<u64>().unwrap() > 1_700_000_000 && nanoseconds.len() == 9,
        "{stamp}"
    );

    server.ok("zfs clone tank/a@2 tank/c");
    write(PathBuf::from(&top).join("c/more"), "more").unwrap();
    let clone = server.ok("zfs diff tank/a@2 tank/c").replace(&top, "");
    assert_eq!(clone, "M\t/c/\n+\t/c/more\n");
    for (words, said) in [
        (
            "tank/a@2 tank/a@1",
            "Not an earlier snapshot from the same fs",
        ),
        ("tank/c@none", "does not exist"),
        ("tank/a", "Badly formed snapshot name tank/a"),
        (
            "tank/a@1 tank@2",
            "Not an earlier snapshot from the same fs",
        ),
        ("@1", "usage:"),
    ] {
        let text = server.fails(&format!("zfs diff {words}"));
        assert!(text.contains(said), "{words}: {text}");
    }
    server.ok("zfs unmount tank/a");
    let text = server.fails("zfs diff tank/a@1");
    assert!(text.contains("Cannot diff an unmounted snapshot"), "{text}");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: what `zfs wait` waits for is over when it returns; versions are told and raised, and what
/// was there before stays readable.
#[test]
fn filesystems_are_upgraded_and_waited_for() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = &server.disks(1, 256 << 20)[0];
    let top = server.text("mnt");
    server.ok(&format!("zpool create -O mountpoint={top} tank {disk}"));
    for version in [1, 3, 4] {
        server.ok(&format!("zfs create -o version={version} tank/v{version}"));
        write(format!("{top}/v{version}/old"), "old").unwrap();
    }
    let shown = server.ok("zfs upgrade");
    assert!(
        shown.contains(" 1   tank/v1\n 3   tank/v3\n 4   tank/v4\n"),
        "{shown}"
    );
    assert!(
        server
            .ok("zfs upgrade -v")
            .contains(" 5   System attributes\n")
    );
    assert_eq!(
        server.ok("zfs upgrade -V 4 tank/v1 tank/v4"),
        "1 filesystems upgraded\n1 filesystems already at this version\n"
    );
    let output = server.command(&["zfs", "upgrade", "-V", "3", "tank/v4"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    let told = "tank/v4: can not be downgraded; it is already at version 4\n";
    assert!(
        shown.starts_with(told) && !output.status.success(),
        "{shown}"
    );
    let said = server.fails("zfs set version=3 tank/v4");
    assert!(said.contains("downgrade"), "{said}");
    assert_eq!(
        server.ok("zfs upgrade -a"),
        "3 filesystems upgraded\n1 filesystems already at this version\n"
    );
    assert!(
        server
            .ok("zfs upgrade")
            .contains("All filesystems are formatted with the current")
    );
    for version in [1, 3, 4] {
        let at = |name: &str| format!("{top}/v{version}/{name}");
        assert_eq!(std::fs::read(at("old")).unwrap(), b"old");
        write(at("old"), "changed").unwrap();
        write(at("new"), "new").unwrap();
        run("setfattr", &["-n", "user.x", "-v", "y", &at("new")]);
        run("setfattr", &["-n", "user.x", "-v", "y", &at("old")]);
        assert_eq!(
            server.ok(&format!("zfs get -H -o value version tank/v{version}")),
            "5\n"
        );
    }
    let history = server.ok("zpool history -i tank");
    assert!(
        history.contains("upgrade tank/v1 (") && history.contains("from 4 to 5"),
        "{history}"
    );
    // What is removed while it is open is freed when it is closed.
    let path = format!("{top}/v4/big");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    remove_file(&path).unwrap();
    let mut waiting = server.begin(&["zfs", "wait", "-t", "deleteq", "tank/v4"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(waiting.try_wait().unwrap().is_none(), "it did not wait");
    drop(file);
    assert!(waiting.wait().unwrap().success());
    assert!(
        server
            .fails("zfs wait -t scrub tank/v4")
            .contains("invalid activity 'scrub'")
    );
    assert!(
        server
            .fails("zfs wait tank/none")
            .contains("cannot open 'tank/none'")
    );
    server.ok("zfs unmount tank/v3");
    server.ok("zfs wait tank/v3");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
