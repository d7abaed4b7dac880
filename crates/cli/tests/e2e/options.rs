//! Goal: options and forms of commands that scripts for OpenZFS use mean the same here. Method:
//! what its own test suite does with them (receive-o-x_props_override, zfs_receive_004, rsend_024,
//! zfs_destroy_005, zfs_load-key_https), and what shows afterwards.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::harness::{MILLPOND, Server, can_mount, run, text_of, zdb_is_clean};
use crate::streams::{accepted, pool, receive, refused, send, value};

fn source(server: &Server, dataset: &str, property: &str) -> String {
    let words = format!("zfs get -Hp -o value,source {property} {dataset}");
    server.ok(&words).trim_end().replace('\t', " ")
}

/// `-o` and `-x` take properties that can be said of what is received, once each, and nothing is
/// received otherwise.
#[test]
fn options_of_a_receive_that_say_nothing_are_refused() {
    let server = Server::start();
    pool(&server);
    server.ok("zfs create -u tank/src");
    server.ok("zfs create -s -V 1M tank/vol");
    server.ok("zfs snapshot tank/src@a");
    server.ok("zfs snapshot tank/vol@a");
    let stream = send(&server, "zfs send tank/src@a", "fs");
    let volume = send(&server, "zfs send tank/vol@a", "vol");
    for (options, why) in [
        ("-o atime", "missing '='"),
        ("-x atime=off", "invalid character '='"),
        ("-o atime=off -x atime", "multiple times"),
        ("-x atime -x atime", "multiple times"),
        ("-o version=1", "invalid property 'version'"),
        ("-x version", "invalid property 'version'"),
        ("-x normalization", "invalid property"),
        ("-x volsize", "invalid property"),
        ("-o volsize=32K", "invalid property"),
        ("-o used=1", "invalid property"),
        ("-o nosuch=1", "invalid property"),
        ("-o atime=perhaps", "atime"),
        ("-o volthreading=on", "does not apply"),
    ] {
        let said = refused(&server, &format!("zfs receive {options} tank/new"), &stream);
        assert!(said.contains(why), "{options}: {said}");
    }
    for options in ["-o atime=off", "-o atime=off -x canmount"] {
        let said = refused(&server, &format!("zfs receive {options} tank/new"), &volume);
        assert!(said.contains("does not apply"), "{options}: {said}");
    }
    assert!(!server.ok("zfs list -Ho name").contains("tank/new"));
    // What it does not have can be left out; aliases are names.
    let words = "zfs receive -x atime -x canmount tank/new";
    let said = receive(&server, words, &volume);
    assert!(said.contains("'atime' does not apply"), "{said}");
    receive(&server, "zfs receive -u -o compress=gzip tank/fs", &stream);
    assert_eq!(source(&server, "tank/fs", "compression"), "gzip local");
    // `-d` makes what is between the target and the new dataset, not the target.
    for target in ["tank/none", "tank/none/deeper"] {
        refused(&server, &format!("zfs receive -d {target}"), &stream);
    }
    server.ok("zfs snapshot tank@a");
    let of_pool = send(&server, "zfs send tank@a", "pool");
    let said = refused(&server, "zfs receive -d tank/none", &of_pool);
    assert!(
        said.contains("specified fs (tank/none) does not exist"),
        "{said}"
    );
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// What is excluded is received all the same, and inherited in spite of it; what is set here stays,
/// and children inherit what `-o` sets.
#[test]
fn excluded_properties_are_inherited() {
    let server = Server::start();
    pool(&server);
    server.ok("zfs create -u tank/src");
    server.ok("zfs create -u tank/src/sub");
    server.ok("zfs snapshot -r tank/src@a");
    server.ok("zfs set my:own=snapshot tank/src@a");
    server.ok("zfs set copies=2 quota=100M my:own=old tank/src");
    server.ok("zfs set my:own=below tank/src/sub");
    let whole = send(&server, "zfs send -R tank/src@a", "whole");
    let words = "zfs receive -u -x quota -o atime=off -o quota=50M tank/set";
    refused(&server, words, &whole);
    receive(
        &server,
        "zfs receive -u -x quota -o atime=off tank/copy",
        &whole,
    );
    assert_eq!(source(&server, "tank/copy", "copies"), "2 received");
    assert_eq!(
        source(&server, "tank/copy@a", "my:own"),
        "snapshot received"
    );
    assert_eq!(source(&server, "tank/copy", "quota"), "0 default");
    assert_eq!(source(&server, "tank/copy", "atime"), "off local");
    let inherited = "off inherited from tank/copy";
    assert_eq!(source(&server, "tank/copy/sub", "atime"), inherited);
    server.ok("zfs set compression=gzip quota=60M tank/copy");
    server.ok("zfs set copies=3 my:own=new compression=zle tank/src");
    server.ok("zfs snapshot -r tank/src@b");
    let rest = send(&server, "zfs send -R -i @a tank/src@b", "rest");
    let words = "zfs receive -u -F -x copies -x compression -x my:own -x quota \
                 -o checksum=sha512 tank/copy";
    receive(&server, words, &rest);
    assert_eq!(source(&server, "tank/copy", "copies"), "1 default");
    let received = server.ok("zfs get -Hp -o received copies tank/copy");
    assert_eq!(received.trim_end(), "3");
    assert_eq!(source(&server, "tank/copy", "my:own"), "- -");
    assert_eq!(source(&server, "tank/copy", "compression"), "gzip local");
    assert_eq!(source(&server, "tank/copy", "quota"), "62914560 local");
    let inherited = "sha512 inherited from tank/copy";
    assert_eq!(source(&server, "tank/copy/sub", "checksum"), inherited);
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// What was destroyed where a tree is sent is destroyed here too, clones before their origins, by
/// whatever names.
#[test]
fn what_was_destroyed_goes_where_it_was_sent_to() {
    let server = Server::start();
    pool(&server);
    for name in ["tank/src", "tank/src/b", "tank/src/b/c", "tank/src/d"] {
        server.ok(&format!("zfs create -u {name}"));
    }
    server.ok("zfs snapshot -r tank/src@s");
    server.ok("zfs clone tank/src/b/c@s tank/src/a");
    server.ok("zfs clone tank/src/d@s tank/src/b/z");
    server.ok("zfs snapshot -r tank/src@t");
    let whole = send(&server, "zfs send -R tank/src@t", "whole");
    receive(&server, "zfs receive -u tank/copy", &whole);
    server.ok("zfs destroy -R tank/src/d");
    server.ok("zfs destroy -R tank/src/b");
    server.ok("zfs snapshot -r tank/src@u");
    let rest = send(&server, "zfs send -R -I @t tank/src@u", "rest");
    receive(&server, "zfs receive -u -F tank/copy", &rest);
    let names = server.ok("zfs list -Hr -o name tank/copy");
    assert_eq!(names, "tank/copy\n");
    // What was promoted there is promoted here.
    server.ok("zfs clone tank/src@u tank/src/clone");
    server.ok("zfs snapshot -r tank/src@v");
    let rest = send(&server, "zfs send -R -I @u tank/src@v", "clone");
    receive(&server, "zfs receive -u -F tank/copy", &rest);
    let origin = |name: &str| value(&server, name, "origin");
    assert_eq!(origin("tank/copy/clone"), "tank/copy@u");
    server.ok("zfs promote tank/src/clone");
    server.ok("zfs snapshot -r tank/src@w");
    let rest = send(&server, "zfs send -R -I @v tank/src@w", "promoted");
    receive(&server, "zfs receive -u -F tank/copy", &rest);
    assert_eq!(origin("tank/copy/clone"), "-");
    assert_eq!(origin("tank/copy"), "tank/copy/clone@u");
    let names = |of: &str| server.ok(&format!("zfs list -Hrt all -o name {of}"));
    assert_eq!(
        names("tank/copy").replace("tank/copy", "tank/src"),
        names("tank/src")
    );
    server.ok("zfs promote tank/src");
    server.ok("zfs destroy -r tank/src/clone");
    server.ok("zfs snapshot -r tank/src@u2");
    // A difference to itself is none.
    let said = server.fails("zfs send -R -i @u2 tank/src@u2");
    assert!(
        said.contains("WARNING: could not send tank/src@u2"),
        "{said}"
    );
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// A filesystem that is not mounted is sent as it is now, also as a difference, and can be gone on
/// with as long as it has not changed. Of the snapshot that it takes nothing is left.
#[test]
fn a_filesystem_is_sent_as_it_is_now() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let root = server.text("mounted");
    server.ok(&format!("zfs create -o mountpoint={root} tank/src"));
    let fill = |name: &str, factor: u32| {
        let bytes: Vec<u8> = (0..3_000_000u32)
            .map(|at| (at.wrapping_mul(factor) >> 11) as u8)
            .collect();
        std::fs::write(Path::new(&root).join(name), bytes).expect("a file");
    };
    fill("first", 2_654_435_761);
    server.ok("zfs snapshot tank/src@a");
    fill("second", 2_246_822_519);
    let said = server.fails("zfs send tank/src");
    let why = "target is busy; if a filesystem, it must not be mounted";
    assert!(said.contains(why), "{said}");
    server.ok("zfs unmount tank/src");
    let whole = send(&server, "zfs send tank/src", "whole");
    server.ok("zfs mount tank/src");
    assert!(accepted(&server, &whole).contains("tank/src@--head--"));
    let at = server.text("copy");
    let words = format!("zfs receive -o mountpoint={at} tank/copy");
    receive(&server, &words, &whole);
    run("diff", &["-r", &root, &at]);
    let names = server.ok("zfs list -Hrt snapshot -o name tank");
    assert_eq!(names, "tank/copy@--head--\ntank/src@a\n");
    // As a difference.
    let first = send(&server, "zfs send tank/src@a", "first");
    let at = server.text("by");
    receive(
        &server,
        &format!("zfs receive -o mountpoint={at} tank/by"),
        &first,
    );
    server.ok("zfs unmount tank/src");
    let rest = send(&server, "zfs send -i @a tank/src", "rest");
    server.ok("zfs mount tank/src");
    receive(&server, "zfs receive -F tank/by", &rest);
    run("diff", &["-r", &root, &at]);
    // From where it broke off, but not with other contents.
    server.ok("zfs unmount tank/src");
    let bytes = std::fs::read(send(&server, "zfs send tank/src", "again")).expect("a stream");
    let cut = server.path("cut");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("half of it");
    refused(&server, "zfs receive -s -u tank/new", &cut);
    let token = value(&server, "tank/new", "receive_resume_token");
    let rest = send(&server, &format!("zfs send -t {token}"), "end");
    let length = std::fs::metadata(&rest).expect("a stream").len();
    assert!(
        length < bytes.len() as u64 * 2 / 3,
        "it begins in the middle"
    );
    server.ok("zfs mount tank/src");
    fill("third", 3_266_489_917);
    server.ok("zfs unmount tank/src");
    let said = server.fails(&format!("zfs send -t {token}"));
    assert!(said.contains("was changed"), "{said}");
    server.ok("zfs mount tank/src");
    std::fs::remove_file(Path::new(&root).join("third")).expect("it is there");
    let at = server.text("new");
    let words = format!("zfs receive -s -o mountpoint={at} tank/new");
    receive(&server, &words, &rest);
    run("diff", &["-r", &root, &at]);
    for words in [
        "zfs send -R tank/src",
        "zfs send -I @a tank/src",
        "zfs send -p tank/src",
        "zfs send tank/src#a",
        "zfs send tank/none",
    ] {
        server.fails(words);
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
    // Where nothing changes, it is sent as it is.
    let disks = server.text("disks");
    server.ok(&format!("zpool import -N -o readonly=on -d {disks} tank"));
    let whole = send(&server, "zfs send tank/src", "fixed");
    assert!(accepted(&server, &whole).contains("tank/src@--head--"));
}

/// What is in use stays with what it is below; all else of a tree is destroyed, as by OpenZFS.
#[test]
fn a_tree_goes_but_for_what_is_in_use() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = &server.disks(1, 512 << 20)[0];
    let at = server.text("mnt");
    server.ok(&format!("zpool create -O mountpoint={at} tank {disk}"));
    for name in ["tank/c", "tank/c/busy", "tank/c/idle", "tank/c/idle/x"] {
        server.ok(&format!("zfs create {name}"));
    }
    server.ok("zfs snapshot -r tank/c@s");
    server.ok("zfs clone tank/c/busy@s tank/clone");
    let path = server.path("mnt/c/busy/file");
    std::fs::write(&path, "x").expect("a file");
    let open = std::fs::File::open(&path).expect("it is there");
    server.fails("zfs destroy -r tank/c");
    let names = server.ok("zfs list -Hrt all -o name tank");
    assert!(names.contains("tank/c/idle/x@s") && names.contains("tank/clone"));
    let said = server.fails("zfs destroy -R tank/c");
    assert!(
        said.contains("mnt/c/busy': pool or dataset is busy"),
        "{said}"
    );
    let names = server.ok("zfs list -Hrt all -o name tank");
    assert_eq!(names, "tank\ntank/c\ntank/c/busy\n");
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "x");
    for name in ["tank/c", "tank/c/busy"] {
        assert_eq!(value(&server, name, "mounted"), "yes");
    }
    assert!(!server.path("mnt/c/idle").exists());
    drop(open);
    server.ok("zfs destroy -R tank/c");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Keys by HTTPS, from a server with a certificate of its own: the kind that says its name in the
/// way of old, as OpenZFS's suite has it.
struct Keys {
    port: u16,
    certificate: PathBuf,
}

impl Keys {
    fn serve(server: &Server) -> Self {
        let pair = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new([]).expect("parameters");
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        let name = rcgen::DnType::CommonName;
        parameters.distinguished_name.push(name, "localhost");
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let own = parameters.self_signed(&pair).expect("a certificate");
        let certificate = server.path("certificate.pem");
        std::fs::write(&certificate, own.pem()).expect("a file");
        let key = PrivateKeyDer::try_from(pair.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(own.der().to_vec())], key)
            .expect("a certificate");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let config = Arc::new(config);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                // One that is refused ends with an error.
                let _ = Self::answer(connection, &config);
            }
        });
        Self { port, certificate }
    }

    fn answer(
        connection: std::net::TcpStream,
        config: &Arc<rustls::ServerConfig>,
    ) -> std::io::Result<()> {
        let tls = rustls::ServerConnection::new(Arc::clone(config));
        let tls = tls.map_err(std::io::Error::other)?;
        let mut stream = rustls::StreamOwned::new(tls, connection);
        let mut asked = Vec::new();
        let mut room = [0; 1024];
        while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut room)? {
                0 => return Ok(()),
                count => asked.extend_from_slice(&room[..count]),
            }
        }
        let asked = String::from_utf8_lossy(&asked).into_owned();
        let (head, body) = match asked.split(' ').nth(1).unwrap_or_default() {
            "/passphrase" => ("200 OK", "password\n".to_owned()),
            "/hex" => ("200 OK", "0a".repeat(32)),
            "/raw" => ("200 OK", "r".repeat(32)),
            "/long" => ("200 OK", "x".repeat(1000)),
            "/moved" => ("302 Found\r\nLocation: passphrase", String::new()),
            "/down" => ("302 Found\r\nLocation: http://localhost/x", String::new()),
            "/round" => ("302 Found\r\nLocation: /round", String::new()),
            _ => ("404 Not Found", String::new()),
        };
        let length = body.len();
        write!(
            stream,
            "HTTP/1.0 {head}\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        stream.conn.send_close_notify();
        stream.flush()
    }
}

#[test]
fn keys_come_by_https() {
    let server = Server::start();
    pool(&server);
    let keys = Keys::serve(&server);
    let other = server.path("other.pem");
    let pair = rcgen::KeyPair::generate().expect("a key");
    let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("parameters");
    let certificate = parameters.self_signed(&pair).expect("a certificate");
    std::fs::write(&other, certificate.pem()).expect("a file");
    let with = |trusted: &Path, words: &str| -> Output {
        Command::new(MILLPOND)
            .args(words.split_whitespace())
            .env("MILLPOND_STATE", server.state())
            .env("SSL_CA_CERT_FILE", trusted)
            .stdin(Stdio::null())
            .output()
            .expect("millpond runs")
    };
    let ok = |words: &str| {
        let output = with(&keys.certificate, words);
        assert!(output.status.success(), "{words}: {}", text_of(&output));
    };
    let fails = |trusted: &Path, words: &str| {
        let output = with(trusted, words);
        assert!(!output.status.success(), "{words}: {}", text_of(&output));
        text_of(&output)
    };
    let base = format!("https://localhost:{}", keys.port);
    let create = |format: &str, at: &str, name: &str| {
        format!("zfs create -u -o encryption=on -o keyformat={format} -o keylocation={at} {name}")
    };
    for (at, why) in [
        (format!("{base}/none"), "404"),
        (format!("{base}/long"), "Couldn't GET"),
        (format!("{base}/down"), "read on its way"),
        (format!("{base}/round"), "without end"),
        ("https://localhost:1/x".to_owned(), "Failed to connect"),
        // It is of another name.
        (
            format!("https://127.0.0.1:{}/passphrase", keys.port),
            "Failed to connect",
        ),
    ] {
        let said = fails(&keys.certificate, &create("passphrase", &at, "tank/no"));
        assert!(said.contains(why), "{at}: {said}");
    }
    // One that is not trusted gets nothing to say.
    let passphrase = format!("{base}/passphrase");
    let said = fails(&other, &create("passphrase", &passphrase, "tank/no"));
    assert!(said.contains("certificate"), "{said}");
    assert!(!server.ok("zfs list -Ho name").contains("tank/no"));
    for (format, what) in [
        ("passphrase", "passphrase"),
        ("hex", "hex"),
        ("raw", "raw"),
        ("passphrase", "moved"),
    ] {
        let (name, at) = (format!("tank/{what}"), format!("{base}/{what}"));
        ok(&create(format, &at, &name));
        assert_eq!(value(&server, &name, "keylocation"), at);
        server.ok(&format!("zfs unload-key {name}"));
        fails(&other, &format!("zfs load-key {name}"));
        ok(&format!("zfs load-key {name}"));
        assert_eq!(value(&server, &name, "keystatus"), "available");
    }
    server.ok("zfs unload-key tank/moved");
    ok(&format!("zfs load-key -L {passphrase} tank/moved"));
    assert_eq!(
        value(&server, "tank/moved", "keylocation"),
        format!("{base}/moved")
    );
}
