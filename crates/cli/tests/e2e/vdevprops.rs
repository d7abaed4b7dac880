//! Properties of vdevs: set and read by the command lines, kept over an export, and the same for
//! the real OpenZFS.

use std::path::Path;

use crate::harness::{Peer, Server, need, zdb_is_clean};

const SHOWN: &str = "comment,failfast,checksum_n,io_t,org.example:rack";

/// `property value source` of a vdev.
fn rows(server: &Server, vdev: &str) -> Vec<String> {
    let text = server.ok(&format!(
        "zpool get -H -o property,value,source {SHOWN} tank {vdev}"
    ));
    text.lines().map(|line| line.replace('\t', " ")).collect()
}

const SIZES: &str = "asize,psize,ashift,size,parity";

/// Goal: what is set on a vdev by any of its names is told, survives export and import, and goes to
/// OpenZFS and back.
#[test]
fn properties_of_vdevs_are_kept_and_go_to_openzfs_and_back() {
    if !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(4, 128 << 20);
    let d = server.attach(&disks);
    server.ok(&format!("zpool create -m none wide {} {}", d[2], d[3]));
    server.ok("zpool export wide");
    server.ok(&format!(
        "zpool create -m none tank mirror {} {}",
        d[0], d[1]
    ));
    let defaults = [
        "comment - default",
        "failfast on default",
        "checksum_n - default",
        "io_t - default",
        "org.example:rack - default",
    ];
    let short = d[0].trim_start_matches("/dev/");
    for vdev in ["root-0", "mirror-0", short] {
        assert_eq!(rows(&server, vdev), defaults, "{vdev}");
    }
    let guid = server.ok(&format!("zpool get -H -o value guid tank {}", d[1]));
    let other = guid.trim();
    for (setting, vdev) in [
        ("comment=all-of-it", "root"),
        ("failfast=off", "mirror-0"),
        ("io_t=60", "mirror-0"),
        ("org.example:rack=seven", short),
        ("checksum_n=10", &d[0]),
        ("org.example:rack=eight", other),
        ("org.example:shelf=3", other),
    ] {
        server.ok(&format!("zpool set {setting} tank {vdev}"));
    }
    let refused = server.fails("zpool set guid=5 tank mirror-0");
    assert!(
        refused.contains("cannot set property guid for mirror-0 on tank: 'guid' is readonly"),
        "{refused}"
    );
    let refused = server.fails(&format!("zpool set colour=red tank {short}"));
    assert!(refused.contains("invalid property: 'colour'"), "{refused}");
    let refused = server.fails("zpool set comment=x tank nosuch");
    assert!(
        refused.contains("cannot find 'nosuch' in 'tank': device not in pool"),
        "{refused}"
    );
    let check = |server: &Server, first: &str| {
        let expected = |changes: &[(usize, &'static str)]| {
            let mut rows = defaults;
            for (row, text) in changes {
                rows[*row] = text;
            }
            rows
        };
        let root = expected(&[(0, "comment all-of-it local")]);
        assert_eq!(rows(server, "root-0"), root);
        let mirror = expected(&[(1, "failfast off local"), (3, "io_t 60 local")]);
        assert_eq!(rows(server, "mirror-0"), mirror);
        let leaf = expected(&[
            (2, "checksum_n 10 local"),
            (4, "org.example:rack seven local"),
        ]);
        assert_eq!(rows(server, first), leaf);
        let all = server.ok(&format!(
            "zpool get -H -o property,value,source all tank {other}"
        ));
        let told = all.lines().filter(|line| line.contains("\tlocal"));
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                "org.example:rack\teight\tlocal",
                "org.example:shelf\t3\tlocal"
            ]
        );
    };
    check(&server, short);
    let history = server.ok("zpool history -i tank");
    assert!(
        history.contains("zpool set failfast=off tank mirror-0")
            && history.contains(&format!("vdev set vdev_guid={other}: org.example:shelf=3")),
        "{history}"
    );
    server.ok("zpool export tank");
    server.detach();
    let search = server.attach_to_import(&disks);
    server.ok(&format!("zpool import {search} tank"));
    let name_of = |server: &Server, index: usize| {
        let names = server.ok("zpool get -H -o name guid tank all-vdevs");
        names.lines().nth(index).expect("a vdev").to_owned()
    };
    check(&server, &name_of(&server, 2));
    // OpenZFS gives the root a size of its own.
    let sizes = server.ok(&format!(
        "zpool get -H -o property,value -p {SIZES} tank mirror-0 {other}"
    ));
    server.ok("zpool export tank");
    server.detach();
    zdb_is_clean(&server.path("disks"), "tank");

    let Some(peer) = Peer::find() else { return };
    let script = format!(
        "set -e\nzpool import -d /dev/disk/peer -N tank 2>&1\n\
         zpool get -H -o property,value,source {SHOWN} tank all-vdevs | sed 's/^/told: /'\n\
         first=$(zpool get -H -o name guid tank all-vdevs | sed -n 3p)\n\
         zpool get -H -o property,value,source allocating tank all-vdevs | sed 's/^/told: /'\n\
         zpool get -H -p -o property,value {SIZES} tank mirror-0 $first | sed 's/^/size: /'\n\
         zpool set org.example:rack=nine tank $first\n\
         zpool set checksum_n=none tank $first\n\
         zpool set slow_io_n=7 tank $first\n\
         zpool set comment=mirrored tank mirror-0\n\
         zpool set failfast=on tank mirror-0\n\
         zpool set comment=every tank root\n\
         zpool scrub -w tank\nzpool status tank\nzpool export tank\n\
         zpool import -d /dev/disk/peer -N wide 2>&1\n\
         zpool set allocating=off wide $(zpool get -H -o name guid wide all-vdevs | tail -n 1)\n\
         zpool sync wide\n\
         echo \"room: $(zfs get -Hp -o value available wide)\"\nzpool export wide\n"
    );
    let text = peer.run(&disks, &script);
    let told: Vec<String> = text
        .lines()
        .filter_map(|line| line.trim_end().split_once("told: "))
        .map(|(_, row)| row.replace('\t', " "))
        .collect();
    let theirs: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim_end().split_once("size: "))
        .map(|(_, row)| row)
        .collect();
    assert_eq!(sizes.lines().collect::<Vec<_>>(), theirs, "{text}");
    let unset = |row: &str| row.starts_with("org.example:rack -");
    let is_told = |row: &str| told.iter().any(|told| told == row);
    for row in [
        "comment all-of-it local",
        "failfast off local",
        "io_t 60 local",
        "checksum_n 10 local",
        "org.example:rack seven local",
        "org.example:rack eight local",
    ] {
        assert!(is_told(row), "{row}: {told:#?}\n{text}");
    }
    assert_eq!(
        told.iter().filter(|row| row.ends_with(" local")).count(),
        6,
        "{told:#?}"
    );
    assert_eq!(told.iter().filter(|row| unset(row)).count(), 2, "{told:#?}");
    assert!(text.contains("No known data errors"), "{text}");
    let room = text.split_once("room: ").expect("what is available").1;
    let room: u64 = room
        .split_whitespace()
        .next()
        .and_then(|room| room.parse().ok())
        .expect("a number");
    let search = server.attach_to_import(&disks);
    // What OpenZFS allocates nothing from is not offered here either.
    server.ok(&format!("zpool import {search} wide"));
    let ours = server.ok("zfs get -Hp -o value available wide");
    let ours: u64 = ours.trim().parse().expect("a number");
    assert!(ours.abs_diff(room) < 1 << 20, "{ours}, OpenZFS: {room}");
    server.ok("zpool export wide");
    server.ok(&format!("zpool import {search} tank"));
    let ours = server.ok("zpool get -H -o property,value,source allocating tank all-vdevs");
    let ours: Vec<String> = ours.lines().map(|line| line.replace('\t', " ")).collect();
    let theirs: Vec<&String> = told
        .iter()
        .filter(|row| row.starts_with("allocating"))
        .collect();
    assert_eq!(ours.iter().collect::<Vec<_>>(), theirs);
    let local = |vdev: &str| {
        let all = server.ok(&format!(
            "zpool get -H -o property,value,source all tank {vdev}"
        ));
        let rows = all.lines().filter_map(|line| line.strip_suffix("\tlocal"));
        rows.map(|row| row.replace('\t', " ")).collect::<Vec<_>>()
    };
    assert_eq!(local("root-0"), ["comment every"]);
    assert_eq!(local("mirror-0"), ["comment mirrored", "io_t 60"]);
    assert_eq!(
        local(&name_of(&server, 2)),
        ["slow_io_n 7", "org.example:rack nine"]
    );
    server.ok("zpool export tank");
    server.detach();
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}
