//! Goal: schedules do what they say and no more: they come at their times, make up once for what
//! was missed, destroy nothing that is not their own, and tell when they fail. Method: pools on
//! files, `millpond schedule`, and its state file between two runs of the server.

use serde_json::{Value, json};

use crate::harness::{Server, can_mount, run as run_program, zdb_is_clean};
use crate::replicate::write;

/// A server with pool `tank` and filesystems `tank/a` and `tank/a/b`, nothing mounted.
fn with_pool() -> (Server, Vec<String>) {
    let server = Server::start();
    let disks = server.disks(2, 256 << 20);
    server.ok(&format!(
        "zpool create -O mountpoint=none tank {}",
        disks[0]
    ));
    server.ok("zfs create -p tank/a/b");
    (server, disks)
}

/// What the list tells of a schedule.
fn listed(server: &Server, name: &str) -> Value {
    let all: Value = serde_json::from_str(&server.ok("schedule list --json")).expect("JSON");
    let mut all = all["schedules"].as_array().expect("a list").iter();
    let found = all.find(|one| one["name"] == name);
    found.cloned().unwrap_or(Value::Null)
}

/// Names of snapshots of a dataset, after the `@`, oldest first.
fn snapshots(server: &Server, dataset: &str) -> Vec<String> {
    let text = server.ok(&format!(
        "zfs list -Hp -t snapshot -o name -s createtxg {dataset}"
    ));
    let names = text.lines().filter_map(|name| name.split_once('@'));
    names.map(|(_, short)| short.to_owned()).collect()
}

/// Runs a schedule and gives the snapshot that it took.
fn run(server: &Server, name: &str) -> String {
    server.ok(&format!("schedule run {name}"));
    let last = listed(server, name)["last"].clone();
    assert_eq!(last["state"], "finished", "{last}");
    last["snapshot"].as_str().expect("a snapshot").to_owned()
}

#[test]
fn snapshots_come_and_only_own_ones_go() {
    let (server, disks) = with_pool();
    let said = server.ok("schedule set snapshot tank/a -r --every day --keep hourly=1 --name a");
    assert!(
        said.contains("'a' runs each day at 00:00; next at"),
        "{said}"
    );
    assert_eq!(listed(&server, "a")["last"], Value::Null);

    let first = run(&server, "a");
    assert!(first.starts_with("auto-a-2") && first.len() == "auto-a-2026-11-25-1200".len());
    for dataset in ["tank/a", "tank/a/b"] {
        assert_eq!(snapshots(&server, dataset), [first.as_str()]);
    }
    // What is called as if it were an own one is none, nor is what another schedule took.
    let others = ["auto-a-2020-01-01-0000", "auto-a-2020-01-01-0001", "mine"];
    server.ok(&format!("zfs snapshot tank/a@{}", others[0]));
    server.ok(&format!(
        "zfs snapshot -o millpond:schedule=b tank/a@{}",
        others[1]
    ));
    server.ok(&format!("zfs snapshot tank/a@{}", others[2]));
    server.ok(&format!("zfs hold stay tank/a@{first}"));
    let second = run(&server, "a");
    assert!(second > first, "{second}");
    let all = |own: &[&String]| {
        let mut all: Vec<String> = others.map(str::to_owned).to_vec();
        all.extend(own.iter().map(|name| (*name).clone()));
        all.sort();
        all
    };
    let sorted = |dataset: &str| {
        let mut names = snapshots(&server, dataset);
        names.sort();
        names
    };
    assert_eq!(sorted("tank/a"), all(&[&first, &second]));
    assert_eq!(snapshots(&server, "tank/a/b"), [second.as_str()]);
    assert_eq!(listed(&server, "a")["last"]["destroyed"], 1);

    // Neither goes what a replication has a bookmark of.
    server.ok(&format!("zfs release stay tank/a@{first}"));
    let guid = server.ok(&format!("zfs get -Hp -o value guid tank/a@{second}"));
    let guid: u64 = guid.trim().parse().expect("a GUID");
    let bookmark = format!("tank/a#millpond-r-0123abcd-{guid:016x}");
    server.ok(&format!("zfs bookmark tank/a@{second} {bookmark}"));
    let third = run(&server, "a");
    assert_eq!(sorted("tank/a"), all(&[&second, &third]));
    server.ok(&format!("zfs destroy {bookmark}"));

    // One that has a clone stays, which is told, and keeps none of the others.
    server.ok(&format!("zfs clone tank/a@{third} tank/clone"));
    let fourth = run(&server, "a");
    assert_eq!(sorted("tank/a"), all(&[&third, &fourth]));
    let left = listed(&server, "a")["last"]["left"].clone();
    assert_eq!(left[0]["snapshot"], format!("tank/a@{third}"), "{left}");
    server.ok("zfs destroy tank/clone");
    let fifth = run(&server, "a");
    assert_eq!(sorted("tank/a"), all(&[&fifth]));

    // Another GUID of the pool changes nothing, also for what was marked with that once.
    let value = |property: &str, of: &str| {
        let told = server.ok(&format!("zfs get -Hp -o value {property} {of}"));
        told.trim().to_owned()
    };
    let guid = server.ok("zpool get -Hp -o value guid tank");
    let guid: u64 = guid.trim().parse().expect("a GUID");
    let (old, number) = (format!("tank/a@{fifth}"), value("objsetid", "tank/a"));
    let today = value("millpond:schedule", &old);
    server.ok(&format!(
        "zfs set millpond:schedule=a@{guid:016x}:{number} {old}"
    ));
    server.ok(&format!("zfs hold stay {old}"));
    let sixth = run(&server, "a");
    assert_eq!(sorted("tank/a"), all(&[&fifth, &sixth]));
    assert_eq!(value("millpond:schedule", &old), today);
    server.ok(&format!("zfs release stay {old}"));
    server.ok("zpool reguid tank");
    let fifth = run(&server, "a");
    assert_eq!(sorted("tank/a"), all(&[&fifth]));

    // What came from elsewhere is not this server's to destroy, though a schedule is called so.
    server.ok(&format!(
        "zpool create -O mountpoint=none backup {}",
        disks[1]
    ));
    server.ok("replicate tank/a backup/a");
    let there = snapshots(&server, "backup/a");
    assert!(there.contains(&fifth), "{there:?}");
    server.ok("schedule set snapshot backup/a --keep hourly=0 --name a");
    let own = run(&server, "a");
    let mut wanted = there;
    wanted.push(own);
    assert_eq!(snapshots(&server, "backup/a"), wanted);

    server.ok("schedule remove a");
    assert_eq!(server.ok("schedule list -H"), "");
    let said = server.fails("schedule run a");
    assert!(said.contains("no schedule 'a'"), "{said}");
    assert!(snapshots(&server, "tank/a").contains(&fifth));
    for pool in ["tank", "backup"] {
        server.ok(&format!("zpool export {pool}"));
        zdb_is_clean(&server.path("disks"), pool);
    }
}

#[test]
fn runs_come_by_themselves_and_make_up_for_what_was_missed_once() {
    let (mut server, disks) = with_pool();
    server.ok("schedule set snapshot tank/a --every 1s --keep all --name often");
    server.wait_until("two snapshots are there", || {
        snapshots(&server, "tank/a").len() >= 2
    });
    server.ok("schedule pause often");
    let before = snapshots(&server, "tank/a");
    assert_eq!(listed(&server, "often")["next_s"], Value::Null);
    assert!(server.ok("schedule").contains("paused"));

    // A day, of which some are missed.
    server.ok("schedule set snapshot tank/a/b --every 1d --name daily");
    server.stop();
    let path = server.state().join("schedules.json");
    let text = std::fs::read_to_string(&path).expect("what is kept");
    let mut kept: Value = serde_json::from_str(&text).expect("JSON");
    for one in kept.as_array_mut().expect("a list") {
        if one["name"] == "daily" {
            let created_s = one["created_s"].as_u64().expect("a time");
            one["created_s"] = json!(created_s - 5 * 24 * 3600);
            one["begun_s"] = json!(created_s - 4 * 24 * 3600);
        }
    }
    std::fs::write(&path, kept.to_string()).expect("the file");
    server.launch(&["daemon"]);
    server.wait_until("it was made up for", || {
        listed(&server, "daily")["success_s"].is_u64()
    });
    // Time enough for others.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(snapshots(&server, "tank/a/b").len(), 1);
    assert_eq!(snapshots(&server, "tank/a"), before, "it is paused still");

    // A pool that is away is waited for, which is no failure.
    server.ok("schedule resume often");
    server.ok("zpool export tank");
    server.wait_until("it waits", || {
        listed(&server, "often")["waits"] == "not-imported"
    });
    assert!(
        server
            .ok("schedule list")
            .contains("the pool is not imported")
    );
    let said = server.fails("schedule run often");
    assert!(said.contains("pool 'tank' is not imported"), "{said}");
    assert_eq!(listed(&server, "often")["failures"], 0);
    server.ok(&format!("zpool import -d {} tank", disks[0]));
    let count = snapshots(&server, "tank/a").len();
    server.wait_until("it goes on", || snapshots(&server, "tank/a").len() > count);
    assert_eq!(listed(&server, "often")["waits"], Value::Null);
}

#[test]
fn scrubs_and_trims_begin_and_failures_are_alerts() {
    let (server, _) = with_pool();
    assert!(
        server
            .ok("schedule set scrub tank")
            .contains("'scrub-tank' runs each month on 1 at 02:00")
    );
    server.ok("schedule set trim tank");
    assert_eq!(server.ok("schedule run scrub-tank"), "scrub-tank: begun\n");
    server.wait_until("the scrub is done", || {
        server.ok("zpool status tank").contains("scrub repaired")
    });
    assert_eq!(server.ok("schedule run trim-tank"), "trim-tank: begun\n");
    let history = server.ok("zpool history tank");
    assert!(
        history.contains("millpond schedule run trim-tank"),
        "{history}"
    );
    for (words, told) in [
        ("schedule set scrub tank/a", "it is no pool"),
        ("schedule set scrub pond", "no such pool"),
        ("schedule set snapshot tank/none", "does not exist"),
        ("schedule set snapshot tank/a@x", "@"),
        (
            "schedule set snapshot tank/a --name a/b",
            "the name of a schedule",
        ),
        ("schedule pause none", "there is no schedule 'none'"),
    ] {
        let said = server.fails(words);
        assert!(said.contains(told), "{words}: {said}");
    }

    server.ok("zfs create tank/gone");
    server.ok("schedule set snapshot tank/gone --every 1s --keep hourly=2");
    server.ok("zfs destroy -r tank/gone");
    server.wait_until("it fails", || {
        listed(&server, "tank-gone")["failures"].as_u64() > Some(0)
    });
    let text = server.ok("schedule list");
    assert!(
        text.contains("failed") && text.contains("does not exist"),
        "{text}"
    );
    // Alerts look once a minute.
    let told = || {
        server
            .ok("alerts")
            .contains("schedule tank-gone (snapshots of tank/gone) fails")
    };
    server.wait_until("that is an alert", told);
    // It runs each second by itself: who runs it by hand meanwhile is told that it runs already.
    server.ok("zfs create tank/gone");
    server.wait_until("it is well again", || {
        listed(&server, "tank-gone")["failures"].as_u64() == Some(0)
    });
}

/// Hours of the day that begin so many hours from now, and last two.
fn hours(from_now: u64) -> String {
    let now: u64 = run_program("date", &["+%H"])
        .trim()
        .parse()
        .expect("an hour");
    let at = |later: u64| (now + from_now + later) % 24;
    format!("--hours {:02}:00-{:02}:00", at(0), at(2))
}

/// Goal: a scheduled scrub rests outside its hours, also when the server comes back, goes on in
/// them, and what people do goes before. Method: a scrub that has a hundredth of the disk's time;
/// hours that begin later, and an hour ago.
#[test]
fn scrubs_keep_to_their_hours() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(1, 1 << 30);
    server.ok(&format!(
        "zpool create -O mountpoint=none tank {}",
        disks[0]
    ));
    server.ok("zfs create tank/a");
    let root = server.text("mounted");
    server.ok(&format!("zfs create -o mountpoint={root} tank/full"));
    write(&server, "big", 7, 160 << 20);
    server.ok("zpool sync tank");
    let (open, closed) = (hours(23), hours(5));
    let set = |server: &Server, hours: &str, share: u32| {
        let words = format!("schedule set scrub tank {hours} --share {share} --name nights");
        server.ok(&words)
    };
    let status = |server: &Server| server.ok("zpool status tank");
    let is_paused = |server: &Server| status(server).contains("scrub paused");

    // Its hours have not begun.
    let said = set(&server, &closed, 1);
    assert!(said.contains("1%; next at"), "{said}");
    let said = server.fails("schedule run nights");
    assert!(said.contains("outside the hours"), "{said}");
    assert!(status(&server).contains("tank") && !status(&server).contains("scrub"));
    // They are here, and over.
    set(&server, &open, 1);
    server.ok("schedule run nights");
    assert!(
        status(&server).contains("scrub in progress"),
        "{}",
        status(&server)
    );
    set(&server, &closed, 1);
    server.wait_until("the scrub rests", || is_paused(&server));
    server.stop();
    server.launch(&["daemon"]);
    server.wait_until("the pool is back", || status(&server).contains("scrub"));
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(is_paused(&server), "{}", status(&server));
    set(&server, &open, 1);
    server.wait_until("the scrub goes on", || !is_paused(&server));
    // Somebody pauses it: it stays so.
    server.ok("zpool scrub -p tank");
    set(&server, &closed, 1);
    set(&server, &open, 1);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(is_paused(&server), "{}", status(&server));
    server.ok("schedule run nights");
    assert!(!is_paused(&server), "{}", status(&server));
    // Somebody has it go on outside of its hours: it does.
    set(&server, &closed, 1);
    server.wait_until("the scrub rests", || is_paused(&server));
    server.ok("zpool scrub tank");
    set(&server, &closed, 1);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(!is_paused(&server), "{}", status(&server));
    server.ok("zpool scrub -s tank");
    // Without its schedule it goes on.
    set(&server, &open, 1);
    server.ok("schedule run nights");
    set(&server, &closed, 1);
    server.wait_until("the scrub rests", || is_paused(&server));
    server.ok("schedule remove nights");
    server.wait_until("the scrub is done", || {
        status(&server).contains("scrub repaired 0B")
    });
    // It read that of the one dataset that has something.
    let costs = server.ok("schedule cost -H tank");
    let of = |name: &str| -> u64 {
        let row = costs
            .lines()
            .find(|row| row.split('\t').next() == Some(name));
        let bytes = row.and_then(|row| row.split('\t').nth(1));
        bytes.expect("a dataset").parse().expect("bytes")
    };
    assert!((160 << 20..170 << 20).contains(&of("tank/full")), "{costs}");
    assert!(of("tank/a") < 1 << 20 && of("-") < 8 << 20, "{costs}");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: what finds no room destroys first what the rule would not keep after it, and neither the
/// newest nor what a replication needs. Method: a reservation that each snapshot adds to, below a
/// quota.
#[test]
fn a_snapshot_that_finds_no_room_makes_some() {
    if !can_mount() {
        return;
    }
    let (server, _) = with_pool();
    let root = server.text("mounted");
    server.ok(&format!(
        "zfs create -o mountpoint={root} -o refreservation=64M tank/full"
    ));
    let fill = |seed| {
        write(&server, "big", seed, 16 << 20);
        server.ok("zpool sync tank");
    };
    server.ok("schedule set snapshot tank/full --every day --keep all --name f");
    let mut taken = Vec::new();
    for seed in 1..=3 {
        fill(seed);
        taken.push(run(&server, "f"));
    }
    fill(4);
    // Less than the reservation would grow by.
    server.ok("zfs set quota=116M tank/full");
    let said = server.fails("schedule run f");
    assert!(said.contains("out of space"), "{said}");
    assert_eq!(snapshots(&server, "tank/full"), taken, "all are to stay");

    // The last that both sides have is not what makes room.
    server.ok("schedule set snapshot tank/full --every day --keep hourly=1 --name f");
    let mut bookmarks = Vec::new();
    for name in &taken {
        let guid = server.ok(&format!("zfs get -Hp -o value guid tank/full@{name}"));
        let guid: u64 = guid.trim().parse().expect("a GUID");
        let bookmark = format!("tank/full#millpond-r-0123abcd-{guid:016x}");
        server.ok(&format!("zfs bookmark tank/full@{name} {bookmark}"));
        bookmarks.push(bookmark);
    }
    server.fails("schedule run f");
    assert_eq!(snapshots(&server, "tank/full"), taken);
    server.ok(&format!("zfs destroy {}", bookmarks[0]));
    // It makes room, and goes on.
    let newest = run(&server, "f");
    assert_eq!(
        snapshots(&server, "tank/full"),
        [taken[1].clone(), taken[2].clone(), newest.clone()]
    );
    for bookmark in &bookmarks[1..] {
        server.ok(&format!("zfs destroy {bookmark}"));
    }
    let newest = run(&server, "f");
    assert_eq!(snapshots(&server, "tank/full"), [newest.as_str()]);

    // The newest is left alone, however often it fails.
    fill(5);
    server.ok("zfs set quota=84M tank/full");
    for _ in 0..2 {
        server.fails("schedule run f");
        assert_eq!(snapshots(&server, "tank/full"), [newest.as_str()]);
    }
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
