//! Goal: `zpool initialize` and `zpool trim` do, say and refuse what OpenZFS's do. Method: a server
//! and pools on files; contents and zdb in the end.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::harness::{Server, can_mount, zdb_is_clean};

const CONTENT: &str = "line after line\n";

#[test]
fn devices_are_initialized_and_trimmed() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(2, 128 << 20);
    let mount = server.text("mount");
    server.ok(&format!(
        "zpool create -o ashift=12 -m {mount} tank mirror {} {}",
        disks[0], disks[1]
    ));
    let file = Path::new(&mount).join("file");
    std::fs::write(&file, CONTENT.repeat(100_000)).expect("write");
    let lines = |option: &str, word: &str| {
        let status = server.ok(&format!("zpool status {option} tank"));
        status.lines().filter(|line| line.contains(word)).count()
    };
    assert_eq!(lines("-i", "(uninitialized)"), 2);
    assert_eq!(lines("-t", "(untrimmed)"), 2);

    for (words, said) in [
        ("initialize", "missing pool name argument"),
        ("trim", "missing pool name argument"),
        (
            "initialize -c -s tank",
            "cannot be combined with other options",
        ),
        (
            "initialize -w -c tank",
            "-w cannot be used with -c, -sor -u",
        ),
        (
            "initialize -a tank",
            "-a cannot be combined with individual pools or vdevs",
        ),
        ("trim -r 1X tank", "invalid value for rate"),
        (
            "trim -c -r 1M tank",
            "-r cannot be combined with the -c or -s options",
        ),
        ("trim -w -s tank", "-w cannot be used with -c or -s options"),
        ("initialize -c tank", "there is no active initialization"),
        ("trim -s tank", "there is no active trim"),
        (
            "trim tank mirror-0",
            "cannot trim 'mirror-0': invalid device",
        ),
        (
            "initialize tank /nowhere",
            "cannot initialize '/nowhere': no such device in pool",
        ),
        (
            "trim -d tank",
            "trim operations are not supported by this device",
        ),
        ("initialize nopool", "no such pool"),
    ] {
        let text = server.fails(&format!("zpool {words}"));
        assert!(text.contains(said), "{words}: {text}");
    }

    let taken = || -> u64 {
        let blocks = disks
            .iter()
            .map(|disk| Path::new(disk).metadata().expect("a disk").blocks());
        blocks.sum::<u64>() * 512
    };
    server.ok(&format!("zpool initialize -w tank {}", disks[0]));
    assert_eq!(lines("-i", "(100% initialized, completed at"), 1);
    assert!(taken() > 100 << 20);
    server.ok("zpool initialize tank");
    server.ok("zpool wait -t initialize tank");
    assert_eq!(lines("-i", "(100% initialized, completed at"), 2);
    let full = taken();
    server.ok("zpool initialize -u tank");
    assert_eq!(lines("-i", "(uninitialized)"), 2);

    server.ok("zpool trim -r 4M tank");
    let refused = server.fails(&format!("zpool trim tank {}", disks[1]));
    assert!(refused.contains("currently trimming"), "{refused}");
    assert_eq!(lines("", "(trimming)"), 2);
    server.ok("zpool trim -s tank");
    assert_eq!(lines("-t", "trimmed, suspended, started at"), 2);
    server.ok("zpool trim -c tank");
    assert_eq!(lines("-t", "(untrimmed)"), 2);
    server.ok("zpool trim -w tank");
    assert_eq!(lines("-t", "(100% trimmed, completed at"), 2);
    assert!(taken() < full / 2, "{} of {full}", taken());
    let events = server.ok("zpool events");
    for name in ["trim_start", "trim_suspend", "trim_cancel", "trim_finish"] {
        assert!(events.contains(name), "{name}: {events}");
    }
    let history = server.ok("zpool history -i tank");
    assert!(history.contains("initialize vdev="), "{history}");
    assert!(history.contains("zpool trim -w tank"), "{history}");
    assert_eq!(
        std::fs::read_to_string(&file).expect("read"),
        CONTENT.repeat(100_000)
    );
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
