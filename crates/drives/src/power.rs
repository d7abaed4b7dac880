//! Switches the power of bays, where the hardware can: `power_status` of an enclosure's component
//! (SES), `power` of a slot of PCI Express that disks are plugged into. Other bays have no switch.
//!
//! Source: drivers/misc/enclosure.c (`get_component_power_status`: `on`, `off`, ENOTTY where there
//! is no switch), drivers/pci/hotplug/pci_hotplug_core.c (`power_read_file`: `1`, `0`) of Linux;
//! `zpool_power_sysfs_path` (cmd/zpool/zpool_util.c) takes the same files.

use std::io;
use std::path::PathBuf;

use crate::lights::Lamp;
use crate::sysfs::{PCI_SLOT, Sysfs, enclosure_id, line, names};

/// A switch, and what it says and takes.
struct Switch {
    file: PathBuf,
    on: &'static str,
    off: &'static str,
}

impl Sysfs {
    /// The switch of the bay that has these lights, or is called so.
    fn power_switch(&self, lamp: Option<&Lamp>, bay: Option<&str>) -> Option<Switch> {
        let slot = bay.and_then(|bay| bay.strip_prefix(PCI_SLOT));
        match (lamp, slot) {
            (
                Some(Lamp::Enclosure {
                    enclosure,
                    component,
                }),
                _,
            ) => {
                let class = self.root().join("class/enclosure");
                let directories = names(&class).into_iter().map(|name| class.join(name));
                let mut found = directories
                    .filter(|directory| enclosure_id(directory).as_ref() == Some(enclosure));
                let file = found.next()?.join(component).join("power_status");
                file.exists().then_some(Switch {
                    file,
                    on: "on",
                    off: "off",
                })
            }
            (_, Some(slot)) => {
                // A name as the kernel has it, and no way to elsewhere.
                let slots = self.root().join("bus/pci/slots");
                let name = names(&slots).into_iter().find(|name| name == slot)?;
                let file = slots.join(name).join("power");
                file.exists().then_some(Switch {
                    file,
                    on: "1",
                    off: "0",
                })
            }
            _ => None,
        }
    }

    /// Whether a bay, by its lights or by its name, has power; none where it has no switch. Blocks.
    pub fn power(&self, lamp: Option<&Lamp>, bay: Option<&str>) -> Option<bool> {
        let switch = self.power_switch(lamp, bay)?;
        // An enclosure without switches has the file, and no answer.
        let text = line(&switch.file)?;
        let is = |word: &str| text == word;
        (is(switch.on) || is(switch.off)).then(|| is(switch.on))
    }

    /// Switches the power of a bay. Blocks.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where it has no switch, and what the system says.
    pub fn switch_power(&self, lamp: Option<&Lamp>, bay: Option<&str>, on: bool) -> io::Result<()> {
        let has_switch = self.power(lamp, bay).is_some();
        let switch = self.power_switch(lamp, bay).filter(|_| has_switch);
        let switch = switch.ok_or_else(|| {
            let why = "its bay has no power switch: that takes an enclosure (SES) or a slot of PCI \
                       Express that can be switched";
            io::Error::new(io::ErrorKind::Unsupported, why)
        })?;
        std::fs::write(switch.file, if on { switch.on } else { switch.off })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    #[test]
    fn bays_are_switched_by_what_they_have() {
        let tree = Tree::new();
        tree.slot("6:0:24:0", "Slot 01");
        tree.write("class/enclosure/6:0:24:0/id", "0x50\n");
        tree.write("bus/pci/slots/12/power", "1\n");
        let lamp = Lamp::Enclosure {
            enclosure: "0x50".into(),
            component: "Slot 01".into(),
        };
        let sysfs = tree.sysfs();
        assert_eq!(sysfs.power(Some(&lamp), None), None);
        let error = sysfs.switch_power(Some(&lamp), None, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let file = "class/enclosure/6:0:24:0/Slot 01/power_status";
        tree.write(file, "on\n");
        assert_eq!(sysfs.power(Some(&lamp), None), Some(true));
        sysfs.switch_power(Some(&lamp), None, false).expect("off");
        assert_eq!(tree.read(file), "off");
        assert_eq!(sysfs.power(Some(&lamp), None), Some(false));
        let slot = Some("PCI slot 12");
        assert_eq!(sysfs.power(None, slot), Some(true));
        sysfs.switch_power(None, slot, false).expect("off");
        assert_eq!(tree.read("bus/pci/slots/12/power"), "0");
        for elsewhere in ["PCI slot ../slots/12", "PCI slot 13", "Slot 01"] {
            assert_eq!(sysfs.power(None, Some(elsewhere)), None, "{elsewhere}");
        }
    }
}
