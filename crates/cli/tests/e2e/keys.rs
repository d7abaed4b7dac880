//! Goal: keys are loaded, found wrong and unloaded as with OpenZFS, and open what they should.
//! Method: the golden pool of encrypted datasets, with keys from standard input and from files,
//! mounted.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::golden::Golden;
use crate::harness::{MILLPOND, Server, can_mount, text_of};

/// Runs `millpond` with something to read.
pub fn with_input(server: &Server, words: &str, input: &[u8]) -> Output {
    let mut child = Command::new(MILLPOND)
        .args(words.split_whitespace())
        .env("MILLPOND_STATE", server.state())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("millpond runs");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that refuses before it reads closes its end.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("millpond ends")
}

/// What a key given in hexadecimal is.
pub fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex"))
        .collect()
}

fn files(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

#[test]
fn keys_are_loaded_used_and_unloaded() {
    if !can_mount() {
        return;
    }
    let Some(golden) = Golden::unpack("encrypted") else {
        return;
    };
    let server = &golden.server;
    let root = server.text("mnt");
    server.ok(&format!(
        "zpool import -o readonly=on -R {root} -d {} encrypted",
        golden.directory
    ));
    let at = |dataset: &str| server.path("mnt").join(dataset);
    let status = |dataset: &str| {
        let text = server.ok(&format!("zfs get -H -o value keystatus {dataset}"));
        text.trim().to_owned()
    };
    let key_of = |dataset: &str| {
        let keys = golden.manifest["keys"].as_array().expect("keys");
        let found = keys.iter().find(|key| key["dataset"] == dataset);
        found.expect("a key")["key"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    // What is not encrypted is mounted, the rest is left alone without a word.
    assert!(files(&at("encrypted")) > 0);
    assert_eq!(files(&at("encrypted/enc")), 0);
    assert_eq!(status("encrypted/enc"), "unavailable");
    assert_eq!(status("encrypted"), "-");
    let error = server.fails("zfs mount encrypted/enc");
    assert!(
        error.contains("cannot mount 'encrypted/enc': encryption key not loaded"),
        "{error}"
    );

    let wrong = with_input(server, "zfs load-key encrypted/enc", b"not this one\n");
    assert!(!wrong.status.success());
    assert_eq!(
        String::from_utf8_lossy(&wrong.stderr).trim(),
        "Key load error: Incorrect key provided for 'encrypted/enc'."
    );
    let error = server.fails("zfs load-key encrypted/enc/child");
    assert_eq!(
        error.trim(),
        "Key load error: Keys must be loaded for encryption root of 'encrypted/enc/child' \
         (encrypted/enc)."
    );
    let error = server.fails("zfs load-key encrypted");
    assert_eq!(
        error.trim(),
        "Key load error: 'encrypted' is not encrypted."
    );
    let error = server.fails("zfs unload-key encrypted/enc");
    assert!(
        error.contains("Key already unloaded for 'encrypted/enc'"),
        "{error}"
    );

    let passphrase = format!("{}\n", key_of("encrypted/enc"));
    let checked = with_input(
        server,
        "zfs load-key -n encrypted/enc",
        passphrase.as_bytes(),
    );
    assert!(checked.status.success(), "{}", text_of(&checked));
    assert_eq!(
        String::from_utf8_lossy(&checked.stdout).trim(),
        "1 / 1 key(s) successfully verified"
    );
    assert_eq!(status("encrypted/enc"), "unavailable");
    let loaded = with_input(server, "zfs load-key encrypted/enc", passphrase.as_bytes());
    assert!(loaded.status.success(), "{}", text_of(&loaded));
    assert_eq!(status("encrypted/enc/child"), "available");
    assert_eq!(status("encrypted/enc/hexkey"), "unavailable");
    let again = with_input(server, "zfs load-key encrypted/enc", passphrase.as_bytes());
    assert_eq!(
        String::from_utf8_lossy(&again.stderr).trim(),
        "Key load error: Key already loaded for 'encrypted/enc'."
    );

    // Mounted, everything is there; a snapshot too.
    server.ok("zfs mount -a");
    assert!(files(&at("encrypted/enc")) > 10);
    assert!(files(&at("encrypted/enc/child/grand")) > 0);
    assert!(files(&at("encrypted/enc/.zfs/snapshot/one")) > 10);
    let error = server.fails("zfs unload-key encrypted/enc");
    assert_eq!(error.trim(), "Key unload error: 'encrypted/enc' is busy.");

    // Keys of the other formats, from files and with `mount -l`.
    let raw = server.path("raw.key");
    std::fs::write(&raw, bytes(&key_of("encrypted/rawkey"))).expect("a key file");
    server.ok(&format!(
        "zfs load-key -L file://{} encrypted/rawkey",
        raw.display()
    ));
    server.ok("zfs mount encrypted/rawkey");
    assert!(files(&at("encrypted/rawkey")) > 0);
    let hex = format!("{}\n", key_of("encrypted/enc/hexkey"));
    let mounted = with_input(server, "zfs mount -l encrypted/enc/hexkey", hex.as_bytes());
    assert!(mounted.status.success(), "{}", text_of(&mounted));
    assert!(files(&at("encrypted/enc/hexkey")) > 0);

    // A volume comes and goes with its key.
    std::fs::write(&raw, bytes(&key_of("encrypted/vol"))).expect("a key file");
    let volume = server.state().join("zvol/encrypted/vol");
    assert!(!volume.exists());
    server.ok(&format!(
        "zfs load-key -L file://{} encrypted/vol",
        raw.display()
    ));
    assert_eq!(
        std::fs::metadata(&volume).expect("the volume").len(),
        8 << 20
    );
    server.ok("zfs unload-key encrypted/vol");
    // The kernel remembers names for a moment.
    server.wait_until("the volume is gone", || !volume.exists());

    server.ok("zfs unmount -a");
    assert_eq!(
        server.ok("zfs unload-key -a").trim(),
        "3 / 3 key(s) successfully unloaded"
    );
    assert_eq!(status("encrypted/enc"), "unavailable");
    let error = server.fails("zfs mount encrypted/enc");
    assert!(error.contains("encryption key not loaded"), "{error}");

    // Import with keys: one line for each key that is asked for.
    server.ok("zpool export encrypted");
    let imported = with_input(
        server,
        &format!(
            "zpool import -l -o readonly=on -R {root} -d {} encrypted",
            golden.directory
        ),
        b"wrong\n",
    );
    assert!(!imported.status.success());
    let text = text_of(&imported);
    assert!(text.contains("0 / 14 key(s) successfully loaded"), "{text}");
    assert!(files(&at("encrypted")) > 0);
}
