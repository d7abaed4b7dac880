//! What lies between memory and the host's disks, and the network: PCI functions, their links,
//! ports of SATA and SAS, as the kernel tells below `/sys`.
//!
//! A disk's directory is below those of all that it hangs on, so its real path tells its way:
//!
//! ```text
//! devices/pci0000:00/0000:00:01.0/0000:03:00.0/host6/port-6:0/expander-6:0/port-6:0:3/...
//!                    root port    controller         to the expander       to the disk
//! ```
//!
//! **Both ends.** A link of PCI Express is told of by the port above it and by the device below.
//! It is known here by the device. From the root down, ports that face down and devices that face
//! up take turns, so of the functions that have a link every second one is such a device, and the
//! last one always (in a virtual machine it may have no port above it). A function without a link
//! (one that is integrated, such as Intel's VMD) begins anew. Functions of one device share its
//! link.
//!
//! Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci (`current_link_speed` and so on),
//! sysfs-ata (`sata_spd`), drivers/scsi/scsi_transport_sas.c (`negotiated_linkrate`; a port has a
//! link to each of its phys), Documentation/ABI/testing/sysfs-class-net; PCI Code and ID
//! Assignment, 1.2 (mass storage).

use std::path::{Path, PathBuf};

use api::{ControllerKind, LinkKind, LinkWidth};

use crate::Sysfs;
use crate::sysfs::{is_pci_address, line, names};

/// A function of PCI that has disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// `0000:03:00.0`.
    pub address: String,
    /// What it speaks.
    pub kind: ControllerKind,
    /// Vendor and device: `1000:0097`.
    pub model: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// The slot that it is in.
    pub slot: Option<String>,
}

/// A link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Address of the PCI device below it without the function, or the port's name.
    pub id: String,
    /// What it is.
    pub kind: LinkKind,
    /// As it runs.
    pub width: LinkWidth,
    /// As both ends could run, as far as they tell.
    pub could: Option<LinkWidth>,
}

/// How something is reached from memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The last PCI function.
    pub controller: Option<Function>,
    /// The links, the one next to memory first.
    pub links: Vec<Link>,
}

/// A port of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// What the kernel calls it.
    pub name: String,
    /// Whether it works.
    pub is_up: bool,
    /// Bits a second, where it says.
    pub bits_per_second: Option<u64>,
    /// The bond or bridge that it is a part of.
    pub part_of: Option<String>,
    /// How it is reached.
    pub way: Way,
}

/// The way from memory to a disk, by the kernel's name. Where several lead there, of an NVMe disk
/// that several controllers have, it is the first.
pub fn way_of_disk(sysfs: &Sysfs, name: &str) -> Way {
    let real = sysfs.root().join("block").join(name).canonicalize().ok();
    let subsystem = real.as_deref().and_then(Path::parent).filter(|parent| {
        let above = parent.parent().and_then(Path::file_name);
        above.is_some_and(|above| above == "nvme-subsystem")
    });
    match (subsystem, &real) {
        // The namespace is the subsystem's, which has links to its controllers.
        (Some(subsystem), _) => names(subsystem)
            .into_iter()
            .filter(|name| name.starts_with("nvme"))
            .filter_map(|name| subsystem.join(name).canonicalize().ok())
            .map(|controller| way_to(sysfs, &controller))
            .find(|way| way.controller.is_some())
            .unwrap_or_default(),
        (None, Some(real)) => way_to(sysfs, real),
        (None, None) => Way::default(),
    }
}

/// The ports of the network that are of hardware, or made of such: no bridges, and nothing of
/// containers.
pub fn networks(sysfs: &Sysfs) -> Vec<Network> {
    let class = sysfs.root().join("class/net");
    let mut out = Vec::new();
    for name in names(&class) {
        let port = class.join(&name);
        let is_bond = port.join("bonding").exists();
        if !is_bond && !port.join("device").exists() {
            continue;
        }
        // Megabits a second; -1, or an error, where there is no link.
        let megabits = line(&port.join("speed")).and_then(|text| text.parse::<u64>().ok());
        let above = port.join("master").canonicalize().ok();
        let above = above.as_deref().and_then(Path::file_name);
        let device = port.join("device").canonicalize().ok();
        out.push(Network {
            is_up: line(&port.join("operstate")).as_deref() == Some("up"),
            bits_per_second: megabits
                .filter(|megabits| *megabits > 0)
                .and_then(|megabits| megabits.checked_mul(1_000_000)),
            part_of: above.map(|above| above.to_string_lossy().into_owned()),
            way: device.map_or_else(Way::default, |device| way_to(sysfs, &device)),
            name,
        });
    }
    out
}

/// A directory on the way, with its name.
struct Step {
    name: String,
    path: PathBuf,
}

fn way_to(sysfs: &Sysfs, real: &Path) -> Way {
    let root = sysfs.root().canonicalize();
    let root = root.unwrap_or_else(|_| sysfs.root().to_owned());
    let Ok(below) = real.strip_prefix(&root) else {
        return Way::default();
    };
    let mut path = root;
    let steps: Vec<Step> = below
        .components()
        .map(|part| {
            path.push(part);
            Step {
                name: part.as_os_str().to_string_lossy().into_owned(),
                path: path.clone(),
            }
        })
        .collect();
    let functions: Vec<&Step> = steps
        .iter()
        .filter(|step| is_pci_address(&step.name))
        .collect();
    let mut links = pcie_links(&functions);
    for step in &steps {
        links.extend(sata_link(step).or_else(|| sas_link(step)));
    }
    Way {
        controller: functions.last().map(|step| function(sysfs, step)),
        links,
    }
}

/// An address without the function: `0000:03:00`.
fn device_of(address: &str) -> &str {
    address
        .rsplit_once('.')
        .map_or(address, |(device, _)| device)
}

fn pcie_links(functions: &[&Step]) -> Vec<Link> {
    let mut out = Vec::new();
    // The port above, if the last function was one.
    let mut above: Option<&Step> = None;
    for (index, step) in functions.iter().enumerate() {
        let Some(width) = pcie_width(&step.path, "current") else {
            above = None;
            continue;
        };
        let is_last = index + 1 == functions.len();
        if above.is_none() && !is_last {
            above = Some(step);
            continue;
        }
        let most = |step: &Step| pcie_width(&step.path, "max");
        let could = match above.map(most) {
            Some(port) => least(most(step), port),
            None => most(step),
        };
        out.push(Link {
            id: device_of(&step.name).to_owned(),
            kind: LinkKind::Pcie,
            width,
            could,
        });
        above = None;
    }
    out
}

/// What both can.
fn least(one: Option<LinkWidth>, other: Option<LinkWidth>) -> Option<LinkWidth> {
    let (one, other) = (one?, other?);
    Some(LinkWidth {
        generation: one.generation.min(other.generation),
        lanes: one.lanes.min(other.lanes),
    })
}

/// Speed and width of a function's link: `8.0 GT/s PCIe` and `8`. None where there is no link, or
/// it is down (`Unknown`, a width of 0).
fn pcie_width(function: &Path, which: &str) -> Option<LinkWidth> {
    let speed = line(&function.join(format!("{which}_link_speed")))?;
    let lanes = line(&function.join(format!("{which}_link_width")))?;
    let generation = match speed.split_once(' ')?.0 {
        "2.5" => 1,
        "5" | "5.0" => 2,
        "8" | "8.0" => 3,
        "16" | "16.0" => 4,
        "32" | "32.0" => 5,
        "64" | "64.0" => 6,
        _ => return None,
    };
    let lanes = lanes
        .parse()
        .ok()
        .filter(|lanes| (1..=32).contains(lanes))?;
    Some(LinkWidth { generation, lanes })
}

/// The link of an ATA port: `ata3` has it as `link3/ata_link/link3/sata_spd`. All disks behind a
/// multiplier are below the same port.
fn sata_link(step: &Step) -> Option<Link> {
    let number = step.name.strip_prefix("ata")?;
    number.parse::<u32>().ok()?;
    let link = format!("link{number}");
    let speed = line(
        &step
            .path
            .join(&link)
            .join("ata_link")
            .join(&link)
            .join("sata_spd"),
    )?;
    let generation = match speed.split_once(' ')?.0 {
        "1.5" => 1,
        "3.0" => 2,
        "6.0" => 3,
        _ => return None,
    };
    Some(Link {
        id: step.name.clone(),
        kind: LinkKind::Sata,
        width: LinkWidth {
            generation,
            lanes: 1,
        },
        could: None,
    })
}

/// The link of a SAS port, which is as wide as it has phys that are up; the slowest of them is
/// told. SATA disks of 1.5 Gbit/s at a port of SAS are left out.
fn sas_link(step: &Step) -> Option<Link> {
    step.name.strip_prefix("port-")?;
    let phys = names(&step.path)
        .into_iter()
        .filter(|name| name.starts_with("phy-"));
    let generations = phys.filter_map(|phy| {
        let at = step.path.join(&phy).join("sas_phy").join(&phy);
        let rate = line(&at.join("negotiated_linkrate"))?;
        match rate.split_once(' ')?.0 {
            "3.0" => Some(1),
            "6.0" => Some(2),
            "12.0" => Some(3),
            "22.5" => Some(4),
            _ => None,
        }
    });
    let generations: Vec<u32> = generations.collect();
    Some(Link {
        id: step.name.clone(),
        kind: LinkKind::Sas,
        width: LinkWidth {
            generation: *generations.iter().min()?,
            lanes: u32::try_from(generations.len()).ok()?,
        },
        could: None,
    })
}

fn function(sysfs: &Sysfs, step: &Step) -> Function {
    let hex = |file: &str| {
        let text = line(&step.path.join(file))?;
        Some(text.strip_prefix("0x")?.to_owned())
    };
    let model = match (hex("vendor"), hex("device")) {
        (Some(vendor), Some(device)) => Some(format!("{vendor}:{device}")),
        _ => None,
    };
    let driver = step.path.join("driver").canonicalize().ok();
    let driver = driver.as_deref().and_then(Path::file_name);
    let driver = driver.map(|driver| driver.to_string_lossy().into_owned());
    let is_virtio = driver.as_deref() == Some("virtio-pci");
    // Base class and class: 01 is mass storage, 0c03 USB.
    let class = hex("class").unwrap_or_default();
    let kind = match class.get(..4).unwrap_or_default() {
        _ if is_virtio => ControllerKind::Virtio,
        "0106" | "0101" | "0105" => ControllerKind::Sata,
        "0107" => ControllerKind::Sas,
        "0104" => ControllerKind::Raid,
        "0108" => ControllerKind::Nvme,
        "0c03" => ControllerKind::Usb,
        _ => ControllerKind::Other,
    };
    Function {
        address: step.name.clone(),
        kind,
        model,
        driver,
        slot: sysfs.slot_name(&step.name),
    }
}

#[cfg(test)]
mod tests;
