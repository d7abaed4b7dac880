use drives::buses::{Function, Link};

use super::*;

fn link(id: &str, kind: LinkKind, generation: u32, lanes: u32) -> Link {
    Link {
        id: id.into(),
        kind,
        width: LinkWidth { generation, lanes },
        could: None,
    }
}

fn disk(name: &str, rate: u64, links: &[Link]) -> Found {
    Found {
        name: name.into(),
        rate,
        way: Way {
            controller: Some(Function {
                address: "0000:03:00.0".into(),
                ..Function::default()
            }),
            links: links.to_vec(),
        },
    }
}

fn placed(pool: &str, disks: &[&str], data_share: f64) -> Placed {
    let member = |name: &&str| {
        let path = format!("/dev/{name}");
        (Member { path, data_share }, vec![(*name).to_owned()])
    };
    Placed {
        pool: pool.into(),
        members: disks.iter().map(member).collect(),
    }
}

const MB: u64 = 1_000_000;

/// Goal: the bottleneck is the link that is full first, which need not be the slowest. Method: an
/// expander with 24 disks behind four lanes of SAS-2 and a slot of x4 at generation 2; some of the
/// disks are another pool's, for which the same link is wide enough.
#[test]
fn the_link_that_is_full_first_is_the_bottleneck() {
    let slot = link("0000:03:00", LinkKind::Pcie, 2, 4);
    let wide = link("port-6:0", LinkKind::Sas, 2, 4);
    let names: Vec<String> = (0..24).map(|index| format!("d{index}")).collect();
    let disks: Vec<Found> = names
        .iter()
        .map(|name| disk(name, 180 * MB, &[slot.clone(), wide.clone()]))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let pools = [
        placed("big", &names[..20], 0.8),
        placed("small", &names[20..], 1.0),
    ];
    let told = reply(&disks, &[], &pools);
    let ids: Vec<&str> = told.links.iter().map(|link| &*link.id).collect();
    assert_eq!(ids, ["0000:03:00", "port-6:0"]);
    assert_eq!(told.links[1].above.as_deref(), Some("0000:03:00"));
    assert_eq!(told.links[0].disks.len(), 24);
    assert_eq!(told.links[0].disks_rate, 4_320 * MB);
    // Four lanes of 500 MB/s, of which headers leave 80 %; four of 540 MB/s.
    assert_eq!(told.links[0].rate, Some(1_600 * MB));
    assert_eq!(told.links[1].rate, Some(2_160 * MB));
    assert_eq!(told.controllers.len(), 1);
    assert_eq!(told.controllers[0].disks.len(), 24);
    assert_eq!(told.disks[0].link.as_deref(), Some("port-6:0"));
    assert_eq!(told.disks[0].pools, ["big"]);
    let [big, small] = &told.pools[..] else {
        panic!("two pools");
    };
    assert_eq!((big.disks_rate, big.rate), (3_600 * MB, 1_600 * MB));
    assert_eq!(big.data_rate, 1_280 * MB);
    let id = "0000:03:00".to_owned();
    assert_eq!(big.limited_by, PoolLimit::Link { id });
    assert_eq!(
        (small.rate, &small.limited_by),
        (720 * MB, &PoolLimit::Disks)
    );
}

/// One disk at a slow port holds up those beside it: streams are spread evenly.
#[test]
fn a_slow_port_holds_up_the_others() {
    let disks = [
        disk("sda", 540 * MB, &[link("ata1", LinkKind::Sata, 3, 1)]),
        disk("sdb", 540 * MB, &[link("ata2", LinkKind::Sata, 2, 1)]),
    ];
    let told = reply(&disks, &[], &[placed("tank", &["sda", "sdb"], 1.0)]);
    let id = "ata2".to_owned();
    assert_eq!(told.pools[0].limited_by, PoolLimit::Link { id });
    assert_eq!(told.pools[0].rate, 540 * MB);
}

#[test]
fn the_network_may_be_the_bottleneck() {
    let disks = [disk("sda", 180 * MB, &[]), disk("sdb", 180 * MB, &[])];
    let port = |name: &str, megabits: Option<u64>, part_of: Option<&str>| Network {
        name: name.into(),
        is_up: true,
        bits_per_second: megabits.map(|megabits| megabits * 1_000_000),
        part_of: part_of.map(str::to_owned),
        way: Way::default(),
    };
    // A bond of two tells their rate together; a port that is down carries nothing.
    let mut ports = vec![
        port("bond0", Some(2000), None),
        port("eth0", Some(1000), Some("bond0")),
        port("eth1", Some(1000), Some("bond0")),
        port("eth2", None, None),
    ];
    ports.push(Network {
        is_up: false,
        ..port("eth3", Some(10_000), None)
    });
    let pools = [
        placed("tank", &["sda", "sdb"], 1.0),
        placed("raid", &["sda", "sdb"], 0.5),
    ];
    let told = reply(&disks, &ports, &pools);
    assert_eq!(told.network_rate, Some(250 * MB));
    assert_eq!(told.pools[0].limited_by, PoolLimit::Network);
    // Of which half is parity.
    assert_eq!(told.pools[1].data_rate, 180 * MB);
    assert_eq!(told.pools[1].limited_by, PoolLimit::Disks);
    // A bridge that tells no rate: its port's counts.
    let bridged = [port("eth0", Some(1000), Some("br0"))];
    assert_eq!(reply(&disks, &bridged, &[]).network_rate, Some(125 * MB));
    assert_eq!(reply(&disks, &[], &[]).network_rate, None);
}

#[test]
fn devices_that_are_not_known_are_counted() {
    let disks = [disk("sda", 180 * MB, &[])];
    let mut pool = placed("tank", &["sda", "loop0"], 1.0);
    // Two paths of one device, and a second partition of a disk.
    pool.members[0].1.push("sdb".into());
    pool.members.push(pool.members[0].clone());
    let told = reply(&disks, &[], &[pool]);
    assert_eq!(told.pools[0].disks, ["sda"]);
    assert_eq!(told.pools[0].disks_rate, 180 * MB);
    assert_eq!(told.pools[0].unknown_devices, 1);
}

#[test]
fn devices_that_hold_data_are_found_with_their_share() {
    let leaf = |path: &str| VdevReport {
        name: path.into(),
        path: Some(path.into()),
        ..VdevReport::default()
    };
    let raidz = VdevReport {
        name: "raidz2-0".into(),
        kind: VdevKind::Raidz,
        parity: 2,
        children: ["/a", "/b", "/c", "/d"].map(leaf).to_vec(),
        ..VdevReport::default()
    };
    let draid = VdevReport {
        name: "draid2:4d:11c:1s-1".into(),
        kind: VdevKind::Draid,
        parity: 2,
        children: vec![leaf("/e"); 11],
        ..VdevReport::default()
    };
    let log = VdevReport {
        class: VdevClass::Log,
        ..leaf("/log")
    };
    let root = VdevReport {
        children: vec![raidz, draid, log, leaf("/alone")],
        ..VdevReport::default()
    };
    let found = members(&root);
    assert_eq!(found.len(), 4 + 11 + 1);
    assert_eq!(found[0].data_share, 0.5);
    // Ten columns of eleven, four of six of them data.
    let share = found[4].data_share;
    assert!((share - 10.0 / 11.0 * 4.0 / 6.0).abs() < 1e-12, "{share}");
    assert_eq!((&*found[15].path, found[15].data_share), ("/alone", 1.0));
}
