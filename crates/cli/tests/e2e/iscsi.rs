//! A volume over the network: Linux's own initiator in the peer machine uses it for real.

use crate::harness::{Peer, Server, can_mount, finds, need, run, zdb_is_clean};

#[test]
fn linux_logs_in_makes_a_filesystem_and_finds_it_after_a_restart() {
    if !can_mount() {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    let disks = server.disks(2, 1 << 30);
    server.ok(&format!(
        "zpool create -m none tank mirror {}",
        disks.join(" ")
    ));
    server.ok("zfs create -s -V 256M -o millpond:iscsi=on tank/vol");
    let info = server.ok("info");
    let iqn = info
        .lines()
        .find_map(|line| line.strip_prefix("iscsi: "))
        .and_then(|line| line.split(' ').next())
        .expect("a share")
        .to_owned();
    let port = server.iscsi_port;
    let login = format!(
        "iscsiadm -m node -T {iqn} -p 10.0.2.2:{port} --op new >/dev/null\niscsiadm -m node -T {iqn} -p 10.0.2.2:{port} --login\n\
         for i in $(seq 100); do d=$(ls /dev/sd? 2>/dev/null | head -n 1); [ -n \"$d\" ] && break; sleep 0.2; done\n[ -b \"$d\" ]\n"
    );
    let out = server.path("out");
    let first = format!(
        "set -e\n{login}mkfs.ext4 -q $d\nmkdir -p /m /peer/out\nmount $d /m\ncp -a /lib /m/copy\nsync\n\
         (cd /m/copy && find . -type f -print0 | sort -z | xargs -0 sha256sum) > /peer/out/sums\n\
         (cd /lib && find . -type f -print0 | sort -z | xargs -0 sha256sum) | cmp - /peer/out/sums\n\
         umount /m\niscsiadm -m node -T {iqn} -p 10.0.2.2:{port} --logout\n"
    );
    peer.run(&[], &["-n", "-o", &out.to_string_lossy()], &first);
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
    server.launch(&["daemon"]);
    let again = server.path("again");
    let second = format!(
        "set -e\n{login}mkdir -p /m /peer/out\ne2fsck -f -n $d\nmount $d /m\n\
         (cd /m/copy && find . -type f -print0 | sort -z | xargs -0 sha256sum) > /peer/out/sums\numount /m\n\
         iscsiadm -m node -T {iqn} -p 10.0.2.2:{port} --logout\n"
    );
    peer.run(&[], &["-n", "-o", &again.to_string_lossy()], &second);
    let sums = std::fs::read_to_string(out.join("sums")).expect("sums of the first time");
    assert!(sums.lines().count() > 3, "{sums}");
    assert_eq!(
        sums,
        std::fs::read_to_string(again.join("sums")).expect("sums of the second time")
    );
}

/// The address of a target's first LUN, as libiscsi takes it.
fn first_lun(server: &Server, target: &str) -> String {
    let portal = format!("iscsi://127.0.0.1:{}", server.iscsi_port);
    let listed = run("iscsi-ls", &["-s", &portal]);
    let iqn = listed
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("Target:"))
        .find(|iqn| iqn.ends_with(target))
        .unwrap_or_else(|| panic!("no target {target} in {listed}"));
    format!("{portal}/{iqn}/0")
}

#[test]
fn libiscsi_finds_the_target_conforming() {
    if !can_mount() || !need("iscsi-test-cu", finds("iscsi-test-cu")) {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 512 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    server.ok("zfs create -s -V 64M -o millpond:iscsi=on tank/vol");
    let url = first_lun(&server, "tank:vol");
    for family in [
        "ALL.Read16",
        "ALL.Write16",
        "ALL.Unmap",
        "ALL.WriteSame16",
        "ALL.Inquiry",
        "ALL.ReadCapacity16",
    ] {
        let text = run("iscsi-test-cu", &["--dataloss", "--test", family, &url]);
        assert!(
            text.contains("Run Summary") && !text.contains("FAILED"),
            "{family}:\n{text}"
        );
    }
}

#[test]
fn qemu_copies_an_image_to_the_volume() {
    let module = format!(
        "/usr/lib/{}-linux-gnu/qemu/block-iscsi.so",
        std::env::consts::ARCH
    );
    if !can_mount()
        || !need(
            "qemu's iSCSI (qemu-block-extra)",
            std::path::Path::new(&module).exists(),
        )
    {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 512 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    server.ok("zfs create -s -V 96M -o millpond:iscsi=on tank/vol");
    let url = first_lun(&server, "tank:vol");
    let image = server.path("image");
    let image = image.to_string_lossy();
    run(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={image}"),
            "bs=1M",
            "count=96",
        ],
    );
    run(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", &image, &url],
    );
    run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &image, &url],
    );
    let text = run(
        "qemu-io",
        &[
            "-f",
            "raw",
            "-c",
            "discard 0 32M",
            "-c",
            "write -z 32M 32M",
            "-c",
            "flush",
            "-c",
            "read -P 0 0 64M",
            &url,
        ],
    );
    assert!(
        text.contains("read 67108864/67108864") && !text.contains("failed"),
        "{text}"
    );
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
