//! Switches the lights of bays.
//!
//! Three ways, the first that a bay has: files `fault` and `locate` of an enclosure's component
//! (SES); lights `ADDRESS:enclosure:fail` and `:locate` of a port of PCI Express (NPEM, Linux 6.13
//! and newer); the program `ledctl` (package ledmon), which knows a disk by its device alone, so
//! that a bay without a disk cannot be lit by it. It has one pattern for a disk at a time: what
//! says where it is comes before what says that it failed.
//!
//! Source: drivers/misc/enclosure.c, drivers/misc/ses.c, drivers/pci/npem.c of Linux; ledctl(8),
//! pattern names and `--listed-only`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use api::LightKind;
use device::output_within;
use serde::{Deserialize, Serialize};

use crate::smartctl::find;
use crate::sysfs::{Disk, Sysfs, enclosure_id, line, names};

/// How long `ledctl` may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A light of a bay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Light {
    /// The disk is to be replaced.
    Fault,
    /// Here it is.
    Locate,
}

impl Light {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Fault, Self::Locate];
}

/// The lights of a bay, by what stays when the host starts anew.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum Lamp {
    /// A component of an enclosure.
    Enclosure {
        /// Identifier of the enclosure, or what the kernel calls it.
        enclosure: String,
        /// Name of the component: `Slot 03`.
        component: String,
    },
    /// A port of PCI Express.
    Npem {
        /// Its address.
        address: String,
    },
    /// What `ledctl` does.
    Ledctl {
        /// Path of the disk.
        device: String,
    },
}

impl Lamp {
    /// How it is switched.
    pub fn kind(&self) -> LightKind {
        match self {
            Self::Enclosure { .. } => LightKind::Enclosure,
            Self::Npem { .. } => LightKind::Npem,
            Self::Ledctl { .. } => LightKind::Ledctl,
        }
    }

    /// Where it is, for people.
    pub fn place(&self) -> String {
        match self {
            Self::Enclosure {
                enclosure,
                component,
            } => format!("{} of enclosure {enclosure}", component.trim()),
            Self::Npem { address } => format!("PCI Express port {address}"),
            Self::Ledctl { device } => device.clone(),
        }
    }
}

/// All lights of the host.
#[derive(Clone, Debug)]
pub struct Lamps {
    sysfs: Sysfs,
    ledctl: Option<PathBuf>,
}

impl Lamps {
    /// Those of a tree, and what `ledctl` reaches: the one that `MILLPOND_LEDCTL` names, or the
    /// installed one.
    pub fn find(sysfs: Sysfs) -> Self {
        Self {
            sysfs,
            ledctl: find("ledctl", "MILLPOND_LEDCTL"),
        }
    }

    /// Those of a disk.
    pub fn of(&self, disk: &Disk) -> Option<Lamp> {
        let by_ledctl = || {
            self.ledctl.as_ref()?;
            disk.is_hardware.then(|| Lamp::Ledctl {
                device: format!("/dev/{}", disk.name),
            })
        };
        disk.lamp.clone().or_else(by_ledctl)
    }

    /// Those of every bay, also of empty ones, and of every disk that has none there.
    pub fn all(&self) -> Vec<Lamp> {
        let slots = self.sysfs.slots().into_iter();
        let mut out: Vec<Lamp> = slots
            .filter(|(slot, _)| slot.has_lights)
            .map(|(slot, _)| slot.lamp)
            .collect();
        for name in names(&self.sysfs.root().join("class/leds")) {
            if let Some((address, "locate" | "fail" | "fault")) = name.split_once(":enclosure:") {
                out.push(Lamp::Npem {
                    address: address.to_owned(),
                });
            }
        }
        out.extend(self.sysfs.disks().iter().filter_map(|disk| self.of(disk)));
        out.sort();
        out.dedup();
        out
    }

    /// The file that switches a light.
    fn file(&self, lamp: &Lamp, light: Light) -> io::Result<PathBuf> {
        let missing = |what: String| io::Error::new(io::ErrorKind::NotFound, what);
        match lamp {
            Lamp::Enclosure {
                enclosure,
                component,
            } => {
                let class = self.sysfs.root().join("class/enclosure");
                let directories = names(&class).into_iter().map(|name| class.join(name));
                let mut found = directories
                    .filter(|directory| enclosure_id(directory).as_ref() == Some(enclosure));
                let directory = found
                    .next()
                    .ok_or_else(|| missing(format!("there is no enclosure {enclosure}")))?;
                let name = match light {
                    Light::Fault => "fault",
                    Light::Locate => "locate",
                };
                existing(directory.join(component).join(name))
            }
            Lamp::Npem { address } => {
                let leds = self.sysfs.root().join("class/leds");
                let file = |which| leds.join(format!("{address}:enclosure:{which}/brightness"));
                match light {
                    Light::Fault => existing(file("fail")).or_else(|_| existing(file("fault"))),
                    Light::Locate => existing(file("locate")),
                }
            }
            Lamp::Ledctl { .. } => Err(missing("ledctl has no file".to_owned())),
        }
    }

    /// Whether a light is on; none where nobody can know. Blocks.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] where there is no such light, and what the system says.
    pub fn is_on(&self, lamp: &Lamp, light: Light) -> io::Result<Option<bool>> {
        if matches!(lamp, Lamp::Ledctl { .. }) {
            return Ok(None);
        }
        let text = std::fs::read_to_string(self.file(lamp, light)?)?;
        Ok(Some(text.trim() != "0"))
    }

    /// Switches a light. `other` is whether the bay's other one is to be on. Blocks.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] where there is no such light, and what the system, or `ledctl`,
    /// says.
    pub fn switch(&self, lamp: &Lamp, light: Light, on: bool, other: bool) -> io::Result<()> {
        let Lamp::Ledctl { device } = lamp else {
            let file = self.file(lamp, light)?;
            return std::fs::write(file, if on { "1" } else { "0" });
        };
        let (fault, locate) = match light {
            Light::Fault => (on, other),
            Light::Locate => (other, on),
        };
        let pattern = match (fault, locate) {
            (_, true) => "locate",
            (true, false) => "failure",
            (false, false) => "normal",
        };
        self.run_ledctl(pattern, device)
    }

    fn run_ledctl(&self, pattern: &str, device: &str) -> io::Result<()> {
        if !Path::new(device).exists() {
            let gone = format!("{device} is gone, and ledctl finds a bay by its disk alone");
            return Err(io::Error::new(io::ErrorKind::NotFound, gone));
        }
        let missing = "ledctl is gone; install ledmon (Debian: apt install ledmon)";
        let missing = || io::Error::new(io::ErrorKind::NotFound, missing);
        let program = self.ledctl.as_ref().ok_or_else(missing)?;
        let mut command = Command::new(program);
        // Without the option it would put out the lights of all other disks.
        command.args(["--listed-only", &format!("{pattern}={device}")]);
        let output = output_within(command.env("LC_ALL", "C"), PATIENCE, || ())?;
        if output.status.success() {
            return Ok(());
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        let last = complaint.lines().rev().find(|line| !line.trim().is_empty());
        let said = last.unwrap_or("it failed without a word").trim();
        Err(io::Error::other(format!("ledctl: {said}")))
    }

    /// What disk is in a bay, by the kernel's name.
    pub fn disk_in(&self, lamp: &Lamp, disks: &[Disk]) -> Option<String> {
        let mut disks = disks.iter();
        let found = disks.find(|disk| self.of(disk).as_ref() == Some(lamp))?;
        Some(found.name.clone())
    }
}

fn existing(path: PathBuf) -> io::Result<PathBuf> {
    match line(&path) {
        Some(_) => Ok(path),
        None => {
            let missing = format!("there is no light {}", path.display());
            Err(io::Error::new(io::ErrorKind::NotFound, missing))
        }
    }
}

#[cfg(test)]
impl Lamps {
    /// Those of a tree for tests, where `ledctl` is this program or none.
    pub(crate) fn of_tree(sysfs: Sysfs, ledctl: Option<PathBuf>) -> Self {
        Self { sysfs, ledctl }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tree::Tree;

    #[test]
    fn each_light_is_switched_alone() {
        let tree = Tree::new();
        tree.slot("6:0:24:0", "Slot 01");
        tree.write("class/enclosure/6:0:24:0/id", "0x50\n");
        tree.write("class/leds/0000:3a:00.0:enclosure:locate/brightness", "0\n");
        tree.write("class/leds/0000:3a:00.0:enclosure:fail/brightness", "0\n");
        let lamps = Lamps::of_tree(tree.sysfs(), None);
        let all = lamps.all();
        assert_eq!(all.len(), 2, "{all:?}");
        let files = [
            "class/enclosure/6:0:24:0/Slot 01/locate",
            "class/leds/0000:3a:00.0:enclosure:locate/brightness",
            "class/enclosure/6:0:24:0/Slot 01/fault",
            "class/leds/0000:3a:00.0:enclosure:fail/brightness",
        ];
        for lamp in &all {
            lamps.switch(lamp, Light::Locate, true, false).expect("on");
            assert_eq!(lamps.is_on(lamp, Light::Locate).expect("read"), Some(true));
            assert_eq!(lamps.is_on(lamp, Light::Fault).expect("read"), Some(false));
        }
        let read = || files.map(|file| tree.read(file));
        assert_eq!(read(), ["1", "1", "0", "0"]);
        for lamp in &all {
            lamps.switch(lamp, Light::Fault, true, true).expect("on");
            lamps.switch(lamp, Light::Locate, false, true).expect("off");
        }
        assert_eq!(read(), ["0", "0", "1", "1"]);
    }

    /// The kernel numbers enclosures anew at each start.
    #[test]
    fn an_enclosure_is_found_by_its_own_identifier() {
        let tree = Tree::new();
        for (at, id) in [("6:0:24:0", "0x50"), ("7:0:24:0", "0x60")] {
            tree.slot(at, "1");
            tree.write(&format!("class/enclosure/{at}/id"), id);
        }
        let lamps = Lamps::of_tree(tree.sysfs(), None);
        let lamp = Lamp::Enclosure {
            enclosure: "0x60".into(),
            component: "1".into(),
        };
        lamps.switch(&lamp, Light::Fault, true, false).expect("on");
        assert_eq!(tree.read("class/enclosure/7:0:24:0/1/fault"), "1");
        let gone = Lamp::Enclosure {
            enclosure: "0x70".into(),
            component: "1".into(),
        };
        let error = lamps.switch(&gone, Light::Fault, true, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn ledctl_has_one_pattern_for_both() {
        let tree = Tree::new();
        tree.disk("null", "8:0", 2048);
        let program = tree.path("ledctl");
        let script = "#!/bin/sh\necho \"$@\" >> \"$0.words\"\n\
                      case \"$*\" in *failure*) echo no such thing >&2; exit 1;; esac\n";
        std::fs::write(&program, script).expect("written");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, all).expect("allowed");
        let lamps = Lamps::of_tree(tree.sysfs(), Some(program));
        // A device that is there on every machine.
        let device = "/dev/null".to_owned();
        let lamp = Lamp::Ledctl { device };
        assert_eq!(lamps.all(), std::slice::from_ref(&lamp));
        lamps.switch(&lamp, Light::Locate, true, true).expect("on");
        let error = lamps.switch(&lamp, Light::Locate, false, true).unwrap_err();
        assert_eq!(error.to_string(), "ledctl: no such thing");
        lamps
            .switch(&lamp, Light::Fault, false, false)
            .expect("off");
        assert_eq!(
            tree.read("ledctl.words"),
            "--listed-only locate=/dev/null\n--listed-only failure=/dev/null\n\
             --listed-only normal=/dev/null"
        );
        let device = "/dev/gone-from-here".to_owned();
        let gone = lamps.switch(&Lamp::Ledctl { device }, Light::Fault, true, false);
        assert_eq!(gone.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
