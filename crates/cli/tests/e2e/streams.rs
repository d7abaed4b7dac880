//! Goal: `zfs receive` and `zfs send` do what OpenZFS's do. Method: packages of streams that
//! OpenZFS
//! made (shared/golden/README.md) are received, and what is there then is compared with their
//! manifests: datasets, GUIDs, properties that were sent, and the trees of all snapshots through
//! mounts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{MILLPOND, Server, can_mount, run, text_of, zdb_is_clean};
use crate::walk::compare_received;

/// A stream of the golden set, unpacked; nothing where there is none.
fn unpack(server: &Server, name: &str) -> Option<(PathBuf, Value)> {
    let streams = oracles::golden()?.join("streams");
    let file = server.path(&format!("{name}.zstream"));
    let packed = streams.join(format!("{name}.zstream.zst"));
    let (packed, out) = (packed.to_string_lossy(), file.to_string_lossy());
    run("zstd", &["-qdf", &packed, "-o", &out]);
    let manifest = std::fs::read(streams.join(format!("{name}.json"))).expect("a manifest");
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

fn receive(server: &Server, words: &str, input: &Path) -> String {
    let output = with_file(server, words, input);
    assert!(
        output.status.success(),
        "{words}:\n{}\n{}",
        text_of(&output),
        server.log()
    );
    text_of(&output)
}

fn refused(server: &Server, words: &str, input: &Path) -> String {
    let output = with_file(server, words, input);
    assert!(!output.status.success(), "{words}:\n{}", text_of(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn pool(server: &Server) {
    let disk = &server.disks(1, 512 << 20)[0];
    server.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
}

fn value(server: &Server, dataset: &str, property: &str) -> String {
    let words = format!("zfs get -Hp -o value {property} {dataset}");
    server.ok(&words).trim_end().to_owned()
}

/// Compares what is below a dataset with a manifest.
fn compare(server: &Server, manifest: &Value, target: &str) {
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
            "cannot receive: destination 'tank/exact' exists\nmust specify -F to overwrite it",
        ),
        (
            "zfs receive -F tank/exact",
            &full,
            "cannot receive: destination has snapshots (eg. tank/exact@mine)\nmust destroy them",
        ),
        (
            "zfs receive tank/none",
            &difference,
            "cannot receive incremental stream: destination 'tank/none' does not exist",
        ),
        (
            "zfs receive tank/data@s1",
            &difference,
            "cannot receive incremental stream: destination snapshot 'tank/data@s1' exists",
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
