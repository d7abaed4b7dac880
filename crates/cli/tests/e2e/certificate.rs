//! Goal: the console gets a certificate from an authority by ACME, serves it, renews it by itself,
//! and keeps the one that it has as long as there is no other one. Method: Pebble, the test server
//! of Let's Encrypt's makers, with a DNS server of its own; Python's TLS, which checks the chain
//! and the name.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Server, finds, need, run};

/// A name that the DNS server knows.
const NAME: &str = "nas.millpond.test";

/// Ports of this test.
struct Ports {
    directory: u16,
    management: u16,
    proofs: u16,
    dns: u16,
    dns_management: u16,
}

impl Ports {
    fn free() -> Self {
        let listeners = [(); 5].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [directory, management, proofs, dns, dns_management] =
            listeners.map(|listener| listener.local_addr().expect("bound").port());
        Self {
            directory,
            management,
            proofs,
            dns,
            dns_management,
        }
    }
}

/// Programs that end with the test.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn begin(server: &Server, program: &str, words: &[&str]) -> Running {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(server.path("authority.log"))
        .expect("a log");
    let child = Command::new(program)
        .args(words)
        .env("PEBBLE_VA_NOSLEEP", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn();
    Running(vec![child.expect(program)])
}

/// An authority whose certificates are good for some seconds. It knows nothing of an earlier one,
/// and has a root of its own.
fn authority(server: &Server, ports: &Ports, good_s: u64) -> Running {
    let config = server.text(&format!("authority-{good_s}.json"));
    let settings = json!({"pebble": {
        "listenAddress": format!("127.0.0.1:{}", ports.directory),
        "managementListenAddress": format!("127.0.0.1:{}", ports.management),
        "certificate": server.text("authority.pem"),
        "privateKey": server.text("authority-key.pem"),
        "httpPort": ports.proofs,
        "tlsPort": 1,
        "certificateValidityPeriod": good_s,
    }});
    std::fs::write(&config, settings.to_string()).expect("written");
    let dns = format!("127.0.0.1:{}", ports.dns);
    let running = begin(
        server,
        "pebble",
        &["-config", &config, "-dnsserver", &dns, "-strict"],
    );
    for port in [ports.directory, ports.management] {
        server.wait_until("the authority answers", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }
    let root = python(&format!(
        "import ssl, urllib.request\n\
         trust = ssl.create_default_context(cafile='{}')\n\
         trust.verify_flags &= ~ssl.VERIFY_X509_STRICT\n\
         url = 'https://127.0.0.1:{}/roots/0'\n\
         print(urllib.request.urlopen(url, context=trust).read().decode())",
        server.text("authority.pem"),
        ports.management
    ));
    std::fs::write(server.path("root.pem"), root.expect("the root")).expect("written");
    running
}

fn python(program: &str) -> Result<String, String> {
    let output = Command::new("python3")
        .args(["-c", program])
        .output()
        .expect("python3");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

// What the server makes itself is no authority's, which is all that the strict rules ask for.

/// The serial number of the certificate that a new connection gets, which has to be good for this
/// name, and signed below what this file has.
fn serial(server: &Server, port: u16, name: &str, roots: &Path) -> Result<String, String> {
    assert!(server.path("").is_dir());
    python(&format!(
        "import socket, ssl\n\
         trust = ssl.create_default_context(cafile='{}')\n\
         trust.verify_flags &= ~ssl.VERIFY_X509_STRICT\n\
         stream = socket.create_connection(('127.0.0.1', {port}))\n\
         print(trust.wrap_socket(stream, server_hostname='{name}').getpeercert()['serialNumber'])",
        roots.display()
    ))
}

fn status(server: &Server) -> Value {
    serde_json::from_str(&server.ok("certificate --json")).expect("JSON")
}

#[test]
fn a_certificate_is_got_by_acme_served_and_renewed() {
    if !need(
        "pebble (package pebble)",
        finds("pebble") && finds("pebble-challtestsrv"),
    ) || !need("python3", finds("python3"))
    {
        return;
    }
    let ports = Ports::free();
    let mut server = Server::prepare();
    server.https = Some("--https=127.0.0.1:0");
    server.launch(&["daemon"]);
    let port = |server: &Server| -> u16 {
        let url = server.ok("console");
        let rest = url.split("https://127.0.0.1:").nth(1).expect("a URL");
        let digits = rest.split('/').next().expect("a port");
        digits.parse().expect("a number")
    };
    let https = port(&server);

    // First there is one of the server's own, which the authority here has as well.
    let own = server.state().join("https-certificate.pem");
    let key = server.state().join("https-key.pem");
    std::fs::copy(&own, server.path("authority.pem")).expect("copied");
    std::fs::copy(&key, server.path("authority-key.pem")).expect("copied");
    let trusted = server.path("authority.pem");
    let first = serial(&server, https, "localhost", &trusted).expect("its own");
    assert_eq!(status(&server)["certificate"]["by"], "server");
    assert!(
        server
            .ok("certificate")
            .contains("made by the server itself")
    );
    let refused = server.fails("certificate renew");
    assert!(refused.contains("millpond certificate acme"), "{refused}");
    let refused = server.fails("certificate acme *.millpond.test");
    assert!(refused.contains("give each name"), "{refused}");

    let dns = format!("127.0.0.1:{}", ports.dns);
    let dns_management = format!("127.0.0.1:{}", ports.dns_management);
    let _names = begin(
        &server,
        "pebble-challtestsrv",
        &[
            "-dns01",
            &dns,
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
            "-management",
            &dns_management,
            "-defaultIPv6",
            "",
        ],
    );
    server.wait_until("names are known", || {
        TcpStream::connect(("127.0.0.1", ports.dns_management)).is_ok()
    });
    let running = authority(&server, &ports, 7200);
    let acme = |names: &str| {
        format!(
            "certificate acme {names} --contact ann@example.org --directory \
             https://127.0.0.1:{}/dir --ca-file {} --listen 127.0.0.1:{}",
            ports.directory,
            server.text("authority.pem"),
            ports.proofs
        )
    };

    // It is there when the command comes back, for connections that come from then on.
    let other = "other.millpond.test";
    let said = server.ok(&acme(&format!("{NAME} {other} 127.0.0.1")));
    assert!(said.contains("got by ACME"), "{said}");
    let root = server.path("root.pem");
    let got = serial(&server, https, NAME, &root).expect("the authority's");
    for name in [other, "127.0.0.1"] {
        assert_eq!(serial(&server, https, name, &root).as_ref(), Ok(&got));
    }
    assert!(serial(&server, https, NAME, &trusted).is_err());
    let told = status(&server);
    assert_eq!(told["certificate"]["by"], "acme");
    let names = &told["certificate"]["names"];
    assert_eq!(names.as_array().map(Vec::len), Some(3), "{names}");
    let second = |name: &str| told["certificate"][name].as_u64().expect("a time");
    let next_s = told["progress"]["next_s"].as_u64().expect("a time");
    assert_eq!(
        next_s,
        second("begin_s") + (second("end_s") - second("begin_s")) / 3 * 2
    );
    for name in [
        "acme-account.json",
        "acme-certificate.json",
        "certificate.json",
    ] {
        let listed = run(
            "stat",
            &["-c", "%a", &server.state().join(name).to_string_lossy()],
        );
        assert_eq!(listed.trim(), "600", "{name}");
    }
    assert!(
        TcpStream::connect(("127.0.0.1", ports.proofs)).is_err(),
        "none is proved now"
    );

    // A name that leads elsewhere proves nothing, and costs nothing.
    let bad = "elsewhere.millpond.test";
    python(&format!(
        "import json, urllib.request\n\
         what = json.dumps(dict(host='{bad}.', addresses=['127.0.0.9'])).encode()\n\
         urllib.request.urlopen('http://{dns_management}/add-a', data=what).read()"
    ))
    .expect("a name");
    let said = server.fails(&acme(bad));
    assert!(
        said.contains(bad) && said.contains("port 80 of each name"),
        "{said}"
    );
    assert_eq!(serial(&server, https, NAME, &root).as_ref(), Ok(&got));
    assert_eq!(status(&server)["progress"]["failures"], 1);
    server.fails("certificate renew");
    server.wait_until("an alert", || {
        server
            .ok("alerts")
            .contains(&format!("no certificate for {bad} can be got"))
    });

    // Nobody is asked for what there is; after a restart it is there without the authority.
    server.ok(&acme(&format!("{NAME} {other} 127.0.0.1")));
    assert_eq!(serial(&server, https, NAME, &root).as_ref(), Ok(&got));
    drop(running);
    server.stop();
    server.launch(&["daemon"]);
    let https = port(&server);
    assert_eq!(serial(&server, https, NAME, &root).as_ref(), Ok(&got));
    let said = server.fails("certificate renew");
    assert!(
        said.contains("/dir") && said.contains("tried again"),
        "{said}"
    );
    assert!(server.ok("certificate").contains("problem:"));
    assert_eq!(serial(&server, https, NAME, &root).as_ref(), Ok(&got));

    // Another authority at the same place knows no account; its certificates end soon, and each is
    // followed by another one without a word.
    let _running = authority(&server, &ports, 60);
    server.ok("certificate renew");
    let renewed = serial(&server, https, NAME, &root).expect("another one");
    assert_ne!(renewed, got);
    assert_eq!(status(&server)["progress"]["problem"], Value::Null);
    server.wait_until("it is renewed", || {
        let now = serial(&server, https, NAME, &root);
        now.is_ok_and(|now| now != renewed)
    });

    // Its own one is there again.
    server.ok("certificate own");
    server.wait_until("its own", || {
        serial(&server, https, "localhost", &trusted).as_ref() == Ok(&first)
    });
    assert_eq!(status(&server)["acme"], Value::Null);
    server.stop();

    // Somebody's own goes before, and none is got.
    let given = [
        "daemon",
        "--certificate",
        &server.text("authority.pem"),
        "--key",
        &server.text("authority-key.pem"),
    ];
    server.launch(&given);
    let acme = format!("certificate acme {NAME}");
    let said = server.fails(&acme);
    assert!(said.contains("--certificate"), "{said}");
    assert_eq!(status(&server)["is_given"], true);
}
