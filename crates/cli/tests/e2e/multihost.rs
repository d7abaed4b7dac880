//! Two hosts and one pool with `multihost=on`: the server here, and the real OpenZFS in the peer
//! machine. Neither takes the pool while the other has it; after a power cut it can be taken by
//! force.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Peer, PeerOptions, Server, can_mount, need, zdb_is_clean};

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
    // On its second sector the peer tells that it has the pool; on the first it is told when to go
    // down.
    let signal = server.path("signal");
    std::fs::write(&signal, [0; 4096]).expect("a disk for the signal");
    let attached = [format!("{disk},d0"), format!("{},signal", signal.display())];
    // The peer's disks are loop devices that cache what they read: it would never see our
    // heartbeats. So it takes the disk below.
    let host = "echo 0x55667788 >/sys/module/spl/parameters/spl_hostid; \
        disk=/dev/$(basename $(dirname $(grep -lx d0 /sys/block/vd*/serial))); \
        signal=/dev/$(basename $(dirname $(grep -lx signal /sys/block/vd*/serial))); \
        losetup -d $(readlink -f /dev/disk/peer/d0);";

    // We have it.
    let text = peer.run(
        &attached,
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
        let other = scope.spawn(|| {
            peer.run_with(
                &attached,
                PeerOptions::default().loses_power(),
                &format!(
                    "{host} set -e; zpool import -d $disk -R /mnt shared; cat /mnt/*/ours \
                     /mnt{mount}/ours 2>/dev/null | head -c 4; \
                     echo theirs >/mnt{mount}/theirs; zpool sync shared; \
                     printf up | dd of=$signal bs=512 seek=1 conv=sync oflag=direct 2>/dev/null; \
                     for i in $(seq 400); do dd if=$signal bs=512 count=1 iflag=direct 2>/dev/null \
                     | grep -q down && break; sleep 1; done; \
                     echo; echo POWERCUT; sleep 60"
                ),
            )
        });
        // No limit of our own: others may have the peer for long, and what runs there ends in time.
        while !other.is_finished()
            && !std::fs::read(&signal).expect("the signal")[512..].starts_with(b"up")
        {
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(!other.is_finished(), "{:?}", other.join());
        for options in ["", " -f"] {
            let error = server.fails(&format!("{import}{options}"));
            assert!(error.contains("imported on"), "{error}");
        }
        assert!(!other.is_finished(), "the peer was too fast for this test");
        let file = std::fs::File::options().write(true).open(&signal);
        file.and_then(|mut file| file.write_all(b"down"))
            .expect("the signal");
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
