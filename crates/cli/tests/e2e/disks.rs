//! Goal: disks are listed with how they are and where, lights follow what pools lack and what
//! people ask for, also through a crash, and who is to be told is. Method: loop devices in a tree
//! as the kernel's and a program in place of `smartctl`, whose answers lie in files. Disks test
//! themselves by schedule: one test after the other, and what they find is told.

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
*" -t "*)
    if [ -e "$disk.refuses" ]; then
        echo '{"smartctl":{"exit_status":4,"messages":[{"string":"it is too hot"}]}}'
    else
        echo '{"smartctl":{"exit_status":0}}'
    fi ;;
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
        self.plug_into(index, index);
    }

    /// Puts a disk into any slot.
    fn plug_into(&self, index: usize, slot: usize) {
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
            &block.join(format!("device/enclosure_device:Slot 0{slot}")),
            self.light(slot, "fault").parent().expect("its slot"),
        );
    }

    /// Has its disks hang on a controller with one lane of PCI Express 1.
    fn behind_a_slow_slot(&self) {
        let controller = self.root.join("devices/pci0000:00/0000:00:1f.2");
        for which in ["current", "max"] {
            let file = |what: &str| controller.join(format!("{which}_link_{what}"));
            write(&file("speed"), "2.5 GT/s PCIe\n");
            write(&file("width"), "1\n");
        }
        write(&controller.join("class"), "0x010601\n");
        for (index, name) in self.names.iter().enumerate() {
            let real = controller.join("host0/block").join(name);
            std::fs::create_dir_all(real.parent().expect("a directory")).expect("made");
            std::fs::rename(self.block(index), &real).expect("moved");
            link(&self.block(index), &real);
        }
    }

    /// Takes it out again.
    pub fn pull(&self, index: usize) {
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

    /// Whether a disk wants to test itself from now on.
    fn refuse(&self, index: usize, refuses: bool) {
        let path = self.smart.join(format!("{}.refuses", self.names[index]));
        match refuses {
            true => write(&path, ""),
            false => std::fs::remove_file(path).expect("it refused"),
        }
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
    fake.behind_a_slow_slot();
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

    // What they hang on: 180 MB/s each, and 200 of 250 MB/s that the lane carries.
    let buses = server.ok("disks buses --json");
    let buses: Value = serde_json::from_str(&buses).expect("JSON");
    assert_eq!(buses["controllers"][0]["kind"], "sata");
    assert_eq!(buses["links"][0]["rate"], 200_000_000);
    assert_eq!(buses["links"][0]["disks"].as_array().map(Vec::len), Some(3));
    let of_pool = &buses["pools"][0];
    assert_eq!(of_pool["pool"], *pool);
    assert_eq!(of_pool["disks_rate"], 360_000_000);
    assert_eq!(of_pool["rate"], 200_000_000);
    let text = server.ok("disks buses");
    let expected = format!("{pool}: 0000:00:1f (pcie1x1) is full before the disks are");
    assert!(text.contains(&expected), "{text}");

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

/// Goal: a disk that is put into the bay of one that failed takes its place, where the pool wants
/// that.
#[test]
fn a_disk_takes_the_place_of_the_one_in_its_bay() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    let files = server.disks(3, DISK_BYTES);
    let devices = server.attach(&files);
    let fake = Fake::of(&mut server, &devices);
    fake.pull(2);
    server.launch(&["daemon"]);
    let pool = format!("bays{}", std::process::id());
    let (d0, d1) = (&devices[0], &devices[1]);
    server.ok(&format!("zpool create -m none {pool} mirror {d0} {d1}"));
    server.wait_until("places are noted", || {
        let book = std::fs::read_to_string(server.state().join("lights.json"));
        book.is_ok_and(|book| book.contains("Slot 01"))
    });
    fake.pull(1);
    server.ok(&format!("zpool offline -f {pool} {d1}"));
    fake.plug_into(2, 1);
    let has = |index: usize| {
        let status = server.ok(&format!("zpool status {pool}"));
        let mut words = status.split_whitespace();
        words.any(|word| word == fake.names[index])
    };
    server.wait_until("the light of the bay", || fake.is_lit(1, "fault"));
    assert!(has(1) && !has(2), "nobody asked for it");
    server.ok(&format!("zpool set autoreplace=on {pool}"));
    server.wait_until("another one is in its place", || {
        // Something happens, and is looked at.
        server.ok(&format!("zpool set comment=look {pool}"));
        has(2) && !has(1)
    });
}

/// How often something was asked of a disk.
fn count_asked(fake: &Fake, words: &str) -> usize {
    let asked = std::fs::read_to_string(fake.smart.join("asked")).unwrap_or_default();
    asked.lines().filter(|line| line.contains(words)).count()
}

/// The log of tests of a disk, the newest first: hours, status, and whether it passed.
fn with_tests(answer: &mut Value, tests: &[(u64, &str, Option<bool>)]) {
    let row = |(hours, result, passed): &(u64, &str, Option<bool>)| {
        let mut row = json!({
            "type": {"string": "Extended offline"},
            "status": {"string": result},
            "lifetime_hours": hours,
        });
        if let Some(passed) = passed {
            row["status"]["passed"] = json!(passed);
        }
        row
    };
    let table: Vec<Value> = tests.iter().map(row).collect();
    answer["ata_smart_self_test_log"]["standard"]["table"] = json!(table);
}

fn schedule(server: &Server, name: &str) -> Value {
    let all: Value = serde_json::from_str(&server.ok("schedule list --json")).expect("JSON");
    let mut all = all["schedules"].as_array().expect("a list").iter();
    let found = all.find(|one| one["name"] == name);
    found.cloned().unwrap_or(Value::Null)
}

#[test]
fn disks_test_themselves_by_schedule_and_what_they_find_is_told() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    let files = server.disks(2, DISK_BYTES);
    let devices = server.attach(&files);
    let fake = Fake::of(&mut server, &devices);
    server.launch(&["daemon"]);
    let pool = format!("tests{}", std::process::id());
    server.ok(&format!("zpool create -m none {pool} {}", devices[0]));

    // All disks, and those of a pool.
    let said = server.ok("schedule set smart-short");
    assert!(
        said.contains("'smart-short' runs each wednesday at 02:00"),
        "{said}"
    );
    let said = server.ok(&format!("schedule set smart-long {pool} --name thorough"));
    assert!(
        said.contains("'thorough' runs each month on 15 at 02:00"),
        "{said}"
    );
    assert!(server.ok("schedule list").contains("all disks"));
    assert_eq!(
        server.ok("schedule run smart-short"),
        "smart-short: begun by 2 disks\n"
    );
    for name in &fake.names {
        assert_eq!(count_asked(&fake, &format!("-t short /dev/{name}")), 1);
    }
    server.ok("schedule run thorough");
    assert_eq!(schedule(&server, "thorough")["last"]["tested"], 1);
    let long = |index: usize| count_asked(&fake, &format!("-t long /dev/{}", fake.names[index]));
    assert_eq!((long(0), long(1)), (1, 0));

    // One that does not want to is told of, and keeps no other from it.
    fake.refuse(1, true);
    assert_eq!(
        server.ok("schedule run smart-short"),
        "smart-short: begun by one disk\n"
    );
    let last = schedule(&server, "smart-short")["last"].clone();
    assert_eq!(last["untested"][0]["why"], "it is too hot", "{last}");
    fake.refuse(1, false);

    // A test that is under way is waited for, also by what was missed while the server was away.
    fake.answer(0, |answer| {
        answer["ata_smart_data"]["self_test"]["status"]["remaining_percent"] = json!(90);
    });
    server.ok("disks show Z0");
    for name in ["smart-short", "thorough"] {
        let said = server.fails(&format!("schedule run {name}"));
        assert!(said.contains("disks test themselves already"), "{said}");
    }
    server.stop();
    let path = server.state().join("schedules.json");
    let text = std::fs::read_to_string(&path).expect("what is kept");
    let mut kept: Value = serde_json::from_str(&text).expect("JSON");
    for one in kept.as_array_mut().expect("a list") {
        if one["name"] == "thorough" {
            for time in ["created_s", "begun_s", "ended_s"] {
                let at_s = one[time].as_u64().expect("a time");
                one[time] = json!(at_s - 40 * 24 * 3600);
            }
        }
    }
    std::fs::write(&path, kept.to_string()).expect("the file");
    server.launch(&["daemon"]);
    server.wait_until("it waits", || {
        schedule(&server, "thorough")["waits"] == "testing"
    });
    assert_eq!(
        (long(0), schedule(&server, "thorough")["failures"] == 0),
        (1, true)
    );

    // The disk found something: that is kept and told, and the missed run is made up for.
    fake.answer(0, |answer| {
        let failed = (4001, "Completed: read failure", Some(false));
        with_tests(
            answer,
            &[failed, (3999, "Completed without error", Some(true))],
        );
    });
    let shown = server.ok("disks show Z0");
    assert!(shown.contains("tested:         "), "{shown}");
    assert!(
        shown.contains("Extended offline FAILED: Completed: read failure"),
        "{shown}"
    );
    server.wait_until("the run that was missed", || long(0) == 2);
    let of_disk = "failed its long test (after 4001 hours of being on): Completed: read failure";
    let alerts = || server.ok("alerts");
    server.ok(&format!("zfs create -o canmount=off {pool}/event"));
    server.wait_until("an alert", || alerts().contains(of_disk));
    let disks = listed(&server);
    assert_eq!(named(&disks, &fake.names[0])["condition"], "warning");

    // A longer look that finds nothing ends it; the disk's own log is not all that is known.
    fake.answer(0, |answer| {
        with_tests(answer, &[(4003, "Completed without error", Some(true))])
    });
    let shown = server.ok("disks show Z0 --json");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let seen = shown["tests"].as_array().expect("tests");
    let seen: Vec<&Value> = seen.iter().map(|test| &test["at_hours"]).collect();
    assert_eq!(seen, [3999, 4001, 4003]);
    let disks = listed(&server);
    assert_eq!(named(&disks, &fake.names[0])["condition"], "good");

    // No disk at all can: that is a failure, and an alert.
    for index in 0..2 {
        fake.answer(index, |answer| {
            *answer = json!({"smartctl": {"exit_status": 1, "messages": [{
                "string": "Unable to detect device type", "severity": "error",
            }]}});
        });
    }
    let said = server.fails("schedule run smart-short");
    assert!(
        said.contains("the host has no disks that can test themselves"),
        "{said}"
    );
    server.ok(&format!("zfs create -o canmount=off {pool}/another"));
    server.wait_until("an alert of the schedule", || {
        alerts().contains("schedule smart-short (short tests of all disks) fails")
    });
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
    assert_eq!(server.ok("disks buses"), "there are no disks\n");
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
