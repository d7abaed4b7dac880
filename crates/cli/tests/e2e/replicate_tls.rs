//! Goal: `millpond replicate` to another Millpond by TLS brings what the source has, tells its key
//! to nobody else, and goes on after a break. Method: two servers, between them a relay that can
//! cut the connection or hold it up; GUIDs and trees are compared.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{MILLPOND, Server, can_mount, text_of, zdb_is_clean};
use crate::replicate::{
    exported_and_clean, listed, make_pools, pool, same, snapshots, value, write,
};

/// What lies between the two servers.
pub struct Relay {
    pub port: u16,
    /// Takes connections and breaks them, and breaks those that there are.
    is_cut: Arc<AtomicBool>,
    /// Passes nothing on.
    pub is_held: Arc<AtomicBool>,
}

impl Relay {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = listener.local_addr().expect("an address").port();
        let (is_cut, is_held) = (Arc::default(), Arc::default());
        let (cut, held) = (Arc::clone(&is_cut), Arc::clone(&is_held));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                let pairs = [(&near, &far), (&far, &near)];
                for (from, to) in pairs {
                    let (from, to) = (from.try_clone(), to.try_clone());
                    let (from, to) = (from.expect("a handle"), to.expect("a handle"));
                    let (cut, held) = (Arc::clone(&cut), Arc::clone(&held));
                    std::thread::spawn(move || pass(from, to, &cut, &held));
                }
            }
        });
        Self {
            port: own,
            is_cut,
            is_held,
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool, is_held: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        if is_cut.load(Ordering::SeqCst) || to.write_all(&bytes[..count]).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Runs `millpond` with an answer to what it asks.
fn answered(server: &Server, words: &str, answer: &str) -> Output {
    let mut child = Command::new(MILLPOND)
        .args(words.split_whitespace())
        .env("MILLPOND_STATE", server.state())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("millpond runs");
    let mut input = child.stdin.take().expect("its input");
    writeln!(input, "{answer}").expect("it reads");
    drop(input);
    child.wait_with_output().expect("it ends")
}

pub fn works(server: &Server, words: &str, answer: &str) {
    let output = answered(server, words, answer);
    assert!(output.status.success(), "{words}: {}", text_of(&output));
}

fn refused(server: &Server, words: &str, answer: &str) -> String {
    let output = answered(server, words, answer);
    assert!(!output.status.success(), "{words}: {}", text_of(&output));
    text_of(&output)
}

/// The port of a server's console, and the fingerprint of its certificate.
pub fn console(server: &Server) -> (u16, String) {
    let said = text_of(&server.command(&["console"]));
    let port = said.lines().find_map(|line| {
        let rest = line.strip_prefix("https://")?;
        let rest = rest.split('/').next()?;
        rest.rsplit_once(':')?.1.parse().ok()
    });
    let digits = said.split("sha256:").nth(1).expect("a fingerprint");
    let digits: String = digits.chars().take_while(char::is_ascii_hexdigit).collect();
    (port.expect("a port"), digits)
}

#[test]
fn another_millpond_is_reached_by_tls() {
    if !can_mount() {
        return;
    }
    let mut other = Server::prepare();
    other.https = None;
    other.launch(&["daemon"]);
    let disk = &other.disks(1, 512 << 20)[0];
    pool(&other, "far", disk);
    let (port, fingerprint) = console(&other);
    let key = other.ok("apikey make replica --replica far/copy --keep-days 0");
    let key = key.trim();
    let relay = Relay::to(port);
    let mut server = Server::start();
    make_pools(&server);
    server.ok("zfs create tank/src/child");
    write(&server, "one", 1, 200_000);
    write(&server, "child/two", 2, 200_000);
    server.ok("zfs snapshot tank/src@monday");

    // Who answers is known by nothing, then by the wrong thing; then the key is the wrong one.
    let target = format!("https://127.0.0.1:{}/far/copy", relay.port);
    let replicate = format!("replicate -r tank/src {target} --limit 16M --keep hourly=1");
    let said = refused(&server, &replicate, "");
    assert!(said.contains("apikey make"), "{said}");
    let said = refused(&server, &replicate, key);
    assert!(said.contains(&format!("sha256:{fingerprint}")), "{said}");
    assert!(said.contains("--fingerprint"), "{said}");
    let zeros = "0".repeat(64);
    let known_by = |digits: &str| format!("{replicate} --fingerprint {digits}");
    let said = refused(&server, &known_by(&format!("sha256:{zeros}")), key);
    assert!(said.contains("another one than was given"), "{said}");
    let said = refused(&server, &known_by("00:11"), key);
    assert!(said.contains("is no fingerprint"), "{said}");
    let said = refused(&server, &known_by(&fingerprint), "mpk_wrong");
    assert!(said.contains("the key is not known there"), "{said}");
    // Nothing is kept of those that were refused at once.
    assert_eq!(server.ok("replicate --list -H"), "");
    assert_eq!(snapshots(&server, "tank/src"), ["monday"]);
    // One that may only look is told so, and nothing is there. Then it is another one's
    // certificate.
    let looks = other.ok("apikey make looks --role viewer");
    let said = refused(&server, &known_by(&fingerprint), looks.trim());
    assert!(said.contains("takes the role operator"), "{said}");
    assert!(said.contains("'--remove tank-src' forgets it"), "{said}");
    assert!(!other.ok("zfs list -H").contains("far/copy"));
    let rekey = "replicate --rekey tank-src --fingerprint";
    works(&server, &format!("{rekey} sha256:{zeros}"), "");
    let said = server.fails("replicate --run tank-src");
    assert!(said.contains("another one than was given"), "{said}");
    let said = refused(&server, &format!("{rekey} 00:11"), "");
    assert!(said.contains("is no fingerprint"), "{said}");
    works(&server, &format!("{rekey} {fingerprint}"), "");

    works(&server, "replicate --rekey tank-src", key);
    server.ok("replicate --run tank-src");
    // What the rule does not keep is gone on both sides.
    same(&server, "tank/src", &other, "far/copy", true);
    same(&server, "tank/src/child", &other, "far/copy/child", true);
    assert_eq!(snapshots(&other, "far/copy").len(), 2);
    assert_eq!(value(&other, "far/copy", "readonly"), "on");
    let told = server.ok("replicate --list --json");
    assert!(!told.contains("mpk_"), "{told}");
    assert!(told.contains(&fingerprint), "{told}");
    assert!(server.ok("replicate --list").contains(&target));
    assert!(!server.log().contains(key) && !other.log().contains(key));

    // The connection breaks in the middle; the next run goes on with the token.
    write(&server, "big", 3, 24 << 20);
    let mut command = server.begin(&["replicate", "--run", "tank-src"]);
    server.wait_until("half of it is sent", || {
        let told = listed(&server, "tank-src");
        told["job"]["progress"]["done"].as_u64().unwrap_or(0) > 12 << 20
    });
    relay.is_cut.store(true, Ordering::SeqCst);
    assert!(!command.wait().expect("it ends").success());
    relay.is_cut.store(false, Ordering::SeqCst);
    // It still takes in what came before the end.
    other.wait_until_idle();
    assert_ne!(value(&other, "far/copy", "receive_resume_token"), "-");
    server.ok("replicate --run tank-src");
    let told = listed(&server, "tank-src");
    assert_eq!(told["last"]["is_resumed"], true, "{told}");
    same(&server, "tank/src", &other, "far/copy", true);

    // A run whose other side takes nothing any more can be stopped, and goes on later.
    write(&server, "big", 4, 24 << 20);
    let mut command = server.begin(&["replicate", "--run", "tank-src"]);
    server.wait_until("half of it is sent", || {
        let told = listed(&server, "tank-src");
        told["job"]["progress"]["done"].as_u64().unwrap_or(0) > 12 << 20
    });
    relay.is_held.store(true, Ordering::SeqCst);
    let begin = std::time::Instant::now();
    server.ok("replicate --pause tank-src");
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
    assert!(!command.wait().expect("it ends").success());
    relay.is_held.store(false, Ordering::SeqCst);
    // It still takes in what came before the end.
    other.wait_until_idle();
    assert_ne!(value(&other, "far/copy", "receive_resume_token"), "-");

    // The server begins anew, and trusts who has signed the certificate: no fingerprint is needed,
    // and the key was kept.
    let authority = other.state().join("https-certificate.pem");
    let authority = authority.display().to_string();
    server.stop();
    server.environment.push(("SSL_CERT_FILE", authority));
    server.launch(&["daemon"]);
    server.ok("replicate --resume tank-src");
    server.wait_until("the run is done", || {
        listed(&server, "tank-src")["last"]["state"] == "finished"
    });
    same(&server, "tank/src", &other, "far/copy", true);
    let replicate = format!(
        "replicate tank/src/child https://localhost:{}/far/two --name two",
        relay.port
    );
    let said = refused(&server, &replicate, key);
    assert!(
        said.contains("into 'far/copy' and below it, and for nothing else"),
        "{said}"
    );
    let second = other.ok("apikey make second --replica far/two");
    works(&server, &replicate, second.trim());
    // What another replication took is not sent.
    let taken = snapshots(&other, "far/two");
    assert!(
        taken.len() == 1 && taken[0].starts_with("millpond-two-"),
        "{taken:?}"
    );
    let guid = |server, dataset| value(server, &format!("{dataset}@{}", taken[0]), "guid");
    assert_eq!(guid(&server, "tank/src/child"), guid(&other, "far/two"));
    exported_and_clean(&server);
    other.ok("zpool export far");
    zdb_is_clean(&other.path("disks"), "far");
}

/// Goal: who has the key of a replication brings snapshots, and takes nothing away that came before
/// they could be noticed; what a stream says of places, shares and space does nothing.
#[test]
fn the_key_of_a_replication_erases_no_backups() {
    if !can_mount() {
        return;
    }
    let mut other = Server::prepare();
    other.https = None;
    other.launch(&["daemon"]);
    let disk = &other.disks(1, 512 << 20)[0];
    pool(&other, "far", disk);
    let (port, fingerprint) = console(&other);
    let refused_name = other.fails("apikey make x --replica far");
    assert!(refused_name.contains("POOL/NAME"), "{refused_name}");
    let key = other.ok("apikey make replica --replica far/copy");
    let key = key.trim();
    assert!(other.ok("apikey list").contains("replica far/copy"));
    let server = Server::start();
    make_pools(&server);
    write(&server, "one", 1, 200_000);
    for setting in [
        "sharenfs=rw=127.0.0.1",
        "reservation=16M",
        "millpond:other=x",
        "own:words=kept",
    ] {
        server.ok(&format!("zfs set {setting} tank/src"));
    }
    let target = format!("https://127.0.0.1:{port}/far/copy");
    let fingerprint = format!("--fingerprint {fingerprint}");
    let replicate = format!("replicate -r tank/src {target} --keep hourly=1 {fingerprint}");
    works(&server, &replicate, key);
    same(&server, "tank/src", &other, "far/copy", false);
    for (name, expected) in [
        ("readonly", "on"),
        ("canmount", "noauto"),
        ("mounted", "no"),
        ("sharenfs", "off"),
        ("reservation", "0"),
        ("millpond:other", "-"),
        ("own:words", "kept"),
    ] {
        assert_eq!(value(&other, "far/copy", name), expected, "{name}");
    }
    assert_eq!(value(&other, "far/copy", "mountpoint"), "none");

    // All that came stays for a week, whatever the source's rule is.
    let before = snapshots(&other, "far/copy");
    write(&server, "one", 2, 200_000);
    server.ok("replicate --run tank-src");
    let after = snapshots(&other, "far/copy");
    assert!(
        before.iter().all(|name| after.contains(name)),
        "{before:?} {after:?}"
    );
    assert_eq!(after.len(), before.len() + 1);
    let told = server.ok("replicate --list");
    assert!(
        told.contains("what came with the key stays for 7 days"),
        "{told}"
    );
    // Once the week is over, it goes; what did not come with a key never does.
    for name in &before {
        other.ok(&format!(
            "zfs set millpond:received=1000000000 far/copy@{name}"
        ));
    }
    other.ok("zfs snapshot far/copy@millpond-tank-src");
    other.ok("zfs destroy far/copy@millpond-tank-src");
    write(&server, "one", 3, 200_000);
    server.ok("replicate --run tank-src");
    let now = snapshots(&other, "far/copy");
    assert!(
        before.iter().all(|name| !now.contains(name)),
        "{before:?} {now:?}"
    );

    // Another dataset is another key's.
    let target = format!("https://127.0.0.1:{port}/far/other");
    let replicate = format!("replicate -r tank/src {target} --name other {fingerprint}");
    let said = refused(&server, &replicate, key);
    assert!(
        said.contains("permission denied") && said.contains("for nothing else"),
        "{said}"
    );
    assert!(!other.ok("zfs list -H").contains("far/other"));
    // What was refused is on record.
    let record = std::fs::read_to_string(other.state().join("audit.jsonl")).unwrap_or_default();
    let refusals = std::fs::read_dir(other.state()).expect("the state directory");
    let names: Vec<String> = refusals
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("audit"))
        .collect();
    let all = names.iter().fold(record, |all, name| {
        all + &std::fs::read_to_string(other.state().join(name)).unwrap_or_default()
    });
    assert!(
        all.contains("denied") && all.contains("\"key\""),
        "{names:?}: {all}"
    );
    exported_and_clean(&server);
    other.ok("zpool export far");
    zdb_is_clean(&other.path("disks"), "far");
}
