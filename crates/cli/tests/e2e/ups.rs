//! Goal: pools are exported before a UPS is empty, whoever uses them, and come back with the power;
//! people are told what is so. Method: a small `upsd` (RFC 9271) in the test, and pools on files.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::Mutex;

use serde_json::Value;

use crate::harness::{Peer, PeerOptions, Server, can_mount, finds, need, text_of, zdb_is_clean};
use crate::initiator::{Initiator, READ, WRITE, blocks};
use crate::nfs::{GUEST_PROGRAMS, copy_perl, libnfs, traffic};
use crate::suspend::{Small, fill, filled, noise, until_suspended};

/// An `upsd` with one UPS, `cellar`; its status can be changed.
pub fn upsd(status: &str) -> (u16, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let status = Arc::new(Mutex::new(status.to_owned()));
    let told = Arc::clone(&status);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let told = Arc::clone(&told);
            std::thread::spawn(move || {
                let reader = BufReader::new(stream.try_clone().expect("a socket"));
                for line in reader.lines() {
                    let Ok(line) = line else { return };
                    let variable = |value: &str| {
                        let name = line.rsplit(' ').next().unwrap_or_default();
                        format!("VAR cellar {name} \"{value}\"")
                    };
                    let answer = match line.as_str() {
                        "GET VAR cellar ups.status" => variable(&told.lock().expect("it")),
                        "GET VAR cellar battery.charge" => variable("12"),
                        "GET VAR cellar battery.runtime" => "ERR VAR-NOT-SUPPORTED".to_owned(),
                        "LIST UPS" => "BEGIN LIST UPS\nUPS cellar \"\"\nEND LIST UPS".to_owned(),
                        _ => "ERR UNKNOWN-UPS".to_owned(),
                    };
                    if writeln!(stream, "{answer}").is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, status)
}

fn ups(server: &Server) -> Value {
    let reply: Value = serde_json::from_str(&server.ok("ups --json")).expect("JSON");
    reply["ups"].clone()
}

fn pools(server: &Server) -> String {
    server.ok("zpool list -H -o name")
}

#[test]
fn pools_rest_while_the_battery_is_empty_and_return_with_the_power() {
    let (port, status) = upsd("OL CHRG");
    let set = |text: &str| *status.lock().expect("it") = text.to_owned();
    let mut server = Server::prepare();
    let disks = server.disks(2, 128 << 20);
    let option = format!("cellar@127.0.0.1:{port}");
    server.launch(&["daemon", "--ups", &option]);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    server.ok(&format!("zpool create -m none other {}", disks[1]));
    server.ok("zfs create tank/kept");
    server.wait_until("the UPS tells", || ups(&server)["condition"] == "online");
    assert!(server.ok("ups").contains("charge:   12%"));

    // The power fails: nothing changes, but people are told.
    set("OB DISCHRG");
    server.wait_until("an alert", || {
        let alerts = server.ok("alerts");
        alerts.contains("warning: UPS cellar@127.0.0.1") && alerts.contains("runs on its battery")
    });
    assert_eq!(pools(&server), "other\ntank\n");

    // The battery gets empty: all is exported, and clean.
    set("OB DISCHRG LB");
    server.wait_until("pools are exported", || {
        ups(&server)["are_pools_exported"] == true
    });
    server.wait_until("none is there", || {
        server.ok("info").contains("pools: none")
    });
    let said = server.fails("zfs list tank");
    assert!(said.contains("there is no pool 'tank'"), "{said}");
    let said = server.fails("zpool list tank");
    assert!(
        said.contains("the battery of the UPS is nearly empty"),
        "{said}"
    );
    server.wait_until("a louder alert", || {
        let alerts = server.ok("alerts");
        assert!(!alerts.contains("could not be imported"), "{alerts}");
        alerts.contains("CRITICAL: UPS") && alerts.contains("all pools are exported")
    });
    for pool in ["tank", "other"] {
        zdb_is_clean(&server.path("disks"), pool);
    }

    // It is still so at the next start, which waits as well.
    server.stop();
    server.launch(&["daemon", "--ups", &option]);
    assert!(server.ok("info").contains("pools: none"));

    // There is power for a while.
    set("OL CHRG");
    server.wait_until("pools come back", || {
        pools(&server) == "other\ntank\n" && ups(&server)["are_pools_exported"] == false
    });
    server.ok("zfs list tank/kept");
    server.wait_until("that it is over", || !server.ok("alerts").contains("UPS"));

    // A shutdown that was announced is not waited for, and the next start knows the pools.
    set("FSD OL");
    server.wait_until("none is there", || {
        server.ok("info").contains("pools: none")
    });
    server.stop();
    server.launch(&["daemon"]);
    assert_eq!(pools(&server), "other\ntank\n");
    assert_eq!(ups(&server), Value::Null);
    assert!(server.ok("ups").contains("was given no UPS"));
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Whatever clients are doing when the battery gets empty: what they wrote is on disk, nothing is
/// served until there is power again, and then they find it.
#[test]
fn clients_find_what_they_wrote_when_the_power_is_back() {
    if !can_mount() || !need("nfs-cp of libnfs", finds("nfs-cp")) {
        return;
    }
    let (port, status) = upsd("OL CHRG");
    let set = |text: &str| *status.lock().expect("it") = text.to_owned();
    let mut server = Server::prepare();
    let disks = server.disks(2, 512 << 20);
    let option = format!("cellar@127.0.0.1:{port}");
    server.launch(&["daemon", "--ups", &option]);
    let at = server.text("tank");
    let mounted = Path::new(&at);
    let share = "rw=127.0.0.1,insecure,no_root_squash";
    server.ok(&format!("zpool create -m {at} tank {}", disks[0]));
    server.ok(&format!("zfs set sharenfs={share} tank"));
    server.ok("zfs create -s -V 64M -o millpond:iscsi=on tank/vol");
    let other = server.text("other");
    server.ok(&format!("zpool create -m {other} other {}", disks[1]));
    server.ok(&format!("zfs set sharenfs={share} other"));

    // A file that is open, a program that stands in the mount, a session, a connection.
    let written = noise(7, 8 << 20);
    let mut open = std::fs::File::create(mounted.join("open")).expect("a file");
    open.write_all(&written).expect("written");
    let mut stands = Command::new("sleep");
    let stands = Running(
        stands
            .arg("3600")
            .current_dir(mounted)
            .spawn()
            .expect("sleep"),
    );
    let portal = format!("127.0.0.1:{}", server.iscsi_port);
    let iqn = "iqn.2026-11.io.millpond:tank:vol";
    let mut initiator = Initiator::log_in(&portal, iqn, 1).expect("a login");
    let blocks_written = noise(8, 64 << 10);
    initiator.does(&blocks(WRITE, 0, 16, 128), 0, &blocks_written);
    let given = server.text("given");
    std::fs::write(&given, noise(9, 300_000)).expect("a file");
    let copied = libnfs(&server, "nfs-cp", &[&given], &format!("{at}/copy"));
    assert!(copied.status.success(), "{}", text_of(&copied));
    let connected = TcpStream::connect(("127.0.0.1", server.nfs_port)).expect("a connection");

    set("OB DISCHRG LB");
    server.wait_until("pools are exported", || {
        ups(&server)["are_pools_exported"] == true
    });
    assert_eq!(ups(&server)["not_exported"], serde_json::json!([]));
    assert!(server.ok("info").contains("pools: none"));
    assert!(!listens(server.nfs_port) && !listens(server.iscsi_port));
    drop(initiator);
    let wrote = open.write_all(b"more").and_then(|()| open.sync_all());
    assert!(wrote.is_err(), "nobody takes it");
    assert!(!mounted.join("open").exists());
    drop(connected);
    for pool in ["tank", "other"] {
        zdb_is_clean(&server.path("disks"), pool);
    }

    // Who wants a pool meanwhile has it, and nobody else.
    let directory = server.text("disks");
    server.ok(&format!("zpool import -d {directory} other"));
    std::fs::write(Path::new(&other).join("meanwhile"), "here").expect("a file");
    assert!(!listens(server.nfs_port));
    let info = server.ok("info");
    assert!(
        !info.contains(&format!("nfs: {other}")) && info.contains("not shared by nfs: other"),
        "{info}"
    );

    set("OL CHRG");
    server.wait_until("pools come back", || pools(&server) == "other\ntank\n");
    server.wait_until("all is served", || {
        listens(server.nfs_port) && listens(server.iscsi_port)
    });
    assert_eq!(std::fs::read(mounted.join("open")).expect("it"), written);
    for (path, expected) in [
        (format!("{at}/copy"), noise(9, 300_000)),
        (format!("{other}/meanwhile"), b"here".to_vec()),
    ] {
        let found = libnfs(&server, "nfs-cat", &[], &path);
        assert!(found.stdout == expected, "{path}: {}", text_of(&found));
    }
    let mut initiator = Initiator::log_in(&portal, iqn, 1).expect("a login");
    let found = initiator.does(&blocks(READ, 0, 16, 128), 64 << 10, &[]);
    assert!(found == blocks_written, "the volume has what was written");
    drop(stands);
    server.stop();
}

/// A pool that stands still keeps no other from being exported, and is not said to be; when it
/// works again it is exported as well, and nothing of it is lost.
#[test]
fn what_cannot_be_exported_is_told_and_tried_again() {
    if !can_mount() {
        return;
    }
    let (port, status) = upsd("OL CHRG");
    let set = |text: &str| *status.lock().expect("it") = text.to_owned();
    let mut server = Server::prepare();
    let small = Small::mount(server.path("small"), "100M");
    let disk = small.disk("d0", 1 << 30);
    let disks = server.disks(1, 256 << 20);
    server.launch(&["daemon", "--ups", &format!("cellar@127.0.0.1:{port}")]);
    let root = server.path("mnt");
    server.ok(&format!("zpool create -m {} tank {disk}", root.display()));
    server.ok(&format!("zpool create -m none well {}", disks[0]));
    let filling = fill(&root, 20);
    until_suspended(&server, "tank");

    set("OB DISCHRG LB");
    server.wait_until("the other is exported", || {
        ups(&server)["not_exported"] == serde_json::json!(["tank"])
    });
    assert_eq!(pools(&server), "tank\n");
    assert_eq!(ups(&server)["are_pools_exported"], false);
    assert!(server.ok("ups").contains("not exported yet: tank"));
    zdb_is_clean(&server.path("disks"), "well");
    server.wait_until("an alert", || {
        let alerts = server.ok("alerts");
        assert!(!alerts.contains("all pools are exported"), "{alerts}");
        alerts.contains("all pools are being exported")
    });

    small.resize("1G");
    server.ok("zpool clear tank");
    server.wait_until("all are exported", || {
        ups(&server)["are_pools_exported"] == true
    });
    // How much was written before it was unmounted, is up to chance; what was synced is there.
    let done = filling.join().expect("it ends");
    zdb_is_clean(&small.0, "tank");
    server.wait_until("an alert", || {
        server.ok("alerts").contains("all pools are exported")
    });
    set("OL CHRG");
    server.wait_until("pools come back", || {
        pools(&server) == "tank\nwell\n" && root.join("fill0").exists()
    });
    filled(&root, done.map_or_else(|(synced, _)| synced, |()| 20));
    server.ok("zpool destroy tank");
}

/// Linux waits for the power, however long its lease is over then, and goes on with the files that
/// it has open and locked.
#[test]
fn linux_goes_on_by_nfs_when_the_power_is_back() {
    if !can_mount() || !need("perl", finds("/usr/bin/perl")) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let (port, status) = upsd("OL CHRG");
    let set = |text: &str| *status.lock().expect("it") = text.to_owned();
    let mut server = Server::prepare();
    let disks = server.disks(1, 1 << 30);
    server.launch(&["daemon", "--ups", &format!("cellar@127.0.0.1:{port}")]);
    let at = server.text("tank");
    server.ok(&format!("zpool create -m {at} tank {}", disks[0]));
    server.ok("zfs set sharenfs=rw=127.0.0.1,insecure,no_root_squash tank");
    let input = server.path("in");
    copy_perl(&input);
    let script = format!(
        r#"set -e
{GUEST_PROGRAMS}
mkdir -p /m
mount -t nfs -o vers=4.1,proto=tcp,port={} 10.0.2.2:{at} /m
echo held > /m/held
exec 5>> /m/open; echo first >&5
cat > /tmp/hold <<'SH'
dd if=/dev/zero of=/m/much bs=1M count=48 conv=fsync 2>/dev/null
while [ ! -e /m/away ]; do sleep 0.2; done
echo more >> /m/held
SH
/peer/perl /tmp/lock /m/held w try 0 10 'sh /tmp/hold'
[ "$(tr '\n' ' ' < /m/held)" = 'held more ' ]
echo second >&5; exec 5>&-
[ "$(tr '\n' ' ' < /m/open)" = 'first second ' ]
sync
umount /m
"#,
        server.nfs_port
    );
    std::thread::scope(|scope| {
        let running = scope
            .spawn(|| peer.run_with(&[], PeerOptions::default().network().input(&input), &script));
        server.wait_until("the client writes", || {
            running.is_finished() || traffic(&server, "tank")[5] > 4 << 20
        });
        set("OB DISCHRG LB");
        server.wait_until("pools are exported", || {
            ups(&server)["are_pools_exported"] == true
        });
        zdb_is_clean(&server.path("disks"), "tank");
        // Longer than a lease; only then the lock is what the server gave it to keep.
        std::thread::sleep(std::time::Duration::from_secs(100));
        assert!(!running.is_finished(), "the client waits");
        set("OL CHRG");
        server.wait_until("pools come back", || pools(&server) == "tank\n");
        let held = Path::new(&at).join("held");
        server.wait_until("the mount is back", || held.exists());
        std::fs::write(held.with_file_name("away"), "").expect("a file");
        running.join().expect("the guest is content");
    });
    // The mount takes the size that it was told of for good for a second.
    server.wait_until("the mount shows what the client wrote", || {
        let held = std::fs::read_to_string(Path::new(&at).join("held"));
        held.is_ok_and(|held| held == "held\nmore\n")
    });
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}
