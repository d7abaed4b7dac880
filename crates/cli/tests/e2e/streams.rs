//! Goal: `zfs receive` and `zfs send` do what OpenZFS's do. Method: packages of streams that
//! OpenZFS made (shared/golden/README.md) are received, and what is there then is compared with
//! their manifests: datasets, GUIDs, properties that were sent, and the trees of all snapshots
//! through mounts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{MILLPOND, Server, can_mount, finds, need, run, text_of, zdb_is_clean};
use crate::walk::compare_received;

/// A stream of the golden set, unpacked; nothing where there is none.
pub fn unpack(server: &Server, name: &str) -> Option<(PathBuf, Value)> {
    let streams = oracles::golden()?.join("streams");
    let file = server.path(&format!("{name}.zstream"));
    let packed = streams.join(format!("{name}.zstream.zst"));
    let (packed, out) = (packed.to_string_lossy(), file.to_string_lossy());
    run("zstd", &["-qdf", &packed, "-o", &out]);
    let manifest = oracles::manifest(&streams, name);
    Some((file, serde_json::from_slice(&manifest).expect("JSON")))
}

/// Runs a command with a file as its input.
fn with_file(server: &Server, words: &str, input: &Path) -> std::process::Output {
    Command::new(MILLPOND)
        .args(words.split_whitespace())
        .env("MILLPOND_STATE", server.state())
        .stdin(Stdio::from(std::fs::File::open(input).expect("a stream")))
        .output()
        .expect("millpond runs")
}

pub fn receive(server: &Server, words: &str, input: &Path) -> String {
    let output = with_file(server, words, input);
    assert!(
        output.status.success(),
        "{words}:\n{}\n{}",
        text_of(&output),
        server.log()
    );
    text_of(&output)
}

pub fn refused(server: &Server, words: &str, input: &Path) -> String {
    let output = with_file(server, words, input);
    assert!(!output.status.success(), "{words}:\n{}", text_of(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn pool(server: &Server) {
    let disk = &server.disks(1, 512 << 20)[0];
    server.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
}

pub fn value(server: &Server, dataset: &str, property: &str) -> String {
    let words = format!("zfs get -Hp -o value {property} {dataset}");
    server.ok(&words).trim_end().to_owned()
}

/// Compares what is below a dataset with a manifest.
pub fn compare(server: &Server, manifest: &Value, target: &str) {
    let name_of = |name: &str| name.replacen("TARGET", target, 1);
    let all = server.ok(&format!("zfs list -Hrt all -o name {target}"));
    let found: BTreeSet<&str> = all.lines().collect();
    let datasets = manifest["datasets"].as_array().expect("datasets");
    let names: Vec<String> = datasets
        .iter()
        .map(|dataset| name_of(dataset["name"].as_str().expect("a name")))
        .collect();
    assert_eq!(found, names.iter().map(String::as_str).collect());
    for (dataset, name) in datasets.iter().zip(&names) {
        if name.contains('@') {
            assert_eq!(
                value(server, name, "guid"),
                dataset["props"]["guid"],
                "{name}"
            );
        }
        for (property, wanted) in dataset["local"].as_object().into_iter().flatten() {
            if property != "mountpoint" {
                assert_eq!(value(server, name, property), *wanted, "{name} {property}");
            }
        }
        if let Some(tags) = dataset["holds"].as_array() {
            let listed = server.ok(&format!("zfs holds -H {name}"));
            let ours: Vec<&str> = listed
                .lines()
                .filter_map(|row| row.split('\t').nth(1))
                .collect();
            assert_eq!(ours.len(), tags.len(), "{name}: {listed}");
        }
    }
    for (name, tree) in manifest["trees"].as_object().expect("trees") {
        let name = name_of(name);
        let Some((head, snapshot)) = name.split_once('@') else {
            continue;
        };
        let mountpoint = value(server, head, "mountpoint");
        let root = Path::new(&mountpoint).join(".zfs/snapshot").join(snapshot);
        compare_received(&name, &root, tree.as_array().expect("a list"));
    }
}

/// Receives packages one after the other into one dataset, and compares after each.
fn received(names: &[&str]) {
    if !can_mount() || oracles::golden().is_none() {
        return;
    }
    let server = Server::start();
    pool(&server);
    for name in names {
        let (stream, manifest) = unpack(&server, name).expect("it is there");
        let is_forced = manifest["receive"]
            .as_str()
            .is_some_and(|command| command.contains(" -F "));
        let force = if is_forced { "-F" } else { "" };
        let mountpoint = server.text("mounted");
        let words = format!("zfs receive {force} -o mountpoint={mountpoint} tank/target");
        receive(&server, &words, &stream);
        compare(&server, &manifest, "tank/target");
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

macro_rules! packages {
    ($($test:ident: $($name:literal)*;)*) => {$(
        #[test]
        fn $test() {
            received(&[$($name),*]);
        }
    )*};
}

packages! {
    one_with_its_properties: "full_p";
    all_snapshots_between_two: "full" "incr_I";
    a_tree_and_what_changed_in_it: "R" "R_incr";
    a_tree_as_it_is_stored: "R_Lec";
    a_tree_with_holds: "Rc";
    access_lists: "acl";
    quotas: "quota_p";
}

#[test]
fn names_follow_from_options_and_refusals_say_why() {
    let server = Server::start();
    let Some((full, _)) = unpack(&server, "full") else {
        return;
    };
    let (difference, _) = unpack(&server, "incr_i").expect("it is there");
    pool(&server);
    let text = receive(&server, "zfs receive -v -u -d tank", &full);
    let first =
        "receiving full stream of plain/data@s1 into tank/data@s1\nreceived 3.98M stream in ";
    assert!(text.starts_with(first), "{text}");
    receive(&server, "zfs receive -u -e tank/data", &full);
    receive(&server, "zfs receive -u tank/exact@mine", &full);
    let text = receive(&server, "zfs receive -n -v tank/none", &full);
    assert_eq!(
        text,
        "would receive full stream of plain/data@s1 into tank/none@s1\n"
    );
    let listed = server.ok("zfs list -Hrt snapshot -o name tank");
    let expected = ["tank/data@s1", "tank/data/data@s1", "tank/exact@mine"];
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
    for (words, stream, why) in [
        (
            "zfs receive tank/exact",
            &full,
            "cannot receive new filesystem stream: destination 'tank/exact' exists\n\
             must specify -F to overwrite it",
        ),
        (
            "zfs receive -F tank/exact",
            &full,
            "cannot receive new filesystem stream: destination has snapshots (eg. \
             tank/exact@mine)\nmust destroy them",
        ),
        (
            "zfs receive tank/none",
            &difference,
            "cannot receive incremental stream: destination 'tank/none' does not exist",
        ),
        (
            "zfs receive tank/data@s1",
            &difference,
            "cannot restore to tank/data@s1: destination already exists",
        ),
        ("zfs receive -A tank/data", &full, "'tank/data'"),
    ] {
        let text = refused(&server, words, stream);
        assert!(text.contains(why), "{words}: {text}");
    }
    server.ok("zfs create -u tank/other");
    server.ok("zfs snapshot tank/other@a");
    let text = refused(&server, "zfs receive tank/other", &difference);
    let why = "most recent snapshot of tank/other does not\nmatch incremental source";
    assert!(text.contains(why), "{text}");
    // Changes are in the way, unless they may be given up.
    if can_mount() {
        let mountpoint = server.text("mounted");
        server.ok(&format!("zfs set mountpoint={mountpoint} tank/data"));
        server.command(&["zfs", "mount", "tank/data"]);
        std::fs::write(server.path("mounted/mine"), "mine").expect("a file");
        let text = refused(&server, "zfs receive tank/data", &difference);
        let why = "destination tank/data has been modified\nsince most recent snapshot";
        assert!(text.contains(why), "{text}");
        receive(&server, "zfs receive -F tank/data", &difference);
        // The mount shows what was received.
        assert!(!server.path("mounted/mine").exists());
        let listed = server.ok("zfs list -Ht snapshot -o name tank/data");
        assert_eq!(listed, "tank/data@s1\ntank/data@s2\n");
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

#[test]
fn an_interrupted_receive_is_given_up_or_goes_on() {
    let server = Server::start();
    let Some((partial, manifest)) = unpack(&server, "partial") else {
        return;
    };
    let (resumed, _) = unpack(&server, "resumed").expect("it is there");
    pool(&server);
    let text = refused(&server, "zfs receive -u tank/a", &partial);
    assert!(text.contains("incomplete stream"), "{text}");
    assert_eq!(server.ok("zfs list -Ho name"), "tank\n");
    for name in ["tank/a", "tank/b"] {
        refused(&server, &format!("zfs receive -s -u {name}"), &partial);
        let token = value(&server, name, "receive_resume_token");
        assert_eq!(
            dataset::ResumeToken::decode(&token),
            dataset::ResumeToken::decode(
                manifest["receive_resume_token"].as_str().expect("a token")
            )
        );
    }
    server.fails("zfs mount tank/a");
    server.fails("zfs snapshot tank/a@x");
    server.ok("zfs receive -A tank/a");
    assert_eq!(server.ok("zfs list -Ho name"), "tank\ntank/b\n");
    // It outlasts an import.
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    receive(&server, "zfs receive -s -u tank/b", &resumed);
    assert_eq!(value(&server, "tank/b", "receive_resume_token"), "-");
    let listed = server.ok("zfs list -Ht snapshot -o name tank/b");
    assert_eq!(listed, "tank/b@send\n");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: a partial receive goes with the dataset that it is a difference to, and has no name that
/// others could give it another of.
#[test]
fn a_partial_difference_goes_with_its_dataset() {
    let server = Server::start();
    let Some((full, _)) = unpack(&server, "full") else {
        return;
    };
    let (difference, _) = unpack(&server, "incr_i").expect("it is there");
    pool(&server);
    receive(&server, "zfs receive -u tank/a", &full);
    let bytes = std::fs::read(difference).expect("a stream");
    let cut = server.path("cut");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("a file");
    refused(&server, "zfs receive -s -u tank/a", &cut);
    let why = server.fails("zfs rename tank/a/%recv tank/b");
    assert!(why.contains("invalid character '%'"), "{why}");
    server.ok("zfs destroy -r tank/a");
    assert_eq!(server.ok("zfs list -Ho name"), "tank\n");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: what is received is encrypted as the options say, and in the clear only where they do not
/// ask for more (zfs-receive(8)).
#[test]
fn what_is_received_is_encrypted_as_asked() {
    let server = Server::start();
    pool(&server);
    let key = server.path("key");
    std::fs::write(&key, "a passphrase of some length").expect("a file");
    let location = format!("file://{}", key.display());
    let own = format!("-o encryption=on -o keyformat=passphrase -o keylocation={location}");
    server.ok("zfs create -u tank/plain");
    server.ok("zfs create -u tank/plain/below");
    server.ok("zfs snapshot -r tank/plain@a");
    let send = |words: &str| {
        let path = server.path(&words.replace([' ', '/'], "_"));
        let status = Command::new(MILLPOND)
            .args(words.split_whitespace())
            .env("MILLPOND_STATE", server.state())
            .stdout(std::fs::File::create(&path).expect("a file"))
            .status();
        assert!(status.expect("millpond runs").success(), "{words}");
        path
    };
    let tree = send("zfs send -R tank/plain@a");
    receive(&server, &format!("zfs receive -u {own} tank/root"), &tree);
    for (dataset, property, wanted) in [
        ("tank/root", "encryption", "aes-256-gcm"),
        ("tank/root", "encryptionroot", "tank/root"),
        ("tank/root", "keylocation", location.as_str()),
        ("tank/root", "keystatus", "available"),
        ("tank/root/below", "encryption", "aes-256-gcm"),
        ("tank/root/below", "encryptionroot", "tank/root"),
    ] {
        assert_eq!(
            value(&server, dataset, property),
            wanted,
            "{dataset} {property}"
        );
    }
    // With properties, that it is in the clear is one of them.
    let encryption = |dataset: &str| value(&server, dataset, "encryption");
    receive(&server, "zfs receive -u tank/root/clear", &tree);
    assert_eq!(encryption("tank/root/clear"), "off");
    receive(
        &server,
        "zfs receive -u -x encryption tank/root/kept",
        &tree,
    );
    assert_eq!(encryption("tank/root/kept"), "aes-256-gcm");
    assert_eq!(encryption("tank/root/kept/below"), "aes-256-gcm");
    let one = send("zfs send tank/plain@a");
    receive(&server, "zfs receive -u tank/root/one", &one);
    assert_eq!(encryption("tank/root/one"), "aes-256-gcm");
    let raw = send("zfs send -w tank/root@a");
    let words = format!("zfs receive -u -o keylocation={location} tank/raw");
    receive(&server, &words, &raw);
    assert_eq!(value(&server, "tank/raw", "keylocation"), location);
    assert_eq!(value(&server, "tank/raw", "keystatus"), "unavailable");
    // What is there already is not encrypted by that, and a clone is what its origin is.
    server.ok("zfs create -u tank/there");
    server.ok("zfs clone tank/plain@a tank/clone");
    server.ok("zfs snapshot tank/clone@b");
    let clone = send("zfs send -i tank/plain@a tank/clone@b");
    for (words, stream, why) in [
        (
            "zfs receive -u -F -x encryption tank/there",
            &tree,
            "the dataset is there already",
        ),
        (
            "zfs receive -u -o encryption=off -o origin=tank/plain@a tank/x",
            &clone,
            "a clone is encrypted as its origin",
        ),
        (
            "zfs receive -u -o encryption=on -o keyformat=passphrase tank/x",
            &tree,
            "cannot be typed in",
        ),
        (
            "zfs receive -u -o encryption=on tank/x",
            &tree,
            "Keyformat required",
        ),
        (
            "zfs receive -u -x encryption tank/x",
            &raw,
            "a raw stream brings what it says",
        ),
    ] {
        let text = refused(&server, words, stream);
        assert!(text.contains(why), "{words}: {text}");
    }
    let top = send("zfs send -R -X tank/plain/below tank/plain@a");
    receive(&server, "zfs receive -u tank/top", &top);
    let text = server.fails("zfs send -n -i tank/plain@a -i tank/plain@a tank/plain@a");
    assert!(text.contains("-i or -I once"), "{text}");
    let listed = server.ok("zfs list -Ho name -r tank/top");
    assert_eq!(listed, "tank/top\n");
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -l -d {} tank", server.text("disks")));
    assert_eq!(value(&server, "tank/root/kept", "keystatus"), "available");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: what a package destroys is below what it is received into. With `-d` and `-e` that is not
/// what was asked for, beside which others may have anything.
#[test]
fn a_package_leaves_what_is_beside_it() {
    let server = Server::start();
    let Some((first, _)) = unpack(&server, "R") else {
        return;
    };
    let (second, _) = unpack(&server, "R_incr").expect("it is there");
    for (option, pool) in [("-d", "one"), ("-e", "two")] {
        let disk = &server.disks(1, 512 << 20)[0];
        server.ok(&format!("zpool create -O mountpoint=none {pool} {disk}"));
        receive(&server, &format!("zfs receive -u {option} {pool}"), &first);
        server.ok(&format!("zfs create -u {pool}/home"));
        server.ok(&format!("zfs snapshot {pool}/home@mine"));
        let before = server.ok(&format!("zfs list -Hrt all -o name {pool}"));
        receive(
            &server,
            &format!("zfs receive -u {option} -F {pool}"),
            &second,
        );
        let after = server.ok(&format!("zfs list -Hrt all -o name {pool}"));
        assert_ne!(before, after);
        assert!(
            after.contains(&format!("{pool}/home@mine\n")),
            "{before}\n{after}"
        );
        server.ok(&format!("zpool destroy {pool}"));
    }
}

/// Goal: the rest of an interrupted receive goes with the filesystem that it was for, and what is
/// received into is not in the way of snapshots of all.
#[test]
fn a_filesystem_goes_with_the_rest_of_a_receive() {
    let server = Server::start();
    let Some((partial, _)) = unpack(&server, "partial") else {
        return;
    };
    pool(&server);
    server.ok("zfs create -u tank/target");
    refused(&server, "zfs receive -s -F -u tank/target", &partial);
    assert_ne!(value(&server, "tank/target", "receive_resume_token"), "-");
    refused(&server, "zfs receive -s -u tank/new", &partial);
    server.ok("zfs snapshot -r tank@all");
    let listed = server.ok("zfs list -Hrt snapshot -o name tank");
    assert_eq!(listed, "tank@all\ntank/target@all\n");
    server.ok("zfs destroy -r tank/target");
    assert_eq!(server.ok("zfs list -Ho name"), "tank\ntank/new\n");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Sends into a file.
pub fn send(server: &Server, words: &str, name: &str) -> PathBuf {
    let file = server.path(name);
    let output = Command::new(MILLPOND)
        .args(words.split_whitespace())
        .env("MILLPOND_STATE", server.state())
        .stdin(Stdio::null())
        .stdout(Stdio::from(std::fs::File::create(&file).expect("a file")))
        .stderr(Stdio::piped())
        .output()
        .expect("millpond runs");
    assert!(
        output.status.success(),
        "{words}:\n{}\n{}",
        text_of(&output),
        server.log()
    );
    file
}

/// Streams that we send are whole in the eyes of OpenZFS's `zstream` and of our own command.
pub fn accepted(server: &Server, stream: &Path) -> String {
    let path = stream.to_string_lossy();
    if need("zstream", finds("zstream")) {
        let theirs = run("zstream", &["dump", &path]);
        assert!(theirs.contains("SUMMARY"), "{theirs}");
        assert!(!theirs.contains("incorrect"), "{theirs}");
    }
    server.ok(&format!("stream dump {path}"))
}

#[test]
fn trees_are_sent_with_their_clones_and_what_changed_in_them() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let root = server.text("mounted");
    server.ok(&format!(
        "zfs create -o mountpoint={root} -o compression=zstd tank/src"
    ));
    server.ok("zfs create -o recordsize=1M -o user:note=here tank/src/big");
    server.ok("zfs create -V 16M tank/src/volume");
    let write = |name: &str, seed: u8, length: usize| {
        let bytes: Vec<u8> = (0..length).map(|at| (at / 700) as u8 ^ seed).collect();
        std::fs::write(Path::new(&root).join(name), bytes).expect("a file");
    };
    for file in 0..200u8 {
        write(&format!("f{file}"), file, usize::from(file) * 3000);
    }
    write("big/a", 1, 5 << 20);
    server.ok("zfs snapshot -r tank/src@one");
    write("f7", 99, 500_000);
    std::fs::remove_file(Path::new(&root).join("f100")).expect("removed");
    for file in 0..60u8 {
        std::fs::remove_file(Path::new(&root).join(format!("f{file}"))).expect("removed");
        write(&format!("g{file}"), file, usize::from(file) * 9000 + 1);
    }
    write("big/b", 2, 3 << 20);
    server.ok("zfs snapshot -r tank/src@two");
    server.ok("zfs set quota=400M tank/src/big");
    write("big/a", 3, 2 << 20);
    server.ok("zfs snapshot -r tank/src@three");
    let plan = server.ok("zfs send -R -n -v tank/src@two");
    assert!(
        plan.starts_with("full send of tank/src@one estimated size is "),
        "{plan}"
    );
    assert!(
        plan.contains("send from @one to tank/src/big@two estimated size is "),
        "{plan}"
    );
    assert!(plan.contains("total estimated size is "), "{plan}");
    let plan = server.ok("zfs send -n -P -i @one tank/src@two");
    assert!(
        plan.starts_with("incremental\ttank/src@one\ttank/src@two\t"),
        "{plan}"
    );
    let same = |copy: &str| {
        for snapshot in ["one", "two", "three"] {
            for below in ["", "/big"] {
                let at = |name: &str| {
                    let mountpoint = value(&server, name, "mountpoint");
                    format!("{mountpoint}/.zfs/snapshot/{snapshot}")
                };
                let (ours, theirs) = (
                    at(&format!("tank/src{below}")),
                    at(&format!("{copy}{below}")),
                );
                run("diff", &["-r", &ours, &theirs]);
            }
            let guid = |name: &str| value(&server, &format!("{name}@{snapshot}"), "guid");
            assert_eq!(guid("tank/src/volume"), guid(&format!("{copy}/volume")));
        }
        assert_eq!(value(&server, &format!("{copy}/big"), "user:note"), "here");
        assert_eq!(
            value(&server, &format!("{copy}/big"), "quota"),
            (400u64 << 20).to_string()
        );
        assert_eq!(value(&server, copy, "compression"), "zstd");
    };
    for (name, options) in [("plain", ""), ("stored", "-L -e -c")] {
        let full = send(
            &server,
            &format!("zfs send -R {options} tank/src@two"),
            "full",
        );
        accepted(&server, &full);
        let copy = format!("tank/{name}");
        let at = server.text(name);
        receive(
            &server,
            &format!("zfs receive -o mountpoint={at} {copy}"),
            &full,
        );
        let words = format!("zfs send -R {options} -i @two tank/src@three");
        let difference = send(&server, &words, "difference");
        let dumped = accepted(&server, &difference);
        assert!(dumped.contains("toname = tank/src/big@three"), "{dumped}");
        receive(&server, &format!("zfs receive -F {copy}"), &difference);
        same(&copy);
    }
    // From a bookmark's place, and all snapshots between two.
    let first = send(&server, "zfs send tank/src/big@one", "first");
    receive(&server, "zfs receive -u tank/one", &first);
    let rest = send(&server, "zfs send -I @one tank/src/big@three", "rest");
    receive(&server, "zfs receive -u tank/one", &rest);
    let listed = server.ok("zfs list -Hrt snapshot -o name tank/one");
    assert_eq!(listed, "tank/one@one\ntank/one@two\ntank/one@three\n");
    let text = server.fails("zfs send -i @three tank/src/big@one");
    assert!(text.contains("not an earlier snapshot"), "{text}");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

#[test]
fn what_was_interrupted_is_sent_from_there() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let root = server.text("mounted");
    server.ok(&format!("zfs create -o mountpoint={root} tank/src"));
    for file in 0..40u32 {
        let bytes: Vec<u8> = (0..300_000u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ file as u8)
            .collect();
        std::fs::write(format!("{root}/f{file}"), bytes).expect("a file");
    }
    server.ok("zfs snapshot tank/src@a");
    let whole = send(&server, "zfs send -c tank/src@a", "whole");
    let bytes = std::fs::read(&whole).expect("a stream");
    let cut = server.path("cut");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("half of it");
    refused(&server, "zfs receive -s -u tank/copy", &cut);
    let token = value(&server, "tank/copy", "receive_resume_token");
    let told = server.ok(&format!("stream token {token}"));
    assert!(told.contains("toname = tank/src@a"), "{told}");
    assert!(told.contains("compressok = 1"), "{told}");
    let rest = send(&server, &format!("zfs send -t {token}"), "rest");
    let length = |path: &Path| std::fs::metadata(path).expect("a stream").len();
    assert!(
        length(&rest) < length(&whole) * 2 / 3,
        "it begins in the middle"
    );
    accepted(&server, &rest);
    let at = server.text("copy");
    receive(
        &server,
        &format!("zfs receive -s -o mountpoint={at} tank/copy"),
        &rest,
    );
    run("diff", &["-r", &root, &at]);
    let text = server.fails(&format!("zfs send -t {}", &token[..token.len() - 2]));
    assert!(text.contains("corrupt"), "{text}");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: a difference begins with the snapshot that was named, not with one of what is sent that
/// has the same short name.
#[test]
fn a_difference_begins_with_the_snapshot_that_was_named() {
    let server = Server::start();
    pool(&server);
    server.ok("zfs create -u tank/fs");
    server.ok("zfs create -u tank/other");
    server.ok("zfs snapshot tank/fs@s");
    server.ok("zfs snapshot tank/other@s");
    server.ok("zfs clone -u tank/fs@s tank/c");
    server.ok("zfs create -u tank/c/d");
    server.ok("zfs snapshot -r -o user:note=here tank/c@s");
    server.ok("zfs snapshot -r tank/c@x");
    // Names of what is sent, each with what it is the difference to.
    let planned = |words: &str| -> Vec<String> {
        let plan = server.ok(&format!("zfs send -n -P {words}"));
        let rows = plan
            .lines()
            .map(|line| line.split('\t').collect::<Vec<_>>());
        let named = rows.filter_map(|row| match row[0] {
            "incremental" => Some(format!("{} {}", row[1], row[2])),
            "full" => Some(row[1].to_owned()),
            _ => None,
        });
        named.collect()
    };
    let of_top = ["tank/fs@s tank/c@s", "tank/c@s tank/c@x"];
    let of_child = ["tank/c/d@s", "tank/c/d@s tank/c/d@x"];
    assert_eq!(planned("-i @s tank/c@x"), ["tank/c@s tank/c@x"]);
    assert_eq!(planned("-i tank/fs@s tank/c@x"), ["tank/fs@s tank/c@x"]);
    assert_eq!(planned("-I tank/fs@s tank/c@x"), of_top);
    let both = planned("-R -i @s tank/c@x");
    assert_eq!(both, ["tank/c@s tank/c@x", "tank/c/d@s tank/c/d@x"]);
    let both = planned("-R -i tank/fs@s tank/c@x");
    assert_eq!(both, [of_top, of_child].concat());
    for (options, why) in [
        ("-i", "not an earlier snapshot"),
        ("-p -i", "not an earlier snapshot"),
        ("-I", "must be in same filesystem"),
        ("-R -i", "must be in same filesystem"),
    ] {
        let text = server.fails(&format!("zfs send {options} tank/other@s tank/c@x"));
        assert!(text.contains(why), "{options}: {text}");
    }
    let text = server.fails("zfs send -R -i @x tank/c@s");
    assert!(text.contains("not an earlier snapshot"), "{text}");

    let stream = send(&server, "zfs send -p -I tank/fs@s tank/c@x", "stream");
    let dumped = accepted(&server, &stream);
    let mut lines = dumped.lines().map(str::trim);
    assert!(!lines.any(|line| line.starts_with("fromsnap")), "{dumped}");
    receive(&server, "zfs receive -u tank/copy", &stream);
    assert_eq!(value(&server, "tank/copy", "origin"), "tank/fs@s");
    assert_eq!(value(&server, "tank/copy@s", "user:note"), "here");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: of the snapshots between two, `-R -i` sends those that clones in the package are made of.
#[test]
fn a_difference_of_a_tree_has_the_origins_of_its_clones() {
    let server = Server::start();
    pool(&server);
    server.ok("zfs create -u tank/t");
    server.ok("zfs create -u tank/t/fs");
    server.ok("zfs snapshot -r tank/t@from");
    let first = send(&server, "zfs send -R tank/t@from", "first");
    receive(&server, "zfs receive -u tank/copy", &first);
    for between in ["a", "mid", "b"] {
        server.ok(&format!("zfs snapshot tank/t/fs@{between}"));
    }
    server.ok("zfs clone -u tank/t/fs@mid tank/t/c");
    // It is not in the package.
    server.ok("zfs clone -u tank/t/fs@b tank/elsewhere");
    server.ok("zfs snapshot -r tank/t@to");
    let second = send(&server, "zfs send -R -i @from tank/t@to", "second");
    accepted(&server, &second);
    receive(&server, "zfs receive -u tank/copy", &second);
    let listed = server.ok("zfs list -Hrt snapshot -o name tank/copy");
    let wanted = [
        "tank/copy@from",
        "tank/copy@to",
        "tank/copy/c@to",
        "tank/copy/fs@from",
        "tank/copy/fs@mid",
        "tank/copy/fs@to",
    ];
    assert_eq!(listed.lines().collect::<Vec<_>>(), wanted);
    assert_eq!(value(&server, "tank/copy/c", "origin"), "tank/copy/fs@mid");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: what was interrupted goes on from any source that a send begins with: an old snapshot or a
/// bookmark of the filesystem that a clone is made of.
#[test]
fn a_clone_that_was_interrupted_is_sent_from_there() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let (root, of_clone) = (server.text("mounted"), server.text("clone"));
    server.ok(&format!("zfs create -o mountpoint={root} tank/fs"));
    let write = |at: &str, seed: u8| {
        let bytes: Vec<u8> = (0..1_000_000u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed)
            .collect();
        std::fs::write(format!("{at}/f{seed}"), bytes).expect("a file");
    };
    write(&root, 0);
    server.ok("zfs snapshot tank/fs@old");
    server.ok("zfs snapshot tank/fs@gone");
    server.ok("zfs bookmark tank/fs@gone tank/fs#mark");
    // The receiver has what is not here any more.
    let whole = send(&server, "zfs send tank/fs@gone", "whole");
    receive(&server, "zfs receive -u tank/there", &whole);
    server.ok("zfs destroy tank/fs@gone");
    write(&root, 1);
    server.ok("zfs snapshot tank/fs@s");
    server.ok(&format!(
        "zfs clone -o mountpoint={of_clone} tank/fs@s tank/c"
    ));
    for seed in 2..6 {
        write(&of_clone, seed);
    }
    server.ok("zfs snapshot tank/c@x");
    for (number, from) in ["tank/fs@old", "tank/fs#mark"].into_iter().enumerate() {
        let copy = format!("tank/copy{number}");
        let all = send(&server, &format!("zfs send -i {from} tank/c@x"), "all");
        let bytes = std::fs::read(&all).expect("a stream");
        let cut = server.path("cut");
        std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("half of it");
        refused(&server, &format!("zfs receive -s -u {copy}"), &cut);
        let token = value(&server, &copy, "receive_resume_token");
        let rest = send(&server, &format!("zfs send -t {token}"), "rest");
        let at = server.text(&format!("at{number}"));
        receive(
            &server,
            &format!("zfs receive -s -o mountpoint={at} {copy}"),
            &rest,
        );
        run("diff", &["-r", &of_clone, &at]);
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: the real OpenZFS receives what we send, and we receive what it sends, by turns. Method: a
/// full stream and a difference of ours go there, as they are and as they are stored, with `-R`; it
/// changes files, and its difference comes back on top of ours. Contents are compared by hashes.
#[test]
fn streams_go_to_openzfs_and_back() {
    let Some(peer) = oracles::Peer::find() else {
        return;
    };
    if !can_mount() {
        return;
    }
    let server = Server::start();
    pool(&server);
    let root = server.text("mounted");
    server.ok(&format!(
        "zfs create -o mountpoint={root} -o compression=zstd tank/src"
    ));
    server.ok("zfs create -o recordsize=1M tank/src/big");
    let write = |name: &str, seed: u8, length: usize| {
        let bytes: Vec<u8> = (0..length).map(|at| (at / 900) as u8 ^ seed).collect();
        std::fs::write(Path::new(&root).join(name), bytes).expect("a file");
    };
    for file in 0..100u8 {
        write(&format!("f{file}"), file, usize::from(file) * 4000);
    }
    write("big/a", 1, 5 << 20);
    std::os::unix::fs::symlink("x".repeat(900), Path::new(&root).join("link")).expect("a link");
    server.ok("zfs snapshot -r tank/src@one");
    for file in 0..40u8 {
        std::fs::remove_file(Path::new(&root).join(format!("f{file}"))).expect("removed");
        write(&format!("g{file}"), file, usize::from(file) * 9000 + 1);
    }
    write("f77", 5, 3);
    server.ok("zfs snapshot -r tank/src@two");
    let hash = |path: &str| {
        let script = format!("cd {path} && find . -type f | sort | xargs sha256sum | sha256sum");
        let words = run("sh", &["-c", &script]);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let disk = server.path("peer");
    let file = std::fs::File::create(&disk).and_then(|file| file.set_len(768 << 20));
    file.expect("a disk");
    let mut disks = vec![format!("{},d0", disk.display())];
    let mut script = "set -e\nzpool create -O mountpoint=/px -O atime=off peer \
                      /dev/disk/peer/d0\n"
        .to_owned();
    for (name, options) in [("plain", ""), ("stored", "-L -e -c")] {
        for (number, from) in ["", "-i @one"].into_iter().enumerate() {
            let to = ["one", "two"][number];
            let words = format!("zfs send -R {options} {from} tank/src@{to}");
            let stream = send(&server, &words, &format!("{name}{number}"));
            let length = std::fs::metadata(&stream).expect("a stream").len();
            let file = std::fs::File::options()
                .write(true)
                .open(&stream)
                .expect("a stream");
            file.set_len(length.next_multiple_of(1 << 20))
                .expect("whole sectors");
            disks.push(format!("{},{name}{number}", stream.display()));
            script += &format!(
                "head -c {length} /dev/disk/peer/{name}{number} | \
                 zfs receive -F -x mountpoint peer/{name}\n"
            );
        }
    }
    let out = server.path("out");
    let file = std::fs::File::create(&out).and_then(|file| file.set_len(64 << 20));
    file.expect("room for a stream");
    disks.push(format!("{},out", out.display()));
    script += "for c in plain stored; do cd /px/$c; echo HASH $(find . -type f | sort | \
               xargs sha256sum | sha256sum); cd /; done\n\
               zpool scrub -w peer; zpool status peer | grep -q 'No known data errors'\n\
               cd /px/stored; rm f9*; head -c 700000 /dev/urandom > new; cp new big/new; cd /\n\
               zfs snapshot -r peer/stored@three\n\
               echo HASH $(cd /px/stored; find . -type f | sort | xargs sha256sum | sha256sum)\n\
               zfs send -R -L -c -i @two peer/stored@three > /tmp/stream\n\
               echo LENGTH $(stat -c %s /tmp/stream)\n\
               dd if=/tmp/stream of=/dev/disk/peer/out bs=1M conv=notrunc 2>/dev/null\n\
               sync; zpool export peer\n";
    let told = peer.run(&disks, &script);
    let after = |word: &str| -> Vec<String> {
        let lines = told.lines().filter_map(|line| line.strip_prefix(word));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    let hashes = after("HASH ");
    let ours = hash(&root);
    assert_eq!(hashes[..2], [ours.clone(), ours], "{told}");
    // Back, onto what both have.
    let length: usize = after("LENGTH ")[0].parse().expect("a number");
    let bytes = std::fs::read(&out).expect("a stream");
    std::fs::write(server.path("back"), &bytes[..length]).expect("a stream");
    receive(&server, "zfs receive -F tank/src", &server.path("back"));
    assert_eq!(hash(&root), hashes[2]);
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
