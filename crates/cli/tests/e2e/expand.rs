//! Goal: devices that have grown are used when that is wanted (`autoexpand=on`), else only told of.
//! Method: pools of all layouts on devices that grow between export and import; filled beyond what
//! they had before; zdb and the real OpenZFS find everything right, and the same size.

use std::fs::File;
use std::path::Path;

use crate::harness::{Peer, Server, can_mount, need, run, zdb_is_clean};

const LAYOUTS: [(&str, &str); 4] = [
    ("alone", "D"),
    ("twins", "mirror D D"),
    ("parity", "raidz1 D D D"),
    ("spread", "draid1:2d D D D"),
];
const BEFORE_BYTES: u64 = 128 << 20;
const AFTER_BYTES: u64 = 448 << 20;

fn value(server: &Server, property: &str, pool: &str) -> String {
    let text = server.ok(&format!("zpool get -Hpo value {property} {pool}"));
    text.trim().to_owned()
}

fn number(server: &Server, property: &str, pool: &str) -> u64 {
    value(server, property, pool).parse().expect("a number")
}

#[test]
fn devices_that_grew_are_used_with_autoexpand() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let mut server = Server::start();
    let count = |words: &str| words.split(' ').filter(|word| *word == "D").count();
    let all = LAYOUTS.iter().map(|(_, words)| count(words)).sum();
    let disks = server.disks(all, BEFORE_BYTES);
    let devices = server.attach(&disks);
    let mut free = devices.into_iter();
    for (name, words) in LAYOUTS {
        let vdevs: Vec<String> = words
            .split(' ')
            .map(|word| match word {
                "D" => free.next().expect("a device"),
                word => word.to_owned(),
            })
            .collect();
        let at = server.text(name);
        server.ok(&format!(
            "zpool create -O compression=off -m {at} {name} {}",
            vdevs.join(" ")
        ));
        // Some of its space maps and logs are written, some not.
        std::fs::write(server.path(name).join("first"), vec![7; 5 << 20]).expect("a file");
        server.ok(&format!("zpool export {name}"));
    }
    server.detach();
    for disk in &disks {
        let file = File::options().write(true).open(disk);
        file.and_then(|file| file.set_len(AFTER_BYTES))
            .expect("grown");
    }
    let from = server.attach_to_import(&disks);
    for (name, words) in LAYOUTS {
        server.ok(&format!("zpool import {from} {name}"));
        let size = number(&server, "size", name);
        let more = number(&server, "expandsize", name);
        let expected = (AFTER_BYTES - BEFORE_BYTES)
            * match count(words) as u64 {
                devices if words.contains("raidz") || words.contains("draid") => devices,
                _ => 1,
            };
        // By whole metaslabs, of 16 MiB here.
        assert!(
            more.abs_diff(expected) <= 32 << 20,
            "{name}: {more}, {expected}"
        );
        let listed = server.ok(&format!("zpool list -Hpv -o name,size,expandsize {name}"));
        assert!(listed.contains(&format!("{size}\t{more}")), "{listed}");
        server.ok(&format!("zpool set autoexpand=on {name}"));
        server.ok(&format!("zpool export {name}"));
        server.ok(&format!("zpool import {from} {name}"));
        // dRAID allocates whole stripes only, of which not all of a metaslab may consist.
        let bigger = number(&server, "size", name);
        assert!(bigger.abs_diff(size + more) < 1 << 20, "{name}: {bigger}");
        assert_eq!(value(&server, "expandsize", name), "-");
        // More than there was room for.
        let usable = number(&server, "size", name) * 2 / 5 / count(words) as u64
            * match words.split(' ').next() {
                Some("raidz1" | "draid1:2d") => 2,
                _ => 1,
            };
        let noise = File::open("/dev/urandom").expect("noise");
        let mut file = File::create(server.path(name).join("second")).expect("a file");
        std::io::copy(&mut std::io::Read::take(noise, usable), &mut file).expect("room");
        file.sync_all().expect("synced");
        drop(file);
        server.ok(&format!("zpool export {name}"));
    }
    // What was written as bigger is read as bigger; the rest is for the oracles.
    let sums = |server: &Server| -> Vec<String> {
        LAYOUTS
            .iter()
            .map(|(name, _)| {
                server.ok(&format!("zpool import {from} {name}"));
                let at = server.text(name);
                let sum = run("sh", &["-c", &format!("cd {at} && sha256sum first second")]);
                let size = value(server, "size", name);
                server.ok(&format!("zpool export {name}"));
                format!("{size}\n{sum}")
            })
            .collect()
    };
    let expected = sums(&server);
    server.detach();
    for (name, _) in LAYOUTS {
        zdb_is_clean(&server.path("disks"), name);
    }
    let Some(peer) = Peer::find() else { return };
    let script: String = LAYOUTS
        .iter()
        .map(|(name, _)| {
            format!(
                "zpool import -d /dev/disk/peer -R /mnt {name} 2>&1\nzpool scrub -w {name}\nzpool \
                 status {name} | grep -q 'with 0 errors'\n\
                 echo BEGIN; zpool get -Hpo value size {name}; \
                 cd \"$(zfs get -H -o value mountpoint {name})\"; sha256sum first second; \
                 cd /; echo END\n\
                 zpool export {name}\n"
            )
        })
        .collect();
    let text = peer.run(&disks, &format!("set -e\n{script}"));
    let text = text.replace('\r', "");
    let seen: Vec<&str> = text
        .split("BEGIN\n")
        .skip(1)
        .filter_map(|part| part.split("END\n").next())
        .collect();
    assert_eq!(seen, expected, "{text}");
}
