//! Requests that want the same at the same time: one gets it, the others are told why not, and
//! nothing is lost.

use std::process::Output;

use crate::harness::{Server, can_mount, text_of, zdb_is_clean};

/// Runs all at once.
fn together(server: &Server, commands: &[Vec<&str>]) -> Vec<Output> {
    std::thread::scope(|scope| {
        let running: Vec<_> = commands
            .iter()
            .map(|words| scope.spawn(|| server.command(words)))
            .collect();
        let outputs = running.into_iter().map(|one| one.join());
        outputs.collect::<Result<_, _>>().expect("no panic")
    })
}

/// Checks that one worked and the others say one of `refusals`.
fn one_of(outputs: &[Output], refusals: &[&str]) {
    let (good, bad): (Vec<_>, Vec<_>) = outputs.iter().partition(|out| out.status.success());
    assert_eq!(good.len(), 1, "{outputs:?}");
    for output in bad {
        let text = text_of(output);
        assert!(
            refusals.iter().any(|refusal| text.contains(refusal)),
            "{text}"
        );
    }
}

/// Goal: of several who make a pool of one name, or import one pool, one does; the others are told
/// that it is there.
#[test]
fn one_of_many_gets_a_pool() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(4, 128 << 20);
    let mount = server.text("mnt");
    let option = format!("mountpoint={mount}");
    for round in 0..3 {
        let creates: Vec<_> = disks
            .iter()
            .map(|disk| vec!["zpool", "create", "-f", "-O", &option, "tank", disk])
            .collect();
        one_of(&together(&server, &creates), &["pool already exists"]);
        let file = format!("{mount}/round");
        std::fs::write(&file, format!("{round}")).expect("a file");
        server.ok("zpool export tank");
        let directory = server.text("disks");
        let guid = server.ok(&format!("zpool import -d {directory}"));
        let guid = guid
            .lines()
            .find_map(|line| line.trim().strip_prefix("id: "));
        let guid = guid.expect("an id").to_owned();
        let imports = ["tank", "tank", &guid, &guid]
            .map(|name| vec!["zpool", "import", "-d", &directory, name]);
        let imported = "already created/imported";
        one_of(&together(&server, &imports), &[imported]);
        assert_eq!(
            std::fs::read_to_string(&file).expect("the file"),
            format!("{round}")
        );
        server.ok("zpool export tank");
        let under = ["one", "two", "three"]
            .map(|name| vec!["zpool", "import", "-d", &directory, "tank", name]);
        // Where it has a new name already, there is none of the old one.
        one_of(
            &together(&server, &under),
            &[imported, "no such pool available"],
        );
        let name = server.ok("zpool list -H -o name");
        server.ok(&format!("zpool destroy {}", name.trim()));
    }
}

/// Goal: a pool that is not there at one start keeps its place, whatever happens to others
/// meanwhile, until it is exported.
#[test]
fn a_pool_that_comes_too_late_is_imported_by_the_next_start() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(3, 128 << 20);
    for (name, disk) in ["a", "b", "c"].iter().zip(&disks) {
        let mount = server.text(name);
        server.ok(&format!("zpool create -O mountpoint={mount} {name} {disk}"));
        std::fs::write(format!("{mount}/file"), name).expect("a file");
    }
    server.stop();
    let away = server.text("away.img");
    std::fs::rename(&disks[1], &away).expect("the disk goes");
    server.launch(&["daemon"]);
    assert!(
        server.log().contains("pool 'b' could not be imported"),
        "{}",
        server.log()
    );
    let names = |server: &Server| server.ok("zpool list -H -o name").replace('\n', " ");
    assert_eq!(names(&server), "a c ");
    for command in [&["zpool", "list"], &["zpool", "status"]] {
        let told = text_of(&server.command(command));
        let why = "pool 'b' could not be imported: cannot import 'b': none of its devices is there";
        assert!(told.contains(why), "{told}");
    }
    let told = server.fails("zpool status b");
    assert!(told.contains("none of its devices is there"), "{told}");
    server.ok("zpool export a");
    server.kill();
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "c ");
    server.stop();
    std::fs::rename(&away, &disks[1]).expect("the disk is back");
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "b c ");
    let file = format!("{}/file", server.text("b"));
    assert_eq!(std::fs::read_to_string(file).expect("the file"), "b");
    server.stop();
    // Who no longer waits for it says so.
    std::fs::rename(&disks[1], &away).expect("the disk goes");
    server.launch(&["daemon"]);
    server.ok("zpool export b");
    let error = server.fails("zpool export b");
    assert!(error.contains("no such pool"), "{error}");
    server.stop();
    std::fs::rename(&away, &disks[1]).expect("the disk is back");
    server.launch(&["daemon"]);
    assert_eq!(names(&server), "c ");
    server.stop();
    zdb_is_clean(&server.path("disks"), "b");
}

/// Goal: of several commands that start a server at once one does; what 'millpond down' stopped
/// stays so.
#[test]
fn nobody_takes_over_from_a_server_that_was_told_to_stop() {
    if !can_mount() {
        return;
    }
    let server = Server::prepare();
    let disk = server.disks(1, 128 << 20).remove(0);
    let mount = server.text("mnt");
    for round in 0..5 {
        let words = match round {
            0 => vec!["zpool", "list"],
            _ => vec!["start"],
        };
        for output in together(&server, &vec![words; 4]) {
            assert!(output.status.success(), "{}", text_of(&output));
        }
        if round == 0 {
            server.ok(&format!("zpool create -m {mount} tank {disk}"));
        }
        server.ok("down");
        // Longer than a server waits for another's lock.
        std::thread::sleep(std::time::Duration::from_secs(2));
        let info = text_of(&server.command(&["info"]));
        assert!(!info.contains("runs as"), "{info}");
    }
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: who asks a server that is being killed is served by the next one.
#[test]
fn a_command_right_after_a_kill_starts_another_server() {
    let mut server = Server::prepare();
    for _ in 0..15 {
        server.launch(&["daemon"]);
        let mut killed = server.begin_to_kill();
        server.ok("zpool list");
        killed.wait().expect("it is gone");
        server.ok("down");
    }
}
