//! Which pools a start brings back, after a stop and after `kill -9`, and what those leave that it
//! does not.

use std::time::Duration;

use crate::harness::{Server, can_mount, text_of, zdb_is_clean};

fn names(server: &Server) -> String {
    server.ok("zpool list -H -o name").replace('\n', " ")
}

/// Goal: a pool keeps its place wherever a crash stops `zpool reguid`. Method: kills around it,
/// then the list as a crash leaves it that came between the labels and the list.
#[test]
fn a_pool_that_was_just_given_another_guid_is_found() {
    let mut server = Server::start();
    let disks = server.disks(2, 128 << 20).join(" ");
    server.ok(&format!(
        "zpool create -O mountpoint=none tank mirror {disks}"
    ));
    let guid = |server: &Server| {
        let text = server.ok("zpool get -Hp -o value guid tank");
        text.trim().parse::<u64>().expect("a number")
    };
    for round in 0..12 {
        let (old, new) = (guid(&server), 4711 + round);
        let reguid = server.begin(&["zpool", "reguid", "-g", &new.to_string(), "tank"]);
        std::thread::sleep(Duration::from_millis(4 + 2 * round));
        server.kill_only();
        let ended = reguid.wait_with_output().expect("the command ends");
        // A command that found nobody has started a server.
        server.command(&["down"]);
        server.launch(&["daemon"]);
        assert_eq!(names(&server), "tank ", "{round}:\n{}", server.log());
        let now = guid(&server);
        let possible = [new, if ended.status.success() { new } else { old }];
        assert!(possible.contains(&now), "{round}: {now} of {possible:?}");
    }
    server.kill_only();
    let path = server.state().join("pools.json");
    let text = std::fs::read_to_string(&path).expect("the list");
    let mut list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    list[0]["next_guid"] = list[0]["guid"].take();
    list[0]["guid"] = 17.into();
    std::fs::write(&path, list.to_string()).expect("the list");
    for _ in 0..2 {
        server.launch(&["daemon"]);
        assert_eq!(names(&server), "tank ", "{}", server.log());
        server.kill_only();
    }
    let text = std::fs::read_to_string(&path).expect("the list");
    let list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let first = &list[0];
    assert!(first.get("next_guid").is_none(), "{text}");
    assert!(first["guid"] != 17, "{text}");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: a table of the server's that is not understood (damage, a later release) is left as it is,
/// its part does nothing, and that is told; the file is good again after it. Method: the files are
/// replaced between two runs; a pool is imported by hand meanwhile.
#[test]
fn what_a_start_does_not_understand_stays_and_is_told() {
    let mut server = Server::start();
    let disk = server.disks(1, 128 << 20).remove(0);
    server.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    server.ok("schedule set scrub tank --every day --name often");
    server.stop();
    let files = ["pools.json", "schedules.json", "replications.json"];
    let path = |server: &Server, file: &str| server.state().join(file);
    let mut before = Vec::new();
    for file in files {
        before.push(std::fs::read(path(&server, file)).ok());
        std::fs::write(path(&server, file), r#"{"version": 2}"#).expect("a file");
    }
    server.launch(&["daemon"]);
    let status = text_of(&server.command(&["zpool", "status"]));
    assert!(status.contains("pools.json"), "{status}");
    assert!(server.fails("zpool status tank").contains("pools.json"));
    assert!(server.fails("schedule list").contains("schedules.json"));
    let told = server.fails("replicate --list");
    assert!(told.contains("replications.json"), "{told}");
    for file in files {
        server.wait_until("alerts tell of it", || server.ok("alerts").contains(file));
    }
    let directory = server.text("disks");
    let import = format!("zpool import -d {directory} tank");
    let imported = server.command(&import.split(' ').collect::<Vec<_>>());
    let told = text_of(&imported);
    assert!(
        imported.status.success() && told.contains("by hand"),
        "{told}"
    );
    let refused = server.fails("schedule set scrub tank --every day --name other");
    assert!(refused.contains("stays"), "{refused}");
    server.ok("zpool export tank");
    server.ok(&import);
    server.stop();
    for (file, before) in files.into_iter().zip(before) {
        let now = std::fs::read_to_string(path(&server, file)).expect("it");
        assert_eq!(now, r#"{"version": 2}"#, "{file}");
        match before {
            Some(before) => std::fs::write(path(&server, file), before),
            None => std::fs::remove_file(path(&server, file)),
        }
        .expect("as before");
    }
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "tank ");
    assert!(server.ok("schedule list").contains("often"));
    server.ok("schedule remove often");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: a list of pools that belongs to another user is not used, and it is told how it is again.
#[test]
fn a_list_of_somebody_else_is_told_of_and_taken_over_as_is_said() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut server = Server::start();
    let disk = server.disks(1, 128 << 20).remove(0);
    server.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    server.stop();
    let path = server.state().join("pools.json");
    std::os::unix::fs::chown(&path, Some(1000), None).expect("another owner");
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "");
    let told = server.fails("zpool status tank");
    let remedy = format!("chown 0 {}", path.display());
    assert!(
        told.contains("user 1000") && told.contains(&remedy),
        "{told}"
    );
    server.stop();
    crate::harness::run("chown", &["0", &path.to_string_lossy()]);
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "tank ");
    server.ok("zpool destroy tank");
}

/// Goal: a log device that is not there keeps a pool away only where something may be on it.
#[test]
fn a_start_does_without_a_log_on_which_nothing_is() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(2, 128 << 20);
    let away = server.text("away.img");
    let mount = server.path("mnt");
    server.ok(&format!(
        "zpool create -m {} tank {} log {}",
        mount.display(),
        disks[0],
        disks[1]
    ));
    let write_synced = |name: &str| {
        let file = std::fs::File::create(mount.join(name)).expect("a file");
        file.set_len(5000).expect("its length");
        file.sync_all().expect("fsync");
    };
    write_synced("logged");
    server.kill();
    std::fs::rename(&disks[1], &away).expect("the log goes");
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "", "{}", server.log());
    let told = server.fails("zpool status tank");
    assert!(told.contains("may be lost in tank"), "{told}");
    std::fs::rename(&away, &disks[1]).expect("the log is back");
    server.stop();
    server.launch(&["daemon"]);
    assert!(mount.join("logged").exists(), "{}", server.log());
    // All is in the pool when the server has left it; and what is logged without the log is in the
    // pool.
    server.stop();
    std::fs::rename(&disks[1], &away).expect("the log goes");
    server.launch(&["daemon"]);
    write_synced("without");
    server.kill();
    server.launch(&["daemon"]);
    for name in ["logged", "without"] {
        assert!(mount.join(name).exists(), "{name}:\n{}", server.log());
    }
    let health = server.ok("zpool list -H -o health");
    assert_eq!(health, "DEGRADED\n");
    let warning = "opened without devices of the intent log";
    assert!(server.log().contains(warning), "{}", server.log());
    std::fs::rename(&away, &disks[1]).expect("the log is back");
    server.kill();
    server.launch(&["daemon"]);
    assert_eq!(server.ok("zpool list -H -o health"), "ONLINE\n");
    write_synced("again with it");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: a pool with a temporary name is not imported at the next start, as OpenZFS says of `-t`;
/// what is left of its mount is in nobody's way.
#[test]
fn a_temporary_name_lasts_no_longer_than_the_server() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(2, 128 << 20);
    let mount = server.text("mnt");
    server.ok(&format!(
        "zpool create -t short -m {mount} tank {}",
        disks[0]
    ));
    let get = "zpool get -H -o value cachefile short";
    assert_eq!(server.ok(get), "none\n");
    server.kill_only();
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "", "{}", server.log());
    // The mount is dead, and there.
    let error = std::fs::read_dir(&mount).expect_err("nobody serves it");
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::NOTCONN.raw_os_error())
    );
    server.ok(&format!("zpool create -n -m {mount} other {}", disks[1]));
    std::fs::read_dir(&mount).expect_err("it was only asked");
    server.ok(&format!("zpool create -m {mount} other {}", disks[1]));
    std::fs::write(format!("{mount}/file"), "x").expect("a file");
    let directory = server.text("disks");
    server.ok(&format!("zpool import -N -d {directory} -t tank short"));
    assert_eq!(server.ok(get), "none\n");
    server.ok("zpool export short");
    server.ok(&format!(
        "zpool import -N -d {directory} -t -o cachefile= tank short"
    ));
    server.kill();
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "other tank ", "{}", server.log());
}

/// Goal: a pool that names a cache file has its configuration there as long as it is imported, is
/// left to whoever reads it, and is found by it also when its devices have other names; a file that
/// is something else stays.
#[test]
fn a_pool_is_in_the_cache_file_that_it_names() {
    let mut server = Server::start();
    let disks = server.disks(2, 128 << 20);
    let (file, kept) = (server.text("cache"), server.text("kept"));
    server.ok(&format!(
        "zpool create -m none -o cachefile={file} tank {}",
        disks[0]
    ));
    server.ok(&format!("zpool create -m none other {}", disks[1]));
    std::fs::copy(&file, &kept).expect("the file is there");
    server.kill();
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "other ", "{}", server.log());
    let moved = format!("{}.moved", disks[0]);
    std::fs::rename(&disks[0], &moved).expect("renamed");
    let shown = server.ok(&format!("zpool import -c {kept}"));
    assert!(shown.contains("pool: tank"), "{shown}");
    assert!(!shown.contains("pool: other"), "{shown}");
    server.ok(&format!("zpool import -N -c {kept} tank"));
    assert_eq!(names(&server), "other tank ", "{}", server.log());

    server.ok(&format!("zpool set cachefile={file} tank"));
    let get = "zpool get -H -o value cachefile tank";
    assert_eq!(server.ok(get), format!("{file}\n"));
    server.ok("zpool export tank");
    let left = std::fs::exists(&file).expect("it can be looked at");
    assert!(!left, "the pool is gone, its configuration is not");
    std::fs::write(&file, "mine").expect("a file");
    server.ok(&format!("zpool import -N -c {kept} tank"));
    let text = server.fails(&format!("zpool set cachefile={file} tank"));
    assert!(text.contains("something else"), "{text}");
    assert_eq!(std::fs::read(&file).expect("it"), b"mine");
}

/// Goal: of pools that are imported together, one that is mounted in another one is so after it,
/// and one that cannot be imported keeps none from it.
#[test]
fn pools_that_are_imported_together_are_mounted_in_order() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(4, 128 << 20);
    let outer = server.text("mnt");
    for (index, name) in ["one", "two", "three"].into_iter().enumerate() {
        let mount = match name {
            "one" => outer.clone(),
            name => format!("{outer}/{name}"),
        };
        server.ok(&format!("zpool create -m {mount} {name} {}", disks[index]));
        std::fs::write(format!("{mount}/file"), name).expect("a file");
    }
    server.ok("zpool export three");
    server.ok("zpool export two");
    server.ok("zpool export one");
    // Another one of that name.
    server.ok(&format!("zpool create -m none two {}", disks[3]));
    let directory = server.text("disks");
    let text = server.fails(&format!("zpool import -a -d {directory}"));
    assert!(text.contains("cannot import 'two'"), "{text}");
    assert_eq!(names(&server), "one three two ", "{}", server.log());
    for (path, content) in [("file", "one"), ("three/file", "three")] {
        let found = std::fs::read_to_string(format!("{outer}/{path}")).expect("mounted");
        assert_eq!(found, content);
    }
}
