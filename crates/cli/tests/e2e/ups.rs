//! Goal: pools are exported before a UPS is empty, and come back with the power; people are told.
//! Method: a small `upsd` (RFC 9271) in the test, and pools on files.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::Mutex;

use serde_json::Value;

use crate::harness::{Server, zdb_is_clean};

/// An `upsd` with one UPS, `cellar`; its status can be changed.
fn upsd(status: &str) -> (u16, Arc<Mutex<String>>) {
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
