//! What the kernel tells of disks: below `/sys`, without asking a disk for anything.
//!
//! Source: the kernel's Documentation/ABI/stable/sysfs-block and
//! Documentation/ABI/testing/sysfs-class-led, drivers/misc/enclosure.c (`enclosure_component_*`),
//! drivers/pci/npem.c (names of lights), drivers/scsi/scsi_sysfs.c (`vpd_pg80`); SPC-4, 7.8.18
//! (the page of the serial number).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use api::Transport;

use crate::lights::Lamp;

/// Names another directory instead of `/sys`: for tests, which have trees of their own.
const OF_ENVIRONMENT: &str = "MILLPOND_SYSFS";

/// Bytes of a sector as `/sys/block/*/size` counts them, whatever the disk's are.
const SECTOR_BYTES: u64 = 512;

/// Disks in memory, drives for discs that are not of ours, and volumes of ZFS.
const NOT_DISKS: [&str; 6] = ["ram", "zram", "sr", "fd", "zd", "mtdblock"];

/// So deep may devices be made of others.
const DEPTH_MAX: u32 = 8;

/// What stands before the name of a slot of PCI in the name of a bay.
pub(crate) const PCI_SLOT: &str = "PCI slot ";

/// The kernel's tree.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

/// A whole disk: no partition of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Name that the kernel gave it: `sda`.
    pub name: String,
    /// Numbers of the disk and its partitions: `8:0`.
    pub numbers: Vec<String>,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// What it says that it is.
    pub model: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// The name that no other has in the world, where the kernel knows one.
    pub wwid: Option<String>,
    /// Whether it turns.
    pub is_rotational: bool,
    /// How it is attached.
    pub transport: Transport,
    /// Whether a device of the host is behind it: not so for loop devices, LVM, RAID.
    pub is_hardware: bool,
    /// Other devices of the kernel that are made of it, or of a partition.
    pub holders: Vec<String>,
    /// The enclosure that it is in.
    pub enclosure: Option<String>,
    /// Where in it.
    pub bay: Option<String>,
    /// Its lights; none where the kernel has none of them.
    pub lamp: Option<Lamp>,
}

impl Disk {
    /// What it is known by, wherever it is plugged in: model and serial number, or the name that no
    /// other has, or else what the kernel calls it.
    pub fn id(&self) -> String {
        match (&self.serial, &self.wwid) {
            (Some(serial), _) => serial.clone(),
            (None, Some(wwid)) => wwid.clone(),
            (None, None) => self.name.clone(),
        }
    }
}

/// A file of the kernel with one line, if there is something in it.
pub(crate) fn line(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Names in a directory, in order.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let mut out: Vec<String> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    out.sort();
    out
}

/// By what disks are put in order: `sdz` before `sdaa`, `loop9` before `loop10`.
pub fn order(name: &str) -> (usize, String, u64) {
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let number = name[letters..].parse().unwrap_or(0);
    (letters, name[..letters].to_owned(), number)
}

impl Sysfs {
    /// The tree below this directory, which is `/sys` but for tests.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The kernel's, or the one that `MILLPOND_SYSFS` names.
    pub fn of_host() -> Self {
        let set = std::env::var_os(OF_ENVIRONMENT).filter(|value| !value.is_empty());
        Self::new(set.map_or_else(|| PathBuf::from("/sys"), PathBuf::from))
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The disks, in order.
    pub fn disks(&self) -> Vec<Disk> {
        let mut out: Vec<Disk> = names(&self.root.join("block"))
            .into_iter()
            .filter_map(|name| self.disk(&name))
            .collect();
        out.sort_by_key(|disk| order(&disk.name));
        out
    }

    /// One disk; none where it is nothing for a pool.
    fn disk(&self, name: &str) -> Option<Disk> {
        let sys = self.root.join("block").join(name);
        let kind = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let sectors: u64 = line(&sys.join("size"))?.parse().ok()?;
        let is_read_only = line(&sys.join("ro")).as_deref() == Some("1");
        if NOT_DISKS.contains(&kind) || sectors == 0 || is_read_only {
            return None;
        }
        let mut numbers = vec![line(&sys.join("dev"))?];
        let mut holders = names(&sys.join("holders"));
        for part in names(&sys) {
            let part = sys.join(part);
            if part.join("partition").exists() {
                numbers.extend(line(&part.join("dev")));
                holders.extend(names(&part.join("holders")));
            }
        }
        let real = sys.canonicalize().unwrap_or_else(|_| sys.clone());
        let slot = self.slot(name, &sys);
        let (enclosure, bay, lamp) = match slot {
            Some(slot) => (
                Some(slot.enclosure),
                Some(slot.bay),
                slot.has_lights.then_some(slot.lamp),
            ),
            None => (None, self.pci_slot(name, &real), self.npem(&real)),
        };
        Some(Disk {
            size_bytes: sectors.checked_mul(SECTOR_BYTES)?,
            model: line(&sys.join("device/model")),
            serial: serial(&sys),
            wwid: line(&sys.join("device/wwid")).or_else(|| line(&sys.join("wwid"))),
            is_rotational: line(&sys.join("queue/rotational")).as_deref() == Some("1"),
            transport: transport(name, &sys, &real),
            is_hardware: sys.join("device").exists(),
            name: name.to_owned(),
            numbers,
            holders,
            enclosure,
            bay,
            lamp,
        })
    }

    /// Names of the whole disks that a block device is, is a partition of, or is made of.
    pub fn disks_of(&self, name: &str) -> Vec<String> {
        let mut out = BTreeSet::new();
        self.add_disks_of(name, DEPTH_MAX, &mut out);
        out.into_iter().collect()
    }

    fn add_disks_of(&self, name: &str, depth: u32, out: &mut BTreeSet<String>) {
        let by_class = self.root.join("class/block").join(name);
        let sys = match by_class.exists() {
            true => by_class,
            false => self.root.join("block").join(name),
        };
        if depth == 0 || !sys.exists() {
            return;
        }
        if sys.join("partition").exists() {
            let real = sys.canonicalize().ok();
            let disk = real.as_deref().and_then(Path::parent);
            if let Some(disk) = disk.and_then(Path::file_name) {
                self.add_disks_of(&disk.to_string_lossy(), depth - 1, out);
            }
            return;
        }
        let made_of = names(&sys.join("slaves"));
        for part in &made_of {
            self.add_disks_of(part, depth - 1, out);
        }
        if made_of.is_empty() {
            out.insert(name.to_owned());
        }
    }

    /// The slot of an enclosure that a disk is in: as the disk has it, or as the enclosure does.
    fn slot(&self, name: &str, sys: &Path) -> Option<Slot> {
        let device = sys.join("device");
        let own = names(&device)
            .into_iter()
            .find(|entry| entry.starts_with("enclosure_device:"));
        if let Some(entry) = own
            && let Ok(component) = device.join(entry).canonicalize()
        {
            return Slot::at(&component);
        }
        self.slots()
            .into_iter()
            .find(|(_, component)| component.join("device/block").join(name).exists())
            .map(|(slot, _)| slot)
    }

    /// All slots of all enclosures that have lights or a disk, with where they are.
    pub(crate) fn slots(&self) -> Vec<(Slot, PathBuf)> {
        let class = self.root.join("class/enclosure");
        let mut out = Vec::new();
        for enclosure in names(&class) {
            let enclosure = class.join(enclosure);
            for component in names(&enclosure) {
                let component = enclosure.join(component);
                // A real directory: `device` and `subsystem` are links to other places.
                if component.is_dir()
                    && !component.is_symlink()
                    && let Some(slot) = Slot::at(&component)
                    && (slot.has_lights || component.join("device").exists())
                {
                    out.push((slot, component));
                }
            }
        }
        out
    }

    /// Addresses of PCI devices from the root to a disk.
    fn pci_addresses(real: &Path) -> Vec<String> {
        let parts = real.components();
        let parts = parts.map(|part| part.as_os_str().to_string_lossy().into_owned());
        parts.filter(|part| is_pci_address(part)).collect()
    }

    /// The lights of the nearest port of PCI Express that has any.
    fn npem(&self, real: &Path) -> Option<Lamp> {
        let leds = self.root.join("class/leds");
        let addresses = Self::pci_addresses(real);
        addresses.into_iter().rev().find_map(|address| {
            let has = |which: &str| leds.join(format!("{address}:enclosure:{which}")).exists();
            let has_any = has("locate") || has("fail") || has("fault");
            has_any.then(|| Lamp::Npem {
                address: address.clone(),
            })
        })
    }

    /// The number of the slot that a disk is in by itself. One of SATA or SAS hangs on a card, with
    /// others: that one's slot is no bay of a disk (`zfs_get_pci_slots_sys_path`, lib/libzutil).
    fn pci_slot(&self, name: &str, real: &Path) -> Option<String> {
        if !name.starts_with("nvme") {
            return None;
        }
        let addresses = Self::pci_addresses(real);
        let name = self.slot_name(addresses.last()?)?;
        Some(format!("{PCI_SLOT}{name}"))
    }

    /// What the firmware calls the slot that a PCI function is in.
    pub(crate) fn slot_name(&self, address: &str) -> Option<String> {
        let slots = self.root.join("bus/pci/slots");
        // Without the function: `0000:3d:00`.
        let (device, _) = address.rsplit_once('.')?;
        names(&slots)
            .into_iter()
            .find(|name| line(&slots.join(name).join("address")).as_deref() == Some(device))
    }
}

/// `0000:3d:00.0`.
pub(crate) fn is_pci_address(text: &str) -> bool {
    let Some((bus, function)) = text.rsplit_once('.') else {
        return false;
    };
    let is_hex = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_hexdigit());
    bus.split(':').count() == 3 && bus.split(':').all(is_hex) && is_hex(function)
}

/// A slot of an enclosure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) enclosure: String,
    pub(crate) bay: String,
    pub(crate) lamp: Lamp,
    pub(crate) has_lights: bool,
}

impl Slot {
    /// The one whose directory this is.
    fn at(component: &Path) -> Option<Self> {
        let bay = component.file_name()?.to_string_lossy().into_owned();
        let enclosure = component.parent()?;
        let id = enclosure_id(enclosure)?;
        let has_lights = ["fault", "locate"]
            .iter()
            .any(|light| component.join(light).exists());
        let what = |file: &str| line(&enclosure.join("device").join(file));
        let name = match (what("vendor"), what("model")) {
            (Some(vendor), Some(model)) => format!("{vendor} {model} ({id})"),
            _ => id.clone(),
        };
        Some(Self {
            enclosure: name,
            lamp: Lamp::Enclosure {
                enclosure: id,
                component: bay.clone(),
            },
            bay: bay.trim().to_owned(),
            has_lights,
        })
    }
}

/// What an enclosure is known by: its own identifier, which stays, or else what the kernel calls
/// it.
pub(crate) fn enclosure_id(enclosure: &Path) -> Option<String> {
    let id = line(&enclosure.join("id")).filter(|id| id.chars().any(|c| c != '0' && c != 'x'));
    id.or_else(|| Some(enclosure.file_name()?.to_string_lossy().into_owned()))
}

fn serial(sys: &Path) -> Option<String> {
    // The page of the serial number: four bytes of header, of which the last two are the length.
    let page = || {
        let page = std::fs::read(sys.join("device/vpd_pg80")).ok()?;
        let (header, text) = page.split_at_checked(4)?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let text = String::from_utf8_lossy(text.get(..length).unwrap_or(text)).into_owned();
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!text.is_empty()).then(|| text.to_owned())
    };
    line(&sys.join("device/serial"))
        .or_else(|| line(&sys.join("serial")))
        .or_else(page)
}

fn transport(name: &str, sys: &Path, real: &Path) -> Transport {
    let real = real.to_string_lossy();
    if name.starts_with("nvme") {
        Transport::Nvme
    } else if real.contains("/usb") {
        Transport::Usb
    } else if real.contains("/virtio") {
        Transport::Virtio
    } else if real.contains("/end_device-") {
        Transport::Sas
    } else if real.contains("/ata") || line(&sys.join("device/vendor")).as_deref() == Some("ATA") {
        Transport::Sata
    } else {
        Transport::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    fn lamp(component: &str) -> Option<Lamp> {
        Some(Lamp::Enclosure {
            enclosure: "0x500304801f".into(),
            component: component.into(),
        })
    }

    #[test]
    fn disks_are_found_with_what_holds_them() {
        let tree = Tree::new();
        tree.disk("sda", "8:0", 7_814_037_168);
        tree.write("block/sda/device/model", "ST4000VN008-2DR1\n");
        tree.write("block/sda/queue/rotational", "1\n");
        tree.write("block/sda/sda1/partition", "1\n");
        tree.write("block/sda/sda1/dev", "8:1\n");
        tree.write("block/sda/sda1/holders/dm-0/x", "");
        tree.disk("sdaa", "65:160", 2048);
        tree.disk("sdz", "65:144", 2048);
        tree.disk("sdb", "8:16", 0);
        tree.disk("sdc", "8:32", 2048);
        tree.write("block/sdc/ro", "1\n");
        tree.disk("sr0", "11:0", 2048);
        tree.disk("zram0", "253:0", 2048);
        let disks = tree.sysfs().disks();
        let names: Vec<_> = disks.iter().map(|disk| &*disk.name).collect();
        assert_eq!(names, ["sda", "sdz", "sdaa"]);
        let first = &disks[0];
        assert_eq!(first.numbers, ["8:0", "8:1"]);
        assert_eq!(first.holders, ["dm-0"]);
        assert_eq!(first.size_bytes, 4_000_787_030_016);
        assert_eq!(first.model.as_deref(), Some("ST4000VN008-2DR1"));
        assert!(first.is_rotational && first.is_hardware && !disks[1].is_rotational);
        assert_eq!(disks[1].id(), "sdz");
    }

    /// The page has two bytes for the length; what is longer than the page is cut.
    #[test]
    fn serial_numbers_are_read_from_their_page() {
        let tree = Tree::new();
        tree.disk("sda", "8:0", 2048);
        let path = tree.path("block/sda/device/vpd_pg80");
        let pages: [(&[u8], Option<&str>); 5] = [
            (b"\0\x80\0\x08    ZGY0", Some("ZGY0")),
            (b"\0\x80\0\x04ZGY0 and more", Some("ZGY0")),
            (b"\0\x80\xff\xffZGY0", Some("ZGY0")),
            (b"\0\x80\0\x04\0\0\0\0", None),
            (b"\0\x80", None),
        ];
        for (page, expected) in pages {
            std::fs::write(&path, page).expect("written");
            let disks = tree.sysfs().disks();
            assert_eq!(disks[0].serial.as_deref(), expected, "{page:?}");
        }
    }

    #[test]
    fn slots_are_found_from_either_side() {
        let tree = Tree::new();
        tree.disk("sda", "8:0", 2048);
        tree.disk("sdb", "8:16", 2048);
        tree.disk("sdc", "8:32", 2048);
        tree.slot("0:0:24:0", "Slot 01");
        tree.slot("0:0:24:0", "Slot 02");
        tree.write("class/enclosure/0:0:24:0/id", "0x500304801f\n");
        tree.write("class/enclosure/0:0:24:0/device/vendor", "LSI\n");
        tree.write("class/enclosure/0:0:24:0/device/model", "SAS3x28\n");
        tree.link(
            "block/sda/device/enclosure_device:Slot 01",
            "class/enclosure/0:0:24:0/Slot 01",
        );
        // A kernel without the link in the disk's directory.
        tree.write("class/enclosure/0:0:24:0/Slot 02/device/block/sdb/x", "");
        let disks = tree.sysfs().disks();
        assert_eq!(disks[0].bay.as_deref(), Some("Slot 01"));
        assert_eq!(disks[0].lamp, lamp("Slot 01"));
        let enclosure = disks[0].enclosure.as_deref();
        assert_eq!(enclosure, Some("LSI SAS3x28 (0x500304801f)"));
        assert_eq!(disks[1].lamp, lamp("Slot 02"));
        assert_eq!((&disks[2].lamp, &disks[2].bay), (&None, &None));
    }

    #[test]
    fn lights_of_pci_express_are_the_nearest_ports() {
        let tree = Tree::new();
        let at = "devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0/nvme/nvme0/nvme0n1";
        tree.write(&format!("{at}/size"), "2048\n");
        tree.write(&format!("{at}/dev"), "259:0\n");
        tree.write(&format!("{at}/wwid"), "eui.0025\n");
        tree.link("block/nvme0n1", at);
        tree.write("class/leds/0000:3a:00.0:enclosure:locate/brightness", "0\n");
        tree.write("class/leds/0000:3a:00.0:enclosure:fail/brightness", "0\n");
        tree.write("class/leds/input3::capslock/brightness", "0\n");
        tree.write("bus/pci/slots/7/address", "0000:3d:00\n");
        tree.write("bus/pci/slots/8/address", "0000:3e:00\n");
        let disks = tree.sysfs().disks();
        let address = "0000:3a:00.0".to_owned();
        assert_eq!(disks[0].lamp, Some(Lamp::Npem { address }));
        assert_eq!(disks[0].bay.as_deref(), Some("PCI slot 7"));
        assert_eq!(disks[0].transport, Transport::Nvme);
        assert_eq!(disks[0].id(), "eui.0025");
    }

    #[test]
    fn what_a_device_is_made_of_is_found() {
        let tree = Tree::new();
        for (name, number) in [("sda", "8:0"), ("sdb", "8:16"), ("dm-0", "254:0")] {
            tree.disk(name, number, 2048);
            tree.link(&format!("class/block/{name}"), &format!("block/{name}"));
        }
        tree.write("block/sda/sda1/partition", "1\n");
        tree.link("class/block/sda1", "block/sda/sda1");
        // A multipath device: both paths lead to the same disk.
        tree.write("block/dm-0/slaves/sda/x", "");
        tree.write("block/dm-0/slaves/sdb/x", "");
        tree.disk("dm-1", "254:1", 2048);
        tree.link("class/block/dm-1", "block/dm-1");
        tree.write("block/dm-1/slaves/dm-0/x", "");
        let sysfs = tree.sysfs();
        assert_eq!(sysfs.disks_of("sda"), ["sda"]);
        assert_eq!(sysfs.disks_of("sda1"), ["sda"]);
        assert_eq!(sysfs.disks_of("dm-1"), ["sda", "sdb"]);
        assert!(sysfs.disks_of("sdq").is_empty());
        // One that is made of itself does not go on for ever.
        tree.write("block/sdb/slaves/sdb/x", "");
        assert!(sysfs.disks_of("sdb").is_empty());
    }
}
