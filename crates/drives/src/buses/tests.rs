//! Goal: ways and links are found as the kernel tells them. Method: trees with the directories of
//! real hosts, made up.

use super::*;
use crate::tree::Tree;

fn link(tree: &Tree, function: &str, current: (&str, u32), max: (&str, u32)) {
    for (which, (speed, width)) in [("current", current), ("max", max)] {
        tree.write(
            &format!("{function}/{which}_link_speed"),
            &format!("{speed} GT/s PCIe\n"),
        );
        tree.write(
            &format!("{function}/{which}_link_width"),
            &format!("{width}\n"),
        );
    }
}

/// A disk whose directory is below that of what it hangs on.
fn disk(tree: &Tree, name: &str, below: &str) {
    let at = format!("{below}/block/{name}");
    tree.write(&format!("{at}/size"), "2048\n");
    tree.link(&format!("block/{name}"), &at);
}

/// A phy of SAS, and its link in the directory of the port.
fn phy(tree: &Tree, above: &str, port: &str, phy: &str, rate: &str) {
    let at = format!("{above}/{phy}");
    tree.write(
        &format!("{at}/sas_phy/{phy}/negotiated_linkrate"),
        &format!("{rate}\n"),
    );
    tree.link(&format!("{above}/{port}/{phy}"), &at);
}

fn pcie(id: &str, generation: u32, lanes: u32, could: (u32, u32)) -> Link {
    Link {
        id: id.into(),
        kind: LinkKind::Pcie,
        width: LinkWidth { generation, lanes },
        could: Some(LinkWidth {
            generation: could.0,
            lanes: could.1,
        }),
    }
}

const ROOT: &str = "devices/pci0000:00";

#[test]
fn an_expander_is_behind_its_controllers_slot() {
    let tree = Tree::new();
    let port = format!("{ROOT}/0000:00:01.0");
    let controller = format!("{port}/0000:03:00.0");
    // A card for eight lanes of generation 3 in a slot with four of them, at generation 2.
    link(&tree, &port, ("5.0", 4), ("16.0", 4));
    link(&tree, &controller, ("5.0", 4), ("8.0", 8));
    tree.write(&format!("{controller}/class"), "0x010700\n");
    tree.write(&format!("{controller}/vendor"), "0x1000\n");
    tree.write(&format!("{controller}/device"), "0x0097\n");
    tree.write("bus/pci/drivers/mpt3sas/module/x", "");
    tree.link(&format!("{controller}/driver"), "bus/pci/drivers/mpt3sas");
    tree.write("bus/pci/slots/4/address", "0000:03:00\n");
    let host = format!("{controller}/host6");
    for lane in 0..4 {
        phy(
            &tree,
            &host,
            "port-6:0",
            &format!("phy-6:{lane}"),
            "12.0 Gbit",
        );
    }
    let expander = format!("{host}/port-6:0/expander-6:0");
    phy(&tree, &expander, "port-6:0:3", "phy-6:0:3", "6.0 Gbit");
    // One that is not plugged in.
    phy(&tree, &expander, "port-6:0:3", "phy-6:0:4", "Unknown");
    let end = format!("{expander}/port-6:0:3/end_device-6:0:3/target6:0:3/6:0:3:0");
    disk(&tree, "sda", &end);
    let way = way_of_disk(&tree.sysfs(), "sda");
    let sas = |id: &str, generation, lanes| Link {
        id: id.into(),
        kind: LinkKind::Sas,
        width: LinkWidth { generation, lanes },
        could: None,
    };
    assert_eq!(
        way.links,
        [
            pcie("0000:03:00", 2, 4, (3, 4)),
            sas("port-6:0", 3, 4),
            sas("port-6:0:3", 2, 1),
        ]
    );
    let expected = Function {
        address: "0000:03:00.0".into(),
        kind: ControllerKind::Sas,
        model: Some("1000:0097".into()),
        driver: Some("mpt3sas".into()),
        slot: Some("4".into()),
    };
    assert_eq!(way.controller, Some(expected));
}

/// A switch: the link above it is shared and is not the one to the disk, though both are as fast.
#[test]
fn switches_have_a_link_of_their_own() {
    let tree = Tree::new();
    let mut at = ROOT.to_owned();
    for address in [
        "0000:00:03.0",
        "0000:05:00.0",
        "0000:06:08.0",
        "0000:09:00.0",
    ] {
        at = format!("{at}/{address}");
        link(&tree, &at, ("8.0", 4), ("8.0", 4));
    }
    tree.write(&format!("{at}/class"), "0x010802\n");
    let nvme = format!("{at}/nvme/nvme0/nvme0n1");
    tree.write(&format!("{nvme}/size"), "2048\n");
    tree.link("block/nvme0n1", &nvme);
    let way = way_of_disk(&tree.sysfs(), "nvme0n1");
    let ids: Vec<&str> = way.links.iter().map(|link| &*link.id).collect();
    assert_eq!(ids, ["0000:05:00", "0000:09:00"]);
    let controller = way.controller.expect("a controller");
    assert_eq!(controller.kind, ControllerKind::Nvme);
    // The same disk with several controllers: the kernel puts it elsewhere.
    let subsystem = "devices/virtual/nvme-subsystem/nvme-subsys0";
    tree.write(&format!("{subsystem}/nvme1n1/size"), "2048\n");
    tree.link(&format!("{subsystem}/nvme0"), &format!("{at}/nvme/nvme0"));
    tree.link("block/nvme1n1", &format!("{subsystem}/nvme1n1"));
    let other = way_of_disk(&tree.sysfs(), "nvme1n1");
    assert_eq!(other.controller, Some(controller));
    assert_eq!(other.links, way.links);
}

/// A volume management device has no link and begins a domain of its own; a port of a virtual
/// machine is not told of.
#[test]
fn what_has_no_link_begins_anew() {
    let tree = Tree::new();
    let integrated = format!("{ROOT}/0000:00:0e.0");
    tree.write(&format!("{integrated}/class"), "0x010400\n");
    let port = format!("{integrated}/pci10000:e0/10000:e0:06.0");
    let disk_of = format!("{port}/10000:e1:00.0");
    link(&tree, &port, ("16.0", 4), ("16.0", 4));
    link(&tree, &disk_of, ("16.0", 4), ("16.0", 4));
    let nvme = format!("{disk_of}/nvme/nvme0/nvme0n1");
    tree.write(&format!("{nvme}/size"), "2048\n");
    tree.link("block/nvme0n1", &nvme);
    let way = way_of_disk(&tree.sysfs(), "nvme0n1");
    assert_eq!(way.links, [pcie("10000:e1:00", 4, 4, (4, 4))]);

    let passed_through = format!("{ROOT}/0000:00:07.0");
    link(&tree, &passed_through, ("8.0", 8), ("8.0", 8));
    disk(
        &tree,
        "sdb",
        &format!("{passed_through}/host0/target0:0:0/0:0:0:0"),
    );
    let way = way_of_disk(&tree.sysfs(), "sdb");
    assert_eq!(way.links, [pcie("0000:00:07", 3, 8, (3, 8))]);

    let down = format!("{ROOT}/0000:00:08.0");
    tree.write(&format!("{down}/current_link_speed"), "Unknown\n");
    tree.write(&format!("{down}/current_link_width"), "0\n");
    tree.write(&format!("{down}/class"), "0x010000\n");
    tree.write("bus/pci/drivers/virtio-pci/module/x", "");
    tree.link(&format!("{down}/driver"), "bus/pci/drivers/virtio-pci");
    disk(&tree, "vda", &format!("{down}/virtio2"));
    let way = way_of_disk(&tree.sysfs(), "vda");
    assert_eq!(way.links, []);
    let kind = way.controller.map(|controller| controller.kind);
    assert_eq!(kind, Some(ControllerKind::Virtio));
}

#[test]
fn ports_of_sata_have_a_speed() {
    let tree = Tree::new();
    let controller = format!("{ROOT}/0000:00:17.0");
    tree.write(&format!("{controller}/class"), "0x010601\n");
    for (port, speed) in [("ata3", "3.0 Gbps"), ("ata4", "<unknown>")] {
        let number = &port[3..];
        tree.write(
            &format!("{controller}/{port}/link{number}/ata_link/link{number}/sata_spd"),
            &format!("{speed}\n"),
        );
    }
    disk(
        &tree,
        "sda",
        &format!("{controller}/ata3/host2/target2:0:0/2:0:0:0"),
    );
    disk(
        &tree,
        "sdb",
        &format!("{controller}/ata4/host3/target3:0:0/3:0:0:0"),
    );
    let way = way_of_disk(&tree.sysfs(), "sda");
    let width = LinkWidth {
        generation: 2,
        lanes: 1,
    };
    let [port] = &way.links[..] else {
        panic!("one link, and not {:?}", way.links);
    };
    assert_eq!(
        (&*port.id, port.kind, port.width),
        ("ata3", LinkKind::Sata, width)
    );
    assert_eq!(way_of_disk(&tree.sysfs(), "sdb").links, []);
    // What is not there, and what is made of other things, has no way.
    tree.write("devices/virtual/block/loop0/size", "2048\n");
    tree.link("block/loop0", "devices/virtual/block/loop0");
    for name in ["loop0", "sdq"] {
        assert_eq!(way_of_disk(&tree.sysfs(), name), Way::default());
    }
}

#[test]
fn ports_of_the_network_are_those_of_hardware() {
    let tree = Tree::new();
    let card = format!("{ROOT}/0000:00:1c.0/0000:04:00.0");
    link(
        &tree,
        &format!("{ROOT}/0000:00:1c.0"),
        ("5.0", 1),
        ("8.0", 1),
    );
    link(&tree, &card, ("5.0", 1), ("5.0", 1));
    let virtual_ports = "devices/virtual/net";
    for (name, speed, state) in [("eth0", "10000", "up"), ("eth1", "-1", "down")] {
        let at = format!("{card}/net/{name}");
        tree.write(&format!("{at}/speed"), &format!("{speed}\n"));
        tree.write(&format!("{at}/operstate"), &format!("{state}\n"));
        tree.link(&format!("{at}/device"), &card);
        tree.link(&format!("class/net/{name}"), &at);
    }
    for (name, speed) in [("bond0", "10000"), ("docker0", "10000"), ("lo", "")] {
        let at = format!("{virtual_ports}/{name}");
        tree.write(&format!("{at}/speed"), &format!("{speed}\n"));
        tree.write(&format!("{at}/operstate"), "up\n");
        tree.link(&format!("class/net/{name}"), &at);
    }
    tree.write(
        &format!("{virtual_ports}/bond0/bonding/mode"),
        "802.3ad 4\n",
    );
    tree.link(
        &format!("{card}/net/eth0/master"),
        &format!("{virtual_ports}/bond0"),
    );
    let found = networks(&tree.sysfs());
    let names: Vec<&str> = found.iter().map(|port| &*port.name).collect();
    assert_eq!(names, ["bond0", "eth0", "eth1"]);
    let [bond, first, second] = &found[..] else {
        panic!("three ports");
    };
    assert_eq!(bond.bits_per_second, Some(10_000_000_000));
    assert_eq!(first.part_of.as_deref(), Some("bond0"));
    assert_eq!(first.way.links, [pcie("0000:04:00", 2, 1, (2, 1))]);
    assert_eq!((second.is_up, second.bits_per_second), (false, None));
    assert_eq!((&second.part_of, bond.way.links.len()), (&None, 0));
}
