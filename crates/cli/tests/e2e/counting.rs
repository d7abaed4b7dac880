//! Goal: what users, groups and projects use is counted in filesystems from before their pool could
//! count it, whenever the server is killed meanwhile. Method: a pool without features, upgraded.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use crate::harness::{Server, can_mount, finds, run, zdb_is_clean};

/// Bytes and objects by owner, as far as they are counted.
fn uses(server: &Server, command: &str, name: &str) -> Option<BTreeMap<u32, (u64, u64)>> {
    let fields = "name,used,objused";
    let words: Vec<&str> = match command {
        "projectspace" => vec!["zfs", command, "-Hpo", fields, name],
        _ => vec!["zfs", command, "-Hnpo", fields, name],
    };
    let output = server.command(&words);
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |line: &str| {
        let mut fields = line.split('\t');
        let owner = fields.next()?.parse().ok()?;
        let bytes = fields.next()?.parse().ok()?;
        Some((owner, (bytes, fields.next()?.parse().ok()?)))
    };
    text.lines().map(row).collect()
}

/// Objects that users have in a directory, it included, by what the files say.
fn owned(top: &Path, counts: &mut BTreeMap<u32, u64>) {
    *counts.entry(fs::metadata(top).unwrap().uid()).or_default() += 1;
    for entry in fs::read_dir(top).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => owned(&entry.path(), counts),
            false => *counts.entry(entry.metadata().unwrap().uid()).or_default() += 1,
        }
    }
}

/// Everything in a filesystem is counted, and belongs to no project but 0.
fn is_counted(server: &Server, name: &str, top: &Path) {
    server.ok("zpool sync tank");
    let mut expected = BTreeMap::new();
    owned(top, &mut expected);
    let users = uses(server, "userspace", name).expect("objects are counted");
    let objects = users.iter().map(|(user, (_, objects))| (*user, *objects));
    assert_eq!(objects.collect::<BTreeMap<_, _>>(), expected, "{name}");
    let total = |of: &BTreeMap<u32, (u64, u64)>| {
        let values = of.values();
        values.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let projects = uses(server, "projectspace", name).expect("projects are counted");
    assert_eq!(
        total(&projects),
        total(&users),
        "{name}: {projects:?} {users:?}"
    );
}

fn fill(top: &Path, files: u32) {
    for number in 0..files {
        let path = top.join(format!("file-{number}"));
        fs::write(&path, vec![b'x'; 700 * (number as usize % 9)]).unwrap();
        if number % 3 == 0 {
            chown(&path, Some(1000 + number % 4), Some(1000)).unwrap();
        }
    }
}

fn not_upgraded(files: u32) -> Server {
    let server = Server::start();
    let disk = &server.disks(1, 512 << 20)[0];
    let mountpoint = server.text("mnt");
    server.ok(&format!("zpool create -d -m {mountpoint} tank {disk}"));
    server.ok("zfs create tank/a");
    server.ok("zfs create tank/b");
    for name in ["", "a", "b"] {
        fill(&server.path("mnt").join(name), files);
    }
    server.ok("zpool sync tank");
    server
}

#[test]
fn what_was_there_before_an_upgrade_is_counted() {
    if !can_mount() {
        return;
    }
    let server = not_upgraded(40);
    let told = |name: &str| uses(&server, "userspace", name).is_some();
    let of_projects = "zfs projectspace tank/a";
    let said = server.fails(of_projects);
    assert!(said.contains("unsupported version or feature"), "{said}");
    server.ok("zfs unmount tank/b");
    server.ok("zpool upgrade tank");
    assert!(!told("tank") && !told("tank/a"));
    server.fails(of_projects);

    // The first change begins it, mounting does, and 'version=current' waits for it.
    let (a, b) = (server.path("mnt/a"), server.path("mnt/b"));
    fs::write(a.join("first"), "x").unwrap();
    fs::remove_file(a.join("file-3")).unwrap();
    let complete = |name: &str| {
        server.ok("zpool sync tank");
        told(name)
    };
    server.wait_until("counted after a change", || complete("tank/a"));
    server.ok("zfs mount tank/b");
    server.wait_until("counted after a mount", || complete("tank/b"));
    assert!(!told("tank"));
    server.ok("zfs set version=current tank");
    assert!(told("tank"));
    server.ok("zfs unmount -a");
    server.ok("zfs mount -a");
    is_counted(&server, "tank/a", &a);
    is_counted(&server, "tank/b", &b);

    if finds("chattr") {
        let dir = server.text("mnt/a/dir");
        fs::create_dir(&dir).unwrap();
        for of_project in [&dir, &server.text("mnt/a/file-6")] {
            run("chattr", &["-p", "100", of_project]);
        }
        is_counted(&server, "tank/a", &a);
        let projects = uses(&server, "projectspace", "tank/a").unwrap();
        assert_eq!(projects[&100].1, 2, "{projects:?}");
    }
    for number in 0..20 {
        let _ = fs::remove_file(b.join(format!("file-{number}")));
    }
    is_counted(&server, "tank/b", &b);
    let features = "zpool get -Ho value feature@userobj_accounting,feature@project_quota tank";
    assert_eq!(server.ok(features), "active\nactive\n");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

#[test]
fn counting_goes_on_after_a_crash() {
    if !can_mount() {
        return;
    }
    let mut server = not_upgraded(1500);
    server.ok("zpool upgrade tank");
    let b = server.path("mnt/b");
    for round in 0..3 {
        fs::write(b.join(format!("more-{round}")), "x").unwrap();
        let _ = fs::remove_file(b.join(format!("file-{round}")));
        if round < 2 {
            server.ok("zpool sync tank");
        }
        server.kill();
        server.launch(&["daemon"]);
    }
    server.wait_until("counted", || {
        server.ok("zpool sync tank");
        uses(&server, "userspace", "tank/b").is_some()
    });
    server.wait_until("all flags set", || {
        server.ok("zfs set version=current tank/b");
        uses(&server, "projectspace", "tank/b").is_some()
    });
    is_counted(&server, "tank/b", &b);
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
