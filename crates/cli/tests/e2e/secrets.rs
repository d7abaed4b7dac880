//! Goal: a key that was unloaded is nowhere in the server's memory, whichever way it came, and what
//! the server has in memory reaches no disk.
//! Method: keys are loaded and unloaded, over connections that end and one that stays; then all
//! writable memory of the process is searched.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::harness::{Server, need};

/// What is searched at once, in bytes.
const PIECE: usize = 1 << 20;
/// Half of a key is as bad as all of it.
const HALF: usize = 16;

/// A key that is unlike any other run's, and any other bytes.
fn random_key() -> Vec<u8> {
    let mut key = vec![0; 2 * HALF];
    let source = File::open("/dev/urandom");
    source
        .and_then(|mut source| source.read_exact(&mut key))
        .expect("random bytes");
    key
}

fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The halves of a key, as bytes and as text.
fn halves(key: &[u8]) -> Vec<Vec<u8>> {
    let digits = hex(key).into_bytes();
    let raw = key.chunks(HALF);
    raw.chain(digits.chunks(2 * HALF))
        .map(<[u8]>::to_vec)
        .collect()
}

/// The process that serves.
fn process_of(server: &Server) -> String {
    let told = server.ok("info");
    let (_, rest) = told.split_once("runs as process ").expect("its number");
    rest.chars().take_while(char::is_ascii_digit).collect()
}

/// Where any of this is in the writable memory of a process.
fn found(process: &str, wanted: &[Vec<u8>]) -> Vec<String> {
    let at = Path::new("/proc").join(process);
    let maps = std::fs::read_to_string(at.join("maps")).expect("its mappings");
    let memory = File::open(at.join("mem")).expect("its memory");
    let overlap = wanted.iter().map(Vec::len).max().unwrap_or(1) - 1;
    let zeros = vec![0; PIECE + overlap];
    let mut piece = vec![0; PIECE + overlap];
    let mut found = Vec::new();
    for map in maps.lines() {
        let mut words = map.split_whitespace();
        let (range, access) = (words.next().expect("a range"), words.next());
        if !access.is_some_and(|access| access.starts_with("rw")) {
            continue;
        }
        let (begin, end) = range.split_once('-').expect("a range");
        let [begin, end] =
            [begin, end].map(|text| u64::from_str_radix(text, 16).expect("a number"));
        for start in (begin..end).step_by(PIECE) {
            let length = piece.len().min((end - start) as usize);
            // Some of what the kernel shares cannot be read this way.
            let Ok(length) = memory.read_at(&mut piece[..length], start) else {
                continue;
            };
            if piece[..length] == zeros[..length] {
                continue;
            }
            for wanted in wanted {
                let mut rest = &piece[..length];
                while let Some(next) = memchr(wanted[0], rest) {
                    rest = &rest[next..];
                    if rest.starts_with(wanted) {
                        let offset = length - rest.len();
                        // What begins behind the piece is the next one's.
                        if offset < PIECE {
                            found.push(format!("{map}: at {:#x}", start + offset as u64));
                        }
                    }
                    rest = &rest[1..];
                }
            }
        }
    }
    found
}

fn memchr(byte: u8, bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|one| *one == byte)
}

#[test]
fn an_unloaded_key_is_nowhere_in_the_servers_memory() {
    let is_root = rustix::process::geteuid().is_root();
    if !need("root, who may look into processes", is_root) {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 320 << 20);
    server.ok(&format!(
        "zpool create -O mountpoint=none tank {}",
        disks[0]
    ));
    let (raw, text) = (random_key(), random_key());
    std::fs::write(server.path("raw"), &raw).expect("a key file");
    std::fs::write(server.path("hex"), hex(&text)).expect("a key file");
    let create = "zfs create -o encryption=on";
    for (format, dataset) in [("raw", "tank/a"), ("hex", "tank/b")] {
        let location = server.text(format);
        server.ok(&format!(
            "{create} -o keyformat={format} -o keylocation=file://{location} {dataset}"
        ));
    }
    server.ok("zfs create -V 16M tank/a/volume");
    let process = process_of(&server);
    let wanted = [halves(&raw), halves(&text)].concat();
    // Else the search finds nothing at all.
    assert!(!found(&process, &wanted).is_empty());

    server.ok("zfs unload-key -a");
    server.ok("zfs load-key -n tank/a");
    server.ok("zfs load-key -a");
    server.ok("zfs unload-key -a");
    // Whoever asks may stay connected, as browsers do.
    let body = serde_json::json!({
        "name": "tank/b", "key": hex(&text), "only_check": false, "mount": false,
    })
    .to_string();
    let head = format!(
        "POST /v1/zfs/load-key HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stays = UnixStream::connect(server.state().join("millpond.sock")).expect("the API");
    stays.write_all((head + &body).as_bytes()).expect("sent");
    let mut answer = vec![0; 1 << 10];
    let length = stays.read(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.ok("zfs unload-key tank/b");

    let found = found(&process, &wanted);
    assert!(
        found.is_empty(),
        "{} times:\n{}",
        found.len(),
        found.join("\n")
    );
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).expect("its limits");
    let core = limits.lines().find(|line| line.contains("core file size"));
    let core: Vec<&str> = core.expect("a limit").split_whitespace().collect();
    assert_eq!(core[4], "0", "of the server itself");
    drop(stays);
}
