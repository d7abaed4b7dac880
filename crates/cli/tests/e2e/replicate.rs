//! Goal: `millpond replicate` brings to the target what the source has, again and again, and
//! destroys nothing there that it did not bring. Method: two pools of one server, and a second
//! server behind an `ssh` that runs its words in a shell here; GUIDs and trees are compared.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::harness::{MILLPOND, Server, can_mount, run, text_of, zdb_is_clean};

/// Makes a pool on a disk of its own.
pub fn pool(server: &Server, name: &str, disk: &str) {
    server.ok(&format!("zpool create -O mountpoint=none {name} {disk}"));
}

/// A server with two pools, `tank` and `backup`, and a filesystem `tank/src`, mounted.
fn two_pools() -> Server {
    let server = Server::start();
    make_pools(&server);
    server
}

pub fn make_pools(server: &Server) {
    let disks = server.disks(2, 512 << 20);
    pool(server, "tank", &disks[0]);
    pool(server, "backup", &disks[1]);
    let root = server.text("mounted");
    server.ok(&format!("zfs create -o mountpoint={root} tank/src"));
}

/// Writes a file whose blocks no compression makes smaller.
pub fn write(server: &Server, name: &str, seed: u32, length: usize) {
    let mut word = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        word as u8
    };
    let bytes: Vec<u8> = (0..length).map(|_| next()).collect();
    std::fs::write(server.path("mounted").join(name), bytes).expect("a file");
}

pub fn value(server: &Server, dataset: &str, property: &str) -> String {
    let words = format!("zfs get -Hp -o value {property} {dataset}");
    server.ok(&words).trim_end().to_owned()
}

/// Names of snapshots of a dataset, after the `@`, oldest first.
pub fn snapshots(server: &Server, dataset: &str) -> Vec<String> {
    let text = server.ok(&format!(
        "zfs list -Hp -t snapshot -o name -s createtxg {dataset}"
    ));
    let names = text.lines().filter_map(|name| name.split_once('@'));
    names.map(|(_, short)| short.to_owned()).collect()
}

/// What `--list --json` tells of a replication.
pub fn listed(server: &Server, name: &str) -> Value {
    let all: Value = serde_json::from_str(&server.ok("replicate --list --json")).expect("JSON");
    let mut all = all["replications"].as_array().expect("a list").iter();
    let found = all.find(|one| one["name"] == name);
    found.cloned().unwrap_or(Value::Null)
}

pub fn exported_and_clean(server: &Server) {
    for pool in ["tank", "backup"] {
        server.ok(&format!("zpool export {pool}"));
        zdb_is_clean(&server.path("disks"), pool);
    }
}

/// Demands that a replica has the same snapshots as its source, and the same files in the last one.
pub fn same(server: &Server, source: &str, other: &Server, copy: &str, is_files: bool) {
    let names = snapshots(server, source);
    assert_eq!(names, snapshots(other, copy));
    for name in &names {
        let guid = |server, dataset| value(server, &format!("{dataset}@{name}"), "guid");
        assert_eq!(guid(server, source), guid(other, copy), "{name}");
    }
    if !is_files {
        return;
    }
    let below = copy.rsplit('/').next().expect("a name");
    let at = other.text(&format!("copy-{below}"));
    // What was there before is looked at where it was.
    other.ok(&format!("zfs set mountpoint={at} {copy}"));
    other.command(&["zfs", "mount", copy]);
    let name = names.last().expect("a snapshot");
    let root = value(server, source, "mountpoint");
    let tree = |root: &str| format!("{root}/.zfs/snapshot/{name}");
    run("diff", &["-r", &tree(&root), &tree(&at)]);
    other.ok(&format!("zfs unmount {copy}"));
}

#[test]
fn a_tree_follows_its_source_and_nothing_is_lost_at_the_target() {
    if !can_mount() {
        return;
    }
    let server = two_pools();
    server.ok("zfs create tank/src/a");
    server.ok("zfs create -V 8M -o user:note=here tank/src/v");
    server.ok("zfs set millpond:iscsi=off tank/src");
    write(&server, "one", 1, 300_000);
    write(&server, "a/two", 2, 300_000);
    server.ok("zfs snapshot -r tank/src@monday");
    write(&server, "three", 3, 100_000);
    let said = server.ok("replicate -r tank/src backup/copy");
    assert!(said.starts_with("tank-src: "), "{said}");
    same(&server, "tank/src", &server, "backup/copy", true);
    same(&server, "tank/src/a", &server, "backup/copy/a", true);
    same(&server, "tank/src/v", &server, "backup/copy/v", false);
    assert_eq!(snapshots(&server, "backup/copy").len(), 2);
    for (dataset, property, wanted) in [
        ("backup/copy/a", "readonly", "on"),
        ("backup/copy/a", "canmount", "noauto"),
        ("backup/copy/v", "readonly", "on"),
        ("backup/copy/v", "user:note", "here"),
        ("backup/copy", "millpond:iscsi", "-"),
        ("backup/copy/v", "millpond:iscsi", "-"),
    ] {
        assert_eq!(value(&server, dataset, property), wanted, "{dataset}");
    }
    // Who asks again is told how.
    let said = server.fails("replicate -r tank/src backup/copy");
    assert!(said.contains("--run tank-src"), "{said}");

    // Datasets come and go, a clone and snapshots of others among them.
    server.ok("zfs destroy -r tank/src/a");
    server.ok("zfs create -p tank/src/new/deep");
    server.ok("zfs clone tank/src@monday tank/src/clone");
    write(&server, "new/deep/four", 4, 200_000);
    write(&server, "clone/five", 5, 50_000);
    server.ok("zfs snapshot tank/src@tuesday");
    server.ok("replicate --run tank-src");
    same(&server, "tank/src", &server, "backup/copy", true);
    for below in ["new", "new/deep", "clone"] {
        let (ours, theirs) = (format!("tank/src/{below}"), format!("backup/copy/{below}"));
        same(&server, &ours, &server, &theirs, true);
    }
    assert_eq!(
        value(&server, "backup/copy/clone", "origin"),
        "backup/copy@monday"
    );
    let told = listed(&server, "tank-src");
    assert_eq!(told["last"]["state"], "finished", "{told}");
    assert_eq!(
        told["last"]["notes"][0]["gone"]["target"], "backup/copy/a",
        "{told}"
    );
    assert_eq!(snapshots(&server, "backup/copy/a").len(), 2);
    assert!(
        server
            .ok("replicate --list")
            .contains("'backup/copy/a' stays")
    );

    // The source may lose all of its snapshots: bookmarks know what is at the target.
    let names = snapshots(&server, "tank/src").join(",");
    server.ok(&format!("zfs destroy -d tank/src@{names}"));
    write(&server, "six", 6, 1000);
    server.ok("replicate --run tank-src");
    let told = listed(&server, "tank-src");
    let sent = told["last"]["bytes"].as_u64().expect("a number");
    assert!(sent > 0 && sent < 200_000, "a difference: {told}");
    assert!(snapshots(&server, "backup/copy").contains(&"monday".to_owned()));

    // Somebody's snapshot at the target is in nobody's way, and stays.
    server.ok("zfs snapshot backup/copy/new@mine");
    write(&server, "new/deep/seven", 7, 1000);
    write(&server, "new/eight", 8, 1000);
    server.ok("replicate --run tank-src");
    assert!(snapshots(&server, "backup/copy/new").contains(&"mine".to_owned()));
    server.ok("zfs destroy backup/copy/new@mine");
    same(&server, "tank/src/new", &server, "backup/copy/new", true);
    // Changes of its files are, of this dataset alone.
    server.ok("zfs set readonly=off backup/copy/new");
    server.ok("zfs mount backup/copy/new");
    std::fs::write(server.path("copy-new/mine"), "mine").expect("a file");
    write(&server, "new/deep/nine", 9, 1000);
    let said = server.fails("replicate --run tank-src");
    assert!(
        said.contains("destination backup/copy/new has been modified"),
        "{said}"
    );
    assert_eq!(
        std::fs::read_to_string(server.path("copy-new/mine")).expect("mine"),
        "mine"
    );
    assert!(server.ok("replicate --list").contains("has been modified"));
    same(
        &server,
        "tank/src/new/deep",
        &server,
        "backup/copy/new/deep",
        true,
    );
    server.ok("zfs snapshot backup/copy/new@mine");
    let said = server.fails("replicate --run tank-src");
    assert!(
        said.contains("destination backup/copy/new has been modified"),
        "{said}"
    );
    // Its owner gives them up.
    let ours = snapshots(&server, "backup/copy/new");
    let last = ours
        .iter()
        .rev()
        .find(|name| *name != "mine")
        .expect("a snapshot");
    server.ok(&format!("zfs rollback -r backup/copy/new@{last}"));
    server.ok("replicate --run tank-src");
    same(&server, "tank/src/new", &server, "backup/copy/new", true);
    exported_and_clean(&server);
}

/// Goal: nothing that is there already is taken for a replica, and nonsense is refused.
#[test]
fn what_is_in_the_way_is_named() {
    let server = Server::start();
    let disks = server.disks(2, 512 << 20);
    pool(&server, "tank", &disks[0]);
    pool(&server, "backup", &disks[1]);
    server.ok("zfs create -u tank/src");
    server.ok("zfs create -u backup/there");
    for (words, why) in [
        ("replicate tank/src tank/src/below", "one below the other"),
        ("replicate tank/src tank/src", "one below the other"),
        ("replicate tank/none backup/x", "tank/none"),
        ("replicate tank/src@a backup/x", "is a snapshot"),
        ("replicate tank/src nowhere/x", "no pool 'nowhere'"),
        ("replicate tank/src https://host", "names no dataset"),
        (
            "replicate tank/src -oProxyCommand=x@h:tank",
            "unexpected argument",
        ),
        ("replicate tank/src backup/x --keep yearly=1", "hourly=24"),
        ("replicate tank/src backup/x --name a/b", "letters, digits"),
        ("replicate --run nothing", "no replication 'nothing'"),
        ("replicate --remove nothing", "no replication 'nothing'"),
        ("replicate tank/src", "TARGET"),
    ] {
        let said = server.fails(words);
        assert!(said.contains(why), "{words}: {said}");
    }
    // Nothing is kept of one that is refused at once, and it can be made when that is mended.
    for options in ["", " --every 1h"] {
        let words = format!("replicate tank/src backup/there --name r{options}");
        let said = server.fails(&words);
        assert!(said.contains("'backup/there' is there already"), "{said}");
    }
    server.ok("zfs snapshot backup/there@others");
    let said = server.fails("replicate tank/src backup/there --name r");
    assert!(said.contains("'others' is the most recent one"), "{said}");
    assert_eq!(server.ok("replicate --list -H"), "");
    assert_eq!(snapshots(&server, "tank/src"), [""; 0]);
    assert_eq!(snapshots(&server, "backup/there"), ["others"]);
    // One whose first run fails later is there, and its snapshot waits.
    let said = server.fails("replicate tank/src backup/none/there --name r");
    assert!(said.contains("'--remove r' forgets it"), "{said}");
    assert_eq!(snapshots(&server, "tank/src").len(), 1);
    server.ok("replicate --remove r");
    server.ok("zfs destroy -r backup/there");
    server.ok("replicate tank/src backup/there --name r");
    let said = server.fails("replicate tank/src backup/there --name other");
    assert!(
        said.contains("its target is that of replication 'r'"),
        "{said}"
    );
    let ours = snapshots(&server, "tank/src");
    assert_eq!(snapshots(&server, "backup/there"), ours);
    // Where it goes to is nobody else's business.
    let found = std::fs::metadata(server.state().join("replications.json")).expect("a file");
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    server.ok("replicate --remove r");
    assert_eq!(snapshots(&server, "backup/there"), ours);
    exported_and_clean(&server);
}

/// Goal: a server that is killed in the middle of a run goes on where it was, by itself.
#[test]
fn a_run_goes_on_where_the_server_was_killed() {
    if !can_mount() {
        return;
    }
    let mut server = two_pools();
    const BYTES: usize = 48 << 20;
    write(&server, "big", 1, BYTES);
    server.ok("zpool sync tank");
    let mut command = server.begin(&["replicate", "tank/src", "backup/copy", "--limit", "8M"]);
    let sent = |server: &Server| {
        let told = listed(server, "tank-src");
        told["job"]["progress"]["done"].as_u64().unwrap_or(0)
    };
    server.wait_until("half of it is sent", || sent(&server) > BYTES as u64 / 2);
    server.ok("zpool sync backup");
    server.kill();
    let ended = command.wait().expect("it ends");
    assert!(!ended.success());
    server.launch(&["daemon"]);
    server.wait_until("the run is done", || {
        listed(&server, "tank-src")["last"]["state"] == "finished"
    });
    let told = listed(&server, "tank-src");
    assert_eq!(told["last"]["is_resumed"], true, "{told}");
    let rest = told["last"]["bytes"].as_u64().expect("a number");
    assert!(rest < BYTES as u64 * 3 / 4, "{rest} bytes again");
    // The snapshot that had been taken, and no other.
    assert_eq!(snapshots(&server, "tank/src").len(), 1);
    same(&server, "tank/src", &server, "backup/copy", true);
    exported_and_clean(&server);
}

/// Goal: a series that breaks off behind a snapshot that came through goes on, even if the source
/// has lost that one since.
#[test]
fn a_series_that_breaks_off_is_gone_on_with() {
    if !can_mount() {
        return;
    }
    let server = two_pools();
    server.ok("replicate tank/src backup/copy --name r --limit 8M --keep hourly=1");
    write(&server, "small", 1, 4 << 20);
    server.ok("zfs snapshot tank/src@between");
    write(&server, "big", 2, 32 << 20);
    server.ok("zpool sync tank");
    let mut command = server.begin(&["replicate", "--run", "r"]);
    server.wait_until("some of the second stream is sent", || {
        let told = listed(&server, "r");
        told["job"]["progress"]["done"].as_u64().unwrap_or(0) > 16 << 20
    });
    server.ok("replicate --pause r");
    assert!(!command.wait().expect("it ends").success());
    assert_eq!(snapshots(&server, "backup/copy").len(), 2);
    assert_ne!(value(&server, "backup/copy", "receive_resume_token"), "-");
    server.ok("zfs destroy tank/src@between");
    server.ok("replicate --resume r");
    server.wait_until("the run is done", || {
        listed(&server, "r")["last"]["state"] == "finished"
    });
    let told = listed(&server, "r");
    assert_eq!(told["last"]["is_resumed"], true, "{told}");
    let theirs = snapshots(&server, "backup/copy");
    assert_eq!(theirs[0], "between");
    // All but one bookmark have gone again.
    assert_eq!(snapshots(&server, "tank/src"), theirs[1..]);
    let bookmarks = server.ok("zfs list -Hrt bookmark -o name tank/src");
    assert_eq!(bookmarks.lines().count(), 1, "{bookmarks}");
    exported_and_clean(&server);
}

/// Goal: on both sides those of its snapshots stay that the rule names, those that somebody holds
/// or has cloned, and all of others, also where a replication of another server has the same name.
/// Method: snapshots with names of other days; the replication that is made anew knows the ID of
/// the one before by a bookmark.
#[test]
fn old_snapshots_go_by_the_rule_on_both_sides() {
    let server = Server::start();
    let disks = server.disks(2, 512 << 20);
    pool(&server, "tank", &disks[0]);
    pool(&server, "backup", &disks[1]);
    server.ok("zfs create -u tank/src");
    server.ok("replicate tank/src backup/copy --name r --keep all");
    let first = snapshots(&server, "tank/src").pop().expect("a snapshot");
    let (own, _) = first.rsplit_once('-').expect("a moment");
    server.ok("replicate --remove r");
    let old = |moment: &str| format!("{own}-{moment}");
    let moments = [
        "20250110T120000Z",
        "20250115T120000Z",
        "20250301T000000Z",
        "20250301T120000Z",
        "20250302T120000Z",
        "20250302T130000Z",
        "20250303T080000Z",
        "20250303T080100Z",
    ];
    for (number, moment) in moments.iter().enumerate() {
        server.ok(&format!("zfs snapshot tank/src@{}", old(moment)));
        if number == 3 {
            server.ok("zfs snapshot tank/src@mine");
        }
    }
    // What another server's replication brings, or has brought.
    let foreign = [
        "millpond-r-00000000-20250112T120000Z",
        "millpond-r-20250113T120000Z",
    ];
    for name in foreign {
        server.ok(&format!("zfs snapshot tank/src@{name}"));
    }
    server.ok(&format!("zfs hold keep tank/src@{}", old(moments[0])));
    let rule = "--keep daily=3,monthly=3";
    server.ok(&format!("replicate tank/src backup/copy --name r {rule}"));
    // The three last days are that of the run and two more.
    let mut wanted: BTreeSet<String> = [1, 5, 7].map(|at| old(moments[at])).into();
    wanted.insert("mine".into());
    let newest = snapshots(&server, "tank/src").pop().expect("a snapshot");
    wanted.insert(newest.clone());
    let set = |names: Vec<String>| names.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(set(snapshots(&server, "backup/copy")), wanted);
    let held = old(moments[0]);
    wanted.insert(held.clone());
    wanted.extend(foreign.map(str::to_owned));
    assert_eq!(set(snapshots(&server, "tank/src")), wanted);
    // What has a clone at the target cannot go, which is told.
    server.ok(&format!(
        "zfs clone backup/copy@{} backup/clone",
        old(moments[1])
    ));
    server.ok(&format!("zfs release keep tank/src@{held}"));
    server.ok("replicate --remove r");
    for name in foreign {
        server.ok(&format!("zfs snapshot backup/copy@{name}"));
    }
    let words = "replicate tank/src backup/copy --name r --keep hourly=1";
    let output = server.command(&words.split(' ').collect::<Vec<_>>());
    let said = text_of(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains(&format!(
            "the target's snapshot 'backup/copy@{}' stays",
            old(moments[1])
        )),
        "{said}"
    );
    let left = snapshots(&server, "tank/src");
    assert_eq!(left[..3], ["mine", foreign[0], foreign[1]]);
    assert_eq!(left.len(), 4, "{left:?}");
    let left = snapshots(&server, "backup/copy");
    assert_eq!(left[..2], [old(moments[1]), "mine".to_owned()]);
    assert_eq!(left[2..4], foreign);
    assert_eq!(left.len(), 5, "{left:?}");
    exported_and_clean(&server);
}

/// Goal: it runs by itself, rests when it is told to, keeps that over a restart, and is changed.
/// Goal: a side that has no room loses what the rule would not keep anyway, and never what both
/// sides have. Method: quotas that the next snapshot, or what is received of it, does not fit in.
#[test]
fn a_side_without_room_is_pruned() {
    if !can_mount() {
        return;
    }
    let server = two_pools();
    let fill = |seed| {
        write(&server, "big", seed, 16 << 20);
        server.ok("zpool sync tank");
    };
    server.ok("zfs create backup/in");
    fill(1);
    server.ok("replicate -r tank/src backup/in/copy --keep all");
    for seed in 2..=3 {
        fill(seed);
        server.ok("replicate --run tank-src");
    }
    let three = snapshots(&server, "tank/src");
    assert_eq!(three.len(), 3);
    server.ok("replicate --change tank-src -r --keep hourly=1");

    // The target: there is room for three, and a little.
    fill(4);
    server.ok("zfs set quota=56M backup/in");
    server.ok("replicate --run tank-src");
    let last = listed(&server, "tank-src")["last"].clone();
    assert_eq!(last["state"], "finished", "{last}");
    let newest = last["snapshot"].as_str().expect("a snapshot").to_owned();
    assert_eq!(snapshots(&server, "backup/in/copy"), [newest.as_str()]);
    same(&server, "tank/src", &server, "backup/in/copy", true);

    // Where nothing can go, the last copy stays, and the source keeps what goes with it.
    fill(5);
    server.ok("zfs set quota=20M backup/in");
    for _ in 0..2 {
        let said = server.fails("replicate --run tank-src");
        let is_full = said.contains("quota") || said.contains("out of space");
        assert!(is_full, "{said}");
        assert_eq!(snapshots(&server, "backup/in/copy"), [newest.as_str()]);
    }
    server.ok("zfs set quota=none backup/in");
    server.ok("replicate --run tank-src");
    same(&server, "tank/src", &server, "backup/in/copy", true);

    // The source: a reservation that the next snapshot adds to.
    server.ok("replicate --change tank-src -r --keep all");
    for seed in 6..=7 {
        fill(seed);
        server.ok("replicate --run tank-src");
    }
    fill(8);
    server.ok("zfs set refreservation=64M tank/src");
    server.ok("zfs set quota=116M tank/src");
    let before = snapshots(&server, "tank/src");
    let said = server.fails("replicate --run tank-src");
    assert!(said.contains("out of space"), "{said}");
    assert_eq!(snapshots(&server, "tank/src"), before, "all are to stay");
    server.ok("replicate --change tank-src -r --keep hourly=1");
    server.ok("replicate --run tank-src");
    same(&server, "tank/src", &server, "backup/in/copy", true);
    assert_eq!(snapshots(&server, "tank/src").len(), 1);
    exported_and_clean(&server);
}

/// Goal: where there can be no bookmark, what both sides have stays at the source, while the target
/// cannot be reached. Method: a pool without the feature; runs of a replication and of a schedule.
#[test]
fn what_both_sides_have_stays_without_bookmarks() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(2, 256 << 20);
    server.ok(&format!(
        "zpool create -d -O mountpoint=none tank {}",
        disks[0]
    ));
    pool(&server, "backup", &disks[1]);
    let root = server.text("mounted");
    server.ok(&format!("zfs create -o mountpoint={root} tank/src"));
    write(&server, "one", 1, 200_000);
    server.ok("replicate tank/src backup/copy --keep hourly=1");
    let common = snapshots(&server, "backup/copy");
    assert_eq!(server.ok("zfs list -Ht bookmark -o name"), "");
    server.ok("zpool export backup");
    for seed in 2..=4 {
        write(&server, "one", seed, 200_000);
        server.fails("replicate --run tank-src");
    }
    let all = snapshots(&server, "tank/src");
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(all[0], common[0]);
    server.ok(&format!("zpool import -d {} backup", server.text("disks")));
    server.ok("replicate --run tank-src");
    same(&server, "tank/src", &server, "backup/copy", true);
    assert_eq!(snapshots(&server, "tank/src").len(), 1);

    // One that was removed and is made anew knows its snapshots, over a restart too.
    server.ok("replicate --remove tank-src");
    server.stop();
    server.launch(&["daemon"]);
    write(&server, "one", 5, 200_000);
    server.ok("replicate tank/src backup/copy --keep hourly=1");
    same(&server, "tank/src", &server, "backup/copy", true);
    assert_eq!(snapshots(&server, "tank/src").len(), 1);

    exported_and_clean(&server);
}

#[test]
fn it_runs_by_itself_until_it_is_paused() {
    let mut server = Server::start();
    let disks = server.disks(2, 512 << 20);
    pool(&server, "tank", &disks[0]);
    pool(&server, "backup", &disks[1]);
    server.ok("zfs create -u tank/src");
    let said = server.ok("replicate tank/src backup/copy --every 1s --keep all --name r");
    assert!(said.contains("'r' runs every 1s"), "{said}");
    let count = |server: &Server| {
        let output = server.command(&["zfs", "list", "-Ht", "snapshot", "backup/copy"]);
        output.stdout.iter().filter(|byte| **byte == b'\n').count()
    };
    server.wait_until("three runs", || count(&server) >= 3);
    server.ok("replicate --pause r");
    let before = count(&server);
    server.stop();
    server.launch(&["daemon"]);
    assert!(server.ok("replicate --list").contains(" paused "));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(count(&server), before);
    server.ok("replicate --resume r");
    server.wait_until("another run", || count(&server) > before);
    // It does otherwise from its next run on.
    server.ok("replicate --change r --every 2d --keep daily=2 --limit 50M");
    let told = listed(&server, "r");
    assert_eq!(told["every_s"], 2 * 86_400, "{told}");
    assert_eq!(
        (&told["keep"]["daily"], &told["keep"]["hourly"]),
        (&2.into(), &0.into())
    );
    assert_eq!(told["limit_bytes"], 50 << 20, "{told}");
    assert!(
        server
            .fails("replicate --change none --every 1h")
            .contains("'none'")
    );
    server.ok("replicate --remove r");
    assert_eq!(server.ok("replicate --list -H"), "");
    let last = count(&server);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(count(&server), last);
    exported_and_clean(&server);
}

/// Puts an `ssh` into a directory that runs its words in a shell with the state of another server,
/// and writes them into `words`. While there is a file `down` it reaches nobody; while there is one
/// `hang` it gets no answer.
fn fake_ssh(server: &Server, other: &Server) -> String {
    let directory = server.path("bin");
    std::fs::create_dir(&directory).expect("a directory");
    let script = format!(
        "#!/bin/sh\n\
         while [ \"$1\" != -- ]; do shift; done\n\
         shift; host=$1; shift\n\
         if [ -e {root}/down ]; then echo 'No route to host' >&2; exit 255; fi\n\
         echo \"$host $*\" >> {root}/words\n\
         if [ -e {root}/hang ]; then touch {root}/hangs; exec sleep 100; fi\n\
         echo $$ > {root}/pid\n\
         export MILLPOND_STATE={state}\n\
         exec sh -c \"exec $*\"\n",
        root = server.directory.path().display(),
        state = other.state().display(),
    );
    let path = directory.join("ssh");
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let usual = std::env::var("PATH").unwrap_or_default();
    format!("{}:{usual}", directory.display())
}

#[test]
fn another_host_is_reached_by_ssh() {
    if !can_mount() {
        return;
    }
    let other = Server::start();
    let disk = &other.disks(1, 512 << 20)[0];
    pool(&other, "far", disk);
    let mut server = Server::prepare();
    let path = fake_ssh(&server, &other);
    server.environment.push(("PATH", path));
    server.launch(&["daemon"]);
    make_pools(&server);
    server.ok("zfs create tank/src/child");
    write(&server, "one", 1, 200_000);
    write(&server, "child/two", 2, 200_000);
    server.ok("zfs snapshot tank/src@monday");
    let remote = format!("{MILLPOND} zfs");
    let replicate = [
        "replicate",
        "-r",
        "tank/src",
        "me@host:far/copy",
        "--remote-command",
        &remote,
        "--limit",
        "16M",
        "--keep",
        "hourly=1",
    ];
    // Nobody is there to be asked: nothing is kept, and no snapshot is taken.
    let down = server.path("down");
    let refused = |words: &[&str]| {
        let output = server.command(words);
        let said = text_of(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("ssh to me@host: No route to host"), "{said}");
    };
    std::fs::write(&down, "").expect("a file");
    refused(&replicate);
    assert_eq!(listed(&server, "tank-src"), Value::Null);
    assert_eq!(snapshots(&server, "tank/src").len(), 1);
    std::fs::remove_file(&down).expect("removed");
    let output = server.command(&replicate);
    assert!(output.status.success(), "{}", text_of(&output));
    // Nobody is there later on: the snapshot is taken all the same.
    std::fs::write(&down, "").expect("a file");
    refused(&["replicate", "--run", "tank-src"]);
    assert_eq!(snapshots(&server, "tank/src").len(), 3);
    std::fs::remove_file(&down).expect("removed");
    server.ok("replicate --run tank-src");
    // What the rule does not keep is gone on both sides.
    same(&server, "tank/src", &other, "far/copy", true);
    same(&server, "tank/src/child", &other, "far/copy/child", true);
    assert_eq!(snapshots(&other, "far/copy").len(), 2);
    let words = std::fs::read_to_string(server.path("words")).expect("words");
    assert!(
        words.lines().all(|line| line.starts_with("me@host ")),
        "{words}"
    );
    assert!(
        words.contains(" zfs receive -s -u -o readonly=on "),
        "{words}"
    );
    assert!(
        words.contains(" zfs destroy far/copy@millpond-tank-src-"),
        "{words}"
    );

    // The connection breaks in the middle; the next run goes on with the token.
    write(&server, "big", 3, 24 << 20);
    let mut command = server.begin(&["replicate", "--run", "tank-src"]);
    server.wait_until("half of it is sent", || {
        let told = listed(&server, "tank-src");
        told["job"]["progress"]["done"].as_u64().unwrap_or(0) > 12 << 20
    });
    let pid = std::fs::read_to_string(server.path("pid")).expect("a process");
    run("kill", &["-9", pid.trim()]);
    assert!(!command.wait().expect("it ends").success());
    assert_ne!(value(&other, "far/copy", "receive_resume_token"), "-");
    server.ok("replicate --run tank-src");
    let told = listed(&server, "tank-src");
    assert_eq!(told["last"]["is_resumed"], true, "{told}");
    same(&server, "tank/src", &other, "far/copy", true);

    // A command there that does not end ends with the run.
    std::fs::write(server.path("hang"), "").expect("a file");
    let mut command = server.begin(&["replicate", "--run", "tank-src"]);
    server.wait_until("it waits", || server.path("hangs").exists());
    let begin = std::time::Instant::now();
    server.ok("replicate --pause tank-src");
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    assert!(!command.wait().expect("it ends").success());
    std::fs::remove_file(server.path("hang")).expect("removed");
    server.ok("replicate --resume tank-src");
    server.wait_until("the run is done", || {
        listed(&server, "tank-src")["last"]["state"] == "finished"
    });
    same(&server, "tank/src", &other, "far/copy", true);
    exported_and_clean(&server);
    other.ok("zpool export far");
    zdb_is_clean(&other.path("disks"), "far");
}
