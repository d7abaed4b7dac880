//! Goal: a source that says nothing any more does not keep its target for ever. Method: a
//! replication by TLS whose bytes a relay holds up, so that the kernels at both ends find the
//! connection well; and a receive from a pipe that somebody keeps open.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::harness::{MILLPOND, Server, can_mount, zdb_is_clean};
use crate::replicate::{listed, make_pools, pool, same, value, write};
use crate::replicate_tls::{Relay, console, works};

/// How long a source that is given up has to be silent; and what a slow machine may take besides.
const SILENT: Duration = Duration::from_secs(60);
const SLACK: Duration = Duration::from_secs(120);

/// Begins a run and holds it up in the middle.
fn held_up(server: &Server, relay: &Relay) -> Child {
    let command = server.begin(&["replicate", "--run", "tank-src"]);
    server.wait_until("half of it is sent", || {
        let told = listed(server, "tank-src");
        told["job"]["progress"]["done"].as_u64().unwrap_or(0) > 12 << 20
    });
    relay.is_held.store(true, Ordering::SeqCst);
    command
}

/// Whether a job of that kind runs.
fn is_at(server: &Server, kind: &str) -> bool {
    let told = server.ask("/v1/jobs/list", &serde_json::json!({}));
    let mut jobs = told["jobs"].as_array().expect("a list").iter();
    jobs.any(|job| job["kind"] == kind && job["state"] == "running")
}

#[test]
fn a_silent_source_keeps_no_target() {
    if !can_mount() {
        return;
    }
    let mut other = Server::prepare();
    other.https = None;
    other.launch(&["daemon"]);
    let disk = &other.disks(1, 512 << 20)[0];
    pool(&other, "far", disk);
    let (port, fingerprint) = console(&other);
    let key = other.ok("apikey make replica --role operator");
    let relay = Relay::to(port);
    let server = Server::start();
    make_pools(&server);
    write(&server, "one", 1, 200_000);
    let target = format!("https://127.0.0.1:{}/far/copy", relay.port);
    let replicate = format!(
        "replicate tank/src {target} --limit 16M --keep all --fingerprint sha256:{fingerprint}"
    );
    works(&server, &replicate, key.trim());

    // A pipe that stays open after half of a stream.
    server.ok("zfs snapshot tank/src@half");
    let stream = server.command(&["zfs", "send", "tank/src@half"]).stdout;
    let mut local = Command::new(MILLPOND)
        .args(["zfs", "receive", "-s", "-u", "far/pipe"])
        .env("MILLPOND_STATE", other.state())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("millpond runs");
    let mut pipe = local.stdin.take().expect("its input");
    pipe.write_all(&stream[..stream.len() / 2])
        .expect("it reads");

    // One that has just sent something is not given up.
    write(&server, "big", 2, 24 << 20);
    let mut command = held_up(&server, &relay);
    let said = other.fails("zfs receive -A far/copy");
    assert!(said.contains("sent nothing for 60 seconds"), "{said}");
    assert!(other.fails("zpool export far").contains("busy"));
    let begun = Instant::now();
    while !other
        .command(&["zfs", "receive", "-A", "far/copy"])
        .status
        .success()
    {
        assert!(begun.elapsed() < SILENT + SLACK, "{}", other.log());
        std::thread::sleep(Duration::from_secs(2));
    }
    assert_eq!(value(&other, "far/copy", "receive_resume_token"), "-");
    // The pipe is as silent, but it is nobody's business until somebody says so.
    assert!(local.try_wait().expect("it is there").is_none());
    other.ok("zfs receive -A far/pipe");
    let output = local.wait_with_output().expect("it ends");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("it was given up"), "{said}");
    assert!(!other.ok("zfs list -Ho name").contains("far/pipe"));
    drop(pipe);

    // The next run finds a target that is free.
    relay.is_held.store(false, Ordering::SeqCst);
    assert!(!command.wait().expect("it ends").success());
    server.ok("replicate --run tank-src");
    same(&server, "tank/src", &other, "far/copy", true);

    // By force the pool leaves at once, with what came to go on with.
    write(&server, "big", 3, 24 << 20);
    let mut command = held_up(&server, &relay);
    assert!(is_at(&other, "receive"));
    other.ok("zpool export -f far");
    assert!(!is_at(&other, "receive"), "{}", other.log());
    other.ok(&format!("zpool import -d {} far", other.text("disks")));
    assert_ne!(value(&other, "far/copy", "receive_resume_token"), "-");
    relay.is_held.store(false, Ordering::SeqCst);
    assert!(!command.wait().expect("it ends").success());
    server.ok("replicate --run tank-src");
    assert_eq!(listed(&server, "tank-src")["last"]["is_resumed"], true);
    same(&server, "tank/src", &other, "far/copy", true);
    other.ok("zpool export far");
    zdb_is_clean(&other.path("disks"), "far");
}
