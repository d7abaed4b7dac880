//! Two hosts and one pool with `multihost=on`: the server here, and the real OpenZFS in the peer machine. Neither takes
//! the pool while the other has it; after a power cut it can be taken by force.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::harness::{Peer, Server, can_mount, need, zdb_is_clean};

fn changed(disk: &str) -> SystemTime {
    std::fs::metadata(disk)
        .and_then(|data| data.modified())
        .expect("the disk's time")
}

#[test]
fn no_two_hosts_have_a_pool() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::prepare();
    server.hostid = Some("0x11223344");
    server.launch(&["daemon"]);
    let disks = server.disks(1, 256 << 20);
    let disk = &disks[0];
    // A disk for the server as it is one in the peer.
    let device = server.attach(&disks).remove(0);
    let mount = server.text("mnt");
    server.ok(&format!(
        "zpool create -o multihost=on -O mountpoint={mount} shared {device}"
    ));
    std::fs::write(format!("{mount}/ours"), "ours").expect("a file");
    server.ok("zpool sync shared");
    let attached = [format!("{disk},d0")];
    // The peer's disks are loop devices that cache what they read: it would never see our heartbeats. So it takes
    // the disk below.
    let host = "echo 0x55667788 >/sys/module/spl/parameters/spl_hostid; \
        disk=/dev/$(basename $(dirname $(grep -lx d0 /sys/block/vd*/serial))); \
        losetup -d $(readlink -f /dev/disk/peer/d0);";

    // We have it.
    let text = peer.run(
        &attached,
        &[],
        &format!("{host} zpool import -d $disk -f shared 2>&1 && echo TAKEN || echo REFUSED"),
    );
    assert!(
        text.contains("REFUSED") && text.contains("imported on"),
        "{text}"
    );
    std::fs::write(format!("{mount}/more"), "more").expect("a file");
    server.ok("zpool sync shared");
    assert!(server.ok("zpool status shared").contains("state: ONLINE"));
    server.ok("zpool export shared");

    // The peer has it, and then goes down with it.
    let import = format!("zpool import -d {device} shared");
    std::thread::scope(|scope| {
        let before = changed(disk);
        let other = scope.spawn(|| {
            peer.run(
                &attached,
                &["-k"],
                &format!(
                    "{host} set -e; zpool import -d $disk -R /mnt shared; cat /mnt/*/ours /mnt{mount}/ours 2>/dev/null | head -c 4; \
                     echo theirs >/mnt{mount}/theirs; zpool sync shared; sleep 90; echo; echo POWERCUT; sleep 60"
                ),
            )
        });
        server.wait_until(
            Duration::from_secs(300),
            "the peer imports the pool",
            || other.is_finished() || changed(disk) != before,
        );
        assert!(!other.is_finished(), "{:?}", other.join());
        std::thread::sleep(Duration::from_secs(10));
        for options in ["", " -f"] {
            let error = server.fails(&format!("{import}{options}"));
            assert!(error.contains("imported on"), "{error}");
        }
        assert!(!other.is_finished(), "the peer was too fast for this test");
        let text = other.join().expect("the peer");
        assert!(text.contains("ours"), "{text}");
    });
    let error = server.fails(&import);
    assert!(error.contains("previously in use"), "{error}");
    server.ok(&format!("{import} -f"));
    for name in ["ours", "more", "theirs"] {
        assert!(Path::new(&mount).join(name).exists(), "{name}");
    }
    server.ok("zpool export shared");
    server.detach();
    zdb_is_clean(&server.path("disks"), "shared");
}
