//! Goal: disks are listed with how they are and where, lights follow what pools lack and what
//! people ask for, also through a crash, and who is to be told is. Method: loop devices in a tree
//! as the kernel's and a program in place of `smartctl`, whose answers lie in files.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Server, can_mount};

/// Size of a disk.
const DISK_BYTES: u64 = 128 << 20;

/// The enclosure of all of them.
const ENCLOSURE: &str = "0:0:24:0";

/// Answers with what lies beside it under the disk's name; notes what is asked of it.
const SMARTCTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
for disk; do :; done
disk=${disk##*/}
echo "$*" >> asked
case "$*" in
*" -t "*) echo '{"smartctl":{"exit_status":0}}' ;;
*) cat "$disk.json" ;;
esac
"#;

/// A tree as the kernel's, and a `smartctl` as smartmontools'.
pub struct Fake {
    root: PathBuf,
    smart: PathBuf,
    names: Vec<String>,
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    std::fs::write(path, text).expect("written");
}

fn link(path: &Path, to: &Path) {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    std::os::unix::fs::symlink(to, path).expect("linked");
}

impl Fake {
    /// Makes both for these loop devices, each in a slot of its own, and has a server that is
    /// started later see them.
    pub fn of(server: &mut Server, devices: &[String]) -> Self {
        use std::os::unix::fs::PermissionsExt;

        let fake = Self {
            root: server.path("sysfs"),
            smart: server.path("smart"),
            names: devices
                .iter()
                .map(|device| device.trim_start_matches("/dev/").to_owned())
                .collect(),
        };
        let program = fake.smart.join("smartctl");
        write(&program, SMARTCTL);
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, all).expect("allowed");
        let enclosure = fake.root.join("class/enclosure").join(ENCLOSURE);
        write(&enclosure.join("id"), "0x500304801f\n");
        for (index, name) in fake.names.iter().enumerate() {
            for light in ["fault", "locate"] {
                write(&fake.light(index, light), "0\n");
            }
            fake.plug(index);
            fake.answer(index, |_| {});
            let class = fake.root.join("class/block").join(name);
            link(&class, &fake.block(index));
        }
        let environment = [
            ("MILLPOND_SYSFS", &fake.root),
            ("MILLPOND_SMARTCTL", &program),
            ("MILLPOND_LEDCTL", &fake.smart.join("none")),
        ];
        let environment = environment.map(|(name, path)| (name, path.display().to_string()));
        server.environment.extend(environment);
        fake
    }

    fn block(&self, index: usize) -> PathBuf {
        self.root.join("block").join(&self.names[index])
    }

    /// Puts a disk into its slot.
    pub fn plug(&self, index: usize) {
        let (block, name) = (self.block(index), &self.names[index]);
        for file in ["dev", "size", "ro"] {
            let real = format!("/sys/block/{name}/{file}");
            let real = std::fs::read_to_string(real).expect("a loop device");
            write(&block.join(file), &real);
        }
        write(&block.join("device/model"), "ST4000VN008\n");
        write(&block.join("device/serial"), &format!("Z{index}\n"));
        write(&block.join("queue/rotational"), "1\n");
        link(
            &block.join(format!("device/enclosure_device:Slot 0{index}")),
            self.light(index, "fault").parent().expect("its slot"),
        );
    }

    /// Takes it out again.
    fn pull(&self, index: usize) {
        std::fs::remove_dir_all(self.block(index)).expect("pulled");
    }

    /// The file of a light.
    pub fn light(&self, index: usize, light: &str) -> PathBuf {
        let slot = format!("class/enclosure/{ENCLOSURE}/Slot 0{index}/{light}");
        self.root.join(slot)
    }

    fn is_lit(&self, index: usize, light: &str) -> bool {
        std::fs::read_to_string(self.light(index, light)).expect("a light") == "1"
    }

    /// Where the tree is.
    pub fn root(&self) -> String {
        self.root.display().to_string()
    }

    /// What a disk answers from now on: that it is well, with a change.
    pub fn answer(&self, index: usize, change: impl FnOnce(&mut Value)) {
        let attribute = |id: u64, name: &str| {
            json!({
                "id": id, "name": name, "value": 100, "worst": 100, "thresh": 10,
                "raw": {"value": 0, "string": "0"},
            })
        };
        let mut answer = json!({
            "json_format_version": [1, 0],
            "smartctl": {"version": [7, 3], "exit_status": 0},
            "device": {"type": "sat", "protocol": "ATA"},
            "smart_status": {"passed": true},
            "temperature": {"current": 31 + index},
            "power_on_time": {"hours": 4000},
            "ata_smart_attributes": {"table": [
                attribute(5, "Reallocated_Sector_Ct"),
                attribute(197, "Current_Pending_Sector"),
            ]},
            "ata_smart_self_test_log": {"standard": {"table": [{
                "type": {"string": "Short offline"},
                "status": {"string": "Completed without error", "passed": true},
                "lifetime_hours": 3999,
            }]}},
        });
        change(&mut answer);
        let name = format!("{}.json", self.names[index]);
        write(&self.smart.join(name), &answer.to_string());
    }
}

fn listed(server: &Server) -> Vec<Value> {
    let listed: Value = serde_json::from_str(&server.ok("disks --json")).expect("JSON");
    listed["disks"].as_array().expect("disks").clone()
}

fn named<'a>(disks: &'a [Value], name: &str) -> &'a Value {
    let mut disks = disks.iter();
    let found = disks.find(|disk| disk["name"] == name);
    found.unwrap_or_else(|| panic!("no disk {name}"))
}

#[test]
fn disks_are_known_found_and_lit() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    let files = server.disks(3, DISK_BYTES);
    let devices = server.attach(&files);
    let fake = Fake::of(&mut server, &devices);
    let names = fake.names.clone();
    server.launch(&["daemon"]);
    let pool = format!("disks{}", std::process::id());
    let (d0, d1, d2) = (&devices[0], &devices[1], &devices[2]);
    server.ok(&format!("zpool create -m none {pool} mirror {d0} {d1}"));

    // What the kernel and pools tell, then what the disks do.
    let disks = listed(&server);
    assert_eq!(disks.len(), 3, "{disks:?}");
    let first = named(&disks, &names[0]);
    assert_eq!(first["bay"], "Slot 00");
    assert_eq!(first["model"], "ST4000VN008");
    assert_eq!(first["members"][0]["pool"], *pool);
    assert_eq!(first["members"][0]["vdev"], "mirror-0");
    assert_eq!(named(&disks, &names[2])["members"], json!([]));
    let shown = server.ok("disks show Z0");
    for expected in [
        "temperature:    31 °C",
        "hours:          4000",
        "passed after 3999 hours",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }
    let asked = std::fs::read_to_string(fake.smart.join("asked")).expect("what was asked");
    let words = format!("--json=c -n standby -x /dev/{}", names[0]);
    assert!(asked.lines().any(|line| line == words), "{asked}");
    assert!(server.ok("disks").contains("good"));
    server.ok(&format!("disks test {d0} long"));
    let asked = std::fs::read_to_string(fake.smart.join("asked")).expect("what was asked");
    assert!(asked.contains(&format!("--json=c -t long /dev/{}", names[0])));

    // Who is to be told is.
    fake.answer(0, |answer| {
        answer["ata_smart_attributes"]["table"][0]["raw"]["value"] = json!(5);
    });
    fake.answer(1, |answer| answer["smart_status"]["passed"] = json!(false));
    for name in &names[..2] {
        server.ok(&format!("disks show {name}"));
    }
    server.ok(&format!("zfs create -o canmount=off {pool}/event"));
    server.wait_until("alerts about disks", || {
        let alerts = server.ok("alerts");
        let failing = alerts.contains("CRITICAL: disk") && alerts.contains("is failing");
        failing && alerts.contains("has 5 bad sectors, 5 of them new")
    });
    let disks = listed(&server);
    assert_eq!(named(&disks, &names[0])["condition"], "warning");
    assert_eq!(named(&disks, &names[1])["condition"], "failing");
    assert!(!fake.is_lit(1, "fault"), "the pool uses it still");

    // One that sleeps is not woken.
    fake.answer(2, |answer| {
        *answer = json!({"smartctl": {"exit_status": 2, "messages": [{
            "string": "Device is in STANDBY mode, exit(2)", "severity": "information",
        }]}});
    });
    assert!(server.ok(&format!("disks show {d2}")).contains("asleep"));

    // Lights as people ask for them.
    server.ok("disks locate Z2");
    assert!(fake.is_lit(2, "locate") && !fake.is_lit(1, "locate"));
    server.ok(&format!("disks locate {d2} --off"));
    assert!(!fake.is_lit(2, "locate"));
    server.ok(&format!("disks locate {} --for 1s", names[2]));
    server.wait_until("the light is off", || !fake.is_lit(2, "locate"));
    assert!(
        server
            .fails("disks locate sdnone")
            .contains("there is no disk")
    );

    // And by themselves.
    server.ok(&format!("zpool offline -f {pool} {d1}"));
    server.wait_until("its fault light", || fake.is_lit(1, "fault"));
    assert!(!fake.is_lit(0, "fault"));
    server.kill();
    // What was asked for before a crash is put out after it, as is a test.
    server.launch(&["daemon"]);
    assert!(fake.is_lit(1, "fault"));
    let tested = server.ok("disks lights-test --seconds 1");
    assert_eq!(tested.matches(": lit").count(), 3, "{tested}");
    assert!(fake.is_lit(1, "fault") && !fake.is_lit(0, "fault"));
    server.ok(&format!("zpool replace -f {pool} {d1} {d2}"));
    server.ok(&format!("zpool wait {pool}"));
    server.wait_until("its light is off", || !fake.is_lit(1, "fault"));

    // A disk that is pulled is found by where it was.
    server.wait_until("the new disk is known", || {
        let book = std::fs::read_to_string(server.state().join("lights.json"));
        book.is_ok_and(|book| book.contains("Z2"))
    });
    fake.pull(2);
    server.ok(&format!("zpool offline -f {pool} {d2}"));
    server.wait_until("the light of the empty slot", || fake.is_lit(2, "fault"));
    let disks = listed(&server);
    let missing = disks.iter().find(|disk| disk["condition"] == "missing");
    let missing = missing.unwrap_or_else(|| panic!("{disks:?}"));
    assert_eq!(
        (&missing["bay"], &missing["serial"]),
        (&"Slot 02".into(), &"Z2".into())
    );
    assert!(server.ok("disks").contains("MISSING"));
    server.ok("disks locate Z2");
    assert!(fake.is_lit(2, "locate"));
    server.kill();
    server.launch(&["daemon"]);
    assert!(fake.is_lit(2, "locate") && fake.is_lit(2, "fault"));
    fake.plug(2);
    server.ok(&format!("zpool clear {pool} {d2}"));
    server.wait_until("it is back", || !fake.is_lit(2, "fault"));
    server.ok("disks locate Z2 --off");
    assert!(!fake.is_lit(2, "locate"));

    // A server that leaves leaves the lights.
    server.ok(&format!("zpool offline -f {pool} {d2}"));
    server.wait_until("its fault light", || fake.is_lit(2, "fault"));
    server.ok("down");
    assert!(fake.is_lit(2, "fault"));
}

#[test]
fn without_smartctl_and_lights_people_are_told_what_to_install() {
    let mut server = Server::prepare();
    std::fs::create_dir(server.path("sysfs")).expect("made");
    for (name, what) in [
        ("MILLPOND_SYSFS", "sysfs"),
        ("MILLPOND_SMARTCTL", "none"),
        ("MILLPOND_LEDCTL", "none"),
    ] {
        let path = server.text(what);
        server.environment.push((name, path));
    }
    server.launch(&["daemon"]);
    let output = server.command(&["disks"]);
    let said = crate::harness::text_of(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("there are no disks") && said.contains("apt install smartmontools"));
    assert!(
        server
            .fails("disks lights-test")
            .contains("apt install ledmon")
    );
    server.ok("alerts set --temperature 55");
    assert!(server.ok("alerts settings").contains("temperature:  55 °C"));
    server.ok("alerts set --temperature auto");
    assert!(
        server
            .ok("alerts settings")
            .contains("each disk's own limit")
    );
}
