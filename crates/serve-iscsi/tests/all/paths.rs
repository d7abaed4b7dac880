//! Goal: an initiator that takes another path at every command (round robin) finds what it wrote,
//! and gets the sum of what its paths carry.
//! Method: four links between two network namespaces (veth), each held to a rate (tc tbf); the
//! client is this program once more, in the other namespace. Needs root, `ip` and `tc`.

use crate::common::{IQN, Login};
use serve_iscsi::{LunIdentity, MemoryUnit, Server, Target, TargetOptions, TargetSet};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATHS: usize = 4;
/// What a link carries, in bits per second, and in words of `tc`.
const RATE_BITS: u64 = 40_000_000;
const RATE: &str = "40mbit";
/// Bytes that are read for a measurement.
const READ_BYTES: u64 = 12 << 20;
const PIECE_BYTES: u32 = 128 << 10;
/// Tells the client where to log in.
const ADDRESSES: &str = "MILLPOND_TEST_PATHS";

fn runs(program: &str, words: &str) -> bool {
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let status = Command::new(program)
        .args(words.split(' '))
        .env("PATH", path)
        .stderr(std::process::Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// A namespace that goes away, and its links with it.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        runs("ip", &format!("netns del {}", self.0));
    }
}

/// Four links; the addresses at this end.
fn links() -> Option<(Namespace, Vec<String>)> {
    let id = std::process::id();
    let name = format!("millpond{id}");
    if !runs("ip", &format!("netns add {name}")) {
        return None;
    }
    let namespace = Namespace(name.clone());
    let mut addresses = Vec::new();
    for path in 0..PATHS {
        let (here, there) = (format!("mp{id}h{path}"), format!("mp{id}t{path}"));
        // Of the range for benchmarks (RFC 2544), so that nobody has it.
        let net = format!("198.18.{}", (id as usize * PATHS + path) % 256);
        let all = [
            format!("link add {here} type veth peer name {there} netns {name}"),
            format!("addr add {net}.1/24 dev {here}"),
            format!("link set {here} up"),
            format!("-n {name} addr add {net}.2/24 dev {there}"),
            format!("-n {name} link set {there} up"),
        ];
        let shaped = format!("qdisc add dev {here} root tbf rate {RATE} burst 64kb latency 50ms");
        if !all.iter().all(|words| runs("ip", words)) || !runs("tc", &shaped) {
            return None;
        }
        addresses.push(format!("{net}.1"));
    }
    Some((namespace, addresses))
}

#[tokio::test(flavor = "multi_thread")]
async fn four_paths_carry_the_sum_of_four() {
    let links = links();
    if !oracles::need("root, ip and tc for network namespaces", links.is_some()) {
        return;
    }
    let (namespace, addresses) = links.expect("it was looked at");
    let targets = Arc::new(TargetSet::new());
    let unit = MemoryUnit::new(64 << 20, 512, LunIdentity::new("S", [1; 16]));
    let target = Target {
        iqn: IQN.into(),
        luns: BTreeMap::from([(0, Arc::new(unit) as Arc<_>)]),
        options: TargetOptions::default(),
    };
    targets.add(target).unwrap();
    let mut servers = Vec::new();
    for address in addresses {
        let address = format!("{address}:0").parse().unwrap();
        servers.push(Server::bind(address, targets.clone()).await.unwrap());
    }
    let portals = servers
        .iter()
        .map(|server| server.local_address().to_string());
    let portals: Vec<String> = portals.collect();
    let program = std::env::current_exe().expect("this program");
    // `ip netns exec` would take a copy of every mount along, and keep those of other tests busy.
    let client = tokio::process::Command::new("nsenter")
        .arg(format!("--net=/run/netns/{}", namespace.0))
        .arg(program)
        .args(["--exact", "paths::the_client", "--ignored", "--nocapture"])
        .env(ADDRESSES, portals.join(","))
        .output();
    let output = client.await.expect("the client runs");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{text}");
    let seconds = |what: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(what));
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("no {what} in {text}"));
        line.trim().parse::<f64>().expect("a number")
    };
    let (one, four) = (seconds("one path:"), seconds("four paths:"));
    // One link is as slow as it was made, or the measurement says nothing.
    let least = (READ_BYTES * 8) as f64 / RATE_BITS as f64;
    assert!(one > 0.8 * least, "{one} s for what takes {least} s");
    assert!(four < one / 3.0, "one path: {one} s, four: {four} s");
    for server in servers {
        server.stop_listening().await;
    }
}

/// Runs in the other namespace, for the test above.
#[tokio::test]
#[ignore = "the other end of four_paths_carry_the_sum_of_four"]
async fn the_client() {
    let portals = std::env::var(ADDRESSES).expect("where to log in");
    let portals: Vec<_> = portals
        .split(',')
        .map(|text| text.parse().unwrap())
        .collect();
    let mut clients = Vec::new();
    for (number, portal) in portals.iter().enumerate() {
        let login = Login {
            isid: number as u8,
            ..Login::default()
        };
        let mut client = login.done(*portal).await.unwrap();
        client.ready().await;
        clients.push(client);
    }
    let blocks = |at: u64, opcode: u8| {
        let mut cdb = [opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[2..6].copy_from_slice(&((at / 512) as u32).to_be_bytes());
        cdb
    };
    // What is written by one path is there by the next as soon as it is answered.
    for number in 0..400u64 {
        let mut write = blocks(number % 64 * 4096, 0x2a);
        let mut read = blocks(number % 64 * 4096, 0x28);
        (write[8], read[8]) = (8, 8);
        let data: Vec<u8> = number.to_be_bytes().repeat(512);
        let at = number as usize % PATHS;
        let (reply, _) = clients[at].command(0x20, 4096, &write, &data).await;
        assert_eq!((reply[0], reply[3]), (0x21, 0));
        let next = &mut clients[(at + 1) % PATHS];
        let (mut found, mut reply) = (Vec::new(), [0; 48]);
        next.send_command(0x40, 4096, &read, &[]).await;
        while found.len() < 4096 {
            let (header, piece) = next.receive().await.expect("data");
            found.extend_from_slice(&piece);
            reply = header;
        }
        assert_eq!((reply[0], reply[1]), (0x25, 0x81));
        assert!(found == data, "{number}");
    }
    let all = measure(&mut clients, PATHS).await;
    let one = measure(&mut clients, 1).await;
    println!(
        "\none path: {}\nfour paths: {}",
        one.as_secs_f64(),
        all.as_secs_f64()
    );
}

/// How long it takes to read, each piece by the next of so many paths.
async fn measure(clients: &mut [crate::common::Client], paths: usize) -> Duration {
    let begun = Instant::now();
    let share = READ_BYTES / u64::from(PIECE_BYTES) / paths as u64;
    let reading = clients[..paths].iter_mut().map(async |client| {
        // Two at a time, so that the link never waits for a request.
        for number in 0..share + 1 {
            let count = (PIECE_BYTES / 512) as u16;
            let mut read = [0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            read[7..9].copy_from_slice(&count.to_be_bytes());
            if number < share {
                client.send_command(0x40, PIECE_BYTES, &read, &[]).await;
            }
            let mut missing = if number == 0 { 0 } else { PIECE_BYTES as usize };
            while missing > 0 {
                missing -= client.receive().await.expect("data").1.len();
            }
        }
    });
    futures::future::join_all(reading).await;
    begun.elapsed()
}
