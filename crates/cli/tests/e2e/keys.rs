//! Goal: keys are loaded, found wrong and unloaded as with OpenZFS, and open what they should.
//! Method: the golden pool of encrypted datasets, with keys from standard input and from files,
//! mounted.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::golden::Golden;
use crate::harness::{MILLPOND, Peer, Server, can_mount, need, run, text_of, zdb_is_clean};
use crate::streams::{receive, send};

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

/// What must be nowhere: neither in the pool's history, nor in what the server writes down, nor on
/// the disk in the clear.
const PASSPHRASE: &str = "a passphrase for nobody else";
const OTHER_PASSPHRASE: &str = "and another one of these";
const HEX: &str = "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef";
/// 32 bytes, which a shell can write.
const RAW: &str = "ABCDABCDABCDABCDABCDABCDABCDABCD";
const SECRET: &str = "nobody is to read this line on the disk";

/// A server with pool `tank` on a device that OpenZFS takes as well, and key files.
struct New {
    server: Server,
    disks: Vec<String>,
    /// Where the key files are.
    keys: String,
}

impl New {
    fn begin(count: usize) -> Option<Self> {
        if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
            return None;
        }
        let mut server = Server::start();
        let disks = server.disks(count, 320 << 20);
        let devices = server.attach(&disks);
        let keys = server.text("");
        let keys = keys.trim_end_matches('/').to_owned();
        std::fs::write(server.path("raw"), RAW).expect("a key file");
        std::fs::write(server.path("hex"), format!("{HEX}\n")).expect("a key file");
        let root = server.text("mnt");
        server.ok(&format!(
            "zpool create -R {root} -O compression=off tank {}",
            devices[0]
        ));
        Some(Self {
            server,
            disks,
            keys,
        })
    }

    /// A command that reads this and works.
    fn given(&self, words: &str, input: &str) -> String {
        let done = with_input(&self.server, words, input.as_bytes());
        assert!(done.status.success(), "{words}: {}", text_of(&done));
        String::from_utf8(done.stdout).expect("text")
    }

    /// A command that reads this and says this.
    fn refused(&self, words: &str, input: &str, told: &str) {
        let done = with_input(&self.server, words, input.as_bytes());
        assert!(!done.status.success(), "{words}: {}", text_of(&done));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains(told), "{words}: {said}");
    }

    fn get(&self, property: &str, dataset: &str) -> String {
        let text = self
            .server
            .ok(&format!("zfs get -Hp -o value {property} {dataset}"));
        text.trim().to_owned()
    }

    /// What OpenZFS and we are to say alike of all datasets.
    fn properties(&self) -> Vec<String> {
        lines_of(&self.server.ok(PROPERTIES))
    }

    fn at(&self, dataset: &str) -> std::path::PathBuf {
        self.server.path("mnt").join(dataset)
    }

    /// A file with the secret, and one with the dataset's name.
    fn fill(&self, dataset: &str) {
        let at = self.at(dataset);
        std::fs::write(at.join("secret"), format!("{SECRET}\n").repeat(20_000)).expect("a file");
        std::fs::write(at.join("name"), dataset).expect("a file");
    }

    /// Checksums of all files of these datasets.
    fn sums(&self, datasets: &[&str]) -> Vec<String> {
        let mut sums = Vec::new();
        for dataset in datasets {
            let files = "find . -xdev -type f ! -path './.zfs/*' -exec sha256sum {} +";
            let script = format!("cd {} && {files}", self.at(dataset).display());
            let text = run("sh", &["-c", &script]);
            sums.extend(text.lines().map(|line| format!("{dataset} {line}")));
        }
        sums.sort();
        sums
    }
}

const PROPERTIES: &str = "zfs get -rHp -t filesystem,volume -o name,property,value,source \
                          encryption,keyformat,keylocation,pbkdf2iters,encryptionroot,keystatus \
                          tank";

fn lines_of(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim_end().replace('\t', " "));
    let mut lines: Vec<String> = lines.filter(|line| line.starts_with("tank")).collect();
    lines.sort();
    lines
}

/// Goal: encryption roots are made and their keys changed by the commands of OpenZFS, with what it
/// says where it refuses; and no key is written down anywhere.
#[test]
fn new_encryption_roots_are_made_and_changed() {
    let Some(mut bed) = New::begin(2) else { return };
    let (server, keys) = (&bed.server, &bed.keys);
    let on = "-o encryption=on";
    for (words, input, told) in [
        (
            format!("zfs create {on} tank/x"),
            "",
            "Keyformat required for new encryption root",
        ),
        (
            "zfs create -o keyformat=passphrase tank/x".into(),
            PASSPHRASE,
            "Encryption must be turned on to set encryption properties",
        ),
        (
            format!("zfs create {on} -o keylocation=prompt tank/x"),
            "",
            "Keyformat required for new encryption root",
        ),
        (
            format!("zfs create {on} -o keyformat=passphrase tank/x"),
            "short\n",
            "cannot create 'tank/x': Passphrase too short (min 8).",
        ),
        (
            format!("zfs create {on} -o keyformat=raw -o pbkdf2iters=400000 tank/x"),
            RAW,
            "Cannot specify pbkdf2iters with a non-passphrase keyformat.",
        ),
        (
            format!("zfs create {on} -o keyformat=passphrase -o pbkdf2iters=99999 tank/x"),
            PASSPHRASE,
            "minimum pbkdf2 iterations is 100000",
        ),
        (
            format!("zfs create {on} -o keyformat=hex tank/x"),
            "0011\n",
            "Hex key too short (expected 64).",
        ),
        (
            format!("zfs create {on} -o keyformat=raw -o keylocation=file://{keys}/no tank/x"),
            "",
            "Failed to open key material file",
        ),
    ] {
        bed.refused(&words, input, told);
    }
    assert_eq!(server.ok("zfs list -H -o name -r tank").trim(), "tank");
    let feature = || server.ok("zpool get -H -o value feature@encryption tank");
    assert_eq!(feature().trim(), "enabled");

    let passphrase = format!("{PASSPHRASE}\n");
    bed.given(
        &format!("zfs create {on} -o keyformat=passphrase -o pbkdf2iters=120000 tank/pass"),
        &passphrase,
    );
    assert_eq!(feature().trim(), "active");
    server.ok(&format!(
        "zfs create -o encryption=aes-192-ccm -o keyformat=hex -o keylocation=file://{keys}/hex \
         tank/hex"
    ));
    server.ok(&format!(
        "zfs create -V 16M {on} -o keyformat=raw -o keylocation=file://{keys}/raw tank/vol"
    ));
    server.ok("zfs create -p tank/pass/a/b");
    server.ok("zfs create -o encryption=off tank/pass/clear");
    for (dataset, property, wanted) in [
        ("tank/pass", "encryption", "aes-256-gcm"),
        ("tank/pass", "keylocation", "prompt"),
        ("tank/pass", "pbkdf2iters", "120000"),
        ("tank/pass/a/b", "encryptionroot", "tank/pass"),
        ("tank/pass/clear", "encryption", "off"),
        ("tank/hex", "encryption", "aes-192-ccm"),
        ("tank/vol", "keyformat", "raw"),
        ("tank/vol", "keystatus", "available"),
    ] {
        assert_eq!(bed.get(property, dataset), wanted, "{property} {dataset}");
    }
    for dataset in ["tank/pass", "tank/pass/a/b", "tank/hex"] {
        bed.fill(dataset);
    }
    // Nobody writes past a clone's origin's key, or moves a child from its root.
    server.ok("zfs snapshot tank/pass/a@s");
    let told = "Encryption properties must inherit from origin dataset";
    bed.refused(
        "zfs clone -o keylocation=prompt tank/pass/a@s tank/c",
        "",
        told,
    );
    server.ok("zfs clone tank/pass/a@s tank/c");
    assert_eq!(bed.get("encryptionroot", "tank/c"), "tank/pass");
    bed.refused(
        "zfs rename tank/pass/a tank/a",
        "",
        "cannot move encrypted child outside of its encryption root",
    );

    for (words, told) in [
        (
            "zfs change-key tank",
            "Key change error: Dataset not encrypted.",
        ),
        (
            "zfs change-key tank/pass/a",
            "Key change error: Keyformat required for new encryption root.",
        ),
        (
            "zfs change-key -i tank/pass",
            "Key change error: Parent must be encrypted.",
        ),
        (
            "zfs change-key -i tank/pass/a",
            "Key inheritting can only be performed on encryption roots.",
        ),
        (
            "zfs change-key -o keyformat=raw tank/c",
            "Keys cannot be changed on clones.",
        ),
        (
            "zfs change-key -o compression=on tank/pass",
            "Only keyformat, keylocation and pbkdf2iters may be set with this command.",
        ),
    ] {
        bed.refused(words, RAW, told);
    }
    let other = format!("{OTHER_PASSPHRASE}\n");
    bed.given("zfs change-key -o test:who=me tank/pass", &other);
    assert_eq!(bed.get("pbkdf2iters", "tank/pass"), "350000");
    assert_eq!(bed.get("test:who", "tank/pass"), "me");
    server.ok(&format!(
        "zfs change-key -o keyformat=raw -o keylocation=file://{keys}/raw tank/pass/a/b"
    ));
    assert_eq!(bed.get("encryptionroot", "tank/pass/a/b"), "tank/pass/a/b");
    server.ok("zfs unmount -a");
    let unloaded = server.ok("zfs unload-key -a");
    assert_eq!(unloaded.trim(), "4 / 4 key(s) successfully unloaded");
    bed.refused(
        "zfs change-key tank/pass",
        &other,
        "Key change error: Key must be loaded.",
    );
    bed.refused(
        "zfs load-key tank/pass",
        &passphrase,
        "Incorrect key provided for 'tank/pass'",
    );
    // The old key is asked for, then the new one.
    bed.given(
        "zfs change-key -l tank/pass",
        &format!("{other}{passphrase}"),
    );
    let loaded = server.ok("zfs load-key -r tank/hex");
    assert_eq!(loaded.trim(), "1 / 1 key(s) successfully loaded");
    let loaded = server.ok("zfs load-key -a");
    assert_eq!(loaded.trim(), "2 / 2 key(s) successfully loaded");
    let checked = bed.given("zfs load-key -n tank/pass", &passphrase);
    assert_eq!(checked.trim(), "1 / 1 key(s) successfully verified");
    server.ok("zfs change-key -i tank/pass/a/b");
    assert_eq!(bed.get("encryptionroot", "tank/pass/a/b"), "tank/pass");
    server.ok("zfs set keylocation=file:///somewhere tank/pass");
    server.ok("zfs set keylocation=prompt tank/pass");
    server.fails("zfs set keylocation=none tank/pass");
    server.fails("zfs set keylocation=prompt tank/pass/a");
    server.ok("zfs mount -a");
    let secret = std::fs::read_to_string(bed.at("tank/pass/a/b/secret")).expect("readable");
    assert!(secret.starts_with(SECRET));

    // A pool whose root is encrypted; trying it asks for nothing.
    let device = server.path("disks").join("d1").display().to_string();
    let root = server.text("mnt");
    let create = |dry: &str| {
        format!(
            "zpool create {dry} -R {root} -O compression=off -O encryption=aes-128-gcm -O \
             keyformat=passphrase whole {device}"
        )
    };
    server.ok(&create("-n"));
    bed.refused(
        &create("-d"),
        &passphrase,
        "encryption without the features encryption and bookmark_v2",
    );
    bed.given(&create(""), &passphrase);
    bed.fill("whole");
    assert_eq!(bed.get("encryption", "whole"), "aes-128-gcm");
    server.ok("zpool export whole");
    let from = server.path("disks").display().to_string();
    server.ok(&format!("zpool import -R {root} -d {from} whole"));
    assert!(!bed.at("whole/name").exists());
    bed.given("zfs mount -l whole", &passphrase);
    assert!(bed.at("whole/name").exists());

    let history = server.ok("zpool history -il");
    assert!(history.contains("change-key"), "{history}");
    server.ok("zpool export -a");
    bed.server.detach();
    let server = &bed.server;
    let state = files_below(&server.state());
    let written: Vec<u8> = state
        .iter()
        .flat_map(|path| std::fs::read(path).unwrap_or_default())
        .chain(history.into_bytes())
        .chain(server.log().into_bytes())
        .collect();
    for key in [PASSPHRASE, OTHER_PASSPHRASE, HEX, RAW] {
        assert!(
            !contains(&written, key.as_bytes()),
            "{key} was written down"
        );
    }
    for disk in ["d0", "d1"] {
        let bytes = std::fs::read(server.path("disks").join(disk)).expect("the disk");
        for secret in [SECRET, PASSPHRASE, OTHER_PASSPHRASE, HEX, RAW] {
            assert!(
                !contains(&bytes, secret.as_bytes()),
                "{secret} is on {disk}"
            );
        }
    }
    for pool in ["tank", "whole"] {
        zdb_is_clean(&server.path("disks"), pool);
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

/// Goal: the real OpenZFS loads the keys of what was made here, reads all of it, and says the same
/// of it; keys that one side changes open the other's. Method: roots of all formats, children, a
/// clone, a volume, changed keys; there and back.
#[test]
fn openzfs_opens_what_is_encrypted_here() {
    let Some(mut bed) = New::begin(1) else { return };
    let Some(peer) = Peer::find() else { return };
    let passphrase = format!("{PASSPHRASE}\n");
    let keys = bed.keys.clone();
    let ok = |bed: &New, words: &str| bed.server.ok(words);
    bed.given(
        "zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 tank/pass",
        &passphrase,
    );
    ok(&bed, "zfs create -o encryption=aes-256-ccm tank/pass/child");
    ok(
        &bed,
        &format!(
            "zfs create -o encryption=aes-192-ccm -o keyformat=hex -o \
             keylocation=file://{keys}/hex tank/hex"
        ),
    );
    ok(
        &bed,
        &format!(
            "zfs create -o encryption=aes-128-gcm -o keyformat=raw -o \
             keylocation=file://{keys}/raw tank/raw"
        ),
    );
    ok(&bed, "zfs create tank/raw/below");
    ok(
        &bed,
        &format!(
            "zfs create -V 16M -o encryption=on -o keyformat=raw -o \
             keylocation=file://{keys}/raw tank/vol"
        ),
    );
    ok(&bed, "zfs create -o encryption=off tank/pass/clear");
    for dataset in [
        "tank/pass",
        "tank/pass/child",
        "tank/pass/clear",
        "tank/hex",
        "tank/raw",
        "tank/raw/below",
    ] {
        bed.fill(dataset);
    }
    let volume = bed.server.state().join("zvol/tank/vol");
    let content: Vec<u8> = format!("{SECRET}\n").repeat(9000).into_bytes();
    let of_volume = &content[..256 << 10];
    let file = std::fs::File::options().write(true).open(&volume);
    std::os::unix::fs::FileExt::write_all_at(&file.expect("the volume"), of_volume, 1 << 20)
        .expect("written");
    ok(&bed, "zfs snapshot tank/pass/child@s");
    ok(&bed, "zfs clone tank/pass/child@s tank/clone");
    std::fs::write(bed.at("tank/clone/more"), SECRET).expect("a file");
    // Roots come and go, and a promoted clone is the root of what it was cloned from.
    ok(
        &bed,
        &format!("zfs change-key -o keyformat=hex -o keylocation=file://{keys}/hex tank/raw/below"),
    );
    bed.given(
        "zfs change-key -o keyformat=passphrase -o keylocation=prompt tank/raw",
        &passphrase,
    );
    ok(&bed, "zfs snapshot tank/hex@s");
    ok(&bed, "zfs clone tank/hex@s tank/promoted");
    ok(&bed, "zfs promote tank/promoted");
    let datasets = [
        "tank/pass",
        "tank/pass/child",
        "tank/pass/clear",
        "tank/hex",
        "tank/promoted",
        "tank/raw",
        "tank/raw/below",
        "tank/clone",
    ];
    let (sums, said) = (bed.sums(&datasets), bed.properties());
    assert!(sums.len() >= 16, "{sums:?}");
    ok(&bed, "zpool export tank");
    bed.server.detach();
    zdb_is_clean(&bed.server.path("disks"), "tank");

    let sha = |of: &str| run("sh", &["-c", &format!("head -c 262144 {of} | sha256sum")]);
    std::fs::write(bed.server.path("volume"), of_volume).expect("a file");
    let of_volume = sha(&bed.server.text("volume"));
    let of_volume = of_volume.split_whitespace().next().expect("a sum");
    let list = datasets.join(" ");
    let script = format!(
        r#"
zpool import -N -d /dev/disk/peer tank || exit 3
printf '{OTHER_PASSPHRASE}\n' | zfs load-key tank/pass && exit 4
printf '{PASSPHRASE}\n' | zfs load-key tank/pass || exit 5
printf '{PASSPHRASE}\n' | zfs load-key tank/raw || exit 6
printf '{HEX}\n' | zfs load-key -L prompt tank/promoted || exit 7
printf '{HEX}\n' | zfs load-key -L prompt tank/raw/below || exit 8
printf '{RAW}' | zfs load-key -L prompt tank/vol || exit 9
{PROPERTIES}
zfs mount -a || exit 10
for d in {list}; do
  cd "/$d" || exit 11
  find . -xdev -type f ! -path './.zfs/*' -exec sha256sum {{}} + | sed "s|^|SUM $d |"
done
cd /
# The one volume; its device comes some time after its key.
v=; try=0
while [ -z "$v" ] && [ $try -lt 40 ]; do
  for z in /dev/zd*; do [ ! -b "$z" ] || v=$z; done
  try=$((try + 1)); sleep 0.5
done
echo "VOLUME $(dd if="$v" bs=1M skip=1 count=1 2>/dev/null | head -c 262144 | sha256sum)"
zpool scrub -w tank
zpool status -v tank
zpool get -H -o property,value feature@encryption,feature@bookmark_v2 tank
printf '{OTHER_PASSPHRASE}\n' | zfs change-key tank/pass || exit 12
printf '{PASSPHRASE}\n' | zfs change-key -o keyformat=passphrase -o keylocation=prompt \
  tank/promoted || exit 13
zfs change-key -i tank/raw/below || exit 14
zfs create tank/pass/theirs && echo theirs > /tank/pass/theirs/file || exit 15
echo more > /tank/raw/below/more
printf '{HEX}\n' | zfs create -o encryption=on -o keyformat=hex tank/new || exit 16
echo new > /tank/new/file
zpool export tank || exit 17
echo PEER-DONE
"#
    );
    let text = peer.run(&bed.disks, &script).replace('\r', "");
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(text.contains("errors: No known data errors"), "{text}");
    assert!(text.contains(&format!("VOLUME {of_volume}")), "{text}");
    assert!(text.contains("feature@encryption\tactive"), "{text}");
    let mut found: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("SUM "))
        .map(str::to_owned)
        .collect();
    found.sort();
    assert_eq!(found, sums, "what OpenZFS reads");
    assert_eq!(lines_of(&text), said, "what OpenZFS says");

    // And back, with its keys.
    zdb_is_clean(&bed.server.path("disks"), "tank");
    let from = bed.server.attach_to_import(&bed.disks);
    let root = bed.server.text("mnt");
    ok(&bed, &format!("zpool import -N -R {root} {from} tank"));
    bed.refused("zfs load-key tank/pass", &passphrase, "Incorrect key");
    bed.given("zfs load-key tank/pass", &format!("{OTHER_PASSPHRASE}\n"));
    bed.given("zfs load-key tank/promoted", &passphrase);
    bed.given("zfs load-key tank/raw", &passphrase);
    bed.given("zfs load-key tank/new", &format!("{HEX}\n"));
    ok(&bed, "zfs mount -a");
    let mut now = bed.sums(&datasets);
    now.retain(|line| !line.starts_with("tank/raw/below") || !line.ends_with("./more"));
    assert_eq!(now, sums, "after OpenZFS had it");
    for (file, content) in [
        ("tank/pass/theirs/file", "theirs\n"),
        ("tank/raw/below/more", "more\n"),
        ("tank/new/file", "new\n"),
    ] {
        let found = std::fs::read_to_string(bed.at(file)).expect("readable");
        assert_eq!(found, content, "{file}");
    }
    // Once more from our side.
    ok(
        &bed,
        &format!("zfs change-key -o keyformat=raw -o keylocation=file://{keys}/raw tank/new"),
    );
    ok(&bed, "zpool export tank");
    bed.server.detach();
    zdb_is_clean(&bed.server.path("disks"), "tank");
    let script = format!(
        "zpool import -N -d /dev/disk/peer tank || exit 3\nprintf '{RAW}' | zfs load-key -L prompt \
         tank/new || exit 4\nzfs mount tank/new || exit 5\ncat /tank/new/file\nzpool export \
         tank\necho PEER-DONE\n"
    );
    let text = peer.run(&bed.disks, &script).replace('\r', "");
    assert!(
        text.contains("new\n") && text.contains("PEER-DONE"),
        "{text}"
    );
}

/// A key that came anew with raw streams, one dataset at a time, opens all again when it is loaded:
/// `load-key -r` does not try to load it for each.
#[test]
fn a_key_that_opens_what_was_parted_is_loaded_once() {
    let server = Server::start();
    let disks = server.disks(2, 256 << 20);
    let [one, two] = [1, 2].map(|number: u8| {
        let path = server.path(&format!("key{number}"));
        std::fs::write(&path, [number; 32]).expect("a key file");
        path.display().to_string()
    });
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    server.ok(&format!("zpool create -m none back {}", disks[1]));
    server.ok(&format!(
        "zfs create -o encryption=on -o keyformat=raw -o keylocation=file://{one} tank/top"
    ));
    server.ok("zfs create tank/top/below");
    server.ok("zfs snapshot -r tank/top@one");
    let whole = send(&server, "zfs send -R -w tank/top@one", "whole");
    receive(&server, "zfs receive back/top", &whole);
    server.ok(&format!(
        "zfs change-key -o keylocation=file://{two} tank/top"
    ));
    server.ok("zfs snapshot -r tank/top@two");
    let root = |name: &str| {
        let text = server.ok(&format!("zfs get -H -o value encryptionroot {name}"));
        text.trim().to_owned()
    };
    for name in ["top", "top/below"] {
        let words = format!("zfs send -w -i @one tank/{name}@two");
        let stream = send(&server, &words, "difference");
        receive(&server, &format!("zfs receive back/{name}"), &stream);
    }
    assert_eq!(root("back/top/below"), "back/top/below");
    for name in ["back/top", "back/top/below"] {
        server.ok(&format!("zfs set keylocation=file://{two} {name}"));
    }
    let loaded = server.ok("zfs load-key -r back");
    assert_eq!(loaded.trim(), "1 / 1 key(s) successfully loaded");
    assert_eq!(root("back/top/below"), "back/top");
}
