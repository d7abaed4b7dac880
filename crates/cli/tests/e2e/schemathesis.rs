//! Goal: whatever the API is asked over the network, it answers, and never that it failed itself.
//! Method: schemathesis makes requests out of the description of the API, right ones and wrong
//! ones, as somebody who may do everything; then the server must still serve. The requests are the
//! same in each run, but in a long one; `MILLPOND_SEED=N` makes others.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Server, is_long, need, text_of};

/// How long it asks.
const TIME: Duration = Duration::from_secs(60);
const TIME_LONG: Duration = Duration::from_secs(3600);
/// What the requests are made from, where nothing else is asked for.
const SEED: &str = "1";
/// What would end the test, as it stops the server or takes the key; and what would have the server
/// ask a real authority for certificates.
const LEFT_OUT: [&str; 3] = [
    "/v1/server/stop",
    "/v1/keys/remove",
    "/v1/certificate/settings-set",
];

/// Where `scripts/install` puts it.
fn folder() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let folder = cache.or_else(home)?.join("millpond/schemathesis");
    let is_there = folder.join("schemathesis").is_dir();
    need("schemathesis (scripts/install test)", is_there).then_some(folder)
}

#[test]
fn no_request_makes_the_server_fail() {
    let Some(folder) = folder() else { return };
    let mut server = Server::prepare();
    server.https = None;
    // With SMB, who gets a password becomes a user of this host.
    server.launch(&["daemon", "--smb=off"]);
    let link = server.ok("console");
    let url = link.lines().next().and_then(|line| line.split("/#").next());
    let url = url.expect("an address").trim_end_matches('/').to_owned();
    let disks = server.disks(2, 128 << 20);
    server.ok(&format!(
        "zpool create -m none tank mirror {} {}",
        disks[0], disks[1]
    ));
    server.ok("zfs create -o mountpoint=none tank/home");
    server.ok("zfs snapshot tank/home@monday");
    let key = server.ok("apikey make schemathesis --role admin");
    let description = server.text("openapi.json");
    std::fs::write(&description, server.ok("openapi")).expect("a description");

    let time = if is_long() { TIME_LONG } else { TIME };
    let mut command = Command::new("python3");
    command
        .env("PYTHONPATH", &folder)
        .args(["-m", "schemathesis.cli", "run", &description])
        .args(["--url", &url, "--tls-verify", "false", "--no-color"])
        .args(["--header", &format!("Authorization: Bearer {}", key.trim())])
        .args(["--checks", "not_a_server_error", "--continue-on-failure"])
        .args(["--phases", "coverage,fuzzing", "--max-examples", "20"])
        .args(["--max-time", &time.as_secs().to_string()])
        // The server ends connections on which nothing is asked for some time; one may end just as
        // it is used again.
        .args(["--request-timeout", "60", "--request-retries", "2"])
        .current_dir(server.directory.path())
        .stdin(Stdio::null());
    // Chance finds more, but not while it is to be known whether a change is right.
    let seed = std::env::var("MILLPOND_SEED").ok();
    if let Some(seed) = seed.or((!is_long()).then(|| SEED.to_owned())) {
        command.args(["--seed", &seed]);
    }
    for path in LEFT_OUT {
        command.args(["--exclude-path", path]);
    }
    let output = command.output().expect("it runs");
    let text = text_of(&output);
    assert!(
        output.status.success() && text.contains("Tested: "),
        "{text}\nthe server's log:\n{}",
        server.log()
    );
    server.ok("zpool list");
}
