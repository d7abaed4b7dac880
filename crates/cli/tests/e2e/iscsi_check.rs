//! Goal: `millpond iscsi check` tells of each path to a target what packets it really takes, how
//! long it takes and what it carries, and how to have systems use all of them.
//! Method: three links between network namespaces, whose ends take packets of 9,000 bytes: the one
//! does so all the way, behind the second a router has a link of 1,500 bytes, and the third loses
//! what is longer than that without a word, as a switch does. Needs root, `ip` and `nsenter`.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{MILLPOND, Server, can_mount, finds, need, text_of};

/// Whether `ip` does so.
fn ip(words: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let status = Command::new("ip")
        .args(words.split(' '))
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// A network namespace that goes away, and its links with it.
struct Namespace(String);

impl Namespace {
    fn make(name: String) -> Option<Self> {
        ip(&format!("netns add {name}")).then_some(Self(name))
    }

    /// A command in it. `ip netns exec` would take a copy of every mount along.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.0))
            .arg(program);
        command
    }

    /// Sets what `/proc/sys/net` has of it.
    fn set(&self, name: &str, value: &str) {
        let script = format!("echo '{value}' > /proc/sys/net/ipv4/{name}");
        let output = self.command("sh").args(["-c", &script]).output();
        let output = output.expect("nsenter runs");
        assert!(output.status.success(), "{}", text_of(&output));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

/// Where the initiator is, and the router between; the target's addresses.
struct Links {
    here: Namespace,
    _router: Namespace,
    portals: [String; 3],
}

impl Links {
    fn make() -> Option<Self> {
        let id = std::process::id();
        let here = Namespace::make(format!("mpc{id}"))?;
        let router = Namespace::make(format!("mpr{id}"))?;
        let (c, r) = (&here.0, &router.0);
        // Of the range for benchmarks (RFC 2544), so that nobody has it.
        let net = |number: u32| format!("198.19.{}", (id.wrapping_mul(4) + number) % 256);
        let [whole, near, far, silent] = [0, 1, 2, 3].map(net);
        let link = |name: &str, there: &str, mtu: u32, address: &str| {
            vec![
                format!("link add {name}{id} type veth peer name {name}{id}p netns {there}"),
                format!("addr add {address}.1/24 dev {name}{id}"),
                format!("link set {name}{id} mtu {mtu} up"),
            ]
        };
        let mut all = link("mpw", c, 9000, &whole);
        all.extend(link("mpn", r, 1500, &near));
        all.extend(link("mps", c, 1500, &silent));
        all.extend([
            format!("-n {c} addr add {whole}.2/24 dev mpw{id}p"),
            format!("-n {c} link set mpw{id}p mtu 9000 up"),
            format!("-n {c} addr add {silent}.2/24 dev mps{id}p"),
            format!("-n {c} link set mps{id}p mtu 9000 up"),
            format!("-n {r} addr add {near}.2/24 dev mpn{id}p"),
            format!("-n {r} link set mpn{id}p mtu 1500 up"),
            // The other side of the router.
            format!("-n {r} link add mpf{id} mtu 9000 type veth peer name mpf{id}p netns {c}"),
            format!("-n {r} addr add {far}.1/24 dev mpf{id}"),
            format!("-n {r} link set mpf{id} up"),
            format!("-n {c} addr add {far}.2/24 dev mpf{id}p"),
            format!("-n {c} link set mpf{id}p mtu 9000 up"),
            format!("-n {c} route add {near}.0/24 via {far}.1"),
            format!("route add {far}.0/24 via {near}.2"),
        ]);
        if !all.iter().all(|words| ip(words)) {
            return None;
        }
        router.set("ip_forward", "1");
        Some(Self {
            here,
            _router: router,
            portals: [whole, near, silent].map(|net| format!("{net}.1")),
        })
    }

    fn check(&self, words: &[&str], secret: &str) -> Output {
        let mut command = self.here.command(MILLPOND);
        command.args(["iscsi", "check"]).args(words);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("millpond runs");
        let mut stdin = child.stdin.take().expect("its input");
        // It may not ask.
        let _ = writeln!(stdin, "{secret}");
        drop(stdin);
        child.wait_with_output().expect("its end")
    }
}

#[test]
fn paths_are_told_apart_by_what_they_carry() {
    const SECRET: &str = "alicesecret12";
    if !can_mount() || !need("nsenter", finds("nsenter")) {
        return;
    }
    let links = Links::make();
    if !need("ip and network namespaces", links.is_some()) {
        return;
    }
    let links = links.expect("it was looked at");
    let mut server = Server::prepare();
    let port = server.iscsi_port;
    let portals = links.portals.each_ref();
    let portals = portals.map(|address| format!("{address}:{port}"));
    let listen = portals.each_ref().map(|portal| format!("--iscsi={portal}"));
    server.launch(&["daemon", &listen[0], &listen[1], &listen[2]]);
    let disks = server.disks(1, 512 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    let mut set = Command::new(MILLPOND);
    set.args(["iscsi", "secret", "set", "web", "--user", "alice"]);
    set.env("MILLPOND_STATE", server.state());
    let mut set = set.stdin(Stdio::piped()).spawn().expect("millpond runs");
    writeln!(set.stdin.take().expect("its input"), "{SECRET}").expect("it reads");
    assert!(set.wait().expect("its end").success());
    server.ok("zfs create -s -V 64M -o millpond:iscsi=on,chap=web tank/vol");

    // With a raw socket, and with the one for pings that users have.
    for groups in ["1 0", "0 2147483647"] {
        links.here.set("ping_group_range", groups);
        let words = [
            portals[1].as_str(),
            "--user",
            "alice",
            "--seconds",
            "1",
            "--json",
        ];
        let output = links.check(&words, SECRET);
        assert!(output.status.success(), "{}", text_of(&output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["unit"]["vendor"], "MILLPOND", "{report}");
        assert_eq!(report["unit"]["size_bytes"], 64 << 20, "{report}");
        let paths = report["paths"].as_array().expect("paths");
        assert_eq!(paths.len(), 3, "{report}");
        // The third lets a few bytes more through, which may be a VLAN's tag.
        let lengths = [9000..=9000, 1500..=1500, 1500..=1504];
        for (portal, lengths) in portals.iter().zip(lengths) {
            let path = paths.iter().find(|path| path["portal"] == portal.as_str());
            let path = path.unwrap_or_else(|| panic!("no {portal} in {report}"));
            assert_eq!(path["link_mtu_bytes"], 9000, "{report}");
            let length = path["path_mtu_bytes"].as_u64().expect("a length");
            assert!(lengths.contains(&length), "{portal}: {report}");
            assert_eq!(path["path_mtu_by"], "ping", "{report}");
            for measured in ["latency_ns", "bytes_per_second"] {
                assert!(path[measured].as_u64() > Some(0), "{report}");
            }
            assert!(path["error"].is_null(), "{report}");
        }
        assert!(
            report["together_bytes_per_second"].as_u64() > Some(0),
            "{report}"
        );
        let findings = report["findings"].to_string();
        assert!(!findings.contains(&format!("{}: ", portals[0])), "{report}");
        for portal in &portals[1..] {
            assert!(
                findings.contains(&format!("{portal}: this host's link takes")),
                "{report}"
            );
        }
    }

    let shown = links.check(&[&portals[0], "--user", "alice", "--seconds", "1"], SECRET);
    let shown = text_of(&shown);
    for part in [
        "rr_min_io_rq 1",
        "--type=iops --iops=1",
        "naa.6",
        "together",
        "PATH MTU",
    ] {
        assert!(shown.contains(part), "no {part} in {shown}");
    }
    // Reports have what each path carried.
    server.wait_until("reports have all portals", || {
        let told = server.ok("reports");
        portals.iter().all(|portal| told.contains(portal.as_str()))
    });
    // Without the secret nothing is named, and packets are looked at all the same.
    let shown = links.check(&[&portals[2], "--json"], "");
    let report: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(report["targets"], serde_json::json!([]), "{report}");
    let length = report["paths"][0]["path_mtu_bytes"].as_u64();
    assert!(length.is_some_and(|length| length < 1600), "{report}");
    let refused = links.check(&[&portals[0], "--target", "iqn.2020-01.org.x:no"], "");
    assert!(!refused.status.success());
    assert!(
        text_of(&refused).contains("--user"),
        "{}",
        text_of(&refused)
    );
    // Nobody is there.
    let nobody = links.check(&[&format!("{}:1", links.portals[0])], "");
    assert!(!nobody.status.success() && text_of(&nobody).contains("cannot reach"));
    server.stop();
}
